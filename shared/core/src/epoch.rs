//! Epochs of a store, and how what a host holds stands to it.
//!
//! Revisions count within an epoch. A store that was restored from an older copy gives revisions again that hosts have seen, for other
//! states: its hosts hold later ones than it has, and refuse what it signs. So nothing is told to them until an admin ends the epoch. The
//! next one begins at the store's revision, and a signed change leads each host from the epoch that it knows into it.
//!
//! ```text
//!   held: epoch, revision            store: epoch line, what it told the host last
//!        │
//!        ├─ the present epoch ──── revision ≤ told ──▶ Follows
//!        │                    └─── revision > told ──▶ Ahead      (restored from an older copy)
//!        ├─ one that was ended ────────────────────▶ Ended      (follows by a signed change)
//!        ├─ unknown, and began before the present ─▶ Ended      (an admin led the hosts on since then)
//!        └─ any other ───────────────────────────▶ Unknown    (another store, which may be the later one)
//! ```
//!
//! What a host was told last is stored for each host, before it is told. The store's own revision says nothing of that: it moves on with
//! each write, and would pass the revision of a host that another copy of the store told something else.
//!
//! An epoch but the first says in its id when it began, and is later than all that its store knew (docs/adr/0015). So each host goes from
//! epoch to later epoch, and a store that was left behind leads nobody back.

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// The most epochs that a line remembers. A host of the first one that was away for longer than so many restores has to join anew.
const MAX_ENDED: usize = 1024;
/// The last time that the id of an epoch can say, in milliseconds since 1970.
const LAST_MS: u64 = (1 << 48) - 1;
/// Until when nothing is sent to a host.
const UNTIL: &str = "nothing is sent to the host until an admin runs: stemma-controller resume-fleet";

/// The epochs of a store: the present one, and those that it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochLine {
    /// The present one.
    pub now: Uuid,
    /// The revision at which it began.
    pub at: u64,
    /// Why, for people; empty for the first one.
    pub reason: String,
    /// Those that ended, in their order.
    pub ended: Vec<Uuid>,
    /// Whether nobody is told anything before an admin says so: the store was restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// A state by the store's count: what a host holds, as it says itself, or what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRevision {
    /// The epoch.
    pub epoch: Uuid,
    /// The revision in it.
    pub revision: u64,
}

impl HeldRevision {
    /// Whether a state is of the same epoch and no later than this one.
    pub fn covers(self, state: Self) -> bool {
        self.epoch == state.epoch && state.revision <= self.revision
    }
}

/// What a host holds, beside what the store told it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldAndTold {
    /// What it holds, as it says itself.
    pub held: HeldRevision,
    /// What the store told it last, or a later revision than that; `None`: the store has no record of that, since an earlier version kept none.
    pub told: Option<HeldRevision>,
}

/// How what a host holds stands to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds nothing, or a state of the present epoch that this store may have told it: it can be told all.
    Follows,
    /// It holds a state of an epoch that ended here, or that began before the present one, to which an admin led the hosts: it can be told
    /// all, with the signed change.
    Ended,
    /// It holds a later revision of the present epoch than this store told it: another copy of the store did.
    Ahead,
    /// It holds a state of an epoch that the store knows nothing of, and that may be a later one.
    Unknown,
    /// The store was restored: nobody is told anything before an admin says so, whoever joins meanwhile neither.
    Waits,
}

impl EpochLine {
    /// The line of a new store.
    pub const fn first(epoch: Uuid) -> Self {
        Self { now: epoch, at: 0, reason: String::new(), ended: Vec::new(), waits: false }
    }

    /// How what a host holds stands to a store that has come to the revision `head`; `None`: it holds nothing.
    pub fn standing(&self, host: Option<HeldAndTold>, head: u64) -> Standing {
        match host {
            _ if self.waits => Standing::Waits,
            None => Standing::Follows,
            Some(host) if self.may_have_told(host, head) => Standing::Follows,
            Some(HeldAndTold { held, .. }) if held.epoch == self.now => Standing::Ahead,
            Some(HeldAndTold { held, .. }) if self.ended.contains(&held.epoch) || self.is_after(held.epoch) => {
                Standing::Ended
            }
            Some(_) => Standing::Unknown,
        }
    }

    /// Whether what a host holds is of the present epoch, and may be what this store told it. Without a record of that, whatever the store has come
    /// to may be.
    fn may_have_told(&self, HeldAndTold { held, told }: HeldAndTold, head: u64) -> bool {
        let last = told.unwrap_or(HeldRevision { epoch: self.now, revision: head });
        held.epoch == self.now && last.covers(held)
    }

    /// Whether an admin led the hosts into the present epoch after that one began. What they said then holds for each host of that epoch,
    /// whenever it comes. An epoch that began later is another matter: its store may be the one that took over from this one.
    fn is_after(&self, epoch: Uuid) -> bool {
        let is_resumed = !self.waits && !self.ended.is_empty();
        is_resumed && began_ms(epoch).is_some_and(|began| began_ms(self.now) > Some(began))
    }

    /// The id of an epoch that begins now (milliseconds since 1970): it is later than each that ended here, the present one, and those that
    /// hosts hold and that are not known here, whatever the clock says.
    pub fn id_after(&self, now_ms: u64, random: &[u8; 10], unknown: impl IntoIterator<Item = Uuid>) -> Uuid {
        let earlier = self.ended.iter().copied().chain([self.now]).chain(unknown).filter_map(began_ms).max();
        let begins_ms = earlier.map_or(now_ms, |earlier| now_ms.max(earlier.saturating_add(1)));
        Builder::from_unix_timestamp_millis(begins_ms.min(LAST_MS), random).into_uuid()
    }

    /// The epoch from which hosts are led on: of a store that was restored and waits, that of its backup.
    pub fn led_from(&self) -> Uuid {
        self.ended.last().copied().filter(|_| self.waits).unwrap_or(self.now)
    }

    /// Why nothing is sent to a host that holds this, for people.
    pub fn why_untold(&self, host: HeldAndTold, head: u64) -> String {
        let HeldRevision { epoch, revision } = host.held;
        let holds = format!("its host holds revision {revision} of another store (epoch {epoch})");
        let here = format!("at revision {head} of epoch {}", self.now);
        match self.standing(Some(host), head) {
            Standing::Waits => format!("{holds}, and this one was restored from a backup and is {here}; {UNTIL}"),
            Standing::Unknown => format!(
                "{holds}, of which this one, {here}, knows nothing: that store was restored later or is in use beside this one; {UNTIL}"
            ),
            Standing::Ahead => {
                let last = host.told.filter(|told| told.epoch == self.now && revision <= head);
                let store = match last {
                    Some(told) => {
                        format!("is at revision {head} and told it nothing later than revision {}", told.revision)
                    }
                    None if revision <= head => format!("is at revision {head} and told it nothing of this epoch"),
                    None => format!("has come to revision {head} of it"),
                };
                format!(
                    "its host holds revision {revision} of epoch {epoch}, and the store {store}: it was restored from an older copy; {UNTIL}"
                )
            }
            Standing::Follows | Standing::Ended => format!("{holds}, and is led to this one when it checks in next"),
        }
    }

    /// Why nothing is sent to a host that has not said what it holds, for people; `None` where it is told.
    pub fn why_all_wait(&self) -> Option<String> {
        self.waits.then(|| format!("the store was restored from a backup and waits; {UNTIL}"))
    }

    /// The line after the present epoch was ended at a revision, and with it the epochs that hosts hold and that are not known here.
    #[must_use]
    pub fn next(&self, epoch: Uuid, at: u64, reason: &str, unknown: impl IntoIterator<Item = Uuid>) -> Self {
        let mut ended = self.ended.clone();
        for one in unknown.into_iter().chain([self.now]) {
            if one != epoch && !ended.contains(&one) {
                ended.push(one);
            }
        }
        ended.drain(..ended.len().saturating_sub(MAX_ENDED));
        Self { now: epoch, at, reason: reason.to_owned(), ended, waits: false }
    }

    /// The line of a store that was restored from a backup: in another epoch, which waits.
    #[must_use]
    pub fn restored(&self, epoch: Uuid, at: u64, reason: &str) -> Self {
        Self { waits: true, ..self.next(epoch, at, reason, []) }
    }

    /// The line after an admin said that hosts may follow: it waits no longer, or another epoch began. The epochs that hosts hold and that are
    /// not known here end with it. Where one of these is later than that of a store that waits, or is that one, which another copy of this store
    /// led hosts into, another one begins there too: hosts go to later epochs alone. `unknown`: all that hosts hold which are told nothing.
    #[must_use]
    pub fn resumed(&self, epoch: Uuid, at: u64, reason: &str, unknown: impl IntoIterator<Item = Uuid>) -> Self {
        let unknown: Vec<Uuid> = unknown.into_iter().collect();
        let is_later = |one: &Uuid| began_ms(*one).is_some_and(|began| began_ms(self.now) <= Some(began));
        if !self.waits || unknown.iter().any(is_later) {
            return self.next(epoch, at, reason, unknown);
        }
        let known = self.next(self.now, at, reason, unknown);
        Self { ended: known.ended, waits: false, ..self.clone() }
    }
}

impl Standing {
    /// Whether the host can be told what it is to be.
    pub const fn can_be_told(self) -> bool {
        matches!(self, Self::Follows | Self::Ended)
    }
}

/// When an epoch began, in milliseconds since 1970; `None` of a first one, which does not say so.
fn began_ms(epoch: Uuid) -> Option<u64> {
    if epoch.get_version_num() != 7 {
        return None;
    }
    u64::try_from(epoch.as_u128() >> 80).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Uuid = Uuid::from_u128(1);
    const SECOND: Uuid = Uuid::from_u128(2);
    const OTHER: Uuid = Uuid::from_u128(3);

    /// A host that holds this, of which the store has no record of what it told it.
    fn held(epoch: Uuid, revision: u64) -> HeldAndTold {
        HeldAndTold { held: HeldRevision { epoch, revision }, told: None }
    }

    /// The same, of which it has one.
    fn held_and_told(held: (Uuid, u64), told: (Uuid, u64)) -> HeldAndTold {
        let [held, told] = [held, told].map(|(epoch, revision)| HeldRevision { epoch, revision });
        HeldAndTold { held, told: Some(told) }
    }

    #[test]
    fn a_host_is_ahead_of_a_store_whose_revision_it_has_passed() {
        let line = EpochLine::first(FIRST);
        for (holds, standing) in [
            (None, Standing::Follows),
            (Some(held(FIRST, 1)), Standing::Follows),
            (Some(held(FIRST, 9)), Standing::Follows),
            (Some(held(FIRST, 10)), Standing::Ahead),
            (Some(held(SECOND, 1)), Standing::Unknown),
        ] {
            assert_eq!(line.standing(holds, 9), standing, "{holds:?}");
        }
    }

    #[test]
    fn x02_a_host_stays_ahead_of_a_store_that_passed_its_revision_and_never_told_it() {
        let line = EpochLine::first(FIRST).next(SECOND, 9, "restored", []);
        for (holds, told, standing) in [
            ((SECOND, 17), (SECOND, 16), Standing::Ahead),
            ((SECOND, 17), (SECOND, 17), Standing::Follows),
            ((SECOND, 12), (SECOND, 17), Standing::Follows),
            ((SECOND, 10), (FIRST, 17), Standing::Ahead),
            ((FIRST, 17), (FIRST, 12), Standing::Ended),
            ((OTHER, 17), (SECOND, 17), Standing::Unknown),
        ] {
            let host = held_and_told(holds, told);
            for head in [9, 16, 17, 1_000] {
                assert_eq!(line.standing(Some(host), head), standing, "{host:?} at {head}");
            }
        }
        let said = line.why_untold(held_and_told((SECOND, 17), (SECOND, 12)), 46);
        assert!(said.contains("and the store is at revision 46 and told it nothing later than revision 12"), "{said}");
        let said = line.why_untold(held_and_told((SECOND, 17), (FIRST, 12)), 46);
        assert!(said.contains("and the store is at revision 46 and told it nothing of this epoch"), "{said}");
    }

    /// The store waits, so it led nobody into its epoch: a copy of it did.
    #[test]
    fn x02_a_copy_of_a_waiting_store_goes_on_in_an_epoch_of_its_own_where_hosts_hold_that_of_the_other() {
        let waits = EpochLine::first(FIRST).restored(began(2_000), 9, "restored");
        let next = waits.id_after(1_000, &[4; 10], [waits.now]);
        let resumed = waits.resumed(next, 12, "resumed", [waits.now]);
        assert_eq!((resumed.now, resumed.waits), (next, false));
        assert_eq!(resumed.standing(Some(held(waits.now, 40)), 12), Standing::Ended);
    }

    #[test]
    fn hosts_of_each_epoch_that_ended_follow_whatever_they_hold() {
        let line = EpochLine::first(FIRST).next(SECOND, 9, "restored", [OTHER]);
        assert_eq!((line.now, line.at, line.ended.as_slice()), (SECOND, 9, &[OTHER, FIRST][..]));
        for (holds, standing) in [
            (Some(held(FIRST, 10_000)), Standing::Ended),
            (Some(held(OTHER, 1)), Standing::Ended),
            (Some(held(SECOND, 9)), Standing::Follows),
            (Some(held(SECOND, 10)), Standing::Ahead),
            (Some(held(Uuid::from_u128(4), 1)), Standing::Unknown),
        ] {
            assert_eq!(line.standing(holds, 9), standing, "{holds:?}");
            assert_eq!(standing.can_be_told(), matches!(standing, Standing::Follows | Standing::Ended));
        }
        let again = line.next(Uuid::from_u128(4), 12, "restored", [FIRST]);
        assert_eq!(again.ended, [OTHER, FIRST, SECOND], "each once");
    }

    #[test]
    fn after_a_restore_nobody_is_told_before_an_admin_says_so() {
        let line = EpochLine::first(FIRST).restored(SECOND, 9, "restored");
        for holds in [Some(held(FIRST, 1)), Some(held(SECOND, 1)), Some(held(OTHER, 1)), None] {
            assert_eq!(line.standing(holds, 9), Standing::Waits, "{holds:?}");
        }
        let resumed = line.resumed(Uuid::from_u128(4), 12, "again", [OTHER, FIRST]);
        assert_eq!((resumed.now, resumed.at, resumed.waits), (SECOND, 9, false), "its own epoch has begun already");
        for holds in [Some(held(FIRST, 100)), Some(held(OTHER, 100))] {
            assert_eq!(resumed.standing(holds, 9), Standing::Ended, "{holds:?}");
        }
        let ahead = resumed.resumed(Uuid::from_u128(4), 12, "again", [SECOND]);
        assert_eq!((ahead.now, ahead.at), (Uuid::from_u128(4), 12));
    }

    /// An epoch that began at this time.
    fn began(at_ms: u64) -> Uuid {
        EpochLine::first(FIRST).id_after(at_ms, &[9; 10], [])
    }

    #[test]
    fn x02_an_admin_who_led_hosts_on_did_so_for_all_earlier_epochs_and_for_no_later_one() {
        let restored = EpochLine::first(FIRST).restored(began(2_000), 9, "restored");
        for holds in [began(1_000), began(3_000), FIRST] {
            assert_eq!(restored.standing(Some(held(holds, 1)), 9), Standing::Waits, "nobody has said so yet");
        }
        let line = restored.resumed(began(2_500), 12, "resumed", []);
        assert_eq!(line.now, began(2_000));
        for (holds, standing) in [
            (began(1_999), Standing::Ended),
            (began(2_001), Standing::Unknown),
            (EpochLine::first(FIRST).id_after(2_000, &[8; 10], []), Standing::Unknown),
            (OTHER, Standing::Unknown),
            (FIRST, Standing::Ended),
        ] {
            assert_eq!(line.standing(Some(held(holds, 100)), 9), standing, "{holds}");
        }
        let never = EpochLine::first(began(2_000));
        assert_eq!(never.standing(Some(held(began(1_000), 1)), 9), Standing::Unknown, "no admin led anybody here");
    }

    /// Whatever their clocks say: each epoch is later than all that its store and its hosts knew, so that a machine which comes back with an
    /// earlier one leads none of them back.
    #[test]
    fn x02_a_store_that_was_left_behind_leads_no_host_back() {
        let behind = EpochLine::first(FIRST).restored(began(5_000), 9, "restored").resumed(OTHER, 9, "", []);
        for slow_clock_ms in [0, 4_000, 5_000, 6_000] {
            // Restored from a backup of that store, which took over from it.
            let next = behind.restored(behind.id_after(slow_clock_ms, &[3; 10], []), 20, "restored");
            assert_eq!(behind.standing(Some(held(next.now, 21)), 10), Standing::Unknown, "{slow_clock_ms}");
            // From an older backup, which does not know of it, while its hosts do.
            let older = EpochLine::first(FIRST);
            let older = older.restored(older.id_after(slow_clock_ms, &[6; 10], []), 9, "restored");
            let other = older.id_after(slow_clock_ms, &[4; 10], [behind.now]);
            let resumed = older.resumed(other, 12, "resumed", [behind.now]);
            assert_eq!(behind.standing(Some(held(resumed.now, 13)), 10), Standing::Unknown, "{slow_clock_ms}");
            assert_eq!(resumed.standing(Some(held(behind.now, 10)), 13), Standing::Ended, "{slow_clock_ms}");
        }
    }

    #[test]
    fn x02_a_host_that_names_an_epoch_of_the_far_future_ends_no_order() {
        let far = began(u64::MAX);
        let line = EpochLine::first(FIRST).restored(began(1_000), 9, "restored");
        let resumed = line.resumed(line.id_after(2_000, &[3; 10], [far]), 12, "resumed", [far]);
        assert_eq!(resumed.standing(Some(held(far, 1)), 12), Standing::Ended, "it was there when the admin said so");
        let other = EpochLine::first(FIRST).id_after(u64::MAX, &[5; 10], []);
        assert_eq!(resumed.standing(Some(held(other, 1)), 12), Standing::Unknown, "not before it");
        assert_eq!(resumed.standing(Some(held(began(3_000), 1)), 12), Standing::Ended);
    }

    #[test]
    fn x02_why_nothing_is_sent_names_epoch_and_revision_on_both_sides() {
        let line = EpochLine::first(FIRST);
        let waits = line.restored(SECOND, 1_000_020, "restored");
        let resumed = waits.resumed(OTHER, 1_000_020, "resumed", []);
        let until = "; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
        let both = format!("revision 185 of another store (epoch {OTHER})");
        let here = format!("at revision 1000025 of epoch {SECOND}");
        for line in [&waits, &resumed] {
            let said = line.why_untold(held(OTHER, 185), 1_000_025);
            assert!(said.contains(&both) && said.contains(&here) && said.ends_with(until), "{said}");
        }
        let said = line.why_untold(held(FIRST, 185), 20);
        let sentence =
            format!("its host holds revision 185 of epoch {FIRST}, and the store has come to revision 20 of it");
        assert!(said.starts_with(&sentence) && said.ends_with(until), "{said}");
        let said = resumed.why_untold(held(FIRST, 185), 1_000_025);
        assert!(said.ends_with("and is led to this one when it checks in next"), "{said}");
        assert_eq!((line.why_all_wait(), resumed.why_all_wait()), (None, None));
        assert!(waits.why_all_wait().is_some_and(|said| said.ends_with(until)));
    }

    #[test]
    fn x02_hosts_are_led_from_the_epoch_of_the_backup_or_from_the_present_one() {
        let waits = EpochLine::first(FIRST).restored(SECOND, 9, "restored");
        assert_eq!((waits.led_from(), EpochLine::first(FIRST).led_from()), (FIRST, FIRST));
        assert_eq!(waits.resumed(OTHER, 9, "resumed", []).led_from(), SECOND);
    }

    #[test]
    fn a_line_forgets_the_oldest_epochs() {
        let many = (10..2000).map(Uuid::from_u128);
        let line = EpochLine::first(FIRST).next(SECOND, 1, "restored", many);
        assert_eq!((line.ended.len(), line.ended.last()), (1024, Some(&FIRST)));
    }
}
