//! KEDA's external-scaler protocol: the number of workers that should run, for Kubernetes.
//!
//! KEDA starts the first worker when the scaler is active, and stops the last one when it is not. Above one worker the
//! horizontal pod autoscaler follows the metric: its target is 1 per worker, so the metric's value is the number of workers.
//!
//! In the first seconds after a start the number is not known. The metric is then an error, with which the autoscaler keeps the
//! workers that run.

use std::pin::Pin;
use std::sync::Arc;

use caju_proto::externalscaler::external_scaler_server::ExternalScaler;
use caju_proto::externalscaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use futures::Stream;
use futures::stream;
use tonic::{Request, Response, Status};

use crate::control::Core;

/// The name of the metric, the same as at the HTTP port.
pub(crate) const METRIC: &str = "caju_target_workers";

/// The service, over the control plane.
pub(crate) struct KedaScaler {
    core: Arc<Core>,
}

impl KedaScaler {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

#[tonic::async_trait]
impl ExternalScaler for KedaScaler {
    async fn is_active(&self, _: Request<ScaledObjectRef>) -> Result<Response<IsActiveResponse>, Status> {
        let result = self.core.scaling.needs_workers();
        Ok(Response::new(IsActiveResponse { result }))
    }

    type StreamIsActiveStream = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

    /// The present answer, and each one that differs from the one before.
    async fn stream_is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let (core, targets) = (Arc::clone(&self.core), self.core.scaling.scaling_target());
        let changes = stream::unfold((core, targets, None), |(core, mut targets, last)| async move {
            loop {
                targets.mark_unchanged();
                let result = core.scaling.needs_workers();
                if last != Some(result) {
                    return Some((Ok(IsActiveResponse { result }), (core, targets, Some(result))));
                }
                // The stream ends with the dispatcher.
                tokio::select! {
                    changed = targets.changed() => changed.ok()?,
                    () = core.context.tasks.stopped() => return None,
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }

    async fn get_metric_spec(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let name = request.into_inner().metric_name;
        // KEDA may put a prefix before the name that it was given.
        if !name.ends_with(METRIC) {
            return Err(Status::not_found(format!("no metric `{name}`; the only one is `{METRIC}`")));
        }
        let Some(target) = self.core.scaling.known_target() else {
            return Err(Status::unavailable(
                match self.core.context.config.timers.scaling_interval.is_zero() {
                    true => "no target of workers is computed: --scaling-interval is 0s",
                    false => "the target of workers is not known yet: the dispatcher has just started",
                },
            ));
        };
        let workers = target.workers;
        let value = MetricValue {
            metric_name: name,
            metric_value: i64::try_from(workers).unwrap_or(i64::MAX),
            metric_value_float: workers as f64,
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}
