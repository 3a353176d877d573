//! Objects of a host that tasks manage by a name, such as packages, units and accounts. Decides whether two tasks of a
//! host want one object in different ways.
//!
//! Hosts run both tasks. Each would undo the change of the other at every drift check, so the controller reports them
//! beforehand.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::name_rules::unit_name;
use super::types::{NamedObject, TaskKind, TaskType, task_type};
use super::{Task, compare_debian_versions, compare_rpm_versions, is_template};
use crate::name::truncated;

/// The states that the tasks of a host want, by object. `T` identifies a task.
#[derive(Debug)]
pub struct ObjectDemands<T>(BTreeMap<(&'static str, String), Demand<T>>);

/// The state that tasks want of one object: its parameters, each with the first task that sets it.
type Demand<T> = BTreeMap<&'static str, (Value, T)>;

/// Two tasks of a host that want one object in different ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectConflict<T> {
    /// The earlier of the two tasks.
    pub first: T,
    /// The kind and name of the object, such as `package nginx`.
    object: String,
    /// What the later task wants, such as `version: 1.2`.
    wanted: String,
    /// What the earlier task wants.
    first_wanted: String,
}

impl<T> Default for ObjectDemands<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy> ObjectDemands<T> {
    /// Adds what a task wants of the objects that it names. Returns the conflict with an earlier task, if the task wants
    /// one of the objects in another way. The state of the earlier task is then kept. A task that hosts neither run nor
    /// check, and names and values that are templates, are ignored.
    pub fn add(&mut self, owner: T, task: &Task) -> Option<ObjectConflict<T>> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed())?;
        let object = kind.named_object?;
        let values = state_values(&object, &task.parameters);
        let mut conflict = None;
        for name in object_names(kind, &object, &task.parameters) {
            let title = format!("{} {}", object.noun, truncated(&name));
            let demand = self.0.entry((object.noun, name)).or_default();
            match contradiction(kind, demand, &values) {
                Some((first, [first_wanted, wanted])) => {
                    conflict = conflict.or(Some(ObjectConflict { first, object: title, wanted, first_wanted }));
                }
                None => {
                    for (name, value) in &values {
                        demand.entry(name).or_insert_with(|| (value.clone(), owner));
                    }
                }
            }
        }
        conflict
    }
}

/// Returns the earlier task that these values contradict, with what it wants and what the later task wants.
fn contradiction<T: Copy>(kind: &TaskType, demand: &Demand<T>, values: &[(&'static str, Value)]) -> Option<(T, [String; 2])> {
    let pairs = demand.iter().flat_map(|(name, (value, owner))| values.iter().map(move |later| (owner, (name, value), later)));
    let mut conflicts = pairs.filter(|(_, (name, value), (later_name, later_value))| {
        match (**name, *later_name) {
            // Two tasks may each add a user to groups, and the higher of two minimum versions satisfies both.
            ("groups", "groups") | ("min_version", "min_version") => return false,
            ("exact_groups", "groups") => return !contains_all(value, later_value),
            ("groups", "exact_groups") => return !contains_all(later_value, value),
            ("version", "min_version") => return is_older(value, later_value),
            ("min_version", "version") => return is_older(later_value, value),
            ("exact_groups", "exact_groups") => return !(contains_all(value, later_value) && contains_all(later_value, value)),
            (name, later_name) if name == later_name => return shown(value) != shown(later_value),
            _ => {}
        }
        // Two values that no task may have together, such as `masked: true` and `state: running`.
        let both = [(*name, *value), (later_name, later_value)].map(|(name, value)| ((*name).to_owned(), value.clone()));
        !kind.combination_errors(&both.into_iter().collect()).is_empty()
    });
    let (owner, (name, value), (later_name, later_value)) = conflicts.next()?;
    Some((*owner, [format!("{name}: {}", shown(value)), format!("{later_name}: {}", shown(later_value))]))
}

impl<T> ObjectConflict<T> {
    /// Returns the message about the later task. `first_id` is the id of the earlier task.
    pub fn message(&self, first_id: &str) -> String {
        let Self { object, wanted, first_wanted, .. } = self;
        format!(
            "{object}: this task wants `{wanted}`, and task {first_id} wants `{first_wanted}`: each undoes the change of the other on this host; remove one of \
             the two, or place them on different hosts"
        )
    }
}

/// Returns the parameters of a task that define the state of its objects, with their values. A task without `absent`
/// wants that the object exists.
fn state_values(object: &NamedObject, parameters: &Map<String, Value>) -> Vec<(&'static str, Value)> {
    let value = |name: &'static str| {
        let written = parameters.get(name).filter(|value| !value.is_null()).cloned();
        let value = written.or_else(|| (name == "absent").then_some(Value::Bool(false)))?;
        (!value.as_str().is_some_and(is_template)).then_some((name, value))
    };
    let mut values: Vec<_> = object.state_parameters.iter().filter_map(|name| value(name)).collect();
    // The list of groups is the whole list or a part of it.
    let is_exact = values.iter().any(|(name, value)| *name == "exact_groups" && *value == Value::Bool(true));
    values.retain(|(name, _)| *name != "exact_groups");
    for (name, _) in values.iter_mut().filter(|(name, _)| is_exact && *name == "groups") {
        *name = "exact_groups";
    }
    values
}

/// Returns whether a version is older than another one, by the order of Debian and by that of rpm.
fn is_older(version: &Value, other: &Value) -> bool {
    let (version, other) = (shown(version), shown(other));
    compare_debian_versions(&version, &other).is_lt() && compare_rpm_versions(&version, &other).is_lt()
}

/// Returns whether a list of names contains all names of another list. A list with a template contains any name.
fn contains_all(list: &Value, others: &Value) -> bool {
    let names = |list: &Value| list.as_array().map(Vec::as_slice).unwrap_or_default().to_vec();
    let has_template = |list: &Value| names(list).iter().any(|name| name.as_str().is_some_and(is_template));
    has_template(list) || has_template(others) || names(others).iter().all(|name| names(list).contains(name))
}

/// Returns the names of the objects that a task manages. Names that are templates are omitted.
fn object_names(kind: &TaskType, object: &NamedObject, parameters: &Map<String, Value>) -> Vec<String> {
    let names = match object.name_parameters.iter().find_map(|name| parameters.get(*name)) {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(name)) => vec![name.as_str()],
        _ => Vec::new(),
    };
    let full_name = |name: &str| if kind.kind == TaskKind::Service { unit_name(name) } else { name.to_owned() };
    names.into_iter().filter(|name| !is_template(name)).map(full_name).collect()
}

/// Returns a value as a manifest has it. A number and the same number as a text are equal to hosts.
fn shown(value: &Value) -> String {
    truncated(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(kind: &str, parameters: &Value) -> Task {
        serde_json::from_value(json!({"id": "t", "type": kind, "tags": ["x"], "parameters": parameters})).unwrap()
    }

    /// Adds two tasks of a type. Returns what the message says about the conflict, or `None` if there is none.
    fn conflict(kind: &str, first: &Value, second: &Value) -> Option<String> {
        let mut demands = ObjectDemands::default();
        assert_eq!(demands.add(1, &task(kind, first)), None, "{first}");
        demands.add(2, &task(kind, second)).map(|found| {
            assert_eq!(found.first, 1);
            found.message("a").split(": each").next().unwrap_or_default().to_owned()
        })
    }

    #[test]
    fn tasks_conflict_when_states_differ() {
        for (kind, first, second, object, wanted, first_wanted) in [
            (
                "package",
                json!({"name": "a1"}),
                json!({"name": ["b1", "a1"], "absent": true}),
                "package a1",
                "absent: true",
                "absent: false",
            ),
            (
                "package",
                json!({"name": "a1", "version": "1"}),
                json!({"name": "a1", "version": "2"}),
                "package a1",
                "version: 2",
                "version: 1",
            ),
            (
                "package",
                json!({"name": "a1", "hold": true}),
                json!({"name": "a1", "hold": false}),
                "package a1",
                "hold: false",
                "hold: true",
            ),
            (
                "service",
                json!({"unit": "a", "state": "running"}),
                json!({"name": "a.service", "state": "stopped"}),
                "unit a.service",
                "state: stopped",
                "state: running",
            ),
            (
                "service",
                json!({"unit": "a", "masked": true}),
                json!({"unit": "a", "state": "running"}),
                "unit a.service",
                "state: running",
                "masked: true",
            ),
            ("user", json!({"name": "a", "uid": 1000}), json!({"name": "a", "uid": 1001}), "user a", "uid: 1001", "uid: 1000"),
            (
                "package",
                json!({"name": "a1", "version": "1.0"}),
                json!({"name": "a1", "min_version": "2.0"}),
                "package a1",
                "min_version: 2.0",
                "version: 1.0",
            ),
            (
                "user",
                json!({"name": "a", "groups": ["b"], "exact_groups": true}),
                json!({"name": "a", "groups": ["c"]}),
                "user a",
                "groups: [\"c\"]",
                "exact_groups: [\"b\"]",
            ),
            (
                "group_account",
                json!({"name": "a"}),
                json!({"name": "a", "absent": true}),
                "group a",
                "absent: true",
                "absent: false",
            ),
        ] {
            let expected = format!("{object}: this task wants `{wanted}`, and task a wants `{first_wanted}`");
            assert_eq!(conflict(kind, &first, &second), Some(expected), "{first} {second}");
        }
    }

    #[test]
    fn tasks_share_object_when_states_agree_or_are_unknown() {
        for (kind, first, second) in [
            ("package", json!({"name": ["a1", "b1"]}), json!({"name": ["b1", "c1"], "recommends": true})),
            ("package", json!({"name": "a1", "version": "1.10"}), json!({"name": "a1", "min_version": "1.9"})),
            ("package", json!({"name": "a1", "min_version": "1"}), json!({"name": "a1", "min_version": "2"})),
            ("package", json!({"name": "a1"}), json!({"name": "b1", "absent": true})),
            ("package", json!({"name": "a1", "version": "1"}), json!({"name": "a1", "version": "{{ labels.v }}"})),
            ("package", json!({"name": "a1"}), json!({"name": "{{ labels.name }}", "absent": true})),
            ("service", json!({"unit": "a", "state": "running"}), json!({"unit": "a", "enabled": true})),
            ("service", json!({"unit": "a.socket", "state": "running"}), json!({"unit": "a", "state": "stopped"})),
            ("user", json!({"name": "a", "uid": "1000"}), json!({"name": "a", "uid": 1000, "groups": ["b"]})),
            ("user", json!({"name": "a", "groups": ["b"]}), json!({"name": "a", "groups": ["c"]})),
            ("user", json!({"name": "a", "groups": ["b", "c"], "exact_groups": true}), json!({"name": "a", "groups": ["c"]})),
        ] {
            assert_eq!(conflict(kind, &first, &second), None, "{first} {second}");
        }
        let mut demands = ObjectDemands::default();
        assert_eq!(demands.add(1, &task("user", &json!({"name": "a"}))), None);
        assert_eq!(demands.add(2, &task("group_account", &json!({"name": "a", "absent": true}))), None, "another kind of object");
    }

    /// A third task is compared with the state of the first one that set a parameter.
    #[test]
    fn conflict_names_first_task_with_parameter() {
        let mut demands = ObjectDemands::default();
        assert_eq!(demands.add(1, &task("service", &json!({"unit": "a", "state": "running"}))), None);
        assert_eq!(demands.add(2, &task("service", &json!({"unit": "a", "enabled": true}))), None);
        let conflict = demands.add(3, &task("service", &json!({"unit": "a", "enabled": false})));
        assert_eq!(conflict.map(|found| found.first), Some(2));
    }
}
