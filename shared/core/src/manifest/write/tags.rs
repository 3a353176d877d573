//! The tags of a node that operators choose by hand: each tag can be assigned or unassigned.
//!
//! The two sets are stored separately and owned as one map, because one choice for a tag replaces the other. So two
//! managers that choose differently are in conflict, as with two values of a label.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::super::body::is_null;
use super::super::declared::{check_declared_tags, check_removed_tags};
use super::super::error::BodyError;
use super::super::field_defs::NodeTagsInput;
use super::super::reader;
use crate::json::members;
use crate::name::TagName;
use crate::object::NodeTags;
use crate::ownership::{Intent, OwnedEntry, OwnedMap, OwnedSet, ProvidedValue};

/// The choice that an operator made for a tag of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::manifest) enum TagChoice {
    /// The node has the tag, whatever its roles are.
    Assigned,
    /// The node does not have the tag, even if a role produces it.
    Unassigned,
}

/// Reads the field `tags` of a node's body, which has the sets `assigned` and `unassigned`. If `null_clears` is true, a
/// set that is `null` is returned as an empty set, and `null` for the whole field as two empty sets. Otherwise `null`
/// counts as absent. Fails if a tag is in both sets.
pub(super) fn read_tags(raw: &RawValue, null_clears: bool) -> Result<NodeTagsInput, BodyError> {
    let empty = || null_clears.then(Vec::new);
    if is_null(raw) {
        return Ok(NodeTagsInput { assigned: empty(), unassigned: empty() });
    }
    let NodeTagsInput { assigned, unassigned } = reader::read_json(raw)?;
    let sets = members(raw).unwrap_or_default();
    let cleared_set = |set: &str| empty().filter(|_| sets.iter().any(|(name, value)| name == set && is_null(value)));
    let input = NodeTagsInput {
        assigned: assigned.or_else(|| cleared_set("assigned")),
        unassigned: unassigned.or_else(|| cleared_set("unassigned")),
    };
    let is_unassigned = |tag: &TagName| input.unassigned.iter().flatten().any(|unassigned_tag| unassigned_tag == tag);
    let tag_in_both = input.assigned.iter().flatten().find(|tag| is_unassigned(tag)).cloned();
    match tag_in_both {
        Some(tag) => {
            let why = format!("the tag '{tag}' can't be assigned and unassigned at once: name it in one of them");
            Err(BodyError::new("", why))
        }
        None => Ok(input),
    }
}

/// Fails if a body assigns or unassigns a tag with a reserved name that the node does not have in the same set yet.
pub(super) fn check_new_names(input: &NodeTagsInput, old: &NodeTags) -> Result<(), BodyError> {
    let contains = |set: &OwnedSet<TagName>, tag: &TagName| set.members().any(|member| member == tag);
    let assigned_check = check_declared_tags(input.assigned.iter().flatten(), |tag| contains(&old.assigned, tag));
    assigned_check.map_err(|error| error.prefixed("assigned"))?;
    let unassigned_check = check_removed_tags(input.unassigned.iter().flatten(), |tag| contains(&old.unassigned, tag));
    unassigned_check.map_err(|error| error.prefixed("unassigned"))
}

/// Returns the choice that a body makes for each tag. If `retain_omitted` is true, the stored choices of a set that the
/// body omits are included.
pub(super) fn tag_intent(
    input: NodeTagsInput,
    old: &OwnedMap<TagName, TagChoice>,
    retain_omitted: bool,
) -> Intent<TagName, TagChoice> {
    // Returns whether the body has the set of a stored choice. Choices are never tombstones.
    let has_set = |choice: &ProvidedValue<TagChoice>| match choice {
        ProvidedValue::Value(TagChoice::Assigned) => input.assigned.is_some(),
        ProvidedValue::Value(TagChoice::Unassigned) => input.unassigned.is_some(),
        ProvidedValue::Tombstone => true,
    };
    let retained = old.iter().filter(|(_, entry)| retain_omitted && !has_set(&entry.value));
    let mut intent: Intent<TagName, TagChoice> = retained.map(|(tag, entry)| (tag.clone(), entry.value)).collect();
    for (tags, choice) in [(input.assigned, TagChoice::Assigned), (input.unassigned, TagChoice::Unassigned)] {
        intent.extend(tags.into_iter().flatten().map(|tag| (tag, ProvidedValue::Value(choice))));
    }
    intent
}

/// Merges the assigned and the unassigned tags into one map. A tag that is in both sets, which no write produces,
/// becomes an assigned tag.
pub(in crate::manifest) fn tag_choices(tags: &NodeTags) -> OwnedMap<TagName, TagChoice> {
    let unassigned = entries_with_choice(&tags.unassigned, TagChoice::Unassigned);
    OwnedMap::from_entries(unassigned.chain(entries_with_choice(&tags.assigned, TagChoice::Assigned)))
}

/// Replaces the assigned and the unassigned tags of a node by those in `choices`.
pub(super) fn store_choices(tags: &mut NodeTags, choices: &OwnedMap<TagName, TagChoice>) {
    tags.assigned = set_with_choice(choices, TagChoice::Assigned);
    tags.unassigned = set_with_choice(choices, TagChoice::Unassigned);
}

/// Returns the tags of a set as entries of the map of choices, each with the choice `choice`. The owners are unchanged.
fn entries_with_choice(set: &OwnedSet<TagName>, choice: TagChoice) -> impl Iterator<Item = (TagName, OwnedEntry<TagChoice>)> {
    set.iter().map(move |(tag, entry)| (tag.clone(), entry_with_value(entry, ProvidedValue::Value(choice))))
}

/// Returns the tags with the choice `choice` as a set. The owners are unchanged.
fn set_with_choice(choices: &OwnedMap<TagName, TagChoice>, choice: TagChoice) -> OwnedSet<TagName> {
    let entries = choices.iter().filter(|(_, entry)| entry.value == ProvidedValue::Value(choice));
    OwnedMap::from_entries(entries.map(|(tag, entry)| (tag.clone(), entry_with_value(entry, ProvidedValue::Value(())))))
}

/// Returns a copy of an entry with another value. The owners and the time of the entry are unchanged.
fn entry_with_value<A, B>(entry: &OwnedEntry<A>, value: ProvidedValue<B>) -> OwnedEntry<B> {
    OwnedEntry { value, owners: Arc::clone(&entry.owners), since_ms: entry.since_ms }
}
