//! Rows from arrays and streams of Arrow's C data interface.
//!
//! arrow applies the offset of a struct twice to a struct within it (`ArrayData::slice` moves the children and keeps the offset,
//! and `StructArray::from` moves them again). A slice of a table with nested structs has such offsets, so they are applied here.

use std::ffi::CStr;
use std::sync::Arc;

use arrow::array::ArrayData;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};

/// All batches of a stream, over the memory of its producer.
///
/// # Errors
/// What the producer says, and data that are no columns of rows.
#[allow(unsafe_code, reason = "calls a producer of the C data interface")]
pub(crate) fn batches_of_stream(
    mut stream: FFI_ArrowArrayStream,
) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    let broken = || ArrowError::CDataInterface("the stream was released already".to_owned());
    let (get_schema, get_next) = stream.get_schema.zip(stream.get_next).ok_or_else(broken)?;
    let mut described = FFI_ArrowSchema::empty();
    // SAFETY: the functions belong to `stream`, which was moved out of its capsule and is not released. They write to the
    // struct that they get, or give a code.
    let code = unsafe { get_schema(&raw mut stream, &raw mut described) };
    if code != 0 {
        return Err(last_error(&mut stream, code));
    }
    let schema = Arc::new(Schema::try_from(&described)?);
    let mut batches = Vec::new();
    loop {
        let mut array = FFI_ArrowArray::empty();
        // SAFETY: as above.
        let code = unsafe { get_next(&raw mut stream, &raw mut array) };
        if code != 0 {
            return Err(last_error(&mut stream, code));
        }
        if array.is_released() {
            return Ok((schema, batches));
        }
        // SAFETY: the producer gives arrays of the schema that it gave.
        let data = unsafe { from_ffi_and_data_type(array, DataType::Struct(schema.fields().clone())) }?;
        batches.push(batch_of(data, &schema)?);
    }
}

/// The error of a producer.
#[allow(unsafe_code, reason = "calls a producer of the C data interface")]
fn last_error(stream: &mut FFI_ArrowArrayStream, code: i32) -> ArrowError {
    let text = stream.get_last_error.and_then(|get| {
        // SAFETY: the function belongs to the stream; its text is valid until the next call.
        let text = unsafe { get(stream) };
        // SAFETY: a text that is not null ends in a zero.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    ArrowError::CDataInterface(text.unwrap_or_else(|| format!("the producer failed with code {code}")))
}

/// The rows of an array of structs.
///
/// # Errors
/// Data that do not have the types of the schema.
pub(crate) fn batch_of(data: ArrayData, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let rows = data.len();
    let data = if has_offset_above_struct(&data, false) { without_offsets(&data, 0, rows)? } else { data };
    let columns = StructArray::from(data).into_parts().1;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

/// Whether a struct lies below an offset of a struct or of a list of fixed size, or has fewer rows than its children.
/// `below`: whether there is one above `data`.
fn has_offset_above_struct(data: &ArrayData, below: bool) -> bool {
    let is_struct = matches!(data.data_type(), DataType::Struct(_));
    if is_struct && below {
        return true;
    }
    // Only these move their children; what is below another list stays in its place.
    let moves = is_struct || matches!(data.data_type(), DataType::FixedSizeList(..));
    let is_part = data.offset() > 0 || (is_struct && data.child_data().iter().any(|c| c.len() != data.len()));
    let below = moves && (below || is_part);
    data.child_data().iter().any(|child| has_offset_above_struct(child, below))
}

/// Some rows of an array, in which structs and lists of fixed size begin at offset 0.
fn without_offsets(data: &ArrayData, offset: usize, rows: usize) -> Result<ArrayData, ArrowError> {
    let start = data.offset() + offset;
    let children = |start: usize, rows: usize| {
        data.child_data()
            .iter()
            .map(|child| without_offsets(child, start, rows))
            .collect::<Result<Vec<_>, _>>()
    };
    match data.data_type() {
        DataType::Struct(_) | DataType::FixedSizeList(..) => {
            let size = match data.data_type() {
                DataType::FixedSizeList(_, size) => usize::try_from(*size).unwrap_or(0),
                _ => 1,
            };
            ArrayData::builder(data.data_type().clone())
                .len(rows)
                .nulls(data.nulls().map(|nulls| nulls.slice(offset, rows)))
                .child_data(children(start * size, rows * size)?)
                .build()
        }
        // The rows of a sparse union lie at the places of its children.
        DataType::Union(..) => Ok(data.slice(offset, rows)),
        _ if !data.child_data().iter().any(|child| has_offset_above_struct(child, false)) => {
            Ok(data.slice(offset, rows))
        }
        _ => {
            let whole = |child: &ArrayData| without_offsets(child, 0, child.len());
            let whole = data.child_data().iter().map(whole).collect::<Result<Vec<_>, _>>()?;
            data.slice(offset, rows).into_builder().child_data(whole).build()
        }
    }
}
