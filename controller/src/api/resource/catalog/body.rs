//! The JSON bodies of namespaces and their contents. A namespace is Glance's term for a named set of metadata
//! definitions.

use jiff::Timestamp as Instant;
use serde_json::{Map, Value, json};
use stemma_core::catalog::{READ_ONLY_FIELDS, reverse_tags};
use stemma_core::object::{Association, Dates, Definition, NamedItem, Namespace, NamespaceTag, Timestamp};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

/// An item of a namespace of the metadata catalogue (as in Glance) that answers show as a JSON object. The item is a
/// resource type association, an object definition or a tag.
pub(in super::super) trait NamespaceItem:
    NamedItem + serde::Serialize + serde::de::DeserializeOwned + Clone + Sync
{
    /// The path parameter that contains the item's name.
    const NAME_PARAM: &'static str;

    /// Returns the item's body. It is the same when the item is shown alone and when it is shown within its namespace.
    fn to_json(&self, namespace: &Namespace) -> Map<String, Value>;
}

impl NamespaceItem for Association {
    const NAME_PARAM: &'static str = "resource_type";

    fn to_json(&self, namespace: &Namespace) -> Map<String, Value> {
        with_dates(self, namespace)
    }
}

impl NamespaceItem for NamespaceTag {
    const NAME_PARAM: &'static str = "tag";

    fn to_json(&self, namespace: &Namespace) -> Map<String, Value> {
        with_dates(self, namespace)
    }
}

impl NamespaceItem for Definition {
    const NAME_PARAM: &'static str = "object";

    fn to_json(&self, namespace: &Namespace) -> Map<String, Value> {
        let mut body = with_dates(self, namespace);
        let path = Endpoint::GetDefinition.path(&[&namespace.meta.name, &self.name]);
        body.insert("self".into(), path.into());
        body.insert("schema".into(), Endpoint::GetSchema.path(&["object"]).into());
        body
    }
}

/// Returns the fields of an item with the dates of its creation and last change.
fn with_dates<M: NamespaceItem>(member: &M, namespace: &Namespace) -> Map<String, Value> {
    let mut body = json_fields(member);
    add_dates(&mut body, namespace.spec.item_dates::<M>(member.item_name()));
    body
}

fn add_dates(body: &mut Map<String, Value>, dates: Dates) {
    body.insert("created_at".into(), format_time(dates.created_at).into());
    body.insert("updated_at".into(), format_time(dates.updated_at).into());
}

/// Formats a time as Glance does: in UTC, with whole seconds. A time that the calendar cannot hold is shown as 1970.
pub(super) fn format_time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let instant = Instant::from_millisecond(millis).unwrap_or(Instant::UNIX_EPOCH);
    instant.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the members of a value that serializes to a JSON object. For any other value, returns an empty map.
pub(super) fn json_fields(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Returns the own fields of a catalogue namespace, without its items. Fields without a value are omitted.
pub(super) fn own_fields(namespace: &Namespace) -> Map<String, Value> {
    let spec = &namespace.spec;
    let mut body = Map::new();
    body.insert("namespace".into(), namespace.meta.name.to_string().into());
    for (name, text) in [("display_name", &spec.display_name), ("description", &spec.description), ("owner", &spec.owner)] {
        body.extend(text.as_ref().map(|text| (name.to_owned(), text.clone().into())));
    }
    body.insert("visibility".into(), json!(spec.visibility));
    body.insert("protected".into(), spec.protected.into());
    if !spec.labels.is_empty() {
        body.insert("labels".into(), json!(spec.labels));
    }
    add_dates(&mut body, Dates { created_at: namespace.meta.created_at, updated_at: namespace.meta.updated_at });
    body.insert("self".into(), Endpoint::GetNamespace.path(&[&namespace.meta.name]).into());
    body.insert("schema".into(), Endpoint::GetSchema.path(&["namespace"]).into());
    body
}

/// Returns a namespace's row in a list: its own fields and its resource type associations.
pub(super) fn list_row(namespace: &Namespace) -> Map<String, Value> {
    let mut body = own_fields(namespace);
    add_list::<Association>(&mut body, namespace);
    body
}

/// Returns the full body of a namespace. Its tags are in reverse order, as in Glance.
pub(super) fn full_body(namespace: &Namespace) -> Map<String, Value> {
    let mut body = created_body(namespace);
    reverse_tags(&mut body);
    body
}

/// Returns the full body of a namespace that was just created, with the tags in the order of the request, as in Glance.
pub(super) fn created_body(namespace: &Namespace) -> Map<String, Value> {
    let mut body = list_row(namespace);
    if !namespace.spec.properties.is_empty() {
        body.insert("properties".into(), json!(namespace.spec.properties));
    }
    add_list::<Definition>(&mut body, namespace);
    add_list::<NamespaceTag>(&mut body, namespace);
    body
}

/// Adds the items of one type to the body of a namespace, if it has any.
fn add_list<M: NamespaceItem>(body: &mut Map<String, Value>, namespace: &Namespace) {
    let members = M::items(&namespace.spec);
    if !members.is_empty() {
        body.insert(M::LIST.into(), members.iter().map(|member| Value::Object(member.to_json(namespace))).collect());
    }
}

/// Refuses read-only fields, and fields that are `null`. Only the field `default` of a property may be `null`.
///
/// # Errors
/// Fails for the first such field.
pub(super) fn check_read_only(body: &Map<String, Value>) -> Result<(), ApiError> {
    if let Some(name) = body.keys().find(|name| READ_ONLY_FIELDS.contains(&name.as_str())) {
        let message = format!("Attribute '{name}' is read-only.");
        return Err(ApiError::new(ErrorType::FieldReadOnly, message).field(name.clone()).detail("leave it out"));
    }
    match body.iter().find(|(name, value)| value.is_null() && *name != "default") {
        Some((name, _)) => {
            let message = format!("{name} is null: leave the field out instead");
            Err(ApiError::new(ErrorType::FieldInvalid, message).field(name.clone()))
        }
        None => Ok(()),
    }
}
