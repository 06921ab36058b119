//! Where fresh splits come from: a listing, read ahead within a bound, in the order of the epoch.

mod order;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use caju_engine::ListingDigest;
use caju_proto::split_name;
use caju_runtime::OrderedMutex;
use caju_types::{Error, Listed, Result, RowRanges};
use futures::stream::BoxStream;
use tokio::sync::Notify;

pub(crate) use order::SplitOrder;
use windows::Windows;

use crate::catalog::ListedSplit;
use crate::locks;
use crate::state::{FeedId, SplitRecord, next_digest};

/// The splits of one feed that were listed and not leased yet.
///
/// Taking is done under the lock of the state, in one step with the update that leases what was taken.
#[derive(Debug)]
pub(crate) struct SplitProvider {
    ready: OrderedMutex<Ready>,
    space: Notify,
    /// In a static mode: names the listing of the whole source.
    listed: OnceLock<ListingDigest>,
}

impl Default for SplitProvider {
    fn default() -> Self {
        let ready = OrderedMutex::new(locks::READY_SPLITS, Ready::default());
        Self { ready, space: Notify::new(), listed: OnceLock::new() }
    }
}

#[derive(Debug, Default)]
struct Ready {
    queue: VecDeque<ReadySplit>,
    end: Option<Result<u64>>,
}

/// A split that can be leased.
#[derive(Debug)]
struct ReadySplit {
    record: SplitRecord,
    /// Its name as workers give it.
    name: u64,
    /// The number of splits that share its part of a set and follow one another in the queue; none outside sets.
    group_size: Option<usize>,
}

/// Where to begin after a restart: the number of splits that were issued, and their rolling hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Issued {
    pub(crate) count: u64,
    pub(crate) digest: u64,
}

/// What was taken before the iteration began.
#[derive(Debug, Clone, Default)]
pub(crate) struct SkippedSplits {
    /// Positions of splits that need not be issued.
    pub(crate) positions: RowRanges,
    /// What was listed then: the listing must still begin with it.
    pub(crate) listed: Option<Listed>,
}

impl SkippedSplits {
    /// Compares the beginning of a listing: its number of splits, and their rolling hash.
    ///
    /// # Errors
    /// `FailedPrecondition` if it is another one than that of the state.
    fn compare(&self, count: u64, digest: u64) -> Result<()> {
        let differs = self.listed.is_some_and(|l| l.count == count && l.digest != digest);
        if differs { Err(changed_since()) } else { Ok(()) }
    }

    /// Compares the number of splits of a whole listing.
    ///
    /// # Errors
    /// `FailedPrecondition` if the state has further ones.
    fn compare_end(&self, count: u64) -> Result<()> {
        let last = self.positions.iter().last().map_or(0, |(_, end)| end);
        let listed = self.listed.map_or(0, |l| l.count);
        if count < listed.max(last) { Err(changed_since()) } else { Ok(()) }
    }
}

impl SplitProvider {
    /// Says which listing of the whole source the splits come from.
    pub(crate) fn names_listing(&self, listed: ListingDigest) {
        // A provider is filled once.
        let _ = self.listed.set(listed);
    }

    /// The hash of the listing of the whole source, once the splits have ended; none outside the static modes.
    pub(crate) fn listing(&self) -> Option<u64> {
        self.listed.get().map(ListingDigest::get)
    }

    /// Up to `want` of the splits that are ready now. Splits that share a part of a set are returned together.
    pub(crate) fn take(&self, want: usize) -> Vec<SplitRecord> {
        let mut ready = self.ready.lock();
        let group_size = ready.queue.front().and_then(|split| split.group_size);
        let n = group_size.unwrap_or(want).min(ready.queue.len());
        let taken = ready.queue.drain(..n).map(|split| split.record).collect();
        drop(ready);
        self.space.notify_one();
        taken
    }

    /// The names of the splits that are ready now, in order.
    pub(crate) fn names(&self) -> Vec<u64> {
        self.ready.lock().queue.iter().map(|split| split.name).collect()
    }

    /// The end, once everything before it was taken: the number of splits, or what went wrong.
    pub(crate) fn end(&self) -> Option<Result<u64>> {
        let ready = self.ready.lock();
        if ready.queue.is_empty() { ready.end.clone() } else { None }
    }

    /// The number of splits, once the listing has ended.
    pub(crate) fn total(&self) -> Option<u64> {
        self.ready.lock().end.as_ref().and_then(|e| e.as_ref().ok().copied())
    }

    /// Splits that are left, once the listing has ended.
    pub(crate) fn left(&self) -> Option<usize> {
        let ready = self.ready.lock();
        ready.end.as_ref().map(|_| ready.queue.len())
    }

    /// Fills the queue until the listing ends, calling `notify` whenever there are new splits, and at the end.
    pub(crate) async fn fill(
        &self,
        feed: FeedId,
        order: Option<SplitOrder>,
        splits: BoxStream<'static, Result<ListedSplit>>,
        begin: (Issued, SkippedSplits),
        notify: impl Fn(),
    ) {
        let end = self.fill_until_end(feed, order, splits, begin, &notify).await;
        self.fail_or_end(end);
        notify();
    }

    /// Fills the queue with splits that are known in full, group by group, as [`Self::fill`] does from a listing.
    pub(crate) async fn fill_groups(&self, groups: Vec<Vec<SplitRecord>>, issued: Issued, notify: impl Fn()) {
        let mut skip = Skip::new(issued, SkippedSplits::default());
        let mut all = 0;
        for group in groups {
            all += group.len() as u64;
            let group_size = Some(group.len());
            match skip.pass(group) {
                Ok(records) => self.push(records, group_size, 1, &notify).await,
                Err(e) => {
                    self.fail_or_end(Err(e));
                    return notify();
                }
            }
        }
        self.fail_or_end(skip.finish().map(|()| all));
        notify();
    }

    /// Ends the provider.
    pub(crate) fn fail_or_end(&self, end: Result<u64>) {
        self.ready.lock().end = Some(end);
    }

    async fn fill_until_end(
        &self,
        feed: FeedId,
        order: Option<SplitOrder>,
        splits: BoxStream<'static, Result<ListedSplit>>,
        (issued, skipped_splits): (Issued, SkippedSplits),
        notify: &impl Fn(),
    ) -> Result<u64> {
        let mut windows = Windows::new(splits, order);
        let mut skip = Skip::new(issued, skipped_splits);
        let mut position = 0;
        while let Some(window) = windows.next().await? {
            // Positions are those of the epoch's order: splits of a lost task are leased again in this order.
            let record = |(at, split): (u64, ListedSplit)| SplitRecord {
                index: feed.index(at),
                split: Arc::clone(split.json()),
                group: None,
                after: None,
                whole: None,
            };
            let (ahead, start) = (windows.look_ahead(), position);
            position += window.len() as u64;
            let records = (start..).zip(window).map(record).collect();
            self.push(skip.pass(records)?, None, ahead, notify).await;
        }
        skip.finish()?;
        Ok(position)
    }

    async fn push(
        &self,
        records: Vec<SplitRecord>,
        group_size: Option<usize>,
        look_ahead: usize,
        notify: &impl Fn(),
    ) {
        if records.is_empty() {
            return;
        }
        while self.ready.lock().queue.len() >= look_ahead {
            self.space.notified().await;
        }
        let ready = records.into_iter().map(|record| ReadySplit {
            name: split_name(&record.split),
            record,
            group_size,
        });
        // The names are computed before the lock is taken, because every lease waits for that lock.
        let ready: Vec<ReadySplit> = ready.collect();
        self.ready.lock().queue.extend(ready);
        notify();
    }
}

/// Passes over what was issued before a restart, and what was taken before the iteration began, and sees to it that the
/// listing still begins with both.
struct Skip {
    issued: Issued,
    skipped_splits: SkippedSplits,
    /// The number of splits so far, and their rolling hash as long as it is compared.
    count: u64,
    digest: u64,
    /// The last split was skipped, and is not issued.
    gap: bool,
}

impl Skip {
    fn new(issued: Issued, skipped_splits: SkippedSplits) -> Self {
        Self { issued, skipped_splits, count: 0, digest: 0, gap: false }
    }

    fn pass(&mut self, records: Vec<SplitRecord>) -> Result<Vec<SplitRecord>> {
        let listed = self.skipped_splits.listed.map_or(0, |l| l.count);
        if self.count >= self.issued.count.max(listed) && self.skipped_splits.positions.is_empty() {
            return Ok(records);
        }
        let mut left = Vec::new();
        for mut record in records {
            self.digest = next_digest(self.digest, &record.split);
            let position = self.count;
            self.count += 1;
            if self.count == self.issued.count && self.digest != self.issued.digest {
                return Err(changed());
            }
            self.skipped_splits.compare(self.count, self.digest)?;
            if self.count <= self.issued.count {
                continue;
            }
            if self.skipped_splits.positions.contains(position) {
                self.gap = true;
                continue;
            }
            if std::mem::take(&mut self.gap) {
                record.after = Some((self.count, self.digest));
            }
            left.push(record);
        }
        Ok(left)
    }

    fn finish(&self) -> Result<()> {
        if self.count < self.issued.count {
            return Err(changed());
        }
        self.skipped_splits.compare_end(self.count)
    }
}

fn changed() -> Error {
    Error::failed_precondition(
        "the source's files changed while the dispatcher was away: what is left of the epoch cannot be known; \
         start the epoch again under another job name",
    )
}

fn changed_since() -> Error {
    Error::failed_precondition(
        "the source's files changed since the state was taken: what is left of the epoch cannot be known; give the files of \
         that time, or start the epoch again without a state",
    )
}

/// All splits of a listing in the order of the epoch.
pub(crate) async fn in_order(
    splits: Vec<ListedSplit>,
    order: Option<SplitOrder>,
) -> Result<Vec<ListedSplit>> {
    let Some(order) = order else { return Ok(splits) };
    let mut windows = Windows::new(Box::pin(futures::stream::iter(splits.into_iter().map(Ok))), Some(order));
    let mut ordered = Vec::new();
    while let Some(window) = windows.next().await? {
        ordered.extend(window);
    }
    Ok(ordered)
}

/// Names a whole listing in the order of the epoch, which must begin with what states of readers name. `of_set`: what
/// distinguishes the rows of its splits from those of another set; 0 where rows follow from the splits.
///
/// # Errors
/// `FailedPrecondition` if it does not.
pub(crate) fn whole_listing(splits: &[ListedSplit], skipped: &SkippedSplits, of_set: u64) -> Result<Listed> {
    let mut listed = Listed { count: 0, digest: of_set };
    for split in splits {
        listed = Listed { count: listed.count + 1, digest: next_digest(listed.digest, split.json()) };
        skipped.compare(listed.count, listed.digest)?;
    }
    skipped.compare_end(listed.count)?;
    Ok(listed)
}

/// A provider behind a shared handle.
pub(crate) type SharedProvider = Arc<SplitProvider>;
