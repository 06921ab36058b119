//! `cache gc`: what is expired, orphaned or over the budget goes.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use bytes::Bytes;
use caju_types::{Fingerprint, Result, SplitKey, format_bytes};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::live_leases;
use crate::Cache;
use crate::manifest::load_commit;
use crate::record::{Claim, Commit, unseal};
use crate::scan::Scan;
use crate::space::{Eviction, enough};
use crate::store::Listed;

/// Why something was collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collected {
    /// A snapshot that nobody used for the time to live.
    Expired,
    /// A part, whole or half-written, that no commit record names.
    OrphanedPart,
    /// An old manifest or one that cannot be understood, the record of a writer that lost on a store without conditional
    /// puts, or what a process that is gone said that it read: a sum of it stays.
    Superseded,
    /// A claim or lease of a process that is gone.
    DeadClaim,
    /// The listing of a source of which no snapshot has rows.
    UnusedListing,
    /// What was measured of a pipeline longer ago than the time to live.
    ForgottenPlan,
    /// A part that had to go for the budget.
    Evicted,
}

impl Collected {
    fn as_str(self) -> &'static str {
        match self {
            Collected::Expired => "expired",
            Collected::OrphanedPart => "orphaned part",
            Collected::Superseded => "superseded",
            Collected::DeadClaim => "dead claim",
            Collected::UnusedListing => "unused listing",
            Collected::ForgottenPlan => "forgotten plan",
            Collected::Evicted => "evicted",
        }
    }
}

/// A snapshot that nobody used for the time to live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expired {
    /// Which one.
    pub snapshot: Fingerprint,
    /// How long it was neither read nor written, in seconds by the store's clock.
    pub idle_s: f64,
    /// Bytes of everything that it occupies.
    pub bytes: u64,
}

/// What a collection deleted, or would delete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// Whether nothing was deleted.
    pub dry_run: bool,
    /// Every object, below `ROOT/v1`, with its reason and its bytes; not those of evictions.
    pub objects: Vec<(String, Collected, u64)>,
    /// The snapshots whose objects are expired.
    pub expired: Vec<Expired>,
    /// The parts that have to go for the budget, the one worth the least first.
    pub evictions: Vec<Eviction>,
    /// The bytes of `objects` and `evictions` together.
    pub bytes: u64,
    /// What is left in the root.
    pub left_bytes: u64,
    /// By how much that is more than the budget: the rest is pinned, in use, or records.
    pub over_budget_bytes: u64,
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (object, why, bytes) in &self.objects {
            writeln!(f, "{object}  {}  {}", why.as_str(), format_bytes(*bytes))?;
        }
        for e in &self.evictions {
            writeln!(f, "{}  {}  {}", e.part, Collected::Evicted.as_str(), format_bytes(e.bytes))?;
        }
        let verb = if self.dry_run { "would be deleted" } else { "deleted" };
        let count = self.objects.len() + self.evictions.len();
        write!(f, "{count} objects, {} {verb}", format_bytes(self.bytes))
    }
}

/// What is to go, in an order in which a stop half-way leaves nothing dangling.
#[derive(Default)]
struct Plan {
    first: Vec<Path>,
    then: Vec<Path>,
    /// Local files that are no objects yet.
    files: Vec<std::path::PathBuf>,
    /// What those take: no listing counts them.
    file_bytes: u64,
    /// Sums of what processes read, to be written before anything goes.
    sums: Vec<(Path, Bytes)>,
    report: Collection,
}

impl Plan {
    fn add(&mut self, cache: &Cache, object: &Listed, why: Collected) {
        let is_record = object.path.as_ref().ends_with(".commit");
        if is_record { &mut self.first } else { &mut self.then }.push(object.path.clone());
        self.tell(cache, object, why);
    }

    fn tell(&mut self, cache: &Cache, object: &Listed, why: Collected) {
        let name = cache.root.layout.relative(&object.path).unwrap_or_default().to_string();
        self.report.objects.push((name, why, object.bytes));
        self.report.bytes += object.bytes;
    }
}

impl Cache {
    /// Collects what is expired, orphaned or superseded and older than the grace, by the store's own clock;
    /// then evicts down to the budget, as far as it can. With `dry_run` it only tells.
    ///
    /// Pieces of uploads that were never completed cannot be listed in S3 and its like: let the bucket's
    /// lifecycle rule abort them.
    ///
    /// # Errors
    /// What the store says; what was deleted before stays deleted.
    pub async fn gc(&self, dry_run: bool) -> Result<Collection> {
        let now = self.root.now_ms().await?;
        let live = live_leases(self, now).await?;
        let used: HashSet<Fingerprint> = live.iter().flat_map(|(l, _)| l.uses.iter().copied()).collect();
        let alive: HashSet<&str> = live.iter().map(|(l, _)| l.writer.as_str()).collect();
        let objects = self.root.list(&self.root.layout.base()).await?;
        let total: u64 = objects.iter().map(|o| o.bytes).sum();
        let (mut plan, mut survivors) = (Plan::default(), BTreeMap::new());
        let ms = |d: std::time::Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let grace = ms(self.options.orphan_grace);
        let old = |o: &Listed| now.saturating_sub(o.modified_ms) >= grace;
        for (_, object) in self.leases.all().await? {
            if !live.iter().any(|(_, o)| o.path == object.path) && old(&object) {
                plan.add(self, &object, Collected::DeadClaim);
            }
        }
        let probes = self.root.layout.base().join("probes");
        for object in objects.iter().filter(|o| o.path.prefix_matches(&probes) && old(o)) {
            plan.add(self, object, Collected::DeadClaim);
        }
        // A job that decides anew writes it anew; one that finds none measures.
        let stale = |o: &Listed| {
            self.options.ttl.is_some_and(|ttl| now.saturating_sub(o.modified_ms) >= ms(ttl)) && old(o)
        };
        let plans = self.root.layout.plans();
        for object in objects.iter().filter(|o| o.path.prefix_matches(&plans) && stale(o)) {
            plan.add(self, object, Collected::ForgottenPlan);
        }
        for (file, object) in self.root.unfinished().await? {
            if old(&object) {
                plan.tell(self, &object, Collected::OrphanedPart);
                plan.files.push(file);
                plan.file_bytes += object.bytes;
            }
        }
        for (of, scan) in Scan::all(&self.root.layout, objects) {
            let idle = now.saturating_sub(scan.last_change_ms());
            let expired = self.options.ttl.is_some_and(|ttl| idle >= ms(ttl));
            if expired && !scan.pinned && !used.contains(&of) {
                let idle_s = idle.max(0) as f64 / 1000.0;
                plan.report.expired.push(Expired { snapshot: of, idle_s, bytes: scan.bytes });
                for object in everything(&scan) {
                    plan.add(self, object, Collected::Expired);
                }
                continue;
            }
            self.orphans(of, &scan, &alive, &old, &mut plan).await?;
            self.said(of, &scan, &alive, &old, &mut plan).await?;
            survivors.insert(of, scan);
        }
        for object in super::unused::listings(self, &survivors, &old).await? {
            plan.add(self, &object, Collected::UnusedListing);
        }
        plan.report.dry_run = dry_run;
        if dry_run {
            let sums: u64 = plan.sums.iter().map(|(_, body)| body.len() as u64).sum();
            return self.foresee(plan.report, total + plan.file_bytes + sums, survivors).await;
        }
        let Plan { first, then, files, sums, mut report, .. } = plan;
        for (path, body) in sums {
            self.root.put(&path, body).await?;
        }
        self.root.delete_all(first).await?;
        self.root.delete_all(then).await?;
        for file in files {
            if let Err(error) = std::fs::remove_file(&file) {
                tracing::warn!(file = %file.display(), %error, "a leftover could not be deleted");
            }
        }
        self.space.refund(report.bytes);
        for state in self.states.lock().values() {
            state.forget();
        }
        // Over the budget by what others wrote: room is made here rather than in a job.
        (report.evictions, report.over_budget_bytes) = self.space.shrink(self).await?;
        report.bytes += report.evictions.iter().map(|e| e.bytes).sum::<u64>();
        report.left_bytes = self.usage().await?.bytes;
        Ok(report)
    }

    /// What would be evicted from the snapshots that do not expire, had the rest of the plan been carried out.
    async fn foresee(
        &self,
        mut report: Collection,
        total: u64,
        survivors: BTreeMap<Fingerprint, Scan>,
    ) -> Result<Collection> {
        report.left_bytes = total.saturating_sub(report.bytes);
        if let Some(budget) = self.options.budget_bytes {
            let need = report.left_bytes.saturating_sub(budget);
            let candidates = crate::space::candidates(self, &survivors, None).await?;
            report.evictions = enough(candidates, need).into_iter().map(|(e, _)| e).collect();
            let evicted: u64 = report.evictions.iter().map(|e| e.bytes).sum();
            report.bytes += evicted;
            report.left_bytes = report.left_bytes.saturating_sub(evicted);
            report.over_budget_bytes = report.left_bytes.saturating_sub(budget);
        }
        Ok(report)
    }

    async fn orphans(
        &self,
        of: Fingerprint,
        scan: &Scan,
        alive: &HashSet<&str>,
        old: &impl Fn(&Listed) -> bool,
        plan: &mut Plan,
    ) -> Result<()> {
        let mut claimed = HashSet::new();
        for (split, claims) in &scan.claims {
            for claim in claims {
                let writer = match self.root.get(&claim.path).await? {
                    Some(bytes) => unseal::<Claim>(&bytes).ok().map(|c| c.writer),
                    None => continue,
                };
                if writer.is_some_and(|w| alive.contains(w.as_str())) || !old(claim) {
                    claimed.insert(*split);
                } else {
                    plan.add(self, claim, Collected::DeadClaim);
                }
            }
        }
        let winners = scan.winners();
        let mut referenced = HashSet::new();
        for (key, object) in winners.values() {
            if let Some(Some(Commit::Part(meta))) = load_commit(&self.root, of, object).await? {
                referenced.insert((key.0, meta.attempt));
            }
        }
        let unnamed = scan
            .parts
            .iter()
            .filter(|(key, object)| !referenced.contains(*key) && !claimed.contains(&key.0) && old(object));
        for object in self.still_unnamed(of, scan, unnamed.collect()).await? {
            plan.add(self, object, Collected::OrphanedPart);
        }
        for (key, object) in &scan.commits {
            // Lower generations stay: their places must not be taken again, and they cost nothing.
            let loser = winners.get(&key.0).is_some_and(|(k, _)| k.1 == key.1 && *k != key);
            if loser && old(object) {
                plan.add(self, object, Collected::Superseded);
            }
        }
        for object in super::manifests::superseded(self, of, scan).await? {
            if old(object) {
                plan.add(self, object, Collected::Superseded);
            }
        }
        Ok(())
    }

    /// Those parts that no commit record names now. A writer gives its claim back after it has committed its part. So if
    /// its claim was gone when claims were read, its record is there by now, though the listing may be older.
    async fn still_unnamed<'a>(
        &self,
        of: Fingerprint,
        before: &Scan,
        unnamed: Vec<(&(SplitKey, String), &'a Listed)>,
    ) -> Result<Vec<&'a Listed>> {
        if unnamed.is_empty() {
            return Ok(Vec::new());
        }
        let splits: HashSet<SplitKey> = unnamed.iter().map(|(key, _)| key.0).collect();
        let now = Scan::of(&self.root.layout, of, self.root.list(&self.root.layout.folder(of)).await?);
        let mut named = HashSet::new();
        for (key, object) in &now.commits {
            if splits.contains(&key.0)
                && !before.commits.contains_key(key)
                && let Some(Some(Commit::Part(meta))) = load_commit(&self.root, of, object).await?
            {
                named.insert((key.0, meta.attempt));
            }
        }
        Ok(unnamed.into_iter().filter(|(key, _)| !named.contains(*key)).map(|(_, object)| object).collect())
    }

    /// What processes that are gone said that they read becomes one object.
    async fn said(
        &self,
        of: Fingerprint,
        scan: &Scan,
        alive: &HashSet<&str>,
        old: &impl Fn(&Listed) -> bool,
        plan: &mut Plan,
    ) -> Result<()> {
        let gone = |id: &str, object: &Listed| !alive.contains(id) && old(object);
        if let Some(folded) = super::uses::fold(&self.root, of, scan, gone).await? {
            for object in &folded.gone {
                plan.add(self, object, Collected::Superseded);
            }
            plan.sums.push((folded.path, folded.body));
        }
        Ok(())
    }
}

fn everything(scan: &Scan) -> impl Iterator<Item = &Listed> {
    scan.commits
        .values()
        .chain(scan.parts.values())
        .chain(scan.manifests.values())
        .chain(scan.claims.values().flatten())
        .chain(scan.uses.iter())
        .chain(scan.sets.iter())
}

/// Deletes a snapshot: records first, then everything else.
pub(super) async fn remove_snapshot(cache: &Cache, of: Fingerprint, scan: Scan) -> Result<()> {
    let records = scan.commits.values().map(|o| o.path.clone()).collect();
    cache.root.delete_all(records).await?;
    let folder = cache.root.layout.folder(of);
    let rest = cache.root.list(&folder).await?.into_iter().map(|o| o.path).collect();
    cache.root.delete_all(rest).await?;
    cache.state(of).forget();
    Ok(())
}
