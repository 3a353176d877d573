//! What a request says of an object, and what becomes of the object.
//!
//! A POST, a patch and an apply differ in one thing: by which rule of ownership their fields and labels are laid
//! over those that are there. So a request is read into a [`Change`] first, whatever its form, and there is one
//! way from a change to the next spec.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use stemma_core::key::check_annotations;
use stemma_core::labels::{
    AnnotationLayer, BodyShape, FromJson, InvalidEntry, LabelLayer, Layer, ParameterLayer, Written, check_parameters,
    merge_after, read_merge, removing,
};
use stemma_core::object::{FieldOwners, Inherited, Timestamp};
use stemma_core::ownership::{Conflicts, Entry, Intent, Manager, OwnedMap, Owner, Said};
use stemma_wire::error::{ApiError, ErrorType};

use super::{COMMON, Fields, MAPS, get_all, invalid, set_any, unknown};
use crate::cache::Model;

/// By which rule a change is laid over what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The manager's whole intent; `force` takes what others own.
    Apply {
        /// Whether conflicts are overruled.
        force: bool,
    },
    /// A plain write: maps that are named are replaced whole, fields that are named are set.
    Update,
    /// A plain write of single keys: `null` takes away what is provided here.
    Merge,
}

/// What a request says of one object.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Its name, where the body has one.
    pub name: Option<Value>,
    /// Its fields; `null` is the default.
    pub fields: BTreeMap<String, Value>,
    /// `labels`, `annotations` and `parameters`, those that are named and not `null`.
    pub maps: BTreeMap<&'static str, Value>,
    /// `merge_labels`.
    pub merge: Option<bool>,
}

/// Who changes, when, and by which rule.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    /// Under which name keys and fields are owned.
    pub manager: &'a Manager,
    /// When.
    pub now: Timestamp,
    /// By which rule.
    pub rule: Rule,
    /// What `merge_labels` left out means.
    pub shape: BodyShape,
}

/// Reads a body's fields; one that the kind does not have is refused.
///
/// # Errors
/// The first field that is unknown, or `merge_labels` that is none.
pub fn read_body<S: Fields>(body: Map<String, Value>) -> Result<Change, ApiError> {
    let mut change = Change::default();
    let has_levels = S::HAS_LEVELS;
    for (name, value) in body {
        match name.as_str() {
            "name" => change.name = Some(value),
            "merge_labels" if has_levels => {
                let raw = to_raw_value(&value).map_err(|e| invalid("merge_labels", e))?;
                change.merge = read_merge(&raw).map_err(|e| invalid("merge_labels", e))?;
            }
            map if has_levels && MAPS.contains(&map) => {
                let map = MAPS.iter().copied().find(|known| *known == map).expect("it was found there just now");
                if !value.is_null() {
                    change.maps.insert(map, value);
                }
            }
            field if is_field::<S>(field) => drop(change.fields.insert(name, value)),
            other => return Err(unknown::<S>(other)),
        }
    }
    Ok(change)
}

fn is_field<S: Fields>(name: &str) -> bool {
    S::NAMES.contains(&name) || COMMON.contains(&name) || S::KEPT.iter().any(|kept| kept.name == name)
}

impl Change {
    /// Lays this over a spec.
    ///
    /// # Errors
    /// The first value that is refused; all conflicts of an apply.
    pub fn onto<S: Fields>(&self, spec: &S, model: &Model, author: &Author<'_>) -> Result<S, ApiError> {
        let mut next = spec.clone();
        self.fields_onto(&mut next, model, author)?;
        if let Some(inherited) = next.inherited_mut() {
            self.maps_onto(inherited, author)?;
        }
        next.check(model)?;
        Ok(next)
    }

    fn fields_onto<S: Fields>(&self, spec: &mut S, model: &Model, author: &Author<'_>) -> Result<(), ApiError> {
        let values = get_all(spec, model);
        let owned = owned_fields(&values, &spec.owners());
        let me = author.manager;
        let next = match author.rule {
            Rule::Apply { force } => {
                let intent = self.split::<S>(&values, author.rule)?.into_iter();
                let intent: Intent<String, Value> = intent.filter_map(|(name, said)| Some((name, said?))).collect();
                owned.apply(me, &intent, force).map_err(|conflicts| conflict("fields", &conflicts))?
            }
            Rule::Update | Rule::Merge => owned.patch(me, &self.split::<S>(&values, author.rule)?),
        };
        for (name, _) in owned.iter().filter(|(name, _)| next.get(name.as_str()).is_none()) {
            set_any(spec, model, name, None)?;
        }
        for (name, entry) in next.iter() {
            if owned.get(name.as_str()).is_none_or(|old| old.said != entry.said) {
                set_any(spec, model, name, entry.said.value().cloned())?;
            }
        }
        spec.set_owners(next.iter().map(|(name, entry)| (name.clone(), Arc::clone(&entry.owners))).collect());
        Ok(())
    }

    /// The changes by field and entry: a value, or `None` for its default.
    fn split<S: Fields>(
        &self,
        values: &Map<String, Value>,
        rule: Rule,
    ) -> Result<BTreeMap<String, Option<Said<Value>>>, ApiError> {
        let mut changes = BTreeMap::new();
        for (name, value) in &self.fields {
            if let Some(entries) = S::entries(name, value)? {
                // A list that is written whole takes away what it does not have; in an apply that is the rule's affair.
                let prefix = format!("{name}.");
                let gone =
                    values.keys().filter(|known| !matches!(rule, Rule::Apply { .. }) && known.starts_with(&prefix));
                changes.extend(gone.map(|known| (known.clone(), None)));
                changes.extend(entries.into_iter().map(|(entry, value)| (entry, Some(Said::Value(value)))));
            } else if value.is_null() {
                changes.insert(name.clone(), None);
            } else if rule == Rule::Merge {
                let merged = merged(values.get(name).cloned().unwrap_or(Value::Null), value);
                changes.insert(name.clone(), Some(Said::Value(merged)));
            } else {
                changes.insert(name.clone(), Some(Said::Value(value.clone())));
            }
        }
        Ok(changes)
    }

    fn maps_onto(&self, inherited: &mut Inherited, author: &Author<'_>) -> Result<(), ApiError> {
        // Within a merge patch of an object a map replaces the one that is there, as a PUT of it does.
        let rule = if author.rule == Rule::Merge { Rule::Update } else { author.rule };
        let author = Author { rule, ..*author };
        if let Some(labels) = self.maps.get("labels") {
            inherited.labels = write_labels(&inherited.labels, labels, &author)?;
        }
        let provides = inherited.labels.provided.is_some();
        inherited.labels.merge = merge_after(inherited.labels.merge, self.merge, provides, author.shape);
        if let Some(annotations) = self.maps.get("annotations") {
            inherited.annotations = write_annotations(&inherited.annotations, annotations, &author)?;
        }
        if let Some(parameters) = self.maps.get("parameters") {
            inherited.parameters = write_parameters(&inherited.parameters, parameters, &author)?;
        }
        Ok(())
    }
}

/// Writes a level's labels.
///
/// # Errors
/// The first entry that is none; too many; the conflicts of an apply.
pub fn write_labels(layer: &LabelLayer, map: &Value, author: &Author<'_>) -> Result<LabelLayer, ApiError> {
    let mut next = write_map("labels", ErrorType::LabelInvalid, layer, map, author)?;
    next.check().map_err(|e| ApiError::new(ErrorType::LabelInvalid, e.to_string()).field("labels"))?;
    next.merge = merge_after(layer.merge, None, true, author.shape);
    Ok(next)
}

/// Writes a level's annotations.
///
/// # Errors
/// As [`write_labels`].
pub fn write_annotations(
    layer: &AnnotationLayer,
    map: &Value,
    author: &Author<'_>,
) -> Result<AnnotationLayer, ApiError> {
    let next = write_map("annotations", ErrorType::FieldInvalid, layer, map, author)?;
    next.check().map_err(|e| invalid("annotations", e))?;
    let entries = next.provided.iter().flat_map(OwnedMap::iter);
    let texts: Vec<_> = entries.map(|(key, entry)| (&**key, entry.said.value().map_or("", |v| &**v))).collect();
    check_annotations(texts).map_err(|e| invalid("annotations", e))?;
    Ok(next)
}

/// Writes a level's parameters.
///
/// # Errors
/// As [`write_labels`].
pub fn write_parameters(layer: &ParameterLayer, map: &Value, author: &Author<'_>) -> Result<ParameterLayer, ApiError> {
    let next = write_map("parameters", ErrorType::FieldInvalid, layer, map, author)?;
    next.check().map_err(|e| invalid("parameters", e))?;
    if let Some(provided) = &next.provided {
        check_parameters(provided).map_err(|e| invalid("parameters", e))?;
    }
    Ok(next)
}

fn write_map<K, V>(
    name: &str,
    kind: ErrorType,
    layer: &Layer<K, V>,
    map: &Value,
    author: &Author<'_>,
) -> Result<Layer<K, V>, ApiError>
where
    K: Ord + Clone + fmt::Display + FromStr<Err: fmt::Display>,
    V: Clone + PartialEq + FromJson + serde::Serialize,
{
    let intent = read_map(name, kind, map)?;
    let empty = OwnedMap::default();
    let present = layer.provided.as_ref().unwrap_or(&empty);
    let mut next = match author.rule {
        Rule::Apply { force } => {
            present.apply(author.manager, &intent, force).map_err(|conflicts| conflict(name, &conflicts))?
        }
        Rule::Update => present.update(author.manager, &intent),
        Rule::Merge => present.patch(author.manager, &removing(intent)),
    };
    next.stamp(author.now.0);
    Ok(Layer { provided: Some(next), merge: layer.merge })
}

/// Reads a map of keys and values, or `null`s.
fn read_map<K, V>(name: &str, kind: ErrorType, map: &Value) -> Result<Intent<K, V>, ApiError>
where
    K: Ord + FromStr<Err: fmt::Display>,
    V: FromJson,
{
    let refused = |e: InvalidEntry| {
        let field = match &e {
            InvalidEntry::Value { key, .. } | InvalidEntry::Twice { key } => format!("{name}.{key}"),
            InvalidEntry::NotAMap { .. } | InvalidEntry::Key { .. } => name.to_owned(),
        };
        ApiError::new(kind, format!("Invalid input for {name}: {e}")).field(field)
    };
    let raw = to_raw_value(map).map_err(|e| invalid(name, e))?;
    Ok(Written::from_json(&raw).map_err(refused)?.map(|written| written.0).unwrap_or_default())
}

/// The 409 of an apply: every key that another owns with another value.
pub fn conflict<K: fmt::Display, V: serde::Serialize>(map: &str, conflicts: &Conflicts<K, V>) -> ApiError {
    let list: Vec<Value> = conflicts.0.iter().map(|one| {
        json!({"map": map, "key": one.key.to_string(), "manager": one.owner.to_string(), "value": one.said.value()})
    }).collect();
    ApiError::new(ErrorType::LabelConflict, conflicts.to_string()).field(map).extra("conflicts", list.into())
}

fn owned_fields(values: &Map<String, Value>, owners: &FieldOwners) -> OwnedMap<String, Value> {
    let nobody: Arc<[Owner]> = Arc::from([]);
    OwnedMap::from_entries(values.iter().map(|(name, value)| {
        let owners = owners.get(name).unwrap_or(&nobody);
        let entry = Entry { said: Said::Value(value.clone()), owners: Arc::clone(owners), since_ms: None };
        (name.clone(), entry)
    }))
}

/// RFC 7396: members are merged, `null` takes one away, anything else replaces.
fn merged(present: Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut object = match present {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    for (name, change) in changes {
        if change.is_null() {
            object.remove(name);
        } else {
            let before = object.remove(name).unwrap_or(Value::Null);
            object.insert(name.clone(), merged(before, change));
        }
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_merges_members() {
        for (present, patch, expected) in [
            (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null, "d": 3}}), json!({"a": {"c": 2, "d": 3}})),
            (json!({"a": [1]}), json!({"a": [2]}), json!({"a": [2]})),
            (json!(1), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            assert_eq!(merged(present, &patch), expected, "{patch}");
        }
    }
}
