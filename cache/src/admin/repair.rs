//! Repair: what cannot be read goes, so that jobs compute and store it again.

use std::collections::BTreeSet;
use std::sync::Arc;

use caju_types::{Error, Fingerprint, Result, SplitKey};
use serde::{Deserialize, Serialize};

use super::verify::{Damage, VerifyReport};
use crate::Cache;
use crate::manifest::{Manifest, load_commit};
use crate::record::Commit;
use crate::scan::Scan;

/// Something that a repair deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The object, below `ROOT/v1`.
    pub object: String,
    /// Its bytes.
    pub bytes: u64,
}

/// Rounds of looking and dropping: below a damaged record an older one may come to light.
const ROUNDS: usize = 4;

impl Cache {
    /// Verifies, and drops what is damaged: all records of a damaged split with the parts that they name, and manifests
    /// that cannot be understood. The report says what was found and what was dropped.
    ///
    /// # Errors
    /// What the store says; what was dropped before stays dropped. `Unavailable` if there is always new damage.
    pub async fn repair(self: &Arc<Self>, only: Option<&Fingerprint>) -> Result<VerifyReport> {
        let mut report = self.verify(only).await?;
        let mut found = report.damaged.clone();
        for _ in 0..ROUNDS {
            if found.is_empty() {
                return Ok(report);
            }
            let dropped = self.drop_damaged(&found).await?;
            self.space.refund(dropped.iter().map(|d| d.bytes).sum());
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
            "{}: parts are damaged faster than they are dropped; look after the store",
            self.root.url()
        )))
    }

    async fn drop_damaged(&self, found: &[Damage]) -> Result<Vec<Dropped>> {
        let mut dropped = Vec::new();
        for of in found.iter().map(|d| d.fingerprint).collect::<BTreeSet<_>>() {
            let folder = self.root.layout.folder(of);
            let scan = Scan::of(&self.root.layout, of, self.root.list(&folder).await?);
            let splits: BTreeSet<SplitKey> =
                found.iter().filter(|d| d.fingerprint == of).filter_map(|d| d.split).collect();
            for split in splits {
                self.drop_split(of, &scan, split, &mut dropped).await?;
            }
            if found.iter().any(|d| d.fingerprint == of && d.split.is_none()) {
                for object in scan.manifests.values() {
                    if Manifest::load(&self.root, of, object).await?.is_none() {
                        self.drop_one(object, &mut dropped).await?;
                    }
                }
            }
        }
        Ok(dropped)
    }

    /// All records of a split, the one that counts last: until then the damage shows. Then the parts that they named;
    /// one that none names may belong to a writer at work.
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
            if let Some(Some(Commit::Part(meta))) = load_commit(&self.root, of, object).await? {
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
        self.root.delete(&object.path).await?;
        let name = self.root.layout.relative(&object.path).unwrap_or_default().to_string();
        tracing::debug!(object = name, "damaged, and dropped");
        dropped.push(Dropped { object: name, bytes: object.bytes });
        Ok(())
    }
}
