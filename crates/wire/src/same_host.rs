//! Connections between processes of one host, which pass on files in memory along with their bytes.
//!
//! A worker listens at a Unix domain socket with a random name, which it names to readers that reach it from its own host.
//! The name is an abstract one: it is no file, it ends with its process, and it exists in the worker's network namespace
//! alone, so a reader that is not really on the host does not find it. Such a reader stays with TCP.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_buffer::Buffer;
use bytes::Bytes;
use caju_runtime::sealed::{SealedFile, SealedMap};
use caju_types::{Error, Result};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame::{RowsHeader, body_above_bound, damaged};
use crate::pool::BufferPool;

#[cfg(target_os = "linux")]
pub(crate) use linux::{LocalListener, LocalStream, connect_local};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{LocalListener, LocalStream, connect_local};

/// Files that have arrived and whose frames have not. A reader takes each with its frame, so more than a few are wrong.
const MAX_WAITING_FILES: usize = 16;

/// The files that travel with the bytes of a connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PassedFiles(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    /// Goes out with the next byte.
    outgoing: Option<Arc<SealedFile>>,
    /// Have come, in the order of their frames.
    #[cfg(unix)]
    incoming: VecDeque<std::os::fd::OwnedFd>,
    #[cfg(not(unix))]
    incoming: VecDeque<()>,
    /// The system has dropped a file that should have come. It does not say which one.
    has_lost: bool,
}

/// A body that came in a file.
#[derive(Debug)]
pub struct FileBody {
    /// The bytes.
    pub bytes: Buffer,
    /// Whether they are the file's own memory; else they were copied, because it could not be mapped.
    pub is_mapped: bool,
}

impl PassedFiles {
    /// Sends a file with the next byte of the connection, or none.
    pub(crate) fn set_next(&self, file: Option<Arc<SealedFile>>) {
        self.0.lock().outgoing = file;
    }

    /// The body of a frame whose header says that it is in a file.
    ///
    /// # Errors
    /// `Unavailable` if the file did not come, or one before it (this process has no descriptor left for it),
    /// `ResourceExhausted` if it is too large, `DataLoss` if it is no sealed file of this length, or that of another frame.
    pub fn take_body(&self, header: &RowsHeader, max_bytes: u64, pool: &BufferPool) -> Result<FileBody> {
        let length = header.file_bytes;
        if length > max_bytes {
            return Err(body_above_bound(length, max_bytes));
        }
        let file = self.next_file(length)?;
        if file.id() != header.file_id {
            return Err(damaged("the file that came with rows is that of other rows"));
        }
        match file.map() {
            Ok(map) => Ok(FileBody { bytes: Buffer::from(Bytes::from_owner(map)), is_mapped: true }),
            Err(error) => {
                tracing::debug!(%error, "rows in shared memory are copied, because they cannot be mapped");
                let mut body = pool.take(file.len());
                file.read(body.as_mut_slice())
                    .map_err(|e| Error::unavailable(format!("rows in shared memory cannot be read: {e}")))?;
                Ok(FileBody { bytes: body.freeze(), is_mapped: false })
            }
        }
    }

    #[cfg(unix)]
    fn next_file(&self, length: u64) -> Result<SealedFile> {
        let next = {
            let mut files = self.0.lock();
            if files.has_lost { None } else { files.incoming.pop_front() }
        };
        let Some(file) = next else { return Err(no_file()) };
        SealedFile::from_peer(file, length)
            .map_err(|e| damaged(format!("rows are said to be in a file: {e}")))
    }

    #[cfg(not(unix))]
    fn next_file(&self, _: u64) -> Result<SealedFile> {
        Err(no_file())
    }

    #[cfg(unix)]
    fn on_received(&self, files: Vec<std::os::fd::OwnedFd>, lost_files: bool) -> io::Result<()> {
        if files.is_empty() && !lost_files {
            return Ok(());
        }
        let mut have = self.0.lock();
        have.has_lost |= lost_files;
        have.incoming.extend(files);
        if have.incoming.len() > MAX_WAITING_FILES {
            have.incoming.clear();
            return Err(unasked());
        }
        Ok(())
    }
}

#[cfg(unix)]
fn unasked() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "files came that belong to no frame")
}

fn no_file() -> Error {
    Error::unavailable(
        "rows came in shared memory without their file: this process has no descriptor left (raise `ulimit -n`, or take \
         the data transfer protocol `framed`)",
    )
}

/// Whether this system has what sharing memory needs.
///
/// # Errors
/// The reason why it does not.
pub fn can_share_memory() -> Result<()> {
    let works = SealedFile::new([&b"rows"[..]]).and_then(|file| file.map());
    works.map(|_: SealedMap| ()).map_err(|e| Error::unimplemented(format!("memory cannot be shared: {e}")))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::AsFd;

    use caju_runtime::random_secret;
    use caju_runtime::sealed::{receive_with_files, send_with_file};
    use tokio::io::Interest;
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    /// Begins the name of every worker's socket. A reader connects to no other socket of its host.
    const PREFIX: &str = "caju-";

    /// A connection between processes of this host.
    #[derive(Debug)]
    pub struct LocalStream {
        stream: UnixStream,
        pub(crate) files: PassedFiles,
        /// The peer may send files: workers do, and readers do not.
        receives_files: bool,
    }

    #[derive(Debug)]
    pub(crate) struct LocalListener {
        listener: UnixListener,
        pub(crate) name: String,
    }

    impl LocalListener {
        pub(crate) fn bind() -> Result<Self> {
            let name = format!("{PREFIX}{}", random_secret()?.to_hex());
            let listener = UnixListener::bind(abstract_name(&name))
                .map_err(|e| Error::unavailable(format!("a socket for readers of this host: {e}")))?;
            Ok(Self { listener, name })
        }

        pub(crate) async fn accept(&self) -> io::Result<LocalStream> {
            let (stream, _) = self.listener.accept().await?;
            Ok(LocalStream { stream, files: PassedFiles::default(), receives_files: false })
        }
    }

    /// Connects to a process of this host by the name that it gave.
    pub(crate) async fn connect_local(name: &str) -> io::Result<LocalStream> {
        let is_ours =
            name.strip_prefix(PREFIX).is_some_and(|secret| secret.bytes().all(|b| b.is_ascii_hexdigit()));
        if !is_ours {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a worker's socket"));
        }
        let stream = UnixStream::connect(abstract_name(name)).await?;
        Ok(LocalStream { stream, files: PassedFiles::default(), receives_files: true })
    }

    fn abstract_name(name: &str) -> String {
        format!("\0{name}")
    }

    impl AsyncRead for LocalStream {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            loop {
                std::task::ready!(self.stream.poll_read_ready(cx))?;
                let (into, mut files) = (buf.initialize_unfilled(), Vec::new());
                let receive = || receive_with_files(self.stream.as_fd(), into, &mut files);
                match self.stream.try_io(Interest::READABLE, receive) {
                    Ok(received) => {
                        buf.advance(received.bytes);
                        let is_welcome = files.is_empty() || self.receives_files;
                        return Poll::Ready(if is_welcome {
                            self.files.on_received(files, received.lost_files)
                        } else {
                            Err(unasked())
                        });
                    }
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(e) => return Poll::Ready(Err(e)),
                }
            }
        }
    }

    impl AsyncWrite for LocalStream {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let next = self.files.0.lock().outgoing.clone();
            let Some(file) = next else { return Pin::new(&mut self.stream).poll_write_vectored(cx, bufs) };
            loop {
                std::task::ready!(self.stream.poll_write_ready(cx))?;
                let send = || send_with_file(self.stream.as_fd(), bufs, &file);
                match self.stream.try_io(Interest::WRITABLE, send) {
                    Ok(n) => {
                        self.files.set_next(None);
                        return Poll::Ready(Ok(n));
                    }
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(e) => return Poll::Ready(Err(e)),
                }
            }
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(cx)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    //! Other systems have no sealed files, so their readers stay with TCP.

    use super::*;

    /// A connection between processes of this host.
    #[derive(Debug)]
    pub struct LocalStream {
        pub(crate) files: PassedFiles,
        never: std::convert::Infallible,
    }

    #[derive(Debug)]
    pub(crate) struct LocalListener {
        pub(crate) name: String,
        never: std::convert::Infallible,
    }

    fn unsupported() -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, "this system has no sealed files in memory")
    }

    impl LocalListener {
        pub(crate) fn bind() -> Result<Self> {
            Err(Error::unimplemented(unsupported().to_string()))
        }

        pub(crate) async fn accept(&self) -> io::Result<LocalStream> {
            match self.never {}
        }
    }

    pub(crate) async fn connect_local(_: &str) -> io::Result<LocalStream> {
        Err(unsupported())
    }

    impl AsyncRead for LocalStream {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            match self.never {}
        }
    }

    impl AsyncWrite for LocalStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            match self.never {}
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.never {}
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.never {}
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
