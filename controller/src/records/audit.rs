//! The audit as it is stored: what each commit did to which objects, and what was refused.
//!
//! An event is written by the commit that it tells of, so neither can be missing or left over.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stemma_core::object::{ClusterId, Kind, Timestamp};
use uuid::Uuid;

/// An audit event. Its revision is in its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub principal: String,
    /// Which principal that was; `None` in an entry of before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<Whose>,
    /// Under which manager.
    pub manager: String,
    /// From where.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Why, as the person said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// What it did to objects.
    pub objects: Vec<AuditedObject>,
    /// What it did to the fleet as a whole, which is no object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<FleetAction>,
}

/// What was done to the fleet as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum FleetAction {
    /// After the store was restored, its hosts were led on.
    #[serde(rename = "fleet.resumed")]
    Resumed {
        /// From the epoch of which hosts were.
        epoch_before: Uuid,
        /// To this one.
        epoch_after: Uuid,
    },
    /// A backup was made.
    #[serde(rename = "backup.made")]
    BackupMade {
        /// The revision that it holds.
        of_revision: u64,
    },
    /// A join token was made by which hosts join without a node group.
    #[serde(rename = "token.made")]
    TokenMade {
        /// Its id, without the secret.
        token: String,
    },
    /// Such a token was taken back.
    #[serde(rename = "token.deleted")]
    TokenDeleted {
        /// Its id.
        token: String,
    },
}

/// An entry of the audit: what a commit did, or what was refused. Both stand in one sequence of revisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AuditRecord {
    /// A commit.
    Commit(AuditEvent),
    /// A refusal after authentication. It changes no object, and names none.
    Refusal(Refusal),
}

/// A refusal of somebody who had shown who they are. Its revision is in its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub principal: String,
    /// Which principal that was; `None` in an entry of before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<Whose>,
    /// From where, as `127.0.0.1:4711`.
    pub address: String,
    /// From where else, where two hosts have one identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_address: Option<String>,
    /// The reason's code, as in `stemma_rejected_total{reason}`.
    pub refused: String,
    /// How many more of this principal and reason there were since the last such entry.
    pub unsaid: u64,
}

/// Which principal somebody was. A name is not enough: it may be given to another once its principal is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// This one.
    Principal(Uuid),
    /// None that is stored: root, a host, the controller itself, or who showed something that is no principal's.
    Nobody,
}

impl From<Option<Uuid>> for Whose {
    fn from(principal: Option<Uuid>) -> Self {
        principal.map_or(Self::Nobody, Self::Principal)
    }
}

/// When an entry of either kind was written: all that is read of it where nothing else is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct EntryTime {
    /// When.
    pub at: Timestamp,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is new.
    Created,
    /// Its spec changed.
    Updated,
    /// It is gone.
    Deleted,
    /// It was so already.
    Unchanged,
}

/// One object's part in a commit, as the audit event has it. What it was before and after stands in the history
/// under the two revisions (the second is the event's own).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedObject {
    /// The kind.
    pub kind: Kind,
    /// The object.
    pub uuid: Uuid,
    /// Its name at the time.
    pub name: String,
    /// Of a group and of a primary: the name of its cluster at the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// What became of it.
    pub action: Action,
    /// The revision of its image before; `None` for a new one.
    pub before: Option<u64>,
    /// The clusters that it stood in, before and after: whoever is bound to one of them is shown it, also when it is gone.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterId>,
    /// Its name before, where it was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The cluster that it left: whoever is bound to that is told of it by the name that it had there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<ClusterId>,
    /// Which part of it was made or taken back, as `certificates.SERIAL` or `tokens.ID` of a principal or of a node that joined, or
    /// `join-tokens.ID` of the node or node group that a join token is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// What became of that part; `None` in an entry of before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_action: Option<PartAction>,
}

/// What became of a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartAction {
    /// A token was made.
    Made,
    /// A join token was deleted.
    Deleted,
    /// A certificate was issued.
    Issued,
    /// A certificate or a bearer token was revoked.
    Revoked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_before_principals_and_left_clusters_were_noted_is_read_and_written_as_it_was() {
        let object =
            r#"{"kind":"Node","uuid":"00000000-0000-0000-0000-000000000007","name":"n","action":"updated","before":3}"#;
        let text = format!(r#"{{"at":1,"principal":"p","manager":"m","objects":[{object}]}}"#);
        let AuditRecord::Commit(event) = serde_json::from_str(&text).unwrap() else { panic!("it is a commit") };
        assert_eq!(event.whose, None);
        assert_eq!((&event.objects[0].was, event.objects[0].left, &event.action), (&None, None, &None));
        assert_eq!(serde_json::to_string(&AuditRecord::Commit(event)).unwrap(), text);
    }

    #[test]
    fn y09_an_entry_says_what_became_of_a_part_and_one_of_before_is_read() {
        let object = |rest: &str| {
            let uuid = "00000000-0000-0000-0000-000000000007";
            format!(r#"{{"kind":"Node","uuid":"{uuid}","name":"n","action":"unchanged","before":3,"part":"p"{rest}}}"#)
        };
        for (rest, expected) in [
            ("", None),
            (r#","part_action":"made""#, Some(PartAction::Made)),
            (r#","part_action":"deleted""#, Some(PartAction::Deleted)),
            (r#","part_action":"issued""#, Some(PartAction::Issued)),
            (r#","part_action":"revoked""#, Some(PartAction::Revoked)),
        ] {
            let text = object(rest);
            let read: AuditedObject = serde_json::from_str(&text).unwrap();
            assert_eq!(read.part_action, expected);
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }

    #[test]
    fn x02_an_entry_says_what_was_done_to_the_fleet_as_a_whole() {
        let epoch = "00000000-0000-0000-0000-00000000000";
        for action in [
            format!(r#"{{"kind":"fleet.resumed","epoch_before":"{epoch}1","epoch_after":"{epoch}2"}}"#),
            r#"{"kind":"backup.made","of_revision":9}"#.to_owned(),
        ] {
            let text = format!(r#"{{"at":1,"principal":"p","manager":"m","objects":[],"action":{action}}}"#);
            let record: AuditRecord = serde_json::from_str(&text).unwrap();
            assert!(matches!(&record, AuditRecord::Commit(event) if event.action.is_some()), "{record:?}");
            assert_eq!(serde_json::to_string(&record).unwrap(), text);
        }
    }
}
