//! The HTTP port: `GET /metrics` for Prometheus, and `GET /healthz` for those who ask whether the process answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caju_runtime::{Tasks, log_failure};
use caju_types::{Error, Result};
use caju_wire::{Listener, Stream};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::control::Core;
use crate::metrics;

/// The most bytes that are buffered of a request, the least that hyper takes. Prometheus and Kubernetes send some hundred.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// The pause after a failure to accept a connection, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// An open connection.
#[derive(Clone, Default)]
struct Connection {
    /// It has ended, or is to end.
    closed: CancellationToken,
    /// Its request has arrived.
    has_asked: Arc<AtomicBool>,
}

/// Takes out the connection to close when there are too many: the oldest one without a request, or the oldest one of all.
fn take_least_wanted(open: &mut VecDeque<Connection>) -> Option<Connection> {
    let silent = open.iter().position(|c| !c.has_asked.load(Ordering::Relaxed));
    open.remove(silent.unwrap_or(0))
}

/// Answers requests until the task is stopped. Each connection carries one request, and is closed if that is not answered within
/// the limit for the first request of a connection.
pub(crate) async fn serve(mut listener: Listener, core: Arc<Core>, tasks: Tasks) -> Result<()> {
    let most = core.context.config.http_connections.max(1);
    let mut open = VecDeque::new();
    let mut is_failing = false;
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "no connection to the HTTP port can be accepted");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_failing = false;
        open.retain(|c: &Connection| !c.closed.is_cancelled());
        if open.len() >= most
            && let Some(other) = take_least_wanted(&mut open)
        {
            other.closed.cancel();
        }
        let connection = Connection::default();
        open.push_back(connection.clone());
        let core = Arc::clone(&core);
        tasks.background("an HTTP request", log_failure, async move {
            let limit = core.context.config.connections.handshake;
            // Who breaks the connection off, or sends nothing, needs no answer.
            tokio::select! {
                () = connection.closed.cancelled() => {}
                _ = tokio::time::timeout(limit, answer(stream, core, connection.has_asked)) => {}
            }
            connection.closed.cancel();
            Ok(())
        });
    }
}

async fn answer(stream: Stream, core: Arc<Core>, has_asked: Arc<AtomicBool>) -> Result<()> {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        let core = Arc::clone(&core);
        async move { Ok::<_, Infallible>(respond(request.method(), request.uri().path(), &core).await) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_REQUEST_BYTES);
    // The limit for the whole connection bounds this, too; hyper's own needs a timer.
    http.header_read_timeout(None);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    connection.await.map_err(|e| Error::unavailable(format!("an HTTP connection: {e}")))
}

async fn respond(method: &Method, path: &str, core: &Arc<Core>) -> Response<String> {
    if method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
    }
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/metrics" => match measured(core).await {
            Ok(body) => {
                let mut response = Response::new(body);
                response.headers_mut().insert(CONTENT_TYPE, metrics::CONTENT_TYPE);
                response
            }
            Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{e}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, "there are /metrics and /healthz\n"),
    }
}

async fn measured(core: &Arc<Core>) -> Result<String> {
    let status = core.status.get_status().await?;
    let counts = core.scaling.cluster_counts();
    let target = core.scaling.known_target();
    metrics::encode(&metrics::Measured { status: &status, counts, target: target.as_ref() })
}

fn text(status: StatusCode, body: &str) -> Response<String> {
    let mut response = Response::new(body.to_owned());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(has_asked: bool) -> Connection {
        Connection { has_asked: Arc::new(AtomicBool::new(has_asked)), ..Connection::default() }
    }

    /// A probe whose request has arrived is answered, however many silent connections come after it.
    #[test]
    fn a_connection_with_a_request_is_closed_after_the_silent_ones() {
        let mut open: VecDeque<_> = [true, false, true, false].map(connection).into();
        let (first, last) = (open[0].clone(), open[2].clone());
        for _ in 0..2 {
            let taken = take_least_wanted(&mut open).unwrap();
            assert!(!taken.has_asked.load(Ordering::Relaxed));
        }
        let left: Vec<_> = open.iter().map(|c| Arc::as_ptr(&c.has_asked)).collect();
        assert_eq!(left, [first, last].map(|c| Arc::as_ptr(&c.has_asked)));
        assert!(take_least_wanted(&mut open).is_some() && take_least_wanted(&mut open).is_some());
        assert!(take_least_wanted(&mut open).is_none());
    }
}
