//! The position of a reader in its epoch, which its states hold.

use std::collections::BTreeSet;

use caju_types::{Error, Result};

use super::Reader;
use crate::state::ReaderState;

impl Reader {
    /// The state of this reader: which rows of the epoch its user got, the last element included. It does not wait, and
    /// takes time in proportion to the splits that are partly taken, not to all splits.
    ///
    /// [`crate::ReadRequest::states`] reads the remaining rows, on any dispatcher, with any number of workers and readers. In a
    /// job of several readers the states of all of them are needed.
    ///
    /// # Errors
    /// `Unimplemented` within the epoch if it cannot be continued exactly, see [`Reader::not_exact`].
    pub fn state(&self) -> Result<ReaderState> {
        self.checked(self.position()?)
    }

    /// Refuses a state within the epoch that could not be continued exactly.
    fn checked(&self, state: ReaderState) -> Result<ReaderState> {
        match self.not_exact().filter(|_| state.is_within_epoch()) {
            None => Ok(state),
            Some(why) => Err(Error::unimplemented(format!(
                "a state after {} elements of epoch {} could not be continued exactly: {why}; or take it at an epoch's end",
                state.elements, state.epoch
            ))),
        }
    }

    /// Why the epoch cannot be continued exactly from a state within it, which is refused: a function of the user draws from a
    /// generator that caju does not set. None if it can.
    pub fn not_exact(&self) -> Option<&str> {
        self.not_exact.as_deref()
    }

    /// The position of this reader, as [`Reader::state`], also where it is not exact. It is a state for users that decide
    /// later whether they need it.
    ///
    /// # Errors
    /// None that a user can cause.
    pub fn position(&self) -> Result<ReaderState> {
        let (listed, mut readers) = self.shared.facts.listed_and_readers();
        // Where others have taken rows since, only a state of this reading says that theirs are needed.
        if self.elements == 0 && !self.over && self.is_resumed && readers.is_empty() {
            return Ok(self.origin.clone());
        }
        let mut delivered = self.delivered.clone();
        self.shared.facts.copy_to(&mut delivered);
        let (runs, whole) = &self.in_hand;
        delivered.add_first(runs, if *whole { u64::MAX } else { self.handed_rows });
        let mut taken = delivered.taken()?;
        listed.into_iter().for_each(|(feed, listed)| taken.set_listed(feed, listed));
        if self.rows > 0 {
            readers.insert(self.client);
        }
        Ok(ReaderState {
            iteration: self.iteration.0,
            behind: match self.is_resumed {
                true => self.origin.behind_these(self.shared.facts.readings()),
                false => BTreeSet::new(),
            },
            readers: [self.client].into(),
            all_readers: readers,
            elements: self.origin.elements.saturating_add(self.elements),
            rows: self.origin.rows.saturating_add(self.rows),
            exhausted: self.over,
            turn: self.turn,
            taken,
            steps: self.origin.steps_after(self.consumer, self.shared.facts.steps(), self.elements),
            bases: self.shared.facts.bases(&self.origin.bases),
            ..self.origin.clone()
        })
    }
}
