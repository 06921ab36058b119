//! The end of tasks and epochs: whether what the users of clients took is what tasks emitted.
//!
//! The rule about which rows each client has is in [`crate::state::Iteration`]'s module. What clients acknowledge is
//! journaled, together with what follows from it (a task is done, rows are missing, a client vanished with rows). After a
//! restart of the dispatcher clients send all of it again, since the answer to the last acknowledgement may have been lost. Of a
//! client that is gone by then the journal knows it.
//!
//! A reader may leave when the users of all readers have taken every row of the epoch. What another reader has received and
//! its user has not taken comes back when that reader dies, and somebody must be there to read it. A user may stand still
//! for any time, and may itself wait for the one that is at its end, as in a collective operation. So a reader that calls
//! while its user takes nothing is waited for no longer than the dispatcher's `--reader-wait`. One that does not call is
//! waited for until it is expelled. The rows of consumers, which get equally many elements, go to nobody else: a consumer
//! at its end waits for a call of the others alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use caju_proto::v1;
use caju_types::{ClientId, Error, IterationId, Result, RowRanges, TaskId, format_count};

use super::Txn;
use super::acknowledged_rows::Reported;
use super::reports::Reports;
use crate::state::{Acknowledged, Failure, Iteration, Lease, Member, Task, TaskState, Update};

impl Reports {
    /// Enters what a client acknowledged, and what follows from it. Whether there were rows that are new.
    ///
    /// # Errors
    /// `ResourceExhausted` for a client that acknowledges rows in too many pieces.
    pub(super) fn acknowledge(
        &mut self,
        txn: &mut Txn<'_>,
        (client, id): (ClientId, IterationId),
        mut reported: Reported,
        request: &v1::ClientHeartbeatRequest,
    ) -> Result<bool> {
        let Some(iteration) = txn.state.iterations.get(&id) else { return Ok(false) };
        let (taken_tasks, elements) = (&request.taken_tasks, request.elements);
        let is_compared = self.compared.get(&id) == Some(&iteration.version);
        // Rows alone end no task that their reader reads: it says when its user took all of the task.
        let ends_others = reported.has_rows() && iteration.awaits_rows_of(client);
        let may_end = reported.is_all() || !taken_tasks.is_empty() || !is_compared || ends_others;
        let takes_first = reported.has_rows() && iteration.members.get(&client).is_some_and(|m| !m.took);
        if reported.is_all() {
            self.complete.insert((id, client));
        }
        let completes_splits = iteration.completes_splits;
        let mut open_splits: BTreeSet<u64> = match completes_splits {
            true => self.add_sizes(iteration, &request.sizes).into_iter().collect(),
            false => BTreeSet::new(),
        };
        if reported.has_rows() {
            self.notify_of_complete(iteration, client, reported.splits());
            reported.keep_open(iteration, &mut self.holders);
        }
        let known = iteration.acknowledged_by(client);
        let rows = reported.news(known)?;
        let is_further = iteration.even.is_some() && elements > known.map_or(0, |known| known.elements);
        let has_rows = !rows.is_empty();
        if takes_first {
            txn.apply(Update::ClientTook { client, iteration: id });
        }
        if has_rows || is_further {
            if let Some(iteration) = txn.state.iterations.get(&id).filter(|_| completes_splits) {
                open_splits.extend(rows.iter().map(|(split, _)| *split));
                self.completed_splits.acknowledge(iteration, &rows);
            }
            txn.apply(Update::RowsAcknowledged { client, iteration: id, rows, elements });
        }
        if !open_splits.is_empty() {
            self.complete_splits(txn, id, &open_splits);
        }
        for task in taken_tasks.iter().copied().map(TaskId) {
            let known = txn.state.task(task).is_some_and(|(iteration, task)| {
                iteration.id == id
                    && task.read_by.contains(&client)
                    && !task.taken_by.contains(&client)
                    && !task.is_lost()
            });
            if known {
                txn.apply(Update::ClientTaken { client, task });
            }
        }
        if may_end {
            self.settle_tasks(txn, id);
        }
        Ok(has_rows || is_further)
    }

    /// Whether this process knows all that a client has acknowledged: the client joined it, or has sent all of it again.
    pub(super) fn has_all_of(&self, id: IterationId, client: ClientId) -> bool {
        self.complete.contains(&(id, client))
    }

    /// Compares what ended tasks emitted with what the users of clients took, as soon as both are known.
    pub(super) fn settle_tasks(&mut self, txn: &mut Txn<'_>, id: IterationId) {
        let Some(iteration) = txn.state.iterations.get(&id).filter(|i| i.failure.is_none()) else { return };
        let mut updates = Vec::new();
        for task in iteration.to_settle().into_iter().filter_map(|t| iteration.tasks.get(&t)) {
            let Some(Sums { missing, surplus }) = compare(self, iteration, task) else { continue };
            if let Some((split, rows)) = surplus.first() {
                let error = too_many(iteration, task, *split, *rows);
                tracing::error!("{error}");
                updates = vec![Update::IterationFailed { iteration: id, failure: Failure::from(&error) }];
                break;
            }
            if !missing.is_empty() {
                tracing::error!(
                    "{}: {} rows that {} emitted in {} splits were acknowledged by no reader",
                    iteration.describe(),
                    format_count(missing.iter().fold(0, |sum: u64, (_, rows)| sum.saturating_add(*rows))),
                    task.id,
                    missing.len()
                );
            }
            let taken = acknowledged_rows(iteration, task);
            self.holders.forget_task(id, task);
            self.completed_splits.forget_task(id, task);
            updates.push(Update::TaskSettled { task: task.id, missing, taken });
        }
        updates.into_iter().for_each(|update| txn.apply(update));
        if let Some(iteration) = txn.state.iterations.get(&id) {
            self.compared.insert(id, iteration.version);
        }
    }
}

/// The difference between the rows that users took and those that they should have, per split.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    missing: Vec<(u64, u64)>,
    /// Rows that several users took, or that no task emitted.
    surplus: Vec<(u64, u64)>,
}

/// Compares one task; nothing while clients have not said all, and no difference where its worker does not count.
fn compare(reports: &Reports, iteration: &Iteration, task: &Task) -> Option<Sums> {
    if !iteration.own_members().all(|c| reports.has_all_of(iteration.id, c)) {
        return None;
    }
    let clients: Vec<&Acknowledged> =
        iteration.own_members().filter_map(|c| iteration.acknowledged_by(c)).collect();
    let uncounted = iteration.flight_readers && task.to_flight.is_none();
    let Some(emitted) = task.emitted.as_ref().filter(|_| !uncounted) else { return Some(Sums::default()) };
    let emitted: HashMap<u64, u64> = emitted.iter().copied().collect();
    let to_flight: HashMap<u64, u64> = task.to_flight.iter().flatten().copied().collect();
    let (completed, others): (Vec<u64>, Vec<u64>) =
        emitted.keys().copied().partition(|split| iteration.is_complete(*split));
    let splits: BTreeSet<u64> = task.leases.keys().copied().chain(others).collect();
    let mut sums = Sums::default();
    if let Some(forgotten) = task.forgotten_rows {
        let of_completed = completed.iter().filter_map(|split| emitted.get(split));
        let emitted = of_completed.fold(forgotten, |sum, rows| sum.saturating_add(*rows));
        // Users had taken each of these rows once when the splits were complete. What was emitted since was taken by nobody, or
        // twice.
        let surplus = emitted.saturating_sub(task.completed_rows);
        sums.surplus.extend(completed.first().filter(|_| surplus > 0).map(|split| (*split, surplus)));
    }
    for split in splits {
        let lease = task.leases.get(&split);
        let delivered = lease.map_or(0, |l| l.done.len());
        let expected = emitted.get(&split).copied().unwrap_or(0).saturating_add(delivered);
        let (users, doubled) = taken_by_users(clients.iter().copied(), task, lease, split);
        let have = users.saturating_add(to_flight.get(&split).copied().unwrap_or(0));
        if have < expected {
            sums.missing.push((split, expected - have));
        }
        let surplus = have.saturating_sub(expected).saturating_add(doubled);
        if surplus > 0 {
            sums.surplus.push((split, surplus));
        }
    }
    Some(sums)
}

/// Rows of a split that users took, and rows of those that several users took.
pub(super) fn taken_by_users<'a>(
    clients: impl Iterator<Item = &'a Acknowledged>,
    task: &Task,
    lease: Option<&Lease>,
    split: u64,
) -> (u64, u64) {
    let (mut taken, mut doubled) = (RowRanges::default(), 0u64);
    for client in clients {
        let rows = client.of(split);
        let sum = taken.len().saturating_add(rows.len());
        taken.extend(&rows);
        doubled = doubled.saturating_add(sum.saturating_sub(taken.len()));
    }
    if let Some(lease) = lease {
        // What present clients hold of it is taken when they acknowledge it, and not before.
        let mut done = lease.done.clone();
        lease.held.values().for_each(|held| done.subtract(held));
        taken.extend(&done);
    }
    if let Some(received) = task.received.get(&split) {
        taken.extend(received);
    }
    (taken.len(), doubled)
}

/// How many rows of a task each present client acknowledged.
fn acknowledged_rows(iteration: &Iteration, task: &Task) -> Vec<(ClientId, u64)> {
    let of = |client: ClientId| {
        let known = iteration.acknowledged_by(client)?;
        Some(task.leases.keys().fold(0, |sum: u64, split| sum.saturating_add(known.of(*split).len())))
    };
    iteration.own_members().filter_map(|c| Some((c, of(c)?))).filter(|(_, rows)| *rows > 0).collect()
}

fn too_many(iteration: &Iteration, task: &Task, split: u64, rows: u64) -> Error {
    Error::data_loss(format!(
        "{}: {} rows of split {split} are acknowledged that {} did not emit, or by several readers: rows were delivered \
         twice, or the state directory is an old copy of what the dispatcher had; nothing that was read of this epoch can \
         be relied on; read it again under another job name, and report this if the directory is no copy",
        iteration.describe(),
        format_count(rows),
        task.id
    ))
}

/// Whether the user of a reader has taken all that the reader will get, and it has said so in full.
pub(super) fn is_at_end(reports: &Reports, iteration: &Iteration, client: ClientId) -> bool {
    reports.has_all_of(iteration.id, client) && iteration.has_taken_all(client)
}

/// Whether a reader may leave. `reader_wait` bounds the wait for a user that takes nothing.
pub(super) fn may_leave(
    reports: &Reports,
    iteration: &Iteration,
    client: ClientId,
    reader_wait: Duration,
) -> bool {
    let patience = if iteration.even.is_some() { Duration::ZERO } else { reader_wait };
    let others = || iteration.own_members().filter(|c| *c != client && iteration.share_tasks(*c, client));
    is_at_end(reports, iteration, client)
        && !iteration.awaits_report()
        && others().all(|c| {
            is_at_end(reports, iteration, c) || reports.is_stalled(iteration.id, c, client, patience)
        })
}

/// A client fell silent. What its user took is delivered, of every task that is not done; the rest goes to others.
pub(super) fn vanished(reports: &Reports, iteration: &Iteration, client: ClientId) -> Update {
    let acknowledged = iteration.acknowledged_by(client);
    let taken = |split: u64| acknowledged.map(|a| a.of(split)).unwrap_or_default();
    let of_task = |task: &Task| {
        let rows = task.leases.keys().map(|split| (*split, taken(*split)));
        (task.id, rows.filter(|(_, rows)| !rows.is_empty()).collect())
    };
    let open = iteration.tasks.values().filter(|t| t.state != TaskState::Done);
    let received = open.map(of_task).filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty()).collect();
    let mut returned: BTreeMap<u64, RowRanges> = BTreeMap::new();
    for (split, held) in held_by(iteration, client) {
        let mut rows = held.clone();
        rows.subtract(&taken(split));
        if !rows.is_empty() {
            returned.entry(split).or_default().extend(&rows);
        }
    }
    let member = iteration.members.get(&client);
    let done = member.map_or(0, |m| m.rows_done);
    let rows = acknowledged.map_or(0, Acknowledged::total).saturating_add(done);
    let is_known = knows_rows(reports, iteration, client);
    let all_done = || iteration.tasks.values().all(|t| t.state == TaskState::Done);
    let has_left = iteration.has_taken_all(client) && (is_known || all_done());
    let unknown = !has_left && !is_known && member.is_some_and(|m| m.took);
    Update::ClientGone {
        client,
        iteration: iteration.id,
        received,
        broken_off: Vec::new(),
        reason: "it was silent for longer than the client timeout".to_string(),
        returned: returned.into_iter().collect(),
        // A client whose user had taken every row, and that only had to leave, counts as having left.
        vanished: (!has_left).then_some(rows),
        unknown,
        elements: Vec::new(),
    }
}

/// Whether it is known which rows the user of a client took by the last acknowledgement that was answered.
pub(super) fn knows_rows(reports: &Reports, iteration: &Iteration, client: ClientId) -> bool {
    reports.has_all_of(iteration.id, client) || iteration.members.get(&client).is_some_and(|m| m.is_journaled)
}

/// Rows that a client received from lost tasks, per split.
fn held_by(iteration: &Iteration, client: ClientId) -> impl Iterator<Item = (u64, &RowRanges)> {
    let leased = iteration.tasks.values().flat_map(|t| t.leases.iter());
    let pending = iteration.feeds.values().flat_map(|f| f.pending.iter());
    let of_lease = move |(split, lease): (&u64, &'_ Lease)| lease.held.get(&client).map(|_| *split);
    let splits: Vec<u64> = leased.chain(pending).filter_map(of_lease).collect();
    let of_leases =
        splits.into_iter().filter_map(move |s| Some((s, iteration.lease_of(s)?.held.get(&client)?)));
    let of_tasks = iteration.tasks.values().filter_map(move |t| t.held.get(&client));
    of_leases.chain(of_tasks.flatten().map(|(split, rows)| (*split, rows)))
}

/// Why an epoch is not whole, for a reader of it; nothing while nothing is missing.
pub(super) fn incomplete(iteration: &Iteration, member: Option<&Member>) -> Option<v1::Incomplete> {
    let missing = &iteration.missing;
    if missing.rows == 0 && iteration.lost_readers.is_empty() {
        return None;
    }
    let strict = member.map_or(iteration.strict, |m| !m.allow_lost);
    let taken = iteration.rows_of_lost_readers();
    Some(v1::Incomplete {
        rows_missing: missing.rows.saturating_add(if strict { taken } else { 0 }),
        splits: missing.splits,
        why: why(iteration),
        rows_taken_by_lost_readers: taken,
        fatal: missing.rows > 0 || strict || iteration.has_unknown_rows(),
        rows_unknown: iteration.has_unknown_rows(),
    })
}

/// The reasons, in one sentence that names who and how many.
fn why(iteration: &Iteration) -> String {
    let is_reopened = iteration.resume.as_deref().is_some_and(|r| !r.reopen_reason.is_empty());
    let since = if is_reopened { "a consumer was gone" } else { "the dispatcher had lost its state" };
    let mut reasons: Vec<String> = iteration
        .lost_readers
        .iter()
        .map(|r| match r.unknown {
            _ if r.not_back => format!(
                "{} of this job did not come back after {since}: rows that its user had taken come twice",
                r.client
            ),
            true => format!(
                "{} of this job vanished after its user had taken rows, and before it had reported them to the dispatcher, \
                 which was restarted: some of them come twice",
                r.client
            ),
            false => format!(
                "{} of this job vanished after its user had taken {} rows",
                r.client,
                format_count(r.rows)
            ),
        })
        .collect();
    if iteration.missing.rows > 0 {
        reasons.push(format!(
            "{} rows of {} splits were sent and acknowledged by no reader",
            format_count(iteration.missing.rows),
            format_count(iteration.missing.splits)
        ));
    }
    reasons.join("; ")
}

/// The error of a reader that may not join an epoch that is not whole.
pub(super) fn refuse(iteration: &Iteration) -> Error {
    let accept = match iteration.missing.rows > 0 || iteration.has_unknown_rows() {
        true => "or read another epoch",
        false => {
            "read another epoch, or accept it with --lost-readers allow (Python: lost_readers=\"allow\")"
        }
    };
    Error::failed_precondition(format!(
        "{} is incomplete: {}, so a reader that joins now cannot get all rows exactly once; take another job name, \
         {accept}",
        iteration.describe(),
        why(iteration)
    ))
}
