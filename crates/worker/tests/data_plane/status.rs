//! What the status says of running epochs.

use caju_client::{Client, Consumer, ReadRequest};
use caju_proto::v1::{GetStatusResponse, JobStatus};
use serde_json::json;

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

/// Asks for the status until it is as wanted. Each question is a call, so this does not spin.
async fn status_until<T>(client: &Client, wanted: impl Fn(&GetStatusResponse) -> Option<T>) -> T {
    let asking = async {
        loop {
            let status = client.status().await.unwrap();
            if let Some(out) = wanted(&status) {
                return out;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, asking).await.expect("the status never was as wanted")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_how_far_readers_and_splits_are() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let def = range(20_000, &[json!({"batch": 10})]);
    let mut reader = client.read(request(&def, "train")).await.unwrap();
    let first = ids(&reader.next().await.unwrap().unwrap().batch);
    // The user takes nothing more: rows wait for it.
    let (job, worker) = status_until(&client, |s| {
        let job = s.jobs.first()?;
        let stuck = job.readers.first().is_some_and(|r| r.user_busy_s > 0.0 && r.rows_waiting > 0);
        stuck.then(|| (job.clone(), s.workers[0].clone()))
    })
    .await;
    assert_eq!(job.readers.len(), 1);
    let r = &job.readers[0];
    assert!(r.elements > 0 && r.rows >= r.elements && r.bytes >= 8 * r.rows, "{r:?}");
    assert!(!r.flight && r.consumer == 0 && r.elements_behind == 0, "{r:?}");
    let usage = worker.usage.unwrap();
    assert!(usage.rss_bytes > 1 << 20, "{usage:?}");
    let splits = job.splits.unwrap();
    assert!(splits.waiting + splits.leased + splits.sent + splits.done > 0, "{splits:?}");

    let mut all = vec![first];
    all.extend(drain(&mut reader).await.unwrap());
    assert_once(all, 20_000);
    drop(reader);
    // The last report of a task may come after the end of the epoch.
    let ended = |j: &&JobStatus| j.state == "finished" && j.tasks == 0 && !j.stages.is_empty();
    let job = status_until(&client, |s| s.jobs.first().filter(ended).cloned()).await;
    let (served, splits) = (job.served.unwrap(), job.splits.unwrap());
    assert_eq!((served.rows, served.elements, served.buffered_bytes), (20_000, 2_000, 0));
    assert!(served.bytes >= 8 * served.rows);
    assert_eq!((splits.waiting, splits.leased, splits.sent), (0, 0, 0));
    assert_eq!(
        (splits.done, splits.done),
        (job.splits_total, served.source_opens),
        "each split is opened once"
    );
    let worker = client.status().await.unwrap().workers.remove(0);
    assert_eq!(worker.served.unwrap().rows, 20_000);
    assert!(worker.running.is_empty());
}

/// SRV-05: a reader that always waits wants more workers, and one that seldom asks wants one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn srv_05_the_status_says_how_many_workers_are_wanted() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let slow = range(100_000, &[json!({"sleep": {"per_row": "2ms"}})]);
    let mut starved = client.read(request(&slow, "starved")).await.unwrap();
    for _ in 0..50 {
        starved.next().await.unwrap().unwrap();
    }
    let wanted = status_until(&client, |s| s.jobs.first().map(|j| j.workers_wanted).filter(|n| *n > 1)).await;
    assert!(wanted <= 4, "{wanted}: at most four times the one worker");
    starved.close().await;
    let mut idle = client.read(request(&range(5_000_000, &[]), "idle")).await.unwrap();
    for _ in 0..50 {
        idle.next().await.unwrap().unwrap();
    }
    let of_idle = |s: &GetStatusResponse| s.jobs.iter().find(|j| j.job == "idle").map(|j| j.workers_wanted);
    // It takes nothing more: the longer it does not, the fewer workers it would need.
    status_until(&client, |s| of_idle(s).filter(|n| *n == 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_which_consumer_is_behind() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let consumer = |index| ReadRequest {
        consumer: Some(Consumer::new(index, 2)),
        ..request(&range(4_000, &[json!({"batch": 10})]), "even")
    };
    let (one, two) = tokio::join!(client.read(consumer(0)), client.read(consumer(1)));
    let (mut one, mut two) = (one.unwrap(), two.unwrap());
    for _ in 0..3 {
        one.next().await.unwrap().unwrap();
    }
    let readers = status_until(&client, |s| {
        let readers = &s.jobs.first()?.readers;
        readers.iter().any(|r| r.consumer == 2 && r.elements_behind > 0).then(|| readers.clone())
    })
    .await;
    assert!(
        readers.iter().any(|r| r.consumer == 1 && r.elements > 0 && r.elements_behind == 0),
        "{readers:?}"
    );
    let (a, b) = tokio::join!(drain(&mut one), drain(&mut two));
    assert_eq!(a.unwrap().len() + 3, b.unwrap().len());
}
