//! What a reader's user got.

use std::collections::BTreeSet;
use std::time::Duration;

use caju_runtime::Task;
use caju_types::{Error, Result};

/// What a reader's user got of an epoch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Epoch {
    /// Which epoch. A reader that reads on from states has two parts of one.
    pub(crate) number: u64,
    /// The reader's number at the dispatcher.
    pub(crate) client: u64,
    /// Elements, padding included.
    pub(crate) elements: u64,
    /// The values of `id`, in the order of their delivery.
    pub(crate) ids: Vec<i64>,
    /// The bits of the random number of each of them, where rows have one.
    pub(crate) drawn: Vec<u64>,
    /// The classes of lengths of each element's rows, and the lengths of its lists, where elements come in rounds.
    pub(crate) shapes: Vec<Shape>,
    /// The reader said that this is all.
    pub(crate) is_over: bool,
    /// When it was left, in simulated time.
    pub(crate) left: Duration,
    /// Rows that the dispatcher says are missing, and whether it does not know how many.
    pub(crate) missing: Option<(u64, bool)>,
}

/// The classes of an element's rows, and the lengths of its lists.
pub(crate) type Shape = (BTreeSet<usize>, BTreeSet<i32>);

/// One reader of a run.
#[derive(Debug, Default)]
pub(crate) struct ReaderRecord {
    pub(crate) running: Option<Task<()>>,
    /// When it was killed, in simulated time.
    pub(crate) killed: Option<Duration>,
    pub(crate) epochs: Vec<Epoch>,
    pub(crate) error: Option<Error>,
    is_over: bool,
}

impl ReaderRecord {
    pub(crate) fn has_ended(&self) -> bool {
        self.is_over || self.killed.is_some()
    }

    pub(crate) fn ended(&mut self, result: Result<()>) {
        self.is_over = true;
        self.error = result.err();
    }
}
