//! What a reader's user got.

use std::collections::BTreeSet;
use std::time::Duration;

use caju_runtime::Task;
use caju_types::{Error, Result};
use parking_lot::Mutex;

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
    /// The lists of each element, where elements come in rounds.
    pub(crate) shapes: Vec<Shape>,
    /// A later part continues behind this one, from a state.
    pub(crate) is_certain: bool,
    /// The reader said that this is all.
    pub(crate) is_over: bool,
    /// The reader has left it.
    pub(crate) is_left: bool,
    /// When it was left, in simulated time.
    pub(crate) left: Duration,
    /// Rows that the dispatcher says are missing, and whether it does not know how many.
    pub(crate) missing: Option<(u64, bool)>,
    /// Under `sharing: relaxed`, of the epoch at its end: rows that its tasks skipped, and whether all of them reported their ends.
    pub(crate) skipped: Option<(u64, bool)>,
}

/// The lists of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The classes of its rows.
    pub(crate) classes: BTreeSet<usize>,
    /// The lengths of its lists, with what pads them.
    pub(crate) lengths: BTreeSet<u64>,
    /// The items of all lists.
    pub(crate) items: u64,
}

/// One reader of a run.
#[derive(Debug, Default)]
pub(crate) struct ReaderRecord {
    pub(crate) running: Option<Task<()>>,
    /// When it was killed, in simulated time.
    pub(crate) killed: Option<Duration>,
    /// When it stood still for the last time.
    pub(crate) paused: Option<Duration>,
    pub(crate) epochs: Vec<Epoch>,
    pub(crate) error: Option<Error>,
    is_over: bool,
}

impl ReaderRecord {
    pub(crate) fn has_ended(&self) -> bool {
        self.is_over || self.killed.is_some()
    }

    /// The epoch that it reads, and how many parts it has read; none: it reads none at present.
    pub(crate) fn reads(&self) -> Option<(u64, usize)> {
        self.epochs
            .last()
            .filter(|last| !last.is_over && !last.is_left)
            .map(|e| (e.number, self.epochs.len()))
    }

    pub(crate) fn ended(&mut self, result: Result<()>) {
        self.is_over = true;
        self.error = result.err();
    }
}

/// Changes what a reader's user got.
pub(crate) fn with_epochs(record: Option<&Mutex<ReaderRecord>>, change: impl FnOnce(&mut Vec<Epoch>)) {
    if let Some(record) = record {
        change(&mut record.lock().epochs);
    }
}
