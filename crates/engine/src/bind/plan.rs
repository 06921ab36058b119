//! Which splits an iteration has, and in which order: repetitions, and `take` and `skip` where they can be
//! planned away.

use std::sync::Arc;

use caju_pipeline::{DatasetDef, OnError, StageOp};
use caju_sources::{Split, Stride, by_file};
use caju_types::Result;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;

use super::steps::{ShardNumbers, Step, StreamOp};
use crate::shard::{Shard, ShardBy};

/// The planned part of `take`, `skip` and `repeat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SplitPlan {
    /// `take`s and `skip`s over source rows, in order, cut from the splits themselves.
    trims: Vec<Trim>,
    /// `None`: endless.
    repetitions: Option<u64>,
    /// Whether counting has to happen while running.
    counts: bool,
    /// How many of the definition's `take` and `skip` stages are planned away: the first ones.
    planned: usize,
    /// Whether a `shuffle` may have the splits in another order: no rows are counted above the first one.
    permutes: bool,
    /// The first `shard`, if its rows are chosen per split: the splits themselves say which.
    stride: Option<ShardNumbers>,
    /// Whether some other `shard` counts its input, so that one task has to see all of it in order.
    counts_shards: bool,
    /// Whether the processing mode `hint` divides the files of the source.
    file_hint: bool,
    /// The index of the stage above which the processing mode `data` has its shards.
    data_shard: Option<usize>,
}

/// A planned `take` or `skip`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trim {
    Take(u64),
    Skip(u64),
}

impl SplitPlan {
    /// The plan of a definition under a static processing mode, or without one.
    pub(crate) fn of(def: &DatasetDef, by: Option<ShardBy>) -> Self {
        // A promised order and composition of batches needs one stream of rows.
        let ordered = def.options.deterministic;
        let mut plan = Self {
            trims: Vec::new(),
            repetitions: Some(1),
            counts: ordered,
            planned: 0,
            permutes: false,
            stride: None,
            counts_shards: false,
            file_hint: def.has_file_hint(),
            data_shard: (by == Some(ShardBy::Data)).then(|| behind_counts(def)),
        };
        let (mut shuffled, mut counted) = (false, false);
        // By file, each worker counts the rows of its own files.
        let mut plannable = def.source.knows_rows()
            && matches!(def.options.on_error, OnError::Fail)
            && by != Some(ShardBy::File);
        for (i, stage) in def.stages.iter().enumerate() {
            if plan.data_shard == Some(i) {
                counted |= plan.shard(ShardNumbers::OfTask, &mut plannable);
            }
            match &stage.op {
                StageOp::Shard { num_shards, index } => {
                    counted |= plan.shard(ShardNumbers::new(*num_shards, *index), &mut plannable);
                }
                StageOp::Take(n) if plannable => plan.trims.push(Trim::Take(*n)),
                StageOp::Skip(n) if plannable => plan.trims.push(Trim::Skip(*n)),
                StageOp::Take(_) | StageOp::Skip(_) => {
                    plan.counts = true;
                    counted = true;
                }
                StageOp::Shuffle { .. } if !shuffled => {
                    shuffled = true;
                    plan.permutes = !counted;
                    plannable = false;
                }
                StageOp::Repeat(n) => {
                    plan.repetitions = match (plan.repetitions, n) {
                        (Some(a), Some(b)) => Some(a.saturating_mul(*b)),
                        _ => None,
                    };
                    plannable = false;
                }
                op => plannable &= op.keeps_rows() || matches!(op, StageOp::Prefetch(_)),
            }
        }
        if plan.data_shard == Some(def.stages.len()) {
            plan.shard(ShardNumbers::OfTask, &mut plannable);
        }
        plan.planned = plan.trims.len();
        plan
    }

    /// Plans a `shard`. Returns whether its input has to be counted.
    fn shard(&mut self, numbers: ShardNumbers, plannable: &mut bool) -> bool {
        let is_planned = std::mem::replace(plannable, false) && self.stride.is_none();
        match is_planned {
            true => self.stride = Some(numbers),
            false => self.counts_shards = true,
        }
        !is_planned
    }

    pub(crate) fn single_task(&self) -> bool {
        self.counts || self.counts_shards
    }

    /// Whether the rows of the first `shard` are chosen per split.
    pub(crate) fn has_stride(&self) -> bool {
        self.stride.is_some()
    }

    /// The index of the stage above which the processing mode `data` has its shards; none in other modes.
    pub(crate) fn data_shard(&self) -> Option<usize> {
        self.data_shard
    }

    pub(crate) fn permutes(&self) -> bool {
        self.permutes
    }

    /// How many of the definition's `take` and `skip` stages are planned away: the first ones.
    pub(crate) fn planned(&self) -> usize {
        self.planned
    }

    /// Whether the short batches at the ends of tasks go to the reader, who merges them. `at`: the index of the stage that makes
    /// them. The tasks have applied the stages below it already. That these saw another batch matters where they compute on
    /// padded lists, and where a `shard` counts batches.
    pub(crate) fn merges(&self, def: &DatasetDef, at: usize) -> bool {
        let last_unbatch = def.stages.iter().rposition(|s| matches!(s.op, StageOp::Unbatch));
        let last_shard = def.stages.iter().rposition(|s| matches!(s.op, StageOp::Shard { .. }));
        !self.counts
            && last_shard.is_none_or(|shard| shard < at)
            && last_unbatch.is_none_or(|unbatch| unbatch < at)
            && def.computes_on_padding(at).is_none()
    }

    /// Removes the steps that are planned away, and sets how short batches end.
    pub(crate) fn finish_steps(&self, def: &DatasetDef, steps: &mut Vec<Step>) {
        let mut left = self.planned;
        steps.retain(|s| {
            let planned =
                left > 0 && matches!(s, Step::Stream { op: StreamOp::Take(_) | StreamOp::Skip(_), .. });
            left -= usize::from(planned);
            !planned
        });
        let is_batch = |op: &StageOp| matches!(op, StageOp::Batch { .. } | StageOp::PaddedBatch { .. });
        let stages = def.stages.iter().enumerate().filter(|(_, s)| is_batch(&s.op)).map(|(at, _)| at);
        let batches = steps.iter_mut().filter_map(|step| match step {
            Step::Stream { op: StreamOp::Batch(batch), .. } => Some(batch),
            _ => None,
        });
        for (batch, at) in batches.zip(stages) {
            batch.merge = self.merges(def, at);
        }
    }

    /// The iteration's splits. The source is listed once; later repetitions replay what was listed.
    pub(crate) fn splits(
        &self,
        listed: BoxStream<'static, Result<Split>>,
        shard: Option<Shard>,
    ) -> BoxStream<'static, Result<Split>> {
        if self.repetitions == Some(0) {
            return stream::empty().boxed();
        }
        let listed = yielding(listed);
        let listed = match shard {
            Some(shard) if shard.by == ShardBy::File || self.file_hint => {
                by_file(listed, shard.num_shards, shard.index)
            }
            _ => listed,
        };
        let once = trimmed(listed, self.trims.clone());
        let numbers = self.stride.and_then(|s| s.resolve(shard.map(|s| (s.num_shards, s.index))));
        let once = match numbers {
            Some((num_shards, index)) => strided(once, num_shards, index),
            None => once,
        };
        if self.repetitions == Some(1) {
            return once;
        }
        let listed: Arc<Mutex<Vec<Split>>> = Arc::default();
        let record = Arc::clone(&listed);
        let first = once.inspect(move |s| {
            if let Ok(s) = s {
                record.lock().push(s.clone());
            }
        });
        let last = self.repetitions;
        let rest = stream::unfold((1u32, 0usize), move |(mut repetition, mut at)| {
            let listed = Arc::clone(&listed);
            async move {
                let listed = listed.lock();
                if at >= listed.len() {
                    (repetition, at) = (repetition.checked_add(1)?, 0);
                }
                if listed.is_empty() || last.is_some_and(|n| u64::from(repetition) >= n) {
                    return None;
                }
                let split = Split { repetition, ..listed[at].clone() };
                Some((Ok(split), (repetition, at + 1)))
            }
        });
        first.chain(rest).boxed()
    }
}

/// The index behind the last stage that counts elements: an epoch's elements are divided below it.
fn behind_counts(def: &DatasetDef) -> usize {
    let counts = |op: &StageOp| matches!(op, StageOp::Take(_) | StageOp::Skip(_) | StageOp::Shard { .. });
    def.stages.iter().rposition(|s| counts(&s.op)).map_or(0, |i| i + 1)
}

/// The splits with rows of a shard, each marked with these rows. The row counts of all splits are known.
fn strided(
    splits: BoxStream<'static, Result<Split>>,
    num_shards: u64,
    index: u64,
) -> BoxStream<'static, Result<Split>> {
    let mut at = 0u64;
    let mut mark = move |split: Result<Split>| {
        let mut split = match split {
            Ok(split) => split,
            Err(e) => return Some(Err(e)),
        };
        let (skip, rows) = (split.trim.map_or(0, |t| t.0), split.trimmed_rows().unwrap_or(0));
        // The row with ordinal `skip` is row `at` of all rows.
        let first = Stride::of(num_shards, index, at);
        let stride = Stride { first: (first.first + skip) % first.step, ..first };
        at += rows;
        split.stride = Some(stride);
        (first.first < rows).then_some(Ok(split))
    };
    splits.filter_map(move |split| std::future::ready(mark(split))).boxed()
}

/// The same splits. Who reads them lets other tasks of its thread run now and then, also while a `skip` or a shard leaves out
/// more of them than anybody can count.
fn yielding(splits: BoxStream<'static, Result<Split>>) -> BoxStream<'static, Result<Split>> {
    let next = |split| async move {
        tokio::task::consume_budget().await;
        split
    };
    splits.then(next).boxed()
}

/// Applies takes and skips over rows to a canonical stream of splits whose row counts are known.
fn trimmed(splits: BoxStream<'static, Result<Split>>, trims: Vec<Trim>) -> BoxStream<'static, Result<Split>> {
    if trims.is_empty() {
        return splits;
    }
    // The window of source rows that is left, `from..to`.
    let (mut from, mut to) = (0u64, u64::MAX);
    for t in trims {
        match t {
            Trim::Skip(n) => from = from.saturating_add(n).min(to),
            Trim::Take(n) => to = to.min(from.saturating_add(n)),
        }
    }
    let mut at = 0u64;
    splits
        .take_while(move |s| {
            let start = at;
            if let Ok(s) = s {
                at += s.rows.unwrap_or(0);
            }
            let go_on = start < to || s.is_err();
            async move { go_on }
        })
        .scan(0u64, move |at, s| {
            let out = s.map(|mut s| {
                let (start, rows) = (*at, s.rows.unwrap_or(0));
                *at += rows;
                let (a, b) = (from.max(start), to.min(start + rows));
                if a >= b {
                    return None;
                }
                if (a, b) != (start, start + rows) {
                    s.trim = Some((a - start, b - a));
                }
                Some(s)
            });
            async move { Some(out.transpose()) }
        })
        .filter_map(|s| async move { s })
        .boxed()
}
