//! Rounds: all consumers of a job pass elements to their users in one order.
//!
//! What arrives of tasks is staged here, task by task. The dispatcher gives a round its place when every consumer has its
//! element of it; then the element goes to the user, and counts as received from then on. What has no place when its task
//! is lost is dropped: no consumer has passed it on, and its rows come again in other rounds.
//!
//! The last rounds of an epoch have places of their own in the chunks, and are passed on together, when every consumer has
//! read every task to its end.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use caju_proto::v1;
use caju_runtime::Condition;
use caju_types::{Error, Result, TaskId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::delivery::Delivery;

/// By how much a step moves the position of a consumer.
fn span(step: &v1::RoundStep) -> u64 {
    if step.remainder_rounds_through > 0 { 1 } else { step.rounds }
}

/// What has arrived and has no place yet.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    inner: Mutex<Inner>,
    /// There is something to report.
    changed: Notify,
    /// A lost task has nothing here any more.
    settled: Notify,
    passed: Condition,
}

#[derive(Debug, Default)]
struct Inner {
    tasks: BTreeMap<TaskId, Staged>,
    /// How far this consumer is in the order of rounds.
    position: u64,
    /// The steps before `position` that some consumer may not know.
    recent: VecDeque<v1::RoundStep>,
    /// The last rounds up to this one were passed on.
    remainder_rounds_through: u64,
    request_no: u64,
    /// The order of the dispatcher's process that answered last; 0 before the first answer.
    order: u64,
}

/// What has arrived of one task.
#[derive(Debug, Default)]
struct Staged {
    waiting: VecDeque<(Delivery, Instant)>,
    /// Of `waiting`.
    elements: u64,
    /// Parts of the last rounds.
    remainder_rounds: Vec<Delivery>,
    /// It was read to its end.
    has_ended: bool,
    lost: Lost,
}

/// What becomes of the elements of a task that is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Lost {
    #[default]
    No,
    /// No round of it gets a place behind the answer to a report without it, where all consumers have reported.
    Reporting,
    /// The number of such a report.
    Reported(u64),
    /// What had no place is dropped.
    Settled,
}

/// Which report an answer is to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// Its number.
    pub(crate) number: u64,
    /// How far this consumer was.
    pub(crate) position: u64,
    /// The order that it was made for.
    pub(crate) order: u64,
}

impl Asked {
    /// The report of a request.
    pub(crate) fn of(request: &v1::NextRoundsRequest) -> Self {
        Self { number: request.request_no, position: request.position, order: request.order }
    }
}

/// An element whose position in the order is known, with its task and the time of its arrival.
pub(crate) type OrderedElement = (TaskId, Delivery, Instant);

impl Staging {
    /// A chunk has arrived.
    pub(crate) fn push(&self, task: TaskId, delivery: Delivery) {
        let mut inner = self.inner.lock();
        let staged = inner.tasks.entry(task).or_default();
        if staged.lost != Lost::No {
            drop(inner);
            drop(delivery.take());
            return;
        }
        if delivery.chunk.round.remainder_round > 0 {
            // It waits for the end of the epoch: its bytes are credit at once, or nothing else could come.
            staged.remainder_rounds.push(delivery.without_credit());
        } else {
            staged.elements += delivery.chunk.num_elements() as u64;
            staged.waiting.push_back((delivery, Instant::now()));
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// A task was read to its end. Waits until everything of it was passed on.
    pub(crate) async fn end(&self, task: TaskId) {
        self.inner.lock().tasks.entry(task).or_default().has_ended = true;
        self.changed.notify_one();
        let is_passed = || {
            let inner = self.inner.lock();
            inner.tasks.get(&task).is_none_or(|s| s.waiting.is_empty() && s.remainder_rounds.is_empty())
        };
        self.passed.wait_until(is_passed).await;
    }

    /// A task is lost.
    pub(crate) fn lose(&self, task: TaskId) {
        let mut inner = self.inner.lock();
        let staged = inner.tasks.entry(task).or_default();
        if staged.lost == Lost::No {
            staged.lost = Lost::Reporting;
            drop(inner);
            self.changed.notify_one();
        }
    }

    /// Whether it is known which rounds of a lost task were passed on.
    pub(crate) fn is_settled(&self, task: TaskId) -> bool {
        self.inner.lock().tasks.get(&task).is_some_and(|s| s.lost == Lost::Settled)
    }

    /// Whether a lost task was reported, and is not settled.
    pub(crate) fn is_settling(&self) -> bool {
        self.inner.lock().tasks.values().any(|s| matches!(s.lost, Lost::Reported(_)))
    }

    /// What this consumer knows of the order of rounds, for when it leaves.
    pub(crate) fn order(&self) -> v1::RoundOrder {
        let inner = self.inner.lock();
        v1::RoundOrder {
            position: inner.position,
            recent: inner.recent.iter().copied().collect(),
            remainder_rounds_through: inner.remainder_rounds_through,
        }
    }

    /// Waits until there is something to report.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until a lost task is settled.
    pub(crate) async fn settled(&self) {
        self.settled.notified().await;
    }

    /// What the dispatcher has to know.
    pub(crate) fn report(&self) -> v1::NextRoundsRequest {
        let mut inner = self.inner.lock();
        inner.request_no += 1;
        let number = inner.request_no;
        for staged in inner.tasks.values_mut().filter(|s| s.lost == Lost::Reporting) {
            staged.lost = Lost::Reported(number);
        }
        let has = |(_, staged): &(&TaskId, &Staged)| staged.lost == Lost::No;
        let waiting = inner.tasks.iter().filter(has).filter(|(_, staged)| staged.elements > 0);
        v1::NextRoundsRequest {
            request_no: number,
            position: inner.position,
            waiting: waiting
                .map(|(task, staged)| v1::TaskElements { task_id: task.0, elements: staged.elements })
                .collect(),
            ended_tasks: inner
                .tasks
                .iter()
                .filter(has)
                .filter(|(_, s)| s.has_ended)
                .map(|(t, _)| t.0)
                .collect(),
            recent: inner.recent.iter().copied().collect(),
            remainder_rounds_through: inner.remainder_rounds_through,
            order: inner.order,
            names_order: true,
            ..Default::default()
        }
    }

    /// Takes the answer to a report: the elements that have their places now, in order. None if the report was not counted,
    /// because another process of the dispatcher answers than before, or one that is gone.
    ///
    /// # Errors
    /// `Internal` if the dispatcher names elements that have not arrived.
    pub(crate) fn accept(
        &self,
        asked: Asked,
        answer: &v1::NextRoundsResponse,
    ) -> Result<Option<Vec<OrderedElement>>> {
        let mut inner = self.inner.lock();
        if answer.order != inner.order {
            if asked.order == inner.order {
                inner.order = answer.order;
                self.changed.notify_one();
            }
            return Ok(None);
        }
        let mut placed = Vec::new();
        let mut at = asked.position;
        for step in &answer.steps {
            let is_known = at < inner.position;
            at = at.saturating_add(span(step));
            if is_known {
                // The answer to another report came first.
                continue;
            }
            if step.remainder_rounds_through > 0 {
                inner.take_remainder_rounds(step.remainder_rounds_through, &mut placed);
                inner.position = inner.position.saturating_add(1);
            } else {
                let task = TaskId(step.task_id);
                let staged = inner.tasks.entry(task).or_default();
                staged.take(task, step.rounds, &mut placed)?;
                inner.position = inner.position.saturating_add(step.rounds);
            }
            inner.recent.push_back(*step);
        }
        inner.forget_known(answer.known_to_all);
        Ok(Some(placed))
    }

    /// The elements of an answer were passed on. If all consumers have reported, what lost tasks have left has no place.
    pub(crate) fn passed_on(&self, asked: Asked, answer: &v1::NextRoundsResponse) {
        let mut dropped = Vec::new();
        let mut inner = self.inner.lock();
        // A dispatcher of an older version does not say it.
        let is_complete = answer.complete || answer.order == 0;
        for staged in inner.tasks.values_mut().filter(|_| is_complete) {
            if matches!(staged.lost, Lost::Reported(at) if at <= asked.number) {
                staged.lost = Lost::Settled;
                staged.elements = 0;
                dropped.extend(staged.waiting.drain(..).map(|(delivery, _)| delivery));
                dropped.append(&mut staged.remainder_rounds);
                self.settled.notify_one();
            }
        }
        drop(inner);
        // Their bytes are credit again.
        dropped.into_iter().for_each(|delivery| drop(delivery.take()));
        self.passed.notify_all();
    }
}

impl Inner {
    /// The parts of the last rounds, in their order; rows that fill batches come behind whole elements.
    fn take_remainder_rounds(&mut self, through: u64, placed: &mut Vec<OrderedElement>) {
        let now = Instant::now();
        let mut parts: Vec<OrderedElement> = Vec::new();
        for (task, staged) in self.tasks.iter_mut().filter(|(_, s)| s.lost != Lost::Settled) {
            let all = std::mem::take(&mut staged.remainder_rounds);
            let (now_due, later): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|part| part.chunk.round.remainder_round <= through);
            staged.remainder_rounds = later;
            parts.extend(now_due.into_iter().map(|part| (*task, part, now)));
        }
        parts.sort_by_key(|(_, part, _)| (part.chunk.round.remainder_round, part.chunk.remainder));
        placed.append(&mut parts);
        self.remainder_rounds_through = self.remainder_rounds_through.max(through);
    }

    fn forget_known(&mut self, known: u64) {
        let mut at = self.position.saturating_sub(self.recent.iter().map(span).sum());
        while let Some(first) = self.recent.front().map(span)
            && at.saturating_add(first) <= known
        {
            at += first;
            self.recent.pop_front();
        }
    }
}

impl Staged {
    /// Takes the next elements.
    fn take(&mut self, task: TaskId, mut elements: u64, placed: &mut Vec<OrderedElement>) -> Result<()> {
        if self.elements < elements {
            return Err(Error::internal(format!(
                "the dispatcher says that {elements} further elements of {task} have arrived, and {} have",
                self.elements
            )));
        }
        self.elements -= elements;
        while elements > 0 {
            let Some((mut delivery, arrived)) = self.waiting.pop_front() else { break };
            let here = delivery.chunk.num_elements() as u64;
            if here > elements {
                let n = usize::try_from(elements).unwrap_or(usize::MAX);
                let front = delivery.split_front(n);
                self.waiting.push_front((delivery, arrived));
                placed.push((task, front, arrived));
                return Ok(());
            }
            elements -= here;
            placed.push((task, delivery, arrived));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports, and takes the answer. None if the report was not counted.
    fn answered(staging: &Staging, order: u64, complete: bool) -> Option<()> {
        let asked = Asked::of(&staging.report());
        let answer = v1::NextRoundsResponse { order, complete, ..Default::default() };
        staging.accept(asked, &answer).unwrap()?;
        staging.passed_on(asked, &answer);
        Some(())
    }

    #[test]
    fn a_lost_task_is_settled_when_all_consumers_have_reported_to_one_dispatcher() {
        let (staging, task) = (Staging::default(), TaskId(7));
        staging.lose(task);
        assert_eq!(answered(&staging, 1, true), None, "the report named no order");
        assert_eq!(answered(&staging, 1, false), Some(()));
        assert!(
            staging.is_settling() && !staging.is_settled(task),
            "another consumer may have passed on its rounds"
        );
        assert_eq!(answered(&staging, 2, true), None, "the dispatcher was restarted");
        assert_eq!(answered(&staging, 2, true), Some(()));
        assert!(staging.is_settled(task) && !staging.is_settling());
    }

    #[test]
    fn an_answer_of_the_dispatcher_before_changes_nothing() {
        let staging = Staging::default();
        let early = Asked::of(&staging.report());
        assert_eq!(answered(&staging, 2, false), None);
        let steps = vec![v1::RoundStep { task_id: 7, rounds: 3, remainder_rounds_through: 0 }];
        let late = v1::NextRoundsResponse { order: 1, steps, ..Default::default() };
        assert!(staging.accept(early, &late).unwrap().is_none(), "these elements have not arrived");
        assert_eq!(answered(&staging, 2, false), Some(()), "it still reports to the new one");
    }

    #[test]
    fn a_dispatcher_that_names_no_order_settles_with_each_answer() {
        let (staging, task) = (Staging::default(), TaskId(7));
        staging.lose(task);
        assert_eq!(answered(&staging, 0, false), Some(()));
        assert!(staging.is_settled(task));
    }
}
