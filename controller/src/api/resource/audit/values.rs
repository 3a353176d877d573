//! What a write changed of an object: each field with its value before and after.
//!
//! Both are read from the images of the object that the history has, so nothing is stored twice, and a write of many objects makes its
//! entry no larger. An image tells whoever asks what the object itself would tell. Where the history has let go of one, the audit says so. Other
//! objects are called as they were when it was written ([`super::names`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use stemma_core::manifest::Fields;
use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, LevelId, NamespaceSpec, NodeGroupSpec,
    NodeSpec, Object, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::super::changes::{self, Change, differences, owners_that_differ};
use super::super::objects::Shown;
use super::super::principals;
use super::names::{Mentions, NameReader};
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::audit::{Action, AuditedObject};
use crate::records::{codec, key};
use crate::registry::names::{ModelNames, PastNames};
use crate::registry::{damaged, store_error};
use crate::store::{Revision, Snapshot};

/// Of how many objects of one entry the changes are told.
const MOST_OBJECTS: usize = 100;
/// How many changes of one object are told.
const MOST_CHANGES: usize = 100;
/// How many bytes of images are read for one entry, where they are of more than one object.
const MOST_OF_ENTRY: usize = 8 * 1024 * 1024;
/// How many bytes of images are read for one page, where it has more than one entry.
const MOST_OF_PAGE: usize = 32 * 1024 * 1024;

/// What a write changed of an object.
pub(super) enum Told {
    /// Each field, as `{"field", "before", "after"}`; a value that is not there is the default, or nothing.
    Changes(Vec<Value>),
    /// It is not told.
    LeftOut(Why),
}

/// Why changes are not told.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// Another object of the same write was asked for.
    NotAsked,
    /// The history has let go of what the object was.
    NotKept,
    /// What the object was is not shown to who asks.
    NotShown,
    /// The entry is of more objects than have room in it.
    NoRoom,
}

/// The images of an object before and after a write; none before it was made, and after it is gone.
struct Images {
    before: Option<Bytes>,
    after: Option<Bytes>,
}

/// The object of the images before and after.
type Pair<S> = [Option<Object<S>>; 2];

/// What reads changes for one page.
pub(super) struct Reader<'a> {
    api: &'a Api,
    /// The fleet as whoever asks sees it.
    model: &'a Model,
    /// All of it.
    whole: Arc<Model>,
    snapshot: Box<dyn Snapshot>,
    names: NameReader<'a>,
    /// How many bytes were read for the page.
    of_page: usize,
    /// How many for the entry.
    of_entry: usize,
    /// Of how many of the entry's objects.
    objects: usize,
}

impl Told {
    /// Puts it into the body of an object.
    pub(super) fn put_into(self, object: &mut Value) {
        let (changes, why) = match self {
            Self::Changes(changes) => (changes.into(), Value::Null),
            Self::LeftOut(why) => (Value::Null, why.word().into()),
        };
        object["changes"] = changes;
        object["changes_left_out"] = why;
    }
}

impl Why {
    const fn word(self) -> &'static str {
        match self {
            Self::NotAsked => "not_asked",
            Self::NotKept => "not_kept",
            Self::NotShown => "not_shown",
            Self::NoRoom => "no_room",
        }
    }
}

impl<'a> Reader<'a> {
    /// One for whoever sees this of the fleet.
    ///
    /// # Errors
    /// What the store says.
    pub(super) async fn new(api: &'a Api, model: &'a Model) -> Result<Self, ApiError> {
        let snapshot = api.registry.store().snapshot().await.map_err(|error| store_error(&error))?;
        let whole = api.cache().model();
        let names = NameReader::new(model, Arc::clone(&whole));
        Ok(Self { api, model, whole, snapshot, names, of_page: 0, of_entry: 0, objects: 0 })
    }

    /// Whether so much was read that the page ends.
    pub(super) const fn is_full(&self) -> bool {
        self.of_page >= MOST_OF_PAGE
    }

    /// Begins an entry.
    pub(super) fn begin_entry(&mut self) {
        self.of_entry = 0;
        self.objects = 0;
    }

    /// What the write of this revision changed of an object.
    ///
    /// # Errors
    /// What the store says; an image that cannot be read.
    pub(super) async fn changes(&mut self, one: &AuditedObject, written: Revision) -> Result<Told, ApiError> {
        if one.action == Action::Unchanged {
            return Ok(Told::Changes(Vec::new()));
        }
        if !self.stood_within(one) {
            return Ok(Told::LeftOut(Why::NotShown));
        }
        if self.objects == MOST_OBJECTS || self.of_entry >= MOST_OF_ENTRY {
            return Ok(Told::LeftOut(Why::NoRoom));
        }
        self.objects += 1;
        match self.images(one, written).await? {
            Some(images) => self.told(one, &images, written).await,
            None => Ok(Told::LeftOut(Why::NotKept)),
        }
    }

    /// Whether an object stood in what is seen by who asks before the write and after it, as far as the entry tells.
    fn stood_within(&self, one: &AuditedObject) -> bool {
        let Some(own) = self.model.within else { return true };
        one.kind.is_shared() || (one.left.is_none() && one.clusters.iter().eq([&own]))
    }

    /// The images of before and after; nothing where one of them is no longer kept.
    async fn images(&mut self, one: &AuditedObject, written: Revision) -> Result<Option<Images>, ApiError> {
        let before = match one.before {
            Some(revision) => self.image(one, Revision::new(revision)).await?,
            None => None,
        };
        let is_there = one.action != Action::Deleted;
        let after = if is_there { self.image(one, written).await? } else { None };
        let is_whole = before.is_some() == one.before.is_some() && after.is_some() == is_there;
        Ok(is_whole.then_some(Images { before, after }))
    }

    async fn image(&mut self, one: &AuditedObject, written: Revision) -> Result<Option<Bytes>, ApiError> {
        let key = [key::history(one.kind, one.uuid).as_bytes(), &written.to_key()].concat();
        let entry = self.snapshot.get(&key).await.map_err(|error| store_error(&error))?;
        let image = entry.map(|entry| entry.value);
        self.count(image.as_ref().map_or(0, Bytes::len));
        Ok(image)
    }

    /// Counts bytes of images that were read.
    fn count(&mut self, bytes: usize) {
        self.of_entry += bytes;
        self.of_page += bytes;
    }

    async fn told(&mut self, one: &AuditedObject, images: &Images, written: Revision) -> Result<Told, ApiError> {
        match one.kind {
            Kind::Release => self.shown::<ReleaseSpec>(images, written).await,
            Kind::ClusterTemplate => self.shown::<ClusterTemplateSpec>(images, written).await,
            Kind::Cluster => self.shown::<ClusterSpec>(images, written).await,
            Kind::NodeGroup => self.shown::<NodeGroupSpec>(images, written).await,
            Kind::Node => self.shown::<NodeSpec>(images, written).await,
            Kind::Allocation => self.shown::<AllocationSpec>(images, written).await,
            Kind::Namespace => self.shown::<NamespaceSpec>(images, written).await,
            Kind::InspectionRule => self.shown::<InspectionRuleSpec>(images, written).await,
            Kind::ReleaseTags => self.plain::<ReleaseTagsSpec>(images, written, said_of_tags).await,
            Kind::Primary => self.plain::<PrimarySpec>(images, written, said_of_primary).await,
            Kind::Principal => self.plain::<PrincipalSpec>(images, written, said_of_principal).await,
            Kind::Revision | Kind::Secret | Kind::Expectation => Ok(Told::LeftOut(Why::NotShown)),
        }
    }

    /// What differs of an object that has a body of its own.
    async fn shown<S: Shown + Mentions>(&mut self, images: &Images, written: Revision) -> Result<Told, ApiError> {
        let Some(pair) = self.read::<S>(images)? else { return Ok(Told::LeftOut(Why::NotShown)) };
        let names = self.names_then(&pair, written).await?;
        let [before, after] = pair.each_ref().map(Option::as_ref);
        Ok(Told::Changes(cut_short(self.between(before, after, &names))))
    }

    /// What differs of any other, by what is said of it.
    async fn plain<S: Mentions>(
        &mut self,
        images: &Images,
        written: Revision,
        said: fn(&Object<S>, &PastNames) -> Value,
    ) -> Result<Told, ApiError> {
        let Some(pair) = self.read::<S>(images)? else { return Ok(Told::LeftOut(Why::NotShown)) };
        let names = self.names_then(&pair, written).await?;
        let said = |object: &Object<S>| said(object, &names);
        let [old, new] = pair.each_ref().map(|object| object.as_ref().map_or_else(nothing, &said));
        Ok(Told::Changes(cut_short(differences(&old, &new).into_iter().map(with_values).collect())))
    }

    /// Reads the images; nothing where who asks does not see the places of both.
    fn read<S: Resource>(&self, images: &Images) -> Result<Option<Pair<S>>, ApiError> {
        let read = |image: Option<&Bytes>| {
            image.map(|value| codec::decode::<Object<S>>(value).map_err(|error| damaged(&error))).transpose()
        };
        let pair = [read(images.before.as_ref())?, read(images.after.as_ref())?];
        let is_seen = pair.iter().flatten().all(|object| self.model.sees(S::place(&self.whole, object)));
        Ok(is_seen.then_some(pair))
    }

    /// What the objects that these name were called when they were written, also those that the same write took away.
    async fn names_then<S: Mentions>(&mut self, pair: &Pair<S>, written: Revision) -> Result<PastNames, ApiError> {
        let named: Vec<LevelId> = pair.iter().flatten().filter_map(|object| object.spec.mention()).collect();
        let mut names = PastNames::new();
        for one in named {
            let name = self.names.name(self.snapshot.as_ref(), one, written).await?;
            names.extend(name.map(|name| (one.uuid(), name)));
            let bytes = self.names.take_bytes();
            self.count(bytes);
        }
        Ok(names)
    }

    /// The fields that differ; where none does, the owners that do.
    fn between<S: Shown>(&self, before: Option<&Object<S>>, after: Option<&Object<S>>, past: &PastNames) -> Vec<Value> {
        let names = ModelNames::of_past(self.model, &self.api.traits, past);
        // What is shown to nobody now was shown then; of one that is gone it is not known.
        let is_veiled_now =
            |object: &Object<S>| S::shelf(&self.whole).get(object.meta.uuid).is_none_or(|now| now.spec.is_veiled());
        let is_veiled = before.into_iter().chain(after).any(|object| is_veiled_now(object) || object.spec.is_veiled());
        let said = |object: &Object<S>| {
            let mut said = changes::said_then(&names, self.model, object);
            if is_veiled {
                changes::veil::<S>(&mut said);
            }
            said
        };
        let [old, new] = [before, after].map(|object| object.map_or_else(nothing, &said));
        let mut told = of_fields(&old, &new, before.is_none() || after.is_none());
        if is_veiled {
            told.extend(veiled_fields(before, after, &names).into_iter().map(without_values));
        }
        if let (true, Some(before), Some(after)) = (told.is_empty(), before, after) {
            let [old, new] = owners_that_differ(&before.spec, &after.spec);
            told.extend(differences(&old, &new).into_iter().map(with_values));
        }
        told
    }
}

/// The names of fields that differ and that are shown to nobody.
fn veiled_fields<S: Shown>(
    before: Option<&Object<S>>,
    after: Option<&Object<S>>,
    names: &ModelNames<'_>,
) -> Vec<&'static str> {
    let veiled = <S as Fields>::FIELDS.iter().filter(|field| S::VEILED.contains(&field.name));
    let differ = veiled.filter(|field| {
        let [old, new] =
            [before, after].map(|object| object.map_or(Value::Null, |object| (field.show)(&object.spec, names)));
        old != new
    });
    differ.map(|field| field.name).collect()
}

fn said_of_tags(tags: &Object<ReleaseTagsSpec>, _: &PastNames) -> Value {
    json!({"tags": tags.spec.tags})
}

fn said_of_primary(primary: &Object<PrimarySpec>, names: &PastNames) -> Value {
    json!({"node": name_or_uuid(names, primary.spec.node.0)})
}

fn said_of_principal(principal: &Object<PrincipalSpec>, names: &PastNames) -> Value {
    let cluster = principal.spec.cluster.map(|id| name_or_uuid(names, id.0));
    principals::fields_with(&cluster.into(), principal)
}

/// What an object was called; where that is not known, its uuid.
fn name_or_uuid(names: &PastNames, uuid: Uuid) -> String {
    names.get(&uuid).cloned().unwrap_or_else(|| uuid.to_string())
}

/// What is said of an object that is not there.
fn nothing() -> Value {
    json!({})
}

/// The fields that differ, those of sensitive tasks by name alone. Of an object that was made or deleted, empty ones are left out.
fn of_fields(old: &Value, new: &Value, is_whole: bool) -> Vec<Value> {
    let sensitive = sensitive_tasks([old, new]);
    let is_empty = |value: &Value| *value == json!([]) || *value == json!({});
    let is_told = |change: &Change| !(is_whole && change.old.iter().chain(&change.new).all(is_empty));
    let told = differences(old, new).into_iter().filter(is_told);
    let tell = |change: Change| {
        let is_veiled = is_of_sensitive(&change.field, &sensitive) || is_of_secret(&change);
        if is_veiled { without_values(&change.field) } else { with_values(change) }
    };
    told.map(tell).collect()
}

/// The ids of the tasks that are sensitive before a write or after it.
fn sensitive_tasks(said: [&Value; 2]) -> BTreeSet<&str> {
    let tasks = said.into_iter().filter_map(|said| said.get("tasks")?.as_array()).flatten();
    tasks.filter(|task| task["sensitive"] == true).filter_map(|task| task["id"].as_str()).collect()
}

/// Whether a field is one of a sensitive task, or of all tasks with one among them. That it is sensitive is told.
fn is_of_sensitive(field: &str, sensitive: &BTreeSet<&str>) -> bool {
    let Some(of_task) = field.strip_prefix("tasks.") else { return field == "tasks" && !sensitive.is_empty() };
    let mut rests = sensitive.iter().filter_map(|id| of_task.strip_prefix(*id)?.strip_prefix('.'));
    rests.any(|part| part != "sensitive")
}

/// Whether a change is of a secret of the driver's, or of a value of its with a secret in it.
fn is_of_secret(change: &Change) -> bool {
    let Some(below) = change.field.strip_prefix("driver_info") else { return false };
    let has_one = || below.split('.').any(names_secret) || change.old.iter().chain(&change.new).any(has_secret);
    (below.is_empty() || below.starts_with('.')) && has_one()
}

/// Whether a value has a secret in it, however deep.
fn has_secret(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, below)| names_secret(name) || has_secret(below)),
        Value::Array(items) => items.iter().any(has_secret),
        _ => false,
    }
}

/// Whether a key of the driver's is one of a secret: as Ironic, which masks each that has `password` in it, and keys, secrets and tokens.
fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("password") || ["key", "secret", "token"].contains(&name.rsplit('_').next().unwrap_or_default())
}

/// A change as an entry tells it.
fn with_values(change: Change) -> Value {
    let mut told = json!({"field": change.field});
    for (name, value) in [("before", change.old), ("after", change.new)] {
        if let Some(value) = value {
            told[name] = changes::cut(value);
        }
    }
    told
}

/// One whose values are shown to nobody.
fn without_values(field: &str) -> Value {
    json!({"field": field, "sensitive": true})
}

/// As many changes as one object is told with; those beyond are counted.
fn cut_short(mut told: Vec<Value>) -> Vec<Value> {
    let left_out = told.len().saturating_sub(MOST_CHANGES);
    if left_out > 0 {
        told.truncate(MOST_CHANGES);
        told.push(json!({"field": "…", "left_out": left_out}));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y09_fields_of_sensitive_tasks_are_named_without_values() {
        let task = |id: &str, command: &str| json!({"id": id, "parameters": {"command": command}});
        let hidden = |id: &str, command: &str| json!({"id": id, "parameters": {"command": command}, "sensitive": true});
        let named = json!({"field": "tasks.a.parameters.command", "sensitive": true});
        for (old, new, expected) in [
            (
                task("a", "x"),
                task("a", "y"),
                json!([{"field": "tasks.a.parameters.command", "before": "x", "after": "y"}]),
            ),
            (hidden("a", "x"), hidden("a", "y"), json!([named])),
            (task("a", "x"), hidden("a", "y"), json!([named, {"field": "tasks.a.sensitive", "after": true}])),
            (hidden("a", "x"), task("a", "y"), json!([named, {"field": "tasks.a.sensitive", "before": true}])),
        ] {
            let told = of_fields(&json!({"tasks": [old]}), &json!({"tasks": [new]}), false);
            assert_eq!(Value::from(told), expected);
        }
        let made = of_fields(&json!({}), &json!({"tasks": [hidden("a", "x")], "roles": {}}), true);
        let fields: Vec<&Value> = made.iter().map(|change| &change["field"]).collect();
        assert_eq!(fields, ["tasks.a.id", "tasks.a.parameters.command", "tasks.a.sensitive"]);
        assert!(!Value::from(made.clone()).to_string().contains("\"x\""), "{made:?}");
        let emptied = of_fields(&json!({"tasks": [hidden("a", "x")]}), &json!({"tasks": []}), false);
        assert_eq!(emptied, [json!({"field": "tasks", "sensitive": true})]);
    }

    #[test]
    fn y09_secrets_of_the_driver_are_named_without_values() {
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
            let made = of_fields(&json!({}), &json!({"driver_info": driver_info}), false);
            assert_eq!(Value::from(made), expected, "{driver_info}");
        }
        let label = of_fields(&json!({}), &json!({"labels": {"password": "x"}}), false);
        assert_eq!(Value::from(label), told("labels.password", json!("x")), "what is no driver's stands as it is");
    }

    #[test]
    fn y09_changes_beyond_the_most_are_counted() {
        let many = |count: usize| (0..count).map(|n| json!({"field": n})).collect::<Vec<_>>();
        assert_eq!(cut_short(many(100)), many(100));
        let cut = cut_short(many(107));
        assert_eq!((cut.len(), &cut[100]), (101, &json!({"field": "…", "left_out": 7})));
    }
}
