//! The error of all interfaces between crates.
//!
//! Inside, crates have detailed errors of their own. Between crates there is [`Error`]: a kind that says what the caller
//! must do, and a message that names the thing, the place and the way out. The kind survives gRPC. It becomes the exit code
//! of the binary and the exception class of the Python package.

use std::fmt;

/// The result of a fallible interface between crates.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error: what the caller has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong: fix the pipeline, the argument or the expression.
    InvalidArgument,
    /// A named thing does not exist: a file, a dataset, a job.
    NotFound,
    /// A named thing exists already, with another content.
    AlreadyExists,
    /// The system is not in the state that the call needs (a file changed while it was read, say).
    FailedPrecondition,
    /// Stored or received bytes are damaged, or rows can no longer be delivered exactly once.
    DataLoss,
    /// A peer or a store cannot be reached now: try again.
    Unavailable,
    /// A wait ended at its deadline.
    DeadlineExceeded,
    /// The caller, or a shutdown, stopped the work.
    Cancelled,
    /// The request is valid, but this version does not support it.
    Unimplemented,
    /// A memory, disk or count bound was reached; the message names the setting.
    ResourceExhausted,
    /// Credentials are missing, or the server may not use the path.
    PermissionDenied,
    /// A defect of caju itself.
    Internal,
}

impl ErrorKind {
    /// All kinds, in the order of declaration.
    pub const ALL: [ErrorKind; 12] = [
        ErrorKind::InvalidArgument,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::FailedPrecondition,
        ErrorKind::DataLoss,
        ErrorKind::Unavailable,
        ErrorKind::DeadlineExceeded,
        ErrorKind::Cancelled,
        ErrorKind::Unimplemented,
        ErrorKind::ResourceExhausted,
        ErrorKind::PermissionDenied,
        ErrorKind::Internal,
    ];

    /// The kind's stable name, as it appears in JSON and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::NotFound => "not found",
            ErrorKind::AlreadyExists => "already exists",
            ErrorKind::FailedPrecondition => "failed precondition",
            ErrorKind::DataLoss => "data loss",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::DeadlineExceeded => "deadline exceeded",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Unimplemented => "unimplemented",
            ErrorKind::ResourceExhausted => "resource exhausted",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::Internal => "internal error",
        }
    }

    /// The exit code of the `caju` binary: 2 for the user's input, 3 for the environment, 1 for a defect of caju.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::InvalidArgument
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::DataLoss
            | ErrorKind::Unimplemented => 2,
            ErrorKind::FailedPrecondition
            | ErrorKind::Unavailable
            | ErrorKind::DeadlineExceeded
            | ErrorKind::Cancelled
            | ErrorKind::ResourceExhausted
            | ErrorKind::PermissionDenied => 3,
            ErrorKind::Internal => 1,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error between crates.
///
/// ```
/// use caju_types::{Error, ErrorKind};
/// let e = Error::not_found("file:///data/a.parquet: no such file; check `path` of the source");
/// assert_eq!(e.kind(), ErrorKind::NotFound);
/// assert_eq!(e.context("source parquet").to_string(),
///            "source parquet: file:///data/a.parquet: no such file; check `path` of the source");
/// ```
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

macro_rules! constructors {
    ($($name:ident => $kind:ident, $doc:literal;)*) => {$(
        #[doc = $doc]
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        }
    )*};
}

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: bounded(message.into()) }
    }

    constructors! {
        invalid => InvalidArgument, "The request is wrong.";
        not_found => NotFound, "A named thing does not exist.";
        already_exists => AlreadyExists, "A named thing exists already, with another content.";
        failed_precondition => FailedPrecondition, "The system is not in the state that the call needs.";
        data_loss => DataLoss, "Bytes are damaged.";
        unavailable => Unavailable, "A peer or a store cannot be reached now.";
        deadline => DeadlineExceeded, "A wait ended at its deadline.";
        cancelled => Cancelled, "The caller, or a shutdown, stopped the work.";
        unimplemented => Unimplemented, "The request is valid, but this version does not support it.";
        exhausted => ResourceExhausted, "A bound was reached.";
        permission_denied => PermissionDenied, "Credentials are missing, or a path is not allowed.";
        internal => Internal, "A defect of caju itself.";
    }

    /// The kind: what the caller has to do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without the kind.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prefixes the message with the place: `place: message`.
    #[must_use]
    pub fn context(mut self, place: impl fmt::Display) -> Self {
        self.message = bounded(format!("{place}: {}", self.message));
        self
    }

    /// Whether the data itself is wrong, so that `on_error: skip` may skip it. Never true for I/O errors.
    pub fn is_data_error(&self) -> bool {
        matches!(self.kind, ErrorKind::DataLoss | ErrorKind::InvalidArgument)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The most bytes of a message. It travels in a header of at most 16 KiB, in which some bytes take three, and it goes to logs: a
/// value of the data that a library repeats may have megabytes.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Of a longer message, the bytes at its end that are kept: what happened, and the way out.
const TAIL_BYTES: usize = 1536;

/// A message without its middle, if it is too long.
fn bounded(message: String) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message;
    }
    // The note on what is left out has at most 64 bytes.
    let head = message.floor_char_boundary(MAX_MESSAGE_BYTES - TAIL_BYTES - 64);
    let tail = message.ceil_char_boundary(message.len() - TAIL_BYTES);
    format!("{} [... {} bytes are left out ...] {}", &message[..head], tail - head, &message[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_keeps_its_beginning_and_its_end() {
        let long = format!("steps[0].map: cannot cast '{}' to Int32; fix it", "ä".repeat(50_000_000));
        let e = Error::invalid(long).context("file.parquet").context("x".repeat(10_000));
        assert!(e.message().len() <= MAX_MESSAGE_BYTES, "{}", e.message().len());
        assert!(e.message().ends_with("ä' to Int32; fix it"), "{e}");
        let e = Error::invalid(format!("steps[0].map: '{}'; fix it", "ä".repeat(5000))).context("a.parquet");
        assert!(e.message().starts_with("a.parquet: steps[0].map: 'ä"), "{e}");
        assert!(e.message().contains("bytes are left out"), "{e}");
        assert_eq!(Error::invalid("x".repeat(4096)).message(), "x".repeat(4096));
    }
}
