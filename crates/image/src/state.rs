//! The buffers that a thread keeps from row to row.

use super::buffers::trim;
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
