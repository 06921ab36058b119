//! Flight readers, from the side of the control plane.

use std::sync::Arc;

use arrow_flight::FlightDescriptor;
use arrow_flight::flight_service_server::FlightService;
use caju_proto::v1;
use caju_types::ErrorKind;
use serde_json::json;
use tonic::Request;

use super::fake::{World, indices, open_request, run};
use crate::flight::FlightOnDispatcher;

fn ticket(job: &str, worker: u64) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest {
        flight: true,
        flight_worker_id: worker,
        ..open_request(&json!({"splits": 4}), job)
    }
}

async fn read_all(w: &World, open: &v1::OpenIterationResponse, worker: u64) -> Vec<u64> {
    let [task] = &open.tasks[..] else { return Vec::new() };
    let mut seen = Vec::new();
    for no in 1.. {
        let answer = w.next(task.task_id, worker, no, 1).await.unwrap();
        if answer.end {
            break;
        }
        seen.extend(indices(&answer));
    }
    w.finish(task.task_id, worker).await;
    seen
}

#[test]
fn endpoints_read_one_after_another_are_one_epoch() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let first = w.open_flight(ticket("f", a)).await.unwrap();
        assert_eq!(first.tasks.len(), 1, "only its own worker's task");
        assert_eq!(read_all(&w, &first, a).await, [0, 1, 2, 3]);
        let second = w.open_flight(ticket("f", b)).await.unwrap();
        assert!(second.finished && second.tasks.is_empty());
        w.silence(std::time::Duration::from_secs(310), &[(a, "a:1"), (b, "b:1")], &[]).await;
        assert!(w.core.snapshot().iterations.is_empty());
        let late = w.open_flight(ticket("f", b)).await.unwrap();
        assert!(late.finished && late.tasks.is_empty(), "long after, still the same epoch");
    });
}

#[test]
fn endpoints_read_side_by_side_share_the_splits() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let first = w.open_flight(ticket("f", a)).await.unwrap();
        let one = indices(&w.next(first.tasks[0].task_id, a, 1, 1).await.unwrap());
        let second = w.open_flight(ticket("f", b)).await.unwrap();
        assert_eq!(read_all(&w, &second, b).await, [1, 2, 3]);
        assert_eq!(one, [0]);
        assert!(w.next(first.tasks[0].task_id, a, 2, 1).await.unwrap().end);
        w.finish(first.tasks[0].task_id, a).await;
        let state = w.core.snapshot();
        let iteration = state.iterations.values().next().unwrap();
        assert!(iteration.is_finished() && iteration.members.is_empty());
    });
}

#[test]
fn readers_of_both_kinds_do_not_share_an_epoch() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let owner = w.open(&json!({"splits": 4}), "owned").await;
        let before = w.core.snapshot();
        let e = w.open_flight(ticket("owned", worker)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        assert!(e.message().contains("`owned`") && e.message().contains("another job name"), "{e}");
        assert_eq!(w.core.snapshot().iterations, before.iterations, "nothing of it changed");
        assert!(!w.beat(owner.client_id, owner.iteration_id, &[], &[]).await.unknown);
        w.open_flight(ticket("foreign", worker)).await.unwrap();
        let e =
            w.core.epochs.open_iteration(open_request(&json!({"splits": 4}), "foreign")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
    });
}

/// The end of an epoch of one Flight reader; its state's name.
async fn ends_with(emitted: u64, to_flight: Option<u64>) -> &'static str {
    let w = World::new();
    let worker = w.worker("a:1").await;
    let open = w.open_flight(ticket("f", worker)).await.unwrap();
    let task_id = open.tasks[0].task_id;
    for no in 1.. {
        if w.next(task_id, worker, no, 9).await.unwrap().end {
            break;
        }
    }
    let counts = |rows| vec![v1::SplitCount { split_index: 0, rows }];
    let request = v1::FinishTaskRequest {
        task_id,
        worker_id: worker,
        secret: w.worker_secret(worker),
        counted: true,
        splits_out: counts(emitted),
        flight_counted: to_flight.is_some(),
        splits_to_flight: to_flight.map(counts).unwrap_or_default(),
        ..Default::default()
    };
    w.core.workers.finish_task(request).await.unwrap();
    w.core.snapshot().iterations.values().next().unwrap().state_name()
}

#[test]
fn what_was_written_to_flight_readers_is_compared_with_what_was_emitted() {
    run(async {
        assert_eq!(ends_with(10, Some(10)).await, "finished");
        assert_eq!(ends_with(10, Some(7)).await, "incomplete", "three rows went elsewhere");
        assert_eq!(ends_with(10, Some(11)).await, "failed");
        assert_eq!(ends_with(10, None).await, "finished", "an older worker does not count");
    });
}

#[test]
fn a_lost_worker_is_an_error_never_a_short_epoch() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let first = w.open_flight(ticket("f", a)).await.unwrap();
        let second = w.open_flight(ticket("f", b)).await.unwrap();
        w.next(first.tasks[0].task_id, a, 1, 1).await.unwrap();
        w.worker("a:1").await;
        let e = w.next(second.tasks[0].task_id, b, 1, 1).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.message().contains("Flight reader"), "{e}");
    });
}

#[test]
fn a_worker_lost_before_its_first_row_harms_nobody() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        w.open_flight(ticket("f", a)).await.unwrap();
        let second = w.open_flight(ticket("f", b)).await.unwrap();
        w.worker("a:1").await;
        assert_eq!(read_all(&w, &second, b).await, [0, 1, 2, 3]);
        let e = w.open_flight(ticket("g", 77)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
    });
}

fn off(job: &str, worker: u64) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest { mode: v1::ProcessingMode::Off.into(), ..ticket(job, worker) }
}

#[test]
fn under_off_each_endpoint_has_everything_also_one_after_another() {
    run(async {
        let w = World::new();
        let workers = [w.worker("a:1").await, w.worker("b:1").await, w.worker("c:1").await];
        for worker in workers {
            let open = w.open_flight(off("f", worker)).await.unwrap();
            assert_eq!(read_all(&w, &open, worker).await.len(), 4, "worker-{worker}");
            let again = w.open_flight(off("f", worker)).await.unwrap();
            assert!(again.tasks.is_empty(), "an endpoint is read once");
        }
        let late = w.worker("d:1").await;
        let open = w.open_flight(off("f", late)).await.unwrap();
        assert_eq!(read_all(&w, &open, late).await.len(), 4, "a worker that came later has it too");
        let alive = [(1, "a:1"), (2, "b:1"), (3, "c:1"), (4, "d:1")];
        w.silence(std::time::Duration::from_secs(310), &alive, &[]).await;
        let e = w.open_flight(off("f", workers[1])).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "which endpoints were read is forgotten: {e}");
    });
}

#[test]
fn under_off_our_own_client_gets_what_flight_readers_left() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open_flight(off("f", a)).await.unwrap();
        assert_eq!(read_all(&w, &open, a).await.len(), 4);
        let own = v1::OpenIterationRequest { flight: false, flight_worker_id: 0, ..off("f", 0) };
        let own = w.open_flight(own).await.unwrap();
        let workers: Vec<u64> = own.tasks.iter().filter(|t| !t.ended).map(|t| t.worker_id).collect();
        assert_eq!((workers, own.finished), (vec![b], false));
    });
}

/// A ticket holds the command, and a reader's call with it is as large as one message at the most. A command that fits, and
/// whose ticket would not, is refused where it is given, and not when the rows are asked for.
#[test]
fn a_definition_that_is_too_large_for_a_ticket_is_refused_with_its_command() {
    run(async {
        let w = World::with(|mut config| {
            config.connections.message_bytes = 4096;
            config
        });
        w.worker("a:1").await;
        let flight = FlightOnDispatcher::new(Arc::clone(&w.core));
        let info = async |bytes: usize| {
            let command = json!({ "pipeline": { "splits": 4, "name": "x".repeat(bytes) }, "job": "train" });
            flight.get_flight_info(Request::new(FlightDescriptor::new_cmd(command.to_string()))).await
        };
        let found = info(3000).await.unwrap().into_inner();
        let ticket = found.endpoint[0].ticket.as_ref().unwrap();
        assert!((3000..=4080).contains(&ticket.ticket.len()));
        let refused = info(4000).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(
            refused.message().contains("too large for a ticket of Arrow Flight (over 4080 bytes)"),
            "{refused}"
        );
        assert!(refused.message().contains("register it, and name the dataset in the command"), "{refused}");
        // The answer has a ticket for each worker.
        assert!(info(1500).await.is_ok());
        w.worker("b:1").await;
        w.worker("c:1").await;
        let refused = info(1500).await.unwrap_err();
        let wanted = "too large for the tickets of 3 workers (over 4096 bytes together); register it";
        assert!(
            refused.code() == tonic::Code::InvalidArgument && refused.message().contains(wanted),
            "{refused}"
        );
    });
}
