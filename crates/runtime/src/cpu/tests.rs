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
