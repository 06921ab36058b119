//! Arrow Flight on the dispatcher: where to read, never the rows themselves.
//!
//! `GetFlightInfo` has no side effect: it binds the definition for its schema and answers one endpoint per
//! active worker. The ticket says everything that the worker's `DoGet` needs to open the iteration, and is signed with the
//! worker's secret.

use std::sync::Arc;

use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_schema::SchemaRef;
use caju_proto::{mode_from_name, mode_names, sign_flight_ticket, to_status};
use caju_types::{DatasetId, Error, Result, Secret, WorkerId, did_you_mean, shortened};
use futures::stream::BoxStream;
use serde_json::{Map, Value, json};
use tonic::{Request, Response, Status, Streaming};

use crate::control::Core;
use crate::definition::Definition;

/// The keys of a command, and of a ticket less `worker`.
const KEYS: [&str; 5] = ["pipeline", "job", "epoch", "seed", "mode"];

/// Bytes of a ticket's message besides the ticket.
const TICKET_FRAME: usize = 16;

/// The Flight service, over the control plane.
pub(crate) struct FlightOnDispatcher {
    core: Arc<Core>,
}

impl FlightOnDispatcher {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    async fn info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo> {
        let read = {
            let descriptor = descriptor.clone();
            move || parse_command(&descriptor).map(|command| (Wanted::of(&command), command))
        };
        let bytes = descriptor.cmd.len();
        let (wanted, mut command) = self.core.datasets.read_apart(bytes, read).await?;
        self.core
            .context
            .config
            .memory
            .check_name("a job's name", text(&command, "job").unwrap_or_default())?;
        let schema = self.schema(wanted).await?;
        if text(&command, "job").is_none() {
            // One name for all endpoints of this answer: together they are one epoch.
            command.insert("job".to_string(), json!(self.core.context.unique_name("flight-")));
        }
        let workers = self.core.workers.active_workers().await?;
        if workers.is_empty() {
            return Err(Error::unavailable(
                "no worker is registered: start one with `caju worker --dispatcher ADDRESS`",
            ));
        }
        // Each ticket holds the definition, and the answer has a ticket for each worker.
        let limits = &self.core.context.config.connections;
        let most = limits.flight_message_bytes().saturating_sub(TICKET_FRAME);
        let most_together = limits.message_bytes;
        let tickets = move || {
            let mut together = 0;
            let count = workers.len();
            let endpoint = |(worker, address, secret): &(WorkerId, String, Secret)| {
                command.insert("worker".to_string(), json!(worker.0));
                let ticket = sign_flight_ticket(secret, &json_text(&command)?);
                together += ticket.len();
                let what = match ticket.len() > most {
                    true => format!("a ticket of Arrow Flight (over {most} bytes)"),
                    false if together > most_together => {
                        format!("the tickets of {count} workers (over {most_together} bytes together)")
                    }
                    false => String::new(),
                };
                if !what.is_empty() {
                    return Err(Error::invalid(format!(
                        "the definition is too large for {what}; register it, and name the dataset in the command"
                    )));
                }
                Ok(FlightEndpoint::new()
                    .with_ticket(Ticket::new(ticket))
                    .with_location(format!("grpc+tcp://{address}")))
            };
            workers.iter().map(endpoint).collect::<Result<Vec<_>>>()
        };
        let endpoints = self.core.datasets.read_apart(bytes, tickets).await?;
        let info = FlightInfo::new()
            .try_with_schema(&schema)
            .map_err(|e| Error::internal(format!("the schema cannot be written: {e}")))?
            .with_endpoints(endpoints)
            .with_descriptor(descriptor);
        Ok(info.with_total_records(-1).with_total_bytes(-1))
    }

    async fn schema(&self, wanted: Wanted) -> Result<SchemaRef> {
        match wanted {
            Wanted::Dataset(id) => self.core.datasets.dataset_schema(&id).await,
            Wanted::Definition(definition) => self.core.datasets.definition_schema(&definition).await,
        }
    }
}

/// The pipeline of a command.
enum Wanted {
    Dataset(DatasetId),
    Definition(Definition),
}

impl Wanted {
    fn of(command: &Map<String, Value>) -> Self {
        match &command["pipeline"] {
            Value::String(id) => Self::Dataset(DatasetId(id.clone())),
            definition => Self::Definition(Definition::of_value(definition)),
        }
    }
}

fn json_text(command: &Map<String, Value>) -> Result<String> {
    serde_json::to_string(command).map_err(|e| Error::internal(format!("a ticket cannot be written: {e}")))
}

/// The command of a descriptor: a JSON object with a `pipeline`.
fn parse_command(descriptor: &FlightDescriptor) -> Result<Map<String, Value>> {
    const EXAMPLE: &str = r#"{"pipeline": <definition or dataset id>, "job": "NAME", "epoch": 0}"#;
    if descriptor.cmd.is_empty() {
        return Err(Error::invalid(format!("the descriptor has no command; give it as JSON: {EXAMPLE}")));
    }
    let value = caju_types::json::read(&descriptor.cmd, "the command")
        .map_err(|e| Error::invalid(format!("{e}; it looks like {EXAMPLE}")))?;
    let Value::Object(command) = value else {
        return Err(Error::invalid(format!("the command is not a JSON object; it looks like {EXAMPLE}")));
    };
    if let Some(odd) = command.keys().find(|k| !KEYS.contains(&k.as_str())) {
        let hint = did_you_mean(odd, KEYS);
        return Err(Error::invalid(format!(
            "the command has an unknown key `{}`{hint}; it looks like {EXAMPLE}",
            shortened(odd)
        )));
    }
    if !matches!(command.get("pipeline"), Some(Value::String(_) | Value::Object(_))) {
        return Err(Error::invalid(format!("the command has no `pipeline`; it looks like {EXAMPLE}")));
    }
    for key in ["epoch", "seed"] {
        if command.get(key).is_some_and(|v| !v.is_null() && !v.is_u64()) {
            return Err(Error::invalid(format!("`{key}` of the command is no whole number from 0 on")));
        }
    }
    for (key, expected) in [("job", "a string"), ("mode", &*format!("one of {}", mode_names()))] {
        let fine = |v: &Value| match (key, v.as_str()) {
            ("mode", Some(mode)) => mode_from_name(mode).is_some(),
            (_, text) => text.is_some() || v.is_null(),
        };
        if command.get(key).is_some_and(|v| !fine(v)) {
            return Err(Error::invalid(format!("`{key}` of the command is not {expected}")));
        }
    }
    Ok(command)
}

fn text<'a>(command: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    command.get(key).and_then(Value::as_str).filter(|s| !s.is_empty())
}

fn not_here(call: &str) -> Status {
    to_status(&Error::unimplemented(format!(
        "the dispatcher does not serve {call}: ask it for GetFlightInfo with a command, then DoGet each endpoint \
         at the worker that it names"
    )))
}

#[tonic::async_trait]
impl FlightService for FlightOnDispatcher {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(request.into_inner()).await.map(Response::new).map_err(|e| to_status(&e))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let descriptor = request.into_inner();
        let bytes = descriptor.cmd.len();
        let read = move || parse_command(&descriptor).map(|command| Wanted::of(&command));
        let wanted = self.core.datasets.read_apart(bytes, read).await.map_err(|e| to_status(&e))?;
        let schema = self.schema(wanted).await.map_err(|e| to_status(&e))?;
        let options = IpcWriteOptions::default();
        let encoded = SchemaResult::try_from(SchemaAsIpc::new(&schema, &options));
        encoded.map(Response::new).map_err(|e| Status::internal(format!("the schema cannot be written: {e}")))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(not_here("Handshake"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(not_here("ListFlights"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(not_here("PollFlightInfo"))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(not_here("DoGet"))
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
        Err(not_here("ListActions"))
    }
}
