//! The structure of a definition: hints, split-local stages, batches, randomness.

use caju_types::{Error, Result, did_you_mean};

use crate::def::{DatasetDef, FileFormat, PythonKind, SourceDef, StageOp};
use crate::functions::Functions;
use crate::place::join;

/// A hint and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// Its name, unique in the definition.
    pub name: String,
    /// Its index in [`DatasetDef::stages`]. The stages above it are its prefix.
    pub stage_index: usize,
}

impl DatasetDef {
    /// The files, folders and patterns of all its sources.
    pub fn source_paths(&self) -> Vec<&str> {
        match &self.source {
            SourceDef::Files(files) => files.paths.iter().map(String::as_str).collect(),
            SourceDef::Load { path, .. } => vec![path],
            source => source.children().iter().flat_map(DatasetDef::source_paths).collect(),
        }
    }

    /// The hints, in order.
    pub fn hints(&self) -> Vec<Hint> {
        let named = |(stage_index, op): (usize, &StageOp)| match op {
            StageOp::Autocache { name } => Some(Hint { name: name.clone(), stage_index }),
            _ => None,
        };
        self.ops().enumerate().filter_map(named).collect()
    }

    /// The hint of this name.
    ///
    /// # Errors
    /// `InvalidArgument`, which lists the existing hints.
    pub fn hint(&self, name: &str) -> Result<Hint> {
        let mut hints = self.hints();
        if let Some(at) = hints.iter().position(|h| h.name == name) {
            return Ok(hints.swap_remove(at));
        }
        let mut known = did_you_mean(name, hints.iter().map(|h| &h.name));
        if known.is_empty() {
            let names: Vec<_> = hints.iter().map(|h| format!("`{}`", h.name)).collect();
            known = match names.is_empty() {
                true => "; the definition has no `autocache` step".to_owned(),
                false => format!("; its hints are {}", names.join(", ")),
            };
        }
        Err(Error::invalid(format!("the dataset has no hint `{name}`{known}")))
    }

    /// The number of stages above stage `i` that are not hints. It is the stage's position for random numbers, so that
    /// adding or removing a hint changes no draw.
    pub fn stage_position_without_hints(&self, i: usize) -> usize {
        self.ops().take(i).filter(|op| !matches!(op, StageOp::Autocache { .. })).count()
    }

    /// The number of split-local stages: the index of the first cross-split stage, or the number of all stages. A hint at or
    /// above this index is stored split by split, a hint below it as a set.
    pub fn split_local_len(&self) -> usize {
        self.ops().position(|op| !op.is_split_local()).unwrap_or(self.stages.len())
    }

    /// Whether the files of the source are those of the worker's shard, in the processing mode `hint`.
    pub fn has_file_hint(&self) -> bool {
        matches!(&self.source, SourceDef::Files(f) if f.shard.is_some_and(|s| s.num_shards.is_none()))
    }

    /// Whether some `shard` leaves its numbers to the processing mode `hint`.
    pub fn has_shard_hint(&self) -> bool {
        self.has_file_hint() || self.ops().any(|op| matches!(op, StageOp::Shard { num_shards: None, .. }))
    }

    /// The number of times that a dataset of a `sample` gives the rows above its last stage, a `repeat`: none without end, and 1
    /// for any other last stage.
    pub fn repetitions(&self) -> Option<u64> {
        match self.ops().last() {
            Some(StageOp::Repeat(count)) => *count,
            _ => Some(1),
        }
    }

    /// Whether an epoch never ends: an endless `repeat` without a `take` below it.
    pub fn is_endless(&self) -> bool {
        self.ops().fold(self.source.endless_dataset().is_some(), |endless, op| match op {
            StageOp::Repeat(None) => true,
            StageOp::Take(_) => false,
            _ => endless,
        })
    }

    /// The stage that makes the batches at the end of the pipeline; none if the elements are rows.
    pub fn batched_by(&self) -> Option<usize> {
        self.ops().enumerate().fold(None, |at, (i, op)| match op {
            StageOp::Unbatch => None,
            op if op.makes_batches() => Some(i),
            _ => at,
        })
    }

    /// The first stage that computes on the lists that the stage `at` has padded; none if that one does not pad, or if nothing
    /// computes below it. Such a stage has to see each batch as it is delivered.
    pub fn computes_on_padding(&self, at: usize) -> Option<&StageOp> {
        let pads = match self.stages.get(at).map(|s| &s.op) {
            Some(StageOp::PaddedBatch { .. }) => true,
            Some(StageOp::BucketByLength { pad, .. }) => *pad,
            _ => false,
        };
        let below = self.ops().skip(at + 1).take_while(|op| !matches!(op, StageOp::Unbatch));
        let computes = |op: &&StageOp| {
            op.computes() && !matches!(op, StageOp::Select(_) | StageOp::Sleep(_) | StageOp::Burn(_))
        };
        below.into_iter().find(|op| pads && computes(op))
    }

    /// Whether each epoch gives other rows or another order of rows: because of a random function, a `shuffle` or a `sample`,
    /// with or without a seed of its own.
    ///
    /// # Errors
    /// An expression that does not parse, with its place.
    pub fn is_random(&self, functions: &dyn Functions) -> Result<bool> {
        let mut random = matches!(self.source, SourceDef::Sample { .. });
        for child in self.source.children() {
            random |= child.is_random(functions)?;
        }
        for (i, op) in self.ops().enumerate() {
            random |= matches!(op, StageOp::Shuffle { .. });
            for (place, sql) in op.expressions() {
                let at = |e: Error| e.context(format!("steps[{i}].{place}"));
                random |= functions.is_random(sql).map_err(at)?;
            }
        }
        Ok(random)
    }

    /// A Python function that draws from a generator which is not caju's, and the name of that generator: rows that are computed
    /// again get other draws, so an epoch cannot be continued exactly. None if there is none.
    pub fn draws_from(&self) -> Option<(&str, &str)> {
        self.source.children().iter().find_map(DatasetDef::draws_from).or_else(|| {
            self.ops().find_map(|op| match op {
                StageOp::Python(f) => Some((f.name.as_str(), f.draws_from.as_deref()?)),
                _ => None,
            })
        })
    }

    /// The number of stages behind which a row has the same number whenever it is computed: all of them, or those above the
    /// first function that drops or adds rows and draws from a generator which is not caju's. None if such a function is inside
    /// of the source.
    pub fn stages_with_fixed_rows(&self) -> Option<usize> {
        let mut children = self.source.children().iter();
        if children.any(|child| child.stages_with_fixed_rows() != Some(child.stages.len())) {
            return None;
        }
        let changes_rows = |op: &StageOp| match op {
            StageOp::Python(f) => f.draws_from.is_some() && f.kind != PythonKind::Map,
            _ => false,
        };
        Some(self.ops().position(changes_rows).unwrap_or(self.stages.len()))
    }

    /// The definition with the seed of a job.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// The names of the stages in profiles: `1.with_columns` is `steps[1]`.
    pub fn stage_names(&self) -> Vec<String> {
        self.ops().enumerate().map(|(i, op)| format!("{i}.{}", op.name())).collect()
    }

    /// The operators of the stages.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &StageOp> {
        self.stages.iter().map(|s| &s.op)
    }
}

impl SourceDef {
    /// The datasets inside a combinator; empty for other sources.
    pub fn children(&self) -> &[DatasetDef] {
        match self {
            SourceDef::Concatenate(list) | SourceDef::Zip(list) => list,
            SourceDef::Sample { datasets, .. } => datasets,
            SourceDef::Files(_)
            | SourceDef::Range { .. }
            | SourceDef::Memory { .. }
            | SourceDef::InlineTable { .. }
            | SourceDef::Load { .. } => &[],
        }
    }

    /// The first dataset of a `sample` that never ends, by its position.
    pub fn endless_dataset(&self) -> Option<usize> {
        match self {
            SourceDef::Sample { datasets, .. } => datasets.iter().position(|d| d.repetitions().is_none()),
            _ => None,
        }
    }

    /// Whether the number of rows of every split is known without reading it.
    pub fn knows_rows(&self) -> bool {
        match self {
            SourceDef::Files(f) => {
                matches!(f.format, FileFormat::Parquet { .. } | FileFormat::Arrow { .. } | FileFormat::Images)
            }
            SourceDef::Range { .. } | SourceDef::Memory { .. } | SourceDef::InlineTable { .. } => true,
            // A part may belong to a save that is still being written: then the count of all is not known.
            SourceDef::Load { .. } => false,
            SourceDef::Concatenate(children) => {
                children.iter().all(|c| c.source.knows_rows() && c.ops().all(StageOp::keeps_rows))
            }
            SourceDef::Sample { .. } | SourceDef::Zip(_) => false,
        }
    }

    /// Whether each epoch may read other rows of the same files: there is a `sample` in it.
    pub fn is_sampled(&self) -> bool {
        matches!(self, Self::Sample { .. }) || self.children().iter().any(|child| child.source.is_sampled())
    }

    pub(crate) fn children_mut(&mut self) -> &mut [DatasetDef] {
        match self {
            SourceDef::Concatenate(list) | SourceDef::Zip(list) => list,
            SourceDef::Sample { datasets, .. } => datasets,
            SourceDef::Files(_)
            | SourceDef::Range { .. }
            | SourceDef::Memory { .. }
            | SourceDef::InlineTable { .. }
            | SourceDef::Load { .. } => &mut [],
        }
    }
}

impl StageOp {
    /// Whether the stage keeps the number and the order of rows.
    pub fn keeps_rows(&self) -> bool {
        self.is_split_local()
            && !matches!(self, StageOp::Filter(_) | StageOp::Unnest { .. } | StageOp::FlatMap { .. })
            && !matches!(self, StageOp::Python(f) if f.kind != PythonKind::Map)
    }

    /// Whether the stage turns rows into batches: `batch`, `padded_batch`, `bucket_by_length`.
    pub fn makes_batches(&self) -> bool {
        matches!(self, StageOp::Batch { .. } | StageOp::PaddedBatch { .. } | StageOp::BucketByLength { .. })
    }

    /// The stage's expressions, each with its place for errors: `with_columns.image`, `filter`.
    pub fn expressions(&self) -> Vec<(String, &str)> {
        let own = self.name();
        match self {
            StageOp::Map(list) | StageOp::WithColumns(list) => {
                list.iter().map(|(name, sql)| (join(own, name), sql.as_str())).collect()
            }
            StageOp::Filter(sql) => vec![(own.to_owned(), sql)],
            StageOp::FlatMap { expr, .. } => vec![(join(own, "expr"), expr)],
            StageOp::BucketByLength { length, .. } => vec![(join(own, "length"), length)],
            _ => Vec::new(),
        }
    }

    pub(crate) fn expressions_mut(&mut self) -> Vec<&mut String> {
        match self {
            StageOp::Map(list) | StageOp::WithColumns(list) => list.iter_mut().map(|(_, sql)| sql).collect(),
            StageOp::Filter(sql) | StageOp::FlatMap { expr: sql, .. } => vec![sql],
            StageOp::BucketByLength { length, .. } => vec![length],
            _ => Vec::new(),
        }
    }
}
