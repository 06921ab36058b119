//! Epochs that go on behind states of readers.

use std::sync::atomic::Ordering;

use caju_proto::v1;
use caju_types::{ErrorKind, Listed, TakenRows};
use serde_json::{Value, json};

use super::fake::{World, indices, open_request, run};
use crate::state::next_digest;

/// What an epoch of eight splits has left: all but three splits, and ten rows of one.
fn taken(listed: u64) -> TakenRows {
    let mut taken = TakenRows::default();
    taken.add_whole_range(0, 2);
    taken.add_whole(4);
    taken.add_rows(2, &[(0, 10)].into_iter().collect());
    let digest = (0..listed).fold(0, |d, i| next_digest(d, &json!({ "i": i, "v": 0 }).to_string()));
    taken.set_listed(0, Listed { count: listed, digest });
    taken
}

async fn behind(
    w: &World,
    def: &Value,
    job: &str,
    taken: &TakenRows,
    reader: u64,
) -> v1::OpenIterationRequest {
    let fingerprint = w.core.open_iteration(open_request(def, "other")).await.unwrap().fingerprint;
    let state = v1::ReaderState {
        fingerprint,
        iteration_id: 5,
        readers: vec![reader],
        all_readers: vec![7, reader],
        taken: taken.encode().into(),
        ..Default::default()
    };
    v1::OpenIterationRequest { states: vec![state], ..open_request(def, job) }
}

#[test]
fn splits_that_were_taken_are_passed_over_also_by_a_dispatcher_that_restarts() {
    run(async {
        for restart_after in 0..4 {
            let mut w = World::new();
            let worker = w.worker("a:1").await;
            let def = json!({"splits": 8});
            let open = w.core.open_iteration(behind(&w, &def, "j", &taken(6), 7).await).await.unwrap();
            assert_eq!(TakenRows::decode(&open.resumed).unwrap(), taken(6));
            let (task, mut seen, mut done) = (open.tasks[0].task_id, Vec::new(), Vec::new());
            for no in 1.. {
                if no == restart_after {
                    w.restart();
                }
                let answer = w.next(task, worker, no, 1).await.unwrap();
                if answer.end {
                    break;
                }
                seen.extend(indices(&answer));
                done.extend(
                    answer.splits.iter().map(|s| s.done.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>()),
                );
            }
            assert_eq!(seen, [2, 3, 5, 6, 7]);
            assert_eq!(done[0], [(0, 10)]);
            assert!(done[1..].iter().all(Vec::is_empty));
        }
    });
}

#[test]
fn where_elements_are_counted_every_split_is_run_again() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 8, "single": true});
        let open = w.core.open_iteration(behind(&w, &def, "j", &taken(6), 7).await).await.unwrap();
        let answer = w.next(open.tasks[0].task_id, worker, 1, 9).await.unwrap();
        assert_eq!(indices(&answer), (0..8).collect::<Vec<_>>());
        let whole = |s: &v1::SplitLease| s.done == [v1::RowRange { start: 0, end: 1 << 48 }];
        assert_eq!(answer.splits.iter().filter(|s| whole(s)).map(|s| s.index).collect::<Vec<_>>(), [0, 1, 4]);
    });
}

#[test]
fn a_changed_listing_is_refused() {
    run(async {
        for (splits, listed) in [(8, 6), (5, 6), (4, 0)] {
            let w = World::new();
            let worker = w.worker("a:1").await;
            let def = json!({"splits": splits});
            let request = behind(&w, &def, "j", &taken(listed), 7).await;
            if splits == 8 {
                w.catalog.version.store(1, Ordering::Relaxed);
            }
            let open = w.core.open_iteration(request).await.unwrap();
            let mut failure = None;
            for no in 1..9 {
                match w.next(open.tasks[0].task_id, worker, no, 9).await {
                    Ok(answer) if answer.end => break,
                    Ok(_) => {}
                    Err(e) => {
                        failure = Some(e);
                        break;
                    }
                }
            }
            let e = failure.expect("the files changed");
            assert!(
                e.kind() == ErrorKind::FailedPrecondition
                    && e.message().contains("since the state was taken"),
                "{e}"
            );
        }
    });
}

#[test]
fn an_epoch_begins_when_all_states_are_there() {
    run(async {
        let mut w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let mut sixth = TakenRows::default();
        sixth.add_whole(6);
        let second = behind(&w, &def, "j", &sixth, 8).await;
        let third = behind(&w, &def, "j", &sixth, 9).await;
        // Reader 8's state says that reader 7's is needed.
        let open = w.core.open_iteration(second.clone()).await.unwrap();
        assert!(open.tasks.is_empty() && open.states_missing == 1 && open.resumed.is_empty());
        let first = behind(&w, &def, "j", &taken(0), 7).await;
        w.restart();
        let begun = w.core.open_iteration(first).await.unwrap();
        assert_eq!((begun.iteration_id, begun.states_missing), (open.iteration_id, 0));
        assert!(!begun.tasks.is_empty());
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        let union = TakenRows::decode(&view.resumed).unwrap();
        assert_eq!(union.whole().iter().collect::<Vec<_>>(), [(0, 2), (4, 5), (6, 7)]);
        // A reader whose state was not among them is too late. One that comes again begins again.
        let e = w.core.open_iteration(third).await.unwrap_err();
        assert!(e.kind() == ErrorKind::FailedPrecondition && e.message().contains("without this one"), "{e}");
        let again = w.core.open_iteration(second).await.unwrap();
        assert!(again.iteration_id != open.iteration_id && again.states_missing == 1);
    });
}

/// A reader that was at its end gives its state for the others, and has nothing to read.
#[test]
fn the_state_of_a_reader_that_has_left_counts() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let ended = behind(&w, &def, "j", &TakenRows::default(), 8).await;
        let open = w.core.open_iteration(ended).await.unwrap();
        assert_eq!(open.states_missing, 1);
        w.close(open.client_id, open.iteration_id, Vec::new()).await;
        let other = w.core.open_iteration(behind(&w, &def, "j", &taken(0), 7).await).await.unwrap();
        assert_eq!((other.iteration_id, other.states_missing), (open.iteration_id, 0));
    });
}

/// A reader that had taken nothing is not waited for. One that comes when the others have read the epoch to its end gets
/// nothing: their rows would come twice.
#[test]
fn a_reader_that_had_taken_nothing_and_comes_after_the_end_finds_the_end() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 1});
        let open =
            w.core.open_iteration(behind(&w, &def, "j", &TakenRows::default(), 7).await).await.unwrap();
        let (client, iteration, task) = (open.client_id, open.iteration_id, open.tasks[0].task_id);
        let leased = w.next(task, worker, 1, 9).await.unwrap();
        assert!(leased.end || w.next(task, worker, 2, 9).await.unwrap().end);
        w.finish_counted(task, worker, Some(&[(0, 5)])).await;
        let view = w.take(client, iteration, &[(0, 0, 5)], &[task]).await;
        assert!(view.accounted);
        w.close(client, iteration, Vec::new()).await;
        let late = behind(&w, &def, "j", &TakenRows::default(), 9).await;
        let late = w.core.open_iteration(late).await.unwrap();
        assert_eq!((late.iteration_id, late.finished, late.tasks.len()), (iteration, true, 0));
        w.close(late.client_id, late.iteration_id, Vec::new()).await;
        // The reader of the epoch itself goes back to its state.
        let again = behind(&w, &def, "j", &TakenRows::default(), 7).await;
        assert_ne!(w.core.open_iteration(again).await.unwrap().iteration_id, iteration);
    });
}
