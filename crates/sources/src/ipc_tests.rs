//! The footer of an Arrow file lists every block of it, or reading the file is an error.

use std::sync::Arc;

use arrow::ipc::root_as_footer;
use arrow::ipc::writer::FileWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use caju_pipeline::FileFormat;
use caju_types::ErrorKind;

use crate::source::ReadOptions;
use crate::test_util::*;

/// A file of three record batches, and where its footer lists them: the length of the list, and the reference to it.
fn file() -> (Vec<u8>, usize, usize) {
    let batch = |n: i64| {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(n * 1000..(n + 1) * 1000));
        RecordBatch::try_from_iter([("id", ids)]).unwrap()
    };
    let mut writer = FileWriter::try_new(Vec::new(), &batch(0).schema()).unwrap();
    for n in 0..3 {
        writer.write(&batch(n)).unwrap();
    }
    let file = writer.into_inner().unwrap();
    let length = i32::from_le_bytes(file[file.len() - 10..file.len() - 6].try_into().unwrap());
    let start = file.len() - 10 - usize::try_from(length).unwrap();
    let footer = root_as_footer(&file[start..file.len() - 10]).unwrap();
    let blocks = footer.recordBatches().unwrap();
    assert_eq!(blocks.len(), 3);
    let list = blocks.bytes().as_ptr() as usize - file.as_ptr() as usize - 4;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let reference = (start..list).find(|&at| at + word(at) == list).unwrap();
    (file, list, reference)
}

fn set(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[tokio::test]
async fn a_footer_that_leaves_blocks_out_is_an_error() {
    let (good, list, reference) = file();
    let ctx = context();
    let format = || FileFormat::Arrow { columns: None };
    let url = format!("{}/good.arrow", fresh());
    put(&ctx, &url, good.clone()).await;
    let all = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 3000);

    let changed = |what: &[(usize, u32)]| {
        let mut file = good.clone();
        for (at, value) in what {
            set(&mut file, *at, *value);
        }
        file
    };
    let to_list = u32::try_from(list - reference).unwrap();
    for (name, file) in [
        ("the last one", changed(&[(list, 2)])),
        ("all of them", changed(&[(list, 0)])),
        // The list begins one block later: its length overwrites the end of the first block's entry.
        ("the first one", changed(&[(reference, to_list + 24), (list + 24, 2)])),
    ] {
        let url = format!("{}/bad.arrow", fresh());
        put(&ctx, &url, file).await;
        let e = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "{name}: {e}");
        assert!(e.message().starts_with(&url) && e.message().contains("does not list"), "{name}: {e}");
    }
}

#[tokio::test]
async fn a_footer_above_the_bound_is_refused_before_it_is_read() {
    let mut ctx = context();
    ctx.limits.chunk_bytes = 100 << 10;
    let url = format!("{}/bad.arrow", fresh());
    let (mut file, _, _) = file();
    let tail = file.split_off(file.len() - 10);
    file.resize(300 << 10, 0);
    file.extend((200i32 << 10).to_le_bytes());
    file.extend(&tail[4..]);
    put(&ctx, &url, file).await;
    let e = open(&ctx, &def(FileFormat::Arrow { columns: None }, &url)).await.map(drop).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
    let want = format!(
        "{url}: the end of the file says that its footer has 204800 bytes, more than the 102400 allowed"
    );
    assert!(e.message().starts_with(&want) && e.message().ends_with("or raise --chunk-memory"), "{e}");
    assert!(ctx.io.snapshot().bytes_read <= 64 << 10);
}

/// The verifier of the schema refuses its depth: the file is not damaged.
#[tokio::test]
async fn a_schema_that_is_nested_too_deep_is_refused_with_its_depth() {
    use arrow_schema::{DataType, Field, Schema};
    for (levels, is_refused) in [(32, false), (33, true), (200, true)] {
        let item = Field::new("item", DataType::Int64, true);
        let list = |item: Field, _| Field::new("x", DataType::List(Arc::new(item)), true);
        let schema = Schema::new(vec![(0..levels).fold(item, list)]);
        let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
        writer.finish().unwrap();
        let ctx = context();
        let url = format!("{}/x.arrow", fresh());
        put(&ctx, &url, writer.into_inner().unwrap()).await;
        let opened = open(&ctx, &def(FileFormat::Arrow { columns: None }, &url)).await.map(drop);
        match is_refused {
            false => opened.unwrap(),
            true => {
                let e = opened.unwrap_err();
                // Of the deepest ones not even a schema is read.
                let of = if levels < 64 { "column `x`" } else { "type of a column" };
                let want = format!("{url}: the {of} is nested deeper than 32 levels");
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                assert!(e.message().starts_with(&want), "{e}");
            }
        }
    }
}

/// Writers say of a column without nulls that it can have none, and the next file of the source has some.
#[tokio::test]
async fn a_file_may_have_nulls_after_one_that_says_it_has_none() {
    let ctx = context();
    let folder = fresh();
    for (name, nullable, values) in [("a", false, vec![Some(1)]), ("b", true, vec![None, Some(2)])] {
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, nullable)]));
        let ids: ArrayRef = Arc::new(Int64Array::from(values));
        let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
        writer.write(&RecordBatch::try_new(schema, vec![ids]).unwrap()).unwrap();
        put(&ctx, &format!("{folder}/{name}.arrow"), writer.into_inner().unwrap()).await;
    }
    let def = def(FileFormat::Arrow { columns: None }, &format!("{folder}/*.arrow"));
    let all = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(
        all.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
        [Some(1), None, Some(2)]
    );
}

/// The bytes of a flatbuffer: a table that holds a schema without columns, of this endianness. `is_footer`: a footer, else a message.
fn holding_schema(endianness: u16, is_footer: bool) -> Vec<u8> {
    let (v5, of_schema) = (4u16, 1u16);
    let mut out = Vec::new();
    let mut words = |words: &[u16]| words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    // The root is at byte 16. Its table: the version, the kind of a message, the schema; 12 bytes.
    words(&[16, 0]);
    match is_footer {
        true => words(&[8, 12, 8, 4, 0, 0]),
        false => words(&[10, 12, 8, 10, 4, 0]),
    }
    words(&[12, 0, 16, 0, v5, of_schema]);
    // The schema is at byte 36: its endianness, and its columns at byte 48.
    words(&[8, 12, 8, 4]);
    words(&[8, 0, 8, 0, endianness, 0]);
    words(&[0, 0, 0, 0]);
    out
}

/// The decoder does not swap bytes, and would read 1 as 72057594037927936.
#[tokio::test]
async fn numbers_in_the_byte_order_of_other_machines_are_refused() {
    let ctx = context();
    for (endianness, is_refused) in [(0, false), (1, true)] {
        let (message, footer) = (holding_schema(endianness, false), holding_schema(endianness, true));
        let mut stream = [0xffu8; 4].to_vec();
        stream.extend(u32::try_from(message.len()).unwrap().to_le_bytes());
        stream.extend(message);
        let checked = crate::ipc_bounds::check_stream(&stream, 1 << 20);
        let mut file = b"ARROW1\0\0".to_vec();
        file.extend(&stream);
        file.extend(&footer);
        file.extend(u32::try_from(footer.len()).unwrap().to_le_bytes());
        file.extend(b"ARROW1");
        let url = format!("{}/other.arrow", fresh());
        put(&ctx, &url, file).await;
        let read =
            all_rows(&ctx, &def(FileFormat::Arrow { columns: None }, &url), &ReadOptions::default()).await;
        if is_refused {
            let (of_file, of_stream) = (read.unwrap_err(), checked.unwrap_err());
            assert!(of_file.message().contains(&url), "{of_file}");
            for e in [of_file, of_stream] {
                assert!(
                    e.kind() == ErrorKind::InvalidArgument && e.message().contains("big-endian"),
                    "{endianness}: {e}"
                );
            }
        } else {
            checked.unwrap();
            assert_eq!(read.unwrap().map_or(0, |rows| rows.num_rows()), 0);
        }
    }
}
