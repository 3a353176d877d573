//! Holds: a node keeps its task set, as operators say or someone on the host, until a time or until that is taken back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::field::{Form, described};

described! {
    /// Why, and until when, a node keeps its task set.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Hold {
        /// Until this date the node keeps its task set.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub until: String = Form::Time, "until it is taken back", r#""2026-12-31T00:00:00Z""#;
        /// Why.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub reason: String = Form::Text, "", r#""a disk is changed""#;
    }
}

/// What was said on the host itself: `stemma-agent pause`, a hold, a park. Kept apart from what operators say of it; a
/// state of now, without history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaidOnHost {
    /// It applies nothing until it is resumed there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// It keeps its task set until then (seconds since 1970), for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<(u64, Arc<str>)>,
    /// Out of budgets and barriers, for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<Arc<str>>,
}

/// Until when a node keeps its task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Until then.
    Until(Timestamp),
    /// Until the hold is taken back.
    UntilTakenBack,
}

impl Held {
    /// Whether it keeps the task set at that time: it is over at its end.
    pub fn is_in_force(self, now: Timestamp) -> bool {
        self > Self::Until(now)
    }
}

impl Hold {
    /// Until when; one that is stored with an end that is no time holds until it is taken back.
    pub fn held(&self) -> Held {
        self.end().map_or(Held::UntilTakenBack, Held::Until)
    }

    /// When it ends, where that is a time.
    pub fn end(&self) -> Option<Timestamp> {
        if let Ok(end) = Timestamp::read(&self.until) {
            return Some(end);
        }
        // As an older program took it.
        let end: jiff::Timestamp = self.until.parse().ok()?;
        u64::try_from(end.as_millisecond()).ok().map(Timestamp)
    }
}

impl SaidOnHost {
    /// Until when it is held, and why; `None`: nobody held it there.
    pub fn held(&self) -> Option<(Held, &str)> {
        let (until_s, reason) = self.hold.as_ref()?;
        let end = Timestamp(until_s.saturating_mul(1000));
        Some((if *until_s == u64::MAX { Held::UntilTakenBack } else { Held::Until(end) }, reason))
    }
}
