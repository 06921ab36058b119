//! The input side of a training job: reads one element after another from a running cluster, and touches a few bytes
//! of each, as the clients of the peers do. Prints one JSON object.
//!
//! usage: `touch-each FILE DISPATCHER|here EPOCHS [POLICY [CACHE [SHARING]]]`
//!
//! `SHARING` is `exact` or `relaxed` for jobs that share computed rows, and `CACHE` is for `here`; `-`: none.
//!
//! `here`: dispatcher, worker and reader in this process, where rows are not copied over a socket. Options of an S3
//! store come from the environment (`AWS_*`).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{Array, ArrayRef, RecordBatch};
use caju_client::{Client, ClientConfig, DatasetRef, ReadRequest, Sharing};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, Stores};
use caju_types::{Error, Result};
use serde_json::{Value, json};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    caju_benches::program(|args| async move { run(&args).await })
}

async fn run(args: &[String]) -> Result<Value> {
    let [file, dispatcher, epochs, rest @ ..] = args else {
        return Err(Error::invalid(
            "usage: touch-each FILE DISPATCHER|here EPOCHS [POLICY [CACHE [SHARING]]]",
        ));
    };
    let policy = rest.first().cloned().unwrap_or_default();
    let sharing = match rest.get(2) {
        Some(name) => Sharing::from_name(name, None)?,
        None => Sharing::AsJob,
    };
    let here = match dispatcher.as_str() {
        "here" => Some(embedded(rest.get(1).filter(|url| *url != "-").cloned()).await?),
        _ => None,
    };
    let epochs: u64 = epochs.parse().map_err(|e| Error::invalid(format!("`{epochs}`: {e}")))?;
    let text = std::fs::read_to_string(file).map_err(|e| Error::not_found(format!("{file}: {e}")))?;
    let def = DatasetDef::from_yaml(&text, Path::new(file).parent())?;
    let mut done = Vec::new();
    // All epochs are one job, so `auto` decides once.
    let job = format!("touch-{}", std::process::id());
    for epoch in 0..epochs {
        // The time to find the dispatcher counts, too.
        let start = Instant::now();
        let client = match &here {
            Some(cluster) => cluster.client(ClientConfig::default()).await?,
            None => Client::connect(dispatcher, ClientConfig::default()).await?,
        };
        let mut reader = client
            .read(ReadRequest {
                dataset: DatasetRef::Definition(Box::new(def.clone())),
                job: job.clone(),
                epoch,
                policy: policy.clone(),
                sharing: sharing.clone(),
                ..ReadRequest::of(def.clone())
            })
            .await?;
        let (mut rows, mut elements, mut seen, mut first) = (0, 0u64, 0u64, None);
        while let Some(element) = reader.next().await? {
            first.get_or_insert_with(|| start.elapsed());
            rows += element.batch.num_rows() as u64;
            elements += 1;
            seen = seen.wrapping_add(touch(&element.batch));
        }
        let wall_s = start.elapsed().as_secs_f64();
        reader.close().await;
        let first_batch_s = first.unwrap_or_default().as_secs_f64();
        done.push(json!({ "epoch": epoch, "rows": rows, "batches": elements, "wall_s": wall_s,
                          "first_batch_s": first_batch_s, "touched": seen }));
    }
    if let Some(cluster) = here {
        cluster.stop().await;
    }
    Ok(json!({ "epochs": done }))
}

async fn embedded(cache_url: Option<String>) -> Result<Cluster> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let stores = Stores::new(caju_benches::store_options(), None)?;
    let config = ClusterConfig::new(Arc::new(stores), CpuPool::new(threads)?);
    Cluster::start(ClusterConfig { cache_url, ..config }).await
}

/// The sum of the first bytes of the first column's values.
fn touch(batch: &RecordBatch) -> u64 {
    fn innermost(array: &ArrayRef) -> Option<Vec<u8>> {
        let data = array.to_data();
        let mut data = &data;
        while let Some(child) = data.child_data().first() {
            data = child;
        }
        let bytes = data.buffers().last()?;
        Some(bytes.iter().take(256).copied().collect())
    }
    let first = batch.columns().first().and_then(innermost).unwrap_or_default();
    first.iter().map(|b| u64::from(*b)).sum()
}
