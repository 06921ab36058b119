//! Pipelines made from a seed.

use std::sync::Arc;

use arrow::ipc::writer::StreamWriter;
use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt8Array,
};
use arrow_schema::{DataType, Field, Schema};
use caju_pipeline::{DatasetDef, SourceDef};
use caju_runtime::Stores;
use caju_types::mix64;
use object_store::ObjectStoreExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::rows::place;

/// Numbers from a seed.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = mix64(self.0, 0x5eed);
        self.0 % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A generated pipeline.
#[derive(Debug)]
pub struct Case {
    /// For the message of a failure.
    pub yaml: String,
    pub def: DatasetDef,
}

/// Numbers, strings, floats of all kinds, lists and tensors, with nulls.
pub fn rich(from: i64, rows: usize, seed: u64) -> RecordBatch {
    let at = |i: usize| mix64(seed, i as u64);
    let null = |i: usize, k: u64| at(i) % k == 0;
    let odd = [f64::NAN, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE / 2.0, 1.5];
    let x = (0..rows).map(|i| (!null(i, 5)).then(|| odd[(at(i) % 6) as usize]));
    let text = (0..rows).map(|i| (!null(i, 7)).then(|| "ç".repeat((at(i) % 9) as usize)));
    let mut tags = ListBuilder::new(StringBuilder::new());
    for i in 0..rows {
        for k in 0..at(i) % 4 {
            tags.values().append_option((k != 1).then(|| format!("{k}")));
        }
        tags.append(!null(i, 6));
    }
    let item = Arc::new(Field::new_list_field(DataType::UInt8, false));
    let pixels: UInt8Array = (0..rows * 6).map(|i| Some((at(i) % 256) as u8)).collect();
    let image = FixedSizeListArray::new(Arc::clone(&item), 6, Arc::new(pixels), None);
    let tensor = Field::new("image", DataType::FixedSizeList(item, 6), false).with_metadata(
        [
            ("ARROW:extension:name".to_string(), "arrow.fixed_shape_tensor".to_string()),
            ("ARROW:extension:metadata".to_string(), r#"{"shape":[2,3]}"#.to_string()),
        ]
        .into(),
    );
    let columns: Vec<(Field, ArrayRef)> = vec![
        (Field::new("id", DataType::Int64, false), {
            Arc::new(Int64Array::from_iter_values(from..from + rows as i64))
        }),
        (Field::new("x", DataType::Float64, true), Arc::new(Float64Array::from_iter(x))),
        (Field::new("text", DataType::Utf8, true), Arc::new(StringArray::from_iter(text))),
        (Field::new("tags", DataType::new_list(DataType::Utf8, true), true), Arc::new(tags.finish())),
        (tensor, Arc::new(image)),
    ];
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

pub async fn put(url: &str, bytes: Vec<u8>) {
    let at = Stores::default().resolve(url).unwrap();
    at.store.put(&at.path, bytes.into()).await.unwrap();
}

fn parquet(batch: &RecordBatch, group: usize) -> Vec<u8> {
    let props = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
    let mut out = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(props)).unwrap();
    out.write(batch).unwrap();
    out.into_inner().unwrap()
}

fn json_lines(from: i64, rows: usize, seed: u64) -> Vec<u8> {
    let line = |i: usize| {
        let n = mix64(seed, i as u64);
        let id = from + i as i64;
        // The first row shows every type.
        let n = if i == 0 { 3 } else { n };
        let text = if n % 7 == 0 { "null".to_string() } else { format!("\"s{}\"", n % 50) };
        let tags: Vec<String> = (0..n % 4).map(|k| format!("\"{k}\"")).collect();
        format!("{{\"id\": {id}, \"x\": {}.5, \"text\": {text}, \"tags\": [{}]}}\n", n % 9, tags.join(", "))
    };
    (0..rows).map(line).collect::<String>().into_bytes()
}

/// A source, and whether its rows have the columns of [`rich`] (but for the tensor, in JSON).
pub async fn source_of(draw: &mut Draw) -> (String, Option<SourceDef>) {
    let seed = draw.below(u64::MAX);
    match draw.below(4) {
        0 => {
            let rows = draw.pick(&[0, 1, 900, 1500, 2600]);
            (format!("{{ range: {{ start: 5, end: {}, step: 3 }} }}", 5 + rows * 3), None)
        }
        1 => {
            let batch = rich(0, draw.pick(&[1, 40, 300]), seed);
            let mut out = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
            out.write(&batch).unwrap();
            (String::new(), Some(SourceDef::Memory { ipc: out.into_inner().unwrap().into() }))
        }
        kind => {
            let folder = place("source");
            let mut from = 0;
            for file in 0..3 {
                let rows = if file == 1 && draw.one_in(2) { 0 } else { draw.pick(&[1, 30, 150]) };
                let (bytes, name) = if kind == 2 {
                    (parquet(&rich(from, rows, seed ^ file), draw.pick(&[16, 64, 1000])), "parquet")
                } else {
                    (json_lines(from, rows.max(1), seed ^ file), "json")
                };
                put(&format!("{folder}/{file}.{name}"), bytes).await;
                from += rows.max(1) as i64;
            }
            let split = draw.pick(&["1KiB", "4KiB", "1MiB"]);
            let name = if kind == 2 { "parquet" } else { "json" };
            (format!("{{ {name}: {{ path: '{folder}/*.{name}', split: {split} }} }}"), None)
        }
    }
}

/// A stage that sees one row at a time; `columns` are there, and it may add some.
fn local_stage(draw: &mut Draw, columns: &mut Vec<&'static str>) -> String {
    let has = |c: &str, columns: &[&str]| columns.contains(&c);
    loop {
        let (stage, adds) = match draw.below(14) {
            0 => ("with_columns: { a: 'id * 2 + 1' }", Some("a")),
            1 => ("with_columns: { label: \"concat('v', cast(id as varchar))\" }", Some("label")),
            2 => ("with_columns: { maybe: 'nullif(id % 3, 0)' }", Some("maybe")),
            3 => ("with_columns: { r: 'uniform(0.0, 1.0)' }", Some("r")),
            4 => ("filter: 'id % 7 <> 3'", None),
            5 if draw.one_in(4) => ("filter: 'id < 0'", None),
            6 => ("filter: 'random_int(0, 100) < 70'", None),
            7 => ("flat_map: { name: pair, expr: '[id, id + 1]' }", Some("pair")),
            8 if has("tags", columns) => {
                columns.retain(|c| *c != "tags");
                ("unnest: { column: tags }", None)
            }
            9 if has("x", columns) => ("with_columns: { y: 'x / 3.0' }", Some("y")),
            10 if has("text", columns) => ("filter: 'text is not null'", None),
            11 if has("r", columns) => ("filter: 'r < 0.5'", None),
            12 if has("a", columns) && !has("pair", columns) => {
                columns.retain(|c| matches!(*c, "a" | "id"));
                ("map: { a: 'a', id: 'id' }", None)
            }
            13 => ("with_columns: { k: \"random_int(0, 1000, key => 'k')\" }", Some("k")),
            _ => continue,
        };
        if adds.is_some_and(|c| columns.contains(&c)) {
            continue;
        }
        columns.extend(adds);
        return stage.to_string();
    }
}

/// A pipeline with one to three hints.
pub async fn case(seed: u64) -> Case {
    let mut draw = Draw(mix64(seed, 77));
    let (source, memory) = source_of(&mut draw).await;
    let rich = !source.contains("range");
    let mut columns = if rich { vec!["id", "x", "text", "tags"] } else { vec!["id"] };
    let mut steps: Vec<String> = Vec::new();
    let mut hints = 0;
    for _ in 0..draw.below(5) {
        if hints < 2 && draw.one_in(3) {
            steps.push(format!("autocache: h{hints}"));
            hints += 1;
        }
        steps.push(local_stage(&mut draw, &mut columns));
    }
    if hints == 0 || draw.one_in(2) {
        steps.push(format!("autocache: h{hints}"));
    }
    if draw.one_in(2) {
        steps.push("with_columns: { last: 'id + 0' }".into());
    }
    let deterministic = draw.one_in(3);
    let tail: &[&str] = match draw.below(6) {
        0 => &["shuffle: { buffer: 50 }"],
        1 => &["batch: 32"],
        2 => &["repeat: 2"],
        3 if deterministic => &["take: 100"],
        4 => &["shuffle: 20", "batch: { size: 10 }", "with_columns: { below: 'id - 1' }"],
        _ => &[],
    };
    steps.extend(tail.iter().map(ToString::to_string));
    finished(source, memory, &steps, deterministic)
}

/// A pipeline with a hint, `s`, behind cross-split stages; no row is drawn above it unless `draws`.
pub async fn mixed_case(seed: u64) -> Case {
    let mut draw = Draw(mix64(seed, 78));
    let (source, memory) = source_of(&mut draw).await;
    let rich = !source.contains("range");
    let mut columns = if rich { vec!["id", "x", "text", "tags"] } else { vec!["id"] };
    let mut steps: Vec<String> = Vec::new();
    for _ in 0..draw.below(3) {
        steps.push(local_stage(&mut draw, &mut columns));
    }
    let above: &[&str] = match draw.below(10) {
        0 => &["shuffle: { buffer: 50 }"],
        1 => &["batch: 32"],
        2 => &["repeat: 2", "shuffle: 20"],
        3 => &["take: 100"],
        4 => &["shuffle: 20", "batch: { size: 10 }", "with_columns: { above: 'id - 1' }"],
        5 => &["batch: 7", "unbatch"],
        6 => &["skip: 3", "batch: 5"],
        7 => &[
            "bucket_by_length: { length: 'id % 9', boundaries: [3, 6], batch_sizes: [4, 8, 3], pad: false }",
        ],
        8 => &["batch: 9", "repeat: 3"],
        _ => &["repeat: 2"],
    };
    steps.extend(above.iter().map(ToString::to_string));
    steps.push("autocache: s".into());
    let batched = above.iter().any(|s| s.contains("batch")) && !above.contains(&"unbatch");
    let below: &[&str] = match draw.below(6) {
        0 => &["with_columns: { z: 'uniform(0.0, 1.0)' }"],
        1 if !batched => &["shuffle: 30", "batch: 11"],
        1 => &["shuffle: 3"],
        2 if !batched => &["filter: 'id % 2 = 0'", "with_columns: { z: 'random_int(0, 9)' }"],
        3 => &["with_columns: { below: 'id + 0' }"],
        4 => &["take: 90"],
        _ => &[],
    };
    steps.extend(below.iter().map(ToString::to_string));
    let deterministic = draw.one_in(3);
    finished(source, memory, &steps, deterministic)
}

fn finished(source: String, memory: Option<SourceDef>, steps: &[String], deterministic: bool) -> Case {
    let stated = if source.is_empty() { "{ range: { start: 0, end: 1, step: 1 } }" } else { &source };
    let list: String = steps.iter().map(|s| format!("  - {s}\n")).collect();
    let yaml = format!("source: {stated}\nsteps:\n{list}deterministic: {deterministic}\n");
    let mut def = DatasetDef::from_yaml(&yaml, None).unwrap_or_else(|e| panic!("{e}\n{yaml}"));
    if let Some(memory) = memory {
        def.source = memory;
    }
    Case { yaml, def }
}
