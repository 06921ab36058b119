//! The bounds of a process, as Python gives them.

use std::time::Duration;

use caju_kernels::Limits;
use caju_types::{Error, parse_bytes};
use pyo3::prelude::*;

use crate::errors::{IntoPy, exception};

/// What a cluster, a server or a check refuses to exceed; `caju._bounds.Bounds`. A bound that is `None` is the default.
#[derive(Debug, Default, FromPyObject)]
pub(crate) struct Bounds {
    /// Bytes that a stage may ask for while it works on one chunk of rows.
    chunk_memory: Option<u64>,
    /// Bytes of the largest record of a source.
    max_record: Option<u64>,
    /// Bytes of the largest row group of a Parquet file, in the columns that are read.
    row_group_memory: Option<u64>,
    /// Pixels of the largest image.
    max_pixels: Option<u64>,
    /// Seconds that checking and planning a definition may take.
    bind_timeout: Option<f64>,
}

impl Bounds {
    /// The limits that these bounds set.
    ///
    /// # Errors
    /// `InvalidArgument` for a timeout that is not a time.
    pub(crate) fn limits(&self, py: Python<'_>) -> PyResult<Limits> {
        let defaults = Limits::default();
        let bind_timeout = match self.bind_timeout {
            None => defaults.bind_timeout,
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|e| exception(py, &Error::invalid(format!("bind_timeout={seconds}: {e}"))))?,
        };
        Ok(Limits {
            chunk_bytes: self.chunk_memory.unwrap_or(defaults.chunk_bytes),
            chunk_steps: defaults.chunk_steps,
            max_record_bytes: self.max_record.unwrap_or(defaults.max_record_bytes),
            row_group_bytes: self.row_group_memory.unwrap_or(defaults.row_group_bytes),
            max_pixels: self.max_pixels.unwrap_or(defaults.max_pixels),
            bind_timeout,
            save_wait: defaults.save_wait,
        })
    }
}

/// The bytes of a size as text: `"64MiB"`.
#[pyfunction]
pub(crate) fn size_bytes(py: Python<'_>, text: &str) -> PyResult<u64> {
    parse_bytes(text).into_py(py)
}
