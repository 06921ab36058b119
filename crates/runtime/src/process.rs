//! What the operating system says about this process.

use std::ffi::OsString;
use std::time::Duration;

/// CPU time of this process so far, user and system together.
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[allow(unsafe_code, reason = "clock_gettime has no safe wrapper in std")]
fn clock(id: libc::clockid_t) -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid, writable timespec for the duration of the call.
    let rc = unsafe { libc::clock_gettime(id, &raw mut ts) };
    if rc != 0 {
        return Duration::ZERO;
    }
    Duration::new(u64::try_from(ts.tv_sec).unwrap_or(0), u32::try_from(ts.tv_nsec).unwrap_or(0))
}

/// Blocks that the calling thread had to fetch from devices so far; 0 where the system does not say. A read that
/// does not raise it was served from memory.
pub fn thread_blocks_read() -> u64 {
    #[cfg(target_os = "linux")]
    {
        thread_usage().map_or(0, |u| u64::try_from(u.ru_inblock).unwrap_or(0))
    }
    #[cfg(not(target_os = "linux"))]
    {
        0
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "getrusage has no safe wrapper in std")]
fn thread_usage() -> Option<libc::rusage> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid and writable for the duration of the call.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all zeros are a valid rusage, and the call only writes numbers.
    (rc == 0).then(|| unsafe { usage.assume_init() })
}

/// The most memory that this process has held at once, in bytes; 0 where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    status_kib("VmHWM:") * 1024
}

/// The memory that this process holds now, in bytes; 0 where the system does not say.
pub fn rss_bytes() -> u64 {
    status_kib("VmRSS:") * 1024
}

fn status_kib(key: &str) -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    text.lines()
        .find_map(|l| l.strip_prefix(key))
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The variables of this process's environment whose names are wanted, for a process that it starts.
pub fn environment(wanted: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(&wanted)).collect()
}
