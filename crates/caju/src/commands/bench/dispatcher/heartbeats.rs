//! Part `heartbeats`: answers to the heartbeats of many peers, while splits are leased at a given rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_client::heartbeat_wait;
use caju_runtime::Tasks;
use caju_types::{Error, Result};
use serde_json::{Value, json};

use super::latency::Latencies;
use super::peers::Peers;
use crate::cli::DispatcherBenchArgs;
use crate::commands::bench::server::Server;
use crate::commands::bench::source::LineSource;

/// Heartbeats before the measurement, in intervals: every peer has reported once.
const WARM_UP: u32 = 3;

/// What was measured.
pub(super) struct Heartbeats {
    /// Numbers of workers, clients and jobs.
    peers: [usize; 3],
    /// The cores that the dispatcher may use.
    dispatcher_cores: String,
    workers: Latencies,
    clients: Latencies,
    leases: Latencies,
    splits_per_s: f64,
    /// Answers to clients that came before the end of their wait.
    news: u64,
    cpu_share: f64,
    peak_bytes: u64,
    join: Duration,
}

/// What one simulated peer saw.
#[derive(Default)]
struct Seen {
    times: Latencies,
    splits: usize,
    news: u64,
}

/// When peers act.
#[derive(Clone, Copy)]
struct Schedule {
    /// What is sent before is not measured.
    measured_from: Instant,
    until: Instant,
    interval: Duration,
}

impl Schedule {
    /// When peer `i` of `n` acts for the first time. The peers spread their actions evenly over an interval.
    fn first(&self, i: usize, n: usize) -> Instant {
        let offset = self.interval.mul_f64(i as f64 / n.max(1) as f64);
        self.measured_from.checked_sub(self.interval * WARM_UP).unwrap_or(self.measured_from) + offset
    }
}

/// Lets every peer send its heartbeats at the interval.
///
/// # Errors
/// Those of the calls.
pub(super) async fn measure(
    args: &DispatcherBenchArgs,
    scratch: &LineSource,
    server: &Server,
) -> Result<Heartbeats> {
    let begin = Instant::now();
    let counts = (args.workers, args.clients, args.jobs);
    let peers = Peers::join(&server.address, &scratch.definition(), counts).await?;
    let join = begin.elapsed();
    let measured_from = Instant::now() + args.heartbeat * WARM_UP;
    let until = measured_from + args.duration;
    let schedule = Schedule { measured_from, until, interval: args.heartbeat };
    let tasks = Tasks::new();
    let (n, m) = (peers.workers.len(), peers.clients.len());
    let workers: Vec<_> = (0..n)
        .map(|i| {
            let (peers, first) = (Arc::clone(&peers), schedule.first(i, n));
            tasks.spawn("a simulated worker", async move { worker(&peers, i, first, schedule).await })
        })
        .collect();
    let clients: Vec<_> = (0..m)
        .map(|i| {
            let (peers, first) = (Arc::clone(&peers), schedule.first(i, m));
            tasks.spawn("a simulated client", async move { client(&peers, i, first, schedule).await })
        })
        .collect();
    let leasing: Vec<_> = (0..if args.splits_per_s > 0 { n } else { 0 })
        .map(|i| {
            let interval =
                Duration::from_secs_f64(n as f64 * f64::from(args.lease) / f64::from(args.splits_per_s));
            let schedule = Schedule { interval, ..schedule };
            let (peers, first, want) = (Arc::clone(&peers), schedule.first(i, n), args.lease);
            tasks.spawn("a simulated task", async move { lease(&peers, i, first, schedule, want).await })
        })
        .collect();
    tokio::time::sleep_until(measured_from.into()).await;
    let cpu = server.cpu();
    tokio::time::sleep_until(until.into()).await;
    let cpu = server.cpu().saturating_sub(cpu);
    let workers = all(workers).await?;
    let clients = all(clients).await?;
    let leases = all(leasing).await?;
    Ok(Heartbeats {
        peers: [n, m, peers.jobs()],
        dispatcher_cores: server.cores(),
        splits_per_s: leases.splits as f64 / args.duration.as_secs_f64(),
        workers: workers.times,
        clients: clients.times,
        leases: leases.times,
        news: clients.news,
        cpu_share: cpu.as_secs_f64() / args.duration.as_secs_f64(),
        peak_bytes: server.peak_bytes(),
        join,
    })
}

/// What all of them saw.
async fn all(tasks: Vec<caju_runtime::Task<Result<Seen>>>) -> Result<Seen> {
    let mut sum = Seen::default();
    for task in tasks {
        let seen = task.await.map_err(|e| Error::internal(e.to_string()))??;
        sum.times.append(seen.times);
        sum.splits += seen.splits;
        sum.news += seen.news;
    }
    Ok(sum)
}

async fn worker(peers: &Peers, i: usize, first: Instant, schedule: Schedule) -> Result<Seen> {
    let (mut seen, mut next) = (Seen::default(), first);
    let Some(worker) = peers.workers.get(i) else { return Ok(seen) };
    let tasks: Vec<u64> = peers.tasks_of(i).iter().filter_map(|t| Some(peers.tasks.get(*t)?.id())).collect();
    while next < schedule.until {
        tokio::time::sleep_until(next.into()).await;
        let sent = Instant::now();
        let answer = worker.heartbeat(tasks.clone()).await?;
        if answer.register_again || !answer.cancel_tasks.is_empty() {
            return Err(Error::internal(
                "the dispatcher does not know a simulated worker or its tasks any more",
            ));
        }
        if sent >= schedule.measured_from {
            seen.times.push(sent.elapsed());
        }
        next += schedule.interval;
    }
    Ok(seen)
}

/// As a real client, which asks again as soon as it has an answer.
async fn client(peers: &Peers, i: usize, first: Instant, schedule: Schedule) -> Result<Seen> {
    let mut seen = Seen::default();
    let Some(client) = peers.clients.get(i) else { return Ok(seen) };
    let (mut version, mut n) = (client.version(), 0);
    tokio::time::sleep_until(first.into()).await;
    loop {
        let sent = Instant::now();
        if sent >= schedule.until {
            return Ok(seen);
        }
        n += 1;
        let wait = heartbeat_wait(schedule.interval, client.id(), n);
        let answer = client.heartbeat(peers, version, wait).await?;
        if answer.unknown || answer.failure.is_some() {
            return Err(Error::internal(format!(
                "the dispatcher refuses a simulated client: {:?}",
                answer.failure
            )));
        }
        if sent >= schedule.measured_from {
            match sent.elapsed().checked_sub(wait) {
                Some(late) => seen.times.push(late),
                None => seen.news += 1,
            }
        }
        version = answer.version;
    }
}

async fn lease(peers: &Peers, worker: usize, first: Instant, schedule: Schedule, want: u32) -> Result<Seen> {
    let (mut seen, mut next) = (Seen::default(), first);
    for task in peers.tasks_of(worker).iter().cycle() {
        if next >= schedule.until {
            break;
        }
        tokio::time::sleep_until(next.into()).await;
        let sent = Instant::now();
        let leased = peers.lease(*task, want).await?;
        if sent >= schedule.measured_from {
            seen.times.push(sent.elapsed());
            seen.splits += leased;
        }
        next += schedule.interval;
    }
    Ok(seen)
}

impl Heartbeats {
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "heartbeats: everybody joined within {:.1} s; the dispatcher used {:.0} % of a core and at most {}\n  \
             to workers {}\n  to clients {}, {} came early with news",
            self.join.as_secs_f64(),
            100.0 * self.cpu_share,
            caju_types::format_bytes(self.peak_bytes),
            self.workers.text(),
            self.clients.text(),
            self.news
        );
        if self.leases.len() > 0 {
            out.push_str(&format!(
                "\n  leases     {}, {:.0} splits/s",
                self.leases.text(),
                self.splits_per_s
            ));
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let [workers, clients, jobs] = self.peers;
        json!({
            "workers": workers,
            "clients": clients,
            "jobs": jobs,
            "dispatcher_cores": self.dispatcher_cores,
            "join_s": self.join.as_secs_f64(),
            "cpu_share": self.cpu_share,
            "peak_bytes": self.peak_bytes,
            "to_workers": self.workers.json(),
            "to_clients": self.clients.json(),
            "client_news": self.news,
            "leases": self.leases.json(),
            "splits_per_s": self.splits_per_s,
        })
    }
}
