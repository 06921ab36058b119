//! The processes of a run: a dispatcher, workers and readers, with their real code.

use std::sync::Arc;
use std::time::Duration;

use caju_client::{Client, ClientConfig, ReaderState};
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers, WorkerList};
use caju_engine::WindowUsage;
use caju_kernels::{Limits, Registry};
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock, Task, Tasks, log_failure};
use caju_sources::SourceContext;
use caju_types::{Error, Result};
use caju_wire::{LocalWorkers, Network};
use caju_worker::{TunedNumbers, Worker, WorkerConfig, WorkerHandle};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ambient;
use crate::disk::Disk;
use crate::faults::{CLIENT_TIMEOUT, Host};
use crate::gate::Gate;
use crate::launches::Launches;
use crate::log::EventLog;
use crate::network::SimNetwork;
use crate::plan::{Caching, Division, Plan, WORKER_TIMEOUT};
use crate::random::Random;
use crate::reader_record::{Epoch, ReaderRecord};
use crate::tap::{self, Observed};

/// Where clients and workers reach the dispatcher: its tap.
pub(crate) const DISPATCHER: &str = "dispatcher:7070";
/// Where the dispatcher itself listens, behind the tap.
const BEHIND_TAP: &str = "dispatcher:7071";
/// How long a process tries to reach a dispatcher when it starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a drained worker has.
const DRAIN: Duration = Duration::from_secs(30);

/// The processes of a run. Clones are the same processes.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    plan: Plan,
    log: EventLog,
    network: SimNetwork,
    disk: Disk,
    observed: Observed,
    registry: Registry,
    stores: Arc<Stores>,
    pool: CpuPool,
    /// The workers in the process of a reader.
    local: LocalWorkers,
    tasks: Tasks,
    dispatcher: Mutex<Option<Running>>,
    workers: Mutex<Vec<WorkerProcess>>,
    records: Vec<Mutex<ReaderRecord>>,
    /// Readers stand still while theirs is closed.
    gates: Vec<Gate>,
    consumers: Launches,
    /// Readers that have ended.
    ended: watch::Sender<usize>,
    /// The states of readers that stopped.
    states: watch::Sender<Vec<(usize, ReaderState)>>,
}

/// A dispatcher and its tap.
struct Running {
    handle: DispatcherHandle,
    tap: Tasks,
}

#[derive(Default)]
struct WorkerProcess {
    handle: Option<WorkerHandle>,
    /// Its start, until it has registered.
    starting: Option<Task<()>>,
    is_up: bool,
}

impl World {
    pub(crate) fn new(plan: Plan, seed: u64, log: EventLog, observed: Observed, disk: Disk) -> Result<Self> {
        let network = SimNetwork::new(Random::new(seed, 20), plan.quality, log.clone());
        Ok(Self(Arc::new(Inner {
            records: (0..plan.readers).map(|_| Mutex::default()).collect(),
            gates: (0..plan.readers).map(|_| Gate::default()).collect(),
            consumers: Launches::new(plan.readers),
            plan,
            log,
            network,
            disk,
            observed,
            registry: Registry::new(Limits::default()),
            stores: Arc::new(Stores::default()),
            pool: CpuPool::new(2)?,
            local: LocalWorkers::new(),
            tasks: Tasks::new(),
            dispatcher: Mutex::default(),
            workers: Mutex::default(),
            ended: watch::Sender::new(0),
            states: watch::Sender::new(Vec::new()),
        })))
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    pub(crate) fn log(&self) -> &EventLog {
        &self.0.log
    }

    pub(crate) fn observed(&self) -> &Observed {
        &self.0.observed
    }

    pub(crate) fn network(&self) -> &SimNetwork {
        &self.0.network
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.0.disk
    }

    /// What a reader has done so far.
    pub(crate) fn record(&self, reader: usize) -> Option<&Mutex<ReaderRecord>> {
        self.0.records.get(reader)
    }

    /// When consumers die.
    pub(crate) fn consumers(&self) -> &Launches {
        &self.0.consumers
    }

    /// Does something later.
    pub(crate) fn after(&self, delay: Duration, what: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.background("a later event", log_failure, async move {
            tokio::time::sleep(delay).await;
            what.await;
            Ok(())
        });
    }

    // ---- the dispatcher

    /// Starts a dispatcher on what is on the disk.
    pub(crate) async fn start_dispatcher(&self) {
        let inner = &self.0;
        if inner.dispatcher.lock().is_some() {
            return;
        }
        let network = inner.network.start_host("dispatcher");
        match self.try_start_dispatcher(network).await {
            Ok(running) => {
                inner.log.event(format_args!("the dispatcher starts"));
                *inner.dispatcher.lock() = Some(running);
                self.watch_disk();
            }
            Err(e) => inner.log.violation(format!("the dispatcher does not start: {e}")),
        }
    }

    async fn try_start_dispatcher(&self, network: Network) -> Result<Running> {
        let inner = &self.0;
        let timers = Timers {
            heartbeat: Duration::from_millis(500),
            worker_timeout: WORKER_TIMEOUT,
            client_timeout: CLIENT_TIMEOUT,
            drain: Duration::from_secs(1),
            ..Timers::default()
        };
        let cache_url = self.cache_url();
        let ctx = SourceContext::new(Arc::clone(&inner.stores), Arc::new(IoCounters::new()));
        let catalog = EngineCatalog::new(inner.registry.clone(), ctx).with_cache(&cache_url);
        let config = DispatcherConfig {
            listen: BEHIND_TAP.to_string(),
            network: network.clone(),
            timers,
            cache_url,
            workers: self.worker_list()?,
            ..DispatcherConfig::default()
        };
        let (clock, journal) = (SystemClock::shared(), inner.disk.journal());
        let handle = Dispatcher::start_on(config, Arc::new(catalog), clock, journal).await?;
        let (tap, behind) = (Tasks::new(), handle.address().to_owned());
        tap::start(network, DISPATCHER, behind, inner.observed.clone(), &tap).await?;
        Ok(Running { handle, tap })
    }

    /// The workers that have shards, where they have such.
    fn worker_list(&self) -> Result<WorkerList> {
        let plan = &self.0.plan;
        let count = if plan.division == Division::ByRow { plan.workers } else { 0 };
        WorkerList::new((0..count).map(|w| worker_address(&Host::Worker(w).to_string())).collect())
    }

    fn cache_url(&self) -> String {
        match self.0.plan.caching {
            Caching::Compute => String::new(),
            Caching::PutGet => "memory://cache".to_string(),
        }
    }

    /// A dispatcher whose disk fails ends, as the binary does, and is started again.
    fn watch_disk(&self) {
        let world = self.clone();
        let failed = self.0.dispatcher.lock().as_ref().map(|running| running.handle.watch_failure());
        let Some(failed) = failed else { return };
        self.0.tasks.background("the dispatcher's end", log_failure, async move {
            let error = failed.await;
            world.0.log.event(format_args!("the dispatcher gives up: {error}"));
            if world.kill_dispatcher() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                world.start_dispatcher().await;
            }
            Ok(())
        });
    }

    /// Kills the dispatcher; false if there is none.
    pub(crate) fn kill_dispatcher(&self) -> bool {
        let Some(running) = self.0.dispatcher.lock().take() else { return false };
        self.0.log.event(format_args!("the dispatcher is killed"));
        self.0.disk.detach();
        self.0.network.stop_host("dispatcher", false);
        running.tap.stop();
        drop(running.handle);
        true
    }

    // ---- workers

    /// Starts a worker at its address; the next new one if there is none yet.
    pub(crate) fn start_worker(&self, worker: usize) {
        let inner = &self.0;
        let mut workers = inner.workers.lock();
        while workers.len() <= worker {
            workers.push(WorkerProcess::default());
        }
        let Some(process) = workers.get_mut(worker).filter(|p| !p.is_up) else { return };
        let name = Host::Worker(worker).to_string();
        inner.log.event(format_args!("{name} starts"));
        let network = inner.network.start_host(&name);
        let world = self.clone();
        process.is_up = true;
        process.starting = Some(inner.tasks.spawn("a worker's start", async move {
            let started = Worker::start(world.worker_config(worker, &name, network)).await;
            let mut workers = world.0.workers.lock();
            let Some(process) = workers.get_mut(worker) else { return };
            match started {
                Ok(handle) => {
                    world.0.log.event(format_args!("{name} is {}", handle.worker_id()));
                    process.handle = Some(handle);
                }
                Err(e) => {
                    world.0.log.event(format_args!("{name} does not start: {e}"));
                    process.is_up = false;
                }
            }
        }));
    }

    /// The number of the next new worker.
    pub(crate) fn next_worker(&self) -> usize {
        self.0.workers.lock().len()
    }

    fn worker_config(&self, worker: usize, name: &str, network: Network) -> WorkerConfig {
        let inner = &self.0;
        let is_colocated = inner.plan.colocated_worker() == Some(worker);
        WorkerConfig {
            tags: if is_colocated { vec!["COLOCATED".to_string()] } else { Vec::new() },
            local: if is_colocated { inner.local.clone() } else { LocalWorkers::new() },
            listen: worker_address(name),
            network,
            pool: Some(inner.pool.clone()),
            tuned: TunedNumbers { buffer_bytes: Some(inner.plan.buffer_bytes), ..TunedNumbers::default() },
            connect_timeout: CONNECT_TIMEOUT,
            registry: inner.registry.clone(),
            batch_rows: Some(inner.plan.batch_rows),
            sharing: inner.plan.sharing.as_ref().map(|s| s.settings).unwrap_or_default(),
            ..WorkerConfig::new(DISPATCHER, Arc::clone(&inner.stores))
        }
    }

    /// Kills a worker.
    pub(crate) fn kill_worker(&self, worker: usize, is_silent: bool) {
        let Some((handle, starting)) = self.take_worker(worker) else { return };
        let name = Host::Worker(worker).to_string();
        self.0.log.event(format_args!("{name} is killed"));
        self.0.network.stop_host(&name, is_silent);
        drop(starting);
        if let Some(handle) = handle {
            handle.kill();
        }
    }

    /// Drains a worker, which ends then.
    pub(crate) fn drain_worker(&self, worker: usize) {
        let Some((Some(handle), _)) = self.take_worker(worker) else { return };
        let (world, name) = (self.clone(), Host::Worker(worker).to_string());
        self.0.log.event(format_args!("{name} drains"));
        self.0.tasks.background("a worker that drains", log_failure, async move {
            let done = handle.drain(DRAIN).await;
            world.0.log.event(format_args!("{name} is drained: {done}"));
            world.0.network.stop_host(&name, false);
            Ok(())
        });
    }

    fn take_worker(&self, worker: usize) -> Option<(Option<WorkerHandle>, Option<Task<()>>)> {
        let mut workers = self.0.workers.lock();
        let process = workers.get_mut(worker).filter(|p| p.is_up)?;
        process.is_up = false;
        Some((process.handle.take(), process.starting.take()))
    }

    /// Bytes of finished elements that wait in each worker, with the number of its tasks.
    pub(crate) fn buffered(&self) -> Vec<(usize, usize)> {
        let workers = self.0.workers.lock();
        let running = workers.iter().filter_map(|w| w.handle.as_ref());
        running.map(|w| (w.buffered_bytes(), w.tasks().len())).collect()
    }

    /// The window of each worker.
    pub(crate) fn windows(&self) -> Vec<WindowUsage> {
        let workers = self.0.workers.lock();
        workers.iter().filter_map(|w| w.handle.as_ref()).map(WorkerHandle::window_usage).collect()
    }

    // ---- readers

    /// Starts a reader of the job: `read` is what it does on the network of its host.
    pub(crate) fn start_reader<F>(&self, reader: usize, read: impl FnOnce(World, Network) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let name = Host::Reader(reader).to_string();
        let (world, reading) = (self.clone(), read(self.clone(), self.0.network.start_host(&name)));
        let running = self.0.tasks.spawn("a reader", async move {
            let ended = match world.0.gates.get(reader) {
                Some(gate) => gate.pass(reading).await,
                None => reading.await,
            };
            if let Some(record) = world.record(reader) {
                record.lock().ended(ended);
            }
            world.0.ended.send_modify(|n| *n += 1);
        });
        if let Some(record) = self.record(reader) {
            record.lock().running = Some(running);
        }
    }

    /// A reader stands still from now on, or no longer.
    pub(crate) fn pause_reader(&self, reader: usize, stands_still: bool) {
        self.0.gates.get(reader).into_iter().for_each(|gate| gate.close(stands_still));
        let Some(record) = self.record(reader).filter(|_| stands_still) else { return };
        record.lock().paused = Some(ambient::elapsed());
    }

    /// Kills a reader.
    pub(crate) fn kill_reader(&self, reader: usize) {
        let Some(record) = self.record(reader) else { return };
        let running = {
            let mut record = record.lock();
            if record.has_ended() {
                return;
            }
            record.killed = Some(ambient::elapsed());
            record.running.take()
        };
        let name = Host::Reader(reader).to_string();
        self.0.log.event(format_args!("{name} is killed"));
        self.0.network.stop_host(&name, false);
        if self.0.plan.colocated == Some(reader) {
            self.0.plan.colocated_worker().into_iter().for_each(|worker| self.kill_worker(worker, false));
        }
        drop(running);
        self.0.ended.send_modify(|n| *n += 1);
    }

    /// Waits until every reader has ended.
    pub(crate) async fn readers_end(&self) {
        let mut ended = self.0.ended.subscribe();
        let all = self.0.plan.readers;
        drop(ended.wait_for(|n| *n >= all).await);
    }

    /// The client of a reader.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub(crate) async fn client(&self, reader: usize, network: Network) -> Result<Client> {
        let is_colocated = self.0.plan.colocated == Some(reader);
        let config = ClientConfig {
            local: if is_colocated { self.0.local.clone() } else { LocalWorkers::new() },
            connect_timeout: CONNECT_TIMEOUT,
            prefetch_bytes: self.0.plan.prefetch_bytes,
            network,
            ..ClientConfig::default()
        };
        Client::connect(DISPATCHER, config).await
    }

    /// Gives a reader's state, and waits for those of all readers of its job.
    pub(crate) async fn gather_states(&self, reader: usize, state: ReaderState) -> Vec<ReaderState> {
        self.0.states.send_modify(|states| states.push((reader, state)));
        let plan = &self.0.plan;
        let all = (0..plan.readers).filter(|other| plan.are_of_one_job(reader, *other)).count();
        let of_job = |states: &[(usize, ReaderState)]| -> Vec<ReaderState> {
            let given = states.iter().filter(|(other, _)| plan.are_of_one_job(reader, *other));
            given.map(|(_, state)| state.clone()).collect()
        };
        let mut given = self.0.states.subscribe();
        given.wait_for(|states| of_job(states).len() >= all).await.map(|s| of_job(&s)).unwrap_or_default()
    }

    /// Ends everything, without waiting.
    pub(crate) fn stop(&self) {
        self.kill_dispatcher();
        for worker in 0..self.next_worker() {
            self.kill_worker(worker, false);
        }
        self.0.tasks.stop();
    }

    /// What came of each reader.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let of = |(reader, record): (usize, &Mutex<ReaderRecord>)| {
            let record = record.lock();
            let (killed, paused) = (record.killed, record.paused);
            Outcome { reader, killed, paused, epochs: record.epochs.clone(), error: record.error.clone() }
        };
        self.0.records.iter().enumerate().map(of).collect()
    }
}

/// The address at which a worker listens.
fn worker_address(host: &str) -> String {
    format!("{host}:7100")
}

/// What came of a reader.
#[derive(Clone)]
pub(crate) struct Outcome {
    pub(crate) reader: usize,
    pub(crate) killed: Option<Duration>,
    /// When it stood still for the last time.
    pub(crate) paused: Option<Duration>,
    pub(crate) epochs: Vec<Epoch>,
    pub(crate) error: Option<Error>,
}
