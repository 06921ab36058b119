//! Serving any Arrow Flight client: one record batch on the wire per element.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_schema::SchemaRef;
use caju_proto::{Bytes, mode_from_name, read_flight_ticket, to_status, v1};
use caju_types::{ClientId, Error, Result, TaskId, WorkerId};
use caju_wire::{ElementCursor, OpenTimeouts, Run, check_task_columns, schema_from_ipc};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use serde_json::Value;
use tonic::{Request, Response, Status, Streaming};

use crate::attachment::Attachment;
use crate::manager::{Credentials, Found, Manager};
use crate::running::Finished;

/// Opens the epoch of a stream, and the task of it that runs here.
async fn open(manager: &Arc<Manager>, request: v1::OpenIterationRequest) -> Result<(SchemaRef, Found)> {
    let me = request.flight_worker_id;
    let config = &manager.config;
    let within = OpenTimeouts {
        dispatcher: config.connect_timeout,
        open: config.flight_open_timeout,
        worker: config.flight_open_timeout,
        learning: config.flight_stall_timeout,
    };
    let opened = manager.identity.link.open_iteration(&request, &within).await?;
    // No split is left for this worker if there is none.
    let task = opened.tasks.iter().find(|t| t.worker_id == me && !t.ended && !t.lost);
    let open = async {
        let schema = schema_from_ipc(&opened.schema_ipc)?
            .ok_or_else(|| Error::internal("the dispatcher sent no schema of the rows"))?;
        let Some(task) = task else { return Ok((schema, Found::Over)) };
        let reader = Credentials { client: ClientId(opened.client_id), ticket: &task.ticket, consumer: None };
        let found = manager.open(TaskId(task.task_id), &reader).await?;
        let found = with_columns_of(&schema, found, &manager.identity.address)?;
        Ok((schema, found))
    };
    let result: Result<_> = open.await;
    if let (Err(error), Some(task)) = (&result, task.map(|t| TaskId(t.task_id)))
        && !manager.tasks.is_present(task)
    {
        // The dispatcher would wait for the end of a task that has not begun.
        let error = Error::cancelled(format!("{task} could not begin: {}", error.message()));
        let timeout = manager.config.failure_report_timeout;
        manager.report(task, &Finished::before_it_began(error), None, timeout).await;
    }
    result
}

/// The task, if it sends the columns of its epoch. Otherwise it ends, because no other reader can continue a Flight stream.
fn with_columns_of(epoch: &SchemaRef, found: Found, address: &str) -> Result<Found> {
    let attachment = match found {
        Found::Running(attachment) => attachment,
        Found::Over => return Ok(Found::Over),
    };
    let worker = format!("worker {address} ({})", attachment.task.id);
    let checked = check_task_columns(epoch, &attachment.task.schema, (&attachment.task.job, &worker));
    match checked {
        Ok(()) => Ok(Found::Running(attachment)),
        Err(e) => {
            drop(attachment.only());
            Err(e)
        }
    }
}

/// The Flight service, over the tasks of this worker.
pub(crate) struct FlightOnWorker {
    manager: Arc<Manager>,
}

impl FlightOnWorker {
    pub(crate) fn new(manager: Arc<Manager>) -> Self {
        Self { manager }
    }

    async fn get(&self, ticket: &Ticket) -> Result<BoxStream<'static, Result<FlightData, Status>>> {
        let request = self.request(ticket)?;
        let manager = Arc::clone(&self.manager);
        // It runs on if the client ends its call: once the dispatcher has a reader for it, the reader has to leave in order.
        let opening =
            self.manager.group.spawn_graceful("the opening of an Arrow Flight stream", async move {
                open(&manager, request).await
            });
        let (schema, found) = opening.await??;
        Ok(encode(schema, elements(found)))
    }

    /// The dispatcher's side of a ticket.
    fn request(&self, ticket: &Ticket) -> Result<v1::OpenIterationRequest> {
        let bad = |why: &str| {
            Error::invalid(format!(
                "the ticket {why}; tickets come from the dispatcher's GetFlightInfo and are used as they are"
            ))
        };
        let registration = self.manager.identity.registration();
        let command = read_flight_ticket(&registration.secret, &ticket.ticket)?;
        let value: Value = serde_json::from_str(command).map_err(|_| bad("is not JSON"))?;
        let worker = value.get("worker").and_then(Value::as_u64).ok_or_else(|| bad("names no worker"))?;
        let me = registration.id;
        if worker != me.0 {
            return Err(Error::unavailable(format!(
                "the ticket is for {}, and this is {me}; ask the dispatcher for the flight's info again",
                WorkerId(worker)
            )));
        }
        let (dataset_id, definition_json) = match value.get("pipeline") {
            Some(Value::String(id)) => (id.clone(), String::new()),
            Some(definition @ Value::Object(_)) => (String::new(), definition.to_string()),
            _ => return Err(bad("names no pipeline")),
        };
        let mode = value.get("mode").and_then(Value::as_str).and_then(mode_from_name);
        let mode = mode.unwrap_or(v1::ProcessingMode::Unspecified);
        let seed = value.get("seed").and_then(Value::as_u64);
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        Ok(v1::OpenIterationRequest {
            dataset_id,
            definition_json,
            job: value.get("job").and_then(Value::as_str).unwrap_or_default().to_string(),
            epoch: value.get("epoch").and_then(Value::as_u64).unwrap_or(0),
            seed: seed.unwrap_or(0),
            has_seed: seed.is_some(),
            mode: mode.into(),
            has_full_job: false,
            flight: true,
            flight_worker_id: me.0,
            client_id: 0,
            policy: text("policy"),
            encoding: text("encoding"),
            epochs: value.get("epochs").and_then(Value::as_u64).unwrap_or(0),
            profile_only: false,
            save_url: String::new(),
            save_chunk_bytes: 0,
            lost_readers: String::new(),
            client_secret: Bytes::new(),
            worker_secret: registration.secret,
            target_workers: 0,
            local_workers: Vec::new(),
            states: Vec::new(),
            num_states: 0,
            states_of_all: false,
            restored_beginning: false,
            after_iteration: 0,
            num_consumers: 0,
            consumer_index: 0,
            uneven: String::new(),
            sharing: String::new(),
            trainer_id: String::new(),
            balance: String::new(),
            priority: None,
            weight: None,
            reattached_client: 0,
            announces_asking: false,
            attempt: None,
            request_id: Bytes::new(),
            boundaries_wait_ms: 0,
        })
    }
}

/// A stream of record batches, one per element.
fn elements(found: Found) -> BoxStream<'static, Result<RecordBatch>> {
    let Found::Running(attachment) = found else { return stream::empty().boxed() };
    // No other reader can continue a Flight stream, because it is not known which rows were received.
    let start = (attachment.only(), None::<(ElementCursor, Vec<Run>)>);
    stream::try_unfold(
        start,
        |(mut attachment, mut sending): (Attachment, Option<(ElementCursor, Vec<Run>)>)| async move {
            loop {
                if let Some((cursor, _)) = &mut sending
                    && let Some(batch) = cursor.next()?
                {
                    return Ok(Some((batch, (attachment, sending))));
                }
                // A Flight reader acknowledges nothing: rows count as delivered when they are written.
                if let Some((_, runs)) = sending.take() {
                    attachment.task.sent_to_flight(&runs);
                }
                match attachment.next().await? {
                    Some(chunk) => {
                        let runs = chunk.runs.clone();
                        match attachment.task.last_batch.delivered(chunk)? {
                            Some(chunk) => sending = Some((ElementCursor::new(chunk), runs)),
                            None => attachment.task.sent_to_flight(&runs),
                        }
                    }
                    None => {
                        attachment.received();
                        return Ok(None);
                    }
                }
            }
        },
    )
    .boxed()
}

/// The schema, then a message per element, whatever its size.
fn encode(
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<FlightData, Status>> {
    let batches = batches.map_err(|e| FlightError::Tonic(Box::new(to_status(&e))));
    FlightDataEncoderBuilder::new()
        .with_schema(schema)
        .with_max_flight_data_size(usize::MAX)
        .build(batches)
        .map_err(|e| match e {
            FlightError::Tonic(status) => *status,
            other => to_status(&Error::internal(format!("an element cannot be written: {other}"))),
        })
        .boxed()
}

fn not_here(call: &str) -> Status {
    to_status(&Error::unimplemented(format!(
        "a worker does not serve {call}: ask the dispatcher for GetFlightInfo, then DoGet each endpoint here"
    )))
}

#[tonic::async_trait]
impl FlightService for FlightOnWorker {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let rows = self.get(&request.into_inner()).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(rows.boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(not_here("Handshake"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Ok(Response::new(stream::empty().boxed()))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        Err(not_here("GetFlightInfo"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(not_here("PollFlightInfo"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(not_here("GetSchema"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        Err(not_here("DoPut"))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(not_here("DoExchange"))
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        Err(not_here("DoAction"))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::empty().boxed()))
    }
}
