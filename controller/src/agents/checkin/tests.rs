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

/// An intake with slow writes.
#[derive(Default)]
struct SlowIntake {
    /// Duration of storing results. A result without a task is refused, and all others are sent too fast.
    results_delay: Mutex<Duration>,
    /// The traits of each Observation that was to be stored. An Observation without traits is refused.
    observations: Mutex<Vec<Vec<String>>>,
    reports: Mutex<Vec<Progress>>,
    local_states: Mutex<Vec<Option<String>>>,
    liveness: Mutex<Vec<LivenessChange>>,
    /// The sent revisions that were stored, in order.
    sent: Mutex<Vec<HeldRevision>>,
    /// The confirmations, one entry for each batch.
    confirmations: Mutex<Vec<Vec<ConfirmedState>>>,
    /// True if sent revisions and confirmations cannot be stored.
    refuses_sent: Mutex<bool>,
    /// The distance of the head revision from the greatest.
    head_lag: Mutex<u64>,
}

impl Intake for SlowIntake {
    fn node_name(&self, _: Uuid) -> Option<String> {
        None
    }

    fn stored_reports(&self, _: Uuid) -> StoredReports {
        StoredReports { sent_revision: lock(&self.sent).last().copied(), ..StoredReports::default() }
    }

    fn store_observation(&self, _: Uuid, _: PartDigest, said: Observation) -> BoxFuture<'_, Result<Acceptance, IntakeError>> {
        let result =
            if said.traits.is_empty() { Err(IntakeError::Refused("no trait".to_owned())) } else { Ok(Acceptance::Whole) };
        lock(&self.observations).push(said.traits);
        Box::pin(async { result })
    }

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

    fn store_state(&self, _: Uuid, said: AgentState) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            lock(&self.local_states).push(said.local_state.parked);
            Ok(())
        })
    }

    fn store_liveness(&self, _: Uuid, seen: LivenessChange) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            if let LivenessChange::Lost { .. } = seen {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            lock(&self.liveness).push(seen);
            Ok(())
        })
    }

    fn store_sent(&self, _: Uuid, told: HeldRevision, _: SentParts) -> BoxFuture<'_, Result<(), IntakeError>> {
        let is_stored = !*lock(&self.refuses_sent);
        if is_stored {
            lock(&self.sent).push(told);
        }
        Box::pin(async move { is_stored.then_some(()).ok_or(IntakeError::Unavailable) })
    }

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

struct CheckInFixture {
    check_ins: CheckInHandler,
    intake: Arc<SlowIntake>,
    peer: Arc<Peer>,
}

impl CheckInFixture {
    /// Creates the handler of check-ins with an intake that can be slow, and without any desired state.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "example.com".parse().unwrap(), NOW_S).unwrap();
        let issued = authority.issue_signer(Uuid::from_u128(1), NOW_S).unwrap();
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        let signer = Signer::new(issued.key.unwrap().secret_der(), chain).unwrap();
        let slow = Arc::new(SlowIntake::default());
        let check_ins = CheckInHandler {
            desired: Arc::new(DesiredTable::new(EpochHistory::new(Uuid::from_bytes([7; 16])), signer)),
            intake: Arc::clone(&slow) as _,
            clock: Arc::new(FixedClock(NOW_S)),
            rejected: Arc::default(),
        };
        let peer = Arc::new(Peer::new("127.0.0.1:1".parse().unwrap(), None));
        Self { check_ins, intake: slow, peer }
    }

    fn slot(&self) -> Arc<NodeSlot> {
        self.check_ins.desired.slot(NODE)
    }

    /// Checks in and reports that the host is parked for this reason, or that it is not parked.
    async fn report_parked(&self, parked: Option<&str>) {
        let local = LocalState { parked: parked.map(str::to_owned), ..LocalState::default() };
        self.check_in(CheckIn { local, ..empty_check_in() }).await;
    }

    async fn check_in(&self, check_in: CheckIn) -> CheckInReply {
        self.check_in_as(WireVersion::CURRENT, check_in).await
    }

    async fn check_in_as(&self, version: WireVersion, check_in: CheckIn) -> CheckInReply {
        self.check_ins.handle(self.slot(), &self.peer, version, check_in).await.unwrap()
    }

    /// Returns what an agent of this version that holds this state is sent.
    async fn update(&self, version: WireVersion, held: Option<HeldDesired>) -> CheckInUpdate {
        match self.check_in_as(version, CheckIn { held_desired: held, ..empty_check_in() }).await.response {
            CheckInResponse::Current(news) => *news,
            CheckInResponse::Superseded => panic!("superseded by nobody"),
        }
    }

    /// Returns what the host holds after it applied an empty state of a group with this silence timeout.
    async fn take_over(&self, silent_after: Duration) -> HeldDesired {
        let parts = (&Known::default(), &TaskSet::default());
        let state = DesiredState::new(Revision(5), parts, (None, [].into()), silent_after);
        let changes = vec![(NODE, DesiredChange::Release(Box::new(state)))];
        self.check_ins.desired.publish(PassResult { revision: Revision(5), changes });
        let desired = self.update(WireVersion::CURRENT, None).await.desired.unwrap();
        let (known, task_set) = (desired.known_digest, desired.task_set_digest);
        HeldDesired { epoch: desired.epoch, revision: desired.revision, known, task_set }
    }

    /// Returns the node's liveness, after a check for silence.
    async fn check_liveness(&self) -> Liveness {
        let slot = self.slot();
        store_liveness(&slot, self.intake.as_ref(), || NOW_S).await;
        slot.liveness(Instant::now())
    }

    /// Reports as `report_parked`, on a connection that breaks before the report is stored.
    async fn report_and_disconnect(&self, reason: Option<&str>) {
        let result = tokio::time::timeout(Duration::from_millis(100), self.report_parked(reason)).await;
        assert!(result.is_err(), "it takes a second to store");
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

fn result() -> TaskResult {
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

#[tokio::test(start_paused = true)]
async fn w10_01_check_in_returns_at_once_when_host_must_wait() {
    let site = CheckInFixture::new();
    site.report_parked(None).await;
    site.slot().note_observation(PartDigest([0; 32]), true);
    let began = Instant::now();
    site.check_in(CheckIn { wait_ms: 45_000, ..empty_check_in() }).await;
    assert_eq!(began.elapsed().as_secs(), 45, "with nothing to say it is held");
    let began = Instant::now();
    let answered = site.check_in(CheckIn { results: vec![result()], wait_ms: 45_000, ..empty_check_in() }).await;
    let CheckInResponse::Current(news) = answered.response else { panic!("superseded by nobody") };
    assert_eq!((news.acknowledged, news.next_check_in_ms, began.elapsed()), (0, 10_000, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn s26_waiting_check_in_ends_when_node_or_controller_ends() {
    for (ends, refused) in [
        ((|site| site.slot().mark_deleted()) as fn(&CheckInFixture), Some(ErrorType::AuthRevoked)),
        (|site| site.check_ins.desired.stop(), None),
    ] {
        let site = CheckInFixture::new();
        site.report_parked(None).await;
        site.slot().note_observation(PartDigest([0; 32]), true);
        let said = CheckIn { wait_ms: 45_000, ..empty_check_in() };
        let held = site.check_ins.handle(site.slot(), &site.peer, WireVersion::CURRENT, said);
        let began = Instant::now();
        let ending = async {
            while !site.slot().is_waiting() {
                tokio::task::yield_now().await;
            }
            ends(&site);
        };
        let (answered, ()) = tokio::join!(held, ending);
        assert_eq!(answered.err().map(|error| error.kind), refused);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn check_in_stores_local_state_when_connection_breaks() {
    let site = CheckInFixture::new();
    let swap = Some("disk swap");
    site.report_and_disconnect(swap).await;
    site.report_parked(swap).await;
    assert_eq!(*lock(&site.intake.local_states), [swap.map(str::to_owned)], "once, and before the answer");
    site.report_parked(swap).await;
    assert_eq!(lock(&site.intake.local_states).len(), 1, "it is not news any more");
    // Of a report and its withdrawal in one moment, the last one is stored.
    site.report_and_disconnect(None).await;
    site.report_and_disconnect(swap).await;
    site.report_parked(None).await;
    site.report_parked(None).await;
    assert_eq!(lock(&site.intake.local_states).last(), Some(&None));
}

#[tokio::test(start_paused = true)]
async fn report_is_ignored_when_later_check_in_brought_one() {
    let of = |progress| Some(Report { progress, ..Report::default() });
    for (later, kept) in [(of(Progress::Converged), [Progress::Converged]), (None, [Progress::Running])] {
        let site = CheckInFixture::new();
        site.report_parked(None).await;
        *lock(&site.intake.results_delay) = Duration::from_secs(1);
        let first = site.check_in(CheckIn { results: vec![result()], report: of(Progress::Running), ..empty_check_in() });
        let second = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            site.check_in(CheckIn { report: later, ..empty_check_in() }).await
        };
        let (passed, _) = tokio::join!(first, second);
        assert!(matches!(passed.response, CheckInResponse::Superseded));
        assert_eq!(*lock(&site.intake.reports), kept);
    }
}

#[tokio::test(start_paused = true)]
async fn x01_observation_is_refused_again_after_stored_one() {
    let site = CheckInFixture::new();
    let of = |traits: &[&str]| {
        let traits = traits.iter().map(|name| (*name).to_owned()).collect();
        Observation { traits, ..Observation::default() }
    };
    let observe = async |observation: Observation| {
        let version = WireVersion::CURRENT;
        let observation_digest = digest_part(version, &encode_part(version, &observation));
        site.check_in(CheckIn { observation_digest, observation: Some(observation), wait_ms: 30_000, ..empty_check_in() }).await;
    };
    for said in [of(&["A"]), of(&[]), of(&["A"]), of(&[]), of(&[])] {
        observe(said).await;
    }
    let (kept, refused) = (vec!["A".to_owned()], vec![]);
    assert_eq!(
        *lock(&site.intake.observations),
        [kept, refused.clone(), refused],
        "each once, until the host says something else"
    );
}

#[tokio::test(start_paused = true)]
async fn x01_check_in_acknowledges_results_when_never_storable() {
    let site = CheckInFixture::new();
    let refused = TaskResult { task: String::new(), sequence: 7, ..result() };
    let answered = site.check_in(CheckIn { results: vec![refused], wait_ms: 45_000, ..empty_check_in() }).await;
    let CheckInResponse::Current(news) = answered.response else { panic!("superseded by nobody") };
    assert_eq!((news.acknowledged, news.next_check_in_ms), (7, 0));
}

#[tokio::test(start_paused = true)]
async fn y06_silence_records_if_host_confirmed_last_state() {
    for confirms in [false, true] {
        let site = CheckInFixture::new();
        let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
        let changes = vec![(NODE, DesiredChange::Release(Box::new(state)))];
        site.check_ins.desired.publish(PassResult { revision: Revision(5), changes });
        let told = site.update(WireVersion::CURRENT, None).await.desired.unwrap();
        if confirms {
            let (known, task_set) = (told.known_digest, told.task_set_digest);
            let held = HeldDesired { epoch: told.epoch, revision: told.revision, known, task_set };
            site.update(WireVersion::CURRENT, Some(held)).await;
        }
        tokio::time::advance(Duration::from_mins(2)).await;
        store_liveness(&site.slot(), site.intake.as_ref(), || NOW_S).await;
        let seen = lock(&site.intake.liveness).last().copied();
        assert!(
            matches!(seen, Some(LivenessChange::Lost { is_unconfirmed, .. }) if is_unconfirmed != confirms),
            "{confirms}: {seen:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn y06_confirmation_is_stored_once_in_batch() {
    let site = CheckInFixture::new();
    let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    let changes = vec![(NODE, DesiredChange::Release(Box::new(state)))];
    site.check_ins.desired.publish(PassResult { revision: Revision(5), changes });
    let keep = || store_confirmations(&site.check_ins.desired, site.intake.as_ref());
    let kept = || lock(&site.intake.confirmations).concat();
    let told = site.update(WireVersion::CURRENT, None).await.desired.unwrap();
    keep().await;
    assert_eq!(kept(), [], "it was told, and has not said that it holds it");
    let (known, task_set) = (told.known_digest, told.task_set_digest);
    let held = HeldDesired { epoch: told.epoch, revision: told.revision, known, task_set };
    site.update(WireVersion::CURRENT, Some(held)).await;
    assert_eq!(kept(), [], "a check-in writes nothing");
    *lock(&site.intake.refuses_sent) = true;
    keep().await;
    *lock(&site.intake.refuses_sent) = false;
    for _ in 0..2 {
        keep().await;
        let stored: Vec<_> = kept().into_iter().map(|one| (one.node, one.sent_revision.revision)).collect();
        assert_eq!(stored, [(NODE, 5)], "once, when the store takes it");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_end_is_stored_after_silence_start() {
    let site = CheckInFixture::new();
    site.report_parked(None).await;
    tokio::time::advance(Duration::from_mins(2)).await;
    let slot = site.slot();
    let lost = store_liveness(&slot, site.intake.as_ref(), || NOW_S);
    let back = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        site.report_parked(None).await;
    };
    tokio::join!(lost, back);
    let seen = lock(&site.intake.liveness).clone();
    assert_eq!(
        seen,
        [LivenessChange::Lost { since_s: NOW_S - 120 - 1, is_unconfirmed: false }, LivenessChange::Connected { since_s: NOW_S }]
    );
}

/// A host that waited for longer than its group's silence timeout was recorded as silent although it was connected.
#[tokio::test(start_paused = true)]
async fn y06_silence_counts_from_end_of_waiting_check_in() {
    // The check-in is answered when its wait is over, or its connection breaks earlier.
    for (breaks_after_s, lasts_s) in [(60, 45), (20, 20)] {
        let site = CheckInFixture::new();
        let held = Some(site.take_over(Duration::from_secs(8)).await);
        site.slot().note_observation(PartDigest([0; 32]), true);
        let began = Instant::now();
        let said = site.check_in(CheckIn { held_desired: held, wait_ms: 45_000, ..empty_check_in() });
        let connection = tokio::time::timeout(Duration::from_secs(breaks_after_s), said);
        let later = async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            site.check_liveness().await
        };
        let (_, while_held) = tokio::join!(connection, later);
        assert_eq!((while_held, began.elapsed().as_secs()), (Liveness::Connected, lasts_s));
        assert_eq!(site.check_liveness().await, Liveness::Connected, "it ended right now");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(site.check_liveness().await, Liveness::Connected);
        assert!(lock(&site.intake.liveness).is_empty(), "neither a silence nor the end of one");
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
    // The state after a write that the store refused.
    assert!(slot.begin_silence_write(true));
    desired.status().set_liveness(NODE, || slot.liveness(Instant::now()));
    assert_eq!(desired.liveness(NODE), Liveness::Silent);
    site.report_parked(None).await;
    assert_eq!(desired.liveness(NODE), Liveness::Connected);
}

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
    let (_, decided) = table.digests(NODE).unwrap();
    let open = Barrier { task: "b".to_owned(), selector: "tags=x".to_owned() };
    table.open_barriers(vec![(NODE, decided, vec![open.clone()])], Revision(5));
    let mut held_in = Vec::new();
    for version in [WireVersion::CURRENT, WireVersion::NEXT] {
        let desired = site.update(version, None).await.desired.unwrap();
        let (sent_known, sent_set) = (desired.known.unwrap(), desired.task_set.unwrap());
        assert_eq!(digest_part(version, &sent_known), desired.known_digest, "{version}: what is signed is what was sent");
        assert_eq!(digest_part(version, &sent_set), desired.task_set_digest, "{version}");
        assert_eq!(decode_part::<Known>(version, &sent_known).as_ref(), Ok(&known), "{version}");
        let named = decode_part::<TaskSet>(version, &sent_set).unwrap().profile.unwrap();
        let body = crate::agents::content::profile(&site.slot(), named).unwrap();
        assert_eq!(hash_content(&body), named, "{version}");
        assert_eq!(decode_part::<Profile>(version, &body).as_ref(), Ok(&profile), "{version}");
        assert!(table.is_task_set(NODE, desired.task_set_digest), "{version}: results name it so");
        held_in.push(HeldDesired {
            epoch: desired.epoch,
            revision: desired.revision,
            known: desired.known_digest,
            task_set: desired.task_set_digest,
        });
    }
    for (version, held, other) in [(WireVersion::CURRENT, held_in[0], held_in[1]), (WireVersion::NEXT, held_in[1], held_in[0])] {
        let news = site.update(version, Some(held)).await;
        assert_eq!(news.desired, None, "{version}: it is held");
        let expected = Grant::Barriers { task_set: held.task_set, open: vec![open.clone()] };
        assert_eq!(news.grants.iter().map(|signed| &signed.grant).collect::<Vec<_>>(), [&expected], "{version}");
        let again = site.update(version, Some(other)).await.desired.unwrap();
        assert!(again.known.is_some() && again.task_set.is_some(), "{version}: of another version nothing is held");
    }
}

#[tokio::test(start_paused = true)]
async fn x02_check_in_withholds_state_when_host_is_ahead() {
    let site = CheckInFixture::new();
    let table = &site.check_ins.desired;
    let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    let task_set = state.parts(WireVersion::CURRENT).task_set.name;
    table.publish(PassResult { revision: Revision(5), changes: vec![(NODE, DesiredChange::Release(Box::new(state)))] });
    let open = vec![Barrier { task: "b".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(NODE, task_set, open)], Revision(5));
    let placed = || StateInputs { is_placed: true, liveness: Liveness::Connected, ..StateInputs::default() };
    table.status().set_inputs(NODE, placed);
    *lock(&site.intake.head_lag) = u64::MAX - 9;
    let (line, unheld) = (table.epoch_line(), PartDigest([3; 32]));
    let held = |epoch: Uuid, revision| HeldDesired {
        epoch: Epoch(*epoch.as_bytes()),
        revision: Revision(revision),
        known: unheld,
        task_set: unheld,
    };
    let news = async |held| match site.check_in(CheckIn { held_desired: Some(held), ..empty_check_in() }).await.response {
        CheckInResponse::Current(news) => *news,
        CheckInResponse::Superseded => panic!("superseded by nobody"),
    };
    let unknown = Uuid::from_u128(77);
    for ahead in [held(line.now, 10), held(unknown, 1)] {
        let news = news(ahead).await;
        assert_eq!((news.desired, news.grants), (None, vec![]), "{ahead:?}");
        assert_eq!(table.status().ahead(NODE), host_revisions(Some(&ahead), None));
        let status = table.status().get(NODE).unwrap().status;
        assert_eq!(status.reason, "its host has a revision of another copy of the store, so nothing is sent to it");
    }
    table.publish(PassResult { revision: Revision(9), changes: Vec::new() });
    let follows = news(held(line.now, 9)).await;
    assert!(follows.desired.is_some_and(|desired| desired.epoch_change.is_none()));
    assert_eq!(table.status().ahead(NODE), None);

    let next = line.with_next(Uuid::from_u128(78), 5, "restored", [unknown]);
    // The new epoch has begun, but no state is signed in it yet.
    table.begin_epoch(&next);
    let early = news(held(unknown, 1)).await;
    assert_eq!(early.desired, None, "what is signed in the epoch before leads no host of another store here");
    table.begin_epoch(&line);
    assert!(table.change_epoch(&next) && !table.change_epoch(&next));
    for ahead in [held(line.now, 10), held(unknown, 1)] {
        let news = news(ahead).await;
        let desired = news.desired.unwrap();
        let change = desired.epoch_change.unwrap();
        let of = |epoch: Uuid| Epoch(*epoch.as_bytes());
        assert_eq!((change.from, change.to, change.at), (ahead.epoch, of(next.now), Revision(5)));
        assert_eq!((desired.epoch, change.reason.as_str()), (of(next.now), "restored"));
        assert!(desired.known.is_some() && desired.task_set.is_some(), "what is held of another epoch is sent again");
        assert!(news.grants.iter().all(|grant| grant.epoch == of(next.now)) && news.grants.len() == 1);
        assert_eq!(table.status().ahead(NODE), None);
    }
}

/// The revision of a store that was restored from an older copy advances with each write, whoever makes it.
#[tokio::test(start_paused = true)]
async fn x02_host_stays_ahead_when_store_passes_unsent_revision() {
    let site = CheckInFixture::new();
    let table = &site.check_ins.desired;
    let state = DesiredState::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    table.publish(PassResult { revision: Revision(5), changes: vec![(NODE, DesiredChange::Release(Box::new(state)))] });
    let epoch = table.epoch_line().now;
    lock(&site.intake.sent).push(HeldRevision { epoch, revision: 12 });
    let unheld = PartDigest([3; 32]);
    let held =
        |revision| HeldDesired { epoch: Epoch(*epoch.as_bytes()), revision: Revision(revision), known: unheld, task_set: unheld };
    for head in [16, 17, 80] {
        *lock(&site.intake.head_lag) = u64::MAX - head;
        table.publish(PassResult { revision: Revision(head), changes: Vec::new() });
        let news = site.update(WireVersion::CURRENT, Some(held(17))).await;
        assert_eq!(news.desired, None, "at revision {head}");
        assert!(table.status().ahead(NODE).is_some(), "at revision {head}");
    }
    assert_eq!(lock(&site.intake.sent).len(), 1);
    let news = site.update(WireVersion::CURRENT, Some(held(12))).await;
    assert!(news.desired.is_some(), "this store told it that");
    assert_eq!(table.status().ahead(NODE), None);
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
    let told = site.update(WireVersion::CURRENT, None).await.desired.unwrap();
    assert_eq!(*lock(&site.intake.sent), [HeldRevision { epoch, revision: 5 }]);
    assert_eq!(told.revision, Revision(5));

    *lock(&site.intake.refuses_sent) = true;
    publish(9, "b");
    let news = site.update(WireVersion::CURRENT, None).await;
    assert_eq!((news.desired, news.next_check_in_ms), (None, 10_000), "it comes again");

    *lock(&site.intake.refuses_sent) = false;
    assert!(site.update(WireVersion::CURRENT, None).await.desired.is_some());
    assert!(site.update(WireVersion::CURRENT, None).await.desired.is_some());
    assert_eq!(lock(&site.intake.sent).len(), 2, "once for each revision");
}
