//! Code of users that panics while it reads: what it had not taken goes to others, and is never taken for read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use caju_client::{Reader, ReaderEvent};
use caju_types::Error;
use serde_json::json;

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

const ROWS: i64 = 20_000;

fn slow() -> serde_json::Value {
    range(ROWS as u64, &[json!({"sleep": {"per_row": "20us"}}), json!({"batch": 25})])
}

/// Reads the remaining rows of the epoch after a reader with `elements` has ended: with `b`, and with readers that join. While
/// a reader lives, others may end although it has rows in hand; these go to readers that join after it has ended.
async fn assert_others_get_the_rest(cluster: &Cluster, mut b: Reader, mut elements: Vec<Vec<i64>>) {
    elements.extend(drain(&mut b).await.unwrap());
    b.close().await;
    let client = cluster.client_with(|_| {}).await;
    let joining = async {
        while elements.iter().map(Vec::len).sum::<usize>() < ROWS as usize {
            let mut c = client.read(request(&slow(), "job")).await.unwrap();
            elements.extend(drain(&mut c).await.unwrap());
            c.close().await;
        }
    };
    let all = tokio::time::timeout(TEST_TIMEOUT, joining).await;
    assert!(all.is_ok(), "the rest comes to no reader");
    assert_once(elements, ROWS);
}

/// The error that a reader ends with. Its elements until then are added to `elements`.
async fn failure(reader: &mut Reader, elements: &mut Vec<Vec<i64>>) -> Error {
    let failing = async {
        loop {
            match reader.next().await {
                Ok(Some(element)) => elements.push(ids(&element.batch)),
                Ok(None) => panic!("the reader ended well"),
                Err(e) => return e,
            }
        }
    };
    let e = tokio::time::timeout(TEST_TIMEOUT, failing).await.expect("the reader must fail");
    assert!(reader.next().await.is_err(), "it stays broken");
    e
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_element_in_whose_hands_the_user_panics_goes_to_another_reader() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client_with(|_| {}).await;
    let mut a = client.read(request(&slow(), "job")).await.unwrap();
    let b = client.read(request(&slow(), "job")).await.unwrap();
    let mut elements = Vec::new();
    for _ in 0..5 {
        elements.push(ids(&a.next().await.unwrap().unwrap().batch));
    }
    let user = caju_runtime::caught("the user", async move {
        let element = a.next().await.unwrap().unwrap();
        assert!(element.batch.num_rows() == 0, "the user's code broke down");
    });
    assert!(user.await.unwrap_err().message().contains("the user's code broke down"));
    assert_others_get_the_rest(&cluster, b, elements).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_element_that_the_user_gives_back_goes_to_another_reader() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client_with(|_| {}).await;
    let mut a = client.read(request(&slow(), "job")).await.unwrap();
    let b = client.read(request(&slow(), "job")).await.unwrap();
    let mut elements = Vec::new();
    for _ in 0..5 {
        elements.push(ids(&a.next().await.unwrap().unwrap().batch));
    }
    assert!(a.next().await.unwrap().is_some());
    a.give_back();
    a.close().await;
    assert_others_get_the_rest(&cluster, b, elements).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_of_events_that_panics_ends_its_reader_and_loses_no_row() {
    let mut cluster = Cluster::start(2).await;
    let broken = cluster
        .client_with(|c| {
            c.dial_timeout = Duration::from_millis(200);
            c.on_event = Some(Arc::new(|e| {
                assert!(!matches!(e, ReaderEvent::TaskLost { .. }), "the listener broke down");
            }));
        })
        .await;
    let mut a = broken.read(request(&slow(), "job")).await.unwrap();
    let b = cluster.client_with(|_| {}).await.read(request(&slow(), "job")).await.unwrap();
    let mut elements = Vec::new();
    for _ in 0..3 {
        elements.push(ids(&a.next().await.unwrap().unwrap().batch));
    }
    cluster.workers.remove(0).kill();
    let e = failure(&mut a, &mut elements).await;
    assert!(e.message().contains("the listener of events panicked: the listener broke down"), "{e}");
    // Its session lives, so it reports what its user had taken, and the other reader gets the remaining rows.
    assert_others_get_the_rest(&cluster, b, elements).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_panics_when_a_task_is_opened_loses_no_row() {
    let mut cluster = Cluster::start(1).await;
    let broken = cluster
        .client_with(|c| {
            let opened = AtomicUsize::new(0);
            c.on_event = Some(Arc::new(move |e| {
                let is_second =
                    matches!(e, ReaderEvent::TaskOpened { .. }) && opened.fetch_add(1, Ordering::Relaxed) > 0;
                assert!(!is_second, "the listener broke down");
            }));
        })
        .await;
    let mut a = broken.read(request(&slow(), "job")).await.unwrap();
    let b = cluster.client_with(|_| {}).await.read(request(&slow(), "job")).await.unwrap();
    let mut elements = Vec::new();
    for _ in 0..3 {
        elements.push(ids(&a.next().await.unwrap().unwrap().batch));
    }
    // The second task that it opens is that of this worker.
    cluster.add(|_| {}).await;
    let e = failure(&mut a, &mut elements).await;
    assert!(e.message().contains("the listener broke down"), "{e}");
    assert_others_get_the_rest(&cluster, b, elements).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_element_above_the_readers_bound_is_refused() {
    let cluster = Cluster::start(1).await;
    let small = cluster.client_with(|c| c.max_frame_bytes = 4 << 10).await;
    let def = range(4000, &[json!({"batch": 1000})]);
    let mut reader = small.read(request(&def, "")).await.unwrap();
    let e = tokio::time::timeout(TEST_TIMEOUT, drain(&mut reader)).await.unwrap().unwrap_err();
    assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted, "{e}");
    for part in ["more than the bound of 4096 bytes", "--max-frame"] {
        assert!(e.message().contains(part), "{e}");
    }
    let large = cluster.client_with(|c| c.max_frame_bytes = 64 << 10).await;
    let mut reader = large.read(request(&def, "")).await.unwrap();
    assert_once(drain(&mut reader).await.unwrap(), 4000);
}
