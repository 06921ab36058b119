//! The pool: who runs what, and what happens to processes that fail.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use caju_types::{Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::process::{Answer, Process};
use crate::{Function, FunctionError, Output, PoolConfig};

/// Some Python processes that run functions over batches. Clones share them; with the last one they end.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: PoolConfig,
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Process>,
    /// Processes that are there, idle or at work.
    alive: usize,
}

/// How often a call is tried before its rows are given up.
const ATTEMPTS: usize = 2;

impl Pool {
    /// A pool; its processes start when they are needed.
    pub fn new(config: PoolConfig) -> Self {
        let shared = Shared { config, state: Mutex::default(), free: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs a function over a batch, blocking this thread. `seeds` holds a number per row, from which `caju.rng()`
    /// draws; without them it is refused there.
    ///
    /// # Errors
    /// `InvalidArgument` naming the row for an exception of the function, `ResourceExhausted` if its process died
    /// twice, `DeadlineExceeded` if it did not answer in time twice, `FailedPrecondition` if there is no Python.
    pub fn call(
        &self,
        function: &Arc<Function>,
        batch: &RecordBatch,
        seeds: Option<&[u64]>,
    ) -> Result<Output, FunctionError> {
        let mut last = None;
        for attempt in 1..=ATTEMPTS {
            let mut process = self.take()?;
            match process.call(function, batch, seeds, self.shared.config.timeout) {
                Ok(Answer::Done(output)) => {
                    self.give_back(Some(process));
                    return Ok(output);
                }
                Ok(Answer::Raised(error)) => {
                    self.give_back(Some(process));
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(attempt, function = function.name, %error, "a Python process is replaced");
                    // Its destructor ends it.
                    drop(process);
                    self.give_back(None);
                    last = Some(error);
                }
            }
        }
        let error = last.unwrap_or_else(|| Error::internal("no attempt was made"));
        Err(error.context(format!("function `{}`, run twice over the same rows", function.name)).into())
    }

    /// Processes that are there.
    pub fn processes(&self) -> usize {
        self.shared.state.lock().alive
    }

    fn take(&self) -> Result<Process> {
        let config = &self.shared.config;
        let deadline = Instant::now() + config.timeout.saturating_mul(2) + config.start_timeout;
        let mut state = self.shared.state.lock();
        loop {
            if let Some(process) = state.idle.pop() {
                return Ok(process);
            }
            if state.alive < config.processes {
                state.alive += 1;
                drop(state);
                return Process::start(config).inspect_err(|_| self.give_back(None));
            }
            if self.shared.free.wait_until(&mut state, deadline).timed_out() {
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
        match process {
            Some(process) => state.idle.push(process),
            None => state.alive -= 1,
        }
        drop(state);
        self.shared.free.notify_one();
    }
}
