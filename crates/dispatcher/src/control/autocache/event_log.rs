//! Recording the events of jobs, for `caju plan --replay`.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use caju_autocache::{Event, Recorded};
use caju_types::{JobName, hash128};

/// Characters of a job's name that are in the name of its log.
const NAME_CHARS: usize = 80;

/// The log of one job: JSON lines, written as the events happen. It is a tool for looking into decisions: what cannot be
/// written is said once, and the job goes on.
#[derive(Debug)]
pub(super) struct EventLog {
    path: PathBuf,
    file: Option<File>,
    /// Whether an event was written.
    has_begun: bool,
}

impl EventLog {
    /// The log of a job in a folder. A log of an earlier job of that name is continued, and the first event is marked.
    pub(super) fn of(dir: &Path, job: &JobName) -> Self {
        let path = dir.join(file_name(job));
        let opened = std::fs::create_dir_all(dir)
            .and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
        let opened = opened.inspect_err(|error| {
            tracing::warn!(%job, path = %path.display(), %error, "autocache events cannot be recorded");
        });
        Self { path, file: opened.ok(), has_begun: false }
    }

    pub(super) fn write(&mut self, at_ms: u64, event: &Event) {
        let Some(file) = &mut self.file else { return };
        let begins = !std::mem::replace(&mut self.has_begun, true);
        let line = Recorded { at_ms, begins, event: event.clone() }.to_line();
        let written = line.map_err(std::io::Error::other).and_then(|line| writeln!(file, "{line}"));
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "autocache events are not recorded any more");
            self.file = None;
        }
    }
}

/// A file name that is valid everywhere, and another one for each job.
fn file_name(job: &JobName) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let JobName(name) = job;
    if !name.is_empty() && name.len() <= NAME_CHARS && name.chars().all(plain) && !name.starts_with('.') {
        return format!("{name}.jsonl");
    }
    let readable: String = name.chars().filter(|c| plain(*c)).take(NAME_CHARS).collect();
    format!("{readable}-{:032x}.jsonl", hash128(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_of_jobs_are_names_of_files() {
        let name = |job: &str| file_name(&JobName(job.into()));
        assert_eq!(name("run-1"), "run-1.jsonl");
        for odd in ["", "..", "../up", "a/b", "ümlaut", &"x".repeat(1000)] {
            let file = name(odd);
            assert!(!file.contains('/') && file.len() < 200 && file.contains('-'), "{file}");
        }
        assert_ne!(name("a/b"), name("ab"));
    }
}
