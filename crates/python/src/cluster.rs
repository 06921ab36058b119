//! Dispatchers and workers in this process.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use caju_dispatcher::{DispatcherConfig, DispatcherHandle, EngineCatalog};
use caju_embedded::{ClusterConfig, SaveDriver};
use caju_kernels::Registry;
use caju_planner::ScalingTarget;
use caju_runtime::{Access, CpuPool, IoCounters, PrivateFolder, Stores, private_cache};
use caju_sources::{SourceContext, SourceLimits};
use caju_types::Error;
use caju_wire::LocalWorkers;
use caju_worker::{WorkerConfig, WorkerHandle};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::sync::watch;

use crate::bounds::Bounds;
use crate::definition::{FunctionOrigin, registry_with_python, stores, stores_within};
use crate::errors::IntoPy;
use crate::fork::{OfProcess, check_fork};
use crate::logging;
use crate::runtime::{RuntimeHandle, detached};
use crate::tuned::Tuned;

/// The workers of this process. Readers of this process get rows from them without a socket.
static LOCAL: LazyLock<LocalWorkers> = LazyLock::new(LocalWorkers::new);

/// The workers of this process.
pub(crate) fn local_workers() -> LocalWorkers {
    LOCAL.clone()
}

/// The cores whose time this process may use, by its affinity and the quota of its control group.
#[pyfunction]
pub(crate) fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A server that runs until it is stopped, and the runtime that it runs on.
struct Running<T: Send> {
    inner: OfProcess<Mutex<Option<(T, RuntimeHandle)>>>,
}

impl<T: Send> Running<T> {
    fn new(inner: T, runtime: RuntimeHandle) -> Self {
        Self { inner: OfProcess::new(Mutex::new(Some((inner, runtime)))) }
    }

    /// Stops the server, once. Does nothing in a forked child, where nothing runs and a thread that no longer exists may hold
    /// the lock.
    fn stop<F: Future<Output = ()> + Send>(&self, end: impl FnOnce(T) -> F + Send) {
        if check_fork().is_err() {
            return;
        }
        let running = self.inner.lock().take();
        if let Some((inner, runtime)) = running {
            runtime.finish(end(inner));
        }
    }
}

/// A dispatcher and workers in this process.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Cluster {
    running: Running<(caju_embedded::Cluster, Option<PrivateFolder>)>,
    /// It was stopped, or is being stopped.
    stopped: OfProcess<watch::Sender<bool>>,
    #[pyo3(get)]
    address: String,
    io: Arc<IoCounters>,
}

#[pymethods]
impl Cluster {
    /// Starts a dispatcher and the given number of workers, which share `cpu_threads` threads (one per core by default).
    /// Snapshots are stored below the URL `cache`, by default in a private folder that is removed with the cluster. No port
    /// is opened, unless `listen` names one for other processes.
    #[new]
    #[pyo3(signature = (workers=1, cpu_threads=None, cache=None, listen=None, bounds=None, tuned=None))]
    fn new(
        py: Python<'_>,
        workers: u32,
        cpu_threads: Option<usize>,
        cache: Option<String>,
        listen: Option<String>,
        bounds: Option<Bounds>,
        tuned: Option<Tuned>,
    ) -> PyResult<Self> {
        let limits = bounds.unwrap_or_default().limits(py)?;
        let runtime = RuntimeHandle::get().into_py(py)?;
        let threads = cpu_threads.unwrap_or_else(available_cores).max(1);
        let pool = match cpu_threads {
            Some(_) => CpuPool::new(threads),
            None => CpuPool::elastic(threads),
        };
        let pool = pool.into_py(py)?;
        let private = match cache {
            Some(_) => None,
            None => Some(private_cache().into_py(py)?),
        };
        let cache_url = cache.or_else(|| private.as_ref().map(|f| f.path().display().to_string()));
        let config = ClusterConfig::new(Arc::new(stores().into_py(py)?), pool);
        let config = ClusterConfig {
            workers,
            // A program that defines a function here runs code in this process anyway.
            registry: registry_with_python(py, limits, threads, FunctionOrigin::ThisProcess)?,
            cache_url,
            listen,
            tuned: tuned.unwrap_or_default().numbers(),
            local: local_workers(),
            ..config
        };
        let io = Arc::clone(&config.io);
        let cluster = runtime.wait(py, caju_embedded::Cluster::start(config))?.into_py(py)?;
        let stopped = OfProcess::new(watch::Sender::new(false));
        Ok(Self {
            address: cluster.address(),
            running: Running::new((cluster, private), runtime),
            stopped,
            io,
        })
    }

    /// Starts another worker. Returns its address. A stop meanwhile, by another thread or by a signal handler, ends it with an error.
    fn add_worker(&self, py: Python<'_>) -> PyResult<String> {
        check_fork().into_py(py)?;
        let was_stopped = || Error::failed_precondition("the cluster was stopped");
        let mut stop = self.stopped.subscribe();
        // The lock is not held while the worker starts, and handlers of Python run.
        let starting = match self.running.inner.lock().as_ref() {
            Some(((cluster, _), runtime)) => Ok((cluster.start_worker(), runtime.clone())),
            None => Err(was_stopped()),
        };
        let (start, runtime) = starting.into_py(py)?;
        let start = async {
            tokio::select! {
                worker = start => worker,
                _ = stop.wait_for(|stopped| *stopped) => Err(was_stopped()),
            }
        };
        let worker = runtime.wait(py, start)?.into_py(py)?;
        let joined = py.detach(|| {
            if let Some(((cluster, _), _)) = self.running.inner.lock().as_mut() {
                return Ok(cluster.join(worker));
            }
            runtime.finish(worker.shutdown());
            Err(was_stopped())
        });
        joined.into_py(py)
    }

    /// The addresses of its workers.
    #[getter]
    fn workers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        check_fork().into_py(py)?;
        let running = self.running.inner.lock();
        Ok(running.iter().flat_map(|((c, _), _)| c.workers()).map(str::to_owned).collect())
    }

    /// The bytes that its workers have read.
    #[getter]
    fn bytes_read(&self) -> u64 {
        self.io.snapshot().bytes_read
    }

    /// Stops the workers and the dispatcher.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.end());
        logging::deliver(py)
    }
}

impl Cluster {
    fn end(&self) {
        if check_fork().is_ok() {
            self.stopped.send_replace(true);
        }
        // The private folder is removed last, when nothing writes there any more.
        self.running.stop(|(cluster, private)| async move {
            cluster.stop().await;
            drop(private);
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        detached(|| self.end());
    }
}

/// A dispatcher in this process, for workers and readers anywhere.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Dispatcher {
    running: Running<(SaveDriver, DispatcherHandle)>,
    #[pyo3(get)]
    address: String,
    target: OfProcess<watch::Receiver<ScalingTarget>>,
}

/// The URLs that a server may read and write, and those below them.
type Allowed = (Vec<String>, Vec<String>);

/// The stores of a server.
fn allowed(allow: Option<Allowed>) -> caju_types::Result<Stores> {
    stores_within(allow.map(|(read, write)| Access { read, write }))
}

/// The fewest and the most workers of the target, the seconds between its computations, and the seconds after which it falls.
type Scaling = (u64, u64, f64, f64);

#[pymethods]
impl Dispatcher {
    /// Listens on `host:port`; port 0 takes a free port. With a state folder it survives restarts.
    #[new]
    #[pyo3(signature = (
        listen="127.0.0.1:0", state_dir=None, cache=None, allow_python=false, bounds=None, scaling=None, allow=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        listen: &str,
        state_dir: Option<std::path::PathBuf>,
        cache: Option<String>,
        allow_python: bool,
        bounds: Option<Bounds>,
        scaling: Option<Scaling>,
        allow: Option<Allowed>,
    ) -> PyResult<Self> {
        let limits = bounds.unwrap_or_default().limits(py)?;
        let runtime = RuntimeHandle::get().into_py(py)?;
        let registry = match allow_python {
            true => registry_with_python(py, limits, 1, FunctionOrigin::Readers)?,
            false => Registry::new(limits),
        };
        let ctx = SourceContext::new(Arc::new(allowed(allow).into_py(py)?), Arc::new(IoCounters::new()))
            .with_limits(SourceLimits::from_limits(&limits));
        let cache_url = cache.unwrap_or_default();
        let catalog = Arc::new(EngineCatalog::new(registry, ctx).with_cache(&cache_url));
        let listen = listen.to_owned();
        let mut config = DispatcherConfig { listen, state_dir, cache_url, ..DispatcherConfig::default() };
        if let Some((min_workers, max_workers, interval_s, down_after_s)) = scaling {
            let time = |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
            config.timers.scaling_interval = time(interval_s);
            config.scaling.min_workers = min_workers;
            config.scaling.max_workers = max_workers;
            config.scaling.scale_down_after = time(down_after_s);
        }
        let start = caju_dispatcher::Dispatcher::start(config, catalog);
        let start = async {
            let dispatcher = start.await?;
            Ok::<_, Error>((SaveDriver::start(&dispatcher, local_workers()), dispatcher))
        };
        let dispatcher = runtime.wait(py, start)?.into_py(py)?;
        let (address, target) =
            (dispatcher.1.address().to_owned(), OfProcess::new(dispatcher.1.scaling_target()));
        Ok(Self { running: Running::new(dispatcher, runtime), address, target })
    }

    /// How many workers should run, and why.
    #[getter]
    fn target(&self, py: Python<'_>) -> PyResult<(u64, String)> {
        check_fork().into_py(py)?;
        let target = self.target.borrow();
        Ok((target.workers, target.reason.clone()))
    }

    /// Stops it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.end());
        logging::deliver(py)
    }
}

impl Dispatcher {
    fn end(&self) {
        self.running.stop(|(saves, dispatcher)| async move {
            saves.stop().await;
            dispatcher.shutdown().await;
        });
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        detached(|| self.end());
    }
}

/// A worker in this process, for a dispatcher anywhere.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Worker {
    running: Running<WorkerHandle>,
    #[pyo3(get)]
    address: String,
}

#[pymethods]
impl Worker {
    /// Registers with the dispatcher and serves on `host:port`, which readers dial as `advertise` if that is given.
    #[new]
    #[pyo3(signature = (
        dispatcher, listen="127.0.0.1:0", advertise=None, cpu_threads=None, tags=Vec::new(), allow_python=false,
        bounds=None, tuned=None, allow=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        dispatcher: &str,
        listen: &str,
        advertise: Option<String>,
        cpu_threads: Option<usize>,
        tags: Vec<String>,
        allow_python: bool,
        bounds: Option<Bounds>,
        tuned: Option<Tuned>,
        allow: Option<Allowed>,
    ) -> PyResult<Self> {
        let limits = bounds.unwrap_or_default().limits(py)?;
        let runtime = RuntimeHandle::get().into_py(py)?;
        let threads = cpu_threads.unwrap_or_else(available_cores).max(1);
        let registry = match allow_python {
            true => registry_with_python(py, limits, threads, FunctionOrigin::Readers)?,
            false => Registry::new(limits),
        };
        let config = WorkerConfig {
            listen: listen.to_owned(),
            advertise,
            tags,
            cpu_threads: cpu_threads.unwrap_or(0),
            tuned: tuned.unwrap_or_default().numbers(),
            registry,
            local: local_workers(),
            ..WorkerConfig::new(dispatcher, Arc::new(allowed(allow).into_py(py)?))
        };
        let worker = runtime.wait(py, caju_worker::Worker::start(config))?.into_py(py)?;
        let address = worker.address().to_owned();
        Ok(Self { running: Running::new(worker, runtime), address })
    }

    /// Accepts no new tasks, waits up to `timeout` seconds until the current ones are done, and stops. False if some were
    /// not done: they go to other workers.
    #[pyo3(signature = (timeout=30.0))]
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        check_fork().into_py(py)?;
        let running = self.running.inner.lock().take();
        let Some((worker, runtime)) = running else { return Ok(true) };
        let drained =
            runtime.wait(py, worker.drain(Duration::try_from_secs_f64(timeout).unwrap_or_default()));
        // Stopping threads may take a moment, during which others should have the interpreter.
        py.detach(move || drop(runtime));
        drained
    }

    /// Stops it. Its tasks go to other workers at once.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.end());
        logging::deliver(py)
    }
}

impl Worker {
    fn end(&self) {
        self.running.stop(|worker| async move {
            worker.shutdown().await;
        });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        detached(|| self.end());
    }
}
