//! Short forms, and the messages of refused definitions.
#![allow(clippy::unwrap_used, reason = "tests may unwrap; clippy exempts only test functions by itself")]

use std::path::Path;

use caju_pipeline::*;
use caju_types::ErrorKind;

fn read(text: &str) -> Result<DatasetDef, String> {
    DatasetDef::from_yaml(text, Some(Path::new("/base"))).map_err(|e| {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        e.to_string()
    })
}

fn step(text: &str) -> Result<StageOp, String> {
    // A stage that may be below a batch gets a batch.
    let above = if text == "unbatch" { "  - batch: 2\n" } else { "" };
    let def = read(&format!("source: {{ range: 10 }}\nsteps:\n{above}  - {text}\n"))?;
    Ok(def.stages.last().unwrap().op.clone())
}

fn source(text: &str) -> Result<SourceDef, String> {
    Ok(read(&format!("source: {text}"))?.source)
}

/// Python's json.dumps writes characters beyond the first 65,536 as two escapes, which YAML refuses.
#[test]
fn a_pipeline_file_in_json_may_have_escaped_emoji() {
    let text = r#"{"name": "\ud83d\ude00", "source": {"range": 10}}"#;
    assert_eq!(read(text).unwrap().name.as_deref(), Some("\u{1f600}"));
    // A flow mapping of YAML begins like JSON.
    assert_eq!(read("{ name: x, source: { range: 10 } }").unwrap().name.as_deref(), Some("x"));
    assert!(read(r#"{"name": "x", "name": "y", "source": {"range": 10}}"#).unwrap_err().contains("name"));
}

#[test]
fn an_imagenet_pipeline() {
    let def = read(include_str!("imagenet.yaml")).unwrap();
    assert_eq!(def.name.as_deref(), Some("imagenet-train"));
    let SourceDef::Files(files) = &def.source else { panic!("{:?}", def.source) };
    assert_eq!(files.paths, ["/base/data/tfrecord/*.tfrecord"]);
    assert_eq!(files.format, FileFormat::TfRecord { compression: Compression::Auto });
    assert_eq!(files.split_bytes, DEFAULT_SPLIT_BYTES);
    let hints: Vec<_> = def.hints().into_iter().map(|h| (h.name, h.stage_index)).collect();
    assert_eq!(hints, [("source".to_owned(), 2), ("resized".to_owned(), 5)]);
    assert_eq!(def.split_local_len(), 7);
    assert_eq!(def.stage_position_without_hints(6), 4);
    assert_eq!(def.batched_by(), Some(8));
    assert!(!def.is_endless());
    assert_eq!(
        def.hint("resizd").unwrap_err().message(),
        "the dataset has no hint `resizd`; did you mean `resized`?"
    );
    insta(&describe(&def).join("\n"));
}

fn insta(text: &str) {
    let want = "\
source  tfrecord          /base/data/tfrecord/*.tfrecord
     0  parse_example     image/encoded bytes, image/class/label int64 from record
     1  map               image = \"image/encoded\", label = \"image/class/label\"
     2  autocache         source
     3  with_columns      image = resize_shorter(decode_image(image), 256)
     4  filter            label >= 0
     5  autocache         resized
     6  with_columns      image = normalize(random_flip(random_crop(image, 224, 224)))
     7  shuffle           buffer 2000, seed 7
     8  batch             256 rows, a short one at the end is dropped
     9  prefetch          4 ahead";
    assert_eq!(text, want);
}

#[test]
fn short_forms_of_stages() {
    for (short, long) in [
        ("batch: 256", "batch: { size: 256, drop_remainder: false }"),
        ("batch: 256.0", "batch: { size: 256 }"),
        ("shuffle: 1e3", "shuffle: { buffer: 1000, max_bytes: 1GiB }"),
        ("repeat", "repeat: {}"),
        ("repeat:", "repeat: { count: null }"),
        ("repeat: 3", "repeat: { count: 3 }"),
        ("take: 0", "take: { count: 0 }"),
        ("unbatch", "unbatch"),
        ("autocache", "autocache: hint-0"),
        ("autocache: a.b_c-1", "autocache: { name: a.b_c-1 }"),
        ("select: [a, b]", "select: { columns: [a, b] }"),
        ("select: a", "select: [a]"),
        ("filter: x > 1", "filter: { expr: x > 1 }"),
        ("unnest: a", "unnest: { column: a }"),
        ("prefetch: 4", "prefetch: { buffer: 4 }"),
        ("sleep: { per_row: 8us }", "sleep: { per_row: 8000ns }"),
        ("with_columns: { x: 1, y: true, 3: 2.5 }", r#"with_columns: { x: "1", y: "true", "3": "2.5" }"#),
        (
            "parse_example: { features: { a: int64, b: 'float[3]?', c: 'bytes[]', d: 'int64?' } }",
            "parse_example: { column: record, features: { a: { dtype: int64, optional: false }, \
             b: { dtype: float32, shape: 3, optional: true }, c: { dtype: bytes, shape: list }, \
             d: { dtype: int64, optional: true } } }",
        ),
        (
            "bucket_by_length: { length: n, boundaries: [4, 8], batch_sizes: 2 }",
            "bucket_by_length: { length: n, boundaries: [4, 8], batch_sizes: [2, 2, 2], pad: true }",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantiles: 4 }, batch_sizes: 2 }",
            "bucket_by_length: { length: n, boundaries: { quantiles: 4, rows: 4096 }, batch_sizes: 2, pad: true }",
        ),
    ] {
        assert_eq!(step(short).unwrap(), step(long).unwrap(), "{short}");
    }
}

#[test]
fn short_forms_of_sources() {
    for (short, long) in [
        (
            "{ tfrecord: a }",
            "{ tfrecord: { path: [/base/a], compression: auto, split: 16MiB, version: listed } }",
        ),
        ("{ parquet: [a, ../b] }", "{ parquet: { path: [/base/a, /b] } }"),
        ("{ csv: s3://x/y }", r#"{ csv: { path: s3://x/y, header: true, delimiter: "," } }"#),
        ("{ range: 10 }", "{ range: { start: 0, end: 10, step: 1 } }"),
        ("{ memory: Zm9v }", "{ memory: { ipc: Zm9v } }"),
    ] {
        assert_eq!(source(short).unwrap(), source(long).unwrap(), "{short}");
    }
}

#[test]
fn hints_without_names_count_all_hints() {
    let def = read("source: { range: 1 }\nsteps: [ autocache: a, autocache, autocache: ]").unwrap();
    let names: Vec<_> = def.hints().into_iter().map(|h| h.name).collect();
    assert_eq!(names, ["a", "hint-1", "hint-2"]);
}

#[test]
fn settings() {
    let def = read("source: { range: 1 }\nseed: 7\non_error: skip\ndeterministic: true").unwrap();
    let on_error = OnError::Skip { limit: DEFAULT_SKIP_LIMIT };
    assert_eq!(
        def.options,
        Options { seed: Some(7), on_error, deterministic: true, cache_only: false, reorder: None }
    );
    let def = read("source: { range: 1 }\non_error: { skip: { limit: 100 } }").unwrap();
    assert_eq!(def.options.on_error, OnError::Skip { limit: 100 });
    assert_eq!(def.with_seed(3).options.seed, Some(3));
}

#[test]
fn another_order_of_stages_may_be_allowed() {
    let read = |setting: &str| {
        read(&format!(
            "source: {{ range: 1 }}\nsteps: [ filter: id > 0, map: {{ x: id }} ]\nreorder: {setting}"
        ))
    };
    assert_eq!(read("false").unwrap().options.reorder, None);
    assert_eq!(read("true").unwrap().options.reorder, Some(Reorder::default()));
    let def = read("{ measured: { 1.map: 0.25 } }").unwrap();
    assert_eq!(def.options.reorder.as_ref().unwrap().measured["1.map"], 0.25);
    assert_eq!(DatasetDef::from_json(&def.to_json()).unwrap(), def);
    for (setting, want) in [
        (
            "maybe",
            "reorder: expected true, false or `{ measured: { 1.with_columns: 0.25 } }`, found \"maybe\"",
        ),
        ("{ measurd: {} }", "reorder: unknown argument `measurd`; did you mean `measured`?"),
        (
            "{ measured: { 1.mop: 1 } }",
            "reorder.measured.\"1.mop\": there is no such stage; did you mean `1.map`?",
        ),
        (
            "{ measured: { 1.map: -1 } }",
            "reorder.measured.\"1.map\": expected a number of at least 0, found -1",
        ),
    ] {
        let e = read(setting).unwrap_err();
        assert!(e.contains(want), "{setting}\n  gives  {e}\n  wanted {want}");
    }
}

#[test]
fn what_is_wrong_with_the_text() {
    for (text, want) in [
        ("", "the pipeline file is empty; it needs at least a `source`"),
        ("source: [", "line 2 column 1"),
        ("source: { range: 1 }\nsource: { range: 2 }", "`source` is given twice"),
        (
            "source: { range: 1 }\nsteps:\n  - map: { a: x,\n  a: y }",
            "`a` is given twice in one map at line 3",
        ),
        ("source: !x { range: 1 }", "no tags"),
        ("source: { range: .inf }", "not a finite number"),
        ("source: { range: 1 }\n---\nsource: 1", "more than one document"),
        ("hello", "the definition: expected a dataset: a map with `source` and `steps`, found \"hello\""),
        ("steps: []", "the definition: `source` is missing; write, for example, `source: { range: 100 }"),
        ("source: { range: 1 }\nstep: []", "the definition: unknown key `step`; did you mean `steps`?"),
        ("sorce: { range: 1 }", "the definition: unknown key `sorce`; did you mean `source`?"),
        (
            "source: { range: 1 }\nsteps: {}",
            "steps: expected a list of stages, each beginning with `- `, found a map",
        ),
        ("source: { range: 1 }\nseed: -1", "seed: expected an integer of at least 0, found -1"),
        (
            "source: { range: 1 }\non_error: ignore",
            "on_error: expected `fail`, `skip` or `{ skip: { limit: 100 } }`, found \"ignore\"",
        ),
        (
            "source: { range: 1 }\non_error: { skip: { limt: 1 } }",
            "on_error.skip: unknown argument `limt`; did you mean `limit`?",
        ),
        ("source: { range: 1 }\ndeterministic: yes", "deterministic: expected true or false, found \"yes\""),
    ] {
        let e = read(text).unwrap_err();
        assert!(e.contains(want), "{text}\n  gives  {e}\n  wanted {want}");
    }
}

#[test]
fn what_is_wrong_with_a_source() {
    for (text, want) in [
        ("{ parket: x }", "unknown source `parket` at source; did you mean `parquet`?"),
        ("{ mysql: x }", "unknown source `mysql` at source; known are tfrecord, parquet"),
        ("data/*.parquet", "source: expected one source such as"),
        (
            "{ parquet: {} }",
            "source.parquet: `path` is missing; write, for example, `parquet: { path: \"data/*.parquet\" }`",
        ),
        ("{ parquet: { pth: x } }", "source.parquet: unknown argument `pth`; did you mean `path`?"),
        (
            "{ parquet: { path: x, colums: [a] } }",
            "source.parquet: unknown argument `colums`; did you mean `columns`?",
        ),
        (
            "{ parquet: { path: x, columns: [] } }",
            "source.parquet.columns: it names no column; give at least one",
        ),
        (
            "{ parquet: { path: x, columns: [a, a] } }",
            "source.parquet.columns: the column `a` is given twice",
        ),
        ("{ parquet: { path: 3 } }", "source.parquet.path: expected a path or a list of paths, found 3"),
        ("{ parquet: { path: [] } }", "source.parquet.path: it names no file"),
        ("{ parquet: { path: x, split: 12kbb } }", "source.parquet.split: `12kbb` is not a size"),
        ("{ parquet: { path: x, split: 0 } }", "source.parquet.split: expected a size of 1 byte"),
        (
            "{ parquet: { path: x, split: -1 } }",
            "source.parquet.split: expected a size such as 64MiB, found -1",
        ),
        ("{ tfrecord: { path: x, compression: gzp } }", "`zstd`, found \"gzp\"; did you mean `gzip`?"),
        (
            "{ tfrecord: s3://KEY:hunter2@bucket/x }",
            "source.tfrecord: `s3://***`: credentials do not belong into a definition",
        ),
        ("{ csv: { path: x, delimiter: ab } }", "source.csv.delimiter: expected one character"),
        ("{ csv: { path: x, delimiter: é } }", "source.csv.delimiter: expected one ASCII character"),
        ("{ csv: { path: x, schema: { a: int } } }", "source.csv.schema.a: expected one of `int64`"),
        ("{ range: { end: 5, step: 0 } }", "source.range.step: expected a number other than 0"),
        ("{ range: { end: 99999999999999999999 } }", "the number 99999999999999999999 is too large"),
        (
            "{ range: { start: -9223372036854775808, end: 9223372036854775807 } }",
            "source.range: 18446744073709551615 rows are more",
        ),
        ("{ memory: 'a b!' }", "source.memory: expected an Arrow IPC stream in base64"),
        ("{ memory: '' }", "source.memory.ipc: it holds no bytes"),
        ("{ concatenate: [] }", "source.concatenate: it holds no dataset"),
        (
            "{ sample: { datasets: [ { source: { range: 1 } } ], weights: [1, 2] } }",
            "source.sample.weights: expected one weight per dataset, found 2 for 1 datasets",
        ),
        (
            "{ sample: { datasets: [ { source: { range: 1 } } ], weights: [0] } }",
            "source.sample.weights[0]: expected a positive number, found 0",
        ),
        (
            "{ sample: { datasets: [ { source: { range: 1 } } ], weights: [x] } }",
            "source.sample.weights[0]: expected a positive number, found \"x\"",
        ),
        (
            "{ zip: [ { source: { range: 1 }, steps: [ batch: 2 ] } ] }",
            "source.zip[0].steps[0].batch: a dataset inside `zip` may hold only stages that see one row at a time; put `batch` after the `zip`",
        ),
        ("{ zip: [ { source: { range: 1 }, steps: [ autocache ] } ] }", "put `autocache` after the `zip`"),
        (
            "{ zip: [ { source: { range: 1 }, seed: 2 } ] }",
            "source.zip[0].seed: `seed` is a setting of the whole definition; put it at the top",
        ),
        (
            "{ concatenate: [ { source: { range: 1 }, steps: [ { map: 3 } ] } ] }",
            "source.concatenate[0].steps[0].map: expected columns and expressions",
        ),
    ] {
        let e = source(text).unwrap_err();
        assert!(e.contains(want), "{text}\n  gives  {e}\n  wanted {want}");
        assert!(!e.contains("hunter2"));
    }
}

#[test]
fn what_is_wrong_with_a_stage() {
    for (text, want) in [
        ("suffle: 10", "unknown stage `suffle` at steps[0]; did you mean `shuffle`?"),
        ("frobnicate", "unknown stage `frobnicate` at steps[0]; known are parse_example, map"),
        ("{ batch: 1, shuffle: 2 }", "steps[0]: a step is one stage, found the keys `batch`, `shuffle`"),
        ("3", "steps[0]: expected a stage such as `batch: 256`, found 3"),
        ("{}", "steps[0]: expected a stage such as `batch: 256`, found a map"),
        ("shuffle: abc", "steps[0].shuffle: expected a positive integer, found \"abc\""),
        ("shuffle: { buffer: abc }", "steps[0].shuffle.buffer: expected a positive integer, found \"abc\""),
        ("shuffle: { buffer: 0 }", "steps[0].shuffle.buffer: expected a positive integer, found 0"),
        ("shuffle: { buffer: 1e30 }", "steps[0].shuffle.buffer: expected a positive integer, found 1e+30"),
        (
            "shuffle: { buffer: 9000000000000000000 }",
            "steps[0].shuffle.buffer: expected an integer from 1 to",
        ),
        ("shuffle: { bufer: 5 }", "steps[0].shuffle: unknown argument `bufer`; did you mean `buffer`?"),
        (
            "shuffle",
            "steps[0].shuffle: `buffer` is missing; write, for example, `shuffle: { buffer: 2000, seed: 7 }`",
        ),
        ("shuffle: { buffer: 5, sed: 1 }", "steps[0].shuffle: unknown argument `sed`; did you mean `seed`?"),
        ("shuffle: { buffer: 5, max_bytes: 1zb }", "steps[0].shuffle.max_bytes: `1zb` is not a size"),
        ("batch: 0", "steps[0].batch: expected a positive integer, found 0"),
        ("batch: -3", "steps[0].batch: expected a positive integer, found -3"),
        ("batch: 2.5", "steps[0].batch: expected a positive integer, found 2.5"),
        (
            "batch: 4294967296",
            "steps[0].batch.size: expected an integer from 1 to 2147483647, found 4294967296",
        ),
        (
            "batch: { size: 4, drop_remainder: 1 }",
            "steps[0].batch.drop_remainder: expected true or false, found 1",
        ),
        ("unbatch: 3", "steps[0].unbatch: expected arguments as in `unbatch`, found 3"),
        ("unbatch: { x: 1 }", "steps[0].unbatch: unknown argument `x`; it takes none"),
        ("repeat: 0", "steps[0].repeat: expected a positive integer, found 0"),
        ("take: -1", "steps[0].take: expected an integer of at least 0, found -1"),
        ("prefetch: 0", "steps[0].prefetch: expected a positive integer, found 0"),
        ("select: []", "steps[0].select: it names no column; give at least one"),
        ("select: [a, 3]", "steps[0].select[1]: expected text, found 3"),
        ("map: { a: x, a: y }", "`a` is given twice"),
        ("map: {}", "steps[0].map: it names no column"),
        ("map: { a: '' }", "steps[0].map.a: the expression is empty"),
        ("map: { a: [x] }", "steps[0].map.a: expected an expression in quotes, found a list"),
        ("map: { __caju_key: x }", "are reserved"),
        ("with_columns: { caju.row: x }", "`caju.row`: names that begin with `caju.` are reserved"),
        ("flat_map: { name: caju.split, expr: x }", "names that begin with `caju.` are reserved"),
        ("filter: ", "steps[0].filter: `expr` is missing; write, for example, `filter: \"label < 100\"`"),
        (
            "sleep: { per_row: 8 }",
            "steps[0].sleep.per_row: expected a duration with a unit such as 8us or 200ms, found 8",
        ),
        ("sleep: { per_row: 8x }", "steps[0].sleep.per_row: `8x` is not a duration"),
        ("sleep: {}", "steps[0].sleep: give either `per_row: 8us` or `per_batch: 200ms`"),
        ("burn: { per_row: 1s, per_batch: 1s }", "steps[0].burn: give either"),
        ("burn: { per_row: 2d }", "more than a day"),
        (
            "inflate: { column: a, factor: 0.5 }",
            "steps[0].inflate.factor: expected a number from 1 to 1000000, found 0.5",
        ),
        ("autocache: 'a b'", "steps[0].autocache: expected a hint's name"),
        (
            "parse_example: { features: { a: int32 } }",
            "steps[0].parse_example.features.a: expected a feature such as",
        ),
        (
            "parse_example: { features: { a: 'int64??' } }",
            "steps[0].parse_example.features.a: expected a feature such as",
        ),
        (
            "parse_example: { features: { a/b: 'int64[0]' } }",
            "steps[0].parse_example.features.\"a/b\": expected a positive integer, found 0",
        ),
        ("parse_example: { features: {} }", "steps[0].parse_example.features: it names no feature"),
        (
            "padded_batch: { size: 2, lengths: { a: 0 } }",
            "steps[0].padded_batch.lengths.a: expected a positive integer, found 0",
        ),
        ("padded_batch: { size: 2, values: { a: [] } }", "steps[0].padded_batch.values.a: expected a number"),
        (
            "bucket_by_length: { length: n, boundaries: [], batch_sizes: 1 }",
            "boundaries: it holds no boundary",
        ),
        (
            "bucket_by_length: { length: n, boundaries: [3, 3], batch_sizes: 1 }",
            "each greater than the one before",
        ),
        (
            "bucket_by_length: { length: n, boundaries: [3], batch_sizes: [1] }",
            "batch_sizes: expected 2 sizes, one more than boundaries, found 1",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantiles: 1 }, batch_sizes: 1 }",
            "boundaries.quantiles: expected an integer from 2 to 1000, found 1",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantiles: 1001 }, batch_sizes: 1 }",
            "boundaries.quantiles: expected an integer from 2 to 1000, found 1001",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantiles: 4, rows: 1000001 }, batch_sizes: 1 }",
            "boundaries.rows: expected an integer from 1 to 1000000, found 1000001",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantile: 4 }, batch_sizes: 1 }",
            "boundaries: unknown argument `quantile`; did you mean `quantiles`?",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantiles: 2 }, batch_sizes: [1, 2] }",
            "batch_sizes: equal quantiles give fewer classes, so learnt boundaries need one batch size for all classes",
        ),
        (
            "bucket_by_length: { length: n, boundaries: { quantiles: 2 }, batch_sizes: 0 }",
            "batch_sizes: expected a positive integer, found 0",
        ),
        (
            "bucket_by_length: { length: n, boundaries: 4, batch_sizes: 2 }",
            "boundaries: expected a list of lengths, or `{ quantiles: 4 }` to learn them, found 4",
        ),
        (
            "bucket_by_length: { length: n, boundaries: [3], batch_sizes: [1, 0] }",
            "batch_sizes[1]: expected a positive integer, found 0",
        ),
    ] {
        let e = step(text).unwrap_err();
        assert!(e.contains(want), "{text}\n  gives  {e}\n  wanted {want}");
    }
}

#[test]
fn order_of_stages() {
    for (steps, want) in [
        (
            "batch: 2, unbatch, batch: 3, map: { a: b }, with_columns: { c: d }, select: [c], shuffle: 3, autocache",
            "",
        ),
        ("filter: x, shuffle: 3, filter: x, take: 3, autocache, repeat, take: 3, batch: 2, prefetch: 1", ""),
        (
            "batch: 2, batch: 3",
            "steps[1].batch: the elements are batches already, made by `batch` at steps[0]; put `unbatch`",
        ),
        (
            "padded_batch: 2, take: 1, bucket_by_length: { length: n, boundaries: [1], batch_sizes: 1 }",
            "made by `padded_batch` at steps[0]",
        ),
        ("unbatch", "steps[0].unbatch: there is no batch above it"),
        ("batch: 2, unbatch, unbatch", "steps[2].unbatch: there is no batch above it"),
        (
            "batch: 2, filter: x",
            "steps[1].filter: `filter` works on single rows, but `batch` at steps[0] has made batches of them; put it above `batch`, or `unbatch` first",
        ),
        ("batch: 2, unnest: x", "put it above `batch`"),
        ("batch: 2, flat_map: { name: x, expr: y }", "put it above `batch`"),
        ("batch: 2, parse_example: { features: { a: bytes } }", "put it above `batch`"),
        ("repeat, take: 3, autocache", "steps[2].autocache: the `repeat` at steps[0] never ends"),
        (
            "repeat, repeat: 3",
            "steps[1].repeat: the `repeat` at steps[0] never ends, so this one is never reached",
        ),
        ("autocache: a, autocache: a", "steps[1].autocache: a hint named `a` stands above already"),
        ("autocache: hint-1, autocache", "a hint named `hint-1` stands above already"),
    ] {
        let result = read(&format!("source: {{ range: 10 }}\nsteps: [ {steps} ]"));
        match (want, result) {
            ("", result) => assert!(result.is_ok(), "{steps}: {result:?}"),
            (want, result) => {
                let e = result.unwrap_err();
                assert!(e.contains(want), "{steps}\n  gives  {e}\n  wanted {want}");
            }
        }
    }
    let endless = read("source: { range: 10 }\nsteps: [ repeat, batch: 2 ]").unwrap();
    assert!(endless.is_endless());
    let cut = read("source: { range: 10 }\nsteps: [ repeat, take: 9 ]").unwrap();
    assert!(!cut.is_endless());
}

/// Definitions made in code bypass the reader, so validation has to find all errors itself.
#[test]
fn definitions_made_in_code_are_checked() {
    let good = read(
        "source: { sample: { datasets: [ { source: { range: 1 } } ], weights: [1] } }\nsteps: [ batch: 1 ]",
    )
    .unwrap();
    let mut bad = good.clone();
    bad.stages[0].op = StageOp::Batch { size: 0, drop_remainder: false };
    assert!(
        validate(&bad)
            .unwrap_err()
            .message()
            .contains("steps[0].batch.size: expected a positive integer, found 0")
    );
    let mut bad = good.clone();
    bad.source = SourceDef::Sample { datasets: vec![good.clone()], weights: vec![f64::NAN], seed: None };
    assert!(
        validate(&bad).unwrap_err().message().contains("weights[0]: expected a positive number, found NaN")
    );
    let mut child = good.clone();
    child.stages.clear();
    child.options.deterministic = true;
    bad.source = SourceDef::Zip(vec![child]);
    assert!(validate(&bad).unwrap_err().message().contains("put them at the top"));
}
