//! Fields with rules beyond their form: names that may be declared, traits that exist, patterns that compile.
//!
//! These rules are checked when a body is read. Of names, times and what selects hosts only what a body changes is asked: what stands
//! there already, as an older program took it, may be written again.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::body::is_null;
use super::canary::check_canary;
use super::declared::{declared_role, declared_roles, declared_tag, declared_tags, taken_away_tags};
use super::empty::{check_naming, check_no_control, check_says_something, check_segment};
use super::error::{BodyError, BodyErrorKind, check_each};
use super::names::Names;
use super::reader::read;
use super::task::{check_names, read_tasks};
use crate::catalog::odd_resource_type;
use crate::host_labels::HostLabels;
use crate::json;
use crate::key::{AnnotationKey, LabelKey, LabelValue, scalar_text};
use crate::name::{Name, NameKind, NodeName, ObjectName, TagName, cut, is_blank, is_uuid_like, near, quoted, suggest};
use crate::object::{
    Association, Definition, ExtensionUse, Extra, Hold, Member, NamespaceTag, Properties, Property, RoleChange,
    RoleSpec, Rollout, Strategy, TagSpec, Timestamp, TraitSet, Window,
};
use crate::requirement::{Requirement, Requirements};
use crate::task::Task;

/// A field without rules of its own.
pub(super) fn plain<T: Default + DeserializeOwned>(to: &mut T, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    *to = value(raw)?;
    Ok(())
}

/// A field's value; `null` is its default.
fn value<T: Default + DeserializeOwned>(raw: &RawValue) -> Result<T, BodyError> {
    if is_null(raw) { Ok(T::default()) } else { read(raw) }
}

/// Puts a field's value in its place and gives what stood there.
pub(super) fn replace<T: Default + DeserializeOwned>(to: &mut T, raw: &RawValue) -> Result<T, BodyError> {
    Ok(std::mem::replace(to, value(raw)?))
}

/// Free JSON, whose whole numbers are integers.
pub(super) fn free(to: &mut Extra, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    *to = value(raw)?;
    to.values_mut().for_each(json::whole_to_integers);
    Ok(())
}

/// Labels of an object itself, which are texts. A new key or value is one that a label of a level may have.
pub(super) fn labels(to: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let written = map_of_texts(raw).and_then(|next| {
        let stood = std::mem::replace(to, next);
        to.iter().try_for_each(|(key, value)| check_label(key, value, stood.get(key)))
    });
    written.map_err(|error| error.in_value_of(BodyErrorKind::Label))
}

/// Checks a label of an object itself. A key that is none stands in no field, as in the maps of a level.
fn check_label(key: &str, value: &str, stood: Option<&String>) -> Result<(), BodyError> {
    if stood.is_none() {
        LabelKey::new(key).map_err(|why| BodyError::new("", why.to_string()))?;
    }
    if stood.is_none_or(|before| before != value) {
        LabelValue::new(value).map_err(|why| BodyError::new(key, why.to_string()))?;
    }
    Ok(())
}

/// Annotations of an object itself, which are texts too. A new key is one that an annotation of a level may have; a value is any text.
pub(super) fn annotations(to: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = std::mem::replace(to, map_of_texts(raw)?);
    to.keys()
        .filter(|key| !stood.contains_key(*key))
        .try_for_each(|key| AnnotationKey::new(key).map(drop).map_err(|why| BodyError::new("", why.to_string())))
}

/// A map of texts. A number, `true` and `false` are taken by their text, as in the maps of a level: so a JSON patch of one key, whose value comes
/// without the map around it, says the same as a write of the whole map.
fn map_of_texts(raw: &RawValue) -> Result<BTreeMap<String, String>, BodyError> {
    let Ok(members) = json::members(raw) else { return value(raw) };
    let text = |(key, raw): (String, &RawValue)| -> Result<(String, String), BodyError> {
        let scalar = scalar_text(raw).ok().flatten();
        let text = scalar.map_or_else(|| read(raw), Ok).map_err(|error| error.within(&key))?;
        Ok((key, text))
    };
    members.into_iter().map(text).collect()
}

/// A text of at most so many characters.
pub(super) fn text_of<const MOST: usize>(
    to: &mut Option<String>,
    raw: &RawValue,
    _: &dyn Names,
) -> Result<(), BodyError> {
    *to = value(raw)?;
    to.as_deref().map_or(Ok(()), |text| short(text, MOST))
}

/// A text that names something: an empty one would name nothing.
pub(super) fn naming(to: &mut Option<String>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    to.as_deref().filter(|text| stood.as_deref() != Some(*text)).map_or(Ok(()), check_naming)
}

/// The same of one that is required: an empty one is refused where what is required is asked for.
pub(super) fn needed_name(to: &mut String, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    if to.is_empty() || *to == stood { Ok(()) } else { check_naming(to) }
}

/// The same of at most so many characters.
pub(super) fn name_of<const MOST: usize>(
    to: &mut Option<String>,
    raw: &RawValue,
    names: &dyn Names,
) -> Result<(), BodyError> {
    naming(to, raw, names)?;
    to.as_deref().map_or(Ok(()), |text| short(text, MOST))
}

fn short(text: &str, most: usize) -> Result<(), BodyError> {
    match text.chars().nth(most) {
        None => Ok(()),
        Some(_) => Err(BodyError::new("", format!("{:?}… is longer than {most} characters", cut(text)))),
    }
}

/// The longest name of what stands in a namespace, in characters.
const MAX_MEMBER: usize = 80;

/// Checks the name that a property, an object, a tag or a resource type of a namespace is to have.
///
/// # Errors
/// [`BodyError`] of no field, for a text of blanks, one with a control character, a step of a path, or one of more than 80 characters.
pub fn check_member_name(name: &str) -> Result<(), BodyError> {
    check_naming(name)?;
    check_segment(name)?;
    short(name, MAX_MEMBER)
}

/// The properties of a namespace. Each is stored by its name, and not with it too, as Glance's clients send it.
pub(super) fn properties(to: &mut Properties, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    for (key, property) in to.iter_mut() {
        settle_name(key, property, stood.get(key));
    }
    to.keys().filter(|name| !stood.contains_key(*name)).try_for_each(|name| check_segment(name))?;
    check_properties(to, &stood)
}

/// Takes the name out of a property that is stored by it. One that an older program stored with its name, and of which nothing else is
/// changed, stays as it is: to say it again is no change.
fn settle_name(key: &str, property: &mut Property, stood: Option<&Property>) {
    let is_named = |property: &Property| property.name.as_deref() == Some(key);
    if property.name.is_some() && !is_named(property) {
        return;
    }
    property.name = None;
    let stood = stood.filter(|before| is_named(before));
    if let Some(before) = stood.filter(|before| Property { name: None, ..(*before).clone() } == *property) {
        property.name.clone_from(&before.name);
    }
}

/// Checks the keys of properties, which are their names, and the names within, where they are new.
fn check_properties(properties: &Properties, stood: &Properties) -> Result<(), BodyError> {
    properties.iter().try_for_each(|(key, property)| {
        if !stood.contains_key(key) {
            short(key, MAX_MEMBER)?;
        }
        let Some(name) = property.name.as_deref() else { return Ok(()) };
        if stood.get(key).is_some_and(|before| before.name == property.name) {
            return Ok(());
        }
        check_naming(name).and_then(|()| short(name, MAX_MEMBER)).map_err(|error| error.within("name").within(key))
    })
}

/// A list of a namespace, in which each name stands once.
pub(super) fn members<M: Member + DeserializeOwned>(
    to: &mut Vec<M>,
    raw: &RawValue,
    _: &dyn Names,
) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    let mut names = BTreeSet::new();
    for (at, member) in to.iter().enumerate() {
        let place = format!("[{at}].name");
        if stood.iter().all(|one| one.name() != member.name()) {
            check_member_name(member.name()).map_err(|error| error.within(&place))?;
        }
        if !names.insert(member.name()) {
            let reason = format!("{:?} stands there twice: keep one of them", cut(member.name()));
            return Err(BodyError::new(place, reason));
        }
    }
    Ok(())
}

/// The tags of a namespace, which have no order: answers show them turned round. The same ones in another order are those that stand there.
pub(super) fn namespace_tags(to: &mut Vec<NamespaceTag>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    fn words(tags: &[NamespaceTag]) -> BTreeSet<&str> {
        tags.iter().map(|tag| tag.name.as_str()).collect()
    }
    let stood = to.clone();
    members(to, raw, names)?;
    if to.len() == stood.len() && words(to) == words(&stood) {
        *to = stood;
    }
    Ok(())
}

/// The types of resources that a namespace applies to, with what stands before the names of its properties there.
pub(super) fn associations(to: &mut Vec<Association>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let stood = to.clone();
    members(to, raw, names)?;
    check_each(&*to, |one| {
        if stood.contains(one) {
            return Ok(());
        }
        let is_new = stood.iter().all(|before| before.name != one.name);
        if let Some(why) = odd_resource_type(&one.name).filter(|_| is_new) {
            return Err(BodyError::new("name", why));
        }
        for (field, text) in [("prefix", &one.prefix), ("properties_target", &one.properties_target)] {
            let Some(text) = text.as_deref() else { continue };
            let checked = check_naming(text).and_then(|()| short(text, MAX_MEMBER));
            checked.map_err(|error| error.within(field))?;
        }
        Ok(())
    })
}

/// The objects of a namespace, each of which requires a property once.
pub(super) fn definitions(to: &mut Vec<Definition>, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let stood = to.clone();
    members(to, raw, names)?;
    let none = Properties::new();
    check_each(&*to, |object| {
        let mut required = BTreeSet::new();
        if let Some(twice) = object.required.iter().find(|name| !required.insert(*name)) {
            let reason = format!("{:?} stands there twice: keep one of them", cut(twice));
            return Err(BodyError::new("required", reason));
        }
        let before = stood.iter().find(|one| one.name == object.name).map_or(&none, |one| &one.properties);
        check_properties(&object.properties, before).map_err(|error| error.within("properties"))
    })
}

/// A release's tasks.
pub(super) fn tasks(to: &mut Vec<Task>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = std::mem::take(to);
    let stood: BTreeMap<&str, &Task> = stood.iter().map(|task| (&*task.id, task)).collect();
    *to = read_tasks(raw)?;
    check_each(&*to, |task| check_task(task, stood.get(&*task.id).copied()))
}

/// Checks the names in a task. One that stands there as it is was taken by an older program.
fn check_task(task: &Task, stood: Option<&Task>) -> Result<(), BodyError> {
    // The rest of the rule is asked where a release is put together.
    if stood.is_none() && Name::declare(&task.id, NameKind::Task).is_ok() {
        Name::of_new(&task.id, NameKind::Task).map_err(|why| BodyError::new("id", why.to_string()))?;
    }
    if stood == Some(task) { Ok(()) } else { check_names(task) }
}

/// A hold, whose end is a time where there is one: any other text would hold for ever, and so would an empty one.
pub(super) fn hold(to: &mut Option<Box<Hold>>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    let said: BTreeMap<String, Value> = value(raw)?;
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    if text("reason").is_some_and(str::is_empty) {
        return Err(BodyError::new("reason", "is empty: say why, or leave it out"));
    }
    check_time("until", text("until"), stood.as_ref().map(|stood| stood.until.as_str()))
}

/// Checks a field that holds a time.
fn check_time(field: &str, sent: Option<&str>, stood: Option<&str>) -> Result<(), BodyError> {
    match sent {
        Some(blank) if is_blank(blank) => {
            Err(BodyError::new(field, "is empty: write a time as 2026-12-31T00:00:00Z, or leave it out"))
        }
        Some(new) if sent != stood => {
            Timestamp::read(new).map(drop).map_err(|why| BodyError::new(field, why.to_string()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The roles of a group or node, sorted.
pub(super) fn role_names(to: &mut Vec<Name>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    declared_roles(to, |role| stood.contains(role))?;
    to.sort();
    to.dedup();
    Ok(())
}

/// Roles whose tags an extension decides.
pub(super) fn extensions(to: &mut Vec<ExtensionUse>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    let stands = |role: &Name| stood.iter().any(|one| one.roles.contains(role));
    check_each(&*to, |one| declared_roles(&one.roles, stands).map_err(|error| error.within("roles")))
}

pub(super) fn host_labels(to: &mut Option<HostLabels>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    *to = value(raw)?;
    let checked = to.as_ref().map_or(Ok(()), |rule| rule.compile().map(drop));
    checked.map_err(|why| BodyError::new(why.field(), why.to_string()))?;
    let Some(rule) = to else { return Ok(()) };
    check_means_keys("patterns", &rule.patterns)?;
    check_means_keys("annotations", &rule.annotations)
}

/// Refuses a pattern that stands for no key, since it has nothing but groups, anchors and what repeats them. It is as good as an empty one.
fn check_means_keys(field: &str, patterns: &[String]) -> Result<(), BodyError> {
    // The empty text itself is refused where lists are bound.
    let is_empty =
        |pattern: &str| !pattern.is_empty() && pattern.chars().all(|character| "()|?:*+^$".contains(character));
    match patterns.iter().enumerate().find(|(_, pattern)| is_empty(pattern)) {
        Some((at, pattern)) => {
            let why = format!("{:?} matches no key: write what keys look like, or leave it out", cut(pattern));
            Err(BodyError::new(format!("{field}[{at}]"), why))
        }
        None => Ok(()),
    }
}

/// How rollouts go. An empty time is none, and would look like one that holds them.
pub(super) fn rollout(to: &mut Option<Rollout>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    fn freeze(rollout: Option<&Rollout>) -> Option<&str> {
        rollout?.freeze.as_deref()
    }
    let stood = replace(to, raw)?;
    check_time("freeze", freeze(to.as_ref()), freeze(stood.as_ref()))?;
    let before = stood.as_ref().map_or(&[][..], |rollout| rollout.order.as_slice());
    let checked = check_each(to.iter().flat_map(|rollout| &rollout.order), |group| {
        if before.contains(group) { Ok(()) } else { check_group(group) }
    });
    checked.map_err(|error| error.within("order"))
}

/// Refuses what no group is called by.
fn check_group(name: &str) -> Result<(), BodyError> {
    check_no_control(name)?;
    if is_uuid_like(name) {
        let why = format!("{} looks like a uuid, and a group stands here by its name alone: write that", quoted(name));
        return Err(BodyError::new("", format!("no group is called so: {why}")));
    }
    ObjectName::new(name).map(drop).map_err(|why| BodyError::new("", format!("no group is called so: {why}")))
}

/// Refuses what no node is called by: it has a name or a uuid.
fn check_node(name: &str) -> Result<(), BodyError> {
    check_no_control(name)?;
    if Uuid::parse_str(name).is_ok() {
        return Ok(());
    }
    NodeName::new(name).map(drop).map_err(|why| BodyError::new("", format!("no node is called so: {why}")))
}

/// How a group's hosts are rolled out. An empty selector of those that go first would be all of them.
pub(super) fn strategy(to: &mut Option<Strategy>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    let Some(strategy) = to else { return Ok(()) };
    let before = stood.as_ref().and_then(|stood| stood.canary.as_ref());
    if let Some(canary) = strategy.canary.as_ref().filter(|canary| before != Some(*canary)) {
        let checked = check_says_something(&text_of_value(canary)).and_then(|()| check_canary(canary));
        checked.map_err(|error| error.within("canary"))?;
    }
    let stands = |window: &Value| stood.as_ref().is_some_and(|stood| stood.windows.contains(window));
    let checked = check_each(&strategy.windows, |one| if stands(one) { Ok(()) } else { check_window(one) });
    checked.map_err(|error| error.within("windows"))
}

fn check_window(window: &Value) -> Result<(), BodyError> {
    let window: Window = read(&text_of_value(window))?;
    window.check().map_err(|(field, why)| BodyError::new(field, why))
}

fn text_of_value(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).expect("a value's text is JSON")
}

/// Which node is to hold a tag. An empty name is no node's, and would be taken for nobody's.
pub(super) fn primaries(to: &mut BTreeMap<TagName, String>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    if let Some((tag, _)) = to.iter().find(|(_, node)| is_blank(node)) {
        return Err(BodyError::new(tag.as_str(), "is empty: name a node, or leave the tag out"));
    }
    to.iter().filter(|(tag, node)| stood.get(*tag) != Some(*node)).try_for_each(|(tag, node)| {
        let declared = if stood.contains_key(tag) { Ok(()) } else { declared_tag(tag) };
        declared.and_then(|()| check_node(node)).map_err(|error| error.within(tag))
    })
}

/// Tags that are declared, by a release or a cluster.
pub(super) fn tags(to: &mut BTreeMap<TagName, TagSpec>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    to.iter().try_for_each(|(name, tag)| check_tag(name, tag, stood.get(name)).map_err(|error| error.within(name)))
}

/// Checks the name of a tag and that of its role, where they are new.
fn check_tag(name: &TagName, tag: &TagSpec, stood: Option<&TagSpec>) -> Result<(), BodyError> {
    if stood.is_none() {
        declared_tag(name)?;
    }
    let before = stood.and_then(|stood| stood.role.as_ref());
    let role = tag.role.as_ref().filter(|role| before != Some(*role));
    role.map_or(Ok(()), declared_role).map_err(|error| error.within("role"))
}

/// The roles of a release: their own names, and what they produce.
pub(super) fn roles(to: &mut BTreeMap<Name, RoleSpec>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let mut stood = replace(to, raw)?;
    // Both alike, since what an older program stored otherwise may be written again.
    to.values_mut().chain(stood.values_mut()).for_each(whole_numbers_of_role);
    to.iter().try_for_each(|(name, role)| check_role(name, role, stood.get(name)).map_err(|error| error.within(name)))
}

/// Makes whole numbers of a role the integers that they are, as those of free JSON.
fn whole_numbers_of_role(role: &mut RoleSpec) {
    role.fault_tolerance.iter_mut().chain(role.limits.values_mut()).for_each(json::whole_to_integers);
}

fn check_role(name: &Name, role: &RoleSpec, stood: Option<&RoleSpec>) -> Result<(), BodyError> {
    if stood.is_none() {
        declared_role(name)?;
    }
    let before = stood.and_then(|role| role.tags.as_deref()).unwrap_or_default();
    let tags = declared_tags(role.tags.iter().flatten(), |tag| before.contains(tag));
    tags.map_err(|error| error.within("tags"))?;
    let before = stood.map_or(&[][..], |role| role.conflicts.as_slice());
    let conflicts = declared_roles(&role.conflicts, |role| before.contains(role));
    conflicts.map_err(|error| error.within("conflicts"))?;
    let before = stood.and_then(|role| role.fault_tolerance.as_ref());
    let tolerance = role.fault_tolerance.as_ref().filter(|tolerance| before != Some(*tolerance));
    if let Some(odd) = tolerance.filter(|tolerance| !RoleSpec::is_tolerance(tolerance)) {
        let why = format!(
            "{} is neither a whole number of nodes nor a percentage of them: write one as 1 or \"10%\", or leave it out",
            cut(&odd.to_string())
        );
        return Err(BodyError::new("fault_tolerance", why));
    }
    role.limits.iter().try_for_each(|(limit, value)| {
        check_limit(limit, value).map_err(|why| BodyError::new(format!("limits.{limit}"), why))
    })
}

/// A limit of a role: a whole number, or what rests on Fuel's settings and is kept as it came.
fn check_limit(name: &str, value: &Value) -> Result<(), String> {
    let (compared, other) = (RoleSpec::COMPARED_LIMITS, RoleSpec::OTHER_LIMITS);
    if other.contains(&name) {
        return Ok(());
    }
    if !compared.contains(&name) {
        let known = || compared.into_iter().chain(other);
        let near = suggest(near(name, known()));
        let listed = known().collect::<Vec<_>>().join(", ");
        return Err(format!("there is no such limit{near}: they are {listed}"));
    }
    // An expression of Fuel's names what it reads as `settings:…`.
    let is_expression = value.as_str().is_some_and(|text| text.contains(':'));
    if value.is_null() || value.is_u64() || is_expression {
        return Ok(());
    }
    Err(format!("{} is no whole number", cut(&value.to_string())))
}

/// Checks what a cluster changes of its release's roles; an error has the role and the place in its list.
fn check_role_changes(
    stood: &BTreeMap<Name, RoleChange>,
    changes: &BTreeMap<Name, RoleChange>,
) -> Result<(), BodyError> {
    changes.iter().try_for_each(|(name, change)| {
        if !stood.contains_key(name) {
            declared_role(name).map_err(|error| error.within(name))?;
        }
        let (added, removed) = stood
            .get(name)
            .map_or((&[][..], &[][..]), |change| (change.add_tags.as_slice(), change.remove_tags.as_slice()));
        let add = declared_tags(&change.add_tags, |tag| added.contains(tag));
        add.map_err(|error| error.within(&format!("{name}.add_tags")))?;
        let remove = taken_away_tags(&change.remove_tags, |tag| removed.contains(tag));
        remove.map_err(|error| error.within(&format!("{name}.remove_tags")))
    })
}

pub(super) fn role_changes(
    to: &mut BTreeMap<Name, RoleChange>,
    raw: &RawValue,
    _: &dyn Names,
) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    check_role_changes(&stood, to)
}

pub(super) fn requirements(to: &mut Requirements, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    let wrong = |reason: String| BodyError::of(BodyErrorKind::Requirement, "", reason);
    let stood = std::mem::take(to);
    *to = Requirements::from_json(raw).map_err(|why| wrong(why.to_string()))?;
    let stands = |key: String| stood.0.iter().any(|before| before.key() == key);
    let mut new = to.0.iter().filter(|one| !stands(one.key()));
    new.try_for_each(Requirement::check_name).map_err(|why| wrong(why.to_string()))?;
    to.check(names.traits()).map_err(|why| wrong(why.to_string()))
}

pub(super) fn suppressed_traits(to: &mut TraitSet, raw: &RawValue, names: &dyn Names) -> Result<(), BodyError> {
    *to = value(raw).map_err(|error| error.in_value_of(BodyErrorKind::Trait))?;
    let checked = to.iter().try_for_each(|name| names.traits().check(name));
    checked.map_err(|why| BodyError::of(BodyErrorKind::Trait, "", why.to_string()))
}

#[cfg(test)]
mod tests;
