//! A reader that writes down what its user takes. It is killed in the middle of that.

use std::path::PathBuf;
use std::time::Duration;

use arrow::util::display::array_value_to_string;
use arrow_array::RecordBatch;
use caju_client::{Client, ClientConfig, Consumer, LostReaders, ReadRequest, Reader, ReaderState};
use caju_pipeline::DatasetDef;
use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use super::ledger::{Entry, Ledger};

/// How long the reader looks for a dispatcher that is away when it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the reader waits for the workers' last reports of an epoch.
const FINAL_STATUS: Duration = Duration::from_secs(1);
/// Elements from one checkpoint to the next.
const CHECKPOINT_ELEMENTS: usize = 10;

/// What a reader reads, and where it writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The dispatcher's address.
    pub dispatcher: String,
    /// The file of the pipeline, as JSON.
    pub pipeline: PathBuf,
    /// The epochs of the job.
    pub epochs: u64,
    /// The caching policy.
    pub policy: String,
    /// Whether rows may be missing that lost readers took.
    pub allows_lost_readers: bool,
    /// Which consumer of the job it is, of how many.
    pub consumer: Option<(u32, u32)>,
    /// The file of what was taken.
    pub ledger: PathBuf,
    /// The file of the checkpoint. If it exists, the reader continues from it.
    pub checkpoint: Option<PathBuf>,
}

/// A state of the reader, and what its user had taken by then.
#[derive(Debug, Serialize, Deserialize)]
struct Checkpoint {
    state: String,
    ledger_bytes: u64,
}

/// Reads the epochs that are left. Each element is in the ledger before the next one is asked for, which is what
/// acknowledges it.
///
/// # Errors
/// Those of the client, and of files.
pub async fn run(settings: &Settings) -> Result<()> {
    let def = DatasetDef::from_json_str(&std::fs::read_to_string(&settings.pipeline).map_err(failed)?)?;
    let (state, ledger_bytes) = settings.found()?.unzip();
    // A trainer that continues from a checkpoint has forgotten everything after it.
    let mut ledger = Ledger::open(&settings.ledger, ledger_bytes.unwrap_or(0)).map_err(failed)?;
    let config = ClientConfig { connect_timeout: CONNECT_TIMEOUT, ..ClientConfig::default() };
    let client = Client::connect(&settings.dispatcher, config).await?;
    let first = state.as_ref().map_or(0, |s| s.epoch + u64::from(s.exhausted));
    for epoch in first..settings.epochs {
        let states = state.iter().filter(|s| s.epoch == epoch).cloned().collect();
        let request = ReadRequest { states, epoch, ..settings.request(def.clone()) };
        let mut reader = client.read(request).await?;
        let taken = settings.take(&mut reader, epoch, &mut ledger).await;
        let (iteration, incomplete) = (reader.iteration(), reader.incomplete().unwrap_or_default());
        reader.close().await;
        let status = client.final_status(iteration, FINAL_STATUS).await;
        let end = Entry::End {
            epoch,
            rows_missing: incomplete.rows_missing,
            rows_lost: incomplete.rows_taken_by_lost_readers,
            is_unknown: incomplete.rows_unknown,
            surplus_elements: status.map_or(0, |s| s.surplus_elements),
        };
        ledger.write(&end).map_err(failed)?;
        taken?;
    }
    Ok(())
}

impl Settings {
    fn request(&self, def: DatasetDef) -> ReadRequest {
        let lost = if self.allows_lost_readers { LostReaders::Allow } else { LostReaders::Fail };
        ReadRequest {
            job: "train".to_string(),
            policy: self.policy.clone(),
            epochs: self.epochs,
            lost_readers: lost,
            consumer: self.consumer.map(|(index, count)| Consumer::new(index, count)),
            ..ReadRequest::of(def)
        }
    }

    /// Takes an epoch to its end.
    async fn take(&self, reader: &mut Reader, epoch: u64, ledger: &mut Ledger) -> Result<()> {
        let mut elements = 0;
        while let Some(element) = reader.next().await? {
            let rows = if element.is_padding { Vec::new() } else { rows_of(&element.batch)? };
            ledger.write(&Entry::Element { epoch, rows }).map_err(failed)?;
            elements += 1;
            if elements % CHECKPOINT_ELEMENTS == 0 {
                self.save(reader, ledger)?;
            }
        }
        self.save(reader, ledger)
    }

    fn save(&self, reader: &Reader, ledger: &Ledger) -> Result<()> {
        let Some(path) = &self.checkpoint else { return Ok(()) };
        let checkpoint = Checkpoint { state: reader.state()?.to_json()?, ledger_bytes: ledger.bytes() };
        let unfinished = path.with_extension("unfinished");
        let text = serde_json::to_string(&checkpoint).map_err(failed)?;
        std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(unfinished, path)).map_err(failed)
    }

    fn found(&self) -> Result<Option<(ReaderState, u64)>> {
        let Some(path) = self.checkpoint.as_ref().filter(|path| path.exists()) else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let found: Checkpoint = serde_json::from_str(&text).map_err(failed)?;
        Ok(Some((ReaderState::from_json(&found.state)?, found.ledger_bytes)))
    }
}

/// Each row as the text of its values.
fn rows_of(batch: &RecordBatch) -> Result<Vec<String>> {
    let row = |row| {
        let values = batch.columns().iter().map(|column| array_value_to_string(column, row));
        values.collect::<Result<Vec<_>, _>>().map(|values| values.join("|")).map_err(failed)
    };
    (0..batch.num_rows()).map(row).collect()
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::internal(format!("the reader of the round: {e}"))
}
