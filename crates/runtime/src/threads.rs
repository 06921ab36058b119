//! Supervised threads: every failure of a thread is reported.
//!
//! What [`Tasks`](crate::Tasks) is for futures this is for work that blocks for as long as it lives, such as the writer of a
//! journal. `std::thread::spawn` loses a panic when its handle is dropped: `scripts/check-house` bans it, and
//! `std::thread::Builder`, outside this crate. `std::thread::scope` waits for its threads and passes their panics on, and so
//! is not banned.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use caju_types::{Error, Result};
use parking_lot::Mutex;

use crate::panics::catch;
use crate::process::lower_thread_priority;
use crate::tasks::log_failure;

/// A thread of this process. [`Thread::join`] gives the result of its work.
///
/// A thread cannot be stopped: if the handle is dropped, the thread runs on, and a panic of it is logged.
#[must_use = "a panic of a thread is only logged when its handle is dropped: join it, keep it, or use Thread::background"]
pub struct Thread<T> {
    name: String,
    running: Option<JoinHandle<()>>,
    outcome: Arc<Mutex<Outcome<T>>>,
}

/// How the work of a thread ended, and whether anybody will ask for it.
enum Outcome<T> {
    Running,
    Ended(Result<T>),
    Abandoned,
}

impl<T: Send + 'static> Thread<T> {
    /// Runs `work` on a thread with a name. The system's tools show 15 bytes of it.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no thread.
    pub fn spawn<F>(name: impl Into<String>, work: F) -> Result<Self>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        let name = name.into();
        let outcome = Arc::new(Mutex::new(Outcome::Running));
        let (theirs, of) = (Arc::clone(&outcome), name.clone());
        let running = start(&name, move || {
            let ended = catch(&of, work);
            let mut outcome = theirs.lock();
            match (&*outcome, ended) {
                (Outcome::Abandoned, Err(e)) => log_failure(e),
                (Outcome::Abandoned, Ok(_)) => {}
                (_, ended) => *outcome = Outcome::Ended(ended),
            }
        })?;
        Ok(Self { name, running: Some(running), outcome })
    }

    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// `Internal`, with the thread's name, if its work panicked.
    pub fn join(mut self) -> Result<T> {
        let broken = self.running.take().is_none_or(|running| running.join().is_err());
        match std::mem::replace(&mut *self.outcome.lock(), Outcome::Abandoned) {
            Outcome::Ended(ended) if !broken => ended,
            _ => Err(Error::internal(format!("{} ended without a result", self.name))),
        }
    }
}

impl Thread<()> {
    /// Runs work without waiting for it. `on_failure` gets the error that the work returns, or `Internal`, with the thread's
    /// name, if it panics. [`log_failure`] is the observer for work on which nothing depends.
    ///
    /// # Errors
    /// `ResourceExhausted` if the system gives no thread.
    pub fn background<F, O>(name: impl Into<Cow<'static, str>>, on_failure: O, work: F) -> Result<()>
    where
        F: FnOnce() -> Result<()> + Send + 'static,
        O: FnOnce(Error) + Send + 'static,
    {
        let name = name.into();
        let of = name.clone();
        start(&name, move || {
            if let Err(e) = catch(&of, work).and_then(|done| done) {
                on_failure(e);
            }
        })
        .map(drop)
    }
}

/// Runs `work` on a new thread with a stack of `stack_bytes`, for which this one waits.
///
/// # Errors
/// Those of `work`; `ResourceExhausted` if the system gives no thread, `Internal`, with `name`, if the work panics.
pub fn with_stack<T, F>(name: &str, stack_bytes: usize, work: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> Result<T> + Send,
{
    run_scoped(Builder::new().stack_size(stack_bytes), name, work)
}

/// Runs `work` on a new thread, for which this one waits. On Linux the new thread has a low priority: while threads of the usual
/// priority want all of a core, it gets about a tenth of it. On other systems it has the usual one.
///
/// Work that holds a lock for long does not belong here, since whoever waits for the lock waits for this thread.
///
/// # Errors
/// Those of `work`; `ResourceExhausted` if the system gives no thread, `Internal`, with `name`, if the work panics.
pub fn at_low_priority<T, F>(name: &str, work: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> Result<T> + Send,
{
    run_scoped(Builder::new(), name, || {
        lower_thread_priority();
        work()
    })
}

fn run_scoped<T, F>(thread: Builder, name: &str, work: F) -> Result<T>
where
    T: Send,
    F: FnOnce() -> Result<T> + Send,
{
    std::thread::scope(|scope| {
        let thread = thread.name(name.into());
        let running = thread.spawn_scoped(scope, || catch(name, work)).map_err(|e| no_thread(name, &e))?;
        let ended = running.join();
        ended
            .unwrap_or_else(|_| Err(Error::internal(format!("{name} ended without a result"))))
            .and_then(|done| done)
    })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(work).map_err(|e| no_thread(name, &e))
}

fn no_thread(name: &str, why: &std::io::Error) -> Error {
    Error::exhausted(format!("{name}: the system gives no thread: {why}"))
}

impl<T> Drop for Thread<T> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.outcome.lock(), Outcome::Abandoned);
        if let Outcome::Ended(Err(e)) = before {
            log_failure(e);
        }
    }
}

impl<T> fmt::Debug for Thread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use caju_types::ErrorKind;

    use super::*;

    /// A bound for what should happen at once, however busy the machine is.
    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn joining_a_thread_gives_its_result_or_names_what_panicked() {
        let named = || std::thread::current().name().map(str::to_owned);
        assert_eq!(Thread::spawn("adding", named).unwrap().join().unwrap().as_deref(), Some("adding"));
        let e = Thread::spawn("the journal", || -> u8 { panic!("boom") }).unwrap().join().unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "the journal panicked: boom"));
    }

    #[test]
    fn the_observer_of_a_thread_gets_its_error_and_its_panic() {
        let (tx, rx) = sync_channel(1);
        let tell = |tx: std::sync::mpsc::SyncSender<Error>| move |e| tx.send(e).unwrap();
        Thread::background("reading", tell(tx.clone()), || Err(Error::invalid("no"))).unwrap();
        assert_eq!(rx.recv_timeout(SOON).unwrap().message(), "no");
        Thread::background("reading", tell(tx.clone()), || panic!("boom")).unwrap();
        assert_eq!(rx.recv_timeout(SOON).unwrap().message(), "reading panicked: boom");
        // Work that succeeds sends nothing to its observer and drops it: the channel closes.
        Thread::background("reading", tell(tx), || Ok(())).unwrap();
        assert!(rx.recv_timeout(SOON).is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Disconnected));
    }

    /// What is logged, by any thread.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        /// Captures the log of this thread until the guard is dropped.
        fn listen(&self) -> tracing::subscriber::DefaultGuard {
            let theirs = self.clone();
            let said = tracing_subscriber::fmt().with_writer(move || theirs.clone()).finish();
            tracing::subscriber::set_default(said)
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    #[test]
    fn a_panic_of_a_thread_whose_handle_was_dropped_is_logged() {
        // Before the panic: the thread finds that its handle was dropped, and logs the panic.
        let log = Log::default();
        let (theirs, (go, gone)) = (log.clone(), sync_channel::<()>(0));
        let work = move || -> () {
            // Until the thread ends: the panic is logged after its work.
            std::mem::forget(theirs.listen());
            gone.recv().unwrap();
            panic!("boom")
        };
        let mut thread = Thread::spawn("early", work).unwrap();
        let running = thread.running.take().unwrap();
        drop(thread);
        go.send(()).unwrap();
        running.join().unwrap();
        assert!(log.text().contains("early panicked: boom"), "{}", log.text());

        // After the panic: dropping the handle logs it.
        let log = Log::default();
        let _listening = log.listen();
        let mut thread = Thread::spawn("late", || -> () { panic!("boom") }).unwrap();
        thread.running.take().unwrap().join().unwrap();
        assert_eq!(log.text(), "");
        drop(thread);
        assert!(log.text().contains("late panicked: boom"), "{}", log.text());
    }

    #[test]
    fn work_with_a_stack_of_its_own_may_borrow_and_its_panic_is_an_error() {
        let text = String::from("abc");
        assert_eq!(with_stack("binding", 1 << 20, || Ok(text.len())).unwrap(), 3);
        let e = with_stack("binding", 1 << 20, || -> Result<()> { Err(Error::invalid("no")) }).unwrap_err();
        assert_eq!(e.message(), "no");
        let e = with_stack("binding", 1 << 20, || -> Result<()> { panic!("boom") }).unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "binding panicked: boom"));
    }

    #[test]
    fn work_at_low_priority_may_borrow_and_its_panic_is_an_error() {
        let text = String::from("abc");
        assert_eq!(at_low_priority("compacting", || Ok(text.len())).unwrap(), 3);
        let e = at_low_priority("compacting", || -> Result<()> { Err(Error::invalid("no")) }).unwrap_err();
        assert_eq!(e.message(), "no");
        let e = at_low_priority("compacting", || -> Result<()> { panic!("boom") }).unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "compacting panicked: boom"));
    }

    /// The nice value of the calling thread, from -20 to 19.
    #[cfg(target_os = "linux")]
    fn nice() -> i64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // The thread's name, in parentheses, may contain anything. The nice value is the 19th field, and the third follows the name.
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_low_priority_is_that_of_one_thread_alone() {
        let usual = nice();
        assert_eq!(at_low_priority("compacting", || Ok(nice())).unwrap(), (usual + 10).min(19));
        assert_eq!(nice(), usual, "the thread that waits keeps its priority");
        assert_eq!(Thread::spawn("calls", nice).unwrap().join().unwrap(), usual);
        assert_eq!(with_stack("binding", 1 << 20, || Ok(nice())).unwrap(), usual);
    }
}
