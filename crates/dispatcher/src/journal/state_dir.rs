//! The journal of a state directory: which database it is, what is set aside, and the way from one database to another.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caju_types::{Error, ErrorKind, Result};

use super::records::io_error;
use super::{Journal, RedbJournal, SledJournal};
use crate::state::Update;

/// The database that holds a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JournalKind {
    /// [sled](https://crates.io/crates/sled): the first one, a log-structured tree.
    #[default]
    Sled,
    /// [redb](https://crates.io/crates/redb): a copy-on-write tree in one file.
    Redb,
}

/// A journal, and the groups that it holds.
pub type OpenedJournal = (Box<dyn Journal>, Vec<Vec<Update>>);

impl JournalKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Sled, Self::Redb];

    /// Its name, as `--journal` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sled => "sled",
            Self::Redb => "redb",
        }
    }

    /// The folder inside the state directory. Only this is ever renamed: a state directory that was given by mistake, a
    /// home directory say, is not renamed.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Sled => "journal-v1",
            Self::Redb => "journal-redb-v1",
        }
    }

    /// Opens or makes a journal in a folder and reads it.
    ///
    /// # Errors
    /// `FailedPrecondition` if another process has it open, `PermissionDenied` or `Unavailable` if the file
    /// system refuses, `DataLoss` if it is damaged or not such a journal.
    pub fn open(self, folder: &Path) -> Result<OpenedJournal> {
        Ok(match self {
            Self::Sled => {
                let (journal, groups) = SledJournal::open(folder)?;
                (Box::new(journal), groups)
            }
            Self::Redb => {
                let (journal, groups) = RedbJournal::open(folder)?;
                (Box::new(journal), groups)
            }
        })
    }
}

/// Opens the journal of a state directory. What is damaged or foreign there is renamed, with a warning, and a
/// new journal begun. A journal in the other database is carried over. `unix_time` names what is renamed.
///
/// # Errors
/// As [`JournalKind::open`], less `DataLoss`; and if the directory cannot be made.
pub fn open_state_dir(dir: &Path, kind: JournalKind, unix_time: Duration) -> Result<OpenedJournal> {
    fs::create_dir_all(dir).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Error::failed_precondition(format!(
            "{}: it is not a directory; give another --state-dir",
            dir.display()
        )),
        _ => io_error(dir, &e),
    })?;
    let state = StateDir { dir, unix_ms: unix_time.as_millis() };
    for other in JournalKind::ALL.into_iter().filter(|k| *k != kind) {
        state.carry_over(other, kind)?;
    }
    match kind.open(&state.journal(kind)) {
        Err(damage) if damage.kind() == ErrorKind::DataLoss => {
            state.set_aside(kind, &damage)?;
            kind.open(&state.journal(kind))
        }
        other => other,
    }
}

struct StateDir<'a> {
    dir: &'a Path,
    unix_ms: u128,
}

impl StateDir<'_> {
    fn journal(&self, kind: JournalKind) -> PathBuf {
        self.dir.join(kind.folder())
    }

    /// Renames a journal so that no dispatcher finds it any more.
    fn rename(&self, kind: JournalKind, why: &str) -> Result<PathBuf> {
        let (from, to) =
            (self.journal(kind), self.dir.join(format!("{}.{why}-{}", kind.folder(), self.unix_ms)));
        fs::rename(&from, &to).map_err(|e| io_error(&from, &e))?;
        Ok(to)
    }

    fn set_aside(&self, kind: JournalKind, damage: &Error) -> Result<()> {
        let aside = self.rename(kind, "set-aside")?;
        tracing::warn!(
            "{damage}; it is set aside as {} and a new journal begun: workers register again by themselves, \
             running readers open their epochs again behind the rows that their users have",
            aside.display()
        );
        Ok(())
    }

    /// Copies a journal that another database holds, and renames that one. A copy is made under a name of its own: one
    /// that was not finished is made again.
    fn carry_over(&self, from: JournalKind, to: JournalKind) -> Result<()> {
        if !self.journal(from).exists() {
            return Ok(());
        }
        if self.journal(to).exists() {
            // It was copied before and not renamed, or another process began it since.
            let aside = self.rename(from, "set-aside")?;
            tracing::warn!(
                "{}: it holds a journal in {} and one in {}; the one in {} counts, and the other one is set aside as {}",
                self.dir.display(),
                from.name(),
                to.name(),
                to.name(),
                aside.display()
            );
            return Ok(());
        }
        let groups = match from.open(&self.journal(from)) {
            Ok((_, groups)) => groups,
            Err(damage) if damage.kind() == ErrorKind::DataLoss => return self.set_aside(from, &damage),
            Err(e) => return Err(e),
        };
        let unfinished = self.dir.join(format!("{}.copying", to.folder()));
        match fs::remove_dir_all(&unfinished) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_error(&unfinished, &e)),
            _ => {}
        }
        let (mut copy, _) = to.open(&unfinished)?;
        copy.append(&groups)?;
        drop(copy);
        fs::rename(&unfinished, self.journal(to)).map_err(|e| io_error(&unfinished, &e))?;
        let old = self.rename(from, "copied")?;
        tracing::info!(
            "the journal was carried over from {} to {}; the old one is left as {}",
            from.name(),
            to.name(),
            old.display()
        );
        Ok(())
    }
}
