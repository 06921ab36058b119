//! Notifiers: who waits for news of an iteration, and who for its splits.

use std::collections::HashMap;
use std::sync::Arc;

use crate::locks;
use caju_runtime::OrderedMutex;
use caju_types::IterationId;
use tokio::sync::watch;

/// Wakes those who wait at an iteration. Readers wait for news of it, and tasks for splits. Splits are found and leased much
/// more often than there are news, so readers are not woken for them.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    news: watch::Sender<()>,
    splits: watch::Sender<()>,
}

impl Notifier {
    /// The iteration changed: wakes all waiters.
    pub(super) fn notify(&self) {
        self.news.send_replace(());
        self.splits.send_replace(());
    }

    /// There may be splits to lease.
    pub(super) fn notify_splits(&self) {
        self.splits.send_replace(());
    }
}

/// The notifiers of all iterations that somebody waits for.
pub(super) struct Notifiers {
    by_iteration: OrderedMutex<HashMap<IterationId, Arc<Notifier>>>,
}

impl Default for Notifiers {
    fn default() -> Self {
        Self { by_iteration: OrderedMutex::new(locks::NOTIFIERS, HashMap::new()) }
    }
}

impl Notifiers {
    /// The notifier of an iteration.
    pub(super) fn of(&self, id: IterationId) -> Arc<Notifier> {
        let mut all = self.by_iteration.lock();
        Arc::clone(all.entry(id).or_default())
    }

    /// Waits for news from now on.
    pub(super) fn subscribe(&self, id: IterationId) -> watch::Receiver<()> {
        self.of(id).news.subscribe()
    }

    /// Waits from now on for splits, and for news.
    pub(super) fn subscribe_splits(&self, id: IterationId) -> watch::Receiver<()> {
        self.of(id).splits.subscribe()
    }

    /// Wakes those who wait.
    pub(super) fn notify(&self, id: IterationId) {
        if let Some(notifier) = self.by_iteration.lock().get(&id) {
            notifier.notify();
        }
    }

    /// Forgets an iteration that was removed.
    pub(super) fn forget(&self, id: IterationId) {
        self.by_iteration.lock().remove(&id);
    }
}
