//! Consumers that are killed, and go on from their states.

use std::time::Duration;

use caju_client::{Attempt, ReadRequest};
use caju_types::{Error, Result};
use caju_wire::Network;

use crate::faults::Host;
use crate::launches::Start;
use crate::reader::read_part;
use crate::reader_record::with_epochs;
use crate::world::World;

/// What consumers say that go on from their states of one step alone.
const ASKS_FOR_RESTART: [&str; 5] = [
    "the consumers are at different steps",
    "cannot be made even",
    "no elements are left",
    "those between them would be missing",
    "start all consumers again: the epoch begins again when all have left",
];
/// What a consumer says that waits for others that have left the epoch: it came back by itself, or they have ended.
const WAITS_FOR_ENDED: &str = "of these were not given within";
/// What consumers say while all are to be started again, because another one has ended: that they have waited for it in vain, or
/// that the epoch went on without them.
const ENDS_WITH_OTHERS: [&str; 3] =
    ["which has not come", "these have not come within", "is no reader of this epoch any more"];
/// What a consumer says that stood still for too long: it starts again from its state.
const EXPELLED: [&str; 2] = ["client timeout of", "start the reader again from its last state"];
/// How often all consumers of a run may be started again.
const MAX_LAUNCHES: u64 = 12;

/// Reads every epoch of the plan as a consumer that saves its states, and goes on from them whenever it dies.
///
/// # Errors
/// Why an epoch could not be read to its end, unless consumers go on from their states then.
pub(crate) async fn read_as_consumer(world: &World, reader: usize, network: Network) -> Result<()> {
    let (mut network, name) = (network, Host::Reader(reader).to_string());
    let consumers = world.consumers();
    loop {
        let start = consumers.start(reader);
        go_back(world, reader, &start);
        let generation = start.generation;
        let mut reading = Box::pin(read_from(world, reader, network, start));
        let ended = tokio::select! {
            biased;
            _ = consumers.dies(reader, generation) => None,
            ended = &mut reading => Some(ended),
        };
        match ended {
            None => {
                world.log().event(format_args!("{name} is killed"));
                world.network().stop_host(&name, false);
            }
            Some(Ok(())) => consumers.finish(reader),
            Some(Err(e)) => {
                if let Err(e) = on_error(world, reader, e) {
                    // The others do not wait for it.
                    consumers.finish(reader);
                    return Err(e);
                }
            }
        }
        drop(reading);
        if !consumers.dies(reader, generation).await {
            return Ok(());
        }
        tokio::time::sleep(consumers.back(reader)).await;
        network = world.network().start_host(&name);
    }
}

/// What a consumer does that ends with an error.
fn on_error(world: &World, reader: usize, error: Error) -> Result<()> {
    let (consumers, message) = (world.consumers(), error.message());
    world.log().event(format_args!("reader-{reader} ends: {message}"));
    if consumers.start(reader).launch >= MAX_LAUNCHES {
        return Err(error);
    }
    if message.contains(WAITS_FOR_ENDED)
        && (consumers.has_returned(reader) || consumers.has_others_that_ended(reader))
    {
        consumers.kill_all(Duration::ZERO);
        return Ok(());
    }
    // Another one has ended, and asks for a start of all.
    let is_due = ENDS_WITH_OTHERS.iter().any(|said| message.contains(said)) && consumers.awaits_restart();
    if is_due || ASKS_FOR_RESTART.iter().any(|said| message.contains(said)) {
        consumers.fall_out_of_step(reader);
        return Ok(());
    }
    if world.plan().expels(reader) && EXPELLED.iter().any(|said| message.contains(said)) {
        consumers.kill(reader, Duration::ZERO);
        return Ok(());
    }
    Err(error)
}

/// What a consumer's user had is what its state says.
fn go_back(world: &World, reader: usize, start: &Start) {
    let step = start.saved.as_ref().map(|saved| (saved.state.epoch, saved.state.elements));
    if start.generation > 0 {
        world.log().event(format_args!("reader-{reader} goes on from {step:?} in launch {}", start.launch));
    }
    with_epochs(world.record(reader), |parts| {
        parts.truncate(start.saved.as_ref().map_or(0, |saved| saved.parts));
        for part in parts.iter_mut() {
            part.is_certain = true;
        }
        if let (Some(last), Some(saved)) = (parts.last_mut(), &start.saved) {
            last.elements = saved.elements;
            last.ids.truncate(saved.ids);
            last.shapes.truncate(saved.shapes);
        }
    });
}

/// Reads what is left behind a state.
async fn read_from(world: &World, reader: usize, network: Network, start: Start) -> Result<()> {
    let client = world.client(reader, network).await?;
    let state = start.saved.map(|saved| saved.state);
    let first = state.as_ref().map_or(0, |s| s.epoch + u64::from(s.exhausted));
    let rank = u32::try_from(reader).ok().filter(|_| world.plan().names_ranks);
    let attempt =
        world.plan().names_attempt.then(|| Attempt { id: format!("launch-{}", start.launch), rank });
    let mut after_iteration = 0;
    for epoch in first..world.plan().epochs() {
        let states: Vec<_> = state.iter().filter(|s| s.epoch == epoch).cloned().collect();
        let elements = states.first().map_or(0, |s| s.elements);
        let (is_behind, begins) = (!states.is_empty(), epoch == first || after_iteration > 0);
        let request = ReadRequest {
            states,
            // As `caju read --state` asks for it.
            restored_beginning: begins || attempt.is_some(),
            after_iteration,
            attempt: attempt.clone(),
            ..world.request(reader, epoch)?
        };
        let (_, iteration) = read_part(world, reader, &client, request, (elements, u64::MAX)).await?;
        if is_behind {
            after_iteration = iteration;
        }
    }
    Ok(())
}
