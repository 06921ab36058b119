//! Writing manifests: the description of the snapshot, and the commit records that this process knows.

use std::sync::Arc;

use caju_types::Result;

use super::snapshot_state::SnapshotState;
use crate::context::Context;
use crate::manifest::{DescriptionUpdate, Loaded, Manifest, RETAINED_MANIFESTS, SCHEMA, SnapshotDescription};
use crate::record::{milliseconds, sealed_bytes};
use crate::store::Listed;

impl SnapshotState {
    /// Whether a manifest that this process knows describes the snapshot.
    pub(crate) fn is_described(&self) -> bool {
        self.listing.lock().index.description.as_ref().is_some_and(|d| !d.is_empty())
    }

    /// Writes the first manifest that describes a snapshot, for people and tools. Does nothing if one does already.
    pub(crate) async fn describe(&self, ctx: &Context, describe: &SnapshotDescription) -> Result<()> {
        let _turn = self.folding.lock().await;
        if self.is_described() {
            return Ok(());
        }
        // An update may have been written before any description: it is carried on.
        let updated = self.listing.lock().index.description.clone().unwrap_or_default();
        self.write_manifest(ctx, Arc::new(describe.under(&updated)), &DescriptionUpdate::default()).await
    }

    /// Writes a manifest with what is new about a snapshot that has parts. False if nothing is new, or if the manifest
    /// does not fit the budget.
    pub(crate) async fn update_description(&self, ctx: &Context, news: &DescriptionUpdate) -> Result<bool> {
        let _turn = self.folding.lock().await;
        let description = {
            let listing = self.listing.lock();
            let description = listing.index.description.clone().unwrap_or_default();
            if listing.index.is_empty() || description.with(news) == *description {
                return Ok(false);
            }
            description
        };
        let size = sealed_bytes::<SnapshotDescription>;
        let growth = size(&description.with(news))?.saturating_sub(size(&description)?);
        if !ctx.budget.admits(&ctx.root, RETAINED_MANIFESTS as u64 * growth).await? {
            tracing::debug!(snapshot = %self.of, "the new description of a snapshot does not fit the budget");
            return Ok(false);
        }
        self.write_manifest(ctx, description, news).await?;
        Ok(true)
    }

    /// Writes a manifest that covers all listed records, if some are not covered yet.
    pub(crate) async fn fold(&self, ctx: &Context) -> Result<()> {
        let _turn = self.folding.lock().await;
        let description = {
            let listing = self.listing.lock();
            if listing.uncovered == 0 {
                return Ok(());
            }
            listing.index.description.clone().unwrap_or_default()
        };
        self.write_manifest(ctx, description, &DescriptionUpdate::default()).await
    }

    async fn write_manifest(
        &self,
        ctx: &Context,
        description: Arc<SnapshotDescription>,
        news: &DescriptionUpdate,
    ) -> Result<()> {
        let root = &ctx.root;
        let (first, parts, covered) = {
            let listing = self.listing.lock();
            // Above every existing number, also those of damaged manifests: one above ours would stay the newest for ever.
            let last = listing.manifests.last().copied().unwrap_or(0);
            let mut parts: Vec<_> = listing.index.parts.values().cloned().collect();
            parts.sort_by_key(|p| p.split);
            (last + 1, parts, listing.uncovered)
        };
        let manifest = Manifest {
            schema: SCHEMA.into(),
            fingerprint: self.of,
            number: first,
            attempt: root.unique("manifest"),
            created_unix_ms: milliseconds(root.clock.unix_time()),
            description,
            parts,
        };
        let kept = manifest.create(root, news).await?;
        let number = kept.number;
        let object =
            Listed { path: root.layout.manifest(self.of, number), bytes: 0, modified_ms: 0, etag: None };
        let old: Vec<u64> = {
            let mut listing = self.listing.lock();
            // The next manifest covers what was committed meanwhile.
            listing.uncovered = listing.uncovered.saturating_sub(covered);
            listing.index.description = Some(Arc::clone(&kept.description));
            listing.manifest = Some(Loaded { object, manifest: Some(Arc::new(kept)) });
            // The numbers up to the first free one exist, too.
            listing.manifests.extend(first..=number);
            let old = listing.manifests.iter().rev().skip(RETAINED_MANIFESTS).copied().collect();
            listing.manifests = listing.manifests.iter().rev().take(RETAINED_MANIFESTS).copied().collect();
            old
        };
        let paths = old.into_iter().map(|n| root.layout.manifest(self.of, n)).collect();
        root.delete_all(paths).await
    }
}
