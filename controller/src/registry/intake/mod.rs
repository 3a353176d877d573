//! What hosts say, made into records. None of it is an object and none makes an audit event: an Observation is a commit
//! with a revision and its last images, the rest is the last word only.

mod bounds;
mod pace;

use std::fs::File;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemma_core::epoch::HeldRevision;
use stemma_core::object::{self, Kind, RefusedTraits, ReportLeftOut, SaidOnHost, Timestamp};
use stemma_core::traits::TraitNames;
use stemma_wire::message::observed::{LocalState, Observation, Report, TaskResult};
use stemma_wire::message::{Hash, PartDigest};
use tokio::time::Instant;
use uuid::Uuid;

use pace::{Pace, Turn};

use super::Registry;
use super::rate::{BytePace, ByteRate};
use crate::blobs::Blobs;
use crate::desired::DesiredTable;
use crate::intake::{Confirmed, Intake, IntakeError, Part, Said, Seen, Stored, Taken, ToldParts};
use crate::records::reported::{ReportRecord, ResultsRecord, SeenRecord, ToldRecord, of_agent};
use crate::records::{codec, key};
use crate::store::{BoxFuture, Op, Precondition, Query, Revision, StoreError, Transaction};

/// How many images of a node's Observation are kept.
const KEPT_OBSERVATIONS: usize = 10;
/// How often a record is written again after another write came between.
const MOST_ATTEMPTS: usize = 8;
/// Of so many hosts one commit records that they confirmed what they were told.
const MOST_CONFIRMED: usize = 1000;
/// How much of a reason that was said on a host is kept, in characters.
const MOST_REASON: usize = 256;

/// How much of the record that results are stored in counts as theirs: it is written whole, and most hosts report tasks one by one.
const SHARE_OF_RECORD: u64 = 16;

/// Keeps what hosts say.
pub struct HostIntake {
    registry: Arc<Registry>,
    records: Arc<Records>,
    pace: Pace<ReportRecord>,
    said_pace: Pace<Option<SaidOnHost>>,
    /// Results are not lost where a node has stored as much as it may: a host keeps what is not acknowledged, and sends it again.
    results_pace: BytePace<Uuid>,
    blobs: Arc<Blobs>,
    /// The traits that are known at this site.
    traits: TraitNames,
}

/// The last word of each node of each kind, in the store.
struct Records {
    registry: Arc<Registry>,
    desired: Arc<DesiredTable>,
}

impl HostIntake {
    /// Over the registry's store and the kept bodies. What is refused is noted in the nodes' status.
    pub fn new(registry: Arc<Registry>, blobs: Arc<Blobs>, traits: TraitNames, desired: Arc<DesiredTable>) -> Self {
        let records = Arc::new(Records { registry: Arc::clone(&registry), desired });
        let late = Arc::clone(&records);
        let pace = Pace::new(move |node, record, is_again| {
            let records = Arc::clone(&late);
            Box::pin(async move { records.is_over(node, Part::Report, records.report(node, record).await, is_again) })
        });
        let late = Arc::clone(&records);
        let said_pace = Pace::new(move |node, said, is_again| {
            let records = Arc::clone(&late);
            Box::pin(async move { records.is_over(node, Part::Local, records.said(node, said).await, is_again) })
        });
        let results_pace = BytePace::new(ByteRate::OF_RESULTS);
        Self { registry, records, pace, said_pace, results_pace, blobs, traits }
    }

    async fn observe(&self, node: Uuid, digest: PartDigest, said: Observation) -> Result<Taken, IntakeError> {
        let record = bounds::observation(self.registry.now(), digest, said, &self.traits);
        let taken = self.tell_refused(node, &record.observation);
        self.tell_left_out(node, &record.observation);
        let value = codec::encode(&record);
        let images = key::observed(node);
        let mut transaction = Transaction::new()
            .require(Precondition::present(key::object(Kind::Node, node)))
            .put(key::of_node(key::OBSERVATIONS, node), value.clone())
            .put_at_revision(images.clone(), value);
        for old in self.surplus_images(&images).await? {
            transaction.ops.push(Op::Delete { key: old });
        }
        self.records.commit(transaction).await.map_err(|error| refused(&error))?;
        Ok(taken)
    }

    /// Says once a change which traits of a host were not taken.
    fn tell_refused(&self, node: Uuid, said: &object::Observation) -> Taken {
        let model = self.registry.cache().model();
        let before = model.observations.get(&node).and_then(|record| record.observation.not_taken.as_deref());
        let refused =
            said.not_taken.as_deref().map(|left_out| &left_out.traits).filter(|one| **one != RefusedTraits::default());
        match refused.filter(|refused| before.map(|before| &before.traits) != Some(*refused)) {
            None => Taken::Whole,
            Some(RefusedTraits { unknown, unknown_count, surplus }) => {
                let name = model.node_name(node);
                log::warn!(node:% = node, name, traits = unknown.join(", "), count = unknown_count, surplus = surplus; "a host reports traits that are not taken");
                Taken::InPart
            }
        }
    }

    /// Says once a change how much else was not taken.
    fn tell_left_out(&self, node: Uuid, said: &object::Observation) {
        let model = self.registry.cache().model();
        let count = |said: &object::Observation| said.not_taken.as_ref().map_or((0, 0), |one| (one.facts, one.labels));
        let before = model.observations.get(&node).map(|record| count(&record.observation)).unwrap_or_default();
        let (facts, labels) = count(said);
        if (facts, labels) != (0, 0) && (facts, labels) != before {
            log::warn!(node:% = node, name = model.node_name(node), facts, labels; "a host reports more than is taken");
        }
    }

    /// The oldest images, which make room for a new one.
    async fn surplus_images(&self, prefix: &str) -> Result<Vec<bytes::Bytes>, IntakeError> {
        let query = Query::prefix(prefix.to_owned()).descending();
        let snapshot = self.registry.store().snapshot().await.map_err(|error| refused(&error))?;
        let entries = snapshot.list(&query).await.map_err(|error| unreadable(&error))?.entries;
        Ok(entries.into_iter().skip(KEPT_OBSERVATIONS - 1).map(|entry| entry.key).collect())
    }
}

impl Intake for HostIntake {
    fn name(&self, node: Uuid) -> Option<String> {
        self.records.name(node)
    }

    fn stored(&self, node: Uuid) -> Stored {
        let model = self.registry.cache().model();
        Stored {
            acknowledged: model.results.get(&node).map_or(0, |results| results.acknowledged),
            observation: model.observations.get(&node).map(|observation| observation.digest),
            silent: model.seen.get(&node).is_some_and(|seen| seen.lost),
            told: model.told.get(&node).map(|told| told.state()).or(model.told_since),
            told_parts: model.told.get(&node).and_then(|told| told.parts),
            unconfirmed: model.told.get(&node).is_some_and(|told| told.unconfirmed),
        }
    }

    fn observed(&self, node: Uuid, digest: PartDigest, said: Observation) -> BoxFuture<'_, Result<Taken, IntakeError>> {
        Box::pin(async move { self.records.noted(node, Part::Observation, self.observe(node, digest, said).await) })
    }

    fn results(&self, node: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>> {
        Box::pin(async move {
            if self.results_pace.wait(&node, Instant::now()).is_some() {
                return self.records.noted(node, Part::Results, Err(IntakeError::TooFast));
            }
            let now = self.registry.now();
            let last = results.iter().map(|result| result.sequence).max().unwrap_or(0);
            let said: usize = results.iter().map(bounds::texts).sum();
            let before = self.registry.cache().model().left_out(node);
            let written = self
                .records
                .change(key::RESULTS, node, |present: Option<ResultsRecord>| {
                    let mut record = present.unwrap_or_default();
                    let before = record.acknowledged;
                    bounds::add_results(&mut record, now, results.clone());
                    (record.acknowledged > before).then_some(record)
                })
                .await;
            let written = self.records.noted(node, Part::Results, written)?;
            self.records.tell_left_out(node, before);
            self.results_pace.spend(node, said as u64 + written / SHARE_OF_RECORD, Instant::now());
            Ok(last.max(self.stored(node).acknowledged))
        })
    }

    fn report(&self, node: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>> {
        let record = bounds::report(self.registry.now(), report);
        Box::pin(async move {
            let Turn::Now(record) = self.pace.admit(node, record) else { return Ok(()) };
            let written = self.records.report(node, record.clone()).await;
            if matches!(written, Err(IntakeError::Unavailable)) {
                self.pace.put_off(node, record);
            }
            written
        })
    }

    fn said(&self, node: Uuid, said: Said) -> BoxFuture<'_, Result<(), IntakeError>> {
        let said = said_on_host(said.local);
        Box::pin(async move {
            // After a start each host says what is kept of it already.
            if self.said_pace.is_quiet(node) && self.records.is_said(node, said.as_ref()) {
                return self.records.noted(node, Part::Local, Ok(()));
            }
            let Turn::Now(said) = self.said_pace.admit(node, said) else { return Ok(()) };
            self.records.said(node, said).await
        })
    }

    fn seen(&self, node: Uuid, seen: Seen) -> BoxFuture<'_, Result<(), IntakeError>> {
        let record = match seen {
            Seen::Connected { since_s } => SeenRecord { lost: false, since: Timestamp(since_s * 1000), untold: false },
            Seen::Lost { since_s, untold } => SeenRecord { lost: true, since: Timestamp(since_s * 1000), untold },
        };
        Box::pin(async move {
            self.records
                .change(key::SEEN, node, |present: Option<SeenRecord>| {
                    (present.is_none_or(|present| present.lost != record.lost)).then_some(record)
                })
                .await
                .map(drop)
        })
    }

    fn told(&self, node: Uuid, told: HeldRevision, parts: ToldParts) -> BoxFuture<'_, Result<(), IntakeError>> {
        let record = ToldRecord { epoch: told.epoch, revision: told.revision, parts: Some(parts), unconfirmed: true };
        let mut transaction = Transaction::new()
            .require(Precondition::present(key::object(Kind::Node, node)))
            .put(key::of_node(key::TOLD, node), codec::encode(&record));
        if self.registry.cache().model().told_since.is_none() {
            // Of an earlier version, which wrote no records, each host holds no later revision than this.
            let since = HeldRevision { epoch: told.epoch, revision: self.head() };
            transaction = transaction.put(key::TOLD_SINCE, codec::encode(&since));
        }
        Box::pin(async move { self.records.commit(transaction).await.map(drop).map_err(|error| refused(&error)) })
    }

    fn confirmed(&self, confirmed: Vec<Confirmed>) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            for some in confirmed.chunks(MOST_CONFIRMED) {
                self.records.confirm(some).await?;
            }
            Ok(())
        })
    }

    fn head(&self) -> u64 {
        self.registry.store().stats().revision()
    }

    fn blob(&self, hash: Hash) -> std::io::Result<Option<File>> {
        self.blobs.open(hash)
    }
}

impl Records {
    /// What became of a part of what a host reported, after it is noted.
    fn noted<T>(&self, node: Uuid, part: Part, result: Result<T, IntakeError>) -> Result<T, IntakeError> {
        self.desired.status().note_report(node, part, &result);
        result
    }

    /// Changes one record of a node; `change` answers `None` where nothing is to be written. Gives how many bytes were written.
    async fn change<T, F>(&self, prefix: &str, node: Uuid, change: F) -> Result<u64, IntakeError>
    where
        T: DeserializeOwned + Serialize,
        F: Fn(Option<T>) -> Option<T>,
    {
        let at = key::of_node(prefix, node);
        for _ in 0..MOST_ATTEMPTS {
            let (present, written) = self.read::<T>(&at).await?;
            let Some(next) = change(present) else { return Ok(0) };
            let value = codec::encode(&next);
            let bytes = value.len() as u64;
            let transaction = Transaction::new()
                .require(Precondition::present(key::object(Kind::Node, node)))
                .require(Precondition::as_read(at.clone(), written))
                .put(at.clone(), value);
            match self.commit(transaction).await {
                // The node itself is the first condition, the record the second.
                Err(StoreError::PreconditionFailed(unmet)) if unmet.index > 0 => {}
                committed => return committed.map(|_| bytes).map_err(|error| refused(&error)),
            }
        }
        Err(IntakeError::Unavailable)
    }

    async fn read<T: DeserializeOwned>(&self, at: &str) -> Result<(Option<T>, Option<Revision>), IntakeError> {
        let snapshot = self.registry.store().snapshot().await.map_err(|error| refused(&error))?;
        let Some(entry) = snapshot.get(at.as_bytes()).await.map_err(|error| unreadable(&error))? else {
            return Ok((None, None));
        };
        // What cannot be read is replaced: it is a host's last word, and here is the next one.
        Ok((codec::decode(&entry.value).ok(), Some(entry.mod_revision)))
    }

    /// Records that hosts hold what they were told last, where that is what is recorded of them.
    async fn confirm(&self, confirmed: &[Confirmed]) -> Result<(), IntakeError> {
        let mut transaction = Transaction::new();
        for Confirmed { node, told, parts } in confirmed {
            let at = key::of_node(key::TOLD, *node);
            let (present, written) = self.read::<ToldRecord>(&at).await?;
            let is_it = |record: &ToldRecord| record.state() == *told && record.parts == Some(*parts);
            let Some(record) = present.filter(is_it).filter(|record| record.unconfirmed) else { continue };
            let value = codec::encode(&ToldRecord { unconfirmed: false, ..record });
            transaction = transaction.require(Precondition::as_read(at.clone(), written)).put(at, value);
        }
        if transaction.ops.is_empty() {
            return Ok(());
        }
        match self.registry.store().commit(transaction).await {
            // One was told something meanwhile, or is gone: who confirmed is asked again.
            Err(StoreError::PreconditionFailed(_)) => Err(IntakeError::Unavailable),
            // Nobody waits until the cache has it.
            committed => committed.map(drop).map_err(|error| refused(&error)),
        }
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let revision = self.registry.store().commit(transaction).await?;
        self.registry.cache().reached(revision).await;
        Ok(revision)
    }

    /// Whether this is what is kept of a host.
    fn is_said(&self, node: Uuid, said: Option<&SaidOnHost>) -> bool {
        self.registry.cache().model().said.get(&node).map(|known| &**known) == said
    }

    /// Keeps what is said on a host for as long as it is said. It is a state of now, and stored so that what it decides is the
    /// same after a restart as before it, and stands at a revision as everything that a desired state is made from.
    async fn said(&self, node: Uuid, said: Option<SaidOnHost>) -> Result<(), IntakeError> {
        if self.is_said(node, said.as_ref()) {
            return self.noted(node, Part::Local, Ok(()));
        }
        let at = key::of_node(key::SAID, node);
        let transaction = Transaction::new().require(Precondition::present(key::object(Kind::Node, node)));
        let transaction = match &said {
            Some(said) => transaction.put(at, codec::encode(said)),
            None => transaction.delete(at),
        };
        let written = self.commit(transaction).await.map_err(|error| refused(&error));
        self.noted(node, Part::Local, written)?;
        let SaidOnHost { paused, hold, parked } = said.unwrap_or_default();
        log::info!(node:% = node, name = self.name(node), change = "local", to:? = (paused, hold.is_some(), parked.is_some()); "pause, hold or park changed on the host");
        Ok(())
    }

    /// Keeps a node's last Report, unless it says the same.
    async fn report(&self, node: Uuid, record: ReportRecord) -> Result<(), IntakeError> {
        let change = |present: Option<ReportRecord>| {
            let same = present.is_some_and(|present| {
                present.left_out == record.left_out && is_same_but_facts(&present.report, &record.report)
            });
            (!same).then(|| record.clone())
        };
        let before = self.registry.cache().model().left_out(node);
        let written = self.change(key::REPORTS, node, change).await.map(drop);
        self.noted(node, Part::Report, written)?;
        self.tell_left_out(node, before);
        Ok(())
    }

    /// Says once a change how much was not kept of what a host reports beside its Observation.
    fn tell_left_out(&self, node: Uuid, before: ReportLeftOut) {
        let now = self.registry.cache().model().left_out(node);
        if now != before && !now.is_nothing() {
            let ReportLeftOut { facts, results, texts } = now;
            log::warn!(node:% = node, name = self.name(node), facts, results, texts; "a host reports more than is kept");
        }
    }

    /// Whether nothing is left to do for what waited: it was written, or never can be. That it waits on is logged once.
    fn is_over(&self, node: Uuid, part: Part, written: Result<(), IntakeError>, is_again: bool) -> bool {
        let Err(error) = written else { return true };
        let waits_on = matches!(error, IntakeError::Unavailable | IntakeError::TooFast);
        if !(waits_on && is_again) {
            log::warn!(node:% = node, name = self.name(node), kind = part.name(), error:% = error; "what a host said was not kept");
        }
        !waits_on
    }

    /// What a node is called.
    fn name(&self, node: Uuid) -> Option<String> {
        self.registry.cache().model().node_name(node).map(str::to_owned)
    }
}

/// Facts of a Report change by themselves (uptime, load): they are written with something that did not, and never alone. What an agent says
/// of itself does not.
fn is_same_but_facts(one: &Report, other: &Report) -> bool {
    (&one.agent_version, &one.findings, one.progress, &one.local)
        == (&other.agent_version, &other.findings, other.progress, &other.local)
        && of_agent(one).eq(of_agent(other))
}

/// `None` for a host on which nothing is said.
fn said_on_host(local: LocalState) -> Option<SaidOnHost> {
    let LocalState { paused, hold, parked } = local;
    let cut = |text: String| text.chars().take(MOST_REASON).collect::<String>().into();
    let said = SaidOnHost { paused, hold: hold.map(|(until, reason)| (until, cut(reason))), parked: parked.map(cut) };
    (said != SaidOnHost::default()).then_some(said)
}

/// Why a record of a node was not read. One that is damaged stays so, however often it is tried: it is the node's alone, and others go on.
fn unreadable(error: &StoreError) -> IntakeError {
    match error {
        StoreError::Corrupt { what } => IntakeError::Refused(format!(
            "what the store holds of it is damaged ({what}), so nothing is kept beside it: restore the controller from a backup (docs/backup.md)"
        )),
        StoreError::Newer { what } => {
            IntakeError::Refused(format!("what the store holds of it is not read by this program ({what})"))
        }
        StoreError::PreconditionFailed(_)
        | StoreError::Refused(_)
        | StoreError::OutcomeUnknown { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::Read { .. }
        | StoreError::Closed => refused(error),
    }
}

fn refused(error: &StoreError) -> IntakeError {
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
    use crate::records::request::Answer;
    use crate::registry::Caller;
    use crate::registry::work::Work;
    use crate::store::faulty::FaultyStore;
    use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Store};

    /// A record of one node that can never be read was only a warning in the journal, and was tried again for ever.
    #[tokio::test]
    async fn x01_a_damaged_record_of_one_node_is_refused_with_a_finding_and_others_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: bytes::Bytes::new() };
        let inner = RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap();
        let faulty = Arc::new(FaultyStore::new(Arc::new(inner)));
        let store: Arc<dyn Store> = Arc::clone(&faulty) as _;
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { following.follow(followed.as_ref()).await });
        let registry = Arc::new(Registry::new(store, cache, Arc::new(FixedClock(1_000_000))));
        let nodes = [1, 2, 3].map(Uuid::from_u128);
        let caller = Caller::controller("a test");
        let made = registry.write(&caller, |context| {
            let mut work = Work::on(context);
            for (n, node) in nodes.iter().enumerate() {
                work.create(*node, Some(NodeName::new(&format!("n{n}")).unwrap()), NodeSpec::default())?;
            }
            work.finish(Answer::empty(200))
        });
        made.await.unwrap();
        let desired = crate::desired::tests::table();
        let blobs = Arc::new(Blobs::new(directory.path()));
        let intake = HostIntake::new(registry, blobs, TraitNames::default(), Arc::clone(&desired));
        let said = |node| desired.status().refused_reports().of(node);

        faulty.set_damaged(Some(key::of_node(key::REPORTS, nodes[0])));
        let reason = match intake.report(nodes[0], Report::default()).await {
            Err(IntakeError::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason.starts_with("what the store holds of it is damaged (planned by the test)"), "{reason}");
        assert_eq!(said(nodes[0]), BTreeMap::from([(Part::Report, reason)]), "it is a finding of the node");
        intake.report(nodes[1], Report::default()).await.expect("another node is unharmed");

        faulty.set_damaged(None);
        faulty.set_unreadable(true);
        let failed = intake.report(nodes[2], Report::default()).await;
        assert!(
            matches!(failed, Err(IntakeError::Unavailable)),
            "a store that fails as a whole is tried again: {failed:?}"
        );
        assert_eq!((said(nodes[1]), said(nodes[2])), (BTreeMap::new(), BTreeMap::new()));
        let waiting = |node| desired.status().waiting_reports().of(node);
        let reason = "the store takes no writes".to_owned();
        assert_eq!(waiting(nodes[2]), BTreeMap::from([(Part::Report, reason)]), "and it is told that this waits");
        assert!(matches!(intake.results(nodes[1], vec![]).await, Err(IntakeError::Unavailable)));
        assert_eq!(waiting(nodes[1]).len(), 1);
        faulty.set_unreadable(false);
        intake.results(nodes[1], vec![]).await.expect("the store can be read again");
        assert_eq!((waiting(nodes[0]), waiting(nodes[1])), (BTreeMap::new(), BTreeMap::new()), "it is kept now");
    }

    #[test]
    fn y06_a_report_differs_by_each_of_its_fields_but_the_facts_that_change_by_themselves() {
        let said = Report::default();
        let local = LocalState { paused: true, ..LocalState::default() };
        for other in [
            Report { agent_version: "1.2.3".to_owned(), ..said.clone() },
            Report { findings: vec!["a finding".to_owned()], ..said.clone() },
            Report { progress: Progress::Waiting, ..said.clone() },
            Report { local, ..said.clone() },
            Report { facts: [("agent.stuck".to_owned(), "\"full\"".to_owned())].into(), ..said.clone() },
        ] {
            assert!(!is_same_but_facts(&said, &other), "{other:?}");
        }
        let facts = [("load".to_owned(), "0.5".to_owned())].into();
        assert!(is_same_but_facts(&said, &Report { facts, ..said.clone() }));
        let facts = [("agent.stuck".to_owned(), "\"the disk is full\"".to_owned())].into();
        assert!(!is_same_but_facts(&said, &Report { facts, ..said.clone() }), "y06: what keeps an agent is news");
    }
}
