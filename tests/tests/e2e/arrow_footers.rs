//! The list of blocks in the footer of an Arrow file: one that is cut short is an error, never fewer rows.

use std::sync::Arc;

use arrow::ipc::root_as_footer;
use arrow::ipc::writer::FileWriter;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch};
use caju_tests::Pipeline;
use serde_json::json;

/// Bytes of one entry of the list: offset, length of the metadata (padded to 8), length of the body.
const BLOCK_BYTES: usize = 24;
const BATCHES: usize = 4;

/// A file of [`BATCHES`] record batches of 10 rows, with a dictionary where `words`.
fn file(words: bool) -> Vec<u8> {
    let batch = |b: usize| {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..10).map(|i| i + 10 * b as i64)));
        let words_of: DictionaryArray<Int32Type> = (0..10).map(|_| Some("word")).collect();
        let mut columns = vec![("id", ids)];
        if words {
            columns.push(("word", Arc::new(words_of)));
        }
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let mut writer = FileWriter::try_new(Vec::new(), &batch(0).schema()).unwrap();
    (0..BATCHES).for_each(|b| writer.write(&batch(b)).unwrap());
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// Where the list of record batches begins in the file; its number of entries is in the four bytes before it.
fn list_of_batches(file: &[u8]) -> usize {
    let at = file.len() - 10;
    let length = i32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let footer = &file[at - length..at];
    let blocks = root_as_footer(footer).unwrap().recordBatches().unwrap();
    assert_eq!(blocks.len(), BATCHES);
    at - length + (blocks.bytes().as_ptr() as usize - footer.as_ptr() as usize)
}

fn read(bytes: &[u8]) -> caju_tests::Ended {
    let p = Pipeline::of(json!({ "arrow": { "path": "data.arrow" } }), json!([]));
    p.with_file("data.arrow", bytes).run(&["--report", "r.json"])
}

#[test]
fn a_list_that_is_cut_short_is_an_error_that_names_the_file() {
    for words in [false, true] {
        let good = file(words);
        read(&good).expect_code(0);
        let list = list_of_batches(&good);
        let with = |left: std::ops::Range<usize>| {
            let mut bad = good.clone();
            let entries = good[list + left.start * BLOCK_BYTES..list + left.end * BLOCK_BYTES].to_vec();
            bad[list - 4..list].copy_from_slice(&u32::try_from(left.len()).unwrap().to_le_bytes());
            bad[list..list + entries.len()].copy_from_slice(&entries);
            bad
        };
        assert_eq!(with(0..BATCHES), good);
        for left in [0..0, 0..1, 0..BATCHES - 1, 1..BATCHES, 1..BATCHES - 1, BATCHES - 1..BATCHES] {
            let ended = read(&with(left.clone()));
            ended.expect_code(2).expect_error(&["data.arrow", "its footer does not list what lies between"]);
        }
    }
}
