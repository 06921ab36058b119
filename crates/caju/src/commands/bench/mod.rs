//! `caju bench policies`: the offline harness that says what each policy would have cost; and `caju bench taps`.

mod far;
mod own;
mod scratch;
mod summary;
mod taps;
mod text;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, Stores, cpu_time};
use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use self::far::Distance;
use self::scratch::{Room, Scratch};
use self::summary::{Summary, median};
use super::epochs::Consumer;
use super::run::{Job, embedded};
use super::{check, shared};
use crate::cli::{BenchArgs, BenchCommand, EpochArgs, Global, Mode, OneTrial, PoliciesArgs};
use crate::output;
use crate::plot::{self, Bar, Chart, Picture};
use crate::report::{self, EpochReport};

/// One job under one policy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// The policy.
    pub(crate) policy: String,
    /// Which round.
    pub(crate) repeat: u32,
    /// Whether the cache held what the cold job of the round left.
    pub(crate) warm: bool,
    /// Its epochs.
    pub(crate) epochs: Vec<EpochReport>,
    /// Bytes in the cache afterwards.
    pub(crate) stored_bytes: u64,
    /// What a planning policy chose.
    pub(crate) choice: Option<serde_json::Value>,
    /// All that it said: what it predicted of every option, and why.
    pub(crate) decision: Option<serde_json::Value>,
    /// CPU seconds of the process.
    pub(crate) cpu_s: f64,
}

impl Trial {
    /// Seconds of all epochs.
    pub(crate) fn total_s(&self) -> f64 {
        self.epochs.iter().map(|e| e.wall_s).sum()
    }

    /// Seconds of so many epochs: those that were not measured are like the last ones.
    pub(crate) fn horizon_s(&self, epochs: u64) -> f64 {
        let more = epochs.saturating_sub(self.epochs.len() as u64) as f64;
        self.total_s() + more * self.steady_s()
    }

    /// Seconds of a steady epoch: the median of the last ones, by when everything is stored and was checked.
    pub(crate) fn steady_s(&self) -> f64 {
        let last = (self.epochs.len().saturating_sub(1) / 2).max(1);
        let times = self.epochs.iter().rev().take(last).map(|e| e.wall_s);
        median(times.collect())
    }

    /// Rows per second of a steady epoch.
    pub(crate) fn steady_rows_per_s(&self) -> f64 {
        let rows = self.epochs.last().map_or(0, |e| e.rows);
        rows as f64 / self.steady_s().max(1e-9)
    }
}

/// Runs what was asked for.
///
/// # Errors
/// A wrong file, and what the jobs fail with.
pub(crate) async fn run(global: &Global, args: &BenchArgs, again: Option<Vec<OsString>>) -> Result<()> {
    match &args.command {
        BenchCommand::Policies(args) => run_policies(global, args, again).await,
        BenchCommand::Taps(args) => taps::run(global, args).await,
    }
}

async fn run_policies(global: &Global, args: &PoliciesArgs, again: Option<Vec<OsString>>) -> Result<()> {
    if let Some(one) = &args.trial {
        return own::tell(one_trial(global, args, one)).await;
    }
    let def = shared::read_pipeline(&args.file)?;
    let picture = args.plot.as_deref().map(Picture::of).transpose()?;
    let policies = policies(args, &def)?;
    // What can be read only once, a pipe say, another process would find empty.
    let again = again.filter(|_| args.file.is_file());
    let bench = Bench::open(args, &def, again).await?;
    let mut trials = Vec::new();
    bench.rounds(global, &policies, 0..args.repeats, &mut trials).await?;
    let last = args.repeats.saturating_add(args.finals);
    let finalists = Summary::of(&policies, &trials, args.epochs, args.horizon()).finalists();
    bench.rounds(global, &finalists, args.repeats..last, &mut trials).await?;
    let summary = Summary::of(&policies, &trials, args.epochs, args.horizon());
    output::say(format_args!("{}\n\n{}", check::title(&def, &args.file), summary.text().trim_end()))?;
    if let Some(path) = &args.out {
        let result = serde_json::json!({
            "schema": "caju.policies/v1",
            "pipeline": def.to_json(),
            "epochs": args.epochs,
            "horizon": args.horizon(),
            "cores": shared::cores(),
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

/// The policies to run: those asked for, or all that differ.
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

/// Each once, where it stands first: trials are known by their policies.
fn distinct(policies: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    policies.iter().filter(|p| seen.insert(*p)).cloned().collect()
}

struct Bench<'a> {
    args: &'a PoliciesArgs,
    def: &'a DatasetDef,
    scratch: Scratch,
    pool: CpuPool,
    /// How to start a process like this one.
    again: Option<Vec<OsString>>,
}

/// In a process of its own.
async fn one_trial(global: &Global, args: &PoliciesArgs, one: &OneTrial) -> Result<Vec<Trial>> {
    let def = shared::read_pipeline(&args.file)?;
    Bench::open(args, &def, None).await?.trials(global, &one.policy, one.round).await
}

impl<'a> Bench<'a> {
    async fn open(args: &'a PoliciesArgs, def: &'a DatasetDef, again: Option<Vec<OsString>>) -> Result<Self> {
        let scratch = match (args.store_bandwidth, args.store_latency) {
            (None, None) => Scratch::open(args.scratch.as_deref()).await?,
            (bytes_per_s, latency) => {
                Scratch::far(Distance { bytes_per_s, latency: latency.unwrap_or_default() })?
            }
        };
        Ok(Self { args, def, scratch, pool: shared::cpu_pool(args.cpu_threads)?, again })
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
            // Every second round runs backwards: what drifts, drifts for and against everybody.
            let mut order: Vec<&String> = policies.iter().collect();
            if repeat % 2 == 1 {
                order.reverse();
            }
            for policy in order {
                // What one trial left in memory must not be at hand, or in the way, in the next.
                trials.extend(match &self.again {
                    Some(again) => own::ask(again, policy, repeat).await?,
                    None => self.trials(global, policy, repeat).await?,
                });
            }
        }
        Ok(())
    }

    /// A cold job and, unless left out, a warm one, in a cache of their own that goes with them, however they end.
    async fn trials(&self, global: &Global, policy: &str, repeat: u32) -> Result<Vec<Trial>> {
        let room = self.scratch.room()?;
        let jobs = Box::pin(self.jobs(global, policy, repeat, &room));
        let trials = tokio::select! {
            trials = jobs => trials,
            () = own::nobody_waits(self.args.trial.is_some()) => Err(own::abandoned()),
        };
        if let Err(e) = room.remove().await {
            // What was measured is worth more than what it left.
            output::note(format_args!("a cache could not be removed, please do: {}", e.message()));
        }
        trials
    }

    async fn jobs(&self, global: &Global, policy: &str, repeat: u32, room: &Room) -> Result<Vec<Trial>> {
        let mut trials = Vec::new();
        for warm in [false, true] {
            if warm && self.args.cold_only {
                break;
            }
            let trial = Box::pin(self.trial(policy, repeat, warm, room)).await?;
            if !global.quiet {
                let state = if warm { "warm" } else { "cold" };
                let times: Vec<String> = trial.epochs.iter().map(|e| format!("{:.2}", e.wall_s)).collect();
                output::note(format!("round {} {policy} {state}: {} s", repeat + 1, times.join(" ")));
            }
            trials.push(trial);
        }
        Ok(trials)
    }

    async fn trial(&self, policy: &str, repeat: u32, warm: bool, room: &Room) -> Result<Trial> {
        let epochs = EpochArgs {
            cache_only: false,
            epochs: self.args.epochs,
            horizon: Some(self.args.horizon()),
            seed: None,
            processing_mode: Mode::Dynamic,
            policy: Some(policy.to_string()),
            encoding: self.args.encoding.clone(),
            report: None,
            no_checksum: true,
        };
        let before = cpu_time();
        let job = Job {
            def: self.def,
            workers: self.args.workers,
            cache: Some(room.url()),
            cache_budget: self.args.cache_budget,
            record_autocache_events: None,
            epochs: &epochs,
            quiet: true,
            consumer: Consumer { copies: true, step: self.args.step.unwrap_or_default() },
            cpu_before: Duration::ZERO,
        };
        let stores = Arc::new(Stores::new(shared::store_options(), None)?);
        self.scratch.register(&stores)?;
        let outcome = Box::pin(embedded(job, stores, self.pool.clone())).await?;
        let cpu_s = cpu_time().saturating_sub(before).as_secs_f64();
        Ok(Trial {
            policy: policy.to_string(),
            repeat,
            warm,
            epochs: outcome.report.epochs,
            stored_bytes: room.bytes().await?,
            choice: outcome.report.decision.as_ref().and_then(|d| d.get("choice").cloned()),
            decision: outcome.report.decision,
            cpu_s,
        })
    }
}

impl PoliciesArgs {
    /// Epochs of the job that is judged.
    fn horizon(&self) -> u64 {
        self.horizon.unwrap_or(0).max(self.epochs)
    }
}

/// What is said of epochs that were not measured.
fn beyond(args: &PoliciesArgs) -> String {
    match args.horizon() - args.epochs {
        0 => String::new(),
        more => {
            format!("{} epochs were measured; {more} more are taken to be like the last ones. ", args.epochs)
        }
    }
}

fn chart(def: &DatasetDef, args: &PoliciesArgs, summary: &Summary) -> Chart {
    let rounds = match (summary.noise, args.finals) {
        (None, _) => "One round: noise unknown.".to_string(),
        (Some(noise), finals) => {
            let more = if finals > 0 { format!(", and {finals} more of the best") } else { String::new() };
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
