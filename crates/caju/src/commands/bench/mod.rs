//! `caju bench`: what each caching policy costs on a pipeline, what profiling itself costs, and the databases of
//! the journal.

mod dispatcher;
mod exactly_once;
mod journal;
mod profiling_overhead;
mod scratch;
mod server;
mod slow_store;
mod source;
mod state;
mod stats;
mod summary;
mod text;
mod trial;
mod trial_process;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, Stores, cpu_time};
use caju_types::{Error, Result};

use self::scratch::{Scratch, TrialCache};
use self::slow_store::Throttle;
use self::summary::Summary;
use self::trial::Trial;
use super::announce::Announce;
use super::epochs::{Consumer, OnSignal};
use super::run::{Job, embedded};
use super::{check, pipeline_file, shared};
use crate::cli::{BenchArgs, BenchCommand, EpochArgs, Global, Mode, OneTrial, PoliciesArgs, ReorderArgs};
use crate::cores::available_cores;
use crate::output;
use crate::plot::{self, Bar, Chart, Picture};
use crate::report;

/// Runs the benchmark.
///
/// # Errors
/// A wrong file, and what the jobs fail with.
pub(crate) async fn run(global: &Global, args: &BenchArgs, relaunch: Option<Vec<OsString>>) -> Result<()> {
    match &args.command {
        BenchCommand::Policies(args) => run_policies(global, args, relaunch).await,
        BenchCommand::ProfilingOverhead(args) => profiling_overhead::run(global, args).await,
        BenchCommand::Journal(args) => journal::run(args).await,
        BenchCommand::State(args) => state::run(args).await,
        BenchCommand::ExactlyOnce(args) => exactly_once::run(global, args).await,
        BenchCommand::Dispatcher(args) => dispatcher::run(args).await,
    }
}

async fn run_policies(global: &Global, args: &PoliciesArgs, relaunch: Option<Vec<OsString>>) -> Result<()> {
    if let Some(one) = &args.trial {
        return trial_process::respond(one_trial(global, args, one)).await;
    }
    let def = pipeline_file::read(&args.file)?;
    let picture = args.plot.as_deref().map(Picture::of).transpose()?;
    let policies = policies(args, &def)?;
    // A pipe can be read only once: another process would find it empty.
    let relaunch = relaunch.filter(|_| args.file.is_file());
    let bench = Bench::open(args, &def, relaunch).await?;
    let mut trials = Vec::new();
    bench.rounds(global, &policies, 0..args.repeats, &mut trials).await?;
    let last = args.repeats.saturating_add(args.refine_rounds);
    let refined = Summary::of(&policies, &trials, args.epochs, args.horizon()).refined();
    bench.rounds(global, &refined, args.repeats..last, &mut trials).await?;
    let summary = Summary::of(&policies, &trials, args.epochs, args.horizon());
    output::say(format_args!("{}\n\n{}", check::title(&def, &args.file), summary.text().trim_end()))?;
    if let Some(path) = &args.out {
        let result = serde_json::json!({
            "schema": "caju.policies/v1",
            "pipeline": def.to_json(),
            "epochs": args.epochs,
            "horizon": args.horizon(),
            "cores": available_cores(),
            "summary": summary,
            "trials": trials,
        });
        let text = serde_json::to_string_pretty(&result).map_err(|e| Error::internal(e.to_string()))?;
        report::write_bytes(path, text.as_bytes(), "--out")?;
    }
    if let (Some(path), Some(picture)) = (&args.plot, picture) {
        report::write_bytes(path, &plot::draw(&chart(&def, args, &summary), picture)?, "--plot")?;
    }
    Ok(())
}

/// The policies to run: those of `--policies`, or all that differ.
fn policies(args: &PoliciesArgs, def: &DatasetDef) -> Result<Vec<String>> {
    let hints = def.hints();
    if !args.policies.is_empty() {
        let unknown = args.policies.iter().filter_map(|p| p.strip_prefix("hint:"));
        for name in unknown {
            def.hint(name)?;
        }
        return Ok(distinct(&args.policies));
    }
    let mut all = vec!["compute".to_string()];
    all.extend(hints.iter().map(|h| format!("hint:{}", h.name)));
    if !hints.is_empty() {
        all.extend(["cachew".to_string(), "auto".to_string()]);
    }
    Ok(all)
}

/// Each policy once, at its first place: trials are identified by their policies.
fn distinct(policies: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    policies.iter().filter(|p| seen.insert(*p)).cloned().collect()
}

struct Bench<'a> {
    args: &'a PoliciesArgs,
    def: &'a DatasetDef,
    scratch: Scratch,
    /// The threads of all trials.
    pool: CpuPool,
    /// The command line that starts this command again; absent where trials run in this process.
    relaunch: Option<Vec<OsString>>,
}

/// The trials of one policy in one round, in a process of their own.
async fn one_trial(global: &Global, args: &PoliciesArgs, one: &OneTrial) -> Result<Vec<Trial>> {
    let def = pipeline_file::read(&args.file)?;
    Bench::open(args, &def, None).await?.trials(global, &one.policy, one.round).await
}

impl<'a> Bench<'a> {
    async fn open(
        args: &'a PoliciesArgs,
        def: &'a DatasetDef,
        relaunch: Option<Vec<OsString>>,
    ) -> Result<Self> {
        let scratch = match (args.store_bandwidth, args.store_latency) {
            (None, None) => Scratch::open(args.scratch.as_deref()).await?,
            (bytes_per_s, latency) => {
                Scratch::slow(Throttle { bytes_per_s, latency: latency.unwrap_or_default() })?
            }
        };
        Ok(Self { args, def, scratch, pool: shared::tuned_pool(args.compute.cpu_threads)?, relaunch })
    }

    /// A trial of each of these policies in each of these rounds.
    async fn rounds(
        &self,
        global: &Global,
        policies: &[String],
        rounds: Range<u32>,
        trials: &mut Vec<Trial>,
    ) -> Result<()> {
        for repeat in rounds {
            // Every second round runs in reverse order, so that drift of the machine favours no policy.
            let mut order: Vec<&String> = policies.iter().collect();
            if repeat % 2 == 1 {
                order.reverse();
            }
            for policy in order {
                // What one trial left in memory must neither help nor hinder the next one.
                trials.extend(match &self.relaunch {
                    Some(command) => trial_process::request(command, policy, repeat).await?,
                    None => self.trials(global, policy, repeat).await?,
                });
            }
        }
        Ok(())
    }

    /// A cold job and, without `--cold-only`, a warm one, in a cache of their own. The cache is removed afterwards,
    /// also after an error.
    async fn trials(&self, global: &Global, policy: &str, repeat: u32) -> Result<Vec<Trial>> {
        let cache = self.scratch.new_cache()?;
        let jobs = Box::pin(self.jobs(global, policy, repeat, &cache));
        let trials = tokio::select! {
            trials = jobs => trials,
            () = trial_process::requester_ended(self.args.trial.is_some()) => Err(trial_process::abandoned()),
        };
        if let Err(e) = cache.remove().await {
            // The measurement counts although its cache is left over.
            output::note(format_args!("a cache could not be removed; remove it by hand: {}", e.message()));
        }
        trials
    }

    async fn jobs(
        &self,
        global: &Global,
        policy: &str,
        repeat: u32,
        cache: &TrialCache,
    ) -> Result<Vec<Trial>> {
        let mut trials = Vec::new();
        for warm in [false, true] {
            if warm && self.args.cold_only {
                break;
            }
            let trial = Box::pin(self.trial(policy, repeat, warm, cache)).await?;
            if !global.quiet {
                let state = if warm { "warm" } else { "cold" };
                let times: Vec<String> = trial.epochs.iter().map(|e| format!("{:.2}", e.wall_s)).collect();
                output::note(format!("round {} {policy} {state}: {} s", repeat + 1, times.join(" ")));
            }
            trials.push(trial);
        }
        Ok(trials)
    }

    async fn trial(&self, policy: &str, repeat: u32, warm: bool, cache: &TrialCache) -> Result<Trial> {
        let epochs = EpochArgs {
            cache_only: false,
            order: ReorderArgs::default(),
            epochs: self.args.epochs,
            horizon: Some(self.args.horizon()),
            seed: None,
            processing_mode: Mode::Dynamic,
            policy: Some(policy.to_string()),
            encoding: self.args.encoding,
            report: None,
            no_checksum: true,
        };
        let before = cpu_time();
        let job = Job {
            def: self.def,
            file: Some(&self.args.file),
            workers: self.args.workers,
            cache: Some(cache.url()),
            cache_budget: self.args.cache_budget,
            record_autocache_events: None,
            cache_memory: None,
            epochs: &epochs,
            quiet: true,
            announce: Announce::AtEnds,
            consumer: Consumer { copies: true, step: self.args.step.unwrap_or_default() },
            cpu_before: Duration::ZERO,
            on_signal: OnSignal::Default,
        };
        let stores = Arc::new(Stores::new(shared::store_options(), None)?);
        self.scratch.register(&stores)?;
        let cluster = shared::cluster_on(self.pool.clone(), &self.args.compute.tuned, stores);
        let outcome = Box::pin(embedded(job, cluster)).await?;
        let cpu_s = cpu_time().saturating_sub(before).as_secs_f64();
        Ok(Trial {
            policy: policy.to_string(),
            repeat,
            warm,
            epochs: outcome.report.epochs,
            stored_bytes: cache.bytes().await?,
            choice: outcome.report.decision.as_ref().map(|d| d.choice.clone()),
            decision: outcome.report.decision,
            cpu_s,
        })
    }
}

impl PoliciesArgs {
    /// Epochs of the job for which policies are compared.
    fn horizon(&self) -> u64 {
        self.horizon.unwrap_or(0).max(self.epochs)
    }
}

/// The caption's sentence about epochs that were not measured.
fn beyond(args: &PoliciesArgs) -> String {
    match args.horizon() - args.epochs {
        0 => String::new(),
        more => {
            format!(
                "{} epochs were measured; {more} more are assumed to be like the last ones. ",
                args.epochs
            )
        }
    }
}

fn chart(def: &DatasetDef, args: &PoliciesArgs, summary: &Summary) -> Chart {
    let rounds = match (summary.noise, args.refine_rounds) {
        (None, _) => "One round: noise unknown.".to_string(),
        (Some(noise), refine_rounds) => {
            let more = if refine_rounds > 0 {
                format!(", and {refine_rounds} more of the best")
            } else {
                String::new()
            };
            let all = if args.repeats == 1 {
                "one round".into()
            } else {
                format!("{} alternating rounds", args.repeats)
            };
            format!("Medians of {all}{more}; noise between them is {:.1} %.", 100.0 * noise)
        }
    };
    let name = def.name.clone().unwrap_or_else(|| args.file.display().to_string());
    let bars = summary.lines.iter().map(|line| Bar {
        label: line.policy.clone(),
        predicted: Some(line.horizon_s),
        note: format!("{:.2} s, regret {}", line.horizon_s, text::regret(line)),
        measured: line.warm_horizon_s.map(|s| (s, format!("{s:.2} s warm"))),
        chosen: line.policy == "auto",
    });
    Chart {
        title: format!("{name}: time of {} epochs under each policy", args.horizon()),
        caption: format!(
            "{rounds} Above: a cold job, which writes its cache. Below: a warm one, which finds it. {}Regret is the \
             time lost against the best measured policy, round by round.",
            beyond(args)
        ),
        unit: "seconds, less is better".into(),
        legend: Some(["cold job", "warm job"]),
        bars: bars.collect(),
    }
}

#[cfg(test)]
mod tests;
