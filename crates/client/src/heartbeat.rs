//! When readers report.

use std::time::Duration;

use caju_types::mix64;

/// How long the dispatcher may wait for news before it answers a reader's heartbeat number `n`: between 7/8 of the interval and
/// all of it, and shorter than it by whole milliseconds.
///
/// Equal waits make bunches: readers that report in one moment are answered one after another and report one after another again,
/// and whoever comes between them joins them. With 2,000 readers a bunch grew to hundreds within half a minute.
///
/// ```
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// let waits: Vec<_> = (0..4).map(|n| caju_client::heartbeat_wait(second, 7, n)).collect();
/// assert!(waits.iter().all(|wait| *wait <= second && *wait >= second * 7 / 8));
/// assert_ne!(waits[0], waits[1]);
/// ```
pub fn heartbeat_wait(interval: Duration, client: u64, n: u64) -> Duration {
    let spread = u64::try_from((interval / 8).as_millis()).unwrap_or(0);
    interval - Duration::from_millis(mix64(client, n) % (spread + 1))
}
