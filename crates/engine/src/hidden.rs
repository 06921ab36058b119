//! Values below nulls.
//!
//! In Arrow the fields of a struct that is null, and the items of a list that is null, may have any values. Files of other
//! writers have them, and so may what a user's function returns. Expressions that read a field, and formats that store it, do
//! not agree about them: `st.x` had a value where `st` was null, and none once the rows had been stored. So such values become
//! null, or are left out of the list, before a stage reads them. The field of a struct that the same expression makes null is
//! masked where it is read: `caju_kernels` does that.

use std::sync::Arc;

use arrow::compute::{filter, nullif};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    RecordBatch, StructArray,
};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, FieldRef};
use caju_types::{Error, Result};

/// The same rows, with nothing below their nulls.
///
/// # Errors
/// `DataLoss` for arrays that are not what their types say.
pub(crate) fn without_hidden_values(batch: RecordBatch) -> Result<RecordBatch> {
    if !batch.schema_ref().fields().iter().any(|f| f.data_type().is_nested()) {
        return Ok(batch);
    }
    let made = || -> Result<Option<RecordBatch>, ArrowError> {
        let new = batch.columns().iter().map(changed).collect::<Result<Vec<_>, _>>()?;
        if new.iter().all(Option::is_none) {
            return Ok(None);
        }
        let columns =
            batch.columns().iter().zip(new).map(|(old, new)| new.unwrap_or_else(|| Arc::clone(old)));
        RecordBatch::try_new(batch.schema(), columns.collect()).map(Some)
    };
    match made() {
        Ok(changed) => Ok(changed.unwrap_or(batch)),
        Err(e) => Err(Error::data_loss(format!("a column is not what its type says: {e}"))),
    }
}

/// The array without hidden values; none if it has none.
fn changed(array: &ArrayRef) -> Result<Option<ArrayRef>, ArrowError> {
    match array.data_type() {
        DataType::Struct(_) => changed_struct(array.as_struct()),
        DataType::List(field) => changed_list::<i32>(field, array.as_list()),
        DataType::LargeList(field) => changed_list::<i64>(field, array.as_list()),
        DataType::FixedSizeList(field, size) => changed_fixed(field, *size, array.as_fixed_size_list()),
        DataType::Map(field, ordered) => changed_map(field, *ordered, array.as_map()),
        _ => Ok(None),
    }
}

fn changed_struct(array: &StructArray) -> Result<Option<ArrayRef>, ArrowError> {
    let mut any = false;
    let mut columns = Vec::with_capacity(array.num_columns());
    for column in array.columns() {
        // Its own nulls first: what is below them is hidden, too.
        let masked = hide(column, array.nulls())?;
        let inner = changed(masked.as_ref().unwrap_or(column))?;
        any |= inner.is_some() || masked.is_some();
        columns.push(inner.or(masked).unwrap_or_else(|| Arc::clone(column)));
    }
    if !any {
        return Ok(None);
    }
    let (fields, nulls) = (array.fields().clone(), array.nulls().cloned());
    let made = StructArray::try_new_with_length(fields, columns, nulls, array.len())?;
    Ok(Some(Arc::new(made)))
}

/// The items of a list of variable length, and its offsets.
fn items<O: OffsetSizeTrait>(
    values: &ArrayRef,
    offsets: &OffsetBuffer<O>,
    nulls: Option<&NullBuffer>,
) -> Result<Option<(ArrayRef, OffsetBuffer<O>)>, ArrowError> {
    // Slices of a batch have all values of the whole.
    let (first, last) =
        (offsets.first().map_or(0, |o| o.as_usize()), offsets.last().map_or(0, |o| o.as_usize()));
    let own = values.slice(first, last - first);
    let inner = changed(&own)?;
    let values = inner.as_ref().unwrap_or(&own);
    let is_null = |row: usize| nulls.is_some_and(|n| n.is_null(row));
    let lengths = || offsets.windows(2).map(|ends| (ends[0].as_usize(), ends[1].as_usize()));
    if !lengths().enumerate().any(|(row, (start, end))| end > start && is_null(row)) {
        let lengths = lengths().map(|(start, end)| end - start);
        return Ok(inner.map(|values| (values, OffsetBuffer::from_lengths(lengths))));
    }
    let mut kept = vec![false; values.len()];
    for (row, (start, end)) in lengths().enumerate() {
        kept[start - first..end - first].fill(!is_null(row));
    }
    let kept = BooleanArray::new(BooleanBuffer::from(kept), None);
    let lengths = lengths().enumerate().map(|(row, (start, end))| if is_null(row) { 0 } else { end - start });
    Ok(Some((filter(values, &kept)?, OffsetBuffer::from_lengths(lengths))))
}

fn changed_list<O: OffsetSizeTrait>(
    field: &FieldRef,
    array: &GenericListArray<O>,
) -> Result<Option<ArrayRef>, ArrowError> {
    let Some((values, offsets)) = items(array.values(), array.offsets(), array.nulls())? else {
        return Ok(None);
    };
    let made = GenericListArray::<O>::try_new(Arc::clone(field), offsets, values, array.nulls().cloned())?;
    Ok(Some(Arc::new(made)))
}

fn changed_map(field: &FieldRef, ordered: bool, array: &MapArray) -> Result<Option<ArrayRef>, ArrowError> {
    let entries: ArrayRef = Arc::new(array.entries().clone());
    let Some((entries, offsets)) = items(&entries, array.offsets(), array.nulls())? else { return Ok(None) };
    let entries = entries.as_struct().clone();
    let made = MapArray::try_new(Arc::clone(field), offsets, entries, array.nulls().cloned(), ordered)?;
    Ok(Some(Arc::new(made)))
}

fn changed_fixed(
    field: &FieldRef,
    size: i32,
    array: &FixedSizeListArray,
) -> Result<Option<ArrayRef>, ArrowError> {
    let of_items = array.nulls().map(|n| n.expand(usize::try_from(size).unwrap_or(0)));
    let masked = hide(array.values(), of_items.as_ref())?;
    let inner = changed(masked.as_ref().unwrap_or(array.values()))?;
    let Some(values) = inner.or(masked) else { return Ok(None) };
    let made = FixedSizeListArray::try_new(Arc::clone(field), size, values, array.nulls().cloned())?;
    Ok(Some(Arc::new(made)))
}

/// Values that are null where `nulls` says so, too; none if they all are already.
fn hide(values: &ArrayRef, nulls: Option<&NullBuffer>) -> Result<Option<ArrayRef>, ArrowError> {
    let Some(nulls) = nulls.filter(|n| n.null_count() > 0) else { return Ok(None) };
    // Types without a null buffer of their own have their nulls elsewhere.
    if matches!(values.data_type(), DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..)) {
        return Ok(None);
    }
    let both = NullBuffer::union(values.nulls(), Some(nulls));
    if both.is_some_and(|both| both.null_count() == values.null_count()) {
        return Ok(None);
    }
    let hidden = BooleanArray::new(!nulls.inner(), None);
    nullif(values, &hidden).map(Some)
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{Int64Builder, MapBuilder};
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, ListArray};
    use arrow_schema::Field;

    use super::*;

    fn visible(column: ArrayRef) -> ArrayRef {
        let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
        let shown = without_hidden_values(batch.clone()).unwrap();
        assert_eq!(shown, batch, "equal by Arrow's rules, which do not look below nulls");
        let again = without_hidden_values(shown.clone()).unwrap();
        assert!(Arc::ptr_eq(shown.column(0), again.column(0)), "nothing is left to be changed");
        Arc::clone(shown.column(0))
    }

    fn numbers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(values))
    }

    #[test]
    fn fields_of_null_structs_are_null() {
        let x = Arc::new(Field::new("x", DataType::Int64, true));
        let nulls = NullBuffer::from(vec![false, true, true]);
        let inner = StructArray::new(vec![Arc::clone(&x)].into(), vec![numbers([5, 1, 2])], None);
        let field = Arc::new(Field::new("inner", inner.data_type().clone(), true));
        let outer = StructArray::new(vec![field].into(), vec![Arc::new(inner)], Some(nulls));
        let shown = visible(Arc::new(outer));
        let inner = shown.as_struct().column(0).as_struct();
        assert!(inner.is_null(0) && inner.column(0).is_null(0));
        assert_eq!(inner.column(0).as_primitive::<Int64Type>().iter().flatten().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn null_lists_have_no_items() {
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let nulls = NullBuffer::from(vec![true, false, true]);
        let offsets = OffsetBuffer::from_lengths([2, 3, 1]);
        let list = ListArray::new(item, offsets, numbers(0..6), Some(nulls.clone()));
        // A part of it, whose offsets do not begin with 0.
        for (list, items) in [(list.clone(), vec![0, 1, 5]), (list.slice(1, 2), vec![5])] {
            let shown = visible(Arc::new(list));
            let values = shown.as_list::<i32>().values();
            assert_eq!(values.as_primitive::<Int64Type>().values(), &items[..]);
        }
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let fixed = FixedSizeListArray::new(item, 2, numbers(0..6), Some(nulls));
        let shown = visible(Arc::new(fixed));
        assert_eq!(shown.as_fixed_size_list().values().null_count(), 2);
    }

    #[test]
    fn null_maps_have_no_entries() {
        let mut map = MapBuilder::new(None, Int64Builder::new(), Int64Builder::new());
        for key in 0..3 {
            map.keys().append_value(key);
            map.values().append_value(10 * key);
            map.append(key != 1).unwrap();
        }
        let shown = visible(Arc::new(map.finish()));
        assert_eq!(shown.as_map().keys().as_primitive::<Int64Type>().values(), &[0, 2]);
    }
}
