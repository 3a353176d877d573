//! The fleet in which fields are changed, and what every node of it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Cluster, Node, NodeId, ReleaseSpec};
use stemma_core::release::compile_set;
use stemma_core::resolve::{Answer, Resolution, ResolveCache, resolve_node};

use crate::made::{file_task, objects};

/// Two databases, one of which is the primary, and a web server. Tasks read a label, a parameter, a fact, a property,
/// a trait, the cluster's release, the primary and all nodes that hold a tag.
pub(super) fn site() -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "base", "labels": {"free": "1"}, "parameters": {"size": 1}, "release": "site@1"}),
        json!({"kind": "ClusterTemplate", "name": "other", "labels": {"free": "2"}, "parameters": {"size": 2}, "release": "site@1"}),
        json!({
            "kind": "Release", "name": "site", "version": "1",
            "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}, "more": {"tags": ["extra"]}},
            "tags": {"mysql": {"has_primary": true}, "nginx": {}, "extra": {}},
            "extensions": [{"roles": ["db"], "use": "x"}],
            "tasks": [
                file_task("label", "mysql", "{{ labels.read | default('') }}"),
                file_task("size", "nginx", "{{ params.size }} {{ params.size }}"),
                file_task("sizes", "mysql", "{{ params.size }}"),
                file_task("fact", "mysql", "{{ facts.os.id | default('') }} {{ node.properties.disk | default('') }}"),
                file_task("seen", "nginx", "{{ primary('mysql').name }} {% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
                file_task("release", "nginx", "{{ cluster.release | default('') }}"),
                file_task("extra", "extra", "x"),
                {"id": "fast", "type": "puppet", "tags": ["nginx"], "condition": "'CUSTOM_FAST' in traits"},
            ],
        }),
        json!({"kind": "Release", "name": "lib", "version": "1", "tasks": [file_task("imported", "mysql", "x")]}),
        json!({"kind": "Release", "name": "site", "version": "2", "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}}, "tags": {"mysql": {"has_primary": true}, "nginx": {}}, "tasks": [file_task("two", "mysql", "x"), file_task("web", "nginx", "x")]}),
        json!({"kind": "Cluster", "name": "prod", "cluster_template": "base"}),
        json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "dbs", "roles": ["db"], "requirements": {"property:memory": ">= 2"}}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "webs", "roles": ["web"]}),
        json!({"kind": "Node", "name": "db-1", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "db-2", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/webs"}),
    ]
}

pub(super) struct Site {
    pub(super) fleet: Fleet,
    pub(super) releases: BTreeMap<ReleaseRef, ReleaseSpec>,
}

/// What every node is told at once, and the digest of what it runs.
pub(super) type Answers = BTreeMap<String, (String, Option<String>)>;

impl Site {
    pub(super) fn new() -> Self {
        let objects = objects(&site());
        let releases = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
        let mut site = Self { fleet: Fleet::new(), releases };
        site.compile();
        let fleet = &mut site.fleet;
        fleet.apply_all(objects.templates.into_iter().map(|one| Change::Template(Arc::new(one))));
        fleet.apply_all(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
        fleet.apply_all(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
        fleet.apply_all(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
        fleet.set_loaded();
        site
    }

    /// Compiles all releases and puts them; gives who is reached.
    pub(super) fn compile(&mut self) -> BTreeSet<String> {
        let compiled = compile_set(&self.releases, &Reader).expect("releases of the test");
        let dirty = self.fleet.apply_all(compiled.into_values().map(Change::Release));
        dirty.nodes(&self.fleet).map(|id| self.name(id)).collect()
    }

    pub(super) fn apply(&mut self, change: Change) -> BTreeSet<String> {
        let dirty = self.fleet.apply(change);
        dirty.nodes(&self.fleet).map(|id| self.name(id)).collect()
    }

    pub(super) fn name(&self, id: NodeId) -> String {
        self.fleet.node(id).expect("a node").display_name()
    }

    pub(super) fn node(&self, name: &str) -> &Arc<Node> {
        self.fleet.node_named(name).expect("a node of the test")
    }

    pub(super) fn cluster(&self, name: &str) -> &Arc<Cluster> {
        self.fleet.clusters().find(|one| one.meta.name.as_str() == name).expect("a cluster of the test")
    }

    pub(super) fn answers(&self) -> Answers {
        let cache = ResolveCache::new();
        let of = |node: &Arc<Node>| match resolve_node(&self.fleet, &cache, node.id()) {
            Resolution::Complete(answer) => {
                let digest = answer.task_set().map(|set| set.digest.to_string());
                (node.display_name(), (told(&answer), digest))
            }
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        };
        self.fleet.nodes().map(of).collect()
    }
}

/// All that is known on a host, with where labels come from.
pub(super) fn told(answer: &Answer) -> String {
    let fold = answer.fold().expect("all are placed");
    let names = [fold.template.as_ref().map(|one| &one.meta.name), Some(&fold.cluster.meta.name)];
    let labels: Vec<_> = answer.labels().iter().map(|(key, one)| format!("{key}={:?}", one.value)).collect();
    let annotations: Vec<_> = answer.annotations().iter().map(|(key, one)| format!("{key}={:?}", one.value)).collect();
    let traits: Vec<_> = answer.traits().names().map(ToString::to_string).collect();
    let flags = (answer.is_parked(), answer.is_paused(), fold.group.spec.mend_offline, &answer.node().spec.properties);
    let lacks = answer.check_instance().is_err();
    let times = (answer.limits(), answer.mode(), answer.splay_seconds(), answer.silent_after_seconds(), answer.hold());
    let (rule, on_host) = (answer.host_labels(), answer.said());
    format!(
        "{} {names:?} {lacks} {labels:?} {annotations:?} {traits:?} {flags:?} {times:?} {rule:?} {on_host:?} {:?} {:?} {:?} {:?}",
        answer.node().display_name(),
        answer.place(),
        answer.ready(),
        answer.unmet(),
        answer.ruled().notes
    )
}
