//! States of readers: which rows of an epoch were taken, so that others can read the remaining ones.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use caju_proto::{mode_from_name, mode_name, mode_names, reading_bases_to_messages, v1};
use caju_types::{
    ClientId, EpochDraws, Error, ErrorKind, IterationId, ReadingBases, Result, TakenRows, hash128,
};
use serde::{Deserialize, Serialize};

/// The version of the JSON form.
const VERSION: u32 = 2;
/// The most earlier iterations that a state names: those of which [`ReaderState::bases`] says what their readers had when a
/// later one went on. A reader that takes nothing across more restarts than this is refused.
const MAX_BEHIND: usize = ReadingBases::MAX;
/// The longest JSON form, in bytes.
const MAX_JSON_BYTES: usize = 32 << 20;

/// The position of a reader within an epoch, or of several readers of one epoch at the same step.
///
/// It says which rows the user got, as sets of rows per split, so it does not depend on workers, ranks, batches or the cache.
/// [`crate::ReadRequest::states`] reads the remaining rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderState {
    /// The dataset's fingerprint.
    pub fingerprint: String,
    /// The job's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// How splits were handed out: the name of the processing mode.
    pub mode: String,
    /// The iteration that was read, by its number at its dispatcher; 0 before the epoch was opened.
    pub iteration: u64,
    /// The iterations that this one went on from, by their states; the latest ones.
    pub behind: BTreeSet<u64>,
    /// The readers whose rows are in `taken`, by their numbers.
    pub readers: BTreeSet<u64>,
    /// The readers of the epoch that had taken rows: the states of all of them are needed to continue exactly.
    pub all_readers: BTreeSet<u64>,
    /// Elements that the user got.
    pub elements: u64,
    /// Rows that the user got.
    pub rows: u64,
    /// The reader was at the epoch's end.
    pub exhausted: bool,
    /// Where slots take turns (`deterministic` in the mode `off` and in static modes): the slot whose element comes next.
    pub turn: u32,
    /// In static modes: what the shards of the epoch divide, by its name; empty elsewhere, and where it is not known.
    pub shard_by: String,
    /// How random stages above hints drew. None: no hint changes a row, or it is not known.
    pub draws: Option<EpochDraws>,
    /// The rows that were taken of the epoch.
    pub taken: TakenRows,
    /// Of consumers of a job: the number of elements that the user of each got of the epoch.
    pub steps: BTreeMap<u32, u64>,
    /// What users had got when `iteration`, and iterations of `behind`, went on from their states. An older state of another
    /// reader is refused by it.
    pub bases: ReadingBases,
}

/// The JSON form.
#[derive(Serialize, Deserialize)]
struct Json {
    version: u32,
    fingerprint: String,
    seed: u64,
    epoch: u64,
    mode: String,
    iteration: u64,
    #[serde(default)]
    behind: BTreeSet<u64>,
    readers: BTreeSet<u64>,
    all_readers: BTreeSet<u64>,
    elements: u64,
    rows: u64,
    exhausted: bool,
    #[serde(default)]
    turn: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    shard_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    draws: Option<EpochDraws>,
    taken: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    steps: BTreeMap<u32, u64>,
    #[serde(default, skip_serializing_if = "ReadingBases::is_empty")]
    bases: ReadingBases,
    /// Of the JSON form without this field. Earlier versions wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

impl Json {
    /// The checksum of all fields but the checksum, whatever their order was. `checksum` must be none.
    fn sum(&self) -> Result<String> {
        let text =
            serde_json::to_string(self).map_err(|e| Error::internal(format!("a state as JSON: {e}")))?;
        Ok(format!("{:032x}", hash128(text.as_bytes())))
    }
}

/// Forgets all iterations but the last ones.
fn keep_last(behind: &mut BTreeSet<u64>) {
    while behind.len() > MAX_BEHIND {
        behind.pop_first();
    }
}

impl ReaderState {
    /// The state of a reader that has taken nothing.
    pub(crate) fn at_beginning(opened: &v1::OpenIterationResponse, epoch: u64) -> Self {
        Self {
            fingerprint: opened.fingerprint.clone(),
            seed: opened.seed,
            epoch,
            mode: mode_name(opened.mode()).to_string(),
            iteration: 0,
            behind: BTreeSet::new(),
            readers: BTreeSet::new(),
            all_readers: BTreeSet::new(),
            elements: 0,
            rows: 0,
            exhausted: false,
            turn: 0,
            shard_by: opened.shard_by.clone(),
            draws: opened.draws.as_ref().map(Into::into),
            taken: TakenRows::default(),
            steps: BTreeMap::new(),
            bases: ReadingBases::default(),
        }
    }

    /// The state as one JSON object, with the rows in base64.
    ///
    /// # Errors
    /// `ResourceExhausted` if it is longer than [`ReaderState::from_json`] reads: 32 MiB, as after some 200 million rows of an epoch
    /// whose rows several readers take from the same splits.
    pub fn to_json(&self) -> Result<String> {
        let mut json = Json {
            version: VERSION,
            fingerprint: self.fingerprint.clone(),
            seed: self.seed,
            epoch: self.epoch,
            mode: self.mode.clone(),
            iteration: self.iteration,
            behind: self.behind.clone(),
            readers: self.readers.clone(),
            all_readers: self.all_readers.clone(),
            elements: self.elements,
            rows: self.rows,
            exhausted: self.exhausted,
            turn: self.turn,
            shard_by: self.shard_by.clone(),
            draws: self.draws.clone(),
            taken: STANDARD.encode(self.taken.encode_dense()),
            steps: self.steps.clone(),
            bases: self.bases.clone(),
            checksum: None,
        };
        json.checksum = Some(json.sum()?);
        let text =
            serde_json::to_string(&json).map_err(|e| Error::internal(format!("a state as JSON: {e}")))?;
        within(MAX_JSON_BYTES, &text)?;
        Ok(text)
    }

    /// Reads what [`ReaderState::to_json`] wrote.
    ///
    /// # Errors
    /// `InvalidArgument` for anything else, for a state that was changed, and for the form of a later version.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Header {
            version: u32,
        }
        if text.len() > MAX_JSON_BYTES {
            return Err(Error::invalid(format!(
                "a state of {} bytes is larger than any that caju writes: {MAX_JSON_BYTES} bytes are the most",
                text.len()
            )));
        }
        let wrong =
            |e: &dyn std::fmt::Display| Error::invalid(format!("this is not a state of a caju reader: {e}"));
        let header: Header = serde_json::from_str(text).map_err(|e| wrong(&e))?;
        if header.version != VERSION {
            return Err(Error::invalid(format!(
                "this caju does not know states of version {}, but those of version {VERSION}; read it with the caju that \
                 wrote it",
                header.version
            )));
        }
        let mut json: Json = serde_json::from_str(text).map_err(|e| wrong(&e))?;
        if let Some(written) = json.checksum.take() {
            let here = json.sum()?;
            if written != here {
                return Err(Error::invalid(format!(
                    "this state of a caju reader is damaged, or was changed: its checksum is {written}, and that of its \
                     fields {here}; go on from an earlier one"
                )));
            }
        }
        if mode_from_name(&json.mode).is_none() {
            return Err(wrong(&format!("`mode` is `{}`, not one of {}", json.mode, mode_names())));
        }
        let bytes = STANDARD.decode(&json.taken).map_err(|e| wrong(&format!("`taken`: {e}")))?;
        Ok(Self {
            fingerprint: json.fingerprint,
            seed: json.seed,
            epoch: json.epoch,
            mode: json.mode,
            iteration: json.iteration,
            behind: json.behind,
            readers: json.readers,
            all_readers: json.all_readers,
            elements: json.elements,
            rows: json.rows,
            exhausted: json.exhausted,
            turn: json.turn,
            shard_by: json.shard_by,
            draws: json.draws,
            taken: TakenRows::decode(&bytes)?,
            steps: json.steps,
            bases: json.bases,
        })
    }

    /// One state with the rows of several readers of the same epoch.
    ///
    /// # Errors
    /// `InvalidArgument` without a state, and if the states are not of one reading of one epoch. `FailedPrecondition` for a state
    /// that is older than what the others say that its reader had got.
    pub fn union(states: &[ReaderState]) -> Result<Self> {
        let (first, others) =
            states.split_first().ok_or_else(|| Error::invalid("the union of no state is not a state"))?;
        let mut all = first.clone();
        for state in others {
            let same = |s: &ReaderState| (s.fingerprint.clone(), s.seed, s.epoch, s.mode.clone());
            let is_later = state.iteration != all.iteration && state.behind.contains(&all.iteration);
            let is_earlier = state.iteration != all.iteration && all.behind.contains(&state.iteration);
            if same(state) != same(first) || state.iteration != all.iteration && !is_later && !is_earlier {
                return Err(Error::invalid(
                    "the states are not of one reading of one epoch: give the states that all readers of a job have at one \
                     step",
                ));
            }
            all.draws = EpochDraws::both(all.draws.as_ref(), state.draws.as_ref())?;
            all.taken.extend(&state.taken)?;
            all.steps.extend(&state.steps);
            all.bases.extend(&state.bases);
            all.readers.extend(&state.readers);
            if all.shard_by.is_empty() {
                all.shard_by.clone_from(&state.shard_by);
            }
            if is_later {
                // A reader that has taken nothing since has the state that it began with: its rows are in the others' states.
                (all.iteration, all.behind) = (state.iteration, state.behind.clone());
                all.all_readers.clone_from(&state.all_readers);
            } else if !is_earlier {
                all.behind.extend(&state.behind);
                keep_last(&mut all.behind);
                all.all_readers.extend(&state.all_readers);
            }
            if is_later || is_earlier {
                // As many readers have their earlier states as are missing under their later numbers.
                let missing = all.all_readers.difference(&all.readers).count();
                if all.readers.difference(&all.all_readers).count() >= missing {
                    let known = all.all_readers.clone();
                    all.readers.extend(known);
                }
            }
            all.elements = all.elements.saturating_add(state.elements);
            all.rows = all.rows.saturating_add(state.rows);
            all.exhausted &= state.exhausted;
            // Several readers have turns of their own.
            all.turn = 0;
        }
        let counts = |reading: IterationId| reading.0 == all.iteration || all.behind.contains(&reading.0);
        let outdated =
            |state: &ReaderState| all.bases.outdated(counts, &state.steps, &state.rows_of_reader());
        states.iter().find_map(outdated).map_or(Ok(()), |outdated| Err(outdated.refused()))?;
        Ok(all)
    }

    /// The rows of the only reader whose state it is. Those of consumers have copies in them.
    fn rows_of_reader(&self) -> BTreeMap<ClientId, u64> {
        let only = self.readers.first().filter(|_| self.readers.len() == 1 && self.steps.is_empty());
        only.map(|reader| (ClientId(*reader), self.rows)).into_iter().collect()
    }

    /// What identifies the rows that were taken, and by whom: equal for the union of the same states in any order.
    pub(crate) fn digest(&self) -> [u8; 16] {
        let mut bytes = Vec::new();
        for number in [self.epoch, self.iteration].iter().chain(&self.readers) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.taken.encode());
        hash128(&bytes).to_le_bytes()
    }

    /// Whether some elements of the epoch are before it, and others behind it.
    pub(crate) fn is_within_epoch(&self) -> bool {
        self.elements > 0 && !self.exhausted
    }

    /// The iterations from which a reader continues that restores this state; `readings` by the dispatcher, which knows those of
    /// the other readers' states.
    pub(crate) fn behind_these(&self, readings: BTreeSet<u64>) -> BTreeSet<u64> {
        let mut behind = readings;
        behind.extend(&self.behind);
        behind.insert(self.iteration);
        keep_last(&mut behind);
        behind
    }

    /// The steps of a consumer that went on from this state and has got further elements since; `before` by the dispatcher.
    /// All consumers of an epoch that another number of consumers reads on begin at the same step.
    pub(crate) fn steps_after(
        &self,
        consumer: Option<u32>,
        before: u64,
        elements: u64,
    ) -> BTreeMap<u32, u64> {
        let Some(consumer) = consumer else { return BTreeMap::new() };
        let known = self.steps.get(&consumer).or_else(|| self.steps.values().max());
        [(consumer, known.copied().unwrap_or(before).saturating_add(elements))].into()
    }

    /// The state as the dispatcher gets it.
    pub(crate) fn to_proto(&self) -> v1::ReaderState {
        let mode = mode_from_name(&self.mode).unwrap_or_default();
        v1::ReaderState {
            fingerprint: self.fingerprint.clone(),
            seed: self.seed,
            epoch: self.epoch,
            mode: mode.into(),
            iteration_id: self.iteration,
            behind: self.behind.iter().copied().collect(),
            readers: self.readers.iter().copied().collect(),
            all_readers: self.all_readers.iter().copied().collect(),
            taken: self.taken.encode().into(),
            // Dispatchers of earlier versions know this form, and not the dense one.
            taken_short: self.taken.encode_short().into(),
            rows: self.rows,
            bases: reading_bases_to_messages(&self.bases),
            shard_by: self.shard_by.clone(),
            draws: self.draws.as_ref().map(Into::into),
            steps: self
                .steps
                .iter()
                .map(|(consumer, elements)| v1::ConsumerSteps { consumer: *consumer, elements: *elements })
                .collect(),
        }
    }
}

/// Refuses a state that could not be loaded again.
fn within(most: usize, text: &str) -> Result<()> {
    if text.len() <= most {
        return Ok(());
    }
    let what = format!(
        "the state takes {} bytes, and {most} are the most: it names single rows of very many splits, since several readers take \
         rows of the same ones; save states earlier in the epoch, make epochs shorter, or give each reader splits of its own with \
         `processing_mode=\"file\"`",
        text.len()
    );
    Err(Error::new(ErrorKind::ResourceExhausted, what))
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
