//! The pool of processes: assigning them to calls, and replacing those that fail.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use caju_runtime::{Thread, log_failure, wanted_cpu_time_of};
use caju_types::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use crate::config::PoolConfig;
use crate::function::{Caller, Function, FunctionError, Output};
use crate::process::{Answer, Call, Process, Started};

/// Python processes that run functions over batches. Clones share them. They end with the last clone.
///
/// A process serves one definition for all its life: code of one definition cannot change the interpreter of another. See
/// [`Pool::for_definition`].
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
    /// The processes that were started and have not ended.
    started: Started,
}

#[derive(Debug, Default)]
struct State {
    /// The most processes that work at once.
    processes: usize,
    /// Idle processes, the longest idle one first.
    idle: VecDeque<Idle>,
    working: usize,
    /// Whether a thread runs that ends processes after their idle time.
    has_reaper: bool,
    /// The longest timeout of all functions so far.
    max_timeout: Duration,
    /// Counts rows and calls that were finished.
    progress: u64,
}

#[derive(Debug)]
struct Idle {
    definition: u128,
    since: Instant,
    process: Process,
}

/// The interval at which idle processes are checked.
const REAP_INTERVAL: Duration = Duration::from_secs(1);
/// How often a call is run in all. A process that dies once may have died by accident.
const MAX_ATTEMPTS: usize = 2;

impl Pool {
    /// A pool. Its processes start when they are needed.
    pub fn new(config: PoolConfig) -> Self {
        let state = Mutex::new(State { processes: config.processes.max(1), ..State::default() });
        let shared = Shared { config, state, free: Condvar::new(), started: Started::default() };
        Self { shared: Arc::new(shared), definition: 0 }
    }

    /// The pool for the functions of one definition, which a hash of its functions identifies. All such pools share the
    /// bounds.
    #[must_use]
    pub fn for_definition(&self, definition: u128) -> Self {
        Self { shared: Arc::clone(&self.shared), definition }
    }

    /// Runs a function over a batch, and blocks this thread. `seeds` has a number per row, which seeds `caju.rng()`. Without
    /// seeds `caju.rng()` is refused. The output is of all rows that were not given back to the caller; if any were, it may
    /// also lack the row before those, which was not begun then: [`Output::ran`] has the rows.
    ///
    /// # Errors
    /// `InvalidArgument`, which names the row, for an exception of the function. `ResourceExhausted` if its process died
    /// twice, `DeadlineExceeded` if it exceeded its timeout twice, `FailedPrecondition` if Python cannot be started.
    pub fn call(
        &self,
        function: &Arc<Function>,
        batch: &RecordBatch,
        seeds: Option<&[u64]>,
        caller: &mut dyn Caller,
    ) -> Result<Output, FunctionError> {
        let timeout = function.timeout.unwrap_or(self.shared.config.timeout);
        let on_progress = || self.shared.state.lock().progress += 1;
        let mut last = None;
        let mut call = Call::new(function, batch, seeds, timeout);
        for attempt in 1..=MAX_ATTEMPTS {
            let mut process = self.take(timeout)?;
            match process.call(&mut call, caller, &on_progress) {
                Ok(Answer::Done(output)) => {
                    self.put_back(Some(process));
                    return Ok(output);
                }
                Ok(Answer::Raised(error)) => {
                    self.put_back(Some(process));
                    return Err(error);
                }
                Ok(Answer::TooLarge(error)) => {
                    // The same rows would give as much again. The process may still hold it.
                    drop(process);
                    self.put_back(None);
                    return Err(error);
                }
                Err(FunctionError { row, error }) => {
                    tracing::warn!(attempt, function = function.name, row, %error, "a Python process is replaced");
                    // Dropping it kills the process.
                    drop(process);
                    self.put_back(None);
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

    /// The number of processes, including idle ones.
    pub fn processes(&self) -> usize {
        let state = self.shared.state.lock();
        state.working + state.idle.len()
    }

    /// Lets this many processes work at once from now on, but no fewer than the settings say. Processes that are working stay.
    pub fn set_processes(&self, processes: usize) {
        self.shared.state.lock().processes = processes.max(self.shared.config.processes).max(1);
        self.shared.free.notify_all();
    }

    /// Time for which the present processes ran on a core or were ready to, so far; nothing where the system does not count
    /// that.
    pub fn wanted_cpu_time(&self) -> Duration {
        let started = self.shared.started.lock().clone();
        started.into_iter().filter_map(wanted_cpu_time_of).sum()
    }

    /// A process for a function with this timeout. Waits for as long as the working processes make progress.
    fn take(&self, timeout: Duration) -> Result<Process> {
        let config = &self.shared.config;
        let mut state = self.shared.state.lock();
        state.max_timeout = state.max_timeout.max(timeout);
        loop {
            if state.working < state.processes {
                state.working += 1;
                if let Some(i) = state.idle.iter().rposition(|p| p.definition == self.definition)
                    && let Some(found) = state.idle.remove(i)
                {
                    return Ok(found.process);
                }
                let max = state.processes.saturating_mul(config.definitions.max(1));
                let full = state.working + state.idle.len() > max;
                let ended = if full { state.idle.pop_front() } else { None };
                drop(state);
                // Without the lock: ending a process takes a moment.
                drop(ended);
                return Process::start(config, &self.shared.started).inspect_err(|_| self.put_back(None));
            }
            let seen = state.progress;
            // By then a hanging call was stopped and run once more.
            let wait = state.max_timeout.saturating_mul(2).saturating_add(config.start_timeout);
            if self.shared.free.wait_for(&mut state, wait).timed_out() && state.progress == seen {
                return Err(Error::deadline(format!(
                    "no Python process of {} was free in time; let the pool have more, or functions less to do",
                    state.processes
                )));
            }
        }
    }

    /// Returns a process that is free again; none if it was ended.
    fn put_back(&self, process: Option<Process>) {
        let mut state = self.shared.state.lock();
        state.progress += 1;
        state.working -= 1;
        if let Some(process) = process {
            state.idle.push_back(Idle { definition: self.definition, since: Instant::now(), process });
            if !state.has_reaper {
                state.has_reaper = start_reaper(&self.shared);
            }
        }
        drop(state);
        self.shared.free.notify_one();
    }
}

/// Starts a thread that ends processes after their idle time. False if no thread could be started.
fn start_reaper(shared: &Arc<Shared>) -> bool {
    let shared = Arc::downgrade(shared);
    let of_failed = Weak::clone(&shared);
    // The next process that is idle gets another thread.
    let failed = move |error| {
        if let Some(shared) = of_failed.upgrade() {
            shared.state.lock().has_reaper = false;
        }
        log_failure(error);
    };
    let reap = move || {
        loop {
            std::thread::park_timeout(REAP_INTERVAL);
            let Some(shared) = shared.upgrade() else { return Ok(()) };
            let mut ended = Vec::new();
            let mut state = shared.state.lock();
            while state.idle.front().is_some_and(|p| p.since.elapsed() >= shared.config.idle) {
                ended.extend(state.idle.pop_front());
            }
            let over = state.idle.is_empty();
            state.has_reaper = !over;
            drop(state);
            drop(ended);
            if over {
                return Ok(());
            }
        }
    };
    Thread::background("caju-functions", failed, reap).is_ok()
}
