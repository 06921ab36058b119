//! Numbers as bits, by the code of Rice (1979): a number of which most are near 2^k takes about k + 2 bits.

/// Quotients from this one on are written as a number of 64 bits.
const ESCAPE: u32 = 24;
/// The largest parameter.
const MAX_K: u32 = 40;

/// The parameter that is best for numbers with this mean, where their distribution is geometric.
pub(crate) fn parameter(sum: u64, count: u64) -> u32 {
    // The mean times ln 2.
    let scaled = (u128::from(sum) * 69 / 100).checked_div(u128::from(count)).unwrap_or(0);
    (128 - scaled.leading_zeros()).saturating_sub(1).min(MAX_K)
}

/// Bits in the order in which they were written, the lowest of a byte first.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that fill no byte yet, fewer than 8.
    open: u64,
    len: u32,
}

impl BitWriter {
    /// Writes the lowest `len` bits of a number, at most 56.
    fn put(&mut self, bits: u64, len: u32) {
        self.open |= bits << self.len;
        self.len += len;
        while self.len >= 8 {
            self.bytes.push(self.open.to_le_bytes()[0]);
            self.open >>= 8;
            self.len -= 8;
        }
    }

    /// Writes the lowest `len` bits of a number, at most 64.
    pub(crate) fn put_low(&mut self, n: u64, len: u32) {
        let first = len.min(32);
        self.put(n & ((1 << first) - 1), first);
        if len > first {
            self.put((n >> first) & ((1 << (len - first)) - 1), len - first);
        }
    }

    /// Writes a number.
    pub(crate) fn put_number(&mut self, n: u64, k: u32) {
        let k = k.min(MAX_K);
        match u32::try_from(n >> k).ok().filter(|q| *q < ESCAPE) {
            Some(quotient) => {
                // This number of ones, and a zero.
                self.put((1 << quotient) - 1, quotient + 1);
                self.put(n & ((1 << k) - 1), k);
            }
            None => {
                self.put((1 << ESCAPE) - 1, ESCAPE);
                self.put(n & 0xffff_ffff, 32);
                self.put(n >> 32, 32);
            }
        }
    }

    /// All bits; zeros fill the last byte.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.len > 0 {
            self.bytes.push(self.open.to_le_bytes()[0]);
        }
        self.bytes
    }
}

/// Reads what a [`BitWriter`] wrote.
#[derive(Debug)]
pub(crate) struct BitReader<'a> {
    left: std::slice::Iter<'a, u8>,
    open: u64,
    len: u32,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes.iter(), open: 0, len: 0 }
    }

    /// The next `len` bits, at most 56; none at the end.
    fn take(&mut self, len: u32) -> Option<u64> {
        while self.len < len {
            self.open |= u64::from(*self.left.next()?) << self.len;
            self.len += 8;
        }
        let bits = self.open & ((1 << len) - 1);
        self.open >>= len;
        self.len -= len;
        Some(bits)
    }

    /// The next `len` bits, at most 64; none at the end.
    pub(crate) fn low(&mut self, len: u32) -> Option<u64> {
        let first = len.min(32);
        Some(self.take(first)? | (self.take(len - first)? << first))
    }

    /// The next number; none if there is none.
    pub(crate) fn number(&mut self, k: u32) -> Option<u64> {
        let k = k.min(MAX_K);
        let mut quotient = 0u32;
        while quotient < ESCAPE && self.take(1)? == 1 {
            quotient += 1;
        }
        if quotient == ESCAPE {
            return Some(self.take(32)? | self.take(32)? << 32);
        }
        Some(u64::from(quotient) << k | self.take(k)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(numbers in prop::collection::vec((any::<u64>(), 0u32..64), 0..60), k in 0u32..50) {
            let numbers: Vec<u64> = numbers.into_iter().map(|(n, shift)| n >> shift).collect();
            let mut writer = BitWriter::default();
            numbers.iter().for_each(|n| writer.put_number(*n, k));
            let bytes = writer.finish();
            let reader = &mut BitReader::new(&bytes);
            for n in &numbers {
                prop_assert_eq!(reader.number(k), Some(*n));
            }
            let reader = &mut BitReader::new(&bytes[..bytes.len() / 2]);
            prop_assert!(numbers.is_empty() || numbers.iter().any(|_| reader.number(k).is_none()));
        }
    }

    #[test]
    fn the_parameter_grows_with_the_mean() {
        assert_eq!(
            [(0, 9), (9, 9), (80, 10), (u64::MAX, 1)].map(|(sum, n)| parameter(sum, n)),
            [0, 0, 2, MAX_K]
        );
        assert_eq!(parameter(5, 0), 0);
    }
}
