//! The result of `caju cache gc` for people: what is deleted, and why.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use caju_cache::{CollectReason, Collection, Eviction};
use caju_types::{Fingerprint, format_bytes, format_count};

use super::show::{MAX_LISTED, seconds, short};
use crate::text::table;

/// The objects by reason, then snapshots and parts one by one if they are few.
pub(super) fn text(c: &Collection) -> String {
    let mut out = String::new();
    objects(c, &mut out);
    evictions(c, &mut out);
    if c.objects.is_empty() && c.evictions.is_empty() {
        out.push_str("nothing to collect\n");
    }
    let verb = if c.dry_run { "would be deleted" } else { "deleted" };
    let count = format_count((c.objects.len() + c.evictions.len()) as u64);
    let (freed, left) = (format_bytes(c.bytes), format_bytes(c.left_bytes));
    let _ = write!(out, "{count} objects {verb}, {freed}; {left} left");
    if c.over_budget_bytes > 0 {
        let over = format_bytes(c.over_budget_bytes);
        let _ = write!(out, ", {over} over the budget: pinned, in use, or records and manifests");
    }
    out
}

fn objects(c: &Collection, out: &mut String) {
    let mut by: BTreeMap<CollectReason, (u64, u64)> = BTreeMap::new();
    for (_, why, bytes) in &c.objects {
        let sum = by.entry(*why).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }
    for (why, (objects, bytes)) in by {
        let _ = writeln!(out, "  {:>8}  {:>10}  {}", format_count(objects), format_bytes(bytes), reason(why));
    }
    for e in c.expired.iter().take(MAX_LISTED) {
        let of = short(e.snapshot);
        let _ =
            writeln!(out, "      snapshot {of}: unused for {}, {}", seconds(e.idle_s), format_bytes(e.bytes));
    }
    // Expired objects are listed by snapshot.
    let mut single = c.objects.iter().filter(|o| o.1 != CollectReason::Expired);
    if single.clone().count() <= MAX_LISTED {
        single.for_each(|(object, _, bytes)| {
            let _ = writeln!(out, "      {object}  {}", format_bytes(*bytes));
        });
    } else if let Some((object, ..)) = single.next() {
        let _ = writeln!(out, "      {object} and more; --format json has all");
    }
}

/// The evicted parts of one snapshot.
#[derive(Default)]
struct Going {
    parts: u64,
    bytes: u64,
    compute_cpu_s: f64,
    idle_s: f64,
    worth: f64,
}

fn evictions(c: &Collection, out: &mut String) {
    if c.evictions.is_empty() {
        return;
    }
    let verb = if c.dry_run { "would be evicted" } else { "evicted" };
    let bytes: u64 = c.evictions.iter().map(|e| e.bytes).sum();
    let count = format_count(c.evictions.len() as u64);
    let _ = writeln!(
        out,
        "  {count:>8}  {:>10}  {verb} for the budget, the least useful first:",
        format_bytes(bytes)
    );
    let mut snapshots: Vec<(Fingerprint, Going)> = Vec::new();
    for e in &c.evictions {
        let at = snapshots.iter().position(|(of, _)| *of == e.snapshot).unwrap_or_else(|| {
            snapshots.push((e.snapshot, Going::default()));
            snapshots.len() - 1
        });
        let going = &mut snapshots[at].1;
        going.parts += 1;
        going.bytes += e.bytes;
        going.compute_cpu_s += e.compute_cpu_s;
        going.idle_s = e.idle_s;
        going.worth = going.worth.max(e.worth_cpu_s_per_gib);
    }
    let names =
        ["snapshot", "parts", "bytes", "CPU to compute again", "unused for", "worth at most, CPU s per GiB"];
    let mut rows = vec![names.map(String::from)];
    rows.extend(snapshots.iter().map(|(of, g)| {
        let (cpu, idle) = (seconds(g.compute_cpu_s), seconds(g.idle_s));
        [short(*of), format_count(g.parts), format_bytes(g.bytes), cpu, idle, format!("{:.3}", g.worth)]
    }));
    out.push_str(&table(&rows));
    for e in c.evictions.iter().take(MAX_LISTED) {
        let _ = writeln!(out, "      {}", line(e));
    }
    if c.evictions.len() > MAX_LISTED {
        let _ = writeln!(out, "      and {} more; --format json has all", c.evictions.len() - MAX_LISTED);
    }
}

fn line(e: &Eviction) -> String {
    let worth = e.worth_cpu_s_per_gib;
    format!(
        "{}  {}, {} to compute, {worth:.3} CPU s per GiB",
        e.part,
        format_bytes(e.bytes),
        seconds(e.compute_cpu_s)
    )
}

fn reason(why: CollectReason) -> &'static str {
    match why {
        CollectReason::Expired => "expired: of snapshots that were not used for --ttl",
        CollectReason::OrphanedPart => "orphaned: parts that no record names",
        CollectReason::Superseded => {
            "superseded: old manifests and records, and single notes of what was read"
        }
        CollectReason::DeadClaim => "left by processes that are gone",
        CollectReason::OrphanedListing => "listings of sources of which nothing is stored",
        CollectReason::ExpiredPlan => "measurements of pipelines that are older than --ttl",
        CollectReason::Evicted => "evicted for the budget",
    }
}
