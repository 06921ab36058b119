//! Starting and stopping a dispatcher.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use caju_planner::ScalingTarget;
use caju_proto::externalscaler::external_scaler_server::ExternalScalerServer;
use caju_proto::v1::dispatcher_server::DispatcherServer;
use caju_proto::{Intercept, refuse_other_major};
use caju_runtime::{Clock, SystemClock, Task, Tasks, blocking, log_failure};
use caju_types::{Error, Result};
use caju_wire::{
    CallLayer, ConnectionGate, GrpcConnection, PendingConnection, Protocol, Stream, accept, grpc_connections,
};
use tokio::sync::{mpsc, watch};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic_health::server::health_reporter;

use crate::calls::CallCounter;
use crate::catalog::Catalog;
use crate::config::DispatcherConfig;
use crate::control::Core;
use crate::flight::FlightOnDispatcher;
use crate::http;
use crate::journal::{Journal, MemoryJournal, OpenedJournal, open_state_dir};
use crate::keda::KedaScaler;
use crate::service::DispatcherService;
use crate::state::Update;

/// The largest answer, in bytes: a definition may hold rows, a status many jobs.
const ANSWER_BYTES: usize = 256 << 20;
/// How long closing the cache may take once all calls are answered, and then how long peers have to close their
/// connections. A live peer needs milliseconds; one that does not respond would delay the end of the dispatcher.
const CLOSING: Duration = Duration::from_secs(2);
/// What is left for answering calls after a drain that took all of its time.
const LEAST_TO_ANSWER: Duration = Duration::from_secs(1);

/// The control plane as a server.
#[derive(Debug)]
pub struct Dispatcher;

/// A running dispatcher. Dropping it stops it without waiting; [`DispatcherHandle::shutdown`] drains.
pub struct DispatcherHandle {
    core: Arc<Core>,
    server: Tasks,
    serving: Task<()>,
    calls: CallCounter,
    address: String,
    http_address: Option<String>,
}

impl Dispatcher {
    /// Starts a dispatcher on the machine's clock, with the journal that the settings name.
    ///
    /// # Errors
    /// `Unavailable` if the address cannot be listened on; those of [`open_state_dir`].
    pub async fn start(config: DispatcherConfig, catalog: Arc<dyn Catalog>) -> Result<DispatcherHandle> {
        let clock = SystemClock::shared();
        caju_cache::CacheOptions::check_budget(config.cache_budget)?;
        let (journal, replayed): OpenedJournal = match config.state_dir.clone() {
            None => (Box::new(MemoryJournal::default()), Vec::new()),
            Some(dir) => {
                let (kind, unix_time) = (config.journal, clock.unix_time());
                let open = move || open_state_dir(&dir, kind, unix_time);
                blocking("opening the journal", open).await??
            }
        };
        Self::start_replayed(config, catalog, clock, journal, replayed).await
    }

    /// Starts a dispatcher on a given clock and journal.
    ///
    /// # Errors
    /// `Unavailable` if the address cannot be listened on, `DataLoss` if the journal is damaged.
    pub async fn start_on(
        config: DispatcherConfig,
        catalog: Arc<dyn Catalog>,
        clock: Arc<dyn Clock>,
        mut journal: Box<dyn Journal>,
    ) -> Result<DispatcherHandle> {
        let replayed = journal.replay()?;
        Self::start_replayed(config, catalog, clock, journal, replayed).await
    }

    /// Starts a dispatcher on a journal and what it holds.
    async fn start_replayed(
        config: DispatcherConfig,
        catalog: Arc<dyn Catalog>,
        clock: Arc<dyn Clock>,
        journal: Box<dyn Journal>,
        replayed: Vec<Vec<Update>>,
    ) -> Result<DispatcherHandle> {
        let listener = config.network.bind(&config.listen).await?;
        let address = listener.address().to_owned();
        let limits = config.connections.clone();
        let http_listener = match &config.http_listen {
            Some(listen) => Some(config.network.bind(listen).await.map_err(|e| e.context("the HTTP port"))?),
            None => None,
        };
        let http_address = http_listener.as_ref().map(|l| l.address().to_owned());
        let core = Core::new(config, catalog, clock, journal, replayed)?;
        let (server, calls) = (Tasks::new(), CallCounter::default());
        let stop = server.token();
        let service = DispatcherServer::new(DispatcherService::new(Arc::clone(&core)))
            .max_decoding_message_size(limits.message_bytes)
            .max_encoding_message_size(ANSWER_BYTES);
        let refuse: Intercept = refuse_other_major;
        let service = InterceptedService::new(service, refuse);
        let flight = FlightServiceServer::new(FlightOnDispatcher::new(Arc::clone(&core)))
            .max_decoding_message_size(limits.flight_message_bytes())
            .max_encoding_message_size(ANSWER_BYTES);
        let router = Server::builder()
            .layer(CallLayer::new(limits.message_bytes, limits.request))
            .layer(calls.clone())
            .max_concurrent_streams(limits.streams)
            .add_service(service)
            .add_service(flight)
            .add_service(ExternalScalerServer::new(KedaScaler::new(Arc::clone(&core))))
            .add_service(health_reporter().1);
        let (admitted_to, incoming) = grpc_connections();
        let serving = server.spawn_graceful("the dispatcher's server", async move {
            if let Err(e) = router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await {
                tracing::error!("the dispatcher's server ended: {e}");
            }
        });
        if let Some(listener) = http_listener {
            let http = http::serve(listener, Arc::clone(&core), server.clone());
            server.background("the HTTP port", log_failure, http);
        }
        let gate = ConnectionGate::new(limits);
        let admit = move |stream, pending| admit(stream, pending, admitted_to.clone());
        let accepting = accept(listener, gate, server.clone(), admit);
        server.background("accepting connections", log_failure, accepting);
        core.context.tasks.background("the check for lost workers and clients", log_failure, {
            let checks = Arc::clone(&core.liveness);
            async move {
                checks.check_regularly().await;
                Ok(())
            }
        });
        if !core.context.config.timers.scaling_interval.is_zero() {
            core.context.tasks.background("the target of workers", log_failure, {
                let scaling = Arc::clone(&core.scaling);
                async move {
                    scaling.scale_regularly().await;
                    Ok(())
                }
            });
        }
        Ok(DispatcherHandle { core, server, serving, calls, address, http_address })
    }
}

/// Hands a connection that speaks gRPC to the server.
async fn admit(
    mut stream: Stream,
    pending: PendingConnection,
    to: mpsc::Sender<std::io::Result<GrpcConnection>>,
) -> Result<()> {
    if pending.protocol(&mut stream).await? == Protocol::Framed {
        return Err(Error::cancelled("a reader asked the dispatcher for rows; workers serve them"));
    }
    let admitted = pending.admit_grpc(stream, "the dispatcher").await?;
    to.send(Ok(admitted)).await.map_err(|_| Error::cancelled("the dispatcher is shutting down"))
}

impl DispatcherHandle {
    /// The address that it listens on, with the port that was found for port 0, or its address within this process.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address of the HTTP port, if there is one.
    pub fn http_address(&self) -> Option<&str> {
        self.http_address.as_deref()
    }

    /// The requested saves: a driver in this process has to carry them out, with a client.
    pub fn saves(&self) -> crate::control::Saves {
        crate::control::Saves::of(&self.core.saves)
    }

    /// The last target of workers, and notices of later ones.
    pub fn scaling_target(&self) -> watch::Receiver<ScalingTarget> {
        self.core.scaling.scaling_target()
    }

    /// Epochs that readers are in the middle of.
    pub fn epochs_read(&self) -> u64 {
        self.core.scaling.cluster_counts().epochs_read
    }

    /// Opens no epoch any more, as [`DispatcherHandle::drain`] does first: present readers continue.
    pub fn open_no_more(&self) {
        self.core.open_no_more();
    }

    /// Ends in order: opens no epoch any more, waits until the readers that are in the middle of one have ended, then stops
    /// as [`DispatcherHandle::shutdown`] does, all of it within the bound of the settings. False if readers were still
    /// in the middle, or calls not answered.
    pub async fn drain(self) -> bool {
        let (clock, bound) = (Arc::clone(&self.core.context.clock), self.core.context.config.timers.drain);
        let begun = clock.now();
        let drained = self.core.drain(bound).await;
        let left = bound.saturating_sub(clock.now().saturating_sub(begun));
        self.stop(left.max(LEAST_TO_ANSWER)).await && drained
    }

    /// Waits until the dispatcher cannot continue, if that ever happens: its journal could not be written. The process
    /// should end then, so that it is started again.
    pub async fn failed(&self) -> Error {
        self.watch_failure().await
    }

    /// As [`DispatcherHandle::failed`], for a task that does not have the handle.
    pub fn watch_failure(&self) -> impl Future<Output = Error> + Send + use<> {
        let core = Arc::clone(&self.core);
        async move { core.journal_failed().await }
    }

    /// Stops: no new calls, waiting calls are answered `Unavailable`, and the journal is closed. Calls that do not
    /// end within the bound of the settings are dropped. False if there were such. Connections of peers that do not
    /// close them are cut.
    pub async fn shutdown(self) -> bool {
        let bound = self.core.context.config.timers.drain;
        self.stop(bound).await
    }

    async fn stop(self, bound: Duration) -> bool {
        // First the waiting calls, which the server would wait for.
        self.core.context.tasks.stop();
        self.server.stop();
        let (answered, quiet) =
            tokio::join!(self.calls.answered(bound), self.core.context.tasks.shutdown(bound));
        self.core.close_cache(CLOSING).await;
        if !self.server.shutdown(CLOSING).await {
            tracing::info!("connections whose peers did not close them are cut");
        }
        self.serving.abort();
        let core = Arc::clone(&self.core);
        let closed = blocking("closing the journal", move || core.close_journal()).await.is_ok();
        answered && quiet && closed
    }
}

impl Drop for DispatcherHandle {
    fn drop(&mut self) {
        self.core.context.tasks.stop();
        self.server.stop();
    }
}

impl std::fmt::Debug for DispatcherHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatcherHandle").field("address", &self.address).finish_non_exhaustive()
    }
}
