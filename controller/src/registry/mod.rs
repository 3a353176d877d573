//! The registry: what may be stored, and how a commit is made of it.
//!
//! A write is decided on a snapshot of the cache by code that has no effects, and committed under the condition that
//! what it was decided on is still so; when it is not, it is decided again on what is there now, in the turn of those
//! who lost over the same entry (`contended`). So there is no lock around a write that nobody disturbs, any number of
//! them share one durable commit of the store, and a decision is a function that a test can call. Handlers talk to
//! the registry and to the cache, never to the store.

pub mod admit;
pub mod audit;
mod caller;
mod contended;
mod context;
pub mod draft;
pub mod intake;
pub mod maps;
pub mod names;
pub mod refusals;
mod who;
pub mod work;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stemma_core::object::Timestamp;
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

pub use caller::{Abandoned, Caller, Mark};
use contended::Contended;
use context::Reads;
pub use context::{Context, Wanted};
pub use draft::Draft;
pub use who::{Shown, Who, rights};

use crate::cache::Cache;
use crate::records::audit::AuditRecord;
use crate::records::request::{Answer, REQUEST_KEPT_MS, RequestRecord};
use crate::records::{codec, key};
use crate::store::{Entry, Precondition, Revision, Store, StoreError, Transaction, sweep};

/// How often a write is decided again after others were faster, before it gives up.
const MOST_ATTEMPTS: usize = 16;
/// How long it may take before it gives up: less than a client waits for an answer.
const MOST_WAITING: Duration = Duration::from_secs(20);

/// What a write decided: the commit, and what is answered when it is durable.
#[derive(Debug)]
pub struct Decision {
    /// The commit. One that is empty writes nothing but the record of a marked request, and without a mark answers at the revision that
    /// was looked at.
    pub draft: Draft,
    /// The answer, but for its revision.
    pub answer: Answer,
}

/// Why a decision was not made.
#[derive(Debug)]
pub enum Undecided {
    /// The write is refused.
    Refused(Box<ApiError>),
    /// It rests on something that was not read yet; it is made again with that.
    Unread(Wanted),
}

/// Why an attempt at a write did not succeed.
enum Failed {
    /// The write is refused.
    Refused(Box<ApiError>),
    /// Others write, or wait to write, one of these entries: it is decided again at this revision, in its turn.
    Contended(BTreeSet<Bytes>, Revision),
}

impl From<ApiError> for Failed {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<ApiError> for Undecided {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// A decision, and what it was made on.
struct Decided {
    decision: Decision,
    revision: Revision,
    now: Timestamp,
    /// What must still be so of who asked when it is committed.
    still: Option<Precondition>,
}

/// What became of a request before.
enum Earlier {
    /// It was made, with this answer at this revision.
    Answered(Answer, Revision),
    /// It was not made, or so long ago that its key is free again: what must still be so when it is made.
    Unmade(Precondition),
}

/// Admits writes and commits them.
pub struct Registry {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
    contended: Contended,
}

impl Registry {
    /// A registry over a store and the cache that follows it.
    pub fn new(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<dyn Clock>) -> Self {
        Self { store, cache, clock, contended: Contended::default() }
    }

    /// The cache that it decides on.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The store, for what is no object: certificates, tokens, results.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The time of a write that is made now.
    pub fn now(&self) -> Timestamp {
        Timestamp(self.clock.unix_seconds().saturating_mul(1000))
    }

    /// Makes a write: decides it, commits it with its audit event and request record, and answers when a read sees
    /// it. One that is only tried out is decided and answered at the present revision, and commits nothing. A request
    /// that was made before (by its mark) is not made again, and answers what it answered.
    ///
    /// # Errors
    /// What the decision refused; that the mark was used for another request; what the store says.
    pub async fn write<F>(&self, caller: &Caller, decide: F) -> Result<Answer, ApiError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, Undecided>,
    {
        Ok(self.write_at(caller, decide).await?.0)
    }

    /// The same, with the revision of the commit.
    ///
    /// # Errors
    /// As [`Registry::write`].
    pub async fn write_at<F>(&self, caller: &Caller, decide: F) -> Result<(Answer, Revision), ApiError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, Undecided>,
    {
        let mut entries = BTreeSet::new();
        let until = Instant::now() + MOST_WAITING;
        for _ in 0..MOST_ATTEMPTS {
            // Only the waiting is given up: a commit that is under way is waited for.
            let Ok(_turn) = timeout_at(until, self.contended.turn(&entries)).await else { break };
            caller.who.check_still(&self.cache.model(), self.now())?;
            let unmade = match &caller.mark {
                None => None,
                Some(mark) => match self.earlier(&caller.who.name, mark).await? {
                    Earlier::Answered(answer, revision) => return Ok((answer, revision)),
                    Earlier::Unmade(precondition) => Some(precondition),
                },
            };
            match self.attempt(caller, unmade, &decide, &entries).await {
                Ok(made) => return Ok(made),
                Err(Failed::Refused(refusal)) => return Err(*refusal),
                Err(Failed::Contended(met, revision)) => {
                    entries.extend(met);
                    self.cache.reached(revision).await;
                }
            }
        }
        let message = "others write the same objects all the time; nothing was written, try again";
        Err(ApiError::new(ErrorType::ServerBusy, message))
    }

    async fn attempt<F>(
        &self,
        caller: &Caller,
        unmade: Option<Precondition>,
        decide: &F,
        queued: &BTreeSet<Bytes>,
    ) -> Result<(Answer, Revision), Failed>
    where
        F: Fn(&Context<'_>) -> Result<Decision, Undecided>,
    {
        let Decided { decision, revision, now, still } = self.decide(caller, decide).await?;
        if caller.dry_run || (decision.draft.is_empty() && unmade.is_none()) {
            return Ok((decision.answer.at(revision.get()), revision));
        }
        let transaction = with_record(caller, unmade, now, &decision);
        let transaction = still.into_iter().fold(transaction, Transaction::require);
        // Others wait to write these entries. A commit now would make them lose again.
        let met = self.contended.met(&transaction);
        if !met.is_subset(queued) {
            return Err(Failed::Contended(met, revision));
        }
        match self.store.commit(transaction).await {
            Ok(revision) => {
                self.cache.reached(revision).await;
                Ok((decision.answer.at(revision.get()), revision))
            }
            Err(StoreError::PreconditionFailed(unmet)) => {
                Err(Failed::Contended(BTreeSet::from([unmet.precondition.key().clone()]), unmet.at))
            }
            Err(error) => Err(store_error(&error).into()),
        }
    }

    /// Decides a write on the fleet as it is now.
    async fn decide<F>(&self, caller: &Caller, decide: &F) -> Result<Decided, Failed>
    where
        F: Fn(&Context<'_>) -> Result<Decision, Undecided>,
    {
        let (whole, now) = (self.cache.model(), self.now());
        caller.who.check_still(&whole, now)?;
        let model = whole.seen_within(caller.who.rights.within);
        let mut reads = Reads::default();
        let mut decision = loop {
            match decide(&Context { model: &model, whole: &whole, caller, now, reads: &reads }) {
                Ok(decision) => break decision,
                Err(Undecided::Refused(refusal)) => return Err(Failed::Refused(refusal)),
                Err(Undecided::Unread(wanted)) => reads.read(self.store.as_ref(), wanted).await?,
            }
        };
        decision.answer.unchanged = decision.draft.is_empty();
        Ok(Decided { decision, revision: whole.revision, now, still: caller.who.unchanged(&whole) })
    }

    /// What became of a request before.
    async fn earlier(&self, principal: &str, mark: &Mark) -> Result<Earlier, ApiError> {
        let at = key::request(principal, mark.id);
        let Some((record, revision)) = self.request_entry(&at).await? else {
            return Ok(Earlier::Unmade(Precondition::absent(at)));
        };
        if !self.is_kept(&record) {
            return Ok(Earlier::Unmade(Precondition::unchanged(at, revision)));
        }
        if record.hash != mark.hash {
            let message =
                format!("the Idempotency-Key {} was used before for another request; nothing was written", mark.id);
            return Err(
                ApiError::new(ErrorType::RequestReused, message).detail("send each request under a key of its own")
            );
        }
        Ok(Earlier::Answered(record.answer.at(revision.get()), revision))
    }

    /// The record of a request and the revision of its commit, while it is kept.
    ///
    /// # Errors
    /// What the store says.
    pub async fn request(&self, principal: &str, id: Uuid) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        Ok(self.request_entry(&key::request(principal, id)).await?.filter(|(record, _)| self.is_kept(record)))
    }

    /// The record of a request as it stands, also when it is older than it is kept.
    async fn request_entry(&self, at: &str) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let snapshot = self.store.snapshot().await.map_err(|e| store_error(&e))?;
        let entry = snapshot.get(at.as_bytes()).await.map_err(|e| store_error(&e))?;
        let Some(entry) = entry else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged(&e))?, entry.mod_revision)))
    }

    fn is_kept(&self, record: &RequestRecord) -> bool {
        record.at.0.saturating_add(REQUEST_KEPT_MS) > self.now().0
    }

    /// Drops records of requests that are older than they are kept; writes nothing when there are none.
    ///
    /// # Errors
    /// What the store says.
    pub async fn forget_requests(&self) -> Result<usize, StoreError> {
        let is_old = |entry: &Entry| codec::decode(&entry.value).is_ok_and(|record| !self.is_kept(&record));
        sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_old(entry))).await
    }
}

/// The commit of a decision, with its audit event if it changes anything, and with the record of a marked request.
fn with_record(caller: &Caller, unmade: Option<Precondition>, now: Timestamp, decision: &Decision) -> Transaction {
    let draft = decision.draft.clone();
    let event = (!draft.is_empty()).then(|| caller.event(now, draft.touched().to_vec()));
    let mut transaction = draft.into_transaction();
    if let Some(event) = event {
        transaction = transaction.put_at_revision(key::AUDIT, codec::encode(&AuditRecord::Commit(event)));
    }
    if let (Some(mark), Some(unmade)) = (&caller.mark, unmade) {
        let at = key::request(&caller.who.name, mark.id);
        let record = RequestRecord { at: now, hash: mark.hash.clone(), answer: decision.answer.clone() };
        // If the same request was made meanwhile, this commit fails, and the next attempt finds that answer.
        transaction = transaction.put(at, codec::encode(&record)).require(unmade);
    }
    transaction
}

/// The refusal for what a store said. Retryable or not stands in its type.
pub fn store_error(error: &StoreError) -> ApiError {
    match error {
        StoreError::Refused(refusal) => {
            ApiError::new(ErrorType::StoreTooLarge, format!("{refusal}; nothing was written"))
        }
        StoreError::PreconditionFailed(_) => {
            ApiError::new(ErrorType::PreconditionFailed, "the object was changed meanwhile; nothing was written")
        }
        StoreError::OutcomeUnknown { .. } => ApiError::new(ErrorType::OutcomeUnknown, error.to_string()),
        StoreError::ReadOnly { .. } => ApiError::new(ErrorType::StoreReadOnly, error.to_string()),
        StoreError::Closed => {
            ApiError::new(ErrorType::ServerStopping, "the controller is stopping; nothing was written")
        }
        StoreError::Read { .. } | StoreError::Corrupt { .. } => {
            ApiError::new(ErrorType::ServerInternal, error.to_string())
        }
    }
}

pub(crate) fn damaged(error: &codec::BadRecord) -> ApiError {
    ApiError::new(ErrorType::ServerInternal, format!("a record in the store can't be read: {error}"))
}

#[cfg(test)]
mod tests;
