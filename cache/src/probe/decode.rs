//! Decoding a probe's file.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use bytes::Bytes;
use caju_runtime::thread_cpu_time;
use caju_types::{Error, Fingerprint, Result, SplitKey};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use xxhash_rust::xxh3::xxh3_128;

use crate::record::PartMeta;
use caju_autocache::{Encoding, Format};

/// How often each thread decodes a probe. The median counts; of two times, the smaller one. A few rows are decoded in
/// microseconds, and the first time takes several times as long as the second.
const DECODES: usize = 2;
/// Bytes that are written before each decoding, to evict the rows from the core's cache: a task's rows come from the store.
const FLUSH_BYTES: usize = 3 << 20;
/// Decodes a file [`DECODES`] times. Gives its rows, and the CPU time of each. `check` includes the checksum.
pub(super) fn decoded(file: &Bytes, encoding: Encoding, check: bool) -> Result<(u64, Vec<Duration>)> {
    // Decoded rows stay alive: in a task, too, the next rows are decoded into new memory, page by page.
    let (mut alive, mut times, mut flushed) = (Vec::new(), Vec::new(), vec![0u8; FLUSH_BYTES]);
    for i in 0..DECODES {
        flushed.fill(u8::try_from(i).unwrap_or(0));
        std::hint::black_box(&mut flushed);
        let start = thread_cpu_time();
        // A mapped file is checked and validated once per process, not in every epoch.
        std::hint::black_box(check.then(|| xxh3_128(file)));
        alive.push(decode_all(file, encoding, !check && i > 0)?);
        times.push(thread_cpu_time().saturating_sub(start));
    }
    let rows = alive.pop().unwrap_or_default().iter().map(|b| b.num_rows() as u64).sum();
    Ok((rows, times))
}

/// Decodes a whole file. `validated` says that the same bytes were decoded before, and cannot have changed.
fn decode_all(file: &Bytes, encoding: Encoding, validated: bool) -> Result<Vec<RecordBatch>> {
    match encoding.format {
        Format::Arrow => crate::read::decode_arrow(&nameless(encoding), file.clone(), validated),
        Format::Parquet => {
            let failed = |e: String| Error::internal(format!("a probe cannot be decoded: {e}"));
            // The reader of a part assembles columns from blocks: a copy, too.
            let file = Bytes::copy_from_slice(file);
            let builder =
                ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| failed(e.to_string()))?;
            let reader = builder.build().map_err(|e| failed(e.to_string()))?;
            reader.map(|b| b.map_err(|e| failed(e.to_string()))).collect()
        }
    }
}

/// A record for the decoder's messages, as if the probe were a part.
fn nameless(encoding: Encoding) -> Arc<PartMeta> {
    Arc::new(PartMeta {
        fingerprint: Fingerprint(0),
        split: SplitKey(0),
        path: "probe".into(),
        attempt: String::new(),
        generation: 0,
        writer: String::new(),
        encoding,
        rows: 0,
        bytes: 0,
        checksum: String::new(),
        blocks: Vec::new(),
        chunks: Vec::new(),
        schema_hash: String::new(),
        skipped: 0,
        source_bytes: 0,
        compute_cpu_us: 0,
        created_unix_ms: 0,
    })
}
