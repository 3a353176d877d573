//! Checks of fields beyond their JSON type: names that may be declared, traits that exist, patterns that compile.
//!
//! The checks run when a body is read. For names, times and selectors only changed values are checked: a value that an
//! older version stored may be written again.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::body::is_null;
use super::canary::check_canary;
use super::declared::{check_declared_role, check_declared_roles, check_declared_tag, check_declared_tags, check_removed_tags};
use super::empty::{check_name_characters, check_no_blank_text, check_no_control, check_path_segment};
use super::error::{BodyError, BodyErrorKind, check_each};
use super::names::NameResolver;
use super::reader::read_json;
use super::task::{check_task_selectors, read_tasks};
use crate::catalog::resource_type_error;
use crate::host_labels::HostLabels;
use crate::json;
use crate::key::{AnnotationKey, LabelKey, LabelValue, scalar_text};
use crate::name::{
    Name, NameKind, NodeName, ObjectName, TagName, closest_match, did_you_mean, is_blank, is_uuid_like, quoted, truncated,
};
use crate::object::{
    Association, Definition, ExtensionUse, Extra, Hold, NamedItem, NamespaceTag, Properties, Property, RoleChange, RoleSpec,
    Rollout, Strategy, TagSpec, Timestamp, TraitSet, Window,
};
use crate::requirement::{Requirement, Requirements};
use crate::task::Task;

/// Reads a field into `target`. The only rule for its value is its type. `null` gives the default.
pub(super) fn read_plain<T: Default + DeserializeOwned>(
    target: &mut T,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    *target = parse_or_default(raw)?;
    Ok(())
}

/// Returns a field's value, or the default if the JSON is `null`.
fn parse_or_default<T: Default + DeserializeOwned>(raw: &RawValue) -> Result<T, BodyError> {
    if is_null(raw) { Ok(T::default()) } else { read_json(raw) }
}

/// Reads a field into `target` and returns the previous value. `null` gives the default.
pub(super) fn replace_value<T: Default + DeserializeOwned>(target: &mut T, raw: &RawValue) -> Result<T, BodyError> {
    Ok(std::mem::replace(target, parse_or_default(raw)?))
}

/// Reads a map whose values may be any JSON. Whole numbers in it, such as `1.0`, are converted to integers.
pub(super) fn read_free_json(target: &mut Extra, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    *target = parse_or_default(raw)?;
    target.values_mut().for_each(json::normalize_integers);
    Ok(())
}

/// Reads the labels of the object itself, which no other object inherits. Their values are texts. A new key or value
/// must be valid for a label of a level.
pub(super) fn read_labels(target: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let written = parse_text_map(raw).and_then(|next| {
        let old = std::mem::replace(target, next);
        target.iter().try_for_each(|(key, value)| check_label(key, value, old.get(key)))
    });
    written.map_err(|error| error.with_value_kind(BodyErrorKind::Label))
}

/// Checks a label of the object itself. `old` is the stored value of the key. A stored key or value is accepted. An
/// error about the key contains no field, as for the labels of a level.
fn check_label(key: &str, value: &str, old: Option<&String>) -> Result<(), BodyError> {
    if old.is_none() {
        LabelKey::new(key).map_err(|why| BodyError::new("", why.to_string()))?;
    }
    if old.is_none_or(|old_value| old_value != value) {
        LabelValue::new(value).map_err(|why| BodyError::new(key, why.to_string()))?;
    }
    Ok(())
}

/// Reads the annotations of the object itself, which no other object inherits, into `to`. A new key must be valid for
/// an annotation of a level. A value may be any text.
pub(super) fn read_annotations(to: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = std::mem::replace(to, parse_text_map(raw)?);
    to.keys()
        .filter(|key| !old.contains_key(*key))
        .try_for_each(|key| AnnotationKey::new(key).map(drop).map_err(|why| BodyError::new("", why.to_string())))
}

/// Reads a map of texts. A number, `true` or `false` is read as its text, as in the labels of a level. A JSON patch of
/// one key is read in the same way, so it has the same effect as a write of the whole map.
fn parse_text_map(raw: &RawValue) -> Result<BTreeMap<String, String>, BodyError> {
    // A value that is not an object is `null`, which means an empty map, or an error.
    let Ok(members) = json::members(raw) else { return parse_or_default(raw) };
    let text = |(key, raw): (String, &RawValue)| -> Result<(String, String), BodyError> {
        // For `null`, a list or a map, reading a text fails with a message.
        let scalar = scalar_text(raw).ok().flatten();
        let text = scalar.map_or_else(|| read_json(raw), Ok).map_err(|error| error.prefixed(&key))?;
        Ok((key, text))
    };
    members.into_iter().map(text).collect()
}

/// Reads a text of at most `MAX_CHARS` characters.
pub(super) fn read_text<const MAX_CHARS: usize>(
    target: &mut Option<String>,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    *target = parse_or_default(raw)?;
    target.as_deref().map_or(Ok(()), |text| check_max_chars(text, MAX_CHARS))
}

/// Reads an optional name. A new name must have a visible character and no control character.
pub(super) fn read_optional_name(target: &mut Option<String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    target.as_deref().filter(|text| old.as_deref() != Some(*text)).map_or(Ok(()), check_name_characters)
}

/// Reads a required name. A new name must have a visible character and no control character. An empty name is accepted
/// here, because the check for required fields refuses it.
pub(super) fn read_required_name(target: &mut String, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    if target.is_empty() || *target == old { Ok(()) } else { check_name_characters(target) }
}

/// Reads an optional name of at most `MAX_CHARS` characters.
pub(super) fn read_name<const MAX_CHARS: usize>(
    target: &mut Option<String>,
    raw: &RawValue,
    names: &dyn NameResolver,
) -> Result<(), BodyError> {
    read_optional_name(target, raw, names)?;
    target.as_deref().map_or(Ok(()), |text| check_max_chars(text, MAX_CHARS))
}

/// Fails if a text has more than `max_chars` characters.
fn check_max_chars(text: &str, max_chars: usize) -> Result<(), BodyError> {
    match text.chars().nth(max_chars) {
        None => Ok(()),
        Some(_) => Err(BodyError::new("", format!("{:?}… is longer than {max_chars} characters", truncated(text)))),
    }
}

/// Maximum length of a name, `prefix` or `properties_target` in a namespace, in characters.
const MAX_MEMBER_TEXT_CHARS: usize = 80;

/// Checks a new name of a property, object, tag or resource type of a namespace.
///
/// # Errors
/// [`BodyError`] without a field if the name is blank, contains a control character, is `.` or `..`, or has more than
/// 80 characters.
pub fn check_member_name(name: &str) -> Result<(), BodyError> {
    check_name_characters(name)?;
    check_path_segment(name)?;
    check_max_chars(name, MAX_MEMBER_TEXT_CHARS)
}

/// Reads the properties of a namespace, a map from names to properties. Fails if a new name is invalid. Glance's
/// clients repeat the name in the property's field `name`, which is dropped if it equals the key.
pub(super) fn read_properties(target: &mut Properties, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    for (key, property) in target.iter_mut() {
        drop_redundant_name(key, property, old.get(key));
    }
    target.keys().filter(|name| !old.contains_key(*name)).try_for_each(|name| check_path_segment(name))?;
    check_properties(target, &old)
}

/// Removes the `name` of a property if it equals the key. An older version may have stored the property with its
/// `name`. If nothing else changed, the stored `name` remains, so that the same body does not change the object.
fn drop_redundant_name(key: &str, property: &mut Property, old: Option<&Property>) {
    let repeats_key = |property: &Property| property.name.as_deref() == Some(key);
    if property.name.is_some() && !repeats_key(property) {
        return;
    }
    property.name = None;
    let old = old.filter(|stored| repeats_key(stored));
    if let Some(stored) = old.filter(|stored| Property { name: None, ..(*stored).clone() } == *property) {
        property.name.clone_from(&stored.name);
    }
}

/// Checks the length of each new key of properties, and each new or changed `name` field in a property. Stored keys and
/// names are accepted.
fn check_properties(properties: &Properties, old: &Properties) -> Result<(), BodyError> {
    properties.iter().try_for_each(|(key, property)| {
        if !old.contains_key(key) {
            check_max_chars(key, MAX_MEMBER_TEXT_CHARS)?;
        }
        let Some(name) = property.name.as_deref() else { return Ok(()) };
        if old.get(key).is_some_and(|stored| stored.name == property.name) {
            return Ok(());
        }
        check_name_characters(name)
            .and_then(|()| check_max_chars(name, MAX_MEMBER_TEXT_CHARS))
            .map_err(|error| error.prefixed("name").prefixed(key))
    })
}

/// Reads a list of named items of a namespace, such as its tags. Fails if a new name is invalid, or if two items have
/// the same name.
pub(super) fn read_members<M: NamedItem + DeserializeOwned>(
    target: &mut Vec<M>,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    let mut names = BTreeSet::new();
    for (index, member) in target.iter().enumerate() {
        let place = format!("[{index}].name");
        if old.iter().all(|stored| stored.item_name() != member.item_name()) {
            check_member_name(member.item_name()).map_err(|error| error.prefixed(&place))?;
        }
        if !names.insert(member.item_name()) {
            let reason = format!("{:?} occurs twice: remove one of them", truncated(member.item_name()));
            return Err(BodyError::new(place, reason));
        }
    }
    Ok(())
}

/// Reads the tags of a namespace. Responses list them in reversed order, and clients send that list back. So if only
/// the order differs, the stored order remains.
pub(super) fn read_namespace_tags(to: &mut Vec<NamespaceTag>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    fn tag_names(tags: &[NamespaceTag]) -> BTreeSet<&str> {
        tags.iter().map(|tag| tag.name.as_str()).collect()
    }
    let old = to.clone();
    read_members(to, raw, names)?;
    if to.len() == old.len() && tag_names(to) == tag_names(&old) {
        *to = old;
    }
    Ok(())
}

/// Reads the resource types that a namespace applies to, each with an optional prefix of property names. Fails if a new
/// type, or the prefix or target of a new or changed entry, is invalid.
pub(super) fn read_associations(list: &mut Vec<Association>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let old = list.clone();
    read_members(list, raw, names)?;
    check_each(&*list, |entry| {
        if old.contains(entry) {
            return Ok(());
        }
        let is_new = old.iter().all(|stored| stored.name != entry.name);
        if let Some(why) = resource_type_error(&entry.name).filter(|_| is_new) {
            return Err(BodyError::new("name", why));
        }
        for (field, text) in [("prefix", &entry.prefix), ("properties_target", &entry.properties_target)] {
            let Some(text) = text.as_deref() else { continue };
            let checked = check_name_characters(text).and_then(|()| check_max_chars(text, MAX_MEMBER_TEXT_CHARS));
            checked.map_err(|error| error.prefixed(field))?;
        }
        Ok(())
    })
}

/// Reads the objects of a namespace, which are groups of properties. Fails if the name of a new object or property is
/// invalid, if two objects have the same name, or if `required` of an object lists a property twice.
pub(super) fn read_definitions(target: &mut Vec<Definition>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let old = target.clone();
    read_members(target, raw, names)?;
    let empty = Properties::new();
    check_each(&*target, |object| {
        let mut required = BTreeSet::new();
        if let Some(duplicate) = object.required.iter().find(|name| !required.insert(*name)) {
            let reason = format!("{:?} occurs twice: remove one of them", truncated(duplicate));
            return Err(BodyError::new("required", reason));
        }
        let stored_properties = old.iter().find(|stored| stored.name == object.name).map_or(&empty, |stored| &stored.properties);
        check_properties(&object.properties, stored_properties).map_err(|error| error.prefixed("properties"))
    })
}

/// Reads the tasks of a release. Checks the names in tasks that are new or changed.
pub(super) fn read_tasks_field(target: &mut Vec<Task>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = std::mem::take(target);
    let old: BTreeMap<&str, &Task> = old.iter().map(|task| (&*task.id, task)).collect();
    *target = read_tasks(raw)?;
    check_each(&*target, |task| check_task_names(task, old.get(&*task.id).copied()))
}

/// Checks the names in a task. `old` is the stored task with the same id. A task that equals it is accepted.
fn check_task_names(task: &Task, old: Option<&Task>) -> Result<(), BodyError> {
    // Refuses a new id that is a reserved word in another case, such as `Self`. All other invalid ids are reported
    // later, when the release and its imports are combined.
    if old.is_none() && Name::for_declaration(&task.id, NameKind::Task).is_ok() {
        Name::for_new_declaration(&task.id, NameKind::Task).map_err(|why| BodyError::new("id", why.to_string()))?;
    }
    if old == Some(task) { Ok(()) } else { check_task_selectors(task) }
}

/// Reads a hold. Fails if a new `until` is not a time, because a hold with a text that is not a time has no end. Also
/// fails if `until` is set and blank, or if `reason` is set and empty.
pub(super) fn read_hold(target: &mut Option<Box<Hold>>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    let fields: BTreeMap<String, Value> = parse_or_default(raw)?;
    let text_of = |name: &str| fields.get(name).and_then(Value::as_str);
    if text_of("reason").is_some_and(str::is_empty) {
        return Err(BodyError::new("reason", "is empty: write a reason, or leave it out"));
    }
    check_time("until", text_of("until"), old.as_ref().map(|hold| hold.until.as_str()))
}

/// Fails if the new text of a time field is not a time. A text that equals the stored one is accepted unless it is
/// blank.
fn check_time(field: &str, new: Option<&str>, old: Option<&str>) -> Result<(), BodyError> {
    match new {
        Some(text) if is_blank(text) => {
            Err(BodyError::new(field, "is empty: write a time as 2026-12-31T00:00:00Z, or leave it out"))
        }
        Some(text) if new != old => Timestamp::parse(text).map(drop).map_err(|why| BodyError::new(field, why.to_string())),
        Some(_) | None => Ok(()),
    }
}

/// Reads the roles of a group or node. Sorts them and removes duplicates. A new role must not be a reserved word.
pub(super) fn read_role_names(target: &mut Vec<Name>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    check_declared_roles(target, |role| old.contains(role))?;
    target.sort();
    target.dedup();
    Ok(())
}

/// Reads the entries that let an extension, which is a program outside of Stemma, decide the tags of roles. Checks the
/// names of new roles.
pub(super) fn read_extensions(target: &mut Vec<ExtensionUse>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    let is_stored = |role: &Name| old.iter().any(|entry| entry.roles.contains(role));
    check_each(&*target, |entry| check_declared_roles(&entry.roles, is_stored).map_err(|error| error.prefixed("roles")))
}

/// Reads the rules that select labels for the host label map, a file on the host. Fails if a rule is invalid, or if a
/// pattern has no character that a key could have.
pub(super) fn read_host_labels(target: &mut Option<HostLabels>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    *target = parse_or_default(raw)?;
    let checked = target.as_ref().map_or(Ok(()), |rule| rule.compile().map(drop));
    checked.map_err(|why| BodyError::new(why.field(), why.to_string()))?;
    let Some(rule) = target else { return Ok(()) };
    check_patterns_not_empty("patterns", &rule.patterns)?;
    check_patterns_not_empty("annotations", &rule.annotations)
}

/// Fails if a pattern has only the characters of groups, anchors and repetitions, such as `()` or `^$`. Such a pattern
/// matches no key.
fn check_patterns_not_empty(field: &str, patterns: &[String]) -> Result<(), BodyError> {
    // The check of the field's bound already refuses an empty pattern.
    let is_empty = |pattern: &str| !pattern.is_empty() && pattern.chars().all(|character| "()|?:*+^$".contains(character));
    match patterns.iter().enumerate().find(|(_, pattern)| is_empty(pattern)) {
        Some((index, pattern)) => {
            let why = format!("{:?} matches no key: write what keys look like, or leave it out", truncated(pattern));
            Err(BodyError::new(format!("{field}[{index}]"), why))
        }
        None => Ok(()),
    }
}

/// Reads the rollout settings of a cluster. Fails if `freeze`, the end of a freeze of rollouts, is not a time, or if no
/// group can have a name in `order`. Unchanged values are accepted, except a blank `freeze`.
pub(super) fn read_rollout(target: &mut Option<Rollout>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    fn freeze_time(rollout: Option<&Rollout>) -> Option<&str> {
        rollout?.freeze.as_deref()
    }
    let old = replace_value(target, raw)?;
    check_time("freeze", freeze_time(target.as_ref()), freeze_time(old.as_ref()))?;
    let old_order = old.as_ref().map_or(&[][..], |rollout| rollout.order.as_slice());
    let checked = check_each(target.iter().flat_map(|rollout| &rollout.order), |group| {
        if old_order.contains(group) { Ok(()) } else { check_group_name(group) }
    });
    checked.map_err(|error| error.prefixed("order"))
}

/// Fails if a text cannot be the name of a node group. A uuid is refused too, because only names are accepted here.
fn check_group_name(name: &str) -> Result<(), BodyError> {
    check_no_control(name)?;
    if is_uuid_like(name) {
        let why = format!("{} looks like a uuid, but only the name of a group is accepted here", quoted(name));
        return Err(BodyError::new("", format!("no group can have this name: {why}")));
    }
    ObjectName::new(name).map(drop).map_err(|why| BodyError::new("", format!("no group can have this name: {why}")))
}

/// Fails if a text can be neither the name nor the uuid of a node.
fn check_node_reference(name: &str) -> Result<(), BodyError> {
    check_no_control(name)?;
    if Uuid::parse_str(name).is_ok() {
        return Ok(());
    }
    NodeName::new(name).map(drop).map_err(|why| BodyError::new("", format!("no node can have this name: {why}")))
}

/// Reads the rollout strategy of a group. Checks the canary (the hosts that roll out first) and the weekly windows,
/// unless they are unchanged. An empty selector is refused, because it would select all hosts.
pub(super) fn read_strategy(target: &mut Option<Strategy>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    let Some(strategy) = target else { return Ok(()) };
    let old_canary = old.as_ref().and_then(|stored| stored.canary.as_ref());
    if let Some(canary) = strategy.canary.as_ref().filter(|canary| old_canary != Some(*canary)) {
        let checked = check_no_blank_text(&to_raw_value(canary)).and_then(|()| check_canary(canary));
        checked.map_err(|error| error.prefixed("canary"))?;
    }
    let is_stored = |window: &Value| old.as_ref().is_some_and(|stored| stored.windows.contains(window));
    let checked = check_each(&strategy.windows, |window| if is_stored(window) { Ok(()) } else { check_window(window) });
    checked.map_err(|error| error.prefixed("windows"))
}

/// Fails if a weekly window of a rollout strategy is invalid.
fn check_window(window: &Value) -> Result<(), BodyError> {
    let window: Window = read_json(&to_raw_value(window))?;
    window.check().map_err(|(field, why)| BodyError::new(field, why))
}

/// Converts a JSON value to JSON text.
fn to_raw_value(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Reads a map from tags to the node that is to be primary. A blank node is refused, because its author might expect it
/// to remove the primary. Fails if a new tag or a new name of a node is invalid.
pub(super) fn read_primaries(map: &mut BTreeMap<TagName, String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(map, raw)?;
    if let Some((tag, _)) = map.iter().find(|(_, node)| is_blank(node)) {
        return Err(BodyError::new(tag.as_str(), "is empty: name a node, or leave the tag out"));
    }
    map.iter().filter(|(tag, node)| old.get(*tag) != Some(*node)).try_for_each(|(tag, node)| {
        let tag_check = if old.contains_key(tag) { Ok(()) } else { check_declared_tag(tag) };
        tag_check.and_then(|()| check_node_reference(node)).map_err(|error| error.prefixed(tag))
    })
}

/// Reads the tags that a release or a cluster declares. Checks the names of new tags and of changed roles.
pub(super) fn read_tags(target: &mut BTreeMap<TagName, TagSpec>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    target.iter().try_for_each(|(name, tag)| check_tag_names(name, tag, old.get(name)).map_err(|error| error.prefixed(name)))
}

/// Checks the name of a tag if the tag is new, and the name of its role if that changed. `old` is the stored tag.
fn check_tag_names(name: &TagName, tag: &TagSpec, old: Option<&TagSpec>) -> Result<(), BodyError> {
    if old.is_none() {
        check_declared_tag(name)?;
    }
    let old_role = old.and_then(|stored| stored.role.as_ref());
    let role = tag.role.as_ref().filter(|role| old_role != Some(*role));
    role.map_or(Ok(()), check_declared_role).map_err(|error| error.prefixed("role"))
}

/// Reads the roles of a release. Checks the name, tags, conflicts, fault tolerance and limits of each role.
pub(super) fn read_roles(target: &mut BTreeMap<Name, RoleSpec>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let mut old = replace_value(target, raw)?;
    // The stored roles are normalized too, so that a number which an older version stored as `1.0` equals the new `1`.
    target.values_mut().chain(old.values_mut()).for_each(normalize_role_numbers);
    target.iter().try_for_each(|(name, role)| check_role(name, role, old.get(name)).map_err(|error| error.prefixed(name)))
}

/// Converts whole numbers in the fault tolerance and limits of a role to integers, such as `1.0` to `1`.
fn normalize_role_numbers(role: &mut RoleSpec) {
    role.fault_tolerance.iter_mut().chain(role.limits.values_mut()).for_each(json::normalize_integers);
}

/// Checks a role of a release: its name, its tags, its conflicts, its fault tolerance and its limits. Accepts what
/// `old`, the stored role, already has, except for limits.
fn check_role(name: &Name, role: &RoleSpec, old: Option<&RoleSpec>) -> Result<(), BodyError> {
    if old.is_none() {
        check_declared_role(name)?;
    }
    let stored = old.and_then(|role| role.tags.as_deref()).unwrap_or_default();
    let tags = check_declared_tags(role.tags.iter().flatten(), |tag| stored.contains(tag));
    tags.map_err(|error| error.prefixed("tags"))?;
    let stored = old.map_or(&[][..], |role| role.conflicts.as_slice());
    let conflicts = check_declared_roles(&role.conflicts, |role| stored.contains(role));
    conflicts.map_err(|error| error.prefixed("conflicts"))?;
    let stored = old.and_then(|role| role.fault_tolerance.as_ref());
    let tolerance = role.fault_tolerance.as_ref().filter(|tolerance| stored != Some(*tolerance));
    if let Some(invalid) = tolerance.filter(|tolerance| !RoleSpec::is_fault_tolerance(tolerance)) {
        let why = format!(
            "{} is neither a whole number of nodes nor a percentage of them: write one as 1 or \"10%\", or leave it out",
            truncated(&invalid.to_string())
        );
        return Err(BodyError::new("fault_tolerance", why));
    }
    role.limits
        .iter()
        .try_for_each(|(limit, value)| check_limit(limit, value).map_err(|why| BodyError::new(format!("limits.{limit}"), why)))
}

/// Checks an entry of a role's `limits`. `min` and `max` are a whole number, `null`, or an expression of Fuel, which is
/// stored unchanged. Other limits of Fuel may have any value. Any other name is an error.
fn check_limit(name: &str, value: &Value) -> Result<(), String> {
    let (compared, uncompared) = (RoleSpec::COMPARED_LIMITS, RoleSpec::UNCOMPARED_LIMITS);
    if uncompared.contains(&name) {
        return Ok(());
    }
    if !compared.contains(&name) {
        let limit_names = || compared.into_iter().chain(uncompared);
        let suggestion = did_you_mean(closest_match(name, limit_names()));
        let all_names = limit_names().collect::<Vec<_>>().join(", ");
        return Err(format!("there is no such limit{suggestion}: the limits are {all_names}"));
    }
    // An expression of Fuel contains a colon, because it names the values that it reads as `settings:…`.
    let is_expression = value.as_str().is_some_and(|text| text.contains(':'));
    if value.is_null() || value.is_u64() || is_expression {
        return Ok(());
    }
    Err(format!("{} is not a whole number", truncated(&value.to_string())))
}

/// Checks a cluster's changes to the roles of its release. Roles and tags in the stored changes are accepted. The field
/// of an error begins with the role. If a tag is invalid, the list and the index of the tag follow.
fn check_role_changes(old: &BTreeMap<Name, RoleChange>, changes: &BTreeMap<Name, RoleChange>) -> Result<(), BodyError> {
    changes.iter().try_for_each(|(name, change)| {
        if !old.contains_key(name) {
            check_declared_role(name).map_err(|error| error.prefixed(name))?;
        }
        let (old_added, old_removed) =
            old.get(name).map_or((&[][..], &[][..]), |change| (change.add_tags.as_slice(), change.remove_tags.as_slice()));
        let add_check = check_declared_tags(&change.add_tags, |tag| old_added.contains(tag));
        add_check.map_err(|error| error.prefixed(&format!("{name}.add_tags")))?;
        let remove_check = check_removed_tags(&change.remove_tags, |tag| old_removed.contains(tag));
        remove_check.map_err(|error| error.prefixed(&format!("{name}.remove_tags")))
    })
}

/// Reads a cluster's changes to the tags that its roles produce. Checks new names.
pub(super) fn read_role_changes(
    target: &mut BTreeMap<Name, RoleChange>,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    let old = replace_value(target, raw)?;
    check_role_changes(&old, target)
}

/// Reads the requirements of a group or allocation. Fails if one is invalid, or if a required trait is not known. Only
/// a stored requirement may have a blank name of a property or fact, because older versions accepted it.
pub(super) fn read_requirements(target: &mut Requirements, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let requirement_error = |reason: String| BodyError::with_kind(BodyErrorKind::Requirement, "", reason);
    let old = std::mem::take(target);
    *target = Requirements::from_json(raw).map_err(|why| requirement_error(why.to_string()))?;
    let is_stored = |key: String| old.0.iter().any(|stored| stored.key() == key);
    let mut new_requirements = target.0.iter().filter(|requirement| !is_stored(requirement.key()));
    new_requirements.try_for_each(Requirement::check_name).map_err(|why| requirement_error(why.to_string()))?;
    target.check(names.trait_names()).map_err(|why| requirement_error(why.to_string()))
}

/// Reads the detected traits that an operator suppresses on a node. Fails if a trait is not known.
pub(super) fn read_suppressed_traits(target: &mut TraitSet, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    *target = parse_or_default(raw).map_err(|error| error.with_value_kind(BodyErrorKind::Trait))?;
    let checked = target.iter().try_for_each(|name| names.trait_names().check(name));
    checked.map_err(|why| BodyError::with_kind(BodyErrorKind::Trait, "", why.to_string()))
}

#[cfg(test)]
mod tests;
