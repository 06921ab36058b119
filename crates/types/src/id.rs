//! Identifiers. Each has a type of its own, so that no two can be confused.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "-{}"), self.0)
            }
        }
    )*};
}

number! {
    /// One epoch of a job.
    IterationId, "iteration";
    /// An iteration's work on one worker.
    TaskId, "task";
    /// A registered worker process.
    WorkerId, "worker";
    /// One reader of a job.
    ClientId, "client";
}

macro_rules! text {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

text! {
    /// A registered dataset: a name that the user chose, or its fingerprint.
    DatasetId;
    /// The name under which clients share a job.
    JobName;
}
