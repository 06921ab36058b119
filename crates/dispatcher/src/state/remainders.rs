//! The remainders of an epoch's tasks: elements that fill no round of consumers, and rows that fill no batch. They are assigned at
//! the end of the epoch, so that all consumers have equally many elements.

use caju_types::{Error, TaskId, Uneven};
use serde::{Deserialize, Serialize};

/// The most consumers that a message names.
pub(super) const MAX_NAMED: usize = 8;

/// The most elements that are delivered a second time at the end of an epoch. They are assigned under the lock of the state.
const MAX_COPIES: u64 = 1 << 20;

/// What a task keeps at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remainder {
    /// Elements, fewer than there are consumers.
    pub elements: u64,
    /// Rows that fill no batch.
    pub rows: u64,
    /// Rows of a batch; 0 if the pipeline has none, or merges none.
    pub batch_rows: u64,
    /// Whether the pipeline drops a short batch.
    pub drop_remainder: bool,
    /// Elements that each consumer still lacks, of those that the task was to give it before rounds.
    #[serde(rename = "behind")]
    pub lag: Vec<u64>,
    /// Of consumers that read in rounds: the elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<RemainderElement>,
    /// Of consumers that read in rounds: the items of the longest list of each column in the rows, plus 1; 0: no lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub row_widths: Vec<u32>,
    /// Whether an element that was assigned before can be repeated: its place is after the last one of `elements`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_spare: bool,
}

/// An element that fills no round of consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainderElement {
    /// Its class of `bucket_by_length`.
    pub bucket: Option<u32>,
    /// Items that every list of a column has, plus 1; 0 where they differ, or are no lists.
    pub widths: Vec<u32>,
    /// Its rows; 0 if an older worker reported it.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub rows: u64,
}

/// A part of a remainder for one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainderPiece {
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

/// Who gets the remainders of an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainderAssignment {
    /// The parts of each task's remainder.
    pub tasks: Vec<(TaskId, Vec<RemainderPiece>)>,
    /// Elements that no consumer gets.
    pub surplus: u64,
    /// Elements that somebody gets as padding.
    pub padded: u64,
    /// Of consumers that read in rounds: the rounds that these parts make.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub rounds: u64,
}

/// An element of the remainders: where its rows are, as (task, whether of rows, start, end).
type Unit = Vec<(usize, bool, u64, u64)>;

/// The elements of the remainders.
struct Units {
    all: Vec<Unit>,
    /// The number of whole elements. They are the first ones; at most one short batch follows.
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
    fn of(remainders: &[(TaskId, &Remainder)], units: &Units) -> Self {
        if units.whole > 0 {
            return Self { units: units.all[..units.whole].to_vec(), times: u64::MAX };
        }
        let spare = remainders.iter().enumerate().find(|(_, (_, remainder))| remainder.has_spare);
        match spare {
            Some((t, (_, remainder))) => Self {
                units: vec![vec![(t, false, remainder.elements, remainder.elements + 1)]],
                times: u64::MAX,
            },
            None => Self { units: units.all.clone(), times: 1 },
        }
    }
}

/// Assigns the remainders so that every consumer ends with the same number of elements; `lag` says how many each lacks.
///
/// # Errors
/// `FailedPrecondition` if the remainders have fewer elements than consumers lack, and none may be repeated, or none can.
pub(super) fn assign(
    remainders: &[(TaskId, &Remainder)],
    lag: &[u64],
    uneven: Uneven,
) -> Result<RemainderAssignment, Error> {
    let units = units(remainders);
    // Elements that each consumer has beyond the one with the largest lag.
    let most = lag.iter().copied().max().unwrap_or(0);
    let mut have: Vec<u64> = lag.iter().map(|b| most - b).collect();
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
        // What was delivered before the remainders cannot be taken back.
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
    let repeatable = Repeatable::of(remainders, &units);
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
    let mut tasks: Vec<(TaskId, Vec<RemainderPiece>)> =
        remainders.iter().map(|(id, _)| (*id, Vec::new())).collect();
    for (unit, consumer, copy) in given {
        let consumer = u32::try_from(consumer).unwrap_or(u32::MAX);
        for &(task, of_rows, start, end) in unit {
            let piece = RemainderPiece { consumer, of_rows, start, end, copy, round: 0, pad_to: Vec::new() };
            tasks[task].1.push(piece);
        }
    }
    Ok(RemainderAssignment { tasks, surplus, padded: lacking, rounds: 0 })
}

/// The error of consumers that lack these numbers of elements at the end of the epoch.
fn too_few_elements(lacks: &[u64]) -> Error {
    let say = |(consumer, lacks): (usize, &u64)| format!("consumer {consumer} lacks {lacks}");
    let lagging = lacks.iter().enumerate().filter(|(_, n)| **n > 0);
    let said: Vec<String> = lagging.map(say).take(MAX_NAMED).collect();
    Error::failed_precondition(format!(
        "of the elements that other consumers got, {}, and no further ones are left: rows that were computed again, after a \
         worker or a consumer was lost, made fewer elements than before, or a worker is older than its dispatcher; start all \
         consumers from their states of one step, or read the epoch again under another job name",
        said.join(", ")
    ))
}

/// The elements of the remainders: those that tasks keep, and those that rows of several tasks fill.
fn units(remainders: &[(TaskId, &Remainder)]) -> Units {
    let elements = remainders
        .iter()
        .enumerate()
        .flat_map(|(t, (_, remainder))| (0..remainder.elements).map(move |k| vec![(t, false, k, k + 1)]));
    let mut units: Vec<Unit> = elements.collect();
    let batch = remainders.iter().map(|(_, t)| t.batch_rows).max().unwrap_or(0);
    let drops = remainders.iter().any(|(_, t)| t.drop_remainder);
    if batch == 0 {
        return Units { whole: units.len(), all: units };
    }
    let (mut unit, mut filled): (Unit, u64) = (Vec::new(), 0);
    for (t, (_, remainder)) in remainders.iter().enumerate() {
        let mut at = 0;
        while at < remainder.rows {
            let n = (remainder.rows - at).min(batch - filled);
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

#[cfg(test)]
mod tests {
    use caju_types::WorkerId;
    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::super::{Even, FeedId, KnownOrder, Task, Update};
    use super::*;

    /// Whether a text is what `T` is stored as.
    fn is_stored_as<T: Serialize + DeserializeOwned>(text: &str) -> bool {
        serde_json::to_string(&serde_json::from_str::<T>(text).unwrap()).unwrap() == text
    }

    /// Journals keep the names that these records had first.
    #[test]
    fn remainders_and_lags_are_stored_under_their_first_names() {
        let (remainder, piece) = (
            r#"{"elements":1,"rows":2,"batch_rows":3,"drop_remainder":false,"behind":[0,4],"kinds":[{"bucket":1,"widths":[7]}]}"#,
            r#"{"consumer":1,"of_rows":true,"start":0,"end":2,"copy":false,"round":5}"#,
        );
        for update in [
            r#"{"leased":{"task":7,"request_no":1,"fresh":[],"requeued":[],"end":true,"asks_for_behind":true}}"#,
            r#"{"behind_served":{"task":7,"request_no":2,"counts":[0,3]}}"#,
            &format!(r#"{{"tail_reached":{{"task":7,"tail":{remainder}}}}}"#),
            &format!(
                r#"{{"tails_dealt":{{"iteration":5,"deal":{{"tasks":[[7,[{piece}]]],"surplus":1,"padded":2,"rounds":3}}}}}}"#
            ),
        ] {
            assert!(is_stored_as::<Update>(update), "{update}");
        }
        let order = r#"{"position":9,"recent":[{"tail":{"through":2}}],"tail_through":2}"#;
        assert!(is_stored_as::<KnownOrder>(order));
        let consumers = r#"{"count":2,"uneven":"drop"}"#;
        let even = format!(
            r#"{{"consumers":{consumers},"joined":[0],"behind":[0,4],"surplus":1,"padded":2,"tail_rounds":3}}"#
        );
        assert!(is_stored_as::<Even>(&even), "{even}");
        let mut task = Task::new(TaskId(7), WorkerId(2), FeedId::SHARED, None, false);
        task.remainder = Some(serde_json::from_str(remainder).unwrap());
        task.remainder_pieces = Some(vec![serde_json::from_str(piece).unwrap()]);
        task.last_lag = vec![0, 4];
        let text = serde_json::to_string(&task).unwrap();
        assert!(
            text.contains(&format!(r#""tail":{remainder},"dealt":[{piece}],"last_behind":[0,4]"#)),
            "{text}"
        );
        assert!(is_stored_as::<Task>(&text));
    }

    fn remainder(elements: u64, rows: u64, batch_rows: u64, drop_remainder: bool) -> Remainder {
        Remainder {
            elements,
            rows,
            batch_rows,
            drop_remainder,
            lag: Vec::new(),
            kinds: Vec::new(),
            row_widths: Vec::new(),
            has_spare: false,
        }
    }

    proptest! {
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
            let mut remainders: Vec<Remainder> = left.iter().map(|(e, r)| remainder(*e, *r, batch, drop_remainder)).collect();
            let has_spare = has_spare && !remainders.is_empty();
            remainders.iter_mut().for_each(|remainder| remainder.has_spare = has_spare);
            let remainders: Vec<_> = (1..).map(TaskId).zip(&remainders).collect();
            let rows: u64 = left.iter().map(|l| l.1).sum();
            let total = left.iter().map(|l| l.0).sum::<u64>() + if drop_remainder { rows / batch } else { rows.div_ceil(batch) };
            let mut lag = lost[..consumers].to_vec();
            let least = *lag.iter().min().unwrap();
            lag.iter_mut().for_each(|b| *b -= least);
            let lack = lag.iter().sum::<u64>();
            let uneven = if pad { Uneven::Pad } else { Uneven::Drop };
            let assignment = match assign(&remainders, &lag, uneven) {
                Ok(assignment) => assignment,
                Err(e) if !pad => {
                    prop_assert!(lack > total && e.message().contains(" lacks "), "{lag:?}");
                    return Ok(());
                }
                // Nothing can be repeated, or a short batch that somebody would need twice.
                Err(_) => {
                    prop_assert!(!has_spare);
                    let whole = left.iter().map(|l| l.0).sum::<u64>() + rows / batch;
                    prop_assert!(whole == 0 && (total == 0 && lack > 0 || total == 1 && lack > total + 1), "{lag:?}");
                    return Ok(());
                }
            };
            let (mut rows_of, mut copied) = (vec![0u64; consumers], vec![0u64; consumers]);
            let mut elements = vec![0u64; consumers];
            let mut seen = std::collections::BTreeSet::new();
            for (task, pieces) in &assignment.tasks {
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
            let most = lag.iter().max().unwrap();
            let level: Vec<u64> = (0..consumers)
                .map(|c| most - lag[c] + elements[c] + rows_of[c].div_ceil(batch) + copied[c].div_ceil(batch))
                .collect();
            prop_assert!(level.iter().all(|l| *l == level[0]), "{level:?}");
            let n = consumers as u64;
            let spread = total + lag.iter().map(|b| most - b).sum::<u64>();
            if lack > total {
                prop_assert!(pad, "elements are doubled");
                prop_assert_eq!((assignment.surplus, assignment.padded), (0, lack - total));
            } else {
                prop_assert_eq!(assignment.surplus, if pad { 0 } else { spread % n });
                prop_assert_eq!(assignment.padded, if pad { (n - spread % n) % n } else { 0 });
            }
        }
    }
}
