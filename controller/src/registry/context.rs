//! What a decision reads: the fleet as of one revision, and what no model holds.
//!
//! A decision is a function without effects, and the store may be far away. So what is not in the model is read before the decision
//! and not in it: a decision that wants more answers [`Undecided::Unread`], and is made again when that was read. What it found has
//! to be a precondition of its commit, so it does not matter that the read is later than the model.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use stemma_core::access::{Act, Place, Rights, Verdict};
use stemma_core::extension::Question;
use stemma_core::object::{Kind, Timestamp};
use stemma_core::rollout::Room;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::extensions::{Answered, Ask};
use super::{Caller, Undecided, damaged, store_error};
use crate::cache::Model;
use crate::records::{codec, key};
use crate::store::{Entry, Query, Revision, Store};

/// What a decision rests on.
pub struct Context<'a> {
    /// The fleet, as of one revision, and as whoever asks for the write sees it.
    pub model: &'a Model,
    /// The same fleet as it is: what holds of the whole is asked of it, whoever asks.
    pub whole: &'a Model,
    /// Who asks.
    pub caller: &'a Caller,
    /// When the write is made.
    pub now: Timestamp,
    /// The same; `None`: the clock is suspect, and nothing is dropped or ended by it.
    pub trusted_now: Option<Timestamp>,
    /// How many nodes there may be.
    pub(super) most_nodes: usize,
    /// What is stored of what is released to nodes.
    pub(super) room: &'a Mutex<Room>,
    pub(super) reads: &'a Reads,
    pub(super) answered: &'a Answered,
    pub(super) extensions: &'a dyn Ask,
}

/// Something that no model holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The entry at a key.
    Entry(String),
    /// The keys below a prefix.
    Keys(String),
}

/// What was read for a decision.
#[derive(Default)]
pub(super) struct Reads {
    entries: HashMap<String, Option<Entry>>,
    keys: HashMap<String, Vec<Bytes>>,
}

impl Reads {
    /// Reads what a decision wants.
    pub(super) async fn read(&mut self, store: &dyn Store, wanted: Wanted) -> Result<(), ApiError> {
        let snapshot = store.snapshot().await.map_err(|e| store_error(&e))?;
        match wanted {
            Wanted::Entry(at) => {
                let entry = snapshot.get(at.as_bytes()).await.map_err(|e| store_error(&e))?;
                self.entries.insert(at, entry);
            }
            Wanted::Keys(prefix) => {
                let list = snapshot.list(&Query::prefix(prefix.clone())).await.map_err(|e| store_error(&e))?;
                self.keys.insert(prefix, list.entries.into_iter().map(|entry| entry.key).collect());
            }
        }
        Ok(())
    }
}

/// Whether what stands there may be written: by its role as the row of the endpoint table says that makes one, and where it stands.
pub(super) fn may_write(rights: Rights, row: Option<Endpoint>, place: Place) -> bool {
    row.is_some_and(|row| row.allows(rights.role.into())) && rights.judge(Act::Write, place) == Verdict::Allowed
}

impl Context<'_> {
    /// What ended by then may be dropped. By a suspect clock nothing may.
    pub fn forgets_until(&self) -> Timestamp {
        self.trusted_now.unwrap_or(Timestamp(0))
    }

    /// Refuses a write of something that stands there for want of rights: `row` is the row of the endpoint table that makes one.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`].
    pub fn check_place(
        &self,
        row: Option<Endpoint>,
        place: Place,
        what: impl FnOnce() -> String,
    ) -> Result<(), ApiError> {
        let rights = self.caller.who.rights;
        if may_write(rights, row, place) {
            return Ok(());
        }
        let has_role = row.is_some_and(|row| row.allows(rights.role.into()));
        let own = rights.within.and_then(|own| self.whole.clusters.get(own.0)).filter(|_| has_role);
        let who = &self.caller.who;
        let Some(own) = own else { return Err(who.denied(format_args!("change {}", what()), row)) };
        let (what, own, name) = (what(), quote(&own.meta.name), &who.name);
        let message = format!(
            "Permission denied: {what} is outside of cluster {own}, to which {name} is bound; nothing was changed"
        );
        Err(ApiError::new(ErrorType::AuthForbidden, message))
    }

    /// What is stored of what is released to nodes, as it is now.
    pub(super) fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an extension answered to a question; `None`: it was not asked just that.
    pub(super) fn answer(&self, question: &Question) -> Option<&[u8]> {
        self.answered.get(question)
    }

    /// When a mark was last written; `None`: never.
    pub(super) fn marked(&self, mark: &str) -> Option<Revision> {
        self.whole.marks.get(mark).copied()
    }

    /// The mark of references to an object, as [`super::Draft::delete`] needs it: nobody in the model who refers to it is missing.
    pub(super) fn referred(&self, kind: Kind, id: &str) -> Option<Revision> {
        self.marked(&key::referred(kind, &id))
    }

    /// The entry at a key that no model holds.
    ///
    /// # Errors
    /// [`Undecided::Unread`].
    pub fn entry(&self, at: &str) -> Result<Option<&Entry>, Undecided> {
        let read = self.reads.entries.get(at).ok_or_else(|| Undecided::Unread(Wanted::Entry(at.to_owned())))?;
        Ok(read.as_ref())
    }

    /// The record at such a key, with the revision that wrote it.
    ///
    /// # Errors
    /// [`Undecided::Unread`]; that the record is damaged.
    pub fn record<T: DeserializeOwned>(&self, at: &str) -> Result<Option<(T, Revision)>, Undecided> {
        let Some(entry) = self.entry(at)? else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged(&e))?, entry.mod_revision)))
    }

    /// The keys below a prefix of entries that no model holds.
    ///
    /// # Errors
    /// [`Undecided::Unread`].
    pub(super) fn keys_below(&self, prefix: &str) -> Result<&[Bytes], Undecided> {
        let read = self.reads.keys.get(prefix).ok_or_else(|| Undecided::Unread(Wanted::Keys(prefix.to_owned())))?;
        Ok(read)
    }
}
