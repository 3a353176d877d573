//! A node, with what follows for it from the levels above and from what its host reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::GroupFold;
use crate::labels::{Annotations, Fill, Labels, Parameters};
use crate::name::Name;
use crate::object::{Node, NodeGroup, Observation, TraitSet};
use crate::origin::{Level, Origin, Resolved, nearest};
use crate::release::Profile;
use crate::task::Mode;
use crate::traits::{InstanceTraits, RuledTraits, TraitInputs, check_instance};

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

    /// The effective annotations below a group's.
    pub(crate) fn annotations(&self, fold: Option<&GroupFold>) -> Annotations {
        let above = fold.map(|fold| fold.annotations.clone()).unwrap_or_default();
        above.below(Level::Node, &self.node.spec.inherited.annotations)
    }

    /// The effective parameters below a group's.
    pub(crate) fn parameters(&self, fold: Option<&GroupFold>) -> Parameters {
        let above = fold.map(|fold| fold.parameters.clone()).unwrap_or_default();
        above.below(Level::Node, &self.node.spec.inherited.parameters)
    }

    /// What each source says of its traits. There are no inspection rules yet, so no rule gives one.
    pub(crate) fn traits(&self) -> TraitInputs<'_> {
        static NONE_RULED: RuledTraits = RuledTraits::new();
        static NONE_DETECTED: TraitSet = TraitSet::new();
        TraitInputs {
            operators: &self.node.spec.traits,
            ruled: &NONE_RULED,
            detected: self.observation.as_ref().map_or(&NONE_DETECTED, |seen| &seen.traits),
            suppressed: &self.node.spec.suppressed_traits,
        }
    }

    /// Checks that the node has the traits that its instance wants.
    pub(crate) fn check_instance(&self) -> Result<(), InstanceTraits> {
        let traits = self.traits();
        check_instance(self.node.meta.uuid, &self.node.spec.instance_info, |name| traits.has(name))
    }

    /// The mode's ceiling: the node's own, else its group's, else `apply`.
    pub(crate) fn mode(&self, group: Option<&NodeGroup>) -> Resolved<Mode> {
        let said = [(Level::NodeGroup, group.and_then(|group| group.spec.mode)), (Level::Node, self.node.spec.mode)];
        nearest(said.into_iter().filter_map(|(level, mode)| Some((level, mode?)))).map_or_else(
            || Resolved { value: Mode::default(), origin: Origin::Default },
            |said| Resolved { value: said.value, origin: Origin::Level(said.origin) },
        )
    }

    /// The plain roles: the group's and the node's own together.
    pub(crate) fn roles(&self, fold: Option<&GroupFold>) -> BTreeSet<Name> {
        fold.iter().flat_map(|fold| &fold.group.spec.roles).chain(&self.node.spec.roles).cloned().collect()
    }
}
