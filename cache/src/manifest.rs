//! Manifests: the description of a snapshot, and its commit records folded into one object.
//!
//! A manifest describes the snapshot for people and tools, and saves readers one request per part. The commit records
//! stay. So a manifest that is half-written or missing, or names a missing part, costs requests or recomputation, never
//! rows.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use caju_types::{ErrorKind, Fingerprint, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{PartMeta, Record, seal, unseal};
use crate::store::{Created, Listed, Root};

/// The description of a snapshot in its manifests, for people and tools.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SnapshotDescription {
    /// The job or pipeline that first wrote it.
    #[serde(default)]
    pub name: String,
    /// The stages of the prefix in one line.
    #[serde(default)]
    pub prefix: String,
    /// The definition of the prefix as it was fingerprinted.
    #[serde(default, deserialize_with = "caju_types::json::bounded")]
    pub definition: Value,
    /// What the fingerprint is a hash of, including the versions of functions and libraries. It shows in what two
    /// prefixes differ.
    #[serde(default, deserialize_with = "caju_types::json::bounded")]
    pub canonical: Value,
    /// The schema of its rows.
    #[serde(default, deserialize_with = "caju_types::json::bounded")]
    pub schema: Value,
    /// The encoding that its first writer chose; parts may differ.
    #[serde(default)]
    pub encoding: String,
    /// The last profile under which it was chosen (`caju.profile/v1`); null if there was none.
    #[serde(default, deserialize_with = "caju_types::json::bounded")]
    pub profile: Value,
    /// The number of splits of the source, known once an epoch was read to its end. Where several sources share the
    /// snapshot: the largest number.
    #[serde(default)]
    pub splits: Option<u64>,
}

/// What becomes known of a snapshot after its first part was begun.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DescriptionUpdate {
    /// The number of splits of one of its sources.
    pub splits: Option<u64>,
    /// The profile under which it was chosen (`caju.profile/v1`), or null.
    pub profile: Value,
}

impl SnapshotDescription {
    /// Whether it lacks what the first writer describes. Updates ([`DescriptionUpdate`]) do not count.
    pub(crate) fn is_empty(&self) -> bool {
        self.name.is_empty() && self.prefix.is_empty() && self.definition.is_null()
    }

    /// This description with an update.
    #[must_use]
    pub(crate) fn with(&self, news: &DescriptionUpdate) -> Self {
        let mut updated = self.clone();
        updated.splits = updated.splits.max(news.splits);
        if !news.profile.is_null() {
            updated.profile = news.profile.clone();
        }
        updated
    }

    /// The description in a later manifest, completed by what only this one has.
    #[must_use]
    pub(crate) fn under(&self, later: &Self) -> Self {
        let mut both = if later.is_empty() { self.clone() } else { later.clone() };
        both.splits = self.splits.max(later.splits);
        both.profile = if later.profile.is_null() { &self.profile } else { &later.profile }.clone();
        both
    }
}

/// The content of a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) schema: String,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) number: u64,
    /// The write attempt, so that no two manifests are equal.
    pub(crate) attempt: String,
    pub(crate) created_unix_ms: u64,
    pub(crate) description: Arc<SnapshotDescription>,
    pub(crate) parts: Vec<Arc<PartMeta>>,
}

impl Record for Manifest {
    const NAME: &'static str = "a manifest";
    /// A million parts fit, in 1073 bytes each. A part takes about 600 bytes, and 31 for each of its blocks. Of more or
    /// larger parts a manifest names some, and the others are read from their commit records.
    const MAX_BYTES: u64 = 1 << 30;
}

/// The version of the format. Every manifest carries it.
pub(crate) const SCHEMA: &str = "caju.manifest/v1";
/// How many manifests are retained per snapshot. The one before the newest stays for readers that have just listed it.
pub(crate) const RETAINED_MANIFESTS: usize = 2;
/// Numbers that a writer tries before it gives up: each was taken by another process in the meantime.
const MAX_NUMBERS_TRIED: usize = 64;

/// A manifest that was read, and the object that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) object: Listed,
    /// None if it is damaged or foreign.
    pub(crate) manifest: Option<Arc<Manifest>>,
}

impl Manifest {
    /// Its parts by split and generation.
    pub(crate) fn by_key(&self) -> HashMap<(caju_types::SplitKey, u32), Arc<PartMeta>> {
        self.parts.iter().map(|p| ((p.split, p.generation), Arc::clone(p))).collect()
    }

    /// Reads a manifest; none if it is missing, damaged, foreign or of another version.
    pub(crate) async fn load(root: &Root, of: Fingerprint, object: &Listed) -> Result<Option<Arc<Manifest>>> {
        let Some(read) = root.read_record::<Manifest>(&object.path).await? else { return Ok(None) };
        match read {
            Ok(m) if m.fingerprint == of && m.schema == SCHEMA => Ok(Some(Arc::new(m))),
            Ok(_) => {
                tracing::warn!(manifest = %root.name(&object.path), "a manifest of something else is ignored");
                Ok(None)
            }
            Err(why) => {
                tracing::warn!(manifest = %root.name(&object.path), why, "a damaged manifest is ignored");
                Ok(None)
            }
        }
    }

    /// Seals the manifest. Parts are left out until the others fit a manifest.
    fn seal_fitting(&mut self) -> Result<Bytes> {
        loop {
            match seal(self) {
                Err(e) if e.kind() == ErrorKind::ResourceExhausted && !self.parts.is_empty() => {
                    tracing::debug!(snapshot = %self.fingerprint, error = %e, "a manifest names only some of the parts");
                    self.parts.truncate(self.parts.len() / 2);
                }
                sealed => return Ok(sealed?.into()),
            }
        }
    }

    /// Writes the manifest with an update under the first free number, starting at its own. Manifests of other processes
    /// may have taken numbers before that: what they describe is carried on.
    pub(crate) async fn create(mut self, root: &Root, news: &DescriptionUpdate) -> Result<Self> {
        for _ in 0..MAX_NUMBERS_TRIED {
            let path = root.layout.manifest(self.fingerprint, self.number);
            self.description = Arc::new(self.description.with(news));
            let body = self.seal_fitting()?;
            match root.create::<Manifest>(&path, body).await? {
                Created::Yes => return Ok(self),
                Created::Taken(theirs) => {
                    self.number += 1;
                    let theirs = unseal::<Manifest>(&theirs).ok();
                    if let Some(m) =
                        theirs.filter(|m| m.fingerprint == self.fingerprint && m.schema == SCHEMA)
                    {
                        self.description = Arc::new(self.description.under(&m.description));
                    }
                }
            }
        }
        Err(caju_types::Error::unavailable(format!(
            "{}/{}: no number is free for a manifest",
            root.url(),
            self.fingerprint
        )))
    }
}

#[cfg(test)]
mod tests {
    use caju_types::SplitKey;

    use super::*;
    use crate::listing::SourceListing;
    use crate::record::Block;
    use crate::save::SaveDescription;
    use crate::set::SetRecord;

    const MILLION: u64 = 1_000_000;

    fn part(n: u128) -> Arc<PartMeta> {
        let (fingerprint, split) = (Fingerprint(u128::MAX), SplitKey(u128::MAX - n));
        Arc::new(PartMeta {
            fingerprint,
            split,
            path: format!("{fingerprint}/parts/{split}-0123456789abcdef.parquet"),
            attempt: "0123456789abcdef".into(),
            generation: 1,
            writer: "worker-0123456789-0123456789abcdef-1700000000000000000".into(),
            encoding: "parquet/zstd".parse().unwrap(),
            rows: 1_000_000_000,
            bytes: 8 << 21,
            checksum: format!("{:032x}", u128::MAX),
            blocks: vec![Block { bytes: 1 << 21, checksum: u64::MAX }; 8],
            chunks: Vec::new(),
            schema_hash: format!("{:032x}", u128::MAX),
            skipped: 0,
            source_bytes: 1_000_000_000,
            compute_cpu_us: 1_000_000_000,
            created_unix_ms: 1_700_000_000_000,
        })
    }

    #[test]
    fn records_of_a_million_splits_are_read() {
        let manifest = Manifest {
            schema: SCHEMA.into(),
            fingerprint: Fingerprint(7),
            number: 1,
            attempt: "attempt".into(),
            created_unix_ms: 0,
            description: Arc::default(),
            parts: (0..1000).map(part).collect(),
        };
        let bytes = seal(&manifest).unwrap().len() as u64;
        assert!(bytes * MILLION / 1000 <= Manifest::MAX_BYTES, "{bytes}");
        let split = serde_json::json!({
            "repetition": 0, "key": SplitKey(u128::MAX), "rows": 100_000,
            "file": {
                "url": "s3://a-bucket-name/data-sets/images/train/year=2026/part-0000000-of-1000000.parquet",
                "size": 1_000_000_000, "etag": "\"0123456789abcdef0123456789abcdef-100\"",
                "mtime_ns": 1_700_000_000_000_000_000_u64,
            },
            "range": {"row_groups": [0, 1]},
        });
        let listing =
            SourceListing::new(Value::Null, arrow_schema::Schema::empty(), vec![split.to_string(); 1000]);
        let bytes = seal(&listing).unwrap().len() as u64;
        assert!(bytes * MILLION / 1000 <= SourceListing::MAX_BYTES, "{bytes}");
        let split = serde_json::to_string(&SplitKey(u128::MAX)).unwrap().len() as u64 + 1;
        assert!(split * MILLION <= SaveDescription::MAX_BYTES.min(SetRecord::MAX_BYTES) / 4, "{split}");
    }
}
