//! What becomes of a host's words when its connection breaks, or when two of them are on their way at once.

use std::sync::Mutex;

use stemma_core::epoch::EpochLine;
use stemma_core::status::{Facts, Liveness};
use stemma_wire::clock::FixedClock;
use stemma_wire::message::desired::{Barrier, Known, Profile, ProfileTask, TaskSet};
use stemma_wire::message::observed::{LocalState, Outcome, Progress, Report, TaskResult};
use stemma_wire::message::signed::Grant;
use stemma_wire::message::{Epoch, Hash, Revision, decode_part, hash_content};
use stemma_wire::sign::Signer;
use uuid::Uuid;

use super::*;
use crate::agents::store_confirmed;
use crate::ca::Authority;
use crate::desired::{Batch, Change, EncodedProfile, Released, lock};
use crate::intake::{Confirmed, Seen, Stored, ToldParts};
use crate::store::BoxFuture;

const NOW_S: u64 = 1_900_000_000;
const NODE: Uuid = Uuid::from_u128(1);

/// A store whose writes take their time.
#[derive(Default)]
struct Slow {
    /// How long results take; one of no task is refused, and all others come too fast.
    results_take: Mutex<Duration>,
    /// The Observations that were to be stored, by their traits; one of no trait is refused.
    observed: Mutex<Vec<Vec<String>>>,
    reports: Mutex<Vec<Progress>>,
    said: Mutex<Vec<Option<String>>>,
    seen: Mutex<Vec<Seen>>,
    /// What hosts were told last, as it is stored, in the order in which it was.
    told: Mutex<Vec<HeldRevision>>,
    /// What hosts confirmed, as it was stored together.
    confirmed: Mutex<Vec<Vec<Confirmed>>>,
    /// What hosts are told, and what they confirm, cannot be stored.
    tells_nobody: Mutex<bool>,
    /// How far the last revision is below the greatest.
    below: Mutex<u64>,
}

impl Intake for Slow {
    fn name(&self, _: Uuid) -> Option<String> {
        None
    }

    fn stored(&self, _: Uuid) -> Stored {
        Stored { told: lock(&self.told).last().copied(), ..Stored::default() }
    }

    fn observed(&self, _: Uuid, _: PartDigest, said: Observation) -> BoxFuture<'_, Result<Taken, IntakeError>> {
        let taken =
            if said.traits.is_empty() { Err(IntakeError::Refused("no trait".to_owned())) } else { Ok(Taken::Whole) };
        lock(&self.observed).push(said.traits);
        Box::pin(async { taken })
    }

    fn results(&self, _: Uuid, results: Vec<TaskResult>) -> BoxFuture<'_, Result<u64, IntakeError>> {
        let take = *lock(&self.results_take);
        Box::pin(async move {
            if !take.is_zero() {
                tokio::time::sleep(take).await;
            }
            let is_refused = results.iter().any(|result| result.task.is_empty());
            Err(if is_refused { IntakeError::Refused("no task".to_owned()) } else { IntakeError::TooFast })
        })
    }

    fn report(&self, _: Uuid, report: Report) -> BoxFuture<'_, Result<(), IntakeError>> {
        lock(&self.reports).push(report.progress);
        Box::pin(async { Ok(()) })
    }

    fn said(&self, _: Uuid, said: Said) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            lock(&self.said).push(said.local.parked);
            Ok(())
        })
    }

    fn seen(&self, _: Uuid, seen: Seen) -> BoxFuture<'_, Result<(), IntakeError>> {
        Box::pin(async move {
            if let Seen::Lost { .. } = seen {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            lock(&self.seen).push(seen);
            Ok(())
        })
    }

    fn told(&self, _: Uuid, told: HeldRevision, _: ToldParts) -> BoxFuture<'_, Result<(), IntakeError>> {
        let is_stored = !*lock(&self.tells_nobody);
        if is_stored {
            lock(&self.told).push(told);
        }
        Box::pin(async move { is_stored.then_some(()).ok_or(IntakeError::Unavailable) })
    }

    fn confirmed(&self, confirmed: Vec<Confirmed>) -> BoxFuture<'_, Result<(), IntakeError>> {
        let is_stored = !*lock(&self.tells_nobody);
        if is_stored {
            lock(&self.confirmed).push(confirmed);
        }
        Box::pin(async move { is_stored.then_some(()).ok_or(IntakeError::Unavailable) })
    }

    fn head(&self) -> u64 {
        u64::MAX - *lock(&self.below)
    }

    fn blob(&self, _: Hash) -> std::io::Result<Option<std::fs::File>> {
        Ok(None)
    }
}

struct Site {
    check_ins: CheckIns,
    slow: Arc<Slow>,
    peer: Arc<Peer>,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "example.com".parse().unwrap(), NOW_S).unwrap();
        let issued = authority.issue_signer(Uuid::from_u128(1), NOW_S).unwrap();
        let chain = issued.chain.iter().map(|certificate| certificate.to_vec()).collect();
        let signer = Signer::new(issued.key.unwrap().secret_der(), chain).unwrap();
        let slow = Arc::new(Slow::default());
        let check_ins = CheckIns {
            desired: Arc::new(DesiredTable::new(EpochLine::first(Uuid::from_bytes([7; 16])), signer)),
            intake: Arc::clone(&slow) as _,
            clock: Arc::new(FixedClock(NOW_S)),
            rejected: Arc::default(),
        };
        let peer = Arc::new(Peer::new("127.0.0.1:1".parse().unwrap(), None));
        Self { check_ins, slow, peer }
    }

    fn slot(&self) -> Arc<Slot> {
        self.check_ins.desired.slot(NODE)
    }

    /// Says that the host is parked for this reason, or that it is not.
    async fn say(&self, parked: Option<&str>) {
        let local = LocalState { parked: parked.map(str::to_owned), ..LocalState::default() };
        self.check_in(CheckIn { local, ..quiet() }).await;
    }

    async fn check_in(&self, said: CheckIn) -> Answered {
        self.check_in_as(WireVersion::CURRENT, said).await
    }

    async fn check_in_as(&self, version: WireVersion, said: CheckIn) -> Answered {
        self.check_ins.answer(self.slot(), &self.peer, version, said).await.unwrap()
    }

    /// What an agent that speaks this version is told when it holds this.
    async fn news(&self, version: WireVersion, held: Option<Held>) -> News {
        match self.check_in_as(version, CheckIn { held, ..quiet() }).await.answer {
            CheckInAnswer::Current(news) => *news,
            CheckInAnswer::Superseded => panic!("superseded by nobody"),
        }
    }

    /// What the host holds once it has taken over an empty state of a group whose hosts are silent after this long.
    async fn takes_over(&self, silent_after: Duration) -> Held {
        let parts = (&Known::default(), &TaskSet::default());
        let state = Released::new(Revision(5), parts, (None, [].into()), silent_after);
        let changes = vec![(NODE, Change::Release(Box::new(state)))];
        self.check_ins.desired.publish(Batch { revision: Revision(5), changes });
        let told = self.news(WireVersion::CURRENT, None).await.desired.unwrap();
        let (known, task_set) = (told.known_digest, told.task_set_digest);
        Held { epoch: told.epoch, revision: told.revision, known, task_set }
    }

    /// Whether the host is there, after it was looked whether its silence is to be written.
    async fn look(&self) -> Liveness {
        let slot = self.slot();
        write_silence(&slot, self.slow.as_ref(), || NOW_S).await;
        slot.liveness(Instant::now())
    }

    /// The same, on a connection that breaks before it is stored.
    async fn say_and_go(&self, parked: Option<&str>) {
        let said = tokio::time::timeout(Duration::from_millis(100), self.say(parked)).await;
        assert!(said.is_err(), "it takes a second to store");
    }
}

/// A check-in that says nothing.
fn quiet() -> CheckIn {
    CheckIn {
        boot_id: [1; 16],
        held: None,
        results: vec![],
        observation_digest: PartDigest([0; 32]),
        observation: None,
        report: None,
        wants: vec![],
        gives_back: vec![],
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
async fn w10_01_a_host_that_is_to_wait_is_told_so_at_once() {
    let site = Site::new();
    site.say(None).await;
    site.slot().note_observed(PartDigest([0; 32]), true);
    let began = Instant::now();
    site.check_in(CheckIn { wait_ms: 45_000, ..quiet() }).await;
    assert_eq!(began.elapsed().as_secs(), 45, "with nothing to say it is held");
    let began = Instant::now();
    let answered = site.check_in(CheckIn { results: vec![result()], wait_ms: 45_000, ..quiet() }).await;
    let CheckInAnswer::Current(news) = answered.answer else { panic!("superseded by nobody") };
    assert_eq!((news.acknowledged, news.next_ms, began.elapsed()), (0, 10_000, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn s26_a_check_in_that_is_held_ends_at_once_with_its_node_and_with_the_controller() {
    for (ends, refused) in [
        ((|site| site.slot().end()) as fn(&Site), Some(ErrorType::AuthRevoked)),
        (|site| site.check_ins.desired.stop(), None),
    ] {
        let site = Site::new();
        site.say(None).await;
        site.slot().note_observed(PartDigest([0; 32]), true);
        let said = CheckIn { wait_ms: 45_000, ..quiet() };
        let held = site.check_ins.answer(site.slot(), &site.peer, WireVersion::CURRENT, said);
        let began = Instant::now();
        let ending = async {
            while !site.slot().is_parked() {
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
async fn what_was_said_on_a_host_is_stored_after_a_connection_that_broke() {
    let site = Site::new();
    let swap = Some("disk swap");
    site.say_and_go(swap).await;
    site.say(swap).await;
    assert_eq!(*lock(&site.slow.said), [swap.map(str::to_owned)], "once, and before the answer");
    site.say(swap).await;
    assert_eq!(lock(&site.slow.said).len(), 1, "it is no news any more");
    // What was said and taken back in one moment is as it was said last.
    site.say_and_go(None).await;
    site.say_and_go(swap).await;
    site.say(None).await;
    site.say(None).await;
    assert_eq!(lock(&site.slow.said).last(), Some(&None));
}

#[tokio::test(start_paused = true)]
async fn a_report_never_takes_the_place_of_one_that_a_later_check_in_brought() {
    let of = |progress| Some(Report { progress, ..Report::default() });
    for (later, kept) in [(of(Progress::Converged), [Progress::Converged]), (None, [Progress::Running])] {
        let site = Site::new();
        site.say(None).await;
        *lock(&site.slow.results_take) = Duration::from_secs(1);
        let first = site.check_in(CheckIn { results: vec![result()], report: of(Progress::Running), ..quiet() });
        let second = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            site.check_in(CheckIn { report: later, ..quiet() }).await
        };
        let (passed, _) = tokio::join!(first, second);
        assert!(matches!(passed.answer, CheckInAnswer::Superseded));
        assert_eq!(*lock(&site.slow.reports), kept);
    }
}

#[tokio::test(start_paused = true)]
async fn x01_what_was_refused_is_refused_again_after_the_host_said_what_is_stored() {
    let site = Site::new();
    let of = |traits: &[&str]| {
        let traits = traits.iter().map(|name| (*name).to_owned()).collect();
        Observation { traits, ..Observation::default() }
    };
    let observe = async |observation: Observation| {
        let version = WireVersion::CURRENT;
        let observation_digest = digest_part(version, &encode_part(version, &observation));
        site.check_in(CheckIn { observation_digest, observation: Some(observation), wait_ms: 30_000, ..quiet() }).await;
    };
    for said in [of(&["A"]), of(&[]), of(&["A"]), of(&[]), of(&[])] {
        observe(said).await;
    }
    let (kept, refused) = (vec!["A".to_owned()], vec![]);
    assert_eq!(
        *lock(&site.slow.observed),
        [kept, refused.clone(), refused],
        "each once, until the host says something else"
    );
}

#[tokio::test(start_paused = true)]
async fn x01_results_that_can_never_be_kept_are_acknowledged_so_that_they_are_not_sent_for_ever() {
    let site = Site::new();
    let refused = TaskResult { task: String::new(), sequence: 7, ..result() };
    let answered = site.check_in(CheckIn { results: vec![refused], wait_ms: 45_000, ..quiet() }).await;
    let CheckInAnswer::Current(news) = answered.answer else { panic!("superseded by nobody") };
    assert_eq!((news.acknowledged, news.next_ms), (7, 0));
}

#[tokio::test(start_paused = true)]
async fn y06_a_silence_says_whether_the_host_had_confirmed_what_it_was_told() {
    for confirms in [false, true] {
        let site = Site::new();
        let state = Released::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
        let changes = vec![(NODE, Change::Release(Box::new(state)))];
        site.check_ins.desired.publish(Batch { revision: Revision(5), changes });
        let told = site.news(WireVersion::CURRENT, None).await.desired.unwrap();
        if confirms {
            let (known, task_set) = (told.known_digest, told.task_set_digest);
            let held = Held { epoch: told.epoch, revision: told.revision, known, task_set };
            site.news(WireVersion::CURRENT, Some(held)).await;
        }
        tokio::time::advance(Duration::from_mins(2)).await;
        write_silence(&site.slot(), site.slow.as_ref(), || NOW_S).await;
        let seen = lock(&site.slow.seen).last().copied();
        assert!(matches!(seen, Some(Seen::Lost { untold, .. }) if untold != confirms), "{confirms}: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn y06_what_a_host_confirms_is_stored_once_and_later() {
    let site = Site::new();
    let state = Released::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    let changes = vec![(NODE, Change::Release(Box::new(state)))];
    site.check_ins.desired.publish(Batch { revision: Revision(5), changes });
    let keep = || store_confirmed(&site.check_ins.desired, site.slow.as_ref());
    let kept = || lock(&site.slow.confirmed).concat();
    let told = site.news(WireVersion::CURRENT, None).await.desired.unwrap();
    keep().await;
    assert_eq!(kept(), [], "it was told, and has not said that it holds it");
    let (known, task_set) = (told.known_digest, told.task_set_digest);
    let held = Held { epoch: told.epoch, revision: told.revision, known, task_set };
    site.news(WireVersion::CURRENT, Some(held)).await;
    assert_eq!(kept(), [], "a check-in writes nothing");
    *lock(&site.slow.tells_nobody) = true;
    keep().await;
    *lock(&site.slow.tells_nobody) = false;
    for _ in 0..2 {
        keep().await;
        let stored: Vec<_> = kept().into_iter().map(|one| (one.node, one.told.revision)).collect();
        assert_eq!(stored, [(NODE, 5)], "once, when the store takes it");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_silence_does_not_pass_its_beginning() {
    let site = Site::new();
    site.say(None).await;
    tokio::time::advance(Duration::from_mins(2)).await;
    let slot = site.slot();
    let lost = write_silence(&slot, site.slow.as_ref(), || NOW_S);
    let back = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        site.say(None).await;
    };
    tokio::join!(lost, back);
    let seen = lock(&site.slow.seen).clone();
    assert_eq!(seen, [Seen::Lost { since_s: NOW_S - 120 - 1, untold: false }, Seen::Connected { since_s: NOW_S }]);
}

/// A host that waits for longer than the silence of its group lasts was written as silent while it was there.
#[tokio::test(start_paused = true)]
async fn y06_a_check_in_that_is_held_is_no_silence_and_one_counts_from_its_end() {
    // It is answered after all of its time, or its connection breaks before.
    for (breaks_after_s, lasts_s) in [(60, 45), (20, 20)] {
        let site = Site::new();
        let held = Some(site.takes_over(Duration::from_secs(8)).await);
        site.slot().note_observed(PartDigest([0; 32]), true);
        let began = Instant::now();
        let said = site.check_in(CheckIn { held, wait_ms: 45_000, ..quiet() });
        let connection = tokio::time::timeout(Duration::from_secs(breaks_after_s), said);
        let later = async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            site.look().await
        };
        let (_, while_held) = tokio::join!(connection, later);
        assert_eq!((while_held, began.elapsed().as_secs()), (Liveness::Connected, lasts_s));
        assert_eq!(site.look().await, Liveness::Connected, "it ended right now");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(site.look().await, Liveness::Connected);
        assert!(lock(&site.slow.seen).is_empty(), "neither a silence nor the end of one");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(site.look().await, Liveness::Silent);
        assert_eq!(*lock(&site.slow.seen), [Seen::Lost { since_s: NOW_S - 8, untold: false }]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_silent_also_while_the_store_does_not_say_so() {
    let site = Site::new();
    site.say(None).await;
    let (desired, slot) = (&site.check_ins.desired, site.slot());
    desired.set_facts(NODE, Facts::default());
    assert_eq!(desired.liveness(NODE), Liveness::Connected);
    tokio::time::advance(Duration::from_mins(2)).await;
    // As a write leaves it that the store does not take.
    assert!(slot.begin_silence(true));
    desired.status().set_liveness(NODE, || slot.liveness(Instant::now()));
    assert_eq!(desired.liveness(NODE), Liveness::Silent);
    site.say(None).await;
    assert_eq!(desired.liveness(NODE), Liveness::Connected);
}

#[cfg(debug_assertions)]
#[tokio::test(start_paused = true)]
async fn an_agent_is_told_its_state_grants_and_profile_in_the_version_that_it_speaks() {
    let site = Site::new();
    let task = |id: &str| ProfileTask {
        id: id.to_owned(),
        definition: String::new(),
        references: vec![],
        after: vec![],
        barriers: vec![],
    };
    let profile = Profile { tasks: vec![task("a")] };
    let (known, task_set) =
        (Known { splay_s: 7, ..Known::default() }, TaskSet { group_revision: 3, ..TaskSet::default() });
    let encoded = Arc::new(EncodedProfile::new(&profile));
    let state = Released::new(Revision(5), (&known, &task_set), (Some(encoded), [].into()), MAX_WAIT);
    let table = &site.check_ins.desired;
    table.publish(Batch { revision: Revision(5), changes: vec![(NODE, Change::Release(Box::new(state)))] });
    let (_, decided) = table.digests(NODE).unwrap();
    let open = Barrier { task: "b".to_owned(), selector: "tags=x".to_owned() };
    table.open_barriers(vec![(NODE, decided, vec![open.clone()])], Revision(5));
    let mut held_in = Vec::new();
    for version in [WireVersion::CURRENT, WireVersion::THROW_AWAY] {
        let desired = site.news(version, None).await.desired.unwrap();
        let (sent_known, sent_set) = (desired.known.unwrap(), desired.task_set.unwrap());
        assert_eq!(
            digest_part(version, &sent_known),
            desired.known_digest,
            "{version}: what is signed is what was sent"
        );
        assert_eq!(digest_part(version, &sent_set), desired.task_set_digest, "{version}");
        assert_eq!(decode_part::<Known>(version, &sent_known).as_ref(), Ok(&known), "{version}");
        let named = decode_part::<TaskSet>(version, &sent_set).unwrap().profile.unwrap();
        let body = crate::agents::content::profile(&site.slot(), named).unwrap();
        assert_eq!(hash_content(&body), named, "{version}");
        assert_eq!(decode_part::<Profile>(version, &body).as_ref(), Ok(&profile), "{version}");
        assert!(table.is_task_set(NODE, desired.task_set_digest), "{version}: results name it so");
        held_in.push(Held {
            epoch: desired.epoch,
            revision: desired.revision,
            known: desired.known_digest,
            task_set: desired.task_set_digest,
        });
    }
    for (version, held, other) in
        [(WireVersion::CURRENT, held_in[0], held_in[1]), (WireVersion::THROW_AWAY, held_in[1], held_in[0])]
    {
        let news = site.news(version, Some(held)).await;
        assert_eq!(news.desired, None, "{version}: it is held");
        let expected = Grant::Barriers { task_set: held.task_set, open: vec![open.clone()] };
        assert_eq!(news.grants.iter().map(|signed| &signed.grant).collect::<Vec<_>>(), [&expected], "{version}");
        let again = site.news(version, Some(other)).await.desired.unwrap();
        assert!(again.known.is_some() && again.task_set.is_some(), "{version}: of another version nothing is held");
    }
}

#[tokio::test(start_paused = true)]
async fn x02_a_host_that_is_ahead_of_the_store_is_told_nothing_until_another_epoch_begins() {
    let site = Site::new();
    let table = &site.check_ins.desired;
    let state = Released::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    let task_set = state.parts(WireVersion::CURRENT).task_set.name;
    table.publish(Batch { revision: Revision(5), changes: vec![(NODE, Change::Release(Box::new(state)))] });
    let open = vec![Barrier { task: "b".to_owned(), selector: "tags=x".to_owned() }];
    table.open_barriers(vec![(NODE, task_set, open)], Revision(5));
    let placed = || Facts { is_placed: true, liveness: Liveness::Connected, ..Facts::default() };
    table.status().set_facts(NODE, placed);
    *lock(&site.slow.below) = u64::MAX - 9;
    let (line, unheld) = (table.epoch_line(), PartDigest([3; 32]));
    let held = |epoch: Uuid, revision| Held {
        epoch: Epoch(*epoch.as_bytes()),
        revision: Revision(revision),
        known: unheld,
        task_set: unheld,
    };
    let news = async |held| match site.check_in(CheckIn { held: Some(held), ..quiet() }).await.answer {
        CheckInAnswer::Current(news) => *news,
        CheckInAnswer::Superseded => panic!("superseded by nobody"),
    };
    let unknown = Uuid::from_u128(77);
    for ahead in [held(line.now, 10), held(unknown, 1)] {
        let news = news(ahead).await;
        assert_eq!((news.desired, news.grants), (None, vec![]), "{ahead:?}");
        assert_eq!(table.status().ahead(NODE), held_and_told(Some(&ahead), None));
        let status = table.status().get(NODE).unwrap().status;
        assert_eq!(status.reason, "its host holds a revision of another copy of the store, and is told nothing");
    }
    table.publish(Batch { revision: Revision(9), changes: Vec::new() });
    let follows = news(held(line.now, 9)).await;
    assert!(follows.desired.is_some_and(|desired| desired.epoch_change.is_none()));
    assert_eq!(table.status().ahead(NODE), None);

    let next = line.next(Uuid::from_u128(78), 5, "restored", [unknown]);
    // Between the beginning of an epoch and the signature in it.
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

/// A store that is put back as an older copy moves on with each write, whoever makes it.
#[tokio::test(start_paused = true)]
async fn x02_a_host_stays_ahead_when_the_store_passes_its_revision_without_having_told_it() {
    let site = Site::new();
    let table = &site.check_ins.desired;
    let state = Released::new(Revision(5), (&Known::default(), &TaskSet::default()), (None, [].into()), MAX_WAIT);
    table.publish(Batch { revision: Revision(5), changes: vec![(NODE, Change::Release(Box::new(state)))] });
    let epoch = table.epoch_line().now;
    lock(&site.slow.told).push(HeldRevision { epoch, revision: 12 });
    let unheld = PartDigest([3; 32]);
    let held = |revision| Held {
        epoch: Epoch(*epoch.as_bytes()),
        revision: Revision(revision),
        known: unheld,
        task_set: unheld,
    };
    for head in [16, 17, 80] {
        *lock(&site.slow.below) = u64::MAX - head;
        table.publish(Batch { revision: Revision(head), changes: Vec::new() });
        let news = site.news(WireVersion::CURRENT, Some(held(17))).await;
        assert_eq!(news.desired, None, "at revision {head}");
        assert!(table.status().ahead(NODE).is_some(), "at revision {head}");
    }
    assert_eq!(lock(&site.slow.told).len(), 1);
    let news = site.news(WireVersion::CURRENT, Some(held(12))).await;
    assert!(news.desired.is_some(), "this store told it that");
    assert_eq!(table.status().ahead(NODE), None);
}

#[tokio::test(start_paused = true)]
async fn x02_what_a_host_is_told_is_recorded_first_and_it_is_told_nothing_where_that_fails() {
    let site = Site::new();
    let table = &site.check_ins.desired;
    let publish = |revision, name: &str| {
        let known = Known { name: name.to_owned(), ..Known::default() };
        let state = Released::new(Revision(revision), (&known, &TaskSet::default()), (None, [].into()), MAX_WAIT);
        table.publish(Batch { revision: Revision(revision), changes: vec![(NODE, Change::Release(Box::new(state)))] });
    };
    let epoch = table.epoch_line().now;
    publish(5, "a");
    let told = site.news(WireVersion::CURRENT, None).await.desired.unwrap();
    assert_eq!(*lock(&site.slow.told), [HeldRevision { epoch, revision: 5 }]);
    assert_eq!(told.revision, Revision(5));

    *lock(&site.slow.tells_nobody) = true;
    publish(9, "b");
    let news = site.news(WireVersion::CURRENT, None).await;
    assert_eq!((news.desired, news.next_ms), (None, 10_000), "it comes again");

    *lock(&site.slow.tells_nobody) = false;
    assert!(site.news(WireVersion::CURRENT, None).await.desired.is_some());
    assert!(site.news(WireVersion::CURRENT, None).await.desired.is_some());
    assert_eq!(lock(&site.slow.told).len(), 2, "once for each revision");
}
