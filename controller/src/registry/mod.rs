//! The registry: admits writes, and commits them to the store.
//!
//! A write is decided on a snapshot of the cache, by code that has no effects. Its commit requires that everything the
//! decision depends on is unchanged. If something changed, the write is decided again on the new state. If several
//! writes failed over the same entry, they are decided again in order (`contention`). A write without a conflict
//! therefore takes no lock. Any number of writes share one durable commit of the store. A decision is a function that a
//! test can call. Handlers write only through the registry. They read the cache, and from the store only what the cache
//! does not have, such as the history.

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
pub(crate) use extensions::{extension_failure, undeclared_extension};
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

/// Maximum number of attempts at a write. [`AttemptError`] lists the reasons why an attempt fails.
const MAX_ATTEMPTS: usize = 16;
/// Maximum number of times that a write sends questions to extensions (programs that decide tags). It sends them again
/// if the nodes of a question changed after the question was sent.
const MAX_EXTENSION_ROUNDS: usize = 4;
/// Time after which a write no longer waits for its turn, for a permit or for answers of extensions. A commit that has
/// begun is awaited nevertheless. The time is shorter than the time that a client waits for a response.
const MAX_WRITE_TIME: Duration = Duration::from_secs(20);

/// Maximum number of writes that are decided at the same time. Each decision keeps a processor busy, and holds the old
/// and new values of all objects that it changes in memory.
const MAX_CONCURRENT_DECISIONS: u64 = 4;
/// Number of concurrent decisions that are reserved for admins of the fleet.
const DECISIONS_FOR_ADMINS: u64 = 1;

/// Maximum memory of an answer that is considered small, in bytes as [`value_memory_bytes`] estimates it. A write with
/// a small answer releases its permit for a decision before the commit.
const MAX_SMALL_ANSWER_BYTES: usize = 64 * 1024;

/// Factor by which an admin of the fleet may store more than another principal, at once and per second.
const FLEET_ADMIN_FACTOR: u64 = 4;
/// Factor by which all principals of one cluster together may store more than one principal.
const CLUSTER_FACTOR: u64 = 4;

/// The result of a decision: the draft of the commit, and the answer to send when the commit is durable.
#[derive(Debug)]
pub struct Decision {
    /// The draft of the commit. If it is empty and the request has an idempotency key, only the record of the request
    /// is written. If it is empty and the request has no key, nothing is written. The answer then has the revision that
    /// the decision read.
    pub draft: Draft,
    /// The answer to the client. Its revision is added after the decision.
    pub answer: StoredAnswer,
}

/// The reason why a decision has no result.
#[derive(Debug)]
pub enum DecisionError {
    /// The write is refused with this error.
    Refused(Box<ApiError>),
    /// The decision needs a part of the store that was not read yet. It is repeated when that part is read.
    NeedsRead(MissingRead),
    /// The decision needs answers of extensions (programs that decide tags). It is repeated with these answers, on the
    /// then current state.
    NeedsAnswers(Vec<ExtensionQuestion>),
}

/// The reason why an attempt at a write failed.
enum AttemptError {
    /// The write ends with this error, without a further attempt. It was refused, or the store failed.
    Refused(Box<ApiError>),
    /// Another write changed one of these entries, or other writes wait for them. This write waits for its turn in the
    /// queues of these entries. It is then decided again at this revision or later.
    Contended(BTreeSet<Bytes>, Revision),
    /// The write needs answers of extensions (programs that decide tags). Other writes to the same entries do not wait
    /// for these answers.
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

/// A decision, and the state that it is based on.
struct DecidedWrite {
    decision: Decision,
    revision: Revision,
    now: Timestamp,
    /// The precondition that the requester's principal is unchanged, or still does not exist, at the commit. `None` if
    /// the requester presented no credential of a principal, for example root on its socket.
    requester_precondition: Option<Precondition>,
    requester: RequesterRecord,
}

/// The result of a search for an earlier request with the same idempotency key.
enum PriorRequest {
    /// The request was answered before. The values are the answer and the revision of its commit.
    Answered(StoredAnswer, Revision),
    /// No such request was recorded, or its record is so old that the key may be used again. The commit of the new
    /// request must require this precondition.
    NotFound(Precondition),
}

/// Admits writes and commits them.
pub struct Registry {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
    clock: Arc<WatchedClock>,
    contention: ContentionQueues,
    extensions: Arc<dyn ExtensionClient>,
    /// Limits how much each principal stores, by the principal's name.
    principal_limiter: ByteRateLimiter<String>,
    /// Limits how much all principals of one cluster store together, with the task sets that are released to its nodes.
    /// Without this limit, an admin of the cluster could create more principals to store more.
    cluster_limiter: ByteRateLimiter<ClusterId>,
    /// The permits for concurrent decisions, shared between principals.
    decision_budget: SharedBudget,
    /// Maximum number of nodes in the fleet.
    max_nodes: usize,
    /// The byte counts of the stored records of released task sets, by node and cluster.
    record_quota: Mutex<RecordQuota>,
}

/// Returns the byte counts of the stored records of released task sets, from all nodes of the model.
fn load_record_quota(model: &Model) -> RecordQuota {
    let mut quota = RecordQuota::default();
    let record_sizes: Vec<_> = model.nodes.iter().map(|node| released::record_size(model, node.meta.uuid)).collect();
    // The decision is ignored: no record is new here, and no node was removed.
    quota.update_and_decide(&record_sizes, &[], |cluster| model.count_nodes_in(cluster));
    quota
}

impl Registry {
    /// Creates a registry over a store and a cache. The cache must follow the store.
    pub fn new(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<dyn Clock>) -> Self {
        Self::with_clock(store, cache, Arc::new(WatchedClock::new(clock)))
    }

    /// Creates a registry with a clock that already watches for jumps of the time.
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
            // The line below the literal sets the default.
            max_nodes: 0,
            record_quota,
        }
        .with_max_nodes(DEFAULT_MAX_NODES)
    }

    /// Sets the rate at which each principal may store. An admin of the fleet, and all principals of a cluster
    /// together, may store a fixed multiple of this rate. What they stored before no longer counts.
    #[must_use]
    pub fn with_byte_rate(self, rate: ByteRate) -> Self {
        Self { principal_limiter: ByteRateLimiter::new(rate), cluster_limiter: ByteRateLimiter::new(rate), ..self }
    }

    /// Sets the maximum number of nodes in the fleet.
    #[must_use]
    pub fn with_max_nodes(self, max_nodes: u64) -> Self {
        Self { max_nodes: usize::try_from(max_nodes).unwrap_or(usize::MAX), ..self }
    }

    /// Sets the client for the extensions that decide tags.
    #[must_use]
    pub fn with_extensions(self, extensions: Arc<dyn ExtensionClient>) -> Self {
        Self { extensions, ..self }
    }

    /// Returns the cache. Writes are decided on its model of the fleet.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Returns the store, for reads of what the cache lacks, and for writes of entries that are not objects.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the current time for a write, even if the clock is suspect.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Locks the byte counts of the stored records of released task sets.
    pub(crate) fn record_quota(&self) -> MutexGuard<'_, RecordQuota> {
        self.record_quota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clock. It also knows whether its time is trusted enough to drop expired entries.
    pub fn clock(&self) -> &Arc<WatchedClock> {
        &self.clock
    }

    /// Decides a write, commits it with its audit event and request record, and returns the answer when reads can see
    /// the write. A dry run is decided and answered at the current revision, and commits nothing. If a request with the
    /// same idempotency key was answered before, nothing is decided, and the earlier answer is returned.
    ///
    /// # Errors
    /// Fails if the decision refuses the write, the requester's credential or rights are no longer valid, the
    /// idempotency key was used for another request, the caller stored too much in a short time, too many writes are in
    /// progress, an extension gives no answer, other writes change the same objects repeatedly, or the store fails.
    pub async fn write<F>(&self, caller: &Caller, decide: F) -> Result<StoredAnswer, ApiError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, DecisionError>,
    {
        Ok(self.write_at(caller, decide).await?.0)
    }

    /// Makes a write as [`Registry::write`] does. Returns the answer and the revision of the commit (of the earlier
    /// commit for a repeated request). If nothing is committed, returns the revision that the decision read.
    ///
    /// # Errors
    /// In the same cases as [`Registry::write`].
    pub async fn write_at<F>(&self, caller: &Caller, decide: F) -> Result<(StoredAnswer, Revision), ApiError>
    where
        F: Fn(&Context<'_>) -> Result<Decision, DecisionError>,
    {
        let (mut entries, mut answers, mut extension_rounds) = (BTreeSet::new(), ExtensionAnswers::default(), 0);
        let mut message = "other requests kept changing the same objects; nothing was written, try again";
        let deadline = Instant::now() + MAX_WRITE_TIME;
        if !caller.dry_run {
            self.clock.record_jump(self.store.as_ref()).await.map_err(|e| store_error(&e))?;
        }
        for _ in 0..MAX_ATTEMPTS {
            // A commit that has begun is awaited even after the deadline.
            let Ok(turn) = timeout_at(deadline, self.contention.wait_turn(&entries)).await else { break };
            caller.requester.recheck(&self.cache.model(), self.now())?;
            let precondition = match &caller.idempotency_key {
                None => None,
                Some(key) => match self.prior_request(&caller.requester, key).await? {
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
                Err(AttemptError::NeedsAnswers(_)) if extension_rounds == MAX_EXTENSION_ROUNDS => {
                    message = "the nodes whose tags extensions decide kept changing; nothing was written, try again";
                    break;
                }
                Err(AttemptError::NeedsAnswers(questions)) => {
                    // Other writes to the same entries continue while the extensions answer.
                    drop(turn);
                    extension_rounds += 1;
                    answers = ExtensionAnswers::ask_all(&*self.extensions, &questions, deadline).await?;
                }
            }
        }
        Err(ApiError::new(ErrorType::ServerBusy, message))
    }

    /// Makes one attempt at a write: decides and commits it. `precondition` is for the record of a request that has an
    /// idempotency key. `queued` are the entries in whose queues the write is first. Fails with
    /// [`AttemptError::Contended`] if other writes wait for further entries of the transaction, or if another write
    /// commits first.
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
        let permit = self.decision_budget.take(&caller.requester, 1, deadline.saturating_duration_since(Instant::now())).await;
        let permit = permit.ok_or_else(|| {
            ApiError::new(ErrorType::ServerBusy, "too many writes are in progress; nothing was written, try again")
        })?;
        let decided = self.decide(caller, decide, answers).await?;
        // A write with a large answer holds its permit until the commit ends, because the answer needs much memory.
        let _permit = (value_memory_bytes(&decided.decision.answer.body) > MAX_SMALL_ANSWER_BYTES).then_some(permit);
        let revision = decided.revision;
        if caller.dry_run || (decided.decision.draft.is_empty() && precondition.is_none()) {
            return Ok((decided.decision.answer.with_revision(revision.get()), revision));
        }
        let transaction = transaction_with_record(caller, precondition, &decided);
        // Other writes wait for these entries. If this write were committed first, they would fail again.
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

    /// Fails if the principal, or all principals of its cluster together, stored too much in a short time. Requesters
    /// without a credential, such as the controller itself and root on its socket, have no limit.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`], with the time after which to try again.
    pub(crate) fn check_rate(&self, requester: &Requester) -> Result<(), ApiError> {
        if requester.credential == Credential::Listener {
            return Ok(());
        }
        let now = Instant::now();
        let by_principal = self.principal_limiter.wait_time(&requester.name, now).map(|wait| (wait, "than one principal may"));
        let by_cluster = || {
            let wait = self.cluster_limiter.wait_time(&requester.rights.cluster?, now)?;
            Some((wait, "together with the other principals of its cluster than these may"))
        };
        let Some((wait, limit_text)) = by_principal.or_else(by_cluster) else { return Ok(()) };
        let seconds = u32::try_from(wait.as_secs().saturating_add(1)).unwrap_or(u32::MAX);
        let name = quote(&requester.name);
        let message = format!("{name} stored more in a short time {limit_text}; nothing was changed, try again in {seconds} s");
        Err(ApiError::new(ErrorType::ServerBusy, message).retry_after(seconds))
    }

    /// Charges bytes that a principal's write stored to its rate and to the rate of its cluster. An admin of the fleet,
    /// and a cluster, may store several times as much, so only a part of the bytes is charged to them. The bytes may be
    /// in the store or outside of it, such as in a blob.
    pub(crate) fn record_stored(&self, requester: &Requester, bytes: u64) {
        if requester.credential == Credential::Listener {
            return;
        }
        let (factor, now) = (if requester.is_fleet_admin() { FLEET_ADMIN_FACTOR } else { 1 }, Instant::now());
        self.principal_limiter.spend(requester.name.clone(), bytes / factor, now);
        if let Some(cluster) = requester.rights.cluster {
            self.cluster_limiter.spend(cluster, bytes / CLUSTER_FACTOR, now);
        }
    }

    /// Charges the stored bytes of task sets that were released to nodes of a cluster to the rate of the cluster. A
    /// change of one value that many nodes share can cause many such bytes. All principals that are bound to the
    /// cluster are charged together, and no single principal is charged.
    pub(crate) fn record_released(&self, cluster: ClusterId, bytes: u64) {
        self.cluster_limiter.spend(cluster, bytes / CLUSTER_FACTOR, Instant::now());
    }

    /// Checks the requester's rights again, and decides a write on what the requester can see of the fleet. If the
    /// decision needs entries of the store that were not read yet, reads them and repeats the decision.
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
                Err(DecisionError::NeedsRead(missing_read)) => reads.read(self.store.as_ref(), missing_read).await?,
            }
        };
        decision.answer.unchanged = decision.draft.is_empty();
        let (requester_precondition, requester) =
            (caller.requester.precondition(&full_model), caller.requester.to_record(&full_model));
        Ok(DecidedWrite { decision, revision: full_model.revision, now, requester_precondition, requester })
    }

    /// Returns the answer to an earlier request with this idempotency key. If there is none, returns the precondition
    /// for the new request. Fails if the key was used for a different request, or if the requester had wider rights
    /// when the earlier request was answered.
    async fn prior_request(&self, requester: &Requester, key: &IdempotencyKey) -> Result<PriorRequest, ApiError> {
        let (record_key, entry) = self.find_request(requester, key.id).await?;
        let Some((record, revision)) = entry else {
            return Ok(PriorRequest::NotFound(Precondition::absent(record_key)));
        };
        if !self.is_retained(&record, revision) {
            return Ok(PriorRequest::NotFound(Precondition::unchanged(record_key, revision)));
        }
        if record.hash != key.hash {
            let message = format!("the Idempotency-Key {} was used before for another request; nothing was written", key.id);
            return Err(ApiError::new(ErrorType::RequestReused, message).detail("use a new Idempotency-Key for each request"));
        }
        self.check_answer_access(requester, &record, key.id)?;
        Ok(PriorRequest::Answered(record.answer.with_revision(revision.get()), revision))
    }

    /// Returns the record of the requester's request with the idempotency key `id`, and the revision of its commit.
    /// Returns `None` if there is no record or its retention time has ended.
    ///
    /// # Errors
    /// Fails if the requester had wider rights when the request was answered, or if the store fails.
    pub async fn request(&self, requester: &Requester, id: Uuid) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let (_, entry) = self.find_request(requester, id).await?;
        let entry = entry.filter(|(record, revision)| self.is_retained(record, *revision));
        entry.as_ref().map_or(Ok(()), |(record, _)| self.check_answer_access(requester, record, id))?;
        Ok(entry)
    }

    /// Fails unless this requester sent the recorded request and still has all rights that it had when the request was
    /// answered. The answer may show objects that the requester can no longer see. If the record has no requester, only
    /// a requester that is bound to a cluster is refused.
    fn check_answer_access(&self, requester: &Requester, record: &RequestRecord, id: Uuid) -> Result<(), ApiError> {
        if record.is_visible_to(&requester.to_record(&self.cache.model())) {
            return Ok(());
        }
        let message = format!(
            "the write with the Idempotency-Key {id} was made; your rights have changed since, so its answer is not shown again, \
             and nothing was changed by this request"
        );
        let advice = "read the objects, and send the missing changes with a new Idempotency-Key";
        Err(ApiError::new(ErrorType::AuthForbidden, message).detail(advice))
    }

    /// Returns the key for the record of a request, and the record if there is one, even if its retention time has
    /// ended. If there is none at this key, a record under the requester's name may be returned.
    async fn find_request(&self, sender: &Requester, id: Uuid) -> Result<(String, Option<(RequestRecord, Revision)>), ApiError> {
        let model = self.cache.model();
        let name_key = key::request(&sender.name, id);
        let Some(principal) = sender.principal(&model) else {
            let record = self.read_request_record(&name_key).await?;
            return Ok((name_key, record));
        };
        let record_key = key::request(&principal.meta.uuid.to_string(), id);
        if let Some(record) = self.read_request_record(&record_key).await? {
            return Ok((record_key, Some(record)));
        }
        // The key has the requester's name if an older version wrote the record, or if the principal's object did not
        // exist yet. Such a record is used only if this principal sent the request and the retention time has not
        // ended.
        let from_sender = |record: &RequestRecord| record.is_made_by(principal.meta.uuid, principal.meta.created_at);
        let usable = |(record, revision): &(RequestRecord, Revision)| self.is_retained(record, *revision) && from_sender(record);
        let record = self.read_request_record(&name_key).await?.filter(usable);
        Ok((record_key, record))
    }

    /// Reads the record of a request, with the revision of its commit.
    async fn read_request_record(&self, record_key: &str) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let snapshot = self.store.snapshot().await.map_err(|e| store_error(&e))?;
        let entry = snapshot.get(record_key.as_bytes()).await.map_err(|e| store_error(&e))?;
        let Some(entry) = entry else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged_record(&e))?, entry.mod_revision)))
    }

    /// Returns whether the retention time of a request record has not ended. Returns true for every record if the clock
    /// is suspect, because without its record an earlier request could be executed again.
    fn is_retained(&self, record: &RequestRecord, revision: Revision) -> bool {
        let start = self.clock.age_start(record.at, revision);
        self.clock.trusted_now().is_none_or(|now| start.0.saturating_add(REQUEST_RETENTION_MS) > now.0)
    }

    /// Drops records of requests whose retention time has ended, and returns their number. Drops nothing if the clock
    /// is suspect.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn prune_requests(&self) -> Result<usize, StoreError> {
        let is_old =
            |entry: &Entry| codec::decode(&entry.value).is_ok_and(|record| !self.is_retained(&record, entry.mod_revision));
        sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_old(entry))).await
    }
}

/// Builds the transaction of a decision. It contains the changes, the audit event if there are changes, and the
/// precondition on the requester's principal. For a request with an idempotency key, it also contains the record of the
/// request. `precondition` is the precondition on the key of that record.
fn transaction_with_record(caller: &Caller, precondition: Option<Precondition>, decided: &DecidedWrite) -> Transaction {
    let DecidedWrite { decision, now, requester_precondition, requester, .. } = decided;
    let draft = decision.draft.clone();
    let base_event = || caller.audit_event(*now, requester.principal, draft.audited().to_vec());
    let event = (!draft.is_empty()).then(|| AuditEvent { action: draft.action(), ..base_event() });
    let mut transaction = draft.into_transaction();
    if let Some(event) = event {
        transaction = transaction.put_at_revision(key::AUDIT, codec::encode(&AuditRecord::Commit(event)));
    }
    if let (Some(key), Some(precondition)) = (&caller.idempotency_key, precondition) {
        let record_key = precondition.key().clone();
        let answer = decision.answer.clone();
        let record = RequestRecord { at: *now, hash: key.hash.clone(), answer, asked_by: Some(*requester) };
        // If the same request is committed first, this commit fails. The next attempt then returns that earlier answer.
        transaction = transaction.put(record_key, codec::encode(&record)).require(precondition);
    }
    requester_precondition.iter().cloned().fold(transaction, Transaction::require)
}

/// Returns the API error for a store error. The error type shows the client whether a retry can succeed.
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

/// Returns the API error for a record that cannot be decoded.
pub(crate) fn damaged_record(error: &codec::BadRecord) -> ApiError {
    ApiError::new(ErrorType::ServerInternal, format!("a record in the store can't be read: {error}"))
}

#[cfg(test)]
mod tests;
