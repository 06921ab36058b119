//! A user who reads epochs.

use std::time::Duration;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float64Type, Int64Type};
use caju_client::{Attempt, Client, ReadRequest, Reader, ReaderState};
use caju_types::{Error, IterationId, Result};
use caju_wire::Network;

use crate::ambient;
use crate::launches::{Saved, Step};
use crate::plan::ROWS_PER_PAUSE;
use crate::random::Random;
use crate::reader_record::{Epoch, Shape, with_epochs};
use crate::sharing::DRAWN;
use crate::world::World;

/// Elements from one saved state of a consumer to the next.
const ELEMENTS_PER_STATE: u64 = 5;

/// How long a reader asks for the last figures of an epoch.
const STATUS_BOUND: Duration = Duration::from_secs(10);

/// Reads every epoch of the plan.
///
/// # Errors
/// Why an epoch could not be read to its end.
pub(crate) async fn read_epochs(world: &World, reader: usize, network: Network) -> Result<()> {
    tokio::time::sleep(world.plan().times_of(reader).0).await;
    let client = world.client(reader, network).await?;
    for epoch in 0..world.plan().epochs() {
        let request = world.request(reader, epoch)?;
        match world.plan().resumes_after {
            None => drop(read_part(world, reader, &client, request, (0, u64::MAX)).await?),
            Some(rows) => {
                let (state, _) = read_part(world, reader, &client, request.clone(), (0, rows)).await?;
                let states = world.gather_states(reader, state).await;
                let job = format!("{} on", request.job);
                let attempt = world
                    .plan()
                    .names_attempt
                    .then(|| Attempt { id: "the only one".to_string(), rank: u32::try_from(reader).ok() });
                let request = ReadRequest { job, states, states_of_all: true, attempt, ..request };
                drop(read_part(world, reader, &client, request, (0, u64::MAX)).await?);
            }
        }
    }
    Ok(())
}

/// Reads until the end of an epoch, or until the user has a number of rows, behind a number of elements. Gives the reader's
/// state and iteration.
pub(crate) async fn read_part(
    world: &World,
    reader: usize,
    client: &Client,
    request: ReadRequest,
    (elements, most_rows): (u64, u64),
) -> Result<(ReaderState, u64)> {
    let number = request.epoch;
    let mut open = client.read(request).await?;
    // The state of a reader that reads on names those before it until it has rows.
    let me = open.client_number();
    world.log().event(format_args!("reader-{reader} opens epoch {number} as client {me}"));
    with_epochs(world.record(reader), |parts| parts.push(Epoch { number, client: me, ..Epoch::default() }));
    let iteration = open.iteration().0;
    let read = take_rows(world, reader, &mut open, (number, elements, most_rows)).await;
    let missing = open.incomplete().map(|i| (i.rows_missing, i.rows_unknown));
    if let Some(incomplete) = open.incomplete() {
        world.log().event(format_args!("reader-{reader}: epoch {number} is incomplete: {}", incomplete.why));
    }
    with_epochs(world.record(reader), |parts| {
        if let Some(last) = parts.last_mut() {
            (last.is_over, last.missing) = (matches!(read, Ok(true)), missing);
            (last.is_left, last.left) = (true, ambient::elapsed());
        }
    });
    let state = open.state()?;
    if matches!(read, Ok(true)) {
        save(world, reader, &open, (number, u64::MAX))?;
    }
    let last_iteration = open.iteration();
    open.close().await;
    if world.plan().is_relaxed(reader) && matches!(read, Ok(true)) {
        let skipped = skipped_rows(client, last_iteration).await;
        with_epochs(world.record(reader), |parts| {
            if let Some(last) = parts.last_mut() {
                last.skipped = skipped;
            }
        });
    }
    match &read {
        Ok(is_over) => {
            world.log().event(format_args!("reader-{reader} leaves epoch {number}, over: {is_over}"))
        }
        Err(e) => world.log().event(format_args!("reader-{reader} fails in epoch {number}: {e}")),
    }
    read.map(|_| (state, iteration))
}

/// The rows that the tasks of an iteration skipped, and whether all of them reported their ends; none while other readers are in it,
/// or if it is not known.
async fn skipped_rows(client: &Client, iteration: IterationId) -> Option<(u64, bool)> {
    let job = client.final_status(iteration, STATUS_BOUND).await?;
    let is_final = job.state != "running" && job.tasks == 0 && job.clients == 0;
    let shared = job.served.and_then(|served| served.shared).unwrap_or_default();
    is_final.then_some((shared.skipped_rows, shared.unreported_tasks == 0))
}

/// True at the end of the epoch.
async fn take_rows(
    world: &World,
    reader: usize,
    open: &mut Reader,
    (epoch, mut elements, most_rows): (u64, u64, u64),
) -> Result<bool> {
    let mut random = Random::new(reader as u64, 30);
    let pace = u64::try_from(world.plan().times_of(reader).1.as_micros()).unwrap_or(0);
    let (mut since_pause, mut rows) = (0, 0);
    while let Some(element) = open.next().await? {
        let column = element
            .batch
            .column_by_name("id")
            .ok_or_else(|| Error::internal("the rows have no column `id`"))?;
        let ids = column.as_primitive::<Int64Type>().values();
        if let Some(first) = ids.first() {
            let padding = if element.is_padding { " of padding" } else { "" };
            world.log().event(format_args!("reader-{reader} takes {} rows{padding} from {first}", ids.len()));
        }
        // A reader that opened its epoch again has another number since.
        world.observed().handed(open.client_number(), ids.len() as u64);
        with_epochs(world.record(reader), |parts| {
            if let Some(last) = parts.last_mut() {
                last.elements += 1;
                if let Some(lists) = element.batch.column_by_name("tokens") {
                    let lists = lists.as_list::<i32>();
                    let lengths =
                        || (0..lists.len()).map(|row| u64::try_from(lists.value_length(row)).unwrap_or(0));
                    let classes = ids.iter().map(|id| world.plan().class_of(*id)).collect();
                    last.shapes.push(Shape { classes, lengths: lengths().collect(), items: lengths().sum() });
                }
                if !element.is_padding {
                    last.ids.extend_from_slice(ids);
                    if let Some(drawn) = element.batch.column_by_name(DRAWN) {
                        last.drawn
                            .extend(drawn.as_primitive::<Float64Type>().values().iter().map(|u| u.to_bits()));
                    }
                }
            }
        });
        elements += 1;
        if elements % ELEMENTS_PER_STATE == 0 {
            save(world, reader, open, (epoch, elements))?;
        }
        rows += ids.len() as u64;
        if rows >= most_rows {
            return Ok(false);
        }
        since_pause += ids.len();
        if since_pause >= ROWS_PER_PAUSE {
            since_pause = 0;
            tokio::time::sleep(Duration::from_micros(random.between(0, pace + 1))).await;
        }
    }
    Ok(true)
}

/// Saves the state of a consumer behind an element.
fn save(world: &World, reader: usize, open: &Reader, step: Step) -> Result<()> {
    if !world.plan().saves_states {
        return Ok(());
    }
    let state = open.state()?;
    with_epochs(world.record(reader), |parts| {
        let (number, Some(last)) = (parts.len(), parts.last()) else { return };
        let (elements, ids, shapes) = (last.elements, last.ids.len(), last.shapes.len());
        world.consumers().save(reader, step, Saved { state, parts: number, elements, ids, shapes });
    });
    Ok(())
}
