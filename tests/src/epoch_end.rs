//! Epochs of workers that sleep for each row, one of them perhaps much slower than the others: what the end of an epoch costs.
//!
//! Sleeping takes no CPU. A machine therefore has space for many workers, and the ideal time of an epoch is known: the sum of all sleeps,
//! divided by the sum of the workers' speeds.

use std::time::Duration;

use serde_json::json;

use crate::cluster::Cluster;
use crate::pipeline::Pipeline;

/// One epoch to measure.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Workers that are as fast as the pipeline says.
    pub fast: usize,
    /// One more worker takes this many times as long for a row; none: there is no such worker.
    pub slowdown: Option<u32>,
    /// Files of the source; each is a split.
    pub files: usize,
    /// Rows of a file.
    pub rows_per_file: usize,
    /// What a row costs on a fast worker.
    pub per_row: Duration,
    /// The dispatcher's `--straggler-factor`.
    pub straggler_factor: u32,
}

/// What an epoch took.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// The epoch, from the request to its end.
    pub wall: Duration,
    /// If all workers were busy to the end, and nothing else took any time.
    pub ideal: Duration,
    /// From 99 % of the rows to the end.
    pub tail: Duration,
}

impl Setup {
    /// The sum of all sleeps, divided by the sum of the workers' speeds.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub fn ideal(&self) -> Duration {
        let speed = self.fast as f64 + self.slowdown.map_or(0.0, |n| 1.0 / f64::from(n));
        self.per_row.mul_f64((self.files * self.rows_per_file) as f64 / speed)
    }

    /// Runs the epoch with real processes. The rows must be complete.
    pub fn measure(&self) -> Measured {
        let factor = self.straggler_factor.to_string();
        let mut cluster = Cluster::start_with(self.fast, &["--straggler-factor", &factor], &[]);
        if let Some(slowdown) = self.slowdown {
            cluster.add_worker(&["--slowdown", &slowdown.to_string()]);
        }
        let per_row = format!("{}us", self.per_row.as_micros());
        let mut pipeline =
            Pipeline::of(json!({ "csv": { "path": "*.csv" } }), json!([{ "sleep": { "per_row": per_row } }]));
        for file in 0..self.files {
            let rows: String =
                (0..self.rows_per_file).map(|row| format!("{}\n", file * self.rows_per_file + row)).collect();
            pipeline = pipeline.with_file(&format!("{file:04}.csv"), format!("id\n{rows}").as_bytes());
        }
        let report = cluster.report(&pipeline, &["--job", "measured"]);
        assert_eq!(report.rows(), [(self.files * self.rows_per_file) as u64]);
        let epoch = &report.0["epochs"][0];
        let seconds = |key: &str| Duration::from_secs_f64(epoch[key].as_f64().unwrap());
        let measured = Measured { wall: seconds("wall_s"), ideal: self.ideal(), tail: seconds("tail_s") };
        cluster.stop();
        measured
    }
}
