//! The explanation as text and as JSON.

use std::fmt::Write as _;

use caju_planner::Decision;
use caju_proto::v1::JobStatus;
use caju_types::{Result, format_bytes, format_count};
use serde_json::{Value, json};

use super::state::{Explanation, HintState, Nearest};
use crate::commands::cache::{ago, short};
use crate::commands::decision::{is_undecided, recorded_json};

/// The most files, and differences, that are listed one by one.
const MAX_LISTED: usize = 5;

/// The explanation as text. `asked` is whether a dispatcher was asked for its jobs.
///
/// # Errors
/// A decision of another version.
pub(super) fn text(e: &Explanation, asked: bool) -> Result<String> {
    let mut out = format!(
        "pipeline     {}\nfingerprint  {}\ncache        {}\nsource       {}\n",
        e.pipeline,
        e.fingerprint,
        e.cache,
        count(e.splits.len() as u64, "split")
    );
    for line in &e.order {
        let _ = writeln!(out, "{line}");
    }
    for learnt in &e.boundaries {
        let _ = writeln!(out, "boundaries   {learnt}");
    }
    if e.hints.is_empty() {
        out.push_str("\nno autocache: nothing of this pipeline can be stored\n");
    }
    for hint in &e.hints {
        out.push('\n');
        describe_hint(e, hint, &mut out);
    }
    match &e.job {
        Some(job) => decision(job, &mut out)?,
        None if asked => out.push_str("\nno job of this pipeline is known to the dispatcher\n"),
        None => {}
    }
    Ok(out)
}

fn count(n: u64, what: &str) -> String {
    format!("{} {what}{}", format_count(n), if n == 1 { "" } else { "s" })
}

fn describe_hint(e: &Explanation, h: &HintState, out: &mut String) {
    let all = e.splits.len();
    let head = format!("hint `{}` at step {}", h.prefix.hint, h.prefix.stage_index);
    let name = short(h.prefix.fingerprint);
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    let stored = || format!("{} in {}", count(h.rows, "row"), format_bytes(h.bytes));
    match h.name(all) {
        "not_storable" => {
            let why = h.no_set.as_deref().unwrap_or_default();
            line(format!("{head}: nothing can be stored here: {why}"));
            return;
        }
        state if h.cross_split_stage.is_some() => {
            let stage = h.cross_split_stage.as_deref().unwrap_or_default();
            let set = h.set.map_or_else(String::new, |s| format!(", set {}", short(s)));
            let what = if state == "hit" {
                format!("hit, {}, {}", count(h.parts, "part"), stored())
            } else {
                format!(
                    "miss; behind `{stage}` parts are read all together, for exactly these splits, or not at all"
                )
            };
            line(format!("{head}, {name}{set}: {what}"));
            return;
        }
        "hit" => line(format!("{head}, {name}: hit, all {}, {}", count(all as u64, "split"), stored())),
        "partial" => line(format!("{head}, {name}: partial, {} of {all} splits, {}", h.stored, stored())),
        _ => line(format!("{head}, {name}: miss")),
    }
    missing(e, h, &mut line);
    if let Some(near) = &h.nearest {
        nearest(near, &mut line);
    } else if h.parts == 0 && h.stored == 0 {
        line("  no snapshot in this cache is alike".into());
    }
    if h.prefix.random {
        line("  random stages stand above it: what is stored repeats the draws of one epoch".into());
    }
}

fn missing(e: &Explanation, h: &HintState, line: &mut impl FnMut(String)) {
    if h.parts == 0 {
        return;
    }
    if h.stored == 0 {
        let parts = count(h.parts, "part");
        line(format!(
            "  the snapshot is there with {parts}, of other files, other versions of them, or another split size"
        ));
        return;
    }
    let cut = e.splits.iter().filter(|s| s.cut).count() as u64;
    if cut > 0 {
        let cut = count(cut, "split");
        line(format!("  {cut} cut by `take` or `skip`: computed each time"));
    }
    for (file, n) in h.missing.iter().take(MAX_LISTED) {
        line(format!("  not stored: {file} ({})", count(*n, "split")));
    }
    if h.missing.len() > MAX_LISTED {
        line(format!("  and {} more files", h.missing.len() - MAX_LISTED));
    }
}

fn nearest(near: &Nearest, line: &mut impl FnMut(String)) {
    let info = &near.info;
    let name = if info.name.is_empty() { String::new() } else { format!(" of `{}`", info.name) };
    line(format!(
        "  nearest: {}{name}, {}, used {}; what differs:",
        short(info.fingerprint),
        count(info.rows, "row"),
        ago(info.last_use_unix_s)
    ));
    for difference in near.differences.iter().take(MAX_LISTED) {
        line(format!("    {difference}"));
    }
    if near.differences.len() > MAX_LISTED {
        line(format!("    and {} more", near.differences.len() - MAX_LISTED));
    }
}

fn decision(job: &JobStatus, out: &mut String) -> Result<()> {
    let caching = if job.caching.is_empty() { "everything is computed" } else { job.caching.as_str() };
    let _ = writeln!(out, "\njob `{}`, epoch {}, policy {}: {caching}", job.job, job.epoch, job.policy);
    if job.decision_json.is_empty() {
        if is_undecided(job) {
            out.push_str("no decision yet: not enough is measured\n");
        }
        return Ok(());
    }
    out.push('\n');
    out.push_str(&Decision::from_json(&job.decision_json)?.to_text());
    Ok(())
}

/// The explanation as `caju.explain/v1`.
pub(super) fn json(e: &Explanation) -> Value {
    let all = e.splits.len();
    let hints: Vec<Value> = e.hints.iter().map(|h| hint_json(h, all)).collect();
    let job = e.job.as_ref().map(|j| {
        json!({"job": j.job, "epoch": j.epoch, "policy": j.policy, "caching": j.caching,
               "decision": recorded_json(&j.decision_json), "profile": recorded_json(&j.profile_json)})
    });
    json!({"schema": "caju.explain/v1", "pipeline": e.pipeline, "fingerprint": e.fingerprint, "cache": e.cache,
           "splits": all, "order": {"steps": e.run_order, "why": e.order.get(1..).unwrap_or_default()},
           "boundaries": e.boundaries, "hints": hints, "job": job})
}

fn hint_json(h: &HintState, all: usize) -> Value {
    let near = h.nearest.as_ref().map(|n| {
        let differences: Vec<Value> = n
            .differences
            .iter()
            .map(|d| json!({"place": d.place, "here": d.here, "there": d.there}))
            .collect();
        json!({"fingerprint": n.info.fingerprint, "name": n.info.name, "rows": n.info.rows,
               "differences": differences})
    });
    // `behind` is the former name of `cross_split_stage`, written for one more version.
    json!({"hint": h.prefix.hint, "step": h.prefix.stage_index, "fingerprint": h.prefix.fingerprint,
           "random": h.prefix.random, "cross_split_stage": h.cross_split_stage, "behind": h.cross_split_stage, "set": h.set,
           "no_set": h.no_set, "state": h.name(all), "stored": h.stored, "splits": all, "parts": h.parts,
           "rows": h.rows, "bytes": h.bytes, "missing": h.missing, "nearest": near})
}
