//! TFRecord: length, masked CRC-32C of the length, data, masked CRC-32C of the data.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_pipeline::Compression;
use caju_types::{Error, Result};
use futures::future::BoxFuture;

use crate::caches::{RecordIndex, RecordStart};
use crate::context::{RAISE_MAX_RECORD, SourceContext};
use crate::feed::{Codec, Feed};
use crate::file::SourceFile;
use crate::files::{Format, cut_bytes};
use crate::record_scan::{Progress, RecordScan, open_records, read_window};
use crate::source::ReadOptions;
use crate::split::{FileRef, Split};
use crate::split_reader::{Rows, SplitReader, batch_of, open_rows};

/// Length and its checksum.
const HEADER: usize = 12;
/// The data's checksum.
const FOOTER: usize = 4;
/// The largest record that an Arrow array of 32-bit offsets holds, in bytes.
const MOST_RECORD: u64 = i32::MAX as u64 - 1;

/// TFRecord files; one column, `record`.
#[derive(Debug)]
pub(crate) struct TfRecord {
    pub(crate) compression: Compression,
    schema: SchemaRef,
}

impl TfRecord {
    pub(crate) fn new(compression: Compression) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new("record", DataType::Binary, false)]));
        Self { compression, schema }
    }
}

impl Format for TfRecord {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn cut(
        &self,
        _: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>> {
        cut_bytes(self.compression, &file, split_bytes)
    }

    fn read(&self, ctx: &SourceContext, file: Arc<SourceFile>, split: &Split, options: &ReadOptions) -> Rows {
        let codec = Codec::of(self.compression, &file.file.url);
        let index = ctx.caches.record_index(&file.file);
        let range = split.range.bytes().unwrap_or((0, u64::MAX));
        let (schema, options) = (Arc::clone(&self.schema), options.clone());
        let max_record = ctx.limits.max_record_bytes;
        let open = async move { Reader::open(file, index, codec, range, schema, options, max_record).await };
        open_rows(open)
    }
}

/// The stored form of a checksum: rotated and shifted, so that checksums of checksums differ.
pub(crate) fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The length in a header, if its checksum is right.
fn length(header: [u8; HEADER]) -> Option<u64> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    let len = [a, b, c, d, e, f, g, h];
    (mask(crc32c::crc32c(&len)) == u32::from_le_bytes([i, j, k, l])).then(|| u64::from_le_bytes(len))
}

struct RecordLocation<'a> {
    url: &'a str,
    start: RecordStart,
    codec: Codec,
}

impl RecordLocation<'_> {
    fn name(&self) -> String {
        let unpacked = if self.codec == Codec::Plain { "" } else { " of the decompressed file" };
        format!("{}: record {} at byte {}{unpacked}", self.url, self.start.record, self.start.at)
    }

    fn bad_length(&self) -> Error {
        let hint = if self.start.at == 0 {
            "the file is damaged, is compressed (set `compression`), or is no TFRecord file"
        } else {
            "the file is damaged"
        };
        Error::data_loss(format!("{}: the checksum of the length is wrong; {hint}", self.name()))
    }

    fn truncated(&self, needed: u64, left: u64) -> Error {
        Error::data_loss(format!(
            "{}: the file ends inside the record ({needed} bytes needed, {left} left); \
             it is truncated or is still being written",
            self.name()
        ))
    }

    fn bad_data(&self) -> Error {
        Error::data_loss(format!("{}: the checksum of the data is wrong; the file is damaged", self.name()))
    }

    fn too_long(&self, len: u64, most: u64) -> Error {
        let hint = if most < MOST_RECORD { format!("; {RAISE_MAX_RECORD}") } else { String::new() };
        Error::data_loss(format!(
            "{}: the record has {len} bytes, more than the {most} that a record may have{hint}",
            self.name()
        ))
    }
}

struct HeaderScan {
    url: String,
    local: bool,
    size: u64,
    target: u64,
    here: RecordStart,
    last_record: u64,
}

impl RecordScan for HeaderScan {
    fn step(&mut self, at: u64, bytes: &[u8]) -> Result<Progress> {
        loop {
            let here = self.here;
            if here.at >= self.target || here.at >= self.size {
                return Ok(Progress::Done(here));
            }
            let place = RecordLocation { url: &self.url, start: here, codec: Codec::Plain };
            let left = self.size - here.at;
            if left < HEADER as u64 {
                // The reader of the split that holds this record reports it.
                return Ok(Progress::Done(RecordStart { at: self.size, record: here.record }));
            }
            let from = here.at.checked_sub(at).and_then(|o| usize::try_from(o).ok());
            let header = from.and_then(|o| bytes.get(o..)?.first_chunk::<HEADER>());
            let Some(header) = header else {
                let n = read_window(self.local, HEADER as u64, self.last_record).min(left);
                return Ok(Progress::Need(here.at..here.at + n));
            };
            let len = length(*header).ok_or_else(|| place.bad_length())?;
            self.last_record = len;
            let next = len.checked_add((HEADER + FOOTER) as u64).and_then(|n| here.at.checked_add(n));
            self.here = match next {
                Some(next) if next <= self.size => RecordStart { at: next, record: here.record + 1 },
                _ => RecordStart { at: self.size, record: here.record },
            };
        }
    }
}

struct Reader {
    file: Arc<SourceFile>,
    index: Arc<RecordIndex>,
    codec: Codec,
    feed: Feed,
    here: RecordStart,
    /// Records that start here or later belong to the next split.
    end: u64,
    schema: SchemaRef,
    options: ReadOptions,
    max_record: u64,
    done: bool,
}

impl Reader {
    async fn open(
        file: Arc<SourceFile>,
        index: Arc<RecordIndex>,
        codec: Codec,
        (start, end): (u64, u64),
        schema: SchemaRef,
        options: ReadOptions,
        max_record: u64,
    ) -> Result<Self> {
        let (url, local, size) = (file.file.url.clone(), file.is_local(), file.size());
        let scan = |from| HeaderScan { url, local, size, target: start, here: from, last_record: 0 };
        let (here, feed) = open_records(&file, &index, codec, (start, end), scan).await?;
        Ok(Self { file, index, codec, feed, here, end, schema, options, max_record, done: false })
    }

    /// The next rows; none at the end of the split.
    async fn batch(&mut self) -> Result<Option<RecordBatch>> {
        let columns = self.options.projection.as_deref().unwrap_or(&[0]);
        let wanted = !columns.is_empty();
        let (most_rows, most_bytes) =
            (self.options.batch_rows.max(1), self.options.batch_bytes.clamp(1, 1 << 30));
        let mut offsets: Vec<i32> = vec![0];
        let mut values: Vec<u8> = Vec::new();
        let mut rows = 0;
        while rows < most_rows && !self.done {
            let Some(len) = self.header().await? else { break };
            if rows > 0 && values.len() + len > most_bytes {
                // The header stays in the queue for the next batch.
                break;
            }
            if values.capacity() == 0 && wanted {
                values.reserve_exact(self.capacity(len, most_bytes));
            }
            if let Some(data) = self.record(len, wanted, &mut values).await? {
                rows += 1;
                offsets.push(data);
            }
        }
        if rows == 0 {
            return Ok(None);
        }
        if !wanted {
            return batch_of(&Arc::new(Schema::empty()), Vec::new(), rows).map(Some);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let array = BinaryArray::try_new(offsets, Buffer::from_vec(values), None)
            .map_err(|e| Error::internal(e.to_string()))?;
        batch_of(&self.schema, vec![Arc::new(array) as ArrayRef], rows).map(Some)
    }

    /// The capacity of a batch in bytes: the remainder of the split, or the limit of a batch.
    fn capacity(&self, first: usize, most_bytes: usize) -> usize {
        let left = self.end.min(self.file.size()).saturating_sub(self.here.at);
        let left =
            if self.codec == Codec::Plain { usize::try_from(left).unwrap_or(usize::MAX) } else { most_bytes };
        left.min(most_bytes).max(first)
    }

    fn place(&self) -> RecordLocation<'_> {
        RecordLocation { url: &self.file.file.url, start: self.here, codec: self.codec }
    }

    /// The length of the next record of this split; none at the end. The header stays in the queue.
    async fn header(&mut self) -> Result<Option<usize>> {
        if self.here.at >= self.end {
            self.index.insert(self.here);
            self.done = true;
            return Ok(None);
        }
        if self.feed.queue.len() < HEADER && !self.feed.fill(HEADER).await? {
            self.done = true;
            return match self.feed.queue.len() {
                0 => Ok(None),
                n => {
                    self.options.skip_or_fail(self.place().truncated(HEADER as u64, n as u64)).map(|()| None)
                }
            };
        }
        let header = self.feed.queue.peek::<HEADER>();
        let len = length(header).ok_or_else(|| self.place().bad_length())?;
        let left = self.file.size().saturating_sub(self.here.at);
        let all = len.saturating_add((HEADER + FOOTER) as u64);
        if self.codec == Codec::Plain && all > left {
            // Known without reading the remainder.
            self.done = true;
            return self.options.skip_or_fail(self.place().truncated(all, left)).map(|()| None);
        }
        let most = self.max_record.min(MOST_RECORD);
        if len > most {
            return Err(self.place().too_long(len, most));
        }
        usize::try_from(len).map(Some).map_err(|e| Error::internal(e.to_string()))
    }

    /// Takes the next record; its end in `values`, or none if it was bad and is skipped.
    async fn record(&mut self, len: usize, wanted: bool, values: &mut Vec<u8>) -> Result<Option<i32>> {
        let all = HEADER + len + FOOTER;
        if self.feed.queue.len() < all && !self.feed.fill(all).await? {
            self.done = true;
            let left = self.feed.queue.len() as u64;
            return self.options.skip_or_fail(self.place().truncated(all as u64, left)).map(|()| None);
        }
        let (before, mut crc) = (values.len(), 0);
        self.feed.queue.consume(HEADER, |_| {});
        self.feed.queue.consume(len, |piece| {
            crc = crc32c::crc32c_append(crc, piece);
            if wanted {
                values.extend_from_slice(piece);
            }
        });
        let stored = u32::from_le_bytes(self.feed.queue.peek());
        self.feed.queue.consume(FOOTER, |_| {});
        let good = mask(crc) == stored;
        let result = if good { Ok(()) } else { self.options.skip_or_fail(self.place().bad_data()) };
        self.here = RecordStart { at: self.here.at + all as u64, record: self.here.record + 1 };
        result?;
        if !good {
            values.truncate(before);
            return Ok(None);
        }
        i32::try_from(values.len()).map(Some).map_err(|e| Error::internal(e.to_string()))
    }
}

impl SplitReader for Reader {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        Ok(self.batch().await?.map(|batch| vec![batch]))
    }
}

#[cfg(test)]
#[path = "tfrecord_tests.rs"]
pub(crate) mod tests;
