//! Applies a change: stores the objects, and updates the derived data that depends on them.

use std::sync::Arc;

use uuid::Uuid;

use super::{ClusterEntry, DirtyNodes, Fleet, FleetChange, GroupEntry, MissingParent, NodeEntry, ResolvedGroup, TemplateEntry};
use crate::change::{self, ClassifyFields, FieldChange, HostScope, Propagation};
use crate::input::{Path, Read, Reference};
use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, InspectionRule, Namespace, Node, NodeGroup, NodeId, Object, Observation,
    Primary, ReleaseTags, ReportedState, Spec, TemplateId,
};
use crate::release::CompiledRelease;

impl Fleet {
    /// Applies one change. Returns the nodes that must be resolved again.
    pub fn apply(&mut self, change: FleetChange) -> DirtyNodes {
        let before = self.clone();
        let mut dirty = DirtyNodes::default();
        let observed = self.put(change, &mut dirty);
        // If all nodes are dirty already, the readers need not be marked.
        if !dirty.is_all() {
            self.mark_readers(&before, observed, &mut dirty);
        }
        dirty
    }

    /// Applies many changes, as at a start. Returns the nodes that must be resolved again after any of them.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = FleetChange>) -> DirtyNodes {
        let mut dirty = DirtyNodes::default();
        for change in changes {
            dirty.extend(self.apply(change));
        }
        dirty
    }

    /// Stores the change, and marks the nodes whose result it affects directly. Returns the node whose report was
    /// stored or removed, because the results of nodes that look it up may change even if its own does not.
    fn put(&mut self, change: FleetChange, dirty: &mut DirtyNodes) -> Option<NodeId> {
        match change {
            FleetChange::Release(release) => self.put_release(release, dirty),
            FleetChange::RemoveRelease(name) => {
                self.releases.remove(&name);
                self.rebuild_release_users(&name, change::RELEASE_CHANGES, dirty);
            }
            FleetChange::ReleaseTags(tags) => self.put_release_tags(&tags.meta.name.clone(), Some(tags), dirty),
            FleetChange::RemoveReleaseTags(name) => self.put_release_tags(&name, None, dirty),
            FleetChange::Template(template) => self.put_template(TemplateId(template.meta.uuid), Some(template), dirty),
            FleetChange::RemoveTemplate(id) => self.put_template(id, None, dirty),
            FleetChange::Cluster(cluster) => self.put_cluster(ClusterId(cluster.meta.uuid), Some(cluster), dirty),
            FleetChange::RemoveCluster(id) => self.put_cluster(id, None, dirty),
            FleetChange::NodeGroup(group) => self.put_group(GroupId(group.meta.uuid), Some(group), dirty),
            FleetChange::RemoveNodeGroup(id) => self.put_group(id, None, dirty),
            FleetChange::Node(node) => self.put_node(node, dirty),
            FleetChange::RemoveNode(id) => self.remove_node(id, dirty),
            FleetChange::Observation(id, observation) => return self.put_observation(id, Some(observation), dirty),
            FleetChange::ReportedState(id, state) => self.put_reported_state(id, state, dirty),
            FleetChange::RemoveObservation(id) => return self.put_observation(id, None, dirty),
            FleetChange::Primary(primary) => {
                let (cluster, tag) = (primary.spec.cluster, primary.meta.name.clone());
                self.put_primary(cluster, &tag, Some(primary), dirty);
            }
            FleetChange::RemovePrimary(cluster, tag) => self.put_primary(cluster, &tag, None, dirty),
            FleetChange::Namespace(namespace) => self.put_namespace(namespace.meta.uuid, Some(namespace)),
            FleetChange::RemoveNamespace(id) => self.put_namespace(id, None),
            FleetChange::Rule(rule) => self.put_rule(rule.meta.uuid, Some(rule), dirty),
            FleetChange::RemoveRule(id) => self.put_rule(id, None, dirty),
        }
        None
    }

    /// Stores or deletes a namespace. The catalogue is built again when it is next read.
    fn put_namespace(&mut self, id: Uuid, namespace: Option<Arc<Namespace>>) {
        match namespace {
            Some(namespace) => drop(self.namespaces.insert(id, namespace)),
            None => drop(self.namespaces.remove(&id)),
        }
        self.catalog = Arc::default();
    }

    /// Stores or deletes an inspection rule. Marks all nodes if the change can affect a host. What rules give a node is
    /// computed when it is read, so no rule is evaluated here.
    fn put_rule(&mut self, id: Uuid, rule: Option<Arc<InspectionRule>>, dirty: &mut DirtyNodes) {
        let changes = match (self.rules.get(id), &rule) {
            (Some(old), Some(new)) => change::changes(old, new),
            (None, None) => return,
            (Some(_), None) | (None, Some(_)) => change::RULE_CHANGES.to_vec(),
        };
        match rule {
            Some(rule) => self.rules.insert(rule),
            None => self.rules.remove(id),
        }
        // A rule applies to every node.
        if changes.iter().any(|change| change.propagation.host_scope() != HostScope::Nobody) {
            dirty.add_all();
        }
    }

    /// Stores a compiled release, and rebuilds the groups that use it. A release with the stored hash changes nothing.
    fn put_release(&mut self, release: Arc<CompiledRelease>, dirty: &mut DirtyNodes) {
        let name = release.name.clone();
        if self.releases.get(&name).is_some_and(|stored| stored.hash == release.hash) {
            return;
        }
        self.releases.insert(name.clone(), release);
        self.rebuild_release_users(&name, change::RELEASE_CHANGES, dirty);
    }

    /// Stores or deletes the user-defined tags of a release, and rebuilds the groups that use any version of the
    /// release.
    fn put_release_tags(&mut self, name: &Name, tags: Option<Arc<ReleaseTags>>, dirty: &mut DirtyNodes) {
        let after = tags.as_ref().map(|tags| tags.spec.clone()).unwrap_or_default();
        let old = match tags {
            Some(tags) => self.release_tags.insert(name.clone(), tags),
            None => self.release_tags.remove(name),
        };
        let before = old.map(|old| old.spec.clone()).unwrap_or_default();
        self.rebuild_tag_users(name, &after.changes(&before), dirty);
    }

    /// Stores or deletes a template, and rebuilds the groups of its clusters.
    fn put_template(&mut self, id: TemplateId, template: Option<Arc<ClusterTemplate>>, dirty: &mut DirtyNodes) {
        let changes = field_changes(self.template(id), template.as_ref());
        self.update_template(id, |entry| entry.object = template);
        let clusters = self.templates.get(&id).map(|entry| entry.clusters.clone()).unwrap_or_default();
        for cluster in clusters {
            self.rebuild_cluster_groups(cluster, &changes, dirty);
        }
    }

    /// Stores or deletes a cluster, registers it with its template, and rebuilds its groups. Elects its primaries
    /// again, because its field `primaries` may have changed.
    fn put_cluster(&mut self, id: ClusterId, cluster: Option<Arc<Cluster>>, dirty: &mut DirtyNodes) {
        let changes = field_changes(self.cluster(id), cluster.as_ref());
        let before = self.cluster(id).and_then(|cluster| cluster.spec.cluster_template);
        let after = cluster.as_ref().and_then(|cluster| cluster.spec.cluster_template);
        if let Some(template) = before.filter(|_| before != after) {
            self.update_template(template, |entry| {
                entry.clusters.remove(&id);
            });
        }
        if let Some(template) = after {
            self.update_template(template, |entry| {
                entry.clusters.insert(id);
            });
        }
        self.update_cluster(id, |entry| entry.object = cluster);
        self.rebuild_cluster_groups(id, &changes, dirty);
        let candidates = self.clusters.get(&id).map(|entry| entry.candidates.clone()).unwrap_or_default();
        let tags: Vec<TagName> = candidates.keys().cloned().collect();
        for tag in tags {
            for node in self.elect(id, &tag) {
                self.update_profile(node, dirty);
            }
        }
    }

    /// Stores or deletes a group, and rebuilds it. If the group moves to another cluster, its nodes lose their profiles
    /// and candidacies in the old cluster, and the node counts of both clusters are updated.
    fn put_group(&mut self, id: GroupId, group: Option<Arc<NodeGroup>>, dirty: &mut DirtyNodes) {
        let changes = field_changes(self.group(id), group.as_ref());
        let before = self.cluster_of_group(id);
        let after = group.as_ref().map(|group| group.spec.cluster);
        let nodes: Vec<NodeId> = self.nodes_in_group(id).collect();
        if let Some(cluster) = before.filter(|_| before != after) {
            for node in &nodes {
                self.unplace(*node, id, dirty);
            }
            self.update_node_count(cluster, |count| count - nodes.len());
            self.update_cluster(cluster, |entry| {
                entry.groups.remove(&id);
            });
        }
        if let Some(cluster) = after.filter(|_| before != after) {
            self.update_cluster(cluster, |entry| {
                entry.groups.insert(id);
            });
            self.update_node_count(cluster, |count| count + nodes.len());
        }
        let mut entry = self.groups.get(&id).cloned().unwrap_or_default();
        entry.object = group;
        if entry.object.is_none() && entry.nodes.is_empty() {
            self.groups.remove(&id);
            return;
        }
        self.groups.insert(id, entry);
        self.rebuild_group(id, &changes, dirty);
    }

    /// Stores a node. Updates the indexes, the placement and the marked nodes only as far as the changed fields affect
    /// them.
    fn put_node(&mut self, node: Arc<Node>, dirty: &mut DirtyNodes) {
        let id = node.id();
        let Some(old) = self.nodes.get(&id).cloned() else { return self.add_node(node, dirty) };
        let changes = change::changes(&old.node, &node);
        let next = old.with_node(node);
        // Inspection rules may read any field, so with rules every change marks the node.
        if changes.iter().any(|change| change.propagation != Propagation::ControllerOnly)
            || (!changes.is_empty() && !self.rules.is_empty())
        {
            dirty.add(id);
        }
        let decides_tasks = changes.iter().any(|change| change.propagation.may_move_tasks());
        if !decides_tasks && self.is_excluded(&old) == self.is_excluded(&next) {
            self.replace_entry(next);
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

    /// Adds a node to the index of names and to its group, and computes its placement.
    fn add_node(&mut self, node: Arc<Node>, dirty: &mut DirtyNodes) {
        let id = node.id();
        dirty.add(id);
        if let Some(name) = &node.meta.name {
            self.by_name.insert(name.clone(), id);
        }
        if let Some(group) = node.spec.nodegroup {
            let mut entry = self.groups.get(&group).cloned().unwrap_or_default();
            if entry.object.is_none() {
                entry.resolved = Err(vec![MissingParent::NodeGroup(group)]);
            }
            if entry.nodes.insert(id).is_none() {
                self.groups.insert(group, entry);
                if let Some(cluster) = self.cluster_of_group(group) {
                    self.update_node_count(cluster, |count| count + 1);
                }
            }
        }
        let entry = match self.nodes.get(&id) {
            Some(old) => old.with_node(node),
            None => NodeEntry::new(node),
        };
        self.replace_entry(entry);
        self.recompute_placement(&[id], dirty);
    }

    /// Removes a node from its group, from the candidates for primaries and from the indexes.
    fn remove_node(&mut self, id: NodeId, dirty: &mut DirtyNodes) {
        let Some(old) = self.nodes.get(&id).cloned() else { return };
        dirty.add(id);
        if let Some(group) = old.node.spec.nodegroup {
            self.unplace(id, group, dirty);
            self.leave_group(id, group);
        }
        if let Some(name) = &old.node.meta.name {
            self.by_name.remove(name.as_str());
        }
        self.reported_states.remove(&id);
        let last = self.nodes.remove(&id);
        if let Some(index) = &mut self.index {
            index.update(id, last.as_deref(), None);
        }
    }

    /// Replaces the entry of a node.
    pub(super) fn replace_entry(&mut self, entry: NodeEntry) {
        let (id, entry) = (entry.node.id(), Arc::new(entry));
        let before = self.nodes.insert(id, Arc::clone(&entry));
        if let Some(index) = &mut self.index {
            index.update(id, before.as_deref(), Some(&entry));
        }
    }

    /// Removes a node from the entry of a group. The entry of a group that does not exist is removed with its last
    /// node.
    fn leave_group(&mut self, id: NodeId, group: GroupId) {
        let Some(mut entry) = self.groups.get(&group).cloned() else { return };
        let has_left = entry.nodes.remove(&id).is_some();
        if entry.nodes.is_empty() && entry.object.is_none() {
            self.groups.remove(&group);
        } else {
            self.groups.insert(group, entry);
        }
        if let Some(cluster) = self.cluster_of_group(group).filter(|_| has_left) {
            self.update_node_count(cluster, |count| count - 1);
        }
    }

    /// Updates the number of nodes of a cluster when nodes enter or leave it.
    fn update_node_count(&mut self, cluster: ClusterId, change: impl FnOnce(usize) -> usize) {
        let before = self.node_count(cluster);
        let after = change(before);
        self.update_cluster(cluster, |entry| entry.nodes = after);
        self.clusters_with_nodes = self.clusters_with_nodes + usize::from(after > 0) - usize::from(before > 0);
    }

    /// Stores or removes the report of a host. Marks the node if the report can affect its result, as the class of each
    /// changed fact, trait or label decides. Returns the node if the report has changed.
    fn put_observation(&mut self, id: NodeId, report: Option<Arc<Observation>>, dirty: &mut DirtyNodes) -> Option<NodeId> {
        let old = self.nodes.get(&id).cloned()?;
        let none = Observation::default();
        let (before, after) = (old.observation.as_deref().unwrap_or(&none), report.as_deref().unwrap_or(&none));
        let changes = after.changes(before);
        if changes.is_empty() && old.observation.is_some() == report.is_some() {
            return None;
        }
        let resolved = self.resolved_parent(&old.node.spec);
        let is_read = || {
            let by_tasks = old.profile.iter().flat_map(|profile| profile.reads.iter().map(Reference::read));
            let by_requirements = resolved.iter().flat_map(|resolved| &*resolved.required_reads);
            by_tasks.chain(by_requirements).any(|read| is_fact_changed(read, before, after))
        };
        let reaches = |change: &FieldChange| match change.propagation.host_scope() {
            HostScope::Nobody => false,
            HostScope::Everyone => true,
            HostScope::ByKey => resolved.is_some_and(|group| group.accepted_labels(before) != group.accepted_labels(after)),
            HostScope::ByTasks => is_read(),
        };
        // Inspection rules may read any part of a report, so with rules every change marks the node.
        if changes.iter().any(reaches) || !self.rules.is_empty() {
            dirty.add(id);
        }
        let observation = report.map(|seen| Arc::new(self.interner.intern_observation(&seen)));
        self.replace_entry(old.with_observation(observation));
        Some(id)
    }

    /// Stores the pause, hold and park that were set on a host itself, and marks its node. If the host was parked or
    /// unparked, elects the primaries of its tags again, and marks the nodes that gain or lose one.
    fn put_reported_state(&mut self, id: NodeId, state: Option<Arc<ReportedState>>, dirty: &mut DirtyNodes) {
        let Some(entry) = self.nodes.get(&id).cloned().filter(|_| self.reported_states.get(&id) != state.as_ref()) else {
            return;
        };
        dirty.add(id);
        let was_excluded = self.is_excluded(&entry);
        match state {
            Some(state) => drop(self.reported_states.insert(id, state)),
            None => drop(self.reported_states.remove(&id)),
        }
        if self.is_excluded(&entry) != was_excluded {
            self.recompute_placement(&[id], dirty);
        }
    }

    /// Stores or deletes the choice of a tag's primary, and elects the primary of the tag again.
    fn put_primary(&mut self, id: ClusterId, tag: &TagName, primary: Option<Arc<Primary>>, dirty: &mut DirtyNodes) {
        self.update_cluster(id, |entry| match primary {
            Some(primary) => drop(entry.stored_choices.insert(tag.clone(), primary)),
            None => drop(entry.stored_choices.remove(tag)),
        });
        for node in self.elect(id, tag) {
            self.update_profile(node, dirty);
        }
    }

    /// Changes the entry of a template. The entry is removed if the template does not exist and no cluster refers to
    /// it.
    fn update_template(&mut self, id: TemplateId, change: impl FnOnce(&mut TemplateEntry)) {
        let mut entry = self.templates.get(&id).cloned().unwrap_or_default();
        change(&mut entry);
        if entry.object.is_none() && entry.clusters.is_empty() {
            self.templates.remove(&id);
        } else {
            self.templates.insert(id, entry);
        }
    }

    /// Changes the entry of a cluster. The entry is removed if the cluster does not exist and nothing refers to it.
    fn update_cluster(&mut self, id: ClusterId, change: impl FnOnce(&mut ClusterEntry)) {
        let mut entry = self.clusters.get(&id).cloned().unwrap_or_default();
        change(&mut entry);
        if entry.object.is_none() && entry.groups.is_empty() && entry.stored_choices.is_empty() {
            self.clusters.remove(&id);
        } else {
            self.clusters.insert(id, entry);
        }
    }

    /// Rebuilds all groups of a cluster after a change of the cluster or its template.
    fn rebuild_cluster_groups(&mut self, id: ClusterId, changes: &[FieldChange], dirty: &mut DirtyNodes) {
        for group in self.groups_in_cluster(id).collect::<Vec<_>>() {
            self.rebuild_group(group, changes, dirty);
        }
    }

    /// Rebuilds the groups that use a release or wait for it.
    fn rebuild_release_users(&mut self, name: &ReleaseRef, changes: &[FieldChange], dirty: &mut DirtyNodes) {
        let uses = |entry: &GroupEntry| match &entry.resolved {
            Ok(group) => group.release.as_ref().is_some_and(|release| release.value.name == *name),
            Err(missing) => missing.iter().any(|object| matches!(object, MissingParent::Release(wanted) if wanted == name)),
        };
        let users: Vec<GroupId> = self.groups.iter().filter(|(_, entry)| uses(entry)).map(|(id, _)| *id).collect();
        for group in users {
            self.rebuild_group(group, changes, dirty);
        }
    }

    /// Rebuilds the groups that use any version of a release after its user-defined tags have changed.
    fn rebuild_tag_users(&mut self, name: &Name, changes: &[FieldChange], dirty: &mut DirtyNodes) {
        let uses = |entry: &GroupEntry| {
            let release = entry.resolved.as_ref().ok().and_then(|resolved| resolved.release.as_ref());
            release.is_some_and(|release| release.value.name.name == *name)
        };
        let users: Vec<GroupId> = self.groups.iter().filter(|(_, entry)| uses(entry)).map(|(id, _)| *id).collect();
        for group in users {
            self.rebuild_group(group, changes, dirty);
        }
    }

    /// Rebuilds a group after a change of the group or of a level above it. Marks those of its nodes that the change
    /// can affect.
    fn rebuild_group(&mut self, id: GroupId, changes: &[FieldChange], dirty: &mut DirtyNodes) {
        let Some(entry) = self.groups.get(&id) else { return };
        let nodes: Vec<NodeId> = entry.nodes.iter().copied().collect();
        let before = entry.resolved.clone();
        let after = self.resolve_group(id);
        if let Ok(group) = &after {
            self.cache_shared(group);
        }
        if let Some(entry) = self.groups.get_mut(&id) {
            entry.resolved.clone_from(&after);
        }
        match (before, after) {
            (Ok(before), Ok(after)) => {
                self.mark_dirty_below(id, &before, &after, changes, dirty);
                if !after.has_same_placement(&before) {
                    self.recompute_placement(&nodes, dirty);
                }
            }
            (Err(before), Err(after)) if before == after => {}
            (_, Ok(_)) => {
                for node in &nodes {
                    dirty.add(*node);
                }
                self.recompute_placement(&nodes, dirty);
            }
            (_, Err(_)) => {
                for node in &nodes {
                    dirty.add(*node);
                    self.unplace(*node, id, dirty);
                }
            }
        }
    }

    /// Merges a group with its cluster, template and release. Fails with the first of these that is missing.
    fn resolve_group(&self, id: GroupId) -> Result<Arc<ResolvedGroup>, Vec<MissingParent>> {
        let missing = |what| vec![what];
        let group = self.group(id).ok_or_else(|| missing(MissingParent::NodeGroup(id)))?;
        let cluster_id = group.spec.cluster;
        let cluster = self.cluster(cluster_id).ok_or_else(|| missing(MissingParent::Cluster(cluster_id)))?;
        let template = match cluster.spec.cluster_template {
            None => None,
            Some(id) => Some(self.template(id).ok_or_else(|| missing(MissingParent::ClusterTemplate(id)))?),
        };
        ResolvedGroup::new(group, cluster, template, self).map(Arc::new).map_err(missing)
    }

    /// Marks the nodes of a group that have a matching read. If the group's requirements have one, these are all nodes
    /// of the group. Otherwise they are the nodes of each profile whose tasks have one.
    pub(super) fn mark_readers_in(&self, group: GroupId, is_match: &dyn Fn(&Read) -> bool, dirty: &mut DirtyNodes) {
        let Some(entry) = self.groups.get(&group) else { return };
        if entry.resolved.as_ref().is_ok_and(|resolved| resolved.required_reads.iter().any(is_match)) {
            entry.nodes.iter().for_each(|node| dirty.add(*node));
            return;
        }
        for used in entry.profiles.values() {
            if used.profile.reads.iter().any(|reference| is_match(reference.read())) {
                used.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
    }
}

/// Returns the changed fields of an object. Returns none if the object is new or was deleted, because the groups below
/// it were or become incomplete then.
fn field_changes<S: Spec + ClassifyFields>(old: Option<&Arc<Object<S>>>, new: Option<&Arc<Object<S>>>) -> Vec<FieldChange> {
    old.zip(new).map(|(old, new)| change::changes(old, new)).unwrap_or_default()
}

/// Returns whether the value of a read has changed because the node's own facts have changed. The address and hostname
/// are taken from facts, so any changed fact counts for them.
fn is_fact_changed(read: &Read, before: &Observation, after: &Observation) -> bool {
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
