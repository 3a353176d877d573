//! A network that fails: a proxy between agents and a controller that cuts connections in the middle of whatever passes.
//!
//! There is no other way to lose what is under way here: a kernel that delays and drops packets is not to be had on every
//! machine that runs the tests, and what an agent sees of a lost packet is a connection that ended too early.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use crate::chance::Chance;

/// A connection is cut at the latest after so many bytes in one direction: a handshake is some 3 KiB, a check-in one.
const WITHIN_BYTES: usize = 12 * 1024;

/// One of the two ways through a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the client says.
    Up,
    /// What the server says.
    Down,
}

/// What all of its connections share.
struct Shared {
    to: Mutex<SocketAddr>,
    cutting: AtomicBool,
    cut: AtomicU64,
    chance: Mutex<Chance>,
    /// Where the next connection is cut.
    next: Mutex<Option<(Way, usize)>>,
    /// How much passed each way in the newest connection. Each has counts of its own: an older one may still pass its last bytes.
    passed: Mutex<Passed>,
}

/// How many bytes have passed each way in one connection.
type Passed = Arc<[AtomicUsize; 2]>;

/// A proxy, which listens until the test ends.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Begins to pass on what comes, whole.
    ///
    /// # Errors
    /// When no port is to be had.
    pub fn to(to: SocketAddr, chance: Chance) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to: Mutex::new(to),
            cutting: AtomicBool::new(false),
            cut: AtomicU64::new(0),
            chance: Mutex::new(chance),
            next: Mutex::new(None),
            passed: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accepting.pass(&client);
            }
        });
        Ok(Self { address, shared })
    }

    /// Where agents reach it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on new connections lead there.
    pub fn turn_to(&self, to: SocketAddr) {
        *self.shared.to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// From now on each new connection is cut at a random byte, or not.
    pub fn cut(&self, cutting: bool) {
        self.shared.cutting.store(cutting, Ordering::Relaxed);
    }

    /// The next connection is cut where so many bytes have passed this way; those after it are whole again.
    pub fn cut_next(&self, way: Way, after: usize) {
        *self.shared.next.lock().unwrap_or_else(PoisonError::into_inner) = Some((way, after));
    }

    /// How many bytes have passed this way in the newest connection.
    #[must_use]
    pub fn passed(&self, way: Way) -> usize {
        self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner)[way as usize].load(Ordering::Relaxed)
    }

    /// How many connections were cut so far.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.shared.cut.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Passes on both directions, each by a thread of its own.
    fn pass(self: &Arc<Self>, client: &TcpStream) {
        let to = *self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(server) = TcpStream::connect(to) else { return };
        // A piece that waits for the acknowledgement of the one before would make each cut cost 40 ms.
        let _as_fast_as_may_be = (client.set_nodelay(true), server.set_nodelay(true));
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
        let passed = Passed::default();
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&passed);
        for (way, from, to) in [(Way::Up, client, &server), (Way::Down, &server, client)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let planned = next.and_then(|(planned, after)| (planned == way).then_some(after));
            let (shared, left, passed) = (Arc::clone(self), planned.or_else(|| self.allowance()), Arc::clone(&passed));
            std::thread::spawn(move || shared.pump(&passed[way as usize], from, to, left));
        }
    }

    /// After how many bytes a direction is cut.
    fn allowance(&self) -> Option<usize> {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        self.cutting.load(Ordering::Relaxed).then(|| chance.below(WITHIN_BYTES))
    }

    fn pump(&self, counted: &AtomicUsize, mut from: TcpStream, mut to: TcpStream, mut left: Option<usize>) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let passed = left.map_or(read, |left| left.min(read));
            // Counted before: who has its answer finds all of it counted.
            counted.fetch_add(passed, Ordering::Relaxed);
            if to.write_all(&buffer[..passed]).is_err() {
                break;
            }
            left = left.map(|left| left - passed);
            if left == Some(0) {
                self.cut.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        // Both ends learn of it, whichever of them it was that ended.
        let _ended = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
