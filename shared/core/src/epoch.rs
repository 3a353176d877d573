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

/// Maximum number of ended epochs in a history. The oldest are dropped. A host of the first epoch is then unknown until
/// an admin resumes the fleet. A host of any later epoch is recognized by the time in the id of the epoch.
const MAX_ENDED_EPOCHS: usize = 1024;
/// The latest time that an epoch id can contain, in milliseconds since 1970.
const MAX_EPOCH_MS: u64 = (1 << 48) - 1;
/// The end of each message about a host to which nothing is sent until an admin runs this command.
const RESUME_HINT: &str = "nothing is sent to the host until an admin runs: stemma-controller resume-fleet";

/// The epochs of a store: the current one, and those that it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochHistory {
    /// The id of the current epoch.
    pub now: Uuid,
    /// The revision at which the current epoch began.
    pub at: u64,
    /// A text for people with the reason why the current epoch began. Empty for the first epoch.
    pub reason: String,
    /// The ids of the ended epochs, also of other copies of the store, in the order in which the ends were recorded.
    pub ended: Vec<Uuid>,
    /// True if the store was restored from a backup and no admin has resumed the fleet since. Nothing is sent to any
    /// host then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// The epoch and revision of a desired state that a host holds, or that the store sent to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRevision {
    /// The epoch in which the revision was counted. It can be an ended epoch, or an epoch of another copy of the store.
    pub epoch: Uuid,
    /// The revision within the epoch.
    pub revision: u64,
}

impl HeldRevision {
    /// Returns whether `state` is of the same epoch as this state and not of a later revision.
    pub fn covers(self, state: Self) -> bool {
        self.epoch == state.epoch && state.revision <= self.revision
    }
}

/// The state that a host holds, and the last state that the store sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRevisions {
    /// The state that the host reports to hold.
    pub held: HeldRevision,
    /// The last state that the store sent to the host, or was about to send. If there is no record of it, this is the
    /// revision at which the store began to write such records. `None` if the store has written none yet.
    pub sent: Option<HeldRevision>,
}

/// The relation between the state that a host holds and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEpochState {
    /// The host holds nothing, or a state of the current epoch that this store may have sent. Every state can be sent
    /// to it.
    Current,
    /// The host holds a state of an epoch that ended in this store, or that began before the current epoch and that an
    /// admin has ended for all hosts. Every state can be sent to the host, with the signed change to the current epoch.
    Ended,
    /// The host holds a later revision of the current epoch than this store sent. So another copy of the store sent
    /// that revision.
    Ahead,
    /// The host holds a state of an epoch that the store does not know, and that may be later than the current epoch.
    Unknown,
    /// The store was restored, and no admin has resumed the fleet yet. Nothing is sent to any host, not even to a host
    /// that joins now.
    Waiting,
}

impl EpochHistory {
    /// Returns the history of a new store, which begins with this epoch.
    pub const fn new(epoch: Uuid) -> Self {
        Self { now: epoch, at: 0, reason: String::new(), ended: Vec::new(), waits: false }
    }

    /// Returns how the state of a host relates to this store. `host` is `None` if the host holds nothing. `head` is the
    /// last revision of the store.
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

    /// Returns whether this store may have sent the state that the host holds. The state must be of the current epoch,
    /// and not later than the last state that the store sent. Without a record of that state, any revision up to `head`
    /// may have been sent.
    fn may_have_sent(&self, HostRevisions { held, sent: last_sent }: HostRevisions, head: u64) -> bool {
        let last = last_sent.unwrap_or(HeldRevision { epoch: self.now, revision: head });
        held.epoch == self.now && last.covers(held)
    }

    /// Returns whether the given epoch began before the current epoch, and an admin has led the hosts into the current
    /// epoch. A host of such an epoch may follow, whenever it checks in. A host of a later epoch may not follow,
    /// because the store of that epoch may have replaced this store.
    fn is_past(&self, epoch: Uuid) -> bool {
        let is_resumed = !self.waits && !self.ended.is_empty();
        is_resumed && began_ms(epoch).is_some_and(|start_ms| began_ms(self.now) > Some(start_ms))
    }

    /// Returns the id of an epoch that begins now. `now_ms` is the time in milliseconds since 1970. The id is later
    /// than the current epoch, each ended epoch and each of `unknown_epochs` (those that hosts hold), even if the clock
    /// is slow. The exception is an epoch with the latest time that an id can contain.
    pub fn next_id(&self, now_ms: u64, random: &[u8; 10], unknown_epochs: impl IntoIterator<Item = Uuid>) -> Uuid {
        let latest_start_ms = self.ended.iter().copied().chain([self.now]).chain(unknown_epochs).filter_map(began_ms).max();
        let start_ms = latest_start_ms.map_or(now_ms, |latest_start_ms| now_ms.max(latest_start_ms.saturating_add(1)));
        Builder::from_unix_timestamp_millis(start_ms.min(MAX_EPOCH_MS), random).into_uuid()
    }

    /// Returns the epoch that hosts leave when an admin resumes the fleet. If the store was restored and waits, this is
    /// the epoch of its backup. Otherwise it is the current epoch.
    pub fn resumed_from(&self) -> Uuid {
        self.ended.last().copied().filter(|_| self.waits).unwrap_or(self.now)
    }

    /// Returns a text for people with the reason why nothing is sent to this host, or that the host switches to this
    /// store at its next check-in. `head` is the last revision of the store.
    pub fn not_sent_reason(&self, host: HostRevisions, head: u64) -> String {
        let HeldRevision { epoch, revision } = host.held;
        let held_state = format!("its host holds revision {revision} of another store (epoch {epoch})");
        let current_position = format!("at revision {head} of epoch {}", self.now);
        match self.host_state(Some(host), head) {
            HostEpochState::Waiting => {
                format!("{held_state}, and this one was restored from a backup and is {current_position}; {RESUME_HINT}")
            }
            HostEpochState::Unknown => format!(
                "{held_state}, of which this one, {current_position}, has no record: that store was restored later, or is in use in addition to this one; {RESUME_HINT}"
            ),
            HostEpochState::Ahead => {
                // A revision above `head` needs no other proof. For a lower one, the message contains what the store
                // sent last.
                let last_sent = host.sent.filter(|sent| sent.epoch == self.now && revision <= head);
                let store_state = match last_sent {
                    Some(sent) => {
                        format!("is at revision {head} and has sent it nothing later than revision {}", sent.revision)
                    }
                    None if revision <= head => format!("is at revision {head} and has sent it nothing of this epoch"),
                    None => format!("is only at revision {head} of it"),
                };
                format!(
                    "its host holds revision {revision} of epoch {epoch}, and the store {store_state}: it was restored from an older copy; {RESUME_HINT}"
                )
            }
            HostEpochState::Current | HostEpochState::Ended => {
                format!("{held_state}, and switches to this store at its next check-in")
            }
        }
    }

    /// Returns a text for people with the reason why nothing is sent to any host, or `None` if the store does not wait
    /// for an admin. For a host that has reported its state, use [`Self::not_sent_reason`].
    pub fn waiting_reason(&self) -> Option<String> {
        self.waits.then(|| format!("the store was restored from a backup and waits; {RESUME_HINT}"))
    }

    /// Returns the history after the epoch `epoch` began at revision `start`. The previous epoch, and the
    /// unknown epochs that hosts hold, are added to the ended epochs.
    #[must_use]
    pub fn with_next(&self, epoch: Uuid, start: u64, reason: &str, unknown_epochs: impl IntoIterator<Item = Uuid>) -> Self {
        let mut ended = self.ended.clone();
        for ended_epoch in unknown_epochs.into_iter().chain([self.now]) {
            if ended_epoch != epoch && !ended.contains(&ended_epoch) {
                ended.push(ended_epoch);
            }
        }
        ended.drain(..ended.len().saturating_sub(MAX_ENDED_EPOCHS));
        Self { now: epoch, at: start, reason: reason.to_owned(), ended, waits: false }
    }

    /// Returns the history of a store that was restored from a backup. The epoch `epoch` begins at revision
    /// `start`, and nothing is sent until an admin resumes the fleet.
    #[must_use]
    pub fn with_restore(&self, epoch: Uuid, start: u64, reason: &str) -> Self {
        Self { waits: true, ..self.with_next(epoch, start, reason, []) }
    }

    /// Returns the history after an admin resumed the fleet. A store that waits after a restore stops waiting and stays
    /// in its epoch. In any other store, the epoch `epoch` begins at revision `start`. In both cases, the
    /// unknown epochs that hosts hold end.
    ///
    /// A store that waits also begins the epoch `epoch` if one of the unknown epochs is not earlier than its own,
    /// because hosts move to later epochs only. An unknown epoch can be the epoch of the store itself, if another copy
    /// of the store led hosts into it. `unknown_epochs` contains the epochs of all hosts to which nothing is sent.
    #[must_use]
    pub fn with_resume(&self, epoch: Uuid, start: u64, reason: &str, unknown_epochs: impl IntoIterator<Item = Uuid>) -> Self {
        let unknown_epochs: Vec<Uuid> = unknown_epochs.into_iter().collect();
        // `None`, for a first epoch, is earlier than any time.
        let is_later = |id: &Uuid| began_ms(*id).is_some_and(|start_ms| began_ms(self.now) <= Some(start_ms));
        if !self.waits || unknown_epochs.iter().any(is_later) {
            return self.with_next(epoch, start, reason, unknown_epochs);
        }
        let with_ended = self.with_next(self.now, start, reason, unknown_epochs);
        Self { ended: with_ended.ended, waits: false, ..self.clone() }
    }
}

impl HostEpochState {
    /// Returns whether the desired state can be sent to a host in this state.
    pub const fn can_send(self) -> bool {
        matches!(self, Self::Current | Self::Ended)
    }
}

/// Returns the time at which an epoch began, in milliseconds since 1970. The id of an epoch is a version 7 uuid, whose
/// first 48 bits are this time. Returns `None` for the first epoch of a store, whose id contains no time.
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

    /// Returns a host that holds this state. The store has no record of what it sent.
    fn host_at(epoch: Uuid, revision: u64) -> HostRevisions {
        HostRevisions { held: HeldRevision { epoch, revision }, sent: None }
    }

    /// Returns a host that holds this state, with the state that the store last sent.
    fn host_at_with_sent(held: (Uuid, u64), sent: (Uuid, u64)) -> HostRevisions {
        let [held, sent] = [held, sent].map(|(epoch, revision)| HeldRevision { epoch, revision });
        HostRevisions { held, sent: Some(sent) }
    }

    /// The last revision of the store is 9. Without a record of what was sent, a host of revision 9 is not ahead.
    #[test]
    fn host_is_ahead_when_revision_exceeds_store() {
        let history = EpochHistory::new(FIRST);
        for (host, expected) in [
            (None, HostEpochState::Current),
            (Some(host_at(FIRST, 1)), HostEpochState::Current),
            (Some(host_at(FIRST, 9)), HostEpochState::Current),
            (Some(host_at(FIRST, 10)), HostEpochState::Ahead),
            (Some(host_at(SECOND, 1)), HostEpochState::Unknown),
        ] {
            assert_eq!(history.host_state(host, 9), expected, "{host:?}");
        }
    }

    /// In this test, the store has a record of what it sent to each host. The record decides whether the host is ahead,
    /// and the last revision of the store (9 to 1000) has no effect.
    #[test]
    fn x02_host_stays_ahead_when_store_never_sent_revision() {
        let history = EpochHistory::new(FIRST).with_next(SECOND, 9, "restored", []);
        for (held, sent, expected) in [
            ((SECOND, 17), (SECOND, 16), HostEpochState::Ahead),
            ((SECOND, 17), (SECOND, 17), HostEpochState::Current),
            ((SECOND, 12), (SECOND, 17), HostEpochState::Current),
            ((SECOND, 10), (FIRST, 17), HostEpochState::Ahead),
            ((FIRST, 17), (FIRST, 12), HostEpochState::Ended),
            ((OTHER, 17), (SECOND, 17), HostEpochState::Unknown),
        ] {
            let host = host_at_with_sent(held, sent);
            for head in [9, 16, 17, 1_000] {
                assert_eq!(history.host_state(Some(host), head), expected, "{host:?} at {head}");
            }
        }
        let reason = history.not_sent_reason(host_at_with_sent((SECOND, 17), (SECOND, 12)), 46);
        assert!(reason.contains("and the store is at revision 46 and has sent it nothing later than revision 12"), "{reason}");
        let reason = history.not_sent_reason(host_at_with_sent((SECOND, 17), (FIRST, 12)), 46);
        assert!(reason.contains("and the store is at revision 46 and has sent it nothing of this epoch"), "{reason}");
    }

    /// The store waits after a restore, so only another copy of the store can have sent a state of its epoch.
    #[test]
    fn x02_resume_begins_epoch_when_other_copy_sent_states() {
        let waiting_history = EpochHistory::new(FIRST).with_restore(epoch_began_at(2_000), 9, "restored");
        let next = waiting_history.next_id(1_000, &[4; 10], [waiting_history.now]);
        let resumed = waiting_history.with_resume(next, 12, "resumed", [waiting_history.now]);
        assert_eq!((resumed.now, resumed.waits), (next, false));
        assert_eq!(resumed.host_state(Some(host_at(waiting_history.now, 40)), 12), HostEpochState::Ended);
    }

    /// In this test, the current epoch is `SECOND`, and `OTHER` and `FIRST` are ended epochs. A host that holds a state
    /// of an ended epoch can follow, whatever its revision. Each epoch is in the list of ended epochs once.
    #[test]
    fn host_is_in_ended_epoch_at_any_revision() {
        let history = EpochHistory::new(FIRST).with_next(SECOND, 9, "restored", [OTHER]);
        assert_eq!((history.now, history.at, history.ended.as_slice()), (SECOND, 9, &[OTHER, FIRST][..]));
        for (host, expected) in [
            (Some(host_at(FIRST, 10_000)), HostEpochState::Ended),
            (Some(host_at(OTHER, 1)), HostEpochState::Ended),
            (Some(host_at(SECOND, 9)), HostEpochState::Current),
            (Some(host_at(SECOND, 10)), HostEpochState::Ahead),
            (Some(host_at(Uuid::from_u128(4), 1)), HostEpochState::Unknown),
        ] {
            assert_eq!(history.host_state(host, 9), expected, "{host:?}");
            assert_eq!(expected.can_send(), matches!(expected, HostEpochState::Current | HostEpochState::Ended));
        }
        let next_history = history.with_next(Uuid::from_u128(4), 12, "restored", [FIRST]);
        assert_eq!(next_history.ended, [OTHER, FIRST, SECOND], "each epoch once");
    }

    #[test]
    fn host_waits_after_restore_until_admin_resumes() {
        let history = EpochHistory::new(FIRST).with_restore(SECOND, 9, "restored");
        for host in [Some(host_at(FIRST, 1)), Some(host_at(SECOND, 1)), Some(host_at(OTHER, 1)), None] {
            assert_eq!(history.host_state(host, 9), HostEpochState::Waiting, "{host:?}");
        }
        let resumed = history.with_resume(Uuid::from_u128(4), 12, "again", [OTHER, FIRST]);
        assert_eq!((resumed.now, resumed.at, resumed.waits), (SECOND, 9, false), "the restore already began an epoch");
        for host in [Some(host_at(FIRST, 100)), Some(host_at(OTHER, 100))] {
            assert_eq!(resumed.host_state(host, 9), HostEpochState::Ended, "{host:?}");
        }
        // A store that no longer waits begins another epoch.
        let ahead = resumed.with_resume(Uuid::from_u128(4), 12, "again", [SECOND]);
        assert_eq!((ahead.now, ahead.at), (Uuid::from_u128(4), 12));
    }

    /// Returns the id of an epoch that began at this time.
    fn epoch_began_at(at_ms: u64) -> Uuid {
        EpochHistory::new(FIRST).next_id(at_ms, &[9; 10], [])
    }

    #[test]
    fn x02_is_past_holds_only_for_epochs_begun_earlier() {
        let restored = EpochHistory::new(FIRST).with_restore(epoch_began_at(2_000), 9, "restored");
        for epoch in [epoch_began_at(1_000), epoch_began_at(3_000), FIRST] {
            assert_eq!(
                restored.host_state(Some(host_at(epoch, 1)), 9),
                HostEpochState::Waiting,
                "no admin has resumed the fleet"
            );
        }
        let history = restored.with_resume(epoch_began_at(2_500), 12, "resumed", []);
        assert_eq!(history.now, epoch_began_at(2_000));
        for (epoch, expected) in [
            (epoch_began_at(1_999), HostEpochState::Ended),
            (epoch_began_at(2_001), HostEpochState::Unknown),
            (EpochHistory::new(FIRST).next_id(2_000, &[8; 10], []), HostEpochState::Unknown),
            (OTHER, HostEpochState::Unknown),
            (FIRST, HostEpochState::Ended),
        ] {
            assert_eq!(history.host_state(Some(host_at(epoch, 100)), 9), expected, "{epoch}");
        }
        let first_history = EpochHistory::new(epoch_began_at(2_000));
        assert_eq!(
            first_history.host_state(Some(host_at(epoch_began_at(1_000), 1)), 9),
            HostEpochState::Unknown,
            "no admin has ended an epoch"
        );
    }

    /// Each epoch is later than all epochs that its store and its hosts knew, whatever the clocks show. So a store that
    /// returns with an earlier epoch leads no host back.
    #[test]
    fn x02_host_is_unknown_to_store_left_behind() {
        let left_behind =
            EpochHistory::new(FIRST).with_restore(epoch_began_at(5_000), 9, "restored").with_resume(OTHER, 9, "", []);
        for slow_clock_ms in [0, 4_000, 5_000, 6_000] {
            // This store was restored from a backup of the store that was left behind, and replaced that store.
            let replacement = left_behind.with_restore(left_behind.next_id(slow_clock_ms, &[3; 10], []), 20, "restored");
            assert_eq!(
                left_behind.host_state(Some(host_at(replacement.now, 21)), 10),
                HostEpochState::Unknown,
                "{slow_clock_ms}"
            );
            // This store was restored from an older backup. It lacks the epoch that its hosts still hold.
            let older_restore = EpochHistory::new(FIRST);
            let older_restore = older_restore.with_restore(older_restore.next_id(slow_clock_ms, &[6; 10], []), 9, "restored");
            let next_epoch = older_restore.next_id(slow_clock_ms, &[4; 10], [left_behind.now]);
            let resumed = older_restore.with_resume(next_epoch, 12, "resumed", [left_behind.now]);
            assert_eq!(left_behind.host_state(Some(host_at(resumed.now, 13)), 10), HostEpochState::Unknown, "{slow_clock_ms}");
            assert_eq!(resumed.host_state(Some(host_at(left_behind.now, 10)), 13), HostEpochState::Ended, "{slow_clock_ms}");
        }
    }

    #[test]
    fn x02_next_id_stays_in_order_when_epoch_is_far_future() {
        let far_future = epoch_began_at(u64::MAX);
        let history = EpochHistory::new(FIRST).with_restore(epoch_began_at(1_000), 9, "restored");
        let resumed = history.with_resume(history.next_id(2_000, &[3; 10], [far_future]), 12, "resumed", [far_future]);
        assert_eq!(resumed.host_state(Some(host_at(far_future, 1)), 12), HostEpochState::Ended, "the admin ended this epoch");
        let later_epoch = EpochHistory::new(FIRST).next_id(u64::MAX, &[5; 10], []);
        assert_eq!(
            resumed.host_state(Some(host_at(later_epoch, 1)), 12),
            HostEpochState::Unknown,
            "it began after the current epoch"
        );
        assert_eq!(resumed.host_state(Some(host_at(epoch_began_at(3_000), 1)), 12), HostEpochState::Ended);
    }

    /// In this test, a host holds a state of an unknown epoch (`OTHER`), then a later revision of the current epoch
    /// than the store has (20), then a state of an ended epoch (`FIRST`). An admin must act only in the first two.
    #[test]
    fn x02_not_sent_reason_names_both_epochs_and_revisions() {
        let history = EpochHistory::new(FIRST);
        let waiting_history = history.with_restore(SECOND, 1_000_020, "restored");
        let resumed = waiting_history.with_resume(OTHER, 1_000_020, "resumed", []);
        let hint = "; nothing is sent to the host until an admin runs: stemma-controller resume-fleet";
        let held_text = format!("revision 185 of another store (epoch {OTHER})");
        let position_text = format!("at revision 1000025 of epoch {SECOND}");
        for history in [&waiting_history, &resumed] {
            let reason = history.not_sent_reason(host_at(OTHER, 185), 1_000_025);
            assert!(reason.contains(&held_text) && reason.contains(&position_text) && reason.ends_with(hint), "{reason}");
        }
        let reason = history.not_sent_reason(host_at(FIRST, 185), 20);
        let sentence = format!("its host holds revision 185 of epoch {FIRST}, and the store is only at revision 20 of it");
        assert!(reason.starts_with(&sentence) && reason.ends_with(hint), "{reason}");
        let reason = resumed.not_sent_reason(host_at(FIRST, 185), 1_000_025);
        assert!(reason.ends_with("and switches to this store at its next check-in"), "{reason}");
        assert_eq!((history.waiting_reason(), resumed.waiting_reason()), (None, None));
        assert!(waiting_history.waiting_reason().is_some_and(|reason| reason.ends_with(hint)));
    }

    #[test]
    fn x02_resumed_from_is_backup_epoch_when_waiting() {
        let waiting_history = EpochHistory::new(FIRST).with_restore(SECOND, 9, "restored");
        assert_eq!((waiting_history.resumed_from(), EpochHistory::new(FIRST).resumed_from()), (FIRST, FIRST));
        assert_eq!(waiting_history.with_resume(OTHER, 9, "resumed", []).resumed_from(), SECOND);
    }

    /// In this test, more epochs end at once than the list of ended epochs can contain. Afterwards the list has the
    /// maximum length, and its last entry is the epoch that was current before.
    #[test]
    fn epoch_history_drops_oldest_epochs_at_limit() {
        let epochs = (10..2000).map(Uuid::from_u128);
        let history = EpochHistory::new(FIRST).with_next(SECOND, 1, "restored", epochs);
        assert_eq!((history.ended.len(), history.ended.last()), (1024, Some(&FIRST)));
    }
}
