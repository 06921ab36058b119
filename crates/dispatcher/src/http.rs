//! The HTTP port: `GET /metrics` for Prometheus, and `GET /healthz` for those who ask whether the process answers.
//!
//! Each connection carries one request. That is enough for what asks every few seconds, and needs no HTTP library.

use std::sync::Arc;
use std::time::Duration;

use caju_runtime::{Tasks, log_failure};
use caju_types::{Error, Result};
use caju_wire::{Listener, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::control::Core;
use crate::keda::METRIC;

/// The most bytes of a request's head. Prometheus and Kubernetes send some hundred.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// The most concurrent connections; further ones wait in the system's queue.
const MAX_CONNECTIONS: usize = 32;
/// The pause after a failure to accept a connection, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until the task is stopped. A connection whose request does not come within the limit for the first request of
/// a connection is closed.
pub(crate) async fn serve(mut listener: Listener, core: Arc<Core>, tasks: Tasks) -> Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return Ok(()) };
        let Ok(stream) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let core = Arc::clone(&core);
        tasks.background("an HTTP request", log_failure, async move {
            let answered =
                tokio::time::timeout(core.config.connections.handshake, answer(stream, &core)).await;
            drop(permit);
            // Who breaks the connection off, or sends nothing, needs no answer.
            drop(answered);
            Ok(())
        });
    }
}

async fn answer(mut stream: Stream, core: &Core) -> Result<()> {
    let broken = |e: std::io::Error| Error::unavailable(format!("an HTTP connection: {e}"));
    let mut head = Vec::new();
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        if head.len() >= MAX_HEAD_BYTES || stream.read_buf(&mut head).await.map_err(broken)? == 0 {
            break;
        }
    }
    let (status, kind, body) = respond(&String::from_utf8_lossy(&head), core);
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.map_err(broken)?;
    stream.shutdown().await.map_err(broken)
}

const TEXT: &str = "text/plain; charset=utf-8";

/// The status line's end, the type and the body for a request.
fn respond(head: &str, core: &Core) -> (&'static str, &'static str, String) {
    let mut words = head.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    match (method, path.split('?').next().unwrap_or("")) {
        ("GET", "/metrics") => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics(core)),
        ("GET", "/healthz") => ("200 OK", TEXT, "ok\n".to_owned()),
        ("GET", _) => ("404 Not Found", TEXT, "there are /metrics and /healthz\n".to_owned()),
        _ => ("405 Method Not Allowed", TEXT, "only GET is answered\n".to_owned()),
    }
}

/// The metrics in Prometheus' text format.
fn metrics(core: &Core) -> String {
    let (workers, epochs) = core.cluster_counts();
    let target = core.scaling_target().borrow().clone();
    let mut out = String::new();
    gauge(
        &mut out,
        METRIC,
        "Workers that should run, see docs/scaling.md.",
        &[(String::new(), target.workers)],
    );
    gauge(&mut out, "caju_workers", "Workers that run and take tasks.", &[(String::new(), workers)]);
    gauge(
        &mut out,
        "caju_epochs_read",
        "Epochs that readers are in the middle of.",
        &[(String::new(), epochs)],
    );
    let jobs: Vec<(String, u64)> =
        target.jobs.iter().map(|(job, n)| (format!("{{job=\"{}\"}}", escaped(job)), *n)).collect();
    gauge(
        &mut out,
        "caju_job_target_workers",
        "Workers that a running job would need alone; 0 while that is not known.",
        &jobs,
    );
    out
}

/// A metric with its samples: labels and values.
fn gauge(out: &mut String, name: &str, help: &str, samples: &[(String, u64)]) {
    out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n"));
    for (labels, value) in samples {
        out.push_str(&format!("{name}{labels} {value}\n"));
    }
}

/// A label's value as the text format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
