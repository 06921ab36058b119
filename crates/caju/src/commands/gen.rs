//! `caju gen`.

use std::time::Instant;

use caju_runtime::{CpuPool, Stores};
use caju_types::{Error, Result};

use super::shared;
use crate::cli::{GenArgs, Global};
use crate::generate::{self, Counters, Format, Plan};
use crate::output;
use crate::progress::{Progress, State, done_text};

/// Generates sample data.
///
/// # Errors
/// As [`generate::write`].
pub(crate) async fn run(global: &Global, args: &GenArgs) -> Result<()> {
    let mut formats: Vec<Format> = Vec::new();
    for format in &args.format {
        if formats.contains(format) {
            return Err(Error::invalid(format!("--format names {} twice", format.name())));
        }
        formats.push(*format);
    }
    let plan = Plan {
        kind: args.kind,
        out: shared::absolute_url(&args.out)?,
        count: args.count,
        seed: args.seed,
        formats,
        shards: args.shards,
        overwrite: args.overwrite,
    };
    generate(&plan, &shared::stores(None)?, &shared::cpu_pool(args.cpu_threads)?, global.quiet).await
}

/// Generates with progress and a closing line.
pub(crate) async fn generate(plan: &Plan, stores: &Stores, pool: &CpuPool, quiet: bool) -> Result<()> {
    let counters = Counters::default();
    let start = Instant::now();
    let state = || {
        let (rows, bytes) = counters.get();
        State { rows, bytes, done: rows, total: Some(plan.count), ..State::default() }
    };
    let progress = Progress::new(format!("gen {}", plan.kind.name()), quiet);
    progress.watch(generate::write(plan, stores, pool, &counters), state).await?;
    if !quiet {
        let (rows, bytes) = counters.get();
        let names: Vec<_> = plan.formats.iter().map(|f| f.name()).collect();
        output::say(format_args!(
            "{}: {} as {}, {} shard{}",
            plan.out,
            done_text(rows, bytes, start.elapsed()),
            names.join(" and "),
            plan.shards(),
            if plan.shards() == 1 { "" } else { "s each" }
        ))?;
    }
    Ok(())
}
