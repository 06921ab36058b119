//! Folders of one process alone, removed with it, or by the next process of their kind if it was killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use caju_types::{Error, Result};
use tempfile::TempDir;

/// In each folder, locked for as long as its owner lives, in whatever container that is: process numbers say nothing
/// across containers that share a temporary folder.
const OWNER: &str = "owner.lock";
/// The lock's name until it is held.
const UNOWNED: &str = "owner.new";
/// What the names of private cache folders begin with.
const CACHE: &str = "caju-cache-";

/// A folder that nobody else uses, and the lock that shows that somebody does.
#[derive(Debug)]
pub struct PrivateFolder {
    // Goes first: a folder without its lock would look like one that is not finished.
    folder: TempDir,
    _owner: File,
}

impl PrivateFolder {
    /// Makes a folder in `at` whose name begins with `prefix`. Folders there of the same prefix whose owners are gone
    /// are removed first, as far as that is possible.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn new(at: &Path, prefix: &str) -> io::Result<Self> {
        let own = std::fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix(prefix).permissions(own).tempdir_in(at)?;
        // Whose folders are ours is told by one that was just made.
        sweep(at, prefix, folder.path().metadata()?.uid());
        // Under its own name only when it is locked: somebody who sweeps at this moment must not find it free.
        let (unowned, owned) = (folder.path().join(UNOWNED), folder.path().join(OWNER));
        let owner = File::create(&unowned)?;
        owner.lock()?;
        std::fs::rename(unowned, owned)?;
        Ok(Self { folder, _owner: owner })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder for the snapshots of this process, in the folder for temporary files.
///
/// # Errors
/// `Unavailable`, saying how to name another place.
pub fn private_cache() -> Result<PrivateFolder> {
    let at = std::env::temp_dir();
    PrivateFolder::new(&at, CACHE).map_err(|e| {
        Error::unavailable(format!(
            "no private cache folder can be made in {}: {e}; name a folder or URL for the cache, or set TMPDIR",
            at.display()
        ))
    })
}

/// Removes folders of user `uid` whose lock nobody holds. Best effort: they are in nobody's way but the disk's.
fn sweep(at: &Path, prefix: &str, uid: u32) {
    let Ok(entries) = std::fs::read_dir(at) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|n| n.starts_with(prefix)) {
            continue;
        }
        // Without a lock it is not one of ours, or not finished.
        let Some(owner) = lock_file(&entry.path(), uid) else { continue };
        if owner.try_lock().is_ok() {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// The lock file of a private folder. Anybody can make such names in a folder for temporary files: what is not a folder
/// that only `uid` can use, with a plain file in it, is left alone, and nothing here waits.
fn lock_file(folder: &Path, uid: u32) -> Option<File> {
    let found = folder.symlink_metadata().ok()?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
        return None;
    }
    // Opening a pipe would wait for somebody to write into it.
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
        std::thread::spawn(move || send.send(PrivateFolder::new(&at, CACHE).map(drop)));
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
        let living = PrivateFolder::new(all.path(), CACHE).unwrap();
        drop(make("caju-cache-dead", true));
        drop(make("caju-cache-of-others", false));
        drop(make("something-else", true));
        let next = PrivateFolder::new(all.path(), CACHE).unwrap();
        let left = |name: &str| all.path().join(name).exists();
        assert!(living.path().exists() && next.path() != living.path());
        assert!(left("caju-cache-of-others") && left("something-else") && !left("caju-cache-dead"));
        let gone = living.path().to_owned();
        drop(living);
        assert!(!gone.exists());
    }
}
