use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_pipeline::FileFormat;
use caju_types::{ErrorKind, SplitKey};
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::*;
use crate::test_util::{context, def, fresh, open, put, run, splits};
use crate::{RowPredicate, SplitRange};

/// What a test's source does next.
#[derive(Clone)]
enum Step {
    Rows(i64),
    Skip,
    Panic,
    Fail,
}

/// A source whose behaviour the test determines.
struct Told(Vec<Step>);

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]))
}

impl Source for Told {
    fn schema(&self) -> SchemaRef {
        schema()
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        stream::empty().boxed()
    }

    fn read(&self, _: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>> {
        let (steps, skip) = (self.0.clone(), options.skip.clone());
        let batch = |rows| {
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
            RecordBatch::try_new(schema(), vec![ids]).unwrap()
        };
        let step = move |step| match step {
            Step::Rows(rows) => Ok(batch(rows)),
            Step::Skip => {
                skip.as_ref().unwrap()(Error::data_loss("a bad row"));
                Ok(batch(0))
            }
            Step::Panic => panic!("bit width 64"),
            Step::Fail => Err(Error::unavailable("the store is away")),
        };
        stream::iter(steps).map(step).boxed()
    }
}

fn split(rows: Option<u64>) -> Split {
    Split {
        child: Vec::new(),
        repetition: 0,
        key: SplitKey(1),
        file: Some(crate::FileRef { url: "file:///d/a.parquet".into(), version: Default::default() }),
        range: SplitRange::RowGroups { first: 2, count: 3 },
        rows,
        trim: None,
        stride: None,
    }
}

/// Rows that came, and the error behind them.
fn read(steps: &[Step], split: &Split) -> (usize, Option<Error>) {
    run(async {
        let options = ReadOptions { skip: Some(Arc::new(|_: Error| ())), ..ReadOptions::default() };
        let mut stream = read_split(&Told(steps.to_vec()), split, &options);
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            match batch {
                Ok(batch) => rows += batch.num_rows(),
                Err(e) => {
                    assert!(stream.next().await.is_none(), "nothing follows an error");
                    return (rows, Some(e));
                }
            }
        }
        (rows, None)
    })
}

#[test]
fn a_panic_of_a_decoder_is_an_error_that_names_the_split() {
    for rows in [None, Some(9)] {
        let (rows, e) = read(&[Step::Rows(4), Step::Panic, Step::Rows(5)], &split(rows));
        let e = e.unwrap();
        assert_eq!((rows, e.kind()), (4, ErrorKind::DataLoss));
        assert!(e.message().starts_with("file:///d/a.parquet row groups 2..5: "), "{e}");
        assert!(e.message().contains("bit width 64"), "{e}");
    }
    let planned = run(planned("s3://b/x.arrow", async { if true { panic!("footer") } else { Ok(()) } }));
    let e = planned.unwrap_err();
    assert!(e.message().starts_with("s3://b/x.arrow: ") && e.message().contains("footer"), "{e}");
}

#[test]
fn a_split_gives_the_rows_that_its_file_says_it_has() {
    assert!(read(&[Step::Rows(4), Step::Rows(5)], &split(Some(9))).1.is_none());
    assert!(read(&[Step::Rows(4)], &split(None)).1.is_none(), "nothing is known");
    let (_, e) = read(&[Step::Rows(4)], &split(Some(9)));
    let e = e.unwrap();
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(e.message().contains("9 rows") && e.message().contains(" 4 were read"), "{e}");
    let (rows, e) = read(&[Step::Rows(9), Step::Rows(1)], &split(Some(9)));
    assert!(rows == 9 && e.is_some(), "a row too many does not get through");
    assert!(read(&[], &split(Some(1))).1.is_some());
    let trimmed = Split { trim: Some((5, 10)), ..split(Some(9)) };
    assert!(read(&[Step::Rows(4)], &trimmed).1.is_none(), "of 9 rows 4 lie behind the first 5");
    assert!(read(&[Step::Rows(3)], &trimmed).1.is_some());
    let (_, e) = read(&[Step::Rows(4), Step::Fail], &split(Some(9)));
    assert_eq!(e.unwrap().kind(), ErrorKind::Unavailable, "the first error counts");
}

#[test]
fn bad_rows_that_are_skipped_are_not_missing() {
    assert!(read(&[Step::Rows(4), Step::Skip, Step::Rows(4)], &split(Some(9))).1.is_none());
    assert!(read(&[Step::Rows(4), Step::Skip, Step::Rows(3)], &split(Some(9))).1.is_some());
}

fn table(rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("name-{}", i % 40))));
    RecordBatch::try_from_iter([("id", ids), ("name", names)]).unwrap()
}

fn to_parquet(batch: &RecordBatch) -> Vec<u8> {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(300)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// All rows of a file, in order, through the guard.
async fn read_file(
    format: FileFormat,
    name: &str,
    bytes: Vec<u8>,
    options: &ReadOptions,
) -> Result<Vec<RecordBatch>> {
    let (ctx, url) = (context(), format!("{}/{name}", fresh()));
    put(&ctx, &url, bytes).await;
    let source = open(&ctx, &def(format, &url)).await?;
    let mut out = Vec::new();
    for split in splits(&source).await? {
        out.extend(read_split(&*source, &split, options).try_collect::<Vec<_>>().await?);
    }
    Ok(out)
}

fn parquet_format() -> FileFormat {
    FileFormat::Parquet { columns: None }
}

#[test]
fn rows_that_a_predicate_drops_are_not_missing() {
    run(async {
        let keeps = RowPredicate {
            columns: vec![0],
            test: Arc::new(|batch: &RecordBatch| {
                let odd = (0..batch.num_rows()).map(|i| i % 2 == 1);
                Ok(odd.map(Some).collect::<arrow_array::BooleanArray>())
            }),
        };
        let options = ReadOptions { predicates: vec![keeps], ..ReadOptions::default() };
        let rows =
            read_file(parquet_format(), "a.parquet", to_parquet(&table(1000)), &options).await.unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 500);

        let (ctx, url) = (context(), format!("{}/a.parquet", fresh()));
        put(&ctx, &url, to_parquet(&table(1000))).await;
        let source = open(&ctx, &def(parquet_format(), &url)).await.unwrap();
        let mut split = splits(&source).await.unwrap().swap_remove(0);
        split.rows = Some(1001);
        let e = read_split(&*source, &split, &options).try_collect::<Vec<_>>().await.unwrap_err();
        assert!(e.message().contains("1001 rows") && e.message().contains("1000 were read"), "{e}");
        // The rows of a trim are numbered as in the file, and not as the predicate leaves them.
        split.trim = Some((10, 5));
        let e = read_split(&*source, &split, &options).try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal, "{e}");
    });
}

/// The parquet crate does not check the width of the indices into a dictionary, and panics.
#[test]
fn a_parquet_file_that_makes_its_decoder_panic_is_an_error_and_never_a_short_file() {
    run(async {
        let good = to_parquet(&table(1000));
        let mut panics = 0;
        for at in (0..good.len()).filter(|at| good[*at] == 6) {
            let mut bad = good.clone();
            bad[at] = 0x40;
            match read_file(parquet_format(), "bad.parquet", bad, &ReadOptions::default()).await {
                Ok(rows) => {
                    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1000, "byte {at}")
                }
                Err(e) => {
                    assert!(e.message().contains("bad.parquet"), "byte {at}: {e}");
                    panics += usize::from(e.message().contains("its decoder gave up"));
                }
            }
        }
        assert!(panics >= 4, "{panics} of the four row groups' widths were found");
    });
}

/// Each file has one checksum per page, as pyarrow writes it with `write_page_checksum=True`.
#[test]
fn page_checksums_of_parquet_are_checked() {
    let fixtures: [&[u8]; 2] = [
        include_bytes!("../fixtures/page_checksums_v1.parquet"),
        include_bytes!("../fixtures/page_checksums_v2.parquet"),
    ];
    run(async {
        for good in fixtures {
            let options = ReadOptions::default();
            let want = read_file(parquet_format(), "a.parquet", good.to_vec(), &options).await.unwrap();
            assert_eq!(want.iter().map(RecordBatch::num_rows).sum::<usize>(), 600);
            let mut found = 0;
            for at in (4..good.len()).step_by(7) {
                let mut bad = good.to_vec();
                bad[at] ^= 1;
                match read_file(parquet_format(), "bad.parquet", bad, &options).await {
                    Ok(rows) => assert_eq!(rows, want, "byte {at}: other rows"),
                    Err(e) => {
                        assert!(e.message().contains("bad.parquet"), "byte {at}: {e}");
                        found += 1;
                    }
                }
            }
            assert!(found > 100, "{found} of the changed files were found out");
        }
    });
}

/// One byte of a file is changed at a time: an error that names the file, or the same rows.
async fn flips(format: impl Fn() -> FileFormat, name: &str, good: &[u8], must_fail: std::ops::Range<usize>) {
    let options = ReadOptions::default();
    let want = read_file(format(), name, good.to_vec(), &options).await.unwrap();
    assert!(!want.is_empty());
    for at in 0..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 4;
        match read_file(format(), name, bad, &options).await {
            Ok(rows) => {
                assert!(!must_fail.contains(&at), "{name}: byte {at} of a checksum is not looked at");
                assert_eq!(rows, want, "{name} byte {at}: other rows");
            }
            Err(e) => assert!(e.message().contains(name), "{name} byte {at}: {e}"),
        }
    }
}

#[test]
fn trailers_of_compressed_files_and_crcs_of_records_are_checked() {
    use std::io::Write as _;
    run(async {
        let schema = Some(vec![("id".to_string(), caju_pipeline::ColumnType::Int64)]);
        let text: String =
            std::iter::once("id\n".to_string()).chain((0..40).map(|i| format!("{i}\n"))).collect();
        let csv = || FileFormat::Csv {
            header: true,
            delimiter: ',',
            schema: schema.clone(),
            compression: caju_pipeline::Compression::Auto,
        };
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gz.write_all(text.as_bytes()).unwrap();
        let gz = gz.finish().unwrap();
        flips(csv, "a.csv.gz", &gz, gz.len() - 8..gz.len()).await;
        let mut zst = zstd::Encoder::new(Vec::new(), 3).unwrap();
        zst.include_checksum(true).unwrap();
        zst.write_all(text.as_bytes()).unwrap();
        let zst = zst.finish().unwrap();
        flips(csv, "a.csv.zst", &zst, zst.len() - 4..zst.len()).await;
        let records = crate::tfrecord::tests::tfrecord_file(&[b"first", b"", b"third record"]);
        let plain = || FileFormat::TfRecord { compression: caju_pipeline::Compression::Auto };
        flips(plain, "a.tfrecord", &records, 0..records.len()).await;
    });
}
