//! The protocol of the control plane: generated messages and services of `caju.v1`, and the conversion of errors.
//!
//! An [`Error`] is sent as a gRPC status. The status code and the status message are its kind and its message. Because two
//! kinds may share a code, the metadata `caju-error-kind` has the kind by name, too.

pub mod codec;
mod draws;
#[cfg(test)]
mod fixtures;
mod flight_ticket;
mod modes;
mod reading_bases;
mod split_name;
mod ticket;
mod version;

use caju_types::{Error, ErrorKind};
use tonic::{Code, Status, metadata::MetadataValue};

/// Generated from `caju/v1/caju.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("caju.v1");
}

/// KEDA's protocol for external scalers.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::clone_on_ref_ptr,
    reason = "generated code"
)]
pub mod externalscaler {
    tonic::include_proto!("externalscaler");
}

pub use flight_ticket::{read_flight_ticket, sign_flight_ticket};
pub use modes::{MODES, mode_from_name, mode_name, mode_names};
pub use prost::bytes::Bytes;
pub use reading_bases::{reading_bases, reading_bases_to_messages};
pub use split_name::split_name;
pub use ticket::ticket;
pub use version::{
    Intercept, PROTOCOL, ProtocolVersion, name_version, put_version, refuse_other_major, speaks_with,
};

/// Adds the statistics of `more` to those of equally named stages in `sum`, for several tasks, workers or epochs. New
/// stages are appended in order. `at_once` is not summed: the maximum counts.
pub fn add_stages(sum: &mut Vec<v1::StageStats>, more: &[v1::StageStats]) {
    for stage in more {
        let Some(have) = sum.iter_mut().find(|s| s.name == stage.name) else {
            sum.push(stage.clone());
            continue;
        };
        have.rows_in = have.rows_in.saturating_add(stage.rows_in);
        have.rows_out = have.rows_out.saturating_add(stage.rows_out);
        have.bytes_out = have.bytes_out.saturating_add(stage.bytes_out);
        have.cpu_s += stage.cpu_s;
        have.busy_s += stage.busy_s;
        have.wait_in_s += stage.wait_in_s;
        have.wait_out_s += stage.wait_out_s;
        have.at_once = have.at_once.max(stage.at_once);
    }
}

const KIND_KEY: &str = "caju-error-kind";

fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::DataLoss => Code::DataLoss,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::DeadlineExceeded => Code::DeadlineExceeded,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::ResourceExhausted => Code::ResourceExhausted,
        ErrorKind::PermissionDenied => Code::PermissionDenied,
        ErrorKind::Internal => Code::Internal,
    }
}

fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::InvalidArgument,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::FailedPrecondition => ErrorKind::FailedPrecondition,
        Code::DataLoss => ErrorKind::DataLoss,
        Code::Unavailable | Code::Aborted => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Code::Cancelled => ErrorKind::Cancelled,
        Code::Unimplemented => ErrorKind::Unimplemented,
        Code::ResourceExhausted => ErrorKind::ResourceExhausted,
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::PermissionDenied,
        Code::Ok | Code::Unknown | Code::Internal => ErrorKind::Internal,
    }
}

/// The status that carries an error over gRPC.
pub fn to_status(error: &Error) -> Status {
    let mut status = Status::new(code_of(error.kind()), error.message());
    let kind = error.kind().as_str().replace(' ', "-");
    if let Ok(value) = MetadataValue::try_from(kind.as_str()) {
        status.metadata_mut().insert(KIND_KEY, value);
    }
    status
}

/// What tonic says of a message that is larger than its receiver takes.
const TOO_LONG: &str = "message length too large";

/// The error that a status carries. A status from another service is converted by its code.
pub fn from_status(status: &Status) -> Error {
    let named = status.metadata().get(KIND_KEY).and_then(|v| v.to_str().ok()).and_then(kind_from_name);
    if named.is_none() && status.message().contains(TOO_LONG) {
        return Error::invalid(format!(
            "a message is larger than the server takes ({}): send a smaller definition, or start the server with a larger \
             --message-bytes",
            status.message()
        ));
    }
    Error::new(named.unwrap_or_else(|| kind_of(status.code())), status.message())
}

fn kind_from_name(name: &str) -> Option<ErrorKind> {
    ErrorKind::ALL.into_iter().find(|k| k.as_str().replace(' ', "-") == name.replace(' ', "-"))
}

impl From<&Error> for v1::Failure {
    fn from(e: &Error) -> Self {
        Self { kind: e.kind().as_str().to_string(), message: e.message().to_string() }
    }
}

impl From<&v1::Failure> for Error {
    fn from(f: &v1::Failure) -> Self {
        Error::new(kind_from_name(&f.kind).unwrap_or(ErrorKind::Internal), f.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_too_long_names_the_setting() {
        let text = "Error, decoded message length too large: found 9 bytes, the limit is: 5 bytes";
        let e = from_status(&Status::out_of_range(text));
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.message().contains("--message-bytes") && e.message().contains("found 9 bytes"), "{e}");
    }

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in ErrorKind::ALL {
            let e = Error::new(kind, "file:///a: it is so; do this");
            let back = from_status(&to_status(&e));
            assert_eq!((back.kind(), back.message()), (kind, e.message()));
            let back = Error::from(&v1::Failure::from(&e));
            assert_eq!((back.kind(), back.message()), (kind, e.message()));
        }
    }
}
