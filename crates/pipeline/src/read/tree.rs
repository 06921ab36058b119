//! Parsing text to a tree of values, stricter than the libraries: a duplicate key, a tag, and a number that is not finite
//! are errors with their line.

use std::fmt;

use caju_types::{Error, Result};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A strictly parsed [`Value`].
struct Strict(Value);

/// The most nested brackets: more than any pipeline file needs. The YAML scanner's time grows with the square of this depth:
/// without the bound a file of brackets alone would take minutes.
const MAX_NESTING: usize = 1000;

/// An estimate of the depth of nested brackets. Brackets in quotes count, too.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Parses YAML.
///
/// # Errors
/// `InvalidArgument` with line and column.
pub(crate) fn from_yaml(text: &str) -> Result<Value> {
    if text.trim().is_empty() {
        return Err(Error::invalid("the pipeline file is empty; it needs at least a `source`"));
    }
    if nesting(text) > MAX_NESTING {
        return Err(Error::invalid(format!(
            "not a valid pipeline file: brackets are nested more than {MAX_NESTING} deep"
        )));
    }
    // JSON is YAML, but for pairs of escapes such as `\ud83d\ude00`, which stand for one character in JSON alone.
    if text.trim_start().starts_with('{')
        && let Ok(tree) = serde_json::from_str::<Strict>(text)
    {
        return Ok(tree.0);
    }
    match serde_norway::from_str::<Strict>(text) {
        Ok(tree) => Ok(tree.0),
        Err(e) => Err(Error::invalid(format!("not a valid pipeline file: {}", located(&e)))),
    }
}

/// The parser's message with line and column, also where the parser leaves them out.
fn located(e: &serde_norway::Error) -> String {
    let text = e.to_string();
    match e.location() {
        Some(at) if !text.contains("line ") => format!("{text} at line {} column {}", at.line(), at.column()),
        _ => text,
    }
}

/// Parses JSON.
///
/// # Errors
/// `InvalidArgument` with line and column.
pub(crate) fn from_json(text: &str) -> Result<Value> {
    match serde_json::from_str::<Strict>(text) {
        Ok(tree) => Ok(tree.0),
        Err(e) => Err(Error::invalid(format!("not a valid definition in JSON: {e}"))),
    }
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain value (a map, a list, text, a number, true or false; no tags)")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Strict, E> {
        Ok(Strict(Value::Bool(v)))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Strict, E> {
        Ok(Strict(Value::from(v)))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Strict, E> {
        Ok(Strict(Value::from(v)))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Strict, E> {
        match serde_json::Number::from_f64(v) {
            Some(n) => Ok(Strict(Value::Number(n))),
            None => Err(E::custom(format!("{v} is not a finite number"))),
        }
    }

    fn visit_i128<E: de::Error>(self, v: i128) -> Result<Strict, E> {
        Err(E::custom(format!("the number {v} is too large")))
    }

    fn visit_u128<E: de::Error>(self, v: u128) -> Result<Strict, E> {
        Err(E::custom(format!("the number {v} is too large")))
    }

    fn visit_str<E>(self, v: &str) -> Result<Strict, E> {
        Ok(Strict(Value::String(v.to_owned())))
    }

    fn visit_string<E>(self, v: String) -> Result<Strict, E> {
        Ok(Strict(Value::String(v)))
    }

    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Strict, D::Error> {
        Strict::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
        let mut out = Vec::new();
        while let Some(Strict(v)) = seq.next_element()? {
            out.push(v);
        }
        Ok(Strict(Value::Array(out)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(de::Error::custom(format!("`{key}` is given twice in one map")));
            }
            let Strict(value) = map.next_value()?;
            out.insert(key, value);
        }
        Ok(Strict(Value::Object(out)))
    }
}
