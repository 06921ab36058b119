//! The connection of Python to a dispatcher.

use std::time::Duration;

use caju_client::{
    Attempt, Balance, ClientConfig, Compression, Consumer, DatasetRef, LostReaders, ReadRequest, ReaderState,
    SaveTo, Sharing, Transfer, TransferProtocol, Uneven,
};
use caju_pipeline::DatasetDef;
use caju_proto::v1::TargetWorkers;
use caju_proto::{mode_from_name, mode_names};
use caju_types::{Error, IterationId, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cluster::local_workers;
use crate::errors::{IntoPy, exception};
use crate::fork::OfProcess;
use crate::reader::Reader;
use crate::runtime::{RuntimeHandle, detached};
use crate::saves;

/// How long the workers of a finished epoch may take to report. They report within a heartbeat, of at most a second.
const FINAL_STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a dispatcher.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Client {
    client: OfProcess<caju_client::Client>,
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
        Ok(Self { client: OfProcess::new(connected.into_py(py)?), runtime })
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
