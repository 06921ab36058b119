//! Runs whose readers belong to several jobs that share rows.

use std::fmt;
use std::time::Duration;

use caju_engine::{SharingLag, SharingSettings};
use serde_json::{Value, json};

use crate::random::Random;

/// The column with random numbers, which are equal for jobs with one seed.
pub(crate) const DRAWN: &str = "u";
/// Bytes of a row with its random number.
const ROW_BYTES: u64 = 24;

/// What the jobs of a run share, and how.
#[derive(Debug, Clone)]
pub(crate) struct Sharing {
    pub(crate) settings: SharingSettings,
    pub(crate) jobs: Vec<SharingJob>,
    /// Whether the jobs differ below a hint.
    has_hint: bool,
    /// Whether rows have random numbers.
    draws: bool,
}

/// One of the jobs.
#[derive(Debug, Clone)]
pub(crate) struct SharingJob {
    pub(crate) seed: u64,
    /// It skips rows that have left the window.
    pub(crate) is_relaxed: bool,
    /// When its first reader begins.
    begins: Duration,
    /// How long its users work on an element, at most.
    pub(crate) pace: Duration,
    batch: u64,
}

impl Sharing {
    /// Draws what a run shares. `rows`: those of an epoch and of a split; `stores`: rows are stored at a hint of the pipeline;
    /// `may_skip`: jobs may be relaxed.
    pub(crate) fn draw(r: &mut Random, (rows, split_rows): (u64, u64), stores: bool, may_skip: bool) -> Self {
        let (epoch_bytes, split_bytes) = (rows * ROW_BYTES, split_rows * ROW_BYTES);
        let bytes = [0, split_bytes / 6, split_bytes * 3, epoch_bytes / 2, 1 << 30];
        let waits = [1, 20, 200, 2_000];
        let mut settings = SharingSettings {
            window_bytes: r.pick(&bytes).unwrap_or(0),
            backlog_bytes: r.pick(&bytes).unwrap_or(0),
            lag: if r.permille(300) { SharingLag::Throttle } else { SharingLag::Drop },
            wait: Duration::from_millis(r.pick(&waits).unwrap_or(1)),
            ..SharingSettings::default()
        };
        let count = r.between(2, 5);
        let job = |r: &mut Random| SharingJob {
            // Most jobs have equal draws.
            seed: if r.permille(200) { 9 } else { 5 },
            begins: if r.permille(400) { Duration::ZERO } else { r.ms(1, 5_000) },
            pace: r.pick(&[0, 5, 20, 100]).map_or(Duration::ZERO, Duration::from_millis),
            batch: r.between(40, 200),
            is_relaxed: may_skip && r.permille(250),
        };
        let jobs: Vec<SharingJob> = (0..count).map(|_| job(r)).collect();
        // Drawn with a number of another use, so that seeds keep all that they drew before windows could spill.
        let number = jobs.first().map_or(0, |job| job.batch);
        if settings.lag == SharingLag::Drop && number.is_multiple_of(2) {
            settings.lag = SharingLag::Spill;
            settings.spill_bytes = if number.is_multiple_of(3) { epoch_bytes / 4 } else { 1 << 30 };
        }
        // Rows behind draws are not shared by jobs that store some.
        let (draws, has_hint) = (r.permille(600), r.permille(400));
        Self { settings, jobs, has_hint: has_hint && !stores, draws }
    }

    /// The job of a reader.
    pub(crate) fn job_of(&self, reader: usize) -> usize {
        reader % self.jobs.len().max(1)
    }

    /// The same, with what it does.
    pub(crate) fn of(&self, reader: usize) -> Option<&SharingJob> {
        self.jobs.get(self.job_of(reader))
    }

    /// When a reader begins, and how long its user works on an element.
    pub(crate) fn times_of(&self, reader: usize) -> (Duration, Duration) {
        self.of(reader).map_or_else(Default::default, |job| (job.begins, job.pace))
    }

    /// The name of a reader's job, and its seed.
    pub(crate) fn name_of(&self, reader: usize) -> (String, Option<u64>) {
        (format!("trial-{}", self.job_of(reader)), self.of(reader).map(|job| job.seed))
    }

    /// The stages of a reader's job below those that all jobs have. `cross_split`: the `shuffle`, if there is one.
    pub(crate) fn steps_of(&self, reader: usize, cross_split: Option<Value>) -> Vec<Value> {
        let mut steps = Vec::new();
        if self.draws {
            steps.push(json!({ "with_columns": { DRAWN: "uniform(0.0, 1.0)" } }));
        }
        if self.has_hint {
            steps.push(json!({ "autocache": "shared" }));
            let sum = format!("id + {}", self.job_of(reader));
            steps.push(json!({ "with_columns": { "own": sum } }));
        }
        steps.extend(cross_split);
        let batch = self.of(reader).map_or(1, |job| job.batch);
        steps.push(json!({ "batch": batch }));
        steps
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, hint: {}, draws: {}, jobs: {:?}",
            self.settings, self.has_hint, self.draws, self.jobs
        )
    }
}
