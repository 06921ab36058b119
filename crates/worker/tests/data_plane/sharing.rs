//! Jobs that share: rows are computed once on a worker, and each job gets each row of its epoch once.

use std::time::Duration;

use caju_client::{Client, ReadRequest, Reader, Sharing};
use caju_engine::{SharingLag, SharingSettings};
use caju_proto::v1::{JobStatus, ProcessingMode, SharedUse};
use caju_types::{ErrorKind, mix64};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

/// Rows of an epoch: 64 splits of 1024 rows.
pub(crate) const ROWS: u64 = 64 * 1024;
/// Rows of a split.
pub(crate) const SPLIT: u64 = 1024;

/// Rows that a task computes at most while its user takes none: 1 MiB wait in the reader, 64 KiB in the task, and the splits of
/// its readers are under way; twice that, for rows of half the width.
const AHEAD: u64 = 40 * SPLIT;

/// A window that has space for everything, and tasks that wait for each other as long as a test may take: each row is
/// computed once.
pub(crate) fn patient(window_bytes: u64, lag: SharingLag) -> SharingSettings {
    SharingSettings {
        window_bytes,
        backlog_bytes: window_bytes,
        lag,
        wait: TEST_TIMEOUT,
        ..SharingSettings::default()
    }
}

pub(crate) async fn cluster(workers: usize, sharing: SharingSettings) -> Cluster {
    let mut cluster = Cluster::start(0).await;
    for _ in 0..workers {
        cluster.add(|config| config.sharing = sharing).await;
    }
    cluster
}

pub(crate) fn shared(def: &Value, job: &str) -> ReadRequest {
    ReadRequest { sharing: Sharing::Exact { trainer_id: None }, ..request(def, job) }
}

/// A stage that makes rows so wide that a reader which takes nothing holds an epoch up.
pub(crate) fn wide() -> Value {
    json!({"with_columns": {"pad": "repeat('x', 200)"}})
}

pub(crate) fn squares() -> Value {
    range(ROWS, &[json!({"with_columns": {"square": "id * id"}}), wide(), json!({"batch": 100})])
}

/// The status of a reader's epoch after its end.
pub(crate) async fn status(client: &Client, reader: Reader) -> JobStatus {
    let iteration = reader.iteration();
    reader.close().await;
    client.final_status(iteration, TEST_TIMEOUT).await.unwrap()
}

pub(crate) fn shared_use(status: &JobStatus) -> SharedUse {
    status.served.unwrap().shared.unwrap()
}

/// Readers that have begun: all of them have rows before any comes to its end.
pub(crate) async fn begun(client: &Client, requests: Vec<ReadRequest>) -> Vec<(Reader, Vec<Vec<i64>>)> {
    let mut readers = Vec::new();
    for request in requests {
        let mut reader = client.read(request).await.unwrap();
        let first = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap();
        readers.push((reader, vec![ids(&first.batch)]));
    }
    readers
}

/// Reads all to their ends concurrently: what each job's own tasks did.
pub(crate) async fn finish(
    client: &Client,
    readers: Vec<(Reader, Vec<Vec<i64>>)>,
    rows: u64,
) -> Vec<SharedUse> {
    let all = readers.into_iter().map(|(mut reader, mut got)| async move {
        got.extend(drain(&mut reader).await.unwrap());
        assert_once(got, rows.cast_signed());
        shared_use(&status(client, reader).await)
    });
    futures::future::join_all(all).await
}

pub(crate) fn computed(uses: &[SharedUse]) -> u64 {
    uses.iter().map(|u| u.computed_rows).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_jobs_compute_each_row_once() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let requests = ["a", "b", "c"].map(|job| shared(&squares(), job)).into();
    let readers = begun(&client, requests).await;
    let running = client.status().await.unwrap();
    let of_a = running.jobs.iter().find(|j| j.job == "a").unwrap();
    assert_eq!((of_a.sharing.as_str(), of_a.shares_with.len()), ("exact", 2), "{:?}", of_a.shares_with);
    let uses = finish(&client, readers, ROWS).await;
    assert_eq!(computed(&uses), ROWS, "{uses:?}");
    let read: u64 = uses.iter().map(|u| u.window_rows).sum();
    assert_eq!((read, uses.iter().map(|u| u.taken_over).sum::<u64>()), (2 * ROWS, 0), "{uses:?}");
    let usage = cluster.workers[0].window_usage();
    assert_eq!((usage.hits, usage.misses, usage.evicted_unread), (128, 64, 0), "{usage:?}");
}

/// Jobs whose epochs have an order see each other as sharing jobs, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_an_order_say_with_whom_they_share() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let mut def = squares();
    def["deterministic"] = json!(true);
    let readers = begun(&client, ["a", "b"].map(|job| shared(&def, job)).into()).await;
    let running = client.status().await.unwrap();
    for (job, other) in [("a", "b"), ("b", "a")] {
        let of_job = running.jobs.iter().find(|j| j.job == job).unwrap();
        assert_eq!(of_job.shares_with, [format!("{other} epoch 0")], "{job}");
    }
    assert_eq!(computed(&finish(&client, readers, ROWS).await), ROWS);
}

/// Jobs whose epochs draw the same random numbers share; jobs with another seed do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_shared_where_the_draws_are_equal() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let def = range(
        ROWS,
        &[json!({"with_columns": {"x": "uniform(0.0, 1.0)"}}), wide(), json!({"shuffle": {"buffer": 500}})],
    );
    let of = |job: &str, seed, epoch| ReadRequest { seed: Some(seed), epoch, ..shared(&def, job) };
    let readers = begun(&client, vec![of("a", 7, 0), of("b", 7, 0), of("c", 8, 0), of("d", 7, 1)]).await;
    let uses = finish(&client, readers, ROWS).await;
    assert_eq!(computed(&uses[..2]), ROWS, "{uses:?}");
    assert_eq!((uses[2].computed_rows, uses[3].computed_rows), (ROWS, ROWS), "{uses:?}");
}

/// A job that joins late reads the rows in the window, continues with the others, and computes the rows that it missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_job_computes_what_it_has_missed() {
    // 64 splits of this number of rows. A row has about 220 bytes, so the window has some 18 of them.
    const OF_SPLIT: u64 = 4 * SPLIT;
    let (window, rows) = (16 * OF_SPLIT * 250, 64 * OF_SPLIT);
    let cluster = cluster(1, patient(window, SharingLag::Throttle)).await;
    let client = cluster.client().await;
    let def = range(rows, &[json!({"with_columns": {"square": "id * id"}}), wide(), json!({"batch": 100})]);
    let mut readers = begun(&client, vec![shared(&def, "early")]).await;
    let (early, got) = &mut readers[0];
    while got.iter().map(|ids| ids.len() as u64).sum::<u64>() < 32 * OF_SPLIT {
        got.push(ids(&early.next().await.unwrap().unwrap().batch));
    }
    readers.extend(begun(&client, vec![shared(&def, "late")]).await);
    let uses = finish(&client, readers, rows).await;
    let extra = computed(&uses) - rows;
    let usage = cluster.workers[0].window_usage();
    // Two jobs that share nothing compute 64 splits twice. The late job misses those that the early one had computed, less those in the
    // window. Splits that the early one was computing when it joined may leave before it reads them, and no others.
    assert!(extra <= 24 * OF_SPLIT, "{} splits were computed twice: {uses:?}", extra / OF_SPLIT);
    assert!(usage.evicted_unread <= 4, "{usage:?}");
    assert!(uses[1].window_rows > 0, "{uses:?}");
    assert!(usage.peak_bytes <= window && usage.peak_bytes > 0, "{usage:?}");
}

/// `sharing: relaxed`: a late job leaves out what another one computed and what has left the window, and counts that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_22_a_relaxed_job_counts_the_rows_that_it_skips() {
    let cluster = cluster(1, patient(8 * SPLIT * 250, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let relaxed = |job: &str| ReadRequest {
        sharing: Sharing::Relaxed { trainer_id: None },
        ..request(&squares(), job)
    };
    let (mut early, mut of_early) = begun(&client, vec![relaxed("early")]).await.remove(0);
    while of_early.iter().map(Vec::len).sum::<usize>() < 48 * 1024 {
        of_early.push(ids(&early.next().await.unwrap().unwrap().batch));
    }
    let (mut late, mut of_late) = begun(&client, vec![relaxed("late")]).await.remove(0);
    let (a, b) = futures::join!(drain(&mut early), drain(&mut late));
    of_early.extend(a.unwrap());
    of_late.extend(b.unwrap());
    let mut skipped = Vec::new();
    for (reader, got) in [(early, of_early), (late, of_late)] {
        let mut got = got.concat();
        let rows = got.len() as u64;
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len() as u64, rows, "rows came twice");
        let status = status(&client, reader).await;
        assert_eq!(status.sharing, "relaxed");
        let shared = shared_use(&status);
        assert_eq!(rows + shared.skipped_rows, ROWS, "{shared:?}");
        skipped.push(shared.skipped_rows);
    }
    // The early job's user had taken 48 splits, and 8 fit the window.
    assert!(skipped[1] >= 30 * SPLIT, "{skipped:?}");
}

/// A worker that dies takes with it the splits that it skipped and did not report. Those that it reported are not run again, so no row
/// is both skipped and delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_22_skipped_rows_add_up_when_a_worker_is_lost() {
    let settings =
        SharingSettings { wait: Duration::from_millis(100), ..patient(4 * SPLIT * 250, SharingLag::Drop) };
    let mut cluster = cluster(2, settings).await;
    let client = cluster.client().await;
    let relaxed = |job: &str| ReadRequest {
        sharing: Sharing::Relaxed { trainer_id: None },
        ..request(&squares(), job)
    };
    let (mut early, mut of_early) = begun(&client, vec![relaxed("early")]).await.remove(0);
    while of_early.iter().map(Vec::len).sum::<usize>() < 32 * 1024 {
        of_early.push(ids(&early.next().await.unwrap().unwrap().batch));
    }
    let (mut late, mut of_late) = begun(&client, vec![relaxed("late")]).await.remove(0);
    let skips = async || {
        let running = client.status().await.unwrap();
        let of_late = running.jobs.into_iter().find(|j| j.job == "late");
        of_late.and_then(|j| j.served?.shared).map_or(0, |shared| shared.skipped_rows)
    };
    while skips().await == 0 {
        let next = tokio::time::timeout(TEST_TIMEOUT, late.next()).await.unwrap().unwrap();
        of_late.push(ids(&next.expect("half of the splits are still to be read").batch));
    }
    cluster.workers.remove(0).kill();
    let (a, b) = futures::join!(drain(&mut early), drain(&mut late));
    of_early.extend(a.unwrap());
    of_late.extend(b.unwrap());
    for (reader, got) in [(early, of_early), (late, of_late)] {
        let mut got = got.concat();
        let rows = got.len() as u64;
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len() as u64, rows, "rows came twice");
        let shared = shared_use(&status(&client, reader).await);
        assert_eq!(rows + shared.skipped_rows, ROWS, "{shared:?}");
    }
}

/// Pipelines that differ below a hint share the rows above it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelines_share_down_to_their_common_hint() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let with = |below: &[Value]| {
        let above = [
            json!({"filter": "id % 2 = 0"}),
            json!({"with_columns": {"s": "id * id"}}),
            wide(),
            json!({"autocache": "base"}),
        ];
        range(ROWS, &[&above[..], below].concat())
    };
    let a = with(&[json!({"with_columns": {"a": "s + 1"}}), json!({"batch": 100})]);
    let b = with(&[json!({"with_columns": {"b": "s - 1"}}), json!({"batch": 37})]);
    let requests = vec![shared(&a, "a"), shared(&b, "b"), shared(&a, "c")];
    let readers = begun(&client, requests).await;
    let all = readers.into_iter().map(|(mut reader, mut got)| {
        let client = &client;
        async move {
            got.extend(drain(&mut reader).await.unwrap());
            assert_once([got.concat().into_iter().map(|id| id / 2).collect()], ROWS.cast_signed() / 2);
            shared_use(&status(client, reader).await)
        }
    });
    let uses = futures::future::join_all(all).await;
    // A job that is alone holds rows for equal jobs: what it had computed by then, the second one computes again.
    let extra = computed(&uses) - ROWS / 2;
    assert!(extra <= AHEAD / 2, "{} splits were computed twice: {uses:?}", 2 * extra / SPLIT);
    // Either of the first two may be ahead of the other all the time, and read nothing of it.
    assert!(uses[0].window_rows + uses[1].window_rows > 0 && uses[2].window_rows > 0, "{uses:?}");
}

/// Every job gets each row of its epoch once, whatever the window, whichever job is slow and whenever it joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_05_each_job_gets_its_epoch_at_any_speed() {
    let lags = [SharingLag::Drop, SharingLag::Throttle, SharingLag::Spill];
    let mut spilled_bytes = 0;
    for seed in 0..18u64 {
        let draw = |n: u64, most: u64| mix64(mix64(77, seed), n) % most;
        let lag = lags[usize::try_from(seed % 3).unwrap()];
        let settings = SharingSettings {
            window_bytes: match lag {
                // Most of the 7 MB of the epoch do not fit.
                SharingLag::Spill => [300_000, 2_000_000][usize::try_from(draw(0, 2)).unwrap()],
                _ => [0, 500, 40_000, 300_000, 1 << 30][usize::try_from(draw(0, 5)).unwrap()],
            },
            backlog_bytes: [0, 10_000, 1 << 30][usize::try_from(draw(7, 3)).unwrap()],
            lag,
            spill_bytes: [0, 1_000_000, 1 << 30][usize::try_from(draw(8, 3)).unwrap()],
            wait: Duration::from_millis(1 + draw(2, 50)),
        };
        let cluster = cluster(1 + usize::try_from(draw(3, 2)).unwrap(), settings).await;
        let client = cluster.client().await;
        let mut steps =
            vec![json!({"filter": "id % 7 <> 3"}), json!({"with_columns": {"x": "uniform(0.0, 1.0)"}})];
        if lag == SharingLag::Spill {
            // What the slow job's reader and task hold is a small part of the epoch then.
            steps.push(wide());
        }
        if draw(4, 2) == 0 {
            steps.push(json!({"shuffle": {"buffer": 3000}}));
        }
        steps.push(json!({"batch": 64}));
        let def = range(ROWS / 2, &steps);
        let deterministic = draw(5, 3) == 0;
        let def = if deterministic {
            json!({"deterministic": true, "source": def["source"], "steps": def["steps"]})
        } else {
            def
        };
        let jobs = (0..2 + draw(6, 3)).map(|job| {
            let (client, def) = (client.clone(), &def);
            async move {
                // It joins when another one has read some rows, as the machine goes.
                tokio::time::sleep(Duration::from_millis(draw(10 + job, 60))).await;
                let seed = Some(if draw(40 + job, 4) == 0 { 9 } else { 5 });
                let request = ReadRequest { seed, ..shared(def, &format!("job-{job}")) };
                let mut reader = client.read(request).await.unwrap();
                let is_slow = lag == SharingLag::Spill && job == 0;
                let pause = Duration::from_micros(if is_slow { 2_000 } else { 300 * draw(20 + job, 3) });
                let mut got = Vec::new();
                while let Some(element) = reader.next().await.unwrap() {
                    got.extend(ids(&element.batch));
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                }
                reader.close().await;
                got
            }
        });
        let all = tokio::time::timeout(TEST_TIMEOUT, futures::future::join_all(jobs)).await;
        let expected: Vec<i64> = (0..ROWS.cast_signed() / 2).filter(|id| id % 7 != 3).collect();
        for (job, mut got) in
            all.unwrap_or_else(|_| panic!("seed {seed}: an epoch must end")).into_iter().enumerate()
        {
            got.sort_unstable();
            assert_eq!(got.len(), expected.len(), "seed {seed}, job {job}, {settings:?}");
            assert!(got == expected, "seed {seed}, job {job}: other rows");
        }
        spilled_bytes += cluster.workers.iter().map(|w| w.window_usage().spilled_bytes).sum::<u64>();
    }
    assert!(spilled_bytes > 0, "no row was spilled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_worker_costs_no_row_of_any_job() {
    let mut cluster =
        cluster(2, SharingSettings { wait: Duration::from_millis(100), ..SharingSettings::default() }).await;
    let client = cluster.client().await;
    let mut readers = begun(&client, ["a", "b", "c"].map(|job| shared(&squares(), job)).into()).await;
    for (reader, got) in &mut readers {
        for _ in 0..100 {
            got.push(ids(&reader.next().await.unwrap().unwrap().batch));
        }
    }
    cluster.workers.remove(0).kill();
    finish(&client, readers, ROWS).await;
}

/// A job whose user takes nothing holds up no other job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_stands_still_holds_up_nobody() {
    for lag in [SharingLag::Drop, SharingLag::Throttle, SharingLag::Spill] {
        let wait = Duration::from_millis(50);
        let cluster =
            cluster(1, SharingSettings { window_bytes: 100_000, lag, wait, ..SharingSettings::default() })
                .await;
        let client = cluster.client().await;
        let mut readers =
            begun(&client, vec![shared(&squares(), "still"), shared(&squares(), "quick")]).await;
        let quick = readers.pop().unwrap();
        finish(&client, vec![quick], ROWS).await;
        finish(&client, readers, ROWS).await;
    }
}

/// A job whose own stages are slow below what it shares slows no other job down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_slow_stages_of_its_own_holds_up_nobody() {
    let wait = Duration::from_millis(100);
    let cluster = cluster(1, SharingSettings { wait, ..SharingSettings::default() }).await;
    let client = cluster.client().await;
    let square = json!({"with_columns": {"square": "id * id"}});
    // Longer than the test may take.
    let slow = json!([square, {"batch": 32}, {"sleep": {"per_batch": "1s"}}]);
    let slow = range(ROWS, slow.as_array().unwrap());
    let quick = range(ROWS, &[square, json!({"batch": 32})]);
    let mut readers = begun(&client, vec![shared(&slow, "slow")]).await;
    readers[0].0.next().await.unwrap().unwrap();
    let quick = begun(&client, vec![shared(&quick, "quick")]).await;
    finish(&client, quick, ROWS).await;
    drop(readers);
}

/// What a job reads is not what another one failed with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_25_errors_are_not_shared() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let def = range(ROWS, &[json!({"with_columns": {"x": "1 / (id - 60000)"}}), json!({"batch": 100})]);
    let readers = begun(&client, vec![shared(&def, "a"), shared(&def, "b")]).await;
    let all = readers.into_iter().map(|(mut reader, _)| async move { drain(&mut reader).await.unwrap_err() });
    let errors = futures::future::join_all(all).await;
    assert_eq!(errors[0].kind(), errors[1].kind(), "{errors:?}");
    // Another pipeline on the same rows is as good as ever.
    let good = begun(&client, vec![shared(&squares(), "c")]).await;
    finish(&client, good, ROWS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_15_trainers_of_one_job_get_all_rows_each() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let trainer = |id: &str| ReadRequest {
        sharing: Sharing::Exact { trainer_id: Some(id.into()) },
        ..request(&squares(), "trials")
    };
    let mut readers = begun(&client, vec![trainer("one"), trainer("two"), trainer("one")]).await;
    let (mut again, first_again) = readers.pop().unwrap();
    let (mut one, first_one) = readers.remove(0);
    let both = async {
        let (a, b) = futures::join!(drain(&mut one), drain(&mut again));
        [first_one, first_again, a.unwrap(), b.unwrap()].concat()
    };
    let (of_one, uses) = futures::join!(both, finish(&client, readers, ROWS));
    assert_once(of_one, ROWS.cast_signed());
    let of_one = shared_use(&status(&client, one).await);
    again.close().await;
    assert_eq!(computed(&uses) + of_one.computed_rows, ROWS, "{of_one:?} {uses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_12_what_cannot_be_shared_is_refused() {
    let cluster = cluster(1, SharingSettings::default()).await;
    let client = cluster.client().await;
    let refused = async |request: ReadRequest, kind, part: &str| {
        let e = client.read(request).await.map(|_| ()).unwrap_err();
        assert!(e.kind() == kind && e.message().contains(part), "{e}");
    };
    refused(shared(&squares(), ""), ErrorKind::InvalidArgument, "requires a named job").await;
    let consumer = caju_client::Consumer {
        index: 0,
        count: 2,
        uneven: caju_client::Uneven::Drop,
        balance: caju_client::Balance::None,
    };
    let both = ReadRequest { consumer: Some(consumer), ..shared(&squares(), "j") };
    refused(both, ErrorKind::InvalidArgument, "num_consumers and sharing exclude each other").await;
    let relaxed = |def: &Value| ReadRequest {
        sharing: Sharing::Relaxed { trainer_id: None },
        ..request(def, "relaxed")
    };
    let mut ordered = squares();
    ordered["deterministic"] = json!(true);
    refused(relaxed(&ordered), ErrorKind::InvalidArgument, "promises the order of all rows").await;
    let off = ReadRequest { mode: ProcessingMode::Off, ..relaxed(&squares()) };
    refused(off, ErrorKind::InvalidArgument, "divides its rows in processing mode").await;
    let (reader, _) = begun(&client, vec![shared(&squares(), "j")]).await.remove(0);
    let off = ReadRequest { sharing: Sharing::Off, ..request(&squares(), "j") };
    refused(off, ErrorKind::AlreadyExists, "runs with sharing `exact`, not `off`").await;
    reader.close().await;
    let e = Sharing::from_name("exact", Some(String::new())).unwrap_err();
    assert!(e.message().contains("a trainer id is empty"), "{e}");
}

/// Jobs of other names share nothing unless they ask for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_08_jobs_share_nothing_by_default() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let readers = begun(&client, vec![request(&squares(), "a"), request(&squares(), "b")]).await;
    for (mut reader, mut got) in readers {
        got.extend(drain(&mut reader).await.unwrap());
        assert_once(got, ROWS.cast_signed());
        let status = status(&client, reader).await;
        assert!(status.sharing.is_empty() && status.served.unwrap().shared.is_none());
        assert_eq!(status.served.unwrap().source_opens, 64);
    }
}

/// Where the order is promised, trainers that read step by step get equal elements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_03_trainers_in_step_get_equal_elements_in_a_promised_order() {
    let settings = SharingSettings { wait: Duration::from_millis(200), ..SharingSettings::default() };
    let cluster = cluster(1, settings).await;
    let client = cluster.client().await;
    let steps = [
        json!({"with_columns": {"x": "uniform(0.0, 1.0)"}}),
        json!({"shuffle": {"buffer": 100}}),
        json!({"batch": 10}),
    ];
    let mut def = range(20_000, &steps);
    def["deterministic"] = json!(true);
    let trainer = |n: u32| ReadRequest {
        sharing: Sharing::Exact { trainer_id: Some(n.to_string()) },
        ..request(&def, "trials")
    };
    let mut readers = begun(&client, (0..20).map(trainer).collect()).await;
    for (_, got) in &readers[1..] {
        assert_eq!(*got, readers[0].1);
    }
    for step in 1..50 {
        let mut elements = Vec::new();
        for (reader, _) in &mut readers {
            let next = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.unwrap();
            elements.push(ids(&next.unwrap().unwrap().batch));
        }
        assert!(elements.iter().all(|e| *e == elements[0]), "step {step}: {elements:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn xtr_24_a_job_that_leaves_ends_no_other_job() {
    let cluster = cluster(1, patient(1 << 30, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let mut readers = begun(&client, ["a", "b", "c"].map(|job| shared(&squares(), job)).into()).await;
    let (leaving, _) = readers.remove(0);
    let others = finish(&client, readers, ROWS);
    let (uses, ()) = futures::join!(others, leaving.close());
    // Without sharing they would compute twice the rows.
    assert!(computed(&uses) <= ROWS + AHEAD, "{uses:?}");
}

/// The state of a job that shares is that of any job: the remaining rows are read after it, also where splits were skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_shares_goes_on_behind_its_state() {
    let settings = SharingSettings {
        window_bytes: 4 * SPLIT * 250,
        wait: Duration::from_millis(100),
        ..SharingSettings::default()
    };
    let (first, second) = (cluster(1, settings).await, cluster(2, settings).await);
    let client = first.client().await;
    let mut early = begun(&client, vec![shared(&squares(), "early")]).await.remove(0).0;
    for _ in 0..300 {
        early.next().await.unwrap().unwrap();
    }
    let (mut late, mut got) = begun(&client, vec![shared(&squares(), "late")]).await.remove(0);
    for _ in 0..200 {
        got.push(ids(&late.next().await.unwrap().unwrap().batch));
    }
    let state = late.state().unwrap();
    futures::join!(late.close(), early.close());
    let client = second.client().await;
    let on = ReadRequest { states: vec![state], ..shared(&squares(), "late") };
    let mut readers = begun(&client, vec![on, shared(&squares(), "other")]).await;
    let (mut other, mut of_other) = readers.pop().unwrap();
    let (mut late, more) = readers.remove(0);
    let (rest, all) = futures::join!(drain(&mut late), drain(&mut other));
    got.extend(more.into_iter().chain(rest.unwrap()));
    assert_once(got, ROWS.cast_signed());
    of_other.extend(all.unwrap());
    assert_once(of_other, ROWS.cast_signed());
}

/// A job with `relaxed` leaves out rows of other jobs alone: those that its own tasks computed before the state, and that its user did
/// not take, are computed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relaxed_job_goes_on_behind_its_state_with_all_rows_that_it_has_not_taken() {
    let cluster = cluster(1, patient(SPLIT * 250, SharingLag::Drop)).await;
    let client = cluster.client().await;
    let relaxed =
        || ReadRequest { sharing: Sharing::Relaxed { trainer_id: None }, ..request(&squares(), "alone") };
    let mut reader = client.read(relaxed()).await.unwrap();
    let mut got = Vec::new();
    for _ in 0..100 {
        got.push(ids(&reader.next().await.unwrap().unwrap().batch));
    }
    let computed = async || {
        let running = client.status().await.unwrap();
        let of_job = running.jobs.into_iter().find(|j| j.job == "alone").unwrap();
        of_job.served.and_then(|s| s.shared).map_or(0, |shared| shared.computed_rows)
    };
    // Rows that the user has not taken have left the window, which has room for one split.
    let ahead = async {
        while computed().await < 100 * 100 + 3 * SPLIT {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, ahead).await.expect("the task computes ahead");
    let state = reader.state().unwrap();
    reader.close().await;
    let mut rest = client.read(ReadRequest { states: vec![state], ..relaxed() }).await.unwrap();
    got.extend(drain(&mut rest).await.unwrap());
    assert_once(got, ROWS.cast_signed());
    assert_eq!(shared_use(&status(&client, rest).await).skipped_rows, 0);
}
