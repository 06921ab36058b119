//! The state that the stages of one task share: random keys, the task's splits, counters and the policy for bad rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::UInt64Array;
use caju_pipeline::OnError;
use caju_runtime::interrupt::Interrupt;
use caju_runtime::{Clock, CpuPool, LockRank, OrderedMutex, OrderedRwLock, budget};
use caju_sources::{Split, Stride};
use caju_types::{Error, Result, RowRanges, mix64};
use caju_wire::{Chunk, Elements, QueueBound, QueueMemory, Run};

use crate::lease::LeasedSplit;
use crate::row_checks::RowChecks;
use crate::shard_numbers::{ShardPlaces, describe_row, first_and_step};
use crate::split_sizes::SplitSizes;
use crate::stats::TaskStats;

/// The most skipped rows that a task reports one by one; the others are only counted.
const REPORTED_SKIPS: usize = 100;
/// The most characters of a report about a skipped row: enough for a URL, a row and a reason.
const REPORTED_CHARS: usize = 500;

/// A split, as stages see it.
#[derive(Debug, Clone)]
struct SplitInfo {
    key: u64,
    /// The split's own key, without seed, epoch and repetition.
    split: u64,
    /// The lease that it belongs to: its own, except for splits of nested datasets.
    home: u64,
    /// The random draws of a stored part, for the stages above its hint.
    frozen: Option<Frozen>,
    place: Arc<str>,
    repetition: u32,
    /// The dataset of a combinator that the split belongs to.
    child: usize,
    /// Of a lease's split: the splits of nested datasets that belong to it, as often as they were registered.
    nested: Vec<u64>,
    /// Of a split of a nested dataset: how often it was registered. Leases of a `zip` share them.
    registered: u64,
    /// Rows of the split-local output that readers have already.
    done: RowRanges,
    /// The rows of it that a shard has; none: all.
    stride: Option<Stride>,
    /// With a stride: the first ordinal of these rows, and the distance of their ordinals.
    planned_rows: Option<(u64, u64)>,
    /// Rows of the split-local output that passed so far; absent if they come from a part behind a cross-split stage.
    passed: Option<u64>,
}

/// Draws of another epoch.
#[derive(Debug, Clone, Copy)]
struct Frozen {
    draw: u64,
    /// Stages at this position and below draw as ever.
    below: u32,
}

/// Shared by all stages of one task.
pub(crate) struct TaskContext {
    seed: u64,
    epoch: u64,
    /// Under `off`: the worker's slot, which enters the draws of stream stages.
    slot: Option<u32>,
    /// In a static processing mode: the number of shards, and the task's own.
    pub(crate) shard: Option<(u64, u64)>,
    /// The numbers by which stages behind the first cross-split stage draw; none: by the ordinals of rows.
    places: Option<ShardPlaces>,
    on_error: OnError,
    skipped: AtomicU64,
    last_skip: OrderedMutex<Option<Error>>,
    /// Why the first [`REPORTED_SKIPS`] rows were skipped: file, row and reason.
    first_skips: OrderedMutex<Vec<String>>,
    /// Skipped rows, by lease and by the index of the stage's counters.
    skips: OrderedMutex<HashMap<(u64, usize), u64>>,
    splits: OrderedRwLock<HashMap<u64, SplitInfo>>,
    /// The numbers of rows of splits that have all passed the split-local stages, or that a set has.
    pub(crate) sizes: SplitSizes,
    /// Some row has passed the split-local stages.
    has_rows: AtomicBool,
    /// Splits without rows that ended before that, with their repetitions of the source.
    empty: OrderedMutex<Vec<(u64, u32)>>,
    /// The memory in bytes that a stage may use for one chunk.
    pub(crate) chunk_bytes: u64,
    /// The bytes that all stages hold.
    held_bytes: AtomicU64,
    /// The first bound of each queue of the task, and the memory that they share.
    buffer: (usize, Arc<QueueMemory>),
    pub(crate) pool: CpuPool,
    /// Ends the work on CPU threads when the task is over.
    pub(crate) interrupt: Interrupt,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: Arc<TaskStats>,
    /// The rows that are compared when a split is run again.
    pub(crate) checks: Arc<RowChecks>,
    /// The lock of the artificial stages (`sleep`, `burn`), which run one at a time per worker.
    pub(crate) one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    /// How many times as long as their definition says these stages take.
    pub(crate) slowdown: u32,
}

impl TaskContext {
    #[expect(clippy::too_many_arguments, reason = "one call, in task.rs")]
    pub(crate) fn new(
        seed: u64,
        epoch: u64,
        slot: Option<u32>,
        on_error: OnError,
        pool: CpuPool,
        clock: Arc<dyn Clock>,
        stats: Arc<TaskStats>,
        one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    ) -> Self {
        Self {
            seed,
            epoch,
            slot,
            shard: None,
            places: None,
            on_error,
            skipped: AtomicU64::new(0),
            last_skip: OrderedMutex::new(LockRank::leaf("the last skipped row"), None),
            first_skips: OrderedMutex::new(LockRank::leaf("the first skipped rows"), Vec::new()),
            skips: OrderedMutex::new(LockRank::leaf("the counts of skipped rows"), HashMap::new()),
            splits: OrderedRwLock::new(LockRank::leaf("the splits of a task"), HashMap::new()),
            sizes: SplitSizes::default(),
            has_rows: AtomicBool::new(false),
            empty: OrderedMutex::new(LockRank::leaf("the splits without rows"), Vec::new()),
            chunk_bytes: budget::DEFAULT_BYTES,
            held_bytes: AtomicU64::new(0),
            buffer: (64 << 20, QueueMemory::unlimited()),
            pool,
            interrupt: Interrupt::default(),
            clock,
            stats,
            checks: Arc::default(),
            one_at_a_time,
            slowdown: 1,
        }
    }

    /// A stage holds `now` bytes, and held `before`. The bytes that all stages of the task hold.
    pub(crate) fn stages_hold(&self, before: u64, now: u64) -> u64 {
        let known = self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        known.wrapping_add(now.wrapping_sub(before))
    }

    /// Sets how many times as long the artificial stages take.
    pub(crate) fn slowed(self, slowdown: u32) -> Self {
        Self { slowdown, ..self }
    }

    /// Sets the memory limits: of a stage while it works on one chunk, and of the queues.
    pub(crate) fn within(self, chunk_bytes: u64, buffer: (usize, Arc<QueueMemory>)) -> Self {
        Self { chunk_bytes, buffer, ..self }
    }

    /// The bound of one more queue of the task.
    pub(crate) fn queue_bound(&self) -> Arc<QueueBound> {
        let (bytes, memory) = &self.buffer;
        memory.bound(*bytes)
    }

    /// Sets the number of shards, and the task's own.
    pub(crate) fn with_shard(self, shard: Option<(u64, u64)>) -> Self {
        Self { shard, ..self }
    }

    /// Sets the numbers by which stages behind the first cross-split stage draw.
    pub(crate) fn drawing_by(self, places: Option<ShardPlaces>) -> Self {
        Self { places, ..self }
    }

    /// The rows of a split that belong to the shard that it was leased for; none: all.
    pub(crate) fn stride_of(&self, split: u64) -> Option<Stride> {
        self.splits.read().get(&split).and_then(|i| i.stride)
    }

    /// The key that all draws of one repetition of the source share.
    pub(crate) fn draw(&self, repetition: u32) -> u64 {
        mix64(mix64(self.seed, self.epoch), u64::from(repetition))
    }

    /// The key that the draws of stored rows share.
    pub(crate) fn frozen_draw(&self, repetition: u32) -> u64 {
        mix64(mix64(self.seed, 0), u64::from(repetition))
    }

    /// Whether this epoch draws as stored rows are drawn.
    pub(crate) fn draws_as_frozen(&self) -> bool {
        self.draw(0) == self.frozen_draw(0)
    }

    /// Registers a split before its first row moves.
    pub(crate) fn register(&self, lease: &LeasedSplit) {
        self.checks.expect(lease.index, &lease.checksums);
        self.stats.busy.split_begins();
        self.insert(lease.index, lease.index, &lease.split, lease.done.clone(), None);
    }

    /// Registers a split of a nested dataset, which belongs to a lease.
    pub(crate) fn register_nested(&self, index: u64, split: &Split, home: u64) {
        let frozen = self.splits.read().get(&home).and_then(|i| i.frozen);
        // All stages of a nested dataset are above every hint.
        let frozen = frozen.map(|f| Frozen { below: u32::MAX, ..f });
        self.insert(index, home, split, RowRanges::default(), frozen);
        if let Some(home) = self.splits.write().get_mut(&home) {
            home.nested.push(index);
        }
    }

    fn insert(&self, index: u64, home: u64, split: &Split, done: RowRanges, frozen: Option<Frozen>) {
        let key = split.key.folded();
        let info = SplitInfo {
            key: mix64(self.draw(split.repetition), key),
            split: key,
            home,
            frozen,
            place: split.describe().into(),
            repetition: split.repetition,
            child: split.child.first().map_or(0, |&c| c as usize),
            nested: Vec::new(),
            registered: 1,
            done,
            stride: split.stride,
            planned_rows: split.stride.map(|s| first_and_step(s, split.trim.map_or(0, |t| t.0))),
            passed: Some(0),
        };
        let mut splits = self.splits.write();
        if let Some(former) = splits.insert(index, info)
            && let Some(now) = splits.get_mut(&index)
        {
            now.registered = former.registered.saturating_add(1);
        }
    }

    /// Readers have taken every row of these splits. What is known of them is not needed any more, unless readers had some of the
    /// rows before: those may still be in a stage, and must not come out of it.
    pub(crate) fn forget(&self, splits: &[u64]) {
        if splits.is_empty() {
            return;
        }
        let mut known = self.splits.write();
        let whole = |split: &&u64| known.get(split).is_some_and(|info| info.done.is_empty());
        let forgotten: HashSet<u64> = splits.iter().filter(whole).copied().collect();
        for split in &forgotten {
            for nested in known.remove(split).map_or_else(Vec::new, |info| info.nested) {
                let Some(info) = known.get_mut(&nested) else { continue };
                info.registered = info.registered.saturating_sub(1);
                if info.registered == 0 {
                    known.remove(&nested);
                }
            }
        }
        drop(known);
        self.skips.lock().retain(|(home, _), _| !forgotten.contains(home));
    }

    /// Readers have all rows of a split, and none passes again.
    pub(crate) fn taken(&self, index: u64, rows: u64) {
        if let Some(info) = self.splits.write().get_mut(&index) {
            info.passed = Some(rows);
        }
    }

    /// The rows of a split come from a part behind a cross-split stage: they do not pass the split-local stages. How many there are
    /// is known by the record of the set, or not at all.
    pub(crate) fn not_sized(&self, index: u64) {
        if let Some(info) = self.splits.write().get_mut(&index) {
            info.passed = None;
        }
    }

    /// Rows of the split-local output have passed.
    pub(crate) fn passed(&self, runs: &[Run]) {
        let mut splits = self.splits.write();
        for run in runs {
            if let Some(passed) = splits.get_mut(&run.split).and_then(|i| i.passed.as_mut()) {
                *passed += run.len;
            }
        }
    }

    /// All rows of a split have passed.
    pub(crate) fn ended(&self, index: u64) {
        self.stats.busy.split_ends();
        let passed = self.splits.read().get(&index).and_then(|i| Some((i.passed?, i.repetition)));
        let Some((rows, repetition)) = passed else { return };
        if rows > 0 {
            self.has_rows.store(true, Ordering::Relaxed);
        } else if !self.has_rows.load(Ordering::Relaxed) {
            self.empty.lock().push((index, repetition));
        }
        self.sizes.ended(index, rows);
    }

    /// Splits without rows that have ended since the last call, with their repetitions of the source, as long as none had a row.
    pub(crate) fn take_empty(&self) -> Vec<(u64, u32)> {
        let empty = std::mem::take(&mut *self.empty.lock());
        if self.has_rows.load(Ordering::Relaxed) { Vec::new() } else { empty }
    }

    /// Makes the stages above a hint draw for this split as they did when its part was computed.
    pub(crate) fn freeze(&self, index: u64, draw: u64, below: u32) {
        if let Some(info) = self.splits.write().get_mut(&index) {
            info.frozen = Some(Frozen { draw, below });
        }
    }

    /// The place of a row, for messages: file, range and ordinal.
    pub(crate) fn place(&self, split: u64, ordinal: u64) -> String {
        let row = describe_row(ordinal);
        match self.splits.read().get(&split) {
            Some(info) => format!("{} ({row})", info.place),
            None => format!("split {split} ({row})"),
        }
    }

    /// The dataset of a combinator that a split belongs to.
    pub(crate) fn child_of(&self, split: u64) -> usize {
        self.splits.read().get(&split).map_or(0, |i| i.child)
    }

    /// One key per row for the random functions of the stage at `position`.
    pub(crate) fn keys(&self, position: u32, runs: &[Run]) -> UInt64Array {
        let splits = self.splits.read();
        let mut keys = Vec::with_capacity(runs.iter().map(|r| usize::try_from(r.len).unwrap_or(0)).sum());
        let places = self.places.as_ref().filter(|places| places.are_for(position));
        for run in runs {
            let info = splits.get(&run.split);
            let split = info.map_or(run.split, |i| match i.frozen {
                Some(f) if position < f.below => mix64(f.draw, i.split),
                _ => i.key,
            });
            let stage = mix64(split, u64::from(position));
            let ordinals = run.start..run.start + run.len;
            // Positions in nested datasets are large. These have splits of their own, and no shards.
            match places.zip(info.filter(|i| i.home == run.split)) {
                Some((places, info)) => {
                    keys.extend(ordinals.map(|o| mix64(stage, places.number(o, info.planned_rows))));
                }
                None => keys.extend(ordinals.map(|ordinal| mix64(stage, ordinal))),
            }
        }
        keys.into()
    }

    /// The parts of a chunk of rows that readers do not have yet.
    pub(crate) fn without_done(&self, chunk: Chunk) -> Vec<Chunk> {
        let splits = self.splits.read();
        let done =
            |r: &Run| splits.get(&r.split).is_some_and(|i| i.done.intersects(r.start, r.start + r.len));
        if !chunk.runs.iter().any(done) {
            return vec![chunk];
        }
        let (mut left, mut at) = (Vec::new(), 0usize);
        for run in &chunk.runs {
            let missing = match splits.get(&run.split) {
                Some(info) => info.done.missing_in(run.start, run.start + run.len),
                None => vec![(run.start, run.start + run.len)],
            };
            for (s, e) in missing {
                let offset = at + usize::try_from(s - run.start).unwrap_or(0);
                left.push((offset, usize::try_from(e - s).unwrap_or(0)));
            }
            at += usize::try_from(run.len).unwrap_or(0);
        }
        if chunk.elements == Elements::Rows {
            return left.into_iter().map(|(offset, len)| chunk.slice_rows(offset, len)).collect();
        }
        chunk.only_rows(&left).into_iter().collect()
    }

    /// The seed of a stream stage's own draws.
    pub(crate) fn stream_seed(&self, position: u32, own: Option<u64>) -> u64 {
        let seed = own.unwrap_or(self.seed);
        let slot = self.slot.map_or(0, |s| u64::from(s) + 1);
        mix64(mix64(mix64(seed, self.epoch), u64::from(position)), slot)
    }

    /// Whether bad rows are skipped.
    pub(crate) fn skips(&self) -> bool {
        matches!(self.on_error, OnError::Skip { .. })
    }

    /// Counts a row that a stage skipped; `stage`: the index of its counters.
    ///
    /// # Errors
    /// The row's own error, with the limit named, once more rows were skipped than allowed.
    pub(crate) fn skip(&self, stage: usize, split: u64, error: &Error) -> Result<()> {
        let OnError::Skip { limit } = self.on_error else { return Err(error.clone()) };
        let home = self.splits.read().get(&split).map_or(split, |i| i.home);
        *self.skips.lock().entry((home, stage)).or_default() += 1;
        let n = self.skipped.fetch_add(1, Ordering::Relaxed) + 1;
        self.keep_skip(error);
        tracing::debug!(row = n, %error, "row skipped");
        if n > limit { Err(too_many(limit, error)) } else { Ok(()) }
    }

    /// Counts a row that the source of a lease skipped; [`TaskContext::check_skips`] checks the limit.
    pub(crate) fn count_skip(&self, home: u64, error: &Error) {
        *self.skips.lock().entry((home, 0)).or_default() += 1;
        self.skipped.fetch_add(1, Ordering::Relaxed);
        *self.last_skip.lock() = Some(error.clone());
        self.keep_skip(error);
        tracing::debug!(%error, "row skipped");
    }

    /// Rows of a lease that the source and the first `stages` stages skipped.
    pub(crate) fn skipped_above(&self, home: u64, stages: usize) -> u64 {
        if !self.skips() {
            return 0;
        }
        let skips = self.skips.lock();
        (0..=stages).filter_map(|stage| skips.get(&(home, stage))).sum()
    }

    /// Counts rows that were skipped when a part was computed that is read now.
    ///
    /// # Errors
    /// As [`TaskContext::skip`].
    pub(crate) fn count_stored_skips(&self, split: u64, rows: u64) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let error = Error::data_loss(format!(
            "{} of the rows of {} were bad when they were stored",
            rows,
            self.splits.read().get(&split).map_or_else(String::new, |i| i.place.to_string())
        ));
        self.skipped.fetch_add(rows, Ordering::Relaxed);
        self.keep_skip(&error);
        *self.last_skip.lock() = Some(error);
        self.check_skips()
    }

    /// Checks whether the source skipped more rows than allowed.
    pub(crate) fn check_skips(&self) -> Result<()> {
        let OnError::Skip { limit } = self.on_error else { return Ok(()) };
        if self.skipped() <= limit {
            return Ok(());
        }
        match self.last_skip.lock().as_ref() {
            Some(e) => Err(too_many(limit, e)),
            None => Ok(()),
        }
    }

    /// Rows skipped so far.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    fn keep_skip(&self, error: &Error) {
        let mut first = self.first_skips.lock();
        if first.len() < REPORTED_SKIPS {
            first.push(error.message().chars().take(REPORTED_CHARS).collect());
        }
    }

    /// The first skipped rows, at most [`REPORTED_SKIPS`]: where each is, and what is wrong with it.
    pub(crate) fn first_skips(&self) -> Vec<String> {
        self.first_skips.lock().clone()
    }
}

fn too_many(limit: u64, last: &Error) -> Error {
    Error::new(
        last.kind(),
        format!(
            "more than {limit} bad rows were skipped; raise `on_error: {{ skip: {{ limit: N }} }}` if that is fine; the last one: {last}"
        ),
    )
}
