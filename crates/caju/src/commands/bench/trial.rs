//! One measured job.

use caju_planner::{Choice, Decision};
use serde::{Deserialize, Serialize};

use super::stats::median;
use crate::report::EpochReport;

/// One job under one policy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// The policy.
    pub(crate) policy: String,
    /// Which round.
    pub(crate) repeat: u32,
    /// Whether the cache held the snapshots of the cold job of the same round.
    pub(crate) warm: bool,
    /// Its epochs.
    pub(crate) epochs: Vec<EpochReport>,
    /// Bytes in the cache afterwards.
    pub(crate) stored_bytes: u64,
    /// What a planning policy chose.
    pub(crate) choice: Option<Choice>,
    /// The whole decision: the prediction for every option, and the reason.
    pub(crate) decision: Option<Decision>,
    /// CPU seconds of the process.
    pub(crate) cpu_s: f64,
}

impl Trial {
    /// Seconds of all epochs.
    pub(crate) fn total_s(&self) -> f64 {
        self.epochs.iter().map(|e| e.wall_s).sum()
    }

    /// Seconds of the given number of epochs. Epochs that were not measured count like the last ones.
    pub(crate) fn horizon_s(&self, epochs: u64) -> f64 {
        let more = epochs.saturating_sub(self.epochs.len() as u64) as f64;
        self.total_s() + more * self.steady_s()
    }

    /// Seconds of a steady epoch: the median of the last half, when everything is stored and the decision was checked.
    pub(crate) fn steady_s(&self) -> f64 {
        let last = (self.epochs.len().saturating_sub(1) / 2).max(1);
        let times = self.epochs.iter().rev().take(last).map(|e| e.wall_s);
        median(times.collect())
    }

    /// Rows per second of a steady epoch.
    pub(crate) fn steady_rows_per_s(&self) -> f64 {
        let rows = self.epochs.last().map_or(0, |e| e.rows);
        rows as f64 / self.steady_s().max(1e-9)
    }
}
