//! The control plane: a dispatcher and a worker that run as servers do, and any bytes as a call.
//!
//! - `flight`: the command of a Flight descriptor, at the dispatcher.
//! - `ticket`: a Flight ticket, at the worker.
//! - `message`: the first byte names a call of the dispatcher, the rest is its message.
//! - `messages`: any bytes as every message of the protocol, and what is converted from it.
//!
//! Every call is answered: with a response, or with an error that is not a defect of ours. What was called still serves.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightDescriptor, Ticket};
use bytes::{Buf, BufMut, Bytes};
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers};
use caju_engine::{CachePlan, GroupLease};
use caju_proto::from_status;
use caju_proto::v1::{self, dispatcher_client::DispatcherClient};
use caju_sources::Split;
use caju_types::{Error, ErrorKind};
use caju_wire::schema_from_ipc;
use caju_worker::{Worker, WorkerConfig, WorkerHandle};
use futures::TryStreamExt;
use prost::Message;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::environment::{POOL, REGISTRY, STORES, block_on, context};

/// The dispatcher's calls, by the first byte of an input. New ones go to the end, so that seeds keep their meaning.
pub const CALLS: [&str; 19] = [
    "RegisterWorker",
    "WorkerHeartbeat",
    "GetTask",
    "NextSplits",
    "FinishTask",
    "DrainWorker",
    "RegisterDataset",
    "GetDataset",
    "OpenIteration",
    "ClientHeartbeat",
    "CloseClient",
    "StartSave",
    "GetSave",
    "GetStatus",
    "GetWorkerStatus",
    "ServeBehind",
    "DealTail",
    "NextRounds",
    "ReportBoundaries",
];

struct Cluster {
    _dispatcher: DispatcherHandle,
    worker: WorkerHandle,
    channel: Channel,
    at_worker: Channel,
}

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| block_on(start()));

async fn start() -> Cluster {
    let catalog = EngineCatalog::new(REGISTRY.clone(), context());
    let timers = Timers {
        longest_poll: Duration::from_millis(5),
        worker_wait: Duration::from_millis(5),
        // A worker that an input drains or declares lost registers again by itself.
        lost_worker_retention: Duration::from_secs(1),
        ..Timers::default()
    };
    let config = DispatcherConfig { timers, ..DispatcherConfig::default() };
    let dispatcher = Dispatcher::start(config, Arc::new(catalog)).await.unwrap();
    let address = dispatcher.address().to_string();
    let mut config = WorkerConfig::new(address.clone(), Arc::clone(&STORES));
    config.pool = Some(POOL.clone());
    config.registry = REGISTRY.clone();
    let worker = Worker::start(config).await.unwrap();
    let channel = connect(&address).await;
    let at_worker = connect(worker.address()).await;
    Cluster { _dispatcher: dispatcher, worker, channel, at_worker }
}

pub(crate) async fn connect(address: &str) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

pub(crate) fn flight(data: &[u8]) {
    let cluster = &*CLUSTER;
    block_on(async {
        let mut client = FlightServiceClient::new(cluster.channel.clone());
        let command = || Request::new(FlightDescriptor::new_cmd(data.to_vec()));
        answered(client.get_flight_info(command()).await);
        answered(client.get_schema(command()).await);
        still_serves(&cluster.channel).await;
    });
}

pub(crate) fn ticket(data: &[u8]) {
    let cluster = &*CLUSTER;
    // Seeds do not know which worker this is.
    let text = String::from_utf8_lossy(data).replace("\"WORKER\"", &cluster.worker.worker_id().0.to_string());
    block_on(async {
        let mut client = FlightServiceClient::new(cluster.at_worker.clone());
        let text = signed(cluster, &text).await.unwrap_or(text);
        if let Some(stream) = answered(client.do_get(Request::new(Ticket::new(text))).await) {
            // Some messages: a definition may have more rows than there is time for.
            let mut stream = stream.into_inner();
            for _ in 0..4 {
                match stream.try_next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(e) => return no_defect(&e),
                }
            }
        }
        still_serves(&cluster.channel).await;
    });
}

/// The ticket as the dispatcher signs it, if it is the ticket of a command.
async fn signed(cluster: &Cluster, ticket: &str) -> Option<String> {
    let mut command: serde_json::Value = serde_json::from_str(ticket).ok()?;
    command.as_object_mut()?.remove("worker");
    let mut dispatcher = FlightServiceClient::new(cluster.channel.clone());
    let command = Request::new(FlightDescriptor::new_cmd(command.to_string()));
    let info = answered(dispatcher.get_flight_info(command).await)?.into_inner();
    String::from_utf8(info.endpoint.into_iter().next()?.ticket?.ticket.to_vec()).ok()
}

pub(crate) fn message(data: &[u8]) {
    let Some((call, body)) = data.split_first() else { return };
    let name = CALLS[usize::from(*call) % CALLS.len()];
    let cluster = &*CLUSTER;
    let service = if name == "GetWorkerStatus" { "Worker" } else { "Dispatcher" };
    let channel = if service == "Worker" { &cluster.at_worker } else { &cluster.channel };
    block_on(async {
        make_call(channel, service, name, body).await;
        still_serves(&cluster.channel).await;
    });
}

/// Makes a call with these bytes as its message.
pub(crate) async fn make_call(channel: &Channel, service: &str, name: &str, body: &[u8]) {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::try_from(format!("/caju.v1.{service}/{name}")).unwrap();
    answered(client.unary(Request::new(Bytes::copy_from_slice(body)), path, Raw).await);
}

pub(crate) fn answered<T>(answer: Result<T, Status>) -> Option<T> {
    answer.inspect_err(no_defect).ok()
}

/// A panic within a call shows as a broken stream or as `Internal`.
fn no_defect(status: &Status) {
    // The server's library says `Internal` of what is no message.
    if status.message().starts_with("failed to decode Protobuf message") {
        return;
    }
    let error = from_status(status);
    assert!(error.kind() != ErrorKind::Internal, "a defect of ours: {status:?}");
}

pub(crate) async fn still_serves(dispatcher: &Channel) {
    let mut client = DispatcherClient::new(dispatcher.clone());
    client.get_status(v1::GetStatusRequest::default()).await.expect("the dispatcher serves other calls");
}

/// Messages as the bytes that they are.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// What was decoded is the same after encoding and decoding.
fn round<M: Message + Default + PartialEq>(data: &[u8]) -> Option<M> {
    let message = M::decode(data).ok()?;
    let again = M::decode(message.encode_to_vec().as_slice()).expect("written and not read");
    // NaN differs from itself.
    if message == message.clone_by_bytes() {
        assert!(again == message, "written and read");
    }
    Some(message)
}

trait ByBytes: Sized {
    fn clone_by_bytes(&self) -> Self;
}

impl<M: Message + Default> ByBytes for M {
    fn clone_by_bytes(&self) -> Self {
        M::decode(self.encode_to_vec().as_slice()).unwrap_or_default()
    }
}

macro_rules! every_message {
    ($data:expr, $($message:ident),* $(,)?) => { $(let _decoded = round::<v1::$message>($data);)* };
}

pub(crate) fn decode(data: &[u8]) {
    every_message!(
        data,
        RegisterWorkerRequest,
        RegisterWorkerResponse,
        WorkerHeartbeatRequest,
        TunedSetting,
        TaskServed,
        SharedUse,
        WorkerUsage,
        SharingUsage,
        WorkerHeartbeatResponse,
        BoundariesToLearn,
        ReportBoundariesRequest,
        ReportBoundariesResponse,
        LearntBoundaries,
        TaskPlan,
        GetTaskRequest,
        GetTaskResponse,
        TaskDef,
        SplitLease,
        RowRange,
        RowChecksum,
        NextSplitsRequest,
        NextSplitsResponse,
        ServeLaggingRequest,
        ServeLaggingResponse,
        AssignRemainderRequest,
        AssignRemainderResponse,
        RemainderPiece,
        RemainderElement,
        NextRoundsRequest,
        TaskElements,
        RoundOrder,
        RoundStep,
        NextRoundsResponse,
        FinishTaskRequest,
        SplitCount,
        FinishTaskResponse,
        DrainWorkerRequest,
        DrainWorkerResponse,
        RegisterDatasetRequest,
        RegisterDatasetResponse,
        GetDatasetRequest,
        GetDatasetResponse,
        OpenIterationRequest,
        Attempt,
        ReaderState,
        ReadingBase,
        ReaderRows,
        ConsumerSteps,
        ListedSplits,
        StartSaveRequest,
        GetSaveRequest,
        SaveStatus,
        OpenIterationResponse,
        EpochDraws,
        Learning,
        TaskInfo,
        ClientHeartbeatRequest,
        TaskCounts,
        LostTask,
        SplitRows,
        ClientHeartbeatResponse,
        Incomplete,
        CloseClientRequest,
        CloseClientResponse,
        StageStats,
        IoStats,
        TaskProfile,
        HintProbe,
        SplitModes,
        GetStatusRequest,
        GetStatusResponse,
        ScalingStatus,
        JobWorkers,
        CacheSize,
        WorkerStatus,
        ReaderStatus,
        SplitStates,
        JobStatus,
        GetWorkerStatusRequest,
        GetWorkerStatusResponse,
        TaskStatus,
    );
    if let Some(failure) = round::<v1::Failure>(data) {
        let error = Error::from(&failure);
        let back = v1::Failure::from(&error);
        assert_eq!(Error::from(&back).kind(), error.kind(), "the kind of an error");
    }
    if let Some(profile) = round::<v1::TaskProfile>(data) {
        let mut sum = Vec::new();
        caju_proto::add_stages(&mut sum, &profile.stages);
        caju_proto::add_stages(&mut sum, &profile.stages);
    }
    // What travels inside of messages as JSON or as Arrow's own schema.
    if let Some(lease) = round::<v1::SplitLease>(data) {
        let _split = serde_json::from_str::<Split>(&lease.split_json);
        let _plan = serde_json::from_str::<CachePlan>(&lease.cache);
        let _group = serde_json::from_str::<GroupLease>(&lease.group);
    }
    let task = round::<v1::TaskDef>(data).unwrap_or_default();
    for message in [data, &task.source_schema_ipc[..]] {
        if let Err(e) = schema_from_ipc(message) {
            assert!(!e.message().is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{CALLS, PEER_CALLS};

    const PROTO: &str = include_str!("../../../proto/caju/v1/caju.proto");

    /// The words behind a keyword at the beginning of a line.
    fn named(keyword: &str) -> Vec<&'static str> {
        let lines = PROTO.lines().filter_map(|l| l.trim().strip_prefix(keyword)?.split([' ', '(']).next());
        let names: Vec<_> = lines.collect();
        assert!(names.len() > 15, "{names:?}");
        names
    }

    #[test]
    fn every_call_and_every_message_of_the_protocol_is_fuzzed() {
        let here = include_str!("control.rs");
        for name in named("rpc ") {
            assert!(CALLS.contains(&name), "no input calls {name}");
        }
        for name in named("message ") {
            let is_decoded =
                here.contains(&format!("        {name},\n")) || here.contains(&format!("v1::{name}>"));
            assert!(is_decoded, "no input is read as {name}");
        }
    }

    #[test]
    fn every_call_with_a_secret_of_a_worker_or_of_a_client_is_made_by_known_peers() {
        // The secrets of these are not of a worker that runs a task, or of a client of an epoch.
        let others = ["RegisterWorkerRequest", "TaskDef", "ReportBoundariesRequest"];
        let with_secrets = PROTO.split("\nmessage ").skip(1).filter(|m| {
            let body = m.split("\n}").next().unwrap_or_default();
            body.contains(" bytes secret = ")
        });
        let names = with_secrets.filter_map(|m| m.split(' ').next()).filter(|n| n.ends_with("Request"));
        let calls = |name: &&str| {
            let rpc = PROTO.lines().find(|l| l.contains(&format!("({name})")));
            rpc.and_then(|l| l.trim().strip_prefix("rpc ")?.split('(').next()).unwrap_or("none")
        };
        let missing: Vec<_> = names
            .filter(|n| !others.contains(n))
            .map(|n| calls(&n))
            .filter(|call| !PEER_CALLS.contains(call))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
