//! Whether a task sends the columns of the epoch that is read.

use arrow_schema::{DataType, Field, Schema};
use caju_types::{Error, Result, shortened};

/// Refuses a task that sends other columns than its epoch has. A reader's user labels what all tasks send with the columns of the
/// epoch, by their position.
///
/// Compared are the number of columns, their order, names and types, and their extension types, which have the shapes of
/// tensors. Arrays say themselves which values are null. Other metadata and the names of items of lists and of entries of maps
/// are no part of values. All of these may differ.
///
/// `job` reads the epoch, and `worker` sends the rows of the task; both are for the message.
///
/// # Errors
/// `FailedPrecondition` that names the first column that differs.
pub fn check_task_columns(epoch: &Schema, task: &Schema, (job, worker): (&str, &str)) -> Result<()> {
    let Some(difference) = difference(epoch, task) else { return Ok(()) };
    Err(Error::failed_precondition(format!(
        "job `{}`: {worker} sends other columns than the epoch has: {difference}. The files of the source have changed since the \
         dispatcher found their columns, or the versions of caju differ: run the same version of caju on all machines, and read \
         the data again under another job name; a dataset that is registered under a name needs another name, too",
        shortened(job)
    )))
}

/// The first column that differs, or the numbers of columns; none if the columns are the same.
fn difference(epoch: &Schema, task: &Schema) -> Option<String> {
    let (wanted, found) = (epoch.fields(), task.fields());
    let mut pairs = wanted.iter().zip(found).enumerate();
    if let Some((at, (wanted, found))) = pairs.find(|(_, (wanted, found))| !is_same_column(wanted, found)) {
        return Some(format!("column {at} is {} instead of {}", described(found), described(wanted)));
    }
    (wanted.len() != found.len())
        .then(|| format!("there are {} columns instead of {}", found.len(), wanted.len()))
}

fn described(field: &Field) -> String {
    let extension = field.extension_type_name().map_or_else(String::new, |name| {
        format!(" ({name} {})", field.extension_type_metadata().unwrap_or_default())
    });
    format!("`{}` of type {}{extension}", shortened(field.name()), field.data_type())
}

fn is_same_column(one: &Field, other: &Field) -> bool {
    one.name() == other.name() && is_same_item(one, other)
}

/// Whether the values of two fields are of one type, whatever the fields are called.
fn is_same_item(one: &Field, other: &Field) -> bool {
    one.extension_type_name() == other.extension_type_name()
        && one.extension_type_metadata() == other.extension_type_metadata()
        && is_same_type(one.data_type(), other.data_type())
}

fn is_same_type(one: &DataType, other: &DataType) -> bool {
    match (one, other) {
        (DataType::List(one), DataType::List(other))
        | (DataType::LargeList(one), DataType::LargeList(other)) => is_same_item(one, other),
        (DataType::FixedSizeList(one, length), DataType::FixedSizeList(other, other_length)) => {
            length == other_length && is_same_item(one, other)
        }
        (DataType::Map(one, _), DataType::Map(other, _)) => is_same_entry(one.data_type(), other.data_type()),
        (DataType::Struct(one), DataType::Struct(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same_column(one, other))
        }
        (DataType::Dictionary(key, one), DataType::Dictionary(other_key, other)) => {
            key == other_key && is_same_type(one, other)
        }
        _ => one == other,
    }
}

/// Whether the keys and the values of two maps are of one type each.
fn is_same_entry(one: &DataType, other: &DataType) -> bool {
    match (one, other) {
        (DataType::Struct(one), DataType::Struct(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same_item(one, other))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
    use caju_types::ErrorKind;

    use super::*;
    use crate::{decode_schema, encode_schema, schema_from_ipc, schema_to_ipc};

    fn ids(names: &[&str]) -> Schema {
        Schema::new(names.iter().map(|name| Field::new(*name, DataType::Int64, true)).collect::<Vec<_>>())
    }

    fn of(data_type: DataType) -> Schema {
        Schema::new(vec![Field::new("x", data_type, true)])
    }

    fn tensor(shape: &str) -> Field {
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let metadata = HashMap::from([
            (EXTENSION_TYPE_NAME_KEY.to_string(), "arrow.fixed_shape_tensor".to_string()),
            (EXTENSION_TYPE_METADATA_KEY.to_string(), format!("{{\"shape\":{shape}}}")),
        ]);
        Field::new("t", DataType::FixedSizeList(item, 6), true).with_metadata(metadata)
    }

    #[track_caller]
    fn refused(epoch: &Schema, task: &Schema, want: &str) {
        let e = check_task_columns(epoch, task, ("train", "worker a:1 (task 7)")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        for part in ["job `train`: worker a:1 (task 7) sends", want, "read the data again"] {
            assert!(e.message().contains(part), "{part}: {e}");
        }
    }

    #[test]
    fn a_task_with_columns_of_other_names_types_or_order_is_refused() {
        let (xy, yx) = (ids(&["x", "y"]), ids(&["y", "x"]));
        refused(&xy, &yx, "column 0 is `y` of type Int64 instead of `x` of type Int64");
        refused(&xy, &ids(&["x"]), "there are 1 columns instead of 2");
        refused(&xy, &ids(&["x", "y", "z"]), "there are 3 columns instead of 2");
        refused(&of(DataType::Int64), &of(DataType::Float64), "`x` of type Float64 instead of `x`");
        refused(&of(DataType::Utf8), &of(DataType::LargeUtf8), "column 0");
        let fields = |schema: &Schema| of(DataType::Struct(schema.fields().clone()));
        refused(&fields(&xy), &fields(&yx), "column 0");
        let list = |of_items| of(DataType::new_list(of_items, true));
        refused(&list(DataType::Int32), &list(DataType::Int64), "column 0");
        let tensors = |shape| Schema::new(vec![tensor(shape)]);
        refused(&tensors("[2,3]"), &tensors("[3,2]"), "{\"shape\":[3,2]}) instead of");
    }

    /// What differs between schemas of the same values, and what their ways over the wire do to them.
    #[test]
    fn nullability_other_metadata_and_names_of_items_make_no_difference() {
        let entry = |key: &str, value: &str| {
            let fields =
                vec![Field::new(key, DataType::Utf8, false), Field::new(value, DataType::Int32, true)];
            Arc::new(Field::new("entries", DataType::Struct(fields.into()), false))
        };
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let schema = |item: &str, entry, nullable, note: &str| {
            let list = DataType::List(Arc::new(Field::new(item, DataType::Int32, nullable)));
            let fields = vec![
                Field::new("l", list, nullable),
                Field::new("m", DataType::Map(entry, false), nullable),
                Field::new("d", dictionary.clone(), nullable),
                tensor("[2,3]").with_nullable(nullable),
            ];
            let note = HashMap::from([("note".to_string(), note.to_string())]);
            Schema::new_with_metadata(fields, note)
        };
        let epoch = schema("item", entry("key", "value"), true, "one");
        let task = schema("element", entry("keys", "values"), false, "other");
        assert!(check_task_columns(&epoch, &task, ("", "")).is_ok());
        let of_control = schema_from_ipc(&schema_to_ipc(&epoch).unwrap()).unwrap().unwrap();
        let of_data = decode_schema(&encode_schema(&epoch).unwrap()).unwrap();
        assert!(check_task_columns(&of_control, &of_data, ("", "")).is_ok());
    }
}
