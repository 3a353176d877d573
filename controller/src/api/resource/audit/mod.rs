//! `GET /v1/audit`: lists the writes and the refused requests, each with its principal and time.

mod names;
mod values;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_core::access::AccessScope;
use stemma_core::field::parse_integer;
use stemma_core::name::is_blank;
use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, NodeGroupSpec, NodeSpec,
    PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec, Timestamp,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::api::http::query::{BadQuery, PageQuery, QueryString};
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::audit::{AuditEvent, AuditRecord, AuditedObject, PrincipalRef, RefusalRecord};
use crate::registry::audit::{AuditEntries, AuditPage};
use crate::store::{Revision, SortOrder};
use values::{AuditedChanges, ChangeReader, OmitReason};

/// `GET /v1/audit`: returns a page of entries, sorted by revision.
pub(super) async fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let visibility = AuditVisibility::new(&model);
    let filter = AuditFilter::read(api, &visibility, &request.query).await?;
    let page = PageQuery::read(&request.query)?;
    if let Some(key) = page.sort_key.as_deref().filter(|key| *key != "id") {
        return Err(BadQuery::bad_value("sort_key", key, "the audit can be sorted only by id, which is the revision").into());
    }
    let marker = page.marker.as_deref().map(|text| {
        let invalid_marker = || BadQuery::bad_value("marker", text, "it is the revision of an entry");
        parse_integer(text).map(Revision::new).ok_or_else(invalid_marker)
    });
    let order = if page.is_descending { SortOrder::Descending } else { SortOrder::Ascending };
    let page_query = AuditPage { limit: page.limit, marker: marker.transpose()?, order };
    let audited = api.registry.read_audit(page_query, |record| filter.is_match(&visibility, record)).await?;
    let (rows, last) = read_rows(&visibility, &filter, ChangeReader::new(api, &model).await?, &audited).await?;
    let mut body = json!({"audit": rows});
    let last = last.map(|revision| revision.to_string());
    // `last` is set only if there is a next page. So the number of rows is given as that of a full page.
    if let Some(next) = page.next_link(&request.url(), &request.query, page.limit, last) {
        body["next"] = next.into();
    }
    Ok(HttpResponse::ok(body))
}

/// Returns the rows of a page. If there is a next page, also returns the revision after which the next page begins. The
/// page ends early when `reader` has read the maximum number of bytes.
async fn read_rows(
    visibility: &AuditVisibility<'_>,
    filter: &AuditFilter<'_>,
    mut reader: ChangeReader<'_>,
    audited: &AuditEntries,
) -> Result<(Vec<Value>, Option<Revision>), ApiError> {
    let (mut rows, mut last) = (Vec::new(), None);
    for (revision, record) in &audited.entries {
        if reader.is_full() {
            return Ok((rows, last));
        }
        let row = match record {
            AuditRecord::Commit(event) => {
                let objects = object_rows(visibility, filter, &mut reader, *revision, event).await?;
                commit_json(*revision, event, &objects)
            }
            AuditRecord::Refusal(refusal) => refusal_json(*revision, refusal),
        };
        rows.push(row);
        last = Some(*revision);
    }
    Ok((rows, audited.next))
}

/// Returns the rows of a commit's objects that the caller can see. The rows of objects that the filter selects include
/// their changes.
async fn object_rows(
    visibility: &AuditVisibility<'_>,
    filter: &AuditFilter<'_>,
    reader: &mut ChangeReader<'_>,
    revision: Revision,
    event: &AuditEvent,
) -> Result<Vec<Value>, ApiError> {
    let mut objects = Vec::new();
    reader.begin_entry();
    for audited in &event.objects {
        if !visibility.is_visible(audited) {
            continue;
        }
        let is_requested = filter.has_object(visibility, audited);
        let changes = if is_requested {
            reader.changes(audited, revision).await?
        } else {
            AuditedChanges::Omitted(OmitReason::NotRequested)
        };
        let mut object = object_json(visibility, audited);
        changes.write_into(&mut object);
        objects.push(object);
    }
    Ok(objects)
}

/// The filter of the request. It selects the entries that match all of its fields.
struct AuditFilter<'a> {
    principal: Option<&'a str>,
    object: Option<AuditTarget<'a>>,
    /// The requested uuid, or those of the objects that have or had the requested name, whatever name an entry shows.
    uuids: BTreeSet<Uuid>,
    /// The names that the requested objects have as principals (`node/UUID`), if the objects can be nodes. An entry
    /// about a refused request of a host has no objects. Only its principal identifies the host.
    hosts: BTreeSet<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    is_refused: Option<bool>,
}

impl<'a> AuditFilter<'a> {
    /// Reads the filter from the query. If the query names an object, finds all objects that have or had that name.
    async fn read(api: &Api, visibility: &AuditVisibility<'_>, query: &'a QueryString) -> Result<Self, ApiError> {
        let object = query.text("object")?.map(|text| AuditTarget::read(visibility.model, text)).transpose()?;
        let uuids = match &object {
            Some(target) => target.uuids(api, visibility).await?,
            None => BTreeSet::new(),
        };
        let may_be_hosts = object.as_ref().is_some_and(|target| target.may_be_kind(Kind::Node));
        let hosts = uuids.iter().filter(|_| may_be_hosts).map(|uuid| format!("node/{uuid}")).collect();
        Ok(Self {
            principal: query.text("principal")?,
            object,
            uuids,
            hosts,
            since: read_time(query, "since")?,
            until: read_time(query, "until")?,
            is_refused: query.flag("refused")?,
        })
    }

    /// Returns whether the caller can see an entry and the filter selects it.
    fn is_match(&self, visibility: &AuditVisibility<'_>, record: &AuditRecord) -> bool {
        let (time, principal, principal_ref, objects) = match record {
            AuditRecord::Commit(event) => (event.at, &event.principal, event.whose, &*event.objects),
            AuditRecord::Refusal(refusal) => (refusal.at, &refusal.principal, refusal.whose, &[][..]),
        };
        let may_see = if objects.is_empty() {
            visibility.is_actor_visible(principal, principal_ref, time)
        } else {
            objects.iter().any(|audited| visibility.is_visible(audited))
        };
        let is_host_entry = objects.is_empty() && self.hosts.contains(principal);
        may_see
            && self.principal.is_none_or(|name| name == principal)
            && self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
            && self.is_refused.is_none_or(|refused| refused == matches!(record, AuditRecord::Refusal(_)))
            && (self.object.is_none()
                || is_host_entry
                || objects.iter().any(|object| self.has_object(visibility, object) && visibility.is_visible(object)))
    }

    /// Returns whether the request selects this object. If the request names no object, it selects every object.
    fn has_object(&self, visibility: &AuditVisibility<'_>, object: &AuditedObject) -> bool {
        self.object.as_ref().is_none_or(|target| {
            target.is_match(visibility, object) || (target.may_be_kind(object.kind) && self.uuids.contains(&object.uuid))
        })
    }
}

/// The requested object: a uuid, or a kind and name. A name also matches objects that were deleted or renamed since.
enum AuditTarget<'a> {
    /// The object with this uuid, of any kind if the request names no kind.
    Uuid(Option<Kind>, Uuid),
    Name(Kind, &'a str),
    /// A group or a primary of the cluster that has or had the name `cluster`.
    InCluster {
        kind: Kind,
        /// The uuid of the object that has the requested name in that cluster now, if there is one.
        present_uuid: Option<Uuid>,
        cluster: &'a str,
        name: &'a str,
    },
}

impl<'a> AuditTarget<'a> {
    /// Reads the query parameter `object`: a uuid, `KIND/NAME` or `KIND/UUID`. The name of a group or primary can
    /// include its cluster (`CLUSTER/NAME`). Without a cluster, the name matches in every cluster.
    fn read(model: &Model, text: &'a str) -> Result<Self, BadQuery> {
        if let Ok(uuid) = text.parse() {
            return Ok(Self::Uuid(None, uuid));
        }
        let rule = "it is KIND/NAME, as node/web-1, nodegroup/CLUSTER/GROUP or primary/CLUSTER/TAG, or a uuid";
        let invalid_object = || BadQuery::bad_value("object", text, rule);
        let (word, name) = text.split_once('/').ok_or_else(invalid_object)?;
        if name.split('/').any(is_blank) {
            return Err(invalid_object());
        }
        let kind = Kind::ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(word)).ok_or_else(invalid_object)?;
        let has_cluster = matches!(kind, Kind::NodeGroup | Kind::Primary);
        let Some((cluster, name)) = name.split_once('/').filter(|_| has_cluster) else {
            return Ok(name.parse().map_or(Self::Name(kind, name), |uuid| Self::Uuid(Some(kind), uuid)));
        };
        let present_uuid = model.clusters.find(None, cluster).and_then(|found| {
            let cluster_uuid = Some(found.meta.uuid);
            let is_primary = kind == Kind::Primary;
            if is_primary {
                find_uuid::<PrimarySpec>(model, cluster_uuid, name)
            } else {
                find_uuid::<NodeGroupSpec>(model, cluster_uuid, name)
            }
        });
        Ok(Self::InCluster { kind, present_uuid, cluster, name })
    }

    /// Returns whether the requested object can be of this kind.
    fn may_be_kind(&self, kind: Kind) -> bool {
        match self {
            Self::Uuid(target_kind, _) => target_kind.is_none_or(|requested_kind| requested_kind == kind),
            Self::Name(target_kind, _) | Self::InCluster { kind: target_kind, .. } => *target_kind == kind,
        }
    }

    /// Returns the requested uuid, or the uuids of the objects that have or had the requested name, as far back as one
    /// request reads the audit. Only past names that the caller can see count.
    async fn uuids(&self, api: &Api, view: &AuditVisibility<'_>) -> Result<BTreeSet<Uuid>, ApiError> {
        let mut uuids: BTreeSet<Uuid> = self.current_uuid(view.model).into_iter().collect();
        if matches!(self, Self::Uuid(..)) {
            return Ok(uuids);
        }
        let page = AuditPage { limit: usize::MAX, marker: None, order: SortOrder::Descending };
        let visit = |record: &AuditRecord| {
            if let AuditRecord::Commit(event) = record {
                let matching = event.objects.iter().filter(|item| self.is_certain_match(view, item) && view.is_visible(item));
                uuids.extend(matching.map(|item| item.uuid));
            }
            // No record is selected for a page, because only the uuids are needed.
            false
        };
        api.registry.read_audit(page, visit).await?;
        Ok(uuids)
    }

    /// Returns the requested uuid, also if no such object exists, or the uuid of the object that has the requested name
    /// now. `None` for a group or a primary that the request names without its cluster.
    fn current_uuid(&self, model: &Model) -> Option<Uuid> {
        let (kind, name) = match self {
            Self::Uuid(_, uuid) => return Some(*uuid),
            Self::InCluster { present_uuid, .. } => return *present_uuid,
            Self::Name(kind, name) => (*kind, *name),
        };
        match kind {
            Kind::Release => find_uuid::<ReleaseSpec>(model, None, name),
            Kind::ReleaseTags => find_uuid::<ReleaseTagsSpec>(model, None, name),
            Kind::ClusterTemplate => find_uuid::<ClusterTemplateSpec>(model, None, name),
            Kind::Cluster => find_uuid::<ClusterSpec>(model, None, name),
            Kind::NodeGroup => find_uuid::<NodeGroupSpec>(model, None, name),
            Kind::Node => find_uuid::<NodeSpec>(model, None, name),
            Kind::Primary => find_uuid::<PrimarySpec>(model, None, name),
            Kind::Namespace => find_uuid::<NamespaceSpec>(model, None, name),
            Kind::InspectionRule => find_uuid::<InspectionRuleSpec>(model, None, name),
            Kind::Allocation => find_uuid::<AllocationSpec>(model, None, name),
            Kind::Principal => find_uuid::<PrincipalSpec>(model, None, name),
            Kind::Revision | Kind::Secret | Kind::Expectation => None,
        }
    }

    /// Returns whether an object of an entry is certainly the requested one. If the request names a group or a primary
    /// with its cluster, an entry of an earlier version of Stemma may lack the cluster. Then the match is not certain.
    fn is_certain_match(&self, visibility: &AuditVisibility<'_>, object: &AuditedObject) -> bool {
        let is_uncertain = matches!(self, Self::InCluster { .. }) && visibility.cluster_name(object).is_none();
        !is_uncertain && self.is_match(visibility, object)
    }

    /// Returns whether an object of an entry may be the requested one.
    fn is_match(&self, view: &AuditVisibility<'_>, object: &AuditedObject) -> bool {
        match self {
            Self::Uuid(kind, uuid) => object.uuid == *uuid && kind.is_none_or(|kind| object.kind == kind),
            Self::Name(kind, name) => object.kind == *kind && view.has_name(object, name),
            Self::InCluster { kind, present_uuid, cluster, name } => {
                // An entry of an earlier version may not contain the cluster. If the named object no longer exists, it
                // may have been in any cluster.
                let is_in_cluster = || view.cluster_name(object).map_or(present_uuid.is_none(), |found| found == *cluster);
                *present_uuid == Some(object.uuid) || (object.kind == *kind && view.has_name(object, name) && is_in_cluster())
            }
        }
    }
}

/// Returns the uuid of the visible object with this name. A group or a primary must be in `cluster`.
fn find_uuid<S: Resource>(model: &Model, cluster: Option<Uuid>, name: &str) -> Option<Uuid> {
    S::index(model).find(cluster, name).map(|object| object.meta.uuid)
}

fn read_time(query: &QueryString, name: &'static str) -> Result<Option<Timestamp>, BadQuery> {
    let Some(text) = query.get(name)? else { return Ok(None) };
    Timestamp::parse(text).map(Some).map_err(|error| BadQuery::bad_value(name, text, error.to_string()))
}

/// The part of the audit that the caller can see. A caller that is bound to a cluster sees the changes of the objects
/// of shared kinds ([`Kind::is_shared`]) and of that cluster, and the other entries of its principals and nodes.
pub(super) struct AuditVisibility<'a> {
    model: &'a Model,
}

impl<'a> AuditVisibility<'a> {
    /// Creates the visibility for a caller that sees the objects of this model.
    pub(super) fn new(model: &'a Model) -> Self {
        Self { model }
    }

    /// Returns whether a change of an object is visible to the caller. For a caller that is bound to a cluster, the
    /// object must be of a kind that every principal can read, or must have been in that cluster before or after the
    /// change.
    pub(super) fn is_visible_by_entry(&self, object: &AuditedObject) -> bool {
        let Some(cluster) = self.model.visible_cluster else { return true };
        object.kind.is_shared() || object.clusters.contains(&cluster)
    }

    /// Returns whether a change of an object is visible to the caller. An entry without clusters, such as one of an
    /// earlier version, is visible if the object is in the caller's cluster now.
    fn is_visible(&self, object: &AuditedObject) -> bool {
        let is_in_cluster_now = || {
            let caller_scope = self.model.visible_cluster.map(AccessScope::Cluster);
            caller_scope.is_some() && self.model.access_scope(object.kind, object.uuid) == caller_scope
        };
        self.is_visible_by_entry(object) || (object.clusters.is_empty() && is_in_cluster_now())
    }

    /// Returns the object's name for the caller. If the object left the caller's cluster with this change, the caller
    /// sees the name that the object had in that cluster, not its new name.
    pub(super) fn name<'o>(&self, object: &'o AuditedObject) -> &'o str {
        let has_left = self.model.visible_cluster.is_some() && object.left == self.model.visible_cluster;
        object.was.as_deref().filter(|_| has_left).unwrap_or(&object.name)
    }

    /// Returns whether the entry shows the caller that the object has this name, or had it before the change. A caller
    /// that is bound to a cluster does not see the name that an object had before it joined that cluster.
    fn has_name(&self, object: &AuditedObject, name: &str) -> bool {
        let previous_name = object.was.as_deref().filter(|_| self.model.visible_cluster.is_none());
        self.name(object) == name || previous_name == Some(name)
    }

    /// Returns the name of the cluster that a group or a primary was in. Earlier versions recorded the cluster of a
    /// primary only as a uuid. For such an entry, returns the present name of the cluster.
    fn cluster_name(&self, object: &AuditedObject) -> Option<String> {
        let by_uuid = || {
            let cluster = object.clusters.first().filter(|_| object.kind == Kind::Primary)?;
            Some(self.model.clusters.get(cluster.0)?.meta.name.to_string())
        };
        object.cluster.clone().or_else(by_uuid)
    }

    /// Returns the name of the cluster that a group is in now. Entries of earlier versions may not contain the cluster.
    fn group_cluster_name(&self, uuid: Uuid) -> Option<String> {
        let group = self.model.groups.get(uuid)?;
        Some(self.model.clusters.get(group.spec.cluster.0)?.meta.name.to_string())
    }

    /// Returns whether an entry without objects is visible to the caller. A caller that is bound to a cluster sees the
    /// entry only if it can see the principal or the node that caused the entry. A principal is identified by its uuid,
    /// because another principal may have the name now.
    fn is_actor_visible(&self, principal: &str, principal_ref: Option<PrincipalRef>, time: Timestamp) -> bool {
        let is_node = || {
            let uuid = principal.strip_prefix("node/").and_then(|id| id.parse().ok());
            uuid.is_some_and(|uuid| self.model.nodes.get(uuid).is_some())
        };
        let is_principal = || match principal_ref {
            Some(PrincipalRef::Principal(uuid)) => self.model.principals.get(uuid).is_some(),
            Some(PrincipalRef::Nobody) => false,
            // An earlier version recorded only the name.
            None => self.model.principals.get_by_name(None, principal).is_some_and(|found| found.meta.created_at <= time),
        };
        self.model.visible_cluster.is_none() || is_principal() || is_node()
    }
}

/// Returns the row of a commit.
fn commit_json(revision: Revision, event: &AuditEvent, objects: &[Value]) -> Value {
    json!({
        "revision": revision.get(), "at": view::format_time(event.at), "principal": event.principal, "manager": event.manager,
        "address": event.address, "reason": event.reason, "request_id": event.request_id, "refused": null,
        "objects": objects, "action": event.action,
    })
}

/// Returns the row of a refused request. `unsaid` is the number of further refusals that got no entry. No object was
/// changed.
fn refusal_json(revision: Revision, refusal: &RefusalRecord) -> Value {
    json!({
        "revision": revision.get(), "at": view::format_time(refusal.at), "principal": refusal.principal,
        "address": refusal.address, "other_address": refusal.other_address, "refused": refusal.refused, "unsaid": refusal.unsaid, "objects": [],
    })
}

/// Returns the row of an object of an entry. The name of a group or a primary includes its cluster.
fn object_json(visibility: &AuditVisibility<'_>, object: &AuditedObject) -> Value {
    let name = visibility.name(object);
    let cluster = visibility.cluster_name(object).or_else(|| visibility.group_cluster_name(object.uuid));
    let path = cluster.map(|cluster| format!("{cluster}/{name}"));
    json!({
        "kind": object.kind.word(), "uuid": object.uuid, "name": path.unwrap_or_else(|| name.to_owned()),
        "action": object.action, "before": object.before, "part": object.part,
        "part_action": object.part_action,
    })
}
