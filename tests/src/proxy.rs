//! An unreliable network: a proxy between agents and a controller that cuts connections in the middle of the data.
//!
//! Other ways to lose data in transit are not available here. Not every machine that runs the tests has a kernel that
//! can delay and drop packets, and to an agent a lost packet looks like a connection that ended too early.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use crate::seed::SeededRng;

/// Bytes in one direction before which a connection is cut. A handshake has about 3 KiB, a check-in about 1 KiB.
const MAX_BYTES_BEFORE_CUT: usize = 12 * 1024;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// The state that all connections share.
struct ProxyShared {
    target: Mutex<SocketAddr>,
    should_cut: AtomicBool,
    cut_count: AtomicU64,
    rng: Mutex<SeededRng>,
    /// Where to cut the next connection: the direction and the number of bytes.
    next_cut: Mutex<Option<(Direction, usize)>>,
    /// Bytes transferred in the newest connection. Each connection has its own counts, because an older one may still
    /// transfer its last bytes.
    transferred: Mutex<TransferCounts>,
}

/// The number of bytes transferred in each direction of one connection.
type TransferCounts = Arc<[AtomicUsize; 2]>;

/// A proxy that listens until the test ends.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyShared>,
}

impl Proxy {
    /// Starts a proxy that forwards everything to this address.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(to: SocketAddr, rng: SeededRng) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ProxyShared {
            target: Mutex::new(to),
            should_cut: AtomicBool::new(false),
            cut_count: AtomicU64::new(0),
            rng: Mutex::new(rng),
            next_cut: Mutex::new(None),
            transferred: Mutex::default(),
        });
        let acceptor = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                acceptor.forward(&client);
            }
        });
        Ok(Self { address, shared })
    }

    /// Returns the address at which agents reach the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the address to which new connections are forwarded.
    pub fn set_target(&self, to: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Sets whether each new connection is cut at a random byte.
    pub fn set_random_cuts(&self, cutting: bool) {
        self.shared.should_cut.store(cutting, Ordering::Relaxed);
    }

    /// Cuts the next connection after this number of bytes in one direction. Connections after it are not cut.
    pub fn cut_next(&self, way: Direction, after: usize) {
        *self.shared.next_cut.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, after));
    }

    /// Returns the number of bytes transferred in this direction of the newest connection.
    #[must_use]
    pub fn transferred_bytes(&self, way: Direction) -> usize {
        self.shared.transferred.lock().unwrap_or_else(PoisonError::into_inner)[way as usize].load(Ordering::Relaxed)
    }

    /// Returns how many connections were cut so far.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.shared.cut_count.load(Ordering::Relaxed)
    }
}

impl ProxyShared {
    /// Forwards both directions, each on a thread of its own.
    fn forward(self: &Arc<Self>, client: &TcpStream) {
        let to = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(server) = TcpStream::connect(to) else { return };
        // Otherwise a small segment waits for the acknowledgement of the previous one, and each cut costs 40 ms.
        let _as_fast_as_may_be = (client.set_nodelay(true), server.set_nodelay(true));
        let next = self.next_cut.lock().unwrap_or_else(PoisonError::into_inner).take();
        let passed = TransferCounts::default();
        *self.transferred.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&passed);
        for (way, from, to) in [(Direction::Up, client, &server), (Direction::Down, &server, client)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let planned = next.and_then(|(planned, after)| (planned == way).then_some(after));
            let (shared, left, passed) = (Arc::clone(self), planned.or_else(|| self.cut_after()), Arc::clone(&passed));
            std::thread::spawn(move || shared.copy_bytes(&passed[way as usize], from, to, left));
        }
    }

    /// Returns the number of bytes after which a direction is cut, or `None` if it is not cut.
    fn cut_after(&self) -> Option<usize> {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        self.should_cut.load(Ordering::Relaxed).then(|| rng.next_below(MAX_BYTES_BEFORE_CUT))
    }

    /// Copies bytes in one direction, until the connection ends or is cut after `left` bytes.
    fn copy_bytes(&self, counted: &AtomicUsize, mut from: TcpStream, mut to: TcpStream, mut left: Option<usize>) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let passed = left.map_or(read, |left| left.min(read));
            // Counted before it is sent, so that the counts are complete when the receiver has the data.
            counted.fetch_add(passed, Ordering::Relaxed);
            if to.write_all(&buffer[..passed]).is_err() {
                break;
            }
            left = left.map(|left| left - passed);
            if left == Some(0) {
                self.cut_count.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        // Both ends see that the connection has ended, whichever side closed it.
        let _ended = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
