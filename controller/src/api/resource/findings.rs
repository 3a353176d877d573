//! Findings: what a person should know of a write or of a cluster, and nothing refuses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stemma_core::catalog::Meant;
use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::fleet::{Fleet, GroupFold, Missing};
use stemma_core::idle::{self, Idle};
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, Object, TemplateId};
use stemma_core::resolve::{
    ObjectId, Resolution, Unset, all_catalog_findings, catalog_findings_of, cluster_findings, newly_unset,
    resolve_cluster, undeclared_roles, unset_in_empty,
};
use uuid::Uuid;

use super::state;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::desired::size;
use crate::registry::work::Work;

/// The most findings that one answer lists.
const MOST: usize = 500;

/// Findings, the gravest first, and no more than one answer lists.
#[derive(Default)]
struct Gravest {
    /// Each with a host that it is about, where one is known.
    kept: BTreeMap<(Reverse<Severity>, Finding), Option<NodeId>>,
    left_off: usize,
}

impl Gravest {
    fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.extend_of(findings.into_iter().map(|finding| (finding, None)));
    }

    fn extend_of(&mut self, findings: impl IntoIterator<Item = (Finding, Option<NodeId>)>) {
        for (finding, host) in findings {
            self.kept.entry((Reverse(finding.severity), finding)).or_insert(host);
            if self.kept.len() > MOST {
                drop(self.kept.pop_last());
                self.left_off += 1;
            }
        }
    }

    /// The list; where some were left off, its last entry says how many.
    fn list(self, object: &str) -> Vec<Finding> {
        self.list_by(object, |finding, _| finding)
    }

    /// The same, each finished with the host that it is about.
    fn list_by(self, object: &str, finish: impl Fn(Finding, NodeId) -> Finding) -> Vec<Finding> {
        let left_off = (self.left_off > 0).then(|| {
            let message = format!("{} more findings are not listed; none is graver than these", self.left_off);
            Finding::of(rule::FINDINGS_LEFT_OFF, object, message)
        });
        let finished = |((_, finding), host): ((Reverse<Severity>, Finding), Option<NodeId>)| match host {
            Some(host) => finish(finding, host),
            None => finding,
        };
        self.kept.into_iter().map(finished).chain(left_off).collect()
    }
}

/// The findings of a write: of what it reaches.
pub(super) fn of_write(work: &Work<'_>) -> Vec<Finding> {
    let mut clusters = BTreeSet::new();
    let mut findings = Gravest::default();
    let mut unset = Unset::default();
    for node in work.told_hosts() {
        clusters.extend(work.model.cluster_of(node.0));
        if let Resolution::Complete(answer) = work.model.resolve(node.0) {
            findings.extend_of(size::findings(&answer, work.now()).into_iter().map(|finding| (finding, Some(node))));
            unset.add(&answer);
        }
    }
    findings.extend_of(unset.found());
    for (kind, uuid) in work.written() {
        clusters.extend(cluster_of(&work.model, kind, uuid));
        findings.extend(of_object(&work.model, kind, uuid));
    }
    of_catalog(work, &mut findings);
    for cluster in clusters.into_iter().take_while(|_| work.is_awaited()) {
        findings.extend(cluster_findings(&work.model.fleet, cluster));
        findings.extend(unset_in_empty(&work.model.fleet, work.model.fleet.groups_of(cluster)));
    }
    findings.list_by("apply", |finding, host| by(work, finding, host))
}

/// A finding about a host that a write reaches, with the object of the write by which it is so.
fn by(work: &Work<'_>, finding: Finding, host: NodeId) -> Finding {
    Finding { written: work.nearest_to_node(host).filter(|key| *key != finding.place().0), ..finding }
}

/// What is so by a write and was not before it: what hosts lack, and roles of its objects that nothing declares.
pub(super) fn newly_found(work: &Work<'_>) -> Vec<Finding> {
    let (before, after) = (&work.before().fleet, &work.model.fleet);
    let mut found = newly_unset(before, after, &work.model.memo, work.told_hosts());
    for (kind, uuid) in work.written() {
        let known = undeclared(before, kind, uuid);
        found.extend(undeclared(after, kind, uuid).into_iter().filter(|finding| !known.contains(finding)));
    }
    found
}

/// The roles of a group or node that its release does not declare.
fn undeclared(fleet: &Fleet, kind: Kind, uuid: Uuid) -> Vec<Finding> {
    match kind {
        Kind::NodeGroup => {
            let fold = fleet.fold(GroupId(uuid));
            let found = |fold: &Arc<GroupFold>| {
                undeclared_roles(&format!("nodegroup/{}", fold.place()), fold, &fold.group.spec.roles)
            };
            fold.map(found).unwrap_or_default()
        }
        Kind::Node => {
            let Some(node) = fleet.node(NodeId(uuid)) else { return Vec::new() };
            let fold = node.spec.nodegroup.and_then(|group| fleet.fold(group).ok());
            let found = |fold: &Arc<GroupFold>| {
                undeclared_roles(&format!("node/{}", node.display_name()), fold, &node.spec.roles)
            };
            fold.map(found).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// The requirements that nodes of a write do not meet and met before, or were not asked for.
pub(super) fn unmet(work: &Work<'_>) -> Option<String> {
    let unmet = |model: &Model, node| match model.resolve(node) {
        Resolution::Complete(answer) => answer.unmet().to_vec(),
        Resolution::Incomplete(_) => Vec::new(),
    };
    let mut found = Vec::new();
    for (_, node) in work.written().filter(|(kind, _)| *kind == Kind::Node) {
        let before = unmet(work.before(), node);
        let new = unmet(&work.model, node).into_iter().filter(|one| !before.contains(one));
        found.extend(new.map(|one| format!("{one}: the next task set is held until it is")));
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// The cluster that an object of a write is, or that it is a group of: it is looked at also where no node stands in it yet.
fn cluster_of(model: &Model, kind: Kind, uuid: Uuid) -> Option<ClusterId> {
    match kind {
        Kind::Cluster => Some(ClusterId(uuid)),
        Kind::NodeGroup => Some(model.groups.get(uuid)?.spec.cluster),
        _ => None,
    }
}

/// What is found about an object of a write by itself, whoever stands below it.
fn of_object(model: &Model, kind: Kind, uuid: Uuid) -> Vec<Finding> {
    match kind {
        Kind::Release => of_release(model, uuid),
        Kind::ReleaseTags => idle_fields(model.release_tags.get(uuid)),
        Kind::ClusterTemplate => idle_fields(model.templates.get(uuid)),
        Kind::Cluster => idle_fields(model.clusters.get(uuid)),
        Kind::NodeGroup => model.fleet.fold(GroupId(uuid)).map_or_else(
            |_| Vec::new(),
            |fold| idle::findings(&format!("nodegroup/{}", fold.place()), &fold.group.spec),
        ),
        // What is found about a node stands in its answer.
        Kind::Node
        | Kind::Primary
        | Kind::Namespace
        | Kind::InspectionRule
        | Kind::Revision
        | Kind::Secret
        | Kind::Expectation
        | Kind::Allocation
        | Kind::Principal => Vec::new(),
    }
}

/// Where the objects of a write and the catalogue do not agree; where it writes a namespace, all objects. It ends at the next one where
/// nobody waits any more.
fn of_catalog(work: &Work<'_>, findings: &mut Gravest) {
    let (fleet, meant) = (&work.model.fleet, Meant::default());
    let mut written = work.written();
    if written.any(|(kind, _)| kind == Kind::Namespace) {
        let all = all_catalog_findings(fleet, &meant).take_while(|_| work.is_awaited());
        all.for_each(|found| findings.extend(found));
    } else {
        let objects = work.written().filter_map(|(kind, uuid)| says_of_keys(kind, uuid));
        objects.for_each(|id| findings.extend(catalog_findings_of(fleet, &meant, id)));
    }
}

/// An object whose kind says something of keys.
fn says_of_keys(kind: Kind, uuid: Uuid) -> Option<ObjectId> {
    Some(match kind {
        Kind::ClusterTemplate => ObjectId::Template(TemplateId(uuid)),
        Kind::Cluster => ObjectId::Cluster(ClusterId(uuid)),
        Kind::NodeGroup => ObjectId::Group(GroupId(uuid)),
        Kind::Node => ObjectId::Node(NodeId(uuid)),
        Kind::Release
        | Kind::ReleaseTags
        | Kind::Primary
        | Kind::Namespace
        | Kind::InspectionRule
        | Kind::Revision
        | Kind::Secret
        | Kind::Expectation
        | Kind::Allocation
        | Kind::Principal => return None,
    })
}

fn idle_fields<S: Resource + Idle>(object: Option<&Arc<Object<S>>>) -> Vec<Finding> {
    let name = |object: &Object<S>| S::name_text(&object.meta.name).unwrap_or_default();
    let found = |object: &Arc<Object<S>>| idle::findings(&format!("{}/{}", S::KIND.word(), name(object)), &object.spec);
    object.map(found).unwrap_or_default()
}

/// What is odd about a release by itself, whoever runs it.
fn of_release(model: &Model, uuid: Uuid) -> Vec<Finding> {
    let compiled = model.releases.get(uuid).and_then(|release| model.fleet.release(&release.meta.name));
    compiled.map(|compiled| compiled.findings.clone()).unwrap_or_default()
}

/// The findings of a cluster.
pub(super) fn of_cluster(api: &Api, model: &Model, cluster: ClusterId) -> Vec<Finding> {
    let mut findings = Gravest::default();
    let answer = resolve_cluster(&model.fleet, &model.memo, cluster);
    findings.extend(answer.findings);
    let now = api.registry.now();
    findings.extend(answer.nodes.iter().flat_map(|answer| answer.findings_of_host(now)));
    findings.extend(answer.nodes.iter().filter_map(|answer| size::too_large(answer)));
    findings.extend(answer.nodes.iter().filter_map(|answer| state::doubled(api, answer.node())));
    for (node, missing) in answer.incomplete {
        let object = format!("node/{}", node.0);
        findings.extend(missing.iter().map(|what| Finding::of(rule::NODE_INCOMPLETE, &*object, what.to_string())));
        findings.extend(missing.iter().filter_map(|what| broken(model, what)));
    }
    let name = model.clusters.get(cluster.0).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    findings.list(&format!("cluster/{name}"))
}

/// A release that is stored, and missing because it does not compile.
fn broken(model: &Model, missing: &Missing) -> Option<Finding> {
    let Missing::Release(name) = missing else { return None };
    let reason = model.broken.get(name)?;
    let message =
        format!("it is stored and does not compile: {reason}; hosts that need it stay as they are until it is mended");
    Some(Finding::of(rule::RELEASE_BROKEN, format!("release/{name}"), message))
}

#[cfg(test)]
mod tests {
    use stemma_core::finding::Rule;

    use super::*;

    fn found(severity: Severity, code: &'static str, object: &str) -> Finding {
        Finding::of(Rule { code, severity, field: "" }, object, "said")
    }

    #[test]
    fn the_gravest_are_kept_and_the_rest_is_counted() {
        let mut findings = Gravest::default();
        let infos = (0..600).map(|n| found(Severity::Info, "a.info", &format!("node/n{n:03}")));
        findings.extend(infos);
        findings.extend([found(Severity::Error, "z.error", "node/z"), found(Severity::Warning, "m.warning", "node/m")]);
        let list = findings.list("cluster/c");
        assert_eq!(list.len(), 501);
        assert_eq!((list[0].code.as_str(), list[1].code.as_str()), ("z.error", "m.warning"));
        assert_eq!((list[2].object.as_str(), list[499].object.as_str()), ("node/n000", "node/n497"));
        assert_eq!(
            list[500].to_string(),
            "info findings.left_off cluster/c: 102 more findings are not listed; none is graver than these"
        );
        let mut few = Gravest::default();
        few.extend([found(Severity::Info, "a", "b")]);
        assert_eq!(few.list("cluster/c").len(), 1);
    }
}
