//! `cache gc`: deletes what is expired, orphaned or over the budget.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use bytes::Bytes;
use caju_types::{Fingerprint, Result, SplitKey, format_bytes};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::{manifests, orphans};
use crate::cache::Cache;
use crate::commit::LoadedCommit;
use crate::evict::{Eviction, candidates, until_freed};
use crate::record::Claim;
use crate::scan::Scan;
use crate::state::fold_usage_records;
use crate::store::Listed;

/// Why something was collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectReason {
    /// A snapshot that was not used for the time to live.
    Expired,
    /// A part, whole or half-written, that no commit record names.
    OrphanedPart,
    /// An old or damaged manifest, the record of a writer that lost on a store without conditional puts, or the usage
    /// record of a process that has ended. A sum of usage records stays.
    Superseded,
    /// A claim or lease of a process that has ended.
    DeadClaim,
    /// The listing of a source of which no snapshot has rows.
    #[serde(rename = "unused-listing")]
    OrphanedListing,
    /// The plan record of a pipeline, older than the time to live.
    #[serde(rename = "forgotten-plan")]
    ExpiredPlan,
    /// A part that was evicted to stay within the budget.
    Evicted,
}

impl CollectReason {
    fn as_str(self) -> &'static str {
        match self {
            CollectReason::Expired => "expired",
            CollectReason::OrphanedPart => "orphaned part",
            CollectReason::Superseded => "superseded",
            CollectReason::DeadClaim => "dead claim",
            CollectReason::OrphanedListing => "unused listing",
            CollectReason::ExpiredPlan => "forgotten plan",
            CollectReason::Evicted => "evicted",
        }
    }
}

/// A snapshot that was not used for the time to live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expired {
    /// Its fingerprint.
    pub snapshot: Fingerprint,
    /// Seconds by the store's clock since it was last read or written.
    pub idle_s: f64,
    /// Bytes of all its objects.
    pub bytes: u64,
}

/// What a collection deleted, or would delete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// Whether nothing was deleted.
    pub dry_run: bool,
    /// Every object by its path below `ROOT/v1`, with its reason and its bytes. Objects of evictions are not among them.
    pub objects: Vec<(String, CollectReason, u64)>,
    /// The expired snapshots.
    pub expired: Vec<Expired>,
    /// The parts that were evicted to stay within the budget, the one worth the least first.
    pub evictions: Vec<Eviction>,
    /// The bytes of `objects` and `evictions` together.
    pub bytes: u64,
    /// Bytes that remain in the root.
    pub left_bytes: u64,
    /// Bytes by which the remainder exceeds the budget: it is pinned, in use, or records.
    pub over_budget_bytes: u64,
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (object, why, bytes) in &self.objects {
            writeln!(f, "{object}  {}  {}", why.as_str(), format_bytes(*bytes))?;
        }
        for e in &self.evictions {
            writeln!(f, "{}  {}  {}", e.part, CollectReason::Evicted.as_str(), format_bytes(e.bytes))?;
        }
        let verb = if self.dry_run { "would be deleted" } else { "deleted" };
        let count = self.objects.len() + self.evictions.len();
        write!(f, "{count} objects, {} {verb}", format_bytes(self.bytes))
    }
}

/// What is to be deleted, in an order in which an interruption leaves no record without its part.
#[derive(Default)]
struct Plan {
    /// Commit records.
    records: Vec<Path>,
    /// All other objects.
    objects: Vec<Path>,
    /// Local files that were never completed: they are no objects.
    files: Vec<std::path::PathBuf>,
    /// Bytes of these files. No listing counts them.
    file_bytes: u64,
    /// Sums of usage records, to be written before anything is deleted.
    sums: Vec<(Path, Bytes)>,
    report: Collection,
}

impl Plan {
    fn add(&mut self, cache: &Cache, object: &Listed, why: CollectReason) {
        let is_record = object.path.as_ref().ends_with(".commit");
        if is_record { &mut self.records } else { &mut self.objects }.push(object.path.clone());
        self.report(cache, object, why);
    }

    fn report(&mut self, cache: &Cache, object: &Listed, why: CollectReason) {
        let name = cache.ctx.root.layout.relative(&object.path).unwrap_or_default().to_string();
        self.report.objects.push((name, why, object.bytes));
        self.report.bytes += object.bytes;
    }
}

impl Cache {
    /// Deletes what is expired, orphaned or superseded and older than the grace, by the store's own clock. Then it evicts
    /// down to the budget, as far as that is possible. With `dry_run` it only reports.
    ///
    /// S3 and similar stores do not list the pieces of uploads that were never completed. Let the bucket's lifecycle rule
    /// abort them.
    ///
    /// # Errors
    /// The errors of the store. What was deleted before stays deleted.
    pub async fn gc(&self, dry_run: bool) -> Result<Collection> {
        let now = self.ctx.root.now_ms().await?;
        let live = self.ctx.leases.live(now, self.ctx.options.orphan_grace).await?;
        let used: HashSet<Fingerprint> = live.iter().flat_map(|(l, _)| l.uses.iter().copied()).collect();
        let alive: HashSet<&str> = live.iter().map(|(l, _)| l.writer.as_str()).collect();
        let objects = self.ctx.root.list(&self.ctx.root.layout.base()).await?;
        let total: u64 = objects.iter().map(|o| o.bytes).sum();
        let (mut plan, mut survivors) = (Plan::default(), BTreeMap::new());
        let ms = |d: std::time::Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let grace = ms(self.ctx.options.orphan_grace);
        let old = |o: &Listed| now.saturating_sub(o.modified_ms) >= grace;
        for (_, object) in self.ctx.leases.all().await? {
            if !live.iter().any(|(_, o)| o.path == object.path) && old(&object) {
                plan.add(self, &object, CollectReason::DeadClaim);
            }
        }
        let probes = self.ctx.root.layout.probes();
        for object in objects.iter().filter(|o| o.path.prefix_matches(&probes) && old(o)) {
            plan.add(self, object, CollectReason::DeadClaim);
        }
        // A job that decides again writes its record again. A job that finds none profiles its pipeline.
        let stale = |o: &Listed| {
            self.ctx.options.ttl.is_some_and(|ttl| now.saturating_sub(o.modified_ms) >= ms(ttl)) && old(o)
        };
        let plans = self.ctx.root.layout.plans();
        for object in objects.iter().filter(|o| o.path.prefix_matches(&plans) && stale(o)) {
            plan.add(self, object, CollectReason::ExpiredPlan);
        }
        for (file, object) in self.ctx.root.partial_files().await? {
            if old(&object) {
                plan.report(self, &object, CollectReason::OrphanedPart);
                plan.files.push(file);
                plan.file_bytes += object.bytes;
            }
        }
        for (of, scan) in Scan::all(&self.ctx.root.layout, objects) {
            let idle = now.saturating_sub(scan.last_change_ms());
            let expired = self.ctx.options.ttl.is_some_and(|ttl| idle >= ms(ttl));
            if expired && !scan.pinned && !used.contains(&of) {
                let idle_s = idle.max(0) as f64 / 1000.0;
                plan.report.expired.push(Expired { snapshot: of, idle_s, bytes: scan.bytes });
                for object in everything(&scan) {
                    plan.add(self, object, CollectReason::Expired);
                }
                continue;
            }
            self.plan_orphans(of, &scan, &alive, &old, &mut plan).await?;
            self.plan_usage_fold(of, &scan, &alive, &old, &mut plan).await?;
            survivors.insert(of, scan);
        }
        for object in orphans::listings(&self.ctx.root, &survivors, &old).await? {
            plan.add(self, &object, CollectReason::OrphanedListing);
        }
        plan.report.dry_run = dry_run;
        if dry_run {
            let sums: u64 = plan.sums.iter().map(|(_, body)| body.len() as u64).sum();
            return self.add_expected_evictions(plan.report, total + plan.file_bytes + sums, survivors).await;
        }
        let Plan { records, objects, files, sums, mut report, .. } = plan;
        for (path, body) in sums {
            self.ctx.root.put(&path, body).await?;
        }
        self.ctx.root.delete_all(records).await?;
        self.ctx.root.delete_all(objects).await?;
        for file in files {
            if let Err(error) = std::fs::remove_file(&file) {
                tracing::warn!(file = %file.display(), %error, "a leftover could not be deleted");
            }
        }
        self.ctx.budget.free(report.bytes);
        for state in self.snapshots.all() {
            state.forget();
        }
        // Other processes may have written beyond the budget. Evicting here saves a job from doing so.
        (report.evictions, report.over_budget_bytes) = self.admission.shrink().await?;
        report.bytes += report.evictions.iter().map(|e| e.bytes).sum::<u64>();
        report.left_bytes = self.usage().await?.bytes;
        Ok(report)
    }

    /// Adds what would be evicted from the snapshots that do not expire, once the remainder of the plan is carried out.
    async fn add_expected_evictions(
        &self,
        mut report: Collection,
        total: u64,
        survivors: BTreeMap<Fingerprint, Scan>,
    ) -> Result<Collection> {
        report.left_bytes = total.saturating_sub(report.bytes);
        if let Some(budget) = self.ctx.budget.limit() {
            let need = report.left_bytes.saturating_sub(budget);
            let candidates = candidates(&self.snapshots, &survivors, None).await?;
            report.evictions = until_freed(candidates, need).into_iter().map(|(e, _)| e).collect();
            let evicted: u64 = report.evictions.iter().map(|e| e.bytes).sum();
            report.bytes += evicted;
            report.left_bytes = report.left_bytes.saturating_sub(evicted);
            report.over_budget_bytes = report.left_bytes.saturating_sub(budget);
        }
        Ok(report)
    }

    async fn plan_orphans(
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
                let Some(read) = self.ctx.root.read_record::<Claim>(&claim.path).await? else { continue };
                let writer = read.ok().map(|c| c.writer);
                if writer.is_some_and(|w| alive.contains(w.as_str())) || !old(claim) {
                    claimed.insert(*split);
                } else {
                    plan.add(self, claim, CollectReason::DeadClaim);
                }
            }
        }
        let winners = scan.winners();
        let mut referenced = HashSet::new();
        for (key, object) in winners.values() {
            if let Some(meta) = LoadedCommit::read(&self.ctx.root, of, object).await?.part() {
                referenced.insert((key.0, meta.attempt));
            }
        }
        let unnamed = scan
            .parts
            .iter()
            .filter(|(key, object)| !referenced.contains(*key) && !claimed.contains(&key.0) && old(object));
        for object in self.unnamed_now(of, scan, unnamed.collect()).await? {
            plan.add(self, object, CollectReason::OrphanedPart);
        }
        for (key, object) in &scan.commits {
            // Lower generations stay: their names must not be used again, and they cost nothing.
            let loser = winners.get(&key.0).is_some_and(|(k, _)| k.1 == key.1 && *k != key);
            if loser && old(object) {
                plan.add(self, object, CollectReason::Superseded);
            }
        }
        for object in manifests::superseded(&self.ctx.root, of, scan).await? {
            if old(object) {
                plan.add(self, object, CollectReason::Superseded);
            }
        }
        Ok(())
    }

    /// Those of the parts that no commit record names now. A writer releases its claim after it has committed its part. So
    /// if its claim did not exist any more when claims were read, its record exists by now, even if the listing is older.
    async fn unnamed_now<'a>(
        &self,
        of: Fingerprint,
        before: &Scan,
        unnamed: Vec<(&(SplitKey, String), &'a Listed)>,
    ) -> Result<Vec<&'a Listed>> {
        if unnamed.is_empty() {
            return Ok(Vec::new());
        }
        let splits: HashSet<SplitKey> = unnamed.iter().map(|(key, _)| key.0).collect();
        let now = self.ctx.scan(of).await?;
        let mut named = HashSet::new();
        for (key, object) in &now.commits {
            if splits.contains(&key.0)
                && !before.commits.contains_key(key)
                && let Some(meta) = LoadedCommit::read(&self.ctx.root, of, object).await?.part()
            {
                named.insert((key.0, meta.attempt));
            }
        }
        Ok(unnamed.into_iter().filter(|(key, _)| !named.contains(*key)).map(|(_, object)| object).collect())
    }

    /// Folds the usage records of processes that have ended into one object.
    async fn plan_usage_fold(
        &self,
        of: Fingerprint,
        scan: &Scan,
        alive: &HashSet<&str>,
        old: &impl Fn(&Listed) -> bool,
        plan: &mut Plan,
    ) -> Result<()> {
        let gone = |id: &str, object: &Listed| !alive.contains(id) && old(object);
        if let Some(folded) = fold_usage_records(&self.ctx.root, of, scan, gone).await? {
            for object in &folded.replaced {
                plan.add(self, object, CollectReason::Superseded);
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

/// Deletes a snapshot: its records first, then all other objects.
pub(super) async fn remove_snapshot(cache: &Cache, of: Fingerprint, scan: Scan) -> Result<()> {
    let records = scan.commits.values().map(|o| o.path.clone()).collect();
    let root = &cache.ctx.root;
    root.delete_all(records).await?;
    let remainder = root.list(&root.layout.folder(of)).await?.into_iter().map(|o| o.path).collect();
    root.delete_all(remainder).await?;
    cache.state(of).forget();
    Ok(())
}
