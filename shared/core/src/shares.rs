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
    /// What is kept for admins of the fleet.
    pub for_admins: u64,
}

impl Shares {
    /// An amount of which one principal has a quarter at most, and of which a sixteenth is kept for admins of the fleet.
    pub const fn of(all: u64) -> Self {
        Self { all, of_one: all / 4, for_admins: all / 16 }
    }

    /// Whether a principal may take so much more, which holds `own` of what is held by all.
    pub const fn admits(&self, asked: u64, own: u64, held: u64, is_fleet_admin: bool) -> bool {
        let most = if is_fleet_admin { self.all } else { self.all - self.for_admins };
        let has_room = held.saturating_add(asked) <= most;
        has_room && (own == 0 || own.saturating_add(asked) <= self.of_one)
    }
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
}
