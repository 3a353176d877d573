//! Epochs of a store, and how the state that a host holds relates to the store.
//!
//! Revisions are counted within an epoch. A store that was restored from an older copy issues revisions again that
//! hosts have already seen with other states. Its hosts hold later revisions than the store has, and refuse what it
//! signs. So nothing is sent to them until an admin ends the epoch. The next epoch begins at the store's revision, and
//! a signed change leads each host from the epoch that it holds into the new one.
//!
//! ```text
//!   held: epoch, revision            store: epoch history, last revision sent to the host
//!        │
//!        ├─ current epoch ──────── revision ≤ sent ──▶ Current
//!        │                    └─── revision > sent ──▶ Ahead      (restored from an older copy)
//!        ├─ an ended epoch ────────────────────────▶ Ended      (follows by a signed change)
//!        ├─ unknown, began before the current one ─▶ Ended      (an admin has since led the hosts on)
//!        └─ any other ───────────────────────────▶ Unknown    (another store, perhaps a later one)
//! ```
//!
//! The last revision sent to a host is stored for each host, before it is sent. The store's own revision does not tell
//! this. It grows with each write, and would pass the revision that another copy of the store sent to a host.
//!
//! The id of an epoch, except the first, contains the time at which it began, and is later than every epoch that its
//! store knew (docs/adr/0015). So each host only moves to later epochs, and a store that was left behind cannot lead a
//! host back.

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// Maximum number of ended epochs in a history. A host of the first epoch that was away for more restores than this
/// must join again.
const MAX_ENDED_EPOCHS: usize = 1024;
/// The latest time that an epoch id can contain, in milliseconds since 1970.
const MAX_EPOCH_MS: u64 = (1 << 48) - 1;
/// The end of each message about a host to which nothing is sent.
const RESUME_HINT: &str = "nothing is sent to the host until an admin runs: stemma-controller resume-fleet";

/// The epochs of a store: the current one, and those that it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochHistory {
    /// The current epoch.
    pub now: Uuid,
    /// The revision at which the current epoch began.
    pub at: u64,
    /// The reason for the current epoch, for people. Empty for the first epoch.
    pub reason: String,
    /// The ended epochs, oldest first.
    pub ended: Vec<Uuid>,
    /// True if nothing is sent to any host until an admin resumes the fleet, because the store was restored from a
    /// backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// A state as epoch and revision: what a host reports to hold, or what was sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRevision {
    /// The epoch.
    pub epoch: Uuid,
    /// The revision in it.
    pub revision: u64,
}

impl HeldRevision {
    /// Returns whether a state is of the same epoch and not later than this one.
    pub fn covers(self, state: Self) -> bool {
        self.epoch == state.epoch && state.revision <= self.revision
    }
}

/// What a host holds, and what the store last sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRevisions {
    /// What the host reports to hold.
    pub held: HeldRevision,
    /// The last revision that the store sent, or a later one. `None` if the store has no record, because an earlier
    /// version wrote none.
    pub sent: Option<HeldRevision>,
}

/// How the state that a host holds relates to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEpochState {
    /// The host holds nothing, or a state of the current epoch that this store may have sent. Everything can be sent.
    Current,
    /// The host holds a state of an epoch that ended here, or of one that began before the current epoch, into which
    /// an admin has led the hosts. Everything can be sent, with the signed change of epoch.
    Ended,
    /// The host holds a later revision of the current epoch than this store sent. Another copy of the store sent it.
    Ahead,
    /// The host holds a state of an epoch that is not known to the store and may be a later one.
    Unknown,
    /// The store was restored. Nothing is sent to any host until an admin resumes the fleet, not even to hosts that
    /// join in the meantime.
    Waiting,
}

impl EpochHistory {
    /// Returns the history of a new store.
    pub const fn new(epoch: Uuid) -> Self {
        Self { now: epoch, at: 0, reason: String::new(), ended: Vec::new(), waits: false }
    }

    /// Returns how a host's state relates to a store at revision `head`. `host` is `None` if the host holds nothing.
    pub fn host_state(&self, host: Option<HostRevisions>, head: u64) -> HostEpochState {
        match host {
            _ if self.waits => HostEpochState::Waiting,
            None => HostEpochState::Current,
            Some(host) if self.may_have_sent(host, head) => HostEpochState::Current,
            Some(HostRevisions { held, .. }) if held.epoch == self.now => HostEpochState::Ahead,
            Some(HostRevisions { held, .. }) if self.ended.contains(&held.epoch) || self.is_past(held.epoch) => {
                HostEpochState::Ended
            }
            Some(_) => HostEpochState::Unknown,
        }
    }

    /// Returns whether the host's state is of the current epoch, and may have been sent by this store. If the store has
    /// no record of what it sent, it may have sent every revision up to its own.
    fn may_have_sent(&self, HostRevisions { held, sent: told }: HostRevisions, head: u64) -> bool {
        let last = told.unwrap_or(HeldRevision { epoch: self.now, revision: head });
        held.epoch == self.now && last.covers(held)
    }

    /// Returns whether an admin led the hosts into the current epoch after the given epoch began. That decision holds
    /// for each host of the earlier epoch, whenever it checks in. It does not hold for an epoch that began later,
    /// because its store may have replaced this one.
    fn is_past(&self, epoch: Uuid) -> bool {
        let is_resumed = !self.waits && !self.ended.is_empty();
        is_resumed && began_ms(epoch).is_some_and(|began| began_ms(self.now) > Some(began))
    }

    /// Returns the id of an epoch that begins now (`now_ms` is milliseconds since 1970). Whatever the clock shows, the
    /// id is later than the current epoch, each ended one, and each unknown epoch that a host holds.
    pub fn next_id(&self, now_ms: u64, random: &[u8; 10], unknown: impl IntoIterator<Item = Uuid>) -> Uuid {
        let earlier = self.ended.iter().copied().chain([self.now]).chain(unknown).filter_map(began_ms).max();
        let begins_ms = earlier.map_or(now_ms, |earlier| now_ms.max(earlier.saturating_add(1)));
        Builder::from_unix_timestamp_millis(begins_ms.min(MAX_EPOCH_MS), random).into_uuid()
    }

    /// Returns the epoch that hosts leave when the fleet is resumed. For a restored store that waits, this is the epoch
    /// of its backup.
    pub fn resumed_from(&self) -> Uuid {
        self.ended.last().copied().filter(|_| self.waits).unwrap_or(self.now)
    }

    /// Returns why nothing is sent to this host, for people.
    pub fn not_sent_reason(&self, host: HostRevisions, head: u64) -> String {
        let HeldRevision { epoch, revision } = host.held;
        let holds = format!("its host holds revision {revision} of another store (epoch {epoch})");
        let here = format!("at revision {head} of epoch {}", self.now);
        match self.host_state(Some(host), head) {
            HostEpochState::Waiting => {
                format!("{holds}, and this one was restored from a backup and is {here}; {RESUME_HINT}")
            }
            HostEpochState::Unknown => format!(
                "{holds}, of which this one, {here}, knows nothing: that store was restored later or is in use beside this one; {RESUME_HINT}"
            ),
            HostEpochState::Ahead => {
                let last = host.sent.filter(|sent| sent.epoch == self.now && revision <= head);
                let store = match last {
                    Some(sent) => {
                        format!("is at revision {head} and told it nothing later than revision {}", sent.revision)
                    }
                    None if revision <= head => format!("is at revision {head} and told it nothing of this epoch"),
                    None => format!("has come to revision {head} of it"),
                };
                format!(
                    "its host holds revision {revision} of epoch {epoch}, and the store {store}: it was restored from an older copy; {RESUME_HINT}"
                )
            }
            HostEpochState::Current | HostEpochState::Ended => {
                format!("{holds}, and is led to this one when it checks in next")
            }
        }
    }

    /// Returns why nothing is sent to a host that has not reported its state, for people. Returns `None` if the store
    /// does not wait.
    pub fn waiting_reason(&self) -> Option<String> {
        self.waits.then(|| format!("the store was restored from a backup and waits; {RESUME_HINT}"))
    }

    /// Returns the history after the current epoch ended at revision `at`. The unknown epochs that hosts hold are added
    /// to the ended epochs.
    #[must_use]
    pub fn with_next(&self, epoch: Uuid, at: u64, reason: &str, unknown: impl IntoIterator<Item = Uuid>) -> Self {
        let mut ended = self.ended.clone();
        for old in unknown.into_iter().chain([self.now]) {
            if old != epoch && !ended.contains(&old) {
                ended.push(old);
            }
        }
        ended.drain(..ended.len().saturating_sub(MAX_ENDED_EPOCHS));
        Self { now: epoch, at, reason: reason.to_owned(), ended, waits: false }
    }

    /// Returns the history of a store that was restored from a backup: a new epoch, in which nothing is sent until an
    /// admin resumes the fleet.
    #[must_use]
    pub fn with_restore(&self, epoch: Uuid, at: u64, reason: &str) -> Self {
        Self { waits: true, ..self.with_next(epoch, at, reason, []) }
    }

    /// Returns the history after an admin allowed hosts to follow. Either the store no longer waits, or another epoch
    /// began. The unknown epochs that hosts hold end as well.
    ///
    /// A store that waits also begins another epoch if an unknown epoch is not earlier than its own, because hosts move
    /// to later epochs only. An unknown epoch can be the store's own, if another copy of the store led hosts into it.
    /// `unknown` contains the epochs of all hosts to which nothing is sent.
    #[must_use]
    pub fn with_resume(&self, epoch: Uuid, at: u64, reason: &str, unknown: impl IntoIterator<Item = Uuid>) -> Self {
        let unknown: Vec<Uuid> = unknown.into_iter().collect();
        let is_later = |other: &Uuid| began_ms(*other).is_some_and(|began| began_ms(self.now) <= Some(began));
        if !self.waits || unknown.iter().any(is_later) {
            return self.with_next(epoch, at, reason, unknown);
        }
        let known = self.with_next(self.now, at, reason, unknown);
        Self { ended: known.ended, waits: false, ..self.clone() }
    }
}

impl HostEpochState {
    /// Returns whether the desired state can be sent to the host.
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Current | Self::Ended)
    }
}

/// Returns when an epoch began, in milliseconds since 1970. Returns `None` for a first epoch, whose id contains no
/// time.
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

    /// Returns a host at this state, with no record of what the store sent.
    fn host_at(epoch: Uuid, revision: u64) -> HostRevisions {
        HostRevisions { held: HeldRevision { epoch, revision }, sent: None }
    }

    /// Returns a host at this state, with a record of what the store sent.
    fn host_at_with_sent(held: (Uuid, u64), told: (Uuid, u64)) -> HostRevisions {
        let [held, told] = [held, told].map(|(epoch, revision)| HeldRevision { epoch, revision });
        HostRevisions { held, sent: Some(told) }
    }

    #[test]
    fn host_is_ahead_when_revision_exceeds_store() {
        let line = EpochHistory::new(FIRST);
        for (holds, standing) in [
            (None, HostEpochState::Current),
            (Some(host_at(FIRST, 1)), HostEpochState::Current),
            (Some(host_at(FIRST, 9)), HostEpochState::Current),
            (Some(host_at(FIRST, 10)), HostEpochState::Ahead),
            (Some(host_at(SECOND, 1)), HostEpochState::Unknown),
        ] {
            assert_eq!(line.host_state(holds, 9), standing, "{holds:?}");
        }
    }

    #[test]
    fn x02_host_stays_ahead_when_store_never_sent_revision() {
        let line = EpochHistory::new(FIRST).with_next(SECOND, 9, "restored", []);
        for (holds, told, standing) in [
            ((SECOND, 17), (SECOND, 16), HostEpochState::Ahead),
            ((SECOND, 17), (SECOND, 17), HostEpochState::Current),
            ((SECOND, 12), (SECOND, 17), HostEpochState::Current),
            ((SECOND, 10), (FIRST, 17), HostEpochState::Ahead),
            ((FIRST, 17), (FIRST, 12), HostEpochState::Ended),
            ((OTHER, 17), (SECOND, 17), HostEpochState::Unknown),
        ] {
            let host = host_at_with_sent(holds, told);
            for head in [9, 16, 17, 1_000] {
                assert_eq!(line.host_state(Some(host), head), standing, "{host:?} at {head}");
            }
        }
        let said = line.not_sent_reason(host_at_with_sent((SECOND, 17), (SECOND, 12)), 46);
        assert!(said.contains("and the store is at revision 46 and told it nothing later than revision 12"), "{said}");
        let said = line.not_sent_reason(host_at_with_sent((SECOND, 17), (FIRST, 12)), 46);
        assert!(said.contains("and the store is at revision 46 and told it nothing of this epoch"), "{said}");
    }

    /// The store waits, so it led no host into its epoch. A copy of it did.
    #[test]
    fn x02_resume_begins_epoch_when_hosts_hold_other_copy() {
        let waits = EpochHistory::new(FIRST).with_restore(epoch_began_at(2_000), 9, "restored");
        let next = waits.next_id(1_000, &[4; 10], [waits.now]);
        let resumed = waits.with_resume(next, 12, "resumed", [waits.now]);
        assert_eq!((resumed.now, resumed.waits), (next, false));
        assert_eq!(resumed.host_state(Some(host_at(waits.now, 40)), 12), HostEpochState::Ended);
    }

    #[test]
    fn host_is_in_ended_epoch_at_any_revision() {
        let line = EpochHistory::new(FIRST).with_next(SECOND, 9, "restored", [OTHER]);
        assert_eq!((line.now, line.at, line.ended.as_slice()), (SECOND, 9, &[OTHER, FIRST][..]));
        for (holds, standing) in [
            (Some(host_at(FIRST, 10_000)), HostEpochState::Ended),
            (Some(host_at(OTHER, 1)), HostEpochState::Ended),
            (Some(host_at(SECOND, 9)), HostEpochState::Current),
            (Some(host_at(SECOND, 10)), HostEpochState::Ahead),
            (Some(host_at(Uuid::from_u128(4), 1)), HostEpochState::Unknown),
        ] {
            assert_eq!(line.host_state(holds, 9), standing, "{holds:?}");
            assert_eq!(standing.can_send(), matches!(standing, HostEpochState::Current | HostEpochState::Ended));
        }
        let again = line.with_next(Uuid::from_u128(4), 12, "restored", [FIRST]);
        assert_eq!(again.ended, [OTHER, FIRST, SECOND], "each once");
    }

    #[test]
    fn host_waits_after_restore_until_admin_resumes() {
        let line = EpochHistory::new(FIRST).with_restore(SECOND, 9, "restored");
        for holds in [Some(host_at(FIRST, 1)), Some(host_at(SECOND, 1)), Some(host_at(OTHER, 1)), None] {
            assert_eq!(line.host_state(holds, 9), HostEpochState::Waiting, "{holds:?}");
        }
        let resumed = line.with_resume(Uuid::from_u128(4), 12, "again", [OTHER, FIRST]);
        assert_eq!((resumed.now, resumed.at, resumed.waits), (SECOND, 9, false), "its own epoch has begun already");
        for holds in [Some(host_at(FIRST, 100)), Some(host_at(OTHER, 100))] {
            assert_eq!(resumed.host_state(holds, 9), HostEpochState::Ended, "{holds:?}");
        }
        let ahead = resumed.with_resume(Uuid::from_u128(4), 12, "again", [SECOND]);
        assert_eq!((ahead.now, ahead.at), (Uuid::from_u128(4), 12));
    }

    /// Returns an epoch that began at this time.
    fn epoch_began_at(at_ms: u64) -> Uuid {
        EpochHistory::new(FIRST).next_id(at_ms, &[9; 10], [])
    }

    #[test]
    fn x02_is_past_holds_only_for_epochs_begun_earlier() {
        let restored = EpochHistory::new(FIRST).with_restore(epoch_began_at(2_000), 9, "restored");
        for holds in [epoch_began_at(1_000), epoch_began_at(3_000), FIRST] {
            assert_eq!(restored.host_state(Some(host_at(holds, 1)), 9), HostEpochState::Waiting, "nobody has said so yet");
        }
        let line = restored.with_resume(epoch_began_at(2_500), 12, "resumed", []);
        assert_eq!(line.now, epoch_began_at(2_000));
        for (holds, standing) in [
            (epoch_began_at(1_999), HostEpochState::Ended),
            (epoch_began_at(2_001), HostEpochState::Unknown),
            (EpochHistory::new(FIRST).next_id(2_000, &[8; 10], []), HostEpochState::Unknown),
            (OTHER, HostEpochState::Unknown),
            (FIRST, HostEpochState::Ended),
        ] {
            assert_eq!(line.host_state(Some(host_at(holds, 100)), 9), standing, "{holds}");
        }
        let never = EpochHistory::new(epoch_began_at(2_000));
        assert_eq!(
            never.host_state(Some(host_at(epoch_began_at(1_000), 1)), 9),
            HostEpochState::Unknown,
            "no admin led anybody here"
        );
    }

    /// Whatever the clocks show, each epoch is later than all that its store and its hosts knew. So a machine that
    /// returns with an earlier epoch leads no host back.
    #[test]
    fn x02_host_is_unknown_to_store_left_behind() {
        let behind = EpochHistory::new(FIRST).with_restore(epoch_began_at(5_000), 9, "restored").with_resume(OTHER, 9, "", []);
        for slow_clock_ms in [0, 4_000, 5_000, 6_000] {
            // Restored from a backup of the store that was left behind, and replaced it.
            let next = behind.with_restore(behind.next_id(slow_clock_ms, &[3; 10], []), 20, "restored");
            assert_eq!(behind.host_state(Some(host_at(next.now, 21)), 10), HostEpochState::Unknown, "{slow_clock_ms}");
            // Restored from an older backup, which does not contain that epoch, although its hosts do.
            let older = EpochHistory::new(FIRST);
            let older = older.with_restore(older.next_id(slow_clock_ms, &[6; 10], []), 9, "restored");
            let other = older.next_id(slow_clock_ms, &[4; 10], [behind.now]);
            let resumed = older.with_resume(other, 12, "resumed", [behind.now]);
            assert_eq!(behind.host_state(Some(host_at(resumed.now, 13)), 10), HostEpochState::Unknown, "{slow_clock_ms}");
            assert_eq!(resumed.host_state(Some(host_at(behind.now, 10)), 13), HostEpochState::Ended, "{slow_clock_ms}");
        }
    }

    #[test]
    fn x02_next_id_stays_in_order_when_epoch_is_far_future() {
        let far = epoch_began_at(u64::MAX);
        let line = EpochHistory::new(FIRST).with_restore(epoch_began_at(1_000), 9, "restored");
        let resumed = line.with_resume(line.next_id(2_000, &[3; 10], [far]), 12, "resumed", [far]);
        assert_eq!(resumed.host_state(Some(host_at(far, 1)), 12), HostEpochState::Ended, "it was there when the admin said so");
        let other = EpochHistory::new(FIRST).next_id(u64::MAX, &[5; 10], []);
        assert_eq!(resumed.host_state(Some(host_at(other, 1)), 12), HostEpochState::Unknown, "not before it");
        assert_eq!(resumed.host_state(Some(host_at(epoch_began_at(3_000), 1)), 12), HostEpochState::Ended);
    }

    #[test]
    fn x02_not_sent_reason_names_both_epochs_and_revisions() {
        let line = EpochHistory::new(FIRST);
        let waits = line.with_restore(SECOND, 1_000_020, "restored");
        let resumed = waits.with_resume(OTHER, 1_000_020, "resumed", []);
        let until = "; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
        let both = format!("revision 185 of another store (epoch {OTHER})");
        let here = format!("at revision 1000025 of epoch {SECOND}");
        for line in [&waits, &resumed] {
            let said = line.not_sent_reason(host_at(OTHER, 185), 1_000_025);
            assert!(said.contains(&both) && said.contains(&here) && said.ends_with(until), "{said}");
        }
        let said = line.not_sent_reason(host_at(FIRST, 185), 20);
        let sentence = format!("its host holds revision 185 of epoch {FIRST}, and the store has come to revision 20 of it");
        assert!(said.starts_with(&sentence) && said.ends_with(until), "{said}");
        let said = resumed.not_sent_reason(host_at(FIRST, 185), 1_000_025);
        assert!(said.ends_with("and is led to this one when it checks in next"), "{said}");
        assert_eq!((line.waiting_reason(), resumed.waiting_reason()), (None, None));
        assert!(waits.waiting_reason().is_some_and(|said| said.ends_with(until)));
    }

    #[test]
    fn x02_resumed_from_is_backup_epoch_when_waiting() {
        let waits = EpochHistory::new(FIRST).with_restore(SECOND, 9, "restored");
        assert_eq!((waits.resumed_from(), EpochHistory::new(FIRST).resumed_from()), (FIRST, FIRST));
        assert_eq!(waits.with_resume(OTHER, 9, "resumed", []).resumed_from(), SECOND);
    }

    #[test]
    fn epoch_history_drops_oldest_epochs_at_limit() {
        let many = (10..2000).map(Uuid::from_u128);
        let line = EpochHistory::new(FIRST).with_next(SECOND, 1, "restored", many);
        assert_eq!((line.ended.len(), line.ended.last()), (1024, Some(&FIRST)));
    }
}
