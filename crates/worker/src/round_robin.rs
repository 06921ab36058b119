//! Distributes the elements of a task to the consumers of its job round-robin, so that all have equally many.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::{DatasetDef, StageOp};
use caju_proto::v1;
use caju_types::{Error, Result, TaskId};
use caju_wire::{Chunk, Dispatcher, Elements};

use crate::identity::{Identity, failed_call_as_loss};
use crate::lagging::LaggingConsumers;
use crate::rounds::{Rounds, rows_of};

/// How long one request waits at the dispatcher for the other tasks to be at their ends.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a task calls the dispatcher with, which assigns its remainder and its elements for lagging consumers.
pub(crate) struct DispatcherCalls {
    pub(crate) identity: Arc<Identity>,
    pub(crate) task: TaskId,
    /// How long an unavailable dispatcher is retried.
    pub(crate) retry_timeout: Duration,
}

/// Distributes the elements of one task to the consumers in turn.
pub(crate) struct RoundRobin {
    calls: DispatcherCalls,
    distribution: Distribution,
    /// Rows of a batch, and whether a short one is dropped; 0 without a batch.
    batch: (u64, bool),
    /// Numbers the requests for lagging consumers.
    request_no: u64,
    /// Lagging consumers that got the last elements.
    served: BTreeSet<usize>,
}

/// What the consumers' elements have in common.
enum Distribution {
    /// Their number.
    EqualCounts(EqualCounts),
    /// Those of one round, their class or their length.
    Rounds(Rounds),
}

/// What a task keeps at its end: elements that fill no round, and rows that fill no batch.
struct Remainder {
    elements: u64,
    rows: u64,
    lag: Vec<u64>,
    kinds: Vec<v1::RemainderElement>,
    row_widths: Vec<u32>,
    has_spare: bool,
}

impl RoundRobin {
    /// The distribution of a task's elements, by its definition.
    ///
    /// # Errors
    /// Those of reading the definition, and `Unimplemented` for a balance that this worker does not know.
    pub(crate) fn new(
        calls: DispatcherCalls,
        def: &v1::TaskDef,
        lagging: Arc<LaggingConsumers>,
    ) -> Result<Self> {
        let consumers = usize::try_from(def.num_consumers).unwrap_or(usize::MAX);
        let definition = DatasetDef::from_json_str(&def.definition_json)?;
        let batch = definition.stages.iter().rev().find_map(|s| match &s.op {
            StageOp::Batch { size, drop_remainder } | StageOp::PaddedBatch { size, drop_remainder, .. } => {
                Some((*size, *drop_remainder))
            }
            _ => None,
        });
        let distribution = match def.balance.as_str() {
            "" => Distribution::EqualCounts(EqualCounts {
                consumers,
                lagging,
                carry: VecDeque::new(),
                remainder_rows: Vec::new(),
                spare: Spare::new(def.pads),
            }),
            "bucket" => Distribution::Rounds(Rounds::new(&definition, consumers, false)),
            "tokens" => Distribution::Rounds(Rounds::new(&definition, consumers, true)),
            other => {
                return Err(Error::unimplemented(format!(
                    "the dispatcher asks for balance `{other}`, which this worker does not know; run a newer worker"
                )));
            }
        };
        Ok(Self {
            calls,
            distribution,
            batch: batch.unwrap_or_default(),
            request_no: 0,
            served: BTreeSet::new(),
        })
    }

    /// What a chunk of the task's output gives to whom.
    ///
    /// # Errors
    /// Those of making the elements of a round one shape, and of [`RoundRobin::assign_remainder`].
    pub(crate) async fn assign(&mut self, chunk: Chunk) -> Result<Vec<(usize, Chunk)>> {
        match &mut self.distribution {
            Distribution::Rounds(rounds) => return rounds.assign(chunk),
            Distribution::EqualCounts(counts) if !chunk.remainder && counts.lagging.take_query_due() => {
                let elements = (counts.carry.len() + chunk.num_elements()) as u64;
                self.query_lagging(elements).await?;
            }
            Distribution::EqualCounts(_) => self.served.clear(),
        }
        match &mut self.distribution {
            Distribution::Rounds(rounds) => rounds.assign(chunk),
            Distribution::EqualCounts(counts) => Ok(counts.assign(chunk)),
        }
    }

    /// Consumers that got the last elements, if they got them because they were lagging.
    pub(crate) fn served(&self) -> impl Iterator<Item = usize> + '_ {
        self.served.iter().copied()
    }

    /// Asks the dispatcher who gets the next `elements` elements.
    async fn query_lagging(&mut self, elements: u64) -> Result<()> {
        let DispatcherCalls { identity, task, retry_timeout } = &self.calls;
        let registration = identity.registration();
        let request = v1::ServeLaggingRequest {
            task_id: task.0,
            worker_id: registration.id.0,
            secret: registration.secret,
            request_no: self.request_no + 1,
            elements,
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.serve_behind(request).await }
        };
        let answer = identity.link.retry(*retry_timeout, Duration::ZERO, call).await;
        let answer = answer.map_err(|e| failed_call_as_loss(*task, e))?;
        self.request_no += 1;
        if let Distribution::EqualCounts(counts) = &self.distribution {
            counts.lagging.add_owed(&answer.counts);
            if answer.has_lagging {
                counts.lagging.set_query_due();
            }
        }
        self.served = (0..).zip(&answer.counts).filter(|(_, n)| **n > 0).map(|(c, _)| c).collect();
        Ok(())
    }

    /// Full rounds of what waited for more, when no further chunk comes.
    ///
    /// # Errors
    /// As [`RoundRobin::assign`].
    pub(crate) fn finish(&mut self) -> Result<Vec<(usize, Chunk)>> {
        match &mut self.distribution {
            Distribution::EqualCounts(_) => Ok(Vec::new()),
            Distribution::Rounds(rounds) => rounds.finish(),
        }
    }

    /// What is left at the end of the task, once all tasks have reported their ends to the dispatcher.
    ///
    /// # Errors
    /// `Unavailable` if the dispatcher does not answer, `Cancelled` if the task is lost, and the epoch's failure.
    pub(crate) async fn assign_remainder(&mut self) -> Result<Vec<(usize, Chunk)>> {
        let (batch_rows, drop_remainder) = self.batch;
        let DispatcherCalls { identity, task, retry_timeout } = &self.calls;
        loop {
            let registration = identity.registration();
            let remainder = self.distribution.remainder();
            let request = v1::AssignRemainderRequest {
                task_id: task.0,
                worker_id: registration.id.0,
                secret: registration.secret,
                wait_ms: u64::try_from(POLL_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
                elements: remainder.elements,
                rows: remainder.rows,
                batch_rows,
                drop_remainder,
                lag: remainder.lag,
                kinds: remainder.kinds,
                row_widths: remainder.row_widths,
                has_spare: remainder.has_spare,
            };
            let call = |mut d: Dispatcher| {
                let request = request.clone();
                async move { d.deal_tail(request).await }
            };
            let answer = identity.link.retry(*retry_timeout, POLL_TIMEOUT, call).await;
            let answer = answer.map_err(|e| failed_call_as_loss(*task, e))?;
            if answer.assigned {
                let mut all = Vec::new();
                for piece in &answer.pieces {
                    all.extend(self.distribution.piece(piece)?);
                }
                return Ok(all);
            }
        }
    }
}

impl Distribution {
    fn remainder(&self) -> Remainder {
        match self {
            Distribution::EqualCounts(counts) => Remainder {
                elements: counts.carry.len() as u64,
                rows: counts.remainder_rows.iter().map(|c| c.rows() as u64).sum(),
                lag: counts.lagging.owed(),
                kinds: Vec::new(),
                row_widths: Vec::new(),
                has_spare: counts.spare.element.is_some(),
            },
            Distribution::Rounds(rounds) => {
                let (kinds, rows) = rounds.remainder();
                let (elements, row_widths) = (kinds.len() as u64, rounds.row_widths());
                Remainder { elements, rows, lag: Vec::new(), kinds, row_widths, has_spare: false }
            }
        }
    }

    fn piece(&self, piece: &v1::RemainderPiece) -> Result<Vec<(usize, Chunk)>> {
        match self {
            Distribution::EqualCounts(counts) => counts.piece(piece),
            Distribution::Rounds(rounds) => rounds.piece(piece),
        }
    }
}

/// Elements in turn: each consumer has equally many, whichever they are.
struct EqualCounts {
    consumers: usize,
    lagging: Arc<LaggingConsumers>,
    /// Elements that fill no round yet, one per chunk.
    carry: VecDeque<Chunk>,
    /// Rows that fill no batch.
    remainder_rows: Vec<Chunk>,
    spare: Spare,
}

/// An element that was assigned, and may be assigned again at the end of the epoch.
struct Spare {
    is_wanted: bool,
    element: Option<Chunk>,
}

impl Spare {
    fn new(is_wanted: bool) -> Self {
        Self { is_wanted, element: None }
    }

    /// Keeps the last one of what is assigned.
    fn keep(&mut self, assigned: &[(usize, Chunk)]) {
        if let Some((_, chunk)) = assigned.last().filter(|_| self.is_wanted) {
            self.element = Cutter::new(chunk.clone()).next(1);
        }
    }
}

impl EqualCounts {
    fn assign(&mut self, chunk: Chunk) -> Vec<(usize, Chunk)> {
        if chunk.remainder {
            self.remainder_rows.push(chunk);
            return Vec::new();
        }
        let mut cut = Cutter::new(chunk);
        let mut out = self.lagging.serve(|| self.carry.pop_front().or_else(|| cut.next(1)));
        self.assign_rounds(cut, &mut out);
        self.spare.keep(&out);
        out
    }

    fn assign_rounds(&mut self, mut cut: Cutter, out: &mut Vec<(usize, Chunk)>) {
        while !self.carry.is_empty() && self.carry.len() < self.consumers {
            let Some(element) = cut.next(1) else { return };
            self.carry.push_back(element);
        }
        out.extend(self.carry.drain(..).enumerate());
        let each = cut.left() / self.consumers;
        out.extend((0..self.consumers).filter_map(|consumer| Some((consumer, cut.next(each)?))));
        self.carry.extend(std::iter::from_fn(|| cut.next(1)));
    }

    /// A part of the remainder for one consumer. Padding has no provenance: its rows belong to another consumer.
    fn piece(&self, piece: &v1::RemainderPiece) -> Result<Vec<(usize, Chunk)>> {
        let consumer = usize::try_from(piece.consumer).unwrap_or(usize::MAX);
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let (start, end) = (index(piece.start), index(piece.end));
        let mut chunks: Vec<Chunk> = if piece.of_rows {
            rows_of(&self.remainder_rows, start, end)
        } else {
            let spare =
                |k: usize| self.spare.element.as_ref().filter(|_| piece.copy && k == self.carry.len());
            (start..end).filter_map(|k| self.carry.get(k).or_else(|| spare(k)).cloned()).collect()
        };
        if consumer >= self.consumers || chunks.is_empty() {
            return Err(Error::internal(
                "the dispatcher gave out elements that do not exist, or to no consumer",
            ));
        }
        if piece.copy {
            chunks.iter_mut().for_each(|c| c.runs.clear());
        }
        Ok(chunks.into_iter().map(|c| (consumer, c)).collect())
    }
}

/// Cuts a chunk at the borders of its elements, from the front.
struct Cutter {
    chunk: Chunk,
    elements: usize,
    at: usize,
    row: usize,
}

impl Cutter {
    fn new(chunk: Chunk) -> Self {
        Self { elements: chunk.num_elements(), chunk, at: 0, row: 0 }
    }

    fn left(&self) -> usize {
        self.elements - self.at
    }

    /// The next `n` elements; none if fewer are left, or none are wanted.
    fn next(&mut self, n: usize) -> Option<Chunk> {
        if n == 0 || self.left() < n {
            return None;
        }
        let (elements, rows) = match &self.chunk.elements {
            Elements::Rows => (Elements::Rows, n),
            Elements::Lengths(lengths) => {
                let own = lengths.get(self.at..self.at + n)?.to_vec();
                let rows = own.iter().map(|l| *l as usize).sum();
                (Elements::Lengths(own), rows)
            }
        };
        let part = self.chunk.slice_rows(self.row, rows);
        (self.at, self.row) = (self.at + n, self.row + rows);
        Some(Chunk { elements, ..part })
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small numbers")]
mod tests {
    use arrow_array::{Int64Array, RecordBatch};
    use caju_wire::Run;

    use super::*;

    fn chunk(start: u64, lengths: Option<&[u32]>, rows: u64) -> Chunk {
        let ids = Int64Array::from_iter_values(start as i64..(start + rows) as i64);
        Chunk {
            elements: lengths.map_or(Elements::Rows, |l| Elements::Lengths(l.to_vec())),
            ..Chunk::rows_of(
                RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap(),
                vec![Run { split: 0, start, len: rows }],
            )
        }
    }

    fn equal_counts(consumers: usize, lagging: &Arc<LaggingConsumers>, pads: bool) -> EqualCounts {
        let (lagging, spare) = (Arc::clone(lagging), Spare::new(pads));
        EqualCounts { consumers, lagging, carry: VecDeque::new(), remainder_rows: Vec::new(), spare }
    }

    /// Elements that each consumer got.
    fn counts(assigned: &[(usize, Chunk)], consumers: usize) -> Vec<usize> {
        (0..consumers)
            .map(|c| assigned.iter().filter(|(to, _)| *to == c).map(|(_, c)| c.num_elements()).sum())
            .collect()
    }

    #[test]
    fn all_get_as_many_and_lagging_consumers_more() {
        let lagging: Arc<LaggingConsumers> = Arc::default();
        lagging.add_owed(&[0, 2, 0]);
        let mut rounds = equal_counts(3, &lagging, false);
        let mut assigned = rounds.assign(chunk(0, None, 10));
        assert_eq!(counts(&assigned, 3), [2, 4, 2], "two for consumer 1, then rounds of the other eight");
        assert_eq!(rounds.carry.len(), 2);
        assigned.extend(rounds.assign(chunk(10, Some(&[2, 3, 1, 4]), 10)));
        assert_eq!(counts(&assigned, 3), [4, 6, 4]);
        assert!(rounds.carry.is_empty());
        lagging.add_owed(&[1]);
        assigned.extend(rounds.assign(chunk(20, None, 1)));
        assert_eq!(counts(&assigned, 3), [5, 6, 4]);
        let mut rows: Vec<u64> =
            assigned.iter().flat_map(|(_, c)| c.runs.iter().flat_map(|r| r.start..r.start + r.len)).collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..21).collect::<Vec<_>>(), "every row once");
    }

    #[test]
    fn pieces_of_the_remainder() {
        let mut rounds = equal_counts(2, &Arc::default(), true);
        assert!(rounds.assign(chunk(0, None, 1)).is_empty());
        for start in [1, 4] {
            assert!(rounds.assign(Chunk { remainder: true, ..chunk(start, Some(&[3]), 3) }).is_empty());
        }
        let piece = |of_rows, start, end, copy| v1::RemainderPiece {
            consumer: 1,
            of_rows,
            start,
            end,
            copy,
            ..Default::default()
        };
        let got = rounds.piece(&piece(true, 2, 5, false)).unwrap();
        assert_eq!(got.iter().map(|(_, c)| c.runs[0].start).collect::<Vec<_>>(), [3, 4]);
        assert!(got.iter().all(|(to, c)| *to == 1 && c.remainder));
        let copy = rounds.piece(&piece(false, 0, 1, true)).unwrap();
        assert!(copy[0].1.runs.is_empty() && copy[0].1.rows() == 1, "padding belongs to no split");
        assert!(rounds.piece(&piece(false, 1, 2, false)).is_err(), "there is one element");
        assert!(rounds.piece(&piece(false, 1, 2, true)).is_err(), "and none was assigned");
        assert_eq!(counts(&rounds.assign(chunk(9, None, 3)), 2), [2, 2]);
        let spare = rounds.piece(&piece(false, 0, 1, true)).unwrap();
        assert!(spare[0].1.runs.is_empty() && spare[0].1.rows() == 1, "an element that was assigned before");
    }
}
