//! Tests of the check-in loop with a controller that is slow, refuses, or serves another host with the same identity.

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

/// Creates the network half of an agent, before its first check-in, with a valid certificate from the controller.
/// Returns the root directory of the host, the network half, its credentials, and the root half's end of the channel.
fn new_sync(controller: &TestController) -> (tempfile::TempDir, Sync, TlsCredentials, ApplyEnd) {
    new_sync_with(controller, pair())
}

/// Does the same as [`new_sync`], but uses the given ends of the channel between the network half and the root half.
fn new_sync_with(
    controller: &TestController,
    (end, apply): (SyncEnd, ApplyEnd),
) -> (tempfile::TempDir, Sync, TlsCredentials, ApplyEnd) {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |_| ());
    // No server listens on this port.
    let controllers = vec!["https://127.0.0.1:1".to_owned()];
    let credentials = TlsCredentials { controllers, key: key.serialize_der(), chain, validity: (1, 2) };
    credentials.store(&*host).unwrap();
    let sync = Sync::new(host, controller.identity(), end, Arc::new(FixedClock(NOW))).unwrap();
    (root, sync, credentials, apply)
}

/// Each case contains a chain that is not valid for this node, and a part of the finding that gives the reason. A valid
/// certificate at the end replaces the old one, and the finding disappears.
#[tokio::test(flavor = "current_thread")]
async fn w10_04_renewal_keeps_old_certificate_when_new_certificate_is_invalid() {
    let (own_controller, foreign_controller) = (TestController::new(), TestController::new());
    let (_root, mut sync, old_credentials, _apply) = new_sync(&own_controller);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let other_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let self_signed = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
    let new_year_of = |year| rcgen::date_time_ymd(year, 1, 1);
    for (chain, reason) in [
        (vec![self_signed], "that the controller gave is refused"),
        (vec![], "cannot be read"),
        (vec![b"junk".to_vec()], "cannot be read"),
        (foreign_controller.node_chain(&key, |_| ()), "that the controller gave is refused"),
        (own_controller.node_chain(&key, |_| ())[..1].to_vec(), "that the controller gave is refused"),
        (
            own_controller.node_chain(&key, |leaf| leaf.subject_alt_names = vec![node_uri("prod", Uuid::from_u128(5))]),
            "not this node's",
        ),
        (own_controller.node_chain(&key, |leaf| leaf.subject_alt_names = vec![node_uri("test", NODE)]), "of another fleet"),
        (own_controller.node_chain(&other_key, |_| ()), "for another key"),
        (own_controller.node_chain(&key, |leaf| leaf.not_before = new_year_of(2030)), "not valid before"),
        (own_controller.node_chain(&key, |leaf| leaf.not_after = new_year_of(2021)), "expired"),
        (
            own_controller.node_chain(&key, |leaf| leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            "for this use",
        ),
    ] {
        let controllers = old_credentials.controllers.clone();
        sync.on_renewed(Ok(TlsCredentials { controllers, key: key.serialize_der(), chain, validity: (1, 2) }));
        assert!(TlsCredentials::load(&*sync.host).unwrap() == old_credentials, "{reason}: on disk");
        assert!(sync.credentials == old_credentials, "{reason}: in use");
        let findings = crate::sync::findings(&*sync.host);
        let finding = findings.iter().find(|finding| finding.contains("the certificate was not renewed"));
        assert!(finding.is_some_and(|finding| finding.contains(reason)), "{reason}: {findings:?}");
    }
    let chain = own_controller.node_chain(&key, |_| ());
    let new_credentials =
        TlsCredentials { controllers: old_credentials.controllers.clone(), key: key.serialize_der(), chain, validity: (1, 2) };
    sync.on_renewed(Ok(new_credentials.clone()));
    assert!(TlsCredentials::load(&*sync.host).unwrap() == new_credentials && sync.credentials == new_credentials);
    assert!(!crate::sync::findings(&*sync.host).iter().any(|finding| finding.contains("not renewed")));
}

/// A clock that follows the time of the runtime, and that a test can set forward.
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

/// The clock of the host is wrong, so the host refuses each new certificate as not valid yet. It must not use up the
/// 256 certificates of a node in the 31 days in which the present certificate can be renewed.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn f24_sync_delays_renewals_when_certificates_are_refused_repeatedly() {
    let controller = TestController::new();
    let (_root, mut sync, old_credentials, _apply) = new_sync(&controller);
    let clock = Arc::new(SettableClock { started: Instant::now(), offset_s: AtomicU64::new(0) });
    sync.clock = clock.clone();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |leaf| leaf.not_before = rcgen::date_time_ymd(2030, 1, 1));
    let future_credentials = TlsCredentials { key: key.serialize_der(), chain, ..old_credentials };
    // A certificate is valid for 24 hours, and can be renewed in a grace period of 30 days after that.
    let (start, mut renewals) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_hours(31 * 24) {
        sync.start_renewal();
        assert!(sync.pending_renewal.take().is_some(), "a renewal starts when it is due");
        renewals += 1;
        sync.on_renewed(Ok(future_credentials.clone()));
        // In the grace period, each check-in gets this response. It starts a renewal unless the host must wait.
        let client = sync.new_client();
        sync.on_response(client, Err(ExchangeError::Expired)).await.unwrap();
        assert!(sync.pending_renewal.is_none(), "no renewal starts again at once");
        sleep_until(sync.renew_at).await;
    }
    assert!((100..200).contains(&renewals), "{renewals} of the 256 certificates of a node");
    sync.start_renewal();
    sync.pending_renewal = None;
    sync.on_renewed(Ok(future_credentials));
    clock.offset_s.store(3 * 3600, Ordering::Relaxed);
    let client = sync.new_client();
    sync.on_response(client, Err(ExchangeError::Expired)).await.unwrap();
    assert!(sync.pending_renewal.is_some(), "a renewal starts at once after the clock was set");
}

/// In this test, the certificate is for the fleet `prod`. Only an identity with this fleet accepts it.
#[test]
fn w10_04_check_issued_rejects_other_or_invalid_fleet_name() {
    let controller = TestController::new();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let chain = controller.node_chain(&key, |_| ());
    let credentials = TlsCredentials { controllers: vec![], key: key.serialize_der(), chain, validity: (1, 2) };
    for (fleet, is_valid) in [("prod", true), ("../../x\n", false), ("", false), ("Prod", false), ("test", false)] {
        let identity = HostIdentity { fleet: fleet.into(), ..controller.identity() };
        assert_eq!(credentials.check_issued(&identity, NOW).is_ok(), is_valid, "{fleet:?}");
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w10_10_requested_wait_is_at_most_a_minute() {
    for (next_ms, expected_seconds) in [(u32::MAX, 60), (3_600_000, 60), (60_000, 60), (500, 0), (0, 0)] {
        let (_root, mut sync, _, _apply) = new_sync(&TestController::new());
        let update =
            CheckInUpdate { acknowledged: 0, observation: None, desired: None, grants: vec![], next_check_in_ms: next_ms };
        let client = sync.new_client();
        sync.on_response(client, Ok(CheckInResponse::Current(Box::new(update)))).await.unwrap();
        let wait = sync.check_in_at.unwrap() - Instant::now();
        assert_eq!(wait.as_secs(), expected_seconds, "{next_ms}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn sync_handles_apply_messages_while_renewal_waits() {
    let root = tempfile::tempdir().unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    // Accepts connections and never responds.
    let silent_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    expired_credentials(format!("https://{}", silent_server.local_addr().unwrap())).store(&*host).unwrap();
    let (sync, apply) = pair();
    let clock = Arc::new(FixedClock(1_800_000_000));
    let apply_half = async {
        apply.send(&ApplyMessage::Hello { seal_key: [1; 32], held: None }).await.unwrap();
        // The renewal has started: its key is stored, and there is a connection for each request.
        while super::super::state::pending_key(&*host).unwrap().is_none() {
            sleep(Duration::from_millis(5)).await;
        }
        let mut connections = vec![silent_server.accept().await.unwrap().0];
        // More messages than the channel can hold.
        for _ in 0..100 {
            apply.send(&ApplyMessage::Local(LocalState::default())).await.unwrap();
        }
        while let Ok(connection) = timeout(Duration::from_millis(100), silent_server.accept()).await {
            connections.push(connection.unwrap().0);
        }
        assert!(connections.iter().all(is_open), "the network half read the channel only after it gave up the controller");
    };
    tokio::select! {
        result = run(host.clone(), TestController::new().identity(), sync, clock) => panic!("{:?}", result.unwrap_err()),
        () = apply_half => {}
    }
}

/// Returns whether the connection is still open: the peer has not closed it. Discards the bytes that arrived.
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

/// Creates the network half of an agent on a host in memory, with an expired certificate. Returns it with the root
/// half's end of the channel and the host.
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
    let duration = start.elapsed();
    assert!(duration > Duration::from_mins(1), "20 rounds within {duration:?}");
    assert!(duration < Duration::from_mins(20), "no wait is longer than a minute: {duration:?}");
    let (state, cause) = stored_state(&host);
    assert_eq!(state, ConnectionState::Shared);
    assert!(cause.contains("remove /var/lib/stemma-agent there"), "{cause}");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn w09_duplicate_is_logged_once_until_absent_for_long() {
    let mut duplicate = DuplicateHost::default();
    // True if the other host is logged.
    let record = |duplicate: &mut DuplicateHost| duplicate.record().0;
    assert_eq!([record(&mut duplicate), record(&mut duplicate), record(&mut duplicate)], [true, false, false]);
    tokio::time::advance(Duration::from_mins(2)).await;
    assert!(!record(&mut duplicate));
    tokio::time::advance(Duration::from_mins(11)).await;
    let (is_new, wait) = duplicate.record();
    assert!(is_new && wait <= Duration::from_millis(500), "the wait is as short as the first time");
}

/// A cause that differs from the last one only in a time is not logged again.
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

/// Two controllers fail alternately with different causes. The calls of the host count the writes to its disk.
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
    let refused_cause = "Connection refused";
    assert!(record("https://c:1", not_valid_yet(100)) && record("https://d:1", refused_cause.to_owned()));
    let call_count = host.calls();
    for now in 101..150 {
        assert!(!record("https://c:1", not_valid_yet(now)) && !record("https://d:1", refused_cause.to_owned()));
    }
    assert_eq!(host.calls(), call_count, "neither a new time in the cause nor a known cause of another controller is stored");
    assert!(record("https://c:1", refused_cause.to_owned()) && host.calls() > call_count);
}

/// A check-in usually requests a wait of 45 seconds. Regression test: after its controller restarted, a host reported
/// that no controller served it. The host reported this until its pending check-in ended.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn y06_check_in_requests_immediate_response_after_outage() {
    let (mut sync, _apply, host) = test_sync();
    let update = || CheckInUpdate { acknowledged: 0, observation: None, desired: None, grants: Vec::new(), next_check_in_ms: 0 };
    assert_eq!(sync.next_check_in().wait_ms, 45_000, "there was no outage");
    let (status, message) = (hyper::StatusCode::SERVICE_UNAVAILABLE, "it starts".to_owned());
    sync.on_failure(&ExchangeError::Refused { status, message });
    assert_eq!(stored_state(&host).0, ConnectionState::Unserved);
    assert_eq!(sync.next_check_in().wait_ms, 0);
    assert_eq!(sync.next_check_in().wait_ms, 0, "no check-in was answered yet");
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
    assert_eq!(sync.next_check_in().wait_ms, 0, "the other host used the identity long ago");
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
    let refusal_of = |refused_version| {
        let (status, message) = (hyper::StatusCode::BAD_REQUEST, String::new());
        Err(ExchangeError::Version { version: refused_version, status, message })
    };
    let (_root, mut sync, _, _apply) = new_sync_with(&TestController::new(), pair_with_version(new));
    sync.version = new;
    sync.send_check_in();
    sync.send_check_in();
    assert_eq!(sync.pending_version, new, "two check-ins are pending");
    sync.superseded_check_in = None;
    sync.on_superseded_response(refusal_of(new));
    assert_eq!(sync.version, old);
    // The second check-in was sent before the first refusal arrived. So its refusal is not a failure, and does not
    // lower the version further.
    sync.pending_check_in = None;
    let client = sync.new_client();
    sync.on_response(client, refusal_of(new)).await.unwrap();
    assert_eq!((sync.version, sync.check_in_at), (old, Some(Instant::now())));
    sync.send_check_in();
    assert_eq!(sync.pending_version, old);
    // A controller that does not support even the first version fails like any other. The newest version is used with
    // the next controller.
    let client = sync.new_client();
    sync.on_response(client, refusal_of(old)).await.unwrap();
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
    assert!(sync.outbox.check_in(new).report.is_none(), "the pending check-in contains the report");
    sync.pending_check_in = None;
    let client = sync.new_client();
    let (status, message) = (hyper::StatusCode::BAD_REQUEST, String::new());
    sync.on_response(client, Err(ExchangeError::Version { version: new, status, message })).await.unwrap();
    let next_check_in = sync.outbox.check_in(old);
    assert!(next_check_in.report.is_some() && next_check_in.observation.is_some());
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn profile_is_decoded_in_version_of_offer() {
    for version in WireVersion::all() {
        let (_root, mut sync, _, _apply) = new_sync(&TestController::new());
        sync.pending_version = version;
        let profile = Some(Hash([9; 32]));
        let task_set = encode_part(version, &TaskSet { profile, ..TaskSet::default() });
        let (signature, digest) = (Signature { bytes: vec![], signer: vec![] }, PartDigest([0; 32]));
        let offer = SignedDesired {
            epoch: Epoch([1; 16]),
            revision: Revision(1),
            known_digest: digest,
            task_set_digest: digest,
            known: None,
            task_set: Some(task_set),
            proof: Proof { index: 0, size: 1, path: vec![], signature },
            epoch_change: None,
        };
        let update =
            CheckInUpdate { acknowledged: 0, observation: None, desired: Some(offer), grants: Vec::new(), next_check_in_ms: 0 };
        sync.forward_offer(update).await.unwrap();
        assert_eq!(sync.profile, profile, "{version}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn x05_sync_sweeps_unfinished_key_at_start() {
    let controller = TestController::new();
    let (root, sync, credentials, _apply) = new_sync(&controller);
    drop(sync);
    let dir = root.path().join("var/lib/stemma-agent/sync");
    std::fs::write(dir.join(".stemma-0123456789abcdef"), "key").unwrap();
    let host: Rc<dyn Host> = Rc::new(RealHost::new(root.path()).unwrap());
    let (end, _other) = pair();
    Sync::new(host.clone(), controller.identity(), end, Arc::new(FixedClock(NOW))).unwrap();
    assert!(!dir.join(".stemma-0123456789abcdef").exists());
    assert!(TlsCredentials::load(&*host).unwrap() == credentials);
}

/// A tmpfs that is mounted over a directory until this value is dropped.
struct LabelDirMount(PathBuf);

impl LabelDirMount {
    /// Mounts a tmpfs over the directory. Returns `None` if the test is not allowed to mount.
    #[allow(clippy::print_stderr, reason = "who reads a test's output sees that it was skipped")]
    fn new(dir: &Path) -> Option<Self> {
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs"]).arg(dir).output();
        if output.is_ok_and(|output| output.status.success()) {
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

/// The kernel sends no event for a mount. Regression test: until its restart, the agent did not read labels that a
/// mount added, and reported labels that a mount hid.
#[tokio::test(flavor = "current_thread")]
async fn y08_check_in_reads_labels_when_mounted_over() {
    let (root, mut sync, _credentials, mut apply) = new_sync(&TestController::new());
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
    let mut known_digests = Vec::new();
    // Waits for a new observation. Only the labels change.
    let mut wait_for_change = async |step: &str| loop {
        match timeout(Duration::from_mins(10), apply.receive()).await.expect(step).unwrap() {
            SyncMessage::Observed(digest) if known_digests.contains(&digest) => {}
            SyncMessage::Observed(digest) => return known_digests.push(digest),
            other => panic!("{step}: {other:?}"),
        }
    };
    let mount_steps = async {
        let Some(mount) = LabelDirMount::new(&dir) else { return };
        wait_for_change("an empty file system is mounted").await;
        write("above=1\n");
        wait_for_change("a file is written into the mount").await;
        drop(mount);
        wait_for_change("the file system is unmounted").await;
    };
    tokio::select! {
        // Polled first, so that the watch is set before anything is mounted.
        biased;
        result = sync.run_loop() => panic!("{result:?}"),
        () = mount_steps => {}
    }
}
