//! Compression of rows on their way to a reader.
//!
//! The body of a frame of rows is compressed as a whole. A body that compression makes only a little smaller is sent
//! uncompressed, so rows that are compressed already (pictures) cost one attempt, and no time at the reader.

use std::io::{Read, Write};

use arrow_buffer::Buffer;
use caju_types::{Error, Result, did_you_mean};

use crate::frame::{RowsHeader, body_above_bound, damaged};
use crate::pool::BufferPool;
use crate::segment::Segment;

/// Bodies below this size, in bytes, are sent uncompressed: a packet has 1.5 KB, and fewer bytes in it gain nothing.
const MIN_BODY_BYTES: u64 = 4 << 10;
/// A body is sent compressed if that takes at most this fraction of its bytes. Less is not worth the reader's time.
const MAX_FRACTION: f64 = 0.9;
/// The level of zstd: the fastest one, at about 500 MB/s per thread.
const ZSTD_LEVEL: i32 = 1;

/// How a reader wants its rows compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// With lz4 from workers on other machines, and not at all from those on the reader's own.
    Auto,
    /// With lz4: about 700 MB/s per thread.
    Lz4,
    /// With zstd: smaller than lz4, and slower.
    Zstd,
}

impl Compression {
    /// All, in the order of their codes.
    pub const ALL: [Compression; 4] = [Self::None, Self::Auto, Self::Lz4, Self::Zstd];

    /// The name in flags and arguments.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Auto => "auto",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The compression of this name, in upper or lower case.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name; the message has the known ones.
    pub fn of_name(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        Self::ALL.into_iter().find(|c| c.as_str() == lower).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str);
            Error::invalid(format!(
                "there is no compression `{name}`{}; there are `none`, `auto`, `lz4` and `zstd`",
                did_you_mean(&lower, names)
            ))
        })
    }

    /// The code in the frame that opens a stream.
    pub fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Auto => 1,
            Self::Lz4 => 2,
            Self::Zstd => 3,
        }
    }

    /// What a worker does for a reader that sent this code; `same_host` says where the reader is. Codes of later versions
    /// are not compressed, which every reader understands.
    pub fn codec(code: u32, same_host: bool) -> Option<Codec> {
        match Self::ALL.into_iter().find(|c| c.code() == code)? {
            Self::Auto if !same_host => Some(Codec::Lz4),
            Self::None | Self::Auto => None,
            Self::Lz4 => Some(Codec::Lz4),
            Self::Zstd => Some(Codec::Zstd),
        }
    }
}

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// An lz4 frame.
    Lz4,
    /// A zstd frame.
    Zstd,
}

impl Codec {
    fn code(self) -> u32 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    fn of_code(code: u32) -> Option<Self> {
        [Self::Lz4, Self::Zstd].into_iter().find(|c| c.code() == code)
    }
}

/// Compresses a body, and says so in its header. A body that would become only a little smaller stays uncompressed.
///
/// # Errors
/// `Internal` if the codec fails.
pub(crate) fn compress(
    codec: Codec,
    header: &mut RowsHeader,
    body: &mut Vec<Segment>,
    body_len: u64,
) -> Result<u64> {
    if body_len < MIN_BODY_BYTES {
        return Ok(body_len);
    }
    let failed = |e: std::io::Error| Error::internal(format!("rows could not be compressed: {e}"));
    let out = match codec {
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            body.iter().try_for_each(|s| encoder.write_all(s.as_slice())).map_err(failed)?;
            encoder.finish().map_err(|e| failed(e.into()))?
        }
        Codec::Zstd => {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), ZSTD_LEVEL).map_err(failed)?;
            body.iter().try_for_each(|s| encoder.write_all(s.as_slice())).map_err(failed)?;
            encoder.finish().map_err(failed)?
        }
    };
    if out.len() as f64 > MAX_FRACTION * body_len as f64 {
        return Ok(body_len);
    }
    (header.codec, header.raw_bytes) = (codec.code(), body_len);
    let len = out.len() as u64;
    *body = vec![Segment::Data(Buffer::from_vec(out))];
    Ok(len)
}

/// The body of rows as it was before it was compressed, in memory of `pool`.
///
/// # Errors
/// `DataLoss` for a body that is not what its header says, `ResourceExhausted` for one that has more than `max_bytes` as it was.
pub fn decompress(header: &RowsHeader, body: Buffer, max_bytes: u64, pool: &BufferPool) -> Result<Buffer> {
    if header.codec == 0 {
        return Ok(body);
    }
    let codec = Codec::of_code(header.codec)
        .ok_or_else(|| damaged(format!("its rows are compressed by an unknown codec {}", header.codec)))?;
    let len = usize::try_from(header.raw_bytes)
        .ok()
        .filter(|_| header.raw_bytes <= max_bytes)
        .ok_or_else(|| body_above_bound(header.raw_bytes, max_bytes))?;
    let mut out = pool.take(len);
    let to = out.as_mut_slice();
    let from = body.as_slice();
    let read = match codec {
        Codec::Lz4 => exactly(lz4_flex::frame::FrameDecoder::new(from), to),
        Codec::Zstd => zstd::stream::Decoder::with_buffer(from).and_then(|decoder| exactly(decoder, to)),
    };
    read.map_err(|e| damaged(format!("its rows cannot be decompressed: {e}")))?;
    Ok(out.freeze())
}

/// Fills a slice; it is an error if there are more bytes.
fn exactly(mut from: impl Read, to: &mut [u8]) -> std::io::Result<()> {
    from.read_exact(to)?;
    match from.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(std::io::Error::other("more bytes than its header says")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: &[u8]) -> (RowsHeader, Vec<Segment>) {
        let half = bytes.len() / 2;
        let segment = |part: &[u8]| Segment::Data(Buffer::from_slice_ref(part));
        (RowsHeader::default(), vec![segment(&bytes[..half]), segment(&bytes[half..]), Segment::Zeros(7)])
    }

    fn repetitive() -> Vec<u8> {
        b"a row like others, ".repeat(4000)
    }

    /// Bytes that no codec shrinks.
    fn noise() -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        (0..4000).flat_map(|_| next()).collect()
    }

    #[test]
    fn bodies_come_back_and_those_that_do_not_shrink_are_sent_as_they_are() {
        let pool = BufferPool::new(1 << 20);
        for codec in [Codec::Lz4, Codec::Zstd] {
            let plain = [&repetitive()[..], &[0; 7]].concat();
            let (mut header, mut segments) = body(&repetitive());
            let len = compress(codec, &mut header, &mut segments, plain.len() as u64).unwrap();
            assert!(len * 4 < plain.len() as u64, "{codec:?}: {len}");
            assert_eq!(header.raw_bytes, plain.len() as u64);
            let sent = Buffer::from_slice_ref(segments[0].as_slice());
            assert_eq!(segments.len(), 1);
            assert_eq!(decompress(&header, sent.clone(), header.raw_bytes, &pool).unwrap().as_slice(), plain);

            for raw_bytes in [header.raw_bytes - 1, header.raw_bytes + 1] {
                let lies = RowsHeader { raw_bytes, ..header.clone() };
                let e = decompress(&lies, sent.clone(), 1 << 30, &pool).unwrap_err();
                assert_eq!(e.kind(), caju_types::ErrorKind::DataLoss, "{codec:?}: {e}");
            }
            let cut = sent.slice_with_length(0, sent.len() / 2);
            assert!(decompress(&header, cut, 1 << 30, &pool).is_err());
            // The bound is of the bytes that it becomes, and not of those that are sent.
            let huge = RowsHeader { raw_bytes: u64::MAX, ..header.clone() };
            for (header, most) in [(&huge, 1 << 30), (&header, header.raw_bytes - 1)] {
                let e = decompress(header, sent.clone(), most, &pool).unwrap_err();
                assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted, "{e}");
                assert!(e.message().contains("--max-frame"), "{e}");
            }

            for bytes in [noise(), b"short".to_vec()] {
                let (mut header, mut segments) = body(&bytes);
                let raw = bytes.len() as u64 + 7;
                assert_eq!(compress(codec, &mut header, &mut segments, raw).unwrap(), raw);
                assert_eq!((header.codec, segments.len()), (0, 3));
            }
        }
        let unknown = RowsHeader { codec: 77, ..RowsHeader::default() };
        assert!(decompress(&unknown, Buffer::from_slice_ref([1u8]), 1 << 30, &pool).is_err());
    }

    #[test]
    fn compressions_have_names_and_codes() {
        for (code, compression) in (0..).zip(Compression::ALL) {
            assert_eq!(compression.code(), code);
            assert_eq!(Compression::of_name(&compression.as_str().to_uppercase()).unwrap(), compression);
        }
        let e = Compression::of_name("lz5").unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::InvalidArgument);
        assert!(e.message().contains("did you mean `lz4`"), "{e}");
        let codecs = |same_host| [0, 1, 2, 3, 99].map(|code| Compression::codec(code, same_host));
        assert_eq!(codecs(false), [None, Some(Codec::Lz4), Some(Codec::Lz4), Some(Codec::Zstd), None]);
        assert_eq!(codecs(true), [None, None, Some(Codec::Lz4), Some(Codec::Zstd), None]);
    }
}
