//! The stored record of a write request that has an idempotency key, with the response. A client may send such a
//! request again, and then gets the same response.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stemma_core::object::{ClusterId, PrincipalRole, Timestamp};
use uuid::Uuid;

/// Retention time of the record of a request, in milliseconds.
pub const REQUEST_RETENTION_MS: u64 = 24 * 3600 * 1000;
/// Maximum size of all stored records of requests together, in bytes. A larger size is reduced by the next sweep.
pub const MAX_REQUESTS_BYTES: u64 = 64 << 20;

/// The record of a write request that has an idempotency key. It is retained for at most [`REQUEST_RETENTION_MS`]. The
/// controller answers `/v1/requests/{id}` and a repetition of the same request from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The time of the request.
    pub at: Timestamp,
    /// SHA-256 over method, path, query and body.
    pub hash: String,
    /// The response, without the revision of the commit.
    pub answer: StoredAnswer,
    /// The caller that sent the request, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<RequesterRecord>,
}

/// The caller of a request, with its rights at the time of the request. The record's key contains the uuid of the
/// caller, or the name of a caller that is not a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterRecord {
    /// The uuid of the principal, or `None` if the caller is not a principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Uuid>,
    /// The role of the caller.
    pub role: PrincipalRole,
    /// The cluster that the caller is bound to, or `None` if it may access the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
}

impl RequestRecord {
    /// Returns whether a principal sent this request, for a record whose key contains the caller's name: another
    /// principal may have had that name before. If the record has no uuid, the principal is the sender if it existed at
    /// the time of the request. For example, the record of the first principal's first request has no uuid, because
    /// that request may have created the principal.
    pub fn is_made_by(&self, principal: Uuid, created_at: Timestamp) -> bool {
        match self.asked_by.and_then(|requester| requester.principal) {
            Some(recorded_principal) => recorded_principal == principal,
            None => created_at <= self.at,
        }
    }

    /// Returns whether a caller may see the response. The caller must have sent the request, and must still have all
    /// rights that it had then. If the record has no caller, any caller that is not bound to a cluster may see the
    /// response. If the recorded caller is not a principal, only the rights are compared, because the key of the record
    /// already contains the caller's name.
    pub fn is_visible_to(&self, caller: &RequesterRecord) -> bool {
        let Some(requester) = self.asked_by else { return caller.within.is_none() };
        let same_principal = requester.principal.is_none_or(|uuid| caller.principal == Some(uuid));
        same_principal && caller.role >= requester.role && caller.within.is_none_or(|cluster| requester.within == Some(cluster))
    }
}

/// The response to a write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The path of the created object, or `None` if none was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// A warning for the caller, for example about inherited keys that hosts lose. `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The body, or `null` if there is none. If it has a member `resource_version` or `revision`, this member is set to
    /// the revision of the commit when that revision is known.
    #[serde(default)]
    pub body: Value,
    /// True if the write changed nothing. The member `resource_version` of the body then retains its value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// Number of affected hosts that the caller may see. Set in a dry run, never stored.
    #[serde(skip)]
    pub hosts: Option<usize>,
    /// Number of the affected hosts whose task set changes. Set in a dry run, never stored.
    #[serde(skip)]
    pub task_sets: Option<usize>,
}

impl StoredAnswer {
    /// Creates a response without a body.
    pub fn empty(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Creates a response with a body.
    pub fn json(status: u16, body: Value) -> Self {
        Self { status, body, ..Self::default() }
    }

    /// Sets the members `revision` and `resource_version` of the body to a revision. If the write changed nothing, sets
    /// only `revision`. Members that the body does not have are not added.
    #[must_use]
    pub fn with_revision(mut self, revision: u64) -> Self {
        if let Value::Object(body) = &mut self.body {
            let names = if self.unchanged { &["revision"][..] } else { &["resource_version", "revision"] };
            for name in names {
                if let Some(value) = body.get_mut(*name) {
                    *value = revision.into();
                }
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::codec;

    /// Each row contains the recorded caller, the caller that wants to see the record, and whether it may. A caller is
    /// a principal (by number), a role, and the cluster that the caller is bound to. `old_record` has no caller.
    #[test]
    fn request_record_is_visible_only_with_equal_or_wider_rights() {
        let requester = |principal: Option<u128>, role, within: Option<u128>| RequesterRecord {
            principal: principal.map(Uuid::from_u128),
            role,
            within: within.map(|cluster| ClusterId(Uuid::from_u128(cluster))),
        };
        let (viewer, operator) = (PrincipalRole::Viewer, PrincipalRole::Operator);
        let old_record: RequestRecord =
            codec::decode(br#"{"schema":1,"record":{"at":7,"hash":"h","answer":{"status":201}}}"#).unwrap();
        assert!(
            old_record.is_visible_to(&requester(Some(1), operator, None))
                && !old_record.is_visible_to(&requester(Some(1), operator, Some(2)))
        );
        for (recorded_requester, caller, is_visible) in [
            (requester(Some(1), operator, None), requester(Some(1), operator, None), true),
            (requester(Some(1), operator, Some(2)), requester(Some(1), operator, Some(2)), true),
            (requester(Some(1), operator, None), requester(Some(1), operator, Some(2)), false),
            (requester(Some(1), operator, Some(3)), requester(Some(1), operator, Some(2)), false),
            (requester(Some(1), operator, Some(2)), requester(Some(1), operator, None), true),
            (requester(Some(1), operator, None), requester(Some(1), viewer, None), false),
            (requester(Some(1), viewer, None), requester(Some(1), operator, None), true),
            (requester(Some(1), viewer, None), requester(Some(1), operator, Some(2)), false),
            (requester(Some(1), operator, None), requester(Some(4), operator, None), false),
            (requester(Some(1), operator, None), requester(None, operator, None), false),
            (requester(None, operator, None), requester(Some(1), operator, None), true),
        ] {
            let record = RequestRecord { asked_by: Some(recorded_requester), ..old_record.clone() };
            assert_eq!(record.is_visible_to(&caller), is_visible, "{recorded_requester:?} {caller:?}");
            assert_eq!(codec::decode::<RequestRecord>(&codec::encode(&record)).unwrap(), record);
        }
    }

    /// The request was sent at time 7. Each row contains the recorded caller, the uuid of a principal and the time of
    /// its creation. Without a recorded uuid, only a principal that existed at time 7 can be the sender.
    #[test]
    fn x04_f11_request_record_belongs_to_sender_after_name_reuse() {
        let asked_by = |principal: Option<u128>| {
            let principal = principal.map(Uuid::from_u128);
            Some(RequesterRecord { principal, role: PrincipalRole::Operator, within: None })
        };
        let answer = StoredAnswer::empty(200);
        let record = |asked_by| RequestRecord { at: Timestamp(7), hash: String::new(), answer: answer.clone(), asked_by };
        for (asked_by, principal, created_at, is_requester) in [
            (asked_by(Some(1)), 1, 3, true),
            (asked_by(Some(1)), 2, 3, false),
            (asked_by(None), 2, 7, true),
            (asked_by(None), 2, 8, false),
            (None, 2, 7, true),
            (None, 2, 8, false),
        ] {
            let record = record(asked_by);
            assert_eq!(
                record.is_made_by(Uuid::from_u128(principal), Timestamp(created_at)),
                is_requester,
                "{record:?} {principal}"
            );
        }
    }
}
