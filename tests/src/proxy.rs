//! A network that fails: a proxy between agents and a controller that cuts connections in the middle of whatever passes.
//!
//! There is no other way to lose what is under way here: a kernel that delays and drops packets is not to be had on every
//! machine that runs the tests, and what an agent sees of a lost packet is a connection that ended too early.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use crate::chance::Chance;

/// A connection is cut at the latest after so many bytes in one direction: a handshake is some 3 KiB, a check-in one.
const WITHIN_BYTES: usize = 12 * 1024;

/// What all of its connections share.
struct Shared {
    to: SocketAddr,
    cutting: AtomicBool,
    cut: AtomicU64,
    chance: Mutex<Chance>,
}

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
            to,
            cutting: AtomicBool::new(false),
            cut: AtomicU64::new(0),
            chance: Mutex::new(chance),
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

    /// From now on each new connection is cut at a random byte, or not.
    pub fn cut(&self, cutting: bool) {
        self.shared.cutting.store(cutting, Ordering::Relaxed);
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
        let Ok(server) = TcpStream::connect(self.to) else { return };
        for (from, to) in [(client, &server), (&server, client)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let (shared, left) = (Arc::clone(self), self.allowance());
            std::thread::spawn(move || shared.pump(from, to, left));
        }
    }

    /// After how many bytes a direction is cut.
    fn allowance(&self) -> Option<usize> {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        self.cutting.load(Ordering::Relaxed).then(|| chance.below(WITHIN_BYTES))
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, mut left: Option<usize>) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let passed = left.map_or(read, |left| left.min(read));
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
