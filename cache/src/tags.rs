//! Entries in the metadata of a part's file, by which the file itself says which part it is.

use caju_types::{Fingerprint, SplitKey};

/// The start of every key of ours.
pub(crate) const PREFIX: &str = "caju.";
/// The key of the rows' schema as JSON. Written where the file's own schema lacks dictionaries.
pub(crate) const SCHEMA: &str = "caju.schema";

/// The entries that name a part. A reader compares them with the part's record.
pub(crate) fn identity(of: Fingerprint, split: SplitKey, attempt: &str) -> [(&'static str, String); 4] {
    [
        ("caju.format", crate::layout::VERSION.to_string()),
        ("caju.fingerprint", of.to_string()),
        ("caju.split", split.to_string()),
        ("caju.attempt", attempt.to_string()),
    ]
}
