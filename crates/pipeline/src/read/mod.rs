//! Reading a definition: from text to a tree, from the tree to a [`DatasetDef`], and its validation.

mod args;
mod reorder;
mod source;
mod stage;
mod tree;

use std::path::Path;

use caju_types::Result;
use serde_json::Value;

use self::args::{Args, At};
use crate::def::{DEFAULT_SKIP_LIMIT, DatasetDef, OnError, Options, StageDef, StageOp};
use crate::validate::{MAX_DEPTH, validate};

impl DatasetDef {
    /// Reads a pipeline file. Relative paths of sources are resolved against `base_dir`, the folder of the file. Without
    /// `base_dir` they are refused.
    ///
    /// # Errors
    /// `InvalidArgument`, which names the place and what is expected there. The place is as in `steps[3].shuffle.buffer`, or
    /// a line and column where the text is not YAML.
    ///
    /// ```
    /// use caju_pipeline::DatasetDef;
    /// let def = DatasetDef::from_yaml("source: { range: 10 }\nsteps: [ batch: 4 ]", None)?;
    /// assert_eq!(def.stages[0].op.name(), "batch");
    /// let e = DatasetDef::from_yaml("source: { range: 10 }\nsteps: [ suffle: 4 ]", None).unwrap_err();
    /// assert_eq!(e.to_string(), "unknown stage `suffle` at steps[0]; did you mean `shuffle`?");
    /// # Ok::<(), caju_types::Error>(())
    /// ```
    pub fn from_yaml(text: &str, base_dir: Option<&Path>) -> Result<Self> {
        read(&tree::from_yaml(text)?, base_dir)
    }

    /// Reads the JSON form that [`DatasetDef::to_json`] writes. It has the structure of the YAML form. Paths must be
    /// absolute.
    ///
    /// # Errors
    /// As [`DatasetDef::from_yaml`].
    pub fn from_json(value: &Value) -> Result<Self> {
        read(value, None)
    }

    /// Reads the JSON form from text.
    ///
    /// # Errors
    /// As [`DatasetDef::from_yaml`].
    pub fn from_json_str(text: &str) -> Result<Self> {
        read(&tree::from_json(text)?, None)
    }
}

fn read(tree: &Value, base: Option<&Path>) -> Result<DatasetDef> {
    let def = Reader { base }.dataset(At { path: String::new(), value: tree }, 0)?;
    validate(&def)?;
    Ok(def)
}

/// The context of reading.
struct Reader<'b> {
    base: Option<&'b Path>,
}

const DATASET: &str = "source: { range: 100 }, steps: [ { batch: 10 } ]";

impl Reader<'_> {
    /// Reads a whole definition, or one inside a combinator. `depth` is the number of combinators around it.
    fn dataset(&self, at: At<'_>, depth: usize) -> Result<DatasetDef> {
        if !at.value.is_object() {
            return Err(at.wrong("a dataset: a map with `source` and `steps`"));
        }
        if depth > MAX_DEPTH {
            return Err(at.error(format!("datasets are nested more than {MAX_DEPTH} deep")));
        }
        let mut args = Args::of_dataset(at, DATASET)?;
        let name = args.get("name").map(|a| a.text("a name")).transpose()?;
        let source = args.need("source")?;
        let steps = args.get("steps");
        let options = match depth {
            0 => self.options(&mut args)?,
            _ => no_options(&mut args)?,
        };
        args.finish()?;
        let source = self.source(source, depth)?;
        let stages = match steps {
            Some(list) => steps_of(&list)?,
            None => Vec::new(),
        };
        Ok(DatasetDef { name, source, stages, options })
    }

    fn options(&self, args: &mut Args<'_>) -> Result<Options> {
        let seed = args.get("seed").map(|a| a.count()).transpose()?;
        let on_error = args.get("on_error").map_or(Ok(OnError::Fail), |a| on_error(&a))?;
        let (deterministic, cache_only) = (args.flag("deterministic")?, args.flag("cache_only")?);
        let reorder = args.get("reorder").map_or(Ok(None), |a| reorder::read(&a))?;
        Ok(Options { seed, on_error, deterministic, cache_only, reorder })
    }
}

/// Refuses settings of a dataset inside another one: settings apply to the whole job.
fn no_options(args: &mut Args<'_>) -> Result<Options> {
    for key in ["seed", "on_error", "deterministic", "cache_only", "reorder"] {
        if let Some(at) = args.get(key) {
            return Err(at.error(format!("`{key}` is a setting of the whole definition; put it at the top")));
        }
    }
    Ok(Options::default())
}

fn on_error(at: &At<'_>) -> Result<OnError> {
    let expected = "`fail`, `skip` or `{ skip: { limit: 100 } }`";
    match (at.value.as_str(), at.single()) {
        (Some("fail"), _) => Ok(OnError::Fail),
        (Some("skip"), _) => Ok(OnError::Skip { limit: DEFAULT_SKIP_LIMIT }),
        (None, Some(("skip", skip))) => {
            let mut args = Args::new(skip, Some("limit"), "on_error: { skip: { limit: 100 } }")?;
            let limit = args.get("limit").map_or(Ok(DEFAULT_SKIP_LIMIT), |a| a.count())?;
            args.finish()?;
            Ok(OnError::Skip { limit })
        }
        _ => Err(at.wrong(expected)),
    }
}

fn steps_of(list: &At<'_>) -> Result<Vec<StageDef>> {
    let mut stages = Vec::new();
    let mut hints = 0;
    for at in list.list("a list of stages, each beginning with `- `")? {
        let op = stage::read(&at, hints)?;
        hints += usize::from(matches!(op, StageOp::Autocache { .. }));
        stages.push(StageDef { op });
    }
    Ok(stages)
}
