//! Tags that users declare, either in a cluster or in addition to a release's content. This module reads the requests
//! for such tags, changes the declared tags, and builds the responses.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::finding::join_first;
use stemma_core::manifest::read_value;
use stemma_core::name::{Name, NameKind, TagName};
use stemma_core::object::{Node, TagSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::admit::bad_field;

/// Maximum number of nodes that the error about an assigned tag lists.
const MAX_LISTED_NODES: usize = 10;

/// An operation on a tag that users declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagCall {
    /// `POST …/tags`: declares a new tag.
    Create,
    /// `PUT …/tags/{tag}`: replaces the declaration of a tag.
    Put,
    /// `DELETE …/tags/{tag}`: removes the declaration of a tag.
    Delete,
}

/// A parsed request that creates, replaces or deletes a tag that users declare.
pub(super) struct TagDefinitionWrite {
    call: TagCall,
    pub(super) name: TagName,
    /// The new declaration, or `None` for a deletion.
    tag: Option<TagSpec>,
    /// True if the name in the body differs from the name in the path. Such a request is refused.
    is_rename: bool,
}

impl TagDefinitionWrite {
    /// Reads the request: the tag's name from the path or the body, and its declaration from the body.
    pub(super) fn read(request: &HttpRequest, call: TagCall) -> Result<Self, ApiError> {
        if call == TagCall::Delete {
            return Ok(Self { call, name: parse_new_tag_name(request.param("tag"))?, tag: None, is_rename: false });
        }
        let mut fields = request.object()?;
        let body_name = match fields.remove("name") {
            Some(Value::String(name)) => Some(name),
            None if call == TagCall::Put => None,
            _ => return Err(ApiError::new(ErrorType::FieldMissing, "a tag needs a name, a text").field("name")),
        };
        let name = match (call, &body_name) {
            (TagCall::Create, Some(body_name)) => body_name.as_str(),
            _ => request.param("tag"),
        };
        let (name, is_rename) = (parse_new_tag_name(name)?, body_name.as_deref().is_some_and(|text| text != name));
        // Responses contain these read-only fields. A client may send such a response back, so the fields are ignored
        // here.
        for read_only in ["predefined", "declared"] {
            fields.remove(read_only);
        }
        let tag = read_value(&Value::Object(fields)).map_err(|error| bad_field("tag", &error))?;
        Ok(Self { call, name, tag: Some(tag), is_rename })
    }

    /// Returns whether the request deletes the tag.
    pub(super) fn is_delete(&self) -> bool {
        self.call == TagCall::Delete
    }

    /// Adds, replaces or removes the tag of the request in the declared tags of a cluster or release. Fails if the tag
    /// to create exists, if the tag to change or delete does not exist, or if the request would rename the tag. Also
    /// fails if the new declaration names a role whose name is a reserved word.
    pub(super) fn apply(&self, tags: &mut BTreeMap<TagName, TagSpec>) -> Result<(), ApiError> {
        let Self { call, name, tag, is_rename } = self;
        match (call, tag) {
            (TagCall::Create, Some(_)) if tags.contains_key(name) => {
                Err(ApiError::new(ErrorType::ObjectExists, format!("A tag with name {name} already exists.")))
            }
            (TagCall::Put | TagCall::Delete, _) if !tags.contains_key(name) => Err(tag_not_found(name)),
            (_, Some(_)) if *is_rename => {
                let message = "a tag can't be renamed; create another one";
                Err(ApiError::new(ErrorType::FieldInvalid, message).field("name"))
            }
            (_, Some(tag)) => {
                check_new_role(tag, tags.get(name))?;
                tags.insert(name.clone(), tag.clone());
                Ok(())
            }
            (_, None) => {
                tags.remove(name);
                Ok(())
            }
        }
    }

    /// Returns the error for a request to change a tag that the release's content declares. Users cannot change such a
    /// tag.
    pub(super) fn predefined_error(&self) -> ApiError {
        let (error_type, refusal) = match self.call {
            TagCall::Create => (ErrorType::ObjectExists, "can't be created again"),
            TagCall::Put | TagCall::Delete => (ErrorType::ObjectProtected, "can't be changed or deleted"),
        };
        let name = &self.name;
        let message = format!("the tag {name} is predefined in the release's content and {refusal}; nothing was changed");
        ApiError::new(error_type, message).field("name").detail("change it in the next version of the release")
    }

    /// Returns the response to the request after its success.
    pub(super) fn answer(&self) -> StoredAnswer {
        match (self.call, &self.tag) {
            (TagCall::Create, Some(tag)) => StoredAnswer::json(201, tag_json(&self.name, tag, false)),
            (_, Some(tag)) => StoredAnswer::json(200, tag_json(&self.name, tag, false)),
            (_, None) => StoredAnswer::empty(204),
        }
    }
}

/// Fails if the role in a tag's new declaration is a reserved word. The role of the present declaration is always
/// accepted.
fn check_new_role(tag: &TagSpec, old_declaration: Option<&TagSpec>) -> Result<(), ApiError> {
    let old_role = old_declaration.and_then(|old_tag| old_tag.role.as_ref());
    let Some(role) = tag.role.as_ref().filter(|role| old_role != Some(*role)) else { return Ok(()) };
    Name::for_new_declaration(role, NameKind::Role)
        .map(drop)
        .map_err(|error| ApiError::new(ErrorType::FieldInvalid, format!("{error}; nothing was changed")).field("role"))
}

/// Parses the name of the tag that a request declares, replaces or deletes. Fails for a reserved word too.
fn parse_new_tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::for_new_declaration(text).map_err(|error| ApiError::new(ErrorType::FieldInvalid, error.to_string()).field("name"))
}

/// Fails if a tag is assigned to a node for which `is_in_scope` is true. The error lists the first of these nodes.
pub(super) fn check_unassigned(model: &Model, tag: &TagName, is_in_scope: impl Fn(&Node) -> bool) -> Result<(), ApiError> {
    let holders = model.nodes.iter().filter(|node| node.spec.tags.assigned.get(tag).is_some() && is_in_scope(node));
    let names: Vec<String> = holders.map(|node| node.display_name()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let listed_names = join_first(names.iter().map(String::as_str), MAX_LISTED_NODES);
    let message = format!("the tag {tag} is assigned to {listed_names}; nothing was deleted");
    Err(ApiError::new(ErrorType::ObjectInUse, message).detail("unassign it there first: `stemma tag unassign NODE TAG`"))
}

/// Returns a tag as a release and the response to a write of a tag show it. `predefined` is true for a tag that users
/// did not declare.
pub(super) fn tag_json(name: &TagName, tag: &TagSpec, predefined: bool) -> Value {
    let mut body = json!(tag);
    body["name"] = json!(name);
    // The JSON of a `TagSpec` omits `has_primary` if it is false.
    body["has_primary"] = tag.has_primary.into();
    body["predefined"] = predefined.into();
    body
}

/// Returns the body of a list of tags.
pub(super) fn tag_list(tags: BTreeMap<TagName, Value>) -> Value {
    json!({"tags": tags.into_values().collect::<Vec<_>>()})
}

/// Returns the response with the tag `name` from these tags. Fails if it is not among them.
pub(super) fn tag_answer(tags: BTreeMap<TagName, Value>, name: &str) -> HandlerResult {
    let entry = tags.into_iter().find(|(tag, _)| **tag == *name);
    entry.map(|(_, tag)| HttpResponse::ok(tag)).ok_or_else(|| tag_not_found(name))
}

/// Returns the error for a tag that does not exist.
pub(super) fn tag_not_found(name: &str) -> ApiError {
    ApiError::new(ErrorType::ObjectNotFound, format!("Tag {} could not be found.", quote(name)))
}
