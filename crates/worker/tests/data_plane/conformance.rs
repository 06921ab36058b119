//! Rows of `docs/conformance.md` that are about orders of elements, and about readers that take turns.

use caju_client::ReadRequest;
use caju_proto::v1::GetStatusRequest;
use caju_wire::{Dispatcher, DispatcherLink};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, range, request, take_of};

/// An epoch in its order, on a cluster of its own.
async fn epoch(workers: usize, definition: &Value) -> Vec<Vec<i64>> {
    let cluster = Cluster::start(workers).await;
    drain(&mut cluster.read(definition).await).await.unwrap()
}

/// Files of 117 samples.
fn files(folder: &std::path::Path, is_compressed: bool) -> Value {
    for file in 0..9 {
        let lines: String = (13 * file..13 * (file + 1)).map(|id| format!("{{\"id\": {id}}}\n")).collect();
        let name = folder.join(format!("{file}.jsonl"));
        match is_compressed {
            true => std::fs::write(
                name.with_extension("jsonl.zst"),
                zstd::encode_all(lines.as_bytes(), 3).unwrap(),
            ),
            false => std::fs::write(name, lines),
        }
        .unwrap();
    }
    let pattern = folder.join(if is_compressed { "*.zst" } else { "*.jsonl" });
    json!({ "json": { "path": pattern.to_str().unwrap(), "schema": { "id": "int64" } } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn det_01_the_ordered_mode_repeats_its_order() {
    for (is_compressed, batch, is_shuffled) in [
        (false, 1, false),
        (false, 2, true),
        (false, 4, true),
        (true, 1, true),
        (true, 2, false),
        (true, 4, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut steps = vec![json!({ "batch": batch })];
        if is_shuffled {
            steps.insert(0, json!({ "shuffle": { "buffer": 40, "seed": 5 } }));
        }
        let definition =
            json!({ "source": files(folder.path(), is_compressed), "steps": steps, "deterministic": true });
        let first = epoch(1, &definition).await;
        assert_eq!(first.len(), 117usize.div_ceil(batch));
        assert_eq!(first.concat().is_sorted(), !is_shuffled);
        assert_once(first.clone(), 117);
        for workers in [1, 8] {
            assert_eq!(epoch(workers, &definition).await, first, "{workers} workers, batches of {batch}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn det_07_only_the_last_batch_is_short_and_none_comes_twice() {
    for (rows, workers, is_shuffled) in
        [(9867, 1, false), (9867, 4, true), (30_000, 1, true), (30_000, 4, false)]
    {
        for drops in [false, true] {
            let mut steps = vec![json!({ "batch": { "size": 128, "drop_remainder": drops } })];
            if is_shuffled {
                steps.insert(0, json!({ "shuffle": 1000 }));
            }
            let batches = epoch(workers, &range(rows, &steps)).await;
            let (full, short): (Vec<_>, Vec<_>) = batches.iter().map(Vec::len).partition(|len| *len == 128);
            assert_eq!(full.len() as u64, rows / 128);
            let left = (rows % 128) as usize;
            assert_eq!(short, if drops { vec![] } else { vec![left] });
            let mut all = batches.concat();
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "no row twice");
            assert_eq!(all.len(), rows as usize - if drops { left } else { 0 });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_05_unnamed_jobs_in_lock_step() {
    let cluster = Cluster::start(1).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(cluster.read(&range(10, &[])).await);
    }
    let mut got = vec![Vec::new(); 3];
    for _ in 0..10 {
        for (reader, got) in readers.iter_mut().zip(&mut got) {
            got.extend(take_of(reader, 1).await.concat());
        }
    }
    for (reader, got) in readers.iter_mut().zip(got) {
        assert!(take_of(reader, 1).await.is_empty());
        assert!(got.into_iter().eq(0..10), "each in order, whatever the others take");
    }
}

/// A worker that sends ten rows at once.
async fn cluster_of_small_chunks() -> Cluster {
    let mut cluster = Cluster::start(0).await;
    cluster.add(|worker| worker.batch_rows = Some(10)).await;
    cluster
}

/// Two readers of one job take some elements each, in turn, and then the rest together. Each has one chunk at a time: a reader that
/// may hold all rows gets all of so few.
async fn in_turn(cluster: &Cluster, request: &ReadRequest, each: usize) -> [Vec<i64>; 2] {
    let client = cluster.client_with(|client| client.prefetch_bytes = 1).await;
    let mut a = client.read(request.clone()).await.unwrap();
    let mut b = client.read(request.clone()).await.unwrap();
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..each {
        of_a.extend(take_of(&mut a, 1).await.concat());
        of_b.extend(take_of(&mut b, 1).await.concat());
    }
    assert_eq!((of_a.len(), of_b.len()), (each, each), "both get rows");
    let (rest_a, rest_b) = futures::future::join(drain(&mut a), drain(&mut b)).await;
    of_a.extend(rest_a.unwrap().concat());
    of_b.extend(rest_b.unwrap().concat());
    [of_a, of_b]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_01_two_readers_that_take_turns_share_the_rows() {
    let cluster = cluster_of_small_chunks().await;
    // Rows of 4 kB: a connection does not hold all of them, so a reader that is late gets some.
    let steps = [json!({ "shuffle": 100 }), json!({ "with_columns": { "text": "repeat('text', 1000)" } })];
    let got = in_turn(&cluster, &request(&range(1000, &steps), "shared"), 200).await;
    assert_once(got, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_04_epochs_that_two_readers_share_have_each_value_once_each() {
    let cluster = cluster_of_small_chunks().await;
    let mut counts = vec![0; 100];
    for epoch in 0..3 {
        // Rows of 40 kB: a connection does not hold all of them.
        let wide = range(100, &[json!({ "with_columns": { "text": "repeat('text', 10000)" } })]);
        let request = ReadRequest { epoch, ..request(&wide, "shared") };
        for id in in_turn(&cluster, &request, 20).await.concat() {
            counts[id as usize] += 1;
        }
    }
    assert_eq!(counts, [3; 100]);
}

/// The tasks of the only worker.
async fn tasks(dispatcher: &DispatcherLink) -> usize {
    let call = |mut d: Dispatcher| async move { d.get_status(GetStatusRequest::default()).await };
    dispatcher.retry(TEST_TIMEOUT, std::time::Duration::ZERO, call).await.unwrap().workers[0].tasks.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gc_01_the_task_of_a_job_goes_with_its_only_reader() {
    for job in ["", "named"] {
        let cluster = Cluster::start(1).await;
        let dispatcher = DispatcherLink::new(&cluster.address()).unwrap();
        let mut reader = cluster.client().await.read(request(&range(10_000_000, &[]), job)).await.unwrap();
        assert_eq!(take_of(&mut reader, 1).await.len(), 1);
        assert_eq!(tasks(&dispatcher).await, 1);
        drop(reader);
        let is_free = async {
            while tasks(&dispatcher).await > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, is_free).await.expect("nobody reads it");
    }
}
