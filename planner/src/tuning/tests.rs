//! The rule on models of workers, whose optimum is known.

use proptest::prelude::*;

use super::buffers::level;
use super::*;

/// A pipeline, and what the worker gives it. Times are seconds per row.
#[derive(Debug, Clone, Copy)]
struct Model {
    cores: f64,
    /// CPU time of the row stages, and the time for which a row holds a thread besides.
    cpu_s: f64,
    wait_s: f64,
    /// Whether the row stages compute one at a time, as functions that hold one lock do.
    is_locked: bool,
    /// The time for which a reader waits for the store, and the most rows that the store gives per second.
    read_s: f64,
    store: f64,
    /// Rows per second that the consumers take.
    consumers: f64,
}

const COMPUTES: Model = Model {
    cores: 2.0,
    cpu_s: 1e-3,
    wait_s: 0.0,
    is_locked: false,
    read_s: 1e-4,
    store: f64::INFINITY,
    consumers: f64::INFINITY,
};

impl Model {
    /// The linear program: the largest rate that any allocation of cores, threads and readers allows.
    fn optimum(&self, threads: f64, readers: f64) -> f64 {
        let lock = if self.is_locked { 1.0 / (self.cpu_s + self.wait_s) } else { f64::INFINITY };
        [
            self.cores / self.cpu_s,
            threads / (self.cpu_s + self.wait_s),
            readers / self.read_s,
            self.store,
            self.consumers,
            lock,
        ]
        .into_iter()
        .fold(f64::INFINITY, f64::min)
    }

    /// A step of half a second with these settings. Where a stage is not the limit, those before it wait for it.
    fn sample(&self, threads: usize, readers: usize, noise: f64) -> TuningSample {
        let (threads, readers) = (threads as f64, readers as f64);
        let rate = self.optimum(threads, readers);
        let is_limit = |limit: f64| rate >= limit * 0.999;
        // Threads are held while there are rows for them: also where they wait for a core, or for the lock.
        let is_starved = is_limit(readers / self.read_s) || is_limit(self.store) || is_limit(self.consumers);
        let held = if is_starved { rate * (self.cpu_s + self.wait_s) } else { threads };
        // A thread that holds a row and does not wait wants a core.
        let wanted = if self.is_locked { rate * self.cpu_s } else { held - rate * self.wait_s };
        let reading = if is_limit(self.store) { readers } else { (rate * self.read_s).min(readers) };
        let job = TunedJob {
            job: "job".into(),
            is_whole: true,
            rows: rate * 0.5 * (1.0 + noise),
            reading,
            blocked: readers - reading,
            consumer_wait: if is_limit(self.consumers) { 0.8 } else { 0.0 },
        };
        TuningSample {
            seconds: 0.5,
            cores: self.cores,
            wanted_cores: (rate * self.cpu_s).min(self.cores),
            threads: Some(ThreadSample { busy: held.min(threads), wanted: wanted.min(held) }),
            jobs: vec![job],
            queues: Vec::new(),
        }
    }
}

const BOUNDS: TuningBounds = TuningBounds {
    threads: Some((2, 32)),
    readers: Some((3, 42)),
    buffers: BufferBounds { limit_bytes: 1 << 30, may_grow: true },
};

/// What a worker did in some steps.
#[derive(Debug)]
struct Run {
    /// Threads and readers at the end.
    settings: (usize, usize),
    /// How often something changed.
    changes: usize,
    /// Rows relative to the optimum in the last quarter of the steps.
    reached: f64,
    reasons: Vec<String>,
}

fn run(model: Model, bounds: TuningBounds, steps: usize, mut noise: impl FnMut() -> f64) -> Run {
    let mut tuner = Tuner::new(bounds);
    let (mut threads, mut readers) = (2, 3);
    let (mut changes, mut rows, mut steps_counted) = (0, 0.0, 0);
    for step in 0..steps {
        let sample = model.sample(threads, readers, noise());
        if step >= steps - steps / 4 {
            rows += model.optimum(threads as f64, readers as f64);
            steps_counted += 1;
        }
        let change = tuner.step(&sample);
        changes += usize::from(change.threads.is_some()) + change.readers.len();
        threads = change.threads.unwrap_or(threads);
        readers = change.readers.get("job").copied().unwrap_or(readers);
        assert!((2..=32).contains(&threads) && (3..=42).contains(&readers), "{threads} and {readers}");
    }
    let reached = rows / f64::from(steps_counted) / model.optimum(32.0, 42.0);
    let reasons = tuner.settings().into_iter().map(|s| s.reason).collect();
    Run { settings: (threads, readers), changes, reached, reasons }
}

fn quiet() -> f64 {
    0.0
}

#[test]
fn a_pipeline_that_only_computes_stays_as_it_is() {
    for cpu_s in [1e-5, 1e-3, 0.2] {
        let ran = run(Model { cpu_s, read_s: cpu_s / 10.0, ..COMPUTES }, BOUNDS, 400, quiet);
        assert_eq!((ran.settings, ran.changes), ((2, 3), 0), "{ran:?}");
        assert!(ran.reached > 0.999);
    }
}

#[test]
fn threads_grow_while_rows_wait() {
    // 5 ms of waiting and 0.1 ms of computing: two threads reach 2 % of what the cores allow, and 32 reach 31 %.
    let ran = run(Model { cpu_s: 1e-4, wait_s: 5e-3, read_s: 1e-5, ..COMPUTES }, BOUNDS, 40, quiet);
    assert_eq!(ran.settings, (32, 3), "{ran:?}");
    assert!(ran.reached > 0.999 && ran.reasons[0].contains("more rows"), "{ran:?}");
    // No more than keep the cores busy.
    let ran = run(Model { cpu_s: 1e-3, wait_s: 4e-3, read_s: 1e-5, ..COMPUTES }, BOUNDS, 40, quiet);
    assert!((10..=12).contains(&ran.settings.0) && ran.reached > 0.95, "{ran:?}");
}

/// Functions that hold one lock wait, and more threads bring nothing.
#[test]
fn threads_that_bring_nothing_go_and_are_seldom_tried_again() {
    let ran = run(Model { cpu_s: 1e-4, wait_s: 5e-3, is_locked: true, ..COMPUTES }, BOUNDS, 1200, quiet);
    assert_eq!(ran.settings.0, 2, "{ran:?}");
    assert!(ran.reasons[0].contains("too few"), "{ran:?}");
    // A trial is two changes, and up to a minute (120 steps) passes between two.
    assert!(ran.changes <= 2 * (4 + 1200 / 120), "{ran:?}");
}

#[test]
fn more_splits_are_read_while_the_store_is_slow() {
    let slow = Model { cpu_s: 1e-5, read_s: 5e-3, ..COMPUTES };
    let ran = run(slow, BOUNDS, 60, quiet);
    assert_eq!(ran.settings, (2, 42), "{ran:?}");
    // With the bandwidth of eight readers, no more than twice as many are read.
    let ran = run(Model { store: 1600.0, ..slow }, BOUNDS, 60, quiet);
    assert!((8..=16).contains(&ran.settings.1) && ran.reached > 0.95, "{ran:?}");
    // A consumer that is the limit needs no more readers.
    let ran = run(Model { consumers: 500.0, ..slow }, BOUNDS, 60, quiet);
    assert_eq!((ran.settings, ran.changes), ((2, 3), 0), "{ran:?}");
}

#[test]
fn numbers_given_by_hand_stay() {
    let waits = Model { cpu_s: 1e-5, wait_s: 5e-3, read_s: 5e-3, ..COMPUTES };
    let ran = run(waits, TuningBounds { threads: None, ..BOUNDS }, 60, quiet);
    assert_eq!(ran.settings.0, 2);
    let ran = run(waits, TuningBounds { readers: None, ..BOUNDS }, 60, quiet);
    assert_eq!(ran.settings.1, 3);
    assert_eq!(Tuner::new(TuningBounds { readers: None, ..BOUNDS }).readers_of("job"), None);
}

/// Threads and readers must both grow, and neither alone brings anything.
#[test]
fn two_limits_are_raised_together() {
    let both = Model { cpu_s: 1e-5, wait_s: 5e-3, read_s: 3e-3, ..COMPUTES };
    let ran = run(both, BOUNDS, 120, quiet);
    assert!(ran.reached > 0.85, "{ran:?}");
    // 2 threads and 3 readers make the same 400 rows per second.
    let ran = run(Model { read_s: 7.5e-3, ..both }, BOUNDS, 120, quiet);
    assert!(ran.reached > 0.85, "{ran:?}");
}

/// Two threads that wait for a quarter of their time leave a quarter of the cores idle, and a third thread takes it.
#[test]
fn threads_that_wait_for_some_of_their_time_are_too_few() {
    let some = Model { cpu_s: 4e-3, wait_s: 1.27e-3, read_s: 17.5e-3, ..COMPUTES };
    let ran = run(some, BOUNDS, 120, quiet);
    assert!(ran.settings.0 == 3 && ran.reached > 0.95, "{ran:?}");
}

#[test]
fn a_job_that_comes_back_has_its_number() {
    let mut tuner = Tuner::new(BOUNDS);
    let slow = Model { cpu_s: 1e-5, read_s: 5e-3, ..COMPUTES };
    let mut readers = 3;
    for _ in 0..60 {
        let change = tuner.step(&slow.sample(2, readers, 0.0));
        readers = change.readers.get("job").copied().unwrap_or(readers);
    }
    for _ in 0..100 {
        tuner.step(&TuningSample { seconds: 0.5, cores: 2.0, ..TuningSample::default() });
    }
    assert_eq!((tuner.readers_of("job"), tuner.readers_of("other")), (Some(42), Some(3)));
    for _ in 0..2000 {
        tuner.step(&TuningSample { seconds: 0.5, cores: 2.0, ..TuningSample::default() });
    }
    assert_eq!(tuner.readers_of("job"), Some(3));
}

/// A queue between a producer and a consumer that wait for each other in turn, as long as it holds less than `burst` bytes.
fn bursts(tuner: &mut Tuner, queues: &mut [QueueSample], burst: usize, steps: usize) {
    for _ in 0..steps {
        let sample = TuningSample {
            seconds: 0.5,
            cores: 2.0,
            queues: queues
                .iter()
                .map(|q| {
                    let waits = if q.bound_bytes < burst { 0.2 } else { 0.0 };
                    QueueSample { full: waits, empty: waits, ..*q }
                })
                .collect(),
            ..TuningSample::default()
        };
        let change = tuner.step(&sample);
        for queue in queues.iter_mut() {
            queue.bound_bytes = change.queues.get(&queue.id).copied().unwrap_or(queue.bound_bytes);
        }
    }
}

fn queue(id: u64, bound_bytes: usize) -> QueueSample {
    QueueSample { id, bound_bytes, first_bytes: 64, full: 0.0, empty: 0.0 }
}

#[test]
fn queues_grow_for_bursts_within_their_memory() {
    let buffers = BufferBounds { limit_bytes: 1000, may_grow: true };
    let bounds = TuningBounds { buffers, ..TuningBounds::default() };
    let mut tuner = Tuner::new(bounds);
    let mut one = [queue(1, 64)];
    bursts(&mut tuner, &mut one, 200, 40);
    assert_eq!(one[0].bound_bytes, 256);
    bursts(&mut tuner, &mut one, 0, 400);
    assert_eq!(one[0].bound_bytes, 64, "the bursts are over");
    let mut tuner = Tuner::new(bounds);
    let mut many: Vec<_> = (0..4).map(|i| queue(i, 64)).collect();
    bursts(&mut tuner, &mut many, usize::MAX, 80);
    assert!(many.iter().all(|q| q.bound_bytes == 250), "{many:?}");
    let reason = &tuner.settings()[0].reason;
    assert!(reason.contains("fit in 1000 bytes"), "{reason}");
    // Given by hand: only a lack of memory lowers it.
    let fixed = BufferBounds { limit_bytes: 100, may_grow: false };
    let mut tuner = Tuner::new(TuningBounds { buffers: fixed, ..TuningBounds::default() });
    bursts(&mut tuner, &mut many[..1], usize::MAX, 20);
    assert_eq!(many[0].bound_bytes, 64);
    bursts(&mut tuner, &mut many[..2], usize::MAX, 20);
    assert_eq!((many[0].bound_bytes, many[1].bound_bytes), (50, 50));
}

proptest! {
    /// Whatever the pipeline: near the optimum after a while, although rates are off by some percent.
    #[test]
    fn the_optimum_is_nearly_reached(
        cpu_us in 1.0f64..5_000.0,
        wait_us in prop_oneof![Just(0.0), 10.0f64..20_000.0],
        read_us in 1.0f64..20_000.0,
        store in prop_oneof![Just(f64::INFINITY), 50.0f64..5_000.0],
        seed in any::<u32>(),
    ) {
        let mut state = seed;
        let noise = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (f64::from(state >> 8) / f64::from(1 << 24) - 0.5) * 0.06
        };
        let model = Model { cpu_s: cpu_us / 1e6, wait_s: wait_us / 1e6, read_s: read_us / 1e6, store, ..COMPUTES };
        let ran = run(model, BOUNDS, 400, noise);
        prop_assert!(ran.reached > 0.7, "{ran:?}");
    }

    /// Measurements of any kind never lead beyond the limits, and never panic.
    #[test]
    fn any_measurements_stay_within_the_limits(
        steps in prop::collection::vec(prop::collection::vec(-1e9f64..1e9, 10), 1..60),
    ) {
        let mut tuner = Tuner::new(BOUNDS);
        for s in steps {
            let job = TunedJob {
                job: if s[0] > 0.0 { "a".into() } else { "b".into() },
                is_whole: s[1] > 0.0, rows: s[2], reading: s[3], blocked: s[4], consumer_wait: s[5],
            };
            let change = tuner.step(&TuningSample {
                seconds: s[6].abs(), cores: s[7].abs(), wanted_cores: s[8],
                threads: Some(ThreadSample { busy: s[9], wanted: s[0] }),
                jobs: vec![job],
                queues: vec![QueueSample { full: s[1], empty: s[2], ..queue(1, 64) }],
            });
            prop_assert!(change.threads.is_none_or(|n| (2..=32).contains(&n)));
            prop_assert!(change.readers.values().all(|n| (3..=42).contains(n)));
            prop_assert!(change.queues.values().all(|bytes| *bytes <= 1 << 30));
        }
    }

    /// All queues together fit; nobody has more than he wants; who has less than he wants has as much as anybody.
    #[test]
    fn memory_is_divided_evenly(wants in prop::collection::vec(1usize..10_000, 1..20), limit in 20usize..50_000) {
        let level = level(wants.iter().copied(), limit);
        let bounds: Vec<usize> = wants.iter().map(|want| (*want).min(level)).collect();
        prop_assert!(bounds.iter().sum::<usize>() <= limit);
        let most = bounds.iter().max().copied().unwrap_or(0);
        prop_assert!(wants.iter().zip(&bounds).all(|(want, bound)| want == bound || *bound == most));
        let left = limit - bounds.iter().sum::<usize>();
        prop_assert!(bounds == wants || left < wants.len());
    }
}
