//! Workers in the reader's own process, tags, and which of them are read.

use std::collections::BTreeMap;

use caju_client::{Client, ReadRequest};
use caju_proto::v1::{ProcessingMode, TargetWorkers};
use caju_types::ErrorKind;
use caju_wire::{IN_PROCESS, LocalWorkers};
use caju_worker::WorkerHandle;
use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_once, drain, range, request};

/// Workers in this process and others, each with these tags. The others are in this process too, but in no list of its own.
async fn cluster(local: usize, remote: usize, tags: &[&str]) -> Cluster {
    let mut cluster = Cluster::start(0).await;
    for n in 0..local + remote {
        let list = if n < local { cluster.local.clone() } else { LocalWorkers::new() };
        let tags: Vec<String> = tags.iter().map(|t| (*t).to_owned()).collect();
        cluster.add(|c| (c.local, c.tags) = (list, tags)).await;
    }
    cluster
}

/// A client in the process of the local workers.
async fn client(cluster: &Cluster) -> Client {
    let local = cluster.local.clone();
    cluster.client_with(|c| c.local = local).await
}

fn off(rows: u64, job: &str, target: TargetWorkers) -> ReadRequest {
    ReadRequest { mode: ProcessingMode::Off, target, ..request(&range(rows, &[]), job) }
}

/// How often each of `rows` values comes, if all come equally often.
#[track_caller]
fn copies(elements: Vec<Vec<i64>>, rows: i64) -> usize {
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    elements.into_iter().flatten().for_each(|id| *counts.entry(id).or_default() += 1);
    assert_eq!(counts.len() as i64, rows, "{counts:?}");
    let first = counts[&0];
    assert!(counts.values().all(|n| *n == first), "{counts:?}");
    first
}

async fn epoch(client: &Client, request: ReadRequest) -> Vec<Vec<i64>> {
    drain(&mut client.read(request).await.unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_01_only_the_local_worker_is_read() {
    let cluster = cluster(1, 5, &[]).await;
    let client = client(&cluster).await;
    for name in ["local", "LOCAL", "Local"] {
        let target = caju_client::target_workers(name).unwrap();
        let got = epoch(&client, off(10, "", target)).await;
        assert_eq!(got.concat(), (0..10).collect::<Vec<_>>(), "in order, from one worker");
    }
    let e = caju_client::target_workers("locale").unwrap_err();
    assert!(e.message().contains("did you mean `local`"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_02_each_local_worker_gives_the_whole_pipeline() {
    for (local, remote) in [(1, 0), (1, 3), (3, 0), (3, 3)] {
        let cluster = cluster(local, remote, &[]).await;
        let client = client(&cluster).await;
        for epoch_no in 0..10 {
            let request = ReadRequest { epoch: epoch_no, ..off(10, "ten", TargetWorkers::Local) };
            assert_eq!(copies(epoch(&client, request).await, 10), local, "epoch {epoch_no}");
        }
        let ahead = range(10, &[json!({"prefetch": 10})]);
        let request =
            ReadRequest { target: TargetWorkers::Local, mode: ProcessingMode::Off, ..request(&ahead, "") };
        assert_eq!(copies(epoch(&client, request).await, 10), local, "with prefetch");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_04_an_empty_dataset_is_an_empty_stream() {
    let cluster = cluster(1, 1, &[]).await;
    assert!(epoch(&client(&cluster).await, off(0, "", TargetWorkers::Local)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_05_without_a_local_worker_the_target_local_is_refused() {
    let cluster = cluster(0, 3, &[]).await;
    let e = client(&cluster).await.read(off(10, "", TargetWorkers::Local)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().contains("no local worker is found"), "{e}");
    // A worker of this process that is registered elsewhere does not help.
    let other = cluster_of_one().await;
    let local = other.local.clone();
    let client = cluster.client_with(|c| c.local = local).await;
    let e = client.read(off(10, "named", TargetWorkers::Local)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().contains("is registered at this dispatcher"), "{e}");
    assert!(client.status().await.unwrap().jobs.is_empty(), "and no job was made");
}

async fn cluster_of_one() -> Cluster {
    cluster(1, 0, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_07_targets_of_unnamed_jobs() {
    let cluster = cluster(3, 3, &[]).await;
    let client = client(&cluster).await;
    for (target, workers) in [(TargetWorkers::Auto, 6), (TargetWorkers::Any, 6), (TargetWorkers::Local, 3)] {
        assert_eq!(copies(epoch(&client, off(10, "", target)).await, 10), workers, "{target:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_job_have_one_target() {
    let cluster = cluster(1, 1, &[]).await;
    let client = client(&cluster).await;
    let _first = client.read(off(10, "one", TargetWorkers::Local)).await.unwrap();
    let e = client.read(off(10, "one", TargetWorkers::Any)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    assert!(e.message().contains("target_workers `local`, not `any`"), "{e}");
    let joined = client.read(off(10, "one", TargetWorkers::Unspecified)).await;
    assert!(joined.is_ok(), "who says nothing takes the job as it is");
    let job = &client.status().await.unwrap().jobs[0];
    assert_eq!(job.target_workers, "local");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_09_a_named_job_repeats_in_order() {
    for remote in [0, 3] {
        let cluster = cluster(1, remote, &[]).await;
        let client = client(&cluster).await;
        for job in ["", "named"] {
            let mut got = Vec::new();
            for n in 0..3 {
                got.extend(
                    epoch(&client, ReadRequest { epoch: n, ..off(10, job, TargetWorkers::Local) })
                        .await
                        .concat(),
                );
            }
            assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].repeat(3));
        }
    }
}

/// Rows that cost time, so that an epoch is in the middle for a while.
fn slow(rows: u64) -> Value {
    range(rows, &[json!({"sleep": {"per_row": "20us"}}), json!({"batch": 100})])
}

fn slow_request(job: &str, target: TargetWorkers) -> ReadRequest {
    ReadRequest { target, ..request(&slow(30_000), job) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loc_12_a_stopped_local_worker_ends_local_reads_with_its_name() {
    let mut cluster = cluster(1, 0, &[]).await;
    let near = client(&cluster).await;
    let far = cluster.client_with(|_| {}).await;
    let mut local = near.read(slow_request("near", TargetWorkers::Local)).await.unwrap();
    let mut network = far.read(slow_request("far", TargetWorkers::Any)).await.unwrap();
    local.next().await.unwrap().unwrap();
    let first = network.next().await.unwrap().unwrap();
    // Off the list of this process, it is still there for others.
    let worker = cluster.workers.remove(0);
    let address = worker.address().to_owned();
    cluster.local.remove(&address);
    let mut rest = drain(&mut network).await.unwrap();
    rest.push(crate::cluster::ids(&first.batch));
    assert_once(rest, 30_000);
    worker.shutdown().await;
    let e = drain(&mut local).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}");
    assert!(e.message().contains("no longer available") && e.message().contains(&address), "{e}");
    let status = far.status().await.unwrap();
    assert_eq!(status.workers[0].state, "left", "a worker that leaves says so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_dynamic_the_other_local_workers_take_over() {
    let mut cluster = cluster(2, 1, &[]).await;
    let client = client(&cluster).await;
    let mut reader = client.read(slow_request("job", TargetWorkers::Local)).await.unwrap();
    let first = crate::cluster::ids(&reader.next().await.unwrap().unwrap().batch);
    cluster.workers.remove(0).shutdown().await;
    let mut all = drain(&mut reader).await.unwrap();
    all.push(first);
    assert_once(all, 30_000);
    let remote = &cluster.workers[1];
    assert!(remote.tasks().is_empty(), "the remote worker got no task");
}

/// Two processes with a local worker each share a job, and one of them dies with its worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_two_processes_share_a_local_job_exactly_once() {
    let mut cluster = cluster(1, 0, &[]).await;
    let elsewhere = LocalWorkers::new();
    let list = elsewhere.clone();
    cluster.add(|c| c.local = list).await;
    let (one, two) = (client(&cluster).await, cluster.client_with(|c| c.local = elsewhere).await);
    let mut first = one.read(slow_request("shared", TargetWorkers::Local)).await.unwrap();
    let mut second = two.read(slow_request("shared", TargetWorkers::Local)).await.unwrap();
    let got = crate::cluster::ids(&first.next().await.unwrap().unwrap().batch);
    second.next().await.unwrap().unwrap();
    // The second process has ended with the element that it had in hand, which counts as taken; the other rows go to the
    // first one.
    let taken = second.stats().rows as i64;
    second.close().await;
    cluster.workers.remove(1).kill();
    let mut rest = drain(&mut first).await.unwrap();
    rest.push(got);
    let mut ids: Vec<i64> = rest.concat();
    ids.sort_unstable();
    let n = ids.len() as i64;
    ids.dedup();
    assert_eq!(ids.len() as i64, n, "no row twice");
    assert!(n >= 30_000 - taken && n < 30_000, "{n} rows and {taken} with the other reader");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_worker_that_joins_in_mid_epoch_is_used() {
    let mut cluster = cluster(1, 0, &[]).await;
    let client = client(&cluster).await;
    let mut reader = client.read(slow_request("job", TargetWorkers::Local)).await.unwrap();
    let first = crate::cluster::ids(&reader.next().await.unwrap().unwrap().batch);
    let list = cluster.local.clone();
    // Without a port: its readers are in this process.
    cluster.add(|c| (c.local, c.listen) = (list, IN_PROCESS.to_owned())).await;
    let joined = &cluster.workers[1];
    let reading = async {
        let mut all = drain(&mut reader).await.unwrap();
        all.push(first);
        assert_once(all, 30_000);
    };
    let used = async {
        while joined.tasks().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(reading, used);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_a_port_is_read_by_its_own_process_alone() {
    let mut cluster = cluster(0, 1, &[]).await;
    let list = cluster.local.clone();
    cluster.add(|c| (c.local, c.listen) = (list, IN_PROCESS.to_owned())).await;
    let (near, far) = (client(&cluster).await, cluster.client_with(|_| {}).await);
    assert_eq!(copies(epoch(&near, off(10, "", TargetWorkers::Any)).await, 10), 2);
    assert_eq!(copies(epoch(&far, off(10, "", TargetWorkers::Any)).await, 10), 1);
}

const COLOCATED: &[&str] = &["COLOCATED"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tag_01_colocated_workers_of_other_processes_are_not_read() {
    for remote in [0, 3] {
        let cluster = cluster(1, remote, COLOCATED).await;
        let got = epoch(&client(&cluster).await, off(100, "", TargetWorkers::Auto)).await;
        assert_eq!(got.concat(), (0..100).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tag_02_workers_without_the_tag_are_read_as_well() {
    for (local, remote) in [(1, 0), (1, 3), (3, 0), (3, 3)] {
        let mut cluster = cluster(local, remote, COLOCATED).await;
        cluster.add(|_| {}).await;
        let client = client(&cluster).await;
        assert_eq!(copies(epoch(&client, off(100, "", TargetWorkers::Unspecified)).await, 100), local + 1);
        assert_eq!(copies(epoch(&client, off(100, "", TargetWorkers::Any)).await, 100), local + remote + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tag_07_one_of_several_tags_counts_and_unknown_ones_do_not() {
    let tagged = cluster(1, 3, &["gpu-0", "COLOCATED", "zone-b"]).await;
    assert_eq!(copies(epoch(&client(&tagged).await, off(100, "", TargetWorkers::Auto)).await, 100), 1);
    let others = cluster(1, 3, &["gpu-0", "fast", "zone-b"]).await;
    assert_eq!(copies(epoch(&client(&others).await, off(100, "", TargetWorkers::Auto)).await, 100), 4);
    let shown = &client(&others).await.status().await.unwrap().workers[0];
    assert_eq!(shown.tags, ["gpu-0", "fast", "zone-b"]);
    assert!(others.workers.iter().all(|w: &WorkerHandle| w.worker_id().0 > 0));
}
