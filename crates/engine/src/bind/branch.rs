//! A bound branch of a pipeline: its source and its stages.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_sources::{RowPredicate, Source};

use super::order::StageOrder;
use super::steps::Step;

/// A source with the stages below it; each dataset of a combinator is a branch of its own.
pub(crate) struct Branch {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) kind: BranchKind,
    /// Source columns to read; all if absent. Only for leaves.
    pub(crate) projection: Option<Vec<usize>>,
    /// Filters that the source applies while it reads, instead of steps.
    pub(crate) predicates: Vec<RowPredicate>,
    /// Source columns whose dictionaries the source keeps: the first step is bound to them.
    pub(crate) dictionaries: Vec<usize>,
    pub(crate) children: Vec<Branch>,
    pub(crate) steps: Vec<Step>,
    /// The order in which the stages run.
    pub(super) order: StageOrder,
    /// The schema after each stage as it is written, hints included; the source's first.
    pub(crate) schemas: Vec<SchemaRef>,
    /// It is inside of a `zip`: its place there, as a number.
    pub(crate) in_zip: Option<u64>,
}

/// The kind of a branch's source.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BranchKind {
    Leaf,
    Concatenate,
    Sample { weights: Vec<f64>, seed: Option<u64> },
    Zip,
}

impl Branch {
    /// The schema of the branch's output.
    pub(crate) fn output(&self) -> SchemaRef {
        Arc::clone(&self.schemas[self.schemas.len() - 1])
    }
}
