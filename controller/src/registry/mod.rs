//! The registry: what may be stored, and how a commit is made of it.
//!
//! A write is decided on a snapshot of the cache by code that has no effects, and committed under the condition that
//! what it was decided on is still so; when it is not, it is decided again on what is there now, in the turn of those
//! who lost over the same entry (`contended`). So there is no lock around a write that nobody disturbs, any number of
//! them share one durable commit of the store, and a decision is a function that a test can call. Handlers talk to
//! the registry and to the cache, never to the store.

pub mod admit;
pub mod audit;
pub(crate) mod budget;
mod caller;
mod contended;
mod context;
pub mod draft;
mod extensions;
pub mod intake;
pub mod maps;
pub mod names;
mod rate;
pub mod refusals;
pub mod retention;
mod who;
pub mod work;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use stemma_core::extension::Question;
use stemma_core::json::weight_of;
use stemma_core::object::{ClusterId, Timestamp};
use stemma_core::rollout::Room;
use stemma_wire::clock::Clock;
use stemma_wire::error::{ApiError, ErrorType, quote};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use budget::Budget;
pub use caller::{Abandoned, Caller, Mark};
use contended::Contended;
use context::Reads;
pub use context::{Context, Wanted};
pub use draft::Draft;
use extensions::Answered;
pub use extensions::{Ask, NoExtensions};
pub(crate) use extensions::{failed, undeclared};
use rate::BytePace;
pub use rate::ByteRate;
#[cfg(test)]
pub(crate) use who::testing;
pub use who::{Shown, Who, holder_of, rights};
use work::MOST_NODES;

use crate::cache::{Cache, Model, released};
use crate::clock::WatchedClock;
use crate::records::audit::{AuditEvent, AuditRecord};
use crate::records::request::{Answer, AskedBy, REQUEST_KEPT_MS, RequestRecord};
use crate::records::{codec, key};
use crate::store::{Entry, Precondition, Revision, Store, StoreError, Transaction, sweep};

/// How often a write is decided again after others were faster, before it gives up.
const MOST_ATTEMPTS: usize = 16;
/// How often extensions are asked again where others changed meanwhile what they were asked about.
const MOST_ASKED: usize = 4;
/// How long it may take before it gives up: less than a client waits for an answer.
const MOST_WAITING: Duration = Duration::from_secs(20);

/// How many writes are decided at the same time. Each has all values of the objects that it changes in memory, before and after, and keeps a processor
/// busy.
const MOST_DECIDING: u64 = 4;
/// How many of them are kept for admins of the fleet.
const DECIDING_FOR_ADMINS: u64 = 1;

/// Up to so much memory the answer of a write that is being stored takes, as [`weight_of`] estimates it, before the write counts as one that is decided.
const LIGHT_ANSWER: usize = 64 * 1024;

/// Admins of the fleet store so many times as much as others at once and in each second.
const TIMES_FOR_FLEET_ADMINS: u64 = 4;
/// And so do all together who are bound to one cluster.
const TIMES_WITHIN_CLUSTER: u64 = 4;

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
    /// It rests on what extensions decide; it is made again with their answers, on what is there then.
    Ask(Vec<Question>),
}

/// Why an attempt at a write did not succeed.
enum Failed {
    /// The write is refused.
    Refused(Box<ApiError>),
    /// Others write, or wait to write, one of these entries: it is decided again at this revision, in its turn.
    Contended(BTreeSet<Bytes>, Revision),
    /// Extensions are to be asked, which nobody else waits for.
    Asking(Vec<Question>),
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
    asked_by: AskedBy,
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
    clock: Arc<WatchedClock>,
    contended: Contended,
    extensions: Arc<dyn Ask>,
    /// What principals have stored lately, by their names.
    pace: BytePace<String>,
    /// What those have stored lately who are bound to a cluster, all together: its admins make as many principals as they like.
    pace_within: BytePace<ClusterId>,
    /// The decisions that are made. Those who ask have shares of them.
    deciding: Budget,
    /// How many nodes there may be.
    most_nodes: usize,
    /// What is stored of what is released to nodes.
    room: Mutex<Room>,
}

/// What is stored of what is released to nodes.
fn room_of(model: &Model) -> Room {
    let mut room = Room::default();
    let stored: Vec<_> = model.nodes.iter().map(|node| released::record_size(model, node.meta.uuid)).collect();
    room.admit(&stored, &[], |cluster| model.count_in(cluster));
    room
}

impl Registry {
    /// A registry over a store and the cache that follows it.
    pub fn new(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<dyn Clock>) -> Self {
        Self::by(store, cache, Arc::new(WatchedClock::new(clock)))
    }

    /// The same by a clock that is watched already.
    pub fn by(store: Arc<dyn Store>, cache: Arc<Cache>, clock: Arc<WatchedClock>) -> Self {
        let (pace, pace_within) = (BytePace::new(ByteRate::OF_WRITES), BytePace::new(ByteRate::OF_WRITES));
        let deciding = Budget::of_turns(MOST_DECIDING, DECIDING_FOR_ADMINS);
        let (contended, extensions) = (Contended::default(), Arc::new(NoExtensions));
        let room = Mutex::new(room_of(&cache.model()));
        Self { store, cache, clock, contended, extensions, pace, pace_within, deciding, most_nodes: 0, room }
            .holding(MOST_NODES)
    }

    /// The same where each principal stores at this rate.
    #[must_use]
    pub fn pacing(self, rate: ByteRate) -> Self {
        Self { pace: BytePace::new(rate), pace_within: BytePace::new(rate), ..self }
    }

    /// The same where there may be so many nodes.
    #[must_use]
    pub fn holding(self, most_nodes: u64) -> Self {
        Self { most_nodes: usize::try_from(most_nodes).unwrap_or(usize::MAX), ..self }
    }

    /// The same with extensions that decide tags.
    #[must_use]
    pub fn asking(self, extensions: Arc<dyn Ask>) -> Self {
        Self { extensions, ..self }
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
        self.clock.now()
    }

    /// What is stored of what is released to nodes, by cluster.
    pub(crate) fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its clock, which says whether anything may be dropped by it.
    pub fn clock(&self) -> &Arc<WatchedClock> {
        &self.clock
    }

    /// Makes a write: decides it, commits it with its audit event and request record, and answers when a read sees
    /// it. One that is only tried out is decided and answered at the present revision, and commits nothing. A request
    /// that was made before (by its mark) is not made again, and answers what it answered.
    ///
    /// # Errors
    /// What the decision refused; that the mark was used for another request; that who asks stored too much for now; what the store says.
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
        let (mut entries, mut answered, mut asked) = (BTreeSet::new(), Answered::default(), 0);
        let mut message = "others write the same objects all the time; nothing was written, try again";
        let until = Instant::now() + MOST_WAITING;
        if !caller.dry_run {
            self.clock.note_jump(self.store.as_ref()).await.map_err(|e| store_error(&e))?;
        }
        for _ in 0..MOST_ATTEMPTS {
            // Only the waiting is given up: a commit that is under way is waited for.
            let Ok(turn) = timeout_at(until, self.contended.turn(&entries)).await else { break };
            caller.who.check_still(&self.cache.model(), self.now())?;
            let unmade = match &caller.mark {
                None => None,
                Some(mark) => match self.earlier(&caller.who, mark).await? {
                    Earlier::Answered(answer, revision) => return Ok((answer, revision)),
                    Earlier::Unmade(precondition) => Some(precondition),
                },
            };
            if !caller.dry_run {
                self.check_pace(&caller.who)?;
            }
            match self.attempt(caller, unmade, &decide, (&entries, &answered, until)).await {
                Ok(made) => return Ok(made),
                Err(Failed::Refused(refusal)) => return Err(*refusal),
                Err(Failed::Contended(met, revision)) => {
                    entries.extend(met);
                    self.cache.reached(revision).await;
                }
                Err(Failed::Asking(_)) if asked == MOST_ASKED => {
                    message = "what extensions are asked about changes all the time; nothing was written, try again";
                    break;
                }
                Err(Failed::Asking(questions)) => {
                    // Whoever waits to write the same goes on meanwhile.
                    drop(turn);
                    asked += 1;
                    answered = Answered::asking(&*self.extensions, &questions, until).await?;
                }
            }
        }
        Err(ApiError::new(ErrorType::ServerBusy, message))
    }

    async fn attempt<F>(
        &self,
        caller: &Caller,
        unmade: Option<Precondition>,
        decide: &F,
        (queued, answered, until): (&BTreeSet<Bytes>, &Answered, Instant),
    ) -> Result<(Answer, Revision), Failed>
    where
        F: Fn(&Context<'_>) -> Result<Decision, Undecided>,
    {
        let turn = self.deciding.take(&caller.who, 1, until.saturating_duration_since(Instant::now())).await;
        let turn = turn.ok_or_else(|| {
            ApiError::new(ErrorType::ServerBusy, "too many writes are decided; nothing was written, try again")
        })?;
        let decided = self.decide(caller, decide, answered).await?;
        // What takes much memory until it is stored keeps its turn.
        let _turn = (weight_of(&decided.decision.answer.body) > LIGHT_ANSWER).then_some(turn);
        let revision = decided.revision;
        if caller.dry_run || (decided.decision.draft.is_empty() && unmade.is_none()) {
            return Ok((decided.decision.answer.at(revision.get()), revision));
        }
        let transaction = with_record(caller, unmade, &decided);
        // Others wait to write these entries. A commit now would make them lose again.
        let met = self.contended.met(&transaction);
        if !met.is_subset(queued) {
            return Err(Failed::Contended(met, revision));
        }
        let bytes = transaction.size_bytes() as u64;
        match self.store.commit(transaction).await {
            Ok(revision) => {
                self.note_stored(&caller.who, bytes);
                self.cache.reached(revision).await;
                Ok((decided.decision.answer.at(revision.get()), revision))
            }
            Err(StoreError::PreconditionFailed(unmet)) => {
                Err(Failed::Contended(BTreeSet::from([unmet.precondition.key().clone()]), unmet.at))
            }
            Err(error) => Err(store_error(&error).into()),
        }
    }

    /// Refuses a write of who has stored as much as they may for now. Whoever comes in by the socket of root, and the controller itself,
    /// stores what there is.
    ///
    /// # Errors
    /// [`ErrorType::ServerBusy`], with when to try again.
    pub(crate) fn check_pace(&self, who: &Who) -> Result<(), ApiError> {
        if who.shown == Shown::Way {
            return Ok(());
        }
        let now = Instant::now();
        let own = self.pace.wait(&who.name, now).map(|wait| (wait, "than one principal may"));
        let together = || {
            let wait = self.pace_within.wait(&who.rights.within?, now)?;
            Some((wait, "together with all who are bound to the same cluster than these may"))
        };
        let Some((wait, than)) = own.or_else(together) else { return Ok(()) };
        let seconds = u32::try_from(wait.as_secs().saturating_add(1)).unwrap_or(u32::MAX);
        let message = format!(
            "{} stored more in a short time {than}; nothing was changed, try again in {seconds} s",
            quote(&who.name)
        );
        Err(ApiError::new(ErrorType::ServerBusy, message).retry_after(seconds))
    }

    /// Notes what a write of somebody took in the store, or beside it.
    pub(crate) fn note_stored(&self, who: &Who, bytes: u64) {
        if who.shown == Shown::Way {
            return;
        }
        let (times, now) = (if who.is_fleet_admin() { TIMES_FOR_FLEET_ADMINS } else { 1 }, Instant::now());
        self.pace.spend(who.name.clone(), bytes / times, now);
        if let Some(cluster) = who.rights.within {
            self.pace_within.spend(cluster, bytes / TIMES_WITHIN_CLUSTER, now);
        }
    }

    /// Notes what is stored of what is released to nodes of a cluster. Who changes what many nodes have makes it, so those who are bound to the
    /// cluster pay for it together.
    pub(crate) fn note_released(&self, cluster: ClusterId, bytes: u64) {
        self.pace_within.spend(cluster, bytes / TIMES_WITHIN_CLUSTER, Instant::now());
    }

    /// Decides a write on the fleet as it is now.
    async fn decide<F>(&self, caller: &Caller, decide: &F, answered: &Answered) -> Result<Decided, Failed>
    where
        F: Fn(&Context<'_>) -> Result<Decision, Undecided>,
    {
        let (whole, now, trusted_now) = (self.cache.model(), self.now(), self.clock.trusted_now());
        caller.who.check_still(&whole, now)?;
        let model = whole.seen_within(caller.who.rights.within);
        let mut reads = Reads::default();
        let mut decision = loop {
            let (extensions, most_nodes) = (&*self.extensions, self.most_nodes);
            let context = Context {
                model: &model,
                whole: &whole,
                caller,
                now,
                trusted_now,
                most_nodes,
                room: &self.room,
                reads: &reads,
                answered,
                extensions,
            };
            match decide(&context) {
                Ok(decision) => break decision,
                Err(Undecided::Refused(refusal)) => return Err(Failed::Refused(refusal)),
                Err(Undecided::Ask(questions)) => return Err(Failed::Asking(questions)),
                Err(Undecided::Unread(wanted)) => reads.read(self.store.as_ref(), wanted).await?,
            }
        };
        decision.answer.unchanged = decision.draft.is_empty();
        let (still, asked_by) = (caller.who.unchanged(&whole), caller.who.asked_by(&whole));
        Ok(Decided { decision, revision: whole.revision, now, still, asked_by })
    }

    /// What became of a request before.
    async fn earlier(&self, who: &Who, mark: &Mark) -> Result<Earlier, ApiError> {
        let (at, found) = self.request_entry(who, mark.id).await?;
        let Some((record, revision)) = found else {
            return Ok(Earlier::Unmade(Precondition::absent(at)));
        };
        if !self.is_kept(&record, revision) {
            return Ok(Earlier::Unmade(Precondition::unchanged(at, revision)));
        }
        if record.hash != mark.hash {
            let message =
                format!("the Idempotency-Key {} was used before for another request; nothing was written", mark.id);
            return Err(
                ApiError::new(ErrorType::RequestReused, message).detail("send each request under a key of its own")
            );
        }
        self.check_asked(who, &record, mark.id)?;
        Ok(Earlier::Answered(record.answer.at(revision.get()), revision))
    }

    /// The record of a request and the revision of its commit, while it is kept.
    ///
    /// # Errors
    /// That who asks may now do something else than when it was answered; what the store says.
    pub async fn request(&self, who: &Who, id: Uuid) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let (_, found) = self.request_entry(who, id).await?;
        let found = found.filter(|(record, revision)| self.is_kept(record, *revision));
        found.as_ref().map_or(Ok(()), |(record, _)| self.check_asked(who, record, id))?;
        Ok(found)
    }

    /// Refuses an answer that was given while they might do more: it may show what they do not see.
    fn check_asked(&self, who: &Who, record: &RequestRecord, id: Uuid) -> Result<(), ApiError> {
        if record.is_for(&who.asked_by(&self.cache.model())) {
            return Ok(());
        }
        let message = format!(
            "the write under the Idempotency-Key {id} was made; what you may do has changed since, so its answer is not shown again, \
             and nothing was changed by this request"
        );
        let advice = "read what it was to change, and send what is still to be done under a key of its own";
        Err(ApiError::new(ErrorType::AuthForbidden, message).detail(advice))
    }

    /// Where the record of a request of who asks stands, and the record, also when it is older than it is kept.
    async fn request_entry(
        &self,
        who: &Who,
        id: Uuid,
    ) -> Result<(String, Option<(RequestRecord, Revision)>), ApiError> {
        let model = self.cache.model();
        let named = key::request(&who.name, id);
        let Some(principal) = who.principal(&model) else {
            let found = self.record_at(&named).await?;
            return Ok((named, found));
        };
        let at = key::request(&principal.meta.uuid.to_string(), id);
        if let Some(found) = self.record_at(&at).await? {
            return Ok((at, Some(found)));
        }
        // Of before they stood by uuid, or before the principal was stored.
        let is_its = |record: &RequestRecord| record.is_of(principal.meta.uuid, principal.meta.created_at);
        let is_kept =
            |(record, revision): &(RequestRecord, Revision)| self.is_kept(record, *revision) && is_its(record);
        let found = self.record_at(&named).await?.filter(is_kept);
        Ok((at, found))
    }

    async fn record_at(&self, at: &str) -> Result<Option<(RequestRecord, Revision)>, ApiError> {
        let snapshot = self.store.snapshot().await.map_err(|e| store_error(&e))?;
        let entry = snapshot.get(at.as_bytes()).await.map_err(|e| store_error(&e))?;
        let Some(entry) = entry else { return Ok(None) };
        Ok(Some((codec::decode(&entry.value).map_err(|e| damaged(&e))?, entry.mod_revision)))
    }

    /// By a suspect clock all are: what was asked before would be made once more.
    fn is_kept(&self, record: &RequestRecord, revision: Revision) -> bool {
        let at = self.clock.counts_from(record.at, revision);
        self.clock.trusted_now().is_none_or(|now| at.0.saturating_add(REQUEST_KEPT_MS) > now.0)
    }

    /// Drops records of requests that are older than they are kept; writes nothing when there are none, or the clock is suspect.
    ///
    /// # Errors
    /// What the store says.
    pub async fn forget_requests(&self) -> Result<usize, StoreError> {
        let is_old =
            |entry: &Entry| codec::decode(&entry.value).is_ok_and(|record| !self.is_kept(&record, entry.mod_revision));
        sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_old(entry))).await
    }
}

/// The commit of a decision, with its audit event if it changes anything, with the record of a marked request, and with what must still
/// be so of who asked.
fn with_record(caller: &Caller, unmade: Option<Precondition>, decided: &Decided) -> Transaction {
    let Decided { decision, now, still, asked_by, .. } = decided;
    let draft = decision.draft.clone();
    let of_objects = || caller.event(*now, asked_by.principal, draft.touched().to_vec());
    let event = (!draft.is_empty()).then(|| AuditEvent { action: draft.action(), ..of_objects() });
    let mut transaction = draft.into_transaction();
    if let Some(event) = event {
        transaction = transaction.put_at_revision(key::AUDIT, codec::encode(&AuditRecord::Commit(event)));
    }
    if let (Some(mark), Some(unmade)) = (&caller.mark, unmade) {
        let at = unmade.key().clone();
        let answer = decision.answer.clone();
        let record = RequestRecord { at: *now, hash: mark.hash.clone(), answer, asked_by: Some(*asked_by) };
        // If the same request was made meanwhile, this commit fails, and the next attempt finds that answer.
        transaction = transaction.put(at, codec::encode(&record)).require(unmade);
    }
    still.iter().cloned().fold(transaction, Transaction::require)
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
        StoreError::Read { .. } | StoreError::Newer { .. } | StoreError::Corrupt { .. } => {
            ApiError::new(ErrorType::ServerInternal, error.to_string())
        }
    }
}

pub(crate) fn damaged(error: &codec::BadRecord) -> ApiError {
    ApiError::new(ErrorType::ServerInternal, format!("a record in the store can't be read: {error}"))
}

#[cfg(test)]
mod tests;
