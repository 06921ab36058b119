//! Administration of a root, for `caju cache`: list, inspect, verify, repair, collect, remove, pin.

mod collect;
mod manifests;
mod orphans;
mod repair;
mod report;
mod verify;

use std::sync::Arc;

use bytes::Bytes;
use caju_runtime::Stores;
use caju_runtime::stores::store_error;
use caju_types::{Error, Fingerprint, Result};
use futures::StreamExt;

use crate::cache::Cache;
use crate::evict::in_use;
use crate::record::UsageRecord;
use crate::scan::Scan;

pub use collect::{CollectReason, Collection, Expired};
pub use report::{Damage, Dropped, Inspection, PartLine, SnapshotInfo, Usage, VerifyReport};

impl Cache {
    /// Whether there is a cache at a URL: any object below its `v1`. Nothing is written, and no folder is created.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, and the errors of the store: `NotFound` where there is no such bucket.
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

    /// All snapshots of the root by fingerprint, as `cache ls` shows them.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn list(self: &Arc<Self>) -> Result<Vec<SnapshotInfo>> {
        let scans = self.ctx.scan_all().await?;
        let mut out = Vec::with_capacity(scans.len());
        for (of, scan) in scans {
            out.push(self.info(of, &scan).await?);
        }
        Ok(out)
    }

    async fn info(self: &Arc<Self>, of: Fingerprint, scan: &Scan) -> Result<SnapshotInfo> {
        let index = self.snapshot(&of).index().await?;
        let description = index.description().map(|d| d.as_ref().clone()).unwrap_or_default();
        let uses = UsageRecord::total(&self.ctx.root, scan).await?;
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
    /// `NotFound` if the root has nothing of that fingerprint, and the errors of the store.
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

    /// The size of the root, and its budget.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn usage(&self) -> Result<Usage> {
        let objects = self.ctx.root.list(&self.ctx.root.layout.base()).await?;
        let bytes = objects.iter().map(|o| o.bytes).sum();
        let count = objects.len() as u64;
        let snapshots = Scan::all(&self.ctx.root.layout, objects).len() as u64;
        Ok(Usage { snapshots, objects: count, bytes, budget_bytes: self.ctx.budget.limit() })
    }

    /// Removes a snapshot, and the listings of sources of which no other snapshot has rows. Gives the bytes freed. Readers
    /// of the snapshot fall back to computing.
    ///
    /// # Errors
    /// `NotFound` if there is none, `FailedPrecondition` if it is pinned, or in use and not `force`d.
    pub async fn remove(self: &Arc<Self>, of: &Fingerprint, force: bool) -> Result<u64> {
        let scan = self.existing(*of).await?;
        if scan.pinned {
            return Err(Error::failed_precondition(format!("snapshot {of} is pinned; unpin it first")));
        }
        if !force && in_use(&self.ctx, self.ctx.root.now_ms().await?).await?.contains(of) {
            return Err(Error::failed_precondition(format!(
                "snapshot {of} is being read or written; wait, or remove it with --force"
            )));
        }
        let listings = orphans::after_removal(&self.ctx, *of, &scan).await?;
        let freed = scan.bytes + listings.iter().map(|o| o.bytes).sum::<u64>();
        collect::remove_snapshot(self, *of, scan).await?;
        self.ctx.root.delete_all(listings.into_iter().map(|o| o.path).collect()).await?;
        self.ctx.budget.free(freed);
        Ok(freed)
    }

    /// Keeps a snapshot from being evicted, expired or removed, until [`Cache::unpin`].
    ///
    /// # Errors
    /// `NotFound` if there is none, and the errors of the store.
    pub async fn pin(&self, of: &Fingerprint) -> Result<()> {
        self.existing(*of).await?;
        self.ctx.root.put(&self.ctx.root.layout.pin(*of), Bytes::from_static(b"{}")).await
    }

    /// Ends a pin.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot, and the errors of the store.
    pub async fn unpin(&self, of: &Fingerprint) -> Result<()> {
        self.existing(*of).await?;
        self.ctx.root.delete(&self.ctx.root.layout.pin(*of)).await
    }

    async fn existing(&self, of: Fingerprint) -> Result<Scan> {
        let objects = self.ctx.root.list(&self.ctx.root.layout.folder(of)).await?;
        if objects.is_empty() {
            return Err(Error::not_found(format!(
                "{} has no snapshot {of}; `caju cache ls` shows what there is",
                self.ctx.root.url()
            )));
        }
        Ok(Scan::of(&self.ctx.root.layout, of, objects))
    }

    /// The one snapshot whose fingerprint starts with these digits.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidArgument` if there are several.
    pub async fn find(&self, digits: &str) -> Result<Fingerprint> {
        let found: Vec<_> =
            self.ctx.scan_all().await?.into_keys().filter(|f| f.to_string().starts_with(digits)).collect();
        match found.as_slice() {
            [one] => Ok(*one),
            [] => Err(Error::not_found(format!("{} has no snapshot {digits}", self.ctx.root.url()))),
            many => Err(Error::invalid(format!(
                "{} snapshots start with {digits}; write more digits",
                many.len()
            ))),
        }
    }
}
