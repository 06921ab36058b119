//! Combinators of whole datasets, at the level of splits. The engine runs the stages of their datasets.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::source::{ReadOptions, Source, child_split};
use crate::split::{KeyHasher, Split};
use crate::split_reader::failed;

/// Marks a child's split as a split of the combinator.
fn adopt(index: usize, mut split: Split) -> Result<Split> {
    let index = u32::try_from(index).map_err(|e| Error::invalid(format!("too many datasets: {e}")))?;
    split.child.insert(0, index);
    // Two children may read the same files through different stages, so their splits must not share a key.
    split.key = KeyHasher::new("child").value(index.into()).key(split.key).finish();
    Ok(split)
}

fn read_child(
    children: &[Arc<dyn Source>],
    split: &Split,
    options: &ReadOptions,
) -> BoxStream<'static, Result<RecordBatch>> {
    let found = child_split(split).and_then(|(i, split)| Some((children.get(i)?, split)));
    match found {
        Some((child, split)) => child.read(&split, options),
        None => {
            let e = Error::internal(format!("{}: the split names no child of its source", split.describe()));
            failed(e)
        }
    }
}

/// The datasets one after another.
pub(crate) struct Concatenated {
    pub(crate) children: Vec<Arc<dyn Source>>,
}

impl Source for Concatenated {
    fn schema(&self) -> SchemaRef {
        self.children.first().map_or_else(|| Arc::new(arrow_schema::Schema::empty()), |c| c.schema())
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let children = self.children.clone();
        stream::iter(children.into_iter().enumerate())
            .flat_map(|(i, child)| child.splits().map(move |s| adopt(i, s?)))
            .boxed()
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>> {
        read_child(&self.children, split, options)
    }

    fn children(&self) -> &[Arc<dyn Source>] {
        &self.children
    }
}

/// Splits of the datasets in turn, by weight. The engine draws which row comes next.
pub(crate) struct Sampled {
    pub(crate) children: Vec<Arc<dyn Source>>,
    pub(crate) weights: Vec<f64>,
}

/// One child of a mix: its splits, and its progress relative to its weight.
struct Turn {
    index: usize,
    splits: BoxStream<'static, Result<Split>>,
    weight: f64,
    served: f64,
}

impl Source for Sampled {
    fn schema(&self) -> SchemaRef {
        self.children.first().map_or_else(|| Arc::new(arrow_schema::Schema::empty()), |c| c.schema())
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let turns: Vec<Turn> = self
            .children
            .iter()
            .zip(&self.weights)
            .enumerate()
            .map(|(index, (child, &weight))| Turn {
                index,
                splits: child.splits(),
                weight: weight.max(f64::MIN_POSITIVE),
                served: 0.0,
            })
            .collect();
        stream::try_unfold(turns, |mut turns| async move {
            loop {
                // The child that is furthest behind its weight; the first one of equals.
                let next = (0..turns.len()).min_by(|&a, &b| {
                    let at = |t: &Turn| (t.served + 1.0) / t.weight;
                    at(&turns[a]).total_cmp(&at(&turns[b])).then(a.cmp(&b))
                });
                let Some(next) = next else { return Ok(None) };
                match turns[next].splits.try_next().await? {
                    Some(split) => {
                        turns[next].served += 1.0;
                        let split = adopt(turns[next].index, split)?;
                        return Ok(Some((split, turns)));
                    }
                    None => {
                        turns.remove(next);
                    }
                }
            }
        })
        .boxed()
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>> {
        read_child(&self.children, split, options)
    }

    fn children(&self) -> &[Arc<dyn Source>] {
        &self.children
    }
}
