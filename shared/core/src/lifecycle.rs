//! Lifecycle limits: how long a drain, a volume's release or a deletion may take, and how long a host must stay
//! ready before it counts as available.
//!
//! Every level may set one, and the nearest level that does decides. They are *known* things: a change
//! reaches a host at once, also one that is draining, and starts no task (Cluster API's in-place
//! propagation). Unset and zero differ: zero is an author's "no limit", and it stops the levels above
//! from speaking. Cluster API mixes the two for deletions; we keep its default there and say so.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::origin::{Level, Resolved, nearest};
use crate::time::MAX_SECONDS;

/// One of the four fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// How long a host's `drain` tasks may take.
    NodeDrainTimeout,
    /// How long its volumes may take to be released, after the drain.
    NodeVolumeDetachTimeout,
    /// How long the `cleanup` tasks of a deleted host may take.
    NodeDeletionTimeout,
    /// How long a host must stay ready until it counts as available. Its zero is a wait of nothing, not for ever.
    MinReadySeconds,
}

/// How long something may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// As long as it needs.
    Forever,
    /// This long and no longer.
    Within(Duration),
}

/// Who gave a limit: a level, or nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// No level speaks.
    Default,
    /// The nearest level that does.
    Level(Level),
}

/// What the author of one level wrote: whole seconds by field, a field that was left out or `null` unset.
///
/// Narrow, since every node of a fleet has one; [`MAX_SECONDS`] fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lifecycle {
    /// [`Field::NodeDrainTimeout`].
    pub node_drain_timeout: Option<i32>,
    /// [`Field::NodeVolumeDetachTimeout`].
    pub node_volume_detach_timeout: Option<i32>,
    /// [`Field::NodeDeletionTimeout`].
    pub node_deletion_timeout: Option<i32>,
    /// [`Field::MinReadySeconds`].
    pub min_ready_seconds: Option<i32>,
}

/// The four fields in force on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// [`Field::NodeDrainTimeout`].
    pub node_drain_timeout: Resolved<Limit, Origin>,
    /// [`Field::NodeVolumeDetachTimeout`].
    pub node_volume_detach_timeout: Resolved<Limit, Origin>,
    /// [`Field::NodeDeletionTimeout`].
    pub node_deletion_timeout: Resolved<Limit, Origin>,
    /// [`Field::MinReadySeconds`]: always [`Limit::Within`].
    pub min_ready_seconds: Resolved<Limit, Origin>,
}

/// What an author wrote is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} takes 0 ({}) to {MAX_SECONDS} seconds, not {seconds}", field.name(), field.zero())]
pub struct LimitOutOfRange {
    /// The field.
    pub field: Field,
    /// What was written.
    pub seconds: i64,
}

impl Field {
    /// The name in manifests and over HTTP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeDrainTimeout => "node_drain_timeout",
            Self::NodeVolumeDetachTimeout => "node_volume_detach_timeout",
            Self::NodeDeletionTimeout => "node_deletion_timeout",
            Self::MinReadySeconds => "min_ready_seconds",
        }
    }

    /// What holds where no level speaks. Ten seconds for a deletion, as Cluster API has it.
    pub(crate) const fn default_limit(self) -> Limit {
        match self {
            Self::NodeDrainTimeout | Self::NodeVolumeDetachTimeout => Limit::Forever,
            Self::NodeDeletionTimeout => Limit::Within(Duration::from_secs(10)),
            Self::MinReadySeconds => Limit::Within(Duration::ZERO),
        }
    }

    /// Reads an author's whole seconds.
    ///
    /// # Errors
    /// [`LimitOutOfRange`] for less than 0 or more than [`MAX_SECONDS`].
    pub fn limit(self, seconds: i64) -> Result<Limit, LimitOutOfRange> {
        match u64::try_from(seconds) {
            Ok(0) => Ok(self.zero_limit()),
            Ok(seconds) if seconds <= MAX_SECONDS => Ok(Limit::Within(Duration::from_secs(seconds))),
            _ => Err(LimitOutOfRange { field: self, seconds }),
        }
    }

    /// The limit in force, from what the levels say (in any order; a level that says nothing is left out).
    pub fn resolve(self, said: impl IntoIterator<Item = (Level, Limit)>) -> Resolved<Limit, Origin> {
        nearest(said).map_or_else(
            || Resolved { value: self.default_limit(), origin: Origin::Default },
            |said| Resolved { value: said.value, origin: Origin::Level(said.origin) },
        )
    }

    const fn zero_limit(self) -> Limit {
        match self {
            Self::NodeDrainTimeout | Self::NodeVolumeDetachTimeout | Self::NodeDeletionTimeout => Limit::Forever,
            Self::MinReadySeconds => Limit::Within(Duration::ZERO),
        }
    }

    const fn zero(self) -> &'static str {
        match self.zero_limit() {
            Limit::Forever => "no limit",
            Limit::Within(_) => "no wait",
        }
    }
}

impl Lifecycle {
    /// What was written for a field.
    pub fn get(&self, field: Field) -> Option<i64> {
        let written = match field {
            Field::NodeDrainTimeout => self.node_drain_timeout,
            Field::NodeVolumeDetachTimeout => self.node_volume_detach_timeout,
            Field::NodeDeletionTimeout => self.node_deletion_timeout,
            Field::MinReadySeconds => self.min_ready_seconds,
        };
        written.map(i64::from)
    }
}

impl Limits {
    /// Each field with what is in force.
    pub fn each(&self) -> [(Field, Resolved<Limit, Origin>); 4] {
        let Self { node_drain_timeout, node_volume_detach_timeout, node_deletion_timeout, min_ready_seconds } = *self;
        [
            (Field::NodeDrainTimeout, node_drain_timeout),
            (Field::NodeVolumeDetachTimeout, node_volume_detach_timeout),
            (Field::NodeDeletionTimeout, node_deletion_timeout),
            (Field::MinReadySeconds, min_ready_seconds),
        ]
    }

    /// Folds what the levels wrote (in any order). A number that is out of range says nothing.
    pub fn resolve(levels: &[(Level, Lifecycle)]) -> Self {
        let field = |field: Field| {
            field.resolve(levels.iter().filter_map(|(level, written)| {
                let limit = field.limit(written.get(field)?).ok()?;
                Some((*level, limit))
            }))
        };
        Self {
            node_drain_timeout: field(Field::NodeDrainTimeout),
            node_volume_detach_timeout: field(Field::NodeVolumeDetachTimeout),
            node_deletion_timeout: field(Field::NodeDeletionTimeout),
            min_ready_seconds: field(Field::MinReadySeconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Field::{MinReadySeconds, NodeDeletionTimeout, NodeDrainTimeout};
    use Level::{Cluster, ClusterTemplate, Node, NodeGroup};
    use Limit::{Forever, Within};

    const MINUTE: Limit = Within(Duration::from_mins(1));
    const HOUR: Limit = Within(Duration::from_hours(1));

    #[test]
    fn the_nearest_level_that_speaks_decides() {
        for (field, said, value, origin) in [
            (NodeDrainTimeout, vec![], Forever, Origin::Default),
            (NodeDeletionTimeout, vec![], Within(Duration::from_secs(10)), Origin::Default),
            (MinReadySeconds, vec![], Within(Duration::ZERO), Origin::Default),
            (NodeDrainTimeout, vec![(ClusterTemplate, HOUR)], HOUR, Origin::Level(ClusterTemplate)),
            (NodeDrainTimeout, vec![(Node, MINUTE), (Cluster, HOUR)], MINUTE, Origin::Level(Node)),
            (NodeDeletionTimeout, vec![(Cluster, HOUR), (NodeGroup, Forever)], Forever, Origin::Level(NodeGroup)),
        ] {
            assert_eq!(field.resolve(said.clone()), Resolved { value, origin }, "{field:?} {said:?}");
        }
    }

    #[test]
    fn seconds_are_whole_and_bounded() {
        assert_eq!(NodeDrainTimeout.limit(0), Ok(Forever));
        assert_eq!(MinReadySeconds.limit(0), Ok(Within(Duration::ZERO)));
        assert_eq!(NodeDrainTimeout.limit(60), Ok(MINUTE));
        for seconds in [-1, i64::MIN, i64::try_from(MAX_SECONDS).unwrap() + 1] {
            let refused = NodeDrainTimeout.limit(seconds).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("node_drain_timeout takes 0 (no limit) to 31622400 seconds, not {seconds}")
            );
        }
        assert_eq!(
            MinReadySeconds.limit(-1).unwrap_err().to_string(),
            "min_ready_seconds takes 0 (no wait) to 31622400 seconds, not -1"
        );
    }

    #[test]
    fn each_field_goes_its_own_way() {
        let template =
            Lifecycle { node_drain_timeout: Some(3600), min_ready_seconds: Some(60), ..Lifecycle::default() };
        let node = Lifecycle { node_drain_timeout: Some(0), ..Lifecycle::default() };
        let limits = Limits::resolve(&[(Node, node), (ClusterTemplate, template)]);
        assert_eq!(limits.node_drain_timeout, Resolved { value: Forever, origin: Origin::Level(Node) });
        assert_eq!(limits.min_ready_seconds, Resolved { value: MINUTE, origin: Origin::Level(ClusterTemplate) });
        assert_eq!(limits.node_deletion_timeout.origin, Origin::Default);
    }
}
