//! Labels and parameters that templates cannot do without, and that hosts do not have: their tasks fail there. Likewise labels of nodes
//! that are looked up, and tags that nobody holds as primary.
//!
//! One finding for a reference, however many hosts and tasks it is about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::finding::{FEW, Finding, Rule, Severity, first_few, rule};
use crate::fleet::{Change, Fleet};
use crate::input::{Fields, Input, Inputs, Need, Path, Read, Reference, SharedValue};
use crate::name::ReleaseRef;
use crate::object::{ClusterId, GroupId, Meta, Node, NodeId, NodeSpec, Timestamp};
use crate::release::TaskIx;
use crate::resolve::{Answer, Resolution, ResolveCache, TaskSet, resolve_node};

/// What hosts lack, gathered host by host.
#[derive(Default)]
pub struct Unset {
    of_sets: BTreeMap<(ReleaseRef, *const TaskSet, BTreeSet<Reference>), HostsOfSet>,
    /// Whether only hosts were taken in that lack something by an edit. How many others have it is not known then.
    is_of_edit: bool,
}

/// Hosts with one task set.
struct HostsOfSet {
    set: Arc<TaskSet>,
    first: NodeId,
    count: usize,
    names: Vec<String>,
}

/// A reference that some hosts lack, and others may have.
#[derive(Default)]
struct MissingOn {
    tasks: BTreeSet<String>,
    first: Option<NodeId>,
    hosts: usize,
    of: usize,
    names: Vec<String>,
}

/// What look-ups lack: they are as large as their cluster, and many hosts read them.
#[derive(Default)]
struct Judged(BTreeMap<(*const SharedValue, Need), (Arc<SharedValue>, bool)>);

impl Unset {
    /// Takes in a host.
    pub fn add(&mut self, answer: &Answer) {
        self.add_but(answer, BTreeSet::new());
    }

    /// Takes in a host, but for references that it lacks whatever was written.
    fn add_but(&mut self, answer: &Answer, known: BTreeSet<Reference>) {
        let Some((set, release)) = answer.task_set().zip(answer.release()) else { return };
        let first = answer.node().id();
        let hosts = self.of_sets.entry((release.name.clone(), Arc::as_ptr(set), known));
        let hosts = hosts.or_insert_with(|| HostsOfSet { set: Arc::clone(set), first, count: 0, names: Vec::new() });
        hosts.count += 1;
        hosts.names.push(answer.node().display_name());
        keep_first(&mut hosts.names);
    }

    /// One finding for each reference that a host lacks, sorted.
    pub fn findings(self) -> Vec<Finding> {
        self.found().into_iter().map(|(finding, _)| finding).collect()
    }

    /// The same, each with a host that lacks it. A reference that a template reaches only inside an `if` or a loop counts only if
    /// every host with the task lacks it.
    pub fn found(self) -> Vec<(Finding, Option<NodeId>)> {
        let is_of_edit = self.is_of_edit;
        let missing = self.missing();
        let counts = |release: &ReleaseRef, need: &Need, on: &MissingOn| {
            let certain = (release.clone(), Need { is_certain: true, ..need.clone() });
            let is_said = || missing.get(&certain).is_some_and(|on| on.hosts > 0);
            on.hosts > 0 && (need.is_certain || (on.hosts == on.of && !is_said()))
        };
        let found = missing.iter().filter(|((release, need), on)| counts(release, need, on));
        found.map(|((release, need), on)| (on.finding(release, need, is_of_edit), on.first)).collect()
    }

    fn missing(self) -> BTreeMap<(ReleaseRef, Need), MissingOn> {
        let mut missing: BTreeMap<(ReleaseRef, Need), MissingOn> = BTreeMap::new();
        let mut judged = Judged::default();
        for ((release, _, known), hosts) in self.of_sets {
            let (needed, inputs) = (needed_by(&hosts.set, hosts.set.tasks()), hosts.set.inputs());
            for (need, tasks) in needed.into_iter().filter(|(need, _)| !known.contains(&need.reference)) {
                let is_missing = judged.is_missing(&need, &inputs);
                let on = missing.entry((release.clone(), need)).or_default();
                on.of += hosts.count;
                if is_missing {
                    on.hosts += hosts.count;
                    on.first.get_or_insert(hosts.first);
                    on.names.extend(hosts.names.iter().cloned());
                    on.tasks.extend(tasks);
                }
            }
        }
        missing
    }
}

impl Judged {
    fn is_missing(&mut self, need: &Need, inputs: &Inputs) -> bool {
        match inputs.find(&need.reference).as_deref() {
            Some(input @ Input::Shared(found)) => {
                let judged = self.0.entry((Arc::as_ptr(found), need.clone()));
                judged.or_insert_with(|| (Arc::clone(found), need.is_missing(input))).1
            }
            Some(input) => need.is_missing(input),
            None => false,
        }
    }
}

impl MissingOn {
    fn finding(&self, release: &ReleaseRef, need: &Need, is_of_edit: bool) -> Finding {
        let (what, named) = (said_of(&need.reference), self.named(self.hosts));
        let hosts = match (self.hosts, self.of) {
            (1, _) if is_of_edit => format!("1 host that reads it lacks {what} ({named})"),
            (lack, _) if is_of_edit => format!("{lack} hosts that read it lack {what} ({named})"),
            (1, 1) => format!("the one host that reads it lacks {what} ({named})"),
            (1, of) => format!("1 of the {of} hosts that read it lacks {what} ({named})"),
            (lack, of) if lack == of => format!("all {of} hosts that read it lack {what} ({named})"),
            (lack, of) => format!("{lack} of the {of} hosts that read it lack {what} ({named})"),
        };
        if need.is_certain {
            self.said(rule::REFERENCE_UNSET, release, need, &hosts, "there")
        } else {
            self.said(INFO, release, need, &hosts, "where it comes to that")
        }
    }

    /// Of groups that no host is in.
    fn foreseen(&self, release: &ReleaseRef, need: &Need) -> Finding {
        let (what, named) = (said_of(&need.reference), self.named(self.names.len()));
        let hosts = format!("no host is in nodegroup {named} yet; one that does not say {what} itself lacks it");
        self.said(INFO, release, need, &hosts, "there")
    }

    /// The first names, of so many.
    fn named(&self, of: usize) -> String {
        let mut names = self.names.clone();
        keep_first(&mut names);
        let more = if of > names.len() { ", …" } else { "" };
        format!("{}{more}", names.join(", "))
    }

    fn said(&self, rule: Rule, release: &ReleaseRef, need: &Need, hosts: &str, place: &str) -> Finding {
        let first = self.tasks.first().map(String::as_str).unwrap_or_default();
        let tasks = match self.tasks.len() {
            0 | 1 => format!("task {first} fails {place}"),
            _ => format!("tasks {} fail {place}", first_few(self.tasks.iter().map(String::as_str), FEW)),
        };
        let remedy = match need.reference.read() {
            Read::Primary { .. } => "write `is defined`, or let a node have the tag",
            Read::Nodes { fields, .. } if fields.is_empty() => {
                "pick it within an `if` of the look-up, loop over that, or let a node match"
            }
            _ => "set it, or write `is defined` or `|default(…)`",
        };
        Finding::of(rule, format!("release/{release} task {first}"), format!("{hosts}, and {tasks}: {remedy}"))
    }
}

/// The first few names, sorted as people count.
fn keep_first(names: &mut Vec<String>) {
    names.sort_by(|a, b| crate::role::natural_cmp(a, b));
    names.truncate(FEW);
}

const INFO: Rule = Rule { severity: Severity::Info, ..rule::REFERENCE_UNSET };

/// A reference in words, as a template has it.
fn said_of(reference: &Reference) -> String {
    let field = |fields: &Fields| fields.iter().map(Path::to_string).collect::<String>();
    match reference.read() {
        Read::Nodes { fields, .. } if fields.is_empty() => format!("a node of `{reference}`"),
        Read::Nodes { fields, .. } => format!("`n{}` on a node of `{}`", field(fields), reference.as_written()),
        _ => format!("`{}`", reference.as_written()),
    }
}

/// What a write takes from hosts, or has them need: references that a task of theirs lacks after it, and that none of their tasks lacked
/// before.
pub fn newly_unset(
    before: &Fleet,
    after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut lookups = [BTreeMap::new(), BTreeMap::new()];
    let [old, new] = &mut lookups;
    let suspects: Vec<NodeId> =
        nodes.filter(|node| may_be_new(&lacked(before, *node, old), &lacked(after, *node, new))).collect();
    let mut judged = Judged::default();
    // One fleet after the other: the cache holds what was resolved last.
    let known: Vec<_> = suspects.iter().map(|node| lacked_by_tasks(before, cache, *node, &mut judged)).collect();
    let mut unset = Unset { is_of_edit: true, ..Unset::default() };
    for (node, known) in suspects.into_iter().zip(known) {
        if let Resolution::Complete(answer) = resolve_node(after, cache, node) {
            unset.add_but(&answer, known);
        }
    }
    unset.findings()
}

/// What a host that joins a group without nodes would lack. It may say so itself, so that each is an info.
pub fn unset_in_empty(fleet: &Fleet, groups: impl Iterator<Item = GroupId>) -> Vec<Finding> {
    let mut missing: BTreeMap<(ReleaseRef, Need), MissingOn> = BTreeMap::new();
    let cache = ResolveCache::new();
    for group in groups.filter(|group| fleet.nodes_of(*group).next().is_none()) {
        let Some(answer) = joined(fleet, &cache, group) else { continue };
        let Some((set, release)) = answer.task_set().zip(answer.release()) else { continue };
        let (needed, inputs) = (needed_by(set, set.tasks()), set.inputs());
        for (need, tasks) in
            needed.into_iter().filter(|(need, _)| need.is_certain && need.reference.read().fields().is_none())
        {
            if inputs.find(&need.reference).is_some_and(|input| need.is_missing(&input)) {
                let on = missing.entry((release.name.clone(), need)).or_default();
                on.names.extend(fleet.fold(group).map(|fold| fold.place()));
                on.tasks.extend(tasks);
            }
        }
    }
    missing.into_iter().map(|((release, need), on)| on.foreseen(&release, &need)).collect()
}

/// The answer of a host that joins a group and says nothing of itself.
fn joined(fleet: &Fleet, cache: &ResolveCache, group: GroupId) -> Option<Arc<Answer>> {
    let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
    let node = Node { meta: Meta::new(group.0, None, Timestamp(0)), spec };
    let (mut fleet, id) = (fleet.clone(), node.id());
    fleet.apply(Change::Node(Arc::new(node)));
    match resolve_node(&fleet, cache, id) {
        Resolution::Complete(answer) => Some(answer),
        Resolution::Incomplete(_) => None,
    }
}

/// References that a host lacks, each with whether a condition may leave out the task that needs it.
type Lacked = BTreeMap<Reference, bool>;

/// Whether a write may take something from a host: it lacks a reference that it had, or a task that needs one may run only now.
fn may_be_new(before: &Lacked, after: &Lacked) -> bool {
    after.iter().any(|(reference, is_conditional)| *is_conditional || !before.contains_key(reference))
}

/// What a host lacks of all that the tasks of its profile need, whether conditions leave them out or not.
fn lacked(fleet: &Fleet, node: NodeId, lookups: &mut BTreeMap<(Option<ClusterId>, Need), bool>) -> Lacked {
    let Some((view, profile)) = fleet.node_view(node).zip(fleet.profile(node)) else { return Lacked::new() };
    let cluster = fleet.cluster_of_node(node);
    let mut is_missing = |need: &Need| match need.reference.read().fields() {
        None => need.is_missing(&view.input(&need.reference)),
        Some(_) => {
            let judged = lookups.entry((cluster, need.clone()));
            *judged.or_insert_with(|| need.is_missing(&view.input(&need.reference)))
        }
    };
    let mut lacked = Lacked::new();
    for task in profile.tasks.iter().map(|ix| profile.release.task(*ix)) {
        for need in task.needs.iter().filter(|need| is_missing(need)) {
            *lacked.entry(need.reference.clone()).or_default() |= task.condition.is_some();
        }
    }
    lacked
}

/// What a host lacks of what the tasks need that it runs.
fn lacked_by_tasks(fleet: &Fleet, cache: &ResolveCache, node: NodeId, judged: &mut Judged) -> BTreeSet<Reference> {
    let Resolution::Complete(answer) = resolve_node(fleet, cache, node) else { return BTreeSet::new() };
    let Some(set) = answer.task_set() else { return BTreeSet::new() };
    let (needed, inputs) = (needed_by(set, set.tasks()).into_keys(), set.inputs());
    needed.filter(|need| judged.is_missing(need, &inputs)).map(|need| need.reference).collect()
}

/// What tasks need, each with those that do.
fn needed_by(set: &TaskSet, tasks: impl Iterator<Item = TaskIx>) -> BTreeMap<Need, Vec<String>> {
    let mut needed: BTreeMap<Need, Vec<String>> = BTreeMap::new();
    for task in tasks.map(|ix| set.profile.release.task(ix)) {
        for need in &task.needs {
            needed.entry(need.clone()).or_default().push(task.task.id.clone());
        }
    }
    needed
}
