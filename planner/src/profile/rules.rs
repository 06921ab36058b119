//! What each field may hold. One table of rules serves the reader's messages and the check itself.

use std::collections::{HashMap, HashSet};

use caju_types::{Error, Result, did_you_mean};

use super::{Encoding, Existing, Hint, Measured, Profile, Stage};
use crate::choice::Choice;

/// Numbers beyond this are typing errors, and would overflow when they are multiplied.
const LARGEST: f64 = 1e18;

/// What a number may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// A cost, a size or a ratio: `>= 0`.
    Cost,
    /// A bandwidth, a rate or a number of cores: `> 0`.
    Rate,
    /// A degree of parallelism: `>= 1`.
    Parallelism,
    /// A fraction: `0..=1`.
    Fraction,
    /// A count that may be zero.
    Count,
    /// A count of things that must exist.
    Positive,
}

impl Rule {
    pub(super) fn expected(self) -> &'static str {
        match self {
            Rule::Cost => "a number >= 0",
            Rule::Rate => "a number > 0",
            Rule::Parallelism => "a number >= 1",
            Rule::Fraction => "a number in 0..=1",
            Rule::Count => "a whole number >= 0",
            Rule::Positive => "a whole number >= 1",
        }
    }

    fn allows(self, v: f64) -> bool {
        match self {
            Rule::Cost | Rule::Count => v >= 0.0,
            Rule::Rate => v > 0.0,
            Rule::Parallelism | Rule::Positive => v >= 1.0,
            Rule::Fraction => (0.0..=1.0).contains(&v),
        }
    }

    fn check(self, v: f64, path: impl FnOnce() -> String) -> Result<()> {
        if !self.allows(v) {
            return Err(Error::invalid(format!("{}: expected {}, found {v}", path(), self.expected())));
        }
        if v > LARGEST {
            return Err(Error::invalid(format!("{}: expected a number <= {LARGEST:e}, found {v:e}", path())));
        }
        Ok(())
    }

    fn check_opt(self, v: Option<f64>, path: &str) -> Result<()> {
        v.map_or(Ok(()), |v| self.check(v, || path.to_owned()))
    }
}

/// A name is not empty and stays on its line, because messages and tables repeat it.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

fn name(text: &str, path: impl FnOnce() -> String) -> Result<()> {
    if is_name(text) {
        return Ok(());
    }
    Err(Error::invalid(format!("{}: expected a name without control characters, found {text:?}", path())))
}

/// Refuses a second use of a name, and says where the first one is.
fn unique<'a>(names: impl Iterator<Item = &'a str>, list: &str) -> Result<()> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (i, n) in names.enumerate() {
        name(n, || format!("{list}[{i}].name"))?;
        if let Some(first) = seen.insert(n, i) {
            return Err(Error::invalid(format!(
                "{list}[{i}].name: `{n}` is the name of {list}[{first}] already"
            )));
        }
    }
    Ok(())
}

pub(super) fn check(p: &Profile) -> Result<()> {
    settings(p)?;
    if p.stages.is_empty() {
        return Err(Error::invalid("stages: expected at least one stage, found an empty list"));
    }
    unique(p.stages.iter().map(|s| s.name.as_str()), "stages")?;
    for (i, s) in p.stages.iter().enumerate() {
        stage(i, s)?;
    }
    unique(p.hints.iter().map(|h| h.name.as_str()), "hints")?;
    let stages: HashSet<&str> = p.stages.iter().map(|s| s.name.as_str()).collect();
    for (i, h) in p.hints.iter().enumerate() {
        hint(i, h, &stages)?;
    }
    sharing(p, &stages)?;
    existing(p)?;
    measured(p, &p.measured, "measured")?;
    measured(p, &p.observed, "observed")
}

#[expect(clippy::cast_precision_loss, reason = "only compared with bounds")]
fn settings(p: &Profile) -> Result<()> {
    Rule::Positive.check(p.cluster.workers as f64, || "cluster.workers".into())?;
    Rule::Count.check(p.source.rows as f64, || "source.rows".into())?;
    Rule::Positive.check_opt(p.source.readings.map(|n| n as f64), "source.readings")?;
    Rule::Count.check_opt(p.horizon.epochs.map(|n| n as f64), "horizon.epochs")?;
    Rule::Count.check_opt(p.horizon.jobs.map(|n| n as f64), "horizon.jobs")?;
    Rule::Rate.check(p.cluster.cores_per_worker, || "cluster.cores_per_worker".into())?;
    Rule::Rate
        .check_opt(p.cluster.network_bytes_per_s_per_worker, "cluster.network_bytes_per_s_per_worker")?;
    Rule::Rate.check_opt(p.source_store.read_bytes_per_s, "source_store.read_bytes_per_s")?;
    Rule::Rate.check_opt(p.cache_store.read_bytes_per_s, "cache_store.read_bytes_per_s")?;
    Rule::Rate.check_opt(p.cache_store.write_bytes_per_s, "cache_store.write_bytes_per_s")?;
    Rule::Cost.check_opt(p.cache_store.memory_bytes_per_worker, "cache_store.memory_bytes_per_worker")?;
    Rule::Rate.check_opt(p.consumer.rows_per_s, "consumer.rows_per_s")?;
    Rule::Cost.check_opt(p.budget.snapshot_bytes, "budget.snapshot_bytes")?;
    Rule::Cost.check_opt(p.prices.worker_per_h, "prices.worker_per_h")?;
    Rule::Cost.check_opt(p.prices.accelerator_per_h, "prices.accelerator_per_h")
}

fn stage(i: usize, s: &Stage) -> Result<()> {
    for (v, field) in [
        (s.io_bytes_per_row, "io_bytes_per_row"),
        (s.cpu_s_per_row, "cpu_s_per_row"),
        (s.service_s_per_row, "service_s_per_row"),
        (s.out_rows_per_row, "out_rows_per_row"),
        (s.out_bytes_per_row, "out_bytes_per_row"),
    ] {
        Rule::Cost.check(v, || format!("stages[{i}].{field}"))?;
    }
    match s.max_parallelism {
        Some(v) => Rule::Parallelism.check(v, || format!("stages[{i}].max_parallelism")),
        None => Ok(()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "only compared with bounds")]
fn sharing(p: &Profile, stages: &HashSet<&str>) -> Result<()> {
    let Some(sharing) = &p.sharing else { return Ok(()) };
    Rule::Positive.check(sharing.jobs as f64, || "sharing.jobs".into())?;
    if stages.contains(sharing.after_stage.as_str()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "sharing.after_stage: expected the name of a stage, found `{}`{}",
        sharing.after_stage.escape_debug(),
        did_you_mean(&sharing.after_stage, sorted(stages))
    )))
}

fn hint(i: usize, h: &Hint, stages: &HashSet<&str>) -> Result<()> {
    if !stages.contains(h.after_stage.as_str()) {
        return Err(Error::invalid(format!(
            "hints[{i}].after_stage: expected the name of a stage, found `{}`{}",
            h.after_stage.escape_debug(),
            did_you_mean(&h.after_stage, sorted(stages))
        )));
    }
    let mut seen = HashSet::new();
    for (j, e) in h.encodings.iter().enumerate() {
        encoding(i, j, e)?;
        if !seen.insert((e.format.as_str(), e.compression.as_str())) {
            return Err(Error::invalid(format!(
                "hints[{i}].encodings[{j}]: {}/{} is listed twice",
                e.format, e.compression
            )));
        }
    }
    Ok(())
}

/// Sorted, so that the nearest name does not depend on the order of a hash table.
fn sorted<'a>(names: &HashSet<&'a str>) -> Vec<&'a str> {
    let mut out: Vec<_> = names.iter().copied().collect();
    out.sort_unstable();
    out
}

fn encoding(i: usize, j: usize, e: &Encoding) -> Result<()> {
    let at = |field: &str| format!("hints[{i}].encodings[{j}].{field}");
    name(&e.format, || at("format"))?;
    name(&e.compression, || at("compression"))?;
    Rule::Cost.check(e.bytes_per_row, || at("bytes_per_row"))?;
    Rule::Cost.check(e.encode_cpu_s_per_row, || at("encode_cpu_s_per_row"))?;
    Rule::Cost.check(e.decode_cpu_s_per_row, || at("decode_cpu_s_per_row"))
}

fn existing(p: &Profile) -> Result<()> {
    let mut seen = HashSet::new();
    for (i, x) in p.existing.iter().enumerate() {
        let Existing { hint, format, compression, fraction } = x;
        Rule::Fraction.check(*fraction, || format!("existing[{i}].fraction"))?;
        let Some(at) = p.hints.iter().position(|h| h.name == *hint) else {
            return Err(Error::invalid(format!(
                "existing[{i}].hint: expected the name of a hint, found `{}`{}",
                hint.escape_debug(),
                did_you_mean(hint, p.hints.iter().map(|h| h.name.as_str()))
            )));
        };
        if !p.hints[at].encodings.iter().any(|e| e.format == *format && e.compression == *compression) {
            return Err(Error::invalid(format!(
                "existing[{i}]: {}/{} is not among hints[{at}].encodings; probe it and add its costs there",
                format.escape_debug(),
                compression.escape_debug()
            )));
        }
        if !seen.insert((hint, format, compression)) {
            return Err(Error::invalid(format!(
                "existing[{i}]: the snapshot of `{hint}` in {format}/{compression} is listed twice"
            )));
        }
    }
    Ok(())
}

fn measured(p: &Profile, rates: &[Measured], field: &str) -> Result<()> {
    let known: HashSet<(&str, &str, &str)> = (p.hints.iter())
        .flat_map(|h| {
            h.encodings.iter().map(|e| (h.name.as_str(), e.format.as_str(), e.compression.as_str()))
        })
        .collect();
    for (i, Measured { choice, rows_per_s }) in rates.iter().enumerate() {
        Rule::Rate.check(*rows_per_s, || format!("{field}[{i}].rows_per_s"))?;
        let Choice::Materialize { hint, format, compression, fraction } = choice else { continue };
        Rule::Fraction.check(*fraction, || format!("{field}[{i}].fraction"))?;
        if !known.contains(&(hint.as_str(), format.as_str(), compression.as_str())) {
            return Err(Error::invalid(format!(
                "{field}[{i}]: no hint `{}` with the encoding {}/{}{}",
                hint.escape_debug(),
                format.escape_debug(),
                compression.escape_debug(),
                did_you_mean(hint, p.hints.iter().map(|h| h.name.as_str()))
            )));
        }
    }
    Ok(())
}
