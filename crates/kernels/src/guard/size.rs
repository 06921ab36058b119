//! The bytes of values in arrays, from which the sizes of results are predicted.
//!
//! All sums saturate: `u64::MAX` exceeds every budget.

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{ArrowNativeType, ByteArrayType, ByteViewType, DataType, Int64Type};
use datafusion_common::DataFusionError;
use datafusion_expr::ColumnarValue;

/// The least bytes that a value takes in addition to its content: an offset, a null bit, a view.
const OVERHEAD_BYTES: u64 = 8;

/// One argument of a call: a value per row, or one for all of them.
pub(super) struct Arg {
    pub(super) array: ArrayRef,
    scalar: bool,
}

impl Arg {
    pub(super) fn new(value: &ColumnarValue) -> Result<Self, DataFusionError> {
        let scalar = matches!(value, ColumnarValue::Scalar(_));
        Ok(Self { array: value.to_array(1)?, scalar })
    }

    /// The argument with another array.
    pub(super) fn with(&self, array: ArrayRef) -> Result<Self, DataFusionError> {
        Ok(Self { array, scalar: self.scalar })
    }

    fn at(&self, row: usize) -> usize {
        if self.scalar { 0 } else { row }
    }

    /// The bytes of the value of a row.
    pub(super) fn bytes(&self, row: usize) -> u64 {
        let i = self.at(row);
        range_bytes(&self.array, i, i + 1)
    }

    /// The bytes of the values of `rows` rows.
    pub(super) fn total(&self, rows: usize) -> u64 {
        if self.scalar {
            return self.bytes(0).saturating_mul(rows as u64);
        }
        range_bytes(&self.array, 0, self.array.len())
    }

    /// The number of values in a row's list, including those of nested lists.
    pub(super) fn leaves(&self, row: usize) -> u64 {
        let i = self.at(row);
        leaves(&self.array, i, i + 1)
    }

    /// The most characters of one of the numbers or times in a list as text. Floats are written without exponents.
    pub(super) fn number_text(&self) -> u64 {
        let mut of = self.array.data_type();
        while let DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) = of
        {
            of = item.data_type();
        }
        match of {
            DataType::Float64 => 330,
            DataType::Float32 => 60,
            DataType::Decimal256(..) => 80,
            _ => 40,
        }
    }

    /// The length of a row's list; 0 for any other type.
    pub(super) fn list_len(&self, row: usize) -> u64 {
        let i = self.at(row);
        child(&self.array, i, i + 1).map_or(0, |(_, from, to)| to.saturating_sub(from) as u64)
    }

    /// The argument as integers; null for any other value.
    pub(super) fn ints(&self) -> Result<Ints, DataFusionError> {
        let array = cast(&self.array, &DataType::Int64)?;
        Ok(Ints { array: array.as_primitive::<Int64Type>().clone(), scalar: self.scalar })
    }

    /// The bytes of the longest value, without the overhead.
    pub(super) fn longest(&self) -> u64 {
        let longest = (0..self.array.len()).map(|i| range_bytes(&self.array, i, i + 1)).max();
        longest.unwrap_or(0).saturating_sub(self.overhead())
    }

    /// The bytes that a value takes in addition to its content.
    pub(super) fn overhead(&self) -> u64 {
        if fixed_width(self.array.data_type()) > 0 { 0 } else { OVERHEAD_BYTES }
    }

    /// Whether the values are text.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.array.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    }

    /// Whether there is one value for all rows.
    pub(super) fn is_scalar(&self) -> bool {
        self.scalar
    }

    /// Whether all text is ASCII, so that a character is a byte.
    pub(super) fn is_ascii(&self) -> bool {
        match self.array.data_type() {
            DataType::Utf8 => self.array.as_string::<i32>().is_ascii(),
            DataType::LargeUtf8 => self.array.as_string::<i64>().is_ascii(),
            DataType::Utf8View => self.array.as_string_view().is_ascii(),
            _ => false,
        }
    }

    /// The bytes of the value of a row, without the overhead.
    pub(super) fn text_bytes(&self, row: usize) -> u64 {
        self.bytes(row).saturating_sub(self.overhead())
    }

    /// The text of a row, where the argument is text.
    pub(super) fn text(&self, row: usize) -> Option<&str> {
        let i = self.at(row);
        if self.array.is_null(i) {
            return None;
        }
        match self.array.data_type() {
            DataType::Utf8 => Some(self.array.as_string::<i32>().value(i)),
            DataType::LargeUtf8 => Some(self.array.as_string::<i64>().value(i)),
            DataType::Utf8View => Some(self.array.as_string_view().value(i)),
            _ => None,
        }
    }
}

/// Integers, one per row or one for all.
pub(super) struct Ints {
    array: Int64Array,
    scalar: bool,
}

impl Ints {
    pub(super) fn get(&self, row: usize) -> Option<i64> {
        let i = if self.scalar { 0 } else { row };
        self.array.is_valid(i).then(|| self.array.value(i))
    }

    /// The value as a count: 0 for null and negative numbers.
    pub(super) fn count(&self, row: usize) -> u64 {
        self.get(row).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
    }
}

/// The bytes of any value of a fixed-size type, including null; 0 for types of varying size.
pub(crate) fn fixed_width(t: &DataType) -> u64 {
    match t {
        DataType::FixedSizeBinary(n) => u64::try_from(*n).unwrap_or(0),
        DataType::FixedSizeList(item, n) => {
            fixed_width(item.data_type()).max(1).saturating_mul(u64::try_from(*n).unwrap_or(0))
        }
        DataType::Struct(fields) => {
            fields.iter().fold(0, |a, f| a.saturating_add(fixed_width(f.data_type())))
        }
        DataType::Dictionary(key, _) => fixed_width(key),
        t => t.primitive_width().map_or(0, |n| n as u64),
    }
}

/// The bytes of a fixed-size value above which its type is wide: even null takes them in every row.
pub(super) const WIDE_BYTES: u64 = 4 << 10;

pub(super) fn is_wide(t: &DataType) -> bool {
    fixed_width(t) > WIDE_BYTES
}

/// The bytes of the values `from..to` of an array.
fn range_bytes(array: &ArrayRef, from: usize, to: usize) -> u64 {
    let n = to.saturating_sub(from) as u64;
    let content = match array.data_type() {
        DataType::Utf8 => offsets::<arrow::datatypes::Utf8Type>(array, from, to),
        DataType::LargeUtf8 => offsets::<arrow::datatypes::LargeUtf8Type>(array, from, to),
        DataType::Binary => offsets::<arrow::datatypes::BinaryType>(array, from, to),
        DataType::LargeBinary => offsets::<arrow::datatypes::LargeBinaryType>(array, from, to),
        DataType::Utf8View => views::<arrow::datatypes::StringViewType>(array, from, to),
        DataType::BinaryView => views::<arrow::datatypes::BinaryViewType>(array, from, to),
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            columns.fold(0, |a: u64, c| a.saturating_add(range_bytes(c, from, to)))
        }
        // A function may expand a dictionary to its values.
        DataType::Dictionary(..) => {
            let values = array.as_any_dictionary().values();
            let longest = (0..values.len()).map(|i| range_bytes(values, i, i + 1)).max().unwrap_or(0);
            longest.saturating_mul(n)
        }
        t if t.primitive_width().is_some() => fixed_width(t).saturating_mul(n),
        DataType::FixedSizeBinary(_) => fixed_width(array.data_type()).saturating_mul(n),
        DataType::Null | DataType::Boolean => n,
        _ => match child(array, from, to) {
            Some((values, from, to)) => range_bytes(values, from, to),
            None => array.get_array_memory_size() as u64,
        },
    };
    let overhead = if fixed_width(array.data_type()) > 0 { 0 } else { OVERHEAD_BYTES.saturating_mul(n) };
    content.saturating_add(overhead)
}

fn offsets<T: ByteArrayType>(array: &ArrayRef, from: usize, to: usize) -> u64 {
    let offsets = array.as_bytes::<T>().value_offsets();
    (offsets[to].as_usize() - offsets[from].as_usize()) as u64
}

fn views<T: ByteViewType>(array: &ArrayRef, from: usize, to: usize) -> u64 {
    // The length is the low word of a view.
    let low = |v: &u128| u64::try_from(v & u128::from(u32::MAX)).unwrap_or(0);
    array.as_byte_view::<T>().views()[from..to].iter().map(low).sum()
}

/// The values of the lists `from..to` of an array of lists.
fn child(array: &ArrayRef, from: usize, to: usize) -> Option<(&ArrayRef, usize, usize)> {
    match array.data_type() {
        DataType::List(_) => {
            let l = array.as_list::<i32>();
            Some((l.values(), l.value_offsets()[from].as_usize(), l.value_offsets()[to].as_usize()))
        }
        DataType::LargeList(_) => {
            let l = array.as_list::<i64>();
            Some((l.values(), l.value_offsets()[from].as_usize(), l.value_offsets()[to].as_usize()))
        }
        DataType::FixedSizeList(_, n) => {
            let n = usize::try_from(*n).unwrap_or(0);
            Some((array.as_fixed_size_list().values(), from * n, to * n))
        }
        _ => None,
    }
}

fn leaves(array: &ArrayRef, from: usize, to: usize) -> u64 {
    match child(array, from, to) {
        Some((values, from, to)) => leaves(values, from, to),
        None => to.saturating_sub(from) as u64,
    }
}
