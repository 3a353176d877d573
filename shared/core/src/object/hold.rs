//! Holds. A hold makes a node keep its task set until a time, or until the hold is revoked. Operators set holds in the
//! controller, and users on a host set them with `stemma-agent`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::field::{FieldType, manifest_struct};

manifest_struct! {
    /// The reason and the end of a hold on a node's task set.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Hold {
        /// The time at which the hold ends.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub until: String = FieldType::Time, "until it is taken back", r#""2026-12-31T00:00:00Z""#;
        /// The reason for the hold.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub reason: String = FieldType::Text, "", r#""a disk is changed""#;
    }
}

/// The state that a user set on the host itself with `stemma-agent`: a pause, a hold, a park. It is separate from the
/// operators' settings, and only the current state is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedState {
    /// True if the host applies nothing until a user resumes it on the host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The end of the hold, in seconds since 1970, and its reason. `u64::MAX` means that the hold lasts until it is
    /// revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<(u64, Arc<str>)>,
    /// The reason, if a user parked the node on its host. Other hosts do not wait for a parked node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<Arc<str>>,
}

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldEnd {
    /// The hold ends at this time.
    Until(Timestamp),
    /// The hold ends when it is revoked.
    UntilRevoked,
}

impl HoldEnd {
    /// Returns whether the hold is in force at `now`. At its end time it is no longer in force. [`Self::UntilRevoked`]
    /// is greater than any time, so such a hold is always in force.
    pub fn is_in_force(self, now: Timestamp) -> bool {
        self > Self::Until(now)
    }
}

impl Hold {
    /// Returns the end of the hold. If `until` is empty or not a valid time, the hold lasts until it is revoked.
    pub fn hold_end(&self) -> HoldEnd {
        self.end_time().map_or(HoldEnd::UntilRevoked, HoldEnd::Until)
    }

    /// Returns the time at which the hold ends, or `None` if `until` is empty or not a valid time.
    pub fn end_time(&self) -> Option<Timestamp> {
        if let Ok(end) = Timestamp::parse(&self.until) {
            return Some(end);
        }
        // Older versions also accepted these forms of a time.
        let end: jiff::Timestamp = self.until.parse().ok()?;
        u64::try_from(end.as_millisecond()).ok().map(Timestamp)
    }
}

impl ReportedState {
    /// Returns the end and the reason of the hold that was set on the host, or `None` if there is none.
    pub fn hold_end(&self) -> Option<(HoldEnd, &str)> {
        let (until_s, reason) = self.hold.as_ref()?;
        let end = Timestamp(until_s.saturating_mul(1000));
        Some((if *until_s == u64::MAX { HoldEnd::UntilRevoked } else { HoldEnd::Until(end) }, reason))
    }
}
