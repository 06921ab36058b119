//! Jobs that share and lag read what the worker spilled.

use std::path::{Path, PathBuf};

use caju_client::{Client, Reader};
use caju_engine::{SharingLag, SharingSettings};
use caju_proto::v1::{SharedUse, TaskServed};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range};
use crate::sharing::{begun, patient, shared, status, wide};

/// Splits and rows of an epoch.
const SPLITS: u64 = 64;
const ROWS: u64 = SPLITS * 4096;

/// 30 splits: more than the quick job computes before the slow one begins.
const WINDOW: u64 = 30 * 4096 * 220;
/// Elements that the quick job has then: 12 splits. The slow job is sent less than that while its user takes nothing, so it computes
/// no split.
const LEAD: usize = 500;

fn def() -> Value {
    range(ROWS, &[wide(), json!({"batch": 100})])
}

/// A worker whose window spills to files in this folder.
async fn cluster(settings: SharingSettings, place: &Path) -> Cluster {
    let mut cluster = Cluster::start(0).await;
    cluster
        .add(|config| {
            config.sharing = settings;
            config.sharing_spill_dir = Some(place.to_owned());
        })
        .await;
    cluster
}

/// The files with spilled rows below a folder.
fn files(place: &Path) -> Vec<PathBuf> {
    let inside = |at: PathBuf| std::fs::read_dir(at).into_iter().flatten().map(|entry| entry.unwrap().path());
    let all = inside(place.to_owned()).flat_map(inside);
    all.filter(|path| path.extension().is_some_and(|e| e == "arrows")).collect()
}

/// A quick job that has read some splits, and a slow one that has begun.
async fn quick_and_slow(client: &Client) -> [(Reader, Vec<Vec<i64>>); 2] {
    let (mut quick, mut got) = begun(client, vec![shared(&def(), "quick")]).await.remove(0);
    while got.len() < LEAD {
        got.push(ids(&quick.next().await.unwrap().unwrap().batch));
    }
    let slow = begun(client, vec![shared(&def(), "slow")]).await.remove(0);
    [(quick, got), slow]
}

/// Reads the quick job to its end while the slow one takes nothing. Then `between` gets the files, and the slow job reads its
/// epoch. Returns what each was served.
async fn one_after_the_other(
    client: &Client,
    place: &Path,
    between: impl FnOnce(&[PathBuf]),
) -> [TaskServed; 2] {
    let [quick, slow] = quick_and_slow(client).await;
    let quick = to_the_end(client, quick).await;
    between(&files(place));
    [quick, to_the_end(client, slow).await]
}

async fn to_the_end(client: &Client, (mut reader, mut got): (Reader, Vec<Vec<i64>>)) -> TaskServed {
    got.extend(drain(&mut reader).await.unwrap());
    assert_once(got, ROWS.cast_signed());
    status(client, reader).await.served.unwrap()
}

fn uses(served: &[TaskServed; 2]) -> [SharedUse; 2] {
    served.map(|s| s.shared.unwrap())
}

/// The second job reads from files what it has not had when the first one is done. No split is opened twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_job_reads_what_was_spilled() {
    let place = tempfile::tempdir().unwrap();
    let cluster = cluster(patient(WINDOW, SharingLag::Spill), place.path()).await;
    let client = cluster.client().await;
    let served =
        one_after_the_other(&client, place.path(), |files| assert!(files.len() > 10, "{files:?}")).await;
    let [quick, slow] = uses(&served);
    let opens: u64 = served.iter().map(|s| s.source_opens).sum();
    assert_eq!((opens, quick.computed_rows + slow.computed_rows), (SPLITS, ROWS), "{quick:?} {slow:?}");
    assert!(slow.read_back > 10 && slow.read_back <= slow.window_hits, "{slow:?}");
    assert_eq!((quick.taken_over, slow.taken_over), (0, 0));
    let usage = cluster.workers[0].window_usage();
    assert!(usage.peak_bytes <= WINDOW && usage.spilled_bytes > WINDOW, "{usage:?}");
    assert_eq!((usage.evicted_unread, usage.spill_errors), (0, 0), "{usage:?}");
    until("the files are gone", || files(place.path()).is_empty()).await;
}

/// Whatever becomes of the files, the lagging job gets the rows of its epoch, once each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_spilled_rows_are_damaged_computes_them() {
    let flip = |file: &PathBuf| {
        let mut bytes = std::fs::read(file).unwrap();
        for at in (0..bytes.len()).step_by(10_001) {
            bytes[at] ^= 0x10;
        }
        std::fs::write(file, bytes).unwrap();
    };
    let cut = |file: &PathBuf| {
        let half = file.metadata().unwrap().len() / 2;
        std::fs::File::options().write(true).open(file).unwrap().set_len(half).unwrap();
    };
    let damages: [&dyn Fn(&PathBuf); 3] = [&|file| std::fs::remove_file(file).unwrap(), &cut, &flip];
    for damage in damages {
        let place = tempfile::tempdir().unwrap();
        let cluster = cluster(patient(WINDOW, SharingLag::Spill), place.path()).await;
        let client = cluster.client().await;
        let served = one_after_the_other(&client, place.path(), |files| files.iter().for_each(damage)).await;
        let usage = cluster.workers[0].window_usage();
        assert!(usage.spill_errors > 10, "{usage:?}");
        assert!(uses(&served)[1].taken_over > 10, "{served:?}");
    }
}

/// A worker that cannot write continues as one that drops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_its_spill_folder_loses_no_row() {
    let place = tempfile::tempdir().unwrap();
    let cluster = cluster(patient(WINDOW, SharingLag::Spill), place.path()).await;
    std::fs::remove_dir_all(place.path()).unwrap();
    one_after_the_other(&cluster.client().await, place.path(), |files| assert!(files.is_empty())).await;
    let usage = cluster.workers[0].window_usage();
    assert!(usage.spill_errors > 0 && usage.evicted_unread > 0 && usage.peak_bytes <= WINDOW, "{usage:?}");
}

/// The folder is the worker's own, goes with it, and is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_files_are_bounded_and_go_with_the_worker() {
    const SPILL: u64 = 5 << 20;
    for is_killed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let settings = SharingSettings { spill_bytes: SPILL, ..patient(WINDOW, SharingLag::Spill) };
        let mut cluster = cluster(settings, place.path()).await;
        let client = cluster.client().await;
        let [quick, slow] = quick_and_slow(&client).await;
        to_the_end(&client, quick).await;
        let bytes = || files(place.path()).iter().map(|f| f.metadata().map_or(0, |m| m.len())).sum::<u64>();
        let usage = || cluster.workers[0].window_usage();
        // A file that did not fit is removed soon.
        until("what is counted is there", || usage().disk_bytes == bytes()).await;
        assert!(bytes() > SPILL / 2 && bytes() <= SPILL, "{}", bytes());
        assert_eq!(usage().disk_limit_bytes, SPILL);
        let worker = cluster.workers.remove(0);
        if is_killed {
            worker.kill()
        } else {
            worker.shutdown().await
        }
        drop(slow);
        until("the folder is gone", || is_empty(&place)).await;
    }
}

fn is_empty(place: &TempDir) -> bool {
    std::fs::read_dir(place.path()).unwrap().next().is_none()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}
