//! Compares two prefixes stage by stage, by the canonical texts of which their fingerprints are hashes.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The most characters of a printed value.
const MAX_VALUE_CHARS: usize = 100;

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    /// The place: a step with its argument, a function, a library.
    pub(super) place: String,
    /// The value in this pipeline, if any.
    pub(super) here: Option<Value>,
    /// The value in the snapshot's pipeline, if any.
    pub(super) there: Option<Value>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.here, &self.there) {
            (None, None) => f.write_str(&self.place),
            (Some(here), None) => write!(f, "{}: {} here, nothing there", self.place, shown(here)),
            (None, Some(there)) => write!(f, "{}: nothing here, {} there", self.place, shown(there)),
            (Some(here), Some(there)) => {
                write!(f, "{}: {} here, {} there", self.place, shown(here), shown(there))
            }
        }
    }
}

fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), |s| format!("`{s}`"));
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}

/// The similarity of two prefixes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Comparison {
    /// Number of equal leading items: the source, then stages.
    pub(super) common: usize,
    /// The differences, the nearest to the source first.
    pub(super) differences: Vec<Difference>,
}

/// Compares two canonical texts. `steps` are the positions of this pipeline's stages in its file, where hints count,
/// too. None if the kinds of the sources differ.
pub(super) fn compare(here: &Value, there: &Value, steps: &[usize]) -> Option<Comparison> {
    let (a, b) = (here.get("source")?, there.get("source")?);
    let kind = a.get("kind")?.as_str()?;
    if b.get("kind")?.as_str() != Some(kind) {
        return None;
    }
    let mut differences = Vec::new();
    item(&format!("source `{kind}`"), a, b, &mut differences);
    let mut common = usize::from(differences.is_empty());
    let empty = Vec::new();
    let list = |v: &Value| v.get("stages").and_then(Value::as_array).unwrap_or(&empty).clone();
    stages(&list(here), &list(there), steps, &mut common, &mut differences);
    versions("function", "functions", here, there, &mut differences);
    versions("library", "engines", here, there, &mut differences);
    for (key, place) in [
        ("seed", "seed"),
        ("on_error", "on_error"),
        ("bad_rows", "version of what makes a row bad"),
        ("deterministic", "deterministic"),
        ("schema", "version of fingerprints"),
    ] {
        leaves(place, here.get(key), there.get(key), &mut differences);
    }
    Some(Comparison { common, differences })
}

fn stages(
    here: &[Value],
    there: &[Value],
    steps: &[usize],
    common: &mut usize,
    differences: &mut Vec<Difference>,
) {
    let op = |v: &Value| v.get("op").and_then(Value::as_str).unwrap_or("?").to_string();
    for i in 0..here.len().max(there.len()) {
        let step = steps.get(i).copied().unwrap_or(i);
        match (here.get(i), there.get(i)) {
            (Some(a), Some(b)) if op(a) == op(b) => {
                item(&format!("step {step} (`{}`)", op(a)), a, b, differences);
            }
            (Some(a), Some(b)) => {
                let (here, there) = (Some(op(a).into()), Some(op(b).into()));
                differences.push(Difference { place: format!("step {step}"), here, there });
                // Later stages may be equal at a shifted position, so they are not compared.
                return;
            }
            (Some(a), None) => {
                let place = format!("step {step} (`{}`) is not in the pipeline there", op(a));
                differences.push(Difference { place, here: None, there: None });
                return;
            }
            (None, Some(b)) => {
                let place = format!("there one more stage follows, `{}`", op(b));
                differences.push(Difference { place, here: None, there: None });
                return;
            }
            (None, None) => {}
        }
        *common += usize::from(differences.is_empty());
    }
}

/// A source or a stage: its arguments, then the version of our code.
fn item(place: &str, a: &Value, b: &Value, out: &mut Vec<Difference>) {
    leaves(place, a.get("arguments"), b.get("arguments"), out);
    leaves(&format!("{place}, version of caju's code"), a.get("version"), b.get("version"), out);
}

/// Every difference below a place, with its path.
fn leaves(place: &str, a: Option<&Value>, b: Option<&Value>, out: &mut Vec<Difference>) {
    match (a, b) {
        _ if a == b => {}
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            for key in keys(x, y) {
                leaves(&format!("{place}, {key}"), x.get(key), y.get(key), out);
            }
        }
        (Some(Value::Array(x)), Some(Value::Array(y))) if x.len() == y.len() => {
            for (i, (x, y)) in x.iter().zip(y).enumerate() {
                leaves(&format!("{place}[{i}]"), Some(x), Some(y), out);
            }
        }
        _ => out.push(Difference { place: place.to_string(), here: a.cloned(), there: b.cloned() }),
    }
}

fn keys<'a>(x: &'a Map<String, Value>, y: &'a Map<String, Value>) -> BTreeSet<&'a String> {
    x.keys().chain(y.keys()).collect()
}

/// The differing versions of what both use. What only one uses is a difference of stages.
fn versions(what: &str, key: &str, here: &Value, there: &Value, out: &mut Vec<Difference>) {
    let (Some(x), Some(y)) =
        (here.get(key).and_then(Value::as_object), there.get(key).and_then(Value::as_object))
    else {
        return;
    };
    for (name, a) in x {
        if let Some(b) = y.get(name) {
            leaves(&format!("{what} `{name}`, version"), Some(a), Some(b), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn canonical(stages: Value) -> Value {
        json!({"schema": "v1", "source": {"kind": "parquet", "version": 1, "arguments": {}}, "stages": stages,
               "functions": {"resize": 1}, "engines": {"arrow": "58"}})
    }

    fn resize(size: u32) -> Value {
        json!({"op": "with_columns", "version": 1, "arguments": {"image": format!("resize(image, {size})")}})
    }

    fn difference_texts(here: &Value, there: &Value) -> Vec<String> {
        let c = compare(here, there, &[1, 3]).unwrap();
        c.differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arguments_are_named_with_their_step() {
        let (a, b) = (canonical(json!([resize(128)])), canonical(json!([resize(256)])));
        let text = "step 1 (`with_columns`), image: `resize(image, 128)` here, `resize(image, 256)` there";
        assert_eq!(difference_texts(&a, &b), [text]);
        assert_eq!(compare(&a, &b, &[1]).unwrap().common, 1);
        assert_eq!(compare(&a, &a, &[1]).unwrap(), Comparison { common: 2, differences: vec![] });
    }

    #[test]
    fn stages_that_are_there_or_not() {
        let filter = json!({"op": "filter", "version": 1, "arguments": "x > 0"});
        let (a, b) = (canonical(json!([resize(1), filter])), canonical(json!([resize(1)])));
        assert_eq!(difference_texts(&a, &b), ["step 3 (`filter`) is not in the pipeline there"]);
        assert_eq!(difference_texts(&b, &a), ["there one more stage follows, `filter`"]);
        let c = canonical(json!([filter, resize(1)]));
        assert_eq!(difference_texts(&a, &c), ["step 1: `with_columns` here, `filter` there"]);
    }

    #[test]
    fn versions_and_settings() {
        let mut b = canonical(json!([resize(1)]));
        let a = b.clone();
        b["functions"]["resize"] = json!(2);
        b["engines"]["arrow"] = json!("59");
        b["seed"] = json!(7);
        let text = difference_texts(&a, &b);
        assert_eq!(text[0], "function `resize`, version: 1 here, 2 there");
        assert_eq!(text[1], "library `arrow`, version: `58` here, `59` there");
        assert_eq!(text[2], "seed: nothing here, 7 there");
        b["source"]["kind"] = json!("csv");
        assert_eq!(compare(&a, &b, &[]), None);
    }
}
