//! `cache verify`: re-reads every referenced part and checks all of it.

use std::fmt;
use std::sync::Arc;

use caju_types::{ErrorKind, Fingerprint, Result, SplitKey, format_bytes};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::Cache;
use crate::read::{PartReader, ReadOptions};
use crate::record::{Commit, PartMeta};
use crate::scan::Scan;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The snapshot.
    pub fingerprint: Fingerprint,
    /// The split, if it concerns one.
    pub split: Option<SplitKey>,
    /// The object, below `ROOT/v1`.
    pub object: String,
    /// What is wrong with it.
    pub why: String,
}

/// What `cache verify` found. Damage is exit code 4.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Snapshots looked at.
    pub snapshots: u64,
    /// Parts that were read from end to end.
    pub parts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their rows.
    pub rows: u64,
    /// What is wrong.
    pub damaged: Vec<Damage>,
    /// What was deleted because of it: all that is damaged, where a repair was asked for.
    #[serde(default)]
    pub dropped: Vec<super::Dropped>,
}

impl VerifyReport {
    /// Whether everything is as it should be.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for damage in &self.damaged {
            writeln!(f, "damaged: {}: {}", damage.object, damage.why)?;
        }
        for dropped in &self.dropped {
            writeln!(f, "dropped: {}, {}", dropped.object, format_bytes(dropped.bytes))?;
        }
        write!(
            f,
            "{} parts of {} snapshots checked ({}): {} damaged",
            self.parts,
            self.snapshots,
            format_bytes(self.bytes),
            self.damaged.len()
        )
    }
}

impl Cache {
    /// Reads every committed part (of one snapshot, or of all) from the store itself and checks its length,
    /// its checksums, what it says about itself, and that it decodes to its rows. Changes nothing.
    ///
    /// # Errors
    /// What the store says; damage is no error but part of the report.
    pub async fn verify(self: &Arc<Self>, only: Option<&Fingerprint>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        let folder = only.map_or_else(|| self.root.layout.base(), |of| self.root.layout.folder(*of));
        let scans = Scan::all(&self.root.layout, self.root.list(&folder).await?);
        for (of, scan) in scans {
            report.snapshots += 1;
            self.verify_manifests(of, &scan, &mut report).await?;
            for (key, object) in scan.winners().into_values() {
                let record = crate::manifest::load_commit(&self.root, of, object).await?;
                let name = self.root.layout.relative(&object.path).unwrap_or_default().to_string();
                match record {
                    // Withdrawn, or gone since the listing.
                    None | Some(Some(Commit::Void { .. })) => {}
                    Some(None) => report.damaged.push(Damage {
                        fingerprint: of,
                        split: Some(key.0),
                        object: name,
                        why: "the commit record is damaged or foreign".into(),
                    }),
                    Some(Some(Commit::Part(meta))) => self.verify_part(meta, &mut report).await?,
                }
            }
        }
        report.damaged.sort_by(|a, b| a.object.cmp(&b.object));
        Ok(report)
    }

    async fn verify_manifests(&self, of: Fingerprint, scan: &Scan, report: &mut VerifyReport) -> Result<()> {
        let Some(object) = scan.manifests.values().next_back() else { return Ok(()) };
        let bad = |why: String| Damage {
            fingerprint: of,
            split: None,
            object: self.root.layout.relative(&object.path).unwrap_or_default().to_string(),
            why,
        };
        if crate::manifest::Manifest::load(&self.root, of, object).await?.is_none() {
            report.damaged.push(bad("the manifest is damaged or foreign".into()));
        }
        Ok(())
    }

    async fn verify_part(self: &Arc<Self>, meta: PartMeta, report: &mut VerifyReport) -> Result<()> {
        report.parts += 1;
        report.bytes += meta.bytes;
        match self.check_part(&meta).await {
            Ok(()) => report.rows += meta.rows,
            Err(e) if matches!(e.kind(), ErrorKind::DataLoss | ErrorKind::NotFound) => {
                report.damaged.push(Damage {
                    fingerprint: meta.fingerprint,
                    split: Some(meta.split),
                    object: meta.path.clone(),
                    why: e.message().to_string(),
                });
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The bytes as they are in the store now, whatever the tiers remember; then the rows.
    async fn check_part(self: &Arc<Self>, meta: &PartMeta) -> Result<()> {
        let damaged = |why: String| caju_types::Error::data_loss(why);
        let path = self.root.layout.absolute(&meta.path);
        let Some(found) = self.root.head(&path).await? else {
            return Err(caju_types::Error::not_found("the part is missing"));
        };
        if found.bytes != meta.bytes {
            return Err(damaged(format!("it has {} bytes instead of {}", found.bytes, meta.bytes)));
        }
        let mut whole = Xxh3::new();
        let mut at = 0;
        while at < meta.bytes {
            let end = meta.bytes.min(at + self.options.read_bytes.max(1));
            let bytes = self.root.get_range(&path, at..end).await?;
            if bytes.len() as u64 != end - at {
                return Err(damaged("it is cut".into()));
            }
            whole.update(&bytes);
            at = end;
        }
        if format!("{:032x}", whole.digest128()) != meta.checksum {
            return Err(damaged("its bytes do not match its checksum".into()));
        }
        let mut reader = PartReader::open(self, meta, ReadOptions::default(), None).await?;
        while let Some(batch) = reader.next().await {
            drop(batch?);
        }
        Ok(())
    }
}
