//! One change, applied: objects are put in place, and what follows from them is mended where it reaches.

use std::sync::Arc;

use uuid::Uuid;

use super::{Change, ClusterEntry, Dirty, Fleet, GroupEntry, GroupFold, Missing, NodeEntry, TemplateEntry};
use crate::change::{self, Class, Classified, FieldChange, Reach};
use crate::input::{Path, Read, Reference};
use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, InspectionRule, Namespace, Node, NodeGroup, NodeId, Object,
    Observation, Primary, ReleaseTags, SaidOnHost, Spec, TemplateId,
};
use crate::release::CompiledRelease;

impl Fleet {
    /// Applies one change, and names the nodes that must be resolved again.
    pub fn apply(&mut self, change: Change) -> Dirty {
        let before = self.clone();
        let mut dirty = Dirty::default();
        let seen = self.put(change, &mut dirty);
        // Where every node is reached, nothing is left for the readers.
        if !dirty.is_of_all() {
            self.reach_readers(&before, seen, &mut dirty);
        }
        dirty
    }

    /// Applies many changes, as at a start: the nodes reached are those of all of them.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> Dirty {
        let mut dirty = Dirty::default();
        for change in changes {
            dirty.extend(self.apply(change));
        }
        dirty
    }

    /// Puts the change in place. Gives the node whose view by others may have changed without its own answer.
    fn put(&mut self, change: Change, dirty: &mut Dirty) -> Option<NodeId> {
        match change {
            Change::Release(release) => self.put_release(release, dirty),
            Change::RemoveRelease(name) => {
                self.releases.remove(&name);
                self.refold_users(&name, change::OF_RELEASE, dirty);
            }
            Change::ReleaseTags(tags) => self.put_release_tags(&tags.meta.name.clone(), Some(tags), dirty),
            Change::RemoveReleaseTags(name) => self.put_release_tags(&name, None, dirty),
            Change::Template(template) => self.put_template(TemplateId(template.meta.uuid), Some(template), dirty),
            Change::RemoveTemplate(id) => self.put_template(id, None, dirty),
            Change::Cluster(cluster) => self.put_cluster(ClusterId(cluster.meta.uuid), Some(cluster), dirty),
            Change::RemoveCluster(id) => self.put_cluster(id, None, dirty),
            Change::NodeGroup(group) => self.put_group(GroupId(group.meta.uuid), Some(group), dirty),
            Change::RemoveNodeGroup(id) => self.put_group(id, None, dirty),
            Change::Node(node) => self.put_node(node, dirty),
            Change::RemoveNode(id) => self.remove_node(id, dirty),
            Change::Observation(id, seen) => return self.put_observation(id, Some(seen), dirty),
            Change::Said(id, said) => self.put_said(id, said, dirty),
            Change::RemoveObservation(id) => return self.put_observation(id, None, dirty),
            Change::Primary(primary) => {
                let (cluster, tag) = (primary.spec.cluster, primary.meta.name.clone());
                self.put_primary(cluster, &tag, Some(primary), dirty);
            }
            Change::RemovePrimary(cluster, tag) => self.put_primary(cluster, &tag, None, dirty),
            Change::Namespace(namespace) => self.put_namespace(namespace.meta.uuid, Some(namespace)),
            Change::RemoveNamespace(id) => self.put_namespace(id, None),
            Change::Rule(rule) => self.put_rule(rule.meta.uuid, Some(rule), dirty),
            Change::RemoveRule(id) => self.put_rule(id, None, dirty),
        }
        None
    }

    fn put_namespace(&mut self, id: Uuid, namespace: Option<Arc<Namespace>>) {
        match namespace {
            Some(namespace) => drop(self.namespaces.insert(id, namespace)),
            None => drop(self.namespaces.remove(&id)),
        }
        self.catalog = Arc::default();
    }

    /// What rules give is worked out where somebody asks: no node is looked at here.
    fn put_rule(&mut self, id: Uuid, rule: Option<Arc<InspectionRule>>, dirty: &mut Dirty) {
        let changes = match (self.rules.get(id), &rule) {
            (Some(old), Some(new)) => change::changes(old, new),
            (None, None) => return,
            (Some(_), None) | (None, Some(_)) => change::OF_RULE.to_vec(),
        };
        match rule {
            Some(rule) => self.rules.put(rule),
            None => self.rules.remove(id),
        }
        // A rule stands above every node.
        if changes.iter().any(|one| one.class.reach() != Reach::Nobody) {
            dirty.add_all();
        }
    }

    fn put_release(&mut self, release: Arc<CompiledRelease>, dirty: &mut Dirty) {
        let name = release.name.clone();
        if self.releases.get(&name).is_some_and(|known| known.hash == release.hash) {
            return;
        }
        self.releases.insert(name.clone(), release);
        self.refold_users(&name, change::OF_RELEASE, dirty);
    }

    fn put_release_tags(&mut self, name: &Name, tags: Option<Arc<ReleaseTags>>, dirty: &mut Dirty) {
        let after = tags.as_ref().map(|tags| tags.spec.clone()).unwrap_or_default();
        let old = match tags {
            Some(tags) => self.release_tags.insert(name.clone(), tags),
            None => self.release_tags.remove(name),
        };
        let before = old.map(|old| old.spec.clone()).unwrap_or_default();
        self.refold_beside(name, &after.changes(&before), dirty);
    }

    fn put_template(&mut self, id: TemplateId, template: Option<Arc<ClusterTemplate>>, dirty: &mut Dirty) {
        let changes = differences(self.template(id), template.as_ref());
        self.with_template(id, |entry| entry.object = template);
        let clusters = self.templates.get(&id).map(|entry| entry.clusters.clone()).unwrap_or_default();
        for cluster in clusters {
            self.refold_cluster(cluster, &changes, dirty);
        }
    }

    fn put_cluster(&mut self, id: ClusterId, cluster: Option<Arc<Cluster>>, dirty: &mut Dirty) {
        let changes = differences(self.cluster(id), cluster.as_ref());
        let before = self.cluster(id).and_then(|cluster| cluster.spec.cluster_template);
        let after = cluster.as_ref().and_then(|cluster| cluster.spec.cluster_template);
        if let Some(template) = before.filter(|_| before != after) {
            self.with_template(template, |entry| {
                entry.clusters.remove(&id);
            });
        }
        if let Some(template) = after {
            self.with_template(template, |entry| {
                entry.clusters.insert(id);
            });
        }
        self.with_cluster(id, |entry| entry.object = cluster);
        self.refold_cluster(id, &changes, dirty);
        let candidates = self.clusters.get(&id).map(|entry| entry.candidates.clone()).unwrap_or_default();
        let tags: Vec<TagName> = candidates.keys().cloned().collect();
        for tag in tags {
            for node in self.elect(id, &tag) {
                self.put_profile(node, dirty);
            }
        }
    }

    fn put_group(&mut self, id: GroupId, group: Option<Arc<NodeGroup>>, dirty: &mut Dirty) {
        let changes = differences(self.group(id), group.as_ref());
        let before = self.cluster_of_group(id);
        let after = group.as_ref().map(|group| group.spec.cluster);
        let nodes: Vec<NodeId> = self.nodes_of(id).collect();
        if let Some(cluster) = before.filter(|_| before != after) {
            for node in &nodes {
                self.unplace(*node, id, dirty);
            }
            self.count_nodes(cluster, |count| count - nodes.len());
            self.with_cluster(cluster, |entry| {
                entry.groups.remove(&id);
            });
        }
        if let Some(cluster) = after.filter(|_| before != after) {
            self.with_cluster(cluster, |entry| {
                entry.groups.insert(id);
            });
            self.count_nodes(cluster, |count| count + nodes.len());
        }
        let mut entry = self.groups.get(&id).cloned().unwrap_or_default();
        entry.object = group;
        if entry.object.is_none() && entry.nodes.is_empty() {
            self.groups.remove(&id);
            return;
        }
        self.groups.insert(id, entry);
        self.refold(id, &changes, dirty);
    }

    fn put_node(&mut self, node: Arc<Node>, dirty: &mut Dirty) {
        let id = node.id();
        let Some(old) = self.nodes.get(&id).cloned() else { return self.add_node(node, dirty) };
        let changes = change::changes(&old.node, &node);
        let next = old.with_node(node);
        // Rules may read any field.
        if changes.iter().any(|one| one.class != Class::Nowhere) || (!changes.is_empty() && !self.rules.is_empty()) {
            dirty.add(id);
        }
        let decides = changes.iter().any(|one| one.class.decides_tasks());
        if !decides && self.is_set_aside(&old) == self.is_set_aside(&next) {
            self.keep(next);
            return;
        }
        let (before, after) = (old.node.spec.nodegroup, next.node.spec.nodegroup);
        let is_renamed = old.node.meta.name != next.node.meta.name;
        if let Some(group) = before.filter(|_| before != after || is_renamed) {
            self.unplace(id, group, dirty);
        }
        if let Some(group) = before.filter(|_| before != after) {
            self.leave_group(id, group);
        }
        if let Some(name) = old.node.meta.name.as_ref().filter(|_| is_renamed) {
            self.by_name.remove(name.as_str());
        }
        self.add_node(next.node, dirty);
    }

    /// Puts a node under its name and into its group, and places it.
    fn add_node(&mut self, node: Arc<Node>, dirty: &mut Dirty) {
        let id = node.id();
        dirty.add(id);
        if let Some(name) = &node.meta.name {
            self.by_name.insert(name.clone(), id);
        }
        if let Some(group) = node.spec.nodegroup {
            let mut entry = self.groups.get(&group).cloned().unwrap_or_default();
            if entry.object.is_none() {
                entry.fold = Err(vec![Missing::NodeGroup(group)]);
            }
            if entry.nodes.insert(id).is_none() {
                self.groups.insert(group, entry);
                if let Some(cluster) = self.cluster_of_group(group) {
                    self.count_nodes(cluster, |count| count + 1);
                }
            }
        }
        let entry = match self.nodes.get(&id) {
            Some(old) => old.with_node(node),
            None => NodeEntry::bare(node),
        };
        self.keep(entry);
        self.replace(&[id], dirty);
    }

    fn remove_node(&mut self, id: NodeId, dirty: &mut Dirty) {
        let Some(old) = self.nodes.get(&id).cloned() else { return };
        dirty.add(id);
        if let Some(group) = old.node.spec.nodegroup {
            self.unplace(id, group, dirty);
            self.leave_group(id, group);
        }
        if let Some(name) = &old.node.meta.name {
            self.by_name.remove(name.as_str());
        }
        self.said.remove(&id);
        let last = self.nodes.remove(&id);
        if let Some(index) = &mut self.index {
            index.replace(id, last.as_deref(), None);
        }
    }

    /// Puts a node's entry in the place of the one before.
    pub(super) fn keep(&mut self, entry: NodeEntry) {
        let (id, entry) = (entry.node.id(), Arc::new(entry));
        let before = self.nodes.insert(id, Arc::clone(&entry));
        if let Some(index) = &mut self.index {
            index.replace(id, before.as_deref(), Some(&entry));
        }
    }

    fn leave_group(&mut self, id: NodeId, group: GroupId) {
        let Some(mut entry) = self.groups.get(&group).cloned() else { return };
        let has_left = entry.nodes.remove(&id).is_some();
        if entry.nodes.is_empty() && entry.object.is_none() {
            self.groups.remove(&group);
        } else {
            self.groups.insert(group, entry);
        }
        if let Some(cluster) = self.cluster_of_group(group).filter(|_| has_left) {
            self.count_nodes(cluster, |count| count - 1);
        }
    }

    /// Counts nodes that have come into a cluster, or have left it.
    fn count_nodes(&mut self, cluster: ClusterId, change: impl FnOnce(usize) -> usize) {
        let before = self.count_of(cluster);
        let after = change(before);
        self.with_cluster(cluster, |entry| entry.nodes = after);
        self.peopled = self.peopled + usize::from(after > 0) - usize::from(before > 0);
    }

    /// A report reaches its own node where what has changed makes a difference there, as each class says.
    fn put_observation(&mut self, id: NodeId, seen: Option<Arc<Observation>>, dirty: &mut Dirty) -> Option<NodeId> {
        let old = self.nodes.get(&id).cloned()?;
        let none = Observation::default();
        let (before, after) = (old.observation.as_deref().unwrap_or(&none), seen.as_deref().unwrap_or(&none));
        let changes = after.changes(before);
        if changes.is_empty() && old.observation.is_some() == seen.is_some() {
            return None;
        }
        let fold = self.fold_above(&old.node.spec);
        let is_read = || {
            let by_tasks = old.profile.iter().flat_map(|profile| profile.reads.iter().map(Reference::read));
            let by_requirements = fold.iter().flat_map(|fold| &*fold.required);
            by_tasks.chain(by_requirements).any(|read| reads_fact(read, before, after))
        };
        let reaches = |change: &FieldChange| match change.class.reach() {
            Reach::Nobody => false,
            Reach::Everyone => true,
            Reach::ByKey => fold.is_some_and(|fold| fold.accepted(before) != fold.accepted(after)),
            Reach::ByTasks => is_read(),
        };
        // What rules make of it is worked out when somebody asks.
        if changes.iter().any(reaches) || !self.rules.is_empty() {
            dirty.add(id);
        }
        let observation = seen.map(|seen| Arc::new(self.shared.observation(&seen)));
        self.keep(old.with_observation(observation));
        Some(id)
    }

    /// What is said on a host reaches its own node. If the host was parked or unparked, it also reaches the nodes that may become primary in its place.
    fn put_said(&mut self, id: NodeId, said: Option<Arc<SaidOnHost>>, dirty: &mut Dirty) {
        let Some(entry) = self.nodes.get(&id).cloned().filter(|_| self.said.get(&id) != said.as_ref()) else { return };
        dirty.add(id);
        let was_set_aside = self.is_set_aside(&entry);
        match said {
            Some(said) => drop(self.said.insert(id, said)),
            None => drop(self.said.remove(&id)),
        }
        if self.is_set_aside(&entry) != was_set_aside {
            self.replace(&[id], dirty);
        }
    }

    fn put_primary(&mut self, id: ClusterId, tag: &TagName, primary: Option<Arc<Primary>>, dirty: &mut Dirty) {
        self.with_cluster(id, |entry| match primary {
            Some(primary) => drop(entry.chosen.insert(tag.clone(), primary)),
            None => drop(entry.chosen.remove(tag)),
        });
        for node in self.elect(id, tag) {
            self.put_profile(node, dirty);
        }
    }

    /// Changes what is kept of a template. Nothing is kept of one that is not there and that no cluster names.
    fn with_template(&mut self, id: TemplateId, change: impl FnOnce(&mut TemplateEntry)) {
        let mut entry = self.templates.get(&id).cloned().unwrap_or_default();
        change(&mut entry);
        if entry.object.is_none() && entry.clusters.is_empty() {
            self.templates.remove(&id);
        } else {
            self.templates.insert(id, entry);
        }
    }

    /// Changes what is kept of a cluster. Nothing is kept of one that is not there and that nothing names.
    fn with_cluster(&mut self, id: ClusterId, change: impl FnOnce(&mut ClusterEntry)) {
        let mut entry = self.clusters.get(&id).cloned().unwrap_or_default();
        change(&mut entry);
        if entry.object.is_none() && entry.groups.is_empty() && entry.chosen.is_empty() {
            self.clusters.remove(&id);
        } else {
            self.clusters.insert(id, entry);
        }
    }

    fn refold_cluster(&mut self, id: ClusterId, changes: &[FieldChange], dirty: &mut Dirty) {
        for group in self.groups_of(id).collect::<Vec<_>>() {
            self.refold(group, changes, dirty);
        }
    }

    /// Folds the groups again that use a release, or wait for it.
    fn refold_users(&mut self, name: &ReleaseRef, changes: &[FieldChange], dirty: &mut Dirty) {
        let uses = |entry: &GroupEntry| match &entry.fold {
            Ok(fold) => fold.release.as_ref().is_some_and(|release| release.value.name == *name),
            Err(missing) => missing.iter().any(|one| matches!(one, Missing::Release(wanted) if wanted == name)),
        };
        let users: Vec<GroupId> = self.groups.iter().filter(|(_, entry)| uses(entry)).map(|(id, _)| *id).collect();
        for group in users {
            self.refold(group, changes, dirty);
        }
    }

    /// Folds the groups again that use a release of that name, after a change of the tags beside it.
    fn refold_beside(&mut self, name: &Name, changes: &[FieldChange], dirty: &mut Dirty) {
        let uses = |entry: &GroupEntry| {
            let release = entry.fold.as_ref().ok().and_then(|fold| fold.release.as_ref());
            release.is_some_and(|release| release.value.name.name == *name)
        };
        let users: Vec<GroupId> = self.groups.iter().filter(|(_, entry)| uses(entry)).map(|(id, _)| *id).collect();
        for group in users {
            self.refold(group, changes, dirty);
        }
    }

    /// Folds a group again after changes above it or of its own, and reaches those of its nodes for whom they make a difference.
    fn refold(&mut self, id: GroupId, changes: &[FieldChange], dirty: &mut Dirty) {
        let Some(entry) = self.groups.get(&id) else { return };
        let nodes: Vec<NodeId> = entry.nodes.iter().copied().collect();
        let before = entry.fold.clone();
        let after = self.folded(id);
        if let Ok(fold) = &after {
            self.keep_shared(fold);
        }
        if let Some(entry) = self.groups.get_mut(&id) {
            entry.fold.clone_from(&after);
        }
        match (before, after) {
            (Ok(before), Ok(after)) => {
                self.reach_below(id, &before, &after, changes, dirty);
                if !after.places_like(&before) {
                    self.replace(&nodes, dirty);
                }
            }
            (Err(before), Err(after)) if before == after => {}
            (_, Ok(_)) => {
                for node in &nodes {
                    dirty.add(*node);
                }
                self.replace(&nodes, dirty);
            }
            (_, Err(_)) => {
                for node in &nodes {
                    dirty.add(*node);
                    self.unplace(*node, id, dirty);
                }
            }
        }
    }

    fn folded(&self, id: GroupId) -> Result<Arc<GroupFold>, Vec<Missing>> {
        let missing = |what| vec![what];
        let group = self.group(id).ok_or_else(|| missing(Missing::NodeGroup(id)))?;
        let cluster_id = group.spec.cluster;
        let cluster = self.cluster(cluster_id).ok_or_else(|| missing(Missing::Cluster(cluster_id)))?;
        let template = match cluster.spec.cluster_template {
            None => None,
            Some(id) => Some(self.template(id).ok_or_else(|| missing(Missing::ClusterTemplate(id)))?),
        };
        GroupFold::new(group, cluster, template, self).map(Arc::new).map_err(missing)
    }

    /// The nodes of a group whose tasks or requirements read such a thing.
    pub(super) fn reach_in(&self, group: GroupId, wanted: &dyn Fn(&Read) -> bool, dirty: &mut Dirty) {
        let Some(entry) = self.groups.get(&group) else { return };
        if entry.fold.as_ref().is_ok_and(|fold| fold.required.iter().any(wanted)) {
            entry.nodes.iter().for_each(|node| dirty.add(*node));
            return;
        }
        for used in entry.profiles.values() {
            if used.profile.reads.iter().any(|reference| wanted(reference.read())) {
                used.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
    }
}

/// What differs between two forms of an object; nothing where it is new or gone: then a group below it was incomplete, or is.
fn differences<S: Spec + Classified>(old: Option<&Arc<Object<S>>>, new: Option<&Arc<Object<S>>>) -> Vec<FieldChange> {
    old.zip(new).map(|(old, new)| change::changes(old, new)).unwrap_or_default()
}

/// Whether a read of the node's own facts gives something else now.
fn reads_fact(read: &Read, before: &Observation, after: &Observation) -> bool {
    let differs = |path: &Path| before.facts.get(path) != after.facts.get(path);
    match read {
        Read::Fact(path) => differs(path),
        Read::Node(path) => match path.first() {
            "address" | "hostname" => before.facts != after.facts,
            _ => false,
        },
        Read::Label(_)
        | Read::LabelsWithPrefix(_)
        | Read::Parameter(_)
        | Read::Trait(_)
        | Read::Tag(_)
        | Read::Cluster(_)
        | Read::Nodes { .. }
        | Read::Primary { .. }
        | Read::Secret(_) => false,
    }
}
