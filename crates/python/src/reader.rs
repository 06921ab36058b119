//! Reading an epoch: elements as NumPy arrays or as Arrow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use caju_client::Monitor;
use caju_types::{Error, Result};
use caju_wire::schema_to_ipc;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyString, PyTuple};

use crate::arrays::numpy;
use crate::capsule::batch_capsules;
use crate::columns::Columns;
use crate::copied::{Values, joined};
use crate::errors::IntoPy;
use crate::fork::{OfProcess, check_fork};
use crate::logging;
use crate::runtime::{RuntimeHandle, check_signals, detached};

/// How long dropping a reader may block. The dispatcher notices by itself, only later, that a reader has left.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// Rows, elements and bytes that were delivered; seconds waited, seconds to the first batch, seconds since opening; elements
/// that were padding; seconds waited for other consumers.
type Stats = (u64, u64, u64, f64, f64, f64, u64, f64, u64, u64);

/// An open epoch of a job. It leaves the job when it is dropped or closed.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Reader {
    open: OfProcess<Mutex<Option<Open>>>,
    /// The state at the end, once the reader is closed.
    last_state: Mutex<Option<Result<String>>>,
    /// Elements that were taken for the loop. The last one may not have reached it.
    taken: AtomicU64,
    /// The last call took one.
    took: AtomicBool,
    monitor: OfProcess<Monitor>,
    names: Vec<Py<PyString>>,
    schema: SchemaRef,
    #[pyo3(get)]
    job: String,
    #[pyo3(get)]
    fingerprint: String,
    #[pyo3(get)]
    seed: u64,
    /// As it was when it was last looked at: an epoch that is opened again has another one.
    iteration: AtomicU64,
    /// Why a state within the epoch is refused; None if it is not.
    #[pyo3(get)]
    not_exact: Option<String>,
}

/// The connection of a reader that is not closed.
struct Open {
    reader: caju_client::Reader,
    runtime: RuntimeHandle,
}

impl Reader {
    pub(crate) fn new(py: Python<'_>, reader: caju_client::Reader, runtime: RuntimeHandle) -> PyResult<Self> {
        let schema = reader.schema();
        Ok(Self {
            monitor: OfProcess::new(reader.monitor()),
            iteration: AtomicU64::new(reader.iteration().0),
            names: schema.fields().iter().map(|f| PyString::new(py, f.name()).unbind()).collect(),
            job: reader.job().to_owned(),
            fingerprint: reader.fingerprint().to_owned(),
            seed: reader.seed(),
            not_exact: reader.not_exact().map(str::to_owned),
            open: OfProcess::new(Mutex::new(Some(Open { reader, runtime }))),
            last_state: Mutex::default(),
            taken: AtomicU64::new(0),
            took: AtomicBool::new(false),
            schema,
        })
    }

    fn next_element(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let arrived = |open: &mut Open| open.reader.try_next();
        let next = self.wait(py, arrived, |open| open.runtime.poll(open.reader.next()))?;
        Ok(next.map(|element| element.batch))
    }

    /// The next element: what `arrived` gives without waiting, or what `poll` waits for; `None` at the end of the epoch. `poll` gives
    /// `None` if signals should be checked before the element arrives.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        arrived: impl Fn(&mut Open) -> Result<Option<T>>,
        poll: impl Fn(&mut Open) -> Result<Option<Result<Option<T>>>> + Sync,
    ) -> PyResult<Option<T>> {
        self.took.store(false, Ordering::Relaxed);
        // Before any lock: in a forked child, a thread that no longer exists may hold it.
        check_fork().into_py(py)?;
        logging::deliver(py)?;
        // An element that has arrived needs neither the runtime nor the release of the interpreter.
        if let Some(mut open) = self.open.try_lock()
            && let Some(open) = open.as_mut()
            && let Some(next) = arrived(open).into_py(py)?
        {
            self.count_taken();
            return Ok(Some(next));
        }
        loop {
            let polled = py.detach(|| {
                check_fork()?;
                self.open.lock().as_mut().map_or(Ok(Some(None)), |open| poll(open)?.transpose())
            });
            // The epoch's own error comes before one of a handler of logs, which `close` calls.
            let polled = polled.into_py(py)?;
            if let Some(Some(_)) = polled {
                self.count_taken();
            }
            logging::deliver(py)?;
            match polled {
                Some(next) => return Ok(next),
                None => py.check_signals()?,
            }
        }
    }

    /// An element was taken. What fails from now on leaves it to [`Reader::give_back`].
    fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.took.store(true, Ordering::Relaxed);
    }

    /// Whether the epoch has the columns of a schema. Metadata and nullability may differ.
    pub(crate) fn has_columns_of(&self, schema: &SchemaRef) -> bool {
        let columns = |s: &SchemaRef| {
            s.fields().iter().map(|f| (f.name().clone(), f.data_type().clone())).collect::<Vec<_>>()
        };
        let (ours, theirs) = (columns(&self.schema), columns(schema));
        ours.len() == theirs.len()
            && ours.iter().zip(&theirs).all(|((n, t), (m, u))| n == m && t.equals_datatype(u))
    }

    /// The next rows as they arrived, whatever elements they form; `None` at the end. Releases the interpreter, and may be
    /// called from any thread.
    ///
    /// # Errors
    /// The epoch's failure; `Cancelled` if the reader was closed, or a signal handler raised.
    pub(crate) fn next_pieces(&self) -> Result<Option<Vec<RecordBatch>>> {
        check_fork()?;
        loop {
            let mut polled = None;
            detached(|| polled = Some(self.poll_pieces()));
            match polled.transpose()?.flatten() {
                Some(pieces) => return Ok(pieces),
                None => check_signals()?,
            }
        }
    }

    fn poll_pieces(&self) -> Result<Option<Option<Vec<RecordBatch>>>> {
        match self.open.lock().as_mut() {
            None => {
                Err(Error::cancelled(format!("the epoch of job `{}` was closed while it was read", self.job)))
            }
            Some(Open { reader, runtime }) => {
                let chunk = runtime.poll(reader.next_chunk())?.transpose()?;
                Ok(chunk.map(|chunk| chunk.map(|c| c.pieces)))
            }
        }
    }

    /// Leaves the job. Waits no longer than `timeout` for the dispatcher to know.
    pub(crate) fn leave(&self, timeout: Duration) {
        if check_fork().is_err() {
            return; // threads and connections are in another process, and maybe the lock too
        }
        detached(|| {
            let open = self.open.lock().take();
            if let Some(Open { reader, runtime }) = open {
                self.iteration.store(reader.iteration().0, Ordering::Relaxed);
                // Unless it is known already that there is none.
                self.last_state.lock().get_or_insert_with(|| reader.position().and_then(|s| s.to_json()));
                runtime.finish(async { tokio::time::timeout(timeout, reader.close()).await.is_ok() });
            }
        });
    }

    fn to_numpy<'py>(
        &self,
        py: Python<'py>,
        batch: &RecordBatch,
        row: bool,
        dense: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let columns = Columns { py, numpy: numpy(py)?, dense, nulls_apart: false };
        let out = PyDict::new(py);
        for ((name, field), array) in self.names.iter().zip(self.schema.fields()).zip(batch.columns()) {
            let value = if row { columns.first(field, array)? } else { columns.column(field, array)? };
            out.set_item(name.bind(py), value)?;
        }
        Ok(out)
    }
}

#[pymethods]
impl Reader {
    /// The number of the iteration that is read.
    #[getter]
    fn iteration(&self) -> u64 {
        if check_fork().is_ok()
            && let Some(open) = self.open.try_lock()
            && let Some(open) = open.as_ref()
        {
            self.iteration.store(open.reader.iteration().0, Ordering::Relaxed);
        }
        self.iteration.load(Ordering::Relaxed)
    }

    /// The next element as a dict of NumPy arrays, or of single values if `row`. With `dense`, lists of equal length are one
    /// array. `None` at the end.
    #[pyo3(signature = (row, dense=false))]
    fn next_numpy<'py>(
        &self,
        py: Python<'py>,
        row: bool,
        dense: bool,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        match self.next_element(py)? {
            Some(batch) => self.to_numpy(py, &batch, row, dense).map(Some),
            None => Ok(None),
        }
    }

    /// The next element as a dict, or `None` at the end. Large columns of numbers without nulls are copied to arrays that
    /// `allocate(shape, dtype)` makes: it returns what the dict shall hold, and its memory as a NumPy array of bytes. The other columns
    /// are those of `next_numpy`.
    fn next_copied<'py>(
        &self,
        py: Python<'py>,
        dense: bool,
        allocate: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let arrived = |open: &mut Open| open.reader.try_next_parts();
        let parts = self.wait(py, arrived, |open| open.runtime.poll(open.reader.next_parts()))?;
        let Some(parts) = parts else { return Ok(None) };
        let columns = Columns { py, numpy: numpy(py)?, dense, nulls_apart: false };
        let out = PyDict::new(py);
        for (at, (name, field)) in self.names.iter().zip(self.schema.fields()).enumerate() {
            let arrays: Vec<&ArrayRef> = parts.iter().map(|part| part.column(at)).collect();
            let value = match Values::of(field, &arrays).into_py(py)? {
                Some(values) => values.copy_to(py, allocate)?,
                None => columns.column(field, &joined(field, &arrays).into_py(py)?)?,
            };
            out.set_item(name.bind(py), value)?;
        }
        Ok(Some(out))
    }

    /// The next element as Arrow. `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let schema = SchemaRef::clone(&self.schema);
        Ok(self.next_element(py)?.map(|batch| Batch { schema, batch }))
    }

    /// The last call failed, and the loop has got `delivered` elements of this reader. If one more was taken, it could not be
    /// converted, or the thread was interrupted: no state counts it, and other readers of the job get it. The reader gives
    /// nothing more then.
    fn give_back(&self, py: Python<'_>, delivered: u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        // An interrupt may have come before the reader was asked: then the loop has the last element.
        if check_fork().is_err() || !self.took.swap(false, Ordering::Relaxed) || taken <= delivered {
            return;
        }
        py.detach(|| {
            if taken - delivered == 1
                && let Some(open) = self.open.lock().as_mut()
            {
                return open.reader.give_back();
            }
            // The reader was closed meanwhile, or another thread took elements: the position counts the element.
            *self.last_state.lock() = Some(Err(Error::failed_precondition(
                "an element did not reach the loop while another thread read or closed the epoch: no state is known that does not \
                 count this element; go on from an earlier state",
            )));
        });
    }

    /// The position of this reader, as JSON: the last element that it gave is part of it, unless it was given back.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        check_fork().into_py(py)?;
        let state = py.detach(|| {
            if let Some(open) = self.open.lock().as_ref() {
                return open.reader.position().and_then(|s| s.to_json());
            }
            let closed = self.last_state.lock().clone();
            closed.unwrap_or_else(|| Err(Error::cancelled("the reader is being closed")))
        });
        state.into_py(py)
    }

    /// The schema of the rows as an Arrow IPC stream.
    #[getter]
    fn schema_ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &schema_to_ipc(&self.schema).into_py(py)?))
    }

    /// What was delivered so far.
    #[getter]
    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        check_fork().into_py(py)?;
        let s = self.monitor.progress().stats;
        let seconds = |d: Duration| d.as_secs_f64();
        let times = (seconds(s.wait), seconds(s.first_batch), seconds(s.elapsed));
        Ok((
            s.rows,
            s.elements,
            s.bytes,
            times.0,
            times.1,
            times.2,
            s.padded_elements,
            seconds(s.consumer_wait),
            s.received_bytes,
            s.mapped_bytes,
        ))
    }

    /// The number of splits that were assigned, and of all splits (0 until the source is listed).
    #[getter]
    fn splits(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        check_fork().into_py(py)?;
        let p = self.monitor.progress();
        Ok((p.splits_leased, p.splits_total))
    }

    /// The current bottleneck: `consumer`, or a stage.
    #[getter]
    fn bottleneck(&self, py: Python<'_>) -> PyResult<Option<String>> {
        check_fork().into_py(py)?;
        Ok(self.monitor.progress().bottleneck)
    }

    /// Leaves the job. Rows that were not taken go to its other readers. Waits no longer than `timeout` seconds for the
    /// dispatcher to know; later it notices by itself.
    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        self.leave(timeout);
        logging::deliver(py)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.leave(DROP_TIMEOUT);
    }
}

/// An element as an Arrow record batch.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Batch {
    schema: SchemaRef,
    batch: RecordBatch,
}

#[pymethods]
impl Batch {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// The batch for other libraries, over the same memory.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        batch_capsules(py, &self.schema, &self.batch, requested_schema.as_ref())
    }
}
