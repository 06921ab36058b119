//! `caju check`: validates a pipeline file and prints the schema after each stage.

use std::path::Path;
use std::sync::Arc;

use arrow_schema::Schema;
use caju_engine::type_name;
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, describe, prefix_fingerprints};
use caju_runtime::IoCounters;
use caju_sources::SourceContext;
use caju_types::Result;

use super::{order, pipeline_file, shared};
use crate::cli::CheckArgs;
use crate::output;

/// Prints the stages, the schema after each, and the fingerprints.
///
/// # Errors
/// What is wrong with the file or its source.
pub(crate) async fn run(args: &CheckArgs) -> Result<()> {
    let mut def = pipeline_file::read(&args.file)?;
    order::allow(&mut def, &args.order)?;
    let registry = shared::registry();
    let ctx = SourceContext::new(Arc::new(shared::stores()?), Arc::new(IoCounters::new()));
    let binding = Box::pin(caju_engine::bind(&def, &registry, &ctx, None));
    let bound = binding.await.map_err(pipeline_file::in_file(&args.file))?;
    output::say(format_args!("pipeline     {}", title(&def, &args.file)))?;
    output::say(format_args!("fingerprint  {}\n", bound.fingerprint()))?;
    output::say(stages(&def, bound.stage_schemas()))?;
    let order = bound.order().lines(&def);
    if !order.is_empty() {
        output::say(format_args!("\n{}", order.join("\n")))?;
    }
    hints(&def, &registry)
}

/// The definition's name, else the file's.
pub(crate) fn title(def: &DatasetDef, file: &Path) -> String {
    def.name.clone().unwrap_or_else(|| file.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

/// One line per stage, followed by the columns where the stage changes them.
fn stages(def: &DatasetDef, schemas: &[Arc<Schema>]) -> String {
    let mut out = Vec::new();
    let mut before: Option<&Schema> = None;
    for (i, line) in describe(def).into_iter().enumerate() {
        out.push(shortened(line));
        // The first lines are the source and the stages; the datasets of a combinator follow.
        if let Some(schema) = schemas.get(i)
            && before != Some(schema.as_ref())
        {
            out.push(format!("            -> {}", columns(schema)));
            before = Some(schema);
        }
    }
    out.join("\n")
}

/// Shortens the line of a stage with many expressions. The file itself has all of them.
fn shortened(mut line: String) -> String {
    /// Characters of a line, about two lines of a terminal.
    const MOST: usize = 180;
    if let Some((cut, _)) = line.char_indices().nth(MOST) {
        line.truncate(cut);
        line.push_str(" ...");
    }
    line
}

fn hints(def: &DatasetDef, registry: &Registry) -> Result<()> {
    for hint in prefix_fingerprints(def, registry)? {
        let random =
            if hint.random { "  (random stages above it: storing it freezes their draws)" } else { "" };
        output::say(format_args!(
            "\nhint `{}` at step {}: {}{random}",
            hint.hint, hint.stage_index, hint.fingerprint
        ))?;
    }
    Ok(())
}

fn columns(schema: &Schema) -> String {
    let shown: Vec<String> =
        schema.fields().iter().take(12).map(|f| format!("{}: {}", f.name(), type_name(f))).collect();
    let more = schema.fields().len().saturating_sub(shown.len());
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;

    #[test]
    fn columns_for_people() {
        let words = Field::new_list("words", Field::new("item", DataType::Utf8, true), true);
        assert_eq!(columns(&Schema::new(vec![words])), "words: list of string");
    }

    #[test]
    fn columns_show_where_they_change() {
        let def = DatasetDef::from_yaml(
            "source: { range: 9 }\nsteps: [ filter: id > 2, map: { x: id * 2 } ]",
            None,
        )
        .unwrap();
        let ints = |name: &str| Arc::new(Schema::new(vec![Field::new(name, DataType::Int64, false)]));
        let text = stages(&def, &[ints("id"), ints("id"), ints("x")]);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!((lines[1], lines[4]), ("-> id: int64", "-> x: int64"));
    }
}
