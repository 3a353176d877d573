//! Refuses a write that makes an object larger than the limit of its kind, or the labels or desired state of a host
//! larger than an agent accepts.
//!
//! An agent refuses a desired state that is too large and continues with the old one, while everybody believes that it
//! was updated. So the write that causes this is refused. It is refused only for nodes that it affects, and only where
//! a size grows: a fleet that is already too large can be reduced step by step.
//!
//! A write can affect a hundred thousand nodes. Labels are checked once for each resolved group. A desired state is
//! computed once for each group and profile, and then only for nodes whose own values could exceed the limit. The
//! stored own values are added up for all nodes, because nodes of one group may differ widely in them. Later facts and
//! reports are not considered here. The reconciler does not publish a state that is too large.

use std::collections::BTreeMap;

use bytes::Bytes;
use stemma_core::fleet::{InheritedMaps, Levels};
use stemma_core::input::Input;
use stemma_core::labels::{EffectiveTooLarge, Labels, Layer};
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

/// Maximum number of times that one value is in a desired state: as a label, and as an input of tasks alone, as a part
/// of other inputs, and with its origin.
const MAX_COPIES_OF_VALUE: usize = 4;
/// How much larger than the first checked node of its group a node may be because of its name, facts and tags, in
/// bytes.
const NODE_SLACK_BYTES: usize = 16 * 1024;

/// Sizes of the records of the affected nodes of one cluster.
#[derive(Default)]
struct ClusterRecordSizes {
    /// The affected nodes that are in the cluster after the write.
    nodes: Vec<NodeId>,
    /// Approximate size of the records of these nodes after the write, in bytes.
    after_bytes: u64,
    /// Bytes of the cluster's quota that the records of these nodes use now.
    stored_bytes: u64,
    /// Bytes of the quota that are used by records of nodes that leave the cluster or are deleted.
    leaving_bytes: u64,
}

/// A group, and a profile of its nodes.
type GroupProfile = (Option<GroupId>, Option<ProfileHash>);

/// The object that is too large.
#[derive(derive_more::Display)]
#[display("{} {name}", kind.word())]
struct OversizedObject {
    kind: Kind,
    name: String,
    /// The key of the written object that makes this object too large.
    cause: Option<String>,
}

impl PendingWrite<'_> {
    /// Refuses a write that makes something too large.
    ///
    /// # Errors
    /// The level or node, its size, and what to do.
    pub(super) fn check_sizes(&self) -> Result<(), ApiError> {
        for AuditedObject { kind, uuid, name, .. } in self.draft.audited() {
            let labels = |model: &Model| Some(InheritedMaps::from_levels(&inherited_levels(model, *kind, *uuid)?).labels);
            check_labels(|| OversizedObject::new(*kind, name), || labels(self.context.full_model), labels(&self.model))?;
        }
        self.check_groups()?;
        self.check_nodes()
    }

    /// Checks the labels of the groups that the write changes.
    fn check_groups(&self) -> Result<(), ApiError> {
        for group in self.changed_folds() {
            let labels = |model: &Model| model.fleet.resolved_group(group).ok().map(|fold| fold.maps.labels.clone());
            let level = || {
                let cluster = self.model.groups.get(group.0).map(|group| group.spec.cluster);
                let name = group_path(&self.model, group).unwrap_or_else(|| group.0.to_string());
                let written = cluster.and_then(|cluster| self.cause_for_cluster(cluster));
                OversizedObject { cause: written, ..OversizedObject::new(Kind::NodeGroup, name) }
            };
            check_labels(level, || labels(self.context.full_model), labels(&self.model))?;
        }
        Ok(())
    }

    /// Checks the labels and desired states of the affected nodes, and for each cluster the total size of the records
    /// of its nodes. The desired state of a node is not computed if the node cannot exceed the limit, judging by the
    /// first node of its group and profile.
    fn check_nodes(&self) -> Result<(), ApiError> {
        let mut first_sizes: BTreeMap<GroupProfile, usize> = BTreeMap::new();
        let mut records: BTreeMap<Option<ClusterId>, ClusterRecordSizes> = BTreeMap::new();
        for node in self.reached_nodes() {
            let Some(object) = self.model.nodes.get(node.0) else { continue };
            let Resolution::Complete(answer) = self.model.resolve(node.0) else { continue };
            let group_profile = (object.spec.nodegroup, self.model.fleet.profile(node).map(|profile| profile.hash));
            let max_extra = || MAX_COPIES_OF_VALUE * self.node_bytes(node) + NODE_SLACK_BYTES;
            let mut is_within = first_sizes.get(&group_profile).is_some_and(|first| first + max_extra() <= MAX_DESIRED_BYTES);
            if !is_within && let Some(desired) = self.check_node(&answer)? {
                first_sizes.entry(group_profile).or_insert(desired);
                is_within = true;
            }
            let cluster = self.model.fleet.cluster_of_node(node);
            let record = self.context.record_quota().node_usage(node);
            if let Some((old_cluster, bytes)) = record.filter(|(owner, _)| cluster != *owner) {
                records.entry(old_cluster).or_default().leaving_bytes += bytes;
            }
            let current_bytes = record.map_or(0, |(_, bytes)| bytes);
            // A node whose desired state is already too large gets no new task set.
            let release_state =
                if is_within { candidate(&self.model, &answer).state(self.context.now) } else { ReleaseState::Current };
            let sizes = records.entry(cluster).or_default();
            sizes.nodes.push(node);
            sizes.stored_bytes += bytes_in_cluster(cluster, record);
            sizes.after_bytes += release_state.record_bytes(current_bytes, record_bytes(&answer));
        }
        for node in &self.affected.deleted {
            let record = self.context.record_quota().node_usage(NodeId(*node));
            if let Some((old_cluster, bytes)) = record {
                records.entry(old_cluster).or_default().leaving_bytes += bytes;
            }
        }
        records.iter().try_for_each(|(cluster, records)| self.check_records(*cluster, records))
    }

    /// Checks one node. Returns the size of its desired state in bytes, or `None` if it is too large but was so before
    /// the write.
    fn check_node(&self, answer: &ResolvedNode) -> Result<Option<usize>, ApiError> {
        let (node, object) = (answer.id(), answer.node());
        let before = || self.context.full_model.resolve(node.0);
        let level =
            || OversizedObject { cause: self.cause_for_node(node), ..OversizedObject::new(Kind::Node, object.display_name()) };
        check_labels(level, || before().resolved_node().map(|before| before.labels()), Some(answer.labels()))?;
        match next_size(answer) {
            Ok(desired) => Ok(Some(desired)),
            Err(error) => {
                let before = before().resolved_node().and_then(|before| next_size(before).err());
                if before.is_none_or(|before| error.is_worse_than(&before)) {
                    return Err(desired_too_large(&level(), &error));
                }
                Ok(None)
            }
        }
    }

    /// Fails if the write exceeds the quota for the records of a cluster's nodes, and by more than without the write.
    fn check_records(&self, cluster: Option<ClusterId>, records: &ClusterRecordSizes) -> Result<(), ApiError> {
        let ClusterRecordSizes { nodes, after_bytes, stored_bytes, leaving_bytes } = records;
        let quota_of = |model: &Model| max_record_bytes(model.count_nodes_in(cluster));
        let (quota, old_quota) = (quota_of(&self.model), quota_of(self.context.full_model));
        let total = self.context.record_quota().cluster_usage(cluster).saturating_sub(stored_bytes + leaving_bytes) + after_bytes;
        if total <= quota {
            return Ok(());
        }
        // All nodes are resolved after the write first, then before it, because the cache holds one state of a group at
        // a time.
        let before = nodes.iter().take_while(|_| self.is_active()).map(|node| self.record_bytes_before(cluster, *node));
        let before = leaving_bytes + before.sum::<u64>();
        // Compares by how much the quota is exceeded, because a node that arrives raises the quota and a node that
        // leaves lowers it. So a node may leave even if the rest exceeds the lower quota.
        if *after_bytes <= before || after_bytes + old_quota <= before + quota {
            return Ok(());
        }
        Err(self.records_too_large(cluster, total, quota))
    }

    /// Returns the bytes of this cluster's quota that the record of a node uses, or would use without the write.
    fn record_bytes_before(&self, cluster: Option<ClusterId>, node: NodeId) -> u64 {
        let full_model = self.context.full_model;
        let was_member = full_model.nodes.get(node.0).is_some() && full_model.fleet.cluster_of_node(node) == cluster;
        let before = was_member.then(|| self.context.full_model.resolve(node.0));
        let next = before.as_ref().and_then(Resolution::resolved_node).map_or(0, |answer| record_bytes(answer));
        let held = self.context.record_quota().node_usage(node);
        next.max(bytes_in_cluster(cluster, held))
    }

    /// Builds the error for records that would take `together` bytes, with the limit `most`.
    fn records_too_large(&self, cluster: Option<ClusterId>, together: u64, most: u64) -> ApiError {
        let Some(cluster) = cluster else {
            let message = format!(
                "own values of the nodes without a cluster would take {together} bytes together, and the limit is \
                 {most}; nothing was changed"
            );
            let advice = "take back the holds of such nodes, or delete them";
            return ApiError::new(ErrorType::ObjectTooMany, message).detail(advice);
        };
        let name = self.cluster_name(cluster);
        let message = format!(
            "what is released to the nodes of cluster {name} would take about {together} bytes together, without the values that many of them share, \
             and the limit is {most}; nothing was changed"
        );
        let advice = "let tasks read fewer of the nodes' own values: single labels instead of labels_with_prefix or whole parameters; \
                      or take back holds of its nodes; or divide the cluster";
        let refusal = ApiError::new(ErrorType::ObjectTooMany, message).detail(advice);
        OversizedObject { cause: self.cause_for_cluster(cluster), ..OversizedObject::new(Kind::Cluster, name) }.add_to(refusal)
    }

    /// Returns the maximum number of bytes that a node's own values add to the inherited ones.
    fn node_bytes(&self, node: NodeId) -> usize {
        let Some(object) = self.model.nodes.get(node.0) else { return 0 };
        let Inherited { labels, annotations, parameters, .. } = &object.spec.inherited;
        let seen = self.model.fleet.observation(node);
        let reported = seen.iter().flat_map(|seen| seen.labels.iter()).map(|label| label.key.len() + label.value.len());
        layer_bytes(labels, |value| value.len())
            + layer_bytes(annotations, |value| value.len())
            + layer_bytes(parameters, |value| stemma_core::digest::canonical_json(value).len())
            + reported.sum::<usize>()
            + self.model.fleet.rule_outcome_bytes(node)
    }
}

/// Encodes an object for the store. Its size must be within the limit of its kind, or not larger than before.
///
/// # Errors
/// Its size, and what to do.
pub(super) fn encode_checked<S: Resource>(before: Option<&Object<S>>, object: &Object<S>) -> Result<Bytes, ApiError> {
    let value = codec::encode(object);
    let (bytes, most) = (value.len(), S::MAX_BYTES);
    if bytes <= most || before.is_some_and(|before| codec::encode(before).len() >= bytes) {
        return Ok(value);
    }
    let subject = OversizedObject::new(S::KIND, S::title(object));
    let message = format!("{subject} would take {bytes} bytes, and the limit is {most}; nothing was changed");
    let advice =
        "shorten texts, remove entries, or split it into several objects; upload the content of files with PUT /v1/blobs";
    Err(subject.add_to(ApiError::new(ErrorType::ObjectTooLarge, message).detail(advice)))
}

/// Returns the size of the node's own values in the record of its next task set, without the values that nodes of its
/// group share. The result is never larger than what [`own_bytes`](crate::records::reported::ReleasedRecord::own_bytes)
/// counts for the record, because it leaves out tags of a single node.
fn record_bytes(answer: &ResolvedNode) -> u64 {
    let Some(set) = answer.task_set() else { return 0 };
    let len = |input: &Input| InputValue::from(input).text().map_or(0, min_record_bytes);
    let inputs = set.own_inputs().map(|(reference, input)| reference.as_str().len() + len(input));
    let left_out = set.other_skipped_ids().map(|(id, why)| id.len() + why.text_bytes().min(MAX_REASON_CHARS));
    inputs.chain(left_out).sum::<usize>() as u64
}

/// Returns the bytes that the record of a node uses of the quota of this cluster, or 0 if it belongs to another
/// cluster.
fn bytes_in_cluster(cluster: Option<ClusterId>, held: Option<(Option<ClusterId>, u64)>) -> u64 {
    held.filter(|(owner, _)| *owner == cluster).map_or(0, |(_, bytes)| bytes)
}

/// Returns the levels down to a written template or cluster, including itself. Groups are checked with all affected
/// groups.
fn inherited_levels(model: &Model, kind: Kind, uuid: Uuid) -> Option<Levels<'_>> {
    match kind {
        Kind::ClusterTemplate => Some(model.fleet.template_levels(TemplateId(uuid))),
        Kind::Cluster => Some(model.fleet.cluster_levels(ClusterId(uuid))),
        _ => None,
    }
}

/// Returns the size of the keys and values of a level.
fn layer_bytes<K: Ord + std::ops::Deref<Target = str>, V>(layer: &Layer<K, V>, size: impl Fn(&V) -> usize) -> usize {
    let entries = layer.provided.iter().flat_map(stemma_core::ownership::OwnedMap::iter);
    entries.map(|(key, entry)| key.len() + entry.value.value().map_or(0, &size)).sum()
}

/// Fails if labels are too large, unless they were at least as large before.
fn check_labels(
    level: impl Fn() -> OversizedObject,
    before: impl FnOnce() -> Option<Labels>,
    after: Option<Labels>,
) -> Result<(), ApiError> {
    let Some(Err(EffectiveTooLarge { bytes })) = after.map(|after| after.check_size()) else { return Ok(()) };
    if before().and_then(|before| before.check_size().err()).is_some_and(|before| before.bytes >= bytes) {
        return Ok(());
    }
    let level = level();
    let message = format!("{} of {level} would; nothing was changed", EffectiveTooLarge { bytes });
    let advice =
        "make values shorter, or take labels away at this level or above it; larger values fit into annotations or parameters";
    Err(level.add_to(ApiError::new(ErrorType::LabelInvalid, message).field("labels").detail(advice)))
}

fn desired_too_large(node: &OversizedObject, error: &TooLarge) -> ApiError {
    let message = format!("{node}: {error}; nothing was changed");
    let advice = "its agent would refuse it: make labels, annotations or parameters smaller, or let tasks read less";
    node.add_to(ApiError::new(ErrorType::ObjectInvalid, message).detail(advice))
}

impl OversizedObject {
    fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), cause: None }
    }

    /// Adds the keys of this object and of the causing object to an error.
    fn add_to(&self, refusal: ApiError) -> ApiError {
        let refusal = refusal.extra("object", format!("{}/{}", self.kind.word(), self.name).into());
        match &self.cause {
            Some(written) => refusal.extra("written", written.clone().into()),
            None => refusal,
        }
    }
}
