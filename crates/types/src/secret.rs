//! Random secrets that authenticate clients, tasks and workers.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 128 bits that only their owner and the dispatcher know. `Debug` does not print them.
///
/// ```
/// use caju_types::Secret;
/// let secret = Secret::from_bytes([7; 16]);
/// assert!(secret.is(&[7; 16]));
/// assert!(!secret.is(&[7; 15]) && !secret.is(b""));
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Bytes of a secret.
    pub const BYTES: usize = 16;

    /// The secret with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be sent to its owner or to the peer that checks them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes, as messages carry them.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Whether the given bytes are the secret. The time that this takes does not depend on them.
    pub fn is(&self, given: &[u8]) -> bool {
        if given.len() != Self::BYTES {
            return false;
        }
        let differences = self.0.iter().zip(given).fold(0u8, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differences) == 0
    }

    /// The secret as hexadecimal digits, for files that only the owner may read.
    pub fn to_hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::new(), |mut text, b| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{b:02x}");
            text
        })
    }

    /// The secret that [`Secret::to_hex`] wrote; none for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
        let bytes: Vec<u8> = digits?
            .chunks(2)
            .map(|pair| match pair {
                [hi, lo] => Some((hi << 4) | lo),
                _ => None,
            })
            .collect::<Option<_>>()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        Self::from_hex(&text).ok_or_else(|| D::Error::custom("not a secret of 32 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_go_both_ways() {
        let secret = Secret::from_bytes(std::array::from_fn(|i| u8::try_from(i * 17).unwrap()));
        assert_eq!(Secret::from_hex(&secret.to_hex()), Some(secret));
        for bad in ["", "00", "zz", &"0".repeat(31), &"0".repeat(33)] {
            assert_eq!(Secret::from_hex(bad), None, "{bad}");
        }
    }
}
