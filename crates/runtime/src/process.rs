//! Facts of the operating system about this process: times, memory, environment, identity.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// CPU time of this process so far, user and system together.
pub fn cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Where the system counts the time of the calling thread ([`wanted_cpu_time`]); none where it does not.
pub(crate) fn this_thread_stats() -> Option<PathBuf> {
    let thread = std::fs::read_link("/proc/thread-self").ok()?;
    Some(Path::new("/proc").join(thread).join("schedstat"))
}

/// Time for which a thread ran on a core or was ready to, so far: what it would have used of an idle machine. None if it has
/// ended, or if the system does not count that.
pub(crate) fn wanted_cpu_time(stats: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(stats).ok()?;
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let (ran, waited) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Duration::from_nanos(ran.saturating_add(waited)))
}

/// The same of all threads that a process has now, together; none if it has ended, or if the system does not count that.
pub fn wanted_cpu_time_of(process: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let times = threads.filter_map(|t| wanted_cpu_time(&t.ok()?.path().join("schedstat")));
    times.reduce(|a, b| a + b)
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

/// By how much a thread of low priority raises its nice value. Next to a thread that wants all of a core it gets a tenth of that
/// core. With 19, the largest value, it would get 1.5 %. Whoever waits for its result, or for a lock of a library that it held when
/// it was preempted, would then wait seven times as long.
#[cfg(target_os = "linux")]
const LOW_PRIORITY_NICE: libc::c_int = 10;

/// Lowers the priority of the calling thread, until its end: raising it again would need a privilege. Systems other than Linux
/// have a nice value for each process alone, and there nothing changes.
pub(crate) fn lower_thread_priority() {
    #[cfg(target_os = "linux")]
    raise_thread_nice(LOW_PRIORITY_NICE);
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "nice has no safe wrapper in std")]
fn raise_thread_nice(by: libc::c_int) {
    // SAFETY: a call without pointers. On Linux each thread has a nice value of its own, and the call changes the caller's.
    // A sandbox may refuse the call. The work is the same at the usual priority, so the answer is not needed.
    let _nice = unsafe { libc::nice(by) };
}

/// Blocks that the calling thread had to read from devices so far; 0 where the system does not report it. A read that
/// leaves the number unchanged was served from memory.
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

/// The peak resident memory of this process, in bytes; 0 where the system does not report it.
pub fn peak_rss_bytes() -> u64 {
    status_kib("VmHWM:") * 1024
}

/// The resident memory of this process, in bytes; 0 where the system does not report it.
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

/// The variables of this process's environment whose names are `wanted`, for a child process.
pub fn environment(wanted: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(&wanted)).collect()
}

/// Identifies a process of a host among all processes that the host has, had or will have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The boot id of the host's kernel, and the namespace of process ids (a container has one of its own).
    host: String,
    pid: u32,
    /// The start of the process, in the kernel's ticks since boot.
    began: u64,
}

impl ProcessIdentity {
    /// This process; none where the system does not report it.
    pub fn current() -> Option<Self> {
        let pid = std::process::id();
        Some(Self { host: host()?, pid, began: stat(pid)?.1 })
    }

    /// Whether this was a process of this host and has ended. False where that is unknown.
    pub fn has_ended(&self) -> bool {
        if host().as_deref() != Some(self.host.as_str()) {
            return false;
        }
        match stat(self.pid) {
            // A zombie has ended: its parent has not waited for it yet.
            Some((state, began)) => began != self.began || matches!(state, 'Z' | 'X'),
            None => !exists(self.pid),
        }
    }
}

fn host() -> Option<String> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", kernel.trim(), space.display()))
}

/// The state of a process and its start; none if it does not exist or is hidden.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process's name, in parentheses, may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // `starttime` is the 22nd field, and `state` the third.
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Whether a process with this id exists, also one of another user.
#[allow(unsafe_code, reason = "kill has no safe wrapper in std")]
fn exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 only checks that the process exists.
    let sent = unsafe { libc::kill(pid, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Asks a process to end (SIGTERM). For a child that its parent has not waited for: its id belongs to no other process.
#[allow(unsafe_code, reason = "kill has no safe wrapper in std")]
pub fn terminate(child: u32) {
    let Some(pid) = libc::pid_t::try_from(child).ok().filter(|pid| *pid > 0) else { return };
    // SAFETY: a call without pointers. A process that has ended gets nothing.
    let _sent = unsafe { libc::kill(pid, libc::SIGTERM) };
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_ended_is_gone() {
        let me = ProcessIdentity::current().unwrap();
        assert!(!me.has_ended());
        let earlier = ProcessIdentity { began: me.began - 1, ..me.clone() };
        assert!(earlier.has_ended(), "its id was used again");
        let elsewhere = ProcessIdentity { host: "another host".into(), ..earlier };
        assert!(!elsewhere.has_ended(), "nothing is known of other hosts");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let child_is = ProcessIdentity { pid, began: stat(pid).unwrap().1, ..me };
        assert!(!child_is.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(child_is.has_ended());
    }
}
