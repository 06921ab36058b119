//! The state that the parts of a reader share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use caju_proto::v1;
use caju_runtime::{LockRank, OrderedMutex};
use caju_types::{Error, IterationId, Result, TaskId};
use caju_wire::{BufferPool, ByteQueue, Chunk};

use crate::acks::Acks;
use crate::config::{ClientConfig, ReaderEvent};
use crate::credit::{Credit, Shares};
use crate::delivered::EpochFacts;
use crate::delivery::{Delivery, QueuedBytes};
use crate::epoch_columns::EpochColumns;
use crate::gate::Gate;
use crate::receipts::{NewRows, Receipts};
use crate::rounds::Staging;
use crate::state::ReaderState;
use crate::stats::{ReaderStats, Recorder};
use crate::target::Target;
use crate::transfer::Transfer;

/// Is held while the staged rounds and the elements of tasks are read.
const RECEIPTS: LockRank = LockRank::new(140, "the receipts of a reader");
const ELEMENTS: LockRank = LockRank::leaf("the elements of tasks");

/// The state of a reader: connections put chunks in, the user takes them out.
///
/// A reader that opens its epoch again at a dispatcher that lost its state has a further one from then on, with the same
/// queue: what comes behind [`Item::OpenedAgain`] there belongs to it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) transfer: Transfer,
    pub(crate) columns: EpochColumns,
    pub(crate) queue: Arc<ByteQueue<Item>>,
    pub(crate) acks: Acks,
    pub(crate) shares: Arc<Shares>,
    pub(crate) pool: BufferPool,
    pub(crate) receipts: OrderedMutex<Receipts>,
    pub(crate) recorder: Arc<Recorder>,
    /// Where slots take turns: bytes that wait for that.
    pub(crate) held: Option<Arc<QueuedBytes>>,
    pub(crate) facts: EpochFacts,
    /// Shared memory did not work: rows come over sockets.
    pub(crate) no_shared_memory: AtomicBool,
    /// Opens when every other reader knows of this one: until then the user gets no row.
    pub(crate) announced: Gate,
    /// Opens when every other reader knows that the user of this one gets elements: until then it gets none.
    pub(crate) taking: Gate,
    /// Where all consumers of the job get their elements in one order: what has no place in it yet.
    pub(crate) rounds: Option<Staging>,
    /// Elements that came of each task.
    elements: OrderedMutex<HashMap<TaskId, u64>>,
    /// How the epoch was opened again, before the user gets [`Item::OpenedAgain`].
    reopened: OnceLock<Reopened>,
}

/// Where a reader stands in the epoch that was opened again.
#[derive(Debug)]
pub(crate) struct Reopened {
    pub(crate) shared: Arc<Shared>,
    pub(crate) origin: ReaderState,
    pub(crate) iteration: IterationId,
    pub(crate) client: u64,
}

/// An item on its way to the user.
#[derive(Debug)]
pub(crate) enum Item {
    /// Rows.
    Rows(Delivery),
    /// A slot has no further rows.
    SlotEnd(u32),
    /// No more rows are expected: short batches that wait to be filled are delivered short.
    Flush,
    /// The epoch was opened again behind what the user had taken. Rows that came before this and were not handed to the user
    /// come again.
    OpenedAgain(Box<OpenedAgain>),
    /// Where slots take turns: those that have rows. The epoch has begun behind states that were missing when it was opened.
    Slots(Vec<u32>),
}

/// How a reader continues in the epoch that was opened again.
#[derive(Debug)]
pub(crate) struct OpenedAgain {
    pub(crate) shared: Arc<Shared>,
    /// As the user had it by then.
    pub(crate) origin: ReaderState,
    pub(crate) iteration: IterationId,
    pub(crate) client: u64,
    /// Where slots take turns: those that have rows now.
    pub(crate) slots: Option<Vec<u32>>,
}

impl Shared {
    /// The user gets this error behind what it was handed, and waits for nothing any more.
    pub(crate) fn fail(&self, error: Error) {
        self.queue.abort(error);
        self.open_gates();
    }

    pub(crate) fn new(
        config: ClientConfig,
        transfer: Transfer,
        in_turn: bool,
        columns: EpochColumns,
    ) -> Self {
        let bound = config.prefetch_bytes;
        Self {
            config,
            transfer,
            columns,
            queue: Arc::new(ByteQueue::new(bound)),
            acks: Acks::default(),
            shares: Arc::new(Shares::new(bound)),
            pool: BufferPool::new(bound),
            receipts: OrderedMutex::new(RECEIPTS, Receipts::default()),
            recorder: Arc::new(Recorder::new()),
            held: in_turn.then(Arc::default),
            facts: EpochFacts::default(),
            no_shared_memory: AtomicBool::new(!transfer.shares_memory()),
            announced: Gate::default(),
            taking: Gate::default(),
            rounds: None,
            elements: OrderedMutex::new(ELEMENTS, HashMap::new()),
            reopened: OnceLock::new(),
        }
    }

    /// The epoch was opened again.
    pub(crate) fn set_reopened(&self, again: &OpenedAgain) {
        let reopened = Reopened {
            shared: Arc::clone(&again.shared),
            origin: again.origin.clone(),
            iteration: again.iteration,
            client: again.client,
        };
        // A session opens the epoch again once: the next one has a state of its own.
        drop(self.reopened.set(reopened));
    }

    /// Where the reader stands since the epoch was opened again the last time, if it was.
    pub(crate) fn latest_reopened(&self) -> Option<&Reopened> {
        let first = self.reopened.get();
        std::iter::successors(first, |reopened| reopened.shared.reopened.get()).last()
    }

    /// This state for one of several consumers that get their elements in one order.
    pub(crate) fn in_rounds(self) -> Self {
        Self { rounds: Some(Staging::default()), held: Some(Arc::default()), ..self }
    }

    /// What the user got so far.
    pub(crate) fn stats(&self) -> ReaderStats {
        let mut stats = self.recorder.stats();
        // Elements are not counted one by one where nothing is acknowledged.
        if self.config.tracks_rows {
            stats.leave_out(self.acks.remainder());
        }
        stats
    }

    /// Whether a worker may give rows in shared memory.
    pub(crate) fn may_share_memory(&self) -> bool {
        !self.no_shared_memory.load(Ordering::Relaxed)
    }

    /// Rows come over sockets from now on.
    pub(crate) fn give_up_shared_memory(&self, reason: &dyn std::fmt::Display) {
        if !self.no_shared_memory.swap(true, Ordering::Relaxed) {
            tracing::debug!(%reason, "rows come over sockets, and not in shared memory");
        }
    }

    /// The epoch was opened.
    ///
    /// # Errors
    /// `InvalidArgument` if the answer cannot be read.
    pub(crate) fn on_opened(&self, opened: &v1::OpenIterationResponse) -> Result<()> {
        self.facts.record(&opened.listed, &opened.readers, &opened.resumed, opened.states_missing)?;
        self.facts.set_readings(&opened.readings, &opened.bases);
        self.facts.set_missing_states(&opened.missing_states);
        self.facts.set_draws(opened.draws.as_ref());
        self.facts.set_present(&opened.present, &opened.taking, opened.steps);
        if opened.unnotified == 0 {
            self.announced.open();
        }
        Ok(())
    }

    /// Waits until every other reader knows of this one, and that its user gets elements: the states that they take from then
    /// on name it.
    pub(crate) async fn be_announced(&self) {
        if self.announced.is_open() && self.taking.is_open() {
            return;
        }
        let has_others = self.facts.begin_taking();
        self.acks.report_soon();
        let waiting = self.recorder.wait();
        self.announced.pass().await;
        if has_others {
            self.taking.pass().await;
        } else {
            // A reader that comes later is notified before its own user gets an element.
            self.taking.open();
        }
        drop(waiting);
    }

    /// The session is over: no waiter waits for other readers any more.
    pub(crate) fn open_gates(&self) {
        self.announced.open();
        self.taking.open();
    }

    /// The state of the same reader in an epoch that is opened again.
    pub(crate) fn successor(&self, in_turn: bool) -> Self {
        let new = Self::new(self.config.clone(), self.transfer, in_turn, self.columns.clone());
        Self {
            queue: Arc::clone(&self.queue),
            shares: Arc::clone(&self.shares),
            pool: self.pool.clone(),
            recorder: Arc::clone(&self.recorder),
            no_shared_memory: AtomicBool::new(!self.may_share_memory()),
            ..if self.rounds.is_some() { new.in_rounds() } else { new }
        }
    }

    /// Takes a chunk that was received in full. It does not wait, so that a reader of a stopped task never drops rows that
    /// count as received. Credit, or the caller, bounds the bytes.
    pub(crate) fn receive(
        &self,
        task: TaskId,
        slot: u32,
        chunk: Chunk,
        bytes: usize,
        credit: Option<&Arc<Credit>>,
    ) {
        let held = self.held.as_ref().filter(|_| credit.is_none());
        let delivery = Delivery::new(slot, chunk, bytes as u64, credit, held);
        match &self.rounds {
            Some(rounds) => rounds.push(task, delivery),
            None => self.admit(task, delivery),
        }
    }

    /// A chunk is for the user: from now on it counts as received.
    pub(crate) fn admit(&self, task: TaskId, mut delivery: Delivery) {
        let chunk = &delivery.chunk;
        let rows = chunk.rows();
        if !chunk.remainder {
            *self.elements.lock().entry(task).or_default() += chunk.num_elements() as u64;
        }
        let fresh = match self.config.tracks_rows {
            true => self.receipts.lock().receive(task, &chunk.runs),
            false => NewRows::All,
        };
        match fresh {
            NewRows::All => {}
            NewRows::Parts(parts) => {
                let fresh: u64 = parts.iter().map(|p| p.1).sum();
                tracing::warn!(%task, rows = rows as u64 - fresh, "rows came twice and are skipped");
                self.recorder.duplicates(rows as u64 - fresh);
                // The first copy is acknowledged when the user takes it.
                let Some(left) = only(chunk, &parts) else {
                    drop(delivery.take());
                    return;
                };
                delivery.chunk = left;
            }
        }
        // Padding belongs to another consumer, which acknowledges it.
        self.acks.arrived(delivery.chunk.runs.iter().map(|r| r.len).sum());
        // The queue is closed with the reader, which needs no further rows.
        let bytes = usize::try_from(delivery.bytes()).unwrap_or(usize::MAX);
        drop(self.queue.push_now(Item::Rows(delivery), bytes));
    }

    /// Elements that came of a task.
    pub(crate) fn elements_of(&self, task: TaskId) -> u64 {
        self.elements.lock().get(&task).copied().unwrap_or(0)
    }

    /// # Errors
    /// Those of [`Shared::event`].
    pub(crate) fn opened(&self, target: &Target) -> Result<()> {
        tracing::debug!(task = %target.task, address = %target.address, "reading a task");
        self.event(&ReaderEvent::TaskOpened { address: target.address.clone() })
    }

    /// Calls the listener of events.
    ///
    /// # Errors
    /// `Internal` if it panics: the reader ends with this error, and gives back what its user has not taken.
    pub(crate) fn event(&self, event: &ReaderEvent) -> Result<()> {
        match &self.config.on_event {
            Some(on_event) => caju_runtime::catch("the listener of events", || on_event(event)),
            None => Ok(()),
        }
    }
}

/// The given rows of a chunk; elements keep those of their rows that are left.
fn only(chunk: &Chunk, parts: &[(u64, u64)]) -> Option<Chunk> {
    let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    chunk.only_rows(&parts.iter().map(|&(o, n)| (index(o), index(n))).collect::<Vec<_>>())
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers")]
mod tests {
    use arrow_array::{Int64Array, RecordBatch};
    use caju_wire::{Elements, Run};

    use super::*;

    fn chunk(start: u64, lengths: &[u32]) -> Chunk {
        let n = u64::from(lengths.iter().sum::<u32>());
        let ids = Int64Array::from_iter_values((start..start + n).map(u64::cast_signed));
        Chunk {
            pieces: vec![RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap()],
            runs: vec![Run { split: 0, start, len: n }],
            elements: Elements::Lengths(lengths.to_vec()),
            remainder: false,
            round: caju_wire::RoundMark::default(),
        }
    }

    #[test]
    fn rows_that_come_twice_are_skipped() {
        let columns = EpochColumns::none();
        let shared = Shared::new(ClientConfig::default(), Transfer::default(), false, columns);
        shared.receive(TaskId(1), 0, chunk(0, &[2, 2]), 8, None);
        shared.receive(TaskId(2), 0, chunk(2, &[1, 3, 2]), 8, None);
        shared.receive(TaskId(2), 0, chunk(0, &[2, 2]), 8, None);
        assert_eq!(shared.recorder.stats().duplicate_rows, 2 + 4);
        let rows = |item: Item| match item {
            Item::Rows(delivery) => delivery.take(),
            Item::Flush | Item::SlotEnd(_) | Item::OpenedAgain(_) | Item::Slots(_) => {
                panic!("nothing was flushed")
            }
        };
        assert_eq!(rows(shared.queue.try_pop().unwrap()).rows(), 4);
        let second = rows(shared.queue.try_pop().unwrap());
        assert!(shared.acks.draw().runs.is_empty(), "the user has taken none of what came twice");
        assert_eq!((second.runs[0].start, second.elements), (4, Elements::Lengths(vec![2, 2])));
        assert!(shared.queue.is_empty());
        let c = only(&chunk(0, &[1, 3, 2]), &[(2, 3)]).unwrap();
        assert_eq!((c.rows(), c.elements, c.runs[0].start), (3, Elements::Lengths(vec![2, 1]), 2));
        assert!(only(&chunk(0, &[2]), &[]).is_none());
    }
}
