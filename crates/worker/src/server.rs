//! One port for two protocols: the framed stream of our own client, and gRPC for everybody.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use caju_engine::wire::{looks_framed, tune};
use caju_proto::v1;
use caju_proto::v1::worker_server::{Worker, WorkerServer};
use caju_runtime::{Tasks, log_failure, rss_bytes};
use caju_types::{Error, ErrorKind, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::flight::FlightOnWorker;
use crate::framed;
use crate::manager::Manager;

/// gRPC connections that were accepted and not yet taken over.
const ACCEPTED: usize = 64;
/// A connection must say which protocol it speaks within this time.
const FIRST_BYTE: Duration = Duration::from_secs(30);
/// Definitions in tickets may hold rows.
const REQUEST_BYTES: usize = 256 << 20;

/// Listens.
///
/// # Errors
/// `Unavailable` if the port is taken, `InvalidArgument` if the address is none.
pub(crate) async fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => Error::unavailable(format!(
            "{address}: the port is in use by another process; stop that one or give another --listen (port 0 takes \
             a free one)"
        )),
        std::io::ErrorKind::InvalidInput => {
            Error::invalid(format!("`{address}` is not HOST:PORT; give --listen 127.0.0.1:7071, say"))
        }
        _ => Error::unavailable(format!("{address}: {e}; give another --listen")),
    })
}

/// Serves until the group stops.
pub(crate) fn serve(listener: TcpListener, manager: &Arc<Manager>, group: &Tasks) {
    let (grpc, incoming) = mpsc::channel(ACCEPTED);
    let flight = FlightServiceServer::new(FlightOnWorker::new(Arc::clone(manager)))
        .max_decoding_message_size(REQUEST_BYTES)
        .max_encoding_message_size(usize::MAX);
    let status = WorkerServer::new(StatusService { manager: Arc::clone(manager) });
    let router = Server::builder()
        .initial_stream_window_size(Some(16 << 20))
        .initial_connection_window_size(Some(32 << 20))
        .add_service(flight)
        .add_service(status);
    let stop = group.token();
    group.background("the worker's server", log_failure, async move {
        let incoming = ReceiverStream::new(incoming);
        if let Err(e) = router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await {
            tracing::error!(error = %e, "the worker's server ended");
        }
        Ok(())
    });
    let (manager, tasks) = (Arc::clone(manager), group.clone());
    group.background("accepting connections", log_failure, accept(listener, manager, tasks, grpc));
}

async fn accept(
    listener: TcpListener,
    manager: Arc<Manager>,
    tasks: Tasks,
    grpc: mpsc::Sender<std::io::Result<TcpStream>>,
) -> Result<()> {
    let room = Arc::new(Semaphore::new(manager.config.connections.max(1)));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                // Out of file descriptors, say: some connection has to end first.
                tracing::warn!(error = %e, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (manager, grpc) = (Arc::clone(&manager), grpc.clone());
        tasks.background("a reader's connection", log_failure, async move {
            let _permit = permit;
            if let Err(e) = sort(stream, manager, &grpc).await {
                match e.kind() {
                    ErrorKind::Cancelled => tracing::debug!(reason = %e, "a reader's connection ended"),
                    _ => tracing::warn!(error = %e, "a reader's connection ended"),
                }
            }
            Ok(())
        });
    }
}

/// Finds out which protocol a connection speaks.
async fn sort(
    stream: TcpStream,
    manager: Arc<Manager>,
    grpc: &mpsc::Sender<std::io::Result<TcpStream>>,
) -> Result<()> {
    tune(&stream)?;
    let alive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    SockRef::from(&stream)
        .set_tcp_keepalive(&alive)
        .map_err(|e| Error::unavailable(format!("cannot set up a connection: {e}")))?;
    let mut first = [0u8; 1];
    let n = match tokio::time::timeout(FIRST_BYTE, stream.peek(&mut first)).await {
        Ok(Ok(n)) => n,
        Ok(Err(e)) => {
            return Err(Error::cancelled(format!("a connection broke before it said anything: {e}")));
        }
        Err(_) => return Err(Error::cancelled("a connection said nothing")),
    };
    if n == 0 {
        return Ok(());
    }
    if looks_framed(&first) {
        return framed::serve(stream, manager).await;
    }
    grpc.send(Ok(stream)).await.map_err(|_| Error::cancelled("the worker is leaving"))
}

/// What runs here, for people.
struct StatusService {
    manager: Arc<Manager>,
}

#[tonic::async_trait]
impl Worker for StatusService {
    async fn get_worker_status(
        &self,
        _: Request<v1::GetWorkerStatusRequest>,
    ) -> Result<Response<v1::GetWorkerStatusResponse>, Status> {
        let tasks = self.manager.running().iter().map(|t| t.status()).collect();
        let worker_id = self.manager.identity.id().0;
        Ok(Response::new(v1::GetWorkerStatusResponse { worker_id, tasks, rss_bytes: rss_bytes() }))
    }
}
