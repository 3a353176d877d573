//! Facts about the reboot of a host: the present boot, and the reboot that tasks ask for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::finding::shorten;

/// The name of the fact with the id of the host's present boot, as the text of a uuid. Only an agent that can reboot its
/// host when its controller requests it reports the fact.
pub const BOOT_FACT: &str = "agent.boot";

/// The name of the fact that tells which tasks of the host ask for a reboot. Its value is a [`RebootReport`].
pub const REBOOT_FACT: &str = "agent.reboot";

/// Maximum number of tasks in a report.
const MAX_TASKS: usize = 16;

/// Maximum length of a text in a report, in characters.
const MAX_CHARS: usize = 256;

/// The report of a host about its reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebootReport {
    /// The time of the first request, in seconds since 1970. `None` if no task asks for a reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The tasks that ask for a reboot, at most 16.
    pub tasks: Vec<RebootTask>,
    /// The reason why the reboot that an operator began has not happened. `None` if there is no such reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A task that asks for a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootTask {
    /// The id of the task.
    pub task: String,
    /// The reason why the host must be booted.
    pub reason: String,
}

impl RebootReport {
    /// Returns the report that an agent's facts contain, or `None` if the agent reports nothing about a reboot. `facts` has
    /// the JSON text of each fact by name. A fact of another form is ignored.
    pub fn from_facts(facts: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(facts.get(REBOOT_FACT)?).ok()
    }

    /// Returns the JSON text of the fact, with shortened texts, or `None` if there is nothing to report.
    pub fn to_fact(&self) -> Option<String> {
        if self.tasks.is_empty() && self.problem.is_none() {
            return None;
        }
        let shorten = |text: &String| text.chars().take(MAX_CHARS).collect::<String>();
        let task = |task: &RebootTask| RebootTask { task: task.task.clone(), reason: shorten(&task.reason) };
        let limited = Self {
            since: self.since,
            tasks: self.tasks.iter().take(MAX_TASKS).map(task).collect(),
            problem: self.problem.as_ref().map(shorten),
        };
        serde_json::to_string(&limited).ok()
    }

    /// Returns a text about the wait for a reboot: the first task, the number of the others, and the command. `None` if no
    /// task waits. `node` is the name of the node.
    pub fn wait_text(&self, node: &str) -> Option<String> {
        let first = self.tasks.first()?;
        let others = if self.tasks.len() > 1 { format!(" and {} more", self.tasks.len() - 1) } else { String::new() };
        Some(format!("task {}{others} waits for a reboot: run `stemma node reboot {node}`", shorten(&first.task)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reboot_report_round_trips_and_bounds_texts() {
        let task = |id: &str, reason: &str| RebootTask { task: id.into(), reason: reason.into() };
        let report = RebootReport { since: Some(7), tasks: vec![task("kernel", "a new kernel")], problem: None };
        let facts = |text: &str| BTreeMap::from([("agent.reboot".to_owned(), text.to_owned())]);
        assert_eq!(RebootReport::default().to_fact(), None);
        let text = report.to_fact().unwrap();
        assert_eq!(text, r#"{"since":7,"tasks":[{"task":"kernel","reason":"a new kernel"}]}"#);
        assert_eq!(RebootReport::from_facts(&facts(&text)), Some(report.clone()));
        assert_eq!(report.wait_text("web-1").unwrap(), "task kernel waits for a reboot: run `stemma node reboot web-1`");
        let two_tasks = RebootReport { tasks: vec![task("a\nb", ""), task("c", "")], ..RebootReport::default() };
        let text = two_tasks.wait_text("web-1").unwrap();
        assert_eq!(text, "task a b and 1 more waits for a reboot: run `stemma node reboot web-1`", "a host may send any text");
        let long = RebootReport { tasks: vec![task("t", &"ä".repeat(999)); 99], problem: Some("x".repeat(999)), ..report };
        let read = RebootReport::from_facts(&facts(&long.to_fact().unwrap())).unwrap();
        assert_eq!((read.tasks.len(), read.tasks[0].reason.chars().count(), read.problem.unwrap().len()), (16, 256, 256));
        for (text, expected) in [("{}", Some(RebootReport::default())), ("null", None), ("7", None)] {
            assert_eq!(RebootReport::from_facts(&facts(text)), expected, "{text}");
        }
    }
}
