//! Tests of the loop with a controller that is slow, refuses, or serves another host with the same identity.

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
use crate::apply::testing::{NODE, TestController, expired_credentials, node_uri};
use crate::channel::{ApplyEnd, pair, pair_with_version};
use crate::host::memory::MemoryHost;
use crate::host::real::RealHost;
use crate::sync::ConnectionRecord;

const NOW: u64 = 1_800_000_000;

/// Creates a network half that has done nothing yet, with a valid certificate of the controller.
fn new_sync(controller: &TestController) -> (tempfile::TempDir, Sync, TlsCredentials, ApplyEnd) {
    new_sync_with(controller, pair())
}

/// Like [`new_sync`], with the ends of this channel.
fn new_sync_with(
    controller: &TestController,
    (end, apply): (SyncEnd, ApplyEnd),
) -> (tempfile::TempDir, Sync, TlsCredentials, ApplyEnd) {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |_| ());
    let controllers = vec!["https://127.0.0.1:1".to_owned()];
    let current = TlsCredentials { controllers, key: key.serialize_der(), chain, validity: (1, 2) };
    current.store(&*host).unwrap();
    let sync = Sync::new(host, controller.identity(), end, Arc::new(FixedClock(NOW))).unwrap();
    (root, sync, current, apply)
}

#[tokio::test(flavor = "current_thread")]
async fn w10_04_renewal_keeps_old_certificate_when_new_certificate_is_invalid() {
    let (ours, theirs) = (TestController::new(), TestController::new());
    let (_root, mut sync, current, _apply) = new_sync(&ours);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let other_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let junk = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
    let day = |year| rcgen::date_time_ymd(year, 1, 1);
    for (chain, reason) in [
        (vec![junk], "that the controller gave is refused"),
        (vec![], "cannot be read"),
        (vec![b"junk".to_vec()], "cannot be read"),
        (theirs.node_chain(&key, |_| ()), "that the controller gave is refused"),
        (ours.node_chain(&key, |_| ())[..1].to_vec(), "that the controller gave is refused"),
        (ours.node_chain(&key, |leaf| leaf.subject_alt_names = vec![node_uri("prod", Uuid::from_u128(5))]), "not this node's"),
        (ours.node_chain(&key, |leaf| leaf.subject_alt_names = vec![node_uri("test", NODE)]), "of another fleet"),
        (ours.node_chain(&other_key, |_| ()), "for another key"),
        (ours.node_chain(&key, |leaf| leaf.not_before = day(2030)), "not valid before"),
        (ours.node_chain(&key, |leaf| leaf.not_after = day(2021)), "expired"),
        (ours.node_chain(&key, |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]), "for this use"),
    ] {
        let controllers = current.controllers.clone();
        sync.on_renewed(Ok(TlsCredentials { controllers, key: key.serialize_der(), chain, validity: (1, 2) }));
        assert!(TlsCredentials::load(&*sync.host).unwrap() == current, "{reason}: on disk");
        assert!(sync.credentials == current, "{reason}: in use");
        let findings = crate::sync::findings(&*sync.host);
        let told = findings.iter().find(|finding| finding.contains("the certificate was not renewed"));
        assert!(told.is_some_and(|told| told.contains(reason)), "{reason}: {findings:?}");
    }
    let chain = ours.node_chain(&key, |_| ());
    let next = TlsCredentials { controllers: current.controllers.clone(), key: key.serialize_der(), chain, validity: (1, 2) };
    sync.on_renewed(Ok(next.clone()));
    assert!(TlsCredentials::load(&*sync.host).unwrap() == next && sync.credentials == next);
    assert!(!crate::sync::findings(&*sync.host).iter().any(|finding| finding.contains("not renewed")));
}

/// A clock that follows the test's time and can be set forward.
#[derive(Debug)]
struct SettableClock {
    started: Instant,
    offset_s: AtomicU64,
}

impl Clock for SettableClock {
    fn unix_seconds(&self) -> u64 {
        NOW + self.started.elapsed().as_secs() + self.offset_s.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn f24_sync_delays_renewals_when_certificates_are_refused_repeatedly() {
    let controller = TestController::new();
    let (_root, mut sync, current, _apply) = new_sync(&controller);
    let clock = Arc::new(SettableClock { started: Instant::now(), offset_s: AtomicU64::new(0) });
    sync.clock = clock.clone();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |leaf| leaf.not_before = rcgen::date_time_ymd(2030, 1, 1));
    let too_early = TlsCredentials { key: key.serialize_der(), chain, ..current };
    // The time for which a certificate is accepted: 24 hours and a grace period of 30 days.
    let (start, mut renewals) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_hours(31 * 24) {
        sync.start_renewal();
        assert!(sync.pending_renewal.take().is_some(), "it is asked for when it is due");
        renewals += 1;
        sync.on_renewed(Ok(too_early.clone()));
        // The controller responds to each check-in that the present certificate has expired.
        let client = sync.new_client();
        sync.on_response(client, Err(ExchangeError::Expired)).await.unwrap();
        assert!(sync.pending_renewal.is_none(), "not a minute later");
        sleep_until(sync.renew_at).await;
    }
    assert!((100..200).contains(&renewals), "{renewals} of the 256 certificates of a node");
    sync.start_renewal();
    sync.pending_renewal = None;
    sync.on_renewed(Ok(too_early));
    clock.offset_s.store(3 * 3600, Ordering::Relaxed);
    let client = sync.new_client();
    sync.on_response(client, Err(ExchangeError::Expired)).await.unwrap();
    assert!(sync.pending_renewal.is_some(), "at once when the clock was set");
}

#[test]
fn w10_04_sync_rejects_fleet_name_when_invalid() {
    let ours = TestController::new();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = ours.node_chain(&key, |_| ());
    let credentials = TlsCredentials { controllers: vec![], key: key.serialize_der(), chain, validity: (1, 2) };
    for (fleet, is_valid) in [("prod", true), ("../../x\n", false), ("", false), ("Prod", false), ("test", false)] {
        let identity = HostIdentity { fleet: fleet.into(), ..ours.identity() };
        assert_eq!(credentials.check_issued(&identity, NOW).is_ok(), is_valid, "{fleet:?}");
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w10_10_requested_wait_is_at_most_a_minute() {
    for (next_ms, seconds) in [(u32::MAX, 60), (3_600_000, 60), (60_000, 60), (500, 0), (0, 0)] {
        let (_root, mut sync, _, _apply) = new_sync(&TestController::new());
        let update =
            CheckInUpdate { acknowledged: 0, observation: None, desired: None, grants: vec![], next_check_in_ms: next_ms };
        let client = sync.new_client();
        sync.on_response(client, Ok(CheckInResponse::Current(Box::new(update)))).await.unwrap();
        let next = sync.check_in_at.unwrap() - Instant::now();
        assert_eq!(next.as_secs(), seconds, "{next_ms}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn sync_handles_apply_messages_while_renewal_waits() {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    // Accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    expired_credentials(format!("https://{}", silent.local_addr().unwrap())).store(&*host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    let apply_half = async {
        apply.send(&ApplyMessage::Hello { seal_key: [1; 32], held: None }).await.unwrap();
        // The renewal has started: its key is stored, and there is a connection for each request.
        while super::super::state::pending_key(&*host).unwrap().is_none() {
            sleep(Duration::from_millis(5)).await;
        }
        let mut connections = vec![silent.accept().await.unwrap().0];
        // More messages than the channel can hold.
        for _ in 0..100 {
            apply.send(&ApplyMessage::Local(LocalState::default())).await.unwrap();
        }
        while let Ok(accepted) = timeout(Duration::from_millis(100), silent.accept()).await {
            connections.push(accepted.unwrap().0);
        }
        assert!(connections.iter().all(is_open), "apply was heard only when the controller was given up");
    };
    tokio::select! {
        ended = run(host.clone(), TestController::new().identity(), sync, clock) => panic!("{:?}", ended.unwrap_err()),
        () = apply_half => {}
    }
}

/// Returns whether the peer has not closed the connection.
fn is_open(stream: &TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.try_read(&mut bytes) {
            Ok(1..) => {}
            Ok(0) => return false,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Creates the network half of a host in memory, and the other end of its channel.
fn test_sync() -> (Sync, ApplyEnd, MemoryHost) {
    let host = MemoryHost::new();
    expired_credentials("https://c:1".to_owned()).store(&host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    (Sync::new(Rc::new(host.clone()), TestController::new().identity(), sync, clock).unwrap(), apply, host)
}

fn stored_state(host: &MemoryHost) -> (ConnectionState, String) {
    let record = ConnectionRecord::load(host).unwrap().unwrap();
    (record.state, record.cause)
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_hosts_back_off_when_identity_is_shared() {
    let (mut sync, _apply, host) = test_sync();
    let update = || CheckInUpdate { acknowledged: 0, observation: None, desired: None, grants: Vec::new(), next_check_in_ms: 0 };
    let start = Instant::now();
    for _ in 0..20 {
        // Each of the two hosts gets a response, and then the other replaces its check-in.
        let client = sync.new_client();
        sync.on_response(client, Ok(CheckInResponse::Current(Box::new(update())))).await.unwrap();
        let client = sync.new_client();
        sync.on_response(client, Ok(CheckInResponse::Superseded)).await.unwrap();
        sleep_until(sync.check_in_at.unwrap()).await;
    }
    let took = start.elapsed();
    assert!(took > Duration::from_mins(1), "20 rounds within {took:?}");
    assert!(took < Duration::from_mins(20), "no wait is longer than a minute: {took:?}");
    let (state, cause) = stored_state(&host);
    assert_eq!(state, ConnectionState::Shared);
    assert!(cause.contains("remove /var/lib/stemma-agent there"), "{cause}");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_duplicate_is_logged_once_until_absent_for_long() {
    let mut duplicate = DuplicateHost::default();
    let record = |duplicate: &mut DuplicateHost| duplicate.record().0;
    assert_eq!([record(&mut duplicate), record(&mut duplicate), record(&mut duplicate)], [true, false, false]);
    tokio::time::advance(Duration::from_mins(2)).await;
    assert!(!record(&mut duplicate));
    tokio::time::advance(Duration::from_mins(11)).await;
    let (is_new, wait) = duplicate.record();
    assert!(is_new && wait <= Duration::from_millis(500), "as the first time");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_outage_is_logged_again_when_cause_changes() {
    let host = MemoryHost::new();
    let mut connections = ConnectionLog::load(&host).unwrap();
    let record = |connections: &mut ConnectionLog, cause: &str| {
        connections.record(&host, ConnectionState::Unserved, "https://c:1".to_owned(), cause.to_owned())
    };
    assert!(record(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(!record(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(record(
        &mut connections,
        "the certificate is not valid before Jan  1 00:03:20 1970 +00:00, and it is Jan  1 00:01:40 1970 +00:00"
    ));
    assert!(!record(
        &mut connections,
        "the certificate is not valid before Jan  1 00:03:20 1970 +00:00, and it is Jan  1 00:01:41 1970 +00:00"
    ));
    assert!(record(&mut connections, "https://c:1 cannot be reached: Connection refused"));
    assert!(connections.record(&host, ConnectionState::Connected, "https://c:1".to_owned(), String::new()));
    assert!(record(&mut connections, "https://c:1 cannot be reached: Connection refused"), "another outage");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_outage_is_stored_only_when_state_changes() {
    let host = MemoryHost::new();
    let mut connections = ConnectionLog::load(&host).unwrap();
    let mut record = |url: &str, cause: String| connections.record(&host, ConnectionState::Unserved, url.to_owned(), cause);
    let not_valid_yet = |now: u32| {
        let (day, second) = ("Jan  1 00:", now % 60);
        format!(
            "the certificate is not valid before {day}03:20 1970 +00:00, and it is {day}{:02}:{second:02} 1970 +00:00",
            now / 60
        )
    };
    let refused = "Connection refused";
    assert!(record("https://c:1", not_valid_yet(100)) && record("https://d:1", refused.to_owned()));
    let written = host.calls();
    for now in 101..150 {
        assert!(!record("https://c:1", not_valid_yet(now)) && !record("https://d:1", refused.to_owned()));
    }
    assert_eq!(host.calls(), written, "a time that moves on, and another controller's cause again, are no news");
    assert!(record("https://c:1", refused.to_owned()) && host.calls() > written);
}

/// Earlier, a host whose controller had restarted reported that no controller served it. It did so until its pending
/// check-in ended.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn y06_check_in_requests_immediate_response_after_outage() {
    let (mut sync, _apply, host) = test_sync();
    let update = || CheckInUpdate { acknowledged: 0, observation: None, desired: None, grants: Vec::new(), next_check_in_ms: 0 };
    assert_eq!(sync.next_check_in().wait_ms, 45_000, "no outage was noted");
    let (status, message) = (hyper::StatusCode::SERVICE_UNAVAILABLE, "it starts".to_owned());
    sync.on_failure(&ExchangeError::Refused { status, message });
    assert_eq!(stored_state(&host).0, ConnectionState::Unserved);
    assert_eq!(sync.next_check_in().wait_ms, 0);
    assert_eq!(sync.next_check_in().wait_ms, 0, "none was answered yet");
    let client = sync.new_client();
    sync.on_response(client, Ok(CheckInResponse::Current(Box::new(update())))).await.unwrap();
    assert_eq!(stored_state(&host).0, ConnectionState::Connected);
    assert_eq!(sync.next_check_in().wait_ms, 45_000);
    // While another host uses the identity, a response does not end the outage. Check-ins without a wait would then
    // follow each other forever.
    let client = sync.new_client();
    sync.on_response(client, Ok(CheckInResponse::Superseded)).await.unwrap();
    let client = sync.new_client();
    sync.on_response(client, Ok(CheckInResponse::Current(Box::new(update())))).await.unwrap();
    assert_eq!(stored_state(&host).0, ConnectionState::Shared);
    assert_eq!(sync.next_check_in().wait_ms, 45_000);
    tokio::time::advance(Duration::from_mins(11)).await;
    assert_eq!(sync.next_check_in().wait_ms, 0, "the other one was not met for long");
}

#[tokio::test(flavor = "current_thread")]
async fn w08_connection_is_unknown_when_node_was_deleted() {
    let (mut sync, _apply, host) = test_sync();
    let message = "the node was deleted".to_owned();
    sync.on_failure(&ExchangeError::Unknown { status: hyper::StatusCode::FORBIDDEN, message });
    assert_eq!(
        stored_state(&host),
        (ConnectionState::Unknown, "the controller refused (403 Forbidden): the node was deleted".into())
    );
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn check_in_retries_in_older_version_when_refused_or_superseded() {
    let (old, new) = (WireVersion::CURRENT, WireVersion::NEXT);
    let refused = |asked| {
        let (status, message) = (hyper::StatusCode::BAD_REQUEST, String::new());
        Err(ExchangeError::Version { version: asked, status, message })
    };
    let (_root, mut sync, _, _apply) = new_sync_with(&TestController::new(), pair_with_version(new));
    sync.version = new;
    sync.send_check_in();
    sync.send_check_in();
    assert_eq!(sync.pending_version, new, "two are on their way");
    sync.superseded_check_in = None;
    sync.on_superseded_response(refused(new));
    assert_eq!(sync.version, old);
    // The second check-in was sent before the first refusal arrived. So its refusal is not a failure, and does not
    // lower the version further.
    sync.pending_check_in = None;
    let client = sync.new_client();
    sync.on_response(client, refused(new)).await.unwrap();
    assert_eq!((sync.version, sync.check_in_at), (old, Some(Instant::now())));
    sync.send_check_in();
    assert_eq!(sync.pending_version, old);
    // A controller that does not support even the first version fails like any other. The newest version is used with
    // the next controller.
    let client = sync.new_client();
    sync.on_response(client, refused(old)).await.unwrap();
    assert!(sync.idle_client.is_none());
    assert_eq!(sync.version, new);
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn check_in_repeats_report_when_version_was_refused() {
    let (old, new) = (WireVersion::CURRENT, WireVersion::NEXT);
    let (_root, mut sync, _, _apply) = new_sync(&TestController::new());
    sync.version = new;
    sync.send_check_in();
    assert!(sync.outbox.check_in(new).report.is_none(), "it is on its way");
    sync.pending_check_in = None;
    let client = sync.new_client();
    let (status, message) = (hyper::StatusCode::BAD_REQUEST, String::new());
    sync.on_response(client, Err(ExchangeError::Version { version: new, status, message })).await.unwrap();
    let next = sync.outbox.check_in(old);
    assert!(next.report.is_some() && next.observation.is_some());
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn profile_is_decoded_in_version_of_offer() {
    for version in WireVersion::all() {
        let (_root, mut sync, _, _apply) = new_sync(&TestController::new());
        sync.pending_version = version;
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
        let update =
            CheckInUpdate { acknowledged: 0, observation: None, desired: Some(offered), grants: Vec::new(), next_check_in_ms: 0 };
        sync.forward_offer(update).await.unwrap();
        assert_eq!(sync.profile, profile, "{version}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn x05_sync_sweeps_unfinished_key_at_start() {
    let controller = TestController::new();
    let (root, sync, current, _apply) = new_sync(&controller);
    drop(sync);
    let dir = root.path().join("var/lib/stemma-agent/sync");
    std::fs::write(dir.join(".stemma-0123456789abcdef"), "key").unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let (end, _other) = pair();
    Sync::new(host.clone(), controller.identity(), end, Arc::new(FixedClock(NOW))).unwrap();
    assert!(!dir.join(".stemma-0123456789abcdef").exists());
    assert!(TlsCredentials::load(&*host).unwrap() == current);
}

/// A tmpfs that is mounted over a directory until this value is dropped.
struct LabelDirMount(PathBuf);

impl LabelDirMount {
    /// Mounts a tmpfs. Returns `None` if the test is not allowed to mount.
    #[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
    fn new(dir: &Path) -> Option<Self> {
        let tried = Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs"]).arg(dir).output();
        if tried.is_ok_and(|tried| tried.status.success()) {
            return Some(Self(dir.to_owned()));
        }
        eprintln!("skipped: who runs the test may not mount");
        None
    }
}

impl Drop for LabelDirMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The kernel sends no event for a mount. Earlier, labels that a mount added were not read until the agent was
/// restarted, and labels that a mount hid stayed.
#[tokio::test(flavor = "current_thread")]
async fn y08_check_in_reads_labels_when_mounted_over() {
    let (root, mut sync, _present, mut apply) = new_sync(&TestController::new());
    let dir = root.path().join("etc/stemma/labels.d");
    let write = |text: &str| {
        let file = dir.join("10-a");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir).unwrap();
    write("below=1\n");
    // There is no controller. Each attempt counts as a check-in.
    sync.check_in_at = Some(Instant::now());
    let mut seen = Vec::new();
    // Waits for a new observation. Only the labels change.
    let mut wait_for_change = async |what: &str| loop {
        match timeout(Duration::from_mins(10), apply.receive()).await.expect(what).unwrap() {
            SyncMessage::Observed(digest) if seen.contains(&digest) => {}
            SyncMessage::Observed(digest) => return seen.push(digest),
            other => panic!("{what}: {other:?}"),
        }
    };
    let mounting = async {
        let Some(mounted) = LabelDirMount::new(&dir) else { return };
        wait_for_change("an empty one is mounted").await;
        write("above=1\n");
        wait_for_change("a file is written into it").await;
        drop(mounted);
        wait_for_change("it is unmounted").await;
    };
    tokio::select! {
        // Polled first, so that the watch is set before anything is mounted.
        biased;
        ended = sync.run_loop() => panic!("{ended:?}"),
        () = mounting => {}
    }
}
