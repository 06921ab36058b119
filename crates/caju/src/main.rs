//! The `caju` binary.

use std::ffi::{c_int, c_long};
use std::process::ExitCode;

/// Returns memory to the system sooner than the C library's allocator, and is quicker with many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long freed memory of `caju quickstart` waits for its next use before the system gets it back, in milliseconds. Its peak is
/// about 400 MiB then, with 100 it is 440 to 500 MiB, and with the allocator's own 1000 more than 540. Other commands keep 1000:
/// with 100 a table of many columns takes 4 to 9 % more CPU time (P4 of benches/peers), because its pages come back empty.
const PURGE_DELAY_MS: c_long = 10;

/// The number of `mi_option_purge_delay` in mimalloc 3.
const PURGE_DELAY: c_int = 15;

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

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if args.iter().any(|arg| arg == "quickstart") {
        options::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS);
    }
    ExitCode::from(caju_command::run(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other option of the allocator is 1000 by default, but one of a mode that is not built.
    #[test]
    fn the_allocators_purge_delay_is_the_one_that_is_set() {
        assert_eq!(options::mi_option_get(PURGE_DELAY), 1000);
        options::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS);
        assert_eq!(options::mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
