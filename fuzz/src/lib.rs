//! What the libFuzzer binaries share.

/// Lets panics be caught: libFuzzer aborts at every panic, but those of libraries that our readers turn into errors keep
/// the promise. A panic that leaves a target still ends the process.
pub fn prepare() {
    drop(std::panic::take_hook());
}
