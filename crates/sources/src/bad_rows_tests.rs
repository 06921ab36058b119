//! Where bad rows are skipped, it does not depend on the columns that are read which rows are bad.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use caju_pipeline::{ColumnType, Compression, FileFormat};

use crate::source::ReadOptions;
use crate::test_util::*;

/// The columns of the files. Every text is a text for CSV.
const COLUMNS: [(&str, ColumnType); 5] = [
    ("id", ColumnType::Int64),
    ("n", ColumnType::Int32),
    ("x", ColumnType::Float64),
    ("flag", ColumnType::Bool),
    ("text", ColumnType::String),
];

/// The good rows of a file.
const GOOD_ROWS: usize = 20;

fn csv(schema: Option<Vec<(String, ColumnType)>>) -> FileFormat {
    FileFormat::Csv { header: true, delimiter: ',', schema, compression: Compression::Auto }
}

fn json(schema: Option<Vec<(String, ColumnType)>>) -> FileFormat {
    FileFormat::Json { schema, compression: Compression::Auto }
}

fn given() -> Option<Vec<(String, ColumnType)>> {
    Some(COLUMNS.iter().map(|(name, of)| ((*name).to_owned(), *of)).collect())
}

/// A row as JSON has its values, with a bad one in one column.
fn row(id: usize, bad: Option<usize>) -> Vec<String> {
    let mut values =
        vec![id.to_string(), (2 * id).to_string(), format!("{id}.5"), "true".into(), format!("\"t{id}\"")];
    if let Some(column) = bad {
        values[column] = if column == 4 { "[1]".into() } else { "\"oops\"".into() };
    }
    values
}

/// Rows with bad ones among them, one for each of the first `bad` columns.
fn rows_with(bad: usize) -> Vec<Vec<String>> {
    let of_id = |id: usize| {
        let bad = (id < bad).then(|| row(1000 + id, Some(id)));
        std::iter::once(row(id, None)).chain(bad)
    };
    (0..GOOD_ROWS).flat_map(of_id).collect()
}

fn csv_text(rows: &[Vec<String>]) -> String {
    let names = COLUMNS.map(|(name, _)| name).join(",");
    let lines = rows.iter().map(|values| values.join(",").replace('"', ""));
    std::iter::once(names).chain(lines).map(|line| line + "\n").collect()
}

fn json_text(rows: &[Vec<String>]) -> String {
    let line = |values: &Vec<String>| {
        let pairs = COLUMNS.iter().zip(values).map(|((name, _), value)| format!("\"{name}\": {value}"));
        format!("{{{}}}\n", pairs.collect::<Vec<_>>().join(", "))
    };
    rows.iter().map(line).collect()
}

/// Every choice of columns, none and all of them included.
fn projections(columns: usize) -> Vec<Option<Vec<usize>>> {
    let chosen = |bits: u32| (0..columns).filter(|column| (bits >> *column) & 1 == 1).collect::<Vec<_>>();
    let choices = 1u32 << columns;
    (0..choices).map(|bits| Some(chosen(bits))).chain([None]).collect()
}

#[tokio::test]
async fn the_same_rows_are_skipped_whichever_columns_are_read() {
    for (format, text, bad) in
        [(csv(given()), csv_text(&rows_with(4)), 4), (json(given()), json_text(&rows_with(5)), 5)]
    {
        let ctx = context();
        let url = format!("{}/x.txt", fresh());
        put(&ctx, &url, text).await;
        for projection in projections(COLUMNS.len()) {
            for batch_rows in [1, 7, 1000] {
                let (skip, errors) = skips();
                let options = ReadOptions {
                    projection: projection.clone(),
                    skip: Some(skip),
                    ..small(batch_rows, 1 << 20)
                };
                let all = all_rows(&ctx, &def(format.clone(), &url), &options).await.unwrap().unwrap();
                let what = format!("{format:?}: {projection:?}, {batch_rows} rows a batch");
                assert_eq!((all.num_rows(), errors.lock().len()), (GOOD_ROWS, bad), "{what}");
                let wanted = projection.clone().unwrap_or_else(|| (0..COLUMNS.len()).collect());
                let names: Vec<_> = all.schema().fields().iter().map(|f| f.name().clone()).collect();
                assert_eq!(names, wanted.iter().map(|i| COLUMNS[*i].0).collect::<Vec<_>>(), "{what}");
                if wanted.contains(&0) {
                    let ids = all.column(0).as_primitive::<Int64Type>().values();
                    assert!(ids.iter().copied().eq(0i64..20), "{what}: {ids:?}");
                }
            }
        }
    }
}

/// Columns that a job does not need cost it nothing there, and their values end no job.
#[tokio::test]
async fn columns_that_are_not_read_are_not_checked_where_bad_rows_are_errors() {
    for (format, text) in [(csv(given()), csv_text(&rows_with(2))), (json(given()), json_text(&rows_with(2)))]
    {
        let ctx = context();
        let url = format!("{}/x.txt", fresh());
        put(&ctx, &url, text).await;
        let read = async |projection: Option<Vec<usize>>| {
            let options = ReadOptions { projection, ..ReadOptions::default() };
            all_rows(&ctx, &def(format.clone(), &url), &options).await
        };
        assert_eq!(read(Some(vec![2, 4])).await.unwrap().unwrap().num_rows(), GOOD_ROWS + 2);
        for projection in [Some(vec![0]), Some(vec![1, 4]), None] {
            let e = read(projection.clone()).await.unwrap_err();
            assert!(e.message().contains("oops"), "{projection:?}: {e}");
        }
    }
}

/// A key that the first rows do not have is an error of its line, also where no stage needs all columns.
#[tokio::test]
async fn keys_without_a_column_are_bad_whichever_columns_are_read() {
    let text = "{\"a\":1,\"b\":2}\n".repeat(1000) + "{\"a\":2,\"late\":3}\n{\"a\":3}\n";
    let ctx = context();
    let url = format!("{}/x.jsonl", fresh());
    put(&ctx, &url, text).await;
    for projection in projections(2) {
        let (skip, errors) = skips();
        let options =
            ReadOptions { projection: projection.clone(), skip: Some(skip), ..ReadOptions::default() };
        let all = all_rows(&ctx, &def(json(None), &url), &options).await.unwrap().unwrap();
        assert_eq!((all.num_rows(), errors.lock().len()), (1001, 1), "{projection:?}");
    }
    let options = ReadOptions { projection: Some(vec![0]), ..ReadOptions::default() };
    let all = all_rows(&ctx, &def(json(None), &url), &options).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 1002, "no column of the key is read");
}

#[tokio::test]
async fn image_files_that_are_too_large_are_bad_whichever_columns_are_read() {
    let ctx = context_of_records(1024);
    let folder = fresh();
    for (name, size) in [("1.jpg", 3000), ("2.jpg", 10)] {
        put(&ctx, &format!("{folder}/{name}"), vec![0; size]).await;
    }
    let images = def(FileFormat::Images, &folder);
    for projection in projections(3) {
        let (skip, errors) = skips();
        let options =
            ReadOptions { projection: projection.clone(), skip: Some(skip), ..ReadOptions::default() };
        let all = all_rows(&ctx, &images, &options).await.unwrap().unwrap();
        assert_eq!((all.num_rows(), errors.lock().len()), (1, 1), "{projection:?}");
    }
    let options = ReadOptions { projection: Some(vec![0, 2]), ..ReadOptions::default() };
    let all = all_rows(&ctx, &images, &options).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 2, "their bytes are not read");
}
