//! What a worker says of the splits of a task, besides their rows.

use caju_types::Listed;

/// What a frame says of the splits of its task, besides their rows. Readers need it for their states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SplitFacts {
    /// Splits whose numbers of rows are known since the last frame, with these numbers. Rows that readers had before are among
    /// them.
    pub sized: Vec<(u64, u64)>,
    /// The feed of the task's splits, and how far it was listed when the newest of them was leased. So it covers each split
    /// that has rows in this frame or in an earlier one, unless splits are leased in another order than the listing's. None:
    /// the dispatcher does not say it.
    pub listed: Option<(u32, Listed)>,
}

impl SplitFacts {
    /// The facts of a header's fields.
    pub(crate) fn of_header(
        (sized_split, sized_rows): (&[u64], &[u64]),
        (feed, count, digest): (u32, u64, u64),
    ) -> Self {
        let sized = sized_split.iter().copied().zip(sized_rows.iter().copied()).collect();
        Self { sized, listed: (count > 0).then_some((feed, Listed { count, digest })) }
    }
}
