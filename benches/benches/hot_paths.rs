//! The hot paths, one at a time: `cargo bench -p caju-benches`.

#![allow(clippy::unwrap_used, missing_docs, reason = "benchmarks")]

use arrow_array::{RecordBatch, UInt64Array};
use caju_benches::{photos, table};
use caju_kernels::{BoundExprs, Limits, Registry};
use caju_wire::Chunk;
use caju_wire::checksum::RowsChecksum;
use caju_wire::encode_chunk;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn bind(batch: &RecordBatch, sql: &str) -> BoundExprs {
    let registry = Registry::new(Limits::default());
    registry.bind("bench", &[("out".into(), sql.into())], &batch.schema()).unwrap()
}

fn expressions(c: &mut Criterion) {
    let (images, rows) = (photos(16), table(8192));
    let cases = [
        (
            "imagenet train",
            &images,
            "normalize(random_flip(random_resized_crop(decode_image(image), 224, 224)))",
        ),
        ("imagenet train, uint8", &images, "random_flip(random_resized_crop(decode_image(image), 224, 224))"),
        (
            "imagenet eval",
            &images,
            "normalize(center_crop(resize_shorter(decode_image(image), 256), 224, 224))",
        ),
        ("decode", &images, "decode_image(image)"),
        ("ln", &rows, "CAST(ln(1 + greatest(coalesce(x, 0), 0)) AS FLOAT)"),
        ("hash_bucket", &rows, "hash_bucket(coalesce(s, ''), 1000000)"),
    ];
    let mut group = c.benchmark_group("expressions");
    for (name, batch, sql) in cases {
        let bound = bind(batch, sql);
        let keys = UInt64Array::from_iter_values(0..batch.num_rows() as u64);
        group.throughput(Throughput::Elements(batch.num_rows() as u64));
        group.bench_function(name, |b| b.iter(|| bound.evaluate(batch, Some(&keys)).unwrap()));
    }
    group.finish();
}

fn rows_checksum(c: &mut Criterion) {
    let mut group = c.benchmark_group("rows_checksum");
    for (name, batch) in [("photos", photos(16)), ("table", table(8192))] {
        group.throughput(Throughput::Elements(batch.num_rows() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut sum = RowsChecksum::default();
                sum.update(&batch).unwrap();
                sum.hex()
            });
        });
    }
    group.finish();
}

fn wire(c: &mut Criterion) {
    let mut group = c.benchmark_group("wire");
    for (name, batch) in [("photos", photos(64)), ("one row", table(1)), ("table", table(4096))] {
        let chunk = Chunk::rows_of(batch, Vec::new());
        group.throughput(Throughput::Bytes(chunk.bytes() as u64));
        group.bench_function(name, |b| b.iter(|| encode_chunk(&chunk).unwrap()));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = expressions, rows_checksum, wire
}
criterion_main!(benches);
