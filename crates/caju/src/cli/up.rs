//! Arguments of `caju up`.

use clap::Args;

use super::service::DispatcherSettings;

/// How many workers `caju up` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerCount {
    /// As many as the dispatcher's target names.
    Auto,
    /// This many.
    Fixed(u64),
}

/// The most workers of one machine: each is a process.
const MAX_FIXED: u64 = 1024;

impl WorkerCount {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match text.parse() {
            Ok(n) if (1..=MAX_FIXED).contains(&n) => Ok(Self::Fixed(n)),
            _ => Err(format!("expected auto, or a number from 1 to {MAX_FIXED}")),
        }
    }
}

/// `caju up`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju up --allow data/
  caju up --allow data/ --cache cache/ --workers auto --max-workers 4 --cpu-threads 2
  caju up --allow data/ --workers 2

The first line on standard output is: caju up listening on HOST:PORT. Readers connect there.
The dispatcher runs in this process, and each worker in one of its own. Options of `caju worker` that are not here are set \
for all workers as CAJU_* variables or under [worker] in the file of --config.")]
pub(crate) struct UpArgs {
    /// Worker processes: a number, or `auto`, the target of `caju status`
    #[arg(long, value_name = "auto|N", default_value = "auto", value_parser = WorkerCount::parse)]
    pub(crate) workers: WorkerCount,
    /// CPU threads of each worker. By default a quarter of the cores with `auto`, and with N workers their part of the cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cpu_threads: Option<u32>,
    /// How many worker processes may end by themselves within a minute. Each of them is replaced; one more ends the command
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) max_restarts: u32,
    #[command(flatten)]
    pub(crate) settings: DispatcherSettings,
}
