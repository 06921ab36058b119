//! The regular check: silent workers and readers, and epochs without readers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use caju_runtime::catch;
use caju_types::{Error, IterationId, WorkerId};

use super::context::Context;
use super::datasets::Datasets;
use super::iterations::Iterations;
use super::reopen::{self, FinalReport};
use super::reports::Reports;
use super::shards::{lacks_workers, orphans, reassigned};
use super::{Txn, absent_consumers, acknowledgements, reattach, stragglers};
use crate::config::Timers;
use crate::state::{Iteration, State, TargetWorkers, Update, Worker, WorkerState};

/// After how many heartbeats that do not name an ended task its worker does not report its end any more.
const UNREPORTED_HEARTBEATS: u32 = 3;

/// The regular check.
pub(crate) struct LivenessChecks {
    pub(super) context: Arc<Context>,
    pub(super) datasets: Arc<Datasets>,
    pub(super) iterations: Arc<Iterations>,
}

impl LivenessChecks {
    /// Checks everything at intervals, until the dispatcher stops.
    pub(crate) async fn check_regularly(self: Arc<Self>) {
        loop {
            self.context.clock.sleep(self.context.config.timers.check_every).await;
            // Nothing else notices workers and clients that fell silent.
            if let Err(error) = catch("a check of workers and clients", || self.check()) {
                tracing::error!(%error, "workers and clients are checked again later");
            }
        }
    }

    /// Checks everything once.
    pub(crate) fn check(&self) {
        let now = self.context.clock.now();
        let unix_ms = self.context.unix_ms();
        let timers = &self.context.config.timers;
        self.context.transact(|txn| {
            let mut reports = self.context.reports.lock();
            let passed = ignore_own_pause(&mut reports, timers, now);
            let mut updates = silent_workers(txn.state, &mut reports, timers, now, unix_ms);
            let has_list = !self.context.config.workers.is_open();
            updates.extend(confirmed_workers(txn.state, &reports, has_list));
            updates.extend(silent_clients(txn.state, &mut reports, timers, now));
            updates.extend(unreported_ends(txn.state, &mut reports, timers, now));
            updates.extend(idle_iterations(txn.state, &mut reports, timers, now));
            updates.extend(reassigned(&self.context.config, txn.state));
            updates.extend(self.starved_iterations(txn.state, &mut reports, now));
            updates.extend(stragglers::take_overs(txn.state, &mut reports, timers, now));
            updates.extend(reattach::overdue(txn.state, &mut reports, timers, now));
            updates.extend(absent_consumers::overdue(
                txn.state,
                &mut reports.absent_consumers,
                timers,
                passed,
            ));
            let mut to_reopen = Vec::new();
            updates.retain(|update| match update {
                Update::ClientGone { client, iteration, reason, .. }
                    if reopen::must_reopen(txn.state, *iteration, *client) =>
                {
                    let known = txn.state.iterations.get(iteration);
                    to_reopen.extend(known.map(|known| {
                        let why = reopen::why(known, *client, reason);
                        (
                            *iteration,
                            reopen::resume(
                                &reports,
                                (txn.state, known),
                                (*client, &FinalReport::default()),
                                &why,
                            ),
                        )
                    }));
                    false
                }
                _ => true,
            });
            drop(reports);
            for (iteration, resume) in to_reopen {
                if let Err(error) = reopen::reopen(&self.iterations, txn, iteration, resume, unix_ms) {
                    tracing::warn!("{iteration} could not be opened again without a consumer: {error}");
                }
            }
            updates.extend(self.datasets.usage().lock().expired(txn.state, &self.context.config.memory, now));
            let gone: BTreeSet<IterationId> =
                updates.iter().filter_map(|u| to_settle(txn.state, u)).collect();
            apply(txn, updates);
            let mut reports = self.context.reports.lock();
            gone.into_iter().for_each(|id| reports.settle_tasks(txn, id));
        });
    }
}

/// The iteration some task of which may have nothing to wait for after this.
fn to_settle(state: &State, update: &Update) -> Option<IterationId> {
    match update {
        Update::ClientGone { iteration, .. } => Some(*iteration),
        Update::TaskLost { task, .. } => state.task_index.get(task).copied(),
        _ => None,
    }
}

/// Tasks whose rows have all come and whose workers will not report their ends: they tried for as long as a dispatcher may be
/// away, which this one was for longer. Such a worker does not name the task in its heartbeats.
fn unreported_ends(state: &State, reports: &mut Reports, timers: &Timers, now: Duration) -> Vec<Update> {
    let mut waiting = BTreeMap::new();
    let mut updates = Vec::new();
    for iteration in state.iterations.values().filter(|i| i.failure.is_none()) {
        for task in iteration.tasks.values().filter(|t| !t.is_reported() && iteration.is_delivered(t)) {
            let Some(worker) = reports.workers.get(&task.worker) else { continue };
            if worker.tasks.contains(&task.id.0) {
                continue;
            }
            let since = reports.unreported_ends.get(&task.id).map_or(now, |since| *since);
            waiting.insert(task.id, since);
            // A heartbeat may have been under way when the task began, and a report when it ended.
            if worker.at.saturating_sub(since) >= timers.heartbeat.saturating_mul(UNREPORTED_HEARTBEATS) {
                let reason = format!("the worker of {} could not report its end", task.id);
                updates.push(Update::TaskLost { task: task.id, reason, emitted: None });
            }
        }
    }
    reports.unreported_ends = waiting;
    updates
}

fn apply(txn: &mut Txn<'_>, updates: Vec<Update>) {
    for update in updates {
        match &update {
            Update::WorkerLost { reason, .. } => tracing::warn!("{reason}"),
            Update::TaskTakenOver { reason, .. } => tracing::info!("{reason}"),
            Update::ClientGone { client, iteration, vanished, .. } => tracing::warn!(
                "{client} of {iteration} was silent for longer than the client timeout and is expelled; its user had \
                 taken {} rows, and the rest of its rows go to other readers",
                vanished.unwrap_or(0)
            ),
            _ => {}
        }
        txn.apply(update);
    }
}

/// If this process itself was paused (a suspended machine), its peers were not silent. The time since the last check, less such a
/// pause.
fn ignore_own_pause(reports: &mut Reports, timers: &Timers, now: Duration) -> Duration {
    let gap = reports.last_check.map_or(Duration::ZERO, |last| now.saturating_sub(last));
    let is_pause = gap > timers.check_every * 2 + timers.shortest_silence() / 2;
    if is_pause {
        reports.forgive(gap, now);
    }
    reports.last_check = Some(now);
    if is_pause { Duration::ZERO } else { gap }
}

fn silent_workers(
    state: &State,
    reports: &mut Reports,
    timers: &Timers,
    now: Duration,
    unix_ms: u64,
) -> Vec<Update> {
    let mut out = Vec::new();
    let memory_ms = u64::try_from(timers.lost_worker_retention.as_millis()).unwrap_or(u64::MAX);
    for worker in state.workers.values() {
        if let WorkerState::Lost { at_ms } = worker.state {
            if unix_ms.saturating_sub(at_ms) > memory_ms {
                out.push(Update::WorkerForgotten { worker: worker.id });
            }
            continue;
        }
        let report = reports.workers.entry(worker.id).or_default();
        if report.at.is_zero() {
            report.at = now;
        }
        let silent = now.saturating_sub(report.at);
        if silent > timers.worker_timeout {
            let reason = format!("{} was silent for {:.1} s", worker.describe(), silent.as_secs_f64());
            out.push(Update::WorkerLost { worker: worker.id, reason, at_ms: unix_ms, left: false });
        }
    }
    reports.workers.retain(|id, _| state.workers.get(id).is_some_and(|w| !w.is_lost()));
    out
}

/// Confirms a worker that registered while another one may have been dying, once every other worker has reported since or is
/// lost. The worker then takes the lost one's slot.
fn confirmed_workers(state: &State, reports: &Reports, has_list: bool) -> Vec<Update> {
    let last_report = |id: &WorkerId| reports.workers.get(id).map(|r| (r.registered, r.at));
    let unconfirmed = |w: &&Worker| w.unconfirmed && !w.is_lost();
    let others_known = |w: &&Worker| {
        let Some((since, _)) = last_report(&w.id) else { return false };
        let mut others = state.workers.values().filter(|o| o.id != w.id && !o.is_lost() && !o.unconfirmed);
        others.all(|o| last_report(&o.id).is_some_and(|(_, at)| at > since))
    };
    let Some(worker) = state.workers.values().filter(unconfirmed).find(others_known) else {
        return Vec::new();
    };
    let held =
        |slot: u32| state.workers.values().any(|w| w.id != worker.id && !w.is_lost() && w.slot == slot);
    let lost = state.workers.values().filter(|w| w.is_lost() && !held(w.slot)).map(|w| w.slot);
    // A configured position stays with its address.
    let slot = lost.min().filter(|_| !has_list).unwrap_or(worker.slot);
    vec![Update::WorkerConfirmed { worker: worker.id, slot }]
}

fn silent_clients(state: &State, reports: &mut Reports, timers: &Timers, now: Duration) -> Vec<Update> {
    let mut out = Vec::new();
    for iteration in state.iterations.values() {
        for client in iteration.own_members() {
            let report = reports.clients.entry((iteration.id, client)).or_default();
            if report.at.is_zero() {
                report.at = now;
            }
            if now.saturating_sub(report.at) > timers.client_timeout {
                out.push(acknowledgements::vanished(reports, iteration, client));
            }
        }
    }
    reports.clients.retain(|(iteration, client), _| state.is_member(*client, *iteration));
    reports.complete.retain(|(iteration, client)| state.is_member(*client, *iteration));
    reports.completed_splits.retain_present(state);
    out
}

/// Iterations without readers for a long time; at once if no other reader can come.
fn idle_iterations(state: &State, reports: &mut Reports, timers: &Timers, now: Duration) -> Vec<Update> {
    let mut out = Vec::new();
    for iteration in state.iterations.values() {
        if !iteration.members.is_empty() {
            reports.idle.remove(&iteration.id);
            continue;
        }
        let since = *reports.idle.entry(iteration.id).or_insert(now);
        let alone = state.jobs.get(&iteration.job).is_some_and(|j| j.spec.anonymous);
        if alone || now.saturating_sub(since) > timers.job_gc_timeout {
            out.push(Update::IterationDropped { iteration: iteration.id });
        }
    }
    out
}

impl LivenessChecks {
    /// Iterations whose clients wait for a worker: none that they would read from is there, or not the one whose shard is
    /// left.
    fn starved_iterations(&self, state: &State, reports: &mut Reports, now: Duration) -> Vec<Update> {
        let timers = &self.context.config.timers;
        let served = |i: &Iteration| state.workers.values().any(|w| !w.is_lost() && i.is_readable(w));
        // A Flight reader waits only for its own worker.
        let lacks_shards = |i: &Iteration| {
            i.target != TargetWorkers::Local
                && i.own_members().next().is_some()
                && !orphans(state, i).is_empty()
        };
        let starved =
            |i: &Iteration| i.is_running() && !i.members.is_empty() && (!served(i) || lacks_shards(i));
        reports.starved.retain(|id, _| state.iterations.get(id).is_some_and(starved));
        let mut out = Vec::new();
        for iteration in state.iterations.values().filter(|i| starved(i)) {
            let since = *reports.starved.entry(iteration.id).or_insert(now);
            if now.saturating_sub(since) <= timers.worker_wait {
                continue;
            }
            let error = match served(iteration) {
                true => lacks_workers(&self.context.config, iteration, &orphans(state, iteration)),
                false => no_worker(state, iteration, timers),
            };
            out.push(Update::IterationFailed { iteration: iteration.id, failure: (&error).into() });
        }
        out
    }
}

fn no_worker(state: &State, iteration: &Iteration, timers: &Timers) -> Error {
    let which = match state.workers.values().filter(|w| !w.is_lost()).count() {
        0 => "no worker has been there".to_string(),
        n => format!(
            "no worker that its readers may read from has been there (of {n} workers, each has the tag COLOCATED or \
             no port, and is in none of the readers' processes; target_workers ANY reads the former too)"
        ),
    };
    Error::unavailable(format!(
        "{}: {which} for {}; start one with `caju worker --dispatcher ADDRESS`",
        iteration.describe(),
        caju_types::format_duration(timers.worker_wait)
    ))
}
