//! How rows travel from workers to a reader.

use caju_types::{Error, Result, did_you_mean};
use caju_wire::Compression;

/// The protocol by which a reader gets rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransferProtocol {
    /// Workers in the reader's own process hand rows over; those of others send them by the framed stream, on one host in
    /// shared memory where they can.
    #[default]
    Auto,
    /// All workers send rows by the framed stream over TCP, also those in the reader's own process that listen on a port.
    Framed,
    /// Workers in the reader's own process hand rows over; no other worker can be read.
    Local,
}

impl TransferProtocol {
    /// All of them.
    pub const ALL: [TransferProtocol; 3] = [Self::Auto, Self::Framed, Self::Local];

    /// The name in flags and arguments.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Framed => "framed",
            Self::Local => "local",
        }
    }

    /// The protocol of this name, in upper or lower case.
    ///
    /// # Errors
    /// `NotFound` for a protocol that no worker offers; the message has those that there are.
    pub fn of_name(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        Self::ALL.into_iter().find(|p| p.as_str() == lower).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str);
            Error::not_found(format!(
                "the data transfer protocol `{name}` is not available{}; there are `framed`, `local` for workers of the \
                 reader's own process, and `auto`, which takes the one that fits",
                did_you_mean(&lower, names)
            ))
        })
    }
}

/// How rows travel to one reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfer {
    /// By which protocol.
    pub protocol: TransferProtocol,
    /// How rows are compressed on their way over a socket.
    pub compression: Compression,
}

impl Transfer {
    /// Whether rows may come in shared memory, where they are never compressed.
    pub(crate) fn shares_memory(self) -> bool {
        self.protocol == TransferProtocol::Auto
            && matches!(self.compression, Compression::None | Compression::Auto)
    }
}

#[cfg(test)]
mod tests {
    use caju_types::ErrorKind;

    use super::*;

    /// XFR-04: a protocol that no worker offers is not found.
    #[test]
    fn xfr_04_a_protocol_that_is_not_there_is_not_found() {
        for protocol in TransferProtocol::ALL {
            assert_eq!(TransferProtocol::of_name(&protocol.as_str().to_uppercase()).unwrap(), protocol);
        }
        let e = TransferProtocol::of_name("fremed").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.message().contains("is not available; did you mean `framed`?"), "{e}");
        assert_eq!(TransferProtocol::of_name("grpc").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
