//! Whether a stage makes rows smaller or larger: as measured, else as its operator and its types say.

use arrow_schema::{DataType, Field, Schema};
use caju_pipeline::{PythonKind, StageOp};

use crate::row::{RowOp, RowStage};

/// Factors nearer to 1 than this are no change.
const MIN_CHANGE: f64 = 0.05;

/// What a stage does to the size of rows. The smaller ones go up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    DropsRows,
    Shrinks,
    Same,
    Grows,
    AddsRows,
}

/// The change, and how it is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Size {
    pub(super) change: Change,
    /// As in "it drops rows".
    pub(super) why: String,
}

impl Size {
    fn new(change: Change, why: &str) -> Self {
        Self { change, why: why.to_owned() }
    }

    pub(super) fn same() -> Self {
        Self::new(Change::Same, "it leaves rows as they are")
    }
}

/// What a stage does to the size of rows; `measured`: bytes out per byte in.
pub(super) fn size(op: &StageOp, stage: &RowStage, input: &Schema, measured: Option<f64>) -> Size {
    // A filter is as good above a stage as below it, if it drops nothing. What was measured may be that of a filter which
    // the source applied, so it does not count.
    if matches!(op, StageOp::Filter(_)) || is_python(op, PythonKind::Filter) {
        return Size::new(Change::DropsRows, "it drops rows");
    }
    let adds_rows = matches!(stage.op, RowOp::Unnest { .. }) || is_python(op, PythonKind::FlatMap);
    if let Some(factor) = measured {
        let change = match factor {
            f if f < 1.0 - MIN_CHANGE => Change::Shrinks,
            _ if adds_rows => Change::AddsRows,
            f if f > 1.0 + MIN_CHANGE => Change::Grows,
            _ => Change::Same,
        };
        return Size::new(change, &format!("measured are {factor} bytes out per byte in"));
    }
    if adds_rows {
        return Size::new(Change::AddsRows, "it makes several rows of one");
    }
    match op {
        StageOp::Inflate { factor, .. } if *factor > 1.0 => {
            Size::new(Change::Grows, "it makes values longer")
        }
        StageOp::Select(names) if names.len() < input.fields().len() => {
            Size::new(Change::Shrinks, "it drops columns")
        }
        StageOp::WithColumns(_) => of_columns(stage, input),
        _ => Size::same(),
    }
}

fn is_python(op: &StageOp, kind: PythonKind) -> bool {
    matches!(op, StageOp::Python(f) if f.kind == kind)
}

/// What `with_columns` does, as the types tell.
fn of_columns(stage: &RowStage, input: &Schema) -> Size {
    let (mut grows, mut shrinks) = (false, false);
    for field in stage.schema.fields() {
        let change = match input.field_with_name(field.name()) {
            Ok(before) => replaced(before, field),
            Err(_) => Change::Grows,
        };
        grows |= change == Change::Grows;
        shrinks |= change == Change::Shrinks;
    }
    match (grows, shrinks) {
        (true, false) => Size::new(Change::Grows, "it adds columns, or makes values longer"),
        (false, true) => Size::new(Change::Shrinks, "it makes values shorter"),
        _ => Size::same(),
    }
}

/// What a new value does in the place of an old one. Images: decoding makes them larger, scaling them to one size makes them
/// smaller.
fn replaced(before: &Field, after: &Field) -> Change {
    let (old, new) = (before.data_type(), after.data_type());
    match (width(old), width(new)) {
        (Some(old), Some(new)) if old < new => Change::Grows,
        (Some(old), Some(new)) if old > new => Change::Shrinks,
        (None, None) if is_bytes(old) && new.is_nested() => Change::Grows,
        (None, Some(_)) if old.is_nested() => Change::Shrinks,
        _ => Change::Same,
    }
}

fn is_bytes(of: &DataType) -> bool {
    matches!(of, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// The bytes of each value, if all values have as many.
fn width(of: &DataType) -> Option<u64> {
    match of {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(n) => u64::try_from(*n).ok(),
        DataType::FixedSizeList(item, n) => {
            Some(width(item.data_type())?.saturating_mul(u64::try_from(*n).ok()?))
        }
        other => other.primitive_width().map(|n| n as u64),
    }
}
