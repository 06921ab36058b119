//! Requests for the blocks of a part, made before anybody needs their answers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use caju_types::Result;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::blocks::Blocks;

/// Asks for groups of blocks in the order in which they are wanted, a few requests at once. The next request is made
/// when an answer is taken, so that the store works while rows are decoded, and not by turns with them.
pub(super) struct Ahead {
    blocks: Arc<Blocks>,
    /// What is still to be asked for.
    groups: VecDeque<Range<usize>>,
    coming: VecDeque<(usize, BoxFuture<'static, Result<Vec<Bytes>>>)>,
    /// Requests under way at once.
    most: usize,
    left: Arc<AtomicUsize>,
}

impl Ahead {
    pub(super) fn new(blocks: &Arc<Blocks>, most: usize) -> Self {
        Self {
            blocks: Arc::clone(blocks),
            groups: VecDeque::new(),
            coming: VecDeque::new(),
            most: most.max(1),
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
            self.coming.push_back((group.start, self.blocks.get_ahead(group).boxed()));
        }
    }

    fn tell(&self) {
        self.left.store(self.groups.len() + self.coming.len(), Ordering::Relaxed);
    }
}
