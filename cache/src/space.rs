//! Room: the byte budget of a root, and who gets it when it is short.
//!
//! Everything below the root counts, what is being written too, and what manifests will grow by once they cover the
//! records that are there. When that is more than the budget, a newcomer makes room for itself at the cost of what is
//! worth much less than it is; if there is not enough of that, it is not stored, and nothing is evicted for it.

mod evict;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use caju_types::{Error, Fingerprint, Result, format_bytes};
use parking_lot::Mutex;

use crate::Cache;
use crate::scan::Scan;

pub use evict::Eviction;
pub(crate) use evict::{candidates, enough, in_use, remove_part};
use evict::{cheap_enough, freed, per_gib, remove_all};

/// Room that is left for what comes and goes: leases, claims, what readers say of themselves.
const MARGIN: u64 = 1 << 10;
/// A root so full (in sixteenths of its budget) is looked at before each part of it counts: others may write too.
const NEARLY: u64 = 15;

/// What this process knows about the size of the root.
#[derive(Debug)]
pub(crate) struct Space {
    budget: Option<u64>,
    refresh: Duration,
    listed: Mutex<Option<(Duration, Listing)>>,
    /// Committed here since the listing with all that comes of it, less what was deleted.
    since: AtomicI64,
    /// Of parts that are not whole yet: no listing shows them.
    in_flight: AtomicI64,
    /// When a part of a snapshot last found no room.
    refused: Mutex<HashMap<Fingerprint, Duration>>,
    turn: tokio::sync::Mutex<()>,
}

/// What a listing of the root shows.
#[derive(Debug, Clone, Copy, Default)]
struct Listing {
    bytes: u64,
    /// What manifests will take beyond that.
    promised: u64,
}

/// What the root holds now and will hold if everything goes on.
#[derive(Debug, Clone, Copy)]
struct Usage {
    listed: u64,
    expected: u64,
}

/// Who needs room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newcomer {
    /// Its own parts are not what makes some: they would take turns.
    pub(crate) of: Fingerprint,
    /// CPU seconds that computing what there is of the part took, if they are known, and its bytes.
    pub(crate) cost: Option<(f64, u64)>,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// What the manifests of a snapshot will take when they cover all its records, beyond what they take now: two are kept,
/// and both will say all. What was recorded since the newest one it does not cover.
fn promised(scan: &Scan) -> u64 {
    let mut newest = scan.manifests.values().rev();
    let (last, before) = (newest.next(), newest.next().map_or(0, |o| o.bytes));
    let (last, since) = last.map_or((0, i64::MIN), |o| (o.bytes, o.modified_ms));
    let later: u64 = scan.commits.values().filter(|o| o.modified_ms >= since).map(|o| o.bytes).sum();
    (2 * (last + later)).saturating_sub(last + before)
}

impl Space {
    pub(crate) fn new(budget: Option<u64>, refresh: Duration) -> Self {
        Self {
            budget,
            refresh,
            listed: Mutex::default(),
            since: AtomicI64::new(0),
            in_flight: AtomicI64::new(0),
            refused: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.budget.is_some()
    }

    async fn usage(&self, cache: &Cache, fresh: bool) -> Result<Usage> {
        let now = cache.root.clock.now();
        let known = self.listed.lock().filter(|(at, _)| !fresh && now.saturating_sub(*at) < self.refresh);
        let listing = match known {
            Some((_, listing)) => listing,
            None => {
                let before = self.since.load(Ordering::Relaxed);
                let objects = cache.root.list(&cache.root.layout.base()).await?;
                let bytes = objects.iter().map(|o| o.bytes).sum();
                let promised = Scan::all(&cache.root.layout, objects).values().map(promised).sum();
                let listing = Listing { bytes, promised };
                *self.listed.lock() = Some((now, listing));
                self.since.fetch_sub(before, Ordering::Relaxed);
                listing
            }
        };
        let here = self.since.load(Ordering::Relaxed) + self.in_flight.load(Ordering::Relaxed);
        let expected = (listing.bytes + listing.promised + MARGIN).saturating_add_signed(here);
        Ok(Usage { listed: listing.bytes, expected })
    }

    /// Refuses what found no room a moment ago: every split asks, and the store is not listed for each.
    pub(crate) async fn check(&self, cache: &Cache, of: Fingerprint) -> Result<()> {
        let Some(budget) = self.budget else { return Ok(()) };
        let now = cache.root.clock.now();
        let lately = self.refused.lock().get(&of).is_some_and(|at| now.saturating_sub(*at) < self.refresh);
        if !lately {
            return Ok(());
        }
        let usage = self.usage(cache, false).await?;
        let why = "there was no room for rows of this snapshot a moment ago";
        if usage.expected < budget { Ok(()) } else { Err(full(cache, usage, budget, why)) }
    }

    /// Makes room down to the budget, whatever was known of it before; what had to go, and by how many bytes the
    /// root is still too large.
    pub(crate) async fn shrink(&self, cache: &Cache) -> Result<(Vec<Eviction>, u64)> {
        let Some(budget) = self.budget else { return Ok((Vec::new(), 0)) };
        let _turn = self.turn.lock().await;
        let there = self.usage(cache, true).await?.listed;
        let mut evicted = Vec::new();
        if there > budget {
            evicted = enough(candidates(cache, &all(cache).await?, None).await?, there - budget);
        }
        let evicted = remove_all(cache, evicted).await?;
        let freed = freed(&evicted);
        self.refund(freed);
        Ok((evicted, there.saturating_sub(freed).saturating_sub(budget)))
    }

    /// Takes room for bytes that are about to be written; for the `last` ones of a part only after a fresh look,
    /// where it is nearly gone.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is none and what is stored is not worth so much less that it would go.
    pub(crate) async fn charge(
        &self,
        cache: &Cache,
        bytes: u64,
        newcomer: Newcomer,
        last: bool,
    ) -> Result<()> {
        // First the claim, then the look: writers that come together see each other.
        self.in_flight.fetch_add(signed(bytes), Ordering::Relaxed);
        self.make_room(cache, newcomer, last).await.inspect_err(|_| self.release(bytes))
    }

    /// Whether so many bytes more, of records that nobody asked for, leave the root inside its budget. They count from
    /// then on.
    pub(crate) async fn takes(&self, cache: &Cache, bytes: u64) -> Result<bool> {
        if let Some(budget) = self.budget
            && self.usage(cache, true).await?.expected.saturating_add(bytes) > budget
        {
            return Ok(false);
        }
        self.since.fetch_add(signed(bytes), Ordering::Relaxed);
        Ok(true)
    }

    /// What was charged is there: listings show it from now on.
    pub(crate) fn settle(&self, bytes: u64) {
        self.since.fetch_add(signed(bytes), Ordering::Relaxed);
        self.release(bytes);
    }

    /// What was charged was given up.
    pub(crate) fn release(&self, bytes: u64) {
        self.in_flight.fetch_sub(signed(bytes), Ordering::Relaxed);
    }

    /// Gives room back: the bytes are there no longer.
    pub(crate) fn refund(&self, bytes: u64) {
        self.since.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.refused.lock().clear();
    }

    async fn make_room(&self, cache: &Cache, newcomer: Newcomer, last: bool) -> Result<()> {
        let Some(budget) = self.budget else { return Ok(()) };
        let expected = self.usage(cache, false).await?.expected;
        let nearly = last && expected > budget / 16 * NEARLY;
        if expected <= budget && !nearly {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        // What another task has just made room for, or another process has written or deleted.
        let usage = self.usage(cache, true).await?;
        if usage.expected <= budget {
            return Ok(());
        }
        let scans = all(cache).await?;
        let worth = self.worth(cache, &scans, newcomer).await?;
        let candidates = candidates(cache, &scans, Some(newcomer.of)).await?;
        let least = candidates.first().map(|(e, _)| e.worth_cpu_s_per_gib);
        let need = usage.expected - budget;
        let victims = enough(cheap_enough(candidates, worth), need);
        if victims.iter().map(|(e, _)| e.bytes).sum::<u64>() >= need {
            let freed = freed(&remove_all(cache, victims).await?);
            self.refund(freed);
            return Ok(());
        }
        self.refused.lock().insert(newcomer.of, cache.root.clock.now());
        let why = match least {
            None => "the rest is pinned or in use".to_string(),
            Some(least) => format!(
                "these rows are worth {worth:.3} CPU s per GiB, and there is not enough that is worth less than half \
                 of that: what may be evicted begins at {least:.3}"
            ),
        };
        Err(full(cache, usage, budget, &why))
    }

    /// What a GiB of a newcomer is worth. Where nobody says, it is taken for like the parts that its snapshot has, and
    /// for worth little if it has none.
    async fn worth(
        &self,
        cache: &Cache,
        scans: &BTreeMap<Fingerprint, Scan>,
        newcomer: Newcomer,
    ) -> Result<f64> {
        if let Some((cpu_s, bytes)) = newcomer.cost {
            return Ok(per_gib(cpu_s, bytes));
        }
        if !scans.contains_key(&newcomer.of) {
            return Ok(per_gib(0.0, 0));
        }
        let index = cache.state(newcomer.of).refresh(cache).await?;
        Ok(per_gib(index.iter().map(|(_, p)| p.compute_cpu_s()).sum(), index.bytes()))
    }
}

/// Every snapshot of the root.
async fn all(cache: &Cache) -> Result<BTreeMap<Fingerprint, Scan>> {
    Ok(Scan::all(&cache.root.layout, cache.root.list(&cache.root.layout.base()).await?))
}

fn full(cache: &Cache, usage: Usage, budget: u64, why: &str) -> Error {
    Error::exhausted(format!(
        "the cache {} is full: {} of {} are used, which leaves {} too little for what is being written with its records, \
         and nothing more may be evicted for it ({why}); raise the budget, or remove snapshots with `caju cache rm`",
        cache.root.url(),
        format_bytes(usage.listed),
        format_bytes(budget),
        format_bytes(usage.expected.saturating_sub(budget).max(1)),
    ))
}
