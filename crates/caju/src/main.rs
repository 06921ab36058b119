//! The `caju` binary.

use std::process::ExitCode;

/// Returns memory to the system sooner than the C library's allocator, and is quicker with many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(caju_command::run(std::env::args_os().collect()))
}
