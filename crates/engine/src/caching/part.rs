//! A stored part that is read back into the stream of rows.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use caju_cache::{PartMeta, PartReader, Snapshot};
use caju_types::{Error, ErrorKind, Result};
use futures::StreamExt;

use crate::hint::BoundHint;

/// In a part's schema: the key of the random draws in it. Parts without random stages have none.
pub(super) const DRAW: &str = "caju-draw";
/// In a part's schema: the source's columns, if their types were inferred from the first rows of some file.
pub(super) const INFERRED_COLUMNS_KEY: &str = "caju-found-columns";

/// The outcome of opening a part.
pub(super) enum Opened {
    /// It can be read.
    Part(Box<OpenPart>),
    /// It is damaged or missing, and was discarded.
    Bad,
    /// It is valid, but does not fit this job or cannot be read now.
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

    /// Why the part's rows are not those that would be computed here, although prefix and split are the same: the types of
    /// the source's columns were inferred from other files.
    pub(super) fn mismatch(&self, hint: &BoundHint) -> Option<String> {
        let stored = self.reader.schema();
        if stored.metadata().get(INFERRED_COLUMNS_KEY) != hint.found_columns.as_ref() {
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

    /// Rows that were skipped when the part was computed.
    pub(crate) fn skipped(&self) -> u64 {
        self.meta.skipped
    }

    /// Requests that the remainder of the part can have in flight at once; none if the part is mapped into memory.
    pub(crate) fn requests(&self) -> Option<usize> {
        self.reader.requests()
    }

    /// Whether the random stages above the hint drew as they would for this job.
    pub(super) fn is_drawn_with(&self, draw: Option<u64>) -> bool {
        let text = self.reader.schema().metadata().get(DRAW);
        text.and_then(|text| u64::from_str_radix(text, 16).ok()) == draw
    }

    /// The next rows in the form that the stages below the hint expect; `None` at the end.
    ///
    /// # Errors
    /// The part is damaged or cannot be reached any more. A damaged part was discarded; the split has to be computed.
    pub(crate) async fn next(&mut self) -> Option<Result<RecordBatch>> {
        let batch = match self.reader.next().await? {
            Ok(batch) => self.reordered(&batch),
            Err(e) => Err(e),
        };
        if let Err(e) = &batch {
            discard_if_lost(&self.snapshot, &self.meta, e).await;
        }
        Some(batch)
    }

    /// Columns are stored by name: two definitions that share a prefix may order them differently.
    fn reordered(&self, batch: &RecordBatch) -> Result<RecordBatch> {
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

/// Whether an error means that the part is lost, and not that it cannot be read now.
pub(super) fn is_loss(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::DataLoss | ErrorKind::NotFound)
}

/// Discards a part that is lost, so that it is stored again; a part that cannot be reached now stays.
pub(super) async fn discard_if_lost(snapshot: &Snapshot, meta: &PartMeta, e: &Error) {
    tracing::warn!(part = %meta.path, error = %e, "a part cannot be read; its split is computed, and stored again");
    if is_loss(e)
        && let Err(e) = snapshot.discard(meta, e.message()).await
    {
        tracing::warn!(part = %meta.path, error = %e, "a damaged part could not be discarded");
    }
}

/// The schema under which a hint's rows are stored. Its metadata lets a reader check whether the part fits.
pub(super) fn stored_schema(hint: &BoundHint, draw: u64) -> SchemaRef {
    let mut metadata = hint.schema.metadata().clone();
    if hint.random {
        metadata.insert(DRAW.into(), format!("{draw:016x}"));
    }
    if let Some(found) = &hint.found_columns {
        metadata.insert(INFERRED_COLUMNS_KEY.into(), found.clone());
    }
    Arc::new(Schema::new_with_metadata(hint.schema.fields().clone(), metadata))
}

/// The names and types of the columns, for people who look into the manifest.
pub(super) fn schema_for_people(schema: &Schema) -> serde_json::Value {
    let fields = schema.fields().iter().map(|f| (f.name().clone(), f.data_type().to_string().into()));
    serde_json::Value::Object(fields.collect())
}
