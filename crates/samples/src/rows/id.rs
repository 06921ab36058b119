//! Row numbers.

use caju_types::{Error, Result};

/// A row's index as a value of the `id` column.
///
/// # Errors
/// `InvalidArgument` for an index above `i64::MAX`.
pub(super) fn row_id(index: u64) -> Result<i64> {
    i64::try_from(index).map_err(|_| Error::invalid(format!("row {index} does not fit an int64 id")))
}
