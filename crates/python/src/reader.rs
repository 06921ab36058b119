//! Reading an epoch: elements as NumPy arrays or as Arrow.

use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_client::{
    Attempt, Balance, ClientConfig, Compression, Consumer, DatasetRef, Element, LostReaders, Monitor,
    ReadRequest, ReaderState, SaveTo, Sharing, Transfer, TransferProtocol, Uneven,
};
use caju_pipeline::DatasetDef;
use caju_proto::v1::TargetWorkers;
use caju_proto::{mode_from_name, mode_names};
use caju_types::{Error, IterationId, Result};
use caju_wire::schema_to_ipc;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyString, PyTuple};

use crate::arrays::numpy;
use crate::capsule::batch_capsules;
use crate::cluster::local_workers;
use crate::columns::Columns;
use crate::errors::{IntoPy, exception};
use crate::fork::check_fork;
use crate::logging;
use crate::runtime::{RuntimeHandle, check_signals, detached};
use crate::saves;

/// How long dropping a reader may block. The dispatcher notices by itself, only later, that a reader has left.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the workers of a finished epoch may take to report. They report within a heartbeat, of at most a second.
const FINAL_STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Rows, elements and bytes that were delivered; seconds waited, seconds to the first batch, seconds since opening; elements
/// that were padding; seconds waited for other consumers.
type Stats = (u64, u64, u64, f64, f64, f64, u64, f64, u64, u64);

/// A connection to a dispatcher.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Client {
    client: caju_client::Client,
    runtime: RuntimeHandle,
}

#[pymethods]
impl Client {
    /// Connects to the dispatcher at `address`. Times are in seconds and sizes in bytes; none: the default of `caju read`.
    #[new]
    #[pyo3(signature = (
        address, *, connect_timeout=None, open_timeout=None, worker_wait=None, dispatcher_timeout=None, stall_timeout=None, dial_timeout=None,
        worker_silence=None, prefetch=None, max_frame=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        address: String,
        connect_timeout: Option<f64>,
        open_timeout: Option<f64>,
        worker_wait: Option<f64>,
        dispatcher_timeout: Option<f64>,
        stall_timeout: Option<f64>,
        dial_timeout: Option<f64>,
        worker_silence: Option<f64>,
        prefetch: Option<usize>,
        max_frame: Option<u64>,
    ) -> PyResult<Self> {
        let runtime = RuntimeHandle::get().into_py(py)?;
        let time = |name: &str, seconds: Option<f64>, default: Duration| match seconds {
            None => Ok(default),
            Some(s) => Duration::try_from_secs_f64(s)
                .map_err(|e| exception(py, &Error::invalid(format!("{name}: {e}")))),
        };
        let defaults = ClientConfig::default();
        let config = ClientConfig {
            connect_timeout: time("connect_timeout", connect_timeout, defaults.connect_timeout)?,
            open_timeout: time("open_timeout", open_timeout, defaults.open_timeout)?,
            worker_timeout: time("worker_wait", worker_wait, defaults.worker_timeout)?,
            dispatcher_timeout: time("dispatcher_timeout", dispatcher_timeout, defaults.dispatcher_timeout)?,
            stall_timeout: time("stall_timeout", stall_timeout, defaults.stall_timeout)?,
            dial_timeout: time("dial_timeout", dial_timeout, defaults.dial_timeout)?,
            silence: time("worker_silence", worker_silence, defaults.silence)?,
            prefetch_bytes: prefetch.unwrap_or(defaults.prefetch_bytes),
            max_frame_bytes: max_frame.unwrap_or(defaults.max_frame_bytes),
            local: local_workers(),
            ..defaults
        };
        let connected =
            runtime.wait(py, async move { caju_client::Client::connect(&address, config).await })?;
        Ok(Self { client: connected.into_py(py)?, runtime })
    }

    /// Opens one epoch of a job.
    #[pyo3(signature = (
        definition, *, job="", epoch=0, seed=None, mode="dynamic", dataset_id=None, policy="", encoding="", epochs=0,
        lost_readers="fail", target_workers=None, states=Vec::new(), num_states=0,
        states_of_all=false, restored_beginning=false, after_iteration=0, attempt=None, consumer=None, sharing=None, priority=None, weight=None,
        compression="none", data_transfer_protocol="auto"
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn read(
        &self,
        py: Python<'_>,
        definition: Option<&str>,
        job: &str,
        epoch: u64,
        seed: Option<u64>,
        mode: &str,
        dataset_id: Option<String>,
        policy: &str,
        encoding: &str,
        epochs: u64,
        lost_readers: &str,
        target_workers: Option<&str>,
        states: Vec<String>,
        num_states: u64,
        states_of_all: bool,
        restored_beginning: bool,
        after_iteration: u64,
        attempt: Option<(String, Option<u32>)>,
        consumer: Option<(u32, u32, String, String)>,
        sharing: Option<(String, Option<String>)>,
        priority: Option<i32>,
        weight: Option<f64>,
        compression: &str,
        data_transfer_protocol: &str,
    ) -> PyResult<Reader> {
        let dataset = match (definition, dataset_id) {
            (Some(text), None) => {
                DatasetRef::Definition(Box::new(DatasetDef::from_json_str(text).into_py(py)?))
            }
            (None, Some(id)) => DatasetRef::Registered(id),
            _ => return Err(exception(py, &Error::invalid("give a definition or the id of one"))),
        };
        let Some(mode) = mode_from_name(mode) else {
            let why = format!("processing_mode `{mode}`: it is one of {}", mode_names());
            return Err(exception(py, &Error::invalid(why)));
        };
        let request = ReadRequest {
            job: job.to_owned(),
            epoch,
            seed,
            mode,
            dataset,
            policy: policy.to_owned(),
            encoding: encoding.to_owned(),
            epochs,
            save: None,
            lost_readers: if lost_readers == "allow" { LostReaders::Allow } else { LostReaders::Fail },
            target: match target_workers {
                Some(name) => caju_client::target_workers(name).into_py(py)?,
                None => TargetWorkers::Unspecified,
            },
            transfer: Transfer {
                protocol: TransferProtocol::of_name(data_transfer_protocol).into_py(py)?,
                compression: Compression::of_name(compression).into_py(py)?,
            },
            states: parse_states(&states).into_py(py)?,
            num_states,
            states_of_all,
            restored_beginning,
            after_iteration,
            attempt: attempt.map(|(id, rank)| Attempt { id, rank }),
            consumer: consumer.map(|(count, index, uneven, balance)| Consumer {
                index,
                count,
                uneven: if uneven == "pad" { Uneven::Pad } else { Uneven::Drop },
                balance: match balance.as_str() {
                    "bucket" => Balance::Bucket,
                    "tokens" => Balance::Tokens,
                    _ => Balance::None,
                },
            }),
            sharing: match sharing {
                Some((name, trainer_id)) => Sharing::from_name(&name, trainer_id).into_py(py)?,
                None => Sharing::AsJob,
            },
            priority,
            weight,
        };
        let client = self.client.clone();
        let opened = self.runtime.wait(py, async move { Box::pin(client.read(request)).await })?;
        Reader::new(py, opened.into_py(py)?, self.runtime.clone())
    }

    /// How many rows of a finished iteration were skipped under `on_error`, and file, row and reason of the first of these.
    /// `None` if the dispatcher has forgotten the iteration.
    fn skipped(&self, py: Python<'_>, iteration: u64) -> PyResult<Option<(u64, Vec<String>)>> {
        let client = self.client.clone();
        let status = self.runtime.wait(py, async move {
            client.final_status(IterationId(iteration), FINAL_STATUS_TIMEOUT).await
        })?;
        Ok(status.map(|job| (job.rows_skipped, job.first_skips)))
    }

    /// Registers a definition. Returns its identifier and its fingerprint.
    #[pyo3(signature = (definition, dataset_id=""))]
    fn register(&self, py: Python<'_>, definition: &str, dataset_id: &str) -> PyResult<(String, String)> {
        let def = DatasetDef::from_json_str(definition).into_py(py)?;
        let (client, id) = (self.client.clone(), dataset_id.to_owned());
        let done = self.runtime.wait(py, async move { client.register(&def, &id).await })?.into_py(py)?;
        Ok((done.dataset_id, done.fingerprint))
    }

    /// The fingerprint of a registered dataset, the schema of its elements as an Arrow IPC stream, and its definition as
    /// JSON.
    fn dataset<'py>(
        &self,
        py: Python<'py>,
        dataset_id: String,
    ) -> PyResult<(String, Bound<'py, PyBytes>, String)> {
        let client = self.client.clone();
        let found = self.runtime.wait(py, async move { client.dataset(&dataset_id).await })?.into_py(py)?;
        Ok((found.fingerprint, PyBytes::new(py, &found.schema_ipc), found.definition_json))
    }

    /// Starts to save a definition's rows. Returns the save's status as JSON.
    fn start_save(
        &self,
        py: Python<'_>,
        definition: &str,
        url: String,
        encoding: String,
        chunk_bytes: u64,
    ) -> PyResult<String> {
        let def = DatasetDef::from_json_str(definition).into_py(py)?;
        let (client, to) = (self.client.clone(), SaveTo { url, chunk_bytes });
        let started = self.runtime.wait(py, async move { client.start_save(&def, &to, &encoding).await })?;
        Ok(saves::status_json(&started.into_py(py)?))
    }

    /// The status of the save to a URL, as JSON.
    fn save_status(&self, py: Python<'_>, url: String) -> PyResult<String> {
        let client = self.client.clone();
        let status = self.runtime.wait(py, async move { client.save_status(&url).await })?;
        Ok(saves::status_json(&status.into_py(py)?))
    }

    /// Raises the error that a save failed with, if it failed.
    fn save_failure(&self, py: Python<'_>, url: String) -> PyResult<()> {
        let client = self.client.clone();
        let status = self.runtime.wait(py, async move { client.save_status(&url).await })?;
        saves::failure(&status.into_py(py)?).into_py(py)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let runtime = self.runtime.clone();
        detached(move || drop(runtime));
    }
}

fn parse_states(texts: &[String]) -> Result<Vec<ReaderState>> {
    texts.iter().map(|text| ReaderState::from_json(text)).collect()
}

/// The union of the states of readers of one epoch, as JSON.
#[pyfunction]
pub(crate) fn union_states(py: Python<'_>, states: Vec<String>) -> PyResult<String> {
    let union = parse_states(&states).and_then(|states| ReaderState::union(&states)?.to_json());
    union.into_py(py)
}

/// An open epoch of a job. It leaves the job when it is dropped or closed.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Reader {
    open: Mutex<Option<Open>>,
    /// The state at the end, once the reader is closed.
    last_state: Mutex<Option<Result<String>>>,
    monitor: Monitor,
    names: Vec<Py<PyString>>,
    schema: SchemaRef,
    #[pyo3(get)]
    job: String,
    #[pyo3(get)]
    fingerprint: String,
    #[pyo3(get)]
    seed: u64,
    #[pyo3(get)]
    iteration: u64,
}

/// The connection of a reader that is not closed.
struct Open {
    reader: caju_client::Reader,
    runtime: RuntimeHandle,
}

impl Reader {
    fn new(py: Python<'_>, reader: caju_client::Reader, runtime: RuntimeHandle) -> PyResult<Self> {
        let schema = reader.schema();
        Ok(Self {
            monitor: reader.monitor(),
            iteration: reader.iteration().0,
            names: schema.fields().iter().map(|f| PyString::new(py, f.name()).unbind()).collect(),
            job: reader.job().to_owned(),
            fingerprint: reader.fingerprint().to_owned(),
            seed: reader.seed(),
            open: Mutex::new(Some(Open { reader, runtime })),
            last_state: Mutex::default(),
            schema,
        })
    }

    fn next_element(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        // Before any lock: in a forked child, a thread that no longer exists may hold it.
        check_fork().into_py(py)?;
        logging::deliver(py)?;
        // An element that has arrived needs neither the runtime nor the release of the interpreter.
        if let Some(mut open) = self.open.try_lock()
            && let Some(open) = open.as_mut()
            && let Some(element) = open.reader.try_next().into_py(py)?
        {
            return Ok(Some(element.batch));
        }
        loop {
            let polled = py.detach(|| self.poll_element());
            logging::deliver(py)?;
            match polled.into_py(py)? {
                Some(element) => return Ok(element.map(|e| e.batch)),
                None => py.check_signals()?,
            }
        }
    }

    /// The next element, or `Some(None)` at the end; `None` if signals should be checked before it arrives.
    fn poll_element(&self) -> Result<Option<Option<Element>>> {
        check_fork()?;
        let mut open = self.open.lock();
        match open.as_mut() {
            None => Ok(Some(None)),
            Some(Open { reader, runtime }) => runtime.poll(reader.next())?.transpose(),
        }
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
                *self.last_state.lock() = Some(reader.state().and_then(|s| s.to_json()));
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

    /// The next element as Arrow. `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let schema = SchemaRef::clone(&self.schema);
        Ok(self.next_element(py)?.map(|batch| Batch { schema, batch }))
    }

    /// The position of this reader, as JSON: the last element that it gave is part of it.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        check_fork().into_py(py)?;
        let state = py.detach(|| {
            if let Some(open) = self.open.lock().as_ref() {
                return open.reader.state().and_then(|s| s.to_json());
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
        self.leave(Duration::try_from_secs_f64(timeout).unwrap_or_default());
        logging::deliver(py)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if check_fork().is_err() {
            std::mem::forget(self.open.get_mut().take());
            return;
        }
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
