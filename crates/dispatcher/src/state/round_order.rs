//! The order of rounds, as a consumer that has left knew it.
//!
//! The order of consumers that read in rounds is not in the journal: consumers repeat the steps that others may not know
//! (`control/rounds.rs`). A consumer that leaves at its end repeats nothing any more, so its last steps are kept here. Without
//! them a dispatcher that is restarted in this moment could give the remaining consumers another order.

use caju_types::TaskId;
use serde::{Deserialize, Serialize};

/// A step in the order of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundStep {
    /// The next rounds are of this task.
    Rounds {
        /// Which.
        task: TaskId,
        /// How many.
        rounds: u64,
    },
    /// The last rounds of the epoch, which the remainders of the tasks make.
    #[serde(rename = "tail")]
    RemainderRounds {
        /// Up to this one.
        through: u64,
    },
}

impl RoundStep {
    /// By how much it moves the position of a consumer.
    pub fn distance(self) -> u64 {
        match self {
            RoundStep::Rounds { rounds, .. } => rounds,
            RoundStep::RemainderRounds { .. } => 1,
        }
    }
}

/// By how much steps move the position of a consumer.
pub fn span<'a>(steps: impl IntoIterator<Item = &'a RoundStep>) -> u64 {
    steps.into_iter().fold(0, |sum: u64, step| sum.saturating_add(step.distance()))
}

/// What a consumer knows of the order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownOrder {
    /// What it has passed to its user.
    pub position: u64,
    /// The steps before that position which some consumer may not know.
    pub recent: Vec<RoundStep>,
    /// The last rounds of the epoch that it has passed on.
    #[serde(rename = "tail_through")]
    pub remainder_rounds_through: u64,
}
