//! Where a value comes from. Every answer of resolve carries it, so that `explain` never has to guess.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A level of inheritance, the farthest from the host first: the greater one is the nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{}", self.name())]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The template that a cluster is made from.
    ClusterTemplate,
    /// The cluster.
    Cluster,
    /// The group of a cluster's nodes that are alike.
    NodeGroup,
    /// The host itself, as its operators describe it.
    Node,
}

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Nobody: what holds where no one speaks.
    #[display("default")]
    Default,
    /// The operators, at this level.
    Level(Level),
    /// The inspection rule of this name or uuid.
    #[display("rule {_0}")]
    Rule(Arc<str>),
    /// The host, by its report.
    #[display("host")]
    Host,
}

/// A value with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved<T, O = Origin> {
    /// What holds.
    pub value: T,
    /// Who said so.
    pub origin: O,
}

impl Level {
    /// The name in answers, as `nodegroup`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterTemplate => "clustertemplate",
            Self::Cluster => "cluster",
            Self::NodeGroup => "nodegroup",
            Self::Node => "node",
        }
    }
}

/// What holds of a field where the nearest level that speaks decides: a release, a mode, `host_labels`.
///
/// The levels may come in any order; one that says nothing is left out.
pub fn nearest<T>(said: impl IntoIterator<Item = (Level, T)>) -> Option<Resolved<T, Level>> {
    said.into_iter().max_by_key(|(level, _)| *level).map(|(origin, value)| Resolved { value, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: [Level; 4] = [Level::ClusterTemplate, Level::Cluster, Level::NodeGroup, Level::Node];

    #[test]
    fn the_nearest_level_is_the_greatest() {
        assert!(LEVELS.is_sorted());
        assert_eq!(nearest([(Level::Node, 1), (Level::Cluster, 2)]), Some(Resolved { value: 1, origin: Level::Node }));
        assert_eq!(nearest::<u8>([]), None);
    }

    #[test]
    fn names_are_those_of_the_kinds() {
        for level in LEVELS {
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{level}\""));
        }
    }
}
