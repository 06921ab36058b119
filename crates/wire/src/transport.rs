//! Listening and connecting: by TCP, within this process, or over a network that a test provides.
//!
//! Addresses are text, and this module alone interprets them. `HOST:PORT` is a TCP address. `memory://NAME` is a server of
//! this process: its peers connect over streams in memory, which no other process can open. A [`Network`] of a simulation
//! takes every address itself. A server may have a second listener for the other processes of its host
//! ([`Listener::bind_same_host`]).

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use async_trait::async_trait;
use caju_types::{Error, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::same_host::{LocalListener, LocalStream, PassedFiles, connect_local};

/// The prefix of addresses within this process. As an address to listen on it means a new name.
pub const IN_PROCESS: &str = "memory://";

/// Bytes in flight in one direction of a stream in memory.
const MEMORY_STREAM_BYTES: usize = 256 << 10;
/// Opened streams in memory that are not accepted yet.
const MEMORY_BACKLOG: usize = 64;

type Listeners = Mutex<HashMap<String, mpsc::Sender<DuplexStream>>>;

/// The servers of this process that listen in memory.
static LISTENERS: LazyLock<Arc<Listeners>> = LazyLock::new(Arc::default);

/// Whether an address is one within a process.
pub fn is_in_process(address: &str) -> bool {
    address.starts_with(IN_PROCESS)
}

/// A new address within this process. No other process makes the same one, so an address of this process is unknown in all
/// others.
pub fn new_in_process_address() -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{IN_PROCESS}{:016x}-{}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The bytes of a connection, in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> ByteStream for T {}

/// A network that a test puts in the place of the system's.
#[async_trait]
pub trait SimulatedNetwork: Send + Sync {
    /// Listens at an address. Gives the address that peers connect to, and the connections; it is over when the receiver is
    /// dropped.
    ///
    /// # Errors
    /// `Unavailable` if the name is in use.
    async fn bind(&self, listen: &str) -> Result<(String, mpsc::Receiver<Box<dyn ByteStream>>)>;

    /// Connects to an address.
    ///
    /// # Errors
    /// As TCP would give them.
    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>>;
}

/// How a process listens and connects: over the system's network by default.
#[derive(Clone, Default)]
pub struct Network(Option<Arc<dyn SimulatedNetwork>>);

impl Network {
    /// A network of a test.
    pub fn simulated(network: Arc<dyn SimulatedNetwork>) -> Self {
        Self(Some(network))
    }

    /// Listens, as [`Listener::bind`] does.
    ///
    /// # Errors
    /// Those of [`Listener::bind`].
    pub async fn bind(&self, listen: &str) -> Result<Listener> {
        let Some(network) = &self.0 else { return Listener::bind(listen).await };
        let (address, incoming) = network.bind(listen).await?;
        Ok(Listener { address, inner: Inner::Simulated(incoming) })
    }

    /// Connects, as [`connect`] does.
    ///
    /// # Errors
    /// Those of [`connect`].
    pub async fn connect(&self, address: &str) -> io::Result<Stream> {
        let Some(network) = &self.0 else { return connect(address).await };
        Ok(Stream::Simulated(SimulatedStream { bytes: network.connect(address).await?, peeked: Vec::new() }))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "simulated" } else { "of the system" })
    }
}

/// A connection of any kind.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Within this process.
    Memory(DuplexStream),
    /// Over a network of a test.
    Simulated(SimulatedStream),
    /// To another process of this host, with files.
    SameHost(LocalStream),
}

/// A connection over a network of a test.
pub struct SimulatedStream {
    bytes: Box<dyn ByteStream>,
    /// Read already, and not consumed.
    peeked: Vec<u8>,
}

impl SimulatedStream {
    /// At least one byte more than were peeked before, and all of these, without consuming them; fewer at the end.
    pub(crate) async fn peek(&mut self) -> io::Result<&[u8]> {
        let mut more = [0; 64];
        let n = self.bytes.read(&mut more).await?;
        self.peeked.extend(more.iter().take(n));
        Ok(&self.peeked)
    }
}

impl fmt::Debug for SimulatedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedStream").finish_non_exhaustive()
    }
}

/// The reading half of a [`Stream`].
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The writing half of a [`Stream`].
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

impl Stream {
    /// Halves that can be used concurrently.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Stream::Tcp(stream) => {
                let (input, output) = stream.into_split();
                (Box::new(input), Box::new(output))
            }
            other => {
                let (input, output) = tokio::io::split(other);
                (Box::new(input), Box::new(output))
            }
        }
    }

    /// The files that travel with the bytes, where they can.
    pub fn passed_files(&self) -> Option<PassedFiles> {
        match self {
            Stream::SameHost(stream) => Some(stream.files.clone()),
            Stream::Tcp(_) | Stream::Memory(_) | Stream::Simulated(_) => None,
        }
    }

    /// The peer's address, if it has one.
    pub fn peer(&self) -> Option<String> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|a| a.to_string()),
            Stream::Memory(_) | Stream::Simulated(_) | Stream::SameHost(_) => None,
        }
    }

    /// Whether the peer is on this machine.
    pub fn is_same_host(&self) -> bool {
        let Stream::Tcp(stream) = self else { return true };
        let (Ok(ours), Ok(theirs)) = (stream.local_addr(), stream.peer_addr()) else { return false };
        theirs.ip().is_loopback() || ours.ip() == theirs.ip()
    }
}

/// A server's end of an address. Once it is dropped, clients cannot connect any more.
#[derive(Debug)]
pub struct Listener {
    address: String,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    Memory(mpsc::Receiver<DuplexStream>),
    Simulated(mpsc::Receiver<Box<dyn ByteStream>>),
    SameHost(LocalListener),
}

impl Listener {
    /// Listens at `HOST:PORT`, where port 0 takes a free one, or at a new address within this process for
    /// [`IN_PROCESS`].
    ///
    /// # Errors
    /// `Unavailable` if the port is taken, `InvalidArgument` if the address is none.
    pub async fn bind(listen: &str) -> Result<Self> {
        if is_in_process(listen) {
            let address = new_in_process_address();
            let (sender, incoming) = mpsc::channel(MEMORY_BACKLOG);
            LISTENERS.lock().insert(address.clone(), sender);
            return Ok(Self { address, inner: Inner::Memory(incoming) });
        }
        let listener = TcpListener::bind(listen).await.map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => Error::unavailable(format!(
                "{listen}: the port is in use by another process; stop that one or give another --listen (port 0 \
                 takes a free one)"
            )),
            io::ErrorKind::InvalidInput => {
                Error::invalid(format!("`{listen}` is not HOST:PORT; give --listen 127.0.0.1:7070, say"))
            }
            _ => Error::unavailable(format!("{listen}: {e}; give another --listen")),
        })?;
        let bound = listener.local_addr().map_err(|e| Error::unavailable(format!("the listener: {e}")))?;
        Ok(Self { address: bound.to_string(), inner: Inner::Tcp(listener) })
    }

    /// Listens at a new name for the other processes of this host, which connect with [`connect_same_host`].
    ///
    /// # Errors
    /// `Unimplemented` or `Unavailable` where the system offers that not.
    pub fn bind_same_host() -> Result<Self> {
        let listener = LocalListener::bind()?;
        Ok(Self { address: listener.name.clone(), inner: Inner::SameHost(listener) })
    }

    /// The address that peers connect to, with the port that was found for port 0.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether peers connect by TCP.
    pub fn is_tcp(&self) -> bool {
        matches!(self.inner, Inner::Tcp(_))
    }

    /// The next connection.
    ///
    /// # Errors
    /// Those of the system; some, such as a lack of descriptors, are transient.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        match &mut self.inner {
            Inner::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // This fails only for a closed connection, and reading reports that.
                drop(tune(&stream));
                Ok(Stream::Tcp(stream))
            }
            Inner::SameHost(listener) => listener.accept().await.map(Stream::SameHost),
            Inner::Memory(incoming) => incoming.recv().await.map(Stream::Memory).ok_or_else(gone),
            Inner::Simulated(incoming) => {
                let bytes = incoming.recv().await.ok_or_else(gone)?;
                Ok(Stream::Simulated(SimulatedStream { bytes, peeked: Vec::new() }))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Inner::Memory(_) = self.inner {
            LISTENERS.lock().remove(&self.address);
        }
    }
}

/// Connects to a server.
///
/// # Errors
/// Those of the system; `ConnectionRefused` if no server listens.
pub async fn connect(address: &str) -> io::Result<Stream> {
    if !is_in_process(address) {
        let stream = TcpStream::connect(address).await?;
        tune(&stream).map_err(|e| io::Error::other(e.message().to_owned()))?;
        return Ok(Stream::Tcp(stream));
    }
    let listener = LISTENERS.lock().get(address).cloned().ok_or_else(gone)?;
    let (ours, theirs) = tokio::io::duplex(MEMORY_STREAM_BYTES);
    listener.send(theirs).await.map_err(|_| gone())?;
    Ok(Stream::Memory(ours))
}

/// Connects to a server of this host by the name of its [`Listener::bind_same_host`].
///
/// # Errors
/// Those of the system; `ConnectionRefused` if no process of this host listens there.
pub async fn connect_same_host(name: &str) -> io::Result<Stream> {
    connect_local(name).await.map(Stream::SameHost)
}

/// Sets a connection up for frames: small ones are sent without delay.
///
/// Buffer sizes are left to the kernel, whose autotuning goes beyond what a process may ask for.
///
/// # Errors
/// `Unavailable` if the connection is already closed.
pub fn tune(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true).map_err(|e| Error::unavailable(format!("cannot set up a connection: {e}")))
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionRefused,
        "no server listens there in this process: it has stopped, or belongs to another process and has no port",
    )
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::SameHost(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Memory(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Simulated(s) if s.peeked.is_empty() => Pin::new(&mut s.bytes).poll_read(cx, buf),
            Stream::Simulated(s) => {
                let n = buf.remaining().min(s.peeked.len());
                buf.put_slice(s.peeked.drain(..n).as_slice());
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::SameHost(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Memory(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Simulated(s) => Pin::new(&mut s.bytes).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::SameHost(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Memory(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Stream::Simulated(s) => Pin::new(&mut s.bytes).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(s) => s.is_write_vectored(),
            Stream::SameHost(s) => s.is_write_vectored(),
            Stream::Memory(s) => s.is_write_vectored(),
            Stream::Simulated(s) => s.bytes.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_flush(cx),
            Stream::SameHost(s) => Pin::new(s).poll_flush(cx),
            Stream::Memory(s) => Pin::new(s).poll_flush(cx),
            Stream::Simulated(s) => Pin::new(&mut s.bytes).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::SameHost(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Memory(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Simulated(s) => Pin::new(&mut s.bytes).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn peers_connect_by_either_kind_of_address() {
        for listen in ["127.0.0.1:0", IN_PROCESS] {
            let mut listener = Listener::bind(listen).await.unwrap();
            let address = listener.address().to_owned();
            let (accepted, connected) = tokio::join!(listener.accept(), connect(&address));
            let (mut server, mut client) = (accepted.unwrap(), connected.unwrap());
            client.write_all(b"hello").await.unwrap();
            let mut read = [0; 5];
            server.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"hello");
            drop(listener);
            let refused = connect(&address).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{address}");
        }
    }

    #[tokio::test]
    async fn addresses_in_memory_are_never_made_twice() {
        let one = Listener::bind(IN_PROCESS).await.unwrap();
        let two = Listener::bind(IN_PROCESS).await.unwrap();
        assert_ne!(one.address(), two.address());
        assert_eq!(
            connect("memory://of-another-process").await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
}
