//! Epochs that continue behind states of readers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use caju_proto::v1;
use caju_types::{ErrorKind, Listed, TakenRows};
use serde_json::{Value, json};

use super::fake::{World, indices, open_request, run};
use super::restored_beginning::open as open_in_time;
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
    let fingerprint = w.core.epochs.open_iteration(open_request(def, "other")).await.unwrap().fingerprint;
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
            let open = w.core.epochs.open_iteration(behind(&w, &def, "j", &taken(6), 7).await).await.unwrap();
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
        let open = w.core.epochs.open_iteration(behind(&w, &def, "j", &taken(6), 7).await).await.unwrap();
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
            let open = w.core.epochs.open_iteration(request).await.unwrap();
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
        let mut fifth = TakenRows::default();
        fifth.add_whole(5);
        let third = behind(&w, &def, "j", &fifth, 9).await;
        // Reader 8's state says that reader 7's is needed.
        let open = w.core.epochs.open_iteration(second.clone()).await.unwrap();
        assert!(open.tasks.is_empty() && open.states_missing == 1 && open.resumed.is_empty());
        let first = behind(&w, &def, "j", &taken(0), 7).await;
        w.restart();
        let begun = w.core.epochs.open_iteration(first).await.unwrap();
        assert_eq!((begun.iteration_id, begun.states_missing), (open.iteration_id, 0));
        assert!(!begun.tasks.is_empty());
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        let union = TakenRows::decode(&view.resumed).unwrap();
        assert_eq!(union.whole().iter().collect::<Vec<_>>(), [(0, 2), (4, 5), (6, 7)]);
        // One that has taken nothing since the states were given has rows of these alone, and joins.
        let mut within = TakenRows::default();
        within.add_whole(4);
        let joined = w.core.epochs.open_iteration(behind(&w, &def, "j", &within, 11).await).await.unwrap();
        assert_eq!((joined.iteration_id, joined.states_missing), (open.iteration_id, 0));
        // A reader whose state was not among them is too late. One that comes again begins again.
        let e = w.core.epochs.open_iteration(third).await.unwrap_err();
        assert!(e.kind() == ErrorKind::FailedPrecondition && e.message().contains("without this one"), "{e}");
        let again = w.core.epochs.open_iteration(second).await.unwrap();
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
        let open = w.core.epochs.open_iteration(ended).await.unwrap();
        assert_eq!(open.states_missing, 1);
        w.close(open.client_id, open.iteration_id, Vec::new()).await;
        let other = w.core.epochs.open_iteration(behind(&w, &def, "j", &taken(0), 7).await).await.unwrap();
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
        let open = w
            .core
            .epochs
            .open_iteration(behind(&w, &def, "j", &TakenRows::default(), 7).await)
            .await
            .unwrap();
        let (client, iteration, task) = (open.client_id, open.iteration_id, open.tasks[0].task_id);
        let leased = w.next(task, worker, 1, 9).await.unwrap();
        assert!(leased.end || w.next(task, worker, 2, 9).await.unwrap().end);
        w.finish_counted(task, worker, Some(&[(0, 5)])).await;
        let view = w.take(client, iteration, &[(0, 0, 5)], &[task]).await;
        assert!(view.accounted);
        w.close(client, iteration, Vec::new()).await;
        let late = behind(&w, &def, "j", &TakenRows::default(), 9).await;
        let late = w.core.epochs.open_iteration(late).await.unwrap();
        assert_eq!((late.iteration_id, late.finished, late.tasks.len()), (iteration, true, 0));
        w.close(late.client_id, late.iteration_id, Vec::new()).await;
        // The reader of the epoch itself goes back to its state.
        let again = behind(&w, &def, "j", &TakenRows::default(), 7).await;
        assert_ne!(w.core.epochs.open_iteration(again).await.unwrap().iteration_id, iteration);
    });
}

/// A reader of an attempt that restores the states of all.
async fn of_attempt(
    w: &World,
    def: &Value,
    id: &str,
    rank: Option<u32>,
    taken: &TakenRows,
) -> v1::OpenIterationRequest {
    let attempt = v1::Attempt {
        id: id.to_string(),
        states_digest: caju_types::hash128(&taken.encode()).to_le_bytes().to_vec().into(),
        rank: rank.map_or(0, |rank| rank + 1),
    };
    v1::OpenIterationRequest {
        states_of_all: true,
        attempt: Some(attempt),
        ..behind(w, def, "j", taken, 7).await
    }
}

/// Reads the rows of the only split behind the states, as a reader that is at its end then.
async fn read_to_the_end(w: &World, worker: u64, open: &v1::OpenIterationResponse) {
    let (client, iteration, task) = (open.client_id, open.iteration_id, open.tasks[0].task_id);
    let leased = w.next(task, worker, 1, 9).await.unwrap();
    assert!(leased.end || w.next(task, worker, 2, 9).await.unwrap().end);
    w.finish_counted(task, worker, Some(&[(0, 5)])).await;
    assert!(w.take(client, iteration, &[(0, 0, 5)], &[task]).await.accounted);
    w.close(client, iteration, Vec::new()).await;
}

/// A rank that is late belongs to the reading of its attempt, whatever has become of it: the journal keeps that, and so does the
/// job when the epoch is forgotten. Without a name, and under another one, the epoch begins again.
#[test]
fn a_rank_that_comes_after_the_end_belongs_to_its_attempt() {
    run(async {
        let (def, before) = (json!({"splits": 1}), TakenRows::default());
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let first = of_attempt(&w, &def, "first", Some(0), &before).await;
        let open = w.core.epochs.open_iteration(first.clone()).await.unwrap();
        read_to_the_end(&w, worker, &open).await;
        w.restart();
        for rank in [Some(1), None] {
            let late = of_attempt(&w, &def, "first", rank, &before).await;
            let late = w.core.epochs.open_iteration(late).await.unwrap();
            assert_eq!((late.iteration_id, late.finished, late.tasks.len()), (open.iteration_id, true, 0));
            w.close(late.client_id, late.iteration_id, Vec::new()).await;
        }
        // Ranks that have come go back to the states, and so does a program that names no attempt.
        let again = w.core.epochs.open_iteration(first.clone()).await.unwrap();
        assert_ne!(again.iteration_id, open.iteration_id);
        read_to_the_end(&w, worker, &again).await;
        let unnamed = v1::OpenIterationRequest { attempt: None, ..first };
        let unnamed = w.core.epochs.open_iteration(unnamed).await.unwrap();
        assert_ne!(unnamed.iteration_id, again.iteration_id);
    });
}

#[test]
fn a_rank_that_comes_when_the_epoch_is_forgotten_is_reported_so() {
    run(async {
        let (def, before) = (json!({"splits": 1}), TakenRows::default());
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let rank = async |w: &World, rank| of_attempt(w, &def, "first", Some(rank), &before).await;
        let open = w.core.epochs.open_iteration(rank(&w, 0).await).await.unwrap();
        read_to_the_end(&w, worker, &open).await;
        let gc = w.core.context.config.timers.job_gc_timeout + Duration::from_secs(1);
        w.silence(gc, &[(worker, "a:1")], &[]).await;
        assert!(w.core.snapshot().iterations.values().all(|i| i.id.0 != open.iteration_id));
        w.restart();
        let e = w.core.epochs.open_iteration(rank(&w, 1).await).await.unwrap_err();
        assert!(e.kind() == ErrorKind::FailedPrecondition && e.message().contains("nothing is left"), "{e}");
        w.core.epochs.open_iteration(rank(&w, 0).await).await.unwrap();
    });
}

#[test]
fn readers_of_an_earlier_attempt_are_refused() {
    run(async {
        let (def, mut before) = (json!({"splits": 8}), TakenRows::default());
        let mut w = World::new();
        w.worker("a:1").await;
        let first =
            w.core.epochs.open_iteration(of_attempt(&w, &def, "first", None, &before).await).await.unwrap();
        let second =
            w.core.epochs.open_iteration(of_attempt(&w, &def, "second", None, &before).await).await.unwrap();
        assert_ne!(first.iteration_id, second.iteration_id);
        w.restart();
        let late = of_attempt(&w, &def, "first", None, &before).await;
        let e = w.core.epochs.open_iteration(late).await.unwrap_err();
        assert!(e.message().contains("`second`") && e.message().contains("`first`"), "{e}");
        // The same attempt goes back to other states.
        before.add_whole(3);
        let back =
            w.core.epochs.open_iteration(of_attempt(&w, &def, "second", None, &before).await).await.unwrap();
        assert_ne!(back.iteration_id, second.iteration_id);
        let joined =
            w.core.epochs.open_iteration(of_attempt(&w, &def, "second", None, &before).await).await.unwrap();
        assert_eq!(joined.iteration_id, back.iteration_id);
    });
}

/// Each reader gives its own state: those of two attempts are not mixed.
#[test]
fn own_states_of_another_attempt_begin_again() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let own = async |reader: u64, attempt: &str| v1::OpenIterationRequest {
            attempt: Some(v1::Attempt { id: attempt.into(), ..Default::default() }),
            ..behind(&w, &def, "j", &taken(0), reader).await
        };
        let first = w.core.epochs.open_iteration(own(8, "first").await).await.unwrap();
        assert_eq!(first.states_missing, 1);
        let second = w.core.epochs.open_iteration(own(9, "second").await).await.unwrap();
        assert!(second.iteration_id != first.iteration_id && second.states_missing == 1);
        let e = w.core.epochs.open_iteration(own(7, "first").await).await.unwrap_err();
        assert!(e.message().contains("came before it"), "{e}");
        let both = w.core.epochs.open_iteration(own(7, "second").await).await.unwrap();
        assert_eq!((both.iteration_id, both.states_missing), (second.iteration_id, 0));
    });
}

/// One reader came back alone, gave its state and left again. Then all of them are started under an attempt.
#[test]
fn readers_that_name_an_attempt_do_not_join_those_that_named_none() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let alone = w.core.epochs.open_iteration(behind(&w, &def, "j", &taken(0), 8).await).await.unwrap();
        assert_eq!(alone.states_missing, 1);
        w.close(alone.client_id, alone.iteration_id, vec![]).await;
        let own = async |reader: u64| v1::OpenIterationRequest {
            attempt: Some(v1::Attempt { id: "second".into(), ..Default::default() }),
            ..behind(&w, &def, "j", &taken(0), reader).await
        };
        let first = w.core.epochs.open_iteration(own(9).await).await.unwrap();
        assert!(first.iteration_id != alone.iteration_id && first.states_missing == 1);
        for (reader, missing) in [(8, 1), (7, 0)] {
            let joined = w.core.epochs.open_iteration(own(reader).await).await.unwrap();
            assert_eq!((joined.iteration_id, joined.states_missing), (first.iteration_id, missing));
        }
    });
}

#[test]
fn attempts_that_say_too_much_are_refused() {
    run(async {
        let w = World::new();
        let request = of_attempt(&w, &json!({"splits": 1}), "a", None, &TakenRows::default()).await;
        let good = request.attempt.clone().unwrap();
        for (attempt, said) in [
            (v1::Attempt { rank: 1 << 20, ..good.clone() }, "ranks below 65536"),
            (v1::Attempt { states_digest: vec![1; 3].into(), ..good.clone() }, "this one has 3"),
            (v1::Attempt { states_digest: Default::default(), ..good.clone() }, "this one has 0"),
            (v1::Attempt { id: "a".repeat(2_000), ..good.clone() }, "2000 bytes"),
        ] {
            let attempt = Some(attempt);
            let e =
                w.core.epochs.open_iteration(v1::OpenIterationRequest { attempt, ..request.clone() }).await;
            let e = e.unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(said), "{e}");
        }
    });
}

/// The dispatcher dies when it has opened an epoch, and before it answers. The same call again is answered by the next one.
#[test]
fn a_call_that_is_made_again_after_a_restart_opens_one_reader() {
    run(async {
        let mut w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let consumer = |index: u8| v1::OpenIterationRequest {
            num_consumers: 2,
            consumer_index: index.into(),
            ..open_request(&json!({"splits": 8, "batch": 2}), "even")
        };
        let own_state = behind(&w, &def, "behind", &taken(0), 8).await;
        let (named, unnamed) = (open_request(&def, "named"), open_request(&def, ""));
        for (id, request) in [(1, named), (2, unnamed), (3, consumer(0)), (4, consumer(1)), (5, own_state)] {
            let request = v1::OpenIterationRequest { request_id: vec![id; 16].into(), ..request };
            let first = w.core.epochs.open_iteration(request.clone()).await.unwrap();
            w.restart();
            let again = w.core.epochs.open_iteration(request).await.unwrap();
            assert_eq!(
                (again.job, again.iteration_id, again.client_id, again.client_secret),
                (first.job, first.iteration_id, first.client_id, first.client_secret)
            );
        }
        let other =
            v1::OpenIterationRequest { request_id: vec![9; 16].into(), ..open_request(&def, "named") };
        w.core.epochs.open_iteration(other).await.unwrap();
        let members = |job: &str| {
            let state = w.core.snapshot();
            state.iterations.values().filter(|i| i.job.0 == job).map(|i| i.members.len()).sum::<usize>()
        };
        assert_eq!((members("named"), members("even"), members("behind")), (2, 2, 1));
        let short = v1::OpenIterationRequest { request_id: vec![9; 3].into(), ..open_request(&def, "named") };
        assert_eq!(w.core.epochs.open_iteration(short).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

/// A launch that was killed a moment ago may still be heard of as if it lived. What its readers took would be lost with them if
/// the next launch joined them.
#[test]
fn a_launch_that_restores_the_same_states_right_after_a_kill_begins_again() {
    run(async {
        let (def, mut before) = (json!({"splits": 8}), TakenRows::default());
        before.add_whole(0);
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let list =
            v1::OpenIterationRequest { attempt: None, ..of_attempt(&w, &def, "", None, &before).await };
        let first = w.core.epochs.open_iteration(list.clone()).await.unwrap();
        w.next(first.tasks[0].task_id, worker, 1, 9).await.unwrap();
        // The reader lives: the other one is of its launch.
        let alive = [(first.client_id, first.iteration_id)];
        let joined = open_in_time(&w, list.clone(), &alive).await.unwrap();
        assert_eq!(joined.iteration_id, first.iteration_id);
        let second = open_in_time(&w, list.clone(), &[]).await.unwrap();
        assert_ne!(second.iteration_id, first.iteration_id, "both were killed");
        // A dispatcher that has just started has heard of no reader.
        w.restart();
        let third = open_in_time(&w, list, &[]).await.unwrap();
        assert_ne!(third.iteration_id, second.iteration_id);
    });
}

/// The other readers of the launch come to the end of the epoch while the dispatcher waits for their calls.
#[test]
fn a_reader_that_came_before_the_others_were_at_the_end_is_of_their_launch() {
    run(async {
        let (def, w) = (json!({"splits": 1}), World::new());
        let worker = w.worker("a:1").await;
        let before = TakenRows::default();
        let list =
            v1::OpenIterationRequest { attempt: None, ..of_attempt(&w, &def, "", None, &before).await };
        let first = w.core.epochs.open_iteration(list.clone()).await.unwrap();
        let reading = async {
            while !w.clock.is_awaited() {
                tokio::task::yield_now().await;
            }
            read_to_the_end(&w, worker, &first).await;
            w.clock.advance(Duration::from_secs(6));
        };
        let (late, ()) = tokio::join!(w.core.epochs.open_iteration(list.clone()), reading);
        let late = late.unwrap();
        assert_eq!((late.iteration_id, late.finished), (first.iteration_id, true));
        // One that comes after them goes back to the states.
        let again = open_in_time(&w, list, &[]).await.unwrap();
        assert_ne!(again.iteration_id, first.iteration_id);
    });
}

/// The launcher names all its launches alike, as torchrun does without --rdzv-id.
#[test]
fn ranks_that_are_started_again_under_the_same_attempt_begin_again_together() {
    run(async {
        let (def, mut before) = (json!({"splits": 8}), TakenRows::default());
        before.add_whole(0);
        let w = World::new();
        w.worker("a:1").await;
        let rank = async |rank| of_attempt(&w, &def, "none", Some(rank), &before).await;
        let first = w.core.epochs.open_iteration(rank(0).await).await.unwrap();
        let other = w.core.epochs.open_iteration(rank(1).await).await.unwrap();
        assert_eq!(other.iteration_id, first.iteration_id);
        // Both are killed and started again at once.
        let again = open_in_time(&w, rank(1).await, &[]).await.unwrap();
        assert_ne!(again.iteration_id, first.iteration_id);
        let together =
            open_in_time(&w, rank(0).await, &[(again.client_id, again.iteration_id)]).await.unwrap();
        assert_eq!(together.iteration_id, again.iteration_id);
    });
}
