//! JSON of others, read within a bound on the memory that it takes.
//!
//! Two bytes of JSON text (`0,`) become a [`Value`] of 72 bytes. So a bound on the text alone is no bound on memory.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{Error, Result, format_bytes};

/// The most memory that one JSON document, or one value in a record, may take: a list of a million names fits.
pub const MAX_JSON_BYTES: u64 = 256 << 20;

/// The memory of a value without its content. Lists grow by doubling, so that half of their places may be unused.
const VALUE_BYTES: u64 = 2 * size_of::<Value>() as u64;
/// The memory of the table of an object that is not empty.
const OBJECT_BYTES: u64 = 256;
/// The memory of an object's entry without the texts of its key: the value is counted apart.
const ENTRY_BYTES: u64 = 64;

/// Reads a JSON document that takes [`MAX_JSON_BYTES`] of memory at most. `what` names it in errors: "the definition".
///
/// ```
/// assert_eq!(caju_types::json::read(br#"{"rows": [1, 2]}"#, "the definition").unwrap()["rows"][1], 2);
/// let e = caju_types::json::read(b"[1, 2", "the definition").unwrap_err();
/// assert!(e.message().starts_with("the definition is not JSON: "), "{e}");
/// ```
///
/// # Errors
/// `InvalidArgument` for a text that is not JSON, or that takes more memory.
pub fn read(text: &[u8], what: &str) -> Result<Value> {
    read_within(text, what, MAX_JSON_BYTES)
}

fn read_within(text: &[u8], what: &str, bytes: u64) -> Result<Value> {
    let left = Cell::new(bytes);
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = Bounded { left: &left }.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    read.map_err(|e| match left.get() {
        0 => Error::invalid(format!(
            "{what} takes more than {} as JSON in memory; keep lists and tables in files",
            format_bytes(bytes)
        )),
        _ => Error::invalid(format!("{what} is not JSON: {e}")),
    })
}

/// For fields of records: `#[serde(deserialize_with = "caju_types::json::bounded")]`.
///
/// # Errors
/// The error of the deserializer for a value that takes more than [`MAX_JSON_BYTES`].
pub fn bounded<'de, D: Deserializer<'de>>(input: D) -> std::result::Result<Value, D::Error> {
    let left = Cell::new(MAX_JSON_BYTES);
    Bounded { left: &left }.deserialize(input)
}

/// Reads one value, and takes its memory from what is left. Nothing is left after an overrun.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    left: &'a Cell<u64>,
}

impl Bounded<'_> {
    fn take<E: serde::de::Error>(self, bytes: u64) -> std::result::Result<(), E> {
        match self.left.get().checked_sub(bytes) {
            Some(left) if left > 0 => {
                self.left.set(left);
                Ok(())
            }
            _ => {
                self.left.set(0);
                Err(E::custom(format_args!(
                    "it takes more than {} as JSON in memory",
                    format_bytes(MAX_JSON_BYTES)
                )))
            }
        }
    }

    fn value<E: serde::de::Error>(self, value: impl Into<Value>) -> std::result::Result<Value, E> {
        self.take(VALUE_BYTES)?;
        Ok(value.into())
    }

    fn text<E: serde::de::Error>(self, bytes: usize) -> std::result::Result<(), E> {
        self.take(VALUE_BYTES + bytes as u64)
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> std::result::Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E: serde::de::Error>(self, v: bool) -> std::result::Result<Value, E> {
        self.value(v)
    }

    fn visit_i64<E: serde::de::Error>(self, v: i64) -> std::result::Result<Value, E> {
        self.value(v)
    }

    fn visit_u64<E: serde::de::Error>(self, v: u64) -> std::result::Result<Value, E> {
        self.value(v)
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> std::result::Result<Value, E> {
        self.value(v)
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<Value, E> {
        self.value(())
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> std::result::Result<Value, E> {
        self.text(v.len())?;
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, v: String) -> std::result::Result<Value, E> {
        self.text(v.len())?;
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        self.take(VALUE_BYTES)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Value, A::Error> {
        self.take(VALUE_BYTES)?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let table = if object.is_empty() { OBJECT_BYTES } else { 0 };
            self.take(table + ENTRY_BYTES + key.len() as u64)?;
            object.insert(key, entries.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        let text = r#"{"a": [1, -2, 0.5, 18446744073709551615, null, true, "b\n"], "c": {"": {}}, "a2": [], "e": 1e300}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(text.as_bytes(), "it").unwrap(), expected);
        for bad in ["", "[", "[1]]", "{\"a\" 1}", "nul"] {
            let e = read(bad.as_bytes(), "it").unwrap_err();
            assert!(e.message().starts_with("it is not JSON: "), "{bad}: {e}");
        }
    }

    /// What costs the most memory per byte of text.
    #[test]
    fn dense_documents_are_refused() {
        for item in ["0,", "[],", "{\"\":0},", "\"\","] {
            let text = format!("[{}0]", item.repeat(10_000));
            let e = read_within(text.as_bytes(), "it", 1 << 20).unwrap_err();
            assert!(e.message().starts_with("it takes more than 1.00 MiB as JSON in memory"), "{item}: {e}");
            assert!(read_within(text.as_bytes(), "it", 8 << 20).is_ok(), "{item}");
        }
        let keys: Vec<_> = (0..10_000).map(|i| format!("\"{i}\":0")).collect();
        let text = format!("{{{}}}", keys.join(","));
        assert!(
            read_within(text.as_bytes(), "it", 1 << 20).unwrap_err().message().contains("takes more than")
        );
        let text = format!("[\"{}\"]", "x".repeat(2 << 20));
        assert!(read_within(text.as_bytes(), "it", 1 << 20).is_err());
        assert!(read_within(text.as_bytes(), "it", 3 << 20).is_ok());
    }

    #[test]
    fn a_field_of_a_record_is_bounded() {
        #[derive(serde::Deserialize)]
        struct Record {
            #[serde(deserialize_with = "bounded")]
            definition: Value,
        }
        let record: Record = serde_json::from_str(r#"{"definition": {"a": [1]}}"#).unwrap();
        assert_eq!(record.definition["a"][0], 1);
        let dense = format!("{{\"definition\": [{}0]}}", "0,".repeat(2_000_000));
        let e = serde_json::from_str::<Record>(&dense).map(|_| ()).unwrap_err();
        assert!(e.to_string().contains("it takes more than 256.00 MiB as JSON in memory"), "{e}");
    }
}
