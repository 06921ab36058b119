//! What the stages of one task share: keys, the table of its splits, counters and the policy for bad rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::UInt64Array;
use caju_pipeline::OnError;
use caju_runtime::{Clock, CpuPool};
use caju_types::{Error, Result, RowRanges, mix64};
use parking_lot::RwLock;

use crate::chunk::{Chunk, Elements, Run};
use crate::source::Split;
use crate::stats::TaskStats;

/// What a stage has to know of a split whose rows it sees.
#[derive(Debug, Clone)]
struct SplitInfo {
    key: u64,
    place: Arc<str>,
    /// The dataset of a combinator that the split belongs to.
    child: usize,
    /// Rows of the split-local output that readers have already.
    done: RowRanges,
}

/// Shared by all stages of one task.
pub(crate) struct TaskContext {
    seed: u64,
    epoch: u64,
    /// Under `off`: the worker's slot, which enters the draws of stream stages.
    slot: Option<u32>,
    on_error: OnError,
    skipped: AtomicU64,
    last_skip: RwLock<Option<Error>>,
    splits: RwLock<HashMap<u64, SplitInfo>>,
    pub(crate) pool: CpuPool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stats: Arc<TaskStats>,
    /// Held by the artificial stages (`sleep`, `burn`), which run one at a time per worker.
    pub(crate) one_at_a_time: Arc<tokio::sync::Mutex<()>>,
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
            on_error,
            skipped: AtomicU64::new(0),
            last_skip: RwLock::new(None),
            splits: RwLock::new(HashMap::new()),
            pool,
            clock,
            stats,
            one_at_a_time,
        }
    }

    /// Makes a split known before its first row moves.
    pub(crate) fn register(&self, index: u64, split: &Split, done: &RowRanges) {
        let epoch = mix64(mix64(self.seed, self.epoch), u64::from(split.repetition));
        let child = split.child.first().map_or(0, |&c| c as usize);
        let info = SplitInfo {
            key: mix64(epoch, split.key.folded()),
            place: split.describe().into(),
            child,
            done: done.clone(),
        };
        self.splits.write().insert(index, info);
    }

    /// The place of a row, for messages: file, range and ordinal.
    pub(crate) fn place(&self, split: u64, ordinal: u64) -> String {
        match self.splits.read().get(&split) {
            Some(info) => format!("{} (row {ordinal} of it)", info.place),
            None => format!("split {split}, row {ordinal}"),
        }
    }

    /// The dataset of a combinator that a split belongs to.
    pub(crate) fn child_of(&self, split: u64) -> usize {
        self.splits.read().get(&split).map_or(0, |i| i.child)
    }

    /// One key per row for the random functions of the stage at `position` (I2).
    pub(crate) fn keys(&self, position: u32, runs: &[Run]) -> UInt64Array {
        let splits = self.splits.read();
        let mut keys = Vec::with_capacity(runs.iter().map(|r| usize::try_from(r.len).unwrap_or(0)).sum());
        for run in runs {
            let split = splits.get(&run.split).map_or(run.split, |i| i.key);
            let stage = mix64(split, u64::from(position));
            keys.extend((run.start..run.start + run.len).map(|ordinal| mix64(stage, ordinal)));
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

    /// Whether bad rows are passed over.
    pub(crate) fn skips(&self) -> bool {
        matches!(self.on_error, OnError::Skip { .. })
    }

    /// Counts a row that was passed over.
    ///
    /// # Errors
    /// The row's own error, with the limit named, once more rows were passed over than allowed.
    pub(crate) fn skip(&self, error: &Error) -> Result<()> {
        let OnError::Skip { limit } = self.on_error else { return Err(error.clone()) };
        let n = self.skipped.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::debug!(row = n, %error, "row skipped");
        if n > limit { Err(too_many(limit, error)) } else { Ok(()) }
    }

    /// Counts a row that the source passed over; [`TaskContext::check_skips`] finds out about the limit.
    pub(crate) fn count_skip(&self, error: &Error) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        *self.last_skip.write() = Some(error.clone());
        tracing::debug!(%error, "row skipped");
    }

    /// Whether the source passed over more rows than allowed.
    pub(crate) fn check_skips(&self) -> Result<()> {
        let OnError::Skip { limit } = self.on_error else { return Ok(()) };
        if self.skipped() <= limit {
            return Ok(());
        }
        match self.last_skip.read().as_ref() {
            Some(e) => Err(too_many(limit, e)),
            None => Ok(()),
        }
    }

    /// Rows passed over so far.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
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
