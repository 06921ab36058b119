//! What the end-to-end tests share: the real binary, its processes, sample data and damaged files.
//!
//! Nothing here uses caju's crates: the tests see what a user sees, that is files, command lines, exit codes, standard output,
//! the wire, and the client library (`chaos::reader`). Every wait has a deadline and awaits an event; a process that outlives
//! its test is killed.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a helper of tests fails the test, and makes small files"
)]

pub mod binary;
pub mod chaos;
pub mod cluster;
pub mod epoch_end;
pub mod files;
pub mod frames;
pub mod http;
pub mod pipeline;
pub mod process;
pub mod sockets;

pub use cluster::Cluster;
pub use pipeline::Pipeline;
pub use process::{Ended, Process, caju, caju_in};
