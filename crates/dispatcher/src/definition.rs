//! The definition of a dataset: its JSON text, and what the text says.

use std::fmt;
use std::sync::{Arc, OnceLock};

use caju_pipeline::DatasetDef;
use caju_types::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The definition of a dataset. The journal and the wire carry its JSON text, everything else uses the typed form.
///
/// The typed form is read from the text when it is first needed. It is read once: clones share it. A journal may hold a text
/// that this version cannot read. Such a text is kept and passed on byte for byte, and [`Definition::read`] says what is wrong
/// with it.
#[derive(Clone)]
pub struct Definition(Arc<Forms>);

/// Both forms of a definition.
struct Forms {
    text: String,
    typed: OnceLock<Result<DatasetDef>>,
}

impl Definition {
    /// The definition with this JSON text.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(Arc::new(Forms { text: text.into(), typed: OnceLock::new() }))
    }

    /// The definition of a call, with its typed form. Reading it may take seconds: calls do it in `Datasets::read_apart`. A
    /// definition that is JSON and no dataset is refused where it is used, as one of the journal.
    ///
    /// # Errors
    /// `InvalidArgument` for a text that is no JSON object.
    pub(crate) fn of_call(json: &str) -> Result<Self> {
        Ok(Self::of_value(&parse(json)?))
    }

    /// The definition with this JSON, with its typed form.
    pub(crate) fn of_value(json: &Value) -> Self {
        let typed = OnceLock::from(DatasetDef::from_json(json));
        Self(Arc::new(Forms { text: json.to_string(), typed }))
    }

    /// Whether [`Definition::read`] answers at once.
    pub(crate) fn was_read(&self) -> bool {
        self.0.typed.get().is_some()
    }

    /// The JSON text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The typed form.
    ///
    /// # Errors
    /// `InvalidArgument` naming the place that cannot be read.
    pub fn read(&self) -> Result<&DatasetDef> {
        let typed = self.0.typed.get_or_init(|| DatasetDef::from_json_str(&self.0.text));
        typed.as_ref().map_err(Error::clone)
    }

    /// About what both forms take in memory, in bytes. The typed form takes about as much as the text: inline rows and
    /// functions are most of a large definition. It is counted before it is read, so that a dataset counts the same all the
    /// time.
    pub(crate) fn bytes(&self) -> usize {
        self.0.text.len().saturating_mul(2)
    }
}

/// A definition's JSON.
///
/// # Errors
/// `InvalidArgument` for a text that is no JSON object, or takes too much memory as one.
pub(crate) fn parse(definition_json: &str) -> Result<Value> {
    let value = caju_types::json::read(definition_json.as_bytes(), "the definition")?;
    if value.is_object() { Ok(value) } else { Err(Error::invalid("the definition is not a JSON object")) }
}

impl From<&Value> for Definition {
    fn from(json: &Value) -> Self {
        Self::from_text(json.to_string())
    }
}

impl From<DatasetDef> for Definition {
    fn from(typed: DatasetDef) -> Self {
        let text = typed.to_json().to_string();
        Self(Arc::new(Forms { text, typed: OnceLock::from(Ok(typed)) }))
    }
}

/// Two definitions are equal if their texts are.
impl PartialEq for Definition {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.text == other.0.text
    }
}

impl Eq for Definition {}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.text, f)
    }
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.0.text)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Ok(Self::from_text(String::deserialize(input)?))
    }
}

#[cfg(test)]
mod tests {
    use caju_types::ErrorKind;
    use serde_json::json;

    use super::*;

    fn example() -> Value {
        json!({ "source": { "range": 10 }, "steps": [{ "batch": 5 }] })
    }

    #[test]
    fn the_typed_form_is_read_once_for_all_clones() {
        let definition = Definition::from(&example());
        let clone = definition.clone();
        let typed = definition.read().unwrap();
        assert_eq!(typed, &DatasetDef::from_json(&example()).unwrap());
        assert!(std::ptr::eq(typed, clone.read().unwrap()));
    }

    #[test]
    fn a_typed_form_has_the_text_that_is_read_back() {
        let typed = DatasetDef::from_json(&example()).unwrap();
        let definition = Definition::from(typed.clone());
        let again = Definition::from_text(definition.text());
        assert_eq!((definition.read().unwrap(), again.read().unwrap()), (&typed, &typed));
        assert_eq!(definition, again);
    }

    #[test]
    fn a_text_is_stored_as_it_is_even_if_it_cannot_be_read() {
        for text in [example().to_string(), r#"{ "later":  1 }"#.to_owned(), "no JSON".to_owned()] {
            let stored = serde_json::to_string(&text).unwrap();
            let definition: Definition = serde_json::from_str(&stored).unwrap();
            assert_eq!(definition.text(), text);
            assert_eq!(serde_json::to_string(&definition).unwrap(), stored);
            let packed = rmp_serde::to_vec_named(&definition).unwrap();
            assert_eq!(packed, rmp_serde::to_vec_named(&text).unwrap());
            assert_eq!(rmp_serde::from_slice::<Definition>(&packed).unwrap(), definition);
        }
    }

    #[test]
    fn a_text_that_cannot_be_read_gives_the_same_error_each_time() {
        let definition = Definition::from_text(r#"{"source": {"range": 10}, "later": 1}"#);
        let first = definition.read().unwrap_err();
        assert_eq!(first.kind(), ErrorKind::InvalidArgument);
        assert!(first.message().contains("later"), "{first}");
        assert_eq!(definition.read().unwrap_err().message(), first.message());
    }
}
