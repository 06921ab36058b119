//! Small chunks that go out together.

use std::sync::Arc;

use crate::chunk::push_run;
use crate::{Chunk, Elements};

/// Appends a chunk to another, so that many small elements share a frame. Nothing is copied.
///
/// # Errors
/// The second chunk, if the two cannot share a frame: their schemas, kinds of elements or places in rounds differ, or one is
/// a remainder, which the reader must be able to tell.
pub fn coalesce(into: &mut Chunk, mut next: Chunk) -> Result<(), Chunk> {
    let (a, b) = (into.schema(), next.schema());
    let same_schema = Arc::ptr_eq(&a, &b) || a == b;
    let provenance = into.runs.is_empty() == next.runs.is_empty();
    if !same_schema || !provenance || into.remainder || next.remainder || into.round != next.round {
        return Err(next);
    }
    match (&mut into.elements, &mut next.elements) {
        (Elements::Rows, Elements::Rows) => {}
        (Elements::Lengths(a), Elements::Lengths(b)) => a.append(b),
        _ => return Err(next),
    }
    into.pieces.append(&mut next.pieces);
    for run in next.runs {
        push_run(&mut into.runs, run);
    }
    Ok(())
}
