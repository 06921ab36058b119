//! The status of one epoch, which readers ask for at the end of their epochs.

use std::sync::Arc;

use caju_autocache::Document;
use caju_proto::v1;
use caju_proto::v1::dispatcher_server::Dispatcher as _;
use caju_types::JobName;
use serde_json::json;
use tonic::Request;

use super::fake::{World, open_request, run};
use crate::service::DispatcherService;
use crate::state::Update;

/// Epochs of the first job: one more than those that come with the profile of their job.
const EPOCHS: usize = 9;

/// The answer to `GetStatus`. 0 asks for everything.
async fn status_of(w: &World, iteration_id: u64) -> v1::GetStatusResponse {
    let service = DispatcherService::new(Arc::clone(&w.core));
    service.get_status(Request::new(v1::GetStatusRequest { iteration_id })).await.unwrap().into_inner()
}

async fn open(w: &World, job: &str, epoch: u64) -> v1::OpenIterationResponse {
    let request = v1::OpenIterationRequest { epoch, ..open_request(&json!({"splits": 2}), job) };
    w.core.epochs.open_iteration(request).await.unwrap()
}

/// Decides for a job by a profile of this text.
async fn decide(w: &World, job: &str, profile: &str) {
    let decided = Update::Decided {
        job: JobName(job.into()),
        plan: None,
        decision: Document::from_text("{}"),
        profile: Document::from_text(profile),
    };
    let step = w.core.context.commit(|txn| {
        txn.apply(decided);
        Ok(())
    });
    step.await.unwrap();
}

/// Reads an epoch of two splits of five rows to its end.
async fn read(w: &World, open: &v1::OpenIterationResponse) {
    let (me, task) = ((open.client_id, open.iteration_id), &open.tasks[0]);
    for no in 1.. {
        if w.next(task.task_id, task.worker_id, no, 9).await.unwrap().end {
            break;
        }
    }
    w.finish_counted(task.task_id, task.worker_id, Some(&[(0, 5), (1, 5)])).await;
    w.beat(me.0, me.1, &[task.task_id], &[]).await;
    w.take(me.0, me.1, &[(0, 0, 5), (1, 0, 5)], &[task.task_id]).await;
}

/// Among several epochs of the job and epochs of another job. The states, the readers and the profiles of these epochs differ.
#[test]
fn an_epoch_has_the_status_that_it_has_among_all_epochs() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let first = open(&w, "train", 0).await;
        read(&w, &first).await;
        for epoch in 1..EPOCHS as u64 {
            open(&w, "train", epoch).await;
        }
        open(&w, "train", 3).await;
        open(&w, "other", 0).await;
        decide(&w, "train", "the profile of train").await;
        decide(&w, "other", "the profile of other").await;

        let whole = status_of(&w, 0).await;
        assert_eq!((whole.workers.len(), whole.jobs.len()), (1, EPOCHS + 1));
        let facts = |job: &str, epoch: u64| {
            let found = whole.jobs.iter().find(|j| j.job == job && j.epoch == epoch).unwrap();
            (found.state.as_str(), found.clients, found.profile_json.as_str())
        };
        assert_eq!(facts("train", 0), ("finished", 1, ""), "a profile comes with the last epochs of its job");
        assert_eq!(facts("train", 1), ("running", 1, "the profile of train"));
        assert_eq!(facts("train", 3), ("running", 2, "the profile of train"));
        assert_eq!(facts("other", 0), ("running", 1, "the profile of other"));
        for job in &whole.jobs {
            let alone = v1::GetStatusResponse {
                version: whole.version.clone(),
                jobs: vec![job.clone()],
                ..Default::default()
            };
            assert_eq!(status_of(&w, job.iteration_id).await, alone, "{} epoch {}", job.job, job.epoch);
        }
    });
}

/// A client takes an answer without a job as an epoch that the dispatcher does not know. It gets no other epoch instead.
#[test]
fn an_epoch_that_is_not_known_or_was_forgotten_has_no_status() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let running = open(&w, "train", 0).await;
        let forgotten = open(&w, "", 0).await;
        assert_eq!(status_of(&w, forgotten.iteration_id).await.jobs.len(), 1);
        w.close(forgotten.client_id, forgotten.iteration_id, vec![]).await;
        w.core.liveness.check();
        let version = status_of(&w, 0).await.version;
        let nothing = v1::GetStatusResponse { version, ..Default::default() };
        for unknown in [forgotten.iteration_id, u64::MAX] {
            assert_eq!(status_of(&w, unknown).await, nothing, "{unknown}");
        }
        assert_eq!(status_of(&w, running.iteration_id).await.jobs.len(), 1);
    });
}
