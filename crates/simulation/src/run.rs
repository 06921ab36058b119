//! One run: the plan is carried out, and the result is compared with the model.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::Error;
use serde::{Deserialize, Serialize};

use crate::ambient;
use crate::consumers::read_as_consumer;
use crate::disk::Disk;
use crate::faults::CLIENT_TIMEOUT;
use crate::inflict::inflict;
use crate::log::EventLog;
use crate::plan::{Division, MAX_ITEMS, Plan, Scenario};
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
        let read = |world: World, network| async move {
            match world.plan().saves_states {
                true => read_as_consumer(&world, reader, network).await,
                false => read_epochs(&world, reader, network).await,
            }
        };
        world.start_reader(reader, read);
    }
    for (at, fault) in &plan.faults {
        let (world, fault) = (world.clone(), *fault);
        world.clone().after(*at, async move { inflict(&world, fault) });
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
    let mut readers = world.outcomes();
    for outcome in &mut readers {
        let is_expelled = |e: &&Error| e.message().contains("client timeout of");
        let expelled = outcome.error.as_ref().filter(|_| plan.expels(outcome.reader)).filter(is_expelled);
        if let (Some(e), false) = (expelled, plan.saves_states) {
            errors.push(format!("reader-{}: {e}", outcome.reader));
            outcome.killed = outcome.paused;
        }
    }
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
    // How often readers got a row, and how often they got it for good: what a killed one got may come again, and what one got that
    // stopped before the end and whose leave reached no dispatcher.
    let mut got: BTreeMap<i64, (u32, u32)> = BTreeMap::new();
    for (is_killed, part) in parts() {
        let is_certain = part.is_over || part.is_certain;
        let may_come_again = is_killed || !is_certain && !world.observed().has_left(part.client);
        for id in &part.ids {
            let (times, for_good) = got.entry(*id).or_default();
            *times += 1;
            *for_good += u32::from(!may_come_again);
        }
    }
    let expected = plan.expected();
    let times_of = |id: &i64| expected.get(id).copied().unwrap_or(0);
    let is_again = |(id, (_, for_good)): &(&i64, &(u32, u32))| *for_good > times_of(id).max(1);
    let again: Vec<i64> = got.iter().filter(is_again).map(|(id, _)| *id).collect();
    if !again.is_empty() && !unknown {
        log.violation(format!("epoch {epoch}: {} rows came again, {:?} first", again.len(), again.first()));
    }
    let is_over = |(_, killed, parts): &(usize, bool, Vec<Epoch>)| *killed || parts.iter().any(|p| p.is_over);
    if !readers.iter().all(is_over) || readers.iter().all(|(_, killed, _)| *killed) {
        return;
    }
    let came = |id: &i64| got.get(id).map_or(0, |(times, _)| *times);
    let missing: Vec<i64> =
        expected.iter().filter(|(id, times)| came(id) < **times).map(|(id, _)| *id).collect();
    // Elements that do not fill a last round of consumers are dropped, in each class.
    let drops = plan.division == Division::Consumers { pads: false };
    let elements = if drops { (plan.readers - 1) * plan.classes() } else { 0 };
    let may_miss = elements as u64 * plan.batch.unwrap_or(1);
    let skips = readers.first().is_some_and(|(reader, ..)| plan.is_relaxed(*reader));
    if missing.len() as u64 > may_miss && !skips && !unknown && !may_leave_rows {
        log.violation(format!(
            "epoch {epoch}: {} rows are missing, {:?} first",
            missing.len(),
            missing.first()
        ));
    }
    if skips && !unknown && !may_leave_rows {
        let rows = expected.iter().map(|(id, times)| u64::from(times.saturating_sub(came(id)))).sum();
        check_skipped(world, epoch, readers, rows);
    }
    if got.keys().any(|id| !expected.contains_key(id)) {
        log.violation(format!("epoch {epoch}: rows came that the dataset does not have"));
    }
}

/// The rows that no reader of a relaxed job got are those that the dispatcher says were skipped.
fn check_skipped(world: &World, epoch: u64, readers: &[(usize, bool, Vec<Epoch>)], missing: u64) {
    let parts = || readers.iter().flat_map(|(_, _, parts)| parts);
    // A reader that goes on from its state gets what the epoch before had skipped.
    let Some((skipped, is_whole)) = parts().last().and_then(|part| part.skipped) else { return };
    // Rows that a killed reader got may be skipped when they are leased again. Tasks that did not report their ends may have
    // skipped more.
    let has_too_many = skipped > missing && !readers.iter().any(|(_, killed, _)| *killed);
    if has_too_many || missing > skipped && is_whole {
        world
            .log()
            .violation(format!("epoch {epoch}: {missing} rows are missing, and {skipped} were skipped"));
    }
}

/// Consumers got equally many elements, unless the epoch is reported as incomplete: then one of them was lost together with the
/// dispatcher, which does not know what that one had got.
fn check_evenness(world: &World, readers: &[(usize, bool, Vec<Epoch>)]) {
    let parts = || readers.iter().flat_map(|(_, _, parts)| parts);
    let of_reader = |(_, _, parts): &(usize, bool, Vec<Epoch>)| -> Option<u64> {
        let counts = |part: &&Epoch| part.is_over || part.is_certain;
        parts.iter().any(|part| part.is_over).then(|| parts.iter().filter(counts).map(|p| p.elements).sum())
    };
    let elements: Vec<u64> = readers.iter().filter_map(of_reader).collect();
    // Consumers that go on from their states lose nothing.
    let is_incomplete = !world.plan().saves_states && parts().any(|p| p.missing.is_some());
    let is_even = is_incomplete || elements.windows(2).all(|pair| pair[0] == pair[1]);
    if matches!(world.plan().division, Division::Consumers { .. }) && !is_even {
        world.log().violation(format!("consumers got {elements:?} elements"));
    }
    let shapes_of = |(_, _, parts): &(usize, bool, Vec<Epoch>)| -> Vec<Shape> {
        parts.iter().flat_map(|part| part.shapes.iter().cloned()).collect()
    };
    let consumers: Vec<Vec<Shape>> = readers.iter().map(shapes_of).collect();
    if world.plan().packs {
        check_packed_rounds(world, &consumers);
    } else {
        check_rounds(world, &consumers);
    }
}

/// The n-th elements of all consumers are of one class, and their lists of one length.
fn check_rounds(world: &World, consumers: &[Vec<Shape>]) {
    let rounds = consumers.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds {
        let mut of_round = consumers.iter().filter_map(|shapes| shapes.get(round));
        let Some(first) = of_round.next() else { continue };
        let is_one = first.classes.len() == 1 && first.lengths.len() == 1;
        let is_like = |shape: &Shape| (&shape.classes, &shape.lengths) == (&first.classes, &first.lengths);
        if !is_one || !of_round.all(is_like) {
            let shapes: Vec<_> = consumers.iter().map(|shapes| shapes.get(round)).collect();
            world.log().violation(format!("round {round} is mixed: {shapes:?}"));
            return;
        }
    }
}

/// The n-th elements of all consumers differ by the items of one row at most. Rows that fill no round of one task make the last
/// rounds, which are not packed.
fn check_packed_rounds(world: &World, consumers: &[Vec<Shape>]) {
    let rounds = consumers.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds.saturating_sub(world.plan().most_tasks()) {
        let items = || consumers.iter().filter_map(|shapes| shapes.get(round)).map(|shape| shape.items);
        let (least, most) = (items().min().unwrap_or(0), items().max().unwrap_or(0));
        if most - least > MAX_ITEMS {
            let items: Vec<u64> = items().collect();
            world
                .log()
                .violation(format!("round {round} of {rounds} has unequal numbers of items: {items:?}"));
            return;
        }
    }
}

/// What a reader acknowledged is what its user took.
fn check_acknowledgements(world: &World, reader: usize, part: &Epoch) {
    let (said, got) = (world.observed().acknowledged(part.client), part.ids.len() as u64);
    // A dispatcher that lost its state gives a reader another number.
    let is_known =
        !matches!(world.plan().division, Division::Consumers { .. }) && !world.plan().loses_state();
    if said != got && is_known {
        world.log().violation(format!("reader-{reader} took {got} rows and acknowledged {said}"));
    }
}
