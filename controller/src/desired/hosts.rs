//! Whether one host speaks for a node, or two: a disk or container that was copied has its identity too.
//!
//! Each of the two takes the other's place at every check-in. One host never goes back and forth: each boot has its own boot id, which
//! never returns, and a new connection comes from the same address. So the signs are returns: of a boot id, or of an address of the same
//! boot that takes a held check-in's place without news, after another one in between. Two that share both, as
//! two agents of one machine, are told by how often they do that: each answers the other within a minute, and one host takes its own
//! check-in's place without news when it has a new certificate, or its connection broke unseen. It is no news where a host says again what
//! was said before the last words (pause, hold, park): a copy that was paused and its original contradict each other at each turn.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::intake::Said;

/// What tells of two hosts: so many signs within this time. After so long without as many there is one host again.
const RETURNS: (usize, Duration) = (3, Duration::from_mins(30));

/// The same, of check-ins without news from one address in the place of held ones. A host whose disk is full keeps no new certificate,
/// and asks for another every five minutes.
const TAKEN: (usize, Duration) = (4, Duration::from_mins(4));

/// From where a node's two hosts check in.
pub(crate) type Addresses = [SocketAddr; 2];

/// One check-in, as far as it tells who speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker {
    /// The kernel's boot id.
    pub(crate) boot_id: [u8; 16],
    /// The other end of the connection.
    pub(crate) address: SocketAddr,
    /// The hash of its pause, hold and park.
    words: u64,
    /// It has news beside these.
    says_more: bool,
}

/// Who spoke for a node.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    last: Option<Speaker>,
    /// The last one that was of another boot, or elsewhere.
    before: Option<Speaker>,
    /// The last words that were others.
    other_words: Option<u64>,
    returns: Signs,
    taken: Signs,
    /// Between whom the last one was.
    between: Option<Addresses>,
}

/// When the last signs of a kind were.
#[derive(Debug, Default)]
struct Signs(Vec<Instant>);

impl Signs {
    fn add(&mut self, (count, _): (usize, Duration), now: Instant) {
        if self.0.len() == count {
            self.0.remove(0);
        }
        self.0.push(now);
    }

    fn tell(&self, (count, within): (usize, Duration), now: Instant) -> bool {
        self.0.len() == count && self.0.iter().all(|at| now.duration_since(*at) < within)
    }
}

impl Speaker {
    pub(super) fn new(said: &Said, address: SocketAddr, says_more: bool) -> Self {
        let mut words = DefaultHasher::new();
        said.local.hash(&mut words);
        Self { boot_id: said.boot_id, address, words: words.finish(), says_more }
    }
}

impl Hosts {
    /// Takes in a check-in, which may have taken the place of one that was held. Gives both addresses when it first tells of two hosts.
    pub(super) fn hear(&mut self, speaker: Speaker, took_place: bool, now: Instant) -> Option<Addresses> {
        let was_told = self.two(now).is_some();
        let last = self.last.replace(speaker)?;
        let is_other_boot = last.boot_id != speaker.boot_id;
        let says_nothing_new = self.said_before(&last, &speaker) && !speaker.says_more;
        let takes_place = took_place && says_nothing_new;
        if is_other_boot || last.address.ip() != speaker.address.ip() {
            let before = self.before.replace(last)?;
            let returns = is_other_boot || takes_place && before.address.ip() == speaker.address.ip();
            if before.boot_id != speaker.boot_id || !returns {
                return None;
            }
            self.returns.add(RETURNS, now);
        } else if takes_place && last.address != speaker.address {
            self.taken.add(TAKEN, now);
        } else {
            return None;
        }
        self.between = Some([last.address, speaker.address]);
        self.two(now).filter(|_| !was_told)
    }

    /// Whether the words are the last ones, or those before them.
    fn said_before(&mut self, last: &Speaker, speaker: &Speaker) -> bool {
        last.words == speaker.words || self.other_words.replace(last.words) == Some(speaker.words)
    }

    /// From where two hosts check in, if they do.
    pub(super) fn two(&self, now: Instant) -> Option<Addresses> {
        let is_told = self.returns.tell(RETURNS, now) || self.taken.tell(TAKEN, now);
        self.between.filter(|_| is_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaker(boot: u8, address: u8, port: u16, is_idle: bool) -> Speaker {
        Speaker { boot_id: [boot; 16], address: ([127, 0, 0, address], port).into(), words: 0, says_more: !is_idle }
    }

    fn saying(words: u64, speaker: Speaker) -> Speaker {
        Speaker { words, ..speaker }
    }

    #[test]
    fn w10_14_two_hosts_are_told_from_one_that_starts_anew_or_reconnects() {
        let (began, mut hosts) = (Instant::now(), Hosts::default());
        // Three boots, each with connections of its own, and ones that break.
        for (boot, port, is_idle) in
            [(1, 1, false), (1, 2, false), (2, 1, false), (2, 2, true), (3, 1, false), (3, 2, true)]
        {
            assert_eq!(hosts.hear(speaker(boot, boot, port, is_idle), true, began), None);
        }
        let later = began + RETURNS.1;
        let told: Vec<_> =
            [4, 3, 4, 3, 4, 3, 4].map(|boot| hosts.hear(speaker(boot, boot, 5, false), false, later)).into();
        let both = [([127, 0, 0, 4], 5).into(), ([127, 0, 0, 3], 5).into()];
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&both], "it is told once");
        assert!(hosts.two(later).is_some() && hosts.two(later + RETURNS.1).is_none());
    }

    #[test]
    fn w10_14_two_hosts_on_one_kernel_are_told_by_the_places_that_they_take() {
        let began = Instant::now();
        for (is_idle, expected) in [(true, [false, false, false, false, true, false]), (false, [false; 6])] {
            let mut hosts = Hosts::default();
            let heard = |(port, address)| hosts.hear(speaker(1, address, port, is_idle), true, began).is_some();
            let told: Vec<_> = (1..).zip([1, 2, 1, 2, 1, 2]).map(heard).collect();
            assert_eq!(told, expected, "without news: {is_idle}");
        }
    }

    #[test]
    fn w10_14_two_agents_of_one_machine_are_told_by_how_often_they_take_each_others_place() {
        let began = Instant::now();
        for (is_idle, expected) in [(true, [false, false, false, false, true, false]), (false, [false; 6])] {
            let mut hosts = Hosts::default();
            let heard = |n: u16| {
                let now = began + Duration::from_secs(50) * u32::from(n);
                hosts.hear(speaker(1, 1, n, is_idle), true, now).is_some()
            };
            let told: Vec<_> = (1..=6).map(heard).collect();
            assert_eq!(told, expected, "without news: {is_idle}");
            assert_eq!(hosts.two(began + Duration::from_mins(10)), None, "it is over");
        }
    }

    #[test]
    fn w09_two_agents_of_which_one_is_paused_are_told_by_the_words_that_come_back() {
        let began = Instant::now();
        // What is said in turn, and the check-in that tells. New words each time are one host's.
        for (words, tells) in [([1, 2, 1, 2, 1, 2, 1, 2], Some(6)), ([1, 2, 3, 4, 5, 6, 7, 8], None)] {
            let mut hosts = Hosts::default();
            let heard = |(n, words): (u16, u64)| {
                let now = began + Duration::from_secs(40) * u32::from(n);
                hosts.hear(saying(words, speaker(1, 1, n, true)), true, now).is_some()
            };
            let told: Vec<bool> = (1..).zip(words).map(heard).collect();
            assert_eq!(told.iter().position(|told| *told).map(|at| at + 1), tells, "{words:?}");
        }
        let mut hosts = Hosts::default();
        for n in 1..=30_u8 {
            let now = began + Duration::from_secs(5) * u32::from(n);
            let words = saying(u64::from(n % 2), speaker(1, 1, 1, true));
            assert_eq!(hosts.hear(words, true, now), None, "one connection is one host, paused and resumed: {n}");
        }
    }

    #[test]
    fn w10_14_one_host_that_connects_anew_again_and_again_is_one() {
        // A full disk keeps no new certificate: every five minutes another is asked for, and the check-in after it is idle.
        let (began, mut hosts) = (Instant::now(), Hosts::default());
        for n in 1..=100 {
            let now = began + Duration::from_mins(5) * u32::from(n);
            assert_eq!(hosts.hear(speaker(1, 1, n, true), true, now), None, "{n}");
        }
    }

    #[test]
    fn w10_14_three_signs_tell_of_two_hosts_within_half_an_hour_alone() {
        let (began, mut hosts) = (Instant::now(), Hosts::default());
        for n in 0..50_u32 {
            let boot = 1 + u8::try_from(n % 2).unwrap();
            let now = began + Duration::from_mins(20) * n;
            assert_eq!(hosts.hear(speaker(boot, boot, 1, true), true, now), None, "after {} min", 20 * n);
        }
    }
}
