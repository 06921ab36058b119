//! The same number of elements for every consumer of a job.
//!
//! A task deals its elements to the consumers in rounds: one to each. So the consumers have equally many of it, whatever
//! their speeds, until less than a round is left at its end: its *tail*, some elements and the rows that fill no batch. A
//! worker keeps the tail until every task of the epoch is there, and [`deal`] gives out all tails together.
//!
//! A task that is lost may have given some consumers more than others, and an epoch that continues from states may begin
//! where consumers had got different numbers of elements. Those with fewer are *behind* by what they lack. From then on every
//! task asks who gets the elements that it has computed ([`Even::next_to_serve`]), and gives them to consumers that are behind,
//! until all have equally many. Then rounds go on. Only elements that exist are promised, so nothing has to be taken back from
//! a task that ends.
//!
//! The elements suffice. A lost task has dealt whole rounds and what the dispatcher said, so its lost elements are at least those
//! that consumers lack of it. All consumers had got no more than an equal number of the epoch before it was opened again. Both
//! hold as long as rows that are computed again make as many elements as before. Where they make fewer, the epoch ends with an
//! error, or with more copies, as `uneven` says.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{Balance, ClientId, Error, TaskId, Uneven};
use serde::{Deserialize, Serialize};

use super::{Failure, Iteration, Task, TaskState, rounds};

/// The most consumers that a message names.
const MAX_NAMED: usize = 8;

/// The most elements that are delivered a second time at the end of an epoch. They are dealt under the lock of the state.
const MAX_COPIES: u64 = 1 << 20;

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
    /// Whether an epoch can go on behind these numbers of elements of its consumers. In rounds the elements that some
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

/// What is known of an epoch that is dealt in rounds.
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
    /// By how many elements each consumer is behind after tasks were lost.
    #[serde(default)]
    pub behind: Vec<u64>,
    /// Elements that were dropped at the end.
    #[serde(default)]
    pub surplus: u64,
    /// Elements that were delivered a second time at the end.
    #[serde(default)]
    pub padded: u64,
    /// Of consumers that read in rounds: the last rounds that were given out.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub tail_rounds: u64,
}

impl Even {
    pub(super) fn new(consumers: Consumers) -> Self {
        let behind = vec![0; consumers.count as usize];
        Self {
            consumers,
            joined: BTreeSet::new(),
            left: BTreeMap::new(),
            behind,
            surplus: 0,
            padded: 0,
            tail_rounds: 0,
        }
    }

    /// The consumers had got these numbers of elements when the epoch went on from their states. Another number of consumers
    /// begins where all had got equally many.
    pub(super) fn begin_at(&mut self, steps: &BTreeMap<u32, u64>) {
        if steps.len() != self.behind.len() {
            return;
        }
        let most = steps.values().copied().max().unwrap_or(0);
        for (behind, consumer) in self.behind.iter_mut().zip(0..) {
            *behind = most - steps.get(&consumer).copied().unwrap_or(most);
        }
    }

    /// Whether the consumers get their elements in one order of rounds.
    pub fn is_in_rounds(&self) -> bool {
        self.consumers.balance != Balance::None
    }

    /// Whether some consumers lack elements that others got.
    pub fn is_behind(&self) -> bool {
        self.behind.iter().any(|lacks| *lacks > 0)
    }

    /// Who gets the next elements: those who lack most, until all of them lack equally many. These are all `elements`, or those
    /// that are lacking. Empty if nobody is behind.
    pub fn next_to_serve(&self, elements: u64) -> Vec<u64> {
        if !self.is_behind() || elements == 0 {
            return Vec::new();
        }
        let beyond = |level: u64| {
            self.behind.iter().fold(0, |sum: u64, b| sum.saturating_add(b.saturating_sub(level)))
        };
        // The least level to which the elements suffice.
        let (mut least, mut most) = (0, self.behind.iter().copied().max().unwrap_or(0));
        while least < most {
            let level = least + (most - least) / 2;
            if beyond(level) <= elements {
                most = level;
            } else {
                least = level + 1;
            }
        }
        let mut left = elements - beyond(most);
        let serve = |behind: &u64| {
            // Those that lack as many as the level says get one more each, as far as there are elements.
            let more = u64::from(left > 0 && most > 0 && *behind >= most);
            left -= more;
            behind.saturating_sub(most) + more
        };
        self.behind.iter().map(serve).collect()
    }

    /// Whether every consumer has come.
    pub fn is_complete(&self) -> bool {
        self.joined.len() == self.consumers.count as usize
    }
}

/// What a task keeps at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// Elements, fewer than there are consumers.
    pub elements: u64,
    /// Rows that fill no batch.
    pub rows: u64,
    /// Rows of a batch; 0 if the pipeline has none, or merges none.
    pub batch_rows: u64,
    /// Whether the pipeline drops a short batch.
    pub drop_remainder: bool,
    /// Elements by which consumers are still behind.
    pub behind: Vec<u64>,
    /// Of consumers that read in rounds: the elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<TailElement>,
    /// Whether an element that was dealt before can be repeated: its place is behind the last one of `elements`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_spare: bool,
}

/// An element that fills no round of consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailElement {
    /// Its class of `bucket_by_length`.
    pub bucket: Option<u32>,
    /// Items that every list of a column has, plus 1; 0 where they differ, or are no lists.
    pub widths: Vec<u32>,
}

/// A part of a tail for one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DealtPiece {
    /// Who gets it.
    pub consumer: u32,
    /// Whether it is rows that fill no batch; else elements.
    pub of_rows: bool,
    /// The first one.
    pub start: u64,
    /// The end.
    pub end: u64,
    /// Another consumer gets it too: this is padding.
    pub copy: bool,
    /// Of consumers that read in rounds: its place among the last rounds of the epoch, from 1.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub round: u64,
    /// The number of items to which the lists of each column are padded, plus 1; 0: they are not padded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pad_to: Vec<u32>,
}

/// The tails of an epoch, given out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deal {
    /// The parts of each task's tail.
    pub tasks: Vec<(TaskId, Vec<DealtPiece>)>,
    /// Elements that no consumer gets.
    pub surplus: u64,
    /// Elements that somebody gets as padding.
    pub padded: u64,
    /// Of consumers that read in rounds: the rounds that these parts make.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub rounds: u64,
}

/// An element of the tails: where its rows are, as (task, whether of rows, start, end).
type Unit = Vec<(usize, bool, u64, u64)>;

/// The elements of the tails.
struct Units {
    all: Vec<Unit>,
    /// The number of whole elements. They are the first ones; behind them is at most one short batch.
    whole: usize,
}

/// Elements that can be repeated.
struct Repeatable {
    units: Vec<Unit>,
    /// How often for one consumer.
    times: u64,
}

impl Repeatable {
    /// A reader merges rows that fill no batch, so two copies of a short batch would be one element for it. It is repeated only
    /// where there is no other element, and once for each consumer.
    fn of(tails: &[(TaskId, &Tail)], units: &Units) -> Self {
        if units.whole > 0 {
            return Self { units: units.all[..units.whole].to_vec(), times: u64::MAX };
        }
        let spare = tails.iter().enumerate().find(|(_, (_, tail))| tail.has_spare);
        match spare {
            Some((t, (_, tail))) => {
                Self { units: vec![vec![(t, false, tail.elements, tail.elements + 1)]], times: u64::MAX }
            }
            None => Self { units: units.all.clone(), times: 1 },
        }
    }
}

/// Gives out the tails so that every consumer ends with the same number of elements; `behind` says how many each lacks.
///
/// # Errors
/// `FailedPrecondition` if the tails have fewer elements than consumers lack, and none may be repeated, or none can.
pub(super) fn deal(tails: &[(TaskId, &Tail)], behind: &[u64], uneven: Uneven) -> Result<Deal, Error> {
    let units = units(tails);
    // Elements that each consumer has beyond the one that is furthest behind.
    let most = behind.iter().copied().max().unwrap_or(0);
    let mut have: Vec<u64> = behind.iter().map(|b| most - b).collect();
    let delivered = have.iter().copied().max().unwrap_or(0);
    let mut given: Vec<(&Unit, usize, bool)> = Vec::new();
    for unit in &units.all {
        let Some(least) = (0..have.len()).min_by_key(|c| (have[*c], *c)) else { break };
        have[least] += 1;
        given.push((unit, least, false));
    }
    let (least, largest) = (have.iter().copied().min().unwrap_or(0), have.iter().copied().max().unwrap_or(0));
    let target = match uneven {
        Uneven::Pad => largest,
        // What was delivered before the tails cannot be taken back.
        Uneven::Drop => least.max(delivered),
    };
    let before = given.len();
    for (consumer, have) in have.iter_mut().enumerate() {
        while *have > target {
            let Some(last) = given.iter().rposition(|(_, c, _)| *c == consumer) else { break };
            given.remove(last);
            *have -= 1;
        }
    }
    let surplus = (before - given.len()) as u64;
    let lacks: Vec<u64> = have.iter().map(|have| target.saturating_sub(*have)).collect();
    let lacking = lacks.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let repeatable = Repeatable::of(tails, &units);
    let cannot =
        repeatable.units.is_empty() || lacks.iter().any(|n| *n > repeatable.times) || lacking > MAX_COPIES;
    if lacking > 0 && (uneven == Uneven::Drop || cannot) {
        return Err(too_few_elements(&lacks));
    }
    let mut copies = repeatable.units.iter().cycle();
    for (consumer, lacks) in lacks.iter().enumerate() {
        for _ in 0..*lacks {
            given.extend(copies.next().map(|unit| (unit, consumer, true)));
        }
    }
    let mut tasks: Vec<(TaskId, Vec<DealtPiece>)> = tails.iter().map(|(id, _)| (*id, Vec::new())).collect();
    for (unit, consumer, copy) in given {
        let consumer = u32::try_from(consumer).unwrap_or(u32::MAX);
        for &(task, of_rows, start, end) in unit {
            let piece = DealtPiece { consumer, of_rows, start, end, copy, round: 0, pad_to: Vec::new() };
            tasks[task].1.push(piece);
        }
    }
    Ok(Deal { tasks, surplus, padded: lacking, rounds: 0 })
}

/// The error of consumers that lack these numbers of elements at the end of the epoch.
fn too_few_elements(lacks: &[u64]) -> Error {
    let say = |(consumer, lacks): (usize, &u64)| format!("consumer {consumer} lacks {lacks}");
    let behind = lacks.iter().enumerate().filter(|(_, n)| **n > 0);
    let said: Vec<String> = behind.map(say).take(MAX_NAMED).collect();
    Error::failed_precondition(format!(
        "of the elements that other consumers got, {}, and no further ones are left: rows that were computed again, after a \
         worker or a consumer was lost, made fewer elements than before, or a worker is older than its dispatcher; start all \
         consumers from their states of one step, or read the epoch again under another job name",
        said.join(", ")
    ))
}

/// The elements of the tails: those that tasks keep, and those that rows of several tasks fill.
fn units(tails: &[(TaskId, &Tail)]) -> Units {
    let elements = tails
        .iter()
        .enumerate()
        .flat_map(|(t, (_, tail))| (0..tail.elements).map(move |k| vec![(t, false, k, k + 1)]));
    let mut units: Vec<Unit> = elements.collect();
    let batch = tails.iter().map(|(_, t)| t.batch_rows).max().unwrap_or(0);
    let drops = tails.iter().any(|(_, t)| t.drop_remainder);
    if batch == 0 {
        return Units { whole: units.len(), all: units };
    }
    let (mut unit, mut filled): (Unit, u64) = (Vec::new(), 0);
    for (t, (_, tail)) in tails.iter().enumerate() {
        let mut at = 0;
        while at < tail.rows {
            let n = (tail.rows - at).min(batch - filled);
            unit.push((t, true, at, at + n));
            (at, filled) = (at + n, filled + n);
            if filled == batch {
                units.push(std::mem::take(&mut unit));
                filled = 0;
            }
        }
    }
    let whole = units.len();
    if !unit.is_empty() && !drops {
        units.push(unit);
    }
    Units { all: units, whole }
}

/// Gives out the tails so that the consumers' last elements make rounds, too.
fn deal_rounds(tails: &[(TaskId, &Tail)], even: &Even) -> Result<Deal, Error> {
    let first = even.tail_rounds + 1;
    if tails.iter().all(|(_, tail)| tail.rows == 0) {
        return Ok(rounds::by_class(tails, &even.consumers, first));
    }
    let behind = vec![0; even.behind.len()];
    Ok(rounds::numbered(deal(tails, &behind, even.consumers.uneven)?, first))
}

impl Iteration {
    /// The deal of all tails, once every consumer has come, every task that runs is at its tail and no split is left. Until
    /// then no task ends: who comes late finds them all.
    pub fn deal(&self) -> Option<Result<Deal, Error>> {
        let even = self.even.as_ref().filter(|even| even.is_complete() && self.failure.is_none())?;
        if self.feeds.values().any(super::Feed::has_work) || self.tasks.values().any(Task::is_lost) {
            return None;
        }
        let waiting = || self.tasks.values().filter(|t| t.state == TaskState::Active && t.dealt.is_none());
        if waiting().any(|t| t.tail.is_none()) {
            return None;
        }
        let tails: Vec<(TaskId, &Tail)> = waiting().filter_map(|t| Some((t.id, t.tail.as_ref()?))).collect();
        if tails.is_empty() {
            return None;
        }
        if even.is_in_rounds() {
            return Some(deal_rounds(&tails, even).map_err(|e| e.context(self.describe())));
        }
        let mut behind = even.behind.clone();
        for (_, tail) in &tails {
            behind.iter_mut().zip(&tail.behind).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
        Some(deal(&tails, &behind, even.consumers.uneven).map_err(|e| e.context(self.describe())))
    }

    pub(super) fn reach_tail(&mut self, id: TaskId, tail: &Tail) {
        if let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state == TaskState::Active) {
            task.tail = Some(tail.clone());
            self.version += 1;
        }
    }

    pub(super) fn dealt(&mut self, deal: &Deal) {
        for (id, pieces) in &deal.tasks {
            if let Some(task) = self.tasks.get_mut(id) {
                task.dealt = Some(pieces.clone());
            }
        }
        if let Some(even) = &mut self.even {
            even.behind.iter_mut().for_each(|b| *b = 0);
            even.surplus += deal.surplus;
            even.padded += deal.padded;
            even.tail_rounds += deal.rounds;
        }
        self.version += 1;
    }

    /// Elements that a task has computed go to consumers that are behind.
    pub(super) fn behind_served(&mut self, id: TaskId, request_no: u64, counts: &[u64]) {
        let (Some(even), Some(task)) = (&mut self.even, self.tasks.get_mut(&id)) else { return };
        task.last_serve = request_no;
        task.last_served = counts.to_vec();
        task.first.resize(task.first.len().max(counts.len()), 0);
        task.first.iter_mut().zip(counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        even.behind.iter_mut().zip(counts).for_each(|(lacks, got)| *lacks = lacks.saturating_sub(*got));
    }

    /// A task whose worker does not ask serves those first who are behind.
    pub(super) fn serve_behind(&mut self, id: TaskId) {
        let Some(even) = self.even.as_mut().filter(|e| e.is_behind()) else { return };
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let behind: Vec<u64> = even.behind.iter_mut().map(std::mem::take).collect();
        task.first.resize(behind.len(), 0);
        task.first.iter_mut().zip(&behind).for_each(|(sum, more)| *sum += more);
        task.last_behind = behind;
    }

    /// Which consumers a lost task leaves behind.
    pub(super) fn fall_behind(&mut self, task: &Task) {
        if self.even.as_ref().is_some_and(Even::is_in_rounds) {
            return self.take_back_tails(task);
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
        let dealt = |c: u32| {
            let own = task.dealt.iter().flatten().filter(|p| p.consumer == c && !p.of_rows);
            own.map(|p| p.end - p.start).sum::<u64>()
        };
        // Elements of rounds that each had: what it received less what it was to get beyond rounds.
        let rounds: Vec<Option<i128>> = (0..even.consumers.count)
            .map(|c| {
                let first = task.first.get(c as usize).copied().unwrap_or(0);
                received(c).map(|received| i128::from(received) - i128::from(first) - i128::from(dealt(c)))
            })
            .collect();
        let most = rounds.iter().flatten().copied().max().unwrap_or(0).max(0);
        for (behind, had) in even.behind.iter_mut().zip(rounds) {
            *behind += u64::try_from(most - had.unwrap_or(most)).unwrap_or(0);
        }
        // All that it kept and nobody got is dealt again.
        if let (Some(tail), Some(dealt)) = (&task.tail, &task.dealt) {
            let elements = |copy: bool| {
                let own = dealt.iter().filter(|p| !p.of_rows && p.copy == copy);
                own.map(|p| p.end - p.start).sum::<u64>()
            };
            even.surplus = even.surplus.saturating_sub(tail.elements.saturating_sub(elements(false)));
            even.padded = even.padded.saturating_sub(elements(true));
        }
        if task.dealt.iter().flatten().any(|p| p.of_rows) {
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

    fn tail(elements: u64, rows: u64, batch_rows: u64, drop_remainder: bool) -> Tail {
        Tail {
            elements,
            rows,
            batch_rows,
            drop_remainder,
            behind: Vec::new(),
            kinds: Vec::new(),
            has_spare: false,
        }
    }

    proptest! {
        /// Who lacks most is served first, with all elements or all that are lacking.
        #[test]
        fn elements_go_to_those_who_lack_most(
            behind in prop::collection::vec(0u64..30, 1..7),
            elements in 0u64..120,
        ) {
            let count = u32::try_from(behind.len()).unwrap();
            let mut even = Even::new(Consumers { count, uneven: Uneven::Drop, balance: Balance::None });
            even.behind.clone_from(&behind);
            let lacking: u64 = behind.iter().sum();
            let counts = even.next_to_serve(elements);
            prop_assert_eq!(counts.iter().sum::<u64>(), elements.min(lacking));
            if counts.is_empty() {
                return Ok(());
            }
            let left: Vec<u64> = behind.iter().zip(&counts).map(|(lacks, got)| lacks - got).collect();
            let most = left.iter().copied().max().unwrap();
            prop_assert!(counts.iter().zip(&left).all(|(got, left)| *got == 0 || left + 1 >= most), "{behind:?}: {counts:?}");
        }

        /// Whatever is left where: all consumers end with equally many elements, no row is given out twice but as a copy,
        /// and at most a round less one is dropped, or repeated. Where less is left than consumers lack, `drop` ends with an
        /// error, and `pad` repeats more.
        #[test]
        fn every_consumer_ends_with_as_many(
            left in prop::collection::vec((0u64..4, 0u64..20), 0..6),
            consumers in 1usize..6,
            lost in prop::collection::vec(0u64..5, 6),
            drop_remainder: bool,
            pad: bool,
            has_spare: bool,
        ) {
            let batch = 5;
            let mut tails: Vec<Tail> = left.iter().map(|(e, r)| tail(*e, *r, batch, drop_remainder)).collect();
            let has_spare = has_spare && !tails.is_empty();
            tails.iter_mut().for_each(|tail| tail.has_spare = has_spare);
            let tails: Vec<_> = (1..).map(TaskId).zip(&tails).collect();
            let rows: u64 = left.iter().map(|l| l.1).sum();
            let total = left.iter().map(|l| l.0).sum::<u64>() + if drop_remainder { rows / batch } else { rows.div_ceil(batch) };
            let mut behind = lost[..consumers].to_vec();
            let least = *behind.iter().min().unwrap();
            behind.iter_mut().for_each(|b| *b -= least);
            let lack = behind.iter().sum::<u64>();
            let uneven = if pad { Uneven::Pad } else { Uneven::Drop };
            let deal = match deal(&tails, &behind, uneven) {
                Ok(deal) => deal,
                Err(e) if !pad => {
                    prop_assert!(lack > total && e.message().contains(" lacks "), "{behind:?}");
                    return Ok(());
                }
                // Nothing can be repeated, or a short batch that somebody would need twice.
                Err(_) => {
                    prop_assert!(!has_spare);
                    let whole = left.iter().map(|l| l.0).sum::<u64>() + rows / batch;
                    prop_assert!(whole == 0 && (total == 0 && lack > 0 || total == 1 && lack > total + 1), "{behind:?}");
                    return Ok(());
                }
            };
            let (mut rows_of, mut copied) = (vec![0u64; consumers], vec![0u64; consumers]);
            let mut elements = vec![0u64; consumers];
            let mut seen = std::collections::BTreeSet::new();
            for (task, pieces) in &deal.tasks {
                for p in pieces {
                    let slot = p.consumer as usize;
                    match (p.of_rows, p.copy) {
                        (true, false) => rows_of[slot] += p.end - p.start,
                        (true, true) => copied[slot] += p.end - p.start,
                        _ => elements[slot] += p.end - p.start,
                    }
                    prop_assert!(p.copy || (p.start..p.end).all(|i| seen.insert((*task, p.of_rows, i))), "twice");
                }
            }
            let most = behind.iter().max().unwrap();
            let level: Vec<u64> = (0..consumers)
                .map(|c| most - behind[c] + elements[c] + rows_of[c].div_ceil(batch) + copied[c].div_ceil(batch))
                .collect();
            prop_assert!(level.iter().all(|l| *l == level[0]), "{level:?}");
            let n = consumers as u64;
            let spread = total + behind.iter().map(|b| most - b).sum::<u64>();
            if lack > total {
                prop_assert!(pad, "elements are doubled");
                prop_assert_eq!((deal.surplus, deal.padded), (0, lack - total));
            } else {
                prop_assert_eq!(deal.surplus, if pad { 0 } else { spread % n });
                prop_assert_eq!(deal.padded, if pad { (n - spread % n) % n } else { 0 });
            }
        }
    }
}
