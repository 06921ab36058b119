//! The worker's identity at the dispatcher.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_runtime::{Stores, random_secret};
use caju_types::{Error, ErrorKind, Result, TaskId, WorkerId};
use caju_wire::{Dispatcher, DispatcherLink, is_transient};
use tokio::sync::watch;

/// A worker's connection to the dispatcher, and its current identifier there.
pub(crate) struct Identity {
    pub(crate) link: DispatcherLink,
    pub(crate) address: String,
    tags: Vec<String>,
    cores: u32,
    version: String,
    stores: Arc<Stores>,
    /// What the last registration gave. Calls that wait for the next one subscribe.
    registration: watch::Sender<Registration>,
    heartbeat_ms: AtomicU64,
    draining: AtomicBool,
}

/// A registration with the dispatcher: both parts go into every call, and change together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The identifier that the dispatcher gave.
    pub(crate) id: WorkerId,
    /// The secret that authenticates calls of this worker. The process draws it and proposes it when it registers, so a
    /// registration whose answer was lost can be repeated, and a dispatcher without its state learns the same secret.
    pub(crate) secret: Bytes,
    /// The number of registrations so far. A dispatcher without its state may give the same identifier again.
    count: u64,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("address", &self.address)
            .field("id", &self.id())
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
    ) -> Result<Self> {
        let secret = random_secret()?.to_vec().into();
        let unregistered = Registration { secret, ..Registration::default() };
        Ok(Self {
            link,
            address,
            tags,
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            version,
            stores,
            registration: watch::Sender::new(unregistered),
            heartbeat_ms: AtomicU64::new(1000),
            draining: AtomicBool::new(false),
        })
    }

    /// The identifier that the dispatcher gave.
    pub(crate) fn id(&self) -> WorkerId {
        self.registration.borrow().id
    }

    /// The credentials of every call to the dispatcher.
    pub(crate) fn registration(&self) -> Registration {
        self.registration.borrow().clone()
    }

    /// Waits until the worker has registered again since `refused` was refused, as it does when the dispatcher was
    /// started again without its state. False if it has not within two heartbeats.
    pub(crate) async fn has_registered_since(&self, refused: &Registration) -> bool {
        let mut news = self.registration.subscribe();
        let again = news.wait_for(|now| now != refused);
        let again = tokio::time::timeout(2 * self.heartbeat(), again).await;
        again.is_ok_and(|again| again.is_ok())
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

    /// Reports to the dispatcher that this worker takes no new tasks; or that it leaves now.
    ///
    /// # Errors
    /// `Unavailable` if the dispatcher does not answer.
    pub(crate) async fn leave(&self, now: bool) -> Result<()> {
        let Registration { id, secret, .. } = self.registration();
        let request = v1::DrainWorkerRequest { worker_id: id.0, secret, leaving: now };
        let call = |mut d: Dispatcher| async move { d.drain_worker(request).await };
        self.link.call(Duration::ZERO, call).await.map(|_| ())
    }

    /// Registers, and retries for the connect timeout if the dispatcher does not answer.
    pub(crate) async fn register(&self, retry_timeout: Duration) -> Result<()> {
        let request = v1::RegisterWorkerRequest {
            address: self.address.clone(),
            tags: self.tags.clone(),
            cores: self.cores,
            version: self.version.clone(),
            secret: self.registration().secret,
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.register_worker(request).await }
        };
        let answer = self.link.retry(retry_timeout, Duration::ZERO, call).await?;
        self.stores.allow_cache(&answer.cache_url)?;
        self.heartbeat_ms.store(answer.heartbeat_ms, Ordering::Relaxed);
        let count = self.registration().count + 1;
        let registration = Registration { id: WorkerId(answer.worker_id), secret: answer.secret, count };
        self.registration.send_replace(registration);
        Ok(())
    }
}

/// The failure of a call for a running task as the loss of the task, where neither the rows nor the epoch are to blame: the
/// dispatcher refused the worker, or could not be reached in time. When it is back, other tasks take the splits over.
pub(crate) fn failed_call_as_loss(id: TaskId, failed: Error) -> Error {
    if is_transient(&failed) {
        return Error::cancelled(format!("{id} is abandoned: {}", failed.message()));
    }
    refused_as_loss(id, failed)
}

/// A refused call as the loss of its task. The dispatcher knows another process under this worker's address, or has not
/// taken this worker's new registration yet: the task's rows come from another task, and the epoch has not failed.
pub(crate) fn refused_as_loss(id: TaskId, refused: Error) -> Error {
    if refused.kind() != ErrorKind::PermissionDenied {
        return refused;
    }
    Error::cancelled(format!(
        "{id} is abandoned, as its worker is not the one that the dispatcher knows: {}",
        refused.message()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatcher_that_is_away_costs_a_task_and_not_its_epoch() {
        let id = TaskId(7);
        for error in [Error::unavailable("no dispatcher at a:1"), Error::deadline("it does not answer")] {
            let e = failed_call_as_loss(id, error.clone());
            assert_eq!(e.kind(), ErrorKind::Cancelled);
            assert!(e.message().contains(error.message()), "{e}");
        }
        assert_eq!(
            failed_call_as_loss(id, Error::new(ErrorKind::PermissionDenied, "no")).kind(),
            ErrorKind::Cancelled
        );
        assert_eq!(failed_call_as_loss(id, Error::data_loss("a split")).kind(), ErrorKind::DataLoss);
    }
}
