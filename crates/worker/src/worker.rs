//! Starting and stopping a worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use caju_engine::{SharingLag, SharingWindow, SpillFolder};
use caju_proto::v1;
use caju_runtime::{CpuPool, Tasks, blocking, log_failure};
use caju_sources::{SourceContext, SourceLimits};
use caju_types::{Error, Result, TaskId, WorkerId};
use caju_wire::{
    Dispatcher, DispatcherLink, LocalWorkers, QueueUse, is_in_process, is_transient, new_in_process_address,
};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::WorkerConfig;
use crate::identity::Identity;
use crate::local::InProcess;
use crate::manager::Manager;
use crate::pipelines::Pipelines;
use crate::server;

/// A worker: runs tasks and serves their elements.
#[derive(Debug)]
pub struct Worker;

/// A running worker. Dropping it stops it without a report; [`WorkerHandle::drain`] and [`WorkerHandle::shutdown`] report to
/// the dispatcher.
#[derive(Debug)]
pub struct WorkerHandle {
    manager: Arc<Manager>,
    local: LocalWorkers,
    group: Tasks,
    /// The error of a dispatcher that was away for the absence timeout.
    gone: watch::Receiver<Option<Error>>,
}

impl Worker {
    /// Listens, registers with the dispatcher (waiting for it as long as the settings say), and serves.
    ///
    /// # Errors
    /// `Unavailable` if the port is taken or no dispatcher answers, `InvalidArgument` for an invalid address, and the
    /// dispatcher's refusal.
    pub async fn start(config: WorkerConfig) -> Result<WorkerHandle> {
        let link = DispatcherLink::over(config.network.clone(), &config.dispatcher)?;
        // Readers of this process need no listener: they find the worker in the list of local workers.
        let listener = match is_in_process(&config.listen) {
            true => None,
            false => Some(config.network.bind(&config.listen).await?),
        };
        let address = match &listener {
            Some(listener) => advertised(&config, listener.address()).await,
            None => new_in_process_address(),
        };
        let pool = match &config.pool {
            Some(pool) => pool.clone(),
            None if config.cpu_threads > 0 => CpuPool::new(config.cpu_threads)?,
            None => CpuPool::elastic(cores())?,
        };
        let identity = Identity::new(
            link,
            address.clone(),
            config.tags.clone(),
            pool.threads(),
            config.version.clone(),
            Arc::clone(&config.stores),
        )?;
        let identity = Arc::new(identity);
        let ctx = SourceContext::new(Arc::clone(&config.stores), Arc::clone(&config.io))
            .with_limits(SourceLimits::from_limits(config.registry.limits()));
        let pipelines = Pipelines::new(config.registry.clone(), ctx);
        let (group, local) = (Tasks::new(), config.local.clone());
        let connect_timeout = config.connect_timeout;
        let absence = Absence::new(config.dispatcher_timeout, config.absence_timeout);
        let shares = (pool, window(&config, &group).await?);
        let manager = Arc::new(Manager::new(Arc::clone(&identity), config, pipelines, shares, group.child()));
        // Readers may connect as soon as the dispatcher knows the address.
        if let Some(listener) = listener {
            server::serve(listener, &manager, &group);
        }
        local.insert(address.clone(), Arc::new(InProcess(Arc::clone(&manager))));
        let handle = WorkerHandle { manager, local, group, gone: absence.gone.subscribe() };
        identity.register(connect_timeout).await?;
        tracing::info!(%address, worker = %identity.id(), "worker registered");
        let manager = Arc::clone(&handle.manager);
        handle.group.background("the worker's heartbeats", log_failure, async move {
            heartbeats(manager, absence).await;
            Ok(())
        });
        let manager = Arc::clone(&handle.manager);
        handle.group.background("tuning", log_failure, async move {
            manager.tune().await;
            Ok(())
        });
        Ok(handle)
    }
}

/// The window of rows that jobs share. It writes files for as long as the group runs, if the settings say so.
async fn window(config: &WorkerConfig, group: &Tasks) -> Result<Arc<SharingWindow>> {
    let (settings, clock) = (config.sharing, Arc::clone(&config.clock));
    if settings.lag != SharingLag::Spill || settings.window_bytes == 0 {
        return Ok(SharingWindow::new(settings, clock));
    }
    let place = config.sharing_spill_dir.clone();
    let create = move || SpillFolder::new(place.as_deref(), settings.spill_bytes);
    let folder = blocking("creating a folder for spilled rows", create).await??;
    let window = SharingWindow::with_spill(settings, clock, folder);
    let spilling = Arc::clone(&window);
    group.background("spilling shared rows", log_failure, async move {
        spilling.spill().await;
        Ok(())
    });
    Ok(window)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The address that clients dial. For `0.0.0.0` it is the address from which this machine reaches the dispatcher.
async fn advertised(config: &WorkerConfig, bound: &str) -> String {
    if let Some(address) = &config.advertise {
        return address.clone();
    }
    let Ok(bound) = bound.parse::<SocketAddr>() else { return bound.to_owned() };
    if !bound.ip().is_unspecified() {
        return bound.to_string();
    }
    let towards = async {
        let from = if bound.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(from).await.ok()?;
        // Connecting a datagram socket sends nothing: it only makes the system look up the route.
        let dispatcher = config.dispatcher.split_once("://").map_or(&*config.dispatcher, |(_, bare)| bare);
        socket.connect(dispatcher).await.ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    match towards.await {
        Some(ip) => SocketAddr::new(ip, bound.port()).to_string(),
        None => format!("127.0.0.1:{}", bound.port()),
    }
}

/// Sends heartbeats, and acts on the dispatcher's answers.
async fn heartbeats(manager: Arc<Manager>, mut absence: Absence) {
    let identity = Arc::clone(&manager.identity);
    let mut due = Instant::now();
    loop {
        let running = manager.running();
        let mut stages = Vec::new();
        running.iter().for_each(|t| caju_proto::add_stages(&mut stages, &t.stages()));
        let registration = identity.registration();
        let request = v1::WorkerHeartbeatRequest {
            worker_id: registration.id.0,
            address: identity.address.clone(),
            tasks: running.iter().map(|t| t.id.0).collect(),
            stages,
            profiles: running.iter().filter_map(|t| t.profile()).collect(),
            checksums: running.iter().flat_map(|t| t.take_checksums()).collect(),
            secret: registration.secret,
            served: running.iter().map(|t| t.served()).collect(),
            usage: Some(manager.usage()),
            tuned: manager.tuning.settings(),
            learns_boundaries: true,
            learning: manager.learning(),
        };
        let call = |mut d: Dispatcher| async move { d.worker_heartbeat(request).await };
        match identity.link.call(Duration::ZERO, call).await {
            Ok(answer) => {
                absence.end();
                for task in answer.cancel_tasks {
                    manager.unwanted(TaskId(task));
                }
                answer.decided.iter().for_each(|d| manager.decided(d));
                answer.lagging_tasks.iter().for_each(|task| manager.on_lagging_consumers(TaskId(*task)));
                answer.learn.into_iter().for_each(|order| manager.learn(order));
                if answer.draining {
                    manager.drain();
                }
                if answer.register_again {
                    match identity.register(absence.bound).await {
                        Ok(()) => tracing::info!(worker = %identity.id(), "worker registered again"),
                        Err(e) => tracing::warn!(error = %e, "the worker could not register again"),
                    }
                }
            }
            Err(e) if is_transient(&e) => absence.on_error(&e, identity.link.address()),
            Err(e) => tracing::warn!(error = %e, "the dispatcher refuses the heartbeat"),
        }
        due = (due + identity.heartbeat()).max(Instant::now());
        tokio::time::sleep_until(due).await;
    }
}

/// A dispatcher that does not answer. A worker waits for it as long as it runs, since it has nobody else to work for, unless
/// its settings bound that.
struct Absence {
    /// After this time tasks that ask for splits fail, and a warning is logged.
    bound: Duration,
    /// After this time the worker is to end.
    longest: Option<Duration>,
    since: Option<Instant>,
    is_reported: bool,
    gone: watch::Sender<Option<Error>>,
}

impl Absence {
    fn new(bound: Duration, longest: Option<Duration>) -> Self {
        Self { bound, longest, since: None, is_reported: false, gone: watch::Sender::new(None) }
    }

    fn on_error(&mut self, error: &Error, dispatcher: &str) {
        let absent = self.since.get_or_insert_with(Instant::now).elapsed();
        if self.longest.is_some_and(|longest| absent >= longest) {
            self.gone.send_replace(Some(Error::unavailable(format!(
                "the dispatcher at {dispatcher} has not answered for {}, and this worker waits no longer (--absence-timeout): {}",
                caju_types::format_duration(absent),
                error.message()
            ))));
        }
        if absent < self.bound || self.is_reported {
            tracing::debug!(%error, "the dispatcher does not answer");
            return;
        }
        self.is_reported = true;
        tracing::warn!(
            %error,
            "the dispatcher has not answered for {}; this worker registers again when it does",
            caju_types::format_duration(absent)
        );
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_reported) {
            tracing::info!("the dispatcher answers again");
        }
        self.since = None;
    }
}

impl WorkerHandle {
    /// The address that clients dial: `host:port`, or one within this process.
    pub fn address(&self) -> &str {
        &self.manager.identity.address
    }

    /// The identifier that the dispatcher gave.
    pub fn worker_id(&self) -> WorkerId {
        self.manager.identity.id()
    }

    /// Tasks that run here now.
    pub fn tasks(&self) -> Vec<TaskId> {
        self.manager.running().iter().map(|t| t.id).collect()
    }

    /// Bytes of finished elements that wait for readers here.
    pub fn buffered_bytes(&self) -> usize {
        self.manager.running().iter().map(|t| t.buffered_bytes()).sum()
    }

    /// The queues of finished and computed rows here, and the most bytes that they hold together.
    pub fn queues(&self) -> (Vec<QueueUse>, usize) {
        let memory = self.manager.tuning.memory();
        (memory.queues(), memory.limit_bytes())
    }

    /// The numbers that are tuned here, and those that were given by hand.
    pub fn settings(&self) -> Vec<v1::TunedSetting> {
        self.manager.tuning.settings()
    }

    /// What is in the window of rows that jobs share.
    pub fn window_usage(&self) -> caju_engine::WindowUsage {
        self.manager.window.usage()
    }

    /// Bytes in shared memory that are held for further readers of this host, and their bound; 0 where there is none.
    pub fn shared_memory(&self) -> (u64, u64) {
        self.manager.shared_memory()
    }

    /// Waits until no task runs here.
    pub async fn idle(&self) {
        self.manager.idle().await;
    }

    /// Waits until the dispatcher wants this worker to leave (`caju worker drain`) and its tasks are done.
    ///
    /// Tasks without readers are abandoned after the time that is set for it.
    pub async fn drained(&self) {
        self.manager.draining().await;
        tokio::select! {
            () = self.manager.idle() => {}
            () = self.give_up_unread() => {}
        }
    }

    /// Waits until the dispatcher has been away for the absence timeout of the settings, and returns the error. It waits for ever
    /// without such a timeout.
    pub async fn dispatcher_gone(&self) -> Error {
        let mut gone = self.gone.clone();
        let error = gone.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        match error {
            Some(error) => error,
            // The heartbeats have stopped with the worker.
            None => std::future::pending().await,
        }
    }

    /// Abandons tasks that have no readers, and does not return.
    async fn give_up_unread(&self) {
        self.manager.give_up_unread(self.manager.config.drain_linger).await;
        std::future::pending().await
    }

    /// Takes no new tasks, and waits until the present ones are done, then stops. Tasks without readers are abandoned. Tasks
    /// that are not done within the bound go to other workers; returns false if there were any.
    pub async fn drain(self, bound: Duration) -> bool {
        self.manager.drain();
        let identity = &self.manager.identity;
        let until = Instant::now() + bound;
        let reported = tokio::time::timeout(bound, identity.leave(false)).await;
        if let Ok(Err(e)) = reported {
            tracing::warn!(error = %e, "the dispatcher could not be notified that this worker leaves");
        }
        let done = tokio::select! {
            ended = tokio::time::timeout_at(until, self.manager.idle()) => ended.is_ok(),
            () = self.give_up_unread() => false,
        };
        self.shutdown().await;
        done
    }

    /// Gives up its tasks and leaves the dispatcher, so that other workers continue them at once; then stops.
    pub async fn shutdown(self) {
        /// The longest that each of the three steps may take: leaving the dispatcher and giving up its tasks, ending its background
        /// tasks, and closing its caches. The dispatcher notices a worker that could not report by its silence.
        const BOUND: Duration = Duration::from_secs(5);
        let reason = format!("the worker at {} is leaving", self.address());
        let identity = &self.manager.identity;
        let leaving = async {
            // No new task starts while the present ones are abandoned.
            let reported = identity.leave(false).await;
            self.manager.give_up(&reason).await;
            if reported.is_ok() { identity.leave(true).await } else { reported }
        };
        if let Ok(Err(e)) = tokio::time::timeout(BOUND, leaving).await {
            tracing::debug!(error = %e, "the dispatcher could not be notified that this worker leaves; it will find out by its silence");
        }
        self.local.remove(self.address());
        self.group.shutdown(BOUND).await;
        self.manager.close_caches(BOUND).await;
    }

    /// Stops as if the process were killed: without a report, and with broken connections.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.local.remove(self.address());
        self.manager.abandon();
        self.group.stop();
    }
}
