//! Numbers of workers in sentences.

use super::choose::SAME_RATE;
use super::curve::{Curve, Point, ROUNDING, delivered_per_row, is_of_workers};
use crate::candidate::Limit;
use crate::choice::Choice;
use crate::explain::limit_text;
use crate::format::{self, count, percent, rate};

fn workers(n: u64) -> String {
    count(n, "worker")
}

/// The verb of a number of workers, which is "is" for one and "are" for several.
fn verb(n: u64, one: &'static str, several: &'static str) -> &'static str {
    if n == 1 { one } else { several }
}

/// A cost as people read it; its currency is that of the prices.
pub(super) fn money(cost: f64) -> String {
    match cost {
        c if c >= 1000.0 => format::rate(c),
        c if c >= 0.01 || c == 0.0 => format!("{c:.2}"),
        c => format!("{c:.1e}"),
    }
}

/// The number in a sentence.
pub(super) fn why(curve: &Curve<'_>, point: &Point, chosen: usize) -> String {
    let reads = match &point.choice {
        Choice::Compute => String::new(),
        stored => format!("reads {stored}; "),
    };
    let limited = match point.limit {
        Limit::Consumer => "fast enough for the consumers".into(),
        limit => format!("limited by {}", limit_text(curve.profile, limit)),
    };
    format!("{reads}{limited}; {}", verdict(curve, point, chosen))
}

/// Why a number was taken or not.
fn verdict(curve: &Curve<'_>, point: &Point, chosen: usize) -> String {
    let Some(best) = curve.points.get(chosen) else { return String::new() };
    if point.workers == best.workers {
        return "chosen".into();
    }
    if curve.delivers_nothing && best.cost_per_epoch.is_none() {
        return "no row reaches the consumers, whatever the number".into();
    }
    if let (Some(cost), Some(least)) = (point.cost_per_epoch, best.cost_per_epoch)
        && cost > least
    {
        return format!(
            "an epoch costs {} more than with {}",
            percent(cost / least - 1.0),
            workers(best.workers)
        );
    }
    let slower = point.s_per_row / best.s_per_row - 1.0;
    match slower {
        s if s > SAME_RATE => {
            format!("an epoch takes {} longer than with {}", percent(s), workers(best.workers))
        }
        s if s < -ROUNDING => format!("less than 0.5 % faster than {}", workers(best.workers)),
        _ if point.workers > best.workers => format!("no faster than {}", workers(best.workers)),
        _ => format!("as fast as {}", workers(best.workers)),
    }
}

/// The answer in a sentence or two.
pub(super) fn reason(curve: &Curve<'_>, chosen: usize) -> String {
    let Some(point) = curve.points.get(chosen) else { return "No number of workers is allowed.".into() };
    let mut out = match point.cost_per_epoch {
        Some(cost) => cheapest(curve, point, cost),
        None => enough(curve, chosen, point),
    };
    if let Choice::Materialize { .. } = point.choice {
        out += &format!(" Rows are read from {}.", point.choice);
    }
    out
}

fn cheapest(curve: &Curve<'_>, point: &Point, cost: f64) -> String {
    let limit = match point.limit {
        Limit::Consumer => "the consumers, which do not wait".into(),
        limit => limit_text(curve.profile, limit),
    };
    let wait = match curve.wait(point) {
        Some(w) if w > SAME_RATE => format!("; the consumers wait {} of their time", percent(w)),
        _ => String::new(),
    };
    format!(
        "{} {} the cheapest epoch: {} at {} rows/s, limited by {limit}{wait}.",
        capital(&workers(point.workers)),
        verb(point.workers, "makes", "make"),
        money(cost),
        rate(1.0 / point.s_per_row)
    )
}

/// The reason for this number of workers, without prices.
fn enough(curve: &Curve<'_>, chosen: usize, point: &Point) -> String {
    let wait = curve.wait(point);
    let have = workers(point.workers);
    if wait.is_some_and(|w| w <= SAME_RATE) {
        let taken = rate(delivered_per_row(curve.profile) / curve.demand_s);
        return match chosen.checked_sub(1).and_then(|i| curve.points.get(i)) {
            Some(fewer) => format!(
                "With {have} the consumers, which take {taken} rows/s, do not wait; with {} they would wait {} of their \
                 time.",
                fewer.workers,
                percent(curve.wait(fewer).unwrap_or(0.0))
            ),
            None => format!(
                "{}, the fewest allowed, {} enough: the consumers, which take {taken} rows/s, do not wait.",
                capital(&have),
                verb(point.workers, "is", "are")
            ),
        };
    }
    if curve.delivers_nothing {
        return format!(
            "{}, the fewest allowed, {} as good as more: the stages give no row to the consumers (out_rows_per_row is 0), \
             whatever the number of workers.",
            capital(&have),
            verb(point.workers, "is", "are")
        );
    }
    let waits = match wait {
        Some(w) => format!("the consumers wait {} of their time", percent(w)),
        None => {
            "the profile names no demand (consumer.rows_per_s), so that every row per second counts".into()
        }
    };
    let top = format!(
        "{} {} {} rows/s",
        capital(&have),
        verb(point.workers, "reaches", "reach"),
        rate(1.0 / point.s_per_row)
    );
    match point.supply_limit {
        Limit::Consumer => {
            format!(
                "{}, the fewest allowed, {} enough: nothing that was measured limits the rate; {waits}.",
                capital(&have),
                verb(point.workers, "is", "are")
            )
        }
        limit if !is_of_workers(limit) => format!(
            "{top}, which is all that {} allows: more workers would not help, {}; {waits}.",
            limit_text(curve.profile, limit),
            way_out(limit)
        ),
        _ if point.workers == curve.limits.max() => {
            let are = verb(point.workers, "is", "are");
            format!("{top} and {are} the most allowed: {waits}{}.", needed(curve, point))
        }
        limit => format!(
            "{top}, {}, limited by {}; {waits}.",
            peak(curve, point),
            limit_text(curve.profile, limit)
        ),
    }
}

/// How the rate of the chosen number compares with the highest one. More workers may give less, because they find less of a
/// snapshot in their memory.
fn peak(curve: &Curve<'_>, point: &Point) -> String {
    let faster = |p: &&Point| p.s_per_row < point.s_per_row * (1.0 - ROUNDING);
    let fastest = curve.points.iter().filter(faster).min_by(|a, b| a.s_per_row.total_cmp(&b.s_per_row));
    match fastest {
        Some(most) => format!(
            "less than 0.5 % below the {} rows/s of {}, the highest rate allowed",
            rate(1.0 / most.s_per_row),
            workers(most.workers)
        ),
        None => "the highest rate that a number allowed gives".into(),
    }
}

/// How many workers would be enough beyond the limit, if the ceilings that do not grow with the workers are above that.
fn needed(curve: &Curve<'_>, point: &Point) -> String {
    if curve.demand_s <= 0.0 {
        return String::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    let n = (point.workers as f64 * point.supply_s / curve.demand_s * (1.0 - SAME_RATE)).ceil();
    format!("; about {} would be needed, unless a store limits the rate before", workers(format::to_u64(n)))
}

/// What helps where workers do not.
pub(super) fn way_out(limit: Limit) -> &'static str {
    match limit {
        Limit::SourceStore => {
            "a source store with more bandwidth would, or an `autocache` hint whose rows need fewer bytes"
        }
        Limit::CacheStore => {
            "a cache store with more bandwidth would, or a hint or an encoding with fewer bytes"
        }
        Limit::Cores | Limit::Stage(_) | Limit::Network | Limit::Consumer => "more workers would",
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
