//! What the users of an epoch had got when a reading of it went on from their states.
//!
//! An epoch goes on from states of its readers when a program restores them, when the dispatcher lost its state, and when a
//! consumer was lost. Each of these readings is an iteration of its own. A state of a later reading does not go with an older
//! state of another reader: what that reader took between its state and the beginning of the later reading is in the later
//! state, so nobody would read it again, and nobody would have it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{ClientId, Error, IterationId};

/// What users had got when one reading of an epoch went on from their states.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadingBase {
    /// The elements of each consumer.
    #[serde(default)]
    pub steps: BTreeMap<u32, u64>,
    /// The rows of other readers, where they are known.
    #[serde(default)]
    pub rows: BTreeMap<ClientId, u64>,
}

/// The bases of the latest readings of an epoch, by their iterations.
///
/// ```
/// use caju_types::{ClientId, IterationId, ReadingBase, ReadingBases};
/// // Iteration 8 went on when reader 3 had 150 rows.
/// let mut bases = ReadingBases::default();
/// bases.insert(IterationId(8), ReadingBase { rows: [(ClientId(3), 150)].into(), ..ReadingBase::default() });
/// let state_of_100_rows = [(ClientId(3), 100)].into();
/// let outdated = bases.outdated(|_| true, &Default::default(), &state_of_100_rows).unwrap();
/// assert_eq!((outdated.given, outdated.had), (100, 150));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReadingBases(BTreeMap<IterationId, ReadingBase>);

impl ReadingBases {
    /// The most readings that are remembered. A state from before these is refused: it is of no reading that is known.
    pub const MAX: usize = 16;

    /// Adds the base of a reading.
    pub fn insert(&mut self, reading: IterationId, base: ReadingBase) {
        self.0.insert(reading, base);
        while self.0.len() > Self::MAX {
            self.0.pop_first();
        }
    }

    /// Adds bases of the same epoch. Those that are known stay.
    pub fn extend(&mut self, more: &ReadingBases) {
        for (reading, base) in more.iter() {
            if !self.0.contains_key(&reading) {
                self.insert(reading, base.clone());
            }
        }
    }

    /// Leaves those of some readings.
    pub fn retain(&mut self, readings: &BTreeSet<IterationId>) {
        self.0.retain(|reading, _| readings.contains(reading));
    }

    /// All bases, the earliest first.
    pub fn iter(&self) -> impl Iterator<Item = (IterationId, &ReadingBase)> {
        self.0.iter().map(|(reading, base)| (*reading, base))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A reader whose state has less than it had when one of the `readings` went on; none if there is none such. `steps` are
    /// the elements by the states of consumers, and `rows` the rows by those of other readers.
    pub fn outdated(
        &self,
        readings: impl Fn(IterationId) -> bool,
        steps: &BTreeMap<u32, u64>,
        rows: &BTreeMap<ClientId, u64>,
    ) -> Option<OutdatedState> {
        self.iter().filter(|(reading, _)| readings(*reading)).find_map(|(_, base)| {
            let of_consumers = less(steps, &base.steps).map(|(consumer, given, had)| {
                let reader = format!("consumer {consumer}");
                OutdatedState { reader, given, had, what: "elements" }
            });
            let of_readers = || {
                less(rows, &base.rows).map(|(client, given, had)| {
                    let reader = format!("the reader that states name as {client}");
                    OutdatedState { reader, given, had, what: "rows" }
                })
            };
            of_consumers.or_else(of_readers)
        })
    }
}

/// The first key of which the one map has less than the other one.
fn less<K: Ord + Copy>(given: &BTreeMap<K, u64>, had: &BTreeMap<K, u64>) -> Option<(K, u64, u64)> {
    had.iter()
        .find_map(|(key, had)| given.get(key).filter(|given| *given < had).map(|given| (*key, *given, *had)))
}

/// A state that is older than what other states say that its reader had got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutdatedState {
    /// Whose it is, for people.
    pub reader: String,
    /// Elements of a consumer, or rows, by its state.
    pub given: u64,
    /// The same, by the states of others. What is between them would be missing.
    pub had: u64,
    /// What is counted.
    pub what: &'static str,
}

impl OutdatedState {
    /// The error with which it is refused.
    pub fn refused(&self) -> Error {
        let Self { reader, given, had, what } = self;
        Error::failed_precondition(format!(
            "the state of {reader} has {given} {what}, and by the states of others it had {had} when the epoch went on after the \
             loss of a consumer or of the dispatcher's state: those between them would be missing; start all readers from \
             states that were all saved before that, or all after it"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_bases_are_kept() {
        let mut bases = ReadingBases::default();
        let latest = (1..).map(IterationId).take(ReadingBases::MAX + 3);
        latest.for_each(|reading| bases.insert(reading, ReadingBase::default()));
        let kept: Vec<u64> = bases.iter().map(|(reading, _)| reading.0).collect();
        assert_eq!(kept, (4..).take(ReadingBases::MAX).collect::<Vec<_>>());
        bases.retain(&[IterationId(3), IterationId(5)].into());
        assert_eq!(bases.iter().map(|(reading, _)| reading.0).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_state_with_less_than_its_reader_had_at_a_later_reading_is_found() {
        let mut bases = ReadingBases::default();
        let base =
            |steps, rows| ReadingBase { steps: [(0, steps)].into(), rows: [(ClientId(3), rows)].into() };
        bases.insert(IterationId(8), base(5, 50));
        bases.insert(IterationId(9), base(9, 90));
        let found = |latest: u64, steps: u64, rows: u64| {
            let outdated =
                bases.outdated(|r| r.0 <= latest, &[(0, steps)].into(), &[(ClientId(3), rows)].into());
            outdated.map(|o| (o.what, o.given, o.had))
        };
        assert_eq!(found(9, 9, 90), None);
        assert_eq!(found(9, 8, 90), Some(("elements", 8, 9)));
        assert_eq!(found(9, 9, 89), Some(("rows", 89, 90)));
        assert_eq!(found(8, 8, 89), None, "a reading that no state is of does not count");
        assert_eq!(found(8, 4, 89), Some(("elements", 4, 5)));
        let others = bases.outdated(|_| true, &[(1, 0)].into(), &[(ClientId(4), 0)].into());
        assert_eq!(others, None, "readers that are not known are not compared");
    }
}
