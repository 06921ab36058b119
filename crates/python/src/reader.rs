//! Reading an epoch: elements as NumPy arrays or as Arrow.

use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_client::{ClientConfig, DatasetRef, Element, LostReaders, Monitor, ReadRequest, SaveTo};
use caju_pipeline::DatasetDef;
use caju_proto::v1::ProcessingMode;
use caju_types::{Error, IterationId, Result};
use caju_wire::schema_to_ipc;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::cluster::local_workers;
use crate::columns::Columns;
use crate::errors::{IntoPy, exception};
use crate::logging;
use crate::numpy::numpy;
use crate::parts;
use crate::runtime::{Share, check_fork, released};
use crate::saves;

/// How long a reader that was dropped may hold up whoever dropped it.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// How long the workers of an epoch that is over may take to report.
const FINAL_STATUS: Duration = Duration::from_secs(2);

/// A connection to a dispatcher.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Client {
    client: caju_client::Client,
    share: Share,
}

#[pymethods]
impl Client {
    /// Connects to the dispatcher at `address`, looking for it as long as `connect_timeout` seconds.
    #[new]
    #[pyo3(signature = (address, connect_timeout=10.0, prefetch_bytes=None))]
    fn new(
        py: Python<'_>,
        address: String,
        connect_timeout: f64,
        prefetch_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let share = Share::get().into_py(py)?;
        let connect_timeout = Duration::try_from_secs_f64(connect_timeout)
            .map_err(|e| exception(py, &Error::invalid(format!("connect_timeout: {e}"))))?;
        let defaults = ClientConfig::default();
        let config = ClientConfig {
            connect_timeout,
            prefetch_bytes: prefetch_bytes.unwrap_or(defaults.prefetch_bytes),
            local: local_workers(),
            ..defaults
        };
        let connected =
            share.wait(py, async move { caju_client::Client::connect(&address, config).await })?;
        Ok(Self { client: connected.into_py(py)?, share })
    }

    /// Opens one epoch of a job.
    #[pyo3(signature = (
        definition, *, job="", epoch=0, seed=None, mode="dynamic", dataset_id=None, policy="", encoding="", epochs=0,
        lost_readers="fail"
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
    ) -> PyResult<Reader> {
        let dataset = match (definition, dataset_id) {
            (Some(text), None) => {
                DatasetRef::Definition(Box::new(DatasetDef::from_json_str(text).into_py(py)?))
            }
            (None, Some(id)) => DatasetRef::Registered(id),
            _ => return Err(exception(py, &Error::invalid("give a definition or the id of one"))),
        };
        let mode = match mode {
            "dynamic" => ProcessingMode::Dynamic,
            "off" => ProcessingMode::Off,
            other => {
                let why = format!("processing_mode `{other}`: say \"dynamic\" or \"off\"");
                return Err(exception(py, &Error::invalid(why)));
            }
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
        };
        let client = self.client.clone();
        let opened = self.share.wait(py, async move { Box::pin(client.read(request)).await })?;
        Reader::new(py, opened.into_py(py)?, self.share.clone())
    }

    /// Of an iteration that was read to its end: how many rows were skipped under `on_error`, and file, row and reason of
    /// the first of these. `None` if the dispatcher does not know it any more.
    fn skipped(&self, py: Python<'_>, iteration: u64) -> PyResult<Option<(u64, Vec<String>)>> {
        let client = self.client.clone();
        let status = self
            .share
            .wait(py, async move { client.final_status(IterationId(iteration), FINAL_STATUS).await })?;
        Ok(status.map(|job| (job.rows_skipped, job.first_skips)))
    }

    /// Registers a definition; the identifier and the fingerprint that it got.
    #[pyo3(signature = (definition, dataset_id=""))]
    fn register(&self, py: Python<'_>, definition: &str, dataset_id: &str) -> PyResult<(String, String)> {
        let def = DatasetDef::from_json_str(definition).into_py(py)?;
        let (client, id) = (self.client.clone(), dataset_id.to_owned());
        let done = self.share.wait(py, async move { client.register(&def, &id).await })?.into_py(py)?;
        Ok((done.dataset_id, done.fingerprint))
    }

    /// What is registered under an identifier: its fingerprint, its elements' schema as an Arrow IPC stream, and its
    /// definition as JSON.
    fn dataset<'py>(
        &self,
        py: Python<'py>,
        dataset_id: String,
    ) -> PyResult<(String, Bound<'py, PyBytes>, String)> {
        let client = self.client.clone();
        let found = self.share.wait(py, async move { client.dataset(&dataset_id).await })?.into_py(py)?;
        Ok((found.fingerprint, PyBytes::new(py, &found.schema_ipc), found.definition_json))
    }

    /// Begins to save a definition's rows; how it goes, as JSON.
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
        let begun = self.share.wait(py, async move { client.start_save(&def, &to, &encoding).await })?;
        Ok(saves::told(&begun.into_py(py)?))
    }

    /// How the save to a URL goes, as JSON.
    fn save_status(&self, py: Python<'_>, url: String) -> PyResult<String> {
        let client = self.client.clone();
        let status = self.share.wait(py, async move { client.save_status(&url).await })?;
        Ok(saves::told(&status.into_py(py)?))
    }

    /// Raises what a save failed with.
    fn save_failure(&self, py: Python<'_>, url: String) -> PyResult<()> {
        let client = self.client.clone();
        let status = self.share.wait(py, async move { client.save_status(&url).await })?;
        saves::failure(&status.into_py(py)?).into_py(py)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let share = self.share.clone();
        released(move || drop(share));
    }
}

/// One epoch of a job, being read. Leaves the job when it is dropped or closed.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Reader {
    open: Mutex<Option<Open>>,
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

/// What is there until the reader is closed.
struct Open {
    reader: caju_client::Reader,
    share: Share,
}

impl Reader {
    fn new(py: Python<'_>, reader: caju_client::Reader, share: Share) -> PyResult<Self> {
        let schema = reader.schema();
        Ok(Self {
            monitor: reader.monitor(),
            iteration: reader.iteration().0,
            names: schema.fields().iter().map(|f| PyString::new(py, f.name()).unbind()).collect(),
            job: reader.job().to_owned(),
            fingerprint: reader.fingerprint().to_owned(),
            seed: reader.seed(),
            open: Mutex::new(Some(Open { reader, share })),
            schema,
        })
    }

    fn next_element(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        // Before any lock: in a forked child a thread that is no more may hold it.
        check_fork().into_py(py)?;
        logging::deliver(py)?;
        // What is at hand needs neither the runtime nor the interpreter's release.
        if let Some(mut open) = self.open.try_lock()
            && let Some(open) = open.as_mut()
            && let Some(element) = open.reader.try_next().into_py(py)?
        {
            return Ok(Some(element.batch));
        }
        loop {
            let turn = py.detach(|| self.wait_a_little());
            logging::deliver(py)?;
            match turn.into_py(py)? {
                Some(element) => return Ok(element.map(|e| e.batch)),
                None => py.check_signals()?,
            }
        }
    }

    /// The next element, or the end; `None` if it takes longer than a tick.
    fn wait_a_little(&self) -> Result<Option<Option<Element>>> {
        check_fork()?;
        let mut open = self.open.lock();
        match open.as_mut() {
            None => Ok(Some(None)),
            Some(Open { reader, share }) => share.tick(reader.next())?.transpose(),
        }
    }

    /// Leaves the job, waiting no longer than `patience` for the dispatcher to hear of it.
    fn leave(&self, patience: Duration) {
        if check_fork().is_err() {
            return; // threads and connections are in another process, and maybe the lock too
        }
        let open = self.open.lock().take();
        if let Some(Open { reader, share }) = open {
            share.finish(async { tokio::time::timeout(patience, reader.close()).await.is_ok() });
        }
    }

    fn to_numpy<'py>(
        &self,
        py: Python<'py>,
        batch: &RecordBatch,
        row: bool,
        dense: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let columns = Columns { py, numpy: numpy(py)?, dense, apart: false };
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
    /// The next element as a dict of NumPy arrays; of single values if `row`, of one array for lists of one length if
    /// `dense`. `None` at the end.
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

    /// The next element as it is. `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        Ok(self.next_element(py)?.map(|batch| Batch { batch }))
    }

    /// The schema of the rows as an Arrow IPC stream.
    #[getter]
    fn schema_ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &schema_to_ipc(&self.schema).into_py(py)?))
    }

    /// What was delivered so far: rows, elements, bytes, seconds waited, seconds to the first batch, seconds.
    #[getter]
    fn stats(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, f64, f64, f64)> {
        check_fork().into_py(py)?;
        let s = self.monitor.progress().stats;
        let seconds = |d: Duration| d.as_secs_f64();
        Ok((s.rows, s.elements, s.bytes, seconds(s.wait), seconds(s.first_batch), seconds(s.elapsed)))
    }

    /// Splits handed out, and splits in all (0 while the listing goes on).
    #[getter]
    fn splits(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        check_fork().into_py(py)?;
        let p = self.monitor.progress();
        Ok((p.splits_leased, p.splits_total))
    }

    /// What holds the pipeline up at present: `consumer`, or a stage.
    #[getter]
    fn bottleneck(&self, py: Python<'_>) -> PyResult<Option<String>> {
        check_fork().into_py(py)?;
        Ok(self.monitor.progress().bottleneck)
    }

    /// Leaves the job; rows that were not taken go to its other readers. Waits no longer than `patience` seconds for
    /// the dispatcher to hear of it; if it does not, it notices by itself in time.
    #[pyo3(signature = (patience=5.0))]
    fn close(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        py.detach(|| self.leave(Duration::try_from_secs_f64(patience).unwrap_or_default()));
        logging::deliver(py)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if check_fork().is_err() {
            std::mem::forget(self.open.get_mut().take());
            return;
        }
        released(|| self.leave(FORGOTTEN));
    }
}

/// An element as Arrow holds it.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Batch {
    batch: RecordBatch,
}

#[pymethods]
impl Batch {
    /// Rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// The columns' buffers, for pyarrow; `None` for types that buffers alone do not describe.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyTuple>>>> {
        parts::batch_parts(py, &self.batch)
    }

    /// The batch as an Arrow IPC stream.
    fn ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        parts::batch_ipc(py, &self.batch)
    }
}
