//! Serving our own client: chunks without conversion, within the reader's credit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use caju_types::{ClientId, Error, Result, TaskId, format_duration};
use caju_wire::Chunk;
use caju_wire::frame::{CreditHeader, EmptyHeader, EndHeader, ErrorHeader, Kind, MovedHeader, OpenHeader};
use caju_wire::{
    BufferPool, Compression, FrameReader, FrameWriter, OutFrame, PendingConnection, SplitFacts, Stream,
    coalesce, encode_schema,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::attachment::Attachment;
use crate::flow::Flow;
use crate::manager::{Credentials, Found, Manager};
use crate::outgoing::Outgoing;

/// How long a reader may say nothing: a year, because one that has credit has nothing to say until rows are ready for it. TCP
/// keep-alive detects a dead peer. The wait for credit has a bound of its own, `reader_idle_timeout`.
const SILENCE_WITH_CREDIT: Duration = Duration::from_secs(31_536_000);
/// Chunks below this size, in bytes, are sent together if several are ready.
const SMALL_CHUNK_BYTES: usize = 64 << 10;
/// The size in bytes up to which small chunks are collected.
const COALESCED_BYTES: usize = 256 << 10;
/// The longest control frame, in bytes: it has no body.
const CONTROL_LIMITS: (usize, u64) = (4096, 0);

/// Serves one connection.
///
/// # Errors
/// Why the connection ended early; the reader got the error if it could be sent.
pub(crate) async fn serve(stream: Stream, pending: PendingConnection, manager: Arc<Manager>) -> Result<()> {
    let peer = stream.peer().map_or_else(|| "a reader".to_string(), |a| format!("reader {a}"));
    let files = stream.passed_files();
    // The CPU limits a connection within this machine, and CPU time is counted elsewhere.
    let to = Destination { is_same_host: stream.is_same_host(), takes_files: files.is_some() };
    let silence = manager.config.silence;
    let (input, output) = stream.into_split();
    let mut reader = FrameReader::new(input, peer.clone(), BufferPool::new(0), SILENCE_WITH_CREDIT)
        .with_limits(CONTROL_LIMITS.0, CONTROL_LIMITS.1);
    let mut writer = FrameWriter::new(output, peer.clone(), silence).with_files(files);
    let open = match pending.within(reader.next()).await? {
        Ok(Some(frame)) if frame.kind == Kind::Open => frame.message::<OpenHeader>()?,
        Ok(None) => return Ok(()),
        Ok(Some(_)) => return Err(Error::data_loss(format!("{peer}: the first frame is not `open`"))),
        Err(e) => {
            // The peer should know, for example that it speaks another version of the protocol.
            drop(writer.send(Kind::Error, &ErrorHeader::from(&e)).await);
            return Err(e);
        }
    };
    if let Some(socket) = manager.same_host_socket.get()
        && open.shared_memory
        && to.is_same_host
        && !to.takes_files
    {
        writer.send(Kind::Moved, &MovedHeader { socket: socket.clone() }).await?;
        writer.shutdown().await;
        return Ok(());
    }
    let _permit = match pending.admit("the worker").await {
        Ok(permit) => permit,
        Err(e) => {
            drop(writer.send(Kind::Error, &ErrorHeader::from(&e)).await);
            writer.shutdown().await;
            // Logged once for all refused connections.
            return Err(Error::cancelled(e.message()));
        }
    };
    let flow = Flow::new(open.window_bytes);
    let ended = {
        let listening = listen(&mut reader, &flow);
        tokio::pin!(listening);
        tokio::select! {
            biased;
            r = send(&manager, (&open, &peer), &mut writer, &flow, to) => match r {
                Ok(None) => Ok(()),
                Ok(Some(attachment)) => confirmed(attachment, tokio::time::timeout(silence, listening).await, (&peer, silence)),
                Err(e) => Err(e),
            },
            gone = &mut listening => match gone {
                Ok(_) => Err(Error::cancelled(format!("{peer} left"))),
                Err(e) => Err(e),
            },
        }
    };
    if let Err(e) = &ended {
        drop(writer.send(Kind::Error, &ErrorHeader::from(e)).await);
    }
    writer.shutdown().await;
    ended
}

/// Where a reader is.
#[derive(Debug, Clone, Copy)]
struct Destination {
    /// On this machine.
    is_same_host: bool,
    /// The connection passes on files.
    takes_files: bool,
}

type Listened = Result<Result<bool>, tokio::time::error::Elapsed>;

fn confirmed(
    mut attachment: Attachment,
    listened: Listened,
    (peer, silence): (&str, Duration),
) -> Result<()> {
    match listened {
        Ok(Ok(true)) => {
            attachment.received();
            Ok(())
        }
        Ok(Ok(false)) => Err(Error::unavailable(format!("{peer} left before it had everything"))),
        Ok(Err(e)) => Err(e),
        Err(_) => Err(Error::deadline(format!(
            "{peer} did not acknowledge within the reader silence of {} that it had everything",
            format_duration(silence)
        ))),
    }
}

/// Takes credits until the reader acknowledges the end (true) or disconnects (false).
async fn listen<R: AsyncRead + Unpin>(reader: &mut FrameReader<R>, flow: &Flow) -> Result<bool> {
    loop {
        match reader.next().await? {
            None => return Ok(false),
            Some(frame) => match frame.kind {
                Kind::Credit => flow.give(&frame.message::<CreditHeader>()?),
                Kind::Ack => return Ok(true),
                other => {
                    return Err(Error::data_loss(format!(
                        "a reader sent a frame {other:?}, which is ours to send"
                    )));
                }
            },
        }
    }
}

/// Sends a task to its end; `None` if all of it was received before. The caller marks the attachment as received.
async fn send<W: AsyncWrite + Unpin>(
    manager: &Arc<Manager>,
    (open, peer): (&OpenHeader, &str),
    writer: &mut FrameWriter<W>,
    flow: &Flow,
    to: Destination,
) -> Result<Option<Attachment>> {
    let ping = manager.config.ping;
    // Consumers count from 1 on the wire: 0 is none.
    let consumer = open.consumer.checked_sub(1);
    let reader = Credentials { client: ClientId(open.client_id), ticket: &open.ticket, consumer };
    let found = pinging(writer, ping, manager.open(TaskId(open.task_id), &reader)).await??;
    let Found::Running(attachment) = found else {
        writer.send(Kind::End, &EndHeader::default()).await?;
        return Ok(None);
    };
    let codec = Compression::codec(open.compression, to.is_same_host);
    let mut outgoing = Outgoing::new(codec, attachment.task.output_pool.clone());
    // For one reader alone a file costs more than the socket.
    if to.takes_files && codec.is_none() && attachment.task.bodies.are_shared() {
        outgoing = outgoing.in_files(Arc::clone(&attachment.task.bodies), open.window_bytes);
    }
    if let Some(demand) = attachment.task.demand() {
        flow.attach_demand(Arc::clone(demand));
    }
    let mut attachment = attachment.over_network(reader.client);
    let mut schema = Arc::clone(&attachment.task.schema);
    writer.send(Kind::Schema, &encode_schema(&schema)?).await?;
    loop {
        pinging(writer, ping, credit(flow, peer, manager.config.reader_idle_timeout)).await??;
        let Some(mut chunk) = pinging(writer, ping, attachment.next()).await?? else { break };
        let odd = match outgoing.is_alone(chunk.bytes()) {
            true => None,
            false => collect(&mut attachment, &mut chunk),
        };
        for chunk in std::iter::once(chunk).chain(odd) {
            let start = Instant::now();
            let facts = attachment.take_split_facts();
            let bytes =
                send_chunk(&attachment, (writer, &mut outgoing), flow, &mut schema, (&chunk, facts)).await?;
            if !to.is_same_host {
                attachment.task.sent(bytes, start.elapsed());
            }
        }
    }
    let end = EndHeader::new(attachment.task.emitted().as_deref());
    writer.send(Kind::End, &end.with_split_facts(attachment.take_split_facts())).await?;
    Ok(Some(attachment))
}

/// Waits until something may be sent, as long as the user of the reader may compute.
async fn credit(flow: &Flow, peer: &str, bound: Duration) -> Result<()> {
    tokio::time::timeout(bound, flow.credit()).await.map_err(|_| {
        Error::deadline(format!(
            "{peer} has wanted no more rows within the reader idle timeout of {} (--reader-idle-timeout)",
            format_duration(bound)
        ))
    })
}

/// Sends one chunk, over the socket if the system passes on no file. Returns the bytes of the frame's body.
async fn send_chunk<W: AsyncWrite + Unpin>(
    attachment: &Attachment,
    (writer, outgoing): (&mut FrameWriter<W>, &mut Outgoing),
    flow: &Flow,
    schema: &mut SchemaRef,
    (chunk, facts): (&Chunk, SplitFacts),
) -> Result<u64> {
    let task = &attachment.task;
    let mut packed = outgoing.frame(chunk, &facts).await?;
    // The window is what the reader has in memory.
    flow.take(packed.frame.raw_len);
    if !task.sending(write(writer, schema, chunk, &packed.frame)).await? {
        outgoing.without_files(&"too many files are on their way");
        packed = outgoing.frame(chunk, &facts).await?;
        task.sending(write(writer, schema, chunk, &packed.frame)).await?;
    }
    packed.count(&task.bodies);
    Ok(packed.frame.body_len)
}

/// Appends small chunks that are ready; returns one that could not be appended.
fn collect(attachment: &mut Attachment, chunk: &mut Chunk) -> Option<Chunk> {
    let mut bytes = chunk.bytes();
    while bytes < COALESCED_BYTES {
        let next = attachment.next_if(|_, n| {
            bytes += n;
            n < SMALL_CHUNK_BYTES
        })?;
        if let Err(odd) = coalesce(chunk, next) {
            return Some(odd);
        }
    }
    None
}

/// Writes a frame, behind its schema if that is new. False if the system passes on no file now.
async fn write<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    schema: &mut SchemaRef,
    chunk: &Chunk,
    frame: &OutFrame,
) -> Result<bool> {
    let now = chunk.schema();
    if !Arc::ptr_eq(&now, schema) && now != *schema {
        writer.send(Kind::Schema, &encode_schema(&now)?).await?;
        *schema = now;
    }
    writer.write(frame).await
}

/// Waits for something, and sends pings to the reader meanwhile.
async fn pinging<W: AsyncWrite + Unpin, T>(
    writer: &mut FrameWriter<W>,
    every: Duration,
    wait: impl Future<Output = T>,
) -> Result<T> {
    tokio::pin!(wait);
    loop {
        match tokio::time::timeout(every, &mut wait).await {
            Ok(value) => return Ok(value),
            Err(_) => writer.send(Kind::Ping, &EmptyHeader {}).await?,
        }
    }
}
