//! The framed stream as its receivers read it: any bytes as one connection.
//!
//! The first byte says whether the checksums of headers are put right first, as somebody who means harm would. A frame
//! is refused, or decodes into what its kind says; a chunk that decodes has as many rows as its runs, its elements and
//! its columns say, and every value in it can be read.

use std::time::Duration;

use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use caju_wire::checksum::RowsChecksum;
use caju_wire::frame::{
    CreditHeader, EmptyHeader, EndHeader, ErrorHeader, FIXED_LEN, Kind, MovedHeader, OpenHeader, RowsHeader,
    SchemaHeader,
};
use caju_wire::{BufferPool, ElementCursor, FrameReader, InFrame, decode_chunk, decode_schema};

use crate::environment::block_on;

/// Where the fixed header has the length of the header, its checksum, and the length of the body.
const HEADER_LEN: std::ops::Range<usize> = 8..12;
const CHECKSUM: std::ops::Range<usize> = 12..16;
const BODY_LEN: std::ops::Range<usize> = 16..24;

/// What a receiver without settings of its own accepts here: an input has some KiB, so that more is a lie, and what it
/// costs shows in the bytes allocated.
const BODY_BYTES: u64 = 256 << 20;

pub(crate) fn one(data: &[u8]) {
    let Some((how, stream)) = data.split_first() else { return };
    let stream = if how & 1 == 1 { with_checksums(stream) } else { stream.to_vec() };
    block_on(async {
        let pool = BufferPool::new(1 << 20);
        let peer = FrameReader::new(stream.as_slice(), "the peer", pool, Duration::from_secs(5));
        let mut frames = peer.with_limits(1 << 20, BODY_BYTES);
        let mut schema = None;
        while let Ok(Some(frame)) = frames.next().await {
            if let Err(e) = receive(frame, &mut schema) {
                assert!(!e.message().is_empty());
                return;
            }
        }
    });
}

fn receive(frame: InFrame, schema: &mut Option<SchemaRef>) -> Result<()> {
    match frame.kind {
        Kind::Open => {
            let _task: OpenHeader = frame.message()?;
        }
        Kind::Credit => {
            let _bytes: CreditHeader = frame.message()?;
        }
        Kind::Ack | Kind::Ping => {
            let _nothing: EmptyHeader = frame.message()?;
        }
        Kind::End => {
            let header: EndHeader = frame.message()?;
            let counts = header.counts();
            assert!(counts.is_none_or(|c| header.counted && c.len() == header.rows.len()));
        }
        Kind::Moved => {
            let _socket: MovedHeader = frame.message()?;
        }
        Kind::Error => drop(Error::from(frame.message::<ErrorHeader>()?)),
        Kind::Schema => *schema = Some(decode_schema(&frame.message::<SchemaHeader>()?)?),
        Kind::Rows => {
            let Some(schema) = schema else { return Ok(()) };
            let chunk = decode_chunk(frame.message::<RowsHeader>()?, schema, frame.body)?;
            let rows = chunk.rows() as u64;
            let of_runs: u64 = chunk.runs.iter().map(|r| r.len).sum();
            assert_eq!(of_runs, rows, "every row is of a run");
            let mut sum = RowsChecksum::default();
            let mut elements = ElementCursor::new(chunk);
            while let Some(element) = elements.next()? {
                sum.update(&element)?;
            }
            assert_eq!(sum.rows(), rows, "rows of elements");
        }
    }
    Ok(())
}

/// The stream with the checksum of every header as it should be.
fn with_checksums(stream: &[u8]) -> Vec<u8> {
    let mut stream = stream.to_vec();
    let mut at = 0_usize;
    while let Some(fixed) = at.checked_add(FIXED_LEN).and_then(|end| stream.get(at..end)) {
        let header = u64::from(u32::from_le_bytes(fixed[HEADER_LEN].try_into().unwrap()));
        let body = u64::from_le_bytes(fixed[BODY_LEN].try_into().unwrap());
        let begin = at + FIXED_LEN;
        let whole = usize::try_from(header).ok().and_then(|h| stream.get(begin..begin.checked_add(h)?));
        let Some(whole) = whole else { break };
        let checksum = crc32c::crc32c(whole).to_le_bytes();
        stream[at..][CHECKSUM].copy_from_slice(&checksum);
        let next = usize::try_from(header.saturating_add(body)).ok().and_then(|n| begin.checked_add(n));
        let Some(next) = next else { break };
        at = next;
    }
    stream
}
