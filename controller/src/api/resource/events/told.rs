//! What a client is told: of each object of a commit one event, and of each node where it stands.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::access::Place;
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec, Node,
    NodeGroupSpec, NodeSpec, Object, ReleaseSpec,
};
use stemma_core::selector::Selector;
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::super::audit::Seen;
use super::super::objects::Shown;
use super::super::{changes, state, view};
use super::Filter;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::audit::{Action, AuditEvent, AuditRecord, AuditedObject};
use crate::records::{codec, key};
use crate::registry::names::ModelNames;
use crate::registry::{damaged, store_error};
use crate::status::NodeStatus;
use crate::store::{Change, EventKind, Revision};

/// Whether somebody made it: what hosts say has no audit event.
pub(super) fn is_commit(change: &Change) -> bool {
    change.events.iter().any(|event| event.key.starts_with(key::AUDIT.as_bytes()))
}

/// The events of a commit, as text; the last one has the id.
///
/// # Errors
/// What the store says.
pub(super) async fn objects(api: Api, filter: Arc<Filter>, change: Arc<Change>) -> Result<String, ApiError> {
    let Some(commit) = commit(&change)? else { return Ok(String::new()) };
    let selector = filter.selector.as_ref();
    let reader = Reader { model: api.model(), whole: api.cache().model(), api: &api, selector };
    let seen = Seen::of(&reader.model);
    let mut told = Vec::new();
    for one in commit.objects.iter().filter(|one| one.action != Action::Unchanged) {
        if !filter.takes(one.kind) || !seen.showed(one) {
            continue;
        }
        let image = match stored(&change, one) {
            Some(value) => reader.image(one.kind, value, change.revision)?,
            None => None,
        };
        // An object that the client may no longer see is told of without its new content, and the selector does not see that content.
        let image = image.filter(|image| reader.model.sees(image.place));
        if !selects(&reader, one, image.as_ref()).await? {
            continue;
        }
        told.push(json!({
            "revision": change.revision.get(), "at": view::time(commit.at), "kind": one.kind.word(), "uuid": one.uuid, "name": seen.name(one),
            "cluster": cluster(&reader.model, one, image.as_ref()), "action": one.action,
            "object": image.map(|image| image.body),
        }));
    }
    let mut text = String::new();
    for (n, data) in told.iter().enumerate() {
        if n + 1 == told.len() {
            let _infallible = writeln!(text, "id: {}", change.revision);
        }
        let _infallible = write!(text, "event: object\ndata: {data}\n\n");
    }
    Ok(text)
}

/// Where these nodes stand, as text.
pub(super) fn statuses(api: &Api, filter: &Filter, nodes: &[Uuid]) -> String {
    let model = api.model();
    let mut text = String::new();
    for node in nodes.iter().filter_map(|node| model.nodes.get(*node)) {
        let Some(NodeStatus { status, liveness }) = stands(api, &model, node) else { continue };
        if filter.selector.as_ref().is_some_and(|selector| !model.fleet.selects(node, selector)) {
            continue;
        }
        let cluster = model.fleet.cluster_of_node(node.id()).and_then(|cluster| name_of(&model, cluster));
        let data = json!({
            "kind": Kind::Node.word(), "uuid": node.meta.uuid, "name": NodeSpec::name_text(&node.meta.name),
            "cluster": cluster, "state": status.state, "state_reason": status.reason, "connection": liveness.name(),
        });
        let _infallible = write!(text, "event: status\ndata: {data}\n\n");
    }
    text
}

/// Where a node stands as of the last pass; where that is behind what whoever asks may have written, as of the model.
fn stands(api: &Api, model: &Model, node: &Node) -> Option<NodeStatus> {
    let desired = api.desired.as_ref()?;
    if !api.is_behind {
        return desired.status().get(node.meta.uuid);
    }
    let facts = state::facts_of(api, model, node, &model.resolve(node.meta.uuid));
    Some(NodeStatus { status: facts.status(), liveness: facts.liveness })
}

fn commit(change: &Change) -> Result<Option<AuditEvent>, ApiError> {
    let audit = change.events.iter().find(|event| event.key.starts_with(key::AUDIT.as_bytes()));
    let Some(EventKind::Put { value, .. }) = audit.map(|event| &event.kind) else { return Ok(None) };
    match codec::decode(value).map_err(|error| damaged(&error))? {
        AuditRecord::Commit(event) => Ok(Some(event)),
        AuditRecord::Refusal(_) => Ok(None),
    }
}

/// What a commit stored of an object; nothing of one that it took away.
fn stored<'a>(change: &'a Change, one: &AuditedObject) -> Option<&'a [u8]> {
    let key = key::object(one.kind, one.uuid);
    change.events.iter().find(|event| event.key == key.as_bytes()).and_then(|event| match &event.kind {
        EventKind::Put { value, .. } => Some(&value[..]),
        EventKind::Delete => None,
    })
}

/// Whether an object is selected by its labels: by those that it has, or by those that it had. So whoever watches hears that it goes.
async fn selects(reader: &Reader<'_>, one: &AuditedObject, now: Option<&Image>) -> Result<bool, ApiError> {
    if reader.selector.is_none() {
        return Ok(true);
    }
    let is_selected = |image: &Image| reader.model.sees(image.place) && image.is_selected;
    if now.is_some_and(is_selected) {
        return Ok(true);
    }
    let Some(before) = one.before.map(Revision::new) else { return Ok(false) };
    let key = [key::history(one.kind, one.uuid).as_bytes(), &before.to_key()].concat();
    let snapshot = reader.api.registry.store().snapshot().await.map_err(|error| store_error(&error))?;
    let Some(entry) = snapshot.get(&key).await.map_err(|error| store_error(&error))? else { return Ok(false) };
    Ok(reader.image(one.kind, &entry.value, before)?.as_ref().is_some_and(is_selected))
}

/// The name of the cluster that an object stands in as of its image, or stood in before it was taken away.
fn cluster(model: &Model, one: &AuditedObject, image: Option<&Image>) -> Option<String> {
    let id = match image.map(|image| image.place) {
        Some(Place::Cluster(cluster)) => Some(cluster),
        Some(Place::Shared | Place::Nowhere) => None,
        None => one.clusters.iter().copied().find(|cluster| model.sees(Place::Cluster(*cluster))),
    };
    let gone = || (one.kind == Kind::Cluster).then(|| one.name.clone());
    name_of(model, id?).or_else(gone)
}

fn name_of(model: &Model, cluster: ClusterId) -> Option<String> {
    model.clusters.get(cluster.0).and_then(|cluster| ClusterSpec::name_text(&cluster.meta.name))
}

/// An object as its authors said it at one revision.
struct Image {
    body: Value,
    /// Where it stood.
    place: Place,
    /// Whether it is selected, with what is inherited and reported now.
    is_selected: bool,
}

/// What reads objects as they were.
struct Reader<'a> {
    api: &'a Api,
    /// The fleet as whoever asks sees it.
    model: Arc<Model>,
    /// All of it.
    whole: Arc<Model>,
    /// By what objects are selected.
    selector: Option<&'a Selector>,
}

impl Reader<'_> {
    /// An object of this kind; none of a kind that has no body of its own, or one that not everyone reads.
    fn image(&self, kind: Kind, value: &[u8], written: Revision) -> Result<Option<Image>, ApiError> {
        match kind {
            Kind::Release => self.read::<ReleaseSpec>(value, written).map(Some),
            Kind::ClusterTemplate => self.read::<ClusterTemplateSpec>(value, written).map(Some),
            Kind::Cluster => self.read::<ClusterSpec>(value, written).map(Some),
            Kind::NodeGroup => self.read::<NodeGroupSpec>(value, written).map(Some),
            Kind::Node => self.read::<NodeSpec>(value, written).map(Some),
            Kind::Allocation => self.read::<AllocationSpec>(value, written).map(Some),
            Kind::Namespace => self.read::<NamespaceSpec>(value, written).map(Some),
            Kind::InspectionRule => self.read::<InspectionRuleSpec>(value, written).map(Some),
            Kind::ReleaseTags | Kind::Primary | Kind::Revision | Kind::Secret | Kind::Expectation | Kind::Principal => {
                Ok(None)
            }
        }
    }

    fn read<S: Shown>(&self, value: &[u8], written: Revision) -> Result<Image, ApiError> {
        let mut object: Object<S> = codec::decode(value).map_err(|error| damaged(&error))?;
        object.meta.resource_version = written.get();
        let names = ModelNames::new(&self.model, &self.api.traits);
        let mut body = changes::said_then(&names, &self.model, &object);
        // What is shown to nobody now was shown then; of one that is gone it is not known.
        if S::shelf(&self.whole).get(object.meta.uuid).is_none_or(|now| now.spec.is_veiled()) {
            changes::veil::<S>(&mut body);
        }
        if let Some(body) = body.as_object_mut() {
            view::meta(body, &object.meta);
        }
        let is_selected = self.selector.is_none_or(|selector| S::is_selected(&self.whole, &object, selector));
        Ok(Image { body, place: S::place(&self.whole, &object), is_selected })
    }
}
