//! What stored parts are worth, and which of them go first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use caju_types::{Fingerprint, Result, SplitKey};
use serde::{Deserialize, Serialize};

use crate::Cache;
use crate::record::PartMeta;
use crate::scan::Scan;

/// A snapshot's worth halves with every day that it is not used.
const HALF_LIFE_S: f64 = 24.0 * 3600.0;
const GIB: f64 = (1u64 << 30) as f64;
/// CPU seconds per GiB below which nothing is told apart: reading costs more than that saves. So of what was never
/// measured, too, the part that is not used for longer goes.
const LEAST_CPU_S_PER_GIB: f64 = 0.1;
/// How many times as much as a stored part a newcomer has to be worth to take its room. Of two that are alike the
/// stored one stays for a day without use, and does not take turns with the other.
const ADVANTAGE: f64 = 2.0;

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
    /// What keeping it is worth: CPU seconds that each GiB of it saves, at least 0.1, and half of that for each day
    /// that it was not used. The least goes first.
    pub worth_cpu_s_per_gib: f64,
    /// Whether it is one of a set, of which all parts go or none: its worth is that of the set.
    pub set: bool,
}

pub(super) fn freed(evicted: &[Eviction]) -> u64 {
    evicted.iter().map(|e| e.bytes).sum()
}

/// What bytes are worth that are used now.
pub(super) fn per_gib(cpu_s: f64, bytes: u64) -> f64 {
    (cpu_s / bytes.max(1) as f64 * GIB).max(LEAST_CPU_S_PER_GIB)
}

/// The parts of these snapshots that may go, with their records, the first one first. Pinned snapshots, those in
/// some live process's lease and `keep` stay.
pub(crate) async fn candidates(
    cache: &Cache,
    scans: &BTreeMap<Fingerprint, Scan>,
    keep: Option<Fingerprint>,
) -> Result<Vec<(Eviction, Arc<PartMeta>)>> {
    let now = cache.root.now_ms().await?;
    let used = in_use(cache, now).await?;
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
        let cpu_s = index.iter().map(|(_, part)| part.compute_cpu_s()).sum();
        let of_set = per_gib(cpu_s, index.bytes()) * recency;
        for (split, part) in index.iter() {
            let record = records.get(split).map_or(0, |(_, record)| record.bytes);
            let alone = per_gib(part.compute_cpu_s(), part.bytes) * recency;
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

/// Those of them that are worth so much less than a newcomer that they go for it.
pub(super) fn cheap_enough<T>(candidates: Vec<(Eviction, T)>, newcomer: f64) -> Vec<(Eviction, T)> {
    candidates.into_iter().take_while(|(e, _)| e.worth_cpu_s_per_gib * ADVANTAGE <= newcomer).collect()
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

/// Removes these parts.
pub(super) async fn remove_all(
    cache: &Cache,
    parts: Vec<(Eviction, Arc<PartMeta>)>,
) -> Result<Vec<Eviction>> {
    let mut gone = Vec::new();
    let mut per_snapshot: BTreeMap<Fingerprint, u64> = BTreeMap::new();
    for (eviction, part) in parts {
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
    let (of, split, generation) = (part.fingerprint, part.split, part.generation);
    let names =
        [layout.commit(of, split, generation, attempt), layout.commit_before(of, split, generation, attempt)];
    cache.root.delete_all(names.to_vec()).await?;
    cache.root.delete(&layout.absolute(&part.path)).await
}

/// Snapshots that this process uses now, or that another one says it uses which has not been silent for the
/// orphans' grace by the store's own clock.
pub(crate) async fn in_use(cache: &Cache, now: i64) -> Result<HashSet<Fingerprint>> {
    let mut used = HashSet::new();
    for (lease, _) in crate::admin::live_leases(cache, now).await? {
        let own = lease.writer == cache.leases.id();
        used.extend(lease.uses.into_iter().filter(|of| !own || cache.leases.holds(*of)));
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
    fn of_two_alike_the_stored_one_stays_for_a_day() {
        let after = |days: f64| stored(per_gib(5.0, 1 << 20) * (-days).exp2());
        for (days, goes) in [(0.0, 0), (0.9, 0), (1.0, 1), (30.0, 1)] {
            let gone = cheap_enough(vec![after(days)], per_gib(5.0, 1 << 20));
            assert_eq!(gone.len(), goes, "after {days} days");
        }
        // What was never measured is told apart by its use alone.
        let unmeasured = |days: f64| stored(per_gib(0.0, 1 << 20) * (-days).exp2());
        assert!(cheap_enough(vec![unmeasured(0.5)], per_gib(0.0, 1 << 10)).is_empty());
        assert_eq!(cheap_enough(vec![unmeasured(1.1)], per_gib(0.0, 1 << 10)).len(), 1);
        // The worthless does not push out the dear one before weeks have passed.
        assert!(cheap_enough(vec![after(10.0)], per_gib(0.0, 1)).is_empty());
        assert_eq!(cheap_enough(vec![after(20.0)], per_gib(0.0, 1)).len(), 1);
    }
}
