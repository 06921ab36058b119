//! Adding commit records: of parts, and of voids that withdraw a part.

use std::sync::Arc;

use caju_types::{Result, SplitKey};

use super::snapshot_state::SnapshotState;
use crate::commit::{CommitSlot, Committed, is_consistent, is_present};
use crate::context::Context;
use crate::layout::Generation;
use crate::record::{Commit, PartMeta, seal, unseal};
use crate::store::{Created, Root};

impl SnapshotState {
    /// Reads the commit slot of a generation of a split. `bytes` are its content, if the caller has it already.
    pub(super) async fn read_slot(
        &self,
        root: &Root,
        split: SplitKey,
        generation: Generation,
        bytes: Option<&[u8]>,
    ) -> Result<CommitSlot> {
        let path = root.layout.commit(self.of, split, generation, None);
        let fetched;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => match root.read_bytes::<Commit>(&path).await? {
                Some(bytes) => {
                    fetched = bytes;
                    &fetched
                }
                None => return Ok(CommitSlot::Free),
            },
        };
        match unseal::<Commit>(bytes) {
            Ok(Commit::Part(meta))
                if meta.fingerprint == self.of
                    && meta.split == split
                    && meta.generation == generation
                    && is_consistent(&meta)
                    && is_present(root, &meta).await? =>
            {
                self.add_record((split, generation, None), Commit::Part(meta.clone()), true);
                Ok(CommitSlot::Part(Arc::new(meta)))
            }
            _ => Ok(CommitSlot::Unusable),
        }
    }

    /// Creates the commit record of a part, unless another part of the split counts already.
    pub(crate) async fn commit(&self, ctx: &Context, mut meta: PartMeta) -> Result<Committed> {
        let root = &ctx.root;
        if !root.conditional() {
            return self.commit_unconditionally(ctx, meta).await;
        }
        loop {
            let path = root.layout.commit(self.of, meta.split, meta.generation, None);
            match root.create::<Commit>(&path, seal(&Commit::Part(meta.clone()))?.into()).await? {
                Created::Yes => break,
                Created::Taken(theirs) => {
                    match self.read_slot(root, meta.split, meta.generation, Some(&theirs)).await? {
                        CommitSlot::Part(winner) => return Ok(Committed::Lost(winner)),
                        CommitSlot::Unusable | CommitSlot::Free => meta.generation += 1,
                    }
                }
            }
        }
        self.add_record((meta.split, meta.generation, None), Commit::Part(meta.clone()), true);
        let meta = Arc::new(meta);
        if self.listing.lock().uncovered >= ctx.options.fold_after
            && let Err(error) = self.fold(ctx).await
        {
            tracing::warn!(%error, "the records of a snapshot could not be folded into a manifest");
        }
        Ok(Committed::Ours(meta))
    }

    async fn commit_unconditionally(&self, ctx: &Context, meta: PartMeta) -> Result<Committed> {
        let root = &ctx.root;
        let path = root.layout.commit(self.of, meta.split, meta.generation, Some(&meta.attempt));
        root.put(&path, seal(&Commit::Part(meta.clone()))?.into()).await?;
        let index = self.refresh(ctx).await?;
        match index.get(&meta.split) {
            Some(winner) if winner.attempt != meta.attempt => {
                root.delete(&path).await?;
                Ok(Committed::Lost(Arc::clone(winner)))
            }
            _ => Ok(Committed::Ours(Arc::new(meta))),
        }
    }

    /// Supersedes a bad part by a void of the next generation.
    pub(crate) async fn withdraw(&self, ctx: &Context, meta: &PartMeta, why: &str) -> Result<()> {
        let root = &ctx.root;
        let (split, generation) = (meta.split, meta.generation + 1);
        let attempt = root.unique("void");
        let void = Commit::Void { split, generation, attempt: attempt.clone(), why: why.to_string() };
        let name = (!root.conditional()).then_some(attempt.as_str());
        let path = root.layout.commit(self.of, split, generation, name);
        if let Created::Yes = root.create::<Commit>(&path, seal(&void)?.into()).await? {
            self.add_record((split, generation, name.map(str::to_string)), void, false);
        } else {
            // Another process has withdrawn or replaced it.
            self.refresh(ctx).await?;
        }
        Ok(())
    }
}
