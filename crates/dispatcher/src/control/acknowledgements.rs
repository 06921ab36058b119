//! Whether what clients acknowledged is what tasks emitted.
//!
//! What clients acknowledge is kept in memory alone: after a restart of the dispatcher they send all of it again. What
//! follows from it (a task is done, rows are missing, a client vanished with rows) is journaled.

use std::collections::BTreeMap;

use caju_proto::v1;
use caju_types::{ClientId, Error, IterationId, Result, RowRanges, RowSet, TaskId, format_count};

use super::Txn;
use super::acknowledged::{Acknowledged, Rows};
use super::reports::Reports;
use crate::state::{Iteration, Lease, Member, Task, TaskState, Update};

/// The rows of a message.
///
/// # Errors
/// `InvalidArgument` if they are no ranges.
pub(super) fn rows_of(rows: &v1::SplitRows) -> Result<(u64, RowRanges)> {
    if let Some(odd) = rows.rows.iter().find(|r| r.start > r.end) {
        return Err(Error::invalid(format!(
            "rows {}..{} of split {} are no range",
            odd.start, odd.end, rows.split_index
        )));
    }
    let mut ranges: RowRanges = rows.rows.iter().map(|r| (r.start, r.end)).collect();
    let mut scattered = RowSet::default();
    rows.words.iter().zip(&rows.bits).for_each(|(word, bits)| scattered.insert_word(*word, *bits));
    ranges.extend(&scattered.ranges());
    Ok((rows.split_index, ranges))
}

impl Reports {
    /// Enters what a client acknowledged, and what follows from it.
    pub(super) fn acknowledge(
        &mut self,
        txn: &mut Txn<'_>,
        client: ClientId,
        id: IterationId,
        request: &v1::ClientHeartbeatRequest,
    ) {
        if !request.acknowledged.is_empty() || request.acknowledged_all {
            let known = self.acknowledged.entry((id, client)).or_default();
            known.add(&request.acknowledged, request.acknowledged_all);
        }
        let member = txn.state.iterations.get(&id).and_then(|i| i.members.get(&client));
        if !request.acknowledged.is_empty() && member.is_some_and(|m| !m.took) {
            txn.apply(Update::ClientTook { client, iteration: id });
        }
        for task in request.taken_tasks.iter().copied().map(TaskId) {
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
        self.settle_tasks(txn, id);
    }

    /// Compares what ended tasks emitted with what clients acknowledged, as soon as both are known.
    pub(super) fn settle_tasks(&self, txn: &mut Txn<'_>, id: IterationId) {
        let Some(iteration) = txn.state.iterations.get(&id).filter(|i| i.failure.is_none()) else { return };
        let tasks = iteration.to_settle().into_iter().filter_map(|t| iteration.tasks.get(&t));
        let settled: Vec<Update> = tasks
            .filter_map(|task| {
                let missing = missing(self, iteration, task)?;
                if !missing.is_empty() {
                    let rows: u64 = missing.iter().map(|(_, rows)| rows).sum();
                    tracing::error!(
                        "{}: {} rows that {} emitted in {} splits were acknowledged by nobody",
                        iteration.describe(),
                        format_count(rows),
                        task.id,
                        missing.len()
                    );
                }
                Some(Update::TaskSettled { task: task.id, missing })
            })
            .collect();
        settled.into_iter().for_each(|update| txn.apply(update));
    }
}

/// Rows per split that a task emitted and nobody acknowledged; nothing while that is not known.
fn missing(reports: &Reports, iteration: &Iteration, task: &Task) -> Option<Vec<(u64, u64)>> {
    let (Some(emitted), false) = (&task.emitted, iteration.flight_readers) else { return Some(Vec::new()) };
    let clients: Option<Vec<&Acknowledged>> = iteration
        .own_members()
        .map(|c| reports.acknowledged.get(&(iteration.id, c)).filter(|a| a.complete))
        .collect();
    let clients = clients?;
    let missing = |(split, rows): &(u64, u64)| {
        let done = task.leases.get(split).map(|l| &l.done);
        let received = task.received.get(split);
        let expected = rows + done.map_or(0, RowRanges::len);
        let of_clients = || clients.iter().filter_map(|a| a.splits.get(split));
        let have = if done.is_none_or(RowRanges::is_empty) && received.is_none() {
            of_clients().map(Rows::len).sum()
        } else {
            let mut all = done.cloned().unwrap_or_default();
            received.into_iter().for_each(|r| all.extend(r));
            of_clients().for_each(|a| all.extend(&a.union()));
            all.len()
        };
        (have < expected).then(|| (*split, expected - have))
    };
    Some(emitted.iter().filter_map(missing).collect())
}

/// A client fell silent. What its user took is taken; the rest goes to others.
pub(super) fn vanished(
    iteration: &Iteration,
    client: ClientId,
    acknowledged: Option<&Acknowledged>,
) -> Update {
    let taken = |split: u64| acknowledged.map(|a| a.of(split)).unwrap_or_default();
    let of_task = |task: &Task| {
        let rows = task.leases.keys().map(|split| (*split, taken(*split)));
        (task.id, rows.filter(|(_, rows)| !rows.is_empty()).collect())
    };
    let open =
        iteration.tasks.values().filter(|t| t.state != TaskState::Done && !t.taken_by.contains(&client));
    let received = open.map(of_task).filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty()).collect();
    let mut returned: BTreeMap<u64, RowRanges> = BTreeMap::new();
    for (split, held) in held_by(iteration, client) {
        let mut rows = held.clone();
        rows.subtract(&taken(split));
        if !rows.is_empty() {
            returned.entry(split).or_default().extend(&rows);
        }
    }
    // A client that had taken everything has left.
    let rows = acknowledged.map_or(0, Acknowledged::total);
    Update::ClientGone {
        client,
        iteration: iteration.id,
        received,
        broken_off: Vec::new(),
        reason: "it was silent for longer than the client timeout".to_string(),
        returned: returned.into_iter().collect(),
        vanished: (!iteration.is_accounted_for(client)).then_some(rows),
    }
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
        rows_missing: missing.rows + if strict { taken } else { 0 },
        splits: missing.splits,
        why: why(iteration),
        rows_taken_by_lost_readers: taken,
        fatal: missing.rows > 0 || strict,
    })
}

/// The reasons, in one sentence that names who and how many.
fn why(iteration: &Iteration) -> String {
    let mut reasons: Vec<String> = iteration
        .lost_readers
        .iter()
        .map(|r| {
            format!(
                "{} of this job vanished after its user had taken {} rows",
                r.client,
                format_count(r.rows)
            )
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
    Error::failed_precondition(format!(
        "{} is incomplete: {}, so a reader that joins now cannot get all rows; take another job name, read another \
         epoch, or accept it with --lost-readers allow (Python: lost_readers=\"allow\")",
        iteration.describe(),
        why(iteration)
    ))
}
