//! The findings about what a write affects, and about a cluster. Because of findings a write is refused only if the
//! request is strict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stemma_core::catalog::SuggestionCache;
use stemma_core::finding::{Finding, Rule, Severity, TopFindings, rule, strict_summary};
use stemma_core::fleet::MissingParent;
use stemma_core::object::{ClusterId, GroupId, Kind, LevelId, NodeId, Object, TemplateId};
use stemma_core::requirement::UnmetRequirement;
use stemma_core::resolve::{
    FailingTasks, Resolution, UnsetReferences, all_catalog_findings, cluster_findings, is_aggregated, level_findings,
    new_placement_findings, new_rule_findings, newly_colliding, newly_colliding_below, newly_orphaned, newly_parked_primaries,
    newly_uncatalogued, newly_undeclared, newly_unmet, newly_unset, newly_without_path, object_catalog_findings, release_broken,
    resolve_cluster, retain_new, unset_in_empty_groups,
};
use stemma_core::unimplemented;
use uuid::Uuid;

use super::state;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::registry::work::PendingWrite;

/// Returns the findings about everything that a write affects: its hosts, the written objects and their clusters.
pub(super) fn for_write(api: &Api, work: &PendingWrite<'_>) -> Vec<Finding> {
    let mut clusters = BTreeSet::new();
    let mut findings = TopFindings::default();
    let (mut unset, mut failed) = (UnsetReferences::default(), FailingTasks::default());
    for node in work.visible_hosts() {
        clusters.extend(work.model.fleet.cluster_of_node(node));
        let Some(object) = work.model.fleet.node(node) else { continue };
        let resolution = work.model.resolve(node.0);
        let found = state::resolution_findings(api, &work.model, object, &resolution);
        let own = found.into_iter().filter(|finding| !is_aggregated(finding));
        findings.extend_with_hosts(own.map(|finding| (finding, Some(node))));
        if let Some(answer) = resolution.resolved_node() {
            unset.add(answer);
            failed.add(answer);
        }
    }
    findings.extend_with_hosts(unset.findings_with_host());
    findings.extend_with_hosts(failed.into_findings().map(|(finding, host)| (finding, Some(host))));
    for (kind, uuid) in work.written_objects() {
        // A level is checked even if it has no nodes yet.
        let level = Some(kind).filter(|kind| *kind != Kind::Node);
        clusters.extend(level.and_then(|kind| work.model.fleet.cluster_of_object(kind, uuid)));
        findings.extend(for_object(&work.model, kind, uuid));
    }
    clusters.extend(changed_clusters(work));
    add_catalog_findings(work, &mut findings);
    findings.extend(newly_orphaned(&work.before().fleet, &work.model.fleet, work.visible_hosts()));
    let written = work.written_keys();
    for cluster in clusters.into_iter().take_while(|_| work.is_active()) {
        findings.extend(for_affected_cluster(work, cluster, &written));
    }
    deduplicate(findings.into_list_with("apply", |finding, host| with_cause(work, finding, host)))
}

/// Returns the findings about a cluster that a write affects: all findings about the written objects (`written`), and
/// the new findings about other objects. Each new finding names the written object that caused it. Findings that other
/// objects had before the write are omitted; `stemma validate` reports them.
fn for_affected_cluster(work: &PendingWrite<'_>, cluster: ClusterId, written: &BTreeSet<String>) -> Vec<Finding> {
    let (before, after) = (&work.before().fleet, &work.model.fleet);
    let is_own = |finding: &Finding| written.contains(finding.object_and_field().0);
    let (mut found, mut others): (Vec<_>, Vec<_>) = cluster_findings(after, cluster).into_iter().partition(is_own);
    retain_new(&mut others, before, cluster);
    let (own, mut unset): (Vec<_>, Vec<_>) =
        unset_in_empty_groups(after, after.groups_in_cluster(cluster)).into_iter().partition(is_own);
    if !unset.is_empty() {
        let known: BTreeSet<Finding> = unset_in_empty_groups(before, before.groups_in_cluster(cluster)).into_iter().collect();
        unset.retain(|finding| !known.contains(finding));
    }
    let cause = work.cause_for_cluster(cluster);
    found.extend(own);
    found.extend(others.into_iter().chain(unset).map(|finding| Finding { caused_by: cause.clone(), ..finding }));
    found
}

/// Adds to a finding about a host the written object that caused it.
fn with_cause(work: &PendingWrite<'_>, finding: Finding, host: NodeId) -> Finding {
    Finding { caused_by: work.cause_for_node(host).filter(|key| *key != finding.object_and_field().0), ..finding }
}

/// The rules whose findings about single hosts are omitted, because another function summarizes them for all hosts:
/// requirements by [`NewUnmetRequirements`], paths by [`newly_without_path`].
const SUMMARIZED_RULES: [Rule; 2] = [rule::REQUIREMENT_UNMET, rule::TASK_PATH];

/// Returns whether a finding is about one host only, and not summarized for all hosts.
fn is_host_finding(finding: &Finding) -> bool {
    SUMMARIZED_RULES.iter().all(|rule| finding.code != rule.code)
}

/// Returns the findings that a write causes, each once. Among them are references that hosts now lack, undeclared roles
/// and uncatalogued keys of the written objects, and tags and tasks that no longer run anywhere. Requirements are left
/// to [`NewUnmetRequirements`].
pub(super) fn new_findings(work: &PendingWrite<'_>) -> Vec<Finding> {
    let (before, after) = (&work.before().fleet, &work.model.fleet);
    let mut found = newly_unset(before, after, &work.model.resolve_cache, work.visible_hosts());
    let written = work.written_objects().filter_map(|(kind, uuid)| LevelId::new(kind, uuid));
    found.extend(written.flat_map(|id| {
        let own = newly_undeclared(before, after, id).into_iter().chain(newly_uncatalogued(before, after, id));
        own.chain(newly_colliding_below(before, after, id))
    }));
    for cluster in reassigned_clusters(work).into_iter().take_while(|_| work.is_active()) {
        found.extend(new_placement_findings(before, after, cluster));
    }
    found.extend(newly_orphaned(before, after, work.visible_hosts()));
    found.extend(newly_parked_primaries(before, after, work.visible_hosts()));
    found.extend(newly_colliding(before, after, work.visible_hosts()));
    found.extend(
        new_rule_findings(before, after, &work.model.resolve_cache, work.visible_hosts()).into_iter().filter(is_host_finding),
    );
    found.extend(newly_without_path(before, after, &work.model.resolve_cache, work.visible_hosts()));
    deduplicate(found)
}

/// Removes findings that differ from an earlier one at most in the written object that caused them. For example, what
/// an inspection rule gives a node is found both for the rule and for the node.
fn deduplicate(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    findings.retain(|finding| seen.insert(Finding { caused_by: None, ..finding.clone() }));
    findings
}

/// Returns the findings that a write causes about hosts, the written objects, the catalogue, and where tags and tasks
/// run.
pub(super) fn introduced_findings(api: &Api, work: &PendingWrite<'_>) -> Vec<Finding> {
    let mut findings = TopFindings::default();
    findings.extend(new_findings(work));
    findings.extend(new_uncatalogued_keys(work));
    findings.extend(NewUnmetRequirements::from_write(work).findings);
    for (kind, uuid) in work.written_objects() {
        let known = for_object(work.before(), kind, uuid);
        findings.extend(for_object(&work.model, kind, uuid).into_iter().filter(|finding| !known.contains(finding)));
    }
    // All nodes are first checked after the write, then before it, because the cache of task sets holds only those that
    // were resolved last.
    let find = |id: NodeId| (id, for_host(api, &work.model, id));
    let found: Vec<_> = work.visible_hosts().map(find).filter(|(_, found)| strict_summary(found).is_some()).collect();
    for (id, mut found) in found {
        let known = for_host_before(api, work, id);
        found.retain(|finding| !known.contains(finding));
        findings.extend_with_hosts(found.into_iter().map(|finding| (finding, Some(id))));
    }
    deduplicate(findings.into_list_with("write", |finding, host| with_cause(work, finding, host)))
}

/// Returns the findings about a host, except those of [`SUMMARIZED_RULES`]. Empty if the host does not exist.
fn for_host(api: &Api, model: &Model, id: NodeId) -> Vec<Finding> {
    let Some(node) = model.fleet.node(id) else { return Vec::new() };
    let mut found = state::resolution_findings(api, model, node, &model.resolve(id.0));
    found.retain(is_host_finding);
    found
}

/// Returns the findings about a host before a write, with the name that the host has after it. A renamed host therefore
/// causes no new findings.
fn for_host_before(api: &Api, work: &PendingWrite<'_>, id: NodeId) -> Vec<Finding> {
    let name = |model: &Model| model.fleet.node(id).map(|node| format!("node/{}", node.display_name()));
    let mut found = for_host(api, work.before(), id);
    if let (Some(before), Some(now)) = (name(work.before()), name(&work.model)) {
        for finding in found.iter_mut().filter(|_| before != now) {
            finding.object = finding.object.replacen(&before, &now, 1);
        }
    }
    found
}

/// Returns the findings about keys and values, in all objects, that are uncatalogued because a write changes a
/// namespace. Empty for other writes: what these cause is among [`new_findings`].
fn new_uncatalogued_keys(work: &PendingWrite<'_>) -> Vec<Finding> {
    if !work.written_objects().any(|(kind, _)| kind == Kind::Namespace) {
        return Vec::new();
    }
    let (meant_before, meant_now) = (SuggestionCache::default(), SuggestionCache::default());
    let before = all_catalog_findings(&work.before().fleet, &meant_before).take_while(|_| work.is_active());
    let known: BTreeSet<Finding> = before.flatten().collect();
    let now = all_catalog_findings(&work.model.fleet, &meant_now).take_while(|_| work.is_active());
    now.flatten().filter(|finding| !known.contains(finding)).collect()
}

/// Returns the clusters in which a write changes where tags and tasks run, or what roles produce.
fn reassigned_clusters(work: &PendingWrite<'_>) -> BTreeSet<ClusterId> {
    let (before, after) = (work.before(), &work.model);
    let profile = |model: &Model, node| model.fleet.profile(node).map(|profile| profile.hash);
    let moved = work.visible_hosts().filter(|node| profile(before, *node) != profile(after, *node));
    let clusters = moved.flat_map(|node| [before, after].map(|model| model.fleet.cluster_of_node(node)));
    let written = work.written_objects().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| Some(ClusterId(uuid)));
    clusters.chain(written).flatten().chain(changed_clusters(work)).collect()
}

/// Returns the clusters in which a write changes the roles of groups, or what those roles produce, also if the groups
/// have no hosts.
fn changed_clusters(work: &PendingWrite<'_>) -> impl Iterator<Item = ClusterId> {
    work.changed_groups().into_iter().filter_map(|group| work.model.fleet.cluster_of_group(group))
}

/// The requirements that nodes do not meet after a write, and that these nodes met or did not have before it.
#[derive(Default)]
pub(super) struct NewUnmetRequirements {
    /// One sentence for each requirement, with its severity and the nodes that do not meet it.
    pub sentences: Vec<(Severity, String)>,
    /// One finding for each requirement of each node.
    pub findings: Vec<Finding>,
}

impl NewUnmetRequirements {
    /// Finds these requirements for the nodes that a write changes or affects. The written nodes come first.
    pub(super) fn from_write(work: &PendingWrite<'_>) -> Self {
        let fleet = &work.model.fleet;
        let written: BTreeSet<NodeId> =
            work.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, node)| NodeId(node)).collect();
        let hosts = work.visible_hosts().filter(|node| !written.contains(node));
        let (mut lacking, mut findings) = (BTreeMap::<UnmetRequirement, Vec<String>>::new(), TopFindings::default());
        for id in written.iter().copied().chain(hosts).take_while(|_| work.is_active()) {
            let Some(node) = fleet.node(id) else { continue };
            if fleet.resolved_parent(&node.spec).is_none_or(|fold| fold.group.spec.requirements.is_empty()) {
                continue;
            }
            for unmet in newly_unmet(&work.before().fleet, fleet, id) {
                findings.extend_with_hosts([(unmet.finding(node), Some(id))]);
                lacking.entry(unmet).or_default().push(node.display_name());
            }
        }
        let findings = findings.into_list_with("write", |finding, host| with_cause(work, finding, host));
        let severity = rule::REQUIREMENT_UNMET.severity;
        let sentences = lacking.iter().map(|(unmet, nodes)| (severity, unmet.message(nodes)));
        Self { sentences: sentences.collect(), findings }
    }
}

/// Returns the findings about a written object alone, without findings about the objects below it.
fn for_object(model: &Model, kind: Kind, uuid: Uuid) -> Vec<Finding> {
    match kind {
        Kind::Release => for_release(model, uuid),
        Kind::ReleaseTags => unimplemented_fields(model.release_tags.get(uuid)),
        Kind::ClusterTemplate => {
            let found = level_findings(&model.fleet, LevelId::Template(TemplateId(uuid)));
            unimplemented_fields(model.templates.get(uuid)).into_iter().chain(found).collect()
        }
        Kind::Cluster => unimplemented_fields(model.clusters.get(uuid)),
        Kind::NodeGroup => model
            .fleet
            .resolved_group(GroupId(uuid))
            .map_or_else(|_| Vec::new(), |fold| unimplemented::findings(&format!("nodegroup/{}", fold.path()), &fold.group.spec)),
        Kind::Namespace => unimplemented_fields(model.namespaces.get(uuid)),
        Kind::InspectionRule => unimplemented_fields(model.rules.get(uuid)),
        Kind::Allocation => unimplemented_fields(model.allocations.get(uuid)),
        Kind::Principal => unimplemented_fields(model.principals.get(uuid)),
        // The findings about a node are computed with its resolution. The other kinds have no spec that an author
        // provides.
        Kind::Node | Kind::Primary | Kind::Revision | Kind::Secret | Kind::Expectation => Vec::new(),
    }
}

/// Adds the findings of the catalogue about the written objects, or about all objects if a namespace is written. Stops
/// at the next object if the client has disconnected.
fn add_catalog_findings(work: &PendingWrite<'_>, findings: &mut TopFindings<NodeId>) {
    let (fleet, cache) = (&work.model.fleet, SuggestionCache::default());
    let mut written = work.written_objects();
    if written.any(|(kind, _)| kind == Kind::Namespace) {
        let all = all_catalog_findings(fleet, &cache).take_while(|_| work.is_active());
        all.for_each(|found| findings.extend(found));
    } else {
        let objects = work.written_objects().filter_map(|(kind, uuid)| LevelId::new(kind, uuid));
        objects.for_each(|id| findings.extend(object_catalog_findings(fleet, &cache, id)));
    }
}

fn unimplemented_fields<S: Resource>(object: Option<&Arc<Object<S>>>) -> Vec<Finding> {
    let name = |object: &Object<S>| S::name_text(&object.meta.name).unwrap_or_default();
    let found = |object: &Arc<Object<S>>| unimplemented::findings(&format!("{}/{}", S::KIND.word(), name(object)), &object.spec);
    object.map(found).unwrap_or_default()
}

/// Returns the findings about a release alone, without findings about the nodes that run it.
fn for_release(model: &Model, uuid: Uuid) -> Vec<Finding> {
    let compiled = model.releases.get(uuid).and_then(|release| model.fleet.release(&release.meta.name));
    compiled.map(|compiled| compiled.findings.clone()).unwrap_or_default()
}

/// Returns the findings about a cluster and its nodes.
pub(super) fn for_cluster(api: &Api, model: &Model, cluster: ClusterId) -> Vec<Finding> {
    let mut findings = TopFindings::<NodeId>::default();
    let answer = resolve_cluster(&model.fleet, &model.resolve_cache, cluster);
    findings.extend(answer.findings);
    findings.extend(api.registry.clock().finding());
    findings.extend(answer.nodes.iter().flat_map(|answer| state::current_findings(api, model, answer.node(), Some(answer))));
    for (node, missing) in answer.incomplete {
        findings.extend(missing.iter().filter_map(|parent| for_broken_release(model, parent)));
        let Some(node) = model.fleet.node(node) else { continue };
        findings.extend(state::resolution_findings(api, model, node, &Resolution::Incomplete(missing)));
    }
    let name = model.clusters.get(cluster.0).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    findings.into_list(&format!("cluster/{name}"))
}

/// Returns the finding about a release that is stored but does not compile.
fn for_broken_release(model: &Model, missing: &MissingParent) -> Option<Finding> {
    let MissingParent::Release(name) = missing else { return None };
    Some(release_broken(name, model.broken_releases.get(name)?))
}
