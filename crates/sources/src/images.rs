//! A folder of images: one file is one row; many files make a split.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use caju_pipeline::FileSource;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};

use crate::context::SourceContext;
use crate::file::SourceFile;
use crate::files::list_files;
use crate::shard::of_shard;
use crate::source::{ReadOptions, Source};
use crate::split::split_key;
use crate::split::{FileRef, Split, SplitRange};
use crate::trim::trimmed;

/// The most files of a split, so that its description stays small.
const MOST_FILES: usize = 512;
/// Files that are read concurrently.
const FILES_AHEAD: usize = 8;

/// Columns `path` (the file's URL), `image` (its bytes) and `label` (the name of its folder).
pub(crate) struct ImagesSource {
    ctx: SourceContext,
    def: FileSource,
    schema: SchemaRef,
}

impl ImagesSource {
    pub(crate) fn new(ctx: &SourceContext, def: &FileSource) -> Self {
        let schema = Schema::new(vec![
            Field::new("path", DataType::Utf8, false),
            Field::new("image", DataType::Binary, false),
            Field::new("label", DataType::Utf8, false),
        ]);
        Self { ctx: ctx.clone(), def: def.clone(), schema: Arc::new(schema) }
    }
}

fn split_of(files: Vec<FileRef>) -> Split {
    let rows = Some(files.len() as u64);
    let range = SplitRange::Files(files);
    let key = split_key(None, &range);
    Split { child: Vec::new(), repetition: 0, key, file: None, range, rows, trim: None, stride: None }
}

/// The name of the folder that a file lies in. A URL escapes a `%` in it.
fn label(url: &str) -> Cow<'_, str> {
    let mut parts = url.rsplit('/');
    parts.next();
    let folder = parts.next().unwrap_or("");
    match url.starts_with("file://") && folder.contains('%') {
        true => Cow::Owned(folder.replace("%25", "%")),
        false => Cow::Borrowed(folder),
    }
}

impl Source for ImagesSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let files = list_files(&self.ctx, &self.def);
        let split_bytes = self.def.split_bytes;
        // A file that did not fit into the last group goes into the next one.
        let splits = stream::try_unfold((files, None::<FileRef>), move |(mut files, left)| async move {
            let mut bytes = left.as_ref().map_or(0, |f| f.version.size);
            let mut group: Vec<FileRef> = left.into_iter().collect();
            while let Some(file) = files.next().await {
                let file = file?;
                let size = file.version.size;
                if !group.is_empty() && (group.len() >= MOST_FILES || bytes + size / 2 >= split_bytes) {
                    return Ok(Some((split_of(group), (files, Some(file)))));
                }
                bytes += size;
                group.push(file);
            }
            Ok((!group.is_empty()).then(|| (split_of(group), (files, None))))
        });
        of_shard(splits.boxed(), &self.def)
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>> {
        let SplitRange::Files(files) = &split.range else {
            let e = Error::internal(format!("{}: not a split of files", split.describe()));
            return stream::once(async move { Err(e) }).boxed();
        };
        let wanted = options.projection.clone().unwrap_or_else(|| vec![0, 1, 2]);
        let (ctx, with_data) = (self.ctx.clone(), wanted.contains(&1));
        let most_file = ctx.limits.max_record_bytes;
        let rows = stream::iter(files.clone())
            .map(move |file| {
                let ctx = ctx.clone();
                async move {
                    if !with_data {
                        return Ok((file, Bytes::new()));
                    }
                    let size = file.version.size;
                    if size > most_file {
                        return Err(Error::data_loss(format!(
                            "{}: has {size} bytes, more than the {most_file} that a row may have",
                            file.url
                        )));
                    }
                    let data = SourceFile::new(&ctx, &file)?.read(0..size).await?;
                    Ok((file, data))
                }
            })
            .buffered(FILES_AHEAD);
        let batching = Batching {
            rows: rows.boxed(),
            left: None,
            schema: Arc::clone(&self.schema),
            wanted,
            options: options.clone(),
        };
        let batches =
            stream::try_unfold(batching, |mut b| async move { Ok(b.next().await?.map(|batch| (batch, b))) })
                .boxed();
        trimmed(batches, split.trim)
    }
}

struct Batching {
    rows: BoxStream<'static, Result<(FileRef, Bytes)>>,
    left: Option<(FileRef, Bytes)>,
    schema: SchemaRef,
    wanted: Vec<usize>,
    options: ReadOptions,
}

impl Batching {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut rows: Vec<(FileRef, Bytes)> = Vec::new();
        let mut bytes = 0;
        while rows.len() < self.options.batch_rows.max(1) {
            let row = match self.left.take() {
                Some(row) => row,
                None => match self.rows.next().await {
                    Some(Ok(row)) => row,
                    Some(Err(e)) => match (&self.options.skip, e.is_data_error()) {
                        (Some(skip), true) => {
                            skip(e);
                            continue;
                        }
                        _ => return Err(e),
                    },
                    None => break,
                },
            };
            if !rows.is_empty() && bytes + row.1.len() > self.options.batch_bytes {
                self.left = Some(row);
                break;
            }
            bytes += row.1.len();
            rows.push(row);
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let columns = self.wanted.iter().map(|&c| column(&rows, c)).collect();
        let schema = self.schema.project(&self.wanted).map_err(|e| Error::internal(e.to_string()))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)
            .map(Some)
            .map_err(|e| Error::internal(e.to_string()))
    }
}

fn column(rows: &[(FileRef, Bytes)], column: usize) -> ArrayRef {
    if column == 1 {
        let bytes = rows.iter().map(|(_, d)| d.len()).sum();
        let mut images = BinaryBuilder::with_capacity(rows.len(), bytes);
        rows.iter().for_each(|(_, d)| images.append_value(d));
        return Arc::new(images.finish());
    }
    let mut texts = StringBuilder::new();
    for (file, _) in rows {
        match column {
            0 => texts.append_value(&file.url),
            _ => texts.append_value(label(&file.url)),
        }
    }
    Arc::new(texts.finish())
}
