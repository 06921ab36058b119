//! Tests of expressions from text to arrays.

mod bounds;
mod builtins;
mod casts;
mod errors;
mod fingerprint;
mod golden;
mod images;
mod logic;
mod regexps;
mod tables;

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, UInt64Array};
use arrow::datatypes::{Field, Schema};

use crate::{BoundExprs, Limits, Registry, RowError};

fn registry() -> Registry {
    Registry::new(Limits::default())
}

fn batch<const N: usize>(columns: [(&str, ArrayRef); N]) -> RecordBatch {
    let fields: Vec<_> = columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, a)| a).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn bind(batch: &RecordBatch, sql: &str) -> caju_types::Result<BoundExprs> {
    registry().bind("steps[0].map", &[("y".into(), sql.into())], &batch.schema())
}

fn keys(n: usize) -> UInt64Array {
    (0..n as u64).map(|i| caju_types::mix64(9, i)).collect()
}

fn try_eval(batch: &RecordBatch, sql: &str) -> Result<ArrayRef, RowError> {
    let bound = bind(batch, sql)?;
    let mut out = bound.evaluate(batch, bound.is_random().then(|| keys(batch.num_rows())).as_ref())?;
    let array = out.remove(0);
    assert_eq!(array.data_type(), bound.fields()[0].data_type(), "{sql}");
    assert!(bound.fields()[0].is_nullable() || array.null_count() == 0, "{sql}");
    Ok(array)
}

fn eval(batch: &RecordBatch, sql: &str) -> ArrayRef {
    try_eval(batch, sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
}

fn bind_error(batch: &RecordBatch, sql: &str) -> String {
    bind(batch, sql).map(|_| ()).expect_err(sql).to_string()
}

/// A picture with gradients and edges, as a JPEG.
fn jpeg(height: u16, width: u16, seed: u32) -> Vec<u8> {
    let (h, w) = (u32::from(height), u32::from(width));
    let mut pixels = Vec::new();
    for y in 0..h {
        for x in 0..w {
            let edge = if (x / 7 + y / 5 + seed).is_multiple_of(3) { 60 } else { 0 };
            let clamp = |v: u32| u8::try_from(v.min(255)).unwrap();
            pixels.extend([
                clamp(x * 200 / w + edge),
                clamp(y * 180 / h + seed % 50),
                clamp((x + y) * 90 / (w + h) + edge),
            ]);
        }
    }
    let mut out = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut out, 90);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    out
}

/// `n` pictures of different sizes; every seventh row is null.
fn pictures(n: u32) -> RecordBatch {
    let size = |i: u32| (u16::try_from(40 + i * 13 % 37).unwrap(), u16::try_from(50 + i * 29 % 41).unwrap());
    let each = |i: u32| (i % 7 != 5).then(|| jpeg(size(i).0, size(i).1, i));
    let images: Vec<Option<Vec<u8>>> = (0..n).map(each).collect();
    let images: BinaryArray = images.iter().map(|i| i.as_deref()).collect();
    batch([("image", Arc::new(images) as ArrayRef)])
}
