//! Boundaries that a worker learns before the first epoch.

use std::time::Duration;

use caju_proto::v1;
use caju_runtime::{Task, Tasks};
use caju_types::{Error, ErrorKind, Result, TakenRows};
use serde_json::{Value, json};

use super::fake::{World, open_request, run};
use crate::config::{DispatcherConfig, MemoryLimits};
use crate::state::LossLimits;

const PLACE: &str = "steps[1].bucket_by_length";

fn learns() -> Value {
    json!({ "splits": 3, "learns": PLACE })
}

/// A worker's heartbeat; what it is to learn.
async fn beat(w: &World, worker: u64, learning: &[&str]) -> Vec<v1::BoundariesToLearn> {
    let address = w.core.snapshot().workers[&caju_types::WorkerId(worker)].address.clone();
    let request = v1::WorkerHeartbeatRequest {
        worker_id: worker,
        address,
        secret: w.worker_secret(worker),
        learns_boundaries: true,
        learning: learning.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    w.core.workers.worker_heartbeat(request).await.unwrap().learn
}

async fn report(w: &World, worker: u64, dataset: &str, found: Result<&[i64], Error>) -> Result<()> {
    let (stages, failure) = match found {
        Ok(found) => (vec![v1::LearntBoundaries { stage: 1, boundaries: found.to_vec(), rows: 9 }], None),
        Err(e) => (vec![], Some(v1::Failure::from(&e))),
    };
    let request = v1::ReportBoundariesRequest {
        worker_id: worker,
        secret: w.worker_secret(worker),
        dataset: dataset.to_string(),
        stages,
        failure,
    };
    w.core.learning.report_boundaries(request).await.map(|_| ())
}

type Opening = Task<Result<v1::OpenIterationResponse>>;

/// Opens an epoch, in a task that waits for the boundaries.
async fn opening(w: &World, request: v1::OpenIterationRequest) -> Opening {
    let (core, waiting) = (std::sync::Arc::clone(&w.core), w.clock.waiting());
    let opening = Tasks::new().spawn("a reader", async move { core.epochs.open_iteration(request).await });
    while w.clock.waiting() == waiting && !opening.is_finished() {
        tokio::task::yield_now().await;
    }
    opening
}

fn asks_again(definition: &Value, job: &str) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest { boundaries_wait_ms: 5_000, ..open_request(definition, job) }
}

/// A dataset whose boundaries the worker learns for job `first`.
async fn learnt(w: &World, worker: u64, found: &[i64]) -> (String, v1::OpenIterationResponse) {
    let opening = opening(w, asks_again(&learns(), "first")).await;
    let order = beat(w, worker, &[]).await.remove(0);
    assert_eq!(serde_json::from_str::<Value>(&order.definition_json).unwrap(), learns());
    report(w, worker, &order.dataset, Ok(found)).await.unwrap();
    (order.dataset, opening.await.unwrap().unwrap())
}

fn definition(open: &v1::OpenIterationResponse) -> Value {
    serde_json::from_str(&open.definition_json).unwrap()
}

#[test]
fn all_readers_get_what_the_first_worker_learnt_also_after_a_restart() {
    run(async {
        let mut w = World::new();
        let (a, _) = (w.worker("a:1").await, w.worker("b:1").await);
        let (_, open) = learnt(&w, a, &[4, 9]).await;
        let runs = json!({ "splits": 3, "boundaries": [4, 9] });
        assert_eq!(definition(&open), runs);
        assert!(beat(&w, a, &[]).await.is_empty(), "it is learnt once");
        for restarts in [false, true] {
            if restarts {
                w.restart();
            }
            let other = json!({ "splits": 3, "learns": PLACE, "spelling": restarts });
            let names = [learns(), other, runs.clone()];
            for (i, def) in names.iter().enumerate() {
                let again = w.open(def, &format!("job-{restarts}-{i}")).await;
                assert_eq!((definition(&again), &again.fingerprint), (runs.clone(), &open.fingerprint));
            }
        }
        let state = w.core.snapshot();
        assert_eq!((state.learnt.len(), state.datasets.len()), (1, 1));
        let status = w.core.status.get_status().await.unwrap();
        let want = v1::LearntBoundaries { stage: 1, boundaries: vec![4, 9], rows: 9 };
        assert!(status.jobs.iter().all(|job| job.boundaries == [want.clone()]), "{status:?}");
    });
}

#[test]
fn readers_of_one_job_wait_for_one_worker_and_its_epochs_bind_nothing_again() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let first = opening(&w, asks_again(&learns(), "j")).await;
        let second = opening(&w, asks_again(&learns(), "j")).await;
        let order = beat(&w, a, &[]).await.remove(0);
        assert!(beat(&w, b, &[]).await.is_empty(), "one worker learns them");
        assert!(beat(&w, a, &[&order.dataset]).await.is_empty(), "it learns them already");
        // The answer that ordered it was lost.
        assert_eq!(beat(&w, a, &[]).await, std::slice::from_ref(&order));
        report(&w, a, &order.dataset, Ok(&[4])).await.unwrap();
        let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
        assert_eq!(first.iteration_id, second.iteration_id);
        let binds = w.catalog.binds.load(std::sync::atomic::Ordering::Relaxed);
        let next = v1::OpenIterationRequest { epoch: 1, ..asks_again(&learns(), "j") };
        w.core.epochs.open_iteration(next).await.unwrap();
        assert_eq!(w.catalog.binds.load(std::sync::atomic::Ordering::Relaxed), binds);
    });
}

/// A worker in a reader's process may have that reader's functions and files, and runs nothing for readers of other processes.
#[test]
fn a_worker_in_a_readers_process_learns_for_that_reader_alone() {
    run(async {
        let w = World::new();
        let own = "memory://a-process/1";
        let (in_reader, other) = (w.worker(own).await, w.worker("b:1").await);
        let stranger = opening(&w, asks_again(&learns(), "j")).await;
        assert!(beat(&w, in_reader, &[]).await.is_empty());
        let order = beat(&w, other, &[]).await.remove(0);
        report(&w, other, &order.dataset, Ok(&[4])).await.unwrap();
        stranger.await.unwrap().unwrap();

        let w = World::new();
        let in_reader = w.worker(own).await;
        let request =
            v1::OpenIterationRequest { local_workers: vec![own.into()], ..asks_again(&learns(), "j") };
        let reader = opening(&w, request).await;
        let order = beat(&w, in_reader, &[]).await.remove(0);
        report(&w, in_reader, &order.dataset, Ok(&[4])).await.unwrap();
        reader.await.unwrap().unwrap();
    });
}

#[test]
fn a_reader_hears_who_learns_and_asks_again() {
    run(async {
        let w = World::new();
        let a = w.worker("a:1").await;
        let patient = opening(&w, asks_again(&learns(), "j")).await;
        w.clock.advance(Duration::from_secs(5));
        let answer = patient.await.unwrap().unwrap().learning.unwrap();
        assert_eq!((answer.stage.as_str(), answer.worker.as_str()), (PLACE, ""));
        let patient = opening(&w, asks_again(&learns(), "j")).await;
        let order = beat(&w, a, &[]).await.remove(0);
        w.clock.advance(Duration::from_secs(5));
        assert!(patient.await.unwrap().unwrap().learning.unwrap().worker.ends_with("at a:1"));
        // A client that does not ask again gets an error that says to try later.
        let old = opening(&w, open_request(&learns(), "j")).await;
        w.clock.advance(Duration::from_secs(60));
        let e = old.await.unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.message().contains(&format!("{PLACE}: its boundaries are not known yet: worker")), "{e}");
        // What nobody waits for at the moment is kept.
        report(&w, a, &order.dataset, Ok(&[7])).await.unwrap();
        assert_eq!(definition(&w.open(&learns(), "j").await)["boundaries"], json!([7]));
    });
}

/// What becomes of boundaries when this number of workers is lost while they learn them, and `limit` are allowed.
async fn lost_while_they_learn(lost: usize, limit: u32) {
    let losses = LossLimits { splits: limit, ..LossLimits::default() };
    let w = World::with(|config| DispatcherConfig { losses, ..config });
    let names: Vec<String> = (0..=lost).map(|i| format!("w{i}:1")).collect();
    let mut workers = Vec::new();
    for name in &names {
        workers.push((w.worker(name).await, name.as_str()));
    }
    let mut failed = None;
    for i in 0..lost {
        let opening = opening(&w, asks_again(&learns(), "j")).await;
        assert_eq!(beat(&w, workers[i].0, &[]).await.len(), 1, "{i}");
        w.silence(Duration::from_secs(10), &workers[i + 1..], &[]).await;
        match opening.await.unwrap() {
            Ok(answer) => assert!(answer.learning.is_some()),
            Err(e) => failed = Some(e),
        }
    }
    let last = workers[lost].0;
    if lost < limit as usize {
        let opening = opening(&w, asks_again(&learns(), "j")).await;
        let order = beat(&w, last, &[]).await;
        report(&w, last, &order[0].dataset, Ok(&[2])).await.unwrap();
        assert_eq!(definition(&opening.await.unwrap().unwrap())["boundaries"], json!([2]));
        return;
    }
    // A reader that was not waiting at the time hears of it when it asks again.
    let e = match failed {
        Some(e) => e,
        None => w.core.epochs.open_iteration(asks_again(&learns(), "j")).await.unwrap_err(),
    };
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
    assert!(e.message().starts_with(&format!("{PLACE}: its boundaries were not learnt")), "{e}");
    assert!(e.message().contains("--max-split-losses"), "{e}");
    let is_named = |name: &String| e.message().contains(&format!("at {name}"));
    assert!(names[..lost].iter().all(is_named) && !is_named(&names[lost]), "{e}");
    // It is said once. Then they are learnt again.
    learnt(&w, last, &[5]).await;
}

/// `--max-split-losses`: a worker that is lost while it learns is replaced, until as many are lost as with one split.
#[test]
fn boundaries_fail_after_as_many_lost_workers_as_the_split_losses() {
    run(async {
        for limit in [2, 3, 5] {
            for lost in [1, 2, 3, 5] {
                if lost <= limit {
                    lost_while_they_learn(lost as usize, limit).await;
                }
            }
        }
    });
}

#[test]
fn workers_that_leave_while_they_learn_are_replaced() {
    run(async {
        let w = World::new();
        let opening = opening(&w, asks_again(&learns(), "j")).await;
        for i in 0..5 {
            let worker = w.worker(&format!("{i}:1")).await;
            assert_eq!(beat(&w, worker, &[]).await.len(), 1, "{i}");
            leave(&w, worker).await;
        }
        let last = w.worker("last:1").await;
        let order = beat(&w, last, &[]).await.remove(0);
        report(&w, last, &order.dataset, Ok(&[2])).await.unwrap();
        opening.await.unwrap().unwrap();
    });
}

/// `--boundaries-gc-timeout`.
#[test]
fn boundaries_that_nobody_asks_for_are_not_learnt_after_their_time() {
    run(async {
        for (waited, orders) in [(59, 1), (60, 0)] {
            let w = World::with(|mut config| {
                config.timers.boundaries_gc_timeout = Duration::from_secs(60);
                config
            });
            let reader = opening(&w, asks_again(&learns(), "j")).await;
            reader.abort();
            assert!(reader.await.is_err());
            w.clock.advance(Duration::from_secs(waited));
            let a = w.worker("a:1").await;
            assert_eq!(beat(&w, a, &[]).await.len(), orders, "after {waited} s");
        }
    });
}

#[test]
fn a_reader_that_waits_for_boundaries_needs_a_worker() {
    run(async {
        let w = World::new();
        let target = || {
            w.clock.advance(Duration::from_secs(1));
            w.core.scaling.sample_for_scaling();
            w.core.scaling.scaling_target().borrow().workers
        };
        assert_eq!([target(), target()], [0, 0]);
        let opening = opening(&w, asks_again(&learns(), "j")).await;
        assert_eq!([target(), target()], [1, 1]);
        opening.abort();
    });
}

/// The worker exits.
async fn leave(w: &World, worker: u64) {
    let request =
        v1::DrainWorkerRequest { worker_id: worker, secret: w.worker_secret(worker), leaving: true };
    w.core.workers.drain_worker(request).await.unwrap();
}

#[test]
fn a_worker_that_comes_back_or_gives_up_does_not_learn_any_more() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let opening = opening(&w, asks_again(&learns(), "j")).await;
        assert_eq!(beat(&w, a, &[]).await.len(), 1);
        w.worker("a:1").await;
        let order = beat(&w, b, &[]).await.remove(0);
        report(&w, b, &order.dataset, Err(Error::cancelled("it leaves"))).await.unwrap();
        assert_eq!(beat(&w, a, &[]).await, std::slice::from_ref(&order));
        report(&w, a, &order.dataset, Ok(&[2])).await.unwrap();
        opening.await.unwrap().unwrap();
    });
}

#[test]
fn what_a_worker_cannot_learn_is_the_error_of_the_readers() {
    run(async {
        let w = World::new();
        let a = w.worker("a:1").await;
        let (first, second) =
            (opening(&w, asks_again(&learns(), "j")).await, opening(&w, asks_again(&learns(), "j")).await);
        let order = beat(&w, a, &[]).await.remove(0);
        let bad = Error::data_loss(format!("{PLACE}: its boundaries could not be learnt: a.csv, row 3"));
        report(&w, a, &order.dataset, Err(bad.clone())).await.unwrap();
        for opening in [first, second] {
            let e = opening.await.unwrap().unwrap_err();
            assert_eq!((e.kind(), e.message()), (bad.kind(), bad.message()));
        }
        assert!(w.core.snapshot().jobs.is_empty(), "nothing is left of it");
        // The file is mended, and the reader asks once more.
        learnt(&w, a, &[3]).await;
    });
}

#[test]
fn other_boundaries_than_the_first_are_refused_by_name() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let (dataset, open) = learnt(&w, a, &[4, 9]).await;
        report(&w, b, &dataset, Ok(&[4, 9])).await.unwrap();
        let e = report(&w, b, &dataset, Ok(&[4, 8])).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        let want =
            format!("learnt {PLACE}: [4, 8] of 9 rows, and before {PLACE}: [4, 9] of 9 rows was learnt");
        assert!(e.message().contains(&want), "{e}");
        assert_eq!(w.open(&learns(), "other").await.fingerprint, open.fingerprint);
    });
}

#[test]
fn a_dispatcher_that_restarts_takes_what_is_learnt_at_that_time() {
    run(async {
        let mut w = World::new();
        let a = w.worker("a:1").await;
        let before = opening(&w, asks_again(&learns(), "j")).await;
        let order = beat(&w, a, &[]).await.remove(0);
        before.abort();
        assert!(before.await.is_err());
        w.restart();
        report(&w, a, &order.dataset, Ok(&[5])).await.unwrap();
        assert!(w.core.snapshot().learnt.is_empty(), "no reader has come back");
        let after = opening(&w, asks_again(&learns(), "j")).await;
        report(&w, a, &order.dataset, Ok(&[5])).await.unwrap();
        assert_eq!(definition(&after.await.unwrap().unwrap())["boundaries"], json!([5]));
    });
}

#[test]
fn a_state_of_other_boundaries_is_refused() {
    run(async {
        let w = World::new();
        let a = w.worker("a:1").await;
        let (_, open) = learnt(&w, a, &[4, 9]).await;
        let elsewhere = World::new();
        let b = elsewhere.worker("b:1").await;
        learnt(&elsewhere, b, &[4, 8]).await;
        let state = v1::ReaderState {
            fingerprint: open.fingerprint.clone(),
            iteration_id: 5,
            readers: vec![7],
            all_readers: vec![7],
            taken: TakenRows::default().encode().into(),
            ..Default::default()
        };
        let request = v1::OpenIterationRequest { states: vec![state], ..asks_again(&learns(), "resumed") };
        w.core.epochs.open_iteration(request.clone()).await.unwrap();
        let e = elsewhere.core.epochs.open_iteration(request).await.unwrap_err();
        assert!(e.message().contains(&open.fingerprint), "{e}");
        assert!(e.message().contains(&format!("were learnt here are {PLACE}: [4, 8] of 9 rows")), "{e}");
    });
}

#[test]
fn a_dataset_with_a_chosen_id_learns_when_it_is_read() {
    run(async {
        let w = World::new();
        let a = w.worker("a:1").await;
        let request =
            v1::RegisterDatasetRequest { definition_json: learns().to_string(), dataset_id: "texts".into() };
        w.core.datasets.register_dataset(request).await.unwrap();
        assert!(beat(&w, a, &[]).await.is_empty(), "nobody reads it");
        let by_id = || v1::OpenIterationRequest {
            dataset_id: "texts".into(),
            definition_json: String::new(),
            ..asks_again(&learns(), "j")
        };
        let first = opening(&w, by_id()).await;
        let order = beat(&w, a, &[]).await.remove(0);
        report(&w, a, &order.dataset, Ok(&[6])).await.unwrap();
        let first = first.await.unwrap().unwrap();
        let second = w.core.epochs.open_iteration(by_id()).await.unwrap();
        assert_eq!((&*first.job, first.iteration_id), ("j:texts", second.iteration_id));
        assert_eq!(definition(&second)["boundaries"], json!([6]));
    });
}

#[test]
fn workers_that_cannot_learn_or_drain_are_not_asked() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let opening = opening(&w, asks_again(&learns(), "j")).await;
        let old = v1::WorkerHeartbeatRequest {
            worker_id: a,
            address: "a:1".into(),
            secret: w.worker_secret(a),
            ..Default::default()
        };
        assert!(w.core.workers.worker_heartbeat(old).await.unwrap().learn.is_empty());
        let request =
            v1::DrainWorkerRequest { worker_id: b, secret: w.worker_secret(b), ..Default::default() };
        w.core.workers.drain_worker(request).await.unwrap();
        assert!(beat(&w, b, &[]).await.is_empty());
        assert_eq!(beat(&w, a, &[]).await.len(), 1);
        opening.abort();
    });
}

#[test]
fn functions_in_another_form_run_with_the_same_boundaries() {
    run(async {
        let w = World::new();
        let a = w.worker("a:1").await;
        let packed = |form: &str| json!({ "splits": 3, "learns": PLACE, "payload": form });
        let opening = opening(&w, asks_again(&packed("x"), "j")).await;
        let order = beat(&w, a, &[]).await.remove(0);
        report(&w, a, &order.dataset, Ok(&[6])).await.unwrap();
        assert_eq!(definition(&opening.await.unwrap().unwrap())["payload"], "x");
        let other = w.open(&packed("y"), "k").await;
        assert_eq!(definition(&other), json!({ "splits": 3, "payload": "y", "boundaries": [6] }));
    });
}

#[test]
fn the_boundaries_that_are_learnt_at_a_time_are_as_many_as_datasets() {
    run(async {
        let w = World::with(|mut config| {
            config.memory.datasets = 2;
            config
        });
        let mut openings = Vec::new();
        for i in 0..2 {
            let def = json!({ "splits": i, "learns": PLACE });
            openings.push(opening(&w, asks_again(&def, &format!("j{i}"))).await);
        }
        let e = w.core.epochs.open_iteration(asks_again(&learns(), "j")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().contains("the boundaries of 2 datasets ("), "{e}");
        openings.iter().for_each(Task::abort);
    });
}

#[test]
fn a_worker_learns_a_few_boundaries_at_a_time_and_shows_its_secret() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let mut openings = Vec::new();
        for i in 0..6 {
            let def = json!({ "splits": i, "learns": PLACE });
            openings.push(opening(&w, asks_again(&def, &format!("j{i}"))).await);
        }
        let first = beat(&w, a, &[]).await;
        let names: Vec<&str> = first.iter().map(|order| order.dataset.as_str()).collect();
        assert_eq!((names.len(), beat(&w, a, &names).await.len()), (4, 0));
        assert_eq!(beat(&w, b, &[]).await.len(), 2);
        let forged = v1::ReportBoundariesRequest {
            worker_id: a,
            secret: w.worker_secret(b),
            dataset: names[0].to_string(),
            stages: vec![v1::LearntBoundaries { stage: 1, boundaries: vec![1], rows: 1 }],
            failure: None,
        };
        let e = w.core.learning.report_boundaries(forged.clone()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied);
        let nonsense =
            v1::ReportBoundariesRequest { secret: w.worker_secret(a), dataset: "x".repeat(32), ..forged };
        let e = w.core.learning.report_boundaries(nonsense).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(w.core.snapshot().learnt.is_empty());
    });
}

#[test]
fn the_definitions_whose_boundaries_are_learnt_are_bounded_in_bytes() {
    run(async {
        // A dataset counts a kilobyte and more.
        let memory = MemoryLimits { dataset_bytes: 2_000, ..MemoryLimits::default() };
        let w = World::with(|config| DispatcherConfig { memory, ..config });
        w.worker("a:1").await;
        let first = opening(&w, asks_again(&learns(), "first")).await;
        let same = opening(&w, asks_again(&learns(), "same")).await;
        assert!(!first.is_finished() && !same.is_finished(), "one definition");
        let other = json!({ "splits": 4, "learns": PLACE });
        let e = w.core.epochs.open_iteration(asks_again(&other, "other")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().contains("--max-dataset-bytes"), "{e}");
    });
}

#[test]
fn a_lost_worker_that_fails_later_does_not_end_the_wait_for_another_one() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let first = opening(&w, asks_again(&learns(), "j")).await;
        let order = beat(&w, a, &[]).await.remove(0);
        w.silence(Duration::from_secs(10), &[(b, "b:1")], &[]).await;
        first.await.unwrap().unwrap();
        let second = opening(&w, asks_again(&learns(), "j")).await;
        let again = beat(&w, b, &[]).await;
        // The heartbeats in between may have brought the order already. It names the same dataset.
        let dataset = again.first().map_or(order.dataset.clone(), |order| order.dataset.clone());
        let broken = Error::unavailable("the connection broke while it stood still");
        report(&w, a, &order.dataset, Err(broken)).await.unwrap();
        report(&w, b, &dataset, Ok(&[2])).await.unwrap();
        assert_eq!(definition(&second.await.unwrap().unwrap())["boundaries"], json!([2]));
    });
}
