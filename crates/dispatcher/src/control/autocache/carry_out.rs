//! From actions of a decision to updates of the state.

use caju_autocache::{Action, CachePlan, Decided, Document, NoteLevel};
use caju_types::{IterationId, JobName};

use crate::control::Txn;
use crate::state::Update;

/// The log target of changed decisions: a run in one process leaves them out.
const CHANGES: &str = "caju_dispatcher::control::replanning";

/// Makes actions updates of a step, and writes what they say to the log.
pub(super) fn carry_out(txn: &mut Txn<'_>, job: &JobName, actions: &[Action]) {
    for action in actions {
        match action {
            Action::Decide { decided, reason } => {
                tracing::info!(%job, "{reason}");
                decide(txn, job, decided);
            }
            Action::ChangeDecision { from, decided } => {
                if let Some(decision) = decided.decision.value() {
                    tracing::warn!(target: CHANGES, %job, %from, to = %decision.choice, "{}", decision.reason);
                }
                txn.apply(decided_update(job, decided));
            }
            Action::SaveReplanState { state } => {
                txn.apply(Update::ReplanStateChanged { job: job.clone(), replan: state.clone() });
            }
            Action::Note { level: NoteLevel::Warning, text } => tracing::warn!(%job, "{text}"),
            Action::Note { level: NoteLevel::Debug, text } => tracing::debug!(%job, "{text}"),
            // The call that opened the iteration does that.
            Action::CheckStorage { .. } => {}
        }
    }
}

/// Makes a decision the job's, and that of its running epochs.
fn decide(txn: &mut Txn<'_>, job: &JobName, decided: &Decided) {
    txn.apply(decided_update(job, decided));
    // An epoch that uses no hints, such as one of shards that are cut by rows, computes everything.
    let running = txn.state.iterations.values().filter(|i| i.job == *job && i.is_running() && i.caching);
    let running: Vec<IterationId> = running.map(|i| i.id).collect();
    // A set covers every split of an epoch: a running epoch cannot store one any more.
    let is_set = |plan: &Document<CachePlan>| plan.value().is_some_and(|p| p.set.is_some());
    let plan = decided.plan.clone().filter(|plan| !is_set(plan));
    // Beyond epoch 0 a decision changes what random stages above its hint draw. An epoch that runs keeps its draws: states name
    // its rows by their numbers.
    let draws_as_now = |id: &IterationId| {
        let Some(iteration) = txn.state.iterations.get(id) else { return false };
        let Some(dataset) = txn.state.datasets.get(&iteration.dataset) else { return true };
        iteration.draws(dataset) == iteration.draws_under(plan.as_ref(), dataset)
    };
    let running: Vec<IterationId> = running.into_iter().filter(draws_as_now).collect();
    for iteration in running {
        txn.apply(Update::Planned { iteration, plan: plan.clone() });
    }
}

fn decided_update(job: &JobName, decided: &Decided) -> Update {
    let Decided { plan, decision, profile } = decided.clone();
    Update::Decided { job: job.clone(), plan, decision, profile }
}
