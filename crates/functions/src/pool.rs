//! The pool: who runs what, and what happens to processes that fail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use caju_types::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use crate::process::{Answer, Process};
use crate::{Function, FunctionError, Output, PoolConfig};

/// Python processes that run functions over batches. Clones share them; with the last one they end.
///
/// A process serves one definition all its life, so that what one definition's code does to its interpreter no other
/// sees: [`Pool::for_definition`].
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    definition: u128,
}

#[derive(Debug)]
struct Shared {
    config: PoolConfig,
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The longest idle first.
    idle: VecDeque<Idle>,
    at_work: usize,
    /// Whether a thread ends processes that are idle for long.
    is_watched: bool,
    /// The longest that any of them may stay at one row.
    patience: Duration,
    /// Counts what they get done.
    progress: u64,
}

#[derive(Debug)]
struct Idle {
    definition: u128,
    since: Instant,
    process: Process,
}

/// How often a thread looks for processes that are idle for long.
const WATCH: Duration = Duration::from_secs(1);
/// How often a call is tried before its rows are given up.
const ATTEMPTS: usize = 2;

impl Pool {
    /// A pool; its processes start when they are needed.
    pub fn new(config: PoolConfig) -> Self {
        let shared = Shared { config, state: Mutex::default(), free: Condvar::new() };
        Self { shared: Arc::new(shared), definition: 0 }
    }

    /// The pool for the functions of one definition, which is named by what its functions are. All share the bounds.
    #[must_use]
    pub fn for_definition(&self, definition: u128) -> Self {
        Self { shared: Arc::clone(&self.shared), definition }
    }

    /// Runs a function over a batch, blocking this thread. `seeds` holds a number per row, from which `caju.rng()`
    /// draws; without them it is refused there.
    ///
    /// # Errors
    /// `InvalidArgument` naming the row for an exception of the function, `ResourceExhausted` if its process died
    /// twice, `DeadlineExceeded` if it stayed at one row for too long twice, `FailedPrecondition` if there is no Python.
    pub fn call(
        &self,
        function: &Arc<Function>,
        batch: &RecordBatch,
        seeds: Option<&[u64]>,
    ) -> Result<Output, FunctionError> {
        let timeout = function.timeout.unwrap_or(self.shared.config.timeout);
        let went_on = || self.shared.state.lock().progress += 1;
        let mut last = None;
        for attempt in 1..=ATTEMPTS {
            let mut process = self.take(timeout)?;
            match process.call(function, batch, seeds, timeout, &went_on) {
                Ok(Answer::Done(output)) => {
                    self.give_back(Some(process));
                    return Ok(output);
                }
                Ok(Answer::Raised(error)) => {
                    self.give_back(Some(process));
                    return Err(error);
                }
                Err(FunctionError { row, error }) => {
                    tracing::warn!(attempt, function = function.name, row, %error, "a Python process is replaced");
                    // Its destructor ends it.
                    drop(process);
                    self.give_back(None);
                    last = Some((row, error));
                }
            }
        }
        let (row, error) = last.unwrap_or_else(|| (None, Error::internal("no attempt was made")));
        let error = match error.kind() {
            ErrorKind::DeadlineExceeded => {
                let whole = if function.batched { "a batch" } else { "a row" };
                let more = format!(
                    "{}; if {whole} may take longer, say how long: {}(..., timeout=600) in Python, `timeout: 600s` in a \
                     pipeline file",
                    error.message(),
                    function.kind.as_str()
                );
                Error::new(ErrorKind::DeadlineExceeded, more)
            }
            _ => error,
        };
        Err(FunctionError {
            row,
            error: error.context(format!("function `{}`, run twice over the same rows", function.name)),
        })
    }

    /// Processes that are there.
    pub fn processes(&self) -> usize {
        let state = self.shared.state.lock();
        state.at_work + state.idle.len()
    }

    /// A process for a function that may stay at a row for `timeout`. Waits for as long as those at work get on.
    fn take(&self, timeout: Duration) -> Result<Process> {
        let config = &self.shared.config;
        let mut state = self.shared.state.lock();
        state.patience = state.patience.max(timeout);
        loop {
            if state.at_work < config.processes {
                state.at_work += 1;
                if let Some(i) = state.idle.iter().rposition(|p| p.definition == self.definition)
                    && let Some(found) = state.idle.remove(i)
                {
                    return Ok(found.process);
                }
                let most = config.processes.saturating_mul(config.definitions.max(1));
                let full = state.at_work + state.idle.len() > most;
                let ended = if full { state.idle.pop_front() } else { None };
                drop(state);
                // A process takes a moment to end.
                drop(ended);
                return Process::start(config).inspect_err(|_| self.give_back(None));
            }
            let seen = state.progress;
            // Whoever hangs is ended by then, and tried once more.
            let wait = state.patience.saturating_mul(2).saturating_add(config.start_timeout);
            if self.shared.free.wait_for(&mut state, wait).timed_out() && state.progress == seen {
                return Err(Error::deadline(format!(
                    "no Python process of {} was free in time; let the pool have more, or functions less to do",
                    config.processes
                )));
            }
        }
    }

    /// A process that is free again, or one less.
    fn give_back(&self, process: Option<Process>) {
        let mut state = self.shared.state.lock();
        state.progress += 1;
        state.at_work -= 1;
        if let Some(process) = process {
            state.idle.push_back(Idle { definition: self.definition, since: Instant::now(), process });
            if !state.is_watched {
                state.is_watched = watch(&self.shared);
            }
        }
        drop(state);
        self.shared.free.notify_one();
    }
}

/// Starts a thread that ends processes which are idle for long; false if there are no threads.
fn watch(shared: &Arc<Shared>) -> bool {
    let shared = Arc::downgrade(shared);
    let watching = move || {
        loop {
            std::thread::park_timeout(WATCH);
            let Some(shared) = shared.upgrade() else { return };
            let mut ended = Vec::new();
            let mut state = shared.state.lock();
            while state.idle.front().is_some_and(|p| p.since.elapsed() >= shared.config.idle) {
                ended.extend(state.idle.pop_front());
            }
            let over = state.idle.is_empty();
            state.is_watched = !over;
            drop(state);
            drop(ended);
            if over {
                return;
            }
        }
    };
    std::thread::Builder::new().name("caju-functions".to_string()).spawn(watching).is_ok()
}
