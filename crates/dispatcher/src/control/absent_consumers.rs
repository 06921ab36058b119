//! Consumers that do not come, and how long the others of their epoch have waited for them.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::{Error, IterationId};

use crate::config::Timers;
use crate::state::{Failure, State, Update};

/// How long an epoch has waited for consumers.
#[derive(Debug, Clone, Default)]
pub(crate) struct AbsentConsumers {
    /// For each consumer that is absent: the time in which others were there.
    waited: BTreeMap<u32, Duration>,
    /// For how long there has been no reader.
    unread: Duration,
}

/// Epochs that have waited for a consumer for too long. `passed` is the time since the last check.
///
/// An epoch that is opened again because a consumer is gone goes on waiting for the others: each consumer has `consumer_wait`
/// for itself. The readers need a moment to come back to it. If there are none for the client timeout, the wait begins again with
/// the next ones.
pub(super) fn overdue(
    state: &State,
    iterations: &mut BTreeMap<IterationId, AbsentConsumers>,
    timers: &Timers,
    passed: Duration,
) -> Vec<Update> {
    let mut out = Vec::new();
    let mut all = BTreeMap::new();
    for iteration in state.iterations.values() {
        let Some(even) = iteration.even.as_ref().filter(|_| iteration.is_running()) else { continue };
        let reopened = iteration.resume.as_deref().filter(|r| !r.reopen_reason.is_empty());
        let known = |id| iterations.get(&id);
        let before =
            || reopened.into_iter().flat_map(|r| std::iter::once(&r.of).chain(r.behind.iter().rev()));
        let known = known(iteration.id).or_else(|| before().find_map(|id| known(*id)));
        let known = known.cloned().unwrap_or_default();
        let is_read = !iteration.members.is_empty();
        let unread = if is_read { Duration::ZERO } else { known.unread + passed };
        let passed = if is_read { passed } else { Duration::ZERO };
        let is_forgotten = unread > timers.client_timeout;
        let waited = |consumer: u32| match known.waited.get(&consumer) {
            Some(waited) if !is_forgotten => *waited + passed,
            _ => Duration::ZERO,
        };
        let waited: BTreeMap<u32, Duration> =
            iteration.absent_consumers().map(|consumer| (consumer, waited(consumer))).collect();
        let over = waited.iter().filter(|(_, waited)| **waited > timers.consumer_wait);
        let over: Vec<String> = over.map(|(consumer, _)| consumer.to_string()).collect();
        if is_read && !over.is_empty() {
            let reopen_reason = reopened.map_or("", |r| r.reopen_reason.as_str());
            let error = Error::deadline(format!(
                "{}: of {} consumers these have not come within {}: {}; start them, or raise the dispatcher's \
                 --consumer-wait{}{reopen_reason}",
                iteration.describe(),
                even.consumers.count,
                caju_types::format_duration(timers.consumer_wait),
                over.join(", "),
                if reopen_reason.is_empty() { "" } else { "; the epoch was waiting, because " }
            ));
            out.push(Update::IterationFailed { iteration: iteration.id, failure: Failure::from(&error) });
        }
        all.insert(iteration.id, AbsentConsumers { waited, unread });
    }
    *iterations = all;
    out
}
