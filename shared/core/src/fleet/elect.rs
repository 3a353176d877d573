//! Primaries: a stored choice holds while its node could be it; without one, the first by name.

use super::{Fleet, Ranked};
use crate::name::TagName;
use crate::object::{ClusterId, Node, NodeId};

impl Fleet {
    /// Tags of a cluster whose holder is not the stored choice: what a controller should choose and store, so that a
    /// node that comes later and sorts first takes nothing over.
    pub fn unstored_holders(&self, id: ClusterId) -> Vec<(TagName, NodeId)> {
        let Some(entry) = self.clusters.get(&id) else { return Vec::new() };
        let is_stored = |tag: &TagName, node: &NodeId| entry.chosen.get(tag).is_some_and(|one| one.spec.node == *node);
        let open = entry.holders.iter().filter(|(tag, node)| !is_stored(tag, node));
        open.map(|(tag, node)| (tag.clone(), *node)).collect()
    }

    /// Chooses the holder of a tag again; returns the nodes whose place it changes.
    pub(super) fn elect(&mut self, id: ClusterId, tag: &TagName) -> Vec<NodeId> {
        let elected = self.elected(id, tag);
        let Some(entry) = self.clusters.get_mut(&id) else { return Vec::new() };
        let before = entry.holders.get(tag).copied();
        if before == elected {
            return Vec::new();
        }
        match elected {
            Some(node) => drop(entry.holders.insert(tag.clone(), node)),
            None => drop(entry.holders.remove(tag)),
        }
        before.into_iter().chain(elected).collect()
    }

    fn elected(&self, id: ClusterId, tag: &TagName) -> Option<NodeId> {
        let entry = self.clusters.get(&id)?;
        let candidates = entry.candidates.get(tag)?;
        let candidate = |node: &Node| candidates.contains(&Ranked::of(node)).then(|| node.id());
        let stored = entry.chosen.get(tag).and_then(|chosen| candidate(self.node(chosen.spec.node)?));
        let written = || {
            let name = entry.object.as_ref()?.spec.primaries.get(tag)?;
            candidate(self.node_named(name)?)
        };
        stored.or_else(written).or_else(|| candidates.get_min().map(|first| first.id))
    }
}
