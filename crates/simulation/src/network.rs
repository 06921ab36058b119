//! The network between simulated processes.
//!
//! A process has a *host*, and addresses are `HOST:PORT`. Connections are streams of bytes, as TCP gives them: in order
//! within a connection and in any order between two, late, and at times broken. A lost segment is sent again and so is a
//! delay. Where a host vanishes without a word, its peers are left with half-open connections.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use caju_types::{Error, Result};
use caju_wire::{ByteStream, Network, SimulatedNetwork};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::log::EventLog;
use crate::pipe::{Pipe, Quality, Socket};
use crate::random::Random;

/// Connections that a listener has not accepted yet.
const BACKLOG: usize = 64;
/// How long a connection to a host that does not answer is tried, as Linux does with few retries.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// When keep-alive finds a peer dead that vanished.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// The network within a host.
const LOOPBACK: Quality = Quality { delay_us: (0, 1), loss_permille: 0 };

/// The network of a simulation. Clones are the same network.
#[derive(Clone)]
pub(crate) struct SimNetwork(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Changes when hosts or partitions do.
    changed: watch::Sender<u64>,
    log: EventLog,
    quality: Quality,
}

struct State {
    random: Random,
    hosts: BTreeMap<String, Host>,
    listeners: BTreeMap<String, mpsc::Sender<Box<dyn ByteStream>>>,
    /// Nothing gets from the first host to the second one.
    blocked: BTreeSet<(String, String)>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Host {
    incarnation: u64,
    is_up: bool,
    /// It vanished: nothing answers there, not even to refuse a connection.
    is_silent: bool,
}

struct Connection {
    from: String,
    to: String,
    forth: Pipe,
    back: Pipe,
}

impl Connection {
    fn pipes(&self) -> [&Pipe; 2] {
        [&self.forth, &self.back]
    }

    fn touches(&self, host: &str) -> bool {
        self.from == host || self.to == host
    }
}

impl SimNetwork {
    pub(crate) fn new(random: Random, quality: Quality, log: EventLog) -> Self {
        let state = State {
            random,
            hosts: BTreeMap::new(),
            listeners: BTreeMap::new(),
            blocked: BTreeSet::new(),
            connections: BTreeMap::new(),
            next: 0,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(0), log, quality }))
    }

    /// Starts a host: what a process that runs there from now on listens and connects on.
    pub(crate) fn start_host(&self, name: &str) -> Network {
        let incarnation = {
            let mut state = self.0.state.lock();
            let host = state.hosts.entry(name.to_string()).or_default();
            *host = Host { incarnation: host.incarnation + 1, is_up: true, is_silent: false };
            host.incarnation
        };
        self.change();
        Network::simulated(Arc::new(OfHost { network: self.clone(), name: name.to_string(), incarnation }))
    }

    /// Stops a host. Its peers see broken connections, or with `is_silent` nothing at all until keep-alive finds out.
    pub(crate) fn stop_host(&self, name: &str, is_silent: bool) {
        let mut ended = Vec::new();
        {
            let mut state = self.0.state.lock();
            let host = state.hosts.entry(name.to_string()).or_default();
            (host.is_up, host.is_silent) = (false, is_silent);
            state.listeners.retain(|address, _| host_of(address) != name);
            state.connections.retain(|_, connection| {
                let touches = connection.touches(name);
                if touches {
                    ended.extend(connection.pipes().map(Clone::clone));
                }
                !touches
            });
        }
        self.change();
        if !is_silent {
            ended.iter().for_each(|pipe| pipe.break_with(io::ErrorKind::ConnectionReset));
            return;
        }
        ended.iter().for_each(Pipe::silence);
        let tasks = caju_runtime::Tasks::new();
        tasks.background("keep-alive", caju_runtime::log_failure, async move {
            tokio::time::sleep(KEEP_ALIVE).await;
            ended.iter().for_each(|pipe| pipe.break_with(io::ErrorKind::TimedOut));
            Ok(())
        });
    }

    /// Breaks every connection of a host; new ones can be made at once.
    pub(crate) fn cut(&self, name: &str) {
        let mut state = self.0.state.lock();
        state.connections.retain(|_, connection| {
            if connection.touches(name) && connection.from != connection.to {
                connection.pipes().into_iter().for_each(|p| p.break_with(io::ErrorKind::ConnectionReset));
                return false;
            }
            true
        });
    }

    /// Lets nothing through from one host to another one, or everything again.
    pub(crate) fn block(&self, from: &str, to: &str, is_blocked: bool) {
        {
            let mut state = self.0.state.lock();
            let link = (from.to_string(), to.to_string());
            if is_blocked {
                state.blocked.insert(link);
            } else {
                state.blocked.remove(&link);
            }
            for connection in state.connections.values() {
                if connection.from == from && connection.to == to {
                    connection.forth.block(is_blocked);
                }
                if connection.to == from && connection.from == to {
                    connection.back.block(is_blocked);
                }
            }
        }
        self.change();
    }

    fn change(&self) {
        self.0.changed.send_modify(|n| *n += 1);
    }

    fn delay(&self) -> Duration {
        let (from, to) = self.0.quality.delay_us;
        Duration::from_micros(self.0.state.lock().random.between(from, to))
    }
}

/// The host in an address.
fn host_of(address: &str) -> &str {
    address.split(':').next().unwrap_or_default()
}

/// The network as one process sees it.
struct OfHost {
    network: SimNetwork,
    name: String,
    incarnation: u64,
}

/// What an attempt to connect meets.
enum Met {
    Connected(Box<dyn ByteStream>),
    Refused,
    Silence,
}

impl OfHost {
    /// Whether the process still runs: one that was killed reaches no peer.
    fn is_alive(&self, state: &State) -> bool {
        state.hosts.get(&self.name).is_some_and(|h| h.is_up && h.incarnation == self.incarnation)
    }

    fn try_connect(&self, address: &str) -> io::Result<Met> {
        let shared = &self.network.0;
        let mut state = shared.state.lock();
        if !self.is_alive(&state) {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let to = host_of(address).to_string();
        let (forth, back) = ((self.name.clone(), to.clone()), (to.clone(), self.name.clone()));
        let is_silent = state.hosts.get(&to).is_none_or(|h| !h.is_up && h.is_silent);
        if is_silent || state.blocked.contains(&forth) || state.blocked.contains(&back) {
            return Ok(Met::Silence);
        }
        let Some(listener) = state.listeners.get(address).cloned() else { return Ok(Met::Refused) };
        let number = state.next;
        state.next += 1;
        let quality = if to == self.name { LOOPBACK } else { shared.quality };
        let seed = state.random.between(0, u64::MAX);
        let pipe = |purpose| Pipe::new(quality, Random::new(seed, purpose), false);
        let connection = Connection { from: self.name.clone(), to, forth: pipe(1), back: pipe(2) };
        let ours = Socket::new(connection.back.clone(), connection.forth.clone());
        let theirs = Socket::new(connection.forth.clone(), connection.back.clone());
        if listener.try_send(Box::new(theirs)).is_err() {
            return Ok(Met::Refused);
        }
        shared.log.event(format_args!("{} connects to {address} ({number})", self.name));
        state.connections.insert(number, connection);
        Ok(Met::Connected(Box::new(ours)))
    }
}

impl OfHost {
    /// Connects, as soon as the host answers.
    async fn connect_some_time(&self, address: &str) -> io::Result<Box<dyn ByteStream>> {
        let mut changed = self.network.0.changed.subscribe();
        loop {
            tokio::time::sleep(self.network.delay()).await;
            changed.mark_unchanged();
            let met = self.try_connect(address)?;
            match met {
                Met::Connected(stream) => {
                    tokio::time::sleep(self.network.delay()).await;
                    return Ok(stream);
                }
                Met::Refused => {
                    tokio::time::sleep(self.network.delay()).await;
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                Met::Silence => {
                    if changed.changed().await.is_err() {
                        return Err(io::ErrorKind::NetworkDown.into());
                    }
                }
            }
        }
    }
}

#[async_trait]
impl SimulatedNetwork for OfHost {
    async fn bind(&self, listen: &str) -> Result<(String, mpsc::Receiver<Box<dyn ByteStream>>)> {
        let (sender, incoming) = mpsc::channel(BACKLOG);
        let mut state = self.network.0.state.lock();
        if !self.is_alive(&state) {
            return Err(Error::unavailable(format!("{listen}: the host is down")));
        }
        state.listeners.insert(listen.to_string(), sender);
        Ok((listen.to_string(), incoming))
    }

    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>> {
        match tokio::time::timeout(CONNECT_TIMEOUT, self.connect_some_time(address)).await {
            Ok(done) => done,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
