//! The registry: what may be stored, and how a commit is made of it.
//!
//! A write is decided on a snapshot of the cache by code that has no effects, and committed under the condition
//! that what it was decided on is still so; when it is not, it is decided again on what is there now. So there is
//! no lock around a write, any number of them share one durable commit of the store, and a decision is a function
//! that a test can call. Handlers talk to the registry and to the cache, never to the store.

pub mod admit;
pub mod audit;
pub mod codec;
pub mod draft;
pub mod intake;
pub mod key;
mod kinds;
pub mod maps;
pub mod names;
pub mod reported;
pub mod work;

use std::sync::Arc;

use stemma_core::object::{Kind, Timestamp};
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

pub use audit::{Answer, AuditEvent, Caller, Mark, RequestRecord};
pub use draft::{Action, Draft, Reference, Stored, Touched};

use crate::cache::{Cache, Model};
use crate::store::{Op, Precondition, Query, Revision, Store, StoreError, Transaction};

/// How often a write is decided again after others were faster, before it gives up.
const MOST_ATTEMPTS: usize = 16;

/// What a write decided: the commit, and what is answered when it is durable.
#[derive(Debug)]
pub struct Decision {
    /// The commit; one that is empty writes nothing, and answers at the revision that was looked at.
    pub draft: Draft,
    /// The answer, but for its revision.
    pub answer: Answer,
}

/// Why a decision was not made.
#[derive(Debug)]
pub enum Undecided {
    /// The write is refused.
    Refused(Box<ApiError>),
    /// The snapshot is older than something that the decision rests on; it is made again at this revision.
    Behind(Revision),
}

impl From<ApiError> for Undecided {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// What a decision looks at.
pub struct Sight<'a> {
    /// The fleet, as of one revision.
    pub model: &'a Model,
    /// When the write is made.
    pub now: Timestamp,
    store: &'a dyn Store,
}

/// Admits writes and commits them.
pub struct Registry {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
}

impl Sight<'_> {
    /// The mark of references to an object, as [`Draft::delete`] needs it, after which nobody in the model who
    /// refers to it can be missing.
    ///
    /// # Errors
    /// [`Undecided::Behind`] when somebody began to refer to it after the model's revision.
    pub fn referred(&self, kind: Kind, id: &str) -> Result<Option<Revision>, Undecided> {
        let snapshot = self.store.snapshot().map_err(|e| store_error(&e))?;
        let entry = snapshot.get(key::referred(kind, &id).as_bytes()).map_err(|e| store_error(&e))?;
        match entry.map(|entry| entry.mod_revision) {
            Some(marked) if marked > self.model.revision => Err(Undecided::Behind(marked)),
            marked => Ok(marked),
        }
    }
}

impl Registry {
    /// A registry over a store and the cache that follows it.
    pub fn new(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<dyn Clock>) -> Self {
        Self { store, cache, clock }
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
    /// it. A request that was made before (by its mark) is not made again, and answers what it answered.
    ///
    /// # Errors
    /// What the decision refused; that the mark was used for another request; what the store says.
    pub async fn write<F>(&self, caller: &Caller, decide: F) -> Result<Answer, ApiError>
    where
        F: Fn(&Sight<'_>) -> Result<Decision, Undecided>,
    {
        for _ in 0..MOST_ATTEMPTS {
            if let Some(mark) = &caller.mark
                && let Some(answer) = self.answered(&caller.principal, mark)?
            {
                return Ok(answer);
            }
            match self.attempt(caller, &decide).await {
                Ok(answer) => return Ok(answer),
                Err(Undecided::Refused(refusal)) => return Err(*refusal),
                Err(Undecided::Behind(revision)) => self.cache.reached(revision).await,
            }
        }
        let message =
            format!("others changed the same objects {MOST_ATTEMPTS} times meanwhile; nothing was written, try again");
        Err(ApiError::new(ErrorType::ServerBusy, message))
    }

    async fn attempt<F>(&self, caller: &Caller, decide: &F) -> Result<Answer, Undecided>
    where
        F: Fn(&Sight<'_>) -> Result<Decision, Undecided>,
    {
        let now = self.now();
        let model = self.cache.model();
        let decision = decide(&Sight { model: &model, now, store: self.store.as_ref() })?;
        let revision = model.revision;
        drop(model);
        if decision.draft.is_empty() {
            return Ok(decision.answer.at(revision.get()));
        }
        let transaction = with_record(caller, now, &decision);
        match self.store.commit(transaction).await {
            Ok(revision) => {
                self.cache.reached(revision).await;
                Ok(decision.answer.at(revision.get()))
            }
            Err(StoreError::PreconditionFailed(unmet)) => Err(Undecided::Behind(unmet.at)),
            Err(error) => Err(store_error(&error).into()),
        }
    }

    /// The answer to a request that was made before.
    fn answered(&self, principal: &str, mark: &Mark) -> Result<Option<Answer>, ApiError> {
        let Some((record, revision)) = self.request(principal, mark.id)? else { return Ok(None) };
        if record.hash != mark.hash {
            let message =
                format!("the Idempotency-Key {} was used before for another request; nothing was written", mark.id);
            return Err(
                ApiError::new(ErrorType::RequestReused, message).detail("send each request under a key of its own")
            );
        }
        Ok(Some(record.answer.at(revision.get())))
    }

    /// The record of a request and the revision of its commit, while it is kept.
    ///
    /// # Errors
    /// What the store says.
    pub fn request(&self, principal: &str, id: Uuid) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let snapshot = self.store.snapshot().map_err(|e| store_error(&e))?;
        let entry = snapshot.get(key::request(principal, id).as_bytes()).map_err(|e| store_error(&e))?;
        let Some(entry) = entry else { return Ok(None) };
        let record: RequestRecord = codec::decode(&entry.value).map_err(|e| damaged(&e))?;
        let kept = record.at.0.saturating_add(audit::REQUEST_KEPT_MS) > self.now().0;
        Ok(kept.then_some((record, entry.mod_revision)))
    }

    /// Drops records of requests that are older than they are kept; writes nothing when there are none.
    ///
    /// # Errors
    /// What the store says.
    pub async fn forget_requests(&self) -> Result<usize, StoreError> {
        let now = self.now().0;
        let list = self.store.snapshot()?.list(&Query::prefix(key::REQUESTS))?;
        let old = |value: &[u8]| {
            codec::decode::<RequestRecord>(value).is_ok_and(|r| r.at.0.saturating_add(audit::REQUEST_KEPT_MS) <= now)
        };
        let keys: Vec<_> = list.entries.into_iter().filter(|e| old(&e.value)).map(|e| e.key).collect();
        for some in keys.chunks(100) {
            let ops = some.iter().map(|key| Op::Delete { key: key.clone() }).collect();
            self.store.commit(Transaction { preconditions: Vec::new(), ops }).await?;
        }
        Ok(keys.len())
    }
}

/// Adds to a decision's commit what every commit holds: its audit event and, for a marked request, its record.
fn with_record(caller: &Caller, now: Timestamp, decision: &Decision) -> Transaction {
    let draft = decision.draft.clone();
    let event = AuditEvent::new(caller, now, draft.touched().to_vec());
    let mut transaction = draft.into_transaction().put_at_revision(key::AUDIT, codec::encode(&event));
    if let Some(mark) = &caller.mark {
        let at = key::request(&caller.principal, mark.id);
        let record = RequestRecord { at: now, hash: mark.hash.clone(), answer: decision.answer.clone() };
        // One that is there is either the same request, answered next time round, or older than it is kept.
        transaction = transaction.put(at.clone(), codec::encode(&record)).require(Precondition::absent(at));
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

fn damaged(error: &codec::BadRecord) -> ApiError {
    ApiError::new(ErrorType::ServerInternal, format!("a record in the store can't be read: {error}"))
}
