//! A fleet of manifests, with the changes that made it: what tests of the model ask and edit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::fleet::{Change, Dirty, Fleet};
use stemma_core::manifest::{Objects, assemble, read_document};
use stemma_core::object::{ClusterId, Node, NodeId};
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{Answer, PlainAnswer, Resolution, ResolveCache, resolve_node};

/// A fleet of manifests, with the changes that made it.
pub(crate) struct Made {
    pub(crate) fleet: Fleet,
    pub(crate) cache: ResolveCache,
}

/// A task that writes a template to a file of its own name.
pub(crate) fn file_task(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/{id}"), "template": template}})
}

pub(crate) fn objects(documents: &[Value]) -> Objects {
    let documents: Vec<_> =
        documents.iter().map(|one| read_document(&one.to_string()).expect("a document of the test")).collect();
    assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests of the test")
}

pub(crate) fn changes(objects: Objects) -> Vec<Change> {
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let releases = compile_set(&specs, &Reader).expect("releases of the test");
    let mut changes: Vec<Change> = releases.into_values().map(Change::Release).collect();
    changes.extend(objects.templates.into_iter().map(|one| Change::Template(Arc::new(one))));
    changes.extend(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
    changes.extend(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
    changes.extend(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
    changes.extend(objects.observations.into_iter().map(|(id, seen)| Change::Observation(id, Arc::new(seen))));
    changes
}

impl Made {
    pub(crate) fn of(documents: &[Value]) -> Self {
        let mut fleet = Fleet::new();
        fleet.apply_all(changes(objects(documents)));
        fleet.set_loaded();
        Self { fleet, cache: ResolveCache::new() }
    }

    /// Applies documents anew, in full: a store would send what an edit made of them.
    pub(crate) fn edit(&mut self, documents: &[Value]) -> Vec<String> {
        let dirty = self.fleet.apply_all(changes(objects(documents)));
        self.names(&dirty)
    }

    pub(crate) fn names(&self, dirty: &Dirty) -> Vec<String> {
        let mut names: Vec<_> =
            dirty.nodes(&self.fleet).filter_map(|id| Some(self.fleet.node(id)?.display_name())).collect();
        names.sort();
        names
    }

    pub(crate) fn node(&self, name: &str) -> &Arc<Node> {
        self.fleet.node_named(name).expect("a node of the test")
    }

    pub(crate) fn answer(&self, name: &str) -> Arc<Answer> {
        match resolve_node(&self.fleet, &self.cache, self.node(name).id()) {
            Resolution::Complete(answer) => answer,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    pub(crate) fn plain(&self, name: &str) -> PlainAnswer {
        PlainAnswer::of(&self.answer(name))
    }

    pub(crate) fn digests(&self) -> BTreeMap<NodeId, Option<String>> {
        let of = |node: &Arc<Node>| (node.id(), PlainAnswer::of(&self.answer(&node.display_name())).task_digest);
        self.fleet.nodes().map(of).collect()
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        ClusterId(self.fleet.clusters().next().expect("a cluster").meta.uuid)
    }
}

pub(crate) fn release(matching: &Value, tasks: &Value) -> Value {
    json!({
        "kind": "Release", "name": "site", "version": "1", "matching": matching,
        "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}},
        "tags": {"mysql": {"has_primary": true}, "nginx": {}},
        "tasks": tasks,
    })
}

pub(crate) fn tasks() -> Value {
    json!([
        {"id": "server", "type": "puppet", "tags": ["mysql"]},
        {"id": "bootstrap", "type": "puppet", "tags": ["primary-mysql"]},
        {"id": "by-role", "type": "puppet", "roles": ["db"]},
        {"id": "by-empty-tags", "type": "puppet", "tags": [], "roles": ["db"]},
        {"id": "every", "type": "puppet", "roles": ["*"]},
    ])
}

/// Two databases and a web server, below a template.
pub(crate) fn site(matching: &Value, tasks: &Value) -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"ntp": "a", "tier": "std"}}),
        release(matching, tasks),
        json!({"kind": "Cluster", "name": "prod", "cluster_template": "base"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "dbs", "roles": ["db"]}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "webs", "roles": ["web"], "labels": {"tier": "gold"}}),
        json!({"kind": "Node", "name": "db-2", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "db-10", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/webs"}),
    ]
}

pub(crate) fn file(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/etc/{id}"), "template": template}})
}

/// The same under the default matching.
pub(crate) fn reading(tasks: &Value) -> Vec<Value> {
    site(&json!({}), tasks)
}
