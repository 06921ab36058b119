//! Reads one split of a file of lines.

use std::io::BufRead;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_types::{Error, Result};
use futures::stream::StreamExt;

use crate::context::RAISE_MAX_RECORD;
use crate::feed::{Codec, Feed};
use crate::file::SourceFile;
use crate::sniff::{SNIFFED_BYTES, other_format};
use crate::source::ReadOptions;
use crate::split_reader::SplitReader;
use crate::text::{Text, strip_bom};
use crate::trim::sliced;

/// Consecutive lines in the reader's buffer.
struct Piece {
    /// Bytes of the buffer.
    bytes: usize,
    /// Rows in them.
    rows: usize,
}

/// Reads the rows of one split: finds whole lines, and decodes as many at once as fit into a batch.
pub(crate) struct LineReader<T> {
    text: T,
    schema: SchemaRef,
    file: Arc<SourceFile>,
    feed: Feed,
    codec: Codec,
    /// Bytes that arrived, from `at` on.
    buffer: Vec<u8>,
    at: u64,
    start: u64,
    end: u64,
    cut: bool,
    started: bool,
    ended: bool,
    /// Whether the buffer begins within a line that starts in the split: behind a header that a carriage return ends.
    within_line: bool,
    /// The number of lines before `at`, once it was counted.
    line: Option<u64>,
    /// The columns that are decoded. Under `on_error: skip` these are all: a bad value in any column makes its row bad, whichever
    /// columns the stages need.
    projection: Vec<usize>,
    /// The decoded columns that the batches have; all if absent.
    output: Option<Vec<usize>>,
    options: ReadOptions,
    max_record: usize,
}

impl<T: Text> LineReader<T> {
    /// A reader of the lines that start in a range of bytes, or of all lines.
    pub(crate) fn new(
        (text, schema): (T, SchemaRef),
        (file, codec): (Arc<SourceFile>, Codec),
        range: Option<(u64, u64)>,
        options: ReadOptions,
        max_record: u64,
    ) -> Self {
        let (start, end) = range.unwrap_or((0, u64::MAX));
        // The byte before the start shows whether a line starts there.
        let from = start.saturating_sub(1);
        let width = schema.fields().len();
        let (projection, output): (Vec<usize>, _) = match (&options.skip, &options.projection) {
            (Some(_), Some(wanted)) => ((0..width).collect(), Some(wanted.clone())),
            _ => (options.columns(width), None),
        };
        Self {
            feed: Feed::open(&file, codec, from, end),
            text,
            schema,
            file,
            codec,
            buffer: Vec::new(),
            at: from,
            start,
            end,
            cut: range.is_some(),
            started: false,
            ended: false,
            within_line: false,
            line: (start == 0).then_some(0),
            projection,
            output,
            options,
            max_record: usize::try_from(max_record).unwrap_or(usize::MAX),
        }
    }

    /// Adds what arrives next to the buffer; false at the end of the file.
    async fn more(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if !self.feed.fill(1).await? {
            self.ended = true;
            return Ok(false);
        }
        let n = self.feed.queue.len();
        let buffer = &mut self.buffer;
        self.feed.queue.consume(n, |piece| buffer.extend_from_slice(piece));
        Ok(true)
    }

    /// The length of the line at `from` in the buffer with its end; waits for it. The last line of a file
    /// may lack an end. 0 at the end of the file.
    async fn line_len(&mut self, from: usize) -> Result<usize> {
        let mut seen = from;
        loop {
            let mut rest = &self.buffer[seen..];
            let n = rest.skip_until(b'\n').map_err(|e| Error::internal(e.to_string()))?;
            let ended = n > 0 && self.buffer[seen + n - 1] == b'\n';
            seen += n;
            if ended && seen - from <= self.max_record {
                return Ok(seen - from);
            }
            if seen - from > self.max_record {
                return Err(Error::data_loss(format!(
                    "{}: the line at byte {} has over {} bytes; {RAISE_MAX_RECORD}",
                    self.file.file.url,
                    self.at + from as u64,
                    self.max_record
                )));
            }
            if !self.more().await? {
                return Ok(seen - from);
            }
        }
    }

    /// Goes to the first line of the split, over the header.
    async fn start(&mut self) -> Result<()> {
        self.started = true;
        if self.start > 0 {
            let n = self.line_len(0).await?;
            self.drop_front(n);
            return Ok(());
        }
        while self.buffer.len() < SNIFFED_BYTES && self.more().await? {}
        let text = &self.text;
        if let Some(what) = other_format(&self.buffer).or_else(|| text.misread(strip_bom(&self.buffer))) {
            return Err(Error::invalid(format!("{}: {what}", self.file.file.url)));
        }
        let bom = self.buffer.len() - strip_bom(&self.buffer).len();
        self.drop_front(bom);
        if self.text.header() {
            let line = self.record_len(0).await?;
            let n = self.text.header_len(&self.buffer[..line]);
            if let Some(why) = self.text.check_header(&self.buffer[..n], &self.schema) {
                return Err(Error::invalid(format!("{}: line 1: {why}", self.file.file.url)));
            }
            self.within_line = n < line;
            self.count_lines(n);
            self.drop_front(n);
        }
        Ok(())
    }

    fn drop_front(&mut self, n: usize) {
        self.buffer.drain(..n);
        self.at += n as u64;
    }

    fn count_lines(&mut self, bytes: usize) {
        if let Some(line) = &mut self.line {
            *line += newlines(&self.buffer[..bytes]);
        }
    }

    /// The length of the row at `from`: one line, or several where a quoted value holds line ends.
    async fn record_len(&mut self, from: usize) -> Result<usize> {
        let mut n = self.line_len(from).await?;
        let mut goes_on = self.text.goes_on(&self.buffer[from..from + n], false);
        if !goes_on {
            return Ok(n);
        }
        if self.cut {
            let line = self.line_of(from).await?;
            return Err(Error::invalid(format!(
                "{}: line {line}: a quoted value goes on in the next line, or a quote is missing; a file with line \
                 ends in quoted values cannot be cut: set `split` of the source above the file's size",
                self.file.file.url
            )));
        }
        loop {
            let next = self.line_len(from + n).await?;
            if next == 0 || n > self.max_record {
                let (line, url) = (self.line_of(from).await?, &self.file.file.url);
                return Err(Error::data_loss(if next == 0 {
                    format!(
                        "{url}: line {line}: a quoted value does not end; a quote is missing or the file is truncated"
                    )
                } else {
                    format!(
                        "{url}: line {line}: a quoted value does not end within {} bytes, or a quote is missing; \
                         {RAISE_MAX_RECORD}",
                        self.max_record
                    )
                }));
            }
            goes_on = self.text.goes_on(&self.buffer[from + n..from + n + next], goes_on);
            n += next;
            if !goes_on {
                return Ok(n);
            }
        }
    }

    /// The number, from 1, of the line at `from` in the buffer.
    async fn line_of(&mut self, from: usize) -> Result<u64> {
        let before = match self.line {
            Some(n) => n,
            None => {
                let n = self.lines_before().await?;
                self.line = Some(n);
                n
            }
        };
        Ok(before + newlines(&self.buffer[..from]) + 1)
    }

    /// Counts the lines in front of the buffer by reading the file again: only for messages.
    async fn lines_before(&mut self) -> Result<u64> {
        if self.codec != Codec::Plain {
            return Ok(0);
        }
        let mut blocks = self.file.blocks(0..self.at);
        let mut n = 0;
        while let Some(block) = blocks.next().await {
            n += newlines(&block?);
        }
        Ok(n)
    }

    /// Finds the rows of the next batch in the buffer.
    async fn piece(&mut self) -> Result<Piece> {
        let (most_rows, most_bytes) = (self.options.batch_rows.max(1), self.options.batch_bytes.max(1));
        let mut piece = Piece { bytes: 0, rows: 0 };
        while piece.rows < most_rows && (self.within_line || self.at + (piece.bytes as u64) < self.end) {
            self.within_line = false;
            let n = self.record_len(piece.bytes).await?;
            if n == 0 || (piece.rows > 0 && piece.bytes + n > most_bytes) {
                break;
            }
            piece.bytes += n;
            piece.rows += 1;
        }
        Ok(piece)
    }

    async fn decode(&mut self, piece: &Piece) -> Result<Vec<RecordBatch>> {
        let (text, schema) = (self.text.clone(), Arc::clone(&self.schema));
        let decode = |lines: &[u8], rows| text.decode(&schema, &self.projection, lines, rows);
        let result = decode(&self.buffer[..piece.bytes], piece.rows);
        let why = match result {
            Ok(batches) => return Ok(batches),
            Err(why) => why,
        };
        // Something is wrong: look at every row by itself.
        let mut good: Vec<u8> = Vec::new();
        let (mut at, mut rows) = (0, 0);
        while at < piece.bytes {
            let n = self.record_len(at).await?;
            let row = Bytes::copy_from_slice(&self.buffer[at..at + n]);
            if text.decode(&schema, &self.projection, &row, 1).is_ok() {
                good.extend_from_slice(&row);
                rows += 1;
            } else {
                let line = self.line_of(at).await?;
                let why = text.diagnose(&schema, &self.projection, &row).unwrap_or_else(|| why.clone());
                let e = Error::data_loss(format!("{}: line {line}: {why}", self.file.file.url));
                for _ in 0..text.num_rows(&row).max(1) {
                    self.options.skip_or_fail(e.clone())?;
                }
            }
            at += n;
        }
        text.decode(&schema, &self.projection, &good, rows.max(1)).map_err(|why| {
            Error::data_loss(format!("{}: the rows from byte {} on: {why}", self.file.file.url, self.at))
        })
    }
}

impl<T: Text> SplitReader for LineReader<T> {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if !self.started {
            self.start().await?;
        }
        let piece = self.piece().await?;
        if piece.rows == 0 {
            return Ok(None);
        }
        let mut batches = self.decode(&piece).await?;
        if let Some(columns) = &self.output {
            batches = projected(&batches, columns)?;
        }
        self.count_lines(piece.bytes);
        self.drop_front(piece.bytes);
        let (rows, bytes) = (self.options.batch_rows, self.options.batch_bytes);
        Ok(Some(
            batches
                .into_iter()
                .filter(|b| b.num_rows() > 0)
                .flat_map(|b| sliced(b, rows, bytes.max(1) * 4))
                .collect(),
        ))
    }
}

/// The batches with only these of their columns.
fn projected(batches: &[RecordBatch], columns: &[usize]) -> Result<Vec<RecordBatch>> {
    let picked = batches.iter().map(|batch| batch.project(columns));
    picked.collect::<Result<Vec<_>, _>>().map_err(|e| Error::internal(e.to_string()))
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|b| **b == b'\n').count() as u64
}
