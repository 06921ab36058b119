//! Row stages over chunks, each within the memory limit of a chunk.
//!
//! Most chunks pass all stages in one piece. A chunk that needs too much memory at a stage is split in two there, and again
//! if that is not enough: the first piece continues, and the remainder waits. A batch whose rows grow therefore costs time,
//! not memory; only a single row that is too large is an error.
//!
//! A stage that runs a user's function row by row gives rows back when it is slow: [`SliceReclaimer`].

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_runtime::interrupt;
use caju_types::{Error, ErrorKind, Result};
use caju_wire::{Chunk, Elements, Run, push_run, slice_runs};
use futures::stream::StreamExt;

use super::concurrent::{GivenBack, Limits, Order, RowTime, Slice, Work, concurrent};
use super::{Item, Items};
use crate::context::TaskContext;
use crate::row::{Made, RowOp, RowReclaimer, RowSelection, RowStage};

/// Runs row stages over the chunks of `items` on the CPU pool, as [`concurrent`] runs work; other items pass.
pub(super) fn rows(stages: Vec<Arc<RowStage>>, items: Items, ctx: &Arc<TaskContext>, order: Order) -> Items {
    if stages.is_empty() {
        return items;
    }
    let pool = ctx.pool.clone();
    let limits = Limits {
        at_once: Box::new(move || pool.running_threads() + 1),
        most_bytes: ctx.queue_bound(),
        given_back: (ctx.pool.max_threads() + 1) * (stages.len() + 1),
    };
    let clock = Arc::clone(&ctx.clock);
    let rows = Arc::new(Rows::new(stages, Arc::clone(ctx)));
    let start = move |chunk| RowWork::new(Arc::clone(&rows), chunk);
    concurrent(items, start, order, limits, clock)
        .filter(|item| std::future::ready(!matches!(item, Ok(Item::Chunk(c)) if c.rows() == 0)))
        .boxed()
}

/// What all chunks on their way through some stages share.
struct Rows {
    stages: Vec<Arc<RowStage>>,
    ctx: Arc<TaskContext>,
    row_time: RowTime,
    /// Whether chunks may be cut: a function over batches gets the batches that are read.
    may_be_cut: bool,
}

impl Rows {
    fn new(stages: Vec<Arc<RowStage>>, ctx: Arc<TaskContext>) -> Self {
        let batched = |s: &Arc<RowStage>| matches!(&s.op, RowOp::Python(f) if f.is_batched());
        let may_be_cut = !stages.iter().any(batched);
        Self { stages, ctx, row_time: RowTime::default(), may_be_cut }
    }
}

/// A chunk on its way through the stages.
struct RowWork {
    rows: Arc<Rows>,
    /// The pieces that are left, the first rows last, each with the first stage that it has not passed.
    left: Vec<(usize, Chunk)>,
}

impl Work for RowWork {
    /// The next rows that have passed all stages, and the work that is left then, if there is any. Runs on a thread of
    /// the CPU pool.
    async fn next(mut self, slice: Slice<Self>) -> Result<(Chunk, Option<Self>)> {
        let pool = self.rows.ctx.pool.clone();
        let at_work = self.rows.ctx.stats.busy.computing(pool.running_threads());
        pool.run(move || {
            // Dropped when the rows are computed, which may be long before they are taken.
            let _at_work = at_work;
            // The handover counts for the first stage that the chunk was handed over for.
            if let Some(first) = self.rows.stages.first() {
                self.rows.ctx.stats.stage(first.stats).handed_over();
            }
            slice.working();
            let interrupt = self.rows.ctx.interrupt.clone();
            let chunk = interrupt.scope(|| self.run(&slice))?;
            Ok((chunk, (!self.left.is_empty()).then_some(self)))
        })
        .await?
    }

    fn cut(mut self) -> (Self, Option<Self>) {
        let Some((stage, chunk)) = self.left.pop() else { return (self, None) };
        let (all, whole) = (chunk.rows(), !self.rows.may_be_cut || chunk.elements != Elements::Rows);
        let rows = if whole { all } else { self.rows.row_time.slice_of(all) };
        if rows >= all {
            self.left.push((stage, chunk));
            return (self, None);
        }
        let first = Self { rows: Arc::clone(&self.rows), left: vec![(stage, chunk.slice_rows(0, rows))] };
        self.left.push((stage, chunk.slice_rows(rows, all - rows)));
        (first, Some(self))
    }

    fn finished(mut self) -> Result<Chunk, Self> {
        let stages = self.rows.stages.len();
        match self.left.pop() {
            Some((stage, chunk)) if stage >= stages && self.left.is_empty() => Ok(chunk),
            next => {
                self.left.extend(next);
                Err(self)
            }
        }
    }
}

impl RowWork {
    fn new(rows: Arc<Rows>, chunk: Chunk) -> Self {
        Self { rows, left: vec![(0, chunk)] }
    }

    fn run(&mut self, slice: &Slice<Self>) -> Result<Chunk> {
        let Some((first, mut chunk)) = self.left.pop() else {
            return Err(Error::internal("a chunk without rows that are left"));
        };
        let rows = Arc::clone(&self.rows);
        let mut time = Time::begin(chunk.rows());
        for (i, stage) in rows.stages.iter().enumerate().skip(first) {
            chunk = self.run_stage(i, stage, chunk, slice, &mut time)?;
        }
        if !time.is_recorded && self.left.is_empty() {
            rows.row_time.record(time.rows, time.began.elapsed().saturating_sub(time.idle));
        }
        Ok(chunk)
    }

    /// Runs one stage over the chunk, or over as much of it as fits.
    fn run_stage(
        &mut self,
        index: usize,
        stage: &RowStage,
        mut chunk: Chunk,
        slice: &Slice<Self>,
        time: &mut Time,
    ) -> Result<Chunk> {
        loop {
            interrupt::check()?;
            let mut taking = SliceReclaimer::new(self, index, stage, &chunk, slice, time);
            match taking.run_pieces() {
                Ok(done) => return Ok(done),
                Err((done, at, e)) => {
                    // Elements of several rows stay whole.
                    let rows = chunk.rows();
                    if e.kind() != ErrorKind::ResourceExhausted
                        || !stage.may_be_cut()
                        || chunk.elements != Elements::Rows
                        || rows <= 1
                    {
                        return Err(e);
                    }
                    let done = done.filter(|_| at > 0);
                    let cut = if done.is_some() { at } else { rows / 2 };
                    self.left.push((index, chunk.slice_rows(cut, rows - cut)));
                    match done {
                        Some(done) => return Ok(done),
                        None => chunk = chunk.slice_rows(0, cut),
                    }
                }
            }
        }
    }
}

/// What rows take.
struct Time {
    rows: usize,
    began: Instant,
    /// Time that was no work.
    idle: Duration,
    /// Whether it is known what these rows take.
    is_recorded: bool,
}

impl Time {
    fn begin(rows: usize) -> Self {
        Self { rows, began: Instant::now(), idle: Duration::ZERO, is_recorded: false }
    }
}

/// One stage that computes a chunk. If it is slow, the rows that are ready and those that are not begun are given back to the
/// slice, and the stage continues with the row that it is computing.
struct SliceReclaimer<'a> {
    work: &'a mut RowWork,
    index: usize,
    stage: &'a RowStage,
    chunk: &'a Chunk,
    slice: &'a Slice<RowWork>,
    time: &'a mut Time,
    /// The rows that have passed, and have not been given back.
    pieces: Vec<arrow_array::RecordBatch>,
    runs: Vec<Run>,
    /// Where rows form elements: which of the chunk's rows these are, as (offset, length).
    kept: Vec<(usize, usize)>,
    /// The first row of the piece that is being computed, and the provenance of the piece.
    at: usize,
    here: Vec<Run>,
    /// The rows of the chunk before this one are this work's own.
    end: usize,
    failed: Option<Error>,
}

impl<'a> SliceReclaimer<'a> {
    fn new(
        work: &'a mut RowWork,
        index: usize,
        stage: &'a RowStage,
        chunk: &'a Chunk,
        slice: &'a Slice<RowWork>,
        time: &'a mut Time,
    ) -> Self {
        let pieces = Vec::with_capacity(chunk.pieces.len());
        let runs = Vec::with_capacity(chunk.runs.len());
        let end = chunk.rows();
        Self {
            work,
            index,
            stage,
            chunk,
            slice,
            time,
            pieces,
            runs,
            kept: Vec::new(),
            at: 0,
            here: Vec::new(),
            end,
            failed: None,
        }
    }

    fn run_pieces(&mut self) -> Result<Chunk, Stopped> {
        let (ctx, chunk, stage) = (Arc::clone(&self.work.rows.ctx), self.chunk, self.stage);
        let may_give_back = chunk.elements == Elements::Rows && self.work.rows.may_be_cut;
        for piece in &chunk.pieces {
            if self.at >= self.end && self.at > 0 {
                break;
            }
            self.here = if chunk.pieces.len() == 1 {
                chunk.runs.clone()
            } else {
                slice_runs(&chunk.runs, self.at, piece.num_rows())
            };
            let here = self.here.clone();
            let reclaimer: Option<&mut dyn RowReclaimer> = if may_give_back { Some(self) } else { None };
            let made = stage.run(&ctx, piece, &here, reclaimer);
            match (made, self.failed.take()) {
                (Ok(made), None) => {
                    let begun = self.at + made.ran.end;
                    self.pass(made);
                    let end = self.end.min(self.at + piece.num_rows());
                    if begun < end {
                        // The stage stopped before it began the last of its rows.
                        let rest = self.chunk.slice_rows(begun, end - begun);
                        self.work.left.push((self.index, rest));
                    }
                }
                (Err(e), _) | (Ok(_), Some(e)) => {
                    let (pieces, runs) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.runs));
                    let done = (!pieces.is_empty()).then(|| Chunk { pieces, runs, ..without_rows(chunk) });
                    return Err((done, self.at, e));
                }
            }
            self.at += piece.num_rows();
        }
        Ok(self.passed())
    }

    /// Rows of the piece that is being computed have passed the stage.
    fn pass(&mut self, made: Made) {
        let Range { start, end } = made.ran;
        if self.chunk.elements != Elements::Rows {
            made.kept.add_parts(self.at, start..end, &mut self.kept);
        }
        match made.kept {
            RowSelection::All if start == 0 && end as u64 == self.here.iter().map(|r| r.len).sum::<u64>() => {
                self.here.iter().for_each(|r| push_run(&mut self.runs, *r));
            }
            RowSelection::All => {
                let ran = slice_runs(&self.here, start, end - start);
                ran.into_iter().for_each(|r| push_run(&mut self.runs, r));
            }
            kept => self.runs.extend(kept.runs(&self.here)),
        }
        self.pieces.push(made.batch);
    }

    /// The rows that have passed.
    fn passed(&mut self) -> Chunk {
        let (pieces, runs) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.runs));
        // A bad row that is skipped leaves its element, and no other row takes its place.
        let elements = self.chunk.elements.only_rows(&std::mem::take(&mut self.kept));
        Chunk { pieces, runs, elements, ..without_rows(self.chunk) }
    }
}

impl RowReclaimer for SliceReclaimer<'_> {
    fn waiting(&mut self) {
        self.slice.waiting();
    }

    fn working(&mut self) {
        self.slice.working();
    }

    fn idled(&mut self, time: Duration) {
        self.time.idle += time;
    }

    fn take_back(&mut self, ready: Option<Made>, from: usize, took: Duration) {
        let rows = Arc::clone(&self.work.rows);
        if !self.time.is_recorded {
            rows.row_time.record(from, took);
            self.time.is_recorded = true;
        }
        if let Some(made) = ready {
            self.stage.count(&rows.ctx, &made);
            self.pass(made);
        }
        let of = |left| RowWork { rows: Arc::clone(&rows), left };
        let ready = (!self.pieces.is_empty()).then(|| of(vec![(self.index + 1, self.passed())]));
        let (begun, mut left) = (self.at + from, std::mem::take(&mut self.work.left));
        if begun < self.end {
            left.push((self.index, self.chunk.slice_rows(begun, self.end - begun)));
        }
        self.end = begun;
        let behind = (!left.is_empty()).then(|| of(left));
        if ready.is_some() || behind.is_some() {
            self.failed = self.slice.give_back(GivenBack { ready, behind }).err();
        }
    }
}

/// The rows of the pieces before the one that failed, how many rows those were, and why it failed.
type Stopped = (Option<Chunk>, usize, Error);

/// The chunk without its rows.
fn without_rows(chunk: &Chunk) -> Chunk {
    Chunk {
        pieces: Vec::new(),
        runs: Vec::new(),
        elements: chunk.elements.clone(),
        remainder: chunk.remainder,
        round: chunk.round,
    }
}
