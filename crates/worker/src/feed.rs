//! Splits leased from the dispatcher.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use caju_engine::{LeasedSplit, SharingMember, SplitFeed};
use caju_proto::{split_name, v1};
use caju_runtime::OrderedMutex;
use caju_sources::Split;
use caju_types::{Error, Result, TaskId};
use caju_wire::Dispatcher;
use tokio::time::Instant;

use crate::emitted_rows::EmittedRows;
use crate::identity::{Identity, failed_call_as_loss};
use crate::lagging::LaggingConsumers;
use crate::listing::TaskListing;
use crate::running::split_counts;

/// How long one request waits at the dispatcher for splits to be listed.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// If splits are used up faster than this, more of them are leased per request.
const FAST_REQUEST_INTERVAL: Duration = Duration::from_millis(50);
/// The most splits per request.
const MAX_SPLITS_PER_REQUEST: u32 = 64;

/// The leases of one task. Requests are numbered, so that a repeated request gets the same splits.
pub(crate) struct DispatcherFeed {
    identity: Arc<Identity>,
    task: TaskId,
    /// How long an unavailable dispatcher is retried.
    retry_timeout: Duration,
    request_no: u64,
    want: u32,
    asked: Instant,
    /// Splits that were leased and not taken yet.
    leased: VecDeque<LeasedSplit>,
    over: bool,
    /// Lagging consumers, as the answers say.
    lagging: Arc<LaggingConsumers>,
    /// The task's part in the window of shared rows.
    sharing: Option<Arc<SharingMember>>,
    /// The rows that the task gave out: those of complete splits are forgotten.
    emitted: Arc<OrderedMutex<EmittedRows>>,
    /// How far the splits are listed.
    listing: Arc<TaskListing>,
    /// How many complete splits the dispatcher has listed.
    completed_seen: u64,
    /// Those that the engine does not know of.
    completed: Vec<u64>,
    /// Splits without rows that the dispatcher does not know of.
    empty: Vec<u64>,
    /// The last repetition of the source that those, and earlier ones, belong to.
    empty_repetition: u32,
}

impl DispatcherFeed {
    pub(crate) fn new(
        identity: Arc<Identity>,
        task: TaskId,
        retry_timeout: Duration,
        lagging: Arc<LaggingConsumers>,
        sharing: Option<Arc<SharingMember>>,
        emitted: Arc<OrderedMutex<EmittedRows>>,
        listing: Arc<TaskListing>,
    ) -> Self {
        Self {
            identity,
            task,
            retry_timeout,
            request_no: 0,
            want: 1,
            asked: Instant::now(),
            leased: VecDeque::new(),
            over: false,
            lagging,
            sharing,
            emitted,
            listing,
            completed_seen: 0,
            completed: Vec::new(),
            empty: Vec::new(),
            empty_repetition: 0,
        }
    }

    async fn ask(&mut self, want: u32) -> Result<()> {
        let registration = self.identity.registration();
        let skipped = self.sharing.as_ref().map(|s| s.skipped_splits()).unwrap_or_default();
        let num_skipped = skipped.len();
        let request = v1::NextSplitsRequest {
            task_id: self.task.0,
            worker_id: registration.id.0,
            want: want.max(self.want),
            wait_ms: u64::try_from(POLL_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
            request_no: self.request_no + 1,
            secret: registration.secret,
            shared_splits: self.sharing.as_ref().map(|s| s.unread_splits()).unwrap_or_default(),
            sharing_points: self.sharing.as_ref().map(|s| s.point_names()).unwrap_or_default(),
            skipped_splits: split_counts(skipped),
            asks_for_lagging: true,
            completed_seen: self.completed_seen,
            empty_splits: self.empty.clone(),
            empty_repetition: self.empty_repetition,
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.next_splits(request).await }
        };
        let answer = self.identity.link.retry(self.retry_timeout, POLL_TIMEOUT, call).await;
        let answer = answer.map_err(|e| failed_call_as_loss(self.task, e))?;
        self.request_no += 1;
        self.over = answer.end;
        self.empty.clear();
        if let Some(sharing) = &self.sharing {
            sharing.forget_skipped(num_skipped);
        }
        self.completed_seen = answer.completed_up_to;
        self.emitted.lock().forget(&answer.completed);
        self.completed.extend(answer.completed);
        self.lagging.add_owed(&answer.lag);
        if answer.has_lagging {
            self.lagging.set_query_due();
        }
        self.listing.update(answer.listed);
        for lease in answer.splits {
            self.leased.push_back(leased(lease)?);
        }
        Ok(())
    }
}

fn leased(lease: v1::SplitLease) -> Result<LeasedSplit> {
    let split: Split = serde_json::from_str(&lease.split_json).map_err(|e| {
        Error::internal(format!("a split of the dispatcher cannot be read: {e}: {}", lease.split_json))
    })?;
    let checksums = lease.checksums.iter().map(|c| (c.ordinal, c.checksum)).collect();
    let done = lease.done.iter().map(|r| (r.start, r.end)).collect();
    let cache = match lease.cache.as_str() {
        "" => None,
        text => Some(Arc::new(serde_json::from_str(text).map_err(|e| {
            Error::internal(format!("a caching plan of the dispatcher cannot be read: {e}: {text}"))
        })?)),
    };
    let group = match lease.group.as_str() {
        "" => None,
        text => Some(serde_json::from_str(text).map_err(|e| {
            Error::internal(format!("the place of a split in a set cannot be read: {e}: {text}"))
        })?),
    };
    let name = split_name(&lease.split_json);
    Ok(LeasedSplit { index: lease.index, split, done, rows: lease.rows, checksums, cache, group, name })
}

#[async_trait]
impl SplitFeed for DispatcherFeed {
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let want = u32::try_from(want.max(1)).unwrap_or(MAX_SPLITS_PER_REQUEST);
        while self.leased.is_empty() && !self.over {
            // Small splits, such as one file each, would cost a round trip each.
            self.want = if self.asked.elapsed() < FAST_REQUEST_INTERVAL {
                (self.want * 2).min(MAX_SPLITS_PER_REQUEST)
            } else {
                (self.want / 2).max(1)
            };
            self.asked = Instant::now();
            self.ask(want).await?;
        }
        let n = self.leased.len().min(want as usize);
        Ok(if n == 0 { None } else { Some(self.leased.drain(..n).collect()) })
    }

    fn report_empty(&mut self, splits: &[(u64, u32)]) {
        for (split, repetition) in splits {
            self.empty.push(*split);
            self.empty_repetition = self.empty_repetition.max(*repetition);
        }
    }

    fn take_completed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.completed)
    }
}
