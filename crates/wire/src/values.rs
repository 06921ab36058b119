//! The numbers of a column that lies in several parts.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, make_array};
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use caju_runtime::{copy_parts, joined_parts};

/// The values of a column of numbers, or of lists of fixed size of them such as tensors, without nulls: plain memory, which can be
/// copied on several threads.
#[derive(Debug)]
pub struct ColumnValues {
    data_type: DataType,
    /// The type of a value.
    number: DataType,
    parts: Vec<Buffer>,
}

impl ColumnValues {
    /// The values of a column from its parts; `None` for other columns, and without a part.
    pub fn of(arrays: &[&ArrayRef]) -> Option<Self> {
        let data_type = arrays.first()?.data_type().clone();
        let mut number = &data_type;
        while let DataType::FixedSizeList(item, _) = number {
            number = item.data_type();
        }
        number.primitive_width()?;
        let parts = arrays.iter().map(|array| values_of(array)).collect::<Option<_>>()?;
        Some(Self { number: number.clone(), data_type, parts })
    }

    /// The type of a value.
    pub fn number(&self) -> &DataType {
        &self.number
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Buffer::len).sum()
    }

    /// Copies the values to memory of exactly their size, see [`copy_parts`].
    ///
    /// # Panics
    /// If the size differs.
    pub fn copy_to(&self, to: &mut [u8]) {
        copy_parts(to, &self.slices());
    }

    /// The column as one array; `None` if its rows do not fit one.
    pub fn joined(&self) -> Option<ArrayRef> {
        let width = self.number.primitive_width()?;
        let bytes = self.bytes();
        let buffer = Buffer::from_vec(joined_parts(&self.slices())).slice_with_length(0, bytes);
        let data =
            ArrayData::try_new(self.number.clone(), bytes / width, None, 0, vec![buffer], vec![]).ok()?;
        nested(&self.data_type, make_array(data))
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.parts.iter().map(Buffer::as_slice).collect()
    }
}

/// The memory of the values of an array; `None` if there are nulls.
fn values_of(array: &ArrayRef) -> Option<Buffer> {
    let mut array = ArrayRef::clone(array);
    while let Some(list) = array.as_fixed_size_list_opt() {
        // A list of no numbers has no size that its values could tell.
        let size = usize::try_from(list.value_length()).ok().filter(|size| *size > 0)?;
        if list.null_count() > 0 {
            return None;
        }
        let from = usize::try_from(list.value_offset(0)).ok()?;
        let values = list.values().slice(from, list.len() * size);
        array = values;
    }
    let data = array.to_data();
    let width = data.data_type().primitive_width()?;
    let values = data.buffers().first().filter(|_| data.null_count() == 0)?;
    Some(values.slice_with_length(data.offset() * width, data.len() * width))
}

/// Values in lists of the type.
fn nested(data_type: &DataType, values: ArrayRef) -> Option<ArrayRef> {
    let DataType::FixedSizeList(item, size) = data_type else { return Some(values) };
    let items = nested(item.data_type(), values)?;
    Some(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *size, items, None).ok()?))
}

#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
mod tests {
    use arrow::compute::concat;
    use arrow_array::{Float32Array, Int64Array, StringArray, UInt8Array};
    use arrow_schema::Field;
    use proptest::prelude::*;

    use super::*;

    fn lists(values: ArrayRef, sizes: &[i32], nulls_inside: bool) -> ArrayRef {
        sizes.iter().fold(values, |values, size| {
            let item = Arc::new(Field::new("item", values.data_type().clone(), nulls_inside));
            Arc::new(FixedSizeListArray::try_new(item, *size, values, None).unwrap())
        })
    }

    proptest! {
        #[test]
        fn values_are_joined_as_arrow_joins_them(
            rows in 1usize..40,
            cuts in prop::collection::vec(0usize..40, 0..4),
            sizes in prop::collection::vec(1i32..4, 0..3),
            which in 0..3,
        ) {
            let numbers = rows * sizes.iter().product::<i32>() as usize;
            let values: ArrayRef = match which {
                0 => Arc::new(UInt8Array::from_iter_values((0..numbers).map(|i| i as u8))),
                1 => Arc::new(Float32Array::from_iter_values((0..numbers).map(|i| i as f32))),
                _ => Arc::new(Int64Array::from_iter_values((0..numbers).map(|i| i as i64))),
            };
            let whole = lists(values, &sizes, true);
            let mut at: Vec<usize> = cuts.iter().map(|c| c % (rows + 1)).chain([0, rows]).collect();
            at.sort_unstable();
            let parts: Vec<ArrayRef> = at.windows(2).map(|p| whole.slice(p[0], p[1] - p[0])).collect();
            let parts: Vec<&ArrayRef> = parts.iter().collect();
            let ours = ColumnValues::of(&parts).unwrap();
            let all: Vec<&dyn Array> = parts.iter().map(|p| p.as_ref()).collect();
            prop_assert_eq!(&ours.joined().unwrap(), &concat(&all).unwrap());
            let mut to = vec![0; ours.bytes()];
            ours.copy_to(&mut to);
            prop_assert_eq!(to, ours.slices().concat());
        }
    }

    #[test]
    fn other_columns_have_no_plain_values() {
        let nulls: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let full: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        assert!(ColumnValues::of(&[&full]).is_some());
        // Rows without a null in one part, and with one in the other.
        assert!(ColumnValues::of(&[&full, &nulls]).is_none());
        assert!(ColumnValues::of(&[&texts]).is_none());
        assert!(ColumnValues::of(&[&lists(nulls, &[2], true)]).is_none());
        assert!(ColumnValues::of(&[]).is_none());
    }
}
