//! A pool of threads for CPU work, separate from the async runtime's threads (design habit 13).

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caju_types::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::panics::panic_text;
use crate::process::thread_cpu_time;
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

/// A fixed number of threads that run closures. Clones share the threads.
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
    threads: Vec<JoinHandle<()>>,
    /// The number of threads that the pool counts as; a simulation has none, and spare ones do not count.
    count: usize,
}

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
        let (count, job) = (threads.max(1), Arc::from(""));
        if is_simulated() {
            return Ok(Self { inner: Arc::new(Inner { shared: None, threads: Vec::new(), count }), job });
        }
        let shared = Arc::new(Shared::new(count));
        let mut inner = Inner { shared: Some(Arc::clone(&shared)), threads: Vec::new(), count };
        for i in 0..count + SPARE_THREADS {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name(format!("caju-cpu-{i}"))
                .spawn(move || shared.work(i))
                .map_err(|e| {
                    Error::exhausted(format!("cannot start CPU thread {i}: {e}; lower --cpu-threads"))
                })?;
            inner.threads.push(thread);
        }
        Ok(Self { inner: Arc::new(inner), job })
    }

    /// A handle on these threads with the queue of a job.
    #[must_use]
    pub fn of_job(&self, job: &str) -> Self {
        Self { inner: Arc::clone(&self.inner), job: job.into() }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.inner.count
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
}

#[derive(Debug)]
struct State {
    queues: BTreeMap<Arc<str>, Queue>,
    /// The number of closures begun so far: which job was served longest ago.
    begun: u64,
    /// For each thread that is not spare: when it began the closure that it runs.
    busy_since: Vec<Option<Instant>>,
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
        let busy_since = vec![None; threads];
        let state = State { queues: BTreeMap::new(), begun: 0, busy_since, closed: false };
        let [queued, starved, taken] = [Condvar::new(), Condvar::new(), Condvar::new()];
        Self { state: Mutex::new(state), queued, starved, taken }
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
    }

    /// Lets a spare thread watch for how long the threads are held, if a job has none.
    fn call_spare(&self, state: &State) {
        if state.starved().is_some() && state.stalls_in().is_some() {
            self.starved.notify_one();
        }
    }

    /// What one thread does until the pool stops. What is queued then still runs.
    fn work(&self, thread: usize) {
        let mut state = self.state.lock();
        let is_spare = thread >= state.busy_since.len();
        loop {
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
            state.set_busy(thread, Some(Instant::now()));
            self.taken.notify_all();
            self.call_spare(&state);
            MutexGuard::unlocked(&mut state, work);
            state.set_busy(thread, None);
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
        let last = self.busy_since.iter().copied().collect::<Option<Vec<Instant>>>()?.into_iter().max()?;
        Some(STALL.saturating_sub(last.elapsed()))
    }

    fn set_busy(&mut self, thread: usize, since: Option<Instant>) {
        if let Some(busy) = self.busy_since.get_mut(thread) {
            *busy = since;
        }
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
        for thread in self.threads.drain(..) {
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

    #[tokio::test]
    async fn what_is_queued_when_the_pool_stops_still_runs() {
        let pool = CpuPool::new(1).unwrap();
        let queued: Vec<_> = (0..100).map(|i| pool.of_job(&i.to_string()).run(move || i)).collect();
        drop(pool);
        let done = futures::future::join_all(queued).await;
        assert_eq!(done.into_iter().map(Result::unwrap).sum::<i32>(), 4950);
    }
}
