//! The same number of elements for every consumer of a job.
//!
//! A task distributes its elements to the consumers round-robin: one to each in every round. So the consumers have equally many of
//! it, whatever their speeds, until less than a round is left at its end: its *remainder*, elements that fill no round and rows
//! that fill no batch. A worker keeps the remainder until every task of the epoch is at its end, and [`assign`] assigns all
//! remainders together.
//!
//! A task that is lost may have given some consumers more than others, and an epoch that continues from states may begin
//! where consumers had got different numbers of elements. Those with fewer are *lagging*, by what they lack. From then on every
//! task asks who gets the elements that it has computed ([`Even::next_to_serve`]), and gives them to lagging consumers, until all
//! have equally many. Then rounds go on. Only elements that exist are given to them, so nothing has to be taken back
//! from a task that ends.
//!
//! The elements suffice. A lost task has assigned whole rounds and what the dispatcher said, so its lost elements are at least those
//! that consumers lack of it. All consumers had got no more than an equal number of the epoch before it was opened again. Both
//! hold as long as rows that are computed again make as many elements as before. Where they make fewer, the epoch ends with an
//! error, or with more copies, as `uneven` says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caju_types::{Balance, ClientId, Error, TaskId, Uneven};
use serde::{Deserialize, Serialize};

use super::remainders::{MAX_NAMED, Remainder, RemainderAssignment, assign};
use super::{Failure, Iteration, KnownOrder, Task, TaskState, rounds};

/// How the elements of a job reach its consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumers {
    /// How many there are.
    pub count: u32,
    /// What happens to elements that do not fill a last round.
    pub uneven: Uneven,
    /// What the consumers' elements of one round have in common.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub balance: Balance,
}

/// Numbers of elements, for messages.
pub fn describe_steps(steps: &BTreeMap<u32, u64>) -> String {
    let say = |(consumer, elements): (&u32, &u64)| format!("consumer {consumer} after {elements} elements");
    let said: Vec<String> = steps.iter().map(say).take(MAX_NAMED).collect();
    said.join(", ")
}

impl Consumers {
    /// Whether an epoch can go on after these numbers of elements of its consumers. In rounds the elements that some
    /// consumers lack would be of another class, or of another length, than those of the others.
    ///
    /// # Errors
    /// `FailedPrecondition` for consumers that read in rounds and are at different steps.
    pub fn check_steps(&self, steps: &BTreeMap<u32, u64>) -> Result<(), Error> {
        if self.balance == Balance::None || steps.values().min() == steps.values().max() {
            return Ok(());
        }
        Err(Error::failed_precondition(format!(
            "the consumers are at different steps ({}), and with balance `{}` they go on from one step alone: a round of which \
             some have their element cannot be made again; start all consumers again from their states of one step, or read \
             the epoch again under another job name",
            describe_steps(steps),
            self.balance.as_str()
        )))
    }
}

/// What is known of an epoch whose elements are distributed round-robin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Even {
    /// Who reads it.
    pub consumers: Consumers,
    /// Consumers that have come.
    #[serde(default)]
    pub joined: BTreeSet<u32>,
    /// Consumers that have left, each with the identifier of its last reader.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<u32, ClientId>,
    /// Elements that each consumer lacks, after tasks were lost or from the states of the consumers.
    #[serde(default, rename = "behind")]
    pub lag: Vec<u64>,
    /// Elements that were dropped at the end.
    #[serde(default)]
    pub surplus: u64,
    /// Elements that were delivered a second time at the end.
    #[serde(default)]
    pub padded: u64,
    /// Of consumers that read in rounds: the last rounds that were given out, which remainders make.
    #[serde(default, rename = "tail_rounds", skip_serializing_if = "super::is_default")]
    pub remainder_rounds: u64,
    /// Of consumers that read in rounds: the order as the consumer knew it that left furthest on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_with: Option<Arc<KnownOrder>>,
}

impl Even {
    pub(super) fn new(consumers: Consumers) -> Self {
        let lag = vec![0; consumers.count as usize];
        Self {
            consumers,
            joined: BTreeSet::new(),
            left: BTreeMap::new(),
            lag,
            surplus: 0,
            padded: 0,
            remainder_rounds: 0,
            left_with: None,
        }
    }

    /// A consumer leaves, and knows this of the order of rounds.
    pub(super) fn leaves_with(&mut self, known: &KnownOrder) {
        if self.left_with.as_ref().is_none_or(|other| other.position < known.position) {
            self.left_with = Some(Arc::new(known.clone()));
        }
    }

    /// The consumers had got these numbers of elements when the epoch went on from their states. Another number of consumers
    /// begins where all had got equally many.
    pub(super) fn begin_at(&mut self, steps: &BTreeMap<u32, u64>) {
        if steps.len() != self.lag.len() {
            return;
        }
        let most = steps.values().copied().max().unwrap_or(0);
        for (lag, consumer) in self.lag.iter_mut().zip(0..) {
            *lag = most - steps.get(&consumer).copied().unwrap_or(most);
        }
    }

    /// Whether the consumers get their elements in one order of rounds.
    pub fn is_in_rounds(&self) -> bool {
        self.consumers.balance != Balance::None
    }

    /// Whether some consumers lack elements that others got.
    pub fn has_lagging(&self) -> bool {
        self.lag.iter().any(|lacks| *lacks > 0)
    }

    /// Who gets the next elements: those who lack most, until all of them lack equally many. These are all `elements`, or those
    /// that are lacking. Empty if no consumer is lagging.
    pub fn next_to_serve(&self, elements: u64) -> Vec<u64> {
        if !self.has_lagging() || elements == 0 {
            return Vec::new();
        }
        let beyond =
            |level: u64| self.lag.iter().fold(0, |sum: u64, b| sum.saturating_add(b.saturating_sub(level)));
        // The least level to which the elements suffice.
        let (mut least, mut most) = (0, self.lag.iter().copied().max().unwrap_or(0));
        while least < most {
            let level = least + (most - least) / 2;
            if beyond(level) <= elements {
                most = level;
            } else {
                least = level + 1;
            }
        }
        let mut left = elements - beyond(most);
        let serve = |lag: &u64| {
            // Those that lack as many as the level says get one more each, as far as there are elements.
            let more = u64::from(left > 0 && most > 0 && *lag >= most);
            left -= more;
            lag.saturating_sub(most) + more
        };
        self.lag.iter().map(serve).collect()
    }

    /// Whether every consumer has come.
    pub fn is_complete(&self) -> bool {
        self.joined.len() == self.consumers.count as usize
    }
}

/// Assigns the remainders so that the consumers' last elements make rounds, too.
fn assign_rounds(remainders: &[(TaskId, &Remainder)], even: &Even) -> Result<RemainderAssignment, Error> {
    let first = even.remainder_rounds + 1;
    if remainders.iter().all(|(_, remainder)| remainder.rows == 0) {
        return Ok(rounds::by_class(remainders, &even.consumers, first));
    }
    let lag = vec![0; even.lag.len()];
    Ok(rounds::numbered(assign(remainders, &lag, even.consumers.uneven)?, remainders, first))
}

impl Iteration {
    /// Who gets the remainders, once every consumer has come, every task that runs has reported its own and no split is left.
    /// Until then no task ends: who comes late finds them all.
    pub fn assign_remainders(&self) -> Option<Result<RemainderAssignment, Error>> {
        let even = self.even.as_ref().filter(|even| even.is_complete() && self.failure.is_none())?;
        if self.feeds.values().any(super::Feed::has_work) || self.tasks.values().any(Task::is_lost) {
            return None;
        }
        let waiting =
            || self.tasks.values().filter(|t| t.state == TaskState::Active && t.remainder_pieces.is_none());
        if waiting().any(|t| t.remainder.is_none()) {
            return None;
        }
        let remainders: Vec<(TaskId, &Remainder)> =
            waiting().filter_map(|t| Some((t.id, t.remainder.as_ref()?))).collect();
        if remainders.is_empty() {
            return None;
        }
        if even.is_in_rounds() {
            return Some(assign_rounds(&remainders, even).map_err(|e| e.context(self.describe())));
        }
        let mut lag = even.lag.clone();
        for (_, remainder) in &remainders {
            lag.iter_mut().zip(&remainder.lag).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
        Some(assign(&remainders, &lag, even.consumers.uneven).map_err(|e| e.context(self.describe())))
    }

    /// A task has computed all of its rows. A feed that it has alone gives no further split: a `take` may leave some.
    pub(super) fn remainder_reported(&mut self, id: TaskId, remainder: &Remainder) {
        let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state == TaskState::Active) else { return };
        task.remainder = Some(remainder.clone());
        if self.exclusive
            && let Some(feed) = self.feeds.get_mut(&task.feed)
        {
            feed.closed = true;
        }
        self.version += 1;
    }

    pub(super) fn remainders_assigned(&mut self, assignment: &RemainderAssignment) {
        for (id, pieces) in &assignment.tasks {
            if let Some(task) = self.tasks.get_mut(id) {
                task.remainder_pieces = Some(pieces.clone());
            }
        }
        if let Some(even) = &mut self.even {
            even.lag.iter_mut().for_each(|b| *b = 0);
            even.surplus += assignment.surplus;
            even.padded += assignment.padded;
            even.remainder_rounds += assignment.rounds;
        }
        self.version += 1;
    }

    /// Elements that a task has computed go to lagging consumers.
    pub(super) fn lagging_served(&mut self, id: TaskId, request_no: u64, counts: &[u64]) {
        let (Some(even), Some(task)) = (&mut self.even, self.tasks.get_mut(&id)) else { return };
        task.last_serve = request_no;
        task.last_served = counts.to_vec();
        task.first.resize(task.first.len().max(counts.len()), 0);
        task.first.iter_mut().zip(counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        even.lag.iter_mut().zip(counts).for_each(|(lacks, got)| *lacks = lacks.saturating_sub(*got));
    }

    /// A task whose worker does not ask serves the lagging consumers first.
    pub(super) fn serve_lagging(&mut self, id: TaskId) {
        let Some(even) = self.even.as_mut().filter(|e| e.has_lagging()) else { return };
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let lag: Vec<u64> = even.lag.iter_mut().map(std::mem::take).collect();
        task.first.resize(lag.len(), 0);
        task.first.iter_mut().zip(&lag).for_each(|(sum, more)| *sum += more);
        task.last_lag = lag;
    }

    /// Adds what consumers lack because a task was lost.
    pub(super) fn add_lag(&mut self, task: &Task) {
        if self.even.as_ref().is_some_and(Even::is_in_rounds) {
            return self.withdraw_remainders(task);
        }
        let Some(even) = &mut self.even else { return };
        // None: it left with all that it was to get, and did not say how many elements of this task these were.
        let received = |c: u32| {
            let present = self.members.iter().find(|(_, m)| m.consumer == Some(c)).map(|(id, _)| id);
            let of_left = || even.left.get(&c).filter(|_| even.joined.contains(&c));
            match (present, of_left()) {
                (None, Some(left)) => task.elements_of.get(left).copied(),
                (client, _) => Some(client.and_then(|id| task.elements_of.get(id)).copied().unwrap_or(0)),
            }
        };
        let of_remainder = |c: u32| {
            let own = task.remainder_pieces.iter().flatten().filter(|p| p.consumer == c && !p.of_rows);
            own.map(|p| p.end - p.start).sum::<u64>()
        };
        // Elements of rounds that each had: what it received less what it was to get beyond rounds.
        let rounds: Vec<Option<i128>> = (0..even.consumers.count)
            .map(|c| {
                let first = task.first.get(c as usize).copied().unwrap_or(0);
                received(c)
                    .map(|received| i128::from(received) - i128::from(first) - i128::from(of_remainder(c)))
            })
            .collect();
        let most = rounds.iter().flatten().copied().max().unwrap_or(0).max(0);
        for (lag, had) in even.lag.iter_mut().zip(rounds) {
            *lag += u64::try_from(most - had.unwrap_or(most)).unwrap_or(0);
        }
        // All that it kept and nobody got is distributed again.
        if let (Some(remainder), Some(pieces)) = (&task.remainder, &task.remainder_pieces) {
            let elements = |copy: bool| {
                let own = pieces.iter().filter(|p| !p.of_rows && p.copy == copy);
                own.map(|p| p.end - p.start).sum::<u64>()
            };
            even.surplus = even.surplus.saturating_sub(remainder.elements.saturating_sub(elements(false)));
            even.padded = even.padded.saturating_sub(elements(true));
        }
        if task.remainder_pieces.iter().flatten().any(|p| p.of_rows) {
            let error = Error::unavailable(format!(
                "{}: {} of {} was lost while it gave out the last rows of the epoch, and batches that were filled with them \
                 cannot be made even; read the epoch again under another job name; the loss: {}",
                self.describe(),
                task.id,
                task.worker,
                self.last_loss.as_deref().unwrap_or("no reason was given")
            ));
            self.fail(Failure::from(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Who lacks most is served first, with all elements or all that are lacking.
        #[test]
        fn elements_go_to_those_who_lack_most(
            lag in prop::collection::vec(0u64..30, 1..7),
            elements in 0u64..120,
        ) {
            let count = u32::try_from(lag.len()).unwrap();
            let mut even = Even::new(Consumers { count, uneven: Uneven::Drop, balance: Balance::None });
            even.lag.clone_from(&lag);
            let lacking: u64 = lag.iter().sum();
            let counts = even.next_to_serve(elements);
            prop_assert_eq!(counts.iter().sum::<u64>(), elements.min(lacking));
            if counts.is_empty() {
                return Ok(());
            }
            let left: Vec<u64> = lag.iter().zip(&counts).map(|(lacks, got)| lacks - got).collect();
            let most = left.iter().copied().max().unwrap();
            prop_assert!(counts.iter().zip(&left).all(|(got, left)| *got == 0 || left + 1 >= most), "{lag:?}: {counts:?}");
        }
    }
}
