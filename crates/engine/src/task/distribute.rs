//! Handing out leased splits to readers, within the limit of concurrent reads.

use std::collections::VecDeque;
use std::sync::Arc;

use caju_cache::Cache;
use caju_runtime::{Receiver, Sender, Tasks, caught, channel, log_failure};
use caju_sources::{ReadObserver, with_read_observer};
use caju_types::Result;
use futures::stream::{self, StreamExt};

use super::open_splits::checked;
use super::read::{Group, Reader};
use super::read_limiter::{ReadLimit, ReadLimiter, ReadPermit};
use super::{EndOfRepetition, Item, Items};
use crate::lease::{LeasedSplit, SplitFeed};
use crate::stats::SplitReads;

/// Batches of one reader that may wait to be taken.
const MAX_READY_BATCHES: usize = 2;
/// The name of the work in errors.
const NAME: &str = "handing out splits";

/// The rows of all leased splits, as chunks of one run each, with a mark at the end of every split and repetition. The
/// stream ends only after the feed reported that no split is left and every reader reported that it has finished.
pub(super) fn read_splits(
    reader: Reader,
    feed: Box<dyn SplitFeed>,
    tasks: Tasks,
    limit: &Arc<ReadLimit>,
) -> Items {
    let reader = Arc::new(reader);
    // One queue of queues: in order there is one per split, else one per repetition that all its readers share. Splits that were
    // read wait there in order, which bounds their memory: more readers do not make it deeper.
    let depth = Cache::answers_at_once(Cache::requests_at_once(reader.reading.readers));
    let (queues, queue) = channel(NAME, depth);
    let (open, group) = (reader.open.clone(), tasks.clone());
    let (limit, leases) = (Arc::clone(limit), VecDeque::new());
    let distributor =
        Distributor { reader, feed, tasks, limit, queues, shared: None, leases, repetition: None };
    group.background(NAME, log_failure, distributor.distribute());
    let items = queue.flat_map(|rx| match rx {
        Ok(rx) => rx.left_stream(),
        Err(e) => stream::iter([Err(e)]).right_stream(),
    });
    checked(items.boxed(), open)
}

/// Leases splits and starts their readers.
struct Distributor {
    reader: Arc<Reader>,
    feed: Box<dyn SplitFeed>,
    tasks: Tasks,
    limit: Arc<ReadLimit>,
    /// The readers' queues, in the order of their rows.
    queues: Sender<Receiver<Item>>,
    /// Out of order: the queue that the readers of the present repetition share.
    shared: Option<Sender<Item>>,
    /// Leases that no reader has begun yet.
    leases: VecDeque<LeasedSplit>,
    repetition: Option<u32>,
}

impl Distributor {
    /// Hands out splits until none is left, and reports to the queue how that ended.
    async fn distribute(mut self) -> Result<()> {
        match caught(NAME, self.hand_out()).await.and_then(|ended| ended) {
            Ok(()) => self.queues.finish(),
            Err(e) => {
                // Readers that share a queue keep it open: the error must not wait for them.
                if let Some(shared) = self.shared {
                    shared.fail(e.clone()).await;
                }
                self.queues.fail(e).await;
            }
        }
        Ok(())
    }

    async fn hand_out(&mut self) -> Result<()> {
        let mut limiter = ReadLimiter::new(Arc::clone(&self.limit));
        loop {
            let mut permit = limiter.acquire().await?;
            if self.leases.is_empty() {
                let busy = &self.reader.ctx.stats.busy;
                busy.set_readers(self.limit.readers());
                busy.set_awaits_split(true);
                self.feed.report_empty(&self.reader.ctx.take_empty());
                let next = self.feed.next(1).await;
                self.reader.ctx.forget(&self.feed.take_completed());
                busy.set_awaits_split(false);
                match next? {
                    Some(more) => self.leases.extend(more),
                    None => break,
                }
            }
            let Some(lease) = self.leases.pop_front() else {
                continue;
            };
            let group = match &lease.group {
                Some(group) => match self.gather(lease.clone(), group.of).await? {
                    Some(read) => Some(read),
                    // Its splits are computed like any others.
                    None => continue,
                },
                None => None,
            };
            let next = lease.split.repetition;
            if let Some(ended) = self.repetition.filter(|r| *r != next) {
                self.end_repetition(EndOfRepetition { ended, next: Some(next) }).await?;
            }
            self.repetition = Some(next);
            self.reader.ctx.register(&lease);
            let name = format!("reading {}", lease.split.describe());
            let out = self.queue(&name).await?;
            let requests = self.reader.cache.known_requests(&lease).filter(|_| group.is_none());
            limiter.resize(&mut permit, requests).await?;
            self.start(name, lease, group, out, permit);
        }
        if let Some(ended) = self.repetition {
            self.end_repetition(EndOfRepetition { ended, next: None }).await?;
        }
        Ok(())
    }

    /// Starts the reader of a split, or of all splits of a part of a set.
    fn start(
        &self,
        name: String,
        lease: LeasedSplit,
        group: Option<Group>,
        out: Sender<Item>,
        permit: ReadPermit,
    ) {
        match &group {
            Some(group) => group.splits.iter().for_each(|index| {
                self.reader.ctx.not_sized(*index);
                self.reader.open.begin(*index);
            }),
            None => self.reader.open.begin(lease.index),
        }
        let reader = Arc::clone(&self.reader);
        let reads = SplitReads::of(Arc::clone(&self.reader.ctx.stats));
        let observer: Arc<dyn ReadObserver> = Arc::clone(&reads) as _;
        let reading = with_read_observer(observer, async move {
            // On the heap: the state of a read takes tens of KB. Each of the wrappers around it copies the state on its way
            // into the task, which overflows the stack of a thread (2 MiB) in a debug build.
            let reading = Box::pin(async {
                match group {
                    Some(group) => reader.get_group(group, &out, permit).await,
                    None => reader.read_one(lease, &reads, &out, permit).await,
                }
            });
            let outcome = caught(out.name(), reading).await.and_then(|read| read);
            out.end(outcome).await;
            Ok(())
        });
        self.tasks.background(name, log_failure, reading);
    }

    /// Where a reader of that name sends its items.
    async fn queue(&mut self, name: &str) -> Result<Sender<Item>> {
        if let Some(shared) = &self.shared {
            return Ok(shared.another(name.to_string()));
        }
        let reading = self.reader.reading;
        let depth = if reading.ordered { MAX_READY_BATCHES } else { reading.readers * MAX_READY_BATCHES };
        let (out, items) = channel(name.to_string(), depth);
        if let Err(e) = self.queues.send(items).await {
            out.finish();
            return Err(e);
        }
        if !reading.ordered {
            self.shared = Some(out.another(NAME));
        }
        Ok(out)
    }

    /// Marks the end of a repetition, behind the items of all its readers.
    async fn end_repetition(&mut self, end: EndOfRepetition) -> Result<()> {
        if let Some(shared) = self.shared.take() {
            shared.finish();
        }
        let (out, items) = channel("the end of a repetition", 1);
        out.send(Item::EndOfRepetition(end)).await?;
        out.finish();
        self.queues.send(items).await
    }

    /// Collects the leases of all splits whose rows are in one part of a set, and opens the part; none if it cannot
    /// be read, or readers have all of its rows: the leases are then put back, each for itself.
    ///
    /// # Errors
    /// For a part that cannot be read, where none of its splits may be computed.
    async fn gather(&mut self, first: LeasedSplit, of: u32) -> Result<Option<Group>> {
        let mut all = vec![first.clone()];
        while all.len() < of as usize {
            if self.leases.is_empty() {
                let Some(more) = self.feed.next(of as usize - all.len()).await? else { break };
                self.leases.extend(more);
            }
            all.extend(self.leases.pop_front());
        }
        all.iter().for_each(|l| self.reader.ctx.register(l));
        let has_all = all.len() == of as usize && all.iter().all(|l| l.group.is_some());
        let is_left_out = all.iter().all(|l| self.reader.leaves_out(l));
        let stored_only = &self.reader.stored_only;
        let is_alone = stored_only.is_from_set_alone(&first);
        // A part that is damaged is not opened again. Rows that readers have are left out behind the hint.
        let may_read = has_all && !is_left_out && (is_alone || all.iter().all(|l| l.done.is_empty()));
        if may_read && let Some((hint, part)) = self.reader.cache.open_group(&all).await {
            let splits = all.iter().map(|l| l.index).collect();
            return Ok(Some(Group { hint, part, splits, first }));
        }
        if is_alone && !is_left_out {
            let why = match has_all {
                true => "their part is gone, damaged or out of reach".to_owned(),
                false => format!("of the {of} splits of their part, {} were leased", all.len()),
            };
            return Err(stored_only.unreadable(&first, &why));
        }
        // In their own order, on which it may depend which rows are counted.
        all.sort_by_key(|l| l.index);
        for lease in all.into_iter().rev() {
            self.leases.push_front(LeasedSplit { group: None, ..lease });
        }
        Ok(None)
    }
}
