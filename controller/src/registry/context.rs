//! The input of a decision: the fleet at one revision, and entries of the store that are not in the model.
//!
//! A decision is a function without effects, and the store may be remote. So entries that are not in the model are read
//! before the decision, not in it. A decision that needs another entry returns [`DecisionError::NeedsRead`], and is
//! repeated after that entry was read. The commit must require that the entry is unchanged, so it does no harm that the
//! entry is read later than the model.

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

/// The input of a decision: the fleet, the caller, the time, and what was read or asked for the decision.
pub struct Context<'a> {
    /// The fleet at one revision, restricted to what the caller may see.
    pub model: &'a Model,
    /// The fleet at the same revision without this restriction, for rules that concern the whole fleet.
    pub full_model: &'a Model,
    /// The caller of the write.
    pub caller: &'a Caller,
    /// The time of the write, also if the clock is suspect.
    pub now: Timestamp,
    /// The time of the write, or `None` if the clock is suspect. Without it nothing expires and nothing is dropped.
    pub trusted_now: Option<Timestamp>,
    /// Maximum number of nodes in the fleet, as configured.
    pub(super) max_nodes: usize,
    /// The bytes of the stored records of released task sets, by node and cluster.
    pub(super) record_quota: &'a Mutex<RecordQuota>,
    pub(super) reads: &'a ContextReads,
    pub(super) extension_answers: &'a ExtensionAnswers,
    pub(super) extensions: &'a dyn ExtensionClient,
}

/// A part of the store that is not in the model, and that a decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingRead {
    /// The entry at this key.
    Entry(String),
    /// The keys of the entries below this prefix.
    Keys(String),
}

/// The entries that were read for a decision.
#[derive(Default)]
pub(super) struct ContextReads {
    entries: HashMap<String, Option<Entry>>,
    keys: HashMap<String, Vec<Bytes>>,
}

impl ContextReads {
    /// Reads the part of the store that a decision needs.
    pub(super) async fn read(&mut self, store: &dyn Store, wanted: MissingRead) -> Result<(), ApiError> {
        let snapshot = store.snapshot().await.map_err(|e| store_error(&e))?;
        match wanted {
            MissingRead::Entry(at) => {
                let entry = snapshot.get(at.as_bytes()).await.map_err(|e| store_error(&e))?;
                self.entries.insert(at, entry);
            }
            MissingRead::Keys(prefix) => {
                let list = snapshot.list(&ListQuery::prefix(prefix.clone())).await.map_err(|e| store_error(&e))?;
                self.keys.insert(prefix, list.entries.into_iter().map(|entry| entry.key).collect());
            }
        }
        Ok(())
    }
}

/// Returns whether these rights allow a write of an object in the scope `place`. The scope must be within the rights,
/// and the role must allow `row`, the endpoint that creates such an object.
pub(super) fn may_write(rights: Rights, row: Option<Endpoint>, place: AccessScope) -> bool {
    row.is_some_and(|row| row.allows(rights.role.into())) && rights.verdict(AccessVerb::Write, place) == Verdict::Allowed
}

impl Context<'_> {
    /// Returns the time before which ended entries may be dropped. It is 0 if the clock is suspect, so nothing is
    /// dropped.
    pub fn prune_before(&self) -> Timestamp {
        self.trusted_now.unwrap_or(Timestamp(0))
    }

    /// Fails if the caller may not write an object in the scope `place`. `row` is the endpoint that creates such an
    /// object, and `what` names the object in the error message.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`].
    pub fn check_access(&self, row: Option<Endpoint>, place: AccessScope, what: impl FnOnce() -> String) -> Result<(), ApiError> {
        let rights = self.caller.requester.rights;
        if may_write(rights, row, place) {
            return Ok(());
        }
        let has_role = row.is_some_and(|row| row.allows(rights.role.into()));
        let own = rights.cluster.and_then(|own| self.full_model.clusters.get(own.0)).filter(|_| has_role);
        let who = &self.caller.requester;
        let Some(own) = own else { return Err(who.denied(format_args!("change {}", what()), row)) };
        let (what, own, name) = (what(), quote(&own.meta.name), &who.name);
        let message =
            format!("Permission denied: {what} is outside of cluster {own}, to which {name} is bound; nothing was changed");
        Err(ApiError::new(ErrorType::AuthForbidden, message))
    }

    /// Locks the current byte counts of the stored records of released task sets.
    pub(super) fn record_quota(&self) -> MutexGuard<'_, RecordQuota> {
        self.record_quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an extension's answer to a question, or `None` if exactly this question was not asked.
    pub(super) fn extension_answer(&self, question: &ExtensionQuestion) -> Option<&[u8]> {
        self.extension_answers.get(question)
    }

    /// Returns the revision at which a mark was last written, if ever.
    pub(super) fn mark_revision(&self, mark: &str) -> Option<Revision> {
        self.full_model.marks.get(mark).copied()
    }

    /// Returns the revision of an object's reference mark, as [`super::Draft::delete`] needs it. The model has every
    /// reference up to this revision.
    pub(super) fn reference_mark(&self, kind: Kind, id: &str) -> Option<Revision> {
        self.mark_revision(&key::reference_mark(kind, &id))
    }

    /// Returns the entry at a key that no model has.
    ///
    /// # Errors
    /// [`DecisionError::NeedsRead`].
    pub fn entry(&self, at: &str) -> Result<Option<&Entry>, DecisionError> {
        let read = self.reads.entries.get(at).ok_or_else(|| DecisionError::NeedsRead(MissingRead::Entry(at.to_owned())))?;
        Ok(read.as_ref())
    }

    /// Returns the record at a key that no model has, with the revision that wrote it.
    ///
    /// # Errors
    /// [`DecisionError::NeedsRead`], or an error if the record is damaged.
    pub fn record<T: DeserializeOwned>(&self, at: &str) -> Result<Option<(T, Revision)>, DecisionError> {
        let Some(entry) = self.entry(at)? else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged_record(&e))?, entry.mod_revision)))
    }

    /// Returns the keys below a prefix of entries that no model has.
    ///
    /// # Errors
    /// [`DecisionError::NeedsRead`].
    pub(super) fn keys_below(&self, prefix: &str) -> Result<&[Bytes], DecisionError> {
        let read = self.reads.keys.get(prefix).ok_or_else(|| DecisionError::NeedsRead(MissingRead::Keys(prefix.to_owned())))?;
        Ok(read)
    }
}
