//! What the tests over given data share: reading it, and making a fleet of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::condition::{Author, AuthorError, Condition, TemplateReads};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::graph::ClusterGraph;
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef, TagName};
use stemma_core::object::{
    ClusterId, ClusterSpec, GroupId, Matching, Meta, NodeGroupSpec, NodeId, NodeSpec, NodeTags, Object, PrimarySpec,
    ReleaseSpec, Timestamp,
};
use stemma_core::ownership::{Intent, Manager, OwnedSet, Said};
use stemma_core::release::{CompiledRelease, ReleaseError, compile, fuel};
use uuid::Uuid;

/// An author that finds no references: Fuel's tasks have no templates of ours, and their conditions count as true.
pub(crate) struct NoReferences;

impl Author for NoReferences {
    fn template(&self, _: &str) -> Result<TemplateReads, AuthorError> {
        Ok(TemplateReads::default())
    }

    fn script(&self, _: &str) -> Result<TemplateReads, AuthorError> {
        Ok(TemplateReads::default())
    }

    fn condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
        panic!("no condition is translated: {text}")
    }
}

pub(crate) fn release_name() -> ReleaseRef {
    "fuel@1".parse().expect("a release's name")
}

pub(crate) fn compiled(spec: &ReleaseSpec) -> Result<Arc<CompiledRelease>, Vec<ReleaseError>> {
    compile(&release_name(), spec, &|_| None, &NoReferences)
}

pub(crate) fn object(value: &Value, field: &str) -> Map<String, Value> {
    value.get(field).and_then(Value::as_object).cloned().unwrap_or_default()
}

pub(crate) fn list<'a>(value: &'a Value, field: &str) -> Vec<&'a str> {
    value.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// One cluster of Fuel's, as a fleet.
pub(crate) struct Scenario {
    pub(crate) fleet: Fleet,
    pub(crate) cluster: ClusterId,
}

impl Scenario {
    /// Reads `{tasks, roles_metadata, tags_metadata, nodes}` under a matching.
    pub(crate) fn read(value: &Value, matching: Matching) -> Result<Self, String> {
        let mut roles = object(value, "roles_metadata");
        roles.extend(object(value, "cluster_roles_metadata"));
        roles.extend(object(value, "plugin_roles_metadata"));
        let mut tags = object(value, "tags_metadata");
        tags.extend(object(value, "cluster_tags_metadata"));
        tags.extend(object(value, "plugin_tags_metadata"));
        let tasks = value.get("tasks").and_then(Value::as_array).cloned().unwrap_or_default();
        let imported = fuel::import(&tasks, &roles, &tags).map_err(|error| error.to_string())?;
        Self::with(&ReleaseSpec { matching, ..imported.spec }, value)
    }

    /// A fleet of a release and the `nodes` of a scenario.
    pub(crate) fn with(spec: &ReleaseSpec, value: &Value) -> Result<Self, String> {
        let release =
            compiled(spec).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let mut fleet = Fleet::new();
        let (cluster, group) = (ClusterId(Uuid::from_u128(1)), GroupId(Uuid::from_u128(2)));
        let meta = |uuid, name: &str| Meta::new(uuid, ObjectName::new(name).expect("a name"), Timestamp(0));
        let of_cluster = ClusterSpec { release: Some(release_name()), ..ClusterSpec::default() };
        fleet.apply(Change::Release(release));
        fleet.apply(Change::Cluster(Arc::new(Object { meta: meta(cluster.0, "c"), spec: of_cluster })));
        fleet
            .apply(Change::NodeGroup(Arc::new(Object { meta: meta(group.0, "g"), spec: NodeGroupSpec::new(cluster) })));
        let nodes = value.get("nodes").and_then(Value::as_array).cloned().unwrap_or_default();
        for (at, node) in (100..).zip(&nodes) {
            let node = read_node(node, at, group, &fleet);
            fleet.apply(Change::Node(Arc::new(node)));
        }
        choose(&mut fleet, cluster, &nodes);
        fleet.set_loaded();
        Ok(Self { fleet, cluster })
    }

    pub(crate) fn graph(&self) -> ClusterGraph {
        ClusterGraph::of(&self.fleet, self.cluster)
    }

    /// Node (`null` for the stages) to tasks, as the vectors write it.
    pub(crate) fn placement(&self) -> BTreeMap<String, BTreeSet<String>> {
        let graph = self.graph();
        let mut placed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for class in &graph.classes {
            let ids: Vec<_> = class.profile.tasks.iter().map(|ix| class.profile.release.id(*ix).to_owned()).collect();
            for node in class.nodes.iter().filter(|_| !ids.is_empty()) {
                placed.entry(node.to_string()).or_default().extend(ids.iter().cloned());
            }
        }
        if !graph.stages.is_empty() {
            placed.insert("null".to_owned(), graph.stages.iter().map(ToString::to_string).collect());
        }
        placed
    }

    /// Every pair, as the vectors write it.
    pub(crate) fn edges(&self) -> BTreeSet<[[String; 2]; 2]> {
        let end = |(node, task): (Option<Arc<str>>, Arc<str>)| {
            [node.map_or_else(|| "null".to_owned(), |name| name.to_string()), task.to_string()]
        };
        self.graph().order_pairs().into_iter().map(|(before, after)| [end(before), end(after)]).collect()
    }

    /// The names that tag selectors match, by node.
    pub(crate) fn tag_names(&self) -> BTreeMap<String, BTreeSet<String>> {
        let nodes = self.fleet.nodes_of_cluster(self.cluster);
        let named = nodes.filter_map(|id| {
            let names = self.fleet.profile(id)?.place.names.tag_names().map(str::to_owned).collect();
            Some((self.fleet.node(id)?.display_name(), names))
        });
        named.collect()
    }
}

/// A node of the vectors: its `tags` are what it has in the end, so what its roles do not produce was assigned by
/// hand, and what they produce and it lacks was unassigned.
fn read_node(value: &Value, at: u128, group: GroupId, fleet: &Fleet) -> Object<NodeSpec> {
    let name = value.get("id").and_then(Value::as_str).expect("a node has an id");
    let roles: BTreeSet<Name> = list(value, "roles").into_iter().map(|role| Name::new(role).expect("a role")).collect();
    let tags: BTreeSet<TagName> =
        list(value, "tags").into_iter().map(|tag| TagName::new(tag).expect("a tag")).collect();
    let table = fleet.fold(group).expect("the group is whole").table.clone().expect("it has a release");
    let produced: BTreeSet<TagName> = table.effective_tags(&roles, &NodeTags::default()).into_keys().collect();
    let set = |tags: &mut dyn Iterator<Item = &TagName>| -> OwnedSet<TagName> {
        let intent: Intent<TagName, ()> = tags.map(|tag| (tag.clone(), Said::Value(()))).collect();
        OwnedSet::default().update(&Manager::new("vectors").expect("a manager"), &intent)
    };
    let by_hand = NodeTags {
        assigned: set(&mut tags.difference(&produced)),
        unassigned: set(&mut produced.difference(&tags)),
        ..NodeTags::default()
    };
    let spec =
        NodeSpec { nodegroup: Some(group), roles: roles.into_iter().collect(), tags: by_hand, ..NodeSpec::default() };
    Object {
        meta: Meta::new(Uuid::from_u128(at), Some(NodeName::new(name).expect("a node's name")), Timestamp(0)),
        spec,
    }
}

/// What a controller would have stored: marks that are there, and ready nodes before others.
fn choose(fleet: &mut Fleet, cluster: ClusterId, nodes: &[Value]) {
    let ids: Vec<NodeId> = (100..).zip(nodes).map(|(at, _)| NodeId(Uuid::from_u128(at))).collect();
    let open: Vec<TagName> = fleet.holders(cluster).map(|(tag, _)| tag.clone()).collect();
    for tag in open {
        let has = |id: &NodeId| fleet.profile(*id).is_some_and(|profile| profile.place.tags.contains(&tag));
        let marked = |node: &Value| list(node, "primary_tags").contains(&tag.as_str());
        let ready = |node: &Value| node.get("status").and_then(Value::as_str) == Some("ready");
        let leaving = |node: &Value| node.get("pending_deletion").and_then(Value::as_bool) == Some(true);
        let of = |wanted: &dyn Fn(&Value) -> bool| {
            let mut found = ids.iter().zip(nodes).filter(|(id, node)| has(id) && !leaving(node) && wanted(node));
            found.next().map(|(id, _)| *id)
        };
        let Some(node) = of(&marked).or_else(|| of(&ready)).or_else(|| of(&|_| true)) else { continue };
        let spec = PrimarySpec { cluster, node, since: Timestamp(0), epoch: 1 };
        let meta = Meta::new(Uuid::nil(), tag.clone(), Timestamp(0));
        fleet.apply(Change::Primary(Arc::new(Object { meta, spec })));
    }
}
