//! Tags that people declare, of a cluster's own or beside a release: how a call names one, changes the set of them, and answers.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::finding::first_few;
use stemma_core::manifest::read_value;
use stemma_core::name::{Name, NameKind, TagName};
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

/// A call of a declared tag, read.
pub(super) struct TagWrite {
    call: TagCall,
    pub(super) name: TagName,
    /// What it says; of one that is deleted nothing.
    tag: Option<TagSpec>,
    /// Its body has another name than its path.
    renames: bool,
}

impl TagWrite {
    /// Reads a call: its path, its body or both.
    pub(super) fn read(request: &Request, call: TagCall) -> Result<Self, ApiError> {
        if call == TagCall::Delete {
            return Ok(Self { call, name: tag_name(request.part("tag"))?, tag: None, renames: false });
        }
        let mut fields = request.object()?;
        let given = match fields.remove("name") {
            Some(Value::String(name)) => Some(name),
            None if call == TagCall::Put => None,
            _ => return Err(ApiError::new(ErrorType::FieldMissing, "a tag needs a name, a text").field("name")),
        };
        let name = match (call, &given) {
            (TagCall::Create, Some(given)) => given.as_str(),
            _ => request.part("tag"),
        };
        let (name, renames) = (tag_name(name)?, given.as_deref().is_some_and(|given| given != name));
        // As they are shown.
        for shown in ["predefined", "declared"] {
            fields.remove(shown);
        }
        let tag = read_value(&Value::Object(fields)).map_err(|e| bad_field("tag", &e))?;
        Ok(Self { call, name, tag: Some(tag), renames })
    }

    pub(super) fn deletes(&self) -> bool {
        self.call == TagCall::Delete
    }

    /// Adds, replaces or removes the tag.
    pub(super) fn change(&self, tags: &mut BTreeMap<TagName, TagSpec>) -> Result<(), ApiError> {
        let Self { call, name, tag, renames } = self;
        match (call, tag) {
            (TagCall::Create, Some(_)) if tags.contains_key(name) => {
                Err(ApiError::new(ErrorType::ObjectExists, format!("A tag with name {name} already exists.")))
            }
            (TagCall::Put | TagCall::Delete, _) if !tags.contains_key(name) => Err(no_tag(name)),
            (_, Some(_)) if *renames => {
                let message = "a tag can't be renamed; create another one";
                Err(ApiError::new(ErrorType::FieldInvalid, message).field("name"))
            }
            (_, Some(tag)) => {
                check_role(tag, tags.get(name))?;
                tags.insert(name.clone(), tag.clone());
                Ok(())
            }
            (_, None) => {
                tags.remove(name);
                Ok(())
            }
        }
    }

    /// The refusal of a call about a predefined tag: there is one of that name already, and it stays as it is.
    pub(super) fn of_predefined(&self) -> ApiError {
        let (kind, cannot) = match self.call {
            TagCall::Create => (ErrorType::ObjectExists, "there can be no other of its name"),
            TagCall::Put | TagCall::Delete => (ErrorType::ObjectProtected, "can't be changed or deleted"),
        };
        let name = &self.name;
        let message =
            format!("the tag {name} is predefined in the release's content and {cannot}; nothing was changed");
        ApiError::new(kind, message).field("name").detail("change it in the next version of the release")
    }

    /// What it answers.
    pub(super) fn answer(&self) -> Answer {
        match (self.call, &self.tag) {
            (TagCall::Create, Some(tag)) => Answer::json(201, shown_tag(&self.name, tag, false)),
            (_, Some(tag)) => Answer::json(200, shown_tag(&self.name, tag, false)),
            (_, None) => Answer::empty(204),
        }
    }
}

/// Refuses a role that is a reserved word, unless it stood there.
fn check_role(tag: &TagSpec, stood: Option<&TagSpec>) -> Result<(), ApiError> {
    let before = stood.and_then(|stood| stood.role.as_ref());
    let Some(role) = tag.role.as_ref().filter(|role| before != Some(*role)) else { return Ok(()) };
    Name::of_new(role, NameKind::Role)
        .map(drop)
        .map_err(|why| ApiError::new(ErrorType::FieldInvalid, format!("{why}; nothing was changed")).field("role"))
}

fn tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::of_new(text).map_err(|e| ApiError::new(ErrorType::FieldInvalid, e.to_string()).field("name"))
}

/// Refuses to delete a tag that is assigned, and names the nodes.
pub(super) fn refuse_assigned(model: &Model, tag: &TagName, sees_it: impl Fn(&Node) -> bool) -> Result<(), ApiError> {
    let holders = model.nodes.iter().filter(|node| node.spec.tags.assigned.get(tag).is_some() && sees_it(node));
    let names: Vec<String> = holders.map(|node| node.display_name()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let listed = first_few(names.iter().map(String::as_str), MOST_LISTED);
    let message = format!("the tag {tag} is assigned to {listed}; nothing was deleted");
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
