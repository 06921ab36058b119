//! Signatures of functions: names, arguments and documentation.

use caju_types::Error;

/// The kind of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any expression: one value per row.
    Value,
    /// An integer known when the expression is bound.
    Int,
    /// A number known when the expression is bound.
    Float,
    /// Text known when the expression is bound.
    Text,
    /// True or false, known when the expression is bound.
    Bool,
    /// Three numbers known when the expression is bound.
    Floats3,
    /// Any literal.
    Literal,
}

impl Kind {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Kind::Value => "a value per row",
            Kind::Int => "a constant integer",
            Kind::Float => "a constant number",
            Kind::Text => "constant text",
            Kind::Bool => "a constant true or false",
            Kind::Floats3 => "three constant numbers, such as [0.5, 0.5, 0.5]",
            Kind::Literal => "a constant",
        }
    }
}

/// One argument of a function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arg {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The default as SQL text. An argument without a default is required.
    pub(crate) default: Option<&'static str>,
    pub(crate) doc: &'static str,
}

/// The argument that every random function has in addition to its own.
pub(crate) const KEY: Arg = opt(
    "key",
    Kind::Text,
    "null",
    "calls with the same key draw the same numbers for a row, in whatever expression they are",
);

/// The facts of a function from which calls are checked, and errors and documents are written.
pub(crate) struct Signature {
    pub(crate) name: &'static str,
    /// Absent for image operations, which have theirs in [`caju_image::VERSIONS`].
    pub(crate) version: Option<u32>,
    pub(crate) group: &'static str,
    pub(crate) args: &'static [Arg],
    pub(crate) returns: &'static str,
    pub(crate) doc: &'static str,
    /// Whether the function is random: calls of it have a call site and take `key`.
    pub(crate) random: bool,
    /// The libraries beyond Arrow on whose code the value depends.
    pub(crate) engines: &'static [&'static str],
}

pub(crate) const fn arg(name: &'static str, kind: Kind, doc: &'static str) -> Arg {
    Arg { name, kind, default: None, doc }
}

pub(crate) const fn opt(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Arg {
    Arg { name, kind, default: Some(default), doc }
}

impl Signature {
    /// The version. It is raised whenever the function's output may change.
    pub(crate) fn version(&self) -> u32 {
        self.version
            .or_else(|| caju_image::VERSIONS.iter().find(|(n, _)| *n == self.name).map(|(_, v)| *v))
            .unwrap_or(0)
    }

    /// All arguments, including `key`.
    pub(crate) fn all_args(&self) -> impl Iterator<Item = &'static Arg> + use<> {
        let key: &'static [Arg] = if self.random { &[KEY] } else { &[] };
        self.args.iter().chain(key)
    }

    /// A call as users write it: `resize(image, height, width)`.
    pub(crate) fn usage(&self) -> String {
        let args: Vec<String> = self
            .all_args()
            .map(|a| match a.default {
                None => a.name.to_owned(),
                Some(d) => format!("{} => {d}", a.name),
            })
            .collect();
        format!("{}({})", self.name, args.join(", "))
    }

    /// An error about a call of this function, with its usage.
    pub(crate) fn misuse(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{what}; write {}", self.usage()))
    }
}
