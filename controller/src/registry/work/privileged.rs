//! Ensures that only an admin places a privileged task or causes it to start.
//!
//! The check examines the effect of a write on the affected nodes, not the fields that the write contains. So no list
//! of ways to place a task, or to meet its condition, is needed, which could be incomplete. Every caller that may write
//! can remove a task or leave it unchanged.
//!
//! A task can be placed, or the condition of a placed task can become true. Only the error message distinguishes the
//! two. The second case is more expensive to find, because the profile (the task list of similar nodes) does not show
//! it. So the task sets of nodes are computed, but only for profiles in which a privileged task has a condition.
//!
//! A host's later report may meet a condition, and no rights are checked when a report arrives. So such a condition is
//! checked beforehand. If the condition reads a reported value, only an admin may change another value that the
//! condition reads, in whatever order the two values change. Only an admin may let reports decide a value: by
//! `host_labels.accept`, by removing a label from a level, or by removing a suppressed trait.

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

/// Maximum number of tasks that an error message names.
const MAX_NAMED_TASKS: usize = 3;

/// Advice for a write that only an admin may make.
const ADMIN_ADVICE: &str = "an admin must make this write, or create the join token with which the host joins";

/// Advice for a join token that only an admin may create.
const TOKEN_ADVICE: &str = "a host that joins there gets privileged tasks at once, whatever their condition: an admin must create this token, \
    or you create one for a node group without the task and an admin moves the host";

/// The part of a cluster that must be unchanged between the decision of a write and its commit.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClusterGuard {
    /// No part of the cluster.
    #[default]
    Nothing,
    /// The values that nodes inherit from the levels of the cluster.
    Levels,
    /// The values that nodes inherit from the levels of the cluster, and the cluster's nodes.
    All,
}

/// Privileged tasks that a write places on a node or starts there.
struct PrivilegedTasks {
    /// The ids of the tasks.
    tasks: Vec<String>,
    cause: PrivilegedCause,
}

/// The reason why privileged tasks may run on a node after a write.
enum PrivilegedCause {
    /// The write places the tasks on the node.
    Placed,
    /// The tasks were already placed, and the write changes the results of their conditions to this result.
    Condition(ConditionOutcome),
    /// The tasks were already placed, and a host may meet their conditions by a report of this value.
    Report(String),
}

impl PendingWrite<'_> {
    /// Sets the role whose rights apply to the placement of nodes. When a host joins, this is the role of the creator
    /// of the host's token, not the role of the caller.
    pub fn set_placement_role(&mut self, role: PrincipalRole) {
        self.placement_role = role;
    }

    /// Refuses a write that places privileged tasks on nodes, starts them there or lets a later report of a host start
    /// them, unless an admin makes the write. The write is also refused if the caller can see none of these nodes. The
    /// error then names no node.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks and the first visible node.
    pub(super) fn check_privileged(&self) -> Result<(), ApiError> {
        if self.placement_role == PrincipalRole::Admin {
            return Ok(());
        }
        let by_node = self.new_privileged();
        let visible: Vec<(&NodeId, &PrivilegedTasks)> = by_node.iter().filter(|(node, _)| self.is_visible(**node)).collect();
        let Some((first, entry)) = visible.first().copied().or_else(|| by_node.first_key_value()) else { return Ok(()) };
        let name = visible.first().and_then(|(node, _)| self.model.fleet.node(**node)).map(|node| node.display_name());
        let place = match (&name, visible.len()) {
            (Some(name), 1) => format!("node {name}"),
            (Some(name), count) => format!("node {name} and {} more", count - 1),
            (None, _) => "a node".to_owned(),
        };
        let refusal = privileged_tasks_refusal(&entry.tasks, &entry.cause, &place).detail(ADMIN_ADVICE);
        let refusal = match name {
            Some(name) => refusal.extra("object", json!(format!("node/{name}"))),
            None => refusal,
        };
        Err(match self.cause_for_node(*first) {
            Some(cause) => refusal.extra("written", json!(cause)),
            None => refusal,
        })
    }

    /// Returns the privileged tasks that the write places or starts, or that a later report may start. The map has one
    /// entry per node. If several reasons apply to a node, the entry lists the placed tasks. If there are none, it
    /// lists the started tasks, and otherwise the tasks that a report may start.
    fn new_privileged(&self) -> BTreeMap<NodeId, PrivilegedTasks> {
        let mut new_tasks = self.newly_reportable();
        new_tasks.extend(self.newly_started());
        for node in self.affected_nodes() {
            let tasks = self.newly_placed_tasks(node);
            if !tasks.is_empty() {
                new_tasks.insert(node, PrivilegedTasks { tasks, cause: PrivilegedCause::Placed });
            }
        }
        new_tasks
    }

    /// Returns the ids of the privileged tasks that the write places on a node.
    fn newly_placed_tasks(&self, node: NodeId) -> Vec<String> {
        let Some(profile) = self.model.fleet.profile(node).filter(|profile| !profile.privileged.is_empty()) else {
            return Vec::new();
        };
        let placed = profile.additional_privileged(self.context.full_model.fleet.profile(node).map(AsRef::as_ref));
        placed.into_iter().map(str::to_owned).collect()
    }

    /// Returns the placed privileged tasks whose conditions the write changes from not met to undecided or met, or from
    /// undecided to met, by node.
    fn newly_started(&self) -> BTreeMap<NodeId, PrivilegedTasks> {
        // The task sets after the write are computed for all nodes first, then those before the write, only for the
        // nodes that remain. The cache holds one state of a group at a time, so alternating between the two would be
        // slow.
        let new_sets: Vec<(NodeId, Arc<TaskSet>)> = self
            .affected_nodes()
            .filter(|node| self.model.fleet.profile(*node).is_some_and(|profile| profile.has_privileged_condition()))
            .filter_map(|node| Some((node, task_set(&self.model, node)?)))
            .filter(|(_, set)| !set.newly_run_privileged(None).is_empty())
            .collect();
        let started = new_sets.iter().filter_map(|(node, new_set)| {
            let old_set = task_set(self.context.full_model, *node);
            Some((*node, PrivilegedTasks::from_started(&new_set.newly_run_privileged(old_set.as_deref()))?))
        });
        started.collect()
    }

    /// Returns the privileged tasks that did not run before this write, and whose conditions a host may meet by a
    /// report after the write but not before it, by node.
    fn newly_reportable(&self) -> BTreeMap<NodeId, PrivilegedTasks> {
        let nodes = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let by_groups = self.new_or_changed_groups().flat_map(|group| self.model.fleet.nodes_in_group(group));
        // The loop ends early if the client no longer waits for the answer. The write is then refused in any case.
        let nodes = nodes.chain(by_groups).take_while(|_| self.is_active()).chain(self.affected_nodes()).collect::<BTreeSet<_>>();
        nodes.into_iter().filter_map(|node| Some((node, self.newly_reportable_on(node)?))).collect()
    }

    /// Returns the tasks of one node for [`Self::newly_reportable`]. If reports of several values can start tasks,
    /// returns those of the first value.
    fn newly_reportable_on(&self, node: NodeId) -> Option<PrivilegedTasks> {
        let full_model = self.context.full_model;
        // The values that conditions of privileged tasks read, and by which a report can meet a condition only now.
        let mut reads = self.model.fleet.newly_host_controlled(&full_model.fleet, node);
        // A task that already ran before this write is not started by it.
        let old_set = (!reads.is_empty()).then(|| task_set(full_model, node)).flatten();
        reads.retain(|read| !old_set.as_ref().is_some_and(|old_set| old_set.runs_conditional_privileged(read.definition)));
        let value = reads.first()?.description.clone();
        let tasks = reads.iter().filter(|read| read.description == value).map(|read| read.task.to_owned()).collect();
        Some(PrivilegedTasks { tasks, cause: PrivilegedCause::Report(value) })
    }

    /// Refuses a token with which joining hosts would get privileged tasks, unless an admin creates the token. `target`
    /// is the group or the existing node that the token is for. The join is checked again, because the tasks may have
    /// changed by then.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks, and the group or node.
    pub fn check_joining(&self, target: TokenTarget) -> Result<(), ApiError> {
        if self.placement_role == PrincipalRole::Admin {
            return Ok(());
        }
        let fleet = &self.model.fleet;
        let profile = match target {
            // A host that joins the fleet without a group has no tasks yet.
            TokenTarget::Fleet => None,
            TokenTarget::Group(group) => fleet.profile_for_new_node(GroupId(group)),
            TokenTarget::Node(node) => fleet.profile(NodeId(node)).map(Arc::clone),
        };
        let tasks = profile.as_ref().map(|profile| profile.additional_privileged(None)).unwrap_or_default();
        if tasks.is_empty() {
            return Ok(());
        }
        Err(privileged_tasks_refusal(&tasks, &PrivilegedCause::Placed, &self.describe_joining(target)).detail(TOKEN_ADVICE))
    }

    /// Returns words for the hosts that join with a token, for an error message.
    fn describe_joining(&self, target: TokenTarget) -> String {
        match target {
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

    /// Returns the clusters of which a part must be unchanged at the commit. Otherwise two concurrent writes could
    /// together place a privileged task that neither of them places alone. One such case is two writes by callers who
    /// are not admins. Another case is a change of the release by any caller, and an entry of `primaries` for a node
    /// that does not exist yet.
    pub(super) fn guarded_clusters(&self) -> BTreeMap<ClusterId, ClusterGuard> {
        let mut clusters: BTreeMap<ClusterId, ClusterGuard> =
            self.clusters_with_new_release().into_iter().map(|cluster| (cluster, ClusterGuard::All)).collect();
        if self.placement_role == PrincipalRole::Admin {
            return clusters;
        }
        let (old_fleet, new_fleet) = (&self.context.full_model.fleet, &self.model.fleet);
        let nodes = self.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        for node in nodes.filter(|node| placement_inputs(old_fleet, *node) != placement_inputs(new_fleet, *node)) {
            clusters.extend(new_fleet.cluster_of_node(node).map(|cluster| (cluster, ClusterGuard::Levels)));
        }
        // A group that resolves only before the write, or only after it, has changed too.
        let is_changed = |group: &GroupId| match (old_fleet.resolved_group(*group), new_fleet.resolved_group(*group)) {
            (Ok(old_group), Ok(new_group)) => !new_group.has_same_placement(old_group),
            (old_group, new_group) => old_group.is_ok() || new_group.is_ok(),
        };
        for group in self.new_or_changed_groups().filter(is_changed) {
            clusters.extend(new_fleet.cluster_of_group(group).map(|cluster| (cluster, ClusterGuard::All)));
        }
        for (cluster, guard) in self.guarded_conditions() {
            let strictest = clusters.entry(cluster).or_default();
            *strictest = guard.max(*strictest);
        }
        clusters
    }

    /// Returns the existing clusters in which a group gets another release, and those that get another release from
    /// their template, even if they have no nodes yet.
    fn clusters_with_new_release(&self) -> BTreeSet<ClusterId> {
        let (old, new) = (&self.context.full_model.fleet, &self.model.fleet);
        let group_release = |fleet: &Fleet, group: GroupId| {
            let resolved_group = fleet.resolved_group(group).ok()?;
            Some(resolved_group.release.as_ref()?.value.name.clone())
        };
        let groups = self.new_or_changed_groups().filter(|group| group_release(old, *group) != group_release(new, *group));
        let by_groups = groups.filter_map(|group| new.cluster_of_group(group));
        let cluster_release = |fleet: &Fleet, cluster: ClusterId| {
            fleet.cluster(cluster).and_then(|cluster| fleet.cluster_release(cluster)).cloned()
        };
        let clusters = self.clusters_of_templates().into_iter();
        let by_templates = clusters.filter(|cluster| cluster_release(old, *cluster) != cluster_release(new, *cluster));
        // A new cluster is left out, because no concurrent write can have an entry in its `primaries`.
        by_groups.chain(by_templates).filter(|cluster| old.cluster(*cluster).is_some()).collect()
    }

    /// Returns the clusters of which a part must be unchanged at the commit, because conditions of privileged tasks may
    /// read it. This considers the written objects, not the affected nodes. A value that a node overrides affects the
    /// node only after another write removes the override.
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
            let clusters = self.new_or_changed_groups().filter_map(|id| fleet.cluster_of_group(id)).collect::<BTreeSet<_>>();
            guarded.extend(clusters.into_iter().filter(has_condition).map(|cluster| (cluster, ClusterGuard::All)));
        }
        guarded
    }
}

impl PrivilegedTasks {
    /// Returns the tasks that start, given all candidates with the outcome of their conditions. If the condition of any
    /// task is met, returns the tasks with a met condition, otherwise those with an undecided one. Returns `None` if
    /// there are no candidates.
    fn from_started(started: &[(&str, ConditionOutcome)]) -> Option<Self> {
        let highest = started.iter().map(|(_, outcome)| *outcome).max()?;
        let tasks = started.iter().filter(|(_, outcome)| *outcome == highest).map(|(id, _)| (*id).to_owned()).collect();
        Some(Self { tasks, cause: PrivilegedCause::Condition(highest) })
    }
}

fn task_set(model: &Model, node: NodeId) -> Option<Arc<TaskSet>> {
    model.resolve(node.0).resolved_node()?.task_set().cloned()
}

/// Returns the node's own values that decide which tasks it gets: its group, roles and tags.
fn placement_inputs(fleet: &Fleet, node: NodeId) -> Option<(Option<GroupId>, &[Name], &NodeTags)> {
    let spec = &fleet.node(node)?.spec;
    Some((spec.nodegroup, &*spec.roles, &spec.tags))
}

/// Returns the error for privileged tasks that only an admin may bring to a place. `place` is words for the nodes, and
/// `cause` is the reason why the tasks would run there.
fn privileged_tasks_refusal(tasks: &[impl AsRef<str>], cause: &PrivilegedCause, place: &str) -> ApiError {
    let (noun, verb, pronoun, conditions) =
        if tasks.len() == 1 { ("task", "is", "it", "its condition") } else { ("tasks", "are", "them", "their conditions") };
    let tasks = join_first(tasks.iter().map(AsRef::as_ref), MAX_NAMED_TASKS);
    let effect = match cause {
        PrivilegedCause::Placed => format!("places {pronoun} on {place}"),
        PrivilegedCause::Condition(ConditionOutcome::Undecided) => {
            format!("lets {pronoun} run on {place}, where this write leaves {conditions} undecided")
        }
        // Only tasks whose condition is met or undecided are listed, so the outcome is not `No`.
        PrivilegedCause::Condition(ConditionOutcome::Yes | ConditionOutcome::No) => {
            format!("lets {pronoun} run on {place}, where this write meets {conditions}")
        }
        PrivilegedCause::Report(value) => {
            format!("lets {pronoun} run on {place}, where after this write the host may meet {conditions} by reporting {value}")
        }
    };
    let message = format!("{noun} {tasks} {verb} privileged, and only an admin {effect}; nothing was changed");
    ApiError::new(ErrorType::AuthForbidden, message)
}
