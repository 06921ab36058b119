//! Readers that restored the beginning of an epoch, after a launch of their program that had read some of it.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, ErrorKind, IterationId, Result};
use serde_json::json;

use super::fake::{World, open_request, run};

const MS: Duration = Duration::from_millis(1);

fn restored(attempt: &str) -> v1::OpenIterationRequest {
    let attempt = (!attempt.is_empty()).then(|| v1::Attempt { id: attempt.into(), ..Default::default() });
    v1::OpenIterationRequest { restored_beginning: true, attempt, ..open_request(&json!({"splits": 2}), "j") }
}

/// Opens the epoch while time passes; readers in `alive` call meanwhile.
pub(super) async fn open(
    w: &World,
    request: v1::OpenIterationRequest,
    alive: &[(u64, u64)],
) -> Result<v1::OpenIterationResponse> {
    let opening = w.core.epochs.open_iteration(request);
    tokio::pin!(opening);
    loop {
        tokio::select! {
            biased;
            opened = &mut opening => return opened,
            () = tokio::task::yield_now() => {
                if w.clock.is_awaited() {
                    w.clock.advance(MS * 100);
                }
                for (client, iteration) in alive {
                    w.beat(*client, *iteration, &[], &[]).await;
                }
            }
        }
    }
}

/// Reads both splits to their ends.
async fn read_all(w: &World, worker: u64, reader: &v1::OpenIterationResponse) {
    let (client, iteration, task) = (reader.client_id, reader.iteration_id, reader.tasks[0].task_id);
    for no in 1.. {
        if w.next(task, worker, no, 9).await.unwrap().end {
            break;
        }
    }
    w.finish_counted(task, worker, Some(&[(0, 5), (1, 5)])).await;
    assert!(w.take(client, iteration, &[(0, 0, 5), (1, 0, 5)], &[task]).await.accounted);
    w.close(client, iteration, vec![]).await;
}

fn said(refused: Result<v1::OpenIterationResponse>) -> Error {
    let e = refused.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    e
}

#[test]
fn an_epoch_begins_again_for_a_reader_that_restored_its_beginning_when_those_of_the_launch_before_are_gone() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let first = w.open(&json!({"splits": 2}), "j").await;
        let (client, iteration) = (first.client_id, first.iteration_id);
        w.next(first.tasks[0].task_id, worker, 1, 9).await.unwrap();
        w.take(client, iteration, &[(0, 0, 3)], &[]).await;
        // Its reader lives: the new one joins it, and shares what is left.
        let joined = open(&w, restored(""), &[(client, iteration)]).await.unwrap();
        assert_eq!(joined.iteration_id, iteration);
        w.close(joined.client_id, iteration, vec![]).await;
        // Its reader was killed a moment ago.
        let before = w.core.context.clock.now();
        let again = open(&w, restored(""), &[]).await.unwrap();
        assert_ne!(again.iteration_id, iteration);
        assert!(
            w.core.context.clock.now() - before >= Duration::from_secs(5),
            "as long as it may still call"
        );
        assert!(!w.core.snapshot().iterations.contains_key(&IterationId(iteration)));
        assert!(w.beat(client, iteration, &[], &[]).await.unknown, "the killed reader has no part in it");
        read_all(&w, worker, &again).await;
        let late = w.open(&json!({"splits": 2}), "j").await;
        assert!(late.finished && late.iteration_id == again.iteration_id);
    });
}

#[test]
fn an_epoch_that_lost_rows_with_a_killed_reader_begins_again_from_its_beginning() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let first = w.open(&json!({"splits": 2}), "j").await;
        w.next(first.tasks[0].task_id, worker, 1, 9).await.unwrap();
        w.take(first.client_id, first.iteration_id, &[(0, 0, 3)], &[]).await;
        w.silence(Duration::from_secs(62), &[(worker, "a:1")], &[]).await;
        said(w.core.epochs.open_iteration(open_request(&json!({"splits": 2}), "j")).await);
        let again = open(&w, restored(""), &[]).await.unwrap();
        read_all(&w, worker, &again).await;
        let state = w.core.snapshot();
        assert!(state.iterations.values().all(|i| i.is_finished()), "{:?}", state.iterations);
    });
}

#[test]
fn an_epoch_begins_again_at_once_when_its_reader_was_killed_before_it_reported_anything() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let first = w.open(&json!({"splits": 2}), "j").await;
        w.next(first.tasks[0].task_id, worker, 1, 9).await.unwrap();
        let before = w.core.context.clock.now();
        let again = open(&w, restored(""), &[]).await.unwrap();
        assert!(
            w.core.context.clock.now() - before < Duration::from_secs(10),
            "not as long as the client timeout"
        );
        assert_ne!(again.iteration_id, first.iteration_id);
        read_all(&w, worker, &again).await;
    });
}

#[test]
fn iterations_from_before_that_of_the_launch_belong_to_an_earlier_one() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let first = w.open(&json!({"splits": 2}), "j").await;
        read_all(&w, worker, &first).await;
        let after = |after_iteration| v1::OpenIterationRequest { after_iteration, ..restored("") };
        // The launch has opened a later iteration: the finished one is not its own.
        let again = open(&w, after(first.iteration_id + 1), &[]).await.unwrap();
        assert_ne!(again.iteration_id, first.iteration_id);
        read_all(&w, worker, &again).await;
        // Another reader of the same launch finds the end.
        let late = open(&w, after(first.iteration_id), &[]).await.unwrap();
        assert!(late.finished && late.iteration_id == again.iteration_id);
    });
}

#[test]
fn a_finished_epoch_begins_again_for_another_attempt_alone() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let first = w.open(&json!({"splits": 2}), "j").await;
        read_all(&w, worker, &first).await;
        let finished = first.iteration_id;
        // Of the same launch, as far as anybody knows. Its state says that all rows are left, so it gets an error.
        assert!(said(open(&w, restored(""), &[]).await).message().contains("--attempt"));
        let one = open(&w, restored("one"), &[]).await.unwrap();
        assert_ne!(one.iteration_id, finished);
        let late = open(&w, restored("one"), &[]).await.unwrap();
        assert_eq!(late.iteration_id, one.iteration_id, "ranks of one launch share the epoch");
        w.close(late.client_id, late.iteration_id, vec![]).await;
        read_all(&w, worker, &one).await;
        w.restart();
        let two = open(&w, restored("two"), &[]).await.unwrap();
        assert_ne!(two.iteration_id, one.iteration_id);
        let e = said(open(&w, restored("one"), &[]).await);
        assert!(e.message().contains("attempt `two`"), "{e}");
        let e = w.core.epochs.open_iteration(v1::OpenIterationRequest { flight: true, ..restored("") }).await;
        assert_eq!(e.unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

/// The job remembers which iteration read an epoch when the iteration itself is forgotten.
#[test]
fn epochs_of_an_earlier_launch_begin_again_when_they_are_forgotten_too() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        // Keeps the job.
        let other = v1::OpenIterationRequest { epoch: 7, ..open_request(&json!({"splits": 2}), "j") };
        let kept = w.core.epochs.open_iteration(other).await.unwrap();
        let first = w.open(&json!({"splits": 2}), "j").await;
        read_all(&w, worker, &first).await;
        let forget = async |w: &World, id: u64| {
            let alive = [(kept.client_id, kept.iteration_id)];
            w.silence(
                w.core.context.config.timers.job_gc_timeout + Duration::from_secs(2),
                &[(worker, "a:1")],
                &alive,
            )
            .await;
            assert!(!w.core.snapshot().iterations.contains_key(&IterationId(id)), "forgotten");
        };
        forget(&w, first.iteration_id).await;
        w.restart();
        let after = |after_iteration| v1::OpenIterationRequest { after_iteration, ..restored("") };
        let launch = first.iteration_id + 1;
        let again = open(&w, after(launch), &[]).await.unwrap();
        assert!(again.iteration_id > launch);
        read_all(&w, worker, &again).await;
        forget(&w, again.iteration_id).await;
        // Another reader of the same launch comes when its own epoch is forgotten.
        assert!(said(open(&w, after(launch), &[]).await).message().contains("read to its end already"));
    });
}
