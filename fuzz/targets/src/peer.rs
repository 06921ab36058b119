//! Any messages of peers that the dispatcher knows: a worker that registered, and a client that joined an epoch.
//!
//! - `peer`: the first byte names a call of a worker or of a client, the rest is its message. The message gets the numbers and the
//!   secrets of the worker, its task and the client, so that the dispatcher acts on what else it says.
//!
//! Every call is answered: with a response, or with an error that is not a defect of ours. The dispatcher still serves.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers};
use caju_proto::v1::{self, dispatcher_client::DispatcherClient};
use prost::Message;
use tonic::transport::Channel;

use crate::control::{answered, connect, make_call, still_serves};
use crate::environment::{REGISTRY, block_on, context};

/// The calls that carry a secret, by the first byte of an input. New ones go to the end, so that seeds keep their meaning.
pub const PEER_CALLS: [&str; 10] = [
    "WorkerHeartbeat",
    "GetTask",
    "NextSplits",
    "FinishTask",
    "DrainWorker",
    "ClientHeartbeat",
    "CloseClient",
    "ServeBehind",
    "DealTail",
    "NextRounds",
];

/// Of the first byte: the epoch is read in rounds where it otherwise is not, and the other way around.
const OTHER_EPOCH: u8 = 128;

/// Each input has a worker of its own.
static INPUTS: AtomicU16 = AtomicU16::new(0);

const DEFINITION: &str = r#"{"source": {"range": {"start": 0, "end": 100}}, "steps": [
    {"map": {"x": "array_repeat(id, id % 7 + 1)"}}, {"batch": 10}]}"#;

/// A dispatcher whose only worker is the one of the input.
static SERVER: LazyLock<(DispatcherHandle, Channel)> = LazyLock::new(|| block_on(start()));

async fn start() -> (DispatcherHandle, Channel) {
    let timers = Timers {
        longest_poll: Duration::from_millis(5),
        worker_wait: Duration::from_millis(5),
        lost_worker_retention: Duration::from_secs(1),
        job_gc_timeout: Duration::from_secs(1),
        ..Timers::default()
    };
    let config = DispatcherConfig { timers, ..DispatcherConfig::default() };
    let catalog = EngineCatalog::new(REGISTRY.clone(), context());
    let dispatcher = Dispatcher::start(config, Arc::new(catalog)).await.unwrap();
    let channel = connect(dispatcher.address()).await;
    (dispatcher, channel)
}

/// What the dispatcher gave to the peers of an input.
struct Peers {
    worker: v1::RegisterWorkerResponse,
    client: v1::OpenIterationResponse,
    task: u64,
}

impl Peers {
    /// Registers a worker, opens an epoch, and leases splits of it.
    async fn join(rpc: &mut DispatcherClient<Channel>, in_rounds: bool) -> Self {
        let address = format!("127.0.0.1:{}", INPUTS.fetch_add(1, Ordering::Relaxed).max(1));
        let worker = v1::RegisterWorkerRequest { address: address.clone(), cores: 1, ..Default::default() };
        let worker = rpc.register_worker(worker).await.expect("a worker is registered").into_inner();
        let mut open = v1::OpenIterationRequest { definition_json: DEFINITION.into(), ..Default::default() };
        if in_rounds {
            (open.job, open.num_consumers, open.balance) =
                (format!("rounds-{}", worker.worker_id), 1, "tokens".into());
        }
        let client = rpc.open_iteration(open).await.expect("an epoch is opened").into_inner();
        let beat = v1::WorkerHeartbeatRequest {
            worker_id: worker.worker_id,
            address,
            secret: worker.secret.clone(),
            ..Default::default()
        };
        rpc.worker_heartbeat(beat).await.expect("the worker is known");
        let task =
            client.tasks.iter().find(|t| t.worker_id == worker.worker_id).expect("a task of the worker");
        let task = task.task_id;
        let splits = v1::NextSplitsRequest {
            task_id: task,
            worker_id: worker.worker_id,
            secret: worker.secret.clone(),
            want: 1,
            wait_ms: 1,
            request_no: 1,
            asks_for_lagging: true,
            ..Default::default()
        };
        let _leased = answered(rpc.next_splits(splits).await);
        Self { worker, client, task }
    }

    /// Both leave, so that they and the epoch are forgotten.
    async fn leave(&self, rpc: &mut DispatcherClient<Channel>) {
        let close = v1::CloseClientRequest {
            client_id: self.client.client_id,
            iteration_id: self.client.iteration_id,
            secret: self.client.client_secret.clone(),
            ..Default::default()
        };
        let _closed = answered(rpc.close_client(close).await);
        let drain = v1::DrainWorkerRequest {
            worker_id: self.worker.worker_id,
            secret: self.worker.secret.clone(),
            leaving: true,
        };
        let _drained = answered(rpc.drain_worker(drain).await);
    }

    /// Task 1 of a message is the task of the input.
    fn task(&self, id: &mut u64) {
        if *id == 1 {
            *id = self.task;
        }
    }

    fn tasks<'a>(&self, ids: impl IntoIterator<Item = &'a mut u64>) {
        ids.into_iter().for_each(|id| self.task(id));
    }

    /// The message of a call, as one of these peers would send it; none if the bytes are no such message.
    fn message(&self, name: &str, body: &[u8]) -> Option<Vec<u8>> {
        match name {
            "ClientHeartbeat" | "CloseClient" | "NextRounds" => self.of_client(name, body),
            _ => self.of_worker(name, body),
        }
    }

    fn of_worker(&self, name: &str, body: &[u8]) -> Option<Vec<u8>> {
        let (id, secret, task_id) = (self.worker.worker_id, self.worker.secret.clone(), self.task);
        Some(match name {
            "WorkerHeartbeat" => {
                let mut m = v1::WorkerHeartbeatRequest { worker_id: id, secret, ..decoded(body)? };
                self.tasks(&mut m.tasks);
                self.tasks(m.profiles.iter_mut().map(|p| &mut p.task_id));
                self.tasks(m.checksums.iter_mut().map(|c| &mut c.task_id));
                self.tasks(m.served.iter_mut().map(|s| &mut s.task_id));
                m.encode_to_vec()
            }
            "GetTask" => v1::GetTaskRequest { worker_id: id, secret, task_id }.encode_to_vec(),
            "NextSplits" => {
                v1::NextSplitsRequest { worker_id: id, secret, task_id, ..decoded(body)? }.encode_to_vec()
            }
            "FinishTask" => {
                v1::FinishTaskRequest { worker_id: id, secret, task_id, ..decoded(body)? }.encode_to_vec()
            }
            "DrainWorker" => {
                v1::DrainWorkerRequest { worker_id: id, secret, ..decoded(body)? }.encode_to_vec()
            }
            "ServeBehind" => {
                v1::ServeLaggingRequest { worker_id: id, secret, task_id, ..decoded(body)? }.encode_to_vec()
            }
            _ => v1::AssignRemainderRequest { worker_id: id, secret, task_id, ..decoded(body)? }
                .encode_to_vec(),
        })
    }

    fn of_client(&self, name: &str, body: &[u8]) -> Option<Vec<u8>> {
        let (client_id, iteration_id) = (self.client.client_id, self.client.iteration_id);
        let secret: Bytes = self.client.client_secret.clone();
        Some(match name {
            "ClientHeartbeat" => {
                let message = decoded(body)?;
                let mut m = v1::ClientHeartbeatRequest { client_id, iteration_id, secret, ..message };
                self.tasks(m.ended_tasks.iter_mut().chain(&mut m.taken_tasks));
                self.tasks(m.lost_tasks.iter_mut().map(|t| &mut t.task_id));
                self.tasks(m.ended_counts.iter_mut().map(|t| &mut t.task_id));
                m.encode_to_vec()
            }
            "CloseClient" => {
                let mut m = v1::CloseClientRequest { client_id, iteration_id, secret, ..decoded(body)? };
                self.tasks(m.received.iter_mut().map(|t| &mut t.task_id));
                self.tasks(&mut m.broken_off);
                m.encode_to_vec()
            }
            _ => {
                let mut m = v1::NextRoundsRequest { client_id, iteration_id, secret, ..decoded(body)? };
                self.tasks(m.waiting.iter_mut().map(|t| &mut t.task_id));
                self.tasks(&mut m.ended_tasks);
                m.encode_to_vec()
            }
        })
    }
}

fn decoded<M: Message + Default>(body: &[u8]) -> Option<M> {
    M::decode(body).ok()
}

pub(crate) fn one(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let name = PEER_CALLS[usize::from(first % OTHER_EPOCH) % PEER_CALLS.len()];
    let is_of_rounds = matches!(name, "ServeBehind" | "DealTail" | "NextRounds");
    let channel = &SERVER.1;
    block_on(async {
        let mut rpc = DispatcherClient::new(channel.clone());
        let peers = Peers::join(&mut rpc, is_of_rounds != (first / OTHER_EPOCH == 1)).await;
        if let Some(message) = peers.message(name, body) {
            make_call(channel, "Dispatcher", name, &message).await;
            // What the call left behind is looked at by the next one, and by the status.
            make_call(channel, "Dispatcher", name, &message).await;
        }
        peers.leave(&mut rpc).await;
        still_serves(channel).await;
    });
}
