//! Schemas on the wire, and which types may travel.

use std::sync::Arc;

use arrow::ipc::reader::StreamReader;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_pipeline::MAX_TYPE_LEVELS;
use caju_runtime::catch;
use caju_types::{Error, Result};

use crate::frame::{SchemaHeader, damaged};

/// The header of a schema frame.
///
/// # Errors
/// `Unimplemented` naming the column whose type cannot travel, or for types that are nested too deep together.
pub fn encode_schema(schema: &Schema) -> Result<SchemaHeader> {
    check_schema(schema)?;
    let schema_json = serde_json::to_string(schema)
        .map_err(|e| Error::internal(format!("cannot write the schema of the rows: {e}")))?;
    // Dictionaries, which are no levels of a type, are levels of JSON.
    if serde_json::from_str::<Schema>(&schema_json).is_err() {
        return Err(Error::unimplemented(
            "the types of the columns are nested too deep to be sent to a reader: convert their dictionaries in a `map`",
        ));
    }
    Ok(SchemaHeader { schema_json })
}

/// The schema in a schema frame.
///
/// # Errors
/// `DataLoss` if it is not a schema, `Unimplemented` if it has a type that cannot travel.
pub fn decode_schema(header: &SchemaHeader) -> Result<SchemaRef> {
    let schema: Schema = serde_json::from_str(&header.schema_json)
        .map_err(|e| damaged(format!("a schema cannot be read: {e}")))?;
    check_schema(&schema)?;
    Ok(Arc::new(schema))
}

/// A schema as the control plane carries it: an Arrow IPC stream without batches.
///
/// # Errors
/// `Internal` if Arrow cannot write it.
pub fn schema_to_ipc(schema: &Schema) -> Result<Vec<u8>> {
    let failed = |e| Error::internal(format!("a schema cannot be written: {e}"));
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(failed)?;
    writer.finish().map_err(failed)?;
    writer.into_inner().map_err(failed)
}

/// The schema that [`schema_to_ipc`] wrote; `None` for no bytes.
///
/// # Errors
/// `DataLoss` if it is not one.
pub fn schema_from_ipc(bytes: &[u8]) -> Result<Option<SchemaRef>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let unreadable = |e: &dyn std::fmt::Display| damaged(format!("a schema cannot be read: {e}"));
    if !holds_its_message(bytes) {
        return Err(unreadable(&"its length is more than there is"));
    }
    // Arrow panics at types that it does not know.
    let read = catch("a schema", || StreamReader::try_new(std::io::Cursor::new(bytes), None));
    let reader = read.map_err(|e| unreadable(&e))?.map_err(|e| unreadable(&e))?;
    Ok(Some(reader.schema()))
}

/// Whether the first message of an Arrow IPC stream, and the body that it names, are as long as they say: Arrow takes that much
/// memory before it reads. Old streams lack the four bytes in front of the length.
fn holds_its_message(bytes: &[u8]) -> bool {
    const CONTINUATION: &[u8] = &[0xff; 4];
    let message = bytes.strip_prefix(CONTINUATION).unwrap_or(bytes);
    let Some((len, rest)) = message.split_first_chunk::<4>() else { return false };
    let len = usize::try_from(i32::from_le_bytes(*len)).ok();
    let Some((metadata, body)) = len.and_then(|len| rest.split_at_checked(len)) else { return false };
    // What is no message is reported by Arrow.
    let Ok(message) = root_as_message(metadata) else { return true };
    usize::try_from(message.bodyLength()).is_ok_and(|len| len <= body.len())
}

fn check_schema(schema: &Schema) -> Result<()> {
    schema.fields().iter().try_for_each(|f| {
        check_field(f, 0).map_err(|why| {
            Error::unimplemented(format!(
                "column `{}` of type {} cannot be sent to a reader: {why}; convert it in a `map`",
                f.name(),
                f.data_type()
            ))
        })
    })
}

fn check_field(field: &Field, depth: usize) -> Result<(), String> {
    check_type(field.data_type(), depth)
}

fn check_type(data_type: &DataType, depth: usize) -> Result<(), String> {
    if depth > MAX_TYPE_LEVELS {
        return Err(format!("types may be nested {MAX_TYPE_LEVELS} levels deep at most"));
    }
    match data_type {
        DataType::Union(..)
        | DataType::RunEndEncoded(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_) => {
            Err("unions, run-end encoding and list views are not supported".to_string())
        }
        DataType::FixedSizeBinary(n) if *n < 0 => Err("its size is negative".to_string()),
        DataType::FixedSizeList(_, n) if *n < 0 => Err("its size is negative".to_string()),
        DataType::FixedSizeList(f, _) | DataType::List(f) | DataType::LargeList(f) => {
            check_field(f, depth + 1)
        }
        DataType::Map(f, _) => match f.data_type() {
            DataType::Struct(kv) if kv.len() == 2 && !kv[0].is_nullable() && !f.is_nullable() => {
                check_field(f, depth + 1)
            }
            _ => Err("its entries are not pairs with a non-null key".to_string()),
        },
        DataType::Struct(fields) => fields.iter().try_for_each(|f| check_field(f, depth + 1)),
        DataType::Dictionary(k, v) => {
            if !k.is_dictionary_key_type() {
                return Err("its keys are not integers".to_string());
            }
            // No level, as elsewhere. Dictionaries of dictionaries end where JSON does.
            check_type(v, depth)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message whose header says that a body of a gigabyte follows. Found by fuzzing: Arrow asked for that memory.
    #[test]
    fn a_schema_asks_for_no_more_memory_than_there_is() {
        let mut found = [0u8; 110];
        let bytes = [
            (0, 0x5c),
            (4, 0x14),
            (8, 0x10),
            (10, 0x18),
            (12, 0x14),
            (14, 0xe),
            (16, 0xf),
            (18, 0x4),
            (20, 0x10),
            (22, 0x8),
            (23, 0x2),
            (24, 0x10),
            (28, 0x22),
            (35, 0x40),
            (78, 0x86),
            (108, 0x1),
            (109, 0x1),
        ];
        bytes.iter().for_each(|(at, byte)| found[*at] = *byte);
        assert!(root_as_message(&found[4..]).unwrap().bodyLength() >= 1 << 30);
        let e = schema_from_ipc(&found).unwrap_err();
        assert!(e.message().ends_with("its length is more than there is"), "{e}");
        let whole = schema_to_ipc(&Schema::new(vec![Field::new("id", DataType::Int64, false)])).unwrap();
        assert!(schema_from_ipc(&whole).unwrap().is_some_and(|s| s.fields().len() == 1));
    }
}
