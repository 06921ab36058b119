//! Manifests: what a snapshot is, and its commit records folded into one object.
//!
//! A manifest is a description for people and tools and spares readers a request per part. It is never the
//! only truth: the commit records stay, and a manifest that is half-written, gone, or names a part that is
//! not there costs requests or recomputation, never rows.

use std::collections::HashMap;
use std::sync::Arc;

use caju_types::{Fingerprint, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::{Commit, PartMeta, seal, unseal};
use crate::store::{Created, Listed, Root};

/// What a snapshot is, in a form that people read: written into its manifests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SnapshotDescription {
    /// The job or pipeline that first wrote it.
    #[serde(default)]
    pub name: String,
    /// The stages of the prefix in one line.
    #[serde(default)]
    pub prefix: String,
    /// The definition of the prefix as it was fingerprinted.
    #[serde(default)]
    pub definition: Value,
    /// What the fingerprint is a hash of, versions of functions and libraries included: for telling in what
    /// two prefixes differ.
    #[serde(default)]
    pub canonical: Value,
    /// The schema of its rows.
    #[serde(default)]
    pub schema: Value,
    /// The encoding that its first writer chose; parts may differ.
    #[serde(default)]
    pub encoding: String,
    /// The last profile under which it was chosen (`caju.profile/v1`); null if nobody measured.
    #[serde(default)]
    pub profile: Value,
    /// How many splits the source had whose epoch was read to its end, if that is known: the most, where several
    /// sources share the snapshot.
    #[serde(default)]
    pub splits: Option<u64>,
}

/// What is found out about a snapshot after its first part was begun.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SnapshotNews {
    /// Splits that a source of it has.
    pub splits: Option<u64>,
    /// The profile under which it was chosen (`caju.profile/v1`), or null.
    pub profile: Value,
}

impl SnapshotDescription {
    /// Whether it says nothing of what the snapshot is, whatever was told of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.name.is_empty() && self.prefix.is_empty() && self.definition.is_null()
    }

    /// The same after some news.
    #[must_use]
    pub(crate) fn with(&self, news: &SnapshotNews) -> Self {
        let mut told = self.clone();
        told.splits = told.splits.max(news.splits);
        if !news.profile.is_null() {
            told.profile = news.profile.clone();
        }
        told
    }

    /// What stands in a later manifest, with what only this one knows.
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

/// The version of the format, as it stands in every manifest.
pub(crate) const SCHEMA: &str = "caju.manifest/v1";

/// A manifest that was read, and the object that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) object: Listed,
    /// None if it could not be understood.
    pub(crate) manifest: Option<Arc<Manifest>>,
}

impl Manifest {
    /// Its parts by split and generation.
    pub(crate) fn by_key(&self) -> HashMap<(caju_types::SplitKey, u32), Arc<PartMeta>> {
        self.parts.iter().map(|p| ((p.split, p.generation), Arc::clone(p))).collect()
    }

    /// Reads a manifest. One that is damaged, foreign or of another version is none.
    pub(crate) async fn load(root: &Root, of: Fingerprint, object: &Listed) -> Result<Option<Arc<Manifest>>> {
        let Some(bytes) = root.get(&object.path).await? else { return Ok(None) };
        match unseal::<Manifest>(&bytes) {
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

    /// Writes the manifest with some news under the first free number from its own on. What others found out about
    /// the snapshot, in the manifests that have the numbers before, is carried on.
    pub(crate) async fn create(mut self, root: &Root, news: &SnapshotNews) -> Result<Self> {
        for _ in 0..64 {
            let path = root.layout.manifest(self.fingerprint, self.number);
            self.description = Arc::new(self.description.with(news));
            match root.create(&path, seal(&self)?.into()).await? {
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

/// Reads a commit record; one that is damaged or foreign is none.
pub(crate) async fn load_commit(
    root: &Root,
    of: Fingerprint,
    object: &Listed,
) -> Result<Option<Option<Commit>>> {
    let Some(bytes) = root.get(&object.path).await? else { return Ok(None) };
    Ok(Some(understand(root, of, object, &bytes)))
}

fn understand(root: &Root, of: Fingerprint, object: &Listed, bytes: &[u8]) -> Option<Commit> {
    let name = root.name(&object.path);
    match unseal::<Commit>(bytes) {
        Ok(commit) => {
            let foreign = match &commit {
                Commit::Part(m) => m.fingerprint != of || !consistent(m),
                Commit::Void { .. } => false,
            };
            let Some((_, crate::layout::Object::Commit { split, generation, .. })) =
                root.layout.parse(&object.path)
            else {
                return None;
            };
            if foreign || commit.split() != split || commit.generation() != generation {
                tracing::warn!(record = %name, "a commit record of something else is ignored");
                return None;
            }
            Some(commit)
        }
        Err(why) => {
            tracing::warn!(record = %name, why, "a damaged commit record is ignored");
            None
        }
    }
}

/// Whether the numbers of a record fit one another.
pub(crate) fn consistent(meta: &PartMeta) -> bool {
    let sum = meta.blocks.iter().try_fold(0u64, |sum, b| sum.checked_add(b.bytes));
    !meta.blocks.is_empty() && meta.blocks.iter().all(|b| b.bytes > 0) && sum == Some(meta.bytes)
}
