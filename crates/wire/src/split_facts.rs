//! What a worker says of the splits of a task, besides their rows.

use caju_types::Listed;

use crate::frame::{EndHeader, RowsHeader};

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

/// Two headers have the same fields for these facts.
macro_rules! in_header {
    ($header:ty) => {
        impl $header {
            /// This header with what no earlier frame said of the task's splits.
            pub fn with_split_facts(self, facts: SplitFacts) -> Self {
                let (sized_split, sized_rows) = facts.sized.into_iter().unzip();
                let (listed_feed, Listed { count: listed_count, digest: listed_digest }) =
                    facts.listed.unwrap_or_default();
                Self { sized_split, sized_rows, listed_feed, listed_count, listed_digest, ..self }
            }

            /// What it says of the task's splits besides their rows.
            pub fn split_facts(&self) -> SplitFacts {
                let listed = Listed { count: self.listed_count, digest: self.listed_digest };
                SplitFacts {
                    sized: self.sized_split.iter().copied().zip(self.sized_rows.iter().copied()).collect(),
                    listed: (listed.count > 0).then_some((self.listed_feed, listed)),
                }
            }
        }
    };
}

in_header!(RowsHeader);
in_header!(EndHeader);
