//! A pool of threads for CPU work, separate from the async runtime's threads (design habit 13).

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caju_types::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::panics::panic_text;
use crate::process::{this_thread_stats, thread_cpu_time, wanted_cpu_time};
use crate::simulation::is_simulated;

type Work = Box<dyn FnOnce() + Send>;

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
/// the fewest threads, so that each of several jobs gets its share of them. The closures of one job run in the order of their
/// submission. If closures that take long hold all threads, spare threads work for the jobs that have none.
#[derive(Clone, Debug)]
pub struct CpuPool {
    inner: Arc<Inner>,
    /// Whose queue this handle submits to.
    job: Arc<str>,
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

/// What the threads of a pool did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Time for which threads were held by closures, summed over the threads.
    pub busy: Duration,
    /// Time for which threads ran on a core or waited for one, summed over the threads; none where the system does not report
    /// it. A thread that is busy and wants no core waits for something else.
    pub wanted: Option<Duration>,
}

/// The most threads of an elastic pool, per thread that it begins with: enough for functions that wait 15 times as long as they
/// compute.
const MAX_GROWTH: usize = 16;

/// The most threads that an elastic pool grows to on a large machine. A waiting thread costs its stack, and a process if it
/// waits for a function in Python.
const MAX_THREADS: usize = 256;

/// Closures of one job that may be queued. A further submission blocks its submitter.
const MAX_QUEUED: usize = 4096;

/// Threads in addition to those that a pool counts: how many jobs with slow rows may wait behind others that hold all threads
/// before a job with fast rows waits, too. A waiting thread costs its stack.
const SPARE_THREADS: usize = 8;

/// How long closures have to hold all threads until spare threads work for other jobs. Almost all closures take less: the
/// engine gives rows to threads in pieces of some milliseconds.
const STALL: Duration = Duration::from_millis(500);

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
        Ok(Self { inner: Arc::new(inner), job })
    }

    /// A handle on these threads with the queue of a job.
    #[must_use]
    pub fn of_job(&self, job: &str) -> Self {
        Self { inner: Arc::clone(&self.inner), job: job.into() }
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
            Some(shared) => shared.submit(&self.job, job),
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

/// The queues, and what the threads are doing.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// A closure was queued, or the pool stops.
    queued: Condvar,
    /// A job waits while all threads are busy, or the pool stops: for the spare threads.
    starved: Condvar,
    /// A queue became shorter.
    taken: Condvar,
    /// More threads are wanted, or the pool stops: for the threads that were not.
    resized: Condvar,
}

#[derive(Debug)]
struct State {
    queues: BTreeMap<Arc<str>, Queue>,
    /// The number of closures begun so far: which job was served longest ago.
    begun: u64,
    /// For each thread that is not spare: when it began the closure that it runs.
    busy_since: Vec<Option<Instant>>,
    /// The number of these threads that take closures: the first ones.
    active: usize,
    /// Time of the closures that have ended on them.
    busy: Duration,
    /// Where the system counts the time of each of them.
    stats: Vec<PathBuf>,
    closed: bool,
}

/// The closures of one job. There is none without closures.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    running: usize,
    served: u64,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} waiting, {} running", self.waiting.len(), self.running)
    }
}

impl Shared {
    fn new(threads: usize) -> Self {
        let state = State {
            queues: BTreeMap::new(),
            begun: 0,
            busy_since: Vec::new(),
            active: threads,
            busy: Duration::ZERO,
            stats: Vec::new(),
            closed: false,
        };
        let [queued, starved, taken, resized] = std::array::from_fn(|_| Condvar::new());
        Self { state: Mutex::new(state), queued, starved, taken, resized }
    }

    fn usage(&self) -> PoolUsage {
        let (busy, stats) = {
            let state = self.state.lock();
            let running = state.busy_since.iter().flatten().map(Instant::elapsed).sum::<Duration>();
            (state.busy + running, state.stats.clone())
        };
        // The files are read without the lock.
        let wanted = stats.iter().map(|path| wanted_cpu_time(path)).collect::<Option<Vec<_>>>();
        PoolUsage { busy, wanted: wanted.filter(|w| !w.is_empty()).map(|w| w.iter().sum()) }
    }

    /// Queues a closure; false if the pool stops.
    fn submit(&self, job: &Arc<str>, work: Work) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.queues.get(job).is_some_and(|q| q.waiting.len() >= MAX_QUEUED) {
            self.taken.wait(&mut state);
        }
        if state.closed {
            return false;
        }
        state.queues.entry(Arc::clone(job)).or_default().waiting.push_back(work);
        self.queued.notify_one();
        self.call_spare(&state);
        true
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.queued.notify_all();
        self.starved.notify_all();
        self.taken.notify_all();
        self.resized.notify_all();
    }

    /// Lets a spare thread watch for how long the threads are held, if a job has none.
    fn call_spare(&self, state: &State) {
        if state.starved().is_some() && state.stalls_in().is_some() {
            self.starved.notify_one();
        }
    }

    /// What one thread does until the pool stops. What is queued then still runs.
    fn work(&self, thread: usize, is_spare: bool) {
        let stats = this_thread_stats().filter(|_| !is_spare);
        let mut state = self.state.lock();
        state.stats.extend(stats);
        loop {
            if !is_spare && thread >= state.active && !state.closed {
                self.resized.wait(&mut state);
                continue;
            }
            let stalls_in = state.starved().and_then(|_| state.stalls_in()).filter(|_| is_spare);
            let job = match stalls_in {
                _ if !is_spare || state.closed => state.next(),
                Some(Duration::ZERO) => state.starved(),
                _ => None,
            };
            let Some((job, work)) = job.and_then(|job| Some((Arc::clone(&job), state.take(&job)?))) else {
                if state.closed {
                    return;
                }
                match stalls_in {
                    Some(time) => {
                        self.starved.wait_for(&mut state, time);
                    }
                    None if is_spare => self.starved.wait(&mut state),
                    None => self.queued.wait(&mut state),
                }
                continue;
            };
            if !is_spare {
                state.begin(thread);
            }
            self.taken.notify_all();
            self.call_spare(&state);
            MutexGuard::unlocked(&mut state, work);
            if !is_spare {
                state.end(thread);
            }
            state.ended(&job);
        }
    }
}

impl State {
    /// The job with waiting closures that has the fewest threads; of several the one that was served longest ago.
    fn next(&self) -> Option<Arc<str>> {
        let waiting = self.queues.iter().filter(|(_, q)| !q.waiting.is_empty());
        waiting.min_by_key(|(_, q)| (q.running, q.served)).map(|(job, _)| Arc::clone(job))
    }

    /// The next job, if it has no thread.
    fn starved(&self) -> Option<Arc<str>> {
        self.next().filter(|job| self.queues.get(job).is_some_and(|q| q.running == 0))
    }

    /// How long until all threads have been held for [`STALL`], unless one becomes free; none while one is.
    fn stalls_in(&self) -> Option<Duration> {
        let active = self.busy_since.iter().take(self.active);
        let last = active.copied().collect::<Option<Vec<Instant>>>()?.into_iter().max()?;
        Some(STALL.saturating_sub(last.elapsed()))
    }

    fn begin(&mut self, thread: usize) {
        if let Some(busy) = self.busy_since.get_mut(thread) {
            *busy = Some(Instant::now());
        }
    }

    fn end(&mut self, thread: usize) {
        let since = self.busy_since.get_mut(thread).and_then(Option::take);
        self.busy += since.map_or(Duration::ZERO, |since| since.elapsed());
    }

    fn take(&mut self, job: &Arc<str>) -> Option<Work> {
        let queue = self.queues.get_mut(job)?;
        let work = queue.waiting.pop_front()?;
        self.begun += 1;
        (queue.served, queue.running) = (self.begun, queue.running + 1);
        Some(work)
    }

    fn ended(&mut self, job: &Arc<str>) {
        if let Some(queue) = self.queues.get_mut(job) {
            queue.running = queue.running.saturating_sub(1);
            if queue.running == 0 && queue.waiting.is_empty() {
                self.queues.remove(job);
            }
        }
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
mod tests {
    use super::*;

    #[tokio::test]
    async fn runs_and_survives_panics() {
        let pool = CpuPool::new(2).unwrap();
        assert_eq!(pool.run(|| 6 * 7).await.unwrap(), 42);
        let e = pool.run(|| -> u32 { panic!("boom") }).await.unwrap_err();
        assert!(e.message().contains("boom"));
        assert_eq!(pool.run(|| 1).await.unwrap(), 1);
    }

    /// The first job has queued its closures before the others come. Nothing is timed: one thread runs all in turn.
    #[tokio::test]
    async fn jobs_take_turns() {
        let pool = CpuPool::new(1).unwrap();
        let (release, held) = crossbeam_channel::bounded::<()>(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = pool.run(move || held.recv().is_ok());
        let queued: Vec<_> = ["a", "a", "a", "b", "b", "c"]
            .into_iter()
            .map(|job| {
                let order = Arc::clone(&order);
                pool.of_job(job).run(move || order.lock().push(job))
            })
            .collect();
        drop(release);
        assert!(!first.await.unwrap());
        futures::future::join_all(queued).await;
        assert_eq!(*order.lock(), ["a", "b", "c", "a", "b", "a"]);
    }

    /// Jobs whose closures do not end hold all threads: another one still runs.
    #[tokio::test]
    async fn jobs_that_hold_all_threads_do_not_stop_others() {
        let pool = CpuPool::new(2).unwrap();
        let (release, held) = crossbeam_channel::bounded::<()>(0);
        let endless: Vec<_> = ["a", "a", "a", "b", "b", "c"]
            .into_iter()
            .map(|job| {
                let held = held.clone();
                pool.of_job(job).run(move || held.recv().is_ok())
            })
            .collect();
        for i in 0..3 {
            assert_eq!(pool.of_job("other").run(move || i).await.unwrap(), i);
        }
        let running = |job: &str| pool.inner.shared.as_ref().unwrap().state.lock().queues[job].running;
        assert!(running("a") <= 2 && running("b") <= 2, "spare threads are for jobs that have none");
        drop(release);
        futures::future::join_all(endless).await;
    }

    /// Closures wait for each other: as many as there are threads run, whatever their number is.
    #[tokio::test]
    async fn a_tuner_changes_the_number_of_threads() {
        let pool = CpuPool::elastic(1).unwrap();
        let tuner = pool.tuner().unwrap();
        assert!(pool.tuner().is_none(), "there is one tuner");
        for threads in [5, 2, 16, 1] {
            tuner.set_threads(threads).unwrap();
            assert_eq!(pool.running_threads(), threads);
            let met = Arc::new(std::sync::Barrier::new(threads));
            let together = (0..threads).map(|_| {
                let met = Arc::clone(&met);
                pool.run(move || met.wait().is_leader())
            });
            let leaders = futures::future::join_all(together.collect::<Vec<_>>()).await;
            assert_eq!(leaders.into_iter().filter(|leads| *leads.as_ref().unwrap()).count(), 1);
        }
        tuner.set_threads(1000).unwrap();
        assert_eq!(pool.running_threads(), 16, "within the bound");
        drop(tuner);
        assert_eq!(pool.running_threads(), 1);
        assert!(pool.tuner().is_some() && CpuPool::new(3).unwrap().tuner().is_none());
    }

    /// A closure that sleeps holds a thread and wants no core.
    #[tokio::test]
    async fn threads_that_wait_are_distinguished_from_those_that_compute() {
        let pool = CpuPool::new(2).unwrap();
        let held = Duration::from_millis(60);
        let start = pool.usage();
        pool.run(move || std::thread::park_timeout(held)).await.unwrap();
        let slept = pool.usage();
        let compute = move || {
            let end = Instant::now() + held;
            while Instant::now() < end {}
        };
        pool.run(compute).await.unwrap();
        let computed = pool.usage();
        assert!(slept.busy - start.busy >= held && computed.busy - slept.busy >= held / 2, "{computed:?}");
        if let (Some(start), Some(slept), Some(computed)) = (start.wanted, slept.wanted, computed.wanted) {
            assert!(slept - start < held / 2, "{:?}", slept - start);
            assert!(computed - slept >= held / 2, "{:?}", computed - slept);
        }
    }

    #[tokio::test]
    async fn what_is_queued_when_the_pool_stops_still_runs() {
        let pool = CpuPool::new(1).unwrap();
        let queued: Vec<_> = (0..100).map(|i| pool.of_job(&i.to_string()).run(move || i)).collect();
        drop(pool);
        let done = futures::future::join_all(queued).await;
        assert_eq!(done.into_iter().map(Result::unwrap).sum::<i32>(), 4950);
    }
}
