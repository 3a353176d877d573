//! A fleet made from manifests, which tests of the model read and edit.

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

/// A fleet made from manifests, with a resolve cache.
pub(crate) struct FleetFixture {
    pub(crate) fleet: Fleet,
    pub(crate) cache: ResolveCache,
}

/// Returns a task that writes a template to a file named after the task.
pub(crate) fn file_task(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/{id}"), "template": template}})
}

pub(crate) fn build_objects(documents: &[Value]) -> ManifestObjects {
    let documents: Vec<_> =
        documents.iter().map(|one| read_document(&one.to_string()).expect("a document of the test")).collect();
    assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests of the test")
}

pub(crate) fn to_changes(objects: ManifestObjects) -> Vec<FleetChange> {
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let releases = compile_set(&specs, &SyntaxReader).expect("releases of the test");
    let mut changes: Vec<FleetChange> = releases.into_values().map(FleetChange::Release).collect();
    changes.extend(objects.templates.into_iter().map(|one| FleetChange::Template(Arc::new(one))));
    changes.extend(objects.clusters.into_iter().map(|one| FleetChange::Cluster(Arc::new(one))));
    changes.extend(objects.groups.into_iter().map(|one| FleetChange::NodeGroup(Arc::new(one))));
    changes.extend(objects.nodes.into_iter().map(|one| FleetChange::Node(Arc::new(one))));
    changes.extend(objects.observations.into_iter().map(|(id, seen)| FleetChange::Observation(id, Arc::new(seen))));
    changes
}

impl FleetFixture {
    pub(crate) fn from_manifests(documents: &[Value]) -> Self {
        let mut fleet = Fleet::new();
        fleet.apply_all(to_changes(build_objects(documents)));
        fleet.set_loaded();
        Self { fleet, cache: ResolveCache::new() }
    }

    /// Applies the documents again, all of them. Returns the dirty nodes. A store would send only the changed objects.
    pub(crate) fn apply(&mut self, documents: &[Value]) -> Vec<String> {
        let dirty = self.fleet.apply_all(to_changes(build_objects(documents)));
        self.node_names(&dirty)
    }

    pub(crate) fn node_names(&self, dirty: &DirtyNodes) -> Vec<String> {
        let mut names: Vec<_> = dirty.nodes(&self.fleet).filter_map(|id| Some(self.fleet.node(id)?.display_name())).collect();
        names.sort();
        names
    }

    pub(crate) fn node(&self, name: &str) -> &Arc<Node> {
        self.fleet.node_by_name(name).expect("a node of the test")
    }

    pub(crate) fn resolved_node(&self, name: &str) -> Arc<ResolvedNode> {
        match resolve_node(&self.fleet, &self.cache, self.node(name).id()) {
            Resolution::Complete(answer) => answer,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    pub(crate) fn node_output(&self, name: &str) -> NodeOutput {
        NodeOutput::from_node(&self.resolved_node(name))
    }

    pub(crate) fn digests(&self) -> BTreeMap<NodeId, Option<String>> {
        let of = |node: &Arc<Node>| (node.id(), NodeOutput::from_node(&self.resolved_node(&node.display_name())).task_digest);
        self.fleet.nodes().map(of).collect()
    }

    pub(crate) fn cluster_id(&self) -> ClusterId {
        ClusterId(self.fleet.clusters().next().expect("a cluster").meta.uuid)
    }
}

pub(crate) fn release_manifest(matching: &Value, tasks: &Value) -> Value {
    json!({
        "kind": "Release", "name": "site", "version": "1", "matching": matching,
        "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}},
        "tags": {"mysql": {"has_primary": true}, "nginx": {}},
        "tasks": tasks,
    })
}

pub(crate) fn task_manifests() -> Value {
    json!([
        {"id": "server", "type": "puppet", "tags": ["mysql"]},
        {"id": "bootstrap", "type": "puppet", "tags": ["primary-mysql"]},
        {"id": "by-role", "type": "puppet", "roles": ["db"]},
        {"id": "by-empty-tags", "type": "puppet", "tags": [], "roles": ["db"]},
        {"id": "every", "type": "puppet", "roles": ["*"]},
    ])
}

/// Returns two databases and a web server, below a template.
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

pub(crate) fn file_manifest(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/etc/{id}"), "template": template}})
}

/// Returns the same site with the default matching.
pub(crate) fn default_matching_site(tasks: &Value) -> Vec<Value> {
    site_manifests(&json!({}), tasks)
}
