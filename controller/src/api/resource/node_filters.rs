//! The filters of nodes: Ironic's, the trait filters of its traits specification (which Ironic never had), label selectors, tags,
//! roles, groups and requirements.

use std::sync::Arc;

use serde_json::Value as Json;
use stemma_core::fleet::{Among, NodeView, Term, kept_form};
use stemma_core::name::{Name, TagName};
use stemma_core::object::{ClusterId, GroupId, Kind, Node, NodeGroup, NodeId, NodeSpec};
use stemma_core::requirement::Requirements;
use stemma_core::status::State;
use stemma_core::traits::{NodeTraits, Trait};
use stemma_wire::error::{ApiError, ErrorType};

use super::filter::{Asked, Filter, Kept, bad, read_selector};
use super::state;
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::cache::Model;
use crate::registry::names::{group_at, no_group_at};
use crate::registry::work::not_found;

/// What a filter of nodes is read into.
type Read = Result<Option<Kept<NodeSpec>>, ApiError>;

/// The table.
pub(super) const FILTERS: &[Filter<NodeSpec>] = &[
    Filter { name: "traits", read: |asked, name| traits(asked, name, true, true) },
    Filter { name: "traits-any", read: |asked, name| traits(asked, name, true, false) },
    Filter { name: "not-traits", read: |asked, name| traits(asked, name, false, true) },
    Filter { name: "not-traits-any", read: |asked, name| traits(asked, name, false, false) },
    Filter { name: "selector", read: selector },
    Filter { name: "tag", read: tags },
    Filter { name: "role", read: roles },
    Filter { name: "nodegroup", read: group },
    Filter { name: "cluster", read: cluster },
    Filter { name: "state", read: states },
    Filter { name: "requirement", read: requirements },
    Filter { name: "resource_class", read: kept },
    Filter { name: "driver", read: kept },
    Filter { name: "owner", read: kept },
    Filter { name: "lessee", read: kept },
    Filter { name: "conductor_group", read: kept },
    Filter { name: "instance_uuid", read: kept },
    Filter { name: "shard", read: kept },
    Filter { name: "maintenance", read: |asked, name| flag(asked, name, Term::Parked, |node| node.spec.parked) },
    Filter { name: "associated", read: |asked, name| flag(asked, name, Term::Used, Node::is_used) },
    Filter { name: "provision_state", read: provision_state },
    // A node is gone at once: nothing acts on the tasks of phase `cleanup` yet, which it would wait for.
    Filter { name: "deleting", read: |asked, name| flag(asked, name, Term::Nothing, |_| false) },
];

/// Those that have all of some traits, or any; or that lack all of them, or any.
fn traits(asked: &Asked<'_>, name: &'static str, has: bool, all: bool) -> Read {
    let Some(names) = asked.query().list(name)? else { return Ok(None) };
    let read = |text: &str| asked.api.traits.parse(text).map_err(|e| bad(name, text, &e));
    let wanted: Vec<Trait> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let terms = wanted.iter().map(|name| asked.model.fleet.among_trait(name, has)).collect();
    let among = if all { Among::AllOf(terms) } else { Among::AnyOf(terms) };
    let keeps = move |traits: &NodeTraits| {
        let mut held = wanted.iter().map(|name| traits.has(name) == has);
        if all { held.all(|holds| holds) } else { held.any(|holds| holds) }
    };
    Ok(Some(Kept::those(move |_, model, node| keeps(&state::traits(model, node))).among(among)))
}

/// Those of whose view by others something holds.
fn seen(among: Among, holds: impl Fn(&NodeView<'_>) -> bool + 'static) -> Kept<NodeSpec> {
    Kept::those(move |_, model, node: &Node| model.fleet.node_view(node.id()).is_some_and(|view| holds(&view)))
        .among(among)
}

fn selector(asked: &Asked<'_>, _name: &'static str) -> Read {
    let Some(selector) = read_selector(asked.query())? else { return Ok(None) };
    let among = asked.model.fleet.among_selected(&selector);
    Ok(Some(seen(among, move |view| selector.matches(view, &view.reported()))))
}

fn tags(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(names) = asked.query().list(name)? else { return Ok(None) };
    let read = |text: &str| TagName::new(text).map_err(|e| bad(name, text, &e));
    let wanted: Vec<TagName> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let among = Among::every(wanted.iter().cloned().map(Term::Tag));
    let holds = move |view: &NodeView<'_>| {
        let tags = view.tags();
        wanted.iter().all(|tag| tags.contains(tag))
    };
    Ok(Some(seen(among, holds)))
}

fn roles(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(names) = asked.query().list(name)? else { return Ok(None) };
    let read = |text: &str| Name::new(text).map_err(|e| bad(name, text, &e));
    let wanted: Vec<Name> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let among = Among::AllOf(wanted.iter().map(|role| asked.model.fleet.among_role(role)).collect());
    let holds = move |view: &NodeView<'_>| {
        let roles = view.roles();
        wanted.iter().all(|role| roles.contains(role))
    };
    Ok(Some(seen(among, holds)))
}

/// The nodes of a cluster. A cluster that does not exist is an error, since an empty list would say that it has no nodes.
fn cluster(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(wanted) = named_cluster(asked, name)? else { return Ok(None) };
    let among = asked.model.fleet.among_cluster(wanted);
    Ok(Some(Kept::those(move |_, model, node| model.fleet.cluster_of_node(node.id()) == Some(wanted)).among(among)))
}

fn named_cluster(asked: &Asked<'_>, name: &'static str) -> Result<Option<ClusterId>, ApiError> {
    let Some(id) = asked.query().text(name)? else { return Ok(None) };
    let found = asked.model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
    found.map(Some).ok_or_else(|| not_found(Kind::Cluster, id).field(name))
}

fn group(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(id) = asked.query().text(name)? else { return Ok(None) };
    let wanted = named_group(asked.model, named_cluster(asked, "cluster")?, id)?;
    Ok(Some(
        Kept::those(move |_, _, node: &Node| node.spec.nodegroup == Some(wanted)).among(Among::Of(Term::Group(wanted))),
    ))
}

/// The group of that path or uuid; of a name alone, that of the cluster, or the only one.
fn named_group(model: &Model, cluster: Option<ClusterId>, id: &str) -> Result<GroupId, ApiError> {
    let is_wanted =
        |group: &&Arc<NodeGroup>| *group.meta.name == *id && cluster.is_none_or(|wanted| group.spec.cluster == wanted);
    let mut named = model.groups.iter().filter(is_wanted);
    let (found, other) = (group_at(model, id).or_else(|| named.next()), named.next());
    match (found, other) {
        (Some(group), None) => Ok(GroupId(group.meta.uuid)),
        (Some(_), Some(_)) => {
            Err(BadQuery::value("nodegroup", id, "several clusters have one: write CLUSTER/GROUP").into())
        }
        (None, _) => Err(not_found(Kind::NodeGroup, id).field("nodegroup").detail(no_group_at(model, id))),
    }
}

/// A set of states with a larger part of the fleet than this is no shorter way: a page of it is soon found.
const PART: usize = 4;

/// Those in any of some states. Where the reconciler has seen all that the model has, its table names them; else each node is asked.
fn states(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(names) = asked.query().list(name)? else { return Ok(None) };
    let refused = || format!("it is one of {}", State::ALL.map(State::name).join(", "));
    let read = |text: &str| State::named(text).ok_or_else(|| BadQuery::value(name, text, refused()));
    let wanted: Vec<State> = names.into_iter().map(read).collect::<Result<_, _>>()?;
    let of = |api: &Api, model: &Model, node: &Node| {
        state::facts_of(api, model, node, &model.resolve(node.meta.uuid)).status().state
    };
    let status = asked.api.desired.as_ref().map(|desired| desired.status());
    let known = status.and_then(|status| status.of_states(&wanted, asked.model.revision));
    let few = known.filter(|(nodes, all)| nodes.len() * PART <= *all);
    let among = few.map_or(Among::All, |(nodes, _)| asked.model.fleet.among_these(nodes.into_iter().map(NodeId)));
    Ok(Some(Kept::those(move |api, model, node| wanted.contains(&of(api, model, node))).among(among)))
}

fn requirements(asked: &Asked<'_>, name: &'static str) -> Read {
    let wanted = Requirements::parse(asked.query().all(name));
    let wanted = wanted.map_err(|e| ApiError::new(ErrorType::RequirementInvalid, e.to_string()).field(name))?;
    if wanted.is_empty() {
        return Ok(None);
    }
    let among = Among::AllOf(wanted.0.iter().map(|one| asked.model.fleet.among_meeting(one)).collect());
    Ok(Some(seen(among, move |view| wanted.hold(view))))
}

/// Those that keep this text in a field of Ironic's.
fn kept(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(wanted) = asked.query().one(name)?.map(str::to_owned) else { return Ok(None) };
    let among = Among::Of(Term::kept(name, &wanted));
    let is_wanted = move |text: &str| kept_form(name, text) == kept_form(name, &wanted);
    Ok(Some(
        Kept::those(move |_, _, node: &Node| node.spec.extra.get(name).and_then(Json::as_str).is_some_and(&is_wanted))
            .among(among),
    ))
}

fn flag(asked: &Asked<'_>, name: &'static str, term: Term, is: fn(&Node) -> bool) -> Read {
    let Some(wanted) = asked.query().flag(name)? else { return Ok(None) };
    Ok(Some(Kept::those(move |_, _, node| is(node) == wanted).among(Among::Of(term).which(wanted))))
}

fn provision_state(asked: &Asked<'_>, name: &'static str) -> Read {
    let Some(wanted) = asked.query().text(name)?.map(str::to_owned) else { return Ok(None) };
    let among = Among::Of(Term::Provision(wanted.clone().into()));
    Ok(Some(Kept::those(move |_, _, node: &Node| node.provision_state() == wanted).among(among)))
}
