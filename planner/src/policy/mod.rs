//! Policies: who takes one of a model's options, and by which rule.

mod auto;
mod cachew;
mod fixed;

use std::fmt;
use std::str::FromStr;

use caju_types::{Error, Result, did_you_mean};
use serde::{Deserialize, Serialize};

pub use cachew::gluster_read_ms;

use crate::model::Model;

/// The names that [`Policy`] is read from.
pub const POLICIES: [&str; 6] = ["compute", "source", "full", "hint:NAME", "cachew", "auto"];

/// The option that a policy takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// Position in [`Model::candidates`].
    pub candidate: usize,
    /// The policy's reason, one sentence.
    pub reason: String,
}

/// The rule by which one of a model's options is taken.
///
/// Its text form is one of [`POLICIES`]; flags, requests and the journal use it.
///
/// ```
/// use caju_planner::Policy;
/// let policy: Policy = "hint:resized".parse()?;
/// assert_eq!(policy, Policy::Hint("resized".into()));
/// assert_eq!(policy.to_string(), "hint:resized");
/// let e = "cashew".parse::<Policy>().unwrap_err().to_string();
/// assert!(e.ends_with("did you mean `cachew`?"), "{e}");
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Policy {
    /// Never reads or writes a snapshot.
    Compute,
    /// The first hint, in the encoding that suits it best; computing if there is no hint.
    Source,
    /// The last hint, likewise.
    Full,
    /// This hint, likewise.
    Hint(String),
    /// The rule of the Cachew paper, with its sums and its static table.
    Cachew,
    /// The shortest horizon.
    #[default]
    Auto,
}

impl Policy {
    /// Whether the choice rests on measurements; the other policies are fixed by the definition alone.
    pub fn is_planned(&self) -> bool {
        matches!(self, Policy::Auto | Policy::Cachew)
    }

    /// Takes a feasible option; computing, the first one, always is.
    ///
    /// # Errors
    /// `InvalidArgument` if the policy names a hint that the profile does not have.
    pub fn pick(&self, model: &Model<'_>) -> Result<Pick> {
        match self {
            Policy::Compute => Ok(fixed::compute()),
            Policy::Source => Ok(fixed::source(model)),
            Policy::Full => Ok(fixed::full(model)),
            Policy::Hint(name) => fixed::hint(model, name),
            Policy::Cachew => Ok(cachew::pick(model)),
            Policy::Auto => Ok(auto::pick(model)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Compute => "compute",
            Policy::Source => "source",
            Policy::Full => "full",
            Policy::Hint(name) => return write!(f, "hint:{name}"),
            Policy::Cachew => "cachew",
            Policy::Auto => "auto",
        })
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "compute" => Policy::Compute,
            "source" => Policy::Source,
            "full" => Policy::Full,
            "cachew" => Policy::Cachew,
            "auto" => Policy::Auto,
            _ => match name.strip_prefix("hint:") {
                Some(hint) if crate::profile::is_name(hint) => Policy::Hint(hint.to_owned()),
                _ => {
                    return Err(Error::invalid(format!(
                        "unknown policy `{}`; the policies are {}{}",
                        name.escape_debug(),
                        POLICIES.join(", "),
                        did_you_mean(name, POLICIES)
                    )));
                }
            },
        })
    }
}

impl From<Policy> for String {
    fn from(policy: Policy) -> String {
        policy.to_string()
    }
}

impl TryFrom<String> for Policy {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}
