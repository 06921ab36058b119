//! The options and the choice in sentences.

use std::cmp::Ordering;

use caju_types::format_bytes;

use crate::candidate::{Candidate, Limit, Obstacle, SnapshotOption, TIE, TimePerRow};
use crate::choice::Choice;
use crate::format;
use crate::model::Model;
use crate::profile::{DEFAULT_JOBS, Encoding, Hint, Profile, Sharing};

/// What limits an option, for a person.
fn limited_by(model: &Model, limit: Limit) -> String {
    limit_text(model.profile(), limit)
}

/// A limit of a pipeline, for a person.
pub(crate) fn limit_text(profile: &Profile, limit: Limit) -> String {
    match limit {
        Limit::Cores => "the workers' cores".into(),
        Limit::Stage(i) => match profile.stages.get(i) {
            Some(s) => {
                let most = s.max_parallelism.unwrap_or(1.0);
                format!("stage `{}` ({most} at a time on a worker)", s.name)
            }
            None => "a stage".into(),
        },
        Limit::SourceStore => "the source store's bandwidth".into(),
        Limit::CacheStore => "the cache store's bandwidth".into(),
        Limit::Network => "the network to the clients".into(),
        Limit::Consumer => "the consumer, which takes no more".into(),
    }
}

/// From this fraction on a second limit is named: two limits that are close interfere with each other, and the real time is
/// somewhat below the smaller ceiling. (In Cachew's Figure 7 computing at 350 ms took 3 % longer
/// than its sleep alone, with the source store 91 % used.)
const CLOSE: f64 = 0.85;

/// What limits a time per row, and what would next if that is close.
fn limits(model: &Model, time_per_row: &TimePerRow) -> String {
    let first = limited_by(model, time_per_row.limit);
    if time_per_row.observed {
        return format!("what its epochs showed (predicted: {first})");
    }
    let used = time_per_row.next_s_per_row / time_per_row.s_per_row;
    if used < CLOSE || same_work(model, time_per_row.limit, time_per_row.next) {
        return first;
    }
    format!("{first}, with {} {} used", limited_by(model, time_per_row.next), format::percent(used))
}

/// Whether two limits are the same work counted twice: a stage that keeps the cores busy, or that waits for
/// the source's store.
fn same_work(model: &Model, a: Limit, b: Limit) -> bool {
    let (stage, other) = match (a, b) {
        (Limit::Stage(i), other) | (other, Limit::Stage(i)) => (model.profile().stages.get(i), other),
        _ => return a == b,
    };
    stage.is_some_and(|s| match other {
        Limit::Cores => s.cpu_s_per_row > 0.5 * s.service_s_per_row,
        Limit::SourceStore => s.io_bytes_per_row > 0.0,
        _ => a == b,
    })
}

fn at<'a>(model: &Model<'a>, stored: SnapshotOption) -> (&'a Hint, &'a Encoding) {
    let hint = &model.profile().hints[stored.hint];
    (hint, &hint.encodings[stored.encoding])
}

/// `` `resized` (arrow/none) ``, with its fraction if it is not whole.
fn named(model: &Model, stored: SnapshotOption) -> String {
    let (hint, e) = at(model, stored);
    let share = if stored.fraction < 1.0 {
        format!(", {} of the rows", format::percent(stored.fraction))
    } else {
        String::new()
    };
    format!("`{}` ({}/{}{share})", hint.name, e.format, e.compression)
}

/// The random stages that a snapshot would freeze, if there are any.
fn frozen(model: &Model, stored: SnapshotOption) -> Option<String> {
    let mut names = model.random_above(stored.hint);
    let first = names.next()?;
    let more = names.len();
    let and = if more > 0 {
        format!(" and {}", format::count(more as u64, "more random stage"))
    } else {
        String::new()
    };
    Some(format!("the random draws of `{first}`{and} are frozen, the same in every epoch"))
}

/// The option in a sentence.
///
/// `chosen` is the option that was taken, `break_even` the epoch from which this one is ahead of computing,
/// and `auto` whether the choice was free.
pub(crate) fn why(model: &Model, i: usize, chosen: usize, break_even: Option<u64>, auto: bool) -> String {
    let c = &model.candidates()[i];
    let verdict = verdict(model, i, chosen, auto);
    let Some(stored) = c.stored else {
        return format!("runs every stage; limited by {}; {verdict}", limits(model, &c.steady));
    };
    let (hint, e) = at(model, stored);
    if let Some(obstacle) = c.obstacle {
        return obstructed(model, hint, e, c, obstacle);
    }
    let skipped = format::count(model.above(stored.hint) as u64, "stage");
    let share = if stored.fraction < 1.0 {
        format!(" for {} of the rows", format::percent(stored.fraction))
    } else {
        String::new()
    };
    let mut out = format!(
        "reads {}/{} at `{}` instead of running {skipped}{share}; limited by {}; ",
        e.format,
        e.compression,
        hint.name,
        limits(model, &c.steady)
    );
    out += &writing(model, c, stored);
    match break_even {
        Some(n) => out += &format!("ahead of computing from epoch {n} on; "),
        None if model.rows() * model.epochs() > 0.0 => out += "never ahead of computing; ",
        None => {}
    }
    if let Some(frozen) = frozen(model, stored) {
        out += &format!("{frozen}; ");
    }
    out + &verdict
}

fn writing(model: &Model, c: &Candidate, stored: SnapshotOption) -> String {
    if stored.fraction <= stored.existing {
        return "stored already, so nothing is written; ".into();
    }
    format!(
        "the epoch that writes it takes {}, limited by {}; ",
        format::time(c.first.s_per_row * model.rows()),
        limited_by(model, c.first.limit)
    )
}

fn obstructed(model: &Model, hint: &Hint, e: &Encoding, c: &Candidate, obstacle: Obstacle) -> String {
    let needed = format_bytes(c.snapshot_bytes);
    let budget = format::size(model.profile().budget.snapshot_bytes.unwrap_or(f64::MAX));
    let what = format!("{}/{} at `{}`", e.format, e.compression, hint.name);
    match obstacle {
        Obstacle::NoBudget => {
            format!("{what} needs {needed}; the byte budget of {budget} holds next to nothing of it")
        }
        Obstacle::NotWhole => {
            format!("{what} needs {needed} and must be stored whole; the byte budget is {budget}")
        }
    }
}

/// How an option compares with the choice.
fn verdict(model: &Model, i: usize, chosen: usize, auto: bool) -> String {
    let all = model.candidates();
    if i == chosen {
        return "chosen".into();
    }
    let ratio = all[i].horizon_s / all[chosen].horizon_s;
    let stores_more = all[i].snapshot_bytes > all[chosen].snapshot_bytes;
    if ratio > 1.0005 {
        return format!("{} slower over the horizon than the choice", format::percent(ratio - 1.0));
    }
    let faster = if ratio < 0.9995 {
        format!("{} faster over the horizon than the choice", format::percent(1.0 - ratio))
    } else {
        "as fast as the choice".into()
    };
    match (auto, stores_more) {
        (false, _) => format!("{faster}, but the policy does not take it"),
        (true, true) => format!("{faster}, which is a tie, but stores more"),
        (true, false) => format!("{faster}, which is a tie"),
    }
}

/// `90 epochs`, `90 epochs of 4 jobs`, `10 epochs (assumed)`.
fn horizon(model: &Model) -> String {
    let h = &model.profile().horizon;
    let assumed = if h.epochs.is_none() { " (assumed)" } else { "" };
    let epochs = format::count(h.epochs.unwrap_or(crate::profile::DEFAULT_EPOCHS), "epoch");
    match h.jobs.unwrap_or(DEFAULT_JOBS) {
        1 => format!("{epochs}{assumed}"),
        jobs => format!("{epochs}{assumed} of {}", format::count(jobs, "job")),
    }
}

/// The beginning of a reason that first says which rates earlier epochs showed. That sentence ends at the first `. `.
pub const MEASURED_PREFIX: &str = "Measured, not predicted: ";

/// Why the policy `auto` chose as it did.
pub(crate) fn reason(model: &Model, chosen: usize) -> String {
    let reason = match model.candidates()[chosen].stored {
        Some(stored) => reason_to_store(model, chosen, stored),
        None => reason_to_compute(model),
    };
    let ran = model.profile().observed.iter().map(|m| {
        let rate = format::rate(m.rows_per_s);
        match &m.choice {
            Choice::Compute => format!("computing gave {rate} rows/s"),
            choice => format!("reading {choice} gave {rate} rows/s"),
        }
    });
    let reason = match ran.collect::<Vec<_>>() {
        ran if ran.is_empty() => reason,
        ran => format!("{MEASURED_PREFIX}{}. {reason}", ran.join(", ")),
    };
    match model.profile().sharing.as_ref().filter(|s| s.jobs > 1) {
        Some(Sharing { jobs, after_stage }) => {
            format!(
                "{jobs} jobs share one computation up to `{after_stage}`; rates are those of each of them. {reason}"
            )
        }
        None => reason,
    }
}

fn reason_to_store(model: &Model, chosen: usize, stored: SnapshotOption) -> String {
    let (compute, c) = (&model.candidates()[0], &model.candidates()[chosen]);
    let rates = format!(
        "Reading {} gives {} rows/s, limited by {}, against {} by computing, limited by {}",
        named(model, stored),
        format::rate(1.0 / c.steady.s_per_row),
        limited_by(model, c.steady.limit),
        format::rate(1.0 / compute.steady.s_per_row),
        limited_by(model, compute.steady.limit)
    );
    let whole = format!(
        "{} instead of {} over {}",
        format::time(c.horizon_s),
        format::time(compute.horizon_s),
        horizon(model)
    );
    let size = format_bytes(c.snapshot_bytes);
    let cost = if stored.fraction <= stored.existing {
        format!("with {size} that are stored already")
    } else if stored.existing > 0.0 {
        format!(
            "for {size}, of which {} is stored already",
            format::percent(stored.existing / stored.fraction)
        )
    } else {
        format!("for {size} of storage")
    };
    let frozen = frozen(model, stored).map(|f| format!("; {f}")).unwrap_or_default();
    format!("{rates}: {whole}, {cost}{frozen}.")
}

fn reason_to_compute(model: &Model) -> String {
    let all = model.candidates();
    let compute = &all[0];
    let limit = limited_by(model, compute.steady.limit);
    if model.rows() * model.epochs() <= 0.0 {
        return "Nothing is left to run, so nothing is stored.".into();
    }
    let rate = format::rate(1.0 / compute.steady.s_per_row);
    if all.len() == 1 && model.epochs() <= 1.0 && !model.profile().hints.is_empty() {
        return format!(
            "Only one epoch is left, so a snapshot would be written and never read; computing gives {rate} rows/s, \
             limited by {limit}."
        );
    }
    if all.len() == 1 {
        return format!(
            "There is no hint with a measured encoding; computing gives {rate} rows/s, limited by {limit}."
        );
    }
    let best = all[1..].iter().filter(|c| c.obstacle.is_none()).min_by(by_horizon);
    let Some(best) = best else {
        return format!(
            "No snapshot fits the byte budget of {}; computing gives {rate} rows/s, limited by {limit}.",
            format::size(model.profile().budget.snapshot_bytes.unwrap_or(0.0))
        );
    };
    let name = best.stored.map(|s| named(model, s)).unwrap_or_default();
    if model.epochs() <= 1.0 && best.stored.is_some_and(|s| s.fraction > s.existing) {
        return format!(
            "Only one epoch is left, so a snapshot would be written and never read; computing gives {rate} rows/s, \
             limited by {limit}."
        );
    }
    let gain = 1.0 - best.horizon_s / compute.horizon_s;
    let other = if gain > 0.0005 {
        format!(
            "is only {} faster, within the {} that count as a tie, for {} of storage",
            format::percent(gain),
            format::percent(TIE),
            format_bytes(best.snapshot_bytes)
        )
    } else if gain < -0.0005 {
        format!(
            "would take {} longer, limited by {}",
            format::percent(-gain),
            limited_by(model, best.steady.limit)
        )
    } else {
        format!("would be no faster, for {} of storage", format_bytes(best.snapshot_bytes))
    };
    format!(
        "Computing gives {rate} rows/s, limited by {limit}; over {} the best snapshot, {name}, {other}.",
        horizon(model)
    )
}

fn by_horizon(a: &&Candidate, b: &&Candidate) -> Ordering {
    a.horizon_s.total_cmp(&b.horizon_s).then(a.snapshot_bytes.cmp(&b.snapshot_bytes))
}
