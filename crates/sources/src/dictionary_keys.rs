//! Keys of dictionaries that can hold the values of several batches.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef};

/// The type with dictionaries whose keys have 32 bits at least, at any depth.
///
/// Each batch of a file or a table has a dictionary of its own. Two of them with 100 values each are one batch of 200, which
/// keys of 8 bits do not count.
pub fn with_wide_keys(data_type: &DataType) -> DataType {
    let inner = |f: &FieldRef| -> FieldRef { Arc::new(wide_field(f)) };
    match data_type {
        DataType::Dictionary(key, value) => {
            let is_narrow =
                matches!(key.as_ref(), DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16);
            let key = if is_narrow { Box::new(DataType::Int32) } else { key.clone() };
            DataType::Dictionary(key, value.clone())
        }
        DataType::List(item) => DataType::List(inner(item)),
        DataType::LargeList(item) => DataType::LargeList(inner(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(inner(item), *n),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        other => other.clone(),
    }
}

fn wide_field(field: &Field) -> Field {
    field.clone().with_data_type(with_wide_keys(field.data_type()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_keys_are_widened_at_any_depth() {
        let of = |key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
        let list = |of| DataType::List(Arc::new(Field::new("item", of, true)));
        assert_eq!(with_wide_keys(&of(DataType::Int8)), of(DataType::Int32));
        assert_eq!(with_wide_keys(&of(DataType::UInt64)), of(DataType::UInt64));
        assert_eq!(with_wide_keys(&list(of(DataType::UInt16))), list(of(DataType::Int32)));
        assert_eq!(with_wide_keys(&list(DataType::Int8)), list(DataType::Int8));
    }
}
