//! The plan record: what was measured of a pipeline, for the next job that runs it.

use caju_planner::{Encoding, Profile};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is known of a pipeline from earlier jobs. A stored format: serialized names do not change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// [`PlanRecord::SCHEMA`].
    pub schema: String,
    /// The last profile (`caju.profile/v1`) by which a decision was made. None too if it cannot be read.
    #[serde(default, serialize_with = "write_profile", deserialize_with = "read_profile")]
    pub profile: Option<Profile>,
    /// Epochs that the last job announced.
    pub epochs: Option<u64>,
    /// The most epochs of a job that did not announce them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<u64>,
    /// Jobs so far.
    pub jobs: u64,
    /// Splits of the last job's source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub splits: Option<u64>,
    /// Cores of all its workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u64>,
}

impl Default for PlanRecord {
    fn default() -> Self {
        Self {
            schema: Self::SCHEMA.into(),
            profile: None,
            epochs: None,
            reached: None,
            jobs: 0,
            splits: None,
            cores: None,
        }
    }
}

fn write_profile<S: Serializer>(profile: &Option<Profile>, out: S) -> Result<S::Ok, S::Error> {
    profile.clone().map(Profile::canonical).serialize(out)
}

fn read_profile<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Profile>, D::Error> {
    let value = Option::<serde_json::Value>::deserialize(input)?;
    Ok(value.and_then(|v| Profile::from_value(&v).ok()))
}

/// What a job adds to the record of its pipeline at the end of an epoch.
#[derive(Debug, Clone, Default)]
pub struct JobSummary {
    /// The profile that it decided by, if any.
    pub profile: Option<Profile>,
    /// Splits of its source, if they were counted.
    pub splits: Option<u64>,
    /// Cores of all workers, if there are any.
    pub cores: Option<u64>,
    /// Epochs that it announced.
    pub epochs: Option<u64>,
    /// Epochs that it had so far, if it announced none.
    pub reached: Option<u64>,
    /// Whether the record does not count this job yet.
    pub is_new: bool,
}

impl PlanRecord {
    /// The version of the format. The stored name is older than the name of this type: records keep it, so that older versions
    /// read them.
    pub const SCHEMA: &str = "caju.remembered/v1";

    /// The record with what a job adds. A profile goes with the splits and the cores that it was measured with.
    #[must_use]
    pub fn with(self, job: JobSummary) -> Self {
        let next = Self {
            epochs: job.epochs.or(self.epochs),
            reached: job.reached.max(self.reached),
            jobs: self.jobs + u64::from(job.is_new),
            ..self
        };
        // A profile without probes adds nothing.
        let probed = |p: &Profile| p.hints.iter().all(|h| !h.encodings.is_empty());
        let Some(new) = job.profile.filter(|p| probed(p) || next.profile.is_none()) else { return next };
        let new = match next.profile.as_ref().filter(|_| next.cores == job.cores) {
            Some(before) => with_other_encodings(new, before),
            None => new,
        };
        Self { profile: Some(new), splits: job.splits, cores: job.cores, ..next }
    }
}

/// A profile with the encodings that an earlier one of the same cluster has, and that were not probed because something was
/// stored in another one: a job that finds nothing there has a choice. Where no others are known, the existing snapshot
/// stays in the profile as a sign of that.
fn with_other_encodings(mut new: Profile, before: &Profile) -> Profile {
    let Profile { existing, hints, .. } = &mut new;
    existing.retain(|x| {
        let mut known = before.hints.iter().filter(|h| h.name == x.hint && h.encodings.len() > 1);
        let Some((hint, known)) = hints.iter_mut().find(|h| h.name == x.hint).zip(known.next()) else {
            return true;
        };
        for other in &known.encodings {
            let same = |e: &Encoding| (&e.format, &e.compression) == (&other.format, &other.compression);
            if !hint.encodings.iter().any(same) {
                hint.encodings.push(other.clone());
            }
        }
        false
    });
    new
}

#[cfg(test)]
mod tests {
    use caju_planner::Existing;

    use super::*;

    fn full() -> Profile {
        let text = include_str!("../../../tests/golden_plans/design-example.profile.json");
        let mut full = Profile::from_json(text).unwrap();
        let other = Encoding { compression: "lz4".into(), ..full.hints[0].encodings[0].clone() };
        full.hints[0].encodings.push(other);
        full
    }

    /// The same after something was stored in the first encoding, which takes other bytes by now.
    fn bound() -> Profile {
        let mut bound = full();
        bound.hints[0].encodings.truncate(1);
        bound.hints[0].encodings[0].bytes_per_row += 7.0;
        let Encoding { format, compression, .. } = bound.hints[0].encodings[0].clone();
        let hint = bound.hints[0].name.clone();
        bound.existing.push(Existing { hint, format, compression, fraction: 1.0 });
        bound
    }

    fn record(profile: &Profile, splits: u64, cores: u64) -> PlanRecord {
        let profile = Some(profile.clone());
        PlanRecord { profile, splits: Some(splits), cores: Some(cores), ..PlanRecord::default() }
    }

    fn job(profile: Option<Profile>, splits: u64, cores: u64) -> JobSummary {
        JobSummary { profile, splits: Some(splits), cores: Some(cores), ..JobSummary::default() }
    }

    #[test]
    fn a_snapshot_that_was_removed_leaves_all_encodings_known() {
        let mut whole = full();
        whole.hints[0].encodings[0] = bound().hints[0].encodings[0].clone();
        let next = record(&full(), 10, 8).with(job(Some(bound()), 20, 8));
        assert_eq!(next, record(&whole, 20, 8), "what was measured last counts");
        // Of other machines nothing is known.
        assert_eq!(record(&full(), 10, 8).with(job(Some(bound()), 20, 4)), record(&bound(), 20, 4));
        assert_eq!(PlanRecord::default().with(job(Some(bound()), 20, 8)), record(&bound(), 20, 8));
        assert_eq!(record(&bound(), 10, 8).with(job(Some(full()), 20, 8)), record(&full(), 20, 8));
    }

    #[test]
    fn a_profile_stays_with_the_splits_and_cores_it_was_measured_with() {
        let before = record(&full(), 10, 8);
        let mut unprobed = full();
        unprobed.hints[0].encodings.clear();
        for nothing in [None, Some(unprobed)] {
            assert_eq!(before.clone().with(job(nothing, 1000, 32)), before);
        }
    }

    /// The text of version 0.1.
    #[test]
    fn records_of_earlier_versions_are_read() {
        let profile = full().to_json();
        let text = format!(
            r#"{{"schema":"caju.remembered/v1","profile":{profile},"epochs":90,"jobs":2,"splits":7,"cores":16}}"#
        );
        let read: PlanRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read, PlanRecord { epochs: Some(90), jobs: 2, ..record(&full(), 7, 16) });
        let compact: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), compact);
        let odd = text.replace("\"workers\"", "\"labourers\"");
        let read: PlanRecord = serde_json::from_str(&odd).unwrap();
        assert_eq!((read.profile, read.jobs), (None, 2), "a profile that cannot be read is none");
    }
}
