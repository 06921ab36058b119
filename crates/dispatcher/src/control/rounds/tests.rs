//! All consumers pass on the same rounds.

use proptest::prelude::*;

use super::*;

/// A consumer as the client is one: it passes elements on in the order that it gets, repeats what others may not know, and
/// drops what a lost task has left when an answer says that it gets no place.
#[derive(Default)]
struct Reader {
    at: u64,
    waiting: BTreeMap<u64, u64>,
    ended: BTreeSet<u64>,
    recent: Vec<Step>,
    request_no: u64,
    order: u64,
    /// The task of each round, 0 for the last rounds.
    got: Vec<u64>,
    /// It has come to its end, and reports nothing any more.
    has_left: bool,
    /// A task that is lost, and the first report without it.
    lost: Option<(u64, u64)>,
    /// Answers on their way, with the number, the position and the order of the report.
    answers: VecDeque<((u64, u64, u64), Answer)>,
}

struct Answer {
    steps: Vec<Step>,
    order: u64,
    advance: Advance,
}

impl Reader {
    fn lose(&mut self, task: u64) {
        self.lost.get_or_insert((task, self.request_no + 1));
    }

    /// What it says when it leaves.
    fn leave(&mut self) -> KnownOrder {
        self.has_left = true;
        KnownOrder { position: self.at, recent: self.recent.clone(), remainder_rounds_through: 9 }
    }

    fn request(&mut self) -> v1::NextRoundsRequest {
        self.request_no += 1;
        let lost = self.lost.map(|(task, _)| task);
        let waiting = self.waiting.iter().filter(|(t, _)| Some(**t) != lost);
        v1::NextRoundsRequest {
            request_no: self.request_no,
            position: self.at,
            waiting: waiting.map(|(t, n)| v1::TaskElements { task_id: *t, elements: *n }).collect(),
            ended_tasks: self.ended.iter().copied().filter(|t| Some(*t) != lost).collect(),
            recent: self.recent.iter().map(|s| step_to_proto(*s)).collect(),
            remainder_rounds_through: u64::from(self.got.last() == Some(&0)) * 9,
            order: self.order,
            ..Default::default()
        }
    }

    fn deliver(&mut self, newest_first: bool) -> bool {
        let next = if newest_first { self.answers.pop_back() } else { self.answers.pop_front() };
        let Some(((number, position, order), answer)) = next else { return false };
        if answer.order != self.order {
            if order == self.order {
                self.order = answer.order;
            }
            return true;
        }
        let mut at = position;
        for step in answer.steps {
            let is_known = at < self.at;
            at += step.distance();
            if is_known {
                continue;
            }
            self.at += step.distance();
            self.recent.push(step);
            match step {
                Step::Rounds { task, rounds } => {
                    let left = self.waiting.get_mut(&task.0).unwrap();
                    *left = left.checked_sub(rounds).expect("it has arrived here, and was not dropped");
                    self.got.extend((0..rounds).map(|_| task.0));
                }
                Step::RemainderRounds { .. } => self.got.push(0),
            }
        }
        if let Some((task, _)) = self.lost.filter(|(_, since)| answer.advance.is_complete && *since <= number)
        {
            self.waiting.insert(task, 0);
        }
        let mut start = self.at - span(&self.recent);
        while let Some(first) = self.recent.first().map(|s| s.distance())
            && start + first <= answer.advance.known_to_all
        {
            self.recent.remove(0);
            start += first;
        }
        true
    }
}

/// The dispatcher: its incarnation, and what it knows.
struct Side {
    order: u64,
    known: Order,
}

impl Side {
    fn answer(&mut self, consumer: usize, reader: &mut Reader, view: &View) {
        let request = reader.request();
        let asked = (request.request_no, request.position, request.order);
        let answer = if request.order == self.order {
            self.known.report(u32::try_from(consumer).unwrap(), ClientId(consumer as u64), &request);
            let advance = self.known.advance(view);
            let steps = self.known.behind(request.position).expect("what it has not passed on is known");
            Answer { steps, order: self.order, advance }
        } else {
            Answer { steps: Vec::new(), order: self.order, advance: Advance::default() }
        };
        reader.answers.push_back((asked, answer));
    }
}

fn view(consumers: u32, tasks: impl IntoIterator<Item = u64>) -> View {
    View {
        consumer: 0,
        readers: (0..consumers).map(|c| (c, ClientId(u64::from(c)))).collect(),
        tasks: tasks.into_iter().map(TaskId).collect(),
        remainder_rounds: 9,
        left_with: None,
    }
}

proptest! {
    /// Elements of three tasks arrive at the consumers in any order, answers are late, one task is lost at some time, and
    /// the dispatcher is restarted at another one, consumers leave at their ends, some before the others have heard of the last
    /// rounds: all consumers pass on the same rounds in the same order, all rounds of the tasks that are not lost, and the last
    /// rounds behind them.
    #[test]
    fn cor_08_all_consumers_pass_on_the_same_rounds(
        consumers in 1u32..5,
        rounds in prop::collection::vec(0u64..6, 3),
        order in prop::collection::vec((0usize..5, 1u64..4, 0u8..4), 0..200),
        lost_at in 0usize..250,
        restarted_at in prop::collection::vec(0usize..400, 0..4),
    ) {
        let num = consumers as usize;
        let mut all: Vec<Reader> = (0..num).map(|_| Reader::default()).collect();
        let mut dispatcher = Side { order: 1, known: Order::default() };
        let mut arrived = vec![[0u64; 4]; num];
        let mut left_with: Option<Arc<KnownOrder>> = None;
        let rest = (0..3 * 7 * num).map(|k| (k % num, 1 + (k / num) as u64 % 3, 3));
        let steps = order.into_iter().chain(rest.clone()).chain(rest.clone()).chain(rest);
        for (step, (consumer, task, delivery)) in steps.enumerate() {
            let consumer = consumer % num;
            if step == lost_at {
                all[consumer].lose(3);
            }
            if restarted_at.contains(&step) {
                dispatcher = Side { order: dispatcher.order + 1, known: Order::default() };
            }
            // The answer to a later call of a consumer reports a loss.
            if step > lost_at + consumer {
                all[consumer].lose(3);
            }
            let is_lost = all.iter().any(|r| r.lost.is_some());
            let (reader, count) = (&mut all[consumer], &mut arrived[consumer][usize::try_from(task).unwrap()]);
            let most = rounds[usize::try_from(task).unwrap() - 1];
            if *count < most && reader.lost.is_none_or(|(lost, _)| lost != task) {
                *count += 1;
                *reader.waiting.entry(task).or_default() += 1;
            } else if *count == most {
                reader.ended.insert(task);
            }
            if reader.has_left {
                continue;
            }
            if reader.got.last() == Some(&0) {
                // At its end it leaves at once, or some steps later.
                if delivery != 1 {
                    let known = reader.leave();
                    if left_with.as_ref().is_none_or(|other| other.position < known.position) {
                        left_with = Some(Arc::new(known));
                    }
                }
                continue;
            }
            let mut view = view(consumers, if is_lost { 1..3 } else { 1..4 });
            view.readers.retain(|c, _| !all[*c as usize].has_left);
            view.left_with.clone_from(&left_with);
            // The last rounds are given out when every consumer has reported the loss.
            if is_lost && all.iter().any(|r| !r.has_left && r.lost.is_none()) {
                view.remainder_rounds = 0;
            }
            let reader = &mut all[consumer];
            dispatcher.answer(consumer, reader, &view);
            match delivery {
                0 => {}
                1 | 2 => drop(reader.deliver(delivery == 2)),
                _ => while reader.deliver(false) {},
            }
        }
        for reader in &all {
            prop_assert_eq!(&reader.got, &all[0].got);
        }
        let of = |task: u64| all[0].got.iter().filter(|t| **t == task).count() as u64;
        prop_assert_eq!((of(1), of(2)), (rounds[0], rounds[1]));
        prop_assert!(of(3) <= rounds[2]);
        prop_assert_eq!(of(0), 1, "the last rounds have a place");
        let first = all[0].got.iter().position(|t| *t == 0).unwrap();
        prop_assert!(all[0].got[first..].iter().all(|t| *t == 0), "after all others");
    }
}

#[test]
fn steps_of_a_consumer_that_counts_wrongly_are_bounded() {
    let mut order = Order::default();
    let empty = v1::RoundStep { task_id: 1, rounds: 0, remainder_rounds_through: 0 };
    for request_no in 1..4 {
        let recent = vec![empty; 1000];
        let request = v1::NextRoundsRequest { request_no, recent, ..Default::default() };
        order.report(0, ClientId(7), &request);
    }
    assert!(order.steps.is_empty());
    let one = v1::RoundStep { rounds: 1, ..empty };
    for request_no in 4..7 {
        let position = request_no * MAX_RECENT as u64;
        let request = v1::NextRoundsRequest {
            request_no,
            position,
            recent: vec![one; MAX_RECENT],
            ..Default::default()
        };
        order.report(0, ClientId(7), &request);
    }
    assert!(order.steps.len() <= MAX_RECENT);
}

#[test]
fn a_report_that_was_overtaken_changes_nothing() {
    let mut order = Order::default();
    let mut reader = Reader { waiting: BTreeMap::from([(1, 3)]), ..Reader::default() };
    let (early, late) = (reader.request(), {
        reader.lose(1);
        reader.request()
    });
    order.report(0, ClientId(0), &late);
    order.report(0, ClientId(0), &early);
    assert!(!order.advance(&view(1, [1])).is_news, "the consumer has dropped these elements");
}

#[test]
fn nothing_is_settled_before_all_consumers_have_reported() {
    let mut order = Order::default();
    let mut first = Reader { waiting: BTreeMap::from([(1, 3)]), ..Reader::default() };
    order.report(0, ClientId(0), &first.request());
    assert_eq!(order.advance(&view(2, [1])), Advance::default());
    // Another client had this place before.
    order.report(1, ClientId(9), &first.request());
    assert_eq!(order.advance(&view(2, [1])), Advance::default());
    order.report(1, ClientId(1), &first.request());
    let advance = order.advance(&view(2, [1]));
    assert_eq!(advance, Advance { is_news: true, is_complete: true, known_to_all: 0 });
    // A consumer that has left had its rows to the end: nobody waits for it.
    assert!(order.advance(&view(1, [1])).is_complete);
}

/// A consumer waits for steps, has got some of them by another call, and reported it. Everybody knows these now.
#[test]
fn steps_that_are_forgotten_are_missing_in_no_answer() {
    let mut order = Order::default();
    let report = |order: &mut Order, consumer: u32, request_no, position, elements| {
        let recent = vec![v1::RoundStep { task_id: 1, rounds: position, remainder_rounds_through: 0 }];
        let waiting = vec![v1::TaskElements { task_id: 1, elements }];
        let request = v1::NextRoundsRequest { request_no, position, recent, waiting, ..Default::default() };
        order.report(consumer, ClientId(u64::from(consumer)), &request);
    };
    report(&mut order, 0, 1, 0, 2);
    report(&mut order, 0, 2, 2, 3);
    report(&mut order, 1, 1, 2, 3);
    assert!(order.advance(&view(2, [1])).is_news);
    let next = Step::Rounds { task: TaskId(1), rounds: 3 };
    assert_eq!(order.behind(2), Some(vec![next]));
    assert_eq!(order.behind(0), None, "it would take the next step for the one that is forgotten");
}
