//! Which columns a branch has, and which of its source it reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{FieldRef, Schema, SchemaRef};
use caju_kernels::differing_tensors;
use caju_pipeline::{DatasetDef, FileFormat, SourceDef, StageOp};
use caju_types::{Error, Result};

use super::branch::Branch;
use super::steps::Step;

/// The columns whose types a source's reader inferred from the first rows of its first file. No fingerprint covers them,
/// because the first file depends on the listing.
pub(super) fn found_columns(def: &DatasetDef, branch: &Branch) -> Option<String> {
    let finds = |f: &FileFormat| {
        matches!(f, FileFormat::Csv { schema: None, .. } | FileFormat::Json { schema: None, .. })
    };
    let (own, children): (bool, &[DatasetDef]) = match &def.source {
        SourceDef::Files(files) => (finds(&files.format), &[]),
        SourceDef::Concatenate(c) | SourceDef::Zip(c) => (false, c),
        SourceDef::Sample { datasets, .. } => (false, datasets),
        _ => (false, &[]),
    };
    let columns = branch.schemas[0].fields().iter().map(|f| format!("{:?} {}", f.name(), f.data_type()));
    let own = own.then(|| columns.collect::<Vec<_>>().join(", "));
    let below = children.iter().zip(&branch.children).filter_map(|(d, b)| found_columns(d, b));
    let all: Vec<String> = own.into_iter().chain(below).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The source columns that stages read, if some stage passes on named columns only; `None`: all.
pub(super) fn needed_columns(
    ops: &[&StageOp],
    input: &Schema,
    steps: &[Step],
    keep_hints: bool,
) -> Option<BTreeSet<usize>> {
    let width = input.fields().len();
    let mut needed = BTreeSet::new();
    let mut rows = steps.iter().filter_map(|s| match s {
        Step::Rows(r) => Some(r),
        _ => None,
    });
    for op in ops.iter().copied() {
        match op {
            StageOp::Autocache { .. } if keep_hints => return None,
            StageOp::Autocache { .. } | StageOp::Sleep(_) | StageOp::Burn(_) => continue,
            StageOp::BucketByLength { .. } | StageOp::PaddedBatch { .. } => return None,
            StageOp::Unnest { .. } | StageOp::FlatMap { .. } | StageOp::Python(_) => return None,
            op if !op.is_split_local() => continue,
            _ => {}
        }
        let bound = rows.next()?;
        let closes = matches!(op, StageOp::Map(_) | StageOp::Select(_) | StageOp::ParseExample { .. });
        // Columns with higher indices were added by an earlier stage.
        needed.extend(bound.reads().into_iter().filter(|&i| i < width));
        if closes {
            // Not every format can read rows without columns.
            if needed.is_empty() {
                needed.insert(0);
            }
            return (needed.len() < width).then_some(needed);
        }
    }
    None
}

/// The columns that all datasets have, of the same types in the same order. A column may have nulls if it may in one of them.
pub(super) fn common_schema(children: &[Branch], place: &str) -> Result<SchemaRef> {
    let first =
        children.first().ok_or_else(|| Error::invalid(format!("{place}source: no datasets")))?.output();
    for (i, child) in children.iter().enumerate().skip(1) {
        let other = child.output();
        for f in first.fields() {
            match other.field_with_name(f.name()) {
                Ok(g) if g.data_type() == f.data_type() => {
                    // The shape of a tensor is no part of its data type.
                    if let Some((first, other)) = differing_tensors(f, g) {
                        return Err(Error::invalid(format!(
                            "{place}source: datasets must have the same columns: `{}` has {first} in dataset 0 and {other} in \
                             dataset {i}; give both the same shape",
                            f.name()
                        )));
                    }
                }
                Ok(g) => {
                    return Err(Error::invalid(format!(
                        "{place}source: datasets must have the same columns: `{}` is {} in dataset 0 and {} in dataset {i}; cast one of them",
                        f.name(),
                        f.data_type(),
                        g.data_type()
                    )));
                }
                Err(_) => {
                    return Err(Error::invalid(format!(
                        "{place}source: datasets must have the same columns: `{}` of dataset 0 is missing in dataset {i}; use `select` or `map` in both",
                        f.name()
                    )));
                }
            }
        }
        if other.fields().len() != first.fields().len()
            || first.fields().iter().zip(other.fields()).any(|(a, b)| a.name() != b.name())
        {
            return Err(Error::invalid(format!(
                "{place}source: datasets must have the same columns in the same order; dataset {i} has others than dataset 0: use `select` in both"
            )));
        }
    }
    let may_be_null = |at: usize| children.iter().any(|child| child.output().field(at).is_nullable());
    let field = |(at, f): (usize, &FieldRef)| match f.is_nullable() {
        false if may_be_null(at) => Arc::new(f.as_ref().clone().with_nullable(true)),
        _ => Arc::clone(f),
    };
    let fields: Vec<FieldRef> = first.fields().iter().enumerate().map(field).collect();
    Ok(Arc::new(Schema::new_with_metadata(fields, first.metadata().clone())))
}

/// The columns of the first dataset, then those of the second one, and so on.
pub(super) fn zipped_schema(children: &[Branch], place: &str) -> Result<SchemaRef> {
    let mut fields = Vec::new();
    let mut names = BTreeSet::new();
    for child in children {
        for f in child.output().fields() {
            if !names.insert(f.name().clone()) {
                return Err(Error::invalid(format!(
                    "{place}source.zip: two datasets have a column `{}`; rename one with `map`",
                    f.name()
                )));
            }
            fields.push(Arc::clone(f));
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}
