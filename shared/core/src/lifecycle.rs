//! Lifecycle limits: the maximum durations of a drain, of the detachment of volumes and of a deletion, and the minimum
//! duration for which a host must be ready before it is available.
//!
//! Every level may set a limit, and the level nearest to the host that sets the limit decides. Limits are part of the
//! *known* state. A change reaches a host at once, even during a drain, and starts no task. Cluster API calls this
//! in-place propagation. Nothing enforces the limits yet. Hosts receive them, and an object that sets one has the
//! finding `field.idle`.
//!
//! An unset limit and zero differ. An unset limit is inherited from the level above. Zero means "no limit" for a
//! timeout, and overrides the levels above. For deletions, Cluster API does not distinguish unset and zero. Stemma
//! does, and uses Cluster API's default if the limit is unset.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::origin::{Level, ValueWithOrigin, nearest_value};
use crate::time::MAX_DURATION_SECONDS;

/// One of the four lifecycle fields of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LifecycleField {
    /// Maximum duration of the `drain` tasks of a host. Zero means no limit.
    NodeDrainTimeout,
    /// Maximum duration of the detachment of a host's volumes, after the drain. Zero means no limit.
    NodeVolumeDetachTimeout,
    /// Maximum duration of the `cleanup` tasks of a deleted host. Zero means no limit.
    NodeDeletionTimeout,
    /// Minimum duration for which a host must be ready before it is available. Zero means no wait.
    MinReadySeconds,
}

/// The value of a lifecycle limit: a duration, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// No limit.
    Forever,
    /// A maximum duration. For [`LifecycleField::MinReadySeconds`], a minimum duration.
    Within(Duration),
}

/// The origin of the limit in force: a level, or the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitOrigin {
    /// The default, because no level sets the limit.
    Default,
    /// The level nearest to the host that sets the limit.
    Level(Level),
}

/// The lifecycle fields as the author of one level wrote them, in whole seconds. A field that is left out or `null` is
/// unset.
///
/// The integers are narrow, because every node of a fleet has a copy. [`MAX_DURATION_SECONDS`] fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lifecycle {
    /// Maximum duration of the `drain` tasks, in seconds. 0 means no limit.
    pub node_drain_timeout: Option<i32>,
    /// Maximum duration of the detachment of the host's volumes, in seconds. 0 means no limit.
    pub node_volume_detach_timeout: Option<i32>,
    /// Maximum duration of the `cleanup` tasks of a deleted host, in seconds. 0 means no limit.
    pub node_deletion_timeout: Option<i32>,
    /// Minimum duration for which a host must be ready before it is available, in seconds.
    pub min_ready_seconds: Option<i32>,
}

/// The four lifecycle limits that apply to a host, each with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleLimits {
    /// Maximum duration of the `drain` tasks.
    pub node_drain_timeout: ValueWithOrigin<Limit, LimitOrigin>,
    /// Maximum duration of the detachment of the host's volumes.
    pub node_volume_detach_timeout: ValueWithOrigin<Limit, LimitOrigin>,
    /// Maximum duration of the `cleanup` tasks of a deleted host.
    pub node_deletion_timeout: ValueWithOrigin<Limit, LimitOrigin>,
    /// Minimum duration for which a host must be ready before it is available. Always [`Limit::Within`].
    pub min_ready_seconds: ValueWithOrigin<Limit, LimitOrigin>,
}

/// The error for a limit out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} takes 0 ({}) to {MAX_DURATION_SECONDS} seconds, not {seconds}", field.name(), field.zero_meaning())]
pub struct LimitOutOfRange {
    /// The field.
    pub field: LifecycleField,
    /// The number of seconds that the author wrote.
    pub seconds: i64,
}

impl LifecycleField {
    /// Returns the name of the field in manifests and in bodies of the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeDrainTimeout => "node_drain_timeout",
            Self::NodeVolumeDetachTimeout => "node_volume_detach_timeout",
            Self::NodeDeletionTimeout => "node_deletion_timeout",
            Self::MinReadySeconds => "min_ready_seconds",
        }
    }

    /// Returns the limit that applies if no level sets this field. The ten seconds of the deletion timeout are the
    /// default of Cluster API.
    pub(crate) const fn default_limit(self) -> Limit {
        match self {
            Self::NodeDrainTimeout | Self::NodeVolumeDetachTimeout => Limit::Forever,
            Self::NodeDeletionTimeout => Limit::Within(Duration::from_secs(10)),
            Self::MinReadySeconds => Limit::Within(Duration::ZERO),
        }
    }

    /// Converts the whole seconds that an author wrote to a limit. For a timeout, 0 means no limit.
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

    /// Returns the limit in force with its origin. `limits` contains the limit of each level that sets this field, in
    /// any order. The level nearest to the host wins. Without such a level, the default applies.
    pub fn resolve(self, limits: impl IntoIterator<Item = (Level, Limit)>) -> ValueWithOrigin<Limit, LimitOrigin> {
        nearest_value(limits).map_or_else(
            || ValueWithOrigin { value: self.default_limit(), origin: LimitOrigin::Default },
            |limit| ValueWithOrigin { value: limit.value, origin: LimitOrigin::Level(limit.origin) },
        )
    }

    /// Returns the limit that 0 seconds mean: no limit for a timeout, and no wait for the minimum duration.
    const fn zero_limit(self) -> Limit {
        match self {
            Self::NodeDrainTimeout | Self::NodeVolumeDetachTimeout | Self::NodeDeletionTimeout => Limit::Forever,
            Self::MinReadySeconds => Limit::Within(Duration::ZERO),
        }
    }

    /// Returns the meaning of 0 in words, for messages.
    const fn zero_meaning(self) -> &'static str {
        match self.zero_limit() {
            Limit::Forever => "no limit",
            Limit::Within(_) => "no wait",
        }
    }
}

impl Lifecycle {
    /// Returns the number of seconds that the author of this level wrote for a field, or `None` if the field is unset.
    pub fn get(&self, field: LifecycleField) -> Option<i64> {
        let seconds = match field {
            LifecycleField::NodeDrainTimeout => self.node_drain_timeout,
            LifecycleField::NodeVolumeDetachTimeout => self.node_volume_detach_timeout,
            LifecycleField::NodeDeletionTimeout => self.node_deletion_timeout,
            LifecycleField::MinReadySeconds => self.min_ready_seconds,
        };
        seconds.map(i64::from)
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

    /// Returns the limits in force. `levels` contains the fields of each level, in any order. A number out of range is
    /// ignored, as if it were unset.
    pub fn resolve(levels: &[(Level, Lifecycle)]) -> Self {
        let resolve_field = |field: LifecycleField| {
            field.resolve(levels.iter().filter_map(|(level, lifecycle)| {
                let limit = field.limit(lifecycle.get(field)?).ok()?;
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
        for (field, limits, value, origin) in [
            (NodeDrainTimeout, vec![], Forever, LimitOrigin::Default),
            (NodeDeletionTimeout, vec![], Within(Duration::from_secs(10)), LimitOrigin::Default),
            (MinReadySeconds, vec![], Within(Duration::ZERO), LimitOrigin::Default),
            (NodeDrainTimeout, vec![(ClusterTemplate, HOUR)], HOUR, LimitOrigin::Level(ClusterTemplate)),
            (NodeDrainTimeout, vec![(Node, MINUTE), (Cluster, HOUR)], MINUTE, LimitOrigin::Level(Node)),
            (NodeDeletionTimeout, vec![(Cluster, HOUR), (NodeGroup, Forever)], Forever, LimitOrigin::Level(NodeGroup)),
        ] {
            assert_eq!(field.resolve(limits.clone()), ValueWithOrigin { value, origin }, "{field:?} {limits:?}");
        }
    }

    #[test]
    fn limit_accepts_only_seconds_in_range() {
        assert_eq!(NodeDrainTimeout.limit(0), Ok(Forever));
        assert_eq!(MinReadySeconds.limit(0), Ok(Within(Duration::ZERO)));
        assert_eq!(NodeDrainTimeout.limit(60), Ok(MINUTE));
        for seconds in [-1, i64::MIN, i64::try_from(MAX_DURATION_SECONDS).unwrap() + 1] {
            let error = NodeDrainTimeout.limit(seconds).unwrap_err();
            assert_eq!(error.to_string(), format!("node_drain_timeout takes 0 (no limit) to 31622400 seconds, not {seconds}"));
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
