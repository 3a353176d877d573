//! What was released to each node: decided against what is stored, and stored before anybody is told.

use std::collections::BTreeSet;
use std::sync::Arc;

use log::error;
use stemma_core::digest::DigestVersion;
use stemma_core::object::{Kind, Timestamp};
use stemma_core::resolve::Answer;
use stemma_wire::message::Hash;
use stemma_wire::message::desired::TaskSet;
use uuid::Uuid;

use super::encode::{self, EncodedProfile, Profiles};
use super::policy::{Candidate, ReleasePolicy, Verdict};
use super::size::{self, TooLarge};
use crate::cache::Model;
use crate::desired::{Encoded, Released};
use crate::records::reported::{ProfileRecord, ReleasedRecord};
use crate::records::{codec, key};
use crate::store::{Op, Precondition, Query, Revision, Snapshot, Store, StoreError, Transaction};

/// Nodes to a commit: with a profile each and the marks of their releases below every engine's limit of operations.
const NODES: usize = 30;
/// Nodes that are gone to a commit: each has up to ten images and six records.
const GONE: usize = 5;

/// What one node is told from now on.
pub(super) struct Decision {
    pub(super) released: Released,
    /// What has to be stored first; `None`: it is stored already.
    record: Option<NewRecord>,
}

/// What is stored of a task set that is released.
struct NewRecord {
    record: ReleasedRecord,
    profile: Option<EncodedProfile>,
    fixes: Vec<Fixed>,
}

/// A version of a release that a task set was made from: its name, and the object at the revision that was resolved.
struct Fixed {
    name: String,
    object: String,
    written: Revision,
}

/// Decides for one node.
///
/// # Errors
/// That what it would be told is too large for its agent: it is told nothing, and what was released holds.
pub(super) fn decide(
    policy: &dyn ReleasePolicy,
    profiles: &mut Profiles,
    model: &Model,
    answer: &Answer,
    revision: Revision,
    now: Timestamp,
) -> Result<Decision, TooLarge> {
    let profile = answer.task_set().map(|set| profiles.encoded(&set.profile));
    let name = profile.as_ref().map(|profile| profile.encoded.name);
    let next = encode::task_set(answer, name, DigestVersion::NEWEST);
    let known = encode::known(answer);
    let present = model.released.get(&answer.id().0).map(|record| &record.task_set);
    // Under the definition that it was released with: a newer one releases nothing.
    let is_same = present.is_some_and(|present| {
        let version = DigestVersion::of(present.digest_version).unwrap_or(DigestVersion::NEWEST);
        *present == encode::task_set(answer, name, version)
    });
    let verdict = if is_same { Verdict::Hold } else { policy.judge(&Candidate { answer, present, next: &next, now }) };
    let send = |task_set: &TaskSet, profile: Option<&EncodedProfile>| {
        let released = super::assembled(revision, answer, &known, task_set, profile);
        let sizes = (released.known.bytes.len(), released.task_set.bytes.len());
        size::check(&known, task_set, sizes).map(|_| released)
    };
    Ok(match (verdict, present) {
        (Verdict::Release, _) => {
            let released = send(&next, profile.as_ref())?;
            let release = answer.release().map(|release| release.name.to_string());
            let record = ReleasedRecord { revision: revision.get(), at: now, task_set: next, release };
            Decision { released, record: Some(NewRecord { record, profile, fixes: fixes(model, answer) }) }
        }
        (Verdict::Hold, Some(present)) => {
            let kept = if is_same { profile } else { stored_profile(model, present) };
            Decision { released: send(present, kept.as_ref())?, record: None }
        }
        // Nothing was ever released: the node knows its labels and runs nothing.
        (Verdict::Hold, None) => Decision { released: send(&TaskSet::default(), None)?, record: None },
    })
}

/// The versions whose content is fixed by a release to a node: that of its release, and those that it imports.
fn fixes(model: &Model, answer: &Answer) -> Vec<Fixed> {
    let Some(release) = answer.release() else { return Vec::new() };
    let versions = release.all_imports.iter().chain([&release.name]).filter(|name| name.version.is_some());
    versions
        .filter_map(|name| {
            let name = name.to_string();
            let object = model.releases.named(None, &name)?;
            let written = Revision::new(object.meta.resource_version);
            Some(Fixed { name, object: key::object(Kind::Release, object.meta.uuid), written })
        })
        .collect()
}

/// The profile of a task set that is held, as it was when it was released.
fn stored_profile(model: &Model, task_set: &TaskSet) -> Option<EncodedProfile> {
    let hash = task_set.profile?;
    let Some(record) = model.profiles.get(&hash) else {
        error!(profile:% = hash; "the profile of a released task set is not stored: its host keeps what it has");
        return None;
    };
    let encoded = Arc::new(Encoded { name: hash, bytes: record.bytes.clone().into() });
    Some(EncodedProfile { encoded, blobs: record.blobs.clone().into() })
}

/// The commits that make decisions durable, and forget nodes that are gone.
///
/// # Errors
/// What the store says.
pub(super) fn transactions(
    store: &dyn Store,
    decided: &[(Uuid, Decision)],
    gone: &[Uuid],
) -> Result<Vec<Transaction>, StoreError> {
    let new: Vec<_> = decided.iter().filter_map(|(node, one)| Some((*node, one.record.as_ref()?))).collect();
    if new.is_empty() && gone.is_empty() {
        return Ok(Vec::new());
    }
    let snapshot = store.snapshot()?;
    let mut transactions = Vec::new();
    for some in new.chunks(NODES) {
        transactions.push(put(&*snapshot, some)?);
    }
    for some in gone.chunks(GONE) {
        transactions.push(forget(&*snapshot, some)?);
    }
    Ok(transactions)
}

fn put(snapshot: &dyn Snapshot, some: &[(Uuid, &NewRecord)]) -> Result<Transaction, StoreError> {
    let mut transaction = Transaction::new();
    let mut profiles: Vec<Hash> = Vec::new();
    let mut fixed: BTreeSet<&str> = BTreeSet::new();
    for (node, NewRecord { record, profile, fixes }) in some {
        transaction = transaction.put(key::of_node(key::RELEASED, *node), codec::encode(record));
        for one in fixes {
            let mark = key::fixed(&one.name);
            // An edit requires the mark absent: with this condition, whichever of the two is second is decided again.
            if fixed.insert(&one.name) && snapshot.get(mark.as_bytes())?.is_none() {
                transaction = transaction
                    .require(Precondition::unchanged(one.object.clone(), one.written))
                    .put(mark, bytes::Bytes::new());
            }
        }
        let Some(profile) = profile else { continue };
        let hash = profile.encoded.name;
        if profiles.contains(&hash) {
            continue;
        }
        profiles.push(hash);
        let at = key::profile(&hash);
        if snapshot.get(at.as_bytes())?.is_none() {
            let record = ProfileRecord { bytes: profile.encoded.bytes.to_vec(), blobs: profile.blobs.to_vec() };
            transaction = transaction.put(at, codec::encode(&record));
        }
    }
    Ok(transaction)
}

/// The commits that take away profiles which no released task set names.
pub(super) fn sweep(model: &Model) -> Vec<Transaction> {
    let used: BTreeSet<Hash> = model.released.values().filter_map(|record| record.task_set.profile).collect();
    let unused: Vec<&Hash> = model.profiles.keys().filter(|hash| !used.contains(*hash)).collect();
    let delete = |some: &[&Hash]| some.iter().fold(Transaction::new(), |all, hash| all.delete(key::profile(hash)));
    unused.chunks(NODES).map(delete).collect()
}

/// What a node that is gone had said and been told.
fn forget(snapshot: &dyn Snapshot, gone: &[Uuid]) -> Result<Transaction, StoreError> {
    let mut transaction = Transaction::new();
    for node in gone {
        for at in key::all_of_node(*node) {
            if snapshot.get(at.as_bytes())?.is_some() {
                transaction = transaction.delete(at);
            }
        }
        for image in snapshot.list(&Query::prefix(key::observed(*node)))?.entries {
            transaction.ops.push(Op::Delete { key: image.key });
        }
    }
    Ok(transaction)
}
