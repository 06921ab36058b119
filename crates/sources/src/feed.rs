//! Bytes on their way from a file to a parser: queues without copies, and decompression.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use caju_pipeline::Compression;
use caju_types::{Error, Result};
use flate2::write::MultiGzDecoder;
use futures::stream::{self, BoxStream, StreamExt};
use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

use crate::file::SourceFile;

/// The least bytes that are read past a split's end for the record that crosses it.
const TAIL_BYTES: u64 = 16 << 10;
/// Decompressed bytes per piece.
const PIECE_BYTES: usize = 1 << 20;

/// Consecutive bytes in pieces as they arrived.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl ByteQueue {
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the first `N` bytes; there must be that many.
    pub(crate) fn peek<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        let mut at = 0;
        for p in &self.pieces {
            let n = p.len().min(N - at);
            out[at..at + n].copy_from_slice(&p[..n]);
            at += n;
            if at == N {
                break;
            }
        }
        out
    }

    /// Hands the first `n` bytes piece by piece to `f` and drops them.
    pub(crate) fn consume(&mut self, mut n: usize, mut f: impl FnMut(&[u8])) {
        n = n.min(self.len);
        self.len -= n;
        while n > 0 {
            let Some(front) = self.pieces.front_mut() else { return };
            let take = n.min(front.len());
            f(&front[..take]);
            front.advance(take);
            if front.is_empty() {
                self.pieces.pop_front();
            }
            n -= take;
        }
    }
}

/// A queue that fills itself: the bytes of a split, and on demand the bytes behind it.
pub(crate) struct Feed {
    pub(crate) queue: ByteQueue,
    blocks: BoxStream<'static, Result<Bytes>>,
    /// The file and the offset of the bytes behind the blocks, if there are any.
    tail: Option<(Arc<SourceFile>, u64)>,
}

impl Feed {
    /// The bytes of a file from `start`: eagerly up to `end`, on demand behind it.
    pub(crate) fn range(file: &Arc<SourceFile>, start: u64, end: u64) -> Self {
        let end = end.min(file.size()).max(start);
        Self {
            queue: ByteQueue::default(),
            blocks: file.blocks(start..end),
            tail: (end < file.size()).then(|| (Arc::clone(file), end)),
        }
    }

    /// A whole file, decompressed.
    pub(crate) fn whole(file: &Arc<SourceFile>, codec: Codec) -> Self {
        let blocks = file.blocks(0..file.size());
        Self { queue: ByteQueue::default(), blocks: codec.decode(blocks, &file.file.url), tail: None }
    }

    /// The bytes of a file from `start`, or all of a compressed one.
    pub(crate) fn open(file: &Arc<SourceFile>, codec: Codec, start: u64, end: u64) -> Self {
        if codec == Codec::Plain { Self::range(file, start, end) } else { Self::whole(file, codec) }
    }

    /// No bytes at all.
    pub(crate) fn nothing() -> Self {
        Self { queue: ByteQueue::default(), blocks: stream::empty().boxed(), tail: None }
    }

    /// Drops `n` bytes, if possible without reading them; false if the file ends before.
    pub(crate) async fn skip(&mut self, mut n: u64) -> Result<bool> {
        loop {
            let now = usize::try_from(n).unwrap_or(usize::MAX).min(self.queue.len());
            self.queue.consume(now, |_| {});
            n -= now as u64;
            if n == 0 {
                return Ok(true);
            }
            if let Some(block) = self.blocks.next().await {
                self.queue.push(block?);
                continue;
            }
            let Some((file, at)) = &mut self.tail else { return Ok(false) };
            *at = at.saturating_add(n).min(file.size().saturating_add(1));
            return Ok(*at <= file.size());
        }
    }

    /// Waits until the queue holds at least `n` bytes; false if the file ends before.
    pub(crate) async fn fill(&mut self, n: usize) -> Result<bool> {
        while self.queue.len() < n {
            if let Some(block) = self.blocks.next().await {
                self.queue.push(block?);
                continue;
            }
            let Some((file, at)) = &mut self.tail else { return Ok(false) };
            let want = ((n - self.queue.len()) as u64).max(TAIL_BYTES);
            let end = file.size().min(*at + want);
            if *at >= end {
                return Ok(false);
            }
            let block = file.read(*at..end).await?;
            *at = end;
            self.queue.push(block);
        }
        Ok(true)
    }
}

/// How the bytes of a whole file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Plain,
    Gzip,
    Zstd,
}

impl Codec {
    /// What a definition says, resolved for one file.
    pub(crate) fn of(compression: Compression, url: &str) -> Self {
        match compression {
            Compression::None => Codec::Plain,
            Compression::Gzip => Codec::Gzip,
            Compression::Zstd => Codec::Zstd,
            Compression::Auto => {
                let lower = url.to_ascii_lowercase();
                if lower.ends_with(".gz") || lower.ends_with(".tgz") || lower.ends_with(".gzip") {
                    Codec::Gzip
                } else if lower.ends_with(".zst") || lower.ends_with(".zstd") {
                    Codec::Zstd
                } else {
                    Codec::Plain
                }
            }
        }
    }

    /// Undoes the compression of a stream of blocks.
    pub(crate) fn decode(
        self,
        blocks: BoxStream<'static, Result<Bytes>>,
        url: &str,
    ) -> BoxStream<'static, Result<Bytes>> {
        let decoder = match self {
            Codec::Plain => return blocks,
            Codec::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            Codec::Zstd => match ZstdDecoder::new() {
                Ok(d) => Decoder::Zstd { decoder: Box::new(d), open: true, out: Vec::new() },
                Err(e) => {
                    let e = Error::internal(format!("zstd: {e}"));
                    return stream::once(async move { Err(e) }).boxed();
                }
            },
        };
        let state = Decoding {
            decoder,
            blocks,
            input: Bytes::new(),
            url: url.to_string(),
            done: false,
            checked: false,
        };
        stream::try_unfold(state, |mut s| async move { Ok(s.next().await?.map(|b| (b, s))) }).boxed()
    }
}

enum Decoder {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Zstd { decoder: Box<ZstdDecoder<'static>>, open: bool, out: Vec<u8> },
}

struct Decoding {
    decoder: Decoder,
    blocks: BoxStream<'static, Result<Bytes>>,
    input: Bytes,
    url: String,
    done: bool,
    checked: bool,
}

/// Input bytes per step of the decoder; this bounds the output of one step.
const STEP_BYTES: usize = 16 << 10;

impl Decoding {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if self.done {
                return Ok(None);
            }
            if self.input.is_empty() {
                match self.blocks.next().await {
                    Some(block) => {
                        self.input = block?;
                        self.check_magic()?;
                    }
                    None => {
                        self.done = true;
                        let rest = self.finish()?;
                        return Ok((!rest.is_empty()).then_some(rest));
                    }
                }
                continue;
            }
            let step = self.input.slice(..self.input.len().min(STEP_BYTES));
            let read = self.feed(&step)?;
            self.input.advance(read);
            if self.output().len() >= PIECE_BYTES {
                return Ok(Some(std::mem::take(self.output()).into()));
            }
        }
    }

    /// A file that is no gzip file is not reported as truncated.
    fn check_magic(&mut self) -> Result<()> {
        let gzip = matches!(self.decoder, Decoder::Gzip(_));
        if std::mem::replace(&mut self.checked, true) || !gzip || self.input.starts_with(&[0x1f, 0x8b]) {
            return Ok(());
        }
        Err(self.broken("it does not start like a gzip file"))
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match &mut self.decoder {
            Decoder::Gzip(d) => d.get_mut(),
            Decoder::Zstd { out, .. } => out,
        }
    }

    /// Returns how many bytes were read.
    fn feed(&mut self, step: &[u8]) -> Result<usize> {
        let result = match &mut self.decoder {
            Decoder::Gzip(d) => d.write_all(step).map(|()| step.len()),
            Decoder::Zstd { decoder, open, out } => zstd_step(decoder, open, out, step),
        };
        result.map_err(|e| self.broken(&e.to_string()))
    }

    fn finish(&mut self) -> Result<Bytes> {
        match &mut self.decoder {
            Decoder::Gzip(d) => {
                // The decoder has one error for data that end early and for a wrong checksum.
                if d.try_finish().is_err() {
                    return Err(Error::data_loss(format!(
                        "{}: the compressed data end in the middle, or their checksum does not match: the file is truncated, \
                         damaged or still being written",
                        self.url
                    )));
                }
            }
            Decoder::Zstd { open, .. } => {
                if *open {
                    return Err(Error::data_loss(format!(
                        "{}: the compressed data end in the middle: the file is truncated or is still being written",
                        self.url
                    )));
                }
            }
        }
        Ok(std::mem::take(self.output()).into())
    }

    fn broken(&self, why: &str) -> Error {
        Error::data_loss(format!(
            "{}: the file cannot be decompressed ({why}); it is damaged, or `compression` of the source is wrong",
            self.url
        ))
    }
}

/// Decompresses a step, or as much of it as gives a piece: four bytes of zstd may be 128 KiB. Returns how many bytes were read.
fn zstd_step(
    decoder: &mut ZstdDecoder<'static>,
    open: &mut bool,
    out: &mut Vec<u8>,
    step: &[u8],
) -> std::io::Result<usize> {
    let mut input = InBuffer::around(step);
    let mut buffer = [0u8; 32 << 10];
    loop {
        if !*open {
            if input.pos() == step.len() {
                return Ok(step.len());
            }
            decoder.reinit()?;
            *open = true;
        }
        let mut output = OutBuffer::around(&mut buffer[..]);
        let hint = decoder.run(&mut input, &mut output)?;
        let written = output.as_slice();
        let full = written.len() == (32 << 10);
        out.extend_from_slice(written);
        if hint == 0 {
            *open = false;
        } else if input.pos() == step.len() && !full {
            return Ok(step.len());
        }
        if out.len() >= PIECE_BYTES && input.pos() < step.len() {
            return Ok(input.pos());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 bytes of zstd may be a megabyte.
    #[test]
    fn a_step_of_zstd_gives_pieces_however_well_it_is_compressed() {
        let text = vec![b'x'; 64 << 20];
        let compressed = zstd::encode_all(&text[..], 1).unwrap();
        assert!(compressed.len() < STEP_BYTES, "one step");
        let (mut decoder, mut open, mut at, mut total) = (ZstdDecoder::new().unwrap(), false, 0, 0);
        while at < compressed.len() {
            let mut out = Vec::new();
            at += zstd_step(&mut decoder, &mut open, &mut out, &compressed[at..]).unwrap();
            assert!(out.len() <= 2 * PIECE_BYTES, "{} bytes at once", out.len());
            assert!(out.iter().all(|b| *b == b'x'));
            total += out.len();
        }
        assert_eq!((total, open), (text.len(), false));
    }
}
