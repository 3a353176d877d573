//! The fleet whose fields are changed, and the state of each of its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::SyntaxReader;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Cluster, Node, NodeId, ReleaseSpec};
use stemma_core::release::compile_set;
use stemma_core::resolve::{Resolution, ResolveCache, ResolvedNode, resolve_node};

use crate::fleet_fixture::{build_objects, file_task};

/// Returns two databases, one of which is the primary, and a web server. Tasks read a label, a parameter, a fact, a
/// property, a trait, the cluster's release, the primary and all nodes with a tag.
pub(super) fn site_manifests() -> Vec<Value> {
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

pub(super) struct PropagationSite {
    pub(super) fleet: Fleet,
    pub(super) releases: BTreeMap<ReleaseRef, ReleaseSpec>,
}

/// For each node, its known part and its task digest.
pub(super) type NodeStates = BTreeMap<String, (String, Option<String>)>;

impl PropagationSite {
    pub(super) fn new() -> Self {
        let objects = build_objects(&site_manifests());
        let releases = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
        let mut site = Self { fleet: Fleet::new(), releases };
        site.compile_releases();
        let fleet = &mut site.fleet;
        fleet.apply_all(objects.templates.into_iter().map(|one| FleetChange::Template(Arc::new(one))));
        fleet.apply_all(objects.clusters.into_iter().map(|one| FleetChange::Cluster(Arc::new(one))));
        fleet.apply_all(objects.groups.into_iter().map(|one| FleetChange::NodeGroup(Arc::new(one))));
        fleet.apply_all(objects.nodes.into_iter().map(|one| FleetChange::Node(Arc::new(one))));
        fleet.set_loaded();
        site
    }

    /// Compiles and applies all releases. Returns the dirty nodes.
    pub(super) fn compile_releases(&mut self) -> BTreeSet<String> {
        let compiled = compile_set(&self.releases, &SyntaxReader).expect("releases of the test");
        let dirty = self.fleet.apply_all(compiled.into_values().map(FleetChange::Release));
        dirty.nodes(&self.fleet).map(|id| self.node_name(id)).collect()
    }

    pub(super) fn apply(&mut self, change: FleetChange) -> BTreeSet<String> {
        let dirty = self.fleet.apply(change);
        dirty.nodes(&self.fleet).map(|id| self.node_name(id)).collect()
    }

    pub(super) fn node_name(&self, id: NodeId) -> String {
        self.fleet.node(id).expect("a node").display_name()
    }

    pub(super) fn node(&self, name: &str) -> &Arc<Node> {
        self.fleet.node_by_name(name).expect("a node of the test")
    }

    pub(super) fn cluster(&self, name: &str) -> &Arc<Cluster> {
        self.fleet.clusters().find(|one| one.meta.name.as_str() == name).expect("a cluster of the test")
    }

    pub(super) fn node_states(&self) -> NodeStates {
        let cache = ResolveCache::new();
        let of = |node: &Arc<Node>| match resolve_node(&self.fleet, &cache, node.id()) {
            Resolution::Complete(answer) => {
                let digest = answer.task_set().map(|set| set.digest.to_string());
                (node.display_name(), (known_part(&answer), digest))
            }
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        };
        self.fleet.nodes().map(of).collect()
    }
}

/// Returns the known part of a host, with the origins of its labels.
pub(super) fn known_part(answer: &ResolvedNode) -> String {
    let resolved = answer.resolved_group().expect("all are placed");
    let names = [resolved.template.as_ref().map(|one| &one.meta.name), Some(&resolved.cluster.meta.name)];
    let labels: Vec<_> = answer.labels().iter().map(|(key, one)| format!("{key}={:?}", one.value)).collect();
    let annotations: Vec<_> = answer.annotations().iter().map(|(key, one)| format!("{key}={:?}", one.value)).collect();
    let traits: Vec<_> = answer.traits().names().map(ToString::to_string).collect();
    let flags = (answer.is_parked(), answer.is_paused(), resolved.group.spec.mend_offline, &answer.node().spec.properties);
    let lacks = answer.check_instance_traits().is_err();
    let times = (answer.lifecycle_limits(), answer.mode(), answer.splay_seconds(), answer.silent_after_seconds(), answer.hold());
    let (rule, on_host) = (answer.host_labels(), answer.reported_state());
    format!(
        "{} {names:?} {lacks} {labels:?} {annotations:?} {traits:?} {flags:?} {times:?} {rule:?} {on_host:?} {:?} {:?} {:?} {:?}",
        answer.node().display_name(),
        answer.group_path(),
        answer.ready_probes(),
        answer.unmet_requirements(),
        answer.rule_outcome().notes
    )
}
