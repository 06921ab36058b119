//! Consumers: readers of a job that all get the same number of elements.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field};
use caju_pipeline::{StageDef, StageOp};
use caju_proto::v1;
use caju_types::{Balance, ClientId, Error, IterationId, Result, TaskId, Uneven, WorkerId, did_you_mean};
use caju_wire::schema_from_ipc;

use super::context::Context;
use super::reports::Reports;
use super::splits::running_task;
use super::{Txn, secrets};
use crate::state::{
    Consumers, Dataset, Even, Failure, Iteration, Job, Mode, Remainder, RemainderElement, RemainderPiece,
    TargetWorkers, Update, describe_steps,
};

/// The most consumers of one job. A task keeps a queue for each.
const MAX_CONSUMERS: u32 = 65_536;

/// The most elements that the rows of one task's remainder may fill, and that its consumers together may lack: each is assigned
/// under the lock of the state. A task keeps less than one batch per repetition, and its consumers lack what a lost worker had sent.
const MAX_REMAINDER_ELEMENTS: u64 = 1 << 20;

/// What a reader asks for; none if it shares elements as they come.
///
/// # Errors
/// `InvalidArgument` for numbers or words that mean nothing.
pub(super) fn wanted(request: &v1::OpenIterationRequest) -> Result<Option<Consumers>> {
    let (count, index) = (request.num_consumers, request.consumer_index);
    let uneven = match request.uneven.as_str() {
        "" | "drop" => Uneven::Drop,
        "pad" => Uneven::Pad,
        other => {
            let hint = did_you_mean(other, ["drop", "pad"]);
            return Err(Error::invalid(format!("uneven `{other}`{hint}: say `drop` or `pad`")));
        }
    };
    let balance = match request.balance.as_str() {
        "" | "none" => Balance::None,
        "bucket" => Balance::Bucket,
        "tokens" => Balance::Tokens,
        other => {
            let hint = did_you_mean(other, ["none", "bucket", "tokens"]);
            return Err(Error::invalid(format!("balance `{other}`{hint}: say `none`, `bucket` or `tokens`")));
        }
    };
    if count == 0 {
        return Ok(None);
    }
    if index >= count || count > MAX_CONSUMERS {
        return Err(Error::invalid(format!(
            "consumer_index {index} is not one of {count} consumers, counted from 0; at most {MAX_CONSUMERS} are possible"
        )));
    }
    Ok(Some(Consumers { count, uneven, balance }))
}

/// Whether a job can have consumers.
///
/// # Errors
/// `InvalidArgument` for modes in which workers or readers do not share one epoch.
pub(super) fn check_new(consumers: Option<&Consumers>, mode: Mode, target: TargetWorkers) -> Result<()> {
    if consumers.is_none() {
        return Ok(());
    }
    if mode != Mode::Dynamic {
        return Err(Error::invalid(format!(
            "num_consumers needs the processing mode `dynamic`, and this job has `{mode}`"
        )));
    }
    if target == TargetWorkers::Local {
        return Err(Error::invalid(
            "num_consumers and target_workers `local` exclude each other: every consumer gets elements of every worker",
        ));
    }
    Ok(())
}

/// Whether the elements of a dataset can be distributed in rounds.
///
/// # Errors
/// `InvalidArgument` that says what the definition has to change.
pub(super) fn check_dataset(consumers: Option<&Consumers>, dataset: &Dataset) -> Result<()> {
    let Some(balance) = consumers.map(|c| c.balance).filter(|b| *b != Balance::None) else { return Ok(()) };
    let definition = dataset.definition.read()?;
    let batches = definition.stages.iter().rposition(|s| s.op.makes_batches());
    if balance == Balance::Bucket {
        if let Some((at, below)) = batches.and_then(|at| Some((at, definition.computes_on_padding(at)?))) {
            return Err(Error::invalid(format!(
                "balance `bucket` pads the lists of a round to one length, and `{}` computes on lists that `{}` has padded to \
                 those of one batch: put it above `{}`, where its lists are padded with the others",
                below.name(),
                definition.stages[at].op.name(),
                definition.stages[at].op.name()
            )));
        }
        let is_hint = |s: &StageDef| matches!(s.op, StageOp::Autocache { .. });
        let classes = definition.stages.iter().rposition(|s| matches!(s.op, StageOp::BucketByLength { .. }));
        return match classes.filter(|at| definition.stages[*at..].iter().any(is_hint)) {
            None => Ok(()),
            Some(_) => Err(Error::invalid(
                "balance `bucket` needs the class of every batch, which snapshots do not have: put `autocache` above \
                 `bucket_by_length`",
            )),
        };
    }
    let pads = |s: &StageDef| {
        matches!(s.op, StageOp::PaddedBatch { .. } | StageOp::BucketByLength { pad: true, .. })
    };
    if batches.is_some_and(|at| pads(&definition.stages[at])) {
        return Err(Error::invalid(
            "balance `tokens` packs rows of any length, and this pipeline pads its batches: use `batch`, or balance `bucket`",
        ));
    }
    let sizes = definition.stages.iter().find_map(|s| match &s.op {
        StageOp::BucketByLength { batch_sizes, .. } => Some(batch_sizes),
        _ => None,
    });
    if sizes.is_some_and(|sizes| sizes.windows(2).any(|two| two[0] != two[1])) {
        return Err(Error::invalid(
            "balance `tokens` packs batches of one number of rows, and this `bucket_by_length` has another number for each \
             class: give one batch size, use `batch`, or use balance `bucket`",
        ));
    }
    let schema = schema_from_ipc(&dataset.schema_ipc)?;
    let is_sized = |field: &Arc<Field>| {
        use DataType::{Binary, BinaryView, LargeBinary, LargeList, LargeUtf8, List, Utf8, Utf8View};
        let is_bytes =
            matches!(field.data_type(), Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView);
        is_bytes || matches!(field.data_type(), List(_) | LargeList(_))
    };
    if schema.is_some_and(|schema| !schema.fields().iter().any(is_sized)) {
        return Err(Error::invalid(
            "balance `tokens` counts the items of lists, or else the bytes of texts, and no column is a list or a text: use \
             balance `bucket`",
        ));
    }
    Ok(())
}

/// Whether a reader fits an existing job.
///
/// # Errors
/// `AlreadyExists` if the job has other consumers.
pub(super) fn check_job(job: &Job, consumers: Option<&Consumers>) -> Result<()> {
    if job.spec.consumers.as_ref() == consumers {
        return Ok(());
    }
    let describe = |c: Option<&Consumers>| match c {
        Some(c) if c.balance != Balance::None => {
            format!(
                "num_consumers {}, uneven `{}` and balance `{}`",
                c.count,
                c.uneven.as_str(),
                c.balance.as_str()
            )
        }
        Some(c) => format!("num_consumers {} and uneven `{}`", c.count, c.uneven.as_str()),
        None => "no consumers".to_string(),
    };
    Err(Error::already_exists(format!(
        "job `{}` has {}, and this reader asks for {}; take another job name",
        job.name,
        describe(job.spec.consumers.as_ref()),
        describe(consumers)
    )))
}

/// Whether consumers can go on from states after these numbers of elements.
///
/// # Errors
/// `InvalidArgument` for states of different steps where the number of consumers is another one.
pub(super) fn check_steps(consumers: Option<&Consumers>, steps: &BTreeMap<u32, u64>) -> Result<()> {
    let Some(consumers) = consumers else { return Ok(()) };
    let is_same_number =
        steps.keys().all(|c| *c < consumers.count) && steps.len() == consumers.count as usize;
    let (least, most) = (steps.values().min(), steps.values().max());
    consumers.check_steps(steps)?;
    // Fewer states than consumers may be the first of them.
    let may_grow = steps.len() < consumers.count as usize && steps.keys().all(|c| *c < consumers.count);
    if is_same_number || may_grow || least == most {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the states are of different steps ({}), and {} consumers cannot have equally many elements after them: give the states \
         of one step, or read with as many consumers as before",
        describe_steps(steps),
        consumers.count
    )))
}

/// The index under which a reader joins.
///
/// # Errors
/// `AlreadyExists` if another reader has it, `FailedPrecondition` for an Arrow Flight reader, and for one that cannot read
/// from a worker that the other consumers read from.
pub(super) fn index(
    iteration: &Iteration,
    request: &v1::OpenIterationRequest,
    local: &[WorkerId],
) -> Result<Option<u32>> {
    let Some(even) = &iteration.even else { return Ok(None) };
    if request.flight {
        return Err(Error::failed_precondition(format!(
            "{} has {} consumers, and an Arrow Flight reader is none of them; take another job name",
            iteration.describe(),
            even.consumers.count
        )));
    }
    if let Some(task) = iteration.tasks.values().find(|t| t.local_only && !local.contains(&t.worker)) {
        return Err(Error::failed_precondition(format!(
            "{}: its other consumers read from {}, which only their own process reads, and every consumer gets elements of \
             every worker; take workers that all consumers reach, and another job name",
            iteration.describe(),
            task.worker
        )));
    }
    let index = request.consumer_index;
    match iteration.members.iter().find(|(_, m)| m.consumer == Some(index)) {
        None if even.joined.contains(&index) => Err(Error::failed_precondition(format!(
            "{}: consumer {index} of {} has read it already; take another job name to read the data again",
            iteration.describe(),
            even.consumers.count
        ))),
        Some((client, _)) => Err(Error::already_exists(format!(
            "{}: consumer {index} of {} is {client} already; give every consumer an index of its own",
            iteration.describe(),
            even.consumers.count
        ))),
        None => Ok(Some(index)),
    }
}

/// The consumer that holds up `waiter`: one that has not come, or the one of the others whose user took the fewest elements.
pub(super) fn slowest(reports: &Reports, iteration: &Iteration, waiter: ClientId) -> String {
    let Some(even) = &iteration.even else { return String::new() };
    if let Some(absent) = iteration.absent_consumers().next() {
        return format!("consumer {absent} of {}, which has not come", even.consumers.count);
    }
    let others = || iteration.members.iter().filter(|(client, _)| **client != waiter);
    if let Some(waits) = others().filter(|(_, m)| m.may_load).find_map(|(_, m)| m.consumer) {
        return format!("consumer {waits} of {}, whose user has asked for no element", even.consumers.count);
    }
    let taken = |client| reports.clients.get(&(iteration.id, client)).map_or(0, |r| r.elements);
    let slowest = others().min_by_key(|(client, m)| (taken(**client), m.consumer));
    let Some((client, member)) = slowest else { return String::new() };
    let consumer = member.consumer.unwrap_or_default();
    format!(
        "consumer {consumer} of {} ({client}), which has taken {} elements",
        even.consumers.count,
        taken(*client)
    )
}

/// The calls of workers that serve consumers with equal numbers of elements.
pub(crate) struct ConsumerCalls {
    pub(super) context: Arc<Context>,
}

impl ConsumerCalls {
    /// Says which elements of a task go to lagging consumers.
    pub(crate) async fn serve_lagging(
        &self,
        request: v1::ServeLaggingRequest,
    ) -> Result<v1::ServeLaggingResponse> {
        let answer = self.context.commit(|txn| serve_lagging(txn, &request)).await?;
        self.context.reports.lock().on_worker_call(WorkerId(request.worker_id), self.context.clock.now());
        Ok(answer)
    }

    /// Waits until the remainders of an epoch are assigned.
    pub(crate) async fn assign_remainder(
        &self,
        request: v1::AssignRemainderRequest,
    ) -> Result<v1::AssignRemainderResponse> {
        let deadline = self.context.deadline(request.wait_ms);
        let (id, worker) = (TaskId(request.task_id), WorkerId(request.worker_id));
        let iteration = self.context.read_durable(|state| state.task_index.get(&id).copied()).await?;
        let Some(iteration) = iteration else {
            return Err(Error::cancelled(format!("{id} is lost, or its job is over: stop it")));
        };
        let mut news = self.context.notifiers.subscribe(iteration);
        loop {
            news.borrow_and_update();
            let answer = self.context.commit(|txn| {
                secrets::worker(txn.state, worker, &request.secret)?;
                report_remainder(txn, id, worker, &request)?;
                assign_remainders(txn, iteration)?;
                let (_, task) = running_task(txn.state, id, worker)?;
                Ok(task.remainder_pieces.as_ref().map(|pieces| pieces.iter().map(to_proto).collect()))
            });
            let answer = answer.await?;
            self.context.reports.lock().on_worker_call(worker, self.context.clock.now());
            if let Some(pieces) = answer {
                return Ok(v1::AssignRemainderResponse { assigned: true, pieces });
            }
            if !self.context.wait(&mut news, deadline).await? {
                return Ok(v1::AssignRemainderResponse::default());
            }
        }
    }
}

fn serve_lagging(txn: &mut Txn<'_>, request: &v1::ServeLaggingRequest) -> Result<v1::ServeLaggingResponse> {
    let (id, worker) = (TaskId(request.task_id), WorkerId(request.worker_id));
    secrets::worker(txn.state, worker, &request.secret)?;
    let (iteration, task) = running_task(txn.state, id, worker)?;
    let Some(even) = &iteration.even else { return Err(no_consumers(iteration)) };
    if request.request_no < task.last_serve {
        return Err(Error::failed_precondition(format!(
            "{id}: request {} for lagging consumers came after request {}",
            request.request_no, task.last_serve
        )));
    }
    if request.request_no > task.last_serve {
        // Also where none is lagging: a copy of the request that comes late must get the same answer.
        let counts = even.next_to_serve(request.elements);
        txn.apply(Update::LaggingServed { task: id, request_no: request.request_no, counts });
    }
    let (iteration, task) = running_task(txn.state, id, worker)?;
    let has_lagging = iteration.even.as_ref().is_some_and(Even::has_lagging);
    Ok(v1::ServeLaggingResponse { counts: task.last_served.clone(), has_lagging })
}

fn no_consumers(iteration: &Iteration) -> Error {
    Error::failed_precondition(format!("{} has no consumers", iteration.describe()))
}

fn report_remainder(
    txn: &mut Txn<'_>,
    id: TaskId,
    worker: WorkerId,
    request: &v1::AssignRemainderRequest,
) -> Result<()> {
    let (iteration, task) = running_task(txn.state, id, worker)?;
    let Some(even) = &iteration.even else { return Err(no_consumers(iteration)) };
    check_remainder(id, request, &even.consumers)?;
    if task.remainder.is_none() {
        let mut lag = request.lag.clone();
        lag.resize(even.lag.len(), 0);
        let remainder = Remainder {
            elements: request.elements,
            rows: request.rows,
            batch_rows: request.batch_rows,
            drop_remainder: request.drop_remainder,
            lag,
            kinds: request.kinds.iter().map(kind_of).collect(),
            row_widths: request.row_widths.clone(),
            has_spare: request.has_spare,
        };
        txn.apply(Update::RemainderReported { task: id, remainder });
    }
    Ok(())
}

/// Whether a remainder can be assigned in bounded time and memory.
fn check_remainder(id: TaskId, request: &v1::AssignRemainderRequest, consumers: &Consumers) -> Result<()> {
    let count = u64::from(consumers.count);
    let is_in_rounds = consumers.balance != Balance::None;
    let mut of_class: BTreeMap<u32, u64> = BTreeMap::new();
    request.kinds.iter().for_each(|element| *of_class.entry(element.bucket).or_default() += 1);
    // In rounds: less than a round of full elements of each class, and less than one of those with fewer rows. `tokens` keeps
    // less than a round and one element with fewer rows.
    let of_two = count.saturating_mul(2).saturating_sub(1);
    let most = if is_in_rounds { of_two.max(count.saturating_add(1)) } else { count };
    let largest = if is_in_rounds { of_class.values().copied().max().unwrap_or(0) } else { request.elements };
    if is_in_rounds && request.kinds.len() as u64 != request.elements {
        return Err(Error::invalid(format!(
            "{id} keeps {} elements, and describes {} of them; run workers of the dispatcher's version",
            request.elements,
            request.kinds.len()
        )));
    }
    if largest >= most || request.lag.len() as u64 > count {
        return Err(Error::invalid(format!(
            "{id} keeps {largest} elements for {count} consumers: it should have assigned a round"
        )));
    }
    let of_rows = request.rows.checked_div(request.batch_rows).unwrap_or(0);
    let lag = request.lag.iter().fold(0, |sum: u64, more| sum.saturating_add(*more));
    if of_rows > MAX_REMAINDER_ELEMENTS || lag > MAX_REMAINDER_ELEMENTS {
        return Err(Error::invalid(format!(
            "{id} keeps rows of {of_rows} elements at its end, and its consumers lack {lag}; at most \
             {MAX_REMAINDER_ELEMENTS} are possible: start the epoch again under another job name"
        )));
    }
    Ok(())
}

fn assign_remainders(txn: &mut Txn<'_>, id: IterationId) -> Result<()> {
    match txn.state.iterations.get(&id).and_then(Iteration::assign_remainders) {
        None => Ok(()),
        Some(Ok(assignment)) => {
            txn.apply(Update::RemaindersAssigned { iteration: id, assignment });
            Ok(())
        }
        Some(Err(error)) => {
            txn.apply(Update::IterationFailed { iteration: id, failure: Failure::from(&error) });
            Err(error)
        }
    }
}

fn kind_of(element: &v1::RemainderElement) -> RemainderElement {
    RemainderElement {
        bucket: element.bucket.checked_sub(1),
        widths: element.widths.clone(),
        rows: element.rows,
    }
}

fn to_proto(piece: &RemainderPiece) -> v1::RemainderPiece {
    let RemainderPiece { consumer, of_rows, start, end, copy, round, pad_to } = piece.clone();
    v1::RemainderPiece { consumer, of_rows, start, end, copy, round, pad_to }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remainder_that_cannot_be_assigned_in_bounded_time_is_refused() {
        let check = |request: v1::AssignRemainderRequest| {
            let consumers = Consumers { count: 2, uneven: Uneven::Drop, balance: Balance::None };
            check_remainder(TaskId(7), &request, &consumers).map_err(|e| e.message().to_string())
        };
        let remainder = v1::AssignRemainderRequest {
            elements: 1,
            rows: 9,
            batch_rows: 10,
            lag: vec![0, 3],
            ..Default::default()
        };
        assert_eq!(check(remainder.clone()), Ok(()));
        assert_eq!(check(v1::AssignRemainderRequest { batch_rows: 0, ..remainder.clone() }), Ok(()));
        for bad in [
            v1::AssignRemainderRequest { elements: 2, ..remainder.clone() },
            v1::AssignRemainderRequest { lag: vec![0; 3], ..remainder.clone() },
            v1::AssignRemainderRequest { rows: u64::MAX, batch_rows: 1, ..remainder.clone() },
            v1::AssignRemainderRequest { lag: vec![u64::MAX, u64::MAX], ..remainder },
        ] {
            assert!(check(bad).is_err_and(|e| e.starts_with("task-7 keeps")));
        }
    }
}
