//! Who may do what: workers, clients and operators prove who they are by secrets that the dispatcher drew.
//!
//! Identifiers are no secrets: they are short, in a row and in `caju status`. A secret is drawn for each incarnation of a
//! worker, each client and each task, and journaled, so that it survives a restart.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use caju_runtime::random_secret;
use caju_types::{ClientId, Error, ErrorKind, Result, Secret, WorkerId};

use crate::state::{Iteration, State, Worker};

/// The file in a state folder that has the operator's secret.
pub(crate) const OPERATOR_SECRET: &str = "operator-secret";

/// The worker that makes a call.
///
/// # Errors
/// `PermissionDenied` if the call does not carry its secret; `Cancelled` if there is no such worker.
pub(super) fn worker<'a>(state: &'a State, id: WorkerId, given: &[u8]) -> Result<&'a Worker> {
    let Some(worker) = state.workers.get(&id) else {
        return Err(Error::cancelled(format!("{id} is not registered here: register it again")));
    };
    if is_of_worker(worker, given) {
        return Ok(worker);
    }
    Err(Error::permission_denied(format!(
        "a call in the name of {} does not carry its secret: another process has registered under this address since, \
         or it is not this worker that calls",
        worker.describe()
    )))
}

/// The secret of a worker that registers: the one that its process proposes, so that a registration can be repeated when its
/// answer was lost; or a new one if it proposes none.
///
/// # Errors
/// Those of [`random_secret`].
pub(super) fn of_registration(proposed: &[u8]) -> Result<Secret> {
    proposed.try_into().map_or_else(|_| random_secret(), |bytes| Ok(Secret::from_bytes(bytes)))
}

/// Whether a secret is that of a worker. Workers of journals without secrets have none to show.
pub(super) fn is_of_worker(worker: &Worker, given: &[u8]) -> bool {
    worker.secret.is_none_or(|s| s.is(given))
}

/// Whether a call is that of a reader of an iteration; false if there is no such reader.
///
/// # Errors
/// `PermissionDenied` if the call does not carry its secret.
pub(super) fn is_client(iteration: &Iteration, client: ClientId, given: &[u8]) -> Result<bool> {
    let Some(member) = iteration.members.get(&client) else { return Ok(false) };
    if member.secret.is_none_or(|s| s.is(given)) {
        return Ok(true);
    }
    Err(Error::permission_denied(format!(
        "a call in the name of {client}, a reader of {}, does not carry its secret: only the process that opened the \
         epoch may report for it or leave it",
        iteration.describe()
    )))
}

/// Writes a file that only its owner can read, whole or not at all: a disk that is full leaves no half of it.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    // What a process that died has left. A link of somebody else is not followed.
    match std::fs::remove_file(&name) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name);
    let written = written.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| std::fs::rename(&name, path));
    if renamed.is_err() {
        // It is removed the next time, if it cannot be now.
        std::fs::remove_file(&name).ok();
    }
    renamed
}

/// The operator's secret of a state directory. A file of it that is damaged is renamed, with a warning, and another secret
/// drawn: a state directory that is damaged keeps no dispatcher from its work. `unix_time` names what is renamed.
///
/// # Errors
/// As [`operator_secret`], less `InvalidArgument`.
pub(crate) fn operator_secret_of(dir: &Path, unix_time: Duration) -> Result<Secret> {
    let file = dir.join(OPERATOR_SECRET);
    match operator_secret(&file) {
        Err(damage) if damage.kind() == ErrorKind::InvalidArgument => {
            let aside = dir.join(format!("{OPERATOR_SECRET}.set-aside-{}", unix_time.as_millis()));
            std::fs::rename(&file, &aside)
                .map_err(|e| Error::unavailable(format!("{}: it cannot be renamed: {e}", file.display())))?;
            tracing::warn!(
                "{damage}; it is set aside as {} and another one drawn: `caju worker drain` needs the new one",
                aside.display()
            );
            operator_secret(&file)
        }
        other => other,
    }
}

/// The operator's secret, from its file, or drawn and written there so that only its owner can read it.
///
/// # Errors
/// `PermissionDenied` or `Unavailable` if the file cannot be read or written, `InvalidArgument` if it holds something
/// else.
pub(crate) fn operator_secret(path: &Path) -> Result<Secret> {
    let place = path.display();
    match std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) {
        Ok(text) => Secret::from_hex(text.trim()).ok_or_else(|| {
            Error::invalid(format!(
                "{place} is not an operator's secret of 32 hexadecimal digits; remove it, and the dispatcher writes one"
            ))
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let secret = random_secret()?;
            write_whole(path, &format!("{}\n", secret.to_hex())).map_err(|e| {
                Error::unavailable(format!(
                    "{place}: the operator's secret cannot be written: {e}; give another --operator-secret-file"
                ))
            })?;
            Ok(secret)
        }
        Err(e) => Err(Error::permission_denied(format!(
            "{place}: the operator's secret cannot be read: {e}; give another --operator-secret-file"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_secret_of_the_state_directory_is_set_aside_and_a_given_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let now = Duration::from_secs(7);
        let first = operator_secret_of(dir.path(), now).unwrap();
        assert_eq!(operator_secret_of(dir.path(), now).unwrap(), first, "it stays the same");
        let file = dir.path().join(OPERATOR_SECRET);
        for damage in [&b""[..], b"0123", &[0xff; 32]] {
            std::fs::write(&file, damage).unwrap();
            assert_eq!(operator_secret(&file).unwrap_err().kind(), ErrorKind::InvalidArgument);
            let drawn = operator_secret_of(dir.path(), now).unwrap();
            assert_ne!(drawn, first);
            assert_eq!(operator_secret(&file).unwrap(), drawn);
            let aside = dir.path().join(format!("{OPERATOR_SECRET}.set-aside-7000"));
            assert_eq!(std::fs::read(aside).unwrap(), damage);
        }
    }
}
