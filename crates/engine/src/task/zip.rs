//! Rows of several datasets, zipped into one row.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};

/// Batches with the columns of all sides. All sides must have the same number of rows.
pub(super) fn zipped(sides: Vec<Side>, schema: SchemaRef) -> BoxStream<'static, Result<RecordBatch>> {
    stream::try_unfold(sides, move |mut sides| {
        let schema = Arc::clone(&schema);
        async move {
            for side in &mut sides {
                side.fill().await?;
            }
            let rows =
                sides.iter().map(|s| s.ready.as_ref().map_or(0, RecordBatch::num_rows)).min().unwrap_or(0);
            if rows == 0 {
                let uneven = sides.iter().any(|s| s.ready.is_some());
                return if uneven {
                    Err(Error::invalid("zip: the datasets do not have the same number of rows in this split"))
                } else {
                    Ok(None)
                };
            }
            let columns = sides.iter_mut().flat_map(|s| s.take(rows)).collect();
            let batch =
                RecordBatch::try_new(schema, columns).map_err(|e| Error::internal(format!("zip: {e}")))?;
            Ok(Some((batch, sides)))
        }
    })
    .boxed()
}

/// One side of a zip.
pub(super) struct Side {
    rows: BoxStream<'static, Result<RecordBatch>>,
    ready: Option<RecordBatch>,
}

impl Side {
    pub(super) fn of(rows: BoxStream<'static, Result<RecordBatch>>) -> Self {
        Self { rows, ready: None }
    }

    async fn fill(&mut self) -> Result<()> {
        while self.ready.as_ref().is_none_or(|b| b.num_rows() == 0) {
            match self.rows.next().await {
                Some(batch) => self.ready = Some(batch?),
                None => {
                    self.ready = None;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, rows: usize) -> Vec<arrow_array::ArrayRef> {
        let Some(batch) = self.ready.take() else { return Vec::new() };
        let columns = batch.slice(0, rows).columns().to_vec();
        self.ready = Some(batch.slice(rows, batch.num_rows() - rows));
        columns
    }
}
