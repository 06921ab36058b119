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

/// Where a slice is: the number of its item in the input, and the slice's own among those of the item.
pub(super) type Place = (u64, u32);

/// What computing gives: a chunk and the work that is left.
pub(super) type Computed<W> = Result<(Chunk, Option<W>)>;

/// Work that gives chunks one after the other.
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
    /// The rows behind the slow one, which nobody has begun.
    pub(in crate::task) behind: Option<W>,
}

/// Since when a slice is at work; none: it is not, or waits for something that is not its work.
pub(super) type Progress = Arc<Mutex<Option<Instant>>>;

/// A slice that is computed, as its work sees it.
#[derive(Debug)]
pub(in crate::task) struct Slice<W> {
    place: Place,
    progress: Progress,
    giving_back: mpsc::Sender<(Place, GivenBack<W>)>,
}

impl<W> Slice<W> {
    pub(super) fn new(
        place: Place,
        progress: Progress,
        giving_back: mpsc::Sender<(Place, GivenBack<W>)>,
    ) -> Self {
        Self { place, progress, giving_back }
    }

    /// From now on the slice is at work.
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
    /// `Internal` if more rows are given back than can be under way: they are lost then. `Cancelled` if nobody wants them.
    pub(in crate::task) fn give_back(&self, given: GivenBack<W>) -> Result<()> {
        self.giving_back.try_send((self.place, given)).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => Error::internal("slices gave rows back too often"),
            mpsc::error::TrySendError::Closed(_) => Error::cancelled("the task is over"),
        })
    }
}
