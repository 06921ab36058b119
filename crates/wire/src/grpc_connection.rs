//! gRPC connections that hold a permit, until they have been idle for too long.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use caju_types::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::Connected;

use crate::accept::{ConnectionLimits, PendingConnection, Permit};
use crate::calls::{OpenCalls, Use};
use crate::transport::Stream;

/// The timeout of peers in this process: a year.
const UNBOUNDED: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a refused gRPC connection is open. Its peer connects again after that, and may be admitted.
const REFUSED_OPEN: Duration = Duration::from_secs(1);
/// gRPC connections that wait for the gRPC server.
const GRPC_BACKLOG: usize = 64;

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

impl PendingConnection {
    /// As [`PendingConnection::admit`], for a gRPC connection. A refused one is given, too: the gRPC server answers its calls
    /// with the reason.
    ///
    /// # Errors
    /// `Cancelled` if too many connections are refused at this moment.
    pub async fn admit_grpc(self, stream: Stream, server: &str) -> Result<GrpcConnection> {
        let gate = self.gate();
        match self.admit(server).await {
            Ok(permit) => Ok(GrpcConnection::new(stream, permit, gate.limits())),
            Err(error) => match gate.refuse() {
                Some(permit) => Ok(GrpcConnection::refused(stream, permit, error)),
                // Logged once for all refused connections.
                None => Err(Error::cancelled(error.message())),
            },
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
    use crate::accept::ConnectionGate;

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
