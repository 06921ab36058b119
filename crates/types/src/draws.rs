//! How the random stages of an epoch drew.

use serde::{Deserialize, Serialize};

/// Whose draws the random stages above hints made in an epoch.
///
/// Rows of a random stage are stored as it drew in epoch 0, and every later epoch that reads or stores them draws so again. A
/// state names rows by their numbers, so whoever goes on from it has to draw as its reader did. It is said of epochs
/// beyond epoch 0; there no hint changes a row, also one that is added later. It is said of epoch 0, too, if its rows are those
/// that a stored set chose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochDraws {
    /// The hint above which they drew as in epoch 0; empty if every stage drew for this epoch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub frozen_at: String,
    /// Of which fraction of the splits that is so, in thousandths; 0 without a hint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub permille: u32,
    /// The rows were read from a stored set, behind a stage that chose them as they happened to come in another epoch: they
    /// cannot be computed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chosen_by_set: bool,
    /// The attempt that stored this set: a set that is removed and stored again has the rows that other epochs chose. Empty if
    /// no stage chose rows, until it is known whether there is a set, and in states of versions that did not say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub set_attempt: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl EpochDraws {
    /// The draws of two states of one epoch, of which one may not say them.
    ///
    /// # Errors
    /// `InvalidArgument` if they differ.
    pub fn both(own: Option<&Self>, other: Option<&Self>) -> Result<Option<Self>, crate::Error> {
        let (Some(own), Some(other)) = (own, other) else { return Ok(own.or(other).cloned()) };
        if (&own.frozen_at, own.permille) != (&other.frozen_at, other.permille) {
            return Err(crate::Error::invalid(
                "the states are of epochs whose random stages drew differently, from a cache and without one: give the states \
                 that all readers of a job have at one step",
            ));
        }
        let one_of_sets = if own.set_attempt.is_empty() { other } else { own };
        if ![&one_of_sets.set_attempt, ""].contains(&other.set_attempt.as_str()) {
            return Err(crate::Error::invalid(
                "the states are of epochs that were read from different stored rows: a set was removed and stored again \
                 between them; give the states that all readers of a job have at one step",
            ));
        }
        // Whether there is a set is found out after the epoch was opened.
        Ok(Some(Self {
            chosen_by_set: own.chosen_by_set || other.chosen_by_set,
            set_attempt: one_of_sets.set_attempt.clone(),
            ..own.clone()
        }))
    }
}
