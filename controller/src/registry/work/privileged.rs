//! Keeps privileged tasks from being placed, and from being started, by who is no admin.
//!
//! It is asked of what a write makes of the nodes that it reaches, and not of the fields that it writes: so there is no list of ways to
//! place a task, or to meet its condition, that could lack one. Taking a task away, and leaving it as it is, is free to all who may write.
//!
//! A task that was placed and one whose condition is met now are told apart only for the refusal. The second costs more: it is in no profile,
//! so nodes are resolved for it, but only those of profiles in which a privileged task has a condition.
//!
//! A condition that a report is to meet is asked of beforehand: nobody is asked when a report comes. So where a condition reads something that
//! is reported, who writes another value into what else it reads is asked, whichever of the two comes first, and so is who opens something to
//! reports (by `host_labels.accept`, or by taking away what a level says of a label, or that a trait is suppressed).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use stemma_core::finding::first_few;
use stemma_core::fleet::Fleet;
use stemma_core::name::Name;
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeTags, PrincipalRole};
use stemma_core::resolve::{Met, TaskSet};
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use crate::cache::Model;
use crate::records::enrolled::Bound;
use crate::registry::names::group_path;

/// How many tasks a refusal names.
const FEW: usize = 3;

/// What to do about a refusal.
const BY_AN_ADMIN: &str = "an admin makes this write, or the join token by which the host joins";

/// What to do where no token was made.
const BY_ANOTHER_TOKEN: &str = "a host that joins there gets what is privileged at once, whatever the condition says: an admin makes this token, \
    or you make one for a node group without the task and an admin moves the host";

/// What of a cluster must stay as it was when a write was decided.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Guard {
    /// Nothing.
    #[default]
    Nothing,
    /// What its levels give nodes.
    Levels,
    /// That, and its nodes.
    All,
}

/// Privileged tasks that a write brings to a node.
struct Brought {
    /// Their ids.
    tasks: Vec<String>,
    how: How,
}

/// How privileged tasks come to run.
enum How {
    /// They fall to the node now.
    Placed,
    /// They stand there, and their conditions give this now.
    Condition(Met),
    /// They stand there, and a report of this may meet their conditions.
    Report(String),
}

impl Work<'_> {
    /// Places nodes with the rights of another than who asks: of who made the token by which a host joins.
    pub fn place_as(&mut self, role: PrincipalRole) {
        self.places_as = role;
    }

    /// Refuses a write by which privileged tasks come to nodes, or begin to run there, unless an admin makes it.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks and the first of the nodes.
    pub(super) fn check_privileged(&self) -> Result<(), ApiError> {
        if self.places_as == PrincipalRole::Admin {
            return Ok(());
        }
        let reached = self.brought();
        let told: Vec<(&NodeId, &Brought)> = reached.iter().filter(|(node, _)| self.is_told_of(**node)).collect();
        let Some((first, brought)) = told.first().copied().or_else(|| reached.first_key_value()) else { return Ok(()) };
        let name = told.first().and_then(|(node, _)| self.model.fleet.node(**node)).map(|node| node.display_name());
        let at = match (&name, told.len()) {
            (Some(name), 1) => format!("node {name}"),
            (Some(name), all) => format!("node {name} and {} more", all - 1),
            (None, _) => "a node".to_owned(),
        };
        let refusal = forbidden(&brought.tasks, &brought.how, &at).detail(BY_AN_ADMIN);
        let refusal = match name {
            Some(name) => refusal.extra("object", json!(format!("node/{name}"))),
            None => refusal,
        };
        Err(match self.nearest_to_node(*first) {
            Some(written) => refusal.extra("written", json!(written)),
            None => refusal,
        })
    }

    /// The privileged tasks that the write brings to each node: those that are placed, where there are none those that begin to run, and
    /// else those that a report lets run.
    fn brought(&self) -> BTreeMap<NodeId, Brought> {
        let mut brought = self.opened();
        brought.extend(self.started());
        for node in self.reached() {
            let tasks = self.newly_placed(node);
            if !tasks.is_empty() {
                brought.insert(node, Brought { tasks, how: How::Placed });
            }
        }
        brought
    }

    /// The privileged tasks that come to a node.
    fn newly_placed(&self, node: NodeId) -> Vec<String> {
        let Some(profile) = self.model.fleet.profile(node).filter(|profile| !profile.privileged.is_empty()) else {
            return Vec::new();
        };
        let placed = profile.privileged_beyond(self.context.whole.fleet.profile(node).map(AsRef::as_ref));
        placed.into_iter().map(str::to_owned).collect()
    }

    /// The privileged tasks whose conditions let them run, or may, and did not so before the write.
    fn started(&self) -> BTreeMap<NodeId, Brought> {
        // All nodes as they come to be, and then those in question as they were: resolve remembers a group in one form at a time.
        let running: Vec<(NodeId, Arc<TaskSet>)> = self
            .reached()
            .filter(|node| self.model.fleet.profile(*node).is_some_and(|profile| profile.has_privileged_condition()))
            .filter_map(|node| Some((node, task_set(&self.model, node)?)))
            .filter(|(_, set)| !set.privileged_started_since(None).is_empty())
            .collect();
        let started = running.iter().filter_map(|(node, after)| {
            let before = task_set(self.context.whole, *node);
            Some((*node, Brought::started(&after.privileged_started_since(before.as_deref()))?))
        });
        started.collect()
    }

    /// The privileged tasks that do not run, and whose conditions a report may meet by what the write says.
    fn opened(&self) -> BTreeMap<NodeId, Brought> {
        let written = self.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        let below = self.refolded().flat_map(|group| self.model.fleet.nodes_of(group));
        let nodes: BTreeSet<NodeId> =
            written.chain(below).take_while(|_| self.is_awaited()).chain(self.reached()).collect();
        nodes.into_iter().filter_map(|node| Some((node, self.opened_on(node)?))).collect()
    }

    fn opened_on(&self, node: NodeId) -> Option<Brought> {
        let whole = self.context.whole;
        let mut opened = self.model.fleet.opened_since(&whole.fleet, node);
        // Who lets a task run that runs already has brought nothing.
        let set = (!opened.is_empty()).then(|| task_set(whole, node)).flatten();
        opened.retain(|open| !set.as_ref().is_some_and(|set| set.runs_privileged(open.definition)));
        let what = opened.first()?.what.clone();
        let tasks = opened.iter().filter(|open| open.what == what).map(|open| open.task.to_owned()).collect();
        Some(Brought { tasks, how: How::Report(what) })
    }

    /// Refuses a token by which hosts would join that get privileged tasks, unless an admin makes it: in a group, or in the place of a node
    /// that is there. It is asked again when a host joins: what they give may be something else by then.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks, and the group or node.
    pub fn check_joining(&self, bound: Bound) -> Result<(), ApiError> {
        if self.places_as == PrincipalRole::Admin {
            return Ok(());
        }
        let fleet = &self.model.fleet;
        let profile = match bound {
            Bound::Fleet => None,
            Bound::Group(group) => fleet.profile_of_joining(GroupId(group)),
            Bound::Node(node) => fleet.profile(NodeId(node)).map(Arc::clone),
        };
        let tasks = profile.as_ref().map(|profile| profile.privileged_beyond(None)).unwrap_or_default();
        if tasks.is_empty() {
            return Ok(());
        }
        Err(forbidden(&tasks, &How::Placed, &self.joining_at(bound)).detail(BY_ANOTHER_TOKEN))
    }

    /// The hosts that would join by a token, in words.
    fn joining_at(&self, bound: Bound) -> String {
        match bound {
            Bound::Fleet => "hosts that join".to_owned(),
            Bound::Group(group) => {
                let path = group_path(&self.model, GroupId(group)).unwrap_or_else(|| group.to_string());
                format!("hosts that join node group {path}")
            }
            Bound::Node(node) => {
                let name = self.model.fleet.node(NodeId(node)).map(|node| node.display_name());
                format!("a host that joins as node {}", name.unwrap_or_else(|| node.to_string()))
            }
        }
    }

    /// The clusters of which something must stay as it was when a write was decided. Two writes of different objects by who is no admin, of
    /// which neither places a privileged task, could do it together. So could a release that anybody gives, and the name of a primary that is
    /// still to come.
    pub(super) fn guarded(&self) -> BTreeMap<ClusterId, Guard> {
        let mut clusters: BTreeMap<ClusterId, Guard> =
            self.with_another_release().into_iter().map(|cluster| (cluster, Guard::All)).collect();
        if self.places_as == PrincipalRole::Admin {
            return clusters;
        }
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let nodes = self.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        for node in nodes.filter(|node| placed_by(before, *node) != placed_by(after, *node)) {
            clusters.extend(after.cluster_of_node(node).map(|cluster| (cluster, Guard::Levels)));
        }
        let is_another = |group: &GroupId| match (before.fold(*group), after.fold(*group)) {
            (Ok(before), Ok(after)) => !after.places_like(before),
            (before, after) => before.is_ok() || after.is_ok(),
        };
        for group in self.refolded().filter(is_another) {
            clusters.extend(after.cluster_of_group(group).map(|cluster| (cluster, Guard::All)));
        }
        for (cluster, guard) in self.guarded_conditions() {
            let known = clusters.entry(cluster).or_default();
            *known = guard.max(*known);
        }
        clusters
    }

    /// The clusters in which another release is run, by a group or by the cluster itself, also where no node is there yet.
    fn with_another_release(&self) -> BTreeSet<ClusterId> {
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let of_group = |fleet: &Fleet, group: GroupId| {
            let fold = fleet.fold(group).ok()?;
            Some(fold.release.as_ref()?.value.name.clone())
        };
        let groups = self.refolded().filter(|group| of_group(before, *group) != of_group(after, *group));
        let of_groups = groups.filter_map(|group| after.cluster_of_group(group));
        let release = |fleet: &Fleet, cluster: ClusterId| {
            fleet.cluster(cluster).and_then(|cluster| fleet.cluster_release(cluster)).cloned()
        };
        let clusters = self.below_templates().into_iter();
        let of_clusters = clusters.filter(|cluster| release(before, *cluster) != release(after, *cluster));
        // A cluster that is new was named by nobody.
        of_groups.chain(of_clusters).filter(|cluster| before.cluster(*cluster).is_some()).collect()
    }

    /// The clusters of which something must stay as it was because conditions of privileged tasks may read it. It is asked of what is
    /// written and not of what is reached: what a node overrides reaches it only once another write takes the override away.
    fn guarded_conditions(&self) -> Vec<(ClusterId, Guard)> {
        let fleets = [&self.context.whole.fleet, &self.model.fleet];
        let mut guarded = Vec::new();
        for fleet in fleets {
            let nodes = self.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
            for node in nodes {
                let Some(cluster) = fleet.cluster_of_node(node) else { continue };
                if fleet.has_privileged_look_up(cluster) {
                    guarded.push((cluster, Guard::All));
                } else if fleet.profile(node).is_some_and(|profile| profile.has_privileged_condition()) {
                    guarded.push((cluster, Guard::Levels));
                }
            }
            let has_condition =
                |cluster: &ClusterId| fleet.profiles_of(*cluster).any(|profile| profile.has_privileged_condition());
            let below: BTreeSet<ClusterId> =
                self.refolded().filter_map(|group| fleet.cluster_of_group(group)).collect();
            guarded.extend(below.into_iter().filter(has_condition).map(|cluster| (cluster, Guard::All)));
        }
        guarded
    }
}

impl Brought {
    /// The tasks that begin to run: those whose conditions are met, or else those of which nobody knows; `None`: there are none.
    fn started(started: &[(&str, Met)]) -> Option<Self> {
        let most = started.iter().map(|(_, met)| *met).max()?;
        let tasks = started.iter().filter(|(_, met)| *met == most).map(|(id, _)| (*id).to_owned()).collect();
        Some(Self { tasks, how: How::Condition(most) })
    }
}

fn task_set(model: &Model, node: NodeId) -> Option<Arc<TaskSet>> {
    model.resolve(node.0).answer()?.task_set().cloned()
}

/// What of a node's own decides which tasks fall to it.
fn placed_by(fleet: &Fleet, node: NodeId) -> Option<(Option<GroupId>, &[Name], &NodeTags)> {
    let spec = &fleet.node(node)?.spec;
    Some((spec.nodegroup, &*spec.roles, &spec.tags))
}

fn forbidden(tasks: &[impl AsRef<str>], how: &How, at: &str) -> ApiError {
    let (word, are, them, conditions) = if tasks.len() == 1 {
        ("task", "is", "it", "its condition")
    } else {
        ("tasks", "are", "them", "their conditions")
    };
    let tasks = first_few(tasks.iter().map(AsRef::as_ref), FEW);
    let brings = match how {
        How::Placed => format!("places {them} on {at}"),
        How::Condition(Met::Undecided) => {
            format!("lets {them} run on {at}, where this write leaves {conditions} undecided")
        }
        How::Condition(Met::Yes | Met::No) => format!("lets {them} run on {at}, where this write meets {conditions}"),
        How::Report(what) => {
            format!("lets {them} run on {at}, where by this write the host may meet {conditions} with {what}")
        }
    };
    let message = format!("{word} {tasks} {are} privileged, and an admin alone {brings}; nothing was changed");
    ApiError::new(ErrorType::AuthForbidden, message)
}
