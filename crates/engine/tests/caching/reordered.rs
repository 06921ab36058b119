//! Generated pipelines give the same rows with the setting `reorder` as without it, and share what is stored.
//!
//! `CAJU_REORDER_SEED=N` runs the one case of that seed.

use caju_engine::SplitModes;
use caju_pipeline::{DatasetDef, Reorder};
use caju_types::mix64;

use crate::common::How;
use crate::generated::{Draw, source_of};
use crate::rows::{Pair, cache, place};

const CASES: u64 = 150;

/// A stage that sees one row at a time. Some commute with others, some draw, some fail for rows that a filter above drops.
fn stage(draw: &mut Draw, columns: &mut Vec<String>, new: &mut u32) -> String {
    let has = |c: &str, columns: &[String]| columns.iter().any(|n| n == c);
    let fresh = |columns: &mut Vec<String>, new: &mut u32| {
        *new += 1;
        columns.push(format!("c{new}"));
        format!("c{new}")
    };
    let any = |draw: &mut Draw, columns: &[String]| {
        let numbers: Vec<&String> = columns.iter().filter(|c| c.starts_with('c') || *c == "id").collect();
        numbers[draw.below(numbers.len() as u64) as usize].clone()
    };
    let from = any(draw, columns);
    match draw.below(16) {
        0 | 1 => format!("with_columns: {{ {}: '({from} % 1000) * 2 + 1' }}", fresh(columns, new)),
        2 => format!("with_columns: {{ {from}: '({from} % 1000) + 1' }}"),
        3 => format!("with_columns: {{ {}: 'random_int(0, 1000)' }}", fresh(columns, new)),
        4 | 5 => format!("filter: '{from} % 7 <> {}'", draw.below(7)),
        6 => format!("filter: '{from} > {}'", draw.below(40)),
        7 => "filter: 'random_int(0, 100) < 70'".to_string(),
        8 => {
            let divisor = 2 + draw.below(5);
            format!("filter: '{from} % {divisor} <> 0'\n  - filter: '100 / ({from} % {divisor}) > 20'")
        }
        9 if draw.one_in(2) => {
            let divisor = 2 + draw.below(5);
            let name = fresh(columns, new);
            format!(
                "flat_map: {{ name: {name}, expr: 'array_repeat(id, {from} % {divisor})' }}\n  \
                 - filter: '100 / ({from} % {divisor}) > 20'"
            )
        }
        9 => format!("flat_map: {{ name: {}, expr: '[id, {from}]' }}", fresh(columns, new)),
        10 if has("tags", columns) => {
            columns.retain(|c| c != "tags");
            "unnest: { column: tags }".to_string()
        }
        11 if has("text", columns) => "inflate: { column: text, factor: 2.5 }".to_string(),
        12 => {
            columns.retain(|c| c == "id" || c == "text" || draw.below(3) > 0);
            format!("select: [{}]", columns.join(", "))
        }
        13 => {
            columns.retain(|c| c == "id" || c == "text" || draw.below(3) > 0);
            let mut exprs: Vec<String> = columns.iter().map(|c| format!("{c}: {c}")).collect();
            exprs.push(format!("{}: '{from} % 11'", fresh(columns, new)));
            format!("map: {{ {} }}", exprs.join(", "))
        }
        14 => "burn: { per_row: 1us }".to_string(),
        _ => format!("with_columns: {{ {}: 'hash_bucket({from}, 9)' }}", fresh(columns, new)),
    }
}

/// A pipeline with up to two hints, and stages across splits at its end.
async fn case(seed: u64) -> DatasetDef {
    let mut draw = Draw(mix64(seed, 4711));
    let (source, memory) = source_of(&mut draw).await;
    let names: &[&str] = if source.contains("range") { &["id"] } else { &["id", "text", "tags"] };
    let mut columns: Vec<String> = names.iter().map(ToString::to_string).collect();
    let (mut steps, mut new, mut hints) = (Vec::new(), 0, 0);
    for _ in 0..2 + draw.below(7) {
        if hints < 2 && draw.one_in(5) {
            steps.push(format!("autocache: h{hints}"));
            hints += 1;
        }
        steps.push(stage(&mut draw, &mut columns, &mut new));
    }
    let deterministic = draw.one_in(3);
    let tail: &[&str] = match draw.below(6) {
        0 => {
            &["shuffle: { buffer: 50 }", "with_columns: { z: 'uniform(0.0, 1.0)' }", "filter: 'id % 3 <> 1'"]
        }
        1 => &["batch: 32", "with_columns: { z: 'id % 10' }", "select: [id, z]"],
        2 => &["repeat: 2"],
        3 if deterministic => &["take: 100"],
        _ => &[],
    };
    steps.extend(tail.iter().map(ToString::to_string));
    let stated = if source.is_empty() { "{ range: 1 }" } else { &source };
    let list: String = steps.iter().map(|s| format!("  - {s}\n")).collect();
    let yaml = format!("source: {stated}\nsteps:\n{list}deterministic: {deterministic}\n");
    let mut def = DatasetDef::from_yaml(&yaml, None).unwrap_or_else(|e| panic!("{e}\n{yaml}"));
    def.source = memory.unwrap_or(def.source);
    def
}

/// The same rows, computed and through a cache. Returns whether any stage was moved.
async fn check(seed: u64) -> bool {
    let def = case(seed).await;
    let mut allowed = def.clone();
    // Half of them with measured factors, whatever these are: they decide about the order, not about the rows.
    let mut draw = Draw(mix64(seed, 9));
    let measured = match draw.one_in(2) {
        true => def.stage_names().into_iter().map(|n| (n, draw.pick(&[0.1, 1.0, 4.0]))).collect(),
        false => std::collections::BTreeMap::new(),
    };
    allowed.options.reorder = Some(Reorder { measured });
    let yaml = allowed.to_yaml().unwrap();
    let bind =
        async |def: &DatasetDef| Pair::bind(def).await.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{yaml}"));
    let (written, ordered) = (bind(&def).await, bind(&allowed).await);
    assert!(written.plain.order().is_written());
    assert_eq!(written.plain.schema(), ordered.plain.schema(), "seed {seed}\n{yaml}");
    let how = How {
        seed: 3,
        workers: draw.pick(&[1, 2]),
        batch_rows: draw.pick(&[7, 100, 8192]),
        deterministic: def.options.deterministic,
        ..How::default()
    };
    // Rows for which a stage fails are no part of the promise.
    let Ok((want, _)) = written.run_on(&written.plain, how, None, |_, _| None).await else { return false };
    let report = |what: &str| format!("seed {seed}: {what}\n{:?}\n{yaml}", ordered.plain.order());
    let (got, _) = ordered.run_on(&ordered.plain, how, None, |_, _| None).await.unwrap();
    assert!(got == want, "{}", report("computed"));
    let plan_of = |hint: usize| ordered.hints[hint].plan("arrow/none");
    for hint in 0..written.hints.len() {
        assert_eq!(written.hints[hint].prefix, ordered.hints[hint].prefix, "{}", report("fingerprint"));
        if written.hints[hint].random && yaml.contains("repeat") {
            continue;
        }
        for (writer, reader) in [(&written, &ordered), (&ordered, &written)] {
            let cache = cache(&place("reordered")).await;
            let (stored, _) = writer.with(&cache, how, &plan_of(hint)).await;
            assert!(stored == want, "{}", report("stored"));
            let (read, modes) = reader.with(&cache, how, &plan_of(hint)).await;
            assert!(read == want, "{}", report("read"));
            if !yaml.contains("take") {
                let get = reader.splits.len() as u64;
                assert_eq!(modes, SplitModes { get, ..SplitModes::default() }, "{}", report("read"));
            }
        }
    }
    !ordered.plain.order().is_written() || !ordered.kept.order().is_written()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reordering_is_invisible() {
    if let Some(one) = std::env::var_os("CAJU_REORDER_SEED").map(|s| s.to_str().unwrap().parse().unwrap()) {
        check(one).await;
        return;
    }
    let mut moved = 0;
    for seed in 0..CASES {
        let limit = std::time::Duration::from_secs(60);
        let done = tokio::time::timeout(limit, check(seed)).await;
        moved += u64::from(done.unwrap_or_else(|_| panic!("seed {seed} hangs")));
    }
    assert!(moved > CASES / 4, "{moved} of {CASES} pipelines were reordered");
}
