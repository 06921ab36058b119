//! The stream of rows at a hint.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use caju_wire::{Chunk, Run};
use futures::stream::StreamExt;

use super::{Item, Items};
use crate::caching::TaskCache;
use crate::sharing::{Flights, HeldBack, entry_index};

/// Renumbers the rows of every split consecutively.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    next: HashMap<u64, u64>,
}

impl Numbering {
    pub(super) fn renumber(&mut self, chunk: &mut Chunk) {
        let rows = chunk.rows() as u64;
        if let Some(first) = chunk.runs.first() {
            let start = self.next.entry(first.split).or_insert(0);
            chunk.runs = vec![Run { split: first.split, start: *start, len: rows }];
            *start += rows;
        }
    }

    /// No rows of the split follow. An endless `repeat` numbers splits without an end.
    pub(super) fn end(&mut self, split: u64) {
        self.next.remove(&split);
    }
}

/// Rows that come from a part enter here, and rows that are stored go to their writers. `dirty`: stages above changed the
/// ordinals.
pub(super) fn at_hint(hint: usize, dirty: bool, items: Items, cache: &Arc<TaskCache>) -> Items {
    let cache = Arc::clone(cache);
    let numbering = dirty.then(Numbering::default);
    futures::stream::unfold((items, numbering), move |(mut items, mut numbering)| {
        let cache = Arc::clone(&cache);
        async move {
            loop {
                let item = match items.next().await? {
                    Ok(Item::Chunk(chunk)) => match pass(hint, chunk, numbering.as_mut(), &cache).await {
                        Some(chunk) => Ok(Item::Chunk(chunk)),
                        None => continue,
                    },
                    Ok(Item::Entry { hint: h, chunk }) if h == hint => Ok(Item::Chunk(chunk)),
                    // Rows of the window come from below this hint, as the rows that another job had there.
                    Ok(Item::Entry { hint: h, chunk }) if h == entry_index(hint) => {
                        if let Some(run) = chunk.runs.first() {
                            cache.pass_shared(hint, run.split, &chunk.pieces).await;
                        }
                        Ok(Item::Entry { hint: h, chunk })
                    }
                    Ok(Item::EndOfSplit(split)) => {
                        cache.end(hint, split).await;
                        if let Some(numbering) = &mut numbering {
                            numbering.end(split);
                        }
                        Ok(Item::EndOfSplit(split))
                    }
                    other => other,
                };
                return Some((item, (items, numbering)));
            }
        }
    })
    .boxed()
}

/// Rows that other jobs computed enter here, and rows that this task computed go to the window.
pub(super) fn at_sharing_point(place: usize, items: Items, sharing: &Arc<Flights>) -> Items {
    let (sharing, entry, held_back) = (Arc::clone(sharing), entry_index(place), sharing.held_back(place));
    let passing = move |item| {
        let sharing = Arc::clone(&sharing);
        async move {
            match item {
                Ok(Item::Entry { hint, chunk }) if hint == entry => Some(Ok(Item::Chunk(chunk))),
                Ok(Item::Chunk(chunk)) => {
                    sharing.pass(place, chunk).await.map(|chunk| Ok(Item::Chunk(chunk)))
                }
                Ok(Item::EndOfSplit(split)) => {
                    sharing.end(place, split);
                    Some(Ok(Item::EndOfSplit(split)))
                }
                other => Some(other),
            }
        }
    };
    let passed = items.filter_map(passing).boxed();
    match held_back {
        Some(held_back) => with_held_back(passed, held_back),
        None => passed,
    }
}

/// Says for how much of the time nobody asks for the next item.
fn with_held_back(mut items: Items, held_back: Arc<HeldBack>) -> Items {
    let mut is_held = false;
    let asked = move |cx: &mut Context<'_>| {
        if std::mem::take(&mut is_held) {
            held_back.set(false);
        }
        let polled = items.poll_next_unpin(cx);
        if matches!(polled, Poll::Ready(Some(_))) {
            is_held = true;
            held_back.set(true);
        }
        polled
    };
    futures::stream::poll_fn(asked).boxed()
}

async fn pass(
    hint: usize,
    mut chunk: Chunk,
    numbering: Option<&mut Numbering>,
    cache: &TaskCache,
) -> Option<Chunk> {
    if let Some(numbering) = numbering {
        numbering.renumber(&mut chunk);
    }
    let run = *chunk.runs.first()?;
    let skip = cache.pass(hint, run.split, &chunk.pieces).await;
    if run.start >= skip {
        return Some(chunk);
    }
    let (drop, rows) = (usize::try_from(skip - run.start).unwrap_or(usize::MAX), chunk.rows());
    (drop < rows).then(|| chunk.slice_rows(drop, rows - drop))
}

/// Behind cross-split stages: stored rows enter here, and rows that arrive go to the task's part of the set. `counted`: the rows of
/// splits were counted above the hint, so that the set's record may say how many there are.
pub(super) fn at_set(hint: usize, counted: bool, items: Items, cache: &Arc<TaskCache>) -> Items {
    let cache = Arc::clone(cache);
    futures::stream::unfold(items, move |mut items| {
        let cache = Arc::clone(&cache);
        async move {
            match items.next().await {
                Some(Ok(Item::Chunk(chunk))) => {
                    cache.pass_set(hint, &chunk).await;
                    Some((Ok(Item::Chunk(chunk)), items))
                }
                Some(Ok(Item::Entry { hint: h, chunk })) if h == hint => {
                    Some((Ok(Item::Chunk(chunk)), items))
                }
                Some(other) => Some((other, items)),
                None => {
                    cache.end_set(hint, counted).await;
                    None
                }
            }
        }
    })
    .boxed()
}
