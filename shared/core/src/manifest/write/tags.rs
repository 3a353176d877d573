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

/// The choice that was made for a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::manifest) enum TagChoice {
    /// The node has the tag, whatever its roles are.
    Assigned,
    /// The node does not have the tag, even if a role produces it.
    Unassigned,
}

/// Reads the tags of a body. With `null_clears`, `null` for all tags or for one set clears them. Otherwise it has no
/// effect.
pub(super) fn read_tags(raw: &RawValue, null_clears: bool) -> Result<NodeTagsInput, BodyError> {
    let empty = || null_clears.then(Vec::new);
    if is_null(raw) {
        return Ok(NodeTagsInput { assigned: empty(), unassigned: empty() });
    }
    let NodeTagsInput { assigned, unassigned } = reader::read_json(raw)?;
    let named = members(raw).unwrap_or_default();
    let cleared = |set: &str| empty().filter(|_| named.iter().any(|(name, one)| name == set && is_null(one)));
    let sent = NodeTagsInput {
        assigned: assigned.or_else(|| cleared("assigned")),
        unassigned: unassigned.or_else(|| cleared("unassigned")),
    };
    let is_unassigned = |tag: &TagName| sent.unassigned.iter().flatten().any(|other| other == tag);
    let both = sent.assigned.iter().flatten().find(|tag| is_unassigned(tag)).cloned();
    match both {
        Some(tag) => {
            let why = format!("the tag '{tag}' can't be assigned and unassigned at once: name it in one of them");
            Err(BodyError::new("", why))
        }
        None => Ok(sent),
    }
}

/// Checks the names of the tags that are sent, except those that are stored already.
pub(super) fn check_new_names(sent: &NodeTagsInput, old: &NodeTags) -> Result<(), BodyError> {
    let contains = |set: &OwnedSet<TagName>, tag: &TagName| set.members().any(|one| one == tag);
    let assigned = check_declared_tags(sent.assigned.iter().flatten(), |tag| contains(&old.assigned, tag));
    assigned.map_err(|error| error.prefixed("assigned"))?;
    let unassigned = check_removed_tags(sent.unassigned.iter().flatten(), |tag| contains(&old.unassigned, tag));
    unassigned.map_err(|error| error.prefixed("unassigned"))
}

/// Returns the choice that a body makes for each tag. With `keeps_unnamed`, a set that the body leaves out is taken
/// from the stored choices.
pub(super) fn tag_intent(
    sent: NodeTagsInput,
    old: &OwnedMap<TagName, TagChoice>,
    keeps_unnamed: bool,
) -> Intent<TagName, TagChoice> {
    let is_named = |choice: &ProvidedValue<TagChoice>| match choice {
        ProvidedValue::Value(TagChoice::Assigned) => sent.assigned.is_some(),
        ProvidedValue::Value(TagChoice::Unassigned) => sent.unassigned.is_some(),
        ProvidedValue::Tombstone => true,
    };
    let kept = old.iter().filter(|(_, entry)| keeps_unnamed && !is_named(&entry.value));
    let mut intent: Intent<TagName, TagChoice> = kept.map(|(tag, entry)| (tag.clone(), entry.value)).collect();
    for (tags, choice) in [(sent.assigned, TagChoice::Assigned), (sent.unassigned, TagChoice::Unassigned)] {
        intent.extend(tags.into_iter().flatten().map(|tag| (tag, ProvidedValue::Value(choice))));
    }
    intent
}

/// Merges the assigned and the unassigned tags into one map. A tag that is in both sets, which no write produces,
/// counts as assigned.
pub(in crate::manifest) fn from_node_tags(tags: &NodeTags) -> OwnedMap<TagName, TagChoice> {
    let unassigned = entries_with_choice(&tags.unassigned, TagChoice::Unassigned);
    OwnedMap::from_entries(unassigned.chain(entries_with_choice(&tags.assigned, TagChoice::Assigned)))
}

/// Splits the choices into the set of assigned tags and that of unassigned tags, and stores both.
pub(super) fn store_choices(tags: &mut NodeTags, choices: &OwnedMap<TagName, TagChoice>) {
    tags.assigned = set_with_choice(choices, TagChoice::Assigned);
    tags.unassigned = set_with_choice(choices, TagChoice::Unassigned);
}

fn entries_with_choice(set: &OwnedSet<TagName>, choice: TagChoice) -> impl Iterator<Item = (TagName, OwnedEntry<TagChoice>)> {
    set.iter().map(move |(tag, entry)| (tag.clone(), with_value(entry, ProvidedValue::Value(choice))))
}

fn set_with_choice(choices: &OwnedMap<TagName, TagChoice>, choice: TagChoice) -> OwnedSet<TagName> {
    let entries = choices.iter().filter(|(_, entry)| entry.value == ProvidedValue::Value(choice));
    OwnedMap::from_entries(entries.map(|(tag, entry)| (tag.clone(), with_value(entry, ProvidedValue::Value(())))))
}

/// Returns an entry with the same owners and another value.
fn with_value<A, B>(entry: &OwnedEntry<A>, value: ProvidedValue<B>) -> OwnedEntry<B> {
    OwnedEntry { value, owners: Arc::clone(&entry.owners), since_ms: entry.since_ms }
}
