//! `caju bench state`: the time and the size of readers' states while a job of many splits is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_client::{ClientConfig, ReadRequest};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::DatasetDef;
use caju_runtime::Tasks;
use caju_types::{Error, Result, format_bytes, format_count};
use serde_json::json;

use super::source::LineSource;
use crate::cli::StateBenchArgs;
use crate::commands::shared;
use crate::cores::available_cores;
use crate::output;
use crate::report;

/// States that each reader takes, at equal distances.
const STATES: u64 = 20;

/// A state of a reader.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    /// The time of `Reader::state`.
    state: Duration,
    /// The time of `Reader::state` and of writing its JSON.
    json: Duration,
    bytes: usize,
}

/// Reads the job and prints what states took.
///
/// # Errors
/// A folder that cannot be written, and what the readers fail with.
pub(super) async fn run(args: &StateBenchArgs) -> Result<()> {
    let source = LineSource::write(&args.dir, "state", u64::from(args.splits))?;
    let def = DatasetDef::from_json_str(&source.definition())?;
    let stores = Arc::new(shared::stores()?);
    let pool = shared::cpu_pool(None)?;
    let config = ClusterConfig { workers: args.workers, ..ClusterConfig::new(stores, pool) };
    let cluster = Cluster::start(config).await?;
    let read = readers(args, &cluster, &def).await;
    cluster.stop().await;
    let (states, wall) = read?;
    let sorted = |of: &dyn Fn(&Taken) -> Duration| {
        let mut times: Vec<Duration> = states.iter().map(of).collect();
        times.sort_unstable();
        times
    };
    let median = |times: &[Duration]| times.get(times.len() / 2).copied().unwrap_or_default();
    let longest = |times: &[Duration]| times.last().copied().unwrap_or_default();
    let (of_state, of_json) = (sorted(&|s| s.state), sorted(&|s| s.json));
    let (state, json) = (longest(&of_state), longest(&of_json));
    let bytes = states.iter().map(|s| s.bytes).max().unwrap_or(0);
    let ms = |d: Duration| 1e3 * d.as_secs_f64();
    output::say(format_args!(
        "{} splits, {} readers of one job, {} states while it was read in {:.1} s\nstate: median {:.2} ms, longest {:.2} ms; with \
         its JSON: median {:.2} ms, longest {:.2} ms; largest JSON {}",
        format_count(u64::from(args.splits)),
        args.readers,
        states.len(),
        wall.as_secs_f64(),
        ms(median(&of_state)),
        ms(state),
        ms(median(&of_json)),
        ms(json),
        format_bytes(bytes as u64)
    ))?;
    if let Some(path) = &args.out {
        let result = json!({
            "schema": "caju.state-bench/v1",
            "cores": available_cores(),
            "splits": args.splits,
            "readers": args.readers,
            "wall_s": wall.as_secs_f64(),
            "median_state_ms": ms(median(&of_state)),
            "median_json_ms": ms(median(&of_json)),
            "longest_state_ms": ms(state),
            "longest_json_ms": ms(json),
            "largest_json_bytes": bytes,
        });
        let text = serde_json::to_string_pretty(&result).map_err(|e| Error::internal(e.to_string()))?;
        report::write_bytes(path, text.as_bytes(), "--out")?;
    }
    Ok(())
}

/// All states that the readers of one job took, and the time of the epoch.
async fn readers(
    args: &StateBenchArgs,
    cluster: &Cluster,
    def: &DatasetDef,
) -> Result<(Vec<Taken>, Duration)> {
    let begin = Instant::now();
    let tasks = Tasks::new();
    let every = (u64::from(args.splits) / u64::from(args.readers) / STATES).max(1);
    let mut reading = Vec::new();
    for _ in 0..args.readers {
        let client = cluster.client(ClientConfig::default()).await?;
        let request = ReadRequest { job: "state".to_string(), ..ReadRequest::of(def.clone()) };
        let mut reader = client.read(request).await?;
        reading.push(tasks.spawn("a reader", async move {
            let (mut states, mut rows) = (Vec::new(), 0);
            while let Some(element) = reader.next().await? {
                rows += element.batch.num_rows() as u64;
                if rows >= every {
                    rows = 0;
                    let begin = Instant::now();
                    let state = reader.state()?;
                    let took = begin.elapsed();
                    // Without the listing a state would be cheaper, and show no change of the files.
                    if !state.taken.is_listed() {
                        return Err(Error::internal("a state does not say how far its splits are listed"));
                    }
                    let bytes = state.to_json()?.len();
                    states.push(Taken { state: took, json: begin.elapsed(), bytes });
                }
            }
            reader.close().await;
            Ok::<_, Error>(states)
        }));
    }
    let mut all = Vec::new();
    for reader in reading {
        all.extend(reader.await.map_err(|e| Error::internal(e.to_string()))??);
    }
    Ok((all, begin.elapsed()))
}
