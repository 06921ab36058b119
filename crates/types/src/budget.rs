//! A memory budget per chunk of work.
//!
//! Rust cannot unwind when the allocator fails: the process aborts, and every job in it is lost. So code that allocates by
//! a number from data, a peer or a definition asks this budget first. [`scope`] opens a budget of bytes on the current
//! thread for the work on one chunk. [`reserve`] and [`hold`] charge it. A request above the budget is an error that names
//! what was requested. The budget is cooperative: it counts requests, not the memory that the allocator gives.
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
use crate::units::format_bytes;

/// The bytes of a chunk's budget unless a setting changes it, and the limit of each request outside of a scope. It leaves
/// room for wide rows, and several chunks at once still fit a usual machine.
pub const DEFAULT_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, Copy)]
struct Scope {
    limit: u64,
    used: u64,
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
    let _restore = Restore(SCOPE.replace(Some(Scope { limit, used: 0 })));
    work()
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
            if scope.is_some() {
                SCOPE.set(Some(Scope { limit, used }));
            }
            Ok(())
        }
        None => Err(too_much(&what, bytes, limit)),
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
pub struct Held {
    bytes: u64,
    /// The budget belongs to the thread.
    local: PhantomData<*const ()>,
}

impl Drop for Held {
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
pub fn hold(bytes: u64, what: impl Display) -> Result<Held> {
    reserve(bytes, what)?;
    Ok(Held { bytes, local: PhantomData })
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
            assert!(e.message().starts_with("a list of 60 bytes needs 60 B, and 100 B is the most"), "{e}");
            scope(10, || reserve(40, "b").unwrap_err());
            drop(hold(40, "b").unwrap());
            reserve(40, "b").unwrap();
            reserve(1, "c").unwrap_err();
        });
        reserve(DEFAULT_BYTES, "no scope").unwrap();
        reserve(DEFAULT_BYTES + 1, "no scope").unwrap_err();
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
