//! The frame: a fixed header, a small protobuf header and a body.
//!
//! ```text
//! offset  bytes
//!      0      4  "CAJU"
//!      4      2  protocol version, little endian (as all numbers)
//!      6      2  kind
//!      8      4  length of the protobuf header
//!     12      4  CRC-32C of the protobuf header
//!     16      8  length of the body
//!     24         protobuf header, then body
//! ```

use caju_proto::v1::SplitCount;
use caju_types::{Error, ErrorKind, Result};
use prost::Message;

/// The first four bytes of every frame, and so of every framed connection. HTTP/2 begins with `PRI `.
pub const MAGIC: [u8; 4] = *b"CAJU";
/// The version of the framed protocol that this build speaks.
pub const VERSION: u16 = 1;
/// Bytes of the fixed header.
pub const FIXED_LEN: usize = 24;
/// The longest protobuf header that is accepted; a frame describes at most some millions of runs.
pub const MAX_HEADER_BYTES: usize = 256 << 20;
/// The longest body, in bytes, that a reader accepts by default. One element is one body, so this bounds the memory that a
/// reader allocates for a length that a worker states, and it is enough for batches of thousands of images.
pub const DEFAULT_MAX_BODY_BYTES: u64 = 2 << 30;
/// Alignment of every buffer within a body.
pub const ALIGN: usize = 64;

/// The error of a body that has, or claims to have, more bytes than its reader takes.
pub(crate) fn body_above_bound(bytes: u64, max_bytes: u64) -> Error {
    Error::exhausted(format!(
        "a frame's body claims {bytes} bytes, more than the bound of {max_bytes} bytes; use a smaller `batch`, or raise the \
         reader's bound (--max-frame of `caju read`, max_frame= of `distribute` in Python)"
    ))
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reader to worker, first: which task is wanted.
    Open,
    /// Reader to worker: more bytes may be sent.
    Credit,
    /// Reader to worker: everything up to the end was received.
    Ack,
    /// Worker to reader: the schema of the rows that follow.
    Schema,
    /// Worker to reader: a chunk.
    Rows,
    /// Worker to reader: nothing now, but the worker is alive.
    Ping,
    /// Worker to reader, last: everything was sent.
    End,
    /// Worker to reader, last: the task failed.
    Error,
    /// Worker to reader, only: the task is to be opened at a socket of this host. The reader has asked for that.
    Moved,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Open,
        Kind::Credit,
        Kind::Ack,
        Kind::Schema,
        Kind::Rows,
        Kind::Ping,
        Kind::End,
        Kind::Error,
        Kind::Moved,
    ];

    fn code(self) -> u16 {
        match self {
            Kind::Open => 1,
            Kind::Credit => 2,
            Kind::Ack => 3,
            Kind::Schema => 4,
            Kind::Rows => 5,
            Kind::Ping => 6,
            Kind::End => 7,
            Kind::Error => 8,
            Kind::Moved => 9,
        }
    }
}

/// The fixed header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// What the frame is.
    pub kind: Kind,
    /// Length of the protobuf header.
    pub header_len: usize,
    /// CRC-32C of the protobuf header.
    pub header_crc: u32,
    /// Length of the body.
    pub body_len: u64,
}

impl Fixed {
    /// Reads a fixed header.
    ///
    /// # Errors
    /// `FailedPrecondition` if the peer speaks another version, `DataLoss` if it is not a frame.
    pub fn parse(bytes: &[u8; FIXED_LEN], max_header: usize, max_body: u64) -> Result<Self> {
        let [m0, m1, m2, m3, v0, v1, k0, k1, h0, h1, h2, h3, c0, c1, c2, c3, body @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(damaged("a frame does not begin with `CAJU`"));
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(Error::failed_precondition(format!(
                "the peer speaks version {version} of the framed stream, this caju speaks version {VERSION}; \
                 run the same version of caju on both sides"
            )));
        }
        let code = u16::from_le_bytes([k0, k1]);
        let kind = Kind::ALL
            .into_iter()
            .find(|k| k.code() == code)
            .ok_or_else(|| damaged(format!("unknown kind of frame {code}")))?;
        let header_len = usize::try_from(u32::from_le_bytes([h0, h1, h2, h3])).unwrap_or(usize::MAX);
        let body_len = u64::from_le_bytes(body);
        if header_len > max_header {
            return Err(damaged(format!("a frame's header claims {header_len} bytes")));
        }
        if body_len > max_body {
            return Err(body_above_bound(body_len, max_body));
        }
        Ok(Self { kind, header_len, header_crc: u32::from_le_bytes([c0, c1, c2, c3]), body_len })
    }

    /// Whether the protobuf header is the one that was sent.
    ///
    /// # Errors
    /// `DataLoss` if its checksum differs.
    pub fn check(&self, header: &[u8]) -> Result<()> {
        if crc32c::crc32c(header) == self.header_crc {
            return Ok(());
        }
        Err(damaged("a frame's header does not match its checksum"))
    }
}

/// The fixed header and the protobuf header of a frame, in one piece.
///
/// # Errors
/// `ResourceExhausted` if the header is too long to be sent.
pub fn head<M: Message>(kind: Kind, header: &M, body_len: u64) -> Result<Vec<u8>> {
    let len = header.encoded_len();
    let wire_len = u32::try_from(len)
        .ok()
        .filter(|_| len <= MAX_HEADER_BYTES)
        .ok_or_else(|| Error::exhausted(format!("a frame's header of {len} bytes is too long")))?;
    let mut out = Vec::with_capacity(FIXED_LEN + len);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&kind.code().to_le_bytes());
    out.extend_from_slice(&wire_len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&body_len.to_le_bytes());
    header.encode(&mut out).map_err(|e| Error::internal(format!("cannot encode a frame's header: {e}")))?;
    let crc = crc32c::crc32c(&out[FIXED_LEN..]);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    Ok(out)
}

pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::data_loss(format!("the framed stream is damaged: {what}"))
}

/// Header of [`Kind::Open`].
#[derive(Clone, PartialEq, Message)]
pub struct OpenHeader {
    /// The task to read.
    #[prost(uint64, tag = "1")]
    pub task_id: u64,
    /// Who reads.
    #[prost(uint64, tag = "2")]
    pub client_id: u64,
    /// Bytes that may be sent before the first credit. At least one chunk may always be on its way.
    #[prost(uint64, tag = "3")]
    pub window_bytes: u64,
    /// The reader's right to read the task, as the dispatcher gave it.
    #[prost(bytes = "vec", tag = "4")]
    pub ticket: Vec<u8>,
    /// Which consumer of the job reads, counted from 1; 0: the job has none.
    #[prost(uint32, tag = "50")]
    pub consumer: u32,
    /// How the rows may be compressed: a code of [`Compression`](crate::Compression). A worker may send rows uncompressed.
    #[prost(uint32, tag = "760")]
    pub compression: u32,
    /// Whether rows may come in shared memory. A worker on the reader's host may then answer with [`Kind::Moved`]; others
    /// send them over this connection.
    #[prost(bool, tag = "762")]
    pub shared_memory: bool,
}

/// Header of [`Kind::Moved`].
#[derive(Clone, PartialEq, Message)]
pub struct MovedHeader {
    /// The name of the worker's socket for its host, for [`connect_same_host`](crate::connect_same_host).
    #[prost(string, tag = "1")]
    pub socket: String,
}

/// Header of [`Kind::Credit`].
#[derive(Clone, PartialEq, Message)]
pub struct CreditHeader {
    /// Bytes of bodies that the reader has done with.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Bytes by which the window shrinks from now on (more tasks share the reader's memory).
    #[prost(uint64, tag = "2")]
    pub shrink_bytes: u64,
}

/// Header of frames that say all by their kind.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct EmptyHeader {}

/// Header of [`Kind::End`]: what the task emitted, to all of its readers. A reader passes it on to the dispatcher, which
/// then knows it although the worker may die before its own report.
#[derive(Clone, PartialEq, Message)]
pub struct EndHeader {
    /// The counts are present; workers before version 0.2 send none.
    #[prost(bool, tag = "1")]
    pub counted: bool,
    /// Splits, in the order of `rows`.
    #[prost(uint64, repeated, tag = "2")]
    pub splits: Vec<u64>,
    /// Rows of each split.
    #[prost(uint64, repeated, tag = "3")]
    pub rows: Vec<u64>,
    /// As in [`RowsHeader`].
    #[prost(uint64, repeated, tag = "30")]
    pub sized_split: Vec<u64>,
    /// As in [`RowsHeader`].
    #[prost(uint64, repeated, tag = "31")]
    pub sized_rows: Vec<u64>,
    /// As in [`RowsHeader`].
    #[prost(uint32, tag = "900")]
    pub listed_feed: u32,
    /// As in [`RowsHeader`].
    #[prost(uint64, tag = "901")]
    pub listed_count: u64,
    /// As in [`RowsHeader`].
    #[prost(fixed64, tag = "902")]
    pub listed_digest: u64,
}

impl EndHeader {
    /// Says what a task emitted, if that is known.
    pub fn new(counts: Option<&[SplitCount]>) -> Self {
        let of = |field: fn(&SplitCount) -> u64| counts.iter().copied().flatten().map(field).collect();
        let (splits, rows) = (of(|c| c.split_index), of(|c| c.rows));
        Self { counted: counts.is_some(), splits, rows, ..Self::default() }
    }

    /// What the task emitted, if its worker says so.
    pub fn counts(&self) -> Option<Vec<SplitCount>> {
        let count = |(split_index, rows): (&u64, &u64)| SplitCount { split_index: *split_index, rows: *rows };
        let whole = self.counted && self.splits.len() == self.rows.len();
        whole.then(|| self.splits.iter().zip(&self.rows).map(count).collect())
    }
}

/// Header of [`Kind::Schema`].
#[derive(Clone, PartialEq, Message)]
pub struct SchemaHeader {
    /// The Arrow schema, as JSON.
    #[prost(string, tag = "1")]
    pub schema_json: String,
}

/// Header of [`Kind::Rows`]: where the rows came from, how they form elements, and what is in the body.
///
/// Arrays are described depth first, as Arrow IPC does it: one entry of `node_rows` per array, one entry of
/// `buffers` per buffer (a validity buffer of length 0: no nulls). Dictionary values follow their keys.
/// Every buffer begins at a multiple of [`ALIGN`] within the body.
#[derive(Clone, PartialEq, Message)]
pub struct RowsHeader {
    /// Number of rows.
    #[prost(uint64, tag = "1")]
    pub rows: u64,
    /// Splits of the runs.
    #[prost(uint64, repeated, tag = "2")]
    pub run_split: Vec<u64>,
    /// First ordinals of the runs.
    #[prost(uint64, repeated, tag = "3")]
    pub run_start: Vec<u64>,
    /// Lengths of the runs.
    #[prost(uint64, repeated, tag = "4")]
    pub run_len: Vec<u64>,
    /// Whether every row is an element; else `lengths` says which rows are.
    #[prost(bool, tag = "5")]
    pub rows_are_elements: bool,
    /// Rows of each element.
    #[prost(uint32, repeated, tag = "6")]
    pub lengths: Vec<u32>,
    /// Whether this is the short batch at a task's end.
    #[prost(bool, tag = "7")]
    pub remainder: bool,
    /// Rows of each array.
    #[prost(uint64, repeated, tag = "8")]
    pub node_rows: Vec<u64>,
    /// Bytes of each buffer.
    #[prost(uint64, repeated, tag = "9")]
    pub buffers: Vec<u64>,
    /// Data buffers of each array of a view type.
    #[prost(uint32, repeated, tag = "10")]
    pub variadic: Vec<u32>,
    /// Splits whose numbers of rows are known since the last frame, in the order of `sized_rows`.
    #[prost(uint64, repeated, tag = "30")]
    pub sized_split: Vec<u64>,
    /// Rows of the split-local output of each of these splits. Rows that readers had before are among them.
    #[prost(uint64, repeated, tag = "31")]
    pub sized_rows: Vec<u64>,
    /// Whether these are copies of rows that another consumer gets: they have no runs.
    #[prost(bool, tag = "50")]
    pub padding: bool,
    /// The class of `bucket_by_length` that all rows belong to, plus 1; 0: none.
    #[prost(uint32, tag = "70")]
    pub bucket: u32,
    /// Of a task's remainder: its place among the last rounds of the epoch, from 1; 0 for everything else.
    #[prost(uint64, tag = "71")]
    pub remainder_round: u64,
    /// How the body is compressed; 0: not at all.
    #[prost(uint32, tag = "760")]
    pub codec: u32,
    /// Of a compressed body: its bytes before.
    #[prost(uint64, tag = "761")]
    pub raw_bytes: u64,
    /// The body is in a sealed file in memory that comes with the frame, and this is its length; the frame itself has none.
    /// 0: the body is in the frame.
    #[prost(uint64, tag = "763")]
    pub file_bytes: u64,
    /// The number that this file has on the host ([`SealedFile::id`](caju_runtime::sealed::SealedFile::id)).
    #[prost(uint64, tag = "764")]
    pub file_id: u64,
    /// The feed of the task's splits. The next two fields are about it.
    #[prost(uint32, tag = "900")]
    pub listed_feed: u32,
    /// How many of its splits were listed; 0: that is not known.
    #[prost(uint64, tag = "901")]
    pub listed_count: u64,
    /// Their rolling hash.
    #[prost(fixed64, tag = "902")]
    pub listed_digest: u64,
}

/// Header of [`Kind::Error`].
#[derive(Clone, PartialEq, Message)]
pub struct ErrorHeader {
    /// Name of the kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The message.
    #[prost(string, tag = "2")]
    pub message: String,
}

impl From<&Error> for ErrorHeader {
    fn from(e: &Error) -> Self {
        Self { kind: e.kind().as_str().to_string(), message: e.message().to_string() }
    }
}

impl From<ErrorHeader> for Error {
    fn from(h: ErrorHeader) -> Self {
        let kind = ErrorKind::ALL.into_iter().find(|k| k.as_str() == h.kind).unwrap_or(ErrorKind::Internal);
        Error::new(kind, h.message)
    }
}
