//! Which rows each client has when clients and tasks end in every way, and that sums are compared as sets of rows.

mod compared;
mod completed;
mod lost;
mod restarts;
mod waiting;

use std::time::Duration;

use caju_proto::v1;
use caju_types::IterationId;
use serde_json::json;

use super::fake::{World, open_request};

const S: Duration = Duration::from_secs(1);

/// Two readers of a job with one task, of which every split is leased.
struct Two {
    w: World,
    worker: u64,
    iteration: u64,
    task: u64,
    a: u64,
    b: u64,
}

impl Two {
    async fn new(splits: u64, lost_readers: &str) -> Self {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let definition = json!({ "splits": splits });
        let request = || v1::OpenIterationRequest {
            lost_readers: lost_readers.into(),
            ..open_request(&definition, "j")
        };
        let a = w.core.epochs.open_iteration(request()).await.unwrap();
        let b = w.core.epochs.open_iteration(request()).await.unwrap();
        let (iteration, task) = (a.iteration_id, a.tasks[0].task_id);
        let this = Self { w, worker, iteration, task, a: a.client_id, b: b.client_id };
        this.lease(task).await;
        this
    }

    /// Leases every split of a task; the rows of each that are delivered already.
    async fn lease(&self, task: u64) -> Vec<(u64, Vec<(u64, u64)>)> {
        let mut all = Vec::new();
        for no in 1.. {
            let answer = self.w.next(task, self.worker, no, 9).await.unwrap();
            if answer.end {
                break;
            }
            let done = |s: &v1::SplitLease| s.done.iter().map(|r| (r.start, r.end)).collect();
            all.extend(answer.splits.iter().map(|s| (s.index, done(s))));
        }
        all
    }

    async fn beat(&self, client: u64) -> v1::ClientHeartbeatResponse {
        self.w.beat(client, self.iteration, &[], &[]).await
    }

    async fn take(
        &self,
        client: u64,
        rows: &[(u64, u64, u64)],
        taken: &[u64],
    ) -> v1::ClientHeartbeatResponse {
        self.w.take(client, self.iteration, rows, taken).await
    }

    /// One client is silent until it is expelled.
    async fn expel_all_but(&self, client: u64) {
        self.w.silence(S * 62, &[(self.worker, "a:1")], &[(client, self.iteration)]).await;
    }

    /// The task that a client may read.
    async fn next_task(&self, client: u64) -> u64 {
        let view = self.beat(client).await;
        view.tasks.iter().find(|t| !t.lost && !t.ended).unwrap_or_else(|| panic!("{view:?}")).task_id
    }

    fn state(&self) -> String {
        self.w.core.snapshot().iterations[&IterationId(self.iteration)].state_name().to_string()
    }
}
