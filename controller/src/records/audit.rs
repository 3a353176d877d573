//! The stored audit log: what each commit did to which objects, and which requests were refused.
//!
//! A commit writes its own audit event, so a commit without an event, or an event without a commit, cannot exist.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stemma_core::object::{ClusterId, Kind, Timestamp};
use uuid::Uuid;

/// An audit event of a commit. The revision is in the record's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEvent {
    /// The time of the commit.
    pub at: Timestamp,
    /// The name of the principal that made the commit.
    pub principal: String,
    /// The identity of the principal, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<PrincipalRef>,
    /// The field manager of the write.
    pub manager: String,
    /// The address of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The reason that the person gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The id of the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// The objects that the commit changed, with the effect on each.
    pub objects: Vec<AuditedObject>,
    /// An action on the fleet as a whole, which is not an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<FleetAction>,
}

/// An action on the fleet as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum FleetAction {
    /// The hosts were moved to a new epoch after the store was restored.
    #[serde(rename = "fleet.resumed")]
    Resumed {
        /// The epoch that the hosts were in.
        epoch_before: Uuid,
        /// The epoch that the hosts are in now.
        epoch_after: Uuid,
    },
    /// A backup was created.
    #[serde(rename = "backup.made")]
    BackupMade {
        /// The revision that the backup contains.
        of_revision: u64,
    },
    /// A join token was created for hosts that join without a node group.
    #[serde(rename = "token.made")]
    TokenMade {
        /// The token's id, without the secret.
        token: String,
    },
    /// A join token for hosts that join without a node group was deleted.
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
    /// A refusal after authentication. It changes and names no object.
    Refusal(RefusalRecord),
}

/// A refused request of an authenticated caller. The revision is in the record's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusalRecord {
    /// The time of the refusal.
    pub at: Timestamp,
    /// The name of the caller.
    pub principal: String,
    /// The identity of the caller, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whose: Option<PrincipalRef>,
    /// The address of the client, such as `127.0.0.1:4711`.
    pub address: String,
    /// The address of the other host, if two hosts share one identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_address: Option<String>,
    /// The code of the reason, as in `stemma_rejected_total{reason}`.
    pub refused: String,
    /// Number of further refusals with this principal and reason since the last such entry.
    pub unsaid: u64,
}

/// The identity of a caller. The name is not enough, because a new principal may get the name of a deleted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrincipalRef {
    /// The stored principal with this uuid.
    Principal(Uuid),
    /// No stored principal: root, a host, the controller itself, or a caller whose credential belongs to no principal.
    Nobody,
}

impl From<Option<Uuid>> for PrincipalRef {
    fn from(principal: Option<Uuid>) -> Self {
        principal.map_or(Self::Nobody, Self::Principal)
    }
}

/// The time of an audit entry. This type reads the entry, a commit or a refusal, if nothing else of it is needed.
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
    /// The spec was changed.
    Updated,
    /// The object was deleted.
    Deleted,
    /// The object already was as requested.
    Unchanged,
}

/// The effect of a commit on one object, as stored in the audit event. The history has the images of the object: that
/// from before the commit at the revision `before`, and that from after it at the revision of the event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedObject {
    /// The kind of the object.
    pub kind: Kind,
    /// The uuid of the object.
    pub uuid: Uuid,
    /// The object's name at the time.
    pub name: String,
    /// For a group or a primary, the name of its cluster at the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The effect on the object.
    pub action: Action,
    /// The revision of the previous image, or `None` for a new object.
    pub before: Option<u64>,
    /// The clusters of the object before and after the commit. A principal bound to one of them may see this entry,
    /// also after the object was deleted.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterId>,
    /// The previous name, if the commit renamed the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The cluster that the object left. A principal bound to that cluster sees the entry under the name that the
    /// object had there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<ClusterId>,
    /// The part of the object that was created or revoked: `certificates.SERIAL` or `tokens.ID` of a principal or of a
    /// node that joined, or `join-tokens.ID` of the node or node group that a join token is for.
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
    /// A token was created.
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
    fn audit_event_round_trips_when_older_version_wrote_record() {
        let object = r#"{"kind":"Node","uuid":"00000000-0000-0000-0000-000000000007","name":"n","action":"updated","before":3}"#;
        let text = format!(r#"{{"at":1,"principal":"p","manager":"m","objects":[{object}]}}"#);
        let AuditRecord::Commit(event) = serde_json::from_str(&text).unwrap() else { panic!("it is a commit") };
        assert_eq!(event.whose, None);
        assert_eq!((&event.objects[0].was, event.objects[0].left, &event.action), (&None, None, &None));
        assert_eq!(serde_json::to_string(&AuditRecord::Commit(event)).unwrap(), text);
    }

    #[test]
    fn y09_audited_object_round_trips_with_and_without_part_action() {
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
    fn x02_audit_event_round_trips_with_fleet_action() {
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
