//! What is stored of a request that may be sent again: that it was made, and what it was answered.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stemma_core::object::Timestamp;

/// For how long a record of a request is kept.
pub const REQUEST_KEPT_MS: u64 = 24 * 3600 * 1000;

/// The record of a request: kept 24 hours, answers `/v1/requests/{id}` and the same request sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// When.
    pub at: Timestamp,
    /// SHA-256 over method, path, query and body.
    pub hash: String,
    /// What was answered, but for the revision.
    pub answer: Answer,
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
