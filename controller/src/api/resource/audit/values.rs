//! The changes of one object by a write: each field with its value before and after.
//!
//! The values are read from the images of the object in the history. So no value is stored twice, and the audit entry
//! of a large write stays small. An image shows the caller what the object itself would show. If the history no longer
//! has an image, the audit says so. Objects that a value refers to have the names that they had at the time of the
//! write ([`super::names`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use stemma_core::manifest::SpecFields;
use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, LevelId, NamespaceSpec, NodeGroupSpec, NodeSpec,
    Object, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::super::changes::{self, FieldDiff, diff, differing_owners};
use super::super::objects::ApiResource;
use super::super::principals;
use super::names::{AuditReference, NameReader};
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::audit::{Action, AuditedObject};
use crate::records::{codec, key};
use crate::registry::names::{ModelNames, PastNames};
use crate::registry::{damaged_record, store_error};
use crate::store::{Revision, Snapshot};

/// Maximum number of objects of one entry that are shown with their changes.
const MAX_OBJECTS: usize = 100;
/// Maximum number of changes shown for one object.
const MAX_CHANGES: usize = 100;
/// Maximum size of the images read for one entry, in bytes. One object is always read.
const MAX_ENTRY_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of the images read for one page, in bytes. One entry is always read.
const MAX_PAGE_BYTES: usize = 32 * 1024 * 1024;

/// The changes of one object by a write, or why they are omitted.
pub(super) enum AuditedChanges {
    /// Each changed field, as `{"field", "before", "after"}`. If `before` or `after` is missing, the field was at its
    /// default then, or did not exist.
    Changes(Vec<Value>),
    /// The changes are not shown.
    Omitted(OmitReason),
}

/// The reason why changes are omitted.
#[derive(Clone, Copy)]
pub(super) enum OmitReason {
    /// The request selects another object of the same write.
    NotRequested,
    /// The history no longer has an image of the object.
    NotRetained,
    /// The caller cannot see the object as it was.
    NotVisible,
    /// The entry has too many objects.
    TooManyObjects,
}

/// The images of an object before and after a write. A new object has no image before, and a deleted one none after.
struct ImagePair {
    before: Option<Bytes>,
    after: Option<Bytes>,
}

/// The object before and after a write.
type ObjectPair<S> = [Option<Object<S>>; 2];

/// Reads the changes for one page.
pub(super) struct ChangeReader<'a> {
    api: &'a Api,
    /// The fleet as the caller sees it.
    model: &'a Model,
    /// The whole fleet.
    full_model: Arc<Model>,
    snapshot: Box<dyn Snapshot>,
    names: NameReader<'a>,
    /// Bytes of images that were read for the page so far.
    page_bytes: usize,
    /// Bytes of images that were read for the current entry so far.
    entry_bytes: usize,
    /// Number of objects of the current entry whose changes were read so far.
    entry_objects: usize,
}

impl AuditedChanges {
    /// Adds the changes to the body of an object.
    pub(super) fn write_into(self, object: &mut Value) {
        let (changes, why) = match self {
            Self::Changes(changes) => (changes.into(), Value::Null),
            Self::Omitted(why) => (Value::Null, why.as_str().into()),
        };
        object["changes"] = changes;
        object["changes_left_out"] = why;
    }
}

impl OmitReason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NotRequested => "not_asked",
            Self::NotRetained => "not_kept",
            Self::NotVisible => "not_shown",
            Self::TooManyObjects => "no_room",
        }
    }
}

impl<'a> ChangeReader<'a> {
    /// Creates a reader for a caller that sees this model.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(super) async fn new(api: &'a Api, model: &'a Model) -> Result<Self, ApiError> {
        let snapshot = api.registry.store().snapshot().await.map_err(|error| store_error(&error))?;
        let full_model = api.cache().model();
        let names = NameReader::new(model, Arc::clone(&full_model));
        Ok(Self { api, model, full_model, snapshot, names, page_bytes: 0, entry_bytes: 0, entry_objects: 0 })
    }

    /// Returns whether the page ends because enough bytes were read.
    pub(super) const fn is_full(&self) -> bool {
        self.page_bytes >= MAX_PAGE_BYTES
    }

    /// Resets the counters at the start of an entry.
    pub(super) fn begin_entry(&mut self) {
        self.entry_bytes = 0;
        self.entry_objects = 0;
    }

    /// Returns the changes of an object by the write of this revision.
    ///
    /// # Errors
    /// Fails if the store fails or an image cannot be decoded.
    pub(super) async fn changes(&mut self, object: &AuditedObject, written: Revision) -> Result<AuditedChanges, ApiError> {
        if object.action == Action::Unchanged {
            return Ok(AuditedChanges::Changes(Vec::new()));
        }
        if !self.is_visible_throughout(object) {
            return Ok(AuditedChanges::Omitted(OmitReason::NotVisible));
        }
        if self.entry_objects == MAX_OBJECTS || self.entry_bytes >= MAX_ENTRY_BYTES {
            return Ok(AuditedChanges::Omitted(OmitReason::TooManyObjects));
        }
        self.entry_objects += 1;
        match self.images(object, written).await? {
            Some(images) => self.compare_images(object, &images, written).await,
            None => Ok(AuditedChanges::Omitted(OmitReason::NotRetained)),
        }
    }

    /// Returns whether the caller could see the object both before and after the write, as far as the entry shows.
    fn is_visible_throughout(&self, object: &AuditedObject) -> bool {
        let Some(cluster) = self.model.visible_cluster else { return true };
        object.kind.is_shared() || (object.left.is_none() && object.clusters.iter().eq([&cluster]))
    }

    /// Reads the images before and after the write. Returns `None` if the history no longer has one of them.
    async fn images(&mut self, object: &AuditedObject, written: Revision) -> Result<Option<ImagePair>, ApiError> {
        let before = match object.before {
            Some(revision) => self.image(object, Revision::new(revision)).await?,
            None => None,
        };
        let is_there = object.action != Action::Deleted;
        let after = if is_there { self.image(object, written).await? } else { None };
        let is_whole = before.is_some() == object.before.is_some() && after.is_some() == is_there;
        Ok(is_whole.then_some(ImagePair { before, after }))
    }

    async fn image(&mut self, object: &AuditedObject, written: Revision) -> Result<Option<Bytes>, ApiError> {
        let key = [key::history(object.kind, object.uuid).as_bytes(), &written.to_key()].concat();
        let entry = self.snapshot.get(&key).await.map_err(|error| store_error(&error))?;
        let image = entry.map(|entry| entry.value);
        self.count_bytes(image.as_ref().map_or(0, Bytes::len));
        Ok(image)
    }

    /// Adds to the number of image bytes read.
    fn count_bytes(&mut self, bytes: usize) {
        self.entry_bytes += bytes;
        self.page_bytes += bytes;
    }

    /// Compares the images of an object by its kind. Objects of internal kinds are not shown.
    async fn compare_images(
        &mut self,
        object: &AuditedObject,
        images: &ImagePair,
        written: Revision,
    ) -> Result<AuditedChanges, ApiError> {
        match object.kind {
            Kind::Release => self.compare_resource::<ReleaseSpec>(images, written).await,
            Kind::ClusterTemplate => self.compare_resource::<ClusterTemplateSpec>(images, written).await,
            Kind::Cluster => self.compare_resource::<ClusterSpec>(images, written).await,
            Kind::NodeGroup => self.compare_resource::<NodeGroupSpec>(images, written).await,
            Kind::Node => self.compare_resource::<NodeSpec>(images, written).await,
            Kind::Allocation => self.compare_resource::<AllocationSpec>(images, written).await,
            Kind::Namespace => self.compare_resource::<NamespaceSpec>(images, written).await,
            Kind::InspectionRule => self.compare_resource::<InspectionRuleSpec>(images, written).await,
            Kind::ReleaseTags => self.compare_plain::<ReleaseTagsSpec>(images, written, tags_json).await,
            Kind::Primary => self.compare_plain::<PrimarySpec>(images, written, primary_json).await,
            Kind::Principal => self.compare_plain::<PrincipalSpec>(images, written, principal_json).await,
            Kind::Revision | Kind::Secret | Kind::Expectation => Ok(AuditedChanges::Omitted(OmitReason::NotVisible)),
        }
    }

    /// Compares an object of a kind that has a body in the API.
    async fn compare_resource<S: ApiResource + AuditReference>(
        &mut self,
        images: &ImagePair,
        written: Revision,
    ) -> Result<AuditedChanges, ApiError> {
        let Some(pair) = self.read_pair::<S>(images)? else {
            return Ok(AuditedChanges::Omitted(OmitReason::NotVisible));
        };
        let names = self.past_names(&pair, written).await?;
        let [before, after] = pair.each_ref().map(Option::as_ref);
        Ok(AuditedChanges::Changes(truncate(self.field_changes(before, after, &names))))
    }

    /// Compares an object of any other kind, by the JSON that `render` makes of it.
    async fn compare_plain<S: AuditReference>(
        &mut self,
        images: &ImagePair,
        written: Revision,
        render: fn(&Object<S>, &PastNames) -> Value,
    ) -> Result<AuditedChanges, ApiError> {
        let Some(pair) = self.read_pair::<S>(images)? else {
            return Ok(AuditedChanges::Omitted(OmitReason::NotVisible));
        };
        let names = self.past_names(&pair, written).await?;
        let to_json = |object: &Object<S>| render(object, &names);
        let [old, new] = pair.each_ref().map(|object| object.as_ref().map_or_else(empty_json, &to_json));
        Ok(AuditedChanges::Changes(truncate(diff(&old, &new).into_iter().map(change_with_values).collect())))
    }

    /// Decodes the images. Returns `None` if the caller cannot see the object in one of them.
    fn read_pair<S: Resource>(&self, images: &ImagePair) -> Result<Option<ObjectPair<S>>, ApiError> {
        let read = |image: Option<&Bytes>| {
            image.map(|value| codec::decode::<Object<S>>(value).map_err(|error| damaged_record(&error))).transpose()
        };
        let pair = [read(images.before.as_ref())?, read(images.after.as_ref())?];
        let is_seen = pair.iter().flatten().all(|object| self.model.is_visible(S::access_scope(&self.full_model, object)));
        Ok(is_seen.then_some(pair))
    }

    /// Returns the names that the referenced objects had at the time of the write, including those that the same write
    /// deleted.
    async fn past_names<S: AuditReference>(&mut self, pair: &ObjectPair<S>, written: Revision) -> Result<PastNames, ApiError> {
        let references: Vec<LevelId> = pair.iter().flatten().filter_map(|object| object.spec.reference()).collect();
        let mut names = PastNames::new();
        for id in references {
            let name = self.names.name(self.snapshot.as_ref(), id, written).await?;
            names.extend(name.map(|name| (id.uuid(), name)));
            let bytes = self.names.take_bytes();
            self.count_bytes(bytes);
        }
        Ok(names)
    }

    /// Returns the fields whose values differ or, if there are none, the owners that differ. `past` has the names of
    /// referenced objects at the time of the write.
    fn field_changes<S: ApiResource>(
        &self,
        before: Option<&Object<S>>,
        after: Option<&Object<S>>,
        past: &PastNames,
    ) -> Vec<Value> {
        let names = ModelNames::with_past(self.model, &self.api.traits, past);
        // An object's sensitive fields are hidden if the object is sensitive in either image or is sensitive now: who
        // marks an object sensitive also means its past. A deleted object could have been marked since, so its
        // sensitive fields are hidden too.
        let is_veiled_now =
            |object: &Object<S>| S::index(&self.full_model).get(object.meta.uuid).is_none_or(|now| now.spec.is_sensitive());
        let is_veiled = before.into_iter().chain(after).any(|object| is_veiled_now(object) || object.spec.is_sensitive());
        let to_json = |object: &Object<S>| {
            let mut fields = changes::past_authored_fields(&names, self.model, object);
            if is_veiled {
                changes::redact::<S>(&mut fields);
            }
            fields
        };
        let [old, new] = [before, after].map(|object| object.map_or_else(empty_json, &to_json));
        let mut diffs = compare_fields(&old, &new, before.is_none() || after.is_none());
        if is_veiled {
            diffs.extend(sensitive_fields(before, after, &names).into_iter().map(change_without_values));
        }
        if let (true, Some(before), Some(after)) = (diffs.is_empty(), before, after) {
            let [old, new] = differing_owners(&before.spec, &after.spec);
            diffs.extend(diff(&old, &new).into_iter().map(change_with_values));
        }
        diffs
    }
}

/// Returns the names of the hidden fields that differ.
fn sensitive_fields<S: ApiResource>(
    before: Option<&Object<S>>,
    after: Option<&Object<S>>,
    names: &ModelNames<'_>,
) -> Vec<&'static str> {
    let veiled = <S as SpecFields>::FIELDS.iter().filter(|field| S::SENSITIVE_FIELDS.contains(&field.name));
    let differ = veiled.filter(|field| {
        let [old, new] = [before, after].map(|object| object.map_or(Value::Null, |object| (field.show)(&object.spec, names)));
        old != new
    });
    differ.map(|field| field.name).collect()
}

fn tags_json(tags: &Object<ReleaseTagsSpec>, _: &PastNames) -> Value {
    json!({"tags": tags.spec.tags})
}

fn primary_json(primary: &Object<PrimarySpec>, names: &PastNames) -> Value {
    json!({"node": name_or_uuid(names, primary.spec.node.0)})
}

fn principal_json(principal: &Object<PrincipalSpec>, names: &PastNames) -> Value {
    let cluster = principal.spec.cluster.map(|id| name_or_uuid(names, id.0));
    principals::principal_fields_with(&cluster.into(), principal)
}

/// Returns the name that an object had, or its uuid if the name is unknown.
fn name_or_uuid(names: &PastNames, uuid: Uuid) -> String {
    names.get(&uuid).cloned().unwrap_or_else(|| uuid.to_string())
}

/// The JSON of an object that does not exist.
fn empty_json() -> Value {
    json!({})
}

/// Returns the fields that differ. Fields of sensitive tasks and secrets are listed without values. `is_whole` is true
/// for a created or deleted object, whose empty fields are omitted.
fn compare_fields(old: &Value, new: &Value, is_whole: bool) -> Vec<Value> {
    let sensitive = sensitive_tasks([old, new]);
    let is_empty = |value: &Value| *value == json!([]) || *value == json!({});
    let is_shown = |change: &FieldDiff| !(is_whole && change.old.iter().chain(&change.new).all(is_empty));
    let shown = diff(old, new).into_iter().filter(is_shown);
    let to_json = |change: FieldDiff| {
        let is_veiled = is_sensitive_task_field(&change.field, &sensitive) || is_secret_change(&change);
        if is_veiled { change_without_values(&change.field) } else { change_with_values(change) }
    };
    shown.map(to_json).collect()
}

/// Returns the ids of the tasks that are sensitive before or after a write.
fn sensitive_tasks(versions: [&Value; 2]) -> BTreeSet<&str> {
    let tasks = versions.into_iter().filter_map(|said| said.get("tasks")?.as_array()).flatten();
    tasks.filter(|task| task["sensitive"] == true).filter_map(|task| task["id"].as_str()).collect()
}

/// Returns whether a field belongs to a sensitive task, or is the list of tasks with a sensitive one in it. The field
/// `sensitive` itself is shown.
fn is_sensitive_task_field(field: &str, sensitive: &BTreeSet<&str>) -> bool {
    let Some(task_field) = field.strip_prefix("tasks.") else { return field == "tasks" && !sensitive.is_empty() };
    let mut rests = sensitive.iter().filter_map(|id| task_field.strip_prefix(*id)?.strip_prefix('.'));
    rests.any(|part| part != "sensitive")
}

/// Returns whether a changed field is a secret in `driver_info`, or contains one.
fn is_secret_change(change: &FieldDiff) -> bool {
    let Some(below) = change.field.strip_prefix("driver_info") else { return false };
    let has_one = || below.split('.').any(is_secret_name) || change.old.iter().chain(&change.new).any(has_secret);
    (below.is_empty() || below.starts_with('.')) && has_one()
}

/// Returns whether a value contains a secret at any depth.
fn has_secret(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, below)| is_secret_name(name) || has_secret(below)),
        Value::Array(items) => items.iter().any(has_secret),
        _ => false,
    }
}

/// Returns whether a driver key names a secret. As in Ironic, these are all keys that contain `password`, and also
/// keys, secrets and tokens.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("password") || ["key", "secret", "token"].contains(&name.rsplit('_').next().unwrap_or_default())
}

/// Returns a change in the format of an audit entry.
fn change_with_values(change: FieldDiff) -> Value {
    let mut entry = json!({"field": change.field});
    for (name, value) in [("before", change.old), ("after", change.new)] {
        if let Some(value) = value {
            entry[name] = changes::truncate(value);
        }
    }
    entry
}

/// Returns a change whose values are hidden.
fn change_without_values(field: &str) -> Value {
    json!({"field": field, "sensitive": true})
}

/// Limits the number of changes of one object. If some are omitted, the last entry is their number.
fn truncate(mut changes: Vec<Value>) -> Vec<Value> {
    let left_out = changes.len().saturating_sub(MAX_CHANGES);
    if left_out > 0 {
        changes.truncate(MAX_CHANGES);
        changes.push(json!({"field": "…", "left_out": left_out}));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_compare_fields_omits_values_of_sensitive_tasks() {
        let task = |id: &str, command: &str| json!({"id": id, "parameters": {"command": command}});
        let hidden = |id: &str, command: &str| json!({"id": id, "parameters": {"command": command}, "sensitive": true});
        let named = json!({"field": "tasks.a.parameters.command", "sensitive": true});
        for (old, new, expected) in [
            (task("a", "x"), task("a", "y"), json!([{"field": "tasks.a.parameters.command", "before": "x", "after": "y"}])),
            (hidden("a", "x"), hidden("a", "y"), json!([named])),
            (task("a", "x"), hidden("a", "y"), json!([named, {"field": "tasks.a.sensitive", "after": true}])),
            (hidden("a", "x"), task("a", "y"), json!([named, {"field": "tasks.a.sensitive", "before": true}])),
        ] {
            let told = compare_fields(&json!({"tasks": [old]}), &json!({"tasks": [new]}), false);
            assert_eq!(Value::from(told), expected);
        }
        let made = compare_fields(&json!({}), &json!({"tasks": [hidden("a", "x")], "roles": {}}), true);
        let fields: Vec<&Value> = made.iter().map(|change| &change["field"]).collect();
        assert_eq!(fields, ["tasks.a.id", "tasks.a.parameters.command", "tasks.a.sensitive"]);
        assert!(!Value::from(made.clone()).to_string().contains("\"x\""), "{made:?}");
        let emptied = compare_fields(&json!({"tasks": [hidden("a", "x")]}), &json!({"tasks": []}), false);
        assert_eq!(emptied, [json!({"field": "tasks", "sensitive": true})]);
    }

    #[test]
    fn y09_compare_fields_omits_values_of_driver_secrets() {
        let hidden = |field: &str| json!([{"field": field, "sensitive": true}]);
        let told = |field: &str, value: Value| json!([{"field": field, "after": value}]);
        for (driver_info, expected) in [
            (json!({"ipmi_password": "x"}), hidden("driver_info.ipmi_password")),
            (json!({"IPMI_Password": "x"}), hidden("driver_info.IPMI_Password")),
            (json!({"snmp_auth_key": "x"}), hidden("driver_info.snmp_auth_key")),
            (json!({"client_secret": "x"}), hidden("driver_info.client_secret")),
            (json!({"api_token": "x"}), hidden("driver_info.api_token")),
            (json!({"passwords": {"a": "x"}}), hidden("driver_info.passwords.a")),
            (json!({"bmcs": [{"password": "x"}]}), hidden("driver_info.bmcs")),
            (json!([{"password": "x"}]), hidden("driver_info")),
            (json!({"ipmi_address": "x"}), told("driver_info.ipmi_address", json!("x"))),
            (json!({"keyboard": "x"}), told("driver_info.keyboard", json!("x"))),
            (json!({"bmcs": [{"address": "x"}]}), told("driver_info.bmcs", json!([{"address": "x"}]))),
        ] {
            let made = compare_fields(&json!({}), &json!({"driver_info": driver_info}), false);
            assert_eq!(Value::from(made), expected, "{driver_info}");
        }
        let label = compare_fields(&json!({}), &json!({"labels": {"password": "x"}}), false);
        assert_eq!(Value::from(label), told("labels.password", json!("x")), "what is not a driver's is unchanged");
    }

    #[test]
    fn y09_truncate_counts_changes_beyond_limit() {
        let many = |count: usize| (0..count).map(|n| json!({"field": n})).collect::<Vec<_>>();
        assert_eq!(truncate(many(100)), many(100));
        let cut = truncate(many(107));
        assert_eq!((cut.len(), &cut[100]), (101, &json!({"field": "…", "left_out": 7})));
    }
}
