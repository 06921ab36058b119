//! The observer to which readers report what reading a split costs.
//!
//! Readers move between threads and through libraries that have no notion of a split. The observer is therefore
//! bound to the asynchronous task that reads, and readers look it up where they touch a store.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

tokio::task_local! {
    static OBSERVER: Arc<dyn ReadObserver>;
}

/// Counts what is read from the stores of a source.
pub trait ReadObserver: Send + Sync {
    /// One request was answered with `bytes` bytes; it took `elapsed`.
    fn on_read(&self, bytes: u64, elapsed: Duration);

    /// Reading used `cpu` of a thread other than the caller's.
    fn on_cpu(&self, cpu: Duration);
}

/// Runs a future; what the sources read in it is reported to `observer`.
pub async fn with_read_observer<F: Future>(observer: Arc<dyn ReadObserver>, reading: F) -> F::Output {
    OBSERVER.scope(observer, reading).await
}

/// The observer of this asynchronous task, if it has one.
pub(crate) fn current() -> Option<Arc<dyn ReadObserver>> {
    OBSERVER.try_with(Arc::clone).ok()
}
