//! Frames over a byte stream.

use std::io::IoSlice;
use std::time::Duration;

use arrow_buffer::Buffer;
use caju_runtime::sealed::refuses_files;
use caju_types::{Error, Result};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use crate::encode::OutFrame;
use crate::frame::{self, DEFAULT_MAX_BODY_BYTES, FIXED_LEN, Fixed, Kind, MAX_HEADER_BYTES, damaged};
use crate::pool::BufferPool;
use crate::same_host::PassedFiles;

/// Slices handed to one vectored write; the system takes 1024 at most, and more than this gains nothing.
const MAX_SLICES: usize = 128;
/// What a reader reads at once where it may; large bodies bypass it.
const READ_AHEAD: usize = 64 << 10;

/// A frame as it was received.
#[derive(Debug)]
pub struct InFrame {
    /// What it is.
    pub kind: Kind,
    /// The protobuf header, checked against its checksum.
    pub header: Vec<u8>,
    /// The body.
    pub body: Buffer,
}

impl InFrame {
    /// The protobuf header as a message.
    ///
    /// # Errors
    /// `DataLoss` if it is none.
    pub fn message<M: Message + Default>(&self) -> Result<M> {
        M::decode(self.header.as_slice()).map_err(|e| damaged(format!("a header cannot be read: {e}")))
    }

    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        FIXED_LEN + self.header.len() + self.body.len()
    }

    /// Never: a frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Reads frames from the peer that `peer` names in errors.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: BufReader<R>,
    peer: String,
    pool: BufferPool,
    silence: Duration,
    max_header: usize,
    max_body: u64,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader whose bodies come from `pool`. A connection whose peer sends nothing for `silence` fails.
    pub fn new(inner: R, peer: impl Into<String>, pool: BufferPool, silence: Duration) -> Self {
        let inner = BufReader::with_capacity(READ_AHEAD, inner);
        let (max_header, max_body) = (MAX_HEADER_BYTES, DEFAULT_MAX_BODY_BYTES);
        Self { inner, peer: peer.into(), pool, silence, max_header, max_body }
    }

    /// Bounds the headers and bodies that are accepted.
    #[must_use]
    pub fn with_limits(mut self, header_bytes: usize, body_bytes: u64) -> Self {
        self.max_header = header_bytes;
        self.max_body = body_bytes;
        self
    }

    /// The next frame; `None` if the peer closed the connection between frames. Not safe to cancel.
    ///
    /// # Errors
    /// `Unavailable` if the connection breaks, `DeadlineExceeded` if the peer falls silent, `DataLoss` for
    /// what is not a frame.
    pub async fn next(&mut self) -> Result<Option<InFrame>> {
        let mut fixed = [0u8; FIXED_LEN];
        if !self.fill(&mut fixed, true).await? {
            return Ok(None);
        }
        let fixed =
            Fixed::parse(&fixed, self.max_header, self.max_body).map_err(|e| e.context(&self.peer))?;
        let header = self.header(fixed.header_len).await?;
        fixed.check(&header).map_err(|e| e.context(&self.peer))?;
        let len =
            usize::try_from(fixed.body_len).map_err(|_| damaged("a body is too long for this machine"))?;
        let mut body = self.pool.take(len);
        self.fill(body.as_mut_slice(), false).await?;
        Ok(Some(InFrame { kind: fixed.kind, header, body: body.freeze() }))
    }

    /// Reads the header in steps, so that a false length allocates no more than was sent.
    async fn header(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut header = Vec::new();
        while header.len() < len {
            let at = header.len();
            header.resize(len.min(at + (1 << 20)), 0);
            self.fill(&mut header[at..], false).await?;
        }
        Ok(header)
    }

    async fn fill(&mut self, mut to: &mut [u8], may_end: bool) -> Result<bool> {
        let mut first = may_end;
        while !to.is_empty() {
            let read = tokio::time::timeout(self.silence, self.inner.read(to)).await;
            let n = match read {
                Err(_) => return Err(self.silent()),
                Ok(Err(e)) => {
                    return Err(Error::unavailable(format!("{}: the connection broke: {e}", self.peer)));
                }
                Ok(Ok(n)) => n,
            };
            if n == 0 {
                if first {
                    return Ok(false);
                }
                return Err(Error::unavailable(format!(
                    "{}: the connection closed within a frame",
                    self.peer
                )));
            }
            first = false;
            to = &mut to[n..];
        }
        Ok(true)
    }

    fn silent(&self) -> Error {
        Error::deadline(format!(
            "{}: nothing was received for {:?}; the peer or the network hangs",
            self.peer, self.silence
        ))
    }
}

/// Writes frames to the peer that `peer` names in errors.
#[derive(Debug)]
pub struct FrameWriter<W> {
    inner: W,
    peer: String,
    stall: Duration,
    /// Files that travel with frames, where the connection takes them.
    files: Option<PassedFiles>,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// A writer. A connection whose peer takes nothing for `stall` fails.
    pub fn new(inner: W, peer: impl Into<String>, stall: Duration) -> Self {
        Self { inner, peer: peer.into(), stall, files: None }
    }

    /// Sends bodies that are files over a connection that passes them on.
    #[must_use]
    pub fn with_files(mut self, files: Option<PassedFiles>) -> Self {
        self.files = files;
        self
    }

    /// Writes a frame that has no body.
    ///
    /// # Errors
    /// `Unavailable` if the connection breaks, `DeadlineExceeded` if the peer takes nothing.
    pub async fn send<M: Message>(&mut self, kind: Kind, header: &M) -> Result<()> {
        let head = frame::head(kind, header, 0)?;
        let frame = OutFrame { head, body: Vec::new(), body_len: 0, raw_len: 0, file: None };
        self.write(&frame).await.map(drop)
    }

    /// Writes a frame, handing the memory of its columns to the system without a copy. False if nothing was written, because
    /// the system passes on no further file now.
    ///
    /// # Errors
    /// `Unavailable` if the connection breaks, `DeadlineExceeded` if the peer takes nothing, `Internal` for a file on a
    /// connection that takes none.
    pub async fn write(&mut self, frame: &OutFrame) -> Result<bool> {
        match (&self.files, &frame.file) {
            (Some(files), file) => files.set_next(file.clone()),
            (None, None) => {}
            (None, Some(_)) => return Err(Error::internal("a file for a connection that takes none")),
        }
        let slice = |i: usize| match i {
            0 => frame.head.as_slice(),
            i => frame.body[i - 1].as_slice(),
        };
        let count = frame.body.len() + 1;
        // Slice `at` is written up to `offset`.
        let (mut at, mut offset) = (0, 0);
        while at < count {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let n = (count - at).min(MAX_SLICES);
            for (k, s) in slices.iter_mut().take(n).enumerate() {
                let whole = slice(at + k);
                *s = IoSlice::new(if k == 0 { &whole[offset..] } else { whole });
            }
            let written = tokio::time::timeout(self.stall, self.inner.write_vectored(&slices[..n])).await;
            let mut written = match written {
                Err(_) => {
                    return Err(Error::deadline(format!(
                        "{}: nothing was taken for {:?}; the peer hangs",
                        self.peer, self.stall
                    )));
                }
                Ok(Err(e)) if frame.file.is_some() && (at, offset) == (0, 0) && refuses_files(&e) => {
                    return Ok(false);
                }
                Ok(Err(e)) => {
                    return Err(Error::unavailable(format!("{}: the connection broke: {e}", self.peer)));
                }
                Ok(Ok(0)) => return Err(Error::unavailable(format!("{}: the connection closed", self.peer))),
                Ok(Ok(n)) => n,
            };
            while at < count && written >= slice(at).len() - offset {
                written -= slice(at).len() - offset;
                at += 1;
                offset = 0;
            }
            offset += written;
        }
        Ok(true)
    }

    /// Ends the stream.
    pub async fn shutdown(&mut self) {
        // The peer may have closed first, and then needs no answer.
        drop(tokio::time::timeout(self.stall, self.inner.shutdown()).await);
    }
}

/// Whether the bytes may begin a framed connection rather than HTTP/2 (`PRI * HTTP/2.0`).
pub fn begins_framed_stream(first: &[u8]) -> bool {
    let n = first.len().min(frame::MAGIC.len());
    n > 0 && first[..n] == frame::MAGIC[..n]
}
