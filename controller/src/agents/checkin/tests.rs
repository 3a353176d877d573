//! Tests of check-ins whose connection breaks, and of two check-ins of a node at the same time.

use std::sync::Mutex;

use stemma_core::epoch::EpochHistory;
use stemma_core::status::{Liveness, StateInputs};
use stemma_wire::clock::FixedClock;
use stemma_wire::message::desired::{Barrier, Known, Profile, ProfileTask, TaskSet};
use stemma_wire::message::observed::{LocalState, Outcome, Progress, Report, TaskResult};
use stemma_wire::message::signed::Grant;
use stemma_wire::message::{Epoch, Hash, Revision, decode_part, hash_content};
use stemma_wire::sign::Signer;
use uuid::Uuid;

use super::*;
use crate::agents::store_confirmations;
use crate::ca::Authority;
use crate::desired::{DesiredChange, DesiredState, EncodedProfile, PassResult, lock};
use crate::intake::{ConfirmedState, LivenessChange, SentParts, StoredReports};
use crate::store::BoxFuture;

const NOW_S: u64 = 1_900_000_000;
const NODE: Uuid = Uuid::from_u128(1);

/// An intake (the storage for what hosts report) in memory. Some of its writes are slow, and some are refused.
#[derive(Default)]
struct SlowIntake {
    /// Duration of a write of results. Every such write fails: with `Refused` if a result has no task name, else with
    /// `TooFast`.
    results_delay: Mutex<Duration>,
    /// The traits of each observation that a check-in passed to the intake. The intake refuses an observation without
    /// traits.
    observations: Mutex<Vec<Vec<String>>>,
    /// The progress of each stored report, in order.
    reports: Mutex<Vec<Progress>>,
    /// The reason why the host is parked, of each stored local state. `None` if the host is not parked.
    local_states: Mutex<Vec<Option<String>>>,
    /// The stored beginnings and ends of silences, in order.
    liveness: Mutex<Vec<LivenessChange>>,
    /// The stored revisions of desired states that were sent to the host, in order.
    sent: Mutex<Vec<HeldRevision>>,
    /// The stored confirmations, one entry for each batch.
    confirmations: Mutex<Vec<Vec<ConfirmedState>>>,
    /// True if the intake refuses to store sent revisions and confirmations.
    refuses_sent: Mutex<bool>,
    /// The difference between `u64::MAX` and the store's head revision. If it is 0, no host can hold a later revision.
    head_lag: Mutex<u64>,
}

impl Intake for SlowIntake {
    fn node_name(&self, _: Uuid) -> Option<String> {
        None
    }

    fn stored_reports(&self, _: Uuid) -> StoredReports {
        StoredReports { sent_revision: lock(&self.sent).last().copied(), ..StoredReports::default() }
    }

    /// Records the traits of the observation. Refuses an observation without traits.
    fn store_observation(
        &self,
        _: Uuid,
        _: PartDigest,
        observation: Observation,
    ) -> BoxFuture<'_, Result<Acceptance, IntakeError>> {
        let result =
            if observation.traits.is_empty() { Err(IntakeError::Refused("no trait".to_owned())) } else { Ok(Acceptance::Whole) };
        lock(&self.observations).push(observation.traits);
        Box::pin(async { result })
    }

    /// Fails after `results_delay`: with `Refused` if a result has no task name, else with `TooFast`.
    fn store_results(&self, _: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>> {
        let delay = *lock(&self.results_delay);
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let is_refused = results.iter().any(|result| result.task.is_empty());
            Err(if is_refused { IntakeError::Refused("no task".to_owned()) } else { IntakeError::TooFast })
        })
    }

    fn store_report(&self, _: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>> {
        lock(&self.reports).push(report.progress);
        Box::pin(async { Ok(()) })
    }

    /// Records the reason why the host is parked, after one second.
    fn store_state(&self, _: Uuid, agent_state: AgentState) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            lock(&self.local_states).push(agent_state.local_state.parked);
            Ok(())
        })
    }

    /// Records the change. For the beginning of a silence, this takes one second.
    fn store_liveness(&self, _: Uuid, change: LivenessChange) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            if let LivenessChange::Lost { .. } = change {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            lock(&self.liveness).push(change);
            Ok(())
        })
    }

    /// Records the sent revision. Fails if `refuses_sent` is true.
    fn store_sent(&self, _: Uuid, sent_revision: HeldRevision, _: SentParts) -> BoxFuture<'_, Result<(), IntakeError>> {
        let is_stored = !*lock(&self.refuses_sent);
        if is_stored {
            lock(&self.sent).push(sent_revision);
        }
        Box::pin(async move { is_stored.then_some(()).ok_or(IntakeError::Unavailable) })
    }

    /// Records the batch of confirmations. Fails if `refuses_sent` is true.
    fn store_confirmations(&self, confirmed: Vec<ConfirmedState>) -> BoxFuture<'_, Result<(), IntakeError>> {
        let is_stored = !*lock(&self.refuses_sent);
        if is_stored {
            lock(&self.confirmations).push(confirmed);
        }
        Box::pin(async move { is_stored.then_some(()).ok_or(IntakeError::Unavailable) })
    }

    fn head_revision(&self) -> u64 {
        u64::MAX - *lock(&self.head_lag)
    }

    fn open_blob(&self, _: Hash) -> std::io::Result<Option<std::fs::File>> {
        Ok(None)
    }
}

/// A handler of check-ins, with its intake and the peer that checks in.
struct CheckInFixture {
    check_ins: CheckInHandler,
    intake: Arc<SlowIntake>,
    peer: Arc<Peer>,
}

impl CheckInFixture {
    /// Creates a handler with an empty intake and without any desired state.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "example.com".parse().unwrap(), NOW_S).unwrap();
        let issued = authority.issue_signer(Uuid::from_u128(1), NOW_S).unwrap();
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        let signer = Signer::new(issued.key.unwrap().secret_der(), chain).unwrap();
        let intake = Arc::new(SlowIntake::default());
        let check_ins = CheckInHandler {
            desired: Arc::new(DesiredTable::new(EpochHistory::new(Uuid::from_bytes([7; 16])), signer)),
            intake: Arc::clone(&intake) as _,
            clock: Arc::new(FixedClock(NOW_S)),
            rejected: Arc::default(),
        };
        let peer = Arc::new(Peer::new("127.0.0.1:1".parse().unwrap(), None));
        Self { check_ins, intake, peer }
    }

    /// Returns the slot of the node in the table of desired states.
    fn slot(&self) -> Arc<NodeSlot> {
        self.check_ins.desired.slot(NODE)
    }

    /// Checks in and reports that the host is parked for this reason, or that it is not parked.
    async fn report_parked(&self, reason: Option<&str>) {
        let local = LocalState { parked: reason.map(str::to_owned), ..LocalState::default() };
        self.check_in(CheckIn { local, ..empty_check_in() }).await;
    }

    /// Handles a check-in of the node in the current wire version, and returns the reply.
    async fn check_in(&self, check_in: CheckIn) -> CheckInReply {
        self.check_in_as(WireVersion::CURRENT, check_in).await
    }

    /// Handles a check-in of the node's agent, which uses this wire version, and returns the reply.
    async fn check_in_as(&self, version: WireVersion, check_in: CheckIn) -> CheckInReply {
        self.check_ins.handle(self.slot(), &self.peer, version, check_in).await.unwrap()
    }

    /// Checks in as an agent of this wire version that holds this desired state. Returns the update that the controller
    /// sends to the agent.
    async fn update(&self, version: WireVersion, held_state: Option<HeldDesired>) -> CheckInUpdate {
        match self.check_in_as(version, CheckIn { held_desired: held_state, ..empty_check_in() }).await.response {
            CheckInResponse::Current(update) => *update,
            CheckInResponse::Superseded => panic!("a later check-in superseded the only one"),
        }
    }

    /// Publishes an empty desired state with this silence timeout. Returns it as the host reports it after a check-in.
    async fn publish_empty_state(&self, silent_after: Duration) -> HeldDesired {
        let parts = (&Known::default(), &TaskSet::default());
        // `None` is the profile, and `[]` the blobs of the state. The revision is arbitrary.
        let state = DesiredState::new(Revision(5), parts, (None, [].into()), silent_after);
        let changes = vec![(NODE, DesiredChange::Release(Box::new(state)))];
        self.check_ins.desired.publish(PassResult { revision: Revision(5), changes });
        let desired = self.update(WireVersion::CURRENT, None).await.desired.unwrap();
        let (known, task_set) = (desired.known_digest, desired.task_set_digest);
        HeldDesired { epoch: desired.epoch, revision: desired.revision, known, task_set }
    }

    /// Stores the beginning or end of a silence of the node, if there is one. Returns the node's liveness.
    async fn check_liveness(&self) -> Liveness {
        let slot = self.slot();
        store_liveness(&slot, self.intake.as_ref(), || NOW_S).await;
        slot.liveness(Instant::now())
    }

    /// Reports like [`Self::report_parked`], on a connection that breaks before the intake has stored the report.
    async fn report_and_disconnect(&self, reason: Option<&str>) {
        let result = tokio::time::timeout(Duration::from_millis(100), self.report_parked(reason)).await;
        assert!(result.is_err(), "the intake needs one second to store the report");
    }
}

/// Returns a check-in that reports nothing.
fn empty_check_in() -> CheckIn {
    CheckIn {
        boot_id: [1; 16],
        held_desired: None,
        results: vec![],
        observation_digest: PartDigest([0; 32]),
        observation: None,
        report: None,
        requested_leases: vec![],
        returned_items: vec![],
        local: LocalState::default(),
        wait_ms: 0,
    }
}

/// Returns a result in which task t changed the host.
fn changed_result() -> TaskResult {
    TaskResult {
        sequence: 1,
        task_set: PartDigest([1; 32]),
        task: "t".to_owned(),
        outcome: Outcome::Changed,
        message: String::new(),
        output: String::new(),
        diff: String::new(),
        duration_ms: 1,
    }
}

/// Without news, the controller holds a check-in open. If the intake refuses the results because they arrive too fast,
/// the controller replies at once, and the host must wait for 10 seconds.
#[tokio::test(start_paused = true)]
async fn w10_01_check_in_returns_at_once_when_host_must_wait() {
    let site = CheckInFixture::new();
    site.report_parked(None).await;
    // The controller already has the observation of this check-in, so it does not request it.
    site.slot().note_observation(PartDigest([0; 32]), true);
    let start = Instant::now();
    site.check_in(CheckIn { wait_ms: 45_000, ..empty_check_in() }).await;
    assert_eq!(start.elapsed().as_secs(), 45, "without news, the controller holds the check-in for its whole wait");
    let start = Instant::now();
    let reply = site.check_in(CheckIn { results: vec![changed_result()], wait_ms: 45_000, ..empty_check_in() }).await;
    let CheckInResponse::Current(update) = reply.response else { panic!("a later check-in superseded the only one") };
    assert_eq!((update.acknowledged, update.next_check_in_ms, start.elapsed()), (0, 10_000, Duration::ZERO));
}

/// A waiting check-in ends at once when the node is deleted, with an error, or when the controller stops, without one.
#[tokio::test(start_paused = true)]
async fn s26_waiting_check_in_ends_when_node_or_controller_ends() {
    for (end, expected_error) in [
        ((|site| site.slot().mark_deleted()) as fn(&CheckInFixture), Some(ErrorType::AuthRevoked)),
        (|site| site.check_ins.desired.stop(), None),
    ] {
        let site = CheckInFixture::new();
        site.report_parked(None).await;
        // The controller already has the observation of this check-in, so it does not request it.
        site.slot().note_observation(PartDigest([0; 32]), true);
        let request = CheckIn { wait_ms: 45_000, ..empty_check_in() };
        let waiting = site.check_ins.handle(site.slot(), &site.peer, WireVersion::CURRENT, request);
        let start = Instant::now();
        let end_wait = async {
            while !site.slot().is_waiting() {
                tokio::task::yield_now().await;
            }
            end(&site);
        };
        let (reply, ()) = tokio::join!(waiting, end_wait);
        assert_eq!(reply.err().map(|error| error.kind), expected_error);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn check_in_stores_local_state_when_connection_breaks() {
    let site = CheckInFixture::new();
    let reason = Some("disk swap");
    site.report_and_disconnect(reason).await;
    site.report_parked(reason).await;
    assert_eq!(
        *lock(&site.intake.local_states),
        [reason.map(str::to_owned)],
        "the state is stored once, before the reply to the second check-in"
    );
    site.report_parked(reason).await;
    assert_eq!(lock(&site.intake.local_states).len(), 1, "an unchanged state is not stored again");
    // If a report and its withdrawal arrive at the same time, the later of the two is stored last.
    site.report_and_disconnect(None).await;
    site.report_and_disconnect(reason).await;
    site.report_parked(None).await;
    site.report_parked(None).await;
    assert_eq!(lock(&site.intake.local_states).last(), Some(&None));
}

/// A second check-in arrives while the intake still stores the results of the first one. So the second supersedes the
/// first, whose report is stored only if the second has no report.
#[tokio::test(start_paused = true)]
async fn report_is_ignored_when_later_check_in_has_report() {
    let report_with = |progress| Some(Report { progress, ..Report::default() });
    for (later_report, expected) in [(report_with(Progress::Converged), [Progress::Converged]), (None, [Progress::Running])] {
        let site = CheckInFixture::new();
        site.report_parked(None).await;
        *lock(&site.intake.results_delay) = Duration::from_secs(1);
        let first = site.check_in(CheckIn {
            results: vec![changed_result()],
            report: report_with(Progress::Running),
            ..empty_check_in()
        });
        let second = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            site.check_in(CheckIn { report: later_report, ..empty_check_in() }).await
        };
        let (first_reply, _) = tokio::join!(first, second);
        assert!(matches!(first_reply.response, CheckInResponse::Superseded));
        assert_eq!(*lock(&site.intake.reports), expected);
    }
}

/// In this test, the intake stores the observation with trait A, and refuses the one without traits. The intake gets
/// the refused one again only after the host has sent the other one. It does not get the stored one again.
#[tokio::test(start_paused = true)]
async fn x01_observation_is_refused_again_after_stored_observation() {
    let site = CheckInFixture::new();
    let with_traits = |traits: &[&str]| {
        let traits = traits.iter().map(|name| (*name).to_owned()).collect();
        Observation { traits, ..Observation::default() }
    };
    let observe = async |observation: Observation| {
        let version = WireVersion::CURRENT;
        let observation_digest = digest_part(version, &encode_part(version, &observation));
        site.check_in(CheckIn { observation_digest, observation: Some(observation), wait_ms: 30_000, ..empty_check_in() }).await;
    };
    for next_observation in [with_traits(&["A"]), with_traits(&[]), with_traits(&["A"]), with_traits(&[]), with_traits(&[])] {
        observe(next_observation).await;
    }
    let (stored_traits, refused_traits) = (vec!["A".to_owned()], vec![]);
    assert_eq!(
        *lock(&site.intake.observations),
        [stored_traits, refused_traits.clone(), refused_traits],
        "each observation reaches the store once, until the host sends another one"
    );
}

/// In this test, the result has no task name, by which [`SlowIntake`] knows that it must refuse the result. The
/// controller acknowledges a refused result nevertheless, because the host would otherwise send it again forever.
#[tokio::test(start_paused = true)]
async fn x01_check_in_acknowledges_results_refused_by_intake() {
    let site = CheckInFixture::new();
    let invalid_result = TaskResult { task: String::new(), sequence: 7, ..changed_result() };
    let reply = site.check_in(CheckIn { results: vec![invalid_result], wait_ms: 45_000, ..empty_check_in() }).await;
    let CheckInResponse::Current(update) = reply.response else { panic!("a later check-in superseded the only one") };
    assert_eq!((update.acknowledged, update.next_check_in_ms), (7, 0));
}

/// A host receives a state, confirms it or not, and is then silent for two minutes.
#[tokio::test(start_paused = true)]
async fn y06_silence_records_if_host_confirmed_last_state() {
    for has_confirmed in [false, true] {
        let site = CheckInFixture::new();
        let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
        let changes = vec![(NODE, DesiredChange::Release(Box::new(state)))];
        site.check_ins.desired.publish(PassResult { revision: Revision(5), changes });
        let desired = site.update(WireVersion::CURRENT, None).await.desired.unwrap();
        if has_confirmed {
            let (known, task_set) = (desired.known_digest, desired.task_set_digest);
            let held_state = HeldDesired { epoch: desired.epoch, revision: desired.revision, known, task_set };
            site.update(WireVersion::CURRENT, Some(held_state)).await;
        }
        tokio::time::advance(Duration::from_mins(2)).await;
        store_liveness(&site.slot(), site.intake.as_ref(), || NOW_S).await;
        let last_change = lock(&site.intake.liveness).last().copied();
        assert!(
            matches!(last_change, Some(LivenessChange::Lost { is_unconfirmed, .. }) if is_unconfirmed != has_confirmed),
            "{has_confirmed}: {last_change:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn y06_confirmation_is_stored_once_in_batch() {
    let site = CheckInFixture::new();
    let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    let changes = vec![(NODE, DesiredChange::Release(Box::new(state)))];
    site.check_ins.desired.publish(PassResult { revision: Revision(5), changes });
    let store_batch = || store_confirmations(&site.check_ins.desired, site.intake.as_ref());
    let confirmed_states = || lock(&site.intake.confirmations).concat();
    let desired = site.update(WireVersion::CURRENT, None).await.desired.unwrap();
    store_batch().await;
    assert_eq!(confirmed_states(), [], "the state was sent, and the host has not confirmed it");
    let (known, task_set) = (desired.known_digest, desired.task_set_digest);
    let held_state = HeldDesired { epoch: desired.epoch, revision: desired.revision, known, task_set };
    site.update(WireVersion::CURRENT, Some(held_state)).await;
    assert_eq!(confirmed_states(), [], "a check-in itself stores no confirmation");
    *lock(&site.intake.refuses_sent) = true;
    store_batch().await;
    *lock(&site.intake.refuses_sent) = false;
    for _ in 0..2 {
        store_batch().await;
        let stored: Vec<_> =
            confirmed_states().into_iter().map(|confirmed| (confirmed.node, confirmed.sent_revision.revision)).collect();
        assert_eq!(stored, [(NODE, 5)], "the confirmation is stored once, as soon as the store accepts it");
    }
}

/// The host checks in while the intake still stores the beginning of its silence. The end of the silence must be stored
/// after the beginning.
#[tokio::test(start_paused = true)]
async fn silence_end_is_stored_after_silence_start() {
    let site = CheckInFixture::new();
    site.report_parked(None).await;
    tokio::time::advance(Duration::from_mins(2)).await;
    let slot = site.slot();
    let store_silence = store_liveness(&slot, site.intake.as_ref(), || NOW_S);
    let next_check_in = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        site.report_parked(None).await;
    };
    tokio::join!(store_silence, next_check_in);
    let changes = lock(&site.intake.liveness).clone();
    // The silence began with the first check-in: 120 seconds ago, and one second for the write of its state.
    assert_eq!(
        changes,
        [LivenessChange::Lost { since_s: NOW_S - 120 - 1, is_unconfirmed: false }, LivenessChange::Connected { since_s: NOW_S }]
    );
}

/// Regression test: a host whose check-in waited for longer than the silence timeout of its group was recorded as
/// silent, although it was connected.
#[tokio::test(start_paused = true)]
async fn y06_silence_counts_from_end_of_waiting_check_in() {
    // First the controller replies when the wait of 45 seconds is over. Then the connection breaks after 20 seconds.
    for (breaks_after_s, expected_s) in [(60, 45), (20, 20)] {
        let site = CheckInFixture::new();
        let held_state = Some(site.publish_empty_state(Duration::from_secs(8)).await);
        // The controller already has the observation of this check-in, so it does not request it.
        site.slot().note_observation(PartDigest([0; 32]), true);
        let start = Instant::now();
        let check_in = site.check_in(CheckIn { held_desired: held_state, wait_ms: 45_000, ..empty_check_in() });
        let broken_check_in = tokio::time::timeout(Duration::from_secs(breaks_after_s), check_in);
        let liveness_after_15_s = async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            site.check_liveness().await
        };
        let (_, liveness_during_wait) = tokio::join!(broken_check_in, liveness_after_15_s);
        assert_eq!((liveness_during_wait, start.elapsed().as_secs()), (Liveness::Connected, expected_s));
        assert_eq!(site.check_liveness().await, Liveness::Connected, "the check-in has just ended");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(site.check_liveness().await, Liveness::Connected);
        assert!(lock(&site.intake.liveness).is_empty(), "no silence began or ended");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(site.check_liveness().await, Liveness::Silent);
        assert_eq!(*lock(&site.intake.liveness), [LivenessChange::Lost { since_s: NOW_S - 8, is_unconfirmed: false }]);
    }
}

#[tokio::test(start_paused = true)]
async fn liveness_is_silent_when_store_refuses_record() {
    let site = CheckInFixture::new();
    site.report_parked(None).await;
    let (desired, slot) = (&site.check_ins.desired, site.slot());
    desired.set_state_inputs(NODE, StateInputs::default());
    assert_eq!(desired.liveness(NODE), Liveness::Connected);
    tokio::time::advance(Duration::from_mins(2)).await;
    // The next call leaves the slot in the state after a write of the silence that the store refused. `true` means that
    // the host is silent.
    assert!(slot.begin_silence_write(true));
    desired.status().set_liveness(NODE, || slot.liveness(Instant::now()));
    assert_eq!(desired.liveness(NODE), Liveness::Silent);
    site.report_parked(None).await;
    assert_eq!(desired.liveness(NODE), Liveness::Connected);
}

/// Each wire version encodes the parts in its own way. So a host that holds the state in another version gets both
/// parts again.
#[cfg(debug_assertions)]
#[tokio::test(start_paused = true)]
async fn check_in_encodes_state_grants_and_profile_in_agent_version() {
    let site = CheckInFixture::new();
    let task = |id: &str| ProfileTask {
        id: id.to_owned(),
        definition: String::new(),
        references: vec![],
        after: vec![],
        barriers: vec![],
    };
    let profile = Profile { tasks: vec![task("a")] };
    let (known, task_set) = (Known { splay_s: 7, ..Known::default() }, TaskSet { group_revision: 3, ..TaskSet::default() });
    let encoded = Arc::new(EncodedProfile::new(&profile));
    let state = DesiredState::new(Revision(5), (&known, &task_set), (Some(encoded), [].into()), MAX_WAIT);
    let table = &site.check_ins.desired;
    table.publish(PassResult { revision: Revision(5), changes: vec![(NODE, DesiredChange::Release(Box::new(state)))] });
    let (_, digest) = table.digests(NODE).unwrap();
    let barrier = Barrier { task: "b".to_owned(), selector: "tags=x".to_owned() };
    table.open_barriers(vec![(NODE, digest, vec![barrier.clone()])], Revision(5));
    let mut held_by_version = Vec::new();
    for version in [WireVersion::CURRENT, WireVersion::NEXT] {
        let desired = site.update(version, None).await.desired.unwrap();
        let (sent_known, sent_task_set) = (desired.known.unwrap(), desired.task_set.unwrap());
        assert_eq!(
            digest_part(version, &sent_known),
            desired.known_digest,
            "{version}: the signed digest is that of the sent part"
        );
        assert_eq!(digest_part(version, &sent_task_set), desired.task_set_digest, "{version}");
        assert_eq!(decode_part::<Known>(version, &sent_known).as_ref(), Ok(&known), "{version}");
        let profile_hash = decode_part::<TaskSet>(version, &sent_task_set).unwrap().profile.unwrap();
        let body = crate::agents::content::profile(&site.slot(), profile_hash).unwrap();
        assert_eq!(hash_content(&body), profile_hash, "{version}");
        assert_eq!(decode_part::<Profile>(version, &body).as_ref(), Ok(&profile), "{version}");
        assert!(table.is_task_set(NODE, desired.task_set_digest), "{version}: results refer to the task set by this digest");
        held_by_version.push(HeldDesired {
            epoch: desired.epoch,
            revision: desired.revision,
            known: desired.known_digest,
            task_set: desired.task_set_digest,
        });
    }
    for (version, held_state, other_state) in [
        (WireVersion::CURRENT, held_by_version[0], held_by_version[1]),
        (WireVersion::NEXT, held_by_version[1], held_by_version[0]),
    ] {
        let update = site.update(version, Some(held_state)).await;
        assert_eq!(update.desired, None, "{version}: the host holds the state already");
        let expected = Grant::Barriers { task_set: held_state.task_set, open: vec![barrier.clone()] };
        assert_eq!(update.grants.iter().map(|signed| &signed.grant).collect::<Vec<_>>(), [&expected], "{version}");
        let sent_again = site.update(version, Some(other_state)).await.desired.unwrap();
        assert!(
            sent_again.known.is_some() && sent_again.task_set.is_some(),
            "{version}: a state in another wire version is sent again"
        );
    }
}

/// A host is ahead of the store if it holds a later revision than the store has, or a revision of an unknown epoch. The
/// controller answers such a host without a desired state and without grants until an admin begins a new epoch.
#[tokio::test(start_paused = true)]
async fn x02_check_in_withholds_state_when_host_is_ahead() {
    let site = CheckInFixture::new();
    let table = &site.check_ins.desired;
    let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    let task_set = state.parts(WireVersion::CURRENT).task_set.name;
    table.publish(PassResult { revision: Revision(5), changes: vec![(NODE, DesiredChange::Release(Box::new(state)))] });
    let barriers = vec![Barrier { task: "b".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(NODE, task_set, barriers)], Revision(5));
    let inputs = || StateInputs { is_placed: true, liveness: Liveness::Connected, ..StateInputs::default() };
    table.status().set_inputs(NODE, inputs);
    *lock(&site.intake.head_lag) = u64::MAX - 9;
    let (epochs, unknown_digest) = (table.epoch_line(), PartDigest([3; 32]));
    let held_state = |epoch: Uuid, revision| HeldDesired {
        epoch: Epoch(*epoch.as_bytes()),
        revision: Revision(revision),
        known: unknown_digest,
        task_set: unknown_digest,
    };
    let update =
        async |held_state| match site.check_in(CheckIn { held_desired: Some(held_state), ..empty_check_in() }).await.response {
            CheckInResponse::Current(update) => *update,
            CheckInResponse::Superseded => panic!("a later check-in superseded the only one"),
        };
    let unknown_epoch = Uuid::from_u128(77);
    for host_state in [held_state(epochs.now, 10), held_state(unknown_epoch, 1)] {
        let update = update(host_state).await;
        assert_eq!((update.desired, update.grants), (None, vec![]), "{host_state:?}");
        assert_eq!(table.status().host_ahead(NODE), host_revisions(Some(&host_state), None));
        let status = table.status().get(NODE).unwrap().status;
        assert_eq!(status.reason, "its host has a revision of another copy of the store, so nothing is sent to it");
    }
    table.publish(PassResult { revision: Revision(9), changes: Vec::new() });
    let next_update = update(held_state(epochs.now, 9)).await;
    assert!(next_update.desired.is_some_and(|desired| desired.epoch_change.is_none()));
    assert_eq!(table.status().host_ahead(NODE), None);

    let next_epochs = epochs.with_next(Uuid::from_u128(78), 5, "restored", [unknown_epoch]);
    // The new epoch has begun, but no state is signed in it yet.
    table.begin_epoch(&next_epochs);
    let early_update = update(held_state(unknown_epoch, 1)).await;
    assert_eq!(early_update.desired, None, "a state that is signed in the previous epoch is not sent to a host of another store");
    table.begin_epoch(&epochs);
    assert!(table.change_epoch(&next_epochs) && !table.change_epoch(&next_epochs));
    for host_state in [held_state(epochs.now, 10), held_state(unknown_epoch, 1)] {
        let update = update(host_state).await;
        let desired = update.desired.unwrap();
        let change = desired.epoch_change.unwrap();
        let wire_epoch = |epoch: Uuid| Epoch(*epoch.as_bytes());
        assert_eq!((change.from, change.to, change.at), (host_state.epoch, wire_epoch(next_epochs.now), Revision(5)));
        assert_eq!((desired.epoch, change.reason.as_str()), (wire_epoch(next_epochs.now), "restored"));
        assert!(desired.known.is_some() && desired.task_set.is_some(), "both parts are sent again in the new epoch");
        assert!(update.grants.iter().all(|grant| grant.epoch == wire_epoch(next_epochs.now)) && update.grants.len() == 1);
        assert_eq!(table.status().host_ahead(NODE), None);
    }
}

/// After a restore from an older copy, each write advances the store's revision. So the revision can pass one that the
/// host received before the restore, and that this store never sent. In this test, the store sent revision 12, and the
/// host holds revision 17.
#[tokio::test(start_paused = true)]
async fn x02_host_stays_ahead_when_store_passes_unsent_revision() {
    let site = CheckInFixture::new();
    let table = &site.check_ins.desired;
    let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    table.publish(PassResult { revision: Revision(5), changes: vec![(NODE, DesiredChange::Release(Box::new(state)))] });
    let epoch = table.epoch_line().now;
    lock(&site.intake.sent).push(HeldRevision { epoch, revision: 12 });
    let unknown_digest = PartDigest([3; 32]);
    let held_state = |revision| HeldDesired {
        epoch: Epoch(*epoch.as_bytes()),
        revision: Revision(revision),
        known: unknown_digest,
        task_set: unknown_digest,
    };
    for head in [16, 17, 80] {
        *lock(&site.intake.head_lag) = u64::MAX - head;
        table.publish(PassResult { revision: Revision(head), changes: Vec::new() });
        let update = site.update(WireVersion::CURRENT, Some(held_state(17))).await;
        assert_eq!(update.desired, None, "at revision {head}");
        assert!(table.status().host_ahead(NODE).is_some(), "at revision {head}");
    }
    assert_eq!(lock(&site.intake.sent).len(), 1);
    let update = site.update(WireVersion::CURRENT, Some(held_state(12))).await;
    assert!(update.desired.is_some(), "this store sent that revision");
    assert_eq!(table.status().host_ahead(NODE), None);
}

#[tokio::test(start_paused = true)]
async fn x02_check_in_records_sent_state_before_sending() {
    let site = CheckInFixture::new();
    let table = &site.check_ins.desired;
    let publish = |revision, name: &str| {
        let known = Known { name: name.to_owned(), ..Known::default() };
        let state = DesiredState::new(Revision(revision), (&known, &TaskSet::default()), (None, [].into()), MAX_WAIT);
        table
            .publish(PassResult { revision: Revision(revision), changes: vec![(NODE, DesiredChange::Release(Box::new(state)))] });
    };
    let epoch = table.epoch_line().now;
    publish(5, "a");
    let desired = site.update(WireVersion::CURRENT, None).await.desired.unwrap();
    assert_eq!(*lock(&site.intake.sent), [HeldRevision { epoch, revision: 5 }]);
    assert_eq!(desired.revision, Revision(5));

    *lock(&site.intake.refuses_sent) = true;
    publish(9, "b");
    let update = site.update(WireVersion::CURRENT, None).await;
    assert_eq!((update.desired, update.next_check_in_ms), (None, 10_000), "the host checks in again later");

    *lock(&site.intake.refuses_sent) = false;
    assert!(site.update(WireVersion::CURRENT, None).await.desired.is_some());
    assert!(site.update(WireVersion::CURRENT, None).await.desired.is_some());
    assert_eq!(lock(&site.intake.sent).len(), 2, "one record for each revision");
}
