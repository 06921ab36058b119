//! What a dispatcher is asked and answers: every call passes through here, is compared with the model, and can be spoilt.
//!
//! A tap runs on the dispatcher's host. It receives the calls instead of the dispatcher and passes them on. Unless a
//! [`Spoil`] is requested, they are unchanged. A [`Spoil`] alters a message as broken code would have done, so that a test
//! can show that the checks notice it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_proto::v1::dispatcher_server::{Dispatcher, DispatcherServer};
use caju_runtime::Tasks;
use caju_types::{Error, Result, RowSet};
use caju_wire::Network;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Extensions, Request, Response, Status};

use crate::ambient;
use crate::faults::CLIENT_TIMEOUT;
use crate::log::EventLog;

/// Connections that wait for the server.
const BACKLOG: usize = 16;

/// A fault of the code, of which one is put into a run to show that the checks find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Spoil {
    /// An acknowledgement is answered and forgotten.
    DropAcknowledgement,
    /// A lost task goes to another worker although a client still reads it.
    SkipFence,
    /// A split is leased to two tasks.
    DoubleLease,
    /// A split is leased again without the rows that clients have.
    ForgetDoneRange,
    /// The journal lacks a record of which it said that it is durable.
    LoseJournalRecord,
    /// A call to open an epoch that is made again makes another reader.
    ForgetCall,
}

/// What the taps of all dispatchers of a run have observed. Clones share it.
#[derive(Clone)]
pub(crate) struct Observed(Arc<Mutex<Inner>>);

struct Inner {
    spoil: Option<Spoil>,
    log: EventLog,
    /// Rows that each client acknowledged, per split.
    acknowledged: BTreeMap<u64, BTreeMap<u64, RowSet>>,
    /// Rows that the user of each client was handed.
    handed: BTreeMap<u64, u64>,
    /// Every lease so far, by the task that got it.
    leases: Vec<(u64, v1::SplitLease)>,
    /// Tasks that were declared as left, by client.
    fenced: BTreeSet<(u64, u64)>,
    /// Clients that the present dispatcher knows, or knew.
    known: BTreeSet<u64>,
    /// Clients that said to a dispatcher that knew them what they had taken, and left.
    left: BTreeSet<u64>,
    /// The reader that each call to open an epoch has made in each of its iterations, and when. Where the epoch began again since,
    /// a repeated call makes another reader.
    opened: BTreeMap<(Vec<u8>, u64), (u64, Duration)>,
    /// The answer to the reader after this number of readers is lost.
    loses_open: Option<(u64, oneshot::Sender<()>)>,
}

impl Observed {
    pub(crate) fn new(spoil: Option<Spoil>, log: EventLog) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            spoil,
            log,
            acknowledged: BTreeMap::new(),
            handed: BTreeMap::new(),
            leases: Vec::new(),
            fenced: BTreeSet::new(),
            known: BTreeSet::new(),
            left: BTreeSet::new(),
            opened: BTreeMap::new(),
            loses_open: None,
        })))
    }

    /// The answer to a reader after this number of readers is lost: resolves when it would have been given.
    pub(crate) fn lose_open_after(&self, readers: u64) -> oneshot::Receiver<()> {
        let (lost, is_lost) = oneshot::channel();
        self.0.lock().loses_open = Some((readers, lost));
        is_lost
    }

    /// The dispatcher has lost its state: a call that is made again makes another reader.
    pub(crate) fn forget_calls(&self) {
        let mut inner = self.0.lock();
        inner.opened.clear();
        inner.known.clear();
    }

    /// A client's user was handed more rows.
    pub(crate) fn handed(&self, client: u64, rows: u64) {
        *self.0.lock().handed.entry(client).or_default() += rows;
    }

    /// Whether a client's leave has reached a dispatcher that knew the client.
    pub(crate) fn has_left(&self, client: u64) -> bool {
        self.0.lock().left.contains(&client)
    }

    /// The rows that a client has acknowledged.
    pub(crate) fn acknowledged(&self, client: u64) -> u64 {
        self.0.lock().acknowledged_by(client)
    }
}

impl Inner {
    /// The dispatcher has opened an epoch for a client. True if its answer is lost.
    fn on_opened(&mut self, call: Vec<u8>, iteration: u64, client: u64) -> bool {
        let now = ambient::elapsed();
        self.known.insert(client);
        let (first, at) = *self.opened.entry((call, iteration)).or_insert((client, now));
        // A reader that did not come back in time is expelled, and then another one.
        if first != client && now < at + CLIENT_TIMEOUT {
            self.log.violation(format!("one call has made client {first} and client {client}"));
        }
        let is_lost = self.loses_open.as_ref().is_some_and(|(after, _)| self.opened.len() as u64 > *after);
        if let Some((_, lost)) = self.loses_open.take_if(|_| is_lost) {
            self.log.event(format_args!("the answer to client {client} is lost"));
            return lost.send(()).is_ok();
        }
        false
    }

    /// A client has left. A dispatcher that has lost its state answers so, too: what the client had taken comes again.
    fn on_left(&mut self, client: u64) {
        if self.known.contains(&client) {
            self.left.insert(client);
        }
    }

    fn acknowledged_by(&self, client: u64) -> u64 {
        self.acknowledged.get(&client).into_iter().flatten().map(|(_, rows)| rows.len()).sum()
    }

    /// Records acknowledgements; those of rows that no user was handed are a violation.
    fn on_acknowledgements(&mut self, request: &mut v1::ClientHeartbeatRequest) {
        let client = request.client_id;
        let splits = self.acknowledged.entry(client).or_default();
        for rows in &request.acknowledged {
            let set = splits.entry(rows.split_index).or_default();
            rows.rows.iter().for_each(|r| set.insert(r.start, r.end));
            rows.words.iter().zip(&rows.bits).for_each(|(word, bits)| set.insert_word(*word, *bits));
        }
        let (said, handed) = (self.acknowledged_by(client), self.handed.get(&client).copied().unwrap_or(0));
        if said > handed {
            self.log.violation(format!(
                "client {client} acknowledged {said} rows of {handed} that it was handed"
            ));
        }
        if self.spoil == Some(Spoil::DropAcknowledgement) && !request.acknowledged.is_empty() {
            self.spoil = None;
            request.acknowledged.clear();
            self.log.event(format_args!("an acknowledgement of client {client} is dropped"));
        }
    }

    /// The report of a client that leaves a task, in place of the one that it would send.
    fn skip_fence(
        &mut self,
        request: &v1::ClientHeartbeatRequest,
        answer: &mut v1::ClientHeartbeatResponse,
    ) -> Option<v1::ClientHeartbeatRequest> {
        if self.spoil != Some(Spoil::SkipFence) {
            return None;
        }
        let mut lost_tasks = Vec::new();
        for task in answer.tasks.iter_mut().filter(|t| t.lost) {
            task.lost = false;
            if self.fenced.insert((request.client_id, task.task_id)) {
                self.log.event(format_args!(
                    "the loss of task {1} is not reported to client {0}",
                    request.client_id, task.task_id
                ));
                let reason = "the fence is skipped".to_string();
                lost_tasks.push(v1::LostTask { task_id: task.task_id, reason, ..Default::default() });
            }
        }
        (!lost_tasks.is_empty()).then(|| v1::ClientHeartbeatRequest {
            client_id: request.client_id,
            iteration_id: request.iteration_id,
            secret: request.secret.clone(),
            lost_tasks,
            ..Default::default()
        })
    }

    fn on_leases(&mut self, task: u64, answer: &mut v1::NextSplitsResponse) {
        let of =
            |l: &v1::SplitLease| format!("{}{}", l.index, if l.done.is_empty() { "" } else { " in part" });
        let splits: Vec<String> = answer.splits.iter().map(of).collect();
        self.log.event(format_args!(
            "task {task} leases [{}]{}",
            splits.join(", "),
            if answer.end { ", end" } else { "" }
        ));
        match self.spoil {
            Some(Spoil::DoubleLease) if !answer.splits.is_empty() => {
                let twice =
                    self.leases.iter().find(|(other, _)| *other != task).map(|(_, lease)| lease.clone());
                if let Some(lease) = twice {
                    self.spoil = None;
                    self.log.event(format_args!("split {} is leased twice", lease.index));
                    answer.splits.push(lease);
                }
            }
            Some(Spoil::ForgetDoneRange) => {
                for lease in answer.splits.iter_mut().filter(|l| !l.done.is_empty()) {
                    self.log.event(format_args!(
                        "the rows of split {} that clients have are forgotten",
                        lease.index
                    ));
                    lease.done.clear();
                    lease.checksums.clear();
                    self.spoil = None;
                }
            }
            _ => {}
        }
        self.leases.extend(answer.splits.iter().map(|lease| (task, lease.clone())));
    }
}

/// A tap in front of one dispatcher.
struct Tap {
    dispatcher: DispatcherClient<Channel>,
    observed: Observed,
}

/// Takes the calls at `listen` and passes them on to `inner`, on the same host.
///
/// # Errors
/// Those of the network.
pub(crate) async fn start(
    network: Network,
    listen: &str,
    inner: String,
    observed: Observed,
    tasks: &Tasks,
) -> Result<()> {
    let mut listener = network.bind(listen).await?;
    let channel = Endpoint::from_static("http://dispatcher").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let (network, inner) = (network.clone(), inner.clone());
            async move { network.connect(&inner).await.map(TokioIo::new) }
        },
    ));
    let dispatcher = DispatcherClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    let service = DispatcherServer::new(Tap { dispatcher, observed })
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    let (accepted, incoming) = mpsc::channel(BACKLOG);
    tasks.background("accepting connections at the tap", caju_runtime::log_failure, async move {
        loop {
            let stream = listener.accept().await.map_err(|e| Error::unavailable(e.to_string()))?;
            if accepted.send(Ok::<_, std::io::Error>(Accepted(stream))).await.is_err() {
                return Ok(());
            }
        }
    });
    tasks.background("the tap's server", caju_runtime::log_failure, async move {
        let serving =
            Server::builder().add_service(service).serve_with_incoming(ReceiverStream::new(incoming));
        serving.await.map_err(|e| Error::unavailable(e.to_string()))
    });
    Ok(())
}

/// A connection as the server wants it.
struct Accepted(caju_wire::Stream);

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl tokio::io::AsyncRead for Accepted {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for Accepted {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

type Answer<T> = Result<Response<T>, Status>;

/// A request that is passed on, without what the connection said about itself.
fn without_extensions<T>(request: Request<T>) -> Request<T> {
    let (metadata, _, message) = request.into_parts();
    Request::from_parts(metadata, Extensions::default(), message)
}

/// The service of the dispatcher: calls that are passed on unchanged, and then the others.
macro_rules! dispatcher {
    ({$($method:ident: $request:ty => $response:ty;)*} $($others:tt)*) => {
        #[tonic::async_trait]
        impl Dispatcher for Tap {
            $(async fn $method(&self, request: Request<$request>) -> Answer<$response> {
                self.dispatcher.clone().$method(without_extensions(request)).await
            })*
            $($others)*
        }
    };
}

dispatcher! {
    {
        register_worker: v1::RegisterWorkerRequest => v1::RegisterWorkerResponse;
        worker_heartbeat: v1::WorkerHeartbeatRequest => v1::WorkerHeartbeatResponse;
        get_task: v1::GetTaskRequest => v1::GetTaskResponse;
        finish_task: v1::FinishTaskRequest => v1::FinishTaskResponse;
        serve_behind: v1::ServeLaggingRequest => v1::ServeLaggingResponse;
        deal_tail: v1::AssignRemainderRequest => v1::AssignRemainderResponse;
        next_rounds: v1::NextRoundsRequest => v1::NextRoundsResponse;
        report_boundaries: v1::ReportBoundariesRequest => v1::ReportBoundariesResponse;
        drain_worker: v1::DrainWorkerRequest => v1::DrainWorkerResponse;
        register_dataset: v1::RegisterDatasetRequest => v1::RegisterDatasetResponse;
        get_dataset: v1::GetDatasetRequest => v1::GetDatasetResponse;
        start_save: v1::StartSaveRequest => v1::SaveStatus;
        get_save: v1::GetSaveRequest => v1::SaveStatus;
        get_status: v1::GetStatusRequest => v1::GetStatusResponse;
    }

    async fn open_iteration(
        &self,
        mut request: Request<v1::OpenIterationRequest>,
    ) -> Answer<v1::OpenIterationResponse> {
        let mut call = request.get_ref().request_id.to_vec();
        // A reader opens its epoch again with the call that opened it.
        call.extend(request.get_ref().reattached_client.to_be_bytes());
        if self.observed.0.lock().spoil == Some(Spoil::ForgetCall) {
            request.get_mut().request_id.clear();
        }
        let answer = self.dispatcher.clone().open_iteration(without_extensions(request)).await?;
        let opened = answer.get_ref();
        if self.observed.0.lock().on_opened(call, opened.iteration_id, opened.client_id) {
            // The dispatcher is about to die.
            std::future::pending::<()>().await;
        }
        Ok(answer)
    }

    async fn close_client(&self, request: Request<v1::CloseClientRequest>) -> Answer<v1::CloseClientResponse> {
        let client = request.get_ref().client_id;
        let answer = self.dispatcher.clone().close_client(without_extensions(request)).await?;
        self.observed.0.lock().on_left(client);
        Ok(answer)
    }

    async fn next_splits(&self, request: Request<v1::NextSplitsRequest>) -> Answer<v1::NextSplitsResponse> {
        let task = request.get_ref().task_id;
        let mut answer = self.dispatcher.clone().next_splits(without_extensions(request)).await?;
        self.observed.0.lock().on_leases(task, answer.get_mut());
        Ok(answer)
    }

    async fn client_heartbeat(
        &self,
        mut request: Request<v1::ClientHeartbeatRequest>,
    ) -> Answer<v1::ClientHeartbeatResponse> {
        self.observed.0.lock().on_acknowledgements(request.get_mut());
        let metadata = request.metadata().clone();
        let said = request.get_ref().clone();
        let mut dispatcher = self.dispatcher.clone();
        let mut answer = dispatcher.client_heartbeat(without_extensions(request)).await?;
        let instead = self.observed.0.lock().skip_fence(&said, answer.get_mut());
        if let Some(report) = instead {
            dispatcher.client_heartbeat(Request::from_parts(metadata, Extensions::default(), report)).await?;
        }
        Ok(answer)
    }
}
