//! The committed parts of one snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use caju_types::SplitKey;

use crate::manifest::SnapshotDescription;
use crate::record::PartMeta;

/// The committed parts of a snapshot at one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PartIndex {
    pub(crate) parts: Arc<HashMap<SplitKey, Arc<PartMeta>>>,
    pub(crate) description: Option<Arc<SnapshotDescription>>,
}

impl PartIndex {
    /// The part of a split.
    pub fn get(&self, split: &SplitKey) -> Option<&Arc<PartMeta>> {
        self.parts.get(split)
    }

    /// Whether a split has a part.
    pub fn contains(&self, split: &SplitKey) -> bool {
        self.parts.contains_key(split)
    }

    /// The number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Every split that has a part, with the part, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&SplitKey, &Arc<PartMeta>)> {
        self.parts.iter()
    }

    /// What the snapshot is, if a manifest says so.
    pub fn description(&self) -> Option<&Arc<SnapshotDescription>> {
        self.description.as_ref()
    }

    /// Rows of all parts.
    pub fn rows(&self) -> u64 {
        self.parts.values().map(|p| p.rows).sum()
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts.values().map(|p| p.bytes).sum()
    }
}
