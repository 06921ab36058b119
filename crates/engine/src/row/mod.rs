//! Row stages: operators over single rows, run over whole batches.
//!
//! A row stage is bound once and run by many threads. It never reorders rows: it keeps, drops or repeats them, and returns
//! which ([`RowSelection`]), so that the caller can update the provenance.

mod cast;
mod check;
mod cost;
mod inflate;
mod nested;
mod python;
mod skip;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::compute::{filter_record_batch, prep_null_mask_filter};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use caju_kernels::{BoundExprs, RowError};
use caju_pipeline::Feature;
use caju_runtime::budget;
use caju_sources::parse_example;
use caju_types::{Error, ErrorKind, Result};
use caju_wire::{Run, push_run};

pub(crate) use check::{RowCheck, lengths};
pub(crate) use cost::artificial_delay;
pub(crate) use inflate::{inflate, inflated_field};
pub(crate) use nested::{unnest, unnested_schema};
pub(crate) use python::PythonStage;

use crate::context::TaskContext;
use crate::hidden::without_hidden_values;

/// A bound row stage.
pub(crate) struct RowStage {
    pub(crate) op: RowOp,
    /// Its place in the definition, for messages: `steps[3].map`.
    pub(crate) place: String,
    /// Its position not counting hints, which enters the keys of random functions.
    pub(crate) position: u32,
    /// The schema of its output.
    pub(crate) schema: SchemaRef,
    /// Index of its counters.
    pub(crate) stats: usize,
    /// It is inside of a `zip`, which pairs rows by their numbers: a row that it left out would pair all rows behind it wrongly,
    /// so a bad row is an error also under `on_error: skip`.
    pub(crate) in_zip: bool,
}

/// One column of a projection's output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OutColumn {
    /// An input column, unchanged.
    Input(usize),
    /// The n-th expression.
    Expr(usize),
}

pub(crate) enum RowOp {
    /// tf.train.Example records to columns.
    Parse { column: usize, features: Vec<(String, Feature)> },
    /// `map`, `with_columns`, `select`.
    Project { exprs: Option<BoundExprs>, out: Vec<OutColumn> },
    /// Keeps the rows for which the first expression is true.
    Filter(BoundExprs),
    /// `unnest` (the list is an input column) and `flat_map` (the list is an expression).
    Unnest { list: OutColumn, exprs: Option<BoundExprs>, at: usize },
    /// A user's function.
    Python(PythonStage),
    /// Makes values longer.
    Inflate { column: usize, factor: f64 },
    /// Passes all rows on, and fails for those that the stream stage below cannot take. It has the counters of that stage.
    Check(RowCheck),
}

/// What a stage made of rows.
pub(crate) struct Made {
    /// The output.
    pub(crate) batch: RecordBatch,
    /// Which of the rows that it ran over are in it.
    pub(crate) kept: RowSelection,
    /// The rows that it ran over: all, or a part, if it gave the others back.
    pub(crate) ran: Range<usize>,
}

/// Takes rows that a slow stage has not begun back from it, for other threads.
pub(crate) trait RowReclaimer {
    /// The stage waits for something other than its own work: no row is being computed.
    fn waiting(&mut self);

    /// A row is being computed.
    fn working(&mut self);

    /// The stage spent this time without work.
    fn idled(&mut self, time: Duration);

    /// These rows are ready, if any are, and the rows from `from` on were not begun and stay with the caller. `took` is the
    /// time of the rows before `from`.
    fn take_back(&mut self, ready: Option<Made>, from: usize, took: Duration);
}

/// Which input rows are in the output.
#[derive(Debug, Clone)]
pub(crate) enum RowSelection {
    /// All, once each.
    All,
    /// These, in order.
    Mask(BooleanArray),
    /// These input rows, in order, possibly repeated.
    Rows(UInt32Array),
}

impl RowSelection {
    /// Appends the rows that are in the output, as (offset, length), to those of the rows above. The input begins at row `at`;
    /// `ran` are the rows of it that were run.
    pub(crate) fn add_parts(&self, at: usize, ran: Range<usize>, parts: &mut Vec<(usize, usize)>) {
        let mut add = |row: usize, rows: usize| match parts.last_mut() {
            Some((offset, len)) if *offset + *len == at + row => *len += rows,
            _ => parts.push((at + row, rows)),
        };
        match self {
            Self::All => add(ran.start, ran.len()),
            Self::Mask(mask) => {
                (0..mask.len())
                    .filter(|&row| mask.is_valid(row) && mask.value(row))
                    .for_each(|row| add(row, 1));
            }
            Self::Rows(rows) => rows.values().iter().for_each(|row| add(*row as usize, 1)),
        }
    }
}

impl RowStage {
    /// Whether the stage draws random numbers.
    pub(crate) fn is_random(&self) -> bool {
        match &self.op {
            RowOp::Project { exprs, .. } | RowOp::Unnest { exprs, .. } => {
                exprs.as_ref().is_some_and(BoundExprs::is_random)
            }
            RowOp::Filter(e) => e.is_random(),
            RowOp::Python(f) => f.is_random(),
            _ => false,
        }
    }

    /// Whether rows may be dropped or repeated, so that ordinals below the stage differ from those above.
    pub(crate) fn changes_ordinals(&self) -> bool {
        match &self.op {
            RowOp::Filter(_) | RowOp::Unnest { .. } => true,
            RowOp::Python(f) => f.changes_ordinals(),
            _ => false,
        }
    }

    /// Whether rows may be repeated: several rows below the stage then have one ordinal.
    pub(crate) fn repeats_rows(&self) -> bool {
        match &self.op {
            RowOp::Unnest { .. } => true,
            RowOp::Python(f) => f.repeats_rows(),
            _ => false,
        }
    }

    /// Runs the stage over rows whose provenance is `runs`. A stage that is slow may give rows back to `reclaimer`.
    pub(crate) fn run(
        &self,
        ctx: &TaskContext,
        batch: &RecordBatch,
        runs: &[Run],
        reclaimer: Option<&mut dyn RowReclaimer>,
    ) -> Result<Made> {
        let counters = ctx.stats.stage(self.stats);
        let running = || counters.timed(|| self.run_or_skip(ctx, batch, runs, reclaimer));
        let result = caju_runtime::catch(&self.place, running).unwrap_or_else(|e| {
            let rows = runs.first().map(|r| ctx.place(r.split, r.start));
            Err(e.context(rows.map_or_else(|| "a batch".into(), |first| format!("a batch from {first} on"))))
        });
        if let Ok(made) = &result {
            self.count(ctx, made);
        }
        result
    }

    /// Counts rows that passed.
    pub(crate) fn count(&self, ctx: &TaskContext, made: &Made) {
        if matches!(self.op, RowOp::Check(_)) {
            // The stage below counts its rows.
            return;
        }
        let (rows, bytes) = (made.batch.num_rows(), caju_wire::batch_bytes(&made.batch));
        ctx.stats.stage(self.stats).moved(made.ran.len(), rows, bytes);
    }

    /// Runs the stage within the memory limit of a chunk. A single row that needs more is a bad row. Several rows that need
    /// more together are a `ResourceExhausted` error without a row.
    fn within_budget(
        &self,
        ctx: &TaskContext,
        batch: &RecordBatch,
        runs: &[Run],
        reclaimer: Option<&mut dyn RowReclaimer>,
    ) -> Result<Made, RowError> {
        let done =
            budget::scope(ctx.chunk_bytes, || self.apply(ctx, batch, runs, reclaimer)).and_then(|made| {
                let bytes = self.limited_bytes(ctx, &made);
                if bytes <= ctx.chunk_bytes || made.batch.num_rows() == 0 {
                    return Ok(made);
                }
                Err(whole(budget::too_much(
                    &format_args!("the result of {} rows", made.ran.len()),
                    bytes,
                    ctx.chunk_bytes,
                )))
            });
        done.map_err(|e| match (e.error.kind(), batch.num_rows()) {
            // The error of a function whose process died names the row already.
            _ if !self.may_be_cut() && e.row.is_some() => e,
            (ErrorKind::ResourceExhausted, 1) => {
                RowError { row: Some(0), error: Error::invalid(e.error.message()) }
            }
            (ErrorKind::ResourceExhausted, _) => whole(e.error),
            _ => e,
        })
    }

    /// The bytes of a result that count for the memory limit of a chunk.
    ///
    /// Under `on_error: skip` a single row above the limit is skipped. Of such a row, columns that the stage passes on unchanged
    /// do not count: it depends on hints and policies which of them are read, and which rows there are must not depend on these.
    fn limited_bytes(&self, ctx: &TaskContext, made: &Made) -> u64 {
        let all = caju_wire::batch_bytes(&made.batch);
        if !ctx.skips() || made.ran.len() != 1 {
            return all as u64;
        }
        let columns = made.batch.num_columns();
        let is_passed_on = |column: usize| match &self.op {
            RowOp::Filter(_) | RowOp::Check(_) => true,
            RowOp::Inflate { column: inflated, .. } => column != *inflated,
            RowOp::Project { out, .. } => matches!(out.get(column), Some(OutColumn::Input(_))),
            RowOp::Parse { .. } | RowOp::Unnest { .. } | RowOp::Python(_) => false,
        };
        let computed: Vec<usize> = (0..columns).filter(|column| !is_passed_on(*column)).collect();
        made.batch.project(&computed).map_or(all, |computed| caju_wire::batch_bytes(&computed)) as u64
    }

    /// Whether rows that need too much memory together may be run again in two halves. Users' functions may have side
    /// effects, so they may not.
    pub(crate) fn may_be_cut(&self) -> bool {
        !matches!(self.op, RowOp::Python(_))
    }

    fn locate(&self, ctx: &TaskContext, runs: &[Run], e: &RowError) -> Error {
        let mut row = e.row.unwrap_or(0) as u64;
        for run in runs {
            if row < run.len && e.row.is_some() {
                return e.error.clone().context(format!(
                    "{}: {}",
                    self.place,
                    ctx.place(run.split, run.start + row)
                ));
            }
            row = row.saturating_sub(run.len);
        }
        match (&self.op, e.row, runs.first()) {
            // What a function did wrong with a whole batch.
            (RowOp::Python(_), None, Some(first)) => {
                let rows = runs.iter().map(|run| run.len).sum::<u64>();
                let at = ctx.place(first.split, first.start);
                e.error.clone().context(format!("{}: {rows} rows from {at} on", self.place))
            }
            _ => e.error.clone().context(&self.place),
        }
    }

    fn apply(
        &self,
        ctx: &TaskContext,
        batch: &RecordBatch,
        runs: &[Run],
        reclaimer: Option<&mut dyn RowReclaimer>,
    ) -> Result<Made, RowError> {
        let (made, kept) = match &self.op {
            RowOp::Parse { column, features } => {
                let records = batch.column(*column);
                let records = records.as_binary_opt::<i32>().ok_or_else(|| {
                    whole(Error::invalid(format!(
                        "parse_example needs binary records, the column is {}",
                        records.data_type()
                    )))
                })?;
                let columns = parse_example(records, features)
                    .map_err(|(row, error)| RowError { row: Some(row), error })?;
                (self.batch(columns, batch.num_rows())?, RowSelection::All)
            }
            RowOp::Project { exprs, out } => {
                let values = self.evaluate(ctx, exprs.as_ref(), batch, runs)?;
                let columns = out.iter().map(|c| pick(*c, batch, &values)).collect();
                let made = self.batch(columns, batch.num_rows())?;
                // A `case` leaves the fields of a struct that it makes null as they are.
                (without_hidden_values(made).map_err(whole)?, RowSelection::All)
            }
            RowOp::Filter(predicate) => {
                let values = self.evaluate(ctx, Some(predicate), batch, runs)?;
                let mask = values[0]
                    .as_boolean_opt()
                    .ok_or_else(|| whole(Error::internal("a filter is not boolean")))?;
                let mask = if mask.null_count() > 0 { prep_null_mask_filter(mask) } else { mask.clone() };
                if mask.true_count() == mask.len() {
                    (batch.clone(), RowSelection::All)
                } else {
                    let out = filter_record_batch(batch, &mask)
                        .map_err(|e| whole(Error::internal(e.to_string())))?;
                    (out, RowSelection::Mask(mask))
                }
            }
            RowOp::Unnest { list, exprs, at } => {
                let values = self.evaluate(ctx, exprs.as_ref(), batch, runs)?;
                let list = pick(*list, batch, &values);
                let (out, rows) = unnest(batch, &list, *at, &self.schema).map_err(whole)?;
                (out, RowSelection::Rows(rows))
            }
            RowOp::Python(f) => {
                let keys = f.is_random().then(|| ctx.keys(self.position, runs));
                return f.run(batch, keys.as_ref(), reclaimer);
            }
            RowOp::Check(check) => {
                check.run(batch)?;
                (batch.clone(), RowSelection::All)
            }
            RowOp::Inflate { column, factor } => {
                let mut columns = batch.columns().to_vec();
                columns[*column] =
                    inflate(&columns[*column], *factor, self.schema.field(*column)).map_err(whole)?;
                (self.batch(columns, batch.num_rows())?, RowSelection::All)
            }
        };
        Ok(Made { batch: made, kept, ran: 0..batch.num_rows() })
    }

    fn evaluate(
        &self,
        ctx: &TaskContext,
        exprs: Option<&BoundExprs>,
        batch: &RecordBatch,
        runs: &[Run],
    ) -> Result<Vec<ArrayRef>, RowError> {
        let Some(exprs) = exprs else { return Ok(Vec::new()) };
        let keys = exprs.is_random().then(|| ctx.keys(self.position, runs));
        exprs.evaluate(batch, keys.as_ref())
    }

    fn batch(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, RowError> {
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| whole(Error::internal(format!("{}: {e}", self.place))))
    }
}

fn whole(error: Error) -> RowError {
    RowError { row: None, error }
}

fn pick(column: OutColumn, batch: &RecordBatch, values: &[ArrayRef]) -> ArrayRef {
    match column {
        OutColumn::Input(i) => Arc::clone(batch.column(i)),
        OutColumn::Expr(i) => Arc::clone(&values[i]),
    }
}

impl RowSelection {
    /// Provenance of the kept rows: each keeps the ordinal that it had.
    pub(crate) fn runs(&self, runs: &[Run]) -> Vec<Run> {
        match self {
            RowSelection::All => runs.to_vec(),
            RowSelection::Mask(mask) => {
                let mut out = Vec::new();
                let mut at = 0usize;
                for run in runs {
                    let len = usize::try_from(run.len).unwrap_or(0);
                    let part = mask.slice(at, len);
                    for (s, e) in part.values().set_slices() {
                        push_run(
                            &mut out,
                            Run { split: run.split, start: run.start + s as u64, len: (e - s) as u64 },
                        );
                    }
                    at += len;
                }
                out
            }
            RowSelection::Rows(rows) => {
                let mut out = Vec::new();
                let mut index = runs.iter().scan(0u64, |at, r| {
                    let start = *at;
                    *at += r.len;
                    Some((start, *r))
                });
                let mut current = index.next();
                for &row in rows.values() {
                    let row = u64::from(row);
                    while let Some((start, run)) = current {
                        if row < start + run.len {
                            push_run(
                                &mut out,
                                Run { split: run.split, start: run.start + row - start, len: 1 },
                            );
                            break;
                        }
                        current = index.next();
                    }
                }
                out
            }
        }
    }
}
