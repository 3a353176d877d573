//! The pre-flight check of a cluster: problems of the cluster as a whole, which no single resolved node can show.
//!
//! The results are only findings, because such a state may be intended for a while. A tag that no node holds is normal
//! in a new cluster, and an operator may be about to remove a surplus role. Other code rejects what can never work,
//! such as a release that does not compile or tasks that wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::level::level_findings;
use super::primary::primaries_edit_hint;
use crate::finding::{Finding, Rule, Severity, rule};
use crate::fleet::{Fleet, PrimaryRejection, ResolvedGroup};
use crate::graph::{NodeClass, pseudo_master};
use crate::labels::LabelLayer;
use crate::name::{Name, TagName};
use crate::object::{Cluster, ClusterId, GroupId, LevelId, Node, RoleSpec};
use crate::release::{CompiledRelease, Profile, TaskIndex};
use crate::requirement::Requirement;
use crate::unimplemented::{self, UnimplementedFields};

/// Returns the findings about a cluster, sorted, each once.
///
/// Every write calls this function for the clusters that the write affects. To be fast, the function checks the
/// profiles, which are few, and only those nodes whose profile may have a problem.
pub fn cluster_findings(fleet: &Fleet, id: ClusterId) -> Vec<Finding> {
    let Some(cluster) = fleet.cluster(id) else { return Vec::new() };
    let groups: Vec<&Arc<ResolvedGroup>> = fleet.resolved_groups(id).collect();
    let mut checker = ClusterCheck { fleet, cluster, object: format!("cluster/{}", cluster.meta.name), findings: Vec::new() };
    let releases = releases(&groups);
    let has_master = fleet.profiles_in_cluster(id).any(|profile| profile.key.is_master);
    // A release may place tasks on `master`, the controller's own host. Without a node of that name, the tasks are
    // checked for a pseudo node.
    let master_classes: Vec<NodeClass> = releases.iter().filter(|_| !has_master).filter_map(pseudo_master).collect();
    if !master_classes.is_empty() {
        let message = "tasks are placed on master, the controller's own host, and the cluster has no node of that name";
        checker.warn(rule::MASTER_ABSENT, checker.object.clone(), message.to_owned());
    }
    checker.check_levels(&groups);
    checker.check_primaries();
    checker.check_changed_roles(&releases);
    checker.check_roles(&groups);
    // In a cluster without nodes no task is placed yet, and a finding for each task would help nobody.
    if fleet.profiles_in_cluster(id).any(|profile| !profile.key.is_master) {
        let master_classes = master_classes.iter().map(|class| &class.profile);
        let profiles: Vec<&Profile> = fleet.profiles_in_cluster(id).chain(master_classes).map(|profile| &**profile).collect();
        for release in &releases {
            checker.check_unheld_tags(release, &profiles);
            checker.check_unplaced_tasks(release, &profiles);
            checker.check_limits(release, &groups);
        }
    }
    checker.findings.sort();
    checker.findings.dedup();
    checker.findings
}

/// The check of one cluster, with the findings so far. `object` is the name of the cluster in findings.
struct ClusterCheck<'a> {
    fleet: &'a Fleet,
    cluster: &'a Arc<Cluster>,
    object: String,
    findings: Vec<Finding>,
}

impl ClusterCheck<'_> {
    /// Adds a finding.
    fn warn(&mut self, rule: Rule, object: impl Into<String>, message: String) {
        self.findings.push(Finding::new(rule, object, message));
    }

    /// Adds the findings about the levels above the nodes: `null` labels where nothing is merged, fields that are not
    /// implemented, labels that would be the same variable of `labels.env`, and requirements that resemble an operator.
    fn check_levels(&mut self, groups: &[&Arc<ResolvedGroup>]) {
        let cluster = Arc::clone(self.cluster);
        let (fleet, id) = (self.fleet, ClusterId(cluster.meta.uuid));
        self.check_level(&self.object.clone(), &cluster.spec.inherited.labels, &cluster.spec);
        self.findings.extend(level_findings(fleet, LevelId::Cluster(id)));
        self.findings.extend(fleet.groups_in_cluster(id).flat_map(|id| level_findings(fleet, LevelId::Group(id))));
        for resolved_group in groups {
            let group = &resolved_group.group.spec;
            self.check_level(&format!("nodegroup/{}", resolved_group.path()), &group.inherited.labels, group);
            self.check_requirements(resolved_group);
        }
        if let Some(template) = cluster.spec.cluster_template.and_then(|id| self.fleet.template(id)) {
            let object = format!("clustertemplate/{}", template.meta.name);
            self.check_level(&object, &template.spec.inherited.labels, &template.spec);
        }
    }

    /// Adds the findings about what has no effect at one level: fields that are not implemented, and `null` labels
    /// where nothing is merged.
    fn check_level(&mut self, object: &str, labels: &LabelLayer, spec: &impl UnimplementedFields) {
        self.findings.extend(unimplemented::findings(object, spec));
        for key in labels.ineffective_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            self.warn(rule::LABEL_IDLE_NULL, object, message);
        }
    }

    /// Adds the findings about entries of the cluster's `primaries` that have no effect, and about primaries whose node
    /// is parked.
    fn check_primaries(&mut self) {
        let id = ClusterId(self.cluster.meta.uuid);
        for (tag, node) in &self.cluster.spec.primaries {
            if let Some(rejection) = self.fleet.primary_rejection(self.cluster, tag, node).map(PrimaryRejection::redacted) {
                let holder_text = match self.fleet.holder(id, tag.as_str()) {
                    Some(_) => "its present holder keeps it, or the first node by name holds it",
                    None => "nobody holds it",
                };
                let message = format!(
                    "primaries: {tag} names {node}, which is ignored: {}; {holder_text}; name a node that has it there, or leave {tag} \
                     out",
                    rejection.reason(tag, node)
                );
                let mut finding = Finding::new(rule::PRIMARY_UNKNOWN, self.object.clone(), message);
                // A release or node that is only missing may be created later, so it is a warning.
                if rejection.is_permanent() {
                    finding.severity = Severity::Error;
                }
                self.findings.push(finding);
            }
        }
        let fleet = self.fleet;
        for (tag, node) in fleet.holders(id) {
            let Some(node) = fleet.node(node).filter(|node| fleet.parked_by(node).is_some()) else { continue };
            // While `primaries` names a node for the tag, `stemma primary set` of another node is refused.
            let remedy = match fleet.named_primary(id, tag.as_str()) {
                Some(_) => primaries_edit_hint(self.cluster, tag.as_str()),
                None => format!("stemma primary set {} {tag} NODE", self.cluster.meta.name),
            };
            let message = format!(
                "{} holds {tag} as primary and is parked: it keeps the tag; to give it to another node: {remedy}",
                node.display_name()
            );
            self.warn(rule::PRIMARY_PARKED, self.object.clone(), message);
        }
    }

    /// Adds the findings about requirements whose text begins like an operator but is compared as a plain text.
    fn check_requirements(&mut self, resolved_group: &ResolvedGroup) {
        for requirement in &resolved_group.group.spec.requirements.0 {
            if let Requirement::Field { expression, .. } = requirement
                && expression.resembles_operator()
            {
                let message = format!(
                    "requirement {requirement} compares with this exact text: an operator must be the first word, as in `>= 3`"
                );
                self.warn(rule::REQUIREMENT_TEXT, format!("nodegroup/{}", resolved_group.path()), message);
            }
        }
    }

    /// Adds the findings about roles that no release of the cluster's groups declares. Checks the roles that the
    /// cluster changes, and the roles that the cluster's own tags name.
    fn check_changed_roles(&mut self, releases: &[Arc<CompiledRelease>]) {
        if releases.is_empty() {
            return;
        }
        let is_declared = |role: &Name| releases.iter().any(|release| release.roles.contains_key(role));
        let cluster = Arc::clone(self.cluster);
        for role in cluster.spec.roles.keys().filter(|role| !is_declared(role)) {
            let message = format!("roles: {role} is declared by no release of its groups: is its name misspelled?");
            self.warn(rule::ROLE_UNKNOWN, self.object.clone(), message);
        }
        for (tag, spec) in &cluster.spec.tags {
            let Some(role) = spec.role.as_ref().filter(|role| !is_declared(role)) else { continue };
            if !cluster.spec.roles.contains_key(role) {
                let message = format!("tags: {tag} should be produced by role {role}, which no release of its groups declares");
                self.warn(rule::ROLE_UNKNOWN, self.object.clone(), message);
            }
        }
    }

    /// Adds the findings about undeclared roles, conflicting roles and undeclared tags. Nodes of one profile have the
    /// same roles and tags, so only the nodes of profiles with such a problem are checked. Tags that extensions decided
    /// are checked for every node.
    fn check_roles(&mut self, groups: &[&Arc<ResolvedGroup>]) {
        for resolved_group in groups {
            self.check_decided_tags(resolved_group);
            let group = format!("nodegroup/{}", resolved_group.path());
            self.findings.extend(undeclared_roles(&group, resolved_group, &resolved_group.group.spec.roles));
            for (profile, nodes) in self.fleet.profile_nodes_in_group(GroupId(resolved_group.group.meta.uuid)) {
                if !may_have_findings(resolved_group, profile) {
                    continue;
                }
                for node in nodes.iter().filter_map(|id| self.fleet.node(*id)) {
                    let object = format!("node/{}", node.display_name());
                    self.findings.extend(undeclared_roles(&object, resolved_group, &node.spec.roles));
                    self.check_manual_tags(&object, resolved_group, node);
                    self.check_conflicts(&object, resolved_group, &profile.key.roles);
                }
            }
        }
    }

    /// Adds the findings about tags that an operator assigned to a node and that neither the release nor the cluster
    /// declares.
    fn check_manual_tags(&mut self, object: &str, resolved_group: &ResolvedGroup, node: &Node) {
        for tag in node.spec.tags.assigned.members().filter(|tag| !is_tag_declared(resolved_group, tag)) {
            let message = format!("is assigned tag {tag}, which is declared neither in the release nor in the cluster");
            self.warn(rule::TAG_UNKNOWN, object, message);
        }
    }

    /// Adds the findings about tags that an extension (a program next to the controller) decided for nodes of a group,
    /// and that are ignored because neither the release nor the cluster declares them any more.
    fn check_decided_tags(&mut self, resolved_group: &ResolvedGroup) {
        if resolved_group.role_table.as_ref().is_none_or(|table| table.deciders().next().is_none()) {
            return;
        }
        for node in self.fleet.nodes_in_group(GroupId(resolved_group.group.meta.uuid)).filter_map(|id| self.fleet.node(id)) {
            for (role, decided) in &node.spec.tags.decided {
                for tag in decided.tags.iter().filter(|tag| !is_tag_declared(resolved_group, tag)) {
                    let message = format!(
                        "extension {} gives it tag {tag} for role {role}, which is declared neither in the release nor in the cluster: \
                         it is ignored, and the next write of the node removes it",
                        decided.extension
                    );
                    self.findings.push(Finding::new(rule::TAG_UNKNOWN, format!("node/{}", node.display_name()), message));
                }
            }
        }
    }

    /// Adds a finding for each pair of a node's roles of which the first lists the second in its `conflicts`. This
    /// field comes from Fuel, a deployment tool. Conflicts are reported but never enforced.
    fn check_conflicts(&mut self, object: &str, resolved_group: &ResolvedGroup, roles: &[Name]) {
        for (role, other) in role_conflicts(resolved_group, roles) {
            let message = format!("has role {role} and role {other}, which conflict");
            self.warn(rule::ROLE_CONFLICT, object, message);
        }
    }

    /// Adds a finding for each tag that a release declares and that no node has.
    fn check_unheld_tags(&mut self, release: &CompiledRelease, profiles: &[&Profile]) {
        let held_tags: BTreeSet<&TagName> = profiles.iter().flat_map(|profile| &profile.key.tags).collect();
        for tag in release.tags.keys().filter(|tag| !held_tags.contains(tag)) {
            let message = format!("no node holds tag {tag}, which release {} declares", release.name);
            self.warn(rule::TAG_UNHELD, format!("{} tag/{tag}", self.object), message);
        }
    }

    /// Adds a finding for each task of a release that is placed on no node. Groups of tasks and stages are omitted,
    /// because they run on no node. So are tasks that only `on_unassign` names, because they need no placement.
    fn check_unplaced_tasks(&mut self, release: &CompiledRelease, profiles: &[&Profile]) {
        let same_release = profiles.iter().filter(|profile| profile.release.hash == release.hash);
        let placed: BTreeSet<TaskIndex> = same_release.flat_map(|profile| profile.all_tasks()).collect();
        // A group of the cluster may run another release, in which a task of that id is placed on nodes.
        let other_placement = |id: &str| {
            let other_profiles = profiles.iter().filter(|profile| profile.release.hash != release.hash);
            let mut found =
                other_profiles.filter(|other| other.release.task_index(id).is_some_and(|ix| other.all_tasks().contains(&ix)));
            found.next().map_or_else(String::new, |other| format!("; the task of this id in release {} does", other.release.name))
        };
        let clean_ups = release.clean_up_tasks();
        for (ix, task) in (0..).map(TaskIndex).zip(&release.tasks) {
            if !placed.contains(&ix) && !clean_ups.contains(&ix) && !task.task.is_group() && !task.task.is_stage() {
                let (id, placement) = (&task.task.id, release.placement_text(ix));
                let message = format!(
                    "task {id} of release {} runs on no node: it is placed by {placement}{}",
                    release.name,
                    other_placement(id)
                );
                self.warn(rule::TASK_UNPLACED, format!("{} task/{}", self.object, task.task.id), message);
            }
        }
    }

    /// Adds a finding for each role that fewer or more nodes have than its `limits` allow. The limits have the format
    /// of Fuel, a deployment tool. Only plain numbers are checked, because expressions of Fuel are not evaluated.
    fn check_limits(&mut self, release: &CompiledRelease, groups: &[&Arc<ResolvedGroup>]) {
        for (role, spec) in &release.roles {
            let (min, max) = (role_limit(spec, "min"), role_limit(spec, "max"));
            if min.is_none() && max.is_none() {
                continue;
            }
            let count: usize = groups.iter().map(|resolved_group| self.count_holders(resolved_group, role)).sum();
            if min.is_some_and(|minimum| (count as u64) < minimum) || max.is_some_and(|maximum| (count as u64) > maximum) {
                let bounds = [min.map(|bound| format!("at least {bound}")), max.map(|bound| format!("at most {bound}"))];
                let bounds = bounds.into_iter().flatten().collect::<Vec<_>>().join(" and ");
                let message = format!("role {role} requires {bounds} of the cluster's nodes, and {count} have it");
                self.warn(rule::ROLE_LIMIT, format!("{} role/{role}", self.object), message);
            }
        }
    }

    /// Returns the number of nodes of a group that have a role. Without a release the nodes have no profile, so each
    /// node is checked.
    fn count_holders(&self, resolved_group: &ResolvedGroup, role: &Name) -> usize {
        let group = GroupId(resolved_group.group.meta.uuid);
        if resolved_group.release.is_some() {
            let placed = self.fleet.profile_nodes_in_group(group).filter(|(profile, _)| profile.key.roles.contains(role));
            return placed.map(|(_, nodes)| nodes.len()).sum();
        }
        let nodes = self.fleet.nodes_in_group(group).filter_map(|id| self.fleet.node(id));
        nodes.filter(|node| resolved_group.roles.contains(role) || node.spec.roles.contains(role)).count()
    }
}

/// Returns the findings about roles of a group or node that its release does not declare, except those that existed
/// before a change.
pub fn newly_undeclared(fleet_before: &Fleet, fleet_after: &Fleet, id: LevelId) -> Vec<Finding> {
    let undeclared = |fleet: &Fleet| match id {
        LevelId::Group(id) => {
            let group = fleet.resolved_group(id).ok()?;
            Some(undeclared_roles(&format!("nodegroup/{}", group.path()), group, &group.group.spec.roles))
        }
        LevelId::Node(id) => {
            let node = fleet.node(id)?;
            let object = format!("node/{}", node.display_name());
            Some(undeclared_roles(&object, fleet.resolved_parent(&node.spec)?, &node.spec.roles))
        }
        LevelId::Template(_) | LevelId::Cluster(_) => None,
    };
    let (old, mut findings) = (undeclared(fleet_before).unwrap_or_default(), undeclared(fleet_after).unwrap_or_default());
    findings.retain(|finding| !old.contains(finding));
    findings
}

/// Returns the findings about roles of a group or node that its release does not declare.
fn undeclared_roles(object: &str, resolved_group: &ResolvedGroup, roles: &[Name]) -> Vec<Finding> {
    let Some(release) = &resolved_group.release else { return Vec::new() };
    let undeclared = roles.iter().filter(|role| !is_role_declared(resolved_group, role));
    let finding = |role: &Name| {
        let message = format!("has role {role}, which release {} does not declare: it produces no tag", release.value.name);
        Finding::new(rule::ROLE_UNKNOWN, object, message)
    };
    undeclared.map(finding).collect()
}

/// Returns whether a node of this profile may have a finding about its roles or tags.
fn may_have_findings(resolved_group: &ResolvedGroup, profile: &Profile) -> bool {
    let key = &profile.key;
    key.roles.iter().any(|role| !is_role_declared(resolved_group, role))
        || key.tags.iter().any(|tag| !is_tag_declared(resolved_group, tag))
        || role_conflicts(resolved_group, &key.roles).next().is_some()
}

/// Returns whether the release of a group declares a role. Without a release, any role counts as declared.
fn is_role_declared(resolved_group: &ResolvedGroup, role: &Name) -> bool {
    resolved_group.role_table.as_ref().is_none_or(|table| table.has_role(role.as_str()))
}

/// Returns whether the release or the cluster declares a tag, or some role produces it. Without a release, any tag
/// counts as declared.
fn is_tag_declared(resolved_group: &ResolvedGroup, tag: &TagName) -> bool {
    resolved_group.role_table.as_ref().is_none_or(|table| table.is_declared_or_produced(tag.as_str()))
}

/// Returns the pairs of these roles of which the first lists the second in its `conflicts`, by the group's release.
fn role_conflicts<'a>(resolved_group: &'a ResolvedGroup, roles: &'a [Name]) -> impl Iterator<Item = (&'a Name, &'a Name)> {
    let release = resolved_group.release.as_ref().map(|release| &release.value);
    let declared = roles.iter().filter_map(move |role| Some((role, release?.roles.get(role)?)));
    let is_present = |other: &&Name| roles.contains(other);
    declared.flat_map(move |(role, spec)| spec.conflicts.iter().filter(is_present).map(move |other| (role, other)))
}

/// Returns the limit `name` (`min` or `max`) of a role on the number of its nodes. `None` if the limit is absent or is
/// not a plain number.
fn role_limit(spec: &RoleSpec, name: &str) -> Option<u64> {
    spec.limits.get(name).and_then(Value::as_u64)
}

/// Returns the releases of these groups, each once. Two releases with the same content and different names are both
/// returned.
fn releases(groups: &[&Arc<ResolvedGroup>]) -> Vec<Arc<CompiledRelease>> {
    let group_releases = groups.iter().filter_map(|resolved_group| resolved_group.release.as_ref());
    let releases: BTreeMap<_, _> = group_releases.map(|release| (&release.value.name, Arc::clone(&release.value))).collect();
    releases.into_values().collect()
}
