//! Ranges in few bits, where neither the numbers between ranges nor their lengths are spread as chance spreads them: workers
//! lease rows of splits, and readers take several at once.
//!
//! Each number is a symbol, small ones exactly and others by their order of magnitude, and the low bits of the others. The
//! frequencies of the symbols after each kind of number go before them.

use crate::bytes::{Input, put};
use crate::rans::{self, Decoder, Encoder, Table};
use crate::rice::{BitReader, BitWriter};
use crate::{Result, RowRanges};

/// Numbers below this one are symbols of their own.
const EXACT: u64 = 16;
/// The number of symbols: two for each power of two from [`EXACT`] on.
const SYMBOLS: usize = 16 + 2 * 60;
/// Kinds of lengths, after which the numbers between ranges have tables of their own.
const LENGTHS: u8 = 6;
/// Kinds of numbers between ranges, after which lengths have tables of their own.
const GAPS: u8 = 9;
/// The number of tables: [`LENGTHS`] and [`GAPS`] together.
const TABLES: usize = 15;

/// The symbol of a number, and how many of its low bits the symbol does not say.
fn symbol(n: u64) -> (u8, u32) {
    let Some(octave) = n.checked_ilog2().filter(|_| n >= EXACT) else {
        return (u8::try_from(n).unwrap_or(0), 0);
    };
    let half = u32::from(n & (1 << (octave - 1)) != 0);
    (u8::try_from(16 + 2 * (octave - 4) + half).unwrap_or(u8::MAX), octave - 1)
}

/// The number whose symbol this is, with all low bits 0, and how many these are.
fn number(symbol: u8) -> (u64, u32) {
    let Some(n) = symbol.checked_sub(16) else { return (u64::from(symbol), 0) };
    let low = u32::from(n / 2) + 3;
    ((2 + u64::from(n % 2)) << low, low)
}

/// The table of the number that follows a length.
fn after_length(length: u64) -> u8 {
    match length {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 3,
        4..=6 => 4,
        _ => LENGTHS - 1,
    }
}

/// The table of the length that follows a number between ranges.
fn after_gap(gap: u64) -> u8 {
    LENGTHS
        + match gap {
            0..=5 => u8::try_from(gap).unwrap_or(0),
            6..=8 => 6,
            9..=14 => 7,
            _ => GAPS - 1,
        }
}

/// Appends the ranges. False, and nothing is appended, if they take less than a bit each: so regular ones take more in another
/// form, of which no reader has to fear that few bytes become many ranges.
pub(super) fn put_dense(out: &mut Vec<u8>, ranges: &RowRanges) -> bool {
    let mut counts = [[0u64; SYMBOLS]; TABLES];
    let mut symbols = Vec::with_capacity(2 * ranges.num_ranges());
    let mut low = BitWriter::default();
    let mut add = |table: u8, n: u64| {
        let (symbol, bits) = symbol(n);
        if let Some(count) = counts.get_mut(usize::from(table)).and_then(|of| of.get_mut(usize::from(symbol)))
        {
            *count += 1;
        }
        low.put_low(n, bits);
        symbols.push((table, symbol));
    };
    let (mut last, mut length) = (0, 0);
    for (start, end) in ranges.iter() {
        let gap = start - last - u64::from(last > 0);
        add(after_length(length), gap);
        length = end - start - 1;
        add(after_gap(gap), length);
        last = end;
    }
    let frequencies = counts.map(|of| rans::frequencies(&of));
    let tables: Vec<Option<Table>> = frequencies.iter().map(|of| Table::new(of)).collect();
    let mut encoder = Encoder::default();
    for (table, symbol) in symbols.iter().rev() {
        if let Some(Some(table)) = tables.get(usize::from(*table)) {
            encoder.put(table, *symbol);
        }
    }
    let (low, symbols) = (low.finish(), encoder.finish());
    if !takes_a_bit_each(ranges.num_ranges() as u64, &low, &symbols) {
        return false;
    }
    put(out, ranges.num_ranges() as u64);
    frequencies.iter().for_each(|of| put_frequencies(out, of));
    for bytes in [low, symbols] {
        put(out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    true
}

fn takes_a_bit_each(count: u64, low: &[u8], symbols: &[u8]) -> bool {
    count <= 8 * (low.len() + symbols.len()) as u64
}

/// How many symbols have a frequency, and each of them by its distance to the one before, with its frequency.
fn put_frequencies(out: &mut Vec<u8>, frequencies: &[u64]) {
    let known = || frequencies.iter().enumerate().filter(|(_, frequency)| **frequency > 0);
    put(out, known().count() as u64);
    let mut next = 0;
    for (symbol, frequency) in known() {
        put(out, (symbol - next) as u64);
        put(out, *frequency);
        next = symbol + 1;
    }
}

/// A table; none if no symbol has a frequency.
fn table(input: &mut Input<'_>) -> Result<Option<Table>> {
    let mut frequencies = Vec::new();
    let known = input.count()?;
    for _ in 0..known {
        let distance = usize::try_from(input.number()?).map_err(|_| input.damaged())?;
        let frequency = input.number()?;
        if distance >= SYMBOLS - frequencies.len().min(SYMBOLS) || frequency == 0 {
            return Err(input.damaged());
        }
        frequencies.resize(frequencies.len() + distance, 0);
        frequencies.push(frequency);
    }
    match Table::new(&frequencies) {
        None if known > 0 => Err(input.damaged()),
        table => Ok(table),
    }
}

/// Reads ranges that [`put_dense`] wrote. `spend` says of each whether there may be one more.
pub(super) fn dense(input: &mut Input<'_>, mut spend: impl FnMut() -> Result<()>) -> Result<RowRanges> {
    let count = input.number()?;
    let tables = (0..TABLES).map(|_| table(input)).collect::<Result<Vec<_>>>()?;
    let len = input.count()?;
    let low = input.take(len)?;
    let len = input.count()?;
    let symbols = input.take(len)?;
    if !takes_a_bit_each(count, low, symbols) {
        return Err(input.damaged());
    }
    let mut low = BitReader::new(low);
    let mut symbols = Decoder::new(symbols).ok_or_else(|| input.damaged())?;
    let mut next = |table: u8| {
        let table = tables.get(usize::from(table))?.as_ref()?;
        let (n, bits) = number(symbols.symbol(table)?);
        Some(n | low.low(bits)?)
    };
    let (mut out, mut at, mut length) = (Vec::new(), 0u64, 0);
    for _ in 0..count {
        let both = next(after_length(length)).and_then(|gap| Some((gap, next(after_gap(gap))?)));
        let (gap, following) = both.ok_or_else(|| input.damaged())?;
        length = following;
        let start = at.checked_add(gap).and_then(|s| s.checked_add(u64::from(at > 0)));
        let end = start.and_then(|s| s.checked_add(length)?.checked_add(1));
        let (Some(start), Some(end)) = (start, end) else { return Err(input.damaged()) };
        spend()?;
        out.push((start, end));
        at = end;
    }
    if !symbols.is_over() {
        return Err(input.damaged());
    }
    Ok(out.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_symbol_and_its_low_bits() {
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for n in edges.chain([u64::MAX, u64::MAX / 3]) {
            let (of, bits) = symbol(n);
            assert!(usize::from(of) < SYMBOLS);
            let (base, low) = number(of);
            assert_eq!((low, base | (n & ((1 << low) - 1))), (bits, n), "{n}");
        }
    }
}
