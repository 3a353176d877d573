//! Tags that people declare, of a cluster's own or beside a release: how a call names one, changes the set of them, and answers.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::manifest::read_value;
use stemma_core::name::TagName;
use stemma_core::object::{Node, TagSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::admit::bad_field;

/// How many nodes a refusal lists.
const MOST_LISTED: usize = 10;

/// What is done to a declared tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagCall {
    /// `POST …/tags`.
    Create,
    /// `PUT …/tags/{tag}`.
    Put,
    /// `DELETE …/tags/{tag}`.
    Delete,
}

/// Reads the tag of a call: from its path, its body or both.
pub(super) fn read_tag(request: &Request, call: TagCall) -> Result<(TagName, Option<TagSpec>), ApiError> {
    if call == TagCall::Delete {
        return Ok((tag_name(request.part("tag"))?, None));
    }
    let mut fields = request.object()?;
    let name = match (call, fields.remove("name")) {
        (TagCall::Create, Some(Value::String(name))) => name,
        (TagCall::Create, _) => {
            return Err(ApiError::new(ErrorType::FieldMissing, "a tag needs a name, a text").field("name"));
        }
        (_, Some(Value::String(name))) if name != request.part("tag") => {
            return Err(
                ApiError::new(ErrorType::FieldInvalid, "a tag can't be renamed; create another one").field("name")
            );
        }
        _ => request.part("tag").to_owned(),
    };
    fields.remove("predefined");
    let tag = read_value(&Value::Object(fields)).map_err(|e| bad_field("tag", &e))?;
    Ok((tag_name(&name)?, Some(tag)))
}

fn tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::declare(text).map_err(|e| ApiError::new(ErrorType::FieldInvalid, e.to_string()).field("name"))
}

/// Adds, replaces or removes a user-defined tag.
pub(super) fn change_tags(
    tags: &mut BTreeMap<TagName, TagSpec>,
    name: &TagName,
    tag: Option<TagSpec>,
    call: TagCall,
) -> Result<(), ApiError> {
    match (call, tag) {
        (TagCall::Create, Some(_)) if tags.contains_key(name) => {
            Err(ApiError::new(ErrorType::ObjectExists, format!("A tag with name {name} already exists.")))
        }
        (TagCall::Put | TagCall::Delete, _) if !tags.contains_key(name) => Err(no_tag(name)),
        (_, Some(tag)) => {
            tags.insert(name.clone(), tag);
            Ok(())
        }
        (_, None) => {
            tags.remove(name);
            Ok(())
        }
    }
}

/// The refusal to change a predefined tag.
pub(super) fn predefined(name: &TagName) -> ApiError {
    let message = format!("the tag {name} is predefined in the release's content and can't be changed or deleted");
    ApiError::new(ErrorType::ObjectInvalid, message).detail("change it in the next version of the release")
}

/// What a call of a tag answers.
pub(super) fn tag_answer(call: TagCall, name: &TagName, tag: Option<&TagSpec>) -> Answer {
    match (call, tag) {
        (TagCall::Create, Some(tag)) => Answer::json(201, shown_tag(name, tag, false)),
        (_, Some(tag)) => Answer::json(200, shown_tag(name, tag, false)),
        (_, None) => Answer::empty(204),
    }
}

/// Refuses to delete a tag that is assigned, and names the nodes.
pub(super) fn refuse_assigned(model: &Model, tag: &TagName, sees_it: impl Fn(&Node) -> bool) -> Result<(), ApiError> {
    let holders = model.nodes.iter().filter(|node| node.spec.tags.assigned.get(tag).is_some() && sees_it(node));
    let names: Vec<String> = holders.map(|node| node.display_name()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let listed = names.iter().take(MOST_LISTED).cloned().collect::<Vec<_>>().join(", ");
    let more =
        if names.len() > MOST_LISTED { format!(" and {} more", names.len() - MOST_LISTED) } else { String::new() };
    let message = format!("the tag {tag} is assigned to {listed}{more}; nothing was deleted");
    Err(ApiError::new(ErrorType::ObjectInUse, message)
        .detail("unassign it there first: `stemma tag unassign NODE TAG`"))
}

/// A tag as a release shows it.
pub(super) fn shown_tag(name: &TagName, tag: &TagSpec, predefined: bool) -> Value {
    let mut body = json!(tag);
    body["name"] = json!(name);
    body["has_primary"] = tag.has_primary.into();
    body["predefined"] = predefined.into();
    body
}

/// The answer with all of these tags.
pub(super) fn tag_list(tags: BTreeMap<TagName, Value>) -> Value {
    json!({"tags": tags.into_values().collect::<Vec<_>>()})
}

/// The answer with one of these tags.
pub(super) fn tag_named(tags: BTreeMap<TagName, Value>, name: &str) -> HandlerResult {
    let found = tags.into_iter().find(|(tag, _)| **tag == *name);
    found.map(|(_, tag)| Reply::ok(tag)).ok_or_else(|| no_tag(name))
}

/// The refusal of a tag that is not there.
pub(super) fn no_tag(name: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("Tag {} could not be found.", quote(name)))
}
