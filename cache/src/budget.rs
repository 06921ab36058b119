//! The byte budget of a root, as one process accounts for it.
//!
//! Everything below the root counts. Bytes that are being written count too, and so do the bytes by which manifests will
//! grow once they cover all existing records. A listing of the root gives most of it. Between listings this process
//! counts its own writes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use caju_runtime::OrderedMutex;
use caju_types::{Fingerprint, Result};

use crate::locks;
use crate::scan::Scan;
use crate::store::Root;

/// Bytes left free for objects that come and go: leases, claims and usage records.
const MARGIN_BYTES: u64 = 1 << 10;

/// What this process knows about the size of the root.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Option<u64>,
    /// How long a listing or a refusal is taken for current.
    refresh: Duration,
    listed: OrderedMutex<Option<(Duration, Listing)>>,
    /// Bytes that this process committed since the listing, less those that it deleted.
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
            limit,
            refresh,
            listed: OrderedMutex::new(locks::ROOT_SIZE, None),
            committed: AtomicI64::new(0),
            in_flight: AtomicI64::new(0),
            refused: OrderedMutex::new(locks::REFUSED_SNAPSHOTS, HashMap::new()),
        }
    }

    /// The limit in bytes; none if the root is unbounded.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The size of the root: by a new listing if `fresh`, else by one that is not older than the refresh interval.
    pub(crate) async fn usage(&self, root: &Root, fresh: bool) -> Result<Usage> {
        let now = root.clock.now();
        let known = self.listed.lock().filter(|(at, _)| !fresh && now.saturating_sub(*at) < self.refresh);
        let listing = match known {
            Some((_, listing)) => listing,
            None => {
                let before = self.committed.load(Ordering::Relaxed);
                let objects = root.list(&root.layout.base()).await?;
                let bytes = objects.iter().map(|o| o.bytes).sum();
                let manifest_growth = Scan::all(&root.layout, objects).values().map(manifest_growth).sum();
                let listing = Listing { bytes, manifest_growth };
                *self.listed.lock() = Some((now, listing));
                self.committed.fetch_sub(before, Ordering::Relaxed);
                listing
            }
        };
        let own = self.committed.load(Ordering::Relaxed) + self.in_flight.load(Ordering::Relaxed);
        let expected = (listing.bytes + listing.manifest_growth + MARGIN_BYTES).saturating_add_signed(own);
        Ok(Usage { listed: listing.bytes, expected })
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
        if let Some(limit) = self.limit
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
