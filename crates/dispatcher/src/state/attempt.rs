//! Attempts: launches of a user's program that restore states. They distinguish a rank that comes late from a job that goes
//! back to the same states once more.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The most earlier attempts that an iteration remembers. Ranks of an attempt before these are not refused: by then their
/// launcher has been replaced that many times.
const MAX_FORMER: usize = 8;

/// Ranks are below this number: a rank that has joined takes bytes for as long as its iteration is known.
pub const MAX_RANKS: u32 = 65_536;

/// What an attempt is known by.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptKey {
    /// The launch, as all of its ranks name it.
    pub id: String,
    /// Of states that every rank gives: their digest in hexadecimal digits. Empty: each rank gives its own state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub states: String,
}

/// The attempt that restored the states of an iteration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its key.
    pub key: AttemptKey,
    /// The ranks that have come, of those that say who they are.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ranks: BTreeSet<u32>,
    /// Attempts in whose place this one came, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<AttemptKey>,
}

/// What the attempt of a reader is to the attempt of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptRelation {
    /// One of them is not known.
    Unknown,
    /// It is the same attempt.
    Same,
    /// It is another one.
    Other,
    /// It is an earlier attempt, which that of the iteration has replaced.
    Former,
}

impl Attempt {
    /// What the attempt of a reader is to that of an iteration.
    pub fn relation(known: Option<&Attempt>, given: Option<&Attempt>) -> AttemptRelation {
        match (known, given) {
            (Some(known), Some(given)) if known.key == given.key => AttemptRelation::Same,
            (Some(known), Some(given)) if known.former.contains(&given.key) => AttemptRelation::Former,
            (Some(_), Some(_)) => AttemptRelation::Other,
            _ => AttemptRelation::Unknown,
        }
    }

    /// This attempt comes in the place of another one.
    pub fn replace(&mut self, known: &Attempt) {
        let before = known.former.iter().chain([&known.key]).filter(|key| **key != self.key);
        self.former = before.cloned().collect();
        self.former.drain(..self.former.len().saturating_sub(MAX_FORMER));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(id: u64) -> Attempt {
        Attempt { key: AttemptKey { id: id.to_string(), ..AttemptKey::default() }, ..Attempt::default() }
    }

    #[test]
    fn an_attempt_remembers_the_latest_ones_before_it() {
        let mut last = attempt(0);
        for id in 1..20 {
            let mut next = attempt(id);
            next.replace(&last);
            last = next;
        }
        let relation = |id| Attempt::relation(Some(&last), Some(&attempt(id)));
        assert_eq!(relation(19), AttemptRelation::Same);
        assert_eq!(
            (relation(18), relation(11), relation(10)),
            (AttemptRelation::Former, AttemptRelation::Former, AttemptRelation::Other)
        );
        assert_eq!(Attempt::relation(Some(&last), None), AttemptRelation::Unknown);
        // The same attempt goes back to its states: it is none of those before it.
        let mut again = attempt(19);
        again.replace(&last);
        assert_eq!(Attempt::relation(Some(&again), Some(&attempt(19))), AttemptRelation::Same);
    }
}
