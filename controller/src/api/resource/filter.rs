//! Which nodes a list has: Ironic's filters, the trait filters of its traits specification (which Ironic never had),
//! label selectors, tags, roles, groups and requirements. All of them must hold; a repeated parameter is a union of
//! its lists (as the API working group's guideline for tags has it).

use std::sync::Arc;

use serde_json::Value as Json;
use stemma_core::name::{Name, TagName};
use stemma_core::object::{GroupId, Kind, Node, NodeGroup};
use stemma_core::requirement::Requirements;
use stemma_core::selector::Selector;
use stemma_core::status::State;
use stemma_core::traits::Trait;
use stemma_wire::endpoint::{Minor, since};
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::columns::Row;
use super::{lists, state};
use crate::api::Api;
use crate::api::http::query::{BadQuery, Parameters};
use crate::cache::Model;
use crate::registry::names::group_at;
use crate::registry::work::not_found;

/// Filters that compare a kept field's text.
const KEPT: [&str; 7] = ["resource_class", "driver", "owner", "lessee", "conductor_group", "instance_uuid", "shard"];

/// The filters of one request, read.
pub(super) struct Filter {
    all: Vec<Trait>,
    any: Option<Vec<Trait>>,
    none: Vec<Trait>,
    lacks: Option<Vec<Trait>>,
    selector: Option<Selector>,
    tags: Vec<TagName>,
    roles: Vec<Name>,
    group: Option<GroupId>,
    cluster: Option<Uuid>,
    requirements: Requirements,
    kept: Vec<(&'static str, String)>,
    parked: Option<bool>,
    associated: Option<bool>,
    provision_state: Option<String>,
    /// Any of these.
    states: Vec<State>,
}

impl Filter {
    /// Reads the filters.
    ///
    /// # Errors
    /// A list that is empty, a name that is none, an expression that can't be evaluated, a filter that the client's version does
    /// not have yet; a cluster that is not there.
    pub(super) fn read(api: &Api, model: &Model, version: Minor, parameters: &Parameters) -> Result<Self, ApiError> {
        let traits = |name| traits(api, version, parameters, name);
        let names = |name| parameters.list(name).map(Option::unwrap_or_default);
        let kept = KEPT
            .into_iter()
            .filter_map(|name| parameters.one(name).map(|v| v.map(|v| (name, v.to_owned()))).transpose());
        let requirements = Requirements::parse(parameters.all("requirement"));
        let cluster = parameters.one("cluster")?.map(|id| cluster(model, id)).transpose()?;
        Ok(Self {
            all: traits("traits")?.unwrap_or_default(),
            any: traits("traits-any")?,
            none: traits("not-traits")?.unwrap_or_default(),
            lacks: traits("not-traits-any")?,
            selector: lists::selector(parameters)?,
            tags: names("tag")?
                .into_iter()
                .map(|tag| TagName::new(tag).map_err(|e| bad("tag", tag, &e)))
                .collect::<Result<_, _>>()?,
            roles: names("role")?
                .into_iter()
                .map(|role| Name::new(role).map_err(|e| bad("role", role, &e)))
                .collect::<Result<_, _>>()?,
            group: parameters.one("nodegroup")?.map(|id| group(model, cluster, id)).transpose()?,
            cluster,
            requirements: requirements
                .map_err(|e| ApiError::new(ErrorType::RequirementInvalid, e.to_string()).field("requirement"))?,
            kept: kept.collect::<Result<_, _>>()?,
            parked: parameters.flag("maintenance")?,
            associated: parameters.flag("associated")?,
            provision_state: parameters.one("provision_state")?.map(str::to_owned),
            states: names("state")?.into_iter().map(read_state).collect::<Result<_, _>>()?,
        })
    }

    /// Whether a node is in the list.
    pub(super) fn keeps(&self, api: &Api, model: &Model, node: &Node) -> bool {
        self.keeps_spec(model, node)
            && self.keeps_traits(model, node)
            && self.keeps_resolved(model, node)
            && (self.states.is_empty() || self.states.contains(&Row::new(api, model, node, "").status().state))
    }

    fn keeps_spec(&self, model: &Model, node: &Node) -> bool {
        let spec = &node.spec;
        let kept =
            |(name, wanted): &(&str, String)| spec.extra.get(*name).and_then(Json::as_str) == Some(wanted.as_str());
        let in_cluster = |wanted: Uuid| {
            let group = spec.nodegroup.and_then(|id| model.groups.get(id.0));
            group.is_some_and(|group| group.spec.cluster.0 == wanted)
        };
        self.kept.iter().all(kept)
            && self.cluster.is_none_or(in_cluster)
            && self.group.is_none_or(|wanted| spec.nodegroup == Some(wanted))
            && self.parked.is_none_or(|wanted| wanted == spec.parked)
            && self
                .associated
                .is_none_or(|wanted| wanted == spec.extra.get("instance_uuid").is_some_and(|id| !id.is_null()))
            && self.provision_state.as_deref().is_none_or(|wanted| wanted == node.provision_state())
    }

    fn keeps_traits(&self, model: &Model, node: &Node) -> bool {
        if self.all.is_empty() && self.none.is_empty() && self.any.is_none() && self.lacks.is_none() {
            return true;
        }
        let traits = state::traits(model, node);
        self.all.iter().all(|name| traits.has(name))
            && self.none.iter().all(|name| !traits.has(name))
            && self.any.as_ref().is_none_or(|any| any.iter().any(|name| traits.has(name)))
            && self.lacks.as_ref().is_none_or(|lacks| lacks.iter().any(|name| !traits.has(name)))
    }

    fn keeps_resolved(&self, model: &Model, node: &Node) -> bool {
        if self.selector.is_none() && self.tags.is_empty() && self.roles.is_empty() && self.requirements.0.is_empty() {
            return true;
        }
        let Some(view) = model.fleet.node_view(node.id()) else { return false };
        let (tags, roles) = (view.tags(), view.roles());
        self.selector.as_ref().is_none_or(|selector| selector.matches(&view, &view.reported()))
            && self.tags.iter().all(|tag| tags.contains(tag))
            && self.roles.iter().all(|role| roles.contains(role))
            && self.requirements.hold(&view)
    }
}

/// The cluster of that name or uuid. Of one that is not there an empty list would look like one without nodes.
fn cluster(model: &Model, id: &str) -> Result<Uuid, ApiError> {
    let found = model.clusters.find(None, id).map(|cluster| cluster.meta.uuid);
    found.ok_or_else(|| not_found(Kind::Cluster, id).field("cluster"))
}

/// The group of that path or uuid; of a name alone, that of the cluster, or the only one.
fn group(model: &Model, cluster: Option<Uuid>, id: &str) -> Result<GroupId, ApiError> {
    let is_wanted = |group: &&Arc<NodeGroup>| {
        *group.meta.name == *id && cluster.is_none_or(|wanted| group.spec.cluster.0 == wanted)
    };
    let mut named = model.groups.iter().filter(is_wanted);
    let (found, other) = (group_at(model, id).or_else(|| named.next()), named.next());
    match (found, other) {
        (Some(group), None) => Ok(GroupId(group.meta.uuid)),
        (Some(_), Some(_)) => {
            Err(BadQuery::value("nodegroup", id, "several clusters have one: write CLUSTER/GROUP").into())
        }
        (None, _) => Err(not_found(Kind::NodeGroup, id).field("nodegroup").detail("write CLUSTER/GROUP")),
    }
}

fn read_state(name: &str) -> Result<State, ApiError> {
    let all = || format!("it is one of {}", State::ALL.map(State::name).join(", "));
    State::named(name).ok_or_else(|| BadQuery::value("state", name, all()).into())
}

fn traits(
    api: &Api,
    version: Minor,
    parameters: &Parameters,
    name: &'static str,
) -> Result<Option<Vec<Trait>>, ApiError> {
    let Some(names) = parameters.list(name)? else { return Ok(None) };
    if version < since::TRAITS {
        let message = format!("{name}: nodes are filtered by traits from version 1.{} on", since::TRAITS.0);
        return Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field(name));
    }
    names
        .into_iter()
        .map(|text| api.traits.parse(text).map_err(|e| bad(name, text, &e)))
        .collect::<Result<_, _>>()
        .map(Some)
}

fn bad(name: &'static str, value: &str, reason: &dyn std::fmt::Display) -> ApiError {
    BadQuery::value(name, value, reason.to_string()).into()
}
