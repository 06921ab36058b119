//! What is fuzzed: each target takes any bytes and panics if a promise about them does not hold.
//!
//! The same functions are called by the libFuzzer binaries in `fuzz/fuzz_targets`, which need a nightly compiler, and by
//! this crate's tests, which replay the seeds in `fuzz/corpus` and a thousand mutations of them. `fuzz/README.md` says
//! how to run, replay and extend them.
//!
//! Every target holds: no panic escapes, nothing waits longer than [`DEADLINE`], and no more than [`MOST_BYTES`] are
//! allocated for one input (libFuzzer's `-malloc_limit_mb`, and an allocator that counts in the tests). The further
//! promises of a target are in its module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed promise has to end the process")]

mod control;
mod environment;
mod example;
mod expression;
mod files;
mod frame;
mod image;
pub mod mutate;
mod part;
mod peer;
mod pipeline;
mod profile;
mod record;

pub use control::CALLS;
pub use environment::{DEADLINE, corpus, seeds};
pub use part::input as part_input;
pub use peer::PEER_CALLS;
pub use record::{OF, SPLIT};

/// The most bytes that one input may have allocated at any moment, beyond what was allocated before it. Decoded images
/// of some megapixels and Arrow batches fit; what a length field of a few bytes can ask for does not.
pub const MOST_BYTES: usize = 512 << 20;

/// Something that is fuzzed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, as of the folder of its seeds.
    pub name: &'static str,
    /// Runs it on one input. Panics where a promise does not hold.
    pub one: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 20] = [
    Target { name: "arrow", one: files::arrow },
    Target { name: "csv", one: files::csv },
    Target { name: "example", one: example::one },
    Target { name: "expression", one: expression::one },
    Target { name: "flight", one: control::flight },
    Target { name: "frame", one: frame::one },
    Target { name: "image", one: image::one },
    Target { name: "json", one: files::json },
    Target { name: "memory", one: files::memory },
    Target { name: "message", one: control::message },
    Target { name: "messages", one: control::decode },
    Target { name: "parquet", one: files::parquet },
    Target { name: "part", one: part::one },
    Target { name: "peer", one: peer::one },
    Target { name: "pipeline", one: pipeline::one },
    Target { name: "profile", one: profile::one },
    Target { name: "record", one: record::one },
    Target { name: "tar", one: files::tar },
    Target { name: "tfrecord", one: files::tfrecord },
    Target { name: "ticket", one: control::ticket },
];

/// The target of a name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> Target {
    *TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no target is named {name}"))
}
