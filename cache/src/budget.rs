//! The byte budget of a root, as one process accounts for it.
//!
//! Everything below the root counts. Bytes that are being written count too, and so do the bytes by which manifests will
//! grow once they cover all existing records. A listing of the root gives most of it. Between listings this process
//! counts its own writes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::OrderedMutex;
use caju_types::{Fingerprint, Result};

use crate::locks;
use crate::scan::Scan;
use crate::store::Root;

/// Bytes left free for objects that come and go: leases, claims and usage records.
const MARGIN_BYTES: u64 = 1 << 10;

/// The limit of a root without one.
const UNBOUNDED: u64 = u64::MAX;

/// What this process knows about the size of the root.
#[derive(Debug)]
pub(crate) struct Budget {
    /// In bytes; [`UNBOUNDED`] for none.
    limit: AtomicU64,
    /// How long a listing or a refusal is taken for current.
    refresh: Duration,
    listed: OrderedMutex<Option<(Duration, Listing)>>,
    /// Writers that find the last listing too old wait for one new listing.
    listing: tokio::sync::Mutex<()>,
    /// Bytes that this process committed so far, less those that it deleted.
    committed: AtomicI64,
    /// Bytes of parts that are being written: no listing shows them.
    in_flight: AtomicI64,
    /// When a part of a snapshot was last refused for lack of space.
    refused: OrderedMutex<HashMap<Fingerprint, Duration>>,
}

/// What a listing of the root shows.
#[derive(Debug, Clone, Copy, Default)]
struct Listing {
    bytes: u64,
    /// Bytes that manifests will take beyond that.
    manifest_growth: u64,
    /// Bytes that this process had committed when the listing began. The listing shows them.
    committed: i64,
}

/// The size of the root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Bytes that the last listing showed.
    pub(crate) listed: u64,
    /// Bytes that the root will have once all running writes are complete.
    pub(crate) expected: u64,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bytes by which the manifests of a snapshot will grow once they cover all its records. Two manifests are kept, and both
/// will cover all. The newest manifest does not cover records that were written after it.
fn manifest_growth(scan: &Scan) -> u64 {
    let mut newest = scan.manifests.values().rev();
    let (last, before) = (newest.next(), newest.next().map_or(0, |o| o.bytes));
    let (last, since) = last.map_or((0, i64::MIN), |o| (o.bytes, o.modified_ms));
    let later: u64 = scan.commits.values().filter(|o| o.modified_ms >= since).map(|o| o.bytes).sum();
    (2 * (last + later)).saturating_sub(last + before)
}

impl Budget {
    pub(crate) fn new(limit: Option<u64>, refresh: Duration) -> Self {
        Self {
            limit: AtomicU64::new(limit.unwrap_or(UNBOUNDED)),
            refresh,
            listed: OrderedMutex::new(locks::ROOT_SIZE, None),
            listing: tokio::sync::Mutex::new(()),
            committed: AtomicI64::new(0),
            in_flight: AtomicI64::new(0),
            refused: OrderedMutex::new(locks::REFUSED_SNAPSHOTS, HashMap::new()),
        }
    }

    /// The limit in bytes; none if the root is unbounded.
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != UNBOUNDED)
    }

    /// Another limit holds from now on.
    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        let limit = limit.unwrap_or(UNBOUNDED);
        if self.limit.swap(limit, Ordering::Relaxed) < limit {
            self.refused.lock().clear();
        }
    }

    /// The size of the root: by a new listing if `fresh`, else by one that is not older than the refresh interval.
    pub(crate) async fn usage(&self, root: &Root, fresh: bool) -> Result<Usage> {
        let listing = match self.recent(root).filter(|_| !fresh) {
            Some(listing) => listing,
            None => self.list(root, fresh).await?,
        };
        let committed = self.committed.load(Ordering::Relaxed).saturating_sub(listing.committed);
        let own = committed.saturating_add(self.in_flight.load(Ordering::Relaxed));
        let expected = (listing.bytes + listing.manifest_growth + MARGIN_BYTES).saturating_add_signed(own);
        Ok(Usage { listed: listing.bytes, expected })
    }

    /// The last listing, unless it is older than the refresh interval.
    fn recent(&self, root: &Root) -> Option<Listing> {
        let now = root.clock.now();
        let listed = *self.listed.lock();
        listed.filter(|(at, _)| now.saturating_sub(*at) < self.refresh).map(|(_, listing)| listing)
    }

    async fn list(&self, root: &Root, fresh: bool) -> Result<Listing> {
        let _one = self.listing.lock().await;
        if let Some(listing) = self.recent(root).filter(|_| !fresh) {
            return Ok(listing);
        }
        let (now, committed) = (root.clock.now(), self.committed.load(Ordering::Relaxed));
        let objects = root.list(&root.layout.base()).await?;
        let bytes = objects.iter().map(|o| o.bytes).sum();
        let manifest_growth = Scan::all(&root.layout, objects).values().map(manifest_growth).sum();
        let listing = Listing { bytes, manifest_growth, committed };
        *self.listed.lock() = Some((now, listing));
        Ok(listing)
    }

    /// Counts bytes that are about to be written.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.in_flight.fetch_add(signed(bytes), Ordering::Relaxed);
    }

    /// Reserved bytes were written: listings show them from now on.
    pub(crate) fn commit(&self, bytes: u64) {
        self.committed.fetch_add(signed(bytes), Ordering::Relaxed);
        self.cancel(bytes);
    }

    /// Reserved bytes will not be written.
    pub(crate) fn cancel(&self, bytes: u64) {
        self.in_flight.fetch_sub(signed(bytes), Ordering::Relaxed);
    }

    /// Bytes were deleted: snapshots that were refused may try again.
    pub(crate) fn free(&self, bytes: u64) {
        self.committed.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.refused.lock().clear();
    }

    /// Whether `bytes` more, of records that are written ahead of any request, fit the budget. If they fit, they count
    /// from now on.
    pub(crate) async fn admits(&self, root: &Root, bytes: u64) -> Result<bool> {
        if let Some(limit) = self.limit()
            && self.usage(root, true).await?.expected.saturating_add(bytes) > limit
        {
            return Ok(false);
        }
        self.committed.fetch_add(signed(bytes), Ordering::Relaxed);
        Ok(true)
    }

    /// Records that a part of a snapshot was refused.
    pub(crate) fn record_refusal(&self, of: Fingerprint, now: Duration) {
        self.refused.lock().insert(of, now);
    }

    /// Whether a part of a snapshot was refused within the refresh interval.
    pub(crate) fn was_refused(&self, of: Fingerprint, now: Duration) -> bool {
        self.refused.lock().get(&of).is_some_and(|at| now.saturating_sub(*at) < self.refresh)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use caju_runtime::{Stores, SystemClock};
    use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::options::CacheOptions;

    /// A root with an object of 1000 bytes, whose store has faults.
    async fn root_of_1000_bytes() -> (Root, Faults) {
        let faults = Faults::new();
        let mut at = Stores::default().resolve("memory://budget/root").unwrap();
        at.store = Arc::new(faulty_store(Arc::clone(&at.store), faults.clone())) as Arc<dyn ObjectStore>;
        let store = Arc::clone(&at.store);
        let root = Root::open(at, &CacheOptions::default(), SystemClock::shared(), "w").await.unwrap();
        for object in root.list(&root.layout.base()).await.unwrap() {
            store.delete(&object.path).await.unwrap();
        }
        let object = Path::from(format!("{}/object", root.layout.base()));
        store.put(&object, vec![0; 1000].into()).await.unwrap();
        (root, faults)
    }

    /// Each listing once subtracted all bytes committed before it, also those that another one had subtracted.
    #[tokio::test]
    async fn concurrent_writers_count_what_was_committed_once() {
        let (root, faults) = root_of_1000_bytes().await;
        let budget = Budget::new(Some(1 << 30), Duration::from_secs(3600));
        budget.reserve(1000);
        budget.commit(1000);
        let gate = Arc::new(Semaphore::new(0));
        faults.add(Rule::new(Op::List, Fault::Gate(Arc::clone(&gate))).always());
        let asking = futures::future::join_all((0..4).map(|n| budget.usage(&root, n % 2 == 1)));
        let opening = async {
            faults.wait_fired(1).await;
            gate.add_permits(100);
        };
        let (all, ()) = futures::join!(asking, opening);
        for usage in all {
            assert_eq!(usage.unwrap().expected, 1000 + MARGIN_BYTES);
        }
        budget.reserve(500);
        assert_eq!(budget.usage(&root, false).await.unwrap().expected, 1500 + MARGIN_BYTES);
    }

    #[tokio::test]
    async fn another_limit_holds_at_once() {
        let (root, _) = root_of_1000_bytes().await;
        let budget = Budget::new(None, Duration::ZERO);
        assert!(budget.admits(&root, 1 << 40).await.unwrap());
        budget.free(1 << 40);
        budget.set_limit(Some(10_000));
        assert_eq!(budget.limit(), Some(10_000));
        assert!(!budget.admits(&root, 10_000).await.unwrap());
        budget.record_refusal(Fingerprint(1), root.clock.now());
        budget.set_limit(None);
        assert!(budget.admits(&root, 10_000).await.unwrap());
    }
}
