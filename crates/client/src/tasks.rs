//! The tasks of an iteration, as one reader reads them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use caju_proto::v1;
use caju_runtime::{Task, Tasks, caught};
use caju_types::{ClientId, Result, TaskId};
use tokio::sync::mpsc;

use crate::config::ReaderEvent;
use crate::deadlines::Idle;
use crate::shared::{Item, Shared};
use crate::target::Target;
use crate::task::{Counts, Outcome, read_task};

/// The most outcomes that wait for the session: one of each task, and of as many tasks as there are workers.
const MAX_OUTCOMES: usize = 64;

/// Tasks that are being read, and what is still to be reported of the others.
pub(crate) struct TaskSet {
    shared: Arc<Shared>,
    client: ClientId,
    consumer: Option<u32>,
    connections: Tasks,
    open: HashMap<TaskId, Open>,
    resolved: BTreeMap<TaskId, Resolved>,
    /// Tasks that are read to their end and not reported yet, with what their workers said to have emitted.
    ended: BTreeMap<TaskId, Option<Counts>>,
    /// Tasks that were read to their end whose rows the user has not all taken, with the rows that had arrived by then.
    untaken: BTreeMap<TaskId, u64>,
    /// Tasks that are lost and not reported yet, with the reason.
    lost: BTreeMap<TaskId, String>,
    outcomes: Outcomes,
    pub(crate) idle: Idle,
}

type Outcomes = (mpsc::Sender<(TaskId, Outcome)>, mpsc::Receiver<(TaskId, Outcome)>);

struct Open {
    address: String,
    slot: u32,
    group: Tasks,
    handle: Task<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolved {
    Ended,
    Lost,
}

/// What a heartbeat says of tasks.
pub(crate) struct TaskReport {
    /// Tasks that were read to their end.
    pub(crate) ended: Vec<u64>,
    /// What their workers said to have emitted.
    pub(crate) counts: Vec<v1::TaskCounts>,
    pub(crate) lost: Vec<v1::LostTask>,
    /// Ended tasks of which the user has taken every row.
    pub(crate) taken: Vec<u64>,
}

impl TaskSet {
    pub(crate) fn new(shared: Arc<Shared>, client: ClientId, consumer: Option<u32>) -> Self {
        Self {
            shared,
            client,
            consumer,
            connections: Tasks::new(),
            open: HashMap::new(),
            resolved: BTreeMap::new(),
            ended: BTreeMap::new(),
            untaken: BTreeMap::new(),
            lost: BTreeMap::new(),
            outcomes: mpsc::channel(MAX_OUTCOMES),
            idle: Idle::from_now(),
        }
    }

    /// Whether some task is being read.
    pub(crate) fn is_reading(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether nothing is being read, and every end and every loss was reported.
    pub(crate) fn is_reported(&self) -> bool {
        self.open.is_empty() && self.ended.is_empty() && self.lost.is_empty()
    }

    /// How reading the next task ended.
    pub(crate) async fn next_outcome(&mut self) -> Option<(TaskId, Outcome)> {
        self.outcomes.1.recv().await
    }

    /// How reading a task ended, if some has.
    pub(crate) fn try_next_outcome(&mut self) -> Option<(TaskId, Outcome)> {
        self.outcomes.1.try_recv().ok()
    }

    /// What is still to be reported to the dispatcher.
    pub(crate) fn report(&self) -> TaskReport {
        let taken = self.untaken.iter().filter(|(_, arrived)| self.shared.acks.is_taken(**arrived));
        let counts = |(task, counts): (&TaskId, &Option<Counts>)| {
            Some(v1::TaskCounts { task_id: task.0, splits_out: counts.clone()? })
        };
        let receipts = self.shared.receipts.lock();
        let settled = self.lost.iter().filter(|(task, _)| self.shared.is_settled(**task));
        let lost = settled.map(|(task, reason)| v1::LostTask {
            task_id: task.0,
            received: receipts.of_task(*task),
            reason: reason.clone(),
            elements: self.shared.elements_of(*task),
            sizes: Vec::new(),
        });
        TaskReport {
            ended: self.ended.keys().map(|t| t.0).collect(),
            counts: self.ended.iter().filter_map(counts).collect(),
            lost: lost.collect(),
            taken: taken.map(|(task, _)| task.0).collect(),
        }
    }

    /// The dispatcher got a report of these tasks.
    pub(crate) fn confirm(&mut self, ended: &[u64], lost: &[u64], taken: &[u64]) {
        self.ended.retain(|t, _| !ended.contains(&t.0));
        self.lost.retain(|t, _| !lost.contains(&t.0));
        self.untaken.retain(|t, _| !taken.contains(&t.0));
    }

    /// Stops reading. Returns the tasks that were cut off: they are read no further, and the dispatcher does not know how they
    /// ended.
    pub(crate) async fn stop(&mut self) -> BTreeSet<TaskId> {
        self.connections.stop();
        let mut cut: BTreeSet<TaskId> = self.lost.keys().copied().collect();
        for (task, open) in self.open.drain() {
            drop(open.handle.await);
            cut.insert(task);
        }
        cut
    }

    /// What was received of tasks that may still be lost.
    pub(crate) fn unsettled(&self) -> Vec<v1::LostTask> {
        let receipts = self.shared.receipts.lock();
        let received = |task: TaskId| v1::LostTask {
            task_id: task.0,
            received: receipts.of_task(task),
            elements: self.shared.elements_of(task),
            ..Default::default()
        };
        receipts.tasks().into_iter().map(received).collect()
    }

    /// Reconciles the tasks that are read with those that should be.
    ///
    /// # Errors
    /// That of the user's listener of events.
    pub(crate) async fn accept(&mut self, tasks: &[v1::TaskInfo]) -> Result<()> {
        for info in tasks {
            let task = TaskId(info.task_id);
            let resolved = self.resolved.get(&task).copied();
            if info.lost {
                self.lose(task).await?;
            } else if self.open.contains_key(&task) {
                // The task's own end says when everything was received.
            } else if resolved == Some(Resolved::Lost) {
                self.lost.entry(task).or_insert_with(|| "it was lost before".to_string());
            } else if resolved == Some(Resolved::Ended) || info.ended {
                // It ended before this reader opened the iteration: others have its rows.
                if resolved.is_none() {
                    // Rows that this reader still has of an earlier task may be delivered by this one's account.
                    self.untaken.insert(task, self.shared.acks.arrived_rows());
                    self.ended.insert(task, None);
                    self.end_slot(info.slot);
                }
                self.resolved.insert(task, Resolved::Ended);
            } else {
                self.start(info);
            }
        }
        // A task that left the list cannot be lost any more.
        let listed: HashSet<u64> = tasks.iter().map(|t| t.task_id).collect();
        let listed = |t: &TaskId| listed.contains(&t.0);
        let (open, lost, ended) = (&self.open, &self.lost, &self.ended);
        let over: Vec<TaskId> = self
            .resolved
            .keys()
            .filter(|t| {
                !listed(t) && !open.contains_key(t) && !lost.contains_key(t) && !ended.contains_key(t)
            })
            .copied()
            .collect();
        let mut receipts = self.shared.receipts.lock();
        for task in over {
            self.resolved.remove(&task);
            self.untaken.remove(&task);
            receipts.settle(task);
        }
        Ok(())
    }

    fn start(&mut self, info: &v1::TaskInfo) {
        let (task, address) = (TaskId(info.task_id), info.address.clone());
        let group = self.connections.child();
        let ticket = info.ticket.clone();
        let slot = info.slot;
        let (consumer, address_of) = (self.consumer, address.clone());
        let target = Target { task, client: self.client, ticket, address: address_of, slot, consumer };
        let (shared, outcomes) = (Arc::clone(&self.shared), self.outcomes.0.clone());
        let name = format!("reading {task} from {address}");
        let handle = group.spawn(name.clone(), async move {
            // Without an outcome the session would wait for the task without an end.
            let reading = read_task(Arc::clone(&shared), target);
            let outcome = caught(&name, reading).await.unwrap_or_else(Outcome::Failed);
            if let (Outcome::Ended(_), Some(rounds)) = (&outcome, &shared.rounds) {
                rounds.end(task).await;
            }
            // The receiver is dropped when the reader is closed.
            drop(outcomes.send((task, outcome)).await);
        });
        self.open.insert(task, Open { address, slot, group, handle });
        self.idle.on_start();
        self.count();
    }

    /// The dispatcher says that a task is lost: stop reading it, then say what was received.
    ///
    /// # Errors
    /// That of the user's listener of events.
    pub(crate) async fn lose(&mut self, task: TaskId) -> Result<()> {
        let open = self.open.remove(&task);
        if let Some(open) = &open {
            open.group.stop();
            self.count();
        }
        self.untaken.remove(&task);
        self.ended.remove(&task);
        self.lose_rounds(task);
        self.resolved.insert(task, Resolved::Lost);
        self.lost.entry(task).or_insert_with(|| "the dispatcher said so".to_string());
        let Some(open) = open else { return Ok(()) };
        drop(open.handle.await);
        self.emit_lost(open.address, "the dispatcher says that it is lost")
    }

    /// Reading a task has ended.
    ///
    /// # Errors
    /// The failure of the task.
    pub(crate) fn resolve(&mut self, task: TaskId, outcome: Outcome) -> Result<()> {
        match outcome {
            // It stays open: the rows that its worker has sent go to others once it is cut off.
            Outcome::Failed(e) => return Err(e),
            Outcome::Ended(counts) => {
                let Some(open) = self.close(task) else { return Ok(()) };
                self.untaken.insert(task, self.shared.acks.arrived_rows());
                self.resolved.insert(task, Resolved::Ended);
                self.ended.insert(task, counts);
                self.end_slot(open.slot);
            }
            Outcome::Lost(e) => {
                let Some(open) = self.close(task) else { return Ok(()) };
                tracing::warn!(%task, address = %open.address, error = %e, "a task was lost; its rows come from elsewhere");
                self.lose_rounds(task);
                self.resolved.insert(task, Resolved::Lost);
                self.lost.insert(task, e.message().to_string());
                self.emit_lost(open.address, e.message())?;
            }
        }
        Ok(())
    }

    /// Elements of a lost task that have no place in the order of rounds are dropped.
    fn lose_rounds(&self, task: TaskId) {
        if let Some(rounds) = &self.shared.rounds {
            rounds.lose(task);
        }
    }

    /// Takes a task out of those that are read.
    fn close(&mut self, task: TaskId) -> Option<Open> {
        let open = self.open.remove(&task);
        self.count();
        open
    }

    /// One task at a time has a slot's rows: the end of one is that of the slot.
    fn end_slot(&self, slot: u32) {
        if self.shared.held.is_some() {
            drop(self.shared.queue.push_now(Item::SlotEnd(slot), 0));
        }
    }

    fn emit_lost(&self, address: String, reason: &str) -> Result<()> {
        self.shared.event(&ReaderEvent::TaskLost { address, reason: reason.to_string() })
    }

    fn count(&mut self) {
        self.idle.on_count(self.open.len());
        self.shared.recorder.tasks(self.open.len());
    }
}
