//! Refuses a write that makes an object larger than the limit of its kind. Also refuses a write that makes the labels
//! or the desired state of a host larger than an agent accepts, or the stored task sets of a cluster larger than its
//! quota.
//!
//! An agent refuses a desired state that is too large and continues with the old state, while the users believe that
//! the host was updated. So the write that causes this is refused. The write is refused only because of nodes that it
//! affects, and only if a size grows. So a fleet that is already too large can be reduced step by step.
//!
//! A write can affect a hundred thousand nodes. Labels are checked for each written template and cluster, and for each
//! group. Labels and desired states of nodes are checked once for each group and profile, then only for nodes whose own
//! values could exceed a limit. The stored own values are added up for all nodes, because they may differ widely within
//! a group. Later facts and reports are not considered. The reconciler publishes no state that is too large.

use std::collections::BTreeMap;

use bytes::Bytes;
use stemma_core::fleet::{InheritedMaps, Levels};
use stemma_core::input::Input;
use stemma_core::labels::{EffectiveTooLarge, Labels, Layer, MAX_EFFECTIVE_BYTES};
use stemma_core::object::{ClusterId, GroupId, Inherited, Kind, NodeId, Object, TemplateId};
use stemma_core::release::ProfileHash;
use stemma_core::resolve::{Resolution, ResolvedNode};
use stemma_core::rollout::{ReleaseState, max_record_bytes};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::desired::{InputValue, MAX_DESIRED_BYTES};
use uuid::Uuid;

use super::PendingWrite;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::cache::released::candidate;
use crate::desired::encode::MAX_REASON_CHARS;
use crate::desired::size::{TooLarge, next_size};
use crate::records::audit::AuditedObject;
use crate::records::chunks::min_record_bytes;
use crate::records::codec;
use crate::registry::names::group_path;

/// Maximum number of times that a desired state contains one value: as a label, as an input of tasks, as a part of
/// other inputs, and together with its origin.
const MAX_COPIES_OF_VALUE: usize = 4;
/// The size in bytes that a node's name, facts and tags may add to its desired state, compared to the first checked
/// node of the same group and profile.
const NODE_SLACK_BYTES: usize = 16 * 1024;

/// The sizes of the stored task sets ("records") of the affected nodes of one cluster.
#[derive(Default)]
struct ClusterRecordSizes {
    /// The affected nodes that are in the cluster after the write.
    nodes: Vec<NodeId>,
    /// Estimated size of the records of these nodes after the write, in bytes.
    after_bytes: u64,
    /// Size of the records of these nodes that now counts against the cluster's quota, in bytes.
    stored_bytes: u64,
    /// Size of the records of nodes that leave the cluster or are deleted, in bytes. They now count against the
    /// cluster's quota.
    leaving_bytes: u64,
}

/// The sizes of the desired state and of the effective labels of the first checked node of a group and profile.
struct NodeSizes {
    desired_bytes: usize,
    label_bytes: usize,
}

impl NodeSizes {
    /// Returns whether another node of the group and profile, whose own values have `own_bytes` bytes, certainly stays
    /// within the limits of both sizes.
    const fn has_room(&self, own_bytes: usize) -> bool {
        self.desired_bytes + MAX_COPIES_OF_VALUE * own_bytes + NODE_SLACK_BYTES <= MAX_DESIRED_BYTES
            && self.label_bytes + own_bytes <= MAX_EFFECTIVE_BYTES
    }
}

/// The group and the profile of a node. Nodes with the same pair have similar desired states.
type GroupProfile = (Option<GroupId>, Option<ProfileHash>);

/// The object that the error of a size check names.
#[derive(derive_more::Display)]
#[display("{} {name}", kind.word())]
struct OversizedObject {
    kind: Kind,
    name: String,
    /// The key (`KIND/NAME`) of the written object that makes this object too large, or `None` if it is not known.
    cause: Option<String>,
}

impl PendingWrite<'_> {
    /// Refuses a write that makes effective labels, a desired state or the stored task sets of a cluster too large.
    ///
    /// # Errors
    /// Fails with the level whose size exceeds a limit, the size, and advice.
    pub(super) fn check_sizes(&self) -> Result<(), ApiError> {
        for AuditedObject { kind, uuid, name, .. } in self.draft.audited() {
            let labels = |model: &Model| Some(InheritedMaps::from_levels(&inherited_levels(model, *kind, *uuid)?).labels);
            check_labels(|| OversizedObject::new(*kind, name), || labels(self.context.full_model), labels(&self.model))?;
        }
        self.check_groups()?;
        self.check_nodes()
    }

    /// Checks the size of the effective labels of groups that are new, or changed directly or by a level above them.
    fn check_groups(&self) -> Result<(), ApiError> {
        for group in self.new_or_changed_groups() {
            let labels = |model: &Model| model.fleet.resolved_group(group).ok().map(|group| group.maps.labels.clone());
            let level = || {
                let cluster = self.model.groups.get(group.0).map(|group| group.spec.cluster);
                let name = group_path(&self.model, group).unwrap_or_else(|| group.0.to_string());
                let cause = cluster.and_then(|cluster| self.cause_for_cluster(cluster));
                OversizedObject { cause, ..OversizedObject::new(Kind::NodeGroup, name) }
            };
            check_labels(level, || labels(self.context.full_model), labels(&self.model))?;
        }
        Ok(())
    }

    /// Checks the labels and desired states of the affected nodes, and for each cluster the total size of the stored
    /// task sets of its nodes. Skips nodes that cannot be resolved, because an object above them is missing.
    fn check_nodes(&self) -> Result<(), ApiError> {
        let mut first_sizes: BTreeMap<GroupProfile, NodeSizes> = BTreeMap::new();
        let mut records: BTreeMap<Option<ClusterId>, ClusterRecordSizes> = BTreeMap::new();
        for node in self.affected_nodes() {
            let Some(object) = self.model.nodes.get(node.0) else { continue };
            let Resolution::Complete(resolved_node) = self.model.resolve(node.0) else { continue };
            let group_profile = (object.spec.nodegroup, self.model.fleet.profile(node).map(|profile| profile.hash));
            let mut is_allowed = first_sizes.get(&group_profile).is_some_and(|first| first.has_room(self.node_bytes(node)));
            if !is_allowed && let Some(sizes) = self.check_node(&resolved_node)? {
                first_sizes.entry(group_profile).or_insert(sizes);
                is_allowed = true;
            }
            let cluster = self.model.fleet.cluster_of_node(node);
            let record = self.context.record_quota().node_usage(node);
            if let Some((old_cluster, bytes)) = record.filter(|(record_cluster, _)| cluster != *record_cluster) {
                records.entry(old_cluster).or_default().leaving_bytes += bytes;
            }
            let current_bytes = record.map_or(0, |(_, bytes)| bytes);
            // A node whose desired state is too large gets no new task set, so its record is unchanged.
            let release_state =
                if is_allowed { candidate(&self.model, &resolved_node).state(self.context.now) } else { ReleaseState::Current };
            let sizes = records.entry(cluster).or_default();
            sizes.nodes.push(node);
            sizes.stored_bytes += bytes_in_cluster(cluster, record);
            sizes.after_bytes += release_state.record_bytes(current_bytes, record_bytes(&resolved_node));
        }
        for node in &self.affected.deleted {
            let record = self.context.record_quota().node_usage(NodeId(*node));
            if let Some((old_cluster, bytes)) = record {
                records.entry(old_cluster).or_default().leaving_bytes += bytes;
            }
        }
        records.iter().try_for_each(|(cluster, records)| self.check_records(*cluster, records))
    }

    /// Checks the labels and desired state of one node, and returns their sizes. Returns `None` if the desired state is
    /// too large, but was at least as large before the write.
    fn check_node(&self, resolved_node: &ResolvedNode) -> Result<Option<NodeSizes>, ApiError> {
        let (node, object) = (resolved_node.id(), resolved_node.node());
        let resolve_old = || self.context.full_model.resolve(node.0);
        let level =
            || OversizedObject { cause: self.cause_for_node(node), ..OversizedObject::new(Kind::Node, object.display_name()) };
        check_labels(level, || resolve_old().resolved_node().map(|old_node| old_node.labels()), Some(resolved_node.labels()))?;
        match next_size(resolved_node) {
            Ok(desired_bytes) => Ok(Some(NodeSizes { desired_bytes, label_bytes: resolved_node.labels().size_bytes() })),
            Err(error) => {
                let old_error = resolve_old().resolved_node().and_then(|old_node| next_size(old_node).err());
                if old_error.is_none_or(|old_error| error.is_worse_than(&old_error)) {
                    return Err(oversized_desired_refusal(&level(), &error));
                }
                Ok(None)
            }
        }
    }

    /// Fails if the stored task sets of a cluster's nodes exceed the cluster's quota after the write, and the write
    /// increases the excess. If `cluster` is `None`, the nodes without a cluster are checked together.
    fn check_records(&self, cluster: Option<ClusterId>, records: &ClusterRecordSizes) -> Result<(), ApiError> {
        let ClusterRecordSizes { nodes, after_bytes, stored_bytes, leaving_bytes } = records;
        let quota_of = |model: &Model| max_record_bytes(model.count_nodes_in(cluster));
        let (quota, old_quota) = (quota_of(&self.model), quota_of(self.context.full_model));
        let total = self.context.record_quota().cluster_usage(cluster).saturating_sub(stored_bytes + leaving_bytes) + after_bytes;
        if total <= quota {
            return Ok(());
        }
        // The old sizes are computed after all new sizes, because the cache holds one state of a group at a time.
        // Alternating between the two would be slow.
        let old_bytes = nodes.iter().take_while(|_| self.is_active()).map(|node| self.record_bytes_before(cluster, *node));
        let old_bytes = leaving_bytes + old_bytes.sum::<u64>();
        // The write is accepted if the size does not grow, or grows no more than the quota. A node that leaves lowers
        // the quota, and may leave even if the other nodes exceed the lower quota.
        if *after_bytes <= old_bytes || after_bytes + old_quota <= old_bytes + quota {
            return Ok(());
        }
        Err(self.oversized_records_refusal(cluster, total, quota))
    }

    /// Returns the bytes of this cluster's quota that the record of a node uses now, or would use later without this
    /// write. The larger of the two is returned.
    fn record_bytes_before(&self, cluster: Option<ClusterId>, node: NodeId) -> u64 {
        let full_model = self.context.full_model;
        let was_member = full_model.nodes.get(node.0).is_some() && full_model.fleet.cluster_of_node(node) == cluster;
        let old_resolution = was_member.then(|| self.context.full_model.resolve(node.0));
        let next_bytes = old_resolution.as_ref().and_then(Resolution::resolved_node).map_or(0, |old_node| record_bytes(old_node));
        let record_usage = self.context.record_quota().node_usage(node);
        next_bytes.max(bytes_in_cluster(cluster, record_usage))
    }

    /// Returns the error for stored task sets that would have `total_bytes` bytes together and exceed the limit. If
    /// `cluster` is `None`, they belong to the nodes without a cluster.
    fn oversized_records_refusal(&self, cluster: Option<ClusterId>, total_bytes: u64, max_bytes: u64) -> ApiError {
        let Some(cluster) = cluster else {
            let message = format!(
                "own values of the nodes without a cluster would take {total_bytes} bytes together, and the limit is \
                 {max_bytes}; nothing was changed"
            );
            let advice = "end the holds of such nodes, or delete the nodes";
            return ApiError::new(ErrorType::ObjectTooMany, message).detail(advice);
        };
        let name = self.cluster_name(cluster);
        let message = format!(
            "what is released to the nodes of cluster {name} would take about {total_bytes} bytes together, without the values that many of them share, \
             and the limit is {max_bytes}; nothing was changed"
        );
        let advice = "let tasks read fewer of the nodes' own values: single labels instead of labels_with_prefix or whole parameters; \
                      or end holds of its nodes; or divide the cluster";
        let refusal = ApiError::new(ErrorType::ObjectTooMany, message).detail(advice);
        OversizedObject { cause: self.cause_for_cluster(cluster), ..OversizedObject::new(Kind::Cluster, name) }.add_to(refusal)
    }

    /// Returns the maximum size that a node's own values can add to the inherited values, in bytes. Own values are
    /// labels, annotations, parameters, reported labels and the results of inspection rules.
    fn node_bytes(&self, node: NodeId) -> usize {
        let Some(object) = self.model.nodes.get(node.0) else { return 0 };
        let Inherited { labels, annotations, parameters, .. } = &object.spec.inherited;
        let report = self.model.fleet.observation(node);
        let reported = report.iter().flat_map(|report| report.labels.iter()).map(|label| label.key.len() + label.value.len());
        layer_bytes(labels, |value| value.len())
            + layer_bytes(annotations, |value| value.len())
            + layer_bytes(parameters, |value| stemma_core::digest::canonical_json(value).len())
            + reported.sum::<usize>()
            + self.model.fleet.rule_outcome_bytes(node)
    }
}

/// Encodes an object for the store. Fails if the encoded object is larger than the limit of its kind, unless it was at
/// least as large before.
///
/// # Errors
/// [`ErrorType::ObjectTooLarge`], with the size and advice.
pub(super) fn encode_checked<S: Resource>(old_object: Option<&Object<S>>, object: &Object<S>) -> Result<Bytes, ApiError> {
    let value = codec::encode(object);
    let (bytes, max_bytes) = (value.len(), S::MAX_BYTES);
    if bytes <= max_bytes || old_object.is_some_and(|old_object| codec::encode(old_object).len() >= bytes) {
        return Ok(value);
    }
    let subject = OversizedObject::new(S::KIND, S::title(object));
    let message = format!("{subject} would take {bytes} bytes, and the limit is {max_bytes}; nothing was changed");
    let advice =
        "shorten texts, remove entries, or split it into several objects; upload the content of files with PUT /v1/blobs";
    Err(subject.add_to(ApiError::new(ErrorType::ObjectTooLarge, message).detail(advice)))
}

/// Returns the size of what the record of a node's next task set contains for this node alone, in bytes: inputs, and
/// the reasons why tasks are left out. Values that nodes of its group share are not included. The result is never
/// larger than the result of [`own_bytes`](crate::records::reported::ReleasedRecord::own_bytes) for that record,
/// because tags of a single node are not counted here.
fn record_bytes(resolved_node: &ResolvedNode) -> u64 {
    let Some(task_set) = resolved_node.task_set() else { return 0 };
    let input_bytes = |input: &Input| InputValue::from(input).text().map_or(0, min_record_bytes);
    let inputs = task_set.own_inputs().map(|(reference, input)| reference.as_str().len() + input_bytes(input));
    let left_out = task_set.other_skipped_ids().map(|(id, reason)| id.len() + reason.text_bytes().min(MAX_REASON_CHARS));
    inputs.chain(left_out).sum::<usize>() as u64
}

/// Returns the bytes that the record of a node uses of this cluster's quota, or 0 if the record counts for another
/// cluster.
fn bytes_in_cluster(cluster: Option<ClusterId>, record_usage: Option<(Option<ClusterId>, u64)>) -> u64 {
    record_usage.filter(|(record_cluster, _)| *record_cluster == cluster).map_or(0, |(_, bytes)| bytes)
}

/// Returns a written template or cluster with the levels above it. Returns `None` for other kinds. Groups are left out,
/// because all affected groups are checked separately.
fn inherited_levels(model: &Model, kind: Kind, uuid: Uuid) -> Option<Levels<'_>> {
    match kind {
        Kind::ClusterTemplate => Some(model.fleet.template_levels(TemplateId(uuid))),
        Kind::Cluster => Some(model.fleet.cluster_levels(ClusterId(uuid))),
        _ => None,
    }
}

/// Returns the size of the keys and values that a level provides in one map, in bytes. `size` returns the size of a
/// value.
fn layer_bytes<K: Ord + std::ops::Deref<Target = str>, V>(layer: &Layer<K, V>, size: impl Fn(&V) -> usize) -> usize {
    let entries = layer.provided.iter().flat_map(stemma_core::ownership::OwnedMap::iter);
    entries.map(|(key, entry)| key.len() + entry.value.value().map_or(0, &size)).sum()
}

/// Fails if the labels after a write are too large, unless they were at least as large before the write.
fn check_labels(
    level: impl Fn() -> OversizedObject,
    old_labels: impl FnOnce() -> Option<Labels>,
    new_labels: Option<Labels>,
) -> Result<(), ApiError> {
    let Some(Err(EffectiveTooLarge { bytes })) = new_labels.map(|new_labels| new_labels.check_size()) else { return Ok(()) };
    if old_labels().and_then(|old_labels| old_labels.check_size().err()).is_some_and(|old_labels| old_labels.bytes >= bytes) {
        return Ok(());
    }
    let level = level();
    let message = format!("{} of {level} would; nothing was changed", EffectiveTooLarge { bytes });
    let advice =
        "make values shorter, or remove labels at this level or above it; larger values fit into annotations or parameters";
    Err(level.add_to(ApiError::new(ErrorType::LabelInvalid, message).field("labels").detail(advice)))
}

/// Returns the error for a node whose desired state would be too large.
fn oversized_desired_refusal(node: &OversizedObject, error: &TooLarge) -> ApiError {
    let message = format!("{node}: {error}; nothing was changed");
    let advice = "its agent would refuse it: make labels, annotations or parameters smaller, or let tasks read less";
    node.add_to(ApiError::new(ErrorType::ObjectInvalid, message).detail(advice))
}

impl OversizedObject {
    fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), cause: None }
    }

    /// Adds the key of this object, and the key of the written object that causes the error, to an error.
    fn add_to(&self, refusal: ApiError) -> ApiError {
        let refusal = refusal.extra("object", format!("{}/{}", self.kind.word(), self.name).into());
        match &self.cause {
            Some(cause) => refusal.extra("written", cause.clone().into()),
            None => refusal,
        }
    }
}
