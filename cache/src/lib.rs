//! Snapshots: the stored output of a dataset's prefix, shared by every job that has the prefix.
//!
//! A [`Cache`] is one process's handle on a cache root in an object store. A [`Snapshot`] is one prefix's
//! share of it, and has at most one part per split. A part counts only when its commit record exists, which
//! is created only if absent; before that nobody sees it, and after that it never changes. What is read is
//! checked block by block before it is decoded. So a part is whole or absent (I4), and at most one part per
//! split is ever served (I5), whatever processes die or pause. See design §7 for the layout.
//!
//! On a store that ignores conditional puts (found out when the root is opened) names are unique per attempt
//! and the oldest record wins. There, two writers of one split may both see themselves win for a moment;
//! readers agree as soon as both records are listed.
//!
//! Errors of a cache never have to fail a job: `DataLoss` and `NotFound` of a part mean "compute this
//! split", everything else means "go on without the cache for now".

mod admin;
mod layout;
mod lease;
mod listing;
mod manifest;
mod options;
mod plan_record;
mod probe;
mod read;
mod record;
mod retry;
mod saved;
mod scan;
mod schema;
mod snapshot;
mod space;
mod store;
mod tier;
mod write;

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use caju_runtime::stores::io_error;
use caju_runtime::{Clock, IoCounters, Stores, Tasks, blocking, log_failure};
use caju_types::{Error, Fingerprint, Result};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use admin::{
    Collected, Collection, Damage, Dropped, Expired, Inspection, PartLine, SnapshotInfo, Usage, VerifyReport,
};
pub use caju_autocache::{Compression, Encoding, Format, Whole};
pub use listing::SourceListing;
pub use manifest::{SnapshotDescription, SnapshotNews};
pub use options::{CacheOptions, MIN_BUDGET_BYTES};
pub use plan_record::{read_plan_record, write_plan_record};
pub use probe::{Probe, ProbeTask};
pub use read::{PartReader, ReadOptions};
pub use record::{Block, PartFacts, PartMeta};
pub use saved::{SaveState, Saved};
pub use schema::schema_hash;
pub use snapshot::{Member, Name, PartIndex, PutOutcome, SetOutcome, SetRecord, Snapshot};
pub use space::Eviction;
pub use write::{Committed, PartWriter};

use lease::{Hold, Leases};
use read::blocks::{FileVersion, KnownBlock};
use snapshot::SnapshotState;
use space::Space;
use store::Root;
use tier::{DiskTier, MemoryTier};

/// What the keys of our own entries in the files' metadata start with.
const TAGS: &str = "caju.";
const TAG_VERSION: &str = "caju.format";
const TAG_FINGERPRINT: &str = "caju.fingerprint";
const TAG_SPLIT: &str = "caju.split";
const TAG_ATTEMPT: &str = "caju.attempt";
/// The schema with its dictionaries, where the file's own lacks them.
const TAG_SCHEMA: &str = "caju.schema";

/// Mapped files of whose blocks it is remembered what was found out.
const KNOWN_FILES: u64 = 4096;

type KnownFiles = moka::sync::Cache<FileVersion, Arc<Vec<KnownBlock>>>;

/// One process's handle on one cache root.
#[derive(Debug)]
pub struct Cache {
    me: Weak<Cache>,
    root: Arc<Root>,
    options: CacheOptions,
    tasks: Tasks,
    leases: Arc<Leases>,
    states: Mutex<HashMap<Fingerprint, Arc<SnapshotState>>>,
    memory: Option<MemoryTier>,
    kept: Arc<AtomicU64>,
    /// Parts that may be decoded at the same moment: one for each core. More only take the cores' caches from each other;
    /// eight side by side on two cores took a fifth more of their time.
    decoding: Arc<Semaphore>,
    disk: Option<Arc<DiskTier>>,
    known_files: KnownFiles,
    space: Space,
    /// Why a part was last not stored.
    put_failure: Mutex<Option<Error>>,
}

impl Cache {
    /// Opens a cache root and finds out whether its store honours conditional puts (two small writes).
    ///
    /// `writer_id` names this process in leases and records; it must be unique among living *and* dead
    /// processes, so make it of the host, the process id and the start time.
    ///
    /// A root that the store refuses to have written is opened all the same, with a warning: what is stored there is
    /// read, and nothing is stored ([`Cache::is_read_only`]).
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, id or budget, `Unavailable` and so on if the store does not answer.
    pub async fn open(
        stores: &Stores,
        url: &str,
        options: CacheOptions,
        clock: Arc<dyn Clock>,
        writer_id: String,
    ) -> Result<Arc<Cache>> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if writer_id.is_empty() || writer_id.starts_with('.') || !writer_id.chars().all(plain) {
            return Err(Error::invalid(format!(
                "`{writer_id}` cannot name a writer; use letters, digits, `-`, `_` and `.`"
            )));
        }
        CacheOptions::check_budget(options.budget_bytes)?;
        let at = stores.resolve(url).map_err(|e| e.context("cache root"))?;
        if let Some(folder) = at.local.as_ref().filter(|_| !options.read_only) {
            std::fs::create_dir_all(folder).map_err(|e| {
                io_error(format_args!("the cache root {} cannot be made", folder.display()), &e)
            })?;
        }
        let root = Arc::new(Root::open(at, &options, clock, &writer_id).await?);
        let disk = match options.disk_tier.clone() {
            None => None,
            Some((folder, most)) => Some(Arc::new(open_disk_tier(folder, most).await?)),
        };
        let leases = Arc::new(Leases::new(Arc::clone(&root), writer_id, options.lease_ttl));
        let cache = Arc::new_cyclic(|me| Cache {
            me: Weak::clone(me),
            root,
            tasks: Tasks::new(),
            leases,
            states: Mutex::default(),
            memory: MemoryTier::new(options.memory_tier_bytes),
            kept: Arc::default(),
            decoding: Arc::new(Semaphore::new(cores())),
            disk,
            known_files: moka::sync::Cache::new(KNOWN_FILES),
            space: Space::new(options.budget_bytes, options.usage_refresh),
            put_failure: Mutex::default(),
            options,
        });
        cache.keep_uses();
        Ok(cache)
    }

    /// The handle on the snapshot of a prefix, whether it exists or not. Cheap.
    ///
    /// # Panics
    /// Never: a cache exists only inside the `Arc` that [`Cache::open`] gave.
    pub fn snapshot(self: &Arc<Self>, prefix: &Fingerprint) -> Snapshot {
        Snapshot::new(Arc::clone(self), *prefix)
    }

    /// Requests and bytes at the store, so far. Reading from the memory or disk tier does not count.
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.root.io)
    }

    /// The root's URL.
    pub fn url(&self) -> &str {
        self.root.url()
    }

    /// Whether nothing is written below the root: as the options say, or because the store refuses it.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.root.refusal().is_some()
    }

    /// Why this process last failed to store a part; none if it never did, or the root is read only as asked for.
    pub fn put_failure(&self) -> Option<Error> {
        self.put_failure.lock().clone().or_else(|| self.root.refusal().cloned())
    }

    pub(crate) fn failed_to_put(&self, error: &Error) {
        *self.put_failure.lock() = Some(error.clone());
    }

    /// Why nothing is written below the root.
    pub(crate) fn refusal(&self) -> Error {
        self.root.refusal().cloned().unwrap_or_else(|| {
            Error::permission_denied(format!(
                "the cache root {} was opened for reading only",
                self.root.url()
            ))
        })
    }

    /// The id of this process in leases and records.
    pub fn writer_id(&self) -> &str {
        self.leases.id()
    }

    /// The settings.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// Bytes of rows that tasks keep until it is decided whether they are stored: tasks count here what they keep, and all
    /// of them together keep no more than the memory tier may hold.
    pub fn kept_bytes(&self) -> &Arc<AtomicU64> {
        &self.kept
    }

    /// Bytes held by the memory tier and by the disk tier.
    pub fn tier_bytes(&self) -> (u64, u64) {
        (self.memory.as_ref().map_or(0, MemoryTier::bytes), self.disk.as_ref().map_or(0, |d| d.bytes()))
    }

    /// Ends this handle's work: folds commit records into manifests, writes what was read, gives the lease
    /// back and stops the tasks, all within `bound`. Without it others wait for the lease to expire.
    ///
    /// # Errors
    /// The first thing that failed; nothing is lost then.
    pub async fn close(&self, bound: Duration) -> Result<()> {
        let work = async {
            if self.is_read_only() {
                return Ok(());
            }
            let states: Vec<_> = self.states.lock().values().cloned().collect();
            let mut result = Ok(());
            for state in states {
                result = result.and(state.fold(self).await);
                result = result.and(state.flush_uses(self).await);
                result = result.and(self.fold_uses(state.of).await);
            }
            result.and(self.leases.clean().await)
        };
        let result = tokio::select! {
            result = work => result,
            () = self.root.clock.sleep(bound) => Err(Error::deadline(format!(
                "{}: the cache was not closed in time", self.root.url()
            ))),
        };
        self.tasks.shutdown(bound).await;
        let ended = tokio::select! {
            ended = self.leases.end() => ended,
            () = self.root.clock.sleep(bound) => Err(Error::deadline(format!(
                "{}: the lease was not given back in time", self.root.url()
            ))),
        };
        result.and(ended)
    }

    fn state(&self, of: Fingerprint) -> Arc<SnapshotState> {
        let mut states = self.states.lock();
        Arc::clone(states.entry(of).or_insert_with(|| Arc::new(SnapshotState::new(of))))
    }

    /// Marks a snapshot as being read. The lease object is written in the background: a reader does not
    /// wait for it.
    fn hold_for_reading(&self, of: Fingerprint) -> Hold {
        let (hold, first) = self.leases.hold(of);
        if first && !self.is_read_only() {
            let (leases, tasks) = (Arc::clone(&self.leases), self.tasks.clone());
            self.tasks.background("telling of a reader", log_failure, async move {
                let said = async {
                    leases.start(&tasks).await?;
                    leases.renew().await
                };
                if let Err(error) = said.await {
                    tracing::debug!(%error, "the cache was not told that a snapshot is being read");
                }
                Ok(())
            });
        }
        hold
    }

    /// Writes what was read from snapshots now and then.
    fn keep_uses(self: &Arc<Self>) {
        if self.is_read_only() {
            return;
        }
        let (me, clock, every) = (
            Weak::clone(&self.me),
            Arc::clone(&self.root.clock),
            self.options.lease_ttl.max(Duration::from_secs(1)),
        );
        self.tasks.background("recording what is read", log_failure, async move {
            loop {
                clock.sleep(every).await;
                let Some(cache) = me.upgrade() else { return Ok(()) };
                let states: Vec<_> = cache.states.lock().values().cloned().collect();
                for state in states {
                    if let Err(error) = state.flush_uses(&cache).await {
                        tracing::debug!(%error, "the use of a snapshot was not recorded");
                    }
                }
            }
        });
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

async fn open_disk_tier(folder: std::path::PathBuf, most: u64) -> Result<DiskTier> {
    let name = folder.display().to_string();
    let opened = blocking("opening the disk tier", move || DiskTier::open(folder, most)).await;
    match opened {
        Ok(Ok(tier)) => Ok(tier),
        Ok(Err(e)) => Err(Error::unavailable(format!("the disk tier {name} cannot be used: {e}"))),
        Err(e) => Err(e.context(format!("the disk tier {name}"))),
    }
}
