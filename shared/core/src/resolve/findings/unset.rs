//! Findings about labels and parameters that templates need and that hosts do not have, so that the tasks fail there.
//! Labels of looked-up nodes, and tags that no node holds as primary, are checked in the same way.
//!
//! A reference names a value that a template reads, such as `labels.ntp`. There is one finding for each reference,
//! however many hosts lack the value and however many tasks need it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::finding::{Finding, MAX_NAMES, Rule, Severity, join_first, rule};
use crate::fleet::{Fleet, FleetChange};
use crate::input::{FieldSet, Input, Inputs, Path, Read, Reference, RequiredReference, SharedValue};
use crate::name::ReleaseRef;
use crate::object::{ClusterId, GroupId, Meta, Node, NodeId, NodeSpec, Timestamp};
use crate::release::TaskIndex;
use crate::resolve::{Resolution, ResolveCache, ResolvedNode, TaskSet, resolve_node};

/// Collects the references whose values hosts lack. The hosts are added one by one.
#[derive(Default)]
pub struct UnsetReferences {
    by_task_set: BTreeMap<(ReleaseRef, *const TaskSet, BTreeSet<Reference>), TaskSetHosts>,
    /// True if only those hosts were added that lack a value because of an edit. The number of hosts that have the
    /// value is then unknown.
    is_edit_only: bool,
}

/// The hosts with one task set.
struct TaskSetHosts {
    task_set: Arc<TaskSet>,
    first_node: NodeId,
    host_count: usize,
    host_names: Vec<String>,
}

/// A reference whose value some hosts lack: these hosts, the tasks that need the value, and the number of all hosts
/// that read it. For a finding about groups without hosts, only the tasks and the names of the groups are set.
#[derive(Default)]
struct MissingReference {
    tasks: BTreeSet<String>,
    first_node: Option<NodeId>,
    host_count: usize,
    total_hosts: usize,
    host_names: Vec<String>,
}

/// Caches whether the result of a look-up lacks a value that a template needs. The size of a result grows with its
/// cluster, and many hosts read the same result, so each result is checked once. The key has the address of the result.
/// The entry retains the result, so that no other result gets this address.
#[derive(Default)]
struct NeedCache(BTreeMap<(*const SharedValue, RequiredReference), (Arc<SharedValue>, bool)>);

impl UnsetReferences {
    /// Adds a host with all references whose values it lacks.
    pub fn add(&mut self, node: &ResolvedNode) {
        self.add_except(node, BTreeSet::new());
    }

    /// Adds a host with all references whose values it lacks, except those that it lacked before the write too.
    fn add_except(&mut self, node: &ResolvedNode, known_references: BTreeSet<Reference>) {
        let Some((set, release)) = node.task_set().zip(node.release()) else { return };
        let first_node = node.node().id();
        let entry = self.by_task_set.entry((release.name.clone(), Arc::as_ptr(set), known_references));
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

    /// Returns one finding for each reference whose value a host lacks, sorted.
    pub fn findings(self) -> Vec<Finding> {
        self.findings_with_host().into_iter().map(|(finding, _)| finding).collect()
    }

    /// Returns one finding for each reference whose value a host lacks, sorted, each with the first such host.
    ///
    /// If a template reads the reference only inside an `if` or a loop, there is a finding only if every host with the
    /// task lacks the value, and no finding reports the reference as always read.
    pub fn findings_with_host(self) -> Vec<(Finding, Option<NodeId>)> {
        let is_edit_only = self.is_edit_only;
        let missing = self.missing_references();
        let is_finding = |release: &ReleaseRef, need: &RequiredReference, hosts: &MissingReference| {
            let unconditional_key = (release.clone(), RequiredReference { is_unconditional: true, ..need.clone() });
            let is_reported = || missing.get(&unconditional_key).is_some_and(|entry| entry.host_count > 0);
            hosts.host_count > 0 && (need.is_unconditional || (hosts.host_count == hosts.total_hosts && !is_reported()))
        };
        let reported = missing.iter().filter(|((release, need), entry)| is_finding(release, need, entry));
        reported.map(|((release, need), entry)| (entry.to_finding(release, need, is_edit_only), entry.first_node)).collect()
    }

    /// Returns the references that the tasks of each release need, each with the hosts that lack its value and the
    /// tasks that fail there.
    fn missing_references(self) -> BTreeMap<(ReleaseRef, RequiredReference), MissingReference> {
        let mut missing: BTreeMap<(ReleaseRef, RequiredReference), MissingReference> = BTreeMap::new();
        let mut need_cache = NeedCache::default();
        for ((release, _, known_before), hosts) in self.by_task_set {
            let (tasks_of_needs, inputs) = (tasks_by_need(&hosts.task_set, hosts.task_set.tasks()), hosts.task_set.inputs());
            for (need, tasks) in tasks_of_needs.into_iter().filter(|(need, _)| !known_before.contains(&need.reference)) {
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
    /// Returns whether the inputs of a task set lack a value that a template needs. `false` if the task set does not
    /// read the reference.
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
    /// Returns the finding about hosts that lack the value of a reference. The finding is an info if the template reads
    /// the reference only inside an `if` or a loop, because the task may then succeed.
    fn to_finding(&self, release: &ReleaseRef, need: &RequiredReference, is_edit_only: bool) -> Finding {
        let (reference, names) = (reference_text(&need.reference), self.first_names(self.host_count));
        let hosts = match (self.host_count, self.total_hosts) {
            (1, _) if is_edit_only => format!("1 host that reads it lacks {reference} ({names})"),
            (missing, _) if is_edit_only => format!("{missing} hosts that read it lack {reference} ({names})"),
            (1, 1) => format!("the one host that reads it lacks {reference} ({names})"),
            (1, total) => format!("1 of the {total} hosts that read it lacks {reference} ({names})"),
            (missing, total) if missing == total => format!("all {total} hosts that read it lack {reference} ({names})"),
            (missing, total) => format!("{missing} of the {total} hosts that read it lack {reference} ({names})"),
        };
        if need.is_unconditional {
            self.build_finding(rule::REFERENCE_UNSET, release, need, &hosts, "there")
        } else {
            self.build_finding(UNSET_INFO, release, need, &hosts, "when a template reaches it")
        }
    }

    /// Returns the finding about groups without hosts, whose future hosts will lack the value of a reference.
    fn to_empty_group_finding(&self, release: &ReleaseRef, need: &RequiredReference) -> Finding {
        let (reference, names) = (reference_text(&need.reference), self.first_names(self.host_names.len()));
        let hosts = format!("no host is in nodegroup {names} yet; a host that does not set {reference} itself will lack it");
        self.build_finding(UNSET_INFO, release, need, &hosts, "there")
    }

    /// Returns the first [`MAX_NAMES`] names in natural order, and an ellipsis if `total` is larger than their number.
    fn first_names(&self, total: usize) -> String {
        let mut names = self.host_names.clone();
        truncate_names(&mut names);
        let ellipsis = if total > names.len() { ", …" } else { "" };
        format!("{}{ellipsis}", names.join(", "))
    }

    /// Returns the finding about a reference. The message has three parts: `hosts`, which is about the hosts that lack
    /// the value, the tasks that fail at `place`, and the remedy.
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

/// Sorts names in natural order (digits compared as numbers), and removes all but the first [`MAX_NAMES`].
fn truncate_names(names: &mut Vec<String>) {
    names.sort_by(|first, second| crate::role::natural_cmp(first, second));
    names.truncate(MAX_NAMES);
}

/// The rule of findings that are only an info: a task may succeed without the value, or the group has no hosts yet.
const UNSET_INFO: Rule = Rule { severity: Severity::Info, ..rule::REFERENCE_UNSET };

/// Returns the text of a reference for a message: as a template writes it, or a description of a node of a look-up.
fn reference_text(reference: &Reference) -> String {
    let field = |fields: &FieldSet| fields.iter().map(Path::to_string).collect::<String>();
    match reference.read() {
        Read::Nodes { fields, .. } if fields.is_empty() => format!("a node of `{reference}`"),
        Read::Nodes { fields, .. } => format!("`n{}` on a node of `{}`", field(fields), reference.display_text()),
        _ => format!("`{}`", reference.display_text()),
    }
}

/// Returns the findings about references whose values the tasks of a host lack after a write, and that no task of the
/// host lacked before.
pub fn newly_unset(old: &Fleet, new: &Fleet, cache: &ResolveCache, nodes: impl Iterator<Item = NodeId>) -> Vec<Finding> {
    let mut lookups = [BTreeMap::new(), BTreeMap::new()];
    let [old_lookups, new_lookups] = &mut lookups;
    let suspect_nodes: Vec<NodeId> = nodes
        .filter(|node| may_be_new(&missing_in_profile(old, *node, old_lookups), &missing_in_profile(new, *node, new_lookups)))
        .collect();
    let mut need_cache = NeedCache::default();
    // All nodes are resolved in the state before the write first, because the cache has only the state of the fleet
    // that was resolved last.
    let missing: Vec<_> = suspect_nodes.iter().map(|node| missing_in_task_set(old, cache, *node, &mut need_cache)).collect();
    let mut unset = UnsetReferences { is_edit_only: true, ..UnsetReferences::default() };
    for (node, missing) in suspect_nodes.into_iter().zip(missing) {
        if let Resolution::Complete(resolved_node) = resolve_node(new, cache, node) {
            unset.add_except(&resolved_node, missing);
        }
    }
    unset.findings()
}

/// Returns the findings about references whose values a host would lack if it joined one of the groups without nodes.
/// The host may provide the values itself, so each finding is an info.
pub fn unset_in_empty_groups(fleet: &Fleet, groups: impl Iterator<Item = GroupId>) -> Vec<Finding> {
    let mut missing: BTreeMap<(ReleaseRef, RequiredReference), MissingReference> = BTreeMap::new();
    let cache = ResolveCache::new();
    for group in groups.filter(|group| fleet.nodes_in_group(*group).next().is_none()) {
        let Some(node) = resolve_new_node(fleet, &cache, group) else { continue };
        let Some((set, release)) = node.task_set().zip(node.release()) else { continue };
        let (tasks_of_needs, inputs) = (tasks_by_need(set, set.tasks()), set.inputs());
        // Look-ups are omitted, and so are references that a template reads only inside an `if` or a loop.
        for (need, tasks) in
            tasks_of_needs.into_iter().filter(|(need, _)| need.is_unconditional && need.reference.read().fields().is_none())
        {
            if inputs.find(&need.reference).is_some_and(|input| need.is_missing(&input)) {
                let entry = missing.entry((release.name.clone(), need)).or_default();
                entry.host_names.extend(fleet.resolved_group(group).map(|resolved_group| resolved_group.path()));
                entry.tasks.extend(tasks);
            }
        }
    }
    missing.into_iter().map(|((release, need), entry)| entry.to_empty_group_finding(&release, &need)).collect()
}

/// Resolves a new node of a group, which provides no labels or parameters itself. The fleet stays unchanged.
fn resolve_new_node(fleet: &Fleet, cache: &ResolveCache, group: GroupId) -> Option<Arc<ResolvedNode>> {
    let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
    // Any uuid serves for the new node. It gets that of its group.
    let node = Node { meta: Meta::new(group.0, None, Timestamp(0)), spec };
    let (mut fleet, id) = (fleet.clone(), node.id());
    fleet.apply(FleetChange::Node(Arc::new(node)));
    match resolve_node(&fleet, cache, id) {
        Resolution::Complete(resolved_node) => Some(resolved_node),
        Resolution::Incomplete(_) => None,
    }
}

/// The references whose values a host lacks. The value is true if a task that needs the reference has a condition,
/// which may skip the task.
type MissingReferences = BTreeMap<Reference, bool>;

/// Returns whether a write may be the cause that a host lacks a value. Either no task of the host lacked the value
/// before, or a condition may let the task that needs the value run only now.
fn may_be_new(missing_before: &MissingReferences, missing_after: &MissingReferences) -> bool {
    missing_after.iter().any(|(reference, is_conditional)| *is_conditional || !missing_before.contains_key(reference))
}

/// Returns the references whose values a host lacks, for all tasks of phase `apply` of its profile, including tasks
/// that conditions skip. `lookups` caches the results of look-ups in each cluster.
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

/// Returns the references that the running tasks of a host need and whose values the host lacks.
fn missing_in_task_set(fleet: &Fleet, cache: &ResolveCache, node: NodeId, need_cache: &mut NeedCache) -> BTreeSet<Reference> {
    let Resolution::Complete(resolved_node) = resolve_node(fleet, cache, node) else { return BTreeSet::new() };
    let Some(set) = resolved_node.task_set() else { return BTreeSet::new() };
    let (needs, inputs) = (tasks_by_need(set, set.tasks()).into_keys(), set.inputs());
    needs.filter(|need| need_cache.is_missing(need, &inputs)).map(|need| need.reference).collect()
}

/// Returns the references that tasks need, each with the ids of these tasks.
fn tasks_by_need(set: &TaskSet, tasks: impl Iterator<Item = TaskIndex>) -> BTreeMap<RequiredReference, Vec<String>> {
    let mut tasks_by_reference: BTreeMap<RequiredReference, Vec<String>> = BTreeMap::new();
    for task in tasks.map(|ix| set.profile.release.task(ix)) {
        for need in &task.needs {
            tasks_by_reference.entry(need.clone()).or_default().push(task.task.id.clone());
        }
    }
    tasks_by_reference
}
