//! Whether one host speaks for a node, or two: a disk or container that was copied has its identity too.
//!
//! Each of the two takes the other's place at every check-in. A host that only started anew names another boot id once and never
//! goes back to the one before. One whose connection broke takes its own place once. So the signs are counted: a boot id that comes
//! back, and a check-in without news that takes the place of one that is held on another connection.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// So many signs tell of two hosts.
const SIGNS: u32 = 3;

/// After so long without a sign there is one host again.
const OVER: Duration = Duration::from_mins(30);

/// From where a node's two hosts check in.
pub(crate) type Addresses = [SocketAddr; 2];

/// One check-in, as far as it tells who speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker {
    /// The kernel's boot id.
    pub(crate) boot_id: [u8; 16],
    /// The other end of the connection.
    pub(crate) address: SocketAddr,
    /// It says nothing new.
    pub(crate) is_idle: bool,
}

/// Who spoke for a node.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    last: Option<Speaker>,
    /// The last one of the boot id before.
    before: Option<Speaker>,
    signs: u32,
    /// When the last sign was, and between whom.
    sign: Option<(Instant, Addresses)>,
}

impl Hosts {
    /// Takes in a check-in, which may have taken the place of one that was held. Gives both addresses when it first tells of two hosts.
    pub(super) fn hear(&mut self, speaker: Speaker, took_place: bool, now: Instant) -> Option<Addresses> {
        let last = self.last.replace(speaker)?;
        let is_other_boot = last.boot_id != speaker.boot_id;
        let came_back = is_other_boot && self.before.is_some_and(|before| before.boot_id == speaker.boot_id);
        if is_other_boot {
            self.before = Some(last);
        }
        let is_elsewhere = took_place && speaker.is_idle && last.address != speaker.address;
        if !came_back && !is_elsewhere {
            return None;
        }
        if self.sign.is_some_and(|(at, _)| now.duration_since(at) >= OVER) {
            self.signs = 0;
        }
        self.signs += 1;
        let addresses = [last.address, speaker.address];
        self.sign = Some((now, addresses));
        (self.signs == SIGNS).then_some(addresses)
    }

    /// From where two hosts check in, if they do.
    pub(super) fn two(&self, now: Instant) -> Option<Addresses> {
        let (at, addresses) = self.sign?;
        (self.signs >= SIGNS && now.duration_since(at) < OVER).then_some(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaker(boot: u8, port: u16, is_idle: bool) -> Speaker {
        Speaker { boot_id: [boot; 16], address: ([127, 0, 0, boot], port).into(), is_idle }
    }

    #[test]
    fn w10_14_two_hosts_are_told_from_one_that_starts_anew_or_reconnects() {
        let (began, mut hosts) = (Instant::now(), Hosts::default());
        // Three boots, each with connections of its own, and one that breaks.
        for (boot, port) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)] {
            assert_eq!(hosts.hear(speaker(boot, port, false), true, began), None);
        }
        assert_eq!(hosts.hear(speaker(3, 2, true), true, began), None, "a connection that broke is one sign");
        assert_eq!(hosts.two(began), None);

        let later = began + OVER;
        let told: Vec<_> = [4, 3, 4, 3, 4, 3, 4].map(|boot| hosts.hear(speaker(boot, 5, false), false, later)).into();
        let both = [([127, 0, 0, 4], 5).into(), ([127, 0, 0, 3], 5).into()];
        assert_eq!(told.iter().flatten().collect::<Vec<_>>(), [&both], "it is told once");
        assert!(hosts.two(later).is_some() && hosts.two(later + OVER).is_none());
    }

    #[test]
    fn w10_14_two_hosts_on_one_kernel_are_told_by_the_places_that_they_take() {
        let (began, mut hosts) = (Instant::now(), Hosts::default());
        let told: Vec<_> = (1..=5).map(|port| hosts.hear(speaker(1, port, true), true, began).is_some()).collect();
        assert_eq!(told, [false, false, false, true, false]);
        let mut one = Hosts::default();
        assert!((1..=9).all(|port| one.hear(speaker(1, port, false), true, began).is_none()), "a host with news");
    }
}
