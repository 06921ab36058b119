//! Part `restart`: the dispatcher is killed and started again on its journal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_types::{Error, Result};
use serde_json::{Value, json};

use super::peers::Peers;
use crate::cli::DispatcherBenchArgs;
use crate::commands::bench::server::Server;
use crate::commands::bench::source::LineSource;

/// What was measured, each from the start of the process.
pub(super) struct Restart {
    /// It says that it listens.
    listening: Duration,
    /// Every client and worker is known to it.
    back: Duration,
    /// It has leased a split for the first time.
    leased: Duration,
    peak_bytes: u64,
}

/// Kills the dispatcher and starts it again.
///
/// # Errors
/// `DataLoss` if it does not know its peers any more, and those of the calls.
pub(super) async fn measure(
    args: &DispatcherBenchArgs,
    scratch: &LineSource,
    mut server: Server,
    peers: Arc<Peers>,
) -> Result<Restart> {
    server.kill().await?;
    let begin = Instant::now();
    let server = super::start(args, scratch, "splits").await?;
    let listening = server.started_in;
    let peers = peers.moved_to(&server.address)?;
    let forgotten = || Error::data_loss("the dispatcher does not know its peers after its restart");
    for client in &peers.clients {
        let answer = client.heartbeat(&peers, 0, Duration::ZERO).await?;
        if answer.unknown || answer.failure.is_some() {
            return Err(forgotten());
        }
    }
    for worker in &peers.workers {
        if worker.heartbeat(Vec::new()).await?.register_again {
            return Err(forgotten());
        }
    }
    let back = begin.elapsed();
    if peers.lease(0, 1).await? == 0 {
        return Err(Error::data_loss("the dispatcher leases no split after its restart"));
    }
    Ok(Restart { listening, back, leased: begin.elapsed(), peak_bytes: server.peak_bytes() })
}

impl Restart {
    pub(super) fn text(&self) -> String {
        format!(
            "restart: listening after {:.2} s, every peer answered after {:.2} s, next lease after {:.2} s, at most {}",
            self.listening.as_secs_f64(),
            self.back.as_secs_f64(),
            self.leased.as_secs_f64(),
            caju_types::format_bytes(self.peak_bytes)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "listening_s": self.listening.as_secs_f64(),
            "back_s": self.back.as_secs_f64(),
            "next_lease_s": self.leased.as_secs_f64(),
            "peak_bytes": self.peak_bytes,
        })
    }
}
