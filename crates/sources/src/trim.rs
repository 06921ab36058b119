//! Slicing streams of batches.

use arrow_array::RecordBatch;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};

/// Only the rows `skip..skip + take` of a stream; the rest of it is not polled.
pub(crate) fn trimmed(
    rows: BoxStream<'static, Result<RecordBatch>>,
    trim: Option<(u64, u64)>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let Some(trim) = trim else { return rows };
    stream::try_unfold((rows, trim), |(mut rows, (mut skip, mut take))| async move {
        loop {
            if take == 0 {
                return Ok(None);
            }
            let Some(batch) = rows.next().await else { return Ok(None) };
            let batch = batch?;
            let n = batch.num_rows() as u64;
            if n <= skip {
                skip -= n;
                continue;
            }
            let len = (n - skip).min(take);
            let (offset, rows_wanted) = (to_usize(skip)?, to_usize(len)?);
            (skip, take) = (0, take - len);
            return Ok(Some((batch.slice(offset, rows_wanted), (rows, (skip, take)))));
        }
    })
    .boxed()
}

fn to_usize(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|e| Error::internal(e.to_string()))
}

/// Consecutive slices of a batch, of at most `rows` rows and about `bytes` bytes.
pub(crate) fn sliced(batch: RecordBatch, rows: usize, bytes: usize) -> Vec<RecordBatch> {
    let n = batch.num_rows();
    let size = batch.get_array_memory_size();
    let by_bytes =
        if size > bytes && n > 0 { (n as u128 * bytes as u128 / size as u128).max(1) } else { n as u128 };
    let step = usize::try_from(by_bytes).unwrap_or(n).min(rows).max(1);
    if n <= step {
        return vec![batch];
    }
    (0..n).step_by(step).map(|at| batch.slice(at, step.min(n - at))).collect()
}
