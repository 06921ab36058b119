//! Calls on gRPC connections: which connections are in use, and the memory of half-received requests.
//!
//! Calls on a connection that was not admitted are answered with the reason.
//!
//! A connection keeps its permit while calls are open on it or ended lately. Received bytes do not count as use, because a
//! peer can send HTTP/2 pings without an end. A request that arrives in pieces takes memory before it is a message, so the
//! pieces of all unfinished requests of a server share one limit, and a request that does not arrive in time is refused.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use caju_proto::to_status;
use caju_types::{Error, format_duration};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

/// The limit on the bytes of unfinished requests of a server, as a number of requests of the largest size.
const UNFINISHED_REQUESTS: usize = 2;

/// The bytes of unfinished requests that every server holds. A request above a small `--message-bytes` is refused by its
/// own length then, and not for what the others take.
const MIN_UNFINISHED_BYTES: usize = 16 << 20;

/// The calls of one connection.
#[derive(Debug, Clone, Default)]
pub struct OpenCalls(Arc<Mutex<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    open: usize,
    last_end: Option<Instant>,
    refusal: Option<Error>,
}

/// The use of a connection at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// No call was made yet.
    Never,
    /// Calls are open.
    Now,
    /// The last call ended at this moment.
    Before(Instant),
}

/// One open call.
#[derive(Debug)]
pub struct OpenCall(OpenCalls);

impl OpenCalls {
    /// The calls of a connection that was not admitted: each of them gets this error.
    pub(crate) fn refused(error: Error) -> Self {
        Self(Arc::new(Mutex::new(Calls { refusal: Some(error), ..Calls::default() })))
    }

    /// Why the connection was not admitted.
    fn refusal(&self) -> Option<Error> {
        self.0.lock().refusal.clone()
    }

    /// Counts a call until the answer is dropped.
    #[must_use]
    pub fn begin(&self) -> OpenCall {
        self.0.lock().open += 1;
        OpenCall(self.clone())
    }

    pub(crate) fn usage(&self) -> Use {
        let calls = self.0.lock();
        match (calls.open, calls.last_end) {
            (0, None) => Use::Never,
            (0, Some(at)) => Use::Before(at),
            _ => Use::Now,
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut calls = self.0.0.lock();
        calls.open = calls.open.saturating_sub(1);
        calls.last_end = Some(Instant::now());
    }
}

/// Counts the calls of each connection, and bounds the requests that are still arriving. Every gRPC server of ours has
/// this layer.
#[derive(Debug, Clone)]
pub struct CallLayer {
    unfinished: Arc<Unfinished>,
    timeout: Duration,
}

/// Bytes of requests that are still arriving, over all connections of a server.
#[derive(Debug)]
struct Unfinished {
    bytes: AtomicUsize,
    most: usize,
}

impl CallLayer {
    /// For a server whose largest message has `message_bytes`, and whose requests may take `timeout` to arrive.
    pub fn new(message_bytes: usize, timeout: Duration) -> Self {
        let most = message_bytes.saturating_mul(UNFINISHED_REQUESTS).max(MIN_UNFINISHED_BYTES);
        Self::with_bound(most, timeout)
    }

    fn with_bound(most: usize, timeout: Duration) -> Self {
        Self { unfinished: Arc::new(Unfinished { bytes: AtomicUsize::new(0), most }), timeout }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = CountedCalls<S>;

    fn layer(&self, inner: S) -> CountedCalls<S> {
        CountedCalls { inner, layer: self.clone() }
    }
}

/// A gRPC service under a [`CallLayer`].
#[derive(Debug, Clone)]
pub struct CountedCalls<S> {
    inner: S,
    layer: CallLayer,
}

impl<S> Service<Request<Body>> for CountedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let calls = request.extensions().get::<OpenCalls>();
        if let Some(error) = calls.and_then(OpenCalls::refusal) {
            let status = to_status(&error);
            // Other clients get the code that gRPC has for this. Ours go by the kind, and try again.
            let details = status.metadata().clone();
            let refused = Status::with_metadata(Code::ResourceExhausted, status.message(), details);
            return Box::pin(async move { Ok(refused.into_http()) });
        }
        let call = calls.map(OpenCalls::begin);
        let request = request.map(|body| {
            Body::new(RequestBody {
                body,
                bytes: 0,
                unfinished: Arc::clone(&self.layer.unfinished),
                timer: Box::pin(tokio::time::sleep(self.layer.timeout)),
                timeout: self.layer.timeout,
            })
        });
        let answered = self.inner.call(request);
        Box::pin(async move { Ok(answered.await?.map(|body| Body::new(AnswerBody { body, _call: call }))) })
    }
}

/// The body of a request: its bytes count until it is dropped, which is when the message was decoded.
struct RequestBody {
    body: Body,
    bytes: usize,
    unfinished: Arc<Unfinished>,
    timer: Pin<Box<Sleep>>,
    timeout: Duration,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            if this.timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Some(Err(Status::deadline_exceeded(format!(
                    "the request did not arrive within the server's --request-timeout of {}; send it again over a faster \
                     connection",
                    format_duration(this.timeout)
                )))));
            }
            return Poll::Pending;
        };
        if let Some(data) = frame.as_ref().and_then(|f| f.as_ref().ok()).and_then(Frame::data_ref) {
            this.bytes += data.len();
            let before = this.unfinished.bytes.fetch_add(data.len(), Ordering::AcqRel);
            let most = this.unfinished.most;
            if before.saturating_add(data.len()) > most {
                return Poll::Ready(Some(Err(Status::resource_exhausted(format!(
                    "requests that are still arriving have more than the {most} bytes that the server holds of them; \
                     try again later"
                )))));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.unfinished.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The body of an answer: the call is open until it is dropped.
struct AnswerBody {
    body: Body,
    _call: Option<OpenCall>,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::future::poll_fn;

    use super::*;

    async fn next(body: &mut RequestBody) -> Option<Result<Frame<Bytes>, Status>> {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    /// A body that sends its pieces and then stays open.
    struct Open(Vec<Bytes>);

    impl HttpBody for Open {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.0.pop() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => Poll::Pending,
            }
        }
    }

    fn body(layer: &CallLayer, pieces: usize) -> RequestBody {
        RequestBody {
            body: Body::new(Open(vec![Bytes::from_static(&[0; 60]); pieces])),
            bytes: 0,
            unfinished: Arc::clone(&layer.unfinished),
            timer: Box::pin(tokio::time::sleep(layer.timeout)),
            timeout: layer.timeout,
        }
    }

    #[tokio::test]
    async fn half_received_requests_share_one_bound_and_end_in_time() {
        let layer = CallLayer::with_bound(200, Duration::from_millis(20));
        let (mut first, mut second) = (body(&layer, 2), body(&layer, 2));
        for _ in 0..2 {
            assert!(next(&mut first).await.unwrap().is_ok());
        }
        // 120 of 200 bytes are taken.
        assert!(next(&mut second).await.unwrap().is_ok());
        let refused = next(&mut second).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        let late = next(&mut first).await.unwrap().unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        drop((first, second));
        let mut third = body(&layer, 2);
        assert!(next(&mut third).await.unwrap().is_ok() && next(&mut third).await.unwrap().is_ok());
    }

    #[test]
    fn a_connection_is_used_while_calls_are_open() {
        let calls = OpenCalls::default();
        assert_eq!(calls.usage(), Use::Never);
        let (first, second) = (calls.begin(), calls.begin());
        drop(first);
        assert_eq!(calls.usage(), Use::Now);
        drop(second);
        assert!(matches!(calls.usage(), Use::Before(_)));
    }
}
