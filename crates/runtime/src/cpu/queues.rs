//! The queues of a pool, one per job, and what its threads do with them.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_types::{JobPriority, PriorityShares};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::process::{this_thread_stats, wanted_cpu_time};

/// Closures of one job that may be queued. A further submission blocks its submitter.
const MAX_QUEUED: usize = 4096;

/// How long closures have to hold all threads until spare threads work for other jobs. Almost all closures take less: the
/// engine gives rows to threads in pieces of some milliseconds.
const STALL: Duration = Duration::from_millis(500);

/// The least thread time that a closure counts, in seconds: to take it and to hand over its result takes time, too.
const MIN_COST_S: f64 = 1e-4;

pub(super) type Work = Box<dyn FnOnce() + Send>;

/// What the threads of a pool did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Time for which threads were held by closures, summed over the threads.
    pub busy: Duration,
    /// Time for which threads ran on a core or waited for one, summed over the threads; none where the system does not report
    /// it. A thread that is busy and wants no core waits for something else.
    pub wanted: Option<Duration>,
}

/// The queues, and what the threads are doing.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// A closure was queued, or the pool stops.
    pub(super) queued: Condvar,
    /// A job waits while all threads are busy, or the pool stops: for the spare threads.
    pub(super) starved: Condvar,
    /// A queue became shorter.
    pub(super) taken: Condvar,
    /// More threads are wanted, or the pool stops: for the threads that were not.
    pub(super) resized: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queues: BTreeMap<Arc<str>, Queue>,
    /// The number of closures begun so far: which job was served longest ago.
    pub(super) begun: u64,
    /// The least [`Queue::served_s`] of the jobs with waiting closures when a thread last took one: where the jobs are.
    pub(super) virtual_s: f64,
    /// What the jobs with closures get of the threads.
    shares: PriorityShares,
    /// For each thread that is not spare: when it began the closure that it runs.
    pub(super) busy_since: Vec<Option<Instant>>,
    /// The number of these threads that take closures: the first ones.
    pub(super) active: usize,
    /// Time of the closures that have ended on them.
    pub(super) busy: Duration,
    /// Where the system counts the time of each of them.
    pub(super) stats: Vec<PathBuf>,
    pub(super) closed: bool,
}

/// The closures of one job. One without closures is there while the job is ahead of the others.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: VecDeque<Work>,
    pub(super) running: usize,
    pub(super) served: u64,
    priority: JobPriority,
    /// The thread time of closures that have ended, in seconds over the job's share of the threads. With that of the closures at
    /// work it says which job is next, as in start-time fair queueing (Goyal, Vin and Cheng, 1996).
    served_s: f64,
    /// What the closures at work are expected to take, in seconds of a thread.
    pending_s: f64,
    /// What its next closure is expected to take, in seconds of a thread, from those before it.
    expected_s: f64,
}

/// A closure that a thread has taken.
pub(super) struct Taken {
    job: Arc<str>,
    pub(super) work: Work,
    /// What it is expected to take, in seconds of a thread.
    expected_s: f64,
}

impl Queue {
    fn is_in_use(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }

    /// The thread time that it has had, and that its closures at work are expected to take, over its share.
    fn charged_s(&self, shares: &PriorityShares) -> f64 {
        self.served_s + self.pending_s / shares.of(self.priority)
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} waiting, {} running", self.waiting.len(), self.running)
    }
}

impl Shared {
    pub(super) fn new(threads: usize) -> Self {
        let state = State {
            queues: BTreeMap::new(),
            begun: 0,
            virtual_s: 0.0,
            shares: PriorityShares::default(),
            busy_since: Vec::new(),
            active: threads,
            busy: Duration::ZERO,
            stats: Vec::new(),
            closed: false,
        };
        let [queued, starved, taken, resized] = std::array::from_fn(|_| Condvar::new());
        Self { state: Mutex::new(state), queued, starved, taken, resized }
    }

    pub(super) fn usage(&self) -> PoolUsage {
        let (busy, stats) = {
            let state = self.state.lock();
            (state.busy(), state.stats.clone())
        };
        // The files are read without the lock.
        let wanted = stats.iter().map(|path| wanted_cpu_time(path)).collect::<Option<Vec<_>>>();
        PoolUsage { busy, wanted: wanted.filter(|w| !w.is_empty()).map(|w| w.iter().sum()) }
    }

    /// Queues a closure; false if the pool stops.
    pub(super) fn submit(&self, job: &Arc<str>, priority: JobPriority, work: Work) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.queues.get(job).is_some_and(|q| q.waiting.len() >= MAX_QUEUED) {
            self.taken.wait(&mut state);
        }
        if state.closed {
            return false;
        }
        state.push(job, priority, work);
        self.queued.notify_one();
        self.call_spare(&state);
        true
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.queued.notify_all();
        self.starved.notify_all();
        self.taken.notify_all();
        self.resized.notify_all();
    }

    /// Lets a spare thread watch for how long the threads are held, if a job has none.
    pub(super) fn call_spare(&self, state: &State) {
        if state.starved().is_some() && state.stalls_in().is_some() {
            self.starved.notify_one();
        }
    }

    /// What one thread does until the pool stops. What is queued then still runs.
    pub(super) fn work(&self, thread: usize, is_spare: bool) {
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
            let Some(mut taken) = job.and_then(|job| state.take(&job)) else {
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
            let (began, work) = (Instant::now(), std::mem::replace(&mut taken.work, Box::new(|| ())));
            MutexGuard::unlocked(&mut state, work);
            if !is_spare {
                state.end(thread);
            }
            state.ended(&taken, began.elapsed());
        }
    }
}

impl State {
    /// Time for which threads were held, also by closures that have not ended.
    pub(super) fn busy(&self) -> Duration {
        self.busy + self.busy_since.iter().flatten().map(Instant::elapsed).sum::<Duration>()
    }

    /// Queues a closure.
    pub(super) fn push(&mut self, job: &Arc<str>, priority: JobPriority, work: Work) {
        if !self.queues.contains_key(job) {
            // A job whose first closures take long must not get all threads before that is known.
            let expected_s = self.queues.values().map(|queue| queue.expected_s).fold(0.0, f64::max);
            self.queues.insert(Arc::clone(job), Queue { expected_s, ..Queue::default() });
        }
        let queue = self.queues.entry(Arc::clone(job)).or_default();
        let changes_shares = !queue.is_in_use() || queue.priority != priority;
        queue.priority = priority;
        if queue.waiting.is_empty() {
            // What it could have had before, and did not want, is not made up for.
            queue.served_s = queue.served_s.max(self.virtual_s);
        }
        queue.waiting.push_back(work);
        if changes_shares {
            self.update_shares();
        }
    }

    /// Other jobs have closures than before. What a job is ahead of the others stays the same thread time.
    fn update_shares(&mut self) {
        let in_use = self.queues.values().filter(|queue| queue.is_in_use());
        let shares = PriorityShares::among(in_use.map(|queue| queue.priority));
        let before = std::mem::replace(&mut self.shares, shares);
        if before == shares {
            return;
        }
        for queue in self.queues.values_mut() {
            let (old, new) = (before.of(queue.priority), shares.of(queue.priority));
            queue.served_s = self.virtual_s + (queue.served_s - self.virtual_s) * old / new;
        }
    }

    /// The job with waiting closures that has had least for its share; of several the one with the fewest threads, and of those
    /// the one that was served longest ago.
    pub(super) fn next(&self) -> Option<Arc<str>> {
        self.first(|queue| !queue.waiting.is_empty())
    }

    /// The next of the jobs without a thread.
    pub(super) fn starved(&self) -> Option<Arc<str>> {
        self.first(|queue| !queue.waiting.is_empty() && queue.running == 0)
    }

    fn first(&self, of: impl Fn(&Queue) -> bool) -> Option<Arc<str>> {
        let order = |a: &Queue, b: &Queue| {
            let charged = a.charged_s(&self.shares).total_cmp(&b.charged_s(&self.shares));
            charged.then((a.running, a.served).cmp(&(b.running, b.served)))
        };
        let queues = self.queues.iter().filter(|(_, queue)| of(queue));
        queues.min_by(|(_, a), (_, b)| order(a, b)).map(|(job, _)| Arc::clone(job))
    }

    /// How long until all threads have been held for [`STALL`], unless one becomes free; none while one is.
    pub(super) fn stalls_in(&self) -> Option<Duration> {
        let active = self.busy_since.iter().take(self.active);
        let last = active.copied().collect::<Option<Vec<Instant>>>()?.into_iter().max()?;
        Some(STALL.saturating_sub(last.elapsed()))
    }

    pub(super) fn begin(&mut self, thread: usize) {
        if let Some(busy) = self.busy_since.get_mut(thread) {
            *busy = Some(Instant::now());
        }
    }

    pub(super) fn end(&mut self, thread: usize) {
        let since = self.busy_since.get_mut(thread).and_then(Option::take);
        self.busy += since.map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// Takes the next closure of a job, which is charged for it at once: else it would get all threads that are free.
    pub(super) fn take(&mut self, job: &Arc<str>) -> Option<Taken> {
        let waiting = self.queues.values().filter(|queue| !queue.waiting.is_empty());
        let least_s = waiting.map(|queue| queue.served_s).fold(f64::INFINITY, f64::min);
        let queue = self.queues.get_mut(job)?;
        let work = queue.waiting.pop_front()?;
        self.begun += 1;
        (queue.served, queue.running) = (self.begun, queue.running + 1);
        // Of all that wait: a spare thread may take a closure of a job that is far ahead.
        self.virtual_s = least_s.min(queue.served_s);
        let expected_s = queue.expected_s.max(MIN_COST_S);
        queue.pending_s += expected_s;
        Some(Taken { job: Arc::clone(job), work, expected_s })
    }

    /// A closure has ended on its thread after this time.
    pub(super) fn ended(&mut self, taken: &Taken, time: Duration) {
        let Some(queue) = self.queues.get_mut(&taken.job) else { return };
        let took_s = time.as_secs_f64().max(MIN_COST_S);
        queue.running = queue.running.saturating_sub(1);
        // Sums of rounded numbers end at zero all the same.
        queue.pending_s =
            if queue.running == 0 { 0.0 } else { (queue.pending_s - taken.expected_s).max(0.0) };
        queue.served_s += took_s / self.shares.of(queue.priority);
        queue.expected_s = if queue.expected_s > 0.0 { (queue.expected_s + took_s) / 2.0 } else { took_s };
        if queue.is_in_use() {
            return;
        }
        let virtual_s = self.virtual_s;
        self.queues.retain(|_, queue| queue.is_in_use() || queue.served_s > virtual_s);
        if self.queues.values().all(|queue| !queue.is_in_use()) {
            self.queues.clear();
            self.virtual_s = 0.0;
        }
        self.update_shares();
    }
}
