//! How principals share what is bounded: bytes that wait for clients, places of lists and streams.
//!
//! Nobody takes more than a part of it, so that whoever takes all they can shuts out themselves alone. A part of all is kept for the admins of
//! the fleet: who has to end an attack is served.

use std::collections::BTreeMap;

use crate::object::ClusterId;

/// Who holds something of an amount that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The principal's name.
    pub name: String,
    /// The cluster that it is bound to: all of one cluster have a part together.
    pub within: Option<ClusterId>,
    /// Whether it is an admin of the fleet, for whom a part is kept.
    pub is_fleet_admin: bool,
}

/// What principals hold of an amount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    of: BTreeMap<String, u64>,
    of_cluster: BTreeMap<ClusterId, u64>,
}

/// A part of an amount that has no room for what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Which part.
    pub part: Part,
    /// What is held of it.
    pub held: u64,
    /// What may be held of it.
    pub most: u64,
}

/// A part of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// That of one principal.
    OfOne,
    /// That of all who are bound to one cluster.
    OfCluster,
    /// All of it, or for who is no admin of the fleet all that is not kept for these.
    OfAll,
}

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

    /// Which part has no room for so much more of a principal, where all hold `held` together; `None`: it may have it.
    pub fn full(&self, asked: u64, by: &Holder, holdings: &Holdings, held: u64) -> Option<Full> {
        let most = self.most(by.is_fleet_admin);
        let of_all =
            || (!self.has_room(asked, held, by.is_fleet_admin)).then_some(Full { part: Part::OfAll, held, most });
        self.full_part(asked, by, holdings).or_else(of_all)
    }

    /// The same of the parts of the principal and of its cluster alone.
    pub fn full_part(&self, asked: u64, by: &Holder, holdings: &Holdings) -> Option<Full> {
        let parts = [
            (Part::OfOne, holdings.own(&by.name), self.of_one),
            (Part::OfCluster, holdings.of_cluster(by.within), self.of_cluster),
        ];
        let full = parts.into_iter().find(|(_, held, most)| !is_within(asked, *held, *most));
        full.map(|(part, held, most)| Full { part, held, most })
    }

    const fn has_room(&self, asked: u64, held: u64, is_fleet_admin: bool) -> bool {
        held.saturating_add(asked) <= self.most(is_fleet_admin)
    }

    /// How much all may hold together when one more is asked for, by an admin of the fleet or by somebody else.
    const fn most(&self, is_fleet_admin: bool) -> u64 {
        if is_fleet_admin { self.all } else { self.all - self.for_admins }
    }

    /// Whether a principal that holds `own` may have so much more, as far as it alone is asked.
    pub const fn is_within_own(&self, asked: u64, own: u64) -> bool {
        is_within(asked, own, self.of_one)
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

/// Whether there is room for so much in a part; in one of which nothing is held, for one thing of any size.
const fn is_within(asked: u64, held: u64, most: u64) -> bool {
    held == 0 || held.saturating_add(asked) <= most
}

impl Holdings {
    /// What a principal holds.
    pub fn own(&self, name: &str) -> u64 {
        self.of.get(name).copied().unwrap_or_default()
    }

    /// What all hold who are bound to a cluster; of who is bound to none, nothing.
    fn of_cluster(&self, within: Option<ClusterId>) -> u64 {
        within.and_then(|cluster| self.of_cluster.get(&cluster)).copied().unwrap_or_default()
    }

    /// Notes that a principal holds so much in place of so much.
    pub fn change(&mut self, by: &Holder, from: u64, to: u64) {
        change(&mut self.of, by.name.clone(), from, to);
        if let Some(cluster) = by.within {
            change(&mut self.of_cluster, cluster, from, to);
        }
    }
}

/// Notes the same of one; of who holds nothing nothing is noted.
fn change<K: Ord>(held: &mut BTreeMap<K, u64>, one: K, from: u64, to: u64) {
    let own = held.get(&one).copied().unwrap_or_default().saturating_sub(from).saturating_add(to);
    if own == 0 {
        held.remove(&one);
    } else {
        held.insert(one, own);
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
    use uuid::Uuid;

    use super::*;

    fn holder(name: &str, within: Option<u128>) -> Holder {
        let within = within.map(|id| ClusterId(Uuid::from_u128(id)));
        Holder { name: name.to_owned(), within, is_fleet_admin: false }
    }

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
            let (by, mut holdings) = (Holder { is_fleet_admin, ..holder("one", None) }, Holdings::default());
            holdings.change(&by, 0, own);
            let full = shares.full(asked, &by, &holdings, held);
            assert_eq!(full.is_none(), admits, "{asked} beside {own} of {held}, admin: {is_fleet_admin}");
        }
    }

    #[test]
    fn x03_all_who_are_bound_to_one_cluster_have_half() {
        let shares = Shares::of(64);
        for (asked, of_cluster, is_within) in
            [(1, 31, true), (1, 32, false), (40, 0, true), (32, 1, false), (u64::MAX, 1, false)]
        {
            let mut holdings = Holdings::default();
            holdings.change(&holder("one", Some(1)), 0, of_cluster);
            let full = shares.full_part(asked, &holder("two", Some(1)), &holdings);
            let refusal = Full { part: Part::OfCluster, held: of_cluster, most: 32 };
            assert_eq!(full, (!is_within).then_some(refusal), "{asked} beside {of_cluster}");
            for other in [holder("two", Some(2)), holder("two", None)] {
                assert_eq!(shares.full_part(asked, &other, &holdings), None, "{other:?} is bound elsewhere");
            }
        }
    }

    #[test]
    fn x03_the_part_that_is_full_is_told_with_what_is_held_of_it_and_what_may_be() {
        let (shares, one, mut holdings) = (Shares::of(64), holder("one", Some(1)), Holdings::default());
        let root = Holder { is_fleet_admin: true, ..holder("root", None) };
        for (by, own, held, part, of_part, most) in [
            (&one, 16, 16, Part::OfOne, 16, 16),
            (&one, 1, 60, Part::OfAll, 60, 60),
            (&root, 1, 64, Part::OfAll, 64, 64),
        ] {
            holdings.change(by, 0, own);
            assert_eq!(shares.full(1, by, &holdings, held), Some(Full { part, held: of_part, most }), "{by:?}");
            holdings.change(by, own, 0);
        }
        assert_eq!(holdings, Holdings::default(), "of who holds nothing nothing is noted");
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
