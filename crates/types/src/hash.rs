//! Hashes that are equal in every process and on every machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// xxh3-128: fast and stable, but not cryptographic.
pub fn hash128(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(bytes)
}

/// Mixes two words into one (the finaliser of MurmurHash3 over their combination).
///
/// It derives the key of a row from (seed, epoch, repetition, split key, ordinal), and the key of a call site from the key
/// of its row. Every random draw follows from such a key.
#[inline]
pub fn mix64(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_add(0x632B_E59B_D9B4_E019);
    z = (z ^ (z >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    z = (z ^ (z >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    z ^ (z >> 33)
}

macro_rules! hex128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:032x})", stringify!($name), self.0)
            }
        }

        impl From<$name> for String {
            fn from(v: $name) -> String {
                v.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(s: String) -> Result<Self, String> {
                if s.len() != 32 {
                    return Err(format!("`{s}` is not 32 hexadecimal digits"));
                }
                u128::from_str_radix(&s, 16).map(Self).map_err(|e| format!("`{s}`: {e}"))
            }
        }
    };
}

hex128! {
    /// The canonical name of a dataset definition or of one of its prefixes; 32 hexadecimal digits.
    Fingerprint
}

hex128! {
    /// The name of a split: hash of (file URL, file version, range). It is equal wherever it is computed.
    SplitKey
}

impl SplitKey {
    /// The key folded to one word, for deriving the keys of rows.
    pub fn folded(self) -> u64 {
        let [a, b] = [self.0, self.0 >> 64].map(|half| {
            #[expect(clippy::cast_possible_truncation, reason = "one half each time")]
            let word = half as u64;
            word
        });
        a ^ b.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_pinned() {
        assert_eq!(mix64(1, 2), mix64(1, 2));
        assert_ne!(mix64(1, 2), mix64(2, 1));
        assert_eq!(hash128(b"caju"), hash128(b"caju"));
        let f = Fingerprint(7);
        assert_eq!(Fingerprint::try_from(f.to_string()).unwrap(), f);
        assert!(Fingerprint::try_from("xyz".to_string()).is_err());
    }
}
