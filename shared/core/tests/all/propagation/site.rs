//! The fleet in which tests change fields, and the state of each of its nodes.

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

/// Returns the documents of two databases, of which db-1 is the primary, and of a web server. Tasks read a label, a
/// parameter, a fact, a property, a trait, the release of the cluster, the primary, and all nodes with a tag. Cluster
/// template `other`, cluster `lab` and releases `lib@1` and `site@2` are unused until a test changes an object.
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
                {"id": "fast", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "condition": "'CUSTOM_FAST' in traits"},
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

/// A fleet, with the specs of its releases. A test changes a spec and compiles the releases again.
pub(super) struct PropagationSite {
    pub(super) fleet: Fleet,
    pub(super) releases: BTreeMap<ReleaseRef, ReleaseSpec>,
}

/// For each node name, the text of its known part and its task digest.
pub(super) type NodeStates = BTreeMap<String, (String, Option<String>)>;

impl PropagationSite {
    /// Builds the fleet of [`site_manifests`].
    pub(super) fn new() -> Self {
        let objects = build_objects(&site_manifests());
        let releases = objects.releases.iter().map(|object| (object.meta.name.clone(), object.spec.clone())).collect();
        let mut site = Self { fleet: Fleet::new(), releases };
        site.compile_releases();
        let fleet = &mut site.fleet;
        fleet.apply_all(objects.templates.into_iter().map(|object| FleetChange::Template(Arc::new(object))));
        fleet.apply_all(objects.clusters.into_iter().map(|object| FleetChange::Cluster(Arc::new(object))));
        fleet.apply_all(objects.groups.into_iter().map(|object| FleetChange::NodeGroup(Arc::new(object))));
        fleet.apply_all(objects.nodes.into_iter().map(|object| FleetChange::Node(Arc::new(object))));
        fleet.set_loaded();
        site
    }

    /// Compiles all releases and stores them in the fleet. Returns the names of the dirty nodes (to be resolved again).
    pub(super) fn compile_releases(&mut self) -> BTreeSet<String> {
        let compiled = compile_set(&self.releases, &SyntaxReader).expect("releases of the test");
        let dirty = self.fleet.apply_all(compiled.into_values().map(FleetChange::Release));
        dirty.nodes(&self.fleet).map(|id| self.node_name(id)).collect()
    }

    /// Applies a change to the fleet. Returns the names of the dirty nodes (to be resolved again).
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
        self.fleet.clusters().find(|cluster| cluster.meta.name.as_str() == name).expect("a cluster of the test")
    }

    /// Resolves all nodes. Returns the text of the known part and the task digest of each node.
    pub(super) fn node_states(&self) -> NodeStates {
        let cache = ResolveCache::new();
        let node_state = |node: &Arc<Node>| match resolve_node(&self.fleet, &cache, node.id()) {
            Resolution::Complete(resolved_node) => {
                let digest = resolved_node.task_set().map(|set| set.digest.to_string());
                (node.display_name(), (known_part(&resolved_node), digest))
            }
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        };
        self.fleet.nodes().map(node_state).collect()
    }
}

/// Returns as text what a host receives at once, whether or not a task set is released: for example labels, traits, and
/// lifecycle fields. The text also has values that only the controller uses, such as unmet requirements.
pub(super) fn known_part(resolved_node: &ResolvedNode) -> String {
    let resolved = resolved_node.resolved_group().expect("every node of the test is placed");
    let names = [resolved.template.as_ref().map(|entry| &entry.meta.name), Some(&resolved.cluster.meta.name)];
    let labels: Vec<_> = resolved_node.labels().iter().map(|(key, entry)| format!("{key}={:?}", entry.value)).collect();
    let annotations: Vec<_> = resolved_node.annotations().iter().map(|(key, entry)| format!("{key}={:?}", entry.value)).collect();
    let traits: Vec<_> = resolved_node.traits().names().map(ToString::to_string).collect();
    let flags = (
        resolved_node.is_parked(),
        resolved_node.is_paused(),
        resolved.group.spec.mend_offline,
        &resolved_node.node().spec.properties,
    );
    let lacks_instance_traits = resolved_node.check_instance_traits().is_err();
    let settings = (
        resolved_node.lifecycle_limits(),
        resolved_node.mode(),
        (resolved_node.splay_seconds(), resolved_node.removes_orphans()),
        resolved_node.silent_after_seconds(),
        resolved_node.hold(),
    );
    let (host_label_rule, reported_state) = (resolved_node.host_labels(), resolved_node.reported_state());
    format!(
        "{} {names:?} {lacks_instance_traits} {labels:?} {annotations:?} {traits:?} {flags:?} {settings:?} {host_label_rule:?} {reported_state:?} {:?} {:?} {:?} {:?}",
        resolved_node.node().display_name(),
        resolved_node.group_path(),
        resolved_node.ready_probes(),
        resolved_node.unmet_requirements(),
        resolved_node.rule_outcome().notes
    )
}
