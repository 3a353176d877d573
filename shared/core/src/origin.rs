//! The origin of a value. Every value that resolve computes has one, so that `explain` can name it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A level of inheritance. The levels are ordered by their distance to the host: a greater level is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{}", self.name())]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The template from which a cluster inherits.
    ClusterTemplate,
    /// The cluster.
    Cluster,
    /// A group of similar nodes in a cluster.
    NodeGroup,
    /// The host itself, as its operators describe it.
    Node,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The default, if no other source sets a value.
    #[display("default")]
    Default,
    /// The operators, who set the value at this level.
    Level(Level),
    /// The inspection rule with this name or uuid.
    #[display("rule {_0}")]
    Rule(Arc<str>),
    /// The host, through its report.
    #[display("host")]
    Host,
}

/// A value with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueWithOrigin<T, O = Origin> {
    /// The value.
    pub value: T,
    /// The source of the value.
    pub origin: O,
}

impl Level {
    /// Returns the name in API responses, such as `nodegroup`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterTemplate => "clustertemplate",
            Self::Cluster => "cluster",
            Self::NodeGroup => "nodegroup",
            Self::Node => "node",
        }
    }
}

/// Returns the value of the level that is nearest to the host, with this level. `values` contains the levels that set a
/// field, such as a release or a mode, in any order. Returns `None` if `values` is empty.
pub fn nearest_value<T>(values: impl IntoIterator<Item = (Level, T)>) -> Option<ValueWithOrigin<T, Level>> {
    values.into_iter().max_by_key(|(level, _)| *level).map(|(origin, value)| ValueWithOrigin { value, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [Level; 4] = [Level::ClusterTemplate, Level::Cluster, Level::NodeGroup, Level::Node];

    #[test]
    fn levels_are_ordered_by_distance_to_host() {
        assert!(LEVELS.is_sorted());
        assert_eq!(
            nearest_value([(Level::Node, 1), (Level::Cluster, 2)]),
            Some(ValueWithOrigin { value: 1, origin: Level::Node })
        );
        assert_eq!(nearest_value::<u8>([]), None);
    }

    #[test]
    fn level_name_equals_serialized_form() {
        for level in LEVELS {
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{level}\""));
        }
    }
}
