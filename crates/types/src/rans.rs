//! Symbols as bits, by the asymmetric numeral systems of Duda (2009): a symbol takes the logarithm of its frequency.
//!
//! The state has 64 bits, of which 32 leave at once. Symbols are written from the last one to the first.

/// Frequencies are numbers out of 2^12.
const FREQUENCY_BITS: u32 = 12;
/// The sum of the frequencies of a table.
pub(crate) const TOTAL: u64 = 1 << FREQUENCY_BITS;
/// The least state between two symbols.
const LEAST: u64 = 1 << 31;

/// How often symbols occur, for a writer and a reader.
#[derive(Debug)]
pub(crate) struct Table {
    /// The frequency of each symbol, and the sum of those before it.
    of: Vec<(u64, u64)>,
    /// The symbols, each as often as its frequency says.
    slots: Vec<u8>,
}

impl Table {
    /// A table of these frequencies by symbol; none if their sum is not [`TOTAL`], or there are more than 256.
    pub(crate) fn new(frequencies: &[u64]) -> Option<Self> {
        let (mut of, mut slots) = (Vec::with_capacity(frequencies.len()), Vec::new());
        for (symbol, &frequency) in frequencies.iter().enumerate() {
            let end = slots.len().checked_add(usize::try_from(frequency).ok()?)?;
            if end as u64 > TOTAL {
                return None;
            }
            of.push((frequency, slots.len() as u64));
            slots.resize(end, u8::try_from(symbol).ok()?);
        }
        (slots.len() as u64 == TOTAL).then_some(Self { of, slots })
    }
}

/// Frequencies for symbols that occur this often: at least 1 for each that occurs. Their sum is [`TOTAL`], unless none does.
pub(crate) fn frequencies(counts: &[u64]) -> Vec<u64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return vec![0; counts.len()];
    }
    let of = |&n: &u64| if n > 0 { (n * TOTAL / all).max(1) } else { 0 };
    let mut out: Vec<u64> = counts.iter().map(of).collect();
    let mut sum: u64 = out.iter().sum();
    while sum != TOTAL {
        let Some(most) = out.iter_mut().max() else { break };
        // Rare symbols were rounded up, one by one.
        let now = if sum < TOTAL { *most + (TOTAL - sum) } else { *most - 1 };
        sum = sum - *most + now;
        *most = now;
    }
    out
}

/// Writes symbols, the last one first.
#[derive(Debug)]
pub(crate) struct Encoder {
    state: u64,
    /// The bytes, from the last one to the first.
    reversed: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { state: LEAST, reversed: Vec::new() }
    }
}

impl Encoder {
    /// Writes a symbol of the table. One whose frequency is 0 cannot be read again.
    pub(crate) fn put(&mut self, table: &Table, symbol: u8) {
        let (frequency, start) = table.of.get(usize::from(symbol)).copied().unwrap_or_default();
        let frequency = frequency.max(1);
        if self.state >= ((LEAST >> FREQUENCY_BITS) << 32) * frequency {
            let [a, b, c, d, ..] = self.state.to_le_bytes();
            self.reversed.extend([d, c, b, a]);
            self.state >>= 32;
        }
        self.state = ((self.state / frequency) << FREQUENCY_BITS) + self.state % frequency + start;
    }

    /// The bytes of all symbols.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.reversed.extend(self.state.to_be_bytes());
        self.reversed.reverse();
        self.reversed
    }
}

/// Reads what an [`Encoder`] wrote.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    state: u64,
    left: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// None for bytes that no encoder wrote.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let (state, left) = bytes.split_first_chunk()?;
        let state = u64::from_le_bytes(*state);
        (LEAST..LEAST << 32).contains(&state).then_some(Self { state, left })
    }

    /// The next symbol; none at the end.
    pub(crate) fn symbol(&mut self, table: &Table) -> Option<u8> {
        let slot = self.state % TOTAL;
        let symbol = *table.slots.get(usize::try_from(slot).ok()?)?;
        let (frequency, start) = *table.of.get(usize::from(symbol))?;
        self.state = frequency * (self.state >> FREQUENCY_BITS) + slot - start;
        if self.state < LEAST {
            let (word, left) = self.left.split_first_chunk()?;
            self.state = (self.state << 32) | u64::from(u32::from_le_bytes(*word));
            self.left = left;
        }
        Some(symbol)
    }

    /// Whether everything that was written has been read.
    pub(crate) fn is_over(&self) -> bool {
        self.state == LEAST && self.left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn symbols_are_read_as_they_were_written(symbols in prop::collection::vec((0u8..9, 0u8..200), 0..400), least in 1u8..9) {
            // Some symbols are much more frequent than others.
            let symbols: Vec<u8> = symbols.into_iter().map(|(n, rare)| if rare > 9 { n.min(least) } else { rare * 20 + n }).collect();
            let mut counts = [0u64; 200];
            symbols.iter().for_each(|s| counts[usize::from(*s)] += 1);
            let Some(table) = Table::new(&frequencies(&counts)) else {
                prop_assert!(symbols.is_empty());
                return Ok(());
            };
            let mut encoder = Encoder::default();
            symbols.iter().rev().for_each(|s| encoder.put(&table, *s));
            let bytes = encoder.finish();
            let mut decoder = Decoder::new(&bytes).unwrap();
            for symbol in &symbols {
                prop_assert_eq!(decoder.symbol(&table), Some(*symbol));
            }
            prop_assert!(decoder.is_over());
        }

        #[test]
        fn frequencies_are_a_table(counts in prop::collection::vec(prop_oneof![Just(0u64), 1u64..5, 1u64..1_000_000], 1..256)) {
            let frequencies = frequencies(&counts);
            prop_assert_eq!(Table::new(&frequencies).is_some(), counts.iter().any(|n| *n > 0));
            prop_assert!(counts.iter().zip(&frequencies).all(|(n, f)| (*n > 0) == (*f > 0)));
        }
    }

    #[test]
    fn what_is_no_table_is_none() {
        for wrong in [&[][..], &[4095], &[4097], &[4000, 97], &[u64::MAX, 1]] {
            assert!(Table::new(wrong).is_none(), "{wrong:?}");
        }
        assert!(Decoder::new(&[0; 8]).is_none() && Decoder::new(&[0xff; 8]).is_none());
    }
}
