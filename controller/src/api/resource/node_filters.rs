//! The filters of nodes: Ironic's, the trait filters of its traits specification (which Ironic never had), label selectors, tags,
//! roles, groups and requirements.

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

/// The result of reading a node filter from a request.
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
    // No node is ever being deleted: a deletion is done at once, since nothing runs the tasks of phase `cleanup` yet.
    FilterDef { name: "deleting", read: |context, name| flag(context, name, IndexTerm::Never, |_| false) },
];

/// Reads a filter by traits. It selects nodes that have the traits if `has` is true, and else nodes that lack them: all
/// of the traits if `all` is true, and else at least one.
fn traits(context: &FilterContext<'_>, name: &'static str, has: bool, all: bool) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let read = |text: &str| context.api.traits.parse(text).map_err(|e| bad_value(name, text, &e));
    let wanted: Vec<Trait> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let terms = wanted.iter().map(|name| context.model.fleet.trait_set(name, has)).collect();
    let among = if all { NodeSet::AllOf(terms) } else { NodeSet::AnyOf(terms) };
    let is_match = move |traits: &NodeTraits| {
        let mut results = wanted.iter().map(|name| traits.has_trait(name) == has);
        if all { results.all(|holds| holds) } else { results.any(|holds| holds) }
    };
    Ok(Some(FilterMatch::new(move |_, model, node| is_match(&state::traits(model, node))).with_candidates(among)))
}

/// Creates a filter from a condition on the [`NodeView`] of nodes. `among` contains at least all matching nodes.
fn by_view(among: NodeSet, predicate: impl Fn(&NodeView<'_>) -> bool + 'static) -> FilterMatch<NodeSpec> {
    FilterMatch::new(move |_, model, node: &Node| model.fleet.node_view(node.id()).is_some_and(|view| predicate(&view)))
        .with_candidates(among)
}

fn selector(context: &FilterContext<'_>, _name: &'static str) -> FilterRead {
    let Some(selector) = read_selector(context.query())? else { return Ok(None) };
    let among = context.model.fleet.selector_set(&selector);
    Ok(Some(by_view(among, move |view| selector.matches(view, &view.reported_labels()))))
}

/// Reads the filter `tag`: the nodes that have all of these tags.
fn tags(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let read = |text: &str| TagName::new(text).map_err(|e| bad_value(name, text, &e));
    let wanted: Vec<TagName> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let among = NodeSet::all(wanted.iter().cloned().map(IndexTerm::Tag));
    let predicate = move |view: &NodeView<'_>| {
        let tags = view.tags();
        wanted.iter().all(|tag| tags.contains(tag))
    };
    Ok(Some(by_view(among, predicate)))
}

/// Reads the filter `role`: the nodes that have all of these roles.
fn roles(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let read = |text: &str| Name::new(text).map_err(|e| bad_value(name, text, &e));
    let wanted: Vec<Name> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let among = NodeSet::AllOf(wanted.iter().map(|role| context.model.fleet.role_set(role)).collect());
    let predicate = move |view: &NodeView<'_>| {
        let roles = view.roles();
        wanted.iter().all(|role| roles.contains(role))
    };
    Ok(Some(by_view(among, predicate)))
}

/// Reads the filter `cluster`. An unknown cluster is an error, because an empty list would mean that the cluster exists
/// and has no nodes.
fn cluster(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(wanted) = read_cluster(context, name)? else { return Ok(None) };
    let among = context.model.fleet.cluster_set(wanted);
    Ok(Some(
        FilterMatch::new(move |_, model, node| model.fleet.cluster_of_node(node.id()) == Some(wanted)).with_candidates(among),
    ))
}

fn read_cluster(context: &FilterContext<'_>, name: &'static str) -> Result<Option<ClusterId>, ApiError> {
    let Some(id) = context.query().text(name)? else { return Ok(None) };
    let found = context.model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
    found.map(Some).ok_or_else(|| not_found(Kind::Cluster, id).field(name))
}

fn group(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(id) = context.query().text(name)? else { return Ok(None) };
    let wanted = find_group(context.model, read_cluster(context, "cluster")?, id)?;
    Ok(Some(
        FilterMatch::new(move |_, _, node: &Node| node.spec.nodegroup == Some(wanted))
            .with_candidates(NodeSet::Term(IndexTerm::Group(wanted))),
    ))
}

/// Finds a group by path or uuid, or by its name alone: in the cluster if one is requested, and else in all clusters,
/// of which only one may have a group of that name.
fn find_group(model: &Model, cluster: Option<ClusterId>, id: &str) -> Result<GroupId, ApiError> {
    let is_wanted =
        |group: &&Arc<NodeGroup>| *group.meta.name == *id && cluster.is_none_or(|wanted| group.spec.cluster == wanted);
    let mut named = model.groups.iter().filter(is_wanted);
    let (first, second) = (group_at(model, id).or_else(|| named.next()), named.next());
    match (first, second) {
        (Some(group), None) => Ok(GroupId(group.meta.uuid)),
        (Some(_), Some(_)) => {
            Err(BadQuery::bad_value("nodegroup", id, "several clusters have a group of this name: write CLUSTER/GROUP").into())
        }
        (None, _) => Err(not_found(Kind::NodeGroup, id).field("nodegroup").detail(group_not_found(model, id))),
    }
}

/// The table of states is used as an index only if at most one node in 4 has a requested state. With more matches, a
/// visit of all nodes fills a page soon.
const INDEX_FRACTION: usize = 4;

/// Reads the filter `state`: the nodes in any of the requested states. If the table of states has reached the model's
/// revision, only the nodes that match there are candidates. The state of each candidate is computed from the model.
fn states(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(names) = context.query().list(name)? else { return Ok(None) };
    let refused = || format!("it is one of {}", State::ALL.map(State::name).join(", "));
    let read = |text: &str| State::from_name(text).ok_or_else(|| BadQuery::bad_value(name, text, refused()));
    let wanted: Vec<State> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let state_of = |api: &Api, model: &Model, node: &Node| {
        state::state_inputs(api, model, node, &model.resolve(node.meta.uuid)).status().state
    };
    let status = context.api.desired.as_ref().map(|desired| desired.status());
    let known = status.and_then(|status| status.nodes_in_states(&wanted, context.model.revision));
    let few = known.filter(|(nodes, all)| nodes.len() * INDEX_FRACTION <= *all);
    let among = few.map_or(NodeSet::All, |(nodes, _)| context.model.fleet.listed_set(nodes.into_iter().map(NodeId)));
    Ok(Some(FilterMatch::new(move |api, model, node| wanted.contains(&state_of(api, model, node))).with_candidates(among)))
}

fn requirements(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let wanted = Requirements::parse(context.query().get_all(name));
    let wanted = wanted.map_err(|e| ApiError::new(ErrorType::RequirementInvalid, e.to_string()).field(name))?;
    if wanted.is_empty() {
        return Ok(None);
    }
    let among = NodeSet::AllOf(wanted.0.iter().map(|requirement| context.model.fleet.requirement_set(requirement)).collect());
    Ok(Some(by_view(among, move |view| wanted.hold(view))))
}

/// Selects nodes by the text in one of Ironic's passthrough fields.
fn passthrough_text(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(wanted) = context.query().get(name)?.map(str::to_owned) else { return Ok(None) };
    let among = NodeSet::Term(IndexTerm::ironic_field(name, &wanted));
    let is_wanted = move |text: &str| normalized_text(name, text) == normalized_text(name, &wanted);
    Ok(Some(
        FilterMatch::new(move |_, _, node: &Node| node.spec.extra.get(name).and_then(Json::as_str).is_some_and(&is_wanted))
            .with_candidates(among),
    ))
}

/// Reads a filter by a boolean property of nodes. `term` is the index of the nodes that have the property.
fn flag(context: &FilterContext<'_>, name: &'static str, term: IndexTerm, predicate: fn(&Node) -> bool) -> FilterRead {
    let Some(wanted) = context.query().flag(name)? else { return Ok(None) };
    Ok(Some(
        FilterMatch::new(move |_, _, node| predicate(node) == wanted)
            .with_candidates(NodeSet::Term(term).complement_unless(wanted)),
    ))
}

fn provision_state(context: &FilterContext<'_>, name: &'static str) -> FilterRead {
    let Some(wanted) = context.query().text(name)?.map(str::to_owned) else { return Ok(None) };
    let among = NodeSet::Term(IndexTerm::ProvisionState(wanted.clone().into()));
    Ok(Some(FilterMatch::new(move |_, _, node: &Node| node.provision_state() == wanted).with_candidates(among)))
}
