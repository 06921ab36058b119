//! The rule of the Cachew paper (ATC'22), for comparison, with its faults.
//!
//! It compares three times: computing everything; reading the full output; reading at the marker and
//! computing what comes after it. Each is a *sum* of stage times, although a pipeline overlaps them, and a
//! read takes what a static table, measured once on GlusterFS, says for an element of that size. The table
//! is extended by straight lines, and its first line is below zero for elements under about 86 KB.

use super::Pick;
use crate::model::Model;

/// Size of an element in bytes, and milliseconds to read one.
const GLUSTER: [(f64, f64); 7] =
    [(1e5, 0.0038), (1e6, 0.255), (5e6, 5.63), (1e7, 11.9), (5e7, 75.1), (1e8, 155.0), (4e8, 625.0)];

/// What the table says about reading an element of this many bytes, in milliseconds.
///
/// ```
/// use caju_planner::gluster_read_ms;
/// assert_eq!(gluster_read_ms(1e8), 155.0);
/// assert!((gluster_read_ms(2.5e8) - 390.0).abs() < 1e-9);
/// assert!(gluster_read_ms(8e4) < 0.0);
/// ```
pub fn gluster_read_ms(bytes: f64) -> f64 {
    let above = GLUSTER.iter().position(|p| bytes <= p.0).unwrap_or(GLUSTER.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (GLUSTER[above - 1], GLUSTER[above]);
    y0 + (bytes - x0) * (y1 - y0) / (x1 - x0)
}

/// Cachew's rule. The marker is the first hint, the full output the last one, each in the first encoding
/// that the profile lists: Cachew has one format, no budget and no horizon.
pub(super) fn pick(model: &Model<'_>) -> Pick {
    let compute = model.summed_s_below(None);
    let (Some(first), Some(last)) = (model.hints().next(), model.hints().next_back()) else {
        return Pick {
            candidate: 0,
            reason: "Policy `cachew` computes, because the pipeline has no hint.".into(),
        };
    };
    let source = read_then_compute(model, first);
    let full = read_then_compute(model, last);
    let sums = format!(
        "sums per row of {} computing, {} at `{}` and {} at `{}`",
        ms(compute),
        ms(source),
        model.profile().hints[first].name,
        ms(full),
        model.profile().hints[last].name
    );
    // The first of equals, in Cachew's own order.
    let hint = if source <= full && source <= compute {
        first
    } else if full <= compute {
        last
    } else {
        return Pick { candidate: 0, reason: format!("Policy `cachew` computes: {sums}.") };
    };
    let name = &model.profile().hints[hint].name;
    match its_option(model, hint) {
        Some(candidate) => Pick { candidate, reason: format!("Policy `cachew` stores `{name}`: {sums}.") },
        None => Pick {
            candidate: 0,
            reason: format!("Policy `cachew` would store `{name}` ({sums}), but cannot, so it computes."),
        },
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.4} ms", seconds * 1e3)
}

fn read_then_compute(model: &Model<'_>, hint: usize) -> f64 {
    let (bytes, per_row) = model.element_at(hint);
    gluster_read_ms(bytes) * per_row * 1e-3 + model.summed_s_below(Some(hint))
}

/// The whole snapshot of the hint in its first encoding, or as much of it as can be stored.
fn its_option(model: &Model<'_>, hint: usize) -> Option<usize> {
    let of_hint = |i: &usize| {
        let c = &model.candidates()[*i];
        c.obstacle.is_none() && c.stored.is_some_and(|s| s.hint == hint && s.encoding == 0)
    };
    (0..model.candidates().len()).rfind(of_hint)
}
