//! Encodes events: one for each object of a commit, and one for the state of each node.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::access::AccessScope;
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, Node, NodeGroupSpec,
    NodeSpec, Object, ReleaseSpec,
};
use stemma_core::selector::Selector;
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::super::audit::AuditVisibility;
use super::super::objects::ApiResource;
use super::super::{changes, state, view};
use super::EventFilter;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::audit::{Action, AuditEvent, AuditRecord, AuditedObject};
use crate::records::{codec, key};
use crate::registry::names::ModelNames;
use crate::registry::{damaged_record, store_error};
use crate::status::NodeStatus;
use crate::store::{Change, EventKind, Revision};

/// Returns whether a change of the store writes or deletes records of the audit log, as each write by a caller does.
/// The record of a refusal and the deletion of old records yield no events. A stored report of a host has no record.
pub(super) fn is_commit(change: &Change) -> bool {
    change.events.iter().any(|event| event.key.starts_with(key::AUDIT.as_bytes()))
}

/// Returns the events of a commit as text, one for each changed object that the filter selects and the caller can see.
/// Only the last event has the revision as its id, so that a client never resumes in the middle of a commit.
///
/// # Errors
/// Fails if the store fails or a stored record cannot be decoded.
pub(super) async fn encode_objects(api: Api, filter: Arc<EventFilter>, change: Arc<Change>) -> Result<String, ApiError> {
    let Some(commit) = audit_event(&change)? else { return Ok(String::new()) };
    let selector = filter.selector.as_ref();
    let reader = VersionReader { model: api.model(), full_model: api.cache().model(), api: &api, selector };
    let visibility = AuditVisibility::new(&reader.model);
    let mut events = Vec::new();
    for object in commit.objects.iter().filter(|audited| audited.action != Action::Unchanged) {
        if !filter.has_kind(object.kind) || !visibility.is_visible_by_entry(object) {
            continue;
        }
        let version = match stored_value(&change, object) {
            Some(value) => reader.decode_version(object.kind, value, change.revision)?,
            None => None,
        };
        // If the client can no longer see the object, the event omits the object's new content, and the selector is not
        // applied to that content.
        let version = version.filter(|version| reader.model.is_visible(version.scope));
        if !is_selected(&reader, object, version.as_ref()).await? {
            continue;
        }
        events.push(json!({
            "revision": change.revision.get(), "at": view::format_time(commit.at), "kind": object.kind.word(), "uuid": object.uuid, "name": visibility.name(object),
            "cluster": object_cluster(&reader.model, object, version.as_ref()), "action": object.action,
            "object": version.map(|version| version.body),
        }));
    }
    let mut text = String::new();
    for (index, data) in events.iter().enumerate() {
        if index + 1 == events.len() {
            let _infallible = writeln!(text, "id: {}", change.revision);
        }
        let _infallible = write!(text, "event: object\ndata: {data}\n\n");
    }
    Ok(text)
}

/// Returns the states of these nodes as the text of events. Nodes that are not selected or not visible are omitted.
pub(super) fn encode_statuses(api: &Api, filter: &EventFilter, nodes: &[Uuid]) -> String {
    let model = api.model();
    let mut text = String::new();
    for node in nodes.iter().filter_map(|node| model.nodes.get(*node)) {
        let Some(NodeStatus { status, liveness }) = node_status(api, &model, node) else { continue };
        if filter.selector.as_ref().is_some_and(|selector| !model.fleet.selects(node, selector)) {
            continue;
        }
        let cluster = model.fleet.cluster_of_node(node.id()).and_then(|cluster| cluster_name(&model, cluster));
        let data = json!({
            "kind": Kind::Node.word(), "uuid": node.meta.uuid, "name": NodeSpec::name_text(&node.meta.name),
            "cluster": cluster, "state": status.state, "state_reason": status.reason, "connection": liveness.name(),
        });
        let _infallible = write!(text, "event: status\ndata: {data}\n\n");
    }
    text
}

/// Returns a node's state from the table of states. If the table may not include the caller's own writes yet, the state
/// is computed from the model. Returns `None` if the table does not have the node, or in a test without agents.
fn node_status(api: &Api, model: &Model, node: &Node) -> Option<NodeStatus> {
    let desired = api.desired.as_ref()?;
    if !api.is_stale {
        return desired.status().get(node.meta.uuid);
    }
    let inputs = state::state_inputs(api, model, node, &model.resolve(node.meta.uuid));
    Some(NodeStatus { status: inputs.status(), liveness: inputs.liveness })
}

/// Returns the audit event of a change, or `None` if the change was not a write by a caller. A refused write changes no
/// object, so its record has no event.
fn audit_event(change: &Change) -> Result<Option<AuditEvent>, ApiError> {
    let audit = change.events.iter().find(|event| event.key.starts_with(key::AUDIT.as_bytes()));
    let Some(EventKind::Put { value, .. }) = audit.map(|event| &event.kind) else { return Ok(None) };
    match codec::decode(value).map_err(|error| damaged_record(&error))? {
        AuditRecord::Commit(event) => Ok(Some(event)),
        AuditRecord::Refusal(_) => Ok(None),
    }
}

/// Returns the encoded object that the commit stored, or `None` if the commit deleted the object.
fn stored_value<'a>(change: &'a Change, object: &AuditedObject) -> Option<&'a [u8]> {
    let key = key::object(object.kind, object.uuid);
    change.events.iter().find(|event| event.key == key.as_bytes()).and_then(|event| match &event.kind {
        EventKind::Put { value, .. } => Some(&value[..]),
        EventKind::Delete => None,
    })
}

/// Returns whether the selector matches the labels that the object has after the commit (in `new`) or had before it, if
/// the caller can see that version. So a client also gets an event for an object that no longer matches.
async fn is_selected(reader: &VersionReader<'_>, object: &AuditedObject, new: Option<&ObjectSnapshot>) -> Result<bool, ApiError> {
    if reader.selector.is_none() {
        return Ok(true);
    }
    let is_visible_match = |version: &ObjectSnapshot| reader.model.is_visible(version.scope) && version.is_selected;
    if new.is_some_and(is_visible_match) {
        return Ok(true);
    }
    let Some(previous_revision) = object.before.map(Revision::new) else { return Ok(false) };
    let key = [key::history(object.kind, object.uuid).as_bytes(), &previous_revision.to_key()].concat();
    let snapshot = reader.api.registry.store().snapshot().await.map_err(|error| store_error(&error))?;
    let Some(entry) = snapshot.get(&key).await.map_err(|error| store_error(&error))? else { return Ok(false) };
    Ok(reader.decode_version(object.kind, &entry.value, previous_revision)?.as_ref().is_some_and(is_visible_match))
}

/// Returns the name of the cluster that an object is in. Without a `version` (the object was deleted or hidden from the
/// caller), returns a cluster that the object was in and that the caller can see.
fn object_cluster(model: &Model, object: &AuditedObject, version: Option<&ObjectSnapshot>) -> Option<String> {
    let id = match version.map(|version| version.scope) {
        Some(AccessScope::Cluster(cluster)) => Some(cluster),
        Some(AccessScope::Shared | AccessScope::Unplaced) => None,
        None => object.clusters.iter().copied().find(|cluster| model.is_visible(AccessScope::Cluster(*cluster))),
    };
    let deleted_name = || (object.kind == Kind::Cluster).then(|| object.name.clone());
    cluster_name(model, id?).or_else(deleted_name)
}

fn cluster_name(model: &Model, cluster: ClusterId) -> Option<String> {
    model.clusters.get(cluster.0).and_then(|cluster| ClusterSpec::name_text(&cluster.meta.name))
}

/// An object at one revision of the store, with the fields that its authors set.
struct ObjectSnapshot {
    body: Value,
    /// The place of the object at the revision: in a cluster, shared by all clusters, or in none.
    scope: AccessScope,
    /// True if the selector matches the object, or if there is no selector. The object's own labels are those of the
    /// revision. Its inherited and reported labels are the present ones. Terms about labels that the host of a deleted
    /// node reported, or that a rule or the host filled, count as met.
    is_selected: bool,
}

struct VersionReader<'a> {
    api: &'a Api,
    /// The fleet as the caller sees it.
    model: Arc<Model>,
    /// The whole fleet.
    full_model: Arc<Model>,
    /// The selector of the request.
    selector: Option<&'a Selector>,
}

impl VersionReader<'_> {
    /// Decodes a stored version of an object. Returns `None` for a kind that does not implement [`ApiResource`], such
    /// as principals. Events do not show the content of these objects.
    fn decode_version(&self, kind: Kind, value: &[u8], written: Revision) -> Result<Option<ObjectSnapshot>, ApiError> {
        match kind {
            Kind::Release => self.decode_object::<ReleaseSpec>(value, written).map(Some),
            Kind::ClusterTemplate => self.decode_object::<ClusterTemplateSpec>(value, written).map(Some),
            Kind::Cluster => self.decode_object::<ClusterSpec>(value, written).map(Some),
            Kind::NodeGroup => self.decode_object::<NodeGroupSpec>(value, written).map(Some),
            Kind::Node => self.decode_object::<NodeSpec>(value, written).map(Some),
            Kind::Allocation => self.decode_object::<AllocationSpec>(value, written).map(Some),
            Kind::Namespace => self.decode_object::<NamespaceSpec>(value, written).map(Some),
            Kind::InspectionRule => self.decode_object::<InspectionRuleSpec>(value, written).map(Some),
            Kind::ReleaseTags | Kind::Primary | Kind::Revision | Kind::Secret | Kind::Expectation | Kind::Principal => Ok(None),
        }
    }

    /// Decodes an object of one kind, as it was at the revision `written`.
    fn decode_object<S: ApiResource>(&self, value: &[u8], written: Revision) -> Result<ObjectSnapshot, ApiError> {
        let mut object: Object<S> = codec::decode(value).map_err(|error| damaged_record(&error))?;
        object.meta.resource_version = written.get();
        let names = ModelNames::new(&self.model, &self.api.traits);
        let mut body = changes::past_authored_fields(&names, &self.model, &object);
        // If the object is sensitive now, its sensitive fields are hidden, even if they were visible at the revision. A
        // deleted object could have become sensitive since, so its sensitive fields are hidden too.
        if S::index(&self.full_model).get(object.meta.uuid).is_none_or(|current| current.spec.is_sensitive()) {
            changes::redact::<S>(&mut body);
        }
        if let Some(body) = body.as_object_mut() {
            view::add_meta(body, &object.meta);
        }
        let is_selected = self.selector.is_none_or(|selector| S::is_selected(&self.full_model, &object, selector));
        Ok(ObjectSnapshot { body, scope: S::access_scope(&self.full_model, &object), is_selected })
    }
}
