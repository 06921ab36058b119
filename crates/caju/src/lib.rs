//! The `caju` command: the only crate that reads flags, configuration files and the environment.
//!
//! A library with one entry point, [`run`], so that the Python package can bring the command without a second copy of the
//! engine.

mod allocator;
mod cli;
mod commands;
mod config;
mod cores;
mod input_file;
mod output;
mod plot;
mod process;
mod progress;
mod rank;
mod report;
mod text;

pub use allocator::keep_freed_memory;
pub use process::run;
