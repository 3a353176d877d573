//! The stored audit log: the effect of each write of a caller on objects, and the refused requests.
//!
//! The commit of such a write contains its audit event, so a write without an event, or an event without a write,
//! cannot exist. Commits of reports, results and released task sets have no event.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stemma_core::object::{ClusterId, Kind, Timestamp};
use uuid::Uuid;

/// An audit event of a commit. The key of the record contains the revision of the commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// The time of the commit.
    pub at: Timestamp,
    /// The name of the caller that made the commit: a principal, or for example root or the controller itself.
    pub principal: String,
    /// The identity of the principal, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<PrincipalRef>,
    /// The field manager of the write.
    pub manager: String,
    /// The address of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The reason that the caller gave for the write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The id of the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// The objects that the commit changed or that the write is about, with the effect on each.
    pub objects: Vec<AuditedObject>,
    /// An action on the fleet as a whole, which is not an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<FleetAction>,
}

/// An action on the fleet as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum FleetAction {
    /// An admin resumed the fleet (after a restore, or while hosts were ahead), and so moved the hosts to a new epoch.
    #[serde(rename = "fleet.resumed")]
    Resumed {
        /// The epoch in which the hosts were before.
        epoch_before: Uuid,
        /// The epoch in which the hosts are now.
        epoch_after: Uuid,
    },
    /// A backup was created.
    #[serde(rename = "backup.made")]
    BackupMade {
        /// The revision of the store that the backup contains.
        of_revision: u64,
    },
    /// A join token that is bound to neither a node nor a node group was created.
    #[serde(rename = "token.made")]
    TokenMade {
        /// The token's id, without the secret.
        token: String,
    },
    /// A join token that is bound to no node or node group, or to one that no longer exists, was deleted.
    #[serde(rename = "token.deleted")]
    TokenDeleted {
        /// The token's id.
        token: String,
    },
}

/// An entry of the audit log: a commit or a refusal. Both share one sequence of revisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AuditRecord {
    /// A commit.
    Commit(AuditEvent),
    /// A refusal of a caller whose name is known ([`RefusalRecord`]). It changes no object, and the record names none.
    Refusal(RefusalRecord),
}

/// A refused request of a caller with a name (from its certificate or token, even an invalid one), a refused part of a
/// host's report, or two hosts with one identity. The key of the record contains the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusalRecord {
    /// The time of the refusal.
    pub at: Timestamp,
    /// The name of the caller, or `others` for callers that are counted together, because too many were refused.
    pub principal: String,
    /// The identity of the caller, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<PrincipalRef>,
    /// The address of the client, such as `127.0.0.1:4711`.
    pub address: String,
    /// The address of the other host, if the entry is about two hosts that share one identity. Otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_address: Option<String>,
    /// The code of the reason, as in `stemma_rejected_total{reason}`.
    pub refused: String,
    /// Number of further refusals with this principal and reason that got no entry, since the last entry for them.
    pub unsaid: u64,
}

/// The identity of a caller. The name does not identify a caller, because a new principal may get the name of a deleted
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalRef {
    /// The stored principal with this uuid.
    Principal(Uuid),
    /// No stored principal. The caller is root, a host, the controller itself, or has a credential that belongs to no
    /// principal. Also the value of an entry for several refused callers that are counted together.
    Nobody,
}

impl From<Option<Uuid>> for PrincipalRef {
    fn from(principal: Option<Uuid>) -> Self {
        principal.map_or(Self::Nobody, Self::Principal)
    }
}

/// The time of an audit entry. This type reads only the time of an entry, which is a commit or a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct AuditTime {
    /// The time of the entry.
    pub at: Timestamp,
}

/// The effect of a commit on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The object was created.
    Created,
    /// The object existed before and was changed, for example in its spec or its name.
    Updated,
    /// The object was deleted.
    Deleted,
    /// The object was not changed: it was as requested, or the write is about it, such as a join token for a node.
    Unchanged,
}

/// The effect of a commit on one object, as stored in the audit event. The history has the images of the object: the
/// state before the commit at the revision `before` and, after a change, the new state at the revision of the event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedObject {
    /// The kind of the object.
    pub kind: Kind,
    /// The uuid of the object.
    pub uuid: Uuid,
    /// The object's name at the time of the commit.
    pub name: String,
    /// The name of the object's cluster at the time of the commit, for a node group or a primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The effect on the object.
    pub action: Action,
    /// The revision of the previous image in the history, or `None` if the commit created the object.
    pub before: Option<u64>,
    /// The clusters of the object before and after the commit. A principal that is bound to one of these clusters may
    /// see this entry, even after the object was deleted.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterId>,
    /// The previous name, if the commit renamed the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The cluster that the object left. A principal that is bound to that cluster sees this entry with the name that
    /// the object had there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<ClusterId>,
    /// The part of the object that was created, issued, deleted or revoked. It is `certificates.SERIAL` or `tokens.ID`
    /// of a principal, or several of these separated by `, `. It is `certificates.SERIAL` of a node that joined, and
    /// `join-tokens.ID` of the node or node group that a join token is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The effect on `part`, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_action: Option<PartAction>,
}

/// The effect of a commit on a part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartAction {
    /// A bearer token or a join token was created.
    Made,
    /// A join token was deleted.
    Deleted,
    /// A certificate was issued.
    Issued,
    /// A certificate or a bearer token was revoked.
    Revoked,
    /// A reboot of a node's host was requested.
    Requested,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_event_round_trips_when_older_version_wrote_record() {
        let object = r#"{"kind":"Node","uuid":"00000000-0000-0000-0000-000000000007","name":"n","action":"updated","before":3}"#;
        let text = format!(r#"{{"at":1,"principal":"p","manager":"m","objects":[{object}]}}"#);
        let AuditRecord::Commit(event) = serde_json::from_str(&text).unwrap() else { panic!("the record is not a commit") };
        assert_eq!(event.whose, None);
        assert_eq!((&event.objects[0].was, event.objects[0].left, &event.action), (&None, None, &None));
        assert_eq!(serde_json::to_string(&AuditRecord::Commit(event)).unwrap(), text);
    }

    #[test]
    fn y09_audited_object_round_trips_with_and_without_part_action() {
        let object = |more_members: &str| {
            let uuid = "00000000-0000-0000-0000-000000000007";
            format!(r#"{{"kind":"Node","uuid":"{uuid}","name":"n","action":"unchanged","before":3,"part":"p"{more_members}}}"#)
        };
        for (more_members, expected) in [
            ("", None),
            (r#","part_action":"made""#, Some(PartAction::Made)),
            (r#","part_action":"deleted""#, Some(PartAction::Deleted)),
            (r#","part_action":"issued""#, Some(PartAction::Issued)),
            (r#","part_action":"revoked""#, Some(PartAction::Revoked)),
            (r#","part_action":"requested""#, Some(PartAction::Requested)),
        ] {
            let text = object(more_members);
            let decoded: AuditedObject = serde_json::from_str(&text).unwrap();
            assert_eq!(decoded.part_action, expected);
            assert_eq!(serde_json::to_string(&decoded).unwrap(), text);
        }
    }

    #[test]
    fn x02_audit_event_round_trips_with_fleet_action() {
        // The uuids of the epochs without their last digit.
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
