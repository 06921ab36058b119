//! The right to write a split: claims, created only if absent.
//!
//! Claims on a split are numbered from 1 without gaps. A process that creates a claim has the right to write, unless a
//! claim with a lower number belongs to a live process. Claims of dead processes are skipped. A claim is deleted only
//! after its split was committed or given up. A process that then creates the same claim finds the commit record, or has
//! no competitor.

use std::sync::Arc;

use caju_runtime::OrderedMutex;
use caju_types::{Error, Result, SplitKey};
use object_store::path::Path;

use super::snapshot_state::SnapshotState;
use crate::commit::CommitSlot;
use crate::context::Context;
use crate::layout::{Generation, Object};
use crate::lease::{Hold, Leases};
use crate::locks;
use crate::record::{Claim, PartMeta, seal, unseal};
use crate::store::Created;

/// The most claims of dead processes on one split that are skipped. If there are more, `gc` does not run, and claiming
/// fails.
const MAX_DEAD_CLAIMS: Generation = 1000;

/// The outcome of asking for the right to write a split.
pub(crate) enum ClaimOutcome {
    /// It is ours, and the part's commit record goes to this generation.
    Ours(OwnClaim, Generation),
    /// The split has a part.
    Exists(Arc<PartMeta>),
    /// This live process writes the split.
    Busy(String),
}

/// A claim of this process.
#[derive(Debug, Clone)]
pub(crate) struct OwnClaim {
    state: Arc<SnapshotState>,
    split: SplitKey,
    attempt: String,
    path: Option<Path>,
    /// The claim whose creation was last begun. It may exist even if its creation failed or was cancelled.
    attempted: Arc<OrderedMutex<Option<Path>>>,
    _hold: Arc<Hold>,
}

impl OwnClaim {
    pub(crate) fn split(&self) -> SplitKey {
        self.split
    }

    pub(crate) fn attempt(&self) -> &str {
        &self.attempt
    }

    /// Deletes the claim.
    pub(crate) async fn release(self, ctx: &Context) {
        if let Some(path) = &self.path
            && let Err(error) = ctx.root.delete(path).await
        {
            tracing::debug!(%error, "a claim could not be deleted yet");
            ctx.leases.add_stale_claim(path.clone(), self.attempt.clone());
        }
        self.state.active.lock().remove(&self.split);
    }

    /// Lets this process claim the split again. The claim's object stays.
    pub(crate) fn forget(&self) {
        self.state.active.lock().remove(&self.split);
    }
}

impl SnapshotState {
    /// Claims a split, unless it has a part or a live process writes it.
    pub(crate) async fn claim(self: &Arc<Self>, ctx: &Context, split: SplitKey) -> Result<ClaimOutcome> {
        if !self.is_listed() {
            self.refresh(ctx).await?;
        }
        if let Some(meta) = self.cached_part(split) {
            return Ok(ClaimOutcome::Exists(meta));
        }
        if !self.active.lock().insert(split) {
            return Ok(ClaimOutcome::Busy(ctx.leases.id().to_string()));
        }
        let mut held = OwnClaim {
            state: Arc::clone(self),
            split,
            attempt: ctx.root.unique("attempt"),
            path: None,
            attempted: Arc::new(OrderedMutex::new(locks::CLAIM, None)),
            _hold: Arc::new(ctx.leases.hold(self.of).0),
        };
        let guard = ClaimGuard(Some((held.clone(), Arc::clone(&ctx.leases))));
        let outcome = if ctx.root.conditional() {
            self.claim_conditionally(ctx, &mut held).await
        } else {
            self.claim_by_name(ctx, &mut held).await
        };
        match outcome {
            Ok(None) => {
                let confirmed = self.confirm(ctx, held).await;
                guard.disarm();
                confirmed
            }
            Ok(Some(writer)) => Ok(ClaimOutcome::Busy(writer)),
            Err(e) => Err(e),
        }
    }

    /// Creates the first free claim behind dead ones. Gives the live writer, if there is one.
    async fn claim_conditionally(&self, ctx: &Context, held: &mut OwnClaim) -> Result<Option<String>> {
        let body = seal(&Claim { writer: ctx.leases.id().into(), attempt: held.attempt.clone() })?;
        for number in 1..=MAX_DEAD_CLAIMS {
            let path = ctx.root.layout.claim(self.of, held.split, number, None);
            *held.attempted.lock() = Some(path.clone());
            match ctx.root.create::<Claim>(&path, body.clone().into()).await? {
                Created::Yes => {
                    held.path = Some(path);
                    return Ok(None);
                }
                Created::Taken(theirs) => {
                    *held.attempted.lock() = None;
                    let Ok(claim) = unseal::<Claim>(&theirs) else { continue };
                    // `active` has the claims that this process holds. Any other claim of ours is stale.
                    if claim.writer != ctx.leases.id() && ctx.leases.is_alive(&claim.writer).await? {
                        return Ok(Some(claim.writer));
                    }
                }
            }
        }
        Err(Error::unavailable(format!(
            "split {} of {} has {MAX_DEAD_CLAIMS} dead claims; collect them with `caju cache gc`",
            held.split, self.of
        )))
    }

    /// Claims without conditional puts: every claim has a unique name, and the oldest live one wins.
    async fn claim_by_name(&self, ctx: &Context, held: &mut OwnClaim) -> Result<Option<String>> {
        let root = &ctx.root;
        let path = root.layout.claim(self.of, held.split, 1, Some(&held.attempt));
        let body = seal(&Claim { writer: ctx.leases.id().into(), attempt: held.attempt.clone() })?;
        *held.attempted.lock() = Some(path.clone());
        root.put(&path, body.into()).await?;
        let mut claims = Vec::new();
        for object in root.list(&root.layout.folder(self.of).join("claims")).await? {
            if let Some((_, Object::Claim { split, .. })) = root.layout.parse(&object.path)
                && split == held.split
            {
                claims.push(object);
            }
        }
        claims.sort_by(|a, b| (a.modified_ms, &a.path).cmp(&(b.modified_ms, &b.path)));
        for object in claims {
            if object.path == path {
                break;
            }
            let Some(Ok(claim)) = root.read_record::<Claim>(&object.path).await? else { continue };
            if claim.writer != ctx.leases.id() && ctx.leases.is_alive(&claim.writer).await? {
                // If this fails, the guard sees to the claim.
                root.delete(&path).await?;
                *held.attempted.lock() = None;
                return Ok(Some(claim.writer));
            }
        }
        held.path = Some(path);
        Ok(None)
    }

    /// Checks, with the claim held, that the split was not committed in the meantime.
    async fn confirm(self: &Arc<Self>, ctx: &Context, held: OwnClaim) -> Result<ClaimOutcome> {
        let found = if ctx.root.conditional() {
            self.find_free_slot(ctx, held.split).await
        } else {
            match self.refresh(ctx).await {
                Ok(index) => match index.get(&held.split) {
                    Some(meta) => Ok(Err(Arc::clone(meta))),
                    None => Ok(Ok(self.next_generation(held.split))),
                },
                Err(e) => Err(e),
            }
        };
        match found {
            Ok(Ok(generation)) => Ok(ClaimOutcome::Ours(held, generation)),
            Ok(Err(meta)) => {
                held.release(ctx).await;
                Ok(ClaimOutcome::Exists(meta))
            }
            Err(e) => {
                held.release(ctx).await;
                Err(e)
            }
        }
    }

    /// The next generation whose commit slot is free, or the part of the split.
    async fn find_free_slot(
        &self,
        ctx: &Context,
        split: SplitKey,
    ) -> Result<Result<Generation, Arc<PartMeta>>> {
        let mut generation = self.next_generation(split);
        loop {
            match self.read_slot(&ctx.root, split, generation, None).await? {
                CommitSlot::Free => return Ok(Ok(generation)),
                CommitSlot::Part(meta) => return Ok(Err(meta)),
                CommitSlot::Unusable => generation += 1,
            }
        }
    }
}

/// Takes a split out of `active` if claiming it fails or is cancelled, and has a claim that may exist deleted later.
struct ClaimGuard(Option<(OwnClaim, Arc<Leases>)>);

impl ClaimGuard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if let Some((held, leases)) = self.0.take() {
            let attempted = held.attempted.lock().take();
            if let Some(path) = attempted {
                leases.add_stale_claim(path, held.attempt.clone());
            }
            held.forget();
        }
    }
}
