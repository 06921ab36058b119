//! Learns the boundaries of `bucket_by_length` that the dispatcher asks for, and reports them.

use std::sync::Arc;
use std::time::Duration;

use caju_engine::TaskOptions;
use caju_pipeline::LearntBoundaries;
use caju_proto::v1;
use caju_runtime::caught;
use caju_types::{Error, Result};
use caju_wire::Dispatcher;

use crate::manager::Manager;

/// The job of this work in the pool of CPU threads.
const JOB: &str = "learning boundaries";

impl Manager {
    /// The datasets whose boundaries are being learnt here, as the dispatcher names them.
    pub(crate) fn learning(&self) -> Vec<String> {
        self.learning.lock().iter().cloned().collect()
    }

    /// Learns boundaries in the background, unless that is under way. The dispatcher hears of the end in any case: a worker
    /// that cannot report is lost for it.
    pub(crate) fn learn(self: &Arc<Self>, order: v1::BoundariesToLearn) {
        let dataset = order.dataset.clone();
        if !self.learning.lock().insert(dataset.clone()) {
            return;
        }
        tracing::info!(dataset, "learning the boundaries of a dataset");
        let manager = Arc::clone(self);
        let on_failure = |error: Error| tracing::warn!(%error, "boundaries were learnt, and not reported");
        self.group.background(JOB, on_failure, async move {
            let learnt = caught(JOB, manager.learnt(&order)).await.flatten();
            let reported = manager.report_boundaries(&dataset, learnt.map_err(|e| manager.named(e))).await;
            manager.learning.lock().remove(&dataset);
            reported
        });
    }

    async fn learnt(&self, order: &v1::BoundariesToLearn) -> Result<Vec<LearntBoundaries>> {
        let mut options = TaskOptions::new(self.pool.of_job(JOB), Arc::clone(&self.config.clock));
        options.one_at_a_time = Arc::clone(&self.one_at_a_time);
        options.slowdown = self.config.slowdown.max(1);
        self.tuning.set(&mut options);
        self.pipelines.learn(order, &options).await
    }

    async fn report_boundaries(&self, dataset: &str, learnt: Result<Vec<LearntBoundaries>>) -> Result<()> {
        let (stages, failure) = match learnt {
            Ok(stages) => (stages.into_iter().map(to_proto).collect::<Result<_>>()?, None),
            Err(e) => (Vec::new(), Some(v1::Failure::from(&e))),
        };
        let call = |mut d: Dispatcher| {
            let registration = self.identity.registration();
            let request = v1::ReportBoundariesRequest {
                worker_id: registration.id.0,
                secret: registration.secret,
                dataset: dataset.to_owned(),
                stages: Clone::clone(&stages),
                failure: failure.clone(),
            };
            async move { d.report_boundaries(request).await }
        };
        self.identity.link.retry(self.config.dispatcher_timeout, Duration::ZERO, call).await.map(|_| ())
    }
}

fn to_proto(learnt: LearntBoundaries) -> Result<v1::LearntBoundaries> {
    let stage = u32::try_from(learnt.stage).map_err(|_| Error::internal("a stage's index is too large"))?;
    Ok(v1::LearntBoundaries { stage, boundaries: learnt.boundaries, rows: learnt.rows })
}
