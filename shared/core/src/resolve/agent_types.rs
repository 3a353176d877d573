//! The tasks of a node that its agent does not know, by what the agent declares (see
//! [`TASK_TYPES_FACT`](crate::task::TASK_TYPES_FACT)).
//!
//! A task set with such a task is not released to the node, because its host would run only a part of it.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::resolved_node::ResolvedNode;
use crate::finding::{MAX_NAMES, join_first};
use crate::name::truncated;
use crate::object::Observation;
use crate::release::TaskIndex;
use crate::task::{AGENT_VERSION_FACT, KnownTypes, TASK_TYPES_FACT, UnknownFeature, declared_task_types};

/// The task types and parameters that a node's tasks use and that its agent does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFeatures {
    /// The agent, as texts name it: `agent VERSION`, or `an older agent` if the agent declares nothing.
    pub agent: String,
    /// The types and parameters, each with the id of the first task that uses it. Never empty.
    pub features: BTreeMap<UnknownFeature, String>,
}

impl UnknownFeatures {
    /// Returns the message of the finding about the node.
    pub(crate) fn message(&self) -> String {
        let tasks = join_first(self.features.values().map(String::as_str), MAX_NAMES);
        format!("{self}, as in {tasks}: it gets no task set with such a task before its agent is upgraded")
    }
}

impl Display for UnknownFeatures {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let features: Vec<String> = self.features.keys().map(ToString::to_string).collect();
        write!(f, "its host has {} and does not know {}", self.agent, join_first(features.iter().map(String::as_str), MAX_NAMES))
    }
}

impl ResolvedNode {
    /// Returns the types and parameters of the node's tasks that its agent does not know. Returns `None` if the agent
    /// knows all of them, or if no agent of the node has reported yet.
    pub fn unknown_features(&self) -> Option<UnknownFeatures> {
        let observation = self.observation()?;
        let features = match observation.facts.text(TASK_TYPES_FACT) {
            Some(fact) if fact == declared_task_types() => return None,
            Some(fact) => {
                let set = self.task_set()?;
                // A host runs the tasks of `unassign` later, without another task set.
                let unassign = set.profile.unassign.iter().copied().filter(|ix| set.should_run(*ix));
                self.unknown_features_of(set.tasks().chain(unassign), &KnownTypes::from_fact(fact))
            }
            None => self.unknown_features_of(self.later_tasks(), &KnownTypes::undeclared()),
        };
        (!features.is_empty()).then(|| UnknownFeatures { agent: agent_text(observation), features })
    }

    /// Returns the running tasks that an agent does not know if it declares nothing.
    pub(super) fn later_tasks(&self) -> impl Iterator<Item = TaskIndex> {
        let sets = self.task_set().into_iter();
        sets.flat_map(|set| set.profile.later_tasks.iter().copied().filter(|ix| set.should_run(*ix)))
    }

    /// Returns the types and parameters of these tasks of the node that an agent does not know, each with the id of the
    /// first task that uses it.
    fn unknown_features_of(
        &self,
        tasks: impl Iterator<Item = TaskIndex>,
        known_types: &KnownTypes<'_>,
    ) -> BTreeMap<UnknownFeature, String> {
        let mut features = BTreeMap::new();
        let Some(set) = self.task_set() else { return features };
        for task in tasks.map(|ix| &set.profile.release.task(ix).task) {
            if let Some(feature) = known_types.unknown_feature(task) {
                features.entry(feature).or_insert_with(|| task.id.clone());
            }
        }
        features
    }
}

/// Returns the agent that sent an observation, as texts name it. A host reports its version itself, so the text is cut
/// and escaped.
fn agent_text(observation: &Observation) -> String {
    let version = observation.facts.text(AGENT_VERSION_FACT).and_then(|fact| serde_json::from_str::<String>(fact).ok());
    version.map_or_else(|| "an older agent".to_owned(), |version| format!("agent {}", truncated(&version).escape_debug()))
}
