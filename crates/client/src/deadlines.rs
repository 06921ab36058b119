//! How long a reader waits for others.

use std::time::Duration;

use caju_types::{Error, Result};
use caju_wire::is_transient;
use tokio::time::Instant;

use crate::config::ReaderEvent;
use crate::shared::Shared;

/// Having no task to read.
#[derive(Debug)]
pub(crate) struct Idle {
    since: Option<Instant>,
    /// There was a task before.
    has_read: bool,
    /// How long the user has been warned of.
    warned: Duration,
}

impl Idle {
    /// A reader that has no task yet.
    pub(crate) fn from_now() -> Self {
        Self { since: Some(Instant::now()), has_read: false, warned: Duration::ZERO }
    }

    /// No reader waits for tasks yet.
    pub(crate) fn restart(&mut self) {
        self.since = self.since.map(|_| Instant::now());
    }

    /// A task is read.
    pub(crate) fn on_start(&mut self) {
        self.has_read = true;
    }

    /// The number of tasks that are read has changed.
    pub(crate) fn on_count(&mut self, tasks: usize) {
        self.since = (tasks == 0).then(Instant::now);
    }

    /// Checks the deadline of having nothing to read. `states_within` is how long states of other readers are waited for.
    ///
    /// # Errors
    /// `DeadlineExceeded` if the dispatcher does not end the epoch, or states of other readers are missing; `Unavailable`
    /// without a worker.
    pub(crate) fn check(&mut self, shared: &Shared, dispatcher: &str, states_within: Duration) -> Result<()> {
        let Some(since) = self.since else { return Ok(()) };
        if self.has_read && !shared.acks.is_all_taken() {
            // The user still has rows to take.
            self.since = Some(Instant::now());
            return Ok(());
        }
        let waited = since.elapsed();
        if self.has_read {
            if waited > shared.config.stall_timeout {
                return Err(Error::deadline(format!(
                    "nothing to read for {waited:.0?}, and the dispatcher at {dispatcher} does not end the epoch; `caju \
                     status` says what it waits for"
                )));
            }
            return Ok(());
        }
        let states = shared.facts.states_missing();
        if states > 0 && waited > states_within {
            let whose = shared.facts.missing_states();
            let whose = if whose.is_empty() { String::new() } else { format!(" ({whose})") };
            return Err(Error::deadline(format!(
                "the epoch goes on from the states of its readers, and {states} of these were not given within \
                 {states_within:.0?}{whose}: give the states of all readers of the job, of the same step"
            )));
        }
        if states == 0 && waited > shared.config.worker_timeout {
            return Err(Error::unavailable(format!(
                "no worker registered at the dispatcher at {dispatcher} within {:.0?}; start one with `caju worker \
                 --dispatcher {dispatcher}`",
                shared.config.worker_timeout
            )));
        }
        if waited >= self.warned + Duration::from_secs(1) {
            if self.warned.is_zero() && states == 0 {
                let within = shared.config.worker_timeout;
                tracing::warn!(dispatcher, "waiting for a worker, for at most {within:.0?}");
            }
            self.warned = waited;
            shared.event(&ReaderEvent::WaitingForWorker { waited })?;
        }
        Ok(())
    }
}

/// The absence of the dispatcher.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    since: Option<Instant>,
}

impl Absence {
    /// The dispatcher answered.
    pub(crate) fn end(&mut self) {
        self.since = None;
    }

    /// The last call was not answered.
    pub(crate) fn is_ongoing(&self) -> bool {
        self.since.is_some()
    }

    /// The dispatcher did not answer a call: tasks continue without it, for a limited time.
    ///
    /// # Errors
    /// The error, if it will not pass or the dispatcher has been away for longer than the settings allow.
    pub(crate) fn on_error(&mut self, error: Error, shared: &Shared, dispatcher: &str) -> Result<()> {
        if !is_transient(&error) {
            return Err(error);
        }
        if self.since.is_none() {
            tracing::warn!(
                "the dispatcher at {dispatcher} does not answer; tasks are read on without it, and the reader gives up \
                 when it has been away for {:.0?}: {error}",
                shared.config.dispatcher_timeout
            );
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let waited = since.elapsed();
        if waited > shared.config.dispatcher_timeout {
            return Err(error.context(format!("the dispatcher has been away for {waited:.0?}")));
        }
        tracing::debug!(error = %error, ?waited, "the dispatcher is still away");
        shared.event(&ReaderEvent::DispatcherAway { waited })
    }
}
