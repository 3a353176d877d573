//! What namespaces and what is in them look like.

use jiff::Timestamp as Instant;
use serde_json::{Map, Value, json};
use stemma_core::catalog::{READ_ONLY, turn_tags};
use stemma_core::object::{Association, Dates, Definition, Member, Namespace, NamespaceTag, Timestamp};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

/// Something in a namespace, as answers show it.
pub(in super::super) trait Listed:
    Member + serde::Serialize + serde::de::DeserializeOwned + Clone + Sync
{
    /// What a path calls its name.
    const PART: &'static str;

    /// Its body, within the namespace's or by itself.
    fn shown(&self, namespace: &Namespace) -> Map<String, Value>;
}

impl Listed for Association {
    const PART: &'static str = "resource_type";

    fn shown(&self, namespace: &Namespace) -> Map<String, Value> {
        dated(self, namespace)
    }
}

impl Listed for NamespaceTag {
    const PART: &'static str = "tag";

    fn shown(&self, namespace: &Namespace) -> Map<String, Value> {
        dated(self, namespace)
    }
}

impl Listed for Definition {
    const PART: &'static str = "object";

    fn shown(&self, namespace: &Namespace) -> Map<String, Value> {
        let mut body = dated(self, namespace);
        let path = Endpoint::GetDefinition.path(&[&namespace.meta.name, &self.name]);
        body.insert("self".into(), path.into());
        body.insert("schema".into(), Endpoint::GetSchema.path(&["object"]).into());
        body
    }
}

fn dated<M: Listed>(member: &M, namespace: &Namespace) -> Map<String, Value> {
    let mut body = fields(member);
    date(&mut body, namespace.spec.dates_of::<M>(member.name()));
    body
}

fn date(body: &mut Map<String, Value>, dates: Dates) {
    body.insert("created_at".into(), time(dates.created_at).into());
    body.insert("updated_at".into(), time(dates.updated_at).into());
}

/// A time as Glance writes it.
pub(super) fn time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    let instant = Instant::from_millisecond(millis).unwrap_or(Instant::UNIX_EPOCH);
    instant.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The members of a value that is a JSON object.
pub(super) fn fields(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// A namespace's own fields; what has no value is left out.
pub(super) fn own(namespace: &Namespace) -> Map<String, Value> {
    let spec = &namespace.spec;
    let mut body = Map::new();
    body.insert("namespace".into(), namespace.meta.name.to_string().into());
    for (name, text) in
        [("display_name", &spec.display_name), ("description", &spec.description), ("owner", &spec.owner)]
    {
        body.extend(text.as_ref().map(|text| (name.to_owned(), text.clone().into())));
    }
    body.insert("visibility".into(), json!(spec.visibility));
    body.insert("protected".into(), spec.protected.into());
    if !spec.labels.is_empty() {
        body.insert("labels".into(), json!(spec.labels));
    }
    date(&mut body, Dates { created_at: namespace.meta.created_at, updated_at: namespace.meta.updated_at });
    body.insert("self".into(), Endpoint::GetNamespace.path(&[&namespace.meta.name]).into());
    body.insert("schema".into(), Endpoint::GetSchema.path(&["namespace"]).into());
    body
}

/// The same with what it applies to: a row of a list.
pub(super) fn row(namespace: &Namespace) -> Map<String, Value> {
    let mut body = own(namespace);
    put_list::<Association>(&mut body, namespace);
    body
}

/// All of it, with the last tag first, as Glance lists them.
pub(super) fn whole(namespace: &Namespace) -> Map<String, Value> {
    let mut body = made(namespace);
    turn_tags(&mut body);
    body
}

/// All of it, in the order in which it was given.
pub(super) fn made(namespace: &Namespace) -> Map<String, Value> {
    let mut body = row(namespace);
    if !namespace.spec.properties.is_empty() {
        body.insert("properties".into(), json!(namespace.spec.properties));
    }
    put_list::<Definition>(&mut body, namespace);
    put_list::<NamespaceTag>(&mut body, namespace);
    body
}

fn put_list<M: Listed>(body: &mut Map<String, Value>, namespace: &Namespace) {
    let members = M::all(&namespace.spec);
    if !members.is_empty() {
        body.insert(M::LIST.into(), members.iter().map(|member| Value::Object(member.shown(namespace))).collect());
    }
}

/// Refuses what the controller alone sets, and a field that is `null`.
///
/// # Errors
/// The first of them.
pub(super) fn check_written(body: &Map<String, Value>) -> Result<(), ApiError> {
    if let Some(name) = body.keys().find(|name| READ_ONLY.contains(&name.as_str())) {
        let message = format!("Attribute '{name}' is read-only.");
        return Err(ApiError::new(ErrorType::FieldReadOnly, message).field(name.clone()).detail("leave it out"));
    }
    match body.iter().find(|(name, value)| value.is_null() && *name != "default") {
        Some((name, _)) => {
            let message = format!("{name} is null: leave it out to have it without a value");
            Err(ApiError::new(ErrorType::FieldInvalid, message).field(name.clone()))
        }
        None => Ok(()),
    }
}
