//! Settings.

use std::path::PathBuf;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_planner::ScalingSettings;
use caju_wire::{ConnectionLimits, Network};

use crate::journal::JournalKind;
use crate::state::LossLimits;
use crate::workers::WorkerList;

/// What a dispatcher is started with.
#[derive(Debug, Clone)]
pub struct DispatcherConfig {
    /// `host:port` to listen on, where port 0 takes a free one; or
    /// [`IN_PROCESS`](caju_wire::IN_PROCESS), for peers of this process alone.
    pub listen: String,
    /// The network that it listens on.
    pub network: Network,
    /// What peers may use of connections, calls and messages.
    pub connections: ConnectionLimits,
    /// The folder of the journal; none: it is in memory, and lost with the process.
    pub state_dir: Option<PathBuf>,
    /// The database that holds the journal there. A journal in another one is carried over.
    pub journal: JournalKind,
    /// Where the operator's secret is, or is written: what calls of operators carry. None: in the state folder.
    pub operator_secret_file: Option<PathBuf>,
    /// The URL of the snapshots, for `caju status`.
    pub cache_url: String,
    /// The most bytes that the cache may hold; unlimited if absent.
    pub cache_budget: Option<u64>,
    /// The timers.
    pub timers: Timers,
    /// How many losses an iteration survives.
    pub losses: LossLimits,
    /// Bounds on datasets and jobs.
    pub memory: MemoryLimits,
    /// The workers that may register, in order: their positions are the shards of the static processing modes. Empty: any
    /// worker may register, and there are no shards.
    pub workers: WorkerList,
    /// A folder to record the autocache events of each job in, for `caju plan --replay`; none: they are not recorded.
    pub record_autocache_events: Option<PathBuf>,
    /// How the number of workers that should run is computed.
    pub scaling: ScalingSettings,
    /// `host:port` of a second port for `GET /metrics` and `GET /healthz`; none: there is no such port.
    pub http_listen: Option<String>,
    /// The most open connections of that port. A further one closes another one: silent ones keep no probe waiting.
    pub http_connections: usize,
}

/// Bounds on what a dispatcher keeps in memory. Beyond them it forgets datasets and jobs that are not in use, the least
/// recently used first, and refuses new ones if all are in use. An epoch that is over and has no readers is not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes of one name, identifier, address or URL of a save. Each is kept, compared and shown.
    pub name_bytes: usize,
    /// Datasets.
    pub datasets: usize,
    /// Bytes that all datasets' definitions and schemas take in memory. A definition counts twice: its text and its typed form.
    pub dataset_bytes: u64,
    /// Jobs.
    pub jobs: usize,
    /// Epochs of one job.
    pub epochs_per_job: usize,
    /// Readers of all epochs together.
    pub readers: usize,
    /// Registered workers, with those that were lost.
    pub workers: usize,
    /// Jobs without readers, and datasets without a given name that no job reads, are forgotten after this time.
    pub forget_after: Duration,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            name_bytes: 1024,
            datasets: 10_000,
            dataset_bytes: 1 << 30,
            jobs: 10_000,
            epochs_per_job: 1_000,
            readers: 100_000,
            workers: 10_000,
            forget_after: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl Default for DispatcherConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_string(),
            network: Network::default(),
            connections: ConnectionLimits::default(),
            state_dir: None,
            journal: JournalKind::default(),
            operator_secret_file: None,
            cache_url: String::new(),
            cache_budget: None,
            timers: Timers::default(),
            losses: LossLimits::default(),
            memory: MemoryLimits::default(),
            workers: WorkerList::default(),
            record_autocache_events: None,
            scaling: ScalingSettings::default(),
            http_listen: None,
            http_connections: 32,
        }
    }
}

/// How long things may take.
#[derive(Debug, Clone)]
pub struct Timers {
    /// How often workers and clients report.
    pub heartbeat: Duration,
    /// A worker that is silent for this long is lost.
    pub worker_timeout: Duration,
    /// A client that is silent for this long is expelled; what its user has not taken goes to other readers.
    pub client_timeout: Duration,
    /// Heartbeats that a worker misses until another process may take its address, and until it does not count in the target of
    /// workers.
    pub worker_missed_heartbeats: u32,
    /// Heartbeats that a client misses until it counts as silent, where it matters who lives before the client timeout is over.
    pub reader_missed_heartbeats: u32,
    /// How long an iteration without readers is kept.
    pub job_gc_timeout: Duration,
    /// How long boundaries of `bucket_by_length` that no reader asks for any more wait for a worker that learns them.
    pub boundaries_gc_timeout: Duration,
    /// How long clients wait for a worker when there is none.
    pub worker_wait: Duration,
    /// How long the consumers of a job wait for those of them that have not come.
    pub consumer_wait: Duration,
    /// How long a reader that has read all of its rows waits for another one whose user takes none. As long as users take
    /// rows they are waited for, because these rows come back if their reader dies.
    pub reader_wait: Duration,
    /// How long a lost worker is listed.
    pub lost_worker_retention: Duration,
    /// A worker that is this many times slower than the finished ones is a straggler: idle workers take over its splits at the end of
    /// an epoch. 0: never.
    pub straggler_factor: u32,
    /// How often workers, clients and iterations are checked.
    pub check_every: Duration,
    /// How often the number of workers that should run is computed; zero: never.
    pub scaling_interval: Duration,
    /// The longest that one call waits for news, whatever it asks for.
    pub longest_poll: Duration,
    /// How long one write of the journal may take before the journal has failed.
    pub journal_timeout: Duration,
    /// How long an answer waits for the cache's store before it is given without what is stored there.
    pub cache_wait: Duration,
    /// How long an update of the cache in the background may take.
    pub cache_update_timeout: Duration,
    /// How long one request to the store of a cache or a save may take before it is made again.
    pub cache_request_timeout: Duration,
    /// The time without a sign of life after which a process that writes a save counts as dead.
    pub cache_lease: Duration,
    /// How long calls may take to end at shutdown.
    pub drain: Duration,
}

impl Timers {
    /// The time after which a worker has missed its heartbeats.
    pub(crate) fn missed(&self) -> Duration {
        self.heartbeat.saturating_mul(self.worker_missed_heartbeats)
    }

    /// The shortest time without a call after which something is done about a worker, a reader or an epoch.
    /// It is never less than the gaps between checks on a busy machine.
    pub(crate) fn shortest_silence(&self) -> Duration {
        let shortest =
            self.worker_timeout.min(self.client_timeout).min(self.silence()).min(self.job_gc_timeout);
        shortest.max(Duration::from_secs(1))
    }

    /// How this process accesses caches and saves.
    pub(crate) fn cache_options(&self) -> CacheOptions {
        CacheOptions {
            request_timeout: self.cache_request_timeout,
            lease_ttl: self.cache_lease,
            ..CacheOptions::default()
        }
    }

    /// The time after which a client that has not called counts as silent.
    pub(crate) fn silence(&self) -> Duration {
        self.heartbeat.saturating_mul(self.reader_missed_heartbeats)
    }
}

impl Default for Timers {
    fn default() -> Self {
        let cache = CacheOptions::default();
        Self {
            heartbeat: Duration::from_secs(1),
            worker_timeout: Duration::from_secs(5),
            client_timeout: Duration::from_secs(60),
            // One or two may be late on a busy machine.
            worker_missed_heartbeats: 3,
            // A call that is sent again after a pause of a second or two still comes in time.
            reader_missed_heartbeats: 5,
            job_gc_timeout: Duration::from_secs(300),
            boundaries_gc_timeout: Duration::from_secs(30),
            worker_wait: Duration::from_secs(120),
            consumer_wait: Duration::from_secs(600),
            // Longer than most steps of a training, and short enough for a reader whose user waits for this one's.
            reader_wait: Duration::from_secs(10),
            lost_worker_retention: Duration::from_secs(3600),
            straggler_factor: 3,
            check_every: Duration::from_millis(250),
            // A few heartbeats, so that the reports of a window are of about the same time.
            scaling_interval: Duration::from_secs(5),
            longest_poll: Duration::from_secs(30),
            journal_timeout: Duration::from_secs(30),
            cache_wait: Duration::from_secs(2),
            cache_update_timeout: Duration::from_secs(30),
            cache_request_timeout: cache.request_timeout,
            cache_lease: cache.lease_ttl,
            drain: Duration::from_secs(5),
        }
    }
}
