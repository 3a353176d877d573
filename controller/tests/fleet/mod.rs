//! A controller in this process, on loopback with real TLS, and agents that speak its protocol.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

pub(crate) mod forge;
pub(crate) mod witness;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Method, Request, Response};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use stemma_controller::args;
use stemma_controller::ca::csr;
use stemma_controller::config::Config;
use stemma_controller::desired::{DesiredChange, DesiredState, EncodedProfile, PassResult};
use stemma_controller::enrol::token;
use stemma_controller::init::init;
use stemma_controller::records::request::StoredAnswer;
use stemma_controller::registry::{Caller, Canceled, Requester};
use stemma_controller::run::{Components, Controller, Options, PublishMode, start};
use stemma_controller::socket_activation::ActivatedSockets;
use stemma_controller::store::Transaction;
use stemma_core::ownership::Manager;
use stemma_core::task::Mode;
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::{Clock, SystemClock};
use stemma_wire::error::ApiError;
use stemma_wire::message::checkin::{CheckIn, CheckInResponse, CheckInUpdate, HeldDesired};
use stemma_wire::message::desired::{Known, Profile, TaskSet};
use stemma_wire::message::enroll::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use stemma_wire::message::observed::{LocalState, Observation, Outcome, TaskResult};
use stemma_wire::message::signed::SignedDesired;
use stemma_wire::message::{Hash, Message, PartDigest, Revision, WireVersion, decode, digest_part, encode, encode_part};
use stemma_wire::tls::{ClientIdentity, FleetName, Pin, client_config};
use uuid::Uuid;

/// The timeout of everything that a test waits for, long enough for a busy machine. Only a failing test waits this
/// long.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(2);

/// Waits until a condition is true. Fails after [`TIMEOUT`].
pub(crate) async fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "the condition was not met in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads a value repeatedly until the value meets a condition, and returns the value. Fails after [`TIMEOUT`].
pub(crate) async fn read_until<T: Display>(description: &str, read: impl AsyncFn() -> T, is_expected: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let value = read().await;
        if is_expected(&value) {
            return value;
        }
        assert!(Instant::now() < deadline, "{description}: {value}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The clock of the system, which a test can advance, and whose wall time a test can make wrong.
#[derive(Debug, Default)]
pub(crate) struct TestClock {
    passed_s: AtomicU64,
    offset_s: AtomicI64,
}

impl Clock for TestClock {
    fn unix_seconds(&self) -> u64 {
        let true_time = SystemClock.unix_seconds() + self.passed_s.load(Ordering::Relaxed);
        true_time.saturating_add_signed(self.offset_s.load(Ordering::Relaxed))
    }

    fn monotonic_seconds(&self) -> u64 {
        SystemClock.monotonic_seconds() + self.passed_s.load(Ordering::Relaxed)
    }
}

impl TestClock {
    /// Advances the wall clock and the monotonic clock, in seconds.
    pub(crate) fn advance(&self, seconds: u64) {
        self.passed_s.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Sets the error of the wall clock, in seconds. The monotonic clock is unchanged.
    pub(crate) fn set_offset(&self, seconds: i64) {
        self.offset_s.store(seconds, Ordering::Relaxed);
    }
}

/// A running controller with its directory and its clock.
pub(crate) struct Fleet {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) controller: Controller,
    pub(crate) clock: Arc<TestClock>,
    /// Numbers of refusals that this process had logged when the fleet was started, by reason.
    logged_before: BTreeMap<String, u64>,
}

/// A key with a certificate request.
pub(crate) struct KeyAndRequest {
    pub(crate) key: KeyPair,
    pub(crate) csr: Vec<u8>,
}

/// A simulated host that has joined: its certificate and key, and what its check-ins report to the controller.
pub(crate) struct Host {
    pub(crate) node: Uuid,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) client: Client,
    pub(crate) held_desired: Option<HeldDesired>,
    /// Pause, hold and park that root set on the host itself.
    pub(crate) local: LocalState,
}

/// An error response: the status, and the type and message of the error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorResponse {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl Fleet {
    /// Starts a fleet in which the test itself publishes desired states. No reconciler runs.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a fleet with the default options of tests, after `change` has adjusted them.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Options)) -> Self {
        let counts_before = witness::install_logger();
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        init(&data, &[], SystemClock.unix_seconds()).unwrap();
        let clock = Arc::new(TestClock::default());
        let mut options = Options { clock: Arc::clone(&clock) as _, publishing: PublishMode::Manual, ..Options::default() };
        change(&mut options);
        let controller = start(new_config(data), options).await.unwrap();
        Self { directory, controller, clock, logged_before: counts_before }
    }

    /// Starts a fleet whose controller publishes the desired states that it computes. The controller uses the clock of
    /// the system, so the fleet's field `clock` has no effect.
    pub(crate) async fn start_reconciled() -> Self {
        Self::start_with(|options| *options = reconciled_options()).await
    }

    /// Stops the controller, and starts another controller with these options on the same data. The new controller uses
    /// the clock of the options, which need not be the fleet's field `clock`.
    pub(crate) async fn restart(mut self, options: Options) -> Self {
        self.controller.stop().await;
        self.controller = start(new_config(self.directory.path().join("data")), options).await.unwrap();
        self
    }

    /// Returns the components of the running controller, for access without a request.
    pub(crate) fn components(&self) -> &Arc<Components> {
        self.controller.components()
    }

    /// Returns the address of the agent listener.
    pub(crate) fn agents_address(&self) -> SocketAddr {
        self.controller.agents_address()
    }

    /// Returns a client with the admin's certificate for the admin listener.
    pub(crate) fn admin_client(&self) -> Client {
        let admin = self.directory.path().join("data/admin");
        let chain = CertificateDer::pem_file_iter(admin.join("admin.pem")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(admin.join("admin.key")).unwrap();
        self.client_at(self.controller.admin_address(), chain, key)
    }

    /// Sends a request with the certificate of the first admin. Returns the status and the body, or `null` if the body
    /// is not JSON.
    pub(crate) async fn request(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.request_raw(method, path, body).await;
        (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
    }

    /// Sends a request with the certificate of the first admin. Returns the whole response.
    pub(crate) async fn request_raw(&self, method: Method, path: &str, body: &Value) -> Response<Bytes> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body).unwrap();
        self.admin_client().send(request).await.unwrap()
    }

    /// Reads a path with the certificate of the first admin, checks that the status is 200, and returns the body.
    pub(crate) async fn read(&self, path: &str) -> Value {
        let (status, body) = self.request(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Applies objects with force and the certificate of the first admin.
    pub(crate) async fn apply(&self, objects: Value) {
        let (status, body) = self.request(Method::POST, "/v1/apply?force=true", &json!({ "objects": objects })).await;
        assert_eq!(status, 200, "{body}");
    }

    /// Joins a host to a group, with a new join token that is bound to the group.
    pub(crate) async fn join_group(&self, group: &str, name: &str) -> Host {
        let token = self.create_token(json!({"nodegroup": group})).await;
        let request = new_key_and_request();
        let answer = self.enrol(&token, name, &request.csr).await.unwrap();
        self.host_with_certificate(answer.node, &request, answer.chain)
    }

    /// Creates a join token, and returns it as `id.secret`.
    pub(crate) async fn create_token(&self, body: Value) -> String {
        let created = token::create(&self.components().registry, &admin_caller(), &body).await.unwrap();
        created.body["token"].as_str().unwrap().to_owned()
    }

    /// Returns a client of the agent listener that has no certificate. The client pins the hash of the root's key.
    pub(crate) fn client_without_certificate(&self) -> Client {
        let hash = stemma_wire::tls::spki_sha256(self.components().authority.root()).unwrap();
        let tls = client_config(&Pin::KeyHash(hash), None, None, Arc::new(SystemClock)).unwrap();
        Client::new(agent_target(self.agents_address()), Some(Arc::new(tls)), ClientLimits::default())
    }

    /// Returns a client of the agent listener with this certificate.
    pub(crate) fn client(&self, chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Client {
        self.client_at(self.agents_address(), chain, key)
    }

    /// Returns a client of the listener at this address, with this certificate.
    pub(crate) fn client_at(
        &self,
        address: SocketAddr,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Client {
        let pin = Pin::Roots(vec![self.components().authority.root().clone()]);
        let fleet: FleetName = self.components().fleet.clone();
        let identity = ClientIdentity { chain, key };
        let tls = client_config(&pin, Some(fleet), Some(identity), Arc::new(SystemClock)).unwrap();
        Client::new(agent_target(address), Some(Arc::new(tls)), ClientLimits::default())
    }

    /// Sends an enrolment request with a join token.
    pub(crate) async fn enrol(&self, token: &str, name: &str, csr: &[u8]) -> Result<EnrollResponse, ErrorResponse> {
        let request = EnrollRequest { token: token.into(), csr: csr.to_vec(), seal_key: [7; 32], name: name.into() };
        call(&mut self.client_without_certificate(), "/agent/v1/enroll", &request).await
    }

    /// Joins a host to no group, with a new join token.
    pub(crate) async fn join(&self, name: &str) -> Host {
        let token = self.create_token(json!({})).await;
        let request = new_key_and_request();
        let answer = self.enrol(&token, name, &request.csr).await.unwrap();
        self.host_with_certificate(answer.node, &request, answer.chain)
    }

    /// Returns the host of a node, with the certificate that was issued for this request.
    pub(crate) fn host_with_certificate(&self, node: Uuid, request: &KeyAndRequest, chain: Vec<Vec<u8>>) -> Host {
        let key = private_key(&request.key);
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        let client = self.client(chain.clone(), key.clone_key());
        Host { node, key, chain, client, held_desired: None, local: LocalState::default() }
    }

    /// Writes until the store has reached this revision, so that a host with a desired state of this revision is not
    /// ahead of the store.
    pub(crate) async fn advance_revision(&self, revision: u64) {
        while self.last_revision().await < revision {
            let write = Transaction::new().put("test/revision", Bytes::new());
            self.components().registry.store().commit(write).await.unwrap();
        }
    }

    /// Publishes a desired state for one node, as the reconciler does.
    pub(crate) fn publish(&self, node: Uuid, revision: u64, mut state: DesiredState) {
        state.revision = Revision(revision);
        let changes = vec![(node, DesiredChange::Release(Box::new(state)))];
        self.components().desired.publish(PassResult { revision: Revision(revision), changes });
    }
}

impl Host {
    /// Sends a check-in without results. The controller may hold the check-in open for `wait_ms`.
    pub(crate) async fn check_in(&mut self, wait_ms: u32) -> Result<CheckInResponse, ErrorResponse> {
        let message = CheckIn { local: self.local.clone(), ..idle_check_in(self.held_desired, wait_ms) };
        call(&mut self.client, "/agent/v1/checkin", &message).await
    }

    /// Checks in until a response contains a desired state, and returns the state. Earlier responses may only confirm
    /// that a report was stored.
    pub(crate) async fn first_state(&mut self) -> SignedDesired {
        loop {
            if let Some(first) = self.next_update(30_000).await.desired {
                return first;
            }
        }
    }

    /// Checks in, and returns the update. If the update contains a desired state, the host's next check-in confirms it.
    pub(crate) async fn next_update(&mut self, wait_ms: u32) -> CheckInUpdate {
        match self.check_in(wait_ms).await.unwrap() {
            CheckInResponse::Current(update) => {
                if let Some(desired) = &update.desired {
                    self.held_desired = Some(HeldDesired {
                        epoch: desired.epoch,
                        revision: desired.revision,
                        known: desired.known_digest,
                        task_set: desired.task_set_digest,
                    });
                }
                *update
            }
            CheckInResponse::Superseded => panic!("no other check-in exists that could supersede this check-in"),
        }
    }

    /// Reports that a task of the host's task set changed something and succeeded, as the first result of the host.
    pub(crate) async fn report_success(&mut self, task: &str) {
        let result = task_result(1, self.held_desired.unwrap().task_set, task, Outcome::Changed);
        let message = CheckIn { results: vec![result], local: self.local.clone(), ..idle_check_in(self.held_desired, 0) };
        let _response: CheckInResponse = call(&mut self.client, "/agent/v1/checkin", &message).await.unwrap();
    }

    /// Requests a new certificate for the host.
    pub(crate) async fn renew(&mut self, csr: &[u8]) -> Result<RenewResponse, ErrorResponse> {
        call(&mut self.client, "/agent/v1/renew", &RenewRequest { csr: csr.to_vec() }).await
    }
}

/// Builds the result of a task. Its texts are empty.
pub(crate) fn task_result(sequence: u64, task_set: PartDigest, task: &str, outcome: Outcome) -> TaskResult {
    TaskResult {
        sequence,
        task_set,
        task: task.to_owned(),
        outcome,
        message: String::new(),
        output: String::new(),
        diff: String::new(),
        duration_ms: 1,
    }
}

/// Returns the options of a controller that publishes the desired states that it computes.
pub(crate) fn reconciled_options() -> Options {
    Options { publishing: PublishMode::Reconciler, ..Options::default() }
}

/// Returns a configuration with this data directory and two listeners on free loopback ports.
pub(crate) fn new_config(data_dir: PathBuf) -> Config {
    let run = args::RunArgs {
        data_dir: Some(data_dir),
        admin_listen: Some("127.0.0.1:0".into()),
        agent_listen: Some("127.0.0.1:0".into()),
        ..args::RunArgs::default()
    };
    Config::load_with_sockets(&run, &ActivatedSockets::default()).unwrap()
}

pub(crate) fn agent_target(address: SocketAddr) -> Target {
    format!("https://{address}").parse().unwrap()
}

/// Returns a caller `admin` with all rights and no credential of a principal, like root on the local socket.
pub(crate) fn admin_caller() -> Caller {
    Caller {
        requester: Requester::from_listener("admin"),
        manager: Manager::new("admin").unwrap(),
        address: String::new(),
        reason: None,
        request_id: String::new(),
        idempotency_key: None,
        dry_run: false,
        canceled: Canceled::default(),
    }
}

/// Generates a key, and a certificate request for it.
pub(crate) fn new_key_and_request() -> KeyAndRequest {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key).unwrap().der().to_vec();
    assert!(csr::check(&csr).is_ok());
    KeyAndRequest { key, csr }
}

pub(crate) fn private_key(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}

/// Builds the check-in of a host that has no results and an empty observation.
pub(crate) fn idle_check_in(desired: Option<HeldDesired>, wait_ms: u32) -> CheckIn {
    let observation = Observation::default();
    CheckIn {
        boot_id: [1; 16],
        held_desired: desired,
        results: Vec::new(),
        observation_digest: observation_digest(&observation),
        observation: Some(observation),
        report: None,
        requested_leases: Vec::new(),
        returned_items: Vec::new(),
        local: LocalState::default(),
        wait_ms,
    }
}

pub(crate) fn observation_digest(observation: &Observation) -> PartDigest {
    digest_part(WireVersion::CURRENT, &encode_part(WireVersion::CURRENT, observation))
}

/// Builds a desired state with this value of the label `tier`, an empty task set, and this profile if any. `blobs` are
/// the blobs that the host may fetch.
pub(crate) fn desired_state(label: &str, profile: Option<&Profile>, blobs: &[Hash]) -> DesiredState {
    let labels = stemma_wire::message::desired::KnownLabel { value: label.into(), to_host: false, origin: "test".into() };
    let known = Known { labels: BTreeMap::from([("tier".to_owned(), labels)]), ceiling: Mode::Apply, ..Known::default() };
    let profile = profile.map(|profile| Arc::new(EncodedProfile::new(profile)));
    DesiredState::new(Revision(0), (&known, &TaskSet::default()), (profile, blobs.into()), Duration::from_secs(90))
}

/// Sends a message, and decodes the response or the error.
pub(crate) async fn call<Q: Message, A: Message>(client: &mut Client, path: &str, message: &Q) -> Result<A, ErrorResponse> {
    let response = send_request(client, Method::POST, path, encode(message)).await;
    if response.status().is_success() {
        return Ok(decode(response.body()).unwrap());
    }
    Err(error_response(&response))
}

/// Sends a request, and waits up to 90 seconds for the response.
pub(crate) async fn send_request(client: &mut Client, method: Method, path: &str, body: impl Into<Bytes>) -> Response<Bytes> {
    let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    client.send_with_timeout(request, Duration::from_secs(90)).await.unwrap()
}

pub(crate) fn error_response(response: &Response<Bytes>) -> ErrorResponse {
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
    ErrorResponse { status: response.status().as_u16(), kind: text("type"), message: text("message") }
}

/// Deletes a join token as the API does.
pub(crate) async fn delete_token(fleet: &Fleet, id: &str) -> Result<StoredAnswer, ApiError> {
    token::delete(&fleet.components().registry, &admin_caller(), id, |_, _| StoredAnswer::empty(204)).await
}

/// Returns a uuid that no host of the test has.
pub(crate) fn other_node() -> Uuid {
    Uuid::from_u128(0xa5)
}
