//! A fleet that is built from manifests. Tests of the fleet model read and edit it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::fleet::{DirtyNodes, Fleet, FleetChange};
use stemma_core::manifest::{ManifestObjects, assemble, read_document};
use stemma_core::object::{ClusterId, Node, NodeId};
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{NodeOutput, Resolution, ResolveCache, ResolvedNode, resolve_node};

/// A fleet that is built from manifests, with a cache of resolved nodes.
pub(crate) struct FleetFixture {
    pub(crate) fleet: Fleet,
    pub(crate) cache: ResolveCache,
}

/// Returns a task of type `file` for nodes with the tag. It writes the rendered template to the path `/` with the id of
/// the task as the file name.
pub(crate) fn file_task(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/{id}"), "template": template}})
}

/// Parses manifests and returns their objects.
pub(crate) fn build_objects(documents: &[Value]) -> ManifestObjects {
    let documents: Vec<_> =
        documents.iter().map(|document| read_document(&document.to_string()).expect("a document of the test")).collect();
    assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests of the test")
}

/// Returns one change for each object, which stores the object in a fleet. The order is: compiled releases, templates,
/// clusters, groups, nodes, and observations of hosts. Namespaces and inspection rules are left out.
pub(crate) fn to_changes(objects: ManifestObjects) -> Vec<FleetChange> {
    let specs = objects.releases.iter().map(|object| (object.meta.name.clone(), object.spec.clone())).collect();
    let releases = compile_set(&specs, &SyntaxReader).expect("releases of the test");
    let mut changes: Vec<FleetChange> = releases.into_values().map(FleetChange::Release).collect();
    changes.extend(objects.templates.into_iter().map(|object| FleetChange::Template(Arc::new(object))));
    changes.extend(objects.clusters.into_iter().map(|object| FleetChange::Cluster(Arc::new(object))));
    changes.extend(objects.groups.into_iter().map(|object| FleetChange::NodeGroup(Arc::new(object))));
    changes.extend(objects.nodes.into_iter().map(|object| FleetChange::Node(Arc::new(object))));
    changes.extend(objects.observations.into_iter().map(|(id, observation)| FleetChange::Observation(id, Arc::new(observation))));
    changes
}

impl FleetFixture {
    /// Builds the fleet that has the objects of these manifests, as after the load of a store.
    pub(crate) fn from_manifests(documents: &[Value]) -> Self {
        let mut fleet = Fleet::new();
        fleet.apply_all(to_changes(build_objects(documents)));
        fleet.set_loaded();
        Self { fleet, cache: ResolveCache::new() }
    }

    /// Applies all documents, also the unchanged ones, although a store would send only changed objects. Returns the
    /// names of the dirty nodes (the nodes that must be resolved again), in order.
    pub(crate) fn apply(&mut self, documents: &[Value]) -> Vec<String> {
        let dirty = self.fleet.apply_all(to_changes(build_objects(documents)));
        self.node_names(&dirty)
    }

    /// Returns the names of the dirty nodes (the nodes that must be resolved again), in order.
    pub(crate) fn node_names(&self, dirty: &DirtyNodes) -> Vec<String> {
        let mut names: Vec<_> = dirty.nodes(&self.fleet).filter_map(|id| Some(self.fleet.node(id)?.display_name())).collect();
        names.sort();
        names
    }

    pub(crate) fn node(&self, name: &str) -> &Arc<Node> {
        self.fleet.node_by_name(name).expect("a node of the test")
    }

    /// Resolves the node of this name. Panics if an object that the node needs is missing.
    pub(crate) fn resolved_node(&self, name: &str) -> Arc<ResolvedNode> {
        match resolve_node(&self.fleet, &self.cache, self.node(name).id()) {
            Resolution::Complete(resolved) => resolved,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    /// Returns the desired state of a node as `stemma resolve` prints it.
    pub(crate) fn node_output(&self, name: &str) -> NodeOutput {
        NodeOutput::from_node(&self.resolved_node(name))
    }

    /// Returns the task digest of each node, or `None` for a node without a task set.
    pub(crate) fn digests(&self) -> BTreeMap<NodeId, Option<String>> {
        let node_digest =
            |node: &Arc<Node>| (node.id(), NodeOutput::from_node(&self.resolved_node(&node.display_name())).task_digest);
        self.fleet.nodes().map(node_digest).collect()
    }

    /// Returns the id of the first cluster.
    pub(crate) fn cluster_id(&self) -> ClusterId {
        ClusterId(self.fleet.clusters().next().expect("a cluster").meta.uuid)
    }
}

/// Returns release `site@1` with roles `db` and `web`. Role `db` gives a node tag `mysql`, which has a primary, and
/// role `web` gives tag `nginx`. The field `matching` of the release sets which names of a node the selectors of tasks
/// match.
pub(crate) fn release_manifest(matching: &Value, tasks: &Value) -> Value {
    json!({
        "kind": "Release", "name": "site", "version": "1", "matching": matching,
        "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}},
        "tags": {"mysql": {"has_primary": true}, "nginx": {}},
        "tasks": tasks,
    })
}

/// Returns five tasks. They select nodes by tag, by the tag of a primary, by role, by role with an empty list `tags`,
/// and by any role.
pub(crate) fn task_manifests() -> Value {
    json!([
        {"id": "server", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
        {"id": "bootstrap", "type": "shell", "parameters": {"script": "true"}, "tags": ["primary-mysql"]},
        {"id": "by-role", "type": "shell", "parameters": {"script": "true"}, "roles": ["db"]},
        {"id": "by-empty-tags", "type": "shell", "parameters": {"script": "true"}, "tags": [], "roles": ["db"]},
        {"id": "every", "type": "shell", "parameters": {"script": "true"}, "roles": ["*"]},
    ])
}

/// Returns the documents of a site. Tests edit them by index: 0 is cluster template `base`, 1 is release `site@1`, 2 is
/// cluster `prod`, 3 and 4 are the groups `dbs` and `webs`, and 5 to 7 are the nodes `db-2`, `db-10` and `web-1`.
pub(crate) fn site_manifests(matching: &Value, tasks: &Value) -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"ntp": "a", "tier": "std"}}),
        release_manifest(matching, tasks),
        json!({"kind": "Cluster", "name": "prod", "cluster_template": "base"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "dbs", "roles": ["db"]}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "webs", "roles": ["web"], "labels": {"tier": "gold"}}),
        json!({"kind": "Node", "name": "db-2", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "db-10", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/webs"}),
    ]
}

/// Returns a task of type `file` for nodes with the tag. It writes the rendered template to the path `/etc/` with the
/// id of the task as the file name.
pub(crate) fn etc_file_task(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/etc/{id}"), "template": template}})
}

/// Returns [`site_manifests`] with the default matching: tasks select nodes by their own roles and tags, and a primary
/// has both tag names, such as `mysql` and `primary-mysql`.
pub(crate) fn default_matching_site(tasks: &Value) -> Vec<Value> {
    site_manifests(&json!({}), tasks)
}
