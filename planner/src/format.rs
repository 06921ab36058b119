//! Numbers as people read them.

use std::time::Duration;

use caju_types::{format_bytes, format_count, format_duration};

/// A rate as people read it: `3,636`, `12.5`, `0.034`.
///
/// ```
/// assert_eq!(caju_planner::format_rate(3636.4), "3,636");
/// assert_eq!(caju_planner::format_rate(0.0), "0");
/// ```
pub fn rate(rows_per_s: f64) -> String {
    match rows_per_s {
        r if r >= 1e12 => format!("{r:.1e}"),
        r if r >= 99.95 => format_count(to_u64(r)),
        r if r >= 1.0 => format!("{r:.1}"),
        r if r >= 0.001 => format!("{r:.3}"),
        r if r <= 0.0 => "0".to_owned(),
        r => format!("{r:.1e}"),
    }
}

/// `2 h 24 min`.
pub(crate) fn time(seconds: f64) -> String {
    if seconds >= 3.6e7 {
        return format!("{} h", rate(seconds / 3600.0));
    }
    Duration::try_from_secs_f64(seconds).map_or_else(|_| format!("{seconds:.1e} s"), format_duration)
}

/// `51.30 GiB`.
pub(crate) fn size(bytes: f64) -> String {
    format_bytes(to_u64(bytes))
}

/// `35 %`, `2.4 %`, `0.01 %`; of a fraction between 0 and 1.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.095 => format!("{p:.1} %"),
        p => format!("{p:.2} %"),
    }
}

/// `1 stage`, `3 stages`.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{} {what}{}", format_count(n), if n == 1 { "" } else { "s" })
}

/// The nearest whole number; beyond the range the nearest end.
pub(crate) fn to_u64(v: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let whole = v.round() as u64;
    whole
}

/// Nine significant digits: more than any measurement has, fewer than the last digits in which two orders of
/// summation may differ.
pub(crate) fn nine_digits(v: f64) -> f64 {
    format!("{v:.8e}").parse().unwrap_or(v)
}

/// Six significant digits.
pub(crate) fn six_digits(v: f64) -> f64 {
    format!("{v:.5e}").parse().unwrap_or(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!([rate(3636.4), rate(99.97), rate(12.54), rate(0.0341)], ["3,636", "100", "12.5", "0.034"]);
        assert_eq!([rate(1e-9), rate(3e14)], ["1.0e-9", "3.0e14"]);
        assert_eq!([percent(0.354), percent(0.0238), percent(0.0001)], ["35 %", "2.4 %", "0.01 %"]);
        assert_eq!([time(8640.0), time(1e40)], ["2 h 24 min", "2.8e36 h"]);
        assert_eq!([count(1, "epoch"), count(2000, "epoch")], ["1 epoch", "2,000 epochs"]);
        assert_eq!(nine_digits(1.0 / 3.0), 0.333333333);
        assert_eq!((to_u64(-1.0), to_u64(1e30), to_u64(f64::NAN)), (0, u64::MAX, 0));
    }
}
