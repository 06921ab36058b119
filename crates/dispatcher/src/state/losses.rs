//! What is lost with a task, a worker or a client, and how it is leased again.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{ClientId, Error, IterationId, RowRanges, TaskId, WorkerId};

use super::cache_plan::without_set;
use super::{Iteration, LostReader, Task, TaskState, Update};

/// Workers that a split was lost with before it is suspected of it; the smallest value of `LossLimits::splits`.
const SUSPECTED: usize = 2;

/// What is known of a client that is gone; the fields of [`super::Update::ClientGone`].
pub(super) struct Gone<'a> {
    pub(super) received: &'a [(TaskId, Vec<(u64, RowRanges)>)],
    pub(super) broken_off: &'a [TaskId],
    pub(super) reason: &'a str,
    pub(super) returned: &'a [(u64, RowRanges)],
    pub(super) vanished: Option<u64>,
    pub(super) unknown: bool,
}

impl Update {
    /// A client left without a report.
    pub(crate) fn client_gone(client: ClientId, iteration: IterationId) -> Self {
        let (received, broken_off, reason) = (Vec::new(), Vec::new(), String::new());
        let (returned, vanished, unknown, elements) = (Vec::new(), None, false, Vec::new());
        Update::ClientGone {
            client,
            iteration,
            received,
            broken_off,
            reason,
            returned,
            vanished,
            unknown,
            elements,
        }
    }
}

impl Iteration {
    /// A client's connection to a task broke, or it learned that the task is lost. `incarnation`: of the worker, if a split may be to
    /// blame.
    pub(super) fn client_lost(
        &mut self,
        client: ClientId,
        id: TaskId,
        received: &[(u64, RowRanges)],
        reason: &str,
        incarnation: Option<u32>,
    ) {
        let Some(task) = self.tasks.get(&id) else { return };
        if !task.is_lost() && task.state != TaskState::Done {
            let by_client = self.strikes.entry(task.worker).or_default();
            match received.iter().all(|(_, rows)| rows.is_empty()) {
                true => *by_client.entry(client).or_default() += 1,
                // The epoch goes on, however often a connection breaks that brings rows each time.
                false => drop(by_client.remove(&client)),
            }
            self.lose(id, reason, incarnation);
        }
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.hold(client, received);
        if let TaskState::Lost { awaiting } = &mut task.state {
            awaiting.remove(&client);
            // The task leaves the client's list.
            self.version += 1;
        }
        self.settle_lost(id);
    }

    /// A client left, or vanished. Tasks that it broke off are lost, for its rows of them may be: that is nobody's
    /// fault. Of a client that vanished all tasks are lost whose rows its user had not taken in full. Tasks whose leases
    /// rows come back to are lost in both cases: they run as if those rows were delivered.
    pub(super) fn client_gone(&mut self, client: ClientId, gone: &Gone<'_>) {
        let is_at_end = self.has_taken_all(client) || gone.vanished.is_none() && self.had_taken_all(client);
        let mut has_left_early = self.even.is_some() && !is_at_end;
        let awaits_states = self.awaits_states();
        let Some(member) = self.members.remove(&client) else { return };
        self.acknowledged.remove(&client);
        has_left_early &= !member.may_load;
        if awaits_states && let (Some(even), Some(consumer)) = (&mut self.even, member.consumer) {
            // The epoch has not begun: the consumer may come again.
            even.joined.remove(&consumer);
            has_left_early = false;
        }
        if let (Some(even), Some(consumer)) = (&mut self.even, member.consumer) {
            even.left.insert(consumer, client);
        }
        let locals = self.locals.remove(&client).unwrap_or_default();
        let was_read = |t: &Task| !t.local_only || locals.contains(&t.worker);
        for by_client in self.strikes.values_mut() {
            by_client.remove(&client);
        }
        if let Some(rows) = gone.vanished.filter(|_| member.took) {
            self.lost_readers.push(LostReader { client, rows, unknown: gone.unknown, not_back: false });
        }
        self.give_back(client, gone.returned);
        for (id, rows) in gone.received {
            if let Some(task) = self.tasks.get_mut(id) {
                task.receive(rows);
            }
        }
        let mut fenced: BTreeSet<TaskId> = gone.broken_off.iter().copied().collect();
        let gave_back = |t: &Task| gone.returned.iter().any(|(split, _)| t.leases.contains_key(split));
        let untaken =
            |t: &Task| gone.vanished.is_some() && member.flight.is_none() && !t.taken_by.contains(&client);
        let deserted = |t: &Task| was_read(t) && self.is_deserted(t);
        let open = self.tasks.values().filter(|t| was_read(t) && untaken(t) || gave_back(t) || deserted(t));
        fenced.extend(open.map(|t| t.id));
        for id in fenced {
            if self.lose(id, &format!("{client} left: {}", gone.reason), None)
                && let Some(task) = self.tasks.get_mut(&id)
            {
                task.blameless = true;
            }
        }
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            if let Some(TaskState::Lost { awaiting }) = self.tasks.get_mut(&id).map(|t| &mut t.state) {
                awaiting.remove(&client);
            }
            self.settle_lost(id);
        }
        if has_left_early && let Some(consumer) = member.consumer {
            let error = self.early_leave(client, consumer, gone);
            self.fail((&error).into());
        }
        self.version += 1;
    }

    /// A job with consumers continues with all of them or not at all.
    fn early_leave(&self, client: ClientId, consumer: u32, gone: &Gone<'_>) -> Error {
        let count = self.even.as_ref().map_or(0, |e| e.consumers.count);
        Error::unavailable(format!(
            "{}: consumer {consumer} of {count} ({client}) is gone before the end of the epoch: {}; the others cannot have as \
             many elements without it, so start all consumers again: the epoch begins again when all have left",
            self.describe(),
            gone.reason
        ))
    }

    /// Elements that a client received of a task that is lost, or may be when the client has left.
    pub(super) fn received_elements(&mut self, client: ClientId, id: TaskId, elements: u64) {
        if self.even.is_some()
            && let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state != TaskState::Done)
        {
            task.elements_of.insert(client, elements);
        }
    }

    /// A client says how many rows splits of a task have. A split of which clients have all rows is not computed again when the
    /// task is lost.
    pub(super) fn split_sizes(&mut self, id: TaskId, sizes: &[(u64, u64)]) {
        if let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state != TaskState::Done) {
            let own = sizes.iter().filter(|(split, _)| task.leases.contains_key(split));
            task.sizes.extend(own.copied());
        }
    }

    /// Rows that counted as done because a client had received them, and that its user did not take.
    fn give_back(&mut self, client: ClientId, returned: &[(u64, RowRanges)]) {
        for (split, rows) in returned {
            let mut found = false;
            for task in self.tasks.values_mut() {
                found |= task.give_back(*split, rows);
            }
            for lease in self.feeds.values_mut().filter_map(|f| f.pending.get_mut(split)) {
                lease.done.subtract(rows);
                found = true;
            }
            if !found && !rows.is_empty() && self.failure.is_none() {
                // Its task is done, so they are not computed again.
                self.missing.add(std::iter::once(rows.len()));
            }
        }
        let leases = self.tasks.values_mut().flat_map(|t| t.leases.values_mut());
        for lease in leases.chain(self.feeds.values_mut().flat_map(|f| f.pending.values_mut())) {
            lease.held.remove(&client);
        }
        for task in self.tasks.values_mut() {
            task.held.remove(&client);
        }
    }

    /// `incarnation`: of the worker, if a split may be to blame.
    pub(super) fn worker_lost(
        &mut self,
        worker: WorkerId,
        incarnation: Option<u32>,
        reason: &str,
        left: bool,
    ) {
        let flight = self.members.values().any(|m| m.flight == Some(worker));
        let ids: Vec<TaskId> = self.tasks.values().filter(|t| t.worker == worker).map(|t| t.id).collect();
        for id in ids {
            match self.tasks.get(&id) {
                // A task ends when its readers have received everything, so a worker that says that it leaves takes nothing with
                // it. Some readers may not have reported the end yet.
                Some(task) if left && !flight && task.state == TaskState::Ended => self.worker_gone(id),
                _ => self.task_lost(id, reason, incarnation),
            }
        }
        self.strikes.remove(&worker);
    }

    /// An incarnation of a worker has ended, and it did not die: its splits are not to blame, also those that were lost with it
    /// before.
    pub(super) fn withdraw_blame(&mut self, worker: WorkerId, incarnation: u32) {
        if self.last_loss.is_none() {
            // No split was ever lost. Epochs with many splits are not searched each time that a worker leaves.
            return;
        }
        for task in self.tasks.values_mut().filter(|t| t.worker == worker) {
            task.lost_incarnation = task.lost_incarnation.filter(|of| *of != incarnation);
        }
        let with_tasks = self.tasks.values_mut().flat_map(|t| t.leases.values_mut());
        for lease in with_tasks.chain(self.feeds.values_mut().flat_map(|f| f.pending.values_mut())) {
            lease.lost_with.remove(&(worker, incarnation));
        }
    }

    /// A worker gave a task up.
    pub(super) fn task_given_up(&mut self, id: TaskId, reason: &str, emitted: Option<&Vec<(u64, u64)>>) {
        if let Some(task) = self.tasks.get_mut(&id)
            && task.emitted.is_none()
            && task.state != TaskState::Done
        {
            task.emitted = emitted.cloned();
        }
        self.task_lost(id, reason, None);
    }

    /// The splits of a straggler go to other workers. It is not to blame for anything but its speed.
    pub(super) fn take_over(&mut self, id: TaskId, reason: &str) {
        if !self.lose(id, reason, None) {
            return;
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.blameless = true;
            task.leases.values_mut().for_each(|l| l.taken_over = true);
            self.stragglers.insert(task.worker);
        }
        self.settle_lost(id);
    }

    /// A task is lost through no fault of its worker.
    pub(super) fn lose_without_blame(&mut self, id: TaskId, reason: &str) {
        if self.lose(id, reason, None)
            && let Some(task) = self.tasks.get_mut(&id)
        {
            task.blameless = true;
        }
        self.settle_lost(id);
    }

    fn task_lost(&mut self, id: TaskId, reason: &str, incarnation: Option<u32>) {
        if self.tasks.get(&id).is_some_and(|t| self.is_delivered(t)) {
            self.worker_gone(id);
            return;
        }
        self.lose(id, reason, incarnation);
        self.settle_lost(id);
    }

    /// The worker of a task whose rows have all come will not report its end.
    fn worker_gone(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        self.unreported_tasks += u64::from(!task.is_reported());
        task.worker_gone = true;
        self.version += 1;
    }

    /// A task's rows will not come. Nothing changes, and the answer is false, if that is known or the task is
    /// done. `incarnation`: of its worker, if that may be to blame.
    fn lose(&mut self, id: TaskId, reason: &str, incarnation: Option<u32>) -> bool {
        let Some(task) = self.tasks.get(&id) else { return false };
        let awaiting: BTreeSet<ClientId> = self.readers_of(task).collect();
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        if task.is_lost() || task.state == TaskState::Done {
            return false;
        }
        self.version += 1;
        let worker = task.worker;
        let had_rows = !task.leases.is_empty();
        self.unreported_tasks += u64::from(had_rows && !task.is_reported());
        task.state = TaskState::Lost { awaiting };
        task.lost_incarnation = incarnation;
        self.last_loss = Some(reason.to_string());
        let flight = self.members.values().any(|m| m.flight == Some(worker));
        if flight && had_rows {
            // It is not known which of its rows the Flight reader has: the epoch cannot be completed.
            self.fail((&flight_loss(&self.describe(), reason)).into());
        } else {
            self.members.retain(|_, m| m.flight != Some(worker));
        }
        true
    }

    /// A lost task's splits go back once every client has reported what it received of them.
    fn settle_lost(&mut self, id: TaskId) {
        let settled = |t: &Task| matches!(&t.state, TaskState::Lost { awaiting } if awaiting.is_empty());
        if !self.tasks.get(&id).is_some_and(settled) {
            return;
        }
        let Some(mut task) = self.tasks.remove(&id) else { return };
        self.add_lag(&task);
        // The tasks that run its splits again skip these rows again.
        self.rows_skipped = self.rows_skipped.saturating_sub(task.rows_skipped);
        if self.failure.is_some() {
            return;
        }
        self.feeds.entry(task.feed).or_default().closed = false;
        let mut came_back = false;
        // A task that has ended had emitted all of its rows.
        let emitted = task.emitted.take().filter(|_| task.reported || !task.read_by.is_empty());
        let emitted: BTreeMap<u64, u64> = emitted.into_iter().flatten().collect();
        for (index, mut lease) in std::mem::take(&mut task.leases) {
            if let Some(rows) = emitted.get(&index) {
                lease.rows = Some(lease.done.len().saturating_add(*rows));
            }
            // Rows that users have not taken may come back.
            let size = task.sizes.get(&index).copied();
            lease.size = lease.size.or(size.filter(|rows| self.acknowledged_rows(index) == *rows));
            if let Some(rows) = task.received.get(&index) {
                lease.done.extend(rows);
            }
            lease.rows = lease.rows.or(size);
            // A split is not to blame for the death of a worker that had delivered all of it.
            let has_arrived = lease.rows.is_some_and(|rows| lease.done.len() >= rows);
            if let Some(incarnation) = task.lost_incarnation.filter(|_| !has_arrived) {
                lease.lost_with.insert((task.worker, incarnation));
                if lease.lost_with.len() >= SUSPECTED {
                    self.suspects.insert(index);
                }
            }
            for (client, held) in &task.held {
                if let Some(rows) = held.get(&index) {
                    lease.held.entry(*client).or_default().extend(rows);
                }
            }
            lease.lost += u32::from(!task.blameless);
            if !self.is_from_set_alone(&lease) {
                lease.group = None;
            }
            self.feeds.entry(task.feed).or_default().pending.insert(index, lease);
            came_back = true;
        }
        // Rows of splits that are run again may be in a part already: no set can come of this epoch.
        if came_back && let Some(plan) = self.plan.as_ref().and_then(without_set) {
            self.set_plan(Some(plan));
        }
        self.version += 1;
    }
}

fn flight_loss(iteration: &str, reason: &str) -> Error {
    Error::unavailable(format!(
        "{iteration}: {reason}; which of its rows a Flight reader received is not known, so the epoch cannot \
         be made whole: read it again under another job name"
    ))
}
