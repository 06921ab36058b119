//! Private folders of a process. A folder is removed with its process, or by the next process if the owner was killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use caju_types::{Error, Result};
use tempfile::TempDir;

/// The lock file in each folder. Its owner holds the lock for as long as it lives. A process id would not do: containers
/// that share a temporary folder have process ids of their own.
const OWNER: &str = "owner.lock";
/// The lock file's name until its lock is held.
const UNOWNED: &str = "owner.new";
/// The prefix of the names of private cache folders.
const CACHE_PREFIX: &str = "caju-cache-";

/// A folder of this process alone, and the lock that marks it as used.
#[derive(Debug)]
pub struct PrivateFolder {
    // Dropped before the lock: a folder without a held lock could be swept by another process.
    folder: TempDir,
    _owner: File,
}

impl PrivateFolder {
    /// Creates a folder in `at` whose name begins with `prefix`. Folders with this prefix whose owners have ended are
    /// removed first, as far as possible.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn new(at: &Path, prefix: &str) -> io::Result<Self> {
        let own = std::fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix(prefix).permissions(own).tempdir_in(at)?;
        // Folders with the user id of a new folder are ours.
        sweep(at, prefix, folder.path().metadata()?.uid());
        // The lock file gets its name only once it is locked: a concurrent sweep must not find it unlocked.
        let (unowned, owned) = (folder.path().join(UNOWNED), folder.path().join(OWNER));
        let owner = File::create(&unowned)?;
        owner.lock()?;
        std::fs::rename(unowned, owned)?;
        Ok(Self { folder, _owner: owner })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder for the snapshots of this process, in the folder for temporary files.
///
/// # Errors
/// `Unavailable`, which says how to choose another folder.
pub fn private_cache() -> Result<PrivateFolder> {
    let at = std::env::temp_dir();
    PrivateFolder::new(&at, CACHE_PREFIX).map_err(|e| {
        Error::unavailable(format!(
            "no private cache folder can be created in {}: {e}; give a folder or URL for the cache, or set TMPDIR",
            at.display()
        ))
    })
}

/// Removes folders of user `uid` whose locks are not held. Best effort: a folder that stays only takes disk space.
fn sweep(at: &Path, prefix: &str, uid: u32) {
    let Ok(entries) = std::fs::read_dir(at) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|n| n.starts_with(prefix)) {
            continue;
        }
        // A folder without a lock file is not ours, or is being created.
        let Some(owner) = lock_file(&entry.path(), uid) else { continue };
        if owner.try_lock().is_ok() {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// Opens the lock file of a private folder. Anybody can create such names in a folder for temporary files. So anything but
/// a folder that only `uid` can use, with a regular file in it, is skipped. Nothing here blocks.
fn lock_file(folder: &Path, uid: u32) -> Option<File> {
    let found = folder.symlink_metadata().ok()?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
        return None;
    }
    // Opening a pipe would block until a process writes into it.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let owner = options.open(folder.join(OWNER)).ok()?;
    let found = owner.metadata().ok()?;
    (found.is_file() && found.uid() == uid).then_some(owner)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{DirBuilderExt, symlink};
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;

    /// Makes a pipe.
    #[allow(unsafe_code, reason = "mkfifo has no safe wrapper in std")]
    fn pipe(at: &Path) {
        let name = CString::new(at.as_os_str().as_bytes()).unwrap();
        // SAFETY: `name` is a C string that lives for the duration of the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn names_that_others_made_are_left_alone_without_waiting() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let at = all.path().join(name);
            std::fs::create_dir(&at).unwrap();
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode)).unwrap();
            at
        };
        pipe(&make("caju-cache-pipe", 0o700).join(OWNER));
        File::create(make("caju-cache-open", 0o777).join(OWNER)).unwrap();
        let elsewhere = make("elsewhere", 0o700);
        File::create(elsewhere.join(OWNER)).unwrap();
        symlink(&elsewhere, all.path().join("caju-cache-link")).unwrap();
        symlink(elsewhere.join(OWNER), make("caju-cache-linked", 0o700).join(OWNER)).unwrap();
        let (send, made) = sync_channel(1);
        let at = all.path().to_owned();
        // Opening the pipe would wait for ever.
        std::thread::spawn(move || send.send(PrivateFolder::new(&at, CACHE_PREFIX).map(drop)));
        made.recv_timeout(Duration::from_secs(60)).expect("a pipe holds nobody up").unwrap();
        for left in
            ["caju-cache-pipe", "caju-cache-open", "caju-cache-link", "caju-cache-linked", "elsewhere"]
        {
            assert!(all.path().join(left).exists(), "{left}");
        }
        assert!(elsewhere.join(OWNER).exists());
    }

    #[test]
    fn only_folders_whose_owner_is_gone_are_swept() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: &str, owner: bool| {
            let at = all.path().join(name);
            std::fs::DirBuilder::new().mode(0o700).create(&at).unwrap();
            owner.then(|| File::create(at.join(OWNER)).unwrap())
        };
        let living = PrivateFolder::new(all.path(), CACHE_PREFIX).unwrap();
        drop(make("caju-cache-dead", true));
        drop(make("caju-cache-of-others", false));
        drop(make("something-else", true));
        let next = PrivateFolder::new(all.path(), CACHE_PREFIX).unwrap();
        let left = |name: &str| all.path().join(name).exists();
        assert!(living.path().exists() && next.path() != living.path());
        assert!(left("caju-cache-of-others") && left("something-else") && !left("caju-cache-dead"));
        let gone = living.path().to_owned();
        drop(living);
        assert!(!gone.exists());
    }
}
