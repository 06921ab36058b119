//! Settled files: local files whose next change is certain to change their times.
//!
//! A file's version is its size and its times. A file system's clock moves in steps. Two changes within one step leave the
//! same times, so that a rewrite of the same length would pass for the listed version. A file that changed within the last
//! step is therefore listed when the step is over: any later change gives it other times. This does not protect where the
//! clocks of a file server and of this host differ by more than a step. There, changed files have
//! to get other names.

use std::fs::Metadata;
use std::io;
use std::time::Duration;

use super::error::io_error;
use super::file::{Listed, listed, local_version};
use crate::clock::{Clock, SystemClock};
use caju_types::Result;

/// The clock step of file systems that store fractions of a second. The kernel's tick is 10 ms at most.
const FINE_STEP: Duration = Duration::from_millis(20);
/// The clock step of file systems that store whole seconds. FAT stores even seconds.
const COARSE_STEP: Duration = Duration::from_secs(2);
/// How often a file that keeps changing is waited for. After that it is listed with its metadata of that moment.
const MAX_ROUNDS: usize = 3;
/// Nanoseconds of a second.
const SECOND_NS: i64 = 1_000_000_000;

fn step(mtime_ns: i64, ctime_ns: i64) -> Duration {
    let coarse = mtime_ns % SECOND_NS == 0 && ctime_ns % SECOND_NS == 0;
    if coarse { COARSE_STEP } else { FINE_STEP }
}

/// Whether any later change of a local file is certain to change its times, so that they can serve as its version.
pub fn is_settled(metadata: &Metadata, clock: &dyn Clock) -> bool {
    let (_, mtime, ctime) = local_version(metadata);
    let now = i64::try_from(clock.unix_time().as_nanos()).unwrap_or(i64::MAX);
    let age = u64::try_from(now.saturating_sub(ctime)).map(Duration::from_nanos);
    age.is_ok_and(|age| age >= step(mtime, ctime))
}

/// The remaining time until a file that changed at `ctime_ns` is settled. Times are in nanoseconds since 1970.
fn unsettled_for(now_ns: i64, mtime_ns: i64, ctime_ns: i64) -> Duration {
    // A time in the future comes from another clock, and says nothing about the file's age.
    let Ok(age) = u64::try_from(now_ns.saturating_sub(ctime_ns)) else { return Duration::ZERO };
    step(mtime_ns, ctime_ns).saturating_sub(Duration::from_nanos(age))
}

/// Waits until files are settled, and gives their metadata then. Files that were deleted meanwhile are left out.
pub(super) async fn settled(mut files: Vec<Listed>) -> Result<Vec<Listed>> {
    let clock = SystemClock::shared();
    for _ in 0..MAX_ROUNDS {
        let now = i64::try_from(clock.unix_time().as_nanos()).unwrap_or(i64::MAX);
        let wait = |f: &Listed| match (f.mtime_ns, f.ctime_ns) {
            (Some(mtime), Some(ctime)) => unsettled_for(now, mtime, ctime),
            _ => Duration::ZERO,
        };
        let fresh: Vec<bool> = files.iter().map(|f| !wait(f).is_zero()).collect();
        let longest = files.iter().map(wait).max().unwrap_or_default();
        if longest.is_zero() {
            return Ok(files);
        }
        clock.sleep(longest).await;
        let update = move || {
            let update =
                |(file, fresh): (Listed, bool)| if fresh { stat_again(file) } else { Ok(Some(file)) };
            files.into_iter().zip(fresh).filter_map(|f| update(f).transpose()).collect::<Result<Vec<_>>>()
        };
        files = crate::tasks::blocking("reading metadata of files", update).await??;
    }
    Ok(files)
}

fn stat_again(file: Listed) -> Result<Option<Listed>> {
    match std::fs::metadata(file.url.local_path()) {
        Ok(m) if m.is_file() => Ok(Some(listed(file.url, &m))),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error(&file.url, &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::StoreUrl;

    #[test]
    fn files_that_changed_within_the_clocks_step_are_waited_for() {
        let ms = |n: i64| n * 1_000_000;
        let now = 1_700_000_000 * SECOND_NS;
        let wait = |changed: i64| unsettled_for(now, changed, changed);
        assert_eq!(wait(now - ms(5) - 1), Duration::from_nanos(15_000_000 - 1));
        assert_eq!(wait(now - ms(21)), Duration::ZERO);
        assert_eq!(wait(now - SECOND_NS), Duration::from_secs(1), "a clock of whole seconds");
        assert_eq!(wait(now - 2 * SECOND_NS), Duration::ZERO);
        assert_eq!(wait(now + ms(3_600_001)), Duration::ZERO, "another clock");
    }

    /// A file changes right after it is listed as settled, 20 times: its times differ each time.
    #[tokio::test]
    async fn a_rewrite_of_the_same_length_has_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let url = StoreUrl::parse(path.to_str().unwrap()).unwrap();
        for round in 0..20u8 {
            std::fs::write(&path, [round; 100]).unwrap();
            let first = listed(url.clone(), &std::fs::metadata(&path).unwrap());
            let first = settled(vec![first]).await.unwrap().remove(0);
            std::fs::write(&path, [round + 100; 100]).unwrap();
            let second = listed(url.clone(), &std::fs::metadata(&path).unwrap());
            assert_ne!((first.mtime_ns, first.ctime_ns), (second.mtime_ns, second.ctime_ns));
        }
        let gone = listed(url, &std::fs::metadata(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(settled(vec![gone]).await.unwrap().is_empty());
    }
}
