//! Parquet files whose footers claim other rows or more bytes than there are, and row groups that are too large.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMicrosecondType, TimestampMillisecondType};
use arrow_array::{
    ArrayRef, BooleanArray, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMillisecondArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use caju_pipeline::FileFormat;
use caju_types::{ErrorKind, Result, format_count};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter, encode_arrow_schema};
use parquet::data_type::{Int96, Int96Type};
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::source::{ReadOptions, RowPredicate};
use crate::split::Split;
use crate::test_util::*;

fn format() -> FileFormat {
    FileFormat::Parquet { columns: None }
}

/// A file of three row groups of 100 rows.
fn file() -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..300));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// The field of a footer with this number of rows, and the first byte of the next field, in Thrift's compact protocol.
fn rows_field(rows: u16) -> [u8; 4] {
    let zigzag = rows * 2;
    [0x16, (zigzag & 0x7f) as u8 | 0x80, (zigzag >> 7) as u8, 0x19]
}

/// The library writes the sum of the row groups, so the test changes the bytes.
#[tokio::test]
async fn a_footer_whose_rows_are_not_those_of_its_row_groups_is_an_error() {
    let good = file();
    let footer = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(good.clone())).unwrap();
    assert_eq!(footer.num_row_groups(), 3);
    let ctx = context();
    for (claimed, groups) in [(300, 1), (300, 2), (200, 3), (100, 2), (300, 3)] {
        let some = footer.row_groups()[..groups].to_vec();
        let mut data = good.clone();
        let changed = footer.clone().into_builder().set_row_groups(some).build();
        ParquetMetaDataWriter::new(&mut data, &changed).finish().unwrap();
        let found = 100 * u16::try_from(groups).unwrap();
        let at = data.windows(4).rposition(|w| w == rows_field(found)).unwrap();
        data[at..at + 4].copy_from_slice(&rows_field(claimed));
        let url = format!("{}/x.parquet", fresh());
        put(&ctx, &url, data).await;
        let result = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await;
        if claimed == found {
            assert_eq!(result.unwrap().unwrap().num_rows(), 300);
            continue;
        }
        let e = result.unwrap_err();
        let want = format!(
            "{url}: the file is damaged: its footer says that it has {claimed} rows, and its row groups have {found}; write \
             the file again, or leave it out of `path`"
        );
        assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
    }
}

/// A sparse file on disk: 8 GiB, of which the end alone exists.
#[tokio::test]
async fn a_footer_above_the_bound_is_refused_before_it_is_read() {
    use std::io::{Seek, SeekFrom, Write};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut file = std::fs::File::create(&path).unwrap();
    file.seek(SeekFrom::Start((8 << 30) - 8)).unwrap();
    file.write_all(b"\xff\xff\xff\xffPAR1").unwrap();
    drop(file);
    let url = format!("file://{}", path.display());
    for (chunk_bytes, most, raise) in [(1 << 20, 1 << 20, true), (1 << 40, 256 << 20, false)] {
        let mut ctx = context();
        ctx.limits.chunk_bytes = chunk_bytes;
        let e = open(&ctx, &def(format(), &url)).await.map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
        let want = format!(
            "{url}: the end of the file says that its footer has 4294967295 bytes, more than the {most} allowed"
        );
        assert!(e.message().starts_with(&want), "{e}");
        assert_eq!(e.message().contains("--chunk-memory"), raise, "{e}");
        assert!(ctx.io.snapshot().bytes_read <= 64 << 10);
    }
}

/// A file of two row groups of 100 rows, and the bytes of the second one. The texts of that row group have 1000 bytes each.
fn file_with_a_large_group() -> (Vec<u8>, u64) {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200));
    let text = |i: i32| if i < 100 { i.to_string() } else { format!("{i:01000}") };
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..200).map(text)));
    let batch = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let data = writer.into_inner().unwrap();
    let footer = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(data.clone())).unwrap();
    assert_eq!(footer.num_row_groups(), 2);
    let bytes = footer.row_group(1).compressed_size().cast_unsigned();
    assert!((100_000..300_000).contains(&bytes), "{bytes}");
    (data, bytes)
}

/// The decoder needs a row group as a whole: 50,000 images of 100 KB in one of them took 5 GB for each concurrent reader.
#[tokio::test]
async fn a_row_group_above_the_bound_is_refused_before_it_is_read() {
    let mut ctx = context();
    let url = format!("{}/x.parquet", fresh());
    let (data, bytes) = file_with_a_large_group();
    put(&ctx, &url, data).await;
    let file = def(format(), &url);
    let (all, ids) =
        (ReadOptions::default(), ReadOptions { projection: Some(vec![0]), ..ReadOptions::default() });

    ctx.limits.row_group_bytes = 64 << 10;
    let source = open(&ctx, &file).await.unwrap();
    let split = splits(&source).await.unwrap().remove(0);
    let before = ctx.io.snapshot().bytes_read;
    let e = rows(&source, &split, &all).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
    let want = format!(
        "{url}: row group 1, of 100 rows, has {} bytes in the columns that are read, more than the 65,536 that a reader \
         may hold; ",
        format_count(bytes)
    );
    assert!(e.message().starts_with(&want), "{e}");
    assert!(e.message().ends_with("or raise --row-group-memory"), "{e}");
    assert_eq!(ctx.io.snapshot().bytes_read, before, "nothing of the row group was asked for");

    assert_eq!(rows(&source, &split, &ids).await.unwrap().unwrap().num_rows(), 200, "narrow columns");
    let trimmed = |trim| Split { trim: Some(trim), ..split.clone() };
    let first = rows(&source, &trimmed((0, 100)), &all).await.unwrap().unwrap();
    assert_eq!(first.num_rows(), 100, "the large row group is not read");
    for trim in [(99, 2), (100, 1), (199, 1)] {
        rows(&source, &trimmed(trim), &all).await.unwrap_err();
    }
    let test = |batch: &RecordBatch| -> Result<BooleanArray> { Ok(vec![true; batch.num_rows()].into()) };
    let by_text = RowPredicate { columns: vec![1], test: Arc::new(test) };
    let by_text = ReadOptions { predicates: vec![by_text], ..ids };
    let e = rows(&source, &split, &by_text).await.unwrap_err();
    assert!(e.message().contains("row group 1"), "the column of a predicate counts: {e}");

    for (bound, fits) in [(bytes - 1, false), (bytes, true)] {
        ctx.limits.row_group_bytes = bound;
        let read = all_rows(&ctx, &file, &all).await;
        assert_eq!(read.ok().flatten().map(|rows| rows.num_rows()), fits.then_some(200), "{bound}");
    }
}

/// A size that is out of bounds is damage, whatever the bound is.
#[tokio::test]
async fn a_column_chunk_behind_the_end_of_the_file_is_damage() {
    let (mut data, _) = file_with_a_large_group();
    let footer = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(data.clone())).unwrap();
    let groups = footer.row_groups().iter().map(|group| {
        let large = |column: &ColumnChunkMetaData| {
            column.clone().into_builder().set_total_compressed_size(8 << 30).build().unwrap()
        };
        let columns = group.columns().iter().map(large);
        group.clone().into_builder().set_column_metadata(columns.collect()).build().unwrap()
    });
    let changed = footer.clone().into_builder().set_row_groups(groups.collect()).build();
    ParquetMetaDataWriter::new(&mut data, &changed).finish().unwrap();
    let url = format!("{}/x.parquet", fresh());
    let ctx = context();
    put(&ctx, &url, data).await;
    let e = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
    assert!(e.message().contains("behind its end"), "{e}");
}

/// A file without rows, of a column with this many levels of structs.
fn nested(levels: usize) -> Vec<u8> {
    use parquet::schema::types::Type;
    let leaf = Type::primitive_type_builder("x", parquet::basic::Type::INT64).build().unwrap();
    let group = |field: Type| {
        let repetition = parquet::basic::Repetition::OPTIONAL;
        let group = Type::group_type_builder("x").with_repetition(repetition);
        group.with_fields(vec![Arc::new(field)]).build().unwrap()
    };
    let column = (0..levels).fold(leaf, |field, _| group(field));
    let root = Type::group_type_builder("schema").with_fields(vec![Arc::new(column)]).build().unwrap();
    let writer = parquet::file::writer::SerializedFileWriter::new(Vec::new(), Arc::new(root), Arc::default());
    writer.unwrap().into_inner().unwrap()
}

/// The decoder would build the schema by recursion, and overflow the stack of its thread.
#[test]
fn a_schema_that_is_nested_too_deep_is_refused_before_it_is_built() {
    // The library that writes the file builds the schema by recursion, too.
    let files = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(|| [32, 33, 100, 1000, 4000].map(|n| (n, nested(n))));
    for (levels, file) in files.unwrap().join().unwrap() {
        run(async move {
            let ctx = context();
            let url = format!("{}/x.parquet", fresh());
            put(&ctx, &url, file).await;
            let opened = open(&ctx, &def(format(), &url)).await.map(drop);
            if levels <= 32 {
                return opened.unwrap();
            }
            let e = opened.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{levels}: {e}");
            assert!(
                e.message().starts_with(&url) && e.message().contains("nested deeper than 32 levels"),
                "{e}"
            );
        });
    }
}

/// Spark, Hive and Impala write such files. In nanoseconds of 64 bits these years wrapped.
#[tokio::test]
async fn timestamps_of_96_bits_are_those_that_were_written() {
    const EPOCH: i64 = 2_440_588;
    let schema = "message m { optional int96 t; optional group l (LIST) { repeated group list { optional int96 element; } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    // 9999-12-31, years 1422 and 2000, with a time of the day.
    let days = [2_932_896i64, -200_000, 11_000];
    let values: Vec<Int96> = days
        .iter()
        .map(|day| {
            let mut value = Int96::new();
            value.set_data(1_000_000, 0, u32::try_from(day + EPOCH).unwrap());
            value
        })
        .collect();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for levels in [1, 3] {
        let mut column = group.next_column().unwrap().unwrap();
        let (def, rep) = (vec![levels; 3], vec![0; 3]);
        let rep = (levels > 1).then_some(&rep[..]);
        column.typed::<Int96Type>().write_batch(&values, Some(&def), rep).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    let url = format!("{}/x.parquet", fresh());
    let ctx = context();
    put(&ctx, &url, writer.into_inner().unwrap()).await;
    let rows = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap().unwrap();
    let want: Vec<i64> = days.iter().map(|day| day * 86_400_000_000 + 1000).collect();
    assert_eq!(rows.column(0).as_primitive::<TimestampMicrosecondType>().values()[..], want);
    let items = rows.column(1).as_list::<i32>().values();
    assert_eq!(items.as_primitive::<TimestampMicrosecondType>().values()[..], want);
}

/// pyarrow writes seconds as milliseconds, whose Parquet type says only that they are in UTC.
#[tokio::test]
async fn times_of_seconds_keep_their_time_zone() {
    let seconds = DataType::Timestamp(TimeUnit::Second, Some("America/New_York".into()));
    let item = Arc::new(Field::new_list_field(seconds.clone(), true));
    let said = Schema::new(vec![
        Field::new("t", seconds.clone(), true),
        Field::new("l", DataType::List(Arc::clone(&item)), true),
        Field::new("s", DataType::Struct(vec![Field::new("t", seconds, true)].into()), true),
    ]);
    let t: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![1000]).with_timezone("UTC"));
    let item = Arc::new(Field::new_list_field(t.data_type().clone(), true));
    let l: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1]), Arc::clone(&t), None));
    let field = Arc::new(Field::new("t", t.data_type().clone(), true));
    let s: ArrayRef = Arc::new(StructArray::from(vec![(field, Arc::clone(&t))]));
    let batch = RecordBatch::try_from_iter([("t", t), ("l", l), ("s", s)]).unwrap();
    let says = KeyValue::new(ARROW_SCHEMA_META_KEY.to_string(), encode_arrow_schema(&said));
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![says])).build();
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    let url = format!("{}/x.parquet", fresh());
    let ctx = context();
    put(&ctx, &url, writer.into_inner().unwrap()).await;
    let rows = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap().unwrap();
    let want = DataType::Timestamp(TimeUnit::Millisecond, Some("America/New_York".into()));
    let found = [
        Arc::clone(rows.column(0)),
        Arc::clone(rows.column(1).as_list::<i32>().values()),
        Arc::clone(rows.column(2).as_struct().column(0)),
    ];
    for column in found {
        assert_eq!(*column.data_type(), want);
        assert_eq!(column.as_primitive::<TimestampMillisecondType>().values()[..], [1000]);
    }
}
