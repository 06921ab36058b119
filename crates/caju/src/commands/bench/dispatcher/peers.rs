//! Simulated workers and clients, each with a connection of its own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_proto::v1;
use caju_types::Result;
use caju_wire::{Dispatcher, DispatcherLink};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::sync::Mutex;

/// Peers that connect concurrently: a dispatcher bounds connections without a first call.
const CONNECTING: usize = 32;
/// How long a call may take before the benchmark fails.
const BOUND: Duration = Duration::from_secs(60);

/// A simulated worker.
pub(super) struct Worker {
    link: DispatcherLink,
    id: u64,
    address: String,
    secret: caju_proto::Bytes,
}

/// A task of a job on a worker, with the number of its last request.
pub(super) struct Task {
    pub(super) worker: usize,
    pub(super) job: usize,
    id: u64,
    requests: Mutex<u64>,
}

/// A simulated client.
pub(super) struct Client {
    link: DispatcherLink,
    pub(super) job: usize,
    opened: v1::OpenIterationResponse,
    /// Readers that the dispatcher has named to it.
    known_readers: AtomicU64,
}

/// Leased splits that no client has acknowledged yet, by job.
pub(super) type Unacknowledged = Vec<std::sync::Mutex<Vec<u64>>>;

/// All simulated peers of one dispatcher.
pub(super) struct Peers {
    pub(super) workers: Vec<Worker>,
    pub(super) clients: Vec<Client>,
    pub(super) tasks: Vec<Task>,
    pub(super) unacknowledged: Unacknowledged,
}

impl Peers {
    /// Registers workers and opens clients, which share jobs.
    ///
    /// # Errors
    /// Those of the calls.
    pub(super) async fn join(
        address: &str,
        definition: &str,
        (workers, clients, jobs): (u32, u32, u32),
    ) -> Result<Arc<Self>> {
        let register = |i: u32| Worker::register(address, i);
        let workers: Vec<Worker> =
            stream::iter((0..workers).map(register)).buffered(CONNECTING).try_collect().await?;
        let open = |i: u32| Client::open(address, definition, (i % jobs) as usize, i < jobs);
        let clients: Vec<Client> =
            stream::iter((0..clients).map(open)).buffered(CONNECTING).try_collect().await?;
        let places: HashMap<u64, usize> = workers.iter().enumerate().map(|(i, w)| (w.id, i)).collect();
        // The first client of each job knows the job's tasks.
        let mut first: HashMap<usize, &Client> = HashMap::new();
        for client in &clients {
            first.entry(client.job).or_insert(client);
        }
        let of_job = |(job, client): (&usize, &&Client)| {
            let infos = client.opened.tasks.clone().into_iter();
            let (job, places) = (*job, &places);
            infos
                .filter_map(|t| Some((*places.get(&t.worker_id)?, t.task_id)))
                .map(move |(worker, id)| Task { worker, job, id, requests: Mutex::new(0) })
                .collect::<Vec<_>>()
        };
        let tasks = first.iter().flat_map(of_job).collect();
        let unacknowledged = (0..jobs).map(|_| std::sync::Mutex::default()).collect();
        Ok(Arc::new(Self { workers, clients, tasks, unacknowledged }))
    }

    /// These peers, connected to a dispatcher that was started again at another address.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is none.
    pub(super) fn moved_to(&self, address: &str) -> Result<Peers> {
        let workers = self.workers.iter().map(|w| {
            Ok(Worker {
                link: DispatcherLink::new(address)?,
                id: w.id,
                address: w.address.clone(),
                secret: w.secret.clone(),
            })
        });
        let clients = self.clients.iter().map(|c| {
            let known_readers = AtomicU64::new(0);
            Ok(Client {
                link: DispatcherLink::new(address)?,
                job: c.job,
                opened: c.opened.clone(),
                known_readers,
            })
        });
        let task = |t: &Task| {
            let requests = t.requests.try_lock().map_or(0, |n| *n);
            Task { worker: t.worker, job: t.job, id: t.id, requests: Mutex::new(requests) }
        };
        Ok(Peers {
            workers: workers.collect::<Result<_>>()?,
            clients: clients.collect::<Result<_>>()?,
            tasks: self.tasks.iter().map(task).collect(),
            unacknowledged: self.unacknowledged.iter().map(|_| std::sync::Mutex::default()).collect(),
        })
    }

    /// The number of jobs with tasks.
    pub(super) fn jobs(&self) -> usize {
        self.tasks.iter().map(|t| t.job).collect::<HashSet<_>>().len()
    }

    /// The indexes of a worker's tasks.
    pub(super) fn tasks_of(&self, worker: usize) -> Vec<usize> {
        (0..self.tasks.len()).filter(|t| self.tasks.get(*t).is_some_and(|t| t.worker == worker)).collect()
    }

    /// Leases up to `want` splits to a task. Gives how many it got; they wait to be acknowledged.
    ///
    /// # Errors
    /// Those of the call.
    pub(super) async fn lease(&self, task: usize, want: u32) -> Result<usize> {
        let Some(task) = self.tasks.get(task) else { return Ok(0) };
        let Some(worker) = self.workers.get(task.worker) else { return Ok(0) };
        let mut number = task.requests.lock().await;
        *number += 1;
        let request = v1::NextSplitsRequest {
            task_id: task.id,
            worker_id: worker.id,
            want,
            wait_ms: 10_000,
            request_no: *number,
            secret: worker.secret.clone(),
            ..Default::default()
        };
        let call = |mut d: Dispatcher| async move { d.next_splits(request).await };
        let answer = worker.link.call(BOUND, call).await?;
        if answer.splits.is_empty() {
            // Nothing came within the wait: the number was not used up.
            *number -= 1;
        }
        if let Some(Ok(mut waiting)) = self.unacknowledged.get(task.job).map(|w| w.lock()) {
            waiting.extend(answer.splits.iter().map(|s| s.index));
        }
        Ok(answer.splits.len())
    }

    /// What a client of a job acknowledges now: its part of the splits that wait.
    fn acknowledged(&self, job: usize) -> Vec<v1::SplitRows> {
        let readers = self.clients.iter().filter(|c| c.job == job).count().max(1);
        let Some(Ok(mut waiting)) = self.unacknowledged.get(job).map(|w| w.lock()) else { return Vec::new() };
        let part = waiting.len().div_ceil(readers);
        let rows = |split: u64| v1::SplitRows {
            split_index: split,
            rows: vec![v1::RowRange { start: 0, end: 1 }],
            ..Default::default()
        };
        waiting.drain(..part).map(rows).collect()
    }
}

impl Worker {
    async fn register(dispatcher: &str, i: u32) -> Result<Self> {
        let link = DispatcherLink::new(dispatcher)?;
        let address = format!("worker-{i}:7071");
        let request = v1::RegisterWorkerRequest { address: address.clone(), cores: 8, ..Default::default() };
        let call = |mut d: Dispatcher| async move { d.register_worker(request).await };
        let registered = link.call(BOUND, call).await?;
        Ok(Self { link, id: registered.worker_id, address, secret: registered.secret })
    }

    /// A heartbeat with the tasks that run here and what their stages did.
    ///
    /// # Errors
    /// Those of the call.
    pub(super) async fn heartbeat(&self, tasks: Vec<u64>) -> Result<v1::WorkerHeartbeatResponse> {
        let stage = |(name, kind): (&str, v1::StageKind)| v1::StageStats {
            name: name.into(),
            kind: kind.into(),
            rows_in: 1,
            rows_out: 1,
            ..Default::default()
        };
        let stages = [
            ("source", v1::StageKind::Source),
            ("0.map", v1::StageKind::Rows),
            ("1.batch", v1::StageKind::CrossSplit),
            ("output", v1::StageKind::Output),
        ];
        let request = v1::WorkerHeartbeatRequest {
            worker_id: self.id,
            address: self.address.clone(),
            tasks,
            stages: stages.map(stage).into(),
            secret: self.secret.clone(),
            ..Default::default()
        };
        self.link.call(BOUND, |mut d: Dispatcher| async move { d.worker_heartbeat(request).await }).await
    }
}

impl Task {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Client {
    /// Opens an epoch. A client that `has_tasks` keeps them.
    async fn open(dispatcher: &str, definition: &str, job: usize, has_tasks: bool) -> Result<Self> {
        let link = DispatcherLink::new(dispatcher)?;
        let request = v1::OpenIterationRequest {
            definition_json: definition.to_string(),
            job: format!("job-{job}"),
            ..Default::default()
        };
        let call = |mut d: Dispatcher| async move { d.open_iteration(request).await };
        let mut opened = link.call(BOUND, call).await?;
        if !has_tasks {
            // Each of thousands of clients has a list of thousands of tasks.
            opened.tasks = Vec::new();
        }
        Ok(Self { link, job, opened, known_readers: AtomicU64::new(0) })
    }

    /// A heartbeat that waits for news after `version`, and acknowledges what waits.
    ///
    /// # Errors
    /// Those of the call.
    pub(super) async fn heartbeat(
        &self,
        peers: &Peers,
        version: u64,
        wait: Duration,
    ) -> Result<v1::ClientHeartbeatResponse> {
        let request = v1::ClientHeartbeatRequest {
            client_id: self.opened.client_id,
            iteration_id: self.opened.iteration_id,
            seen_version: version,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            secret: self.opened.client_secret.clone(),
            acknowledged: peers.acknowledged(self.job),
            wait_fraction: 0.5,
            knows_tasks: true,
            known_readers: self.known_readers.load(Ordering::Relaxed),
            ..Default::default()
        };
        let call = |mut d: Dispatcher| async move { d.client_heartbeat(request).await };
        let answer = self.link.call(BOUND + wait, call).await?;
        if !answer.readers.is_empty() {
            self.known_readers.store(answer.readers.len() as u64, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Its number at the dispatcher.
    pub(super) fn id(&self) -> u64 {
        self.opened.client_id
    }

    /// The version of the iteration when it was opened.
    pub(super) fn version(&self) -> u64 {
        self.opened.version
    }
}
