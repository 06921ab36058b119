//! The status of a save, for Python.

use caju_proto::v1::SaveStatus;
use caju_types::{Error, ErrorKind, Result};
use serde_json::json;

/// The status as JSON.
pub(crate) fn status_json(s: &SaveStatus) -> String {
    json!({"url": s.url, "state": s.state, "splits_done": s.splits_done, "splits_total": s.splits_total,
           "rows": s.rows, "bytes": s.bytes, "chunks": s.chunks, "rows_skipped": s.rows_skipped})
    .to_string()
}

/// The error of a save that failed.
///
/// # Errors
/// The save's own, of its kind.
pub(crate) fn failure(s: &SaveStatus) -> Result<()> {
    match &s.failure {
        Some(f) => {
            let kind = ErrorKind::ALL.into_iter().find(|k| k.as_str() == f.kind);
            Err(Error::new(kind.unwrap_or(ErrorKind::Internal), f.message.clone()))
        }
        None => Ok(()),
    }
}
