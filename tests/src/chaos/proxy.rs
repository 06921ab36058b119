//! A TCP proxy whose connections can be cut, or held up as a network does that loses everything.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long connecting to the target may take.
const CONNECT: Duration = Duration::from_secs(2);

/// A free port that no outgoing connection takes while its server is away: below those that the system gives out.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = std::process::id().wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 12_000 + u16::try_from(n % 20_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Forwards connections to one address of the loopback.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    open: Mutex<Vec<TcpStream>>,
    stalled: Mutex<bool>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Proxy {
    /// A proxy on a free port, in front of a port of the loopback. That port need not be listening yet.
    pub fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: SocketAddr::from(([127, 0, 0, 1], target_port)),
            open: Mutex::default(),
            stalled: Mutex::new(false),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for incoming in listener.incoming().map_while(Result::ok) {
                if accepting.closed.load(Ordering::Acquire) {
                    return;
                }
                let theirs = Arc::clone(&accepting);
                std::thread::spawn(move || theirs.forward(&incoming));
            }
        });
        Self { address, shared }
    }

    /// `host:port` of the proxy.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Breaks every open connection. New ones are accepted.
    pub fn cut(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    /// Holds back every byte from now on, or no longer. Both ends believe that they are connected.
    pub fn stall(&self, stalled: bool) {
        *self.shared.stalled.lock().unwrap() = stalled;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.stall(false);
        self.cut();
        // Wakes the thread that accepts.
        drop(TcpStream::connect_timeout(&self.address, CONNECT));
    }
}

impl Shared {
    fn forward(self: Arc<Self>, incoming: &TcpStream) {
        self.wait_while_stalled();
        let Ok(outgoing) = TcpStream::connect_timeout(&self.target, CONNECT) else { return };
        drop(incoming.set_nodelay(true));
        drop(outgoing.set_nodelay(true));
        let clones = (incoming.try_clone(), outgoing.try_clone(), incoming.try_clone(), outgoing.try_clone());
        let (Ok(a), Ok(b), Ok(cut_a), Ok(cut_b)) = clones else { return };
        self.open.lock().unwrap().extend([cut_a, cut_b]);
        let back = Arc::clone(&self);
        let answers = std::thread::spawn(move || back.copy(b, a));
        if let (Ok(a), Ok(b)) = (incoming.try_clone(), outgoing.try_clone()) {
            self.copy(a, b);
        }
        drop(answers.join());
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n) = from.read(&mut buffer) {
            if n == 0 {
                break;
            }
            self.wait_while_stalled();
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        drop(from.shutdown(Shutdown::Read));
        drop(to.shutdown(Shutdown::Write));
    }

    fn wait_while_stalled(&self) {
        let mut stalled = self.stalled.lock().unwrap();
        while *stalled {
            stalled = self.changed.wait(stalled).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_until_they_are_held_back_or_cut() {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::start(echo.local_addr().unwrap().port());
        std::thread::spawn(move || {
            for mut stream in echo.incoming().map_while(Result::ok) {
                std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        let mut byte = [0];
        stream.write_all(b"a").unwrap();
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"a");
        proxy.stall(true);
        stream.write_all(b"b").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(stream.read_exact(&mut byte).is_err(), "held back");
        proxy.stall(false);
        stream.set_read_timeout(Some(CONNECT)).unwrap();
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"b");
        proxy.cut();
        assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)), "cut");
    }
}
