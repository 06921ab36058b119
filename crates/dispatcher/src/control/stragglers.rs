//! Stragglers: tasks that hold the last splits of an epoch while other workers have nothing left to do.
//!
//! A task is a straggler if its worker is several times slower than the workers that are finished. Speeds are rows per second,
//! as workers report them; of workers that report none, splits per second. The splits of a straggler go back to the feed and
//! from there to the idle workers, as soon as that ends the epoch earlier. Rows that readers have received of it stay with
//! them, as when a task is lost. A split is taken over once: if it is the split that is slow, nothing is gained by moving it
//! again.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::{IterationId, TaskId};

use super::reports::Reports;
use crate::config::Timers;
use crate::state::{FeedId, Iteration, Mode, State, Task, TaskState, Update};

/// Readers that wait for less than this fraction of their time are what the epoch waits for: a task of theirs is not late.
const WAITING_READER: f64 = 0.2;

/// What taking splits over costs at least: readers say what they have, new tasks are opened, and sources read again.
const TAKE_OVER_COST: Duration = Duration::from_millis(200);

/// How fast the tasks went through their splits.
#[derive(Debug, Default)]
pub(super) struct Paces {
    by_iteration: BTreeMap<IterationId, BTreeMap<TaskId, TaskSpeed>>,
}

#[derive(Debug, Clone, Copy)]
struct TaskSpeed {
    /// When it got its first split, by the monotonic clock.
    began: Duration,
    /// When it was first seen to have emitted everything.
    ended: Option<Duration>,
    /// The splits that it got.
    splits: u32,
    /// Rows that it has emitted by its worker's last report, and when that count was first reported.
    rows: u64,
    progress: Duration,
}

impl TaskSpeed {
    fn begun(now: Duration) -> Self {
        Self { began: now, ended: None, splits: 0, rows: 0, progress: now }
    }

    fn busy(&self, now: Duration) -> Duration {
        self.ended.unwrap_or(now).saturating_sub(self.began)
    }

    /// The time that a split took; of a running task the least that it can be.
    fn per_split(&self, now: Duration) -> Duration {
        self.busy(now) / self.splits.max(1)
    }

    fn rows_per_s(&self, now: Duration) -> f64 {
        self.rows as f64 / self.busy(now).as_secs_f64().max(1e-3)
    }
}

impl Paces {
    /// A task got splits.
    pub(super) fn leased(&mut self, iteration: IterationId, task: TaskId, splits: usize, now: Duration) {
        let tasks = self.by_iteration.entry(iteration).or_default();
        let pace = tasks.entry(task).or_insert(TaskSpeed::begun(now));
        pace.splits = pace.splits.saturating_add(u32::try_from(splits).unwrap_or(u32::MAX));
    }

    /// A worker reports how many rows a task has emitted.
    pub(super) fn emitted(&mut self, iteration: IterationId, task: TaskId, rows: u64, now: Duration) {
        if let Some(pace) = self.by_iteration.get_mut(&iteration).and_then(|tasks| tasks.get_mut(&task))
            && rows > pace.rows
        {
            (pace.rows, pace.progress) = (rows, now);
        }
    }

    fn of(&self, task: TaskId, iteration: &Iteration) -> Option<&TaskSpeed> {
        self.by_iteration.get(&iteration.id)?.get(&task).filter(|p| p.splits > 0)
    }

    /// Looks at an iteration that is at its end: until then nobody asks.
    fn observe(&mut self, iteration: &Iteration, now: Duration) {
        let Some(tasks) = self.by_iteration.get_mut(&iteration.id) else { return };
        tasks.retain(|id, pace| {
            let Some(task) = iteration.tasks.get(id) else { return false };
            if has_finished(task) && pace.ended.is_none() {
                pace.ended = Some(now);
            }
            !task.is_lost()
        });
    }

    /// An iteration is gone.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.by_iteration.remove(&iteration);
    }
}

/// The tasks to take over now. Times per task are known since this process was started.
pub(super) fn take_overs(
    state: &State,
    reports: &mut Reports,
    timers: &Timers,
    now: Duration,
) -> Vec<Update> {
    if timers.straggler_factor == 0 {
        return Vec::new();
    }
    let mut out = Vec::new();
    for iteration in state.iterations.values().filter(|i| is_at_its_end(i)) {
        reports.paces.observe(iteration, now);
        out.extend(late_tasks(state, iteration, reports, timers.straggler_factor, now));
    }
    out
}

/// Whether a task has no work any more. One that keeps what is left at its end, for equally many elements of all consumers,
/// waits for the other tasks.
fn has_finished(task: &Task) -> bool {
    task.is_over() || task.tail.is_some()
}

/// Whether all splits are with tasks, and may move from one to another.
fn is_at_its_end(iteration: &Iteration) -> bool {
    let feed = iteration.feeds.get(&FeedId::SHARED);
    iteration.mode == Mode::Dynamic
        && !iteration.exclusive
        && !iteration.flight_readers
        && iteration.is_running()
        && feed.is_some_and(|f| f.exhausted && f.pending.is_empty())
}

fn late_tasks(
    state: &State,
    iteration: &Iteration,
    reports: &Reports,
    factor: u32,
    now: Duration,
) -> Vec<Update> {
    if !reports.awaits_rows(iteration, WAITING_READER) {
        return Vec::new();
    }
    let pace = |t: &Task| reports.paces.of(t.id, iteration);
    let running = |t: &&Task| t.state == TaskState::Active && !t.leases.is_empty() && !has_finished(t);
    let is_idle = |w: &caju_types::WorkerId| {
        state.workers.get(w).is_some_and(crate::state::Worker::is_active)
            && !iteration.stragglers.contains(w)
            && !iteration.tasks.values().filter(running).any(|t| t.worker == *w)
    };
    let finished: Vec<_> =
        iteration.tasks.values().filter(|t| has_finished(t) && is_idle(&t.worker)).filter_map(pace).collect();
    let Some(usual) = Usual::of(&finished, now) else { return Vec::new() };
    let idle_since = finished.iter().filter_map(|p| p.ended).max().unwrap_or(now);
    let idle = now.saturating_sub(idle_since);
    let mut out = Vec::new();
    for task in iteration.tasks.values().filter(running) {
        if task.leases.values().all(|l| l.taken_over) {
            continue;
        }
        let Some(pace) = pace(task) else { continue };
        let held = u32::try_from(task.leases.len()).unwrap_or(u32::MAX);
        if usual.is_late(pace, factor, now) && (idle >= usual.per_split || usual.pays(pace, held, now)) {
            let reason = format!(
                "{} is at least {factor} times slower than the workers that are finished, which took {:.2} s for a split: they \
                 take over its {held} splits",
                task.worker,
                usual.per_split.as_secs_f64(),
            );
            out.push(Update::TaskTakenOver { task: task.id, reason });
        }
    }
    out
}

/// How fast the workers are that are finished.
#[derive(Debug)]
struct Usual {
    workers: u32,
    per_split: Duration,
    /// None if some of them do not report rows.
    rows_per_s: Option<f64>,
    rows_per_split: f64,
}

impl Usual {
    fn of(finished: &[&TaskSpeed], now: Duration) -> Option<Self> {
        let mut per_split: Vec<Duration> = finished.iter().map(|p| p.per_split(now)).collect();
        per_split.sort();
        let mut rates: Vec<f64> = finished.iter().map(|p| p.rows_per_s(now)).collect();
        rates.sort_by(f64::total_cmp);
        let (rows, splits) =
            finished.iter().fold((0, 0), |(rows, splits), p| (rows + p.rows, splits + u64::from(p.splits)));
        Some(Self {
            workers: u32::try_from(finished.len()).unwrap_or(u32::MAX),
            per_split: per_split.get(per_split.len() / 2).copied()?,
            rows_per_s: rates.get(rates.len() / 2).copied().filter(|_| rates.iter().all(|r| *r > 0.0)),
            rows_per_split: rows as f64 / splits.max(1) as f64,
        })
    }

    /// Whether a task's worker is slower by more than the factor, or stands still for longer than a split should take.
    fn is_late(&self, pace: &TaskSpeed, factor: u32, now: Duration) -> bool {
        if now.saturating_sub(pace.began) < self.per_split {
            return false;
        }
        match self.rows_per_s {
            Some(usual) if pace.rows > 0 => {
                let still = now.saturating_sub(pace.progress);
                usual > f64::from(factor) * pace.rows_per_s(now) || still > self.per_split * factor
            }
            _ => pace.per_split(now) > self.per_split * factor,
        }
    }

    /// Whether the finished workers would be through with the splits of a task in half of the time that it needs itself.
    fn pays(&self, pace: &TaskSpeed, held: u32, now: Duration) -> bool {
        if self.rows_per_s.is_none() {
            return false;
        }
        // Splits differ in size: half of one is the least that is left.
        let left = (self.rows_per_split * f64::from(held) - pace.rows as f64).max(self.rows_per_split / 2.0);
        let alone = left / pace.rows_per_s(now).max(1e-9);
        let each = held.div_ceil(self.workers.max(1));
        alone > 2.0 * (TAKE_OVER_COST + self.per_split * each).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(splits: u32, rows: u64, progress: Duration) -> TaskSpeed {
        TaskSpeed { began: Duration::ZERO, ended: None, splits, rows, progress }
    }

    /// Two workers that took four seconds for four splits of 100 rows each, and the time of that.
    fn usual(rows: u64) -> (Usual, Duration) {
        let now = SECOND * 4;
        let ended = TaskSpeed { ended: Some(now), ..pace(4, rows, now) };
        (Usual::of(&[&ended, &ended], now).unwrap(), now)
    }

    #[test]
    fn a_worker_at_a_tenth_of_the_speed_is_late_at_once() {
        let (usual, now) = usual(400);
        let slow = pace(3, 40, now);
        assert!(usual.is_late(&slow, 3, now) && usual.pays(&slow, 3, now), "26 s alone, 2 s for the others");
        assert!(!usual.is_late(&slow, 11, now));
        assert!(!usual.pays(&pace(4, 390, now), 4, now), "its last rows are about to come");
    }

    #[test]
    fn a_worker_like_the_others_is_not_late() {
        let (usual, now) = usual(400);
        assert!(!usual.is_late(&pace(4, 300, now), 3, now));
        assert!(!usual.is_late(&pace(3, 0, now), 3, now), "of one without rows its splits are counted");
        let still = pace(4, 390, now);
        assert!(!usual.is_late(&still, 3, now + SECOND * 3));
        assert!(usual.is_late(&still, 3, now + SECOND * 3 + SECOND / 10), "it stands still");
        let joined = TaskSpeed { began: now, ..pace(1, 0, now) };
        assert!(!usual.is_late(&joined, 3, now + SECOND / 2), "it has had no time for a split");
    }

    #[test]
    fn of_workers_that_report_no_rows_splits_are_counted() {
        let (usual, now) = usual(0);
        let slow = pace(1, 0, Duration::ZERO);
        assert!(
            usual.is_late(&slow, 3, now) && !usual.pays(&slow, 1, now),
            "the others wait for a split's time"
        );
        assert!(!usual.is_late(&pace(2, 0, Duration::ZERO), 3, now));
    }
}
