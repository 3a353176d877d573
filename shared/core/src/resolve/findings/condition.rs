//! Conditions that cannot be evaluated: one finding for a task, however many hosts it is about. A node's own answer has its own.

use std::collections::BTreeMap;

use crate::finding::{FEW, Finding, rule};
use crate::name::ReleaseRef;
use crate::object::NodeId;
use crate::resolve::Answer;

/// The tasks whose conditions cannot be evaluated, gathered host by host.
#[derive(Default)]
pub struct FailedConditions(BTreeMap<(ReleaseRef, String), Failing>);

/// Hosts on which one condition cannot be evaluated.
struct Failing {
    first: NodeId,
    /// Why not on the first of them.
    why: String,
    hosts: usize,
    names: Vec<String>,
}

/// Whether a finding about one host is told of all hosts together.
pub fn is_of_condition(finding: &Finding) -> bool {
    finding.code == rule::CONDITION_FAILED.code
}

impl FailedConditions {
    /// Takes in a host.
    pub fn add(&mut self, answer: &Answer) {
        let Some((set, release)) = answer.task_set().zip(answer.release()) else { return };
        for finding in set.findings().filter(is_of_condition) {
            let new =
                || Failing { first: answer.node().id(), why: finding.message.clone(), hosts: 0, names: Vec::new() };
            let failing = self.0.entry((release.name.clone(), finding.object.clone())).or_insert_with(new);
            failing.hosts += 1;
            if failing.names.len() < FEW {
                failing.names.push(answer.node().display_name());
            }
        }
    }

    /// One finding for each task, with a host that it is about.
    pub fn found(self) -> impl Iterator<Item = (Finding, NodeId)> {
        self.0.into_iter().map(|((release, object), failing)| {
            let task = object.strip_prefix("task/").unwrap_or(&object);
            let object = format!("release/{release} task {task}");
            (Finding::of(rule::CONDITION_FAILED, object, failing.message()), failing.first)
        })
    }
}

impl Failing {
    fn message(&self) -> String {
        let names = self.names.join(", ");
        match self.hosts {
            1 => format!("on 1 host ({names}): {}", self.why),
            hosts if hosts > self.names.len() => format!("on {hosts} hosts ({names}, …): {}", self.why),
            hosts => format!("on {hosts} hosts ({names}): {}", self.why),
        }
    }
}
