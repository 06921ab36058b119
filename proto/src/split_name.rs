//! Names of splits in requests of workers.

use caju_types::hash128;

/// A name of a split, by the description of it in its lease (`split_json`). Equal splits of different jobs have equal names.
/// Names are hints: two splits may have one name, and then one of them is leased in place of the other.
///
/// ```
/// assert_eq!(caju_proto::split_name("{}"), caju_proto::split_name("{}"));
/// assert_ne!(caju_proto::split_name("{}"), caju_proto::split_name("[]"));
/// ```
pub fn split_name(description: &str) -> u64 {
    u64::try_from(hash128(description.as_bytes()) >> 64).unwrap_or(0)
}
