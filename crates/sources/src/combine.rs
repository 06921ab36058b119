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

/// The number of rows of a split, which the definition promises to be known.
fn rows(split: &Split) -> Result<u64> {
    split.rows.ok_or_else(|| {
        Error::internal(format!(
            "{}: the number of rows of a repeated dataset is not known",
            split.describe()
        ))
    })
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
    /// How often each child is read; none: without end.
    pub(crate) repetitions: Vec<Option<u64>>,
}

/// One child of a mix: its splits, and its progress relative to its weight.
struct Turn {
    index: usize,
    /// Those that were not given yet; none once all were.
    splits: Option<BoxStream<'static, Result<Split>>>,
    weight: f64,
    /// Splits so far; or rows, where a child is repeated.
    served: f64,
    repeated: Repeated,
}

/// The splits of a child, to be given again.
struct Repeated {
    /// How often they are given in all; none: without end.
    times: Option<u64>,
    splits: Vec<Split>,
    has_rows: bool,
    /// The repetition of the next split, from 1, and its position in it.
    next: (u64, usize),
}

impl Turn {
    /// The next split.
    async fn next(&mut self) -> Result<Option<Split>> {
        if let Some(splits) = &mut self.splits {
            if let Some(split) = splits.try_next().await? {
                self.repeated.add(&split);
                return Ok(Some(split));
            }
            self.splits = None;
        }
        Ok(self.repeated.again())
    }
}

impl Repeated {
    fn add(&mut self, split: &Split) {
        if self.times != Some(1) {
            self.has_rows |= split.rows != Some(0);
            self.splits.push(split.clone());
        }
    }

    /// The next split of a later repetition. It has a key of its own: its rows draw other random numbers.
    fn again(&mut self) -> Option<Split> {
        let (mut repetition, mut at) = self.next;
        if at >= self.splits.len() {
            (repetition, at) = (repetition + 1, 0);
        }
        // Nothing would be repeated without end.
        let is_over = !self.has_rows || self.times.is_some_and(|times| repetition >= times);
        let mut split = self.splits.get(at).filter(|_| !is_over)?.clone();
        let repeated = KeyHasher::new("repetition").value(repetition.cast_signed());
        split.key = repeated.key(split.key).finish();
        self.next = (repetition, at + 1);
        Some(split)
    }
}

impl Sampled {
    fn turns(&self) -> Vec<Turn> {
        let children = self.children.iter().zip(&self.weights).zip(&self.repetitions).enumerate();
        children
            .map(|(index, ((child, weight), times))| Turn {
                index,
                splits: Some(child.splits()),
                weight: weight.max(f64::MIN_POSITIVE),
                served: 0.0,
                repeated: Repeated { times: *times, splits: Vec::new(), has_rows: false, next: (1, 0) },
            })
            .collect()
    }
}

impl Source for Sampled {
    fn schema(&self) -> SchemaRef {
        self.children.first().map_or_else(|| Arc::new(arrow_schema::Schema::empty()), |c| c.schema())
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        // Without an end the splits have to follow the weights by their rows.
        let by_rows = self.repetitions.iter().any(|times| *times != Some(1));
        stream::try_unfold(self.turns(), move |mut turns| async move {
            loop {
                // The child that is furthest behind its weight; the first one of equals.
                let next = (0..turns.len()).min_by(|&a, &b| {
                    let at = |t: &Turn| (t.served + 1.0) / t.weight;
                    at(&turns[a]).total_cmp(&at(&turns[b])).then(a.cmp(&b))
                });
                let Some(next) = next else { return Ok(None) };
                match turns[next].next().await? {
                    Some(split) => {
                        turns[next].served += if by_rows { rows(&split)? as f64 } else { 1.0 };
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use caju_pipeline::{DatasetDef, Options, SourceDef, StageDef, StageOp};

    use super::*;
    use crate::open::open_source;
    use crate::source::ReadOptions;
    use crate::test_util::{context, source_rows, splits};

    fn range(rows: i64) -> DatasetDef {
        let source = SourceDef::Range { start: 0, end: rows, step: 1 };
        DatasetDef { name: None, source, stages: Vec::new(), options: Options::default() }
    }

    fn repeated(rows: i64, times: Option<u64>) -> DatasetDef {
        DatasetDef { stages: vec![StageDef { op: StageOp::Repeat(times) }], ..range(rows) }
    }

    async fn sample(datasets: Vec<DatasetDef>) -> Arc<dyn Source> {
        let def = SourceDef::Sample { datasets, weights: vec![0.6, 0.3, 0.1], seed: None };
        open_source(&def, &context(), None).await.unwrap()
    }

    /// Splits of 1,024 rows, of 7 and of one: without an end the rows are as the weights say, at all times but for a split.
    #[tokio::test]
    async fn endless_datasets_follow_the_weights_by_rows() {
        let source = sample(vec![repeated(4096, None), repeated(7, None), repeated(1, None)]).await;
        let (mut all, mut keys, mut rows) = (source.splits(), HashSet::new(), [0u64; 3]);
        while rows.iter().sum::<u64>() < 50_000 {
            let split = all.next().await.unwrap().unwrap();
            assert!(keys.insert(split.key), "two repetitions draw the same random numbers");
            rows[split.child[0] as usize] += split.rows.unwrap();
            let turns = [rows[0] as f64 / 0.6, rows[1] as f64 / 0.3, rows[2] as f64 / 0.1];
            let apart =
                turns.iter().copied().fold(0.0, f64::max) - turns.iter().copied().fold(f64::MAX, f64::min);
            assert!(apart < 1024.0 / 0.6 + 20.0, "{rows:?}");
        }
        let again = sample(vec![repeated(4096, None), repeated(7, None), repeated(1, None)]).await;
        let first: Vec<Split> = again.splits().take(keys.len()).try_collect().await.unwrap();
        assert!(first.iter().all(|split| keys.contains(&split.key)), "the order is that of any other run");
    }

    #[tokio::test]
    async fn repeated_datasets_come_as_often_as_they_say_and_empty_ones_end() {
        let source = sample(vec![repeated(2000, Some(3)), repeated(0, None), range(10)]).await;
        let children: Vec<u32> = splits(&source).await.unwrap().into_iter().map(|s| s.child[0]).collect();
        assert_eq!(children.iter().filter(|child| **child == 0).count(), 3 * 2);
        // It checks that the keys are unequal.
        let all = source_rows(&source, &ReadOptions::default()).await.unwrap().unwrap();
        assert_eq!(all.num_rows(), 3 * 2000 + 10);
    }
}
