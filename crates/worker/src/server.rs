//! One port for two protocols: the framed stream of our own client, and gRPC for all other clients.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use caju_proto::v1;
use caju_proto::v1::worker_server::{Worker, WorkerServer};
use caju_runtime::{Tasks, log_failure, rss_bytes};
use caju_types::{Error, Result};
use caju_wire::{
    CallLayer, ConnectionGate, GrpcConnection, Listener, PendingConnection, Protocol, Stream, accept,
    can_share_memory, grpc_connections,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::flight::FlightOnWorker;
use crate::framed;
use crate::manager::Manager;

/// Serves until the group stops.
pub(crate) fn serve(listener: Listener, manager: &Arc<Manager>, group: &Tasks) {
    let limits = manager.config.connections.clone();
    let (grpc, incoming) = grpc_connections();
    let flight = FlightServiceServer::new(FlightOnWorker::new(Arc::clone(manager)))
        .max_decoding_message_size(limits.flight_message_bytes())
        .max_encoding_message_size(usize::MAX);
    let status = WorkerServer::new(StatusService { manager: Arc::clone(manager) });
    let router = Server::builder()
        .layer(CallLayer::new(limits.message_bytes, limits.request))
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(Some(16 << 20))
        .initial_connection_window_size(Some(32 << 20))
        .add_service(flight)
        .add_service(status)
        .add_service(tonic_health::server::health_reporter().1);
    let stop = group.token();
    group.background("the worker's server", log_failure, async move {
        if let Err(e) = router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await {
            tracing::error!(error = %e, "the worker's server ended");
        }
        Ok(())
    });
    let gate = ConnectionGate::new(limits);
    let handle = {
        let manager = Arc::clone(manager);
        move |stream, pending| sort(stream, pending, Arc::clone(&manager), grpc.clone())
    };
    // Who connects to another address than this worker's own may be behind a proxy, wherever it is.
    let config = &manager.config;
    if listener.is_tcp() && config.shared_memory_bytes > 0 && config.advertise.is_none() {
        serve_same_host(manager, &gate, group);
    }
    group.background("accepting connections", log_failure, accept(listener, gate, group.clone(), handle));
}

/// Serves the readers of this host, which get rows in shared memory. Where the system offers that not, they get their rows over
/// TCP.
fn serve_same_host(manager: &Arc<Manager>, gate: &Arc<ConnectionGate>, group: &Tasks) {
    let listener = match can_share_memory().and_then(|()| Listener::bind_same_host()) {
        Ok(listener) => listener,
        Err(reason) => {
            tracing::debug!(%reason, "readers of this host get their rows over sockets");
            return;
        }
    };
    let socket = listener.address().to_owned();
    let handle = {
        let manager = Arc::clone(manager);
        move |stream, pending| Box::pin(framed::serve(stream, pending, Arc::clone(&manager)))
    };
    let accepting = accept(listener, Arc::clone(gate), group.clone(), handle);
    group.background("accepting connections of this host", log_failure, accepting);
    manager.same_host_socket.get_or_init(|| socket);
}

/// Detects the protocol of a connection and serves it.
async fn sort(
    mut stream: Stream,
    pending: PendingConnection,
    manager: Arc<Manager>,
    grpc: mpsc::Sender<std::io::Result<GrpcConnection>>,
) -> Result<()> {
    let protocol = pending.protocol(&mut stream).await?;
    if let Stream::Tcp(stream) = &stream {
        keep_alive(stream)?;
    }
    match protocol {
        Protocol::Framed => Box::pin(framed::serve(stream, pending, manager)).await,
        Protocol::Grpc => {
            let admitted = pending.admit_grpc(stream, "the worker").await?;
            grpc.send(Ok(admitted)).await.map_err(|_| Error::cancelled("the worker is leaving"))
        }
    }
}

/// Enables TCP keep-alive, which detects a dead peer: a reader may be silent for as long as its user computes.
fn keep_alive(stream: &TcpStream) -> Result<()> {
    let alive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    SockRef::from(stream)
        .set_tcp_keepalive(&alive)
        .map_err(|e| Error::unavailable(format!("cannot set up a connection: {e}")))
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
