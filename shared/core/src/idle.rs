//! Fields that are taken and kept, and that nothing acts on yet: one table, by which each is a finding where it is given.
//!
//! A field that is refused today would break the manifests that other systems' authors bring; one that is taken in silence lets
//! its author believe in it. What a row names is taken out with the code that acts on it. Fields that other systems' clients read
//! back (Magnum's, Ironic's, Glance's, `foreign`) and those for people (titles, descriptions) do what they are for: they act. The table
//! takes each spec apart by name, so that a new field does not compile until somebody has said which it is. That a field acts is tried for
//! those of the specs (`tests/all/change_classes`); of their parts (tasks, roles, tags, host labels, lifecycle) the table is believed.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::finding::{Finding, first_few, rule};
use crate::host_labels::HostLabels;
use crate::lifecycle::Lifecycle;
use crate::name::{Name, TagName};
use crate::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, Inherited, InspectionRuleSpec, NamespaceSpec, NodeGroupSpec,
    NodeSpec, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec, RoleSpec, TagSpec,
};
use crate::task::{OnInterrupt, Phase, Task, TaskKind, task_type};

/// A field that is given, by its place, and what does not happen.
type Given = (String, &'static str);

/// A spec, or a part of one, of which each field acts or is idle.
pub trait Idle {
    /// The fields, each with what does not happen where it is given; `None`: it acts, or is looked at part by part.
    const FIELDS: &'static [(&'static str, Option<&'static str>)];

    /// Those that are given and that nothing acts on.
    fn idle(&self) -> Vec<Given>;
}

/// A field as manifests name it, whether it is given, and what does not happen.
type Row<T> = (&'static str, fn(&T) -> bool, &'static str);

/// The fields of a group, which is placed never itself.
const OF_GROUP: &[&str] = &["id", "type", "tags", "roles", "tasks", "privileged", "foreign"];
/// The fields of a stage, which stands on no node.
const OF_STAGE: &[&str] = &["id", "type", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// The fields of a task of type `skipped`, which has a place in the order alone.
const OF_SKIPPED: &[&str] =
    &["id", "type", "tags", "roles", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// Those that tasks of one type heed.
const TASK_OF_TYPE: &[Row<Task>] = &[
    ("timeout_seconds", |task| task.timeout_seconds.is_some() && !is_shell(task), "only a shell task is ended by it"),
    ("on_interrupt", |task| task.on_interrupt != OnInterrupt::Unknown && !is_shell(task), "only a shell task heeds it"),
    ("parameters.timeout", has_idle_timeout, "a file is written without a limit of time"),
    ("tasks", |task| !task.tasks.is_empty() && !task.is_group(), "only a group has tasks"),
];

/// The table. A row is a field that acts; a field whose own parts are looked at, with the function that does it; or one that nothing acts
/// on, with whether it is given and what does not happen.
macro_rules! fields {
    (@what acts) => { None };
    (@what of($parts:path)) => { None };
    (@what idle($is_given:expr, $what:literal)) => { Some($what) };
    (@row $given:ident, $field:ident, acts) => { let _ = $field; };
    (@row $given:ident, $field:ident, of($parts:path)) => { $given.extend($parts($field)); };
    (@row $given:ident, $field:ident, idle($is_given:expr, $what:literal)) => {
        if is_given($field, $is_given) {
            $given.push((stringify!($field).to_owned(), $what));
        }
    };
    ($($spec:ident { $($field:ident: $rule:ident $(($($argument:tt)+))?),+ $(,)? })+) => {$(
        impl Idle for $spec {
            const FIELDS: &'static [(&'static str, Option<&'static str>)] =
                &[$((stringify!($field), fields!(@what $rule $(($($argument)+))?))),+];

            fn idle(&self) -> Vec<Given> {
                #[allow(unused_mut, reason = "every field of some acts")]
                let mut given = Vec::new();
                let Self { $($field),+ } = self;
                $(fields!(@row given, $field, $rule $(($($argument)+))?);)+
                given
            }
        }
    )+};
}

fields! {
    ReleaseSpec {
        description: acts,
        labels: acts,
        annotations: acts,
        imports: acts,
        roles: of(of_roles),
        tags: of(of_tags),
        tasks: of(of_tasks),
        matching: acts,
        extensions: acts,
        foreign: acts,
        owners: acts,
    }
    ReleaseTagsSpec {
        tags: of(of_tags),
    }
    ClusterTemplateSpec {
        description: acts,
        inherited: of(Idle::idle),
        release: acts,
        host_labels: of(of_host_labels),
        extra: acts,
        owners: acts,
    }
    ClusterSpec {
        description: acts,
        inherited: of(Idle::idle),
        cluster_template: acts,
        release: acts,
        host_labels: of(of_host_labels),
        tags: of(of_tags),
        roles: acts,
        rollout: idle(Option::is_some, "task sets are released to all hosts at once"),
        paused: acts,
        primaries: acts,
        extra: acts,
        owners: acts,
    }
    NodeGroupSpec {
        cluster: acts,
        description: acts,
        inherited: of(Idle::idle),
        release: acts,
        host_labels: of(of_host_labels),
        roles: acts,
        requirements: acts,
        strategy: idle(Option::is_some, "task sets are released to all of its hosts at once"),
        paused: acts,
        mode: acts,
        mend_offline: idle(|said| *said, "hosts mend without a controller whatever it says"),
        splay_seconds: acts,
        silent_after_seconds: acts,
        extra: acts,
        owners: acts,
    }
    NodeSpec {
        description: acts,
        inherited: of(Idle::idle),
        nodegroup: acts,
        roles: acts,
        tags: acts,
        traits: acts,
        suppressed_traits: acts,
        properties: acts,
        instance_info: acts,
        provision_state: acts,
        mode: acts,
        hold: acts,
        parked: acts,
        extra: acts,
        owners: acts,
    }
    NamespaceSpec {
        display_name: acts,
        description: acts,
        visibility: acts,
        protected: acts,
        owner: acts,
        labels: acts,
        resource_type_associations: acts,
        properties: acts,
        objects: acts,
        tags: acts,
        dates: acts,
        owners: acts,
    }
    InspectionRuleSpec {
        description: acts,
        priority: acts,
        phase: acts,
        sensitive: acts,
        grants: acts,
        conditions: acts,
        actions: acts,
        labels: acts,
        owners: acts,
    }
    AllocationSpec {
        resource_class: acts,
        traits: acts,
        requirements: acts,
        candidate_nodes: acts,
        nodegroup: acts,
        owner: acts,
        within: acts,
        decision: acts,
        extra: acts,
        owners: acts,
    }
    PrincipalSpec {
        role: acts,
        cluster: acts,
        description: acts,
        certificates: acts,
        tokens: acts,
        takes_unlisted: acts,
    }
    PrimarySpec {
        cluster: acts,
        node: acts,
        since: acts,
        epoch: acts,
    }
    Inherited {
        labels: acts,
        annotations: acts,
        parameters: acts,
        lifecycle: of(Idle::idle),
    }
    Lifecycle {
        node_drain_timeout: idle(Option::is_some, "hosts are told of it, and none is drained"),
        node_volume_detach_timeout: idle(Option::is_some, "hosts are told of it, and no volume is released"),
        node_deletion_timeout: idle(Option::is_some, "hosts are told of it, and none is cleaned up"),
        min_ready_seconds: idle(Option::is_some, "hosts are told of it, and no rollout waits for it"),
    }
    HostLabels {
        prefixes: acts,
        patterns: acts,
        annotations: idle(|said| !said.is_empty(), "annotations flow to no host label map"),
        accept: acts,
    }
    RoleSpec {
        tags: acts,
        title: acts,
        conflicts: acts,
        limits: of(of_limits),
        fault_tolerance: idle(Option::is_some, "no failure of its nodes stops others"),
    }
    TagSpec {
        has_primary: acts,
        title: acts,
        ready: idle(|probes| !probes.is_empty(), "no host runs its probes"),
        role: acts,
    }
    Task {
        id: acts,
        kind: acts,
        tags: acts,
        roles: acts,
        tasks: acts,
        requires: acts,
        required_for: acts,
        cross_depends: acts,
        cross_depended_by: acts,
        condition: acts,
        parameters: acts,
        subscribes: acts,
        on_drift: acts,
        on_unassign: idle(Option::is_some, "the task that it names is not run where this one no longer runs"),
        on_interrupt: acts,
        phase: idle(|phase| *phase != Phase::Apply, "no host is drained or cleaned up, so the task never runs"),
        disruptive: idle(|said| *said, "no host is drained before it"),
        sensitive: acts,
        mode: acts,
        privileged: acts,
        timeout_seconds: acts,
        retries: acts,
        fail_on_error: acts,
        max_nodes: idle(|most| most.is_some_and(|most| most > 0), "it runs on all of its nodes at once"),
        foreign: acts,
    }
}

/// The findings of an object.
pub fn findings(object: &str, spec: &impl Idle) -> Vec<Finding> {
    let finding = |(field, what): Given| {
        Finding::of(rule::FIELD_IDLE, format!("{object} {field}"), format!("nothing acts on it yet: {what}"))
    };
    spec.idle().into_iter().map(finding).collect()
}

/// The most tasks of a group that a finding names.
const FEW: usize = 5;

/// The tasks of a release that name a group where they name what they wait for, or what waits for them: a group is no task, so nobody waits.
/// A pattern that matches one means the others. `find`: a task of the release or of its imports.
pub(crate) fn groups_in_order<'a>(
    object: &str,
    tasks: &[Task],
    find: impl Fn(&str) -> Option<&'a Task>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for task in tasks.iter().filter(|task| !task.is_group()) {
        for (field, name) in order_of(task) {
            let Some(group) = find(name).filter(|named| named.is_group()) else { continue };
            let members = first_few(group.tasks.iter().map(String::as_str), FEW);
            let instead = if members.is_empty() {
                "it has no tasks to name instead".to_owned()
            } else {
                format!("name its tasks instead: {members}")
            };
            let message = format!("nothing acts on it yet: {name} is a group, and nobody waits for a group; {instead}");
            findings.push(Finding::of(rule::FIELD_IDLE, format!("{object} task {} {field}", task.id), message));
        }
    }
    findings
}

/// The names in each field of a task that is about its order, with the place.
fn order_of(task: &Task) -> impl Iterator<Item = (String, &str)> {
    let lists = [("requires", &task.requires), ("required_for", &task.required_for), ("subscribes", &task.subscribes)];
    let plain = lists.into_iter().flat_map(|(field, names)| {
        names.iter().enumerate().map(move |(at, name)| (format!("{field}[{at}]"), name.as_str()))
    });
    let across = [("cross_depends", &task.cross_depends), ("cross_depended_by", &task.cross_depended_by)];
    let across = across.into_iter().flat_map(|(field, entries)| {
        entries.iter().enumerate().map(move |(at, entry)| (format!("{field}[{at}].name"), entry.name.as_str()))
    });
    plain.chain(across)
}

/// A sentence of what does not happen for a field, by its path within its kind, as `tasks.on_unassign`.
pub(crate) fn of_field(path: &str) -> Option<String> {
    fn find<S: Idle>(field: &str) -> Option<&'static str> {
        S::FIELDS.iter().find(|(name, _)| *name == field)?.1
    }
    let of_type = |field: &str| TASK_OF_TYPE.iter().find(|row| row.0 == field);
    if let Some((.., what)) = path.strip_prefix("tasks.").and_then(of_type) {
        return Some(format!("Not for every type: {what}."));
    }
    let what = match path.split_once('.') {
        Some(("tasks", field)) => find::<Task>(field),
        Some(("roles", field)) => find::<RoleSpec>(field),
        Some(("tags", field)) => find::<TagSpec>(field),
        Some(("host_labels", field)) => find::<HostLabels>(field),
        _ => find::<ClusterSpec>(path).or_else(|| find::<NodeGroupSpec>(path)).or_else(|| find::<Lifecycle>(path)),
    };
    what.map(|what| format!("Nothing acts on it yet: {what}."))
}

fn is_given<T>(value: &T, is_given: impl Fn(&T) -> bool) -> bool {
    is_given(value)
}

/// The same below a place.
fn below(place: &str, given: Vec<Given>) -> impl Iterator<Item = Given> {
    given.into_iter().map(move |(field, what)| (format!("{place}{field}"), what))
}

fn of_host_labels<'a>(said: impl IntoIterator<Item = &'a HostLabels>) -> Vec<Given> {
    said.into_iter().flat_map(|said| below("host_labels.", said.idle())).collect()
}

fn of_roles(roles: &BTreeMap<Name, RoleSpec>) -> Vec<Given> {
    roles.iter().flat_map(|(name, role)| below(&format!("roles.{name}."), role.idle()).collect::<Vec<_>>()).collect()
}

fn of_limits(limits: &Map<String, Value>) -> Vec<Given> {
    let what = "only whole numbers in min and max are compared with what there is";
    let other = limits.iter().filter(|(name, value)| {
        let is_compared = RoleSpec::COMPARED_LIMITS.contains(&name.as_str()) && value.is_u64();
        !is_compared && !value.is_null()
    });
    other.map(|(name, _)| (format!("limits.{name}"), what)).collect()
}

fn of_tags(tags: &BTreeMap<TagName, TagSpec>) -> Vec<Given> {
    tags.iter().flat_map(|(name, tag)| below(&format!("tags.{name}."), tag.idle()).collect::<Vec<_>>()).collect()
}

fn of_tasks(tasks: &[Task]) -> Vec<Given> {
    tasks.iter().flat_map(of_task).collect()
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
        let of_type = TASK_OF_TYPE.iter().filter(|(_, is_given, _)| is_given(task));
        let of_type = of_type.map(|(field, _, what)| ((*field).to_owned(), *what));
        return below(&before, task.idle().into_iter().chain(of_type).collect()).collect();
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
