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
use super::empty::{check_name_characters, check_no_control, check_no_empty_text, check_path_segment};
use super::error::{BodyError, BodyErrorKind, check_each};
use super::names::NameResolver;
use super::reader::read_json;
use super::task::{check_control_characters, read_tasks};
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

/// Reads a field that has no further rules.
pub(super) fn read_plain<T: Default + DeserializeOwned>(
    to: &mut T,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    *to = parse_or_default(raw)?;
    Ok(())
}

/// Reads a field's value; `null` gives the default.
fn parse_or_default<T: Default + DeserializeOwned>(raw: &RawValue) -> Result<T, BodyError> {
    if is_null(raw) { Ok(T::default()) } else { read_json(raw) }
}

/// Replaces a field's value and returns the previous one.
pub(super) fn replace_value<T: Default + DeserializeOwned>(to: &mut T, raw: &RawValue) -> Result<T, BodyError> {
    Ok(std::mem::replace(to, parse_or_default(raw)?))
}

/// Reads free JSON and converts its whole numbers to integers.
pub(super) fn read_free_json(to: &mut Extra, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    *to = parse_or_default(raw)?;
    to.values_mut().for_each(json::normalize_integers);
    Ok(())
}

/// Reads the labels of the object itself, whose values are texts. A new key or value must be valid for a label of a
/// level.
pub(super) fn read_labels(to: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let written = parse_text_map(raw).and_then(|next| {
        let old = std::mem::replace(to, next);
        to.iter().try_for_each(|(key, value)| check_label(key, value, old.get(key)))
    });
    written.map_err(|error| error.with_value_kind(BodyErrorKind::Label))
}

/// Checks one label of the object itself. An error about an invalid key has no field, as in the maps of a level.
fn check_label(key: &str, value: &str, old: Option<&String>) -> Result<(), BodyError> {
    if old.is_none() {
        LabelKey::new(key).map_err(|why| BodyError::new("", why.to_string()))?;
    }
    if old.is_none_or(|before| before != value) {
        LabelValue::new(value).map_err(|why| BodyError::new(key, why.to_string()))?;
    }
    Ok(())
}

/// Reads the annotations of the object itself, whose values are texts. A new key must be valid for an annotation of a
/// level. A value may be any text.
pub(super) fn read_annotations(to: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = std::mem::replace(to, parse_text_map(raw)?);
    to.keys()
        .filter(|key| !old.contains_key(*key))
        .try_for_each(|key| AnnotationKey::new(key).map(drop).map_err(|why| BodyError::new("", why.to_string())))
}

/// Reads a map of texts. Numbers, `true` and `false` are accepted as their text, as in the maps of a level. So a JSON
/// patch of one key, whose value is sent without its map, has the same effect as a write of the whole map.
fn parse_text_map(raw: &RawValue) -> Result<BTreeMap<String, String>, BodyError> {
    let Ok(members) = json::members(raw) else { return parse_or_default(raw) };
    let text = |(key, raw): (String, &RawValue)| -> Result<(String, String), BodyError> {
        let scalar = scalar_text(raw).ok().flatten();
        let text = scalar.map_or_else(|| read_json(raw), Ok).map_err(|error| error.prefixed(&key))?;
        Ok((key, text))
    };
    members.into_iter().map(text).collect()
}

/// Reads a text of at most `MAX_CHARS` characters.
pub(super) fn read_text<const MAX_CHARS: usize>(
    to: &mut Option<String>,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    *to = parse_or_default(raw)?;
    to.as_deref().map_or(Ok(()), |text| check_max_chars(text, MAX_CHARS))
}

/// Reads an optional name. A new one must not be blank.
pub(super) fn read_optional_name(to: &mut Option<String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    to.as_deref().filter(|text| old.as_deref() != Some(*text)).map_or(Ok(()), check_name_characters)
}

/// Reads a required name. An empty one is accepted here, because the check for required fields refuses it.
pub(super) fn read_required_name(to: &mut String, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    if to.is_empty() || *to == old { Ok(()) } else { check_name_characters(to) }
}

/// Reads an optional name of at most `MAX_CHARS` characters.
pub(super) fn read_name<const MAX_CHARS: usize>(
    to: &mut Option<String>,
    raw: &RawValue,
    names: &dyn NameResolver,
) -> Result<(), BodyError> {
    read_optional_name(to, raw, names)?;
    to.as_deref().map_or(Ok(()), |text| check_max_chars(text, MAX_CHARS))
}

fn check_max_chars(text: &str, most: usize) -> Result<(), BodyError> {
    match text.chars().nth(most) {
        None => Ok(()),
        Some(_) => Err(BodyError::new("", format!("{:?}… is longer than {most} characters", truncated(text)))),
    }
}

/// Maximum length of the name of a namespace's member, in characters.
const MAX_MEMBER_NAME_CHARS: usize = 80;

/// Checks a new name of a property, object, tag or resource type of a namespace.
///
/// # Errors
/// [`BodyError`] without a field if the name is blank, contains a control character, is `.` or `..`, or has more than
/// 80 characters.
pub fn check_member_name(name: &str) -> Result<(), BodyError> {
    check_name_characters(name)?;
    check_path_segment(name)?;
    check_max_chars(name, MAX_MEMBER_NAME_CHARS)
}

/// Reads the properties of a namespace. Each is stored under its name. The `name` within it, which Glance's clients
/// send, is dropped.
pub(super) fn read_properties(to: &mut Properties, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    for (key, property) in to.iter_mut() {
        drop_redundant_name(key, property, old.get(key));
    }
    to.keys().filter(|name| !old.contains_key(*name)).try_for_each(|name| check_path_segment(name))?;
    check_properties(to, &old)
}

/// Removes the `name` of a property if it equals the key. If an older version stored the property with its `name` and
/// nothing else changed, the `name` stays, because sending it again is no change.
fn drop_redundant_name(key: &str, property: &mut Property, old: Option<&Property>) {
    let is_named = |property: &Property| property.name.as_deref() == Some(key);
    if property.name.is_some() && !is_named(property) {
        return;
    }
    property.name = None;
    let old = old.filter(|before| is_named(before));
    if let Some(before) = old.filter(|before| Property { name: None, ..(*before).clone() } == *property) {
        property.name.clone_from(&before.name);
    }
}

/// Checks the keys of properties, which are their names, and the `name` fields within them. Only new ones are checked.
fn check_properties(properties: &Properties, old: &Properties) -> Result<(), BodyError> {
    properties.iter().try_for_each(|(key, property)| {
        if !old.contains_key(key) {
            check_max_chars(key, MAX_MEMBER_NAME_CHARS)?;
        }
        let Some(name) = property.name.as_deref() else { return Ok(()) };
        if old.get(key).is_some_and(|before| before.name == property.name) {
            return Ok(());
        }
        check_name_characters(name)
            .and_then(|()| check_max_chars(name, MAX_MEMBER_NAME_CHARS))
            .map_err(|error| error.prefixed("name").prefixed(key))
    })
}

/// Reads a list of members of a namespace. Each name may occur once.
pub(super) fn read_members<M: NamedItem + DeserializeOwned>(
    to: &mut Vec<M>,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    let mut names = BTreeSet::new();
    for (at, member) in to.iter().enumerate() {
        let place = format!("[{at}].name");
        if old.iter().all(|one| one.item_name() != member.item_name()) {
            check_member_name(member.item_name()).map_err(|error| error.prefixed(&place))?;
        }
        if !names.insert(member.item_name()) {
            let reason = format!("{:?} is there twice: keep one of them", truncated(member.item_name()));
            return Err(BodyError::new(place, reason));
        }
    }
    Ok(())
}

/// Reads the tags of a namespace. They have no order, and responses show them reversed. If only the order differs, the
/// stored order is retained.
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

/// Reads the resource types that a namespace applies to, each with the prefix of its property names there.
pub(super) fn read_associations(to: &mut Vec<Association>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let old = to.clone();
    read_members(to, raw, names)?;
    check_each(&*to, |entry| {
        if old.contains(entry) {
            return Ok(());
        }
        let is_new = old.iter().all(|before| before.name != entry.name);
        if let Some(why) = resource_type_error(&entry.name).filter(|_| is_new) {
            return Err(BodyError::new("name", why));
        }
        for (field, text) in [("prefix", &entry.prefix), ("properties_target", &entry.properties_target)] {
            let Some(text) = text.as_deref() else { continue };
            let checked = check_name_characters(text).and_then(|()| check_max_chars(text, MAX_MEMBER_NAME_CHARS));
            checked.map_err(|error| error.prefixed(field))?;
        }
        Ok(())
    })
}

/// Reads the objects of a namespace. Each may require a property once.
pub(super) fn read_definitions(to: &mut Vec<Definition>, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let old = to.clone();
    read_members(to, raw, names)?;
    let empty = Properties::new();
    check_each(&*to, |object| {
        let mut required = BTreeSet::new();
        if let Some(duplicate) = object.required.iter().find(|name| !required.insert(*name)) {
            let reason = format!("{:?} is there twice: keep one of them", truncated(duplicate));
            return Err(BodyError::new("required", reason));
        }
        let before = old.iter().find(|one| one.name == object.name).map_or(&empty, |one| &one.properties);
        check_properties(&object.properties, before).map_err(|error| error.prefixed("properties"))
    })
}

/// Reads a release's tasks.
pub(super) fn read_tasks_field(to: &mut Vec<Task>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = std::mem::take(to);
    let old: BTreeMap<&str, &Task> = old.iter().map(|task| (&*task.id, task)).collect();
    *to = read_tasks(raw)?;
    check_each(&*to, |task| check_task_names(task, old.get(&*task.id).copied()))
}

/// Checks the names in a task. A task that is stored unchanged is accepted.
fn check_task_names(task: &Task, old: Option<&Task>) -> Result<(), BodyError> {
    // The other rules for task names are checked when the release and its imports are put together.
    if old.is_none() && Name::for_declaration(&task.id, NameKind::Task).is_ok() {
        Name::for_new_declaration(&task.id, NameKind::Task).map_err(|why| BodyError::new("id", why.to_string()))?;
    }
    if old == Some(task) { Ok(()) } else { check_control_characters(task) }
}

/// Reads a hold. Its end must be a time if it is set, because any other text, even an empty one, would hold for ever.
pub(super) fn read_hold(to: &mut Option<Box<Hold>>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    let fields: BTreeMap<String, Value> = parse_or_default(raw)?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    if text("reason").is_some_and(str::is_empty) {
        return Err(BodyError::new("reason", "is empty: say why, or leave it out"));
    }
    check_time("until", text("until"), old.as_ref().map(|prior| prior.until.as_str()))
}

/// Checks a time field. An unchanged value is accepted unless it is blank.
fn check_time(field: &str, sent: Option<&str>, old: Option<&str>) -> Result<(), BodyError> {
    match sent {
        Some(blank) if is_blank(blank) => {
            Err(BodyError::new(field, "is empty: write a time as 2026-12-31T00:00:00Z, or leave it out"))
        }
        Some(new) if sent != old => Timestamp::parse(new).map(drop).map_err(|why| BodyError::new(field, why.to_string())),
        Some(_) | None => Ok(()),
    }
}

/// Reads the roles of a group or node, and sorts them.
pub(super) fn read_role_names(to: &mut Vec<Name>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    check_declared_roles(to, |role| old.contains(role))?;
    to.sort();
    to.dedup();
    Ok(())
}

/// Reads the roles whose tags an extension decides.
pub(super) fn read_extensions(to: &mut Vec<ExtensionUse>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    let is_stored = |role: &Name| old.iter().any(|one| one.roles.contains(role));
    check_each(&*to, |one| check_declared_roles(&one.roles, is_stored).map_err(|error| error.prefixed("roles")))
}

/// Reads the rules for the host label map, and checks that they compile.
pub(super) fn read_host_labels(to: &mut Option<HostLabels>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    *to = parse_or_default(raw)?;
    let checked = to.as_ref().map_or(Ok(()), |rule| rule.compile().map(drop));
    checked.map_err(|why| BodyError::new(why.field(), why.to_string()))?;
    let Some(rule) = to else { return Ok(()) };
    check_patterns_not_empty("patterns", &rule.patterns)?;
    check_patterns_not_empty("annotations", &rule.annotations)
}

/// Fails if a pattern consists only of groups, anchors and repetitions. It matches no key, like an empty one.
fn check_patterns_not_empty(field: &str, patterns: &[String]) -> Result<(), BodyError> {
    // The bounds of lists refuse the empty text itself.
    let is_empty = |pattern: &str| !pattern.is_empty() && pattern.chars().all(|character| "()|?:*+^$".contains(character));
    match patterns.iter().enumerate().find(|(_, pattern)| is_empty(pattern)) {
        Some((at, pattern)) => {
            let why = format!("{:?} matches no key: write what keys look like, or leave it out", truncated(pattern));
            Err(BodyError::new(format!("{field}[{at}]"), why))
        }
        None => Ok(()),
    }
}

/// Reads the rollout settings. An empty `freeze` is refused: it is not a time, and its author might believe that it
/// freezes rollouts.
pub(super) fn read_rollout(to: &mut Option<Rollout>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    fn freeze_time(rollout: Option<&Rollout>) -> Option<&str> {
        rollout?.freeze.as_deref()
    }
    let old = replace_value(to, raw)?;
    check_time("freeze", freeze_time(to.as_ref()), freeze_time(old.as_ref()))?;
    let before = old.as_ref().map_or(&[][..], |rollout| rollout.order.as_slice());
    let checked = check_each(to.iter().flat_map(|rollout| &rollout.order), |group| {
        if before.contains(group) { Ok(()) } else { check_group_name(group) }
    });
    checked.map_err(|error| error.prefixed("order"))
}

/// Fails if no group can have this name.
fn check_group_name(name: &str) -> Result<(), BodyError> {
    check_no_control(name)?;
    if is_uuid_like(name) {
        let why = format!("{} looks like a uuid, but only the name of a group is accepted here", quoted(name));
        return Err(BodyError::new("", format!("no group is called so: {why}")));
    }
    ObjectName::new(name).map(drop).map_err(|why| BodyError::new("", format!("no group is called so: {why}")))
}

/// Fails if no node can have this name or uuid.
fn check_node_reference(name: &str) -> Result<(), BodyError> {
    check_no_control(name)?;
    if Uuid::parse_str(name).is_ok() {
        return Ok(());
    }
    NodeName::new(name).map(drop).map_err(|why| BodyError::new("", format!("no node is called so: {why}")))
}

/// Reads the rollout strategy of a group. An empty canary selector is refused, because it would select all hosts.
pub(super) fn read_strategy(to: &mut Option<Strategy>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    let Some(strategy) = to else { return Ok(()) };
    let before = old.as_ref().and_then(|prior| prior.canary.as_ref());
    if let Some(canary) = strategy.canary.as_ref().filter(|canary| before != Some(*canary)) {
        let checked = check_no_empty_text(&quoted_scalar(canary)).and_then(|()| check_canary(canary));
        checked.map_err(|error| error.prefixed("canary"))?;
    }
    let is_stored = |window: &Value| old.as_ref().is_some_and(|prior| prior.windows.contains(window));
    let checked = check_each(&strategy.windows, |one| if is_stored(one) { Ok(()) } else { check_window(one) });
    checked.map_err(|error| error.prefixed("windows"))
}

fn check_window(window: &Value) -> Result<(), BodyError> {
    let window: Window = read_json(&quoted_scalar(window))?;
    window.check().map_err(|(field, why)| BodyError::new(field, why))
}

fn quoted_scalar(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Reads which node is to be the primary of each tag. A blank name is refused, because it names no node, and its author
/// might believe that it removes the primary.
pub(super) fn read_primaries(to: &mut BTreeMap<TagName, String>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    if let Some((tag, _)) = to.iter().find(|(_, node)| is_blank(node)) {
        return Err(BodyError::new(tag.as_str(), "is empty: name a node, or leave the tag out"));
    }
    to.iter().filter(|(tag, node)| old.get(*tag) != Some(*node)).try_for_each(|(tag, node)| {
        let declared = if old.contains_key(tag) { Ok(()) } else { check_declared_tag(tag) };
        declared.and_then(|()| check_node_reference(node)).map_err(|error| error.prefixed(tag))
    })
}

/// Reads the tags that a release or a cluster declares.
pub(super) fn read_tags(to: &mut BTreeMap<TagName, TagSpec>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    to.iter().try_for_each(|(name, tag)| check_tag_names(name, tag, old.get(name)).map_err(|error| error.prefixed(name)))
}

/// Checks the name of a tag and of its role, if they are new.
fn check_tag_names(name: &TagName, tag: &TagSpec, old: Option<&TagSpec>) -> Result<(), BodyError> {
    if old.is_none() {
        check_declared_tag(name)?;
    }
    let before = old.and_then(|prior| prior.role.as_ref());
    let role = tag.role.as_ref().filter(|role| before != Some(*role));
    role.map_or(Ok(()), check_declared_role).map_err(|error| error.prefixed("role"))
}

/// Reads the roles of a release. Checks their names and the tags that they produce.
pub(super) fn read_roles(to: &mut BTreeMap<Name, RoleSpec>, raw: &RawValue, _: &dyn NameResolver) -> Result<(), BodyError> {
    let mut old = replace_value(to, raw)?;
    // The stored roles are normalized too, so that a number of an older version compares equal.
    to.values_mut().chain(old.values_mut()).for_each(normalize_role_numbers);
    to.iter().try_for_each(|(name, role)| check_role(name, role, old.get(name)).map_err(|error| error.prefixed(name)))
}

/// Converts whole numbers of a role to integers, as in free JSON.
fn normalize_role_numbers(role: &mut RoleSpec) {
    role.fault_tolerance.iter_mut().chain(role.limits.values_mut()).for_each(json::normalize_integers);
}

/// Checks the new names in a role: its own, its tags and its conflicts. Also checks its tolerance and limits.
fn check_role(name: &Name, role: &RoleSpec, old: Option<&RoleSpec>) -> Result<(), BodyError> {
    if old.is_none() {
        check_declared_role(name)?;
    }
    let before = old.and_then(|role| role.tags.as_deref()).unwrap_or_default();
    let tags = check_declared_tags(role.tags.iter().flatten(), |tag| before.contains(tag));
    tags.map_err(|error| error.prefixed("tags"))?;
    let before = old.map_or(&[][..], |role| role.conflicts.as_slice());
    let conflicts = check_declared_roles(&role.conflicts, |role| before.contains(role));
    conflicts.map_err(|error| error.prefixed("conflicts"))?;
    let before = old.and_then(|role| role.fault_tolerance.as_ref());
    let tolerance = role.fault_tolerance.as_ref().filter(|tolerance| before != Some(*tolerance));
    if let Some(odd) = tolerance.filter(|tolerance| !RoleSpec::is_fault_tolerance(tolerance)) {
        let why = format!(
            "{} is neither a whole number of nodes nor a percentage of them: write one as 1 or \"10%\", or leave it out",
            truncated(&odd.to_string())
        );
        return Err(BodyError::new("fault_tolerance", why));
    }
    role.limits
        .iter()
        .try_for_each(|(limit, value)| check_limit(limit, value).map_err(|why| BodyError::new(format!("limits.{limit}"), why)))
}

/// Checks a limit of a role. It must be a whole number, or an expression of Fuel's settings, which is stored unchanged.
fn check_limit(name: &str, value: &Value) -> Result<(), String> {
    let (compared, other) = (RoleSpec::COMPARED_LIMITS, RoleSpec::UNCOMPARED_LIMITS);
    if other.contains(&name) {
        return Ok(());
    }
    if !compared.contains(&name) {
        let known = || compared.into_iter().chain(other);
        let near = did_you_mean(closest_match(name, known()));
        let listed = known().collect::<Vec<_>>().join(", ");
        return Err(format!("there is no such limit{near}: the limits are {listed}"));
    }
    // An expression of Fuel's names the values that it reads as `settings:…`.
    let is_expression = value.as_str().is_some_and(|text| text.contains(':'));
    if value.is_null() || value.is_u64() || is_expression {
        return Ok(());
    }
    Err(format!("{} is not a whole number", truncated(&value.to_string())))
}

/// Checks a cluster's changes to the roles of its release. An error names the role and the place in its list.
fn check_role_changes(old: &BTreeMap<Name, RoleChange>, changes: &BTreeMap<Name, RoleChange>) -> Result<(), BodyError> {
    changes.iter().try_for_each(|(name, change)| {
        if !old.contains_key(name) {
            check_declared_role(name).map_err(|error| error.prefixed(name))?;
        }
        let (added, removed) =
            old.get(name).map_or((&[][..], &[][..]), |change| (change.add_tags.as_slice(), change.remove_tags.as_slice()));
        let add = check_declared_tags(&change.add_tags, |tag| added.contains(tag));
        add.map_err(|error| error.prefixed(&format!("{name}.add_tags")))?;
        let remove = check_removed_tags(&change.remove_tags, |tag| removed.contains(tag));
        remove.map_err(|error| error.prefixed(&format!("{name}.remove_tags")))
    })
}

pub(super) fn read_role_changes(
    to: &mut BTreeMap<Name, RoleChange>,
    raw: &RawValue,
    _: &dyn NameResolver,
) -> Result<(), BodyError> {
    let old = replace_value(to, raw)?;
    check_role_changes(&old, to)
}

/// Reads requirements. Names that are not stored yet are checked by stricter rules.
pub(super) fn read_requirements(to: &mut Requirements, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    let wrong = |reason: String| BodyError::with_kind(BodyErrorKind::Requirement, "", reason);
    let old = std::mem::take(to);
    *to = Requirements::from_json(raw).map_err(|why| wrong(why.to_string()))?;
    let is_stored = |key: String| old.0.iter().any(|before| before.key() == key);
    let mut new = to.0.iter().filter(|one| !is_stored(one.key()));
    new.try_for_each(Requirement::check_name).map_err(|why| wrong(why.to_string()))?;
    to.check(names.trait_names()).map_err(|why| wrong(why.to_string()))
}

pub(super) fn read_suppressed_traits(to: &mut TraitSet, raw: &RawValue, names: &dyn NameResolver) -> Result<(), BodyError> {
    *to = parse_or_default(raw).map_err(|error| error.with_value_kind(BodyErrorKind::Trait))?;
    let checked = to.iter().try_for_each(|name| names.trait_names().check(name));
    checked.map_err(|why| BodyError::with_kind(BodyErrorKind::Trait, "", why.to_string()))
}

#[cfg(test)]
mod tests;
