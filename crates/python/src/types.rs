//! Types of columns as text: `int64`, `list of string`, `float32[224, 224, 3]`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use caju_engine::type_name;
use caju_types::{Error, Result, did_you_mean};
use caju_wire::{schema_from_ipc, schema_to_ipc};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::IntoPy;

/// Types of single values by their names.
const SCALARS: &[(&str, DataType)] = &[
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float16", DataType::Float16),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("bool", DataType::Boolean),
    ("string", DataType::Utf8),
    ("bytes", DataType::Binary),
    ("date", DataType::Date32),
    ("timestamp", DataType::Timestamp(TimeUnit::Microsecond, None)),
    ("duration", DataType::Duration(TimeUnit::Microsecond)),
];

/// The schema of columns with types as text, as an Arrow IPC stream without rows.
#[pyfunction]
pub(crate) fn schema_of<'py>(
    py: Python<'py>,
    columns: Vec<(String, String)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let build = || {
        let fields: Vec<Field> = columns.iter().map(|(n, t)| field(n, t)).collect::<Result<_>>()?;
        schema_to_ipc(&Schema::new(fields))
    };
    Ok(PyBytes::new(py, &build().into_py(py)?))
}

fn field(name: &str, written: &str) -> Result<Field> {
    let text = written.trim();
    if let Some(item) = text.strip_prefix("list of ") {
        let item = field("item", item).map_err(|e| e.context(format!("column `{name}`")))?;
        return Ok(Field::new(name, DataType::List(Arc::new(item)), true));
    }
    let (word, shape) = match text.split_once('[') {
        None => (text, None),
        Some((word, rest)) => (word.trim_end(), Some(dimensions(name, written, rest)?)),
    };
    let Some((_, value)) = SCALARS.iter().find(|(known, _)| *known == word) else {
        let known: Vec<&str> = SCALARS.iter().map(|(known, _)| *known).collect();
        return Err(Error::invalid(format!(
            "schema: column `{name}`: unknown type `{word}`{}; the types are {}, lists (`list of int64`) and tensors \
             (`float32[224, 224, 3]`)",
            did_you_mean(word, &known),
            known.join(", ")
        )));
    };
    match shape {
        None => Ok(Field::new(name, value.clone(), true)),
        Some(shape) => tensor(name, value, &shape),
    }
}

fn dimensions(name: &str, written: &str, rest: &str) -> Result<Vec<usize>> {
    let bad = || {
        Error::invalid(format!(
            "schema: column `{name}`: `{written}` has no shape that can be read; write float32[224, 224, 3]"
        ))
    };
    let inside = rest.strip_suffix(']').ok_or_else(bad)?;
    inside.split(',').map(|n| n.trim().parse().map_err(|_| bad())).collect()
}

fn tensor(name: &str, value: &DataType, shape: &[usize]) -> Result<Field> {
    let size = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    let length = size.and_then(|n| i32::try_from(n).ok()).ok_or_else(|| {
        Error::invalid(format!("schema: column `{name}`: {shape:?} are too many values for a row"))
    })?;
    let item = Arc::new(Field::new("item", value.clone(), true));
    Ok(Field::new(name, DataType::FixedSizeList(item, length), true).with_metadata(tensor_metadata(shape)))
}

/// The metadata of a field of tensors of a shape.
pub(crate) fn tensor_metadata(shape: &[usize]) -> HashMap<String, String> {
    HashMap::from([
        ("ARROW:extension:name".to_string(), "arrow.fixed_shape_tensor".to_string()),
        ("ARROW:extension:metadata".to_string(), serde_json::json!({ "shape": shape }).to_string()),
    ])
}

/// The names of the columns of a schema, and their types as text.
#[pyfunction]
pub(crate) fn type_names(py: Python<'_>, schema_ipc: &[u8]) -> PyResult<Vec<(String, String)>> {
    let schema = schema_from_ipc(schema_ipc).into_py(py)?.unwrap_or_else(|| Arc::new(Schema::empty()));
    Ok(schema.fields().iter().map(|f| (f.name().clone(), type_name(f))).collect())
}

/// The name of a field's extension type.
pub(crate) fn extension(field: &Field) -> Option<&str> {
    let metadata: &HashMap<String, String> = field.metadata();
    metadata.get("ARROW:extension:name").map(String::as_str)
}

/// The shape of a fixed-shape tensor's field; `None` for other fields.
///
/// # Errors
/// `DataLoss` for a tensor whose metadata has no shape, `Unimplemented` for one with permuted dimensions.
pub(crate) fn tensor_shape(field: &Field) -> Result<Option<Vec<usize>>> {
    if extension(field) != Some("arrow.fixed_shape_tensor") {
        return Ok(None);
    }
    let damaged = || Error::data_loss(format!("column `{}`: a tensor without a shape", field.name()));
    let text = field.metadata().get("ARROW:extension:metadata").ok_or_else(damaged)?;
    let json: serde_json::Value = serde_json::from_str(text).map_err(|_| damaged())?;
    if let Some(order) = json.get("permutation").and_then(|p| p.as_array())
        && order.iter().enumerate().any(|(i, p)| p.as_u64() != Some(i as u64))
    {
        return Err(Error::unimplemented(format!(
            "column `{}`: a tensor with permuted dimensions; store it in the order of its shape",
            field.name()
        )));
    }
    let shape = json.get("shape").and_then(|s| s.as_array()).ok_or_else(damaged)?;
    shape
        .iter()
        .map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(damaged))
        .collect::<Result<Vec<_>>>()
        .map(Some)
}
