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
    if !can_coalesce(into, &next) {
        return Err(next);
    }
    if let (Elements::Lengths(a), Elements::Lengths(b)) = (&mut into.elements, &mut next.elements) {
        a.append(b);
    }
    into.pieces.append(&mut next.pieces);
    for run in next.runs {
        push_run(&mut into.runs, run);
    }
    Ok(())
}

/// Whether a chunk can be appended to another.
pub fn can_coalesce(into: &Chunk, next: &Chunk) -> bool {
    let (a, b) = (into.schema(), next.schema());
    let same_schema = Arc::ptr_eq(&a, &b) || a == b;
    let same_provenance = into.runs.is_empty() == next.runs.is_empty();
    let same_elements = matches!(
        (&into.elements, &next.elements),
        (Elements::Rows, Elements::Rows) | (Elements::Lengths(_), Elements::Lengths(_))
    );
    let is_whole = !into.remainder && !next.remainder && into.round == next.round;
    same_schema && same_provenance && same_elements && is_whole
}
