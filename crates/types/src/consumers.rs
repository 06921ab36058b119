//! What the consumers of a job, which read its epoch in equal steps, have in common.

use serde::{Deserialize, Serialize};

/// What the elements that the consumers of a job get in one round have in common. The n-th elements of all consumers are a
/// round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Nothing: every consumer has its own order.
    #[default]
    None,
    /// They are of one worker and of one class of `bucket_by_length`, and their padded lists have one length. The consumers
    /// read concurrently: a round is delivered when all have received it.
    Bucket,
    /// As `Bucket`, and rows are packed so that they have nearly the same number of items.
    Tokens,
}

impl Balance {
    /// The name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Balance::None => "none",
            Balance::Bucket => "bucket",
            Balance::Tokens => "tokens",
        }
    }
}

/// What happens to the elements of an epoch that do not fill a last round of consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uneven {
    /// They are dropped: every consumer gets floor(elements / consumers).
    #[default]
    Drop,
    /// Some are repeated: every consumer gets ceil(elements / consumers).
    Pad,
}

impl Uneven {
    /// The name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Uneven::Drop => "drop",
            Uneven::Pad => "pad",
        }
    }
}
