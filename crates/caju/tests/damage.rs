//! Files whose decoder panics: an error that names the file and a non-zero exit code, alone and through servers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use common::{Server, fails, ok, run, stderr};
use parquet::arrow::ArrowWriter;

/// A Parquet file whose names are in a dictionary of 40, so that its indices are 6 bits wide.
fn parquet() -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..1000).map(|i| format!("name-{}", i % 40))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("name", names)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Changes one byte so that the parquet crate panics, and says nothing of the other places with this value.
fn damage(dir: &Path, pipeline: &str) -> String {
    let good = parquet();
    for at in (0..good.len()).filter(|at| good[*at] == 6) {
        let mut bad = good.clone();
        bad[at] = 0x40;
        std::fs::write(dir.join("data/bad.parquet"), &bad).unwrap();
        let output = run(dir, &["run", pipeline]);
        let said = stderr(&output);
        if said.contains("its decoder gave up") {
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(!said.contains("defect of caju"), "a damaged file is no defect of caju: {said}");
            return said;
        }
    }
    panic!("no byte makes the decoder panic: this test looks at nothing");
}

#[test]
fn a_file_that_makes_its_decoder_panic_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::create_dir(d.join("data")).unwrap();
    std::fs::write(d.join("data/good.parquet"), parquet()).unwrap();
    let source = "source: { parquet: { path: data } }\n";
    std::fs::write(d.join("p.yaml"), format!("{source}steps: [ {{ batch: 64 }} ]\n")).unwrap();
    ok(d, &["run", "p.yaml"]);
    let said = damage(d, "p.yaml");
    assert!(said.contains("data/bad.parquet"), "{said}");

    // What is stored behind a cross-split stage would be short for good.
    let kept = format!("{source}steps: [ {{ shuffle: 3000 }}, {{ autocache: h }}, {{ batch: 64 }} ]\n");
    std::fs::write(d.join("kept.yaml"), kept).unwrap();
    for _ in 0..2 {
        let said = fails(d, &["run", "kept.yaml", "--policy", "hint:h", "--cache", "cache"], 2);
        assert!(said.contains("data/bad.parquet"), "{said}");
    }

    let dispatcher = Server::start(d, "dispatcher", &["--listen", "127.0.0.1:0", "--allow", "data"]);
    let at = dispatcher.address.clone();
    let _worker = Server::start(d, "worker", &["--dispatcher", &at, "--allow", "data"]);
    let said = fails(d, &["read", "p.yaml", "--dispatcher", &at], 2);
    assert!(said.contains("data/bad.parquet"), "{said}");
}
