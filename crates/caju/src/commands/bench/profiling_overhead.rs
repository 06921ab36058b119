//! `caju bench profiling-overhead`: what it costs to measure the time of every stage.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use caju_engine::{BoundPipeline, LeasedSplit, SplitFeed, TaskOptions, run_task};
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock, cpu_time};
use caju_sources::SourceContext;
use caju_types::{Error, Result, format_count};
use futures::TryStreamExt;

use crate::cli::{Global, ProfilingOverheadArgs};
use crate::commands::{check, pipeline_file, shared};
use crate::output;

/// All splits of an epoch.
struct AllSplits(VecDeque<LeasedSplit>);

#[async_trait]
impl SplitFeed for AllSplits {
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let n = want.min(self.0.len());
        Ok((n > 0).then(|| self.0.drain(..n).collect()))
    }
}

/// Runs pairs of epochs, with and without profiling, and prints the ratios of their CPU times. A disturbance of both
/// epochs drops out of a pair's ratio. A disturbance of one epoch only adds time, so it drops out of the ratio of the
/// fastest epochs.
///
/// # Errors
/// A wrong file, and what its epochs fail with.
pub(super) async fn run(global: &Global, args: &ProfilingOverheadArgs) -> Result<()> {
    let def = pipeline_file::read(&args.file)?;
    let stores = Arc::new(Stores::new(shared::store_options(), None)?);
    let ctx = SourceContext::new(stores, Arc::new(IoCounters::new()));
    let pipeline = Arc::new(Box::pin(caju_engine::bind(&def, &shared::registry(), &ctx, None)).await?);
    let pool = shared::cpu_pool(args.cpu_threads)?;
    // The first epoch fills the page cache.
    let (_, rows) = epoch(&pipeline, &pool, true).await?;
    let (mut ratios, mut fastest) = (Vec::new(), (f64::INFINITY, f64::INFINITY));
    for round in 0..args.repeats {
        let first = round % 2 == 0;
        let (a, _) = epoch(&pipeline, &pool, first).await?;
        let (b, _) = epoch(&pipeline, &pool, !first).await?;
        let (with, without) = if first { (a, b) } else { (b, a) };
        if !global.quiet {
            output::note(format!(
                "round {}: {with:.3} s of CPU with profiling, {without:.3} s without",
                round + 1
            ));
        }
        ratios.push(percent(with, without));
        fastest = (fastest.0.min(with), fastest.1.min(without));
    }
    ratios.sort_by(f64::total_cmp);
    let (low, high) = ratios.first().zip(ratios.last()).ok_or_else(|| Error::internal("no rounds"))?;
    output::say(format_args!(
        "{}\n\n{} rows an epoch, {} pairs of epochs\nprofiling costs {:+.2} % of CPU time by the fastest epochs, {:+.2} % by the median pair ({low:+.2} to {high:+.2} %)",
        check::title(&def, &args.file),
        format_count(rows as u64),
        ratios.len(),
        percent(fastest.0, fastest.1),
        ratios[ratios.len() / 2],
    ))
}

fn percent(with: f64, without: f64) -> f64 {
    100.0 * (with / without.max(1e-9) - 1.0)
}

/// CPU seconds and rows of one epoch.
async fn epoch(pipeline: &Arc<BoundPipeline>, pool: &CpuPool, profiling: bool) -> Result<(f64, usize)> {
    let splits: Vec<_> = pipeline.splits().try_collect().await?;
    let leases = (0u64..).zip(splits).map(|(index, split)| LeasedSplit::new(index, split)).collect();
    let options = TaskOptions { profiling, ..TaskOptions::new(pool.clone(), SystemClock::shared()) };
    let before = cpu_time();
    let mut task = run_task(pipeline, Box::new(AllSplits(leases)), options);
    let mut rows = 0;
    while let Some(chunk) = task.next().await {
        rows += chunk?.rows();
    }
    Ok((cpu_time().saturating_sub(before).as_secs_f64(), rows))
}
