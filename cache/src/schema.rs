//! Schemas of parts: their hash, and the types that files of each format can hold.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use caju_types::{Error, Result, hash128};
use serde_json::Value;

use caju_autocache::Format;

/// The hash of a schema: names, types, nullability and metadata. The order of the metadata's keys does not matter.
pub fn schema_hash(schema: &Schema) -> String {
    let value = serde_json::to_value(schema).unwrap_or(Value::Null);
    let mut text = String::new();
    canonical(&value, &mut text);
    format!("{:032x}", hash128(text.as_bytes()))
}

/// Writes JSON with sorted keys and without spaces.
pub(crate) fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(k, _)| k.as_str());
            out.push('{');
            for (key, value) in entries {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The metadata key of a field's extension type.
const EXTENSION: &str = "ARROW:extension:name";
/// The extension type of tensors of one shape.
const FIXED_SHAPE_TENSOR: &str = "arrow.fixed_shape_tensor";

/// The schema of a part's file. Dictionaries are replaced by their values: an IPC file has one dictionary per column for
/// all of its batches, which a stream of batches cannot guarantee. In Parquet, tensors are lists of nullable items: other
/// readers (Arrow C++, and so pyarrow) recognise only those as tensors.
pub(crate) fn file_schema(schema: &SchemaRef, format: Format) -> SchemaRef {
    let fields: Fields = schema.fields().iter().map(plain_field).collect();
    let fields: Fields = match format {
        Format::Arrow => fields,
        Format::Parquet => fields.iter().map(canonical_tensor).collect(),
    };
    if &fields == schema.fields() {
        return Arc::clone(schema);
    }
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn plain_field(field: &FieldRef) -> FieldRef {
    let plain = plain_type(field.data_type());
    if &plain == field.data_type() {
        return Arc::clone(field);
    }
    let made = Field::new(field.name(), plain, field.is_nullable());
    Arc::new(made.with_metadata(field.metadata().clone()))
}

/// A tensor as Arrow C++ stores it.
fn canonical_tensor(field: &FieldRef) -> FieldRef {
    match field.data_type() {
        DataType::FixedSizeList(item, n)
            if field.metadata().get(EXTENSION).is_some_and(|e| e == FIXED_SHAPE_TENSOR) =>
        {
            let item = Field::new_list_field(item.data_type().clone(), true);
            let field = field.as_ref().clone();
            Arc::new(field.with_data_type(DataType::FixedSizeList(Arc::new(item), *n)))
        }
        _ => Arc::clone(field),
    }
}

fn plain_type(t: &DataType) -> DataType {
    match t {
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::List(f) => DataType::List(plain_field(f)),
        DataType::LargeList(f) => DataType::LargeList(plain_field(f)),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(plain_field(f), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        DataType::Map(f, sorted) => DataType::Map(plain_field(f), *sorted),
        other => other.clone(),
    }
}

/// Casts a batch to a schema that differs from its own by what [`file_schema`] replaces.
///
/// # Errors
/// `Internal` if the schemas differ in more than that.
pub(crate) fn cast_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let bad = |e: arrow_schema::ArrowError| Error::internal(format!("a batch of a snapshot: {e}"));
    if batch.num_columns() != schema.fields().len() {
        return Err(Error::internal(format!(
            "a batch of a snapshot has {} columns instead of {}",
            batch.num_columns(),
            schema.fields().len()
        )));
    }
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        arrow::compute::cast(column, field.data_type()).map_err(bad)
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(bad)
}

/// Whether a column holds binary values or lists (tensors among them), which gain nothing from dictionaries.
pub(crate) fn is_bulky(field: &Field) -> bool {
    match field.data_type() {
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
        | DataType::List(_)
        | DataType::LargeList(_)
        | DataType::FixedSizeList(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_) => true,
        DataType::Struct(fields) => fields.iter().any(|f| is_bulky(f)),
        _ => field.metadata().keys().any(|k| k == EXTENSION),
    }
}
