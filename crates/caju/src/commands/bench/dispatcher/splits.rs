//! Part `splits`: how many splits are leased durably per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caju_runtime::Tasks;
use caju_types::{Error, Result};
use serde_json::{Value, json};

use super::latency::Latencies;
use super::peers::Peers;
use crate::cli::DispatcherBenchArgs;
use crate::commands::bench::server::Server;
use crate::commands::bench::source::LineSource;

/// Clients of the job: they acknowledge what was leased.
const CLIENTS: u32 = 16;

/// What was measured.
pub(super) struct Splits {
    workers: usize,
    splits: usize,
    wall: Duration,
    leases: Latencies,
    cpu_share: f64,
    peak_bytes: u64,
    journal_bytes: u64,
}

/// Leases the splits of one job to its workers, each of which asks again as soon as it has an answer.
///
/// # Errors
/// Those of the calls.
pub(super) async fn measure(
    args: &DispatcherBenchArgs,
    scratch: &LineSource,
    server: &Server,
) -> Result<(Splits, Arc<Peers>)> {
    let counts = (args.leasing_workers, CLIENTS, 1);
    let peers = Peers::join(&server.address, &scratch.definition(), counts).await?;
    let (wanted, want) = (args.splits as usize, args.lease);
    let (leased, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let tasks = Tasks::new();
    let (begin, cpu) = (Instant::now(), server.cpu());
    let leasing: Vec<_> = (0..peers.tasks.len())
        .map(|task| {
            let (peers, leased) = (Arc::clone(&peers), Arc::clone(&leased));
            tasks.spawn("a simulated task", async move {
                let mut times = Latencies::default();
                while leased.load(Ordering::Relaxed) < wanted {
                    let sent = Instant::now();
                    leased.fetch_add(peers.lease(task, want).await?, Ordering::Relaxed);
                    times.push(sent.elapsed());
                }
                Ok::<_, Error>(times)
            })
        })
        .collect();
    let reading: Vec<_> = (0..peers.clients.len())
        .map(|i| {
            let (peers, over, wait) = (Arc::clone(&peers), Arc::clone(&over), args.heartbeat);
            tasks.spawn("a simulated client", async move {
                let Some(client) = peers.clients.get(i) else { return Ok(()) };
                let mut version = client.version();
                while !over.load(Ordering::Relaxed) {
                    version = client.heartbeat(&peers, version, wait).await?.version;
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    let mut leases = Latencies::default();
    for task in leasing {
        leases.append(task.await.map_err(|e| Error::internal(e.to_string()))??);
    }
    let (wall, cpu) = (begin.elapsed(), server.cpu().saturating_sub(cpu));
    over.store(true, Ordering::Relaxed);
    for task in reading {
        task.await.map_err(|e| Error::internal(e.to_string()))??;
    }
    let measured = Splits {
        workers: peers.workers.len(),
        splits: leased.load(Ordering::Relaxed),
        wall,
        leases,
        cpu_share: cpu.as_secs_f64() / wall.as_secs_f64().max(1e-9),
        peak_bytes: server.peak_bytes(),
        journal_bytes: bytes_below(&scratch.folder().join("splits")),
    };
    Ok((measured, peers))
}

/// Bytes of the files below a folder.
fn bytes_below(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

impl Splits {
    fn per_s(&self) -> f64 {
        self.splits as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    pub(super) fn text(&self) -> String {
        format!(
            "splits: {} leased durably in {:.1} s, {:.0} splits/s; the dispatcher used {:.0} % of a core and at most {}, \
             its journal has {}\n  leases     {}",
            caju_types::format_count(self.splits as u64),
            self.wall.as_secs_f64(),
            self.per_s(),
            100.0 * self.cpu_share,
            caju_types::format_bytes(self.peak_bytes),
            caju_types::format_bytes(self.journal_bytes),
            self.leases.text()
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "workers": self.workers,
            "splits": self.splits,
            "wall_s": self.wall.as_secs_f64(),
            "splits_per_s": self.per_s(),
            "cpu_share": self.cpu_share,
            "peak_bytes": self.peak_bytes,
            "journal_bytes": self.journal_bytes,
            "leases": self.leases.json(),
        })
    }
}
