//! How long the names may be that others choose.

use caju_types::{Error, Result, shortened};

/// The longest name, identifier, address or URL, in bytes. They are kept, compared and shown: 1 KiB is more than any of
/// them needs.
const LONGEST_NAME: usize = 1024;

/// # Errors
/// `InvalidArgument` for a name that is too long.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.len() <= LONGEST_NAME {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} has {} bytes, and {LONGEST_NAME} are the most: `{}`",
        name.len(),
        shortened(name)
    )))
}
