//! The loop, where a controller is slow, refuses, or serves another host with the same identity.

use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P256_SHA256};
use stemma_wire::clock::FixedClock;
use stemma_wire::message::observed::LocalState;
use stemma_wire::message::signed::{Proof, Signature, SignedDesired};
use stemma_wire::message::{Epoch, Revision, encode_part};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::*;
use crate::apply::testing::{Controller, NODE, credentials, node_uri};
use crate::channel::{ApplyEnd, pair, pair_up_to};
use crate::host::memory::MemoryHost;
use crate::host::real::RealHost;
use crate::sync::Connection;

const NOW: u64 = 1_800_000_000;

/// A network half that has done nothing yet, with a good certificate of the controller's.
fn beginning(controller: &Controller) -> (tempfile::TempDir, Sync, Credentials, ApplyEnd) {
    beginning_with(controller, pair())
}

/// The same, over these ends of a channel.
fn beginning_with(
    controller: &Controller,
    (end, apply): (SyncEnd, ApplyEnd),
) -> (tempfile::TempDir, Sync, Credentials, ApplyEnd) {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |_| ());
    let controllers = vec!["https://127.0.0.1:1".to_owned()];
    let present = Credentials { controllers, key: key.serialize_der(), chain, validity: (1, 2) };
    present.store(&*host).unwrap();
    let sync = Sync::new(host, controller.identity(), end, Arc::new(FixedClock(NOW))).unwrap();
    (root, sync, present, apply)
}

#[tokio::test(flavor = "current_thread")]
async fn w10_04_a_certificate_that_is_none_of_this_nodes_is_not_kept_and_the_present_one_stays() {
    let (ours, theirs) = (Controller::new(), Controller::new());
    let (_root, mut sync, present, _apply) = beginning(&ours);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let other_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let junk = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
    let day = |year| rcgen::date_time_ymd(year, 1, 1);
    for (chain, said) in [
        (vec![junk], "that the controller gave is refused"),
        (vec![], "cannot be read"),
        (vec![b"junk".to_vec()], "cannot be read"),
        (theirs.node_chain(&key, |_| ()), "that the controller gave is refused"),
        (ours.node_chain(&key, |_| ())[..1].to_vec(), "that the controller gave is refused"),
        (
            ours.node_chain(&key, |leaf| leaf.subject_alt_names = vec![node_uri("prod", Uuid::from_u128(5))]),
            "not this node's",
        ),
        (ours.node_chain(&key, |leaf| leaf.subject_alt_names = vec![node_uri("test", NODE)]), "of another fleet"),
        (ours.node_chain(&other_key, |_| ()), "for another key"),
        (ours.node_chain(&key, |leaf| leaf.not_before = day(2030)), "not valid before"),
        (ours.node_chain(&key, |leaf| leaf.not_after = day(2021)), "expired"),
        (
            ours.node_chain(&key, |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            "for this use",
        ),
    ] {
        let controllers = present.controllers.clone();
        sync.renewed(Ok(Credentials { controllers, key: key.serialize_der(), chain, validity: (1, 2) }));
        assert!(Credentials::load(&*sync.host).unwrap() == present, "{said}: on disk");
        assert!(sync.credentials == present, "{said}: in use");
        let findings = crate::sync::findings(&*sync.host);
        let told = findings.iter().find(|finding| finding.contains("the certificate was not renewed"));
        assert!(told.is_some_and(|told| told.contains(said)), "{said}: {findings:?}");
    }
    let chain = ours.node_chain(&key, |_| ());
    let next =
        Credentials { controllers: present.controllers.clone(), key: key.serialize_der(), chain, validity: (1, 2) };
    sync.renewed(Ok(next.clone()));
    assert!(Credentials::load(&*sync.host).unwrap() == next && sync.credentials == next);
    assert!(!crate::sync::findings(&*sync.host).iter().any(|finding| finding.contains("not renewed")));
}

/// A clock that goes with the test's time, and can be set ahead.
#[derive(Debug)]
struct Settable {
    begun: Instant,
    ahead_s: AtomicU64,
}

impl Clock for Settable {
    fn unix_seconds(&self) -> u64 {
        NOW + self.begun.elapsed().as_secs() + self.ahead_s.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn f24_a_host_whose_renewals_are_in_vain_leaves_most_of_its_certificates_unasked() {
    let controller = Controller::new();
    let (_root, mut sync, present, _apply) = beginning(&controller);
    let clock = Arc::new(Settable { begun: Instant::now(), ahead_s: AtomicU64::new(0) });
    sync.clock = clock.clone();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |leaf| leaf.not_before = rcgen::date_time_ymd(2030, 1, 1));
    let too_early = Credentials { key: key.serialize_der(), chain, ..present };
    // As long as a certificate can be shown: 24 hours and its grace of 30 days.
    let (begun, mut asked) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_hours(31 * 24) {
        sync.renew();
        assert!(sync.renewing.take().is_some(), "it is asked for when it is due");
        asked += 1;
        sync.renewed(Ok(too_early.clone()));
        // The controller says at each check-in that the present one has expired.
        let client = sync.client();
        sync.answered(client, Err(ExchangeError::Expired)).await.unwrap();
        assert!(sync.renewing.is_none(), "not a minute later");
        sleep_until(sync.renew_at).await;
    }
    assert!((100..200).contains(&asked), "{asked} of the 256 certificates of a node");
    sync.renew();
    sync.renewing = None;
    sync.renewed(Ok(too_early));
    clock.ahead_s.store(3 * 3600, Ordering::Relaxed);
    let client = sync.client();
    sync.answered(client, Err(ExchangeError::Expired)).await.unwrap();
    assert!(sync.renewing.is_some(), "at once when the clock was set");
}

#[test]
fn w10_04_a_fleets_name_that_is_none_is_not_joined() {
    let ours = Controller::new();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = ours.node_chain(&key, |_| ());
    let given = Credentials { controllers: vec![], key: key.serialize_der(), chain, validity: (1, 2) };
    for (fleet, is_good) in [("prod", true), ("../../x\n", false), ("", false), ("Prod", false), ("test", false)] {
        let identity = Identity { fleet: fleet.into(), ..ours.identity() };
        assert_eq!(given.check_given(&identity, NOW).is_ok(), is_good, "{fleet:?}");
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w10_10_no_answer_silences_a_host_for_longer_than_a_minute() {
    for (next_ms, seconds) in [(u32::MAX, 60), (3_600_000, 60), (60_000, 60), (500, 0), (0, 0)] {
        let (_root, mut sync, _, _apply) = beginning(&Controller::new());
        let news = News { acknowledged: 0, observation: None, desired: None, grants: vec![], next_ms };
        let client = sync.client();
        sync.answered(client, Ok(CheckInAnswer::Current(Box::new(news)))).await.unwrap();
        let next = sync.speak_at.unwrap() - Instant::now();
        assert_eq!(next.as_secs(), seconds, "{next_ms}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn apply_is_heard_while_a_controller_lets_a_renewal_wait() {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    // It takes connections and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    credentials(format!("https://{}", silent.local_addr().unwrap())).store(&*host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    let talking = async {
        apply.send(&FromApply::Hello { seal_key: [1; 32], held: None }).await.unwrap();
        // It is asked for: there is a key, and a connection for each thing that the controller is asked.
        while super::super::state::pending_key(&*host).unwrap().is_none() {
            sleep(Duration::from_millis(5)).await;
        }
        let mut asked = vec![silent.accept().await.unwrap().0];
        // More than the channel holds.
        for _ in 0..100 {
            apply.send(&FromApply::Local(LocalState::default())).await.unwrap();
        }
        while let Ok(accepted) = timeout(Duration::from_millis(100), silent.accept()).await {
            asked.push(accepted.unwrap().0);
        }
        assert!(asked.iter().all(is_open), "apply was heard only when the controller was given up");
    };
    tokio::select! {
        ended = run(host.clone(), Controller::new().identity(), sync, clock) => panic!("{:?}", ended.unwrap_err()),
        () = talking => {}
    }
}

/// Whether the other end of a connection has not hung up.
fn is_open(stream: &TcpStream) -> bool {
    let mut said = [0; 4096];
    loop {
        match stream.try_read(&mut said) {
            Ok(1..) => {}
            Ok(0) => return false,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// The network half of a host, and the other end, which says nothing.
fn half() -> (Sync, ApplyEnd, MemoryHost) {
    let host = MemoryHost::new();
    credentials("https://c:1".to_owned()).store(&host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    (Sync::new(Rc::new(host.clone()), Controller::new().identity(), sync, clock).unwrap(), apply, host)
}

fn standing(host: &MemoryHost) -> (Standing, String) {
    let noted = Connection::load(host).unwrap().unwrap();
    (noted.standing, noted.cause)
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_two_hosts_with_one_identity_back_off() {
    let (mut sync, _apply, host) = half();
    let news = || News { acknowledged: 0, observation: None, desired: None, grants: Vec::new(), next_ms: 0 };
    let begun = Instant::now();
    for _ in 0..20 {
        // Each of the two is heard, and then the other one takes its place.
        let client = sync.client();
        sync.answered(client, Ok(CheckInAnswer::Current(Box::new(news())))).await.unwrap();
        let client = sync.client();
        sync.answered(client, Ok(CheckInAnswer::Superseded)).await.unwrap();
        sleep_until(sync.speak_at.unwrap()).await;
    }
    let took = begun.elapsed();
    assert!(took > Duration::from_mins(1), "20 rounds within {took:?}");
    assert!(took < Duration::from_mins(20), "no wait is longer than a minute: {took:?}");
    let (standing, cause) = standing(&host);
    assert_eq!(standing, Standing::Shared);
    assert!(cause.contains("remove /var/lib/stemma-agent there"), "{cause}");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_a_rival_is_told_of_once_until_it_was_gone_for_long() {
    let mut rival = Rival::default();
    let told = |rival: &mut Rival| rival.meet().0;
    assert_eq!([told(&mut rival), told(&mut rival), told(&mut rival)], [true, false, false]);
    tokio::time::advance(Duration::from_mins(2)).await;
    assert!(!told(&mut rival));
    tokio::time::advance(Duration::from_mins(11)).await;
    let (is_news, wait) = rival.meet();
    assert!(is_news && wait <= Duration::from_millis(500), "as the first time");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_an_outages_cause_is_said_again_when_it_is_another() {
    let host = MemoryHost::new();
    let mut connections = Connections::load(&host).unwrap();
    let said = |connections: &mut Connections, cause: &str| {
        connections.note(&host, Standing::Unserved, "https://c:1".to_owned(), cause.to_owned())
    };
    assert!(said(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(!said(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(said(
        &mut connections,
        "the certificate is not valid before Jan  1 00:03:20 1970 +00:00, and it is Jan  1 00:01:40 1970 +00:00"
    ));
    assert!(!said(
        &mut connections,
        "the certificate is not valid before Jan  1 00:03:20 1970 +00:00, and it is Jan  1 00:01:41 1970 +00:00"
    ));
    assert!(said(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(connections.note(&host, Standing::Connected, "https://c:1".to_owned(), String::new()));
    assert!(said(&mut connections, "https://c:1 cannot be reached: Connection refused"), "another outage");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_an_outage_is_written_where_it_is_news_and_not_at_each_try() {
    let host = MemoryHost::new();
    let mut connections = Connections::load(&host).unwrap();
    let mut note = |url: &str, cause: String| connections.note(&host, Standing::Unserved, url.to_owned(), cause);
    let not_yet = |now: u32| {
        let (day, second) = ("Jan  1 00:", now % 60);
        format!(
            "the certificate is not valid before {day}03:20 1970 +00:00, and it is {day}{:02}:{second:02} 1970 +00:00",
            now / 60
        )
    };
    let refused = "Connection refused";
    assert!(note("https://c:1", not_yet(100)) && note("https://d:1", refused.to_owned()));
    let written = host.calls();
    for now in 101..150 {
        assert!(!note("https://c:1", not_yet(now)) && !note("https://d:1", refused.to_owned()));
    }
    assert_eq!(host.calls(), written, "a time that moves on, and another controller's cause again, are no news");
    assert!(note("https://c:1", refused.to_owned()) && host.calls() > written);
}

/// After a restart of its controller a host said for as long as its next check-in was held that no controller served it.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn y06_a_check_in_after_an_outage_asks_for_its_answer_at_once() {
    let (mut sync, _apply, host) = half();
    let news = || News { acknowledged: 0, observation: None, desired: None, grants: Vec::new(), next_ms: 0 };
    assert_eq!(sync.check_in().wait_ms, 45_000, "no outage was noted");
    let (status, message) = (hyper::StatusCode::SERVICE_UNAVAILABLE, "it starts".to_owned());
    sync.failed(&ExchangeError::Refused { status, message });
    assert_eq!(standing(&host).0, Standing::Unserved);
    assert_eq!(sync.check_in().wait_ms, 0);
    assert_eq!(sync.check_in().wait_ms, 0, "none was answered yet");
    let client = sync.client();
    sync.answered(client, Ok(CheckInAnswer::Current(Box::new(news())))).await.unwrap();
    assert_eq!(standing(&host).0, Standing::Connected);
    assert_eq!(sync.check_in().wait_ms, 45_000);
    // An answer does not end this one, so check-ins without a wait would follow each other for ever.
    let client = sync.client();
    sync.answered(client, Ok(CheckInAnswer::Superseded)).await.unwrap();
    let client = sync.client();
    sync.answered(client, Ok(CheckInAnswer::Current(Box::new(news())))).await.unwrap();
    assert_eq!(standing(&host).0, Standing::Shared);
    assert_eq!(sync.check_in().wait_ms, 45_000);
    tokio::time::advance(Duration::from_mins(11)).await;
    assert_eq!(sync.check_in().wait_ms, 0, "the other one was not met for long");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_a_deleted_nodes_agent_knows_that_nobody_knows_it() {
    let (mut sync, _apply, host) = half();
    let message = "the node was deleted".to_owned();
    sync.failed(&ExchangeError::Unknown { status: hyper::StatusCode::FORBIDDEN, message });
    assert_eq!(
        standing(&host),
        (Standing::Unknown, "the controller refused (403 Forbidden): the node was deleted".into())
    );
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_check_in_that_is_refused_for_its_version_is_followed_by_one_of_the_version_before_also_where_its_place_was_taken()
 {
    let (old, new) = (WireVersion::CURRENT, WireVersion::THROW_AWAY);
    let refused = |asked| {
        let (status, message) = (hyper::StatusCode::BAD_REQUEST, String::new());
        Err(ExchangeError::Version { asked, status, message })
    };
    let (_root, mut sync, _, _apply) = beginning_with(&Controller::new(), pair_up_to(new));
    sync.speaks = new;
    sync.speak();
    sync.speak();
    assert_eq!(sync.asked_in, new, "two are on their way");
    sync.superseded = None;
    sync.superseded_ended(refused(new));
    assert_eq!(sync.speaks, old);
    // The other one was sent before that was known. It is no failure, and no version further down.
    sync.parked = None;
    let client = sync.client();
    sync.answered(client, refused(new)).await.unwrap();
    assert_eq!((sync.speaks, sync.speak_at), (old, Some(Instant::now())));
    sync.speak();
    assert_eq!(sync.asked_in, old);
    // A controller that does not even read the first version fails as any other does: the newest is tried again with the next one.
    let client = sync.client();
    sync.answered(client, refused(old)).await.unwrap();
    assert!(sync.idle.is_none());
    assert_eq!(sync.speaks, new);
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn what_a_check_in_said_that_was_refused_for_its_version_is_said_again() {
    let (old, new) = (WireVersion::CURRENT, WireVersion::THROW_AWAY);
    let (_root, mut sync, _, _apply) = beginning(&Controller::new());
    sync.speaks = new;
    sync.speak();
    assert!(sync.said.check_in(new).report.is_none(), "it is on its way");
    sync.parked = None;
    let client = sync.client();
    let (status, message) = (hyper::StatusCode::BAD_REQUEST, String::new());
    sync.answered(client, Err(ExchangeError::Version { asked: new, status, message })).await.unwrap();
    let next = sync.said.check_in(old);
    assert!(next.report.is_some() && next.observation.is_some());
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_profile_of_an_offer_is_read_in_the_version_that_was_asked_in() {
    for version in WireVersion::all() {
        let (_root, mut sync, _, _apply) = beginning(&Controller::new());
        sync.asked_in = version;
        let profile = Some(Hash([9; 32]));
        let task_set = encode_part(version, &TaskSet { profile, ..TaskSet::default() });
        let (signature, part) = (Signature { bytes: vec![], signer: vec![] }, PartDigest([0; 32]));
        let offered = SignedDesired {
            epoch: Epoch([1; 16]),
            revision: Revision(1),
            known_digest: part,
            task_set_digest: part,
            known: None,
            task_set: Some(task_set),
            proof: Proof { index: 0, size: 1, path: vec![], signature },
            epoch_change: None,
        };
        let news = News { acknowledged: 0, observation: None, desired: Some(offered), grants: Vec::new(), next_ms: 0 };
        sync.offer(news).await.unwrap();
        assert_eq!(sync.profile, profile, "{version}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn x05_a_key_that_was_left_unfinished_goes_when_the_network_half_begins() {
    let controller = Controller::new();
    let (root, sync, present, _apply) = beginning(&controller);
    drop(sync);
    let dir = root.path().join("var/lib/stemma-agent/sync");
    std::fs::write(dir.join(".stemma-0123456789abcdef"), "key").unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let (end, _other) = pair();
    Sync::new(host.clone(), controller.identity(), end, Arc::new(FixedClock(NOW))).unwrap();
    assert!(!dir.join(".stemma-0123456789abcdef").exists());
    assert!(Credentials::load(&*host).unwrap() == present);
}

/// A file system in memory over a directory, taken away with this.
struct Mounted(PathBuf);

impl Mounted {
    /// `None`: who runs the test may not mount.
    #[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
    fn over(dir: &Path) -> Option<Self> {
        let tried = Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs"]).arg(dir).output();
        if tried.is_ok_and(|tried| tried.status.success()) {
            return Some(Self(dir.to_owned()));
        }
        eprintln!("skipped: who runs the test may not mount");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The kernel tells of no mount: labels that came by one were not read until the agent was started again, and those that went with one stayed.
#[tokio::test(flavor = "current_thread")]
async fn y08_what_is_mounted_over_the_label_files_is_read_by_the_next_check_in() {
    let (root, mut sync, _present, mut apply) = beginning(&Controller::new());
    let dir = root.path().join("etc/stemma/labels.d");
    let write = |text: &str| {
        let file = dir.join("10-a");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir).unwrap();
    write("below=1\n");
    // No controller is there: each try is a check-in too.
    sync.speak_at = Some(Instant::now());
    let mut seen = Vec::new();
    // Waits until something is observed that was not before: the labels are all that changes.
    let mut something_new = async |what: &str| loop {
        match timeout(Duration::from_mins(10), apply.receive()).await.expect(what).unwrap() {
            FromSync::Observed(digest) if seen.contains(&digest) => {}
            FromSync::Observed(digest) => return seen.push(digest),
            other => panic!("{what}: {other:?}"),
        }
    };
    let over = async {
        let Some(mounted) = Mounted::over(&dir) else { return };
        something_new("an empty one is mounted").await;
        write("above=1\n");
        something_new("a file is written into it").await;
        drop(mounted);
        something_new("it is unmounted").await;
    };
    tokio::select! {
        // First, so that it has looked before something is mounted.
        biased;
        ended = sync.turn() => panic!("{ended:?}"),
        () = over => {}
    }
}
