//! The gRPC surface: requests in, answers or statuses out. What they mean is in `control`.

use std::future::Future;
use std::sync::Arc;

use caju_proto::v1::dispatcher_server::Dispatcher;
use caju_proto::{put_version, to_status, v1};
use caju_types::{DatasetId, IterationId, Result};
use tonic::{Request, Response, Status};

use crate::control::Core;

/// The service, over the control plane.
pub(crate) struct DispatcherService {
    core: Arc<Core>,
}

impl DispatcherService {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

async fn respond<T>(answer: impl Future<Output = Result<T>>) -> Result<Response<T>, Status> {
    let mut response = answer.await.map(Response::new).map_err(|e| to_status(&e))?;
    put_version(response.metadata_mut());
    Ok(response)
}

#[tonic::async_trait]
impl Dispatcher for DispatcherService {
    async fn register_worker(
        &self,
        request: Request<v1::RegisterWorkerRequest>,
    ) -> Result<Response<v1::RegisterWorkerResponse>, Status> {
        respond(self.core.workers.register_worker(request.into_inner())).await
    }

    async fn worker_heartbeat(
        &self,
        request: Request<v1::WorkerHeartbeatRequest>,
    ) -> Result<Response<v1::WorkerHeartbeatResponse>, Status> {
        respond(self.core.workers.worker_heartbeat(request.into_inner())).await
    }

    async fn get_task(
        &self,
        request: Request<v1::GetTaskRequest>,
    ) -> Result<Response<v1::GetTaskResponse>, Status> {
        respond(self.core.workers.get_task(request.into_inner())).await
    }

    async fn next_splits(
        &self,
        request: Request<v1::NextSplitsRequest>,
    ) -> Result<Response<v1::NextSplitsResponse>, Status> {
        respond(self.core.splits.next_splits(request.into_inner())).await
    }

    async fn serve_behind(
        &self,
        request: Request<v1::ServeLaggingRequest>,
    ) -> Result<Response<v1::ServeLaggingResponse>, Status> {
        respond(self.core.consumers.serve_lagging(request.into_inner())).await
    }

    async fn deal_tail(
        &self,
        request: Request<v1::AssignRemainderRequest>,
    ) -> Result<Response<v1::AssignRemainderResponse>, Status> {
        respond(self.core.consumers.assign_remainder(request.into_inner())).await
    }

    async fn next_rounds(
        &self,
        request: Request<v1::NextRoundsRequest>,
    ) -> Result<Response<v1::NextRoundsResponse>, Status> {
        respond(self.core.rounds.next_rounds(request.into_inner())).await
    }

    async fn finish_task(
        &self,
        request: Request<v1::FinishTaskRequest>,
    ) -> Result<Response<v1::FinishTaskResponse>, Status> {
        respond(self.core.workers.finish_task(request.into_inner())).await
    }

    async fn report_boundaries(
        &self,
        request: Request<v1::ReportBoundariesRequest>,
    ) -> Result<Response<v1::ReportBoundariesResponse>, Status> {
        respond(self.core.learning.report_boundaries(request.into_inner())).await
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        respond(self.core.workers.drain_worker(request.into_inner())).await
    }

    async fn register_dataset(
        &self,
        request: Request<v1::RegisterDatasetRequest>,
    ) -> Result<Response<v1::RegisterDatasetResponse>, Status> {
        respond(self.core.datasets.register_dataset(request.into_inner())).await
    }

    async fn get_dataset(
        &self,
        request: Request<v1::GetDatasetRequest>,
    ) -> Result<Response<v1::GetDatasetResponse>, Status> {
        respond(self.core.datasets.registered_dataset(&DatasetId(request.into_inner().dataset_id))).await
    }

    async fn open_iteration(
        &self,
        request: Request<v1::OpenIterationRequest>,
    ) -> Result<Response<v1::OpenIterationResponse>, Status> {
        respond(self.core.epochs.open_iteration(request.into_inner())).await
    }

    async fn client_heartbeat(
        &self,
        request: Request<v1::ClientHeartbeatRequest>,
    ) -> Result<Response<v1::ClientHeartbeatResponse>, Status> {
        respond(self.core.clients.client_heartbeat(request.into_inner())).await
    }

    async fn close_client(
        &self,
        request: Request<v1::CloseClientRequest>,
    ) -> Result<Response<v1::CloseClientResponse>, Status> {
        respond(self.core.clients.close_client(request.into_inner())).await
    }

    async fn start_save(
        &self,
        request: Request<v1::StartSaveRequest>,
    ) -> Result<Response<v1::SaveStatus>, Status> {
        respond(self.core.saves.start_save(request.into_inner())).await
    }

    async fn get_save(
        &self,
        request: Request<v1::GetSaveRequest>,
    ) -> Result<Response<v1::SaveStatus>, Status> {
        respond(self.core.saves.get_save(request.into_inner())).await
    }

    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        match request.into_inner().iteration_id {
            0 => respond(self.core.status.get_status()).await,
            id => respond(self.core.status.get_epoch_status(IterationId(id))).await,
        }
    }
}
