//! The buffers that a thread keeps from row to row.

use super::resample::Resampler;
use super::source::DecodeScratch;

/// Reusable buffers of one thread. Any chain may use any scratch; what a run leaves in it has no
/// influence on the next.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) decode: DecodeScratch,
    pub(super) resampler: Resampler,
    /// The window of the source that a resampling reads.
    pub(super) window: Vec<u8>,
    /// One output row in uint8, on its way to float32.
    pub(super) row: Vec<u8>,
    /// The image between two steps that need pixels, and where the next one goes.
    pub(super) current: Vec<u8>,
    pub(super) next: Vec<u8>,
    pub(super) current_f32: Vec<f32>,
    pub(super) next_f32: Vec<f32>,
    /// The image between the two directions of a blur.
    pub(super) blur: Vec<f32>,
}

impl Scratch {
    /// The bytes that stay allocated between rows are kept below about this much per buffer.
    pub(super) const KEEP_BYTES: usize = 32 << 20;

    /// Gives back what an unusually large image left behind.
    pub(super) fn trim(&mut self) {
        self.decode.trim(Self::KEEP_BYTES);
        for v in [&mut self.window, &mut self.row, &mut self.current, &mut self.next] {
            trim(v, Self::KEEP_BYTES);
        }
        for v in [&mut self.current_f32, &mut self.next_f32, &mut self.blur] {
            trim(v, Self::KEEP_BYTES / 4);
        }
    }
}

/// Frees a buffer that outgrew `keep` elements.
pub(super) fn trim<T>(v: &mut Vec<T>, keep: usize) {
    if v.capacity() > keep {
        *v = Vec::new();
    }
}

/// The first `n` elements of a buffer that grows as needed; what they hold is left over.
pub(super) fn grow<T: Copy + Default>(v: &mut Vec<T>, n: usize) -> &mut [T] {
    if v.len() < n {
        v.resize(n, T::default());
    }
    &mut v[..n]
}
