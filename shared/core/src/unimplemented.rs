//! Fields that are accepted and stored, but have no effect yet. One table lists these fields. An object that sets such
//! a field gets a finding.
//!
//! If such a field were refused, manifests from other systems would no longer work. If the field were accepted
//! silently, its author would expect an effect. A change that implements a field also marks it as `acts` in the table.
//!
//! In the table, `acts` means that a field has the effect that its author expects. Fields that clients of Magnum,
//! Ironic or Glance only read back act in this sense, and so do texts for people. The table lists all fields of each
//! spec, so the code does not compile until a new field is in the table. A test checks that the fields of the specs
//! that the table marks as `acts` have an effect or a user (`tests/all/propagation`). No test checks this for the
//! fields of parts of a spec (tasks, roles, tags, host labels, lifecycle).

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
use crate::task::{OnInterrupt, ParameterForm, Phase, Task, TaskKind, task_type};

/// The path of an unimplemented field that is set, and a clause about the effect that the field lacks.
type GivenField = (String, &'static str);

/// A spec, or a part of a spec, that knows which of its fields have no effect yet.
pub trait UnimplementedFields {
    /// The names of all fields. A field without effect has a clause about the missing effect. `None` means that the
    /// field has its effect, or that its parts are checked one by one.
    const FIELDS: &'static [(&'static str, Option<&'static str>)];

    /// Returns the fields of this value that are set and have no effect yet.
    fn unimplemented_fields(&self) -> Vec<GivenField>;
}

/// A rule for a field that has an effect only in some values of `T`: the field's name in manifests, a function that
/// returns whether a value sets the field without effect, and a clause that says why there is none.
type FieldRule<T> = (&'static str, fn(&T) -> bool, &'static str);

/// The fields that have an effect on a task of type `group`. A group is never placed on a node itself.
const GROUP_FIELDS: &[&str] = &["id", "type", "tags", "roles", "tasks", "privileged", "foreign"];
/// The fields that have an effect on a task of type `stage`, which runs on no node.
const STAGE_FIELDS: &[&str] = &["id", "type", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// The fields that have an effect on a task of type `skipped`, which runs nothing and only has a place in the order.
const SKIPPED_FIELDS: &[&str] =
    &["id", "type", "tags", "roles", "requires", "required_for", "cross_depends", "cross_depended_by", "foreign"];

/// The fields that have an effect only in tasks of some types.
const TASK_TYPE_RULES: &[FieldRule<Task>] = &[
    ("timeout_seconds", has_unused_timeout_seconds, "it limits only shell, service, package, puppet and reboot tasks"),
    ("on_interrupt", |task| task.on_interrupt != OnInterrupt::Unknown && !is_shell(task), "only a shell task uses it"),
    ("parameters.reload", has_unused_reload, "without `subscribes`, nothing asks for a reload"),
    ("parameters.timeout", has_unused_timeout, "a file is written without a limit of time"),
    ("tasks", |task| !task.tasks.is_empty() && !task.is_group(), "only a group has tasks"),
];

/// Implements [`UnimplementedFields`] for each spec from the table. A row has one of three forms. `acts` is a field
/// with its effect. `of` has the function that checks the parts of the field. `idle` is a field without effect, with a
/// function that returns whether the field is set, and a clause about the missing effect.
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
                #[allow(unused_mut, reason = "in some specs every field has its effect")]
                let mut given = Vec::new();
                let Self { $($field),+ } = self;
                // The macro expands each row of the table to the check of its field.
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
        mend_offline: idle(|value| *value, "hosts correct drift without a controller, whatever the value is"),
        remove_orphans: acts,
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
        node_drain_timeout: idle(Option::is_some, "it is sent to hosts, but no host is drained"),
        node_volume_detach_timeout: idle(Option::is_some, "it is sent to hosts, but no volume is released"),
        node_deletion_timeout: idle(Option::is_some, "it is sent to hosts, but no host is cleaned up"),
        min_ready_seconds: idle(Option::is_some, "it is sent to hosts, but no rollout waits for it"),
    }
    HostLabels {
        prefixes: acts,
        patterns: acts,
        annotations: idle(|value| !value.is_empty(), "the host label map contains no annotations"),
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
        on_unassign: acts,
        on_interrupt: acts,
        phase: idle(|phase| *phase != Phase::Apply, "no host is drained or cleaned up, so the task never runs"),
        disruptive: idle(|value| *value, "no host is drained before it"),
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

/// Returns a finding for each field of a spec that is set and has no effect yet. `object` names the object of the spec.
pub fn findings(object: &str, spec: &impl UnimplementedFields) -> Vec<Finding> {
    let finding = |(field, missing_effect): GivenField| {
        Finding::new(rule::FIELD_IDLE, format!("{object} {field}"), format!("nothing acts on it yet: {missing_effect}"))
    };
    spec.unimplemented_fields().into_iter().map(finding).collect()
}

/// Maximum number of a group's tasks that a finding names.
const MAX_TASKS: usize = 5;

/// Returns a finding for each reference to a group in a field that orders tasks, such as `requires`. Such a reference
/// has no effect, because nothing waits for a group. A pattern that matches a group is not reported, because it also
/// selects other tasks. The fields of groups themselves are skipped, because `task_fields` reports them. `find` returns
/// a task of the release or of its imports by id.
pub(crate) fn group_order_findings<'a>(object: &str, tasks: &[Task], find: impl Fn(&str) -> Option<&'a Task>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for task in tasks.iter().filter(|task| !task.is_group()) {
        for (field, name) in order_references(task) {
            let Some(group) = find(name).filter(|referenced_task| referenced_task.is_group()) else { continue };
            let members = join_first(group.tasks.iter().map(String::as_str), MAX_TASKS);
            let advice = if members.is_empty() {
                "it has no tasks to name instead".to_owned()
            } else {
                format!("name its tasks instead: {members}")
            };
            let message = format!("nothing acts on it yet: {name} is a group, and nothing waits for a group; {advice}");
            findings.push(Finding::new(rule::FIELD_IDLE, format!("{object} task {} {field}", task.id), message));
        }
    }
    findings
}

/// Returns the names of other tasks in the fields that order a task, each with the path of the field.
fn order_references(task: &Task) -> impl Iterator<Item = (String, &str)> {
    let lists = [("requires", &task.requires), ("required_for", &task.required_for), ("subscribes", &task.subscribes)];
    let same_node_references = lists.into_iter().flat_map(|(field, names)| {
        names.iter().enumerate().map(move |(index, name)| (format!("{field}[{index}]"), name.as_str()))
    });
    let cross_node_references = [("cross_depends", &task.cross_depends), ("cross_depended_by", &task.cross_depended_by)];
    let cross_node_references = cross_node_references.into_iter().flat_map(|(field, entries)| {
        entries.iter().enumerate().map(move |(index, entry)| (format!("{field}[{index}].name"), entry.name.as_str()))
    });
    same_node_references.chain(cross_node_references)
}

/// Returns a sentence for the documentation about the missing effect of a field, or `None` if the field has its effect.
/// `path` is the path of the field in its object, such as `tasks.phase`.
pub(crate) fn field_sentence(path: &str) -> Option<String> {
    /// Returns the clause about the missing effect of a field of the spec `S`.
    fn find_sentence<S: UnimplementedFields>(field: &str) -> Option<&'static str> {
        S::FIELDS.iter().find(|(name, _)| *name == field)?.1
    }
    let find_type_rule = |field: &str| TASK_TYPE_RULES.iter().find(|(name, ..)| *name == field);
    if let Some((.., missing_effect)) = path.strip_prefix("tasks.").and_then(find_type_rule) {
        return Some(format!("Not for every type: {missing_effect}."));
    }
    // A path without one of these prefixes is a field of a cluster, of a node group, or of their lifecycle settings.
    let missing_effect = match path.split_once('.') {
        Some(("tasks", field)) => find_sentence::<Task>(field),
        Some(("roles", field)) => find_sentence::<RoleSpec>(field),
        Some(("tags", field)) => find_sentence::<TagSpec>(field),
        Some(("host_labels", field)) => find_sentence::<HostLabels>(field),
        _ => find_sentence::<ClusterSpec>(path)
            .or_else(|| find_sentence::<NodeGroupSpec>(path))
            .or_else(|| find_sentence::<Lifecycle>(path)),
    };
    missing_effect.map(|missing_effect| format!("Nothing acts on it yet: {missing_effect}."))
}

/// Returns the result of `is_set` for the value of a field. The macro `fields!` calls a closure of its table through
/// this function, so that the compiler knows the type of the closure's parameter.
fn is_given<T>(value: &T, is_set: impl Fn(&T) -> bool) -> bool {
    is_set(value)
}

/// Returns the fields with `prefix` in front of the path of each field.
fn with_prefix(prefix: &str, fields: Vec<GivenField>) -> impl Iterator<Item = GivenField> {
    fields.into_iter().map(move |(field, missing_effect)| (format!("{prefix}{field}"), missing_effect))
}

/// Returns the fields of `host_labels` that are set and have no effect yet.
fn host_labels_fields<'a>(host_labels: impl IntoIterator<Item = &'a HostLabels>) -> Vec<GivenField> {
    host_labels.into_iter().flat_map(|rules| with_prefix("host_labels.", rules.unimplemented_fields())).collect()
}

/// Returns the fields of these roles that are set and have no effect yet.
fn roles_fields(roles: &BTreeMap<Name, RoleSpec>) -> Vec<GivenField> {
    roles
        .iter()
        .flat_map(|(name, role)| with_prefix(&format!("roles.{name}."), role.unimplemented_fields()).collect::<Vec<_>>())
        .collect()
}

/// Returns the limits of a role that have no effect. Only whole numbers in `min` and `max` have an effect: they are
/// compared with the number of nodes.
fn limits_fields(limits: &Map<String, Value>) -> Vec<GivenField> {
    let missing_effect = "only whole numbers in min and max are checked";
    let ignored_limits = limits.iter().filter(|(name, value)| {
        let is_compared = RoleSpec::COMPARED_LIMITS.contains(&name.as_str()) && value.is_u64();
        !is_compared && !value.is_null()
    });
    ignored_limits.map(|(name, _)| (format!("limits.{name}"), missing_effect)).collect()
}

/// Returns the fields of these tags that are set and have no effect yet.
fn tags_fields(tags: &BTreeMap<TagName, TagSpec>) -> Vec<GivenField> {
    tags.iter()
        .flat_map(|(name, tag)| with_prefix(&format!("tags.{name}."), tag.unimplemented_fields()).collect::<Vec<_>>())
        .collect()
}

/// Returns the fields of these tasks that are set and have no effect.
fn tasks_fields(tasks: &[Task]) -> Vec<GivenField> {
    tasks.iter().flat_map(task_fields).collect()
}

/// Returns the fields of a task that are set and have no effect, for any task or for the type of this task.
fn task_fields(task: &Task) -> Vec<GivenField> {
    let prefix = format!("task {} ", task.id);
    let marker_rule = match task_type(&task.kind).map(|kind| kind.kind) {
        Some(TaskKind::Group) => Some((GROUP_FIELDS, "a group only places its tasks")),
        Some(TaskKind::Stage) => Some((STAGE_FIELDS, "a stage only orders tasks")),
        Some(TaskKind::Skipped) => Some((SKIPPED_FIELDS, "a skipped task never runs")),
        _ => None,
    };
    let Some((effective_fields, missing_effect)) = marker_rule else {
        let type_specific_fields = TASK_TYPE_RULES.iter().filter(|(_, is_set, _)| is_set(task));
        let type_specific_fields = type_specific_fields.map(|(field, _, missing_effect)| ((*field).to_owned(), *missing_effect));
        return with_prefix(&prefix, task.unimplemented_fields().into_iter().chain(type_specific_fields).collect()).collect();
    };
    // The JSON of a task contains only the fields that are set, because serde omits a field that has its default.
    let Ok(Value::Object(set_fields)) = serde_json::to_value(task) else { return Vec::new() };
    let ignored_fields = set_fields.into_iter().filter(|(field, _)| !effective_fields.contains(&field.as_str()));
    ignored_fields.map(|(field, _)| (format!("{prefix}{field}"), missing_effect)).collect()
}

/// Returns the type of the parameter `timeout` of a task's type. It is [`ParameterForm::Seconds`] if hosts limit the
/// time of such tasks.
fn timeout_form(task: &Task) -> Option<ParameterForm> {
    Some(task_type(&task.kind)?.parameters?.get("timeout")?.parameter_type)
}

/// Returns whether a task sets `timeout_seconds`, and no host limits the time of tasks of its type.
fn has_unused_timeout_seconds(task: &Task) -> bool {
    task.timeout_seconds.is_some() && timeout_form(task) != Some(ParameterForm::Seconds)
}

/// Returns whether a task sets a parameter `timeout` that has no effect, and is accepted because Fuel's releases
/// contain it.
fn has_unused_timeout(task: &Task) -> bool {
    let is_set = || task.parameters.get("timeout").is_some_and(|timeout| !timeout.is_null());
    timeout_form(task).is_some_and(|form| form != ParameterForm::Seconds) && is_set()
}

/// Returns whether a `service` task asks for reloads, and no task can cause one.
fn has_unused_reload(task: &Task) -> bool {
    is_kind(task, TaskKind::Service) && task.subscribes.is_empty() && task.parameters.get("reload") == Some(&Value::Bool(true))
}

fn is_shell(task: &Task) -> bool {
    is_kind(task, TaskKind::Shell)
}

fn is_kind(task: &Task, kind: TaskKind) -> bool {
    task_type(&task.kind).is_some_and(|definition| definition.kind == kind)
}
