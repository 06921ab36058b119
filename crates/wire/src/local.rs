//! The data plane within one process: chunks change hands without a socket.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use caju_proto::v1::SplitCount;
use caju_types::{ClientId, Result, TaskId};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{Chunk, SplitFacts};

/// A worker in this process, as readers see it.
#[async_trait]
pub trait LocalWorker: Send + Sync + std::fmt::Debug {
    /// Opens a task for reading, starting it if this worker has not yet. `ticket`: the client's right to read it.
    /// `consumer`: which consumer of the job it is, if the job has such.
    ///
    /// # Errors
    /// Whatever keeps the task from being started.
    async fn open(
        &self,
        task: TaskId,
        client: ClientId,
        ticket: &[u8],
        consumer: Option<u32>,
    ) -> Result<Box<dyn LocalTask>>;
}

/// A task of a worker in this process. Dropping it ends the reading.
#[async_trait]
pub trait LocalTask: Send {
    /// The next chunk; `None` when the task has emitted everything. A chunk that is returned counts as received.
    ///
    /// # Errors
    /// The task's failure.
    async fn next(&mut self) -> Result<Option<Chunk>>;

    /// The columns that the task was bound to; none if it sends no rows any more.
    fn schema(&self) -> Option<SchemaRef>;

    /// Rows that the task emitted, per split, to all of its readers; known at its end.
    fn emitted(&self) -> Option<Vec<SplitCount>>;

    /// What is known of its splits since the last call. It covers the splits of each chunk that was returned.
    fn take_split_facts(&mut self) -> SplitFacts;
}

/// The workers of this process by their registered address. Clones share the list.
///
/// Workers add themselves to it, and clients look an address up here before they dial it.
#[derive(Clone, Debug, Default)]
pub struct LocalWorkers {
    by_address: Arc<Mutex<HashMap<String, Arc<dyn LocalWorker>>>>,
    /// How many workers were ever entered.
    entered: Arc<watch::Sender<u64>>,
}

impl LocalWorkers {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a worker, replacing one of the same address.
    pub fn insert(&self, address: impl Into<String>, worker: Arc<dyn LocalWorker>) {
        self.by_address.lock().insert(address.into(), worker);
        self.entered.send_modify(|n| *n += 1);
    }

    /// Strikes a worker off.
    pub fn remove(&self, address: &str) {
        self.by_address.lock().remove(address);
    }

    /// The addresses of all workers of this process, in their order.
    pub fn addresses(&self) -> Vec<String> {
        let mut all: Vec<String> = self.by_address.lock().keys().cloned().collect();
        all.sort_unstable();
        all
    }

    /// Sees that a worker is entered.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.entered.subscribe()
    }

    /// The worker at an address, if it lives in this process.
    pub fn get(&self, address: &str) -> Option<Arc<dyn LocalWorker>> {
        self.by_address.lock().get(address).cloned()
    }
}
