//! The account of a task's splits: one that was leased and has not said that it ended is no end.

use std::collections::HashSet;
use std::sync::Arc;

use caju_types::{Error, Result};
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;

use super::{Item, Items};

/// The splits of a task that were leased and have not ended, by their index. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Leases(Arc<Mutex<HashSet<u64>>>);

impl Leases {
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

/// The same items, whose end is an error as long as a leased split has not ended.
pub(super) fn with_ends(items: Items, leases: Leases) -> Items {
    stream::unfold(Some((items, leases)), |state| async move {
        let (mut items, leases) = state?;
        let checked = match items.next().await {
            Some(Ok(Item::EndOfSplit(index))) => leases.end(index).map(|()| Item::EndOfSplit(index)),
            Some(item) => item,
            None => {
                let e = leases.finish().err()?;
                return Some((Err(e), None));
            }
        };
        let next = checked.is_ok().then_some((items, leases));
        Some((checked, next))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ended(items: Vec<Result<Item>>, leases: &Leases) -> Vec<Result<Item>> {
        with_ends(stream::iter(items).boxed(), leases.clone()).collect().await
    }

    #[tokio::test]
    async fn a_stream_ends_when_every_leased_split_has_ended() {
        let leases = Leases::default();
        leases.begin(7);
        leases.begin(8);
        let out = ended(vec![Ok(Item::EndOfSplit(7)), Ok(Item::EndOfRepetition)], &leases).await;
        assert!(out[0].is_ok() && out[1].is_ok());
        let Err(e) = &out[2] else { panic!("split 8 has not ended") };
        assert!(e.message().contains("split 8"), "{e}");
        assert_eq!(ended(vec![Ok(Item::EndOfSplit(8))], &leases).await.len(), 1);
        assert!(ended(vec![Ok(Item::EndOfSplit(8))], &leases).await[0].is_err(), "it ended before");
    }

    #[tokio::test]
    async fn nothing_follows_an_error() {
        let leases = Leases::default();
        leases.begin(1);
        let out = ended(vec![Err(Error::data_loss("damaged")), Ok(Item::EndOfSplit(1))], &leases).await;
        assert!(out.len() == 1 && out[0].is_err());
    }
}
