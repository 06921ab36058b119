//! What tasks report of their measurements: plain structs, as the profile builder reads them.

use caju_types::TaskId;
use serde::{Deserialize, Serialize};

use crate::encoding::Encoding;

/// What a stage is to the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageKind {
    /// Rows in, rows out, several chunks at once: the source and all split-local stages but those below.
    #[default]
    Rows,
    /// A split-local stage that runs one at a time on a worker: `sleep`, `burn`.
    Serial,
    /// A stage that sees the rows of many splits as one stream, one chunk at a time; what goes in comes out later.
    CrossSplit,
    /// A cross-split stage that may end the epoch before all splits are read: `take`.
    Take,
    /// An `autocache` hint.
    Hint,
    /// Delivery of the task's elements.
    Output,
}

impl StageKind {
    /// Whether the stage sees the rows of many splits as one stream.
    pub(crate) fn is_cross_split(self) -> bool {
        matches!(self, Self::CrossSplit | Self::Take)
    }
}

/// What one stage of a task did.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StageReport {
    /// Its name, unique in the task.
    pub name: String,
    /// What it is to the planner.
    pub kind: StageKind,
    /// Rows that went in.
    pub rows_in: u64,
    /// Rows that came out.
    pub rows_out: u64,
    /// Bytes that came out.
    pub bytes_out: u64,
    /// CPU seconds.
    pub cpu_s: f64,
    /// Seconds of wall time in the stage, summed over threads.
    pub busy_s: f64,
    /// Seconds that it waited for input.
    pub wait_in_s: f64,
    /// Seconds that it waited for space downstream.
    pub wait_out_s: f64,
}

impl StageReport {
    /// Adds the figures of the same stage of another task.
    fn add(&mut self, other: &Self) {
        self.rows_in = self.rows_in.saturating_add(other.rows_in);
        self.rows_out = self.rows_out.saturating_add(other.rows_out);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.cpu_s += other.cpu_s;
        self.busy_s += other.busy_s;
        self.wait_in_s += other.wait_in_s;
        self.wait_out_s += other.wait_out_s;
    }

    /// Subtracts earlier figures of the same stage.
    pub(crate) fn subtract(&mut self, earlier: &Self) {
        self.rows_in = self.rows_in.saturating_sub(earlier.rows_in);
        self.rows_out = self.rows_out.saturating_sub(earlier.rows_out);
        self.bytes_out = self.bytes_out.saturating_sub(earlier.bytes_out);
        self.cpu_s = (self.cpu_s - earlier.cpu_s).max(0.0);
        self.busy_s = (self.busy_s - earlier.busy_s).max(0.0);
        self.wait_in_s = (self.wait_in_s - earlier.wait_in_s).max(0.0);
        self.wait_out_s = (self.wait_out_s - earlier.wait_out_s).max(0.0);
    }
}

/// Sums the figures of stages of the same name, in the order of first appearance.
pub(crate) fn add_stages(sums: &mut Vec<StageReport>, more: &[StageReport]) {
    for stage in more {
        match sums.iter_mut().find(|s| s.name == stage.name) {
            Some(sum) => sum.add(stage),
            None => sums.push(stage.clone()),
        }
    }
}

/// One encoding of some rows at a hint, as a task tried it against the real cache store.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeReport {
    /// The hint.
    pub hint: String,
    /// The encoding.
    pub encoding: Encoding,
    /// Rows that were encoded.
    pub rows: u64,
    /// Bytes that were stored.
    pub bytes: u64,
    /// Bytes of the rows before they were encoded; 0 from workers that do not report them.
    pub raw_bytes: u64,
    /// CPU seconds to encode.
    pub encode_cpu_s: f64,
    /// CPU seconds to read back and decode.
    pub decode_cpu_s: f64,
    /// Bytes per second that the store took; 0 if this probe did not measure the store.
    pub write_bytes_per_s: f64,
    /// Bytes per second that the store gave; 0 if this probe did not measure the store.
    pub read_bytes_per_s: f64,
}

/// What a task measured so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskReport {
    /// The task.
    pub task: TaskId,
    /// Its stages: the source first, the output last.
    pub stages: Vec<StageReport>,
    /// Encodings that were tried.
    pub probes: Vec<ProbeReport>,
    /// Whether the worker looked for existing parts at the hints: their encodings are among the candidates.
    pub checked_parts: bool,
    /// Whether every candidate encoding was tried.
    pub all_probed: bool,
    /// Seconds since the task began.
    pub elapsed_s: f64,
    /// Threads that compute for the task; shared ones count by their fraction.
    pub threads: f64,
    /// Splits that were begun and not read from a snapshot.
    pub splits_computed: u64,
    /// Splits that were begun and read from a snapshot.
    pub splits_read: u64,
    /// Bytes that the source's store gave.
    pub source_bytes: u64,
    /// Seconds that its requests took, summed.
    pub source_s: f64,
    /// Requests to the source's store that may run at once.
    pub source_requests_at_once: u64,
    /// Bytes that went to readers over sockets.
    pub sent_bytes: u64,
    /// Seconds that sockets took for them.
    pub sent_s: f64,
    /// Bytes of parts that the worker keeps in memory; 0 where it maps them.
    pub memory_tier_bytes: u64,
}
