//! Every form that the documentation shows is read, and every stage and source is shown.
#![allow(clippy::unwrap_used, reason = "tests may unwrap; clippy exempts only test functions by itself")]

use std::collections::BTreeSet;
use std::path::Path;

use caju_pipeline::{DatasetDef, StageOp};

const DOCS: &str = include_str!("../../../docs/pipeline.md");

/// The code in the first two cells of a table's row.
fn forms(section: &str) -> Vec<String> {
    let start = DOCS.find(&format!("\n## {section}\n")).unwrap() + 4;
    let text = &DOCS[start..];
    let text = &text[..text.find("\n## ").unwrap_or(text.len())];
    let rows = text.lines().filter(|l| l.starts_with("| `"));
    rows.flat_map(|row| row.split('|').skip(1).take(2).map(|cell| cell.trim().trim_matches('`').to_owned()))
        .collect()
}

fn read(text: &str) -> DatasetDef {
    DatasetDef::from_yaml(text, Some(Path::new("/base"))).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn sources() {
    let mut seen = BTreeSet::new();
    for form in forms("Sources") {
        seen.insert(read(&format!("source: {{ {form} }}")).source.name());
    }
    assert_eq!(seen.len(), 13, "{seen:?}");
}

#[test]
fn stages() {
    let mut seen = BTreeSet::new();
    for form in forms("Stages") {
        let above = if form.starts_with("unbatch") { "batch: 2, " } else { "" };
        let def = read(&format!("source: {{ range: 1 }}\nsteps: [ {above}{form} ]"));
        let op = &def.stages.last().unwrap().op;
        seen.insert(op.name());
        // The examples of error messages are correct, too.
        read(&format!("source: {{ range: 1 }}\nsteps: [ {above}{} ]", op.example()));
    }
    assert_eq!(seen, StageOp::NAMES.into_iter().collect());
}

#[test]
fn the_example() {
    let text = DOCS.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let file: String = include_str!("imagenet.yaml").lines().skip(1).map(|l| format!("{l}\n")).collect();
    assert_eq!(text, file);
    read(text);
}
