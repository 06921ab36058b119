//! An option: what is stored, how fast it would run, and what limits it.

use crate::profile::Profile;

/// Options whose horizons differ from the best by at most this fraction are a tie.
pub const TIE: f64 = 0.02;

/// How much slower an option is assumed to be, as a fraction, when its second limit is as tight as its first. It orders options
/// that the model finds equal, so it has to be larger than [`TIE`]; no measurement fixes it more closely.
const INTERFERENCE: f64 = 0.1;

/// What limits an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The CPU of the workers.
    Cores,
    /// The parallelism of the stage with this position in [`Profile::stages`].
    Stage(usize),
    /// The bandwidth of the source's store.
    SourceStore,
    /// The bandwidth of the snapshots' store, reading or writing.
    CacheStore,
    /// The bandwidth from the workers to their clients.
    Network,
    /// The consumer takes no more rows.
    Consumer,
}

/// How long one source row takes, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimePerRow {
    /// Seconds per source row.
    pub s_per_row: f64,
    /// The bottleneck.
    pub limit: Limit,
    /// What would limit it next.
    pub next: Limit,
    /// Seconds per source row that the next limit alone allows; 0 if nothing else was measured. Close to
    /// `s_per_row` the two limits interfere with each other, and the real time is somewhat slower.
    pub next_s_per_row: f64,
    /// Whether it was measured in epochs that ran, not predicted.
    pub observed: bool,
}

/// Why an option cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The byte budget holds none of it.
    NoBudget,
    /// It must be stored whole, and the byte budget holds only a part.
    NotWhole,
}

/// A hint in one encoding, as far as an option uses it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SnapshotOption {
    /// Position in [`Profile::hints`].
    pub hint: usize,
    /// Position in the hint's encodings.
    pub encoding: usize,
    /// Fraction of the rows that is read from the snapshot once it is written.
    pub fraction: f64,
    /// Fraction of the rows that is stored already.
    pub existing: f64,
}

/// One way to run the pipeline: computing, or a snapshot at one hint in one encoding.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The snapshot; `None` is computing.
    pub stored: Option<SnapshotOption>,
    /// The time per row of every epoch but the first.
    pub steady: TimePerRow,
    /// The time per row of the first epoch, in which what is missing is written.
    pub first: TimePerRow,
    /// Seconds for the whole horizon, at nine significant digits, as decisions show them.
    pub horizon_s: f64,
    /// Bytes of the snapshot; of an infeasible one the bytes that it would need.
    pub snapshot_bytes: u64,
    /// Why it cannot be taken, if so.
    pub obstacle: Option<Obstacle>,
}

impl Limit {
    /// Its name in a decision: `cores`, `stage:NAME`, `source_store`, `cache_store`, `network`, `consumer`.
    pub fn name(self, profile: &Profile) -> String {
        match self {
            Limit::Cores => "cores".into(),
            Limit::Stage(i) => format!("stage:{}", profile.stages.get(i).map_or("", |s| s.name.as_str())),
            Limit::SourceStore => "source_store".into(),
            Limit::CacheStore => "cache_store".into(),
            Limit::Network => "network".into(),
            Limit::Consumer => "consumer".into(),
        }
    }
}

impl Candidate {
    /// How many times as long a steady row takes at this rate as was predicted.
    pub(crate) fn predicted_times(&self, rows_per_s: f64) -> f64 {
        1.0 / (rows_per_s * self.steady.s_per_row)
    }

    /// The horizon, in seconds, if limits that are close interfere with each other. It separates options that are equal by their time per row
    /// alone; the horizon that a decision shows leaves it out.
    pub(crate) fn horizon_with_interference_s(&self) -> f64 {
        // Measured times include the interference.
        let used = match self.steady.observed {
            true => 0.0,
            false => (self.steady.next_s_per_row / self.steady.s_per_row).min(1.0),
        };
        self.horizon_s * (1.0 + INTERFERENCE * used.powi(4))
    }
}
