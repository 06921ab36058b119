//! Commit records in the store: reading one, and checking it.

use std::sync::Arc;

use caju_types::{Fingerprint, Result};

use crate::layout::Object;
use crate::record::{Commit, PartMeta};
use crate::store::{Listed, Root};

/// The outcome of finishing a part.
#[derive(Debug, Clone, PartialEq)]
pub enum Committed {
    /// The part counts from now on.
    Ours(Arc<PartMeta>),
    /// Another writer's part of the same split counts already; our bytes were deleted.
    Lost(Arc<PartMeta>),
}

impl Committed {
    /// The part that counts.
    pub fn meta(&self) -> &Arc<PartMeta> {
        match self {
            Committed::Ours(m) | Committed::Lost(m) => m,
        }
    }
}

/// The name under which the commit record of one generation of a split is created.
pub(crate) enum CommitSlot {
    /// There is no record.
    Free,
    /// The record of a part that can be read.
    Part(Arc<PartMeta>),
    /// A void, a damaged record, or one whose part is missing: the next generation supersedes it.
    Unusable,
}

/// A commit record that was looked up.
#[derive(Debug)]
pub(crate) enum LoadedCommit {
    /// Deleted since the listing.
    Missing,
    /// Damaged, or the record of something else.
    Damaged,
    /// A part, or a void.
    Valid(Box<Commit>),
}

impl LoadedCommit {
    /// The part that the record names; none if there is no valid record, or it is a void.
    pub(crate) fn part(self) -> Option<PartMeta> {
        match self {
            LoadedCommit::Valid(commit) => match *commit {
                Commit::Part(meta) => Some(meta),
                Commit::Void { .. } => None,
            },
            LoadedCommit::Missing | LoadedCommit::Damaged => None,
        }
    }

    /// Reads the commit record of a listed object.
    ///
    /// # Errors
    /// The errors of the store.
    pub(crate) async fn read(root: &Root, of: Fingerprint, object: &Listed) -> Result<Self> {
        let Some(read) = root.read_record::<Commit>(&object.path).await? else { return Ok(Self::Missing) };
        let name = root.name(&object.path);
        let commit = match read {
            Ok(commit) => commit,
            Err(why) => {
                tracing::warn!(record = %name, why, "a damaged commit record is ignored");
                return Ok(Self::Damaged);
            }
        };
        let foreign = match &commit {
            Commit::Part(m) => m.fingerprint != of || !is_consistent(m),
            Commit::Void { .. } => false,
        };
        let Some((_, Object::Commit { split, generation, .. })) = root.layout.parse(&object.path) else {
            return Ok(Self::Damaged);
        };
        if foreign || commit.split() != split || commit.generation() != generation {
            tracing::warn!(record = %name, "a commit record of something else is ignored");
            return Ok(Self::Damaged);
        }
        Ok(Self::Valid(Box::new(commit)))
    }
}

/// Whether the sizes in a part's record agree: at least one block, none empty, and the file is as long as all of them.
pub(crate) fn is_consistent(meta: &PartMeta) -> bool {
    let sum = meta.blocks.iter().try_fold(0u64, |sum, b| sum.checked_add(b.bytes));
    !meta.blocks.is_empty() && meta.blocks.iter().all(|b| b.bytes > 0) && sum == Some(meta.bytes)
}

/// Whether the object of a part exists with the length that the record says.
pub(crate) async fn is_present(root: &Root, meta: &PartMeta) -> Result<bool> {
    let found = root.head(&root.layout.absolute(&meta.path)).await?;
    Ok(found.is_some_and(|o| o.bytes == meta.bytes))
}

/// Deletes a part. Its record goes first, so that no reader finds a record without a part.
pub(crate) async fn remove_part(root: &Root, part: &PartMeta) -> Result<()> {
    let layout = &root.layout;
    let attempt = (!root.conditional()).then_some(part.attempt.as_str());
    let (of, split, generation) = (part.fingerprint, part.split, part.generation);
    let names =
        [layout.commit(of, split, generation, attempt), layout.commit_before(of, split, generation, attempt)];
    root.delete_all(names.to_vec()).await?;
    root.delete(&layout.absolute(&part.path)).await
}
