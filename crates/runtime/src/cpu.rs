//! A pool of threads for CPU work, separate from the async runtime's threads, so that decoding never delays sockets and timers.

mod queues;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use caju_types::{Error, JobPriority, Result, panic_text};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::process::thread_cpu_time;
use crate::simulation::is_simulated;

pub use queues::PoolUsage;
use queues::{Shared, Work};

thread_local! {
    /// The thread's CPU time at the end of its last piece of work.
    static LAST_END: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// CPU time that this pool thread spent since its last piece of work: delivering the result, and taking the next piece.
/// Called at the start of a piece of work, it is the overhead of using the pool for that piece.
pub fn handover_cpu_time() -> Duration {
    thread_cpu_time().saturating_sub(LAST_END.get())
}

/// Threads that run closures. Clones share the threads. Their number is fixed ([`CpuPool::new`]), or a tuner changes it
/// ([`CpuPool::elastic`]).
///
/// Each job has a queue of its own ([`CpuPool::of_job`]). A thread that becomes free takes the next closure of the job that has
/// had the least thread time for its priority and weight, so that each of several jobs gets its share of the threads. The
/// closures of one job run in the order of their submission. If closures that take long hold all threads, spare threads work for
/// the jobs that have none.
#[derive(Clone, Debug)]
pub struct CpuPool {
    inner: Arc<Inner>,
    /// Whose queue this handle submits to.
    job: Arc<str>,
    priority: JobPriority,
}

#[derive(Debug)]
struct Inner {
    shared: Option<Arc<Shared>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The number of threads that the pool counts as; a simulation has none, and spare ones do not count.
    count: usize,
    /// The number of threads that take closures.
    running: AtomicUsize,
    /// The most threads that a tuner may run.
    max: usize,
    /// Whether there is a tuner.
    is_tuned: AtomicBool,
}

/// The right to change the number of threads of a pool. Dropping it brings back the number that the pool was made with.
#[derive(Debug)]
pub struct PoolTuner {
    pool: CpuPool,
}

/// The most threads of an elastic pool, per thread that it begins with: enough for functions that wait 15 times as long as they
/// compute.
const MAX_GROWTH: usize = 16;

/// The most threads that an elastic pool grows to on a large machine. A waiting thread costs its stack, and a process if it
/// waits for a function in Python.
const MAX_THREADS: usize = 256;

/// Threads in addition to those that a pool counts: how many jobs with slow rows may wait behind others that hold all threads
/// before a job with fast rows waits, too. A waiting thread costs its stack.
const SPARE_THREADS: usize = 8;

impl CpuPool {
    /// A pool of `threads` threads (at least one).
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no thread.
    pub fn new(threads: usize) -> Result<Self> {
        Self::with_max(threads, threads)
    }

    /// A pool that begins with `threads` threads (at least one) and lets a tuner run up to 16 times as many, for closures that
    /// wait ([`CpuPool::tuner`]).
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no thread.
    pub fn elastic(threads: usize) -> Result<Self> {
        Self::with_max(threads, (threads.max(1) * MAX_GROWTH).min(MAX_THREADS))
    }

    fn with_max(threads: usize, max: usize) -> Result<Self> {
        let (count, job) = (threads.max(1), Arc::from(""));
        let shared = (!is_simulated()).then(|| Arc::new(Shared::new(count)));
        let (threads, is_tuned) = (Mutex::default(), AtomicBool::new(false));
        let (running, max) = (AtomicUsize::new(count), max.max(count));
        let inner = Inner { shared, threads, count, running, max, is_tuned };
        (0..SPARE_THREADS).try_for_each(|i| inner.spawn(i, true))?;
        (0..count).try_for_each(|i| inner.spawn(i, false))?;
        Ok(Self { inner: Arc::new(inner), job, priority: JobPriority::default() })
    }

    /// A handle on these threads with the queue of a job.
    #[must_use]
    pub fn of_job(&self, job: &str) -> Self {
        Self { inner: Arc::clone(&self.inner), job: job.into(), priority: self.priority }
    }

    /// The same handle with another priority. That of the last submission holds for the whole queue.
    ///
    /// ```
    /// # use caju_runtime::CpuPool;
    /// # use caju_types::JobPriority;
    /// let pool = CpuPool::new(2)?;
    /// let urgent = JobPriority { level: 1, ..JobPriority::default() };
    /// let training = pool.of_job("training").with_priority(urgent);
    /// # Ok::<(), caju_types::Error>(())
    /// ```
    #[must_use]
    pub fn with_priority(self, priority: JobPriority) -> Self {
        Self { priority, ..self }
    }

    /// The number of threads that the pool was made with.
    pub fn threads(&self) -> usize {
        self.inner.count
    }

    /// The number of threads that run closures now.
    pub fn running_threads(&self) -> usize {
        self.inner.running.load(Ordering::Relaxed)
    }

    /// The most threads that a tuner may run; the number of threads of a pool that is not elastic.
    pub fn max_threads(&self) -> usize {
        self.inner.max
    }

    /// The right to change the number of threads; none for a pool that is not elastic, in a simulation, and while another
    /// tuner has it.
    pub fn tuner(&self) -> Option<PoolTuner> {
        let may = self.inner.max > self.inner.count && self.inner.shared.is_some();
        let has_it = may && !self.inner.is_tuned.swap(true, Ordering::AcqRel);
        has_it.then(|| PoolTuner { pool: self.clone() })
    }

    /// Time for which threads were held by closures, summed over the threads: [`PoolUsage::busy`] alone, which reads no file.
    pub fn busy(&self) -> Duration {
        self.inner.shared.as_ref().map_or(Duration::ZERO, |shared| shared.state.lock().busy())
    }

    /// What the threads did so far.
    pub fn usage(&self) -> PoolUsage {
        self.inner.shared.as_ref().map_or_else(PoolUsage::default, |shared| shared.usage())
    }

    /// Runs a closure on the pool. A panic in it becomes an `Internal` error. If the future is dropped, the closure runs to
    /// its end and its result is dropped.
    pub fn run<T, F>(&self, work: F) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (tx, rx) = oneshot::channel();
        let job: Work = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            LAST_END.set(thread_cpu_time());
            // The receiver was dropped if its task was cancelled.
            drop(tx.send(result));
        });
        let accepted = match &self.inner.shared {
            Some(shared) => shared.submit(&self.job, self.priority, job),
            None if is_simulated() => {
                job();
                true
            }
            None => false,
        };
        async move {
            if !accepted {
                return Err(Error::cancelled("the CPU pool has stopped"));
            }
            match rx.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(panic)) => {
                    Err(Error::internal(format!("panic in a CPU task: {}", panic_text(&*panic))))
                }
                Err(_) => Err(Error::cancelled("the CPU pool stopped before the task ran")),
            }
        }
    }
}

impl PoolTuner {
    /// Runs this many threads from now on, between one and [`CpuPool::max_threads`]. A thread that is not wanted any more ends
    /// the closure that it runs.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no thread; then nothing changes.
    pub fn set_threads(&self, threads: usize) -> Result<()> {
        let (inner, threads) = (&self.pool.inner, threads.clamp(1, self.pool.max_threads()));
        let Some(shared) = &inner.shared else { return Ok(()) };
        let there = shared.state.lock().busy_since.len();
        (there..threads).try_for_each(|i| inner.spawn(i, false))?;
        shared.state.lock().active = threads;
        inner.running.store(threads, Ordering::Relaxed);
        shared.resized.notify_all();
        // Threads that wait for work and are not wanted stop waiting for it, so that no notification is lost on them.
        shared.queued.notify_all();
        Ok(())
    }
}

impl Drop for PoolTuner {
    fn drop(&mut self) {
        // The threads of the beginning are there.
        drop(self.set_threads(self.pool.threads()));
        self.pool.inner.is_tuned.store(false, Ordering::Release);
    }
}

impl Inner {
    fn spawn(&self, i: usize, is_spare: bool) -> Result<()> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        if !is_spare {
            let mut state = shared.state.lock();
            let threads = state.busy_since.len().max(i + 1);
            state.busy_since.resize(threads, None);
        }
        let name = format!("caju-cpu-{i}{}", if is_spare { "s" } else { "" });
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || shared.work(i, is_spare))
            .map_err(|e| Error::exhausted(format!("cannot start CPU thread {i}: {e}; lower --cpu-threads")));
        if thread.is_err() && !is_spare {
            self.shared.iter().for_each(|shared| shared.state.lock().busy_since.truncate(i));
        }
        self.threads.lock().push(thread?);
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.close();
        }
        for thread in self.threads.get_mut().drain(..) {
            // The last handle may be dropped on a pool thread, which cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                drop(thread.join());
            }
        }
    }
}

#[cfg(test)]
mod tests;
