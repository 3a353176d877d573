//! A node, with what follows for it from the levels above and from what its host reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::GroupFold;
use crate::labels::{Fill, Labels};
use crate::name::Name;
use crate::object::{Node, Observation};
use crate::origin::{Level, Origin};
use crate::release::Profile;

/// A node with what follows for it.
#[derive(Clone, Debug)]
pub(crate) struct NodeEntry {
    pub(crate) node: Arc<Node>,
    pub(crate) observation: Option<Arc<Observation>>,
    /// What it is placed by; `None`: unplaced, or not to be placed yet.
    pub(crate) profile: Option<Arc<Profile>>,
}

impl NodeEntry {
    pub(super) fn bare(node: Arc<Node>) -> Self {
        Self { node, observation: None, profile: None }
    }

    /// The effective labels below a group's; what the host may fill is filled in.
    pub(crate) fn labels(&self, fold: Option<&GroupFold>) -> Labels {
        let above = fold.map(|fold| fold.labels.clone()).unwrap_or_default();
        let own = above.below(Level::Node, &self.node.spec.inherited.labels);
        let accepted =
            fold.zip(self.observation.as_deref()).map(|(fold, seen)| fold.accepted(seen)).unwrap_or_default();
        if accepted.is_empty() {
            return own;
        }
        own.fill(&Fill { origin: Origin::Host, grants: false, labels: &accepted })
    }

    /// The plain roles: the group's and the node's own together.
    pub(crate) fn roles(&self, fold: Option<&GroupFold>) -> BTreeSet<Name> {
        fold.iter().flat_map(|fold| &fold.group.spec.roles).chain(&self.node.spec.roles).cloned().collect()
    }
}
