//! Fields with rules beyond their form: names that may be declared, traits that exist, patterns that compile.
//!
//! These rules are checked when a body is read, so that code which works on stored objects can rely on them.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::body::is_null;
use super::canary::check_canary;
use super::declared::{declared_role, declared_roles, declared_tag, declared_tags};
use super::empty::{check_naming, check_no_control, check_says_something};
use super::error::{BodyError, BodyErrorKind, check_each};
use super::names::Names;
use super::reader::read;
use super::task::{check_names, read_tasks};
use crate::catalog::odd_resource_type;
use crate::host_labels::HostLabels;
use crate::name::{Name, NameKind, TagName, cut, is_blank, near, suggest};
use crate::object::{
    Association, Definition, ExtensionUse, Hold, Member, Properties, RoleChange, RoleSpec, Rollout, Strategy, TagSpec,
    Timestamp, TraitSet, Window,
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

/// Puts a field's value in its place and gives what stood there: what an older program took may be written again.
pub(super) fn replace<T: Default + DeserializeOwned>(to: &mut T, raw: &RawValue) -> Result<T, BodyError> {
    Ok(std::mem::replace(to, value(raw)?))
}

/// A release's labels, which are texts.
pub(super) fn texts(to: &mut BTreeMap<String, String>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    *to = value(raw).map_err(|error| error.in_value_of(BodyErrorKind::Label))?;
    Ok(())
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

/// A text that names something: an empty one would name nothing. What stands there already, as an older program took it, may be written
/// again.
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

/// The properties of a namespace.
pub(super) fn properties(to: &mut Properties, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    check_properties(to, &stood)
}

fn check_properties(properties: &Properties, stood: &Properties) -> Result<(), BodyError> {
    properties.iter().try_for_each(|(key, property)| {
        let Some(name) = property.name.as_deref() else { return Ok(()) };
        let stands = stood.get(key).is_some_and(|before| before.name == property.name);
        let checked = if stands { Ok(()) } else { check_naming(name) };
        checked.and_then(|()| short(name, MAX_MEMBER)).map_err(|error| error.within("name").within(key))
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
            check_naming(member.name()).map_err(|error| error.within(&place))?;
        }
        short(member.name(), MAX_MEMBER).map_err(|error| error.within(&place))?;
        if !names.insert(member.name()) {
            let reason = format!("{:?} stands there twice: keep one of them", cut(member.name()));
            return Err(BodyError::new(place, reason));
        }
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

/// Checks a field that holds a time. What stands there already, as an older program took it, may be written again.
fn check_time(field: &str, sent: Option<&str>, stood: Option<&str>) -> Result<(), BodyError> {
    let Some(sent) = sent.filter(|sent| is_blank(sent) || Some(*sent) != stood) else { return Ok(()) };
    if is_blank(sent) {
        return Err(BodyError::new(field, "is empty: write a time as 2026-12-31T00:00:00Z, or leave it out"));
    }
    Timestamp::read(sent).map(drop).map_err(|why| BodyError::new(field, why.to_string()))
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
        if before.contains(group) { Ok(()) } else { check_no_control(group) }
    });
    checked.map_err(|error| error.within("order"))
}

/// How a group's hosts are rolled out. An empty selector of those that go first would be all of them.
pub(super) fn strategy(to: &mut Option<Strategy>, raw: &RawValue, _: &dyn Names) -> Result<(), BodyError> {
    let stood = replace(to, raw)?;
    let Some(strategy) = to else { return Ok(()) };
    // What stands there already is as an older program took it.
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
        declared.and_then(|()| check_no_control(node)).map_err(|error| error.within(tag))
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
    let stood = replace(to, raw)?;
    to.iter().try_for_each(|(name, role)| check_role(name, role, stood.get(name)).map_err(|error| error.within(name)))
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

/// What a cluster changes of its release's roles.
///
/// # Errors
/// [`BodyError`] with the role and the place in its list.
pub fn check_role_changes(
    stood: &BTreeMap<Name, RoleChange>,
    changes: &BTreeMap<Name, RoleChange>,
) -> Result<(), BodyError> {
    changes.iter().try_for_each(|(name, change)| {
        if !stood.contains_key(name) {
            declared_role(name).map_err(|error| error.within(name))?;
        }
        let before = stood.get(name).map_or(&[][..], |change| change.add_tags.as_slice());
        let tags = declared_tags(&change.add_tags, |tag| before.contains(tag));
        tags.map_err(|error| error.within(&format!("{name}.add_tags")))
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
mod tests {
    use super::super::testing::Anybody;
    use super::*;
    use crate::object::NamespaceTag;

    #[test]
    fn a_hold_ends_at_a_time_or_when_it_is_taken_back() {
        let read = |until: &str| {
            let mut read = None;
            let body = raw(&serde_json::json!({"until": until, "reason": "x"}).to_string());
            hold(&mut read, &body, &Anybody::default()).map(|()| read.and_then(|hold| hold.end()).map(|end| end.0))
        };
        for (until, end) in
            [("2001-09-09T01:46:40Z", Some(1_000_000_000_000)), ("2001-09-09T03:46:41+02:00", Some(1_000_000_001_000))]
        {
            assert_eq!(read(until).unwrap(), end, "{until}");
        }
        for until in ["", " "] {
            let refused = read(until).unwrap_err().to_string();
            assert_eq!(refused, "until: is empty: write a time as 2026-12-31T00:00:00Z, or leave it out");
        }
        for until in ["soon", "2026-12-31", "1969-12-31T00:00:00Z", "2026-12-31T00:00:00"] {
            let refused = read(until).unwrap_err().to_string();
            assert!(refused.contains("write one as 2026-12-31T00:00:00Z"), "{until}: {refused}");
        }
    }

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    fn says<T: Default>(json: &str, read: impl Fn(&mut T, &RawValue, &dyn Names) -> Result<(), BodyError>) -> String {
        read(&mut T::default(), &raw(json), &Anybody::default())
            .map_or_else(|error| error.to_string(), |()| "taken".to_owned())
    }

    #[test]
    fn x06_an_empty_date_of_a_rollout_is_refused() {
        for empty in [r#"{"freeze": ""}"#, r#"{"freeze": " "}"#, "{\"freeze\": \"\u{2800}\"}"] {
            let said = says(empty, rollout);
            assert!(said.starts_with("freeze: is empty: write a time"), "{empty}: {said}");
        }
        for taken in [r#"{"freeze": "2026-12-31T00:00:00Z"}"#, r#"{"freeze": null}"#, r#"{"max_groups": 1}"#, "null"] {
            assert_eq!(says(taken, rollout), "taken", "{taken}");
        }
    }

    #[test]
    fn y04_a_time_that_there_is_not_is_refused_in_every_field() {
        for text in ["2026-12-31T23:59:60Z", "2026-12-31T23:59:59+25:00", "2026-12-31T23:59:59Z[Europe/Berlin]", "soon"]
        {
            let until = says(&serde_json::json!({"until": text}).to_string(), hold);
            let freeze = says(&serde_json::json!({"freeze": text}).to_string(), rollout);
            assert!(until.starts_with(&format!("until: {text:?} is no time")), "{until}");
            assert_eq!(freeze, until.replacen("until", "freeze", 1));
        }
        let last = "9999-12-31T23:59:59Z";
        assert_eq!(says(&serde_json::json!({"until": last}).to_string(), hold), "taken");
        assert_eq!(Hold { until: last.into(), ..Hold::default() }.end(), Some(Timestamp(253_402_300_799_000)));
        assert_eq!(says(r#"{"reason": ""}"#, hold), "reason: is empty: say why, or leave it out");
    }

    #[test]
    fn y04_a_time_of_an_older_program_is_written_again_and_no_other_is() {
        let odd = "2026-12-31T23:59:60Z";
        let mut held = Some(Box::new(Hold { until: odd.into(), reason: "a".into() }));
        let body = |until: &str| raw(&serde_json::json!({"until": until, "reason": "a longer one"}).to_string());
        hold(&mut held, &body(odd), &Anybody::default()).unwrap();
        assert_eq!(held.as_ref().map(|hold| (&*hold.until, &*hold.reason)), Some((odd, "a longer one")));
        assert!(held.as_ref().is_some_and(|hold| hold.end().is_some()));
        hold(&mut held, &body("2026-12-31T22:59:60Z"), &Anybody::default()).unwrap_err();
        let windows = vec![serde_json::json!({"foo": 1})];
        let mut stood = Some(Strategy { windows, ..Strategy::default() });
        let body = raw(r#"{"windows": [{"foo": 1}], "max_failures": 7}"#);
        strategy(&mut stood, &body, &Anybody::default()).unwrap();
        assert_eq!(stood.and_then(|strategy| strategy.max_failures), Some(7));
    }

    #[test]
    fn y04_a_window_has_days_a_start_a_duration_and_a_zone() {
        let of = |window: Value| says(&serde_json::json!({"windows": [window]}).to_string(), strategy);
        let whole =
            || serde_json::json!({"days": ["Mon"], "start": "22:00", "duration": "4h", "time_zone": "Europe/Berlin"});
        let with = |name: &str, value: Value| {
            let mut window = whole();
            window[name] = value;
            of(window)
        };
        assert_eq!(of(whole()), "taken");
        assert_eq!(of(serde_json::json!({"start": "00:00", "duration": "1w"})), "taken");
        for (said, begins) in [
            (with("days", serde_json::json!(["Mon", "Xyz"])), "windows[0].days[1]: \"Xyz\" is no day"),
            (with("start", "25:99".into()), "windows[0].start: \"25:99\" is no time of a day"),
            (with("duration", "soon".into()), "windows[0].duration: \"soon\" is no length of time"),
            (with("duration", "8d".into()), "windows[0].duration: \"8d\" is longer than a week"),
            (
                with("time_zone", "Mars Olympus".into()),
                "windows[0].time_zone: \"Mars Olympus\" is no name of a time zone",
            ),
            (
                with("time_zone", "Europe/Atlantis".into()),
                "windows[0].time_zone: \"Europe/Atlantis\" is no name of a time zone",
            ),
            (
                with("time_zone", "europe/berlin".into()),
                "windows[0].time_zone: \"europe/berlin\" is no name of a time zone (did you mean \"Europe/Berlin\"?)",
            ),
            (with("foo", 1.into()), "windows[0].foo: "),
            (of(serde_json::json!({})), "windows[0].start: "),
            (of(serde_json::json!({"start": "22:00"})), "windows[0].duration: "),
        ] {
            assert!(said.starts_with(begins), "{begins}: {said}");
        }
    }

    #[test]
    fn y04_what_stands_in_a_namespace_has_a_name_without_control_characters() {
        let property = |name: &str| serde_json::json!({"title": "A", "type": "string", "name": name});
        for odd in ["a\nb", "\u{7f}", " "] {
            let body = |of: Value| of.to_string();
            for (said, place) in [
                (says(&body(serde_json::json!([{"name": odd}])), definitions), "[0].name"),
                (says(&body(serde_json::json!([{"name": odd}])), members::<NamespaceTag>), "[0].name"),
                (says(&body(serde_json::json!([{"name": odd}])), associations), "[0].name"),
                (says(&body(serde_json::json!([{"name": "a", "prefix": odd}])), associations), "[0].prefix"),
                (says(&body(serde_json::json!({"a": property(odd)})), properties), "a.name"),
            ] {
                assert!(said.starts_with(&format!("{place}: ")), "{odd:?}: {said}");
            }
        }
        let empty = says(r#"[{"name": "a", "prefix": ""}]"#, associations);
        assert_eq!(empty, "[0].prefix: is empty: name something, or leave it out");
        // A key that is there keeps its name, and gets no other such one.
        let of = |name: &str| raw(&serde_json::json!({"a": property(name)}).to_string());
        for (before, after, is_taken) in [("b", "a\nb", false), ("a\nb", "a\nb", true), ("a\nb", "a\nc", false)] {
            let mut stood: Properties = serde_json::from_str(of(before).get()).unwrap();
            let written = properties(&mut stood, &of(after), &Anybody::default());
            assert_eq!(written.is_ok(), is_taken, "{before:?} {after:?}");
        }
    }

    /// A namespace with a misspelt type was stored, and bound no key.
    #[test]
    fn y09_a_resource_type_that_begins_as_ours_is_one_of_ours() {
        let of = |name: &str| says(&serde_json::json!([{"name": name}]).to_string(), associations);
        let known = "they are Stemma::Label, Stemma::Parameter, Stemma::Property, Stemma::Fact";
        for (name, meant) in [
            ("Stemma::Lable", "Label"),
            ("stemma::label", "Label"),
            ("STEMMA::FACT", "Fact"),
            ("Stemma::Parameters", "Parameter"),
            (" Stemma::Property", "Property"),
        ] {
            let why = format!("{name:?} is no resource type of Stemma (did you mean \"Stemma::{meant}\"?): {known}");
            assert_eq!(of(name), format!("[0].name: {why}"));
        }
        assert_eq!(
            of("Stemma::Switch"),
            format!("[0].name: \"Stemma::Switch\" is no resource type of Stemma: {known}")
        );
        for name in
            ["Stemma::Label", "Stemma::Parameter", "Stemma::Property", "Stemma::Fact", "OS::Glance::Image", "Stemma"]
        {
            assert_eq!(of(name), "taken", "{name}");
        }
        let mut stood = vec![Association { name: "Stemma::Lable".into(), prefix: None, properties_target: None }];
        let body = raw(r#"[{"name": "Stemma::Lable", "prefix": "x/"}, {"name": "Stemma::Label"}]"#);
        associations(&mut stood, &body, &Anybody::default()).unwrap();
        associations(&mut stood, &raw(r#"[{"name": "Stemma::Fcat"}]"#), &Anybody::default()).unwrap_err();
    }

    #[test]
    fn y04_names_of_an_older_program_are_written_again_and_no_new_ones_are() {
        fn again<T: Clone>(
            mut stood: T,
            json: &str,
            read: impl Fn(&mut T, &RawValue, &dyn Names) -> Result<(), BodyError>,
        ) {
            read(&mut stood, &raw(json), &Anybody::default()).expect(json);
        }
        let tags: BTreeMap<TagName, TagSpec> = serde_json::from_str(r#"{"Self": {}}"#).unwrap();
        again(tags, r#"{"Self": {}, "a": {}}"#, super::tags);
        let roles: BTreeMap<Name, RoleSpec> = serde_json::from_str(r#"{"Null": {"tags": ["Primary-x"]}}"#).unwrap();
        again(roles, r#"{"Null": {"tags": ["Primary-x"]}}"#, super::roles);
        again(
            vec![NamespaceTag { name: "a\nb".into() }],
            r#"[{"name": "a\nb"}, {"name": "c"}]"#,
            members::<NamespaceTag>,
        );
        again(Some("a\nb".to_owned()), r#""a\nb""#, naming);
        for (said, begins) in [
            (says(r#"{"Self": {}}"#, super::tags), "Self: tag \"Self\" is reserved"),
            (says(r#"{"Null": {}}"#, super::roles), "Null: role \"Null\" is reserved"),
            (says(r#"{"a": {"tags": ["Primary-x"]}}"#, super::roles), "a.tags[0]: tag \"Primary-x\" is reserved"),
            (says(r#"{"a": {"add_tags": ["SELF"]}}"#, role_changes), "a.add_tags[0]: tag \"SELF\" is reserved"),
            (says(r#"[{"id": "MASTER", "type": "file"}]"#, tasks), "[0].id: task \"MASTER\" is reserved"),
        ] {
            assert!(said.starts_with(begins), "{begins}: {said}");
        }
    }

    /// The words are those that selectors give a meaning of their own.
    #[test]
    fn y04_a_reserved_word_names_no_role_and_no_tag_anywhere() {
        for word in ["self", "Self", "MASTER", "null"] {
            let of = |body: Value| body.to_string();
            for (said, place) in [
                (says(&of(serde_json::json!(["web", word])), role_names), "[1]"),
                (says(&of(serde_json::json!({word: {}})), role_changes), word),
                (says(&of(serde_json::json!({"a": {"role": word}})), tags), "a.role"),
                (says(&of(serde_json::json!({"a": {"conflicts": ["b", word]}})), roles), "a.conflicts[1]"),
                (says(&of(serde_json::json!([{"roles": [word], "use": "p"}])), extensions), "[0].roles[0]"),
                (says(&of(serde_json::json!({word: "n"})), primaries), word),
            ] {
                let tells = said.starts_with(&format!("{place}: ")) && said.contains(&format!("{word:?} is reserved"));
                assert!(tells, "{place}: {said}");
            }
            // A selector may say it.
            let cross = serde_json::json!([{"name": "b", "role": word}, {"name": "b", "role": null}]);
            let task = serde_json::json!([{"id": "a", "type": "shell", "roles": [word], "cross_depends": cross}]);
            assert_eq!(says(&of(task), tasks), "taken", "{word}");
        }
        assert_eq!(says(r#"["primary-controller", "web", "web"]"#, role_names), "taken");
        let name = |text: &str| Name::new(text).unwrap();
        let mut stood = vec![name("Self")];
        role_names(&mut stood, &raw(r#"["web", "Self"]"#), &Anybody::default()).unwrap();
        assert_eq!(stood, [name("Self"), name("web")]);
        let mut stood: BTreeMap<TagName, String> = serde_json::from_str(r#"{"Self": "a"}"#).unwrap();
        primaries(&mut stood, &raw(r#"{"Self": "b"}"#), &Anybody::default()).unwrap();
    }

    #[test]
    fn y04_a_name_that_means_another_has_no_control_character() {
        let of = |body: Value| body.to_string();
        for odd in ["a\nb", "a\u{85}b", "a\u{2028}b", "a\0"] {
            let task = |field: &str, value: Value| of(serde_json::json!([{"id": "a", "type": "shell", field: value}]));
            let entry = |field: &str| serde_json::json!([{"name": "b"}, {"name": "c", field: [odd]}]);
            for (said, place) in [
                (says(&of(serde_json::json!({"w": odd})), primaries), "w"),
                (says(&of(serde_json::json!({"order": ["g", odd]})), rollout), "order[1]"),
                (says(&task("tags", odd.into()), tasks), "[0].tags[0]"),
                (says(&task("roles", serde_json::json!(["b", odd])), tasks), "[0].roles[1]"),
                (says(&task("requires", odd.into()), tasks), "[0].requires[0]"),
                (says(&task("cross_depends", entry("role")), tasks), "[0].cross_depends[1].role[0]"),
                (says(&task("cross_depended_by", entry("tags")), tasks), "[0].cross_depended_by[1].tags[0]"),
                (says(&task("on_unassign", odd.into()), tasks), "[0].on_unassign"),
            ] {
                let begins = format!("{place}: {odd:?} has a control character");
                assert!(said.starts_with(&begins), "{place}: {said}");
            }
            let mut stood: Vec<Task> = serde_json::from_str(&task("tags", serde_json::json!([odd]))).unwrap();
            let again = raw(&serde_json::to_string(&stood).unwrap());
            tasks(&mut stood, &again, &Anybody::default()).unwrap();
            let mut stood = Some(Rollout { order: vec![odd.to_owned()], ..Rollout::default() });
            let again = raw(&of(serde_json::json!({"order": [odd], "max_groups": 1})));
            rollout(&mut stood, &again, &Anybody::default()).unwrap();
        }
    }

    #[test]
    fn y04_a_requirement_names_what_can_be_seen() {
        for key in ["property:\u{200b}", "fact:\u{ad}"] {
            let body = serde_json::json!({key: "1"}).to_string();
            let said = says(&body, requirements);
            assert!(said.contains("needs a name of 1 to 255 bytes"), "{key:?}: {said}");
            let mut stood: Requirements = serde_json::from_str(&body).unwrap();
            let again = serde_json::json!({key: "2"}).to_string();
            requirements(&mut stood, &raw(&again), &Anybody::default()).unwrap();
        }
        assert_eq!(says(r#"{"property:a": "1"}"#, requirements), "taken");
    }

    #[test]
    fn y04_a_canary_of_an_older_program_is_written_again_and_no_other_is() {
        let mut stood = Some(Strategy { canary: Some(serde_json::json!({"a": 1})), ..Strategy::default() });
        let body = raw(r#"{"canary": {"a": 1}, "max_failures": 7}"#);
        strategy(&mut stood, &body, &Anybody::default()).unwrap();
        strategy(&mut stood, &raw(r#"{"canary": {"a": 2}}"#), &Anybody::default()).unwrap_err();
        assert!(
            says(r#"{"canary": -1}"#, strategy).starts_with("canary: -1 is neither a number of hosts nor a selector")
        );
    }

    #[test]
    fn a_rule_that_does_not_compile_is_refused_with_its_place() {
        for (json, begins) in [
            (r#"{"patterns": ["a", "["]}"#, "patterns[1]: \"[\" is no regular expression of at most 256 bytes: "),
            (r#"{"annotations": ["("]}"#, "annotations[0]: \"(\" is no regular expression"),
            (r#"{"prefixes": [""]}"#, "prefixes[0]: \"\" must be a lower-case DNS name"),
            (r#"{"accept": ["kubernetes.io/x"]}"#, "accept: kubernetes.io/x is restricted, no host may set it"),
            (r#"{"patterns": ["a", "()"]}"#, "patterns[1]: \"()\" matches no key: "),
            (r#"{"patterns": ["(?:)|^$"]}"#, "patterns[0]: \"(?:)|^$\" matches no key: "),
            (r#"{"annotations": ["()*"]}"#, "annotations[0]: \"()*\" matches no key: "),
            (r#"{"patterns": [".*", "tier|zone", "(a)?b"]}"#, "taken"),
            (r#"{"patterns": ["a"]}"#, "taken"),
            ("null", "taken"),
        ] {
            let said = says(json, host_labels);
            assert!(said.starts_with(begins), "{json}: {said}");
        }
    }

    #[test]
    fn no_tag_comes_to_be_that_stands_for_a_primary() {
        let reserved = "tag \"primary-x\" is reserved: 'primary-' stands for the primary holder of a tag; \
             set has_primary instead";
        assert_eq!(says(r#"{"primary-x": {}}"#, tags), format!("primary-x: {reserved}"));
        assert_eq!(says(r#"{"db": {"tags": ["x", "primary-x"]}}"#, roles), format!("db.tags[1]: {reserved}"));
        assert_eq!(says(r#"{"db": {"add_tags": ["primary-x"]}}"#, role_changes), format!("db.add_tags[0]: {reserved}"));
        // Fuel's old releases have such roles, and to take one away does no harm.
        assert_eq!(says(r#"{"primary-controller": {}}"#, roles), "taken");
        assert_eq!(says(r#"{"db": {"remove_tags": ["primary-x"]}}"#, role_changes), "taken");
    }

    /// A limit that is no number was taken and never compared.
    #[test]
    fn a_limit_of_a_role_is_a_whole_number_or_an_expression_of_fuels() {
        for (limits, said) in [
            (r#"{"min": 1, "max": null}"#, "taken"),
            (r#"{"max": "settings:storage.osds.value", "recommended": 3, "overrides": [{"max": 1}]}"#, "taken"),
            (r#"{"min": "lots"}"#, r#"db.limits.min: "lots" is no whole number"#),
            (r#"{"max": -1}"#, "db.limits.max: -1 is no whole number"),
            (r#"{"max": 1.5}"#, "db.limits.max: 1.5 is no whole number"),
            (
                r#"{"mim": 1}"#,
                "db.limits.mim: there is no such limit (did you mean \"min\"?): they are min, max, recommended, condition, overrides",
            ),
        ] {
            assert_eq!(says(&format!(r#"{{"db": {{"limits": {limits}}}}}"#), roles), said);
        }
    }

    #[test]
    fn a_text_of_the_catalogue_that_its_schema_bounds_is_refused_when_it_is_longer() {
        let (fits, long) = ("n".repeat(80), "n".repeat(81));
        let ends = "is longer than 80 characters";
        let property = |name: &str| format!(r#"{{"a": {{"title": "A", "type": "string", "name": "{name}"}}}}"#);
        let object = |name: &str| format!(r#"[{{"name": "o", "properties": {}}}]"#, property(name));
        let association = |field: &str, text: &str| format!(r#"[{{"name": "Stemma::Label", "{field}": "{text}"}}]"#);
        assert_eq!(says(&property(&fits), properties), "taken");
        assert_eq!(says(&object(&fits), definitions), "taken");
        for (said, begins) in [
            (says(&property(&long), properties), "a.name: "),
            (says(&object(&long), definitions), "[0].properties.a.name: "),
            (says(&association("prefix", &long), associations), "[0].prefix: "),
            (says(&association("properties_target", &long), associations), "[0].properties_target: "),
        ] {
            assert!(said.starts_with(begins) && said.ends_with(ends), "{said}");
        }
        assert_eq!(says(&association("prefix", &fits), associations), "taken");
    }

    #[test]
    fn a_trait_that_does_not_exist_is_refused_wherever_it_is_named() {
        let of_group = |json| says(json, requirements);
        let suppressed = |json| says(json, suppressed_traits);
        for (said, begins) in [
            (of_group(r#"{"trait:TYPO_TRAIT": "required"}"#), "requirement: "),
            (of_group(r#"{"trait:CUSTOM_A": "required", "trait:HW_CPU_X86_AVX2": "forbidden"}"#), "taken"),
            (suppressed(r#"["NOPE"]"#), "\"NOPE\" is no trait: "),
            (suppressed(r#"["HW_CPU_X86_AVX2"]"#), "taken"),
        ] {
            assert!(said.starts_with(begins), "{said}");
        }
    }
}
