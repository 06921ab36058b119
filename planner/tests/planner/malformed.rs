//! Bad profiles: one line that names the field, and never a panic.

use caju_planner::{Policy, Profile, plan};
use caju_types::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::strategies;

const GOOD: &str = include_str!("../../../tests/golden_plans/filter-and-flat-map.profile.json");

fn error(value: &Value) -> String {
    let e = Profile::from_json(&value.to_string()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    e.to_string()
}

/// Puts a value at a JSON pointer of the good profile; `None` takes the field away.
fn with(pointer: &str, value: Option<Value>) -> Value {
    let mut profile: Value = serde_json::from_str(GOOD).unwrap();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = profile.pointer_mut(parent).unwrap();
    match value {
        Some(v) if parent.is_array() => parent[field.parse::<usize>().unwrap()] = v,
        Some(v) => parent[field] = v,
        None => drop(parent.as_object_mut().unwrap().shift_remove(field).unwrap()),
    }
    profile
}

#[test]
fn messages() {
    for (pointer, value, want) in [
        ("/stages/2/cpu_s_per_row", json!(-1), "stages[2].cpu_s_per_row: expected a number >= 0, found -1"),
        (
            "/stages/2/cpu_s_per_row",
            json!("NaN"),
            "stages[2].cpu_s_per_row: expected a number >= 0, found \"NaN\"",
        ),
        (
            "/stages/0/cpu_s_per_row",
            Value::Null,
            "stages[0].cpu_s_per_row: expected a number >= 0, found null",
        ),
        ("/stages/1/max_parallelism", json!(0), "stages[1].max_parallelism: expected a number >= 1, found 0"),
        ("/stages/1/random", json!(1), "stages[1].random: expected true or false, found 1"),
        ("/stages/1/name", json!("read"), "stages[1].name: `read` is the name of stages[0] already"),
        (
            "/stages/1/name",
            json!(""),
            "stages[1].name: expected a name without control characters, found \"\"",
        ),
        ("/stages/1", json!([]), "stages[1]: expected an object, found a list"),
        ("/stages", json!([]), "stages: expected at least one stage, found an empty list"),
        (
            "/stages/1/out_bytes_per_row",
            json!(1e30),
            "stages[1].out_bytes_per_row: expected a number <= 1e18, found 1e30",
        ),
        ("/hints/1/name", json!("filtered"), "hints[1].name: `filtered` is the name of hints[0] already"),
        (
            "/hints/0/after_stage",
            json!("fliter"),
            "hints[0].after_stage: expected the name of a stage, found `fliter`; did you mean `filter`?",
        ),
        (
            "/hints/2/encodings/1/decode_cpu_s_per_row",
            json!(-0.5),
            "hints[2].encodings[1].decode_cpu_s_per_row: expected a number >= 0, found -0.5",
        ),
        (
            "/hints/2/encodings/1/compression",
            json!("zstd"),
            "hints[2].encodings[1]: arrow/zstd is listed twice",
        ),
        ("/hints/0/encodings", json!(3), "hints[0].encodings: expected a list, found 3"),
        ("/cluster/workers", json!(0), "cluster.workers: expected a whole number >= 1, found 0"),
        ("/cluster/workers", json!(1.5), "cluster.workers: expected a whole number >= 1, found 1.5"),
        ("/cluster/cores_per_worker", json!(0), "cluster.cores_per_worker: expected a number > 0, found 0"),
        ("/cluster", json!(8), "cluster: expected an object, found 8"),
        (
            "/cache_store/read_bytes_per_s",
            json!(0),
            "cache_store.read_bytes_per_s: expected a number > 0, found 0",
        ),
        ("/horizon/epochs", json!(-3), "horizon.epochs: expected a whole number >= 0, found -3"),
        (
            "/budget/snapshot_bytes",
            json!("1GB"),
            "budget.snapshot_bytes: expected a number >= 0, found \"1GB\"",
        ),
        (
            "/schema",
            json!("caju.profile/v2"),
            "schema: expected \"caju.profile/v1\", found \"caju.profile/v2\"",
        ),
        (
            "/existing",
            json!([{"hint": "token", "format": "arrow", "compression": "none", "fraction": 1}]),
            "existing[0].hint: expected the name of a hint, found `token`; did you mean `tokens`?",
        ),
        (
            "/existing",
            json!([{"hint": "tokens", "format": "arrow", "compression": "none", "fraction": 1.01}]),
            "existing[0].fraction: expected a number in 0..=1, found 1.01",
        ),
        (
            "/existing",
            json!([{"hint": "tokens", "format": "arrow", "compression": "lz4", "fraction": 1}]),
            "existing[0]: arrow/lz4 is not among hints[1].encodings; probe it and add its costs there",
        ),
    ] {
        assert_eq!(error(&with(pointer, Some(value))), want);
    }
    assert_eq!(error(&json!([])), "profile: expected an object, found a list");
    assert_eq!(error(&json!({})), "schema: expected \"caju.profile/v1\", found nothing");
}

#[test]
fn missing_fields() {
    for (pointer, want) in [
        ("/stages/2/cpu_s_per_row", "stages[2].cpu_s_per_row: expected a number >= 0, found nothing"),
        ("/stages/2/service_s_per_row", "stages[2].service_s_per_row: expected a number >= 0, found nothing"),
        ("/stages/0/name", "stages[0].name: expected a string, found nothing"),
        ("/stages", "stages: expected a list, found nothing"),
        ("/cluster", "cluster.workers: expected a whole number >= 1, found nothing"),
        ("/source/rows", "source.rows: expected a whole number >= 0, found nothing"),
        (
            "/hints/0/encodings/0/bytes_per_row",
            "hints[0].encodings[0].bytes_per_row: expected a number >= 0, found nothing",
        ),
    ] {
        assert_eq!(error(&with(pointer, None)), want);
    }
    for optional in [
        "/cluster/network_bytes_per_s_per_worker",
        "/source_store",
        "/cache_store/read_bytes_per_s",
        "/consumer",
        "/horizon",
        "/budget",
        "/existing",
        "/hints",
        "/stages/0/max_parallelism",
        "/stages/0/random",
    ] {
        for value in [None, Some(Value::Null)] {
            Profile::from_json(&with(optional, value).to_string()).unwrap();
        }
    }
    Profile::from_json(&with("/source/rows", Some(json!(1e6))).to_string()).unwrap();
    Profile::from_json(&with("/stages/0/colour", Some(json!("unknown fields are ignored"))).to_string())
        .unwrap();
}

#[test]
fn not_a_number_in_memory() {
    let mut p = Profile::from_json(GOOD).unwrap();
    p.stages[1].cpu_s_per_row = f64::NAN;
    let e = plan(&p, &Policy::Auto).unwrap_err();
    assert_eq!(e.to_string(), "stages[1].cpu_s_per_row: expected a number >= 0, found NaN");
    p.stages[1].cpu_s_per_row = f64::INFINITY;
    assert!(plan(&p, &Policy::Auto).is_err());
}

fn json_value() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![any::<i64>().prop_map(Value::from), any::<f64>().prop_map(Value::from)];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        numbers,
        prop::sample::select(vec![-1.0, 0.0, 1e-300, 1e18, 1e300]).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[a-z_]{1,8}", inner), 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// How many values there are in all, and replacing the n-th of them.
fn replace(value: &mut Value, n: &mut usize, new: &Value) {
    if *n == 0 {
        *value = new.clone();
        *n = usize::MAX;
        return;
    }
    *n = n.saturating_sub(1);
    match value {
        Value::Array(a) => a.iter_mut().for_each(|v| step(v, n, new)),
        Value::Object(o) => o.iter_mut().for_each(|(_, v)| step(v, n, new)),
        _ => {}
    }
}

fn step(value: &mut Value, n: &mut usize, new: &Value) {
    if *n != usize::MAX {
        replace(value, n, new);
    }
}

/// Reading either fails with one line, or gives a profile that every policy can decide on.
pub(crate) fn survives(text: &str) -> Result<(), TestCaseError> {
    match Profile::from_json(text) {
        Err(e) => {
            prop_assert_eq!(e.kind(), ErrorKind::InvalidArgument);
            prop_assert!(!e.message().is_empty() && !e.message().contains('\n'), "{}", e);
        }
        Ok(p) => {
            for policy in ["compute", "source", "full", "cachew", "auto"] {
                let d = plan(&p, &policy.parse().unwrap()).unwrap();
                for o in d.options.iter().filter(|o| o.feasible) {
                    let numbers = [o.rows_per_s, o.epoch_s, o.horizon_s];
                    prop_assert!(
                        numbers.iter().all(|v| v.is_some_and(|v| v.is_finite() && v >= 0.0)),
                        "{:?}",
                        o
                    );
                }
                prop_assert!(!d.to_text().is_empty());
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn arbitrary_json(value in json_value()) {
        survives(&value.to_string())?;
    }

    #[test]
    fn arbitrary_text(text in ".{0,60}") {
        survives(&text)?;
        let _ = text.parse::<Policy>().map_err(|e| assert!(!e.message().contains('\n')));
    }

    #[test]
    fn mutated_values(p in strategies::profile(), at in any::<prop::sample::Index>(), new in json_value()) {
        let mut value: Value = serde_json::from_str(&p.to_json()).unwrap();
        let mut n = at.index(120);
        replace(&mut value, &mut n, &new);
        survives(&value.to_string())?;
    }

    #[test]
    fn mutated_text(p in strategies::profile(), at in any::<prop::sample::Index>(), cut in 0usize..6, new in "[-{}\\[\\],:\"0-9eNa\\\\\n.]{0,4}") {
        let text = p.to_json();
        let start = at.index(text.len());
        let end = (start + cut).min(text.len());
        survives(&format!("{}{new}{}", &text[..start], &text[end..]))?;
        survives(&text[..start])?;
    }
}

/// A profile inside another document is read as one that stands alone, and written with the same numbers.
#[test]
fn a_profile_within_a_document_is_the_same() {
    let text = include_str!("../../../tests/golden_plans/design-example.profile.json");
    let alone = Profile::from_json(text).unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(Profile::from_value(&value).unwrap(), alone);
    let written: Value = serde_json::from_str(&alone.to_json()).unwrap();
    assert_eq!(alone.to_value(), written);
    assert_eq!(alone.to_value().to_string(), written.to_string(), "the order of fields, too");
    let e = Profile::from_value(&json!({"schema": "caju.profile/v9"})).unwrap_err();
    assert_eq!(e.to_string(), "schema: expected \"caju.profile/v1\", found \"caju.profile/v9\"");
}
