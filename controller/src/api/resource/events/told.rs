//! What a client is told: of each object of a commit one event, and of each node where it stands.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::access::Place;
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, Kind, NamespaceSpec, NodeGroupSpec, NodeSpec, Object,
    ReleaseSpec,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::super::audit::Seen;
use super::super::objects::Shown;
use super::super::{changes, view};
use super::Filter;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::audit::{Action, AuditEvent, AuditRecord, AuditedObject};
use crate::records::{codec, key};
use crate::registry::store_error;
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
    let Some(commit) = commit(&change) else { return Ok(String::new()) };
    let model = api.model();
    let seen = Seen::of(&model, "");
    let mut told = Vec::new();
    for one in commit.objects.iter().filter(|one| one.action != Action::Unchanged) {
        if !filter.takes(one.kind) || !seen.shows(one) {
            continue;
        }
        let image = stored(&change, one).and_then(|value| image(&api, &model, one.kind, value, change.revision));
        if selects(&api, &model, &filter, one, image.as_ref()).await? {
            told.push(json!({
                "revision": change.revision.get(), "kind": one.kind.word(), "uuid": one.uuid, "name": one.name,
                "cluster": cluster(&model, one), "action": one.action, "object": image.map(|image| image.body),
            }));
        }
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
        let status = api.desired.as_ref().and_then(|desired| desired.status().get(node.meta.uuid));
        let Some(status) = status else { continue };
        let is_selected =
            |selector: &stemma_core::selector::Selector| selector.matches(&NodeSpec::labels(&model, node), &());
        if !filter.selector.as_ref().is_none_or(is_selected) {
            continue;
        }
        let cluster = model.cluster_of(node.meta.uuid).and_then(|cluster| name_of(&model, cluster));
        let data = json!({
            "kind": Kind::Node.word(), "uuid": node.meta.uuid, "name": NodeSpec::name_text(&node.meta.name),
            "cluster": cluster, "state": status.status.state, "state_reason": status.status.reason,
            "connection": status.liveness.name(),
        });
        let _infallible = write!(text, "event: status\ndata: {data}\n\n");
    }
    text
}

fn commit(change: &Change) -> Option<AuditEvent> {
    let audit = change.events.iter().find(|event| event.key.starts_with(key::AUDIT.as_bytes()))?;
    let EventKind::Put { value, .. } = &audit.kind else { return None };
    match codec::decode(value) {
        Ok(AuditRecord::Commit(event)) => Some(event),
        Ok(AuditRecord::Refusal(_)) | Err(_) => None,
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
async fn selects(
    api: &Api,
    model: &Model,
    filter: &Filter,
    one: &AuditedObject,
    now: Option<&Image>,
) -> Result<bool, ApiError> {
    let Some(selector) = &filter.selector else { return Ok(true) };
    let is_selected = |image: &Image| image.labels.as_ref().is_some_and(|labels| selector.matches(labels, &()));
    if now.is_some_and(is_selected) {
        return Ok(true);
    }
    let Some(before) = one.before.map(Revision::new) else { return Ok(false) };
    let key = [key::history(one.kind, one.uuid).as_bytes(), &before.to_key()].concat();
    let snapshot = api.registry.store().snapshot().await.map_err(|error| store_error(&error))?;
    let entry = snapshot.get(&key).await.map_err(|error| store_error(&error))?;
    let before = entry.and_then(|entry| image(api, model, one.kind, &entry.value, before));
    Ok(before.as_ref().is_some_and(is_selected))
}

/// The name of the cluster that an object stands in, or stood in.
fn cluster(model: &Model, one: &AuditedObject) -> Option<String> {
    let id = match model.place_of(one.kind, one.uuid) {
        Some(Place::Cluster(cluster)) => Some(cluster),
        Some(Place::Shared | Place::Nowhere) => None,
        None => one.clusters.first().copied(),
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
    /// The labels by which it is selected, which are inherited as of now; none of a kind without labels.
    labels: Option<BTreeMap<String, String>>,
}

fn image(api: &Api, model: &Model, kind: Kind, value: &[u8], written: Revision) -> Option<Image> {
    match kind {
        Kind::Release => read::<ReleaseSpec>(api, model, value, written),
        Kind::ClusterTemplate => read::<ClusterTemplateSpec>(api, model, value, written),
        Kind::Cluster => read::<ClusterSpec>(api, model, value, written),
        Kind::NodeGroup => read::<NodeGroupSpec>(api, model, value, written),
        Kind::Node => read::<NodeSpec>(api, model, value, written),
        Kind::Allocation => read::<AllocationSpec>(api, model, value, written),
        Kind::Namespace => read::<NamespaceSpec>(api, model, value, written),
        // They have no body of their own, or one that not everyone reads.
        _ => None,
    }
}

fn read<S: Shown>(api: &Api, model: &Model, value: &[u8], written: Revision) -> Option<Image> {
    let mut object: Object<S> = codec::decode(value).ok()?;
    object.meta.resource_version = written.get();
    let mut body = changes::said(api, model, &object);
    view::meta(body.as_object_mut()?, &object.meta);
    Some(Image { body, labels: S::LEVEL.map(|_| S::labels(model, &object)) })
}
