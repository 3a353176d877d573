//! What is stored of an object. Its body counts nodes, fills in defaults and takes over from the levels above, and whoever writes an object
//! back must not take that for its author's word.

use std::fmt::Display;

use serde_json::{Map, Value, json};
use stemma_core::manifest::{Fields, MERGE_LABELS};
use stemma_core::ownership::OwnedSet;

use super::by_hand;
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::Request;
use crate::cache::Model;
use crate::registry::names::ModelNames;

/// The parameter that asks for it, and the field that has it.
const STORED: &str = "stored";

/// Adds to a body the fields of its object as they are stored, where the query asks for them.
///
/// # Errors
/// When the query does not say whether.
pub(super) fn add<S: Fields>(
    api: &Api,
    model: &Model,
    request: &Request,
    spec: &S,
    body: &mut Map<String, Value>,
) -> Result<(), BadQuery> {
    if request.query.flag(STORED)? == Some(true) {
        body.insert(STORED.to_owned(), fields(api, model, spec).into());
    }
    Ok(())
}

/// The fields that are not at their default, and of a node the traits and tags that its operators gave, with their owners. `merge_labels`,
/// which a body shows as false where it is open, is `null` where somebody left it so.
fn fields<S: Fields>(api: &Api, model: &Model, spec: &S) -> Map<String, Value> {
    let mut fields = shown_fields(api, model, spec);
    let is_open = spec.inherited_ref().is_some_and(|own| own.labels.merge.is_none());
    if is_open && spec.owners_ref().contains_key(MERGE_LABELS) {
        fields.insert(MERGE_LABELS.to_owned(), Value::Null);
    }
    if let Some(node) = spec.node_ref() {
        let traits = node.traits.members().map(ToString::to_string).collect::<Vec<_>>();
        // As labels that were given up, they are not there.
        if !traits.is_empty() {
            fields.insert("traits".to_owned(), json!(traits));
            fields.insert("trait_owners".to_owned(), owners(&node.traits).into());
        }
        let has_tags = node.tags.assigned.members().chain(node.tags.unassigned.members()).next().is_some();
        if let Some(tags) = by_hand::tags(spec).filter(|_| has_tags) {
            let of = json!({"assigned": owners(&node.tags.assigned), "unassigned": owners(&node.tags.unassigned)});
            fields.insert("tags".to_owned(), tags);
            fields.insert("tag_owners".to_owned(), of);
        }
    }
    fields
}

/// Who owns each member of a set.
fn owners<K: Ord + Clone + Display>(set: &OwnedSet<K>) -> Map<String, Value> {
    set.iter().map(|(member, entry)| (member.to_string(), json!(&*entry.owners))).collect()
}

/// The fields of a spec as a body would say them, those at their defaults left out.
pub(super) fn shown_fields<S: Fields>(api: &Api, model: &Model, spec: &S) -> Map<String, Value> {
    fields_of(spec, &ModelNames::new(model, &api.traits), &|_| true)
}

/// The wanted fields of a spec as a body would say them, those at their defaults left out.
pub(super) fn fields_of<S: Fields>(
    spec: &S,
    names: &ModelNames<'_>,
    wanted: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let is_veiled = |name: &str| spec.is_veiled() && S::VEILED.contains(&name);
    let shown = S::FIELDS.iter().filter(|field| wanted(field.name) && !is_veiled(field.name));
    let shown = shown.map(|field| (field.name.to_owned(), (field.show)(spec, names)));
    let mut fields: Map<String, Value> = shown.filter(|(_, value)| !value.is_null()).collect();
    if !S::EXTRA.is_empty() {
        fields.extend(spec.extra_ref().clone());
    }
    fields
}
