//! How long the allocator of the binary, and of the Python package, keeps freed memory.

use std::ffi::{c_int, c_long};

use mimalloc as _;

/// The number of `mi_option_purge_delay` in mimalloc 3.
const PURGE_DELAY: c_int = 15;

/// Milliseconds for which freed memory waits for its next use before the system gets it back. Memory that comes from the system has
/// to be cleared. With mimalloc's own 1000 a worker with two threads spends 8 % of its time on that, and makes 13 % fewer rows of
/// float32 images per second of CPU time. Its peak is the same, since what is freed is used again.
const PURGE_DELAY_MS: c_long = 10_000;

/// The same for `caju quickstart`, which runs on hosts that do other work. Its peak is about 400 MiB then, and with 1000 more than 540.
const QUICKSTART_PURGE_DELAY_MS: c_long = 10;

#[allow(unsafe_code, reason = "the allocator's crate has no safe wrapper of its options")]
mod options {
    use std::ffi::{c_int, c_long};

    // SAFETY: both are functions of mimalloc 3, with these types, and may be called from any thread. They ignore numbers that
    // are no options.
    unsafe extern "C" {
        /// Sets an option unless its environment variable is set.
        pub(super) safe fn mi_option_set_default(option: c_int, value: c_long);
        #[cfg(test)]
        pub(super) safe fn mi_option_get(option: c_int) -> c_long;
    }
}

/// Sets how long the allocator keeps freed memory: as is best for workers and readers, or as little as `caju quickstart` does.
/// `MIMALLOC_PURGE_DELAY` in the environment, in milliseconds, overrides it.
///
/// Programs whose global allocator is mimalloc call it when they start. In others it has no effect.
pub fn keep_freed_memory(is_quickstart: bool) {
    options::mi_option_set_default(
        PURGE_DELAY,
        if is_quickstart { QUICKSTART_PURGE_DELAY_MS } else { PURGE_DELAY_MS },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other option of the allocator is 1000 by default, but one of a mode that is not built.
    #[test]
    fn the_allocators_purge_delay_is_the_one_that_is_set() {
        assert_eq!(options::mi_option_get(PURGE_DELAY), 1000);
        keep_freed_memory(true);
        assert_eq!(options::mi_option_get(PURGE_DELAY), QUICKSTART_PURGE_DELAY_MS);
        keep_freed_memory(false);
        assert_eq!(options::mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
