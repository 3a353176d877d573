//! Fields that are taken and kept, and that nothing acts on yet: one table, by which each is a finding where it is given.
//!
//! A field that is refused today would break the manifests that other systems' authors bring; one that is taken in silence lets
//! its author believe in it. What a row names is taken out with the code that acts on it. Fields that other systems' clients read
//! back (Magnum's, Ironic's, `foreign`) and those for people (titles, descriptions) do what they are for, and are not here.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::finding::{Finding, rule};
use crate::host_labels::HostLabels;
use crate::lifecycle::Lifecycle;
use crate::name::TagName;
use crate::object::{
    ClusterSpec, ClusterTemplateSpec, Inherited, NodeGroupSpec, NodeSpec, ReleaseSpec, ReleaseTagsSpec, RoleSpec,
    TagSpec,
};
use crate::task::{OnInterrupt, Phase, Task, TaskKind, task_type};

/// A field as manifests name it, whether it is given, and what does not happen.
type Row<T> = (&'static str, fn(&T) -> bool, &'static str);

/// The fields of a group, which is placed never itself.
const OF_GROUP: &[&str] = &["id", "type", "tags", "roles", "tasks", "foreign"];
/// The fields of a stage, which stands on no node.
const OF_STAGE: &[&str] = &["id", "type", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// The fields of a task of type `skipped`, which has a place in the order alone.
const OF_SKIPPED: &[&str] =
    &["id", "type", "tags", "roles", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

const TASK: &[Row<Task>] = &[
    (
        "on_unassign",
        |task| task.on_unassign.is_some(),
        "the task that it names is not run where this one no longer falls",
    ),
    ("phase", |task| task.phase != Phase::Apply, "no host is drained or cleaned up, so the task never runs"),
    ("disruptive", |task| task.disruptive, "no host is drained before it"),
    ("max_nodes", |task| task.max_nodes.is_some_and(|most| most > 0), "it runs on all of its nodes at once"),
    ("privileged", |task| task.privileged, "it is placed and written as any other task"),
];

/// Those that tasks of one type heed.
const TASK_OF_TYPE: &[Row<Task>] = &[
    ("timeout_seconds", |task| task.timeout_seconds.is_some() && !is_shell(task), "only a shell task is ended by it"),
    ("on_interrupt", |task| task.on_interrupt != OnInterrupt::Unknown && !is_shell(task), "only a shell task heeds it"),
    ("parameters.timeout", has_idle_timeout, "a file is written without a limit of time"),
    ("tasks", |task| !task.tasks.is_empty() && !task.is_group(), "only a group has tasks"),
];

const ROLE: &[Row<RoleSpec>] =
    &[("fault_tolerance", |spec| spec.fault_tolerance.is_some(), "no failure of its nodes stops others")];

const TAG: &[Row<TagSpec>] = &[("ready", |spec| !spec.ready.is_empty(), "no host runs its probes")];

const HOST_LABELS: &[Row<HostLabels>] =
    &[("host_labels.annotations", |said| !said.annotations.is_empty(), "annotations flow to no host label map")];

const LIFECYCLE: &[Row<Lifecycle>] = &[
    ("node_drain_timeout", |said| said.node_drain_timeout.is_some(), "hosts are told of it, and none is drained"),
    (
        "node_volume_detach_timeout",
        |said| said.node_volume_detach_timeout.is_some(),
        "hosts are told of it, and no volume is released",
    ),
    (
        "node_deletion_timeout",
        |said| said.node_deletion_timeout.is_some(),
        "hosts are told of it, and none is cleaned up",
    ),
    ("min_ready_seconds", |said| said.min_ready_seconds.is_some(), "hosts are told of it, and no rollout waits for it"),
];

const CLUSTER: &[Row<ClusterSpec>] =
    &[("rollout", |spec| spec.rollout.is_some(), "task sets are released to all hosts at once")];

const GROUP: &[Row<NodeGroupSpec>] = &[
    ("strategy", |spec| spec.strategy.is_some(), "task sets are released to all of its hosts at once"),
    ("mend_offline", |spec| spec.mend_offline, "hosts mend without a controller whatever it says"),
];

/// A field that is given, by its place, and what does not happen.
type Given = (String, &'static str);

/// A spec that can have such fields.
pub trait Idle {
    /// Those that are given.
    fn idle(&self) -> Vec<Given>;
}

/// The findings of an object.
pub fn findings(object: &str, spec: &impl Idle) -> Vec<Finding> {
    let finding = |(field, what): Given| {
        Finding::of(rule::FIELD_IDLE, format!("{object} {field}"), format!("nothing acts on it yet: {what}"))
    };
    spec.idle().into_iter().map(finding).collect()
}

/// A sentence of what does not happen for a field, by its path within its kind, as `tasks.on_unassign`.
pub(crate) fn of_field(path: &str) -> Option<String> {
    fn find<T>(rows: &'static [Row<T>], path: &str) -> Option<&'static str> {
        rows.iter().find(|row| row.0 == path).map(|row| row.2)
    }
    if let Some(what) = path.strip_prefix("tasks.").and_then(|field| find(TASK_OF_TYPE, field)) {
        return Some(format!("Not for every type: {what}."));
    }
    let what = match path.split_once('.') {
        Some(("tasks", field)) => find(TASK, field),
        Some(("roles", field)) => find(ROLE, field),
        Some(("tags", field)) => find(TAG, field),
        _ => find(CLUSTER, path)
            .or_else(|| find(GROUP, path))
            .or_else(|| find(HOST_LABELS, path))
            .or_else(|| find(LIFECYCLE, path)),
    };
    what.map(|what| format!("Nothing acts on it yet: {what}."))
}

impl Idle for ReleaseSpec {
    fn idle(&self) -> Vec<Given> {
        let roles = self.roles.iter();
        let mut given: Vec<Given> = roles.flat_map(|(name, role)| of_role(&format!("roles.{name}."), role)).collect();
        given.extend(of_tags(&self.tags));
        given.extend(self.tasks.iter().flat_map(of_task));
        given
    }
}

impl Idle for ReleaseTagsSpec {
    fn idle(&self) -> Vec<Given> {
        of_tags(&self.tags)
    }
}

impl Idle for ClusterTemplateSpec {
    fn idle(&self) -> Vec<Given> {
        of_level(&self.inherited, self.host_labels.as_ref())
    }
}

impl Idle for ClusterSpec {
    fn idle(&self) -> Vec<Given> {
        let level = of_level(&self.inherited, self.host_labels.as_ref());
        [rows(CLUSTER, self, ""), level, of_tags(&self.tags)].concat()
    }
}

impl Idle for NodeGroupSpec {
    fn idle(&self) -> Vec<Given> {
        [rows(GROUP, self, ""), of_level(&self.inherited, self.host_labels.as_ref())].concat()
    }
}

impl Idle for NodeSpec {
    fn idle(&self) -> Vec<Given> {
        of_level(&self.inherited, None)
    }
}

fn rows<T>(table: &[Row<T>], it: &T, before: &str) -> Vec<Given> {
    let given = table.iter().filter(|(_, is_given, _)| is_given(it));
    given.map(|(field, _, what)| (format!("{before}{field}"), *what)).collect()
}

fn of_level(inherited: &Inherited, host_labels: Option<&HostLabels>) -> Vec<Given> {
    let mut given = rows(LIFECYCLE, &inherited.lifecycle, "");
    given.extend(host_labels.iter().flat_map(|said| rows(HOST_LABELS, *said, "")));
    given
}

fn of_role(before: &str, role: &RoleSpec) -> Vec<Given> {
    let what = "only whole numbers in min and max are compared with what there is";
    let other = role.limits.iter().filter(|(name, value)| {
        let is_compared = RoleSpec::COMPARED_LIMITS.contains(&name.as_str()) && value.is_u64();
        !is_compared && !value.is_null()
    });
    let limits = other.map(|(name, _)| (format!("{before}limits.{name}"), what));
    rows(ROLE, role, before).into_iter().chain(limits).collect()
}

fn of_tags(tags: &BTreeMap<TagName, TagSpec>) -> Vec<Given> {
    tags.iter().flat_map(|(name, tag)| rows(TAG, tag, &format!("tags.{name}."))).collect()
}

fn of_task(task: &Task) -> Vec<Given> {
    let before = format!("task {} ", task.id);
    let marker = match task_type(&task.kind).map(|kind| kind.kind) {
        Some(TaskKind::Group) => Some((OF_GROUP, "a group only places its tasks")),
        Some(TaskKind::Stage) => Some((OF_STAGE, "a stage only orders tasks")),
        Some(TaskKind::Skipped) => Some((OF_SKIPPED, "a skipped task never runs")),
        _ => None,
    };
    let Some((fields, what)) = marker else {
        return [rows(TASK, task, &before), rows(TASK_OF_TYPE, task, &before)].concat();
    };
    let Ok(Value::Object(given)) = serde_json::to_value(task) else { return Vec::new() };
    let other = given.into_iter().filter(|(field, _)| !fields.contains(&field.as_str()));
    other.map(|(field, _)| (format!("{before}{field}"), what)).collect()
}

/// Fuel's `timeout` of a file, which the type takes since Fuel's manifests have it.
fn has_idle_timeout(task: &Task) -> bool {
    let is_file = task_type(&task.kind).is_some_and(|kind| kind.kind == TaskKind::File);
    is_file && task.parameters.get("timeout").is_some_and(|timeout| !timeout.is_null())
}

fn is_shell(task: &Task) -> bool {
    task_type(&task.kind).is_some_and(|kind| kind.kind == TaskKind::Shell)
}
