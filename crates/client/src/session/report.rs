//! What a session reports to the dispatcher.

use caju_proto::v1;

use super::Session;
use crate::heartbeat::heartbeat_wait;

impl Session {
    /// The next heartbeat: how tasks ended, which rows the user took, and how fast it takes them.
    pub(super) fn report(&mut self) -> v1::ClientHeartbeatRequest {
        // Computed before the rows are taken, so that these include the rows of every settled task.
        let mut tasks = self.tasks.report();
        if self.shared.config.tracks_rows {
            self.draw();
        } else {
            drop(self.shared.acks.draw());
        }
        for lost in &mut tasks.lost {
            lost.sizes = self.taken.sizes_of(&lost.received);
        }
        self.took |= !self.taken.rows().is_empty();
        let takes = self.shared.facts.takes();
        let (acknowledged, acknowledged_all) = self.taken.report();
        let stats = self.shared.stats();
        let (rows_per_s, wait_fraction) = stats.rates();
        let (arrived, user_took) = self.shared.acks.progress();
        let user_busy = self.shared.recorder.user_busy(user_took, std::time::Instant::now());
        self.reports += 1;
        let wait = heartbeat_wait(self.poll, self.client.0, self.reports);
        v1::ClientHeartbeatRequest {
            client_id: self.client.0,
            iteration_id: self.iteration.0,
            seen_version: self.version,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            ended_tasks: tasks.ended,
            ended_counts: tasks.counts,
            lost_tasks: tasks.lost,
            rows_per_s,
            wait_fraction,
            secret: self.secret.clone(),
            acknowledged,
            acknowledged_all,
            sizes: self.taken.reported_sizes(),
            completed_seen: self.completed_seen,
            taken_tasks: tasks.taken,
            local_workers: self.shared.config.local.addresses(),
            knows_resumed: self.shared.facts.knows_resumed(),
            rows: stats.rows,
            bytes: stats.bytes,
            rows_waiting: arrived.saturating_sub(user_took),
            user_busy_ms: u64::try_from(user_busy.as_millis()).unwrap_or(u64::MAX),
            // Of consumers whole elements count, without padding: what they have to get is computed from it.
            elements: if self.is_consumer { self.taken.elements() } else { stats.elements },
            knows_tasks: true,
            known_readers: self.shared.facts.num_readers(),
            awaits_notices: !self.shared.announced.is_open() || takes && !self.shared.taking.is_open(),
            asks: self.shared.acks.has_asked(),
            takes,
            consumer_wait_ms: u64::try_from(stats.consumer_wait.as_millis()).unwrap_or(u64::MAX),
        }
    }
}
