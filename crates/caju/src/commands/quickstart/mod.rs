//! `caju quickstart`: sample photos if there are none, and three epochs of a training pipeline on them.

mod text;

use std::sync::Arc;

use caju_embedded::ClusterConfig;
use caju_pipeline::{DatasetDef, SourceDef};
use caju_runtime::cpu_time;
use caju_samples::{Format, Kind, SampleSet, is_complete};
use caju_types::{Error, Result, format_count};

use super::announce::Announce;
use super::epochs::{Consumer, OnSignal, Outcome};
use super::r#gen::{folder, generate, signalled};
use super::run::{Job, embedded};
use super::serve::Signals;
use super::shared;
use crate::cli::{DEFAULT_DIR, EpochArgs, Global, Mode, QuickstartArgs, ReorderArgs};
use crate::cores::available_cores;
use crate::output;

/// The pipeline that it runs. Users run and change the same file.
const PIPELINE: &str = include_str!("../../../../../examples/pipelines/quickstart.yaml");

/// The most threads that compute. Each holds the decoded photos of a chunk of rows, up to about 15 MB, and the command
/// is to stay below 500 MB. 2,000 photos do not need more threads.
const MAX_CPU_THREADS: usize = 8;

/// The memory tier of the cache, in bytes. It also bounds the rows that are held back until the decision, which take
/// about 175 KB each: 380 of the 2,000. Together with the mapped snapshot, 130 MB, the command stays below 500 MB.
const MEMORY_TIER_BYTES: u64 = 64 << 20;

/// Generates and runs, to the exit code.
///
/// # Errors
/// Those of `caju gen` and `caju run`.
pub(crate) async fn run(global: &Global, args: &QuickstartArgs) -> Result<u8> {
    if args.print_pipeline {
        output::say(pipeline_text(&args.dir.to_string_lossy())?.trim_end())?;
        return Ok(0);
    }
    let stores = Arc::new(shared::stores()?);
    let threads = available_cores().min(MAX_CPU_THREADS);
    let pool = shared::cpu_pool(u32::try_from(threads).ok())?;
    let out = folder("--dir", &args.dir.to_string_lossy())?;
    let cache = match &args.cache {
        Some(cache) => folder("--cache", cache)?,
        None => format!("{}-cache", out.trim_end_matches('/')),
    };
    let set = SampleSet {
        kind: Kind::Images,
        out: out.clone(),
        count: args.count,
        seed: 0,
        formats: vec![Format::Tfrecord],
        shards: None,
        // In its own folder it replaces the data of an interrupted or another quickstart. `write` keeps other files.
        overwrite: args.overwrite || args.dir == std::path::Path::new(DEFAULT_DIR),
    };
    if is_complete(&set, &stores).await? {
        say(global, &format!("sample data: {out} has the {} photos already\n", format_count(args.count)))?;
    } else {
        say(global, &format!("sample data: {} photos into {out}", format_count(args.count)))?;
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
    say(global, &format!("\n{}\n", text::introduction(args.epochs)))?;
    let epochs = EpochArgs {
        cache_only: false,
        order: ReorderArgs::default(),
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
        file: None,
        cache: Some(cache.clone()),
        cache_budget: None,
        record_autocache_events: None,
        cache_memory: Some(MEMORY_TIER_BYTES),
        workers: 1,
        epochs: &epochs,
        quiet: global.quiet,
        announce: if global.quiet { Announce::AtEnds } else { Announce::Print },
        consumer: Consumer::default(),
        cpu_before: cpu_time(),
        on_signal: OnSignal::Default,
    };
    let cluster = ClusterConfig { registry: shared::registry(), ..ClusterConfig::new(stores, pool) };
    // `gen` took over the signals, so they do not end the process by themselves any more.
    let mut signals = Signals::new()?;
    let outcome = tokio::select! {
        outcome = Box::pin(embedded(job, cluster)) => outcome?,
        name = signals.next() => {
            output::note(format_args!("quickstart: {name}: stopped; the sample data stays in {out}"));
            return Ok(signalled(name));
        }
    };
    let outcome = Outcome { has_conclusion: true, ..outcome };
    say(global, "")?;
    shared::finish("quickstart", &outcome, &epochs, global.quiet)?;
    say(global, &text::conclusion(&outcome.report, &cache, outcome.snapshot.as_deref()))?;
    Ok(0)
}

fn say(global: &Global, line: &str) -> Result<()> {
    if global.quiet { Ok(()) } else { output::say(line) }
}

/// The files in [`PIPELINE`], as they are written there.
const PIPELINE_FILES: &str = "\"../../data/quickstart/*.tfrecord\"";

/// The file of the pipeline for the working folder: with the generated files below `dir`.
fn pipeline_text(dir: &str) -> Result<String> {
    let files = serde_json::to_string(&format!("{}/*.tfrecord", dir.trim_end_matches('/')))
        .map_err(|e| Error::internal(format!("a path as YAML: {e}")))?;
    Ok(PIPELINE.replace(PIPELINE_FILES, &files))
}

/// The example pipeline over the generated files.
fn pipeline(out: &str) -> Result<DatasetDef> {
    let mut def = DatasetDef::from_yaml(PIPELINE, Some(std::path::Path::new("/")))?;
    match &mut def.source {
        SourceDef::Files(files) => files.paths = vec![format!("{}/*.tfrecord", out.trim_end_matches('/'))],
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
        assert_eq!(files.paths, ["/tmp/x/*.tfrecord"]);
        assert_eq!(def.name.as_deref(), Some("quickstart"));
        assert_eq!(def.hints().len(), 2);
    }

    #[test]
    fn the_printed_pipeline_reads_the_generated_files_from_the_working_folder() {
        for (dir, files) in [
            ("data/quickstart", "/home/me/data/quickstart/*.tfrecord"),
            ("/tmp/a \"b\"/", "/tmp/a \"b\"/*.tfrecord"),
        ] {
            let text = pipeline_text(dir).unwrap();
            assert!(text.contains("# Each record is a tf.train.Example."), "{text}");
            let def = DatasetDef::from_yaml(&text, Some(std::path::Path::new("/home/me"))).unwrap();
            let SourceDef::Files(read) = &def.source else { panic!("{def:?}") };
            assert_eq!(read.paths, [files]);
        }
    }
}
