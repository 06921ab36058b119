//! What `caju cache` shows and does: list, inspect, verify, collect, remove, pin.

mod collect;
mod manifests;
mod repair;
mod report;
mod unused;
mod uses;
mod verify;

use std::sync::Arc;

use bytes::Bytes;
use caju_runtime::Stores;
use caju_runtime::stores::store_error;
use caju_types::{Error, Fingerprint, Result};
use futures::StreamExt;

use crate::Cache;
use crate::lease::Lease;
use crate::scan::Scan;
use crate::store::Listed;

pub use collect::{Collected, Collection, Expired};
pub use repair::Dropped;
pub use report::{Inspection, PartLine, SnapshotInfo, Usage};
pub use verify::{Damage, VerifyReport};

impl Cache {
    /// Whether there is a cache at a URL: something below its `v1`. Nothing is written, and no folder made.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, and what the store says: `NotFound` where there is no such bucket.
    pub async fn exists(stores: &Stores, url: &str) -> Result<bool> {
        let at = stores.resolve(url).map_err(|e| e.context("cache root"))?;
        if let Some(folder) = &at.local {
            return Ok(folder.join(crate::layout::VERSION).is_dir());
        }
        let mut below = at.store.list(Some(&crate::layout::Layout::new(&at.path).base()));
        match below.next().await {
            Some(first) => first.map(|_| true).map_err(|e| store_error(&at.url, e)),
            None => Ok(false),
        }
    }

    /// Every snapshot of the root, as `cache ls` shows them, by fingerprint.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list(self: &Arc<Self>) -> Result<Vec<SnapshotInfo>> {
        let scans = self.scan_all().await?;
        let mut out = Vec::with_capacity(scans.len());
        for (of, scan) in scans {
            out.push(self.info(of, &scan).await?);
        }
        Ok(out)
    }

    async fn scan_all(&self) -> Result<std::collections::BTreeMap<Fingerprint, Scan>> {
        Ok(Scan::all(&self.root.layout, self.root.list(&self.root.layout.base()).await?))
    }

    async fn info(self: &Arc<Self>, of: Fingerprint, scan: &Scan) -> Result<SnapshotInfo> {
        let index = self.snapshot(&of).index().await?;
        let description = index.description().map(|d| d.as_ref().clone()).unwrap_or_default();
        let uses = uses::of(&self.root, scan).await?;
        let mut encodings: Vec<_> = index.iter().map(|(_, p)| p.encoding).collect();
        encodings.sort_unstable();
        encodings.dedup();
        Ok(SnapshotInfo {
            fingerprint: of,
            name: description.name,
            prefix: description.prefix,
            encodings,
            rows: index.rows(),
            bytes: index.bytes(),
            stored_bytes: scan.bytes,
            splits: index.len() as u64,
            splits_total: description.splits,
            skipped: index.iter().map(|(_, p)| p.skipped).sum(),
            source_bytes: index.iter().map(|(_, p)| p.source_bytes).sum(),
            compute_cpu_s: index.iter().map(|(_, p)| p.compute_cpu_s()).fold(0.0, |sum, s| sum + s),
            last_use_unix_s: scan.last_use_ms().map(|ms| ms as f64 / 1000.0),
            jobs: uses.jobs.into_iter().collect(),
            rows_read: uses.rows,
            saved_cpu_s: uses.saved_cpu_s,
            pinned: scan.pinned,
        })
    }

    /// Everything about one snapshot.
    ///
    /// # Errors
    /// `NotFound` if the root has nothing of that fingerprint, and what the store says.
    pub async fn inspect(self: &Arc<Self>, of: &Fingerprint) -> Result<Inspection> {
        let scan = self.existing(*of).await?;
        let snapshot = self.snapshot(of);
        let index = snapshot.index().await?;
        let mut parts: Vec<_> = index.iter().map(|(_, p)| PartLine::of(p)).collect();
        parts.sort_by_key(|p| p.split);
        let info = self.info(*of, &scan).await?;
        let description = index.description().map(|d| d.as_ref().clone()).unwrap_or_default();
        Ok(Inspection { info, description, parts })
    }

    /// What the root holds, and its bounds.
    ///
    /// # Errors
    /// What the store says.
    pub async fn usage(&self) -> Result<Usage> {
        let objects = self.root.list(&self.root.layout.base()).await?;
        let bytes = objects.iter().map(|o| o.bytes).sum();
        let count = objects.len() as u64;
        let snapshots = Scan::all(&self.root.layout, objects).len() as u64;
        Ok(Usage { snapshots, objects: count, bytes, budget_bytes: self.options.budget_bytes })
    }

    /// Removes a snapshot, and the listings of sources that no other one has rows of; gives the bytes freed. Readers
    /// of it fall back to computing.
    ///
    /// # Errors
    /// `NotFound` if there is none, `FailedPrecondition` if it is pinned, or in use and not `force`d.
    pub async fn remove(self: &Arc<Self>, of: &Fingerprint, force: bool) -> Result<u64> {
        let scan = self.existing(*of).await?;
        if scan.pinned {
            return Err(Error::failed_precondition(format!("snapshot {of} is pinned; unpin it first")));
        }
        if !force && crate::space::in_use(self, self.root.now_ms().await?).await?.contains(of) {
            return Err(Error::failed_precondition(format!(
                "snapshot {of} is being read or written; wait, or remove it with --force"
            )));
        }
        let listings = unused::after_removal(self, *of, &scan).await?;
        let freed = scan.bytes + listings.iter().map(|o| o.bytes).sum::<u64>();
        collect::remove_snapshot(self, *of, scan).await?;
        self.root.delete_all(listings.into_iter().map(|o| o.path).collect()).await?;
        self.space.refund(freed);
        Ok(freed)
    }

    /// Keeps a snapshot from being evicted, expired or removed.
    ///
    /// # Errors
    /// `NotFound` if there is none, and what the store says.
    pub async fn pin(&self, of: &Fingerprint) -> Result<()> {
        self.existing(*of).await?;
        self.root.put(&self.root.layout.pin(*of), Bytes::from_static(b"{}")).await
    }

    /// Ends a pin.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, and what the store says.
    pub async fn unpin(&self, of: &Fingerprint) -> Result<()> {
        self.existing(*of).await?;
        self.root.delete(&self.root.layout.pin(*of)).await
    }

    async fn existing(&self, of: Fingerprint) -> Result<Scan> {
        let objects = self.root.list(&self.root.layout.folder(of)).await?;
        if objects.is_empty() {
            return Err(Error::not_found(format!(
                "{} has no snapshot {of}; `caju cache ls` shows what there is",
                self.root.url()
            )));
        }
        Ok(Scan::of(&self.root.layout, of, objects))
    }

    /// The one snapshot whose fingerprint starts with these digits.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidArgument` if there are several.
    pub async fn find(&self, digits: &str) -> Result<Fingerprint> {
        let found: Vec<_> =
            self.scan_all().await?.into_keys().filter(|f| f.to_string().starts_with(digits)).collect();
        match found.as_slice() {
            [one] => Ok(*one),
            [] => Err(Error::not_found(format!("{} has no snapshot {digits}", self.root.url()))),
            many => Err(Error::invalid(format!(
                "{} snapshots start with {digits}; write more digits",
                many.len()
            ))),
        }
    }
}

/// The leases of processes that may be alive: those whose object changed within the grace, by the store's own clock.
pub(crate) async fn live_leases(cache: &Cache, now: i64) -> Result<Vec<(Lease, Listed)>> {
    let grace = cache.options.lease_ttl.max(cache.options.orphan_grace);
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let mut out = Vec::new();
    for (lease, object) in cache.leases.all().await? {
        let Some(lease) = lease else { continue };
        if now.saturating_sub(object.modified_ms) < grace {
            out.push((lease, object));
        }
    }
    Ok(out)
}
