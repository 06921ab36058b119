//! The session with the dispatcher: which tasks to read, how they ended, and when the epoch is complete.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_runtime::Tasks;
use caju_types::{ClientId, Error, IterationId, Result, TaskId};
use caju_wire::{Dispatcher, DispatcherLink};
use tokio::time::Instant;

use crate::deadlines::Absence;
use crate::follow::{self, Identity};
use crate::reattach::{How, Reopening};
use crate::receipts::FinalReceipts;
use crate::rounds::Staging;
use crate::shared::{Item, OpenedAgain, Shared};
use crate::taken::Taken;
use crate::tasks::TaskSet;

mod report;

/// The pause after a heartbeat that the dispatcher did not answer. A reader then calls a dispatcher that is down five times per
/// second at most.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The longest time for which a user who closes a reader, or whose reader fails, waits until the dispatcher knows. The reader
/// tries on without its user, up to the dispatcher timeout. 5 s is longer than a dispatcher takes to start again.
pub(crate) const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest interval between reports to the dispatcher: news that come faster are reported together.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A reader's side of an iteration.
pub(crate) struct Session {
    link: DispatcherLink,
    shared: Arc<Shared>,
    client: ClientId,
    iteration: IterationId,
    poll: Duration,
    /// Heartbeats so far.
    reports: u64,
    /// One of the consumers of a job, which all get equally many elements.
    is_consumer: bool,
    /// Slots take turns, and which there are is not known before the epoch begins behind states that are missing.
    awaits_slots: bool,
    tasks: TaskSet,
    taken: Taken,
    /// How many complete splits the dispatcher has listed to this reader.
    completed_seen: u64,
    /// The short batches were released, and no rows have arrived since.
    flushed: bool,
    accounted: bool,
    secret: Bytes,
    version: u64,
    /// The tasks of that version.
    listed: Vec<v1::TaskInfo>,
    finished: bool,
    absence: Absence,
    /// Whether it was reported, or is about to be, that the user takes rows.
    took: bool,
    reopening: Reopening,
}

/// Why a session stopped before the end of its epoch.
enum Stopped {
    Failed(Error),
    /// The dispatcher lost its state, or lost a consumer of the job: the epoch continues when it is opened again.
    Reopen(Error, How),
}

impl From<Error> for Stopped {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

impl Session {
    pub(crate) fn new(
        link: DispatcherLink,
        shared: Arc<Shared>,
        opened: &v1::OpenIterationResponse,
        reopening: Reopening,
    ) -> Self {
        let client = ClientId(opened.client_id);
        Self {
            link,
            is_consumer: opened.consumer > 0,
            awaits_slots: opened.in_turn && opened.states_missing > 0,
            tasks: TaskSet::new(Arc::clone(&shared), client, opened.consumer.checked_sub(1)),
            shared,
            client,
            iteration: IterationId(opened.iteration_id),
            poll: Duration::from_millis(opened.heartbeat_ms.clamp(50, 10_000)),
            reports: 0,
            taken: Taken::default(),
            completed_seen: 0,
            flushed: false,
            accounted: false,
            secret: opened.client_secret.clone(),
            version: opened.version,
            listed: Vec::new(),
            finished: opened.finished,
            absence: Absence::default(),
            took: false,
            reopening,
        }
    }

    /// Reads the iteration to its end, or until `stop`, then leaves it.
    pub(crate) async fn run(mut self, mut opened: v1::OpenIterationResponse, stop: Tasks) {
        let result = loop {
            let own =
                Identity { client: self.client, iteration: self.iteration, secret: self.secret.clone() };
            let rounds = follow::follow(self.link.clone(), Arc::clone(&self.shared), own, self.poll);
            let driven = tokio::select! {
                r = self.drive(opened) => r,
                e = rounds => Err(Stopped::Failed(e)),
                () = stop.stopped() => break None,
            };
            let why = match driven {
                Ok(()) => break Some(Ok(())),
                Err(Stopped::Failed(e)) => break Some(Err(e)),
                Err(Stopped::Reopen(why, how)) => (why, how),
            };
            let again = tokio::select! {
                r = self.open_again(why.0, why.1) => r,
                () = stop.stopped() => break None,
            };
            match again {
                Ok((session, answer)) => (self, opened) = (session, answer),
                Err(e) => break Some(Err(e)),
            }
        };
        let mut cut = self.tasks.stop().await;
        if let Some(Ok(())) = result {
            // Other readers of the job may still lose tasks: rows of these that were received here must not go to them. So the
            // report to the dispatcher comes first: a process may exit as soon as its user sees the end.
            let unsettled = self.tasks.unsettled();
            self.leave(unsettled, Vec::new(), &cut, "it has read the epoch to its end").await;
            self.shared.queue.close(Ok(()));
            // The remaining elements may be padding, which is not accounted for.
            self.shared.open_gates();
            return;
        }
        self.shared.acks.close();
        self.taken.draw(&self.shared.acks);
        let FinalReceipts { received, returned, incomplete } =
            self.shared.receipts.lock().at_end(self.taken.rows());
        // What is not in `received` of these tasks has to go to others.
        cut.extend(incomplete);
        let error = match result {
            Some(Err(e)) => e,
            _ => Error::cancelled("the reader is closed"),
        };
        let reason = error.message().to_string();
        let mut leave = std::pin::pin!(self.leave(received, returned, &cut, &reason));
        // The dispatcher comes first: a process may exit as soon as its user sees the error. The dispatcher may also have
        // ended.
        let head_start = if self.absence.is_ongoing() { Duration::ZERO } else { LEAVE_TIMEOUT };
        let has_left = tokio::time::timeout(head_start, &mut leave).await.is_ok();
        self.shared.fail(error);
        if !has_left {
            leave.await;
        }
    }

    /// Opens the epoch again behind what the user has taken, and continues in a new session. The user gets no element until
    /// then.
    async fn open_again(&mut self, why: Error, how: How) -> Result<(Self, v1::OpenIterationResponse)> {
        let may_be = how == How::Behind
            || self.reopening.at_first(&self.shared).is_some() && self.taken.elements() == 0;
        if !may_be || !self.reopening.is_possible() || !self.shared.config.tracks_rows {
            return Err(why);
        }
        match how {
            How::Behind => {
                tracing::warn!(
                    "the epoch is opened again behind the rows that were taken: {}",
                    why.message()
                );
            }
            How::AtFirst => tracing::warn!("the epoch is opened again, nothing was taken: {}", why.message()),
        }
        self.tasks.stop().await;
        self.shared.acks.close();
        self.shared.open_gates();
        self.draw();
        let (request, origin, is_resumed) = match how {
            How::Behind => {
                let own = (self.client, &self.secret);
                let (request, origin) =
                    self.reopening.again(&self.shared, &self.taken, own, self.iteration)?;
                (request, origin, true)
            }
            How::AtFirst => match self.reopening.at_first(&self.shared) {
                Some((request, origin)) if self.taken.elements() == 0 => (request, origin, false),
                _ => return Err(why),
            },
        };
        let within = self.shared.config.open_timeouts(self.shared.config.dispatcher_timeout);
        let opened = self.link.open_iteration(&request, &within).await;
        let opened = opened.map_err(|e| e.context("the epoch could not be opened again"))?;
        let shared = Arc::new(self.shared.successor(opened.in_turn));
        shared.on_opened(&opened)?;
        let reopening = Reopening::new(request, &opened, origin.clone(), is_resumed);
        let session = Self::new(self.link.clone(), Arc::clone(&shared), &opened, reopening);
        let again = OpenedAgain {
            shared,
            origin,
            iteration: session.iteration,
            client: session.client.0,
            slots: opened.in_turn.then(|| opened.slots.clone()),
        };
        self.shared.set_reopened(&again);
        drop(self.shared.queue.push_now(Item::OpenedAgain(Box::new(again)), 0));
        Ok((session, opened))
    }

    /// How long the states of other readers are waited for. The dispatcher itself waits for readers that come back.
    fn states_within(&self) -> Duration {
        if self.reopening.is_reattached() { Duration::MAX } else { self.shared.config.worker_timeout }
    }

    /// Takes over what the user took, and what workers said of their splits.
    fn draw(&mut self) {
        self.taken.draw(&self.shared.acks);
        self.taken.sized(self.shared.facts.draw_sized());
    }

    async fn drive(&mut self, opened: v1::OpenIterationResponse) -> Result<(), Stopped> {
        self.listed = opened.tasks;
        self.tasks.accept(&self.listed).await?;
        let mut local = self.shared.config.local.watch();
        loop {
            if self.finished && self.tasks.is_reported() {
                // Padding waits to be merged too, and is not accounted for.
                if !std::mem::replace(&mut self.flushed, true) {
                    drop(self.shared.queue.push_now(Item::Flush, 0));
                }
                if self.accounted {
                    return Ok(self.whole()?);
                }
            } else {
                self.flushed = false;
            }
            if self.is_consumer && !self.shared.acks.has_asked() {
                // It gets no task before its user asks for an element.
                self.tasks.idle.restart();
            }
            self.tasks.idle.check(&self.shared, self.link.address(), self.states_within())?;
            local.mark_unchanged();
            let request = self.report();
            let (sent_ended, sent_lost): (Vec<u64>, Vec<u64>) =
                (request.ended_tasks.clone(), request.lost_tasks.iter().map(|t| t.task_id).collect());
            let (sent_taken, sent_all) = (request.taken_tasks.clone(), request.acknowledged_all);
            let sent_takes = request.takes;
            let (asked, is_reading) = (Instant::now(), self.tasks.is_reading());
            let call = |mut d: Dispatcher| async move { d.client_heartbeat(request).await };
            tokio::select! {
                biased;
                Some((task, outcome)) = self.tasks.next_outcome() => {
                    self.tasks.resolve(task, outcome)?;
                    if self.shared.rounds.is_some() {
                        // All tasks end together with the last rounds: one report says so, instead of one that is broken off
                        // for each.
                        tokio::time::sleep(MIN_POLL_INTERVAL).await;
                    }
                    while let Some((task, outcome)) = self.tasks.try_next_outcome() {
                        self.tasks.resolve(task, outcome)?;
                    }
                }
                // Report at once.
                () = self.shared.acks.report_due(), if !is_reading || !self.took => {}
                Ok(()) = local.changed() => {}
                () = self.shared.settled() => {}
                answer = self.link.call(self.poll, call) => match answer {
                    Ok(answer) => {
                        self.absence.end();
                        self.tasks.confirm(&sent_ended, &sent_lost, &sent_taken);
                        self.taken.confirm(sent_all);
                        let news = answer.version > self.version;
                        self.on_answer(answer, sent_takes).await?;
                        if !news && asked.elapsed() < MIN_POLL_INTERVAL {
                            tokio::time::sleep(MIN_POLL_INTERVAL).await;
                        }
                    }
                    Err(e) => {
                        self.absence.on_error(e, &self.shared, self.link.address())?;
                        tokio::time::sleep(RETRY_PAUSE.min(self.poll)).await;
                    }
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

    /// `takes`: this is the answer to a report that the user gets elements.
    async fn on_answer(&mut self, answer: v1::ClientHeartbeatResponse, takes: bool) -> Result<(), Stopped> {
        if answer.unknown {
            let why = answer.failure.as_ref().map(Error::from).unwrap_or_else(|| {
                Error::data_loss(format!(
                    "the dispatcher at {} does not know this reader any more: it was silent for too long, or the dispatcher \
                     lost its state; which rows are delivered cannot be known, so read the epoch again under another job name",
                    self.link.address()
                ))
            });
            return Err(match answer.reattach {
                true => Stopped::Reopen(why, How::Behind),
                false if self.is_consumer => Stopped::Reopen(why, How::AtFirst),
                false => Stopped::Failed(why),
            });
        }
        if let Some(failure) = &answer.failure {
            return Err(Stopped::Failed(failure.into()));
        }
        self.version = answer.version;
        self.finished = answer.finished;
        if answer.others_take {
            // Rows that they have not taken come to this reader if they die.
            self.tasks.idle.restart();
        }
        self.accounted = answer.accounted;
        self.taken.repeat_if(answer.acknowledge_all);
        self.completed_seen = answer.completed_up_to;
        if !answer.completed.is_empty() {
            self.taken.complete(&answer.completed);
            self.shared.receipts.lock().complete(&answer.completed);
        }
        let facts = &self.shared.facts;
        facts.record(&answer.listed, &answer.readers, &answer.resumed, answer.states_missing)?;
        facts.set_readings(&answer.readings, &answer.bases);
        facts.set_missing_states(&answer.missing_states);
        facts.set_draws(answer.draws.as_ref());
        facts.set_present(&answer.present, &answer.taking, answer.steps);
        if self.awaits_slots && answer.states_missing == 0 {
            self.awaits_slots = false;
            // Before any task that is read: no slot gives rows out of turn.
            drop(self.shared.queue.push_now(Item::Slots(answer.slots.clone()), 0));
        }
        if answer.unnotified == 0 {
            self.shared.announced.open();
            if takes {
                self.shared.taking.open();
            }
        }
        if self.shared.recorder.incomplete(answer.incomplete.as_ref())
            && let Some(missing) = &answer.incomplete
        {
            tracing::warn!(iteration = %self.iteration, "the epoch will be incomplete: {}", missing.why);
        }
        if !answer.same_tasks {
            self.listed = answer.tasks;
        }
        // Also where the list is the same: tasks that left it before may have been read to their ends since.
        self.tasks.accept(&self.listed).await?;
        self.shared.recorder.waits_for(answer.slowest);
        self.shared.recorder.reported(answer.splits_total, answer.splits_leased, answer.stages);
        Ok(())
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
            elements: self.taken.elements(),
            rounds: self.shared.rounds.as_ref().map(Staging::order),
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.close_client(request).await }
        };
        // Without this report, what the user took last counts as lost with this reader: a dispatcher that is started again
        // is waited for.
        if let Err(e) = self.link.retry(self.shared.config.dispatcher_timeout, Duration::ZERO, call).await {
            tracing::debug!(error = %e, "the dispatcher does not know that this reader has left");
        }
    }
}

#[cfg(test)]
mod tests {
    use caju_wire::{Chunk, Run};

    use super::*;
    use crate::config::ClientConfig;
    use crate::epoch_columns::EpochColumns;
    use crate::state::ReaderState;
    use crate::task::Outcome;
    use crate::transfer::Transfer;

    fn shared() -> Arc<Shared> {
        let columns = EpochColumns::none();
        Arc::new(Shared::new(ClientConfig::default(), Transfer::default(), false, columns))
    }

    /// A session of which no call leaves, as its dispatcher opened it.
    fn session(shared: &Arc<Shared>) -> Session {
        let link = DispatcherLink::new("127.0.0.1:1").unwrap();
        let opened = v1::OpenIterationResponse::default();
        let origin = ReaderState::at_beginning(&opened, 0);
        let reopening = Reopening::new(v1::OpenIterationRequest::default(), &opened, origin, false);
        Session::new(link, Arc::clone(shared), &opened, reopening)
    }

    fn rows(split: u64, start: u64, len: u64) -> Chunk {
        let ids = arrow_array::UInt64Array::from_iter_values(start..start + len);
        let batch = arrow_array::RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let runs = vec![Run { split, start, len }];
        Chunk::rows_of(batch, runs)
    }

    #[tokio::test]
    async fn a_task_that_ended_before_it_was_known_is_taken_when_earlier_rows_are() {
        let shared = shared();
        let mut session = session(&shared);
        // Six rows of a task that is lost; another reader had received the remaining rows of its successor before this one
        // knew of the successor.
        shared.receive(TaskId(1), 0, rows(0, 0, 6), 8, None);
        session.tasks.lose(TaskId(1)).await.unwrap();
        session
            .tasks
            .accept(&[v1::TaskInfo { task_id: 2, ended: true, ..Default::default() }])
            .await
            .unwrap();
        let report = session.report();
        assert_eq!(
            (report.ended_tasks, report.taken_tasks),
            (vec![2], Vec::new()),
            "six rows are in the queue"
        );
        assert!(shared.acks.hand(&rows(0, 0, 6), false, true));
        shared.acks.taken_handed();
        let report = session.report();
        assert_eq!(report.taken_tasks, [2]);
        assert_eq!(report.acknowledged[0].rows, [v1::RowRange { start: 0, end: 6 }]);
    }

    #[tokio::test]
    async fn tasks_that_fail_or_whose_loss_is_not_reported_are_cut_off() {
        let shared = shared();
        let mut session = session(&shared);
        let task =
            |task_id| v1::TaskInfo { task_id, address: "127.0.0.1:1".to_string(), ..Default::default() };
        session.tasks.accept(&[task(1), task(2), task(3)]).await.unwrap();
        let failed = Outcome::Failed(Error::internal("the listener of events panicked"));
        assert!(session.tasks.resolve(TaskId(1), failed).is_err());
        session.tasks.resolve(TaskId(2), Outcome::Lost(Error::unavailable("it is gone"))).unwrap();
        session.tasks.resolve(TaskId(3), Outcome::Ended(None)).unwrap();
        assert_eq!(session.tasks.stop().await, [TaskId(1), TaskId(2)].into());
    }
}
