//! The standard health service of gRPC.

use std::pin::Pin;

use tonic::codegen::tokio_stream::{Stream, StreamExt as _, once, pending};
use tonic::{Request, Response, Status};

use crate::grpc_health::health_check_response::ServingStatus;
use crate::grpc_health::health_server::{Health, HealthServer};
use crate::grpc_health::{HealthCheckRequest, HealthCheckResponse};

/// Answers that the server serves: a process that answers does. A server that drains does, too: it serves what runs.
#[derive(Debug, Default, Clone, Copy)]
pub struct Serving {
    _private: (),
}

/// The health service of a server, to be added next to its own services. It knows the whole server, by the empty name.
pub fn health_service() -> HealthServer<Serving> {
    HealthServer::new(Serving::default())
}

fn status_of(request: &Request<HealthCheckRequest>) -> ServingStatus {
    if request.get_ref().service.is_empty() { ServingStatus::Serving } else { ServingStatus::ServiceUnknown }
}

#[tonic::async_trait]
impl Health for Serving {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match status_of(&request) {
            ServingStatus::Serving => {
                Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
            }
            _ => Err(Status::not_found(format!(
                "no service `{}` is checked by itself; ask for the empty name, the whole server",
                request.get_ref().service.escape_debug()
            ))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// One answer, which never changes; the stream ends with the server.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let answer = HealthCheckResponse { status: status_of(&request).into() };
        Ok(Response::new(Box::pin(once(Ok(answer)).chain(pending()))))
    }
}
