//! Labels and parameters that templates cannot do without, and that hosts do not have: their tasks fail there.
//!
//! One finding for a reference, however many hosts and tasks it is about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::finding::{Finding, Rule, Severity, rule};
use crate::fleet::{Change, Fleet, NodeView};
use crate::input::{Input, Reference};
use crate::name::ReleaseRef;
use crate::object::{GroupId, Meta, Node, NodeId, NodeSpec, Timestamp};
use crate::release::TaskIx;
use crate::resolve::{Answer, Resolution, ResolveCache, TaskSet, resolve_node};

/// How many hosts a finding names.
const MOST_NAMED: usize = 3;

/// What hosts lack, gathered host by host.
#[derive(Default)]
pub struct Unset {
    alike: BTreeMap<(ReleaseRef, *const TaskSet, BTreeSet<Reference>), Alike>,
}

/// Hosts with one task set.
struct Alike {
    set: Arc<TaskSet>,
    hosts: usize,
    names: Vec<String>,
}

/// A reference that some hosts lack, and others may have.
#[derive(Default)]
struct Lack {
    tasks: BTreeSet<String>,
    hosts: usize,
    of: usize,
    names: Vec<String>,
}

impl Unset {
    /// Takes in a host.
    pub fn add(&mut self, answer: &Answer) {
        self.add_but(answer, BTreeSet::new());
    }

    /// Takes in a host, but for references that it lacks whatever was written.
    fn add_but(&mut self, answer: &Answer, known: BTreeSet<Reference>) {
        let Some((set, release)) = answer.task_set().zip(answer.release()) else { return };
        let alike = self.alike.entry((release.name.clone(), Arc::as_ptr(set), known));
        let alike = alike.or_insert_with(|| Alike { set: Arc::clone(set), hosts: 0, names: Vec::new() });
        alike.hosts += 1;
        if alike.names.len() < MOST_NAMED {
            alike.names.push(answer.node().display_name());
        }
    }

    /// One finding for each reference that a host lacks, sorted.
    pub fn findings(self) -> Vec<Finding> {
        let mut lacks: BTreeMap<(ReleaseRef, Reference), Lack> = BTreeMap::new();
        for ((release, _, known), alike) in self.alike {
            let needed = needed_by(&alike.set, alike.set.tasks());
            for (reference, tasks) in needed.into_iter().filter(|(reference, _)| !known.contains(reference)) {
                let lack = lacks.entry((release.clone(), reference.clone())).or_default();
                lack.of += alike.hosts;
                if matches!(alike.set.inputs.find(&reference).as_deref(), Some(Input::Absent)) {
                    lack.hosts += alike.hosts;
                    lack.names.extend(alike.names.iter().cloned());
                    lack.tasks.extend(tasks);
                }
            }
        }
        let found = lacks.into_iter().filter(|(_, lack)| lack.hosts > 0);
        found.map(|((release, reference), lack)| lack.finding(&release, &reference)).collect()
    }
}

impl Lack {
    fn finding(mut self, release: &ReleaseRef, reference: &Reference) -> Finding {
        let named = self.named(self.hosts);
        let hosts = match (self.hosts, self.of) {
            (1, 1) => format!("the one host that reads it lacks `{reference}` ({named})"),
            (1, of) => format!("1 of the {of} hosts that read it lacks `{reference}` ({named})"),
            (lack, of) if lack == of => format!("all {of} hosts that read it lack `{reference}` ({named})"),
            (lack, of) => format!("{lack} of the {of} hosts that read it lack `{reference}` ({named})"),
        };
        self.said(rule::REFERENCE_UNSET, release, &hosts)
    }

    /// Of groups that no host is in.
    fn foreseen(mut self, release: &ReleaseRef, reference: &Reference) -> Finding {
        let named = self.named(self.names.len());
        let hosts = format!("no host is in nodegroup {named} yet; one that does not say `{reference}` itself lacks it");
        self.said(Rule { severity: Severity::Info, ..rule::REFERENCE_UNSET }, release, &hosts)
    }

    /// The first names, of so many.
    fn named(&mut self, of: usize) -> String {
        self.names.sort_by(|a, b| crate::role::natural_cmp(a, b));
        self.names.truncate(MOST_NAMED);
        let more = if of > self.names.len() { ", …" } else { "" };
        format!("{}{more}", self.names.join(", "))
    }

    fn said(self, rule: Rule, release: &ReleaseRef, hosts: &str) -> Finding {
        let first = self.tasks.first().cloned().unwrap_or_default();
        let tasks = match self.tasks.len() {
            0 | 1 => format!("task {first} fails there"),
            _ => format!("tasks {} fail there", self.tasks.into_iter().collect::<Vec<_>>().join(", ")),
        };
        let message = format!("{hosts}, and {tasks}: set it, or write `is defined` or `|default(…)`");
        Finding::of(rule, format!("release/{release} task {first}"), message)
    }
}

/// What a write takes from hosts, or has them need: references that a host lacks after it and did not lack before.
pub fn newly_unset(
    before: &Fleet,
    after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut unset = Unset::default();
    for node in nodes {
        let lacking = lacked(after, node);
        if lacking.is_empty() {
            continue;
        }
        let known = lacked(before, node);
        if lacking.is_subset(&known) {
            continue;
        }
        if let Resolution::Complete(answer) = resolve_node(after, cache, node) {
            unset.add_but(&answer, known);
        }
    }
    unset.findings()
}

/// What a host that joins a group without nodes would lack. It may say so itself, so that each is an info.
pub fn unset_in_empty(fleet: &Fleet, groups: impl Iterator<Item = GroupId>) -> Vec<Finding> {
    let mut lacks: BTreeMap<(ReleaseRef, Reference), Lack> = BTreeMap::new();
    for group in groups.filter(|group| fleet.nodes_of(*group).next().is_none()) {
        let Some(answer) = joined(fleet, group) else { continue };
        let Some((set, release)) = answer.task_set().zip(answer.release()) else { continue };
        for (reference, tasks) in needed_by(set, set.tasks()) {
            if matches!(set.inputs.find(&reference).as_deref(), Some(Input::Absent)) {
                let lack = lacks.entry((release.name.clone(), reference)).or_default();
                lack.names.extend(fleet.fold(group).map(|fold| fold.place()));
                lack.tasks.extend(tasks);
            }
        }
    }
    lacks.into_iter().map(|((release, reference), lack)| lack.foreseen(&release, &reference)).collect()
}

/// The answer of a host that joins a group and says nothing of itself.
fn joined(fleet: &Fleet, group: GroupId) -> Option<Arc<Answer>> {
    let spec = NodeSpec { nodegroup: Some(group), ..NodeSpec::default() };
    let node = Node { meta: Meta::new(group.0, None, Timestamp(0)), spec };
    let (mut fleet, id) = (fleet.clone(), node.id());
    fleet.apply(Change::Node(Arc::new(node)));
    match resolve_node(&fleet, &ResolveCache::new(), id) {
        Resolution::Complete(answer) => Some(answer),
        Resolution::Incomplete(_) => None,
    }
}

/// What a host lacks of all that the tasks of its profile need, whether conditions leave them out or not.
fn lacked(fleet: &Fleet, node: NodeId) -> BTreeSet<Reference> {
    let Some((view, profile)) = fleet.node_view(node).zip(fleet.profile(node)) else { return BTreeSet::new() };
    let lacks = |view: &NodeView<'_>, reference: &Reference| view.input(reference) == Input::Absent;
    let needs = profile.tasks.iter().flat_map(|ix| &profile.release.task(*ix).needs);
    needs.filter(|reference| lacks(&view, reference)).cloned().collect()
}

/// What tasks need, each with those that do.
fn needed_by(set: &TaskSet, tasks: impl Iterator<Item = TaskIx>) -> BTreeMap<Reference, Vec<String>> {
    let mut needed: BTreeMap<Reference, Vec<String>> = BTreeMap::new();
    for task in tasks.map(|ix| set.profile.release.task(ix)) {
        for reference in &task.needs {
            needed.entry(reference.clone()).or_default().push(task.task.id.clone());
        }
    }
    needed
}
