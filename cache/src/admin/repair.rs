//! Repair: deletes what cannot be read, so that jobs compute and store it again.

use std::collections::BTreeSet;
use std::sync::Arc;

use caju_types::{Error, Fingerprint, Result, SplitKey};

use super::report::{Damage, Dropped, VerifyReport};
use crate::cache::Cache;
use crate::commit::LoadedCommit;
use crate::manifest::Manifest;
use crate::scan::Scan;

/// Rounds of verifying and deleting. Deleting a damaged record may make an older one valid, which may be damaged, too.
const MAX_ROUNDS: usize = 4;

impl Cache {
    /// Verifies, and deletes what is damaged: all records of a damaged split with the parts that they name, and damaged
    /// manifests. The report says what was found and what was deleted.
    ///
    /// # Errors
    /// The errors of the store. What was deleted before stays deleted. `Unavailable` if every round finds new damage.
    pub async fn repair(self: &Arc<Self>, only: Option<&Fingerprint>) -> Result<VerifyReport> {
        let mut report = self.verify(only).await?;
        let mut found = report.damaged.clone();
        for _ in 0..MAX_ROUNDS {
            if found.is_empty() {
                return Ok(report);
            }
            let dropped = self.drop_damaged(&found).await?;
            self.ctx.budget.free(dropped.iter().map(|d| d.bytes).sum());
            report.dropped.extend(dropped);
            let snapshots: BTreeSet<Fingerprint> = found.iter().map(|d| d.fingerprint).collect();
            found.clear();
            for of in snapshots {
                self.state(of).forget();
                found.extend(self.verify(Some(&of)).await?.damaged);
            }
            report
                .damaged
                .extend(found.iter().filter(|d| !report.damaged.contains(d)).cloned().collect::<Vec<_>>());
        }
        if found.is_empty() {
            return Ok(report);
        }
        Err(Error::unavailable(format!(
            "{}: parts are damaged faster than they are deleted; check the store for hardware or configuration faults",
            self.ctx.root.url()
        )))
    }

    async fn drop_damaged(&self, found: &[Damage]) -> Result<Vec<Dropped>> {
        let mut dropped = Vec::new();
        for of in found.iter().map(|d| d.fingerprint).collect::<BTreeSet<_>>() {
            let scan = self.ctx.scan(of).await?;
            let splits: BTreeSet<SplitKey> =
                found.iter().filter(|d| d.fingerprint == of).filter_map(|d| d.split).collect();
            for split in splits {
                self.drop_split(of, &scan, split, &mut dropped).await?;
            }
            if found.iter().any(|d| d.fingerprint == of && d.split.is_none()) {
                for object in scan.manifests.values() {
                    if Manifest::load(&self.ctx.root, of, object).await?.is_none() {
                        self.drop_one(object, &mut dropped).await?;
                    }
                }
            }
        }
        Ok(dropped)
    }

    /// Deletes all records of a split, the valid one last: an interrupted repair leaves the damage visible. Then it deletes
    /// the parts that they named. A part that no record names may belong to an active writer.
    async fn drop_split(
        &self,
        of: Fingerprint,
        scan: &Scan,
        split: SplitKey,
        dropped: &mut Vec<Dropped>,
    ) -> Result<()> {
        let mut records: Vec<_> = scan.commits.iter().filter(|(key, _)| key.0 == split).collect();
        records.sort_by_key(|(key, _)| key.1);
        let mut parts = Vec::new();
        for (_, object) in records {
            if let Some(meta) = LoadedCommit::read(&self.ctx.root, of, object).await?.part() {
                parts.extend(scan.parts.get(&(split, meta.attempt)));
            }
            self.drop_one(object, dropped).await?;
        }
        for part in parts {
            self.drop_one(part, dropped).await?;
        }
        Ok(())
    }

    async fn drop_one(&self, object: &crate::store::Listed, dropped: &mut Vec<Dropped>) -> Result<()> {
        self.ctx.root.delete(&object.path).await?;
        let name = self.ctx.root.layout.relative(&object.path).unwrap_or_default().to_string();
        tracing::debug!(object = name, "a damaged object was deleted");
        dropped.push(Dropped { object: name, bytes: object.bytes });
        Ok(())
    }
}
