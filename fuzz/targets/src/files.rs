//! Source files of every format, through the whole of our readers: listing, splits, decoding, and the end of a task.
//!
//! Any bytes are an error that names the file, or rows. Bytes that differ from a good seed in 1 to 3 places
//! ([`NEAR_BYTES`]) are an error or *all* rows of the good file: exactly these where the format has checksums, as many
//! where it has none. A tar file is compared if one byte differs: the checksum of a header is a sum of its bytes, which two
//! changes can leave as it was, so that a member has another name. In CSV and JSON another byte makes another text, so that
//! seeds are compared only if the file is compressed. A CSV file that is read has as many rows as `csv-core` finds in the
//! whole of it: our readers divide it into splits and batches.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use caju_engine::{LeasedSplit, SplitFeed, TaskOptions, bind, run_task};
use caju_pipeline::{DatasetDef, SourceDef};
use caju_runtime::SystemClock;
use caju_types::Result;
use caju_wire::checksum::RowsChecksum;
use csv_core::ReadRecordResult;
use futures::TryStreamExt;
use serde_json::{Value, json};

use crate::environment::{POOL, REGISTRY, block_on, context, put, seeds};

/// The most differing bytes of a file that is held to the rows of its seed.
const NEAR_BYTES: usize = 3;

/// What changed bytes may do to the rows.
#[derive(Clone, Copy, PartialEq)]
enum Promise {
    /// Nothing: the format has checksums.
    Exact,
    /// Change values, not their number.
    Count,
    /// Anything: another text is another file.
    Any,
}

/// A format and how it is read here.
struct Format {
    /// The target, and the kind of source.
    name: &'static str,
    kind: &'static str,
    suffix: &'static str,
    options: Value,
    steps: Value,
    promise: Promise,
    /// The most differing bytes of a file that is held to the rows of its seed.
    near: usize,
}

pub(crate) fn tfrecord(data: &[u8]) {
    let of = |name, suffix| Format {
        name,
        kind: "tfrecord",
        suffix,
        options: json!({"split": "1KiB"}),
        steps: json!([]),
        promise: Promise::Exact,
        near: NEAR_BYTES,
    };
    of("tfrecord", "tfrecord").check(data);
}

pub(crate) fn tar(data: &[u8]) {
    Format {
        name: "tar",
        kind: "webdataset",
        suffix: "tar",
        options: json!({"split": "2KiB"}),
        steps: json!([]),
        promise: Promise::Count,
        near: 1,
    }
    .check(data);
}

pub(crate) fn csv(data: &[u8]) {
    let read = text("csv", "csv").check(data);
    let (records, columns) = csv_records(data);
    // In a file of one column an empty line is a row with a null, which `csv-core` leaves out.
    if let Some((rows, _)) = read
        && compression(data).is_none()
        && columns > 1
    {
        assert_eq!(rows, records - 1, "rows that were read, and records below the header");
    }
}

/// The records of a CSV file with its header, and the values of the first record.
fn csv_records(data: &[u8]) -> (u64, usize) {
    let (mut reader, mut rest) = (csv_core::Reader::new(), data);
    let (mut values, mut ends) = (vec![0; data.len() + 1], vec![0; data.len() + 2]);
    let (mut records, mut columns) = (0, 0);
    loop {
        let (result, n, _, ended) = reader.read_record(rest, &mut values, &mut ends);
        rest = &rest[n..];
        match result {
            ReadRecordResult::Record if records == 0 => (records, columns) = (1, ended),
            ReadRecordResult::Record => records += 1,
            // What is left is empty from here, which says that the file has ended.
            ReadRecordResult::InputEmpty => {}
            ReadRecordResult::End => return (records, columns),
            full => panic!("a record that is larger than its file: {full:?}"),
        }
    }
}

pub(crate) fn json(data: &[u8]) {
    text("json", "jsonl").check(data);
}

/// Half of the inputs are read with types found from the first rows, half with given ones.
fn text(name: &'static str, suffix: &'static str) -> Format {
    Format {
        name,
        kind: name,
        suffix,
        options: json!({"split": "256B"}),
        steps: json!([]),
        promise: Promise::Any,
        near: NEAR_BYTES,
    }
}

pub(crate) fn parquet(data: &[u8]) {
    columnar("parquet", "parquet").check(data);
}

pub(crate) fn arrow(data: &[u8]) {
    columnar("arrow", "arrow").check(data);
}

fn columnar(name: &'static str, suffix: &'static str) -> Format {
    Format {
        name,
        kind: name,
        suffix,
        options: json!({"split": "1KiB"}),
        steps: json!([]),
        promise: Promise::Count,
        near: NEAR_BYTES,
    }
}

/// Rows that a definition brings along, as an Arrow IPC stream.
pub(crate) fn memory(data: &[u8]) {
    let mut def = DatasetDef::from_json(&json!({"source": {"range": {"start": 0, "end": 1}}})).unwrap();
    def.source = SourceDef::Memory { ipc: Bytes::copy_from_slice(data) };
    if let Err(e) = block_on(rows_of(&def)) {
        assert!(!e.message().is_empty());
    }
}

/// Rows, and their sum.
type Rows = (u64, String);

/// The rows of good seeds by target, with their bytes.
type Goods = HashMap<&'static str, Arc<Vec<(Vec<u8>, Rows)>>>;
static GOODS: Mutex<Option<Goods>> = Mutex::new(None);

impl Format {
    /// The rows, if there is no error.
    fn check(&self, data: &[u8]) -> Option<Rows> {
        let rows = match self.read(data) {
            Ok(rows) => rows,
            Err(e) => {
                assert!(e.message().contains(&self.file_name(data)), "the error does not name the file: {e}");
                return None;
            }
        };
        for (good, expected) in self.goods().iter() {
            let different = good.iter().zip(data).filter(|(a, b)| a != b).count();
            if good.len() != data.len() || different > self.near {
                continue;
            }
            let exact = different == 0 || self.promise == Promise::Exact || compression(data).is_some();
            if exact {
                assert_eq!(rows, *expected, "{different} bytes differ from a good file");
            } else if self.promise == Promise::Count {
                assert_eq!(rows.0, expected.0, "rows; {different} bytes differ from a good file");
            }
        }
        Some(rows)
    }

    /// The seeds that changes are compared with. A format may hold parts without checksums, as tar does with long names:
    /// such seeds are named otherwise.
    fn goods(&self) -> Arc<Vec<(Vec<u8>, Rows)>> {
        let mut all = GOODS.lock().unwrap_or_else(PoisonError::into_inner);
        let goods = all.get_or_insert_default().entry(self.name).or_insert_with(|| {
            let good = seeds(self.name).into_iter().filter(|(name, _)| name.starts_with("good-"));
            let read = |(name, data): (String, Vec<u8>)| {
                let rows = self.read(&data).unwrap_or_else(|e| panic!("the good seed {name}: {e}"));
                assert!(rows.0 > 0, "the good seed {name} has no rows");
                (data, rows)
            };
            Arc::new(good.map(read).collect())
        });
        Arc::clone(goods)
    }

    /// Readers find the compression by the name.
    fn file_name(&self, data: &[u8]) -> String {
        let extension = compression(data).map(|c| format!(".{c}")).unwrap_or_default();
        format!("{}.{}{extension}", self.name, self.suffix)
    }

    fn read(&self, data: &[u8]) -> Result<Rows> {
        let url = format!("memory://fuzz/files/{}", self.file_name(data));
        let mut source = self.options.clone();
        source["path"] = json!(url);
        let def = DatasetDef::from_json(&json!({"source": {self.kind: source}, "steps": self.steps}))?;
        block_on(async {
            put(&url, data).await;
            rows_of(&def).await
        })
    }
}

fn compression(data: &[u8]) -> Option<&'static str> {
    match data {
        [0x1f, 0x8b, ..] => Some("gz"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zst"),
        _ => None,
    }
}

/// Splits that are all known.
struct Fixed(VecDeque<LeasedSplit>);

#[async_trait]
impl SplitFeed for Fixed {
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let n = want.min(self.0.len());
        Ok((n > 0).then(|| self.0.drain(..n).collect()))
    }
}

/// All rows of a definition, as one worker computes them.
pub(crate) async fn rows_of(def: &DatasetDef) -> Result<Rows> {
    let pipeline = Arc::new(bind(def, &REGISTRY, &context(), None).await?);
    let splits: Vec<_> = pipeline.splits().try_collect().await?;
    let leases = (0..).zip(splits).map(|(index, split)| LeasedSplit::new(index, split)).collect();
    let options = TaskOptions::new(POOL.clone(), SystemClock::shared());
    let mut task = run_task(&pipeline, Box::new(Fixed(leases)), options);
    let mut sum = RowsChecksum::for_definition(def);
    while let Some(chunk) = task.next().await {
        for piece in &chunk?.pieces {
            sum.update(piece)?;
        }
    }
    Ok((sum.rows(), sum.hex()))
}
