//! WebDataset: tar files in which consecutive members with one key are a sample.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_pipeline::Compression;
use caju_types::{Error, Result, did_you_mean};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::caches::{RecordIndex, RecordStart};
use crate::context::{RAISE_MAX_RECORD, SourceContext};
use crate::feed::{Codec, Feed};
use crate::file::SourceFile;
use crate::files::{Format, cut_bytes};
use crate::record_scan::open_records;
use crate::source::ReadOptions;
use crate::split::{FileRef, Split};
use crate::split_reader::{PendingRows, Rows, SplitReader, batch_of, open_rows};
use crate::tar::{BLOCK, Entry, Names, SampleScan, key_and_extension, padded};
use crate::text::misspelt;

/// The column of the samples' keys.
const KEY: &str = "__key__";
/// Samples from which columns are found: the first ones of a file.
const SAMPLES: usize = 100;
/// Bytes of these samples that are read at most, because samples may be videos.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Tar files of samples.
#[derive(Debug, Clone)]
pub(crate) struct WebDataset {
    compression: Compression,
    schema: SchemaRef,
    /// The columns were named: members with other extensions are skipped.
    picked: bool,
}

fn schema_of(columns: &[String]) -> SchemaRef {
    let key = Field::new(KEY, DataType::Utf8, false);
    let rest = columns.iter().filter(|c| *c != KEY).map(|c| Field::new(c, DataType::Binary, true));
    Arc::new(Schema::new(std::iter::once(key).chain(rest).collect::<Vec<_>>()))
}

impl WebDataset {
    /// Finds the columns in the first samples of a file, or takes those that the definition names.
    pub(crate) async fn discover(
        ctx: &SourceContext,
        file: &FileRef,
        compression: Compression,
        columns: Option<&[String]>,
    ) -> Result<Self> {
        let url = file.url.clone();
        let codec = Codec::of(compression, &url);
        check_not_empty(codec, file)?;
        let file = SourceFile::new(ctx, file)?;
        let feed = if codec == Codec::Plain { Feed::range(&file, 0, 0) } else { Feed::whole(&file, codec) };
        let mut members = Members::new(Some(feed), url.clone(), 0, codec);
        let (mut found, mut key, mut samples): (Vec<String>, String, usize) = (Vec::new(), String::new(), 0);
        while samples <= SAMPLES && members.at < SAMPLE_BYTES {
            let Some(member) = members.next(u64::MAX).await? else { break };
            if let Some((k, extension)) = key_and_extension(&member.name) {
                samples += usize::from(k != key);
                key = k.to_string();
                if !found.contains(&extension) {
                    found.push(extension);
                }
            }
            members.skip(&member).await?;
        }
        if found.is_empty() && columns.is_none() {
            return Err(Error::invalid(format!(
                "{url}: holds no sample; a WebDataset names its members KEY.EXTENSION, such as 000017.jpg"
            )));
        }
        if let Some(columns) = columns {
            let named: Vec<String> = columns.iter().filter(|c| *c != KEY).cloned().collect();
            if let Some(what) = misspelt(&url, "columns", &named, &found) {
                return Err(Error::invalid(format!(
                    "{what}. If samples have the one or the other, name both"
                )));
            }
            return Ok(Self { compression, schema: schema_of(columns), picked: true });
        }
        Ok(Self { compression, schema: schema_of(&found), picked: false })
    }

    /// Uses a known schema without reading a file.
    pub(crate) fn with_schema(schema: SchemaRef, compression: Compression, picked: bool) -> Self {
        Self { compression, schema, picked }
    }
}

/// Refuses a file without a byte: an archive without members has an end mark.
fn check_not_empty(codec: Codec, file: &FileRef) -> Result<()> {
    match codec {
        Codec::Plain if file.version.size == 0 => Err(Error::data_loss(format!(
            "{}: the file has 0 bytes, which is no tar file: the file is truncated or is still being written",
            file.url
        ))),
        _ => Ok(()),
    }
}

impl Format for WebDataset {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn cut(
        &self,
        _: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>> {
        match check_not_empty(Codec::of(self.compression, &file.url), &file) {
            Ok(()) => cut_bytes(self.compression, &file, split_bytes),
            Err(e) => std::future::ready(Err(e)).boxed(),
        }
    }

    fn read(&self, ctx: &SourceContext, file: Arc<SourceFile>, split: &Split, options: &ReadOptions) -> Rows {
        let index = ctx.caches.record_index(&file.file);
        let range = split.range.bytes().unwrap_or((0, u64::MAX));
        let (me, options, max_record) = (self.clone(), options.clone(), ctx.limits.max_record_bytes);
        let open = async move { Reader::open(me, file, index, range, options, max_record).await };
        open_rows(open)
    }
}

struct Member {
    name: String,
    /// Where its first header starts.
    at: u64,
    size: u64,
}

/// The regular members of an archive, one after another.
struct Members {
    feed: Feed,
    /// Nothing is to be read any more.
    ended: bool,
    url: String,
    codec: Codec,
    at: u64,
    names: Names,
}

impl Members {
    /// The members of a feed that begins at the byte `at` of the archive; without a feed there are none.
    fn new(feed: Option<Feed>, url: String, at: u64, codec: Codec) -> Self {
        let ended = feed.is_none();
        Self { feed: feed.unwrap_or_else(Feed::nothing), ended, url, codec, at, names: Names::default() }
    }

    /// What an offset counts, for messages.
    fn unpacked(&self) -> &'static str {
        if self.codec == Codec::Plain { "" } else { " of the decompressed file" }
    }

    fn damaged(&self, at: u64, why: &str) -> Error {
        let unpacked = self.unpacked();
        let hint = if at == 0 { "; it is damaged, is compressed, or is no tar file" } else { "" };
        Error::data_loss(format!("{}: the member at byte {at}{unpacked}: {why}{hint}", self.url))
    }

    fn truncated(&self, at: u64) -> Error {
        self.damaged(at, "the file ends inside it; it is truncated or is still being written")
    }

    /// The next regular member; its content must then be taken or skipped. None behind the end mark.
    async fn next(&mut self, max_record: u64) -> Result<Option<Member>> {
        if self.ended {
            return Ok(None);
        }
        let mut first = None;
        loop {
            let at = *first.get_or_insert(self.at);
            if !self.feed.fill(BLOCK).await? {
                return Err(if self.feed.queue.len() == 0 && at == self.at {
                    self.damaged(
                        at,
                        "the file ends without the archive's end mark: it is truncated, or is still being written; if it is \
                         whole, append 1,024 zero bytes to it",
                    )
                } else {
                    self.truncated(at)
                });
            }
            let block = self.feed.queue.peek::<BLOCK>();
            let entry = self.names.header(&block).map_err(|why| self.damaged(at, why))?;
            if entry == Entry::End {
                self.only_zeros_follow().await?;
                self.ended = true;
                return Ok(None);
            }
            self.consume(BLOCK);
            match entry {
                Entry::End => return Ok(None),
                Entry::Extension { kind, size } => {
                    let content = self.content(at, size).await?;
                    self.names.extension(kind, &content).map_err(|why| self.damaged(at, why))?;
                }
                Entry::Member { name, size, regular: true } => {
                    if size > max_record {
                        return Err(self.damaged(
                            at,
                            &format!(
                                "it has {size} bytes, more than the {max_record} allowed; {RAISE_MAX_RECORD}"
                            ),
                        ));
                    }
                    return Ok(Some(Member { name, at, size }));
                }
                Entry::Member { name, size, regular: false } => {
                    self.skip(&Member { name, at, size }).await?;
                    first = None;
                }
                Entry::Unreadable { name, kind } => {
                    return Err(kind.error(&self.url, at, self.unpacked(), &name));
                }
            }
        }
    }

    /// Reads the file to its end, which checks a compressed file's checksum too. What follows the end mark is padding:
    /// anything else are members that would be lost, as in archives that were written behind each other.
    async fn only_zeros_follow(&mut self) -> Result<()> {
        loop {
            let more = self.feed.fill(BLOCK).await?;
            let (mut zeros, mut other) = (0, false);
            self.feed.queue.consume(self.feed.queue.len(), |piece| {
                if !other {
                    zeros += piece.iter().take_while(|b| **b == 0).count();
                    other = piece.iter().any(|b| *b != 0);
                }
            });
            self.at += zeros as u64;
            if other {
                return Err(self.damaged(
                    self.at,
                    "it stands behind the archive's end mark; archives that were put into one file must be joined with \
                     `tar --concatenate`, or be files of their own",
                ));
            }
            if !more {
                return Ok(());
            }
        }
    }

    fn consume(&mut self, n: usize) {
        self.feed.queue.consume(n, |_| {});
        self.at += n as u64;
    }

    /// Takes content, and its padding.
    async fn content(&mut self, at: u64, size: u64) -> Result<Vec<u8>> {
        let n = usize::try_from(size).map_err(|_| self.damaged(at, "its size is out of bounds"))?;
        if self.feed.queue.len() < n && !self.feed.fill(n).await? {
            return Err(self.truncated(at));
        }
        let mut out = Vec::with_capacity(n);
        self.feed.queue.consume(n, |piece| out.extend_from_slice(piece));
        self.at += size;
        self.padding(at, size).await?;
        Ok(out)
    }

    /// A file that ends within a padding was truncated there: writers pad all content, so the next member is missing.
    async fn padding(&mut self, at: u64, size: u64) -> Result<()> {
        let all = padded(size).ok_or_else(|| self.damaged(at, "its size is out of bounds"))?;
        #[expect(clippy::cast_possible_truncation, reason = "less than a block")]
        let n = (all - size) as usize;
        if !self.feed.fill(n).await? {
            return Err(self.truncated(at));
        }
        self.consume(n);
        Ok(())
    }

    async fn skip(&mut self, member: &Member) -> Result<()> {
        if !self.feed.skip(member.size).await? {
            return Err(self.truncated(member.at));
        }
        self.at += member.size;
        self.padding(member.at, member.size).await
    }
}

/// One sample: its key and its members by column.
struct Sample {
    key: String,
    values: Vec<Option<Vec<u8>>>,
    bytes: usize,
    bad: Option<Error>,
}

struct Reader {
    members: Members,
    /// A member that was met but belongs to the next sample.
    next: Option<Member>,
    /// Samples of the next batch.
    pending: PendingRows<Sample>,
    columns: HashMap<String, usize>,
    wanted: Vec<usize>,
    picked: bool,
    index: Arc<RecordIndex>,
    end: u64,
    samples: u64,
    schema: SchemaRef,
    options: ReadOptions,
    max_record: u64,
}

impl Reader {
    async fn open(
        format: WebDataset,
        file: Arc<SourceFile>,
        index: Arc<RecordIndex>,
        (start, end): (u64, u64),
        options: ReadOptions,
        max_record: u64,
    ) -> Result<Self> {
        let url = file.file.url.clone();
        let codec = Codec::of(format.compression, &url);
        let (local, size) = (file.is_local(), file.size());
        let scan = |from| SampleScan::new(url.clone(), local, size, start, from);
        let (here, feed) = open_records(&file, &index, codec, (start, end), scan).await?;
        // The reader of the last sample checks what follows it.
        let is_behind_all = codec == Codec::Plain && start > 0 && here.at >= size;
        let feed = Some(feed).filter(|_| !is_behind_all);
        let columns = format.schema.fields().iter().enumerate().map(|(i, f)| (f.name().clone(), i)).collect();
        let wanted = options.columns(format.schema.fields().len());
        let schema = format.schema.project(&wanted).map_err(|e| Error::internal(e.to_string()))?;
        Ok(Self {
            members: Members::new(feed, url, here.at, codec),
            next: None,
            pending: PendingRows::new(&options),
            columns,
            wanted,
            picked: format.picked,
            index,
            end,
            samples: here.record,
            schema: Arc::new(schema),
            options,
            max_record,
        })
    }

    /// The next good sample of this split.
    async fn sample(&mut self) -> Result<Option<Sample>> {
        loop {
            let Some(sample) = self.any_sample().await? else { return Ok(None) };
            match sample.bad {
                None => return Ok(Some(sample)),
                Some(e) => self.options.skip_or_fail(e)?,
            }
        }
    }

    async fn any_sample(&mut self) -> Result<Option<Sample>> {
        let mut sample: Option<Sample> = None;
        loop {
            let member = match self.next.take() {
                Some(m) => m,
                None => match self.members.next(self.max_record).await {
                    Ok(Some(m)) => m,
                    Ok(None) => return Ok(sample),
                    Err(e) => return self.cut_off(e, sample),
                },
            };
            let Some((key, extension)) = key_and_extension(&member.name) else {
                self.members.skip(&member).await?;
                continue;
            };
            match &sample {
                Some(s) if s.key == key => {}
                Some(_) => {
                    self.next = Some(member);
                    return Ok(sample);
                }
                None if member.at >= self.end => {
                    self.index.insert(RecordStart { at: member.at, record: self.samples });
                    self.end = 0;
                    self.next = Some(member);
                    return Ok(None);
                }
                None => {
                    self.samples += 1;
                    let values = vec![None; self.columns.len()];
                    sample = Some(Sample { key: key.to_string(), values, bytes: key.len(), bad: None });
                }
            }
            if let Some(s) = sample.as_mut().filter(|_| member.name.contains(char::REPLACEMENT_CHARACTER)) {
                s.bad.get_or_insert(Error::invalid(format!(
                    "{}: the name `{}` at byte {} is not UTF-8, and two such names could be one key; rename the file, and \
                     write the archive again",
                    self.members.url, member.name, member.at
                )));
            }
            if let Some(s) = &mut sample
                && let Err(e) = self.take(&member, &extension, s).await
            {
                return self.cut_off(e, sample);
            }
        }
    }

    /// Damage ends the file: the remainder of the sample is one bad row.
    fn cut_off(&mut self, e: Error, sample: Option<Sample>) -> Result<Option<Sample>> {
        match &self.options.skip {
            Some(skip) if e.is_data_error() && e.message().contains("the file ends") => {
                skip(e);
                drop(sample);
                self.members.ended = true;
                Ok(None)
            }
            _ => Err(e),
        }
    }

    async fn take(&mut self, member: &Member, extension: &str, sample: &mut Sample) -> Result<()> {
        let column = self.columns.get(extension).copied().filter(|&c| c > 0);
        let Some(column) = column else {
            if !self.picked {
                let known: Vec<&String> = self.columns.keys().filter(|c| *c != KEY).collect();
                sample.bad.get_or_insert(Error::invalid(format!(
                    "{}: `{}`: the first samples have no `.{extension}`{}; name the extensions to read in `columns`",
                    self.members.url,
                    member.name,
                    did_you_mean(extension, &known)
                )));
            }
            return self.members.skip(member).await;
        };
        if sample.values[column].is_some() {
            sample.bad.get_or_insert(Error::invalid(format!(
                "{}: `{}` is twice in one sample, the second time at byte {}",
                self.members.url, member.name, member.at
            )));
        }
        if self.wanted.contains(&column) {
            let content = self.members.content(member.at, member.size).await?;
            sample.bytes += content.len();
            sample.values[column] = Some(content);
        } else {
            sample.values[column] = Some(Vec::new());
            self.members.skip(member).await?;
        }
        Ok(())
    }
}

impl SplitReader for Reader {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        while !self.pending.is_full() {
            let Some(sample) = self.sample().await? else { break };
            let bytes = sample.bytes;
            self.pending.push(sample, bytes);
        }
        let samples = self.pending.take();
        if samples.is_empty() {
            return Ok(None);
        }
        let columns = self.wanted.iter().map(|&c| column(&samples, c)).collect();
        batch_of(&self.schema, columns, samples.len()).map(|batch| Some(vec![batch]))
    }
}

fn column(samples: &[Sample], column: usize) -> ArrayRef {
    if column == 0 {
        let bytes = samples.iter().map(|s| s.key.len()).sum();
        let mut keys = StringBuilder::with_capacity(samples.len(), bytes);
        samples.iter().for_each(|s| keys.append_value(&s.key));
        return Arc::new(keys.finish());
    }
    let value = |s: &Sample| s.values[column].as_ref().map_or(0, Vec::len);
    let mut values = BinaryBuilder::with_capacity(samples.len(), samples.iter().map(value).sum());
    samples.iter().for_each(|s| values.append_option(s.values[column].as_ref()));
    Arc::new(values.finish())
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
#[path = "webdataset_tests.rs"]
mod tests;
