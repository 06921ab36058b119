//! Errors of object stores and file systems as errors of caju.

use std::error::Error as _;
use std::io;

use caju_types::Error;

/// Converts a store's error about `url`. The message says what happened, where, and what to do.
pub fn store_error(url: impl std::fmt::Display, error: object_store::Error) -> Error {
    use object_store::Error as E;
    match &error {
        E::NotFound { .. } => Error::not_found(format!("{url}: no such file or object; check the path")),
        E::Precondition { .. } | E::NotModified { .. } => Error::failed_precondition(format!(
            "{url}: the file changed while it was read (it is not the version that was listed); \
             start again, and keep source files unchanged during a run"
        )),
        E::AlreadyExists { .. } => Error::already_exists(format!("{url}: exists already")),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Error::permission_denied(format!(
            "{url}: the store refused access; check the credentials ({})",
            root(&error)
        )),
        E::InvalidPath { .. } | E::UnknownConfigurationKey { .. } => {
            Error::invalid(format!("{url}: {error}"))
        }
        E::NotSupported { .. } | E::NotImplemented { .. } => {
            Error::unimplemented(format!("{url}: the store does not offer this: {error}"))
        }
        E::JoinError { .. } => Error::cancelled(format!("{url}: the read was stopped")),
        _ => generic(&url, &error),
    }
}

fn generic(url: &impl std::fmt::Display, error: &object_store::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            return io_error(url, io);
        }
        cause = e.source();
    }
    Error::unavailable(format!("{url}: the store cannot be reached or answered badly: {}", root(error)))
}

/// Converts an I/O error about `url`.
pub fn io_error(url: impl std::fmt::Display, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::not_found(format!("{url}: no such file or object; check the path")),
        io::ErrorKind::PermissionDenied => Error::permission_denied(format!(
            "{url}: permission denied; let the user that runs caju read it, or write it where it is written"
        )),
        io::ErrorKind::ReadOnlyFilesystem => {
            Error::permission_denied(format!("{url}: the file system is mounted for reading only"))
        }
        io::ErrorKind::StorageFull => Error::exhausted(format!("{url}: no space left on the device")),
        io::ErrorKind::QuotaExceeded => Error::exhausted(format!("{url}: the disk quota is used up")),
        io::ErrorKind::IsADirectory => Error::invalid(format!("{url}: is a folder, not a file")),
        _ => Error::unavailable(format!("{url}: {error}")),
    }
}

/// The innermost cause: the error of the peer or the system.
fn root(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text = e.to_string();
        cause = e.source();
    }
    // Answers of web servers may be long pages.
    if text.len() > 400 {
        let cut = text.char_indices().map(|(i, _)| i).take_while(|i| *i <= 400).last().unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}
