//! The time of commits, and the bytes on the disk.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use caju_dispatcher::journal::{EncodedGroup, Journal, JournalKind};
use caju_dispatcher::state::Update;
use caju_types::{Result, format_bytes};

use super::{Scratch, at, group};
use crate::output;

/// Groups in one commit of the second part: as many callers as wait at once in a busy cluster.
const AT_ONCE: u64 = 16;

/// The figures of one round.
struct Round {
    commits_per_s: f64,
    median: Duration,
    slowest_of_100: Duration,
    groups_per_s: f64,
    bytes: u64,
    bytes_compacted: u64,
    open: Duration,
}

/// Measures every database in each round, and shows the medians of the rounds.
pub(super) fn measure(scratch: &Scratch, kinds: &[JournalKind], rounds: u32, commits: u64) -> Result<()> {
    let mut found: BTreeMap<&str, Vec<Round>> = BTreeMap::new();
    for _ in 0..rounds {
        for kind in kinds {
            let round = round(scratch, *kind, commits)?;
            found.entry(kind.name()).or_default().push(round);
        }
    }
    output::say(format_args!(
        "{commits} commits of one group, and as many groups {AT_ONCE} to a commit; medians of {rounds} rounds\n\n\
         {:<8} {:>10} {:>9} {:>9} {:>10} {:>11} {:>11} {:>9}",
        "journal", "commits/s", "median", "p99", "groups/s", "on disk", "compacted", "open"
    ))?;
    for (name, rounds) in &found {
        let median = |of: &dyn Fn(&Round) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        let bytes = |of: &dyn Fn(&Round) -> u64| {
            let mut all: Vec<u64> = rounds.iter().map(of).collect();
            all.sort_unstable();
            format_bytes(all.get(all.len() / 2).copied().unwrap_or_default())
        };
        output::say(format_args!(
            "{name:<8} {:>10.0} {:>6.2} ms {:>6.2} ms {:>10.0} {:>11} {:>11} {:>6.0} ms",
            median(&|r| r.commits_per_s),
            median(&|r| 1e3 * r.median.as_secs_f64()),
            median(&|r| 1e3 * r.slowest_of_100.as_secs_f64()),
            median(&|r| r.groups_per_s),
            bytes(&|r| r.bytes),
            bytes(&|r| r.bytes_compacted),
            median(&|r| 1e3 * r.open.as_secs_f64()),
        ))?;
    }
    Ok(())
}

fn round(scratch: &Scratch, kind: JournalKind, commits: u64) -> Result<Round> {
    let folder = scratch.fresh(kind.name())?;
    let (mut journal, _) = kind.open(&folder)?;
    let mut times = (0..commits).map(|n| timed(journal.as_mut(), &[group(n)])).collect::<Result<Vec<_>>>()?;
    let mut together = Duration::ZERO;
    for first in (commits..2 * commits).step_by(usize::try_from(AT_ONCE).unwrap_or(1)) {
        let groups: Vec<_> = (first..(first + AT_ONCE).min(2 * commits)).map(group).collect();
        together += timed(journal.as_mut(), &groups)?;
    }
    drop(journal);
    let bytes = bytes_below(&folder)?;
    let start = Instant::now();
    let (journal, _) = kind.open(&folder)?;
    let open = start.elapsed();
    journal.stored()?.replace(&EncodedGroup::new(&group(0))?)?;
    drop(journal);
    let total: Duration = times.iter().sum();
    times.sort_unstable();
    let at_share = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    Ok(Round {
        commits_per_s: commits as f64 / total.as_secs_f64().max(1e-9),
        median: at_share(50),
        slowest_of_100: at_share(99),
        groups_per_s: commits as f64 / together.as_secs_f64().max(1e-9),
        bytes,
        bytes_compacted: bytes_below(&folder)?,
        open,
    })
}

fn timed(journal: &mut dyn Journal, groups: &[Vec<Update>]) -> Result<Duration> {
    let start = Instant::now();
    journal.append(groups)?;
    Ok(start.elapsed())
}

/// Bytes that the files of a folder take on the disk.
fn bytes_below(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder).map_err(|e| at(folder, &e))? {
        let entry = entry.map_err(|e| at(folder, &e))?;
        let meta = entry.metadata().map_err(|e| at(&entry.path(), &e))?;
        sum += if meta.is_dir() { bytes_below(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(sum)
}
