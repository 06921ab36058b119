//! Sets of rows, and of whole splits, as bytes.

use crate::bytes::{Input, put};
use crate::rice::{self, BitReader, BitWriter};
use crate::{Error, Result, RowRanges, format_count};

/// The most ranges of rows in one set: 64 MiB in memory.
pub(super) const MAX_RANGES: usize = 1 << 22;
/// The largest row number of a split, exclusive: more rows than any source has.
pub(super) const MAX_ROW: u64 = 1 << 48;

pub(super) fn put_ranges(out: &mut Vec<u8>, ranges: &RowRanges) {
    put(out, ranges.num_ranges() as u64);
    let mut last = 0;
    for (start, end) in ranges.iter() {
        put(out, start - last);
        put(out, end - start);
        last = end;
    }
}

/// The numbers between ranges, and of their lengths, each by the code of Rice.
pub(super) fn put_range_bits(out: &mut Vec<u8>, ranges: &RowRanges) {
    let count = ranges.num_ranges() as u64;
    put(out, count);
    let (Some(first), Some(end)) = (ranges.iter().next(), ranges.iter().last()) else { return };
    // Ranges do not touch, and are not empty. The first range may begin anywhere.
    let lengths = ranges.len() - count;
    let between = end.1 - first.0 - ranges.len() - (count - 1);
    let (of_gaps, of_lengths) = (rice::parameter(between, count), rice::parameter(lengths, count));
    let mut bits = BitWriter::default();
    let mut last = 0;
    for (start, end) in ranges.iter() {
        bits.put_number(start - last - u64::from(last > 0), of_gaps);
        bits.put_number(end - start - 1, of_lengths);
        last = end;
    }
    let bits = bits.finish();
    put(out, u64::from(of_gaps));
    put(out, u64::from(of_lengths));
    put(out, bits.len() as u64);
    out.extend_from_slice(&bits);
}

pub(super) fn range_bits(input: &mut Input<'_>, left: &mut usize) -> Result<RowRanges> {
    let count = input.number()?;
    if count == 0 {
        return Ok(RowRanges::default());
    }
    let parameter = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let (of_gaps, of_lengths) = (parameter(input.number()?), parameter(input.number()?));
    let len = input.count()?;
    let mut bits = BitReader::new(input.take(len)?);
    let (mut out, mut at) = (Vec::new(), 0u64);
    for _ in 0..count {
        let both = bits.number(of_gaps).zip(bits.number(of_lengths));
        let (gap, length) = both.ok_or_else(|| input.damaged())?;
        let start = at.checked_add(gap).and_then(|s| s.checked_add(u64::from(at > 0)));
        let end = start.and_then(|s| s.checked_add(length)?.checked_add(1));
        let (Some(start), Some(end)) = (start, end) else { return Err(input.damaged()) };
        spend(left, 1)?;
        out.push((start, end));
        at = end;
    }
    Ok(out.into_iter().collect())
}

pub(super) fn ranges(input: &mut Input<'_>, bound: u64, left: &mut usize) -> Result<RowRanges> {
    let (mut out, mut at) = (Vec::new(), 0u64);
    for _ in 0..input.count()? {
        let (skip, len) = (input.number()?, input.number()?);
        let start = at.checked_add(skip).filter(|_| len > 0);
        let end = start.and_then(|s| s.checked_add(len)).filter(|end| *end <= bound);
        let (Some(start), Some(end)) = (start, end) else { return Err(input.damaged()) };
        spend(left, 1)?;
        out.push((start, end));
        at = end;
    }
    Ok(out.into_iter().collect())
}

/// Rows as bits, from a multiple of 8 on, where that is shorter than the given number of bytes.
pub(super) fn bitmap(rows: &RowRanges, shorter_than: usize) -> Option<(u64, Vec<u8>)> {
    let (first, end) = (rows.iter().next()?.0 / 8, rows.iter().last()?.1);
    let len = usize::try_from(end.div_ceil(8) - first).ok().filter(|len| len + 8 < shorter_than)?;
    let mut bits = vec![0u8; len];
    for row in rows.iter().flat_map(|(start, end)| start..end) {
        let at = usize::try_from(row / 8 - first).ok()?;
        *bits.get_mut(at)? |= 1 << (row % 8);
    }
    Some((first, bits))
}

pub(super) fn bits(input: &mut Input<'_>, left: &mut usize) -> Result<RowRanges> {
    let first = input.number()?;
    let len = input.count()?;
    if first.checked_add(len as u64).is_none_or(|end| end > MAX_ROW / 8) {
        return Err(input.damaged());
    }
    let mut out = RowRanges::default();
    for (byte, at) in input.take(len)?.iter().zip(first..) {
        let mut n = 0;
        while n < 8 {
            let run = u64::from((byte >> n).trailing_ones());
            if run > 0 {
                out.insert(at * 8 + n, at * 8 + n + run);
                spend(left, 1)?;
            }
            n += run + 1;
        }
    }
    Ok(out)
}

pub(super) fn spend(left: &mut usize, ranges: usize) -> Result<()> {
    *left = left.checked_sub(ranges).ok_or_else(|| {
        Error::invalid(format!(
            "a state has more than {} ranges of rows: read with a smaller shuffle buffer, or the epoch with fewer readers",
            format_count(MAX_RANGES as u64)
        ))
    })?;
    Ok(())
}
