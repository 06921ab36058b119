//! Bytes in definitions: base64 (RFC 4648, with padding).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Bytes as text.
pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Text as bytes. White space is skipped. `None` if it is not base64: a foreign character, padding in the middle, a
/// truncated end, or bits set that belong to no byte.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(digits).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn test_vectors_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).unwrap(), plain.as_bytes());
        }
        for bad in ["Zg=", "Zg", "Z===", "Zg==Zg==", "Zh==", "Z_==", "Zm9v=", "é"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
        assert_eq!(decode("Zm9v\n  YmFy\n").unwrap(), b"foobar");
    }

    proptest! {
        #[test]
        fn round_trips(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = decode(&text);
        }
    }
}
