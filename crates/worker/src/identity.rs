//! Who this worker is, to the dispatcher.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_runtime::Stores;
use caju_types::{Result, WorkerId};
use caju_wire::{Dispatcher, DispatcherLink};
use parking_lot::Mutex;

/// A worker's line to the dispatcher and its present identifier there.
pub(crate) struct Identity {
    pub(crate) link: DispatcherLink,
    pub(crate) address: String,
    tags: Vec<String>,
    cores: u32,
    version: String,
    stores: Arc<Stores>,
    id: AtomicU64,
    heartbeat_ms: AtomicU64,
    draining: AtomicBool,
    /// What proves to the dispatcher that a call is this worker's.
    secret: Mutex<Bytes>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("address", &self.address)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Identity {
    pub(crate) fn new(
        link: DispatcherLink,
        address: String,
        tags: Vec<String>,
        cores: usize,
        version: String,
        stores: Arc<Stores>,
    ) -> Self {
        Self {
            link,
            address,
            tags,
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            version,
            stores,
            id: AtomicU64::new(0),
            heartbeat_ms: AtomicU64::new(1000),
            draining: AtomicBool::new(false),
            secret: Mutex::default(),
        }
    }

    /// The identifier that the dispatcher gave.
    pub(crate) fn id(&self) -> WorkerId {
        WorkerId(self.id.load(Ordering::Acquire))
    }

    /// What every call to the dispatcher carries.
    pub(crate) fn secret(&self) -> Bytes {
        self.secret.lock().clone()
    }

    /// How often to report.
    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.load(Ordering::Relaxed).clamp(20, 60_000))
    }

    /// Whether no new tasks are taken.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Registers, looking for the dispatcher for some time.
    pub(crate) async fn register(&self, patience: Duration) -> Result<()> {
        let request = v1::RegisterWorkerRequest {
            address: self.address.clone(),
            tags: self.tags.clone(),
            cores: self.cores,
            version: self.version.clone(),
            secret: self.secret(),
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.register_worker(request).await }
        };
        let answer = self.link.retry(patience, Duration::ZERO, call).await?;
        self.stores.allow_cache(&answer.cache_url)?;
        self.heartbeat_ms.store(answer.heartbeat_ms, Ordering::Relaxed);
        *self.secret.lock() = answer.secret;
        self.id.store(answer.worker_id, Ordering::Release);
        Ok(())
    }
}
