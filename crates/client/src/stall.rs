//! How long a consumer of a job waits for the others.

use std::time::Duration;

use tokio::time::Instant;

/// The user's wait for the next element. A user may wait in slices, as one in Python does, which checks signals in between:
/// the slices add up until an element comes.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    waited: Duration,
}

impl Stall {
    /// An element has come.
    pub(crate) fn end(&mut self) {
        self.waited = Duration::ZERO;
    }

    /// The wait so far.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// A further slice, until the answer is dropped.
    pub(crate) fn slice(&mut self) -> Slice<'_> {
        Slice { began: Instant::now(), of: self }
    }
}

/// A part of a wait.
#[derive(Debug)]
pub(crate) struct Slice<'a> {
    began: Instant,
    of: &'a mut Stall,
}

impl Drop for Slice<'_> {
    fn drop(&mut self) {
        self.of.waited += self.began.elapsed();
    }
}
