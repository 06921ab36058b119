//! Settings.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_engine::SharingSettings;
use caju_kernels::{Limits, Registry};
use caju_runtime::{Clock, CpuPool, IoCounters, Stores, SystemClock};
use caju_wire::{ConnectionLimits, LocalWorkers, Network};

use crate::caches::Caches;

/// The numbers of a worker's tasks that it tunes, unless they are given by hand. Its threads are those of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunedNumbers {
    /// Splits that a task reads concurrently; none: at first one more than the threads, and more while reads wait for the
    /// source's store.
    pub readers: Option<usize>,
    /// Bytes of finished elements that a task may hold until readers take them, and that each of its `prefetch` stages may
    /// hold; one element always fits. None: at first 64 MiB, and more where both sides of a queue wait in turn.
    pub buffer_bytes: Option<usize>,
    /// The most bytes of all these queues of the worker together, and one element of each.
    pub buffer_memory_bytes: usize,
}

impl Default for TunedNumbers {
    fn default() -> Self {
        Self { readers: None, buffer_bytes: None, buffer_memory_bytes: 1 << 30 }
    }
}

/// The settings of a worker.
#[derive(Clone)]
pub struct WorkerConfig {
    /// The dispatcher's address: `host:port`, or one within this process.
    pub dispatcher: String,
    /// `host:port` to listen on, where port 0 takes a free one; or
    /// [`IN_PROCESS`](caju_wire::IN_PROCESS), for readers of this process alone.
    pub listen: String,
    /// The `host:port` that clients dial, if it is another than the one listened on.
    pub advertise: Option<String>,
    /// Labels that `caju status` shows. `COLOCATED` says that the worker shares its machine with a training process: readers
    /// in other processes do not read from it, unless their job's target is ANY.
    pub tags: Vec<String>,
    /// Threads that compute; 0: at first one per core, and more while rows wait for something other than a core. Not used if
    /// `pool` is given, which is tuned if it is elastic.
    pub cpu_threads: usize,
    /// Threads shared with others in this process.
    pub pool: Option<CpuPool>,
    /// Workers of this process that compute on `pool`.
    pub sharers: u32,
    /// How many times as long as their definition says the stages `sleep` and `burn` take here: for experiments with a slow
    /// worker.
    pub slowdown: u32,
    /// The numbers of its tasks that are tuned, or given by hand.
    pub tuned: TunedNumbers,
    /// How often these numbers are reconsidered.
    pub tuning_step: Duration,
    /// How long an unavailable dispatcher is retried at start.
    pub connect_timeout: Duration,
    /// How long tasks continue without the dispatcher.
    pub dispatcher_timeout: Duration,
    /// How long the dispatcher may be away before [`WorkerHandle::dispatcher_gone`](crate::WorkerHandle::dispatcher_gone) ends;
    /// none: it is tried for as long as the worker runs.
    pub absence_timeout: Option<Duration>,
    /// How long a task waits for a reader before it ends.
    pub linger: Duration,
    /// The same while the worker drains. A reader whose connection broke comes back within this time.
    pub drain_linger: Duration,
    /// How long the failure of a task is reported to the dispatcher before its readers get it. They ask the dispatcher what to do.
    pub failure_report_timeout: Duration,
    /// How long a reader may take nothing before it counts as lost, and how long it may take to acknowledge the end of a task.
    pub silence: Duration,
    /// How long a reader that has all the rows for which it has space may want no more of them. Its user computes meanwhile.
    pub reader_idle_timeout: Duration,
    /// How long the dispatcher may take to open an epoch for a reader by Arrow Flight, and how long such a reader waits for a
    /// worker that learns boundaries.
    pub flight_open_timeout: Duration,
    /// How long a reader by Arrow Flight waits for boundaries that a worker learns, as readers of caju's own by default.
    pub flight_stall_timeout: Duration,
    /// The interval of pings to waiting readers.
    pub ping: Duration,
    /// The network that it listens and connects on.
    pub network: Network,
    /// What peers may use of connections, calls and messages.
    pub connections: ConnectionLimits,
    /// Where sources are read from.
    pub stores: Arc<Stores>,
    /// Counts what is read.
    pub io: Arc<IoCounters>,
    /// The open cache roots: shared with the other workers of the process, or this worker's own.
    pub caches: Option<Arc<Caches>>,
    /// The settings of this worker's own caches.
    pub cache: CacheOptions,
    /// The window of rows that jobs share.
    pub sharing: SharingSettings,
    /// Where the window's private folder for rows that do not fit in memory is, under
    /// [`SharingLag::Spill`](caju_engine::SharingLag); the folder for temporary files if absent.
    pub sharing_spill_dir: Option<PathBuf>,
    /// The most bytes of bodies in shared memory that are held for further readers of this host; 0: readers of this host get
    /// their rows over sockets, as all others.
    pub shared_memory_bytes: u64,
    /// The functions of expressions.
    pub registry: Registry,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The workers of this process: this one adds itself.
    pub local: LocalWorkers,
    /// The most rows of a batch of the engine; the engine's default if absent.
    pub batch_rows: Option<usize>,
    /// The version of caju, for `caju status`.
    pub version: String,
}

impl WorkerConfig {
    /// The defaults for a dispatcher: a free port on the local address, one thread per core.
    pub fn new(dispatcher: impl Into<String>, stores: Arc<Stores>) -> Self {
        Self {
            dispatcher: dispatcher.into(),
            listen: "127.0.0.1:0".to_string(),
            advertise: None,
            tags: Vec::new(),
            cpu_threads: 0,
            pool: None,
            sharers: 1,
            slowdown: 1,
            tuned: TunedNumbers::default(),
            tuning_step: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(10),
            dispatcher_timeout: Duration::from_secs(60),
            absence_timeout: None,
            linger: Duration::from_secs(30),
            drain_linger: Duration::from_secs(2),
            failure_report_timeout: Duration::from_secs(5),
            silence: Duration::from_secs(30),
            reader_idle_timeout: Duration::from_secs(365 * 24 * 3600),
            flight_open_timeout: Duration::from_secs(120),
            flight_stall_timeout: Duration::from_secs(300),
            ping: Duration::from_secs(5),
            network: Network::default(),
            connections: ConnectionLimits::default(),
            stores,
            io: Arc::new(IoCounters::new()),
            caches: None,
            cache: CacheOptions::default(),
            sharing: SharingSettings::default(),
            sharing_spill_dir: None,
            shared_memory_bytes: 256 << 20,
            registry: Registry::new(Limits::default()),
            clock: SystemClock::shared(),
            local: LocalWorkers::new(),
            batch_rows: None,
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }
}

impl fmt::Debug for WorkerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerConfig")
            .field("dispatcher", &self.dispatcher)
            .field("listen", &self.listen)
            .field("tags", &self.tags)
            .field("tuned", &self.tuned)
            .finish_non_exhaustive()
    }
}
