//! The property: whatever happens in whatever order, every row of every split reaches the clients exactly
//! once, the sums at the end agree, and the journal gives the same state back.
//!
//! A simulated cluster runs against the real control plane: workers that pull and emit, clients that receive,
//! and faults in between. Rows are delivered to clients one range at a time, in the order of a task's leases.
//! Users take rows later than clients receive them. Clients vanish: what such a client had not acknowledged comes again.

mod readers;

use std::collections::BTreeMap;
use std::time::Duration;

use caju_proto::v1;
use caju_types::{IterationId, RowRanges};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::fake::{World, run};
use readers::SimClient;

/// Rows of every split.
const ROWS: u64 = 5;
/// Faults per case: fewer than what makes an iteration give up.
const FAULTS: usize = 9;
/// Of those, workers that die: fewer than a split may be lost with.
const DEATHS: usize = 2;
/// Clients that vanish: each takes a minute of the simulation.
const VANISHED: usize = 2;

#[derive(Default)]
struct SimTask {
    worker: usize,
    requests: u64,
    told_end: bool,
    /// Rows that it emits, per split.
    emitted: BTreeMap<u64, u64>,
    /// What is still to be delivered, as (split, start, end).
    queue: Vec<(u64, u64, u64)>,
    last: Option<(v1::NextSplitsRequest, v1::NextSplitsResponse)>,
}

struct SimWorker {
    id: u64,
    address: String,
    alive: bool,
}

struct Sim {
    world: World,
    definition: Value,
    mode: v1::ProcessingMode,
    iteration: u64,
    workers: Vec<SimWorker>,
    clients: Vec<SimClient>,
    tasks: BTreeMap<u64, SimTask>,
    delivered: BTreeMap<(u64, u64), u32>,
    faults: usize,
    deaths: usize,
    vanished: usize,
}

impl Sim {
    async fn new(definition: Value, mode: v1::ProcessingMode) -> Self {
        let mut sim = Self {
            world: World::new(),
            definition,
            mode,
            iteration: 0,
            workers: Vec::new(),
            clients: Vec::new(),
            tasks: BTreeMap::new(),
            delivered: BTreeMap::new(),
            faults: 0,
            deaths: 0,
            vanished: 0,
        };
        sim.add_worker().await;
        sim.join().await;
        sim
    }

    async fn add_worker(&mut self) {
        let address = format!("w{}:1", self.workers.len());
        let id = self.world.worker(&address).await;
        self.workers.push(SimWorker { id, address, alive: true });
    }

    fn fault(&mut self) -> bool {
        self.faults += 1;
        self.faults <= FAULTS
    }

    /// A worker dies; its rows on the way die with it.
    async fn kill(&mut self, w: usize) {
        if !self.workers[w].alive || self.deaths >= DEATHS || !self.fault() {
            return;
        }
        self.deaths += 1;
        self.workers[w].alive = false;
        self.tasks.retain(|_, t| t.worker != w);
        self.pass(Duration::from_secs(7)).await;
    }

    /// Lets time pass in which all live peers report.
    async fn pass(&mut self, time: Duration) {
        let alive: Vec<(u64, String)> =
            self.workers.iter().filter(|w| w.alive).map(|w| (w.id, w.address.clone())).collect();
        let alive: Vec<(u64, &str)> = alive.iter().map(|(id, a)| (*id, a.as_str())).collect();
        let clients: Vec<_> = self.clients.iter().map(|c| (c.id, self.iteration)).collect();
        self.world.silence(time, &alive, &clients).await;
    }

    /// A worker is started under its old address.
    async fn restart_worker(&mut self, w: usize) {
        if self.workers[w].alive {
            if self.deaths >= DEATHS || !self.fault() {
                return;
            }
            self.deaths += 1;
        }
        self.tasks.retain(|_, t| t.worker != w);
        let address = self.workers[w].address.clone();
        self.workers[w].id = self.world.worker(&address).await;
        self.workers[w].alive = true;
    }

    /// Gives a task to its worker, if a client knows of it and the worker lives.
    fn start_tasks(&mut self) {
        for client in &self.clients {
            for info in client.tasks.values().filter(|t| !t.lost && !t.ended) {
                let runs = |w: &SimWorker| w.alive && w.id == info.worker_id;
                if let Some(worker) = self.workers.iter().position(runs) {
                    self.tasks
                        .entry(info.task_id)
                        .or_insert_with(|| SimTask { worker, ..SimTask::default() });
                }
            }
        }
    }

    fn pick(&self, k: usize) -> Option<u64> {
        let n = self.tasks.len();
        (n > 0).then(|| *self.tasks.keys().nth(k % n).unwrap())
    }

    /// A worker asks for splits.
    async fn pull(&mut self, task: u64, want: u32) {
        let sim = self.tasks.get_mut(&task).unwrap();
        if sim.told_end {
            return;
        }
        sim.requests += 1;
        let request = v1::NextSplitsRequest {
            task_id: task,
            worker_id: self.workers[sim.worker].id,
            want,
            wait_ms: 60_000,
            request_no: sim.requests,
            secret: self.world.worker_secret(self.workers[sim.worker].id),
            ..Default::default()
        };
        let Ok(answer) = self.world.core.splits.next_splits(request.clone()).await else {
            self.tasks.remove(&task);
            return;
        };
        sim.told_end = answer.end;
        for split in &answer.splits {
            let done: RowRanges = split.done.iter().map(|r| (r.start, r.end)).collect();
            sim.queue.extend(done.missing_in(0, ROWS).into_iter().map(|(s, e)| (split.index, s, e)));
            sim.emitted.insert(split.index, ROWS - done.len());
        }
        sim.last = Some((request, answer));
    }

    /// A worker repeats a request whose answer it did not get.
    async fn retry(&self, task: u64) {
        if let Some((request, answer)) = &self.tasks[&task].last
            && let Ok(mut again) = self.world.core.splits.next_splits(request.clone()).await
        {
            // A worker that has no answer emits nothing of its splits. Here it does, and users may have taken all of their rows.
            let state = self.world.core.snapshot();
            let iteration = &state.iterations[&IterationId(self.iteration)];
            let mut answer = answer.clone();
            answer.splits.retain(|split| !iteration.is_complete(split.index));
            (again.completed, again.completed_up_to) = (answer.completed.clone(), answer.completed_up_to);
            // More may be listed by now.
            assert!(again.listed.map(|l| l.count) >= answer.listed.map(|l| l.count), "{again:?}");
            again.listed = answer.listed;
            assert_eq!(again, answer);
        }
    }

    /// Some rows of a task arrive at a client.
    fn deliver(&mut self, task: u64, c: usize, rows: u64) {
        let client = &mut self.clients[c];
        let sim = self.tasks.get_mut(&task).unwrap();
        if !client.tasks.contains_key(&task) || client.closed.contains(&task) || sim.queue.is_empty() {
            return;
        }
        let (split, start, end) = sim.queue[0];
        let cut = end.min(start + rows);
        if cut == end {
            sim.queue.remove(0);
        } else {
            sim.queue[0].1 = cut
        }
        client.received.entry(task).or_default().entry(split).or_default().insert(start, cut);
        for row in start..cut {
            *self.delivered.entry((split, row)).or_default() += 1;
        }
    }

    async fn finish(&mut self, task: u64) {
        let sim = &self.tasks[&task];
        if sim.told_end {
            let emitted: Vec<(u64, u64)> = sim.emitted.iter().map(|(split, rows)| (*split, *rows)).collect();
            self.world.finish_counted(task, self.workers[sim.worker].id, Some(&emitted)).await;
        }
    }

    /// A client sees the end of a task's stream.
    async fn end_of_stream(&mut self, task: u64, c: usize) {
        let over = self.tasks.get(&task).is_some_and(|t| t.told_end && t.queue.is_empty());
        if over && self.clients[c].tasks.contains_key(&task) && !self.clients[c].closed.contains(&task) {
            self.clients[c].ended.insert(task);
            self.beat(c, &[task], &[]).await;
        }
    }

    /// A client's connection to a task breaks.
    async fn break_connection(&mut self, task: u64, c: usize) {
        if self.clients[c].tasks.contains_key(&task)
            && !self.clients[c].closed.contains(&task)
            && self.fault()
        {
            self.clients[c].closed.insert(task);
            self.clients[c].ended.remove(&task);
            let report = self.clients[c].report(task);
            self.beat(c, &[], &[report]).await;
        }
    }

    /// A heartbeat, and the reports of what it brought to be lost. True if the client may end its epoch.
    async fn beat(&mut self, c: usize, ended: &[u64], lost: &[v1::LostTask]) -> bool {
        let id = self.clients[c].id;
        let mut view = self.world.beat(id, self.iteration, ended, lost).await;
        assert!(!view.unknown && view.failure.is_none(), "{:?}", view.failure);
        let known_lost: Vec<u64> = view.tasks.iter().filter(|t| t.lost).map(|t| t.task_id).collect();
        if !known_lost.is_empty() {
            let reports: Vec<_> = known_lost.iter().map(|t| self.clients[c].report(*t)).collect();
            self.clients[c].ended.retain(|t| !known_lost.contains(t));
            self.clients[c].closed.extend(known_lost);
            view = self.world.beat(id, self.iteration, &[], &reports).await;
            assert!(view.tasks.iter().all(|t| !t.lost));
        }
        self.clients[c].tasks.extend(view.tasks.iter().map(|t| (t.task_id, t.clone())));
        view.finished
    }

    async fn step(&mut self, op: u8, a: usize, b: usize) {
        self.start_tasks();
        let (w, c) = (a % self.workers.len(), b % self.clients.len());
        let task = self.pick(a);
        match (op, task) {
            (0, _) if self.workers.len() < 4 => self.add_worker().await,
            (1, _) => self.kill(w).await,
            (2, _) => self.restart_worker(w).await,
            (3, _) => self.restart(),
            (4, _) if self.clients.len() < 3 => self.join().await,
            (5, _) => self.leave(c).await,
            (6, Some(task)) => self.break_connection(task, c).await,
            (7, _) => drop(self.beat(c, &[], &[]).await),
            (8, Some(task)) => self.retry(task).await,
            (9, Some(task)) => self.finish(task).await,
            (10, Some(task)) => self.end_of_stream(task, c).await,
            (11, _) => {
                let request = v1::DrainWorkerRequest {
                    worker_id: self.workers[w].id,
                    secret: self.world.worker_secret(self.workers[w].id),
                    leaving: false,
                };
                // Refused for a lost one.
                let _ = self.world.core.workers.drain_worker(request).await;
            }
            (24..26, _) => self.acknowledge(c, op == 24).await,
            (26, _) => self.vanish(c).await,
            (12..16, Some(task)) => self.pull(task, 1 + u32::try_from(b % 6).unwrap()).await,
            (_, Some(task)) => self.deliver(task, c, 1 + (b as u64 / 3) % ROWS),
            _ => {}
        }
    }

    /// No more faults: everybody does his work until all is read.
    async fn run_to_the_end(&mut self) {
        self.add_worker().await;
        for _ in 0..200 {
            let mut finished = true;
            for c in 0..self.clients.len() {
                finished &= self.beat(c, &[], &[]).await;
            }
            self.start_tasks();
            self.cancel_tasks().await;
            for task in self.tasks.keys().copied().collect::<Vec<_>>() {
                while self.tasks.get(&task).is_some_and(|t| !t.told_end) {
                    self.pull(task, 2).await;
                }
                while self.tasks.get(&task).is_some_and(|t| !t.queue.is_empty())
                    && let Some(c) = self.reader_of(task)
                {
                    self.deliver(task, c, ROWS);
                }
                if self.tasks.contains_key(&task) {
                    self.finish(task).await;
                    for c in 0..self.clients.len() {
                        self.end_of_stream(task, c).await;
                    }
                }
            }
            let read = |t: &SimTask| t.told_end && t.queue.is_empty();
            if finished && self.tasks.values().all(read) {
                return;
            }
        }
        panic!("the epoch does not end: {:#?}", self.world.core.snapshot().iterations);
    }

    /// Workers are notified of tasks that no reader wants any more.
    async fn cancel_tasks(&mut self) {
        for (w, worker) in self.workers.iter().enumerate().filter(|(_, w)| w.alive) {
            let request = v1::WorkerHeartbeatRequest {
                worker_id: worker.id,
                address: worker.address.clone(),
                secret: self.world.worker_secret(worker.id),
                tasks: self.tasks.iter().filter(|(_, t)| t.worker == w).map(|(id, _)| *id).collect(),
                ..Default::default()
            };
            let answer = self.world.core.workers.worker_heartbeat(request).await.unwrap();
            assert!(!answer.register_again);
            self.tasks.retain(|id, _| !answer.cancel_tasks.contains(id));
        }
    }

    fn reader_of(&self, task: u64) -> Option<usize> {
        self.clients.iter().position(|c| c.tasks.contains_key(&task) && !c.closed.contains(&task))
    }

    fn check(&self, splits: u64) {
        let state = self.world.core.snapshot();
        let iteration = state.iterations.values().next().unwrap();
        assert!(iteration.is_finished(), "{:?} {:?} {iteration:#?}", iteration.missing, iteration.failure);
        let mut expected = BTreeMap::new();
        for feed in iteration.feeds.keys() {
            for split in 0..splits {
                expected.extend((0..ROWS).map(|row| ((feed.index(split), row), 1u32)));
            }
        }
        assert_eq!(self.delivered, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_delivered_exactly_once(
        kind in 0..4u8,
        splits in 0..8u64,
        steps in prop::collection::vec((0..27u8, 0..12usize, 0..12usize), 0..120),
    ) {
        run(async {
            let (definition, mode) = match kind {
                0 => (json!({"splits": splits}), v1::ProcessingMode::Dynamic),
                1 => (json!({"splits": splits, "shuffle": 1}), v1::ProcessingMode::Dynamic),
                2 => (json!({"splits": splits, "single": true}), v1::ProcessingMode::Dynamic),
                _ => (json!({"splits": splits}), v1::ProcessingMode::Off),
            };
            let mut sim = Sim::new(definition, mode).await;
            for (op, a, b) in steps {
                sim.step(op, a, b).await;
            }
            sim.run_to_the_end().await;
            sim.take_the_rest().await;
            sim.check(splits);
            sim.world.restart();
        });
    }
}
