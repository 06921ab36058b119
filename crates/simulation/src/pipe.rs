//! One direction of a simulated connection: bytes arrive in order, late, and perhaps never.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::random::Random;

/// Bytes that are on their way in one direction, as the window of a TCP connection bounds them.
const WINDOW_BYTES: usize = 64 << 10;
/// Bytes of one segment. Larger than real ones, which saves events.
const SEGMENT_BYTES: usize = 16 << 10;
/// The time after which TCP sends a lost segment again.
const RETRANSMIT: Duration = Duration::from_millis(200);

/// How fast and how reliable a network is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quality {
    /// The delay of a segment, in microseconds: from, and below.
    pub(crate) delay_us: (u64, u64),
    /// Segments of 1000 that are lost, and sent again.
    pub(crate) loss_permille: u64,
}

/// One direction of a connection. Clones are the same direction.
#[derive(Debug, Clone)]
pub(crate) struct Pipe(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    segments: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    last_due: Instant,
    /// When the writer's end arrives.
    end: Option<Instant>,
    /// Nothing arrives while the network is partitioned.
    is_blocked: bool,
    /// The writer's machine vanished: nothing more arrives, and neither end gets an error.
    is_silent: bool,
    /// What both ends see.
    broken: Option<io::ErrorKind>,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    quality: Quality,
    random: Random,
}

impl State {
    fn wake(&mut self) {
        [self.reader.take(), self.writer.take()].into_iter().flatten().for_each(Waker::wake);
    }

    fn due(&mut self) -> Instant {
        let (from, to) = self.quality.delay_us;
        let mut delay = Duration::from_micros(self.random.between(from, to));
        let mut again = RETRANSMIT;
        while self.random.permille(self.quality.loss_permille) {
            delay += again;
            again *= 2;
        }
        self.last_due = self.last_due.max(Instant::now() + delay);
        self.last_due
    }
}

impl Pipe {
    pub(crate) fn new(quality: Quality, random: Random, is_blocked: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            segments: VecDeque::new(),
            bytes: 0,
            last_due: Instant::now(),
            end: None,
            is_blocked,
            is_silent: false,
            broken: None,
            reader_gone: false,
            reader: None,
            writer: None,
            quality,
            random,
        })))
    }

    /// Both ends get this error from now on. What has not arrived is lost.
    pub(crate) fn break_with(&self, error: io::ErrorKind) {
        let mut state = self.0.lock();
        state.broken.get_or_insert(error);
        state.segments.clear();
        state.bytes = 0;
        state.wake();
    }

    /// What the writer wrote and writes never arrives, and the reader gets no error.
    pub(crate) fn silence(&self) {
        let mut state = self.0.lock();
        state.is_silent = true;
        state.segments.clear();
        state.bytes = 0;
        state.wake();
    }

    /// Holds all bytes back, or lets them go. What was held back is sent again.
    pub(crate) fn block(&self, is_blocked: bool) {
        let mut state = self.0.lock();
        if state.is_blocked && !is_blocked {
            let again = Instant::now() + RETRANSMIT;
            state.segments.iter_mut().for_each(|(due, _)| *due = (*due).max(again));
            state.end = state.end.map(|end| end.max(again));
            state.last_due = state.last_due.max(again);
        }
        state.is_blocked = is_blocked;
        state.wake();
    }

    fn close(&self) {
        let mut state = self.0.lock();
        if state.end.is_none() {
            let due = state.due();
            state.end = Some(due);
            state.wake();
        }
    }

    fn leave(&self) {
        let mut state = self.0.lock();
        state.reader_gone = true;
        state.segments.clear();
        state.bytes = 0;
        state.wake();
    }

    /// Reads what has arrived; `Err` says when something will.
    fn read(&self, buf: &mut ReadBuf<'_>, waker: &Waker) -> Result<io::Result<()>, Option<Instant>> {
        let mut state = self.0.lock();
        if let Some(kind) = state.broken {
            return Ok(Err(kind.into()));
        }
        state.reader = Some(waker.clone());
        if state.is_blocked || state.is_silent {
            return Err(None);
        }
        let now = Instant::now();
        match state.segments.front_mut() {
            Some((due, bytes)) if *due <= now => {
                let n = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..n]);
                bytes.advance(n);
                if bytes.is_empty() {
                    state.segments.pop_front();
                }
                state.bytes = state.bytes.saturating_sub(n);
                if let Some(writer) = state.writer.take() {
                    writer.wake();
                }
                Ok(Ok(()))
            }
            Some((due, _)) => Err(Some(*due)),
            None => match state.end {
                Some(end) if end <= now => Ok(Ok(())),
                end => Err(end),
            },
        }
    }

    fn write(&self, bytes: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        if let Some(kind) = state.broken {
            return Poll::Ready(Err(kind.into()));
        }
        if state.reader_gone || state.end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = bytes.len().min(SEGMENT_BYTES).min(WINDOW_BYTES.saturating_sub(state.bytes));
        if n == 0 && !bytes.is_empty() {
            state.writer = Some(waker.clone());
            return Poll::Pending;
        }
        state.bytes += n;
        // Frames that never arrive are not acknowledged, so the window fills.
        if !state.is_silent {
            let due = state.due();
            state.segments.push_back((due, Bytes::copy_from_slice(&bytes[..n])));
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(Ok(n))
    }
}

/// One end of a simulated connection.
#[derive(Debug)]
pub(crate) struct Socket {
    input: Pipe,
    output: Pipe,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    /// The end that reads from one pipe and writes to the other.
    pub(crate) fn new(input: Pipe, output: Pipe) -> Self {
        Self { input, output, timer: None }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.output.close();
        self.input.leave();
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match this.input.read(buf, cx.waker()) {
                Ok(done) => return Poll::Ready(done),
                Err(None) => return Poll::Pending,
                Err(Some(due)) => {
                    let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
                    timer.as_mut().reset(due);
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.output.write(buf, cx.waker())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.close();
        Poll::Ready(Ok(()))
    }
}
