//! A process that stands still.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Holds the work behind it while it is closed.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    /// Closes the gate, or opens it.
    pub(crate) fn close(&self, is_closed: bool) {
        let mut state = self.0.lock();
        state.is_closed = is_closed;
        if !is_closed {
            state.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Does the work while the gate is open.
    pub(crate) async fn pass<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| self.poll(work.as_mut(), cx)).await
    }

    fn poll<T>(&self, work: Pin<&mut impl Future<Output = T>>, cx: &mut Context<'_>) -> Poll<T> {
        {
            let mut state = self.0.lock();
            if state.is_closed {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
        }
        work.poll(cx)
    }
}
