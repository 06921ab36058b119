//! The Arrow types in which the columns of Parquet files are read, and the errors of the library about files.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::root_as_message;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use caju_types::{Error, Result};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, parquet_to_arrow_schema};
use parquet::basic::Type as PhysicalType;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use crate::ipc_bounds::depth_error;

/// The error of the library about a file.
pub(crate) fn damaged(url: &str, error: &ParquetError) -> Error {
    let text = error.to_string();
    // A codec that the library is built without.
    if let Some((_, codec)) = text.split_once("Disabled feature at compile time: ") {
        return Error::invalid(format!(
            "{url}: its columns are compressed by {codec}, which is not supported; write the file with zstd, snappy, lz4 or gzip"
        ));
    }
    if let Some(e) = depth_error(url, &text) {
        return e;
    }
    let text = text.strip_prefix("Parquet error: ").unwrap_or(&text);
    Error::data_loss(format!("{url}: the file is damaged or is no Parquet file: {text}"))
}

/// The type that a column is read as: one type of text and one of bytes, and no dictionaries, so that files of several
/// writers agree.
pub(crate) fn plain_type(t: &DataType) -> DataType {
    match t {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => plain_type(value),
        DataType::List(f) => {
            DataType::List(Arc::new(f.as_ref().clone().with_data_type(plain_type(f.data_type()))))
        }
        other => other.clone(),
    }
}

/// The columns of a file in Arrow's types.
///
/// Timestamps of 96 bits are microseconds, as Spark writes them. They have 96 bits because years from 1 to 9999 do not fit 64
/// bits of nanoseconds, in which the decoder would read them and wrap. A file that says its Arrow types has these.
///
/// Timestamps keep the time zone of the file's Arrow types. Parquet knows no seconds: pyarrow writes them as milliseconds, and
/// the decoder takes the zone only of a type whose unit is that of the file.
pub(crate) fn file_schema(footer: &ParquetMetaData, url: &str) -> Result<Schema> {
    let meta = footer.file_metadata();
    let columns = meta.schema_descr();
    let schema = parquet_to_arrow_schema(columns, meta.key_value_metadata()).map_err(|e| damaged(url, &e))?;
    let says_types =
        meta.key_value_metadata().is_some_and(|all| all.iter().any(|kv| kv.key == ARROW_SCHEMA_META_KEY));
    let is_int96 = |leaf: &usize| columns.column(*leaf).physical_type() == PhysicalType::INT96;
    let roots: BTreeSet<usize> =
        (0..columns.num_columns()).filter(is_int96).map(|leaf| columns.get_column_root_idx(leaf)).collect();
    // Only a zone of UTC may be that of seconds in another one.
    if schema.fields().iter().any(|f| has_zone(f))
        && let Some(written) = written_schema(footer)
    {
        let fields = in_zones_of(schema.fields(), written.fields());
        return Ok(Schema::new_with_metadata(fields, schema.metadata().clone()));
    }
    if says_types || roots.is_empty() {
        return Ok(schema);
    }
    let field = |(i, field): (usize, &Arc<Field>)| {
        if roots.contains(&i) { in_microseconds(field) } else { Arc::clone(field) }
    };
    let fields: Fields = schema.fields().iter().enumerate().map(field).collect();
    Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The Arrow schema that a file was written with, if it says one that can be read.
fn written_schema(footer: &ParquetMetaData) -> Option<Schema> {
    let all = footer.file_metadata().key_value_metadata()?;
    let text = all.iter().find(|kv| kv.key == ARROW_SCHEMA_META_KEY)?.value.as_ref()?;
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    // A message of the current format begins with a mark and its length.
    let message = bytes.strip_prefix(&[0xff; 4]).and_then(|rest| rest.get(4..)).unwrap_or(&bytes);
    root_as_message(message).ok()?.header_as_schema().map(fb_to_schema)
}

/// Whether a type has timestamps with a time zone, at any depth.
fn has_zone(field: &Field) -> bool {
    match field.data_type() {
        DataType::Timestamp(_, zone) => zone.is_some(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_zone(item),
        DataType::Struct(fields) => fields.iter().any(|f| has_zone(f)),
        _ => false,
    }
}

/// Fields with the time zones of those in the same places, as the library compares them.
fn in_zones_of(fields: &Fields, written: &Fields) -> Fields {
    let of = |(i, f): (usize, &Arc<Field>)| match written.get(i).filter(|w| w.name() == f.name()) {
        Some(w) => in_zone_of(f, w),
        None => Arc::clone(f),
    };
    fields.iter().enumerate().map(of).collect()
}

/// The field with the time zones of `written`, at any depth.
fn in_zone_of(field: &Arc<Field>, written: &Field) -> Arc<Field> {
    let of = match (field.data_type(), written.data_type()) {
        (DataType::Timestamp(unit, Some(_)), DataType::Timestamp(_, Some(zone))) => {
            DataType::Timestamp(*unit, Some(Arc::clone(zone)))
        }
        (DataType::List(item), DataType::List(w)) => DataType::List(in_zone_of(item, w)),
        (DataType::LargeList(item), DataType::LargeList(w)) => DataType::LargeList(in_zone_of(item, w)),
        (DataType::FixedSizeList(item, n), DataType::FixedSizeList(w, _)) => {
            DataType::FixedSizeList(in_zone_of(item, w), *n)
        }
        (DataType::Map(entries, sorted), DataType::Map(w, _)) => {
            DataType::Map(in_zone_of(entries, w), *sorted)
        }
        (DataType::Struct(fields), DataType::Struct(w)) => DataType::Struct(in_zones_of(fields, w)),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(of))
}

/// The field with microseconds instead of nanoseconds, at any depth.
fn in_microseconds(field: &Arc<Field>) -> Arc<Field> {
    let of = match field.data_type() {
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        DataType::List(item) => DataType::List(in_microseconds(item)),
        DataType::LargeList(item) => DataType::LargeList(in_microseconds(item)),
        DataType::Map(entries, sorted) => DataType::Map(in_microseconds(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(in_microseconds).collect()),
        other => other.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(of))
}

/// The schema of a file's rows as we read them: every column nullable, no metadata of the file format.
pub(crate) fn arrow_schema_of(footer: &ParquetMetaData, url: &str) -> Result<SchemaRef> {
    let fields: Fields = file_schema(footer, url)?
        .fields()
        .iter()
        .map(|f| {
            let mut metadata = f.metadata().clone();
            metadata.remove("PARQUET:field_id");
            Field::new(f.name(), plain_type(f.data_type()), true).with_metadata(metadata)
        })
        .collect();
    Ok(Arc::new(Schema::new(fields)))
}
