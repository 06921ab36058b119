//! Admission: whether rows that are to be stored fit the budget, and at the cost of which parts.
//!
//! A newcomer that does not fit evicts parts that are worth much less than it is. If there are not enough such parts, the
//! newcomer is not stored, and nothing is evicted for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use caju_types::{Error, Fingerprint, Result, format_bytes};

use crate::budget::Usage;
use crate::context::Context;
use crate::evict::{
    Eviction, candidates, freed_bytes, remove_all, until_freed, worth_less_than, worth_per_gib,
};
use crate::scan::Scan;
use crate::state::Snapshots;

/// From this many sixteenths of the budget on, the root is listed again before a part counts: other processes may write, too.
const NEARLY_FULL: u64 = 15;

/// Rows that are to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionRequest {
    /// Their snapshot. Its own parts are not evicted for it: they would replace one another in turns.
    pub(crate) of: Fingerprint,
    /// CPU seconds that computing the rows so far took, if that is known, and their bytes.
    pub(crate) cost: Option<(f64, u64)>,
}

/// Decides about newcomers of one root.
#[derive(Debug)]
pub(crate) struct Admission {
    ctx: Arc<Context>,
    snapshots: Arc<Snapshots>,
    /// One eviction at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Admission {
    pub(crate) fn new(ctx: Arc<Context>, snapshots: Arc<Snapshots>) -> Self {
        Self { ctx, snapshots, turn: tokio::sync::Mutex::new(()) }
    }

    /// Refuses a split of a snapshot that was refused a moment ago, without listing the store for every split.
    ///
    /// # Errors
    /// `ResourceExhausted` if it was refused, and the errors of the store.
    pub(crate) async fn check(&self, of: Fingerprint) -> Result<()> {
        let (ctx, budget) = (&self.ctx, &self.ctx.budget);
        let Some(limit) = budget.limit() else { return Ok(()) };
        if !budget.was_refused(of, ctx.root.clock.now()) {
            return Ok(());
        }
        let usage = budget.usage(&ctx.root, false).await?;
        let why = "rows of this snapshot did not fit a moment ago";
        if usage.expected < limit { Ok(()) } else { Err(self.full(usage, limit, why)) }
    }

    /// Evicts down to the budget, by a new listing. Gives what was evicted, and by how many bytes the root is still too
    /// large.
    pub(crate) async fn shrink(&self) -> Result<(Vec<Eviction>, u64)> {
        let (ctx, budget) = (&self.ctx, &self.ctx.budget);
        let Some(limit) = budget.limit() else { return Ok((Vec::new(), 0)) };
        let _turn = self.turn.lock().await;
        let listed = budget.usage(&ctx.root, true).await?.listed;
        let mut evicted = Vec::new();
        if listed > limit {
            let candidates = candidates(&self.snapshots, &ctx.scan_all().await?, None).await?;
            evicted = until_freed(candidates, listed - limit);
        }
        let evicted = remove_all(&self.snapshots, evicted).await?;
        let freed = freed_bytes(&evicted);
        budget.free(freed);
        Ok((evicted, listed.saturating_sub(freed).saturating_sub(limit)))
    }

    /// Reserves bytes that are about to be written, and evicts for them if need be. With `last`, the last bytes of a part,
    /// the root is listed again if it is nearly full.
    ///
    /// # Errors
    /// `ResourceExhausted` if they do not fit and too little of what is stored is worth less than half of them.
    pub(crate) async fn reserve(&self, bytes: u64, newcomer: AdmissionRequest, last: bool) -> Result<()> {
        // The reservation comes before the listing, so that concurrent writers see one another.
        self.ctx.budget.reserve(bytes);
        self.evict_for(newcomer, last).await.inspect_err(|_| self.ctx.budget.cancel(bytes))
    }

    async fn evict_for(&self, newcomer: AdmissionRequest, last: bool) -> Result<()> {
        let (ctx, budget) = (&self.ctx, &self.ctx.budget);
        let Some(limit) = budget.limit() else { return Ok(()) };
        let expected = budget.usage(&ctx.root, false).await?.expected;
        let nearly_full = last && expected > limit / 16 * NEARLY_FULL;
        if expected <= limit && !nearly_full {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        // Another task may have evicted just now, and another process may have written or deleted.
        let usage = budget.usage(&ctx.root, true).await?;
        if usage.expected <= limit {
            return Ok(());
        }
        let scans = ctx.scan_all().await?;
        let worth = self.worth(&scans, newcomer).await?;
        let candidates = candidates(&self.snapshots, &scans, Some(newcomer.of)).await?;
        let least = candidates.first().map(|(e, _)| e.worth_cpu_s_per_gib);
        let need = usage.expected - limit;
        let victims = until_freed(worth_less_than(candidates, worth), need);
        if victims.iter().map(|(e, _)| e.bytes).sum::<u64>() >= need {
            let freed = freed_bytes(&remove_all(&self.snapshots, victims).await?);
            budget.free(freed);
            return Ok(());
        }
        budget.record_refusal(newcomer.of, ctx.root.clock.now());
        let why = match least {
            None => "the rest is pinned or in use".to_string(),
            Some(least) => format!(
                "these rows are worth {worth:.3} CPU s per GiB, and there is not enough that is worth less than half \
                 of that: what may be evicted begins at {least:.3}"
            ),
        };
        Err(self.full(usage, limit, &why))
    }

    /// The worth of a GiB of a newcomer. If its cost is unknown, it is assumed to be worth as much as the parts that its
    /// snapshot has, and the minimum if there are none.
    async fn worth(&self, scans: &BTreeMap<Fingerprint, Scan>, newcomer: AdmissionRequest) -> Result<f64> {
        if let Some((cpu_s, bytes)) = newcomer.cost {
            return Ok(worth_per_gib(cpu_s, bytes));
        }
        if !scans.contains_key(&newcomer.of) {
            return Ok(worth_per_gib(0.0, 0));
        }
        let index = self.snapshots.get(newcomer.of).refresh(&self.ctx).await?;
        Ok(worth_per_gib(index.iter().map(|(_, p)| p.compute_cpu_s()).sum(), index.bytes()))
    }

    fn full(&self, usage: Usage, limit: u64, why: &str) -> Error {
        Error::exhausted(format!(
            "the cache {} is full: {} of {} are used, which leaves {} too little for what is being written with its records, \
             and nothing more may be evicted for it ({why}); raise the budget, or remove snapshots with `caju cache rm`",
            self.ctx.root.url(),
            format_bytes(usage.listed),
            format_bytes(limit),
            format_bytes(usage.expected.saturating_sub(limit).max(1)),
        ))
    }
}
