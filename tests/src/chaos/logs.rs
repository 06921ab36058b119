//! Which warnings and errors the faults of a round announce. Every other one fails the round.

use super::faults::{Action, Damage};
use super::plan::{Group, Plan};

/// Lines that a fault may cause: part of the line, and whether the plan has such a fault.
type Rule = (&'static str, fn(&Plan) -> bool);

const RULES: &[Rule] = &[
    // A reader lost a worker, or the connection to it; or workers abandon tasks that a dispatcher without its state does not
    // know.
    ("a task was lost; its rows come from elsewhere", |p| disturbs_workers(p) || reopens(p)),
    // The dispatcher lost a worker.
    ("was silent for", disturbs_workers),
    // All workers are away, or a reader that replaces a killed one finds the rows with the others.
    ("waiting for a worker", disturbs_workers),
    // The client loses the dispatcher, and says how long it will look for it.
    ("does not answer; tasks are read on without it", disturbs_dispatcher),
    // A worker that stood still, or whose dispatcher does not know it any more.
    ("the dispatcher refuses the heartbeat", disturbs_workers),
    ("the worker could not register again", disturbs_anything),
    // Rows of a task that was lost and came back under another name.
    ("rows came twice and are skipped", disturbs_anything),
    // A reader was killed or expelled: its tasks are fenced, and the others say what is missing.
    ("the epoch will be incomplete", Plan::loses_readers),
    ("vanished", Plan::loses_readers),
    ("error: incomplete: rows of this epoch are missing or came twice", |p| {
        p.loses_readers() && p.kills_dispatcher()
    }),
    // A dispatcher that lost its state, or a consumer: readers open the epoch again.
    ("the epoch is opened again behind the rows that were taken", reopens),
    ("is gone before the end of the epoch", loses_consumers),
    // A state folder whose database is damaged.
    ("it is set aside as", |p| {
        p.has(|a| matches!(a, Action::LoseState(Damage::Truncate | Damage::Overwrite)))
    }),
    // A reader that slept for longer than the client timeout.
    ("client timeout of", sleeps),
    // Consumers that read in rounds go on from their states of one step alone.
    ("the consumers are at different steps", |p| {
        matches!(p.group, Group::Rounds(_)) && (loses_consumers(p) || p.loses_state())
    }),
    ("a connection ended", disturbs_anything),
    // A reader of a group that comes when the others have read the epoch, or one that replaces a killed one.
    ("gave this reader nothing", |_| true),
    ("the end of a task could not be reported", disturbs_anything),
];

fn disturbs_workers(plan: &Plan) -> bool {
    plan.has(|a| {
        matches!(
            a,
            Action::KillWorker(_) | Action::StopWorker(_) | Action::StallWorker(_) | Action::CutWorker(_)
        )
    }) || plan.has(|a| matches!(a, Action::StallDispatcher | Action::StopDispatcher))
        || plan.loses_readers()
        || sleeps(plan)
}

fn reopens(plan: &Plan) -> bool {
    plan.loses_state() || loses_consumers(plan)
}

/// A consumer is killed, or expelled because it makes no progress.
fn loses_consumers(plan: &Plan) -> bool {
    let is_lost = |a: &Action| {
        matches!(a, Action::ReturnConsumer(_) | Action::RestartConsumers | Action::SleepReader(_))
    };
    plan.consumers().is_some() && plan.has(is_lost)
}

fn sleeps(plan: &Plan) -> bool {
    plan.has(|a| matches!(a, Action::SleepReader(_)))
}

fn disturbs_dispatcher(plan: &Plan) -> bool {
    plan.has(|a| {
        let killed = matches!(a, Action::KillDispatcher | Action::CutDispatcher | Action::LoseState(_));
        killed || matches!(a, Action::StopDispatcher | Action::StallDispatcher)
    })
}

fn disturbs_anything(plan: &Plan) -> bool {
    disturbs_workers(plan) || disturbs_dispatcher(plan)
}

/// Warnings, errors and panics in a log that the round did not announce.
pub(super) fn unannounced(plan: &Plan, log: &str) -> Vec<String> {
    let bad = |line: &&str| {
        let level = line.split_whitespace().nth(1).unwrap_or_default();
        matches!(level, "WARN" | "ERROR") || line.starts_with("error: ") || line.contains("panicked")
    };
    let announced = |line: &str| RULES.iter().any(|(part, caused)| line.contains(part) && caused(plan));
    log.lines().filter(bad).filter(|line| !announced(line)).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_announced_lines_pass() {
        let log = "2026-01-01T00:00:00Z  WARN caju_client::session: a task was lost; its rows come from elsewhere\n\
                   2026-01-01T00:00:00Z ERROR caju: something else\n2026-01-01T00:00:00Z  INFO caju: fine\nerror: no";
        let quiet = (0..).map(Plan::of).find(|p| !disturbs_workers(p) && !reopens(p)).unwrap();
        let loud = (0..).map(Plan::of).find(|p| p.has(|a| matches!(a, Action::KillWorker(_)))).unwrap();
        assert_eq!(unannounced(&quiet, log).len(), 3);
        assert_eq!(unannounced(&loud, log).len(), 2);
    }
}
