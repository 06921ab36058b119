//! Consumers that lag far behind the others, while tasks of several workers go on.

use caju_proto::v1;
use caju_types::{Error, ErrorKind, IterationId, Result, TakenRows};
use serde_json::{Value, json};

use super::fake::{World, indices, lost, open_request, run};

const CONSUMERS: usize = 3;
/// The elements of every split.
const PER_SPLIT: u64 = 5;

/// What consumer `index` sends that goes on from a state: it has taken whole splits.
async fn from_state(
    w: &World,
    def: &Value,
    uneven: &str,
    (index, splits): (u32, std::ops::Range<u64>),
) -> v1::OpenIterationRequest {
    let fingerprint = w.core.epochs.open_iteration(open_request(def, "other")).await.unwrap().fingerprint;
    let mut taken = TakenRows::default();
    taken.add_whole_range(splits.start, splits.end);
    let elements = (splits.end - splits.start) * PER_SPLIT;
    let state = v1::ReaderState {
        fingerprint,
        iteration_id: 5,
        readers: vec![7 + u64::from(index)],
        all_readers: vec![7, 8, 9],
        taken: taken.encode().into(),
        steps: vec![v1::ConsumerSteps { consumer: index, elements }],
        ..Default::default()
    };
    v1::OpenIterationRequest {
        states: vec![state],
        num_consumers: 3,
        consumer_index: index,
        uneven: uneven.to_string(),
        ..open_request(def, "even")
    }
}

/// Three consumers that have taken the given numbers of splits, and the iteration that goes on from their states.
async fn open(w: &World, splits: u64, uneven: &str, taken: [u64; CONSUMERS]) -> Vec<(u64, u64)> {
    let def = json!({ "splits": splits });
    let mut at = 0;
    let mut clients = Vec::new();
    for (index, n) in (0..).zip(taken) {
        let request = from_state(w, &def, uneven, (index, at..at + n)).await;
        let opened = w.core.epochs.open_iteration(request).await.unwrap();
        at += n;
        clients.push((opened.client_id, opened.iteration_id));
    }
    clients
}

/// A task as its worker distributes it.
struct FakeTask {
    task: u64,
    worker: u64,
    asks_for_lagging: bool,
    leases: u64,
    questions: u64,
    has_lagging: bool,
    owed: [u64; CONSUMERS],
    carry: u64,
    assigned: [u64; CONSUMERS],
    copies: u64,
}

impl FakeTask {
    /// The running tasks of an iteration, in the order of their workers.
    fn all(w: &World, iteration: u64, asks_for_lagging: bool) -> Vec<Self> {
        let state = w.core.snapshot();
        let tasks = state.iterations[&IterationId(iteration)].tasks.values();
        tasks
            .map(|t| Self {
                task: t.id.0,
                worker: t.worker.0,
                asks_for_lagging,
                leases: 0,
                questions: 0,
                has_lagging: false,
                owed: [0; CONSUMERS],
                carry: 0,
                assigned: [0; CONSUMERS],
                copies: 0,
            })
            .collect()
    }

    fn add_owed(&mut self, counts: &[u64]) {
        self.owed.iter_mut().zip(counts).for_each(|(sum, more)| *sum += more);
    }

    /// Leases a split; none at the end.
    async fn lease(&mut self, w: &World) -> Option<u64> {
        self.leases += 1;
        let request = v1::NextSplitsRequest {
            task_id: self.task,
            worker_id: self.worker,
            want: 1,
            wait_ms: 60_000,
            request_no: self.leases,
            secret: w.worker_secret(self.worker),
            asks_for_lagging: self.asks_for_lagging,
            ..Default::default()
        };
        let answer = w.core.splits.next_splits(request).await.unwrap();
        self.add_owed(&answer.lag);
        self.has_lagging |= answer.has_lagging;
        indices(&answer).first().copied()
    }

    /// Distributes elements that were computed.
    async fn emit(&mut self, w: &World, elements: u64) {
        self.carry += elements;
        if self.asks_for_lagging && self.has_lagging {
            self.questions += 1;
            let request = v1::ServeLaggingRequest {
                task_id: self.task,
                worker_id: self.worker,
                secret: w.worker_secret(self.worker),
                request_no: self.questions,
                elements: self.carry,
            };
            let answer = w.core.consumers.serve_lagging(request.clone()).await.unwrap();
            let again = w.core.consumers.serve_lagging(request).await.unwrap();
            assert_eq!(again.counts, answer.counts, "a repeated request gets the same answer");
            assert!(answer.counts.iter().sum::<u64>() <= self.carry, "only elements that exist are assigned");
            self.has_lagging = answer.has_lagging;
            self.add_owed(&answer.counts);
        }
        for (owed, assigned) in self.owed.iter_mut().zip(&mut self.assigned) {
            let now = (*owed).min(self.carry);
            (*owed, *assigned, self.carry) = (*owed - now, *assigned + now, self.carry - now);
        }
        let rounds = self.carry / CONSUMERS as u64;
        self.assigned.iter_mut().for_each(|assigned| *assigned += rounds);
        self.carry %= CONSUMERS as u64;
    }

    /// The end of the task, if all tasks are at theirs.
    async fn assign_remainder(&mut self, w: &World) -> Result<bool> {
        let request = v1::AssignRemainderRequest {
            task_id: self.task,
            worker_id: self.worker,
            secret: w.worker_secret(self.worker),
            elements: self.carry,
            lag: self.owed.to_vec(),
            has_spare: self.asks_for_lagging && self.assigned.iter().any(|n| *n > 0),
            ..Default::default()
        };
        let answer = w.core.consumers.assign_remainder(request).await?;
        for piece in &answer.pieces {
            assert!(piece.end <= self.carry + u64::from(piece.copy && self.asks_for_lagging));
            self.assigned[piece.consumer as usize] += piece.end - piece.start;
            self.copies += u64::from(piece.copy);
        }
        Ok(answer.assigned)
    }
}

/// Each task computes a split in turn until none is left.
async fn compute(w: &World, tasks: &mut [FakeTask]) {
    let mut open: Vec<bool> = tasks.iter().map(|_| true).collect();
    while open.iter().any(|open| *open) {
        for (task, open) in tasks.iter_mut().zip(&mut open).filter(|(_, open)| **open) {
            match task.lease(w).await {
                Some(_) => task.emit(w, PER_SPLIT).await,
                None => *open = false,
            }
        }
    }
}

/// The remainders of all tasks are assigned.
async fn assign_remainders(w: &World, tasks: &mut [FakeTask]) -> Result<()> {
    for round in 0..2 {
        for (n, task) in tasks.iter_mut().enumerate() {
            // Those that asked before the last one ask again.
            let is_last = n + 1 == CONSUMERS;
            if round == 0 || !is_last {
                task.assign_remainder(w).await?;
            }
        }
    }
    Ok(())
}

fn totals(tasks: &[FakeTask], before: [u64; CONSUMERS]) -> Vec<u64> {
    let of = |c: usize| before[c] * PER_SPLIT + tasks.iter().map(|t| t.assigned[c]).sum::<u64>();
    (0..CONSUMERS).map(of).collect()
}

/// What status says: elements that nobody got, and copies.
fn counted(w: &World, iteration: u64) -> (u64, u64) {
    let state = w.core.snapshot();
    let even = state.iterations[&IterationId(iteration)].even.as_ref().unwrap();
    (even.surplus, even.padded)
}

#[test]
fn tasks_of_several_workers_serve_a_far_lagging_consumer_before_they_assign_rounds() {
    run(async {
        for (splits, uneven, each, surplus, copies) in
            [(30, "drop", 50, 0, 0), (31, "drop", 51, 2, 0), (30, "pad", 50, 0, 0), (31, "pad", 52, 0, 1)]
        {
            let mut w = World::new();
            for address in ["a:1", "b:1", "c:1"] {
                w.worker(address).await;
            }
            // Consumers 0 and 1 are nearly at their ends.
            let before = [8, 8, 1];
            let clients = open(&w, splits, uneven, before).await;
            w.restart();
            let mut tasks = FakeTask::all(&w, clients[0].1, true);
            assert_eq!(tasks.len(), CONSUMERS);
            compute(&w, &mut tasks).await;
            w.restart();
            assign_remainders(&w, &mut tasks).await.unwrap();
            assert_eq!(totals(&tasks, before), [each; CONSUMERS], "{splits} splits, {uneven}");
            assert_eq!(tasks.iter().map(|t| t.copies).sum::<u64>(), copies);
            assert_eq!(counted(&w, clients[0].1), (surplus, copies), "{splits} splits, {uneven}");
            assert!(tasks.iter().all(|t| t.assigned[2] > 0), "each task served it");
        }
    });
}

/// As versions before 1.2 of the protocol do: the first one that leases gets all that consumers lack, and has too few elements.
#[test]
fn a_worker_that_does_not_ask_ends_the_epoch_with_an_error_and_doubles_nothing() {
    run(async {
        let w = World::new();
        for address in ["a:1", "b:1", "c:1"] {
            w.worker(address).await;
        }
        let clients = open(&w, 30, "drop", [8, 8, 1]).await;
        let mut tasks = FakeTask::all(&w, clients[0].1, false);
        compute(&w, &mut tasks).await;
        let e: Error = assign_remainders(&w, &mut tasks).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        assert!(e.message().contains("consumer 2 lacks") && e.message().contains("a worker is older"), "{e}");
        assert_eq!(tasks.iter().map(|t| t.copies).sum::<u64>(), 0);
    });
}

/// A worker is lost after one consumer has received more of it than the others. The other tasks learn it with their next
/// splits, and fill the gap with the lost rows.
#[test]
fn what_a_lost_task_gave_to_some_consumers_alone_is_given_to_the_others_first() {
    run(async {
        let mut w = World::new();
        for address in ["a:1", "b:1", "c:1"] {
            w.worker(address).await;
        }
        let clients = open(&w, 30, "drop", [0; CONSUMERS]).await;
        let iteration = clients[0].1;
        let mut tasks = FakeTask::all(&w, iteration, true);
        let mut of_lost = Vec::new();
        for _ in 0..6 {
            for (n, task) in tasks.iter_mut().enumerate() {
                let split = task.lease(&w).await.unwrap();
                of_lost.extend((n == 0).then_some(split));
                task.emit(&w, PER_SPLIT).await;
            }
        }
        // Of the ten elements that each was to get of it, consumer 0 received ten, and the others fewer.
        let gone = tasks.remove(0);
        assert_eq!(gone.assigned, [10; CONSUMERS]);
        let received = [10u64, 3, 0];
        let mut left = of_lost.iter().flat_map(|split| (0..PER_SPLIT).map(move |row| (*split, row, row + 1)));
        for ((client, _), elements) in clients.iter().zip(received) {
            let rows: Vec<(u64, u64, u64)> = left.by_ref().take(usize::try_from(elements).unwrap()).collect();
            let report = v1::LostTask { elements, ..lost(gone.task, &rows) };
            w.beat(*client, iteration, &[], &[report]).await;
        }
        w.restart();
        let lag = |w: &World| {
            let state = w.core.snapshot();
            state.iterations[&IterationId(iteration)].even.as_ref().unwrap().lag.clone()
        };
        assert_eq!(lag(&w), [0, 7, 10]);
        let heartbeat = v1::WorkerHeartbeatRequest {
            worker_id: tasks[0].worker,
            address: "b:1".to_string(),
            secret: w.worker_secret(tasks[0].worker),
            tasks: vec![tasks[0].task],
            ..Default::default()
        };
        let lagging_tasks = w.core.workers.worker_heartbeat(heartbeat).await.unwrap().lagging_tasks;
        assert_eq!(lagging_tasks, [tasks[0].task], "also a task that leases nothing learns it");
        // Of the lost splits 13 elements are delivered, and of the others none.
        let mut delivered = 13;
        let mut open = [true; 2];
        while open.iter().any(|open| *open) {
            for (task, open) in tasks.iter_mut().zip(&mut open).filter(|(_, open)| **open) {
                match task.lease(&w).await {
                    Some(split) if of_lost.contains(&split) => {
                        let done = delivered.min(PER_SPLIT);
                        delivered -= done;
                        task.emit(&w, PER_SPLIT - done).await;
                    }
                    Some(_) => task.emit(&w, PER_SPLIT).await,
                    None => *open = false,
                }
            }
        }
        assert_eq!(lag(&w), [0; CONSUMERS]);
        // The worker that lost its task gets no other: no split is left.
        assign_remainders(&w, &mut tasks).await.unwrap();
        let totals = totals(&tasks, [0; CONSUMERS]);
        let each: Vec<u64> = totals.iter().zip(received).map(|(n, received)| n + received).collect();
        assert_eq!(each, [50; CONSUMERS]);
        assert_eq!(counted(&w, iteration), (0, 0));
    });
}
