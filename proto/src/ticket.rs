//! Tickets: a client's right to read a task.

use caju_types::{ClientId, Secret};
use sha2::{Digest, Sha256};

/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;

/// The ticket of a client for the task with this secret: HMAC-SHA256 of the client's identifier (8 bytes, little endian),
/// truncated to 128 bits. The dispatcher sends it to the client, and the worker computes it to check it.
///
/// ```
/// use caju_proto::ticket;
/// use caju_types::{ClientId, Secret};
/// let task = Secret::from_bytes([1; 16]);
/// assert_eq!(ticket(&task, ClientId(7)), ticket(&task, ClientId(7)));
/// assert_ne!(ticket(&task, ClientId(7)), ticket(&task, ClientId(8)));
/// ```
pub fn ticket(task: &Secret, client: ClientId) -> Secret {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = hmac(task.as_bytes(), &client.0.to_le_bytes());
    Secret::from_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
}

/// HMAC-SHA256 (RFC 2104) with a key of at most one block.
pub(crate) fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut padded = [0u8; BLOCK];
    for (to, from) in padded.iter_mut().zip(key) {
        *to = *from;
    }
    let inner = Sha256::new().chain_update(padded.map(|b| b ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded.map(|b| b ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_vectors_of_rfc_4231() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(
            hex(&hmac(&[0x0b; 20], b"Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
