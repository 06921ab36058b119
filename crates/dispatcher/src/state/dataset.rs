//! What is read, and under which name.

use std::collections::BTreeMap;

use caju_autocache::{CachePlan, Document, Encoding, HintDef, Policy, ReplanState};
use caju_engine::ShardBy;
use caju_planner::{Decision, Profile};
use caju_types::{DatasetId, Fingerprint, IterationId, JobName, JobPriority, RowRanges};
use serde::{Deserialize, Serialize};

use super::{Attempt, Consumers, Mode, SaveTarget, Sharing, TargetWorkers};
use crate::definition::Definition;

/// The most epochs of a job of which the attempt is remembered that read them to their end. Ranks of a program are at most an
/// epoch apart.
const MAX_ATTEMPTS: usize = 8;
/// The most finished epochs of a job whose iterations are remembered, at 16 bytes each.
const MAX_READ_BY: usize = 1024;

/// A registered definition, with what binding it has found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// Chosen by the user, or the fingerprint.
    pub id: DatasetId,
    /// The name of what it computes.
    pub fingerprint: Fingerprint,
    /// The name of everything it says, and of the columns found: equal for the same dataset only. In older versions it did not
    /// cover the columns of several sources.
    pub identity: Fingerprint,
    /// The name of its functions in Python as they were sent; none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payloads: Option<Fingerprint>,
    /// The name in the definition, for people.
    pub name: Option<String>,
    /// The definition.
    #[serde(rename = "definition_json")]
    pub definition: Definition,
    /// The schema of its elements' rows, as an Arrow IPC stream.
    #[serde(with = "hex")]
    pub schema_ipc: Vec<u8>,
    /// The schema of its source, as an Arrow IPC stream. For several sources it holds the schemas of all of them; older versions
    /// kept one without fields.
    #[serde(with = "hex")]
    pub source_schema_ipc: Vec<u8>,
    /// The seed that the definition gives.
    pub seed: Option<u64>,
    /// Whether one task at a time must see all splits in their order.
    pub single_task: bool,
    /// Whether each file shard must see all of its splits in their order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counts_by_file: bool,
    /// Whether the definition promises an order.
    pub deterministic: bool,
    /// Rows that an epoch may drop under `on_error: skip`; none if rows may not be dropped.
    #[serde(default)]
    pub skip_limit: Option<u64>,
    /// Its hints, from the source down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<HintDef>,
    /// The stages, as their figures name them, whose output differs from epoch to epoch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random_stages: Vec<String>,
    /// Whether the definition says that its source must not be touched; none in older journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_only: Option<bool>,
    /// The place of the first stage whose boundaries are to be learnt; none if the definition runs as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlearnt: Option<String>,
}

impl Dataset {
    /// Whether the user chose the identifier. One that is not chosen begins with the fingerprint.
    pub fn has_chosen_id(&self) -> bool {
        !self.id.0.starts_with(&self.fingerprint.to_string())
    }

    /// Whether the definition says that its source must not be touched.
    pub fn is_cache_only(&self) -> bool {
        self.cache_only.unwrap_or_else(|| self.definition.read().is_ok_and(|def| def.options.cache_only))
    }
}

/// What a job was created to do. It does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// What it reads.
    pub dataset: DatasetId,
    /// Its seed.
    pub seed: u64,
    /// How its splits are handed out.
    pub mode: Mode,
    /// Whether it was made for one client and dies with it.
    pub anonymous: bool,
    /// Who decides what is stored.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub policy: Policy,
    /// How parts are written, if the user chose; else the policy chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Epochs that it will read, if they were announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Whether it only measures: everything is computed, and the decision at the end of an epoch is reported
    /// and not carried out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub profile_only: bool,
    /// Where it stores rows, if that is all that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<SaveTarget>,
    /// From which workers its readers read.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub target: TargetWorkers,
    /// In a static mode: what its shards divide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_by: Option<ShardBy>,
    /// Consumers that get equally many elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumers: Option<Consumers>,
    /// Whether it shares computed rows with other jobs.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub sharing: Sharing,
    /// Its priority and weight among other jobs.
    #[serde(default, rename = "precedence", skip_serializing_if = "super::is_default")]
    pub priority: JobPriority,
}

/// A named use of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub name: JobName,
    /// What it was created to do.
    #[serde(flatten)]
    pub spec: JobSpec,
    /// What the planner decided (`caju.decision/v1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Document<Decision>>,
    /// What that rests on (`caju.profile/v1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Document<Profile>>,
    /// The decision as the engine's plan; none: compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Document<CachePlan>>,
    /// What its epochs showed of the decision.
    #[serde(default, rename = "watch", skip_serializing_if = "super::is_default")]
    pub replan: ReplanState,
    /// Epochs that were read to their end and forgotten since.
    pub finished: RowRanges,
    /// Epochs that were left by all their clients before their end.
    pub abandoned: RowRanges,
    /// Epochs that were read to their end with rows missing.
    #[serde(default, skip_serializing_if = "RowRanges::is_empty")]
    pub incomplete: RowRanges,
    /// The attempts that read the latest of these epochs to their end, behind states.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u64, Attempt>,
    /// The iterations that read the latest of these epochs to their end.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub read_by: BTreeMap<u64, IterationId>,
}

impl Job {
    /// A job of which nothing was read or decided.
    pub(super) fn new(name: JobName, spec: JobSpec) -> Self {
        Self {
            name,
            spec,
            decision: None,
            profile: None,
            plan: None,
            replan: ReplanState::default(),
            finished: RowRanges::default(),
            abandoned: RowRanges::default(),
            incomplete: RowRanges::default(),
            attempts: BTreeMap::new(),
            read_by: BTreeMap::new(),
        }
    }

    /// An epoch that was read to its end is removed.
    pub(super) fn note_finished(&mut self, epoch: u64, iteration: IterationId) {
        self.finished.insert(epoch, epoch + 1);
        self.read_by.insert(epoch, iteration);
        while self.read_by.len() > MAX_READ_BY {
            self.read_by.pop_first();
        }
    }

    /// An epoch is removed: which attempt read it to its end is remembered. None: it was not read to its end behind states.
    pub(super) fn note_attempt(&mut self, epoch: u64, attempt: Option<&Attempt>) {
        match attempt {
            Some(attempt) => drop(self.attempts.insert(epoch, attempt.clone())),
            None => drop(self.attempts.remove(&epoch)),
        }
        while self.attempts.len() > MAX_ATTEMPTS {
            self.attempts.pop_first();
        }
    }
}

/// Bytes as hexadecimal text, so that a journal stays readable.
mod hex {
    use std::fmt::Write as _;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(bytes.len() * 2);
        for b in bytes {
            // Writing to a string cannot fail.
            let _ = write!(text, "{b:02x}");
        }
        out.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(input)?;
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let byte = |pair: &[u8]| match pair {
            [hi, lo] => Some((digit(*hi)? << 4) | digit(*lo)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.ok_or_else(|| D::Error::custom("not hexadecimal text"))
    }
}
