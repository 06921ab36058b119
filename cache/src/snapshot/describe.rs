//! Manifests as this process writes them: what the snapshot is, and the records that it knows.

use std::sync::Arc;

use caju_types::Result;

use super::SnapshotState;
use crate::Cache;
use crate::manifest::{Loaded, Manifest, SCHEMA, SnapshotDescription, SnapshotNews};
use crate::record::{milliseconds, seal};
use crate::store::Listed;

/// Manifests that are kept: the one before the newest stays for readers that have just listed it.
const KEPT: usize = 2;

impl SnapshotState {
    /// Whether a manifest says what the snapshot is, as far as known.
    pub(super) fn is_described(&self) -> bool {
        self.known.lock().index.description.as_ref().is_some_and(|d| !d.is_empty())
    }

    /// Writes the first manifest of a snapshot, or one that names it where none does, so that people and tools know
    /// what it is.
    pub(crate) async fn describe(&self, cache: &Cache, describe: &SnapshotDescription) -> Result<()> {
        let _turn = self.folding.lock().await;
        if self.is_described() {
            return Ok(());
        }
        // What was told of a nameless one stays.
        let told = self.known.lock().index.description.clone().unwrap_or_default();
        self.write_manifest(cache, Arc::new(describe.under(&told)), &SnapshotNews::default()).await
    }

    /// Writes a manifest with what is new about a snapshot that has parts; false if nothing is, or there is no room.
    pub(super) async fn tell(&self, cache: &Cache, news: &SnapshotNews) -> Result<bool> {
        let _turn = self.folding.lock().await;
        let description = {
            let known = self.known.lock();
            let description = known.index.description.clone().unwrap_or_default();
            if known.index.is_empty() || description.with(news) == *description {
                return Ok(false);
            }
            description
        };
        let grown = |d: &SnapshotDescription| Ok::<_, caju_types::Error>(seal(d)?.len() as u64);
        let more = grown(&description.with(news))?.saturating_sub(grown(&description)?);
        if !cache.space.takes(cache, KEPT as u64 * more).await? {
            tracing::debug!(snapshot = %self.of, "there is no room to describe a snapshot anew");
            return Ok(false);
        }
        self.write_manifest(cache, description, news).await?;
        Ok(true)
    }

    /// Writes a manifest that covers all records known, if some are not covered yet.
    pub(crate) async fn fold(&self, cache: &Cache) -> Result<()> {
        let _turn = self.folding.lock().await;
        let description = {
            let known = self.known.lock();
            if known.uncovered == 0 {
                return Ok(());
            }
            known.index.description.clone().unwrap_or_default()
        };
        self.write_manifest(cache, description, &SnapshotNews::default()).await
    }

    async fn write_manifest(
        &self,
        cache: &Cache,
        description: Arc<SnapshotDescription>,
        news: &SnapshotNews,
    ) -> Result<()> {
        let root = &cache.root;
        let (first, parts, covered) = {
            let known = self.known.lock();
            // Above any that is there, also if it cannot be understood: it would stand for the newest for ever.
            let last = known.manifests.last().copied().unwrap_or(0);
            let mut parts: Vec<_> = known.index.parts.values().cloned().collect();
            parts.sort_by_key(|p| p.split);
            (last + 1, parts, known.uncovered)
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
            let mut known = self.known.lock();
            // What was committed meanwhile is left for the next one.
            known.uncovered = known.uncovered.saturating_sub(covered);
            known.index.description = Some(Arc::clone(&kept.description));
            known.manifest = Some(Loaded { object, manifest: Some(Arc::new(kept)) });
            // Those that were met on the way to a free number are there too.
            known.manifests.extend(first..=number);
            let old = known.manifests.iter().rev().skip(KEPT).copied().collect();
            known.manifests = known.manifests.iter().rev().take(KEPT).copied().collect();
            old
        };
        let paths = old.into_iter().map(|n| root.layout.manifest(self.of, n)).collect();
        root.delete_all(paths).await
    }
}
