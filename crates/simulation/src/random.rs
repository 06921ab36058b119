//! Random numbers from a seed.

use std::time::Duration;

/// A generator of numbers that a seed determines: SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of a seed; `purpose` gives each user of the seed numbers of its own.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self(caju_types::mix64(seed, purpose))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` to below `to`.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to.saturating_sub(from)).max(1)
    }

    /// An index of a list of `len` items.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.between(0, len as u64)).unwrap_or(0)
    }

    /// True in `n` of 1000 cases.
    pub(crate) fn permille(&mut self, n: u64) -> bool {
        self.between(0, 1000) < n
    }

    /// A duration of milliseconds from `from` to below `to`.
    pub(crate) fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }

    /// One of some values.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.index(of.len())).copied()
    }
}
