//! Sizes, durations and counts as text.
//!
//! The parsers are not those of `bytesize` and `humantime`. In `bytesize` `64MB` is a power of 1000, and here of 1024: sizes in
//! pipeline files decide where splits begin and enter fingerprints, so their meaning stays. `humantime` also takes months, years
//! and sums such as `1h 30m`, and prints other texts than the reports have.

use std::time::Duration;

use crate::error::{Error, Result};

/// The largest size: below the largest number of a signed 64-bit integer, which other programs and formats use.
const MAX_BYTES: f64 = 9e18;

fn split_number(text: &str) -> Option<(f64, &str)> {
    let t = text.trim();
    let at = t.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(t.len());
    let n: f64 = t[..at].parse().ok()?;
    Some((n, t[at..].trim()))
}

/// Parses a size in bytes. Units are powers of 1024, in any letter case: `64MiB`, `64mb`, `1.5g`, `4096`.
///
/// # Errors
/// `InvalidArgument` that shows the text and an example.
///
/// ```
/// assert_eq!(caju_types::parse_bytes("1.5 KiB").unwrap(), 1536);
/// assert!(caju_types::parse_bytes("12kbb").is_err());
/// assert!(caju_types::parse_bytes("99999999tb").unwrap_err().message().contains("too large"));
/// ```
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad = || {
        Error::invalid(format!(
            "`{text}` is not a size; write bytes with a unit, such as 4096, 64MiB or 1.5GB"
        ))
    };
    let (n, unit) = split_number(text).ok_or_else(bad)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1u64,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(bad()),
    };
    let bytes = n * factor as f64;
    if bytes > MAX_BYTES {
        return Err(Error::invalid(format!(
            "`{text}` is too large a size: 9e18 bytes, about 8000 PiB, are the most"
        )));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "range checked above")]
    Ok(bytes.round() as u64)
}

/// Parses a duration with a unit: `8us`, `200ms`, `1.5s`, `10m`, `2h`, `7d`.
///
/// # Errors
/// `InvalidArgument` that shows the text and an example.
///
/// ```
/// assert_eq!(caju_types::parse_duration("8us").unwrap().as_micros(), 8);
/// assert!(caju_types::parse_duration("8").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration> {
    let bad = || {
        Error::invalid(format!(
            "`{text}` is not a duration; write a number with a unit, such as 8us, 200ms, 1.5s or 10m"
        ))
    };
    let (n, unit) = split_number(text).ok_or_else(bad)?;
    let factor = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(n * factor).map_err(|_| bad())
}

/// Formats a size: `1.50 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut v = bytes as f64;
    let mut u = 0;
    while v >= 1024.0 && u + 1 < UNITS.len() {
        v /= 1024.0;
        u += 1;
    }
    if u == 0 { format!("{bytes} B") } else { format!("{v:.2} {}", UNITS[u]) }
}

/// Formats a count: `1,234,567`.
pub fn format_count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a duration: `8.0 us`, `1.25 s`, `2 min 5 s`.
pub fn format_duration(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 1e-3 {
        format!("{:.1} us", s * 1e6)
    } else if s < 1.0 {
        format!("{:.1} ms", s * 1e3)
    } else if s < 60.0 {
        format!("{s:.2} s")
    } else if s < 3600.0 {
        format!("{} min {} s", d.as_secs() / 60, d.as_secs() % 60)
    } else {
        format!("{} h {} min", d.as_secs() / 3600, d.as_secs() % 3600 / 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// STO-17: sizes are powers of 1024; nonsense is an invalid argument.
    #[test]
    fn sizes() {
        for (t, n) in [("100kb", 102_400), (" 75 mb ", 78_643_200), ("1234", 1234), ("0", 0)] {
            assert_eq!(parse_bytes(t).unwrap(), n, "{t}");
        }
        for t in ["", "12kbb", "27mxb", "-1", "nan", "1e400"] {
            assert!(parse_bytes(t).is_err(), "{t}");
        }
        assert_eq!(format_bytes(1536), "1.50 KiB");
        assert_eq!(format_count(1_234_567), "1,234,567");
    }
}
