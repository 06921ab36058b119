//! `caju profile`: computes one epoch from end to end, to measure what storing rows would gain.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_cache::CacheOptions;
use caju_client::{Client, ClientConfig, ReadRequest, Reader};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::DatasetDef;
use caju_planner::{Decision, Profile};
use caju_proto::v1::JobStatus;
use caju_runtime::private_cache;
use caju_types::{Error, IterationId, Result};

use super::{epochs, pipeline_file, shared};
use crate::cli::{Global, ProfileArgs};
use crate::progress::Progress;
use crate::{output, report};

/// The name of the job.
const JOB: &str = "profile";

/// How long to wait for the workers' final reports after the last row.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Profiles a pipeline file.
///
/// # Errors
/// A wrong file, what the epoch fails with, a file that cannot be written.
pub(crate) async fn run(global: &Global, args: &ProfileArgs) -> Result<()> {
    let def = pipeline_file::read(&args.file)?;
    if def.is_endless() {
        return Err(Error::invalid(format!(
            "{}: `repeat` without a number has no end, and a profile is of one whole epoch; say `repeat: 1`, or put a \
             `take` below it",
            args.file.display()
        )));
    }
    let (profile, decision) = Box::pin(measure(global, args, def)).await?;
    let Some(path) = &args.out else { return output::say(profile.to_json()) };
    report::write_whole(path, &(profile.to_json() + "\n"), "--out")?;
    if global.quiet { Ok(()) } else { output::say(summary(path, &decision).trim_end()) }
}

fn summary(path: &Path, decision: &Decision) -> String {
    let shown = path.display();
    format!(
        "{}\nprofile written to {shown}; other answers: caju plan {shown} --policy ...",
        decision.to_text()
    )
}

async fn measure(global: &Global, args: &ProfileArgs, def: DatasetDef) -> Result<(Profile, Decision)> {
    let cluster = shared::cluster(&args.compute, Arc::new(shared::stores()?))?;
    let private = if args.cache.is_none() { Some(private_cache()?) } else { None };
    let cache_url = match (&args.cache, &private) {
        (Some(url), _) => shared::absolute_url(url)?,
        (None, Some(folder)) => folder.path().display().to_string(),
        (None, None) => return Err(Error::internal("there is no folder for the cache")),
    };
    let config = ClusterConfig {
        workers: args.workers,
        cache_url: Some(cache_url),
        cache: CacheOptions { budget_bytes: args.cache_budget, ..CacheOptions::default() },
        ..cluster
    };
    let cluster = Cluster::start(config).await?;
    let measured = async {
        let client = cluster.client(ClientConfig::default()).await?;
        let request = ReadRequest {
            job: JOB.to_string(),
            seed: args.seed,
            policy: "auto".to_string(),
            epochs: args.epochs.unwrap_or(0),
            ..ReadRequest::of(def)
        };
        let reader = client.read_to_profile(request).await.map_err(pipeline_file::in_file(&args.file))?;
        let iteration = reader.iteration();
        read(global, reader).await?;
        final_report(&client, iteration).await
    }
    .await;
    cluster.stop().await;
    let job = measured?;
    Ok((Profile::from_json(&job.profile_json)?, Decision::from_json(&job.decision_json)?))
}

/// Reads every row, and drops it.
async fn read(global: &Global, mut reader: Reader) -> Result<()> {
    let monitor = reader.monitor();
    let work = async {
        while reader.next_chunk().await?.is_some() {}
        Ok::<_, Error>(())
    };
    Progress::new("profiling", global.quiet).watch(work, || epochs::state(&monitor, None)).await?;
    reader.close().await;
    Ok(())
}

/// Waits until the last task has reported, which completes the profile.
async fn final_report(client: &Client, iteration: IterationId) -> Result<JobStatus> {
    let until = Instant::now() + FINAL_REPORT_TIMEOUT;
    loop {
        let jobs = client.status().await?.jobs;
        let job = jobs.into_iter().find(|j| j.iteration_id == iteration.0);
        // The report of one task gives a profile already, of its rows alone.
        if let Some(job) = job.filter(|j| !j.profile_json.is_empty() && j.tasks == 0) {
            return Ok(job);
        }
        if Instant::now() > until {
            return Err(Error::internal("the epoch ended, and the reports of its tasks give no profile"));
        }
        tokio::time::sleep(FINAL_REPORT_TIMEOUT / 200).await;
    }
}
