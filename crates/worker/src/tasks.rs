//! The tasks of a worker: those that start or run, and those that ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use caju_runtime::{Condition, LockRank, OrderedMutex};
use caju_types::{Result, Secret, TaskId};
use tokio::sync::OnceCell;

use crate::running::RunningTask;

/// The most ended tasks that are remembered for late readers. One takes about 100 bytes.
const MAX_PAST: usize = 4096;

/// The tasks of a worker.
pub(crate) struct TaskTable {
    present: OrderedMutex<HashMap<TaskId, Arc<Slot>>>,
    past: OrderedMutex<VecDeque<Past>>,
    changed: Condition,
}

impl Default for TaskTable {
    fn default() -> Self {
        Self {
            present: OrderedMutex::new(LockRank::leaf("the present tasks"), HashMap::new()),
            past: OrderedMutex::new(LockRank::leaf("the past tasks"), VecDeque::new()),
            changed: Condition::default(),
        }
    }
}

/// A task that has ended.
struct Past {
    id: TaskId,
    /// Distinguishes it from a task of another dispatcher with the same identifier.
    secret: Option<Secret>,
    result: Result<()>,
}

/// A task that runs or is being started.
#[derive(Default)]
struct Slot {
    running: OnceCell<Arc<RunningTask>>,
}

/// The entry of a task that a reader wants. Dropped before the task runs, by a failure or because its reader disconnected,
/// it removes the entry.
pub(crate) struct Starting<'a> {
    table: &'a TaskTable,
    id: TaskId,
    slot: Arc<Slot>,
}

impl Starting<'_> {
    /// The task, which `start` starts unless it runs or is being started.
    pub(crate) async fn get_or_start(
        &self,
        start: impl Future<Output = Result<Arc<RunningTask>>>,
    ) -> Result<&Arc<RunningTask>> {
        self.slot.running.get_or_try_init(|| start).await
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut present = self.table.present.lock();
        // The table and this reader hold it; a third holder is starting the task now.
        if self.slot.running.get().is_none() && Arc::strong_count(&self.slot) <= 2 {
            present.remove(&self.id);
            self.table.changed.notify_all();
        }
    }
}

impl TaskTable {
    /// How an ended task ended, if its secret is one that the reader may know. The latest task of an identifier comes first.
    pub(crate) fn past(&self, id: TaskId, may_read: impl Fn(Option<&Secret>) -> bool) -> Option<Result<()>> {
        let past = self.past.lock();
        let found = past.iter().rev().find(|past| past.id == id && may_read(past.secret.as_ref()))?;
        Some(found.result.clone())
    }

    /// The entry of a task. `may_start` is asked before a new one is made.
    ///
    /// # Errors
    /// That of `may_start`.
    pub(crate) fn enter(&self, id: TaskId, may_start: impl FnOnce() -> Result<()>) -> Result<Starting<'_>> {
        let mut present = self.present.lock();
        let slot = match present.get(&id) {
            Some(slot) => Arc::clone(slot),
            None => {
                may_start()?;
                Arc::clone(present.entry(id).or_default())
            }
        };
        Ok(Starting { table: self, id, slot })
    }

    /// Whether a task runs or is being started.
    pub(crate) fn is_present(&self, id: TaskId) -> bool {
        self.present.lock().contains_key(&id)
    }

    /// A task that runs.
    pub(crate) fn get(&self, id: TaskId) -> Option<Arc<RunningTask>> {
        self.present.lock().get(&id)?.running.get().cloned()
    }

    /// The tasks that run, by their identifiers.
    pub(crate) fn running(&self) -> Vec<Arc<RunningTask>> {
        let present = self.present.lock();
        let mut running: Vec<_> = present.values().filter_map(|s| s.running.get().cloned()).collect();
        running.sort_by_key(|t| t.id);
        running
    }

    /// Moves a task to those that ended.
    pub(crate) fn end(&self, id: TaskId, result: Result<()>) {
        let secret = self.get(id).and_then(|task| task.secret);
        let mut past = self.past.lock();
        past.push_back(Past { id, secret, result });
        if past.len() > MAX_PAST {
            past.pop_front();
        }
        drop(past);
        // Dropped after the lock is released: a task that is dropped takes locks of its own.
        let ended = self.present.lock().remove(&id);
        self.changed.notify_all();
        drop(ended);
    }

    /// Wakes those who wait for a condition that does not depend on the tasks alone.
    pub(crate) fn notify_all(&self) {
        self.changed.notify_all();
    }

    /// Waits until a condition holds that [`TaskTable::notify_all`] or the end of a task may make true.
    pub(crate) async fn wait_until(&self, condition: impl Fn() -> bool) {
        self.changed.wait_until(condition).await;
    }

    /// Waits until no task is left.
    pub(crate) async fn idle(&self) {
        self.wait_until(|| self.present.lock().is_empty()).await;
    }
}
