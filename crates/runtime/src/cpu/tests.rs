//! Closures run in turn, whatever panics.

use std::time::Instant;

use super::*;

#[tokio::test]
async fn runs_and_survives_panics() {
    let pool = CpuPool::new(2).unwrap();
    assert_eq!(pool.run(|| 6 * 7).await.unwrap(), 42);
    let e = pool.run(|| -> u32 { panic!("boom") }).await.unwrap_err();
    assert!(e.message().contains("boom"));
    assert_eq!(pool.run(|| 1).await.unwrap(), 1);
}

/// The first job has queued its closures before the others come.
#[test]
fn jobs_take_turns() {
    let (mut state, normal) = (queues(), JobPriority::default());
    for job in ["a", "a", "a", "b", "b", "c"] {
        state.push(&Arc::from(job), normal, Box::new(|| ()));
    }
    let mut order = Vec::new();
    while let Some(job) = state.next() {
        let taken = state.take(&job).unwrap();
        state.ended(&taken, Duration::from_millis(1));
        order.push(job.to_string());
    }
    assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
}

/// The closures of one job run in the order of their submission, and those of others with them: one thread runs all.
#[tokio::test]
async fn all_closures_of_all_jobs_run() {
    let pool = CpuPool::new(1).unwrap();
    let (release, held) = crossbeam_channel::bounded::<()>(0);
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = pool.run(move || held.recv().is_ok());
    let queued: Vec<_> = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
        .into_iter()
        .map(|of| {
            let order = Arc::clone(&order);
            pool.of_job(of.0).run(move || order.lock().push(of))
        })
        .collect();
    drop(release);
    assert!(!first.await.unwrap());
    futures::future::join_all(queued).await;
    let mut found = order.lock().clone();
    found.sort_by_key(|of| of.0);
    assert_eq!(found, [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]);
}

/// The queues of a pool that has no threads.
fn queues() -> queues::State {
    Shared::new(1).state.into_inner()
}

/// The jobs that one thread serves first, each with the time that its closures take. All of them always have closures waiting.
fn served(jobs: &[(&'static str, JobPriority, u64)], count: usize) -> Vec<&'static str> {
    let mut state = queues();
    for (job, priority, _) in jobs {
        (0..count).for_each(|_| state.push(&Arc::from(*job), *priority, Box::new(|| ())));
    }
    let mut next = || {
        let job = state.next().unwrap();
        let (name, _, ms) = jobs.iter().find(|(name, ..)| **name == *job).unwrap();
        let taken = state.take(&job).unwrap();
        state.ended(&taken, Duration::from_millis(*ms));
        *name
    };
    (0..count).map(|_| next()).collect()
}

fn count(order: &[&str], job: &str) -> usize {
    order.iter().filter(|of| **of == job).count()
}

#[test]
fn jobs_get_thread_time_by_priority_and_weight() {
    let normal = JobPriority::default();
    let heavy = JobPriority { weight_milli: 3000, ..normal };
    let (urgent, most) = (JobPriority { level: 1, ..normal }, JobPriority { level: i32::MAX, ..normal });
    let least = JobPriority { level: i32::MIN, ..normal };
    for (one, other, of_one, of_both) in
        [(normal, normal, 20, 40), (heavy, normal, 30, 40), (urgent, normal, 32, 34), (most, least, 510, 512)]
    {
        let found = count(&served(&[("one", one, 1), ("other", other, 1)], of_both), "one");
        assert!(found.abs_diff(of_one) <= 1, "{found} of {of_both} instead of {of_one}");
    }
}

/// A job whose closures take long does not get the threads of one whose closures are short.
#[test]
fn jobs_get_equal_times_and_not_equal_counts() {
    let normal = JobPriority::default();
    let order = served(&[("slow", normal, 20), ("fast", normal, 1)], 210);
    assert!(count(&order, "slow").abs_diff(10) <= 1, "{order:?}");
}

/// A job that comes back is not ahead of those that worked meanwhile, and nothing is remembered of jobs that are gone.
#[test]
fn a_job_that_comes_back_makes_up_for_nothing() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let [early, late] = ["early", "late"].map(Arc::<str>::from);
    let push = |state: &mut queues::State, job| state.push(job, normal, Box::new(|| ()));
    let serve = |state: &mut queues::State| {
        let job = state.next().unwrap();
        let taken = state.take(&job).unwrap();
        state.ended(&taken, Duration::from_millis(10));
        job
    };
    push(&mut state, &early);
    (0..12).for_each(|_| push(&mut state, &late));
    (0..10).for_each(|_| drop(serve(&mut state)));
    (0..4).for_each(|_| push(&mut state, &early));
    let order: Vec<_> = (0..4).map(|_| serve(&mut state)).collect();
    assert_eq!(order.iter().filter(|job| **job == early).count(), 2, "{order:?}");
    while state.next().is_some() {
        serve(&mut state);
    }
    assert!(state.queues.is_empty() && state.virtual_s == 0.0, "{:?}", state.queues);
}

/// A job that has few closures for a long time always has one at work. Then it has many, and gets its share and no more.
#[test]
fn a_job_that_wanted_little_makes_up_for_nothing() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let [frugal, greedy] = ["frugal", "greedy"].map(Arc::<str>::from);
    let push = |state: &mut queues::State, job| state.push(job, normal, Box::new(|| ()));
    (0..4000).for_each(|_| push(&mut state, &greedy));
    let (took, mut before) = (Duration::from_millis(10), None);
    for _ in 0..1000 {
        push(&mut state, &frugal);
        let now = state.take(&frugal).unwrap();
        // It is never without a closure.
        before.replace(now).iter().for_each(|ended| state.ended(ended, took));
        for _ in 0..3 {
            let taken = state.take(&greedy).unwrap();
            state.ended(&taken, took);
        }
    }
    (0..100).for_each(|_| push(&mut state, &frugal));
    let mut next = || {
        let job = state.next().unwrap();
        let taken = state.take(&job).unwrap();
        state.ended(&taken, took);
        job
    };
    let order: Vec<_> = (0..40).map(|_| next()).collect();
    let of_frugal = order.iter().filter(|job| **job == frugal).count();
    assert!((18..=26).contains(&of_frugal), "{of_frugal} of 40");
}

/// Spare threads serve a job of a low priority while the threads stand still. Another one that has no closure waiting for a moment
/// is not put behind all that was charged for that.
#[test]
fn what_spare_threads_serve_does_not_put_others_behind() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let low = JobPriority { level: -2, ..normal };
    let [backlogged, brief, lowest] = ["backlogged", "brief", "lowest"].map(Arc::<str>::from);
    let push = |state: &mut queues::State, job, priority| state.push(job, priority, Box::new(|| ()));
    (0..200).for_each(|_| push(&mut state, &backlogged, normal));
    let stalled = state.take(&backlogged).unwrap();
    for _ in 0..32 {
        push(&mut state, &lowest, low);
        assert_eq!(state.starved(), Some(Arc::clone(&lowest)));
        let taken = state.take(&lowest).unwrap();
        state.ended(&taken, Duration::from_millis(20));
    }
    state.ended(&stalled, Duration::from_millis(20));
    let mut of_brief = 0;
    for _ in 0..40 {
        if state.queues.get(&brief).is_none_or(|queue| queue.waiting.is_empty()) {
            push(&mut state, &brief, normal);
        }
        let job = state.next().unwrap();
        let taken = state.take(&job).unwrap();
        of_brief += usize::from(job == brief);
        state.ended(&taken, Duration::from_millis(10));
    }
    assert!((15..=25).contains(&of_brief), "{of_brief} of 40");
}

/// The first closures of a job took long, and later ones do not. A job of a higher priority that comes is served at once.
#[test]
fn an_urgent_job_does_not_wait_because_the_first_closures_of_another_one_took_long() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let urgent = JobPriority { level: 2, ..normal };
    let [old, new] = ["old", "new"].map(Arc::<str>::from);
    (0..1000).for_each(|_| state.push(&old, normal, Box::new(|| ())));
    let first: Vec<_> = (0..8).map(|_| state.take(&old).unwrap()).collect();
    first.iter().for_each(|taken| state.ended(taken, Duration::from_secs(5)));
    for _ in 0..100 {
        let taken = state.take(&old).unwrap();
        state.ended(&taken, Duration::from_millis(5));
    }
    (0..12).for_each(|_| state.push(&new, urgent, Box::new(|| ())));
    let mut next = || {
        let job = state.next().unwrap();
        let taken = state.take(&job).unwrap();
        state.ended(&taken, Duration::from_millis(5));
        job
    };
    let order: Vec<_> = (0..12).map(|_| next()).collect();
    assert!(order.iter().filter(|job| **job == new).count() >= 11, "{order:?}");
}

/// What jobs are ahead of each other is a time, whatever their shares are: it is not paid back 256 times when a job of a higher
/// priority is gone.
#[test]
fn a_lead_is_kept_when_the_highest_priority_changes() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let urgent = JobPriority { level: 2, ..normal };
    let [slow, fast, high] = ["slow", "fast", "high"].map(Arc::<str>::from);
    state.push(&high, urgent, Box::new(|| ()));
    for job in [&slow, &fast] {
        (0..1000).for_each(|_| state.push(job, normal, Box::new(|| ())));
    }
    let of_high = state.take(&high).unwrap();
    // One closure of the slow job, while the urgent one is there.
    let of_slow = state.take(&slow).unwrap();
    state.ended(&of_slow, Duration::from_secs(1));
    state.ended(&of_high, Duration::from_millis(5));
    let mut waited = Duration::ZERO;
    loop {
        let job = state.next().unwrap();
        if job == slow {
            break;
        }
        let taken = state.take(&job).unwrap();
        state.ended(&taken, Duration::from_millis(5));
        waited += Duration::from_millis(5);
    }
    assert!(waited < Duration::from_millis(1100), "{waited:?} for the second that it had");
}

/// How long the closures of a new job take is not known. It gets no more threads than one whose closures take as long.
#[test]
fn a_new_job_does_not_get_all_threads_at_once() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let [old, new] = ["old", "new"].map(Arc::<str>::from);
    (0..100).for_each(|_| state.push(&old, normal, Box::new(|| ())));
    for _ in 0..10 {
        let taken = state.take(&old).unwrap();
        state.ended(&taken, Duration::from_millis(5));
    }
    (0..100).for_each(|_| state.push(&new, normal, Box::new(|| ())));
    let taken: Vec<_> =
        (0..16).map(|_| state.next().and_then(|job| state.take(&job).map(|_| job)).unwrap()).collect();
    assert!(taken.iter().filter(|job| **job == new).count() <= 10, "{taken:?}");
}

/// A job that has had more than its share, and stops for a moment, is still ahead when it comes back.
#[test]
fn a_job_that_stops_for_a_moment_gets_no_more_than_its_share() {
    let (mut state, normal) = (queues(), JobPriority::default());
    let [brief, long] = ["brief", "long"].map(Arc::<str>::from);
    (0..100).for_each(|_| state.push(&long, normal, Box::new(|| ())));
    let mut of_brief = 0;
    for _ in 0..40 {
        // It has no second closure while the first one runs.
        if !state.queues.contains_key(&brief) || state.queues[&brief].waiting.is_empty() {
            state.push(&brief, normal, Box::new(|| ()));
        }
        let job = state.next().unwrap();
        let taken = state.take(&job).unwrap();
        let is_brief = job == brief;
        of_brief += usize::from(is_brief);
        state.ended(&taken, Duration::from_millis(if is_brief { 30 } else { 10 }));
    }
    assert!((8..=11).contains(&of_brief), "a fourth of the closures takes half of the time: {of_brief}");
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
