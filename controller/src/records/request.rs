//! The stored record of a request that may be sent again: the fact that it was made, and its response.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stemma_core::object::{ClusterId, PrincipalRole, Timestamp};
use uuid::Uuid;

/// How long the record of a request is retained, in milliseconds.
pub const REQUEST_RETENTION_MS: u64 = 24 * 3600 * 1000;
/// Maximum size of all records of requests, in bytes.
pub const MAX_REQUESTS_BYTES: u64 = 64 << 20;

/// The record of a request. It is retained for 24 hours, and answers `/v1/requests/{id}` and a repeat of the same
/// request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The time of the request.
    pub at: Timestamp,
    /// SHA-256 over method, path, query and body.
    pub hash: String,
    /// The response, without the revision.
    pub answer: StoredAnswer,
    /// The caller, or `None` in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<RequesterRecord>,
}

/// The caller of a request, with its rights at that time. Its uuid, or its name if it is not a principal, is in the
/// record's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequesterRecord {
    /// The uuid of the principal, or `None` if the caller is not a principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Uuid>,
    /// The role of the caller.
    pub role: PrincipalRole,
    /// The cluster that the caller is bound to, or `None` for the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
}

impl RequestRecord {
    /// Returns whether a principal made this request, for a record that is stored under the name of the caller. Another
    /// principal may have had that name before. If the record has no uuid, the principal made the request if it existed
    /// at that time. The first principal of a fleet is an example: its own first request may have created it.
    pub fn is_made_by(&self, principal: Uuid, created_at: Timestamp) -> bool {
        match self.asked_by.and_then(|requester| requester.principal) {
            Some(recorded) => recorded == principal,
            None => created_at <= self.at,
        }
    }

    /// Returns whether a caller may see the response. It must have made the request, and must still have all rights
    /// that it had then. If the record has no caller, it must not be bound to a cluster.
    pub fn is_visible_to(&self, caller: &RequesterRecord) -> bool {
        let Some(recorded) = self.asked_by else { return caller.within.is_none() };
        let is_same = recorded.principal.is_none_or(|uuid| caller.principal == Some(uuid));
        is_same && caller.role >= recorded.role && caller.within.is_none_or(|cluster| recorded.within == Some(cluster))
    }
}

/// The response to a write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The path of the created object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// A warning for the caller, for example about inherited keys that hosts lose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// The body, or `null` for none. A top-level member `resource_version` or `revision` is set to the revision of the
    /// commit once that is known.
    #[serde(default)]
    pub body: Value,
    /// True if nothing was changed. Then the `resource_version` of the object is left as it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// Number of hosts that the write affects, for a dry run. Not stored.
    #[serde(skip)]
    pub hosts: Option<usize>,
    /// Number of the affected hosts whose task set changes, for a dry run. Not stored.
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

    /// Sets the revision in the body.
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

    #[test]
    fn request_record_is_visible_only_with_equal_or_wider_rights() {
        let by = |principal: Option<u128>, role, within: Option<u128>| RequesterRecord {
            principal: principal.map(Uuid::from_u128),
            role,
            within: within.map(|cluster| ClusterId(Uuid::from_u128(cluster))),
        };
        let (viewer, operator) = (PrincipalRole::Viewer, PrincipalRole::Operator);
        let old: RequestRecord = codec::decode(br#"{"schema":1,"record":{"at":7,"hash":"h","answer":{"status":201}}}"#).unwrap();
        assert!(old.is_visible_to(&by(Some(1), operator, None)) && !old.is_visible_to(&by(Some(1), operator, Some(2))));
        for (asked, asks, is_given) in [
            (by(Some(1), operator, None), by(Some(1), operator, None), true),
            (by(Some(1), operator, Some(2)), by(Some(1), operator, Some(2)), true),
            (by(Some(1), operator, None), by(Some(1), operator, Some(2)), false),
            (by(Some(1), operator, Some(3)), by(Some(1), operator, Some(2)), false),
            (by(Some(1), operator, Some(2)), by(Some(1), operator, None), true),
            (by(Some(1), operator, None), by(Some(1), viewer, None), false),
            (by(Some(1), viewer, None), by(Some(1), operator, None), true),
            (by(Some(1), viewer, None), by(Some(1), operator, Some(2)), false),
            (by(Some(1), operator, None), by(Some(4), operator, None), false),
            (by(Some(1), operator, None), by(None, operator, None), false),
            (by(None, operator, None), by(Some(1), operator, None), true),
        ] {
            let record = RequestRecord { asked_by: Some(asked), ..old.clone() };
            assert_eq!(record.is_visible_to(&asks), is_given, "{asked:?} {asks:?}");
            assert_eq!(codec::decode::<RequestRecord>(&codec::encode(&record)).unwrap(), record);
        }
    }

    #[test]
    fn x04_f11_request_record_belongs_to_maker_when_name_is_reused() {
        let asked_by = |principal: Option<u128>| {
            let principal = principal.map(Uuid::from_u128);
            Some(RequesterRecord { principal, role: PrincipalRole::Operator, within: None })
        };
        let answer = StoredAnswer::empty(200);
        let record = |asked_by| RequestRecord { at: Timestamp(7), hash: String::new(), answer: answer.clone(), asked_by };
        for (asked_by, principal, made_at, is_its) in [
            (asked_by(Some(1)), 1, 3, true),
            (asked_by(Some(1)), 2, 3, false),
            (asked_by(None), 2, 7, true),
            (asked_by(None), 2, 8, false),
            (None, 2, 7, true),
            (None, 2, 8, false),
        ] {
            let record = record(asked_by);
            assert_eq!(record.is_made_by(Uuid::from_u128(principal), Timestamp(made_at)), is_its, "{record:?} {principal}");
        }
    }
}
