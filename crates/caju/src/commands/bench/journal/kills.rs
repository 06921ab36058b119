//! A process that writes a journal is killed at random moments: what it had called durable must be there.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use caju_dispatcher::journal::{EncodedGroup, JournalKind};
use caju_dispatcher::state::Update;
use caju_types::{Error, Result, hash128};

use super::{Scratch, group, number_of};
use crate::output;

/// The number of groups after which the writer compacts.
const COMPACT_EVERY: u64 = 40;
/// The largest number of commits before a kill, which then comes within this time.
const MOST_COMMITS: u64 = 60;
const MOST_PAUSE_US: u64 = 20_000;

/// Writes groups until it is killed, and says after each commit which number is durable.
///
/// # Errors
/// Those of the journal.
pub(super) fn append(kind: JournalKind, folder: &Path) -> Result<()> {
    let (mut journal, found) = kind.open(folder)?;
    let mut next = last_of(&found)?;
    output::say(next)?;
    loop {
        // Mostly one group to a commit, sometimes more.
        let groups: Vec<_> = (next + 1..=next + 1 + next % 3).map(group).collect();
        next += groups.len() as u64;
        journal.append(&groups)?;
        output::say(next)?;
        if next % COMPACT_EVERY < groups.len() as u64 {
            // As a journal's snapshot replaces all records before it.
            journal.stored()?.replace(&EncodedGroup::new(&group(next))?)?;
            output::say(next)?;
        }
    }
}

/// What the kills of one database showed.
#[derive(Default)]
struct KillCounts {
    kills: u32,
    durable: u64,
    /// Groups that were written and not called durable yet.
    beyond: u64,
    slowest_open: Duration,
}

/// Kills a writer of each database in turn, again and again on the same journal.
///
/// # Errors
/// `DataLoss` if a journal does not hold what was durable.
pub(super) fn measure(scratch: &Scratch, kinds: &[JournalKind], kills: u32, seed: u64) -> Result<()> {
    let mut by_kind: Vec<KillCounts> = kinds.iter().map(|_| KillCounts::default()).collect();
    let folders = kinds.iter().map(|k| scratch.fresh(&format!("{}-kills", k.name())));
    let folders = folders.collect::<Result<Vec<_>>>()?;
    for kill in 0..kills {
        for ((kind, folder), counts) in kinds.iter().zip(&folders).zip(&mut by_kind) {
            let random = hash128(format!("{seed} {kill} {}", kind.name()).as_bytes());
            one(*kind, folder, random, counts)
                .map_err(|e| e.context(format_args!("{}, kill {kill} with --seed {seed}", kind.name())))?;
        }
    }
    for (kind, counts) in kinds.iter().zip(&by_kind) {
        output::say(format_args!(
            "{}: {} kills, {} groups durable, all there after each kill; {} more were there; slowest open {:.0} ms",
            kind.name(),
            counts.kills,
            counts.durable,
            counts.beyond,
            1e3 * counts.slowest_open.as_secs_f64()
        ))?;
    }
    Ok(())
}

fn one(kind: JournalKind, folder: &Path, random: u128, counts: &mut KillCounts) -> Result<()> {
    let (commits, pause) = (random % u128::from(MOST_COMMITS), (random >> 64) % u128::from(MOST_PAUSE_US));
    let mut writer = Writer::start(kind, folder)?;
    let before = writer.next()?.ok_or_else(|| Error::internal("the writer ended before it began"))?;
    let mut durable = before;
    for _ in 0..commits {
        durable = writer.next()?.ok_or_else(|| Error::internal("the writer ended before it was killed"))?;
    }
    // Within a commit, not always right after one.
    std::thread::park_timeout(Duration::from_micros(u64::try_from(pause).unwrap_or(0)));
    writer.kill()?;
    // The output that it wrote before its end and that was not read yet.
    while let Some(more) = writer.next()? {
        durable = more;
    }
    let start = Instant::now();
    let (_, found) = kind.open(folder)?;
    counts.slowest_open = counts.slowest_open.max(start.elapsed());
    let last = last_of(&found)?;
    if last < durable {
        return Err(Error::data_loss(format!("group {durable} was durable, and {last} is the last one")));
    }
    counts.kills += 1;
    counts.durable += durable - before;
    counts.beyond += last - durable;
    Ok(())
}

/// The number of the last group, of groups without a gap that are what was written; 0 of none.
fn last_of(found: &[Vec<Update>]) -> Result<u64> {
    let mut last: Option<u64> = None;
    for updates in found {
        let number = number_of(updates).filter(|n| *updates == group(*n));
        let number = number.ok_or_else(|| Error::data_loss("a group is not what was written"))?;
        if last.is_some_and(|last| last + 1 != number) {
            return Err(Error::data_loss(format!("group {number} follows {}", last.unwrap_or(0))));
        }
        last = Some(number);
    }
    Ok(last.unwrap_or(0))
}

/// This command, writing.
struct Writer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Writer {
    fn start(kind: JournalKind, folder: &Path) -> Result<Self> {
        let failed = |e: std::io::Error| Error::unavailable(format!("this command cannot be run again: {e}"));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["bench", "journal", "--journal", kind.name(), "--append"]).arg(folder);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let stdout = child.stdout.take().ok_or_else(|| Error::internal("the writer has no output"))?;
        Ok(Self { child, lines: BufReader::new(stdout) })
    }

    /// The next number that it says is durable; none at its end.
    fn next(&mut self) -> Result<Option<u64>> {
        let mut line = String::new();
        self.lines.read_line(&mut line).map_err(|e| Error::unavailable(format!("the writer: {e}")))?;
        // The last line may be cut by the kill.
        let Some(number) = line.strip_suffix('\n') else { return Ok(None) };
        number.parse().map(Some).map_err(|e| Error::internal(format!("the writer said `{number}`: {e}")))
    }

    fn kill(&mut self) -> Result<()> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|e| Error::unavailable(format!("the writer cannot be killed: {e}")))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.kill());
    }
}
