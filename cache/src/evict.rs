//! Eviction: what stored parts are worth, and which of them go first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use caju_types::{Fingerprint, Result, SplitKey};
use serde::{Deserialize, Serialize};

use crate::commit::remove_part;
use crate::context::Context;
use crate::record::PartMeta;
use crate::scan::Scan;
use crate::state::Snapshots;

/// Seconds without use in which a snapshot's worth halves: a day.
const HALF_LIFE_S: f64 = 24.0 * 3600.0;
const GIB: f64 = (1u64 << 30) as f64;
/// The least worth of a part, in CPU seconds per GiB. Reading costs more than such a part saves. Parts at this bound,
/// also those that were never measured, differ by the time since their last use alone.
const MIN_WORTH_CPU_S_PER_GIB: f64 = 0.1;
/// How many times the worth of a stored part a newcomer needs to replace it. Of two alike parts the stored one so stays
/// for a day without use: the two do not replace each other in turns.
const MIN_WORTH_RATIO: f64 = 2.0;

/// A part that is evicted, or would be, and why it is this one: of all parts that may go it is worth the least.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Eviction {
    /// Its snapshot.
    pub snapshot: Fingerprint,
    /// Its split.
    pub split: SplitKey,
    /// Its path below `ROOT/v1`.
    pub part: String,
    /// Bytes that it frees: the part and its record.
    pub bytes: u64,
    /// CPU time that recomputing it takes, in seconds.
    pub compute_cpu_s: f64,
    /// Time since its snapshot was last used, in seconds by the store's clock.
    pub idle_s: f64,
    /// What keeping it is worth: CPU seconds saved per GiB, at least 0.1, halved for each day without use. The part with
    /// the least worth goes first.
    pub worth_cpu_s_per_gib: f64,
    /// Whether it belongs to a set, whose parts all go or all stay. Its worth is then that of the set.
    pub set: bool,
}

/// Bytes that evictions free.
pub(crate) fn freed_bytes(evicted: &[Eviction]) -> u64 {
    evicted.iter().map(|e| e.bytes).sum()
}

/// The worth of a GiB that is in use now, where computing `bytes` takes `cpu_s`.
pub(crate) fn worth_per_gib(cpu_s: f64, bytes: u64) -> f64 {
    (cpu_s / bytes.max(1) as f64 * GIB).max(MIN_WORTH_CPU_S_PER_GIB)
}

/// The parts of these snapshots that may be evicted, the one to go first at the front. Pinned snapshots, snapshots in the
/// lease of a live process, and `keep` stay.
pub(crate) async fn candidates(
    snapshots: &Snapshots,
    scans: &BTreeMap<Fingerprint, Scan>,
    keep: Option<Fingerprint>,
) -> Result<Vec<(Eviction, Arc<PartMeta>)>> {
    let ctx = snapshots.context();
    let now = ctx.root.now_ms().await?;
    let used = in_use(ctx, now).await?;
    let mut out = Vec::new();
    for (of, scan) in scans {
        if scan.pinned || keep == Some(*of) || used.contains(of) || ctx.leases.holds(*of) {
            continue;
        }
        let index = snapshots.get(*of).refresh(ctx).await?;
        let idle_s = now.saturating_sub(scan.last_use_ms().unwrap_or(0)).max(0) as f64 / 1000.0;
        let recency = (-idle_s / HALF_LIFE_S).exp2();
        let records = scan.winners();
        let set = !scan.sets.is_empty();
        let cpu_s = index.iter().map(|(_, part)| part.compute_cpu_s()).sum();
        let of_set = worth_per_gib(cpu_s, index.bytes()) * recency;
        for (split, part) in index.iter() {
            let record = records.get(split).map_or(0, |(_, record)| record.bytes);
            let alone = worth_per_gib(part.compute_cpu_s(), part.bytes) * recency;
            let eviction = Eviction {
                snapshot: *of,
                split: *split,
                part: part.path.clone(),
                bytes: part.bytes + record,
                compute_cpu_s: part.compute_cpu_s(),
                idle_s,
                worth_cpu_s_per_gib: if set { of_set } else { alone },
                set,
            };
            out.push((eviction, Arc::clone(part)));
        }
    }
    let worth = |e: &Eviction| e.worth_cpu_s_per_gib;
    out.sort_by(|(a, _), (b, _)| worth(a).total_cmp(&worth(b)).then_with(|| a.part.cmp(&b.part)));
    Ok(out)
}

/// The candidates that a newcomer of this worth may replace.
pub(crate) fn worth_less_than<T>(candidates: Vec<(Eviction, T)>, newcomer: f64) -> Vec<(Eviction, T)> {
    candidates.into_iter().take_while(|(e, _)| e.worth_cpu_s_per_gib * MIN_WORTH_RATIO <= newcomer).collect()
}

/// The first candidates that together free `need` bytes; of a set all parts.
pub(crate) fn until_freed<T>(candidates: Vec<(Eviction, T)>, need: u64) -> Vec<(Eviction, T)> {
    let (mut freed, mut begun) = (0, None);
    let not_yet = |(e, _): &(Eviction, T)| {
        let more = freed < need || (e.set && begun == Some(e.snapshot));
        freed += e.bytes;
        begun = Some(e.snapshot);
        more
    };
    candidates.into_iter().take_while(not_yet).collect()
}

/// Deletes these parts. Gives what was deleted.
pub(crate) async fn remove_all(
    snapshots: &Snapshots,
    parts: Vec<(Eviction, Arc<PartMeta>)>,
) -> Result<Vec<Eviction>> {
    let mut gone = Vec::new();
    let mut per_snapshot: BTreeMap<Fingerprint, u64> = BTreeMap::new();
    for (eviction, part) in parts {
        remove_part(&snapshots.context().root, &part).await?;
        *per_snapshot.entry(part.fingerprint).or_default() += eviction.bytes;
        gone.push(eviction);
    }
    for (of, bytes) in per_snapshot {
        tracing::info!(snapshot = %of, bytes, "parts were evicted");
        snapshots.get(of).forget();
    }
    Ok(gone)
}

/// Snapshots in use: by this process, or by the lease of another process that may be alive.
pub(crate) async fn in_use(ctx: &Context, now: i64) -> Result<HashSet<Fingerprint>> {
    let mut used = HashSet::new();
    for (lease, _) in ctx.leases.live(now, ctx.options.orphan_grace).await? {
        let own = lease.writer == ctx.leases.id();
        used.extend(lease.uses.into_iter().filter(|of| !own || ctx.leases.holds(*of)));
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(worth: f64) -> (Eviction, ()) {
        let eviction = Eviction {
            snapshot: Fingerprint(1),
            split: SplitKey(1),
            part: String::new(),
            bytes: 10,
            compute_cpu_s: 0.0,
            idle_s: 0.0,
            worth_cpu_s_per_gib: worth,
            set: false,
        };
        (eviction, ())
    }

    #[test]
    fn the_stored_of_two_alike_parts_stays_for_a_day() {
        let after = |days: f64| stored(worth_per_gib(5.0, 1 << 20) * (-days).exp2());
        for (days, goes) in [(0.0, 0), (0.9, 0), (1.0, 1), (30.0, 1)] {
            let gone = worth_less_than(vec![after(days)], worth_per_gib(5.0, 1 << 20));
            assert_eq!(gone.len(), goes, "after {days} days");
        }
        // Parts that were never measured differ by their use alone.
        let unmeasured = |days: f64| stored(worth_per_gib(0.0, 1 << 20) * (-days).exp2());
        assert!(worth_less_than(vec![unmeasured(0.5)], worth_per_gib(0.0, 1 << 10)).is_empty());
        assert_eq!(worth_less_than(vec![unmeasured(1.1)], worth_per_gib(0.0, 1 << 10)).len(), 1);
        // A worthless part does not evict an expensive one before weeks have passed.
        assert!(worth_less_than(vec![after(10.0)], worth_per_gib(0.0, 1)).is_empty());
        assert_eq!(worth_less_than(vec![after(20.0)], worth_per_gib(0.0, 1)).len(), 1);
    }
}
