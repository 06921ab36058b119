//! Waits that end as their settings say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use caju_client::{Client, ClientConfig, ReaderEvent};
use caju_dispatcher::{Bound, Catalog, Definition, Dispatcher, DispatcherConfig};
use caju_pipeline::LearntBoundaries;
use caju_runtime::IsolatedThreads;
use caju_types::{ErrorKind, Result};
use serde_json::json;

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

/// A catalog whose sources never answer.
struct Silent;

#[async_trait::async_trait]
impl Catalog for Silent {
    async fn bind(&self, _: &Definition, _: Option<SchemaRef>) -> Result<Bound> {
        std::future::pending().await
    }

    async fn with_boundaries(&self, definition: &Definition, _: &[LearntBoundaries]) -> Result<Definition> {
        Ok(definition.clone())
    }

    fn threads(&self) -> IsolatedThreads {
        IsolatedThreads::new("definition", 2, TEST_TIMEOUT, 8 << 20)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dispatcher_that_does_not_open_an_epoch_is_given_up_after_the_open_timeout() {
    let dispatcher = Dispatcher::start(DispatcherConfig::default(), Arc::new(Silent)).await.unwrap();
    for open_timeout in [0, 2] {
        let config = ClientConfig {
            connect_timeout: Duration::from_millis(100),
            open_timeout: Duration::from_secs(open_timeout),
            ..ClientConfig::default()
        };
        let client = Client::connect(dispatcher.address(), config).await.unwrap();
        let opened = client.read(request(&range(10, &[]), ""));
        let e = tokio::time::timeout(TEST_TIMEOUT, opened).await.unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        // A call that is answered at once may take 2 s.
        let says = format!("did not answer within {}s", open_timeout + 2);
        assert!(e.message().contains(&says), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_drains_keeps_a_task_for_the_drain_linger() {
    let short = [Duration::from_millis(10), Duration::from_secs(2)];
    for drain_linger in short {
        let mut cluster = Cluster::start(0).await;
        cluster.add(|c| c.drain_linger = drain_linger).await;
        // A reader whose process dies in the middle of the epoch.
        let client = tokio::runtime::Runtime::new().unwrap();
        let address = cluster.address();
        let reader = client.spawn(async move {
            let client = Client::connect(&address, ClientConfig::default()).await.unwrap();
            let mut reader = client.read(request(&range(100_000_000, &[]), "job")).await.unwrap();
            reader.next().await.unwrap().unwrap();
            std::mem::forget(reader);
        });
        reader.await.unwrap();
        client.shutdown_background();
        let worker = cluster.workers.remove(0);
        assert_eq!(worker.tasks().len(), 1);
        let began = Instant::now();
        worker.drain(TEST_TIMEOUT).await;
        let took = began.elapsed();
        assert!(drain_linger <= took && took < drain_linger + Duration::from_secs(10), "{took:?}");
    }
}

/// `--reader-idle-timeout`: a reader whose user takes nothing is cut off, and gets all rows all the same. A reader that waits for
/// rows is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_wants_no_more_rows_is_cut_off_after_the_reader_idle_timeout() {
    let mut cluster = Cluster::start(0).await;
    cluster.add(|c| c.reader_idle_timeout = Duration::from_millis(200)).await;
    let (lost, mut reasons) = tokio::sync::watch::channel(String::new());
    let on_event = move |event: &ReaderEvent| {
        if let ReaderEvent::TaskLost { reason, .. } = event {
            lost.send_replace(reason.clone());
        }
    };
    let client = cluster.client_with(|c| c.on_event = Some(Arc::new(on_event))).await;
    let slow = range(300, &[json!({"sleep": {"per_batch": "500ms"}})]);
    let waited_for = drain(&mut client.read(request(&slow, "slow")).await.unwrap()).await.unwrap();
    assert_once(waited_for, 300);
    assert_eq!(*reasons.borrow_and_update(), "");
    // More than fits the reader's window, which is a MiB at least, and the worker's buffer.
    let mut reader = client.read(request(&range(300_000, &[json!({"batch": 1000})]), "idle")).await.unwrap();
    let first = ids(&reader.next().await.unwrap().unwrap().batch);
    assert_eq!(first.len(), 1000);
    let cut_off = tokio::time::timeout(TEST_TIMEOUT, reasons.changed());
    cut_off.await.expect("the connection is closed").unwrap();
    let reason = reasons.borrow().clone();
    assert!(
        reason.contains("has wanted no more rows within the reader idle timeout of 200.0 ms"),
        "{reason}"
    );
    let others = drain(&mut reader).await.unwrap();
    assert_once(std::iter::once(first).chain(others), 300_000);
}

/// A worker whose dispatcher is away reports a failure for the time that is set before readers get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_reaches_readers_although_the_dispatcher_is_away() {
    for failure_report_timeout in [Duration::from_millis(10), Duration::from_secs(3)] {
        let mut cluster = Cluster::start(0).await;
        cluster.add(|c| c.failure_report_timeout = failure_report_timeout).await;
        let client = cluster.client().await;
        let id = "case when id < 3000 then id else cast(concat('x', cast(id as varchar)) as bigint) end";
        let steps = [json!({"sleep": {"per_row": "1ms"}}), json!({"map": {"id": id}})];
        let mut reader = client.read(request(&range(5_000, &steps), "")).await.unwrap();
        reader.next().await.unwrap().unwrap();
        let Cluster { dispatcher, workers, .. } = cluster;
        let began = Instant::now();
        dispatcher.shutdown().await;
        let e = drain(&mut reader).await.unwrap_err();
        let took = began.elapsed();
        assert!(e.message().contains("map"), "{e}");
        assert!(took >= failure_report_timeout, "{took:?}");
        assert!(took < failure_report_timeout + Duration::from_secs(20), "{took:?}");
        drop(workers);
    }
}
