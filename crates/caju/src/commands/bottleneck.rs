//! What limits a job, and what can be done about it.

use std::fmt::Write as _;

use caju_cache::{Compression, Encoding, Format};
use caju_proto::v1::{JobStatus, StageKind, StageStats};

use super::decision::policy;
use super::setting::{Location, Locations};
use crate::report::EpochReport;
use crate::text::wrapped;

/// The bottleneck of the last epoch, its share, and what to do about it.
pub(super) fn bottleneck(job: &JobStatus, epochs: &[EpochReport], locations: Locations, out: &mut String) {
    let Some(last) = epochs.last() else { return };
    let wait = last.wait_s / last.wall_s.max(1e-9);
    let reported = job.bottleneck.strip_prefix("stage:").unwrap_or(&job.bottleneck);
    let name = if wait < 0.1 { "consumer" } else { reported };
    if name.is_empty() {
        return;
    }
    let total: f64 = job.stages.iter().map(busy).sum();
    let share = match job.stages.iter().find(|s| s.name == name) {
        Some(stage) if total > 0.0 => format!(", {:.0} % of the stages' time", 100.0 * busy(stage) / total),
        _ if name == "consumer" => format!(", which waited for rows {:.0} % of its time", 100.0 * wait),
        _ => String::new(),
    };
    let _ = write!(out, "\n  bottleneck   {name} in epoch {}{share}", last.epoch);
    let _ = write!(out, "\n               {}", wrapped(&advice(name, job, locations), 15));
}

fn busy(s: &StageStats) -> f64 {
    s.busy_s.max(s.cpu_s)
}

/// The encoding of parts that costs the least CPU time. Nothing cheaper can be advised to a job that has it.
const CHEAPEST_ENCODING: Encoding = Encoding { format: Format::Arrow, compression: Compression::None };

/// What to do about a bottleneck of a job: `consumer`, or one of its stages with or without `stage:`.
pub(crate) fn advice(bottleneck: &str, job: &JobStatus, locations: Locations) -> String {
    if bottleneck == "consumer" {
        return "rows are ready before they are asked for: the reader decides the speed".to_owned();
    }
    let name = bottleneck.strip_prefix("stage:").unwrap_or(bottleneck);
    let text = match job
        .stages
        .iter()
        .find(|s| s.name == name)
        .map_or(StageKind::Unspecified, StageStats::kind)
    {
        StageKind::Source => match locations.source {
            Location::Memory => "making the rows of the source is the bottleneck: add cores or workers",
            Location::Remote => {
                "reading is the bottleneck: store the files nearer, select fewer columns, or add workers"
            }
            Location::Folder | Location::Unknown => {
                "reading is the bottleneck: select fewer columns, or add workers"
            }
        },
        StageKind::Output => {
            "moving rows is the bottleneck: deliver fewer bytes (uint8 images, fewer columns), or add workers"
        }
        StageKind::Serial => "an artificial cost, which runs one at a time per worker: add workers",
        StageKind::Hint => return snapshot_advice(job, locations.cache),
        StageKind::CrossSplit | StageKind::Take => {
            "it processes all rows of a worker one after another: add workers, or move stages that make rows large below it"
        }
        StageKind::Parse => "parsing is the bottleneck: name fewer features, or add cores or workers",
        StageKind::Rows | StageKind::Unspecified => {
            "this stage computes as fast as it can: add cores or workers, or make it cheaper"
        }
    };
    text.to_owned()
}

/// What to do where reading or writing stored rows is the bottleneck. An encoding is advised only where the user named the
/// policy: the policies that decide have compared the encodings.
fn snapshot_advice(job: &JobStatus, cache: Location) -> String {
    let mut ways = Vec::new();
    if cache == Location::Remote {
        ways.push("use a cache nearer by");
    }
    let has_cheaper = job.encoding.parse().is_ok_and(|e: Encoding| e != CHEAPEST_ENCODING);
    if has_cheaper && policy(job).is_some_and(|p| !p.is_planned()) {
        ways.push("use a cheaper encoding (arrow/none)");
    }
    ways.push("store fewer bytes per row (uint8 images, fewer columns)");
    ways.push("or add workers");
    format!("reading or writing the snapshot is the bottleneck: {}", ways.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_follows_the_kind_of_a_stage_and_not_its_name() {
        let stage = |name: &str, kind: StageKind| StageStats {
            name: name.into(),
            kind: kind.into(),
            ..Default::default()
        };
        let kinds = [
            (StageKind::Source, "reading is the bottleneck"),
            (StageKind::Parse, "name fewer features"),
            (StageKind::Serial, "one at a time per worker"),
            (StageKind::CrossSplit, "one after another"),
            (StageKind::Take, "one after another"),
            (StageKind::Hint, "reading or writing the snapshot"),
            (StageKind::Output, "deliver fewer bytes"),
            (StageKind::Rows, "as fast as it can"),
        ];
        for (kind, words) in kinds {
            // Names that other kinds of stages have.
            for name in ["source", "3.shuffle", "output"] {
                let stages = vec![stage("0.map", StageKind::Rows), stage(name, kind)];
                let text = advice(
                    &format!("stage:{name}"),
                    &JobStatus { stages, ..JobStatus::default() },
                    Locations::default(),
                );
                assert!(text.contains(words), "{name} {kind:?}: {text}");
            }
        }
        assert!(
            advice("consumer", &JobStatus::default(), Locations::default())
                .contains("the reader decides the speed")
        );
    }

    #[test]
    fn another_encoding_or_cache_is_advised_only_where_it_can_help() {
        let advice_for = |policy: &str, encoding: &str, cache: Location| {
            let stage =
                StageStats { name: "1.autocache".into(), kind: StageKind::Hint.into(), ..Default::default() };
            let job = JobStatus {
                stages: vec![stage],
                policy: policy.into(),
                encoding: encoding.into(),
                ..JobStatus::default()
            };
            advice("stage:1.autocache", &job, Locations { cache, source: Location::Folder })
        };
        for (policy, encoding, cache, nearer, cheaper) in [
            ("full", "parquet/zstd", Location::Remote, true, true),
            ("full", "arrow/none", Location::Remote, true, false),
            ("auto", "parquet/zstd", Location::Remote, true, false),
            ("auto", "arrow/lz4", Location::Folder, false, false),
            ("full", "arrow/lz4", Location::Memory, false, true),
            ("full", "arrow/none", Location::Unknown, false, false),
        ] {
            let text = advice_for(policy, encoding, cache);
            let found = (text.contains("nearer by"), text.contains("encoding (arrow/none)"));
            assert_eq!(found, (nearer, cheaper), "{policy} {encoding} {cache:?}: {text}");
        }
    }

    #[test]
    fn files_are_stored_nearer_only_where_they_are_far() {
        let stage =
            StageStats { name: "source".into(), kind: StageKind::Source.into(), ..Default::default() };
        let job = JobStatus { stages: vec![stage], ..JobStatus::default() };
        for (source, far) in [
            (Location::Memory, false),
            (Location::Folder, false),
            (Location::Unknown, false),
            (Location::Remote, true),
        ] {
            let text = advice("source", &job, Locations { source, cache: Location::Folder });
            assert_eq!(text.contains("store the files nearer"), far, "{source:?}: {text}");
        }
    }
}
