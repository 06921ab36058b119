//! Checks that every leased split has ended before the stream does: a split without a positive end is an error.

use std::collections::HashSet;
use std::sync::Arc;

use caju_types::{Error, Result};
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;

use super::{Item, Items};

/// The splits of a task that were leased and have not ended, by their index. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenSplits(Arc<Mutex<HashSet<u64>>>);

impl OpenSplits {
    /// A split was leased.
    pub(super) fn begin(&self, index: u64) {
        self.0.lock().insert(index);
    }

    fn end(&self, index: u64) -> Result<()> {
        if self.0.lock().remove(&index) {
            return Ok(());
        }
        Err(Error::internal(format!("split {index} ended twice, or was never leased")))
    }

    fn finish(&self) -> Result<()> {
        let open = self.0.lock();
        match open.iter().min() {
            None => Ok(()),
            Some(first) => Err(Error::internal(format!(
                "{} splits of the task have no end, the first of them split {first}: rows may be missing",
                open.len()
            ))),
        }
    }
}

/// Passes the items on. Their end is an error if a leased split has not ended.
pub(super) fn checked(items: Items, splits: OpenSplits) -> Items {
    stream::unfold(Some((items, splits)), |state| async move {
        let (mut items, splits) = state?;
        let item = match items.next().await {
            Some(Ok(Item::EndOfSplit(index))) => splits.end(index).map(|()| Item::EndOfSplit(index)),
            Some(item) => item,
            None => {
                let e = splits.finish().err()?;
                return Some((Err(e), None));
            }
        };
        let next = item.is_ok().then_some((items, splits));
        Some((item, next))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::super::EndOfRepetition;
    use super::*;

    async fn ended(items: Vec<Result<Item>>, splits: &OpenSplits) -> Vec<Result<Item>> {
        checked(stream::iter(items).boxed(), splits.clone()).collect().await
    }

    #[tokio::test]
    async fn a_stream_ends_when_every_leased_split_has_ended() {
        let splits = OpenSplits::default();
        splits.begin(7);
        splits.begin(8);
        let out = ended(
            vec![
                Ok(Item::EndOfSplit(7)),
                Ok(Item::EndOfRepetition(EndOfRepetition { ended: 0, next: Some(1) })),
            ],
            &splits,
        )
        .await;
        assert!(out[0].is_ok() && out[1].is_ok());
        let Err(e) = &out[2] else { panic!("split 8 has not ended") };
        assert!(e.message().contains("split 8"), "{e}");
        assert_eq!(ended(vec![Ok(Item::EndOfSplit(8))], &splits).await.len(), 1);
        assert!(ended(vec![Ok(Item::EndOfSplit(8))], &splits).await[0].is_err(), "it ended before");
    }

    #[tokio::test]
    async fn nothing_follows_an_error() {
        let splits = OpenSplits::default();
        splits.begin(1);
        let out = ended(vec![Err(Error::data_loss("damaged")), Ok(Item::EndOfSplit(1))], &splits).await;
        assert!(out.len() == 1 && out[0].is_err());
    }
}
