//! Base64 (RFC 4648, with padding) for the one place of a definition that holds bytes: the `memory` source.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as text.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for i in 0..4 {
            let six = (word >> (18 - 6 * i)) & 63;
            out.push(if i <= group.len() { char::from(ALPHABET[six as usize]) } else { '=' });
        }
    }
    out
}

/// Text as bytes; line breaks and blanks are passed over. `None` if it is not base64: a foreign character,
/// padding in the middle, a cut end, or bits set that no byte takes.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut digits = Vec::with_capacity(text.len());
    let mut padding = 0usize;
    for c in text.bytes().filter(|c| !c.is_ascii_whitespace()) {
        match (c, padding) {
            (b'=', 0..=1) => padding += 1,
            (_, 0) => digits.push(digit(c)?),
            _ => return None,
        }
    }
    if !(digits.len() + padding).is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let word = group.iter().fold(0u32, |w, d| w << 6 | u32::from(*d)) << (6 * (4 - group.len()));
        let [_, a, b, c] = word.to_be_bytes();
        let (whole, rest): (&[u8], &[u8]) = match group.len() {
            4 => (&[a, b, c], &[]),
            3 => (&[a, b], &[c]),
            2 => (&[a], &[b, c]),
            _ => return None,
        };
        if rest.iter().any(|b| *b != 0) {
            return None;
        }
        out.extend_from_slice(whole);
    }
    Some(out)
}

fn digit(c: u8) -> Option<u8> {
    match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
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
        fn there_and_back(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = decode(&text);
        }
    }
}
