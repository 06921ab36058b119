//! `simulate`: runs seeds of the simulation.
//!
//! Each seed runs in a process of its own: the libraries have state that lasts as long as a process.

use std::collections::VecDeque;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use caju_simulation::{Report, Scenario, Spoil, run};
use caju_types::{Error, Result};
use clap::Parser;
use parking_lot::Mutex;

/// Simulates clusters under faults that a seed determines, and compares what happens with a model.
#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Args {
    /// Run this number of seeds.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run one seed and print every event.
    #[arg(long)]
    seed: Option<u64>,
    /// Processes at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// What the runs are about.
    #[arg(long, value_enum, default_value_t)]
    scenario: Scenario,
    /// Put a fault of the code into every run.
    #[arg(long, value_enum)]
    spoil: Option<Spoil>,
    /// End with the first seed that fails.
    #[arg(long)]
    until_failure: bool,
    /// With `--seed`: print the report as JSON, and no events.
    #[arg(long)]
    json: bool,
    /// With `--seed`: print the log of the processes from this level on, such as `debug`.
    #[arg(long)]
    log: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) => one(seed, &args),
        None => many(&args),
    }
}

fn one(seed: u64, args: &Args) -> ExitCode {
    if let Some(level) = &args.log {
        tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
    }
    let report = match run(seed, args.scenario, args.spoil, !args.json) {
        Ok(report) => report,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
    } else {
        println!("{}", describe(&report));
    }
    ExitCode::from(u8::from(!report.violations.is_empty()))
}

fn describe(report: &Report) -> String {
    let Report { seed, digest, events, simulated_ms, plan, violations, errors } = report;
    let seconds = *simulated_ms as f64 / 1e3;
    let mut text =
        format!("seed {seed}: {events} events in {seconds:.1} simulated s, digest {digest}: {plan}");
    errors.iter().for_each(|e| text += &format!("\n  permitted: {e}"));
    violations.iter().for_each(|v| text += &format!("\n  VIOLATION: {v}"));
    text
}

fn many(args: &Args) -> ExitCode {
    let begin = Instant::now();
    let queue: Arc<Mutex<VecDeque<u64>>> =
        Arc::new(Mutex::new((args.first..args.first.saturating_add(args.seeds)).collect()));
    let (failed, begun) = (Arc::new(Mutex::new(Vec::new())), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    if args.until_failure && !failed.lock().is_empty() {
                        return;
                    }
                    let Some(seed) = queue.lock().pop_front() else { return };
                    begun.fetch_add(1, Ordering::Relaxed);
                    match child(seed, args) {
                        Ok(report) if report.violations.is_empty() => {}
                        Ok(report) => {
                            println!("{}\n  replay: {}", describe(&report), replay(seed, args));
                            failed.lock().push(seed);
                        }
                        Err(e) => {
                            println!("seed {seed}: {e}\n  replay: {}", replay(seed, args));
                            failed.lock().push(seed);
                        }
                    }
                }
            });
        }
    });
    let mut failed = failed.lock().clone();
    failed.sort_unstable();
    let begun = begun.load(Ordering::Relaxed);
    println!(
        "{} of {begun} seeds passed in {:.0} s; failed: {failed:?}",
        begun.saturating_sub(failed.len() as u64),
        begin.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// The arguments of one seed.
fn arguments(seed: u64, args: &Args) -> Vec<String> {
    let mut of = vec!["--seed".to_string(), seed.to_string()];
    if args.scenario != Scenario::default() {
        of.extend(["--scenario".to_string(), name(args.scenario)]);
    }
    if let Some(spoil) = args.spoil {
        of.extend(["--spoil".to_string(), name(spoil)]);
    }
    of
}

/// The line that repeats a run.
fn replay(seed: u64, args: &Args) -> String {
    format!("cargo run -p caju-simulation -- {}", arguments(seed, args).join(" "))
}

fn name(value: impl clap::ValueEnum) -> String {
    clap::ValueEnum::to_possible_value(&value).map_or_else(String::new, |v| v.get_name().to_string())
}

/// Runs a seed in a process of its own.
fn child(seed: u64, args: &Args) -> Result<Report> {
    let failed = |e: &dyn std::fmt::Display| Error::internal(format!("the run did not end in order: {e}"));
    let mut command = Command::new(std::env::current_exe().map_err(|e| failed(&e))?);
    command.args(arguments(seed, args)).arg("--json");
    let output = command.stdin(Stdio::null()).output().map_err(|e| failed(&e))?;
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(said.trim()).map_err(|_| {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = errors.lines().rev().take(3).collect();
        failed(&format!("{}: {}", output.status, last.into_iter().rev().collect::<Vec<_>>().join(" | ")))
    })
}
