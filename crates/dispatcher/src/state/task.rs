//! A task: an iteration's work on one worker.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{ClientId, RowRanges, Secret, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{FeedId, Lease, Remainder, RemainderPiece};

/// An iteration's work on one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its identifier.
    pub id: TaskId,
    /// Where it runs.
    pub worker: WorkerId,
    /// Where its splits come from.
    pub feed: FeedId,
    /// How far it is.
    pub state: TaskState,
    /// It was answered that nothing more will come: new work needs a new task.
    pub told_end: bool,
    /// Its worker has reported that it emitted everything; a second report changes nothing.
    pub reported: bool,
    /// The last request for splits that got an answer worth remembering.
    pub last_request: u64,
    /// That answer.
    pub last_answer: Vec<u64>,
    /// Its splits.
    pub leases: BTreeMap<u64, Lease>,
    /// Clients that have read it to its end.
    pub read_by: BTreeSet<ClientId>,
    /// What clients reported to have received from it, per split.
    pub received: BTreeMap<u64, RowRanges>,
    /// It is lost because a reader left: its splits are not suspected of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blameless: bool,
    /// Of a lost task: the incarnation of its worker, if one of its splits may be to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_incarnation: Option<u32>,
    /// Clients that have read it to its end and whose users took every row of it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub taken_by: BTreeSet<ClientId>,
    /// Of a lost task: what each present client reported to have received, per split. Its user may not have taken it yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<ClientId, BTreeMap<u64, RowRanges>>,
    /// Rows that it emitted, per split, as its worker reported; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emitted: Option<Vec<(u64, u64)>>,
    /// Rows that it skipped, as its worker reported.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub rows_skipped: u64,
    /// Rows that its worker wrote to Arrow Flight readers, per split; absent until its worker reports, or if it does not
    /// count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_flight: Option<Vec<(u64, u64)>>,
    /// Its worker was lost without a report, after every client had read the task to its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub worker_gone: bool,
    /// Of a job with consumers: what it keeps at its end.
    #[serde(default, rename = "tail", skip_serializing_if = "Option::is_none")]
    pub remainder: Option<Remainder>,
    /// Who gets what of that.
    #[serde(default, rename = "dealt", skip_serializing_if = "Option::is_none")]
    pub remainder_pieces: Option<Vec<RemainderPiece>>,
    /// Elements that each consumer is to get of it beyond rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<u64>,
    /// The part of `first` that came with the last leases; always empty for a worker that asks for it.
    #[serde(default, rename = "last_behind", skip_serializing_if = "Vec::is_empty")]
    pub last_lag: Vec<u64>,
    /// The number of the last request for elements of lagging consumers.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub last_serve: u64,
    /// The answer to that request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_served: Vec<u64>,
    /// Of a lost task, and for clients that have left of any: elements that clients have received.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elements_of: BTreeMap<ClientId, u64>,
    /// Of a lost task: how many rows its splits have, as far as clients reported it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<u64, u64>,
    /// Rows that it emitted of splits that were complete before its end.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub completed_rows: u64,
    /// Those of these rows that are not in `emitted`; absent until its worker reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten_rows: Option<u64>,
    /// Only readers in its worker's own process read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local_only: bool,
    /// What readers of it must know; drawn when it is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// How far a task is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It runs, or waits for its first reader.
    Active,
    /// It has emitted everything; some client may still have to read.
    Ended,
    /// Every client has acknowledged all that it had of it: its splits cannot be lost any more.
    Done,
    /// Its rows will not come: its splits go elsewhere once these clients have reported what they received.
    Lost {
        /// The clients that have not reported yet.
        awaiting: BTreeSet<ClientId>,
    },
}

impl Task {
    pub(super) fn new(
        id: TaskId,
        worker: WorkerId,
        feed: FeedId,
        secret: Option<Secret>,
        local_only: bool,
    ) -> Self {
        Self {
            id,
            worker,
            feed,
            state: TaskState::Active,
            told_end: false,
            reported: false,
            last_request: 0,
            last_answer: Vec::new(),
            leases: BTreeMap::new(),
            read_by: BTreeSet::new(),
            received: BTreeMap::new(),
            blameless: false,
            lost_incarnation: None,
            taken_by: BTreeSet::new(),
            held: BTreeMap::new(),
            emitted: None,
            rows_skipped: 0,
            to_flight: None,
            worker_gone: false,
            remainder: None,
            remainder_pieces: None,
            first: Vec::new(),
            last_lag: Vec::new(),
            last_serve: 0,
            last_served: Vec::new(),
            elements_of: BTreeMap::new(),
            sizes: BTreeMap::new(),
            completed_rows: 0,
            forgotten_rows: None,
            local_only,
            secret,
        }
    }

    /// Whether it can take further splits.
    pub fn is_open(&self) -> bool {
        self.state == TaskState::Active && !self.told_end
    }

    /// Whether its rows will not come.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, TaskState::Lost { .. })
    }

    /// Whether its rows cannot be lost any more.
    pub fn is_done(&self) -> bool {
        self.state == TaskState::Done
    }

    /// Whether all its rows were emitted.
    pub fn is_over(&self) -> bool {
        matches!(self.state, TaskState::Ended | TaskState::Done)
    }

    /// Whether its worker has nothing more to say about it.
    pub fn is_reported(&self) -> bool {
        self.reported || self.worker_gone
    }

    /// Enters rows that clients have of it.
    pub(super) fn receive(&mut self, received: &[(u64, RowRanges)]) {
        for (split, rows) in received {
            if self.leases.contains_key(split) {
                self.received.entry(*split).or_default().extend(rows);
            }
        }
    }

    /// Enters what a present client has received: its user may not have taken it yet.
    pub(super) fn hold(&mut self, client: ClientId, received: &[(u64, RowRanges)]) {
        self.receive(received);
        let held = self.held.entry(client).or_default();
        for (split, rows) in received {
            if self.leases.contains_key(split) {
                held.entry(*split).or_default().extend(rows);
            }
        }
    }

    /// A client gives rows back that it had received of earlier tasks, or of this one. Whether there were any here.
    pub(super) fn give_back(&mut self, split: u64, rows: &RowRanges) -> bool {
        let Some(lease) = self.leases.get_mut(&split) else { return false };
        lease.done.subtract(rows);
        if let Some(received) = self.received.get_mut(&split) {
            received.subtract(rows);
        }
        true
    }

    pub(super) fn finish(&mut self) {
        self.state = TaskState::Done;
        self.leases.clear();
        self.received.clear();
        self.read_by.clear();
        self.taken_by.clear();
        self.held.clear();
        self.elements_of.clear();
        self.sizes.clear();
        self.emitted = None;
        self.to_flight = None;
        self.last_answer.clear();
    }
}
