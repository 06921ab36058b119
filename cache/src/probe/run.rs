//! Running a probe: encode, store, fetch, decode, remove.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_runtime::thread_cpu_time;
use caju_types::{Error, Result};

use super::decode::decoded;
use super::store::StoreSample;
use super::task::{Probe, ProbeTask};
use super::timing::{blocking, concurrently};
use crate::cache::Cache;
use crate::context::cores;
use crate::write::encode_all;
use caju_autocache::Encoding;

/// The age from which a probe's object is stale: its process has ended. A probe takes seconds.
const STALE_AFTER: Duration = Duration::from_secs(600);
impl Cache {
    /// Encodes rows, writes them to the store under a name of their own, reads them back, decodes them on as many threads
    /// as the task has, and removes them. The requests are left out where `task` has their costs from an earlier probe. A
    /// probe's objects that a crash leaves are removed by [`Cache::remove_stale_probes`] and by [`Cache::gc`].
    ///
    /// # Errors
    /// `InvalidArgument` if the rows cannot be stored in the encoding, and the errors of the store.
    pub async fn probe(
        self: &Arc<Self>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
        encoding: Encoding,
        task: ProbeTask,
    ) -> Result<Probe> {
        let (schema, rows) = (Arc::clone(schema), rows.to_vec());
        let block = self.ctx.options.block_bytes;
        let count: u64 = rows.iter().map(|b| b.num_rows() as u64).sum();
        let encode = move || {
            let start = thread_cpu_time();
            let file = encode_all(&schema, &rows, encoding, block)?;
            let cpu = thread_cpu_time().saturating_sub(start);
            let empty: usize = encode_all(&schema, &[], encoding, block)?.iter().map(Bytes::len).sum();
            Ok::<_, Error>((file, cpu, empty))
        };
        let mut spent = Duration::ZERO;
        let (file, encode_cpu, empty) = blocking(&mut spent, encode).await?;
        let whole = file.iter().map(Bytes::len).sum::<usize>() as u64;
        let known = task.fetch_cpu_s_per_byte.filter(|_| !task.measures_store && !self.ctx.maps());
        let StoreSample { fetched, mapped, fetch_cpu, store, write, read } = match known {
            Some(per_byte) => StoreSample::without_requests(&file, per_byte * whole as f64),
            None => self.sample_store(&mut spent, file, task).await?,
        };
        let decode = move || decoded(&fetched, encoding, !mapped);
        let (decoded, decode_cpu) = concurrently(&mut spent, task.threads.min(cores()), decode).await?;
        if decoded != count {
            return Err(Error::data_loss(format!("a probe of {count} rows was read back as {decoded}")));
        }
        Ok(Probe {
            encoding,
            rows: count,
            bytes: whole.saturating_sub(empty as u64),
            encode_cpu_s: encode_cpu.as_secs_f64(),
            decode_cpu_s: (decode_cpu + fetch_cpu).as_secs_f64(),
            fetch_cpu_s_per_byte: fetch_cpu.as_secs_f64() / whole.max(1) as f64,
            write_bytes_per_s: write,
            read_bytes_per_s: read,
            spent_cpu_s: spent.as_secs_f64(),
            spent_store_s: store.as_secs_f64(),
        })
    }

    /// Removes stale objects of probes: those older than any probe takes, whose processes have ended.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn remove_stale_probes(&self) -> Result<usize> {
        let probes = self.ctx.root.layout.probes();
        let now = i64::try_from(self.ctx.root.clock.unix_time().as_millis()).unwrap_or(i64::MAX);
        let stale_after = i64::try_from(STALE_AFTER.as_millis()).unwrap_or(i64::MAX);
        let mut gone = 0;
        for object in self.ctx.root.list(&probes).await? {
            if now.saturating_sub(object.modified_ms) > stale_after {
                self.ctx.root.delete(&object.path).await?;
                gone += 1;
            }
        }
        Ok(gone)
    }
}
