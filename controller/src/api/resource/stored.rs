//! The stored fields of an object, which the member `stored` of its body contains. The rest of the body also contains
//! counts of nodes, defaults and inherited values. A client that sends an edited object back must not mistake these for
//! values that an author set.

use std::fmt::Display;

use serde_json::{Map, Value, json};
use stemma_core::manifest::{MERGE_LABELS, SpecFields};
use stemma_core::ownership::OwnedSet;

use super::operator_tags;
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::registry::names::ModelNames;

/// The query parameter that adds the stored fields of an object (those that are not at their defaults) to the response,
/// and the name of the member of the body that contains them.
const STORED: &str = "stored";

/// Adds the stored fields of an object (those that are not at their defaults) to its body, if the query requests them.
///
/// # Errors
/// Fails if the query parameter is not a boolean.
pub(super) fn add_stored<S: SpecFields>(
    api: &Api,
    model: &Model,
    request: &HttpRequest,
    spec: &S,
    body: &mut Map<String, Value>,
) -> Result<(), BadQuery> {
    if request.query.flag(STORED)? == Some(true) {
        body.insert(STORED.to_owned(), stored_fields(api, model, spec).into());
    }
    Ok(())
}

/// Returns the stored fields of an object: those that are not at their defaults. For a node, these include the traits
/// and tags that operators set, with their owners. A manager can own `merge_labels` without a value. Then `stored` has
/// `null` for the field, while the rest of the body has `false`.
fn stored_fields<S: SpecFields>(api: &Api, model: &Model, spec: &S) -> Map<String, Value> {
    let mut fields = non_default_fields(api, model, spec);
    let has_no_merge_value = spec.inherited().is_some_and(|inherited| inherited.labels.merge.is_none());
    if has_no_merge_value && spec.owners().contains_key(MERGE_LABELS) {
        fields.insert(MERGE_LABELS.to_owned(), Value::Null);
    }
    if let Some(node) = spec.node() {
        let traits = node.traits.members().map(ToString::to_string).collect::<Vec<_>>();
        // An empty set of traits or tags is omitted, in the same way as empty labels.
        if !traits.is_empty() {
            fields.insert("traits".to_owned(), json!(traits));
            fields.insert("trait_owners".to_owned(), owners(&node.traits).into());
        }
        let has_tags = node.tags.assigned.members().chain(node.tags.unassigned.members()).next().is_some();
        if let Some(tags) = operator_tags::tags(spec).filter(|_| has_tags) {
            let tag_owners = json!({"assigned": owners(&node.tags.assigned), "unassigned": owners(&node.tags.unassigned)});
            fields.insert("tags".to_owned(), tags);
            fields.insert("tag_owners".to_owned(), tag_owners);
        }
    }
    fields
}

/// Returns the owners of each member of a set (each a manager and an operation), by member.
fn owners<K: Ord + Clone + Display>(set: &OwnedSet<K>) -> Map<String, Value> {
    set.iter().map(|(member, entry)| (member.to_string(), json!(&*entry.owners))).collect()
}

/// Returns all fields of a spec that are not at their defaults, in the form of a request body. Sensitive fields of a
/// sensitive object are omitted.
pub(super) fn non_default_fields<S: SpecFields>(api: &Api, model: &Model, spec: &S) -> Map<String, Value> {
    selected_fields(spec, &ModelNames::new(model, &api.traits), &|_| true)
}

/// Returns the fields of a spec for which `is_selected` is true and that are not at their defaults, in the form of a
/// request body. Sensitive fields of a sensitive object are omitted. Passthrough fields, which Stemma stores without
/// reading them, are all included.
pub(super) fn selected_fields<S: SpecFields>(
    spec: &S,
    names: &ModelNames<'_>,
    is_selected: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let is_hidden = |name: &str| spec.is_sensitive() && S::SENSITIVE_FIELDS.contains(&name);
    let visible_fields = S::FIELDS.iter().filter(|field| is_selected(field.name) && !is_hidden(field.name));
    let visible_fields = visible_fields.map(|field| (field.name.to_owned(), (field.show)(spec, names)));
    let mut fields: Map<String, Value> = visible_fields.filter(|(_, value)| !value.is_null()).collect();
    if !S::PASSTHROUGH_FIELDS.is_empty() {
        fields.extend(spec.extra().clone());
    }
    fields
}
