//! Text files of one row a line, cut at line ends: what CSV and JSON lines share.
//!
//! A line belongs to the split in which it starts. A piece of whole lines is decoded at once. If that fails, its lines are
//! decoded one by one, to name the bad one or to skip it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use caju_pipeline::Compression;
use caju_types::{Error, Result, format_bytes};
use futures::future::BoxFuture;

use crate::context::SourceContext;
use crate::feed::{Codec, Feed};
use crate::file::SourceFile;
use crate::files::{Format, cut_bytes};
use crate::line_reader::LineReader;
use crate::sniff::other_format;
use crate::source::ReadOptions;
use crate::split::{FileRef, Split};
use crate::split_reader::{Rows, open_rows};
use crate::text::{Text, misspelt, strip_bom};

/// Bytes of a file that a schema is inferred from.
const INFER_BYTES: usize = 1 << 20;
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

    /// Warns of a column of a given schema that no line of the beginning of a file has, where a column of it that the schema does
    /// not name is called almost the same: if the column is misspelt, all of its values are null. It is no error, because a key
    /// may come later.
    pub(crate) async fn check_names(
        ctx: &SourceContext,
        text: &T,
        compression: Compression,
        given: &Schema,
        first: &FileRef,
    ) -> Result<()> {
        let found = match Self::discover(ctx, text, compression, first).await {
            Ok(found) => found,
            // Reading the rows says what is wrong, or that nothing is with the types that are given.
            Err(e) if e.is_data_error() => return Ok(()),
            Err(e) => return Err(e),
        };
        let names = |schema: &Schema| schema.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
        if let Some(what) = misspelt(&first.url, "schema", &names(given), &names(&found)) {
            tracing::warn!("{what}. Where it has no other value, the column is null");
        }
        Ok(())
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
        let schema = match text.infer(strip_bom(&head)) {
            Ok(schema) => schema,
            Err(why) => return Err(damage(text, url, strip_bom(&head)).unwrap_or_else(|| bad(why))),
        };
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

/// The first line of which no schema helps to read it, as an error that names it.
fn damage(text: &impl Text, url: &str, head: &[u8]) -> Option<Error> {
    // Within quotes a line end is no line end, and such lines cannot be distinguished here.
    if text.goes_on(head, false)
        || head.split_inclusive(|b| *b == b'\n').any(|line| text.goes_on(line, false))
    {
        return None;
    }
    let mut lines = head.split_inclusive(|b| *b == b'\n').enumerate();
    let (_, first) = lines.next()?;
    let why = text.damage(first, first).map(|why| (0, why));
    let (i, why) = why.or_else(|| lines.find_map(|(i, line)| Some((i, text.damage(line, first)?))))?;
    Some(Error::data_loss(format!("{url}: line {}: {why}", i + 1)))
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
        // A file of another compression that is empty is refused there.
        if self.text.header()
            && file.version.size == 0
            && Codec::of(self.compression, &file.url) == Codec::Plain
        {
            let error = Error::data_loss(format!(
                "{}: the file has 0 bytes, and so no header: the file is truncated or is still being written; remove it if it \
                 is meant to be empty",
                file.url
            ));
            return Box::pin(std::future::ready(Err(error)));
        }
        cut_bytes(self.compression, &file, split_bytes)
    }

    fn read(&self, ctx: &SourceContext, file: Arc<SourceFile>, split: &Split, options: &ReadOptions) -> Rows {
        let codec = Codec::of(self.compression, &file.file.url);
        let reader = LineReader::new(
            (self.text.clone(), Arc::clone(&self.schema)),
            (file, codec),
            split.range.bytes(),
            options.clone(),
            ctx.limits.max_record_bytes,
        );
        open_rows(std::future::ready(Ok(reader)))
    }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
