//! Requests for the blocks of a part, made before anybody needs their answers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use caju_types::Result;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ReadOptions;
use super::blocks::Blocks;

/// Asks for groups of blocks in the order in which they are wanted, a few requests at once. The next request is made
/// when an answer is taken, so that the store works while rows are decoded, and not by turns with them.
pub(super) struct Ahead {
    blocks: Arc<Blocks>,
    /// What is still to be asked for.
    groups: VecDeque<Range<usize>>,
    coming: VecDeque<(usize, BoxFuture<'static, Result<Vec<Bytes>>>)>,
    /// Answers that are not taken.
    most: usize,
    /// What requests of this part and of others wait for.
    turns: Option<Arc<Semaphore>>,
    left: Arc<AtomicUsize>,
}

impl Ahead {
    pub(super) fn new(blocks: &Arc<Blocks>, options: &ReadOptions) -> Self {
        Self {
            blocks: Arc::clone(blocks),
            groups: VecDeque::new(),
            coming: VecDeque::new(),
            most: options.prefetch.max(1),
            turns: options.turns.clone(),
            left: Arc::default(),
        }
    }

    /// Wants these groups after those that it wants already.
    pub(super) fn want(&mut self, groups: impl IntoIterator<Item = Range<usize>>) {
        self.groups.extend(groups);
        self.ask();
        self.tell();
    }

    /// How many answers nobody has taken yet, whether they were asked for or not.
    pub(super) fn left(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.left)
    }

    /// The next group's blocks, and the place of the first one; none after the last.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Vec<Bytes>)>> {
        let Some((start, coming)) = self.coming.pop_front() else { return Ok(None) };
        self.ask();
        let blocks = coming.await?;
        self.tell();
        Ok(Some((start, blocks)))
    }

    fn ask(&mut self) {
        while self.coming.len() < self.most
            && let Some(group) = self.groups.pop_front()
        {
            let turn = self.turns.clone().map(turn);
            self.coming.push_back((group.start, self.blocks.get_ahead(group, turn).boxed()));
        }
    }

    fn tell(&self) {
        self.left.store(self.groups.len() + self.coming.len(), Ordering::Relaxed);
    }
}

/// A request's turn. Turns come in the order in which they were asked for, not in that in which tasks happen to begin.
fn turn(turns: Arc<Semaphore>) -> BoxFuture<'static, Option<OwnedSemaphorePermit>> {
    let mut turn = Box::pin(turns.acquire_owned());
    // This takes its place in the queue.
    match (&mut turn).now_or_never() {
        Some(taken) => std::future::ready(taken.ok()).boxed(),
        None => turn.map(Result::ok).boxed(),
    }
}
