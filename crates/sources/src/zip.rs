//! `zip`: datasets aligned by row numbers; datasets that cannot be aligned are refused.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use caju_pipeline::{DatasetDef, StageOp};
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::source::{ReadOptions, Source};
use crate::split::{KeyHasher, Split, SplitRange};
use crate::split_reader::failed;
use crate::trim::trimmed;

/// Zipped rows of the children. Splits end where those of the first child end; the pieces of the others are trimmed to fit.
pub(crate) struct Zipped {
    children: Vec<Arc<dyn Source>>,
    schema: SchemaRef,
}

impl Zipped {
    /// Refuses datasets whose rows cannot be aligned.
    pub(crate) fn new(datasets: &[DatasetDef], children: Vec<Arc<dyn Source>>) -> Result<Self> {
        if children.is_empty() {
            return Err(Error::invalid("source zip: names no dataset"));
        }
        for (i, dataset) in datasets.iter().enumerate() {
            if let Some(op) = renumbering_stage(dataset) {
                return Err(Error::invalid(format!(
                    "source zip: dataset {i} has a `{}`, behind which row numbers are not known, so its rows cannot \
                     be aligned with the others; put it behind the zip",
                    op.name()
                )));
            }
        }
        // Only of use for children without stages; names may then collide, which the engine refuses.
        let fields: Vec<_> =
            children.iter().flat_map(|c| c.schema().fields().iter().cloned().collect::<Vec<_>>()).collect();
        Ok(Self { children, schema: Arc::new(Schema::new(fields)) })
    }
}

/// The first stage of a dataset behind which rows have other numbers than in its files, those of the datasets inside of it included:
/// what a `concatenate` lists are the rows above the stages of its datasets.
fn renumbering_stage(dataset: &DatasetDef) -> Option<&StageOp> {
    let own = dataset.stages.iter().map(|s| &s.op).find(|op| !keeps_rows(op));
    own.or_else(|| dataset.source.children().iter().find_map(renumbering_stage))
}

/// Whether the n-th row that comes out is made from the n-th that goes in.
fn keeps_rows(op: &StageOp) -> bool {
    match op {
        StageOp::Filter(_) | StageOp::Unnest { .. } | StageOp::FlatMap { .. } => false,
        StageOp::Python(f) => f.kind == caju_pipeline::PythonKind::Map,
        StageOp::Prefetch(_) => true,
        op => op.is_split_local(),
    }
}

/// One child's splits as one sequence of rows.
struct Side {
    index: usize,
    splits: BoxStream<'static, Result<Split>>,
    /// The current split, and the number of its rows that are used up.
    at: Option<(Split, u64)>,
    taken: u64,
}

impl Side {
    /// The current split, if it has rows left; none at the end.
    async fn ready(&mut self) -> Result<bool> {
        while self.at.as_ref().is_none_or(|(s, used)| s.trimmed_rows().unwrap_or(0) == *used) {
            let Some(next) = self.splits.try_next().await? else {
                self.at = None;
                return Ok(false);
            };
            if next.trimmed_rows().is_none() {
                return Err(Error::invalid(format!(
                    "source zip: dataset {}: the number of rows of {} is not known without reading it, so its rows \
                     cannot be aligned with the others; zip takes parquet, arrow, images, range and in-memory rows",
                    self.index,
                    next.describe()
                )));
            }
            self.at = Some((next, 0));
        }
        Ok(true)
    }

    /// Pieces of exactly `rows` rows.
    async fn take(&mut self, mut rows: u64) -> Result<Vec<Split>> {
        let mut pieces = Vec::new();
        while rows > 0 {
            if !self.ready().await? {
                return Err(self.uneven());
            }
            let Some((split, used)) = &mut self.at else { return Err(self.uneven()) };
            let left = split.trimmed_rows().unwrap_or(0) - *used;
            let n = left.min(rows);
            let skip = split.trim.map_or(0, |t| t.0) + *used;
            let whole = skip == 0 && Some(n) == split.rows;
            pieces.push(Split { trim: (!whole).then_some((skip, n)), ..split.clone() });
            *used += n;
            self.taken += n;
            rows -= n;
        }
        Ok(pieces)
    }

    fn uneven(&self) -> Error {
        Error::invalid(format!(
            "source zip: dataset {} ends after {} rows and dataset 0 has more; datasets to zip need the same number \
             of rows",
            self.index, self.taken
        ))
    }
}

impl Source for Zipped {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let sides: Vec<Side> = self
            .children
            .iter()
            .enumerate()
            .map(|(index, child)| Side { index, splits: child.splits(), at: None, taken: 0 })
            .collect();
        stream::try_unfold(sides, |mut sides| async move {
            let Some((first, others)) = sides.split_first_mut() else { return Ok(None) };
            if !first.ready().await? {
                for side in others {
                    if side.ready().await? {
                        return Err(Error::invalid(format!(
                            "source zip: dataset 0 ends after {} rows and dataset {} has more; datasets to zip need \
                             the same number of rows",
                            first.taken, side.index
                        )));
                    }
                }
                return Ok(None);
            }
            let rows = first.at.as_ref().and_then(|(s, _)| s.trimmed_rows()).unwrap_or(0);
            let mut parts = vec![first.take(rows).await?];
            for side in others {
                parts.push(side.take(rows).await?);
            }
            let range = SplitRange::Zipped(parts);
            let key = KeyHasher::new("zip").range(&range).finish();
            let split = Split {
                child: Vec::new(),
                repetition: 0,
                key,
                file: None,
                range,
                rows: Some(rows),
                trim: None,
                stride: None,
            };
            Ok(Some((split, sides)))
        })
        .boxed()
    }

    /// The rows as the children's sources give them; the engine runs the children's stages itself.
    fn read(&self, split: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>> {
        let SplitRange::Zipped(parts) = &split.range else {
            let e = Error::internal(format!("{}: not a split of zip", split.describe()));
            return failed(e);
        };
        let own = ReadOptions { projection: None, ..options.clone() };
        let sides: Vec<_> = self
            .children
            .iter()
            .zip(parts)
            .map(|(child, pieces)| {
                let streams: Vec<_> = pieces.iter().map(|p| child.read(p, &own)).collect();
                (stream::iter(streams).flatten().boxed(), None::<RecordBatch>)
            })
            .collect();
        let (schema, projection) = (Arc::clone(&self.schema), options.projection.clone());
        let rows = stream::try_unfold(sides, move |mut sides| {
            let (schema, projection) = (Arc::clone(&schema), projection.clone());
            async move {
                let mut rows = usize::MAX;
                for (stream, ready) in &mut sides {
                    while ready.as_ref().is_none_or(|b| b.num_rows() == 0) {
                        let Some(batch) = stream.try_next().await? else { return Ok(None) };
                        *ready = Some(batch);
                    }
                    rows = rows.min(ready.as_ref().map_or(0, RecordBatch::num_rows));
                }
                let mut columns = Vec::with_capacity(schema.fields().len());
                for (_, ready) in &mut sides {
                    if let Some(batch) = ready.take() {
                        columns.extend(batch.slice(0, rows).columns().iter().cloned());
                        *ready = Some(batch.slice(rows, batch.num_rows() - rows));
                    }
                }
                let mut batch = RecordBatch::try_new(schema, columns)
                    .map_err(|e| Error::invalid(format!("source zip: {e}")))?;
                if let Some(p) = &projection {
                    batch = batch.project(p).map_err(|e| Error::internal(e.to_string()))?;
                }
                Ok(Some((batch, sides)))
            }
        })
        .boxed();
        trimmed(rows, split.trim)
    }

    fn children(&self) -> &[Arc<dyn Source>] {
        &self.children
    }
}
