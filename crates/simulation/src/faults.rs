//! The faults of a run.

use std::fmt;
use std::time::Duration;

/// How long the dispatcher waits for a reader that does not report.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A worker dies, silently if its machine loses power, and is started again after a time.
    KillWorker { worker: usize, is_silent: bool, back: Duration },
    /// The dispatcher dies and is started again.
    KillDispatcher { back: Duration },
    /// The disk fails at the write after this number of writes; the dispatcher ends and is started again.
    FailDisk { writes: u64 },
    /// Nothing passes between two hosts for a time, or nothing in one direction.
    Partition { between: (Host, Host), one_way: bool, lasts: Duration },
    /// Every connection of a host breaks.
    Cut { host: Host },
    /// A worker's machine is cut off from all peers for a time: they see a worker that makes no progress.
    Isolate { worker: usize, lasts: Duration },
    /// One more worker comes.
    AddWorker,
    /// A worker is drained.
    DrainWorker { worker: usize },
    /// A reader dies.
    KillReader { reader: usize },
    /// The user of a reader makes no progress for a time, and nothing reaches or leaves its host.
    PauseReader { reader: usize, lasts: Duration },
    /// A consumer dies, and comes back with its last state.
    KillConsumer { consumer: usize, back: Duration },
    /// All consumers die, and continue from their states of one step.
    KillConsumers { back: Duration },
    /// The dispatcher dies and loses its state, and is started again.
    LoseState { back: Duration },
    /// The dispatcher dies when it has opened an epoch for the reader after this number of readers, before it answers, and is
    /// started again.
    LoseOpen { after: u64, back: Duration },
}

/// Whose machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Dispatcher,
    Worker(usize),
    Reader(usize),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Dispatcher => f.write_str("dispatcher"),
            Host::Worker(w) => write!(f, "worker-{w}"),
            Host::Reader(r) => write!(f, "reader-{r}"),
        }
    }
}

impl Fault {
    /// Whether the tasks of a worker may be lost with it.
    pub(crate) fn may_lose_a_worker(&self) -> bool {
        matches!(
            self,
            Fault::KillWorker { .. }
                | Fault::Isolate { .. }
                | Fault::Cut { .. }
                | Fault::Partition { between: (_, Host::Worker(_)) | (Host::Worker(_), _), .. }
        )
    }

    /// Whether a reader is paused for longer than the dispatcher waits for it.
    pub(crate) fn expels_reader(&self) -> bool {
        matches!(self, Fault::PauseReader { lasts, .. } if *lasts > CLIENT_TIMEOUT)
    }
}
