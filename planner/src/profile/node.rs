//! A JSON value that borrows from its text.
//!
//! Profiles may be megabytes; keys and names need not be copied, nor hashed, to be looked at once.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Debug)]
pub(super) enum Node<'a> {
    Null,
    Bool(bool),
    Whole(u64),
    Number(f64),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Object(Fields<'a>),
}

/// The fields of an object in the order of the text.
#[derive(Debug)]
pub(super) struct Fields<'a>(Vec<(Key<'a>, Node<'a>)>);

#[derive(Debug, serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Fields<'a> {
    /// The field of this name, and whether the name occurs a second time. Objects have a handful of fields,
    /// so a linear scan is enough.
    pub(super) fn get(&self, name: &str) -> (Option<&Node<'a>>, bool) {
        let mut found = self.0.iter().filter(|(key, _)| key.0 == name).map(|(_, node)| node);
        (found.next(), found.next().is_some())
    }
}

impl<'a> Node<'a> {
    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "a measurement")]
            Node::Whole(n) => Some(*n as f64),
            Node::Number(v) => Some(*v),
            _ => None,
        }
    }

    /// A whole number, also when it is written as `1e6` or `8.0`.
    pub(super) fn as_count(&self) -> Option<u64> {
        match self {
            Node::Whole(n) => Some(*n),
            Node::Number(v) if v.fract() == 0.0 && (0.0..=9e15).contains(v) =>
            {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
                Some(*v as u64)
            }
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Node::Text(s) = self { Some(s) } else { None }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Node::Bool(b) = self { Some(*b) } else { None }
    }

    pub(super) fn as_list(&self) -> Option<&[Node<'a>]> {
        if let Node::List(items) = self { Some(items) } else { None }
    }

    pub(super) fn as_object(&self) -> Option<&Fields<'a>> {
        if let Node::Object(fields) = self { Some(fields) } else { None }
    }
}

/// The value as a complaint shows it, on one line and not too long.
impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Null => f.write_str("null"),
            Node::Bool(b) => write!(f, "{b}"),
            Node::Whole(n) => write!(f, "{n}"),
            Node::Number(v) if v.abs() >= 1e16 || (v.abs() < 1e-4 && *v != 0.0) => write!(f, "{v:e}"),
            Node::Number(v) => write!(f, "{v}"),
            Node::Text(s) if s.chars().count() > 40 => {
                write!(f, "{:?}...", s.chars().take(40).collect::<String>())
            }
            Node::Text(s) => write!(f, "{s:?}"),
            Node::List(_) => f.write_str("a list"),
            Node::Object(_) => f.write_str("an object"),
        }
    }
}

impl<'de> Deserialize<'de> for Node<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Node<'de>, E> {
        Ok(Node::Bool(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Node<'de>, E> {
        Ok(Node::Whole(v))
    }

    #[expect(clippy::cast_precision_loss, reason = "negative, and as such refused by every field")]
    fn visit_i64<E>(self, v: i64) -> Result<Node<'de>, E> {
        Ok(Node::Number(v as f64))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Node<'de>, E> {
        Ok(Node::Number(v))
    }

    fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Borrowed(v)))
    }

    fn visit_str<E>(self, v: &str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Owned(v.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node<'de>, A::Error> {
        let mut fields = Vec::with_capacity(8);
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Object(Fields(fields)))
    }
}
