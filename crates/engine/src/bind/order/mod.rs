//! The order in which the stages of a definition run.
//!
//! With the setting `reorder`, stages that shrink rows move up, and stages that grow them down, as in AutoOrder of the Pecan
//! paper (ATC'24): neighbours change places as long as the lower one shrinks rows more, and both orders give the same rows. A
//! stage leaves its *segment* never: the stages between two that nothing crosses (the source, a hint, a stage across splits).
//! So the rows at each hint, and what is stored there, are those of the written order.
//!
//! A stage keeps the position at which it is written: for its draws, its name in profiles, and messages.

mod effects;
mod size;

use std::collections::HashMap;

use arrow_schema::{DataType, SchemaRef};
use caju_pipeline::{DatasetDef, OnError, Reorder, StageOp};

use self::effects::Effects;
use self::size::Change;
use super::steps::Step;

/// The most stages of a segment that is reordered. The work grows with the square of it, and definitions come from clients.
const MAX_SEGMENT: usize = 64;

/// The order in which the stages of a definition run, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageOrder {
    /// For each place from the top, the index of a stage in the definition.
    pub stages: Vec<usize>,
    /// One sentence per stage that was moved.
    pub moved: Vec<String>,
    /// One sentence per stage that would have been moved further.
    pub kept: Vec<String>,
}

impl StageOrder {
    /// The written order.
    pub(super) fn written(def: &DatasetDef) -> Self {
        Self { stages: (0..def.stages.len()).collect(), ..Self::default() }
    }

    /// Whether stages run in the written order.
    pub fn is_written(&self) -> bool {
        self.stages.is_sorted()
    }

    /// The order and what was moved, for people; nothing unless the definition has the setting `reorder`.
    pub fn lines(&self, def: &DatasetDef) -> Vec<String> {
        if def.options.reorder.is_none() {
            return Vec::new();
        }
        let names = def.stage_names();
        let run: Vec<&str> = self.stages.iter().filter_map(|i| names.get(*i)).map(String::as_str).collect();
        let head = match self.is_written() {
            true => "order        as written".to_owned(),
            false => format!("order        {}", run.join(", ")),
        };
        let why = self.moved.iter().chain(&self.kept).map(|s| format!("  {s}"));
        std::iter::once(head).chain(why).collect()
    }

    /// The operators in this order.
    pub(super) fn ops<'d>(&self, def: &'d DatasetDef) -> Vec<&'d StageOp> {
        self.stages.iter().map(|&i| &def.stages[i].op).collect()
    }

    /// The written order, with a reason for it.
    pub(super) fn refused(def: &DatasetDef, why: &str) -> Self {
        Self { kept: vec![format!("no stage is moved: {why}")], ..Self::written(def) }
    }

    /// The order in which a definition runs whose stages were bound in the written order.
    pub(super) fn of(def: &DatasetDef, steps: &[Step], schemas: &[SchemaRef]) -> Self {
        let Some(reorder) = &def.options.reorder else { return Self::written(def) };
        if !matches!(def.options.on_error, OnError::Fail) {
            return Self::refused(
                def,
                "under `on_error: skip` it counts which rows a stage skips, and they would be others",
            );
        }
        let all = effects(def, reorder, steps, schemas);
        let mut order = Self::written(def);
        let mut at = 0;
        for segment in all.chunk_by(|a, b| a.is_some() == b.is_some()) {
            let known: Vec<(usize, &Effects)> =
                segment.iter().enumerate().filter_map(|(i, e)| Some((at + i, e.as_ref()?))).collect();
            if known.len() > 1 && known.len() <= MAX_SEGMENT {
                order.segment(def, &known, columns(&schemas[at]));
            }
            at += segment.len();
        }
        order
    }

    /// Orders the stages of one segment.
    fn segment(&mut self, def: &DatasetDef, known: &[(usize, &Effects)], input: Vec<String>) {
        let mut segment = Segment::new(known.to_vec(), input);
        while segment.pass(def) {}
        let names = def.stage_names();
        for (k, (stage, effects)) in segment.stages.iter().enumerate() {
            let shrinks = effects.size.change < Change::Same;
            // A pair is reported once: with the stage that shrinks rows, else with the one that grows them.
            let crossed = |(at, other): &(usize, &(usize, &Effects))| {
                let passed = if shrinks { *at > k && other.0 < *stage } else { *at < k && other.0 > *stage };
                passed && (shrinks || other.1.size.change >= Change::Same)
            };
            let others: Vec<&str> = segment
                .stages
                .iter()
                .enumerate()
                .filter(crossed)
                .map(|(_, other)| names[other.0].as_str())
                .collect();
            if !others.is_empty() {
                let side = if shrinks { "above" } else { "below" };
                let (name, why) = (&names[*stage], &effects.size.why);
                self.moved.push(format!("{name} runs {side} {}: {why}", others.join(", ")));
            }
            if shrinks && let Some(Err(why)) = segment.blocked(k, def) {
                self.kept.push(format!(
                    "{} stays below {}: {why}",
                    names[*stage],
                    names[segment.stages[k - 1].0]
                ));
            }
        }
        let first = known[0].0;
        for (k, (stage, _)) in segment.stages.iter().enumerate() {
            self.stages[first + k] = *stage;
        }
    }

    /// Checks an order by what was bound: the same columns between segments, and each stage reads the columns that it reads in
    /// the written order. The written order if not; it is not expected.
    pub(super) fn checked(self, def: &DatasetDef, written: Bound<'_>, reordered: Bound<'_>) -> Self {
        let mut highest = 0;
        let same_schemas = self.stages.iter().enumerate().all(|(k, &stage)| {
            highest = highest.max(stage);
            highest > k || written.schemas.get(k + 1) == reordered.schemas.get(k + 1)
        });
        let same_reads = reordered.rows().all(|(k, now)| {
            let Some(&stage) = self.stages.get(k) else { return false };
            let Some((_, before)) = written.rows().find(|(i, _)| *i == stage) else { return false };
            reads(before, &written.schemas[stage]) == reads(now, &reordered.schemas[k])
        });
        match same_schemas && same_reads {
            true => self,
            false => Self::refused(def, "the columns would have other types"),
        }
    }
}

/// Stages as they were bound, with the schemas before the first and after each.
#[derive(Clone, Copy)]
pub(super) struct Bound<'a> {
    pub(super) steps: &'a [Step],
    pub(super) schemas: &'a [SchemaRef],
}

impl<'a> Bound<'a> {
    /// The row stages with their places.
    fn rows(self) -> impl Iterator<Item = (usize, &'a crate::row::RowStage)> {
        self.steps.iter().filter_map(|s| match s {
            Step::Rows(r) => Some((r.stats.checked_sub(1)?, r.as_ref())),
            _ => None,
        })
    }
}

/// The columns that a stage reads, by their names, with their types and metadata.
fn reads<'a>(
    stage: &crate::row::RowStage,
    input: &'a SchemaRef,
) -> Vec<(&'a str, &'a DataType, &'a HashMap<String, String>)> {
    let field = |i: usize| input.fields().get(i).map(|f| (f.name().as_str(), f.data_type(), f.metadata()));
    let mut reads: Vec<_> = stage.reads().into_iter().filter_map(field).collect();
    reads.sort_by_key(|(name, ..)| *name);
    reads
}

/// The effects of each stage; none for one that nothing crosses.
fn effects(
    def: &DatasetDef,
    reorder: &Reorder,
    steps: &[Step],
    schemas: &[SchemaRef],
) -> Vec<Option<Effects>> {
    let names = def.stage_names();
    let mut out: Vec<Option<Effects>> = def.stages.iter().map(|_| None).collect();
    for step in steps {
        let stats = match step {
            Step::Rows(r) => r.stats,
            Step::Cost { stats, .. } => *stats,
            _ => continue,
        };
        let Some(i) = stats.checked_sub(1).filter(|i| *i < out.len()) else { continue };
        out[i] = Effects::of(&def.stages[i].op, step, &schemas[i], reorder.measured.get(&names[i]).copied());
    }
    out
}

fn columns(schema: &SchemaRef) -> Vec<String> {
    schema.fields().iter().map(|f| f.name().clone()).collect()
}

/// Stages that may change places.
struct Segment<'e> {
    stages: Vec<(usize, &'e Effects)>,
    /// The columns above each of them.
    above: Vec<Vec<String>>,
}

fn columns_below(stage: &Effects, above: &[String]) -> Vec<String> {
    stage.apply(above).unwrap_or_else(|| above.to_vec())
}

impl<'e> Segment<'e> {
    fn new(stages: Vec<(usize, &'e Effects)>, input: Vec<String>) -> Self {
        let mut above = vec![input];
        for (k, (_, effects)) in stages.iter().enumerate() {
            above.push(columns_below(effects, &above[k]));
        }
        Self { stages, above }
    }

    /// Exchanges neighbours once from top to bottom. Returns whether any changed places.
    fn pass(&mut self, def: &DatasetDef) -> bool {
        let mut moved = false;
        for k in 1..self.stages.len() {
            if let Some(Ok(())) = self.blocked(k, def) {
                // The columns above and below the two stay.
                self.above[k] = columns_below(self.stages[k].1, &self.above[k - 1]);
                self.stages.swap(k - 1, k);
                moved = true;
            }
        }
        moved
    }

    /// Whether the stage at `k` may change places with the one above it; none if there is no reason to.
    fn blocked(&self, k: usize, def: &DatasetDef) -> Option<Result<(), String>> {
        let [.., (above, upper), (_, lower)] = self.stages.get(..=k)? else { return None };
        if lower.size.change >= upper.size.change {
            return None;
        }
        let it = format!("{above}.{}", def.stages[*above].op.name());
        Some(lower.may_cross(upper, &self.above[k - 1], &it))
    }
}
