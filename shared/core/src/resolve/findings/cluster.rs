//! The pre-flight check of a cluster: problems of the cluster as a whole, which no single resolved node can show.
//!
//! The results are findings only. A tag that no node holds is normal in a new cluster, and a surplus role may be about
//! to be removed. What is impossible is an error elsewhere (a release that does not compile, a placement with a cycle).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::level::level_findings;
use super::primary::rename_hint;
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
/// Every write calls this for the clusters that it reaches. So it checks the profiles, which are few, and only those
/// nodes about which something may be found.
pub fn cluster_findings(fleet: &Fleet, id: ClusterId) -> Vec<Finding> {
    let Some(cluster) = fleet.cluster(id) else { return Vec::new() };
    let groups: Vec<&Arc<ResolvedGroup>> = fleet.resolved_groups(id).collect();
    let mut check = ClusterCheck { fleet, cluster, object: format!("cluster/{}", cluster.meta.name), findings: Vec::new() };
    let releases = releases(&groups);
    let has_master = fleet.profiles_in_cluster(id).any(|profile| profile.key.is_master);
    let pseudo: Vec<NodeClass> = releases.iter().filter(|_| !has_master).filter_map(pseudo_master).collect();
    if !pseudo.is_empty() {
        let message = "tasks are placed on master, the controller's own host, and the cluster has no node of that name";
        check.warn(rule::MASTER_ABSENT, check.object.clone(), message.to_owned());
    }
    check.check_levels(&groups);
    check.check_primaries();
    check.check_changed_roles(&releases);
    check.check_roles(&groups);
    // In a cluster without nodes no task is placed yet, and a finding for each task would help nobody.
    if fleet.profiles_in_cluster(id).any(|profile| !profile.key.is_master) {
        let pseudo = pseudo.iter().map(|class| &class.profile);
        let profiles: Vec<&Profile> = fleet.profiles_in_cluster(id).chain(pseudo).map(|profile| &**profile).collect();
        for release in &releases {
            check.check_unheld_tags(release, &profiles);
            check.check_unplaced_tasks(release, &profiles);
            check.check_limits(release, &groups);
        }
    }
    check.findings.sort();
    check.findings.dedup();
    check.findings
}

/// The check of one cluster, with the findings so far.
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

    /// Finds what has no effect at the levels above the nodes: `null` where nothing is merged, fields that are not
    /// implemented, and labels that would get the same variable.
    fn check_levels(&mut self, groups: &[&Arc<ResolvedGroup>]) {
        let cluster = Arc::clone(self.cluster);
        let (fleet, id) = (self.fleet, ClusterId(cluster.meta.uuid));
        self.check_level(&self.object.clone(), &cluster.spec.inherited.labels, &cluster.spec);
        self.findings.extend(level_findings(fleet, LevelId::Cluster(id)));
        self.findings.extend(fleet.groups_in_cluster(id).flat_map(|id| level_findings(fleet, LevelId::Group(id))));
        for resolved in groups {
            let group = &resolved.group.spec;
            self.check_level(&format!("nodegroup/{}", resolved.path()), &group.inherited.labels, group);
            self.check_requirements(resolved);
        }
        if let Some(template) = cluster.spec.cluster_template.and_then(|id| self.fleet.template(id)) {
            let object = format!("clustertemplate/{}", template.meta.name);
            self.check_level(&object, &template.spec.inherited.labels, &template.spec);
        }
    }

    /// Finds what has no effect at one level: fields that are not implemented, and `null` labels.
    fn check_level(&mut self, object: &str, labels: &LabelLayer, spec: &impl UnimplementedFields) {
        self.findings.extend(unimplemented::findings(object, spec));
        for key in labels.ineffective_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            self.warn(rule::LABEL_IDLE_NULL, object, message);
        }
    }

    /// Finds entries of the cluster's `primaries` that have no effect, and primaries whose node is parked.
    fn check_primaries(&mut self) {
        let id = ClusterId(self.cluster.meta.uuid);
        for (tag, node) in &self.cluster.spec.primaries {
            if let Some(why) = self.fleet.primary_rejection(self.cluster, tag, node).map(PrimaryRejection::redacted) {
                let held = match self.fleet.holder(id, tag.as_str()) {
                    Some(_) => "its present holder keeps it, or the first node by name holds it",
                    None => "nobody holds it",
                };
                let message = format!(
                    "primaries: {tag} names {node}, which is ignored: {}; {held}; name a node that has it there, or leave {tag} \
                     out",
                    why.reason(tag, node)
                );
                let mut finding = Finding::new(rule::PRIMARY_UNKNOWN, self.object.clone(), message);
                if why.is_permanent() {
                    finding.severity = Severity::Error;
                }
                self.findings.push(finding);
            }
        }
        let fleet = self.fleet;
        for (tag, node) in fleet.holders(id) {
            let Some(node) = fleet.node(node).filter(|node| fleet.parked_by(node).is_some()) else { continue };
            // A choice of a primary is refused while the cluster's manifest names one.
            let how = match fleet.named_primary(id, tag.as_str()) {
                Some(_) => rename_hint(self.cluster, tag.as_str()),
                None => format!("stemma primary set {} {tag} NODE", self.cluster.meta.name),
            };
            let message = format!(
                "{} holds {tag} as primary and is parked: it keeps the tag; to give it to another node: {how}",
                node.display_name()
            );
            self.warn(rule::PRIMARY_PARKED, self.object.clone(), message);
        }
    }

    /// Finds requirements whose text begins like an operator, and is compared as a text.
    fn check_requirements(&mut self, resolved: &ResolvedGroup) {
        for requirement in &resolved.group.spec.requirements.0 {
            if let Requirement::Field { expression, .. } = requirement
                && expression.resembles_operator()
            {
                let message = format!(
                    "requirement {requirement} compares with this exact text: an operator must be the first word, as in `>= 3`"
                );
                self.warn(rule::REQUIREMENT_TEXT, format!("nodegroup/{}", resolved.path()), message);
            }
        }
    }

    /// Finds roles that no release of the cluster's groups declares, among the roles that the cluster changes and those
    /// that its tags name.
    fn check_changed_roles(&mut self, releases: &[Arc<CompiledRelease>]) {
        if releases.is_empty() {
            return;
        }
        let declared = |role: &Name| releases.iter().any(|release| release.roles.contains_key(role));
        let cluster = Arc::clone(self.cluster);
        for role in cluster.spec.roles.keys().filter(|role| !declared(role)) {
            let message = format!("roles: {role} is declared by no release of its groups: is its name misspelled?");
            self.warn(rule::ROLE_UNKNOWN, self.object.clone(), message);
        }
        for (tag, spec) in &cluster.spec.tags {
            let Some(role) = spec.role.as_ref().filter(|role| !declared(role)) else { continue };
            if !cluster.spec.roles.contains_key(role) {
                let message = format!("tags: {tag} should be produced by role {role}, which no release of its groups declares");
                self.warn(rule::ROLE_UNKNOWN, self.object.clone(), message);
            }
        }
    }

    /// Finds undeclared roles, conflicting roles, and assigned tags that have no effect. Nodes of one profile have the
    /// same roles and tags, so only the nodes of a profile that has such a problem are checked.
    fn check_roles(&mut self, groups: &[&Arc<ResolvedGroup>]) {
        for resolved in groups {
            self.check_decided_tags(resolved);
            let group = format!("nodegroup/{}", resolved.path());
            self.findings.extend(undeclared_roles(&group, resolved, &resolved.group.spec.roles));
            for (profile, nodes) in self.fleet.profile_nodes_in_group(GroupId(resolved.group.meta.uuid)) {
                if !may_have_findings(resolved, profile) {
                    continue;
                }
                for node in nodes.iter().filter_map(|id| self.fleet.node(*id)) {
                    let object = format!("node/{}", node.display_name());
                    self.findings.extend(undeclared_roles(&object, resolved, &node.spec.roles));
                    self.check_manual_tags(&object, resolved, node);
                    self.check_conflicts(&object, resolved, &profile.key.roles);
                }
            }
        }
    }

    /// Finds tags that an operator assigned to a node and that nothing declares.
    fn check_manual_tags(&mut self, object: &str, resolved: &ResolvedGroup, node: &Node) {
        for tag in node.spec.tags.assigned.members().filter(|tag| !is_tag_declared(resolved, tag)) {
            let message = format!("is assigned tag {tag}, which is declared neither in the release nor in the cluster");
            self.warn(rule::TAG_UNKNOWN, object, message);
        }
    }

    /// Finds tags that an extension decided and that are ignored, because nothing declares them any more.
    fn check_decided_tags(&mut self, resolved: &ResolvedGroup) {
        if resolved.role_table.as_ref().is_none_or(|table| table.deciders().next().is_none()) {
            return;
        }
        for node in self.fleet.nodes_in_group(GroupId(resolved.group.meta.uuid)).filter_map(|id| self.fleet.node(id)) {
            for (role, decided) in &node.spec.tags.decided {
                for tag in decided.tags.iter().filter(|tag| !is_tag_declared(resolved, tag)) {
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

    /// Finds violations of Fuel's `conflicts` of roles, which are stored and never enforced.
    fn check_conflicts(&mut self, object: &str, resolved: &ResolvedGroup, roles: &[Name]) {
        for (role, other) in role_conflicts(resolved, roles) {
            let message = format!("has role {role} and role {other}, which conflict");
            self.warn(rule::ROLE_CONFLICT, object, message);
        }
    }

    /// Finds tags of a release that no node has.
    fn check_unheld_tags(&mut self, release: &CompiledRelease, profiles: &[&Profile]) {
        let held_tags: BTreeSet<&TagName> = profiles.iter().flat_map(|profile| &profile.key.tags).collect();
        for tag in release.tags.keys().filter(|tag| !held_tags.contains(tag)) {
            let message = format!("no node holds tag {tag}, which release {} declares", release.name);
            self.warn(rule::TAG_UNHELD, format!("{} tag/{tag}", self.object), message);
        }
    }

    /// Finds tasks of a release that are placed on no node. Groups of tasks and stages run nowhere, so they do not
    /// count.
    fn check_unplaced_tasks(&mut self, release: &CompiledRelease, profiles: &[&Profile]) {
        let same_release = profiles.iter().filter(|profile| profile.release.hash == release.hash);
        let placed: BTreeSet<TaskIndex> = same_release.flat_map(|profile| profile.all_tasks()).collect();
        // A group of the cluster may run another release, in which a task of that id is placed on nodes.
        let elsewhere = |id: &str| {
            let others = profiles.iter().filter(|profile| profile.release.hash != release.hash);
            let mut having =
                others.filter(|other| other.release.task_index(id).is_some_and(|ix| other.all_tasks().contains(&ix)));
            having.next().map_or_else(String::new, |other| format!("; that of release {} does", other.release.name))
        };
        for (ix, task) in (0..).map(TaskIndex).zip(&release.tasks) {
            if !placed.contains(&ix) && !task.task.is_group() && !task.task.is_stage() {
                let (id, placement) = (&task.task.id, release.placement_text(ix));
                let message = format!(
                    "task {id} of release {} runs on no node: it is placed by {placement}{}",
                    release.name,
                    elsewhere(id)
                );
                self.warn(rule::TASK_UNPLACED, format!("{} task/{}", self.object, task.task.id), message);
            }
        }
    }

    /// Finds violations of Fuel's `limits` of roles. Only plain numbers are checked. Limits that depend on Fuel's
    /// settings are not evaluated.
    fn check_limits(&mut self, release: &CompiledRelease, groups: &[&Arc<ResolvedGroup>]) {
        for (role, spec) in &release.roles {
            let (min, max) = (role_limit(spec, "min"), role_limit(spec, "max"));
            if min.is_none() && max.is_none() {
                continue;
            }
            let have: usize = groups.iter().map(|resolved| self.count_holders(resolved, role)).sum();
            if min.is_some_and(|least| (have as u64) < least) || max.is_some_and(|most| (have as u64) > most) {
                let wants = [min.map(|n| format!("at least {n}")), max.map(|n| format!("at most {n}"))];
                let wants = wants.into_iter().flatten().collect::<Vec<_>>().join(" and ");
                let message = format!("role {role} requires {wants} of the cluster's nodes, and {have} have it");
                self.warn(rule::ROLE_LIMIT, format!("{} role/{role}", self.object), message);
            }
        }
    }

    /// Returns the number of nodes of a group that have a role. Without a release the nodes have no profile, so each
    /// node is checked.
    fn count_holders(&self, resolved: &ResolvedGroup, role: &Name) -> usize {
        let group = GroupId(resolved.group.meta.uuid);
        if resolved.release.is_some() {
            let placed = self.fleet.profile_nodes_in_group(group).filter(|(profile, _)| profile.key.roles.contains(role));
            return placed.map(|(_, nodes)| nodes.len()).sum();
        }
        let nodes = self.fleet.nodes_in_group(group).filter_map(|id| self.fleet.node(id));
        nodes.filter(|node| resolved.roles.contains(role) || node.spec.roles.contains(role)).count()
    }
}

/// Returns the findings about roles of a group or node that its release does not declare, without those that existed
/// before a change.
pub fn newly_undeclared(before: &Fleet, after: &Fleet, id: LevelId) -> Vec<Finding> {
    let undeclared = |fleet: &Fleet| match id {
        LevelId::Group(id) => {
            let resolved = fleet.resolved_group(id).ok()?;
            Some(undeclared_roles(&format!("nodegroup/{}", resolved.path()), resolved, &resolved.group.spec.roles))
        }
        LevelId::Node(id) => {
            let node = fleet.node(id)?;
            let object = format!("node/{}", node.display_name());
            Some(undeclared_roles(&object, fleet.resolved_parent(&node.spec)?, &node.spec.roles))
        }
        LevelId::Template(_) | LevelId::Cluster(_) => None,
    };
    let (known, mut findings) = (undeclared(before).unwrap_or_default(), undeclared(after).unwrap_or_default());
    findings.retain(|finding| !known.contains(finding));
    findings
}

/// Returns the findings about roles of a group or node that its release does not declare.
fn undeclared_roles(object: &str, resolved: &ResolvedGroup, roles: &[Name]) -> Vec<Finding> {
    let Some(release) = &resolved.release else { return Vec::new() };
    let undeclared = roles.iter().filter(|role| !is_role_declared(resolved, role));
    let finding = |role: &Name| {
        let message = format!("has role {role}, which release {} does not declare: it produces no tag", release.value.name);
        Finding::new(rule::ROLE_UNKNOWN, object, message)
    };
    undeclared.map(finding).collect()
}

/// Returns whether a node of this profile may have a finding about its roles or tags.
fn may_have_findings(resolved: &ResolvedGroup, profile: &Profile) -> bool {
    let key = &profile.key;
    key.roles.iter().any(|role| !is_role_declared(resolved, role))
        || key.tags.iter().any(|tag| !is_tag_declared(resolved, tag))
        || role_conflicts(resolved, &key.roles).next().is_some()
}

/// Returns whether the release of a group declares a role. Without a release, any role counts as declared.
fn is_role_declared(resolved: &ResolvedGroup, role: &Name) -> bool {
    resolved.role_table.as_ref().is_none_or(|table| table.has_role(role.as_str()))
}

/// Returns whether the release or the cluster declares a tag, or some role produces it. Without a release, any tag
/// counts as declared.
fn is_tag_declared(resolved: &ResolvedGroup, tag: &TagName) -> bool {
    resolved.role_table.as_ref().is_none_or(|table| table.is_visible(tag.as_str()))
}

/// Returns the pairs of these roles that conflict by the release.
fn role_conflicts<'a>(resolved: &'a ResolvedGroup, roles: &'a [Name]) -> impl Iterator<Item = (&'a Name, &'a Name)> {
    let release = resolved.release.as_ref().map(|release| &release.value);
    let declared = roles.iter().filter_map(move |role| Some((role, release?.roles.get(role)?)));
    let meets = |other: &&Name| roles.contains(other);
    declared.flat_map(move |(role, spec)| spec.conflicts.iter().filter(meets).map(move |other| (role, other)))
}

/// Returns a limit of a role on the number of its nodes, if it is a plain number.
fn role_limit(spec: &RoleSpec, name: &str) -> Option<u64> {
    spec.limits.get(name).and_then(Value::as_u64)
}

/// Returns the releases that groups name, each once. Two releases with the same content and another name are listed
/// separately.
fn releases(groups: &[&Arc<ResolvedGroup>]) -> Vec<Arc<CompiledRelease>> {
    let named = groups.iter().filter_map(|resolved| resolved.release.as_ref());
    let releases: BTreeMap<_, _> = named.map(|release| (&release.value.name, Arc::clone(&release.value))).collect();
    releases.into_values().collect()
}
