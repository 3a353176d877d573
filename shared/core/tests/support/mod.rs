//! Functions that read the shared vectors and build a fleet from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::condition::{AuthorError, Condition, TemplateParser, TemplateReads};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::graph::ClusterGraph;
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef, TagName};
use stemma_core::object::{
    ClusterId, ClusterSpec, GroupId, Matching, Meta, NodeGroupSpec, NodeId, NodeSpec, NodeTags, Object, PrimarySpec, ReleaseSpec,
    Timestamp,
};
use stemma_core::ownership::{Intent, Manager, OwnedSet, ProvidedValue};
use stemma_core::release::{CompiledRelease, ReleaseError, compile, fuel};
use uuid::Uuid;

/// A template parser that finds no references. Tasks that are imported from Fuel (an `OpenStack` installer) have no
/// Stemma templates. The import leaves their conditions untranslated and places the tasks as if the conditions were
/// true. So no condition is parsed, and `parse_condition` panics.
pub(crate) struct NoReferences;

impl TemplateParser for NoReferences {
    fn parse_template(&self, _: &str) -> Result<TemplateReads, AuthorError> {
        Ok(TemplateReads::default())
    }

    fn parse_script(&self, _: &str) -> Result<TemplateReads, AuthorError> {
        Ok(TemplateReads::default())
    }

    fn parse_condition(&self, text: &str) -> Result<Arc<dyn Condition>, AuthorError> {
        panic!("no condition is translated: {text}")
    }
}

pub(crate) fn release_name() -> ReleaseRef {
    "fuel@1".parse().expect("a release's name")
}

pub(crate) fn compile_release(spec: &ReleaseSpec) -> Result<Arc<CompiledRelease>, Vec<ReleaseError>> {
    compile(&release_name(), spec, &|_| None, &NoReferences)
}

/// Returns an object field, or an empty object if the field is absent.
pub(crate) fn object_field(value: &Value, field: &str) -> Map<String, Value> {
    value.get(field).and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Returns the texts of an array field, or nothing if the field is absent.
pub(crate) fn text_list<'a>(value: &'a Value, field: &str) -> Vec<&'a str> {
    value.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// One of Fuel's clusters, built as a fleet with a single cluster.
pub(crate) struct FuelScenario {
    pub(crate) fleet: Fleet,
    pub(crate) cluster: ClusterId,
}

impl FuelScenario {
    /// Parses a scenario `{tasks, roles_metadata, tags_metadata, nodes}` of Fuel into a fleet, with the roles and tags
    /// of the cluster (`cluster_…`) and of plugins (`plugin_…`). `matching` is the rule by which selectors match names.
    pub(crate) fn parse(value: &Value, matching: Matching) -> Result<Self, String> {
        let mut roles = object_field(value, "roles_metadata");
        roles.extend(object_field(value, "cluster_roles_metadata"));
        roles.extend(object_field(value, "plugin_roles_metadata"));
        let mut tags = object_field(value, "tags_metadata");
        tags.extend(object_field(value, "cluster_tags_metadata"));
        tags.extend(object_field(value, "plugin_tags_metadata"));
        let tasks = value.get("tasks").and_then(Value::as_array).cloned().unwrap_or_default();
        let imported = fuel::import(&tasks, &roles, &tags).map_err(|error| error.to_string())?;
        Self::with_release(&ReleaseSpec { matching, ..imported.spec }, value)
    }

    /// Builds a fleet from a release and the `nodes` of a scenario. The uuids of the nodes count up from 100.
    pub(crate) fn with_release(spec: &ReleaseSpec, value: &Value) -> Result<Self, String> {
        let release =
            compile_release(spec).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let mut fleet = Fleet::new();
        let (cluster, group) = (ClusterId(Uuid::from_u128(1)), GroupId(Uuid::from_u128(2)));
        let meta = |uuid, name: &str| Meta::new(uuid, ObjectName::new(name).expect("a name"), Timestamp(0));
        let cluster_spec = ClusterSpec { release: Some(release_name()), ..ClusterSpec::default() };
        fleet.apply(FleetChange::Release(release));
        fleet.apply(FleetChange::Cluster(Arc::new(Object { meta: meta(cluster.0, "c"), spec: cluster_spec })));
        fleet.apply(FleetChange::NodeGroup(Arc::new(Object { meta: meta(group.0, "g"), spec: NodeGroupSpec::new(cluster) })));
        let nodes = value.get("nodes").and_then(Value::as_array).cloned().unwrap_or_default();
        for (uuid, node) in (100..).zip(&nodes) {
            let node = parse_node(node, uuid, group, &fleet);
            fleet.apply(FleetChange::Node(Arc::new(node)));
        }
        store_primaries(&mut fleet, cluster, &nodes);
        fleet.set_loaded();
        Ok(Self { fleet, cluster })
    }

    pub(crate) fn build_graph(&self) -> ClusterGraph {
        ClusterGraph::from_fleet(&self.fleet, self.cluster)
    }

    /// Returns the ids of the tasks of each node by node name, in the format of the vectors. The key `null` lists the
    /// stages, which belong to no node. A class is a set of nodes that have the same tasks.
    pub(crate) fn placement(&self) -> BTreeMap<String, BTreeSet<String>> {
        let graph = self.build_graph();
        let mut tasks_by_node: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for class in &graph.classes {
            let task_ids: Vec<_> = class.profile.tasks.iter().map(|index| class.profile.release.id(*index).to_owned()).collect();
            for node in class.nodes.iter().filter(|_| !task_ids.is_empty()) {
                tasks_by_node.entry(node.to_string()).or_default().extend(task_ids.iter().cloned());
            }
        }
        if !graph.stages.is_empty() {
            tasks_by_node.insert("null".to_owned(), graph.stages.iter().map(ToString::to_string).collect());
        }
        tasks_by_node
    }

    /// Returns the edges of the graph of tasks, in the format of the vectors: pairs of tasks, the second of which waits
    /// for the first. A task is a pair of its node (`null` for a stage) and its id.
    pub(crate) fn edges(&self) -> BTreeSet<[[String; 2]; 2]> {
        let to_pair = |(node, task): (Option<Arc<str>>, Arc<str>)| {
            [node.map_or_else(|| "null".to_owned(), |name| name.to_string()), task.to_string()]
        };
        self.build_graph().order_pairs().into_iter().map(|(first, second)| [to_pair(first), to_pair(second)]).collect()
    }

    /// Returns, by node name, the names that selectors of tags match on the node.
    pub(crate) fn tag_names(&self) -> BTreeMap<String, BTreeSet<String>> {
        let nodes = self.fleet.nodes_in_cluster(self.cluster);
        let names_by_node = nodes.filter_map(|id| {
            let names = self.fleet.profile(id)?.key.names.tag_names().map(str::to_owned).collect();
            Some((self.fleet.node(id)?.display_name(), names))
        });
        names_by_node.collect()
    }
}

/// Parses a node of the vectors. The vectors give only its effective tags, so the assigned and unassigned tags are
/// derived. A tag that no role of the node gives counts as assigned. A tag that a role gives but the node lacks counts
/// as unassigned.
fn parse_node(value: &Value, uuid: u128, group: GroupId, fleet: &Fleet) -> Object<NodeSpec> {
    let name = value.get("id").and_then(Value::as_str).expect("a node has an id");
    let roles: BTreeSet<Name> = text_list(value, "roles").into_iter().map(|role| Name::new(role).expect("a role")).collect();
    let tags: BTreeSet<TagName> = text_list(value, "tags").into_iter().map(|tag| TagName::new(tag).expect("a tag")).collect();
    let role_table = fleet.resolved_group(group).expect("the group is whole").role_table.clone().expect("it has a release");
    let role_tags: BTreeSet<TagName> = role_table.effective_tags(&roles, &NodeTags::default()).into_keys().collect();
    let owned_set = |tags: &mut dyn Iterator<Item = &TagName>| -> OwnedSet<TagName> {
        let intent: Intent<TagName, ()> = tags.map(|tag| (tag.clone(), ProvidedValue::Value(()))).collect();
        OwnedSet::default().update(&Manager::new("vectors").expect("a manager"), &intent)
    };
    let node_tags = NodeTags {
        assigned: owned_set(&mut tags.difference(&role_tags)),
        unassigned: owned_set(&mut role_tags.difference(&tags)),
        ..NodeTags::default()
    };
    let spec = NodeSpec { nodegroup: Some(group), roles: roles.into_iter().collect(), tags: node_tags, ..NodeSpec::default() };
    Object { meta: Meta::new(Uuid::from_u128(uuid), Some(NodeName::new(name).expect("a node's name")), Timestamp(0)), spec }
}

/// Stores the primary of each tag that has one, as Fuel chooses it: the first node that is marked as primary, else the
/// first in status `ready`, else the first that has the tag. A node that is to be deleted is never chosen. The uuids of
/// the nodes count up from 100, as in [`FuelScenario::with_release`].
fn store_primaries(fleet: &mut Fleet, cluster: ClusterId, nodes: &[Value]) {
    let ids: Vec<NodeId> = (100..).zip(nodes).map(|(uuid, _)| NodeId(Uuid::from_u128(uuid))).collect();
    let tags: Vec<TagName> = fleet.holders(cluster).map(|(tag, _)| tag.clone()).collect();
    for tag in tags {
        let has_tag = |id: &NodeId| fleet.profile(*id).is_some_and(|profile| profile.key.tags.contains(&tag));
        let is_marked = |node: &Value| text_list(node, "primary_tags").contains(&tag.as_str());
        let is_ready = |node: &Value| node.get("status").and_then(Value::as_str) == Some("ready");
        let is_leaving = |node: &Value| node.get("pending_deletion").and_then(Value::as_bool) == Some(true);
        let find_node = |condition: &dyn Fn(&Value) -> bool| {
            let mut matches = ids.iter().zip(nodes).filter(|(id, node)| has_tag(id) && !is_leaving(node) && condition(node));
            matches.next().map(|(id, _)| *id)
        };
        let Some(node) = find_node(&is_marked).or_else(|| find_node(&is_ready)).or_else(|| find_node(&|_| true)) else {
            continue;
        };
        let spec = PrimarySpec { cluster, node, since: Timestamp(0), epoch: 1 };
        let meta = Meta::new(Uuid::nil(), tag.clone(), Timestamp(0));
        fleet.apply(FleetChange::Primary(Arc::new(Object { meta, spec })));
    }
}
