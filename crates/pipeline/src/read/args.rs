//! Reading arguments. Every value knows its path, and every map knows which keys were read, so that a misspelt key is an
//! error and not silently a default.

use std::time::Duration;

use caju_types::{Error, Result, did_you_mean, parse_bytes, parse_duration};
use serde_json::{Map, Value};

use crate::place::join;
use crate::spelling::Spellings;
use crate::write::round;

/// A value and its place, as in `steps[3].shuffle.buffer`.
#[derive(Clone)]
pub(crate) struct At<'a> {
    pub(crate) path: String,
    pub(crate) value: &'a Value,
}

/// A short text of a value for messages: never a whole tree.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(s) if s.chars().count() > 60 => {
            format!("{:?}..", s.chars().take(60).collect::<String>())
        }
        other => other.to_string(),
    }
}

/// The bound below which whole numbers are exact as 64-bit floats (2^53), so that `1e6` and `256.0` can be read as integers.
const MAX_EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;

impl<'a> At<'a> {
    /// The error for a value of the wrong kind.
    pub(crate) fn wrong(&self, expected: &str) -> Error {
        self.error(format!("expected {expected}, found {}", shown(self.value)))
    }

    /// An error at this place.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        let place = if self.path.is_empty() { "the definition" } else { &self.path };
        Error::invalid(format!("{place}: {message}"))
    }

    pub(crate) fn str(&self, expected: &str) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.wrong(expected))
    }

    pub(crate) fn text(&self, expected: &str) -> Result<String> {
        self.str(expected).map(str::to_owned)
    }

    pub(crate) fn bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    pub(crate) fn u64(&self, expected: &str) -> Result<u64> {
        if let Some(n) = self.value.as_u64() {
            return Ok(n);
        }
        match self.value.as_f64() {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
            Some(x) if x.fract() == 0.0 && (0.0..MAX_EXACT_FLOAT).contains(&x) => Ok(x as u64),
            _ => Err(self.wrong(expected)),
        }
    }

    /// Reads a count of at least one.
    pub(crate) fn positive(&self) -> Result<u64> {
        let expected = "a positive integer";
        match self.u64(expected)? {
            0 => Err(self.wrong(expected)),
            n => Ok(n),
        }
    }

    /// Reads a count, or zero.
    pub(crate) fn count(&self) -> Result<u64> {
        self.u64("an integer of at least 0")
    }

    pub(crate) fn u32(&self, expected: &str) -> Result<u32> {
        u32::try_from(self.u64(expected)?).map_err(|_| self.wrong(expected))
    }

    pub(crate) fn i64(&self) -> Result<i64> {
        if let Some(n) = self.value.as_i64() {
            return Ok(n);
        }
        match self.value.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
            Some(x) if x.fract() == 0.0 && x.abs() < MAX_EXACT_FLOAT => Ok(x as i64),
            _ => Err(self.wrong("an integer of 64 bits")),
        }
    }

    pub(crate) fn f64(&self, expected: &str) -> Result<f64> {
        self.value.as_f64().map(round).ok_or_else(|| self.wrong(expected))
    }

    /// Reads a size in bytes: a number, or text with a unit.
    pub(crate) fn size(&self) -> Result<u64> {
        match self.value {
            Value::String(s) => parse_bytes(s).map_err(|e| self.error(e.message())),
            _ => self.u64("a size such as 64MiB"),
        }
    }

    /// Reads a duration: text with a unit.
    pub(crate) fn duration(&self) -> Result<Duration> {
        let text = self.str("a duration with a unit such as 8us or 200ms")?;
        parse_duration(text).map_err(|e| self.error(e.message()))
    }

    /// Reads an expression: text, or a bare number or boolean.
    pub(crate) fn expression(&self) -> Result<String> {
        match self.value {
            Value::String(s) => Ok(s.clone()),
            Value::Number(n) => Ok(n.to_string()),
            Value::Bool(b) => Ok(b.to_string()),
            _ => Err(self.wrong("an expression in quotes")),
        }
    }

    /// Reads one of several words.
    pub(crate) fn word<T: Copy>(&self, words: &Spellings<T>) -> Result<T> {
        let list = words.iter().map(|(w, _)| format!("`{w}`")).collect::<Vec<_>>().join(", ");
        let expected = format!("one of {list}");
        let text = self.str(&expected)?;
        match words.iter().find(|(w, _)| *w == text) {
            Some((_, value)) => Ok(*value),
            None => {
                let hint = did_you_mean(text, words.iter().map(|(w, _)| *w));
                Err(self.error(format!("expected {expected}, found {}{hint}", shown(self.value))))
            }
        }
    }

    /// Reads the items of a list.
    pub(crate) fn list(&self, expected: &str) -> Result<Vec<At<'a>>> {
        let items = self.value.as_array().ok_or_else(|| self.wrong(expected))?;
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, value)| At { path: format!("{}[{i}]", self.path), value })
            .collect())
    }

    /// Reads a list of texts. A single text is a list of one.
    pub(crate) fn texts(&self, expected: &str) -> Result<Vec<String>> {
        match self.value {
            Value::String(s) => Ok(vec![s.clone()]),
            _ => self.list(expected)?.iter().map(|item| item.text("text")).collect(),
        }
    }

    /// Reads the entries of a map whose keys are names that the user chose, in order.
    pub(crate) fn entries(&self, expected: &str) -> Result<Vec<(String, At<'a>)>> {
        let map = self.value.as_object().ok_or_else(|| self.wrong(expected))?;
        Ok(map.iter().map(|(k, value)| (k.clone(), At { path: join(&self.path, k), value })).collect())
    }

    /// The one entry of a map such as `{ shuffle: .. }`.
    pub(crate) fn single(&self) -> Option<(&'a str, At<'a>)> {
        let map = self.value.as_object()?;
        match (map.len(), map.iter().next()) {
            (1, Some((k, value))) => Some((k, At { path: join(&self.path, k), value })),
            _ => None,
        }
    }
}

/// The arguments of a stage or a source, or the keys of a definition.
///
/// [`Args::finish`] refuses keys that were not read.
pub(crate) struct Args<'a> {
    at: At<'a>,
    map: Option<&'a Map<String, Value>>,
    /// The argument that a bare value gives, as in `batch: 256`.
    short: Option<&'static str>,
    example: &'static str,
    /// The kind of a key in messages, such as `argument`.
    what: &'static str,
    asked: Vec<&'static str>,
}

impl<'a> Args<'a> {
    /// Reads a map of arguments. With `short`, a bare value gives that argument.
    pub(crate) fn new(at: At<'a>, short: Option<&'static str>, example: &'static str) -> Result<Self> {
        let (map, short) = match (at.value, short) {
            (Value::Object(map), _) => (Some(map), None),
            (Value::Null, _) => (None, None),
            (_, Some(short)) => (None, Some(short)),
            (_, None) => return Err(at.wrong(&format!("arguments as in `{example}`"))),
        };
        Ok(Self { at, map, short, example, what: "argument", asked: Vec::new() })
    }

    /// Reads the keys of a whole definition.
    pub(crate) fn of_dataset(at: At<'a>, example: &'static str) -> Result<Self> {
        Ok(Self { what: "key", ..Self::new(at, None, example)? })
    }

    /// The place of the arguments.
    pub(crate) fn at(&self) -> &At<'a> {
        &self.at
    }

    /// An optional argument. An empty value counts as absent.
    pub(crate) fn get(&mut self, key: &'static str) -> Option<At<'a>> {
        self.asked.push(key);
        if self.short == Some(key) {
            return Some(self.at.clone());
        }
        let value = self.map?.get(key).filter(|v| !v.is_null())?;
        Some(At { path: join(&self.at.path, key), value })
    }

    /// A required argument.
    pub(crate) fn need(&mut self, key: &'static str) -> Result<At<'a>> {
        if let Some(at) = self.get(key) {
            return Ok(at);
        }
        // An error about a misspelt key helps more than one about a missing key.
        for found in self.map.into_iter().flat_map(Map::keys) {
            let hint = did_you_mean(found, [key]);
            if found != key && !hint.is_empty() {
                return Err(self.at.error(format!("unknown {} `{found}`{hint}", self.what)));
            }
        }
        Err(self.at.error(format!("`{key}` is missing; write, for example, `{}`", self.example)))
    }

    /// A boolean, false if absent.
    pub(crate) fn flag(&mut self, key: &'static str) -> Result<bool> {
        self.get(key).map_or(Ok(false), |at| at.bool())
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// A key that was not read.
    pub(crate) fn finish(self) -> Result<()> {
        let Some(map) = self.map else { return Ok(()) };
        let Some(unknown) = map.keys().find(|k| !self.asked.contains(&k.as_str())) else { return Ok(()) };
        let mut hint = did_you_mean(unknown, &self.asked);
        if hint.is_empty() {
            let known: Vec<_> = self.asked.iter().map(|k| format!("`{k}`")).collect();
            hint = match known.is_empty() {
                true => "; it takes none".to_owned(),
                false => format!("; known are {}", known.join(", ")),
            };
        }
        Err(self.at.error(format!("unknown {} `{unknown}`{hint}", self.what)))
    }
}
