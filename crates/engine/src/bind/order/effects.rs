//! What a stage does to rows, as far as it decides whether two stages may change places.

use std::collections::{BTreeSet, HashSet};

use arrow_schema::Schema;
use caju_kernels::BoundExprs;
use caju_pipeline::StageOp;

use super::size::{Size, size};
use crate::bind::steps::Step;
use crate::row::{OutColumn, RowOp, RowStage};

/// What a stage does to rows.
pub(super) struct Effects {
    /// The columns on which its results depend; none: any column.
    reads: Option<BTreeSet<String>>,
    /// The columns that it computes, in the order in which new ones are added.
    writes: Vec<String>,
    /// All columns of its output, if it does not pass on every column.
    only: Option<Vec<String>>,
    rows: Rows,
    is_random: bool,
    is_infallible: bool,
    is_python: bool,
    /// What it does to the size of rows.
    pub(super) size: Size,
}

/// What a stage does to the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Keeps,
    /// Some rows are left out.
    Drops,
    /// A row becomes any number of rows.
    Multiplies,
}

impl Effects {
    /// Those of a bound stage; none for a stage that nothing may cross.
    pub(super) fn of(op: &StageOp, step: &Step, input: &Schema, measured: Option<f64>) -> Option<Self> {
        match (op, step) {
            (StageOp::Sleep(_) | StageOp::Burn(_), Step::Cost { .. }) => Some(Self::nothing(Size::same())),
            // Its results depend on which rows come together.
            (StageOp::Python(f), _) if f.batched => None,
            (_, Step::Rows(stage)) if matches!(stage.op, RowOp::Check(_)) => None,
            (_, Step::Rows(stage)) => Some(Self {
                is_random: stage.is_random(),
                ..Self::of_rows(op, stage, input, size(op, stage, input, measured))
            }),
            _ => None,
        }
    }

    /// Those of a stage that changes nothing.
    fn nothing(size: Size) -> Self {
        Self {
            reads: Some(BTreeSet::new()),
            writes: Vec::new(),
            only: None,
            rows: Rows::Keeps,
            is_random: false,
            is_infallible: true,
            is_python: false,
            size,
        }
    }

    fn of_rows(op: &StageOp, stage: &RowStage, input: &Schema, size: Size) -> Self {
        let name = |i: usize| input.field(i).name().clone();
        let one = |i: usize| BTreeSet::from([name(i)]);
        let output = || stage.schema.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
        let plain = Self { is_infallible: false, ..Self::nothing(size) };
        match &stage.op {
            RowOp::Parse { column, .. } => {
                Self { reads: Some(one(*column)), writes: output(), only: Some(output()), ..plain }
            }
            RowOp::Project { exprs, out } => {
                let closes = matches!(op, StageOp::Map(_) | StageOp::Select(_));
                Self::of_projection(exprs.as_ref(), out, stage, input, closes, plain)
            }
            RowOp::Filter(test) => Self {
                reads: Some(test.columns().iter().map(|&i| name(i)).collect()),
                rows: Rows::Drops,
                is_infallible: test.is_infallible(),
                ..plain
            },
            RowOp::Unnest { list, exprs, at } => {
                let mut reads: BTreeSet<String> =
                    exprs.iter().flat_map(|e| e.columns()).map(|&i| name(i)).collect();
                if let OutColumn::Input(i) = list {
                    reads.insert(name(*i));
                }
                let writes = vec![stage.schema.field(*at).name().clone()];
                Self { reads: Some(reads), writes, rows: Rows::Multiplies, ..plain }
            }
            RowOp::Python(f) => {
                let rows = match op {
                    StageOp::Python(p) => match p.kind {
                        caju_pipeline::PythonKind::Map => Rows::Keeps,
                        caju_pipeline::PythonKind::Filter => Rows::Drops,
                        caju_pipeline::PythonKind::FlatMap => Rows::Multiplies,
                    },
                    _ => Rows::Multiplies,
                };
                let reads = f.reads().map(|columns| columns.iter().map(|&i| name(i)).collect());
                let filters = rows == Rows::Drops;
                let writes = if filters { Vec::new() } else { without(output(), f.keeps()) };
                let only = (!filters).then(output);
                Self { reads, writes, only, rows, is_python: true, ..plain }
            }
            RowOp::Check(_) => plain,
            RowOp::Inflate { column, .. } => {
                Self { reads: Some(one(*column)), writes: vec![name(*column)], ..plain }
            }
        }
    }

    fn of_projection(
        exprs: Option<&BoundExprs>,
        out: &[OutColumn],
        stage: &RowStage,
        input: &Schema,
        closes: bool,
        plain: Self,
    ) -> Self {
        let name = |i: usize| input.field(i).name().clone();
        let passed = exprs.map(BoundExprs::passed).unwrap_or_default();
        let mut reads: BTreeSet<String> =
            exprs.map(BoundExprs::computed_from).unwrap_or_default().into_iter().map(name).collect();
        let mut writes = Vec::new();
        for (column, field) in out.iter().zip(stage.schema.fields()) {
            let source = match column {
                OutColumn::Input(i) => Some(*i),
                OutColumn::Expr(i) => passed.get(*i).copied().flatten(),
            };
            match source {
                // The column stays what it is.
                Some(i) if input.field(i) == field.as_ref() => {}
                // A copy under another name.
                source => {
                    reads.extend(source.map(name));
                    writes.push(field.name().clone());
                }
            }
        }
        let only = closes.then(|| stage.schema.fields().iter().map(|f| f.name().clone()).collect());
        let is_infallible = exprs.is_none_or(BoundExprs::is_infallible);
        Self { reads: Some(reads), writes, only, is_infallible, ..plain }
    }

    /// The columns of its output for an input of these columns; none if it does not find what it needs.
    pub(super) fn apply(&self, input: &[String]) -> Option<Vec<String>> {
        let known: HashSet<&String> = input.iter().collect();
        let has = |name: &String| known.contains(name);
        if !self.reads.iter().flatten().all(has) {
            return None;
        }
        match &self.only {
            Some(all) => all.iter().all(|n| self.writes.contains(n) || has(n)).then(|| all.clone()),
            None => {
                let new = self.writes.iter().filter(|n| !has(n)).cloned();
                Some(input.iter().cloned().chain(new).collect())
            }
        }
    }

    /// Whether this stage may run directly above `above`, which is written directly above it and gets these columns: the rows
    /// below both are the same, and no row fails that would not fail in the written order.
    ///
    /// # Errors
    /// Why not, as the end of a sentence about this stage. `it` is the other stage's name.
    pub(super) fn may_cross(&self, above: &Self, input: &[String], it: &str) -> Result<(), String> {
        self.independent_of(above, it)?;
        if self.is_random && above.rows != Rows::Keeps {
            return Err(format!("{it} changes the numbers of rows, by which this stage draws"));
        }
        if above.is_random && self.rows != Rows::Keeps {
            return Err(format!("{it} draws by the numbers of rows, which this stage changes"));
        }
        if self.rows == Rows::Multiplies && above.rows == Rows::Multiplies {
            return Err(format!("{it} multiplies rows too, and their order would change"));
        }
        if above.rows != Rows::Keeps && !self.is_infallible {
            return Err(format!("{it} drops rows at which this stage might fail"));
        }
        let run = |first: &Self, second: &Self| first.apply(input).and_then(|names| second.apply(&names));
        match (run(above, self), run(self, above)) {
            (Some(written), Some(swapped)) if written == swapped => Ok(()),
            _ => Err(format!("the columns below {it} would not be the same")),
        }
    }

    /// Checks that neither stage computes what the other one reads or computes.
    fn independent_of(&self, above: &Self, it: &str) -> Result<(), String> {
        let way_out = if above.is_python { "; `keeps` names columns that a function passes on" } else { "" };
        let Some(reads) = &self.reads else {
            return match above.writes.is_empty() && above.only.is_none() {
                true => Ok(()),
                false => Err(format!(
                    "it may read any column, and {it} changes some; `reads` names those that it reads"
                )),
            };
        };
        if let Some(column) = above.writes.iter().find(|n| reads.contains(*n)) {
            return Err(format!("it reads `{column}`, which {it} computes{way_out}"));
        }
        match &above.reads {
            None if !self.writes.is_empty() || self.only.is_some() => {
                return Err(format!("{it} may read any column, and this stage changes some"));
            }
            Some(read) if self.writes.iter().any(|n| read.contains(n)) => {
                return Err(format!("{it} reads a column that this stage computes"));
            }
            _ => {}
        }
        match self.writes.iter().find(|n| above.writes.contains(n)) {
            Some(column) => Err(format!("{it} computes `{column}` too{way_out}")),
            None => Ok(()),
        }
    }
}

fn without(names: Vec<String>, kept: &[String]) -> Vec<String> {
    names.into_iter().filter(|n| !kept.contains(n)).collect()
}
