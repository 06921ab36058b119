//! Lossless casts of columns that users' functions return to the types of the stage's schema.
//!
//! A value passes if it is the same in the other type: an integer as a float, a narrow integer as a wide one, a list of
//! varying length whose lists have one length. Between floats the last digits may be lost, as in all arithmetic, but a
//! finite value never becomes infinite. Everything else is an error that names the row: values are never truncated,
//! wrapped around or read from text. A column of the right type is not copied. Other columns are checked as columns, not
//! value by value.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{cast, take};
use arrow::util::display::array_value_to_string;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, ListArray, OffsetSizeTrait, StructArray,
    UInt64Array, make_array, new_null_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};
use caju_types::Error;

use crate::typename::type_name;

/// Why a column cannot be cast.
#[derive(Debug)]
pub(super) struct CastError {
    /// The first row whose value has no equal in the other type.
    pub(super) row: usize,
    /// The value, for messages.
    pub(super) why: String,
    /// A type that holds both, as `schema=` names it, if there is one.
    pub(super) instead: Option<String>,
}

/// Casts a column to the type of the field `to`.
///
/// # Errors
/// The first row whose value has no equal there.
pub(super) fn cast_column(made: &ArrayRef, from: &Field, to: &Field) -> Result<ArrayRef, CastError> {
    if let Some(nulls) = made.logical_nulls().filter(|n| n.null_count() > 0) {
        let row = nulls.iter().position(|valid| !valid).unwrap_or(0);
        if !to.is_nullable() {
            return Err(CastError { row, why: "None, which has no place there".to_string(), instead: None });
        }
        if nulls.null_count() == made.len() {
            return Ok(new_null_array(to.data_type(), made.len()));
        }
    }
    if made.is_empty() {
        return Ok(new_null_array(to.data_type(), 0));
    }
    if from.data_type() == to.data_type() && shape(from) == shape(to) {
        return Ok(Arc::clone(made));
    }
    match (from.data_type(), to.data_type()) {
        (DataType::FixedSizeList(item, _), DataType::FixedSizeList(into, n)) if dims(from) == dims(to) => {
            let list = made.as_fixed_size_list();
            let size = dims(from).iter().product::<usize>().max(1);
            let values = cast_column(list.values(), item, into).map_err(|e| e.of_list(|at| at / size, to))?;
            let list = FixedSizeListArray::try_new_with_length(
                Arc::clone(into),
                *n,
                values,
                list.nulls().cloned(),
                list.len(),
            );
            Ok(Arc::new(list.map_err(|e| broken(&e))?))
        }
        (DataType::FixedSizeList(..), DataType::FixedSizeList(..)) => {
            let one_more = dims(from).get(1..) == dims(to).get(1..);
            Err(CastError {
                row: made.nulls().and_then(first_valid).unwrap_or(0),
                why: format!("the shape {:?}", dims(from)),
                instead: one_more.then(|| format!("list of {}", type_name(&inside(to)))),
            })
        }
        (DataType::List(_), DataType::FixedSizeList(..)) if extension(to).is_none_or(|e| e == TENSOR) => {
            lengths(made, from, to)
        }
        (DataType::FixedSizeList(..), DataType::List(_) | DataType::LargeList(_)) => {
            let (list, field) = peeled(made, from)?;
            cast_column(&list, &field, to).map_err(|e| CastError { instead: None, ..e })
        }
        (DataType::List(item), DataType::List(into)) => lists::<i32>(made.as_list(), item, into, to),
        (DataType::List(item), DataType::LargeList(into)) => lists::<i64>(made.as_list(), item, into, to),
        (DataType::Struct(_), DataType::Struct(_)) => structs(made, from, to),
        (_, DataType::Dictionary(_, value)) => {
            let plain = Field::new(to.name(), value.as_ref().clone(), true);
            cast(&cast_column(made, from, &plain)?, to.data_type()).map_err(|e| broken(&e))
        }
        (a, b) => single(made, a, b).map_err(|row| CastError {
            row,
            why: shown(made, row, b),
            instead: wider(a, b).map(str::to_string),
        }),
    }
}

const TENSOR: &str = "arrow.fixed_shape_tensor";

impl CastError {
    /// The error of the list that holds the value.
    fn of_list(self, row: impl Fn(usize) -> usize, list: &Field) -> Self {
        let written = |item: String| match list.data_type() {
            DataType::FixedSizeList(..) => {
                let dims: Vec<String> = dims(list).iter().map(ToString::to_string).collect();
                format!("{item}[{}]", dims.join(", "))
            }
            _ => format!("list of {item}"),
        };
        Self { row: row(self.row), why: self.why, instead: self.instead.map(written) }
    }
}

fn broken(e: &ArrowError) -> CastError {
    CastError { row: 0, why: Error::internal(e.to_string()).to_string(), instead: None }
}

// ---- lists and structs -----------------------------------------------------------------------------------------

fn extension(field: &Field) -> Option<&str> {
    field.metadata().get("ARROW:extension:name").map(String::as_str)
}

/// The shape of a tensor, from the metadata of its field.
fn shape(field: &Field) -> Option<Vec<usize>> {
    let metadata = field.metadata().get("ARROW:extension:metadata")?;
    let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
    metadata.get("shape")?.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect()
}

/// The dimensions of a fixed-size list; a tensor may have several.
fn dims(field: &Field) -> Vec<usize> {
    shape(field).unwrap_or_else(|| match field.data_type() {
        DataType::FixedSizeList(_, n) => vec![usize::try_from(*n).unwrap_or(0)],
        _ => Vec::new(),
    })
}

/// The field of the items of a tensor's first dimension.
fn inside(field: &Field) -> Field {
    let DataType::FixedSizeList(item, _) = field.data_type() else { return field.clone() };
    match dims(field).split_first() {
        Some((_, rest)) if !rest.is_empty() => {
            let length = i32::try_from(rest.iter().product::<usize>()).unwrap_or(i32::MAX);
            let metadata = [
                ("ARROW:extension:name".to_string(), TENSOR.to_string()),
                ("ARROW:extension:metadata".to_string(), serde_json::json!({ "shape": rest }).to_string()),
            ];
            Field::new("item", DataType::FixedSizeList(Arc::clone(item), length), true)
                .with_metadata(metadata.into())
        }
        _ => item.as_ref().clone(),
    }
}

/// A tensor as a list of the items of its first dimension.
fn peeled(made: &ArrayRef, from: &Field) -> Result<(ArrayRef, Field), CastError> {
    let list = made.as_fixed_size_list();
    let item = inside(from);
    let first = dims(from).first().copied().unwrap_or(0);
    let values = match item.data_type() {
        DataType::FixedSizeList(leaf, n) if dims(from).len() > 1 => {
            let inner = FixedSizeListArray::try_new_with_length(
                Arc::clone(leaf),
                *n,
                Arc::clone(list.values()),
                None,
                list.len() * first,
            );
            Arc::new(inner.map_err(|e| broken(&e))?) as ArrayRef
        }
        _ => Arc::clone(list.values()),
    };
    let offsets = OffsetBuffer::<i32>::from_lengths(std::iter::repeat_n(first, list.len()));
    let item = Arc::new(item);
    let out = ListArray::try_new(Arc::clone(&item), offsets, values, list.nulls().cloned())
        .map_err(|e| broken(&e))?;
    Ok((Arc::new(out), Field::new(from.name(), DataType::List(item), true)))
}

fn lists<O: OffsetSizeTrait>(
    made: &ListArray,
    item: &Field,
    into: &Arc<Field>,
    to: &Field,
) -> Result<ArrayRef, CastError> {
    let offsets = made.value_offsets();
    let start = usize::try_from(offsets[0]).unwrap_or(0);
    let at = |n: i32| usize::try_from(n).unwrap_or(0).saturating_sub(start);
    let values = cast_column(&made.values().slice(start, at(offsets[offsets.len() - 1])), item, into)
        .map_err(|e| e.of_list(|v| offsets.partition_point(|o| at(*o) <= v).saturating_sub(1), to))?;
    let offsets: ScalarBuffer<O> = offsets.iter().map(|o| O::usize_as(at(*o))).collect();
    let list = GenericListArray::<O>::try_new(
        Arc::clone(into),
        OffsetBuffer::new(offsets),
        values,
        made.nulls().cloned(),
    );
    Ok(Arc::new(list.map_err(|e| broken(&e))?))
}

/// Lists of varying length as lists of one length.
fn lengths(made: &ArrayRef, from: &Field, to: &Field) -> Result<ArrayRef, CastError> {
    let (list, item) = (made.as_list::<i32>(), inside(to));
    let (DataType::List(made_item), DataType::FixedSizeList(leaf, n)) = (from.data_type(), to.data_type())
    else {
        return Err(broken(&ArrowError::CastError("no list, or none of fixed size".to_string())));
    };
    let length = dims(to).first().copied().unwrap_or(0);
    for row in (0..list.len()).filter(|row| list.is_valid(*row)) {
        let found = usize::try_from(list.value_length(row)).unwrap_or(0);
        if found != length {
            let instead = Some(format!("list of {}", type_name(&item)));
            return Err(CastError { row, why: format!("a list of {found} values"), instead });
        }
    }
    // A null row has no values; a fixed-size list needs some in its place.
    let values = match list.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => {
            let start = usize::try_from(list.value_offsets()[0]).unwrap_or(0);
            list.values().slice(start, list.len() * length)
        }
        Some(nulls) => {
            let any = list
                .value_offsets()
                .iter()
                .zip(nulls)
                .find(|(_, valid)| *valid)
                .map_or(0, |(start, _)| *start);
            let places = list.value_offsets().iter().zip(nulls).flat_map(|(start, valid)| {
                let start = u64::try_from(if valid { *start } else { any }).unwrap_or(0);
                start..start + length as u64
            });
            take(list.values(), &UInt64Array::from_iter_values(places), None).map_err(|e| broken(&e))?
        }
    };
    let values =
        cast_column(&values, made_item, &item).map_err(|e| e.of_list(|at| at / length.max(1), to))?;
    let flat = match values.as_fixed_size_list_opt() {
        Some(inner) if dims(to).len() > 1 => Arc::clone(inner.values()),
        _ => values,
    };
    let out = FixedSizeListArray::try_new_with_length(
        Arc::clone(leaf),
        *n,
        flat,
        list.nulls().cloned(),
        list.len(),
    );
    Ok(Arc::new(out.map_err(|e| broken(&e))?))
}

fn structs(made: &ArrayRef, from: &Field, to: &Field) -> Result<ArrayRef, CastError> {
    let (DataType::Struct(have), DataType::Struct(want)) = (from.data_type(), to.data_type()) else {
        return Err(broken(&ArrowError::CastError("no struct".to_string())));
    };
    let made = made.as_struct();
    let names = |fields: &arrow_schema::Fields| {
        let mut names: Vec<String> = fields.iter().map(|f| f.name().clone()).collect();
        names.sort();
        names
    };
    if names(have) != names(want) {
        let why = format!("a dict of {:?} in place of {:?}", names(have), names(want));
        return Err(CastError { row: made.nulls().and_then(first_valid).unwrap_or(0), why, instead: None });
    }
    let mut columns = Vec::with_capacity(want.len());
    for field in want {
        let (i, own) =
            have.find(field.name()).ok_or_else(|| broken(&ArrowError::SchemaError(field.name().clone())))?;
        let casted = cast_column(made.column(i), own, field);
        columns.push(casted.map_err(|e| CastError {
            why: format!("{} in `{}`", e.why, field.name()),
            instead: None,
            ..e
        })?);
    }
    let out = StructArray::try_new_with_length(want.clone(), columns, made.nulls().cloned(), made.len());
    Ok(Arc::new(out.map_err(|e| broken(&e))?))
}

fn first_valid(nulls: &NullBuffer) -> Option<usize> {
    nulls.iter().position(|valid| valid)
}

// ---- single values ---------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Number,
    Text,
    Bytes,
    Time,
    Span,
}

fn family(data_type: &DataType) -> Option<Family> {
    use DataType as T;
    match data_type {
        T::Boolean | T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => {
            Some(Family::Number)
        }
        t if t.is_numeric() => Some(Family::Number),
        T::Utf8 | T::LargeUtf8 | T::Utf8View => Some(Family::Text),
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => Some(Family::Bytes),
        T::Timestamp(..) | T::Date32 | T::Date64 => Some(Family::Time),
        T::Duration(_) => Some(Family::Span),
        _ => None,
    }
}

/// Casts scalar values. The error is the first row whose value has no equal in the other type.
fn single(made: &ArrayRef, from: &DataType, to: &DataType) -> Result<ArrayRef, usize> {
    let first = made.logical_nulls().as_ref().and_then(first_valid).unwrap_or(0);
    if family(from).is_none() || family(from) != family(to) {
        return Err(first);
    }
    // A time zone concerns the display alone: the stored instant is the same.
    let naive = |t: &DataType| match t {
        DataType::Timestamp(unit, Some(_)) => Some(DataType::Timestamp(*unit, None)),
        _ => None,
    };
    if naive(from).is_some() || naive(to).is_some() {
        let (plain, into) =
            (naive(from).unwrap_or_else(|| from.clone()), naive(to).unwrap_or_else(|| to.clone()));
        let plain_made = retyped(made, &plain).ok_or(first)?;
        let fitted = if plain == into { plain_made } else { single(&plain_made, &plain, &into)? };
        return retyped(&fitted, to).ok_or(first);
    }
    let out = cast(made, to).map_err(|_| first)?;
    let lost = if from.is_floating() && to.is_floating() {
        lost_floats(made, &out)
    } else {
        let back = cast(&out, from).map_err(|_| first)?;
        if from.is_floating() { lost_floats_exactly(made, &back) } else { lost(made, &back) }
    };
    match lost {
        Ok(None) => Ok(out),
        Ok(Some(row)) => Err(row),
        Err(_) => Err(first),
    }
}

fn retyped(array: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    let data: ArrayData = array.to_data();
    data.into_builder().data_type(to.clone()).build().ok().map(make_array)
}

fn lost(made: &ArrayRef, back: &ArrayRef) -> Result<Option<usize>, ArrowError> {
    let different = distinct(made, back)?;
    Ok(different.values().set_indices().next())
}

/// The first float that is not the same after the round trip.
fn lost_floats_exactly(made: &ArrayRef, back: &ArrayRef) -> Result<Option<usize>, ArrowError> {
    let (made, back) = (cast(made, &DataType::Float64)?, cast(back, &DataType::Float64)?);
    let pairs = made.as_primitive::<Float64Type>().iter().zip(back.as_primitive::<Float64Type>().iter());
    Ok(pairs.enumerate().find(|(_, (a, b))| a != b).map(|(row, _)| row))
}

/// The first finite float that became infinite.
fn lost_floats(made: &ArrayRef, out: &ArrayRef) -> Result<Option<usize>, ArrowError> {
    let (made, out) = (cast(made, &DataType::Float64)?, cast(out, &DataType::Float64)?);
    let pairs = made.as_primitive::<Float64Type>().iter().zip(out.as_primitive::<Float64Type>().iter());
    let lost =
        |a: Option<f64>, b: Option<f64>| a.is_some_and(f64::is_finite) && !b.is_some_and(f64::is_finite);
    Ok(pairs.enumerate().find(|(_, (a, b))| lost(*a, *b)).map(|(row, _)| row))
}

/// A type that holds both, as `schema=` names it.
fn wider(a: &DataType, b: &DataType) -> Option<&'static str> {
    use DataType as T;
    if family(a) != family(b) {
        return None;
    }
    Some(match (a, b) {
        (a, b) if family(a) == Some(Family::Number) => match (a, b) {
            (a, b) if a.is_floating() || b.is_floating() => "float64",
            (T::UInt64, _) => "uint64",
            (a, b) if a.is_integer() || b.is_integer() => "int64",
            _ => return None,
        },
        (T::Timestamp(TimeUnit::Nanosecond, _), _) => return None,
        (T::Timestamp(..) | T::Date32, _) => "timestamp",
        (T::Duration(TimeUnit::Second | TimeUnit::Millisecond | TimeUnit::Microsecond), _) => "duration",
        _ => return None,
    })
}

fn shown(made: &ArrayRef, row: usize, to: &DataType) -> String {
    let text = array_value_to_string(made, row).unwrap_or_default();
    let short: String = text.chars().take(40).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    match (family(made.data_type()), to.is_nested()) {
        (Some(Family::Text), _) => format!("\"{short}{more}\""),
        (Some(_), _) => format!("{short}{more}"),
        _ => "the value".to_string(),
    }
}

#[cfg(test)]
#[path = "cast_tests.rs"]
mod tests;
