//! The faults of a run, drawn from its seed.

use crate::faults::{CLIENT_TIMEOUT, Fault, Host};
use crate::plan::{Division, Plan};
use crate::random::Random;

/// Faults of a run that may lose a worker. A split that is lost with three workers that died fails its epoch, by design.
const MAX_LOSSES: usize = 2;

impl Plan {
    /// Workers, the dispatcher, readers, disks and connections fail.
    pub(crate) fn draw_faults(&mut self, r: &mut Random) {
        let count = r.between(1, 7);
        let is_static = self.division == Division::ByRow;
        let may_lose_readers =
            self.division == Division::Dynamic && self.resumes_after.is_none() && self.readers > 1;
        let mut losses = 0;
        let (mut kills_reader, mut drains) = (false, false);
        let span = self.expected_ms() * self.epochs();
        for _ in 0..count {
            let worker = r.index(self.workers);
            let host = |r: &mut Random, plan: &Plan| match r.between(0, 3) {
                0 => Host::Dispatcher,
                1 => Host::Worker(r.index(plan.workers)),
                _ => Host::Reader(r.index(plan.readers)),
            };
            let fault = match r.between(0, 100) {
                0..=24 => Fault::KillWorker { worker, is_silent: r.permille(300), back: r.ms(10, 8_000) },
                25..=39 => Fault::KillDispatcher { back: r.ms(5, 6_000) },
                40..=47 => Fault::FailDisk { writes: r.between(0, 30) },
                48..=66 => {
                    let between = match r.between(0, 3) {
                        0 => (Host::Worker(worker), Host::Dispatcher),
                        1 => (Host::Reader(r.index(self.readers)), Host::Dispatcher),
                        _ => (Host::Reader(r.index(self.readers)), Host::Worker(worker)),
                    };
                    // A reader that reaches no dispatcher for longer than its timeout is expelled.
                    let most =
                        if matches!(between, (Host::Reader(_), Host::Dispatcher)) { 5_000 } else { 12_000 };
                    Fault::Partition { between, one_way: r.permille(400), lasts: r.ms(50, most) }
                }
                67..=76 => Fault::Cut { host: host(r, self) },
                77..=84 => Fault::Isolate { worker, lasts: r.ms(100, 10_000) },
                85..=90 if !is_static => Fault::AddWorker,
                91..=94 if self.workers > 1 && !drains && !is_static => {
                    drains = true;
                    Fault::DrainWorker { worker }
                }
                95..=99 if may_lose_readers && !kills_reader => {
                    kills_reader = true;
                    Fault::KillReader { reader: r.index(self.readers) }
                }
                _ => continue,
            };
            if fault.may_lose_a_worker() {
                losses += 1;
                if losses > MAX_LOSSES {
                    continue;
                }
            }
            self.faults.push((r.ms(0, span), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Consumers die, or stand still for a shorter or longer time than the dispatcher waits; or the dispatcher loses its state.
    pub(crate) fn draw_losses_of_consumers(&mut self, r: &mut Random) {
        let span = self.expected_ms() * self.epochs();
        for _ in 0..r.between(1, 4) {
            let consumer = r.index(self.readers);
            let fault = match r.between(0, 100) {
                0..=39 => Fault::KillConsumers { back: r.ms(1, 5_000) },
                40..=59 => Fault::KillConsumer { consumer, back: r.ms(1, 5_000) },
                60..=74 => Fault::PauseReader { reader: consumer, lasts: r.ms(50, 8_000) },
                75..=84 => {
                    Fault::PauseReader { reader: consumer, lasts: CLIENT_TIMEOUT + r.ms(5_000, 15_000) }
                }
                _ => Fault::LoseState { back: r.ms(5, 6_000) },
            };
            self.faults.push((r.ms(0, span), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Readers stand still for a shorter or longer time than the dispatcher waits, or the dispatcher loses its state.
    pub(crate) fn draw_absences(&mut self, r: &mut Random) {
        let span = self.expected_ms() * self.epochs();
        for _ in 0..r.between(1, 3) {
            let lasts = r.ms(50, 8_000);
            self.faults.push((r.ms(0, span), Fault::PauseReader { reader: r.index(self.readers), lasts }));
        }
        let may_lose_readers =
            self.division == Division::Dynamic && self.resumes_after.is_none() && self.readers > 1;
        let kills_reader = self.has(|f| matches!(f, Fault::KillReader { .. }));
        let reader = r.index(self.readers);
        if r.permille(500) && !kills_reader && !self.is_in_rounds {
            // What a reader took comes again if it does not come back to a dispatcher that has lost its state.
            self.faults.push((r.ms(0, span), Fault::LoseState { back: r.ms(5, 6_000) }));
        } else if may_lose_readers && !kills_reader {
            let lasts = CLIENT_TIMEOUT + r.ms(5_000, 15_000);
            self.faults.push((r.ms(0, span), Fault::PauseReader { reader, lasts }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}
