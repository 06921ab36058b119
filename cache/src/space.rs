//! Room: the byte budget of a root, and what has to go when it is short.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use caju_types::{Error, Fingerprint, Result, SplitKey, format_bytes};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Cache;
use crate::record::PartMeta;
use crate::scan::Scan;

/// A snapshot's worth halves with every day that it is not used.
const HALF_LIFE_S: f64 = 24.0 * 3600.0;
const GIB: f64 = (1u64 << 30) as f64;

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
        self.make_room(cache, 1, of).await.map(drop)
    }

    /// Makes room down to the budget, whatever was known of it before; what had to go, and by how many bytes the
    /// root is still too large.
    pub(crate) async fn shrink(&self, cache: &Cache) -> Result<(Vec<Eviction>, u64)> {
        let Some(budget) = self.budget else { return Ok((Vec::new(), 0)) };
        let _turn = self.turn.lock().await;
        let usage = self.usage(cache, true).await?;
        let evicted = evict(cache, usage.saturating_sub(budget), None).await?;
        let freed = freed(&evicted);
        self.refund(freed);
        Ok((evicted, usage.saturating_sub(freed).saturating_sub(budget)))
    }

    /// Takes room for bytes of a snapshot's part that are about to be written.
    pub(crate) async fn charge(&self, cache: &Cache, bytes: u64, of: Fingerprint) -> Result<()> {
        // First the claim, then the look: writers that come together see each other.
        self.in_flight.fetch_add(signed(bytes), Ordering::Relaxed);
        self.make_room(cache, 0, Some(of)).await.map(drop).inspect_err(|_| self.release(bytes))
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
        let freed = freed(&evict(cache, usage - budget, of).await?);
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

/// A part that makes room, or would, and why it is this one: of all that may go it is worth the least.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Eviction {
    /// Its snapshot.
    pub snapshot: Fingerprint,
    /// Its split.
    pub split: SplitKey,
    /// Its place below `ROOT/v1`.
    pub part: String,
    /// What it frees: the part and its record.
    pub bytes: u64,
    /// CPU time that computing it again takes, in seconds.
    pub compute_cpu_s: f64,
    /// How long its snapshot has not been used, in seconds by the store's clock.
    pub idle_s: f64,
    /// What keeping it is worth: CPU seconds that each GiB of it saves, half of that for each day that it was not
    /// used. The least goes first.
    pub worth_cpu_s_per_gib: f64,
    /// Whether it is one of a set, of which all parts go or none: its worth is that of the set.
    pub set: bool,
}

fn freed(evicted: &[Eviction]) -> u64 {
    evicted.iter().map(|e| e.bytes).sum()
}

/// The parts of these snapshots that may go, with their records, the first one first. Pinned snapshots, those in
/// some live process's lease and `keep` stay.
pub(crate) async fn candidates(
    cache: &Cache,
    scans: &BTreeMap<Fingerprint, Scan>,
    keep: Option<Fingerprint>,
) -> Result<Vec<(Eviction, Arc<PartMeta>)>> {
    let used = in_use(cache).await?;
    let now = scans.values().map(Scan::last_change_ms).max().unwrap_or(0);
    let mut out = Vec::new();
    for (of, scan) in scans {
        if scan.pinned || keep == Some(*of) || used.contains(of) || cache.leases.holds(*of) {
            continue;
        }
        let index = cache.state(*of).refresh(cache).await?;
        let idle_s = now.saturating_sub(scan.last_use_ms().unwrap_or(0)).max(0) as f64 / 1000.0;
        let recency = (-idle_s / HALF_LIFE_S).exp2();
        let records = scan.winners();
        let set = !scan.sets.is_empty();
        let per_gib = |cpu_s: f64, bytes: u64| cpu_s / bytes.max(1) as f64 * GIB * recency;
        let cpu_s = index.iter().map(|(_, part)| part.compute_cpu_s()).sum();
        let of_set = per_gib(cpu_s, index.bytes());
        for (split, part) in index.iter() {
            let record = records.get(split).map_or(0, |(_, record)| record.bytes);
            let eviction = Eviction {
                snapshot: *of,
                split: *split,
                part: part.path.clone(),
                bytes: part.bytes + record,
                compute_cpu_s: part.compute_cpu_s(),
                idle_s,
                worth_cpu_s_per_gib: if set { of_set } else { per_gib(part.compute_cpu_s(), part.bytes) },
                set,
            };
            out.push((eviction, Arc::clone(part)));
        }
    }
    let worth = |e: &Eviction| e.worth_cpu_s_per_gib;
    out.sort_by(|(a, _), (b, _)| worth(a).total_cmp(&worth(b)).then_with(|| a.part.cmp(&b.part)));
    Ok(out)
}

/// As many of them as free so many bytes; sets as a whole.
pub(crate) fn enough<T>(candidates: Vec<(Eviction, T)>, need: u64) -> Vec<(Eviction, T)> {
    let (mut freed, mut begun) = (0, None);
    let not_yet = |(e, _): &(Eviction, T)| {
        let more = freed < need || (e.set && begun == Some(e.snapshot));
        freed += e.bytes;
        begun = Some(e.snapshot);
        more
    };
    candidates.into_iter().take_while(not_yet).collect()
}

/// Removes parts of the least worth until `need` bytes are free, as far as that is possible; gives what it removed.
async fn evict(cache: &Cache, need: u64, keep: Option<Fingerprint>) -> Result<Vec<Eviction>> {
    if need == 0 {
        return Ok(Vec::new());
    }
    let scans = Scan::all(&cache.root.layout, cache.root.list(&cache.root.layout.base()).await?);
    let mut gone = Vec::new();
    let mut per_snapshot: BTreeMap<Fingerprint, u64> = BTreeMap::new();
    for (eviction, part) in enough(candidates(cache, &scans, keep).await?, need) {
        remove_part(cache, &part).await?;
        *per_snapshot.entry(part.fingerprint).or_default() += eviction.bytes;
        gone.push(eviction);
    }
    for (of, bytes) in per_snapshot {
        tracing::info!(snapshot = %of, bytes, "parts were evicted to make room");
        cache.state(of).forget();
    }
    Ok(gone)
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
