//! Fields that are accepted and stored, but have no effect yet. One table lists them. An object that sets such a field
//! gets a finding.
//!
//! Refusing such a field would break manifests that authors bring from other systems. Accepting it silently would
//! mislead its author. A change that implements a field also removes its row.
//!
//! A field acts if it has the effect that its author expects. This includes fields that clients of other systems read
//! back (Magnum's, Ironic's, Glance's, `foreign`) and fields for people (titles, descriptions). The table destructures
//! each spec, so a new field does not compile until it is classified. A test checks that the fields of the specs act
//! (`tests/all/propagation`). No test checks the rows of their parts (tasks, roles, tags, host labels, lifecycle).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::finding::{Finding, join_first, rule};
use crate::host_labels::HostLabels;
use crate::lifecycle::Lifecycle;
use crate::name::{Name, TagName};
use crate::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, Inherited, InspectionRuleSpec, NamespaceSpec, NodeGroupSpec, NodeSpec,
    PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec, RoleSpec, TagSpec,
};
use crate::task::{OnInterrupt, Phase, Task, TaskKind, task_type};

/// The path of an unimplemented field that is set, and a sentence about the effect that it lacks.
type GivenField = (String, &'static str);

/// A spec or a part of one, with a classification of each of its fields: it acts, or it is unimplemented.
pub trait UnimplementedFields {
    /// The fields, each with the effect that it lacks. `None` if the field acts, or if its parts are checked one by
    /// one.
    const FIELDS: &'static [(&'static str, Option<&'static str>)];

    /// Returns the fields that are set and unimplemented.
    fn unimplemented_fields(&self) -> Vec<GivenField>;
}

/// The name of a field in manifests, a function that returns whether it is set, and the effect that it lacks.
type FieldRule<T> = (&'static str, fn(&T) -> bool, &'static str);

/// The fields that act on a group, which is never placed itself.
const GROUP_FIELDS: &[&str] = &["id", "type", "tags", "roles", "tasks", "privileged", "foreign"];
/// The fields that act on a stage, which runs on no node.
const STAGE_FIELDS: &[&str] = &["id", "type", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// The fields that act on a task of type `skipped`, which runs nothing and only has a place in the order.
const SKIPPED_FIELDS: &[&str] =
    &["id", "type", "tags", "roles", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// Fields that only tasks of one type use.
const TASK_TYPE_RULES: &[FieldRule<Task>] = &[
    ("timeout_seconds", |task| task.timeout_seconds.is_some() && !is_shell(task), "only a shell task is ended by it"),
    ("on_interrupt", |task| task.on_interrupt != OnInterrupt::Unknown && !is_shell(task), "only a shell task uses it"),
    ("parameters.timeout", has_unused_timeout, "a file is written without a limit of time"),
    ("tasks", |task| !task.tasks.is_empty() && !task.is_group(), "only a group has tasks"),
];

/// Generates the table. A row is a field with `acts`; with `of` and the function that checks its parts; or with `idle`,
/// a function that returns whether the field is set, and the effect that it lacks.
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
        impl UnimplementedFields for $spec {
            const FIELDS: &'static [(&'static str, Option<&'static str>)] =
                &[$((stringify!($field), fields!(@what $rule $(($($argument)+))?))),+];

            fn unimplemented_fields(&self) -> Vec<GivenField> {
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
        roles: of(roles_fields),
        tags: of(tags_fields),
        tasks: of(tasks_fields),
        matching: acts,
        extensions: acts,
        foreign: acts,
        owners: acts,
    }
    ReleaseTagsSpec {
        tags: of(tags_fields),
    }
    ClusterTemplateSpec {
        description: acts,
        inherited: of(UnimplementedFields::unimplemented_fields),
        release: acts,
        host_labels: of(host_labels_fields),
        extra: acts,
        owners: acts,
    }
    ClusterSpec {
        description: acts,
        inherited: of(UnimplementedFields::unimplemented_fields),
        cluster_template: acts,
        release: acts,
        host_labels: of(host_labels_fields),
        tags: of(tags_fields),
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
        inherited: of(UnimplementedFields::unimplemented_fields),
        release: acts,
        host_labels: of(host_labels_fields),
        roles: acts,
        requirements: acts,
        strategy: idle(Option::is_some, "task sets are released to all of its hosts at once"),
        paused: acts,
        mode: acts,
        mend_offline: idle(|said| *said, "hosts mend without a controller whatever its value is"),
        splay_seconds: acts,
        silent_after_seconds: acts,
        extra: acts,
        owners: acts,
    }
    NodeSpec {
        description: acts,
        inherited: of(UnimplementedFields::unimplemented_fields),
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
        lifecycle: of(UnimplementedFields::unimplemented_fields),
    }
    Lifecycle {
        node_drain_timeout: idle(Option::is_some, "it is sent to hosts, but none is drained"),
        node_volume_detach_timeout: idle(Option::is_some, "it is sent to hosts, but no volume is released"),
        node_deletion_timeout: idle(Option::is_some, "it is sent to hosts, but none is cleaned up"),
        min_ready_seconds: idle(Option::is_some, "it is sent to hosts, but no rollout waits for it"),
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
        limits: of(limits_fields),
        fault_tolerance: idle(Option::is_some, "failures of its nodes do not stop other nodes"),
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
        on_unassign: idle(Option::is_some, "the task that it names does not run when this one no longer applies"),
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

/// Returns a finding for each field of an object that is set and has no effect yet.
pub fn findings(object: &str, spec: &impl UnimplementedFields) -> Vec<Finding> {
    let finding = |(field, what): GivenField| {
        Finding::new(rule::FIELD_IDLE, format!("{object} {field}"), format!("nothing acts on it yet: {what}"))
    };
    spec.unimplemented_fields().into_iter().map(finding).collect()
}

/// Maximum number of tasks of a group that a finding names.
const MAX_TASKS: usize = 5;

/// Returns a finding for each place where a task of a release requires a group, or is required for one. A group is not
/// a task, so nothing waits for it. Patterns are not reported, because they select the other tasks that they match.
/// `find` returns a task of the release or of its imports.
pub(crate) fn groups_in_order<'a>(object: &str, tasks: &[Task], find: impl Fn(&str) -> Option<&'a Task>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for task in tasks.iter().filter(|task| !task.is_group()) {
        for (field, name) in order_references(task) {
            let Some(group) = find(name).filter(|named| named.is_group()) else { continue };
            let members = join_first(group.tasks.iter().map(String::as_str), MAX_TASKS);
            let instead = if members.is_empty() {
                "it has no tasks to name instead".to_owned()
            } else {
                format!("name its tasks instead: {members}")
            };
            let message = format!("nothing acts on it yet: {name} is a group, and nothing waits for a group; {instead}");
            findings.push(Finding::new(rule::FIELD_IDLE, format!("{object} task {} {field}", task.id), message));
        }
    }
    findings
}

/// Returns the names of other tasks in the fields of a task that order it, each with the path of the field.
fn order_references(task: &Task) -> impl Iterator<Item = (String, &str)> {
    let lists = [("requires", &task.requires), ("required_for", &task.required_for), ("subscribes", &task.subscribes)];
    let plain = lists
        .into_iter()
        .flat_map(|(field, names)| names.iter().enumerate().map(move |(at, name)| (format!("{field}[{at}]"), name.as_str())));
    let across = [("cross_depends", &task.cross_depends), ("cross_depended_by", &task.cross_depended_by)];
    let across = across.into_iter().flat_map(|(field, entries)| {
        entries.iter().enumerate().map(move |(at, entry)| (format!("{field}[{at}].name"), entry.name.as_str()))
    });
    plain.chain(across)
}

/// Returns a sentence about the missing effect of a field, by its path within its kind, such as `tasks.on_unassign`.
pub(crate) fn field_sentence(path: &str) -> Option<String> {
    fn find_sentence<S: UnimplementedFields>(field: &str) -> Option<&'static str> {
        S::FIELDS.iter().find(|(name, _)| *name == field)?.1
    }
    let of_type = |field: &str| TASK_TYPE_RULES.iter().find(|row| row.0 == field);
    if let Some((.., what)) = path.strip_prefix("tasks.").and_then(of_type) {
        return Some(format!("Not for every type: {what}."));
    }
    let what = match path.split_once('.') {
        Some(("tasks", field)) => find_sentence::<Task>(field),
        Some(("roles", field)) => find_sentence::<RoleSpec>(field),
        Some(("tags", field)) => find_sentence::<TagSpec>(field),
        Some(("host_labels", field)) => find_sentence::<HostLabels>(field),
        _ => find_sentence::<ClusterSpec>(path)
            .or_else(|| find_sentence::<NodeGroupSpec>(path))
            .or_else(|| find_sentence::<Lifecycle>(path)),
    };
    what.map(|what| format!("Nothing acts on it yet: {what}."))
}

fn is_given<T>(value: &T, is_given: impl Fn(&T) -> bool) -> bool {
    is_given(value)
}

/// Puts a prefix before the path of each field.
fn with_prefix(place: &str, fields: Vec<GivenField>) -> impl Iterator<Item = GivenField> {
    fields.into_iter().map(move |(field, what)| (format!("{place}{field}"), what))
}

/// Returns the unimplemented fields of the rules for the host label map that are set.
fn host_labels_fields<'a>(host_labels: impl IntoIterator<Item = &'a HostLabels>) -> Vec<GivenField> {
    host_labels.into_iter().flat_map(|said| with_prefix("host_labels.", said.unimplemented_fields())).collect()
}

fn roles_fields(roles: &BTreeMap<Name, RoleSpec>) -> Vec<GivenField> {
    roles
        .iter()
        .flat_map(|(name, role)| with_prefix(&format!("roles.{name}."), role.unimplemented_fields()).collect::<Vec<_>>())
        .collect()
}

/// Returns the limits of a role that are not compared with the number of nodes.
fn limits_fields(limits: &Map<String, Value>) -> Vec<GivenField> {
    let what = "only whole numbers in min and max are checked";
    let ignored = limits.iter().filter(|(name, value)| {
        let is_compared = RoleSpec::COMPARED_LIMITS.contains(&name.as_str()) && value.is_u64();
        !is_compared && !value.is_null()
    });
    ignored.map(|(name, _)| (format!("limits.{name}"), what)).collect()
}

fn tags_fields(tags: &BTreeMap<TagName, TagSpec>) -> Vec<GivenField> {
    tags.iter()
        .flat_map(|(name, tag)| with_prefix(&format!("tags.{name}."), tag.unimplemented_fields()).collect::<Vec<_>>())
        .collect()
}

fn tasks_fields(tasks: &[Task]) -> Vec<GivenField> {
    tasks.iter().flat_map(task_fields).collect()
}

/// Returns the fields of a task that are set and have no effect, also because of the type of the task.
fn task_fields(task: &Task) -> Vec<GivenField> {
    let before = format!("task {} ", task.id);
    let marker = match task_type(&task.kind).map(|kind| kind.kind) {
        Some(TaskKind::Group) => Some((GROUP_FIELDS, "a group only places its tasks")),
        Some(TaskKind::Stage) => Some((STAGE_FIELDS, "a stage only orders tasks")),
        Some(TaskKind::Skipped) => Some((SKIPPED_FIELDS, "a skipped task never runs")),
        _ => None,
    };
    let Some((fields, what)) = marker else {
        let of_type = TASK_TYPE_RULES.iter().filter(|(_, is_given, _)| is_given(task));
        let of_type = of_type.map(|(field, _, what)| ((*field).to_owned(), *what));
        return with_prefix(&before, task.unimplemented_fields().into_iter().chain(of_type).collect()).collect();
    };
    let Ok(Value::Object(set_fields)) = serde_json::to_value(task) else { return Vec::new() };
    let ignored = set_fields.into_iter().filter(|(field, _)| !fields.contains(&field.as_str()));
    ignored.map(|(field, _)| (format!("{before}{field}"), what)).collect()
}

/// Returns whether a file task sets `timeout`, which has no effect. It is accepted because Fuel's manifests contain it.
fn has_unused_timeout(task: &Task) -> bool {
    let is_file = task_type(&task.kind).is_some_and(|kind| kind.kind == TaskKind::File);
    is_file && task.parameters.get("timeout").is_some_and(|timeout| !timeout.is_null())
}

fn is_shell(task: &Task) -> bool {
    task_type(&task.kind).is_some_and(|kind| kind.kind == TaskKind::Shell)
}
