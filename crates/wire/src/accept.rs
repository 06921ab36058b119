//! Accepting connections within limits, for all servers.
//!
//! A connection passes two checks. Until its first request arrives it is *pending*: pending connections are few, time out
//! soon, and the oldest one is closed to admit the next, so that they cannot block other peers. Then the connection needs
//! one of the server's permits, which it holds until it is closed.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::Tasks;
use caju_types::{Error, ErrorKind, Result, format_duration};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::io::begins_framed_stream;
use crate::transport::{Listener, SimulatedStream, Stream};

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How often a connection whose first bytes come in pieces is checked again.
const PEEK_INTERVAL: Duration = Duration::from_millis(10);
/// The pause after the system failed to accept a connection, mostly for want of file descriptors. Those of the connections
/// that are closed then take a moment to be released; without a pause the loop would occupy a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pending connections that are closed when the system fails to accept a connection.
const CLOSED_ON_FAILURE: usize = 8;
/// How long a connection waits for a permit at most. It is shorter than the shortest deadline of a call, so the peer gets the
/// answer that the server has its maximum of connections.
const ADMISSION_WAIT: Duration = Duration::from_millis(1500);
/// Refused gRPC connections that are open, in a server, so that their first call is answered with the reason. Further ones
/// are closed without one.
const REFUSED_CONNECTIONS: usize = 32;
/// The largest message of Arrow Flight's own calls, in bytes; gRPC's usual bound. Arrow's generated code decodes them with
/// prost's own codec, which counts no fields: a path of empty parts takes 12 times its size in memory.
const FLIGHT_MESSAGE_BYTES: usize = 4 << 20;

/// What a server allows its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Concurrent connections.
    pub connections: usize,
    /// Concurrent connections whose first request has not arrived.
    pub pending: usize,
    /// How long the first request of a connection may take, and the first call of a gRPC connection.
    pub handshake: Duration,
    /// How long a gRPC connection may be open after its last call.
    pub idle: Duration,
    /// How long the bytes of one request may take to arrive.
    pub request: Duration,
    /// Concurrent calls on one gRPC connection.
    pub streams: u32,
    /// The largest message, in bytes.
    pub message_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 2048,
            pending: 128,
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(300),
            // A message of the largest size at 4 MiB/s.
            request: Duration::from_secs(60),
            streams: 256,
            message_bytes: 64 << 20,
        }
    }
}

impl ConnectionLimits {
    /// The largest message of Arrow Flight's own calls, in bytes: 4 MiB, or `message_bytes` if that is less. A client with a
    /// larger definition registers it, and names the dataset in its command.
    pub fn flight_message_bytes(&self) -> usize {
        self.message_bytes.min(FLIGHT_MESSAGE_BYTES)
    }
}

/// The protocol of a connection, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The framed stream.
    Framed,
    /// HTTP/2.
    Grpc,
}

/// Limits the connections of a server.
#[derive(Debug)]
pub struct ConnectionGate {
    limits: ConnectionLimits,
    permits: Arc<Semaphore>,
    /// Of refused connections.
    refusals: Arc<Semaphore>,
    pending: Mutex<BTreeMap<u64, CancellationToken>>,
    next: AtomicU64,
    /// Whether the lack of permits was logged and lasts.
    is_full: AtomicBool,
}

/// A connection whose first request has not arrived.
#[derive(Debug)]
pub struct PendingConnection {
    gate: Arc<ConnectionGate>,
    number: u64,
    /// Who connected, for messages.
    peer: String,
    closed: CancellationToken,
}

/// The right to a connection, returned when it is dropped.
#[derive(Debug)]
pub struct Permit {
    _permit: OwnedSemaphorePermit,
}

impl ConnectionGate {
    /// A gate with these limits.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self {
            limits,
            permits,
            refusals: Arc::new(Semaphore::new(REFUSED_CONNECTIONS)),
            pending: Mutex::default(),
            next: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        })
    }

    /// The limits.
    pub fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    /// A permit for a connection that is refused with a reason; none if as many are open as may be.
    pub(crate) fn refuse(&self) -> Option<Permit> {
        Arc::clone(&self.refusals).try_acquire_owned().ok().map(|permit| Permit { _permit: permit })
    }

    pub(crate) fn enter(self: &Arc<Self>, peer: Option<String>) -> PendingConnection {
        let (number, closed) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        let mut pending = self.pending.lock();
        while pending.len() >= self.limits.pending.max(1) {
            let Some((_, oldest)) = pending.pop_first() else { break };
            oldest.cancel();
        }
        pending.insert(number, closed.clone());
        let peer = peer.unwrap_or_else(|| "a peer".to_owned());
        PendingConnection { gate: Arc::clone(self), number, peer, closed }
    }

    /// Closes some pending connections, the oldest first.
    fn close_pending(&self) {
        let mut pending = self.pending.lock();
        for _ in 0..CLOSED_ON_FAILURE {
            let Some((_, oldest)) = pending.pop_first() else { return };
            oldest.cancel();
        }
    }
}

impl PendingConnection {
    /// The gate before which it waits.
    pub(crate) fn gate(&self) -> Arc<ConnectionGate> {
        Arc::clone(&self.gate)
    }

    /// Waits for the first request, within the limit for it.
    ///
    /// # Errors
    /// `Cancelled` if it does not arrive in time, or if the connection is closed to admit others.
    pub async fn within<T>(&self, said: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => {
                Err(Error::cancelled(format!("{} had sent no request and was closed to admit others", self.peer)))
            }
            said = tokio::time::timeout(self.gate.limits.handshake, said) => {
                said.map_err(|_| Error::cancelled(format!(
                    "{} sent no request within the handshake timeout of {}",
                    self.peer,
                    format_duration(self.gate.limits.handshake)
                )))
            }
        }
    }

    /// Detects the protocol of a connection.
    ///
    /// # Errors
    /// `Cancelled` if nothing arrives in time, `InvalidArgument` if it is neither protocol.
    pub async fn protocol(&self, stream: &mut Stream) -> Result<Protocol> {
        match stream {
            // Only our own client opens these, and it speaks gRPC.
            Stream::Memory(_) => Ok(Protocol::Grpc),
            Stream::SameHost(_) => Ok(Protocol::Framed),
            Stream::Tcp(stream) => self.within(first_bytes(stream)).await?,
            Stream::Simulated(stream) => self.within(first_simulated_bytes(stream)).await?,
        }
    }

    /// Admits a connection whose first request has arrived, once a permit is free. `server` names who has the connections.
    ///
    /// # Errors
    /// `Unavailable` if the server has its maximum of connections, and none ends in time.
    pub async fn admit(self, server: &str) -> Result<Permit> {
        let gate = &self.gate;
        let permits = Arc::clone(&gate.permits);
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            gate.is_full.store(false, Ordering::Relaxed);
            return Ok(Permit { _permit: permit });
        }
        let most = gate.limits.connections;
        if !gate.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                connections = most,
                "the maximum of connections is open; further ones wait or are refused"
            );
        }
        match self.within(tokio::time::timeout(ADMISSION_WAIT, permits.acquire_owned())).await {
            Ok(Ok(Ok(permit))) => Ok(Permit { _permit: permit }),
            _ => Err(Error::unavailable(format!(
                "{server} has {most} connections, its limit; close some, or start it with more --connections"
            ))),
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.gate.pending.lock().remove(&self.number);
    }
}

/// Detects the protocol by the first bytes, without consuming them.
async fn first_bytes(stream: &tokio::net::TcpStream) -> Result<Protocol> {
    let mut first = [0u8; PREFACE.len()];
    loop {
        let n = stream
            .peek(&mut first)
            .await
            .map_err(|e| Error::cancelled(format!("a connection broke before its first request: {e}")))?;
        if n == 0 {
            return Err(Error::cancelled("a connection closed before its first request"));
        }
        if let Some(protocol) = protocol_of(&first[..n])? {
            return Ok(protocol);
        }
        tokio::time::sleep(PEEK_INTERVAL).await;
    }
}

async fn first_simulated_bytes(stream: &mut SimulatedStream) -> Result<Protocol> {
    let mut known = 0;
    loop {
        let said = stream
            .peek()
            .await
            .map_err(|e| Error::cancelled(format!("a connection broke before its first request: {e}")))?;
        if said.len() == known {
            return Err(Error::cancelled("a connection closed before its first request"));
        }
        if let Some(protocol) = protocol_of(said)? {
            return Ok(protocol);
        }
        known = said.len();
    }
}

/// The protocol of a connection that begins with these bytes; `None` if they are too few.
fn protocol_of(said: &[u8]) -> Result<Option<Protocol>> {
    if begins_framed_stream(said) {
        return Ok(Some(Protocol::Framed));
    }
    if said.starts_with(PREFACE) {
        return Ok(Some(Protocol::Grpc));
    }
    if PREFACE.starts_with(said) {
        return Ok(None);
    }
    Err(Error::invalid("a connection speaks neither gRPC nor our framed stream; it is closed"))
}

/// Accepts connections until the task is stopped, each handled in a task of its own. A lack of descriptors is logged once;
/// while it lasts, pending connections are closed.
pub async fn accept<F, Fut>(
    mut listener: Listener,
    gate: Arc<ConnectionGate>,
    tasks: Tasks,
    handle: F,
) -> Result<()>
where
    F: Fn(Stream, PendingConnection) -> Fut,
    Fut: Future<Output = Result<()>> + Send + 'static,
{
    let mut refused = 0_u64;
    loop {
        match listener.accept().await {
            Ok(stream) => {
                if refused > 0 {
                    tracing::info!(attempts = refused, "connections are accepted again");
                    refused = 0;
                }
                let pending = gate.enter(stream.peer());
                let handled = handle(stream, pending);
                tasks.background("a connection", connection_ended, handled);
            }
            // The peer went away meanwhile.
            Err(e)
                if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {}
            Err(e) => {
                if refused == 0 {
                    let address = listener.address();
                    tracing::warn!(
                        address, error = %e,
                        "no connection can be accepted; pending ones are closed until that is over (raise `ulimit -n` \
                         if descriptors are short)"
                    );
                }
                refused += 1;
                gate.close_pending();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn connection_ended(error: Error) {
    match error.kind() {
        ErrorKind::Cancelled => tracing::debug!(reason = %error, "a connection ended"),
        _ => tracing::warn!(%error, "a connection ended"),
    }
}
