//! Checks of single rows above a stage that sees many rows at once, so that the error of a bad row names it, and
//! `on_error: skip` leaves out no other row.

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow_schema::DataType;
use caju_kernels::{BoundExprs, RowError};
use caju_types::Error;
use caju_wire::longer_than;

use super::whole;

/// What a row must satisfy.
pub(crate) enum RowCheck {
    /// The length of a `bucket_by_length` has a value that fits 64 bits, or is null.
    Length(BoundExprs),
    /// The lists of a `padded_batch` are at most as long as its fixed lengths: column, name and length.
    FixedLengths(Vec<(usize, String, u32)>),
}

impl RowCheck {
    /// # Errors
    /// The first row that does not satisfy it.
    pub(super) fn run(&self, batch: &RecordBatch) -> Result<(), RowError> {
        match self {
            Self::Length(length) => {
                let values = length.evaluate(batch, None)?;
                lengths(&values[0]).map(drop)
            }
            Self::FixedLengths(columns) => {
                let bad = |(i, name, n): &(usize, String, u32)| longer_than(name, batch.column(*i), *n);
                let first = columns.iter().filter_map(bad).min_by_key(|(row, _)| *row);
                first.map_or(Ok(()), |(row, error)| Err(RowError { row: Some(row), error }))
            }
        }
    }
}

/// The values of a `length`.
///
/// # Errors
/// The first row whose value does not fit 64 bits with a sign.
pub(crate) fn lengths(values: &ArrayRef) -> Result<Int64Array, RowError> {
    let lengths =
        cast(values, &DataType::Int64).map_err(|e| whole(Error::invalid(format!("length: {e}"))))?;
    let lengths = lengths.as_primitive::<Int64Type>().clone();
    let too_large = (0..values.len()).find(|&row| values.is_valid(row) && lengths.is_null(row));
    match too_large {
        None => Ok(lengths),
        Some(row) => Err(RowError {
            row: Some(row),
            error: Error::invalid(format!(
                "length: a value is more than {}, the most that an Int64 has",
                i64::MAX
            )),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::UInt64Array;

    use super::*;

    #[test]
    fn a_length_that_does_not_fit_is_an_error_at_its_row() {
        let values: ArrayRef = Arc::new(UInt64Array::from(vec![Some(1), None, Some(u64::MAX), Some(3)]));
        let e = lengths(&values).unwrap_err();
        assert_eq!(e.row, Some(2));
        assert!(e.error.message().contains("9223372036854775807"), "{}", e.error);
        let fits = lengths(&values.slice(0, 2)).unwrap();
        assert_eq!(fits, Int64Array::from(vec![Some(1), None]));
    }
}
