//! The pre-flight check of a cluster: what is odd about it as a whole, which no node's own answer can show.
//!
//! All of it is findings: a tag that nobody holds is how every new cluster begins, and a role too many may be on its
//! way out. What can't be is an error elsewhere (a release that does not compile, a placement that goes round).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::level::level_findings;
use super::primary::naming_another;
use crate::finding::{Finding, Rule, Severity, rule};
use crate::fleet::{Fleet, GroupFold, NotObeyed};
use crate::graph::{Class, pseudo_master};
use crate::idle::{self, Idle};
use crate::labels::LabelLayer;
use crate::name::{Name, TagName};
use crate::object::{Cluster, ClusterId, GroupId, LevelId, Node, RoleSpec};
use crate::release::{CompiledRelease, Profile, TaskIx};
use crate::requirement::Requirement;

/// What is odd about a cluster. Sorted, each once.
///
/// Every write asks this of the clusters that it reaches. So profiles are looked at, of which there are few, and nodes only where
/// something is found about them.
pub fn cluster_findings(fleet: &Fleet, id: ClusterId) -> Vec<Finding> {
    let Some(cluster) = fleet.cluster(id) else { return Vec::new() };
    let folds: Vec<&Arc<GroupFold>> = fleet.folds_of(id).collect();
    let mut check = Check { fleet, cluster, object: format!("cluster/{}", cluster.meta.name), findings: Vec::new() };
    let releases = releases(&folds);
    let has_master = fleet.profiles_of(id).any(|profile| profile.place.is_master);
    let pseudo: Vec<Class> = releases.iter().filter(|_| !has_master).filter_map(pseudo_master).collect();
    if !pseudo.is_empty() {
        let message = "tasks are placed on master, the controller's own host, and the cluster has no node of that name";
        check.warn(rule::MASTER_ABSENT, check.object.clone(), message.to_owned());
    }
    check.levels(&folds);
    check.primaries();
    check.changed_roles(&releases);
    check.roles(&folds);
    // Without nodes nothing falls anywhere yet, and to say so of every task helps nobody.
    if fleet.profiles_of(id).any(|profile| !profile.place.is_master) {
        let pseudo = pseudo.iter().map(|class| &class.profile);
        let profiles: Vec<&Profile> = fleet.profiles_of(id).chain(pseudo).map(|profile| &**profile).collect();
        for release in &releases {
            check.unheld_tags(release, &profiles);
            check.unplaced_tasks(release, &profiles);
            check.limits(release, &folds);
        }
    }
    check.findings.sort();
    check.findings.dedup();
    check.findings
}

struct Check<'a> {
    fleet: &'a Fleet,
    cluster: &'a Arc<Cluster>,
    object: String,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn warn(&mut self, rule: Rule, object: impl Into<String>, message: String) {
        self.findings.push(Finding::of(rule, object, message));
    }

    /// What has no effect at the levels above the nodes: `null` where nothing is merged, fields that nothing acts on, and labels that
    /// would have one variable.
    fn levels(&mut self, folds: &[&Arc<GroupFold>]) {
        let cluster = Arc::clone(self.cluster);
        let (fleet, id) = (self.fleet, ClusterId(cluster.meta.uuid));
        self.level(&self.object.clone(), &cluster.spec.inherited.labels, &cluster.spec);
        self.findings.extend(level_findings(fleet, LevelId::Cluster(id)));
        self.findings.extend(fleet.groups_of(id).flat_map(|id| level_findings(fleet, LevelId::Group(id))));
        for fold in folds {
            let group = &fold.group.spec;
            self.level(&format!("nodegroup/{}", fold.place()), &group.inherited.labels, group);
            self.requirements(fold);
        }
        if let Some(template) = cluster.spec.cluster_template.and_then(|id| self.fleet.template(id)) {
            let object = format!("clustertemplate/{}", template.meta.name);
            self.level(&object, &template.spec.inherited.labels, &template.spec);
        }
    }

    fn level(&mut self, object: &str, labels: &LabelLayer, spec: &impl Idle) {
        self.findings.extend(idle::findings(object, spec));
        for key in labels.idle_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            self.warn(rule::LABEL_IDLE_NULL, object, message);
        }
    }

    /// Primaries that a manifest names and that hold nothing, and those whose holder is parked.
    fn primaries(&mut self) {
        let id = ClusterId(self.cluster.meta.uuid);
        for (tag, node) in &self.cluster.spec.primaries {
            if let Some(why) = self.fleet.not_obeyed(self.cluster, tag, node).map(NotObeyed::beyond_cluster) {
                let held = match self.fleet.holder(id, tag.as_str()) {
                    Some(_) => "who held it keeps it, or the first by name holds it",
                    None => "nobody holds it",
                };
                let message = format!(
                    "primaries: {tag} is to be held by {node}, which is not obeyed: {}; {held}; name a node that has it there, or leave {tag} \
                     out",
                    why.reason(tag, node)
                );
                let mut finding = Finding::of(rule::PRIMARY_UNKNOWN, self.object.clone(), message);
                if why.is_decided() {
                    finding.severity = Severity::Error;
                }
                self.findings.push(finding);
            }
        }
        let fleet = self.fleet;
        for (tag, node) in fleet.holders(id) {
            let Some(node) = fleet.node(node).filter(|node| fleet.parked(node).is_some()) else { continue };
            // No choice is taken where the cluster names anybody.
            let how = match fleet.named_primary(id, tag.as_str()) {
                Some(_) => naming_another(self.cluster, tag.as_str()),
                None => format!("stemma primary set {} {tag} NODE", self.cluster.meta.name),
            };
            let message = format!(
                "{} holds {tag} as primary and is parked: it keeps the tag; to give it to another node: {how}",
                node.display_name()
            );
            self.warn(rule::PRIMARY_PARKED, self.object.clone(), message);
        }
    }

    /// Requirements whose author may have meant an operator.
    fn requirements(&mut self, fold: &GroupFold) {
        for requirement in &fold.group.spec.requirements.0 {
            if let Requirement::Field { expression, .. } = requirement
                && expression.resembles_operator()
            {
                let message = format!(
                    "requirement {requirement} asks for this very text: an operator is the first word, as in `>= 3`"
                );
                self.warn(rule::REQUIREMENT_TEXT, format!("nodegroup/{}", fold.place()), message);
            }
        }
    }

    /// Roles that the cluster changes, or that its tags name, and that no release of its groups declares.
    fn changed_roles(&mut self, releases: &[Arc<CompiledRelease>]) {
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
                let message =
                    format!("tags: {tag} is to be produced by role {role}, which no release of its groups declares");
                self.warn(rule::ROLE_UNKNOWN, self.object.clone(), message);
            }
        }
    }

    /// Roles that nobody declares, roles that should not meet, and tags by hand that can't be seen. Nodes of one profile have the
    /// same roles and tags.
    fn roles(&mut self, folds: &[&Arc<GroupFold>]) {
        for fold in folds {
            self.decided(fold);
            let group = format!("nodegroup/{}", fold.place());
            self.findings.extend(undeclared_roles(&group, fold, &fold.group.spec.roles));
            for (profile, nodes) in self.fleet.placed_in_group(GroupId(fold.group.meta.uuid)) {
                if !is_odd(fold, profile) {
                    continue;
                }
                for node in nodes.iter().filter_map(|id| self.fleet.node(*id)) {
                    let object = format!("node/{}", node.display_name());
                    self.findings.extend(undeclared_roles(&object, fold, &node.spec.roles));
                    self.by_hand(&object, fold, node);
                    self.conflicts(&object, fold, &profile.place.roles);
                }
            }
        }
    }

    fn by_hand(&mut self, object: &str, fold: &GroupFold, node: &Node) {
        for tag in node.spec.tags.assigned.members().filter(|tag| !declares_tag(fold, tag)) {
            let message = format!("is assigned tag {tag}, which is declared neither in the release nor in the cluster");
            self.warn(rule::TAG_UNKNOWN, object, message);
        }
    }

    /// Tags that an extension decided and that are left out, since nothing declares them any more.
    fn decided(&mut self, fold: &GroupFold) {
        if fold.table.as_ref().is_none_or(|table| table.deciders().next().is_none()) {
            return;
        }
        for node in self.fleet.nodes_of(GroupId(fold.group.meta.uuid)).filter_map(|id| self.fleet.node(id)) {
            for (role, decided) in &node.spec.tags.decided {
                for tag in decided.tags.iter().filter(|tag| !declares_tag(fold, tag)) {
                    let message = format!(
                        "extension {} gives it tag {tag} for role {role}, which is declared neither in the release nor in the cluster: \
                         it is left out, and goes with the next write of the node",
                        decided.extension
                    );
                    self.findings.push(Finding::of(
                        rule::TAG_UNKNOWN,
                        format!("node/{}", node.display_name()),
                        message,
                    ));
                }
            }
        }
    }

    /// Fuel's `conflicts` of roles, kept and never enforced.
    fn conflicts(&mut self, object: &str, fold: &GroupFold, roles: &[Name]) {
        for (role, other) in conflicts(fold, roles) {
            let message = format!("has role {role} and role {other}, which conflict");
            self.warn(rule::ROLE_CONFLICT, object, message);
        }
    }

    fn unheld_tags(&mut self, release: &CompiledRelease, profiles: &[&Profile]) {
        let held: BTreeSet<&TagName> = profiles.iter().flat_map(|profile| &profile.place.tags).collect();
        for tag in release.tags.keys().filter(|tag| !held.contains(tag)) {
            let message = format!("no node holds tag {tag}, which release {} declares", release.name);
            self.warn(rule::TAG_UNHELD, format!("{} tag/{tag}", self.object), message);
        }
    }

    fn unplaced_tasks(&mut self, release: &CompiledRelease, profiles: &[&Profile]) {
        let own = profiles.iter().filter(|profile| profile.release.hash == release.hash);
        let placed: BTreeSet<TaskIx> = own.flat_map(|profile| profile.all()).collect();
        // A group of the cluster may run another release, in which a task of that id does fall to nodes.
        let elsewhere = |id: &str| {
            let others = profiles.iter().filter(|profile| profile.release.hash != release.hash);
            let mut having = others.filter(|other| other.release.find(id).is_some_and(|ix| other.all().contains(&ix)));
            having.next().map_or_else(String::new, |other| format!("; that of release {} does", other.release.name))
        };
        for (ix, task) in (0..).map(TaskIx).zip(&release.tasks) {
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

    /// Fuel's `limits` of roles: plain numbers; what rests on its settings is not evaluated.
    fn limits(&mut self, release: &CompiledRelease, folds: &[&Arc<GroupFold>]) {
        for (role, spec) in &release.roles {
            let (least, most) = (limit(spec, "min"), limit(spec, "max"));
            if least.is_none() && most.is_none() {
                continue;
            }
            let have: usize = folds.iter().map(|fold| self.holders(fold, role)).sum();
            if least.is_some_and(|least| (have as u64) < least) || most.is_some_and(|most| (have as u64) > most) {
                let wants = [least.map(|n| format!("at least {n}")), most.map(|n| format!("at most {n}"))];
                let wants = wants.into_iter().flatten().collect::<Vec<_>>().join(" and ");
                let message = format!("role {role} wants {wants} of the cluster's nodes, and {have} have it");
                self.warn(rule::ROLE_LIMIT, format!("{} role/{role}", self.object), message);
            }
        }
    }

    /// How many nodes of a group have a role. Without a release they have no profile, and each is asked.
    fn holders(&self, fold: &GroupFold, role: &Name) -> usize {
        let group = GroupId(fold.group.meta.uuid);
        if fold.release.is_some() {
            let placed = self.fleet.placed_in_group(group).filter(|(profile, _)| profile.place.roles.contains(role));
            return placed.map(|(_, nodes)| nodes.len()).sum();
        }
        let nodes = self.fleet.nodes_of(group).filter_map(|id| self.fleet.node(id));
        nodes.filter(|node| fold.roles.contains(role) || node.spec.roles.contains(role)).count()
    }
}

/// Roles of a group or node that its release does not declare, and that were not so before.
pub fn newly_undeclared(before: &Fleet, after: &Fleet, id: LevelId) -> Vec<Finding> {
    let undeclared = |fleet: &Fleet| match id {
        LevelId::Group(id) => {
            let fold = fleet.fold(id).ok()?;
            Some(undeclared_roles(&format!("nodegroup/{}", fold.place()), fold, &fold.group.spec.roles))
        }
        LevelId::Node(id) => {
            let node = fleet.node(id)?;
            let object = format!("node/{}", node.display_name());
            Some(undeclared_roles(&object, fleet.fold_above(&node.spec)?, &node.spec.roles))
        }
        LevelId::Template(_) | LevelId::Cluster(_) => None,
    };
    let (known, mut found) = (undeclared(before).unwrap_or_default(), undeclared(after).unwrap_or_default());
    found.retain(|finding| !known.contains(finding));
    found
}

/// Roles of a group or node that its release does not declare.
fn undeclared_roles(object: &str, fold: &GroupFold, roles: &[Name]) -> Vec<Finding> {
    let Some(release) = &fold.release else { return Vec::new() };
    let undeclared = roles.iter().filter(|role| !declares_role(fold, role));
    let found = |role: &Name| {
        let message =
            format!("has role {role}, which release {} does not declare: it produces no tag", release.value.name);
        Finding::of(rule::ROLE_UNKNOWN, object, message)
    };
    undeclared.map(found).collect()
}

/// Whether anything can be found about a node of this profile.
fn is_odd(fold: &GroupFold, profile: &Profile) -> bool {
    let place = &profile.place;
    place.roles.iter().any(|role| !declares_role(fold, role))
        || place.tags.iter().any(|tag| !declares_tag(fold, tag))
        || conflicts(fold, &place.roles).next().is_some()
}

fn declares_role(fold: &GroupFold, role: &Name) -> bool {
    fold.table.as_ref().is_none_or(|table| table.has_role(role.as_str()))
}

/// Whether a tag is declared, or some role produces it.
fn declares_tag(fold: &GroupFold, tag: &TagName) -> bool {
    fold.table.as_ref().is_none_or(|table| table.is_visible(tag.as_str()))
}

/// The pairs of roles that conflict.
fn conflicts<'a>(fold: &'a GroupFold, roles: &'a [Name]) -> impl Iterator<Item = (&'a Name, &'a Name)> {
    let release = fold.release.as_ref().map(|release| &release.value);
    let declared = roles.iter().filter_map(move |role| Some((role, release?.roles.get(role)?)));
    let meets = |other: &&Name| roles.contains(other);
    declared.flat_map(move |(role, spec)| spec.conflicts.iter().filter(meets).map(move |other| (role, other)))
}

fn limit(spec: &RoleSpec, name: &str) -> Option<u64> {
    spec.limits.get(name).and_then(Value::as_u64)
}

/// The releases that groups name, each once. Two of the same content are two.
fn releases(folds: &[&Arc<GroupFold>]) -> Vec<Arc<CompiledRelease>> {
    let named = folds.iter().filter_map(|fold| fold.release.as_ref());
    let releases: BTreeMap<_, _> = named.map(|release| (&release.value.name, Arc::clone(&release.value))).collect();
    releases.into_values().collect()
}
