//! Only an admin may place a privileged task, or cause it to start.
//!
//! The check looks at the effect of a write on the affected nodes, not at the fields it writes. So there is no list of
//! ways to place a task, or to meet its condition, that could be incomplete. Everyone who may write can remove a task
//! or leave it unchanged.
//!
//! A task that is placed and a task whose condition becomes true differ only in the error message. The second is more
//! expensive to find, because it is in no profile: nodes are resolved for it, but only nodes of profiles in which a
//! privileged task has a condition.
//!
//! A condition that a later report may meet is checked beforehand, because no rights are checked when a report arrives.
//! So if a condition reads a reported value, a write needs an admin if it changes another value that the condition
//! reads, whichever of the two comes first. So does a write that opens a value to reports: by `host_labels.accept`, by
//! removing a label from a level, or by removing a suppressed trait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use stemma_core::finding::join_first;
use stemma_core::fleet::Fleet;
use stemma_core::name::Name;
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeTags, PrincipalRole};
use stemma_core::resolve::{ConditionOutcome, TaskSet};
use stemma_wire::error::{ApiError, ErrorType};

use super::PendingWrite;
use crate::cache::Model;
use crate::records::enrolled::TokenTarget;
use crate::registry::names::group_path;

/// Maximum number of tasks that an error names.
const MAX_NAMED_TASKS: usize = 3;

/// Advice for a write that only an admin may make.
const ADMIN_ADVICE: &str = "an admin must make this write, or create the join token with which the host joins";

/// Advice for a join token that only an admin may create.
const TOKEN_ADVICE: &str = "a host that joins there gets privileged tasks at once, whatever their condition: an admin must create this token, \
    or you create one for a node group without the task and an admin moves the host";

/// The part of a cluster that must be unchanged since a write was decided.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClusterGuard {
    /// No part of the cluster.
    #[default]
    Nothing,
    /// The values that its levels hand down to nodes.
    Levels,
    /// The values that its levels hand down to nodes, and its nodes.
    All,
}

/// Privileged tasks that a write places on a node, or starts there.
struct PrivilegedTasks {
    /// Ids of the tasks.
    tasks: Vec<String>,
    cause: PrivilegedCause,
}

/// The cause that makes privileged tasks run.
enum PrivilegedCause {
    /// The write places the tasks on the node.
    Placed,
    /// The tasks are already placed, and their conditions now have this result.
    Condition(ConditionOutcome),
    /// The tasks are already placed, and a report of this value may meet their conditions.
    Report(String),
}

impl PendingWrite<'_> {
    /// Sets the role whose rights apply when nodes are placed. If a host joins, it is the role of the creator of the
    /// host's token instead of the caller's.
    pub fn set_placement_role(&mut self, role: PrincipalRole) {
        self.placement_role = role;
    }

    /// Refuses a write that places or starts privileged tasks on nodes, unless an admin makes it.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks and the first of the nodes.
    pub(super) fn check_privileged(&self) -> Result<(), ApiError> {
        if self.placement_role == PrincipalRole::Admin {
            return Ok(());
        }
        let reached = self.new_privileged();
        let seen: Vec<(&NodeId, &PrivilegedTasks)> = reached.iter().filter(|(node, _)| self.is_visible(**node)).collect();
        let Some((first, brought)) = seen.first().copied().or_else(|| reached.first_key_value()) else { return Ok(()) };
        let name = seen.first().and_then(|(node, _)| self.model.fleet.node(**node)).map(|node| node.display_name());
        let place = match (&name, seen.len()) {
            (Some(name), 1) => format!("node {name}"),
            (Some(name), count) => format!("node {name} and {} more", count - 1),
            (None, _) => "a node".to_owned(),
        };
        let refusal = forbidden(&brought.tasks, &brought.cause, &place).detail(ADMIN_ADVICE);
        let refusal = match name {
            Some(name) => refusal.extra("object", json!(format!("node/{name}"))),
            None => refusal,
        };
        Err(match self.cause_for_node(*first) {
            Some(written) => refusal.extra("written", json!(written)),
            None => refusal,
        })
    }

    /// Returns the privileged tasks that the write brings to each node. Placed tasks take precedence over tasks that
    /// start, and these over tasks that a report may start.
    fn new_privileged(&self) -> BTreeMap<NodeId, PrivilegedTasks> {
        let mut new_tasks = self.newly_reportable();
        new_tasks.extend(self.newly_started());
        for node in self.reached_nodes() {
            let tasks = self.newly_placed_tasks(node);
            if !tasks.is_empty() {
                new_tasks.insert(node, PrivilegedTasks { tasks, cause: PrivilegedCause::Placed });
            }
        }
        new_tasks
    }

    /// Returns the privileged tasks that the write places on a node.
    fn newly_placed_tasks(&self, node: NodeId) -> Vec<String> {
        let Some(profile) = self.model.fleet.profile(node).filter(|profile| !profile.privileged.is_empty()) else {
            return Vec::new();
        };
        let placed = profile.additional_privileged(self.context.full_model.fleet.profile(node).map(AsRef::as_ref));
        placed.into_iter().map(str::to_owned).collect()
    }

    /// Returns the privileged tasks whose conditions are met or undecided after the write, and were not before.
    fn newly_started(&self) -> BTreeMap<NodeId, PrivilegedTasks> {
        // All nodes after the write first, then the relevant ones before it, because the cache holds one state of a
        // group at a time.
        let running: Vec<(NodeId, Arc<TaskSet>)> = self
            .reached_nodes()
            .filter(|node| self.model.fleet.profile(*node).is_some_and(|profile| profile.has_privileged_condition()))
            .filter_map(|node| Some((node, task_set(&self.model, node)?)))
            .filter(|(_, set)| !set.newly_run_privileged(None).is_empty())
            .collect();
        let started = running.iter().filter_map(|(node, after)| {
            let before = task_set(self.context.full_model, *node);
            Some((*node, PrivilegedTasks::from_started(&after.newly_run_privileged(before.as_deref()))?))
        });
        started.collect()
    }

    /// Returns the privileged tasks that do not run, and whose conditions a report may meet after this write.
    fn newly_reportable(&self) -> BTreeMap<NodeId, PrivilegedTasks> {
        let written = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let below = self.changed_folds().flat_map(|group| self.model.fleet.nodes_in_group(group));
        let nodes: BTreeSet<NodeId> = written.chain(below).take_while(|_| self.is_active()).chain(self.reached_nodes()).collect();
        nodes.into_iter().filter_map(|node| Some((node, self.newly_reportable_on(node)?))).collect()
    }

    /// Returns the privileged tasks of a node that do not run, and whose conditions a report may meet after this write.
    /// If reports of several values may do so, returns the tasks of the first value.
    fn newly_reportable_on(&self, node: NodeId) -> Option<PrivilegedTasks> {
        let full_model = self.context.full_model;
        let mut opened = self.model.fleet.newly_host_controlled(&full_model.fleet, node);
        // A task that already runs is not started by this write.
        let set = (!opened.is_empty()).then(|| task_set(full_model, node)).flatten();
        opened.retain(|open| !set.as_ref().is_some_and(|set| set.has_privileged(open.definition)));
        let input = opened.first()?.description.clone();
        let tasks = opened.iter().filter(|open| open.description == input).map(|open| open.task.to_owned()).collect();
        Some(PrivilegedTasks { tasks, cause: PrivilegedCause::Report(input) })
    }

    /// Refuses a token with which joining hosts would get privileged tasks, unless an admin creates it. The token may
    /// be for a group or for an existing node. This is checked again when a host joins, because the tasks may have
    /// changed by then.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks, and the group or node.
    pub fn check_joining(&self, bound: TokenTarget) -> Result<(), ApiError> {
        if self.placement_role == PrincipalRole::Admin {
            return Ok(());
        }
        let fleet = &self.model.fleet;
        let profile = match bound {
            TokenTarget::Fleet => None,
            TokenTarget::Group(group) => fleet.profile_for_new_node(GroupId(group)),
            TokenTarget::Node(node) => fleet.profile(NodeId(node)).map(Arc::clone),
        };
        let tasks = profile.as_ref().map(|profile| profile.additional_privileged(None)).unwrap_or_default();
        if tasks.is_empty() {
            return Ok(());
        }
        Err(forbidden(&tasks, &PrivilegedCause::Placed, &self.describe_joining(bound)).detail(TOKEN_ADVICE))
    }

    /// Describes the hosts that would join with a token.
    fn describe_joining(&self, bound: TokenTarget) -> String {
        match bound {
            TokenTarget::Fleet => "hosts that join".to_owned(),
            TokenTarget::Group(group) => {
                let path = group_path(&self.model, GroupId(group)).unwrap_or_else(|| group.to_string());
                format!("hosts that join node group {path}")
            }
            TokenTarget::Node(node) => {
                let name = self.model.fleet.node(NodeId(node)).map(|node| node.display_name());
                format!("a host that joins as node {}", name.unwrap_or_else(|| node.to_string()))
            }
        }
    }

    /// Returns the clusters of which a part must be unchanged since the write was decided. Two writes of different
    /// objects by callers who are not admins could place a privileged task together, though neither does alone. So
    /// could a change of the release by any caller, together with an entry of `primaries` for a node that does not
    /// exist yet.
    pub(super) fn guarded_clusters(&self) -> BTreeMap<ClusterId, ClusterGuard> {
        let mut clusters: BTreeMap<ClusterId, ClusterGuard> =
            self.clusters_with_new_release().into_iter().map(|cluster| (cluster, ClusterGuard::All)).collect();
        if self.placement_role == PrincipalRole::Admin {
            return clusters;
        }
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        let nodes = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        for node in nodes.filter(|node| placement_inputs(before, *node) != placement_inputs(after, *node)) {
            clusters.extend(after.cluster_of_node(node).map(|cluster| (cluster, ClusterGuard::Levels)));
        }
        let is_changed = |group: &GroupId| match (before.resolved_group(*group), after.resolved_group(*group)) {
            (Ok(before), Ok(after)) => !after.has_same_placement(before),
            (before, after) => before.is_ok() || after.is_ok(),
        };
        for group in self.changed_folds().filter(is_changed) {
            clusters.extend(after.cluster_of_group(group).map(|cluster| (cluster, ClusterGuard::All)));
        }
        for (cluster, guard) in self.guarded_conditions() {
            let known = clusters.entry(cluster).or_default();
            *known = guard.max(*known);
        }
        clusters
    }

    /// Returns the clusters in which a group, or the cluster itself, gets another release, even if it has no nodes yet.
    fn clusters_with_new_release(&self) -> BTreeSet<ClusterId> {
        let (before, after) = (&self.context.full_model.fleet, &self.model.fleet);
        let of_group = |fleet: &Fleet, group: GroupId| {
            let fold = fleet.resolved_group(group).ok()?;
            Some(fold.release.as_ref()?.value.name.clone())
        };
        let groups = self.changed_folds().filter(|group| of_group(before, *group) != of_group(after, *group));
        let of_groups = groups.filter_map(|group| after.cluster_of_group(group));
        let release = |fleet: &Fleet, cluster: ClusterId| {
            fleet.cluster(cluster).and_then(|cluster| fleet.cluster_release(cluster)).cloned()
        };
        let clusters = self.clusters_of_templates().into_iter();
        let of_clusters = clusters.filter(|cluster| release(before, *cluster) != release(after, *cluster));
        // A new cluster was not yet named by any write.
        of_groups.chain(of_clusters).filter(|cluster| before.cluster(*cluster).is_some()).collect()
    }

    /// Returns the clusters of which a part must be unchanged because conditions of privileged tasks may read it. This
    /// looks at the written objects, not at the affected nodes: a value that a node overrides affects the node only
    /// after another write removes the override.
    fn guarded_conditions(&self) -> Vec<(ClusterId, ClusterGuard)> {
        let fleets = [&self.context.full_model.fleet, &self.model.fleet];
        let mut guarded = Vec::new();
        for fleet in fleets {
            let nodes = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
            for node in nodes {
                let Some(cluster) = fleet.cluster_of_node(node) else { continue };
                if fleet.has_privileged_lookup(cluster) {
                    guarded.push((cluster, ClusterGuard::All));
                } else if fleet.profile(node).is_some_and(|profile| profile.has_privileged_condition()) {
                    guarded.push((cluster, ClusterGuard::Levels));
                }
            }
            let has_condition =
                |cluster: &ClusterId| fleet.profiles_in_cluster(*cluster).any(|profile| profile.has_privileged_condition());
            let below: BTreeSet<ClusterId> = self.changed_folds().filter_map(|group| fleet.cluster_of_group(group)).collect();
            guarded.extend(below.into_iter().filter(has_condition).map(|cluster| (cluster, ClusterGuard::All)));
        }
        guarded
    }
}

impl PrivilegedTasks {
    /// Returns the tasks that start: those whose conditions are met, otherwise those whose conditions are undecided.
    /// Returns `None` if there are none.
    fn from_started(started: &[(&str, ConditionOutcome)]) -> Option<Self> {
        let highest = started.iter().map(|(_, met)| *met).max()?;
        let tasks = started.iter().filter(|(_, met)| *met == highest).map(|(id, _)| (*id).to_owned()).collect();
        Some(Self { tasks, cause: PrivilegedCause::Condition(highest) })
    }
}

fn task_set(model: &Model, node: NodeId) -> Option<Arc<TaskSet>> {
    model.resolve(node.0).resolved_node()?.task_set().cloned()
}

/// Returns the values of the node itself that decide which tasks it gets.
fn placement_inputs(fleet: &Fleet, node: NodeId) -> Option<(Option<GroupId>, &[Name], &NodeTags)> {
    let spec = &fleet.node(node)?.spec;
    Some((spec.nodegroup, &*spec.roles, &spec.tags))
}

/// Builds the error for privileged tasks that only an admin may bring to the place `at`.
fn forbidden(tasks: &[impl AsRef<str>], how: &PrivilegedCause, at: &str) -> ApiError {
    let (word, are, them, conditions) =
        if tasks.len() == 1 { ("task", "is", "it", "its condition") } else { ("tasks", "are", "them", "their conditions") };
    let tasks = join_first(tasks.iter().map(AsRef::as_ref), MAX_NAMED_TASKS);
    let brings = match how {
        PrivilegedCause::Placed => format!("places {them} on {at}"),
        PrivilegedCause::Condition(ConditionOutcome::Undecided) => {
            format!("lets {them} run on {at}, where this write leaves {conditions} undecided")
        }
        PrivilegedCause::Condition(ConditionOutcome::Yes | ConditionOutcome::No) => {
            format!("lets {them} run on {at}, where this write meets {conditions}")
        }
        PrivilegedCause::Report(what) => {
            format!("lets {them} run on {at}, where after this write the host may meet {conditions} by reporting {what}")
        }
    };
    let message = format!("{word} {tasks} {are} privileged, and an admin alone {brings}; nothing was changed");
    ApiError::new(ErrorType::AuthForbidden, message)
}
