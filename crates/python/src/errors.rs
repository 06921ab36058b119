//! Errors as exceptions: the kind selects the class, the message stays.

use caju_types::{Error, ErrorKind, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The module with the exception classes by the name of their kind.
const CLASSES: &str = "caju._errors";

/// An error as an exception of the class for its kind.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, error).unwrap_or_else(|e| e)
}

fn raise(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let by_kind = py.import(CLASSES)?.getattr("BY_KIND")?.cast_into::<PyDict>()?;
    let message = match error.kind() {
        ErrorKind::Internal => format!("this is a defect of caju: {error}; please report it"),
        _ => error.to_string(),
    };
    match by_kind.get_item(error.kind().as_str())? {
        Some(class) => Ok(PyErr::from_value(class.call1((message,))?)),
        None => Ok(PyRuntimeError::new_err(message)),
    }
}

/// A result of the service, for Python.
pub(crate) trait IntoPy<T> {
    /// The value, or the exception.
    fn into_py(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> IntoPy<T> for Result<T> {
    fn into_py(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| exception(py, &e))
    }
}
