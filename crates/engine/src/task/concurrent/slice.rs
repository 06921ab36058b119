//! Slices of chunks, and the work on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_types::{Error, Result};
use caju_wire::Chunk;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// A slice that takes longer is slow: where no order is promised, slices behind it pass it. It is twice as long as the work that
/// is cut into slices, and four times as long as the work of a slice: a busy machine alone seldom makes a slice slow.
pub(super) const SLOW: Duration = Duration::from_millis(200);

/// Identifies a slice: the number of its item in the input, and its own number among the slices of that item.
pub(super) type SliceIndex = (u64, u32);

/// What computing gives: a chunk and the work that is left.
pub(super) type Computed<W> = Result<(Chunk, Option<W>)>;

/// Work that produces one chunk after another.
pub(in crate::task) trait Work: Send + Sized + 'static {
    /// The next chunk, and the work that is left.
    fn next(self, slice: Slice<Self>) -> impl Future<Output = Result<(Chunk, Option<Self>)>> + Send;

    /// The first rows, and the others if all together would take long.
    fn cut(self) -> (Self, Option<Self>);

    /// The rows, if no work is left on them.
    fn finished(self) -> Result<Chunk, Self>;
}

/// Rows that a slow slice gives back while it is computed.
#[derive(Debug)]
pub(in crate::task) struct GivenBack<W> {
    /// The rows before the slow one.
    pub(in crate::task) ready: Option<W>,
    /// The rows behind the slow one, which were not begun.
    pub(in crate::task) behind: Option<W>,
}

/// Since when a slice is being computed; none while it is not, or while it waits for something other than its own work.
pub(super) type Progress = Arc<Mutex<Option<Instant>>>;

/// A slice that is computed, as its work sees it.
#[derive(Debug)]
pub(in crate::task) struct Slice<W> {
    index: SliceIndex,
    progress: Progress,
    giving_back: mpsc::Sender<(SliceIndex, GivenBack<W>)>,
}

impl<W> Slice<W> {
    pub(super) fn new(
        index: SliceIndex,
        progress: Progress,
        giving_back: mpsc::Sender<(SliceIndex, GivenBack<W>)>,
    ) -> Self {
        Self { index, progress, giving_back }
    }

    /// Marks the slice as being computed from now on.
    pub(in crate::task) fn working(&self) {
        *self.progress.lock() = Some(Instant::now());
    }

    /// From now on the slice waits for something that is not its work.
    pub(in crate::task) fn waiting(&self) {
        *self.progress.lock() = None;
    }

    /// Gives rows back.
    ///
    /// # Errors
    /// `Internal` if more slices are given back than can be running: their rows are lost then. `Cancelled` if the task has
    /// ended.
    pub(in crate::task) fn give_back(&self, given: GivenBack<W>) -> Result<()> {
        self.giving_back.try_send((self.index, given)).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => Error::internal("slices gave rows back too often"),
            mpsc::error::TrySendError::Closed(_) => Error::cancelled("the task is over"),
        })
    }
}
