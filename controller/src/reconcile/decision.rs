//! What was released to each node. It is decided against what is stored, and stored before anything is sent.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use log::error;
use stemma_core::digest::DigestVersion;
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Kind, Timestamp};
use stemma_core::release::CompiledRelease;
use stemma_core::resolve::ResolvedNode;
use stemma_core::rollout::{KeptProfile, RecordSize, ReleaseState, max_record_bytes, plan_kept};
use stemma_core::shared_text::JsonText;
use stemma_wire::message::desired::{Barrier, Known, TaskSet};
use stemma_wire::message::{self, Hash};
use uuid::Uuid;

use super::group::GroupInputCache;
use crate::cache::Model;
use crate::cache::released::record_size;
use crate::desired::encode::{self, ProfileCache, SentProfile};
use crate::desired::size::{self, TooLarge};
use crate::desired::{DesiredContent, DesiredState, EncodedProfile, PUBLISHED_VERSION};
use crate::records::chunks::ChunksByHash;
use crate::records::common_values::NamedValues;
use crate::records::reported::{ProfileRecord, ReleasedRecord};
use crate::records::{codec, key};
use crate::store::{ListQuery, Op, Precondition, Refusal, Revision, Store, StoreError, Transaction};

/// Maximum number of nodes that one commit releases. With a profile and the marks of a release for each, this is below
/// every engine's limit of operations.
const MAX_NODES_PER_COMMIT: usize = 30;
/// Maximum number of chunks of texts in one commit.
const MAX_CHUNKS_PER_COMMIT: usize = 60;
/// Maximum size of the chunks in one commit together, in bytes, if there are several.
const MAX_CHUNK_BYTES_PER_COMMIT: usize = 512 * 1024;
/// Maximum number of deleted nodes whose records one commit deletes. Each has up to ten images and seven records.
const MAX_DELETED_NODES_PER_COMMIT: usize = 5;

/// The decision for one node: its desired state, and what must be stored before the state is sent.
pub(super) struct NodeDecision {
    pub(super) desired: DesiredState,
    /// Barriers of the profile that the node keeps, which the present order no longer has. They hold nothing up.
    pub(super) obsolete_barriers: Arc<[Barrier]>,
    /// The record to be stored first; `None` if it is stored already.
    record: Option<NewRecord>,
}

/// The data to store for a task set that is released, or that is kept while its release has a new name or unpinned
/// versions.
pub(super) struct NewRecord {
    /// The size of the node's own part of a task set that is released, in bytes; `None` if the stored task set is kept.
    own_bytes: Option<u64>,
    /// The record as it is stored, with the chunks of its own texts; `None` if the stored record is current.
    record: Option<(Bytes, ChunksByHash)>,
    profile: Option<SentProfile>,
    /// The values that the record takes from its group; `None` if it takes none, or the same as before.
    common: Option<Arc<NamedValues>>,
    pinned: Vec<PinnedRelease>,
}

/// A version of a release that a task set was made from: its name, and the object at the revision that was resolved.
struct PinnedRelease {
    name: String,
    object: String,
    revision: Revision,
}

/// The content of a node's desired state: the resolved node, and its task set.
#[derive(Debug)]
struct NodeContent {
    resolved: Arc<ResolvedNode>,
    task_set: TaskSetSource,
}

/// The source of a node's task set.
#[derive(Debug)]
enum TaskSetSource {
    /// Nothing was ever released to the node.
    Nothing,
    /// The task set of the resolved node, with the profile of this name.
    Resolved(Option<Hash>),
    /// The task set that was released before.
    Record(Arc<ReleasedRecord>),
}

impl DesiredContent for NodeContent {
    fn known(&self) -> Known {
        encode::known_part(&self.resolved)
    }

    fn task_set(&self) -> Cow<'_, TaskSet> {
        match &self.task_set {
            TaskSetSource::Nothing => Cow::Owned(TaskSet::default()),
            TaskSetSource::Resolved(profile) => {
                Cow::Owned(encode::task_set(&self.resolved, *profile, DigestVersion::LATEST, |_, _| None))
            }
            TaskSetSource::Record(record) => record.task_set(),
        }
    }
}

/// A resolved node, with the model and time of the pass.
#[derive(Clone, Copy)]
pub(super) struct NodeResolution<'a> {
    pub(super) model: &'a Model,
    pub(super) resolved: &'a Arc<ResolvedNode>,
    pub(super) now: Timestamp,
}

impl NodeResolution<'_> {
    /// Releases the next task set.
    ///
    /// # Errors
    /// Fails if the desired state is too large for the node's agent. Nothing is sent then, and what was released stays
    /// in effect.
    pub(super) fn release(self, profiles: &mut ProfileCache, groups: &mut GroupInputCache<'_>) -> Result<NodeDecision, TooLarge> {
        let Self { model, resolved: node, now } = self;
        let profile = node.task_set().map(|set| profiles.encode(&set.profile));
        let name = profile.as_ref().map(SentProfile::name);
        let group = node.task_set().map(|set| groups.get_or_encode(&set.group_inputs));
        let encoded = |reference: &_, input: &_| group.as_ref()?.encoded_input(reference, input);
        let task_set = encode::task_set(node, name, DigestVersion::LATEST, encoded);
        let desired = self.desired_state(&task_set, TaskSetSource::Resolved(name), profile.as_ref())?;
        let release = node.release().map(|release| release.name.to_string());
        let record = ReleasedRecord::new(model.revision.get(), now, task_set, release);
        let pinned = node.release().map(|release| releases_to_pin(model, release)).unwrap_or_default();
        let common = group.map(|group| group.common);
        let record = match &common {
            Some(common) => record.without_common(common.name, &common.values),
            None => record,
        };
        let common = common.filter(|_| record.taken.is_some());
        let own_bytes = Some(record.own_bytes());
        let record = NewRecord { own_bytes, record: Some(record.encode()), profile, common, pinned };
        Ok(NodeDecision { desired, obsolete_barriers: Arc::default(), record: Some(record) })
    }

    /// Keeps the task set that was released to the node.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub(super) fn keep(self, profiles: &mut ProfileCache, state: ReleaseState) -> Result<NodeDecision, TooLarge> {
        let Self { model, resolved: node, .. } = self;
        let Some(record) = model.released.get(&node.id().0) else {
            // Nothing was ever released. The node gets its labels and runs nothing.
            return Ok(NodeDecision {
                desired: self.desired_state(&TaskSet::default(), TaskSetSource::Nothing, None)?,
                obsolete_barriers: Arc::default(),
                record: None,
            });
        };
        let today = node.task_set().map(|set| profiles.encode(&set.profile));
        let release_name = node.release().map(|release| release.name.to_string());
        let profile_name = today.as_ref().map(SentProfile::name);
        let kept = plan_kept(state, record.base().profile, profile_name, record.release.as_deref(), release_name.as_deref());
        let profile = match kept.profile {
            KeptProfile::None => None,
            KeptProfile::Current => today.clone(),
            KeptProfile::Previous(name) => profiles.stored(name, || stored_profile(model, name)),
        };
        let obsolete_barriers = match (&profile, &today) {
            (Some(before), Some(today)) if kept.has_obsolete_barriers => profiles.obsolete_barriers(before, today),
            _ => Arc::default(),
        };
        let recorded = || model.fleet.release(&ReleaseRef::new(record.release.as_deref()?).ok()?);
        let release = if kept.is_from_levels { node.release() } else { recorded() };
        let pinned = release.map(|release| releases_to_pin(model, release)).unwrap_or_default();
        let renamed = || ReleasedRecord::clone(record).with_release(release_name).encode();
        let renamed = kept.has_new_name.then(renamed);
        let desired = self.desired_state(&record.task_set(), TaskSetSource::Record(Arc::clone(record)), profile.as_ref())?;
        let is_new = renamed.is_some() || !pinned.is_empty();
        let record = is_new.then_some(NewRecord { own_bytes: None, record: renamed, profile: None, common: None, pinned });
        Ok(NodeDecision { desired, obsolete_barriers, record })
    }

    /// Builds the desired state of a task set and its profile. Fails if it is too large for the node's agent.
    fn desired_state(
        self,
        task_set: &TaskSet,
        source: TaskSetSource,
        profile: Option<&SentProfile>,
    ) -> Result<DesiredState, TooLarge> {
        let known = encode::known_part(self.resolved);
        let blobs = profile.map_or_else(|| Arc::from([]), |profile| Arc::clone(&profile.blobs));
        let profile = profile.map(|profile| Arc::clone(&profile.encoded));
        let revision = message::Revision(self.model.revision.get());
        let silent_after = Duration::from_secs(self.resolved.silent_after_seconds().into());
        let content = Arc::new(NodeContent { resolved: Arc::clone(self.resolved), task_set: source });
        let released = DesiredState::from_content(content, revision, (&known, task_set), (profile, blobs), silent_after);
        let parts = released.parts(PUBLISHED_VERSION);
        let sizes = (parts.known.bytes, parts.task_set.bytes);
        size::check_parts(&known, task_set, sizes).map(|_| released)
    }
}

/// Returns the versions of releases that a release to a node must pin and that are not marked as pinned yet: the
/// version of `release`, and the versions that it imports.
fn releases_to_pin(model: &Model, release: &CompiledRelease) -> Vec<PinnedRelease> {
    release
        .versions()
        .filter_map(|name| {
            let name = name.to_string();
            if model.marks.contains_key(&key::pin_mark(&name)) {
                return None;
            }
            let object = model.releases.get_by_name(None, &name)?;
            let written = Revision::new(object.meta.resource_version);
            Some(PinnedRelease { name, object: key::object(Kind::Release, object.meta.uuid), revision: written })
        })
        .collect()
}

/// Returns the profile of a task set that is kept, as it was when it was released.
fn stored_profile(model: &Model, hash: Hash) -> Option<SentProfile> {
    let Some(record) = model.common_values.get(&hash) else {
        error!(profile:% = hash; "the profile of a released task set is not stored: its host keeps what it has");
        return None;
    };
    let Some(profile) = record.profile() else {
        error!(profile:% = hash; "the profile of a released task set cannot be read: its host keeps what it has");
        return None;
    };
    Some(SentProfile { encoded: Arc::new(EncodedProfile::new(&profile)), blobs: record.blobs.clone().into() })
}

/// Returns the message for a record that is not stored because its cluster has no room for it.
pub(super) fn over_budget_reason(cluster: &str) -> String {
    format!(
        "with it, the task sets of cluster {cluster} would need more than {} bytes plus {} for each of its nodes; let their tasks read fewer \
         of the values that each node provides itself, or divide the cluster",
        max_record_bytes(0),
        max_record_bytes(1) - max_record_bytes(0)
    )
}

/// Returns the message for a record that the store can never accept.
pub(super) fn refused_reason(refusal: &Refusal) -> String {
    format!("the store refuses it: {refusal}; make the task set or what its tasks read smaller, or raise the limit")
}

/// Returns the sizes of the nodes' records after these decisions. A node without a decision keeps its size.
pub(super) fn record_sizes(
    model: &Model,
    nodes: impl Iterator<Item = Uuid>,
    decided: &[(Uuid, NodeDecision)],
) -> Vec<RecordSize> {
    let next = decided.iter().filter_map(|(node, decision)| Some((*node, decision.record.as_ref()?.own_bytes?)));
    let next: BTreeMap<Uuid, u64> = next.collect();
    nodes.map(|node| RecordSize { next: next.get(&node).copied(), ..record_size(model, node) }).collect()
}

/// Returns the records to store for decisions, in parts of one commit each.
pub(super) fn new_records(decided: &[(Uuid, NodeDecision)]) -> Vec<Vec<(Uuid, &NewRecord)>> {
    let new: Vec<_> = decided.iter().filter_map(|(node, decision)| Some((*node, decision.record.as_ref()?))).collect();
    new.chunks(MAX_NODES_PER_COMMIT).map(<[_]>::to_vec).collect()
}

/// Returns the commits that store records, without what the model shows as stored already. The last commit contains the
/// records. The commits before it contain the chunks of texts that the records name. A chunk that no record names in
/// the end is swept.
pub(super) fn transactions_for(model: &Model, records: &[(Uuid, &NewRecord)]) -> Vec<Transaction> {
    let mut transaction = Transaction::new();
    let mut chunks = ChunksByHash::new();
    let mut stored_hashes: BTreeSet<Hash> = BTreeSet::new();
    let mut pinned_names: BTreeSet<&str> = BTreeSet::new();
    for (node, NewRecord { record, profile, common, pinned, .. }) in records {
        if let Some(record) = record {
            let (value, record_chunks) = record;
            chunks.extend(record_chunks.iter().map(|(hash, chunk)| (*hash, Arc::clone(chunk))));
            if let Some(values) = common.as_deref().filter(|values| !model.common.contains_key(&values.name))
                && stored_hashes.insert(values.name)
            {
                chunks.extend(values.chunks.iter().map(|(hash, chunk)| (*hash, Arc::clone(chunk))));
                for (name, part) in values.values.names.iter().zip(&values.parts) {
                    if !model.common_parts.contains_key(name) && stored_hashes.insert(*name) {
                        transaction = transaction.put(key::common_part(name), part.clone());
                    }
                }
                transaction = transaction.put(key::common_values(&values.name), values.record.clone());
            }
            transaction = transaction.put(key::node_entry(key::RELEASED, *node), value.clone());
        }
        for release in pinned {
            let mark = key::pin_mark(&release.name);
            // An edit of the release requires that the mark is absent, and this commit requires that the release is
            // unchanged. So the second of two concurrent commits is decided again.
            if pinned_names.insert(&release.name) && !model.marks.contains_key(&mark) {
                transaction = transaction
                    .require(Precondition::unchanged(release.object.clone(), release.revision))
                    .put(mark, Bytes::new());
            }
        }
        let Some(profile) = profile else { continue };
        let hash = profile.name();
        if model.common_values.contains_key(&hash) || !stored_hashes.insert(hash) {
            continue;
        }
        let record = ProfileRecord::new(profile.encoded.for_version(PUBLISHED_VERSION).bytes.to_vec(), profile.blobs.to_vec());
        transaction = transaction.put(key::profile(&hash), codec::encode(&record));
    }
    let mut transactions = chunk_transactions(chunks.into_iter().filter(|(hash, _)| !model.common_chunks.contains_key(hash)));
    transactions.push(transaction);
    transactions
}

/// Returns the commits that store chunks, each within the limits of every engine.
fn chunk_transactions(chunks: impl Iterator<Item = (Hash, Arc<str>)>) -> Vec<Transaction> {
    let (mut transactions, mut bytes) = (Vec::<Transaction>::new(), 0);
    for (hash, chunk) in chunks {
        let value = codec::encode(&chunk);
        bytes += value.len();
        match transactions.last_mut() {
            Some(last) if last.ops.len() < MAX_CHUNKS_PER_COMMIT && bytes <= MAX_CHUNK_BYTES_PER_COMMIT => {
                *last = std::mem::take(last).put(key::common_chunk(&hash), value);
            }
            _ => {
                bytes = value.len();
                transactions.push(Transaction::new().put(key::common_chunk(&hash), value));
            }
        }
    }
    transactions
}

/// Returns how many bytes of the commits are released to each node. Values that several nodes share count for the first
/// one.
pub(super) fn bytes_by_node(transactions: &[Transaction]) -> Vec<(Uuid, u64)> {
    let (mut node_bytes, mut common) = (Vec::new(), 0);
    let read_values = [key::read_common_values, key::read_common_part, key::read_common_chunk];
    for op in transactions.iter().flat_map(|transaction| &transaction.ops) {
        let Op::Put { key, value } = op else { continue };
        if read_values.iter().any(|read| read(key).is_some()) {
            common += value.len() as u64;
        } else if let Some(node) = key::read_node(key::RELEASED, key) {
            node_bytes.push((node, value.len() as u64 + std::mem::take(&mut common)));
        }
    }
    node_bytes
}

/// Returns the commits that delete the profiles, common values and chunks of texts that no released task set names.
pub(super) fn sweep_transactions(model: &Model) -> Vec<Transaction> {
    let profiles: BTreeSet<Hash> = model.released.values().filter_map(|record| record.base().profile).collect();
    let values: BTreeSet<Hash> = model.released.values().filter_map(|record| Some(record.taken.as_ref()?.values)).collect();
    let unused_profiles = model.common_values.keys().filter(|hash| !profiles.contains(*hash)).map(key::profile);
    let unused_values = model.common.keys().filter(|hash| !values.contains(*hash)).map(key::common_values);
    let parts: BTreeSet<Hash> =
        values.iter().filter_map(|name| model.common.get(name)).flat_map(|values| values.names.iter().copied()).collect();
    // Parts are deleted after the values that name them, because no record may name a missing part.
    let unused_parts = model.common_parts.keys().filter(|hash| !parts.contains(*hash)).map(key::common_part);
    // The chunks of these parts, and of records.
    let chunks = used_chunks(model, &parts);
    let unused_chunks = model.common_chunks.keys().filter(|hash| !chunks.contains(*hash)).map(key::common_chunk);
    let unused: Vec<String> = unused_profiles.chain(unused_values).chain(unused_parts).chain(unused_chunks).collect();
    unused.chunks(MAX_NODES_PER_COMMIT).map(|keys| keys.iter().cloned().fold(Transaction::new(), Transaction::delete)).collect()
}

/// Returns the chunks that released task sets name, and those that `parts` name, the used parts of common values.
fn used_chunks(model: &Model, parts: &BTreeSet<Hash>) -> BTreeSet<Hash> {
    let part_texts = parts.iter().filter_map(|name| model.common_parts.get(name)).flat_map(|part| part.texts());
    let record_texts = model.released.values().flat_map(|record| record.own_texts());
    let chunks = record_texts.chain(part_texts).map(JsonText::chunks).filter(|chunks| chunks.len() > 1).flatten();
    // Equal chunks share one allocation, so few chunks are hashed.
    let by_address: HashMap<*const u8, &Arc<str>> = chunks.map(|chunk| (chunk.as_ptr(), chunk)).collect();
    by_address.into_values().map(|chunk| message::hash_content(chunk.as_bytes())).collect()
}

/// Returns the commits that delete the records of deleted nodes.
///
/// # Errors
/// The error of the store.
pub(super) async fn deletion_transactions(store: &dyn Store, gone: &[Uuid]) -> Result<Vec<Transaction>, StoreError> {
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = store.snapshot().await?;
    let mut transactions = Vec::new();
    for nodes in gone.chunks(MAX_DELETED_NODES_PER_COMMIT) {
        let mut transaction = Transaction::new();
        for node in nodes {
            transaction = key::node_entries(*node).fold(transaction, Transaction::delete);
            for image in snapshot.list(&ListQuery::prefix(key::observation_images(*node))).await?.entries {
                transaction = transaction.delete(image.key);
            }
        }
        transactions.push(transaction);
    }
    Ok(transactions)
}
