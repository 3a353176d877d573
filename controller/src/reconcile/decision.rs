//! Decides what is released to each node. A decision is compared with what is stored, and is itself stored before
//! anything is sent.

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
use stemma_core::rollout::{KeptProfile, RecordSize, ReleaseState, max_record_bytes, plan_kept_task_set};
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

/// Maximum number of nodes whose decisions ([`NewRecord`]) one commit stores, and of unused values that one deletes.
/// Even if each node adds a profile and the marks that pin releases ([`PinnedRelease`]), the commit is below the limit
/// of operations of every storage engine.
const MAX_NODES_PER_COMMIT: usize = 30;
/// Maximum number of chunks of large texts in one commit.
const MAX_CHUNKS_PER_COMMIT: usize = 60;
/// Maximum total size of the chunks in one commit, in bytes. A single chunk may be larger.
const MAX_CHUNK_BYTES_PER_COMMIT: usize = 512 * 1024;
/// Maximum number of deleted nodes whose records one commit deletes. Each node has up to ten images (earlier versions)
/// of its Observation, and seven records.
const MAX_DELETED_NODES_PER_COMMIT: usize = 5;

/// The decision for one node: its desired state, and the record that must be stored before the state is sent.
pub(super) struct NodeDecision {
    pub(super) desired: DesiredState,
    /// Barriers of the profile that the node continues to run, which the present order of tasks no longer has. The
    /// controller opens them, so that the node does not wait for them.
    pub(super) obsolete_barriers: Arc<[Barrier]>,
    /// The record to be stored first; `None` if nothing is to be stored.
    record: Option<NewRecord>,
}

/// The data to store for a node: a newly released task set or, for a kept one, another name of its release, or versions
/// that are not pinned yet ([`PinnedRelease`]).
pub(super) struct NewRecord {
    /// The size of the node's own part of a released task set, in bytes; `None` if the present task set is kept.
    own_bytes: Option<u64>,
    /// The encoded record, with the chunks of its own texts; `None` if the stored record is current.
    record: Option<(Bytes, ChunksByHash)>,
    profile: Option<SentProfile>,
    /// The common values of the node's group to which the record refers. `None` if it refers to none, or if the present
    /// task set is kept, because its common values are stored already.
    common: Option<Arc<NamedValues>>,
    pinned: Vec<PinnedRelease>,
}

/// A version of a release from which a task set was built. The commit pins it: its content can then no longer change.
/// It has the name, the store key of the release, and the revision that was resolved.
struct PinnedRelease {
    name: String,
    object: String,
    revision: Revision,
}

/// The source of a node's desired state: the resolved node and its task set.
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
    /// The task set of the resolved node, with the profile of this hash.
    Resolved(Option<Hash>),
    /// The task set that was released before.
    Record(Arc<ReleasedRecord>),
}

impl DesiredContent for NodeContent {
    fn known(&self) -> Known {
        encode::known_part(&self.resolved)
    }

    /// Returns the task set. The closure `|_, _| None` finds no encoded input, so each input is encoded here.
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

/// A resolved node, with the model and the time of the pass.
#[derive(Clone, Copy)]
pub(super) struct NodeResolution<'a> {
    pub(super) model: &'a Model,
    pub(super) resolved: &'a Arc<ResolvedNode>,
    pub(super) now: Timestamp,
}

impl NodeResolution<'_> {
    /// Decides to release the node's next task set. Returns the desired state with it, and the record to store.
    ///
    /// # Errors
    /// Fails if the desired state is too large for the node's agent. Then nothing is sent, and the task set that was
    /// released before stays in effect.
    pub(super) fn release(self, profiles: &mut ProfileCache, groups: &mut GroupInputCache<'_>) -> Result<NodeDecision, TooLarge> {
        let Self { model, resolved: node, now } = self;
        let profile = node.task_set().map(|set| profiles.encode(&set.profile));
        let profile_hash = profile.as_ref().map(SentProfile::name);
        let group = node.task_set().map(|set| groups.get_or_encode(&set.group_inputs));
        let find_encoded = |reference: &_, input: &_| group.as_ref()?.encoded_input(reference, input);
        let task_set = encode::task_set(node, profile_hash, DigestVersion::LATEST, find_encoded);
        let desired = self.desired_state(&task_set, TaskSetSource::Resolved(profile_hash), profile.as_ref())?;
        let release_name = node.release().map(|release| release.name.to_string());
        let record = ReleasedRecord::new(model.revision.get(), now, task_set, release_name);
        let pinned = node.release().map(|release| releases_to_pin(model, release)).unwrap_or_default();
        let common = group.map(|group| group.common);
        let record = match &common {
            Some(common) => record.without_common(common.hash, &common.values),
            None => record,
        };
        // `taken` is the record's reference to the common values. A record without it needs no common values.
        let common = common.filter(|_| record.taken.is_some());
        let own_bytes = Some(record.own_bytes());
        let record = NewRecord { own_bytes, record: Some(record.encode()), profile, common, pinned };
        Ok(NodeDecision { desired, obsolete_barriers: Arc::default(), record: Some(record) })
    }

    /// Decides to keep the task set that was released to the node before. Returns the desired state with it, and a
    /// record if anything about that task set must be stored.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub(super) fn keep_task_set(self, profiles: &mut ProfileCache, state: ReleaseState) -> Result<NodeDecision, TooLarge> {
        let Self { model, resolved: node, .. } = self;
        let Some(record) = model.released.get(&node.id().0) else {
            // Nothing was ever released. The node gets its labels and runs nothing.
            return Ok(NodeDecision {
                desired: self.desired_state(&TaskSet::default(), TaskSetSource::Nothing, None)?,
                obsolete_barriers: Arc::default(),
                record: None,
            });
        };
        let current_profile = node.task_set().map(|set| profiles.encode(&set.profile));
        let release_name = node.release().map(|release| release.name.to_string());
        let hash = current_profile.as_ref().map(SentProfile::name);
        let plan = plan_kept_task_set(state, record.base().profile, hash, record.release.as_deref(), release_name.as_deref());
        let profile = match plan.profile {
            KeptProfile::None => None,
            KeptProfile::Current => current_profile.clone(),
            KeptProfile::Previous(name) => profiles.stored(name, || stored_profile(model, name)),
        };
        let obsolete_barriers = match (&profile, &current_profile) {
            (Some(previous), Some(current)) if plan.may_have_obsolete_barriers => profiles.obsolete_barriers(previous, current),
            _ => Arc::default(),
        };
        // If the next task set is withheld, the levels above the node may name another release by now. The kept task
        // set is still from the recorded one.
        let recorded_release = || model.fleet.release(&ReleaseRef::new(record.release.as_deref()?).ok()?);
        let release = if plan.is_from_levels { node.release() } else { recorded_release() };
        let pinned = release.map(|release| releases_to_pin(model, release)).unwrap_or_default();
        let encode_renamed = || ReleasedRecord::clone(record).with_release(release_name).encode();
        let new_bytes = plan.has_other_release_name.then(encode_renamed);
        let desired = self.desired_state(&record.task_set(), TaskSetSource::Record(Arc::clone(record)), profile.as_ref())?;
        let must_store = new_bytes.is_some() || !pinned.is_empty();
        let record = must_store.then_some(NewRecord { own_bytes: None, record: new_bytes, profile: None, common: None, pinned });
        Ok(NodeDecision { desired, obsolete_barriers, record })
    }

    /// Builds the desired state from a task set and its profile. `source` returns the task set again when the state is
    /// sent. Fails if the state is too large for the node's agent.
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

/// Returns the versions of releases that the commit must pin for a node's task set of `release`: `release` itself and
/// its imports, except those without a version and those that are pinned already.
fn releases_to_pin(model: &Model, release: &CompiledRelease) -> Vec<PinnedRelease> {
    release
        .versions()
        .filter_map(|name| {
            let name = name.to_string();
            if model.marks.contains_key(&key::pin_mark(&name)) {
                return None;
            }
            let object = model.releases.get_by_name(None, &name)?;
            let revision = Revision::new(object.meta.resource_version);
            Some(PinnedRelease { name, object: key::object(Kind::Release, object.meta.uuid), revision })
        })
        .collect()
}

/// Returns the stored profile with this hash, which a released task set names. If it is missing or cannot be read, logs
/// an error and returns `None`. The node's host then keeps the profile that it has.
fn stored_profile(model: &Model, hash: Hash) -> Option<SentProfile> {
    let Some(record) = model.profiles.get(&hash) else {
        error!(profile:% = hash; "the profile of a released task set is not stored: its host keeps what it has");
        return None;
    };
    let Some(profile) = record.profile() else {
        error!(profile:% = hash; "the profile of a released task set cannot be read: its host keeps what it has");
        return None;
    };
    Some(SentProfile { encoded: Arc::new(EncodedProfile::new(&profile)), blobs: record.blobs.clone().into() })
}

/// Returns the reason why a node's next task set is not released: with its record, the stored records of the task sets
/// of the node's cluster would be too large together.
pub(super) fn over_budget_reason(cluster: &str) -> String {
    // `max_record_bytes(n)` is the limit of a cluster with `n` nodes. It grows by the same number for each node.
    format!(
        "with it, the task sets of cluster {cluster} would need more than {} bytes plus {} for each of its nodes; let their tasks read fewer \
         of the values that each node provides itself, or divide the cluster",
        max_record_bytes(0),
        max_record_bytes(1) - max_record_bytes(0)
    )
}

/// Returns the reason why a node's next task set is not released: the store will always refuse its record.
pub(super) fn refused_reason(refusal: &Refusal) -> String {
    format!("the store refuses it: {refusal}; make the task set or what its tasks read smaller, or raise the limit")
}

/// Returns the size of the record of each node's released task set, before and after these decisions, in bytes. Only
/// the node's own values count. The size after the decisions is `None` if no new task set is released to the node.
pub(super) fn record_sizes(
    model: &Model,
    nodes: impl Iterator<Item = Uuid>,
    decided: &[(Uuid, NodeDecision)],
) -> Vec<RecordSize> {
    let new_sizes = decided.iter().filter_map(|(node, decision)| Some((*node, decision.record.as_ref()?.own_bytes?)));
    let new_sizes: BTreeMap<Uuid, u64> = new_sizes.collect();
    nodes.map(|node| RecordSize { next: new_sizes.get(&node).copied(), ..record_size(model, node) }).collect()
}

/// Returns the records to store for decisions, in groups of at most [`MAX_NODES_PER_COMMIT`] nodes.
pub(super) fn new_records(decided: &[(Uuid, NodeDecision)]) -> Vec<Vec<(Uuid, &NewRecord)>> {
    let records: Vec<_> = decided.iter().filter_map(|(node, decision)| Some((*node, decision.record.as_ref()?))).collect();
    records.chunks(MAX_NODES_PER_COMMIT).map(<[_]>::to_vec).collect()
}

/// Returns the commits that store records, without what the model has already. The last commit contains the records,
/// and the commits before it the chunks of texts that the records name. If the last commit fails, no record names these
/// chunks, and a later sweep deletes them.
pub(super) fn transactions_for(model: &Model, records: &[(Uuid, &NewRecord)]) -> Vec<Transaction> {
    let mut transaction = Transaction::new();
    let mut chunks = ChunksByHash::new();
    let mut stored_hashes: BTreeSet<Hash> = BTreeSet::new();
    let mut pinned_names: BTreeSet<&str> = BTreeSet::new();
    for (node, NewRecord { record, profile, common, pinned, .. }) in records {
        if let Some(record) = record {
            let (value, record_chunks) = record;
            chunks.extend(record_chunks.iter().map(|(hash, chunk)| (*hash, Arc::clone(chunk))));
            if let Some(values) = common.as_deref().filter(|values| !model.value_lists.contains_key(&values.hash))
                && stored_hashes.insert(values.hash)
            {
                chunks.extend(values.chunks.iter().map(|(hash, chunk)| (*hash, Arc::clone(chunk))));
                for (name, part) in values.values.part_hashes.iter().zip(&values.parts) {
                    if !model.common_parts.contains_key(name) && stored_hashes.insert(*name) {
                        transaction = transaction.put(key::common_part(name), part.clone());
                    }
                }
                transaction = transaction.put(key::common_values(&values.hash), values.record.clone());
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
        if model.profiles.contains_key(&hash) || !stored_hashes.insert(hash) {
            continue;
        }
        let record = ProfileRecord::new(profile.encoded.for_version(PUBLISHED_VERSION).bytes.to_vec(), profile.blobs.to_vec());
        transaction = transaction.put(key::profile(&hash), codec::encode(&record));
    }
    let mut transactions = chunk_transactions(chunks.into_iter().filter(|(hash, _)| !model.common_chunks.contains_key(hash)));
    transactions.push(transaction);
    transactions
}

/// Returns the commits that store chunks of texts, each within the limits of every storage engine.
fn chunk_transactions(chunks: impl Iterator<Item = (Hash, Arc<str>)>) -> Vec<Transaction> {
    let (mut transactions, mut last_bytes) = (Vec::<Transaction>::new(), 0);
    for (hash, chunk) in chunks {
        let value = codec::encode(&chunk);
        last_bytes += value.len();
        match transactions.last_mut() {
            Some(last) if last.ops.len() < MAX_CHUNKS_PER_COMMIT && last_bytes <= MAX_CHUNK_BYTES_PER_COMMIT => {
                *last = std::mem::take(last).put(key::common_chunk(&hash), value);
            }
            _ => {
                last_bytes = value.len();
                transactions.push(Transaction::new().put(key::common_chunk(&hash), value));
            }
        }
    }
    transactions
}

/// Returns how many bytes the commits store for the release to each node, without profiles. Values that several nodes
/// share precede the records in the commits. Their bytes are added to those of the node whose record is the next.
pub(super) fn bytes_by_node(transactions: &[Transaction]) -> Vec<(Uuid, u64)> {
    let (mut node_bytes, mut common_bytes) = (Vec::new(), 0);
    let shared_key_readers = [key::read_common_values, key::read_common_part, key::read_common_chunk];
    for op in transactions.iter().flat_map(|transaction| &transaction.ops) {
        let Op::Put { key, value } = op else { continue };
        if shared_key_readers.iter().any(|read_key| read_key(key).is_some()) {
            common_bytes += value.len() as u64;
        } else if let Some(node) = key::read_node(key::RELEASED, key) {
            node_bytes.push((node, value.len() as u64 + std::mem::take(&mut common_bytes)));
        }
    }
    node_bytes
}

/// Returns the commits that delete stored values that no released task set names: profiles, common values and chunks of
/// texts.
pub(super) fn sweep_transactions(model: &Model) -> Vec<Transaction> {
    let used_profiles: BTreeSet<Hash> = model.released.values().filter_map(|record| record.base().profile).collect();
    // `taken` is a record's reference to common values.
    let values: BTreeSet<Hash> = model.released.values().filter_map(|record| Some(record.taken.as_ref()?.values)).collect();
    let unused_profiles = model.profiles.keys().filter(|hash| !used_profiles.contains(*hash)).map(key::profile);
    let unused_values = model.value_lists.keys().filter(|hash| !values.contains(*hash)).map(key::common_values);
    let used_parts: BTreeSet<Hash> =
        values.iter().filter_map(|key| model.value_lists.get(key)).flat_map(|list| list.part_hashes.iter().copied()).collect();
    // Parts are deleted after the values that name them, because no record may name a missing part.
    let unused_parts = model.common_parts.keys().filter(|hash| !used_parts.contains(*hash)).map(key::common_part);
    // Used chunks are those of the used parts and of the released records.
    let chunks_in_use = used_chunks(model, &used_parts);
    let unused_chunks = model.common_chunks.keys().filter(|hash| !chunks_in_use.contains(*hash)).map(key::common_chunk);
    let unused: Vec<String> = unused_profiles.chain(unused_values).chain(unused_parts).chain(unused_chunks).collect();
    // A commit for this number of nodes has several operations per node, so as many deletions fit into one commit.
    unused.chunks(MAX_NODES_PER_COMMIT).map(|keys| keys.iter().cloned().fold(Transaction::new(), Transaction::delete)).collect()
}

/// Returns the hashes of the chunks of texts that are in use: those of released task sets, and those of `used_parts`,
/// the used parts of common values.
fn used_chunks(model: &Model, used_parts: &BTreeSet<Hash>) -> BTreeSet<Hash> {
    let part_texts = used_parts.iter().filter_map(|name| model.common_parts.get(name)).flat_map(|part| part.texts());
    let record_texts = model.released.values().flat_map(|record| record.own_texts());
    // A text with one chunk is stored in its record, so its chunk is not stored separately.
    let chunks = record_texts.chain(part_texts).map(JsonText::chunks).filter(|chunks| chunks.len() > 1).flatten();
    // Equal chunks share one allocation, so hashing one chunk per address is enough.
    let by_address: HashMap<*const u8, &Arc<str>> = chunks.map(|chunk| (chunk.as_ptr(), chunk)).collect();
    by_address.into_values().map(|chunk| message::hash_content(chunk.as_bytes())).collect()
}

/// Returns the commits that delete the records of deleted nodes ([`key::node_entries`]) and the images of their
/// Observations. The records about the certificates of their agents remain.
///
/// # Errors
/// The error of the store.
pub(super) async fn deletion_transactions(store: &dyn Store, deleted_nodes: &[Uuid]) -> Result<Vec<Transaction>, StoreError> {
    if deleted_nodes.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = store.snapshot().await?;
    let mut transactions = Vec::new();
    for nodes in deleted_nodes.chunks(MAX_DELETED_NODES_PER_COMMIT) {
        let mut transaction = Transaction::new();
        for node in nodes {
            transaction = key::node_entries(*node).fold(transaction, Transaction::delete);
            // The images are earlier versions of the node's Observation.
            for image in snapshot.list(&ListQuery::prefix(key::observation_images(*node))).await?.entries {
                transaction = transaction.delete(image.key);
            }
        }
        transactions.push(transaction);
    }
    Ok(transactions)
}
