//! `cache verify`: reads every committed part again and checks all of it.

use std::sync::Arc;

use caju_types::{ErrorKind, Fingerprint, Result};
use futures::StreamExt;
use xxhash_rust::xxh3::Xxh3;

use super::report::{Damage, VerifyReport};
use crate::cache::Cache;
use crate::commit::LoadedCommit;
use crate::manifest::Manifest;
use crate::read::{PartReader, ReadOptions};
use crate::record::{Commit, PartMeta};
use crate::scan::Scan;

impl Cache {
    /// Reads every committed part (of one snapshot, or of all) from the store itself. Checks its length, its checksums,
    /// what it says about itself, and that it decodes to its rows. Changes nothing.
    ///
    /// # Errors
    /// The errors of the store. Damage is no error: the report names it.
    pub async fn verify(self: &Arc<Self>, only: Option<&Fingerprint>) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        let folder = only.map_or_else(|| self.ctx.root.layout.base(), |of| self.ctx.root.layout.folder(*of));
        let scans = Scan::all(&self.ctx.root.layout, self.ctx.root.list(&folder).await?);
        for (of, scan) in scans {
            report.snapshots += 1;
            self.verify_manifests(of, &scan, &mut report).await?;
            for (key, object) in scan.winners().into_values() {
                let record = LoadedCommit::read(&self.ctx.root, of, object).await?;
                let name = self.ctx.root.layout.relative(&object.path).unwrap_or_default().to_string();
                match record {
                    LoadedCommit::Missing => {}
                    LoadedCommit::Damaged => report.damaged.push(Damage {
                        fingerprint: of,
                        split: Some(key.0),
                        object: name,
                        why: "the commit record is damaged or foreign".into(),
                    }),
                    LoadedCommit::Valid(commit) => match *commit {
                        Commit::Part(meta) => self.verify_part(meta, &mut report).await?,
                        Commit::Void { .. } => {}
                    },
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
            object: self.ctx.root.layout.relative(&object.path).unwrap_or_default().to_string(),
            why,
        };
        if Manifest::load(&self.ctx.root, of, object).await?.is_none() {
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

    /// Checks the bytes in the store, not those in the tiers, and then the rows.
    async fn check_part(self: &Arc<Self>, meta: &PartMeta) -> Result<()> {
        let damaged = |why: String| caju_types::Error::data_loss(why);
        let path = self.ctx.root.layout.absolute(&meta.path);
        let Some(found) = self.ctx.root.head(&path).await? else {
            return Err(caju_types::Error::not_found("the part is missing"));
        };
        if found.bytes != meta.bytes {
            return Err(damaged(format!("it has {} bytes instead of {}", found.bytes, meta.bytes)));
        }
        let mut whole = Xxh3::new();
        let mut at = 0;
        while at < meta.bytes {
            let end = meta.bytes.min(at + self.ctx.options.read_bytes.max(1));
            let bytes = self.ctx.root.get_range(&path, at..end).await?;
            if bytes.len() as u64 != end - at {
                return Err(damaged("it is cut".into()));
            }
            whole.update(&bytes);
            at = end;
        }
        if format!("{:032x}", whole.digest128()) != meta.checksum {
            return Err(damaged("its bytes do not match its checksum".into()));
        }
        let mut reader = PartReader::open(&self.ctx, meta, ReadOptions::default(), None).await?;
        while let Some(batch) = reader.next().await {
            drop(batch?);
        }
        Ok(())
    }
}
