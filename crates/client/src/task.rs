//! Reading one task: over the framed stream, or from a worker in this process.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use caju_proto::v1;
use caju_types::{Error, ErrorKind, Result};
use caju_wire::frame::{
    CreditHeader, EmptyHeader, EndHeader, ErrorHeader, Kind, MAX_HEADER_BYTES, MovedHeader, OpenHeader,
    RowsHeader, SchemaHeader,
};
use caju_wire::{
    Chunk, FrameReader, FrameWriter, InFrame, LocalWorker, Network, PassedFiles, Stream, connect_same_host,
    decode_chunk, decode_schema, decompress, is_in_process, is_transient,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::credit::{Credit, CreditGrant};
use crate::shared::Shared;
use crate::target::Target;
use crate::transfer::TransferProtocol;

/// The pause after the first attempt to connect to a worker; it doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Rows that a task emitted, per split.
pub(crate) type Counts = Vec<v1::SplitCount>;

/// How reading a task ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It has sent everything, and everything was received; with what its worker says to have emitted.
    Ended(Option<Counts>),
    /// Its connection broke, or its worker gave it up: the remaining rows come from another worker.
    Lost(Error),
    /// It failed, and would fail anywhere.
    Failed(Error),
}

impl From<Error> for Outcome {
    fn from(e: Error) -> Self {
        if is_transient(&e) || e.kind() == ErrorKind::Cancelled {
            Outcome::Lost(e)
        } else {
            Outcome::Failed(e)
        }
    }
}

/// Reads a task to its end. Dropping the future loses nothing that was counted as received.
pub(crate) async fn read_task(shared: Arc<Shared>, target: Target) -> Outcome {
    shared.shares.join();
    let _leave = Leave(Arc::clone(&shared));
    let local = shared.config.local.get(&target.address);
    let result = match (local, shared.transfer.protocol) {
        (Some(worker), TransferProtocol::Auto | TransferProtocol::Local) => {
            read_local(&shared, &target, worker).await
        }
        (None, TransferProtocol::Local) => Err(elsewhere(&target)),
        (_, TransferProtocol::Framed) if is_in_process(&target.address) => Err(without_port(&target)),
        (_, TransferProtocol::Auto | TransferProtocol::Framed) => read_remote(&shared, &target).await,
    };
    match result {
        Ok(counts) => Outcome::Ended(counts),
        Err(e) => e.into(),
    }
}

fn elsewhere(target: &Target) -> Error {
    Error::failed_precondition(format!(
        "{} is not in this process, and the data transfer protocol `local` reads no other; read from local workers alone \
         (target_workers LOCAL), or take the protocol `auto`",
        target.peer()
    ))
}

fn without_port(target: &Target) -> Error {
    Error::failed_precondition(format!(
        "{} listens on no port, which the data transfer protocol `framed` needs; give it a port, or take the protocol \
         `auto`",
        target.peer()
    ))
}

struct Leave(Arc<Shared>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.shares.leave();
    }
}

async fn read_local(
    shared: &Shared,
    target: &Target,
    worker: Arc<dyn LocalWorker>,
) -> Result<Option<Counts>> {
    let mut task = worker.open(target.task, target.client, &target.ticket, target.consumer).await?;
    if let Some(columns) = task.schema() {
        shared.columns.check(target, &columns)?;
    }
    shared.opened(target)?;
    // The queue must have space first: a chunk that is taken from the worker is received and must not be dropped.
    while shared.queue.writable().await {
        if let Some(held) = &shared.held {
            held.below(target.slot, shared.config.prefetch_bytes).await;
        }
        let next = task.next().await?;
        shared.facts.add_split_facts(task.take_split_facts());
        let Some(chunk) = next else { return Ok(task.emitted()) };
        let bytes = chunk.bytes();
        shared.receive(target.task, target.slot, chunk, bytes, None);
    }
    Err(Error::cancelled("the reader is closed"))
}

async fn read_remote(shared: &Shared, target: &Target) -> Result<Option<Counts>> {
    if is_in_process(&target.address) {
        return Err(Error::unavailable(format!(
            "{} has stopped, or belongs to another process",
            target.peer()
        )));
    }
    let until = Instant::now() + shared.config.dial_timeout;
    let mut pause = FIRST_PAUSE;
    loop {
        let mut has_answered = false;
        match read_connection(shared, target, until, &mut has_answered).await {
            // Whatever accepted it was not the worker (a proxy, the system for a process that died just now), or the worker
            // refuses the next connection if it has sent rows on this one.
            Err(e) if !has_answered && is_transient(&e) && Instant::now() + pause < until => {
                tracing::debug!(task = %target.task, error = %e, "connecting again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            result => return result,
        }
    }
}

/// Connects until a deadline and reads to the end; `has_answered` is set when the first frame has come.
async fn read_connection(
    shared: &Shared,
    target: &Target,
    until: Instant,
    has_answered: &mut bool,
) -> Result<Option<Counts>> {
    let network = &shared.config.network;
    let stream = dial(network, &target.address, until).await?;
    let socket = match converse(shared, target, stream, has_answered).await? {
        Answer::Ended(counts) => return Ok(counts),
        Answer::Moved(socket) => socket,
    };
    let stream = match connect_same_host(&socket).await {
        Ok(stream) => stream,
        // The worker took this reader for one of its host: it may be behind a proxy.
        Err(e) => {
            shared.give_up_shared_memory(&e);
            dial(network, &target.address, until).await?
        }
    };
    match converse(shared, target, stream, has_answered).await? {
        Answer::Ended(counts) => Ok(counts),
        Answer::Moved(_) => Err(Error::unavailable(format!("{} moved a task twice", target.peer()))),
    }
}

/// How a conversation over one connection ended.
enum Answer {
    /// The task has sent everything.
    Ended(Option<Counts>),
    /// The task is read at this socket of the worker's host.
    Moved(String),
}

/// Opens a task over a connection and reads it to the end.
async fn converse(
    shared: &Shared,
    target: &Target,
    stream: Stream,
    has_answered: &mut bool,
) -> Result<Answer> {
    let files = stream.passed_files();
    let (input, output) = stream.into_split();
    let credit = Arc::new(Credit::new(Arc::clone(&shared.shares)));
    let silence = shared.config.silence;
    let mut writer = FrameWriter::new(output, target.peer(), silence);
    let open = OpenHeader {
        task_id: target.task.0,
        client_id: target.client.0,
        window_bytes: credit.window(),
        ticket: target.ticket.to_vec(),
        consumer: target.consumer.map_or(0, |c| c.saturating_add(1)),
        compression: shared.transfer.compression.code(),
        shared_memory: shared.may_share_memory(),
    };
    writer.send(Kind::Open, &open).await?;
    let reader = FrameReader::new(input, target.peer(), shared.pool.clone(), silence)
        .with_limits(MAX_HEADER_BYTES, shared.config.max_frame_bytes);
    let receiving = async {
        let result = receive(shared, target, (reader, files), &credit, has_answered).await;
        credit.finish(matches!(result, Ok(Answer::Ended(_))));
        result
    };
    let (result, _) = tokio::join!(receiving, give_credit(&mut writer, &credit));
    result
}

async fn dial(network: &Network, address: &str, until: Instant) -> Result<Stream> {
    let mut pause = FIRST_PAUSE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let failed = match tokio::time::timeout(left, network.connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => e.to_string(),
            Err(_) => "no answer".to_string(),
        };
        if Instant::now() + pause >= until {
            return Err(Error::unavailable(format!("cannot connect to the worker at {address}: {failed}")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Sends credits to the worker until the stream ends.
async fn give_credit<W: AsyncWrite + Unpin>(writer: &mut FrameWriter<W>, credit: &Credit) {
    loop {
        // A broken connection shows on the receiving side.
        let sent = match credit.next().await {
            CreditGrant::Bytes { bytes, shrink } => {
                writer.send(Kind::Credit, &CreditHeader { bytes, shrink_bytes: shrink }).await
            }
            CreditGrant::Ack => {
                drop(writer.send(Kind::Ack, &EmptyHeader {}).await);
                writer.shutdown().await;
                return;
            }
            CreditGrant::Over => return,
        };
        if let Err(e) = sent {
            tracing::debug!(error = %e, "credit could not be given");
        }
    }
}

async fn receive<R: AsyncRead + Unpin>(
    shared: &Shared,
    target: &Target,
    (mut reader, files): (FrameReader<R>, Option<PassedFiles>),
    credit: &Arc<Credit>,
    has_answered: &mut bool,
) -> Result<Answer> {
    let mut schema: Option<SchemaRef> = None;
    loop {
        let Some(frame) = reader.next().await.map_err(broken)? else {
            return Err(Error::unavailable(format!("{} closed the connection", target.peer())));
        };
        if frame.kind == Kind::Moved {
            return moved(shared, target, &frame);
        }
        if !std::mem::replace(has_answered, true) {
            shared.opened(target)?;
        }
        match frame.kind {
            Kind::Rows => {
                let Some(schema) = &schema else {
                    return Err(Error::unavailable(format!(
                        "{} sent rows before their schema",
                        target.peer()
                    )));
                };
                let header = frame.message::<RowsHeader>().map_err(broken)?;
                let facts = header.split_facts();
                let named = |e: Error| broken(e.context(target.peer()));
                let (chunk, bytes) =
                    decode(shared, header, schema, (frame, files.as_ref())).map_err(named)?;
                if chunk.is_padding() && target.consumer.is_none() {
                    let what = format!("{} sent rows that belong to no split", target.peer());
                    return Err(Error::unavailable(what));
                }
                credit.arrived(bytes as u64);
                shared.facts.add_split_facts(facts);
                shared.receive(target.task, target.slot, chunk, bytes, Some(credit));
            }
            Kind::Schema => {
                let header = frame.message::<SchemaHeader>().map_err(broken)?;
                let sent = decode_schema(&header).map_err(broken)?;
                // The first one has the columns that the task was bound to. Later ones say how the next rows are encoded.
                if schema.is_none() {
                    shared.columns.check(target, &sent)?;
                }
                schema = Some(sent);
            }
            Kind::Ping => {}
            Kind::End => {
                let end = frame.message::<EndHeader>().map_err(broken)?;
                shared.facts.add_split_facts(end.split_facts());
                return Ok(Answer::Ended(end.counts()));
            }
            Kind::Error => return Err(frame.message::<ErrorHeader>().map_err(broken)?.into()),
            other => {
                let what = format!("{} sent a frame {other:?}, which is ours to send", target.peer());
                return Err(Error::unavailable(what));
            }
        }
    }
}

/// The name of the socket at which a task is to be read.
fn moved(shared: &Shared, target: &Target, frame: &InFrame) -> Result<Answer> {
    if !shared.may_share_memory() {
        return Err(Error::unavailable(format!("{} moved a task for no reason", target.peer())));
    }
    Ok(Answer::Moved(frame.message::<MovedHeader>().map_err(broken)?.socket))
}

/// The rows of a frame, whose bytes are in it or in a file that came with it, and the number of these bytes.
fn decode(
    shared: &Shared,
    header: RowsHeader,
    schema: &SchemaRef,
    (frame, files): (InFrame, Option<&PassedFiles>),
) -> Result<(Chunk, usize)> {
    let body = match files {
        Some(files) if header.file_bytes > 0 => {
            let body = files.take_body(&header, shared.config.max_frame_bytes, &shared.pool);
            let body = body.inspect_err(|e| shared.give_up_shared_memory(e))?;
            match body.is_mapped {
                true => shared.recorder.mapped(header.file_bytes),
                false => shared.recorder.received(header.file_bytes),
            }
            body.bytes
        }
        _ => {
            shared.recorder.received(frame.body.len() as u64);
            decompress(&header, frame.body, shared.config.max_frame_bytes, &shared.pool)?
        }
    };
    let bytes = body.len();
    Ok((decode_chunk(header, schema, body)?, bytes))
}

/// Damage in transit counts as a broken connection, so that the rows are sent again. Damage of the source is an error of the
/// worker.
fn broken(e: Error) -> Error {
    if e.kind() == ErrorKind::DataLoss { Error::unavailable(e.message()) } else { e }
}
