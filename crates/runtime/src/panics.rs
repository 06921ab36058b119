//! Turns panics into errors.
//!
//! Libraries that decode files may panic on damaged bytes. Work on such bytes runs within [`catch`], [`caught`] or
//! [`Caught`]. A panic is then an `Internal` error that names the work, and never a short result.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll, ready};

use caju_types::{Error, Result, panic_text};
use futures::stream::{FusedStream, Stream};
use futures::{FutureExt, StreamExt};

/// The error that reports a panic of the named work.
pub(crate) fn panicked(name: &str, panic: &(dyn Any + Send)) -> Error {
    Error::internal(format!("{name} panicked: {}", panic_text(panic)))
}

/// Runs a closure, and turns its panic into an error.
///
/// # Errors
/// `Internal`, with `name` and the panic's message, if the closure panics.
pub fn catch<T>(name: &str, work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panicked(name, &*panic))
}

thread_local! {
    /// Whether this thread is in [`catch_out_of_range`].
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
    /// What a library said when it panicked there.
    static SAID: Cell<Option<String>> = const { Cell::new(None) };
    /// Whether this thread polls a stream of [`Caught`], whose error reports a panic.
    static REPORTED: Cell<bool> = const { Cell::new(false) };
}

/// Puts a hook before the one of the process: it prints nothing about panics that are no defect.
fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(text) = out_of_range(info).filter(|_| EXPECTED.get()) {
                SAID.set(Some(text));
            } else if REPORTED.get() {
                tracing::debug!("a panic while input is decoded: {info}");
            } else {
                print(info);
            }
        }));
    });
}

/// Runs a computation with values of users in which a library may panic because a result does not fit its type: chrono does,
/// and arithmetic that is checked for overflow. Such a panic is no defect, so nothing is printed about it. Other panics go on.
///
/// # Errors
/// What the library said.
pub fn catch_out_of_range<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    install_hook();
    let before = EXPECTED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(before);
    let said = SAID.take();
    done.map_err(|panic| said.unwrap_or_else(|| resume_unwind(panic)))
}

/// The message of a panic of a library about a value that does not fit its type; none for another panic.
fn out_of_range(info: &PanicHookInfo<'_>) -> Option<String> {
    let text = info.payload_as_str()?;
    let is_ours = info.location().is_some_and(|place| place.file().starts_with("crates/"));
    let is_access = text.contains("index") || text.contains("slice");
    let says = ["with overflow", "out of range", "overflowed"].iter().any(|words| text.contains(words));
    (says && !is_access && !is_ours).then(|| text.to_owned())
}

/// Runs a future, and turns its panic into an error.
///
/// # Errors
/// `Internal`, with `name` and the panic's message, if the future panics.
pub async fn caught<F: Future>(name: &str, future: F) -> Result<F::Output> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| panicked(name, &*panic))
}

/// A stream of results that turns a panic into its last item: the error that `on_panic` makes from the panic's message. That
/// error is the report: the hook of the process prints nothing about the panic.
#[derive(Debug)]
pub struct Caught<S, F> {
    stream: Option<S>,
    on_panic: F,
}

impl<S, F> Caught<S, F> {
    /// Guards a stream.
    pub fn new(stream: S, on_panic: F) -> Self {
        Self { stream: Some(stream), on_panic }
    }
}

impl<T, S, F> Stream for Caught<S, F>
where
    S: Stream<Item = Result<T>> + Unpin,
    F: FnMut(&str) -> Error + Unpin,
{
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let me = &mut *self;
        let Some(stream) = &mut me.stream else { return Poll::Ready(None) };
        install_hook();
        let before = REPORTED.replace(true);
        let polled = catch_unwind(AssertUnwindSafe(|| stream.poll_next_unpin(cx)));
        REPORTED.set(before);
        let item = match polled {
            Ok(poll) => ready!(poll),
            Err(panic) => {
                // A stream that panicked must not be polled again.
                me.stream = None;
                return Poll::Ready(Some(Err((me.on_panic)(panic_text(&*panic)))));
            }
        };
        if item.is_none() {
            me.stream = None;
        }
        Poll::Ready(item)
    }
}

impl<T, S, F> FusedStream for Caught<S, F>
where
    S: Stream<Item = Result<T>> + Unpin,
    F: FnMut(&str) -> Error + Unpin,
{
    fn is_terminated(&self) -> bool {
        self.stream.is_none()
    }
}

#[cfg(test)]
mod tests {
    use caju_types::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_that_names_the_work() {
        assert_eq!(catch("adding", || 1 + 1).unwrap(), 2);
        let e = catch("decoding a.parquet", || -> u8 { panic!("bit width {}", 64) }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal);
        assert_eq!(e.message(), "decoding a.parquet panicked: bit width 64");
        let late = async {
            tokio::task::yield_now().await;
            panic!("late")
        };
        assert_eq!(caught::<_>("waiting", late).await.unwrap_err().message(), "waiting panicked: late");
    }

    #[tokio::test]
    async fn a_stream_that_panics_ends_with_an_error() {
        let items = futures::stream::iter(0..5).map(|i| if i == 2 { panic!("at {i}") } else { Ok(i) });
        let mut caught = Caught::new(items, |text: &str| Error::data_loss(format!("a.tar: {text}")));
        assert_eq!(caught.next().await.unwrap().unwrap(), 0);
        assert_eq!(caught.next().await.unwrap().unwrap(), 1);
        let e = caught.next().await.unwrap().unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, "a.tar: at 2"));
        assert!(caught.next().await.is_none() && caught.is_terminated());
    }
}
