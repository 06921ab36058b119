//! Every write of the journal fails in turn: nothing is answered that was not stored, and what was answered is there afterwards.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, Result};
use serde_json::json;

use super::fake::{World, indices, lost, open_request, run, split_rows};
use crate::journal::{Journal, MemoryJournal, StoredGroups};
use crate::state::Update;

/// What a write that fails leaves behind.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// Nothing: the disk was full, say.
    Nothing,
    /// The first half of the groups: a short write.
    Half,
    /// Everything: the error came after the data.
    All,
}

/// Fails at one write, and at every later one.
struct FailsAt {
    stored: MemoryJournal,
    writes: u32,
    left: Left,
}

impl Journal for FailsAt {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.stored.replay()
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        if let Some(writes) = self.writes.checked_sub(1) {
            self.writes = writes;
            return self.stored.append(groups);
        }
        let stored = match self.left {
            Left::Nothing => 0,
            Left::Half => groups.len() / 2,
            Left::All => groups.len(),
        };
        self.stored.append(&groups[..stored])?;
        self.left = Left::Nothing;
        Err(Error::unavailable("/state: input/output error"))
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        self.stored.stored()
    }

    fn describe(&self) -> String {
        "failing".into()
    }
}

/// What callers were answered.
#[derive(Debug, Default)]
struct Answered {
    worker: Option<u64>,
    opened: Option<v1::OpenIterationResponse>,
    /// Splits by the number of the request.
    leased: Vec<(u64, Vec<u64>)>,
    took: bool,
    lost: bool,
    again: Option<u64>,
}

/// An epoch in which a task is lost, until a call fails.
async fn epoch(w: &World, answered: &mut Answered) -> Result<()> {
    let request = v1::RegisterWorkerRequest { address: "a:1".into(), cores: 1, ..Default::default() };
    let registered = w.core.workers.register_worker(request).await?;
    let (worker, secret) = (registered.worker_id, registered.secret);
    answered.worker = Some(worker);
    let opened = w.core.epochs.open_iteration(open_request(&json!({"splits": 6}), "j")).await?;
    answered.opened = Some(opened.clone());
    let next = async |task_id: u64, request_no: u64| {
        let (worker_id, secret) = (worker, secret.clone());
        let request = v1::NextSplitsRequest {
            task_id,
            worker_id,
            want: 2,
            wait_ms: 60_000,
            request_no,
            secret,
            ..Default::default()
        };
        w.core.splits.next_splits(request).await
    };
    let task = opened.tasks[0].task_id;
    for no in 1..=2 {
        answered.leased.push((no, indices(&next(task, no).await?)));
    }
    let beat = |lost_tasks: Vec<v1::LostTask>, acknowledged: Vec<v1::SplitRows>| v1::ClientHeartbeatRequest {
        client_id: opened.client_id,
        iteration_id: opened.iteration_id,
        secret: opened.client_secret.clone(),
        lost_tasks,
        acknowledged,
        ..Default::default()
    };
    w.core.clients.client_heartbeat(beat(vec![], vec![split_rows(&(0, 0, 3))])).await?;
    answered.took = true;
    let view = w.core.clients.client_heartbeat(beat(vec![lost(task, &[(0, 0, 5)])], vec![])).await?;
    answered.lost = true;
    let again = view.tasks[0].task_id;
    answered.again = Some(again);
    next(again, 1).await?;
    Ok(())
}

/// What the next process knows of what was answered.
async fn check(w: &World, answered: &Answered, place: &str) {
    let state = w.core.snapshot();
    assert!(answered.worker.is_none() || !state.workers.is_empty(), "{place}: a registration");
    let Some(opened) = &answered.opened else { return };
    let iteration = state.iterations.values().next().unwrap_or_else(|| panic!("{place}: no iteration"));
    assert_eq!(iteration.id.0, opened.iteration_id, "{place}");
    let member = iteration.members.values().next().unwrap();
    assert!(member.secret.is_some_and(|s| s.is(&opened.client_secret)), "{place}: the client's secret");
    assert!(member.took || !answered.took, "{place}: rows that its user took");
    // Every split that was leased is with the task or waits to be leased again, once.
    for split in answered.leased.iter().flat_map(|(_, splits)| splits) {
        let with_tasks = iteration.tasks.values().filter(|t| t.leases.contains_key(split)).count();
        let waiting = iteration.feeds.values().filter(|f| f.pending.contains_key(split)).count();
        assert_eq!(with_tasks + waiting, 1, "{place}: split {split}");
    }
    if answered.lost {
        let lease = iteration.lease_of(0).unwrap();
        assert_eq!(lease.done.iter().collect::<Vec<_>>(), [(0, 5)], "{place}: rows of the lost task");
    } else if let (Some((no, splits)), Some(worker)) = (answered.leased.last(), answered.worker) {
        // The worker asks again, for it had no answer to its last request.
        let task = opened.tasks[0].task_id;
        if iteration
            .tasks
            .get(&caju_types::TaskId(task))
            .is_some_and(|t| t.last_request == *no && !t.is_lost())
        {
            assert_eq!(
                &indices(&w.next(task, worker, *no, 2).await.unwrap()),
                splits,
                "{place}: the same answer"
            );
        }
    }
}

#[test]
fn every_write_that_fails_ends_the_journal_and_loses_nothing_that_was_answered() {
    run(async {
        for left in [Left::Nothing, Left::Half, Left::All] {
            let mut failures = 0;
            for writes in 0.. {
                let place = format!("{left:?} of write {writes}");
                let mut w = World::over(|stored| Box::new(FailsAt { stored, writes, left }));
                let mut answered = Answered::default();
                let ended = epoch(&w, &mut answered).await;
                let Err(e) = ended else { break };
                assert!(e.message().contains("input/output error"), "{place}: {e}");
                let later = w.core.epochs.open_iteration(open_request(&json!({"splits": 1}), "later")).await;
                assert!(later.is_err(), "{place}: nothing is served any more");
                assert!(w.core.journal_failed().await.message().contains("start it again"), "{place}");
                failures += 1;
                w.after_its_end();
                check(&w, &answered, &place).await;
            }
            assert!(failures >= 6, "{left:?}: only {failures} writes could fail");
        }
    });
}

/// Whether writes wait.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.changed.notify_all();
    }
}

/// Stores nothing while its gate is closed.
struct Gated {
    stored: MemoryJournal,
    gate: Arc<Gate>,
}

impl Journal for Gated {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.stored.replay()
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        let closed = self.gate.is_closed.lock().unwrap();
        // A test that fails leaves it closed.
        let bound = Duration::from_secs(20);
        drop(self.gate.changed.wait_timeout_while(closed, bound, |closed| *closed).unwrap());
        self.stored.append(groups)
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        self.stored.stored()
    }

    fn describe(&self) -> String {
        "gated".into()
    }
}

/// The first call may have given up, or its connection may be broken.
#[test]
fn a_repeated_acknowledgement_is_answered_when_the_first_one_is_stored() {
    run(async {
        let gate = Arc::new(Gate::default());
        let w = World::over(|stored| Box::new(Gated { stored, gate: Arc::clone(&gate) }));
        let worker = w.worker("a:1").await;
        let opened = w.open(&json!({"splits": 2}), "j").await;
        w.next(opened.tasks[0].task_id, worker, 1, 1).await.unwrap();
        let beat = async |rows| {
            let request = v1::ClientHeartbeatRequest {
                client_id: opened.client_id,
                iteration_id: opened.iteration_id,
                secret: opened.client_secret.clone(),
                acknowledged: vec![split_rows(&rows)],
                ..Default::default()
            };
            w.core.clients.client_heartbeat(request).await
        };
        let waits = async |rows| {
            tokio::select! {
                biased;
                _ = beat(rows) => false,
                () = async { for _ in 0..100 { tokio::task::yield_now().await } } => true,
            }
        };
        beat((0, 0, 1)).await.unwrap();
        gate.set_closed(true);
        assert!(waits((0, 1, 3)).await);
        assert!(waits((0, 1, 3)).await, "rows were answered that are not in the journal");
        gate.set_closed(false);
        beat((0, 1, 3)).await.unwrap();
    });
}
