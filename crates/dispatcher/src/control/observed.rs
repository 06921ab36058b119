//! What workers and clients report about themselves. It is not in the journal: after a restart everybody
//! counts as heard of just now.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_proto::v1::{IoStats, StageStats};
use caju_types::{ClientId, IterationId, WorkerId};

use super::accounts::Acknowledged;

/// Skipped rows of an iteration that are reported one by one; the others are only counted.
const REPORTED_SKIPS: usize = 100;
/// Characters of such a report that are kept.
const REPORTED_CHARS: usize = 500;

/// The last reports.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) workers: BTreeMap<WorkerId, WorkerReport>,
    pub(crate) clients: BTreeMap<(IterationId, ClientId), ClientReport>,
    /// What the users of present clients took.
    pub(crate) acknowledged: BTreeMap<(IterationId, ClientId), Acknowledged>,
    /// Since when an iteration has no reader.
    pub(crate) idle: BTreeMap<IterationId, Duration>,
    /// Since when a running iteration has no worker.
    pub(crate) starved: BTreeMap<IterationId, Duration>,
    /// What ended tasks reported, by iteration.
    pub(crate) ended_stages: BTreeMap<IterationId, Vec<StageStats>>,
    /// What ended tasks moved to and from stores, by iteration.
    pub(crate) ended_io: BTreeMap<IterationId, IoStats>,
    /// Why ended tasks skipped rows, by iteration; the first [`REPORTED_SKIPS`] of each.
    pub(crate) first_skips: BTreeMap<IterationId, Vec<String>>,
    /// The time of the last look.
    pub(crate) last_check: Option<Duration>,
}

/// What a worker last said.
#[derive(Debug, Default, Clone)]
pub(crate) struct WorkerReport {
    /// When, by the monotonic clock.
    pub(crate) at: Duration,
    /// What its stages did in the tasks that run there.
    pub(crate) stages: Vec<StageStats>,
    /// Those tasks.
    pub(crate) tasks: Vec<u64>,
    /// When it registered, by the monotonic clock.
    pub(crate) registered: Duration,
}

/// What a client last said.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ClientReport {
    /// When, by the monotonic clock.
    pub(crate) at: Duration,
    /// The share of time that its user waited for rows.
    pub(crate) wait_fraction: f64,
    /// Rows that it takes per second.
    pub(crate) rows_per_s: f64,
}

impl Observed {
    pub(crate) fn hear_worker(&mut self, worker: WorkerId, now: Duration) {
        self.workers.entry(worker).or_default().at = now;
    }

    pub(crate) fn worker_registered(&mut self, worker: WorkerId, now: Duration) {
        let report = self.workers.entry(worker).or_default();
        (report.at, report.registered) = (now, now);
    }

    pub(crate) fn hear_client(&mut self, iteration: IterationId, client: ClientId, now: Duration) {
        self.clients.entry((iteration, client)).or_default().at = now;
    }

    /// Adds what an ended task reported.
    pub(crate) fn end_task(&mut self, iteration: IterationId, stages: &[StageStats], io: Option<IoStats>) {
        caju_proto::add_stages(self.ended_stages.entry(iteration).or_default(), stages);
        let (sum, io) = (self.ended_io.entry(iteration).or_default(), io.unwrap_or_default());
        sum.source_bytes_read += io.source_bytes_read;
        sum.cache_bytes_read += io.cache_bytes_read;
        sum.cache_bytes_written += io.cache_bytes_written;
        sum.source_requests += io.source_requests;
    }

    /// Keeps where the first skipped rows of an iteration are.
    pub(crate) fn skipped(&mut self, iteration: IterationId, first: &[String]) {
        if first.is_empty() {
            return;
        }
        let kept = self.first_skips.entry(iteration).or_default();
        let left = REPORTED_SKIPS.saturating_sub(kept.len());
        kept.extend(first.iter().take(left).map(|row| row.chars().take(REPORTED_CHARS).collect()));
    }

    /// Pretends that everybody was heard of as much later: the dispatcher itself stood still.
    pub(crate) fn forgive(&mut self, gap: Duration) {
        self.workers.values_mut().for_each(|w| w.at += gap);
        self.clients.values_mut().for_each(|c| c.at += gap);
    }

    /// Drops what belongs to a dropped iteration.
    pub(crate) fn forget(&mut self, iteration: IterationId) {
        self.clients.retain(|(i, _), _| *i != iteration);
        self.acknowledged.retain(|(i, _), _| *i != iteration);
        self.idle.remove(&iteration);
        self.starved.remove(&iteration);
        self.ended_stages.remove(&iteration);
        self.ended_io.remove(&iteration);
        self.first_skips.remove(&iteration);
    }
}
