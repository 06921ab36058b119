//! What was measured: the planner's only input.

mod node;
mod read;
mod rules;
mod syntax;

use caju_types::{Error, Result};
use serde::{Deserialize as _, Serialize};

use self::node::Node;
use crate::choice::Choice;

pub(crate) use rules::is_name;

/// The schema that this version reads and writes.
pub const PROFILE_SCHEMA: &str = "caju.profile/v1";

/// Epochs assumed when a profile does not say how many are left.
pub const DEFAULT_EPOCHS: u64 = 10;

/// Jobs expected to read the same data when a profile does not say.
pub const DEFAULT_JOBS: u64 = 1;

/// A measured pipeline on a measured cluster (`caju.profile/v1`).
///
/// *Per row* means per row of the **source**, at every stage and hint, so that costs add up however many
/// rows a stage drops or makes; only [`Stage::out_rows_per_row`] is relative to the stage's own input. Store
/// bandwidths are the whole cluster's; network bandwidth and `max_parallelism` are per worker. `None`
/// means unlimited, and in [`Horizon`] the stated default.
///
/// ```
/// use caju_planner::Profile;
/// let profile = Profile::from_json(r#"{
///   "schema": "caju.profile/v1",
///   "cluster": {"workers": 2, "cores_per_worker": 8},
///   "source": {"rows": 1000},
///   "stages": [{"name": "read", "io_bytes_per_row": 100, "cpu_s_per_row": 1e-5, "service_s_per_row": 1e-5,
///               "out_rows_per_row": 1, "out_bytes_per_row": 100}]
/// }"#)?;
/// assert_eq!(profile.stages[0].name, "read");
/// assert_eq!(profile.source_store.read_bytes_per_s, None);
/// assert_eq!(Profile::from_json(&profile.to_json())?, profile);
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// Always [`PROFILE_SCHEMA`].
    pub schema: Schema,
    /// The machines that run the pipeline.
    pub cluster: Cluster,
    /// Where the source is read from.
    pub source_store: SourceStore,
    /// Where snapshots are written to and read from.
    pub cache_store: CacheStore,
    /// Who takes the rows.
    pub consumer: Consumer,
    /// How often the rows are still wanted.
    pub horizon: Horizon,
    /// The jobs that read one computation concurrently, this one included; none if this job shares nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// What snapshots may take.
    pub budget: Budget,
    /// What the machines cost. `caju scale` alone uses it.
    #[serde(skip_serializing_if = "Prices::is_empty")]
    pub prices: Prices,
    /// The data itself.
    pub source: Source,
    /// Snapshots stored already, by this or by other jobs.
    pub existing: Vec<Existing>,
    /// The stages in the order of the pipeline.
    pub stages: Vec<Stage>,
    /// The points at which reuse is acceptable, in any order.
    pub hints: Vec<Hint>,
    /// Rates that options really had, where they are known. They are shown with the predicted ones and never decided on: a
    /// decision must be the same before and after it was tried.
    pub measured: Vec<Measured>,
    /// Measured rates of options in earlier epochs of a job that is replanned. An option that ran has its measured rate.
    /// Predictions of other snapshots are corrected by the worst relative error of an option that ran: its cause may be a cost
    /// that no stage counts, which reading rows would also pay. The prediction for computing is not corrected, because all its
    /// stages were measured while they ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<Measured>,
}

/// The name and version of the profile's schema; the only value is [`PROFILE_SCHEMA`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Schema {
    /// `caju.profile/v1`.
    #[default]
    #[serde(rename = "caju.profile/v1")]
    V1,
}

/// The machines that run the pipeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cluster {
    /// Number of workers, at least 1.
    pub workers: u64,
    /// Cores that one worker really has for the pipeline.
    pub cores_per_worker: f64,
    /// Bandwidth from one worker to its clients, bytes per second.
    pub network_bytes_per_s_per_worker: Option<f64>,
}

/// The store of the source.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SourceStore {
    /// Bytes per second that the whole cluster can read.
    pub read_bytes_per_s: Option<f64>,
}

/// The store of the snapshots.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct CacheStore {
    /// Bytes per second that the whole cluster can read.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes per second that the whole cluster can write.
    pub write_bytes_per_s: Option<f64>,
    /// Bytes of a snapshot that each worker keeps in memory and does not read from the store in later epochs. None for local
    /// files, whose parts are mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_worker: Option<f64>,
}

/// The consumer's own demand.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Consumer {
    /// *Delivered* rows per second that the clients take when they are always ready.
    pub rows_per_s: Option<f64>,
}

/// How often the rows are still wanted.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Horizon {
    /// Epochs left of a job; [`DEFAULT_EPOCHS`] if unknown.
    pub epochs: Option<u64>,
    /// Jobs expected to read the data; [`DEFAULT_JOBS`] if unknown.
    pub jobs: Option<u64>,
}

/// Jobs that run concurrently and share rows: a worker computes the stages that they have in common once for all.
///
/// A profile is of one job. Where jobs share, rates are those of each of them while all of them run: the common stages run
/// once per row, and all other stages once per row and job.
///
/// ```
/// use caju_planner::{Profile, Sharing};
/// # let text = include_str!("../../../tests/golden_plans/design-example.profile.json");
/// let mut profile = Profile::from_json(text)?;
/// profile.sharing = Some(Sharing { jobs: 8, after_stage: "read".into() });
/// assert_eq!(Profile::from_json(&profile.to_json())?, profile);
/// profile.sharing = Some(Sharing { jobs: 0, after_stage: "read".into() });
/// let e = Profile::from_json(&profile.to_json()).unwrap_err();
/// assert_eq!(e.to_string(), "sharing.jobs: expected a whole number >= 1, found 0");
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sharing {
    /// The jobs, this one included.
    pub jobs: u64,
    /// The last stage that they have in common.
    pub after_stage: String,
}

/// What snapshots may take.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Budget {
    /// Bytes that the snapshot of this pipeline may occupy.
    pub snapshot_bytes: Option<f64>,
}

/// What the machines cost, in any one currency.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Prices {
    /// One worker for an hour.
    pub worker_per_h: Option<f64>,
    /// All machines that take the rows, for an hour: they are paid for while they wait, too.
    pub accelerator_per_h: Option<f64>,
}

impl Prices {
    /// Whether no price is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the given number of workers and the consumers cost in an hour; none if no price is known. A price that is absent
    /// counts as nothing.
    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    pub fn per_h(&self, workers: u64) -> Option<f64> {
        let cost = workers as f64 * self.worker_per_h.unwrap_or(0.0) + self.accelerator_per_h.unwrap_or(0.0);
        (!self.is_empty()).then_some(cost)
    }
}

/// The data itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Source {
    /// Rows of one epoch at the source.
    pub rows: u64,
    /// How often an epoch reads each row, where that is more than once: a `repeat`, or several workers that each read all. A
    /// snapshot holds it once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readings: Option<u64>,
}

/// A snapshot that is stored already.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Existing {
    /// The hint whose prefix it holds.
    pub hint: String,
    /// Format of its parts; with `compression` it must be one of the hint's encodings.
    pub format: String,
    /// Compression of its parts.
    pub compression: String,
    /// Fraction of the rows that it holds, 0 to 1.
    pub fraction: f64,
}

/// The rate that an option had when it ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// The option.
    #[serde(flatten)]
    pub choice: Choice,
    /// Source rows per second of a steady epoch.
    pub rows_per_s: f64,
}

/// One operator, as measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stage {
    /// Its name, unique in the profile.
    pub name: String,
    /// Bytes that it reads from the source store.
    pub io_bytes_per_row: f64,
    /// CPU seconds that it takes.
    pub cpu_s_per_row: f64,
    /// Seconds for which it is busy, waiting for I/O or a sleep included.
    pub service_s_per_row: f64,
    /// How many of it can run at once on a worker.
    pub max_parallelism: Option<f64>,
    /// Rows out per row *into this stage*.
    pub out_rows_per_row: f64,
    /// Bytes out.
    pub out_bytes_per_row: f64,
    /// Whether its output differs from epoch to epoch.
    pub random: bool,
}

/// A point at which reuse is acceptable.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hint {
    /// Its name, unique in the profile.
    pub name: String,
    /// The stage whose output would be stored.
    pub after_stage: String,
    /// Whether it is stored split by split. A hint below a stream stage is not: its snapshot is read completely or not at all,
    /// so a budget cannot reduce it to a fraction. True if absent.
    pub split_local: bool,
    /// The candidate encodings that were probed; without one the hint is no option.
    pub encodings: Vec<Encoding>,
}

/// One way to store a hint's rows, as probed. Names are opaque to the planner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Encoding {
    /// `arrow`, `parquet`, ...
    pub format: String,
    /// `none`, `zstd`, ...
    pub compression: String,
    /// SnapshotOption bytes.
    pub bytes_per_row: f64,
    /// CPU seconds to encode and compress.
    pub encode_cpu_s_per_row: f64,
    /// CPU seconds to read back, decompress and decode.
    pub decode_cpu_s_per_row: f64,
}

impl Profile {
    /// Reads a profile. Unknown fields are ignored.
    ///
    /// # Errors
    /// `InvalidArgument`: one line that names the field and says what was expected and what was found.
    ///
    /// ```
    /// let e = caju_planner::Profile::from_json(r#"{"schema": "caju.profile/v9"}"#).unwrap_err();
    /// assert_eq!(e.to_string(), "schema: expected \"caju.profile/v1\", found \"caju.profile/v9\"");
    /// ```
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_node(&serde_json::from_str(text).map_err(|e| syntax::error(text, &e))?)
    }

    /// Reads and checks a profile that is a part of another document.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first wrong field.
    pub fn from_value(value: &serde_json::Value) -> Result<Self> {
        Self::from_node(&Node::deserialize(value).map_err(|e| Error::invalid(format!("profile: {e}")))?)
    }

    fn from_node(node: &Node<'_>) -> Result<Self> {
        let profile = read::profile(node)?;
        profile.validate()?;
        Ok(profile)
    }

    /// The profile as a part of another document, with the numbers of [`Profile::to_json`].
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(self.clone().canonical()).expect("strings, numbers and lists always serialise")
    }

    /// Checks every number and every name, as [`Profile::from_json`] does; for profiles built in memory.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first wrong field.
    pub fn validate(&self) -> Result<()> {
        rules::check(self)
    }

    /// The profile as indented JSON, numbers at fourteen significant digits, as decisions see them; the same
    /// bytes for the same profile.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.clone().canonical())
            .expect("strings, numbers and lists always serialise")
    }

    /// The rate that an option really had, if it is known: of its hint and encoding, at the nearest share.
    ///
    /// ```
    /// # let text = include_str!("../../../tests/golden_plans/figure7-400.profile.json");
    /// use caju_planner::{Choice, Profile};
    /// let profile = Profile::from_json(text)?;
    /// assert_eq!(profile.measured_rate(&Choice::Compute).map(f64::round), Some(2220.0));
    /// # Ok::<(), caju_types::Error>(())
    /// ```
    pub fn measured_rate(&self, choice: &Choice) -> Option<f64> {
        let of_choice = self.measured.iter().filter_map(|m| Some((m.choice.apart(choice)?, m.rows_per_s)));
        of_choice.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, rate)| rate)
    }

    /// The profile with every number at fourteen significant digits, in which all decisions are made.
    ///
    /// Reading a number back from JSON may move its last digits; at fourteen they are the same again, so that
    /// a decision replayed from a recorded profile is the same, byte for byte.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        let opt = |v: &mut Option<f64>| v.iter_mut().for_each(round);
        round(&mut self.cluster.cores_per_worker);
        opt(&mut self.cluster.network_bytes_per_s_per_worker);
        opt(&mut self.source_store.read_bytes_per_s);
        opt(&mut self.cache_store.read_bytes_per_s);
        opt(&mut self.cache_store.write_bytes_per_s);
        opt(&mut self.cache_store.memory_bytes_per_worker);
        opt(&mut self.consumer.rows_per_s);
        opt(&mut self.budget.snapshot_bytes);
        opt(&mut self.prices.worker_per_h);
        opt(&mut self.prices.accelerator_per_h);
        self.existing.iter_mut().for_each(|x| round(&mut x.fraction));
        for m in self.measured.iter_mut().chain(&mut self.observed) {
            round(&mut m.rows_per_s);
            if let Choice::Materialize { fraction, .. } = &mut m.choice {
                round(fraction);
            }
        }
        for s in &mut self.stages {
            round(&mut s.io_bytes_per_row);
            round(&mut s.cpu_s_per_row);
            round(&mut s.service_s_per_row);
            opt(&mut s.max_parallelism);
            round(&mut s.out_rows_per_row);
            round(&mut s.out_bytes_per_row);
        }
        for e in self.hints.iter_mut().flat_map(|h| &mut h.encodings) {
            round(&mut e.bytes_per_row);
            round(&mut e.encode_cpu_s_per_row);
            round(&mut e.decode_cpu_s_per_row);
        }
        self
    }
}

fn round(v: &mut f64) {
    // Whole numbers of this size are exact in JSON, and by far the most common.
    if v.fract() != 0.0 || v.abs() >= 1e15 {
        *v = format!("{v:.13e}").parse().unwrap_or(*v);
    }
}
