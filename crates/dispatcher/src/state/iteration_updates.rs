//! Updates of one iteration: of its readers, of its splits and of its tasks.

use std::collections::BTreeMap;

use caju_types::{IterationId, WorkerId};

use super::accounting::TaskEnd;
use super::losses::Gone;
use super::{Iteration, Member, State, Task, Update, Worker, has_no_follow_up};

impl State {
    /// Applies an update of an iteration, or of one of its tasks. One of an unknown iteration changes no iteration.
    pub(super) fn apply_iteration(&mut self, update: &Update) {
        let Some(id) = self.iteration_of(update) else { return };
        match update {
            Update::ClientJoined { client, .. } => self.next_id = self.next_id.max(client.0 + 1),
            Update::TaskCreated { task, .. } => self.next_id = self.next_id.max(task.0 + 1),
            _ => {}
        }
        let Some(iteration) = self.iterations.get_mut(&id) else { return };
        if !has_no_follow_up(update) {
            self.touched.0.insert(id);
        }
        match update {
            Update::ClientJoined { .. }
            | Update::LocalWorkersAdded { .. }
            | Update::ClientTook { .. }
            | Update::RowsAcknowledged { .. }
            | Update::ClientAsked { .. }
            | Update::ClientTakes { .. }
            | Update::ClientTaken { .. }
            | Update::ClientEnded { .. }
            | Update::ClientLost { .. }
            | Update::ClientGone { .. } => apply_to_readers(iteration, &self.workers, update),
            Update::Leased { .. }
            | Update::LaggingServed { .. }
            | Update::SplitsSetAside { .. }
            | Update::FeedExhausted { .. }
            | Update::RemainderReported { .. }
            | Update::RoundsKnown { .. }
            | Update::RemaindersAssigned { .. } => apply_to_splits(iteration, update),
            Update::TaskCreated { task, worker, feed, secret, .. } => {
                let local_only = self.workers.get(worker).is_some_and(|w| w.is_local_only(iteration.target));
                iteration.create_task(Task::new(*task, *worker, *feed, *secret, local_only));
                self.task_index.insert(*task, id);
            }
            Update::TaskEnded { .. }
            | Update::TaskLost { .. }
            | Update::TaskTakenOver { .. }
            | Update::SplitsCompleted { .. }
            | Update::SplitsSkipped { .. }
            | Update::TaskSettled { .. } => apply_to_tasks(iteration, update),
            Update::StatesGiven { states, .. } => iteration.states_given(states),
            Update::StatesGivenUp { .. } => iteration.states_given_up(),
            Update::UnknownReadersAwaited { .. } => iteration.unknown_readers_awaited(),
            Update::Planned { plan, .. } => iteration.set_plan(plan.clone()),
            Update::IterationFailed { failure, .. } => iteration.fail(failure.clone()),
            Update::ShardsReassigned { num_workers, .. } => {
                iteration.num_workers = *num_workers;
                iteration.note_unread_shards(&self.workers);
                iteration.version += 1;
            }
            _ => {}
        }
    }

    fn iteration_of(&self, update: &Update) -> Option<IterationId> {
        match update {
            Update::ClientJoined { iteration, .. }
            | Update::LocalWorkersAdded { iteration, .. }
            | Update::RemaindersAssigned { iteration, .. }
            | Update::RoundsKnown { iteration, .. }
            | Update::TaskCreated { iteration, .. }
            | Update::Planned { iteration, .. }
            | Update::SplitsSetAside { iteration, .. }
            | Update::FeedExhausted { iteration, .. }
            | Update::ClientGone { iteration, .. }
            | Update::ClientTook { iteration, .. }
            | Update::RowsAcknowledged { iteration, .. }
            | Update::ClientAsked { iteration, .. }
            | Update::ClientTakes { iteration, .. }
            | Update::StatesGiven { iteration, .. }
            | Update::StatesGivenUp { iteration }
            | Update::UnknownReadersAwaited { iteration }
            | Update::ShardsReassigned { iteration, .. }
            | Update::IterationFailed { iteration, .. } => Some(*iteration),
            Update::Leased { task, .. }
            | Update::LaggingServed { task, .. }
            | Update::TaskEnded { task, .. }
            | Update::TaskLost { task, .. }
            | Update::TaskTakenOver { task, .. }
            | Update::RemainderReported { task, .. }
            | Update::ClientEnded { task, .. }
            | Update::ClientTaken { task, .. }
            | Update::SplitsCompleted { task, .. }
            | Update::SplitsSkipped { task, .. }
            | Update::TaskSettled { task, .. }
            | Update::ClientLost { task, .. } => self.task_index.get(task).copied(),
            _ => None,
        }
    }
}

/// Readers come, report and leave.
fn apply_to_readers(iteration: &mut Iteration, workers: &BTreeMap<WorkerId, Worker>, update: &Update) {
    match update {
        Update::ClientJoined {
            client,
            flight,
            allow_lost,
            secret,
            local,
            consumer,
            was,
            may_load,
            rank,
            request_id,
            is_journaled,
            ..
        } => {
            iteration.join(
                *client,
                Member {
                    flight: *flight,
                    allow_lost: *allow_lost,
                    secret: *secret,
                    consumer: *consumer,
                    was: *was,
                    may_load: *may_load,
                    rank: *rank,
                    request_id: *request_id,
                    is_journaled: *is_journaled,
                    ..Member::default()
                },
            );
            iteration.add_locals(*client, local);
            iteration.note_unread_shards(workers);
        }
        Update::LocalWorkersAdded { client, workers: local, .. } => {
            iteration.add_locals(*client, local);
            iteration.note_unread_shards(workers);
        }
        Update::ClientTook { client, .. } => iteration.client_took(*client),
        Update::RowsAcknowledged { client, rows, elements, .. } => {
            iteration.acknowledge(*client, rows, *elements);
        }
        Update::ClientAsked { client, .. } => iteration.client_asked(*client),
        Update::ClientTakes { client, .. } => iteration.client_takes(*client),
        Update::ClientTaken { client, task } => iteration.client_taken(*client, *task),
        Update::ClientEnded { client, task, emitted } => {
            iteration.client_ended(*client, *task, emitted.as_ref());
        }
        Update::ClientLost { client, task, received, reason, elements, sizes } => {
            iteration.received_elements(*client, *task, *elements);
            iteration.split_sizes(*task, sizes);
            let worker = iteration.tasks.get(task).map(|t| t.worker);
            // A worker that has left, or that drains, breaks its connections itself.
            let may_die = worker.and_then(|w| workers.get(&w)).filter(|w| !w.ends_in_order());
            let incarnation = may_die.map(|w| w.incarnation);
            iteration.client_lost(*client, *task, received, reason, incarnation);
        }
        Update::ClientGone {
            client,
            received,
            broken_off,
            reason,
            returned,
            vanished,
            unknown,
            elements,
            ..
        } => {
            elements.iter().for_each(|(task, n)| iteration.received_elements(*client, *task, *n));
            let (vanished, unknown) = (*vanished, *unknown);
            let gone = Gone { received, broken_off, reason, returned, vanished, unknown };
            iteration.client_gone(*client, &gone);
        }
        _ => {}
    }
}

/// Splits are leased and returned, and remainders are assigned.
fn apply_to_splits(iteration: &mut Iteration, update: &Update) {
    match update {
        Update::Leased { task, request_no, fresh, requeued, end, asks_for_lagging } => {
            iteration.lease(*task, *request_no, fresh, requeued, (*end, *asks_for_lagging));
        }
        Update::LaggingServed { task, request_no, counts } => {
            iteration.lagging_served(*task, *request_no, counts);
        }
        Update::SplitsSetAside { feed, splits, .. } => iteration.set_aside(*feed, splits),
        Update::FeedExhausted { feed, listing, source_changed, .. } => {
            iteration.exhaust(*feed, *listing, source_changed.as_deref());
        }
        Update::RemainderReported { task, remainder } => iteration.remainder_reported(*task, remainder),
        Update::RemaindersAssigned { assignment, .. } => iteration.remainders_assigned(assignment),
        Update::RoundsKnown { order, .. } => {
            if let Some(even) = &mut iteration.even {
                even.leaves_with(order);
            }
        }
        _ => {}
    }
}

/// Tasks end.
fn apply_to_tasks(iteration: &mut Iteration, update: &Update) {
    match update {
        Update::TaskEnded { task, rows_skipped, modes, emitted, to_flight, forgotten, shared } => {
            let end = TaskEnd {
                rows_skipped: *rows_skipped,
                modes: *modes,
                emitted: emitted.as_ref(),
                to_flight: to_flight.as_ref(),
                forgotten: *forgotten,
                shared: *shared,
            };
            iteration.task_ended(*task, &end);
        }
        Update::TaskLost { task, reason, emitted } => {
            iteration.task_given_up(*task, reason, emitted.as_ref());
        }
        Update::TaskTakenOver { task, reason } => iteration.take_over(*task, reason),
        Update::SplitsCompleted { task, splits, emitted, taken } => {
            iteration.complete_splits(*task, splits, *emitted, taken);
        }
        Update::SplitsSkipped { task, splits } => iteration.skip_splits(*task, splits),
        Update::TaskSettled { task, missing, taken } => iteration.settle_task(*task, missing, taken),
        _ => {}
    }
}
