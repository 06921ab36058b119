//! Hints of a definition, and the one that a fixed policy names.

use caju_planner::Policy;
use caju_types::{Error, Fingerprint, Result, did_you_mean};
use serde::{Deserialize, Serialize};

/// A hint of a definition, with what is stored there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintDef {
    /// Its name.
    pub name: String,
    /// The fingerprint of the stages above it.
    pub prefix: Fingerprint,
    /// Whether a stage above it draws again in each epoch. Storing freezes the draws.
    pub random: bool,
    /// Whether a stage that counts rows chooses them behind a `shuffle` above the hint, or of a `sample`: rows that are computed in
    /// another epoch are not those that were stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chooses: bool,
    /// The cross-split stage above it, if there is one: then rows cannot be stored split by split, only as a set of parts.
    #[serde(rename = "behind")]
    pub cross_split_stage: Option<String>,
    /// Why nothing can be stored at the hint, if nothing can.
    #[serde(default, rename = "no_set", skip_serializing_if = "Option::is_none")]
    pub not_storable: Option<String>,
}

impl HintDef {
    /// Whether rows can be stored here, split by split or as a set.
    pub fn is_storable(&self) -> bool {
        self.not_storable.is_none()
    }

    /// Whether rows are stored as a set of parts or not at all.
    pub fn is_set(&self) -> bool {
        self.cross_split_stage.is_some()
    }
}

/// The hint that a fixed policy uses; none if nothing is stored or the policy chooses by measurement.
///
/// # Errors
/// `InvalidArgument` for a hint that is not there, or at which nothing can be stored.
pub fn fixed_hint<'a>(policy: &Policy, hints: &'a [HintDef]) -> Result<Option<&'a HintDef>> {
    let hint = match policy {
        Policy::Source => hints.first(),
        Policy::Full => hints.last(),
        Policy::Hint(name) => Some(find(hints, name)?),
        Policy::Compute | Policy::Cachew | Policy::Auto => None,
    };
    match hint.and_then(|h| h.not_storable.as_deref().map(|why| (h, why))) {
        Some((hint, why)) => Err(Error::invalid(format!(
            "policy `{policy}`: nothing can be stored at hint `{}`: {why}; or take another policy",
            hint.name
        ))),
        None => Ok(hint),
    }
}

fn find<'a>(hints: &'a [HintDef], name: &str) -> Result<&'a HintDef> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(name: &str, not_storable: Option<&str>) -> HintDef {
        let not_storable: Option<String> = not_storable.map(Into::into);
        let cross_split_stage = not_storable.as_ref().map(|_| "repeat".into());
        HintDef {
            name: name.into(),
            prefix: Fingerprint(1),
            random: false,
            chooses: false,
            cross_split_stage,
            not_storable,
        }
    }

    #[test]
    fn fixed_policies_name_their_hint() {
        let hints = [hint("a", None), hint("b", None)];
        let fixed = |p: &str| {
            fixed_hint(&p.parse().unwrap(), &hints)
                .map(|h| h.map(|h| h.name.clone()))
                .map_err(|e| e.to_string())
        };
        assert_eq!(fixed("source"), Ok(Some("a".into())));
        assert_eq!(fixed("full"), Ok(Some("b".into())));
        assert_eq!(fixed("hint:b"), Ok(Some("b".into())));
        assert_eq!(fixed("compute"), Ok(None));
        assert!(fixed("hint:c").unwrap_err().contains("there are: a, b"));
        assert_eq!(fixed_hint(&Policy::Full, &[]).unwrap(), None);
        let endless = [hint("late", Some("it stands below an endless `repeat`"))];
        let e = fixed_hint(&Policy::Full, &endless).unwrap_err();
        assert!(e.message().contains("hint `late`: it stands below"));
    }
}
