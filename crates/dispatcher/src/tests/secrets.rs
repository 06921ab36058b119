//! No peer can act in the name of another one.

use std::time::Duration;

use caju_autocache::Document;
use caju_proto::{Bytes, ticket, v1};
use caju_types::{ClientId, Error, ErrorKind, JobName, Secret};
use serde_json::json;

use super::fake::{World, open_request, run};
use crate::state::Update;

const S: Duration = Duration::from_secs(1);

fn denied<T>(answer: Result<T, Error>, what: &str) {
    let e = answer.err().unwrap_or_else(|| panic!("{what} was accepted"));
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{what}: {e}");
}

#[test]
fn identifiers_alone_open_nothing() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let (client_id, iteration_id, task_id) = (open.client_id, open.iteration_id, open.tasks[0].task_id);
        let before = w.core.snapshot();
        for secret in [vec![], vec![0; 16], open.client_secret[..15].to_vec()] {
            let secret = || Bytes::from(secret.clone());
            let beat = v1::ClientHeartbeatRequest {
                client_id,
                iteration_id,
                ended_tasks: vec![task_id],
                secret: secret(),
                ..Default::default()
            };
            denied(w.core.clients.client_heartbeat(beat).await, "a heartbeat");
            let close =
                v1::CloseClientRequest { client_id, iteration_id, secret: secret(), ..Default::default() };
            denied(w.core.clients.close_client(close).await, "leaving");
            let join = v1::OpenIterationRequest {
                client_id,
                client_secret: secret(),
                ..open_request(&json!({"splits": 2}), "j")
            };
            denied(w.core.epochs.open_iteration(join).await, "joining as another");
            let finish = v1::FinishTaskRequest {
                task_id,
                worker_id: worker,
                failure: Some((&Error::data_loss("made up")).into()),
                secret: secret(),
                ..Default::default()
            };
            denied(w.core.workers.finish_task(finish).await, "failing a task");
            let next = v1::NextSplitsRequest {
                task_id,
                worker_id: worker,
                want: 1,
                request_no: 1,
                secret: secret(),
                ..Default::default()
            };
            denied(w.core.splits.next_splits(next).await, "leasing splits");
            let get = v1::GetTaskRequest { task_id, worker_id: worker, secret: secret() };
            denied(w.core.workers.get_task(get).await, "asking for a task's secret");
            let beat = v1::WorkerHeartbeatRequest {
                worker_id: worker,
                address: "a:1".into(),
                secret: secret(),
                ..Default::default()
            };
            denied(w.core.workers.worker_heartbeat(beat).await, "a worker's heartbeat");
            let drain = v1::DrainWorkerRequest { worker_id: worker, secret: secret(), leaving: false };
            denied(w.core.workers.drain_worker(drain).await, "draining a worker");
        }
        assert_eq!(w.core.snapshot(), before, "nothing changed");
        let status = format!("{:?} {:?}", w.core.status.get_status().await.unwrap(), before);
        let mine = Secret::from_bytes(open.client_secret.to_vec().try_into().unwrap());
        assert!(!status.contains(&mine.to_hex()) && !status.contains(&format!("{:?}", open.client_secret)));
    });
}

#[test]
fn profiles_count_only_from_the_worker_that_runs_the_task() {
    run(async {
        let w = World::new();
        let (mine, other) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open(&json!({"splits": 2, "hints": ["h"]}), "j").await;
        let task_id = open.tasks.iter().find(|t| t.worker_id == mine).unwrap().task_id;
        w.core
            .context
            .commit(|txn| {
                let job = JobName("j".into());
                txn.apply(Update::Decided {
                    job,
                    plan: None,
                    decision: Document::from_text("{}"),
                    profile: Document::from_text("{}"),
                });
                Ok(())
            })
            .await
            .unwrap();
        // A worker whose profile is taken is notified of the decision.
        let report = |worker_id: u64, address: &str| v1::WorkerHeartbeatRequest {
            worker_id,
            address: address.into(),
            secret: w.worker_secret(worker_id),
            profiles: vec![v1::TaskProfile { task_id, ..Default::default() }],
            ..Default::default()
        };
        let stranger = w.core.workers.worker_heartbeat(report(4242, "x:1")).await.unwrap();
        assert!(stranger.register_again && stranger.decided.is_empty(), "{stranger:?}");
        assert!(w.core.workers.worker_heartbeat(report(other, "b:1")).await.unwrap().decided.is_empty());
        assert_eq!(w.core.workers.worker_heartbeat(report(mine, "a:1")).await.unwrap().decided.len(), 1);
    });
}

#[test]
fn the_address_of_a_living_worker_is_not_given_away() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let take = || v1::RegisterWorkerRequest { address: "a:1".into(), ..Default::default() };
        let e = w.core.workers.register_worker(take()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "a worker that was killed tries again");
        assert!(e.message().contains("worker-1 at a:1 sent its last heartbeat"), "{e}");
        let old = w.worker_secret(worker);
        w.silence(S * 4, &[], &[]).await;
        let again = w.core.workers.register_worker(take()).await.unwrap();
        assert_eq!(again.worker_id, worker, "it is silent, so its address is free");
        let beat = v1::WorkerHeartbeatRequest {
            worker_id: worker,
            address: "a:1".into(),
            secret: old,
            ..Default::default()
        };
        denied(w.core.workers.worker_heartbeat(beat).await, "the old one");
    });
}

#[test]
fn a_registration_whose_answer_was_lost_is_repeated_at_once() {
    run(async {
        let mut w = World::new();
        let mine = vec![7; Secret::BYTES];
        let request = || v1::RegisterWorkerRequest {
            address: "a:1".into(),
            secret: mine.clone().into(),
            ..Default::default()
        };
        let lost = w.core.workers.register_worker(request()).await.unwrap();
        let again = w.core.workers.register_worker(request()).await.unwrap();
        assert_eq!((again.worker_id, &again.secret), (lost.worker_id, &lost.secret));
        assert_eq!(again.secret, mine, "the secret is the one that the process drew");
        w.restart();
        let after = w.core.workers.register_worker(request()).await.unwrap();
        assert_eq!(after.secret, mine);
        for other in [vec![], vec![8; Secret::BYTES], mine[..15].to_vec()] {
            let other = v1::RegisterWorkerRequest { secret: other.into(), ..request() };
            let e = w.core.workers.register_worker(other).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "another process: {e}");
        }
    });
}

#[test]
fn readers_get_tickets_of_their_own_and_secrets_survive_a_restart() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let other = w.open(&json!({"splits": 2}), "j").await;
        let (mine, theirs) = (&open.tasks[0], &other.tasks[0]);
        assert_eq!(mine.task_id, theirs.task_id);
        assert_ne!(mine.ticket, theirs.ticket);
        w.restart();
        let get =
            v1::GetTaskRequest { task_id: mine.task_id, worker_id: worker, secret: w.worker_secret(worker) };
        let task = w.core.workers.get_task(get).await.unwrap().task.unwrap();
        let secret = Secret::from_bytes(task.secret.to_vec().try_into().unwrap());
        assert!(ticket(&secret, ClientId(open.client_id)).is(&mine.ticket));
        assert!(!ticket(&secret, ClientId(other.client_id)).is(&mine.ticket));
        let beat = v1::ClientHeartbeatRequest {
            client_id: open.client_id,
            iteration_id: open.iteration_id,
            secret: open.client_secret,
            ..Default::default()
        };
        assert!(!w.core.clients.client_heartbeat(beat).await.unwrap().unknown);
    });
}

#[test]
fn under_off_a_worker_that_comes_back_takes_its_old_place() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let request = v1::OpenIterationRequest {
            mode: v1::ProcessingMode::Off.into(),
            ..open_request(&json!({"splits": 3}), "j")
        };
        let open = w.core.epochs.open_iteration(request).await.unwrap();
        let me = [(open.client_id, open.iteration_id)];
        let task = open.tasks[0].task_id;
        // It was killed, and started again under another port before it was missed.
        let back = w.worker("a:2").await;
        let view = w.beat(me[0].0, me[0].1, &[], &[]).await;
        assert_eq!(view.tasks.len(), 1, "nobody knows yet whether it is a further worker");
        w.silence(S * 7, &[(back, "a:2")], &me).await;
        let view = w.beat(me[0].0, me[0].1, &[], &[super::fake::lost(task, &[])]).await;
        assert_eq!(view.tasks.len(), 1, "one worker, one pipeline: {view:?}");
        assert_eq!(w.core.snapshot().iterations.values().map(|i| i.feeds.len()).sum::<usize>(), 1);
        // One that comes while all others live is a further one.
        let more = w.worker("b:1").await;
        w.silence(S * 2, &[(back, "a:2"), (more, "b:1")], &me).await;
        let view = w.beat(me[0].0, me[0].1, &[], &[]).await;
        assert_eq!(view.tasks.len(), 2);
    });
}
