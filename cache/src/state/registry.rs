//! The states of all snapshots that this process has met.

use std::collections::HashMap;
use std::sync::Arc;

use caju_runtime::OrderedMutex;
use caju_types::Fingerprint;

use super::snapshot_state::SnapshotState;
use crate::context::Context;
use crate::locks;

/// One state per snapshot, created when it is first asked for.
#[derive(Debug)]
pub(crate) struct Snapshots {
    ctx: Arc<Context>,
    states: OrderedMutex<HashMap<Fingerprint, Arc<SnapshotState>>>,
}

impl Snapshots {
    pub(crate) fn new(ctx: Arc<Context>) -> Self {
        Self { ctx, states: OrderedMutex::new(locks::SNAPSHOTS, HashMap::new()) }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.ctx
    }

    pub(crate) fn get(&self, of: Fingerprint) -> Arc<SnapshotState> {
        let mut states = self.states.lock();
        Arc::clone(states.entry(of).or_insert_with(|| Arc::new(SnapshotState::new(of))))
    }

    pub(crate) fn all(&self) -> Vec<Arc<SnapshotState>> {
        self.states.lock().values().cloned().collect()
    }
}
