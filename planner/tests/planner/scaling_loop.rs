//! The loop that follows a running cluster, fed by a cluster of a few lines.

#![allow(clippy::cast_possible_truncation, reason = "rows of a few seconds")]

use std::time::Duration;

use caju_planner::{JobSample, LocalWorkers, ScalingEvent, ScalingLoop, ScalingSettings};
use caju_types::JobPriority;

/// Seconds between two samples.
const EVERY_S: f64 = 5.0;

/// A job on the cluster.
#[derive(Debug, Clone)]
struct Job {
    iteration: u64,
    /// Rows per second of one worker that runs it alone.
    per_worker: f64,
    /// Rows per second that a store gives all workers.
    store: f64,
    /// Rows per second that its reader takes if it never waits.
    demand: f64,
    sample: JobSample,
}

fn job(iteration: u64, per_worker: f64, demand: f64) -> Job {
    let sample = JobSample { iteration, job: format!("job-{iteration}"), ..JobSample::default() };
    Job { iteration, per_worker, store: f64::INFINITY, demand, sample }
}

/// A cluster that does what the target says.
struct Cluster {
    scaling: ScalingLoop,
    at_s: f64,
    workers: u64,
    follows: bool,
    jobs: Vec<Job>,
}

impl Cluster {
    fn new(workers: u64, jobs: Vec<Job>) -> Self {
        let scaling = ScalingLoop::new(ScalingSettings::default());
        Self { scaling, at_s: 0.0, workers, follows: true, jobs }
    }

    /// Runs for a window, samples, and follows the target. The error makes the next window's rates wrong by that fraction.
    fn step(&mut self, error: f64) -> u64 {
        self.at_s += EVERY_S;
        // Jobs get the workers' time as they need it; where it is too short, in equal fractions.
        let crowd = self.jobs.iter().filter(|j| j.demand > 0.0).count() as f64;
        for job in &mut self.jobs {
            let local = job.sample.local.count as f64 * job.sample.local.worth;
            let workers = self.workers as f64 + local;
            let supply = (workers * job.per_worker / crowd).min(job.store) * (1.0 + error);
            let rate = supply.min(job.demand);
            job.sample.rows += (rate * EVERY_S) as u64;
            let busy_s = if supply > 0.0 { EVERY_S * (rate / supply).min(1.0) } else { 0.0 };
            job.sample.busy_s += self.workers as f64 * busy_s;
            job.sample.local.busy_s += job.sample.local.count as f64 * busy_s;
            job.sample.workers = self.workers;
            let (rows, wait, own) = job.sample.readers.entry(job.iteration).or_default();
            let idle = 1.0 - rate / job.demand;
            (*rows, *wait, *own) = (job.sample.rows, *wait + idle * EVERY_S, *own + (1.0 - idle) * EVERY_S);
        }
        let target = self.scaling.apply(ScalingEvent::Sampled {
            at: Duration::from_secs_f64(self.at_s),
            workers: self.workers,
            threads_busy: None,
            jobs: self.jobs.iter().map(|j| j.sample.clone()).collect(),
        });
        let target = target.workers;
        if self.follows {
            self.workers = target;
        }
        target
    }

    fn run(&mut self, steps: usize) -> Vec<u64> {
        (0..steps).map(|_| self.step(0.0)).collect()
    }

    fn reason(&self) -> &str {
        &self.scaling.target().reason
    }
}

#[test]
fn one_step_leads_to_the_number_that_is_needed() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    assert_eq!(cluster.run(20), [6; 20]);
    assert!(
        cluster.reason().contains("takes 550 rows/s, of which a worker gives 100: 5.5 workers"),
        "{}",
        cluster.reason()
    );
    assert_eq!(cluster.scaling.target().jobs, [("job-1".to_string(), 6)]);
}

/// The last splits of an epoch are with few workers, and the others have nothing: what a worker gives then says nothing.
#[test]
fn the_end_of_an_epoch_changes_no_target() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    assert_eq!(cluster.run(5), [6; 5]);
    cluster.jobs[0].sample.is_ending = true;
    cluster.jobs[0].per_worker = 20.0;
    assert_eq!(cluster.run(5), [6; 5]);
    // What the readers take is measured to the end.
    cluster.jobs[0].demand = 750.0;
    assert_eq!(cluster.run(3)[2], 8);
    // An epoch whose splits were all leased before anything was measured shows its rates all the same, also if its reader
    // begins late.
    let mut short = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    short.jobs[0].sample.is_ending = true;
    let readers = std::mem::take(&mut short.jobs[0].sample.readers);
    short.step(0.0);
    short.jobs[0].sample.readers = readers;
    assert_eq!(short.run(3), [6; 3]);
}

#[test]
fn a_job_that_has_shown_no_rates_is_named() {
    let mut cluster = Cluster::new(2, vec![job(1, 0.0, 550.0), job(2, 0.0, 550.0)]);
    cluster.step(0.0);
    assert_eq!(cluster.reason(), "`job-1` has shown no rates yet; `job-2` has shown no rates yet.");
}

#[test]
fn a_number_for_which_nothing_was_measured_is_not_called_measured() {
    let mut cluster = Cluster::new(5, vec![job(1, 0.0, 550.0)]);
    assert_eq!(cluster.step(0.0), 5);
    let expected = "`job-1` has shown no rates yet. The number stays until every job has shown its rates.";
    assert_eq!(cluster.reason(), expected);
}

#[test]
fn no_job_needs_no_worker() {
    let mut cluster = Cluster::new(3, Vec::new());
    assert_eq!(cluster.step(0.0), 0);
    assert_eq!(cluster.reason(), "No job runs.");
    cluster.jobs = vec![job(1, 100.0, 250.0)];
    (cluster.workers, cluster.follows) = (0, false);
    assert_eq!(cluster.run(2), [1, 1], "a worker must be there to show what is needed");
    (cluster.workers, cluster.follows) = (1, true);
    assert_eq!(cluster.run(3), [3, 3, 3]);
    // The next epoch may be about to begin.
    let jobs = std::mem::take(&mut cluster.jobs);
    assert_eq!(cluster.run(3), [3, 3, 3]);
    assert_eq!(cluster.reason(), "No job runs. The target falls when that has been so for 30.00 s.");
    cluster.jobs = jobs;
    assert_eq!(cluster.run(3), [3, 3, 3]);
    cluster.jobs.clear();
    assert_eq!(cluster.run(8), [3, 3, 3, 3, 3, 3, 0, 0]);
    assert_eq!(cluster.reason(), "No job runs.");
}

/// A decision to store that halves the CPU time of a row halves the target within the same epoch.
#[test]
fn a_caching_decision_lowers_the_target_in_the_same_epoch() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 750.0)]);
    assert_eq!(cluster.run(6), [8; 6]);
    cluster.jobs[0].per_worker = 200.0;
    let after = cluster.run(10);
    let fell = after.iter().position(|n| *n == 4).unwrap();
    assert!(fell as f64 * EVERY_S <= 40.0, "{after:?}");
    assert!(after[..fell].iter().all(|n| *n == 8) && after[fell..].iter().all(|n| *n == 4), "{after:?}");
}

/// A stage that becomes four times as expensive, and a reader that becomes twice as fast, raise it at once.
#[test]
fn more_work_raises_the_target_at_once() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 190.0)]);
    assert_eq!(cluster.run(4), [2; 4]);
    cluster.jobs[0].per_worker = 25.0;
    assert_eq!(cluster.run(4), [8; 4]);
    cluster.jobs[0].demand = 380.0;
    assert_eq!(cluster.run(4), [16; 4]);
    // Half of the workers are preempted, and new ones come late.
    cluster.follows = false;
    cluster.workers = 8;
    assert_eq!(cluster.run(4), [16; 4]);
}

/// A stage that becomes four times as expensive in the middle of a window: what the first added workers bring is not compared
/// with the rates from before the change, whatever part of the window was still cheap.
#[test]
fn a_change_in_mid_window_is_no_shared_bottleneck() {
    for mixed in [30.0, 45.0, 60.0, 75.0, 90.0] {
        let mut cluster = Cluster::new(1, vec![job(1, 100.0, 190.0)]);
        assert_eq!(cluster.run(4), [2; 4]);
        cluster.jobs[0].per_worker = mixed;
        cluster.step(0.0);
        cluster.jobs[0].per_worker = 25.0;
        let path = cluster.run(6);
        assert_eq!(path.last(), Some(&8), "{mixed}: {path:?}: {}", cluster.reason());
        assert_eq!(cluster.run(20), [8; 20], "{mixed}: {}", cluster.reason());
    }
}

/// A rate that was taken for the most that a store gives, and that fewer workers do not reach, is forgotten.
#[test]
fn a_ceiling_that_is_not_reached_is_forgotten() {
    let mut one = job(1, 100.0, 1000.0);
    one.store = 220.0;
    let mut cluster = Cluster::new(1, vec![one]);
    assert_eq!(cluster.run(20).last(), Some(&3));
    // The store becomes faster, and rows more expensive.
    (cluster.jobs[0].store, cluster.jobs[0].per_worker) = (f64::INFINITY, 40.0);
    let path = cluster.run(10);
    assert_eq!(path.last(), Some(&25), "{path:?}: {}", cluster.reason());
}

/// Where a store is the bottleneck, the number goes back to those that reach what it gives.
#[test]
fn workers_that_bring_nothing_are_given_back() {
    let mut one = job(1, 100.0, 1000.0);
    one.store = 220.0;
    let mut cluster = Cluster::new(1, vec![one]);
    let path = cluster.run(20);
    assert!(path[0] >= 9, "{path:?}");
    // Ten workers bring 2.2 times the rows of one: that is more than nothing, but a fifth of what was predicted.
    assert!(path.last().unwrap() <= &3 && path.last().unwrap() >= &2, "{path:?}");
    assert!(cluster.reason().contains("more workers did not bring more"), "{}", cluster.reason());
    let settled = cluster.run(20);
    assert!(settled.windows(2).all(|w| w[0] == w[1]), "{settled:?}");
    // A faster store is noticed by the rate of a worker.
    cluster.jobs[0].store = f64::INFINITY;
    cluster.jobs[0].per_worker = 300.0;
    assert_eq!(cluster.run(4).last(), Some(&4));
}

/// Windows that differ by 8 % leave the target where it is.
#[test]
fn noise_changes_nothing() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    cluster.run(3);
    let errors = [0.08, -0.08, 0.03, -0.05, 0.08, 0.08, -0.08, -0.08];
    let path: Vec<u64> = errors.iter().cycle().take(80).map(|e| cluster.step(*e)).collect();
    assert_eq!(path, [6; 80]);
}

/// A reader that waits all the time could take any number of rows: the target at most quadruples, and not again before the
/// new workers have shown what they bring.
#[test]
fn unknown_demand_grows_in_steps() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 1e7)]);
    assert_eq!(cluster.run(1), [4]);
    let says = "takes at least 5,000 rows/s, of which a worker gives 100: 50.0 workers, bounded to 4 times those that work: 4.0 \
                workers (its readers wait 100 % of their time)";
    assert!(cluster.reason().contains(says), "{}", cluster.reason());
    assert_eq!(cluster.run(6), [4, 16, 16, 64, 64, 100]);
    assert!(cluster.reason().contains("These are the most allowed: `job-1` takes"), "{}", cluster.reason());
    assert!(cluster.reason().contains("takes at least"), "{}", cluster.reason());
}

/// What jobs need adds up.
#[test]
fn jobs_share_the_target() {
    let mut cluster = Cluster::new(2, vec![job(1, 100.0, 250.0), job(2, 100.0, 250.0)]);
    let path = cluster.run(12);
    assert!(path.iter().all(|n| (5..=6).contains(n)), "{path:?}");
    // The workers are busy for the other job for some of their time. Alone a worker would give about 100.
    let numbers: Vec<f64> = (cluster.reason().split(' '))
        .filter_map(|word| word.trim_end_matches([':', ',', ';']).parse().ok())
        .collect();
    let [demand, per_worker, need, ..] = numbers[..] else { panic!("{}", cluster.reason()) };
    assert!((demand / per_worker - need).abs() < 0.06, "{}", cluster.reason());
    cluster.jobs.pop();
    let path = cluster.run(12);
    assert_eq!(path.last(), Some(&3), "{path:?}");
}

/// An epoch without rows in a window, such as behind a large shuffle, is no reason to give workers back.
#[test]
fn windows_without_rows_change_nothing() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    cluster.run(3);
    let demand = cluster.jobs[0].demand;
    cluster.jobs[0].demand = 0.0;
    assert_eq!(cluster.run(10), [6; 10]);
    cluster.jobs[0].demand = demand;
    assert_eq!(cluster.run(5), [6; 5]);
    // The next epoch begins: nothing is known of it.
    cluster.jobs = vec![job(2, 100.0, 550.0)];
    cluster.jobs[0].per_worker = 1e-9;
    assert_eq!(cluster.run(10), [6; 10]);
}

/// The workers in the readers' own processes are used first: the target has what they do not reach, and no worker if they
/// reach it all.
#[test]
fn workers_of_the_readers_are_used_first() {
    for (demand, expected) in [(900.0, 6), (450.0, 2), (250.0, 0)] {
        let mut local = job(1, 100.0, demand);
        local.sample.local = LocalWorkers { count: 6, worth: 0.5, ..LocalWorkers::default() };
        let mut cluster = Cluster::new(0, vec![local]);
        let targets = cluster.run(20);
        assert_eq!(targets.last(), Some(&expected), "{demand}: {targets:?}: {}", cluster.reason());
        // No more than the readers take was ever asked for.
        assert!(targets.iter().all(|&t| t <= expected.max(9)), "{demand}: {targets:?}");
        assert!(cluster.reason().contains("of which the readers' own cores are 3.0"), "{}", cluster.reason());
    }
    // A concurrent job that has none still gets its workers.
    let mut local = job(1, 100.0, 250.0);
    local.sample.local = LocalWorkers { count: 6, worth: 0.5, ..LocalWorkers::default() };
    let mut cluster = Cluster::new(0, vec![local, job(2, 100.0, 150.0)]);
    let targets = cluster.run(20);
    assert!((1..=2).contains(targets.last().unwrap()), "{targets:?}");
}

/// Where no more workers are allowed, jobs of a higher priority are served first, and the others by their weights.
#[test]
fn shares_follow_priority_and_weight() {
    let with = |mut job: Job, level: i32, weight_milli: u32| {
        job.sample.priority = JobPriority { level, weight_milli };
        job
    };
    // They need 2, 6 and 6 workers.
    let jobs = || vec![job(1, 100.0, 200.0), job(2, 100.0, 600.0), job(3, 100.0, 600.0)];
    let shares = |jobs: Vec<Job>| {
        let mut cluster = Cluster::new(8, jobs);
        cluster.scaling = ScalingLoop::new(ScalingSettings { max_workers: 8, ..ScalingSettings::default() });
        cluster.run(4);
        let target = cluster.scaling.target();
        assert_eq!((target.workers, target.jobs.len()), (8, 3), "{}", target.reason);
        target.shares.iter().map(|s| s.workers).collect::<Vec<_>>()
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let equal = shares(jobs());
    assert!(equal[0] < equal[1] && near(equal[1], equal[2]), "{equal:?}");
    let [a, b, c]: [Job; 3] = jobs().try_into().unwrap();
    let first = shares(vec![with(a.clone(), 0, 1000), with(b.clone(), 1, 1000), with(c.clone(), 0, 1000)]);
    assert!(first[1] > 5.5 && first[0] < 1.5 && near(first[0], first[2]), "{first:?}");
    let by_weight = shares(vec![with(a, 1, 1000), with(b, 0, 2000), with(c, 0, 1000)]);
    assert!(by_weight[0] > 1.9 && near(by_weight[1], 2.0 * by_weight[2]), "{by_weight:?}");
}

/// Workers that load a model for twelve seconds bring nothing in their first windows, and all that was predicted afterwards.
#[test]
fn workers_that_are_slow_to_begin_are_no_shared_bottleneck() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    cluster.follows = false;
    assert_eq!(cluster.run(2), [6; 2]);
    // Five more are there, and the store of the first ones looks like a bottleneck.
    cluster.workers = 6;
    cluster.jobs[0].store = 100.0;
    cluster.run(2);
    assert!(cluster.reason().contains("something that they share"), "{}", cluster.reason());
    cluster.jobs[0].store = f64::INFINITY;
    let after = cluster.run(8);
    assert_eq!(after[7], 6, "{after:?}");
    assert!(!cluster.reason().contains("something that they share"), "{}", cluster.reason());
}

/// One task computes all rows of some pipelines: a second worker would get none.
#[test]
fn a_job_whose_rows_one_worker_computes_asks_for_one() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 550.0)]);
    cluster.jobs[0].sample.most_workers = Some(1);
    assert_eq!(cluster.run(10), [1; 10]);
    let reason = cluster.reason();
    assert!(
        reason.contains(
            "a worker gives 100: 5.5 workers, of which no more can work for it at once than 1.0 workers"
        ),
        "{reason}"
    );
}

/// The next epoch of a job begins with what limited the one before it.
#[test]
fn a_shared_bottleneck_is_known_in_the_next_epoch() {
    let mut cluster = Cluster::new(1, vec![job(1, 100.0, 2000.0)]);
    cluster.jobs[0].store = 220.0;
    let first = cluster.run(20);
    assert!(first.iter().any(|n| *n > 3) && first[19] == 3, "{first:?}");
    let mut next = job(2, 100.0, 2000.0);
    (next.store, next.sample.job) = (220.0, "job-1".into());
    cluster.jobs = vec![next];
    assert_eq!(cluster.run(20), [3; 20]);
    // Another job has not met that store.
    let mut other = job(3, 100.0, 2000.0);
    other.store = 220.0;
    cluster.jobs = vec![other];
    assert!(cluster.run(5).iter().any(|n| *n > 3));
}

/// A notebook that has opened a reader and takes nothing keeps the workers of no other job.
#[test]
fn a_reader_that_asks_for_nothing_holds_no_workers() {
    let idle = |seconds: f64| {
        let mut job = job(2, 0.0, 0.0);
        job.sample.readers_idle_s = seconds;
        job
    };
    let mut cluster = Cluster::new(8, vec![job(1, 100.0, 750.0), idle(0.0)]);
    cluster.run(3);
    cluster.jobs = vec![idle(15.0)];
    assert_eq!(cluster.run(10)[9], 9, "it may still show what it needs");
    cluster.jobs = vec![idle(60.0)];
    assert_eq!(cluster.run(10)[9], 1);
}

/// Rows that come in every third window are measured over the three.
#[test]
fn rare_rows_are_measured_over_all_windows_since_the_last_ones() {
    let mut scaling = ScalingLoop::new(ScalingSettings::default());
    let mut sample = JobSample { iteration: 1, job: "rare".into(), workers: 1, ..JobSample::default() };
    let mut targets = Vec::new();
    for window in 1..=12u64 {
        if window % 3 == 0 {
            // A row takes 15 s of a worker, and its reader could take two in this time.
            sample.rows += 1;
            sample.busy_s += 15.0;
            let rows = sample.rows;
            sample.readers = [(7, (rows, 7.5 * rows as f64, 7.5 * rows as f64))].into();
        }
        let at = Duration::from_secs(5 * window);
        let jobs = vec![sample.clone()];
        targets
            .push(scaling.apply(ScalingEvent::Sampled { at, workers: 1, threads_busy: None, jobs }).workers);
    }
    assert_eq!(targets[2..], [2; 10]);
    assert!(
        scaling.target().reason.contains("(its readers wait 50 % of their time)"),
        "{}",
        scaling.target().reason
    );
}
