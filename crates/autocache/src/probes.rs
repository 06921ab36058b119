//! Probes: encodings that tasks tried at hints, and what they say together.

use std::collections::BTreeMap;

use caju_planner as planner;

use crate::encoding::Encoding;
use crate::report::{ProbeReport, TaskReport};

/// Keeps, per hint and encoding, the probes with at least half the rows of the largest one.
pub(crate) fn representative(probes: &[ProbeReport]) -> impl Iterator<Item = &ProbeReport> {
    let mut most: BTreeMap<(&str, Encoding), u64> = BTreeMap::new();
    for p in probes {
        let rows = most.entry((&p.hint, p.encoding)).or_default();
        *rows = p.rows.max(*rows);
    }
    probes.iter().filter(move |p| {
        most.get(&(p.hint.as_str(), p.encoding)).is_some_and(|most| p.rows.saturating_mul(2) >= *most)
    })
}

/// The newest representative probe per hint and encoding, with the store's rates by all probes: the store is the same in
/// every sample window.
pub(crate) fn newest(probes: &[ProbeReport]) -> Vec<ProbeReport> {
    let mut out: Vec<ProbeReport> = Vec::new();
    for probe in representative(probes) {
        match out.iter_mut().find(|p| p.hint == probe.hint && p.encoding == probe.encoding) {
            Some(old) => *old = probe.clone(),
            None => out.push(probe.clone()),
        }
    }
    out.iter_mut().for_each(|p| (p.read_bytes_per_s, p.write_bytes_per_s) = (0.0, 0.0));
    if let Some(first) = out.first_mut() {
        first.read_bytes_per_s = median_rate(probes, |p| p.read_bytes_per_s).unwrap_or(0.0);
        first.write_bytes_per_s = median_rate(probes, |p| p.write_bytes_per_s).unwrap_or(0.0);
    }
    out
}

/// The store's rate by those probes that measured it: the median, because a busy worker makes single rates too high or too
/// low.
pub(crate) fn median_rate(probes: &[ProbeReport], of: impl Fn(&ProbeReport) -> f64) -> Option<f64> {
    let mut rates: Vec<f64> = probes.iter().map(of).filter(|rate| *rate > 0.0).collect();
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    let low = middle - usize::from(rates.len().is_multiple_of(2) && middle > 0);
    Some((rates.get(low)? + rates.get(middle)?) / 2.0)
}

/// How often each encoding was tried, by hint and encoding: the count of the task that tried it most. Errors of the first
/// few rows are the same in every task, so that counts of several tasks are not added.
pub(crate) fn counts(tasks: &[TaskReport]) -> BTreeMap<(&str, Encoding), usize> {
    let mut most = BTreeMap::new();
    for task in tasks {
        let mut probes: BTreeMap<_, usize> = BTreeMap::new();
        for probe in &task.probes {
            *probes.entry((probe.hint.as_str(), probe.encoding)).or_default() += 1;
        }
        for (of, times) in probes {
            let most = most.entry(of).or_insert(0);
            *most = times.max(*most);
        }
    }
    most
}

/// The encodings that were tried at a hint, by their mean cost per source row. Rows that were tried may be larger or
/// smaller than others, so that costs are scaled by bytes before encoding (`bytes_per_row` of all rows so far) where
/// probes report them, else by rows (`rows_per_row` at the hint).
pub(crate) fn encodings(
    tasks: &[TaskReport],
    hint: &str,
    rows_per_row: f64,
    bytes_per_row: f64,
) -> Vec<planner::Encoding> {
    let mut sums: Vec<ProbeReport> = Vec::new();
    let probes = tasks.iter().flat_map(|t| representative(&t.probes));
    for probe in probes.filter(|p| p.hint == hint && p.rows > 0) {
        match sums.iter_mut().find(|s| s.encoding == probe.encoding) {
            Some(sum) => {
                sum.rows += probe.rows;
                sum.bytes += probe.bytes;
                // Workers of an older version report 0.
                sum.raw_bytes = match (sum.raw_bytes, probe.raw_bytes) {
                    (0, _) | (_, 0) => 0,
                    (a, b) => a + b,
                };
                sum.encode_cpu_s += probe.encode_cpu_s;
                sum.decode_cpu_s += probe.decode_cpu_s;
            }
            None => sums.push(probe.clone()),
        }
    }
    // In the order in which they were tried, the cheapest first.
    let tried = || tasks.iter().flat_map(|t| &t.probes);
    sums.sort_by_key(|sum| tried().position(|p| p.hint == hint && p.encoding == sum.encoding));
    let encoding = |p: ProbeReport| {
        let source_rows = match p.raw_bytes {
            raw if raw > 0 && bytes_per_row > 0.0 => raw as f64 / bytes_per_row,
            _ => p.rows as f64 / rows_per_row,
        };
        let per_row = |total: f64| total / source_rows;
        planner::Encoding {
            format: p.encoding.format.to_string(),
            compression: p.encoding.compression.to_string(),
            bytes_per_row: per_row(p.bytes as f64),
            encode_cpu_s_per_row: per_row(p.encode_cpu_s),
            decode_cpu_s_per_row: per_row(p.decode_cpu_s),
        }
    };
    sums.into_iter().map(encoding).collect()
}
