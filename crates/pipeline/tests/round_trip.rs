//! A written definition reads back equal. Text that cannot be read is an error and never a panic.
#![allow(clippy::unwrap_used, reason = "tests may unwrap; clippy exempts only test functions by itself")]

mod common;

use std::path::Path;

use caju_pipeline::{
    DatasetDef, describe, fingerprint, identity, prefix_fingerprints, prefix_json, validate,
};
use caju_types::ErrorKind;
use common::{FakeFunctions, definition, tree};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The same tree with the keys of every map in another order.
fn backwards(v: &Value) -> Value {
    match v {
        Value::Object(map) => {
            Value::Object(map.iter().rev().map(|(k, v)| (k.clone(), backwards(v))).collect())
        }
        Value::Array(list) => list.iter().map(backwards).collect(),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn json_and_yaml_there_and_back(def in definition()) {
        let json = def.to_json();
        prop_assert_eq!(&DatasetDef::from_json(&json).unwrap(), &def);
        prop_assert_eq!(&DatasetDef::from_json_str(&json.to_string()).unwrap(), &def);
        let yaml = def.to_yaml().unwrap();
        prop_assert_eq!(&DatasetDef::from_yaml(&yaml, Some(Path::new("/base"))).unwrap(), &def, "{}", yaml);
        prop_assert!(describe(&def).iter().all(|line| !line.contains('\n')));
    }

    /// Names, hints and the order of keys do not change the fingerprint.
    #[test]
    fn fingerprints_see_only_what_is_computed(def in definition()) {
        let f = FakeFunctions::default();
        let whole = fingerprint(&def, &f).unwrap();
        let sorted = DatasetDef::from_json(&backwards(&def.to_json())).unwrap();
        // The schema of a CSV file without a header is an ordered list.
        if !def.to_json().to_string().contains("\"schema\"") {
            prop_assert_eq!(fingerprint(&sorted, &f).unwrap(), whole);
        }
        let mut renamed = def.clone();
        renamed.name = Some("another".into());
        prop_assert_eq!(identity(&renamed, &f).unwrap(), identity(&def, &f).unwrap());
        let mut bare = renamed;
        bare.stages.retain(|s| s.op.name() != "autocache");
        if bare.split_local_len() < bare.stages.len() || !def.options.deterministic {
            prop_assert_eq!(fingerprint(&bare, &f).unwrap(), whole);
        }
        for p in prefix_fingerprints(&def, &f).unwrap() {
            let prefix = DatasetDef::from_json(&prefix_json(&def, &p.hint).unwrap()).unwrap();
            prop_assert_eq!(fingerprint(&prefix, &f).unwrap(), p.fingerprint);
            prop_assert_eq!(prefix.is_random(&f).unwrap(), p.random);
        }
    }

    #[test]
    fn any_tree_is_read_or_refused(tree in tree()) {
        let direct = DatasetDef::from_json(&tree);
        let text = serde_norway::to_string(&tree).unwrap();
        let by_yaml = DatasetDef::from_yaml(&text, None);
        match (direct, by_yaml) {
            (Ok(a), Ok(b)) => prop_assert_eq!(a, b),
            (Err(e), b) => {
                prop_assert!(b.is_err());
                prop_assert_eq!(e.kind(), ErrorKind::InvalidArgument);
            }
            (Ok(_), Err(e)) => prop_assert!(false, "{}: {}", text, e),
        }
    }

    /// The source and the step are wrapped correctly, so that the readers of arguments are reached.
    #[test]
    fn any_arguments_are_read_or_refused(source in tree(), step in tree(), at in 0usize..20, kind in 0usize..12) {
        let kinds = ["tfrecord", "parquet", "arrow", "webdataset", "csv", "json", "images", "range", "memory",
            "concatenate", "sample", "zip"];
        let one = |k: &str, v: Value| Value::Object([(k.to_owned(), v)].into_iter().collect());
        let stage = one(caju_pipeline::StageOp::NAMES[at], step);
        for tree in [
            json!({ "source": one(kinds[kind], source.clone()) }),
            json!({ "source": { "range": 10 }, "steps": [stage], "on_error": source }),
        ] {
            match DatasetDef::from_json(&tree) {
                Ok(def) => {
                    prop_assert!(validate(&def).is_ok());
                    prop_assert_eq!(DatasetDef::from_json(&def.to_json()).unwrap(), def);
                }
                Err(e) => prop_assert_eq!(e.kind(), ErrorKind::InvalidArgument),
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let _ = DatasetDef::from_yaml(&text, None);
        let _ = DatasetDef::from_json_str(&text);
    }

    /// Real files with a few bytes changed.
    #[test]
    fn damaged_files_are_read_or_refused(cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..5)) {
        let mut text: Vec<char> = include_str!("imagenet.yaml").chars().collect();
        for (at, c) in cuts {
            let i = at.index(text.len());
            if c.is_alphabetic() { text[i] = c } else { text.remove(i); }
        }
        let _ = DatasetDef::from_yaml(&text.iter().collect::<String>(), Some(Path::new("/base")));
    }
}

#[test]
fn depth_and_repetition_are_bounded() {
    for n in [1_000, 100_000] {
        for text in ["[".repeat(n), "{\"source\":".repeat(n)] {
            let e = DatasetDef::from_json_str(&text).unwrap_err();
            assert!(e.message().contains("recursion limit"), "{e}");
            let e = DatasetDef::from_yaml(&text, None).unwrap_err();
            assert!(e.message().contains("nested") || e.message().contains("recursion limit"), "{e}");
        }
    }
    let e = DatasetDef::from_yaml(&"- ".repeat(100_000), None).unwrap_err();
    assert!(e.message().contains("recursion limit"), "{e}");
    let mut deep = json!({ "source": { "range": 1 } });
    for _ in 0..50 {
        deep = json!({ "source": { "concatenate": [deep] } });
    }
    let e = DatasetDef::from_json(&deep).unwrap_err();
    assert!(e.message().contains("nested more than 8 deep"), "{e}");

    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let list = vec![format!("*a{}", i - 1); 9].join(", ");
        laughs.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    let e = DatasetDef::from_yaml(&laughs, None).unwrap_err();
    assert!(e.message().contains("repetition limit"), "{e}");
}
