//! Functions of DataFusion that wrap, clamp or leave out a result which does not fit its type.

use std::fmt::Display;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use caju_types::Error;
use datafusion_common::DataFusionError;
use datafusion_expr::ColumnarValue;

use super::size::Arg;
use crate::kernel::Fault;

/// Which values of a function's arguments have a result that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Range {
    /// Text whose bits fit 32 bits. Text with offsets of 64 bits has results of 64 bits.
    Bits,
    /// Seconds whose nanoseconds fit 64 bits, where they are floats. Integers are checked by DataFusion.
    Seconds,
    /// Structs, of which a field is null where the struct is.
    Field,
    /// Finite numbers whose result is finite.
    Finite,
    /// Times whose result is not null. The functions give null for a time that they cannot compute, as for a null.
    Times,
}

/// The rule for a function, by DataFusion's name; none if it fails for every result that does not fit.
pub(super) fn range(name: &str) -> Option<Range> {
    match name {
        "bit_length" => Some(Range::Bits),
        "to_timestamp" => Some(Range::Seconds),
        "round" | "trunc" => Some(Range::Finite),
        "date_bin" | "date_part" | "date_trunc" => Some(Range::Times),
        _ => None,
    }
}

/// The most bytes of a text whose bits fit 32 bits.
const MAX_BYTES: u64 = i32::MAX as u64 / 8;

const NANOS_PER_SECOND: f64 = 1e9;

impl Range {
    /// # Errors
    /// The first of `rows` rows whose result would not fit. `what` names the function.
    pub(super) fn check(self, of: &Arg, rows: usize, what: &dyn Display) -> Result<(), DataFusionError> {
        let found = match self {
            Range::Bits => {
                long_text(of, rows).map(|row| (row, format!("a text of {} bytes", of.text_bytes(row))))
            }
            Range::Seconds => outside(of)?.map(|(row, seconds)| (row, format!("{seconds} seconds"))),
            // Only the result shows it.
            Range::Field | Range::Finite | Range::Times => None,
        };
        match found {
            None => Ok(()),
            Some((row, value)) => {
                let instead = match self {
                    Range::Bits => "Int32; use `octet_length`",
                    Range::Seconds => "nanoseconds in 64 bits; use `to_timestamp_seconds`",
                    Range::Field | Range::Finite | Range::Times => "its type",
                };
                let error = Error::invalid(format!("{what} of {value} does not fit {instead}"));
                Err(Fault::at(row, error).into())
            }
        }
    }
}

impl Range {
    /// Whether it is checked by the result.
    pub(super) fn is_of_result(self) -> bool {
        matches!(self, Self::Finite | Self::Times)
    }

    /// # Errors
    /// The first of `rows` rows whose result is not what the arguments ask for.
    pub(super) fn check_result(
        self,
        args: &[ColumnarValue],
        result: &ColumnarValue,
        rows: usize,
        what: &dyn Display,
    ) -> Result<(), DataFusionError> {
        match self {
            Self::Finite => check_finite(args, result, what),
            Self::Times => check_times(args, result, rows, what),
            Self::Bits | Self::Seconds | Self::Field => Ok(()),
        }
    }
}

/// # Errors
/// The first row whose result is infinite or no number although the first argument is a finite number.
fn check_finite(
    args: &[ColumnarValue],
    result: &ColumnarValue,
    what: &dyn Display,
) -> Result<(), DataFusionError> {
    let floats = |value: &ColumnarValue| -> Result<Option<ArrayRef>, DataFusionError> {
        if !value.data_type().is_floating() {
            return Ok(None);
        }
        let array = match value {
            ColumnarValue::Array(array) => Arc::clone(array),
            ColumnarValue::Scalar(value) => value.to_array()?,
        };
        Ok(Some(cast(&array, &DataType::Float64)?))
    };
    let (Some(result), Some(first)) = (floats(result)?, args.first().map(floats).transpose()?.flatten())
    else {
        return Ok(());
    };
    let (result, first) = (result.as_primitive::<Float64Type>(), first.as_primitive::<Float64Type>());
    // One value for all rows, or one of each.
    let argument = |row: usize| first.value(if first.len() == 1 { 0 } else { row });
    let is_bad =
        |row: &usize| result.is_valid(*row) && !result.value(*row).is_finite() && argument(*row).is_finite();
    let Some(row) = (0..result.len()).find(is_bad) else { return Ok(()) };
    let shown = args.iter().map(|a| shown(a, row)).collect::<Vec<_>>().join(", ");
    let error =
        Error::invalid(format!("{what} of {shown} cannot be computed: the power of ten is out of range"));
    Err(Fault::at(row, error).into())
}

/// # Errors
/// The first row whose result is null although no argument is.
fn check_times(
    args: &[ColumnarValue],
    result: &ColumnarValue,
    rows: usize,
    what: &dyn Display,
) -> Result<(), DataFusionError> {
    if matches!(result, ColumnarValue::Array(values) if values.null_count() == 0) {
        return Ok(());
    }
    let rows = if matches!(result, ColumnarValue::Scalar(_)) { 1 } else { rows };
    let has_null = |row: usize| args.iter().any(|a| is_null(a, row));
    let Some(row) = (0..rows).find(|&row| is_null(result, row) && !has_null(row)) else { return Ok(()) };
    let shown = args.iter().map(|a| shown(a, row)).collect::<Vec<_>>().join(", ");
    let error = Error::invalid(format!("{what} of {shown} is outside of the times that it can compute"));
    Err(Fault::at(row, error).into())
}

fn is_null(value: &ColumnarValue, row: usize) -> bool {
    match value {
        ColumnarValue::Array(values) => values.is_null(row),
        ColumnarValue::Scalar(value) => value.is_null(),
    }
}

/// A value for messages. Text of a time outside of the calendar may be empty, so its number is shown.
fn shown(value: &ColumnarValue, row: usize) -> String {
    let one: ArrayRef = match value {
        ColumnarValue::Array(values) => values.slice(row, 1),
        ColumnarValue::Scalar(value) => match value.to_array() {
            Ok(array) => array,
            Err(_) => return "a constant".into(),
        },
    };
    let number = one.data_type().is_temporal().then(|| cast(&one, &DataType::Int64).ok()).flatten();
    let text = cast(number.as_ref().unwrap_or(&one), &DataType::Utf8).ok();
    let text = text.as_ref().and_then(|t| t.as_string_opt::<i32>()).map(|t| t.value(0).to_owned());
    text.unwrap_or_else(|| one.data_type().to_string())
}

fn long_text(of: &Arg, rows: usize) -> Option<usize> {
    let has_wide_offsets = match of.array.data_type() {
        DataType::Dictionary(_, values) => **values == DataType::LargeUtf8,
        t => *t == DataType::LargeUtf8,
    };
    (0..rows).find(|row| !has_wide_offsets && of.text_bytes(*row) > MAX_BYTES)
}

fn outside(of: &Arg) -> Result<Option<(usize, f64)>, DataFusionError> {
    if !of.array.data_type().is_floating() {
        return Ok(None);
    }
    let seconds = cast(&of.array, &DataType::Float64)?;
    let seconds = seconds.as_primitive::<Float64Type>();
    // As floats the bounds of the range are powers of two. NaN is in no range.
    let bound = -(i64::MIN as f64);
    let fits = |v: f64| (-bound..bound).contains(&(v * NANOS_PER_SECOND));
    Ok(seconds.iter().enumerate().find_map(|(row, v)| v.filter(|v| !fits(*v)).map(|v| (row, v))))
}
