//! The pre-flight check of a cluster: what is odd about it as a whole, which no node's own answer can show.
//!
//! All of it is findings: a tag that nobody holds is how every new cluster begins, and a role too many may be on its
//! way out. What can't be is an error elsewhere (a release that does not compile, a placement that goes round).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::finding::{Finding, Rule, rule};
use crate::fleet::{Fleet, GroupFold};
use crate::graph::ClusterGraph;
use crate::labels::LabelLayer;
use crate::name::Name;
use crate::object::{Cluster, ClusterId, GroupId, Node, RoleSpec};
use crate::release::{CompiledRelease, TaskIx};

/// What is odd about a cluster: its order's findings among it. Sorted, each once.
pub fn cluster_findings(fleet: &Fleet, id: ClusterId, graph: &ClusterGraph) -> Vec<Finding> {
    let Some(cluster) = fleet.cluster(id) else { return Vec::new() };
    let folds: Vec<&Arc<GroupFold>> = fleet.groups_of(id).filter_map(|group| fleet.fold(group).ok()).collect();
    let mut check = Check { fleet, cluster, object: format!("cluster/{}", cluster.meta.name), findings: Vec::new() };
    if graph.has_pseudo_master {
        let message = "tasks fall to master, the controller's own host, and the cluster has no node of that name";
        check.warn(rule::MASTER_ABSENT, check.object.clone(), message.to_owned());
    }
    check.levels(&folds);
    check.primaries(graph);
    check.changed_roles(&folds);
    let holders = check.roles(&folds);
    // Without nodes nothing falls anywhere yet, and to say so of every task helps nobody.
    if graph.classes.iter().any(|class| !class.profile.place.is_master) {
        for release in releases(&folds) {
            check.unheld_tags(&release, graph);
            check.unplaced_tasks(&release, graph);
            check.limits(&release, &holders);
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

    /// `null` where nothing is merged, at the levels above the nodes.
    fn levels(&mut self, folds: &[&Arc<GroupFold>]) {
        self.idle(&self.object.clone(), &self.cluster.spec.inherited.labels);
        for fold in folds {
            self.idle(&format!("nodegroup/{}", fold.place()), &fold.group.spec.inherited.labels);
        }
        if let Some(template) = self.cluster.spec.cluster_template.and_then(|id| self.fleet.template(id)) {
            self.idle(&format!("clustertemplate/{}", template.meta.name), &template.spec.inherited.labels);
        }
    }

    fn idle(&mut self, object: &str, labels: &LabelLayer) {
        for key in labels.idle_tombstones() {
            let message = format!("label {key} is null where nothing is merged: it has no effect");
            self.warn(rule::LABEL_IDLE_NULL, object, message);
        }
    }

    /// Primaries that a manifest names and that hold nothing.
    fn primaries(&mut self, graph: &ClusterGraph) {
        for (tag, name) in &self.cluster.spec.primaries {
            let holds = graph
                .classes
                .iter()
                .any(|class| class.nodes.iter().any(|node| **node == **name) && class.profile.place.tags.contains(tag));
            if !holds {
                let message = format!(
                    "primaries: {tag} is to be held by {name}, which does not have it: the first by name holds it"
                );
                self.warn(rule::PRIMARY_UNKNOWN, self.object.clone(), message);
            }
        }
    }

    /// Roles that the cluster changes, or that its tags name, and that no release of its groups declares.
    fn changed_roles(&mut self, folds: &[&Arc<GroupFold>]) {
        let releases = releases(folds);
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

    /// Roles that nobody declares, roles that should not meet, and tags by hand that can't be seen; gives the number of
    /// nodes per role.
    fn roles(&mut self, folds: &[&Arc<GroupFold>]) -> BTreeMap<Name, usize> {
        let mut holders = BTreeMap::new();
        for fold in folds {
            self.undeclared(&format!("nodegroup/{}", fold.place()), fold, &fold.group.spec.roles);
            for node in self.fleet.nodes_of(GroupId(fold.group.meta.uuid)).filter_map(|id| self.fleet.node(id)) {
                let object = format!("node/{}", node.display_name());
                self.undeclared(&object, fold, &node.spec.roles);
                self.by_hand(&object, fold, node);
                let roles: BTreeSet<&Name> = fold.roles.iter().chain(&node.spec.roles).collect();
                self.conflicts(&object, fold, &roles);
                for role in roles {
                    *holders.entry(role.clone()).or_insert(0) += 1;
                }
            }
        }
        holders
    }

    fn undeclared(&mut self, object: &str, fold: &GroupFold, roles: &[Name]) {
        let (Some(table), Some(release)) = (&fold.table, &fold.release) else { return };
        for role in roles.iter().filter(|role| !table.has_role(role.as_str())) {
            let message =
                format!("has role {role}, which release {} does not declare: it produces no tag", release.value.name);
            self.warn(rule::ROLE_UNKNOWN, object, message);
        }
    }

    fn by_hand(&mut self, object: &str, fold: &GroupFold, node: &Node) {
        let Some(table) = &fold.table else { return };
        let produced = |name: &str| table.roles().any(|(_, tags)| tags.iter().any(|tag| tag.as_str() == name));
        for tag in
            node.spec.tags.assigned.members().filter(|tag| table.tag(tag.as_str()).is_none() && !produced(tag.as_str()))
        {
            let message = format!("is assigned tag {tag}, which is declared neither in the release nor in the cluster");
            self.warn(rule::TAG_UNKNOWN, object, message);
        }
    }

    /// Fuel's `conflicts` of roles, kept and never enforced.
    fn conflicts(&mut self, object: &str, fold: &GroupFold, roles: &BTreeSet<&Name>) {
        let Some(release) = &fold.release else { return };
        for role in roles {
            let Some(spec) = release.value.roles.get(*role) else { continue };
            for other in spec.conflicts.iter().filter(|other| roles.contains(other)) {
                let message = format!("has role {role} and role {other}, which conflict");
                self.warn(rule::ROLE_CONFLICT, object, message);
            }
        }
    }

    fn unheld_tags(&mut self, release: &CompiledRelease, graph: &ClusterGraph) {
        let held: BTreeSet<&str> =
            graph.classes.iter().flat_map(|class| class.profile.place.tags.iter().map(AsRef::as_ref)).collect();
        for tag in release.tags.keys().filter(|tag| !held.contains(tag.as_str())) {
            let message = format!("no node holds tag {tag}, which release {} declares", release.name);
            self.warn(rule::TAG_UNHELD, format!("{} tag/{tag}", self.object), message);
        }
    }

    fn unplaced_tasks(&mut self, release: &CompiledRelease, graph: &ClusterGraph) {
        let own = graph.classes.iter().filter(|class| class.profile.release.hash == release.hash);
        let placed: BTreeSet<TaskIx> = own.flat_map(|class| class.profile.all()).collect();
        for (ix, task) in (0..).map(TaskIx).zip(&release.tasks) {
            if !placed.contains(&ix) && !task.task.is_group() && !task.task.is_stage() {
                let message =
                    format!("task {} falls to no node: it is placed by {}", task.task.id, task.placement_text());
                self.warn(rule::TASK_UNPLACED, format!("{} task/{}", self.object, task.task.id), message);
            }
        }
    }

    /// Fuel's `limits` of roles: plain numbers; what rests on its settings is not evaluated.
    fn limits(&mut self, release: &CompiledRelease, holders: &BTreeMap<Name, usize>) {
        for (role, spec) in &release.roles {
            let have = holders.get(role).copied().unwrap_or(0);
            let (least, most) = (limit(spec, "min"), limit(spec, "max"));
            if least.is_some_and(|least| (have as u64) < least) || most.is_some_and(|most| (have as u64) > most) {
                let wants = [least.map(|n| format!("at least {n}")), most.map(|n| format!("at most {n}"))];
                let wants = wants.into_iter().flatten().collect::<Vec<_>>().join(" and ");
                let message = format!("role {role} wants {wants} of the cluster's nodes, and {have} have it");
                self.warn(rule::ROLE_LIMIT, format!("{} role/{role}", self.object), message);
            }
        }
    }
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
