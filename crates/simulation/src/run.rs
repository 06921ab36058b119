//! One run: the plan is carried out, and the result is compared with the model.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::Error;
use serde::{Deserialize, Serialize};

use crate::ambient;
use crate::disk::Disk;
use crate::log::EventLog;
use crate::plan::{CLASSES, CLIENT_TIMEOUT, Division, Fault, Host, Plan, Scenario};
use crate::reader::read_epochs;
use crate::reader_record::{Epoch, Shape};
use crate::sharing::Sharing;
use crate::tap::{Observed, Spoil};
use crate::world::{Outcome, World};

/// The simulated time within which all readers must have ended. Faults last seconds, and the longest timeout of a reader
/// is that of `stall_timeout`, 5 minutes.
const LONGEST: Duration = Duration::from_secs(900);
/// The interval at which bounds on memory are checked.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// A digest of everything that happened, with the time of each event.
    pub digest: String,
    /// The number of events.
    pub events: u64,
    /// The simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// The plan, for people.
    pub plan: String,
    /// What must not have happened; empty: the run passed.
    pub violations: Vec<String>,
    /// The error of each reader that ended with one, as the plan permits.
    pub errors: Vec<String>,
}

/// Carries out the plan of a seed in this process, which is a simulation from then on.
///
/// # Errors
/// If there is no thread or no runtime.
pub fn run(seed: u64, scenario: Scenario, spoil: Option<Spoil>, prints: bool) -> caju_types::Result<Report> {
    ambient::start(seed, stuck);
    caju_runtime::simulate(seed);
    caju_runtime::with_stack("the simulation", 64 << 20, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::internal(format!("no runtime: {e}")))?;
        runtime.block_on(simulate(seed, scenario, spoil, prints))
    })
}

/// Every task waits, and no timer is set.
fn stuck() -> ! {
    eprintln!("nothing will ever happen again: every task waits, and no timer is set");
    std::process::exit(4);
}

async fn simulate(
    seed: u64,
    scenario: Scenario,
    spoil: Option<Spoil>,
    prints: bool,
) -> caju_types::Result<Report> {
    let (plan, log) = (Plan::of(seed, scenario), EventLog::new(prints));
    log.event(format_args!("seed {seed}: {plan}"));
    let (observed, disk) = (Observed::new(spoil, log.clone()), Disk::new(log.clone()));
    if spoil == Some(Spoil::LoseJournalRecord) {
        disk.lose_lease_after(seed % 7);
    }
    let world = World::new(plan.clone(), seed, log.clone(), observed, disk)?;
    world.start_dispatcher().await;
    (0..plan.workers).chain(plan.colocated_worker()).for_each(|w| world.start_worker(w));
    for reader in 0..plan.readers {
        let read = |world: World, network| async move { read_epochs(&world, reader, network).await };
        world.start_reader(reader, read);
    }
    for (at, fault) in &plan.faults {
        let (world, fault) = (world.clone(), *fault);
        world.clone().after(*at, async move { inflict(&world, fault).await });
    }
    let watching = watch_memory(&world);
    tokio::select! {
        biased;
        () = world.readers_end() => {}
        () = watching => {}
        () = tokio::time::sleep(LONGEST) => {
            log.violation(format!("readers have not ended after {} s", LONGEST.as_secs()));
        }
    }
    for window in world.windows() {
        log.event(format_args!("{window:?}"));
    }
    let errors = check(&world);
    world.stop();
    let (digest, events) = log.digest();
    Ok(Report {
        seed,
        digest: format!("{digest:016x}"),
        events,
        simulated_ms: u64::try_from(ambient::elapsed().as_millis()).unwrap_or(u64::MAX),
        plan: plan.to_string(),
        violations: log.violations(),
        errors,
    })
}

async fn inflict(world: &World, fault: Fault) {
    world.log().event(format_args!("{fault:?}"));
    let (network, again) = (world.network().clone(), world.clone());
    match fault {
        Fault::KillWorker { worker, is_silent, back } => {
            world.kill_worker(worker, is_silent);
            world.after(back, async move { again.start_worker(worker) });
        }
        Fault::KillDispatcher { back } => {
            if world.kill_dispatcher() {
                world.after(back, async move { again.start_dispatcher().await });
            }
        }
        Fault::LoseOpen { after, back } => {
            let lost = world.observed().lose_open_after(after);
            world.after(Duration::ZERO, async move {
                // The reader may have come before.
                if lost.await.is_ok() && again.kill_dispatcher() {
                    tokio::time::sleep(back).await;
                    again.start_dispatcher().await;
                }
            });
        }
        Fault::FailDisk { writes } => world.disk().fail_after(writes),
        Fault::Partition { between: (a, b), one_way, lasts } => {
            let mut links = vec![(a.to_string(), b.to_string())];
            if !one_way {
                links.push((b.to_string(), a.to_string()));
            }
            links.iter().for_each(|(a, b)| network.block(a, b, true));
            world.after(lasts, async move { links.iter().for_each(|(a, b)| network.block(a, b, false)) });
        }
        Fault::Cut { host } => network.cut(&host.to_string()),
        Fault::Isolate { worker, lasts } => {
            let name = Host::Worker(worker).to_string();
            let readers = (0..world.plan().readers).map(Host::Reader);
            let others: Vec<String> = readers.chain([Host::Dispatcher]).map(|h| h.to_string()).collect();
            let set = move |is_blocked| {
                for other in &others {
                    network.block(&name, other, is_blocked);
                    network.block(other, &name, is_blocked);
                }
            };
            set(true);
            world.after(lasts, async move { set(false) });
        }
        Fault::AddWorker => world.start_worker(world.next_worker()),
        Fault::DrainWorker { worker } => world.drain_worker(worker),
        Fault::KillReader { reader } => world.kill_reader(reader),
    }
}

/// Checks the bytes that wait in workers, for as long as it is polled.
async fn watch_memory(world: &World) {
    let per_task = world.plan().max_task_bytes();
    loop {
        tokio::time::sleep(MEMORY_CHECK_INTERVAL).await;
        for (bytes, tasks) in world.buffered() {
            let most = tasks.max(1) * per_task;
            if bytes > most {
                world
                    .log()
                    .violation(format!("{bytes} bytes wait in {tasks} tasks of a worker, {most} at most"));
            }
        }
        for window in world.windows() {
            if window.peak_bytes > window.limit_bytes {
                world.log().violation(format!("the window of a worker had more than its limit: {window:?}"));
            }
        }
    }
}

/// Compares what users got with what they should have. Gives the errors that the plan permits.
fn check(world: &World) -> Vec<String> {
    let (plan, log) = (world.plan(), world.log());
    let mut errors = Vec::new();
    let is_even = matches!(plan.division, Division::Consumers { .. });
    let readers = world.outcomes();
    for Outcome { reader, killed, error, .. } in &readers {
        let Some(error) = error.as_ref().filter(|_| killed.is_none()) else { continue };
        // Documented: what a lost worker has given out of the last rows cannot be made even.
        let uneven =
            ["cannot be made even", "no elements are left"].iter().any(|s| error.message().contains(s));
        if is_even && uneven {
            errors.push(format!("reader-{reader}: {error}"));
        } else {
            log.violation(format!("reader-{reader} fails: {:?}: {error}", error.kind()));
        }
    }
    for job in 0..plan.jobs() {
        let readers: Vec<Outcome> =
            readers.iter().filter(|r| plan.are_of_one_job(job, r.reader)).cloned().collect();
        for epoch in 0..plan.epochs() {
            check_epoch(world, epoch, &readers);
        }
    }
    if let Some(sharing) = &plan.sharing {
        check_draws(world, sharing);
    }
    errors
}

/// Rows that are drawn with one seed are equal in all jobs.
fn check_draws(world: &World, sharing: &Sharing) {
    let mut drawn: BTreeMap<(u64, u64, i64), u64> = BTreeMap::new();
    for outcome in world.outcomes() {
        let Some(job) = sharing.of(outcome.reader) else { continue };
        for epoch in &outcome.epochs {
            for (id, bits) in epoch.ids.iter().zip(&epoch.drawn) {
                if drawn.entry((job.seed, epoch.number, *id)).or_insert(*bits) != bits {
                    let reader = outcome.reader;
                    world
                        .log()
                        .violation(format!("reader-{reader}: row {id} has another draw than elsewhere"));
                    return;
                }
            }
        }
    }
}

/// Compares what the readers of one job got of an epoch with what they should have.
fn check_epoch(world: &World, epoch: u64, readers: &[Outcome]) {
    let of = |r: &Outcome| {
        let read: Vec<Epoch> = r.epochs.iter().filter(|e| e.number == epoch).cloned().collect();
        (r.reader, r.killed.is_some(), read)
    };
    let read: Vec<_> = readers.iter().map(of).collect();
    check_rows(world, epoch, &read, left_before_it_was_missed(readers, epoch));
    check_evenness(world, &read);
    for (reader, is_killed, read) in &read {
        for part in read.iter().filter(|e| e.is_over && !is_killed) {
            check_acknowledgements(world, *reader, part);
        }
    }
}

/// Whether every reader that lives left an epoch before a killed one could be missed: no reader was left to take the rows of
/// the killed one.
fn left_before_it_was_missed(readers: &[Outcome], epoch: u64) -> bool {
    let Some(killed) = readers.iter().filter_map(|r| r.killed).min() else { return false };
    let alive = readers.iter().filter(|r| r.killed.is_none());
    let left = alive.flat_map(|r| &r.epochs).filter(|e| e.number == epoch).map(|e| e.left).max();
    left.is_some_and(|left| left < killed + CLIENT_TIMEOUT)
}

/// Every row came once.
fn check_rows(world: &World, epoch: u64, readers: &[(usize, bool, Vec<Epoch>)], may_leave_rows: bool) {
    let (plan, log) = (world.plan(), world.log());
    let parts = || readers.iter().flat_map(|(_, killed, parts)| parts.iter().map(move |p| (*killed, p)));
    let unknown = parts().any(|(_, e)| e.missing.is_some_and(|(_, unknown)| unknown));
    // Rows by how often readers got them. Those of a killed one may come again, and those of one that stopped before the end
    // and whose leave reached no dispatcher.
    let mut got: BTreeMap<i64, u32> = BTreeMap::new();
    for (is_killed, part) in parts() {
        let may_come_again = is_killed || !part.is_over && !world.observed().has_left(part.client);
        for id in &part.ids {
            *got.entry(*id).or_default() += u32::from(!may_come_again);
        }
    }
    let twice: Vec<i64> = got.iter().filter(|(_, times)| **times > 1).map(|(id, _)| *id).collect();
    if !twice.is_empty() && !unknown {
        log.violation(format!("epoch {epoch}: {} rows came twice, {:?} first", twice.len(), twice.first()));
    }
    let is_over = |(_, killed, parts): &(usize, bool, Vec<Epoch>)| *killed || parts.iter().any(|p| p.is_over);
    if !readers.iter().all(is_over) || readers.iter().all(|(_, killed, _)| *killed) {
        return;
    }
    let missing: Vec<i64> = plan.expected().filter(|id| !got.contains_key(id)).collect();
    // Elements that do not fill a last round of consumers are dropped, in each class.
    let classes = if plan.is_in_rounds { CLASSES.len() + 1 } else { 1 };
    let drops = plan.division == Division::Consumers { pads: false };
    let elements = if drops { (plan.readers - 1) * classes } else { 0 };
    let may_miss = elements as u64 * plan.batch.unwrap_or(1);
    let skips = readers.first().is_some_and(|(reader, ..)| plan.is_relaxed(*reader));
    if missing.len() as u64 > may_miss && !skips && !unknown && !may_leave_rows {
        log.violation(format!(
            "epoch {epoch}: {} rows are missing, {:?} first",
            missing.len(),
            missing.first()
        ));
    }
    if got.len() + missing.len() != plan.expected().count() {
        log.violation(format!("epoch {epoch}: rows came that the dataset does not have"));
    }
}

/// Consumers got equally many elements, unless the epoch is reported as incomplete: then one of them was lost together with the
/// dispatcher, which does not know what that one had got.
fn check_evenness(world: &World, readers: &[(usize, bool, Vec<Epoch>)]) {
    let parts = || readers.iter().flat_map(|(_, _, parts)| parts);
    let elements: Vec<u64> = parts().filter(|p| p.is_over).map(|p| p.elements).collect();
    let is_incomplete = parts().any(|p| p.missing.is_some());
    let is_even = is_incomplete || elements.windows(2).all(|pair| pair[0] == pair[1]);
    if matches!(world.plan().division, Division::Consumers { .. }) && !is_even {
        world.log().violation(format!("consumers got {elements:?} elements"));
    }
    check_rounds(world, &parts().map(|part| part.shapes.as_slice()).collect::<Vec<_>>());
}

/// The n-th elements of all consumers are of one class, and their lists of one length.
fn check_rounds(world: &World, consumers: &[&[Shape]]) {
    let rounds = consumers.iter().map(|shapes| shapes.len()).max().unwrap_or(0);
    for round in 0..rounds {
        let mut of_round = consumers.iter().filter_map(|shapes| shapes.get(round));
        let Some(first) = of_round.next() else { continue };
        let is_one = first.0.len() == 1 && first.1.len() == 1;
        if !is_one || of_round.any(|shape| shape != first) {
            let shapes: Vec<_> = consumers.iter().map(|shapes| shapes.get(round)).collect();
            world.log().violation(format!("round {round} is mixed: {shapes:?}"));
            return;
        }
    }
}

/// What a reader acknowledged is what its user took.
fn check_acknowledgements(world: &World, reader: usize, part: &Epoch) {
    let (said, got) = (world.observed().acknowledged(part.client), part.ids.len() as u64);
    if said != got && !matches!(world.plan().division, Division::Consumers { .. }) {
        world.log().violation(format!("reader-{reader} took {got} rows and acknowledged {said}"));
    }
}
