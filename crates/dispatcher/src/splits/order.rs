//! The order in which splits are handed out.

use caju_types::mix64;

/// How a pipeline with a `shuffle` permutes its splits: within windows, by a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitOrder {
    key: u64,
}

/// The first window: the first batch does not wait for a long listing.
const FIRST_WINDOW: usize = 128;
/// Doublings after which the largest window is reached.
const DOUBLINGS: u32 = 5;
/// The largest window.
const LARGEST_WINDOW: usize = 4096;

impl SplitOrder {
    /// The order of one epoch. `slot` enters under `off`, so that workers differ.
    pub(crate) fn new(seed: u64, epoch: u64, slot: Option<u32>) -> Self {
        let slot = slot.map_or(0, |s| u64::from(s) + 1);
        Self { key: mix64(mix64(seed, epoch), slot) }
    }

    /// The length of the window at a position of the sequence of windows: it doubles up to a bound. The rule
    /// depends on counts alone, so that every run of an epoch makes the same windows.
    pub(crate) fn window_len(window: u32) -> usize {
        (FIRST_WINDOW << window.min(DOUBLINGS)).min(LARGEST_WINDOW)
    }

    /// Permutes one window (Fisher and Yates, with a counter-based generator).
    pub(crate) fn permute<T>(&self, window: u32, items: &mut [T]) {
        let key = mix64(self.key, u64::from(window));
        for i in (1..items.len()).rev() {
            let draw = u128::from(mix64(key, i as u64)) * (i as u128 + 1);
            // Below i + 1, since the draw is below 2^64.
            let j = usize::try_from(draw >> 64).unwrap_or(0);
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_up_to_the_bound() {
        let lengths: Vec<usize> = (0..8).map(SplitOrder::window_len).collect();
        assert_eq!(lengths, [128, 256, 512, 1024, 2048, 4096, 4096, 4096]);
        assert_eq!(SplitOrder::window_len(200), 4096);
        assert_eq!(SplitOrder::window_len(63), 4096);
    }

    #[test]
    fn an_epoch_has_one_order_and_another_epoch_another() {
        let order = |seed, epoch, slot| {
            let mut v: Vec<u32> = (0..100).collect();
            SplitOrder::new(seed, epoch, slot).permute(0, &mut v);
            v
        };
        assert_eq!(order(7, 0, None), order(7, 0, None));
        assert_ne!(order(7, 0, None), order(7, 1, None));
        assert_ne!(order(7, 0, None), order(8, 0, None));
        assert_ne!(order(7, 0, Some(0)), order(7, 0, Some(1)));
        let mut sorted = order(7, 3, None);
        assert_ne!(sorted, (0..100).collect::<Vec<_>>());
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }
}
