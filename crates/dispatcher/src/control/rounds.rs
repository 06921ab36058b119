//! The order of rounds of consumers that read in rounds.
//!
//! A task sends every consumer one element per round, in one order for all (`worker/src/rounds.rs`). Tasks of several
//! workers send concurrently, so the consumers have to agree whose round comes next. They say here what has arrived, and
//! a round gets its place when *all* consumers have received their elements of it. A consumer passes elements to its user
//! only in this order. So the n-th elements of all consumers are of one round, whatever their speeds, and a round that some
//! consumer lacks (its worker died) has no place: nobody was given it, and its rows are computed again.
//!
//! Nothing of this is in the journal. Consumers repeat the steps that some of them may not know, so a dispatcher that was
//! restarted goes on with the order that they have. It knows that order when every consumer has reported to it, and gives no
//! places before. A report that a consumer made before it heard of this process is not counted: an answer of the process
//! before may still have been on its way to the consumer. A consumer that leaves at its end says what it knows of the order,
//! and that is in the journal.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use caju_proto::v1;
use caju_runtime::OrderedMutex;
use caju_types::{ClientId, Error, IterationId, Result, TaskId};
use tokio::sync::watch;

use super::context::{Context, IterationObserver};
use super::secrets;
use crate::locks;
use crate::state::{Iteration, KnownOrder, RoundStep as Step, State, span};

/// The most steps that a consumer repeats. Each is at least one element that some consumer has received and not passed on, and
/// those fit the memory of a reader.
const MAX_RECENT: usize = 1 << 20;

/// A step, as a message has it.
fn step_of_proto(step: &v1::RoundStep) -> Step {
    match step.remainder_rounds_through {
        0 => Step::Rounds { task: TaskId(step.task_id), rounds: step.rounds },
        through => Step::RemainderRounds { through },
    }
}

/// A step for a message.
fn step_to_proto(step: Step) -> v1::RoundStep {
    match step {
        Step::Rounds { task, rounds } => {
            v1::RoundStep { task_id: task.0, rounds, remainder_rounds_through: 0 }
        }
        Step::RemainderRounds { through } => {
            v1::RoundStep { remainder_rounds_through: through, ..Default::default() }
        }
    }
}

/// The order that a consumer knows which leaves.
///
/// # Errors
/// `InvalidArgument` for more steps than a consumer can have.
pub(super) fn known_order(order: Option<&v1::RoundOrder>) -> Result<Option<KnownOrder>> {
    let Some(order) = order else { return Ok(None) };
    if order.recent.len() > MAX_RECENT {
        return Err(too_many_steps("a consumer", order.recent.len()));
    }
    Ok(Some(KnownOrder {
        position: order.position,
        recent: order.recent.iter().map(step_of_proto).collect(),
        remainder_rounds_through: order.remainder_rounds_through,
    }))
}

fn too_many_steps(who: &str, steps: usize) -> Error {
    Error::invalid(format!("{who} repeats {steps} steps of rounds, and {MAX_RECENT} are the most"))
}

/// What one consumer reported last.
#[derive(Debug, Default)]
struct Position {
    client: ClientId,
    request_no: u64,
    /// What it has passed to its user.
    at: u64,
    /// Elements beyond that.
    waiting: BTreeMap<TaskId, u64>,
    ended: BTreeSet<TaskId>,
}

/// What the state knows of an iteration that is read in rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct View {
    consumer: u32,
    /// The consumers that are there. None before all have joined; those that have left had their rows to the end.
    readers: BTreeMap<u32, ClientId>,
    /// Tasks that every consumer reads to their ends.
    tasks: BTreeSet<TaskId>,
    /// The last rounds that were given out, while none of them is taken back.
    remainder_rounds: u64,
    /// What the consumer that left last knew of the order.
    left_with: Option<Arc<KnownOrder>>,
}

impl View {
    fn of(iteration: &Iteration, client: ClientId) -> Option<Self> {
        let even = iteration.even.as_ref().filter(|even| even.is_in_rounds())?;
        let reading = iteration.members.iter().filter(|(_, m)| !m.may_load);
        let readers = reading.filter_map(|(client, m)| Some((m.consumer?, *client)));
        Some(Self {
            consumer: iteration.members.get(&client)?.consumer?,
            readers: if even.is_complete() { readers.collect() } else { BTreeMap::new() },
            tasks: iteration.tasks.values().filter(|t| !t.is_lost() && !t.is_done()).map(|t| t.id).collect(),
            remainder_rounds: if iteration.has_all_remainders() { even.remainder_rounds } else { 0 },
            left_with: even.left_with.clone(),
        })
    }
}

/// What an order knows after the reports that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Advance {
    /// Rounds got their places just now.
    is_news: bool,
    /// Every consumer has reported.
    is_complete: bool,
    /// The position that every consumer has reached; 0 while some have not reported.
    known_to_all: u64,
}

/// The order of rounds of one iteration, as far as some consumer may not know it.
#[derive(Debug, Default)]
struct Order {
    /// The position of the first of `steps`; none before the first report.
    base: Option<u64>,
    steps: VecDeque<Step>,
    positions: BTreeMap<u32, Position>,
    /// The last rounds that have their place.
    remainder_rounds_through: u64,
}

impl Order {
    fn end(&self) -> u64 {
        span(&self.steps).saturating_add(self.base.unwrap_or(0))
    }

    /// Takes over the steps that a consumer knows.
    fn add_known(&mut self, known: &KnownOrder) {
        let mut at = known.position.saturating_sub(span(&known.recent));
        self.base.get_or_insert(at);
        let mut end = self.end();
        // A step without a round would never be known to all.
        for step in known.recent.iter().filter(|step| step.distance() > 0) {
            if at == end && self.steps.len() < MAX_RECENT {
                self.steps.push_back(*step);
                end = end.saturating_add(step.distance());
            }
            at = at.saturating_add(step.distance());
        }
        self.remainder_rounds_through = self.remainder_rounds_through.max(known.remainder_rounds_through);
    }

    /// Takes the report of a consumer. Steps that only consumers know come from them.
    fn report(&mut self, consumer: u32, client: ClientId, request: &v1::NextRoundsRequest) {
        self.add_known(&KnownOrder {
            position: request.position,
            recent: request.recent.iter().map(step_of_proto).collect(),
            remainder_rounds_through: request.remainder_rounds_through,
        });
        let position = self.positions.entry(consumer).or_default();
        if position.client == client && position.request_no >= request.request_no {
            // It was overtaken on its way.
            return;
        }
        *position = Position {
            client,
            request_no: request.request_no,
            at: request.position,
            waiting: request.waiting.iter().map(|w| (TaskId(w.task_id), w.elements)).collect(),
            ended: request.ended_tasks.iter().copied().map(TaskId).collect(),
        };
    }

    /// The positions of all consumers; none if some of them have not reported.
    fn all_positions(&self, view: &View) -> Option<Vec<&Position>> {
        let of = |(consumer, client): (&u32, &ClientId)| {
            self.positions.get(consumer).filter(|position| position.client == *client)
        };
        let all: Option<Vec<&Position>> = view.readers.iter().map(of).collect();
        all.filter(|all| !all.is_empty())
    }

    /// Gives places to the rounds that all consumers have received.
    fn advance(&mut self, view: &View) -> Advance {
        if let Some(known) = &view.left_with {
            self.add_known(known);
        }
        let Some(all) = self.all_positions(view) else { return Advance::default() };
        // A round needs an element of each consumer, so tasks that only some of them name have none.
        let has = |task: &TaskId| all.iter().all(|p| p.waiting.contains_key(task));
        let tasks = all.first().into_iter().flat_map(|p| p.waiting.keys()).copied().filter(has);
        let of = |task| (task, all.iter().map(|p| self.beyond(p, task)).min().unwrap_or(0));
        let placed = tasks.map(of).filter(|(_, rounds)| *rounds > 0);
        let mut steps: Vec<Step> = placed.map(|(task, rounds)| Step::Rounds { task, rounds }).collect();
        let has_all = |p: &&Position| view.tasks.iter().all(|task| p.ended.contains(task));
        if self.remainder_rounds_through < view.remainder_rounds && all.iter().all(has_all) {
            steps.push(Step::RemainderRounds { through: view.remainder_rounds });
        }
        let known_to_all = all.iter().map(|p| p.at).min().unwrap_or(0);
        if steps.iter().any(|step| matches!(step, Step::RemainderRounds { .. })) {
            self.remainder_rounds_through = view.remainder_rounds;
        }
        let is_news = !steps.is_empty();
        self.steps.extend(steps);
        self.forget(known_to_all);
        Advance { is_news, is_complete: true, known_to_all }
    }

    /// Elements of a task that a consumer has beyond the rounds that have their places.
    fn beyond(&self, position: &Position, task: TaskId) -> u64 {
        let mut at = self.base.unwrap_or(0);
        let mut placed = 0;
        for step in &self.steps {
            if let Step::Rounds { task: of, rounds } = step
                && *of == task
                && at >= position.at
            {
                placed = rounds.saturating_add(placed);
            }
            at = at.saturating_add(step.distance());
        }
        position.waiting.get(&task).copied().unwrap_or(0).saturating_sub(placed)
    }

    /// Forgets the steps before a position that every consumer has reached.
    fn forget(&mut self, known: u64) {
        while let (Some(base), Some(first)) = (self.base, self.steps.front())
            && base.saturating_add(first.distance()) <= known
        {
            self.base = Some(base.saturating_add(first.distance()));
            self.steps.pop_front();
        }
    }

    /// The steps behind a position. None if some of them are forgotten: the consumer has reported since then that it is further,
    /// and takes steps from the position that it asked for.
    fn behind(&self, position: u64) -> Option<Vec<Step>> {
        let mut at = self.base.unwrap_or(0);
        if position < at {
            return None;
        }
        let mut out = Vec::new();
        for step in &self.steps {
            if at >= position {
                out.push(*step);
            }
            at = at.saturating_add(step.distance());
        }
        Some(out)
    }
}

/// The order of one iteration, and who waits for it.
#[derive(Debug)]
struct Waiting {
    order: OrderedMutex<Order>,
    news: watch::Sender<()>,
}

impl Default for Waiting {
    fn default() -> Self {
        let order = OrderedMutex::new(locks::ROUND_ORDER, Order::default());
        Self { order, news: watch::Sender::default() }
    }
}

/// The orders of all iterations that are read in rounds.
pub(super) struct RoundOrders {
    by_iteration: OrderedMutex<HashMap<IterationId, Arc<Waiting>>>,
}

impl Default for RoundOrders {
    fn default() -> Self {
        Self { by_iteration: OrderedMutex::new(locks::ROUNDS, HashMap::new()) }
    }
}

impl RoundOrders {
    fn of(&self, id: IterationId) -> Arc<Waiting> {
        Arc::clone(self.by_iteration.lock().entry(id).or_default())
    }
}

impl IterationObserver for RoundOrders {
    /// What a consumer waits for may be there.
    fn changed(&self, id: IterationId, _is_running: bool) {
        if let Some(waiting) = self.by_iteration.lock().get(&id) {
            waiting.news.send_replace(());
        }
    }

    fn removed(&self, id: IterationId, _state: &State) {
        self.by_iteration.lock().remove(&id);
    }
}

/// The calls of consumers that read in rounds.
pub(crate) struct Rounds {
    pub(super) context: Arc<Context>,
    pub(super) orders: Arc<RoundOrders>,
}

impl Rounds {
    /// A consumer reports what it has received, and waits for the rounds that come next.
    pub(crate) async fn next_rounds(&self, request: v1::NextRoundsRequest) -> Result<v1::NextRoundsResponse> {
        let (client, id) = (ClientId(request.client_id), IterationId(request.iteration_id));
        if request.recent.len() > MAX_RECENT {
            return Err(too_many_steps(&client.to_string(), request.recent.len()));
        }
        let deadline = self.context.deadline(request.wait_ms);
        let known = |state: &State| -> Result<Option<View>> {
            let Some(iteration) = state.iterations.get(&id) else { return Ok(None) };
            let is_reader = secrets::is_client(iteration, client, &request.secret)?;
            Ok(View::of(iteration, client).filter(|_| is_reader))
        };
        let unknown = v1::NextRoundsResponse { unknown: true, ..Default::default() };
        let Some(view) = self.context.read_durable_except_leases(known).await?? else { return Ok(unknown) };
        let own = self.context.process.incarnation();
        if request.names_order && request.order != own {
            return Ok(v1::NextRoundsResponse { order: own, ..Default::default() });
        }
        let waiting = self.orders.of(id);
        waiting.order.lock().report(view.consumer, client, &request);
        let mut news = waiting.news.subscribe();
        loop {
            news.borrow_and_update();
            let Some(view) = self.context.store.read(known)? else { return Ok(unknown) };
            let (advance, steps) = {
                let mut order = waiting.order.lock();
                (order.advance(&view), order.behind(request.position))
            };
            let Advance { is_news, is_complete, known_to_all } = advance;
            // Before all consumers have come no round has a place.
            let is_complete = is_complete || view.readers.is_empty();
            // An answer without its steps settles nothing: the consumer asks again.
            let is_complete = is_complete && steps.is_some();
            if is_news {
                waiting.news.send_replace(());
            }
            let is_due = steps.as_ref().is_none_or(|steps| !steps.is_empty());
            if is_due || !self.context.wait(&mut news, deadline).await? {
                let steps = steps.into_iter().flatten().map(step_to_proto).collect();
                return Ok(v1::NextRoundsResponse {
                    steps,
                    known_to_all,
                    unknown: false,
                    order: own,
                    complete: is_complete,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
