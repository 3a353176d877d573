//! What was released to each node: decided against what is stored, and stored before anybody is told.

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
use stemma_core::resolve::Answer;
use stemma_core::rollout::{KeptProfile, RecordSize, Standing, keep, most_of_records};
use stemma_core::shared_text::JsonText;
use stemma_wire::message::desired::{Barrier, Known, TaskSet};
use stemma_wire::message::{self, Hash};
use uuid::Uuid;

use super::group::Groups;
use crate::cache::Model;
use crate::cache::released::record_size;
use crate::desired::encode::{self, Profiles, SentProfile};
use crate::desired::size::{self, TooLarge};
use crate::desired::{DesiredContent, EncodedProfile, PUBLISHED, Released};
use crate::records::chunks::NamedChunks;
use crate::records::common::NamedValues;
use crate::records::reported::{ProfileRecord, ReleasedRecord};
use crate::records::{codec, key};
use crate::store::{Op, Precondition, Query, Refusal, Revision, Store, StoreError, Transaction};

/// How many nodes one commit releases. With a profile and the marks of a release for each, that is below every engine's limit of operations.
const NODES: usize = 30;
/// How many chunks of texts one commit stores.
const CHUNKS: usize = 60;
/// How many bytes these may have together, where they are several.
const MOST_OF_CHUNKS: usize = 512 * 1024;
/// How many deleted nodes one commit forgets: each has up to ten images and seven records.
const GONE: usize = 5;

/// What one node is told from now on.
pub(super) struct Decision {
    pub(super) released: Released,
    /// Barriers of the profile that it keeps, which the present order no longer has: nobody waits for them.
    pub(super) dropped: Arc<[Barrier]>,
    /// What has to be stored first; `None`: it is stored already.
    record: Option<NewRecord>,
}

/// What is stored of a task set that is released, or of one that is kept and whose release has another name by now.
pub(super) struct NewRecord {
    /// What of a task set that is released is the node's own, in bytes; `None`: it is the one that is stored.
    own_bytes: Option<u64>,
    /// The record as it is stored, and the chunks of its own texts; `None`: the one that is stored holds.
    record: Option<(Bytes, NamedChunks)>,
    profile: Option<SentProfile>,
    /// The values that the record takes from its group; `None`: it takes none, or those that it took before.
    common: Option<Arc<NamedValues>>,
    fixes: Vec<Fixed>,
}

/// A version of a release that a task set was made from: its name, and the object at the revision that was resolved.
struct Fixed {
    name: String,
    object: String,
    written: Revision,
}

/// What a node's desired state is made from: its answer, and the task set that it has.
#[derive(Debug)]
struct NodeContent {
    answer: Arc<Answer>,
    task_set: TaskSetOf,
}

/// Where a node's task set comes from.
#[derive(Debug)]
enum TaskSetOf {
    /// Nothing was ever released to it.
    Nothing,
    /// It is that of the answer, with a profile by this name.
    Answer(Option<Hash>),
    /// It is the one that was released before.
    Record(Arc<ReleasedRecord>),
}

impl DesiredContent for NodeContent {
    fn known(&self) -> Known {
        encode::known(&self.answer)
    }

    fn task_set(&self) -> Cow<'_, TaskSet> {
        match &self.task_set {
            TaskSetOf::Nothing => Cow::Owned(TaskSet::default()),
            TaskSetOf::Answer(profile) => {
                Cow::Owned(encode::task_set(&self.answer, *profile, DigestVersion::NEWEST, |_, _| None))
            }
            TaskSetOf::Record(record) => record.task_set(),
        }
    }
}

/// What a node is resolved to, and when.
#[derive(Clone, Copy)]
pub(super) struct Resolved<'a> {
    pub(super) model: &'a Model,
    pub(super) answer: &'a Arc<Answer>,
    pub(super) now: Timestamp,
}

impl Resolved<'_> {
    /// The next task set goes out.
    ///
    /// # Errors
    /// That what the node would be told is too large for its agent: it is told nothing, and what was released holds.
    pub(super) fn release(self, profiles: &mut Profiles, groups: &mut Groups<'_>) -> Result<Decision, TooLarge> {
        let Self { model, answer, now } = self;
        let profile = answer.task_set().map(|set| profiles.encoded(&set.profile));
        let name = profile.as_ref().map(SentProfile::name);
        let group = answer.task_set().map(|set| groups.of(&set.group));
        let encoded = |reference: &_, input: &_| group.as_ref()?.encoded(reference, input);
        let task_set = encode::task_set(answer, name, DigestVersion::NEWEST, encoded);
        let released = self.told(&task_set, TaskSetOf::Answer(name), profile.as_ref())?;
        let release = answer.release().map(|release| release.name.to_string());
        let record = ReleasedRecord::new(model.revision.get(), now, task_set, release);
        let fixes = answer.release().map(|release| fixes(model, release)).unwrap_or_default();
        let common = group.map(|group| group.common);
        let record = match &common {
            Some(common) => record.without_common(common.name, &common.values),
            None => record,
        };
        let common = common.filter(|_| record.taken.is_some());
        let own_bytes = Some(record.own_bytes());
        let record = NewRecord { own_bytes, record: Some(record.encoded()), profile, common, fixes };
        Ok(Decision { released, dropped: Arc::default(), record: Some(record) })
    }

    /// The node keeps the task set that was released to it.
    ///
    /// # Errors
    /// The same.
    pub(super) fn keep(self, profiles: &mut Profiles, standing: Standing) -> Result<Decision, TooLarge> {
        let Self { model, answer, .. } = self;
        let Some(record) = model.released.get(&answer.id().0) else {
            // Nothing was ever released: the node knows its labels and runs nothing.
            return Ok(Decision {
                released: self.told(&TaskSet::default(), TaskSetOf::Nothing, None)?,
                dropped: Arc::default(),
                record: None,
            });
        };
        let today = answer.task_set().map(|set| profiles.encoded(&set.profile));
        let named = answer.release().map(|release| release.name.to_string());
        let name = today.as_ref().map(SentProfile::name);
        let kept = keep(standing, record.head().profile, name, record.release.as_deref(), named.as_deref());
        let profile = match kept.profile {
            KeptProfile::None => None,
            KeptProfile::Today => today.clone(),
            KeptProfile::Earlier(name) => profiles.kept(name, || stored_profile(model, name)),
        };
        let dropped = match (&profile, &today) {
            (Some(before), Some(today)) if kept.drops_barriers => profiles.dropped_barriers(before, today),
            _ => Arc::default(),
        };
        let recorded = || model.fleet.release(&ReleaseRef::new(record.release.as_deref()?).ok()?);
        let release = if kept.is_of_levels { answer.release() } else { recorded() };
        let fixes = release.map(|release| fixes(model, release)).unwrap_or_default();
        let renamed = || ReleasedRecord::clone(record).of_release(named).encoded();
        let renamed = kept.is_renamed.then(renamed);
        let released = self.told(&record.task_set(), TaskSetOf::Record(Arc::clone(record)), profile.as_ref())?;
        let is_new = renamed.is_some() || !fixes.is_empty();
        let record =
            is_new.then_some(NewRecord { own_bytes: None, record: renamed, profile: None, common: None, fixes });
        Ok(Decision { released, dropped, record })
    }

    fn told(self, task_set: &TaskSet, of: TaskSetOf, profile: Option<&SentProfile>) -> Result<Released, TooLarge> {
        let known = encode::known(self.answer);
        let blobs = profile.map_or_else(|| Arc::from([]), |profile| Arc::clone(&profile.blobs));
        let profile = profile.map(|profile| Arc::clone(&profile.encoded));
        let revision = message::Revision(self.model.revision.get());
        let silent_after = Duration::from_secs(self.answer.silent_after_seconds().into());
        let content = Arc::new(NodeContent { answer: Arc::clone(self.answer), task_set: of });
        let released = Released::made_from(content, revision, (&known, task_set), (profile, blobs), silent_after);
        let parts = released.parts(PUBLISHED);
        let sizes = (parts.known.bytes, parts.task_set.bytes);
        size::check(&known, task_set, sizes).map(|_| released)
    }
}

/// The versions whose content a release to a node is to fix and that are not marked yet: its own, and those that it imports.
fn fixes(model: &Model, release: &CompiledRelease) -> Vec<Fixed> {
    release
        .versions()
        .filter_map(|name| {
            let name = name.to_string();
            if model.marks.contains_key(&key::fixed(&name)) {
                return None;
            }
            let object = model.releases.named(None, &name)?;
            let written = Revision::new(object.meta.resource_version);
            Some(Fixed { name, object: key::object(Kind::Release, object.meta.uuid), written })
        })
        .collect()
}

/// The profile of a task set that is held, as it was when it was released.
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

/// Why a record is not stored for which its cluster has no room, for people.
pub(super) fn beyond_budget(cluster: &str) -> String {
    format!(
        "with it what is released to the nodes of cluster {cluster} would take more than {} bytes, and {} more for each node; let their tasks read less \
         of what each node says itself, or divide the cluster",
        most_of_records(0),
        most_of_records(1) - most_of_records(0)
    )
}

/// Why a record is not stored that the store can never take, for people.
pub(super) fn refused_by_store(refusal: &Refusal) -> String {
    format!("the store refuses it: {refusal}; make the task set or what its tasks read smaller, or raise the limit")
}

/// The sizes of the records of nodes, by what was decided of them; those of which nothing was keep theirs.
pub(super) fn sizes(model: &Model, nodes: impl Iterator<Item = Uuid>, decided: &[(Uuid, Decision)]) -> Vec<RecordSize> {
    let next = decided.iter().filter_map(|(node, one)| Some((*node, one.record.as_ref()?.own_bytes?)));
    let next: BTreeMap<Uuid, u64> = next.collect();
    nodes.map(|node| RecordSize { next: next.get(&node).copied(), ..record_size(model, node) }).collect()
}

/// What has to be stored of decisions: a part is a commit.
pub(super) fn new_records(decided: &[(Uuid, Decision)]) -> Vec<Vec<(Uuid, &NewRecord)>> {
    let new: Vec<_> = decided.iter().filter_map(|(node, one)| Some((*node, one.record.as_ref()?))).collect();
    new.chunks(NODES).map(<[_]>::to_vec).collect()
}

/// The commits that make some decisions durable, beside what the model says is stored already. The last one is of the records, and those before
/// it of chunks of texts that these name: if no record comes to name them, they are swept.
pub(super) fn put(model: &Model, some: &[(Uuid, &NewRecord)]) -> Vec<Transaction> {
    let mut transaction = Transaction::new();
    let mut chunks = NamedChunks::new();
    let mut named: BTreeSet<Hash> = BTreeSet::new();
    let mut fixed: BTreeSet<&str> = BTreeSet::new();
    for (node, NewRecord { record, profile, common, fixes, .. }) in some {
        if let Some(record) = record {
            let (value, of_record) = record;
            chunks.extend(of_record.iter().map(|(hash, chunk)| (*hash, Arc::clone(chunk))));
            if let Some(values) = common.as_deref().filter(|values| !model.common.contains_key(&values.name))
                && named.insert(values.name)
            {
                chunks.extend(values.chunks.iter().map(|(hash, chunk)| (*hash, Arc::clone(chunk))));
                for (name, part) in values.values.names.iter().zip(&values.parts) {
                    if !model.common_parts.contains_key(name) && named.insert(*name) {
                        transaction = transaction.put(key::common_part(name), part.clone());
                    }
                }
                transaction = transaction.put(key::common(&values.name), values.record.clone());
            }
            transaction = transaction.put(key::of_node(key::RELEASED, *node), value.clone());
        }
        for one in fixes {
            let mark = key::fixed(&one.name);
            // An edit requires the mark absent: with this condition, whichever of the two is second is decided again.
            if fixed.insert(&one.name) && !model.marks.contains_key(&mark) {
                transaction = transaction
                    .require(Precondition::unchanged(one.object.clone(), one.written))
                    .put(mark, Bytes::new());
            }
        }
        let Some(profile) = profile else { continue };
        let hash = profile.name();
        if model.profiles.contains_key(&hash) || !named.insert(hash) {
            continue;
        }
        let record = ProfileRecord::new(profile.encoded.form(PUBLISHED).bytes.to_vec(), profile.blobs.to_vec());
        transaction = transaction.put(key::profile(&hash), codec::encode(&record));
    }
    let mut transactions = put_chunks(chunks.into_iter().filter(|(hash, _)| !model.common_chunks.contains_key(hash)));
    transactions.push(transaction);
    transactions
}

/// The commits that store chunks, none of them larger than any engine takes.
fn put_chunks(chunks: impl Iterator<Item = (Hash, Arc<str>)>) -> Vec<Transaction> {
    let (mut transactions, mut bytes) = (Vec::<Transaction>::new(), 0);
    for (hash, chunk) in chunks {
        let value = codec::encode(&chunk);
        bytes += value.len();
        match transactions.last_mut() {
            Some(last) if last.ops.len() < CHUNKS && bytes <= MOST_OF_CHUNKS => {
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

/// How many bytes of commits are what is released to each node. Values that many of them name count for the first one.
pub(super) fn bytes_of(transactions: &[Transaction]) -> Vec<(Uuid, u64)> {
    let (mut of_nodes, mut common) = (Vec::new(), 0);
    let read_values = [key::read_common, key::read_common_part, key::read_common_chunk];
    for op in transactions.iter().flat_map(|transaction| &transaction.ops) {
        let Op::Put { key, value } = op else { continue };
        if read_values.iter().any(|read| read(key).is_some()) {
            common += value.len() as u64;
        } else if let Some(node) = key::read_node(key::RELEASED, key) {
            of_nodes.push((node, value.len() as u64 + std::mem::take(&mut common)));
        }
    }
    of_nodes
}

/// The commits that take away profiles, common values and chunks of texts which no released task set names.
pub(super) fn sweep(model: &Model) -> Vec<Transaction> {
    let profiles: BTreeSet<Hash> = model.released.values().filter_map(|record| record.head().profile).collect();
    let values: BTreeSet<Hash> =
        model.released.values().filter_map(|record| Some(record.taken.as_ref()?.values)).collect();
    let unused_profiles = model.profiles.keys().filter(|hash| !profiles.contains(*hash)).map(key::profile);
    let unused_values = model.common.keys().filter(|hash| !values.contains(*hash)).map(key::common);
    let parts: BTreeSet<Hash> = values
        .iter()
        .filter_map(|name| model.common.get(name))
        .flat_map(|values| values.names.iter().copied())
        .collect();
    // After the values that name them: no record may name what is not there.
    let unused_parts = model.common_parts.keys().filter(|hash| !parts.contains(*hash)).map(key::common_part);
    // Theirs and those of records.
    let chunks = used_chunks(model, &parts);
    let unused_chunks = model.common_chunks.keys().filter(|hash| !chunks.contains(*hash)).map(key::common_chunk);
    let unused: Vec<String> = unused_profiles.chain(unused_values).chain(unused_parts).chain(unused_chunks).collect();
    unused.chunks(NODES).map(|some| some.iter().cloned().fold(Transaction::new(), Transaction::delete)).collect()
}

/// The chunks that released task sets name, or these parts of their values.
fn used_chunks(model: &Model, parts: &BTreeSet<Hash>) -> BTreeSet<Hash> {
    let of_parts = parts.iter().filter_map(|name| model.common_parts.get(name)).flat_map(|part| part.texts());
    let of_records = model.released.values().flat_map(|record| record.own_texts());
    let chunks = of_records.chain(of_parts).map(JsonText::chunks).filter(|chunks| chunks.len() > 1).flatten();
    // Each is held once for all who have it, so few are hashed.
    let each: HashMap<*const u8, &Arc<str>> = chunks.map(|chunk| (chunk.as_ptr(), chunk)).collect();
    each.into_values().map(|chunk| message::hash_content(chunk.as_bytes())).collect()
}

/// The commits that take away what nodes that are gone had said and been told.
///
/// # Errors
/// What the store says.
pub(super) async fn forget(store: &dyn Store, gone: &[Uuid]) -> Result<Vec<Transaction>, StoreError> {
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = store.snapshot().await?;
    let mut transactions = Vec::new();
    for some in gone.chunks(GONE) {
        let mut transaction = Transaction::new();
        for node in some {
            transaction = key::all_of_node(*node).fold(transaction, Transaction::delete);
            for image in snapshot.list(&Query::prefix(key::observed(*node))).await?.entries {
                transaction = transaction.delete(image.key);
            }
        }
        transactions.push(transaction);
    }
    Ok(transactions)
}
