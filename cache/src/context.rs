//! What all work on one open cache root shares: the store, the settings, the lease, the tiers and the budget.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;

use caju_runtime::stores::io_error;
use caju_runtime::{Clock, OrderedMutex, Stores, Tasks, blocking, log_failure};
use caju_types::{Error, Fingerprint, Result};
use tokio::sync::Semaphore;

use crate::budget::Budget;
use crate::lease::{Hold, Leases};
use crate::locks;
use crate::options::CacheOptions;
use crate::scan::Scan;
use crate::store::Root;
use crate::tier::{DiskTier, MemoryTier};
use crate::verified::VerifiedFiles;

/// An open cache root of one process.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) root: Arc<Root>,
    pub(crate) options: CacheOptions,
    pub(crate) tasks: Tasks,
    pub(crate) leases: Arc<Leases>,
    pub(crate) budget: Budget,
    pub(crate) memory: Option<MemoryTier>,
    pub(crate) disk: Option<Arc<DiskTier>>,
    /// One permit per core, held while a batch of a part is decoded. More threads than cores only evict one another's
    /// processor caches: eight threads on two cores took a fifth more CPU time.
    pub(crate) decoding: Arc<Semaphore>,
    pub(crate) verified: VerifiedFiles,
    /// Why a part was last not stored.
    put_failure: OrderedMutex<Option<Error>>,
}

impl Context {
    /// Opens a root; see [`Cache::open`](crate::Cache::open).
    pub(crate) async fn open(
        stores: &Stores,
        url: &str,
        options: CacheOptions,
        clock: Arc<dyn Clock>,
        writer_id: String,
    ) -> Result<Self> {
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
                io_error(format_args!("the cache root {} cannot be created", folder.display()), &e)
            })?;
        }
        let root = Arc::new(Root::open(at, &options, clock, &writer_id).await?);
        let disk = match options.disk_tier.clone() {
            None => None,
            Some((folder, capacity)) => Some(Arc::new(open_disk_tier(folder, capacity).await?)),
        };
        let leases = Arc::new(Leases::new(Arc::clone(&root), writer_id, options.lease_ttl));
        Ok(Self {
            root,
            tasks: Tasks::new(),
            leases,
            budget: Budget::new(options.budget_bytes, options.usage_refresh),
            memory: MemoryTier::new(options.memory_tier_bytes),
            disk,
            decoding: Arc::new(Semaphore::new(cores())),
            verified: VerifiedFiles::new(),
            put_failure: OrderedMutex::new(locks::PUT_FAILURE, None),
            options,
        })
    }

    /// Whether nothing is written below the root: as the options say, or because the store refuses it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.root.refusal().is_some()
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

    /// Why this process last failed to store a part, or why the store refuses all parts.
    pub(crate) fn put_failure(&self) -> Option<Error> {
        self.put_failure.lock().clone().or_else(|| self.root.refusal().cloned())
    }

    pub(crate) fn record_put_failure(&self, error: &Error) {
        *self.put_failure.lock() = Some(error.clone());
    }

    /// Whether parts are mapped. A part for whose file the kernel grants no lease is read all the same.
    pub(crate) fn maps(&self) -> bool {
        self.options.mmap && self.root.is_mappable()
    }

    /// Lists the root, by snapshot.
    pub(crate) async fn scan_all(&self) -> Result<BTreeMap<Fingerprint, Scan>> {
        Ok(Scan::all(&self.root.layout, self.root.list(&self.root.layout.base()).await?))
    }

    /// Lists one snapshot's folder.
    pub(crate) async fn scan(&self, of: Fingerprint) -> Result<Scan> {
        let objects = self.root.list(&self.root.layout.folder(of)).await?;
        Ok(Scan::of(&self.root.layout, of, objects))
    }

    /// Marks a snapshot as being read until the guard is dropped. The lease object is written in the background: no
    /// reader waits for it.
    pub(crate) fn hold_for_reading(&self, of: Fingerprint) -> Hold {
        let (hold, first) = self.leases.hold(of);
        if first && !self.is_read_only() {
            let (leases, tasks) = (Arc::clone(&self.leases), self.tasks.clone());
            self.tasks.background("announcing a reader", log_failure, async move {
                let announced = async {
                    leases.start(&tasks).await?;
                    leases.renew().await
                };
                if let Err(error) = announced.await {
                    tracing::debug!(%error, "the lease could not be written: it does not name a snapshot that is being read");
                }
                Ok(())
            });
        }
        hold
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

async fn open_disk_tier(folder: std::path::PathBuf, capacity: u64) -> Result<DiskTier> {
    let name = folder.display().to_string();
    let opened = blocking("opening the disk tier", move || DiskTier::open(folder, capacity)).await;
    match opened {
        Ok(Ok(tier)) => Ok(tier),
        Ok(Err(e)) => Err(Error::unavailable(format!("the disk tier {name} cannot be used: {e}"))),
        Err(e) => Err(e.context(format!("the disk tier {name}"))),
    }
}
