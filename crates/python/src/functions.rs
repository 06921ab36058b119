//! The pool of processes that runs Python functions of users, for tests; and how these processes read their rows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::compute::concat_batches;
use arrow::ipc::reader::StreamReader;
use arrow_array::RecordBatch;
use caju_functions::{Function, Kind, Pool, PoolConfig, WaitForAll};
use caju_types::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arrays::numpy;
use crate::columns::Columns;
use crate::errors::{IntoPy, exception};
use crate::fork::OfProcess;
use crate::inline_table::write_ipc;

/// A pool for one function.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct FunctionPool {
    pool: OfProcess<Pool>,
    function: Arc<Function>,
}

#[pymethods]
impl FunctionPool {
    /// A pool of up to `processes` processes of the interpreter `python`, for the pickled function `payload`.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        python: String,
        processes: usize,
        timeout: f64,
        name: String,
        kind: &str,
        batched: bool,
        payload: Vec<u8>,
    ) -> PyResult<Self> {
        let kind = match kind {
            "map" => Kind::Map,
            "filter" => Kind::Filter,
            "flat_map" => Kind::FlatMap,
            other => {
                let why = format!("`{other}` is not one of map, filter, flat_map");
                return Err(exception(py, &Error::invalid(why)));
            }
        };
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|e| exception(py, &Error::invalid(format!("timeout: {e}"))))?;
        let pool = Pool::new(PoolConfig { timeout, ..PoolConfig::new(python, processes) });
        Ok(Self {
            pool: OfProcess::new(pool),
            function: Arc::new(Function { name, payload, kind, batched, timeout: None }),
        })
    }

    /// Runs the function over the rows of an Arrow IPC stream. Returns the stream of its output, and the input row of each
    /// output row.
    #[pyo3(signature = (rows, seeds=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        rows: &[u8],
        seeds: Option<Vec<u64>>,
    ) -> PyResult<(Bound<'py, PyBytes>, Option<Vec<u32>>)> {
        let done = py.detach(|| {
            let batch = read_batch(rows)?;
            let whole = &mut WaitForAll;
            self.pool.call(&self.function, &batch, seeds.as_deref(), whole).map_err(|e| match e.row {
                Some(row) => e.error.context(format!("row {row}")),
                None => e.error,
            })
        });
        let output = done.into_py(py)?;
        let ipc = py.detach(|| write_ipc(&output.batch.schema(), std::slice::from_ref(&output.batch)));
        Ok((PyBytes::new(py, &ipc.into_py(py)?), output.rows))
    }

    /// The number of processes that run.
    #[getter]
    fn processes(&self) -> usize {
        self.pool.processes()
    }
}

/// The rows of a file as a dict of NumPy arrays.
#[pyfunction]
pub(crate) fn read_rows(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let read = || {
        let bytes = std::fs::read(&path).map_err(|e| Error::exhausted(format!("{}: {e}", path.display())))?;
        read_batch(&bytes)
    };
    let batch = py.detach(read).into_py(py)?;
    let columns = Columns { py, numpy: numpy(py)?, dense: false, nulls_apart: true };
    let out = PyDict::new(py);
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        out.set_item(field.name(), columns.column(field, array)?)?;
    }
    Ok(out)
}

fn read_batch(bytes: &[u8]) -> Result<RecordBatch> {
    let bad = |e| Error::data_loss(format!("not an Arrow IPC stream: {e}"));
    let reader = StreamReader::try_new(std::io::Cursor::new(bytes), None).map_err(bad)?;
    let schema = reader.schema();
    let batches = reader.collect::<std::result::Result<Vec<_>, _>>().map_err(bad)?;
    concat_batches(&schema, &batches).map_err(bad)
}
