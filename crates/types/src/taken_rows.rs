//! The rows of an epoch that readers took, in the compact form of reader states.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bytes::{Input, put};
use crate::{Error, Result, RowRanges, format_count};

/// The format of [`TakenRows::encode`].
const FORMAT: u8 = 1;
/// The largest encoded set, in bytes. States of ordinary pipelines take kilobytes; one million splits that are taken in no
/// order at all take 2 MiB.
const MAX_BYTES: usize = 16 << 20;
/// The most ranges of rows in one set: 64 MiB in memory.
const MAX_RANGES: usize = 1 << 22;
/// The largest row number of a split, exclusive: more rows than any source has.
const MAX_ROW: u64 = 1 << 48;

/// What a reader knows of the listing of a row of splits: their number so far, and the rolling hash of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The number of splits, from the first one.
    pub count: u64,
    /// The rolling hash of these splits in order.
    pub digest: u64,
}

/// The rows of one epoch that readers took: whole splits, and rows of other splits.
///
/// A split has an index in the epoch's order, and its rows are numbered. Both depend on the dataset, the seed, the epoch
/// and the listing alone, so a set that was taken on one cluster means the same on any other.
///
/// ```
/// use caju_types::TakenRows;
/// let mut taken = TakenRows::default();
/// taken.add_whole(0);
/// taken.add_rows(1, &[(0, 40)].into_iter().collect());
/// assert_eq!(TakenRows::decode(&taken.encode()).unwrap(), taken);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenRows {
    /// Splits of which every row is taken.
    whole: RowRanges,
    /// Rows of other splits.
    rows: BTreeMap<u64, RowRanges>,
    /// What was listed, per row of splits.
    listed: BTreeMap<u32, Listed>,
}

impl TakenRows {
    /// Every row of a split is taken.
    pub fn add_whole(&mut self, split: u64) {
        self.add_whole_range(split, split.saturating_add(1));
    }

    /// Every row of the splits `start..end` is taken.
    pub fn add_whole_range(&mut self, start: u64, end: u64) {
        self.whole.insert(start, end);
        let inside: Vec<u64> = self.rows.range(start..end).map(|(split, _)| *split).collect();
        inside.iter().for_each(|split| drop(self.rows.remove(split)));
    }

    /// These rows of a split are taken.
    pub fn add_rows(&mut self, split: u64, rows: &RowRanges) {
        if !rows.is_empty() && !self.whole.contains(split) {
            self.rows.entry(split).or_default().extend(rows);
        }
    }

    /// Says what was listed. The longest listing is kept.
    pub fn set_listed(&mut self, feed: u32, listed: Listed) {
        let known = self.listed.entry(feed).or_insert(listed);
        if known.count < listed.count {
            *known = listed;
        }
    }

    /// Adds every row of another set of the same epoch.
    ///
    /// # Errors
    /// `InvalidArgument` if the two are of different listings.
    pub fn extend(&mut self, other: &TakenRows) -> Result<()> {
        for (feed, listed) in &other.listed {
            let known = self.listed.get(feed);
            if known.is_some_and(|k| k.count == listed.count && k.digest != listed.digest) {
                return Err(Error::invalid(
                    "the states are of different listings: the source's files changed between them",
                ));
            }
            self.set_listed(*feed, *listed);
        }
        other.whole.iter().for_each(|(start, end)| self.add_whole_range(start, end));
        other.rows.iter().for_each(|(split, rows)| self.add_rows(*split, rows));
        Ok(())
    }

    /// Splits of which every row is taken, by their indexes.
    pub fn whole(&self) -> &RowRanges {
        &self.whole
    }

    /// The rows of splits of which not every row is known to be taken.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &RowRanges)> {
        self.rows.iter().map(|(split, rows)| (*split, rows))
    }

    /// The taken rows of a split of which not every row is known to be taken.
    pub fn rows_of(&self, split: u64) -> Option<&RowRanges> {
        self.rows.get(&split)
    }

    /// What was listed, per row of splits.
    pub fn listed(&self) -> &BTreeMap<u32, Listed> {
        &self.listed
    }

    /// Whether no row is taken.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.rows.is_empty()
    }

    /// The set in bytes. Splits that are taken in order cost next to nothing, other ranges about two bytes each.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put(&mut out, self.listed.len() as u64);
        for (feed, listed) in &self.listed {
            put(&mut out, u64::from(*feed));
            put(&mut out, listed.count);
            out.extend_from_slice(&listed.digest.to_le_bytes());
        }
        put_ranges(&mut out, &self.whole);
        put(&mut out, self.rows.len() as u64);
        let mut last = 0;
        for (split, rows) in &self.rows {
            put(&mut out, split - last);
            last = *split;
            let mut ranges = Vec::new();
            put_ranges(&mut ranges, rows);
            match bitmap(rows, ranges.len()) {
                Some((first, bits)) => {
                    out.push(1);
                    put(&mut out, first);
                    put(&mut out, bits.len() as u64);
                    out.extend_from_slice(&bits);
                }
                None => {
                    out.push(0);
                    out.extend_from_slice(&ranges);
                }
            }
        }
        out
    }

    /// Reads what [`TakenRows::encode`] wrote.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else, and for more than a state can be.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            return Err(Error::invalid(format!(
                "the taken rows of a state are {} bytes, and {} are the most",
                format_count(bytes.len() as u64),
                format_count(MAX_BYTES as u64)
            )));
        }
        let input = &mut Input::new(bytes, "the taken rows of a state");
        let format = input.byte()?;
        if format != FORMAT {
            return Err(Error::invalid(format!(
                "the taken rows of a state have format {format}, and this caju knows format {FORMAT}"
            )));
        }
        let mut out = Self::default();
        let mut left = MAX_RANGES;
        for _ in 0..input.count()? {
            let feed = u32::try_from(input.number()?).map_err(|_| input.damaged())?;
            let count = input.number()?;
            let digest = u64::from_le_bytes(input.array()?);
            out.listed.insert(feed, Listed { count, digest });
        }
        out.whole = ranges(input, u64::MAX, &mut left)?;
        let mut split = 0u64;
        for n in 0..input.count()? {
            let step = input.number()?;
            split = split.checked_add(step).filter(|_| n == 0 || step > 0).ok_or_else(|| input.damaged())?;
            let rows = match input.byte()? {
                0 => ranges(input, MAX_ROW, &mut left)?,
                1 => bits(input, &mut left)?,
                _ => return Err(input.damaged()),
            };
            if rows.is_empty() || out.whole.contains(split) {
                return Err(input.damaged());
            }
            out.rows.insert(split, rows);
        }
        input.finish()?;
        Ok(out)
    }
}

fn put_ranges(out: &mut Vec<u8>, ranges: &RowRanges) {
    put(out, ranges.iter().count() as u64);
    let mut last = 0;
    for (start, end) in ranges.iter() {
        put(out, start - last);
        put(out, end - start);
        last = end;
    }
}

fn ranges(input: &mut Input<'_>, bound: u64, left: &mut usize) -> Result<RowRanges> {
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
fn bitmap(rows: &RowRanges, shorter_than: usize) -> Option<(u64, Vec<u8>)> {
    let (first, end) = (rows.iter().next()?.0 / 8, rows.iter().last()?.1);
    let len = usize::try_from(end.div_ceil(8) - first).ok().filter(|len| len + 8 < shorter_than)?;
    let mut bits = vec![0u8; len];
    for row in rows.iter().flat_map(|(start, end)| start..end) {
        let at = usize::try_from(row / 8 - first).ok()?;
        *bits.get_mut(at)? |= 1 << (row % 8);
    }
    Some((first, bits))
}

fn bits(input: &mut Input<'_>, left: &mut usize) -> Result<RowRanges> {
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

fn spend(left: &mut usize, ranges: usize) -> Result<()> {
    *left = left.checked_sub(ranges).ok_or_else(|| {
        Error::invalid(format!(
            "a state has more than {} ranges of rows: read with a smaller shuffle buffer, or the epoch with fewer readers",
            format_count(MAX_RANGES as u64)
        ))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parts = (Vec<(u64, u64)>, Vec<(u64, Vec<(u64, u64)>)>, Option<(u64, u64)>);

    fn parts() -> impl Strategy<Value = Parts> {
        let ranges =
            |most: u64, n| prop::collection::vec((0..most, 1u64..9).prop_map(|(s, n)| (s, s + n)), 0..n);
        let rows = prop::collection::vec((0u64..(3 << 40), ranges(600, 120)), 0..6);
        (ranges(1 << 42, 20), rows, prop::option::of((0u64..99, any::<u64>())))
    }

    fn taken((whole, rows, listed): &Parts) -> TakenRows {
        let mut out = TakenRows::default();
        rows.iter().for_each(|(split, rows)| out.add_rows(*split, &rows.iter().copied().collect()));
        whole.iter().for_each(|(start, end)| out.add_whole_range(*start, *end));
        if let Some((count, digest)) = *listed {
            out.set_listed(0, Listed { count, digest });
        }
        out
    }

    proptest! {
        #[test]
        fn a_set_survives_its_encoding(parts in parts()) {
            let set = taken(&parts);
            prop_assert_eq!(TakenRows::decode(&set.encode()).unwrap(), set);
        }

        #[test]
        fn a_union_has_the_rows_of_both((a, b) in (parts(), parts())) {
            let (a, b) = (taken(&a), taken(&b));
            let mut both = a.clone();
            if both.extend(&b).is_ok() {
                for set in [&a, &b] {
                    let mut again = both.clone();
                    again.extend(set).unwrap();
                    prop_assert_eq!(&again, &both);
                }
            }
        }

        #[test]
        fn damaged_bytes_are_an_error(parts in parts(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut bytes = taken(&parts).encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            drop(TakenRows::decode(&bytes));
            prop_assert!(TakenRows::decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn ckp_33_a_state_that_is_too_large_is_refused() {
        let e = TakenRows::decode(&vec![FORMAT; MAX_BYTES + 1]).unwrap_err();
        assert!(e.kind() == crate::ErrorKind::InvalidArgument && e.message().contains("16,777,217"), "{e}");
        let mut scattered = vec![FORMAT, 0, 0, 1, 0, 1, 0];
        put(&mut scattered, 5 << 20);
        scattered.resize(scattered.len() + (5 << 20), 0b0101_0101);
        let e = TakenRows::decode(&scattered).unwrap_err();
        assert!(e.message().contains("4,194,304 ranges"), "{e}");
        let e = TakenRows::decode(&[9]).unwrap_err();
        assert!(e.message().contains("format 9"), "{e}");
    }

    #[test]
    fn one_million_splits_in_order_take_a_few_bytes() {
        let mut taken = TakenRows::default();
        (0..1_000_000).for_each(|split| taken.add_whole(split));
        assert!(taken.encode().len() < 16);
    }
}
