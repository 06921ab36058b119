//! Workers, as they should be; what they report is elsewhere.

use caju_types::{Secret, WorkerId};
use caju_wire::is_in_process;
use serde::{Deserialize, Serialize};

use super::TargetWorkers;

/// The tag of a worker that shares its machine with a training process: other processes do not read from it, so that
/// trainers do not take each other's CPUs.
pub const COLOCATED: &str = "COLOCATED";

/// A registered worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its identifier; stays with the address.
    pub id: WorkerId,
    /// `host:port` that clients dial.
    pub address: String,
    /// How often it has come, beginning with 1.
    pub incarnation: u32,
    /// Enters the seed under `off`.
    pub slot: u32,
    /// Labels. [`COLOCATED`] has a meaning, others are shown.
    pub tags: Vec<String>,
    /// CPU cores.
    pub cores: u32,
    /// The version of caju that runs there.
    pub version: String,
    /// Whether it gets tasks.
    pub state: WorkerState,
    /// What every call of this incarnation carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// It is lost because it said that it leaves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// It came while another worker may have been dying: under `off` it has no splits of its own until that is known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}

/// Whether a worker gets tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It does.
    Active,
    /// It finishes those that it has, then leaves.
    Draining,
    /// It is silent.
    Lost {
        /// Since when, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
}

impl WorkerState {
    /// The state's name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerState::Active => "active",
            WorkerState::Draining => "draining",
            WorkerState::Lost { .. } => "lost",
        }
    }
}

impl Worker {
    /// Whether it gets new tasks.
    pub fn is_active(&self) -> bool {
        self.state == WorkerState::Active
    }

    /// Whether it is silent.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, WorkerState::Lost { .. })
    }

    /// Whether its end is no death: it drains, or it said that it leaves. No split is held to be the cause.
    pub(super) fn ends_in_order(&self) -> bool {
        self.left || self.state == WorkerState::Draining
    }

    /// The state's name for people.
    pub fn state_name(&self) -> &'static str {
        if self.left { "left" } else { self.state.as_str() }
    }

    /// Whether it is in a reader's process and has no port, so that no other process reads from it. Whoever starts workers to
    /// reach a target did not start it.
    pub fn is_in_reader(&self) -> bool {
        is_in_process(&self.address)
    }

    /// Whether only readers in its own process read from it, in a job with this target.
    pub fn is_local_only(&self, target: TargetWorkers) -> bool {
        let colocated = || self.tags.iter().any(|t| t.eq_ignore_ascii_case(COLOCATED));
        self.is_in_reader()
            || match target {
                TargetWorkers::Auto => colocated(),
                TargetWorkers::Any => false,
                TargetWorkers::Local => true,
            }
    }

    /// The name for messages: the identifier and the address.
    pub fn describe(&self) -> String {
        format!("{} at {}", self.id, self.address)
    }
}
