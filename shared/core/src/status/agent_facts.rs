//! Facts in which an agent reports its own state. They change by themselves. Each fact is the text of a JSON value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The fact with the reason why the agent cannot store or apply its desired state, a text. An agent that can do both
/// does not report the fact.
pub const STUCK_FACT: &str = "agent.stuck";

/// The fact that is `true` in addition to [`STUCK_FACT`] if the agent can do everything but write what services and
/// people read, so that its tasks run on. An agent of an older version does not report it.
pub const RUNS_ON_FACT: &str = "agent.runs_on";

/// The fact with the paths that tasks of the host wrote and that no task manages now, a list.
pub const ORPHANS_FACT: &str = "agent.orphans";

/// What a stuck agent reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckAgent {
    /// The reason.
    pub reason: String,
    /// True if the agent's tasks run on.
    pub can_run_tasks: bool,
}

impl StuckAgent {
    /// Reads the facts of an agent. Returns `None` if it is not stuck.
    pub fn from_facts(facts: &BTreeMap<String, String>) -> Option<Self> {
        let reason = stuck_reason(facts.get(STUCK_FACT)?)?;
        let can_run_tasks = facts.get(RUNS_ON_FACT).is_some_and(|fact| fact == "true");
        Some(Self { reason, can_run_tasks })
    }
}

/// Paths that tasks of a host wrote, that no task manages now, and that still exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrphanedPaths {
    /// The first of these paths, each with its task.
    pub listed: Vec<OrphanedPath>,
    /// Number of further paths, which are not listed.
    pub unlisted_count: u64,
}

/// A path that no task manages now.
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
        self.listed.is_empty() && self.unlisted_count == 0
    }
}

/// Returns whether a fact is about the agent itself, so that a change of it is reported at once.
pub fn is_agent_fact(path: &str) -> bool {
    path.starts_with("agent.")
}

/// Returns why the agent is stuck, from the text of [`STUCK_FACT`]. `None` if the fact is `null`.
pub fn stuck_reason(fact: &str) -> Option<String> {
    match serde_json::from_str(fact) {
        Ok(Value::String(why)) => Some(why),
        Ok(Value::Null) => None,
        // The agent reports that it is stuck, whatever the value is.
        Ok(other) => Some(other.to_string()),
        Err(_) => Some(fact.to_owned()),
    }
}

/// Returns the paths that the text of [`ORPHANS_FACT`] lists. An entry that is not a path is ignored, because an agent
/// of a newer version may list other things.
pub fn orphaned_paths(fact: &str) -> OrphanedPaths {
    let entries: Vec<Value> = serde_json::from_str(fact).unwrap_or_default();
    let unlisted_count = entries.iter().filter_map(|entry| entry.get("more")?.as_u64()).fold(0, u64::saturating_add);
    let listed = entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect();
    OrphanedPaths { listed, unlisted_count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y06_agent_facts_are_read_when_entries_are_known() {
        for (fact, why) in [
            (r#""cannot write /x: No space left""#, Some("cannot write /x: No space left")),
            ("null", None),
            ("no JSON", Some("no JSON")),
            ("true", Some("true")),
        ] {
            assert_eq!(stuck_reason(fact).as_deref(), why, "{fact}");
        }
        let of = |facts: &[(&str, &str)]| {
            let facts = facts.iter().map(|(path, fact)| ((*path).to_owned(), (*fact).to_owned()));
            StuckAgent::from_facts(&facts.collect())
        };
        let stuck = |runs_on| Some(StuckAgent { reason: "x".to_owned(), can_run_tasks: runs_on });
        for (facts, said) in [
            (vec![], None),
            (vec![("agent.runs_on", "true")], None),
            (vec![("agent.stuck", "null"), ("agent.runs_on", "true")], None),
            (vec![("agent.stuck", "\"x\"")], stuck(false)),
            (vec![("agent.stuck", "\"x\""), ("agent.runs_on", "false")], stuck(false)),
            (vec![("agent.stuck", "\"x\""), ("agent.runs_on", "true")], stuck(true)),
        ] {
            assert_eq!(of(&facts), said, "{facts:?}");
        }
        let key = OrphanedPath { task: "key".into(), path: "/root/.ssh/authorized_keys".into() };
        for (fact, named, more) in [
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys"}]"#, vec![key.clone()], 0),
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys","since":1},{"more":7}]"#, vec![key], 7),
            (r#"[{"task":1},"x"]"#, vec![], 0),
            ("[]", vec![], 0),
            ("{}", vec![], 0),
        ] {
            let read = orphaned_paths(fact);
            assert_eq!(read.is_empty(), named.is_empty() && more == 0);
            assert_eq!(read, OrphanedPaths { listed: named, unlisted_count: more }, "{fact}");
        }
        assert!(
            is_agent_fact(STUCK_FACT) && is_agent_fact(RUNS_ON_FACT) && is_agent_fact(ORPHANS_FACT) && !is_agent_fact("agents.x")
        );
    }
}
