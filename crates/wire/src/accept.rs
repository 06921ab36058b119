//! Accepting connections within limits, for all servers.
//!
//! A connection passes two checks. Until its first request arrives it is *pending*: pending connections are few, time out
//! soon, and the oldest one is closed to admit the next, so that they cannot block other peers. Then the connection needs
//! one of the server's permits, which it holds until it is closed.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use caju_runtime::Tasks;
use caju_types::{Error, ErrorKind, Result, format_duration};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::calls::{OpenCalls, Use};
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
/// How long a refused gRPC connection is open. Its peer connects again after that, and may be admitted.
const REFUSED_OPEN: Duration = Duration::from_secs(1);
/// gRPC connections that wait for the gRPC server.
const GRPC_BACKLOG: usize = 64;

/// The timeout of peers in this process: a year.
const UNBOUNDED: Duration = Duration::from_secs(365 * 24 * 3600);

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
            message_bytes: 256 << 20,
        }
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

    fn enter(self: &Arc<Self>, peer: Option<String>) -> PendingConnection {
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

    /// As [`PendingConnection::admit`], for a gRPC connection. A refused one is given, too: the gRPC server answers its calls
    /// with the reason.
    ///
    /// # Errors
    /// `Cancelled` if too many connections are refused at this moment.
    pub async fn admit_grpc(self, stream: Stream, server: &str) -> Result<GrpcConnection> {
        let gate = Arc::clone(&self.gate);
        match self.admit(server).await {
            Ok(permit) => Ok(GrpcConnection::new(stream, permit, &gate.limits)),
            Err(error) => match Arc::clone(&gate.refusals).try_acquire_owned() {
                Ok(refusal) => Ok(GrpcConnection::refused(stream, Permit { _permit: refusal }, error)),
                // Logged once for all refused connections.
                Err(_) => Err(Error::cancelled(error.message())),
            },
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

/// An admitted gRPC connection. It holds its permit, and ends when no call is made on it in time. Or a refused one, which ends
/// soon.
#[derive(Debug)]
pub struct GrpcConnection {
    stream: Stream,
    _permit: Permit,
    calls: OpenCalls,
    opened: Instant,
    /// How long the first call may take.
    first_call: Duration,
    /// How long the connection stays open after its last call.
    idle: Duration,
    timer: Pin<Box<Sleep>>,
}

impl GrpcConnection {
    /// A connection under a server's limits.
    pub fn new(stream: Stream, permit: Permit, limits: &ConnectionLimits) -> Self {
        let (first_call, idle) = match stream {
            Stream::Tcp(_) | Stream::Simulated(_) | Stream::SameHost(_) => (limits.handshake, limits.idle),
            // A peer in this process never times out.
            Stream::Memory(_) => (UNBOUNDED, UNBOUNDED),
        };
        let opened = Instant::now();
        let timer = Box::pin(tokio::time::sleep_until(opened + first_call.min(idle)));
        Self { stream, _permit: permit, calls: OpenCalls::default(), opened, first_call, idle, timer }
    }

    /// A connection that is not admitted. No call on it counts, so it ends after the time for the first one.
    fn refused(stream: Stream, permit: Permit, error: Error) -> Self {
        let (calls, opened) = (OpenCalls::refused(error), Instant::now());
        let timer = Box::pin(tokio::time::sleep_until(opened + REFUSED_OPEN));
        Self { stream, _permit: permit, calls, opened, first_call: REFUSED_OPEN, idle: REFUSED_OPEN, timer }
    }

    /// When the connection is closed, unless a call is made.
    fn closes_at(&self) -> Option<Instant> {
        match self.calls.usage() {
            Use::Never => Some(self.opened + self.first_call),
            Use::Before(last) => Some(last + self.idle),
            Use::Now => None,
        }
    }
}

impl Connected for GrpcConnection {
    type ConnectInfo = OpenCalls;

    fn connect_info(&self) -> OpenCalls {
        self.calls.clone()
    }
}

impl AsyncRead for GrpcConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // The timer comes first: a peer that sends only pings is idle.
        while this.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            match this.closes_at() {
                Some(at) if at <= now => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                // A first call may end before its time is over, and the connection is idle from then on.
                Some(at) => this.timer.as_mut().reset(at.min(now + this.idle)),
                None => this.timer.as_mut().reset(now + this.idle),
            }
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for GrpcConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// The queue of gRPC connections from the gate to the gRPC server.
pub fn grpc_connections()
-> (mpsc::Sender<io::Result<GrpcConnection>>, impl futures::Stream<Item = io::Result<GrpcConnection>> + Send)
{
    let (sender, receiver) = mpsc::channel(GRPC_BACKLOG);
    let stream = futures::stream::unfold(receiver, |mut receiver: mpsc::Receiver<_>| async move {
        receiver.recv().await.map(|next| (next, receiver))
    });
    (sender, stream)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Pings are no calls: only calls keep a connection open.
    #[tokio::test]
    async fn a_connection_without_calls_is_closed_though_bytes_come() {
        let limits = ConnectionLimits {
            handshake: Duration::from_millis(50),
            idle: Duration::from_millis(200),
            ..ConnectionLimits::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let permit = ConnectionGate::new(limits.clone()).enter(None).admit("the server").await.unwrap();
        let mut connection = GrpcConnection::new(Stream::Tcp(stream), permit, &limits);
        let calls = connection.connect_info();
        let pings = async {
            while peer.write_all(b"ping").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reads = async {
            let mut bytes = [0; 64];
            loop {
                match connection.read(&mut bytes).await {
                    Ok(n) => assert!(n > 0),
                    Err(e) => return (e.kind(), calls.usage()),
                }
            }
        };
        let ended = tokio::select! {
            ended = reads => ended,
            () = pings => panic!("the connection broke"),
        };
        assert_eq!(ended, (io::ErrorKind::TimedOut, Use::Never));
    }

    /// The time for the first call may be longer than the idle time: after a call it plays no part.
    #[tokio::test]
    async fn a_connection_is_idle_after_its_first_call_before_the_time_for_that_is_over() {
        let limits = ConnectionLimits {
            handshake: Duration::from_secs(3600),
            idle: Duration::from_millis(50),
            ..ConnectionLimits::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let permit = ConnectionGate::new(limits.clone()).enter(None).admit("the server").await.unwrap();
        let mut connection = GrpcConnection::new(Stream::Tcp(stream), permit, &limits);
        drop(connection.connect_info().begin());
        let read = tokio::time::timeout(Duration::from_secs(60), connection.read_u8()).await;
        assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
