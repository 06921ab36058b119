//! Random numbers for sample data. A row draws from its seed and index alone, so the number of threads and files never
//! changes it.

use std::cell::Cell;

use caju_types::mix64;

/// A counter-based generator: the finaliser of SplitMix64 over a counter.
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: Cell<u64>,
}

impl Rng {
    /// The generator of one row. `domain` gives kinds of data with the same seed different numbers.
    pub(crate) fn new(seed: u64, domain: u64, index: u64) -> Self {
        Self { state: Cell::new(mix64(mix64(seed, domain), index)) }
    }

    /// 64 random bits.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        let mut z = self.state.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.state.set(z);

        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; `n` at least 1.
    #[inline]
    pub(crate) fn below(&self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    #[inline]
    pub(crate) fn unit(&self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[lo, hi)`.
    #[inline]
    pub(crate) fn range(&self, lo: f32, hi: f32) -> f32 {
        lo + (hi - lo) * ((self.bits() >> 40) as f32 / (1u32 << 24) as f32)
    }

    /// Roughly normal with mean 0 and deviation 1: the sum of twelve uniform numbers, less six.
    pub(crate) fn normal(&self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..3 {
            let b = self.bits();
            for part in [b & 0xFFFF, (b >> 16) & 0xFFFF, (b >> 32) & 0xFFFF, b >> 48] {
                sum += (part as f64 + 0.5) / 65536.0;
            }
        }
        sum - 6.0
    }

    /// True with the given probability.
    #[inline]
    pub(crate) fn chance(&self, p: f64) -> bool {
        self.unit() < p
    }
}

/// A rank below `size` with a frequency of about one over the rank, so that few values fill most rows. `unit` is
/// uniform in `[0, 1)`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the vocabulary")]
pub(crate) fn zipf(size: u64, unit: f64) -> u64 {
    let rank = ((size as f64 + 1.0).ln() * unit).exp() - 1.0;
    (rank.max(0.0) as u64).min(size - 1)
}
