//! Room: the byte budget of a root, and what has to go when it is short.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use caju_types::{Error, Fingerprint, Result, format_bytes};
use parking_lot::Mutex;

use crate::Cache;
use crate::record::PartMeta;
use crate::scan::Scan;

/// A snapshot's worth halves with every day that it is not used.
const HALF_LIFE_MS: f64 = 24.0 * 3600.0 * 1000.0;

/// What this process knows about the size of the root.
#[derive(Debug)]
pub(crate) struct Space {
    budget: Option<u64>,
    refresh: Duration,
    listed: Mutex<Option<(Duration, u64)>>,
    /// Committed here since the listing, less what was deleted.
    since: AtomicI64,
    /// Written by parts that are not whole yet: no listing shows them.
    in_flight: AtomicI64,
    /// When there was no room last, and nothing that could make some.
    full: Mutex<Option<Duration>>,
    turn: tokio::sync::Mutex<()>,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Space {
    pub(crate) fn new(budget: Option<u64>, refresh: Duration) -> Self {
        Self {
            budget,
            refresh,
            listed: Mutex::default(),
            since: AtomicI64::new(0),
            in_flight: AtomicI64::new(0),
            full: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Bytes of everything below the root, as far as known.
    async fn usage(&self, cache: &Cache, fresh: bool) -> Result<u64> {
        let now = cache.root.clock.now();
        let listed = *self.listed.lock();
        let base = match listed {
            Some((at, bytes)) if !fresh && now.saturating_sub(at) < self.refresh => bytes,
            _ => {
                let before = self.since.load(Ordering::Relaxed);
                let all = cache.root.list(&cache.root.layout.base()).await?;
                let bytes = all.iter().map(|o| o.bytes).sum();
                *self.listed.lock() = Some((now, bytes));
                self.since.fetch_sub(before, Ordering::Relaxed);
                bytes
            }
        };
        let here = self.since.load(Ordering::Relaxed) + self.in_flight.load(Ordering::Relaxed);
        Ok(base.saturating_add_signed(here))
    }

    /// Whether there is any room for a snapshot; makes some if not.
    pub(crate) async fn check(&self, cache: &Cache, of: Option<Fingerprint>) -> Result<()> {
        self.make_room(cache, 1, of).await
    }

    /// Takes room for bytes of a snapshot's part that are about to be written.
    pub(crate) async fn charge(&self, cache: &Cache, bytes: u64, of: Fingerprint) -> Result<()> {
        // First the claim, then the look: writers that come together see each other.
        self.in_flight.fetch_add(signed(bytes), Ordering::Relaxed);
        self.make_room(cache, 0, Some(of)).await.inspect_err(|_| self.release(bytes))
    }

    /// A part with so many bytes is whole: listings show it from now on.
    pub(crate) fn settle(&self, bytes: u64) {
        self.since.fetch_add(signed(bytes), Ordering::Relaxed);
        self.release(bytes);
    }

    /// A part with so many bytes was given up.
    pub(crate) fn release(&self, bytes: u64) {
        self.in_flight.fetch_sub(signed(bytes), Ordering::Relaxed);
    }

    /// Gives room back: the bytes are there no longer.
    pub(crate) fn refund(&self, bytes: u64) {
        self.since.fetch_sub(signed(bytes), Ordering::Relaxed);
        *self.full.lock() = None;
    }

    /// `of`: who needs the room. Its own parts are not what makes some: they would take turns.
    async fn make_room(&self, cache: &Cache, need: u64, of: Option<Fingerprint>) -> Result<()> {
        let Some(budget) = self.budget else { return Ok(()) };
        if self.usage(cache, false).await?.saturating_add(need) <= budget {
            return Ok(());
        }
        let now = cache.root.clock.now();
        if need > 0 && self.full.lock().is_some_and(|at| now.saturating_sub(at) < self.refresh) {
            // Every split asks; the store is not listed for each.
            return Err(full(cache, budget, budget));
        }
        let _turn = self.turn.lock().await;
        // What another task has just made room for, or another process has deleted.
        let usage = self.usage(cache, true).await?.saturating_add(need);
        if usage <= budget {
            return Ok(());
        }
        let freed = evict(cache, usage - budget, of).await?;
        self.refund(freed);
        if usage - freed <= budget {
            return Ok(());
        }
        *self.full.lock() = Some(now);
        Err(full(cache, usage - freed - need, budget))
    }
}

fn full(cache: &Cache, used: u64, budget: u64) -> Error {
    Error::exhausted(format!(
        "the cache {} is full: {} of {} are used and nothing more may be evicted (the rest is pinned or in use); \
         raise the budget, or remove snapshots with `caju cache rm`",
        cache.root.url(),
        format_bytes(used),
        format_bytes(budget),
    ))
}

/// Removes parts of the least worth until `need` bytes are free, as far as that is possible; gives the bytes
/// freed. Pinned snapshots, those in some live process's lease and `keep` stay.
pub(crate) async fn evict(cache: &Cache, need: u64, keep: Option<Fingerprint>) -> Result<u64> {
    let objects = cache.root.list(&cache.root.layout.base()).await?;
    let scans = Scan::all(&cache.root.layout, objects);
    let used = in_use(cache).await?;
    let now = scans.values().map(Scan::last_change_ms).max().unwrap_or(0);
    let mut candidates = Vec::new();
    for (of, scan) in &scans {
        if scan.pinned || keep == Some(*of) || used.contains(of) || cache.leases.holds(*of) {
            continue;
        }
        let index = cache.state(*of).refresh(cache).await?;
        let idle = now.saturating_sub(scan.last_use_ms().unwrap_or(0)).max(0);
        let recency = (-(idle as f64) / HALF_LIFE_MS).exp2();
        for (_, part) in index.iter() {
            candidates.push((
                part.compute_cpu_s() / part.bytes.max(1) as f64 * recency,
                std::sync::Arc::clone(part),
            ));
        }
    }
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.path.cmp(&b.1.path)));
    let mut freed = 0;
    let mut per_snapshot: BTreeMap<Fingerprint, u64> = BTreeMap::new();
    for (_, part) in candidates {
        if freed >= need {
            break;
        }
        remove_part(cache, &part).await?;
        freed += part.bytes;
        *per_snapshot.entry(part.fingerprint).or_default() += part.bytes;
    }
    for (of, bytes) in per_snapshot {
        tracing::info!(snapshot = %of, bytes, "parts were evicted to make room");
        cache.state(of).forget();
    }
    Ok(freed)
}

/// Deletes a part: its record first, so that nobody finds a record without a part.
pub(crate) async fn remove_part(cache: &Cache, part: &PartMeta) -> Result<()> {
    let layout = &cache.root.layout;
    let attempt = (!cache.root.conditional()).then_some(part.attempt.as_str());
    cache.root.delete(&layout.commit(part.fingerprint, part.split, part.generation, attempt)).await?;
    cache.root.delete(&layout.absolute(&part.path)).await
}

/// Snapshots that this process uses now, or that another one says it uses which has not been silent for the
/// orphans' grace by the store's own clock.
pub(crate) async fn in_use(cache: &Cache) -> Result<HashSet<Fingerprint>> {
    let mut used = HashSet::new();
    for (lease, _) in crate::admin::live_leases(cache).await? {
        let own = lease.writer == cache.leases.id();
        used.extend(lease.uses.into_iter().filter(|of| !own || cache.leases.holds(*of)));
    }
    Ok(used)
}
