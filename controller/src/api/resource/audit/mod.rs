//! `GET /v1/audit`: what was done and what was refused, by whom and when.

mod names;
mod values;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_core::access::Place;
use stemma_core::field::whole;
use stemma_core::name::is_blank;
use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, NodeGroupSpec, NodeSpec,
    PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec, Timestamp,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::api::http::query::{BadQuery, Page, Parameters};
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::audit::{AuditEvent, AuditRecord, AuditedObject, Refusal, Whose};
use crate::registry::audit::{AuditPage, Audited};
use crate::store::{Order, Revision};
use values::{Reader, Told, Why};

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
        whole(text).map(Revision::new).ok_or_else(refused)
    });
    let order = if page.descending { Order::Descending } else { Order::Ascending };
    let asked = AuditPage { limit: page.limit, marker: marker.transpose()?, order };
    let audited = api.registry.audit(asked, |record| filter.keeps(&seen, record)).await?;
    let (rows, last) = rows(&seen, &filter, Reader::new(api, &model).await?, &audited).await?;
    let mut body = json!({"audit": rows});
    let last = last.map(|revision| revision.to_string());
    if let Some(next) = page.next(&request.url(), &request.query, page.limit, last) {
        body["next"] = next.into();
    }
    Ok(Reply::ok(body))
}

/// The entries as they are shown, and behind which of them the next page begins: a page whose changes were much to read ends early.
async fn rows(
    seen: &Seen<'_>,
    filter: &Filter<'_>,
    mut reader: Reader<'_>,
    audited: &Audited,
) -> Result<(Vec<Value>, Option<Revision>), ApiError> {
    let (mut rows, mut last) = (Vec::new(), None);
    for (revision, record) in &audited.entries {
        if reader.is_full() {
            return Ok((rows, last));
        }
        let row = match record {
            AuditRecord::Commit(event) => {
                let objects = objects(seen, filter, &mut reader, *revision, event).await?;
                of_commit(*revision, event, &objects)
            }
            AuditRecord::Refusal(refusal) => of_refusal(*revision, refusal),
        };
        rows.push(row);
        last = Some(*revision);
    }
    Ok((rows, audited.next))
}

/// The objects of a commit, those that are asked for with what it changed of them.
async fn objects(
    seen: &Seen<'_>,
    filter: &Filter<'_>,
    reader: &mut Reader<'_>,
    revision: Revision,
    event: &AuditEvent,
) -> Result<Vec<Value>, ApiError> {
    let mut objects = Vec::new();
    reader.begin_entry();
    for one in &event.objects {
        if !seen.shows(one) {
            continue;
        }
        let is_asked_for = filter.means(seen, one);
        let told = if is_asked_for { reader.changes(one, revision).await? } else { Told::LeftOut(Why::NotAsked) };
        let mut object = shown(seen, one);
        told.put_into(&mut object);
        objects.push(object);
    }
    Ok(objects)
}

/// Which entries are asked for: those that all of these take.
struct Filter<'a> {
    principal: Option<&'a str>,
    object: Option<Named<'a>>,
    /// The objects that are or were called so: of one that was renamed also what was done to it under its other names.
    uuids: BTreeSet<Uuid>,
    /// The principals that these are, where they are nodes: what a host was refused has no object.
    hosts: BTreeSet<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    refused: Option<bool>,
}

impl<'a> Filter<'a> {
    async fn read(api: &Api, seen: &Seen<'_>, query: &'a Parameters) -> Result<Self, ApiError> {
        let object = query.text("object")?.map(|text| Named::read(seen.model, text)).transpose()?;
        let uuids = match &object {
            Some(named) => named.uuids(api, seen).await?,
            None => BTreeSet::new(),
        };
        let may_be_hosts = object.as_ref().is_some_and(|named| named.may_be(Kind::Node));
        let hosts = uuids.iter().filter(|_| may_be_hosts).map(|uuid| format!("node/{uuid}")).collect();
        Ok(Self {
            principal: query.text("principal")?,
            object,
            uuids,
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
        let is_of_host = objects.is_empty() && self.hosts.contains(principal);
        is_seen
            && self.principal.is_none_or(|wanted| wanted == principal)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
            && self.refused.is_none_or(|refused| refused == matches!(record, AuditRecord::Refusal(_)))
            && (self.object.is_none()
                || is_of_host
                || objects.iter().any(|object| self.means(seen, object) && seen.shows(object)))
    }

    /// Whether an object is asked for.
    fn means(&self, seen: &Seen<'_>, object: &AuditedObject) -> bool {
        self.object.as_ref().is_none_or(|named| {
            named.is(seen, object) || (named.may_be(object.kind) && self.uuids.contains(&object.uuid))
        })
    }
}

/// An object as it is asked for: by uuid, or by kind and name, by which one is found too that is gone or is called otherwise by now.
enum Named<'a> {
    /// Of any kind where none is said.
    Uuid(Option<Kind>, Uuid),
    Name(Kind, &'a str),
    /// A group or a primary of the cluster that has or had this name.
    Of {
        kind: Kind,
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
        let rule = "it is KIND/NAME, as node/web-1, nodegroup/CLUSTER/GROUP or primary/CLUSTER/TAG, or a uuid";
        let refused = || BadQuery::value("object", text, rule);
        let (word, name) = text.split_once('/').ok_or_else(refused)?;
        if name.split('/').any(is_blank) {
            return Err(refused());
        }
        let kind = Kind::ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(word)).ok_or_else(refused)?;
        let is_within = matches!(kind, Kind::NodeGroup | Kind::Primary);
        let Some((cluster, name)) = name.split_once('/').filter(|_| is_within) else {
            return Ok(name.parse().map_or(Self::Name(kind, name), |uuid| Self::Uuid(Some(kind), uuid)));
        };
        let there = model.clusters.find(None, cluster).and_then(|found| {
            let within = Some(found.meta.uuid);
            let is_primary = kind == Kind::Primary;
            if is_primary {
                called::<PrimarySpec>(model, within, name)
            } else {
                called::<NodeGroupSpec>(model, within, name)
            }
        });
        Ok(Self::Of { kind, there, cluster, name })
    }

    /// Whether it may be of this kind.
    fn may_be(&self, kind: Kind) -> bool {
        match self {
            Self::Uuid(of, _) => of.is_none_or(|of| of == kind),
            Self::Name(of, _) | Self::Of { kind: of, .. } => *of == kind,
        }
    }

    /// The objects that are called so, and those that were, as far back as one request looks.
    async fn uuids(&self, api: &Api, seen: &Seen<'_>) -> Result<BTreeSet<Uuid>, ApiError> {
        let mut uuids: BTreeSet<Uuid> = self.there(seen.model).into_iter().collect();
        if matches!(self, Self::Uuid(..)) {
            return Ok(uuids);
        }
        let all = AuditPage { limit: usize::MAX, marker: None, order: Order::Descending };
        let note = |record: &AuditRecord| {
            if let AuditRecord::Commit(event) = record {
                let meant = event.objects.iter().filter(|one| self.is_surely(seen, one) && seen.shows(one));
                uuids.extend(meant.map(|one| one.uuid));
            }
            false
        };
        api.registry.audit(all, note).await?;
        Ok(uuids)
    }

    /// The object that is called so now.
    fn there(&self, model: &Model) -> Option<Uuid> {
        let (kind, name) = match self {
            Self::Uuid(_, uuid) => return Some(*uuid),
            Self::Of { there, .. } => return *there,
            Self::Name(kind, name) => (*kind, *name),
        };
        match kind {
            Kind::Release => called::<ReleaseSpec>(model, None, name),
            Kind::ReleaseTags => called::<ReleaseTagsSpec>(model, None, name),
            Kind::ClusterTemplate => called::<ClusterTemplateSpec>(model, None, name),
            Kind::Cluster => called::<ClusterSpec>(model, None, name),
            Kind::NodeGroup => called::<NodeGroupSpec>(model, None, name),
            Kind::Node => called::<NodeSpec>(model, None, name),
            Kind::Primary => called::<PrimarySpec>(model, None, name),
            Kind::Namespace => called::<NamespaceSpec>(model, None, name),
            Kind::InspectionRule => called::<InspectionRuleSpec>(model, None, name),
            Kind::Allocation => called::<AllocationSpec>(model, None, name),
            Kind::Principal => called::<PrincipalSpec>(model, None, name),
            Kind::Revision | Kind::Secret | Kind::Expectation => None,
        }
    }

    /// Whether an entry is of it without a doubt: one of an earlier version may not say of which cluster it was.
    fn is_surely(&self, seen: &Seen<'_>, object: &AuditedObject) -> bool {
        let is_doubtful = matches!(self, Self::Of { .. }) && seen.cluster_of(object).is_none();
        !is_doubtful && self.is(seen, object)
    }

    fn is(&self, seen: &Seen<'_>, object: &AuditedObject) -> bool {
        match self {
            Self::Uuid(kind, uuid) => object.uuid == *uuid && kind.is_none_or(|kind| object.kind == kind),
            Self::Name(kind, name) => object.kind == *kind && seen.calls(object, name),
            Self::Of { kind, there, cluster, name } => {
                // An entry of an earlier version may not say of which cluster it was: where it is gone, it may be any.
                let is_its = || seen.cluster_of(object).map_or(there.is_none(), |own| own == *cluster);
                *there == Some(object.uuid) || (object.kind == *kind && seen.calls(object, name) && is_its())
            }
        }
    }
}

/// The uuid of the object that has this name, in a cluster where one is said.
fn called<S: Resource>(model: &Model, cluster: Option<Uuid>, name: &str) -> Option<Uuid> {
    S::shelf(model).find(cluster, name).map(|object| object.meta.uuid)
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

    /// Whether an entry tells who asks that an object is called so, or was until then. Who sees one cluster alone is not told what an object
    /// was called before it came there.
    fn calls(&self, object: &AuditedObject, name: &str) -> bool {
        let was = object.was.as_deref().filter(|_| self.model.within.is_none());
        self.name(object) == name || was == Some(name)
    }

    /// The name of the cluster that a group or a primary was of. An earlier version noted that of primaries by uuid alone.
    fn cluster_of(&self, object: &AuditedObject) -> Option<String> {
        let by_uuid = || {
            let cluster = object.clusters.first().filter(|_| object.kind == Kind::Primary)?;
            Some(self.model.clusters.get(cluster.0)?.meta.name.to_string())
        };
        object.cluster.clone().or_else(by_uuid)
    }

    /// The name of the cluster that a group is of now: an entry of an earlier version may not say of which it was.
    fn cluster_of_group(&self, uuid: Uuid) -> Option<String> {
        let group = self.model.groups.get(uuid)?;
        Some(self.model.clusters.get(group.spec.cluster.0)?.meta.name.to_string())
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

fn of_commit(revision: Revision, event: &AuditEvent, objects: &[Value]) -> Value {
    json!({
        "revision": revision.get(), "at": view::time(event.at), "principal": event.principal, "manager": event.manager,
        "address": event.address, "reason": event.reason, "request_id": event.request_id, "refused": null,
        "objects": objects, "action": event.action,
    })
}

fn of_refusal(revision: Revision, refusal: &Refusal) -> Value {
    json!({
        "revision": revision.get(), "at": view::time(refusal.at), "principal": refusal.principal,
        "address": refusal.address, "other_address": refusal.other_address, "refused": refusal.refused, "unsaid": refusal.unsaid, "objects": [],
    })
}

fn shown(seen: &Seen<'_>, object: &AuditedObject) -> Value {
    let name = seen.name(object);
    let cluster = seen.cluster_of(object).or_else(|| seen.cluster_of_group(object.uuid));
    let path = cluster.map(|cluster| format!("{cluster}/{name}"));
    json!({
        "kind": object.kind.word(), "uuid": object.uuid, "name": path.unwrap_or_else(|| name.to_owned()),
        "action": object.action, "before": object.before, "part": object.part,
        "part_action": object.part_action,
    })
}
