//! How faults happen.

use std::time::Duration;

use crate::faults::{Fault, Host};
use crate::world::World;

/// When a fault is tried again that could not happen yet.
const RETRY: Duration = Duration::from_millis(50);

/// Makes a fault happen.
pub(crate) fn inflict(world: &World, fault: Fault) {
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
            let readers = (0..world.plan().readers).map(Host::Reader);
            isolate(world, Host::Worker(worker), readers.chain([Host::Dispatcher]).collect(), lasts);
        }
        Fault::PauseReader { reader, lasts } => {
            let workers = (0..world.next_worker()).map(Host::Worker);
            isolate(world, Host::Reader(reader), workers.chain([Host::Dispatcher]).collect(), lasts);
            world.pause_reader(reader, true);
            world.after(lasts, async move { again.pause_reader(reader, false) });
        }
        Fault::KillConsumer { consumer, back } => world.consumers().kill(consumer, back),
        Fault::KillConsumers { back } => world.consumers().kill_all(back),
        // A reader that opens an epoch at a dispatcher without its state begins it, and one that has left is not known.
        Fault::LoseState { back } if all_read_one_epoch(world) => {
            world.kill_dispatcher();
            world.disk().clear();
            world.observed().forget_calls();
            world.after(back, async move { again.start_dispatcher().await });
        }
        Fault::LoseState { .. } if !has_any_ended(world) => {
            world.after(RETRY, async move { inflict(&again, fault) });
        }
        Fault::LoseState { .. } => {}
        Fault::AddWorker => world.start_worker(world.next_worker()),
        Fault::DrainWorker { worker } => world.drain_worker(worker),
        Fault::KillReader { reader } => world.kill_reader(reader),
    }
}

/// Nothing passes between a host and others for a time.
fn isolate(world: &World, host: Host, others: Vec<Host>, lasts: Duration) {
    let (network, name) = (world.network().clone(), host.to_string());
    let set = move |is_blocked| {
        for other in &others {
            network.block(&name, &other.to_string(), is_blocked);
            network.block(&other.to_string(), &name, is_blocked);
        }
    };
    set(true);
    world.after(lasts, async move { set(false) });
}

/// Whether all readers read one epoch. Of readers that continue from states each has read as many parts of it.
fn all_read_one_epoch(world: &World) -> bool {
    let of = |reader| {
        let (number, parts) = world.record(reader)?.lock().reads()?;
        Some((number, if world.plan().saves_states { 0 } else { parts }))
    };
    let first = of(0);
    first.is_some() && !has_any_ended(world) && (0..world.plan().readers).all(|reader| of(reader) == first)
}

fn has_any_ended(world: &World) -> bool {
    (0..world.plan().readers).filter_map(|reader| world.record(reader)).any(|r| r.lock().has_ended())
}
