//! Texts that a stage only hashes are read with the dictionaries of their files, and give the same values.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::common::{How, chunks, rows, sorted};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};

const ROWS: i64 = 3000;

/// `few` has 7 texts, `many` 2,000 of which a batch has few, `own` one for each row. Each has nulls, `id` has none.
fn write(path: &Path, properties: WriterPropertiesBuilder) {
    let texts = |of: &dyn Fn(i64) -> i64, name: &str| -> ArrayRef {
        let text = |i: i64| (i % 5 != 0).then(|| format!("{name} {}", of(i)));
        Arc::new((0..ROWS).map(text).collect::<StringArray>())
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..ROWS))),
        ("few", texts(&|i| i * i % 7, "few")),
        ("many", texts(&|i| i * 37 % 2000, "many")),
        ("own", texts(&|i| i, "own")),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, name != "id")),
    )
    .unwrap();
    let properties = properties.set_max_row_group_row_count(Some(1700)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashed_texts_are_those_of_the_rows_whatever_dictionaries_their_files_have() {
    let folder = tempfile::tempdir().unwrap();
    let all = WriterProperties::builder;
    // All pages with a dictionary; none; and a dictionary that is full after some pages.
    write(&folder.path().join("a.parquet"), all());
    write(&folder.path().join("b.parquet"), all().set_dictionary_enabled(false));
    let small = all().set_dictionary_page_size_limit(500).set_data_page_row_count_limit(100);
    write(&folder.path().join("c.parquet"), small.set_write_batch_size(50));
    let source = format!("source: {{ parquet: {{ path: '{}', split: 4KiB }} }}", folder.path().display());
    // Below `||` a text is computed, and its column has no dictionary.
    let hash = |name: &str, more: &str| format!("hash_bucket({name}, 1000{more})");
    for steps in [
        "map: { id: id, a: FEW, b: MANY, c: OWN }",
        "with_columns: { few: FEW, many: MANY, own: OWN }",
        "with_columns: { a: FEW, many: MANY, own: OWN }",
        "map: { id: id, a: FEW, b: 'coalesce(length(few), 0)', c: MANY, own: own }",
        "map: { id: id, a: \"hash_bucket(coalesce(few, ''), 9)\", b: MANY, c: 0 }",
        "map: { id: id, few: few, many: many, own: own }",
    ] {
        for more in ["", ", null_as => ''", ", null_as => 'few 1'"] {
            let text = |few: &str, many: &str, own: &str| {
                let of = |name: &str| format!("\"{}\"", hash(name, more));
                let steps =
                    steps.replace("FEW", &of(few)).replace("MANY", &of(many)).replace("OWN", &of(own));
                format!("{source}\nsteps: [ {{ filter: 'id % 3 <> 1 or few is null' }}, {{ {steps} }} ]\n")
            };
            let with = text("few", "many", "own");
            let without = text("few || ''", "many || ''", "own || ''");
            let how = How { deterministic: true, batch_rows: 300, ..How::default() };
            let found = rows(&chunks(&with, how).await.unwrap());
            assert_eq!(found.len(), 3 * (0..ROWS).filter(|i| i % 3 != 1 || i % 5 == 0).count());
            assert_eq!(found, rows(&chunks(&without, how).await.unwrap()), "{with}");
            let workers = rows(&chunks(&with, How { workers: 3, ..how }).await.unwrap());
            assert_eq!(sorted(workers), sorted(found));
        }
    }
}
