//! Findings: what a person should know of a write or of a cluster, and nothing refuses.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::fleet::Missing;
use stemma_core::idle::{self, Idle};
use stemma_core::object::{ClusterId, GroupId, Kind, Object};
use stemma_core::resolve::{self, Resolution, Unset, cluster_findings, resolve_cluster, unset_in_empty};
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
    kept: BTreeSet<(Reverse<Severity>, Finding)>,
    left_off: usize,
}

impl Gravest {
    fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.kept.insert((Reverse(finding.severity), finding));
            if self.kept.len() > MOST {
                self.kept.pop_last();
                self.left_off += 1;
            }
        }
    }

    /// The list; where some were left off, its last entry says how many.
    fn list(self, object: &str) -> Vec<Finding> {
        let left_off = (self.left_off > 0).then(|| {
            let message = format!("{} more findings are not listed; none is graver than these", self.left_off);
            Finding::of(rule::FINDINGS_LEFT_OFF, object, message)
        });
        self.kept.into_iter().map(|(_, finding)| finding).chain(left_off).collect()
    }
}

/// The findings of a write: of what it reaches.
pub(super) fn of_write(work: &Work<'_>) -> Vec<Finding> {
    let mut clusters = BTreeSet::new();
    let mut findings = Gravest::default();
    let written: BTreeSet<Uuid> = work.written().map(|(_, uuid)| uuid).collect();
    let mut unset = Unset::default();
    for node in work.reach().dirty.nodes() {
        clusters.extend(work.model.cluster_of(node.0));
        if let Resolution::Complete(answer) = work.model.resolve(node.0) {
            findings.extend(size::findings(&answer));
            unset.add(&answer);
            if written.contains(&node.0) {
                findings.extend(answer.findings());
            }
        }
    }
    findings.extend(unset.findings());
    for (kind, uuid) in work.written() {
        clusters.extend(cluster_of(&work.model, kind, uuid));
        findings.extend(of_object(&work.model, kind, uuid));
    }
    for cluster in clusters {
        findings.extend(cluster_findings(&work.model.fleet, cluster));
        findings.extend(unset_in_empty(&work.model.fleet, work.model.fleet.groups_of(cluster)));
    }
    findings.list("apply")
}

/// What hosts lack by a write that they did not lack before it.
pub(super) fn newly_unset(work: &Work<'_>) -> Vec<Finding> {
    let (before, after) = (&work.before().fleet, &work.model.fleet);
    resolve::newly_unset(before, after, &work.model.memo, work.reach().dirty.nodes())
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
        | Kind::Allocation => Vec::new(),
    }
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
