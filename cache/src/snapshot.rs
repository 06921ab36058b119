//! One snapshot: which parts it has, and the right to write one.

mod claim;
mod describe;
mod set;
mod state;
mod uses;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_types::{Error, Fingerprint, Result, SplitKey};

use crate::Cache;
use crate::manifest::{SnapshotDescription, SnapshotNews};
use crate::read::{PartReader, ReadOptions};
use crate::record::PartMeta;
use crate::write::{PartWriter, Writing};
use caju_autocache::Encoding;

pub(crate) use claim::Held;
pub use set::{Member, Name, SetOutcome, SetRecord};
pub(crate) use state::SnapshotState;
pub(crate) use uses::Uses;

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

/// What came of asking to write a part.
#[derive(Debug)]
pub enum PutOutcome {
    /// It is ours to write.
    Writer(Box<PartWriter>),
    /// It exists: read it.
    Exists(Arc<PartMeta>),
    /// A live process is writing it; compute without writing, or ask again later.
    Busy {
        /// Who.
        writer: String,
    },
}

/// A handle on one snapshot of a cache. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Snapshot {
    cache: Arc<Cache>,
    state: Arc<SnapshotState>,
}

impl Snapshot {
    pub(crate) fn new(cache: Arc<Cache>, of: Fingerprint) -> Self {
        let state = cache.state(of);
        Self { cache, state }
    }

    /// The prefix whose output this is.
    pub fn fingerprint(&self) -> Fingerprint {
        self.state.of
    }

    /// The committed parts now: one listing, and one read for what is new since the last call (a manifest,
    /// or records that no manifest covers yet). A part that is gone or has another length than its record
    /// says is not listed.
    ///
    /// # Errors
    /// What the store says.
    pub async fn index(&self) -> Result<PartIndex> {
        self.state.refresh(&self.cache).await
    }

    /// The part of one split, without a listing: as of the last [`Snapshot::index`] and this process's own
    /// commits.
    pub fn known(&self, split: &SplitKey) -> Option<Arc<PartMeta>> {
        self.state.known_part(*split)
    }

    /// Asks to write the part of a split.
    ///
    /// At most one live process writes a split: the others are told `Busy`. A writer whose lease object
    /// has not changed for the lease's life *between two calls of an observer* is passed over.
    ///
    /// # Errors
    /// `InvalidArgument` if the schema cannot be stored in the encoding, `ResourceExhausted` if there was no
    /// room under the budget a moment ago, `PermissionDenied` if the root cannot be written, and what the store says:
    /// then go on without the cache.
    pub async fn put(
        &self,
        split: SplitKey,
        describe: &SnapshotDescription,
        schema: SchemaRef,
        encoding: Encoding,
    ) -> Result<PutOutcome> {
        let put = self.begin_put(split, describe, schema, encoding).await;
        put.inspect_err(|e| self.cache.failed_to_put(e))
    }

    async fn begin_put(
        &self,
        split: SplitKey,
        describe: &SnapshotDescription,
        schema: SchemaRef,
        encoding: Encoding,
    ) -> Result<PutOutcome> {
        let encoding = Encoding::new(encoding.format, encoding.compression)?;
        if self.cache.is_read_only() {
            return Err(self.cache.refusal());
        }
        self.cache.space.check(&self.cache, self.state.of).await?;
        self.cache.leases.start(&self.cache.tasks).await?;
        let (held, generation) = match self.state.claim(&self.cache, split).await? {
            claim::Outcome::Ours(held, generation) => (held, generation),
            claim::Outcome::Exists(meta) => return Ok(PutOutcome::Exists(meta)),
            claim::Outcome::Busy(writer) => return Ok(PutOutcome::Busy { writer }),
        };
        let (cache, state) = (Arc::clone(&self.cache), Arc::clone(&self.state));
        let describe = (!state.is_described()).then(|| Arc::new(describe.clone()));
        let writing = Writing { held: held.clone(), generation, describe };
        match PartWriter::new(Arc::clone(&cache), state, writing, schema, encoding) {
            Ok(writer) => Ok(PutOutcome::Writer(Box::new(writer))),
            Err(e) => {
                held.release(&cache).await;
                Err(e)
            }
        }
    }

    /// Opens a part for reading.
    ///
    /// # Errors
    /// `DataLoss` for a part that is torn, truncated, swapped or foreign: [`Snapshot::discard`] it and
    /// compute the split. `NotFound` if it was evicted, `Unavailable` and so on from the store. The stream
    /// may end with the same errors; rows that it gave before are right.
    pub async fn open_part(&self, meta: &PartMeta, options: ReadOptions) -> Result<PartReader> {
        if meta.fingerprint != self.state.of {
            return Err(Error::internal(format!(
                "a part of {} was opened as one of {}",
                meta.fingerprint, self.state.of
            )));
        }
        PartReader::open(&self.cache, meta, options, Some(Arc::clone(&self.state))).await
    }

    /// Withdraws a part that was found bad: the split has none until it is put again. Its bytes are left to
    /// the collection. Does nothing if another part has taken its place.
    ///
    /// # Errors
    /// What the store says; the part is then still listed.
    pub async fn discard(&self, meta: &PartMeta, why: &str) -> Result<()> {
        if self.cache.is_read_only() {
            tracing::warn!(
                part = meta.path,
                why,
                "a part of a snapshot is bad, and stays: its root is read only"
            );
            return Ok(());
        }
        tracing::warn!(part = meta.path, why, "a part of a snapshot is bad and will be replaced");
        self.state.withdraw(&self.cache, meta, why).await
    }

    /// Folds the commit records that no manifest covers into a new manifest, if there are any.
    ///
    /// # Errors
    /// What the store says; nothing is lost then.
    pub async fn fold(&self) -> Result<()> {
        self.state.refresh(&self.cache).await?;
        self.state.fold(&self.cache).await
    }

    /// Tells what was found out about the snapshot since its first part was begun: a new manifest, whose description
    /// later ones carry on. False, and nothing is written, if that is known already or the snapshot has no part.
    ///
    /// # Errors
    /// What the store says; nothing is lost then.
    pub async fn tell(&self, news: &SnapshotNews) -> Result<bool> {
        self.state.refresh(&self.cache).await?;
        self.state.tell(&self.cache, news).await
    }

    /// Says which job uses the snapshot, for `cache ls`. What was read, and the computing that it saved, is
    /// counted as parts are read to their ends.
    pub fn used_by(&self, job: &str) {
        self.state.used(job, 0, 0.0);
    }
}
