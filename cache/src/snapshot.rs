//! The handle on one snapshot: which parts it has, reading and writing one.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_types::{Error, Fingerprint, Result, SplitKey};

use crate::cache::Cache;
use crate::manifest::{DescriptionUpdate, SnapshotDescription};
use crate::read::{PartReader, ReadOptions};
use crate::record::PartMeta;
use crate::state::{ClaimOutcome, PartIndex, SnapshotState};
use crate::write::{PartWriter, Writing};
use caju_autocache::Encoding;

/// The outcome of asking to write a part.
#[derive(Debug)]
pub enum PutOutcome {
    /// This process writes it.
    Writer(Box<PartWriter>),
    /// It exists and can be read.
    Exists(Arc<PartMeta>),
    /// A live process is writing it. Compute without writing, or ask again later.
    Busy {
        /// The id of that process.
        writer: String,
    },
}

/// A handle on one snapshot of a cache. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) cache: Arc<Cache>,
    pub(crate) state: Arc<SnapshotState>,
}

impl Cache {
    /// The handle on the snapshot of a prefix, whether it exists or not. No request is made.
    pub fn snapshot(self: &Arc<Self>, prefix: &Fingerprint) -> Snapshot {
        Snapshot { cache: Arc::clone(self), state: self.state(*prefix) }
    }
}

impl Snapshot {
    /// The prefix whose output this is.
    pub fn fingerprint(&self) -> Fingerprint {
        self.state.of
    }

    /// The committed parts now. It takes one listing, and one read for each object that is new since the last call (a
    /// manifest, or a record that no manifest covers yet). A part that is missing, or whose length is not the one in its
    /// record, is left out.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn index(&self) -> Result<PartIndex> {
        self.state.refresh(&self.cache.ctx).await
    }

    /// The part of one split, without a listing: as of the last [`Snapshot::index`] and this process's own commits.
    pub fn cached_part(&self, split: &SplitKey) -> Option<Arc<PartMeta>> {
        self.state.cached_part(*split)
    }

    /// Asks to write the part of a split.
    ///
    /// At most one live process writes a split. For the others the outcome is `Busy`. A writer is skipped if its lease
    /// object did not change for the lease's life *between two calls of an observer*.
    ///
    /// # Errors
    /// `InvalidArgument` if the schema cannot be stored in the encoding, `ResourceExhausted` if rows of the snapshot did
    /// not fit the budget a moment ago, `PermissionDenied` if the root cannot be written, and the errors of the store. In all
    /// these cases the caller continues without the cache.
    pub async fn put(
        &self,
        split: SplitKey,
        describe: &SnapshotDescription,
        schema: SchemaRef,
        encoding: Encoding,
    ) -> Result<PutOutcome> {
        let put = self.begin_put(split, describe, schema, encoding).await;
        put.inspect_err(|e| self.cache.ctx.record_put_failure(e))
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
            return Err(self.cache.ctx.refusal());
        }
        self.cache.admission.check(self.state.of).await?;
        self.cache.ctx.leases.start(&self.cache.ctx.tasks).await?;
        let (claim, generation) = match self.state.claim(&self.cache.ctx, split).await? {
            ClaimOutcome::Ours(claim, generation) => (claim, generation),
            ClaimOutcome::Exists(meta) => return Ok(PutOutcome::Exists(meta)),
            ClaimOutcome::Busy(writer) => return Ok(PutOutcome::Busy { writer }),
        };
        let (cache, state) = (Arc::clone(&self.cache), Arc::clone(&self.state));
        let describe = (!state.is_described()).then(|| Arc::new(describe.clone()));
        let writing = Writing { claim: claim.clone(), generation, describe };
        match PartWriter::new(Arc::clone(&cache), state, writing, schema, encoding) {
            Ok(writer) => Ok(PutOutcome::Writer(Box::new(writer))),
            Err(e) => {
                claim.release(&cache.ctx).await;
                Err(e)
            }
        }
    }

    /// Opens a part for reading.
    ///
    /// # Errors
    /// `DataLoss` for a part that is torn, truncated, swapped or foreign: [`Snapshot::discard`] it and compute the split.
    /// `NotFound` if it was evicted, `Unavailable` and so on from the store. The stream may end with the same errors. Rows
    /// that it gave before that are correct.
    pub async fn open_part(&self, meta: &PartMeta, options: ReadOptions) -> Result<PartReader> {
        if meta.fingerprint != self.state.of {
            return Err(Error::internal(format!(
                "a part of {} was opened as one of {}",
                meta.fingerprint, self.state.of
            )));
        }
        PartReader::open(&self.cache.ctx, meta, options, Some(Arc::clone(&self.state))).await
    }

    /// Withdraws a part that was found bad. The split has no part until it is put again. The object is deleted by a later
    /// collection. Does nothing if another part has replaced it.
    ///
    /// # Errors
    /// The errors of the store; the part is then still listed.
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
        self.state.withdraw(&self.cache.ctx, meta, why).await
    }

    /// Folds commit records that no manifest covers into a new manifest. Does nothing if there are none.
    ///
    /// # Errors
    /// The errors of the store; nothing is lost then.
    pub async fn fold(&self) -> Result<()> {
        self.state.refresh(&self.cache.ctx).await?;
        self.state.fold(&self.cache.ctx).await
    }

    /// Writes what became known of the snapshot after its first part was begun into a new manifest. Later manifests carry
    /// it on. False, and nothing is written, if it is known already or the snapshot has no part.
    ///
    /// # Errors
    /// The errors of the store; nothing is lost then.
    pub async fn update_description(&self, news: &DescriptionUpdate) -> Result<bool> {
        self.state.refresh(&self.cache.ctx).await?;
        self.state.update_description(&self.cache.ctx, news).await
    }

    /// Records that a job uses the snapshot, for `cache ls`. Rows that were read, and the CPU time that they saved, are
    /// counted whenever a part is read to its end.
    pub fn record_job(&self, job: &str) {
        self.state.record_use(job, 0, 0.0);
    }
}
