//! Columns of which the source keeps the dictionaries of its files, because the first stage only hashes their values.
//!
//! A text that many rows have is then copied and hashed once for a batch, and not for each of them.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use caju_sources::RowPredicate;
use caju_types::Result;

use super::steps::Step;
use crate::row::{OutColumn, RowOp};

/// Steps that are bound to the source's own types.
pub(super) struct Plain<'a> {
    pub(super) steps: Vec<Step>,
    pub(super) predicates: Vec<RowPredicate>,
    /// The columns that are read.
    pub(super) input: &'a SchemaRef,
    /// Which columns of the source these are; all if absent.
    pub(super) needed: Option<&'a [usize]>,
}

/// Steps, and the columns of the source whose dictionaries they take.
pub(super) struct Kept {
    pub(super) steps: Vec<Step>,
    pub(super) predicates: Vec<RowPredicate>,
    pub(super) dictionaries: Vec<usize>,
}

impl From<Plain<'_>> for Kept {
    fn from(plain: Plain<'_>) -> Self {
        Self { steps: plain.steps, predicates: plain.predicates, dictionaries: Vec::new() }
    }
}

impl Plain<'_> {
    /// The steps, bound to dictionaries where the first of them only hashes values. They stay as they are where that cannot be.
    pub(super) fn keeping(
        self,
        bind: impl Fn(&SchemaRef) -> Result<Vec<Step>>,
        push: impl Fn(&mut Vec<Step>) -> Result<Vec<RowPredicate>>,
    ) -> Kept {
        // The decoder gives predicates the columns as it gives them to the rows.
        let is_tested = |column: usize| {
            self.of_source(column).is_some_and(|i| self.predicates.iter().any(|p| p.columns.contains(&i)))
        };
        let mut hashed = only_hashed(&self.steps, self.input);
        hashed.retain(|&column| !is_tested(column));
        if hashed.is_empty() {
            return self.into();
        }
        let input = with_dictionaries(self.input, &hashed);
        let Ok(mut steps) = bind(&input) else { return self.into() };
        let Ok(predicates) = push(&mut steps) else { return self.into() };
        // A function that takes no dictionary would make the column plain for each batch.
        let still = only_hashed_dictionaries(&steps, &input);
        if !is_same(&steps, &self.steps) || !hashed.iter().all(|column| still.contains(column)) {
            return self.into();
        }
        let dictionaries = hashed.iter().filter_map(|&column| self.of_source(column)).collect();
        Kept { steps, predicates, dictionaries }
    }

    fn of_source(&self, column: usize) -> Option<usize> {
        self.needed.map_or(Some(column), |needed| needed.get(column).copied())
    }
}

/// The type of a text column with its dictionary.
fn kept_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The columns that the first step reads only as values to hash, and does not pass on.
fn only_hashed_columns(steps: &[Step]) -> Vec<usize> {
    let Some(Step::Rows(first)) = steps.first() else { return Vec::new() };
    let RowOp::Project { exprs: Some(exprs), out } = &first.op else { return Vec::new() };
    let passes = |column: usize| out.iter().any(|o| matches!(o, OutColumn::Input(i) if *i == column));
    exprs.only_hashed().into_iter().filter(|&column| !passes(column)).collect()
}

fn of_type(columns: Vec<usize>, input: &Schema, of: &DataType) -> Vec<usize> {
    let is_of = |&column: &usize| input.fields().get(column).is_some_and(|f| f.data_type() == of);
    columns.into_iter().filter(is_of).collect()
}

/// The texts among these columns.
fn only_hashed(steps: &[Step], input: &Schema) -> Vec<usize> {
    of_type(only_hashed_columns(steps), input, &DataType::Utf8)
}

/// The texts with dictionaries among these columns.
fn only_hashed_dictionaries(steps: &[Step], input: &Schema) -> Vec<usize> {
    of_type(only_hashed_columns(steps), input, &kept_type())
}

/// The schema with dictionaries in these columns.
fn with_dictionaries(input: &Schema, columns: &[usize]) -> SchemaRef {
    let fields = input.fields().iter().enumerate().map(|(i, field)| match columns.contains(&i) {
        true => Arc::new(field.as_ref().clone().with_data_type(kept_type())),
        false => Arc::clone(field),
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), input.metadata().clone()))
}

/// Whether the rows of steps that were bound to dictionaries have the columns of those that were not.
fn is_same(steps: &[Step], plain: &[Step]) -> bool {
    let schema = |steps: &[Step]| match steps.first() {
        Some(Step::Rows(first)) => Some(Arc::clone(&first.schema)),
        _ => None,
    };
    steps.len() == plain.len() && schema(steps) == schema(plain)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use caju_kernels::{Limits, Registry};
    use caju_runtime::{IoCounters, Stores};
    use caju_sources::SourceContext;
    use parquet::arrow::ArrowWriter;

    use super::*;

    #[tokio::test]
    async fn dictionaries_are_kept_of_texts_that_the_first_stage_only_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let text = || Arc::new(StringArray::from(vec!["x", "y"])) as ArrayRef;
        let numbers = Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("n", numbers), ("a", text()), ("b", text())]).unwrap();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let context = SourceContext::new(Arc::new(Stores::default()), Arc::new(IoCounters::new()));
        let registry = Registry::new(Limits::default());
        for (steps, kept) in [
            ("{ map: { x: 'hash_bucket(b, 9)' } }", &[2][..]),
            ("{ map: { x: 'hash_bucket(a, 9) + hash_bucket(b, 9)', n: 'hash_bucket(n, 9)' } }", &[1, 2]),
            ("{ with_columns: { a: 'hash_bucket(a, 9)' } }", &[1]),
            ("{ filter: 'n > 1' }, { map: { x: 'hash_bucket(b, 9)' } }", &[2]),
            // The rows have the text, too.
            ("{ with_columns: { x: 'hash_bucket(a, 9)' } }", &[]),
            ("{ map: { x: 'hash_bucket(a, 9)', a: a } }", &[]),
            ("{ map: { x: 'hash_bucket(a, 9)', y: 'length(a)', z: 'hash_bucket(b, 9)' } }", &[2]),
            ("{ map: { x: 'hash_bucket(upper(a), 9)' } }", &[]),
            ("{ filter: \"a <> 'z'\" }, { map: { x: 'hash_bucket(a, 9)', y: 'hash_bucket(b, 9)' } }", &[2]),
            // It is not the first stage.
            ("{ map: { a: a } }, { map: { x: 'hash_bucket(a, 9)' } }", &[]),
            ("{ shuffle: 10 }, { map: { x: 'hash_bucket(a, 9)' } }", &[]),
        ] {
            let definition = format!("source: {{ parquet: '{}' }}\nsteps: [ {steps} ]\n", path.display());
            let definition = caju_pipeline::DatasetDef::from_yaml(&definition, None).unwrap();
            let bound = super::super::bind(&definition, &registry, &context, None).await.unwrap();
            assert_eq!(bound.root.dictionaries, kept, "{steps}");
        }
    }
}
