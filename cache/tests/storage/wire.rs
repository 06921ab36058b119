//! Faults on the wire of a real S3 protocol: rows are correct, or there is an error within the deadline.

use std::time::Duration;

use crate::common::*;
use caju_cache::*;
use caju_testkit::s3::ServerFault;
use caju_types::ErrorKind;

const ALL: [&str; 4] = ["GET", "PUT", "POST", "DELETE"];
/// The tests of this file share the server and its fault.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
const FAULTS: [ServerFault; 4] =
    [ServerFault::SlowDown, ServerFault::Internal, ServerFault::Cut, ServerFault::Silence];

/// A request without an answer times out soon.
fn options() -> CacheOptions {
    CacheOptions {
        memory_tier_bytes: 0,
        block_bytes: 100_000,
        read_bytes: 200_000,
        request_timeout: Duration::from_millis(500),
        ..hasty()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_faults_are_retried() {
    let want: Vec<_> = (0..4).map(|i| wide(50, 4_000, i)).collect();
    let (server, _turn) = (faulty_server(), TURN.lock().await);
    for fault in FAULTS {
        for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
            let root = faulty_wire_root();
            let cache = open_with(&root, options()).await;
            let snapshot = cache.snapshot(&fp(1));
            let before = server.requests().failed;
            server.inject(fault, &ALL, 1, 3);
            let meta = put(&snapshot, split(0), &want, encoding).await;
            for _ in 0..3 {
                let rows = read(&snapshot, &meta).await.unwrap();
                assert_same(&rows, &arrow::compute::concat_batches(&want[0].schema(), &want).unwrap());
            }
            assert_eq!(snapshot.index().await.unwrap().len(), 1);
            server.inject(fault, &[], 0, 0);
            assert!(server.requests().failed > before + 1, "{fault:?}");
            let parts = objects(&root).await.into_iter().filter(|o| o.contains(&meta.path)).count();
            assert_eq!(parts, 1, "{fault:?}");
            assert!(cache.verify(None).await.unwrap().is_clean());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_faults_are_errors_in_time() {
    let want = wide(50, 4_000, 0);
    let (server, _turn) = (faulty_server(), TURN.lock().await);
    for fault in FAULTS {
        let cache = open_with(&faulty_wire_root(), options()).await;
        let snapshot = cache.snapshot(&fp(1));
        let meta = put(&snapshot, split(0), std::slice::from_ref(&want), Encoding::default()).await;
        server.inject(fault, &ALL, 1, 0);
        let told = |e: caju_types::Error| {
            assert!(
                matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded),
                "{fault:?}: {e}"
            );
        };
        let all = async {
            told(read(&snapshot, &meta).await.unwrap_err());
            told(snapshot.index().await.unwrap_err());
            let description = describe();
            let put = snapshot.put(split(1), &description, want.schema(), Encoding::default());
            told(put.await.unwrap_err());
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        server.inject(fault, &[], 0, 0);
        assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
        put(&snapshot, split(2), std::slice::from_ref(&want), Encoding::default()).await;
    }
}
