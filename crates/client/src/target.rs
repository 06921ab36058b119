//! A task that a reader connects to.

use caju_proto::Bytes;
use caju_types::{ClientId, TaskId};

/// The task, its worker's address, and the right to read it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) task: TaskId,
    pub(crate) client: ClientId,
    /// The secret that entitles this client to read the task.
    pub(crate) ticket: Bytes,
    pub(crate) address: String,
    /// The feed of splits that the task draws from.
    pub(crate) slot: u32,
    /// Which consumer of the job this client is.
    pub(crate) consumer: Option<u32>,
}

impl Target {
    /// The worker and the task, for messages.
    pub(crate) fn peer(&self) -> String {
        format!("worker {} ({})", self.address, self.task)
    }
}
