//! A folder of images: one file is one row; many files make a split.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use caju_pipeline::FileSource;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};

use crate::context::{RAISE_MAX_RECORD, SourceContext};
use crate::file::SourceFile;
use crate::files::list_files;
use crate::shard::of_shard;
use crate::source::{ReadOptions, Source};
use crate::split::split_key;
use crate::split::{FileRef, Split, SplitRange};
use crate::split_reader::{PendingRows, Rows, SplitReader, batch_of, failed, open_rows};
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

    fn read(&self, split: &Split, options: &ReadOptions) -> Rows {
        let SplitRange::Files(files) = &split.range else {
            return failed(Error::internal(format!("{}: not a split of files", split.describe())));
        };
        let wanted = options.columns(self.schema.fields().len());
        let (ctx, with_data) = (self.ctx.clone(), wanted.contains(&1));
        // Under `on_error: skip` a file that is too large is a bad row also where no stage needs its bytes.
        let checks_size = with_data || options.skip.is_some();
        let most_file = ctx.limits.max_record_bytes;
        let files = stream::iter(files.clone())
            .map(move |file| {
                let ctx = ctx.clone();
                async move {
                    let size = file.version.size;
                    if checks_size && size > most_file {
                        return Err(Error::data_loss(format!(
                            "{}: has {size} bytes, more than the {most_file} that a row may have; {RAISE_MAX_RECORD}",
                            file.url
                        )));
                    }
                    if !with_data {
                        return Ok((file, Bytes::new()));
                    }
                    let source = SourceFile::new(&ctx, &file)?;
                    let data = source.read(0..size).await?;
                    source.check_whole(&data)?;
                    Ok((file, data))
                }
            })
            .buffered(FILES_AHEAD);
        let schema = self.schema.project(&wanted).map_err(|e| Error::internal(e.to_string()));
        let options = options.clone();
        let open = async move {
            let pending = PendingRows::new(&options);
            Ok(Reader { files: files.boxed(), pending, schema: Arc::new(schema?), wanted, options })
        };
        trimmed(open_rows(open), split.trim)
    }
}

struct Reader {
    files: BoxStream<'static, Result<(FileRef, Bytes)>>,
    pending: PendingRows<(FileRef, Bytes)>,
    schema: SchemaRef,
    wanted: Vec<usize>,
    options: ReadOptions,
}

impl SplitReader for Reader {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        while !self.pending.is_full() {
            match self.files.next().await {
                Some(Ok(row)) => {
                    let bytes = row.1.len();
                    self.pending.push(row, bytes);
                }
                Some(Err(e)) if e.is_data_error() => self.options.skip_or_fail(e)?,
                Some(Err(e)) => return Err(e),
                None => break,
            }
        }
        let files = self.pending.take();
        if files.is_empty() {
            return Ok(None);
        }
        let columns = self.wanted.iter().map(|&c| column(&files, c)).collect();
        batch_of(&self.schema, columns, files.len()).map(|batch| Some(vec![batch]))
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
