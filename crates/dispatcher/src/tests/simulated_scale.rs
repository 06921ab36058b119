//! The loop that scales workers, at the size of a large cluster: the dispatcher's own code under simulated workers and readers.
//!
//! Workers and readers are a fluid model that calls the dispatcher as real ones do: registrations, heartbeats with what was
//! served, drains, and silence. A worker divides its time among the jobs whose tasks it has by their priorities and weights, up to
//! what each of them needs; a reader takes rows at its own rate and waits for the rest. The hands start a worker in [`START_S`] seconds, and
//! drain workers at once. The suite runs a small cluster. Five hundred workers and two hundred jobs:
//!
//! ```sh
//! CAJU_SCALE_JOBS=200 cargo test --release -p caju-dispatcher --lib simulated_scale -- --nocapture
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "counts of rows and steps, never negative and far below 2^53"
)]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use caju_planner::ScalingSettings;
use caju_proto::{Bytes, v1};
use caju_types::{JobPriority, PriorityShares, mix64};
use serde_json::json;

use super::fake::{World, open_request};
use crate::config::Timers;

/// Seconds of one step: the interval of samples and checks. Workers and readers report at the end of each step, and not every
/// second as real ones do.
const STEP_S: u64 = 5;
/// Seconds from the target to a worker that registers, as a pod on a node that is there takes.
const START_S: u64 = 30;
/// Seconds of silence after which a worker is lost.
const WORKER_TIMEOUT_S: u64 = 15;
/// The jobs that run at once in the suite.
const JOBS: u64 = 8;
/// Relative error of what a worker gives in one step.
const NOISE: f64 = 0.05;

struct SimWorker {
    address: String,
    secret: Bytes,
}

/// One job with its reader.
struct SimJob {
    client: u64,
    iteration: u64,
    secret: Bytes,
    priority: JobPriority,
    /// Rows per second of a worker that is busy with it, and that its reader takes while it does not wait.
    per_worker: f64,
    demand: f64,
    /// The step after which it ends.
    ends: u64,
    rows: f64,
    waited_s: f64,
    elapsed_s: f64,
    version: u64,
    lost: Vec<u64>,
    /// By worker: the task, its rows and its busy seconds.
    tasks: HashMap<u64, (u64, f64, f64)>,
}

impl SimJob {
    /// The workers that it needs.
    fn need(&self) -> f64 {
        self.demand / self.per_worker
    }
}

/// What a phase showed.
#[derive(Debug, Default)]
struct Phase {
    steps: u64,
    /// The sum of the relative distances of the target from the workers that the jobs need.
    error: f64,
    worst: f64,
    changes: u64,
    waited_s: f64,
    reader_s: f64,
    worker_s: f64,
    needed_s: f64,
    /// The first step from whose end on the workers were enough until the phase ended; none if they were not.
    enough_since: Option<u64>,
    /// Pairs of a job and a worker without a task, where the worker registered two steps ago or earlier.
    without_task: u64,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.max(1) as f64;
        write!(f, "{:>5} s; {} changes of the target; ", self.steps * STEP_S, self.changes)?;
        if self.needed_s == 0.0 {
            return write!(f, "{:.0} worker-seconds for nothing", self.worker_s);
        }
        write!(
            f,
            "off by {:.1} % (at most {:.1} %); readers waited {:.1} %; {:.2} times the worker-seconds that were needed; \
             enough workers from {} on",
            100.0 * self.error / steps,
            100.0 * self.worst,
            100.0 * self.waited_s / self.reader_s.max(1e-9),
            self.worker_s / self.needed_s,
            self.enough_since.map_or("no moment".to_string(), |s| format!("{} s", s * STEP_S))
        )
    }
}

struct Sim {
    world: World,
    seed: u64,
    step: u64,
    draws: u64,
    workers: BTreeMap<u64, SimWorker>,
    /// Steps at which workers that were started register.
    starting: Vec<u64>,
    /// The step at which each worker registered.
    since: HashMap<u64, u64>,
    jobs: Vec<SimJob>,
    named: u64,
    target: u64,
    /// Seconds in which each thread of each worker was held.
    threads_busy_s: f64,
}

impl Sim {
    fn new(seed: u64, max_workers: u64) -> Self {
        let world = World::with(|mut config| {
            let step = Duration::from_secs(STEP_S);
            config.timers = Timers {
                check_every: step,
                scaling_interval: step,
                worker_timeout: Duration::from_secs(WORKER_TIMEOUT_S),
                client_timeout: Duration::from_secs(60),
                ..Timers::default()
            };
            config.scaling = ScalingSettings { max_workers, ..ScalingSettings::default() };
            config
        });
        Self {
            world,
            seed,
            step: 0,
            draws: 0,
            workers: BTreeMap::new(),
            starting: Vec::new(),
            since: HashMap::new(),
            jobs: Vec::new(),
            named: 0,
            target: 0,
            threads_busy_s: 0.0,
        }
    }

    /// A number of 0 to 1.
    fn draw(&mut self) -> f64 {
        self.draws += 1;
        (mix64(self.seed, self.draws) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A job that needs 0.5 to 4.5 workers opens its epoch.
    async fn arrive(&mut self, steps: u64) {
        self.arrive_with(steps, JobPriority::default()).await;
    }

    async fn arrive_with(&mut self, steps: u64, priority: JobPriority) {
        self.named += 1;
        let name = format!("job-{}", self.named);
        let request = v1::OpenIterationRequest {
            priority: Some(priority.level),
            weight: Some(priority.weight()),
            ..open_request(&json!({ "splits": 1000, "name": name }), &name)
        };
        let opened = self.world.core.epochs.open_iteration(request).await.unwrap();
        let per_worker = 1e4 + 9e4 * self.draw();
        let demand = per_worker * (0.5 + 4.0 * self.draw());
        let mut job = SimJob {
            client: opened.client_id,
            iteration: opened.iteration_id,
            secret: opened.client_secret,
            priority,
            per_worker,
            demand,
            ends: self.step + steps,
            rows: 0.0,
            waited_s: 0.0,
            elapsed_s: 0.0,
            version: opened.version,
            lost: Vec::new(),
            tasks: HashMap::new(),
        };
        job.learn(&opened.tasks);
        self.jobs.push(job);
    }

    /// Readers of jobs that are over leave.
    async fn depart(&mut self) {
        let (over, jobs) = std::mem::take(&mut self.jobs).into_iter().partition(|j| j.ends <= self.step);
        self.jobs = jobs;
        let over: Vec<SimJob> = over;
        for job in over {
            let request = v1::CloseClientRequest {
                client_id: job.client,
                iteration_id: job.iteration,
                secret: job.secret.clone(),
                ..Default::default()
            };
            self.world.core.clients.close_client(request).await.unwrap();
        }
    }

    /// This fraction of the workers fall silent for ever.
    fn preempt(&mut self, fraction: f64) {
        let doomed: Vec<u64> = self.workers.keys().copied().collect();
        for id in doomed {
            if self.draw() < fraction {
                self.workers.remove(&id);
            }
        }
    }

    /// The hands: workers are started and drained to follow the target.
    async fn follow_target(&mut self) {
        let due = self.starting.iter().filter(|at| **at <= self.step).count();
        self.starting.retain(|at| *at > self.step);
        for _ in 0..due {
            self.named += 1;
            let address = format!("w{}:1", self.named);
            let request =
                v1::RegisterWorkerRequest { address: address.clone(), cores: 8, ..Default::default() };
            let answer = self.world.core.workers.register_worker(request).await.unwrap();
            self.since.insert(answer.worker_id, self.step);
            self.workers.insert(answer.worker_id, SimWorker { address, secret: answer.secret });
        }
        let target = usize::try_from(self.target).unwrap();
        while self.workers.len() + self.starting.len() > target {
            if self.starting.pop().is_some() {
                continue;
            }
            let (id, worker) = self.workers.pop_last().unwrap();
            let leave = v1::DrainWorkerRequest { worker_id: id, secret: worker.secret, leaving: true };
            self.world.core.workers.drain_worker(leave).await.unwrap();
        }
        let missing = target - self.workers.len() - self.starting.len();
        self.starting.extend(std::iter::repeat_n(self.step + START_S / STEP_S, missing));
    }

    /// The workers' time is divided: by the jobs' shares, and no job gets more than it needs.
    fn serve(&mut self, phase: &mut Phase) {
        let live: Vec<u64> = self.workers.keys().copied().collect();
        let of = self.shares();
        let (mut left, mut open) = (live.len() as f64, of.iter().sum::<f64>());
        let mut order: Vec<usize> = (0..self.jobs.len()).collect();
        let per_share = |at: usize| self.jobs[at].need() / of[at];
        order.sort_by(|a, b| per_share(*a).total_cmp(&per_share(*b)));
        let dt = STEP_S as f64;
        let mut shares = vec![0.0; self.jobs.len()];
        for at in order {
            let job = &self.jobs[at];
            let mine = live.iter().filter(|w| job.tasks.contains_key(*w)).count() as f64;
            let got = (left * (of[at] / open).min(1.0)).min(job.need()).min(mine);
            (left, open) = (left - got, open - of[at]);
            shares[at] = got;
        }
        self.threads_busy_s += dt * shares.iter().sum::<f64>() / (live.len() as f64).max(1.0);
        let busy = self.busy_fractions(&shares, live.len() as f64);
        for (at, got) in shares.into_iter().enumerate() {
            let noise = 1.0 + NOISE * (2.0 * self.draw() - 1.0);
            let job = &mut self.jobs[at];
            let mine: Vec<u64> = live.iter().copied().filter(|w| job.tasks.contains_key(w)).collect();
            let rate = (got * job.per_worker * noise).min(job.demand);
            for worker in &mine {
                let (_, rows, busy_s) = job.tasks.get_mut(worker).unwrap();
                *rows += rate * dt / mine.len() as f64;
                *busy_s += busy[at] * dt;
            }
            let waited = dt * (1.0 - rate / job.demand);
            job.rows += rate * dt;
            job.waited_s += waited;
            job.elapsed_s += dt;
            phase.waited_s += waited;
            phase.reader_s += dt;
            let old = |w: &&u64| self.since.get(*w).is_some_and(|since| since + 2 < self.step);
            phase.without_task +=
                live.iter().filter(old).filter(|w| !job.tasks.contains_key(w)).count() as u64;
        }
    }

    /// The fraction of the time in which each job's tasks are busy: those in whose steps a row of it is at work or waits for a
    /// core. A task that others slow down is busy for longer, and one that cannot give enough is busy all the time.
    fn busy_fractions(&self, got: &[f64], workers: f64) -> Vec<f64> {
        let (shares, mut busy) = (self.shares(), vec![0.0; got.len()]);
        for _ in 0..30 {
            let fractions = fractions(&shares, &busy);
            for (at, got) in got.iter().enumerate() {
                let is_short = *got < self.jobs[at].need() * (1.0 - 1e-9);
                let slowed = got / workers.max(1e-9) / fractions[at].max(1e-6);
                busy[at] = if is_short { 1.0 } else { slowed.min(1.0) };
            }
        }
        busy
    }

    /// The jobs' parts of a worker that all of them want.
    fn shares(&self) -> Vec<f64> {
        let shares = PriorityShares::among(self.jobs.iter().map(|job| job.priority));
        self.jobs.iter().map(|job| shares.of(job.priority)).collect()
    }

    async fn report(&mut self) {
        for (id, worker) in &self.workers {
            let served = |job: &SimJob| {
                let (task_id, rows, busy_s) = *job.tasks.get(id)?;
                Some(v1::TaskServed { task_id, rows: rows as u64, busy_s, ..Default::default() })
            };
            let served: Vec<_> = self.jobs.iter().filter_map(served).collect();
            let beat = v1::WorkerHeartbeatRequest {
                worker_id: *id,
                address: worker.address.clone(),
                secret: worker.secret.clone(),
                tasks: served.iter().map(|s| s.task_id).collect(),
                served,
                usage: Some(v1::WorkerUsage {
                    threads: 8,
                    threads_busy_s: 8.0 * self.threads_busy_s,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let answer = self.world.core.workers.worker_heartbeat(beat).await.unwrap();
            assert!(!answer.register_again, "a worker that reports is known");
        }
        for job in &mut self.jobs {
            let lost = std::mem::take(&mut job.lost);
            let lost = lost.into_iter().map(|task_id| v1::LostTask { task_id, ..Default::default() });
            let beat = v1::ClientHeartbeatRequest {
                client_id: job.client,
                iteration_id: job.iteration,
                secret: job.secret.clone(),
                seen_version: job.version,
                knows_tasks: true,
                lost_tasks: lost.collect(),
                rows: job.rows as u64,
                rows_per_s: job.rows / job.elapsed_s.max(1e-9),
                wait_fraction: job.waited_s / job.elapsed_s.max(1e-9),
                ..Default::default()
            };
            let answer = self.world.core.clients.client_heartbeat(beat).await.unwrap();
            assert!(!answer.unknown && answer.failure.is_none(), "{answer:?}");
            job.version = answer.version;
            if !answer.same_tasks {
                job.learn(&answer.tasks);
            }
        }
    }

    /// One step of a phase.
    async fn go(&mut self, phase: &mut Phase) {
        self.depart().await;
        self.follow_target().await;
        self.serve(phase);
        self.world.clock.advance(Duration::from_secs(STEP_S));
        self.step += 1;
        self.report().await;
        self.world.core.liveness.check();
        self.world.core.scaling.sample_for_scaling();
        let target = self.world.core.scaling.scaling_target().borrow().workers;
        let needed: f64 = self.jobs.iter().map(SimJob::need).sum();
        let error = (target as f64 - needed.ceil()).abs() / needed.ceil().max(1.0);
        phase.steps += 1;
        phase.error += error;
        phase.worst = phase.worst.max(error);
        phase.changes += u64::from(target != self.target);
        phase.worker_s += (self.workers.len() as u64 * STEP_S) as f64;
        phase.needed_s += needed * STEP_S as f64;
        let enough = self.workers.len() as f64 >= needed * 0.98;
        phase.enough_since = if enough { phase.enough_since.or(Some(phase.steps)) } else { None };
        self.target = target;
    }

    async fn phase(&mut self, name: &str, seconds: u64) -> Phase {
        let (mut phase, began) = (Phase::default(), Instant::now());
        for _ in 0..seconds / STEP_S {
            self.go(&mut phase).await;
        }
        println!(
            "{name:<28} {:>3} jobs, {:>3} workers, {phase}; took {:.1} s",
            self.jobs.len(),
            self.workers.len(),
            began.elapsed().as_secs_f64()
        );
        assert_eq!(phase.without_task, 0, "{name}: every job has a task on every worker");
        phase
    }
}

impl SimJob {
    fn learn(&mut self, tasks: &[v1::TaskInfo]) {
        for task in tasks {
            if task.lost {
                self.lost.push(task.task_id);
                if self.tasks.get(&task.worker_id).is_some_and(|(id, ..)| *id == task.task_id) {
                    self.tasks.remove(&task.worker_id);
                }
            } else {
                self.tasks.entry(task.worker_id).or_insert((task.task_id, 0.0, 0.0));
            }
        }
    }
}

/// What each job gets of a worker while it wants it, where the others want it for these fractions of the time: the mean of
/// `share / (share + those of the others that want it)`, as an integral over `exp(-x)`.
fn fractions(shares: &[f64], busy: &[f64]) -> Vec<f64> {
    const STEP: f64 = 0.25;
    let mut sums = vec![0.0; shares.len()];
    for at in -60..40 {
        let x = (f64::from(at) * STEP).exp();
        let factor = |(share, busy): (&f64, &f64)| (1.0 - busy + busy * (-share * x).exp()).max(1e-300).ln();
        let factors: Vec<f64> = shares.iter().zip(busy).map(factor).collect();
        let all: f64 = factors.iter().sum();
        for ((sum, share), factor) in sums.iter_mut().zip(shares).zip(factors) {
            *sum += STEP * share * x * (all - factor - share * x).exp();
        }
    }
    sums
}

/// The number of jobs at once: of the suite, or as asked for.
#[expect(clippy::disallowed_methods, reason = "the size of a long run")]
fn jobs() -> u64 {
    std::env::var("CAJU_SCALE_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(JOBS)
}

const FOR_EVER: u64 = 1 << 40;

#[tokio::test]
async fn simulated_scale_converges_and_stays() {
    let (jobs, mut sim) = (jobs(), Sim::new(7, 10_000));
    for _ in 0..jobs {
        sim.arrive(FOR_EVER).await;
    }
    let ramp = sim.phase("all jobs begin", 180).await;
    assert!(ramp.enough_since.is_some_and(|s| s * STEP_S <= 150), "{ramp}");
    let steady = sim.phase("nothing changes", 300).await;
    assert!(steady.worst <= 0.12 && steady.changes <= 3, "{steady}");
    assert!(
        steady.waited_s <= 0.03 * steady.reader_s && steady.worker_s <= 1.12 * steady.needed_s,
        "{steady}"
    );

    sim.preempt(0.5);
    let after = sim.phase("half of the workers vanish", 180).await;
    // The silence, a worker's start and two samples.
    let bound = WORKER_TIMEOUT_S + START_S + 4 * STEP_S;
    assert!(after.enough_since.is_some_and(|s| s * STEP_S <= bound), "{after}");

    for job in &mut sim.jobs {
        job.demand *= 1.5;
    }
    let faster = sim.phase("readers become faster", 180).await;
    assert!(faster.enough_since.is_some_and(|s| s * STEP_S <= 120), "{faster}");

    for job in &mut sim.jobs {
        job.ends = sim.step;
    }
    sim.phase("all jobs end", 90).await;
    assert_eq!((sim.target, sim.workers.len()), (0, 0), "no worker is paid for when nothing runs");
}

#[tokio::test]
async fn simulated_scale_follows_jobs_that_come_and_go_while_workers_are_preempted() {
    let (jobs, mut sim) = (jobs(), Sim::new(11, 10_000));
    // Jobs last ten minutes on the average, as long as the spread of their arrivals.
    let mut all = Phase::default();
    let began = Instant::now();
    for step in 0..1800 / STEP_S {
        if sim.draw() < jobs as f64 * STEP_S as f64 / 600.0 % 1.0 {
            let steps = (600.0 / STEP_S as f64 * 2.0 * sim.draw()) as u64;
            sim.arrive(steps.max(2)).await;
        }
        for _ in 0..(jobs * STEP_S / 600) {
            let steps = (600.0 / STEP_S as f64 * 2.0 * sim.draw()) as u64;
            sim.arrive(steps.max(2)).await;
        }
        // Each worker lives fifty minutes on the average.
        sim.preempt(STEP_S as f64 / 3000.0);
        // The first jobs find an empty cluster: that is another phase.
        if step * STEP_S == 600 {
            all = Phase::default();
        }
        sim.go(&mut all).await;
    }
    println!(
        "{:<28} {:>3} jobs, {:>3} workers, {all}; took {:.1} s",
        "jobs come and go",
        sim.jobs.len(),
        sim.workers.len(),
        began.elapsed().as_secs_f64()
    );
    assert_eq!(all.without_task, 0);
    assert!(all.waited_s <= 0.25 * all.reader_s, "{all}");
    assert!(all.worker_s <= 1.35 * all.needed_s, "{all}");
}

/// Where the limit is below the need, the target stays at the limit, and what each job needs is still known. How the workers
/// divide their time among the jobs is a part of the model, so this shows nothing of it.
#[tokio::test]
async fn simulated_scale_stays_at_the_limit_and_knows_each_need() {
    let jobs = jobs();
    let mut sim = Sim::new(13, jobs);
    for _ in 0..jobs {
        sim.arrive(FOR_EVER).await;
    }
    sim.phase("too few workers, begins", 180).await;
    let scarce = sim.phase("too few workers", 180).await;
    assert_eq!((sim.target, scarce.changes), (jobs, 0), "{scarce}");
    let status = sim.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert_eq!(status.jobs.len() as u64, jobs);
    for (job, known) in sim.jobs.iter().zip(&status.jobs) {
        let need = job.need();
        assert!((known.workers as f64 - need.ceil()).abs() <= 1.0 + 0.12 * need, "{known:?} needs {need:.1}");
    }
}

/// Half of the jobs have a higher priority, and the limit is enough for these and for a little of the others. Each job's need is
/// known, also of those that get a small part of each worker. The shares of the target say what the workers do: all for the
/// first, and the rest by weight.
#[tokio::test]
async fn simulated_scale_serves_higher_priorities_first_where_workers_are_too_few() {
    let jobs = jobs();
    let priority = |n: u64| JobPriority {
        level: i32::from(n.is_multiple_of(2)),
        weight_milli: if n % 4 < 2 { 3000 } else { 1000 },
    };
    let begin = async |max_workers| {
        let mut sim = Sim::new(17, max_workers);
        for n in 0..jobs {
            sim.arrive_with(FOR_EVER, priority(n)).await;
        }
        sim
    };
    let of = |sim: &Sim, level: i32| {
        sim.jobs.iter().filter(|j| j.priority.level == level).map(SimJob::need).sum::<f64>()
    };
    let unbounded = begin(u64::MAX).await;
    let most = (of(&unbounded, 1) + 0.25 * of(&unbounded, 0)).ceil() as u64;
    // The same jobs again.
    let mut sim = begin(most).await;
    sim.phase("two priorities, begins", 240).await;
    for job in &mut sim.jobs {
        (job.waited_s, job.elapsed_s) = (0.0, 0.0);
    }
    let scarce = sim.phase("two priorities", 240).await;
    assert_eq!((sim.target, scarce.changes), (most, 0), "{scarce}");
    let status = sim.world.core.status.get_status().await.unwrap().scaling.unwrap();
    let per_weight = |known: &v1::JobWorkers| known.share / known.weight;
    let mut of_low = Vec::new();
    for (job, known) in sim.jobs.iter().zip(&status.jobs) {
        let need = job.need();
        assert!((known.workers as f64 - need.ceil()).abs() <= 1.0 + 0.12 * need, "{known:?} needs {need:.1}");
        let waited = job.waited_s / job.elapsed_s;
        if job.priority.level == 1 {
            assert!(
                waited < 0.1 && known.share > 0.85 * need,
                "{known:?} needs {need:.1}, and waits {waited:.2}"
            );
        } else if known.share < 0.9 * need {
            assert!(waited > 0.1, "{known:?} needs {need:.1}, and waits {waited:.2}");
            of_low.push(per_weight(known));
        }
    }
    let mean = of_low.iter().sum::<f64>() / of_low.len() as f64;
    assert!(of_low.len() > 1 && of_low.iter().all(|share| (share / mean - 1.0).abs() < 0.01), "{of_low:?}");
}
