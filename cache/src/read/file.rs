//! What both formats' readers do with a part's file: checks of what it says about itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use caju_types::{Error, ErrorKind, Result};
use futures::stream::BoxStream;

use crate::record::PartMeta;
use crate::tags;

/// An error that says why a part cannot be used.
pub(crate) fn damaged(meta: &PartMeta, why: impl std::fmt::Display) -> Error {
    Error::data_loss(format!("part {} is damaged: {why}", meta.path))
}

/// A part whose footer was read.
pub(super) struct Opened {
    /// The schema after projection.
    pub(super) schema: SchemaRef,
    pub(super) batches: BoxStream<'static, Result<RecordBatch>>,
    /// Requests whose answers were not taken yet.
    pub(super) pending: Arc<AtomicUsize>,
}

/// Runs library code over the content of a file. Libraries panic over some handmade files: that is an error here.
pub(super) fn guarded<T, E: std::fmt::Display>(
    meta: &PartMeta,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(damaged(meta, e)),
        Err(_) => Err(damaged(meta, "its metadata are invalid")),
    }
}

/// A missing object as an error that names the part; any other error unchanged.
pub(super) fn gone(meta: &PartMeta, error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        return Error::not_found(format!("part {} is gone: it was evicted or removed", meta.path));
    }
    error
}

/// Compares what the file says about itself with the part's record.
///
/// # Errors
/// `DataLoss` if it is another file.
pub(super) fn check_tags<'a>(meta: &PartMeta, tag: impl Fn(&str) -> Option<&'a str>) -> Result<()> {
    for (key, want) in tags::identity(meta.fingerprint, meta.split, &meta.attempt) {
        let is = tag(key);
        if is != Some(want.as_str()) {
            let is = is.unwrap_or("nothing");
            return Err(damaged(meta, format!("it is another file: its {key} is {is} instead of {want}")));
        }
    }
    Ok(())
}

/// The schema that the writer was given: the file's own, or the tagged one where the file's own lacks dictionaries.
///
/// # Errors
/// `DataLoss` if its hash is not the one in the record.
pub(super) fn original_schema(meta: &PartMeta, found: &SchemaRef, tagged: Option<&str>) -> Result<SchemaRef> {
    let schema = match tagged {
        None => Arc::clone(found),
        Some(text) => Arc::new(serde_json::from_str::<Schema>(text).map_err(|e| damaged(meta, e))?),
    };
    if crate::schema::schema_hash(&schema) != meta.schema_hash {
        return Err(damaged(meta, "its schema is not the one that its record names"));
    }
    Ok(schema)
}
