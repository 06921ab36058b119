//! Sources made of files: listing, versions, cutting, and the formats behind one trait.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_pipeline::{Compression, FileFormat, FileSource, VersionRule};
use caju_types::{Error, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::caches::SourceCaches;
use crate::context::SourceContext;
use crate::feed::Codec;
use crate::file::{SourceFile, file_ref};
use crate::guard::planned;
use crate::row_counts::{compared, identity_of};
use crate::shard::of_shard;
use crate::source::{ReadOptions, Source};
use crate::split::split_key;
use crate::split::{FileRef, Split, SplitRange};
use crate::split_reader::{Rows, failed};
use crate::trim::trimmed;

/// Readahead in files: footers that are read, or contents that are hashed, before they are needed.
const FILE_READAHEAD: usize = 8;

/// One format of files.
pub(crate) trait Format: Send + Sync + 'static {
    /// The schema of the rows.
    fn schema(&self) -> SchemaRef;

    /// The splits of one file, in order.
    fn cut(
        &self,
        ctx: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>>;

    /// The projected rows of one split of a file, before `split.trim`.
    fn read(&self, ctx: &SourceContext, file: Arc<SourceFile>, split: &Split, options: &ReadOptions) -> Rows;

    /// Whether [`Format::read`] drops the rows outside `split.trim` itself.
    fn trims(&self) -> bool {
        false
    }

    /// Whether [`Format::read`] honours the predicates of its options.
    fn filters(&self) -> bool {
        false
    }

    /// Whether [`Format::read`] keeps dictionaries.
    fn keeps_dictionaries(&self) -> bool {
        false
    }
}

/// The extensions that name a format's files in a folder.
pub(crate) fn extensions(format: &FileFormat) -> &'static [&'static str] {
    match format {
        FileFormat::TfRecord { .. } => &[
            "tfrecord",
            "tfrecords",
            "tfrec",
            "tfrecord.gz",
            "tfrecord.gzip",
            "tfrecord.zst",
            "tfrecord.zstd",
            "tfrecords.gz",
            "tfrecords.gzip",
            "tfrecords.zst",
            "tfrecords.zstd",
            "tfrec.gz",
            "tfrec.gzip",
            "tfrec.zst",
            "tfrec.zstd",
        ],
        FileFormat::Parquet { .. } => &["parquet", "pq"],
        FileFormat::Arrow { .. } => &["arrow", "feather", "ipc"],
        FileFormat::WebDataset { .. } => &["tar", "tgz", "tar.gz", "tar.gzip", "tar.zst", "tar.zstd"],
        FileFormat::Csv { .. } => &[
            "csv", "csv.gz", "csv.gzip", "csv.zst", "csv.zstd", "tsv", "tsv.gz", "tsv.gzip", "tsv.zst",
            "tsv.zstd",
        ],
        FileFormat::Json { .. } => &[
            "json",
            "json.gz",
            "json.gzip",
            "json.zst",
            "json.zstd",
            "jsonl",
            "jsonl.gz",
            "jsonl.gzip",
            "jsonl.zst",
            "jsonl.zstd",
            "ndjson",
            "ndjson.gz",
            "ndjson.gzip",
            "ndjson.zst",
            "ndjson.zstd",
        ],
        FileFormat::Images => &["jpg", "jpeg", "png", "webp"],
    }
}

/// The files of a source in canonical order: as the paths are given, sorted by key within each. A file that two paths
/// match, and a partition column that only the name of a folder holds, are errors: rows or values would be lost.
pub(crate) fn list_files(ctx: &SourceContext, def: &FileSource) -> BoxStream<'static, Result<FileRef>> {
    let (listed, context) = (find_files(ctx, def), ctx.clone());
    if def.version == VersionRule::Listed {
        return listed.map(|file| file.and_then(with_version)).boxed();
    }
    listed
        .map(move |file| {
            let context = context.clone();
            async move {
                let mut file = file?;
                file.version.content_hash = Some(SourceFile::new(&context, &file)?.content_hash().await?);
                Ok(file)
            }
        })
        .buffered(FILE_READAHEAD)
        .boxed()
}

/// The files of [`list_files`], with the versions that the store gives, if it gives any.
pub(crate) fn find_files(ctx: &SourceContext, def: &FileSource) -> BoxStream<'static, Result<FileRef>> {
    let (stores, io, extensions) = (Arc::clone(&ctx.stores), Arc::clone(&ctx.io), extensions(&def.format));
    let mut seen = (def.paths.len() > 1).then(HashMap::new);
    // Images are listed with their paths, so no path is lost.
    let partitioned = !matches!(def.format, FileFormat::Images);
    let listed = stream::iter(def.paths.clone().into_iter().map(Arc::<str>::from)).flat_map(move |path| {
        stores.list(&path, extensions, &io).map_ok(move |listed| (Arc::clone(&path), file_ref(&listed)))
    });
    let listed = listed.map(move |found| {
        let (path, file) = found?;
        if let Some(column) = unread_partition(&path, &file.url).filter(|_| partitioned) {
            return Err(partition_error(&file.url, column));
        }
        match seen.as_mut().and_then(|seen| seen.insert(file.url.clone(), Arc::clone(&path))) {
            Some(first) => Err(Error::invalid(format!(
                "{}: two paths of the source match this file, `{first}` and `{path}`; name each file once, or \
                 `concatenate` two datasets to read it twice",
                file.url
            ))),
            None => Ok(file),
        }
    });
    listed.boxed()
}

/// A file whose store says how its versions differ. Without that, rows of a changed file would pass for those of the listed one.
///
/// # Errors
/// `FailedPrecondition` for another file.
pub(crate) fn with_version(file: FileRef) -> Result<FileRef> {
    if file.version.etag.is_none() && file.version.mtime_ns.is_none() {
        return Err(Error::failed_precondition(format!(
            "{}: the server gives neither an e-tag nor a time of modification, so a changed file would not be noticed; \
             set `version: content` for the source, which reads each file once more to hash it, \
             and again after each of its splits",
            file.url
        )));
    }
    Ok(file)
}

/// The partition column that a folder of a file's URL is named after (`y=1`), unless the path that was given names it.
fn unread_partition<'a>(path: &str, url: &'a str) -> Option<&'a str> {
    let (folders, _) = url.rsplit_once('/').filter(|(folders, _)| folders.contains('='))?;
    let mut names = folders.split('/').filter_map(|folder| Some(folder.split_once('=')?.0));
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    names.find(|name| is_name(name) && !path.contains(&format!("{name}=")))
}

fn partition_error(url: &str, column: &str) -> Error {
    Error::invalid(format!(
        "{url}: the folder `{column}=...` holds the value of a partition column, and names of folders are not read as \
         columns; name the folder in the path to read the files without `{column}` (`{column}=*`), and add the column by \
         `with_columns` to a dataset of each folder if it is needed"
    ))
}

/// A split of a file.
pub(crate) fn file_split(file: &FileRef, range: SplitRange, rows: Option<u64>) -> Split {
    let key = split_key(Some(file), &range);
    Split {
        child: Vec::new(),
        repetition: 0,
        key,
        file: Some(file.clone()),
        range,
        rows,
        trim: None,
        stride: None,
    }
}

/// Cuts a file into byte ranges of about `split_bytes` (the last one has half to one and a half of it);
/// none: the file cannot be cut. An empty file has no split.
pub(crate) fn byte_splits(file: &FileRef, split_bytes: Option<u64>) -> Vec<Split> {
    let size = file.version.size;
    if size == 0 {
        return Vec::new();
    }
    let step = split_bytes.unwrap_or(size).max(1);
    let pieces = ((size + step / 2) / step).max(1);
    if pieces == 1 {
        return vec![file_split(file, SplitRange::Whole, None)];
    }
    (0..pieces)
        .map(|i| {
            let end = if i + 1 == pieces { size } else { (i + 1) * step };
            file_split(file, SplitRange::Bytes { start: i * step, end }, None)
        })
        .collect()
}

/// The splits of a file of records or lines, which are found by reading: a compressed file cannot be cut.
pub(crate) fn cut_bytes(
    compression: Compression,
    file: &FileRef,
    split_bytes: u64,
) -> BoxFuture<'static, Result<Vec<Split>>> {
    let codec = Codec::of(compression, &file.url);
    let is_plain = codec == Codec::Plain;
    // Even no rows at all take some bytes in gzip and zstd.
    let splits = if !is_plain && file.version.size == 0 {
        Err(Error::data_loss(format!(
            "{}: the file has 0 bytes, which is no {} file: the file is truncated or is still being written",
            file.url,
            if codec == Codec::Gzip { "gzip" } else { "zstd" },
        )))
    } else {
        Ok(byte_splits(file, is_plain.then_some(split_bytes)))
    };
    std::future::ready(splits).boxed()
}

/// A source of files of one format.
pub(crate) struct FilesSource<F> {
    format: Arc<F>,
    def: FileSource,
    ctx: SourceContext,
    /// Of the reader's options.
    identity: u128,
}

impl<F: Format> FilesSource<F> {
    pub(crate) fn new(format: F, def: &FileSource, ctx: &SourceContext) -> Self {
        let identity = identity_of(&def.format);
        Self { format: Arc::new(format), def: def.clone(), ctx: ctx.clone(), identity }
    }
}

impl<F: Format> Source for FilesSource<F> {
    fn filters(&self) -> bool {
        self.format.filters()
    }

    fn keeps_dictionaries(&self) -> bool {
        self.format.keeps_dictionaries()
    }

    fn schema(&self) -> SchemaRef {
        self.format.schema()
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let (format, ctx, split_bytes) = (Arc::clone(&self.format), self.ctx.clone(), self.def.split_bytes);
        let splits = list_files(&self.ctx, &self.def)
            .map(move |file| {
                let cut = file.map(|file| match ctx.listing.splits_of(&file) {
                    Some(splits) => std::future::ready(Ok(splits)).boxed(),
                    None => {
                        let url = file.url.clone();
                        let cut = format.cut(&ctx, file, split_bytes);
                        async move { planned(&url, cut).await }.boxed()
                    }
                });
                async move { cut?.await }
            })
            .buffered(FILE_READAHEAD)
            .map_ok(|splits| stream::iter(splits.into_iter().map(Ok)))
            .try_flatten()
            .boxed();
        of_shard(splits, &self.def)
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> Rows {
        let file = match &split.file {
            Some(file) => SourceFile::new(&self.ctx, file),
            None => Err(Error::internal(format!("{}: the split names no file", split.describe()))),
        };
        match file {
            Ok(file) => compared(&self.ctx.caches, self.identity, split, options, |options| {
                let rows = self.format.read(&self.ctx, Arc::clone(&file), split, options);
                let rows = if self.format.trims() { rows } else { trimmed(rows, split.trim) };
                hashed_behind(rows, file, &self.ctx.caches)
            }),
            Err(e) => failed(e),
        }
    }
}

/// The rows of a split. Where only the content shows a change of the file, it is hashed again behind the last row: another hash is
/// an error before the split ends. It is also the reason of a row that cannot be read.
fn hashed_behind(rows: Rows, file: Arc<SourceFile>, caches: &SourceCaches) -> Rows {
    if file.file.version.sole_content_hash().is_none() {
        return rows;
    }
    let (read, kept) = (Arc::clone(&file), caches.clone());
    let rows = rows.or_else(move |e| {
        let (file, caches) = (Arc::clone(&read), kept.clone());
        async move {
            let checked = if e.is_data_error() { check_content(&file, &caches).await } else { Ok(()) };
            Err::<RecordBatch, Error>(checked.err().unwrap_or(e))
        }
    });
    let caches = caches.clone();
    let check = stream::once(async move { check_content(&file, &caches).await });
    let changed =
        check.filter_map(|checked| std::future::ready(checked.err().map(Err::<RecordBatch, Error>)));
    rows.chain(changed).boxed()
}

/// Checks that a file has the listed content. What is cached of another one is dropped.
async fn check_content(file: &Arc<SourceFile>, caches: &SourceCaches) -> Result<()> {
    let checked = file.check_content().await;
    if checked.is_err() {
        caches.forget(&file.file);
    }
    checked
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
