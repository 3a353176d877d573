//! How principals share what is bounded: bytes that wait for clients, places of lists and streams.
//!
//! Nobody takes more than a part of it, so that whoever takes all they can shuts out themselves alone. A part of all is kept for the admins of
//! the fleet: who has to end an attack is served.

/// An amount that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// All of it.
    pub all: u64,
    /// The most of one principal. Who holds nothing may take one thing that is larger, as far as there is room.
    pub of_one: u64,
    /// The most of all who are bound to one cluster together; likewise. Whoever is an admin there makes principals.
    pub of_cluster: u64,
    /// What is kept for admins of the fleet.
    pub for_admins: u64,
}

impl Shares {
    /// An amount of which one principal has a quarter at most, all who are bound to one cluster have half, and of which a sixteenth is kept for
    /// admins of the fleet.
    pub const fn of(all: u64) -> Self {
        Self { all, of_one: all / 4, of_cluster: all / 2, for_admins: all / 16 }
    }

    /// Whether a principal may take so much more, which holds `own` of what is held by all.
    pub const fn admits(&self, asked: u64, own: u64, held: u64, is_fleet_admin: bool) -> bool {
        self.has_room(asked, held, is_fleet_admin) && self.is_within_own(asked, own)
    }

    const fn has_room(&self, asked: u64, held: u64, is_fleet_admin: bool) -> bool {
        held.saturating_add(asked) <= self.most(is_fleet_admin)
    }

    /// How much all may hold together when one more is asked for, by an admin of the fleet or by somebody else.
    pub const fn most(&self, is_fleet_admin: bool) -> u64 {
        if is_fleet_admin { self.all } else { self.all - self.for_admins }
    }

    /// Whether somebody may have so much more who is bound to a cluster of which all hold so much together.
    pub const fn is_within_cluster(&self, asked: u64, of_cluster: u64) -> bool {
        of_cluster == 0 || of_cluster.saturating_add(asked) <= self.of_cluster
    }

    /// Whether a principal that holds `own` may have so much more, as far as it alone is asked.
    pub const fn is_within_own(&self, asked: u64, own: u64) -> bool {
        own == 0 || own.saturating_add(asked) <= self.of_one
    }

    /// Which of those that wait is served next, when all hold `held` together. They are given in the order in which they came.
    ///
    /// It is the one whose principal holds least, and of these the first that came; where there is no room for it, nobody overtakes it but an admin of
    /// the fleet. Whose principal holds its part already is passed over.
    pub fn next(&self, held: u64, waiting: &[Waiting]) -> Option<usize> {
        let least = |is_eligible: fn(&Waiting) -> bool| {
            let eligible = waiting.iter().enumerate().filter(|(_, one)| is_eligible(one));
            let within = eligible.filter(|(_, one)| self.is_within_own(one.asked, one.own));
            within.min_by_key(|(place, one)| (one.own, *place))
        };
        let ways: [fn(&Waiting) -> bool; 2] = [|_| true, |one| one.is_fleet_admin];
        let has_room = |(_, one): &(usize, &Waiting)| self.has_room(one.asked, held, one.is_fleet_admin);
        ways.into_iter().filter_map(least).find(has_room).map(|(place, _)| place)
    }
}

/// Somebody who waits for a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// How much of it.
    pub asked: u64,
    /// How much their principal holds.
    pub own: u64,
    /// Whether they are an admin of the fleet.
    pub is_fleet_admin: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_a_part_and_the_last_part_is_for_admins() {
        let shares = Shares::of(64);
        for (asked, own, held, is_fleet_admin, admits) in [
            (1, 0, 0, false, true),
            (1, 15, 15, false, true),
            (1, 16, 16, false, false),
            (20, 0, 0, false, true),
            (20, 1, 1, false, false),
            (60, 0, 0, false, true),
            (61, 0, 0, false, false),
            (61, 0, 0, true, true),
            (1, 0, 60, false, false),
            (4, 0, 60, true, true),
            (5, 0, 60, true, false),
            (1, 16, 60, true, false),
            (u64::MAX, 0, 1, true, false),
        ] {
            let found = shares.admits(asked, own, held, is_fleet_admin);
            assert_eq!(found, admits, "{asked} beside {own} of {held}, admin: {is_fleet_admin}");
        }
    }

    #[test]
    fn x03_all_who_are_bound_to_one_cluster_have_half() {
        let shares = Shares::of(64);
        for (asked, of_cluster, is_within) in
            [(1, 31, true), (1, 32, false), (40, 0, true), (32, 1, false), (u64::MAX, 1, false)]
        {
            assert_eq!(shares.is_within_cluster(asked, of_cluster), is_within, "{asked} beside {of_cluster}");
        }
        assert_eq!((shares.most(false), shares.most(true)), (60, 64));
    }

    #[test]
    fn of_those_that_wait_the_one_that_holds_least_is_next_and_is_overtaken_by_admins_alone() {
        let shares = Shares::of(64);
        let one = |asked, own| Waiting { asked, own, is_fleet_admin: false };
        let admin = |asked, own| Waiting { asked, own, is_fleet_admin: true };
        for (held, waiting, next) in [
            (0, vec![], None),
            (10, vec![one(5, 8), one(5, 2), one(5, 2)], Some(1)),
            (10, vec![one(5, 0), one(5, 0)], Some(0)),
            // The one that holds nothing waits for 8; one of 1 would fit.
            (53, vec![one(1, 10), one(8, 0)], None),
            (53, vec![one(1, 10), one(8, 0), admin(8, 8)], Some(2)),
            (57, vec![one(1, 10), one(8, 0), admin(8, 8)], None),
            // Nothing more of its own.
            (20, vec![one(4, 14), one(2, 14)], Some(1)),
            (20, vec![one(4, 14)], None),
        ] {
            assert_eq!(shares.next(held, &waiting), next, "{held} {waiting:?}");
        }
    }
}
