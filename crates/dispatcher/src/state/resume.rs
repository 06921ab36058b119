//! An iteration that continues behind states of readers: which rows were taken before it began.
//!
//! Splits of which every row was taken are skipped, and the other ones are leased with their taken rows as
//! [`super::Lease::done`], as if tasks of this iteration had delivered them. Where elements are counted, or their order is
//! promised, all rows have to pass the stages again, so no split is skipped there.
//!
//! The iteration begins when the states of all readers that had taken rows have arrived. Until then it has no tasks.

use std::collections::{BTreeMap, BTreeSet};

use caju_engine::ShardBy;
use caju_types::{
    ClientId, EpochDraws, Error, IterationId, OutdatedState, ReadingBases, Result, RowRanges, TakenRows,
};
use serde::{Deserialize, Serialize};

use super::{Attempt, FeedId};

/// More rows than any split has: all rows of a split.
const ALL_ROWS: (u64, u64) = (0, 1 << 48);

/// What was taken before an iteration began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The iteration that the states are of, as its dispatcher called it.
    pub of: IterationId,
    /// The iterations that it went on from, by their states.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub behind: BTreeSet<IterationId>,
    /// Each reader gives the states of all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_all: bool,
    /// The readers whose states were given.
    pub given: BTreeSet<ClientId>,
    /// Those of them that gave a state of an iteration that `of` went on from.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub earlier: BTreeSet<ClientId>,
    /// The readers whose states are needed.
    pub needed: BTreeSet<ClientId>,
    /// The least number of states.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub at_least: u64,
    /// How many states were given. They may be fewer or more than the readers in `given`: a reader that loaded the states of
    /// all and has taken nothing since gives the union of them. 0 in older journals: one of each reader.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub num_given: u64,
    /// A dispatcher lost its state: the states are what its readers had taken by then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reattached: bool,
    /// Readers that those who came back do not know of have time to call: one that came while all of these stood still.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_unknown: bool,
    /// A consumer was lost, and the epoch waits for it: why.
    ///
    /// The stored name is older than this one.
    #[serde(default, rename = "recalled", skip_serializing_if = "String::is_empty")]
    pub reopen_reason: String,
    /// States for consumers that come back without one. The stored name is older than this one.
    #[serde(default, rename = "stand_ins", skip_serializing_if = "Option::is_none")]
    pub fallback_states: Option<Box<FallbackStates>>,
    /// The consumers that came back without a state, so that what they had acknowledged was given.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub from_acknowledged: BTreeSet<u32>,
    /// Of readers that are no consumers: the number of rows that the user of each had got, where it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<ClientId, u64>,
    /// What users had got when `of`, and iterations of `behind`, went on from their states.
    #[serde(default, skip_serializing_if = "ReadingBases::is_empty")]
    pub bases: ReadingBases,
    /// The latest iteration of which a state was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<IterationId>,
    /// The launch of the user's program that gave the states, if its readers say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Box<Attempt>>,
    /// Of consumers: the number of elements that the user of each had got.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<u32, u64>,
    /// Every row passes the stages again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recount: bool,
    /// In a static mode: the shards of the epoch, which it keeps on any number of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<ResumedShards>,
    /// How random stages above hints drew. None: no hint changes a row, or the states are of a version that does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draws: Option<Box<EpochDraws>>,
    /// The rows that were taken.
    pub taken: TakenRows,
}

/// The shards of an epoch that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumedShards {
    /// How many there are.
    pub count: u32,
    /// What they divide. None: what the job's shards divide; states of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ShardBy>,
}

impl ResumedShards {
    /// The shards that two states agree on.
    ///
    /// # Errors
    /// `InvalidArgument` if they do not.
    fn with(self, other: ResumedShards) -> Result<ResumedShards> {
        let differs = |(a, b)| a != b;
        if self.count != other.count || self.by.zip(other.by).is_some_and(differs) {
            return Err(Error::invalid(
                "the states are of other shards: give the states that all readers of a job have at one step",
            ));
        }
        Ok(ResumedShards { by: self.by.or(other.by), ..self })
    }
}

/// States for consumers that come back without one: what they had acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackStates {
    /// Rows that users took, of whichever consumer.
    pub whole: TakenRows,
    /// What each consumer had acknowledged beyond that.
    pub consumers: BTreeMap<u32, FallbackState>,
    /// Consumers of which it is not known what they had taken, because an older dispatcher did not record it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown: BTreeMap<u32, ClientId>,
}

/// What one consumer had acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackState {
    /// Its number.
    pub client: ClientId,
    /// Rows that its user took, per split.
    pub taken: Vec<(u64, RowRanges)>,
    /// Elements that its user got of the epoch.
    pub elements: u64,
}

impl Resume {
    /// The elements that the user of a consumer had got. All consumers of an epoch that another number of consumers reads on
    /// begin at the same step.
    pub fn steps_of(&self, consumer: u32) -> u64 {
        self.steps.get(&consumer).or_else(|| self.steps.values().max()).copied().unwrap_or(0)
    }

    /// A consumer without a state has got nothing: it came when others had their states already. States of all consumers may be
    /// of another number of them, which begin at one step.
    pub(super) fn complete_steps(&mut self, consumers: u32) {
        if !self.of_all && !self.steps.is_empty() {
            for consumer in 0..consumers {
                self.steps.entry(consumer).or_insert(0);
            }
        }
    }

    /// The iteration, and those that it went on from.
    pub fn readings(&self) -> BTreeSet<IterationId> {
        self.behind.iter().copied().chain([self.of]).collect()
    }

    /// A reader whose state is older than what the states of others say that it had got; none if there is none such. All may
    /// be of a reading before the latest one: that is compared with nothing.
    pub fn outdated(&self) -> Option<OutdatedState> {
        let (latest, readings) = (self.latest?, self.readings());
        let counts = |reading: IterationId| reading <= latest && readings.contains(&reading);
        self.bases.outdated(counts, &self.steps, &self.rows)
    }

    /// What a consumer had acknowledged that comes back without a state; none if it gave one.
    fn acknowledged_by(&self, consumer: u32) -> Option<(&FallbackStates, &FallbackState)> {
        let states = self.fallback_states.as_deref()?;
        let of = states.consumers.get(&consumer)?;
        (!self.has_given(consumer, of.client)).then_some((states, of))
    }

    /// Whether a consumer that had this number in the reading before this one gave a state. It may be of another reading, in which
    /// the consumer had another number.
    fn has_given(&self, consumer: u32, client: ClientId) -> bool {
        self.given.contains(&client) || self.steps.contains_key(&consumer)
    }

    /// Whether a consumer gave no state, and what it had taken is not known.
    pub fn is_unknown(&self, consumer: u32) -> bool {
        let client = self.fallback_states.as_deref().and_then(|states| states.unknown.get(&consumer));
        client.is_some_and(|client| !self.has_given(consumer, *client))
    }

    /// The elements that a consumer had acknowledged that comes back without a state.
    pub fn acknowledged_elements(&self, consumer: u32) -> u64 {
        self.acknowledged_by(consumer).map_or(0, |(_, of)| of.elements)
    }

    /// Whether a consumer that gives these states had acknowledged more elements.
    pub fn is_later_than(&self, given: &Resume) -> bool {
        given.steps.iter().any(|(consumer, elements)| self.acknowledged_elements(*consumer) > *elements)
    }

    /// A consumer whose state has fewer elements than it had acknowledged: which, and the two numbers.
    pub fn consumer_that_went_back(&self) -> Option<(u32, u64, u64)> {
        let states = self.fallback_states.as_deref()?;
        states.consumers.iter().find_map(|(consumer, of)| {
            let given = self.steps.get(consumer).filter(|given| **given < of.elements)?;
            Some((*consumer, *given, of.elements))
        })
    }

    /// Whether the states are of rows that a set stored at a hint has, and nothing else.
    pub fn goes_on_from_set(&self, hint: &str) -> bool {
        self.draws.as_deref().is_some_and(|draws| draws.chosen_by_set && draws.frozen_at == hint)
    }

    /// Whether consumers of the reading before this one had acknowledged elements, as far as it is known.
    pub fn has_acknowledged_elements(&self) -> bool {
        self.fallback_states.as_deref().is_some_and(|states| {
            !states.unknown.is_empty() || states.consumers.values().any(|of| of.elements > 0)
        })
    }

    /// The state of a consumer that comes back without one, from what it had acknowledged; none if its state was given.
    pub fn fallback_state(&self, consumer: u32) -> Option<Resume> {
        let (states, of) = self.acknowledged_by(consumer)?;
        let mut taken = states.whole.clone();
        of.taken.iter().for_each(|(split, rows)| taken.add_rows(*split, rows));
        Some(Resume {
            of: self.of,
            reattached: true,
            given: [of.client].into(),
            num_given: 1,
            latest: Some(self.of),
            steps: [(consumer, of.elements)].into(),
            from_acknowledged: [consumer].into(),
            taken,
            ..Resume::default()
        })
    }

    /// Elements that nobody has any more if this consumer comes back without a state, too: all others have come so before, and
    /// with them the whole program began again. 0 if some consumer still has its state, or may come with it.
    pub fn elements_of_nobody(&self, consumer: u32) -> u64 {
        let Some(states) = self.fallback_states.as_deref() else { return 0 };
        let is_without = |c: &u32| *c == consumer || self.from_acknowledged.contains(c);
        let mut consumers = states.consumers.keys().chain(states.unknown.keys());
        if !consumers.all(is_without) || self.given.len() > self.from_acknowledged.len() {
            return 0;
        }
        states.consumers.values().map(|of| of.elements).sum()
    }

    /// How many states are missing, as far as it is known.
    pub fn missing(&self) -> u64 {
        // A reader that took nothing since it went on from a state gives that state, under the number that it had then.
        let earlier = self.earlier.difference(&self.needed).count();
        let named = self.needed.difference(&self.given).count().saturating_sub(earlier) as u64;
        let known = named.max(self.at_least.saturating_sub(self.num_given()));
        known.max(u64::from(self.awaits_unknown))
    }

    /// How many states were given.
    fn num_given(&self) -> u64 {
        if self.num_given == 0 { self.given.len() as u64 } else { self.num_given }
    }

    /// Whether a reader gives the states of several.
    pub fn is_union(&self) -> bool {
        self.num_given() < self.given.len() as u64
    }

    /// Whether every row of further states was taken by the states that were given.
    pub fn has_rows_of(&self, more: &Resume) -> bool {
        self.taken.contains(&more.taken)
    }

    /// Whether the state of one consumer is among those that were given.
    pub fn has_state_of_consumer(&self, given: &Resume) -> bool {
        let is_given = |(consumer, elements): (&u32, &u64)| self.steps.get(consumer) == Some(elements);
        given.steps.len() == 1
            && !given.is_union()
            && given.steps.iter().all(is_given)
            && self.has_rows_of(given)
    }

    /// One reader for each state of an earlier iteration: which of its readers that one was does not matter.
    fn one_each(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.given.iter().copied().take(usize::try_from(self.num_given()).unwrap_or(usize::MAX))
    }

    /// Whether further states are of the same reading. A reader that has taken nothing since it went on from a state has
    /// that state still: its rows are in the other readers' states.
    pub fn is_of_one_reading_as(&self, more: &Resume) -> bool {
        self.of == more.of || more.behind.contains(&self.of) || self.behind.contains(&more.of)
    }

    /// Adds further states of the same readers' job.
    ///
    /// # Errors
    /// `InvalidArgument` if they are of another reading or another listing.
    pub fn extend(&mut self, more: &Resume) -> Result<()> {
        if !self.is_of_one_reading_as(more) {
            return Err(Error::invalid(
                "the states are not of one reading of one epoch: give the states that all readers of a job have at one step",
            ));
        }
        let shards = match (self.shards, more.shards) {
            (Some(own), Some(other)) => Some(own.with(other)?),
            (own, other) => own.or(other),
        };
        let draws = EpochDraws::both(self.draws.as_deref(), more.draws.as_deref())?;
        self.taken.extend(&more.taken)?;
        self.shards = shards;
        self.draws = draws.map(Box::new);
        if self.of == more.of {
            self.behind.extend(&more.behind);
            self.needed.extend(&more.needed);
            self.earlier.extend(&more.earlier);
        } else if more.behind.contains(&self.of) {
            (self.of, self.behind) = (more.of, more.behind.clone());
            self.needed.clone_from(&more.needed);
            let own: Vec<ClientId> = self.one_each().collect();
            self.earlier.extend(own);
            self.earlier.extend(&more.earlier);
        } else {
            self.earlier.extend(more.one_each());
        }
        self.num_given = self.num_given().saturating_add(more.num_given());
        self.given.extend(&more.given);
        self.at_least = self.at_least.max(more.at_least);
        self.reattached |= more.reattached;
        self.from_acknowledged.extend(&more.from_acknowledged);
        self.steps.extend(&more.steps);
        self.rows.extend(&more.rows);
        self.bases.extend(&more.bases);
        self.latest = self.latest.max(more.latest);
        if self.attempt.is_none() {
            self.attempt.clone_from(&more.attempt);
        }
        Ok(())
    }

    /// The readers whose states are missing, where they are named.
    pub fn missing_readers(&self) -> BTreeSet<ClientId> {
        self.needed.difference(&self.given).copied().collect()
    }

    /// Continues without the missing states.
    pub(super) fn give_up_missing(&mut self) {
        self.needed.clone_from(&self.given);
        self.earlier.clear();
        self.at_least = 0;
    }

    /// Positions of a feed's splits that need not be leased.
    pub(crate) fn skipped_splits(&self, feed: FeedId) -> RowRanges {
        if self.recount {
            return RowRanges::default();
        }
        let (first, end) = (feed.index(0), FeedId(feed.0.saturating_add(1)).index(0));
        let of_feed = |(s, e): (u64, u64)| (s.max(first), e.min(end));
        let mine = self.taken.whole().iter().map(of_feed).filter(|(s, e)| s < e);
        mine.map(|(s, e)| (s - first, e - first)).collect()
    }

    /// Rows of a split that were taken.
    pub(super) fn done_of(&self, split: u64) -> RowRanges {
        if self.taken.whole().contains(split) {
            return std::iter::once(ALL_ROWS).collect();
        }
        self.taken.rows_of(split).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use caju_types::ReadingBase;

    use super::*;

    /// The state of a consumer, which has some elements, of an iteration. The second iteration went on from states of the first.
    fn state_of(consumer: u32, iteration: u64, elements: u64) -> Resume {
        Resume {
            of: IterationId(iteration),
            behind: (1..iteration).map(IterationId).collect(),
            given: [ClientId(10 * iteration + u64::from(consumer))].into(),
            num_given: 1,
            latest: Some(IterationId(iteration)),
            steps: [(consumer, elements)].into(),
            ..Resume::default()
        }
    }

    #[test]
    fn a_state_from_before_the_epoch_went_on_does_not_go_with_one_from_after_it() {
        let mut bases = ReadingBases::default();
        bases
            .insert(IterationId(2), ReadingBase { steps: [(0, 5), (1, 7)].into(), ..ReadingBase::default() });
        let found = |all: &Resume| all.outdated().map(|o| (o.reader, o.given, o.had));
        let outdated = Some(("consumer 1".to_owned(), 6, 7));
        for (states, outdated) in [
            ([state_of(0, 2, 6), state_of(1, 2, 8)], None),
            ([state_of(0, 2, 6), state_of(1, 1, 6)], outdated.clone()),
            ([state_of(1, 1, 6), state_of(0, 2, 6)], outdated.clone()),
            // It has taken nothing since.
            ([state_of(0, 2, 6), state_of(1, 1, 7)], None),
            // All go back to before it.
            ([state_of(0, 1, 4), state_of(1, 1, 4)], None),
        ] {
            let mut all = Resume { bases: bases.clone(), ..states[0].clone() };
            all.extend(&states[1]).unwrap();
            assert_eq!(found(&all), outdated, "{states:?}");
            let waiting = Resume {
                of: IterationId(2),
                behind: [IterationId(1)].into(),
                reattached: true,
                ..Resume::default()
            };
            let mut all = Resume { bases: bases.clone(), ..waiting };
            states.iter().for_each(|state| all.extend(state).unwrap());
            assert_eq!(found(&all), outdated, "{states:?}, one after another");
        }
    }

    #[test]
    fn a_consumer_that_gave_a_state_gets_no_other_one() {
        let acknowledged = FallbackState { client: ClientId(21), taken: Vec::new(), elements: 7 };
        let states = FallbackStates { consumers: [(1, acknowledged)].into(), ..FallbackStates::default() };
        let mut waiting = Resume {
            of: IterationId(2),
            behind: [IterationId(1)].into(),
            fallback_states: Some(Box::new(states)),
            ..Resume::default()
        };
        assert_eq!(waiting.fallback_state(1).unwrap().steps, [(1, 7)].into());
        // Of the first iteration, in which it had another number.
        waiting.extend(&state_of(1, 1, 6)).unwrap();
        assert_eq!(waiting.fallback_state(1), None);
    }

    #[test]
    fn a_journal_line_of_an_epoch_that_was_opened_again_keeps_its_stored_names() {
        let line = concat!(
            r#"{"of":7,"given":[],"needed":[3,4],"reattached":true,"recalled":"consumer 1 is gone","#,
            r#""stand_ins":{"whole":{"whole":[],"rows":{},"listed":{}},"#,
            r#""consumers":{"1":{"client":4,"taken":[[5,[[0,8]]]],"elements":2}}},"taken":{"whole":[],"rows":{},"listed":{}}}"#,
        );
        let resume: Resume = serde_json::from_str(line).unwrap();
        assert_eq!(resume.reopen_reason, "consumer 1 is gone");
        let state = resume.fallback_state(1).unwrap();
        assert_eq!((state.steps_of(1), state.given), (2, [ClientId(4)].into()));
        assert!(state.taken.rows_of(5).is_some_and(|rows| rows.iter().eq([(0, 8)])));
        assert_eq!(serde_json::to_string(&resume).unwrap(), line);
    }
}
