//! Settings, and what to read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::DatasetDef;
use caju_proto::v1::{ProcessingMode, TargetWorkers};
use caju_types::{Balance, Error, Result, Uneven, did_you_mean};
use caju_wire::frame::DEFAULT_MAX_BODY_BYTES;
use caju_wire::{LocalWorkers, Network, OpenTimeouts};

use crate::state::ReaderState;
use crate::transfer::Transfer;

/// The settings of a client.
#[derive(Clone)]
pub struct ClientConfig {
    /// How long an unavailable dispatcher is retried at start.
    pub connect_timeout: Duration,
    /// How long the dispatcher may take to open an epoch or a dataset: it binds the definition, lists the beginning of the source
    /// and reads the schema of a first file. More than its own `--bind-timeout`, which bounds the first of these.
    pub open_timeout: Duration,
    /// How long a running iteration continues without its dispatcher.
    pub dispatcher_timeout: Duration,
    /// How long to wait for the first task, that is, for a worker.
    pub worker_timeout: Duration,
    /// How long to wait for the next task when all are read and the iteration does not end (other clients
    /// or their lost workers hold it up).
    pub stall_timeout: Duration,
    /// How long dialling a worker may take before its task counts as lost.
    pub dial_timeout: Duration,
    /// How long a worker may send nothing, not even pings, before it counts as lost.
    pub silence: Duration,
    /// Bytes that may be in flight or unread, over all tasks; one element per task is always allowed.
    pub prefetch_bytes: usize,
    /// The most bytes of one frame of a worker, which holds one element at least. A frame that claims more is refused before
    /// memory is asked for.
    pub max_frame_bytes: u64,
    /// Workers in this process, read without a socket.
    pub local: LocalWorkers,
    /// The network that it connects on.
    pub network: Network,
    /// Receives events that a person wants to know of while waiting.
    pub on_event: Option<EventFn>,
    /// Whether rows are tracked and acknowledged, as exactly-once delivery needs it. Without it the epoch ends as incomplete and
    /// states of the reader are empty: `caju bench exactly-once` measures what tracking costs.
    #[doc(hidden)]
    pub tracks_rows: bool,
}

/// Receives [`ReaderEvent`]s; must not block.
pub type EventFn = Arc<dyn Fn(&ReaderEvent) + Send + Sync>;

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            open_timeout: Duration::from_secs(120),
            dispatcher_timeout: Duration::from_secs(60),
            worker_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
            dial_timeout: Duration::from_secs(5),
            silence: Duration::from_secs(30),
            prefetch_bytes: 64 << 20,
            max_frame_bytes: DEFAULT_MAX_BODY_BYTES,
            local: LocalWorkers::new(),
            network: Network::default(),
            on_event: None,
            tracks_rows: true,
        }
    }
}

impl ClientConfig {
    /// How long an epoch may take to be opened, with a dispatcher that is retried for `dispatcher`.
    pub(crate) fn open_timeouts(&self, dispatcher: Duration) -> OpenTimeouts {
        let (worker, learning) = (self.worker_timeout, self.stall_timeout);
        OpenTimeouts { dispatcher, open: self.open_timeout, worker, learning }
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("connect_timeout", &self.connect_timeout)
            .field("worker_timeout", &self.worker_timeout)
            .field("prefetch_bytes", &self.prefetch_bytes)
            .finish_non_exhaustive()
    }
}

/// Something that happened while reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReaderEvent {
    /// No worker has a task of the iteration yet; reported once a second.
    WaitingForWorker {
        /// Since when.
        waited: Duration,
    },
    /// A task is being read.
    TaskOpened {
        /// The worker's address.
        address: String,
    },
    /// A task was lost; its rows come from other workers.
    TaskLost {
        /// The worker's address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The dispatcher does not answer; reading continues meanwhile.
    DispatcherAway {
        /// Since when.
        waited: Duration,
    },
}

/// Which dataset.
#[derive(Debug, Clone)]
pub enum DatasetRef {
    /// This definition.
    Definition(Box<DatasetDef>),
    /// A registered dataset, by its identifier.
    Registered(String),
}

/// What to read: one epoch of a job.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The dataset.
    pub dataset: DatasetRef,
    /// The job; empty: one of this client alone.
    pub job: String,
    /// The epoch.
    pub epoch: u64,
    /// The job's seed; the definition's if absent.
    pub seed: Option<u64>,
    /// How splits are handed out; unspecified: `dynamic`, or as the job does it already.
    pub mode: ProcessingMode,
    /// Who decides what is stored: `compute`, `source`, `full`, `hint:NAME`, `cachew` or `auto`; empty: the policy of the
    /// existing job; for a new job `auto` if there is a cache.
    pub policy: String,
    /// How new parts are written, as `arrow/none`; empty: the policy chooses.
    pub encoding: String,
    /// Epochs that the job will read in all; 0: not known.
    pub epochs: u64,
    /// Store the rows there instead of in the cache, and deliver none: how saves are driven.
    pub save: Option<SaveTo>,
    /// How the epoch ends if other readers of the job took rows and vanished.
    pub lost_readers: LostReaders,
    /// Which consumer of a job this reader is, of how many: all of them get the same number of elements. Without it the
    /// readers of a job share its elements as they come.
    pub consumer: Option<Consumer>,
    /// Whether the job shares computed rows with other jobs.
    pub sharing: Sharing,
    /// Where the workers are too few for all jobs, those of a higher priority count as served first; absent: as the job has it, 0
    /// for a new one.
    pub priority: Option<i32>,
    /// The job's fraction of the workers, relative to other jobs of its priority; absent: as the job has it, 1 for a new one.
    pub weight: Option<f64>,
    /// From which workers to read; unspecified: as the job does it already, else from all but the colocated workers of other
    /// processes.
    pub target: TargetWorkers,
    /// How rows travel from the workers to this reader.
    pub transfer: Transfer,
    /// Reads the rows of the epoch that these states of its readers do not contain.
    ///
    /// The epoch begins when the states of all readers that had taken rows by then were given, by one reader or by several
    /// under the same job name. Give to each reader its own, or the states of all of them to each.
    pub states: Vec<ReaderState>,
    /// With `states`: the epoch begins when at least this number of states were given; 0: those that the states name.
    pub num_states: u64,
    /// `states` are those of all readers, and each reader of the job is given them. Then the number of readers may differ from
    /// before. Else a reader whose state is given again begins the epoch again.
    pub states_of_all: bool,
    /// A state was restored in which nothing of this epoch was taken: of the end of the epoch before, or of no epoch. What a launch of
    /// the program took of this epoch since then is read again, if all of its readers are gone.
    pub restored_beginning: bool,
    /// With `restored_beginning`: the iteration of an earlier epoch that this launch of the program has opened behind states. Then a
    /// later epoch that an earlier launch has read to its end begins again, too. 0: it has opened none.
    pub after_iteration: u64,
    /// With `states`, `restored_beginning` or `consumer`: the launch of the user's program. It distinguishes a rank that comes
    /// late, which goes on with the others, from a program that goes back to these states once more. None: it is not known.
    pub attempt: Option<Attempt>,
}

/// A launch of a user's program, one or many processes that restore states of one step together.
///
/// A reader whose attempt and states are those with which an epoch was opened belongs to it, also when the other readers have
/// read the epoch to its end: then it gets the end. A reader of another attempt begins the epoch again, and readers of the
/// attempts before that are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The launch: all of its processes give the same, and a later launch gives another one.
    pub id: String,
    /// Identifies this process among those of the attempt. If a rank comes again after its process ended, the epoch is begun
    /// again from the states. None: every process that names the attempt belongs to it.
    pub rank: Option<u32>,
}

/// Whether a job shares computed rows with other jobs that run concurrently.
///
/// Rows are equal where pipelines are, down to a common hint or to their last split-local stage. A worker computes them once
/// for all jobs that share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Sharing {
    /// As the job does it already; a new job computes its rows itself.
    #[default]
    AsJob,
    /// The job computes its rows itself.
    Off,
    /// Other jobs may compute its rows. It gets each row of its epoch exactly once.
    Exact {
        /// Trainers of one named job with different ids get all rows of each epoch, as if their jobs had different names. None:
        /// the readers of the job divide its rows.
        trainer_id: Option<String>,
    },
    /// As [`Sharing::Exact`], but no row is computed twice in an epoch: rows that another job computed and that no window has
    /// any more are left out. The status and the report count them.
    Relaxed {
        /// As in [`Sharing::Exact`].
        trainer_id: Option<String>,
    },
}

impl Sharing {
    /// The sharing of a name: `exact`, `relaxed` or `off`.
    ///
    /// # Errors
    /// `InvalidArgument` for another word, and for a trainer id that is empty or belongs to nothing.
    ///
    /// ```
    /// use caju_client::Sharing;
    /// let sharing = Sharing::from_name("exact", Some("trial-1".into())).unwrap();
    /// assert_eq!(sharing, Sharing::Exact { trainer_id: Some("trial-1".into()) });
    /// assert!(Sharing::from_name("off", Some("trial-1".into())).is_err());
    /// ```
    pub fn from_name(name: &str, trainer_id: Option<String>) -> Result<Self> {
        if trainer_id.as_ref().is_some_and(String::is_empty) {
            return Err(Error::invalid(
                "a trainer id is empty: give each trainer of the job a name of its own",
            ));
        }
        match (name, trainer_id) {
            ("exact", trainer_id) => Ok(Sharing::Exact { trainer_id }),
            ("relaxed", trainer_id) => Ok(Sharing::Relaxed { trainer_id }),
            ("off", None) => Ok(Sharing::Off),
            ("off", Some(_)) => {
                let why = "a trainer id belongs to sharing `exact` or `relaxed`, and this reader has `off`";
                Err(Error::invalid(why))
            }
            (other, _) => Err(Error::invalid(format!(
                "sharing `{other}`{}: say `exact`, `relaxed` or `off`",
                did_you_mean(other, ["exact", "relaxed", "off"])
            ))),
        }
    }

    /// The name in messages; empty for [`Sharing::AsJob`].
    pub fn as_str(&self) -> &'static str {
        match self {
            Sharing::AsJob => "",
            Sharing::Off => "off",
            Sharing::Exact { .. } => "exact",
            Sharing::Relaxed { .. } => "relaxed",
        }
    }

    /// The trainer id; empty if there is none.
    pub fn trainer_id(&self) -> &str {
        match self {
            Sharing::Exact { trainer_id: Some(id) } | Sharing::Relaxed { trainer_id: Some(id) } => id,
            _ => "",
        }
    }
}

/// One of the consumers of a job, which all get the same number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consumer {
    /// Which, from 0.
    pub index: u32,
    /// How many there are.
    pub count: u32,
    /// What happens to the elements that are left when all have had equally many.
    pub uneven: Uneven,
    /// What the consumers' elements of one round have in common.
    pub balance: Balance,
}

impl Consumer {
    /// One of `count` consumers, which share nothing but the number of their elements; surplus elements at the end are dropped.
    pub fn new(index: u32, count: u32) -> Self {
        Self { index, count, uneven: Uneven::Drop, balance: Balance::None }
    }
}

/// The target of a name: `auto`, `any` or `local`, in any letter case.
///
/// # Errors
/// `InvalidArgument` for another word.
///
/// ```
/// use caju_proto::v1::TargetWorkers;
/// assert_eq!(caju_client::target_workers("LOCAL").unwrap(), TargetWorkers::Local);
/// ```
pub fn target_workers(name: &str) -> Result<TargetWorkers> {
    match name.to_ascii_lowercase().as_str() {
        "auto" => Ok(TargetWorkers::Auto),
        "any" => Ok(TargetWorkers::Any),
        "local" => Ok(TargetWorkers::Local),
        other => Err(Error::invalid(format!(
            "target_workers `{name}`{}: say `auto`, `any` or `local`",
            did_you_mean(other, ["auto", "any", "local"])
        ))),
    }
}

/// What a reader does at the end of an epoch of which other readers took rows before they vanished (they were killed,
/// or silent for longer than the dispatcher's client timeout).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LostReaders {
    /// The epoch ends with an error that says how many rows are missing.
    #[default]
    Fail,
    /// The epoch ends as any other; [`crate::Reader::incomplete`] says what the vanished readers took.
    Allow,
}

impl LostReaders {
    /// The name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            LostReaders::Fail => "fail",
            LostReaders::Allow => "allow",
        }
    }
}

/// Where rows are saved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveTo {
    /// The root: a folder or a URL.
    pub url: String,
    /// The size of chunks; 0: a part is one chunk.
    pub chunk_bytes: u64,
}

impl ReadRequest {
    /// Epoch 0 of a job of this client alone.
    pub fn of(def: DatasetDef) -> Self {
        Self {
            dataset: DatasetRef::Definition(Box::new(def)),
            job: String::new(),
            epoch: 0,
            seed: None,
            mode: ProcessingMode::Unspecified,
            policy: String::new(),
            encoding: String::new(),
            epochs: 0,
            save: None,
            lost_readers: LostReaders::Fail,
            target: TargetWorkers::Unspecified,
            states: Vec::new(),
            num_states: 0,
            states_of_all: false,
            restored_beginning: false,
            after_iteration: 0,
            attempt: None,
            consumer: None,
            sharing: Sharing::default(),
            priority: None,
            weight: None,
            transfer: Transfer::default(),
        }
    }
}
