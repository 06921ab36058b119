//! Where fresh splits come from: a listing, read ahead within a bound, in the order of the epoch.

mod order;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use caju_types::{Error, Result};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use order::SplitOrder;

use crate::state::{FeedId, SplitRecord, next_digest};

/// Splits listed ahead of their lease when their order is the canonical one.
const LOOK_AHEAD: usize = 256;

/// The splits of one feed that were listed and not leased yet.
///
/// Taking is done under the lock of the state, in one step with the update that leases what was taken.
#[derive(Debug, Default)]
pub(crate) struct SplitProvider {
    ready: Mutex<Ready>,
    room: Notify,
}

#[derive(Debug, Default)]
struct Ready {
    queue: VecDeque<SplitRecord>,
    end: Option<Result<u64>>,
}

/// Where to begin after a restart: so many splits were issued, with this rolling hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Issued {
    pub(crate) count: u64,
    pub(crate) digest: u64,
}

impl SplitProvider {
    /// Up to `want` splits that are there now.
    pub(crate) fn take(&self, want: usize) -> Vec<SplitRecord> {
        let mut ready = self.ready.lock();
        let n = want.min(ready.queue.len());
        let taken = ready.queue.drain(..n).collect();
        drop(ready);
        self.room.notify_one();
        taken
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

    /// Fills the queue until the listing ends, calling `poke` whenever there is something new.
    pub(crate) async fn fill(
        &self,
        feed: FeedId,
        order: Option<SplitOrder>,
        splits: BoxStream<'static, Result<String>>,
        issued: Issued,
        poke: impl Fn(),
    ) {
        let end = self.fill_until_end(feed, order, splits, issued, &poke).await;
        self.fail_or_end(end);
        poke();
    }

    /// Ends the provider.
    pub(crate) fn fail_or_end(&self, end: Result<u64>) {
        self.ready.lock().end = Some(end);
    }

    async fn fill_until_end(
        &self,
        feed: FeedId,
        order: Option<SplitOrder>,
        mut splits: BoxStream<'static, Result<String>>,
        issued: Issued,
        poke: &impl Fn(),
    ) -> Result<u64> {
        let mut skip = Skip { issued, count: 0, digest: 0 };
        let mut position = 0;
        // The first split of the next repetition: repetitions follow one another, whatever the order in each.
        let mut held: Option<(u32, SplitRecord)> = None;
        for window in 0u32.. {
            let len = order.map_or(1, |_| SplitOrder::window_len(window));
            let mut records = Vec::with_capacity(len);
            let mut repetition = None;
            if let Some((r, record)) = held.take() {
                repetition = Some(r);
                records.push(record);
            }
            let mut last = false;
            while records.len() < len {
                let Some(split) = splits.next().await else {
                    last = true;
                    break;
                };
                let split = split?;
                let next = if order.is_some() { repetition_of(&split) } else { 0 };
                let record = SplitRecord { index: feed.index(position), split: split.into() };
                position += 1;
                if repetition.is_some_and(|r| r != next) {
                    held = Some((next, record));
                    break;
                }
                repetition = Some(next);
                records.push(record);
            }
            if let Some(order) = order {
                order.permute(window, &mut records);
            }
            let fresh = skip.pass(records)?;
            self.push(fresh, if order.is_some() { len } else { LOOK_AHEAD }, poke).await;
            if last {
                break;
            }
        }
        skip.finish()?;
        Ok(position)
    }

    async fn push(&self, records: Vec<SplitRecord>, look_ahead: usize, poke: &impl Fn()) {
        if records.is_empty() {
            return;
        }
        while self.ready.lock().queue.len() >= look_ahead {
            self.room.notified().await;
        }
        self.ready.lock().queue.extend(records);
        poke();
    }
}

/// The repetition that a split, as the engine describes it, belongs to.
fn repetition_of(split: &str) -> u32 {
    #[derive(serde::Deserialize)]
    struct Repeated {
        #[serde(default)]
        repetition: u32,
    }
    serde_json::from_str::<Repeated>(split).map_or(0, |r| r.repetition)
}

/// Passes over what was issued before a restart, and sees to it that the listing still begins with it.
struct Skip {
    issued: Issued,
    count: u64,
    digest: u64,
}

impl Skip {
    fn pass(&mut self, records: Vec<SplitRecord>) -> Result<Vec<SplitRecord>> {
        let mut records = records.into_iter();
        while self.count < self.issued.count {
            let Some(record) = records.next() else { return Ok(Vec::new()) };
            self.digest = next_digest(self.digest, &record.split);
            self.count += 1;
            if self.count == self.issued.count && self.digest != self.issued.digest {
                return Err(changed());
            }
        }
        Ok(records.collect())
    }

    fn finish(&self) -> Result<()> {
        if self.count < self.issued.count { Err(changed()) } else { Ok(()) }
    }
}

fn changed() -> Error {
    Error::failed_precondition(
        "the source's files changed while the dispatcher was away: what is left of the epoch cannot be told; \
         start the epoch anew under another job name",
    )
}

/// A provider behind a shared handle.
pub(crate) type SharedProvider = Arc<SplitProvider>;
