//! Findings about labels and parameters that templates need and that hosts do not have, so that the tasks fail there.
//! Labels of nodes that are looked up, and tags that no node holds as primary, are checked in the same way.
//!
//! There is one finding for a reference, however many hosts lack it and however many tasks need it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::finding::{Finding, MAX_NAMES, Rule, Severity, join_first, rule};
use crate::fleet::{Fleet, FleetChange};
use crate::input::{FieldSet, Input, Inputs, Path, Read, Reference, RequiredReference, SharedValue};
use crate::name::ReleaseRef;
use crate::object::{ClusterId, GroupId, Meta, Node, NodeId, NodeSpec, Timestamp};
use crate::release::TaskIndex;
use crate::resolve::{Resolution, ResolveCache, ResolvedNode, TaskSet, resolve_node};

/// Collects the references that hosts lack, host by host.
#[derive(Default)]
pub struct UnsetReferences {
    by_task_set: BTreeMap<(ReleaseRef, *const TaskSet, BTreeSet<Reference>), TaskSetHosts>,
    /// True if only hosts that lack something because of an edit were added. The number of hosts that have the
    /// reference is then unknown.
    is_edit_only: bool,
}

/// The hosts with one task set.
struct TaskSetHosts {
    task_set: Arc<TaskSet>,
    first_node: NodeId,
    host_count: usize,
    host_names: Vec<String>,
}

/// The hosts that lack a reference, of those that read it.
#[derive(Default)]
struct MissingReference {
    tasks: BTreeSet<String>,
    first_node: Option<NodeId>,
    host_count: usize,
    total_hosts: usize,
    host_names: Vec<String>,
}

/// Caches whether the result of a look-up lacks what a template needs. A result is as large as its cluster, and many
/// hosts read it.
#[derive(Default)]
struct NeedCache(BTreeMap<(*const SharedValue, RequiredReference), (Arc<SharedValue>, bool)>);

impl UnsetReferences {
    /// Adds a host.
    pub fn add(&mut self, node: &ResolvedNode) {
        self.add_except(node, BTreeSet::new());
    }

    /// Adds a host, without the references in `known`, which it lacked before the write too.
    fn add_except(&mut self, node: &ResolvedNode, known: BTreeSet<Reference>) {
        let Some((set, release)) = node.task_set().zip(node.release()) else { return };
        let first_node = node.node().id();
        let entry = self.by_task_set.entry((release.name.clone(), Arc::as_ptr(set), known));
        let hosts = entry.or_insert_with(|| TaskSetHosts {
            task_set: Arc::clone(set),
            first_node,
            host_count: 0,
            host_names: Vec::new(),
        });
        hosts.host_count += 1;
        hosts.host_names.push(node.node().display_name());
        truncate_names(&mut hosts.host_names);
    }

    /// Returns one finding for each reference that a host lacks, sorted.
    pub fn findings(self) -> Vec<Finding> {
        self.findings_with_host().into_iter().map(|(finding, _)| finding).collect()
    }

    /// Returns one finding for each reference that a host lacks, sorted, each with the first such host. A reference
    /// that a template reaches only inside an `if` or a loop counts only if every host with the task lacks it.
    pub fn findings_with_host(self) -> Vec<(Finding, Option<NodeId>)> {
        let is_of_edit = self.is_edit_only;
        let missing = self.missing_references();
        let counts = |release: &ReleaseRef, need: &RequiredReference, hosts: &MissingReference| {
            let certain = (release.clone(), RequiredReference { is_unconditional: true, ..need.clone() });
            let is_reported = || missing.get(&certain).is_some_and(|on| on.host_count > 0);
            hosts.host_count > 0 && (need.is_unconditional || (hosts.host_count == hosts.total_hosts && !is_reported()))
        };
        let found = missing.iter().filter(|((release, need), on)| counts(release, need, on));
        found.map(|((release, need), on)| (on.to_finding(release, need, is_of_edit), on.first_node)).collect()
    }

    /// Returns the needed references of each release, each with the hosts and tasks that lack it.
    fn missing_references(self) -> BTreeMap<(ReleaseRef, RequiredReference), MissingReference> {
        let mut missing: BTreeMap<(ReleaseRef, RequiredReference), MissingReference> = BTreeMap::new();
        let mut need_cache = NeedCache::default();
        for ((release, _, known), hosts) in self.by_task_set {
            let (needed, inputs) = (tasks_by_need(&hosts.task_set, hosts.task_set.tasks()), hosts.task_set.inputs());
            for (need, tasks) in needed.into_iter().filter(|(need, _)| !known.contains(&need.reference)) {
                let is_missing = need_cache.is_missing(&need, &inputs);
                let entry = missing.entry((release.clone(), need)).or_default();
                entry.total_hosts += hosts.host_count;
                if is_missing {
                    entry.host_count += hosts.host_count;
                    entry.first_node.get_or_insert(hosts.first_node);
                    entry.host_names.extend(hosts.host_names.iter().cloned());
                    entry.tasks.extend(tasks);
                }
            }
        }
        missing
    }
}

impl NeedCache {
    /// Returns whether the inputs of a task set lack what a template needs.
    fn is_missing(&mut self, need: &RequiredReference, inputs: &Inputs) -> bool {
        match inputs.find(&need.reference).as_deref() {
            Some(input @ Input::Shared(shared)) => {
                let entry = self.0.entry((Arc::as_ptr(shared), need.clone()));
                entry.or_insert_with(|| (Arc::clone(shared), need.is_missing(input))).1
            }
            Some(input) => need.is_missing(input),
            None => false,
        }
    }
}

impl MissingReference {
    /// Returns the finding about hosts that lack a reference. It is an info if a template may not reach the reference.
    fn to_finding(&self, release: &ReleaseRef, need: &RequiredReference, is_of_edit: bool) -> Finding {
        let (what, named) = (reference_text(&need.reference), self.first_names(self.host_count));
        let hosts = match (self.host_count, self.total_hosts) {
            (1, _) if is_of_edit => format!("1 host that reads it lacks {what} ({named})"),
            (lack, _) if is_of_edit => format!("{lack} hosts that read it lack {what} ({named})"),
            (1, 1) => format!("the one host that reads it lacks {what} ({named})"),
            (1, of) => format!("1 of the {of} hosts that read it lacks {what} ({named})"),
            (lack, of) if lack == of => format!("all {of} hosts that read it lack {what} ({named})"),
            (lack, of) => format!("{lack} of the {of} hosts that read it lack {what} ({named})"),
        };
        if need.is_unconditional {
            self.build_finding(rule::REFERENCE_UNSET, release, need, &hosts, "there")
        } else {
            self.build_finding(UNSET_INFO, release, need, &hosts, "when a template reaches it")
        }
    }

    /// Returns the finding about groups without hosts.
    fn to_empty_group_finding(&self, release: &ReleaseRef, need: &RequiredReference) -> Finding {
        let (what, named) = (reference_text(&need.reference), self.first_names(self.host_names.len()));
        let hosts = format!("no host is in nodegroup {named} yet; a host that does not set {what} itself will lack it");
        self.build_finding(UNSET_INFO, release, need, &hosts, "there")
    }

    /// Returns the first names, followed by an ellipsis if `total` is larger.
    fn first_names(&self, total: usize) -> String {
        let mut names = self.host_names.clone();
        truncate_names(&mut names);
        let more = if total > names.len() { ", …" } else { "" };
        format!("{}{more}", names.join(", "))
    }

    /// Returns the finding about a reference: which hosts lack it, which tasks fail, and what to do.
    fn build_finding(&self, rule: Rule, release: &ReleaseRef, need: &RequiredReference, hosts: &str, place: &str) -> Finding {
        let first = self.tasks.first().map(String::as_str).unwrap_or_default();
        let tasks = match self.tasks.len() {
            0 | 1 => format!("task {first} fails {place}"),
            _ => format!("tasks {} fail {place}", join_first(self.tasks.iter().map(String::as_str), MAX_NAMES)),
        };
        let remedy = match need.reference.read() {
            Read::Primary { .. } => "write `is defined`, or let a node have the tag",
            Read::Nodes { fields, .. } if fields.is_empty() => {
                "pick it within an `if` of the look-up, loop over that, or let a node match"
            }
            _ => "set it, or write `is defined` or `|default(…)`",
        };
        Finding::new(rule, format!("release/{release} task {first}"), format!("{hosts}, and {tasks}: {remedy}"))
    }
}

/// Sorts the names in natural order and keeps the first few.
fn truncate_names(names: &mut Vec<String>) {
    names.sort_by(|a, b| crate::role::natural_cmp(a, b));
    names.truncate(MAX_NAMES);
}

/// The rule of findings that are only an info, because it is not certain that a task will fail.
const UNSET_INFO: Rule = Rule { severity: Severity::Info, ..rule::REFERENCE_UNSET };

/// Returns a reference as a template writes it.
fn reference_text(reference: &Reference) -> String {
    let field = |fields: &FieldSet| fields.iter().map(Path::to_string).collect::<String>();
    match reference.read() {
        Read::Nodes { fields, .. } if fields.is_empty() => format!("a node of `{reference}`"),
        Read::Nodes { fields, .. } => format!("`n{}` on a node of `{}`", field(fields), reference.display_text()),
        _ => format!("`{}`", reference.display_text()),
    }
}

/// Returns the findings about references that a task of a host lacks after a write, and that none of its tasks lacked
/// before.
pub fn newly_unset(before: &Fleet, after: &Fleet, cache: &ResolveCache, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let mut lookups = [BTreeMap::new(), BTreeMap::new()];
    let [old, new] = &mut lookups;
    let suspects: Vec<NodeId> = nodes
        .filter(|node| may_be_new(&missing_in_profile(before, *node, old), &missing_in_profile(after, *node, new)))
        .collect();
    let mut need_cache = NeedCache::default();
    // All nodes are resolved in one fleet first, because the cache holds the fleet that was resolved last.
    let known: Vec<_> = suspects.iter().map(|node| missing_in_task_set(before, cache, *node, &mut need_cache)).collect();
    let mut unset = UnsetReferences { is_edit_only: true, ..UnsetReferences::default() };
    for (node, known) in suspects.into_iter().zip(known) {
        if let Resolution::Complete(resolved) = resolve_node(after, cache, node) {
            unset.add_except(&resolved, known);
        }
    }
    unset.findings()
}

/// Returns the findings about references that a host would lack after joining an empty group. The host may provide the
/// values itself, so each finding is an info.
pub fn unset_in_empty_groups(fleet: &Fleet, groups: impl Iterator<Item = GroupId>) -> Vec<Finding> {
    let mut missing: BTreeMap<(ReleaseRef, RequiredReference), MissingReference> = BTreeMap::new();
    let cache = ResolveCache::new();
    for group in groups.filter(|group| fleet.nodes_in_group(*group).next().is_none()) {
        let Some(node) = resolve_new_node(fleet, &cache, group) else { continue };
        let Some((set, release)) = node.task_set().zip(node.release()) else { continue };
        let (needed, inputs) = (tasks_by_need(set, set.tasks()), set.inputs());
        for (need, tasks) in
            needed.into_iter().filter(|(need, _)| need.is_unconditional && need.reference.read().fields().is_none())
        {
            if inputs.find(&need.reference).is_some_and(|input| need.is_missing(&input)) {
                let entry = missing.entry((release.name.clone(), need)).or_default();
                entry.host_names.extend(fleet.resolved_group(group).map(|resolved| resolved.path()));
                entry.tasks.extend(tasks);
            }
        }
    }
    missing.into_iter().map(|((release, need), on)| on.to_empty_group_finding(&release, &need)).collect()
}

/// Resolves a new node of a group that provides nothing itself.
fn resolve_new_node(fleet: &Fleet, cache: &ResolveCache, group: GroupId) -> Option<Arc<ResolvedNode>> {
    let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
    let node = Node { meta: Meta::new(group.0, None, Timestamp(0)), spec };
    let (mut fleet, id) = (fleet.clone(), node.id());
    fleet.apply(FleetChange::Node(Arc::new(node)));
    match resolve_node(&fleet, cache, id) {
        Resolution::Complete(answer) => Some(answer),
        Resolution::Incomplete(_) => None,
    }
}

/// The references that a host lacks, each with whether a condition may skip the task that needs it.
type MissingReferences = BTreeMap<Reference, bool>;

/// Returns whether a write may have made a host lack something: it had the reference before, or a task that needs it
/// may run only now.
fn may_be_new(before: &MissingReferences, after: &MissingReferences) -> bool {
    after.iter().any(|(reference, is_conditional)| *is_conditional || !before.contains_key(reference))
}

/// Returns what a host lacks of everything that the tasks of its profile need, including tasks that conditions skip.
fn missing_in_profile(
    fleet: &Fleet,
    node: NodeId,
    lookups: &mut BTreeMap<(Option<ClusterId>, RequiredReference), bool>,
) -> MissingReferences {
    let Some((view, profile)) = fleet.node_view(node).zip(fleet.profile(node)) else { return MissingReferences::new() };
    let cluster = fleet.cluster_of_node(node);
    let mut is_missing = |need: &RequiredReference| match need.reference.read().fields() {
        None => need.is_missing(&view.input(&need.reference)),
        Some(_) => {
            let entry = lookups.entry((cluster, need.clone()));
            *entry.or_insert_with(|| need.is_missing(&view.input(&need.reference)))
        }
    };
    let mut missing = MissingReferences::new();
    for task in profile.tasks.iter().map(|ix| profile.release.task(*ix)) {
        for need in task.needs.iter().filter(|need| is_missing(need)) {
            *missing.entry(need.reference.clone()).or_default() |= task.condition.is_some();
        }
    }
    missing
}

/// Returns what a host lacks of everything that its running tasks need.
fn missing_in_task_set(fleet: &Fleet, cache: &ResolveCache, node: NodeId, need_cache: &mut NeedCache) -> BTreeSet<Reference> {
    let Resolution::Complete(resolved) = resolve_node(fleet, cache, node) else { return BTreeSet::new() };
    let Some(set) = resolved.task_set() else { return BTreeSet::new() };
    let (needed, inputs) = (tasks_by_need(set, set.tasks()).into_keys(), set.inputs());
    needed.filter(|need| need_cache.is_missing(need, &inputs)).map(|need| need.reference).collect()
}

/// Returns the references that tasks need, each with the ids of these tasks.
fn tasks_by_need(set: &TaskSet, tasks: impl Iterator<Item = TaskIndex>) -> BTreeMap<RequiredReference, Vec<String>> {
    let mut needed: BTreeMap<RequiredReference, Vec<String>> = BTreeMap::new();
    for task in tasks.map(|ix| set.profile.release.task(ix)) {
        for need in &task.needs {
            needed.entry(need.clone()).or_default().push(task.task.id.clone());
        }
    }
    needed
}
