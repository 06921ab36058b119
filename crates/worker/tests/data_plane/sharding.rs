//! Static processing modes, as readers of our own kind see them.

use caju_client::{Client, ReadRequest};
use caju_dispatcher::WorkerList;
use caju_proto::v1::{ProcessingMode, TargetWorkers};
use caju_types::ErrorKind;
use caju_wire::LocalWorkers;
use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_once, drain, ids, range, request};

/// Five configured workers with the tag COLOCATED. The first ones are in the readers' process, the others in none.
async fn colocated(local: usize) -> Cluster {
    let entries = vec!["127.0.0.1:%port%".to_owned(); 5];
    let mut cluster = Cluster::start_with(0, |c| c.workers = WorkerList::new(entries).unwrap()).await;
    for n in 0..5 {
        let list = if n < local { cluster.local.clone() } else { LocalWorkers::new() };
        cluster.add(|c| (c.local, c.tags) = (list, vec!["COLOCATED".to_owned()])).await;
    }
    cluster
}

async fn client(cluster: &Cluster) -> Client {
    let local = cluster.local.clone();
    cluster.client_with(|c| c.local = local).await
}

fn data(job: &str, target: TargetWorkers) -> ReadRequest {
    ReadRequest { mode: ProcessingMode::Data, target, ..request(&range(100, &[]), job) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tag_05_a_reader_reads_the_shard_of_its_own_worker() {
    let cluster = colocated(1).await;
    let client = client(&cluster).await;
    for (job, target) in [("", TargetWorkers::Auto), ("named", TargetWorkers::Local)] {
        for epoch in 0..2 {
            let request = ReadRequest { epoch, ..data(job, target) };
            if job.is_empty() && epoch > 0 {
                continue;
            }
            let mut reader = client.read(request).await.unwrap();
            let got = drain(&mut reader).await.unwrap();
            assert_eq!(got.concat(), (0..100).step_by(5).collect::<Vec<_>>(), "{job} epoch {epoch}");
            reader.close().await;
        }
    }
    let mut all = client.read(data("", TargetWorkers::Any)).await.unwrap();
    assert_once(drain(&mut all).await.unwrap(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_readers_of_one_job_each_end_with_the_shards_of_their_own_workers() {
    let cluster = colocated(2).await;
    let client = client(&cluster).await;
    let mut reader = client.read(data("shared", TargetWorkers::Auto)).await.unwrap();
    let mut got = drain(&mut reader).await.unwrap().concat();
    got.sort_unstable();
    assert_eq!(got, (0..100).filter(|i| i % 5 < 2).collect::<Vec<_>>());
}

/// Each of two readers has the shards of its own worker. The one that leaves early has left rows that nobody reads: the other one ends
/// with its own, and the epoch is not finished before the rest was read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_with_a_shard_that_nobody_reads_is_not_finished() {
    let entries = vec!["127.0.0.1:%port%".to_owned(); 2];
    let mut cluster = Cluster::start_with(0, |c| c.workers = WorkerList::new(entries).unwrap()).await;
    let own = [cluster.local.clone(), LocalWorkers::new()];
    for local in own.clone() {
        cluster.add(|c| (c.local, c.tags) = (local, vec!["COLOCATED".to_owned()])).await;
    }
    let [stays, leaves] = own.map(|local| cluster.client_with(|c| c.local = local));
    let (stays, leaves) = (stays.await, leaves.await);
    let mut first = stays.read(data("j", TargetWorkers::Auto)).await.unwrap();
    let mut second = leaves.read(data("j", TargetWorkers::Auto)).await.unwrap();
    let mut got = vec![ids(&second.next().await.unwrap().unwrap().batch)];
    second.close().await;
    got.extend(drain(&mut first).await.unwrap());
    assert!(got.concat().len() < 100, "the rows of the other worker are not for this reader");
    first.close().await;
    let states = async || {
        let jobs = stays.status().await.unwrap().jobs;
        jobs.into_iter().filter(|j| j.job == "j").map(|j| j.state).collect::<Vec<_>>()
    };
    assert_eq!(states().await, ["abandoned"]);
    let mut again = leaves.read(data("j", TargetWorkers::Auto)).await.unwrap();
    got.extend(drain(&mut again).await.unwrap());
    again.close().await;
    assert_once(got, 100);
    assert_eq!(states().await, ["finished"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sta_21_colocated_workers_of_other_processes_alone_are_refused() {
    let cluster = colocated(0).await;
    for target in [TargetWorkers::Auto, TargetWorkers::Local] {
        let e = client(&cluster).await.read(data("", target)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        let wanted = match target {
            TargetWorkers::Local => "no local worker is found",
            _ => "static sharding requires local workers",
        };
        assert!(e.message().contains(wanted), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_06_the_least_prefetch_starves_nobody() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client_with(|c| c.prefetch_bytes = 1).await;
    let def = range(10, &[json!({"batch": 1})]);
    let request = ReadRequest { mode: ProcessingMode::Off, ..request(&def, "") };
    let got = drain(&mut client.read(request).await.unwrap()).await.unwrap();
    assert_eq!((got.len(), got.concat().iter().sum::<i64>()), (30, 3 * 45));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_list_gives_the_first_workers_shards_and_no_others() {
    let mut cluster = Cluster::start_with(2, |c| c.workers = WorkerList::first(2)).await;
    cluster.add(|_| {}).await;
    let client = cluster.client().await;
    let mut reader = client.read(data("", TargetWorkers::Auto)).await.unwrap();
    assert_once(drain(&mut reader).await.unwrap(), 100);
    let slots: Vec<u32> = client.status().await.unwrap().workers.iter().map(|w| w.slot).collect();
    assert_eq!(slots, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promised_order_takes_one_element_of_each_slot_in_turn() {
    let cluster = Cluster::start_with(3, |c| c.workers = WorkerList::first(3)).await;
    let near = client(&cluster).await;
    let far = cluster.client_with(|c| c.local = LocalWorkers::new()).await;
    let def = |steps: &[Value]| {
        let mut def = range(20_000, steps);
        def["deterministic"] = json!(true);
        def
    };
    for client in [&near, &far] {
        let read = async |mode, steps: &[Value]| {
            let request = ReadRequest { mode, ..request(&def(steps), "") };
            drain(&mut client.read(request).await.unwrap()).await.unwrap()
        };
        // Shards by row, in turn, are the rows of the source in order.
        let data = read(ProcessingMode::Data, &[]).await;
        assert_eq!(data.concat(), (0..20_000).collect::<Vec<_>>());
        // Shard 0 has one row more than shard 2; batches are each shard's own.
        let batched = read(ProcessingMode::Data, &[json!({"batch": 1000})]).await;
        let firsts: Vec<i64> = batched.iter().map(|b| b[0]).collect();
        assert_eq!(firsts, (0..7).flat_map(|b| (0..3).map(move |k| 3000 * b + k)).collect::<Vec<_>>());
        // Three workers with the same rows.
        let off = read(ProcessingMode::Off, &[]).await;
        assert_eq!(off.concat(), (0..20_000).flat_map(|i| [i; 3]).collect::<Vec<_>>());
        let shuffled = [json!({"shuffle": 100}), json!({"batch": 500})];
        let once = read(ProcessingMode::Off, &shuffled).await;
        assert_eq!(once, read(ProcessingMode::Off, &shuffled).await);
        assert_ne!(once[0], once[1], "the slot enters the draw");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promised_order_survives_a_lost_worker() {
    let entries = vec!["127.0.0.1:%port%".to_owned(); 2];
    let mut cluster = Cluster::start_with(2, |c| c.workers = WorkerList::new(entries).unwrap()).await;
    let mut def = range(20_000, &[json!({"batch": 10})]);
    def["deterministic"] = json!(true);
    let request = ReadRequest { mode: ProcessingMode::Data, ..request(&def, "") };
    let client = cluster.client_with(|c| c.local = LocalWorkers::new()).await;
    let mut reader = client.read(request).await.unwrap();
    let mut got = Vec::new();
    for _ in 0..20 {
        got.push(ids(&reader.next().await.unwrap().unwrap().batch));
    }
    // The next worker waits until its position is free.
    cluster.workers.remove(1).kill();
    cluster.add(|_| {}).await;
    got.extend(drain(&mut reader).await.unwrap());
    let want = |b: i64| (0..2).map(move |k| (0..10).map(|r| 20 * b + 2 * r + k).collect::<Vec<i64>>());
    assert_eq!(got, (0..1000).flat_map(want).collect::<Vec<_>>());
}

/// Five shards on two workers, of which one dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shards_of_a_state_survive_a_lost_worker_on_another_number_of_workers() {
    let entries = vec!["127.0.0.1:%port%".to_owned(); 2];
    for deterministic in [true, false] {
        let mut def = range(20_000, &[json!({"batch": 10})]);
        def["deterministic"] = json!(deterministic);
        let request = ReadRequest { mode: ProcessingMode::Data, ..request(&def, "") };
        let first = Cluster::start_with(5, |c| c.workers = WorkerList::first(5)).await;
        let mut reader = first.client().await.read(request.clone()).await.unwrap();
        let mut got = Vec::new();
        for _ in 0..103 {
            got.push(ids(&reader.next().await.unwrap().unwrap().batch));
        }
        let states = vec![reader.state().unwrap()];
        drop((reader, first));

        let list = WorkerList::new(entries.clone()).unwrap();
        let mut cluster = Cluster::start_with(2, |c| c.workers = list).await;
        let client = cluster.client_with(|c| c.local = LocalWorkers::new()).await;
        let mut reader = client.read(ReadRequest { states, ..request }).await.unwrap();
        for _ in 0..20 {
            got.push(ids(&reader.next().await.unwrap().unwrap().batch));
        }
        cluster.workers.remove(1).kill();
        cluster.add(|_| {}).await;
        got.extend(drain(&mut reader).await.unwrap());
        if deterministic {
            let want =
                |b: i64| (0..5).map(move |k| (0..10).map(|r| 50 * b + 5 * r + k).collect::<Vec<i64>>());
            assert_eq!(got, (0..400).flat_map(want).collect::<Vec<_>>());
        } else {
            assert_once(got, 20_000);
        }
    }
}

/// A state of two shards on five workers: the reader of the last worker has none of them, and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_own_worker_has_no_shard_of_the_state_ends() {
    let first = Cluster::start_with(2, |c| c.workers = WorkerList::first(2)).await;
    let mut reader = first.client().await.read(data("", TargetWorkers::Any)).await.unwrap();
    let taken = ids(&reader.next().await.unwrap().unwrap().batch);
    let states = vec![reader.state().unwrap()];
    drop((reader, first));

    let entries = vec!["127.0.0.1:%port%".to_owned(); 5];
    let mut cluster = Cluster::start_with(0, |c| c.workers = WorkerList::new(entries).unwrap()).await;
    let lists = [LocalWorkers::new(), cluster.local.clone()];
    for n in 0..5 {
        let list = lists[usize::from(n == 4)].clone();
        cluster.add(|c| (c.local, c.tags) = (list, vec!["COLOCATED".to_owned()])).await;
    }
    let request = ReadRequest { states: states.clone(), ..data("j", TargetWorkers::Auto) };
    let mut last = client(&cluster).await.read(request).await.unwrap();
    assert_eq!(drain(&mut last).await.unwrap(), Vec::<Vec<i64>>::new());
    last.close().await;
    let all = ReadRequest { states, ..data("all", TargetWorkers::Any) };
    let mut all = client(&cluster).await.read(all).await.unwrap();
    let mut got = drain(&mut all).await.unwrap();
    got.push(taken);
    assert_once(got, 100);
}
