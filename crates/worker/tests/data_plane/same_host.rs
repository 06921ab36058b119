//! Readers on the worker's host get rows in shared memory, and equal jobs one copy of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use caju_client::{Client, ReadRequest, Reader, ReaderEvent, Sharing, Transfer, TransferProtocol};
use caju_engine::{SharingLag, SharingSettings};
use caju_proto::v1::TaskServed;
use caju_wire::frame::{Kind, MovedHeader, OpenHeader};
use caju_wire::{BufferPool, FrameReader, FrameWriter};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

const ROWS: u64 = 16_384;
/// Rows of a batch, of some 200 KB.
const BATCH: u64 = 1024;

fn batches(of: u64) -> Value {
    range(ROWS, &[json!({"with_columns": {"pad": "repeat('x', 200)"}}), json!({"batch": of})])
}

/// The same, with an order of rows that the seed determines.
fn in_order(of: u64) -> Value {
    let shuffle = json!({"shuffle": {"buffer": 2000, "seed": 3}});
    let mut def =
        range(ROWS, &[json!({"with_columns": {"pad": "repeat('x', 200)"}}), shuffle, json!({"batch": of})]);
    def["deterministic"] = json!(true);
    def
}

async fn client(cluster: &Cluster) -> Client {
    cluster.client_with(|c| c.prefetch_bytes = 1 << 20).await
}

/// What the tasks of a reader's epoch gave out, after its end.
async fn served(client: &Client, reader: Reader) -> TaskServed {
    let iteration = reader.iteration();
    reader.close().await;
    client.final_status(iteration, TEST_TIMEOUT).await.unwrap().served.unwrap()
}

/// A job that shares its rows with equal ones.
fn shared(def: &Value) -> ReadRequest {
    ReadRequest { sharing: Sharing::Exact { trainer_id: None }, ..request(def, "train") }
}

/// Of a job alone, and of one whose batches are like no other's, nothing is put in files: that costs more than a socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_no_other_job_has_come_over_the_socket() {
    let mut cluster = Cluster::start(0).await;
    cluster.add(|c| c.shared_memory_bytes = 1 << 20).await;
    let client = client(&cluster).await;
    for request in [request(&in_order(BATCH), "alone"), shared(&batches(BATCH))] {
        let mut reader = client.read(request).await.unwrap();
        assert_once(drain(&mut reader).await.unwrap(), ROWS.cast_signed());
        let stats = reader.stats();
        assert!(stats.mapped_bytes == 0 && stats.received_bytes > 0, "{stats:?}");
    }
}

/// Rows come in shared memory where the worker and the reader may, and otherwise over sockets. They are the same.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_come_in_shared_memory_unless_it_is_off() {
    for (limit, protocol, compression, maps) in [
        (1 << 20, TransferProtocol::Auto, "none", true),
        (1 << 20, TransferProtocol::Auto, "auto", true),
        (1 << 20, TransferProtocol::Auto, "lz4", false),
        (1 << 20, TransferProtocol::Framed, "none", false),
        (0, TransferProtocol::Auto, "none", false),
    ] {
        let mut cluster = Cluster::start(0).await;
        cluster.add(|c| c.shared_memory_bytes = limit).await;
        let client = client(&cluster).await;
        let compression = caju_client::Compression::of_name(compression).unwrap();
        let transfer = Transfer { protocol, compression };
        let request = ReadRequest { transfer, ..shared(&in_order(BATCH)) };
        let mut reader = client.read(request).await.unwrap();
        assert_once(drain(&mut reader).await.unwrap(), ROWS.cast_signed());
        let stats = reader.stats();
        assert_eq!(
            (stats.mapped_bytes > 0, stats.received_bytes > 0),
            (maps, !maps),
            "{transfer:?}: {stats:?}"
        );
        let served = served(&client, reader).await;
        let bytes = (served.mapped_bytes, served.sent_bytes);
        assert_eq!(bytes, (stats.mapped_bytes, stats.received_bytes), "{transfer:?}");
        // The dispatcher knows of the end before the worker drops the task and the reader's connection.
        let let_go = async {
            while cluster.workers[0].shared_memory() != (0, limit) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, let_go).await.expect("files outlive their task");
    }
}

/// Who names another address than its own for readers may stand behind a proxy, and gives nothing in shared memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_advertises_an_address_moves_no_reader() {
    let mut cluster = Cluster::start(0).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap().to_string();
    let behind = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    cluster.add(|c| (c.listen, c.advertise) = (behind.clone(), Some(address))).await;
    let forwarding = async {
        loop {
            let (mut from, _) = proxy.accept().await.unwrap();
            let mut to = TcpStream::connect(&behind).await.unwrap();
            drop(copy_bidirectional(&mut from, &mut to).await);
        }
    };
    let reading = async {
        let client = client(&cluster).await;
        let mut reader = client.read(shared(&in_order(BATCH))).await.unwrap();
        assert_once(drain(&mut reader).await.unwrap(), ROWS.cast_signed());
        assert_eq!(reader.stats().mapped_bytes, 0);
    };
    tokio::select! { () = forwarding => {}, () = reading => {} }
}

/// A reader that a worker takes for one of its host, and that does not find its socket, reads over TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_find_the_socket_reads_over_tcp() {
    let mut cluster = Cluster::start(0).await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap().to_string();
    let behind = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    cluster.add(|c| (c.listen, c.advertise) = (behind.clone(), Some(address))).await;
    let forwarding = async {
        let (first, _) = proxy.accept().await.unwrap();
        let (input, output) = first.into_split();
        let mut reader = FrameReader::new(input, "reader", BufferPool::new(0), TEST_TIMEOUT);
        let open = reader.next().await.unwrap().unwrap().message::<OpenHeader>().unwrap();
        assert!(open.shared_memory);
        let nowhere = MovedHeader { socket: "caju-nobody-listens-here".into() };
        FrameWriter::new(output, "reader", TEST_TIMEOUT).send(Kind::Moved, &nowhere).await.unwrap();
        let (mut from, _) = proxy.accept().await.unwrap();
        let mut to = TcpStream::connect(&behind).await.unwrap();
        drop(copy_bidirectional(&mut from, &mut to).await);
        std::future::pending::<()>().await;
    };
    let opened = Arc::new(AtomicUsize::new(0));
    let reading = async {
        let seen = Arc::clone(&opened);
        let client = cluster.client_with(|c| {
            c.prefetch_bytes = 1 << 20;
            c.on_event = Some(Arc::new(move |e| {
                if matches!(e, ReaderEvent::TaskOpened { .. }) {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }));
        });
        let mut reader = client.await.read(shared(&in_order(BATCH))).await.unwrap();
        assert_once(drain(&mut reader).await.unwrap(), ROWS.cast_signed());
        assert_eq!(reader.stats().mapped_bytes, 0);
    };
    tokio::select! { () = forwarding => {}, () = reading => {} }
    assert_eq!(opened.load(Ordering::Relaxed), 1, "the task was opened once");
}

async fn sharing_cluster() -> Cluster {
    let mut cluster = Cluster::start(0).await;
    let all = 1 << 30;
    let sharing = SharingSettings {
        window_bytes: all,
        backlog_bytes: all,
        lag: SharingLag::Drop,
        wait: TEST_TIMEOUT,
        ..SharingSettings::default()
    };
    cluster.add(|config| (config.sharing, config.shared_memory_bytes) = (sharing, all)).await;
    cluster
}

/// Readers of jobs that have begun, so that no task ends before all of them have.
async fn begun(client: &Client, defs: &[(&str, Value)]) -> Vec<(Reader, Vec<Vec<i64>>)> {
    let mut readers = Vec::new();
    for (job, def) in defs {
        let request = ReadRequest { sharing: Sharing::Exact { trainer_id: None }, ..request(def, job) };
        let mut reader = client.read(request).await.unwrap();
        let first = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap();
        readers.push((reader, vec![ids(&first.batch)]));
    }
    readers
}

async fn finish(client: &Client, readers: Vec<(Reader, Vec<Vec<i64>>)>) -> Vec<TaskServed> {
    let all = readers.into_iter().map(|(mut reader, mut got)| async move {
        got.extend(drain(&mut reader).await.unwrap());
        assert_once(got, ROWS.cast_signed());
        served(client, reader).await
    });
    futures::future::join_all(all).await
}

/// Four equal jobs whose order of rows is part of the epoch: each batch is one file for all of them.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_jobs_get_one_copy_of_each_batch() {
    let cluster = sharing_cluster().await;
    let client = client(&cluster).await;
    let defs = ["a", "b", "c", "d"].map(|job| (job, in_order(BATCH)));
    let readers = begun(&client, &defs).await;
    assert!(cluster.workers[0].shared_memory().0 > 0, "held for those that come later");
    let all = finish(&client, readers).await;
    let mapped: Vec<u64> = all.iter().map(|s| s.mapped_bytes).collect();
    assert!(mapped[0] > ROWS * 200 && mapped.iter().all(|m| *m == mapped[0]), "{mapped:?}");
    let reused: u64 = all.iter().map(|s| s.shared.unwrap().reused_bytes).sum();
    assert_eq!(reused, 3 * mapped[0], "one of the four was written: {all:?}");
    assert_eq!(all.iter().map(|s| s.sent_bytes).sum::<u64>(), 0);
}

/// Jobs that share rows and have other batches get copies of their own.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_batches_are_other_copies() {
    let cluster = sharing_cluster().await;
    let client = client(&cluster).await;
    let readers = begun(&client, &[("a", in_order(BATCH)), ("b", in_order(BATCH + 1))]).await;
    let all = finish(&client, readers).await;
    let of = |s: &TaskServed| (s.mapped_bytes > ROWS * 200, s.shared.unwrap().reused_bytes);
    assert_eq!(all.iter().map(of).collect::<Vec<_>>(), [(true, 0); 2], "{all:?}");
}
