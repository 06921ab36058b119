//! What the profiling taps cost: one epoch of a pipeline with and without them, alternating, in CPU seconds.
//!
//! ```text
//! cargo run --release -p caju-engine --example taps -- PIPELINE.yaml [ROUNDS]
//! ```
//!
//! The taps are the times that every stage takes of its work (two clock readings of the thread's CPU time and of the
//! wall per piece of work); rows and bytes are counted in any case. The result is the ratio of each pair of epochs:
//! its median and its spread, so that the machine's mood drops out.

#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use caju_engine::source::SourceContext;
use caju_engine::{BoundPipeline, LeasedSplit, SplitFeed, TaskOptions, bind, run_task};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock, cpu_time};
use caju_types::Result;
use futures::TryStreamExt;

struct Fixed(VecDeque<LeasedSplit>);

#[async_trait]
impl SplitFeed for Fixed {
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let n = want.min(self.0.len());
        Ok((n > 0).then(|| self.0.drain(..n).collect()))
    }
}

/// CPU seconds and rows of one epoch.
async fn epoch(pipeline: &Arc<BoundPipeline>, pool: &CpuPool, taps: bool) -> Result<(f64, usize)> {
    let splits: Vec<_> = pipeline.splits().try_collect().await?;
    let leases = (0u64..).zip(splits).map(|(index, split)| LeasedSplit::new(index, split)).collect();
    let options = TaskOptions { taps, ..TaskOptions::new(pool.clone(), SystemClock::shared()) };
    let before = cpu_time();
    let mut task = run_task(pipeline, Box::new(Fixed(leases)), options);
    let mut rows = 0;
    while let Some(chunk) = task.next().await {
        rows += chunk?.rows();
    }
    Ok((cpu_time().saturating_sub(before).as_secs_f64(), rows))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().expect("usage: taps PIPELINE.yaml [ROUNDS]");
    let rounds: usize = args.next().map_or(7, |n| n.parse().unwrap());
    let text = std::fs::read_to_string(&file).unwrap();
    let base = std::path::absolute(&file).unwrap();
    let def = DatasetDef::from_yaml(&text, base.parent())?;
    let ctx = SourceContext::new(Arc::new(Stores::default()), Arc::new(IoCounters::new()));
    let pipeline = Arc::new(bind(&def, &Registry::new(Limits::default()), &ctx, None).await?);
    let pool = CpuPool::new(std::thread::available_parallelism().map_or(2, usize::from))?;

    let (_, rows) = epoch(&pipeline, &pool, true).await?;
    println!("{rows} rows an epoch, {rounds} pairs of epochs");
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let first = round % 2 == 0;
        let (a, _) = epoch(&pipeline, &pool, first).await?;
        let (b, _) = epoch(&pipeline, &pool, !first).await?;
        let (with, without) = if first { (a, b) } else { (b, a) };
        println!("with taps {with:.3} CPU s, without {without:.3}: {:+.2} %", 100.0 * (with / without - 1.0));
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    let percent = |r: f64| 100.0 * (r - 1.0);
    println!(
        "taps cost {:+.2} % CPU (median; {:+.2} to {:+.2} %)",
        percent(ratios[rounds / 2]),
        percent(ratios[0]),
        percent(ratios[rounds - 1])
    );
    Ok(())
}
