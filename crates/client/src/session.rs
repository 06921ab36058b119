//! The session with the dispatcher: which tasks to read, how they ended, and when the epoch is complete.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_runtime::{Task, Tasks, caught};
use caju_types::{ClientId, Error, IterationId, Result, TaskId};
use caju_wire::{Dispatcher, DispatcherLink, is_transient};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::ReaderEvent;
use crate::receipts::Parted;
use crate::shared::{Item, Shared};
use crate::taken::Taken;
use crate::target::Target;
use crate::task::{Counts, Outcome, read_task};

/// How long leaving the iteration may take.
const LEAVE: Duration = Duration::from_secs(5);
/// The shortest interval between reports to the dispatcher.
const BREATH: Duration = Duration::from_millis(20);

/// What the worker of a task said to have emitted.
fn ended_counts((task, counts): (&TaskId, &Option<Counts>)) -> Option<v1::TaskCounts> {
    Some(v1::TaskCounts { task_id: task.0, splits_out: counts.clone()? })
}

/// A reader's side of an iteration.
pub(crate) struct Session {
    link: DispatcherLink,
    shared: Arc<Shared>,
    client: ClientId,
    iteration: IterationId,
    poll: Duration,
    connections: Tasks,
    open: HashMap<TaskId, Open>,
    resolved: BTreeMap<TaskId, Resolved>,
    /// Tasks that are read to their end and not reported yet, with what their workers said to have emitted.
    ended: BTreeMap<TaskId, Option<Counts>>,
    /// Tasks that were read to their end whose rows the user has not all taken, with the rows that had arrived by then.
    untaken: BTreeMap<TaskId, u64>,
    taken: Taken,
    /// The short batches were released, and no rows have arrived since.
    flushed: bool,
    accounted: bool,
    secret: Bytes,
    consumer: Option<u32>,
    lost: BTreeMap<TaskId, String>,
    outcomes: Outcomes,
    version: u64,
    finished: bool,
    /// Since when there has been no task to read, and whether there ever was one.
    idle: Option<Instant>,
    ever: bool,
    warned: Duration,
    /// Since when the dispatcher has not answered.
    away: Option<Instant>,
    /// Whether it was reported, or is about to be, that the user takes rows.
    took: bool,
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

impl Session {
    pub(crate) fn new(link: DispatcherLink, shared: Arc<Shared>, opened: &v1::OpenIterationResponse) -> Self {
        Self {
            link,
            shared,
            client: ClientId(opened.client_id),
            iteration: IterationId(opened.iteration_id),
            poll: Duration::from_millis(opened.heartbeat_ms.clamp(50, 10_000)),
            connections: Tasks::new(),
            open: HashMap::new(),
            resolved: BTreeMap::new(),
            ended: BTreeMap::new(),
            untaken: BTreeMap::new(),
            taken: Taken::default(),
            flushed: false,
            accounted: false,
            secret: opened.client_secret.clone(),
            consumer: opened.consumer.checked_sub(1),
            lost: BTreeMap::new(),
            outcomes: mpsc::channel(64),
            version: opened.version,
            finished: opened.finished,
            idle: Some(Instant::now()),
            ever: false,
            warned: Duration::ZERO,
            away: None,
            took: false,
        }
    }

    /// Reads the iteration to its end, or until `stop`, then leaves it.
    pub(crate) async fn run(mut self, opened: v1::OpenIterationResponse, stop: Tasks) {
        let result = tokio::select! {
            r = self.drive(opened) => Some(r),
            () = stop.stopped() => None,
        };
        self.connections.stop();
        let mut cut = BTreeSet::new();
        for (task, open) in self.open.drain() {
            drop(open.handle.await);
            cut.insert(task);
        }
        if let Some(Ok(())) = result {
            // Other readers of the job may still lose tasks: rows of these that were received here must not go to them. So the
            // dispatcher hears first: a process may exit as soon as its user sees the end.
            let unsettled = self.unsettled();
            self.leave(unsettled, Vec::new(), &cut, "it has read the epoch to its end").await;
            self.shared.queue.close(Ok(()));
            return;
        }
        self.shared.acks.close();
        self.taken.draw(&self.shared.acks);
        let Parted { received, returned, incomplete } = self.shared.receipts.lock().part(self.taken.rows());
        // What is not in `received` of these tasks has to go to others.
        cut.extend(incomplete);
        let error = match result {
            Some(Err(e)) => e,
            _ => Error::cancelled("the reader is closed"),
        };
        let reason = error.message().to_string();
        self.shared.queue.abort(error);
        self.leave(received, returned, &cut, &reason).await;
    }

    async fn drive(&mut self, opened: v1::OpenIterationResponse) -> Result<()> {
        self.accept(&opened.tasks).await;
        let mut local = self.shared.config.local.watch();
        loop {
            if self.finished && self.open.is_empty() && self.ended.is_empty() && self.lost.is_empty() {
                // Padding waits to be merged too, and nobody accounts for it.
                if !std::mem::replace(&mut self.flushed, true) {
                    drop(self.shared.queue.push_now(Item::Flush, 0));
                }
                if self.accounted {
                    return self.whole();
                }
            } else {
                self.flushed = false;
            }
            self.check_idle()?;
            local.mark_unchanged();
            let request = self.report();
            let (sent_ended, sent_lost): (Vec<u64>, Vec<u64>) =
                (request.ended_tasks.clone(), request.lost_tasks.iter().map(|t| t.task_id).collect());
            let (sent_taken, sent_all) = (request.taken_tasks.clone(), request.acknowledged_all);
            let (asked, at_end) = (Instant::now(), self.open.is_empty());
            let call = |mut d: Dispatcher| async move { d.client_heartbeat(request).await };
            tokio::select! {
                biased;
                Some((task, outcome)) = self.outcomes.1.recv() => self.resolve(task, outcome)?,
                // Report at once.
                () = self.shared.acks.news(), if at_end || !self.took => {}
                Ok(()) = local.changed() => {}
                answer = self.link.call(self.poll, call) => match answer {
                    Ok(answer) => {
                        self.away = None;
                        self.ended.retain(|t, _| !sent_ended.contains(&t.0));
                        self.lost.retain(|t, _| !sent_lost.contains(&t.0));
                        self.untaken.retain(|t, _| !sent_taken.contains(&t.0));
                        self.taken.confirm(sent_all);
                        let news = answer.version > self.version;
                        self.hear(answer).await?;
                        if !news && asked.elapsed() < BREATH {
                            tokio::time::sleep(BREATH).await;
                        }
                    }
                    Err(e) => self.missed(e).await?,
                },
            }
        }
    }

    /// Whether the epoch is whole for this reader.
    fn whole(&self) -> Result<()> {
        match self.shared.recorder.is_incomplete().filter(|i| i.fatal) {
            None => Ok(()),
            Some(missing) => Err(missing.error()),
        }
    }

    fn report(&mut self) -> v1::ClientHeartbeatRequest {
        // Computed before the rows are taken, so that these include the rows of every settled task.
        let taken = self.untaken.iter().filter(|(_, arrived)| self.shared.acks.is_taken(**arrived));
        let taken_tasks: Vec<u64> = taken.map(|(task, _)| task.0).collect();
        self.taken.draw(&self.shared.acks);
        self.took |= !self.taken.rows().is_empty();
        let (acknowledged, acknowledged_all) = self.taken.report();
        let (rows_per_s, wait_fraction) = self.shared.recorder.rates();
        let receipts = self.shared.receipts.lock();
        let lost = self.lost.iter().map(|(task, reason)| v1::LostTask {
            task_id: task.0,
            received: receipts.of_task(*task),
            reason: reason.clone(),
            elements: self.shared.elements_of(*task),
        });
        v1::ClientHeartbeatRequest {
            client_id: self.client.0,
            iteration_id: self.iteration.0,
            seen_version: self.version,
            wait_ms: u64::try_from(self.poll.as_millis()).unwrap_or(u64::MAX),
            ended_tasks: self.ended.keys().map(|t| t.0).collect(),
            ended_counts: self.ended.iter().filter_map(ended_counts).collect(),
            lost_tasks: lost.collect(),
            rows_per_s,
            wait_fraction,
            secret: self.secret.clone(),
            acknowledged,
            acknowledged_all,
            taken_tasks,
            local_workers: self.shared.config.local.addresses(),
            knows_resumed: self.shared.facts.knows_resumed(),
            elements: self.shared.recorder.stats().elements,
        }
    }

    async fn hear(&mut self, answer: v1::ClientHeartbeatResponse) -> Result<()> {
        if answer.unknown {
            if let Some(failure) = &answer.failure {
                return Err(failure.into());
            }
            return Err(Error::data_loss(format!(
                "the dispatcher at {} does not know this reader any more: it was silent for too long, or the dispatcher \
                 lost its state; which rows are delivered cannot be known, so read the epoch again under another job name",
                self.link.address()
            )));
        }
        if let Some(failure) = &answer.failure {
            return Err(failure.into());
        }
        self.version = answer.version;
        self.finished = answer.finished;
        self.accounted = answer.accounted;
        self.taken.repeat_if(answer.acknowledge_all);
        let facts = &self.shared.facts;
        facts.hear(&answer.listed, &answer.readers, &answer.resumed, answer.states_missing)?;
        if self.shared.recorder.incomplete(answer.incomplete.as_ref())
            && let Some(missing) = &answer.incomplete
        {
            tracing::warn!(iteration = %self.iteration, "the epoch will be incomplete: {}", missing.why);
        }
        self.accept(&answer.tasks).await;
        self.shared.recorder.waits_for(answer.slowest);
        self.shared.recorder.reported(answer.splits_total, answer.splits_leased, answer.stages);
        Ok(())
    }

    /// Reconciles the tasks that are read with those that should be.
    async fn accept(&mut self, tasks: &[v1::TaskInfo]) {
        for info in tasks {
            let task = TaskId(info.task_id);
            let resolved = self.resolved.get(&task).copied();
            if info.lost {
                self.lose(task).await;
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
        let listed = |t: &TaskId| tasks.iter().any(|i| i.task_id == t.0);
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
            let outcome = caught(&name, read_task(shared, target)).await.unwrap_or_else(Outcome::Failed);
            // The receiver is gone once the reader is closed.
            drop(outcomes.send((task, outcome)).await);
        });
        self.open.insert(task, Open { address, slot, group, handle });
        self.ever = true;
        self.count();
    }

    /// The dispatcher says that a task is lost: stop reading it, then say what was received.
    async fn lose(&mut self, task: TaskId) {
        if let Some(open) = self.open.remove(&task) {
            open.group.stop();
            drop(open.handle.await);
            self.tell_lost(open.address, "the dispatcher says that it is lost");
            self.count();
        }
        self.untaken.remove(&task);
        self.ended.remove(&task);
        self.resolved.insert(task, Resolved::Lost);
        self.lost.entry(task).or_insert_with(|| "the dispatcher said so".to_string());
    }

    fn resolve(&mut self, task: TaskId, outcome: Outcome) -> Result<()> {
        let Some(open) = self.open.remove(&task) else { return Ok(()) };
        self.count();
        match outcome {
            Outcome::Ended(counts) => {
                self.untaken.insert(task, self.shared.acks.arrived_rows());
                self.resolved.insert(task, Resolved::Ended);
                self.ended.insert(task, counts);
                self.end_slot(open.slot);
            }
            Outcome::Lost(e) => {
                tracing::warn!(%task, address = %open.address, error = %e, "a task was lost; its rows come from elsewhere");
                self.tell_lost(open.address, e.message());
                self.resolved.insert(task, Resolved::Lost);
                self.lost.insert(task, e.message().to_string());
            }
            Outcome::Failed(e) => return Err(e),
        }
        Ok(())
    }

    /// One task at a time has a slot's rows: the end of one is that of the slot.
    fn end_slot(&self, slot: u32) {
        if self.shared.held.is_some() {
            drop(self.shared.queue.push_now(Item::SlotEnd(slot), 0));
        }
    }

    fn tell_lost(&self, address: String, reason: &str) {
        self.shared.event(&ReaderEvent::TaskLost { address, reason: reason.to_string() });
    }

    fn count(&mut self) {
        self.idle = self.open.is_empty().then(Instant::now);
        self.shared.recorder.tasks(self.open.len());
    }

    /// Checks the deadline of having nothing to read (I8).
    fn check_idle(&mut self) -> Result<()> {
        let Some(since) = self.idle else { return Ok(()) };
        if self.ever && !self.shared.acks.is_all_taken() {
            // The user still has rows to take.
            self.idle = Some(Instant::now());
            return Ok(());
        }
        let waited = since.elapsed();
        if self.ever {
            if waited > self.shared.config.stall_timeout {
                return Err(Error::deadline(format!(
                    "nothing to read for {waited:.0?}, and the dispatcher at {} does not end the epoch; `caju status` \
                     says what it waits for",
                    self.link.address()
                )));
            }
            return Ok(());
        }
        let states = self.shared.facts.states_missing();
        if states > 0 && waited > self.shared.config.worker_timeout {
            return Err(Error::deadline(format!(
                "the epoch goes on from the states of its readers, and {states} of these were not given within {:.0?}: give \
                 the states of all readers of the job, of the same step",
                self.shared.config.worker_timeout
            )));
        }
        if waited > self.shared.config.worker_timeout {
            return Err(Error::unavailable(format!(
                "no worker registered at the dispatcher at {address} within {:.0?}; start one with `caju worker \
                 --dispatcher {address}`",
                self.shared.config.worker_timeout,
                address = self.link.address()
            )));
        }
        if waited >= self.warned + Duration::from_secs(1) {
            if self.warned.is_zero() && states == 0 {
                let within = self.shared.config.worker_timeout;
                tracing::warn!(
                    dispatcher = self.link.address(),
                    "waiting for a worker, for at most {within:.0?}"
                );
            }
            self.warned = waited;
            self.shared.event(&ReaderEvent::WaitingForWorker { waited });
        }
        Ok(())
    }

    /// The dispatcher did not answer: tasks go on without it, for a while.
    async fn missed(&mut self, error: Error) -> Result<()> {
        if !is_transient(&error) {
            return Err(error);
        }
        if self.away.is_none() {
            tracing::warn!(
                "the dispatcher at {} does not answer; tasks are read on without it, and the reader gives up when it \
                 has been away for {:.0?}: {error}",
                self.link.address(),
                self.shared.config.dispatcher_timeout
            );
        }
        let since = *self.away.get_or_insert_with(Instant::now);
        let waited = since.elapsed();
        if waited > self.shared.config.dispatcher_timeout {
            return Err(error.context(format!("the dispatcher has been away for {waited:.0?}")));
        }
        tracing::debug!(error = %error, ?waited, "the dispatcher is still away");
        self.shared.event(&ReaderEvent::DispatcherAway { waited });
        tokio::time::sleep(Duration::from_millis(200).min(self.poll)).await;
        Ok(())
    }

    /// What was received of tasks that may still be lost.
    fn unsettled(&self) -> Vec<v1::LostTask> {
        let receipts = self.shared.receipts.lock();
        let received = |task: TaskId| v1::LostTask {
            task_id: task.0,
            received: receipts.of_task(task),
            ..Default::default()
        };
        receipts.tasks().into_iter().map(received).collect()
    }

    /// Leaves the iteration with a report of what the user got of tasks that are not over. The remaining rows of tasks that
    /// were cut off go to other readers.
    async fn leave(
        &self,
        received: Vec<v1::LostTask>,
        returned: Vec<v1::SplitRows>,
        cut: &BTreeSet<TaskId>,
        reason: &str,
    ) {
        let request = v1::CloseClientRequest {
            client_id: self.client.0,
            iteration_id: self.iteration.0,
            received,
            broken_off: cut.iter().map(|t| t.0).collect(),
            reason: reason.to_string(),
            secret: self.secret.clone(),
            returned,
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.close_client(request).await }
        };
        if let Ok(Err(e)) = tokio::time::timeout(LEAVE, self.link.retry(LEAVE, Duration::ZERO, call)).await {
            tracing::debug!(error = %e, "could not take leave");
        }
    }
}

#[cfg(test)]
mod tests {
    use caju_wire::{Chunk, Elements, Run};

    use super::*;
    use crate::config::ClientConfig;

    /// A session of which no call leaves, as its dispatcher opened it.
    fn session(shared: &Arc<Shared>) -> Session {
        let link = DispatcherLink::new("127.0.0.1:1").unwrap();
        Session::new(link, Arc::clone(shared), &v1::OpenIterationResponse::default())
    }

    fn rows(split: u64, start: u64, len: u64) -> Chunk {
        let ids = arrow_array::UInt64Array::from_iter_values(start..start + len);
        let batch = arrow_array::RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let runs = vec![Run { split, start, len }];
        Chunk { pieces: vec![batch], runs, elements: Elements::Rows, remainder: false }
    }

    #[tokio::test]
    async fn a_task_that_ended_before_it_was_heard_of_is_taken_when_earlier_rows_are() {
        let shared = Arc::new(Shared::new(ClientConfig::default(), false));
        let mut session = session(&shared);
        // Six rows of a task that is lost; another reader had the rest of its successor before this one heard of it.
        shared.receive(TaskId(1), 0, rows(0, 0, 6), 8, None);
        session.lose(TaskId(1)).await;
        session.accept(&[v1::TaskInfo { task_id: 2, ended: true, ..Default::default() }]).await;
        let report = session.report();
        assert_eq!(
            (report.ended_tasks, report.taken_tasks),
            (vec![2], Vec::new()),
            "six rows are in the queue"
        );
        assert!(shared.acks.hand(&[Run { split: 0, start: 0, len: 6 }], false, true));
        shared.acks.taken_handed();
        let report = session.report();
        assert_eq!(report.taken_tasks, [2]);
        assert_eq!(report.acknowledged[0].rows, [v1::RowRange { start: 0, end: 6 }]);
    }
}
