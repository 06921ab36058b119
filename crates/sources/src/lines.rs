//! Text files of one row a line, cut at line ends: what CSV and JSON lines share.
//!
//! A line belongs to the split in which it starts. A piece of whole lines is decoded at once. If that fails, its lines are
//! decoded one by one, to name the bad one or to skip it.

use std::collections::{BTreeSet, HashSet};
use std::io::BufRead;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use caju_pipeline::{ColumnType, Compression};
use caju_types::{Error, Result, format_bytes};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};

use crate::context::SourceContext;
use crate::feed::{Codec, Feed};
use crate::file::SourceFile;
use crate::files::{Format, byte_splits};
use crate::sniff::{SNIFFED_BYTES, other_format};
use crate::source::ReadOptions;
use crate::split::{FileRef, Split, SplitRange};
use crate::trim::sliced;

/// Bytes of a file that a schema is inferred from.
const INFER_BYTES: usize = 1 << 20;
/// Rows of a file that a schema is inferred from.
pub(crate) const INFER_ROWS: usize = 1000;

/// One kind of text.
pub(crate) trait Text: Clone + Send + Sync + 'static {
    /// Whether the first line of a file is no row; it is then checked by [`Text::check_header`].
    fn header(&self) -> bool;

    /// The character within which a line end is no line end.
    fn quote(&self) -> Option<u8>;

    /// What a file of another kind is, and what to do about it, by its first bytes.
    fn misread(&self, _head: &[u8]) -> Option<&'static str> {
        None
    }

    /// Why a header is not what the schema says, if so.
    fn check_header(&self, line: &[u8], schema: &Schema) -> Option<String>;

    /// Rows of whole lines. The columns are those of `projection`.
    fn decode(
        &self,
        schema: &SchemaRef,
        projection: &[usize],
        lines: &[u8],
        rows: usize,
    ) -> Result<Vec<RecordBatch>, String>;

    /// Why one line cannot be decoded: the column and the value.
    fn diagnose(&self, schema: &SchemaRef, projection: &[usize], line: &[u8]) -> Option<String>;

    /// The schema of some whole lines, the header included.
    fn infer(&self, lines: &[u8]) -> Result<Schema, String>;
}

/// A format of lines.
#[derive(Debug, Clone)]
pub(crate) struct Lines<T> {
    text: T,
    compression: Compression,
    schema: SchemaRef,
}

impl<T: Text> Lines<T> {
    /// Takes the schema that is given, or finds it in the first lines of a file.
    pub(crate) async fn open(
        ctx: &SourceContext,
        text: T,
        compression: Compression,
        given: Option<SchemaRef>,
        first: Option<&FileRef>,
    ) -> Result<Self> {
        let schema = match (given, first) {
            (Some(schema), _) => schema,
            (None, Some(file)) => Arc::new(Self::discover(ctx, &text, compression, file).await?),
            (None, None) => return Err(Error::internal("neither a schema nor a file")),
        };
        Ok(Self { text, compression, schema })
    }

    async fn discover(
        ctx: &SourceContext,
        text: &T,
        compression: Compression,
        file: &FileRef,
    ) -> Result<Schema> {
        let url = &file.url;
        let codec = Codec::of(compression, url);
        let file = SourceFile::new(ctx, file)?;
        let mut feed = Feed::open(&file, codec, 0, INFER_BYTES as u64);
        let mut head: Vec<u8> = Vec::new();
        let mut whole = false;
        while head.len() < INFER_BYTES {
            if !feed.fill(1).await? {
                whole = true;
                break;
            }
            let n = feed.queue.len();
            feed.queue.consume(n, |piece| head.extend_from_slice(piece));
        }
        if let Some(what) = other_format(&head).or_else(|| text.misread(strip_bom(&head))) {
            return Err(Error::invalid(format!("{url}: {what}")));
        }
        if !whole {
            let end = head.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
            head.truncate(end);
        }
        let bad = |why: String| {
            Error::invalid(format!(
                "{url}: the columns cannot be found from the first rows: {why}; give `schema`"
            ))
        };
        if !whole && head.is_empty() {
            return Err(bad(format!(
                "the first one is longer than the {} that are looked at",
                format_bytes(INFER_BYTES as u64)
            )));
        }
        let schema = text.infer(strip_bom(&head)).map_err(bad)?;
        if schema.fields().is_empty() {
            return Err(bad("there are none".to_string()));
        }
        if let Some(names) = duplicate_names(&schema) {
            return Err(Error::invalid(format!(
                "{url}: line 1: the header names {names} more than once, and only one column of a name could be read; \
                 rename the columns in the file"
            )));
        }
        Ok(schema)
    }
}

/// The names that several columns have, for messages.
fn duplicate_names(schema: &Schema) -> Option<String> {
    let (mut seen, mut duplicates) = (HashSet::new(), BTreeSet::new());
    for field in schema.fields() {
        if !seen.insert(field.name()) {
            duplicates.insert(format!("`{}`", field.name()));
        }
    }
    (!duplicates.is_empty()).then(|| duplicates.into_iter().collect::<Vec<_>>().join(", "))
}

/// The type as definitions name it.
pub(crate) fn type_name(t: &DataType) -> String {
    match t {
        DataType::Utf8 => "string".to_string(),
        DataType::Boolean => "bool".to_string(),
        other => other.to_string().to_lowercase(),
    }
}

fn strip_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// The schema that a definition gives.
pub(crate) fn given_schema(columns: &[(String, ColumnType)], what: &str) -> Result<SchemaRef> {
    let fields = columns
        .iter()
        .map(|(name, t)| {
            let t = match t {
                ColumnType::Int64 => DataType::Int64,
                ColumnType::Int32 => DataType::Int32,
                ColumnType::Float32 => DataType::Float32,
                ColumnType::Float64 => DataType::Float64,
                ColumnType::String => DataType::Utf8,
                ColumnType::Bool => DataType::Boolean,
                ColumnType::Bytes => {
                    return Err(Error::invalid(format!(
                        "source {what}: column `{name}`: text files hold no bytes; use string"
                    )));
                }
            };
            Ok(Field::new(name, t, true))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

impl<T: Text> Format for Lines<T> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn cut(
        &self,
        _: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>> {
        let plain = Codec::of(self.compression, &file.url) == Codec::Plain;
        Box::pin(async move { Ok(byte_splits(&file, plain.then_some(split_bytes))) })
    }

    fn read(
        &self,
        ctx: &SourceContext,
        file: Arc<SourceFile>,
        split: &Split,
        options: &ReadOptions,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let range = match split.range {
            SplitRange::Bytes { start, end } => Some((start, end)),
            _ => None,
        };
        let reader = Reader::new(self.clone(), file, range, options.clone(), ctx.limits.max_record_bytes);
        stream::try_unfold(reader, |mut r| async move { Ok(r.batches().await?.map(|b| (b, r))) })
            .flat_map(|batches| match batches {
                Ok(batches) => stream::iter(batches.into_iter().map(Ok).collect::<Vec<_>>()),
                Err(e) => stream::iter(vec![Err(e)]),
            })
            .boxed()
    }
}

/// Consecutive lines in the reader's buffer.
struct Piece {
    /// Bytes of the buffer.
    bytes: usize,
    /// Rows in them.
    rows: usize,
}

struct Reader<T> {
    format: Lines<T>,
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
    /// Lines in front of `at`, once somebody had to count them.
    line: Option<u64>,
    projection: Vec<usize>,
    options: ReadOptions,
    max_record: usize,
}

impl<T: Text> Reader<T> {
    fn new(
        format: Lines<T>,
        file: Arc<SourceFile>,
        range: Option<(u64, u64)>,
        options: ReadOptions,
        max_record: u64,
    ) -> Self {
        let codec = Codec::of(format.compression, &file.file.url);
        let (start, end) = range.unwrap_or((0, u64::MAX));
        // One byte before the start tells whether a line starts there.
        let from = start.saturating_sub(1);
        let projection =
            options.projection.clone().unwrap_or_else(|| (0..format.schema.fields().len()).collect());
        Self {
            feed: Feed::open(&file, codec, from, end),
            format,
            file,
            codec,
            buffer: Vec::new(),
            at: from,
            start,
            end,
            cut: range.is_some(),
            started: false,
            ended: false,
            line: (start == 0).then_some(0),
            projection,
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
                    "{}: the line at byte {} has over {} bytes",
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
        let text = &self.format.text;
        if let Some(what) = other_format(&self.buffer).or_else(|| text.misread(strip_bom(&self.buffer))) {
            return Err(Error::invalid(format!("{}: {what}", self.file.file.url)));
        }
        let bom = self.buffer.len() - strip_bom(&self.buffer).len();
        self.drop_front(bom);
        if self.format.text.header() {
            let n = self.record_len(0).await?;
            if let Some(why) = self.format.text.check_header(&self.buffer[..n], &self.format.schema) {
                return Err(Error::invalid(format!("{}: line 1: {why}", self.file.file.url)));
            }
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
        let Some(quote) = self.format.text.quote() else { return Ok(n) };
        let mut quotes = count(&self.buffer[from..from + n], quote);
        if quotes.is_multiple_of(2) {
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
                let line = self.line_of(from).await?;
                return Err(Error::data_loss(format!(
                    "{}: line {line}: a quoted value does not end; a quote is missing or the file is truncated",
                    self.file.file.url
                )));
            }
            quotes += count(&self.buffer[from + n..from + n + next], quote);
            n += next;
            if quotes.is_multiple_of(2) {
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
        while piece.rows < most_rows && self.at + (piece.bytes as u64) < self.end {
            let n = self.record_len(piece.bytes).await?;
            if n == 0 || (piece.rows > 0 && piece.bytes + n > most_bytes) {
                break;
            }
            piece.bytes += n;
            piece.rows += 1;
        }
        Ok(piece)
    }

    /// The next rows; none at the end of the split.
    async fn batches(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if !self.started {
            self.start().await?;
        }
        let piece = self.piece().await?;
        if piece.rows == 0 {
            return Ok(None);
        }
        let batches = self.decode(&piece).await?;
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

    async fn decode(&mut self, piece: &Piece) -> Result<Vec<RecordBatch>> {
        let format = self.format.clone();
        let decode = |lines: &[u8], rows| format.text.decode(&format.schema, &self.projection, lines, rows);
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
            if format.text.decode(&format.schema, &self.projection, &row, 1).is_ok() {
                good.extend_from_slice(&row);
                rows += 1;
            } else {
                let line = self.line_of(at).await?;
                let why = format
                    .text
                    .diagnose(&format.schema, &self.projection, &row)
                    .unwrap_or_else(|| why.clone());
                let e = Error::data_loss(format!("{}: line {line}: {why}", self.file.file.url));
                match &self.options.skip {
                    Some(skip) => skip(e),
                    None => return Err(e),
                }
            }
            at += n;
        }
        format.text.decode(&format.schema, &self.projection, &good, rows.max(1)).map_err(|why| {
            Error::data_loss(format!("{}: the rows from byte {} on: {why}", self.file.file.url, self.at))
        })
    }
}

fn count(bytes: &[u8], what: u8) -> usize {
    if !bytes.contains(&what) {
        return 0;
    }
    bytes.iter().filter(|b| **b == what).count()
}

fn newlines(bytes: &[u8]) -> u64 {
    count(bytes, b'\n') as u64
}

/// A value for a message: not too long.
pub(crate) fn shown(value: &str) -> String {
    match value.char_indices().nth(60) {
        Some((i, _)) => format!("`{}...`", &value[..i]),
        None => format!("`{value}`"),
    }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
