//! The registry: admits writes, and commits them to the store.
//!
//! A write is decided on a snapshot of the cache, by code that has no effects. Its commit requires that everything the
//! decision depends on is unchanged. If something changed, the write is decided again on the new state, after the
//! writes that lost over the same entry before (`contention`). An undisturbed write therefore takes no lock, any number
//! of writes share one durable commit of the store, and a decision is a function that a test can call. Handlers use the
//! registry and the cache, never the store.

pub mod admit;
pub mod audit;
pub(crate) mod budget;
mod caller;
mod contention;
mod context;
pub mod draft;
mod extensions;
pub mod intake;
pub mod maps;
pub mod names;
mod rate;
pub mod refusals;
mod requester;
pub mod retention;
pub mod work;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use stemma_core::extension::ExtensionQuestion;
use stemma_core::json::value_memory_bytes;
use stemma_core::object::{ClusterId, Timestamp};
use stemma_core::rollout::RecordQuota;
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType, quote};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use budget::SharedBudget;
pub use caller::{Caller, Canceled, IdempotencyKey};
use contention::ContentionQueues;
use context::ContextReads;
pub use context::{Context, MissingRead};
pub use draft::Draft;
use extensions::ExtensionAnswers;
pub use extensions::{ExtensionClient, NoExtensions};
pub(crate) use extensions::{failed, undeclared};
pub use rate::ByteRate;
use rate::ByteRateLimiter;
#[cfg(test)]
pub(crate) use requester::testing;
pub use requester::{Credential, Requester, certificate_holder, rights};
use work::DEFAULT_MAX_NODES;

use crate::cache::{Cache, Model, released};
use crate::clock::WatchedClock;
use crate::records::audit::{AuditEvent, AuditRecord};
use crate::records::request::{REQUEST_RETENTION_MS, RequestRecord, RequesterRecord, StoredAnswer};
use crate::records::{codec, key};
use crate::store::{Entry, Precondition, Revision, Store, StoreError, Transaction, sweep};

/// Maximum number of attempts at a write. An attempt fails if another write commits first.
const MAX_ATTEMPTS: usize = 16;
/// Maximum number of times that a write questions extensions. It questions them again if the nodes that a question is
/// about changed in the meantime.
const MAX_EXTENSION_ROUNDS: usize = 4;
/// Maximum duration of a write. It is less than a client waits for a response.
const MAX_WRITE_TIME: Duration = Duration::from_secs(20);

/// Maximum number of writes that are decided at the same time. Each holds all values of the objects that it changes in
/// memory, before and after, and keeps a processor busy.
const MAX_CONCURRENT_DECISIONS: u64 = 4;
/// The number of concurrent decisions that are reserved for admins of the fleet.
const DECISIONS_FOR_ADMINS: u64 = 1;

/// Maximum memory of a light answer, in bytes as [`value_memory_bytes`] estimates it. A write with a light answer frees
/// its decision slot before it is stored.
const MAX_LIGHT_ANSWER_BYTES: usize = 64 * 1024;

/// An admin of the fleet may store this many times as much as another principal, at once and in each second.
const FLEET_ADMIN_FACTOR: u64 = 4;
/// All principals that are bound to one cluster may together store this many times as much as one principal.
const CLUSTER_FACTOR: u64 = 4;

/// The result of a decision: the commit, and the answer to send when the commit is durable.
#[derive(Debug)]
pub struct Decision {
    /// The commit. If it is empty, only the record of a request with an idempotency key is written. Without a key
    /// nothing is written, and the answer has the revision that the decision read.
    pub draft: Draft,
    /// The answer. Its revision is added after the decision.
    pub answer: StoredAnswer,
}

/// The reason why there is no decision.
#[derive(Debug)]
pub enum DecisionError {
    /// The write is refused.
    Refused(Box<ApiError>),
    /// The decision needs an entry that was not read yet. It is repeated with that entry.
    NeedsRead(MissingRead),
    /// The decision needs answers of extensions. It is repeated with these answers, on the state at that time.
    NeedsAnswers(Vec<ExtensionQuestion>),
}

/// The reason why an attempt at a write failed.
enum AttemptError {
    /// The write is refused.
    Refused(Box<ApiError>),
    /// Other writes changed one of these entries, or wait to do so. The write waits for its turn and is decided again
    /// at this revision or later.
    Contended(BTreeSet<Bytes>, Revision),
    /// The write needs answers of extensions. Other writes do not wait for them.
    NeedsAnswers(Vec<ExtensionQuestion>),
}

impl From<ApiError> for AttemptError {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<ApiError> for DecisionError {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// A decision, and the state that it was made on.
struct DecidedWrite {
    decision: Decision,
    revision: Revision,
    now: Timestamp,
    /// Requires that the requester's principal is unchanged at the commit.
    requester_precondition: Option<Precondition>,
    requester: RequesterRecord,
}

/// The result of an earlier request with the same idempotency key.
enum PriorRequest {
    /// The request was made, with this answer at this revision.
    Answered(StoredAnswer, Revision),
    /// There was no such request, or it is so old that its key is free again. The precondition must hold when the
    /// request is made now.
    NotFound(Precondition),
}

/// Admits writes and commits them.
pub struct Registry {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    clock: Arc<WatchedClock>,
    contention: ContentionQueues,
    extensions: Arc<dyn ExtensionClient>,
    /// Limits how much each principal stores, by name.
    principal_limiter: ByteRateLimiter<String>,
    /// Limits how much all principals that are bound to one cluster store together. Without it, the cluster's admins
    /// could create more principals to store more.
    cluster_limiter: ByteRateLimiter<ClusterId>,
    /// The slots for decisions, shared between principals.
    decision_budget: SharedBudget,
    /// Maximum number of nodes in the fleet.
    max_nodes: usize,
    /// The bytes of the stored records of released task sets, by node and cluster.
    record_quota: Mutex<RecordQuota>,
}

/// Counts the stored records of released task sets.
fn load_record_quota(model: &Model) -> RecordQuota {
    let mut quota = RecordQuota::default();
    let stored: Vec<_> = model.nodes.iter().map(|node| released::record_size(model, node.meta.uuid)).collect();
    quota.admit(&stored, &[], |cluster| model.count_nodes_in(cluster));
    quota
}

impl Registry {
    /// Creates a registry over a store and the cache that follows it.
    pub fn new(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<dyn Clock>) -> Self {
        Self::with_clock(store, cache, Arc::new(WatchedClock::new(clock)))
    }

    /// Creates a registry with a clock that is already watched.
    pub fn with_clock(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<WatchedClock>) -> Self {
        let (principal_limiter, cluster_limiter) =
            (ByteRateLimiter::new(ByteRate::WRITES), ByteRateLimiter::new(ByteRate::WRITES));
        let decision_budget = SharedBudget::with_permits(MAX_CONCURRENT_DECISIONS, DECISIONS_FOR_ADMINS);
        let (contention, extensions) = (ContentionQueues::default(), Arc::new(NoExtensions));
        let record_quota = Mutex::new(load_record_quota(&cache.model()));
        Self {
            store,
            cache,
            clock,
            contention,
            extensions,
            principal_limiter,
            cluster_limiter,
            decision_budget,
            max_nodes: 0,
            record_quota,
        }
        .with_max_nodes(DEFAULT_MAX_NODES)
    }

    /// Sets the rate at which each principal may store.
    #[must_use]
    pub fn with_byte_rate(self, rate: ByteRate) -> Self {
        Self { principal_limiter: ByteRateLimiter::new(rate), cluster_limiter: ByteRateLimiter::new(rate), ..self }
    }

    /// Sets the maximum number of nodes.
    #[must_use]
    pub fn with_max_nodes(self, max_nodes: u64) -> Self {
        Self { max_nodes: usize::try_from(max_nodes).unwrap_or(usize::MAX), ..self }
    }

    /// Sets the client for the extensions that decide tags.
    #[must_use]
    pub fn with_extensions(self, extensions: Arc<dyn ExtensionClient>) -> Self {
        Self { extensions, ..self }
    }

    /// Returns the cache that writes are decided on.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Returns the store, for entries that are not objects: certificates, tokens, results.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the time for a write that is made now.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Locks the byte counts of the stored records of released task sets.
    pub(crate) fn record_quota(&self) -> MutexGuard<'_, RecordQuota> {
        self.record_quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clock, which also tells whether its time is trusted enough to drop expired entries.
    pub fn clock(&self) -> &Arc<WatchedClock> {
        &self.clock
    }

    /// Decides a write, commits it with its audit event and request record, and returns the answer when reads can see
    /// the write. A dry run is decided and answered at the current revision, and commits nothing. A request that was
    /// already made, by its idempotency key, is not made again and returns its first answer.
    ///
    /// # Errors
    /// Fails if the decision refuses the write, the idempotency key was used for another request, the caller stored too
    /// much in a short time, or the store fails.
    pub async fn write<F>(&self, caller: &Caller, decide: F) -> Result<StoredAnswer, ApiError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, DecisionError>,
    {
        Ok(self.write_at(caller, decide).await?.0)
    }

    /// Makes a write as [`Registry::write`] does, and also returns the revision of the commit.
    ///
    /// # Errors
    /// As [`Registry::write`].
    pub async fn write_at<F>(&self, caller: &Caller, decide: F) -> Result<(StoredAnswer, Revision), ApiError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, DecisionError>,
    {
        let (mut entries, mut answers, mut rounds) = (BTreeSet::new(), ExtensionAnswers::default(), 0);
        let mut message = "other requests kept changing the same objects; nothing was written, try again";
        let deadline = Instant::now() + MAX_WRITE_TIME;
        if !caller.dry_run {
            self.clock.record_jump(self.store.as_ref()).await.map_err(|e| store_error(&e))?;
        }
        for _ in 0..MAX_ATTEMPTS {
            // Only the waiting for the turn times out. A commit that has begun is always awaited.
            let Ok(turn) = timeout_at(deadline, self.contention.wait_turn(&entries)).await else { break };
            caller.requester.recheck(&self.cache.model(), self.now())?;
            let precondition = match &caller.idempotency_key {
                None => None,
                Some(mark) => match self.prior_request(&caller.requester, mark).await? {
                    PriorRequest::Answered(answer, revision) => return Ok((answer, revision)),
                    PriorRequest::NotFound(precondition) => Some(precondition),
                },
            };
            if !caller.dry_run {
                self.check_rate(&caller.requester)?;
            }
            match self.attempt(caller, precondition, &decide, (&entries, &answers, deadline)).await {
                Ok(written) => return Ok(written),
                Err(AttemptError::Refused(refusal)) => return Err(*refusal),
                Err(AttemptError::Contended(contended, revision)) => {
                    entries.extend(contended);
                    self.cache.wait_for(revision).await;
                }
                Err(AttemptError::NeedsAnswers(_)) if rounds == MAX_EXTENSION_ROUNDS => {
                    message = "the nodes whose tags extensions decide kept changing; nothing was written, try again";
                    break;
                }
                Err(AttemptError::NeedsAnswers(questions)) => {
                    // Other writes to the same entries continue in the meantime.
                    drop(turn);
                    rounds += 1;
                    answers = ExtensionAnswers::ask_all(&*self.extensions, &questions, deadline).await?;
                }
            }
        }
        Err(ApiError::new(ErrorType::ServerBusy, message))
    }

    /// Makes one attempt at a write: decides and commits it. `queued` are the entries in whose queues it is the write's
    /// turn. If other writes wait for further entries of the transaction, or one of them commits first, the attempt
    /// fails as [`AttemptError::Contended`].
    async fn attempt<F>(
        &self,
        caller: &Caller,
        precondition: Option<Precondition>,
        decide: &F,
        (queued, answers, deadline): (&BTreeSet<Bytes>, &ExtensionAnswers, Instant),
    ) -> Result<(StoredAnswer, Revision), AttemptError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, DecisionError>,
    {
        let slot = self.decision_budget.take(&caller.requester, 1, deadline.saturating_duration_since(Instant::now())).await;
        let slot = slot.ok_or_else(|| {
            ApiError::new(ErrorType::ServerBusy, "too many writes are in progress; nothing was written, try again")
        })?;
        let decided = self.decide(caller, decide, answers).await?;
        // A write with a large answer keeps its decision slot until it is stored.
        let _slot = (value_memory_bytes(&decided.decision.answer.body) > MAX_LIGHT_ANSWER_BYTES).then_some(slot);
        let revision = decided.revision;
        if caller.dry_run || (decided.decision.draft.is_empty() && precondition.is_none()) {
            return Ok((decided.decision.answer.with_revision(revision.get()), revision));
        }
        let transaction = transaction_with_record(caller, precondition, &decided);
        // Other writes wait for these entries. A commit now would make them lose again.
        let contended = self.contention.contended_entries(&transaction);
        if !contended.is_subset(queued) {
            return Err(AttemptError::Contended(contended, revision));
        }
        let bytes = transaction.size_bytes() as u64;
        match self.store.commit(transaction).await {
            Ok(revision) => {
                self.record_stored(&caller.requester, bytes);
                self.cache.wait_for(revision).await;
                Ok((decided.decision.answer.with_revision(revision.get()), revision))
            }
            Err(StoreError::PreconditionFailed(unmet)) => {
                Err(AttemptError::Contended(BTreeSet::from([unmet.precondition.key().clone()]), unmet.at))
            }
            Err(error) => Err(store_error(&error).into()),
        }
    }

    /// Fails if the principal, or all principals of its cluster together, stored too much in a short time. Callers on
    /// the socket of root and the controller itself have no limit.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`], with the time after which to try again.
    pub(crate) fn check_rate(&self, who: &Requester) -> Result<(), ApiError> {
        if who.credential == Credential::Listener {
            return Ok(());
        }
        let now = Instant::now();
        let by_principal = self.principal_limiter.wait_time(&who.name, now).map(|wait| (wait, "than one principal may"));
        let by_cluster = || {
            let wait = self.cluster_limiter.wait_time(&who.rights.cluster?, now)?;
            Some((wait, "together with the other principals of its cluster than these may"))
        };
        let Some((wait, than)) = by_principal.or_else(by_cluster) else { return Ok(()) };
        let seconds = u32::try_from(wait.as_secs().saturating_add(1)).unwrap_or(u32::MAX);
        let message =
            format!("{} stored more in a short time {than}; nothing was changed, try again in {seconds} s", quote(&who.name));
        Err(ApiError::new(ErrorType::ServerBusy, message).retry_after(seconds))
    }

    /// Counts bytes that a principal's write stored, in the store or outside of it.
    pub(crate) fn record_stored(&self, who: &Requester, bytes: u64) {
        if who.credential == Credential::Listener {
            return;
        }
        let (times, now) = (if who.is_fleet_admin() { FLEET_ADMIN_FACTOR } else { 1 }, Instant::now());
        self.principal_limiter.spend(who.name.clone(), bytes / times, now);
        if let Some(cluster) = who.rights.cluster {
            self.cluster_limiter.spend(cluster, bytes / CLUSTER_FACTOR, now);
        }
    }

    /// Counts bytes that were stored for releases to nodes of a cluster. A change of a value that many nodes share
    /// causes them, so all principals that are bound to the cluster are charged together.
    pub(crate) fn record_released(&self, cluster: ClusterId, bytes: u64) {
        self.cluster_limiter.spend(cluster, bytes / CLUSTER_FACTOR, Instant::now());
    }

    /// Decides a write on the current fleet. Reads each entry of the store that the decision needs, and repeats the
    /// decision with it.
    async fn decide<F>(&self, caller: &Caller, decide: &F, answers: &ExtensionAnswers) -> Result<DecidedWrite, AttemptError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, DecisionError>,
    {
        let (full_model, now, trusted_now) = (self.cache.model(), self.now(), self.clock.trusted_now());
        caller.requester.recheck(&full_model, now)?;
        let model = full_model.visible_in(caller.requester.rights.cluster);
        let mut reads = ContextReads::default();
        let mut decision = loop {
            let (extensions, max_nodes) = (&*self.extensions, self.max_nodes);
            let context = Context {
                model: &model,
                full_model: &full_model,
                caller,
                now,
                trusted_now,
                max_nodes,
                record_quota: &self.record_quota,
                reads: &reads,
                extension_answers: answers,
                extensions,
            };
            match decide(&context) {
                Ok(decision) => break decision,
                Err(DecisionError::Refused(refusal)) => return Err(AttemptError::Refused(refusal)),
                Err(DecisionError::NeedsAnswers(questions)) => return Err(AttemptError::NeedsAnswers(questions)),
                Err(DecisionError::NeedsRead(wanted)) => reads.read(self.store.as_ref(), wanted).await?,
            }
        };
        decision.answer.unchanged = decision.draft.is_empty();
        let (requester_precondition, requester) =
            (caller.requester.precondition(&full_model), caller.requester.to_record(&full_model));
        Ok(DecidedWrite { decision, revision: full_model.revision, now, requester_precondition, requester })
    }

    /// Finds the result of an earlier request with this idempotency key.
    async fn prior_request(&self, who: &Requester, mark: &IdempotencyKey) -> Result<PriorRequest, ApiError> {
        let (at, entry) = self.find_request(who, mark.id).await?;
        let Some((record, revision)) = entry else {
            return Ok(PriorRequest::NotFound(Precondition::absent(at)));
        };
        if !self.is_retained(&record, revision) {
            return Ok(PriorRequest::NotFound(Precondition::unchanged(at, revision)));
        }
        if record.hash != mark.hash {
            let message = format!("the Idempotency-Key {} was used before for another request; nothing was written", mark.id);
            return Err(ApiError::new(ErrorType::RequestReused, message).detail("use a new Idempotency-Key for each request"));
        }
        self.check_answer_access(who, &record, mark.id)?;
        Ok(PriorRequest::Answered(record.answer.with_revision(revision.get()), revision))
    }

    /// Returns the record of a request and the revision of its commit, if it is still retained.
    ///
    /// # Errors
    /// Fails if the requester has fewer rights than when the request was answered, or if the store fails.
    pub async fn request(&self, who: &Requester, id: Uuid) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let (_, entry) = self.find_request(who, id).await?;
        let entry = entry.filter(|(record, revision)| self.is_retained(record, *revision));
        entry.as_ref().map_or(Ok(()), |(record, _)| self.check_answer_access(who, record, id))?;
        Ok(entry)
    }

    /// Fails if the requester had wider rights when the request was answered. The answer may show objects that the
    /// requester can no longer see.
    fn check_answer_access(&self, who: &Requester, record: &RequestRecord, id: Uuid) -> Result<(), ApiError> {
        if record.is_visible_to(&who.to_record(&self.cache.model())) {
            return Ok(());
        }
        let message = format!(
            "the write with the Idempotency-Key {id} was made; your rights have changed since, so its answer is not shown again, \
             and nothing was changed by this request"
        );
        let advice = "read the objects, and send the missing changes with a new Idempotency-Key";
        Err(ApiError::new(ErrorType::AuthForbidden, message).detail(advice))
    }

    /// Returns the key of a request's record, and the record, even if its retention has ended.
    async fn find_request(&self, who: &Requester, id: Uuid) -> Result<(String, Option<(RequestRecord, Revision)>), ApiError> {
        let model = self.cache.model();
        let name_key = key::request(&who.name, id);
        let Some(principal) = who.principal(&model) else {
            let record = self.read_request_record(&name_key).await?;
            return Ok((name_key, record));
        };
        let at = key::request(&principal.meta.uuid.to_string(), id);
        if let Some(record) = self.read_request_record(&at).await? {
            return Ok((at, Some(record)));
        }
        // The record has the requester's name in its key if an older version wrote it, or if it was written before the
        // principal's object.
        let is_own = |record: &RequestRecord| record.is_made_by(principal.meta.uuid, principal.meta.created_at);
        let is_kept = |(record, revision): &(RequestRecord, Revision)| self.is_retained(record, *revision) && is_own(record);
        let record = self.read_request_record(&name_key).await?.filter(is_kept);
        Ok((at, record))
    }

    async fn read_request_record(&self, at: &str) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let snapshot = self.store.snapshot().await.map_err(|e| store_error(&e))?;
        let entry = snapshot.get(at.as_bytes()).await.map_err(|e| store_error(&e))?;
        let Some(entry) = entry else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged_record(&e))?, entry.mod_revision)))
    }

    /// Returns whether a request record still counts. If the clock is suspect, every record does, since otherwise an
    /// earlier request would be made again.
    fn is_retained(&self, record: &RequestRecord, revision: Revision) -> bool {
        let at = self.clock.age_start(record.at, revision);
        self.clock.trusted_now().is_none_or(|now| at.0.saturating_add(REQUEST_RETENTION_MS) > now.0)
    }

    /// Drops records of requests whose retention has ended, and returns their number. Writes nothing if there are none
    /// or the clock is suspect.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn prune_requests(&self) -> Result<usize, StoreError> {
        let is_old =
            |entry: &Entry| codec::decode(&entry.value).is_ok_and(|record| !self.is_retained(&record, entry.mod_revision));
        sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_old(entry))).await
    }
}

/// Builds the commit of a decision: the changes, the audit event if there are any, the record of a request with an
/// idempotency key, and the precondition on the requester's principal.
fn transaction_with_record(caller: &Caller, precondition: Option<Precondition>, decided: &DecidedWrite) -> Transaction {
    let DecidedWrite { decision, now, requester_precondition, requester, .. } = decided;
    let draft = decision.draft.clone();
    let base_event = || caller.audit_event(*now, requester.principal, draft.audited().to_vec());
    let event = (!draft.is_empty()).then(|| AuditEvent { action: draft.action(), ..base_event() });
    let mut transaction = draft.into_transaction();
    if let Some(event) = event {
        transaction = transaction.put_at_revision(key::AUDIT, codec::encode(&AuditRecord::Commit(event)));
    }
    if let (Some(mark), Some(precondition)) = (&caller.idempotency_key, precondition) {
        let at = precondition.key().clone();
        let answer = decision.answer.clone();
        let record = RequestRecord { at: *now, hash: mark.hash.clone(), answer, asked_by: Some(*requester) };
        // If the same request is committed first, this commit fails, and the next attempt returns that answer.
        transaction = transaction.put(at, codec::encode(&record)).require(precondition);
    }
    requester_precondition.iter().cloned().fold(transaction, Transaction::require)
}

/// Returns the API error for a store error. The error type tells whether a retry can succeed.
pub fn store_error(error: &StoreError) -> ApiError {
    match error {
        StoreError::Refused(refusal) => ApiError::new(ErrorType::StoreTooLarge, format!("{refusal}; nothing was written")),
        StoreError::PreconditionFailed(_) => {
            ApiError::new(ErrorType::PreconditionFailed, "the object was changed by another request; nothing was written")
        }
        StoreError::OutcomeUnknown { .. } => ApiError::new(ErrorType::OutcomeUnknown, error.to_string()),
        StoreError::ReadOnly { .. } => ApiError::new(ErrorType::StoreReadOnly, error.to_string()),
        StoreError::Closed => ApiError::new(ErrorType::ServerStopping, "the controller is stopping; nothing was written"),
        StoreError::Read { .. } | StoreError::Newer { .. } | StoreError::Corrupt { .. } => {
            ApiError::new(ErrorType::ServerInternal, error.to_string())
        }
    }
}

pub(crate) fn damaged_record(error: &codec::BadRecord) -> ApiError {
    ApiError::new(ErrorType::ServerInternal, format!("a record in the store can't be read: {error}"))
}

#[cfg(test)]
mod tests;
