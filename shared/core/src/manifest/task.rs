//! Reads a task as its author may write it, and converts it to the one form that is stored.
//!
//! Fuel's spellings are accepted (`cross-depends`, `groups`, `role`, a text instead of a list of one), so that Fuel's
//! files load unchanged. Fields that only Fuel uses are accepted by the import, which stores them under `foreign`. A
//! manifest with such a field is refused, and the error names the reason.

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::body::JsonBody;
use super::empty::check_no_control;
use super::error::{BodyError, BodyErrorKind, check_each};
use super::reader::{read_json, read_value};
use crate::field::{DescribeFields, FieldType};
use crate::json;
use crate::name::{NameKind, PRIMARY_PREFIX, reserved_word_in_other_case, truncated};
use crate::release::name_selector::matches_empty_text;
use crate::task::{ANY_TAG_INPUT, CrossEntry, CrossSelector, Task};

/// Maximum number of tasks that one release defines itself. Tasks of imported releases are not counted.
pub(super) const MAX_TASKS: usize = 4096;

/// Fields that only the tasks of Fuel (a deployment tool for `OpenStack`) have. A manifest must not contain them.
const FUEL_ONLY_FIELDS: &[&str] = &["version", "test_pre", "test_post", "refresh_on", "reexecute_on", "fault_tolerance", "stage"];

/// Reads the field `tasks` of a release. Each task is converted to the stored form.
///
/// # Errors
/// [`BodyError`] with the task's place and field.
pub fn read_tasks(raw: &RawValue) -> Result<Vec<Task>, BodyError> {
    // Fails if the value is neither a list nor `null`.
    read_json::<Option<Vec<IgnoredAny>>>(raw)?;
    let items = json::items(raw);
    if items.len() > MAX_TASKS {
        return Err(BodyError::new("", format!("{} tasks, more than the {MAX_TASKS} of one release", items.len())));
    }
    let tasks = items.iter().enumerate().map(|(index, item)| read_task(item).map_err(|error| error.at_index(index)));
    tasks.collect()
}

/// Reads one task and converts it to the stored form.
fn read_task(raw: &RawValue) -> Result<Task, BodyError> {
    JsonBody::parse(raw.get())?; // Fails if a member occurs twice.
    let mut members: Map<String, Value> = read_json(raw)?;
    drop_ignored_role_or_groups(&mut members);
    let mut task = Map::new();
    for (name, value) in members {
        if FUEL_ONLY_FIELDS.contains(&name.as_str()) {
            let reason =
                "is Fuel's own and means nothing in a manifest: remove it, or import with `stemma release import --fuel`";
            return Err(BodyError::new(name, reason));
        }
        let Some((name, value)) = normalize_field(&name, value)? else { continue };
        if task.insert(name.clone(), value).is_some() {
            return Err(BodyError::new(name, "occurs in two spellings: keep one of them"));
        }
    }
    let text = Value::Object(task).to_string();
    let task: Task = read_json(&RawValue::from_string(text).expect("a value's text is JSON"))?;
    if task.id.is_empty() || task.kind.is_empty() {
        let field = if task.id.is_empty() { "id" } else { "type" };
        return Err(BodyError::with_kind(BodyErrorKind::MissingField, field, "is missing"));
    }
    Ok(task)
}

/// If a task has `groups`, removes either `groups` or `role`: the field that Fuel ignores. Fuel uses `groups` only if
/// `role` is absent or empty.
fn drop_ignored_role_or_groups(members: &mut Map<String, Value>) {
    let is_set = |value: Option<&Value>| match value {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    if members.contains_key("groups") {
        let dropped: &[&str] =
            if is_set(members.get("role")) || is_set(members.get("roles")) { &["groups"] } else { &["role", "roles"] };
        members.retain(|name, _| !dropped.contains(&name.as_str()));
    }
}

/// Returns the stored spelling of a task's field and its normalized value. Returns `None` for a field that is `null`,
/// which counts as absent (except `tags`). An unknown field is returned, so that the typed reader refuses it.
fn normalize_field(name: &str, value: Value) -> Result<Option<(String, Value)>, BodyError> {
    let name = name.replace('-', "_");
    let Some(field_def) = Task::FIELD_DEFS.iter().find(|field_def| field_def.has_name(&name)) else {
        return Ok((!value.is_null()).then_some((name, value)));
    };
    let value = match (field_def.name, field_def.field_type.plain()) {
        // `tags: null` is stored as an empty list. If the release has `matching.roles: tags`, a task with an empty list
        // runs by tag, while a task without the field runs by role.
        ("tags", _) if value.is_null() => Value::Array(Vec::new()),
        ("tags", _) => normalize_tags(value).map_err(|error| error.prefixed("tags"))?,
        _ if value.is_null() => return Ok(None),
        ("roles", _) => normalize_nodes(value).map_err(|error| error.prefixed("roles"))?,
        (name, FieldType::TextOrList) => {
            check_selector_list(to_list(value), EVERY_TASK_HINT).map_err(|error| error.prefixed(name))?
        }
        (name, FieldType::ListOf(_)) => normalize_entries(value).map_err(|error| error.prefixed(name))?,
        _ => value,
    };
    Ok(Some((field_def.name.to_owned(), value)))
}

/// Normalizes `tags` of a task or of an entry of a cross dependency, as [`normalize_nodes`] does. Only the text `*`,
/// which means every tag, is returned unchanged. As an item of a list, `*` is a name that no tag has.
fn normalize_tags(value: Value) -> Result<Value, BodyError> {
    if value == ANY_TAG_INPUT { Ok(value) } else { normalize_nodes(value) }
}

/// Normalizes the names and patterns that select nodes. A text becomes a list with this one item. Fails at a pattern
/// that matches the empty text.
fn normalize_nodes(value: Value) -> Result<Value, BodyError> {
    check_selector_list(to_list(value), EVERY_NODE_HINT)
}

/// Converts a text to a list with this one item. Any other value is returned unchanged.
fn to_list(value: Value) -> Value {
    if value.is_string() { Value::Array(vec![value]) } else { value }
}

/// The advice in an error about a pattern that selects nodes.
const EVERY_NODE_HINT: &str = "write the text * for every node";

/// The advice in an error about a pattern that selects tasks.
const EVERY_TASK_HINT: &str = "name the tasks, or write /.+/ for every task";

/// Returns the list unchanged. Fails at an item that is not a text. Also fails at a pattern that matches the empty
/// text, because an empty variable in the pattern would otherwise select everything. `advice` is the end of the
/// message.
fn check_selector_list(list: Value, advice: &str) -> Result<Value, BodyError> {
    let names: Vec<String> = read_value(&list)?;
    check_each(&names, |name| check_pattern(name, advice))?;
    Ok(list)
}

/// Fails if a name is a `/pattern/` that matches the empty text. `advice` is the end of the message, such as
/// [`EVERY_NODE_HINT`].
fn check_pattern(name: &str, advice: &str) -> Result<(), BodyError> {
    if !matches_empty_text(name) {
        return Ok(());
    }
    let reason =
        format!("{:?} matches the empty text, and so may match every name: correct the pattern, or {advice}", truncated(name));
    Err(BodyError::new("", reason))
}

/// Normalizes the entries of `cross_depends` or `cross_depended_by`, which refer to tasks of other nodes. Removes
/// entries that are `null`, and converts `role` and `tags` of each entry to lists.
fn normalize_entries(value: Value) -> Result<Value, BodyError> {
    let Value::Array(items) = value else {
        return Err(BodyError::new("", "takes a list of {name, role or tags, policy}"));
    };
    let entries = items.into_iter().enumerate().filter(|(_, item)| !item.is_null());
    let normalized = entries.map(|(index, item)| normalize_entry(item).map_err(|error| error.at_index(index)));
    Ok(Value::Array(normalized.collect::<Result<_, _>>()?))
}

/// Converts `role` and `tags` of an entry to lists, and fails at a pattern that matches the empty text. `null` in these
/// fields remains, because it selects stages. The typed reader later refuses an entry that is not a map.
fn normalize_entry(item: Value) -> Result<Value, BodyError> {
    let mut entry = match item {
        Value::Object(entry) => entry,
        value_of_other_type => return Ok(value_of_other_type),
    };
    if let Some(Value::String(name)) = entry.get("name") {
        check_pattern(name, EVERY_TASK_HINT).map_err(|error| error.prefixed("name"))?;
    }
    for (field, normalize) in [("role", normalize_nodes as fn(Value) -> Result<Value, BodyError>), ("tags", normalize_tags)] {
        if let Some(value) = entry.get_mut(field).filter(|value| !value.is_null()) {
            *value = normalize(value.take()).map_err(|error| error.prefixed(field))?;
        }
    }
    Ok(Value::Object(entry))
}

/// Checks every name and pattern with which a task selects tasks or nodes. Fails if a selector contains a control
/// character, which no name has. Also fails if a selector of roles or tags is the text `null`, or differs from a
/// reserved word only in case, such as `Self`, because it would select nothing.
pub(super) fn check_task_selectors(task: &Task) -> Result<(), BodyError> {
    check_role_selectors(&task.roles).map_err(|error| error.prefixed("roles"))?;
    check_tag_selectors(task.tags.as_deref().unwrap_or_default()).map_err(|error| error.prefixed("tags"))?;
    let lists: [(&str, &[String]); 6] = [
        ("tags", task.tags.as_deref().unwrap_or_default()),
        ("roles", task.roles.as_slice()),
        ("tasks", task.tasks.as_slice()),
        ("requires", task.requires.as_slice()),
        ("required_for", task.required_for.as_slice()),
        ("subscribes", task.subscribes.as_slice()),
    ];
    for (field, names) in lists {
        check_no_control_in_list(names).map_err(|error| error.prefixed(field))?;
    }
    for (field, entries) in [("cross_depends", &task.cross_depends), ("cross_depended_by", &task.cross_depended_by)] {
        check_each(entries, check_entry_selectors).map_err(|error| error.prefixed(field))?;
    }
    // `on_unassign` contains the id of a single task.
    let on_unassign = task.on_unassign.as_deref().unwrap_or_default();
    check_no_control(on_unassign).map_err(|error| error.prefixed("on_unassign"))
}

/// Checks the selectors in an entry of `cross_depends` or `cross_depended_by`, as [`check_task_selectors`] does.
fn check_entry_selectors(entry: &CrossEntry) -> Result<(), BodyError> {
    check_no_control(&entry.name).map_err(|error| error.prefixed("name"))?;
    check_cross_selector(&entry.role, check_role_selectors).map_err(|error| error.prefixed("role"))?;
    check_cross_selector(&entry.tags, check_tag_selectors).map_err(|error| error.prefixed("tags"))
}

/// Checks the names in a `role` or `tags` of an entry. `check` contains the rules for roles or for tags.
fn check_cross_selector(selector: &CrossSelector, check: fn(&[String]) -> Result<(), BodyError>) -> Result<(), BodyError> {
    match selector {
        CrossSelector::Names(names) => check_no_control_in_list(names).and_then(|()| check(names)),
        CrossSelector::Absent | CrossSelector::Null => Ok(()),
    }
}

/// Fails if a selector of roles is the text `null`, or a reserved word in another case, such as `Self`. No new role can
/// have such a name, so the selector would select nothing.
fn check_role_selectors(names: &[String]) -> Result<(), BodyError> {
    check_each(names, |name| check_selector_case(name, NameKind::Role))
}

/// Checks selectors of tags as [`check_role_selectors`] does. Also fails if a selector begins with `primary-` in
/// another case, such as `Primary-`.
fn check_tag_selectors(names: &[String]) -> Result<(), BodyError> {
    check_each(names, |name| check_selector_case(name, NameKind::Tag))
}

/// Fails if a name in a selector is the text `null`, or a reserved word in another case. The message explains how to
/// write the word.
fn check_selector_case(name: &str, kind: NameKind) -> Result<(), BodyError> {
    let Some(word) = reserved_word_in_other_case(name, kind) else { return Ok(()) };
    let advice = match word {
        "null" => "write null without quotes to select the stages, or write a name".to_owned(),
        PRIMARY_PREFIX => format!("write {word}, in small letters, for the primary holder of a tag"),
        word => format!("write {word}, in small letters"),
    };
    Err(BodyError::new("", format!("{:?} is reserved: {advice}", truncated(name))))
}

/// Fails if a name of a list contains a control character.
fn check_no_control_in_list(names: &[String]) -> Result<(), BodyError> {
    check_each(names, |name| check_no_control(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_tasks(json: &str) -> Result<Vec<Task>, BodyError> {
        read_tasks(&RawValue::from_string(json.to_owned()).unwrap())
    }

    /// Fuel's names and a text in place of a list are converted to the stored form. An entry `null` is left out.
    #[test]
    fn read_tasks_accepts_spelling_of_fuel() {
        let stemma_spelling =
            r#"[{"id": "a", "type": "shell", "roles": ["web"], "cross_depends": [{"name": "b", "role": ["db"]}]}]"#;
        let fuel_spelling =
            r#"[{"id": "a", "type": "shell", "groups": "web", "cross-depends": [{"name": "b", "role": "db"}, null]}]"#;
        assert_eq!(parse_tasks(stemma_spelling).unwrap(), parse_tasks(fuel_spelling).unwrap());
    }

    #[test]
    fn read_tasks_reads_groups_only_without_role() {
        for (fields, roles) in [
            (r#""role": "web", "groups": ["db"]"#, "web"),
            (r#""role": [], "groups": ["db"]"#, "db"),
            (r#""role": null, "groups": "db""#, "db"),
            (r#""roles": ["web"], "groups": []"#, "web"),
        ] {
            let task = parse_tasks(&format!(r#"[{{"id": "a", "type": "shell", {fields}}}]"#)).unwrap().remove(0);
            assert_eq!(task.roles, [roles], "{fields}");
        }
    }

    #[test]
    fn read_tasks_distinguishes_absent_field_from_null() {
        let read = |fields: &str| parse_tasks(&format!(r#"[{{"id": "a", "type": "shell"{fields}}}]"#)).unwrap().remove(0);
        assert_eq!(read("").tags, None);
        assert_eq!(read(r#", "tags": null"#).tags, Some(vec![]));
        assert_eq!(read(r#", "tags": []"#).tags, Some(vec![]));
        let role_of =
            |fields: &str| read(&format!(r#", "cross_depends": [{{"name": "b"{fields}}}]"#)).cross_depends.remove(0).role;
        assert_eq!(role_of(""), CrossSelector::Absent);
        assert_eq!(role_of(r#", "role": null"#), CrossSelector::Null);
        assert_eq!(role_of(r#", "role": "self""#), CrossSelector::Names(vec!["self".to_owned()]));
    }

    /// Regression test: an empty pattern placed a task on every node.
    #[test]
    fn x06_read_tasks_rejects_pattern_matching_empty_text() {
        let read = |fields: &str| parse_tasks(&format!(r#"[{{"id": "a", "type": "shell", {fields}}}]"#));
        for pattern in ["/", "//", "/()/", "/|/", "/^/", "/.*/", "/x*/"] {
            for (fields, place, advice) in [
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
                let prefix = format!("[0].{place}: {pattern:?} matches the empty text");
                assert!(error.starts_with(&prefix) && error.contains(advice), "{fields}: {error}");
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

    /// The text `*`, which selects every tag, is written as it was read. So a task can be sent as a response shows it.
    #[test]
    fn x06_read_tasks_round_trips_every_tag() {
        let written = r#"[{"id":"a","type":"shell","tags":"*","cross_depends":[{"name":"b","tags":"*"}]}]"#;
        let read = parse_tasks(written).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), written);
        assert_eq!(parse_tasks(&serde_json::to_string(&read).unwrap()).unwrap(), read);
    }

    #[test]
    fn read_tasks_reports_place_of_error() {
        for (json, expected) in [
            (r#"[{"id": "a"}]"#, "[0].type: is missing"),
            (
                r#"[{"id": "a", "type": "x"}, {"id": "b", "type": "x", "colour": 1}]"#,
                "[1].colour: is not a field here: remove it, or use one of id, type, tags",
            ),
            (r#"[{"id": "a", "type": "x", "requires": [1]}]"#, "[0].requires[0]: must be a text, not the number 1: quote it"),
            (r#"[{"id": "a", "type": "x", "refresh_on": []}]"#, "[0].refresh_on: is Fuel's own"),
            (
                r#"[{"id": "a", "type": "x", "require": ["b"]}]"#,
                "[0].require: is not a field here (did you mean \"requires\"?): correct its spelling, or remove it",
            ),
            (r#"[{"id": "a", "type": "x", "role": "b", "roles": "c"}]"#, "[0].roles: occurs in two spellings"),
            (r#"[{"id": "a", "id": "b", "type": "x"}]"#, "[0].id: occurs twice"),
        ] {
            let error = parse_tasks(json).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
