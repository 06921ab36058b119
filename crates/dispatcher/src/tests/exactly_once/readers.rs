//! The readers of the simulation: what each has received, what its user took, and how it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caju_proto::v1;
use caju_types::RowRanges;

use super::super::fake::open_request;
use super::{ROWS, Sim, VANISHED};

#[derive(Default)]
pub(super) struct SimClient {
    pub(super) id: u64,
    pub(super) tasks: BTreeMap<u64, v1::TaskInfo>,
    pub(super) received: BTreeMap<u64, BTreeMap<u64, RowRanges>>,
    /// Tasks that this client will not read from any more.
    pub(super) closed: BTreeSet<u64>,
    /// Tasks that it has read to their end.
    pub(super) ended: BTreeSet<u64>,
    /// Rows that it has acknowledged, per split.
    acknowledged: BTreeMap<u64, RowRanges>,
    /// The dispatcher knows all that it has acknowledged.
    is_known: bool,
    /// How many complete splits were listed to it.
    completed_seen: u64,
}

impl SimClient {
    /// Everything that it has received, per split.
    fn all_received(&self) -> BTreeMap<u64, RowRanges> {
        let mut all: BTreeMap<u64, RowRanges> = BTreeMap::new();
        for (split, rows) in self.received.values().flatten() {
            all.entry(*split).or_default().extend(rows);
        }
        all
    }

    pub(super) fn report(&self, task: u64) -> v1::LostTask {
        let received = self.received.get(&task).into_iter().flatten().map(to_proto).collect();
        v1::LostTask { task_id: task, received, reason: "broken".into(), ..Default::default() }
    }
}

fn to_proto((split, rows): (&u64, &RowRanges)) -> v1::SplitRows {
    v1::SplitRows {
        split_index: *split,
        rows: rows.iter().map(|(start, end)| v1::RowRange { start, end }).collect(),
        ..Default::default()
    }
}

impl Sim {
    pub(super) async fn join(&mut self) {
        let request = v1::OpenIterationRequest {
            mode: self.mode.into(),
            lost_readers: "allow".into(),
            ..open_request(&self.definition, "j")
        };
        let open = self.world.core.epochs.open_iteration(request).await.unwrap();
        self.iteration = open.iteration_id;
        let mut client = SimClient { id: open.client_id, is_known: true, ..SimClient::default() };
        client.tasks = open.tasks.into_iter().map(|t| (t.task_id, t)).collect();
        self.clients.push(client);
    }

    /// A client leaves, saying what it received: its user has taken all of it.
    pub(super) async fn leave(&mut self, c: usize) {
        if self.clients.len() > 1 {
            let client = self.clients.remove(c);
            let received = client.tasks.keys().map(|t| client.report(*t)).collect();
            // Every other one breaks its streams off: what it did not get of them goes to others.
            let broken_off: Vec<u64> = match client.id % 2 {
                0 => Vec::new(),
                _ => client.tasks.keys().copied().filter(|t| !client.closed.contains(t)).collect(),
            };
            let request = v1::CloseClientRequest {
                client_id: client.id,
                iteration_id: self.iteration,
                received,
                broken_off,
                reason: "enough".into(),
                secret: self.world.client_secret(client.id, self.iteration),
                ..Default::default()
            };
            self.world.core.clients.close_client(request).await.unwrap();
        }
    }

    /// The user of a client takes rows that the client has received, all or some, and the client acknowledges them.
    pub(super) async fn acknowledge(&mut self, c: usize, all: bool) {
        let client = &mut self.clients[c];
        for (split, rows) in client.all_received() {
            let taken = rows.iter().flat_map(|(start, end)| start..end).filter(|row| all || row % 2 == 0);
            let taken: RowRanges = taken.map(|row| (row, row + 1)).collect();
            client.acknowledged.entry(split).or_default().extend(&taken);
        }
        let ended = || client.ended.iter().copied().collect();
        let request = v1::ClientHeartbeatRequest {
            client_id: client.id,
            iteration_id: self.iteration,
            ended_tasks: ended(),
            taken_tasks: if all { ended() } else { Vec::new() },
            acknowledged: client.acknowledged.iter().map(to_proto).collect(),
            acknowledged_all: true,
            sizes: client
                .acknowledged
                .keys()
                .map(|split| v1::SplitCount { split_index: *split, rows: ROWS })
                .collect(),
            completed_seen: client.completed_seen,
            secret: self.world.client_secret(client.id, self.iteration),
            ..Default::default()
        };
        client.is_known = true;
        let answer = self.world.core.clients.client_heartbeat(request).await.unwrap();
        assert!(!answer.unknown && answer.failure.is_none(), "{:?}", answer.failure);
        // It forgets what is complete, as a real one does.
        client.completed_seen = answer.completed_up_to;
        for split in answer.completed {
            client.acknowledged.remove(&split);
            client.received.values_mut().for_each(|of_task| drop(of_task.remove(&split)));
        }
    }

    /// A client vanishes without a word. What its user has not taken, by its acknowledgements, has to come again.
    pub(super) async fn vanish(&mut self, c: usize) {
        // Without a worker the epoch fails within two such times.
        let is_served = self.workers.iter().any(|w| w.alive);
        let may = self.clients.len() > 1 && self.vanished < VANISHED && self.clients[c].is_known;
        if !may || !is_served {
            return;
        }
        self.vanished += 1;
        let client = self.clients.remove(c);
        for (split, mut rows) in client.all_received() {
            rows.subtract(client.acknowledged.get(&split).unwrap_or(&RowRanges::default()));
            for row in rows.iter().flat_map(|(start, end)| start..end) {
                *self.delivered.get_mut(&(split, row)).unwrap() -= 1;
            }
        }
        self.pass(Duration::from_secs(62)).await;
    }

    pub(super) fn restart(&mut self) {
        self.world.restart();
        self.clients.iter_mut().for_each(|c| c.is_known = false);
    }

    /// The users take all that is left, also of tasks that only other clients have read.
    pub(super) async fn take_the_rest(&mut self) {
        for c in 0..self.clients.len() {
            self.beat(c, &[], &[]).await;
            let client = &mut self.clients[c];
            client.ended = client.tasks.keys().filter(|t| !client.closed.contains(t)).copied().collect();
            self.acknowledge(c, true).await;
        }
    }
}
