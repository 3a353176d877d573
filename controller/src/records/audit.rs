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
    /// What it did.
    pub objects: Vec<AuditedObject>,
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

impl AuditRecord {
    /// When it was.
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Commit(event) => event.at,
            Self::Refusal(refusal) => refusal.at,
        }
    }
}

/// A refusal of somebody who had shown who they are. Its revision is in its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub principal: String,
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
    /// Of a group: the name of its cluster at the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// What became of it.
    pub action: Action,
    /// The revision of its image before; `None` for a new one.
    pub before: Option<u64>,
    /// The clusters that it stood in, before and after: whoever is bound to one of them is shown it, also when it is gone.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterId>,
    /// Which part of it was made or taken back, as `certificates.SERIAL` or `tokens.ID` of a principal, or of a node that joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
}
