//! What workers and clients report of themselves. It is not in the journal: after a restart everybody counts as having
//! reported just now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caju_proto::v1::{StageStats, TaskServed, TunedSetting, WorkerUsage};
use caju_types::{ClientId, IterationId, TaskId, WorkerId};

use super::absent_consumers::AbsentConsumers;
use super::call_times::{CallTimes, Leaves, ReaderCall};
use super::completed_splits::CompletedSplits;
use super::ended_tasks::EndedTasks;
use super::holders::Holders;
use super::row_checksums::RowChecksums;
use crate::state::{Iteration, State, TaskState};

use super::served::Served;
use super::sharing::SharingIterations;
use super::task_speeds::TaskSpeeds;

/// Where every client waits for less than this fraction of its time, the consumer is the bottleneck.
const IDLE_WAIT_FRACTION: f64 = 0.05;

/// The last reports.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) workers: BTreeMap<WorkerId, WorkerReport>,
    pub(crate) clients: BTreeMap<(IterationId, ClientId), ClientReport>,
    /// Clients that joined this process, or have sent it everything that they had acknowledged before.
    pub(super) complete: BTreeSet<(IterationId, ClientId)>,
    /// Calls of clients so far.
    calls: u64,
    /// The readers that left their iterations.
    leaves: Leaves,
    /// Since when an iteration has no reader.
    pub(crate) idle: BTreeMap<IterationId, Duration>,
    /// Since when a running iteration has no worker.
    pub(crate) starved: BTreeMap<IterationId, Duration>,
    /// Since when an iteration waits for readers to come back after a dispatcher had lost its state.
    pub(crate) awaiting_states: BTreeMap<IterationId, Duration>,
    /// The consumers that iterations wait for, and for how long.
    pub(crate) absent_consumers: BTreeMap<IterationId, AbsentConsumers>,
    /// What the stages of iterations did, and when that was added up.
    stage_sums: BTreeMap<IterationId, (Duration, Vec<StageStats>)>,
    /// What ended tasks reported.
    pub(super) ended_tasks: EndedTasks,
    /// What each task gave out by the last report of its worker.
    pub(super) served: Served,
    /// How fast tasks went through their splits.
    pub(super) task_speeds: TaskSpeeds,
    /// The versions of iterations whose tasks were last compared with what was acknowledged of them.
    pub(super) compared: BTreeMap<IterationId, u64>,
    /// Which task has a split.
    pub(super) holders: Holders,
    /// Splits of running tasks of which users have taken every row.
    pub(super) completed_splits: CompletedSplits,
    /// The iterations that share rows.
    pub(super) sharing: SharingIterations,
    /// Checksums of rows, by iteration.
    pub(super) row_checksums: BTreeMap<IterationId, RowChecksums>,
    /// Since when ended tasks wait for the report of a worker that does not name them any more.
    pub(crate) unreported_ends: BTreeMap<TaskId, Duration>,
    /// The time of the last check for silence.
    pub(crate) last_check: Option<Duration>,
}

/// The last report of a worker.
#[derive(Debug, Default, Clone)]
pub(crate) struct WorkerReport {
    /// When, by the monotonic clock.
    pub(crate) at: Duration,
    /// What its stages did in the tasks that run there.
    pub(crate) stages: Vec<StageStats>,
    /// Those tasks.
    pub(crate) tasks: Vec<u64>,
    /// When it registered, by the monotonic clock.
    pub(crate) registered: Duration,
    /// When it reported its usage.
    pub(crate) usage_at: Duration,
    /// That, and what it had reported of its CPU threads, at the last sample of the loop that scales.
    pub(crate) threads_sampled: Option<(Duration, f64)>,
    /// Memory and caches of its process; none if it does not report them.
    pub(crate) usage: Option<WorkerUsage>,
    /// The numbers that it tunes.
    pub(crate) tuned: Vec<TunedSetting>,
}

/// The last report of a client.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ClientReport {
    /// When, by the monotonic clock.
    pub(crate) at: Duration,
    /// The fraction of time that its user waited for rows.
    pub(crate) wait_fraction: f64,
    /// Rows that it takes per second.
    pub(crate) rows_per_s: f64,
    /// Its calls. `at` also changes while a call waits here.
    calls: CallTimes,
    /// Elements that its user took.
    pub(crate) elements: u64,
    /// Rows of these.
    pub(crate) rows: u64,
    /// Bytes of these.
    pub(crate) bytes: u64,
    /// Time that its user waited for elements that other consumers did not have yet.
    pub(crate) consumer_wait: Duration,
    /// Rows that it has received and its user has not taken.
    pub(crate) rows_waiting: u64,
    /// Since when its user has not asked for rows, as of `at`.
    pub(crate) user_busy: Duration,
    /// The version of the iteration that it knows.
    pub(crate) seen_version: u64,
    /// It waits until all others know of it.
    awaits_notices: bool,
}

impl Reports {
    pub(crate) fn on_worker_call(&mut self, worker: WorkerId, now: Duration) {
        self.workers.entry(worker).or_default().at = now;
    }

    pub(crate) fn worker_registered(&mut self, worker: WorkerId, now: Duration) {
        let report = self.workers.entry(worker).or_default();
        (report.at, report.registered) = (now, now);
    }

    pub(crate) fn on_client_call(&mut self, iteration: IterationId, client: ClientId, now: Duration) {
        self.clients.entry((iteration, client)).or_default().at = now;
    }

    /// A call of a reader arrives.
    pub(super) fn record_call(&mut self, id: IterationId, client: ClientId, news: ReaderCall) {
        self.calls += 1;
        self.clients.entry((id, client)).or_default().calls.record(self.calls, news);
    }

    /// Whether a reader at its end does not wait for another one: since then that one has called, and its user has taken no
    /// row for `patience`, as of that call.
    pub(super) fn is_stalled(
        &self,
        id: IterationId,
        other: ClientId,
        client: ClientId,
        patience: Duration,
    ) -> bool {
        let calls = |c: ClientId| self.clients.get(&(id, c)).map(|report| &report.calls);
        calls(other).zip(calls(client)).is_some_and(|(other, client)| other.is_stalled(client, patience))
    }

    /// When a reader last said that its user had taken rows.
    pub(super) fn took_at(&self, id: IterationId, client: ClientId) -> Duration {
        self.clients.get(&(id, client)).map_or(Duration::ZERO, |c| c.calls.took_at)
    }

    /// Whether some reader of an iteration is at its end, and may wait for others.
    pub(super) fn has_reader_at_end(&self, id: IterationId) -> bool {
        let all = (id, ClientId(0))..=(id, ClientId(u64::MAX));
        self.clients.range(all).any(|(_, c)| c.calls.is_at_end())
    }

    /// A reader of an iteration leaves it, whose user had taken this number of elements.
    pub(super) fn record_leave(&mut self, iteration: IterationId, elements: u64) {
        self.calls += 1;
        self.leaves.record(iteration, self.calls, elements);
    }

    /// Elements that each consumer of an iteration has taken. At its end all have equally many, and those that have left took them all.
    pub(super) fn taken_by_all(&self, iteration: &Iteration) -> u64 {
        let taken = |client| self.clients.get(&(iteration.id, client)).map_or(0, |r| r.elements);
        let of_all = iteration.members.keys().map(|client| taken(*client)).min();
        of_all.unwrap_or_else(|| self.leaves.most_elements(iteration.id))
    }

    /// The number of the last call with which a reader left an iteration; 0 before the first one.
    pub(super) fn last_leave(&self, iteration: IterationId) -> u64 {
        self.leaves.last_call(iteration)
    }

    /// The number of the last call of a reader; 0 while it has not called.
    pub(super) fn last_call(&self, iteration: IterationId, client: ClientId) -> u64 {
        self.clients.get(&(iteration, client)).map_or(0, |c| c.calls.last)
    }

    /// Notes what a reader knows of its iteration, and how many elements its user took. Whether some reader may wait for
    /// what it knows.
    pub(super) fn record_seen(
        &mut self,
        iteration: IterationId,
        client: ClientId,
        version: u64,
        elements: u64,
        awaits_notices: bool,
    ) -> bool {
        let known = self.clients.entry((iteration, client)).or_default();
        // A call that waits here may be an older one.
        known.elements = known.elements.max(elements);
        let is_news = known.seen_version < version;
        (known.seen_version, known.awaits_notices) = (version, awaits_notices);
        let all = (iteration, ClientId(0))..=(iteration, ClientId(u64::MAX));
        is_news && self.clients.range(all).any(|(_, c)| c.awaits_notices)
    }

    /// A worker says what its tasks have given out.
    pub(super) fn on_served(
        &mut self,
        state: &State,
        worker: WorkerId,
        served: &[TaskServed],
        now: Duration,
    ) {
        for (iteration, report) in self.served.on_reports(state, worker, served) {
            self.task_speeds.emitted(iteration, TaskId(report.task_id), report.rows, now);
        }
    }

    /// Moves all reports, and what is waited for, later by the given time: the dispatcher itself stood still. `now` is its end.
    pub(crate) fn forgive(&mut self, gap: Duration, now: Duration) {
        let later = |at: &mut Duration| *at = at.saturating_add(gap).min(now);
        self.workers.values_mut().for_each(|w| later(&mut w.at));
        self.clients.values_mut().for_each(|c| later(&mut c.at));
        self.unreported_ends.values_mut().for_each(later);
        for since in [&mut self.idle, &mut self.starved, &mut self.awaiting_states] {
            since.values_mut().for_each(later);
        }
    }

    /// Drops what belongs to a dropped iteration.
    pub(crate) fn forget(&mut self, iteration: IterationId) {
        self.clients.retain(|(i, _), _| *i != iteration);
        self.complete.retain(|(i, _)| *i != iteration);
        self.leaves.forget(iteration);
        self.idle.remove(&iteration);
        self.starved.remove(&iteration);
        self.stage_sums.remove(&iteration);
        self.ended_tasks.forget(iteration);
        self.row_checksums.remove(&iteration);
        self.compared.remove(&iteration);
        self.holders.forget(iteration);
        self.completed_splits.forget(iteration);
        self.task_speeds.forget(iteration);
        self.served.forget(iteration);
        self.sharing.forget(iteration);
    }

    /// What the stages of an iteration did, added up within the last interval of heartbeats: all clients of the iteration ask in
    /// each, and adding up looks at every worker.
    pub(super) fn recent_stages(
        &mut self,
        iteration: &Iteration,
        now: Duration,
        heartbeat: Duration,
    ) -> Vec<StageStats> {
        let known = self.stage_sums.get(&iteration.id).filter(|(at, _)| now.saturating_sub(*at) < heartbeat);
        if let Some((_, sum)) = known {
            return sum.clone();
        }
        let sum = self.stages(iteration);
        self.stage_sums.insert(iteration.id, (now, sum.clone()));
        sum
    }

    /// What the stages of an iteration did: in ended tasks by their final reports, in running ones by
    /// the heartbeat of their worker, as long as it runs tasks of this iteration alone.
    pub(super) fn stages(&self, iteration: &Iteration) -> Vec<StageStats> {
        let mut sum = self.ended_tasks.stages(iteration.id);
        for report in self.workers.values() {
            let ours = |t: &u64| iteration.tasks.contains_key(&TaskId(*t));
            let active =
                |t: &u64| iteration.tasks.get(&TaskId(*t)).is_some_and(|t| t.state == TaskState::Active);
            if report.tasks.iter().all(ours) && report.tasks.iter().any(active) {
                caju_proto::add_stages(&mut sum, &report.stages);
            }
        }
        sum
    }

    /// Whether a reader of the iteration has waited for rows for at least this fraction of its time, or waits for some now. At the
    /// end of a long epoch that hardly waited before, the fraction says nothing.
    pub(super) fn awaits_rows(&self, iteration: &Iteration, fraction: f64) -> bool {
        let all = (iteration.id, ClientId(0))..=(iteration.id, ClientId(u64::MAX));
        let waits_now = |c: &ClientReport| c.rows > 0 && c.rows_waiting == 0 && c.user_busy.is_zero();
        self.clients.range(all).any(|(_, c)| c.wait_fraction >= fraction || waits_now(c))
    }

    /// The consumer, if it hardly ever waits; else the stage that works most.
    pub(super) fn bottleneck(&self, iteration: &Iteration, stages: &[StageStats]) -> String {
        let clients = self.clients.iter().filter(|((i, _), _)| *i == iteration.id);
        let waits: Vec<f64> = clients.map(|(_, c)| c.wait_fraction).collect();
        let busiest = stages.iter().max_by(|a, b| a.busy_s.total_cmp(&b.busy_s));
        match busiest {
            Some(_) if !waits.is_empty() && waits.iter().all(|w| *w < IDLE_WAIT_FRACTION) => {
                "consumer".to_string()
            }
            Some(stage) => format!("stage:{}", stage.name),
            None => String::new(),
        }
    }
}
