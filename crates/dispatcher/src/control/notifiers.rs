//! Notifiers: who waits for news of an iteration.

use std::collections::HashMap;
use std::sync::Arc;

use caju_runtime::OrderedMutex;
use caju_types::IterationId;
use tokio::sync::watch;

use super::locks;

/// Wakes those who wait for news of an iteration.
pub(super) type Notifier = Arc<watch::Sender<()>>;

/// The notifiers of all iterations that somebody waits for.
pub(super) struct Notifiers {
    by_iteration: OrderedMutex<HashMap<IterationId, Notifier>>,
}

impl Default for Notifiers {
    fn default() -> Self {
        Self { by_iteration: OrderedMutex::new(locks::NOTIFIERS, HashMap::new()) }
    }
}

impl Notifiers {
    /// The notifier of an iteration.
    pub(super) fn of(&self, id: IterationId) -> Notifier {
        let mut all = self.by_iteration.lock();
        Arc::clone(all.entry(id).or_insert_with(|| Arc::new(watch::Sender::new(()))))
    }

    /// Waits for news from now on.
    pub(super) fn subscribe(&self, id: IterationId) -> watch::Receiver<()> {
        self.of(id).subscribe()
    }

    /// Wakes those who wait.
    pub(super) fn notify(&self, id: IterationId) {
        if let Some(notifier) = self.by_iteration.lock().get(&id) {
            notifier.send_replace(());
        }
    }

    /// Forgets an iteration that is gone.
    pub(super) fn forget(&self, id: IterationId) {
        self.by_iteration.lock().remove(&id);
    }
}
