//! Stores what hosts report. The records are not objects, and cause no audit events. The store retains the last images
//! (versions) of an Observation, each with its revision, and only the last value of everything else.

mod bounds;
mod throttle;

use std::fs::File;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemma_core::epoch::HeldRevision;
use stemma_core::object::{self, DroppedReportCounts, Kind, RefusedTraits, ReportedState, Timestamp};
use stemma_core::traits::TraitNames;
use stemma_wire::message::observed::{LocalState, Observation, Report, TaskResult};
use stemma_wire::message::{Hash, PartDigest};
use tokio::time::Instant;
use uuid::Uuid;

use throttle::{Admission, ReportThrottle};

use super::Registry;
use super::rate::{ByteRate, ByteRateLimiter};
use crate::blobs::BlobStore;
use crate::desired::DesiredTable;
use crate::intake::{
    Acceptance, AgentState, ConfirmedState, Intake, IntakeError, LivenessChange, ReportPart, SentParts, StoredReports,
};
use crate::records::reported::{LivenessRecord, ReportRecord, ResultsRecord, SentRecord, agent_facts};
use crate::records::{codec, key};
use crate::store::{BoxFuture, ListQuery, Op, Precondition, Revision, StoreError, Transaction};

/// Maximum number of images of a node's Observation. An image is a stored version.
const MAX_OBSERVATION_IMAGES: usize = 10;
/// Maximum number of attempts to write a record. An attempt fails if another write to the record commits first.
const MAX_COMMIT_ATTEMPTS: usize = 8;
/// Maximum number of hosts whose confirmations are recorded in one commit.
const MAX_CONFIRMED_PER_COMMIT: usize = 1000;
/// Maximum length of the reason for a hold or park on a host, in characters. A longer reason is cut.
const MAX_REASON_CHARS: usize = 256;

/// The divisor for the size of a results record when the size is charged to the node's rate limit. Each report writes
/// the whole record. Most hosts report their tasks one by one, so the full size would be charged too often.
const RECORD_COST_DIVISOR: u64 = 16;

/// Stores what hosts report, and limits the rate and size of the reports.
pub struct HostIntake {
    registry: Arc<Registry>,
    writer: Arc<IntakeWriter>,
    report_throttle: ReportThrottle<ReportRecord>,
    state_throttle: ReportThrottle<Option<ReportedState>>,
    /// Limits the bytes of results of each node. A result over the limit is not lost: the host retains each result
    /// until the controller acknowledges it, and sends it again.
    result_limiter: ByteRateLimiter<Uuid>,
    blobs: Arc<BlobStore>,
    /// The names of standard traits: those of the program, and those of `extra_standard_traits` in the configuration.
    traits: TraitNames,
}

/// Writes records of nodes to the store. Records in a node's status whether each part of its report was stored.
struct IntakeWriter {
    registry: Arc<Registry>,
    desired: Arc<DesiredTable>,
}

impl HostIntake {
    /// Creates the intake, which writes to the registry's store and serves the blobs. Refused input is recorded in the
    /// status of the node (`desired`).
    pub fn new(registry: Arc<Registry>, blobs: Arc<BlobStore>, traits: TraitNames, desired: Arc<DesiredTable>) -> Self {
        let writer = Arc::new(IntakeWriter { registry: Arc::clone(&registry), desired });
        let deferred_writer = Arc::clone(&writer);
        let report_throttle = ReportThrottle::new(move |node, record, is_retry| {
            let writer = Arc::clone(&deferred_writer);
            Box::pin(
                async move { writer.is_finished(node, ReportPart::Report, writer.store_report(node, record).await, is_retry) },
            )
        });
        let deferred_writer = Arc::clone(&writer);
        let state_throttle = ReportThrottle::new(move |node, state, is_retry| {
            let writer = Arc::clone(&deferred_writer);
            Box::pin(async move {
                writer.is_finished(node, ReportPart::Local, writer.store_reported_state(node, state).await, is_retry)
            })
        });
        let result_limiter = ByteRateLimiter::new(ByteRate::RESULTS);
        Self { registry, writer, report_throttle, state_throttle, result_limiter, blobs, traits }
    }

    /// Stores an Observation as the node's current record and as a new image (a stored version). Also deletes the
    /// oldest images, so that at most [`MAX_OBSERVATION_IMAGES`] remain. Logs which parts were not accepted.
    async fn store_observation(
        &self,
        node: Uuid,
        digest: PartDigest,
        observation: Observation,
    ) -> Result<Acceptance, IntakeError> {
        let record = bounds::bounded_observation(self.registry.now(), digest, observation, &self.traits);
        let acceptance = self.log_refused_traits(node, &record.observation);
        self.log_dropped_input(node, &record.observation);
        let value = codec::encode(&record);
        let images = key::observation_images(node);
        let mut transaction = Transaction::new()
            .require(Precondition::present(key::object(Kind::Node, node)))
            .put(key::node_entry(key::OBSERVATIONS, node), value.clone())
            .put_at_revision(images.clone(), value);
        for image_key in self.surplus_images(&images).await? {
            transaction.ops.push(Op::Delete { key: image_key });
        }
        self.writer.commit(transaction).await.map_err(|error| commit_error(&error))?;
        Ok(acceptance)
    }

    /// Logs which traits of a host were not accepted, if they differ from those of the last Observation. Returns
    /// [`Acceptance::Partial`] if it logs any. Otherwise returns [`Acceptance::Whole`], also if the same traits as
    /// before are not accepted, because a finding already reports them.
    fn log_refused_traits(&self, node: Uuid, new: &object::Observation) -> Acceptance {
        let model = self.registry.cache().model();
        let old_input = model.observations.get(&node).and_then(|record| record.observation.not_taken.as_deref());
        let traits = new.not_taken.as_deref().map(|input| &input.traits).filter(|traits| **traits != RefusedTraits::default());
        match traits.filter(|traits| old_input.map(|old_input| &old_input.traits) != Some(*traits)) {
            None => Acceptance::Whole,
            Some(RefusedTraits { unknown, unknown_count, surplus }) => {
                let name = model.node_name(node);
                log::warn!(node:% = node, name, traits = unknown.join(", "), count = unknown_count, surplus = surplus; "a host reports traits that are not accepted");
                Acceptance::Partial
            }
        }
    }

    /// Logs the numbers of facts and labels that were not accepted, if they differ from those of the last Observation.
    fn log_dropped_input(&self, node: Uuid, observation: &object::Observation) {
        let model = self.registry.cache().model();
        let count = |new: &object::Observation| new.not_taken.as_ref().map_or((0, 0), |input| (input.facts, input.labels));
        let old_counts = model.observations.get(&node).map(|record| count(&record.observation)).unwrap_or_default();
        let (facts, labels) = count(observation);
        if (facts, labels) != (0, 0) && (facts, labels) != old_counts {
            log::warn!(node:% = node, name = model.node_name(node), facts, labels; "a host reports more facts or labels than are accepted");
        }
    }

    /// Returns the keys of the oldest images (stored versions) of a node's Observation. They are deleted when a new
    /// image is stored, so that at most [`MAX_OBSERVATION_IMAGES`] remain.
    async fn surplus_images(&self, prefix: &str) -> Result<Vec<bytes::Bytes>, IntakeError> {
        let query = ListQuery::prefix(prefix.to_owned()).descending();
        let snapshot = self.registry.store().snapshot().await.map_err(|error| commit_error(&error))?;
        let entries = snapshot.list(&query).await.map_err(|error| read_error(&error))?.entries;
        Ok(entries.into_iter().skip(MAX_OBSERVATION_IMAGES - 1).map(|entry| entry.key).collect())
    }
}

impl Intake for HostIntake {
    fn node_name(&self, node: Uuid) -> Option<String> {
        self.writer.node_name(node)
    }

    /// Returns what the store contains of a node's reports, and which desired state was last sent to the node. For a
    /// node without such a record, `sent_revision` is the revision at which these records began.
    fn stored_reports(&self, node: Uuid) -> StoredReports {
        let model = self.registry.cache().model();
        StoredReports {
            acknowledged_sequence: model.results.get(&node).map_or(0, |results| results.acknowledged),
            observation: model.observations.get(&node).map(|observation| observation.digest),
            is_silent: model.silence.get(&node).is_some_and(|liveness| liveness.lost),
            sent_revision: model.sent_records.get(&node).map(|record| record.sent_revision()).or(model.sent_recorded_since),
            sent_parts: model.sent_records.get(&node).and_then(|record| record.parts),
            is_unconfirmed: model.sent_records.get(&node).is_some_and(|record| record.unconfirmed),
        }
    }

    /// Stores an Observation, and records in the node's status whether this succeeded.
    fn store_observation(
        &self,
        node: Uuid,
        digest: PartDigest,
        observation: Observation,
    ) -> BoxFuture<'_, Result<Acceptance, IntakeError>> {
        Box::pin(async move {
            self.writer.record_part(node, ReportPart::Observation, self.store_observation(node, digest, observation).await)
        })
    }

    /// Stores results of tasks. Returns the highest sequence number that was sent or stored, so that the host need not
    /// send those results again. Fails if the node stored too many bytes of results in a short time.
    fn store_results(&self, node: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>> {
        Box::pin(async move {
            if self.result_limiter.wait_time(&node, Instant::now()).is_some() {
                return self.writer.record_part(node, ReportPart::Results, Err(IntakeError::TooFast));
            }
            let now = self.registry.now();
            let last_sequence = results.iter().map(|result| result.sequence).max().unwrap_or(0);
            let text_bytes: usize = results.iter().map(TaskResult::text_bytes).sum();
            let old_counts = self.registry.cache().model().dropped_counts(node);
            let written_bytes = self
                .writer
                .update_record(key::RESULTS, node, |stored: Option<ResultsRecord>| {
                    let mut record = stored.unwrap_or_default();
                    let old_sequence = record.acknowledged;
                    bounds::add_results(&mut record, now, results.clone());
                    (record.acknowledged > old_sequence).then_some(record)
                })
                .await;
            let written_bytes = self.writer.record_part(node, ReportPart::Results, written_bytes)?;
            self.writer.log_dropped_report(node, old_counts);
            self.result_limiter.spend(node, text_bytes as u64 + written_bytes / RECORD_COST_DIVISOR, Instant::now());
            Ok(last_sequence.max(self.stored_reports(node).acknowledged_sequence))
        })
    }

    /// Stores a Report now, or lets the throttle store it later. If the store accepts no writes at present, defers the
    /// Report and also returns the error.
    fn store_report(&self, node: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>> {
        let record = bounds::bounded_report(self.registry.now(), report);
        Box::pin(async move {
            let Admission::Now(record, number) = self.report_throttle.admit(node, record) else { return Ok(()) };
            let result = self.writer.store_report(node, record.clone()).await;
            if matches!(result, Err(IntakeError::Unavailable)) {
                self.report_throttle.defer(node, record, number);
            }
            result
        })
    }

    /// Stores pause, hold and park as set on a host, now or later by the throttle. Writes nothing if they are already
    /// stored.
    fn store_state(&self, node: Uuid, agent: AgentState) -> BoxFuture<'_, Result<(), IntakeError>> {
        let state = reported_state(agent.local_state);
        Box::pin(async move {
            // After a start of the controller, each host reports its state again, though it is already stored. This
            // must not use up the immediate writes that the throttle allows.
            if self.state_throttle.is_idle(node) && self.writer.is_stored_state(node, state.as_ref()) {
                return self.writer.record_part(node, ReportPart::Local, Ok(()));
            }
            let Admission::Now(state, _) = self.state_throttle.admit(node, state) else { return Ok(()) };
            self.writer.store_reported_state(node, state).await
        })
    }

    /// Stores that a node became silent or checked in again. Writes nothing if the stored record already shows the
    /// node as silent or not silent, respectively.
    fn store_liveness(&self, node: Uuid, change: LivenessChange) -> BoxFuture<'_, Result<(), IntakeError>> {
        let record = match change {
            LivenessChange::Connected { since_s } => {
                LivenessRecord { lost: false, since: Timestamp(since_s * 1000), untold: false }
            }
            LivenessChange::Lost { since_s, is_unconfirmed: untold } => {
                LivenessRecord { lost: true, since: Timestamp(since_s * 1000), untold }
            }
        };
        Box::pin(async move {
            self.writer
                .update_record(key::LIVENESS, node, |stored: Option<LivenessRecord>| {
                    (stored.is_none_or(|stored| stored.lost != record.lost)).then_some(record)
                })
                .await
                .map(drop)
        })
    }

    /// Records as unconfirmed which desired state is sent to a node's host, before it is sent. With the first such
    /// record in the store, also records the present revision of the store ([`key::SENT_SINCE`]).
    fn store_sent(&self, node: Uuid, sent: HeldRevision, parts: SentParts) -> BoxFuture<'_, Result<(), IntakeError>> {
        let record = SentRecord { epoch: sent.epoch, revision: sent.revision, parts: Some(parts), unconfirmed: true };
        let mut transaction = Transaction::new()
            .require(Precondition::present(key::object(Kind::Node, node)))
            .put(key::node_entry(key::SENT_STATES, node), codec::encode(&record));
        if self.registry.cache().model().sent_recorded_since.is_none() {
            // Older versions of the controller stored no such records, and sent no later revision than the present one.
            // This revision therefore is the bound for all nodes that have no record yet.
            let since = HeldRevision { epoch: sent.epoch, revision: self.head_revision() };
            transaction = transaction.put(key::SENT_SINCE, codec::encode(&since));
        }
        Box::pin(async move { self.writer.commit(transaction).await.map(drop).map_err(|error| commit_error(&error)) })
    }

    /// Records that hosts confirmed the desired states that were sent to them, in batches.
    fn store_confirmations(&self, confirmed: Vec<ConfirmedState>) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            for batch in confirmed.chunks(MAX_CONFIRMED_PER_COMMIT) {
                self.writer.record_confirmed(batch).await?;
            }
            Ok(())
        })
    }

    fn head_revision(&self) -> u64 {
        self.registry.store().stats().revision()
    }

    fn open_blob(&self, hash: Hash) -> std::io::Result<Option<File>> {
        self.blobs.open(hash)
    }
}

impl IntakeWriter {
    /// Records the result for a part of a host's report in the node's status, and returns the result unchanged.
    fn record_part<T>(&self, node: Uuid, part: ReportPart, result: Result<T, IntakeError>) -> Result<T, IntakeError> {
        self.desired.status().record_report(node, part, &result);
        result
    }

    /// Changes one record of a node, and returns the number of bytes written. `change` gets the stored record and
    /// returns the new one, or `None` to write nothing. The change is repeated if another write changes the record
    /// first. A stored record that cannot be decoded counts as missing, and is replaced.
    async fn update_record<T, F>(&self, prefix: &str, node: Uuid, change: F) -> Result<u64, IntakeError>
    where
        T: DeserializeOwned + Serialize,
        F: Fn(Option<T>) -> Option<T>,
    {
        let record_key = key::node_entry(prefix, node);
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            let (stored, stored_revision) = self.read_record::<T>(&record_key).await?;
            let Some(next) = change(stored) else { return Ok(0) };
            let value = codec::encode(&next);
            let bytes = value.len() as u64;
            let transaction = Transaction::new()
                .require(Precondition::present(key::object(Kind::Node, node)))
                .require(Precondition::unchanged_since(record_key.clone(), stored_revision))
                .put(record_key.clone(), value);
            match self.commit(transaction).await {
                // Precondition 0 is that the node exists. If only the record has changed (precondition 1), the loop
                // tries again.
                Err(StoreError::PreconditionFailed(unmet)) if unmet.index > 0 => {}
                result => return result.map(|_| bytes).map_err(|error| commit_error(&error)),
            }
        }
        Err(IntakeError::Unavailable)
    }

    /// Returns the record at a key and its revision. The record is `None` if it is missing or cannot be decoded.
    async fn read_record<T: DeserializeOwned>(&self, record_key: &str) -> Result<(Option<T>, Option<Revision>), IntakeError> {
        let snapshot = self.registry.store().snapshot().await.map_err(|error| commit_error(&error))?;
        let Some(entry) = snapshot.get(record_key.as_bytes()).await.map_err(|error| read_error(&error))? else {
            return Ok((None, None));
        };
        // An entry that cannot be decoded counts as missing, so that the caller can replace it with a newer value. The
        // earlier results in such a record of results are lost.
        Ok((codec::decode(&entry.value).ok(), Some(entry.mod_revision)))
    }

    /// Records that hosts have confirmed a desired state. Skips a host if the confirmed state is not the one that was
    /// sent last. Fails if a record changes during the write, and the caller tries again later.
    async fn record_confirmed(&self, confirmed: &[ConfirmedState]) -> Result<(), IntakeError> {
        let mut transaction = Transaction::new();
        for ConfirmedState { node, sent_revision, parts } in confirmed {
            let record_key = key::node_entry(key::SENT_STATES, *node);
            let (stored, revision) = self.read_record::<SentRecord>(&record_key).await?;
            let is_last_sent = |record: &SentRecord| record.sent_revision() == *sent_revision && record.parts == Some(*parts);
            let Some(record) = stored.filter(is_last_sent).filter(|record| record.unconfirmed) else { continue };
            let value = codec::encode(&SentRecord { unconfirmed: false, ..record });
            transaction = transaction.require(Precondition::unchanged_since(record_key.clone(), revision)).put(record_key, value);
        }
        if transaction.ops.is_empty() {
            return Ok(());
        }
        match self.registry.store().commit(transaction).await {
            // Another state was sent to a host, or its node was deleted. The caller tries these confirmations again.
            Err(StoreError::PreconditionFailed(_)) => Err(IntakeError::Unavailable),
            // Nobody reads the confirmations from the cache at once, so this does not wait for the cache.
            result => result.map(drop).map_err(|error| commit_error(&error)),
        }
    }

    /// Commits a transaction, and waits until the cache contains it. Returns the revision of the commit.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let revision = self.registry.store().commit(transaction).await?;
        self.registry.cache().wait_for(revision).await;
        Ok(revision)
    }

    /// Returns whether this state (pause, hold and park) is the one that is stored for a host.
    fn is_stored_state(&self, node: Uuid, state: Option<&ReportedState>) -> bool {
        self.registry.cache().model().reported_states.get(&node).map(|stored| &**stored) == state
    }

    /// Stores which of pause, hold and park are in force on a host, or deletes the record if none is. They are stored
    /// so that they remain in force after a restart of the controller. The record also gives them a revision, which
    /// every input of a desired state needs.
    async fn store_reported_state(&self, node: Uuid, state: Option<ReportedState>) -> Result<(), IntakeError> {
        if self.is_stored_state(node, state.as_ref()) {
            return self.record_part(node, ReportPart::Local, Ok(()));
        }
        let record_key = key::node_entry(key::REPORTED_STATES, node);
        let transaction = Transaction::new().require(Precondition::present(key::object(Kind::Node, node)));
        let transaction = match &state {
            Some(state) => transaction.put(record_key, codec::encode(state)),
            None => transaction.delete(record_key),
        };
        let result = self.commit(transaction).await.map_err(|error| commit_error(&error));
        self.record_part(node, ReportPart::Local, result)?;
        let ReportedState { paused, hold, parked } = state.unwrap_or_default();
        log::info!(node:% = node, name = self.node_name(node), change = "local", to:? = (paused, hold.is_some(), parked.is_some()); "pause, hold or park changed on the host");
        Ok(())
    }

    /// Stores a node's last Report. Writes nothing if the stored Report differs only in facts that change often.
    async fn store_report(&self, node: Uuid, record: ReportRecord) -> Result<(), IntakeError> {
        let change = |stored: Option<ReportRecord>| {
            let is_equal = stored.is_some_and(|stored| {
                stored.left_out == record.left_out && is_equal_except_volatile_facts(&stored.report, &record.report)
            });
            (!is_equal).then(|| record.clone())
        };
        let old_counts = self.registry.cache().model().dropped_counts(node);
        let result = self.update_record(key::REPORTS, node, change).await.map(drop);
        self.record_part(node, ReportPart::Report, result)?;
        self.log_dropped_report(node, old_counts);
        Ok(())
    }

    /// Logs the numbers of facts, results and texts of a host's reports that were not stored, if they have changed.
    /// Dropped parts of an Observation are not included.
    fn log_dropped_report(&self, node: Uuid, old_counts: DroppedReportCounts) {
        let counts = self.registry.cache().model().dropped_counts(node);
        if counts != old_counts && !counts.is_empty() {
            let DroppedReportCounts { facts, results, texts } = counts;
            log::warn!(node:% = node, name = self.node_name(node), facts, results, texts; "a host reports more than is stored");
        }
    }

    /// Returns whether a deferred write is finished, because it succeeded or can never succeed. Otherwise the write is
    /// tried again. Logs the error, but only once for a write that is tried again.
    fn is_finished(&self, node: Uuid, part: ReportPart, result: Result<(), IntakeError>, is_retry: bool) -> bool {
        let Err(error) = result else { return true };
        let is_deferred = matches!(error, IntakeError::Unavailable | IntakeError::TooFast);
        if !(is_deferred && is_retry) {
            log::warn!(node:% = node, name = self.node_name(node), kind = part.name(), error:% = error; "a host's report was not stored");
        }
        !is_deferred
    }

    /// Returns the node's name.
    fn node_name(&self, node: Uuid) -> Option<String> {
        self.registry.cache().model().node_name(node).map(str::to_owned)
    }
}

/// Returns whether two Reports are equal, apart from volatile facts, such as uptime and load. Facts about the agent
/// itself are compared. A change of volatile facts is written only together with another change.
fn is_equal_except_volatile_facts(first: &Report, second: &Report) -> bool {
    (&first.agent_version, &first.findings, first.progress, &first.local)
        == (&second.agent_version, &second.findings, second.progress, &second.local)
        && agent_facts(first).eq(agent_facts(second))
}

/// Returns the pause, hold and park on a host in their stored form, or `None` if none is set. Long reasons are cut.
fn reported_state(local: LocalState) -> Option<ReportedState> {
    let LocalState { paused, hold, parked } = local;
    let cut = |text: String| text.chars().take(MAX_REASON_CHARS).collect::<String>().into();
    let state = ReportedState { paused, hold: hold.map(|(until, reason)| (until, cut(reason))), parked: parked.map(cut) };
    (state != ReportedState::default()).then_some(state)
}

/// Returns the intake error for a failed read of a node's record. The error is [`IntakeError::Refused`] if the record
/// is damaged or was written by a newer version. A retry would fail too, so the host does not try again. Only this node
/// is affected.
fn read_error(error: &StoreError) -> IntakeError {
    match error {
        StoreError::Corrupt { what } => IntakeError::Refused(format!(
            "the stored record is damaged ({what}), so no new one is stored: restore the controller from a backup (docs/backup.md)"
        )),
        StoreError::Newer { what } => {
            IntakeError::Refused(format!("the stored record cannot be read by this version of the controller ({what})"))
        }
        StoreError::PreconditionFailed(_)
        | StoreError::Refused(_)
        | StoreError::OutcomeUnknown { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Read { .. }
        | StoreError::Closed => commit_error(error),
    }
}

/// Returns the intake error for a failed commit. A failed precondition means that the node does not exist. If the store
/// refuses the commit, a retry would fail too. All other errors can end, so the host tries again.
fn commit_error(error: &StoreError) -> IntakeError {
    match error {
        StoreError::PreconditionFailed(_) => IntakeError::NoSuchNode,
        StoreError::Refused(refusal) => IntakeError::Refused(refusal.to_string()),
        StoreError::OutcomeUnknown { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Read { .. }
        | StoreError::Newer { .. }
        | StoreError::Corrupt { .. }
        | StoreError::Closed => IntakeError::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stemma_core::name::NodeName;
    use stemma_core::object::NodeSpec;
    use stemma_wire::clock::FixedClock;
    use stemma_wire::message::observed::Progress;

    use super::*;
    use crate::cache::Cache;
    use crate::records::request::StoredAnswer;
    use crate::registry::Caller;
    use crate::registry::work::PendingWrite;
    use crate::store::faulty::FaultyStore;
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Store};

    /// Reports of a node whose record is damaged are refused, and the node gets a finding. Reports of other nodes are
    /// stored. Regression test: a damaged record caused only a warning in the journal and endless retries.
    #[tokio::test]
    async fn x01_intake_refuses_only_node_with_damaged_record() {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: bytes::Bytes::new() };
        let inner = RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap();
        let faulty = Arc::new(FaultyStore::new(Arc::new(inner)));
        let store: Arc<dyn Store> = Arc::clone(&faulty) as _;
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (followed_cache, followed_store) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { followed_cache.follow(followed_store.as_ref()).await });
        let registry = Arc::new(Registry::new(store, cache, Arc::new(FixedClock(1_000_000))));
        let nodes = [1, 2, 3].map(Uuid::from_u128);
        let caller = Caller::controller("a test");
        let created = registry.write(&caller, |context| {
            let mut work = PendingWrite::new(context);
            for (n, node) in nodes.iter().enumerate() {
                work.create(*node, Some(NodeName::new(&format!("n{n}")).unwrap()), NodeSpec::default())?;
            }
            work.finish(StoredAnswer::empty(200))
        });
        created.await.unwrap();
        let desired = crate::desired::tests::table();
        let blobs = Arc::new(BlobStore::new(directory.path()));
        let intake = HostIntake::new(registry, blobs, TraitNames::default(), Arc::clone(&desired));
        let refused_reports = |node| desired.status().refused_reports().get(node);

        faulty.damage_key(Some(key::node_entry(key::REPORTS, nodes[0])));
        let reason = match intake.store_report(nodes[0], Report::default()).await {
            Err(IntakeError::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason.starts_with("the stored record is damaged (planned by the test)"), "{reason}");
        assert_eq!(refused_reports(nodes[0]), BTreeMap::from([(ReportPart::Report, reason)]), "it is a finding of the node");
        intake.store_report(nodes[1], Report::default()).await.expect("another node's report is stored");

        faulty.damage_key(None);
        faulty.set_unreadable(true);
        let failed = intake.store_report(nodes[2], Report::default()).await;
        assert!(matches!(failed, Err(IntakeError::Unavailable)), "a store that fails as a whole is retried: {failed:?}");
        assert_eq!((refused_reports(nodes[1]), refused_reports(nodes[2])), (BTreeMap::new(), BTreeMap::new()));
        let waiting_reports = |node| desired.status().waiting_reports().get(node);
        let reason = "the store takes no writes".to_owned();
        assert_eq!(waiting_reports(nodes[2]), BTreeMap::from([(ReportPart::Report, reason)]), "the status has this report");
        assert!(matches!(intake.store_results(nodes[1], vec![]).await, Err(IntakeError::Unavailable)));
        assert_eq!(waiting_reports(nodes[1]).len(), 1);
        faulty.set_unreadable(false);
        intake.store_results(nodes[1], vec![]).await.expect("the store can be read again");
        assert_eq!((waiting_reports(nodes[0]), waiting_reports(nodes[1])), (BTreeMap::new(), BTreeMap::new()), "no report waits");
    }

    /// Facts about the agent, such as `agent.stuck`, are compared too. Other facts, such as `load`, are not.
    #[test]
    fn y06_is_equal_except_volatile_facts_compares_remaining_fields() {
        let report = Report::default();
        let local = LocalState { paused: true, ..LocalState::default() };
        for other in [
            Report { agent_version: "1.2.3".to_owned(), ..report.clone() },
            Report { findings: vec!["a finding".to_owned()], ..report.clone() },
            Report { progress: Progress::Waiting, ..report.clone() },
            Report { local, ..report.clone() },
            Report { facts: [("agent.stuck".to_owned(), "\"full\"".to_owned())].into(), ..report.clone() },
        ] {
            assert!(!is_equal_except_volatile_facts(&report, &other), "{other:?}");
        }
        let facts = [("load".to_owned(), "0.5".to_owned())].into();
        assert!(is_equal_except_volatile_facts(&report, &Report { facts, ..report.clone() }));
        let facts = [("agent.stuck".to_owned(), "\"the disk is full\"".to_owned())].into();
        assert!(!is_equal_except_volatile_facts(&report, &Report { facts, ..report.clone() }), "the fact about the agent is new");
    }
}
