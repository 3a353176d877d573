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
use crate::release::{CompiledRelease, Profile};
use crate::task::{TASK_TYPES_FACT, declared_task_types};

impl Fleet {
    /// Applies one change of an object. Returns the nodes that must be resolved again.
    pub fn apply(&mut self, change: FleetChange) -> DirtyNodes {
        let old_fleet = self.clone();
        let mut dirty = DirtyNodes::default();
        let reporting_node = self.put(change, &mut dirty);
        // If all nodes are marked already, the nodes that look up others are marked too.
        if !dirty.is_all() {
            self.mark_readers(&old_fleet, reporting_node, &mut dirty);
        }
        dirty
    }

    /// Applies many changes, for example all stored objects at a start. Returns the nodes that must be resolved again.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = FleetChange>) -> DirtyNodes {
        let mut dirty = DirtyNodes::default();
        for change in changes {
            dirty.extend(self.apply(change));
        }
        dirty
    }

    /// Stores the change, and marks in `dirty` the nodes whose desired state it affects directly. If the observation of
    /// a host (what the host reports) has changed, returns its node. Other nodes may look up this node, so their
    /// desired state may change even if that of the node does not. Returns `None` for any other change.
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

    /// Stores a namespace of the catalogue, or deletes it if `namespace` is `None`. The catalogue is built again at its
    /// next use.
    fn put_namespace(&mut self, id: Uuid, namespace: Option<Arc<Namespace>>) {
        match namespace {
            Some(namespace) => drop(self.namespaces.insert(id, namespace)),
            None => drop(self.namespaces.remove(&id)),
        }
        self.catalog = Arc::default();
    }

    /// Stores an inspection rule, or deletes it if `rule` is `None`. Marks all nodes if the change can affect a host.
    /// No rule is evaluated here, because the values that rules give a node are computed when they are read.
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

    /// Stores a compiled release, and rebuilds the groups that use it. A release with the same hash as the stored one
    /// changes nothing.
    fn put_release(&mut self, release: Arc<CompiledRelease>, dirty: &mut DirtyNodes) {
        let name = release.name.clone();
        if self.releases.get(&name).is_some_and(|stored| stored.hash == release.hash) {
            return;
        }
        self.releases.insert(name.clone(), release);
        self.rebuild_release_users(&name, change::RELEASE_CHANGES, dirty);
    }

    /// Stores the user-defined tags of a release, or deletes them if `tags` is `None`. Rebuilds the groups that use any
    /// version of the release.
    fn put_release_tags(&mut self, name: &Name, tags: Option<Arc<ReleaseTags>>, dirty: &mut DirtyNodes) {
        let new_spec = tags.as_ref().map(|tags| tags.spec.clone()).unwrap_or_default();
        let old_tags = match tags {
            Some(tags) => self.release_tags.insert(name.clone(), tags),
            None => self.release_tags.remove(name),
        };
        let old_spec = old_tags.map(|old_tags| old_tags.spec.clone()).unwrap_or_default();
        self.rebuild_tag_users(name, &new_spec.changes(&old_spec), dirty);
    }

    /// Stores a template, or deletes it if `template` is `None`. Rebuilds the groups of its clusters.
    fn put_template(&mut self, id: TemplateId, template: Option<Arc<ClusterTemplate>>, dirty: &mut DirtyNodes) {
        let changes = field_changes(self.template(id), template.as_ref());
        self.update_template(id, |entry| entry.object = template);
        let clusters = self.templates.get(&id).map(|entry| entry.clusters.clone()).unwrap_or_default();
        for cluster in clusters {
            self.rebuild_cluster_groups(cluster, &changes, dirty);
        }
    }

    /// Stores a cluster, or deletes it if `cluster` is `None`. Registers it with its template, and rebuilds its groups.
    /// Elects the primary of each tag again, because the field `primaries` may have changed.
    fn put_cluster(&mut self, id: ClusterId, cluster: Option<Arc<Cluster>>, dirty: &mut DirtyNodes) {
        let changes = field_changes(self.cluster(id), cluster.as_ref());
        let old_template = self.cluster(id).and_then(|cluster| cluster.spec.cluster_template);
        let new_template = cluster.as_ref().and_then(|cluster| cluster.spec.cluster_template);
        if let Some(template) = old_template.filter(|_| old_template != new_template) {
            self.update_template(template, |entry| {
                entry.clusters.remove(&id);
            });
        }
        if let Some(template) = new_template {
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

    /// Stores a node group, or deletes it if `group` is `None`, and rebuilds it. If the group is deleted or moves to
    /// another cluster, its nodes lose their profiles and are no longer candidates for primaries of the old cluster.
    /// The entry of a deleted group remains while a node still names the group.
    fn put_group(&mut self, id: GroupId, group: Option<Arc<NodeGroup>>, dirty: &mut DirtyNodes) {
        let changes = field_changes(self.group(id), group.as_ref());
        let old_cluster = self.cluster_of_group(id);
        let new_cluster = group.as_ref().map(|group| group.spec.cluster);
        let nodes: Vec<NodeId> = self.nodes_in_group(id).collect();
        if let Some(cluster) = old_cluster.filter(|_| old_cluster != new_cluster) {
            for node in &nodes {
                self.unplace(*node, id, dirty);
            }
            self.update_node_count(cluster, |count| count - nodes.len());
            self.update_cluster(cluster, |entry| {
                entry.groups.remove(&id);
            });
        }
        if let Some(cluster) = new_cluster.filter(|_| old_cluster != new_cluster) {
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

    /// Stores a node, and marks it if a host or an inspection rule can see the change. A change that neither moves
    /// tasks nor parks or unparks the node only replaces the entry of the node. Otherwise the node is removed from its
    /// old group and name, if these have changed, and is added and placed again.
    fn put_node(&mut self, node: Arc<Node>, dirty: &mut DirtyNodes) {
        let id = node.id();
        let Some(old_entry) = self.nodes.get(&id).cloned() else { return self.add_node(node, dirty) };
        let changes = change::changes(&old_entry.node, &node);
        let new_entry = old_entry.with_node(node);
        // Inspection rules may read any field, so with rules every change marks the node.
        if changes.iter().any(|change| change.propagation != Propagation::ControllerOnly)
            || (!changes.is_empty() && !self.rules.is_empty())
        {
            dirty.add(id);
        }
        let moves_tasks = changes.iter().any(|change| change.propagation.may_move_tasks());
        if !moves_tasks && self.is_excluded(&old_entry) == self.is_excluded(&new_entry) {
            self.replace_entry(new_entry);
            return;
        }
        let (old_group, new_group) = (old_entry.node.spec.nodegroup, new_entry.node.spec.nodegroup);
        let is_renamed = old_entry.node.meta.name != new_entry.node.meta.name;
        if let Some(group) = old_group.filter(|_| old_group != new_group || is_renamed) {
            self.unplace(id, group, dirty);
        }
        if let Some(group) = old_group.filter(|_| old_group != new_group) {
            self.leave_group(id, group);
        }
        if let Some(name) = old_entry.node.meta.name.as_ref().filter(|_| is_renamed) {
            self.by_name.remove(name.as_str());
        }
        self.add_node(new_entry.node, dirty);
    }

    /// Adds a new or changed node to the index of names and to its group, stores its entry, and marks and places it.
    fn add_node(&mut self, node: Arc<Node>, dirty: &mut DirtyNodes) {
        let id = node.id();
        dirty.add(id);
        if let Some(name) = &node.meta.name {
            self.by_name.insert(name.clone(), id);
        }
        if let Some(group) = node.spec.nodegroup {
            let mut entry = self.groups.get(&group).cloned().unwrap_or_default();
            if entry.object.is_none() {
                // The node names a group that does not exist.
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

    /// Removes a node with what its host reported. Removes it from its group, from the candidates for primaries and
    /// from the indexes.
    fn remove_node(&mut self, id: NodeId, dirty: &mut DirtyNodes) {
        let Some(entry) = self.nodes.get(&id).cloned() else { return };
        dirty.add(id);
        if let Some(group) = entry.node.spec.nodegroup {
            self.unplace(id, group, dirty);
            self.leave_group(id, group);
        }
        if let Some(name) = &entry.node.meta.name {
            self.by_name.remove(name.as_str());
        }
        self.reported_states.remove(&id);
        let removed_entry = self.nodes.remove(&id);
        if let Some(index) = &mut self.index {
            index.update(id, removed_entry.as_deref(), None);
        }
    }

    /// Stores the entry of a node in place of its previous entry, and updates the index.
    pub(super) fn replace_entry(&mut self, entry: NodeEntry) {
        let (id, entry) = (entry.node.id(), Arc::new(entry));
        let old_entry = self.nodes.insert(id, Arc::clone(&entry));
        if let Some(index) = &mut self.index {
            index.update(id, old_entry.as_deref(), Some(&entry));
        }
    }

    /// Removes a node from the entry of its group, and updates the number of nodes of the cluster. If the group does
    /// not exist, its entry is removed with its last node.
    fn leave_group(&mut self, id: NodeId, group: GroupId) {
        let Some(mut entry) = self.groups.get(&group).cloned() else { return };
        let was_member = entry.nodes.remove(&id).is_some();
        if entry.nodes.is_empty() && entry.object.is_none() {
            self.groups.remove(&group);
        } else {
            self.groups.insert(group, entry);
        }
        if let Some(cluster) = self.cluster_of_group(group).filter(|_| was_member) {
            self.update_node_count(cluster, |count| count - 1);
        }
    }

    /// Updates the number of nodes of a cluster, and the number of clusters that have nodes. `change` maps the old
    /// number of nodes to the new one.
    fn update_node_count(&mut self, cluster: ClusterId, change: impl FnOnce(usize) -> usize) {
        let old_count = self.node_count(cluster);
        let new_count = change(old_count);
        self.update_cluster(cluster, |entry| entry.nodes = new_count);
        self.clusters_with_nodes = self.clusters_with_nodes + usize::from(new_count > 0) - usize::from(old_count > 0);
    }

    /// Stores the observation of a host (what the host reports), or removes it if `report` is `None`. Marks the node if
    /// the change can affect its desired state. This depends on the propagation of each changed part. If there are
    /// inspection rules, each change marks the node. Returns the node if the observation has changed.
    fn put_observation(&mut self, id: NodeId, report: Option<Arc<Observation>>, dirty: &mut DirtyNodes) -> Option<NodeId> {
        let old_entry = self.nodes.get(&id).cloned()?;
        let empty = Observation::default();
        let (old_values, new_values) = (old_entry.observation.as_deref().unwrap_or(&empty), report.as_deref().unwrap_or(&empty));
        let changes = new_values.changes(old_values);
        if changes.is_empty() && old_entry.observation.is_some() == report.is_some() {
            return None;
        }
        let group = self.resolved_parent(&old_entry.node.spec);
        let reads_changed_fact = || {
            let by_tasks = old_entry.profile.iter().flat_map(|profile| profile.reads.iter().map(Reference::read));
            let by_requirements = group.iter().flat_map(|group| &*group.required_reads);
            by_tasks.chain(by_requirements).any(|read| is_fact_changed(read, old_values, new_values))
        };
        let affects_node = |change: &FieldChange| match change.propagation.host_scope() {
            HostScope::Nobody => false,
            HostScope::Everyone => true,
            HostScope::ByKey => group.is_some_and(|group| group.accepted_labels(old_values) != group.accepted_labels(new_values)),
            HostScope::ByTasks => reads_changed_fact(),
        };
        let may_release = old_entry.profile.as_ref().is_some_and(|profile| {
            let reports = [&old_entry.observation, &report].map(|report| report.as_deref());
            is_declaration_changed(profile, reports)
        });
        // Inspection rules may read any part of a report, so with rules every change marks the node.
        if changes.iter().any(affects_node) || may_release || !self.rules.is_empty() {
            dirty.add(id);
        }
        let observation = report.map(|report| Arc::new(self.interner.intern_observation(&report)));
        self.replace_entry(old_entry.with_observation(observation));
        Some(id)
    }

    /// Stores the pause, hold and park that were set on a host itself, and marks its node. If the host was parked or
    /// unparked, elects the primaries of its tags again, and marks the nodes that gain or lose a primary.
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

    /// Stores the choice of the primary of a tag, or deletes it if `primary` is `None`. Elects the primary of the tag
    /// again, and updates the profiles of the nodes that lose and gain it.
    fn put_primary(&mut self, id: ClusterId, tag: &TagName, primary: Option<Arc<Primary>>, dirty: &mut DirtyNodes) {
        self.update_cluster(id, |entry| match primary {
            Some(primary) => drop(entry.stored_choices.insert(tag.clone(), primary)),
            None => drop(entry.stored_choices.remove(tag)),
        });
        for node in self.elect(id, tag) {
            self.update_profile(node, dirty);
        }
    }

    /// Calls `change` with the entry of a template, and stores the entry. Removes an entry whose template does not
    /// exist and which no cluster refers to.
    fn update_template(&mut self, id: TemplateId, change: impl FnOnce(&mut TemplateEntry)) {
        let mut entry = self.templates.get(&id).cloned().unwrap_or_default();
        change(&mut entry);
        if entry.object.is_none() && entry.clusters.is_empty() {
            self.templates.remove(&id);
        } else {
            self.templates.insert(id, entry);
        }
    }

    /// Calls `change` with the entry of a cluster, and stores the entry. Removes an entry whose cluster does not exist
    /// and which no group or stored choice refers to.
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

    /// Rebuilds the groups that use a release, and the groups that are incomplete because the release was missing.
    fn rebuild_release_users(&mut self, name: &ReleaseRef, changes: &[FieldChange], dirty: &mut DirtyNodes) {
        let uses = |entry: &GroupEntry| match &entry.resolved {
            Ok(group) => group.release.as_ref().is_some_and(|release| release.value.name == *name),
            Err(missing) => missing.iter().any(|object| matches!(object, MissingParent::Release(release) if release == name)),
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

    /// Computes again what a group inherits, after a change of the group or of a level above it. Marks the nodes of the
    /// group that the change can affect, and places all of them again if their tags may change. If the group, an object
    /// above it or its release is missing now, all its nodes are marked and lose their profiles.
    fn rebuild_group(&mut self, id: GroupId, changes: &[FieldChange], dirty: &mut DirtyNodes) {
        let Some(entry) = self.groups.get(&id) else { return };
        let nodes: Vec<NodeId> = entry.nodes.iter().copied().collect();
        let old_state = entry.resolved.clone();
        let new_state = self.resolve_group(id);
        if let Ok(group) = &new_state {
            self.cache_shared(group);
        }
        if let Some(entry) = self.groups.get_mut(&id) {
            entry.resolved.clone_from(&new_state);
        }
        match (old_state, new_state) {
            (Ok(old_state), Ok(new_state)) => {
                self.mark_dirty_below(id, &old_state, &new_state, changes, dirty);
                if !new_state.has_same_placement(&old_state) {
                    self.recompute_placement(&nodes, dirty);
                }
            }
            // The same object is still missing.
            (Err(old_state), Err(new_state)) if old_state == new_state => {}
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

    /// Merges a group with its cluster, template and release. Fails with the first of these objects that is missing.
    fn resolve_group(&self, id: GroupId) -> Result<Arc<ResolvedGroup>, Vec<MissingParent>> {
        let missing = |parent| vec![parent];
        let group = self.group(id).ok_or_else(|| missing(MissingParent::NodeGroup(id)))?;
        let cluster_id = group.spec.cluster;
        let cluster = self.cluster(cluster_id).ok_or_else(|| missing(MissingParent::Cluster(cluster_id)))?;
        let template = match cluster.spec.cluster_template {
            None => None,
            Some(id) => Some(self.template(id).ok_or_else(|| missing(MissingParent::ClusterTemplate(id)))?),
        };
        ResolvedGroup::new(group, cluster, template, self).map(Arc::new).map_err(missing)
    }

    /// Marks the nodes of a group that read a value for which `is_match` is true. If a requirement of the group reads
    /// such a value, all its nodes are marked. Otherwise the nodes of each profile (the tasks that these nodes share)
    /// whose tasks read such a value are marked.
    pub(super) fn mark_readers_in(&self, group: GroupId, is_match: &dyn Fn(&Read) -> bool, dirty: &mut DirtyNodes) {
        let Some(entry) = self.groups.get(&group) else { return };
        if entry.resolved.as_ref().is_ok_and(|resolved| resolved.required_reads.iter().any(is_match)) {
            entry.nodes.iter().for_each(|node| dirty.add(*node));
            return;
        }
        for profile_nodes in entry.profiles.values() {
            if profile_nodes.profile.reads.iter().any(|reference| is_match(reference.read())) {
                profile_nodes.nodes.iter().for_each(|node| dirty.add(*node));
            }
        }
    }
}

/// Returns the changed fields of an object, or none if it is new or was deleted. The groups at or below it then become
/// complete or incomplete, and all their nodes are marked for this reason.
fn field_changes<S: Spec + ClassifyFields>(old: Option<&Arc<Object<S>>>, new: Option<&Arc<Object<S>>>) -> Vec<FieldChange> {
    old.zip(new).map(|(old, new)| change::changes(old, new)).unwrap_or_default()
}

/// Returns whether two reports of a node with this profile differ in what they say about the task types that the agent
/// knows, and whether this can matter: the next task set is released only to an agent that knows its tasks.
fn is_declaration_changed(profile: &Profile, reports: [Option<&Observation>; 2]) -> bool {
    let [old, new] = reports.map(|report| report.map(|report| report.facts.text(TASK_TYPES_FACT)));
    let is_other = |declaration: Option<Option<&str>>| declaration.flatten().is_some_and(|fact| fact != declared_task_types());
    old != new && (!profile.later_tasks.is_empty() || is_other(old) || is_other(new))
}

/// Returns whether two reports of a node differ in a fact that `read` depends on. The address and the hostname of a
/// node are taken from facts, so every changed fact counts as a change of these two fields.
fn is_fact_changed(read: &Read, old_report: &Observation, new_report: &Observation) -> bool {
    let differs = |path: &Path| old_report.facts.get(path) != new_report.facts.get(path);
    match read {
        Read::Fact(path) => differs(path),
        Read::Node(path) => match path.first() {
            "address" | "hostname" => old_report.facts != new_report.facts,
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
