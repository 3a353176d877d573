//! Findings: what a person should know of a write or of a cluster. They refuse a write alone that asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stemma_core::catalog::Meant;
use stemma_core::finding::{Finding, Gravest, Rule, Severity, rule, strictly};
use stemma_core::fleet::Missing;
use stemma_core::idle;
use stemma_core::object::{ClusterId, GroupId, Kind, LevelId, NodeId, Object, TemplateId};
use stemma_core::requirement::Unmet;
use stemma_core::resolve::{
    FailingTasks, Resolution, Unset, all_catalog_findings, broken, catalog_findings_of, cluster_findings,
    is_told_together, keep_new, level_findings, newly_meeting, newly_meeting_below, newly_odd, newly_orphaned,
    newly_parked_primaries, newly_ruled, newly_uncatalogued, newly_undeclared, newly_unmet, newly_unset,
    newly_without_path, resolve_cluster, unset_in_empty,
};
use uuid::Uuid;

use super::state;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::registry::work::Work;

/// The findings of a write: of what it reaches.
pub(super) fn of_write(api: &Api, work: &Work<'_>) -> Vec<Finding> {
    let mut clusters = BTreeSet::new();
    let mut findings = Gravest::default();
    let (mut unset, mut failed) = (Unset::default(), FailingTasks::default());
    for node in work.told_hosts() {
        clusters.extend(work.model.fleet.cluster_of_node(node));
        let Some(object) = work.model.fleet.node(node) else { continue };
        let resolution = work.model.resolve(node.0);
        let found = state::findings_of_answer(api, &work.model, object, &resolution);
        let own = found.into_iter().filter(|finding| !is_told_together(finding));
        findings.extend_of(own.map(|finding| (finding, Some(node))));
        if let Some(answer) = resolution.answer() {
            unset.add(answer);
            failed.add(answer);
        }
    }
    findings.extend_of(unset.found());
    findings.extend_of(failed.found().map(|(finding, host)| (finding, Some(host))));
    for (kind, uuid) in work.written() {
        // One that is a level is looked at also where no node stands in it yet.
        let level = Some(kind).filter(|kind| *kind != Kind::Node);
        clusters.extend(level.and_then(|kind| work.model.fleet.cluster_of(kind, uuid)));
        findings.extend(of_object(&work.model, kind, uuid));
    }
    clusters.extend(changed_clusters(work));
    of_catalog(work, &mut findings);
    findings.extend(newly_orphaned(&work.before().fleet, &work.model.fleet, work.told_hosts()));
    let written = work.written_keys();
    for cluster in clusters.into_iter().take_while(|_| work.is_awaited()) {
        findings.extend(of_reached(work, cluster, &written));
    }
    each_once(findings.list_by("apply", |finding, host| by(work, finding, host)))
}

/// The findings of a cluster that a write reaches: all about the write's own objects (`written`), and the new ones about others. Each
/// of these names the object of the write that made it. `validate` tells the findings that other objects had before.
fn of_reached(work: &Work<'_>, cluster: ClusterId, written: &BTreeSet<String>) -> Vec<Finding> {
    let (before, after) = (&work.before().fleet, &work.model.fleet);
    let is_own = |finding: &Finding| written.contains(finding.place().0);
    let (mut found, mut others): (Vec<_>, Vec<_>) = cluster_findings(after, cluster).into_iter().partition(is_own);
    keep_new(&mut others, before, cluster);
    let (own, mut unset): (Vec<_>, Vec<_>) =
        unset_in_empty(after, after.groups_of(cluster)).into_iter().partition(is_own);
    if !unset.is_empty() {
        let known: BTreeSet<Finding> = unset_in_empty(before, before.groups_of(cluster)).into_iter().collect();
        unset.retain(|finding| !known.contains(finding));
    }
    let by = work.deepest_in(cluster);
    found.extend(own);
    found.extend(others.into_iter().chain(unset).map(|finding| Finding { written: by.clone(), ..finding }));
    found
}

/// A finding about a host that a write reaches, with the object of the write by which it is so.
fn by(work: &Work<'_>, finding: Finding, host: NodeId) -> Finding {
    Finding { written: work.nearest_to_node(host).filter(|key| *key != finding.place().0), ..finding }
}

/// What is found of a host and said once for all of them, in other words: of requirements by [`NewlyUnmet`], of paths by [`newly_without_path`].
const TOLD_OF_ALL: [Rule; 2] = [rule::REQUIREMENT_UNMET, rule::TASK_PATH];

/// Whether a finding about one host is none that is said once for all of them.
fn is_of_host(finding: &Finding) -> bool {
    TOLD_OF_ALL.iter().all(|rule| finding.code != rule.code)
}

/// The findings that a write makes, each once: what hosts lack by it (but for requirements, of which [`NewlyUnmet`] knows), roles of its
/// objects that nothing declares, keys and values of its objects that the catalogue does not have, and tags and tasks that fall nowhere any
/// more.
pub(super) fn newly_found(work: &Work<'_>) -> Vec<Finding> {
    let (before, after) = (&work.before().fleet, &work.model.fleet);
    let mut found = newly_unset(before, after, &work.model.memo, work.told_hosts());
    let written = work.written().filter_map(|(kind, uuid)| LevelId::of(kind, uuid));
    found.extend(written.flat_map(|id| {
        let own = newly_undeclared(before, after, id).into_iter().chain(newly_uncatalogued(before, after, id));
        own.chain(newly_meeting_below(before, after, id))
    }));
    for cluster in replaced(work).into_iter().take_while(|_| work.is_awaited()) {
        found.extend(newly_odd(before, after, cluster));
    }
    found.extend(newly_orphaned(before, after, work.told_hosts()));
    found.extend(newly_parked_primaries(before, after, work.told_hosts()));
    found.extend(newly_meeting(before, after, work.told_hosts()));
    found.extend(newly_ruled(before, after, &work.model.memo, work.told_hosts()).into_iter().filter(is_of_host));
    found.extend(newly_without_path(before, after, &work.model.memo, work.told_hosts()));
    each_once(found)
}

/// Each finding once, by whatever object of the write it is so. What a rule gives a node is found of both, and so is what moves in a cluster.
fn each_once(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut said = BTreeSet::new();
    findings.retain(|finding| said.insert(Finding { written: None, ..finding.clone() }));
    findings
}

/// What is so by a write and was not before it, of hosts, of the objects that it writes, of the catalogue and of where tags and tasks run.
pub(super) fn brought(api: &Api, work: &Work<'_>) -> Vec<Finding> {
    let mut findings = Gravest::default();
    findings.extend(newly_found(work));
    findings.extend(newly_uncatalogued_anywhere(work));
    findings.extend(NewlyUnmet::by(work).findings);
    for (kind, uuid) in work.written() {
        let known = of_object(work.before(), kind, uuid);
        findings.extend(of_object(&work.model, kind, uuid).into_iter().filter(|finding| !known.contains(finding)));
    }
    // One fleet after the other: the memory of task sets holds what was resolved last.
    let of_one = |id: NodeId| (id, of_host(api, &work.model, id));
    let found: Vec<_> = work.told_hosts().map(of_one).filter(|(_, found)| strictly(found).is_some()).collect();
    for (id, mut found) in found {
        let known = of_host_before(api, work, id);
        found.retain(|finding| !known.contains(finding));
        findings.extend_of(found.into_iter().map(|finding| (finding, Some(id))));
    }
    each_once(findings.list_by("write", |finding, host| by(work, finding, host)))
}

/// The findings about a host, but for those that are said of all hosts; none of one that is not there.
fn of_host(api: &Api, model: &Model, id: NodeId) -> Vec<Finding> {
    let Some(node) = model.fleet.node(id) else { return Vec::new() };
    let mut found = state::findings_of_answer(api, model, node, &model.resolve(id.0));
    found.retain(is_of_host);
    found
}

/// The findings about a host before a write, under the name that it has now: a host that is renamed is no worse for it.
fn of_host_before(api: &Api, work: &Work<'_>, id: NodeId) -> Vec<Finding> {
    let name = |model: &Model| model.fleet.node(id).map(|node| format!("node/{}", node.display_name()));
    let mut found = of_host(api, work.before(), id);
    if let (Some(before), Some(now)) = (name(work.before()), name(&work.model)) {
        for finding in found.iter_mut().filter(|_| before != now) {
            finding.object = finding.object.replacen(&before, &now, 1);
        }
    }
    found
}

/// What all objects say otherwise than the catalogue by a write of a namespace. Of other writes [`newly_found`] has it.
fn newly_uncatalogued_anywhere(work: &Work<'_>) -> Vec<Finding> {
    if !work.written().any(|(kind, _)| kind == Kind::Namespace) {
        return Vec::new();
    }
    let (meant_before, meant_now) = (Meant::default(), Meant::default());
    let before = all_catalog_findings(&work.before().fleet, &meant_before).take_while(|_| work.is_awaited());
    let known: BTreeSet<Finding> = before.flatten().collect();
    let now = all_catalog_findings(&work.model.fleet, &meant_now).take_while(|_| work.is_awaited());
    now.flatten().filter(|finding| !known.contains(finding)).collect()
}

/// The clusters of which a write changes where tags and tasks fall, or what its roles produce.
fn replaced(work: &Work<'_>) -> BTreeSet<ClusterId> {
    let (before, after) = (work.before(), &work.model);
    let profile = |model: &Model, node| model.fleet.profile(node).map(|profile| profile.hash);
    let moved = work.told_hosts().filter(|node| profile(before, *node) != profile(after, *node));
    let clusters = moved.flat_map(|node| [before, after].map(|model| model.fleet.cluster_of_node(node)));
    let written = work.written().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| Some(ClusterId(uuid)));
    clusters.chain(written).flatten().chain(changed_clusters(work)).collect()
}

/// The clusters in which groups have other roles by a write, or roles that produce something else, also where no host has them yet.
fn changed_clusters(work: &Work<'_>) -> impl Iterator<Item = ClusterId> {
    work.changed_groups().into_iter().filter_map(|group| work.model.fleet.cluster_of_group(group))
}

/// Requirements that nodes which a write reaches do not meet, and met before or were not asked for.
#[derive(Default)]
pub(super) struct NewlyUnmet {
    /// One for each requirement, with how grave it is and who does not meet it.
    pub sentences: Vec<(Severity, String)>,
    /// One for each requirement of each node.
    pub findings: Vec<Finding>,
}

impl NewlyUnmet {
    pub(super) fn by(work: &Work<'_>) -> Self {
        let fleet = &work.model.fleet;
        let written: BTreeSet<NodeId> =
            work.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, node)| NodeId(node)).collect();
        let hosts = work.told_hosts().filter(|node| !written.contains(node));
        let (mut held, mut findings) = (BTreeMap::<Unmet, Vec<String>>::new(), Gravest::default());
        for id in written.iter().copied().chain(hosts).take_while(|_| work.is_awaited()) {
            let Some(node) = fleet.node(id) else { continue };
            if fleet.fold_above(&node.spec).is_none_or(|fold| fold.group.spec.requirements.is_empty()) {
                continue;
            }
            for unmet in newly_unmet(&work.before().fleet, fleet, id) {
                findings.extend_of([(unmet.finding(node), Some(id))]);
                held.entry(unmet).or_default().push(node.display_name());
            }
        }
        let findings = findings.list_by("write", |finding, host| by(work, finding, host));
        let severity = rule::REQUIREMENT_UNMET.severity;
        let sentences = held.iter().map(|(unmet, nodes)| (severity, unmet.sentence(nodes)));
        Self { sentences: sentences.collect(), findings }
    }
}

/// What is found about an object of a write by itself, whoever stands below it.
fn of_object(model: &Model, kind: Kind, uuid: Uuid) -> Vec<Finding> {
    match kind {
        Kind::Release => of_release(model, uuid),
        Kind::ReleaseTags => idle_fields(model.release_tags.get(uuid)),
        Kind::ClusterTemplate => {
            let met = level_findings(&model.fleet, LevelId::Template(TemplateId(uuid)));
            idle_fields(model.templates.get(uuid)).into_iter().chain(met).collect()
        }
        Kind::Cluster => idle_fields(model.clusters.get(uuid)),
        Kind::NodeGroup => model.fleet.fold(GroupId(uuid)).map_or_else(
            |_| Vec::new(),
            |fold| idle::findings(&format!("nodegroup/{}", fold.place()), &fold.group.spec),
        ),
        Kind::Namespace => idle_fields(model.namespaces.get(uuid)),
        Kind::InspectionRule => idle_fields(model.rules.get(uuid)),
        Kind::Allocation => idle_fields(model.allocations.get(uuid)),
        Kind::Principal => idle_fields(model.principals.get(uuid)),
        // What is found about a node stands in its answer. The rest has no spec that anybody gives.
        Kind::Node | Kind::Primary | Kind::Revision | Kind::Secret | Kind::Expectation => Vec::new(),
    }
}

/// Where the objects of a write and the catalogue do not agree; where it writes a namespace, all objects. It ends at the next one where
/// nobody waits any more.
fn of_catalog(work: &Work<'_>, findings: &mut Gravest<NodeId>) {
    let (fleet, meant) = (&work.model.fleet, Meant::default());
    let mut written = work.written();
    if written.any(|(kind, _)| kind == Kind::Namespace) {
        let all = all_catalog_findings(fleet, &meant).take_while(|_| work.is_awaited());
        all.for_each(|found| findings.extend(found));
    } else {
        let objects = work.written().filter_map(|(kind, uuid)| LevelId::of(kind, uuid));
        objects.for_each(|id| findings.extend(catalog_findings_of(fleet, &meant, id)));
    }
}

fn idle_fields<S: Resource>(object: Option<&Arc<Object<S>>>) -> Vec<Finding> {
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
    let mut findings = Gravest::<NodeId>::default();
    let answer = resolve_cluster(&model.fleet, &model.memo, cluster);
    findings.extend(answer.findings);
    findings.extend(api.registry.clock().finding());
    findings
        .extend(answer.nodes.iter().flat_map(|answer| state::findings_of_now(api, model, answer.node(), Some(answer))));
    for (node, missing) in answer.incomplete {
        findings.extend(missing.iter().filter_map(|what| of_broken(model, what)));
        let Some(node) = model.fleet.node(node) else { continue };
        findings.extend(state::findings_of_answer(api, model, node, &Resolution::Incomplete(missing)));
    }
    let name = model.clusters.get(cluster.0).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    findings.list(&format!("cluster/{name}"))
}

/// A release that is stored, and missing because it does not compile.
fn of_broken(model: &Model, missing: &Missing) -> Option<Finding> {
    let Missing::Release(name) = missing else { return None };
    Some(broken(name, model.broken.get(name)?))
}
