//! Arrow's PyCapsule interface: schemas, batches and streams of batches that Python libraries exchange without copies.
//!
//! A capsule holds a struct of Arrow's C data interface. Its consumer moves the struct out and leaves one that is marked as
//! released, which the capsule's destructor drops without effect. See
//! <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use std::ffi::CStr;
use std::sync::Arc;

use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{Array, RecordBatch, RecordBatchOptions, RecordBatchReader, StructArray};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use caju_runtime::catch;
use caju_types::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::{IntoPy, exception};
use crate::imported::{batch_of, batches_of_stream};

/// The names that the interface gives to capsules.
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// A schema as a capsule.
///
/// # Errors
/// `Internal` if a type has no C form.
pub(crate) fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let exported = FFI_ArrowSchema::try_from(schema).map_err(export_error).into_py(py)?;
    PyCapsule::new_with_value(py, exported, SCHEMA)
}

/// A batch as the capsules of its schema and of its columns. `schema` describes the batch's columns.
///
/// # Errors
/// `InvalidArgument` if the columns cannot be cast to the schema of `requested`, a schema capsule.
pub(crate) fn batch_capsules<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    batch: &RecordBatch,
    requested: Option<&Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let target = requested_schema(py, schema, requested)?;
    let batch = cast_batch(batch, &target).map_err(export_error).into_py(py)?;
    let array = FFI_ArrowArray::new(&StructArray::from(batch).to_data());
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    PyTuple::new(py, [schema_capsule(py, &target)?, array])
}

/// Batches as the capsule of a stream, which the consumer reads from any thread.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn stream_capsule<'py>(
    py: Python<'py>,
    batches: impl RecordBatchReader + Send + 'static,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), STREAM)
}

/// The schema to export: `schema`, or the one that the consumer asks for.
///
/// # Errors
/// `InvalidArgument` if columns of `schema` cannot be cast to those of `requested`; `ValueError` for another capsule.
pub(crate) fn requested_schema(
    py: Python<'_>,
    schema: &SchemaRef,
    requested: Option<&Bound<'_, PyCapsule>>,
) -> PyResult<SchemaRef> {
    let Some(capsule) = requested else { return Ok(Arc::clone(schema)) };
    let target = Arc::new(schema_of_capsule(py, capsule)?);
    let names = |s: &Schema| s.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    if names(schema) != names(&target) {
        let why = format!(
            "the requested schema has the columns {:?}, and the dataset has {:?}; ask for the same columns in the same order",
            names(&target),
            names(schema)
        );
        return Err(exception(py, &Error::invalid(why)));
    }
    for (have, want) in schema.fields().iter().zip(target.fields()) {
        if !can_cast_types(have.data_type(), want.data_type()) {
            let why = format!(
                "column `{}`: {} cannot be cast to the requested {}",
                have.name(),
                have.data_type(),
                want.data_type()
            );
            return Err(exception(py, &Error::invalid(why)));
        }
    }
    Ok(target)
}

/// The batch with its columns cast to the types of a schema of the same columns.
///
/// # Errors
/// A value that cannot be cast.
pub(crate) fn cast_batch(batch: &RecordBatch, target: &Schema) -> Result<RecordBatch, ArrowError> {
    let same = batch.columns().iter().zip(target.fields()).all(|(c, f)| c.data_type() == f.data_type());
    if same {
        return Ok(batch.clone());
    }
    // A value that does not fit is an error, not null.
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let cast_columns = batch
        .columns()
        .iter()
        .zip(target.fields())
        .map(|(c, f)| cast_with_options(c, f.data_type(), &strict));
    let columns = cast_columns.collect::<Result<Vec<_>, _>>()?;
    let fields = target.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}

fn export_error(e: ArrowError) -> Error {
    Error::internal(format!("the columns cannot be exported to the C data interface: {e}"))
}

// ---- import ---------------------------------------------------------------------------------------------------------

/// The schema of an object with `__arrow_c_schema__`.
///
/// # Errors
/// `InvalidArgument` if it is no schema of columns.
pub(crate) fn import_schema(object: &Bound<'_, PyAny>) -> PyResult<Schema> {
    let capsule = object.call_method0("__arrow_c_schema__")?.cast_into::<PyCapsule>()?;
    schema_of_capsule(object.py(), &capsule)
}

#[allow(unsafe_code, reason = "reads a struct of the C data interface")]
fn schema_of_capsule(py: Python<'_>, capsule: &Bound<'_, PyCapsule>) -> PyResult<Schema> {
    let pointer = capsule.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    // SAFETY: a capsule of this name holds an initialised `ArrowSchema`, and `capsule` keeps it alive.
    let schema = Schema::try_from(unsafe { pointer.as_ref() });
    schema.map_err(|e| Error::invalid(format!("the schema is not one of columns: {e}"))).into_py(py)
}

/// The batches of an object with `__arrow_c_stream__` or `__arrow_c_array__`, over the object's memory; `None` for objects
/// that have neither.
///
/// # Errors
/// What the object raises; `InvalidArgument` if it holds anything but columns of rows, or fails while it is read.
pub(crate) fn import_batches(object: &Bound<'_, PyAny>) -> PyResult<Option<(SchemaRef, Vec<RecordBatch>)>> {
    let py = object.py();
    if object.hasattr("__arrow_c_stream__")? {
        let capsule = object.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
        let stream = take_stream(&capsule)?;
        // The stream may compute its rows, in threads that need the interpreter.
        return py.detach(|| read_stream(stream)).into_py(py).map(Some);
    }
    if !object.hasattr("__arrow_c_array__")? {
        return Ok(None);
    }
    let capsules = object.call_method0("__arrow_c_array__")?;
    let (schema, array) = capsules.extract::<(Bound<'_, PyCapsule>, Bound<'_, PyCapsule>)>()?;
    let batch = import_array(&schema, &array)?;
    Ok(Some((batch.schema(), vec![batch])))
}

#[allow(unsafe_code, reason = "moves a struct of the C data interface")]
fn take_stream(capsule: &Bound<'_, PyCapsule>) -> PyResult<FFI_ArrowArrayStream> {
    let pointer = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name holds an initialised `ArrowArrayStream`. Moving it out leaves a released one, as the
    // interface demands.
    Ok(unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr()) })
}

fn read_stream(stream: FFI_ArrowArrayStream) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    // arrow panics over producers that break the interface.
    let read = catch("reading the Arrow stream", || batches_of_stream(stream));
    let read = read.and_then(|r| r.map_err(import_error));
    read.map_err(|e| Error::invalid(e.message().to_owned()))
}

#[allow(unsafe_code, reason = "moves a struct of the C data interface")]
fn import_array(schema: &Bound<'_, PyCapsule>, array: &Bound<'_, PyCapsule>) -> PyResult<RecordBatch> {
    let py = schema.py();
    let described = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let pointer = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: capsules of these names hold initialised structs, which describe each other as the object gave them together.
    // Moving the array out leaves a released one, as the interface demands.
    let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(pointer.as_ptr()), described.as_ref()) };
    let data = data.map_err(import_error).into_py(py)?;
    let schema = match data.data_type() {
        DataType::Struct(fields) if data.null_count() == 0 => Arc::new(Schema::new(fields.clone())),
        other => {
            let why = format!("an Arrow array of {other} is not columns of rows; give a record batch");
            return Err(exception(py, &Error::invalid(why)));
        }
    };
    let batch = catch("reading the Arrow array", || batch_of(data, &schema));
    batch.and_then(|r| r.map_err(import_error)).into_py(py)
}

fn import_error(e: ArrowError) -> Error {
    Error::invalid(format!(
        "the Arrow data cannot be read as columns of rows: {e}; give a table, a data frame or record batches"
    ))
}
