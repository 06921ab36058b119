//! Serving our own client: chunks without conversion, within the reader's credit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use caju_runtime::CpuPool;
use caju_types::{ClientId, Error, Result, TaskId, format_duration};
use caju_wire::Chunk;
use caju_wire::frame::{CreditHeader, EmptyHeader, EndHeader, ErrorHeader, Kind, OpenHeader};
use caju_wire::{
    BufferPool, Codec, Compression, FrameReader, FrameWriter, OutFrame, PendingConnection, Stream, coalesce,
    encode_chunk_as, encode_schema,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use crate::attachment::Attachment;
use crate::manager::{Credentials, Found, Manager};

/// How long a reader may be silent between credits: as long as its user computes. TCP keep-alive detects a dead peer.
const CREDIT_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
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
    // The CPU limits a connection within this machine, and CPU time is counted elsewhere.
    let same_host = stream.is_same_host();
    let silence = manager.config.silence;
    let (input, output) = stream.into_split();
    let mut reader = FrameReader::new(input, peer.clone(), BufferPool::new(0), CREDIT_TIMEOUT)
        .with_limits(CONTROL_LIMITS.0, CONTROL_LIMITS.1);
    let mut writer = FrameWriter::new(output, peer.clone(), silence);
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
    let _permit = match pending.admit().await {
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
            r = send(&manager, &open, &mut writer, &flow, same_host) => match r {
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

/// The bytes that may be sent.
struct Flow {
    window: AtomicU64,
    outstanding: AtomicU64,
    credit: Notify,
}

impl Flow {
    fn new(window: u64) -> Self {
        Self { window: AtomicU64::new(window.max(1)), outstanding: AtomicU64::new(0), credit: Notify::new() }
    }

    fn may_send(&self) -> bool {
        let outstanding = self.outstanding.load(Ordering::Acquire);
        outstanding == 0 || outstanding < self.window.load(Ordering::Acquire)
    }

    fn give(&self, header: &CreditHeader) {
        let less = |a: &AtomicU64, n: u64| {
            // A peer that returns more than it has is at zero.
            a.fetch_update(Ordering::AcqRel, Ordering::Acquire, |v| Some(v.saturating_sub(n))).ok();
        };
        less(&self.outstanding, header.bytes);
        less(&self.window, header.shrink_bytes);
        self.credit.notify_one();
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
    open: &OpenHeader,
    writer: &mut FrameWriter<W>,
    flow: &Flow,
    same_host: bool,
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
    let mut packing = Packing::new(Compression::codec(open.compression, same_host), manager.pool.clone());
    let mut attachment = attachment.over_network(reader.client);
    let mut schema = Arc::clone(&attachment.task.schema);
    writer.send(Kind::Schema, &encode_schema(&schema)?).await?;
    loop {
        let credit = async {
            while !flow.may_send() {
                flow.credit.notified().await;
            }
        };
        pinging(writer, ping, credit).await?;
        let Some(mut chunk) = pinging(writer, ping, attachment.next()).await?? else { break };
        let odd = collect(&mut attachment, &mut chunk);
        for chunk in std::iter::once(chunk).chain(odd) {
            let start = Instant::now();
            let sized = attachment.take_sized();
            let frame = packing.frame(&chunk, sized).await?;
            let writing = write(writer, flow, &mut schema, &chunk, frame);
            let bytes = attachment.task.sending(writing).await?;
            if !same_host {
                attachment.task.sent(bytes, start.elapsed());
            }
        }
    }
    let end = EndHeader::new(attachment.task.emitted().as_deref());
    writer.send(Kind::End, &end.with_sized(&attachment.take_sized())).await?;
    Ok(Some(attachment))
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

async fn write<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    flow: &Flow,
    schema: &mut SchemaRef,
    chunk: &Chunk,
    frame: OutFrame,
) -> Result<u64> {
    let now = chunk.schema();
    if !Arc::ptr_eq(&now, schema) && now != *schema {
        writer.send(Kind::Schema, &encode_schema(&now)?).await?;
        *schema = now;
    }
    // The window is what the reader has in memory.
    flow.outstanding.fetch_add(frame.raw_len, Ordering::AcqRel);
    writer.write(&frame).await?;
    Ok(frame.body_len)
}

/// Chunks that are sent without compression after one that compression made only a little smaller. So a few percent
/// of the chunks are tried again.
const SENT_AS_THEY_ARE: u32 = 31;

/// Makes frames of chunks, and compresses them where the reader wants it and it helps.
struct Packing {
    codec: Option<Codec>,
    pool: CpuPool,
    /// Chunks that are not tried.
    untried: u32,
}

impl Packing {
    fn new(codec: Option<Codec>, pool: CpuPool) -> Self {
        Self { codec, pool, untried: 0 }
    }

    async fn frame(&mut self, chunk: &Chunk, sized: Vec<(u64, u64)>) -> Result<OutFrame> {
        let Some(codec) = self.codec.filter(|_| self.untried == 0) else {
            self.untried = self.untried.saturating_sub(1);
            return encode_chunk_as(chunk, &sized, None);
        };
        let chunk = chunk.clone();
        let frame = self.pool.run(move || encode_chunk_as(&chunk, &sized, Some(codec))).await??;
        if frame.body_len == frame.raw_len {
            self.untried = SENT_AS_THEY_ARE;
        }
        Ok(frame)
    }
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
