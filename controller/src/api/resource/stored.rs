//! The stored fields of an object (`stored` in its body). The rest of the body also contains counts of nodes, defaults
//! and inherited values. A client that writes an object back must not take those for values that an author set.

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

/// The query parameter that requests the stored fields, and the member of the body that contains them.
const STORED: &str = "stored";

/// Adds the stored fields of an object to its body, if the query requests them.
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

/// Returns the fields of an object that are not at their default and, for a node, the traits and tags that operators
/// set, with their owners. `merge_labels` is `null` if a manager owns it without a value; the body shows it as false
/// then.
fn stored_fields<S: SpecFields>(api: &Api, model: &Model, spec: &S) -> Map<String, Value> {
    let mut fields = non_default_fields(api, model, spec);
    let is_open = spec.inherited().is_some_and(|own| own.labels.merge.is_none());
    if is_open && spec.owners().contains_key(MERGE_LABELS) {
        fields.insert(MERGE_LABELS.to_owned(), Value::Null);
    }
    if let Some(node) = spec.node() {
        let traits = node.traits.members().map(ToString::to_string).collect::<Vec<_>>();
        // An empty set is omitted, as are the labels of an object that no manager provides any longer.
        if !traits.is_empty() {
            fields.insert("traits".to_owned(), json!(traits));
            fields.insert("trait_owners".to_owned(), owners(&node.traits).into());
        }
        let has_tags = node.tags.assigned.members().chain(node.tags.unassigned.members()).next().is_some();
        if let Some(tags) = operator_tags::tags(spec).filter(|_| has_tags) {
            let owned = json!({"assigned": owners(&node.tags.assigned), "unassigned": owners(&node.tags.unassigned)});
            fields.insert("tags".to_owned(), tags);
            fields.insert("tag_owners".to_owned(), owned);
        }
    }
    fields
}

/// Returns the owners of each member of a set.
fn owners<K: Ord + Clone + Display>(set: &OwnedSet<K>) -> Map<String, Value> {
    set.iter().map(|(member, entry)| (member.to_string(), json!(&*entry.owners))).collect()
}

/// Returns the fields of a spec in the form of a body, without those at their defaults.
pub(super) fn non_default_fields<S: SpecFields>(api: &Api, model: &Model, spec: &S) -> Map<String, Value> {
    selected_fields(spec, &ModelNames::new(model, &api.traits), &|_| true)
}

/// Returns the wanted fields of a spec in the form of a body, without those at their defaults.
pub(super) fn selected_fields<S: SpecFields>(
    spec: &S,
    names: &ModelNames<'_>,
    wanted: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let is_veiled = |name: &str| spec.is_sensitive() && S::SENSITIVE_FIELDS.contains(&name);
    let shown = S::FIELDS.iter().filter(|field| wanted(field.name) && !is_veiled(field.name));
    let shown = shown.map(|field| (field.name.to_owned(), (field.show)(spec, names)));
    let mut fields: Map<String, Value> = shown.filter(|(_, value)| !value.is_null()).collect();
    if !S::PASSTHROUGH_FIELDS.is_empty() {
        fields.extend(spec.extra().clone());
    }
    fields
}
