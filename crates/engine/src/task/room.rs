//! Room for what the readers of a task have under way.

use std::sync::Arc;

use caju_cache::Cache;
use caju_types::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for the splits that a task reads at once, counted in answers to requests for parts, those to come too: of small
/// parts in a store that is far away more are read at once, and of parts that are nearly through.
pub(super) struct Room {
    requests: Arc<Semaphore>,
    /// What a split takes that is computed, or of which nobody knows.
    most: usize,
    /// What the last one took: the next one will.
    likely: usize,
}

/// What one reader takes of it; given back when it is dropped.
pub(super) struct Place(OwnedSemaphorePermit);

impl Room {
    pub(super) fn for_readers(readers: usize) -> Self {
        let all = Cache::answers_at_once(Cache::requests_at_once(readers));
        let most = (all / readers.max(1)).max(1);
        Self { requests: Arc::new(Semaphore::new(all)), most, likely: most }
    }

    /// Waits for a place for one more split.
    ///
    /// # Errors
    /// `Internal` if there is no room any more, which lasts as long as the task.
    pub(super) async fn next(&self) -> Result<Place> {
        self.acquire(self.likely).await.map(Place)
    }

    /// Makes a place as large as the split needs that it is for: what its part asks for, or the most.
    pub(super) async fn fit(&mut self, place: &mut Place, requests: Option<usize>) -> Result<()> {
        self.likely = requests.map_or(self.most, |n| n.clamp(1, self.most));
        match self.likely.checked_sub(place.0.num_permits()) {
            Some(more) => place.0.merge(self.acquire(more).await?),
            None => place.shrink(Some(self.likely)),
        }
        Ok(())
    }

    async fn acquire(&self, requests: usize) -> Result<OwnedSemaphorePermit> {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        Arc::clone(&self.requests)
            .acquire_many_owned(requests)
            .await
            .map_err(|e| Error::internal(format!("room for readers: {e}")))
    }
}

impl Place {
    /// Gives back what the rest of a part has no use for, so that the next one is asked for in time. One is kept, since
    /// decoding needs room, too.
    pub(super) fn shrink(&mut self, requests: Option<usize>) {
        let more = requests.and_then(|n| self.0.num_permits().checked_sub(n.max(1)));
        drop(more.and_then(|more| self.0.split(more)));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn as_many_are_read_at_once_as_there_is_room() {
        let mut room = Room::for_readers(2);
        // Computed: two.
        let mut places = Vec::new();
        while let Some(Ok(mut place)) = room.next().now_or_never() {
            room.fit(&mut place, None).await.unwrap();
            places.push(place);
        }
        assert_eq!(places.len(), 2);
        // One turns out to be a part, and another of them has room beside it; of small ones, several.
        places[0].shrink(Some(4));
        assert!(room.next().now_or_never().is_none(), "it is not known yet");
        drop(places.pop());
        let mut next = room.next().await.unwrap();
        room.fit(&mut next, Some(4)).await.unwrap();
        let mut small = 0;
        while let Some(Ok(mut place)) = room.next().now_or_never() {
            room.fit(&mut place, Some(1)).await.unwrap();
            places.push(place);
            small += 1;
        }
        assert_eq!(small, 24, "of 32, 8 are taken");
        // What is nearly read leaves room, but never all of its own.
        next.shrink(Some(0));
        assert_eq!(
            (0..4).filter(|_| room.next().now_or_never().is_some()).count(),
            4,
            "each is given back at once"
        );
        assert_eq!(room.requests.available_permits(), 3);
        // What is to be computed after small parts waits for more.
        let mut place = room.next().await.unwrap();
        assert!(room.fit(&mut place, None).now_or_never().is_none());
        places.clear();
        room.fit(&mut place, None).await.unwrap();
        drop((place, next));
        assert_eq!(room.requests.available_permits(), 32);
    }
}
