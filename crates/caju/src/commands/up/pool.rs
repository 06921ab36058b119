//! The worker processes: how many there are, and how many there should be.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_runtime::{Task, Tasks};
use caju_types::Result;
use tokio::sync::{mpsc, oneshot};

use super::process::WorkerProcess;
use super::restarts::{RESTART_WINDOW, RestartLimit};
use super::too_many;
use crate::output;

/// Events that wait for the pool. A worker waits if there are more.
const EVENTS: usize = 64;

/// What happened to a worker.
#[derive(Debug)]
pub(super) enum Event {
    /// It listens.
    Listening { worker: u64, process: u32, address: String },
    /// Its process has ended, in this way.
    Ended { worker: u64, how: String, in_order: bool },
}

/// How many workers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Workers that listen, and stay.
    pub(super) listening: u64,
    /// Workers that should run.
    pub(super) wanted: u64,
    /// Workers that finish their tasks and end.
    pub(super) leaving: u64,
}

/// A worker of the pool.
struct Member {
    /// Asks it to leave; absent once that was done.
    leave: Option<oneshot::Sender<()>>,
    listens: bool,
    _task: Task<()>,
}

/// The worker processes. They are killed when the pool is dropped.
pub(super) struct WorkerPool {
    command: Arc<[OsString]>,
    drain_timeout: Duration,
    restarts: RestartLimit,
    wanted: u64,
    /// By their numbers, which begin at 1 and are not used again.
    members: BTreeMap<u64, Member>,
    last: u64,
    tasks: Tasks,
    to_pool: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
}

impl WorkerPool {
    /// A pool without workers. Each will be started by this command line, and drain within this bound.
    pub(super) fn new(command: Vec<OsString>, drain_timeout: Duration, restarts: RestartLimit) -> Self {
        let (to_pool, events) = mpsc::channel(EVENTS);
        Self {
            command: command.into(),
            drain_timeout,
            restarts,
            wanted: 0,
            members: BTreeMap::new(),
            last: 0,
            tasks: Tasks::new(),
            to_pool,
            events,
        }
    }

    /// Starts workers, or lets the newest ones leave, until this many stay.
    pub(super) fn want(&mut self, wanted: u64) {
        self.wanted = wanted;
        let staying = self.members.values().filter(|m| m.leave.is_some()).count() as u64;
        for _ in staying..wanted {
            self.start();
        }
        let too_many = usize::try_from(staying.saturating_sub(wanted)).unwrap_or(usize::MAX);
        let newest = self.members.values_mut().rev().filter_map(|m| m.leave.take()).take(too_many);
        // One that ends at this moment needs no request.
        newest.for_each(|leave| {
            let _unless_it_ended = leave.send(());
        });
    }

    /// How many workers there are.
    pub(super) fn counts(&self) -> Counts {
        let staying = |m: &&Member| m.leave.is_some();
        Counts {
            listening: self.members.values().filter(staying).filter(|m| m.listens).count() as u64,
            wanted: self.wanted,
            leaving: self.members.values().filter(|m| !staying(m)).count() as u64,
        }
    }

    /// Waits for the next event.
    pub(super) async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // The pool itself holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Records an event. The next [`WorkerPool::want`] replaces a worker that ended.
    ///
    /// # Errors
    /// Workers that have ended by themselves too often.
    pub(super) fn apply(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Listening { worker, process, address } => {
                if let Some(member) = self.members.get_mut(&worker) {
                    member.listens = true;
                }
                output::note(format_args!("up: worker {worker} listens on {address}, process {process}"));
                Ok(())
            }
            Event::Ended { worker, how, in_order } => {
                let member = self.members.remove(&worker);
                if member.is_none_or(|m| m.leave.is_none()) {
                    if in_order {
                        output::note(format_args!("up: worker {worker} has left"));
                    } else {
                        output::note(format_args!("up: worker {worker} did not leave in order: {how}"));
                    }
                    return Ok(());
                }
                let ended = format!("worker {worker} ended by itself: {how}");
                if !self.restarts.admits(Instant::now()) {
                    return Err(too_many(&ended, self.restarts.most(), RESTART_WINDOW));
                }
                output::note(format_args!("up: {ended}; another one is started"));
                Ok(())
            }
        }
    }

    /// Lets all workers leave, and waits for their end. False if one of them did not end in order.
    pub(super) async fn end(&mut self) -> bool {
        self.want(0);
        let mut all_in_order = true;
        while !self.members.is_empty() {
            if let Event::Ended { worker, in_order, .. } = self.event().await {
                self.members.remove(&worker);
                all_in_order &= in_order;
            }
        }
        all_in_order
    }

    fn start(&mut self) {
        self.last += 1;
        let (leave, asked_to_leave) = oneshot::channel();
        let (command, events) = (Arc::clone(&self.command), self.to_pool.clone());
        let run = run(self.last, command, asked_to_leave, self.drain_timeout, events);
        let task = self.tasks.spawn(format!("worker process {}", self.last), run);
        self.members.insert(self.last, Member { leave: Some(leave), listens: false, _task: task });
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// Runs a worker process from its start to its end.
async fn run(
    worker: u64,
    command: Arc<[OsString]>,
    leave: oneshot::Receiver<()>,
    drain_timeout: Duration,
    events: mpsc::Sender<Event>,
) {
    let ended = async {
        let mut process = WorkerProcess::start(&command)?;
        let id = process.id();
        if let Some(address) = process.listening().await {
            // The pool lives as long as this task.
            drop(events.send(Event::Listening { worker, process: id, address }).await);
        }
        process.ended(leave, drain_timeout).await
    };
    let event = match ended.await {
        Ok(status) => Event::Ended { worker, how: status.to_string(), in_order: status.success() },
        Err(e) => Event::Ended { worker, how: e.message().to_owned(), in_order: false },
    };
    drop(events.send(event).await);
}
