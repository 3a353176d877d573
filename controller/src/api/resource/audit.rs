//! `GET /v1/audit`: what was done and what was refused, by whom and when.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_core::access::Place;
use stemma_core::name::is_blank;
use stemma_core::object::{GroupId, Kind, Timestamp};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::api::http::query::{BadQuery, Page, Parameters};
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::audit::{Action, AuditRecord, AuditedObject, Whose};
use crate::registry::audit::AuditPage;
use crate::registry::names::group_path;
use crate::store::{Order, Revision};

/// `GET /v1/audit`, in the order of revisions.
pub(super) async fn list(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let seen = Seen::of(&model);
    let filter = Filter::read(api, &seen, &request.query).await?;
    let page = Page::read(&request.query)?;
    if let Some(key) = page.sort_key.as_deref().filter(|key| *key != "id") {
        return Err(BadQuery::value("sort_key", key, "the audit is sorted by id alone: its revision").into());
    }
    let marker = page.marker.as_deref().map(|text| {
        let refused = || BadQuery::value("marker", text, "it is the revision of an entry");
        text.parse().map(Revision::new).map_err(|_| refused())
    });
    let order = if page.descending { Order::Descending } else { Order::Ascending };
    let asked = AuditPage { limit: page.limit, marker: marker.transpose()?, order };
    let audited = api.registry.audit(asked, |record| filter.keeps(&seen, record)).await?;
    let rows: Vec<Value> = audited.entries.iter().map(|(revision, record)| row(&seen, *revision, record)).collect();
    let last = audited.next.map(|revision| revision.to_string());
    let mut body = json!({"audit": rows});
    if let Some(next) = page.next(&request.url(), &request.query, page.limit, last) {
        body["next"] = next.into();
    }
    Ok(Reply::ok(body))
}

/// Which entries are asked for: those that all of these take.
struct Filter<'a> {
    principal: Option<&'a str>,
    object: Option<Named<'a>>,
    /// The principals that the object is or was, where it is a node: what a host was refused has no object.
    hosts: BTreeSet<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    refused: Option<bool>,
}

impl<'a> Filter<'a> {
    async fn read(api: &Api, seen: &Seen<'_>, query: &'a Parameters) -> Result<Self, ApiError> {
        let object = query.text("object")?.map(|text| Named::read(seen.model, text)).transpose()?;
        let hosts = match &object {
            Some(named) => named.hosts(api, seen).await?,
            None => BTreeSet::new(),
        };
        Ok(Self {
            principal: query.text("principal")?,
            object,
            hosts,
            since: time(query, "since")?,
            until: time(query, "until")?,
            refused: query.flag("refused")?,
        })
    }

    fn keeps(&self, seen: &Seen<'_>, record: &AuditRecord) -> bool {
        let (at, principal, whose, objects) = match record {
            AuditRecord::Commit(event) => (event.at, &event.principal, event.whose, &*event.objects),
            AuditRecord::Refusal(refusal) => (refusal.at, &refusal.principal, refusal.whose, &[][..]),
        };
        let is_seen = if objects.is_empty() {
            seen.knows(principal, whose, at)
        } else {
            objects.iter().any(|one| seen.shows(one))
        };
        is_seen
            && self.principal.is_none_or(|wanted| wanted == principal)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
            && self.refused.is_none_or(|refused| refused == matches!(record, AuditRecord::Refusal(_)))
            && self.object.as_ref().is_none_or(|named| {
                let is_hosts = objects.is_empty() && self.hosts.contains(principal);
                is_hosts || objects.iter().any(|object| named.is(seen, object) && seen.shows(object))
            })
    }
}

/// An object as it is asked for: by uuid, or by kind and name, by which one that is gone is found too.
enum Named<'a> {
    /// Of any kind where none is said.
    Uuid(Option<Kind>, Uuid),
    Name(Kind, &'a str),
    /// A group of the cluster that has or had this name.
    Group {
        there: Option<Uuid>,
        cluster: &'a str,
        name: &'a str,
    },
}

impl<'a> Named<'a> {
    fn read(model: &Model, text: &'a str) -> Result<Self, BadQuery> {
        if let Ok(uuid) = text.parse() {
            return Ok(Self::Uuid(None, uuid));
        }
        let rule = "it is KIND/NAME, as node/web-1 or nodegroup/CLUSTER/GROUP, or a uuid";
        let refused = || BadQuery::value("object", text, rule);
        let (word, name) = text.split_once('/').ok_or_else(refused)?;
        if name.split('/').any(is_blank) {
            return Err(refused());
        }
        let kind = Kind::ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(word)).ok_or_else(refused)?;
        let Some((cluster, name)) = name.split_once('/').filter(|_| kind == Kind::NodeGroup) else {
            return Ok(name.parse().map_or(Self::Name(kind, name), |uuid| Self::Uuid(Some(kind), uuid)));
        };
        let found = model.clusters.find(None, cluster);
        let found = found.and_then(|cluster| model.groups.find(Some(cluster.meta.uuid), name));
        Ok(Self::Group { there: found.map(|group| group.meta.uuid), cluster, name })
    }

    /// The principals of the hosts that are or were the node.
    async fn hosts(&self, api: &Api, seen: &Seen<'_>) -> Result<BTreeSet<String>, ApiError> {
        let uuids = match self {
            Self::Uuid(None | Some(Kind::Node), uuid) => BTreeSet::from([*uuid]),
            Self::Name(Kind::Node, name) => {
                let there = seen.model.nodes.find(None, name).map(|node| node.meta.uuid);
                self.deleted(api, seen).await?.into_iter().chain(there).collect()
            }
            Self::Uuid(..) | Self::Name(..) | Self::Group { .. } => BTreeSet::new(),
        };
        Ok(uuids.into_iter().map(|uuid| format!("node/{uuid}")).collect())
    }

    /// Those of this name that were deleted, the last ones first, as far back as one request looks.
    async fn deleted(&self, api: &Api, seen: &Seen<'_>) -> Result<BTreeSet<Uuid>, ApiError> {
        let is_it = |one: &AuditedObject| one.action == Action::Deleted && self.is(seen, one) && seen.shows(one);
        let of = |record: &AuditRecord| match record {
            AuditRecord::Commit(event) => event.objects.iter().filter(|one| is_it(one)).map(|one| one.uuid).collect(),
            AuditRecord::Refusal(_) => Vec::new(),
        };
        let all = AuditPage { limit: usize::MAX, marker: None, order: Order::Descending };
        let deletions = api.registry.audit(all, |record| !of(record).is_empty()).await?;
        Ok(deletions.entries.iter().flat_map(|(_, record)| of(record)).collect())
    }

    fn is(&self, seen: &Seen<'_>, object: &AuditedObject) -> bool {
        match self {
            Self::Uuid(kind, uuid) => object.uuid == *uuid && kind.is_none_or(|kind| object.kind == kind),
            Self::Name(kind, name) => object.kind == *kind && seen.name(object) == *name,
            Self::Group { there, cluster, name } => {
                // An entry of an earlier version does not say of which cluster a group was: where it is gone, it may be any.
                let is_its = match &object.cluster {
                    Some(own) => own == cluster,
                    None => there.is_none(),
                };
                *there == Some(object.uuid) || (object.kind == Kind::NodeGroup && seen.name(object) == *name && is_its)
            }
        }
    }
}

fn time(query: &Parameters, name: &'static str) -> Result<Option<Timestamp>, BadQuery> {
    let Some(text) = query.one(name)? else { return Ok(None) };
    Timestamp::read(text).map(Some).map_err(|why| BadQuery::value(name, text, why.to_string()))
}

/// What of the audit whoever asks sees: all, or what one cluster's objects and principals did and had done to them.
pub(super) struct Seen<'a> {
    model: &'a Model,
}

impl<'a> Seen<'a> {
    /// What is shown of objects.
    pub(super) fn of(model: &'a Model) -> Self {
        Self { model }
    }

    /// Whether what became of an object is shown, by where it stood then.
    pub(super) fn showed(&self, object: &AuditedObject) -> bool {
        let Some(own) = self.model.within else { return true };
        object.kind.is_shared() || object.clusters.contains(&own)
    }

    /// The same, and of what stands here now also entries that were written before clusters stood in them.
    fn shows(&self, object: &AuditedObject) -> bool {
        let stands_here = || {
            let here = self.model.within.map(Place::Cluster);
            here.is_some() && self.model.place_of(object.kind, object.uuid) == here
        };
        self.showed(object) || (object.clusters.is_empty() && stands_here())
    }

    /// What an object is called to who asks: who is told that it left its cluster is told the name that it had there, and not what it was
    /// given elsewhere.
    pub(super) fn name<'o>(&self, object: &'o AuditedObject) -> &'o str {
        let has_left = self.model.within.is_some() && object.left == self.model.within;
        object.was.as_deref().filter(|_| has_left).unwrap_or(&object.name)
    }

    /// Whether it is told what somebody did that has no object. A principal is known by its uuid: its name may be another's by now.
    fn knows(&self, principal: &str, whose: Option<Whose>, at: Timestamp) -> bool {
        let is_node = || {
            let uuid = principal.strip_prefix("node/").and_then(|id| id.parse().ok());
            uuid.is_some_and(|uuid| self.model.nodes.get(uuid).is_some())
        };
        let is_principal = || match whose {
            Some(Whose::Principal(uuid)) => self.model.principals.get(uuid).is_some(),
            Some(Whose::Nobody) => false,
            // An earlier version noted the name alone.
            None => self.model.principals.named(None, principal).is_some_and(|one| one.meta.created_at <= at),
        };
        self.model.within.is_none() || is_principal() || is_node()
    }
}

fn row(seen: &Seen<'_>, revision: Revision, record: &AuditRecord) -> Value {
    match record {
        AuditRecord::Commit(event) => json!({
            "revision": revision.get(), "at": view::time(event.at), "principal": event.principal, "manager": event.manager,
            "address": event.address, "reason": event.reason, "request_id": event.request_id, "refused": null,
            "objects": event.objects.iter().filter(|one| seen.shows(one)).map(|one| shown(seen, one)).collect::<Vec<_>>(),
            "action": event.action,
        }),
        AuditRecord::Refusal(refusal) => json!({
            "revision": revision.get(), "at": view::time(refusal.at), "principal": refusal.principal,
            "address": refusal.address, "other_address": refusal.other_address, "refused": refusal.refused, "unsaid": refusal.unsaid, "objects": [],
        }),
    }
}

fn shown(seen: &Seen<'_>, object: &AuditedObject) -> Value {
    let (model, name) = (seen.model, seen.name(object));
    let now = model.groups.get(object.uuid).and_then(|group| group_path(model, GroupId(group.meta.uuid)));
    let then = || object.cluster.as_ref().map(|cluster| format!("{cluster}/{name}"));
    json!({
        "kind": object.kind.word(), "uuid": object.uuid, "name": now.or_else(then).unwrap_or_else(|| name.to_owned()),
        "action": object.action, "before": object.before, "part": object.part,
    })
}
