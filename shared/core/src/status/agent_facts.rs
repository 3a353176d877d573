//! Facts in which an agent reports its own state to the controller. Each fact is the text of a JSON value.

use std::collections::BTreeMap;

use serde_json::Value;

/// The name of the fact that gives the reason why the agent cannot store or apply its desired state. The value is a
/// text. An agent that can do both does not report the fact.
pub const STUCK_FACT: &str = "agent.stuck";

/// The name of the fact that a stuck agent reports as `true` if its tasks continue to run. Then the agent only cannot
/// write the files that services and people read, such as the labels. Agents of older versions do not report the fact.
pub const TASKS_CONTINUE_FACT: &str = "agent.runs_on";

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

#[cfg(test)]
mod tests {
    use super::super::ORPHANS_FACT;
    use super::*;

    #[test]
    fn y06_agent_facts_return_stuck_reason() {
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
        // The last name only resembles that of a fact about the agent.
        assert!(
            is_agent_fact(STUCK_FACT)
                && is_agent_fact(TASKS_CONTINUE_FACT)
                && is_agent_fact(ORPHANS_FACT)
                && !is_agent_fact("agents.x")
        );
    }
}
