//! A controller in this process, on loopback with real TLS, and agents that speak its protocol: what the refusals are tested with.

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
use stemma_controller::desired::{Batch, Change, EncodedProfile, Released};
use stemma_controller::enrol::token;
use stemma_controller::handed::Handed;
use stemma_controller::init::init;
use stemma_controller::records::request::Answer;
use stemma_controller::registry::{Abandoned, Caller, Who};
use stemma_controller::run::{Controller, Options, Parts, Publishing, start};
use stemma_controller::store::Transaction;
use stemma_core::ownership::Manager;
use stemma_core::task::Mode;
use stemma_wire::client::{Client, ClientLimits, Target};
use stemma_wire::clock::{Clock, SystemClock};
use stemma_wire::error::ApiError;
use stemma_wire::message::checkin::{CheckIn, CheckInAnswer, Held, News};
use stemma_wire::message::desired::{Known, Profile, TaskSet};
use stemma_wire::message::enroll::{EnrollAnswer, EnrollRequest, RenewAnswer, RenewRequest};
use stemma_wire::message::observed::{LocalState, Observation, Outcome, TaskResult};
use stemma_wire::message::signed::SignedDesired;
use stemma_wire::message::{
    Hash, Message, PartDigest, Revision, WireVersion, decode, digest_part, encode, encode_part,
};
use stemma_wire::tls::{ClientIdentity, Fleet as FleetName, Pin, client_config};
use uuid::Uuid;

/// How long anything that a test waits for may take, also beside all that a busy machine runs. Only a test that fails waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Waits until something holds.
pub(crate) async fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "the condition did not come to hold");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads until what is read is so.
pub(crate) async fn read_until<T: Display>(what: &str, read: impl AsyncFn() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = read().await;
        if is_so(&said) {
            return said;
        }
        assert!(Instant::now() < deadline, "{what}: {said}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A clock that a test moves on, beginning now.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    passed_s: AtomicU64,
    off_s: AtomicI64,
}

impl Clock for Moving {
    fn unix_seconds(&self) -> u64 {
        let right = SystemClock.unix_seconds() + self.passed_s.load(Ordering::Relaxed);
        right.saturating_add_signed(self.off_s.load(Ordering::Relaxed))
    }

    fn steady_seconds(&self) -> u64 {
        SystemClock.steady_seconds() + self.passed_s.load(Ordering::Relaxed)
    }
}

impl Moving {
    /// So much time passes.
    pub(crate) fn forward(&self, seconds: u64) {
        self.passed_s.fetch_add(seconds, Ordering::Relaxed);
    }

    /// The clock is set, and is off by so much from then on.
    pub(crate) fn set_off_by(&self, seconds: i64) {
        self.off_s.store(seconds, Ordering::Relaxed);
    }
}

/// A controller and its directory.
pub(crate) struct Fleet {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) controller: Controller,
    pub(crate) clock: Arc<Moving>,
    /// The journal's lines of refusals before this one began.
    said_before: BTreeMap<String, u64>,
}

/// A key with the request for its certificate.
pub(crate) struct Asking {
    pub(crate) key: KeyPair,
    pub(crate) csr: Vec<u8>,
}

/// A host that has joined.
pub(crate) struct Host {
    pub(crate) node: Uuid,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) client: Client,
    pub(crate) held: Option<Held>,
    /// Pause, hold and park as said there.
    pub(crate) local: LocalState,
}

/// An answer that is not a success: its status and the error's type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl Fleet {
    /// What its hosts are told is up to the test: nothing reconciles here unless the test wants it.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Options)) -> Self {
        let said_before = witness::listen();
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        init(&data, &[], SystemClock.unix_seconds()).unwrap();
        let clock = Arc::new(Moving::default());
        let mut options =
            Options { clock: Arc::clone(&clock) as _, publishing: Publishing::ByHand, ..Options::default() };
        change(&mut options);
        let controller = start(config(data), options).await.unwrap();
        Self { directory, controller, clock, said_before }
    }

    /// One whose controller publishes by itself what it decides.
    pub(crate) async fn start_reconciled() -> Self {
        Self::start_with(|own| *own = reconciled()).await
    }

    /// Stops the controller, and starts one with these options from what it left.
    pub(crate) async fn restart(mut self, options: Options) -> Self {
        self.controller.stop().await;
        self.controller = start(config(self.directory.path().join("data")), options).await.unwrap();
        self
    }

    pub(crate) fn parts(&self) -> &Arc<Parts> {
        self.controller.parts()
    }

    pub(crate) fn agents(&self) -> SocketAddr {
        self.controller.agents_address()
    }

    /// A client with the admin's certificate, at the operators' port.
    pub(crate) fn operator(&self) -> Client {
        let admin = self.directory.path().join("data/admin");
        let chain = CertificateDer::pem_file_iter(admin.join("admin.pem")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(admin.join("admin.key")).unwrap();
        self.client_of(self.controller.admin_address(), chain, key)
    }

    /// A request of an operator, and what it answers.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.answer(method, path, body).await;
        (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
    }

    /// The same, with the headers.
    pub(crate) async fn answer(&self, method: Method, path: &str, body: &Value) -> Response<Bytes> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request =
            Request::builder().method(method).uri(path).header("content-type", "application/json").body(body).unwrap();
        self.operator().send(request).await.unwrap()
    }

    /// Reads, as an operator.
    pub(crate) async fn read(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Applies objects, as an operator.
    pub(crate) async fn apply(&self, objects: Value) {
        let (status, body) = self.ask(Method::POST, "/v1/apply?force=true", &json!({ "objects": objects })).await;
        assert_eq!(status, 200, "{body}");
    }

    /// A host that has joined a group.
    pub(crate) async fn join_group(&self, group: &str, name: &str) -> Host {
        let token = self.token(json!({"nodegroup": group})).await;
        let asking = asking();
        let answer = self.enrol(&token, name, &asking.csr).await.unwrap();
        self.host(answer.node, &asking, answer.chain)
    }

    /// A new token, as `id.secret`.
    pub(crate) async fn token(&self, body: Value) -> String {
        let made = token::create(&self.parts().registry, &admin(), &body).await.unwrap();
        made.body["token"].as_str().unwrap().to_owned()
    }

    /// A client without a certificate, that pins the root's key.
    pub(crate) fn stranger(&self) -> Client {
        let hash = stemma_wire::tls::spki_sha256(self.parts().authority.root()).unwrap();
        let tls = client_config(&Pin::KeyHash(hash), None, None, Arc::new(SystemClock)).unwrap();
        Client::new(target(self.agents()), Some(Arc::new(tls)), ClientLimits::default())
    }

    /// A client with a certificate.
    pub(crate) fn client(&self, chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Client {
        self.client_of(self.agents(), chain, key)
    }

    pub(crate) fn client_of(
        &self,
        at: SocketAddr,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Client {
        let pin = Pin::Roots(vec![self.parts().authority.root().clone()]);
        let fleet: FleetName = self.parts().fleet.clone();
        let own = ClientIdentity { chain, key };
        let tls = client_config(&pin, Some(fleet), Some(own), Arc::new(SystemClock)).unwrap();
        Client::new(target(at), Some(Arc::new(tls)), ClientLimits::default())
    }

    pub(crate) async fn enrol(&self, token: &str, name: &str, csr: &[u8]) -> Result<EnrollAnswer, Refused> {
        let request = EnrollRequest { token: token.into(), csr: csr.to_vec(), seal_key: [7; 32], name: name.into() };
        call(&mut self.stranger(), "/agent/v1/enroll", &request).await
    }

    /// A host that has joined with a token of its own.
    pub(crate) async fn join(&self, name: &str) -> Host {
        let token = self.token(json!({})).await;
        let asking = asking();
        let answer = self.enrol(&token, name, &asking.csr).await.unwrap();
        self.host(answer.node, &asking, answer.chain)
    }

    pub(crate) fn host(&self, node: Uuid, asking: &Asking, chain: Vec<Vec<u8>>) -> Host {
        let key = private_key(&asking.key);
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        let client = self.client(chain.clone(), key.clone_key());
        Host { node, key, chain, client, held: None, local: LocalState::default() }
    }

    /// Writes until the store has come to this revision: a host that holds a later one is ahead of it.
    pub(crate) async fn reach(&self, revision: u64) {
        while self.revision().await < revision {
            let write = Transaction::new().put("test/revision", Bytes::new());
            self.parts().registry.store().commit(write).await.unwrap();
        }
    }

    /// Publishes a desired state for one node, as the reconciler would.
    pub(crate) fn publish(&self, node: Uuid, revision: u64, mut state: Released) {
        state.revision = Revision(revision);
        let changes = vec![(node, Change::Release(Box::new(state)))];
        self.parts().desired.publish(Batch { revision: Revision(revision), changes });
    }
}

impl Host {
    pub(crate) async fn check_in(&mut self, wait_ms: u32) -> Result<CheckInAnswer, Refused> {
        let said = CheckIn { local: self.local.clone(), ..check_in(self.held, wait_ms) };
        call(&mut self.client, "/agent/v1/checkin", &said).await
    }

    /// The first state that it is told. Before that it may be answered that what it said is stored.
    pub(crate) async fn first_state(&mut self) -> SignedDesired {
        loop {
            if let Some(first) = self.news(30_000).await.desired {
                return first;
            }
        }
    }

    /// Checks in and takes over what it is told.
    pub(crate) async fn news(&mut self, wait_ms: u32) -> News {
        match self.check_in(wait_ms).await.unwrap() {
            CheckInAnswer::Current(news) => {
                if let Some(desired) = &news.desired {
                    self.held = Some(Held {
                        epoch: desired.epoch,
                        revision: desired.revision,
                        known: desired.known_digest,
                        task_set: desired.task_set_digest,
                    });
                }
                *news
            }
            CheckInAnswer::Superseded => panic!("superseded by nobody"),
        }
    }

    /// Says that a task of what it holds has succeeded, as its first result.
    pub(crate) async fn has_done(&mut self, task: &str) {
        let result = result_of(1, self.held.unwrap().task_set, task, Outcome::Changed);
        let said = CheckIn { results: vec![result], local: self.local.clone(), ..check_in(self.held, 0) };
        let _taken: CheckInAnswer = call(&mut self.client, "/agent/v1/checkin", &said).await.unwrap();
    }

    pub(crate) async fn renew(&mut self, csr: &[u8]) -> Result<RenewAnswer, Refused> {
        call(&mut self.client, "/agent/v1/renew", &RenewRequest { csr: csr.to_vec() }).await
    }
}

/// The result of a task of a task set, of which the host says nothing.
pub(crate) fn result_of(sequence: u64, task_set: PartDigest, task: &str, outcome: Outcome) -> TaskResult {
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

/// The options of a controller that publishes by itself what it decides.
pub(crate) fn reconciled() -> Options {
    Options { publishing: Publishing::Reconciled, ..Options::default() }
}

pub(crate) fn config(data_dir: PathBuf) -> Config {
    let run = args::Run {
        data_dir: Some(data_dir),
        admin_listen: Some("127.0.0.1:0".into()),
        agent_listen: Some("127.0.0.1:0".into()),
        ..args::Run::default()
    };
    Config::load_with(&run, &Handed::default()).unwrap()
}

pub(crate) fn target(at: SocketAddr) -> Target {
    format!("https://{at}").parse().unwrap()
}

/// Who makes tokens.
pub(crate) fn admin() -> Caller {
    Caller {
        who: Who::by_way("admin"),
        manager: Manager::new("admin").unwrap(),
        address: String::new(),
        reason: None,
        request_id: String::new(),
        mark: None,
        dry_run: false,
        abandoned: Abandoned::default(),
    }
}

pub(crate) fn asking() -> Asking {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key).unwrap().der().to_vec();
    assert!(csr::check(&csr).is_ok());
    Asking { key, csr }
}

pub(crate) fn private_key(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}

/// What an idle host says.
pub(crate) fn check_in(held: Option<Held>, wait_ms: u32) -> CheckIn {
    let observation = Observation::default();
    CheckIn {
        boot_id: [1; 16],
        held,
        results: Vec::new(),
        observation_digest: digest_of(&observation),
        observation: Some(observation),
        report: None,
        wants: Vec::new(),
        gives_back: Vec::new(),
        local: LocalState::default(),
        wait_ms,
    }
}

pub(crate) fn digest_of(observation: &Observation) -> PartDigest {
    digest_part(WireVersion::CURRENT, &encode_part(WireVersion::CURRENT, observation))
}

/// A desired state with this label, and this profile if any.
pub(crate) fn state(label: &str, profile: Option<&Profile>, blobs: &[Hash]) -> Released {
    let labels =
        stemma_wire::message::desired::KnownLabel { value: label.into(), to_host: false, origin: "test".into() };
    let known =
        Known { labels: BTreeMap::from([("tier".to_owned(), labels)]), ceiling: Mode::Apply, ..Known::default() };
    let profile = profile.map(|profile| Arc::new(EncodedProfile::new(profile)));
    Released::new(Revision(0), (&known, &TaskSet::default()), (profile, blobs.into()), Duration::from_secs(90))
}

/// Sends a message and reads the answer, or the error in its place.
pub(crate) async fn call<Q: Message, A: Message>(client: &mut Client, path: &str, message: &Q) -> Result<A, Refused> {
    let response = send(client, Method::POST, path, encode(message)).await;
    if response.status().is_success() {
        return Ok(decode(response.body()).unwrap());
    }
    Err(refused(&response))
}

pub(crate) async fn send(client: &mut Client, method: Method, path: &str, body: impl Into<Bytes>) -> Response<Bytes> {
    let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    client.send_within(request, Duration::from_secs(90)).await.unwrap()
}

pub(crate) fn refused(response: &Response<Bytes>) -> Refused {
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
    Refused { status: response.status().as_u16(), kind: text("type"), message: text("message") }
}

/// Token calls as the API makes them.
pub(crate) async fn delete_token(fleet: &Fleet, id: &str) -> Result<Answer, ApiError> {
    token::delete(&fleet.parts().registry, &admin(), id, |_, _| Answer::empty(204)).await
}

/// Some other node.
pub(crate) fn asking_node() -> Uuid {
    Uuid::from_u128(0xa5)
}
