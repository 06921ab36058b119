//! Counts the calls that are being answered, so that a server that leaves knows when it has answered all of them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tower::{Layer, Service};

/// The calls that a server is answering. A layer of the server counts them; clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallCounter(Arc<watch::Sender<usize>>);

impl CallCounter {
    /// Waits until no call is being answered, for at most `bound`; false at the bound.
    pub(crate) async fn answered(&self, bound: Duration) -> bool {
        let mut open = self.0.subscribe();
        let none = open.wait_for(|open| *open == 0);
        matches!(tokio::time::timeout(bound, none).await, Ok(Ok(_)))
    }

    fn begin(&self) -> OpenCall {
        self.0.send_modify(|open| *open += 1);
        OpenCall(self.clone())
    }
}

/// A call that is being answered; over when dropped.
struct OpenCall(CallCounter);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}

impl<S> Layer<S> for CallCounter {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: self.clone() }
    }
}

/// A service whose calls are counted.
#[derive(Debug, Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    calls: CallCounter,
}

impl<S, R> Service<R> for Counted<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (open, answer) = (self.calls.begin(), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await;
            drop(open);
            answer
        })
    }
}
