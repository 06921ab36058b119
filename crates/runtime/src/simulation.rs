//! Running a whole process on one thread, so that a seed determines everything that it does.
//!
//! Simulations call [`simulate`] before they start anything. From then on this crate starts no threads: work of
//! [`CpuPool`](crate::CpuPool), [`blocking`](crate::blocking) and [`IsolatedThreads`](crate::IsolatedThreads) runs where
//! it is submitted, and [`random_secret`](crate::random_secret) draws from the seed. Nothing outside of tests calls it.

use std::sync::OnceLock;

use parking_lot::Mutex;

static GENERATOR: OnceLock<Mutex<u64>> = OnceLock::new();

/// Makes this process a simulation, for good: no threads of this crate, and secrets that depend on `seed` alone.
///
/// Secrets can then be guessed. Returns false if the process is a simulation already; then nothing changes.
pub fn simulate(seed: u64) -> bool {
    GENERATOR.set(Mutex::new(seed)).is_ok()
}

/// Whether [`simulate`] was called in this process.
pub fn is_simulated() -> bool {
    GENERATOR.get().is_some()
}

/// Fills a buffer from the seed; false if this process is no simulation.
pub(crate) fn fill_seeded(bytes: &mut [u8]) -> bool {
    let Some(state) = GENERATOR.get() else { return false };
    let mut state = state.lock();
    for chunk in bytes.chunks_mut(8) {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        chunk.copy_from_slice(&caju_types::mix64(*state, 0).to_le_bytes()[..chunk.len()]);
    }
    true
}
