//! The findings about everything that a write affects, and about a cluster. Findings refuse a write only if the request
//! is strict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stemma_core::catalog::SuggestionCache;
use stemma_core::finding::{Finding, Rule, Severity, TopFindings, rule, strict_summary};
use stemma_core::fleet::MissingParent;
use stemma_core::object::{ClusterId, GroupId, Kind, LevelId, NodeId, Object, TemplateId};
use stemma_core::requirement::UnmetRequirement;
use stemma_core::resolve::{
    FailingTasks, OutdatedAgents, Resolution, UnsetReferences, all_catalog_findings, cluster_findings, is_aggregated,
    level_findings, new_placement_findings, new_rule_findings, newly_colliding, newly_colliding_below, newly_obstructed,
    newly_orphaned, newly_outdated, newly_parked_primaries, newly_uncatalogued, newly_undeclared, newly_unmet, newly_unset,
    object_catalog_findings, release_broken, resolve_cluster, retain_new_findings, unset_in_empty_groups,
};
use stemma_core::unimplemented;
use uuid::Uuid;

use super::state;
use crate::api::Api;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::registry::work::PendingWrite;

/// Returns the findings that the response to an apply lists: all findings about the affected hosts and the written
/// objects, also those that existed before the write, and some about their clusters ([`affected_cluster_findings`]).
pub(super) fn for_write(api: &Api, work: &PendingWrite<'_>) -> Vec<Finding> {
    let mut clusters = BTreeSet::new();
    let mut findings = TopFindings::default();
    let (mut unset_references, mut failing_tasks) = (UnsetReferences::default(), FailingTasks::default());
    let mut outdated_agents = OutdatedAgents::default();
    for node in work.visible_affected_nodes() {
        clusters.extend(work.model.fleet.cluster_of_node(node));
        let Some(object) = work.model.fleet.node(node) else { continue };
        let resolution = work.model.resolve(node.0);
        let all_findings = state::resolution_findings(api, &work.model, object, &resolution);
        // Unset references, failing tasks and outdated agents are collected, to give one finding for all hosts after the
        // loop.
        let host_findings = all_findings.into_iter().filter(|finding| !is_aggregated(finding));
        findings.extend_with_hosts(host_findings.map(|finding| (finding, Some(node))));
        if let Some(resolved) = resolution.resolved_node() {
            unset_references.add(resolved);
            failing_tasks.add(resolved);
            outdated_agents.add(resolved);
        }
    }
    findings.extend_with_hosts(unset_references.findings_with_host());
    let with_host = failing_tasks.into_findings().chain(outdated_agents.into_findings());
    findings.extend_with_hosts(with_host.map(|(finding, host)| (finding, Some(host))));
    for (kind, uuid) in work.written_objects() {
        // A level is checked even if it has no nodes yet.
        let level = Some(kind).filter(|kind| *kind != Kind::Node);
        clusters.extend(level.and_then(|kind| work.model.fleet.cluster_of_object(kind, uuid)));
        findings.extend(object_findings(&work.model, kind, uuid));
    }
    clusters.extend(changed_clusters(work));
    add_catalog_findings(work, &mut findings);
    findings.extend(newly_orphaned(&work.old_model().fleet, &work.model.fleet, work.visible_affected_nodes()));
    let written = work.written_keys();
    for cluster in clusters.into_iter().take_while(|_| work.is_active()) {
        findings.extend(affected_cluster_findings(work, cluster, &written));
    }
    // If there are too many findings, a last one about the object `apply` counts the rest.
    deduplicate(findings.into_list_with("apply", |finding, host| with_cause(work, finding, host)))
}

/// Returns the findings about a cluster that a write affects: all findings about the written objects (`written`), and
/// the new findings about other objects. Each new finding names the written object that caused it. Findings that other
/// objects had before the write are omitted, because `stemma validate` reports them.
fn affected_cluster_findings(work: &PendingWrite<'_>, cluster: ClusterId, written: &BTreeSet<String>) -> Vec<Finding> {
    let (old, new) = (&work.old_model().fleet, &work.model.fleet);
    let is_written = |finding: &Finding| written.contains(finding.object_and_field().0);
    let (mut findings, mut others): (Vec<_>, Vec<_>) = cluster_findings(new, cluster).into_iter().partition(is_written);
    retain_new_findings(&mut others, old, cluster);
    let (own_unset, mut unset): (Vec<_>, Vec<_>) =
        unset_in_empty_groups(new, new.groups_in_cluster(cluster)).into_iter().partition(is_written);
    if !unset.is_empty() {
        let old_findings: BTreeSet<Finding> = unset_in_empty_groups(old, old.groups_in_cluster(cluster)).into_iter().collect();
        unset.retain(|finding| !old_findings.contains(finding));
    }
    let cause = work.cause_for_cluster(cluster);
    findings.extend(own_unset);
    findings.extend(others.into_iter().chain(unset).map(|finding| Finding { caused_by: cause.clone(), ..finding }));
    findings
}

/// Returns a finding about a host with the written object that caused it, unless the finding is about that object.
fn with_cause(work: &PendingWrite<'_>, finding: Finding, host: NodeId) -> Finding {
    Finding { caused_by: work.cause_for_node(host).filter(|key| *key != finding.object_and_field().0), ..finding }
}

/// The rules whose findings about single hosts are omitted, because another function summarizes them for all hosts:
/// requirements by [`NewUnmetRequirements`], paths and contradicting tasks by [`newly_obstructed`], unknown task types by
/// [`newly_outdated`].
const SUMMARIZED_RULES: [Rule; 4] = [rule::REQUIREMENT_UNMET, rule::TASK_CONFLICT, rule::TASK_PATH, rule::TASK_TYPE];

/// Returns whether a finding about a host is listed for this host alone. No other function summarizes it for all hosts.
fn is_host_finding(finding: &Finding) -> bool {
    SUMMARIZED_RULES.iter().all(|rule| finding.code != rule.code)
}

/// Returns the findings that a write causes, each once, for the response to the write. Examples are labels that
/// templates read and hosts now lack, undeclared roles of the written objects, and tasks that a node no longer runs.
/// Omits unmet requirements, because [`NewUnmetRequirements`] finds these.
pub(super) fn new_findings(work: &PendingWrite<'_>) -> Vec<Finding> {
    let (old, new) = (&work.old_model().fleet, &work.model.fleet);
    let mut findings = newly_unset(old, new, &work.model.resolve_cache, work.visible_affected_nodes());
    let written = work.written_objects().filter_map(|(kind, uuid)| LevelId::new(kind, uuid));
    findings.extend(written.flat_map(|id| {
        let level_findings = newly_undeclared(old, new, id).into_iter().chain(newly_uncatalogued(old, new, id));
        level_findings.chain(newly_colliding_below(old, new, id))
    }));
    for cluster in reassigned_clusters(work).into_iter().take_while(|_| work.is_active()) {
        findings.extend(new_placement_findings(old, new, cluster));
    }
    findings.extend(newly_orphaned(old, new, work.visible_affected_nodes()));
    findings.extend(newly_parked_primaries(old, new, work.visible_affected_nodes()));
    findings.extend(newly_colliding(old, new, work.visible_affected_nodes()));
    findings.extend(
        new_rule_findings(old, new, &work.model.resolve_cache, work.visible_affected_nodes()).into_iter().filter(is_host_finding),
    );
    findings.extend(newly_obstructed(old, new, &work.model.resolve_cache, work.visible_affected_nodes()));
    findings.extend(newly_outdated(old, new, &work.model.resolve_cache, work.visible_affected_nodes()));
    deduplicate(findings)
}

/// Removes findings that differ from an earlier one only in the written object that caused them. For example, a finding
/// about a label that an inspection rule sets is found both for the rule and for the node.
fn deduplicate(mut findings: Vec<Finding>) -> Vec<Finding> {
    let mut unique = BTreeSet::new();
    findings.retain(|finding| unique.insert(Finding { caused_by: None, ..finding.clone() }));
    findings
}

/// Returns all findings that a write causes, by which a strict write is accepted or refused. A host that has neither an
/// error nor a warning after the write is skipped, with its infos.
pub(super) fn introduced_findings(api: &Api, work: &PendingWrite<'_>) -> Vec<Finding> {
    let mut findings = TopFindings::default();
    findings.extend(new_findings(work));
    findings.extend(new_uncatalogued_keys(work));
    findings.extend(NewUnmetRequirements::from_write(work).findings);
    for (kind, uuid) in work.written_objects() {
        let old_findings = object_findings(work.old_model(), kind, uuid);
        findings.extend(object_findings(&work.model, kind, uuid).into_iter().filter(|finding| !old_findings.contains(finding)));
    }
    // All nodes are first checked after the write, then before it, because the cache of task sets holds only those that
    // were resolved last.
    // `strict_summary` returns `None` if a host has neither an error nor a warning. Such a host is skipped.
    let find = |id: NodeId| (id, findings_of_host(api, &work.model, id));
    let found: Vec<_> = work.visible_affected_nodes().map(find).filter(|(_, found)| strict_summary(found).is_some()).collect();
    for (id, mut found) in found {
        let old_findings = findings_of_host_before(api, work, id);
        found.retain(|finding| !old_findings.contains(finding));
        findings.extend_with_hosts(found.into_iter().map(|finding| (finding, Some(id))));
    }
    deduplicate(findings.into_list_with("write", |finding, host| with_cause(work, finding, host)))
}

/// Returns the findings about a host. Omits those that compare its keys with the catalogue, and those of the
/// [`SUMMARIZED_RULES`], because other functions find them. The result is empty if the host does not exist.
fn findings_of_host(api: &Api, model: &Model, id: NodeId) -> Vec<Finding> {
    let Some(node) = model.fleet.node(id) else { return Vec::new() };
    let mut findings = state::resolution_findings(api, model, node, &model.resolve(id.0));
    findings.retain(is_host_finding);
    findings
}

/// Returns the findings that a host had before a write. If the write renames the host, the `object` of each finding has
/// the new name, so that the caller can compare the findings with those after the write. The messages are unchanged.
fn findings_of_host_before(api: &Api, work: &PendingWrite<'_>, id: NodeId) -> Vec<Finding> {
    let name = |model: &Model| model.fleet.node(id).map(|node| format!("node/{}", node.display_name()));
    let mut findings = findings_of_host(api, work.old_model(), id);
    if let (Some(old_name), Some(new_name)) = (name(work.old_model()), name(&work.model)) {
        for finding in findings.iter_mut().filter(|_| old_name != new_name) {
            finding.object = finding.object.replacen(&old_name, &new_name, 1);
        }
    }
    findings
}

/// Returns the findings about keys and values that are no longer in the catalogue, because a write changes a namespace
/// of the catalogue. Any object can have such keys. For any other write the result is empty, because [`new_findings`]
/// checks the catalogue for the written objects. If the client no longer waits for the answer (`is_active` is false),
/// the result is cut short, because the write is then refused.
fn new_uncatalogued_keys(work: &PendingWrite<'_>) -> Vec<Finding> {
    if !work.written_objects().any(|(kind, _)| kind == Kind::Namespace) {
        return Vec::new();
    }
    let (cache_before, cache_after) = (SuggestionCache::default(), SuggestionCache::default());
    let old_batches = all_catalog_findings(&work.old_model().fleet, &cache_before).take_while(|_| work.is_active());
    let old_findings: BTreeSet<Finding> = old_batches.flatten().collect();
    let new_batches = all_catalog_findings(&work.model.fleet, &cache_after).take_while(|_| work.is_active());
    new_batches.flatten().filter(|finding| !old_findings.contains(finding)).collect()
}

/// Returns the clusters in which a write changes where tags and tasks run, or which tags roles produce, and each
/// written cluster. The hash of a node's profile changes with its release, roles, tags and tasks.
fn reassigned_clusters(work: &PendingWrite<'_>) -> BTreeSet<ClusterId> {
    let (old_model, new_model) = (work.old_model(), &work.model);
    let profile = |model: &Model, node| model.fleet.profile(node).map(|profile| profile.hash);
    let moved_nodes = work.visible_affected_nodes().filter(|node| profile(old_model, *node) != profile(new_model, *node));
    let clusters = moved_nodes.flat_map(|node| [old_model, new_model].map(|model| model.fleet.cluster_of_node(node)));
    let written = work.written_objects().filter(|(kind, _)| *kind == Kind::Cluster).map(|(_, uuid)| Some(ClusterId(uuid)));
    clusters.chain(written).flatten().chain(changed_clusters(work)).collect()
}

/// Returns the clusters in which a write changes the roles of existing groups, or the tags that those roles produce.
/// Groups without hosts count too.
fn changed_clusters(work: &PendingWrite<'_>) -> impl Iterator<Item = ClusterId> {
    work.groups_with_changed_roles().into_iter().filter_map(|group| work.model.fleet.cluster_of_group(group))
}

/// The requirements that nodes do not meet after a write, and that these nodes met or did not have before it.
#[derive(Default)]
pub(super) struct NewUnmetRequirements {
    /// One sentence for each requirement, with its severity and the nodes that do not meet it.
    pub sentences: Vec<(Severity, String)>,
    /// One finding for each requirement of each node, up to the limit of a response. A last one counts the others.
    pub findings: Vec<Finding>,
}

impl NewUnmetRequirements {
    /// Finds the newly unmet requirements of the nodes that a write changes or affects. The nodes that were written
    /// themselves are the first in each sentence.
    pub(super) fn from_write(work: &PendingWrite<'_>) -> Self {
        let fleet = &work.model.fleet;
        let written: BTreeSet<NodeId> =
            work.written_objects().filter(|(kind, _)| *kind == Kind::Node).map(|(_, node)| NodeId(node)).collect();
        let hosts = work.visible_affected_nodes().filter(|node| !written.contains(node));
        let (mut nodes_by_requirement, mut findings) = (BTreeMap::<UnmetRequirement, Vec<String>>::new(), TopFindings::default());
        for id in written.iter().copied().chain(hosts).take_while(|_| work.is_active()) {
            let Some(node) = fleet.node(id) else { continue };
            if fleet.resolved_parent(&node.spec).is_none_or(|resolved_group| resolved_group.group.spec.requirements.is_empty()) {
                continue;
            }
            for unmet in newly_unmet(&work.old_model().fleet, fleet, id) {
                findings.extend_with_hosts([(unmet.finding(node), Some(id))]);
                nodes_by_requirement.entry(unmet).or_default().push(node.display_name());
            }
        }
        let findings = findings.into_list_with("write", |finding, host| with_cause(work, finding, host));
        let severity = rule::REQUIREMENT_UNMET.severity;
        let sentences = nodes_by_requirement.iter().map(|(unmet, nodes)| (severity, unmet.message(nodes)));
        Self { sentences: sentences.collect(), findings }
    }
}

/// Returns the findings about a written object alone that no other function finds: those about fields on which nothing
/// acts yet, about a release as a whole, and about colliding labels of a cluster template.
fn object_findings(model: &Model, kind: Kind, uuid: Uuid) -> Vec<Finding> {
    match kind {
        Kind::Release => release_findings(model, uuid),
        Kind::ReleaseTags => unimplemented_fields(model.release_tags.get(uuid)),
        Kind::ClusterTemplate => {
            let collisions = level_findings(&model.fleet, LevelId::Template(TemplateId(uuid)));
            unimplemented_fields(model.templates.get(uuid)).into_iter().chain(collisions).collect()
        }
        Kind::Cluster => unimplemented_fields(model.clusters.get(uuid)),
        Kind::NodeGroup => model.fleet.resolved_group(GroupId(uuid)).map_or_else(
            |_| Vec::new(),
            |resolved_group| unimplemented::findings(&format!("nodegroup/{}", resolved_group.path()), &resolved_group.group.spec),
        ),
        Kind::Namespace => unimplemented_fields(model.namespaces.get(uuid)),
        Kind::InspectionRule => unimplemented_fields(model.rules.get(uuid)),
        Kind::Allocation => unimplemented_fields(model.allocations.get(uuid)),
        Kind::Principal => unimplemented_fields(model.principals.get(uuid)),
        // The findings about a node are computed with its resolution. The other kinds have no spec that an author
        // provides.
        Kind::Node | Kind::Primary | Kind::Revision | Kind::Secret | Kind::Expectation => Vec::new(),
    }
}

/// Adds the findings of the catalogue about the written objects, or about all objects if the write changes a namespace.
/// The check of all objects stops early if the client has disconnected.
fn add_catalog_findings(work: &PendingWrite<'_>, findings: &mut TopFindings<NodeId>) {
    let (fleet, cache) = (&work.model.fleet, SuggestionCache::default());
    let mut written = work.written_objects();
    // A namespace of the catalogue restricts the keys of all objects.
    if written.any(|(kind, _)| kind == Kind::Namespace) {
        let findings_by_object = all_catalog_findings(fleet, &cache).take_while(|_| work.is_active());
        findings_by_object.for_each(|found| findings.extend(found));
    } else {
        let objects = work.written_objects().filter_map(|(kind, uuid)| LevelId::new(kind, uuid));
        objects.for_each(|id| findings.extend(object_catalog_findings(fleet, &cache, id)));
    }
}

/// Returns the findings about fields of an object on which nothing acts yet (`field.idle`).
fn unimplemented_fields<S: Resource>(object: Option<&Arc<Object<S>>>) -> Vec<Finding> {
    let name = |object: &Object<S>| S::name_text(&object.meta.name).unwrap_or_default();
    let find = |object: &Arc<Object<S>>| unimplemented::findings(&format!("{}/{}", S::KIND.word(), name(object)), &object.spec);
    object.map(find).unwrap_or_default()
}

/// Returns the findings about a release alone, without findings about the nodes that run it.
fn release_findings(model: &Model, uuid: Uuid) -> Vec<Finding> {
    let compiled = model.releases.get(uuid).and_then(|release| model.fleet.release(&release.meta.name));
    compiled.map(|compiled| compiled.findings.clone()).unwrap_or_default()
}

/// Returns the findings for the validation of a cluster: those about the cluster, its template, its groups and nodes,
/// those about the releases of the nodes, and one if the clock of the controller is suspect.
pub(super) fn for_cluster(api: &Api, model: &Model, cluster: ClusterId) -> Vec<Finding> {
    let mut findings = TopFindings::<NodeId>::default();
    let resolution = resolve_cluster(&model.fleet, &model.resolve_cache, cluster);
    findings.extend(resolution.findings);
    findings.extend(api.registry.clock().finding());
    findings.extend(resolution.nodes.iter().flat_map(|node| state::current_findings(api, model, node.node(), Some(node))));
    for (node, missing) in resolution.incomplete {
        findings.extend(missing.iter().filter_map(|parent| broken_release_finding(model, parent)));
        let Some(node) = model.fleet.node(node) else { continue };
        findings.extend(state::resolution_findings(api, model, node, &Resolution::Incomplete(missing)));
    }
    let name = model.clusters.get(cluster.0).map(|cluster| cluster.meta.name.to_string()).unwrap_or_default();
    findings.into_list(&format!("cluster/{name}"))
}

/// Returns the finding about a missing release, if the release is stored but does not compile.
fn broken_release_finding(model: &Model, missing: &MissingParent) -> Option<Finding> {
    let MissingParent::Release(name) = missing else { return None };
    Some(release_broken(name, model.broken_releases.get(name)?))
}
