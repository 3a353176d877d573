//! An unreliable network: a proxy between agents and a controller that cuts connections in the middle of the data.
//!
//! The tests do not lose data in other ways. Not every machine that runs the tests has a kernel that can delay and drop
//! packets. To an agent, a lost packet appears as a connection that ended too early.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use crate::seed::SeededRng;

/// Limit of the random number of bytes in one direction after which a connection is cut. A TLS handshake has about 3
/// KiB, a check-in about 1 KiB.
const MAX_BYTES_BEFORE_CUT: usize = 12 * 1024;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// The state that all connections of a proxy share.
struct ProxyShared {
    target: Mutex<SocketAddr>,
    should_cut: AtomicBool,
    cut_count: AtomicU64,
    rng: Mutex<SeededRng>,
    /// The planned cut of the next connection: the direction, and the number of bytes after which it is cut.
    next_cut: Mutex<Option<(Direction, usize)>>,
    /// Byte counts of the newest connection. Each connection has its own counts, because an older connection may still
    /// transfer its last bytes.
    transferred: Mutex<TransferCounts>,
}

/// The number of bytes transferred in each direction of one connection.
type TransferCounts = Arc<[AtomicUsize; 2]>;

/// A TCP proxy that listens until the test process ends.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyShared>,
}

impl Proxy {
    /// Starts a proxy that forwards all connections to this address.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(target: SocketAddr, rng: SeededRng) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ProxyShared {
            target: Mutex::new(target),
            should_cut: AtomicBool::new(false),
            cut_count: AtomicU64::new(0),
            rng: Mutex::new(rng),
            next_cut: Mutex::new(None),
            transferred: Mutex::default(),
        });
        let forwarder = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                forwarder.forward(&client);
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
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Turns random cuts on or off. While they are on, each new connection is cut after a random number of bytes.
    pub fn set_random_cuts(&self, is_enabled: bool) {
        self.shared.should_cut.store(is_enabled, Ordering::Relaxed);
    }

    /// Cuts the next connection after this number of bytes in one direction. Only that connection is cut.
    pub fn cut_next(&self, direction: Direction, bytes: usize) {
        *self.shared.next_cut.lock().unwrap_or_else(PoisonError::into_inner) = Some((direction, bytes));
    }

    /// Returns the number of bytes that the newest connection has transferred in one direction.
    #[must_use]
    pub fn transferred_bytes(&self, direction: Direction) -> usize {
        self.shared.transferred.lock().unwrap_or_else(PoisonError::into_inner)[direction as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were cut so far.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.shared.cut_count.load(Ordering::Relaxed)
    }
}

impl ProxyShared {
    /// Connects to the target and forwards both directions, each on its own thread. Returns without forwarding if the
    /// target accepts no connection.
    fn forward(self: &Arc<Self>, client: &TcpStream) {
        let target = *self.target.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(server) = TcpStream::connect(target) else { return };
        // Without `TCP_NODELAY`, a small segment waits for the acknowledgement of the previous segment, and each cut
        // costs 40 ms.
        let _results = (client.set_nodelay(true), server.set_nodelay(true));
        let next_cut = self.next_cut.lock().unwrap_or_else(PoisonError::into_inner).take();
        let counts = TransferCounts::default();
        *self.transferred.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&counts);
        for (direction, source, destination) in [(Direction::Up, client, &server), (Direction::Down, &server, client)] {
            let (Ok(source), Ok(destination)) = (source.try_clone(), destination.try_clone()) else { return };
            let planned_cut = next_cut.and_then(|(cut_direction, bytes)| (cut_direction == direction).then_some(bytes));
            let (shared, bytes_left, counts) = (Arc::clone(self), planned_cut.or_else(|| self.cut_after()), Arc::clone(&counts));
            std::thread::spawn(move || shared.copy_bytes(&counts[direction as usize], source, destination, bytes_left));
        }
    }

    /// Draws the number of bytes after which a direction is cut. Returns `None` if random cuts are off.
    fn cut_after(&self) -> Option<usize> {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        self.should_cut.load(Ordering::Relaxed).then(|| rng.next_below(MAX_BYTES_BEFORE_CUT))
    }

    /// Copies bytes in one direction until the connection ends. With `bytes_left`, cuts the connection after that many
    /// bytes. Adds the copied bytes to `count`.
    fn copy_bytes(&self, count: &AtomicUsize, mut source: TcpStream, mut destination: TcpStream, mut bytes_left: Option<usize>) {
        let mut buffer = [0; 4096];
        while let Ok(bytes_read @ 1..) = source.read(&mut buffer) {
            let length = bytes_left.map_or(bytes_read, |bytes_left| bytes_left.min(bytes_read));
            // The bytes are counted before they are sent. So the counts are complete when the receiver has the data.
            count.fetch_add(length, Ordering::Relaxed);
            if destination.write_all(&buffer[..length]).is_err() {
                break;
            }
            bytes_left = bytes_left.map(|bytes_left| bytes_left - length);
            if bytes_left == Some(0) {
                self.cut_count.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        // Both ends see that the connection has ended, whichever side closed it.
        let _ended = (source.shutdown(Shutdown::Both), destination.shutdown(Shutdown::Both));
    }
}
