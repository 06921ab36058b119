//! The libFuzzer binary, which runs the target that `CAJU_FUZZ_TARGET` names.

use std::sync::OnceLock;

use caju_fuzz::Target;

/// Finds the target, and lets panics be caught: libFuzzer aborts at every panic, but those of libraries that our readers turn
/// into errors keep the promise. A panic that leaves a target still ends the process.
pub fn prepare() {
    target();
    drop(std::panic::take_hook());
}

/// The target that the environment names.
///
/// # Panics
/// Without `CAJU_FUZZ_TARGET`, or if it names none.
pub fn target() -> Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("CAJU_FUZZ_TARGET").expect("CAJU_FUZZ_TARGET names a target of fuzz/corpus");
        caju_fuzz::target(&name)
    })
}
