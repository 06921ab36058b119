//! From the wire to the structs of the decision.

use caju_autocache::{ProbeReport, StageKind, StageReport, TaskReport};
use caju_proto::v1;
use caju_types::{Result, TaskId};

/// Stages and probes of one report that are read. Pipelines have far fewer; the profile builder compares each with all others.
const MAX_PER_REPORT: usize = 4096;

/// What a task measured.
pub(super) fn task_report(profile: v1::TaskProfile) -> TaskReport {
    TaskReport {
        task: TaskId(profile.task_id),
        stages: profile.stages.into_iter().take(MAX_PER_REPORT).map(stage_report).collect(),
        probes: probe_reports(profile.probes),
        checked_parts: profile.parts_listed,
        all_probed: profile.complete,
        elapsed_s: profile.elapsed_s,
        threads: profile.threads,
        splits_computed: profile.computed,
        splits_read: profile.read,
        source_bytes: profile.source_bytes,
        source_s: profile.source_s,
        source_requests_at_once: profile.source_requests_at_once,
        sent_bytes: profile.sent_bytes,
        sent_s: profile.sent_s,
        memory_tier_bytes: profile.memory_tier_bytes,
    }
}

/// The probes of a report. One in an encoding that only a newer worker knows is left out: no job could store rows in it.
fn probe_reports(probes: Vec<v1::HintProbe>) -> Vec<ProbeReport> {
    let readable = |probe: v1::HintProbe| {
        let hint = probe.hint.clone();
        probe_report(probe)
            .inspect_err(|error| tracing::debug!(%hint, %error, "a probe in an unknown encoding is left out"))
            .ok()
    };
    probes.into_iter().take(MAX_PER_REPORT).filter_map(readable).collect()
}

/// # Errors
/// `InvalidArgument` for an encoding that is not known.
fn probe_report(probe: v1::HintProbe) -> Result<ProbeReport> {
    Ok(ProbeReport {
        hint: probe.hint,
        encoding: probe.encoding.parse()?,
        rows: probe.rows,
        bytes: probe.bytes,
        raw_bytes: probe.raw_bytes,
        encode_cpu_s: probe.encode_cpu_s,
        decode_cpu_s: probe.decode_cpu_s,
        write_bytes_per_s: probe.write_bytes_per_s,
        read_bytes_per_s: probe.read_bytes_per_s,
    })
}

/// What a stage did.
pub(super) fn stage_report(stage: v1::StageStats) -> StageReport {
    let kind = match stage.kind() {
        v1::StageKind::Unspecified | v1::StageKind::Source | v1::StageKind::Parse | v1::StageKind::Rows => {
            StageKind::Rows
        }
        v1::StageKind::Serial => StageKind::Serial,
        v1::StageKind::CrossSplit => StageKind::CrossSplit,
        v1::StageKind::Take => StageKind::Take,
        v1::StageKind::Hint => StageKind::Hint,
        v1::StageKind::Output => StageKind::Output,
    };
    StageReport {
        name: stage.name,
        kind,
        rows_in: stage.rows_in,
        rows_out: stage.rows_out,
        bytes_out: stage.bytes_out,
        cpu_s: stage.cpu_s,
        busy_s: stage.busy_s,
        wait_in_s: stage.wait_in_s,
        wait_out_s: stage.wait_out_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_in_an_unknown_encoding_is_left_out_and_the_others_stay() {
        let probe = |encoding: &str| v1::HintProbe {
            hint: "h".into(),
            encoding: encoding.into(),
            rows: 8,
            ..Default::default()
        };
        let probes = ["arrow/lz4", "vortex/none", "", "parquet/zstd"].map(probe);
        let report = task_report(v1::TaskProfile { probes: probes.into(), ..Default::default() });
        let encodings: Vec<_> = report.probes.iter().map(|p| p.encoding.to_string()).collect();
        assert_eq!(encodings, ["arrow/lz4", "parquet/zstd"]);
        let error = probe_report(probe("vortex/none")).unwrap_err();
        assert_eq!(error.kind(), caju_types::ErrorKind::InvalidArgument);
    }
}
