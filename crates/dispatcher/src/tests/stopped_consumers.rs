//! Consumers that all stop, and are started again, each from its own state.

use caju_proto::v1;
use caju_types::{IterationId, TakenRows};
use serde_json::json;

use super::fake::{World, indices, open_request, run};
use super::lost_consumers::beat;
use super::restored_beginning;

const COUNT: u32 = 3;

/// One of three consumers; of a launch, if that has a name.
fn consumer(index: u32, launch: &str) -> v1::OpenIterationRequest {
    let attempt = (!launch.is_empty()).then(|| v1::Attempt { id: launch.into(), ..Default::default() });
    v1::OpenIterationRequest {
        num_consumers: COUNT,
        consumer_index: index,
        attempt,
        announces_asking: true,
        ..open_request(&json!({"splits": 8, "batch": 2}), "even")
    }
}

/// The rows of the first elements of a consumer: each is one split.
fn rows_of(index: u32, elements: u64) -> Vec<(u64, u64, u64)> {
    (0..elements).map(|n| (u64::from(index) + u64::from(COUNT) * n, 0, 2)).collect()
}

/// Consumers that have taken the same number of elements each.
struct Consumers {
    launch: &'static str,
    worker: u64,
    fingerprint: String,
    clients: Vec<u64>,
    iteration: u64,
}

impl Consumers {
    /// `done`: the task of their first elements is done.
    async fn after(w: &World, launch: &'static str, elements: u64, done: bool) -> Self {
        let worker = w.worker("a:1").await;
        let (mut opened, mut tasks) = (Vec::new(), Vec::new());
        for index in 0..COUNT {
            opened.push(w.core.epochs.open_iteration(consumer(index, launch)).await.unwrap());
        }
        let clients: Vec<u64> = opened.iter().map(|o| o.client_id).collect();
        let iteration = opened[0].iteration_id;
        for client in &clients {
            tasks = beat(w, (*client, iteration), &[], 0).await.tasks;
        }
        let first = tasks[0].task_id;
        w.next(first, worker, 1, if done { COUNT } else { 8 }).await.unwrap();
        for (index, client) in (0..).zip(&clients) {
            let elements = if done { 1 } else { elements };
            beat(w, (*client, iteration), &rows_of(index, elements), elements).await;
        }
        if done {
            w.finish_counted(first, worker, Some(&[(0, 2), (1, 2), (2, 2)])).await;
            for client in &clients {
                tasks = w.take(*client, iteration, &[], &[first]).await.tasks;
            }
            let second = tasks.iter().find(|t| t.task_id != first).unwrap().task_id;
            w.next(second, worker, 1, 8).await.unwrap();
            for (index, client) in (0..).zip(&clients) {
                beat(w, (*client, iteration), &rows_of(index, elements)[1..], elements).await;
            }
        }
        Self { launch, worker, fingerprint: opened[0].fingerprint.clone(), clients, iteration }
    }

    /// What a consumer sends that goes on from its state after this number of elements.
    fn from_state(&self, index: u32, elements: u64) -> v1::OpenIterationRequest {
        let mut taken = TakenRows::default();
        for (split, start, end) in rows_of(index, elements) {
            taken.add_rows(split, &std::iter::once((start, end)).collect());
        }
        let state = v1::ReaderState {
            fingerprint: self.fingerprint.clone(),
            iteration_id: self.iteration,
            readers: vec![self.clients[index as usize]],
            all_readers: self.clients.clone(),
            taken: taken.encode().into(),
            steps: vec![v1::ConsumerSteps { consumer: index, elements }],
            ..Default::default()
        };
        v1::OpenIterationRequest { states: vec![state], ..consumer(index, self.launch) }
    }

    /// Consumer 0 leaves, and `back` of the others go on with the epoch, which waits for it. These, and the iteration that waits.
    async fn first_leaves(
        &self,
        w: &World,
        elements: u64,
        back: std::ops::Range<u32>,
    ) -> (Vec<(u64, u64)>, u64) {
        let secret = |index: u32| w.client_secret(self.clients[index as usize], self.iteration);
        let secrets: Vec<_> = back.clone().map(secret).collect();
        w.close(self.clients[0], self.iteration, Vec::new()).await;
        let waits = w.core.snapshot().iterations.values().last().map(|i| i.id.0).unwrap();
        assert_ne!(waits, self.iteration, "the epoch is opened again");
        let mut others = Vec::new();
        for (index, client_secret) in back.zip(secrets) {
            let request = v1::OpenIterationRequest {
                reattached_client: self.clients[index as usize],
                client_secret,
                ..self.from_state(index, elements)
            };
            let opened = w.core.epochs.open_iteration(request).await.unwrap();
            assert_eq!(opened.iteration_id, waits);
            others.push((opened.client_id, waits));
        }
        (others, waits)
    }

    /// All of them stop, one after another. The iteration that waits for them then.
    async fn stop(&self, w: &World, elements: u64) -> u64 {
        let (others, waits) = self.first_leaves(w, elements, 1..COUNT).await;
        for (client, iteration) in others {
            w.close(client, iteration, Vec::new()).await;
        }
        waits
    }

    /// All of them are started again in this order, from their states after these elements. The first one takes an element as soon as
    /// the epoch has begun. The one iteration that they read.
    async fn start(&self, w: &World, order: [u32; 3], elements: u64) -> u64 {
        let (mut alive, mut has_begun) = (Vec::new(), false);
        for index in order {
            let opened = restored_beginning::open(w, self.from_state(index, elements), &alive).await.unwrap();
            alive.push((opened.client_id, opened.iteration_id));
            if opened.states_missing == 0 && !has_begun {
                has_begun = true;
                w.next(opened.tasks[0].task_id, self.worker, 1, 8).await.unwrap();
                beat(w, (opened.client_id, opened.iteration_id), &[(7, 0, 2)], 1).await;
            }
        }
        let iteration = alive[0].1;
        assert!(has_begun && alive.iter().all(|(_, other)| *other == iteration), "{order:?}: {alive:?}");
        let state = w.core.snapshot();
        let known = &state.iterations[&IterationId(iteration)];
        let resume = known.resume.as_deref().unwrap();
        assert_eq!((known.failure.as_ref(), known.members.len()), (None, 3), "{order:?}");
        assert_eq!(resume.steps, (0..COUNT).map(|c| (c, elements)).collect(), "{order:?}");
        assert!(resume.taken.rows_of(7).is_none(), "what is behind the states comes again");
        iteration
    }
}

/// One of them stopped first, and the others had given their states to the epoch that waits for it before they stopped, too. The first
/// one of the next launch made it begin, and the second one ended it.
#[test]
fn consumers_that_stop_at_one_step_and_start_again_from_their_states_go_on_together() {
    run(async {
        for (launch, order) in [("", [0, 1, 2]), ("", [1, 0, 2]), ("one", [0, 2, 1]), ("one", [2, 1, 0])] {
            let w = World::new();
            let consumers = Consumers::after(&w, launch, 1, false).await;
            let waits = consumers.stop(&w, 1).await;
            assert_eq!(consumers.start(&w, order, 1).await, waits, "{order:?}");
            // They are killed, and start once more: the element that one has taken since comes again.
            assert_ne!(consumers.start(&w, order, 1).await, waits, "{order:?}");
        }
    });
}

/// A state from before rows that its consumer took since ends the reading, while that consumer lives.
#[test]
fn a_state_of_a_consumer_that_lives_begins_the_epoch_again() {
    run(async {
        let w = World::new();
        let consumers = Consumers::after(&w, "", 1, false).await;
        let waits = consumers.stop(&w, 1).await;
        assert_eq!(consumers.start(&w, [0, 1, 2], 1).await, waits);
        let state = w.core.snapshot();
        let members = &state.iterations[&IterationId(waits)].members;
        let alive: Vec<(u64, u64)> = members.keys().map(|client| (client.0, waits)).collect();
        let again = restored_beginning::open(&w, consumers.from_state(0, 1), &alive).await.unwrap();
        assert!(again.iteration_id != waits && again.states_missing == 2);
    });
}

/// One consumer goes on behind what it had acknowledged, and with it all splits that are done. What another one had taken of these since
/// its state was lost in silence.
#[test]
fn a_consumer_that_goes_back_while_another_one_has_no_state_ends_the_epoch() {
    run(async {
        for goes_back_first in [true, false] {
            let w = World::new();
            let consumers = Consumers::after(&w, "", 2, true).await;
            let (mut alive, waits) = consumers.first_leaves(&w, 2, 2..COUNT).await;
            let goes_back = consumers.from_state(0, 1);
            let message = if goes_back_first {
                restored_beginning::open(&w, goes_back, &alive).await.unwrap();
                let other = w.core.epochs.open_iteration(consumer(1, "")).await.unwrap();
                beat(&w, (other.client_id, waits), &[], 0).await.failure.unwrap().message
            } else {
                let other = w.core.epochs.open_iteration(consumer(1, "")).await.unwrap();
                beat(&w, (other.client_id, waits), &[], 0).await;
                alive.push((other.client_id, waits));
                let refused = restored_beginning::open(&w, goes_back, &alive).await.unwrap_err();
                assert!(w.core.snapshot().iterations[&IterationId(waits)].failure.is_some());
                refused.message().to_owned()
            };
            let said = "the state of consumer 0 has 1 elements, and the process before it had taken 2";
            assert!(message.contains(said), "{message}");
        }
    });
}

/// Splits that share a part of a set are issued part by part, in another order than that of their indexes. A consumer that was killed
/// then could not come back, and the epoch ended with the error of a dispatcher that lost its state.
#[test]
fn a_consumer_of_an_epoch_that_is_read_from_a_set_comes_back_under_its_index() {
    use caju_types::TaskId;

    use crate::state::{SplitRecord, TaskState, Update};

    run(async {
        let mut w = World::new();
        let consumers = {
            let worker = w.worker("a:1").await;
            let two = |index| v1::OpenIterationRequest { num_consumers: 2, ..consumer(index, "") };
            let a = w.core.epochs.open_iteration(two(0)).await.unwrap();
            let b = w.core.epochs.open_iteration(two(1)).await.unwrap();
            let clients = vec![a.client_id, b.client_id];
            Consumers { launch: "", worker, fingerprint: a.fingerprint, clients, iteration: a.iteration_id }
        };
        let (id, worker) = (consumers.iteration, consumers.worker);
        let [a, b] = [0, 1].map(|index| (consumers.clients[index], id));
        beat(&w, a, &[], 0).await;
        let first = beat(&w, b, &[], 0).await.tasks[0].task_id;
        let lease = async |w: &World, task: u64, splits: &[u64], end: bool| {
            let record = |index: &u64| SplitRecord {
                index: *index,
                split: json!({ "i": index, "v": 0 }).to_string().into(),
                group: None,
                after: None,
                whole: None,
            };
            let fresh = splits.iter().map(record).collect();
            let (task, requeued) = (TaskId(task), Vec::new());
            let leased = Update::Leased { task, request_no: 1, fresh, requeued, end, asks_for_lagging: true };
            let committed = w.core.context.commit(|txn| {
                txn.apply(leased);
                Ok(())
            });
            committed.await.unwrap();
        };
        lease(&w, first, &[6, 1], true).await;
        beat(&w, a, &[(6, 0, 2)], 1).await;
        beat(&w, b, &[(1, 0, 2)], 1).await;
        w.finish_counted(first, worker, Some(&[(6, 2), (1, 2)])).await;
        w.take(a.0, id, &[], &[first]).await;
        w.take(b.0, id, &[], &[first]).await;
        let state = w.core.snapshot();
        let tasks = &state.iterations[&IterationId(id)].tasks;
        assert_eq!(tasks[&TaskId(first)].state, TaskState::Done);
        let second = tasks.keys().find(|task| task.0 != first).unwrap().0;
        lease(&w, second, &[4, 0], false).await;
        w.restart();
        beat(&w, b, &[(4, 0, 2)], 2).await;
        let client_secret = w.client_secret(a.0, id);
        // The second one is killed, and comes back.
        w.silence(std::time::Duration::from_secs(62), &[(worker, "a:1")], &[a]).await;
        let two = |request| v1::OpenIterationRequest { num_consumers: 2, ..request };
        let back = w.core.epochs.open_iteration(two(consumer(1, ""))).await.unwrap();
        assert_ne!(back.iteration_id, id);
        let mut other = two(consumers.from_state(0, 1));
        other.states[0].taken = {
            let mut taken = TakenRows::default();
            taken.add_rows(6, &std::iter::once((0, 2)).collect());
            taken.encode().into()
        };
        let other = v1::OpenIterationRequest { reattached_client: a.0, client_secret, ..other };
        assert_eq!(w.core.epochs.open_iteration(other).await.unwrap().iteration_id, back.iteration_id);
        let answer = beat(&w, (back.client_id, back.iteration_id), &[], 0).await;
        assert_eq!((answer.failure, answer.states_missing, answer.steps), (None, 0, 2));
        let (mut left, mut done) = (Vec::new(), Vec::new());
        for no in 1.. {
            let leased = w.next(answer.tasks[0].task_id, worker, no, 9).await.unwrap();
            left.extend(indices(&leased));
            done.extend(leased.splits.iter().filter(|s| !s.done.is_empty()).map(|s| s.index));
            if leased.end {
                break;
            }
        }
        assert_eq!((left, done), (vec![0, 2, 3, 4, 5, 7], vec![4]));
    });
}
