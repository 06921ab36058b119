//! The `caju` binary: the only room that reads flags, files and the environment.

mod cli;
mod commands;
mod config;
mod generate;
mod output;
mod process;
mod progress;
mod report;

use std::process::ExitCode;

/// Returns memory to the system sooner than the C library's allocator, and is quicker with many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    process::main()
}
