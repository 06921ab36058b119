//! Internal names in rewritten expressions.

/// The prefix of the names of calls that were taken out. The call's number follows.
pub(crate) const CALL: &str = "__caju_call_";

/// The column with the key of each row.
pub(crate) const KEY_COLUMN: &str = "__caju_key";
