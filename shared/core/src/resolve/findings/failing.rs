//! Conditions that cannot be evaluated, and paths that two tasks write or no host takes: one finding for a task, however many hosts it
//! is about. A node's own answer has its own.

use std::collections::BTreeMap;

use crate::finding::{FEW, Finding, Rule, rule};
use crate::fleet::Fleet;
use crate::name::ReleaseRef;
use crate::object::NodeId;
use crate::resolve::{Answer, ResolveCache, resolve_node};

/// The findings that are told of all hosts together.
const OF_ALL: [Rule; 2] = [rule::CONDITION_FAILED, rule::TASK_PATH];

/// The tasks whose conditions cannot be evaluated, or that have no path, gathered host by host.
#[derive(Default)]
pub struct FailingTasks(BTreeMap<(ReleaseRef, String, String), Failing>);

/// Hosts of which the same is found of one task.
struct Failing {
    first: NodeId,
    /// What is found of the task on the first of them.
    found: Finding,
    hosts: usize,
    names: Vec<String>,
}

/// Tasks that have no path of their own on these nodes by a step of the fleet, and had before: one finding for a task.
pub fn newly_without_path(
    before: &Fleet,
    after: &Fleet,
    cache: &ResolveCache,
    nodes: impl Iterator<Item = NodeId>,
) -> Vec<Finding> {
    let mut failing = FailingTasks::default();
    // Of most nodes each task has its path. To resolve what they had before would throw away what is remembered of their group.
    for node in nodes.filter(|node| after.profile(*node).is_some_and(|profile| profile.may_lack_paths())) {
        let resolution = resolve_node(after, cache, node);
        let Some(answer) = resolution.answer() else { continue };
        let mut without = of_paths(answer);
        if without.is_empty() {
            continue;
        }
        let known = resolve_node(before, cache, node).answer().map(|answer| of_paths(answer)).unwrap_or_default();
        without.retain(|finding| !known.contains(finding));
        failing.add_found(answer, without);
    }
    failing.found().map(|(finding, _)| finding).collect()
}

/// What is found of the paths of a host's tasks.
fn of_paths(answer: &Answer) -> Vec<Finding> {
    let findings = answer.task_set().into_iter().flat_map(|set| set.findings());
    findings.filter(|finding| finding.code == rule::TASK_PATH.code).collect()
}

/// Whether a finding about one host is told of all hosts together.
pub fn is_told_together(finding: &Finding) -> bool {
    OF_ALL.iter().any(|rule| finding.code == rule.code)
}

impl FailingTasks {
    /// Takes in a host.
    pub fn add(&mut self, answer: &Answer) {
        let Some(set) = answer.task_set() else { return };
        self.add_found(answer, set.findings().filter(is_told_together));
    }

    /// Takes in what is found of a host's tasks.
    fn add_found(&mut self, answer: &Answer, found: impl IntoIterator<Item = Finding>) {
        let Some(release) = answer.release() else { return };
        for finding in found {
            let key = (release.name.clone(), finding.object.clone(), finding.code.clone());
            let first = answer.node().id();
            let new = || Failing { first, found: finding, hosts: 0, names: Vec::new() };
            let failing = self.0.entry(key).or_insert_with(new);
            failing.hosts += 1;
            if failing.names.len() < FEW {
                failing.names.push(answer.node().display_name());
            }
        }
    }

    /// One finding for each task, with a host that it is about.
    pub fn found(self) -> impl Iterator<Item = (Finding, NodeId)> {
        self.0.into_iter().map(|((release, object, _), failing)| {
            let task = object.strip_prefix("task/").unwrap_or(&object);
            let (object, message) = (format!("release/{release} task {task}"), failing.message());
            (Finding { object, message, ..failing.found }, failing.first)
        })
    }
}

impl Failing {
    fn message(&self) -> String {
        let names = self.names.join(", ");
        match self.hosts {
            1 => format!("on 1 host ({names}): {}", self.found.message),
            hosts if hosts > self.names.len() => format!("on {hosts} hosts ({names}, …): {}", self.found.message),
            hosts => format!("on {hosts} hosts ({names}): {}", self.found.message),
        }
    }
}
