//! Refuses a write that makes an object larger than one of its kind may be, or a host's labels or desired state larger than an agent
//! takes.
//!
//! An agent refuses what is too large, and would go on with what it has while everybody believes that it was told. So the
//! write that makes it so is refused, for what it reaches and where it is larger than before: a fleet that is too large
//! already can be made smaller a step at a time.
//!
//! A write can reach a hundred thousand nodes. Labels are checked once for each fold; a desired state is worked out once for
//! each group and profile, and then only of nodes whose own words could make a difference. What is stored of each node's own is added up of
//! all of them: nodes of one group may differ in it by much. What facts add, and what hosts say later, is left to reconcile, which publishes nothing
//! that is too large.

use std::collections::BTreeMap;

use bytes::Bytes;
use stemma_core::fleet::{Levels, Maps};
use stemma_core::input::Input;
use stemma_core::labels::{EffectiveTooLarge, Labels, Layer};
use stemma_core::object::{ClusterId, GroupId, Inherited, Kind, NodeId, Object, TemplateId};
use stemma_core::release::ProfileHash;
use stemma_core::resolve::{Answer, Resolution};
use stemma_core::rollout::{Standing, most_of_records};
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::desired::{InputValue, MAX_DESIRED};
use uuid::Uuid;

use super::Work;
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::cache::released::candidate;
use crate::desired::encode::MOST_WHY;
use crate::desired::size::{TooLarge, of_answer};
use crate::records::audit::AuditedObject;
use crate::records::chunks::len_in_record;
use crate::records::codec;
use crate::registry::names::group_path;

/// A value can stand in a desired state as a label and as the input of tasks, alone, within others and with its origin.
const APPEARANCES: usize = 4;
/// How much larger than the first node of its group one may be by its name, facts and tags.
const SLACK: usize = 16 * 1024;

/// The records of nodes that a write reaches, of those of one cluster.
#[derive(Default)]
struct Records {
    /// The nodes that stand there.
    nodes: Vec<NodeId>,
    /// About what their records would take together, in bytes.
    after: u64,
    /// What they take now of what the cluster may have.
    stored: u64,
    /// What those take of it that leave the cluster, or are gone.
    leaving: u64,
}

/// A group, and a profile that nodes of it have.
type Alike = (Option<GroupId>, Option<ProfileHash>);

/// What is too large.
#[derive(derive_more::Display)]
#[display("{} {name}", kind.word())]
struct Subject {
    kind: Kind,
    name: String,
    /// The key of the written object by which it is so.
    written: Option<String>,
}

impl Work<'_> {
    /// Refuses a write that makes something too large.
    ///
    /// # Errors
    /// The level or node, its size, and what to do.
    pub(super) fn check_sizes(&self) -> Result<(), ApiError> {
        for AuditedObject { kind, uuid, name, .. } in self.draft.touched() {
            let labels = |model: &Model| Some(Maps::of(&levels_to(model, *kind, *uuid)?).labels);
            check_labels(|| Subject::of(*kind, name), || labels(self.context.whole), labels(&self.model))?;
        }
        self.check_groups()?;
        self.check_nodes()
    }

    fn check_groups(&self) -> Result<(), ApiError> {
        for group in self.refolded() {
            let labels = |model: &Model| model.fleet.fold(group).ok().map(|fold| fold.maps.labels.clone());
            let level = || {
                let cluster = self.model.groups.get(group.0).map(|group| group.spec.cluster);
                let name = group_path(&self.model, group).unwrap_or_else(|| group.0.to_string());
                let written = cluster.and_then(|cluster| self.deepest_in(cluster));
                Subject { written, ..Subject::of(Kind::NodeGroup, name) }
            };
            check_labels(level, || labels(self.context.whole), labels(&self.model))?;
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), ApiError> {
        let mut of_groups: BTreeMap<Alike, usize> = BTreeMap::new();
        let mut records: BTreeMap<Option<ClusterId>, Records> = BTreeMap::new();
        for node in self.reached() {
            let Some(object) = self.model.nodes.get(node.0) else { continue };
            let Resolution::Complete(answer) = self.model.resolve(node.0) else { continue };
            let alike = (object.spec.nodegroup, self.model.fleet.profile(node).map(|profile| profile.hash));
            let own = || APPEARANCES * self.own_bytes(node) + SLACK;
            let mut is_within = of_groups.get(&alike).is_some_and(|first| first + own() <= MAX_DESIRED);
            if !is_within && let Some(desired) = self.check_node(&answer)? {
                of_groups.entry(alike).or_insert(desired);
                is_within = true;
            }
            let cluster = self.model.fleet.cluster_of_node(node);
            let held = self.context.room().of_node(node);
            if let Some((left, bytes)) = held.filter(|(stood_in, _)| cluster != *stood_in) {
                records.entry(left).or_default().leaving += bytes;
            }
            let kept = held.map_or(0, |(_, bytes)| bytes);
            // One that is told too much already is released nothing.
            let standing =
                if is_within { candidate(&self.model, &answer).standing(self.context.now) } else { Standing::Current };
            let of_cluster = records.entry(cluster).or_default();
            of_cluster.nodes.push(node);
            of_cluster.stored += bytes_in(cluster, held);
            of_cluster.after += standing.record_bytes(kept, record_bytes(&answer));
        }
        for node in &self.reach.gone {
            let held = self.context.room().of_node(NodeId(*node));
            if let Some((left, bytes)) = held {
                records.entry(left).or_default().leaving += bytes;
            }
        }
        records.iter().try_for_each(|(cluster, records)| self.check_records(*cluster, records))
    }

    /// Checks one node. Gives the bytes of its desired state; `None`: it is told too much already.
    fn check_node(&self, answer: &Answer) -> Result<Option<usize>, ApiError> {
        let (node, object) = (answer.id(), answer.node());
        let before = || self.context.whole.resolve(node.0);
        let level =
            || Subject { written: self.nearest_to_node(node), ..Subject::of(Kind::Node, object.display_name()) };
        check_labels(level, || before().answer().map(|before| before.labels()), Some(answer.labels()))?;
        match of_answer(answer) {
            Ok(desired) => Ok(Some(desired)),
            Err(error) => {
                let before = before().answer().and_then(|before| of_answer(before).err());
                if before.is_none_or(|before| error.is_worse_than(&before)) {
                    return Err(desired_too_large(&level(), &error));
                }
                Ok(None)
            }
        }
    }

    /// Refuses a write by which the records of a cluster's nodes would take more than they may, and by more than without it.
    fn check_records(&self, cluster: Option<ClusterId>, records: &Records) -> Result<(), ApiError> {
        let Records { nodes, after, stored, leaving } = records;
        let most_of = |model: &Model| most_of_records(model.count_in(cluster));
        let (most, most_before) = (most_of(&self.model), most_of(self.context.whole));
        let together = self.context.room().of_cluster(cluster).saturating_sub(stored + leaving) + after;
        if together <= most {
            return Ok(());
        }
        // After all nodes were resolved as they would be: what is remembered of a group serves one state at a time.
        let before = nodes.iter().take_while(|_| self.is_awaited()).map(|node| self.record_before(cluster, *node));
        let before = leaving + before.sum::<u64>();
        // A node that comes brings room with it, and one that goes takes it away: it may go all the same.
        if *after <= before || after + most_before <= before + most {
            return Ok(());
        }
        Err(self.records_too_large(cluster, together, most))
    }

    /// What the record of a node takes of what this cluster may have, or would take without the write.
    fn record_before(&self, cluster: Option<ClusterId>, node: NodeId) -> u64 {
        let whole = self.context.whole;
        let stood = whole.nodes.get(node.0).is_some() && whole.fleet.cluster_of_node(node) == cluster;
        let before = stood.then(|| self.context.whole.resolve(node.0));
        let next = before.as_ref().and_then(Resolution::answer).map_or(0, |answer| record_bytes(answer));
        let held = self.context.room().of_node(node);
        next.max(bytes_in(cluster, held))
    }

    fn records_too_large(&self, cluster: Option<ClusterId>, together: u64, most: u64) -> ApiError {
        let Some(cluster) = cluster else {
            let message = format!(
                "what nodes have that are in no cluster would take {together} bytes together beside what many of them have alike, and the most are \
                 {most}; nothing was changed"
            );
            let advice = "take back the holds of such nodes, or delete them";
            return ApiError::new(ErrorType::ObjectTooMany, message).detail(advice);
        };
        let name = self.cluster_name(cluster);
        let message = format!(
            "what is released to the nodes of cluster {name} would take about {together} bytes together beside what many of them have alike, \
             and the most are {most}; nothing was changed"
        );
        let advice = "let tasks read less of what each node says itself: single labels in the place of labels_with_prefix or of whole parameters; \
                      or take back holds of its nodes; or divide the cluster";
        let refusal = ApiError::new(ErrorType::ObjectTooMany, message).detail(advice);
        Subject { written: self.deepest_in(cluster), ..Subject::of(Kind::Cluster, name) }.named_in(refusal)
    }

    /// The bytes that a node adds to what comes down to it, at most.
    fn own_bytes(&self, node: NodeId) -> usize {
        let Some(object) = self.model.nodes.get(node.0) else { return 0 };
        let Inherited { labels, annotations, parameters, .. } = &object.spec.inherited;
        let seen = self.model.fleet.observation(node);
        let reported = seen.iter().flat_map(|seen| seen.labels.iter()).map(|label| label.key.len() + label.value.len());
        bytes(labels, |value| value.len())
            + bytes(annotations, |value| value.len())
            + bytes(parameters, |value| stemma_core::digest::canonical_json(value).len())
            + reported.sum::<usize>()
            + self.model.fleet.ruled_bytes(node)
    }
}

/// An object as it is stored, where it is no larger than one of its kind may be, or no larger than before.
///
/// # Errors
/// Its size, and what to do.
pub(super) fn encoded<S: Resource>(before: Option<&Object<S>>, object: &Object<S>) -> Result<Bytes, ApiError> {
    let value = codec::encode(object);
    let (bytes, most) = (value.len(), S::MOST_BYTES);
    if bytes <= most || before.is_some_and(|before| codec::encode(before).len() >= bytes) {
        return Ok(value);
    }
    let subject = Subject::of(S::KIND, S::title(object));
    let message = format!("{subject} would take {bytes} bytes, and the most are {most}; nothing was changed");
    let advice = "make texts shorter, take entries away, or divide it among several objects; a file's content is stored by PUT /v1/blobs";
    Err(subject.named_in(ApiError::new(ErrorType::ObjectTooLarge, message).detail(advice)))
}

/// What the record of what is released to a node next takes of its own, beside what its group has alike, as [`own_bytes`](crate::records::reported::ReleasedRecord::own_bytes) counts it of the
/// record: no more than that, since tags of a node alone are left to it.
fn record_bytes(answer: &Answer) -> u64 {
    let Some(set) = answer.task_set() else { return 0 };
    let len = |input: &Input| InputValue::from(input).text().map_or(0, len_in_record);
    let inputs = set.own_inputs().map(|(reference, input)| reference.as_str().len() + len(input));
    let left_out = set.otherwise_left_out_ids().map(|(id, why)| id.len() + why.text_len().min(MOST_WHY));
    inputs.chain(left_out).sum::<usize>() as u64
}

/// What a node's record takes of what one cluster may have, by where it stood; nothing where that was another one.
fn bytes_in(cluster: Option<ClusterId>, held: Option<(Option<ClusterId>, u64)>) -> u64 {
    held.filter(|(stood_in, _)| *stood_in == cluster).map_or(0, |(_, bytes)| bytes)
}

/// What the levels above groups hand down to a written one, with its own. Groups are checked with all that are reached.
fn levels_to(model: &Model, kind: Kind, uuid: Uuid) -> Option<Levels<'_>> {
    match kind {
        Kind::ClusterTemplate => Some(model.fleet.levels_to_template(TemplateId(uuid))),
        Kind::Cluster => Some(model.fleet.levels_to_cluster(ClusterId(uuid))),
        _ => None,
    }
}

/// Keys and values of a level.
fn bytes<K: Ord + std::ops::Deref<Target = str>, V>(layer: &Layer<K, V>, size: impl Fn(&V) -> usize) -> usize {
    let entries = layer.provided.iter().flat_map(stemma_core::ownership::OwnedMap::iter);
    entries.map(|(key, entry)| key.len() + entry.said.value().map_or(0, &size)).sum()
}

/// Refuses labels that are too large and were not so, or less so, before.
fn check_labels(
    level: impl Fn() -> Subject,
    before: impl FnOnce() -> Option<Labels>,
    after: Option<Labels>,
) -> Result<(), ApiError> {
    let Some(Err(EffectiveTooLarge { bytes })) = after.map(|after| after.check_size()) else { return Ok(()) };
    if before().and_then(|before| before.check_size().err()).is_some_and(|before| before.bytes >= bytes) {
        return Ok(());
    }
    let level = level();
    let message = format!("{} of {level} would; nothing was changed", EffectiveTooLarge { bytes });
    let advice = "make values shorter, or take labels away at this level or above it; larger values fit into annotations or parameters";
    Err(level.named_in(ApiError::new(ErrorType::LabelInvalid, message).field("labels").detail(advice)))
}

fn desired_too_large(node: &Subject, error: &TooLarge) -> ApiError {
    let message = format!("{node}: {error}; nothing was changed");
    let advice = "its agent would refuse it: make labels, annotations or parameters smaller, or let tasks read less";
    node.named_in(ApiError::new(ErrorType::ObjectInvalid, message).detail(advice))
}

impl Subject {
    fn of(kind: Kind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), written: None }
    }

    /// The refusal, with the key of this object, and of the one by which it is so.
    fn named_in(&self, refusal: ApiError) -> ApiError {
        let refusal = refusal.extra("object", format!("{}/{}", self.kind.word(), self.name).into());
        match &self.written {
            Some(written) => refusal.extra("written", written.clone().into()),
            None => refusal,
        }
    }
}
