//! A part on its way back into the stream of rows.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use caju_cache::{PartMeta, PartReader, Snapshot};
use caju_types::{Error, ErrorKind, Result};
use futures::StreamExt;

use super::BoundHint;

/// In a part's schema: the key of the draws that are frozen in it. Parts without draws have none.
pub(super) const DRAW: &str = "caju-draw";
/// In a part's schema: the source's columns where their types were found from the first rows of some file.
pub(super) const FOUND: &str = "caju-found-columns";

/// What came of opening a part.
pub(super) enum Opened {
    /// It can be read.
    Part(Box<OpenPart>),
    /// It is damaged or gone, and does not count any more.
    Bad,
    /// It is in order, but not for us, or not now.
    Unusable,
}

/// A part that is being read.
pub(crate) struct OpenPart {
    reader: PartReader,
    meta: Arc<PartMeta>,
    snapshot: Snapshot,
    schema: SchemaRef,
}

impl OpenPart {
    pub(super) fn new(
        reader: PartReader,
        meta: Arc<PartMeta>,
        snapshot: Snapshot,
        schema: SchemaRef,
    ) -> Self {
        Self { reader, meta, snapshot, schema }
    }

    /// Why the part's rows are not those that would be computed here, although prefix and split are the same:
    /// the columns of the source were found from other files.
    pub(super) fn unfit(&self, hint: &BoundHint) -> Option<String> {
        let stored = self.reader.schema();
        if stored.metadata().get(FOUND) != hint.found_columns.as_ref() {
            return Some("the columns of its source had other types then".into());
        }
        let wrong = |f: &&arrow_schema::FieldRef| {
            stored.field_with_name(f.name()).map_or(true, |g| g.data_type() != f.data_type())
        };
        self.schema
            .fields()
            .iter()
            .find(wrong)
            .map(|f| format!("it has no column `{}` of this type", f.name()))
    }

    pub(super) fn meta(&self) -> &PartMeta {
        &self.meta
    }

    /// Rows that were passed over when the part was computed.
    pub(crate) fn skipped(&self) -> u64 {
        self.meta.skipped
    }

    /// Requests that the rest of it can have under way at once; none where it is mapped.
    pub(crate) fn requests(&self) -> Option<usize> {
        self.reader.requests()
    }

    /// Whether what is drawn above the hint was drawn as this job would.
    pub(super) fn is_drawn_with(&self, draw: Option<u64>) -> bool {
        let text = self.reader.schema().metadata().get(DRAW);
        text.and_then(|text| u64::from_str_radix(text, 16).ok()) == draw
    }

    /// The next rows in the form that the stages below the hint expect; `None` at the end.
    ///
    /// # Errors
    /// The part is damaged or cannot be reached any more; it was dealt with, and the split has to be computed.
    pub(crate) async fn next(&mut self) -> Option<Result<RecordBatch>> {
        let batch = match self.reader.next().await? {
            Ok(batch) => self.arranged(&batch),
            Err(e) => Err(e),
        };
        if let Err(e) = &batch {
            given_up(&self.snapshot, &self.meta, e).await;
        }
        Some(batch)
    }

    /// Columns are stored by name: two definitions that share a prefix may order them differently.
    fn arranged(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let wrong = |what: String| Error::failed_precondition(format!("the part {} {what}", self.meta.path));
        let columns = self.schema.fields().iter().map(|f| {
            let column = batch
                .column_by_name(f.name())
                .ok_or_else(|| wrong(format!("has no column `{}`", f.name())))?;
            Ok(Arc::clone(column))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| wrong(format!("has another schema: {e}")))
    }
}

/// Whether an error means that the part does not count any more, rather than that it cannot be read now.
pub(super) fn is_loss(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::DataLoss | ErrorKind::NotFound)
}

/// A part that could not be read: one that is damaged is replaced, one that cannot be reached is left alone.
pub(super) async fn given_up(snapshot: &Snapshot, meta: &PartMeta, e: &Error) {
    tracing::warn!(part = %meta.path, error = %e, "a part cannot be read; its split is computed, and stored again");
    if is_loss(e)
        && let Err(e) = snapshot.discard(meta, e.message()).await
    {
        tracing::warn!(part = %meta.path, error = %e, "a damaged part could not be set aside");
    }
}

/// The schema under which a hint's rows are stored: with what tells whether the part fits a reader.
pub(super) fn stored_schema(hint: &BoundHint, draw: u64) -> SchemaRef {
    let mut metadata = hint.schema.metadata().clone();
    if hint.random {
        metadata.insert(DRAW.into(), format!("{draw:016x}"));
    }
    if let Some(found) = &hint.found_columns {
        metadata.insert(FOUND.into(), found.clone());
    }
    Arc::new(Schema::new_with_metadata(hint.schema.fields().clone(), metadata))
}

pub(super) fn schema_for_people(schema: &Schema) -> serde_json::Value {
    let fields = schema.fields().iter().map(|f| (f.name().clone(), f.data_type().to_string().into()));
    serde_json::Value::Object(fields.collect())
}
