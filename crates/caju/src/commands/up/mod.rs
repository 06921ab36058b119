//! `caju up`: a dispatcher in this process, and worker processes, as many as its target names.

mod arguments;
mod pool;
mod process;
mod restarts;

use std::time::Duration;

use caju_dispatcher::WorkerList;
use caju_planner::ScalingTarget;
use caju_types::{Error, Result, format_count, format_duration};

use self::arguments::worker_command;
use self::pool::WorkerPool;
use self::restarts::RestartLimit;
use super::OwnCommand;
use super::dispatcher::Server;
use super::serve::{Signals, drain, until_stdin_ends};
use crate::cli::{CpuThreads, Global, UpArgs, WorkerCount};
use crate::cores::available_cores;
use crate::output;

/// With `--workers auto` a worker has this part of the cores by default: the number of workers can follow the need in steps
/// that matter, and a worker has threads enough to decode on several while it waits for others.
const CORES_PART: usize = 4;
/// How often a changed number of epochs shows in the status line. Other changes show at once.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// What the end may take beyond `--drain-timeout`: workers that do not end by themselves are killed, and the dispatcher
/// answers its last calls.
const END_GRACE: Duration = Duration::from_secs(10);

/// Runs until a signal arrives.
///
/// # Errors
/// A wrong setting, a port in use, and workers that end again and again.
pub(crate) async fn run(global: &Global, args: &UpArgs, own: Option<OwnCommand>) -> Result<()> {
    until_stdin_ends(&args.settings.serve, Box::pin(serve(global, args, own))).await
}

async fn serve(global: &Global, args: &UpArgs, own: Option<OwnCommand>) -> Result<()> {
    let settings = &args.settings;
    let size = PoolSize::of(args, available_cores())?;
    let own = own.ok_or_else(|| {
        Error::failed_precondition(
            "caju up starts itself again for each worker, and cannot tell how it was started",
        )
    })?;
    let mut signals = Signals::new()?;
    let server = Server::start(settings, WorkerList::default(), (size.min, size.max)).await?;
    let threads = usize::try_from(size.cpu_threads).unwrap_or(usize::MAX);
    let threads = match args.cpu_threads {
        Some(_) => CpuThreads::Given(threads),
        None => CpuThreads::Auto(Some(threads)),
    };
    let command = worker_command(&own, global, args, threads, server.dispatcher.address())?;
    let mut up = Up {
        pool: WorkerPool::new(command, settings.serve.drain_timeout, RestartLimit::new(args.max_restarts)),
        server,
        auto: args.workers == WorkerCount::Auto,
        size,
        quiet: global.quiet,
        shown: String::new(),
    };
    up.server.announce("up", settings)?;
    if let Err(failure) = up.supervise(&mut signals).await {
        drop(up.pool);
        up.server.shutdown().await;
        return Err(failure);
    }
    let bound = settings.serve.drain_timeout + END_GRACE;
    let end = async { tokio::time::timeout(bound, up.end()).await.unwrap_or(false) };
    drain(&mut signals, "up", &settings.serve, end).await
}

/// How many workers may run, and what each of them may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PoolSize {
    min: u64,
    max: u64,
    cpu_threads: u32,
}

impl PoolSize {
    fn of(args: &UpArgs, cores: usize) -> Result<Self> {
        let (min, max) = (args.settings.min_workers, args.settings.max_workers);
        let threads = |n: usize| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
        match args.workers {
            WorkerCount::Fixed(_) if min.is_some() || max.is_some() => Err(Error::invalid(
                "--workers with a number leaves nothing for --min-workers and --max-workers to decide; leave them out, or say --workers auto",
            )),
            WorkerCount::Fixed(n) => {
                let part = cores / usize::try_from(n).unwrap_or(usize::MAX).max(1);
                Ok(Self { min: n, max: n, cpu_threads: args.cpu_threads.unwrap_or_else(|| threads(part)) })
            }
            WorkerCount::Auto if args.settings.scaling_interval.is_zero() => Err(Error::invalid(
                "--workers auto follows the target, and --scaling-interval 0s computes none; give an interval, or a number of workers",
            )),
            WorkerCount::Auto => {
                let cpu_threads = args.cpu_threads.unwrap_or_else(|| threads(cores.div_ceil(CORES_PART)));
                let min = min.unwrap_or(1);
                let fitting = (cores as u64 / u64::from(cpu_threads.max(1))).max(1);
                Ok(Self { min, max: max.unwrap_or(fitting.max(min)), cpu_threads })
            }
        }
    }
}

/// The dispatcher and its workers.
struct Up {
    server: Server,
    pool: WorkerPool,
    auto: bool,
    size: PoolSize,
    quiet: bool,
    /// The last status line.
    shown: String,
}

impl Up {
    /// Keeps as many workers running as are wanted, until a signal arrives.
    async fn supervise(&mut self, signals: &mut Signals) -> Result<()> {
        let mut targets = self.server.dispatcher.scaling_target();
        let failed = self.server.dispatcher.watch_failure();
        tokio::pin!(failed);
        loop {
            let target = targets.borrow_and_update().clone();
            let wanted = if self.auto { target.workers } else { self.size.max };
            self.pool.want(wanted.clamp(self.size.min, self.size.max));
            self.show(&target);
            tokio::select! {
                _ = signals.next() => return Ok(()),
                failure = &mut failed => return Err(failure),
                event = self.pool.event() => self.pool.apply(event)?,
                Ok(()) = targets.changed() => {}
                () = tokio::time::sleep(STATUS_INTERVAL) => {}
            }
        }
    }

    /// Prints what has changed.
    fn show(&mut self, target: &ScalingTarget) {
        let reason = if self.auto { target.reason.as_str() } else { "" };
        let line = status_line(self.pool.counts(), self.server.dispatcher.epochs_read(), reason);
        if !self.quiet && line != self.shown {
            output::note(format_args!("up: {line}"));
        }
        self.shown = line;
    }

    /// Opens no epoch any more; ends the workers, which serve present readers to the end of their epochs; then ends the
    /// dispatcher. False if work was still running when the time was over.
    async fn end(self) -> bool {
        let Self { server, mut pool, .. } = self;
        server.dispatcher.open_no_more();
        if pool.end().await {
            return server.drain().await;
        }
        // No worker is left to serve the remaining readers.
        server.shutdown().await;
        false
    }
}

/// `2 of 3 workers listen, 1 leaves; 1 epoch is read. REASON`
fn status_line(workers: pool::Counts, epochs: u64, reason: &str) -> String {
    let mut line =
        format!("{} of {} workers run", format_count(workers.listening), format_count(workers.wanted));
    if workers.leaving > 0 {
        line.push_str(&format!(", {} more drain", format_count(workers.leaving)));
    }
    let s = if epochs == 1 { " is" } else { "s are" };
    line.push_str(&format!("; {} epoch{s} read", format_count(epochs)));
    if !reason.is_empty() {
        line.push_str(&format!(". {reason}"));
    }
    line
}

/// The error of workers that end again and again.
fn too_many(ended: &str, limit: u32, window: Duration) -> Error {
    Error::failed_precondition(format!(
        "{ended}, and more than {limit} workers have ended by themselves within {} (--max-restarts); what they said is above",
        format_duration(window)
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn size(args: &[&str], cores: usize) -> Result<(u64, u64, u32)> {
        let Command::Up(up) = Cli::parse_from([&["caju", "up"], args].concat()).command else { panic!() };
        PoolSize::of(&up, cores).map(|size| (size.min, size.max, size.cpu_threads))
    }

    #[test]
    fn the_cores_bound_the_workers_of_auto() {
        assert_eq!(size(&[], 16).unwrap(), (1, 4, 4));
        assert_eq!(size(&[], 2).unwrap(), (1, 2, 1));
        assert_eq!(size(&[], 1).unwrap(), (1, 1, 1));
        assert_eq!(size(&["--cpu-threads", "32"], 16).unwrap(), (1, 1, 32));
        assert_eq!(size(&["--min-workers", "6"], 16).unwrap(), (6, 6, 4));
        assert_eq!(size(&["--min-workers", "0", "--max-workers", "9"], 16).unwrap(), (0, 9, 4));
        assert_eq!(size(&["--workers", "3"], 16).unwrap(), (3, 3, 5));
        assert_eq!(size(&["--workers", "3", "--cpu-threads", "2"], 16).unwrap(), (3, 3, 2));
        let e = size(&["--workers", "3", "--max-workers", "4"], 16).unwrap_err();
        assert!(e.message().contains("--workers auto"), "{e}");
        let e = size(&["--scaling-interval", "0s"], 16).unwrap_err();
        assert!(e.message().contains("--scaling-interval"), "{e}");
    }

    #[test]
    fn status_lines() {
        let counts = pool::Counts { listening: 2, wanted: 3, leaving: 0 };
        assert_eq!(status_line(counts, 1, ""), "2 of 3 workers run; 1 epoch is read");
        let counts = pool::Counts { listening: 1, wanted: 1, leaving: 2 };
        assert_eq!(
            status_line(counts, 0, "Why."),
            "1 of 1 workers run, 2 more drain; 0 epochs are read. Why."
        );
    }
}
