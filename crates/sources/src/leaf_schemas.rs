//! The columns of all sources of a definition in one schema, as the dispatcher sends them to workers.
//!
//! A combinator has a source for each dataset inside of it. Its schema has a struct column for each distinct schema among these
//! sources. The schema's metadata say which of the struct columns each source has, in the order of the definition.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use caju_pipeline::SourceDef;
use caju_types::{Error, Result};

use crate::source::Source;

/// The key of the metadata that say which struct column each source has. A later form gets another key.
const PLACES: &str = "caju.datasets/v1";
/// The most columns of a combinator's schema, nested ones included. Arrow reads no schema of over a million tables, and a column
/// takes two of them.
const MAX_COLUMNS: usize = 100_000;

/// The schema with which [`open_source`](crate::open_source) opens the definition of this source again, without a file.
///
/// For a combinator it holds the schemas of the sources of all its datasets. It has no columns if these sources have over 100,000
/// columns together: every worker then finds them in the files.
pub fn source_schema(source: &dyn Source) -> SchemaRef {
    if source.children().is_empty() {
        return source.schema();
    }
    let leaves = leaves(source);
    let mut distinct: Vec<Field> = Vec::new();
    let mut known = HashMap::new();
    let mut places = Vec::with_capacity(leaves.len());
    for leaf in &leaves {
        let metadata: BTreeMap<&String, &String> = leaf.metadata().iter().collect();
        let next = distinct.len();
        let place: usize = *known.entry((leaf.fields(), metadata)).or_insert(next);
        if place == next {
            distinct.push(struct_of(leaf, next));
        }
        places.push(place.to_string());
    }
    let metadata = HashMap::from([(PLACES.to_string(), places.join(" "))]);
    let schema = Schema::new_with_metadata(distinct, metadata);
    match schema.flattened_fields().len() > MAX_COLUMNS {
        true => Arc::new(Schema::empty()),
        false => Arc::new(schema),
    }
}

/// The schemas of the sources that are no combinators, in the order of the definition.
fn leaves(source: &dyn Source) -> Vec<SchemaRef> {
    match source.children() {
        [] => vec![source.schema()],
        children => children.iter().flat_map(|child| leaves(child.as_ref())).collect(),
    }
}

fn struct_of(leaf: &Schema, place: usize) -> Field {
    let columns = DataType::Struct(leaf.fields().clone());
    Field::new(place.to_string(), columns, false).with_metadata(leaf.metadata().clone())
}

/// The schema that [`struct_of`] made a column of.
fn schema_of(column: &FieldRef) -> Result<SchemaRef> {
    match column.data_type() {
        DataType::Struct(columns) => {
            Ok(Arc::new(Schema::new_with_metadata(columns.clone(), column.metadata().clone())))
        }
        other => Err(unreadable(&format!("one of them is {other}"))),
    }
}

fn unreadable(why: &str) -> Error {
    Error::failed_precondition(format!(
        "the columns that the dispatcher found in the datasets of the source cannot be used here: {why}; run the same version of \
         caju on all machines"
    ))
}

/// The schemas of the sources of a definition that are still to be opened; none if each source finds its own columns.
pub(crate) struct LeafSchemas(Option<VecDeque<SchemaRef>>);

impl LeafSchemas {
    /// `schema`: what [`source_schema`] gave for this definition. A combinator's schema without [`PLACES`] says nothing: earlier
    /// versions sent one without columns.
    ///
    /// # Errors
    /// `FailedPrecondition` if the schema cannot be read.
    pub(crate) fn of(def: &SourceDef, schema: Option<SchemaRef>) -> Result<Self> {
        let Some(schema) = schema else { return Ok(Self(None)) };
        if def.children().is_empty() {
            return Ok(Self(Some(VecDeque::from([schema]))));
        }
        let Some(places) = schema.metadata().get(PLACES) else { return Ok(Self(None)) };
        let distinct = schema.fields().iter().map(schema_of).collect::<Result<Vec<_>>>()?;
        let leaf = |place: &str| {
            let found = place.parse::<usize>().ok().and_then(|place| distinct.get(place));
            found.cloned().ok_or_else(|| unreadable("one of them is missing"))
        };
        Ok(Self(Some(places.split_ascii_whitespace().map(leaf).collect::<Result<_>>()?)))
    }

    /// The schema of the next source; none if it is not known.
    ///
    /// # Errors
    /// `FailedPrecondition` if the definition has more sources than there are schemas.
    pub(crate) fn take_next(&mut self) -> Result<Option<SchemaRef>> {
        let Some(left) = &mut self.0 else { return Ok(None) };
        let next = left.pop_front().ok_or_else(|| unreadable("the definition has more datasets"))?;
        Ok(Some(next).filter(|schema| !schema.fields().is_empty()))
    }

    /// Whether every schema was taken.
    ///
    /// # Errors
    /// `FailedPrecondition` if the definition has fewer sources than there are schemas.
    pub(crate) fn check_all_taken(&self) -> Result<()> {
        match &self.0 {
            Some(left) if !left.is_empty() => Err(unreadable("the definition has fewer datasets")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use caju_pipeline::DatasetDef;
    use caju_types::ErrorKind;

    use super::*;
    use crate::open::open_source;
    use crate::test_util::{context, fresh, put};

    /// Three datasets of JSON lines in this folder, two of them with the same columns, and one of a range.
    fn nested(folder: &str) -> SourceDef {
        let json = |name: &str| format!("{{ source: {{ json: '{folder}/{name}.jsonl' }} }}");
        let sampled = format!("{{ datasets: [{}, {}], weights: [0.5, 0.5] }}", json("b"), json("c"));
        let text = format!(
            "source: {{ concatenate: [{}, {{ source: {{ sample: {sampled} }} }}, {{ source: {{ range: 3 }} }}] }}",
            json("a")
        );
        DatasetDef::from_yaml(&text, None).unwrap().source
    }

    #[tokio::test]
    async fn a_combinator_is_opened_again_with_the_columns_of_its_datasets_without_a_file() {
        let (ctx, folder) = (context(), fresh());
        for (name, line) in
            [("a", "{\"x\": 1, \"y\": 2}"), ("b", "{\"y\": 1.5, \"x\": 2}"), ("c", "{\"x\": 7, \"y\": 8}")]
        {
            put(&ctx, &format!("{folder}/{name}.jsonl"), format!("{line}\n")).await;
        }
        let opened = open_source(&nested(&folder), &ctx, None).await.unwrap();
        let schema = source_schema(opened.as_ref());
        assert_eq!(schema.fields().len(), 3, "equal schemas are sent once: {schema:?}");
        assert_eq!(schema.metadata().get(PLACES).map(String::as_str), Some("0 1 0 2"));
        let before = ctx.io.snapshot();
        let again = open_source(&nested(&fresh()), &ctx, Some(Arc::clone(&schema))).await.unwrap();
        assert_eq!(ctx.io.snapshot(), before, "no file is read, and none is there");
        assert_eq!(leaves(again.as_ref()), leaves(opened.as_ref()));
        assert_eq!(source_schema(again.as_ref()), schema);
    }

    #[tokio::test]
    async fn columns_of_other_datasets_are_refused() {
        let range = DatasetDef::from_yaml("source: { range: 3 }", None).unwrap();
        let concatenated = |count| SourceDef::Concatenate(vec![range.clone(); count]);
        let opened = open_source(&concatenated(2), &context(), None).await.unwrap();
        let schema = source_schema(opened.as_ref());
        for count in [1, 3] {
            let refused = open_source(&concatenated(count), &context(), Some(Arc::clone(&schema))).await;
            assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::FailedPrecondition), "{count}");
        }
        for (fields, places) in [(schema.fields().to_vec(), "0 1"), (vec![], "0 0")] {
            let metadata = HashMap::from([(PLACES.to_string(), places.to_string())]);
            let damaged = Arc::new(Schema::new_with_metadata(fields, metadata));
            assert!(open_source(&concatenated(2), &context(), Some(damaged)).await.is_err(), "{places}");
        }
        // What earlier versions sent says nothing.
        let earlier = Arc::new(Schema::empty());
        assert!(open_source(&concatenated(2), &context(), Some(earlier)).await.is_ok());
    }
}
