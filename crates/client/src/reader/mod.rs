//! The reader: the user's handle on one epoch.

mod position;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_pipeline::DatasetDef;
use caju_proto::v1;
use caju_runtime::{Task, Tasks, caught};
use caju_types::{Error, IterationId, Result};
use caju_wire::{Chunk, DispatcherLink, ElementCursor, Run, schema_from_ipc};

use crate::assembly::{Arrival, Assembly, Ready};
use crate::config::ClientConfig;
use crate::delivered::Delivered;
use crate::epoch_columns::EpochColumns;
use crate::exact::{check_exact, why_not_exact};
use crate::reattach::Reopening;
use crate::session::{LEAVE_TIMEOUT, Session};
use crate::shared::{Item, OpenedAgain, Shared};
use crate::slot_rotation::SlotRotation;
use crate::stall::Stall;
use crate::state::ReaderState;
use crate::stats::{Incomplete, Progress, ReaderStats};
use crate::transfer::Transfer;

/// One element: a row, or a batch of rows after `batch`.
#[derive(Debug, Clone)]
pub struct Element {
    /// The rows.
    pub batch: RecordBatch,
    /// It repeats an element that another consumer of the job got, so that all have equally many.
    pub is_padding: bool,
}

/// Reads one epoch of a job. The tasks of all workers are read concurrently, up to a bound in bytes. Every row arrives exactly
/// once, whatever workers die.
///
/// ```no_run
/// # async fn example(def: caju_pipeline::DatasetDef) -> caju_types::Result<()> {
/// use caju_client::{Client, ClientConfig, ReadRequest};
/// let client = Client::connect("127.0.0.1:7070", ClientConfig::default()).await?;
/// let mut reader = client.read(ReadRequest::of(def)).await?;
/// while let Some(element) = reader.next().await? {
///     println!("{} rows", element.batch.num_rows());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    schema: SchemaRef,
    job: String,
    iteration: IterationId,
    fingerprint: String,
    seed: u64,
    assembly: Assembly,
    /// Which consumer of the job this reader is.
    consumer: Option<u32>,
    over: bool,
    /// The user's wait for other consumers.
    stall: Stall,
    current: Option<ElementCursor>,
    current_is_padding: bool,
    /// Rows of the current chunk that were handed to the user.
    handed_rows: u64,
    /// Where the rows of the current chunk came from, and whether the user got it as a whole.
    in_hand: (Vec<Run>, bool),
    /// Rows that the user got before the current chunk.
    delivered: Delivered,
    /// Elements and rows that the last call gave to the user; none if it gave nothing.
    last_handed: Option<(u64, u64)>,
    /// The user gave back what it had in hand: it gets nothing more.
    gave_back: bool,
    /// With a rotation of slots: the slot whose element comes behind the current chunk.
    turn: u32,
    /// `turn` before the current chunk.
    turn_before: u32,
    /// Elements and rows that the user got of this reader.
    elements: u64,
    rows: u64,
    /// The position at which this reader was opened.
    origin: ReaderState,
    is_resumed: bool,
    /// Other readers had read the epoch to its end when this one was opened.
    came_late: bool,
    /// Why the epoch cannot be continued exactly.
    not_exact: Option<String>,
    client: u64,
    stop: Tasks,
    session: Option<Task<()>>,
}

impl Reader {
    pub(crate) fn start(
        link: DispatcherLink,
        (config, transfer): (ClientConfig, Transfer),
        request: v1::OpenIterationRequest,
        opened: v1::OpenIterationResponse,
        states: &[ReaderState],
    ) -> Result<Self> {
        let schema = schema_from_ipc(&opened.schema_ipc)?
            .ok_or_else(|| Error::internal("the dispatcher sent no schema of the rows"))?;
        let def = DatasetDef::from_json_str(&opened.definition_json)?;
        let not_exact = why_not_exact(&def);
        let columns = EpochColumns { job: opened.job.clone(), schema: Arc::clone(&schema) };
        let shared = Shared::new(config, transfer, opened.in_turn, columns);
        let is_in_rounds = !matches!(request.balance.as_str(), "" | "none");
        let shared = Arc::new(if is_in_rounds { shared.in_rounds() } else { shared });
        shared.on_opened(&opened)?;
        let is_resumed = !states.is_empty();
        if is_resumed && opened.resumed.is_empty() && opened.states_missing == 0 {
            return Err(Error::unimplemented(format!(
                "the dispatcher at {} does not know states of readers: it is older than this caju; give it the same version",
                link.address()
            )));
        }
        let came_late = opened.finished && !opened.readers.is_empty() && !is_resumed;
        let origin = match is_resumed {
            true => ReaderState {
                shard_by: opened.shard_by.clone(),
                draws: opened.draws.as_ref().map(Into::into),
                ..ReaderState::union(states)?
            },
            false => ReaderState::at_beginning(&opened, request.epoch),
        };
        let rotation = opened.in_turn.then(|| SlotRotation::new(&opened.slots, origin.turn));
        let client = opened.client_id;
        let stop = Tasks::new();
        let reopening = Reopening::new(request, &opened, origin.clone(), is_resumed);
        let session = Session::new(link, Arc::clone(&shared), &opened, reopening);
        let consumer = opened.consumer.checked_sub(1);
        let (job, fingerprint) = (opened.job.clone(), opened.fingerprint.clone());
        let (iteration, seed) = (IterationId(opened.iteration_id), opened.seed);
        let run = session.run(opened, stop.clone());
        let failing = Arc::clone(&shared);
        let session = Some(stop.spawn_graceful("the reader's session", async move {
            // A user that waits for rows must not wait for ever.
            if let Err(e) = Box::pin(caught("the reader's session", run)).await {
                failing.fail(e);
            }
        }));
        let reader = Self {
            shared,
            schema,
            job,
            iteration,
            fingerprint,
            seed,
            assembly: Assembly::new(&def, rotation),
            consumer,
            over: false,
            stall: Stall::default(),
            current: None,
            current_is_padding: false,
            handed_rows: 0,
            in_hand: (Vec::new(), false),
            delivered: Delivered::default(),
            last_handed: None,
            gave_back: false,
            turn: origin.turn,
            turn_before: origin.turn,
            elements: 0,
            rows: 0,
            origin,
            is_resumed,
            came_late,
            not_exact,
            client,
            stop,
            session,
        };
        // Of a registered dataset it is known only now. Dropping the reader leaves the epoch.
        check_exact(&def, states).map(|()| reader)
    }

    /// The columns of the rows.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The job's name; generated if none was given.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The iteration that is read.
    pub fn iteration(&self) -> IterationId {
        self.iteration
    }

    /// The number that the dispatcher gave to this reader, as its log and its states name it.
    pub fn client_number(&self) -> u64 {
        self.client
    }

    /// The dataset's fingerprint, in hexadecimal digits.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The job's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next element; `None` at the end of the epoch. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// The iteration's failure (bad input names file, row and stage); `Unavailable` if workers or the
    /// dispatcher are unavailable for too long.
    pub async fn next(&mut self) -> Result<Option<Element>> {
        loop {
            if let Some(batch) = self.next_of_current(ElementCursor::next)? {
                return Ok(Some(Element { batch, is_padding: self.current_is_padding }));
            }
            if !self.open_chunk().await? {
                return Ok(None);
            }
        }
    }

    /// The next element as the parts in which its rows came, at least one; `None` at the end of the epoch. For users that copy the
    /// rows to a place of their own: [`Reader::next`] copies them into one batch. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub async fn next_parts(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        loop {
            if let Some(parts) = self.next_of_current(|current| Ok(current.next_parts()))? {
                return Ok(Some(parts));
            }
            if !self.open_chunk().await? {
                return Ok(None);
            }
        }
    }

    /// The next element if it is available without waiting; `None` does not mean the end of the epoch. It spares readers of
    /// many small elements a future per element.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn try_next(&mut self) -> Result<Option<Element>> {
        let is_padding = self.current_is_padding;
        Ok(self.next_of_current(ElementCursor::next)?.map(|batch| Element { batch, is_padding }))
    }

    /// The parts of the next element if it is available without waiting, as [`Reader::try_next`].
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub fn try_next_parts(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        self.next_of_current(|current| Ok(current.next_parts()))
    }

    /// Takes the next chunk, to be handed out by element; `false` at the end of the epoch.
    async fn open_chunk(&mut self) -> Result<bool> {
        let Some(chunk) = self.hand_chunk(false).await? else { return Ok(false) };
        self.current_is_padding = chunk.is_padding();
        self.current = Some(ElementCursor::new(chunk));
        Ok(true)
    }

    /// The next element of the current chunk, as `take` takes it. The elements before it count as taken.
    fn next_of_current<T>(
        &mut self,
        take: impl Fn(&mut ElementCursor) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        self.last_handed = None;
        let Some(current) = &mut self.current else { return Ok(None) };
        let next = current.next_rows().unwrap_or(0) as u64;
        if self.shared.config.tracks_rows && !self.shared.acks.hand_next(self.handed_rows, next) {
            // The session has ended; why is at the end of the queue.
            self.current = None;
            return Ok(None);
        }
        let taken = take(current);
        if taken.is_err() {
            self.last_handed = Some((0, 0));
            self.give_back();
        }
        let element = taken?;
        match &element {
            Some(_) => {
                self.handed_rows += next;
                self.elements += 1;
                self.rows += next;
                self.last_handed = Some((1, next));
            }
            None => self.current = None,
        }
        Ok(element)
    }

    /// The next chunk of elements, for users that want rows in bulk; `None` at the end of the epoch. Cancelling the wait
    /// loses nothing.
    ///
    /// # Errors
    /// As [`Reader::next`]. `FailedPrecondition` while [`Reader::next`] has handed out a part of a chunk: its other elements come
    /// with [`Reader::try_next`], until that gives none.
    pub async fn next_chunk(&mut self) -> Result<Option<Chunk>> {
        if self.current.as_ref().is_some_and(|current| current.next_rows().is_some()) {
            return Err(Error::failed_precondition(
                "elements of a chunk were handed out one by one, and some are left: take them with `try_next` until it gives \
                 none, and then the next chunk",
            ));
        }
        self.hand_chunk(true).await
    }

    /// The next chunk, for the user as a whole or element by element.
    async fn hand_chunk(&mut self, whole: bool) -> Result<Option<Chunk>> {
        self.last_handed = None;
        if self.gave_back {
            return Err(Error::cancelled(
                "the user gave back what it had in hand, and the reader gives nothing more",
            ));
        }
        if !self.shared.acks.has_asked() {
            self.shared.acks.user_waits();
        }
        let is_open = self.shared.acks.taken_handed();
        let (runs, as_whole) = std::mem::take(&mut self.in_hand);
        if self.shared.config.tracks_rows {
            self.shared.facts.pass_to(&mut self.delivered);
            self.delivered.add_first(&runs, if is_open || as_whole { u64::MAX } else { self.handed_rows });
        }
        loop {
            if !self.assembly.is_empty() {
                self.shared.be_announced().await;
            }
            if let Some(ready) = self.assembly.pop() {
                match self.hand(ready, whole) {
                    Some(chunk) => return Ok(Some(chunk)),
                    None => continue,
                }
            }
            if self.over {
                return Ok(None);
            }
            let item = self.arrived().await?;
            match self.assembly.accept(item, &self.shared.acks, &mut self.delivered)? {
                Arrival::Rows => {}
                Arrival::OpenedAgain(again) => self.go_on(*again),
                Arrival::End => {
                    self.over = true;
                    self.shared.recorder.ended();
                    self.warn_if_late();
                }
            }
        }
    }

    /// Hands a chunk to the user; `None` if the session has ended and gave its rows to others. Why is at the end of the queue.
    fn hand(&mut self, ready: Ready, whole: bool) -> Option<Chunk> {
        let Ready { chunk, reordered, turn } = ready;
        if !self.shared.acks.hand(&chunk, reordered, whole) {
            return None;
        }
        self.turn_before = self.turn;
        self.turn = turn.unwrap_or(self.turn);
        self.handed_rows = 0;
        self.in_hand = (chunk.runs.clone(), whole);
        let (rows, elements) = (chunk.rows() as u64, chunk.num_elements() as u64);
        if whole {
            self.elements += elements;
            self.rows += rows;
            self.last_handed = Some((elements, rows));
        }
        self.shared.recorder.delivered(rows, elements, chunk.bytes() as u64);
        if chunk.is_padding() {
            self.shared.recorder.padded(rows, elements);
        }
        Some(chunk)
    }

    /// The next item of the queue; `None` is its end.
    async fn arrived(&mut self) -> Result<Option<Item>> {
        if let Some(item) = self.shared.queue.try_pop() {
            self.stall.end();
            return Ok(Some(item));
        }
        self.shared.acks.user_waits();
        let shared = Arc::clone(&self.shared);
        let waiting = shared.recorder.wait();
        let popped = self.pop().await;
        drop(waiting);
        popped
    }

    /// The epoch was opened again behind what the user has. What was not handed to the user comes again.
    fn go_on(&mut self, again: OpenedAgain) {
        let OpenedAgain { shared, origin, iteration, client, slots } = again;
        if self.shared.config.tracks_rows {
            self.shared.recorder.returned(self.shared.acks.remainder());
        }
        // The user's own count includes padding.
        let (elements, rows) = (self.origin.elements + self.elements, self.origin.rows + self.rows);
        self.origin = ReaderState { elements, rows, turn: self.turn, ..origin };
        (self.shared, self.iteration, self.client) = (shared, iteration, client);
        (self.elements, self.rows, self.is_resumed) = (0, 0, true);
        self.delivered = Delivered::default();
        (self.current, self.handed_rows) = (None, 0);
        self.assembly = self.assembly.again(slots.map(|slots| SlotRotation::new(&slots, self.turn)));
    }

    /// The next item. A consumer of a job waits for its peers as long as the slowest one takes elements now and then, and beyond
    /// that no longer than the stall timeout.
    async fn pop(&mut self) -> Result<Option<Item>> {
        let bound = self.shared.config.stall_timeout;
        let Some(consumer) = self.consumer else { return self.shared.queue.pop().await };
        loop {
            let waited = self.stall.waited().min(self.shared.recorder.slowest_for());
            // The dispatcher waits for a lost consumer, and reports when the wait ends.
            let is_reopening = self.shared.facts.states_missing() > 0;
            if waited >= bound && !is_reopening {
                return Err(Error::deadline(format!(
                    "consumer {consumer} of job `{}` has waited for {bound:.0?} for an element; all consumers get equally many, \
                     and the slowest one is {}",
                    self.job,
                    self.shared.recorder.slowest()
                )));
            }
            let left = if is_reopening { bound } else { bound.saturating_sub(waited) };
            let slice = self.stall.slice();
            let popped = tokio::time::timeout(left, self.shared.queue.pop()).await;
            drop(slice);
            if let Ok(popped) = popped {
                self.stall.end();
                return popped;
            }
            if is_reopening {
                self.stall.end();
            }
        }
    }

    /// Rows of this epoch that no reader of the job has, or that readers took before they vanished; `None` if there are none
    /// so far. It is final when the epoch is over.
    pub fn incomplete(&self) -> Option<Incomplete> {
        self.shared.recorder.is_incomplete()
    }

    /// What was delivered so far.
    pub fn stats(&self) -> ReaderStats {
        self.shared.stats()
    }

    /// A view of the progress that outlives borrows of the reader, for a progress bar.
    pub fn monitor(&self) -> Monitor {
        Monitor { shared: Arc::clone(&self.shared) }
    }

    /// Leaves the iteration. Rows that the user did not take go to other readers of the job, if there are any. This waits for
    /// the dispatcher for up to 5 s; after that the reader keeps trying in the background. Dropping a reader does the same
    /// without waiting.
    pub async fn close(mut self) {
        self.stop.stop();
        if let Some(session) = self.session.take() {
            drop(tokio::time::timeout(LEAVE_TIMEOUT, session).await);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.session.is_some() {
            // It is not known whether the user's code had processed the rows in hand, so they go to other readers.
            if std::thread::panicking() {
                self.shared.acks.give_back();
            }
            self.stop.stop();
        }
    }
}

/// A view of a reader's progress. Clones watch the same reader.
#[derive(Debug, Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

impl Monitor {
    /// What was delivered, how much is left, and the bottleneck of the pipeline.
    pub fn progress(&self) -> Progress {
        self.shared.recorder.progress(self.shared.stats(), self.shared.queue.bytes())
    }
}
