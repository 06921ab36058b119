//! Errors as the journal keeps them.

use caju_proto::v1;
use caju_types::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// An error as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The stable name of its [`ErrorKind`].
    pub kind: String,
    /// Its message.
    pub message: String,
}

impl From<&Error> for Failure {
    fn from(e: &Error) -> Self {
        Self { kind: e.kind().as_str().to_string(), message: e.message().to_string() }
    }
}

impl From<&Failure> for Error {
    fn from(f: &Failure) -> Self {
        let kind = ErrorKind::ALL.into_iter().find(|k| k.as_str() == f.kind);
        Error::new(kind.unwrap_or(ErrorKind::Internal), f.message.clone())
    }
}

impl From<&Failure> for v1::Failure {
    fn from(f: &Failure) -> Self {
        Self { kind: f.kind.clone(), message: f.message.clone() }
    }
}
