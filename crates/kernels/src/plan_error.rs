//! Errors of DataFusion's planner as errors of caju.

use arrow::datatypes::Schema;
use caju_types::{Error, did_you_mean};
use datafusion_common::{DataFusionError, SchemaError};
use datafusion_sql::sqlparser::ast;
use datafusion_sql::sqlparser::tokenizer::Location;

use crate::kernel::Fault;
use crate::syntax;

/// Converts a planning error about the expression `sql` over `input`.
pub(crate) fn plan_error(e: &DataFusionError, sql: &str, input: &Schema) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(cause) = source {
        if let Some(fault) = cause.downcast_ref::<Fault>() {
            return fault.error.clone();
        }
        if let Some(SchemaError::FieldNotFound { field, .. }) = cause.downcast_ref::<SchemaError>() {
            return unknown_column(&field.flat_name(), &field.name, sql, input);
        }
        source = cause.source();
    }
    let message = match e.find_root() {
        DataFusionError::Plan(m) | DataFusionError::NotImplemented(m) | DataFusionError::Execution(m) => {
            m.clone()
        }
        DataFusionError::SchemaError(e, _) => e.to_string(),
        DataFusionError::ArrowError(e, _) => e.to_string(),
        other => other.strip_backtrace(),
    };
    let message = message.split("\n\nbacktrace:").next().unwrap_or_default().trim_end();
    // DataFusion lists candidate signatures on lines of their own.
    let lines = message.lines().map(|l| l.trim().trim_end_matches(['.', ';'])).filter(|l| !l.is_empty());
    Error::invalid(format!("`{}`: {}", short(sql), lines.collect::<Vec<_>>().join("; ")))
}

fn short(sql: &str) -> String {
    let one_line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(120) {
        Some((at, _)) => format!("{}...", &one_line[..at]),
        None => one_line,
    }
}

fn unknown_column(full: &str, name: &str, sql: &str, input: &Schema) -> Error {
    /// The most columns that the message names.
    const MAX_NAMES: usize = 12;
    let names: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
    let full = full.replace('"', "");
    let near = did_you_mean(&full, &names);
    // `image/encoded` without quotes is a division, and `a.b` a field of `a`.
    let part_of =
        |n: &&str| n.replace(['/', '-'], ".") == full || n.split(['/', '-', '.']).any(|part| part == full);
    let hint = match names.iter().copied().find(part_of) {
        Some(n) => format!("; for the column `{n}` write \"{n}\" in double quotes"),
        None => near,
    };
    let mut list = names[..names.len().min(MAX_NAMES)].join(", ");
    if names.len() > MAX_NAMES {
        list.push_str(&format!(", ... ({} in all)", names.len()));
    }
    let place =
        syntax::parse(sql).ok().and_then(|tree| find_column(&tree, name)).map(syntax::at).unwrap_or_default();
    let there = if names.is_empty() { "there are none".to_owned() } else { format!("columns: {list}") };
    Error::invalid(format!("unknown column `{full}`{place}{hint} ({there})"))
}

/// The position at which a column is first named.
fn find_column(tree: &ast::Expr, name: &str) -> Option<Location> {
    let mut found = None;
    let _ = ast::visit_expressions(tree, |e| {
        let ids: Vec<&ast::Ident> = match e {
            ast::Expr::Identifier(id) => vec![id],
            ast::Expr::CompoundIdentifier(ids) => ids.iter().collect(),
            // To the parser, words such as `user` are functions.
            ast::Expr::Function(f) if f.args == ast::FunctionArguments::None => {
                f.name.0.iter().filter_map(|part| part.as_ident()).collect()
            }
            _ => Vec::new(),
        };
        match ids.iter().find(|id| id.value == name) {
            Some(_) => {
                found = ids.first().map(|id| id.span.start);
                std::ops::ControlFlow::Break(())
            }
            None => std::ops::ControlFlow::Continue(()),
        }
    });
    found
}
