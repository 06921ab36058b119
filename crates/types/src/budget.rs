//! A memory budget per chunk of work.
//!
//! Rust cannot unwind when the allocator fails: the process aborts, and every job in it is lost. So code that allocates by
//! a number from data, a peer or a definition asks this budget first. [`scope`] opens a budget of bytes on the current
//! thread for the work on one chunk. [`reserve`] and [`hold`] charge it. A request above the budget is an error that names
//! what was requested. The budget is cooperative: it counts requests, not the memory that the allocator gives.
//!
//! A scope also bounds steps: units of work of functions whose time is not linear in the bytes that they handle. Such a function
//! charges them with [`charge_steps`] before it computes.
//!
//! ```
//! use caju_types::budget;
//! let e = budget::scope(1 << 20, || budget::vec::<f32>(budget::product(&[1000, 2000]), "one_hot").unwrap_err());
//! assert!(e.message().starts_with("one_hot needs 7.63 MiB"), "{e}");
//! ```

use std::cell::Cell;
use std::fmt::Display;
use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::units::{format_bytes, format_count};

/// The bytes of a chunk's budget unless a setting changes it, and the limit of each request outside of a scope. It is enough
/// for wide rows, and several concurrent chunks still fit the memory of a usual machine.
pub const DEFAULT_BYTES: u64 = 1 << 30;

/// The steps of a chunk's budget unless a setting changes it, and the limit of each charge outside of a scope. A step takes
/// about a nanosecond, so one piece of work holds a CPU thread for seconds at most.
pub const DEFAULT_STEPS: u64 = 1 << 30;

#[derive(Debug, Clone, Copy)]
struct Scope {
    limit: u64,
    used: u64,
    max_steps: u64,
    steps: u64,
}

thread_local! {
    static SCOPE: Cell<Option<Scope>> = const { Cell::new(None) };
}

/// Restores the outer scope when the inner one ends, even by a panic.
struct Restore(Option<Scope>);

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPE.set(self.0);
    }
}

/// Runs `work` with a budget of `limit` bytes. A scope within a scope has a budget of its own.
pub fn scope<T>(limit: u64, work: impl FnOnce() -> T) -> T {
    scope_with(limit, DEFAULT_STEPS, work)
}

/// As [`scope`], with `max_steps` steps.
pub fn scope_with<T>(limit: u64, max_steps: u64, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(SCOPE.replace(Some(Scope { limit, used: 0, max_steps, steps: 0 })));
    work()
}

/// Charges `steps` until the scope ends. Outside of a scope the charge is compared with [`DEFAULT_STEPS`].
///
/// ```
/// use caju_types::budget;
/// let e = budget::scope_with(0, 1000, || budget::charge_steps(2000, "levenshtein").unwrap_err());
/// assert!(e.message().starts_with("levenshtein needs 2,000 steps"), "{e}");
/// ```
///
/// # Errors
/// `ResourceExhausted`, which names `what`, its steps and the limit, if `steps` exceeds what remains of the budget.
pub fn charge_steps(steps: u64, what: impl Display) -> Result<()> {
    let scope = SCOPE.get();
    let (max_steps, before) = scope.map_or((DEFAULT_STEPS, 0), |s| (s.max_steps, s.steps));
    match before.checked_add(steps).filter(|sum| *sum <= max_steps) {
        Some(steps) => {
            if let Some(s) = scope {
                SCOPE.set(Some(Scope { steps, ..s }));
            }
            Ok(())
        }
        None => Err(too_many_steps(&what, steps, max_steps)),
    }
}

/// Compares `steps` with the limit of the scope without charging them: for work that proceeds row by row, where only a single
/// row may exceed the limit.
///
/// # Errors
/// As [`charge_steps`].
pub fn check_steps(steps: u64, what: impl Display) -> Result<()> {
    let max_steps = SCOPE.get().map_or(DEFAULT_STEPS, |s| s.max_steps);
    if steps > max_steps { Err(too_many_steps(&what, steps, max_steps)) } else { Ok(()) }
}

fn too_many_steps(what: &dyn Display, steps: u64, max_steps: u64) -> Error {
    Error::exhausted(format!(
        "{what} needs {} steps, and {} is the most that the work on one chunk may take; give it shorter values, or raise \
         --chunk-steps",
        format_count(steps),
        format_count(max_steps)
    ))
}

/// Charges `bytes` until the scope ends. Outside of a scope the request is compared with [`DEFAULT_BYTES`].
///
/// # Errors
/// `ResourceExhausted`, which names `what`, its size and the budget, if `bytes` exceeds what remains of the budget.
pub fn reserve(bytes: u64, what: impl Display) -> Result<()> {
    let scope = SCOPE.get();
    let (limit, used) = scope.map_or((DEFAULT_BYTES, 0), |s| (s.limit, s.used));
    match used.checked_add(bytes).filter(|sum| *sum <= limit) {
        Some(used) => {
            if let Some(s) = scope {
                SCOPE.set(Some(Scope { used, ..s }));
            }
            Ok(())
        }
        None if used == 0 || bytes > limit => Err(too_much(&what, bytes, limit)),
        None => Err(Error::exhausted(format!(
            "{what} needs {}, {} are taken, and {} is the most that the work on one chunk may take; make it smaller, or raise \
             --chunk-memory",
            format_bytes(bytes),
            format_bytes(used),
            format_bytes(limit)
        ))),
    }
}

/// The error for `what`, which would take `bytes` where a chunk may take `limit`.
pub fn too_much(what: &dyn Display, bytes: u64, limit: u64) -> Error {
    let size = if bytes == u64::MAX { "over 16 EiB".to_owned() } else { format_bytes(bytes) };
    Error::exhausted(format!(
        "{what} needs {size}, and {} is the most that the work on one chunk may take; make it smaller, or raise \
         --chunk-memory",
        format_bytes(limit)
    ))
}

/// A charge that ends when it is dropped, for buffers that do not outlive the work on one row.
#[derive(Debug)]
#[must_use = "the charge ends when this is dropped"]
pub struct Reservation {
    bytes: u64,
    /// The budget belongs to the thread.
    local: PhantomData<*const ()>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(s) = SCOPE.get() {
            SCOPE.set(Some(Scope { used: s.used.saturating_sub(self.bytes), ..s }));
        }
    }
}

/// Charges `bytes` until the returned guard is dropped.
///
/// # Errors
/// As [`reserve`].
pub fn hold(bytes: u64, what: impl Display) -> Result<Reservation> {
    reserve(bytes, what)?;
    Ok(Reservation { bytes, local: PhantomData })
}

/// The product of sizes; `usize::MAX`, which exceeds every budget, if it overflows.
pub fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1usize, |a, n| a.saturating_mul(*n))
}

/// The bytes of `len` values of type `T`; `u64::MAX` if that overflows.
pub fn bytes_of<T>(len: usize) -> u64 {
    (len as u64).saturating_mul(size_of::<T>() as u64)
}

/// `len` default values, charged to the scope.
///
/// # Errors
/// As [`reserve`].
pub fn vec<T: Clone + Default>(len: usize, what: impl Display) -> Result<Vec<T>> {
    reserve(bytes_of::<T>(len), what)?;
    Ok(vec![T::default(); len])
}

/// An empty vector with a capacity for `len` values, charged to the scope.
///
/// # Errors
/// As [`reserve`].
pub fn with_capacity<T>(len: usize, what: impl Display) -> Result<Vec<T>> {
    reserve(bytes_of::<T>(len), what)?;
    Ok(Vec::with_capacity(len))
}

#[cfg(test)]
mod tests {
    use crate::error::ErrorKind;

    use super::*;

    #[test]
    fn charges_add_up_within_a_scope_and_end_with_it() {
        scope(100, || {
            reserve(60, "a").unwrap();
            let e = reserve(60, "a list of 60 bytes").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
            assert!(
                e.message()
                    .starts_with("a list of 60 bytes needs 60 B, 60 B are taken, and 100 B is the most"),
                "{e}"
            );
            scope(10, || reserve(40, "b").unwrap_err());
            drop(hold(40, "b").unwrap());
            reserve(40, "b").unwrap();
            reserve(1, "c").unwrap_err();
        });
        reserve(DEFAULT_BYTES, "no scope").unwrap();
        reserve(DEFAULT_BYTES + 1, "no scope").unwrap_err();
    }

    #[test]
    fn steps_add_up_within_a_scope_and_leave_the_bytes_alone() {
        scope_with(10, 100, || {
            charge_steps(60, "a").unwrap();
            reserve(10, "all bytes").unwrap();
            let e = charge_steps(60, "b").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
            assert!(e.message().starts_with("b needs 60 steps, and 100 is the most"), "{e}");
            scope(10, || charge_steps(DEFAULT_STEPS + 1, "c").unwrap_err());
            charge_steps(40, "the remainder").unwrap();
            check_steps(100, "a row alone").unwrap();
            check_steps(101, "a row alone").unwrap_err();
            charge_steps(u64::MAX, "an overflow").unwrap_err();
        });
        charge_steps(DEFAULT_STEPS, "no scope").unwrap();
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(product(&[usize::MAX, 2]), usize::MAX);
        let e = vec::<u64>(product(&[1 << 40, 1 << 40]), "pad").unwrap_err();
        assert!(e.message().starts_with("pad needs over 16 EiB"), "{e}");
        scope(u64::MAX - 1, || {
            reserve(u64::MAX - 1, "all").unwrap();
            with_capacity::<u8>(1, "one more").unwrap_err();
        });
    }

    #[test]
    fn a_panic_ends_the_scope() {
        drop(std::panic::catch_unwind(|| scope(1, || panic!("boom"))));
        reserve(2, "after").unwrap();
    }
}
