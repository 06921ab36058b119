//! Locks with an order: a thread may take a lock only while it holds none of the same or a higher rank.
//!
//! Threads that take several locks in one order cannot wait for each other in a circle. Each crate states its ranks in one
//! place; builds with debug assertions check them at every lock, on every path that tests take.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

/// The place of a lock in the order: of two locks the one with the lower rank is taken first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockRank {
    rank: u16,
    name: &'static str,
}

impl LockRank {
    /// A rank with the name that messages call the lock.
    pub const fn new(rank: u16, name: &'static str) -> Self {
        Self { rank, name }
    }

    /// The highest rank. A thread may take the lock while it holds any lock of a lower rank, and takes none while it holds this one.
    pub const fn leaf(name: &'static str) -> Self {
        Self { rank: u16::MAX, name }
    }
}

thread_local! {
    /// The ranks of the locks that this thread holds, in the order in which it took them.
    static HELD: RefCell<Vec<LockRank>> = const { RefCell::new(Vec::new()) };
}

/// A mutex with a rank.
///
/// ```
/// use caju_runtime::{LockRank, OrderedMutex};
/// let accounts = OrderedMutex::new(LockRank::new(1, "accounts"), 0);
/// let log = OrderedMutex::new(LockRank::new(2, "log"), Vec::new());
/// let mut account = accounts.lock();
/// *account += 1;
/// log.lock().push("one more");
/// ```
pub struct OrderedMutex<T> {
    rank: LockRank,
    inner: Mutex<T>,
}

impl<T> OrderedMutex<T> {
    /// A mutex of this rank.
    pub const fn new(rank: LockRank, value: T) -> Self {
        Self { rank, inner: Mutex::new(value) }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// With debug assertions, if this thread holds a lock of the same or a higher rank.
    pub fn lock(&self) -> OrderedGuard<'_, T> {
        let held = Held::new(self.rank);
        OrderedGuard { guard: self.inner.lock(), _held: held }
    }
}

impl<T: fmt::Debug> fmt::Debug for OrderedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedMutex").field("rank", &self.rank).field("value", &self.inner).finish()
    }
}

/// The lock of an [`OrderedMutex`] while it is held.
#[must_use = "the lock is released at once"]
pub struct OrderedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: Held,
}

impl<T> OrderedGuard<'_, T> {
    /// Releases the lock until somebody notifies the condition, and takes it again. The lock keeps its place in the order: this
    /// thread takes no other one while it waits.
    pub fn wait(&mut self, condition: &Condvar) {
        condition.wait(&mut self.guard);
    }
}

impl<T> Deref for OrderedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for OrderedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for OrderedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.guard, f)
    }
}

/// A lock with a rank for many readers or one writer.
///
/// ```
/// use caju_runtime::{LockRank, OrderedRwLock};
/// let names = OrderedRwLock::new(LockRank::leaf("names"), vec!["a"]);
/// names.write().push("b");
/// assert_eq!(names.read().len(), 2);
/// ```
#[derive(Debug)]
pub struct OrderedRwLock<T> {
    rank: LockRank,
    inner: RwLock<T>,
}

impl<T> OrderedRwLock<T> {
    /// A lock of this rank.
    pub const fn new(rank: LockRank, value: T) -> Self {
        Self { rank, inner: RwLock::new(value) }
    }

    /// Takes the lock together with other readers.
    ///
    /// # Panics
    /// As [`OrderedMutex::lock`]. A thread that reads counts as one that holds the lock: a second read could wait for a writer
    /// that waits for the first one.
    pub fn read(&self) -> impl Deref<Target = T> {
        let held = Held::new(self.rank);
        RwGuard { guard: self.inner.read(), _held: held }
    }

    /// Takes the lock alone.
    ///
    /// # Panics
    /// As [`OrderedMutex::lock`].
    pub fn write(&self) -> impl DerefMut<Target = T> {
        let held = Held::new(self.rank);
        RwGuard { guard: self.inner.write(), _held: held }
    }
}

/// The lock of an [`OrderedRwLock`] while it is held.
#[must_use = "the lock is released at once"]
struct RwGuard<G> {
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for RwGuard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for RwGuard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// This thread waits for a lock, or holds it, until this is dropped.
struct Held(LockRank);

impl Held {
    fn new(rank: LockRank) -> Self {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                let above = held.iter().find(|h| h.rank >= rank.rank).copied();
                if let Some(above) = above {
                    // Before the lock is waited for: else two threads could wait for each other for ever.
                    panic!("the lock of `{}` is taken while that of `{}` is held", rank.name, above.name);
                }
                held.push(rank);
            });
        }
        Self(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|h| *h == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: LockRank = LockRank::new(1, "first");
    const SECOND: LockRank = LockRank::new(2, "second");

    #[test]
    fn locks_are_taken_in_their_order_and_released_in_any() {
        let (a, b) = (OrderedMutex::new(FIRST, 1), OrderedMutex::new(SECOND, 2));
        let (one, two) = (a.lock(), b.lock());
        assert_eq!(*one + *two, 3);
        drop(one);
        drop(two);
        *b.lock() += 1;
        drop(a.lock());
        assert_eq!(*b.lock(), 3);
    }

    #[test]
    fn a_wait_releases_the_lock_and_takes_it_again() {
        let (ready, condition) = (OrderedMutex::new(FIRST, false), Condvar::new());
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                let mut ready = ready.lock();
                while !*ready {
                    ready.wait(&condition);
                }
            });
            *ready.lock() = true;
            condition.notify_one();
            waiting.join().unwrap();
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    fn another_order_is_found_by_the_first_thread_that_takes_it() {
        let (a, b) = (OrderedMutex::new(FIRST, ()), OrderedMutex::new(SECOND, ()));
        let found = std::thread::scope(|threads| {
            let wrong = threads.spawn(|| {
                let _second = b.lock();
                let _first = a.lock();
            });
            wrong.join().unwrap_err()
        });
        assert_eq!(crate::panic_text(&*found), "the lock of `first` is taken while that of `second` is held");
        // Two locks of one rank may be those of two peers.
        let (one, other) = (OrderedMutex::new(FIRST, ()), OrderedMutex::new(FIRST, ()));
        let same = std::thread::scope(|threads| {
            let both = || {
                let _one = one.lock();
                let _other = other.lock();
            };
            threads.spawn(both).join()
        });
        assert!(same.is_err());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn nothing_is_taken_while_a_leaf_is_held() {
        let (first, leaf) = (OrderedMutex::new(FIRST, ()), OrderedRwLock::new(LockRank::leaf("leaf"), 0));
        let taken =
            |work: &(dyn Fn() + Sync)| std::thread::scope(|threads| threads.spawn(work).join().is_ok());
        assert!(taken(&|| {
            let _first = first.lock();
            *leaf.write() += 1;
            assert_eq!(*leaf.read(), 1);
        }));
        assert!(!taken(&|| {
            let _leaf = leaf.read();
            drop(first.lock());
        }));
        assert!(!taken(&|| {
            let _leaf = leaf.read();
            drop(leaf.read());
        }));
        assert!(taken(&|| drop(leaf.write())), "the panics have released it");
    }
}
