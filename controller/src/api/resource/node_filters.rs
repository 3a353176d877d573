//! The filters of nodes: Ironic's filters, the trait filters of Ironic's specification (which Ironic never
//! implemented), label selectors, tags, roles, groups and requirements.

use std::sync::Arc;

use serde_json::Value as Json;
use stemma_core::fleet::{IndexTerm, NodeSet, NodeView, normalized_text};
use stemma_core::name::{Name, TagName};
use stemma_core::object::{ClusterId, GroupId, Kind, Node, NodeGroup, NodeId, NodeSpec};
use stemma_core::requirement::Requirements;
use stemma_core::status::State;
use stemma_core::traits::{NodeTraits, Trait};
use stemma_wire::error::{ApiError, ErrorType};

use super::filter::{FilterContext, FilterDef, FilterMatch, bad_value, read_selector};
use super::state;
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::cache::Model;
use crate::registry::names::{group_at, group_not_found};
use crate::registry::work::not_found;

/// The result of reading a node filter from a request. It is `None` if the query does not have the filter.
type FilterRead = Result<Option<FilterMatch<NodeSpec>>, ApiError>;

/// All node filters.
pub(super) const FILTERS: &[FilterDef<NodeSpec>] = &[
    FilterDef { name: "traits", read: |context, name| traits(context, name, true, true) },
    FilterDef { name: "traits-any", read: |context, name| traits(context, name, true, false) },
    FilterDef { name: "not-traits", read: |context, name| traits(context, name, false, true) },
    FilterDef { name: "not-traits-any", read: |context, name| traits(context, name, false, false) },
    FilterDef { name: "selector", read: selector },
    FilterDef { name: "tag", read: tags },
    FilterDef { name: "role", read: roles },
    FilterDef { name: "nodegroup", read: group },
    FilterDef { name: "cluster", read: cluster },
    FilterDef { name: "state", read: states },
    FilterDef { name: "requirement", read: requirements },
    FilterDef { name: "resource_class", read: passthrough_text },
    FilterDef { name: "driver", read: passthrough_text },
    FilterDef { name: "owner", read: passthrough_text },
    FilterDef { name: "lessee", read: passthrough_text },
    FilterDef { name: "conductor_group", read: passthrough_text },
    FilterDef { name: "instance_uuid", read: passthrough_text },
    FilterDef { name: "shard", read: passthrough_text },
    FilterDef { name: "maintenance", read: |context, name| flag(context, name, IndexTerm::Parked, |node| node.spec.parked) },
    FilterDef { name: "associated", read: |context, name| flag(context, name, IndexTerm::InUse, Node::is_in_use) },
    FilterDef { name: "provision_state", read: provision_state },
    // A node is deleted at once, because nothing runs the tasks of phase `cleanup` yet. So no node is ever being
    // deleted.
    FilterDef { name: "deleting", read: |context, name| flag(context, name, IndexTerm::Never, |_| false) },
];

/// Reads a filter by traits. If `should_have` is true, the filter matches nodes that have the traits, and else nodes
/// that lack them. If `needs_all` is true, a node must have (or lack) all of the traits, and else at least one.
fn traits(context: &FilterContext<'_>, name: &'static str, should_have: bool, needs_all: bool) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let read = |text: &str| context.api.traits.parse(text).map_err(|e| bad_value(name, text, &e));
    let traits_to_test: Vec<Trait> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let terms = traits_to_test.iter().map(|name| context.model.fleet.trait_set(name, should_have)).collect();
    let candidates = if needs_all { NodeSet::AllOf(terms) } else { NodeSet::AnyOf(terms) };
    let is_match = move |traits: &NodeTraits| {
        let mut results = traits_to_test.iter().map(|name| traits.has_trait(name) == should_have);
        if needs_all { results.all(|is_met| is_met) } else { results.any(|is_met| is_met) }
    };
    Ok(Some(FilterMatch::new(move |_, model, node| is_match(&state::traits(model, node))).with_candidates(candidates)))
}

/// Creates a filter from a condition on the effective labels, tags or roles of a node (its [`NodeView`]). `candidates`
/// contains at least all matching nodes.
fn by_view(candidates: NodeSet, predicate: impl Fn(&NodeView<'_>) -> bool + 'static) -> FilterMatch<NodeSpec> {
    FilterMatch::new(move |_, model, node: &Node| model.fleet.node_view(node.id()).is_some_and(|view| predicate(&view)))
        .with_candidates(candidates)
}

/// Reads the filter `selector`, which matches the labels of nodes, also those that hosts report.
fn selector(context: &FilterContext<'_>, _name: &'static str) -> FilterRead {
    let Some(selector) = read_selector(context.query())? else { return Ok(None) };
    let candidates = context.model.fleet.selector_set(&selector);
    Ok(Some(by_view(candidates, move |view| selector.matches(view, &view.reported_labels()))))
}

/// Reads the filter `tag`, which matches the nodes that have all of these tags.
fn tags(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let read = |text: &str| TagName::new(text).map_err(|e| bad_value(name, text, &e));
    let requested_tags: Vec<TagName> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let candidates = NodeSet::all(requested_tags.iter().cloned().map(IndexTerm::Tag));
    let predicate = move |view: &NodeView<'_>| {
        let tags = view.tags();
        requested_tags.iter().all(|tag| tags.contains(tag))
    };
    Ok(Some(by_view(candidates, predicate)))
}

/// Reads the filter `role`, which matches the nodes that have all of these roles.
fn roles(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let read = |text: &str| Name::new(text).map_err(|e| bad_value(name, text, &e));
    let requested_roles: Vec<Name> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let candidates = NodeSet::AllOf(requested_roles.iter().map(|role| context.model.fleet.role_set(role)).collect());
    let predicate = move |view: &NodeView<'_>| {
        let roles = view.roles();
        requested_roles.iter().all(|role| roles.contains(role))
    };
    Ok(Some(by_view(candidates, predicate)))
}

/// Reads the filter `cluster`, which matches the nodes of a cluster. An unknown cluster is an error, because an empty
/// list would mean that the cluster exists and has no nodes.
fn cluster(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(id) = read_cluster(context, name)? else { return Ok(None) };
    let candidates = context.model.fleet.cluster_set(id);
    Ok(Some(
        FilterMatch::new(move |_, model, node| model.fleet.cluster_of_node(node.id()) == Some(id)).with_candidates(candidates),
    ))
}

/// Returns the cluster that the query parameter `name` contains as a name or uuid. Fails if there is no such cluster.
fn read_cluster(context: &FilterContext<'_>, name: &'static str) -> Result<Option<ClusterId>, ApiError> {
    let Some(id) = context.query().text(name)? else { return Ok(None) };
    let found = context.model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
    found.map(Some).ok_or_else(|| not_found(Kind::Cluster, id).field(name))
}

/// Reads the filter `nodegroup`, which matches the nodes of a group.
fn group(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(id) = context.query().text(name)? else { return Ok(None) };
    let group_id = find_group(context.model, read_cluster(context, "cluster")?, id)?;
    Ok(Some(
        FilterMatch::new(move |_, _, node: &Node| node.spec.nodegroup == Some(group_id))
            .with_candidates(NodeSet::Term(IndexTerm::Group(group_id))),
    ))
}

/// Finds a group by its path, its uuid or its name. A name is searched in the requested cluster or, if none is
/// requested, in all clusters. Fails if several clusters have a group of that name.
fn find_group(model: &Model, cluster: Option<ClusterId>, id: &str) -> Result<GroupId, ApiError> {
    let is_match =
        |group: &&Arc<NodeGroup>| *group.meta.name == *id && cluster.is_none_or(|cluster_id| group.spec.cluster == cluster_id);
    // `group_at` finds a group by its path or uuid. A second group is found only if it has the name `id`.
    let mut groups_with_name = model.groups.iter().filter(is_match);
    let (first, second) = (group_at(model, id).or_else(|| groups_with_name.next()), groups_with_name.next());
    match (first, second) {
        (Some(group), None) => Ok(GroupId(group.meta.uuid)),
        (Some(_), Some(_)) => {
            Err(BadQuery::bad_value("nodegroup", id, "several clusters have a group of this name: write CLUSTER/GROUP").into())
        }
        (None, _) => Err(not_found(Kind::NodeGroup, id).field("nodegroup").detail(group_not_found(model, id))),
    }
}

/// The divisor for the use of the table of states as an index: the table is used only if at most one node in 4 has a
/// requested state. With more matches, a visit of all nodes soon fills a page.
const INDEX_FRACTION: usize = 4;

/// Reads the filter `state`, which matches the nodes in any of the requested states. If the table of states has reached
/// the model's revision and few nodes match in the table, only these nodes are candidates. The state of each candidate
/// is computed from the model.
fn states(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let rule = || format!("it is one of {}", State::ALL.map(State::name).join(", "));
    let read = |text: &str| State::from_name(text).ok_or_else(|| BadQuery::bad_value(name, text, rule()));
    let states: Vec<State> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let state_of = |api: &Api, model: &Model, node: &Node| {
        state::state_inputs(api, model, node, &model.resolve(node.meta.uuid)).status().state
    };
    let status = context.api.desired.as_ref().map(|desired| desired.status());
    let indexed_nodes = status.and_then(|status| status.nodes_in_states(&states, context.model.revision));
    let few_nodes = indexed_nodes.filter(|(nodes, node_count)| nodes.len() * INDEX_FRACTION <= *node_count);
    let candidates = few_nodes.map_or(NodeSet::All, |(nodes, _)| context.model.fleet.listed_set(nodes.into_iter().map(NodeId)));
    Ok(Some(FilterMatch::new(move |api, model, node| states.contains(&state_of(api, model, node))).with_candidates(candidates)))
}

/// Reads the filter `requirement`, which matches the nodes that meet all of these requirements.
fn requirements(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let requirements = Requirements::parse(context.query().get_all(name));
    let requirements = requirements.map_err(|e| ApiError::new(ErrorType::RequirementInvalid, e.to_string()).field(name))?;
    if requirements.is_empty() {
        return Ok(None);
    }
    let candidates = NodeSet::AllOf(requirements.0.iter().map(|item| context.model.fleet.requirement_set(item)).collect());
    Ok(Some(by_view(candidates, move |view| requirements.are_met_by(view))))
}

/// Reads a filter that compares the text of a passthrough field (a field of Ironic that Stemma stores as it is). All
/// notations of the same `instance_uuid` are equal.
fn passthrough_text(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(requested_text) = context.query().get(name)?.map(str::to_owned) else { return Ok(None) };
    let candidates = NodeSet::Term(IndexTerm::ironic_field(name, &requested_text));
    let is_match = move |text: &str| normalized_text(name, text) == normalized_text(name, &requested_text);
    Ok(Some(
        FilterMatch::new(move |_, _, node: &Node| node.spec.extra.get(name).and_then(Json::as_str).is_some_and(&is_match))
            .with_candidates(candidates),
    ))
}

/// Reads a filter by a boolean property of nodes. `term` is the index of the nodes that have the property, and
/// `predicate` tests a node for the property.
fn flag(context: &FilterContext<'_>, name: &'static str, term: IndexTerm, predicate: fn(&Node) -> bool) -> FilterRead {
    let Some(expected) = context.query().flag(name)? else { return Ok(None) };
    Ok(Some(
        FilterMatch::new(move |_, _, node| predicate(node) == expected)
            .with_candidates(NodeSet::Term(term).complement_unless(expected)),
    ))
}

/// Reads the filter `provision_state`, which matches the nodes in this state of Ironic.
fn provision_state(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(requested_state) = context.query().text(name)?.map(str::to_owned) else { return Ok(None) };
    let candidates = NodeSet::Term(IndexTerm::ProvisionState(requested_state.clone().into()));
    Ok(Some(FilterMatch::new(move |_, _, node: &Node| node.provision_state() == requested_state).with_candidates(candidates)))
}
