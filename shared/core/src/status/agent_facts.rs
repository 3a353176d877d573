//! Facts in which an agent reports its own state to the controller. Each fact is the text of a JSON value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the fact that gives the reason why the agent cannot store or apply its desired state. The value is a
/// text. An agent that can do both does not report the fact.
pub const STUCK_FACT: &str = "agent.stuck";

/// The name of the fact that a stuck agent reports as `true` if its tasks continue to run. Then the agent only cannot
/// write the files that services and people read, such as the labels. Agents of older versions do not report the fact.
pub const TASKS_CONTINUE_FACT: &str = "agent.runs_on";

/// The name of the fact that lists paths that tasks of the host wrote, that still exist, and that no task manages now.
pub const ORPHANS_FACT: &str = "agent.orphans";

/// The report of a stuck agent: it cannot store or apply its desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckAgent {
    /// The reason why the agent is stuck, as a text for people.
    pub reason: String,
    /// True if the agent's tasks continue to run although it is stuck.
    pub can_run_tasks: bool,
}

impl StuckAgent {
    /// Returns the report that an agent's facts contain. `facts` has the JSON text of each fact by name. Returns `None`
    /// if the agent is not stuck.
    pub fn from_facts(facts: &BTreeMap<String, String>) -> Option<Self> {
        let reason = stuck_reason(facts.get(STUCK_FACT)?)?;
        let can_run_tasks = facts.get(TASKS_CONTINUE_FACT).is_some_and(|fact| fact == "true");
        Some(Self { reason, can_run_tasks })
    }
}

/// The paths of a host that still exist although no task manages them now. Tasks of earlier task sets wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanedPaths {
    /// The paths that the host names, each with the task that wrote the path. The host names only the first paths.
    pub listed_paths: Vec<OrphanedPath>,
    /// The number of further orphaned paths, which the host counts but does not name.
    pub unlisted_count: u64,
}

/// A path that a task wrote and that no task manages now.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct OrphanedPath {
    /// The id of the task that wrote the path.
    pub task: String,
    /// The path.
    pub path: String,
}

impl OrphanedPaths {
    /// Returns whether the host has no orphaned paths.
    pub fn is_empty(&self) -> bool {
        self.listed_paths.is_empty() && self.unlisted_count == 0
    }
}

/// Returns whether the fact with this name is about the agent itself. The controller stores a report in which only such
/// a fact has changed. A change of another fact of a report, such as the load, is stored only with another change.
pub fn is_agent_fact(path: &str) -> bool {
    path.starts_with("agent.")
}

/// Returns the reason in the JSON text of [`STUCK_FACT`], or `None` if the fact is `null`. A fact of another form is
/// returned as its text, because any fact except `null` means that the agent is stuck.
pub fn stuck_reason(fact: &str) -> Option<String> {
    match serde_json::from_str(fact) {
        Ok(Value::String(reason)) => Some(reason),
        Ok(Value::Null) => None,
        // Any value except `null` means that the agent is stuck.
        Ok(value) => Some(value.to_string()),
        Err(_) => Some(fact.to_owned()),
    }
}

/// Returns the paths in the JSON text of [`ORPHANS_FACT`]. An entry is a path with its task, or `{"more": N}` for the
/// number of paths that are not listed. Other entries are ignored, because an agent of a newer version may add some.
pub fn orphaned_paths(fact: &str) -> OrphanedPaths {
    let entries: Vec<Value> = serde_json::from_str(fact).unwrap_or_default();
    let unlisted_count = entries.iter().filter_map(|entry| entry.get("more")?.as_u64()).fold(0, u64::saturating_add);
    let listed = entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect();
    OrphanedPaths { listed_paths: listed, unlisted_count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y06_agent_facts_return_stuck_reason_and_orphaned_paths() {
        for (fact, reason) in [
            (r#""cannot write /x: No space left""#, Some("cannot write /x: No space left")),
            ("null", None),
            ("no JSON", Some("no JSON")),
            ("true", Some("true")),
        ] {
            assert_eq!(stuck_reason(fact).as_deref(), reason, "{fact}");
        }
        let read_agent = |facts: &[(&str, &str)]| {
            let facts = facts.iter().map(|(path, fact)| ((*path).to_owned(), (*fact).to_owned()));
            StuckAgent::from_facts(&facts.collect())
        };
        let stuck = |can_run_tasks| Some(StuckAgent { reason: "x".to_owned(), can_run_tasks });
        for (facts, expected) in [
            (vec![], None),
            (vec![("agent.runs_on", "true")], None),
            (vec![("agent.stuck", "null"), ("agent.runs_on", "true")], None),
            (vec![("agent.stuck", "\"x\"")], stuck(false)),
            (vec![("agent.stuck", "\"x\""), ("agent.runs_on", "false")], stuck(false)),
            (vec![("agent.stuck", "\"x\""), ("agent.runs_on", "true")], stuck(true)),
        ] {
            assert_eq!(read_agent(&facts), expected, "{facts:?}");
        }
        let key_path = OrphanedPath { task: "key".into(), path: "/root/.ssh/authorized_keys".into() };
        for (fact, listed, unlisted_count) in [
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys"}]"#, vec![key_path.clone()], 0),
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys","since":1},{"more":7}]"#, vec![key_path], 7),
            (r#"[{"task":1},"x"]"#, vec![], 0),
            ("[]", vec![], 0),
            ("{}", vec![], 0),
        ] {
            let paths = orphaned_paths(fact);
            assert_eq!(paths.is_empty(), listed.is_empty() && unlisted_count == 0);
            assert_eq!(paths, OrphanedPaths { listed_paths: listed, unlisted_count }, "{fact}");
        }
        // The last name only resembles that of a fact about the agent.
        assert!(
            is_agent_fact(STUCK_FACT)
                && is_agent_fact(TASKS_CONTINUE_FACT)
                && is_agent_fact(ORPHANS_FACT)
                && !is_agent_fact("agents.x")
        );
    }
}
