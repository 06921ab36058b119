//! `caju quickstart`: sample data if there is none, and the main job on it.

use std::sync::Arc;

use caju_pipeline::{DatasetDef, SourceDef};
use caju_runtime::cpu_time;
use caju_samples::{Format, Kind, SampleSet, is_complete};
use caju_types::{Error, Result};

use super::epochs::Consumer;
use super::r#gen::{folder, generate, signalled};
use super::run::{Job, embedded};
use super::serve::Signals;
use super::shared;
use crate::cli::{DEFAULT_DIR, EpochArgs, Global, Mode, QuickstartArgs};
use crate::output;

/// The pipeline that it runs; the same file can be run and changed by hand.
const PIPELINE: &str = include_str!("../../../../examples/pipelines/quickstart.yaml");

/// Generates and runs, to the exit code.
///
/// # Errors
/// Those of `caju gen` and `caju run`.
pub(crate) async fn run(global: &Global, args: &QuickstartArgs) -> Result<u8> {
    let stores = Arc::new(shared::stores()?);
    let pool = shared::cpu_pool(None)?;
    let out = folder("--dir", &args.dir.to_string_lossy())?;
    let set = SampleSet {
        kind: Kind::Images,
        out: out.clone(),
        count: args.count,
        seed: 0,
        formats: vec![Format::Tfrecord, Format::Parquet],
        shards: None,
        // In the folder of its own, what an interrupted or another quickstart left may go; `gen` keeps the rest.
        overwrite: args.overwrite || args.dir == std::path::Path::new(DEFAULT_DIR),
    };
    if is_complete(&set, &stores).await? {
        say(global, &format!("sample data: {out} is there already\n"))?;
    } else {
        say(global, &format!("sample data: {} photos into {out}", args.count))?;
        let code = Box::pin(generate(&set, &stores, &pool, global.quiet)).await?;
        if code != 0 {
            return Ok(code);
        }
        say(global, "")?;
    }
    let def = pipeline(&out)?;
    say(global, "pipeline (examples/pipelines/quickstart.yaml):")?;
    for line in caju_pipeline::describe(&def) {
        say(global, &format!("  {line}"))?;
    }
    say(global, "")?;
    let epochs = EpochArgs {
        cache_only: false,
        epochs: args.epochs,
        horizon: None,
        seed: None,
        processing_mode: Mode::Dynamic,
        report: None,
        no_checksum: true,
        policy: None,
        encoding: None,
    };
    let job = Job {
        def: &def,
        cache: None,
        cache_budget: None,
        record_autocache_events: None,
        workers: 1,
        epochs: &epochs,
        quiet: global.quiet,
        consumer: Consumer::default(),
        cpu_before: cpu_time(),
    };
    // Signals that `gen` took over do not end the process by themselves any more.
    let mut signals = Signals::new()?;
    let outcome = tokio::select! {
        outcome = Box::pin(embedded(job, stores, pool)) => outcome?,
        name = signals.next() => {
            output::note(format_args!("quickstart: {name}: stopped; the sample data stays in {out}"));
            return Ok(signalled(name));
        }
    };
    shared::finish("quickstart", &outcome, &epochs, global.quiet)?;
    say(global, "\nnext: change examples/pipelines/quickstart.yaml, then `caju check` and `caju run` it")?;
    Ok(0)
}

fn say(global: &Global, line: &str) -> Result<()> {
    if global.quiet { Ok(()) } else { output::say(line) }
}

/// The example pipeline over the generated files.
fn pipeline(out: &str) -> Result<DatasetDef> {
    let mut def = DatasetDef::from_yaml(PIPELINE, Some(std::path::Path::new("/")))?;
    match &mut def.source {
        SourceDef::Files(files) => {
            files.paths = vec![format!("{}/tfrecord/*.tfrecord", out.trim_end_matches('/'))]
        }
        _ => return Err(Error::internal("the quickstart pipeline does not read files")),
    }
    Ok(def)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_reads_the_generated_files() {
        let def = pipeline("/tmp/x/").unwrap();
        let SourceDef::Files(files) = &def.source else { panic!("{def:?}") };
        assert_eq!(files.paths, ["/tmp/x/tfrecord/*.tfrecord"]);
        assert_eq!(def.name.as_deref(), Some("quickstart"));
    }
}
