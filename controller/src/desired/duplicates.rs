//! Detects whether one host or two check in for a node: a copy of a disk or container has the identity of the original.
//!
//! Two hosts replace each other's check-in at every turn. One host never alternates. Each boot has its own boot id,
//! which never returns, and a new connection comes from the same address. So there are two signs of two hosts. A boot
//! id returns after a check-in of another boot. Or an address of the same boot returns after a check-in from another
//! address, and replaces a waiting check-in without news.
//!
//! Two agents on one machine share boot id and address. They are detected by frequency: each replaces the other's
//! check-in within a minute. A single host does this only after it renewed its certificate or lost its connection
//! unnoticed.
//!
//! A host that repeats the local state before its last one (pause, hold, park) has no news. A paused copy and its
//! original contradict each other at each turn.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::intake::AgentState;

/// The number of signs that show two hosts, and the time within which they must occur. When there are fewer in that
/// time, it is one host again.
const RETURN_THRESHOLD: (usize, Duration) = (3, Duration::from_mins(30));

/// The number and the time for the signs of another kind: check-ins without news from one address that replace waiting
/// ones. A host whose disk is full must not reach it. Such a host cannot store a new certificate, and requests another
/// every five minutes.
const TAKEOVER_THRESHOLD: (usize, Duration) = (4, Duration::from_mins(4));

/// The addresses from which a node's two hosts check in.
pub(crate) type HostAddresses = [SocketAddr; 2];

/// The parts of a check-in that identify its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckInOrigin {
    /// The kernel's boot id.
    pub(crate) boot_id: [u8; 16],
    /// The other end of the connection.
    pub(crate) address: SocketAddr,
    /// The hash of the host's pause, hold and park.
    local_state_hash: u64,
    /// True if the check-in has other news.
    has_news: bool,
}

/// The last check-ins of a node, and the signs that they come from two hosts.
#[derive(Debug, Default)]
pub(super) struct DuplicateDetector {
    last: Option<CheckInOrigin>,
    /// The last check-in of another boot or from another address.
    previous: Option<CheckInOrigin>,
    /// The last local state that was followed by a different one.
    previous_local_state: Option<u64>,
    returns: RecentSigns,
    takeovers: RecentSigns,
    /// The addresses of the two check-ins that were the last sign.
    addresses: Option<HostAddresses>,
}

/// The times of the last signs of one kind.
#[derive(Debug, Default)]
struct RecentSigns(Vec<Instant>);

impl RecentSigns {
    fn add(&mut self, (count, _): (usize, Duration), now: Instant) {
        if self.0.len() == count {
            self.0.remove(0);
        }
        self.0.push(now);
    }

    fn is_reached(&self, (count, period): (usize, Duration), now: Instant) -> bool {
        self.0.len() == count && self.0.iter().all(|at| now.duration_since(*at) < period)
    }
}

impl CheckInOrigin {
    pub(super) fn new(state: &AgentState, address: SocketAddr, has_news: bool) -> Self {
        let mut hasher = DefaultHasher::new();
        state.local_state.hash(&mut hasher);
        Self { boot_id: state.boot_id, address, local_state_hash: hasher.finish(), has_news }
    }
}

impl DuplicateDetector {
    /// Records a check-in. `has_replaced` is true if it replaced a waiting one. Returns both addresses when two hosts
    /// are first detected.
    pub(super) fn observe(&mut self, check_in: CheckInOrigin, has_replaced: bool, now: Instant) -> Option<HostAddresses> {
        let was_detected = self.duplicate_addresses(now).is_some();
        let last = self.last.replace(check_in)?;
        let is_other_boot = last.boot_id != check_in.boot_id;
        let has_no_news = self.is_known_local_state(&last, &check_in) && !check_in.has_news;
        let is_takeover = has_replaced && has_no_news;
        if is_other_boot || last.address.ip() != check_in.address.ip() {
            let before = self.previous.replace(last)?;
            let has_returned = is_other_boot || is_takeover && before.address.ip() == check_in.address.ip();
            if before.boot_id != check_in.boot_id || !has_returned {
                return None;
            }
            self.returns.add(RETURN_THRESHOLD, now);
        } else if is_takeover && last.address != check_in.address {
            self.takeovers.add(TAKEOVER_THRESHOLD, now);
        } else {
            return None;
        }
        self.addresses = Some([last.address, check_in.address]);
        self.duplicate_addresses(now).filter(|_| !was_detected)
    }

    /// Returns whether the local state of a check-in equals the last one, or the different one before that.
    fn is_known_local_state(&mut self, last: &CheckInOrigin, check_in: &CheckInOrigin) -> bool {
        last.local_state_hash == check_in.local_state_hash
            || self.previous_local_state.replace(last.local_state_hash) == Some(check_in.local_state_hash)
    }

    /// Returns the addresses from which two hosts check in, if there are two.
    pub(super) fn duplicate_addresses(&self, now: Instant) -> Option<HostAddresses> {
        let is_detected = self.returns.is_reached(RETURN_THRESHOLD, now) || self.takeovers.is_reached(TAKEOVER_THRESHOLD, now);
        self.addresses.filter(|_| is_detected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(boot: u8, address: u8, port: u16, is_idle: bool) -> CheckInOrigin {
        CheckInOrigin {
            boot_id: [boot; 16],
            address: ([127, 0, 0, address], port).into(),
            local_state_hash: 0,
            has_news: !is_idle,
        }
    }

    fn with_local_state(local_state_hash: u64, speaker: CheckInOrigin) -> CheckInOrigin {
        CheckInOrigin { local_state_hash, ..speaker }
    }

    #[test]
    fn w10_14_detector_finds_two_hosts_but_not_restart_or_reconnect() {
        let (began, mut hosts) = (Instant::now(), DuplicateDetector::default());
        // Three boots, each with its own connections, some of which break.
        for (boot, port, is_idle) in [(1, 1, false), (1, 2, false), (2, 1, false), (2, 2, true), (3, 1, false), (3, 2, true)] {
            assert_eq!(hosts.observe(origin(boot, boot, port, is_idle), true, began), None);
        }
        let later = began + RETURN_THRESHOLD.1;
        let told: Vec<_> = [4, 3, 4, 3, 4, 3, 4].map(|boot| hosts.observe(origin(boot, boot, 5, false), false, later)).into();
        let both = [([127, 0, 0, 4], 5).into(), ([127, 0, 0, 3], 5).into()];
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&both], "it is told once");
        assert!(hosts.duplicate_addresses(later).is_some() && hosts.duplicate_addresses(later + RETURN_THRESHOLD.1).is_none());
    }

    #[test]
    fn w10_14_detector_finds_two_hosts_when_boot_id_is_shared() {
        let began = Instant::now();
        for (is_idle, expected) in [(true, [false, false, false, false, true, false]), (false, [false; 6])] {
            let mut hosts = DuplicateDetector::default();
            let heard = |(port, address)| hosts.observe(origin(1, address, port, is_idle), true, began).is_some();
            let told: Vec<_> = (1..).zip([1, 2, 1, 2, 1, 2]).map(heard).collect();
            assert_eq!(told, expected, "without news: {is_idle}");
        }
    }

    #[test]
    fn w10_14_detector_finds_two_agents_when_takeovers_are_frequent() {
        let began = Instant::now();
        for (is_idle, expected) in [(true, [false, false, false, false, true, false]), (false, [false; 6])] {
            let mut hosts = DuplicateDetector::default();
            let heard = |n: u16| {
                let now = began + Duration::from_secs(50) * u32::from(n);
                hosts.observe(origin(1, 1, n, is_idle), true, now).is_some()
            };
            let told: Vec<_> = (1..=6).map(heard).collect();
            assert_eq!(told, expected, "without news: {is_idle}");
            assert_eq!(hosts.duplicate_addresses(began + Duration::from_mins(10)), None, "it is over");
        }
    }

    #[test]
    fn w09_detector_finds_two_agents_when_local_state_alternates() {
        let began = Instant::now();
        // The local states in turn, and the check-in at which two hosts are detected. States that are always new come
        // from one host.
        for (words, tells) in [([1, 2, 1, 2, 1, 2, 1, 2], Some(6)), ([1, 2, 3, 4, 5, 6, 7, 8], None)] {
            let mut hosts = DuplicateDetector::default();
            let heard = |(n, words): (u16, u64)| {
                let now = began + Duration::from_secs(40) * u32::from(n);
                hosts.observe(with_local_state(words, origin(1, 1, n, true)), true, now).is_some()
            };
            let told: Vec<bool> = (1..).zip(words).map(heard).collect();
            assert_eq!(told.iter().position(|told| *told).map(|at| at + 1), tells, "{words:?}");
        }
        let mut hosts = DuplicateDetector::default();
        for n in 1..=30_u8 {
            let now = began + Duration::from_secs(5) * u32::from(n);
            let words = with_local_state(u64::from(n % 2), origin(1, 1, 1, true));
            assert_eq!(hosts.observe(words, true, now), None, "one connection is one host, paused and resumed: {n}");
        }
    }

    #[test]
    fn w10_14_detector_finds_no_duplicate_when_host_reconnects_repeatedly() {
        // A full disk cannot store a new certificate. Every five minutes another one is requested, and the check-in
        // after it is idle.
        let (began, mut hosts) = (Instant::now(), DuplicateDetector::default());
        for n in 1..=100 {
            let now = began + Duration::from_mins(5) * u32::from(n);
            assert_eq!(hosts.observe(origin(1, 1, n, true), true, now), None, "{n}");
        }
    }

    #[test]
    fn w10_14_detector_finds_no_duplicate_when_signs_are_rare() {
        let (began, mut hosts) = (Instant::now(), DuplicateDetector::default());
        for n in 0..50_u32 {
            let boot = 1 + u8::try_from(n % 2).unwrap();
            let now = began + Duration::from_mins(20) * n;
            assert_eq!(hosts.observe(origin(boot, boot, 1, true), true, now), None, "after {} min", 20 * n);
        }
    }
}
