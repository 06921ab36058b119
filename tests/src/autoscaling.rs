//! Epochs with a number of workers that sleep for each row, and a reader that takes a time of its own for each batch: what
//! a number of workers gives, and which number the dispatcher asks for meanwhile.
//!
//! Sleeping takes no CPU, so each worker simulates a machine.

use std::time::{Duration, Instant};

use caju_client::{Client, ClientConfig, ReadRequest};
use caju_pipeline::DatasetDef;
use serde_json::json;

use crate::cluster::Cluster;
use crate::pipeline::Pipeline;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Files of the source; each is a split.
    pub files: usize,
    /// Rows of a file.
    pub rows_per_file: usize,
    /// What a row costs on a worker.
    pub per_row: Duration,
    /// Rows of a batch.
    pub batch: usize,
    /// What the reader does with a batch, as a training step does.
    pub step: Duration,
}

/// One epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Workers.
    pub workers: u64,
    /// The epoch, from the request to its end.
    pub epoch: Duration,
    /// The time in which the reader waited for batches.
    pub wait: Duration,
    /// Batches that it took.
    pub batches: u64,
    /// Workers that the dispatcher asked for when the reader had taken nine tenths of the rows.
    pub target: u64,
}

impl Setup {
    /// Runs an epoch with real processes. The rows must be complete.
    pub fn measure(&self, workers: usize) -> Measured {
        let args = ["--scaling-interval", "1s", "--scale-down-after", "2s", "--max-workers", "8"];
        let cluster = Cluster::start_with(workers, &args, &[]);
        let per_row = format!("{}us", self.per_row.as_micros());
        let steps = json!([{ "sleep": { "per_row": per_row } }, { "batch": self.batch }]);
        let mut pipeline = Pipeline::of(json!({ "csv": { "path": "*.csv" } }), steps.clone());
        for file in 0..self.files {
            let rows: String =
                (0..self.rows_per_file).map(|row| format!("{}\n", file * self.rows_per_file + row)).collect();
            pipeline = pipeline.with_file(&format!("{file:04}.csv"), format!("id\n{rows}").as_bytes());
        }
        // The servers run in a folder of their own.
        let path = pipeline.folder().join("*.csv").display().to_string();
        let def = json!({ "source": { "csv": { "path": path } }, "steps": steps }).to_string();
        let def = DatasetDef::from_json_str(&def).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let measured = runtime.block_on(self.read(&cluster, def, workers as u64));
        cluster.stop();
        measured
    }

    async fn read(&self, cluster: &Cluster, def: DatasetDef, workers: u64) -> Measured {
        let client = Client::connect(cluster.address(), ClientConfig::default()).await.unwrap();
        let begun = Instant::now();
        let mut reader =
            client.read(ReadRequest { job: "train".into(), ..ReadRequest::of(def) }).await.unwrap();
        let (mut rows, mut batches, mut wait, mut target) = (0, 0, Duration::ZERO, 0);
        let all = self.files * self.rows_per_file;
        loop {
            let asked = Instant::now();
            let Some(element) = reader.next().await.unwrap() else { break };
            wait += asked.elapsed();
            (rows, batches) = (rows + element.batch.num_rows(), batches + 1);
            // The user's work.
            tokio::time::sleep(self.step).await;
            if target == 0 && rows * 10 >= all * 9 {
                let status = client.status().await.unwrap();
                target = status.scaling.map_or(0, |s| s.target_workers);
            }
        }
        assert_eq!(rows, all);
        let epoch = begun.elapsed();
        reader.close().await;
        Measured { workers, epoch, wait, batches, target }
    }
}
