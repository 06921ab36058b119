//! The cores of this process.

/// Cores that this process may use.
pub(crate) fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
