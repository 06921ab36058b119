//! The end of a task: its report to the dispatcher, and then its end for its readers.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, ErrorKind, TaskId};
use caju_wire::{Dispatcher, IN_PROCESS};

use crate::manager::Manager;
use crate::running::{Finished, RunningTask};

impl Manager {
    pub(crate) async fn finish(&self, task: &RunningTask, mut finished: Finished) {
        finished.result = finished.result.map_err(|e| self.named(e));
        if let Some(first) = finished.first_skips.first() {
            let rows = finished.rows_skipped;
            tracing::warn!(task = %task.id, rows, first, "bad rows were skipped, as `on_error` says");
        }
        match &finished.result {
            Ok(()) => tracing::info!(task = %task.id, "task ended"),
            Err(e) if e.kind() == ErrorKind::Cancelled => {
                tracing::info!(task = %task.id, reason = %e, "task abandoned")
            }
            Err(e) => tracing::error!(task = %task.id, error = %e, "task failed"),
        }
        if let Err(e) = &finished.result {
            task.failing(e);
        }
        // The failure is reported to the dispatcher before readers get it: they ask the dispatcher what to do.
        let timeout = if finished.result.is_ok() {
            self.config.dispatcher_timeout
        } else {
            self.config.failure_report_timeout
        };
        self.report(task.id, &finished, task.profile(), timeout).await;
        if let Err(e) = &finished.result {
            task.fail(e.clone());
        }
        self.tasks.end(task.id, finished.result);
    }

    /// A failure with the worker's address appended to its first line. Cancelled work is not a failure of this worker. The address of
    /// a worker in the process of its dispatcher says nothing to a user.
    pub(crate) fn named(&self, e: Error) -> Error {
        if e.kind() == ErrorKind::Cancelled || self.identity.address.starts_with(IN_PROCESS) {
            return e;
        }
        let (line, rest) = e.message().split_at(e.message().find('\n').unwrap_or(e.message().len()));
        Error::new(e.kind(), format!("{line} (at the worker {}){rest}", self.identity.address))
    }

    pub(crate) async fn report(
        &self,
        id: TaskId,
        finished: &Finished,
        profile: Option<v1::TaskProfile>,
        timeout: Duration,
    ) {
        let registration = self.identity.registration();
        let request = v1::FinishTaskRequest {
            task_id: id.0,
            worker_id: registration.id.0,
            failure: finished.result.as_ref().err().map(Into::into),
            stages: finished.stages.clone(),
            io: Some(self.io_since()),
            rows_skipped: finished.rows_skipped,
            first_skips: finished.first_skips.clone(),
            modes: Some(v1::SplitModes {
                compute: finished.modes.compute,
                put: finished.modes.put,
                get: finished.modes.get,
                fell_back: finished.modes.fell_back,
                backfilled: finished.modes.backfilled,
            }),
            profile,
            secret: registration.secret,
            counted: finished.emitted.is_some(),
            splits_out: finished.emitted.clone().unwrap_or_default(),
            forgotten_rows: finished.forgotten_rows,
            flight_counted: true,
            splits_to_flight: finished.to_flight.clone(),
            served: finished.served,
            skipped_splits: finished.skipped_splits.clone(),
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.finish_task(request).await }
        };
        if let Err(e) = self.identity.link.retry(timeout, Duration::ZERO, call).await {
            tracing::warn!(task = %id, error = %e, "the end of a task could not be reported");
        }
    }

    /// Bytes and requests since the last report. Tasks run concurrently, so only their sum can be counted.
    fn io_since(&self) -> v1::IoStats {
        let (source, cache) = (self.config.io.snapshot(), self.caches.io());
        let now = v1::IoStats {
            source_bytes_read: source.bytes_read,
            source_requests: source.reads + source.lists,
            cache_bytes_read: cache.bytes_read,
            cache_bytes_written: cache.bytes_written,
        };
        let last = std::mem::replace(&mut *self.reported_io.lock(), now);
        v1::IoStats {
            source_bytes_read: now.source_bytes_read.saturating_sub(last.source_bytes_read),
            source_requests: now.source_requests.saturating_sub(last.source_requests),
            cache_bytes_read: now.cache_bytes_read.saturating_sub(last.cache_bytes_read),
            cache_bytes_written: now.cache_bytes_written.saturating_sub(last.cache_bytes_written),
        }
    }
}
