//! The end of an epoch with a worker that is much slower than the others.

use std::time::Duration;

use caju_proto::v1;
use serde_json::json;

use super::fake::{World, indices, lost, run};

const SECOND: Duration = Duration::from_secs(1);

/// Two workers with a task each: the first is finished after five seconds and ten splits, the other one holds two splits.
struct AtTheEnd {
    world: World,
    fast: u64,
    slow: u64,
    client: u64,
    iteration: u64,
    slow_task: u64,
}

impl AtTheEnd {
    async fn new(straggler_factor: u32) -> Self {
        let world = World::with(|mut config| {
            config.timers.straggler_factor = straggler_factor;
            config
        });
        let (fast, slow) = (world.worker("a:1").await, world.worker("b:1").await);
        let opened = world.open(&json!({ "splits": 12 }), "train").await;
        let task_of = |worker: u64| opened.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        let (fast_task, slow_task) = (task_of(fast), task_of(slow));
        let held = world.next(slow_task, slow, 1, 2).await.unwrap();
        assert_eq!(indices(&held).len(), 2);
        let mut got = 0;
        for no in 1.. {
            let answer = world.next(fast_task, fast, no, 2).await.unwrap();
            got += answer.splits.len();
            if answer.end {
                break;
            }
        }
        assert_eq!(got, 10);
        let this =
            Self { world, fast, slow, client: opened.client_id, iteration: opened.iteration_id, slow_task };
        this.pass(SECOND * 5, 0.9).await;
        this.world.finish(fast_task, fast).await;
        this.world.beat(this.client, this.iteration, &[fast_task], &[]).await;
        this
    }

    /// Lets time pass in which all peers report, with a reader that waits for this fraction of it.
    async fn pass(&self, time: Duration, wait_fraction: f64) {
        self.pass_with(time, v1::ClientHeartbeatRequest { wait_fraction, ..Default::default() }).await;
    }

    /// Lets time pass in which all peers report, the reader with these figures.
    async fn pass_with(&self, time: Duration, figures: v1::ClientHeartbeatRequest) {
        for _ in 0..time.as_secs() {
            let all = [(self.fast, "a:1"), (self.slow, "b:1")];
            self.world.silence(SECOND, &all, &[]).await;
            let request = v1::ClientHeartbeatRequest {
                client_id: self.client,
                iteration_id: self.iteration,
                secret: self.world.client_secret(self.client, self.iteration),
                ..figures.clone()
            };
            self.world.core.clients.client_heartbeat(request).await.unwrap();
        }
    }

    fn is_taken_over(&self) -> bool {
        let state = self.world.core.snapshot();
        let iteration = state.iterations.values().next().unwrap();
        !iteration.stragglers.is_empty()
    }
}

#[test]
fn the_last_splits_of_a_slow_worker_go_to_idle_ones() {
    run(async {
        let mut end = AtTheEnd::new(3).await;
        end.pass(SECOND * 2, 0.9).await;
        assert!(end.is_taken_over());
        // The reader has three rows of split 0; they are not computed again.
        let beat = end.world.beat(end.client, end.iteration, &[], &[lost(end.slow_task, &[(0, 0, 3)])]).await;
        let news: Vec<_> = beat.tasks.iter().filter(|t| !t.lost && !t.ended).collect();
        assert_eq!(
            news.iter().map(|t| t.worker_id).collect::<Vec<_>>(),
            [end.fast],
            "the slow worker gets no more"
        );
        let again = end.world.next(news[0].task_id, end.fast, 1, 8).await.unwrap();
        assert_eq!(indices(&again), [0, 1]);
        let done: Vec<_> = again.splits[0].done.iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(done, [(0, 3)]);
        // The slow worker is asked to stop, and what it reports later changes nothing.
        let e = end.world.next(end.slow_task, end.slow, 2, 1).await.unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::Cancelled, "{e}");
        end.world.finish(end.slow_task, end.slow).await;
        end.world.restart();
        assert!(end.is_taken_over(), "the journal knows");
        // A split is moved once.
        end.pass(SECOND * 20, 0.9).await;
        let state = end.world.core.snapshot();
        assert_eq!(state.iterations.values().next().unwrap().stragglers.len(), 1);
    });
}

#[test]
fn nothing_is_taken_over_where_it_would_not_help() {
    run(async {
        let early = AtTheEnd::new(3).await;
        assert!(!early.is_taken_over(), "idle workers wait for as long as a split takes them");
        let slow_reader = AtTheEnd::new(3).await;
        slow_reader.pass(SECOND * 20, 0.0).await;
        assert!(!slow_reader.is_taken_over(), "the reader does not wait for rows");
        let never = AtTheEnd::new(0).await;
        never.pass(SECOND * 20, 0.9).await;
        assert!(!never.is_taken_over(), "it is switched off");
        let patient = AtTheEnd::new(40).await;
        patient.pass(SECOND * 8, 0.9).await;
        assert!(!patient.is_taken_over(), "6.5 s a split are not 40 times 0.5 s");
    });
}

/// The fraction is one of the whole epoch.
#[test]
fn a_reader_that_waits_at_the_end_of_a_long_epoch_alone_is_waited_for() {
    run(async {
        let end = AtTheEnd::new(3).await;
        let figures = |rows_waiting, user_busy_ms| v1::ClientHeartbeatRequest {
            wait_fraction: 0.01,
            rows: 100,
            rows_waiting,
            user_busy_ms,
            ..Default::default()
        };
        end.pass_with(SECOND * 10, figures(3, 0)).await;
        end.pass_with(SECOND * 10, figures(0, 500)).await;
        assert!(!end.is_taken_over(), "the reader has rows, or its user computes");
        end.pass_with(SECOND * 2, figures(0, 0)).await;
        assert!(end.is_taken_over());
    });
}
