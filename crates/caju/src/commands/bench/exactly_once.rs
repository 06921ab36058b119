//! `caju bench exactly-once`: what exactly-once delivery with a journal on disk costs against at-most-once.
//!
//! Two clusters of a dispatcher and a worker, each in a process of its own, are started: one dispatcher has its journal on
//! disk, and its reader tracks and acknowledges rows; the other one has none, and its reader does neither. Epochs of both
//! alternate.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use caju_client::{Client, ClientConfig, ReadRequest};
use caju_pipeline::DatasetDef;
use caju_runtime::cpu_time;
use caju_types::{Error, Result};
use serde_json::json;

use super::server::{Program, Server};
use super::stats::{median, median_interval};
use crate::cli::{ExactlyOnceArgs, Global};
use crate::commands::{check, pipeline_file};
use crate::cores::available_cores;
use crate::output;
use crate::report;

/// A dispatcher, its worker, and how its reader reads.
struct Cluster {
    dispatcher: Server,
    worker: Server,
    client: Client,
    tracks_rows: bool,
}

/// An epoch.
struct Epoch {
    rows: u64,
    wall: Duration,
    /// CPU time of the three processes.
    cpu: Duration,
}

/// Runs pairs of epochs and prints what exactly-once costs.
///
/// # Errors
/// A wrong file, a server that does not start, and what the epochs fail with.
pub(super) async fn run(global: &Global, args: &ExactlyOnceArgs) -> Result<()> {
    let def = pipeline_file::read(&args.file)?;
    let state = std::path::absolute(&args.dir)
        .map_err(|e| Error::unavailable(format!("{}: {e}", args.dir.display())))?
        .join(format!("caju-bench-exactly-once-{}", std::process::id()));
    let (once, most) = (Cluster::start(args, Some(&state)).await?, Cluster::start(args, None).await?);
    let measured = pairs(global, args, &def, &once, &most).await;
    drop((once, most));
    drop(std::fs::remove_dir_all(&state));
    let pairs = measured?;
    let cost = |of: &dyn Fn(&Epoch) -> f64| -> Vec<f64> {
        pairs.iter().map(|(once, most)| 100.0 * (of(once) / of(most).max(1e-9) - 1.0)).collect()
    };
    let (wall, cpu) = (cost(&|e| e.wall.as_secs_f64()), cost(&|e| e.cpu.as_secs_f64()));
    let rate = |of: &dyn Fn(&(Epoch, Epoch)) -> &Epoch| {
        median(pairs.iter().map(|p| of(p).rows as f64 / of(p).wall.as_secs_f64().max(1e-9)).collect())
    };
    let (once, most) = (rate(&|p| &p.0), rate(&|p| &p.1));
    let text = |costs: &[f64]| {
        let (low, high) = median_interval(costs).unwrap_or_default();
        format!("{:+.2} % ({low:+.2} to {high:+.2} %)", median(costs.to_vec()))
    };
    output::say(format_args!(
        "{}\n\n{} pairs of epochs; exactly once {:.0} rows/s, at most once {:.0} rows/s\nexactly once takes {} of wall time, {} of \
         CPU time (medians of the pairs, and their intervals in nine of ten cases)",
        check::title(&def, &args.file),
        pairs.len(),
        once,
        most,
        text(&wall),
        text(&cpu)
    ))?;
    if let Some(path) = &args.out {
        let epochs = |e: &Epoch| json!({ "rows": e.rows, "wall_s": e.wall.as_secs_f64(), "cpu_s": e.cpu.as_secs_f64() });
        let result = json!({
            "schema": "caju.exactly-once-bench/v1",
            "cores": available_cores(),
            "rows_per_s": { "exactly_once": once, "at_most_once": most },
            "wall_cost_percent": { "median": median(wall.clone()), "interval": median_interval(&wall) },
            "cpu_cost_percent": { "median": median(cpu.clone()), "interval": median_interval(&cpu) },
            "pairs": pairs.iter().map(|(o, m)| json!([epochs(o), epochs(m)])).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&result).map_err(|e| Error::internal(e.to_string()))?;
        report::write_bytes(path, text.as_bytes(), "--out")?;
    }
    Ok(())
}

/// Pairs of epochs, exactly once and at most once, that alternate in their order.
async fn pairs(
    global: &Global,
    args: &ExactlyOnceArgs,
    def: &DatasetDef,
    once: &Cluster,
    most: &Cluster,
) -> Result<Vec<(Epoch, Epoch)>> {
    // The first epochs fill the page cache and open connections.
    once.epoch(def, "warm").await?;
    most.epoch(def, "warm").await?;
    let mut pairs = Vec::new();
    for round in 0..args.repeats {
        let job = format!("round-{round}");
        let pair = if round % 2 == 0 {
            let first = once.epoch(def, &job).await?;
            (first, most.epoch(def, &job).await?)
        } else {
            let first = most.epoch(def, &job).await?;
            (once.epoch(def, &job).await?, first)
        };
        if pair.0.rows != pair.1.rows {
            return Err(Error::internal(format!(
                "{} and {} rows in round {round}",
                pair.0.rows, pair.1.rows
            )));
        }
        if !global.quiet {
            let s = |d: Duration| d.as_secs_f64();
            output::note(format_args!(
                "round {}: exactly once {:.3} s, {:.3} s of CPU; at most once {:.3} s, {:.3} s of CPU",
                round + 1,
                s(pair.0.wall),
                s(pair.0.cpu),
                s(pair.1.wall),
                s(pair.1.cpu)
            ));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

impl Cluster {
    /// Starts a cluster: exactly-once if it has a folder for its journal.
    async fn start(options: &ExactlyOnceArgs, state: Option<&Path>) -> Result<Self> {
        let arg = |text: &str| OsString::from(text);
        let program = Program::default();
        // Without acknowledgements each epoch ends as incomplete, which is not worth a word here.
        let log = if state.is_some() { "warn" } else { "off" };
        let mut args = vec![arg("--allow"), arg("/"), arg("--log"), arg(log)];
        args.extend(state.into_iter().flat_map(|dir| [arg("--state-dir"), dir.into()]));
        let dispatcher = Server::start(&program, "dispatcher", &args).await?;
        let args = [arg("--dispatcher"), arg(&dispatcher.address), arg("--allow"), arg("/")];
        let program = Program { path: options.program.clone(), ..program };
        let worker = Server::start(&program, "worker", &args).await?;
        let tracks_rows = state.is_some();
        let config = ClientConfig { tracks_rows, ..ClientConfig::default() };
        let client = Client::connect(&dispatcher.address, config).await?;
        Ok(Self { dispatcher, worker, client, tracks_rows })
    }

    fn cpu(&self) -> Duration {
        self.dispatcher.cpu() + self.worker.cpu() + cpu_time()
    }

    /// Reads an epoch, element by element.
    async fn epoch(&self, def: &DatasetDef, job: &str) -> Result<Epoch> {
        let (begin, cpu) = (Instant::now(), self.cpu());
        let request = ReadRequest {
            job: job.to_string(),
            policy: "compute".to_string(),
            ..ReadRequest::of(def.clone())
        };
        let mut reader = self.client.read(request).await?;
        let mut rows = 0;
        loop {
            match reader.next().await {
                Ok(Some(element)) => {
                    rows += element.batch.num_rows() as u64;
                    while let Some(element) = reader.try_next()? {
                        rows += element.batch.num_rows() as u64;
                    }
                }
                Ok(None) => break,
                // Nothing was acknowledged: that is what the reader's epoch ends with.
                Err(_) if !self.tracks_rows && reader.incomplete().is_some() => break,
                Err(e) => return Err(e),
            }
        }
        let epoch = Epoch { rows, wall: begin.elapsed(), cpu: self.cpu().saturating_sub(cpu) };
        reader.close().await;
        Ok(epoch)
    }
}
