//! What can be chosen: to compute, or to read a snapshot.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::format;

/// Compute, or read one snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Choice {
    /// Every epoch runs the whole pipeline.
    Compute,
    /// The output at one hint is stored and read.
    Materialize {
        /// The hint.
        hint: String,
        /// Format of the parts.
        format: String,
        /// Compression of the parts.
        compression: String,
        /// Fraction of the rows that is stored, 0 to 1.
        fraction: f64,
    },
}

impl Choice {
    /// The hint at which rows are stored; none if nothing is.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Choice::Compute => None,
            Choice::Materialize { hint, .. } => Some(hint),
        }
    }

    /// How far apart the fractions of two choices are, if they are the same otherwise.
    pub(crate) fn apart(&self, other: &Choice) -> Option<f64> {
        match (self, other) {
            (Choice::Compute, Choice::Compute) => Some(0.0),
            (
                Choice::Materialize { hint: a, format: b, compression: c, fraction },
                Choice::Materialize { hint: x, format: y, compression: z, fraction: share },
            ) if (a, b, c) == (x, y, z) => Some((fraction - share).abs()),
            _ => None,
        }
    }
}

/// `compute`, `resized arrow/none`, `resized arrow/none 35 %`.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Compute => f.write_str("compute"),
            Choice::Materialize { hint, format, compression, fraction } => {
                write!(f, "{hint} {format}/{compression}")?;
                if *fraction < 1.0 { write!(f, " {}", format::percent(*fraction)) } else { Ok(()) }
            }
        }
    }
}
