//! Filters that the source applies give the rows, the order and the draws of filters that are stages.

use std::fs::File;
use std::sync::Arc;

use crate::common::{How, chunks, rows};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

fn write(dir: &std::path::Path) -> String {
    let path = dir.join("t.parquet");
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3000));
    let x: ArrayRef = Arc::new(Int64Array::from_iter((0..3000).map(|i| (i % 7 != 0).then_some(i % 50))));
    let s: ArrayRef = Arc::new(StringArray::from_iter_values((0..3000).map(|i| format!("s{i}"))));
    let batch = RecordBatch::try_from_iter([("s", s), ("id", id), ("x", x)]).unwrap();
    let props = WriterProperties::builder().set_max_row_group_row_count(Some(500)).build();
    let mut w = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(props)).unwrap();
    w.write(&batch).unwrap();
    w.close().unwrap();
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_filters_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path());
    let yaml = |first: &str| {
        format!(
            "
source: {{ parquet: {{ path: '{path}', split: 4KiB }} }}
steps:
{first}  - filter: 'x < 20'
  - filter: 'id % 3 <> 1'
  - map: {{ id: id, r: 'random_int(0, 1000000)' }}
"
        )
    };
    let how = How { deterministic: true, batch_rows: 100, ..How::default() };
    let pushed = rows(&chunks(&yaml(""), how).await.unwrap());
    // A hint in front keeps the filters where they are.
    let staged = rows(&chunks(&yaml("  - autocache: raw\n"), how).await.unwrap());
    let want = (0..3000).filter(|i| i % 7 != 0 && i % 50 < 20 && i % 3 != 1).count();
    assert_eq!(staged.len(), want);
    assert_eq!(pushed, staged);
    let split = rows(&chunks(&yaml(""), How { workers: 3, ..how }).await.unwrap());
    assert_eq!(crate::common::sorted(split), crate::common::sorted(staged));
}

/// `s` and `id` are never null. What is simplified away has to be there where the text is bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_a_simplified_expression_does_not_read_are_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path());
    let want = (0..3000).filter(|i| i % 7 != 0 && i % 50 < 20).count();
    for (filter, value) in [
        ("x < 20 and s is not null", "id"),
        ("s is not null and x < 20", "case when true then id else x end"),
        ("x < 20 and (x >= 0 or true)", "coalesce(id, length(s))"),
    ] {
        let yaml = format!(
            "source: {{ parquet: '{path}' }}\nsteps: [ {{ filter: '{filter}' }}, {{ map: {{ id: '{value}' }} }} ]\n"
        );
        let rows = rows(&chunks(&yaml, How::default()).await.unwrap());
        assert_eq!(rows.len(), want, "{filter}");
    }
    let yaml = format!(
        "source: {{ parquet: '{path}' }}\nsteps: [ {{ filter: 's is not null' }}, {{ map: {{ id: id }} }} ]\n"
    );
    assert_eq!(rows(&chunks(&yaml, How::default()).await.unwrap()).len(), 3000);
}

/// `take` and `skip` choose rows by their numbers above the stage. A source that drops rows before would change these numbers;
/// `read_split` refuses to read such a split.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_stay_stages_where_rows_are_chosen_by_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path());
    let files = format!("source: {{ parquet: {{ path: '{path}', split: 4KiB }} }}");
    let even = "{ filter: 'id % 2 = 0' }";
    let nested = format!("source: {{ concatenate: [ {{ {files}, steps: [ {even} ] }}, {{ {files} }} ] }}");
    let twice = format!("source: {{ concatenate: [ {{ {files} }}, {{ {files} }} ] }}");
    for (source, steps, want) in [
        (&files, format!("{{ take: 700 }}, {even}"), 350),
        (&files, format!("{{ skip: 2750 }}, {even}"), 125),
        (&files, format!("{even}, {{ take: 700 }}"), 700),
        (&files, format!("{even}, {{ skip: 1400 }}"), 100),
        (&nested, "{ take: 2000 }".to_string(), 2000),
        (&nested, format!("{{ skip: 1400 }}, {even}"), 1600),
        (&twice, format!("{{ take: 3500 }}, {even}"), 1750),
    ] {
        let yaml = format!("{source}\nsteps: [ {steps}, {{ map: {{ id: id }} }} ]\n");
        assert_eq!(rows(&chunks(&yaml, How::default()).await.unwrap()).len(), want, "{yaml}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_predicate_keeps_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path());
    let yaml = format!("source: {{ parquet: '{path}' }}\nsteps: [ {{ filter: '10 / (id - id) > 1' }} ]\n");
    let e = chunks(&yaml, How::default()).await.unwrap_err();
    assert!(
        e.message().contains("steps[0].filter") && e.message().to_lowercase().contains("divide by zero"),
        "{e}"
    );
}
