//! The regular look: who is silent, what nobody reads any more.

use std::sync::Arc;
use std::time::Duration;

use caju_types::{Error, IterationId};

use super::{Core, Txn, observed::Observed};
use crate::config::Timers;
use crate::state::{State, Update, WorkerState};

impl Core {
    /// Looks at everything every so often, until the dispatcher stops.
    pub(crate) async fn check_for_ever(self: Arc<Self>) {
        loop {
            self.clock.sleep(self.config.timers.check_every).await;
            self.check();
        }
    }

    /// Looks at everything once.
    pub(crate) fn check(&self) {
        let now = self.clock.now();
        let unix_ms = u64::try_from(self.clock.unix_time().as_millis()).unwrap_or(0);
        let timers = &self.config.timers;
        self.transact(|txn| {
            let mut observed = self.observed.lock();
            forgive_standstill(&mut observed, timers, now);
            let mut updates = silent_workers(txn.state, &mut observed, timers, now, unix_ms);
            updates.extend(silent_clients(txn.state, &mut observed, timers, now));
            updates.extend(idle_iterations(txn.state, &mut observed, timers, now));
            updates.extend(starved_iterations(txn.state, &mut observed, timers, now));
            drop(observed);
            updates.extend(self.uses.lock().expired(txn.state, &self.config.memory, now));
            apply(txn, updates);
        });
    }
}

fn apply(txn: &mut Txn<'_>, updates: Vec<Update>) {
    for update in updates {
        match &update {
            Update::WorkerLost { reason, .. } => tracing::warn!("{reason}"),
            Update::ClientGone { client, iteration, .. } => {
                tracing::warn!("{client} of {iteration} is silent")
            }
            _ => {}
        }
        txn.apply(update);
    }
}

/// If this process itself stood still (a suspended machine), nobody else was silent.
fn forgive_standstill(observed: &mut Observed, timers: &Timers, now: Duration) {
    let gap = observed.last_check.map_or(Duration::ZERO, |last| now.saturating_sub(last));
    if gap > timers.check_every * 2 + timers.worker_timeout / 2 {
        observed.forgive(gap);
    }
    observed.last_check = Some(now);
}

fn silent_workers(
    state: &State,
    observed: &mut Observed,
    timers: &Timers,
    now: Duration,
    unix_ms: u64,
) -> Vec<Update> {
    let mut out = Vec::new();
    let memory_ms = u64::try_from(timers.worker_memory.as_millis()).unwrap_or(u64::MAX);
    for worker in state.workers.values() {
        if let WorkerState::Lost { at_ms } = worker.state {
            if unix_ms.saturating_sub(at_ms) > memory_ms {
                out.push(Update::WorkerForgotten { worker: worker.id });
            }
            continue;
        }
        let report = observed.workers.entry(worker.id).or_default();
        if report.at.is_zero() {
            report.at = now;
        }
        let silent = now.saturating_sub(report.at);
        if silent > timers.worker_timeout {
            let reason = format!("{} was silent for {:.1} s", worker.describe(), silent.as_secs_f64());
            out.push(Update::WorkerLost { worker: worker.id, reason, at_ms: unix_ms });
        }
    }
    observed.workers.retain(|id, _| state.workers.get(id).is_some_and(|w| !w.is_lost()));
    out
}

fn silent_clients(state: &State, observed: &mut Observed, timers: &Timers, now: Duration) -> Vec<Update> {
    let mut out = Vec::new();
    for iteration in state.iterations.values() {
        for client in iteration.own_members() {
            let report = observed.clients.entry((iteration.id, client)).or_default();
            if report.at.is_zero() {
                report.at = now;
            }
            if now.saturating_sub(report.at) > timers.client_timeout {
                out.push(Update::client_gone(client, iteration.id));
            }
        }
    }
    observed.clients.retain(|(iteration, client), _| state.is_member(*client, *iteration));
    out
}

/// Iterations that nobody has read for long; at once if nobody else can come.
fn idle_iterations(state: &State, observed: &mut Observed, timers: &Timers, now: Duration) -> Vec<Update> {
    let mut out = Vec::new();
    for iteration in state.iterations.values() {
        if !iteration.members.is_empty() {
            observed.idle.remove(&iteration.id);
            continue;
        }
        let since = *observed.idle.entry(iteration.id).or_insert(now);
        let alone = state.jobs.get(&iteration.job).is_some_and(|j| j.anonymous);
        if alone || now.saturating_sub(since) > timers.job_gc_timeout {
            out.push(Update::IterationDropped { iteration: iteration.id });
        }
    }
    out
}

/// Iterations whose clients wait for a worker and there is none.
fn starved_iterations(state: &State, observed: &mut Observed, timers: &Timers, now: Duration) -> Vec<Update> {
    let hungry =
        |id: &IterationId| state.iterations.get(id).is_some_and(|i| i.is_running() && !i.members.is_empty());
    let any_worker = state.workers.values().any(|w| !w.is_lost());
    observed.starved.retain(|id, _| !any_worker && hungry(id));
    if any_worker {
        return Vec::new();
    }
    let mut out = Vec::new();
    for iteration in state.iterations.values().filter(|i| hungry(&i.id)) {
        let since = *observed.starved.entry(iteration.id).or_insert(now);
        if now.saturating_sub(since) > timers.worker_wait {
            let error = Error::unavailable(format!(
                "{}: no worker has been there for {}; start one with `caju worker --dispatcher ADDRESS`",
                iteration.describe(),
                caju_types::format_duration(timers.worker_wait)
            ));
            out.push(Update::IterationFailed { iteration: iteration.id, failure: (&error).into() });
        }
    }
    out
}
