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

use crate::frame::damaged;
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

    /// The body of a frame that says that it is in a file of this length.
    ///
    /// # Errors
    /// `Unavailable` if the file did not come (this process has no descriptor left for it), `ResourceExhausted` if it is too
    /// large, `DataLoss` if it is no sealed file of this length.
    pub fn take_body(&self, length: u64, max_bytes: u64, pool: &BufferPool) -> Result<FileBody> {
        if length > max_bytes {
            return Err(Error::exhausted(format!(
                "a frame's body claims {length} bytes, more than the bound of {max_bytes} bytes; use a smaller `batch`, or \
                 raise the reader's bound (--max-frame of `caju read`, max_frame= of `distribute` in Python)"
            )));
        }
        let file = self.next_file(length)?;
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
        let Some(file) = self.0.lock().incoming.pop_front() else { return Err(no_file()) };
        SealedFile::from_peer(file, length)
            .map_err(|e| damaged(format!("rows are said to be in a file: {e}")))
    }

    #[cfg(not(unix))]
    fn next_file(&self, _: u64) -> Result<SealedFile> {
        Err(no_file())
    }

    #[cfg(unix)]
    fn on_received(&self, files: Vec<std::os::fd::OwnedFd>) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut have = self.0.lock();
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
            let name = format!("caju-{}", random_secret()?.to_hex());
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
                    Ok(n) => {
                        buf.advance(n);
                        let is_welcome = files.is_empty() || self.receives_files;
                        return Poll::Ready(if is_welcome {
                            self.files.on_received(files)
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
mod tests {
    use std::time::Duration;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use caju_types::ErrorKind;

    use super::*;
    use crate::frame::{Kind, RowsHeader};
    use crate::{
        Chunk, EncodedRows, FrameReader, FrameWriter, Listener, OutFrame, ReadHalf, Run, WriteHalf,
        connect_same_host, decode_chunk, encode_rows,
    };

    const ROWS: i64 = 50_000;
    const PATIENCE: Duration = Duration::from_secs(20);

    fn chunk() -> Chunk {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|i| format!("row {i}"))));
        let batch = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
        Chunk::rows_of(batch, vec![Run { split: 3, start: 0, len: ROWS.cast_unsigned() }])
    }

    fn rows() -> EncodedRows {
        encode_rows(&chunk(), &[]).unwrap()
    }

    struct Pair {
        writer: FrameWriter<WriteHalf>,
        reader: FrameReader<ReadHalf>,
        files: PassedFiles,
    }

    async fn pair() -> Pair {
        let mut listener = Listener::bind_same_host().unwrap();
        let name = listener.address().to_owned();
        let (accepted, connected) = tokio::join!(listener.accept(), connect_same_host(&name));
        let (server, client) = (accepted.unwrap(), connected.unwrap());
        let (ours, files) = (server.passed_files(), client.passed_files().unwrap());
        let writer = FrameWriter::new(server.into_split().1, "reader", PATIENCE).with_files(ours);
        let reader = FrameReader::new(client.into_split().0, "worker", BufferPool::new(0), PATIENCE);
        Pair { writer, reader, files }
    }

    impl Pair {
        /// The header of the next rows, with the body of the frame and the one of its file.
        async fn next(&mut self) -> (RowsHeader, Buffer, Result<FileBody>) {
            let frame = self.reader.next().await.unwrap().unwrap();
            assert_eq!(frame.kind, Kind::Rows);
            let header = frame.message::<RowsHeader>().unwrap();
            let body = self.files.take_body(header.file_bytes, 1 << 30, &BufferPool::new(0));
            (header, frame.body, body)
        }
    }

    #[tokio::test]
    async fn one_file_gives_the_rows_to_several_readers() {
        let file = Arc::new(rows().write_file().unwrap());
        assert!(rows().has_body(file.map().unwrap().as_ref()));
        for _ in 0..2 {
            let mut pair = pair().await;
            // The order of frames with and without files is that of their rows.
            for _ in 0..3 {
                assert!(pair.writer.write(&rows().in_file(Arc::clone(&file)).unwrap()).await.unwrap());
                let small = encode_rows(&chunk().slice_rows(7, 1), &[]).unwrap();
                assert!(pair.writer.write(&small.inline(None).unwrap()).await.unwrap());
            }
            for _ in 0..3 {
                let (header, inline, body) = pair.next().await;
                let body = body.unwrap();
                assert!(inline.is_empty() && body.is_mapped);
                let got = decode_chunk(header, &chunk().schema(), body.bytes).unwrap();
                assert_eq!((&got.pieces, &got.runs), (&chunk().pieces, &chunk().runs));
                let column = got.pieces[0].column(0).as_primitive::<Int64Type>().values().inner().clone();
                assert_eq!(column.as_ptr().align_offset(4096), 0, "the column is in the map");
                let frame = pair.reader.next().await.unwrap().unwrap();
                let header = frame.message::<RowsHeader>().unwrap();
                assert_eq!((header.file_bytes, header.rows), (0, 1));
            }
        }
    }

    #[tokio::test]
    async fn a_frame_that_lies_about_its_file_is_refused() {
        let mut pair = pair().await;
        let file = Arc::new(rows().write_file().unwrap());
        let honest = rows().in_file(Arc::clone(&file)).unwrap();
        pair.writer.write(&OutFrame { file: None, ..honest }).await.unwrap();
        assert_eq!(pair.next().await.2.unwrap_err().kind(), ErrorKind::Unavailable);
        let other = Arc::new(SealedFile::new([&b"other rows"[..]]).unwrap());
        let lie = OutFrame { file: Some(other), ..rows().in_file(Arc::clone(&file)).unwrap() };
        pair.writer.write(&lie).await.unwrap();
        assert_eq!(pair.next().await.2.unwrap_err().kind(), ErrorKind::DataLoss);
        pair.writer.write(&rows().in_file(file).unwrap()).await.unwrap();
        let huge = pair.reader.next().await.unwrap().unwrap().message::<RowsHeader>().unwrap().file_bytes;
        let refused = pair.files.take_body(huge, huge - 1, &BufferPool::new(0)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        let without = FrameWriter::new(tokio::io::sink(), "reader", PATIENCE);
        let mut without = without.with_files(None);
        let file = Arc::new(rows().write_file().unwrap());
        assert!(without.write(&rows().in_file(file).unwrap()).await.is_err(), "TCP takes no files");
    }

    /// A worker holds no descriptors that its readers send.
    #[tokio::test]
    async fn files_of_readers_end_their_connections() {
        let mut listener = Listener::bind_same_host().unwrap();
        let name = listener.address().to_owned();
        let (accepted, connected) = tokio::join!(listener.accept(), connect_same_host(&name));
        let (server, client) = (accepted.unwrap(), connected.unwrap());
        let files = client.passed_files();
        let mut writer = FrameWriter::new(client.into_split().1, "worker", PATIENCE).with_files(files);
        let mut reader = FrameReader::new(server.into_split().0, "reader", BufferPool::new(0), PATIENCE);
        let file = Arc::new(rows().write_file().unwrap());
        writer.write(&rows().in_file(file).unwrap()).await.unwrap();
        let ended = reader.next().await.unwrap_err();
        assert!(ended.message().contains("belong to no frame"), "{ended}");
    }

    /// A connection of a system that passes on no file now.
    struct Full(Vec<u8>, PassedFiles);

    impl AsyncWrite for Full {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if self.1.0.lock().outgoing.is_some() {
                // ETOOMANYREFS
                return Poll::Ready(Err(io::Error::from_raw_os_error(109)));
            }
            self.0.extend_from_slice(buf);
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn nothing_is_written_while_the_system_passes_on_no_file() {
        let files = PassedFiles::default();
        let mut full = Full(Vec::new(), files.clone());
        let mut writer = FrameWriter::new(&mut full, "reader", PATIENCE).with_files(Some(files));
        let file = Arc::new(rows().write_file().unwrap());
        assert!(!writer.write(&rows().in_file(file).unwrap()).await.unwrap());
        let inline = rows().inline(None).unwrap();
        assert!(writer.write(&inline).await.unwrap());
        assert_eq!(full.0.len() as u64, inline.len(), "the frame went over the socket, once");
    }

    #[tokio::test]
    async fn nobody_listens_at_a_name_that_ended() {
        let listener = Listener::bind_same_host().unwrap();
        let name = listener.address().to_owned();
        drop(listener);
        assert_eq!(connect_same_host(&name).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
