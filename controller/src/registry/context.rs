//! The input of a decision about a write: the fleet at one revision, and entries of the store that are not in the
//! model.
//!
//! A decision is a function without effects, and the store may be remote. So entries that are not in the model are read
//! before the decision, not in it. A decision that needs another entry returns [`DecisionError::NeedsRead`], and is
//! repeated after that entry was read. The entry is read later than the model. This does no harm, because the commit
//! requires that the entry is unchanged.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use stemma_core::access::{AccessScope, AccessVerb, Rights, Verdict};
use stemma_core::extension::ExtensionQuestion;
use stemma_core::object::{Kind, Timestamp};
use stemma_core::rollout::RecordQuota;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::extensions::{ExtensionAnswers, ExtensionClient};
use super::{Caller, DecisionError, damaged_record, store_error};
use crate::cache::Model;
use crate::records::{codec, key};
use crate::store::{Entry, ListQuery, Revision, Store};

/// The input of a decision about a write: the fleet, the caller, the time, the entries of the store that were read, and
/// the answers of extensions.
pub struct Context<'a> {
    /// The fleet at one revision, restricted to what the caller may see.
    pub model: &'a Model,
    /// The fleet at the same revision without this restriction, for rules that concern the whole fleet.
    pub full_model: &'a Model,
    /// The caller of the write.
    pub caller: &'a Caller,
    /// The time of the write. It may be wrong if the clock is suspect.
    pub now: Timestamp,
    /// The time of the write, or `None` if the clock is suspect. Without a trusted time, a write removes no expired
    /// certificates and tokens from the records that list them. Whether a token is still valid is checked with `now`.
    pub trusted_now: Option<Timestamp>,
    /// Maximum number of nodes in the fleet, as configured.
    pub(super) max_nodes: usize,
    /// The byte counts of the stored records of released task sets, by node and cluster. A write is refused if the
    /// records of a cluster would exceed their quota, and would exceed it by more than without the write.
    pub(super) record_quota: &'a Mutex<RecordQuota>,
    pub(super) reads: &'a ContextReads,
    pub(super) extension_answers: &'a ExtensionAnswers,
    pub(super) extensions: &'a dyn ExtensionClient,
}

/// A part of the store that a decision needs, and that is not in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingRead {
    /// The entry at this key.
    Entry(String),
    /// The keys of all entries that begin with this prefix.
    Keys(String),
}

/// The parts of the store that were read for a decision.
#[derive(Default)]
pub(super) struct ContextReads {
    entries: HashMap<String, Option<Entry>>,
    keys: HashMap<String, Vec<Bytes>>,
}

impl ContextReads {
    /// Reads a part of the store that a decision needs, and keeps it in memory for the repetition of the decision.
    pub(super) async fn read(&mut self, store: &dyn Store, missing_read: MissingRead) -> Result<(), ApiError> {
        let snapshot = store.snapshot().await.map_err(|e| store_error(&e))?;
        match missing_read {
            MissingRead::Entry(entry_key) => {
                let entry = snapshot.get(entry_key.as_bytes()).await.map_err(|e| store_error(&e))?;
                self.entries.insert(entry_key, entry);
            }
            MissingRead::Keys(prefix) => {
                let list = snapshot.list(&ListQuery::prefix(prefix.clone())).await.map_err(|e| store_error(&e))?;
                self.keys.insert(prefix, list.entries.into_iter().map(|entry| entry.key).collect());
            }
        }
        Ok(())
    }
}

/// Returns whether these rights allow a write of an object in the scope `scope` (a cluster, shared objects, or unplaced
/// nodes). The role must allow `api`, the API call that creates such an object, and the rights must include the
/// scope. No rights allow the write if `api` is `None`, because no API call creates such an object.
pub(super) fn may_write(rights: Rights, api: Option<Endpoint>, scope: AccessScope) -> bool {
    api.is_some_and(|api| api.allows(rights.role.into())) && rights.verdict(AccessVerb::Write, scope) == Verdict::Allowed
}

impl Context<'_> {
    /// Returns the time by which a certificate or token must have ended, so that a write may remove it from the record
    /// that lists it. The time is 0 if the clock is suspect, so that nothing is removed.
    pub fn prune_before(&self) -> Timestamp {
        self.trusted_now.unwrap_or(Timestamp(0))
    }

    /// Fails if the caller may not write an object in the scope `scope` (a cluster, shared objects, or unplaced nodes).
    /// `api` is the API call that creates such an object. `text` returns the words for the object in the error
    /// message. If the caller's role would allow the write and only the cluster is wrong, the message names the cluster
    /// that the caller is bound to.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`].
    pub fn check_access(&self, api: Option<Endpoint>, scope: AccessScope, text: impl FnOnce() -> String) -> Result<(), ApiError> {
        let rights = self.caller.requester.rights;
        if may_write(rights, api, scope) {
            return Ok(());
        }
        let has_role = api.is_some_and(|api| api.allows(rights.role.into()));
        let cluster = rights.cluster.and_then(|id| self.full_model.clusters.get(id.0)).filter(|_| has_role);
        let requester = &self.caller.requester;
        let Some(cluster) = cluster else { return Err(requester.denied(format_args!("change {}", text()), api)) };
        let (item, cluster, name) = (text(), quote(&cluster.meta.name), &requester.name);
        let message =
            format!("Permission denied: {item} is outside of cluster {cluster}, to which {name} is bound; nothing was changed");
        Err(ApiError::new(ErrorType::AuthForbidden, message))
    }

    /// Locks the byte counts of the stored records of released task sets.
    pub(super) fn record_quota(&self) -> MutexGuard<'_, RecordQuota> {
        self.record_quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer of an extension (a program that decides tags) to a question. Returns `None` if exactly this
    /// question was not sent to the extension.
    pub(super) fn extension_answer(&self, question: &ExtensionQuestion) -> Option<&[u8]> {
        self.extension_answers.get(question)
    }

    /// Returns the revision at which a mark was last written, or `None` if the mark does not exist. A mark is an entry
    /// without content that writes change so that a concurrent write fails.
    pub(super) fn mark_revision(&self, mark: &str) -> Option<Revision> {
        self.full_model.marks.get(mark).copied()
    }

    /// Returns the revision of an object's reference mark, or `None` if the object has no such mark. Each write that
    /// adds a reference to the object changes this mark. So the model has all references if the mark is unchanged at
    /// the commit ([`super::Draft::delete`]).
    pub(super) fn reference_mark(&self, kind: Kind, id: &str) -> Option<Revision> {
        self.mark_revision(&key::reference_mark(kind, &id))
    }

    /// Returns the entry of the store at a key, or `None` if there is no entry. This is for entries that the model does
    /// not contain.
    ///
    /// # Errors
    /// [`DecisionError::NeedsRead`] if the entry was not read yet.
    pub fn entry(&self, key: &str) -> Result<Option<&Entry>, DecisionError> {
        let entry = self.reads.entries.get(key).ok_or_else(|| DecisionError::NeedsRead(MissingRead::Entry(key.to_owned())))?;
        Ok(entry.as_ref())
    }

    /// Returns the record at a key, with the revision that wrote the record, or `None` if there is no record. This is
    /// for records that the model does not contain.
    ///
    /// # Errors
    /// [`DecisionError::NeedsRead`] if the record was not read yet, or an error if it is damaged.
    pub fn record<T: DeserializeOwned>(&self, entry_key: &str) -> Result<Option<(T, Revision)>, DecisionError> {
        let Some(entry) = self.entry(entry_key)? else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged_record(&e))?, entry.mod_revision)))
    }

    /// Returns the keys of all entries that begin with a prefix. The entries are not in the model.
    ///
    /// # Errors
    /// [`DecisionError::NeedsRead`] if these keys were not read yet.
    pub(super) fn keys_below(&self, prefix: &str) -> Result<&[Bytes], DecisionError> {
        let keys = self.reads.keys.get(prefix).ok_or_else(|| DecisionError::NeedsRead(MissingRead::Keys(prefix.to_owned())))?;
        Ok(keys)
    }
}
