//! Who asked for a commit, and what is written of it beside the objects: the audit event and the record of the
//! request, both in the same transaction, so that neither can be missing or left over.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stemma_core::object::Timestamp;
use stemma_core::ownership::Manager;
use uuid::Uuid;

use super::draft::Touched;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The principal's name.
    pub principal: String,
    /// The name under which fields and keys are owned: the principal's unless the request says another.
    pub manager: Manager,
    /// From where, as `127.0.0.1:4711`; empty for the controller itself.
    pub address: String,
    /// What the person said of it.
    pub reason: Option<String>,
    /// What the request was called in answer and journal.
    pub request_id: String,
    /// The request's `Idempotency-Key`, when it has one.
    pub mark: Option<Mark>,
    /// The write is tried out: decided and answered as ever, and not committed.
    pub dry_run: bool,
}

/// A request that may be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its `Idempotency-Key`.
    pub id: Uuid,
    /// SHA-256 over method, path, query and body.
    pub hash: String,
}

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
    pub objects: Vec<Touched>,
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
    /// From where, as `127.0.0.1:4711`.
    pub address: String,
    /// The reason's code, as in `stemma_rejected_total{reason}`.
    pub refused: String,
    /// How many more of this principal and reason there were since the last such entry.
    pub unsaid: u64,
}

/// What a write answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The path of what was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// What the caller should know (inherited keys that hosts lose).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The body; `null` for none. Where it has a member `resource_version` or `revision` at its top, that is the
    /// revision of the commit, filled in once it is known.
    #[serde(default)]
    pub body: Value,
    /// Nothing was changed: an object's `resource_version` is its own, and stays as it is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// How many hosts it reaches, where it was only tried out. No record has it.
    #[serde(skip)]
    pub hosts: Option<usize>,
}

impl Answer {
    /// An answer without a body.
    pub fn empty(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// An answer with a body.
    pub fn json(status: u16, body: Value) -> Self {
        Self { status, body, ..Self::default() }
    }

    /// Fills in the revision.
    #[must_use]
    pub fn at(mut self, revision: u64) -> Self {
        if let Value::Object(body) = &mut self.body {
            let names = if self.unchanged { &["revision"][..] } else { &["resource_version", "revision"] };
            for name in names {
                if let Some(place) = body.get_mut(*name) {
                    *place = revision.into();
                }
            }
        }
        self
    }
}

/// The record of a request: kept 24 hours, answers `/v1/requests/{id}` and the same request sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// When.
    pub at: Timestamp,
    /// [`Mark::hash`].
    pub hash: String,
    /// What was answered, but for the revision.
    pub answer: Answer,
}

/// For how long a record of a request is kept.
pub const REQUEST_KEPT_MS: u64 = 24 * 3600 * 1000;

impl AuditEvent {
    /// The event of a commit.
    pub fn new(caller: &Caller, at: Timestamp, objects: Vec<Touched>) -> Self {
        Self {
            at,
            principal: caller.principal.clone(),
            manager: caller.manager.to_string(),
            address: caller.address.clone(),
            reason: caller.reason.clone(),
            request_id: caller.request_id.clone(),
            objects,
        }
    }
}
