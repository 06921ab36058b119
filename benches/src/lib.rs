//! Rows for benchmarks: photos and tables that cost a codec or a hash what real ones cost.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "benchmarks")]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use caju_runtime::Stores;
use caju_types::{Error, Result};
use serde_json::Value;

/// The options of object stores in the environment, as in the binary.
pub fn store_options() -> BTreeMap<String, String> {
    std::env::vars()
        .map(|(key, value)| (key.to_lowercase(), value))
        .filter(|(key, _)| key.starts_with("aws_") && Stores::known_option(key))
        .collect()
}

/// Runs a benchmark's program with its arguments, and prints its report, or its error with the exit code.
pub fn program<F>(run: impl FnOnce(Vec<String>) -> F) -> std::process::ExitCode
where
    F: Future<Output = Result<Value>>,
{
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = tokio::runtime::Runtime::new()
        .map_err(|e| Error::exhausted(format!("cannot start threads: {e}")))
        .and_then(|runtime| runtime.block_on(run(args)));
    match done {
        Ok(report) => {
            println!("{report}");
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            std::process::ExitCode::from(e.kind().exit_code())
        }
    }
}

/// Generated photos of 500x375 pixels, in a column `image`.
pub fn photos(rows: u32) -> RecordBatch {
    let photos: Vec<_> =
        (0..rows).map(|i| caju_samples::photo_of_size(0, i.into(), 500, 375).unwrap().jpeg).collect();
    let column: ArrayRef = Arc::new(BinaryArray::from_iter_values(photos));
    RecordBatch::try_from_iter([("image", column)]).unwrap()
}

/// A table with a nullable integer `x`, a string `s` of eight digits and an `id`.
pub fn table(rows: i64) -> RecordBatch {
    let mix = |i: i64| i.wrapping_mul(0x5851_F42D_4C95_7F2D).unsigned_abs();
    let x: ArrayRef =
        Arc::new((0..rows).map(|i| (i % 7 != 0).then_some((mix(i) % 1000) as i64)).collect::<Int64Array>());
    let s: ArrayRef =
        Arc::new((0..rows).map(|i| Some(format!("{:08x}", mix(i) as u32))).collect::<StringArray>());
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    RecordBatch::try_from_iter([("x", x), ("s", s), ("id", id)]).unwrap()
}
