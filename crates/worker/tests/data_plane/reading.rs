//! Epochs that go well.

use caju_client::{Compression, ReadRequest, Transfer, TransferProtocol};
use caju_proto::v1::{GetStatusRequest, ProcessingMode};
use caju_types::ErrorKind;
use caju_wire::{Dispatcher, DispatcherLink};
use serde_json::json;

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

const ROWS: i64 = 20_000;

fn batched(size: u64, drop_remainder: bool) -> serde_json::Value {
    range(ROWS as u64, &[json!({"batch": {"size": size, "drop_remainder": drop_remainder}})])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remainders_of_tasks_become_full_batches() {
    let cluster = Cluster::start(3).await;
    let mut reader = cluster.read(&batched(64, false)).await;
    let elements = drain(&mut reader).await.unwrap();
    let (full, short): (Vec<_>, Vec<_>) = elements.iter().map(Vec::len).partition(|n| *n == 64);
    assert_eq!((full.len(), short), (312, vec![32]), "floor(N/n) full batches and one short one");
    assert_once(elements, ROWS);
    let stats = reader.stats();
    assert_eq!((stats.rows, stats.elements, stats.duplicate_rows), (ROWS as u64, 313, 0));
    assert!(stats.first_batch > std::time::Duration::ZERO && stats.first_batch <= stats.elapsed);
    let mut reader = cluster.read(&batched(64, true)).await;
    let elements = drain(&mut reader).await.unwrap();
    assert!(elements.len() == 312 && elements.iter().all(|e| e.len() == 64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_elements_above_batch() {
    let cluster = Cluster::start(2).await;
    let mut reader = cluster.read(&range(5000, &[])).await;
    assert_eq!(reader.schema().field(0).name(), "id");
    let elements = drain(&mut reader).await.unwrap();
    assert!(elements.iter().all(|e| e.len() == 1));
    assert_once(elements, 5000);
    assert!(drain(&mut reader).await.unwrap().is_empty(), "the end stays the end");
}

/// XFR-01, ARG-06: every compression gives the same rows, and lz4 and zstd send fewer bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xfr_01_every_compression_gives_the_rows() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let mut sent = Vec::new();
    for compression in Compression::ALL {
        let transfer = Transfer { compression, ..Transfer::default() };
        let request = ReadRequest { transfer, ..request(&batched(1000, false), "") };
        let mut reader = client.read(request).await.unwrap();
        assert_once(drain(&mut reader).await.unwrap(), ROWS);
        sent.push(reader.stats().received_bytes);
    }
    let [none, auto, lz4, zstd] = sent[..] else { panic!("{sent:?}") };
    assert!(
        none >= 8 * ROWS as u64 && auto >= 8 * ROWS as u64,
        "on one host rows are sent as they are: {sent:?}"
    );
    assert!(2 * lz4 < none + none / 2 && 2 * zstd < none, "{sent:?}");
}

/// XFR-04: a reader names the protocol by which it gets its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xfr_04_the_protocol_is_the_one_that_was_asked_for() {
    let mut cluster = Cluster::start(0).await;
    let local = cluster.local.clone();
    cluster.add(|c| c.local = local.clone()).await;
    let client = cluster.client_with(|c| c.local = local).await;
    let read = async |protocol| {
        let transfer = Transfer { protocol, ..Transfer::default() };
        let request = ReadRequest { transfer, ..request(&batched(100, false), "") };
        let mut reader = client.read(request).await.unwrap();
        let elements = drain(&mut reader).await;
        (elements, reader.stats().received_bytes)
    };
    for (protocol, over_socket) in
        [(TransferProtocol::Auto, false), (TransferProtocol::Local, false), (TransferProtocol::Framed, true)]
    {
        let (elements, received) = read(protocol).await;
        assert_once(elements.unwrap(), ROWS);
        assert_eq!(received > 0, over_socket, "{protocol:?}");
    }
    // A worker of another process hands nothing over.
    cluster.add(|_| {}).await;
    let e = read(TransferProtocol::Local).await.0.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
    assert!(e.message().contains("is not in this process") && e.message().contains("`auto`"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_this_process_need_no_socket() {
    let mut cluster = Cluster::start(0).await;
    let local = cluster.local.clone();
    // No process listens at the address that this worker announces.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (shared, address) = (local.clone(), dead.clone());
    cluster
        .add(move |c| {
            c.local = shared;
            c.advertise = Some(address);
        })
        .await;
    assert!(local.get(&dead).is_some());
    let client = cluster.client_with(|c| c.local = local.clone()).await;
    let mut reader = client.read(request(&batched(100, false), "")).await.unwrap();
    let mut rows = 0;
    while let Some(chunk) = reader.next_chunk().await.unwrap() {
        rows += chunk.rows();
    }
    assert_eq!(rows as i64, ROWS);
    drop(cluster);
    assert!(local.get(&dead).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_job_share_its_rows() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let def = batched(50, false);
    let (mut a, mut b) = (
        client.read(request(&def, "shared")).await.unwrap(),
        client.read(request(&def, "shared")).await.unwrap(),
    );
    let (x, y) = tokio::join!(drain(&mut a), drain(&mut b));
    assert_once(x.unwrap().into_iter().chain(y.unwrap()), ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn off_means_that_every_worker_runs_everything() {
    let cluster = Cluster::start(2).await;
    let mut wanted = request(&range(3000, &[]), "");
    wanted.mode = ProcessingMode::Off;
    let mut reader = cluster.client().await.read(wanted).await.unwrap();
    let mut all: Vec<i64> = drain(&mut reader).await.unwrap().into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (0..3000).flat_map(|i| [i, i]).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shuffled_and_wide_rows_come_once() {
    let cluster = Cluster::start(2).await;
    let steps = [
        json!({"with_columns": {"text": "concat('row ', cast(id as varchar))", "half": "id / 2"}}),
        json!({"shuffle": {"buffer": 3000, "seed": 3}}),
        json!({"filter": "id % 5 <> 1"}),
        json!({"batch": {"size": 33, "drop_remainder": false}}),
    ];
    let mut reader = cluster.read(&range(ROWS as u64, &steps)).await;
    let mut all: Vec<i64> = drain(&mut reader).await.unwrap().into_iter().flatten().collect();
    assert!(!all.is_sorted(), "shuffled");
    all.sort_unstable();
    assert_eq!(all, (0..ROWS).filter(|i| i % 5 != 1).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_epoch_reads_again_and_progress_is_seen() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    for epoch in 0..3 {
        let mut wanted = request(&batched(500, false), "epochs");
        wanted.epoch = epoch;
        let mut reader = client.read(wanted).await.unwrap();
        let monitor = reader.monitor();
        assert_once(drain(&mut reader).await.unwrap(), ROWS);
        let progress = monitor.progress();
        assert_eq!(progress.stats.rows, ROWS as u64);
        assert_eq!(progress.buffered_bytes, 0);
        reader.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_has_left_when_its_user_sees_the_end() {
    let cluster = Cluster::start(1).await;
    for attempt in 0..5 {
        let job = format!("job-{attempt}");
        let mut reader = cluster.client().await.read(request(&batched(500, false), &job)).await.unwrap();
        drain(&mut reader).await.unwrap();
        // Its process may exit now, without another word.
        let link = DispatcherLink::new(&cluster.address()).unwrap();
        let call = |mut d: Dispatcher| async move { d.get_status(GetStatusRequest::default()).await };
        let status = link.call(TEST_TIMEOUT, call).await.unwrap();
        let of_job = status.jobs.iter().find(|j| j.job == job).unwrap();
        assert_eq!((of_job.clients, of_job.state.as_str()), (0, "finished"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_and_tiny_epochs_end() {
    let cluster = Cluster::start(2).await;
    for rows in [0, 1, 3] {
        for steps in [vec![], vec![json!({"batch": {"size": 2, "drop_remainder": false}})]] {
            let mut reader = cluster.read(&range(rows, &steps)).await;
            assert_once(drain(&mut reader).await.unwrap(), rows.cast_signed());
        }
    }
    let none = [json!({"filter": "id < 0"}), json!({"batch": {"size": 2, "drop_remainder": true}})];
    let mut reader = cluster.read(&range(5000, &none)).await;
    assert!(drain(&mut reader).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_is_bounded_in_bytes() {
    let cluster = Cluster::start(2).await;
    let mut reader =
        cluster.read(&range(1_000_000, &[json!({"batch": {"size": 256, "drop_remainder": false}})])).await;
    let monitor = reader.monitor();
    let first = reader.next().await.unwrap().unwrap();
    // Both workers fill their buffers, then wait.
    let mut calm = 0;
    let mut last = (0, 0);
    while calm < 20 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        let now = (monitor.progress().buffered_bytes, cluster.buffered());
        calm = if now == last { calm + 1 } else { 0 };
        last = now;
    }
    let (client, workers) = last;
    let element = 256 * 8;
    // Windows are never below 1 MiB; small chunks share frames of up to 256 KiB.
    let bound = 2 * ((1 << 20) + (256 << 10) + element);
    assert!(client <= bound, "{client} bytes wait in the reader, {bound} may");
    let bound = 2 * ((64 << 10) + 4096 * 8);
    assert!(workers <= bound, "{workers} bytes wait in the workers, {bound} may");
    let rest = drain(&mut reader).await.unwrap();
    assert_once(rest.into_iter().chain([crate::cluster::ids(&first.batch)]), 1_000_000);
}

/// Elements one by one and chunks at once, from one reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_was_begun_is_finished_before_the_next_one_is_given() {
    let cluster = Cluster::start(1).await;
    let def = range(20_000, &[json!({"batch": 10})]);
    let mut reader = cluster.client().await.read(request(&def, "")).await.unwrap();
    let mut all = Vec::new();
    for n in 1..=7 {
        all.extend(ids(&reader.next().await.unwrap().unwrap().batch));
        let stats = reader.stats();
        assert_eq!((stats.elements, stats.rows), (n, 10 * n), "and not those of the whole chunk");
    }
    let e = reader.next_chunk().await.unwrap_err();
    assert!(e.kind() == ErrorKind::FailedPrecondition && e.message().contains("try_next"), "{e}");
    while let Some(element) = reader.try_next().unwrap() {
        all.extend(ids(&element.batch));
    }
    while let Some(chunk) = reader.next_chunk().await.unwrap() {
        all.extend(chunk.pieces.iter().flat_map(ids));
    }
    assert_eq!(reader.stats().rows, 20_000);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..20_000));
}
