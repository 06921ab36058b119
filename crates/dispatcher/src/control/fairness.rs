//! How many splits one answer leases.

use crate::state::{FeedId, Iteration};

/// Near the end of a feed the answers get smaller, so that no worker holds all of the last splits.
pub(super) fn fair_count(iteration: &Iteration, feed: FeedId, want: usize, left: usize) -> usize {
    let open = iteration.tasks.values().filter(|t| t.feed == feed && t.is_open()).count();
    if open < 2 { want } else { want.min(left.div_ceil(2 * open)).max(1) }
}
