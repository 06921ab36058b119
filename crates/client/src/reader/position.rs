//! The position of a reader in its epoch, which its states hold.

use std::collections::BTreeSet;

use caju_types::{Error, Result};

use super::Reader;
use crate::delivered::Delivered;
use crate::shared::{Reopened, Shared};
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
    /// `FailedPrecondition` if the last element was given back ([`Reader::give_back`]) and the epoch was opened again meanwhile.
    pub fn position(&self) -> Result<ReaderState> {
        let (elements, rows) = (self.origin.elements + self.elements, self.origin.rows + self.rows);
        if let Some(Reopened { shared, origin, iteration, client }) = self.shared.latest_reopened() {
            if self.gave_back {
                return Err(Error::failed_precondition(format!(
                    "the element after {elements} of epoch {} could not be used, and the epoch was opened again behind it: no \
                     state is known that does not count it; go on from an earlier state",
                    origin.epoch
                )));
            }
            // The user gets to know with its next call. Other readers may take rows of the new iteration already.
            let origin = ReaderState { elements, rows, ..origin.clone() };
            let (iteration, client) = (iteration.0, *client);
            return self.position_in(Reading { shared, origin, iteration, client, taken: None });
        }
        let (runs, whole) = &self.in_hand;
        let mut delivered = self.delivered.for_state(runs);
        delivered.add_first(runs, if *whole { u64::MAX } else { self.handed_rows });
        self.position_in(Reading {
            shared: &self.shared,
            origin: self.origin.clone(),
            iteration: self.iteration.0,
            client: self.client,
            taken: Some(delivered),
        })
    }

    /// Gives back what the last call gave to the user, because it could not be used: its conversion failed, or the program was
    /// interrupted. No state counts it, and it goes to other readers of the job. The reader gives nothing more afterwards.
    ///
    /// After a loss of the dispatcher's state it may be too late: the epoch was opened again as if the element had been taken. A
    /// warning says so, and the reader has no state then ([`Reader::position`]).
    ///
    /// Nothing changes if the last call gave nothing: what came before was used.
    pub fn give_back(&mut self) {
        let Some((elements, rows)) = self.last_handed.take() else { return };
        if self.shared.latest_reopened().is_some() {
            tracing::warn!(
                job = self.job,
                "an element could not be used after the epoch was opened again: it counts as taken, and no other reader gets it"
            );
        }
        self.elements -= elements;
        self.rows -= rows;
        let (_, whole) = self.in_hand;
        if whole {
            self.in_hand = (Vec::new(), false);
        } else {
            self.handed_rows -= rows;
        }
        if self.handed_rows == 0 {
            self.turn = self.turn_before;
        }
        self.current = None;
        self.gave_back = true;
        self.shared.acks.give_back();
    }

    /// At the end of an epoch that gave nothing. It may be a mistake: the program was started again under the same job name.
    pub(super) fn warn_if_late(&self) {
        if self.came_late && self.elements == 0 {
            tracing::warn!(
                "epoch {} of job `{}` gave this reader nothing: others had read it to its end before this reader opened it; \
                 take another job name to read the data again",
                self.origin.epoch,
                self.job
            );
        }
    }

    fn position_in(&self, reading: Reading<'_>) -> Result<ReaderState> {
        let Reading { shared, origin, iteration, client, taken } = reading;
        let (elements, rows) = if taken.is_some() { (self.elements, self.rows) } else { (0, 0) };
        let is_resumed = self.is_resumed || taken.is_none();
        let (listed, mut readers) = shared.facts.listed_and_readers();
        // Where others have taken rows since, only a state of this reading says that theirs are needed.
        if elements == 0 && !self.over && is_resumed && readers.is_empty() {
            return Ok(ReaderState { turn: self.turn, ..origin });
        }
        let mut delivered = taken.unwrap_or_default();
        shared.facts.copy_to(&mut delivered);
        let mut taken = delivered.taken()?;
        listed.into_iter().for_each(|(feed, listed)| taken.set_listed(feed, listed));
        if rows > 0 {
            readers.insert(client);
        }
        Ok(ReaderState {
            iteration,
            behind: match is_resumed {
                true => origin.behind_these(shared.facts.readings()),
                false => BTreeSet::new(),
            },
            readers: [client].into(),
            all_readers: readers,
            elements: origin.elements.saturating_add(elements),
            rows: origin.rows.saturating_add(rows),
            exhausted: self.over,
            turn: self.turn,
            taken,
            steps: origin.steps_after(self.consumer, shared.facts.steps(), elements),
            bases: shared.facts.bases(&origin.bases),
            draws: shared.facts.draws(),
            ..origin
        })
    }
}

/// One reading of an epoch, in which a reader has a position.
struct Reading<'a> {
    shared: &'a Shared,
    /// The position at which it began.
    origin: ReaderState,
    iteration: u64,
    client: u64,
    /// What the user got since; none if it has not asked yet.
    taken: Option<Delivered>,
}
