//! What is stored of a request that may be sent again: that it was made, and what it was answered.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stemma_core::object::{ClusterId, PrincipalRole, Timestamp};
use uuid::Uuid;

/// For how long a record of a request is kept.
pub const REQUEST_KEPT_MS: u64 = 24 * 3600 * 1000;
/// How many bytes all records of requests may take.
pub const REQUESTS_BYTES: u64 = 64 << 20;

/// The record of a request: kept 24 hours, answers `/v1/requests/{id}` and the same request sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// When.
    pub at: Timestamp,
    /// SHA-256 over method, path, query and body.
    pub hash: String,
    /// What was answered, but for the revision.
    pub answer: Answer,
    /// To whom; `None` in a record of before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<AskedBy>,
}

/// Who asked, and what they might do then. Their uuid stands in the record's key, or their name where they are no principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedBy {
    /// The principal; `None` for who is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Uuid>,
    /// As what.
    pub role: PrincipalRole,
    /// In which cluster; `None`: the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<ClusterId>,
}

impl RequestRecord {
    /// Whether it is a principal's though it stands under a name: that may have been another's before. One in which no principal is noted is
    /// its own where the principal was there then, as the first one of a fleet, which may be stored by the very request.
    pub fn is_of(&self, principal: Uuid, made_at: Timestamp) -> bool {
        match self.asked_by.and_then(|asked| asked.principal) {
            Some(asked) => asked == principal,
            None => made_at <= self.at,
        }
    }

    /// Whether its answer is for who asks now: it was given to them, and they may still do all that they might then. One who is bound to a
    /// cluster is given none of which that is not known.
    pub fn is_for(&self, asks: &AskedBy) -> bool {
        let Some(asked) = self.asked_by else { return asks.within.is_none() };
        let is_same = asked.principal.is_none_or(|before| asks.principal == Some(before));
        is_same && asks.role >= asked.role && asks.within.is_none_or(|cluster| asked.within == Some(cluster))
    }
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
    /// Of how many of them the task set changes, likewise.
    #[serde(skip)]
    pub task_sets: Option<usize>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::codec;

    #[test]
    fn an_answer_is_for_who_was_given_it_and_one_of_before_for_who_sees_all() {
        let by = |principal: Option<u128>, role, within: Option<u128>| AskedBy {
            principal: principal.map(Uuid::from_u128),
            role,
            within: within.map(|cluster| ClusterId(Uuid::from_u128(cluster))),
        };
        let (viewer, operator) = (PrincipalRole::Viewer, PrincipalRole::Operator);
        let old: RequestRecord =
            codec::decode(br#"{"schema":1,"record":{"at":7,"hash":"h","answer":{"status":201}}}"#).unwrap();
        assert!(old.is_for(&by(Some(1), operator, None)) && !old.is_for(&by(Some(1), operator, Some(2))));
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
            assert_eq!(record.is_for(&asks), is_given, "{asked:?} {asks:?}");
            assert_eq!(codec::decode::<RequestRecord>(&codec::encode(&record)).unwrap(), record);
        }
    }

    #[test]
    fn x04_f11_a_record_under_a_name_is_of_the_principal_that_made_the_request_and_of_no_later_one() {
        let asked_by = |principal: Option<u128>| {
            let principal = principal.map(Uuid::from_u128);
            Some(AskedBy { principal, role: PrincipalRole::Operator, within: None })
        };
        let answer = Answer::empty(200);
        let record =
            |asked_by| RequestRecord { at: Timestamp(7), hash: String::new(), answer: answer.clone(), asked_by };
        for (asked_by, principal, made_at, is_its) in [
            (asked_by(Some(1)), 1, 3, true),
            (asked_by(Some(1)), 2, 3, false),
            (asked_by(None), 2, 7, true),
            (asked_by(None), 2, 8, false),
            (None, 2, 7, true),
            (None, 2, 8, false),
        ] {
            let record = record(asked_by);
            assert_eq!(record.is_of(Uuid::from_u128(principal), Timestamp(made_at)), is_its, "{record:?} {principal}");
        }
    }
}
