//! Detects whether one host or two check in for a node: a copy of a disk or container has the identity of the original.
//!
//! Two hosts with one identity replace each other's check-in at every turn. One host never alternates: each boot has
//! its own boot id, which never returns, and a new connection comes from the same address. So there are two signs of
//! two hosts. The first sign is a *return*. A boot id returns after a check-in of another boot, or an address of the
//! same boot returns after a check-in from another address, without news and in place of a waiting check-in.
//!
//! The second sign is a *takeover*, for two agents on one machine, which share boot id and address. Each agent replaces
//! the other's waiting check-in within a minute. A single host does this only after it renewed its certificate, or
//! after its connection broke unnoticed. So the number of takeovers in a short time shows two agents.
//!
//! A check-in has *news* if it reports something new. A host that repeats the local state (pause, hold, park) before
//! its last one has no news, because a paused copy and its original contradict each other at each turn.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::intake::AgentState;

/// The number of returns that show two hosts, and the time within which they must occur. A return is a check-in with
/// the boot id or address of an earlier one, after a check-in with another. If fewer returns occur in that time, the
/// node has one host again.
const RETURN_THRESHOLD: (usize, Duration) = (3, Duration::from_mins(30));

/// The number of takeovers that show two agents, and the time within which they must occur. A takeover is a check-in
/// without news that replaces a waiting check-in from the same address. A single host whose disk is full must stay
/// below this number. Such a host cannot store a new certificate, and requests another every five minutes.
const TAKEOVER_THRESHOLD: (usize, Duration) = (4, Duration::from_mins(4));

/// The addresses of two hosts with the identity of one node. For two agents on one host, only the ports differ.
pub(crate) type HostAddresses = [SocketAddr; 2];

/// The parts of a check-in that identify its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckInOrigin {
    /// The kernel's boot id.
    pub(crate) boot_id: [u8; 16],
    /// The other end of the connection.
    pub(crate) address: SocketAddr,
    /// The hash of the local state: the pause, hold and park that were set on the host.
    local_state_hash: u64,
    /// True if the check-in reports something new apart from the local state.
    has_news: bool,
}

/// The last check-ins of a node, and the signs that two hosts send them.
#[derive(Debug, Default)]
pub(super) struct DuplicateDetector {
    last: Option<CheckInOrigin>,
    /// The last check-in before `last` that came from another boot or another address.
    previous: Option<CheckInOrigin>,
    /// The hash of the last local state that a different local state replaced.
    previous_local_state: Option<u64>,
    returns: RecentSigns,
    takeovers: RecentSigns,
    /// The addresses of the two check-ins that gave the last sign of two hosts.
    addresses: Option<HostAddresses>,
}

/// The times of the last signs of one kind, oldest first.
#[derive(Debug, Default)]
struct RecentSigns(Vec<Instant>);

impl RecentSigns {
    /// Adds a sign that occurred now. Stores only the last `count` signs.
    fn add(&mut self, (count, _): (usize, Duration), now: Instant) {
        if self.0.len() == count {
            self.0.remove(0);
        }
        self.0.push(now);
    }

    /// Returns whether `count` signs are stored, and all of them occurred less than `period` ago.
    fn is_reached(&self, (count, period): (usize, Duration), now: Instant) -> bool {
        self.0.len() == count && self.0.iter().all(|at| now.duration_since(*at) < period)
    }
}

impl CheckInOrigin {
    /// Creates the origin of a check-in with this state, which arrived from this address.
    pub(super) fn new(state: &AgentState, address: SocketAddr, has_news: bool) -> Self {
        let mut hasher = DefaultHasher::new();
        state.local_state.hash(&mut hasher);
        Self { boot_id: state.boot_id, address, local_state_hash: hasher.finish(), has_news }
    }
}

impl DuplicateDetector {
    /// Records a check-in, and returns the addresses of both hosts if this check-in is the first to show two hosts.
    /// `has_replaced` is true if the check-in replaced a waiting one.
    ///
    /// Adds a return if the boot id or the address of the same boot has changed back to the one before its last change.
    /// A return of an address must have no news and replace a waiting check-in. Adds a takeover if a check-in of the
    /// same boot and address, over another connection, has no news and replaces a waiting one.
    pub(super) fn observe(&mut self, check_in: CheckInOrigin, has_replaced: bool, now: Instant) -> Option<HostAddresses> {
        let was_detected = self.duplicate_addresses(now).is_some();
        let last = self.last.replace(check_in)?;
        let is_other_boot = last.boot_id != check_in.boot_id;
        let has_no_news = self.is_known_local_state(&last, &check_in) && !check_in.has_news;
        let has_replaced_without_news = has_replaced && has_no_news;
        if is_other_boot || last.address.ip() != check_in.address.ip() {
            // The first change of the boot or address has no earlier check-in to which it could return.
            let earlier = self.previous.replace(last)?;
            let has_returned = is_other_boot || has_replaced_without_news && earlier.address.ip() == check_in.address.ip();
            if earlier.boot_id != check_in.boot_id || !has_returned {
                return None;
            }
            self.returns.add(RETURN_THRESHOLD, now);
        } else if has_replaced_without_news && last.address != check_in.address {
            self.takeovers.add(TAKEOVER_THRESHOLD, now);
        } else {
            return None;
        }
        self.addresses = Some([last.address, check_in.address]);
        self.duplicate_addresses(now).filter(|_| !was_detected)
    }

    /// Returns whether `check_in` has the local state of the last check-in, or the different local state before it. If
    /// the state differs from the last one, stores the last one as the state before.
    fn is_known_local_state(&mut self, last: &CheckInOrigin, check_in: &CheckInOrigin) -> bool {
        last.local_state_hash == check_in.local_state_hash
            || self.previous_local_state.replace(last.local_state_hash) == Some(check_in.local_state_hash)
    }

    /// Returns the addresses from which two hosts check in, if enough signs of two hosts occurred lately.
    pub(super) fn duplicate_addresses(&self, now: Instant) -> Option<HostAddresses> {
        let is_detected = self.returns.is_reached(RETURN_THRESHOLD, now) || self.takeovers.is_reached(TAKEOVER_THRESHOLD, now);
        self.addresses.filter(|_| is_detected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the origin of a check-in from `127.0.0.ADDRESS`. A check-in is idle if it has no news.
    fn origin(boot: u8, address: u8, port: u16, is_idle: bool) -> CheckInOrigin {
        CheckInOrigin {
            boot_id: [boot; 16],
            address: ([127, 0, 0, address], port).into(),
            local_state_hash: 0,
            has_news: !is_idle,
        }
    }

    fn with_local_state(local_state_hash: u64, origin_without_state: CheckInOrigin) -> CheckInOrigin {
        CheckInOrigin { local_state_hash, ..origin_without_state }
    }

    /// A restarted host has another boot id, and the earlier one never returns. The boot ids of two hosts alternate.
    /// Three returns of a boot id show two hosts, which is reported once.
    #[test]
    fn w10_14_detector_finds_two_hosts_but_not_restart_or_reconnect() {
        let (start, mut detector) = (Instant::now(), DuplicateDetector::default());
        // Three boots, each with its own connections, some of which break.
        for (boot, port, is_idle) in [(1, 1, false), (1, 2, false), (2, 1, false), (2, 2, true), (3, 1, false), (3, 2, true)] {
            assert_eq!(detector.observe(origin(boot, boot, port, is_idle), true, start), None);
        }
        let later = start + RETURN_THRESHOLD.1;
        let detections: Vec<_> =
            [4, 3, 4, 3, 4, 3, 4].map(|boot| detector.observe(origin(boot, boot, 5, false), false, later)).into();
        let both_addresses = [([127, 0, 0, 4], 5).into(), ([127, 0, 0, 3], 5).into()];
        assert_eq!(detections.iter().flatten().collect::<Vec<_>>(), [&both_addresses], "two hosts are reported once");
        assert!(
            detector.duplicate_addresses(later).is_some() && detector.duplicate_addresses(later + RETURN_THRESHOLD.1).is_none()
        );
    }

    /// Two hosts with one boot id check in by turns, each from its own address. Without news, the third return of an
    /// address is the fifth check-in. Check-ins with news are no returns.
    #[test]
    fn w10_14_detector_finds_two_hosts_when_boot_id_is_shared() {
        let start = Instant::now();
        for (is_idle, expected) in [(true, [false, false, false, false, true, false]), (false, [false; 6])] {
            let mut detector = DuplicateDetector::default();
            let is_detected = |(port, address)| detector.observe(origin(1, address, port, is_idle), true, start).is_some();
            let detections: Vec<_> = (1..).zip([1, 2, 1, 2, 1, 2]).map(is_detected).collect();
            assert_eq!(detections, expected, "without news: {is_idle}");
        }
    }

    /// Two agents on one host check in from one address, each time over another connection. Without news, the fourth
    /// takeover within four minutes is the fifth check-in. Check-ins with news are no takeovers.
    #[test]
    fn w10_14_detector_finds_two_agents_when_takeovers_are_frequent() {
        let start = Instant::now();
        for (is_idle, expected) in [(true, [false, false, false, false, true, false]), (false, [false; 6])] {
            let mut detector = DuplicateDetector::default();
            let is_detected = |port: u16| {
                let now = start + Duration::from_secs(50) * u32::from(port);
                detector.observe(origin(1, 1, port, is_idle), true, now).is_some()
            };
            let detections: Vec<_> = (1..=6).map(is_detected).collect();
            assert_eq!(detections, expected, "without news: {is_idle}");
            assert_eq!(detector.duplicate_addresses(start + Duration::from_mins(10)), None, "the takeovers are too old");
        }
    }

    /// Two agents report different local states (such as paused and not paused) in turn. A repeated state is no news.
    #[test]
    fn w09_detector_finds_two_agents_when_local_state_alternates() {
        let start = Instant::now();
        // The local states in turn, and the check-in at which two hosts are detected. States that are always new come
        // from one host.
        for (local_states, expected) in [([1, 2, 1, 2, 1, 2, 1, 2], Some(6)), ([1, 2, 3, 4, 5, 6, 7, 8], None)] {
            let mut detector = DuplicateDetector::default();
            let is_detected = |(number, local_state): (u16, u64)| {
                let now = start + Duration::from_secs(40) * u32::from(number);
                detector.observe(with_local_state(local_state, origin(1, 1, number, true)), true, now).is_some()
            };
            let detections: Vec<bool> = (1..).zip(local_states).map(is_detected).collect();
            assert_eq!(detections.iter().position(|is_new| *is_new).map(|index| index + 1), expected, "{local_states:?}");
        }
        let mut detector = DuplicateDetector::default();
        for number in 1..=30_u8 {
            let now = start + Duration::from_secs(5) * u32::from(number);
            let check_in = with_local_state(u64::from(number % 2), origin(1, 1, 1, true));
            assert_eq!(detector.observe(check_in, true, now), None, "one connection is one host, paused and resumed: {number}");
        }
    }

    #[test]
    fn w10_14_detector_finds_no_duplicate_when_host_reconnects_repeatedly() {
        // A full disk cannot store a new certificate. Every five minutes another one is requested, and the check-in
        // after it is idle.
        let (start, mut detector) = (Instant::now(), DuplicateDetector::default());
        for number in 1..=100 {
            let now = start + Duration::from_mins(5) * u32::from(number);
            assert_eq!(detector.observe(origin(1, 1, number, true), true, now), None, "{number}");
        }
    }

    /// Two boot ids alternate every 20 minutes. That is at most two returns in 30 minutes, which is less than three.
    #[test]
    fn w10_14_detector_finds_no_duplicate_when_signs_are_rare() {
        let (start, mut detector) = (Instant::now(), DuplicateDetector::default());
        for number in 0..50_u32 {
            let boot = 1 + u8::try_from(number % 2).unwrap();
            let now = start + Duration::from_mins(20) * number;
            assert_eq!(detector.observe(origin(boot, boot, 1, true), true, now), None, "after {} min", 20 * number);
        }
    }
}
