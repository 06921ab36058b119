//! The disk below a dispatcher's journal, and what the journal records about leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use caju_dispatcher::journal::{Journal, MemoryJournal, StoredGroups};
use caju_dispatcher::state::{State, TaskState, Update};
use caju_types::{Error, IterationId, Result, TaskId};
use parking_lot::Mutex;

use crate::log::EventLog;

/// A disk that outlives the dispatchers that write to it. Clones are the same disk.
#[derive(Clone)]
pub(crate) struct Disk {
    inner: Arc<Mutex<Inner>>,
    log: EventLog,
}

struct Inner {
    content: MemoryJournal,
    /// The dispatcher that may write: an earlier one is dead, whatever it still tries.
    writer: u64,
    /// Writes until one fails.
    fails_after: Option<u64>,
    /// Leases until the record of one is lost silently.
    loses_lease: Option<u64>,
    leases: Leases,
}

impl Disk {
    pub(crate) fn new(log: EventLog) -> Self {
        let (content, leases) = (MemoryJournal::default(), Leases::default());
        let inner = Inner { content, writer: 0, fails_after: None, loses_lease: None, leases };
        Self { inner: Arc::new(Mutex::new(inner)), log }
    }

    /// Loses everything.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner.lock();
        (inner.content, inner.leases) = Default::default();
        self.log.event(format_args!("the disk is empty"));
    }

    fn content(&self) -> MemoryJournal {
        self.inner.lock().content.clone()
    }

    /// The journal for a dispatcher that starts now.
    pub(crate) fn journal(&self) -> Box<dyn Journal> {
        let mut inner = self.inner.lock();
        inner.writer += 1;
        Box::new(SimJournal { disk: self.clone(), writer: inner.writer })
    }

    /// Drops everything that a dispatcher writes from now on: its process is dead.
    pub(crate) fn detach(&self) {
        self.inner.lock().writer += 1;
    }

    /// The write after `writes` more fails, and leaves some of its groups.
    pub(crate) fn fail_after(&self, writes: u64) {
        self.inner.lock().fails_after = Some(writes);
    }

    /// The record of the lease after `leases` more is not written, and the write succeeds: no disk should do that.
    pub(crate) fn lose_lease_after(&self, leases: u64) {
        self.inner.lock().loses_lease = Some(leases);
    }
}

/// The journal of one dispatcher.
struct SimJournal {
    disk: Disk,
    writer: u64,
}

impl Journal for SimJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.disk.content().replay()
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        let mut inner = self.disk.inner.lock();
        if inner.writer != self.writer {
            return Err(Error::unavailable("the process that writes is dead"));
        }
        if let Some(left) = &mut inner.fails_after {
            if *left == 0 {
                inner.fails_after = None;
                let (written, _) = groups.split_at(groups.len() / 2);
                inner.content.append(written)?;
                written.iter().for_each(|group| inner.leases.observe(group, &self.disk.log));
                self.disk.log.event(format_args!("the disk fails with {} groups", groups.len()));
                return Err(Error::unavailable("the disk failed"));
            }
            *left -= 1;
        }
        let mut kept = groups.to_vec();
        let is_lease = |group: &Vec<Update>| group.iter().any(|u| matches!(u, Update::Leased { .. }));
        if let (Some(left), Some(at)) = (&mut inner.loses_lease, kept.iter().position(is_lease)) {
            if *left == 0 {
                inner.loses_lease = None;
                kept.remove(at);
                self.disk.log.event(format_args!("the disk loses a record"));
            } else {
                *left -= 1;
            }
        }
        let bytes = inner.content.append(&kept)?;
        self.disk.log.event(format_args!("{} groups are durable, {bytes} bytes", groups.len()));
        groups.iter().for_each(|group| inner.leases.observe(group, &self.disk.log));
        Ok(bytes)
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        self.disk.content().stored()
    }

    fn describe(&self) -> String {
        "on a simulated disk".to_string()
    }
}

/// Checks leases as they become durable: no split is with two running tasks, and none is handed out as new twice.
#[derive(Default)]
struct Leases {
    state: State,
    /// Who got each split for the first time.
    issued: BTreeMap<(IterationId, u64), TaskId>,
}

impl Leases {
    fn observe(&mut self, group: &[Update], log: &EventLog) {
        for update in group {
            self.state.apply(update);
            if let Update::Leased { task, fresh, requeued, .. } = update {
                self.check(*task, fresh.iter().map(|s| s.index), requeued, log);
            }
        }
    }

    fn check(&mut self, task: TaskId, fresh: impl Iterator<Item = u64>, requeued: &[u64], log: &EventLog) {
        let Some(iteration) = self.state.task_index.get(&task) else { return };
        let mut splits = requeued.to_vec();
        for index in fresh {
            splits.push(index);
            if let Some(first) = self.issued.insert((*iteration, index), task) {
                log.violation(format!(
                    "split {index} was handed out as new to task {first} and to task {task}"
                ));
            }
        }
        let Some(iteration) = self.state.iterations.get(iteration) else { return };
        let running = |t: &&caju_dispatcher::state::Task| {
            t.id != task && matches!(t.state, TaskState::Active | TaskState::Ended)
        };
        for index in splits {
            if let Some(other) =
                iteration.tasks.values().filter(running).find(|t| t.leases.contains_key(&index))
            {
                log.violation(format!("split {index} is leased to task {task} and to task {}", other.id));
            }
        }
    }
}
