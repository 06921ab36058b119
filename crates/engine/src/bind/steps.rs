//! Binding the stages of one branch, one after another.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use caju_kernels::{BoundExprs, Registry, check_columns};
use caju_pipeline::{Boundaries, Cost, DatasetDef, PythonKind, SourceDef, StageOp};
use caju_sources::feature_field;
use caju_types::{Error, Result, did_you_mean, format_bytes, format_count};
use caju_wire::Padding;

use crate::row::{OutColumn, PythonStage, RowCheck, RowOp, RowStage, inflated_field, unnested_schema};

/// What a stage does at run time.
#[derive(Clone)]
pub(crate) enum Step {
    Rows(Arc<RowStage>),
    /// Rows may be stored here, or enter from a part: the index among the pipeline's hints.
    Hint(usize),
    Cost {
        cost: Cost,
        burn: bool,
        stats: usize,
    },
    /// Gives its input this number of times; none: without end.
    Repeat(Option<u64>),
    /// Elements are computed ahead of the steps below.
    Prefetch {
        elements: usize,
        stats: usize,
    },
    /// Passes on only the elements of a shard.
    Shard(ShardStep),
    /// A cross-split stage.
    Stream {
        op: StreamOp,
        stats: usize,
    },
}

/// What a `shard` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardStep {
    pub(crate) numbers: ShardNumbers,
    /// Its rows are chosen per split, as the splits say. Else elements are counted.
    pub(crate) planned: bool,
    /// The index of its counters; none for the shards of the processing mode `data`, which have no stage in the
    /// definition.
    pub(crate) stats: Option<usize>,
}

/// The numbers of a `shard`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardNumbers {
    /// The number of shards, and which of them.
    Fixed(u64, u64),
    /// Those of the task.
    OfTask,
}

impl ShardNumbers {
    /// As a definition gives them.
    pub(crate) fn new(num_shards: Option<u64>, index: Option<u64>) -> Self {
        num_shards.map_or(ShardNumbers::OfTask, |n| ShardNumbers::Fixed(n, index.unwrap_or(0)))
    }

    /// The number of shards, and which of them; none if the task has none.
    pub(crate) fn resolve(self, task: Option<(u64, u64)>) -> Option<(u64, u64)> {
        match self {
            ShardNumbers::Fixed(n, i) => Some((n, i)),
            ShardNumbers::OfTask => task,
        }
    }
}

/// What a stream stage does.
#[derive(Clone)]
pub(crate) enum StreamOp {
    Shuffle {
        place: String,
        buffer: usize,
        max_bytes: usize,
        seed: Option<u64>,
        position: u32,
    },
    Take(u64),
    Skip(u64),
    Batch(BatchDef),
    Bucket {
        place: String,
        length: Arc<BoundExprs>,
        boundaries: Vec<i64>,
        sizes: Vec<usize>,
        drop_remainder: bool,
        padding: Option<Padding>,
    },
    Unbatch,
}

/// A `batch` or `padded_batch`.
#[derive(Clone)]
pub(crate) struct BatchDef {
    pub(crate) place: String,
    pub(crate) size: usize,
    pub(crate) drop_remainder: bool,
    pub(crate) padding: Option<Padding>,
    /// Whether the short batch at a task's end is merged by the reader with those of other tasks.
    pub(crate) merge: bool,
}

/// Distance between the random positions of a definition and those of the datasets nested in it.
const NESTED_POSITIONS: u32 = 1 << 16;

fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The steps of a definition's stages in the order in which they run, and the schema before the first and after each of them.
/// A stage's draws and messages name the position at which it is written.
pub(crate) fn bind_stages(
    def: &DatasetDef,
    order: &[usize],
    registry: &Registry,
    input: &SchemaRef,
    place: &str,
    at: Level,
) -> Result<(Vec<Step>, Vec<SchemaRef>)> {
    let Level { depth, keep_hints, shards, in_zip, .. } = at;
    let in_zip = in_zip.is_some();
    let (mut hints, mut has_stride) = (0, shards.has_stride);
    // The first `shard` is the planned one.
    let mut shard =
        |numbers, stats| Step::Shard(ShardStep { numbers, planned: std::mem::take(&mut has_stride), stats });
    let mut schemas = vec![Arc::clone(input)];
    let mut steps = Vec::new();
    let mut streaming = false;
    // Where stages change places, no shard stands between them: `at_place` and the index agree there.
    for (at_place, &i) in order.iter().enumerate() {
        let stage = &def.stages[i];
        if shards.data == Some(at_place) {
            steps.push(shard(ShardNumbers::OfTask, None));
        }
        let schema = Arc::clone(&schemas[schemas.len() - 1]);
        let place = format!("{place}steps[{i}].{}", stage.op.name());
        let position =
            u32::try_from(def.stage_position_without_hints(i)).unwrap_or(u32::MAX) + depth * NESTED_POSITIONS;
        let stats = if depth == 0 { at_place + 1 } else { 0 };
        let check = StageSite { place: place.clone(), position, stats, in_zip };
        let at = StageSite { place, position, stats, in_zip };
        if depth > 0 && matches!(stage.op, StageOp::Sleep(_) | StageOp::Burn(_)) {
            return Err(Error::invalid(format!(
                "{}: it slows a whole pipeline down, for experiments; put it below the combined dataset",
                at.place
            )));
        }
        if streaming && multiplies(&stage.op) {
            return Err(Error::invalid(format!(
                "{}: rows cannot be multiplied below a stream stage; put it above the first shuffle, batch, take, skip, repeat or prefetch",
                at.place
            )));
        }
        // A `shard` divides the rows of a `sample` in the order in which they are drawn.
        let is_drawn = matches!(def.source, SourceDef::Sample { .. });
        streaming |= !stage.op.is_split_local() && (is_drawn || !matches!(stage.op, StageOp::Shard { .. }));
        let step = match stage.op {
            StageOp::Shard { num_shards, index } => {
                Some(shard(ShardNumbers::new(num_shards, index), Some(at.stats)))
            }
            StageOp::Autocache { .. } if keep_hints && depth == 0 => {
                hints += 1;
                Some(Step::Hint(hints - 1))
            }
            _ => bind_stage(&stage.op, registry, &schema, at)?,
        };
        if let Some(Step::Stream { op, .. }) = &step
            && let Some(of) = row_check(op, &schema)
        {
            steps.push(check.rows(RowOp::Check(of), Arc::clone(&schema)));
        }
        schemas.push(match &step {
            Some(Step::Rows(r)) => {
                check_columns(&r.schema).map_err(|e| e.context(&r.place))?;
                Arc::clone(&r.schema)
            }
            _ => schema,
        });
        steps.extend(step);
    }
    if shards.data == Some(def.stages.len()) {
        steps.push(shard(ShardNumbers::OfTask, None));
    }
    if shards.data.is_some() && shards.has_stride {
        first_to_front(&mut steps);
    }
    Ok((steps, schemas))
}

/// Whether a stage may give several rows for one.
fn multiplies(op: &StageOp) -> bool {
    matches!(op, StageOp::Unnest { .. } | StageOp::FlatMap { .. })
        || matches!(op, StageOp::Python(function) if function.kind == PythonKind::FlatMap)
}

/// Moves the planned shards of the processing mode `data` to the front: the stages above pass on row for row, so they need
/// not compute the rows of other shards.
fn first_to_front(steps: &mut Vec<Step>) {
    let own = |s: &Step| matches!(s, Step::Shard(ShardStep { planned: true, stats: None, .. }));
    if let Some(at) = steps.iter().position(own) {
        let step = steps.remove(at);
        steps.insert(0, step);
    }
}

/// The context of a definition: whether it is nested in others, and whether its hints are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    pub(crate) depth: u32,
    pub(crate) keep_hints: bool,
    pub(crate) shards: PlannedShards,
    /// Inside of a `zip`, which pairs rows by their numbers: the place there, as a number. The datasets of a `zip` may read the
    /// same splits.
    pub(crate) in_zip: Option<u64>,
    /// Whether bad rows are skipped, by the settings of the outermost definition.
    pub(crate) skips: bool,
}

/// What was planned of the shards of the outermost definition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlannedShards {
    /// The stage above which the processing mode `data` has its shards.
    pub(crate) data: Option<usize>,
    /// Whether the rows of the first `shard` are chosen per split.
    pub(crate) has_stride: bool,
}

struct StageSite {
    place: String,
    position: u32,
    stats: usize,
    in_zip: bool,
}

impl StageSite {
    fn rows(self, op: RowOp, schema: SchemaRef) -> Step {
        Step::Rows(Arc::new(RowStage {
            op,
            place: self.place,
            position: self.position,
            schema,
            stats: self.stats,
            in_zip: self.in_zip,
        }))
    }

    fn wrap(&self, e: Error) -> Error {
        e.context(&self.place)
    }

    fn column(&self, schema: &Schema, name: &str) -> Result<usize> {
        schema.index_of(name).map_err(|_| {
            let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            Error::invalid(format!(
                "{}: unknown column `{name}`{}; the row has: {}",
                self.place,
                did_you_mean(name, &known),
                known.join(", ")
            ))
        })
    }
}

/// The column of TFRecord files.
const RECORD: &str = "record";

/// What to do about a `parse_example` whose column is not there: its source does not read TFRecord files.
const PARSE_HINT: &str = "; parse_example reads the tf.train.Example records of TFRecord files: remove it for other formats, \
                          whose rows have columns already";

fn bind_stage(op: &StageOp, registry: &Registry, schema: &SchemaRef, at: StageSite) -> Result<Option<Step>> {
    Ok(Some(match op {
        StageOp::Autocache { .. } => return Ok(None),
        StageOp::Prefetch(n) => Step::Prefetch { elements: count(*n), stats: at.stats },
        StageOp::ParseExample { column, features } => {
            let column = at.column(schema, column).map_err(|e| match schema.index_of(RECORD) {
                Ok(_) => e,
                Err(_) => Error::invalid(format!("{}{PARSE_HINT}", e.message())),
            })?;
            let fields = features
                .iter()
                .map(|(n, f)| feature_field(n, f).map_err(|e| at.wrap(e)))
                .collect::<Result<Vec<_>>>()?;
            at.rows(RowOp::Parse { column, features: features.clone() }, Arc::new(Schema::new(fields)))
        }
        StageOp::Map(exprs) => {
            let bound = registry.bind(&at.place, exprs, schema)?;
            let out = (0..exprs.len()).map(OutColumn::Expr).collect();
            let fields = bound.fields().clone();
            project(at, Some(bound), out, fields)
        }
        StageOp::WithColumns(exprs) => bind_with_columns(exprs, registry, schema, at)?,
        StageOp::Select(names) => {
            let columns = names.iter().map(|n| at.column(schema, n)).collect::<Result<Vec<_>>>()?;
            let fields: Fields = columns.iter().map(|&i| Arc::clone(&schema.fields()[i])).collect();
            project(at, None, columns.into_iter().map(OutColumn::Input).collect(), fields)
        }
        StageOp::Filter(sql) => {
            let bound = registry.bind_predicate(&at.place, sql, schema)?;
            at.rows(RowOp::Filter(bound), Arc::clone(schema))
        }
        StageOp::Unnest { column } => {
            let i = at.column(schema, column)?;
            let (out, index) =
                unnested_schema(schema, column, schema.field(i).data_type()).map_err(|e| at.wrap(e))?;
            at.rows(RowOp::Unnest { list: OutColumn::Input(i), exprs: None, at: index }, out)
        }
        StageOp::FlatMap { name, expr } => {
            let bound = registry.bind(&at.place, &[(name.clone(), expr.clone())], schema)?;
            let list = bound.fields()[0].data_type().clone();
            let (out, index) = unnested_schema(schema, name, &list).map_err(|e| at.wrap(e))?;
            at.rows(RowOp::Unnest { list: OutColumn::Expr(0), exprs: Some(bound), at: index }, out)
        }
        StageOp::Inflate { column, factor } => {
            let i = at.column(schema, column)?;
            let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
            fields[i] = Arc::new(inflated_field(&fields[i], *factor).map_err(|e| at.wrap(e))?);
            at.rows(RowOp::Inflate { column: i, factor: *factor }, Arc::new(Schema::new(fields)))
        }
        StageOp::Python(f) => {
            let stage = PythonStage::bind(f, registry, schema).map_err(|e| at.wrap(e))?;
            let out = stage.schema();
            at.rows(RowOp::Python(stage), out)
        }
        StageOp::Sleep(cost) => Step::Cost { cost: *cost, burn: false, stats: at.stats },
        StageOp::Burn(cost) => Step::Cost { cost: *cost, burn: true, stats: at.stats },
        StageOp::Repeat(count) => Step::Repeat(*count),
        op => Step::Stream { stats: at.stats, op: bind_stream(op, registry, schema, at)? },
    }))
}

fn bind_stream(op: &StageOp, registry: &Registry, schema: &SchemaRef, at: StageSite) -> Result<StreamOp> {
    Ok(match op {
        StageOp::Shuffle { buffer, seed, max_bytes } => StreamOp::Shuffle {
            place: at.place,
            buffer: count(*buffer),
            max_bytes: count(*max_bytes),
            seed: *seed,
            position: at.position,
        },
        StageOp::Take(n) => StreamOp::Take(*n),
        StageOp::Skip(n) => StreamOp::Skip(*n),
        StageOp::Batch { size, drop_remainder } => StreamOp::Batch(BatchDef {
            place: at.place,
            size: count(*size),
            drop_remainder: *drop_remainder,
            padding: None,
            merge: false,
        }),
        StageOp::PaddedBatch { size, drop_remainder, lengths, values } => {
            for name in lengths.keys().chain(values.keys()) {
                at.column(schema, name)?;
            }
            for (name, length) in lengths {
                check_padding(name, *length, *size, schema, registry).map_err(|e| at.wrap(e))?;
            }
            let padding = Padding { lengths: lengths.clone(), values: values.clone() };
            StreamOp::Batch(BatchDef {
                place: at.place,
                size: count(*size),
                drop_remainder: *drop_remainder,
                padding: Some(padding),
                merge: false,
            })
        }
        StageOp::BucketByLength { length, boundaries, batch_sizes, drop_remainder, pad } => {
            let bound = registry.bind(&at.place, &[("length".to_string(), length.clone())], schema)?;
            let dtype = bound.fields()[0].data_type();
            if !dtype.is_integer() {
                return Err(Error::invalid(format!(
                    "{}: `length` is {dtype}, not an integer: {length}",
                    at.place
                )));
            }
            if bound.is_random() {
                return Err(Error::invalid(format!("{}: `length` may not be random: {length}", at.place)));
            }
            StreamOp::Bucket {
                place: at.place,
                length: Arc::new(bound),
                boundaries: match boundaries {
                    Boundaries::Given(list) => list.clone(),
                    // Such a pipeline has a schema, and no task runs it.
                    Boundaries::Learnt(_) => Vec::new(),
                },
                sizes: batch_sizes.iter().map(|&n| count(n)).collect(),
                drop_remainder: *drop_remainder,
                padding: pad.then(Padding::default),
            }
        }
        StageOp::Unbatch => StreamOp::Unbatch,
        other => return Err(Error::internal(format!("{}: `{}` is no stream stage", at.place, other.name()))),
    })
}

/// What the rows of a stream stage have to satisfy; none if all rows do.
fn row_check(op: &StreamOp, schema: &Schema) -> Option<RowCheck> {
    match op {
        StreamOp::Bucket { length, .. } => {
            let fits = length.is_infallible() && length.fields()[0].data_type() != &DataType::UInt64;
            (!fits).then(|| RowCheck::Length((**length).clone()))
        }
        StreamOp::Batch(batch) => {
            let lengths = &batch.padding.as_ref()?.lengths;
            let column = |(name, n): (&String, &u32)| Some((schema.index_of(name).ok()?, name.clone(), *n));
            let columns: Vec<_> = lengths.iter().filter_map(column).collect();
            (!columns.is_empty()).then_some(RowCheck::FixedLengths(columns))
        }
        _ => None,
    }
}

/// Refuses a fixed length at which a full batch exceeds the memory limit of a chunk.
fn check_padding(name: &str, length: u32, size: u64, schema: &Schema, registry: &Registry) -> Result<()> {
    let item = match schema.field_with_name(name).map(Field::data_type) {
        Ok(DataType::List(item)) => item.data_type().primitive_width().unwrap_or(1),
        _ => 1,
    };
    let bytes = size.saturating_mul(u64::from(length)).saturating_mul(item as u64);
    let most = registry.limits().chunk_bytes;
    if bytes <= most {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "`lengths.{name}`: a batch of {size} lists of {} values needs {}, and {} is the most that the work on one chunk \
         may take; use a smaller `size` or length, or raise --chunk-memory",
        format_count(u64::from(length)),
        format_bytes(bytes),
        format_bytes(most)
    )))
}

fn project(at: StageSite, exprs: Option<BoundExprs>, out: Vec<OutColumn>, fields: Fields) -> Step {
    at.rows(RowOp::Project { exprs, out }, Arc::new(Schema::new(fields)))
}

/// Existing columns keep their place, new ones go to the end in the order given.
fn bind_with_columns(
    exprs: &[(String, String)],
    registry: &Registry,
    schema: &SchemaRef,
    at: StageSite,
) -> Result<Step> {
    let bound = registry.bind(&at.place, exprs, schema)?;
    let mut out: Vec<OutColumn> = (0..schema.fields().len()).map(OutColumn::Input).collect();
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    for (i, field) in bound.fields().iter().enumerate() {
        match schema.index_of(field.name()) {
            Ok(old) => {
                out[old] = OutColumn::Expr(i);
                fields[old] = Arc::clone(field);
            }
            Err(_) => {
                out.push(OutColumn::Expr(i));
                fields.push(Arc::clone(field));
            }
        }
    }
    Ok(project(at, Some(bound), out, fields.into()))
}

impl RowStage {
    /// Indices of the input columns that the stage needs for what it computes or passes on by name.
    pub(crate) fn reads(&self) -> Vec<usize> {
        match &self.op {
            RowOp::Parse { column, .. } | RowOp::Inflate { column, .. } => vec![*column],
            RowOp::Project { exprs, out } => {
                let mut columns = exprs.as_ref().map(|e| e.columns().to_vec()).unwrap_or_default();
                // `with_columns` passes everything on; only `select` names what it passes.
                if exprs.is_none() {
                    columns.extend(out.iter().filter_map(|c| match c {
                        OutColumn::Input(i) => Some(*i),
                        OutColumn::Expr(_) => None,
                    }));
                }
                columns
            }
            RowOp::Filter(e) => e.columns().to_vec(),
            // A function reads all columns; callers handle that case before.
            RowOp::Python(_) | RowOp::Check(_) => Vec::new(),
            RowOp::Unnest { list, exprs, .. } => {
                let mut columns = exprs.as_ref().map(|e| e.columns().to_vec()).unwrap_or_default();
                if let OutColumn::Input(i) = list {
                    columns.push(*i);
                }
                columns
            }
        }
    }
}
