//! Leases of splits.

use std::sync::Arc;

use caju_proto::v1;
use caju_types::{Error, IterationId, Result, RowRanges, TaskId, WorkerId, format_count};

use super::context::Context;
use super::fairness::fair_count;
use super::listings::Listings;
use super::peer_reports::PeerReports;
use super::task_messages::listed_splits;
use super::{Txn, secrets, sharing};
use crate::state::{Even, Failure, FeedId, Iteration, Lease, SplitRecord, State, Task, Update, WorkerState};

/// The most splits in one answer.
const MAX_SPLITS: usize = 1024;

/// Leases splits to tasks.
pub(crate) struct SplitLeases {
    pub(super) context: Arc<Context>,
    pub(super) listings: Listings,
}

impl SplitLeases {
    pub(crate) async fn next_splits(&self, request: v1::NextSplitsRequest) -> Result<v1::NextSplitsResponse> {
        let deadline = self.context.deadline(request.wait_ms);
        let id = TaskId(request.task_id);
        let place = |state: &State| state.task_index.get(&id).copied();
        // Only that a task is gone has to be durable: the lease is.
        let iteration = match self.context.store.read(place) {
            Some(found) => Some(found),
            None => self.context.read_durable(place).await?,
        };
        let Some(iteration) = iteration else { return Err(gone(id)) };
        let mut news = self.context.notifiers.subscribe_splits(iteration);
        loop {
            news.borrow_and_update();
            let answer = self.context.commit(|txn| self.lease(txn, &request)).await?;
            self.context.reports.record_lease(iteration, &request, answer.as_ref());
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if !self.context.wait(&mut news, deadline).await? {
                return Ok(v1::NextSplitsResponse::default());
            }
        }
    }

    /// One attempt to answer; none if there is nothing to hand out now.
    fn lease(
        &self,
        txn: &mut Txn<'_>,
        request: &v1::NextSplitsRequest,
    ) -> Result<Option<v1::NextSplitsResponse>> {
        let id = TaskId(request.task_id);
        let worker = WorkerId(request.worker_id);
        secrets::worker(txn.state, worker, &request.secret)?;
        running_task(txn.state, id, worker)?;
        if !request.skipped_splits.is_empty() {
            self.context.reports.lock().skip_splits(txn, id, &request.skipped_splits);
        }
        let (iteration, task) = running_task(txn.state, id, worker)?;
        if request.request_no == task.last_request && request.request_no > 0 {
            return Ok(Some(self.answer(iteration, task, request.completed_seen)));
        }
        if request.request_no < task.last_request {
            return Err(Error::failed_precondition(format!(
                "{id}: request {} for splits came after request {}",
                request.request_no, task.last_request
            )));
        }
        if task.told_end || task.is_over() {
            return Ok(Some(v1::NextSplitsResponse { end: true, ..Default::default() }));
        }
        let (iteration_id, feed_id) = (iteration.id, task.feed);
        if !request.empty_splits.is_empty() {
            let describe = iteration.describe();
            let added = self.context.reports.lock().add_empty(txn, request);
            added.map_err(|e| fail(txn, iteration_id, e.context(describe)))?;
        }
        let chosen = self.shared_splits(txn, (iteration_id, feed_id, worker), request);
        let Some((iteration, task)) = txn.state.task(id) else { return Ok(None) };
        let found = match chosen.is_empty() {
            false => Some(Available::Waiting(chosen)),
            true => self.find_splits(txn.state, iteration, task, request.want),
        };
        let Some(found) = found else { return Ok(None) };
        match found {
            Available::Waiting(requeued) => txn.apply(leased(request, Vec::new(), requeued, false)),
            Available::Fresh(fresh) => txn.apply(leased(request, fresh, Vec::new(), false)),
            Available::End { exhausted } => {
                if let Some(listing) = exhausted {
                    if let Some(e) = other_listing(iteration, listing) {
                        return Err(fail(txn, iteration_id, e));
                    }
                    let source_changed = changed_source(txn.state, iteration, feed_id);
                    if let Some(changed) = &source_changed {
                        // A target of its own: `caju run` hides the other lines of this module.
                        tracing::warn!(target: "caju_dispatcher::source", "{}: {changed}", iteration.describe());
                    }
                    let feed = feed_id;
                    txn.apply(Update::FeedExhausted {
                        iteration: iteration_id,
                        feed,
                        listing,
                        source_changed,
                    });
                }
                txn.apply(leased(request, Vec::new(), Vec::new(), true));
            }
            Available::Failed(e) => {
                let e = e.context(iteration.describe());
                return Err(fail(txn, iteration_id, e));
            }
        }
        let mut reports = self.context.reports.lock();
        if let Some((iteration, task)) = txn.state.task(id) {
            reports.holders.leased(iteration, task);
            reports.sharing.leased(iteration.id, task);
        }
        reports.complete_leased(txn, id);
        let Some((iteration, task)) = txn.state.task(id) else { return Ok(None) };
        if let Some(checksums) = reports.row_checksums.get_mut(&iteration.id) {
            let given = task.last_answer.iter();
            checksums.begin_again(given.filter_map(|index| task.leases.get_key_value(index)));
        }
        drop(reports);
        Ok(Some(self.answer(iteration, task, request.completed_seen)))
    }

    fn answer(&self, iteration: &Iteration, task: &Task, completed_seen: u64) -> v1::NextSplitsResponse {
        let mut reports = self.context.reports.lock();
        let (completed, completed_up_to) = reports.completed_splits.for_task(task.id, completed_seen);
        let checksums = reports.row_checksums.get(&iteration.id);
        let lease = |index: &u64| {
            let lease = task.leases.get(index)?;
            let split = to_proto(*index, lease, iteration.plan_of(lease).map_or("", |p| p.text()));
            let checksums = checksums.map(|c| c.of(*index, &lease.done)).unwrap_or_default();
            Some(v1::SplitLease { checksums, ..split })
        };
        v1::NextSplitsResponse {
            splits: task.last_answer.iter().filter_map(lease).collect(),
            end: task.told_end,
            lag: task.last_lag.clone(),
            has_lagging: iteration.even.as_ref().is_some_and(Even::has_lagging),
            completed,
            completed_up_to,
            listed: iteration.feeds.get(&task.feed).and_then(|feed| listed_splits(task.feed, feed)),
        }
    }

    /// Splits for a task of a job that shares, by index; empty if it gets them as any other.
    fn shared_splits(
        &self,
        txn: &mut Txn<'_>,
        (id, feed, worker): (IterationId, FeedId, WorkerId),
        request: &v1::NextSplitsRequest,
    ) -> Vec<u64> {
        let Some(iteration) = txn.state.iterations.get(&id) else { return Vec::new() };
        if request.sharing_points.is_empty() {
            return Vec::new();
        }
        // Jobs with an order share rows, too, and take their splits in it.
        self.context.reports.lock().sharing.on_request(id, request);
        if !sharing::has_free_order(txn.state, iteration) {
            return Vec::new();
        }
        if txn.state.workers.get(&worker).is_some_and(|w| w.state == WorkerState::Draining) {
            return Vec::new();
        }
        let exhausted = iteration.feeds.get(&feed).is_some_and(|f| f.exhausted);
        let provider = (!exhausted).then(|| self.listings.provider(txn.state, iteration, feed));
        let want = count_of(request.want);
        let mut reports = self.context.reports.lock();
        sharing::take(txn, &mut reports.sharing, (id, feed), provider.as_ref(), (request, want))
    }

    fn find_splits(&self, state: &State, iteration: &Iteration, task: &Task, want: u32) -> Option<Available> {
        let draining = state.workers.get(&task.worker).is_some_and(|w| w.state == WorkerState::Draining);
        if draining && !iteration.exclusive && state.active_workers().any(|w| iteration.is_readable(w)) {
            // The others can take the rest, and this worker can leave.
            return Some(Available::End { exhausted: None });
        }
        let want = count_of(want);
        let feed = iteration.feeds.get(&task.feed)?;
        if !feed.pending.is_empty() {
            let want = fair_count(iteration, task.feed, want, feed.pending.len());
            return Some(Available::Waiting(feed.waiting(want)));
        }
        if feed.exhausted {
            return Some(Available::End { exhausted: None });
        }
        let provider = self.listings.provider(state, iteration, task.feed);
        let want = provider.left().map_or(want, |left| fair_count(iteration, task.feed, want, left));
        let fresh = provider.take(want);
        if !fresh.is_empty() {
            return Some(Available::Fresh(fresh));
        }
        match provider.end()? {
            Ok(_) => Some(Available::End { exhausted: Some(provider.listing()) }),
            Err(e) => Some(Available::Failed(e)),
        }
    }
}

impl PeerReports {
    /// Notes that a worker called, and how many splits it got.
    fn record_lease(
        &self,
        iteration: IterationId,
        request: &v1::NextSplitsRequest,
        answer: Option<&v1::NextSplitsResponse>,
    ) {
        let now = self.now();
        let mut reports = self.lock();
        reports.on_worker_call(WorkerId(request.worker_id), now);
        if let Some(answer) = answer {
            reports.task_speeds.leased(iteration, TaskId(request.task_id), answer.splits.len(), now);
        }
    }
}

/// The splits that a request asks for.
fn count_of(want: u32) -> usize {
    usize::try_from(want).unwrap_or(MAX_SPLITS).clamp(1, MAX_SPLITS)
}

fn fail(txn: &mut Txn<'_>, iteration: IterationId, e: Error) -> Error {
    let failure: Failure = (&e).into();
    txn.apply(Update::IterationFailed { iteration, failure });
    e
}

/// The error of shards that were cut from different listings of the source.
fn other_listing(iteration: &Iteration, listing: Option<u64>) -> Option<Error> {
    let mut others = iteration.feeds.values().filter_map(|f| f.listing);
    listing.filter(|own| others.any(|other| other != *own)).map(|_| {
        Error::failed_precondition(format!(
            "{}: the source's files changed between the listings of two shards, so rows may be in both or in none; start \
             the epoch again under another job name",
            iteration.describe()
        ))
    })
}

/// Says that the source has other splits than in the epoch before; none if it has not, or if that is not known. Each epoch lists
/// the source again, so this is no error: files may be added between epochs. Files that vanish, or were cut, are rows that vanish.
fn changed_source(state: &State, iteration: &Iteration, feed: FeedId) -> Option<String> {
    let is_before = |i: &&Iteration| {
        i.job == iteration.job
            && i.dataset == iteration.dataset
            && (i.mode, i.num_shards) == (iteration.mode, iteration.num_shards)
            && i.epoch < iteration.epoch
    };
    let before = state.iterations.values().filter(is_before).max_by_key(|i| (i.epoch, i.id))?;
    let is_whole = |i: &Iteration| i.resume.is_none();
    let known = before.feeds.get(&feed).filter(|f| f.exhausted && is_whole(before) && is_whole(iteration))?;
    let now = iteration.feeds.get(&feed)?;
    let (had, has) = (known.issued, now.issued);
    if had != has {
        return Some(format!(
            "the source has {} splits, and had {} in epoch {}: its files changed between the epochs",
            format_count(has),
            format_count(had),
            before.epoch
        ));
    }
    let is_known = known.content != 0 && now.content != 0;
    if !is_known || known.content == now.content {
        return None;
    }
    // Of a `sample` each epoch may have other splits.
    let source = &state.datasets.get(&iteration.dataset)?.definition.read().ok()?.source;
    (!source.is_sampled()).then(|| {
        format!(
            "files of the source are others than in epoch {}, in {} splits as before: they changed between the epochs",
            before.epoch,
            format_count(has)
        )
    })
}

/// What there is to lease.
enum Available {
    /// Splits that waited.
    Waiting(Vec<u64>),
    Fresh(Vec<SplitRecord>),
    /// If the feed is exhausted from now on: the hash of its listing, in a static mode.
    End {
        exhausted: Option<Option<u64>>,
    },
    Failed(Error),
}

fn leased(request: &v1::NextSplitsRequest, fresh: Vec<SplitRecord>, requeued: Vec<u64>, end: bool) -> Update {
    let (task, request_no) = (TaskId(request.task_id), request.request_no);
    Update::Leased { task, request_no, fresh, requeued, end, asks_for_lagging: request.asks_for_lagging }
}

fn to_proto(index: u64, lease: &Lease, cache: &str) -> v1::SplitLease {
    v1::SplitLease {
        index,
        split_json: lease.split.to_string(),
        done: ranges_to_proto(&lease.done),
        cache: cache.to_string(),
        group: lease.group.as_deref().unwrap_or_default().to_string(),
        checksums: Vec::new(),
        rows: lease.size,
    }
}

fn ranges_to_proto(rows: &RowRanges) -> Vec<v1::RowRange> {
    rows.iter().map(|(start, end)| v1::RowRange { start, end }).collect()
}

/// A task that a worker may continue.
///
/// # Errors
/// The failure of its iteration; `Cancelled` if the task should not run any more, or not there.
pub(super) fn running_task(state: &State, id: TaskId, worker: WorkerId) -> Result<(&Iteration, &Task)> {
    let iteration =
        state.task_index.get(&id).and_then(|i| state.iterations.get(i)).ok_or_else(|| gone(id))?;
    if let Some(failure) = &iteration.failure {
        return Err(failure.into());
    }
    let task = iteration.tasks.get(&id).filter(|t| !t.is_lost()).ok_or_else(|| gone(id))?;
    if task.worker != worker {
        return Err(Error::cancelled(format!("{id} runs on {}, not on {worker}", task.worker)));
    }
    Ok((iteration, task))
}

fn gone(id: TaskId) -> Error {
    Error::cancelled(format!("{id} is lost, or its job is over: stop it"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::fake::{World, open_request, run};

    #[test]
    fn a_source_with_another_number_of_splits_than_in_the_epoch_before_is_noticed() {
        run(async {
            let w = World::new();
            let worker = w.worker("a:1").await;
            let definition = json!({"splits": 2});
            for epoch in 0..2 {
                let request = v1::OpenIterationRequest { epoch, ..open_request(&definition, "j") };
                let opened = w.core.epochs.open_iteration(request).await.unwrap();
                let task = opened.tasks[0].task_id;
                for no in 1.. {
                    if w.next(task, worker, no, 9).await.unwrap().end {
                        break;
                    }
                }
            }
            let mut state = w.core.snapshot();
            let changed = |state: &State| {
                let second = state.iterations.values().find(|i| i.epoch == 1).unwrap();
                changed_source(state, second, FeedId(0))
            };
            assert_eq!(changed(&state), None);
            let first = state.iterations.values_mut().find(|i| i.epoch == 0).unwrap();
            let feed = first.feeds.get_mut(&FeedId(0)).unwrap();
            feed.issued = 3;
            let why = changed(&state).expect("a split is missing");
            assert!(why.starts_with("the source has 2 splits, and had 3 in epoch 0"), "{why}");
        });
    }
}
