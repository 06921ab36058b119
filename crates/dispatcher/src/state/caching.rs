//! What of a job's rows is stored and read, and where.

use std::fmt;
use std::sync::Arc;

use caju_engine::{CachePlan, SetPlan};
use caju_types::{Error, Fingerprint, Result, did_you_mean};
use serde::{Deserialize, Serialize};

/// A hint of a dataset, with what is stored there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// Its name.
    pub name: String,
    /// The fingerprint of the stages above it.
    pub prefix: Fingerprint,
    /// Whether something above it draws anew each epoch; storing freezes the draws.
    pub random: bool,
    /// The stream stage above it, if there is one: then it cannot be stored split by split.
    pub behind: Option<String>,
    /// Why no set of parts can be stored behind that either; none if one can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_set: Option<String>,
}

/// Who decides what is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(into = "String", try_from = "String")]
pub enum Policy {
    /// Nothing is stored, nothing is read.
    Compute,
    /// The first hint.
    Source,
    /// The last hint.
    Full,
    /// This hint.
    Hint(String),
    /// The planner, by the paper's rule.
    Cachew,
    /// The planner, by what was measured.
    #[default]
    Auto,
}

/// The names that need no argument.
const NAMES: [&str; 6] = ["auto", "compute", "source", "full", "cachew", "hint:NAME"];

impl Policy {
    /// Whether the planner decides, by measurement.
    pub fn is_planned(&self) -> bool {
        matches!(self, Policy::Auto | Policy::Cachew)
    }

    /// The hint that a forced policy uses; none if nothing is stored or the planner decides.
    ///
    /// # Errors
    /// `InvalidArgument` for a hint that is not there, or that cannot be stored.
    pub fn forced<'a>(&self, hints: &'a [Hint]) -> Result<Option<&'a Hint>> {
        let hint = match self {
            Policy::Source => hints.first(),
            Policy::Full => hints.last(),
            Policy::Hint(name) => Some(find(hints, name)?),
            Policy::Compute | Policy::Cachew | Policy::Auto => None,
        };
        match hint.and_then(|h| h.no_set.as_deref().map(|why| (h, why))) {
            Some((hint, why)) => Err(Error::invalid(format!(
                "policy `{self}`: nothing can be stored at hint `{}`: {why}; or take another policy",
                hint.name
            ))),
            None => Ok(hint),
        }
    }
}

/// A plan that writes a set of parts, without the set; none if it writes none.
pub(super) fn without_set(plan: &str) -> Option<Arc<str>> {
    let plan: CachePlan = serde_json::from_str(plan).ok()?;
    if !matches!(plan.set, Some(SetPlan::Write(_))) {
        return None;
    }
    serde_json::to_string(&plan.without_set()).ok().map(Into::into)
}

fn find<'a>(hints: &'a [Hint], name: &str) -> Result<&'a Hint> {
    hints.iter().find(|h| h.name == name).ok_or_else(|| {
        let names: Vec<&str> = hints.iter().map(|h| h.name.as_str()).collect();
        let near = did_you_mean(name, &names);
        let there = if names.is_empty() {
            "the pipeline has no `autocache`".to_string()
        } else {
            format!("there are: {}", names.join(", "))
        };
        Error::invalid(format!("policy `hint:{name}`: there is no such hint{near}; {there}"))
    })
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

impl std::str::FromStr for Policy {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Ok(match s {
            "compute" => Policy::Compute,
            "source" => Policy::Source,
            "full" => Policy::Full,
            "cachew" => Policy::Cachew,
            "auto" => Policy::Auto,
            _ => match s.strip_prefix("hint:").filter(|n| !n.is_empty()) {
                Some(name) => Policy::Hint(name.to_string()),
                None => {
                    let near = did_you_mean(s, NAMES);
                    let names = NAMES.join(", ");
                    return Err(Error::invalid(format!("unknown policy `{s}`{near}; there are: {names}")));
                }
            },
        })
    }
}

impl From<Policy> for String {
    fn from(p: Policy) -> String {
        p.to_string()
    }
}

impl TryFrom<String> for Policy {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(name: &str, no_set: Option<&str>) -> Hint {
        let no_set: Option<String> = no_set.map(Into::into);
        let behind = no_set.as_ref().map(|_| "repeat".into());
        Hint { name: name.into(), prefix: Fingerprint(1), random: false, behind, no_set }
    }

    #[test]
    fn forced_policies_name_their_hint() {
        let hints = [hint("a", None), hint("b", None)];
        let forced = |p: &str| {
            p.parse::<Policy>()
                .unwrap()
                .forced(&hints)
                .map(|h| h.map(|h| h.name.clone()))
                .map_err(|e| e.to_string())
        };
        assert_eq!(forced("source"), Ok(Some("a".into())));
        assert_eq!(forced("full"), Ok(Some("b".into())));
        assert_eq!(forced("hint:b"), Ok(Some("b".into())));
        assert_eq!(forced("compute"), Ok(None));
        assert!(forced("hint:c").unwrap_err().contains("there are: a, b"));
        assert_eq!("full".parse::<Policy>().unwrap().forced(&[]).unwrap(), None);
        let endless = [hint("late", Some("it stands below an endless `repeat`"))];
        assert!(
            Policy::Full.forced(&endless).unwrap_err().message().contains("hint `late`: it stands below")
        );
    }

    #[test]
    fn unknown_policies_are_told() {
        let e = "ful".parse::<Policy>().unwrap_err();
        assert!(e.message().contains("did you mean `full`"), "{e}");
        assert!("hint:".parse::<Policy>().is_err());
    }
}
