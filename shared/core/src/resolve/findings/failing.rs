//! Conditions that cannot be evaluated, and paths that two tasks write: one finding for a task, however many hosts it is about. A node's own
//! answer has its own.

use std::collections::BTreeMap;

use crate::finding::{FEW, Finding, Rule, rule};
use crate::name::ReleaseRef;
use crate::object::NodeId;
use crate::resolve::Answer;

/// The findings that are told of all hosts together.
const OF_ALL: [Rule; 2] = [rule::CONDITION_FAILED, rule::TASK_PATH];

/// The tasks whose conditions cannot be evaluated, or whose path another task has, gathered host by host.
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

/// Whether a finding about one host is told of all hosts together.
pub fn is_told_together(finding: &Finding) -> bool {
    OF_ALL.iter().any(|rule| finding.code == rule.code)
}

impl FailingTasks {
    /// Takes in a host.
    pub fn add(&mut self, answer: &Answer) {
        let Some((set, release)) = answer.task_set().zip(answer.release()) else { return };
        for finding in set.findings().filter(is_told_together) {
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
