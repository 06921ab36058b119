//! The numbers of workers that are tuned or given by hand, as Python gives them.

use caju_embedded::TunedNumbers;
use pyo3::prelude::*;

/// The numbers of a worker's tasks; `caju._tuned.Tuned`. A number that is `None` is tuned, and a memory that is `None` is the
/// default.
#[derive(Debug, Default, FromPyObject)]
pub(crate) struct Tuned {
    /// Splits that a task reads concurrently.
    split_readers: Option<usize>,
    /// Bytes of each queue.
    buffer: Option<usize>,
    /// Bytes of all queues of a worker.
    buffer_memory: Option<usize>,
}

impl Tuned {
    /// The numbers as a worker takes them.
    pub(crate) fn numbers(&self) -> TunedNumbers {
        TunedNumbers {
            readers: self.split_readers,
            buffer_bytes: self.buffer,
            buffer_memory_bytes: self.buffer_memory.unwrap_or(TunedNumbers::default().buffer_memory_bytes),
        }
    }
}
