//! What tasks gave to their readers, as their workers report it with heartbeats and at the end of a task.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use caju_proto::v1::{SharedUse, TaskServed};
use caju_types::{IterationId, TaskId, WorkerId};

use crate::state::{Iteration, Job, SharedCounts, State, Worker};

/// The last report of each task of the iterations that the dispatcher knows.
#[derive(Debug, Default)]
pub(super) struct Served {
    tasks: BTreeMap<(IterationId, TaskId), Report>,
    /// Tasks whose report is that of their end. A heartbeat that was sent before may arrive after it.
    ended: BTreeSet<(IterationId, TaskId)>,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    worker: WorkerId,
    /// The worker runs in the process of a reader. The dispatcher may forget the worker before its iterations.
    is_in_reader: bool,
    served: TaskServed,
    /// The first report with rows. Before it the task may have loaded what its functions need, and how many rows were on their way is
    /// not known.
    began: Option<Computed>,
}

/// Rows that were computed, and the seconds in which the worker worked.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Computed {
    pub(super) rows: u64,
    pub(super) busy_s: f64,
}

impl Computed {
    fn of(served: &TaskServed) -> Self {
        // Workers of earlier versions report no `busy_rows`.
        let rows = if served.busy_rows > 0 { served.busy_rows } else { served.rows };
        Self { rows, busy_s: served.busy_s }
    }
}

/// What a worker gave out for an iteration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServedByWorker {
    pub(super) is_in_reader: bool,
    pub(super) served: TaskServed,
    /// What its tasks computed since their first reports with rows; none if there are no such reports.
    pub(super) computed: Option<Computed>,
}

impl Served {
    /// Takes a worker's reports of its tasks, and returns them with their iterations. Reports of tasks that are not its own are left out.
    pub(super) fn on_reports(
        &mut self,
        state: &State,
        worker: WorkerId,
        reports: &[TaskServed],
    ) -> Vec<(IterationId, TaskServed)> {
        let mut own = Vec::new();
        let is_in_reader = state.workers.get(&worker).is_some_and(Worker::is_in_reader);
        for report in reports {
            let id = TaskId(report.task_id);
            let Some((iteration, task)) = state.task(id) else { continue };
            if task.worker == worker && !self.ended.contains(&(iteration.id, id)) {
                let before = self.tasks.get(&(iteration.id, id)).and_then(|known| known.began);
                let now = Computed::of(report);
                let began = before.or((now.rows > 0).then_some(now));
                self.tasks
                    .insert((iteration.id, id), Report { worker, is_in_reader, served: *report, began });
                own.push((iteration.id, *report));
            }
        }
        own
    }

    /// The task has ended with its last report.
    pub(super) fn on_end(&mut self, iteration: IterationId, task: TaskId) {
        self.ended.insert((iteration, task));
    }

    /// Drops the reports of an iteration.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.tasks.extract_if(tasks_of(iteration), |_, _| true).for_each(drop);
        self.ended.extract_if(tasks_of(iteration), |_| true).for_each(drop);
    }

    /// The reports of an iteration. Those of others are not looked at: a job may have thousands of epochs.
    fn reports(&self, iteration: IterationId) -> impl Iterator<Item = (TaskId, &Report)> {
        self.tasks.range(tasks_of(iteration)).map(|((_, task), report)| (*task, report))
    }

    /// What all tasks of an iteration gave out.
    pub(super) fn of_iteration(&self, iteration: IterationId) -> TaskServed {
        sum(self.reports(iteration).map(|(_, r)| &r.served))
    }

    /// What the tasks of a job that shares computed, and what they read from the windows of their workers: what ended ones reported,
    /// which is in the journal, and what the others have reported so far. None if they shared nothing.
    pub(super) fn shared(&self, iteration: &Iteration, job: &Job) -> Option<SharedUse> {
        if !job.spec.sharing.is_shared() {
            return None;
        }
        let is_reported = |task: &TaskId| {
            self.ended.contains(&(iteration.id, *task))
                || iteration.tasks.get(task).is_some_and(|t| t.reported)
        };
        let own = self.reports(iteration.id).filter(|(task, _)| !is_reported(task));
        let unreported_tasks = iteration.unreported_tasks;
        let unreported =
            (unreported_tasks > 0).then(|| SharedUse { unreported_tasks, ..SharedUse::default() });
        let ended = iteration.shared.map(shared_use);
        own.filter_map(|(_, report)| report.served.shared).chain(ended).chain(unreported).reduce(both)
    }

    /// What each worker gave out for an iteration.
    pub(super) fn by_worker(&self, iteration: IterationId) -> BTreeMap<WorkerId, ServedByWorker> {
        let mut all: BTreeMap<WorkerId, ServedByWorker> = BTreeMap::new();
        for (_, report) in self.reports(iteration) {
            let of = all.entry(report.worker).or_default();
            of.is_in_reader = report.is_in_reader;
            of.served = sum([&of.served, &report.served].into_iter());
            if let Some(began) = report.began {
                let now = Computed::of(&report.served);
                let sum = of.computed.get_or_insert_default();
                sum.rows = sum.rows.saturating_add(now.rows.saturating_sub(began.rows));
                sum.busy_s += (now.busy_s - began.busy_s).max(0.0);
            }
        }
        all
    }

    /// What all tasks of each worker gave out.
    pub(super) fn of_workers(&self) -> BTreeMap<WorkerId, TaskServed> {
        let mut all: BTreeMap<WorkerId, TaskServed> = BTreeMap::new();
        for report in self.tasks.values() {
            let of = all.entry(report.worker).or_default();
            *of = sum([&*of, &report.served].into_iter());
        }
        all
    }

    /// The last report of a task.
    pub(super) fn of_task(&self, iteration: IterationId, task: TaskId) -> Option<TaskServed> {
        self.tasks.get(&(iteration, task)).map(|r| r.served)
    }
}

fn tasks_of(iteration: IterationId) -> RangeInclusive<(IterationId, TaskId)> {
    (iteration, TaskId(u64::MIN))..=(iteration, TaskId(u64::MAX))
}

fn sum<'a>(all: impl Iterator<Item = &'a TaskServed>) -> TaskServed {
    all.fold(TaskServed::default(), |sum, one| TaskServed {
        task_id: 0,
        elements: sum.elements.saturating_add(one.elements),
        rows: sum.rows.saturating_add(one.rows),
        bytes: sum.bytes.saturating_add(one.bytes),
        source_opens: sum.source_opens.saturating_add(one.source_opens),
        buffered_bytes: sum.buffered_bytes.saturating_add(one.buffered_bytes),
        busy_s: sum.busy_s + one.busy_s,
        busy_rows: sum.busy_rows.saturating_add(Computed::of(one).rows),
        mapped_bytes: sum.mapped_bytes.saturating_add(one.mapped_bytes),
        sent_bytes: sum.sent_bytes.saturating_add(one.sent_bytes),
        shared: match (sum.shared, one.shared) {
            (Some(sum), Some(one)) => Some(both(sum, one)),
            (sum, one) => sum.or(one),
        },
    })
}

fn both(sum: SharedUse, one: SharedUse) -> SharedUse {
    SharedUse {
        computed_rows: sum.computed_rows.saturating_add(one.computed_rows),
        window_rows: sum.window_rows.saturating_add(one.window_rows),
        window_hits: sum.window_hits.saturating_add(one.window_hits),
        read_back: sum.read_back.saturating_add(one.read_back),
        taken_over: sum.taken_over.saturating_add(one.taken_over),
        skipped_rows: sum.skipped_rows.saturating_add(one.skipped_rows),
        reused_bytes: sum.reused_bytes.saturating_add(one.reused_bytes),
        unreported_tasks: sum.unreported_tasks.saturating_add(one.unreported_tasks),
    }
}

/// What the journal remembers of an ended task.
pub(super) fn shared_counts(shared: SharedUse) -> SharedCounts {
    SharedCounts {
        computed_rows: shared.computed_rows,
        window_rows: shared.window_rows,
        window_hits: shared.window_hits,
        taken_over: shared.taken_over,
        skipped_rows: shared.skipped_rows,
        reused_bytes: shared.reused_bytes,
        read_back: shared.read_back,
    }
}

fn shared_use(counts: SharedCounts) -> SharedUse {
    SharedUse {
        computed_rows: counts.computed_rows,
        window_rows: counts.window_rows,
        window_hits: counts.window_hits,
        taken_over: counts.taken_over,
        skipped_rows: counts.skipped_rows,
        reused_bytes: counts.reused_bytes,
        read_back: counts.read_back,
        unreported_tasks: 0,
    }
}
