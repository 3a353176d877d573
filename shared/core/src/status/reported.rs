//! What an agent reports of itself among the facts that change by themselves. Each fact is the text of a JSON value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why the agent cannot keep or apply what it is told: a text. Absent: it can.
pub const STUCK: &str = "agent.stuck";

/// `true` beside [`STUCK`] where all that the agent cannot do is to write what services and people read: its tasks run on. An earlier agent does
/// not say it.
pub const RUNS_ON: &str = "agent.runs_on";

/// The paths that tasks of the host wrote and no task keeps now: a list.
pub const ORPHANS: &str = "agent.orphans";

/// What an agent says of itself that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Why it is.
    pub why: String,
    /// Whether its tasks run on all the same.
    pub runs_on: bool,
}

impl Stuck {
    /// What these facts of an agent say; `None`: it is not stuck.
    pub fn of(facts: &BTreeMap<String, String>) -> Option<Self> {
        let why = stuck(facts.get(STUCK)?)?;
        let runs_on = facts.get(RUNS_ON).is_some_and(|fact| fact == "true");
        Some(Self { why, runs_on })
    }
}

/// Paths that tasks of a host wrote once, that no task keeps now, and that are still there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// The first of them.
    pub named: Vec<Orphan>,
    /// How many more there are.
    pub more: u64,
}

/// One path of these.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Orphan {
    /// The task that wrote it.
    pub task: String,
    /// Where it is.
    pub path: String,
}

impl Orphans {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.more == 0
    }
}

/// Whether a fact is about the agent itself, so that another one is news.
pub fn is_of_agent(path: &str) -> bool {
    path.starts_with("agent.")
}

/// Why the agent is stuck, by its fact.
pub fn stuck(fact: &str) -> Option<String> {
    match serde_json::from_str(fact) {
        Ok(Value::String(why)) => Some(why),
        Ok(Value::Null) => None,
        // It says that it is, whatever else it says.
        Ok(other) => Some(other.to_string()),
        Err(_) => Some(fact.to_owned()),
    }
}

/// What the fact lists. An entry that is none is passed over: a later agent may say more.
pub fn orphans(fact: &str) -> Orphans {
    let entries: Vec<Value> = serde_json::from_str(fact).unwrap_or_default();
    let more = entries.iter().filter_map(|entry| entry.get("more")?.as_u64()).fold(0, u64::saturating_add);
    let named = entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect();
    Orphans { named, more }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y06_what_an_agent_reports_of_itself_is_read_as_far_as_it_is_known() {
        for (fact, why) in [
            (r#""cannot write /x: No space left""#, Some("cannot write /x: No space left")),
            ("null", None),
            ("no JSON", Some("no JSON")),
            ("true", Some("true")),
        ] {
            assert_eq!(stuck(fact).as_deref(), why, "{fact}");
        }
        let of = |facts: &[(&str, &str)]| {
            let facts = facts.iter().map(|(path, fact)| ((*path).to_owned(), (*fact).to_owned()));
            Stuck::of(&facts.collect())
        };
        let stuck = |runs_on| Some(Stuck { why: "x".to_owned(), runs_on });
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
        let key = Orphan { task: "key".into(), path: "/root/.ssh/authorized_keys".into() };
        for (fact, named, more) in [
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys"}]"#, vec![key.clone()], 0),
            (r#"[{"task":"key","path":"/root/.ssh/authorized_keys","since":1},{"more":7}]"#, vec![key], 7),
            (r#"[{"task":1},"x"]"#, vec![], 0),
            ("[]", vec![], 0),
            ("{}", vec![], 0),
        ] {
            let read = orphans(fact);
            assert_eq!(read.is_empty(), named.is_empty() && more == 0);
            assert_eq!(read, Orphans { named, more }, "{fact}");
        }
        assert!(is_of_agent(STUCK) && is_of_agent(RUNS_ON) && is_of_agent(ORPHANS) && !is_of_agent("agents.x"));
    }
}
