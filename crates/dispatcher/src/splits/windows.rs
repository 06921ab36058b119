//! A listing, window by window, in the order of the epoch.

use caju_types::{Error, Result};
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};

use super::SplitOrder;
use crate::catalog::ListedSplit;

/// Splits listed ahead of their lease when their order is the canonical one.
const LOOK_AHEAD: usize = 1024;

/// The most splits of a window without an order: as many as a task leases at once.
const MOST_READY: usize = 64;

/// Cuts a listing into windows and permutes each. Without an order a window has the splits that are listed without waiting.
pub(super) struct Windows {
    splits: BoxStream<'static, Result<ListedSplit>>,
    order: Option<SplitOrder>,
    /// How many windows were cut.
    count: u32,
    /// The first split of the next repetition: repetitions follow one another, whatever the order in each.
    next_repetition: Option<ListedSplit>,
    /// How the listing failed, after the last window.
    failed: Option<Error>,
    over: bool,
}

impl Windows {
    pub(super) fn new(splits: BoxStream<'static, Result<ListedSplit>>, order: Option<SplitOrder>) -> Self {
        Self { splits, order, count: 0, next_repetition: None, failed: None, over: false }
    }

    /// How many splits may wait before the window after the last one is listed.
    pub(super) fn look_ahead(&self) -> usize {
        self.order.map_or(LOOK_AHEAD, |_| SplitOrder::window_len(self.count.saturating_sub(1)))
    }

    /// The splits of the next window, perhaps none; `None` at the end of the listing.
    ///
    /// # Errors
    /// Those of the listing.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<ListedSplit>>> {
        if self.over {
            return Ok(None);
        }
        let Some(order) = self.order else { return self.list_ready().await };
        let mut window = self.list(SplitOrder::window_len(self.count)).await?;
        order.permute(self.count, &mut window);
        self.count = self.count.saturating_add(1);
        Ok(Some(window))
    }

    /// The next split, and those that follow it without waiting.
    async fn list_ready(&mut self) -> Result<Option<Vec<ListedSplit>>> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let Some(first) = self.splits.next().await else {
            self.over = true;
            return Ok(None);
        };
        let mut window = vec![first?];
        while window.len() < MOST_READY {
            match self.splits.next().now_or_never() {
                Some(Some(Ok(split))) => window.push(split),
                Some(Some(Err(e))) => {
                    self.failed = Some(e);
                    break;
                }
                Some(None) => {
                    self.over = true;
                    break;
                }
                None => break,
            }
        }
        Ok(Some(window))
    }

    /// Lists at most the given number of splits of one repetition.
    async fn list(&mut self, len: usize) -> Result<Vec<ListedSplit>> {
        let mut window = Vec::with_capacity(len);
        window.extend(self.next_repetition.take());
        let mut repetition = window.first().map(ListedSplit::repetition);
        while window.len() < len {
            let Some(split) = self.splits.next().await else {
                self.over = true;
                break;
            };
            let split = split?;
            if repetition.is_some_and(|r| r != split.repetition()) {
                self.next_repetition = Some(split);
                break;
            }
            repetition = Some(split.repetition());
            window.push(split);
        }
        Ok(window)
    }
}
