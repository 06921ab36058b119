//! A reader that writes down what its user takes. It is killed in the middle of that.

use std::path::PathBuf;
use std::time::Duration;

use arrow::util::display::array_value_to_string;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use arrow_array::{Array as _, RecordBatch};
use caju_client::{
    Attempt, Balance, Client, ClientConfig, Consumer, LostReaders, ReadRequest, Reader, ReaderState, Sharing,
    Uneven,
};
use caju_pipeline::DatasetDef;
use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use super::checkpoints::{Checkpoint, Checkpoints};
use super::dataset::{LISTS, class_of};
use super::ledger::{Entry, Ledger, Lists};

/// How long the reader looks for a dispatcher that is away when it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the reader waits for the workers' last reports of an epoch.
const FINAL_STATUS: Duration = Duration::from_secs(1);
/// Elements from one checkpoint to the next.
const CHECKPOINT_ELEMENTS: u64 = 10;

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
    /// What the consumers' elements of a round have in common.
    pub balance: Balance,
    /// What happens to the last elements of consumers.
    pub uneven: Uneven,
    /// Which trainer of the job it is, if the job shares its rows.
    pub trainer: Option<String>,
    /// The launch of the program that restores states together.
    pub attempt: Option<String>,
    /// How long the user works on an element, in microseconds.
    pub pace_us: u64,
    /// The file of what was taken.
    pub ledger: PathBuf,
    /// Where states are saved.
    pub checkpoints: Option<Checkpoints>,
    /// The file of the state to continue from.
    pub from: Option<PathBuf>,
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
    let mut after_iteration = 0;
    for epoch in first..settings.epochs {
        let states: Vec<_> = state.iter().filter(|s| s.epoch == epoch).cloned().collect();
        let elements = states.first().map_or(0, |s| s.elements);
        // As `caju read --state` asks for it.
        let begins = epoch == first || after_iteration > 0 || settings.attempt.is_some();
        let restored_beginning = settings.checkpoints.is_some() && begins;
        let is_behind = !states.is_empty();
        let request = settings.request(def.clone());
        let request = ReadRequest { states, epoch, restored_beginning, after_iteration, ..request };
        let mut reader = client.read(request).await?;
        let taken = settings.take(&mut reader, (epoch, elements), &mut ledger).await;
        let (iteration, incomplete) = (reader.iteration(), reader.incomplete().unwrap_or_default());
        if is_behind {
            after_iteration = iteration.0;
        }
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
        let consumer = |(index, count)| Consumer {
            balance: self.balance,
            uneven: self.uneven,
            ..Consumer::new(index, count)
        };
        let trainer = |id: &String| Sharing::Exact { trainer_id: Some(id.clone()) };
        ReadRequest {
            job: "train".to_string(),
            policy: self.policy.clone(),
            epochs: self.epochs,
            lost_readers: lost,
            consumer: self.consumer.map(consumer),
            sharing: self.trainer.as_ref().map_or(Sharing::AsJob, trainer),
            attempt: self.attempt.clone().map(|id| Attempt { id, rank: None }),
            ..ReadRequest::of(def)
        }
    }

    /// Takes an epoch to its end, behind a number of elements.
    async fn take(&self, reader: &mut Reader, (epoch, from): (u64, u64), ledger: &mut Ledger) -> Result<()> {
        let mut elements = from;
        while let Some(element) = reader.next().await? {
            let rows = if element.is_padding { Vec::new() } else { rows_of(&element.batch)? };
            let lists = lists_of(&element.batch);
            ledger.write(&Entry::Element { epoch, rows, lists }).map_err(failed)?;
            elements += 1;
            if elements % CHECKPOINT_ELEMENTS == 0 {
                self.save(reader, (epoch, elements), ledger)?;
            }
            if self.pace_us > 0 {
                tokio::time::sleep(Duration::from_micros(self.pace_us)).await;
            }
        }
        self.save(reader, (epoch, u64::MAX), ledger)
    }

    /// Saves the state behind an element of an epoch.
    fn save(&self, reader: &Reader, step: (u64, u64), ledger: &Ledger) -> Result<()> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let checkpoint = Checkpoint { state: reader.state()?.to_json()?, ledger_bytes: ledger.bytes() };
        checkpoints.write(step, &checkpoint).map_err(failed)
    }

    fn found(&self) -> Result<Option<(ReaderState, u64)>> {
        let Some(path) = &self.from else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let found: Checkpoint = serde_json::from_str(&text).map_err(failed)?;
        Ok(Some((ReaderState::from_json(&found.state)?, found.ledger_bytes)))
    }
}

/// Each row as the text of its values, without its list.
fn rows_of(batch: &RecordBatch) -> Result<Vec<String>> {
    let schema = batch.schema();
    let columns: Vec<_> =
        schema.fields().iter().zip(batch.columns()).filter(|(f, _)| f.name() != LISTS).collect();
    let row = |row| {
        let values = columns.iter().map(|(_, column)| array_value_to_string(column, row));
        values.collect::<Result<Vec<_>, _>>().map(|values| values.join("|")).map_err(failed)
    };
    (0..batch.num_rows()).map(row).collect()
}

/// The lists of the rows, where they have such.
fn lists_of(batch: &RecordBatch) -> Option<Lists> {
    let lists = batch.column_by_name(LISTS)?.as_list::<i32>();
    let ids = batch.column_by_name("id")?.as_primitive::<Int64Type>().values();
    let lengths: Vec<u64> = (0..lists.len()).map(|row| lists.value_length(row) as u64).collect();
    let items = lengths.iter().sum();
    Some(Lists {
        classes: ids.iter().map(|id| class_of(*id)).collect(),
        lengths: lengths.into_iter().collect(),
        items,
    })
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::internal(format!("the reader of the round: {e}"))
}
