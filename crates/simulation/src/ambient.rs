//! Time, waiting and randomness of the process, replaced below everything else.
//!
//! The standard library and tokio ask the system for the time (`clock_gettime`), for random numbers (`getrandom`) and
//! for what happens next (`epoll_wait`). The simulator defines these three symbols itself, so the linker binds every
//! caller to them. Until [`start`] they pass the call on. From then on
//!
//! - the time is a number that only `epoll_wait` moves: where a thread would sleep until a timer is due, the clock is set
//!   to that moment and no thread waits;
//! - random numbers come from the seed, so that the order of hash maps and the choices of `select!` repeat.
//!
//! Everything else is what runs in production. The test kit `mad-turmoil` replaces the same symbols for `turmoil`.

#![allow(unsafe_code, reason = "functions of the C library have C signatures")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::{c_int, c_long, c_uint, c_void, clockid_t, epoll_event, size_t, ssize_t, timespec};

/// The wall clock at the beginning of every simulation, in nanoseconds since the Unix epoch: 2026-01-01.
const BEGIN_UNIX_NS: u64 = 1_767_225_600_000_000_000;
/// The monotonic clock at the beginning, in nanoseconds: far from zero, so that earlier moments exist.
const BEGIN_NS: u64 = 1_000_000_000_000;
/// The real time that a run may take before the system ends it, in seconds: a run takes less than one.
const REAL_LIMIT_S: c_uint = 300;
const SECOND_NS: u64 = 1_000_000_000;

static IS_ON: AtomicBool = AtomicBool::new(false);
static ELAPSED_NS: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static WHEN_STUCK: OnceLock<fn() -> !> = OnceLock::new();

/// Takes over time and randomness of this process, for good. `when_stuck` is called when every task waits and no timer is
/// set: nothing would ever happen again.
///
/// The simulation must run on a thread that is started afterwards.
pub(crate) fn start(seed: u64, when_stuck: fn() -> !) {
    RANDOM.store(seed, Ordering::SeqCst);
    WHEN_STUCK.get_or_init(|| when_stuck);
    // SAFETY: this sets a timer, and nothing else. Its signal ends a process that runs in circles.
    unsafe { libc::alarm(REAL_LIMIT_S) };
    IS_ON.store(true, Ordering::SeqCst);
}

/// The simulated time since the beginning.
pub(crate) fn elapsed() -> Duration {
    Duration::from_nanos(ELAPSED_NS.load(Ordering::Relaxed))
}

fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// # Safety
/// As `clock_gettime(2)`: `at` points to a `timespec` that may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, at: *mut timespec) -> c_int {
    if !is_on() {
        // SAFETY: the arguments are those of the system call, and the caller vouches for them.
        let done = unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), at) };
        return if done == 0 { 0 } else { -1 };
    }
    let elapsed = ELAPSED_NS.load(Ordering::Relaxed);
    let now = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => BEGIN_UNIX_NS + elapsed,
        // Computing takes no time.
        libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID => 0,
        _ => BEGIN_NS + elapsed,
    };
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    // SAFETY: the caller passes a pointer that may be written.
    unsafe { *at = timespec { tv_sec: signed(now / SECOND_NS), tv_nsec: signed(now % SECOND_NS) } };
    0
}

/// # Safety
/// As `getrandom(2)`: `buffer` has `length` bytes that may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !is_on() {
        // SAFETY: the arguments are those of the system call, and the caller vouches for them.
        let done = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, c_long::from(flags)) };
        return ssize_t::try_from(done).unwrap_or(-1);
    }
    // SAFETY: the caller passes a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        let n = RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        chunk.copy_from_slice(&caju_types::mix64(n, 1).to_le_bytes()[..chunk.len()]);
    }
    ssize_t::try_from(length).unwrap_or(ssize_t::MAX)
}

/// # Safety
/// As `epoll_wait(2)`: `events` has space for `most` events.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    poll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    let wait = |timeout: c_int| {
        let (poll, most) = (c_long::from(poll), c_long::from(most));
        // SAFETY: the arguments are those of the system call, and the caller vouches for them.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait,
                poll,
                events,
                most,
                c_long::from(timeout),
                std::ptr::null::<c_void>(),
                c_long::from(0_u8),
            )
        };
        c_int::try_from(n).unwrap_or(-1)
    };
    if !is_on() {
        return wait(timeout_ms);
    }
    let ready = wait(0);
    if ready != 0 || timeout_ms == 0 {
        return ready;
    }
    match u64::try_from(timeout_ms) {
        Ok(ms) => {
            ELAPSED_NS.fetch_add(ms * 1_000_000, Ordering::Relaxed);
            0
        }
        Err(_) => WHEN_STUCK.get().map_or(0, |stuck| stuck()),
    }
}
