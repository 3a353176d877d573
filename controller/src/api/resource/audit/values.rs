//! The changes of one object by a write: each field with its value before and after.
//!
//! The values are read from the images of the object: the versions that the history stores. So no value is stored
//! twice, and the audit entry of a large write stays small. An image shows the caller what the object itself would
//! show. If the history no longer has an image, the audit states this. An object that a value refers to has the name
//! that it had at the time of the write ([`super::names`]).

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

/// Maximum number of objects of one entry whose stored versions are read to show their changes.
const MAX_OBJECTS: usize = 100;
/// Maximum number of changes shown for one object.
const MAX_CHANGES: usize = 100;
/// Size of the stored versions of objects, in bytes, after which no further object of an entry is read.
const MAX_ENTRY_BYTES: usize = 8 * 1024 * 1024;
/// Size of the stored versions of objects, in bytes, after which no further entry of a page is read.
const MAX_PAGE_BYTES: usize = 32 * 1024 * 1024;

/// The changes of one object by a write, or the reason why they are omitted.
pub(super) enum AuditedChanges {
    /// Each changed field, as `{"field", "before", "after"}`, or each changed owner if no value differs. If `before` or
    /// `after` is missing, the field was at its default or did not exist at that time. A field whose values are hidden
    /// has `sensitive` instead of them. The last of too many changes counts the others.
    Changes(Vec<Value>),
    /// The changes are not shown.
    Omitted(OmitReason),
}

/// The reason why changes are omitted.
#[derive(Clone, Copy)]
pub(super) enum OmitReason {
    /// The request selects another object of the same write.
    NotRequested,
    /// The history no longer has the object's version before or after the write.
    NotRetained,
    /// The caller cannot see one of the two versions, or the API shows no objects of this kind.
    NotVisible,
    /// The objects of the entry that were read before are too many or too large.
    TooManyObjects,
}

/// The encoded versions of an object before and after a write. A new object has no version before the write, and a
/// deleted object has none after it.
struct VersionPair {
    before: Option<Bytes>,
    after: Option<Bytes>,
}

/// The object before and after a write. `None` if it did not exist then.
type ObjectPair<S> = [Option<Object<S>>; 2];

/// The reader of the changes of objects for one page of the audit.
pub(super) struct ChangeReader<'a> {
    api: &'a Api,
    /// The fleet as the caller sees it.
    model: &'a Model,
    /// The whole fleet.
    full_model: Arc<Model>,
    snapshot: Box<dyn Snapshot>,
    names: NameReader<'a>,
    /// Size of the stored versions that were read for the page so far, in bytes.
    page_bytes: usize,
    /// Size of the stored versions that were read for the current entry so far, in bytes.
    entry_bytes: usize,
    /// Number of objects of the current entry whose changes were read so far.
    entry_objects: usize,
}

impl AuditedChanges {
    /// Adds the fields `changes` and `changes_left_out` (the reason) to the row of an object. One of them is `null`.
    pub(super) fn write_into(self, object: &mut Value) {
        let (changes, reason) = match self {
            Self::Changes(changes) => (changes.into(), Value::Null),
            Self::Omitted(reason) => (Value::Null, reason.as_str().into()),
        };
        object["changes"] = changes;
        object["changes_left_out"] = reason;
    }
}

impl OmitReason {
    /// Returns the reason as the field `changes_left_out` shows it.
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

    /// Resets the counters of the current entry at the start of an entry. The counter of the page continues.
    pub(super) fn begin_entry(&mut self) {
        self.entry_bytes = 0;
        self.entry_objects = 0;
    }

    /// Returns the changes of an object by the write of this revision.
    ///
    /// # Errors
    /// Fails if the store fails or a stored version cannot be decoded.
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
        match self.read_versions(object, written).await? {
            Some(versions) => self.compare_versions(object, &versions, written).await,
            None => Ok(AuditedChanges::Omitted(OmitReason::NotRetained)),
        }
    }

    /// Returns whether the caller could see the object before and after the write, as far as the entry shows. For a
    /// caller bound to a cluster, it must be of a shared kind ([`Kind::is_shared`]) or only in that cluster.
    fn is_visible_throughout(&self, object: &AuditedObject) -> bool {
        let Some(cluster) = self.model.visible_cluster else { return true };
        object.kind.is_shared() || (object.left.is_none() && object.clusters.iter().eq([&cluster]))
    }

    /// Reads the versions of an object before and after the write. Returns `None` if the history no longer has a
    /// version that the entry refers to.
    async fn read_versions(&mut self, object: &AuditedObject, written: Revision) -> Result<Option<VersionPair>, ApiError> {
        let before = match object.before {
            Some(revision) => self.read_version(object, Revision::new(revision)).await?,
            None => None,
        };
        let exists_after = object.action != Action::Deleted;
        let after = if exists_after { self.read_version(object, written).await? } else { None };
        let is_complete = before.is_some() == object.before.is_some() && after.is_some() == exists_after;
        Ok(is_complete.then_some(VersionPair { before, after }))
    }

    /// Reads the version of an object that a write of this revision stored. Counts its bytes.
    async fn read_version(&mut self, object: &AuditedObject, written: Revision) -> Result<Option<Bytes>, ApiError> {
        let key = [key::history(object.kind, object.uuid).as_bytes(), &written.to_key()].concat();
        let entry = self.snapshot.get(&key).await.map_err(|error| store_error(&error))?;
        let version = entry.map(|entry| entry.value);
        self.count_bytes(version.as_ref().map_or(0, Bytes::len));
        Ok(version)
    }

    /// Adds to the number of bytes that were read for the page and for the entry.
    fn count_bytes(&mut self, bytes: usize) {
        self.entry_bytes += bytes;
        self.page_bytes += bytes;
    }

    /// Compares two versions of an object by its kind. Kinds that are reserved for a later version have no changes.
    async fn compare_versions(
        &mut self,
        object: &AuditedObject,
        versions: &VersionPair,
        written: Revision,
    ) -> Result<AuditedChanges, ApiError> {
        match object.kind {
            Kind::Release => self.compare_resource::<ReleaseSpec>(versions, written).await,
            Kind::ClusterTemplate => self.compare_resource::<ClusterTemplateSpec>(versions, written).await,
            Kind::Cluster => self.compare_resource::<ClusterSpec>(versions, written).await,
            Kind::NodeGroup => self.compare_resource::<NodeGroupSpec>(versions, written).await,
            Kind::Node => self.compare_resource::<NodeSpec>(versions, written).await,
            Kind::Allocation => self.compare_resource::<AllocationSpec>(versions, written).await,
            Kind::Namespace => self.compare_resource::<NamespaceSpec>(versions, written).await,
            Kind::InspectionRule => self.compare_resource::<InspectionRuleSpec>(versions, written).await,
            Kind::ReleaseTags => self.compare_plain::<ReleaseTagsSpec>(versions, written, tags_json).await,
            Kind::Primary => self.compare_plain::<PrimarySpec>(versions, written, primary_json).await,
            Kind::Principal => self.compare_plain::<PrincipalSpec>(versions, written, principal_json).await,
            Kind::Revision | Kind::Secret | Kind::Expectation => Ok(AuditedChanges::Omitted(OmitReason::NotVisible)),
        }
    }

    /// Compares two versions of an object of a kind with [`ApiResource`], by the fields that its authors set.
    async fn compare_resource<S: ApiResource + AuditReference>(
        &mut self,
        versions: &VersionPair,
        written: Revision,
    ) -> Result<AuditedChanges, ApiError> {
        let Some(pair) = self.read_pair::<S>(versions)? else {
            return Ok(AuditedChanges::Omitted(OmitReason::NotVisible));
        };
        let names = self.past_names(&pair, written).await?;
        let [before, after] = pair.each_ref().map(Option::as_ref);
        Ok(AuditedChanges::Changes(truncate(self.field_changes(before, after, &names))))
    }

    /// Compares two versions of an object of a kind without [`ApiResource`], by the JSON that `render` returns.
    async fn compare_plain<S: AuditReference>(
        &mut self,
        versions: &VersionPair,
        written: Revision,
        render: fn(&Object<S>, &PastNames) -> Value,
    ) -> Result<AuditedChanges, ApiError> {
        let Some(pair) = self.read_pair::<S>(versions)? else {
            return Ok(AuditedChanges::Omitted(OmitReason::NotVisible));
        };
        let names = self.past_names(&pair, written).await?;
        let to_json = |object: &Object<S>| render(object, &names);
        let [old, new] = pair.each_ref().map(|object| object.as_ref().map_or_else(empty_json, &to_json));
        Ok(AuditedChanges::Changes(truncate(diff(&old, &new).into_iter().map(change_with_values).collect())))
    }

    /// Decodes the two versions of an object. Returns `None` if one of them is in a cluster that the caller cannot see.
    fn read_pair<S: Resource>(&self, versions: &VersionPair) -> Result<Option<ObjectPair<S>>, ApiError> {
        let read = |version: Option<&Bytes>| {
            version.map(|value| codec::decode::<Object<S>>(value).map_err(|error| damaged_record(&error))).transpose()
        };
        let pair = [read(versions.before.as_ref())?, read(versions.after.as_ref())?];
        let may_see = pair.iter().flatten().all(|object| self.model.is_visible(S::access_scope(&self.full_model, object)));
        Ok(may_see.then_some(pair))
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

    /// Returns the fields whose values differ. If no value differs, returns the owners that differ. `before` or `after`
    /// is `None` for a created or deleted object. `past` has the names of referenced objects at the time of the write.
    fn field_changes<S: ApiResource>(
        &self,
        before: Option<&Object<S>>,
        after: Option<&Object<S>>,
        past: &PastNames,
    ) -> Vec<Value> {
        let names = ModelNames::with_past(self.model, &self.api.traits, past);
        // An object's sensitive fields are hidden if either version is sensitive or the object is sensitive now. An
        // author who marks an object as sensitive wants its older versions hidden too. A deleted object could have been
        // marked after this write, so its sensitive fields are hidden too.
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

/// Returns the names of the sensitive fields that differ between the two versions.
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

/// Returns the fields of a primary that the audit shows: the name of its node.
fn primary_json(primary: &Object<PrimarySpec>, names: &PastNames) -> Value {
    json!({"node": name_or_uuid(names, primary.spec.node.0)})
}

/// Returns the fields of a principal that the audit shows, with the name of its cluster.
fn principal_json(principal: &Object<PrincipalSpec>, names: &PastNames) -> Value {
    let cluster = principal.spec.cluster.map(|id| name_or_uuid(names, id.0));
    principals::principal_fields_with(&cluster.into(), principal)
}

/// Returns the name that an object had, or its uuid if the name is unknown.
fn name_or_uuid(names: &PastNames, uuid: Uuid) -> String {
    names.get(&uuid).cloned().unwrap_or_else(|| uuid.to_string())
}

/// Returns the JSON of an object that does not exist: it has no fields.
fn empty_json() -> Value {
    json!({})
}

/// Returns the fields that differ. Fields of sensitive tasks and secrets are listed without values. `is_whole` is true
/// for a created or deleted object. Empty lists and maps of a created or deleted object are omitted.
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

/// Returns the ids of the tasks that are sensitive before or after a write. `versions` are the object before and after
/// the write.
fn sensitive_tasks(versions: [&Value; 2]) -> BTreeSet<&str> {
    let tasks = versions.into_iter().filter_map(|version| version.get("tasks")?.as_array()).flatten();
    tasks.filter(|task| task["sensitive"] == true).filter_map(|task| task["id"].as_str()).collect()
}

/// Returns whether the value of a field must be hidden because of a sensitive task. `field` is a path such as
/// `tasks.ID.type`, and `sensitive` has the ids of sensitive tasks. A path below a sensitive task is hidden, except
/// `tasks.ID.sensitive`. The path `tasks` is the whole list, and is hidden if any task is sensitive.
fn is_sensitive_task_field(field: &str, sensitive: &BTreeSet<&str>) -> bool {
    let Some(task_field) = field.strip_prefix("tasks.") else { return field == "tasks" && !sensitive.is_empty() };
    let mut sensitive_parts = sensitive.iter().filter_map(|id| task_field.strip_prefix(*id)?.strip_prefix('.'));
    sensitive_parts.any(|part| part != "sensitive")
}

/// Returns whether a changed field is a secret in `driver_info`, or contains one. `driver_info` of a node has the
/// credentials of its BMC, as in Ironic.
fn is_secret_change(change: &FieldDiff) -> bool {
    let Some(below) = change.field.strip_prefix("driver_info") else { return false };
    let contains_secret = || below.split('.').any(is_secret_name) || change.old.iter().chain(&change.new).any(has_secret);
    (below.is_empty() || below.starts_with('.')) && contains_secret()
}

/// Returns whether a value contains a secret at any depth.
fn has_secret(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, below)| is_secret_name(name) || has_secret(below)),
        Value::Array(items) => items.iter().any(has_secret),
        _ => false,
    }
}

/// Returns whether a key of `driver_info` names a secret. As in Ironic, each key that contains `password` is a secret.
/// A key whose last word is `key`, `secret` or `token` is a secret too.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("password") || ["key", "secret", "token"].contains(&name.rsplit('_').next().unwrap_or_default())
}

/// Returns a change in the format of an audit entry. Long values are truncated.
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

/// Limits the number of changes of one object. If some are omitted, the last entry of the result is the number of
/// omitted changes.
fn truncate(mut changes: Vec<Value>) -> Vec<Value> {
    let omitted_count = changes.len().saturating_sub(MAX_CHANGES);
    if omitted_count > 0 {
        changes.truncate(MAX_CHANGES);
        changes.push(json!({"field": "…", "left_out": omitted_count}));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a task are hidden if the task is sensitive before or after the change. If a list with a sensitive
    /// task becomes empty, the value of the whole list is hidden.
    #[test]
    fn y09_compare_fields_omits_values_of_sensitive_tasks() {
        let task = |id: &str, command: &str| json!({"id": id, "parameters": {"command": command}});
        let sensitive_task = |id: &str, command: &str| json!({"id": id, "parameters": {"command": command}, "sensitive": true});
        let hidden_change = json!({"field": "tasks.a.parameters.command", "sensitive": true});
        for (old, new, expected) in [
            (task("a", "x"), task("a", "y"), json!([{"field": "tasks.a.parameters.command", "before": "x", "after": "y"}])),
            (sensitive_task("a", "x"), sensitive_task("a", "y"), json!([hidden_change])),
            (task("a", "x"), sensitive_task("a", "y"), json!([hidden_change, {"field": "tasks.a.sensitive", "after": true}])),
            (sensitive_task("a", "x"), task("a", "y"), json!([hidden_change, {"field": "tasks.a.sensitive", "before": true}])),
        ] {
            let changes = compare_fields(&json!({"tasks": [old]}), &json!({"tasks": [new]}), false);
            assert_eq!(Value::from(changes), expected);
        }
        let created = compare_fields(&json!({}), &json!({"tasks": [sensitive_task("a", "x")], "roles": {}}), true);
        let fields: Vec<&Value> = created.iter().map(|change| &change["field"]).collect();
        assert_eq!(fields, ["tasks.a.id", "tasks.a.parameters.command", "tasks.a.sensitive"]);
        assert!(!Value::from(created.clone()).to_string().contains("\"x\""), "{created:?}");
        let emptied = compare_fields(&json!({"tasks": [sensitive_task("a", "x")]}), &json!({"tasks": []}), false);
        assert_eq!(emptied, [json!({"field": "tasks", "sensitive": true})]);
    }

    #[test]
    fn y09_compare_fields_omits_values_of_driver_secrets() {
        let hidden = |field: &str| json!([{"field": field, "sensitive": true}]);
        let shown = |field: &str, value: Value| json!([{"field": field, "after": value}]);
        for (driver_info, expected) in [
            (json!({"ipmi_password": "x"}), hidden("driver_info.ipmi_password")),
            (json!({"IPMI_Password": "x"}), hidden("driver_info.IPMI_Password")),
            (json!({"snmp_auth_key": "x"}), hidden("driver_info.snmp_auth_key")),
            (json!({"client_secret": "x"}), hidden("driver_info.client_secret")),
            (json!({"api_token": "x"}), hidden("driver_info.api_token")),
            (json!({"passwords": {"a": "x"}}), hidden("driver_info.passwords.a")),
            (json!({"bmcs": [{"password": "x"}]}), hidden("driver_info.bmcs")),
            (json!([{"password": "x"}]), hidden("driver_info")),
            (json!({"ipmi_address": "x"}), shown("driver_info.ipmi_address", json!("x"))),
            (json!({"keyboard": "x"}), shown("driver_info.keyboard", json!("x"))),
            (json!({"bmcs": [{"address": "x"}]}), shown("driver_info.bmcs", json!([{"address": "x"}]))),
        ] {
            let changes = compare_fields(&json!({}), &json!({"driver_info": driver_info}), false);
            assert_eq!(Value::from(changes), expected, "{driver_info}");
        }
        let label_changes = compare_fields(&json!({}), &json!({"labels": {"password": "x"}}), false);
        assert_eq!(Value::from(label_changes), shown("labels.password", json!("x")), "a label is not in driver_info");
    }

    #[test]
    fn y09_truncate_counts_changes_beyond_limit() {
        let many = |count: usize| (0..count).map(|number| json!({"field": number})).collect::<Vec<_>>();
        assert_eq!(truncate(many(100)), many(100));
        let truncated = truncate(many(107));
        assert_eq!((truncated.len(), &truncated[100]), (101, &json!({"field": "…", "left_out": 7})));
    }
}
