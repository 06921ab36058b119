//! Casts that ask the budget first, and casts of which no finite number becomes infinite.
//!
//! Arrow casts `1e39` to the infinite float32, and reads the text `1e399` as the infinite float64, without an error. Casts to
//! integers and decimals fail where a value does not fit. So do casts to floats here: infinite and not-a-number values pass,
//! and a finite value that became infinite is an error of its row, or null for `try_cast`.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, make_array};
use arrow::compute::{cast, nullif};
use arrow::datatypes::{DataType, Field, FieldRef, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;
use caju_runtime::budget;
use caju_types::Error;
use datafusion_common::format::DEFAULT_CAST_OPTIONS;
use datafusion_common::{DataFusionError, ScalarValue, internal_err};
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use super::size::{fixed_width, is_wide};
use crate::kernel::Fault;

/// The keys of a field's metadata that name an extension type: a cast gives a plain type.
const EXTENSION_KEYS: [&str; 2] = ["ARROW:extension:name", "ARROW:extension:metadata"];

/// Whether a cast needs [`GuardedCast`].
pub(super) fn needs_guard(from: &DataType, to: &DataType) -> bool {
    is_wide(to) || may_overflow(from, to)
}

/// Whether a finite number in a value of type `from` may become infinite in one of type `to`.
fn may_overflow(from: &DataType, to: &DataType) -> bool {
    use DataType as T;
    let scaled_up = |t: &DataType| match t {
        T::Decimal32(_, scale) | T::Decimal64(_, scale) | T::Decimal128(_, scale) => *scale < 0,
        T::Decimal256(_, scale) => *scale < 0,
        _ => false,
    };
    let text = |t: &DataType| matches!(t, T::Utf8 | T::LargeUtf8 | T::Utf8View);
    match (from, to) {
        (T::Dictionary(_, from), to) => may_overflow(from, to),
        (from, T::Dictionary(_, to)) => may_overflow(from, to),
        (T::RunEndEncoded(_, from), to) => may_overflow(from.data_type(), to),
        (from, T::RunEndEncoded(_, to)) => may_overflow(from, to.data_type()),
        (_, T::Float16) => !matches!(from, T::Null | T::Boolean | T::Int8 | T::UInt8 | T::Int16 | T::Float16),
        (_, T::Float32) => text(from) || scaled_up(from) || matches!(from, T::Float64 | T::Decimal256(..)),
        (_, T::Float64) => text(from) || scaled_up(from),
        (T::Struct(have), T::Struct(want)) => {
            // Fields are cast by name, or by their places.
            want.iter().any(|w| have.iter().any(|h| may_overflow(h.data_type(), w.data_type())))
        }
        (from, to) => match (item(from), item(to)) {
            (Some(from), Some(to)) => may_overflow(from, to),
            (None, Some(to)) => may_overflow(from, to),
            _ => false,
        },
    }
}

fn item(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => Some(item.data_type()),
        _ => None,
    }
}

/// A cast to a wide type, of which even null takes many bytes, or to a type of floats that are too narrow for some values.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct GuardedCast {
    to: FieldRef,
    /// Whether values that cannot be cast become null.
    null_if_not: bool,
    signature: Signature,
}

impl GuardedCast {
    pub(super) fn new(to: &FieldRef, null_if_not: bool) -> Self {
        Self { to: Arc::clone(to), null_if_not, signature: Signature::any(1, Volatility::Immutable) }
    }

    /// The cast values without finite ones that became infinite: null in their place, or an error.
    fn without_overflows(&self, from: &ArrayRef, out: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
        // As text a number keeps its range. The text has the structure of the result.
        let text = self
            .cast(&ColumnarValue::Array(Arc::clone(from)), &replaced(self.to.data_type(), &DataType::Utf8))?;
        let text = text.to_array(from.len())?;
        let plain = cast(out, &plain(self.to.data_type()))?;
        if self.null_if_not {
            let nulled = nulled(&plain.to_data(), &text.to_data())?;
            return Ok(cast(&make_array(nulled), self.to.data_type())?);
        }
        match first_overflow(&plain, &text) {
            None => Ok(Arc::clone(out)),
            Some(row) => {
                let value = match text.as_string_opt::<i32>() {
                    Some(text) => text.value(row).chars().take(MAX_SHOWN).collect(),
                    None => "a value".to_owned(),
                };
                let what = format!("{value} does not fit {}; cast it to a wider type", self.to.data_type());
                Err(Fault::at(row, Error::invalid(what)).into())
            }
        }
    }

    fn cast(&self, value: &ColumnarValue, to: &DataType) -> Result<ColumnarValue, DataFusionError> {
        let mut options = DEFAULT_CAST_OPTIONS;
        options.safe = self.null_if_not;
        value.cast_to(to, Some(&options))
    }
}

/// The most characters of a value in messages.
const MAX_SHOWN: usize = 40;

impl ScalarUDFImpl for GuardedCast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(self.to.data_type().clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let nullable = self.null_if_not || args.arg_fields.iter().any(|f| f.is_nullable());
        let mut metadata = args.arg_fields.first().map(|f| f.metadata().clone()).unwrap_or_default();
        EXTENSION_KEYS.iter().for_each(|key| drop(metadata.remove(*key)));
        let field = Field::new(self.name(), self.to.data_type().clone(), nullable);
        Ok(Arc::new(field.with_metadata(metadata)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let to = self.to.data_type();
        if is_wide(to) {
            let bytes = fixed_width(to).saturating_mul(args.number_rows.max(1) as u64);
            budget::reserve(bytes, format_args!("a cast to values of {} bytes each", fixed_width(to)))
                .map_err(Fault::from)?;
        }
        let Some(value) = args.args.first() else { return internal_err!("a cast of no value") };
        let out = self.cast(value, to)?;
        let array = out.to_array(1)?;
        if !may_overflow(&value.data_type(), to) || !has_infinite(&array.to_data()) {
            return Ok(out);
        }
        let array = self.without_overflows(&value.to_array(1)?, &array)?;
        match out {
            ColumnarValue::Scalar(_) => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            ColumnarValue::Array(_) => Ok(ColumnarValue::Array(array)),
        }
    }
}

/// A type with every type of floats replaced, and without dictionaries and run-end encodings.
fn replaced(of: &DataType, floats: &DataType) -> DataType {
    use DataType as T;
    let field = |f: &FieldRef| Arc::new(f.as_ref().clone().with_data_type(replaced(f.data_type(), floats)));
    match of {
        T::Float16 | T::Float32 | T::Float64 if *floats != T::Null => floats.clone(),
        T::Dictionary(_, value) => replaced(value, floats),
        T::RunEndEncoded(_, value) => replaced(value.data_type(), floats),
        T::List(f) => T::List(field(f)),
        T::LargeList(f) => T::LargeList(field(f)),
        T::ListView(f) => T::ListView(field(f)),
        T::LargeListView(f) => T::LargeListView(field(f)),
        T::FixedSizeList(f, n) => T::FixedSizeList(field(f), *n),
        T::Map(f, sorted) => T::Map(field(f), *sorted),
        T::Struct(fields) => T::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

/// A type without dictionaries and run-end encodings.
fn plain(of: &DataType) -> DataType {
    replaced(of, &DataType::Null)
}

/// Which floats are infinite, also under nulls; none for other types.
fn infinite(values: &ArrayRef) -> Option<BooleanArray> {
    macro_rules! infinite {
        ($t:ty) => {
            values.as_primitive::<$t>().values().iter().map(|v| Some(v.is_infinite())).collect()
        };
    }
    Some(match values.data_type() {
        DataType::Float16 => infinite!(Float16Type),
        DataType::Float32 => infinite!(Float32Type),
        DataType::Float64 => infinite!(Float64Type),
        _ => return None,
    })
}

fn has_infinite(data: &ArrayData) -> bool {
    // Without a branch per value this is vectorised.
    macro_rules! any {
        ($t:ty) => {
            make_array(data.clone())
                .as_primitive::<$t>()
                .values()
                .iter()
                .fold(false, |any, v| any | v.is_infinite())
        };
    }
    match data.data_type() {
        DataType::Float16 => any!(Float16Type),
        DataType::Float32 => any!(Float32Type),
        DataType::Float64 => any!(Float64Type),
        _ => data.child_data().iter().any(has_infinite),
    }
}

/// Whether a text is not an infinite number.
fn is_finite(text: &str) -> bool {
    let text = text.trim();
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    !["inf", "infinity"].iter().any(|infinite| text.eq_ignore_ascii_case(infinite))
}

/// Which floats are infinite although their text is not; none for other types.
fn overflows(values: &ArrayRef, text: &ArrayRef) -> Option<BooleanArray> {
    let infinite = infinite(values)?;
    let text = text.as_string_opt::<i32>()?;
    let overflowed = |i: usize| infinite.value(i) && values.is_valid(i) && is_finite(text.value(i));
    Some((0..values.len()).map(|i| Some(overflowed(i))).collect())
}

/// The first row with a float that is infinite although its text is not.
fn first_overflow(values: &ArrayRef, text: &ArrayRef) -> Option<usize> {
    if let Some(overflows) = overflows(values, text) {
        return overflows.values().set_indices().next();
    }
    (0..values.len()).find(|&i| {
        let pair = |of: &ArrayRef| value(of, i);
        values.is_valid(i)
            && match values.data_type() {
                DataType::Struct(_) => {
                    let (values, text) = (values.as_struct().columns(), text.as_struct().columns());
                    let mut fields = values.iter().zip(text);
                    fields.any(|(v, t)| first_overflow(&v.slice(i, 1), &t.slice(i, 1)).is_some())
                }
                _ => match (pair(values), pair(text)) {
                    (Some(values), Some(text)) => first_overflow(&values, &text).is_some(),
                    _ => false,
                },
            }
    })
}

/// The items of a list; none for other types.
fn value(of: &ArrayRef, i: usize) -> Option<ArrayRef> {
    Some(match of.data_type() {
        DataType::List(_) => of.as_list::<i32>().value(i),
        DataType::LargeList(_) => of.as_list::<i64>().value(i),
        DataType::ListView(_) => of.as_list_view::<i32>().value(i),
        DataType::LargeListView(_) => of.as_list_view::<i64>().value(i),
        DataType::FixedSizeList(..) => of.as_fixed_size_list().value(i),
        DataType::Map(..) => Arc::new(of.as_map().value(i)),
        _ => return None,
    })
}

/// The values with null in place of floats that are infinite although their text is not.
fn nulled(values: &ArrayData, text: &ArrayData) -> Result<ArrayData, ArrowError> {
    let array = make_array(values.clone());
    if let Some(overflows) = overflows(&array, &make_array(text.clone())) {
        return Ok(nullif(&array, &overflows)?.to_data());
    }
    let children = values.child_data().iter().zip(text.child_data());
    let children = children.map(|(v, t)| nulled(v, t)).collect::<Result<Vec<_>, _>>()?;
    values.clone().into_builder().child_data(children).build()
}
