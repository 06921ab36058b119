//! Values that are journaled and sent as JSON text, read once.

use std::fmt;
use std::sync::Arc;

use caju_planner::{Choice, Decision, Profile};
use caju_types::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::CachePlan;

/// A type with one JSON text.
pub trait AsDocument: Sized {
    /// What messages call it.
    const NAME: &'static str;

    /// The text; the same for the same value.
    fn to_text(&self) -> String;

    /// Reads the text.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not one, or of another version.
    fn from_text(text: &str) -> Result<Self>;
}

impl AsDocument for Profile {
    const NAME: &'static str = "profile";

    fn to_text(&self) -> String {
        self.to_json()
    }

    fn from_text(text: &str) -> Result<Self> {
        Self::from_json(text)
    }
}

impl AsDocument for Decision {
    const NAME: &'static str = "decision";

    fn to_text(&self) -> String {
        self.to_json()
    }

    fn from_text(text: &str) -> Result<Self> {
        Self::from_json(text)
    }
}

impl AsDocument for Choice {
    const NAME: &'static str = "choice";

    fn to_text(&self) -> String {
        // Strings and numbers always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn from_text(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| Error::invalid(format!("not a choice: {e}")))
    }
}

impl AsDocument for CachePlan {
    const NAME: &'static str = "cache plan";

    fn to_text(&self) -> String {
        // Strings, numbers and lists always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn from_text(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| Error::invalid(format!("not a cache plan: {e}")))
    }
}

/// A value together with its JSON text: the journal and the wire carry the text, everything else uses the value.
///
/// The text is kept as it was read, so that it is passed on byte for byte. A text of another version is kept without a
/// value, because a journal with one must stay readable.
pub struct Document<T> {
    text: Arc<str>,
    value: Option<Arc<T>>,
}

impl<T: AsDocument> Document<T> {
    /// The document of a value.
    pub fn new(value: T) -> Self {
        Self { text: value.to_text().into(), value: Some(Arc::new(value)) }
    }

    /// The document of a text.
    pub fn from_text(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { value: T::from_text(&text).ok().map(Arc::new), text }
    }

    /// The value.
    ///
    /// # Errors
    /// Why the text has none.
    pub fn read(&self) -> Result<&T> {
        match &self.value {
            Some(value) => Ok(value),
            None => {
                let why = T::from_text(&self.text).err();
                let why = why.unwrap_or_else(|| Error::internal("it cannot be read"));
                Err(why.context(format!("a stored {}", T::NAME)))
            }
        }
    }
}

impl<T> Document<T> {
    /// The value; none if the text is of another version.
    pub fn value(&self) -> Option<&T> {
        self.value.as_deref()
    }

    /// The text.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }
}

impl<T> Clone for Document<T> {
    fn clone(&self) -> Self {
        Self { text: Arc::clone(&self.text), value: self.value.clone() }
    }
}

impl<T> PartialEq for Document<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T> Eq for Document<T> {}

impl<T> fmt::Debug for Document<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl<T: AsDocument> From<T> for Document<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> Serialize for Document<T> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.text)
    }
}

impl<'de, T: AsDocument> Deserialize<'de> for Document<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Ok(Self::from_text(String::deserialize(input)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_another_version_is_kept_without_a_value() {
        let text = r#"{"hint": "a", "later": 1}"#;
        let plan: Document<CachePlan> = serde_json::from_str(&serde_json::to_string(text).unwrap()).unwrap();
        assert_eq!((plan.value(), &**plan.text()), (None, text));
        assert!(plan.read().unwrap_err().message().starts_with("a stored cache plan: not a cache plan: "));
        assert_eq!(serde_json::to_string(&plan).unwrap(), serde_json::to_string(text).unwrap());
    }

    #[test]
    fn a_value_has_the_text_that_is_read_back() {
        let plan = CachePlan::whole("a", caju_types::Fingerprint(7), crate::Encoding::default());
        let document = Document::new(plan.clone());
        let again: Document<CachePlan> = Document::from_text(Arc::clone(document.text()));
        assert_eq!((again.value(), &again), (Some(&plan), &document));
    }
}
