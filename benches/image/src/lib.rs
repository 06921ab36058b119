//! What the benchmark, the differential test and the writer of golden hashes share.

pub mod decoders;
#[path = "../../../crates/image/src/tests/painted.rs"]
pub mod painted;
pub mod report;
pub mod tasks;
pub mod turbo;

/// An error of any of the libraries, as text.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
