//! Stragglers: tasks that hold the last splits of an epoch while other workers have nothing left to do.
//!
//! A task is a straggler if its worker takes several times as long for a split as the workers that are finished took, and these
//! have been idle for as long as a split takes them. Its splits go back to the feed and from there to the idle workers. Rows
//! that readers have received of it stay with them, as when a task is lost. A split is taken over once: if it is the split
//! that is slow, nothing is gained by moving it again.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::{IterationId, TaskId};

use super::reports::Reports;
use crate::config::Timers;
use crate::state::{FeedId, Iteration, Mode, State, Task, TaskState, Update};

/// Readers that wait for less than this fraction of their time are what the epoch waits for: a task of theirs is not late.
const WAITING_READER: f64 = 0.2;

/// How fast the tasks went through their splits.
#[derive(Debug, Default)]
pub(super) struct Paces {
    by_iteration: BTreeMap<IterationId, BTreeMap<TaskId, Pace>>,
}

#[derive(Debug, Clone, Copy)]
struct Pace {
    /// When it got its first split, by the monotonic clock.
    began: Duration,
    /// When it was first seen to have emitted everything.
    ended: Option<Duration>,
    /// The splits that it got.
    splits: u32,
}

impl Pace {
    /// The time that a split took; of a running task the least that it can be.
    fn per_split(&self, now: Duration) -> Duration {
        self.ended.unwrap_or(now).saturating_sub(self.began) / self.splits.max(1)
    }
}

impl Paces {
    /// A task got splits.
    pub(super) fn leased(&mut self, iteration: IterationId, task: TaskId, splits: usize, now: Duration) {
        let tasks = self.by_iteration.entry(iteration).or_default();
        let pace = tasks.entry(task).or_insert(Pace { began: now, ended: None, splits: 0 });
        pace.splits = pace.splits.saturating_add(u32::try_from(splits).unwrap_or(u32::MAX));
    }

    fn of(&self, task: TaskId, iteration: &Iteration) -> Option<&Pace> {
        self.by_iteration.get(&iteration.id)?.get(&task).filter(|p| p.splits > 0)
    }

    /// Looks at an iteration that is at its end: until then nobody asks.
    fn observe(&mut self, iteration: &Iteration, now: Duration) {
        let Some(tasks) = self.by_iteration.get_mut(&iteration.id) else { return };
        tasks.retain(|id, pace| {
            let Some(task) = iteration.tasks.get(id) else { return false };
            if task.is_over() && pace.ended.is_none() {
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
    let running = |t: &&Task| t.state == TaskState::Active && !t.leases.is_empty();
    let is_idle = |w: &caju_types::WorkerId| {
        state.workers.get(w).is_some_and(crate::state::Worker::is_active)
            && !iteration.stragglers.contains(w)
            && !iteration.tasks.values().filter(running).any(|t| t.worker == *w)
    };
    let finished: Vec<_> =
        iteration.tasks.values().filter(|t| t.is_over() && is_idle(&t.worker)).filter_map(pace).collect();
    let mut usual: Vec<Duration> = finished.iter().map(|p| p.per_split(now)).collect();
    usual.sort();
    let Some(usual) = usual.get(usual.len() / 2).copied() else { return Vec::new() };
    let idle_since = finished.iter().filter_map(|p| p.ended).max().unwrap_or(now);
    if now.saturating_sub(idle_since) < usual {
        return Vec::new();
    }
    let mut out = Vec::new();
    for task in iteration.tasks.values().filter(running) {
        // What a task keeps for the end of an epoch with consumers is not late.
        if task.tail.is_some() {
            continue;
        }
        let Some(per_split) = pace(task).map(|p| p.per_split(now)) else { continue };
        if per_split > usual * factor && !task.leases.values().all(|l| l.taken_over) {
            let reason = format!(
                "{} takes {:.2} s for a split, and the workers that are finished took {:.2} s: they take over its {} last \
                 splits",
                task.worker,
                per_split.as_secs_f64(),
                usual.as_secs_f64(),
                task.leases.len()
            );
            out.push(Update::TaskTakenOver { task: task.id, reason });
        }
    }
    out
}
