//! The version of the protocol, which callers and dispatchers send each other with every call.
//!
//! Within a major version every caller works with every dispatcher: fields are only added, and absent ones mean what they
//! meant before. Across major versions both sides refuse, and say which versions they speak. A call without a version is
//! of the first one, 1.0.

use std::fmt;

use caju_types::{Error, Result};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Status};

use crate::to_status;

/// The name of the metadata that has the version.
const KEY: &str = "caju-protocol";

/// A version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolVersion {
    /// Versions with other major numbers do not understand each other.
    pub major: u32,
    /// Grows when messages gain fields.
    pub minor: u32,
}

/// The version that this build speaks.
pub const PROTOCOL: ProtocolVersion = ProtocolVersion { major: 1, minor: 3 };

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A function over the requests of a client or a server.
pub type Intercept = fn(Request<()>) -> Result<Request<()>, Status>;

/// Names the version of this build in a call.
///
/// # Errors
/// None: a version is always valid metadata.
pub fn name_version(mut request: Request<()>) -> Result<Request<()>, Status> {
    put_version(request.metadata_mut());
    Ok(request)
}

/// Names the version of this build in an answer or a call.
pub fn put_version(metadata: &mut MetadataMap) {
    if let Ok(value) = MetadataValue::try_from(PROTOCOL.to_string()) {
        metadata.insert(KEY, value);
    }
}

/// Refuses a call of another major version.
///
/// # Errors
/// `FailedPrecondition` with both versions.
pub fn refuse_other_major(request: Request<()>) -> Result<Request<()>, Status> {
    match speaks_with(request.metadata(), "the caller") {
        Ok(()) => Ok(request),
        Err(e) => Err(to_status(&e)),
    }
}

/// Whether this build understands a peer, by the metadata of its call or answer.
///
/// # Errors
/// `FailedPrecondition` with both versions, if it does not.
pub fn speaks_with(metadata: &MetadataMap, peer: &str) -> Result<()> {
    let Some(named) = metadata.get(KEY) else { return Ok(()) };
    let text = named.to_str().unwrap_or("?");
    let theirs = text.split_once('.').and_then(|(major, minor)| {
        Some(ProtocolVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
    });
    if theirs.is_some_and(|theirs| theirs.major == PROTOCOL.major) {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "{peer} speaks version {text} of the protocol, and this caju ({}) speaks version {PROTOCOL}; run the same major \
         version of caju on both sides",
        env!("CARGO_PKG_VERSION")
    )))
}

#[cfg(test)]
mod tests {
    use caju_types::ErrorKind;

    use super::*;

    fn with(version: &'static str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(KEY, MetadataValue::from_static(version));
        metadata
    }

    #[test]
    fn versions_of_one_major_number_understand_each_other() {
        assert!(speaks_with(&MetadataMap::new(), "the caller").is_ok(), "the first version named none");
        let mut ours = MetadataMap::new();
        put_version(&mut ours);
        assert!(speaks_with(&ours, "the caller").is_ok());
        for fine in ["1.0", "1.1", "1.99"] {
            assert!(speaks_with(&with(fine), "the caller").is_ok(), "{fine}");
        }
        for other in ["0.9", "2.0", "17.3", "one", "1"] {
            let e = speaks_with(&with(other), "the dispatcher at a:1").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
            let told = format!("the dispatcher at a:1 speaks version {other} of the protocol");
            assert!(e.message().starts_with(&told) && e.message().contains(&PROTOCOL.to_string()), "{e}");
        }
    }
}
