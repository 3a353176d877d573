//! Lifecycle limits: how long a drain, the detachment of volumes or a deletion may take, and how long a host must stay
//! ready before it counts as available.
//!
//! Every level may set a limit, and the nearest level that sets it decides. Limits are part of the *known* state. A
//! change reaches a host at once, even while it drains, and starts no task (Cluster API's in-place propagation).
//! An unset limit and zero differ. An unset limit is inherited from the level above. Zero means "no limit" for a
//! timeout, and overrides the levels above. For deletions, Cluster API does not distinguish unset and zero. Stemma
//! does, and uses Cluster API's default if the limit is unset.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::origin::{Level, ValueWithOrigin, nearest_value};
use crate::time::MAX_DURATION_SECONDS;

/// One of the four lifecycle fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LifecycleField {
    /// Maximum duration of a host's `drain` tasks.
    NodeDrainTimeout,
    /// Maximum duration of the detachment of the host's volumes, after the drain.
    NodeVolumeDetachTimeout,
    /// Maximum duration of the `cleanup` tasks of a deleted host.
    NodeDeletionTimeout,
    /// Minimum duration for which a host is ready before it counts as available. Zero means no wait.
    MinReadySeconds,
}

/// A maximum duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// No limit.
    Forever,
    /// At most this duration.
    Within(Duration),
}

/// Where the limit in force comes from: a level, or the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitOrigin {
    /// No level sets it.
    Default,
    /// The nearest level that sets it.
    Level(Level),
}

/// The lifecycle fields as the author of one level wrote them, in whole seconds. A field that is left out or `null` is
/// unset.
///
/// The integers are narrow, because every node of a fleet has a copy. [`MAX_DURATION_SECONDS`] fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lifecycle {
    /// [`LifecycleField::NodeDrainTimeout`].
    pub node_drain_timeout: Option<i32>,
    /// [`LifecycleField::NodeVolumeDetachTimeout`].
    pub node_volume_detach_timeout: Option<i32>,
    /// [`LifecycleField::NodeDeletionTimeout`].
    pub node_deletion_timeout: Option<i32>,
    /// [`LifecycleField::MinReadySeconds`].
    pub min_ready_seconds: Option<i32>,
}

/// The four lifecycle limits in force on a host, each with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleLimits {
    /// [`LifecycleField::NodeDrainTimeout`].
    pub node_drain_timeout: ValueWithOrigin<Limit, LimitOrigin>,
    /// [`LifecycleField::NodeVolumeDetachTimeout`].
    pub node_volume_detach_timeout: ValueWithOrigin<Limit, LimitOrigin>,
    /// [`LifecycleField::NodeDeletionTimeout`].
    pub node_deletion_timeout: ValueWithOrigin<Limit, LimitOrigin>,
    /// [`LifecycleField::MinReadySeconds`]: always [`Limit::Within`].
    pub min_ready_seconds: ValueWithOrigin<Limit, LimitOrigin>,
}

/// The error for a limit out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} takes 0 ({}) to {MAX_DURATION_SECONDS} seconds, not {seconds}", field.name(), field.zero_meaning())]
pub struct LimitOutOfRange {
    /// The field.
    pub field: LifecycleField,
    /// The number that was written.
    pub seconds: i64,
}

impl LifecycleField {
    /// Returns the name in manifests and over HTTP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeDrainTimeout => "node_drain_timeout",
            Self::NodeVolumeDetachTimeout => "node_volume_detach_timeout",
            Self::NodeDeletionTimeout => "node_deletion_timeout",
            Self::MinReadySeconds => "min_ready_seconds",
        }
    }

    /// Returns the limit that applies if no level sets one. The deletion default of ten seconds is Cluster API's.
    pub(crate) const fn default_limit(self) -> Limit {
        match self {
            Self::NodeDrainTimeout | Self::NodeVolumeDetachTimeout => Limit::Forever,
            Self::NodeDeletionTimeout => Limit::Within(Duration::from_secs(10)),
            Self::MinReadySeconds => Limit::Within(Duration::ZERO),
        }
    }

    /// Converts an author's whole seconds to a limit.
    ///
    /// # Errors
    /// [`LimitOutOfRange`] for less than 0 or more than [`MAX_DURATION_SECONDS`].
    pub fn limit(self, seconds: i64) -> Result<Limit, LimitOutOfRange> {
        match u64::try_from(seconds) {
            Ok(0) => Ok(self.zero_limit()),
            Ok(seconds) if seconds <= MAX_DURATION_SECONDS => Ok(Limit::Within(Duration::from_secs(seconds))),
            _ => Err(LimitOutOfRange { field: self, seconds }),
        }
    }

    /// Returns the limit in force. `limits` contains the levels that set one, in any order.
    pub fn resolve(self, limits: impl IntoIterator<Item = (Level, Limit)>) -> ValueWithOrigin<Limit, LimitOrigin> {
        nearest_value(limits).map_or_else(
            || ValueWithOrigin { value: self.default_limit(), origin: LimitOrigin::Default },
            |limit| ValueWithOrigin { value: limit.value, origin: LimitOrigin::Level(limit.origin) },
        )
    }

    const fn zero_limit(self) -> Limit {
        match self {
            Self::NodeDrainTimeout | Self::NodeVolumeDetachTimeout | Self::NodeDeletionTimeout => Limit::Forever,
            Self::MinReadySeconds => Limit::Within(Duration::ZERO),
        }
    }

    const fn zero_meaning(self) -> &'static str {
        match self.zero_limit() {
            Limit::Forever => "no limit",
            Limit::Within(_) => "no wait",
        }
    }
}

impl Lifecycle {
    /// Returns the seconds that were written for a field.
    pub fn get(&self, field: LifecycleField) -> Option<i64> {
        let written = match field {
            LifecycleField::NodeDrainTimeout => self.node_drain_timeout,
            LifecycleField::NodeVolumeDetachTimeout => self.node_volume_detach_timeout,
            LifecycleField::NodeDeletionTimeout => self.node_deletion_timeout,
            LifecycleField::MinReadySeconds => self.min_ready_seconds,
        };
        written.map(i64::from)
    }
}

impl LifecycleLimits {
    /// Returns the limit in force of each field.
    pub fn by_field(&self) -> [(LifecycleField, ValueWithOrigin<Limit, LimitOrigin>); 4] {
        let Self { node_drain_timeout, node_volume_detach_timeout, node_deletion_timeout, min_ready_seconds } = *self;
        [
            (LifecycleField::NodeDrainTimeout, node_drain_timeout),
            (LifecycleField::NodeVolumeDetachTimeout, node_volume_detach_timeout),
            (LifecycleField::NodeDeletionTimeout, node_deletion_timeout),
            (LifecycleField::MinReadySeconds, min_ready_seconds),
        ]
    }

    /// Merges the fields of the levels, in any order. A number out of range is ignored.
    pub fn resolve(levels: &[(Level, Lifecycle)]) -> Self {
        let resolve_field = |field: LifecycleField| {
            field.resolve(levels.iter().filter_map(|(level, written)| {
                let limit = field.limit(written.get(field)?).ok()?;
                Some((*level, limit))
            }))
        };
        Self {
            node_drain_timeout: resolve_field(LifecycleField::NodeDrainTimeout),
            node_volume_detach_timeout: resolve_field(LifecycleField::NodeVolumeDetachTimeout),
            node_deletion_timeout: resolve_field(LifecycleField::NodeDeletionTimeout),
            min_ready_seconds: resolve_field(LifecycleField::MinReadySeconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{Cluster, ClusterTemplate, Node, NodeGroup};
    use LifecycleField::{MinReadySeconds, NodeDeletionTimeout, NodeDrainTimeout};
    use Limit::{Forever, Within};

    const MINUTE: Limit = Within(Duration::from_mins(1));
    const HOUR: Limit = Within(Duration::from_hours(1));

    #[test]
    fn resolve_uses_nearest_level() {
        for (field, said, value, origin) in [
            (NodeDrainTimeout, vec![], Forever, LimitOrigin::Default),
            (NodeDeletionTimeout, vec![], Within(Duration::from_secs(10)), LimitOrigin::Default),
            (MinReadySeconds, vec![], Within(Duration::ZERO), LimitOrigin::Default),
            (NodeDrainTimeout, vec![(ClusterTemplate, HOUR)], HOUR, LimitOrigin::Level(ClusterTemplate)),
            (NodeDrainTimeout, vec![(Node, MINUTE), (Cluster, HOUR)], MINUTE, LimitOrigin::Level(Node)),
            (NodeDeletionTimeout, vec![(Cluster, HOUR), (NodeGroup, Forever)], Forever, LimitOrigin::Level(NodeGroup)),
        ] {
            assert_eq!(field.resolve(said.clone()), ValueWithOrigin { value, origin }, "{field:?} {said:?}");
        }
    }

    #[test]
    fn limit_accepts_only_whole_seconds_in_range() {
        assert_eq!(NodeDrainTimeout.limit(0), Ok(Forever));
        assert_eq!(MinReadySeconds.limit(0), Ok(Within(Duration::ZERO)));
        assert_eq!(NodeDrainTimeout.limit(60), Ok(MINUTE));
        for seconds in [-1, i64::MIN, i64::try_from(MAX_DURATION_SECONDS).unwrap() + 1] {
            let refused = NodeDrainTimeout.limit(seconds).unwrap_err();
            assert_eq!(refused.to_string(), format!("node_drain_timeout takes 0 (no limit) to 31622400 seconds, not {seconds}"));
        }
        assert_eq!(
            MinReadySeconds.limit(-1).unwrap_err().to_string(),
            "min_ready_seconds takes 0 (no wait) to 31622400 seconds, not -1"
        );
    }

    #[test]
    fn lifecycle_resolves_each_field_separately() {
        let template = Lifecycle { node_drain_timeout: Some(3600), min_ready_seconds: Some(60), ..Lifecycle::default() };
        let node = Lifecycle { node_drain_timeout: Some(0), ..Lifecycle::default() };
        let limits = LifecycleLimits::resolve(&[(Node, node), (ClusterTemplate, template)]);
        assert_eq!(limits.node_drain_timeout, ValueWithOrigin { value: Forever, origin: LimitOrigin::Level(Node) });
        assert_eq!(limits.min_ready_seconds, ValueWithOrigin { value: MINUTE, origin: LimitOrigin::Level(ClusterTemplate) });
        assert_eq!(limits.node_deletion_timeout.origin, LimitOrigin::Default);
    }
}
