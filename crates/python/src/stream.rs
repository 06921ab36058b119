//! An epoch as a stream of Arrow's C data interface, for consumers that are not Python code.

use std::collections::VecDeque;
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use caju_types::{Error, Result};
use caju_wire::schema_from_ipc;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::capsule::{cast_batch, requested_schema, stream_capsule};
use crate::errors::IntoPy;
use crate::fork::check_fork;
use crate::reader::Reader;
use crate::runtime::as_error;

/// How long a stream that is released before its end waits for the dispatcher.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The rows of an epoch, in batches as workers send them, whatever elements they form.
///
/// The epoch is opened with the first batch: some consumers ask for a stream only to look at its schema.
struct EpochStream {
    /// The columns of the dataset.
    schema: SchemaRef,
    /// The columns of the stream.
    target: SchemaRef,
    epoch: Epoch,
    ready: VecDeque<RecordBatch>,
}

enum Epoch {
    /// A function of Python that opens the epoch and returns its reader.
    Unopened(Py<PyAny>),
    /// It is read.
    Open {
        reader: Py<Reader>,
        /// The function, which keeps the dataset and its cluster alive.
        #[expect(dead_code, reason = "owns what the reader needs")]
        owner: Py<PyAny>,
    },
    /// It was read to its end, or failed with this message.
    Over(Option<Error>),
}

/// A stream over the next epoch, as a capsule. `schema_ipc` is the schema of the dataset, `open` opens the epoch and returns
/// its `Reader`, `requested_schema` is the capsule of the schema that the consumer would like.
#[pyfunction]
#[pyo3(signature = (schema_ipc, open, requested=None))]
pub(crate) fn epoch_stream<'py>(
    py: Python<'py>,
    schema_ipc: &[u8],
    open: Py<PyAny>,
    requested: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let no_schema = || Error::internal("the schema of a stream has no columns");
    let schema = schema_from_ipc(schema_ipc).and_then(|s| s.ok_or_else(no_schema)).into_py(py)?;
    let target = requested_schema(py, &schema, requested.as_ref())?;
    let epoch = Epoch::Unopened(open);
    stream_capsule(py, EpochStream { schema, target, epoch, ready: VecDeque::new() })
}

impl EpochStream {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        check_fork()?;
        loop {
            if let Some(batch) = self.ready.pop_front() {
                let cast = cast_batch(&batch, &self.target);
                return cast.map(Some).map_err(|e| Error::invalid(format!("the requested schema: {e}")));
            }
            match &self.epoch {
                Epoch::Unopened(open) => self.epoch = self.open(open)?,
                Epoch::Open { reader, .. } => match reader.get().next_pieces()? {
                    Some(pieces) => self.ready.extend(pieces),
                    None => {
                        reader.get().leave(LEAVE_TIMEOUT);
                        self.epoch = Epoch::Over(None);
                    }
                },
                Epoch::Over(None) => return Ok(None),
                Epoch::Over(Some(e)) => return Err(e.clone()),
            }
        }
    }

    fn open(&self, open: &Py<PyAny>) -> Result<Epoch> {
        let opened = Python::try_attach(|py| {
            let reader = open.call0(py).and_then(|r| Ok(r.extract::<Py<Reader>>(py)?));
            reader
                .map_err(|e| as_error(py, &e))
                .map(|reader| Epoch::Open { reader, owner: open.clone_ref(py) })
        });
        let epoch = opened.unwrap_or_else(|| Err(Error::cancelled("the interpreter is shutting down")))?;
        if let Epoch::Open { reader, .. } = &epoch
            && !reader.get().has_columns_of(&self.schema)
        {
            return Err(Error::failed_precondition(
                "the columns of the source have changed since the stream was made; ask for a new one",
            ));
        }
        Ok(epoch)
    }
}

impl Iterator for EpochStream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch()
            .inspect_err(|e| {
                // An epoch that failed has no end: a consumer that tries again gets the same error.
                if let Epoch::Open { reader, .. } =
                    std::mem::replace(&mut self.epoch, Epoch::Over(Some(e.clone())))
                {
                    reader.get().leave(LEAVE_TIMEOUT);
                }
            })
            // The C interface ends a message at its first NUL.
            .map_err(|e| ArrowError::ExternalError(e.to_string().replace('\0', "\\0").into()))
            .transpose()
    }
}

impl RecordBatchReader for EpochStream {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.target)
    }
}

impl Drop for EpochStream {
    fn drop(&mut self) {
        if let Epoch::Open { reader, .. } = &self.epoch {
            reader.get().leave(LEAVE_TIMEOUT);
        }
    }
}
