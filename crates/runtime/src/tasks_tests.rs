use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::sync::{Notify, oneshot};

use super::*;

/// An observer, and the errors that it got.
fn observer() -> (impl FnOnce(Error) + Send + 'static, oneshot::Receiver<Error>) {
    let (tx, rx) = oneshot::channel();
    (move |e| drop(tx.send(e)), rx)
}

#[tokio::test]
async fn awaiting_a_task_gives_its_result_or_says_what_became_of_it() {
    let tasks = Tasks::new();
    assert_eq!(tasks.spawn("adding", async { 1 + 1 }).await.unwrap(), 2);
    let e = tasks.spawn("reader of a.parquet", async { panic!("boom") }).await.unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "reader of a.parquet panicked: boom"));
    let task = tasks.spawn("a reader", std::future::pending::<()>());
    task.abort();
    let e = task.await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Internal);
    assert!(e.message().contains("a reader was aborted"), "{e}");
    let task = tasks.spawn("a reader", std::future::pending::<()>());
    tasks.stop();
    assert_eq!(task.await.unwrap_err().kind(), ErrorKind::Cancelled);
}

#[tokio::test]
async fn dropping_a_handle_aborts_its_task() {
    struct OnDrop(Option<oneshot::Sender<()>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.take().map(|tx| tx.send(()));
        }
    }
    let tasks = Tasks::new();
    let (tx, rx) = oneshot::channel();
    let gone = OnDrop(Some(tx));
    let task = tasks.spawn("waiting", async move {
        let _gone = gone;
        std::future::pending::<()>().await;
    });
    drop(task);
    rx.await.unwrap();
    assert!(!tasks.is_stopped());
}

#[tokio::test]
async fn a_graceful_task_goes_on_without_its_handle_and_after_the_stop() {
    let tasks = Tasks::new();
    let (go, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (theirs, notified) = (Arc::clone(&go), Arc::clone(&done));
    let task = tasks.spawn_graceful("writing a lease", async move {
        theirs.notified().await;
        notified.notify_one();
    });
    drop(task);
    tasks.stop();
    go.notify_one();
    done.notified().await;
    assert!(tasks.shutdown(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn background_work_reports_its_observer_how_it_failed() {
    let tasks = Tasks::new();
    let (on_failure, reported) = observer();
    tasks.background("listing", on_failure, async { Err(Error::data_loss("a.parquet: damaged")) });
    assert_eq!(reported.await.unwrap().kind(), ErrorKind::DataLoss);
    let (on_failure, reported) = observer();
    tasks.background("listing", on_failure, async { panic!("boom") });
    assert_eq!(reported.await.unwrap().message(), "listing panicked: boom");
    let (on_failure, reported) = observer();
    tasks.background_graceful("listing", on_failure, async { panic!("boom") });
    assert_eq!(reported.await.unwrap().message(), "listing panicked: boom");
    let (on_failure, reported) = observer();
    tasks.background("listing", on_failure, async { Ok(()) });
    assert!(reported.await.is_err(), "work that ends well reports nothing");
    let (on_failure, reported) = observer();
    tasks.background("listing", on_failure, std::future::pending());
    tasks.stop();
    assert_eq!(reported.await.unwrap().kind(), ErrorKind::Cancelled);
}

#[test]
fn background_work_that_dies_with_its_runtime_is_a_failure_too() {
    let (on_failure, mut reported) = observer();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = Tasks::new();
    let of = tasks.clone();
    runtime.block_on(async move { of.background("listing", on_failure, std::future::pending()) });
    drop(runtime);
    let e = reported.try_recv().unwrap();
    assert!(e.message().contains("listing was aborted"), "{e}");
}

/// A process that ends stops its groups and then drops its runtime, which may come before the tasks observe the stop signal.
#[test]
fn tasks_that_die_with_their_runtime_after_the_stop_signal_were_stopped() {
    let ends: [fn(&Tasks, _); 2] = [
        |tasks, on_failure: Box<dyn FnOnce(Error) + Send>| {
            tasks.background("listing", on_failure, std::future::pending());
        },
        |tasks, on_failure| tasks.background_graceful("listing", on_failure, std::future::pending()),
    ];
    for start in ends {
        let (on_failure, mut reported) = observer();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = Tasks::new();
        let of = tasks.child();
        let mut waiting = None;
        runtime.block_on(async {
            start(&of, Box::new(on_failure));
            waiting = Some(of.spawn_graceful("counting", std::future::pending::<()>()));
        });
        tasks.stop();
        drop(runtime);
        let reported = reported.try_recv().unwrap();
        assert_eq!((reported.kind(), reported.message()), (ErrorKind::Cancelled, "listing was stopped"));
        let ended = waiting.unwrap().now_or_never().unwrap().unwrap_err();
        assert_eq!((ended.kind(), ended.message()), (ErrorKind::Cancelled, "counting was stopped"));
    }
}

#[tokio::test]
async fn blocking_work_that_panics_is_an_error() {
    assert_eq!(blocking("adding", || 1 + 1).await.unwrap(), 2);
    let e = blocking("decoding a part", || panic!("bit width")).await.unwrap_err();
    assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "decoding a part panicked: bit width"));
}

/// How a task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    Failed,
    Panicked,
    Stopped,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each observer gets exactly the failure of its own task.
    #[test]
    fn every_failure_is_reported_once(
        ends in proptest::collection::vec(
            prop_oneof![Just(End::Well), Just(End::Failed), Just(End::Panicked), Just(End::Stopped)], 1..12),
        threads in 1usize..4,
    ) {
        let reported: Arc<Mutex<Vec<(usize, ErrorKind)>>> = Arc::default();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_time().build().unwrap();
        let ended = runtime.block_on(async {
            let tasks = Tasks::new();
            for (i, end) in ends.iter().copied().enumerate() {
                let reported = Arc::clone(&reported);
                let on_failure = move |e: Error| reported.lock().push((i, e.kind()));
                let group = tasks.child();
                let of = group.clone();
                group.background(format!("task {i}"), on_failure, async move {
                    tokio::task::yield_now().await;
                    match end {
                        End::Well => Ok(()),
                        End::Failed => Err(Error::data_loss("damaged")),
                        End::Panicked => panic!("boom"),
                        End::Stopped => {
                            of.stop();
                            std::future::pending().await
                        }
                    }
                });
            }
            tasks.tracker.close();
            tokio::time::timeout(Duration::from_secs(60), tasks.tracker.wait()).await
        });
        prop_assert!(ended.is_ok());
        let mut reported = reported.lock().clone();
        reported.sort_unstable_by_key(|(i, _)| *i);
        let want: Vec<_> = ends.iter().copied().enumerate().filter_map(|(i, end)| match end {
            End::Well => None,
            End::Failed => Some((i, ErrorKind::DataLoss)),
            End::Panicked => Some((i, ErrorKind::Internal)),
            End::Stopped => Some((i, ErrorKind::Cancelled)),
        }).collect();
        prop_assert_eq!(reported, want);
    }
}
