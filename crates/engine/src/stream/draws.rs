//! The random numbers of stream stages.

use caju_types::mix64;

/// A sequence of draws that depends on its seed alone.
#[derive(Debug, Clone)]
pub(crate) struct Draws {
    seed: u64,
    count: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    /// Uniform over all 64-bit words.
    pub(crate) fn word(&mut self) -> u64 {
        self.count += 1;
        mix64(self.seed, self.count)
    }

    /// Uniform in `0..n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below n")]
        let v = ((u128::from(self.word()) * n as u128) >> 64) as usize;
        v
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}
