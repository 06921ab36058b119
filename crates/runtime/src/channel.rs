//! A bounded channel whose end is a positive mark.
//!
//! The receiver of an ordinary channel cannot distinguish a producer that is done from one that panicked or was aborted:
//! both drop their senders. Here every [`Sender`] ends by [`Sender::finish`], or by [`Sender::fail`] with the reason. If a
//! sender is dropped without either, the receiver yields an error that names it, never the end of the stream.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use caju_types::{Error, Result};
use futures::Stream;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::tasks::TaskName;

/// A channel that holds at most `capacity` items (at least one). `name` names the first sender in errors.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> caju_types::Result<()> {
/// let (sender, mut receiver) = caju_runtime::channel("reader of a.parquet", 2);
/// let other = sender.another("reader of b.parquet");
/// sender.send(1).await?;
/// sender.finish();
/// drop(other); // As a panic does.
/// assert_eq!(receiver.recv().await.transpose()?, Some(1));
/// let error = receiver.recv().await.transpose().unwrap_err();
/// assert!(error.message().contains("reader of b.parquet"));
/// # Ok(()) }
/// ```
pub fn channel<T>(name: impl Into<TaskName>, capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (items, received) = mpsc::channel(capacity.max(1));
    let shared = Arc::new(Shared::default());
    let sender = Sender { name: name.into(), items, shared: Arc::clone(&shared), finished: false };
    (sender, Receiver { items: received, shared, over: false })
}

#[derive(Debug, Default)]
struct Shared {
    /// The error of the first sender that was dropped without an end mark.
    broken: Mutex<Option<Error>>,
    receiver: AtomicWaker,
}

/// One producer's end of a [`channel`].
#[must_use = "a sender that is dropped without `finish` fails the receiver"]
pub struct Sender<T> {
    name: TaskName,
    items: mpsc::Sender<Result<T>>,
    shared: Arc<Shared>,
    finished: bool,
}

/// The consumer's end of a [`channel`]: a stream that ends when every sender has finished.
#[derive(Debug)]
pub struct Receiver<T> {
    items: mpsc::Receiver<Result<T>>,
    shared: Arc<Shared>,
    over: bool,
}

impl<T> Sender<T> {
    /// Another sender of the same channel. It has to finish, too.
    pub fn another(&self, name: impl Into<TaskName>) -> Self {
        let (items, shared) = (self.items.clone(), Arc::clone(&self.shared));
        Self { name: name.into(), items, shared, finished: false }
    }

    /// The sender's name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends an item. Waits while the channel is full.
    ///
    /// # Errors
    /// `Cancelled` if the receiver was dropped.
    pub async fn send(&self, item: T) -> Result<()> {
        self.items.send(Ok(item)).await.map_err(|_| self.no_receiver())
    }

    /// Marks that this sender has sent everything.
    pub fn finish(mut self) {
        self.finished = true;
    }

    /// Ends the stream with an error, after what was sent before.
    pub async fn fail(mut self, error: Error) {
        // Without a receiver the error can be dropped.
        self.items.send(Err(error)).await.ok();
        self.finished = true;
    }

    /// Finishes or fails, by the result of the work that sends.
    pub async fn end(self, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.finish(),
            Err(e) => self.fail(e).await,
        }
    }

    /// Whether the receiver was dropped.
    pub fn is_closed(&self) -> bool {
        self.items.is_closed()
    }

    fn no_receiver(&self) -> Error {
        Error::cancelled(format!("{}: its receiver was dropped", self.name))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.finished || self.items.is_closed() {
            return;
        }
        let how = if std::thread::panicking() { "panicked" } else { "was stopped or aborted" };
        let error = Error::internal(format!("{} {how} before it had sent everything", self.name));
        self.shared.broken.lock().get_or_insert(error);
        self.shared.receiver.wake();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T> Receiver<T> {
    /// The next item. An error is the last item. `None` comes only when every sender has finished, or after an error. The
    /// method is cancel safe: a cancelled wait loses no item.
    ///
    /// # Errors
    /// The error with which a sender failed, or `Internal` if a sender was dropped without [`Sender::finish`]. The error
    /// names the sender.
    pub async fn recv(&mut self) -> Option<Result<T>> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`Receiver::recv`] for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        if self.over {
            return Poll::Ready(None);
        }
        // A sender that is dropped from here on wakes this task.
        self.shared.receiver.register(cx.waker());
        let next = match self.items.poll_recv(cx) {
            Poll::Ready(Some(item)) => Some(item),
            // Items that were sent before come first. Other senders are not waited for.
            Poll::Pending => match self.shared.broken.lock().clone() {
                Some(error) => Some(Err(error)),
                None => return Poll::Pending,
            },
            Poll::Ready(None) => self.shared.broken.lock().clone().map(Err),
        };
        if !matches!(next, Some(Ok(_))) {
            self.over = true;
            self.items.close();
        }
        Poll::Ready(next)
    }
}

impl<T> Stream for Receiver<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(cx)
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
