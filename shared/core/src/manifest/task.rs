//! A task as its author may write it, brought into the one form in which it is stored.
//!
//! Fuel's spellings are taken (`cross-depends`, `groups`, `role`, a text where a list of one is meant), so that its
//! files load as they are. Fields of Fuel's that mean nothing here come in by the import alone, which keeps them
//! under `foreign`; in a manifest they are refused as any unknown field, saying so.

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::body::Body;
use super::empty::check_no_control;
use super::error::{BodyError, BodyErrorKind, check_each};
use super::reader::{read, read_value};
use crate::field::{Described, Form};
use crate::json;
use crate::name::{NameKind, PRIMARY_PREFIX, cut, misspelled};
use crate::release::select::means_everything;
use crate::task::{CrossEntry, STAR, Task, Where};

/// The most tasks of one release.
pub(super) const MAX_TASKS: usize = 4096;

/// Fields that only Fuel's tasks have.
const FUEL_ONLY: &[&str] =
    &["version", "test_pre", "test_post", "refresh_on", "reexecute_on", "fault_tolerance", "stage"];

/// Reads a release's `tasks`.
///
/// # Errors
/// [`BodyError`] with the task's place and field.
pub fn read_tasks(raw: &RawValue) -> Result<Vec<Task>, BodyError> {
    read::<Option<Vec<IgnoredAny>>>(raw)?;
    let items = json::items(raw);
    if items.len() > MAX_TASKS {
        return Err(BodyError::new("", format!("{} tasks, more than the {MAX_TASKS} of one release", items.len())));
    }
    let tasks = items.iter().enumerate().map(|(at, item)| read_task(item).map_err(|error| error.at(at)));
    tasks.collect()
}

fn read_task(raw: &RawValue) -> Result<Task, BodyError> {
    Body::parse(raw.get())?; // Members that stand there twice.
    let mut members: Map<String, Value> = read(raw)?;
    prefer_role(&mut members);
    let mut task = Map::new();
    for (name, value) in members {
        if FUEL_ONLY.contains(&name.as_str()) {
            let reason = "is Fuel's own and means nothing in a manifest: take it out, or import with `stemma release import --fuel`";
            return Err(BodyError::new(name, reason));
        }
        let Some((name, value)) = normalized(&name, value)? else { continue };
        if task.insert(name.clone(), value).is_some() {
            return Err(BodyError::new(name, "stands there in two spellings: keep one of them"));
        }
    }
    let text = Value::Object(task).to_string();
    let task: Task = read(&RawValue::from_string(text).expect("a value's text is JSON"))?;
    if task.id.is_empty() || task.kind.is_empty() {
        let field = if task.id.is_empty() { "id" } else { "type" };
        return Err(BodyError::of(BodyErrorKind::MissingField, field, "is missing"));
    }
    Ok(task)
}

/// Fuel looks at `groups` only where there is no `role`, and an empty one is none.
fn prefer_role(members: &mut Map<String, Value>) {
    let says = |value: Option<&Value>| match value {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    if members.contains_key("groups") {
        let dropped: &[&str] =
            if says(members.get("role")) || says(members.get("roles")) { &["groups"] } else { &["role", "roles"] };
        members.retain(|name, _| !dropped.contains(&name.as_str()));
    }
}

/// The stored spelling of a field, and its value; `None` for one that is `null` and may be left out.
fn normalized(name: &str, value: Value) -> Result<Option<(String, Value)>, BodyError> {
    let name = name.replace('-', "_");
    let Some(part) = Task::PARTS.iter().find(|part| part.is_called(&name)) else {
        return Ok((!value.is_null()).then_some((name, value)));
    };
    let value = match (part.name, part.form.plain()) {
        // `tags: null` counts under `matching.roles: tags`, as an empty list.
        ("tags", _) if value.is_null() => Value::Array(Vec::new()),
        ("tags", _) => tags(value).map_err(|error| error.within("tags"))?,
        _ if value.is_null() => return Ok(None),
        ("roles", _) => nodes(value).map_err(|error| error.within("roles"))?,
        (name, Form::TextOrList) => names(listed(value), EVERY_TASK).map_err(|error| error.within(name))?,
        (name, Form::ListOf(_)) => entries(value).map_err(|error| error.within(name))?,
        _ => value,
    };
    Ok(Some((part.name.to_owned(), value)))
}

/// A text is a list of one. `*` alone means every tag, and as an item of a list a name that no tag has.
fn tags(value: Value) -> Result<Value, BodyError> {
    if value == STAR { Ok(value) } else { nodes(value) }
}

/// Names and patterns by which nodes are meant; a text is a list of one.
fn nodes(value: Value) -> Result<Value, BodyError> {
    names(listed(value), EVERY_NODE)
}

/// A text is a list of one.
fn listed(value: Value) -> Value {
    if value.is_string() { Value::Array(vec![value]) } else { value }
}

/// What is written where every node with a name of that kind is meant.
const EVERY_NODE: &str = "write the text * for every node";

/// What is written where every task is meant.
const EVERY_TASK: &str = "name the tasks, or write /.+/ for every task";

/// A list of names and patterns, none of which means everything by reading nothing: an empty text must not reach every node.
fn names(list: Value, everything: &str) -> Result<Value, BodyError> {
    let names: Vec<String> = read_value(&list)?;
    check_each(&names, |name| check_pattern(name, everything))?;
    Ok(list)
}

fn check_pattern(name: &str, everything: &str) -> Result<(), BodyError> {
    if !means_everything(name) {
        return Ok(());
    }
    let reason = format!(
        "{:?} matches the empty text, and so may mean every name: mend the pattern, or {everything}",
        cut(name)
    );
    Err(BodyError::new("", reason))
}

/// Entries whose `role` and `tags` are lists; `null` stays, since it means the stages.
fn entries(value: Value) -> Result<Value, BodyError> {
    let Value::Array(items) = value else {
        return Err(BodyError::new("", "takes a list of {name, role or tags, policy}"));
    };
    let given = items.into_iter().enumerate().filter(|(_, item)| !item.is_null());
    let read = given.map(|(at, item)| entry(item).map_err(|error| error.at(at)));
    Ok(Value::Array(read.collect::<Result<_, _>>()?))
}

fn entry(item: Value) -> Result<Value, BodyError> {
    let mut entry = match item {
        Value::Object(entry) => entry,
        other => return Ok(other),
    };
    if let Some(Value::String(name)) = entry.get("name") {
        check_pattern(name, EVERY_TASK).map_err(|error| error.within("name"))?;
    }
    for (field, read) in [("role", nodes as fn(Value) -> Result<Value, BodyError>), ("tags", tags)] {
        if let Some(value) = entry.get_mut(field).filter(|value| !value.is_null()) {
            *value = read(value.take()).map_err(|error| error.within(field))?;
        }
    }
    Ok(Value::Object(entry))
}

/// Refuses a name or pattern by which a task means others, or nodes, and that has a control character: no name has one. Of roles and tags it
/// also refuses a reserved word in other letters than selectors read.
pub(super) fn check_names(task: &Task) -> Result<(), BodyError> {
    check_selectors(&task.roles).map_err(|error| error.within("roles"))?;
    check_tag_selectors(task.tags.as_deref().unwrap_or_default()).map_err(|error| error.within("tags"))?;
    let lists: [(&str, &[String]); 6] = [
        ("tags", task.tags.as_deref().unwrap_or_default()),
        ("roles", task.roles.as_slice()),
        ("tasks", task.tasks.as_slice()),
        ("requires", task.requires.as_slice()),
        ("required_for", task.required_for.as_slice()),
        ("subscribes", task.subscribes.as_slice()),
    ];
    for (field, names) in lists {
        check_listed(names).map_err(|error| error.within(field))?;
    }
    for (field, entries) in [("cross_depends", &task.cross_depends), ("cross_depended_by", &task.cross_depended_by)] {
        check_each(entries, check_entry).map_err(|error| error.within(field))?;
    }
    let then = task.on_unassign.as_deref().unwrap_or_default();
    check_no_control(then).map_err(|error| error.within("on_unassign"))
}

fn check_entry(entry: &CrossEntry) -> Result<(), BodyError> {
    check_no_control(&entry.name).map_err(|error| error.within("name"))?;
    check_where(&entry.role, check_selectors).map_err(|error| error.within("role"))?;
    check_where(&entry.tags, check_tag_selectors).map_err(|error| error.within("tags"))
}

fn check_where(place: &Where, check: fn(&[String]) -> Result<(), BodyError>) -> Result<(), BodyError> {
    match place {
        Where::Names(names) => check_listed(names).and_then(|()| check(names)),
        Where::Absent | Where::Null => Ok(()),
    }
}

/// Refuses a reserved word in other letters than those that selectors read, and the text `null`: nothing is called so, so it would mean nobody.
fn check_selectors(names: &[String]) -> Result<(), BodyError> {
    check_each(names, |name| check_spelling(name, NameKind::Role))
}

/// The same of tags, where `primary-` has a meaning too.
fn check_tag_selectors(names: &[String]) -> Result<(), BodyError> {
    check_each(names, |name| check_spelling(name, NameKind::Tag))
}

fn check_spelling(name: &str, kind: NameKind) -> Result<(), BodyError> {
    let Some(word) = misspelled(name, kind) else { return Ok(()) };
    let advice = match word {
        "null" => "write null without quotes where it means the stages, or a name".to_owned(),
        PRIMARY_PREFIX => format!("write {word}, in small letters, for the primary holder of a tag"),
        word => format!("write {word}, in small letters"),
    };
    Err(BodyError::new("", format!("{:?} is reserved: {advice}", cut(name))))
}

fn check_listed(names: &[String]) -> Result<(), BodyError> {
    check_each(names, |name| check_no_control(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(json: &str) -> Result<Vec<Task>, BodyError> {
        read_tasks(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn both_spellings_give_the_same_task() {
        let ours =
            r#"[{"id": "a", "type": "shell", "roles": ["web"], "cross_depends": [{"name": "b", "role": ["db"]}]}]"#;
        let fuels =
            r#"[{"id": "a", "type": "shell", "groups": "web", "cross-depends": [{"name": "b", "role": "db"}, null]}]"#;
        assert_eq!(tasks(ours).unwrap(), tasks(fuels).unwrap());
    }

    #[test]
    fn groups_count_where_there_is_no_role() {
        for (fields, roles) in [
            (r#""role": "web", "groups": ["db"]"#, "web"),
            (r#""role": [], "groups": ["db"]"#, "db"),
            (r#""role": null, "groups": "db""#, "db"),
            (r#""roles": ["web"], "groups": []"#, "web"),
        ] {
            let task = tasks(&format!(r#"[{{"id": "a", "type": "shell", {fields}}}]"#)).unwrap().remove(0);
            assert_eq!(task.roles, [roles], "{fields}");
        }
    }

    #[test]
    fn absent_null_and_empty_differ_where_they_mean_something() {
        let read = |fields: &str| tasks(&format!(r#"[{{"id": "a", "type": "shell"{fields}}}]"#)).unwrap().remove(0);
        assert_eq!(read("").tags, None);
        assert_eq!(read(r#", "tags": null"#).tags, Some(vec![]));
        assert_eq!(read(r#", "tags": []"#).tags, Some(vec![]));
        let place = |fields: &str| {
            read(&format!(r#", "cross_depends": [{{"name": "b"{fields}}}]"#)).cross_depends.remove(0).role
        };
        assert_eq!(place(""), Where::Absent);
        assert_eq!(place(r#", "role": null"#), Where::Null);
        assert_eq!(place(r#", "role": "self""#), Where::Names(vec!["self".to_owned()]));
    }

    /// An empty pattern placed a task on every node.
    #[test]
    fn x06_a_pattern_that_matches_nothing_at_all_is_refused_wherever_patterns_stand() {
        let read = |fields: &str| tasks(&format!(r#"[{{"id": "a", "type": "shell", {fields}}}]"#));
        for pattern in ["/", "//", "/()/", "/|/", "/^/", "/.*/", "/x*/"] {
            for (fields, place, write) in [
                (format!(r#""tags": ["{pattern}"]"#), "tags[0]", "write the text *"),
                (format!(r#""tags": "{pattern}""#), "tags[0]", "write the text *"),
                (format!(r#""roles": ["web", "{pattern}"]"#), "roles[1]", "write the text *"),
                (format!(r#""groups": "{pattern}""#), "roles[0]", "write the text *"),
                (format!(r#""requires": ["{pattern}"]"#), "requires[0]", "write /.+/"),
                (format!(r#""required_for": ["{pattern}"]"#), "required_for[0]", "write /.+/"),
                (format!(r#""subscribes": "{pattern}""#), "subscribes[0]", "write /.+/"),
                (format!(r#""cross-depends": [{{"name": "{pattern}"}}]"#), "cross_depends[0].name", "write /.+/"),
                (
                    format!(r#""cross_depends": [{{"name": "b", "role": "{pattern}"}}]"#),
                    "cross_depends[0].role[0]",
                    "write the text *",
                ),
                (
                    format!(r#""cross_depended_by": [null, {{"name": "b", "tags": ["{pattern}"]}}]"#),
                    "cross_depended_by[1].tags[0]",
                    "write the text *",
                ),
            ] {
                let error = read(&fields).unwrap_err().to_string();
                let begins = format!("[0].{place}: {pattern:?} matches the empty text");
                assert!(error.starts_with(&begins) && error.contains(write), "{fields}: {error}");
            }
        }
        for fields in [
            r#""tags": "*""#,
            r#""tags": ["/.+/", "/^(primary-)?db$/"]"#,
            r#""roles": "*", "requires": "/.+/""#,
            r#""cross_depends": [{"name": "/.+/", "role": "*"}, {"name": "b", "tags": "*"}]"#,
        ] {
            read(fields).unwrap();
        }
    }

    /// What an answer shows of a task is taken again.
    #[test]
    fn x06_every_tag_is_read_as_it_is_shown() {
        let written = r#"[{"id":"a","type":"shell","tags":"*","cross_depends":[{"name":"b","tags":"*"}]}]"#;
        let read = tasks(written).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), written);
        assert_eq!(tasks(&serde_json::to_string(&read).unwrap()).unwrap(), read);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (json, says) in [
            (r#"[{"id": "a"}]"#, "[0].type: is missing"),
            (
                r#"[{"id": "a", "type": "x"}, {"id": "b", "type": "x", "colour": 1}]"#,
                "[1].colour: is no field here: take it out, or take one of id, type, tags",
            ),
            (
                r#"[{"id": "a", "type": "x", "requires": [1]}]"#,
                "[0].requires[0]: is the number 1, and a text is meant: quote it",
            ),
            (r#"[{"id": "a", "type": "x", "refresh_on": []}]"#, "[0].refresh_on: is Fuel's own"),
            (
                r#"[{"id": "a", "type": "x", "require": ["b"]}]"#,
                "[0].require: is no field here (did you mean \"requires\"?): mend its spelling, or take it out",
            ),
            (r#"[{"id": "a", "type": "x", "role": "b", "roles": "c"}]"#, "[0].roles: stands there in two spellings"),
            (r#"[{"id": "a", "id": "b", "type": "x"}]"#, "[0].id: stands there twice"),
        ] {
            let error = tasks(json).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
