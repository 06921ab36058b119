//! What workers and clients have reported, and what follows from it at this moment.

use std::sync::Arc;
use std::time::Duration;

use caju_proto::v1;
use caju_runtime::{Clock, OrderedGuard, OrderedMutex};
use caju_types::{ClientId, IterationId, TaskId, WorkerId};

use super::acknowledgements;
use super::reports::Reports;
use crate::config::Timers;
use crate::locks;
use crate::state::{Iteration, READERS_NOTIFIED, State};

/// The reports, with the clock and the timers by which they age.
pub(super) struct PeerReports {
    reports: OrderedMutex<Reports>,
    clock: Arc<dyn Clock>,
    pub(super) timers: Timers,
}

impl PeerReports {
    pub(super) fn new(clock: Arc<dyn Clock>, timers: Timers) -> Self {
        Self { reports: OrderedMutex::new(locks::REPORTS, Reports::default()), clock, timers }
    }

    pub(super) fn lock(&self) -> OrderedGuard<'_, Reports> {
        self.reports.lock()
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether a client that waits is answered now. This is asked at every change of the iteration, for every client.
    pub(super) fn has_news(
        &self,
        state: &State,
        client: ClientId,
        id: IterationId,
        request: &v1::ClientHeartbeatRequest,
    ) -> bool {
        match state.iterations.get(&id).filter(|i| i.members.contains_key(&client)) {
            None => true,
            Some(iteration) => {
                let reports = self.lock();
                iteration.version > request.seen_version
                    || request.awaits_notices && self.unnotified(&reports, iteration, client) == 0
                    || self.may_leave(&reports, iteration, client)
            }
        }
    }

    /// Whether a reader waits at its end for others whose users take rows.
    pub(super) fn others_take(&self, reports: &Reports, iteration: &Iteration, client: ClientId) -> bool {
        let (now, bound) = (self.clock.now(), self.timers.reader_wait);
        let takes = |c: &ClientId| now.saturating_sub(reports.took_at(iteration.id, *c)) <= bound;
        acknowledgements::is_at_end(reports, iteration, client)
            && iteration
                .own_members()
                .filter(|c| *c != client)
                .any(|c| takes(&c) && !acknowledgements::is_at_end(reports, iteration, c))
    }

    /// Whether nothing that is left of an iteration waits for a client at its end.
    pub(super) fn may_leave(&self, reports: &Reports, iteration: &Iteration, client: ClientId) -> bool {
        acknowledgements::may_leave(reports, iteration, client, self.timers.reader_wait)
    }

    /// How many of the other readers have not been notified that one has come, and that its user gets elements. Those that have been
    /// silent do not count.
    pub(super) fn unnotified(&self, reports: &Reports, iteration: &Iteration, client: ClientId) -> u64 {
        let Some(own) = iteration.members.get(&client) else { return 0 };
        if iteration.members.len() > READERS_NOTIFIED {
            return 0;
        }
        let bound = self.timers.silence();
        let (now, news) = (self.clock.now(), own.since.max(own.takes_since));
        let is_notified = |other: &ClientId| {
            reports
                .clients
                .get(&(iteration.id, *other))
                .is_some_and(|r| r.seen_version >= news || now.saturating_sub(r.at) > bound)
        };
        let others = iteration.members.iter().filter(|(other, m)| **other != client && m.flight.is_none());
        // Those that came later were notified when they came.
        others.filter(|(other, m)| m.since < news && !is_notified(other)).count() as u64
    }

    /// Whether a client has called within the last heartbeats. One that is not known yet counts as one that has: this dispatcher has
    /// just started, and the client may be about to call.
    pub(super) fn called_recently(&self, id: IterationId, client: ClientId) -> bool {
        let since = self.lock().clients.get(&(id, client)).map(|known| known.at);
        let bound = self.timers.silence();
        since.is_none_or(|at| self.clock.now().saturating_sub(at) <= bound)
    }

    /// Enters the figures of a client.
    pub(super) fn record_figures(
        &self,
        client: ClientId,
        id: IterationId,
        request: &v1::ClientHeartbeatRequest,
    ) {
        let mut reports = self.lock();
        let now = self.clock.now();
        if let Some(known) = reports.clients.get_mut(&(id, client)) {
            known.at = now;
            known.wait_fraction = request.wait_fraction;
            known.rows_per_s = request.rows_per_s;
            known.elements = request.elements;
            known.rows = request.rows;
            known.bytes = request.bytes;
            known.rows_waiting = request.rows_waiting;
            known.consumer_wait = Duration::from_millis(request.consumer_wait_ms);
            known.user_busy = Duration::from_millis(request.user_busy_ms);
        }
    }

    /// Notes the checksums that a worker reports of its tasks.
    pub(super) fn on_row_checksums(&self, state: &State, worker: WorkerId, checksums: &[v1::RowChecksum]) {
        if checksums.is_empty() {
            return;
        }
        let mut reports = self.lock();
        for checksum in checksums {
            let Some((iteration, task)) = state.task(TaskId(checksum.task_id)) else { continue };
            if task.worker == worker && task.leases.contains_key(&checksum.split_index) {
                reports.row_checksums.entry(iteration.id).or_default().add(checksum);
            }
        }
    }
}
