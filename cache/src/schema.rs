//! Schemas of parts: their hash, and the types that files of both formats can hold.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use caju_types::{Error, Result, hash128};
use serde_json::Value;

use caju_autocache::Format;

/// The hash of a schema: names, types, nullability and metadata, in any order of the metadata's keys.
pub fn schema_hash(schema: &Schema) -> String {
    let value = serde_json::to_value(schema).unwrap_or(Value::Null);
    let mut text = String::new();
    canonical(&value, &mut text);
    format!("{:032x}", hash128(text.as_bytes()))
}

/// JSON with sorted keys and without blanks.
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

/// The name under which a field's metadata say that it is a tensor.
const EXTENSION: &str = "ARROW:extension:name";
const FIXED_SHAPE_TENSOR: &str = "arrow.fixed_shape_tensor";

/// The schema that a file has: with dictionaries replaced by their values, since an IPC file has one dictionary per
/// column for all of its batches, which a stream of batches cannot promise. In Parquet, tensors are lists of items
/// that may be null: other readers (Arrow C++, and so pyarrow) take only those for tensors.
pub(crate) fn plain(schema: &SchemaRef, format: Format) -> SchemaRef {
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

/// The batch with the types and metadata of a schema that differs from its own as [`plain`] makes it at most.
pub(crate) fn with_schema(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
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

/// Whether a column holds large binary values or tensors, which gain nothing from dictionaries.
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
