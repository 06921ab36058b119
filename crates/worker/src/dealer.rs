//! Deals the elements of a task to the consumers of its job, one each in turn, so that all have equally many.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use caju_pipeline::{DatasetDef, StageOp};
use caju_proto::v1;
use caju_types::{Error, Result, TaskId};
use caju_wire::{Chunk, Dispatcher, Elements};

use crate::behind::Behind;
use crate::identity::{Identity, refused_as_loss};
use crate::rounds::{Rounds, rows_of};

/// How long one request waits at the dispatcher for the other tasks to be at their ends.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the tail of a task is given out.
pub(crate) struct Dispatch {
    pub(crate) identity: Arc<Identity>,
    pub(crate) task: TaskId,
    /// How long an unavailable dispatcher is retried.
    pub(crate) retry_timeout: Duration,
}

/// Deals the elements of one task.
pub(crate) struct Dealer {
    dispatch: Dispatch,
    deals: Deals,
    /// Rows of a batch, and whether a short one is dropped; 0 without a batch.
    batch: (u64, bool),
    /// Numbers the questions who gets elements.
    request_no: u64,
    /// Consumers that got the last elements of those who were behind.
    served: BTreeSet<usize>,
}

/// What the consumers' elements have in common.
enum Deals {
    /// Their number.
    EqualCounts(EqualCounts),
    /// Those of one round, their class or their length.
    Rounds(Rounds),
}

/// What a task keeps at its end.
struct Tail {
    elements: u64,
    rows: u64,
    behind: Vec<u64>,
    kinds: Vec<v1::TailElement>,
    row_widths: Vec<u32>,
    has_spare: bool,
}

impl Dealer {
    /// A dealer to this number of consumers.
    ///
    /// # Errors
    /// Those of reading the definition, and `Unimplemented` for a balance that this worker does not know.
    pub(crate) fn new(dispatch: Dispatch, def: &v1::TaskDef, behind: Arc<Behind>) -> Result<Self> {
        let consumers = usize::try_from(def.num_consumers).unwrap_or(usize::MAX);
        let definition = DatasetDef::from_json_str(&def.definition_json)?;
        let batch = definition.stages.iter().rev().find_map(|s| match &s.op {
            StageOp::Batch { size, drop_remainder } | StageOp::PaddedBatch { size, drop_remainder, .. } => {
                Some((*size, *drop_remainder))
            }
            _ => None,
        });
        let deals = match def.balance.as_str() {
            "" => Deals::EqualCounts(EqualCounts {
                consumers,
                behind,
                carry: VecDeque::new(),
                remainders: Vec::new(),
                spare: Spare::new(def.pads),
            }),
            "bucket" => Deals::Rounds(Rounds::new(&definition, consumers, false)),
            "tokens" => Deals::Rounds(Rounds::new(&definition, consumers, true)),
            other => {
                return Err(Error::unimplemented(format!(
                    "the dispatcher asks for balance `{other}`, which this worker does not know; run a newer worker"
                )));
            }
        };
        Ok(Self { dispatch, deals, batch: batch.unwrap_or_default(), request_no: 0, served: BTreeSet::new() })
    }

    /// What a chunk of the task's output gives to whom.
    ///
    /// # Errors
    /// Those of making the elements of a round one shape, and of [`Dealer::deal_tail`].
    pub(crate) async fn deal(&mut self, chunk: Chunk) -> Result<Vec<(usize, Chunk)>> {
        match &mut self.deals {
            Deals::Rounds(rounds) => return rounds.deal(chunk),
            Deals::EqualCounts(counts) if !chunk.remainder && counts.behind.take_ask() => {
                let elements = (counts.carry.len() + chunk.num_elements()) as u64;
                self.ask_for_behind(elements).await?;
            }
            Deals::EqualCounts(_) => self.served.clear(),
        }
        match &mut self.deals {
            Deals::Rounds(rounds) => rounds.deal(chunk),
            Deals::EqualCounts(counts) => Ok(counts.deal(chunk)),
        }
    }

    /// Consumers that got the last elements, if they got them because they were behind.
    pub(crate) fn served(&self) -> impl Iterator<Item = usize> + '_ {
        self.served.iter().copied()
    }

    /// Asks the dispatcher who gets the next `elements` elements.
    async fn ask_for_behind(&mut self, elements: u64) -> Result<()> {
        let Dispatch { identity, task, retry_timeout } = &self.dispatch;
        let registration = identity.registration();
        let request = v1::ServeBehindRequest {
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
        let answer = answer.map_err(|e| refused_as_loss(*task, e))?;
        self.request_no += 1;
        if let Deals::EqualCounts(counts) = &self.deals {
            counts.behind.promise(&answer.counts);
            if answer.consumers_behind {
                counts.behind.ask();
            }
        }
        self.served = (0..).zip(&answer.counts).filter(|(_, n)| **n > 0).map(|(c, _)| c).collect();
        Ok(())
    }

    /// Full rounds of what waited for more, when no further chunk comes.
    ///
    /// # Errors
    /// As [`Dealer::deal`].
    pub(crate) fn finish(&mut self) -> Result<Vec<(usize, Chunk)>> {
        match &mut self.deals {
            Deals::EqualCounts(_) => Ok(Vec::new()),
            Deals::Rounds(rounds) => rounds.finish(),
        }
    }

    /// What is left at the end of the task, once all tasks have reported their ends to the dispatcher.
    ///
    /// # Errors
    /// `Unavailable` if the dispatcher does not answer, `Cancelled` if the task is lost, and the epoch's failure.
    pub(crate) async fn deal_tail(&mut self) -> Result<Vec<(usize, Chunk)>> {
        let (batch_rows, drop_remainder) = self.batch;
        let Dispatch { identity, task, retry_timeout } = &self.dispatch;
        loop {
            let registration = identity.registration();
            let tail = self.deals.tail();
            let request = v1::DealTailRequest {
                task_id: task.0,
                worker_id: registration.id.0,
                secret: registration.secret,
                wait_ms: u64::try_from(POLL_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
                elements: tail.elements,
                rows: tail.rows,
                batch_rows,
                drop_remainder,
                behind: tail.behind,
                tail: tail.kinds,
                row_widths: tail.row_widths,
                has_spare: tail.has_spare,
            };
            let call = |mut d: Dispatcher| {
                let request = request.clone();
                async move { d.deal_tail(request).await }
            };
            let answer = identity.link.retry(*retry_timeout, POLL_TIMEOUT, call).await;
            let answer = answer.map_err(|e| refused_as_loss(*task, e))?;
            if answer.dealt {
                let mut all = Vec::new();
                for piece in &answer.pieces {
                    all.extend(self.deals.piece(piece)?);
                }
                return Ok(all);
            }
        }
    }
}

impl Deals {
    fn tail(&self) -> Tail {
        match self {
            Deals::EqualCounts(counts) => Tail {
                elements: counts.carry.len() as u64,
                rows: counts.remainders.iter().map(|c| c.rows() as u64).sum(),
                behind: counts.behind.promised(),
                kinds: Vec::new(),
                row_widths: Vec::new(),
                has_spare: counts.spare.element.is_some(),
            },
            Deals::Rounds(rounds) => {
                let (kinds, rows) = rounds.tail();
                let (elements, row_widths) = (kinds.len() as u64, rounds.row_widths());
                Tail { elements, rows, behind: Vec::new(), kinds, row_widths, has_spare: false }
            }
        }
    }

    fn piece(&self, piece: &v1::DealtPiece) -> Result<Vec<(usize, Chunk)>> {
        match self {
            Deals::EqualCounts(counts) => counts.piece(piece),
            Deals::Rounds(rounds) => rounds.piece(piece),
        }
    }
}

/// Elements in turn: each consumer has equally many, whichever they are.
struct EqualCounts {
    consumers: usize,
    behind: Arc<Behind>,
    /// Elements that fill no round yet, one per chunk.
    carry: VecDeque<Chunk>,
    /// Rows that fill no batch.
    remainders: Vec<Chunk>,
    spare: Spare,
}

/// An element that was dealt, and may be dealt again at the end of the epoch.
struct Spare {
    is_wanted: bool,
    element: Option<Chunk>,
}

impl Spare {
    fn new(is_wanted: bool) -> Self {
        Self { is_wanted, element: None }
    }

    /// Keeps the last one of what is dealt.
    fn keep(&mut self, dealt: &[(usize, Chunk)]) {
        if let Some((_, chunk)) = dealt.last().filter(|_| self.is_wanted) {
            self.element = Cutter::new(chunk.clone()).next(1);
        }
    }
}

impl EqualCounts {
    fn deal(&mut self, chunk: Chunk) -> Vec<(usize, Chunk)> {
        if chunk.remainder {
            self.remainders.push(chunk);
            return Vec::new();
        }
        let mut cut = Cutter::new(chunk);
        let mut out = self.behind.serve(|| self.carry.pop_front().or_else(|| cut.next(1)));
        self.deal_rounds(cut, &mut out);
        self.spare.keep(&out);
        out
    }

    fn deal_rounds(&mut self, mut cut: Cutter, out: &mut Vec<(usize, Chunk)>) {
        while !self.carry.is_empty() && self.carry.len() < self.consumers {
            let Some(element) = cut.next(1) else { return };
            self.carry.push_back(element);
        }
        out.extend(self.carry.drain(..).enumerate());
        let each = cut.left() / self.consumers;
        out.extend((0..self.consumers).filter_map(|consumer| Some((consumer, cut.next(each)?))));
        self.carry.extend(std::iter::from_fn(|| cut.next(1)));
    }

    /// A part of the tail for one consumer. Padding has no provenance: its rows belong to another consumer.
    fn piece(&self, piece: &v1::DealtPiece) -> Result<Vec<(usize, Chunk)>> {
        let consumer = usize::try_from(piece.consumer).unwrap_or(usize::MAX);
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let (start, end) = (index(piece.start), index(piece.end));
        let mut chunks: Vec<Chunk> = if piece.of_rows {
            rows_of(&self.remainders, start, end)
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

    fn equal_counts(consumers: usize, behind: &Arc<Behind>, pads: bool) -> EqualCounts {
        let (behind, spare) = (Arc::clone(behind), Spare::new(pads));
        EqualCounts { consumers, behind, carry: VecDeque::new(), remainders: Vec::new(), spare }
    }

    /// Elements that each consumer got.
    fn counts(dealt: &[(usize, Chunk)], consumers: usize) -> Vec<usize> {
        (0..consumers)
            .map(|c| dealt.iter().filter(|(to, _)| *to == c).map(|(_, c)| c.num_elements()).sum())
            .collect()
    }

    #[test]
    fn all_get_as_many_and_those_behind_more() {
        let behind: Arc<Behind> = Arc::default();
        behind.promise(&[0, 2, 0]);
        let mut rounds = equal_counts(3, &behind, false);
        let mut dealt = rounds.deal(chunk(0, None, 10));
        assert_eq!(counts(&dealt, 3), [2, 4, 2], "two for consumer 1, then rounds of the other eight");
        assert_eq!(rounds.carry.len(), 2);
        dealt.extend(rounds.deal(chunk(10, Some(&[2, 3, 1, 4]), 10)));
        assert_eq!(counts(&dealt, 3), [4, 6, 4]);
        assert!(rounds.carry.is_empty());
        behind.promise(&[1]);
        dealt.extend(rounds.deal(chunk(20, None, 1)));
        assert_eq!(counts(&dealt, 3), [5, 6, 4]);
        let mut rows: Vec<u64> =
            dealt.iter().flat_map(|(_, c)| c.runs.iter().flat_map(|r| r.start..r.start + r.len)).collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..21).collect::<Vec<_>>(), "every row once");
    }

    #[test]
    fn pieces_of_the_tail() {
        let mut rounds = equal_counts(2, &Arc::default(), true);
        assert!(rounds.deal(chunk(0, None, 1)).is_empty());
        for start in [1, 4] {
            assert!(rounds.deal(Chunk { remainder: true, ..chunk(start, Some(&[3]), 3) }).is_empty());
        }
        let piece = |of_rows, start, end, copy| v1::DealtPiece {
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
        assert!(rounds.piece(&piece(false, 1, 2, true)).is_err(), "and none was dealt");
        assert_eq!(counts(&rounds.deal(chunk(9, None, 3)), 2), [2, 2]);
        let spare = rounds.piece(&piece(false, 0, 1, true)).unwrap();
        assert!(spare[0].1.runs.is_empty() && spare[0].1.rows() == 1, "an element that was dealt before");
    }
}
