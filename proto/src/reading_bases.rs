//! What users had got when readings of an epoch went on, in messages.

use caju_types::{ClientId, IterationId, ReadingBase, ReadingBases};

use crate::v1;

/// The bases of a message; [`ReadingBases::MAX`] at most, the latest ones.
pub fn reading_bases(messages: &[v1::ReadingBase]) -> ReadingBases {
    let mut bases = ReadingBases::default();
    for message in messages {
        let steps = message.steps.iter().map(|s| (s.consumer, s.elements)).collect();
        let rows = message.rows.iter().map(|r| (ClientId(r.client_id), r.rows)).collect();
        bases.insert(IterationId(message.iteration_id), ReadingBase { steps, rows });
    }
    bases
}

/// The bases for a message.
pub fn reading_bases_to_messages(bases: &ReadingBases) -> Vec<v1::ReadingBase> {
    let of = |(reading, base): (IterationId, &ReadingBase)| v1::ReadingBase {
        iteration_id: reading.0,
        steps: base.steps.iter().map(|(c, e)| v1::ConsumerSteps { consumer: *c, elements: *e }).collect(),
        rows: base.rows.iter().map(|(c, r)| v1::ReaderRows { client_id: c.0, rows: *r }).collect(),
    };
    bases.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_pass_through_messages() {
        let mut bases = ReadingBases::default();
        bases.insert(
            IterationId(7),
            ReadingBase { steps: [(0, 5), (1, 6)].into(), rows: [(ClientId(3), 9)].into() },
        );
        bases.insert(IterationId(9), ReadingBase::default());
        assert_eq!(reading_bases(&reading_bases_to_messages(&bases)), bases);
    }
}
