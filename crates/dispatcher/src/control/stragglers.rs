//! Stragglers: tasks that hold the last splits of an epoch while other workers have nothing left to do.
//!
//! A task is a straggler if its worker is several times slower than the workers that are finished. Speeds are rows per second,
//! as workers report them; of workers that report none, splits per second. Splits that a job under `sharing: relaxed` skips take
//! no time, and do not count. The splits of a straggler go back to the feed and
//! from there to the idle workers, as soon as that ends the epoch earlier. Rows that readers have received of it stay with
//! them, as when a task is lost. A split is taken over once: if it is the split that is slow, nothing is gained by moving it
//! again.

use std::collections::BTreeSet;
use std::time::Duration;

use caju_types::WorkerId;

use super::reports::Reports;
use super::sharing;
use super::task_speeds::{TaskSpeed, has_finished};
use crate::config::Timers;
use crate::state::{FeedId, Iteration, Mode, State, Task, TaskState, Update, Worker};

/// Readers that have waited for less than this fraction of their time, and do not wait now, are what the epoch waits for: no task
/// of theirs is late.
const WAITING_READER: f64 = 0.2;

/// What taking splits over costs at least: readers say what they have, new tasks are opened, and sources read again.
const TAKE_OVER_COST: Duration = Duration::from_millis(200);

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
        reports.task_speeds.observe(iteration, now);
        out.extend(late_tasks(state, iteration, reports, timers.straggler_factor, now));
    }
    out
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
    let speed = |t: &Task| reports.task_speeds.of(t.id, iteration);
    let running = |t: &&Task| t.state == TaskState::Active && !t.leases.is_empty() && !has_finished(t);
    let busy: BTreeSet<WorkerId> = iteration.tasks.values().filter(running).map(|t| t.worker).collect();
    let is_idle = |w: &WorkerId| {
        state.workers.get(w).is_some_and(Worker::is_active)
            && !iteration.stragglers.contains(w)
            && !busy.contains(w)
    };
    // Before its worker's report it is not known how many splits such a task has skipped.
    let may_skip = sharing::is_relaxed(state, iteration);
    let finished: Vec<_> = iteration
        .tasks
        .values()
        .filter(|t| has_finished(t) && is_idle(&t.worker) && (t.reported || t.is_done() || !may_skip))
        .filter_map(speed)
        .collect();
    let Some(usual) = Usual::of(&finished, now) else { return Vec::new() };
    let idle_since = finished.iter().filter_map(|p| p.ended).max().unwrap_or(now);
    let idle = now.saturating_sub(idle_since);
    let mut out = Vec::new();
    for task in iteration.tasks.values().filter(running) {
        if task.leases.values().all(|l| l.taken_over) {
            continue;
        }
        let Some(speed) = speed(task) else { continue };
        let held = u32::try_from(task.leases.len()).unwrap_or(u32::MAX);
        if usual.is_late(speed, factor, now)
            && (idle >= usual.per_split || usual.pays(speed, (held, task.completed_rows), now))
        {
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
    fn is_late(&self, speed: &TaskSpeed, factor: u32, now: Duration) -> bool {
        if now.saturating_sub(speed.began) < self.per_split {
            return false;
        }
        match self.rows_per_s {
            Some(usual) if speed.rows > 0 => {
                let still = now.saturating_sub(speed.progress);
                usual > f64::from(factor) * speed.rows_per_s(now) || still > self.per_split * factor
            }
            _ => speed.per_split(now) > self.per_split * factor,
        }
    }

    /// Whether the finished workers would be through with the splits of a task in half of the time that it needs itself.
    /// `completed`: its rows of splits that it does not hold any more.
    fn pays(&self, speed: &TaskSpeed, (held, completed): (u32, u64), now: Duration) -> bool {
        if self.rows_per_s.is_none() {
            return false;
        }
        // Splits differ in size: half of one is the least that is left.
        let of_held = speed.rows.saturating_sub(completed) as f64;
        let left = (self.rows_per_split * f64::from(held) - of_held).max(self.rows_per_split / 2.0);
        let alone = left / speed.rows_per_s(now).max(1e-9);
        let each = held.div_ceil(self.workers.max(1));
        alone > 2.0 * (TAKE_OVER_COST + self.per_split * each).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn speed(splits: u32, rows: u64, progress: Duration) -> TaskSpeed {
        TaskSpeed { began: Duration::ZERO, ended: None, splits, rows, progress }
    }

    /// Two workers that took four seconds for four splits of 100 rows each, and the time of that.
    fn usual(rows: u64) -> (Usual, Duration) {
        let now = SECOND * 4;
        let ended = TaskSpeed { ended: Some(now), ..speed(4, rows, now) };
        (Usual::of(&[&ended, &ended], now).unwrap(), now)
    }

    #[test]
    fn a_worker_at_a_tenth_of_the_speed_is_late_at_once() {
        let (usual, now) = usual(400);
        let slow = speed(3, 40, now);
        assert!(
            usual.is_late(&slow, 3, now) && usual.pays(&slow, (3, 0), now),
            "26 s alone, 2 s for the others"
        );
        assert!(!usual.is_late(&slow, 11, now));
        assert!(!usual.pays(&speed(4, 390, now), (4, 0), now), "its last rows are about to come");
    }

    #[test]
    fn a_worker_like_the_others_is_not_late() {
        let (usual, now) = usual(400);
        assert!(!usual.is_late(&speed(4, 300, now), 3, now));
        assert!(!usual.is_late(&speed(3, 0, now), 3, now), "of one without rows its splits are counted");
        let still = speed(4, 390, now);
        assert!(!usual.is_late(&still, 3, now + SECOND * 3));
        assert!(usual.is_late(&still, 3, now + SECOND * 3 + SECOND / 10), "it stands still");
        let joined = TaskSpeed { began: now, ..speed(1, 0, now) };
        assert!(!usual.is_late(&joined, 3, now + SECOND / 2), "it has had no time for a split");
    }

    #[test]
    fn of_workers_that_report_no_rows_splits_are_counted() {
        let (usual, now) = usual(0);
        let slow = speed(1, 0, Duration::ZERO);
        assert!(
            usual.is_late(&slow, 3, now) && !usual.pays(&slow, (1, 0), now),
            "the others wait for a split's time"
        );
        assert!(!usual.is_late(&speed(2, 0, Duration::ZERO), 3, now));
    }
}
