//! `on_error: skip`: a batch with a bad row is run again, row by row, and the bad rows are left out.
//!
//! A slow row holds back itself and the rows behind it, as in a batch without bad rows: the rows before it are given back when the
//! stage turns out to be slow ([`RowReclaimer`]). Rows that were given back are not run again here.

use std::ops::Range;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use caju_runtime::interrupt;
use caju_types::{Error, Result};
use caju_wire::{Run, slice_runs};

use super::{Made, RowReclaimer, RowSelection, RowStage};
use crate::context::TaskContext;

impl RowStage {
    /// Runs the stage over rows, without the bad ones if these are skipped.
    pub(super) fn run_or_skip(
        &self,
        ctx: &TaskContext,
        batch: &RecordBatch,
        runs: &[Run],
        reclaimer: Option<&mut dyn RowReclaimer>,
    ) -> Result<Made> {
        let mut left = RowsLeft { reclaimer, own: 0..batch.num_rows(), gave_back: false };
        let may_give_back = left.reclaimer.is_some();
        let reclaimer: Option<&mut dyn RowReclaimer> = if may_give_back { Some(&mut left) } else { None };
        match self.within_budget(ctx, batch, runs, reclaimer) {
            Ok(done) => Ok(done),
            Err(e) => {
                let located = self.locate(ctx, runs, &e);
                if e.row.is_none() || !ctx.skips() || !located.is_data_error() {
                    return Err(located);
                }
                if self.in_zip {
                    let why = "rows inside of a zip are not skipped, because it pairs rows by their numbers; put the stage below the zip";
                    return Err(located.context(why));
                }
                // Rows are given back once for each batch.
                let reclaimer = left.reclaimer.filter(|_| !left.gave_back);
                self.run_row_by_row(ctx, batch, runs, left.own, reclaimer)
            }
        }
    }

    /// Finds the bad rows among those of `own` by running each row alone.
    fn run_row_by_row(
        &self,
        ctx: &TaskContext,
        batch: &RecordBatch,
        runs: &[Run],
        own: Range<usize>,
        mut reclaimer: Option<&mut dyn RowReclaimer>,
    ) -> Result<Made> {
        let mut good = GoodRows::new(self, own);
        while !good.left.is_empty() {
            interrupt::check()?;
            let row = good.left.start;
            let (rows, run) = (batch.slice(row, 1), slice_runs(runs, row, 1));
            let done = match &mut reclaimer {
                Some(reclaimer) => {
                    let mut behind = RowsBehind { reclaimer: &mut **reclaimer, good: &mut good };
                    self.within_budget(ctx, &rows, &run, Some(&mut behind))
                }
                None => self.within_budget(ctx, &rows, &run, None),
            };
            match done {
                // The stage stopped before it began the row. The caller runs it again, with the rows behind it.
                Ok(made) if made.ran.is_empty() => break,
                Ok(made) => good.add(&made.batch)?,
                Err(e) => {
                    let located = self.locate(ctx, &run, &e);
                    if e.row.is_none() || !located.is_data_error() {
                        return Err(located);
                    }
                    let split = run.first().map_or(0, |r| r.split);
                    ctx.skip(self.stats, split, &located)?;
                }
            }
            good.left.start = row + 1;
        }
        good.take()
    }
}

/// What the stage made of the good ones among the first rows of a batch.
struct GoodRows<'a> {
    stage: &'a RowStage,
    began: Instant,
    pieces: Vec<RecordBatch>,
    /// The input row of each output row.
    kept: Vec<u32>,
    /// The first input row that is not given to the caller.
    start: usize,
    /// The input rows that are not done, with the current one.
    left: Range<usize>,
    /// Why rows could not be given back.
    failed: Option<Error>,
}

impl<'a> GoodRows<'a> {
    fn new(stage: &'a RowStage, rows: Range<usize>) -> Self {
        let (pieces, kept) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        Self { stage, began: Instant::now(), pieces, kept, start: rows.start, left: rows, failed: None }
    }

    /// Adds the output of the current row.
    fn add(&mut self, made: &RecordBatch) -> Result<()> {
        let row =
            u32::try_from(self.left.start).map_err(|_| Error::internal("a batch has more than 2^32 rows"))?;
        self.kept.extend(std::iter::repeat_n(row, made.num_rows()));
        self.pieces.push(made.clone());
        Ok(())
    }

    /// The rows before the current one that were not taken before.
    fn take(&mut self) -> Result<Made> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let batch = arrow::compute::concat_batches(&self.stage.schema, &self.pieces)
            .map_err(|e| Error::internal(format!("{}: {e}", self.stage.place)))?;
        self.pieces.clear();
        let kept = RowSelection::Rows(std::mem::take(&mut self.kept).into());
        let ran = std::mem::replace(&mut self.start, self.left.start)..self.left.start;
        Ok(Made { batch, kept, ran })
    }
}

/// Gives rows of a batch back, and keeps which ones the stage has left: those alone may be run again.
struct RowsLeft<'a> {
    reclaimer: Option<&'a mut dyn RowReclaimer>,
    own: Range<usize>,
    gave_back: bool,
}

impl RowReclaimer for RowsLeft<'_> {
    fn waiting(&mut self) {
        if let Some(reclaimer) = &mut self.reclaimer {
            reclaimer.waiting();
        }
    }

    fn working(&mut self) {
        if let Some(reclaimer) = &mut self.reclaimer {
            reclaimer.working();
        }
    }

    fn idled(&mut self, time: Duration) {
        if let Some(reclaimer) = &mut self.reclaimer {
            reclaimer.idled(time);
        }
    }

    fn take_back(&mut self, ready: Option<Made>, from: usize, took: Duration) {
        let Some(reclaimer) = &mut self.reclaimer else { return };
        if let Some(made) = &ready {
            self.own.start = made.ran.end;
        }
        self.own.end = from;
        self.gave_back = true;
        reclaimer.take_back(ready, from, took);
    }
}

/// Gives the good rows before the current one and all rows behind it back if the current one is slow.
struct RowsBehind<'a, 'b, 'c> {
    reclaimer: &'a mut (dyn RowReclaimer + 'b),
    good: &'a mut GoodRows<'c>,
}

impl RowReclaimer for RowsBehind<'_, '_, '_> {
    fn waiting(&mut self) {
        self.reclaimer.waiting();
    }

    fn working(&mut self) {
        self.reclaimer.working();
    }

    fn idled(&mut self, time: Duration) {
        self.reclaimer.idled(time);
    }

    fn take_back(&mut self, _: Option<Made>, _: usize, _: Duration) {
        let from = self.good.left.start + 1;
        let ready = if self.good.pieces.is_empty() { Ok(None) } else { self.good.take().map(Some) };
        let ready = ready.unwrap_or_else(|e| {
            self.good.failed = Some(e);
            None
        });
        self.good.left.end = from;
        self.reclaimer.take_back(ready, from, self.good.began.elapsed());
    }
}
