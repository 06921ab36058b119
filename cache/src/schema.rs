//! Schemas of parts: their hash, and the types that files of each format can hold.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
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

/// Whether a list or map holds a dictionary of structs with keys of 8 or 16 bits. A cast gives each struct a key of its own, equal
/// ones too, so that one row can have more structs than there are keys.
pub(crate) fn lists_narrow_structs(t: &DataType, in_list: bool) -> bool {
    match t {
        DataType::Dictionary(keys, values) => {
            let narrow = |t: &DataType| {
                matches!(t, DataType::Int8 | DataType::UInt8 | DataType::Int16 | DataType::UInt16)
            };
            let structs = matches!(values.as_ref(), DataType::Struct(_));
            (in_list && structs && narrow(keys)) || lists_narrow_structs(values, in_list)
        }
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            lists_narrow_structs(f.data_type(), true)
        }
        DataType::Struct(fields) => fields.iter().any(|f| lists_narrow_structs(f.data_type(), in_list)),
        _ => false,
    }
}

/// Casts a batch to a schema that differs from its own by what [`file_schema`] replaces.
///
/// # Errors
/// `Internal` if the schemas differ in more than that.
pub(crate) fn cast_batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    check_width(batch, schema)?;
    cast_columns(batch, schema).map_err(|e| uncastable(&e))
}

/// Casts a batch of a part's file to the schema of the rows. Such a batch can join several batches of the writer, and have more
/// values than the keys of a dictionary can number: it is cut into several batches then.
///
/// # Errors
/// `Internal` if the schemas differ in more than [`file_schema`] replaces.
pub(crate) fn restored(batch: &RecordBatch, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
    check_width(batch, schema)?;
    let (mut out, mut left) = (Vec::new(), vec![batch.clone()]);
    while let Some(batch) = left.pop() {
        let rows = batch.num_rows();
        match cast_columns(&batch, schema) {
            Ok(batch) => out.push(batch),
            // One row always fits: its values are from one batch of the writer.
            Err(e) if rows > 1 && may_overflow_keys(&e) => {
                let half = rows / 2;
                for range in [half..rows, 0..half] {
                    left.push(some_rows(&batch, range, schema).map_err(|e| uncastable(&e))?);
                }
            }
            Err(e) => return Err(uncastable(&e)),
        }
    }
    Ok(out)
}

/// Whether fewer rows may be cast. Where a dictionary of structs needs too many keys, it is a failed cast.
fn may_overflow_keys(error: &ArrowError) -> bool {
    matches!(error, ArrowError::DictionaryKeyOverflowError | ArrowError::CastError(_))
}

/// Some rows of a batch. Nested columns that will be cast are copied: a cast of a slice of lists casts the values of all lists.
fn some_rows(
    batch: &RecordBatch,
    range: Range<usize>,
    schema: &SchemaRef,
) -> Result<RecordBatch, ArrowError> {
    let indices = UInt64Array::from_iter_values(range.start as u64..range.end as u64);
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() || !column.data_type().is_nested() {
            return Ok(column.slice(range.start, range.len()));
        }
        arrow::compute::take(column, &indices, None)
    });
    RecordBatch::try_new(batch.schema(), columns.collect::<Result<Vec<_>, _>>()?)
}

fn check_width(batch: &RecordBatch, schema: &SchemaRef) -> Result<()> {
    if batch.num_columns() == schema.fields().len() {
        return Ok(());
    }
    Err(Error::internal(format!(
        "a batch of a snapshot has {} columns instead of {}",
        batch.num_columns(),
        schema.fields().len()
    )))
}

fn uncastable(error: &ArrowError) -> Error {
    Error::internal(format!("a batch of a snapshot: {error}"))
}

fn cast_columns(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        arrow::compute::cast(column, field.data_type())
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
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
