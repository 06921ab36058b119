//! The right to write a split: claims, created only if absent.
//!
//! Claims on a split are numbered from 1 without gaps. The first one whose creation succeeds is the right to
//! write; one that belongs to a dead process is passed over. A claim is deleted only after its split has
//! been committed, or given up: who then creates it anew finds the commit record, or is alone.

use std::sync::Arc;

use caju_types::{Error, Result, SplitKey};
use object_store::path::Path;
use parking_lot::Mutex;

use super::state::{Seat, SnapshotState};
use crate::Cache;
use crate::layout::{Generation, Object};
use crate::lease::{Hold, Leases};
use crate::record::{Claim, PartMeta, seal, unseal};
use crate::store::Created;

/// Dead claims on one split before something must be wrong.
const MOST: Generation = 1000;

pub(super) enum Outcome {
    Ours(Held, Generation),
    Exists(Arc<PartMeta>),
    Busy(String),
}

/// A claim that is ours.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    state: Arc<SnapshotState>,
    split: SplitKey,
    attempt: String,
    path: Option<Path>,
    /// The claim whose creation was last begun: it may exist even where its creation failed or was cut off.
    tried: Arc<Mutex<Option<Path>>>,
    _hold: Arc<Hold>,
}

impl Held {
    pub(crate) fn split(&self) -> SplitKey {
        self.split
    }

    pub(crate) fn attempt(&self) -> &str {
        &self.attempt
    }

    /// Gives the claim back.
    pub(crate) async fn release(self, cache: &Cache) {
        if let Some(path) = &self.path
            && let Err(error) = cache.root.delete(path).await
        {
            tracing::debug!(%error, "a claim could not be given back yet");
            cache.leases.left_behind(path.clone(), self.attempt.clone());
        }
        self.state.active.lock().remove(&self.split);
    }

    /// Lets this process claim the split again; the object stays.
    pub(crate) fn forget(&self) {
        self.state.active.lock().remove(&self.split);
    }
}

impl SnapshotState {
    /// Claims a split, or says why not.
    pub(super) async fn claim(self: &Arc<Self>, cache: &Cache, split: SplitKey) -> Result<Outcome> {
        if !self.is_listed() {
            self.refresh(cache).await?;
        }
        if let Some(meta) = self.known_part(split) {
            return Ok(Outcome::Exists(meta));
        }
        if !self.active.lock().insert(split) {
            return Ok(Outcome::Busy(cache.leases.id().to_string()));
        }
        let mut held = Held {
            state: Arc::clone(self),
            split,
            attempt: cache.root.unique("attempt"),
            path: None,
            tried: Arc::default(),
            _hold: Arc::new(cache.leases.hold(self.of).0),
        };
        let guard = Unclaim(Some((held.clone(), Arc::clone(&cache.leases))));
        let outcome = if cache.root.conditional() {
            self.claim_conditionally(cache, &mut held).await
        } else {
            self.claim_by_name(cache, &mut held).await
        };
        match outcome {
            Ok(None) => {
                let settled = self.settle(cache, held).await;
                guard.disarm();
                settled
            }
            Ok(Some(writer)) => Ok(Outcome::Busy(writer)),
            Err(e) => Err(e),
        }
    }

    /// Takes the first claim that is free or dead; gives the live writer if there is one.
    async fn claim_conditionally(&self, cache: &Cache, held: &mut Held) -> Result<Option<String>> {
        let body = seal(&Claim { writer: cache.leases.id().into(), attempt: held.attempt.clone() })?;
        for number in 1..=MOST {
            let path = cache.root.layout.claim(self.of, held.split, number, None);
            *held.tried.lock() = Some(path.clone());
            match cache.root.create(&path, body.clone().into()).await? {
                Created::Yes => {
                    held.path = Some(path);
                    return Ok(None);
                }
                Created::Taken(theirs) => {
                    *held.tried.lock() = None;
                    let Ok(claim) = unseal::<Claim>(&theirs) else { continue };
                    // Our own claims are in `active`; another one of ours is a leftover.
                    if claim.writer != cache.leases.id() && cache.leases.alive(&claim.writer).await? {
                        return Ok(Some(claim.writer));
                    }
                }
            }
        }
        Err(Error::unavailable(format!(
            "split {} of {} has {MOST} dead claims; collect them with `caju cache gc`",
            held.split, self.of
        )))
    }

    /// Without conditional puts: every claim has a name of its own, the oldest live one wins.
    async fn claim_by_name(&self, cache: &Cache, held: &mut Held) -> Result<Option<String>> {
        let root = &cache.root;
        let path = root.layout.claim(self.of, held.split, 1, Some(&held.attempt));
        let body = seal(&Claim { writer: cache.leases.id().into(), attempt: held.attempt.clone() })?;
        *held.tried.lock() = Some(path.clone());
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
            let Some(body) = root.get(&object.path).await? else { continue };
            let Ok(claim) = unseal::<Claim>(&body) else { continue };
            if claim.writer != cache.leases.id() && cache.leases.alive(&claim.writer).await? {
                // The guard deletes it if this fails.
                root.delete(&path).await?;
                *held.tried.lock() = None;
                return Ok(Some(claim.writer));
            }
        }
        held.path = Some(path);
        Ok(None)
    }

    /// With the claim in hand: has the split been committed meanwhile?
    async fn settle(self: &Arc<Self>, cache: &Cache, held: Held) -> Result<Outcome> {
        let found = if cache.root.conditional() {
            self.find_seat(cache, held.split).await
        } else {
            match self.refresh(cache).await {
                Ok(index) => match index.get(&held.split) {
                    Some(meta) => Ok(Err(Arc::clone(meta))),
                    None => Ok(Ok(self.next_generation(held.split))),
                },
                Err(e) => Err(e),
            }
        };
        match found {
            Ok(Ok(generation)) => Ok(Outcome::Ours(held, generation)),
            Ok(Err(meta)) => {
                held.release(cache).await;
                Ok(Outcome::Exists(meta))
            }
            Err(e) => {
                held.release(cache).await;
                Err(e)
            }
        }
    }

    async fn find_seat(&self, cache: &Cache, split: SplitKey) -> Result<Result<Generation, Arc<PartMeta>>> {
        let mut generation = self.next_generation(split);
        loop {
            match self.look(&cache.root, split, generation, None).await? {
                Seat::Free => return Ok(Ok(generation)),
                Seat::Part(meta) => return Ok(Err(meta)),
                Seat::Useless => generation += 1,
            }
        }
    }
}

/// Takes a split out of `active` if claiming it fails or is dropped, and sees to a claim that may exist.
struct Unclaim(Option<(Held, Arc<Leases>)>);

impl Unclaim {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaim {
    fn drop(&mut self) {
        if let Some((held, leases)) = self.0.take() {
            if let Some(path) = held.tried.lock().take() {
                leases.left_behind(path, held.attempt.clone());
            }
            held.forget();
        }
    }
}
